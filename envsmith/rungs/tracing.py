"""Shows that patched lines were executed: prepares `lineprobe.py` for the processes of a rung, and reads what it wrote.

The environment is not modified: what the started processes have more is one element of PYTHONPATH, which the rung
says. A line counts where it can be executed at all (comments, blank lines and strings cannot), and lines inside
functions weigh more than those that any import executes.
"""

from __future__ import annotations

import json
import os
import shutil
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType
from typing import Any

from .answering import Answer, Task

#: Variables that decide what the patches of the shipped series do; none of them is a secret.
VARIABLES = (
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "OPTIM_TORCH",
    "VERL_ATTN_IMPLEMENTATION",
    "VERL_DISABLE_EXPANDABLE_SEGMENTS",
    "RANK",
)


@dataclass
class Traced:
    """One patch, its lines that can be executed, and who executed them."""

    target: str
    patch: str
    inside: set[tuple[str, int]] = field(default_factory=set)
    """(Path in its tree, line) of lines inside functions."""
    outside: set[tuple[str, int]] = field(default_factory=set)
    """The same for lines that an import executes."""
    hits: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """Line to the names of the processes that executed it."""
    absent: list[str] = field(default_factory=list)
    """Files that are not where they should be."""

    @property
    def name(self) -> str:
        """Target and patch, as shown."""
        return f"{self.target}/{self.patch}"


def prepare(task: Task, folder: Path) -> dict[str, str]:
    """Write the probe into a folder and return the variables that make started interpreters load it."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(__file__).with_name("lineprobe.py"), folder / "sitecustomize.py")
    lines: dict[str, list[int]] = {}
    for _, path, numbers in _files(task):
        lines.setdefault(os.path.realpath(path), []).extend(numbers)
    plan = {"out": str(folder / "events.jsonl"), "variables": list(VARIABLES), "lines": lines}
    (folder / "plan.json").write_text(json.dumps(plan, indent=1), encoding="utf-8")
    old = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": str(folder) + (os.pathsep + old if old else "")}


def events(folder: Path) -> list[dict[str, Any]]:
    """What the processes wrote, in order; a line cut short by a killed process is left out."""
    path = folder / "events.jsonl"
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def executable(source: str, name: str) -> tuple[set[int], set[int]]:
    """Lines of a source that can be executed: (inside functions, by an import alone)."""
    inside: set[int] = set()
    outside: set[int] = set()

    def walk(body: CodeType, within: bool) -> None:
        lines = {line for _, _, line in body.co_lines() if line}
        # A function's first line is its `def`, which the code around it executes.
        (inside if within else outside).update(lines - {body.co_firstlineno} if within else lines)
        for inner in body.co_consts:
            if isinstance(inner, CodeType):
                # CO_OPTIMIZED marks functions; class bodies do not have it.
                walk(inner, within or bool(inner.co_flags & 1))

    walk(compile(source, name, "exec", dont_inherit=True), False)
    return inside, outside - inside


def traced(task: Task, found: Iterable[Mapping[str, Any]]) -> list[Traced]:
    """Bring events and patches together."""
    processes: dict[tuple[str, int], set[str]] = {}
    for event in found:
        if event["event"] == "hit":
            processes.setdefault((event["file"], event["line"]), set()).add(event["process"])
    by_name: dict[str, Traced] = {}
    for patch, path, numbers in _files(task):
        one = Traced(target=patch["target"], patch=patch["patch"])
        one = by_name.setdefault(one.name, one)
        shown = path.relative_to(root_of(task, patch)).as_posix()
        if not path.is_file():
            one.absent.append(shown)
            continue
        inside, outside = executable(path.read_text(encoding="utf-8"), shown)
        one.inside |= {(shown, line) for line in numbers if line in inside}
        one.outside |= {(shown, line) for line in numbers if line in outside}
        real = os.path.realpath(path)
        one.hits |= {(shown, line): processes[real, line] for line in numbers if (real, line) in processes}
    return list(by_name.values())


def report(task: Task, answer: Answer, found: Iterable[Mapping[str, Any]], reasons: Mapping[str, str]) -> list[Traced]:
    """Say of every patch whether its lines were executed, and by whom.

    `reasons` names, by path, why lines of a file were not reached.
    """
    patches = traced(task, found)
    for one in patches:
        can = one.inside | one.outside
        hit = set(one.hits) & can
        answer.figures[f"{one.name} lines executed"] = len(hit)
        answer.figures[f"{one.name} lines that can be"] = len(can)
        processes = ", ".join(sorted(set().union(*one.hits.values()))) or "no process"
        words = {"subject": one.name, "expected": shown_lines(can), "actual": f"{shown_lines(hit)} by {processes}"}
        left = can - hit
        because = _because(left, reasons) + (f"; not there: {', '.join(one.absent)}" if one.absent else "")
        # A patch whose lines an import executes is shown by those only when it has no others.
        if hit & (one.inside or one.outside):
            rest = f"; not reached: {shown_lines(left)}{because}" if left else ""
            answer.say("patch-exercised", "ok", f"patched lines were executed{rest}", **words)
        else:
            answer.say("patch-not-exercised", "note", f"no patched line that counts was executed{because}", **words)
    return patches


def shown_lines(lines: Iterable[tuple[str, int]]) -> str:
    """`path:3,4 other:7`, or `none`."""
    files: dict[str, list[str]] = {}
    for path, line in sorted(lines):
        files.setdefault(path, []).append(str(line))
    return " ".join(f"{path}:{','.join(numbers)}" for path, numbers in files.items()) or "none"


def say_observed(answer: Answer, folder: Path) -> None:
    """State what was done to the started processes."""
    answer.say(
        "observer-on-pythonpath",
        "note",
        "the started processes have one more folder in front of PYTHONPATH, whose sitecustomize writes down which"
        " patched lines they execute; the environment itself is as built",
        subject=folder.name,
    )


def root_of(task: Task, patch: Mapping[str, Any]) -> Path:
    """The tree that the paths of a patch are relative to."""
    if patch.get("kind") == "wheel":
        return Path(sysconfig.get_paths()["purelib"])
    return Path(task.sources[patch["target"]])


def _files(task: Task) -> Iterable[tuple[dict[str, Any], Path, Sequence[int]]]:
    for patch in task.patches:
        if patch.get("kind") != "wheel" and patch["target"] not in task.sources:
            continue
        for file in patch["files"]:
            yield patch, root_of(task, patch) / file["path"], file["lines"]


def _because(left: Iterable[tuple[str, int]], reasons: Mapping[str, str]) -> str:
    found = dict.fromkeys(reasons[path] for path, _ in sorted(left) if path in reasons)
    return f" ({'; '.join(found)})" if found else ""
