"""The two training payloads as envsmith starts them: a desk with the package's copy, a task, ranks with their logs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.torchenv import locked, session_folder

RUNGS = Path(__file__).parents[2] / "envsmith" / "rungs"
PLANTS = Path(__file__).parent / "planted"


@dataclass(frozen=True, slots=True)
class Said:
    """What one rank answered."""

    figures: dict[str, Any]
    statements: list[dict[str, Any]]
    identities: dict[str, Any]
    device: str

    @property
    def verdicts(self) -> dict[str, str]:
        return {one["what"]: one["verdict"] for one in self.statements}

    @property
    def bad(self) -> list[str]:
        return [one["what"] for one in self.statements if one["verdict"] in ("failed", "inconclusive")]

    def about(self, what: str) -> dict[str, Any]:
        (found,) = (one for one in self.statements if one["what"] == what)
        return found


@dataclass(frozen=True, slots=True)
class Desk:
    """A folder with `payload`, `shared` and a folder for each task."""

    python: Path
    path: Path

    def task(self, name: str, rung: str, *, ranks: int = 0, steps: int = 2, **options: Any) -> Path:
        """Write a task file; its folder is `name`."""
        folder = self.path / name
        folder.mkdir(parents=True)
        content = {
            "rung": rung, "folder": str(folder), "shared": str(self.path / "shared"), "env": "/", "ranks": ranks,
            "steps": steps, "seed": 0, "timeout_s": 300.0, "launch": {}, "sources": {}, "patches": [],
            "options": {key.replace("_", "-"): value for key, value in options.items()},
        }  # fmt: skip
        path = self.path / f"{name}.json"
        path.write_text(json.dumps(content))
        return path

    def run(self, module: str, *argv: str | Path, ranks: int = 0, log: Path) -> list[int]:
        """Exit codes of the ranks."""
        payload = self.path / "payload"
        if not payload.exists():
            shutil.copytree(RUNGS, payload / "envsmith_rungs", ignore=shutil.ignore_patterns("__pycache__"))
            for plant in PLANTS.glob("*.py"):
                shutil.copy(plant, payload / "envsmith_rungs")
        command = [self.python, "-B", "-X", "faulthandler", "-m", f"envsmith_rungs.{module}", *argv]
        started = []
        variables = _ranked(ranks) if ranks else [{}]
        for rank, more in enumerate(variables):
            with (log / f"rank{rank}.log").open("wb") as stream:
                environ = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **more}
                started.append(
                    subprocess.Popen(command, cwd=payload, env=environ, stdout=stream, stderr=subprocess.STDOUT)
                )
        return [process.wait(timeout=300) for process in started]


def said(folder: Path, rank: int = 0) -> Said:
    """The answer in a rung's folder."""
    return Said(**json.loads((folder / f"answer.{rank}.json").read_text()))


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that is filled once for all workers of a session."""
    folder = session_folder(factory) / name
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            folder.mkdir()
            make(folder)
    return folder


def _ranked(world: int) -> list[dict[str, str]]:
    """The variables as torchrun sets them."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    same = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        {name: str(value) for name, value in {**same, "RANK": rank, "LOCAL_RANK": rank}.items()}
        for rank in range(world)
    ]
