"""The commands that the packages of a base offer, read from its disk; and the files that stand for them in an env."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from envsmith.overlay import Command, entry_points, is_command
from envsmith.recorded import Recorded
from envsmith.tools.files import filesystem, write_atomic

#: No list of entry points of a real distribution comes near this.
_LIMIT_BYTES = 1 << 20
_HEAD_BYTES = 8192


def base_commands(root: Path, distributions: Iterable[Recorded], python: Path) -> tuple[Command, ...]:
    """List every command that distributions of a base offer, each name once; of two the first on its path counts.

    Paths of `distributions` are relative to `root`; `python` is the base's executable, whose folder holds its programs.
    """
    known = tuple(distributions)
    found: dict[str, Command] = {}
    for one in known:
        for command in entry_points(_text(root / one.info / "entry_points.txt")):
            found.setdefault(command.name, command)
    for command in _files(root, known, python):
        found.setdefault(command.name, command)
    return tuple(found[name] for name in sorted(found))


def _files(root: Path, distributions: Iterable[Recorded], python: Path) -> Iterator[Command]:
    """Executable files that packages put beside the interpreter without an entry point."""
    folders = {str(python.parent), os.path.realpath(python.parent)}
    for one in distributions:
        for row in one.rows or ():
            path = root / row.path
            if str(path.parent) in folders and is_command(path.name) and os.access(path, os.X_OK) and path.is_file():
                yield Command(name=path.name, kind="script" if _is_python(path) else "program", target=str(path))


def _is_python(path: Path) -> bool:
    """Whether a program is a Python script: by its first line, or by the sh trampoline that installers write.

    They write it where the interpreter's path is too long for the kernel or has blanks; to Python it is a string.
    """
    try:
        with path.open("rb") as stream:
            first, second = stream.readline(_HEAD_BYTES), stream.readline(_HEAD_BYTES)
    except OSError:
        return False
    return first.startswith(b"#!") and (b"python" in first or second.startswith(b"'''exec' "))


def write_commands(env: Path, commands: Iterable[Command]) -> tuple[str, ...]:
    """Put a file for each command into an env's `bin`, where it has none of that name; return their paths in the env.

    Raises:
        SupplyError: `disk-full` and its kin.
    """
    made = []
    for command in commands:
        path = env / "bin" / command.name
        if path.is_symlink() or path.exists():
            continue  # a package of the env itself offers it
        text = command.text(f"{env}/bin/python")
        if text is None:
            with filesystem(path):
                path.symlink_to(command.target)
        else:
            write_atomic(path, text, 0o755)
        made.append(f"bin/{command.name}")
    return tuple(made)


def _text(path: Path) -> str:
    try:
        if not path.is_file() or path.stat().st_size > _LIMIT_BYTES:
            return ""
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
