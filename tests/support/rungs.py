"""Start a payload of the smoke ladder as the runner does, and hand back what can be observed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RUNGS = Path(__file__).parents[2] / "envsmith" / "rungs"


@dataclass(frozen=True)
class Outcome:
    codes: list[int]
    answers: list[dict[str, Any] | None]
    logs: list[str]
    seconds: float

    @property
    def figures(self) -> dict[str, Any]:
        answer = self.answers[0]
        assert answer, self.logs
        return dict(answer["figures"])

    def said(self, *verdicts: str) -> set[str]:
        """Slugs of all ranks' statements with one of the verdicts."""
        return {row["what"] for row in self.rows() if row["verdict"] in verdicts}

    def rows(self, what: str | None = None) -> list[dict[str, Any]]:
        found = [row for answer in self.answers if answer for row in answer["statements"]]
        return [row for row in found if what in (None, row["what"])]

    @property
    def passed(self) -> bool:
        return not any(self.codes) and all(self.answers) and not self.said("failed", "inconclusive")


@dataclass(frozen=True)
class Desk:
    """One env's interpreter with a folder to work in; `shared` is shared by all rungs of a session."""

    python: Path
    folder: Path
    shared: Path

    def payload(self) -> Path:
        """The payloads as the runner lays them out; a test may add a file of its own beside them."""
        payload = self.folder / "payload"
        if not payload.exists():
            shutil.copytree(RUNGS, payload / "envsmith_rungs", ignore=shutil.ignore_patterns("__pycache__"))
        return payload

    def run(
        self,
        rung: str,
        *,
        ranks: int = 0,
        options: dict[str, Any] | None = None,
        launch: dict[str, str] | None = None,
        env: dict[str, str] | None = None,
        module: str | None = None,
        timeout_s: float = 240.0,
    ) -> Outcome:
        payload, folder = self.payload(), self.folder / rung
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        task = {
            "rung": rung, "folder": str(folder), "shared": str(self.shared), "env": str(self.python.parent.parent),
            "ranks": ranks, "steps": 2, "seed": 0, "timeout_s": timeout_s, "options": options or {},
            "launch": launch or {}, "sources": {}, "patches": [],
        }  # fmt: skip
        (folder / "TASK.json").write_text(json.dumps(task))
        module = module or f"envsmith_rungs.{rung.replace('-', '_')}"
        command = [self.python, "-B", "-X", "faulthandler", "-m", module, folder / "TASK.json"]
        started, port = time.monotonic(), free_port()
        children = []
        for rank in range(max(ranks, 1)):
            with (folder / f"rank{rank}.log").open("wb") as log:
                children.append(
                    subprocess.Popen(
                        command, cwd=payload, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                        env=environment(self.folder, launch or {}, ranks, rank, port) | (env or {}),
                    )
                )  # fmt: skip
        codes = [wait(child, started + timeout_s) for child in children]
        answers = [folder / f"answer.{rank}.json" for rank in range(len(children))]
        return Outcome(
            codes,
            [json.loads(path.read_text()) if path.exists() else None for path in answers],
            [(folder / f"rank{rank}.log").read_text(errors="replace") for rank in range(len(children))],
            time.monotonic() - started,
        )


def environment(folder: Path, launch: dict[str, str], ranks: int, rank: int, port: int) -> dict[str, str]:
    """What the runner gives a rank, and nothing of the test's own."""
    given = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONNOUSERSITE": "1", "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        "ENVSMITH_SMOKE": "test", "HF_HOME": str(folder / "hf"), **launch,
    }  # fmt: skip
    if ranks:
        given |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        given |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return given


def wait(child: subprocess.Popen[bytes], deadline: float) -> int:
    try:
        return child.wait(max(deadline - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, 9)
        return child.wait(10)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
