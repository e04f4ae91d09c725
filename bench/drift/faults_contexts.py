"""Faults that only a child process shows: what a launcher gives to the processes that it starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from bench.drift.edits import append, rewrite
from bench.drift.fault import FOLDER, Fault, Plant, one_of
from bench.drift.target import NoPlace, Target, choose

FAMILY = "contexts"
_VARIABLE = ("contexts/context-variable", "contexts/variable-not-forwarded")
_LEVEL = ("--contexts", "--only", "contexts")


def _fault(name: str, what: str, plant: Plant, kinds: frozenset[str], *names: str) -> Fault:
    return Fault(name=name, family=FAMILY, what=what, plant=plant, expect=kinds, names=names, level=_LEVEL)


def spawn_changes_path(target: Target, pick: Random) -> Iterator[Fault]:
    """Code at start gives only the children of `multiprocessing` another path."""
    if "spawn" not in target.receipt.verify["contexts"]:
        raise NoPlace
    hook = target.path(target.site) / "planted_child.pth"

    def plant(folder: Path) -> None:
        (folder / "child").mkdir()
        # a spawned child first takes over its parent's path: only what comes after that stays
        more = f"lambda data, p=s.prepare, sys=sys: (p(data), sys.path.insert(0, {str(folder / 'child')!r}))[0]"
        hook.write_text(f"import sys, multiprocessing.spawn as s; s.prepare = {more}\n")

    what = "a .pth file adds a folder to the path of spawned children alone"
    yield _fault("spawn-changes-path", what, plant, one_of("contexts/context-path"), f"{FOLDER}/child")


def torchrun_changes_variable(target: Target, pick: Random) -> Iterator[Fault]:
    """torchrun hands its workers another allocator setting."""
    entry = f"{target.site}/torch/distributed/run.py"
    if "torchrun" not in target.receipt.verify["contexts"] or entry not in target.entries:
        raise NoPlace
    name = choose(pick, sorted(target.receipt.launch["set"]))

    def plant(folder: Path) -> None:
        append(target.path(entry), f"\nimport os as _os\n_os.environ[{name!r}] = 'planted'\n".encode())

    yield _fault("torchrun-changes-variable", f"torchrun sets {name}", plant, one_of(*_VARIABLE), name)


def spawn_changes_variable(target: Target, pick: Random) -> Iterator[Fault]:
    """A hook changes a variable of the launch table in the parent, so that only children get it."""
    if "spawn" not in target.receipt.verify["contexts"]:
        raise NoPlace
    name = choose(pick, [n for n in sorted(target.receipt.launch["set"]) if not n.startswith("PYTHON")])
    hook = target.path(target.site) / "planted_variable.pth"

    def plant(folder: Path) -> None:
        hook.write_text(f"import os; os.environ[{name!r}] = 'planted'\n")

    yield _fault("spawn-changes-variable", f"a .pth file sets {name}", plant, one_of(*_VARIABLE), name)


def ray_worker_changes_path(target: Target, pick: Random) -> Iterator[Fault]:
    """Only Ray's workers import from another folder first; the driver sees nothing."""
    entry = f"{target.site}/ray/_private/workers/default_worker.py"
    if "ray" not in target.receipt.verify["contexts"] or entry not in target.entries:
        raise NoPlace

    def plant(folder: Path) -> None:
        (folder / "worker").mkdir()
        code = f"import sys\nsys.path.insert(0, {str(folder / 'worker')!r})\n".encode()
        rewrite(target.path(entry), lambda text: code + text)

    what = "Ray's worker adds a folder to its path"
    yield _fault("ray-worker-changes-path", what, plant, one_of("contexts/context-path"), f"{FOLDER}/worker")


GENERATORS = (ray_worker_changes_path, spawn_changes_path, torchrun_changes_variable, spawn_changes_variable)
