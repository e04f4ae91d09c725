"""Runs one payload of the smoke ladder in a built env, as the runner does, and reads its answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith.patchlines import final_lines

ROOT = Path(__file__).resolve().parent.parent.parent
#: (Target, kind, series file below patches/) of an env's patches.
SERIES = {
    "sft": (
        ("llamafactory", "source", "llamafactory-7af9095/old-driver.series"),
        ("deepspeed", "wheel", "deepspeed-0.18.4/cpu-adam.series"),
    ),
    "rl": (("verl", "source", "verl-1bf9d2d/a100.series"),),
}


@dataclass
class Run:
    exit_code: int
    seconds: float
    answer: dict[str, Any]
    log: str
    folder: Path

    def verdict(self, what: str, subject: str | None = None) -> list[str]:
        """Verdicts of the statements of that name."""
        said = [one for one in self.answer.get("statements", []) if one["what"] == what]
        return [one["verdict"] for one in said if subject is None or one["subject"] == subject]


def patches_of(kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for target, how, name in SERIES[kind]:
        series = ROOT / "patches" / name
        names = [line for line in series.read_text().splitlines() if line and not line.startswith("#")]
        data = [(series.parent / one).read_bytes() for one in names]
        for one, files in zip(names, final_lines(data), strict=True):
            lines = [{"path": file.path, "lines": list(file.lines)} for file in files]
            found.append({"series": name, "patch": one, "target": target, "kind": how, "sha256": "", "files": lines})
    return found


def run_rung(
    env: Path,
    kind: str,
    module: str,
    desk: Path,
    *,
    options: Mapping[str, Any] | None = None,
    more_env: Mapping[str, str | None] | None = None,
    steps: int = 2,
    ranks: int = 0,
    timeout_s: float = 600.0,
    patches: Sequence[dict[str, Any]] | None = None,
) -> Run:
    """Start `envsmith_rungs.<module>` with the env's own interpreter and launch variables."""
    receipt = json.loads((env / "envsmith.json").read_text())
    launch: dict[str, str] = receipt["launch"]["set"]
    folder = desk / module
    folder.mkdir(parents=True)
    package = desk / "payload" / "envsmith_rungs"
    if not package.exists():
        shutil.copytree(ROOT / "envsmith" / "rungs", package, ignore=shutil.ignore_patterns("__pycache__"))
    sources = {path.name: str(path) for path in (env / "src").iterdir() if path.is_dir()}
    task = {
        "rung": module.replace("_", "-"), "folder": str(folder), "shared": str(desk / "shared"), "env": str(env),
        "ranks": ranks, "steps": steps, "seed": 0, "timeout_s": timeout_s, "options": dict(options or {}),
        "launch": launch, "sources": sources, "patches": list(patches_of(kind) if patches is None else patches),
    }  # fmt: skip
    (folder / "task.json").write_text(json.dumps(task))
    dropped = set(receipt["launch"]["unset"])
    environ: dict[str, str] = {name: value for name, value in os.environ.items() if name not in dropped} | launch
    offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "PYTHONDONTWRITEBYTECODE")
    environ |= dict.fromkeys(offline, "1") | {"TOKENIZERS_PARALLELISM": "false", "HF_HOME": str(desk / "hf")}
    environ |= {"PATH": f"{env / 'bin'}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": str(env)}
    for name, value in (more_env or {}).items():
        environ.pop(name, None)
        if value is not None:
            environ[name] = value
    argv = [str(env / "bin/python"), "-B", "-X", "faulthandler", "-m", f"envsmith_rungs.{module}"]
    began = time.monotonic()
    with (folder / "rank0.log").open("wb") as stream:
        done = subprocess.run(
            [*argv, str(folder / "task.json")], env=environ, cwd=desk / "payload", stdout=stream,
            stderr=subprocess.STDOUT, check=False, timeout=timeout_s + 60,
        )  # fmt: skip
    path = folder / "answer.0.json"
    answer = json.loads(path.read_text()) if path.exists() else {}
    log = (folder / "rank0.log").read_text(errors="replace")
    return Run(exit_code=done.returncode, seconds=time.monotonic() - began, answer=answer, log=log, folder=folder)
