"""Where builds of an env lie, which of them is current, and who may change that.

`<stack>-<env>/<fingerprint12>` is a build, `<fingerprint12>-2` the same built anew beside one that has drifted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith.commands.envs import read_receipt, was_moved
from envsmith.receipt import NAME as RECEIPT
from envsmith.tools.files import FileLock, filesystem


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The directory that a build is about."""

    directory: Path
    receipt: Mapping[str, Any] | None
    """Its receipt when the env stands there."""
    current: bool
    """Whether `current` points at it."""


def find_place(folder: Path, fingerprint: str, *, rebuild: bool) -> Place:
    """Find the env that stands for a fingerprint, the current one first, or the directory to build it in."""
    link = folder / "current"
    current = link.resolve() if link.is_symlink() else None
    standing: dict[Path, Mapping[str, Any]] = {}
    number = 1
    while True:
        directory = folder / (fingerprint[:12] if number == 1 else f"{fingerprint[:12]}-{number}")
        number += 1
        receipt = read_receipt(directory)
        if receipt is None and not (directory / RECEIPT).exists():
            break
        if receipt is None:
            continue  # another version of envsmith wrote it, or it is damaged: not ours to take away
        if receipt["fingerprint"] == fingerprint and not was_moved(directory, receipt):
            standing[directory] = receipt
    if rebuild or not standing:
        return Place(directory=directory, receipt=None, current=False)
    chosen = next((path for path in standing if path.resolve() == current), list(standing)[-1])
    return Place(directory=chosen, receipt=standing[chosen], current=chosen.resolve() == current)


def switch_current(directory: Path) -> None:
    """Point `current` at an env directory by one rename."""
    link = directory.parent / "current"
    fresh = directory.parent / f".current-{directory.name}"
    with filesystem(link):
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(directory.name)
        fresh.replace(link)


def env_lock(directory: Path, on_wait: Callable[[str], None]) -> FileLock:
    """The lock that whoever builds an env holds."""
    return FileLock(directory.parent / ".lock", on_wait)
