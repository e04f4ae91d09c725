"""What a rung is asked and what it answers: the form of both files, shared by all payloads."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Verdicts of a statement: the first two pass, `warning` and `note` are shown and pass, the last two do not pass.
VERDICTS = ("ok", "warning", "note", "failed", "inconclusive")


@dataclass(frozen=True)
class Task:
    """What envsmith asks of one rung; every rank reads the same file."""

    rung: str
    folder: Path
    """The rung's own writable folder."""
    shared: Path
    """Folder of the whole run: the tiny model is made once below it."""
    env: Path
    ranks: int
    steps: int
    seed: int
    timeout_s: float
    options: dict[str, Any]
    """The rung's table of the recipe, keys in kebab-case."""
    launch: dict[str, str]
    """The variables that the recipe sets, as every child must have them."""
    sources: dict[str, str]
    """Source name to the work copy in the env."""
    patches: list[dict[str, Any]]

    @classmethod
    def read(cls, argv: Sequence[str]) -> Task:
        """Read the file that the command line names."""
        data = json.loads(Path(argv[1]).read_text(encoding="utf-8"))
        paths: dict[str, Any] = {key: Path(data.pop(key)) for key in ("folder", "shared", "env")}
        return cls(**paths, **data)

    @property
    def rank(self) -> int:
        """This process among the ranks, as torchrun numbers them."""
        return int(os.environ.get("RANK", "0"))


@dataclass
class Answer:
    """What a rank found; it is only believed when the process also ends with exit code 0."""

    device: str = "cpu"
    figures: dict[str, Any] = field(default_factory=dict)
    """Name with its unit to a number, a text, or a list of numbers."""
    statements: list[dict[str, Any]] = field(default_factory=list)
    identities: dict[str, Any] = field(default_factory=dict)
    """Kind (`model`, `data`) to file names with their sha256."""

    def say(
        self,
        what: str,
        verdict: str,
        message: str,
        *,
        subject: str | None = None,
        expected: object = None,
        actual: object = None,
        hint: str | None = None,
    ) -> None:
        """Add one statement; `what` is a kebab-case slug listed in docs/smoke-rungs.md."""
        if verdict not in VERDICTS:
            raise ValueError(f"`{verdict}` is no verdict")
        self.statements.append(
            {
                "what": what,
                "verdict": verdict,
                "message": message,
                "subject": subject,
                "expected": None if expected is None else str(expected),
                "actual": None if actual is None else str(actual),
                "hint": hint,
            }
        )

    def check(self, what: str, holds: bool, message: str, *, otherwise: str | None = None, **words: Any) -> bool:
        """Say `ok` with `message`, or `failed` with `otherwise`; returns whether it holds."""
        self.say(what, "ok" if holds else "failed", message if holds else otherwise or f"not so: {message}", **words)
        return holds

    def write(self, task: Task) -> None:
        """Write it whole: under a temporary name, then renamed."""
        path = task.folder / f"answer.{task.rank}.json"
        temporary = path.with_suffix(".part")
        content = {
            "device": self.device,
            "figures": self.figures,
            "statements": self.statements,
            "identities": self.identities,
        }
        temporary.write_text(json.dumps(content, indent=2, sort_keys=True, allow_nan=True) + "\n", encoding="utf-8")
        temporary.replace(path)


def main(rung: Callable[[Task, Answer], None]) -> None:
    """Run one rung in this process and write its answer; an exception ends it with its traceback and exit code 1."""
    task = Task.read(sys.argv)
    answer = Answer()
    rung(task, answer)
    answer.write(task)


def pick_device(answer: Answer) -> str:
    """`cuda` where torch can use a device, else `cpu`, which is said plainly."""
    import torch

    if torch.cuda.is_available():
        index = int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count()
        torch.cuda.set_device(index)
        answer.device = f"cuda:{index} {torch.cuda.get_device_name(index)}"
        return f"cuda:{index}"
    answer.device = "cpu"
    answer.say("no-device", "note", "no GPU can be used by this env here: the rung ran on the CPU")
    return "cpu"


def sha256_of(path: Path) -> str:
    """Sha256 of a file in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def identities_of(folder: Path) -> dict[str, str]:
    """Relative path to sha256 for every file of a folder."""
    return {
        path.relative_to(folder).as_posix(): sha256_of(path) for path in sorted(folder.rglob("*")) if path.is_file()
    }
