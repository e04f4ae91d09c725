"""Faults of sources: work copies that are not the locked tree any more."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

from bench.drift.edits import append, flip_quietly
from bench.drift.fault import Fault, Plant, one_of
from bench.drift.target import NoPlace, Target, choose
from envsmith.lock import LockedSource
from envsmith.manifest import Entry, Kind

FAMILY = "sources"


def _fault(name: str, what: str, plant: Plant, kinds: frozenset[str], *names: str) -> Fault:
    return Fault(name=name, family=FAMILY, what=what, plant=plant, expect=kinds, names=names)


def _editable(target: Target, pick: Random) -> LockedSource:
    return choose(pick, [source for source in target.lock.sources if source.install == "editable"])


def _tracked(target: Target, source: LockedSource, suffix: str = "") -> list[Entry]:
    return [
        e
        for e in target.manifest.entries
        if e.path.startswith(f"src/{source.name}/")
        and e.part == "portable"
        and e.kind is Kind.FILE
        and e.path.endswith(suffix)
        and e.size > 1
    ]


def edited(target: Target, pick: Random) -> Iterator[Fault]:
    """Somebody edits the env's own work copy."""
    source = _editable(target, pick)
    entry = choose(pick, _tracked(target, source, ".py"))
    rest = entry.path.removeprefix(f"src/{source.name}/")

    def plant(folder: Path) -> None:
        append(target.path(entry.path), b"\n# planted\n")

    yield _fault("edited", f"append to {entry.path}", plant, one_of("sources/source-edited"), source.name, rest)


def edited_quietly(target: Target, pick: Random) -> Iterator[Fault]:
    """The same, size and mtime kept, and git told to look away."""
    source = _editable(target, pick)
    entry = choose(pick, _tracked(target, source, ".py"))
    rest = entry.path.removeprefix(f"src/{source.name}/")

    def plant(folder: Path) -> None:
        _git(target, source, "update-index", "--assume-unchanged", rest)
        flip_quietly(target.path(entry.path), entry.size // 2)

    what = f"flip a byte of {entry.path}; git assumes it unchanged"
    yield _fault("edited-quietly", what, plant, one_of("sources/source-edited"), source.name, rest)


def edited_and_committed(target: Target, pick: Random) -> Iterator[Fault]:
    """An edit that git calls clean, because it was committed."""
    source = _editable(target, pick)
    entry = choose(pick, _tracked(target, source, ".py"))
    rest = entry.path.removeprefix(f"src/{source.name}/")

    def plant(folder: Path) -> None:
        append(target.path(entry.path), b"\n# planted\n")
        _git(target, source, "-c", "user.name=x", "-c", "user.email=x@example.invalid", "commit", "-qam", "planted")

    what = f"edit and commit {entry.path}"
    yield _fault("edited-and-committed", what, plant, one_of("sources/source-edited"), source.name, rest)


def deleted(target: Target, pick: Random) -> Iterator[Fault]:
    """A tracked file is gone."""
    source = _editable(target, pick)
    entry = choose(pick, _tracked(target, source))
    rest = entry.path.removeprefix(f"src/{source.name}/")

    def plant(folder: Path) -> None:
        target.path(entry.path).unlink()

    yield _fault("deleted", f"delete {entry.path}", plant, one_of("sources/source-edited"), source.name, rest)


def mode_changed(target: Target, pick: Random) -> Iterator[Fault]:
    """A tracked file gained the executable bit, which is part of the tree."""
    source = _editable(target, pick)
    entry = choose(pick, [e for e in _tracked(target, source) if not e.executable])
    rest = entry.path.removeprefix(f"src/{source.name}/")

    def plant(folder: Path) -> None:
        target.path(entry.path).chmod(0o755)

    yield _fault("mode-changed", f"chmod 755 {entry.path}", plant, one_of("sources/source-edited"), source.name, rest)


def added(target: Target, pick: Random) -> Iterator[Fault]:
    """A module was added, and git told to ignore it."""
    source = _editable(target, pick)
    beside = choose(pick, _tracked(target, source, "/__init__.py") or _tracked(target, source, ".py"))
    place = f"{beside.path.rsplit('/', 1)[0]}/planted_{pick.randrange(10**6)}.py"
    rest = place.removeprefix(f"src/{source.name}/")

    def plant(folder: Path) -> None:
        target.path(place).write_text("PLANTED = True\n")
        exclude = target.path(f"src/{source.name}/.git/info/exclude")
        exclude.parent.mkdir(exist_ok=True)
        exclude.write_text("planted_*\n")

    yield _fault("added", f"add {place}, ignored by git", plant, one_of("sources/source-untracked"), source.name, rest)


def patch_reverted(target: Target, pick: Random) -> Iterator[Fault]:
    """Patches of the series were taken back: the tree is clean to every other tool."""
    source = _editable(target, pick)
    count = len(target.receipt.series.get(source.name, ()))
    if not count:
        raise NoPlace
    back = pick.randrange(1, count + 1)

    def plant(folder: Path) -> None:
        _git(target, source, "reset", "-q", "--hard", f"HEAD~{back}")

    what = f"the last {back} of {count} patches of {source.name} taken back"
    yield _fault("patch-reverted", what, plant, one_of("sources/patch-reverted"), source.name)


def work_copy_gone(target: Target, pick: Random) -> Iterator[Fault]:
    """The whole work copy was deleted."""
    source = _editable(target, pick)

    def plant(folder: Path) -> None:
        shutil.rmtree(target.path(f"src/{source.name}"))

    yield _fault("work-copy-gone", f"delete src/{source.name}", plant, one_of("sources/source-missing"), source.name)


def _git(target: Target, source: LockedSource, *words: str) -> None:
    place = target.path(f"src/{source.name}")
    argv = ["git", "-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null", *words]
    done = subprocess.run(
        argv, cwd=place, env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"git {' '.join(words)}: {done.stderr.strip()}")


GENERATORS = (
    edited, edited_quietly, edited_and_committed, deleted, mode_changed, added, patch_reverted, work_copy_gone,
)  # fmt: skip
