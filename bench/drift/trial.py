"""One trial: cover the env, plant, ask `envsmith verify`, and judge its answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, TypeVar

from bench.drift.fault import FOLDER, Control, Fault
from bench.drift.overlay import Cover, run_covered
from bench.drift.target import Target

T = TypeVar("T")
Status = Literal["found", "misnamed", "missed", "not wired", "plant failed"]

TIMEOUT_S = 900.0
_FINDING_TEXT = ("subject", "message", "expected", "actual")


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """How one run of verify ended."""

    code: int
    findings: tuple[Mapping[str, Any], ...] = ()
    """Errors without a finding stand here too, with `error` as their check."""
    families: tuple[str, ...] = ()
    hashed_bytes: int = 0
    seconds: float = 0.0
    folder: str = ""
    """The plant's own folder."""
    peers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What other tools printed, by tool."""
    words: str = ""
    """What it printed when that was no answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One fault, or control, and what was made of it."""

    id: str
    family: str
    what: str
    status: Status
    said: Said
    answer: str = ""
    """`family/kind` of the right finding, or what was said instead."""
    other: int = 0
    """Further findings."""


class Ground:
    """The covered env, warm and quiet, on which trials are run."""

    def __init__(self, target: Target, scratch: Path) -> None:
        self.target = target
        self.scratch = scratch
        self._warm: dict[Path, Path] = {}
        self._clean: dict[tuple[str, ...], Said] = {}

    def covers(self) -> list[Cover]:
        """The env with its records, the interpreter below it, and the store."""
        store = Path(os.environ.get("ENVSMITH_HOME", "~/.cache/envsmith")).expanduser().resolve()
        places = [self.target.directory.parent, self.target.base_prefix, *([store] if store.is_dir() else [])]
        return [Cover(path=path, warm=self._warm.get(path)) for path in places]

    def environ(self) -> dict[str, str]:
        """A calling shell that has nothing wrong."""
        home = self.scratch / "home"
        home.mkdir(exist_ok=True)
        kept = {name: os.environ[name] for name in ("ENVSMITH_HOME",) if name in os.environ}
        path = f"{self.target.bin}:/usr/local/bin:/usr/bin:/bin"
        return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "ENVSMITH_ROOT": str(self.target.root), **kept}

    def warm_up(self) -> Said:
        """Verify once and keep what it wrote, so that later runs trust an index that was made on these layers."""
        kept = [
            Cover(path=cover.path, kept=self.scratch / f"warm-{number}") for number, cover in enumerate(self.covers())
        ]
        said = run_covered(kept, self.scratch, lambda: verify(self.target, self.environ(), self.scratch, ()))
        self._warm = {cover.path: cover.kept for cover in kept if cover.kept}
        return said

    def run(self, job: Callable[[], T]) -> T:
        """Run a job where changes do not stay."""
        return run_covered(self.covers(), self.scratch, job)

    def clean(self, level: tuple[str, ...]) -> Said:
        """What verify says of the untouched env at a level; asked once."""
        if level not in self._clean:
            self._clean[level] = self.run(lambda: verify(self.target, self.environ(), self.scratch, level))
        return self._clean[level]

    def attempt(
        self,
        trial: Fault | Control,
        peers: Callable[[Mapping[str, str]], Mapping[str, tuple[str, ...]]] | None = None,
    ) -> Said:
        """Plant one change and ask verify, and then other tools."""
        with tempfile.TemporaryDirectory(prefix="plant-", dir=self.scratch) as name:

            def job() -> Said:
                environ = {**self.environ(), **(trial.plant(Path(name)) or {})}
                said = verify(self.target, environ, self.scratch, trial.level)
                heard = peers(environ) if peers else {}
                return Said(**{**_fields(said), "folder": name, "peers": heard})

            return self.run(job)


def verify(target: Target, environ: Mapping[str, str], folder: Path, level: Sequence[str]) -> Said:
    """Run the program as a process of its own. The env is named by its path: a rebuild meanwhile changes nothing."""
    argv = [
        sys.executable,
        "-m",
        "envsmith",
        "verify",
        str(target.directory),
        "--root",
        str(target.root),
        "--json",
        *level,
    ]
    begun = time.monotonic()
    done = subprocess.run(
        argv, cwd=folder, env=dict(environ), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    seconds = time.monotonic() - begun
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return Said(code=done.returncode, seconds=seconds, words=(done.stdout + done.stderr)[-2000:])
    findings = list(answer["data"].get("findings", []) if answer["data"] else [])
    for error in answer["errors"]:
        findings.append({**error, "check": "error", "kind": error["code"], "subject": error.get("where") or ""})
    env = (answer["data"] or {}).get("envs") or [{}]
    return Said(
        code=done.returncode,
        findings=tuple(findings),
        families=tuple(env[0].get("families", ())),
        hashed_bytes=env[0].get("hashed_bytes", 0),
        seconds=seconds,
    )


def judge(fault: Fault, said: Said, clean: Said, wired: frozenset[str]) -> Verdict:
    """Hold an answer against what the fault had to bring."""
    new = fresh(said, clean)
    names = [name.replace(FOLDER, said.folder) for name in fault.names]
    right = [
        f
        for f in new
        if any(fnmatchcase(f"{f['check']}/{f['kind']}", kind) for kind in fault.expect)
        and fault.severity in ("any", f.get("severity", "error"))
        and all(name in _text(f) for name in names)
    ]
    families = {kind.split("/")[0] for kind in fault.expect} - {"error"}
    unknown = any(f["check"] == "error" and f["kind"] in ("unknown-family", "usage") for f in new)
    if right and said.code in fault.exit_codes:
        status: Status = "found"
    elif unknown or (families and not families & wired):
        status = "not wired"
    else:
        status = "misnamed" if new else "missed"
    best = right or new
    answer = f"{best[0]['check']}/{best[0]['kind']}" if best else (said.words.strip().splitlines() or ["nothing"])[-1]
    other = len(new) - (1 if right else 0)
    return Verdict(
        id=fault.id, family=fault.family, what=fault.what, status=status, said=said, answer=answer, other=other
    )


def judge_control(control: Control, said: Said, clean: Said) -> Verdict:
    """A benign change is right when nothing more is said than of the untouched env, and the exit code is 0."""
    new = fresh(said, clean)
    quiet = not new and said.code == clean.code == 0
    return Verdict(
        id=control.id,
        family="control",
        what=control.what,
        status="found" if quiet else "misnamed",
        said=said,
        answer="silent" if quiet else f"{new[0]['check']}/{new[0]['kind']}" if new else f"exit {said.code}",
        other=len(new),
    )


def fresh(said: Said, clean: Said) -> list[Mapping[str, Any]]:
    """Findings that the untouched env does not have; errors first."""
    known = {_key(finding) for finding in clean.findings}
    return [finding for finding in said.findings if _key(finding) not in known]


def _key(finding: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(finding.get(name)) for name in ("check", "kind", *_FINDING_TEXT))


def _text(finding: Mapping[str, Any]) -> str:
    return "\n".join(str(finding.get(name) or "") for name in _FINDING_TEXT)


def _fields(said: Said) -> dict[str, Any]:
    return {name: getattr(said, name) for name in Said.__dataclass_fields__}
