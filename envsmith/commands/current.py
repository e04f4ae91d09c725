"""Which build of an env is current, and who may change that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from envsmith.tools.files import FileLock, filesystem


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
