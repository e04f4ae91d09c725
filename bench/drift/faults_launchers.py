"""Faults of launchers: the command that is typed starts something else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

from bench.drift.edits import rewrite
from bench.drift.fault import FOLDER, Fault, Plant, one_of
from bench.drift.target import Target, choose, other_pythons

FAMILY = "launchers"


def _fault(name: str, what: str, plant: Plant, kinds: frozenset[str], *names: str) -> Fault:
    return Fault(name=name, family=FAMILY, what=what, plant=plant, expect=kinds, names=names)


def _listed(target: Target) -> list[str]:
    """Launchers of the recipe that are console scripts."""
    scripts = {entry.path for entry in target.scripts()}
    return [name for name in target.receipt.verify["launchers"] if f"bin/{name}" in scripts]


def another_first_on_path(target: Target, pick: Random) -> Iterator[Fault]:
    """The same command of another env comes first on PATH."""
    name = choose(pick, _listed(target))

    def plant(folder: Path) -> Mapping[str, str]:
        (folder / "bin").mkdir()
        (folder / "bin" / name).write_text("#!/usr/bin/env python3\n")
        (folder / "bin" / name).chmod(0o755)
        return {"PATH": f"{folder}/bin:{target.bin}:/usr/bin:/bin"}

    kinds = one_of("launchers/launcher-from-wrong-env")
    yield _fault("another-first-on-path", f"another {name} first on PATH", plant, kinds, name, f"{FOLDER}/bin/{name}")


def other_shebang_of_launcher(target: Target, pick: Random) -> Iterator[Fault]:
    """A launcher of the recipe is run by another Python."""
    name = choose(pick, _listed(target))
    other = choose(pick, other_pythons(target))

    def plant(folder: Path) -> None:
        _set_shebang(target.bin / name, other)

    kinds = one_of("launchers/launcher-wrong-interpreter")
    yield _fault("other-shebang-of-launcher", f"bin/{name} runs {other}", plant, kinds, name, str(other))


def other_shebang_of_script(target: Target, pick: Random) -> Iterator[Fault]:
    """Any other script is run by another Python: `files` knows every script."""
    listed = target.receipt.verify["launchers"]
    entry = choose(pick, [e for e in target.scripts() if e.path.removeprefix("bin/") not in listed])
    other = choose(pick, other_pythons(target))

    def plant(folder: Path) -> None:
        _set_shebang(target.path(entry.path), other)

    kinds = one_of("files/file-changed")
    yield _fault("other-shebang-of-script", f"{entry.path} runs {other}", plant, kinds, entry.path)


def _set_shebang(path: Path, python: Path) -> None:
    rewrite(path, lambda text: f"#!{python}\n".encode() + text.partition(b"\n")[2])


def not_executable(target: Target, pick: Random) -> Iterator[Fault]:
    """A launcher lost its executable bit, so the shell takes the next one on PATH."""
    name = choose(pick, _listed(target))

    def plant(folder: Path) -> None:
        (target.bin / name).chmod(0o644)

    kinds = one_of("launchers/launcher-not-executable")
    yield _fault("not-executable", f"chmod 644 bin/{name}", plant, kinds, name)


def gone(target: Target, pick: Random) -> Iterator[Fault]:
    """A launcher was deleted."""
    name = choose(pick, _listed(target))

    def plant(folder: Path) -> None:
        (target.bin / name).unlink()

    yield _fault("gone", f"delete bin/{name}", plant, one_of("launchers/launcher-missing"), name)


def replaced_by_program_outside(target: Target, pick: Random) -> Iterator[Fault]:
    """A launcher is a link to a program that lies elsewhere."""
    name = choose(pick, _listed(target))

    def plant(folder: Path) -> None:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
        (target.bin / name).unlink()
        (target.bin / name).symlink_to(folder / name)

    kinds = one_of("files/link-changed")
    yield _fault("replaced-by-program-outside", f"bin/{name} links outside", plant, kinds, f"bin/{name}")


def wrapper_in_place(target: Target, pick: Random) -> Iterator[Fault]:
    """A launcher was replaced by a shell script that changes the environment first."""
    name = choose(pick, _listed(target))

    def plant(folder: Path) -> None:
        (target.bin / name).write_text('#!/bin/sh\nexport PYTHONPATH=/planted\nexec python -m planted "$@"\n')

    kinds = one_of("files/file-changed")
    yield _fault("wrapper-in-place", f"bin/{name} is a shell script", plant, kinds, f"bin/{name}")


GENERATORS = (
    another_first_on_path, other_shebang_of_launcher, other_shebang_of_script, not_executable, gone,
    replaced_by_program_outside, wrapper_in_place,
)  # fmt: skip
