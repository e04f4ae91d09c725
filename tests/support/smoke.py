"""A smoke run that did not happen: rung folders, answers and a record, in the form that a real one leaves."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from envsmith.commands.envs import open_env
from envsmith.commands.evidencing import EvidenceMaterial, WrittenEvidence, write_evidence
from envsmith.commands.launching import resolved
from envsmith.commands.screen import Screen
from envsmith.commands.smokerecord import finite
from envsmith.commands.subject import Subject, open_subject
from envsmith.report import Finding, Report, Severity
from envsmith.smoke import Ended

SHA = "0123456789abcdef" * 4

#: What a process of Python 3.11 prints on a segmentation fault with `-X faulthandler`.
CRASH = """\
loading weights
Fatal Python error: Segmentation fault

Thread 0x00007f33f0c2d6c0 (most recent call first):
  File "/opt/py/lib/python3.11/threading.py", line 320 in wait
  File "/opt/py/lib/python3.11/threading.py", line 995 in _bootstrap

Current thread 0x00007f33f1b28740 (most recent call first):
  File "/env/site-packages/pyarrow/lib.py", line 19 in read
  File "<string>", line 4 in <module>

Extension modules: numpy.core._multiarray_umath, pyarrow.lib (total: 2)
"""


@dataclass
class Run:
    """A record and the folders that it names."""

    folder: Path
    rungs: list[dict[str, Any]] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self,
        rung: str,
        status: str = "passed",
        *,
        codes: tuple[int | None, ...] = (0,),
        answered: tuple[int, ...] | None = None,
        log: str | bytes = "done\n",
        device: str | None = "cuda:0 NVIDIA H200",
        figures: Mapping[str, Any] | None = None,
        statements: tuple[dict[str, Any], ...] = (),
        identities: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Path:
        """Add a rung; every rank with exit code 0 has answered where `answered` does not say which."""
        folder = self.folder / f"{len(self.rungs) + 1:02d}-{rung}"
        folder.mkdir(parents=True)
        answer = {
            "device": device or "cpu",
            "figures": dict(figures or {}),
            "statements": list(statements),
            "identities": dict(identities or {}),
        }
        there = [
            rank
            for rank, code in enumerate(codes)
            if (code == 0 and rung != "command" if answered is None else rank in answered)
        ]
        for rank in range(len(codes)):
            (folder / f"rank{rank}.log").write_bytes(log if isinstance(log, bytes) else log.encode())
            if rank in there:
                (folder / f"answer.{rank}.json").write_text(json.dumps(answer, indent=2))
        first = answer if 0 in there else {"device": None, "figures": {}, "identities": {}}
        said_by = there or ([0] if status == "skipped" else [])
        module = f"envsmith_rungs.{rung.replace('-', '_')}"
        ends = [
            Ended(rank=rank, returncode=code, seconds=1.0, timed_out=code is None) for rank, code in enumerate(codes)
        ]
        self.rungs.append(
            {
                "rung": rung,
                "kind": rung,
                "status": status,
                "seconds": 1.25,
                "device": first["device"],
                "ranks": max(len(codes), 1),
                "exit_codes": {str(end.rank): end.returncode for end in ends},
                "ends": {str(end.rank): end.words for end in ends},
                "argv": ["bin/python", "-B", "-X", "faulthandler", "-m", module, f"{folder}/task.json"],
                "figures": finite(first["figures"]),
                "figures_of_ranks": {str(rank): finite(answer["figures"]) for rank in there if rank},
                "identities": first["identities"],
                "statements": [{"rank": rank, **one} for rank in said_by for one in statements],
                "first_error": None,
                "device_memory": None,
                "left_behind": [],
                "shared_memory_left": [],
                "folder": folder.name,
                **more,
            }
        )
        return folder

    @property
    def record(self) -> dict[str, Any]:
        return {
            "env": "demo/app",
            "folder": str(self.folder),
            "seconds": 20.0,
            "rungs": self.rungs,
            "findings": self.findings,
        }


def said(what: str, verdict: str, message: str = "so it is", subject: str | None = None) -> dict[str, Any]:
    """A statement of a rung."""
    words = {"what": what, "verdict": verdict, "message": message, "subject": subject}
    return {**words, "expected": None, "actual": None, "hint": None}


def good_run(folder: Path) -> Run:
    """Rungs that passed: one of envsmith's own, one with two ranks, one on the CPU with identities."""
    run = Run(folder)
    run.add("static", codes=(), device=None)
    run.add("collective", codes=(0, 0), figures={"all_reduce_gb_per_s": 311.25, "ranks": 2})
    run.add(
        "train-step",
        device="cpu",
        figures={"loss_first": 4.25, "loss_last": float("nan"), "losses": [4.25, 4.0, 3.5]},
        statements=(
            said("no-device", "note", "no GPU can be used by this env here: the rung ran on the CPU"),
            said("patch-exercised", "ok", "its lines ran", "tool: use-sdpa.patch"),
        ),
        identities={"model": {"config.json": SHA, "special_tokens_map.json": SHA}, "data": {"rows.jsonl": SHA}},
    )
    memory = {"before": [0], "after": [0]}
    run.add("exit-clean", codes=(), device=None, device_memory=memory)
    return run


def material(subject: Subject, run: Run, **more: Any) -> EvidenceMaterial:
    """What the runner would hand over."""
    launch = resolved(subject.launch, subject.directory, os.environ)
    now = datetime.now(timezone.utc) + timedelta(seconds=60)
    there = any(row["kind"] == "static" for row in run.rungs)
    report = Report(subject="demo/app", families=("files",), findings=()) if there else None
    made = EvidenceMaterial(
        record={**run.record, "started": now.isoformat(timespec="seconds")},
        subject=subject,
        report=report,
        launch=launch,
        environment=launch.apply(os.environ),
        started=now,
        ended=now + timedelta(seconds=30),
        environ=dict(os.environ),
        stages={"look": 0.5},
    )
    return replace(made, **more)


def env_of(root: Path) -> Subject:
    """The demo env."""
    return open_subject(open_env("demo/app", root))


def written(folder: Path, made: EvidenceMaterial) -> WrittenEvidence:
    """Write it without a word."""
    return write_evidence(folder, made, Screen(quiet=True))


def warning(message: str) -> Report:
    """A report with one warning."""
    found = Finding(check="files", kind="x", severity=Severity.WARNING, subject="a", message=message)
    return Report(subject="demo/app", families=("files",), findings=(found,))
