"""Folders of runs: one is held by the process that fills it, and old ones that nobody holds are removed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path
from typing import Final

#: The file by which a folder is known as a run of ours, and through which it is held.
_HOLD: Final = ".envsmith-run"
#: Descriptors stay open as long as the process lives: that is what holds a folder.
_held: list[int] = []


def hold_run(folder: Path) -> None:
    """Mark a folder as a run of this process."""
    descriptor = os.open(folder / _HOLD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(OSError):  # without locks, age alone decides
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _held.append(descriptor)


def forget_runs(runs: Path, kept: int, *, besides: Path) -> None:
    """Remove all but the last runs below a folder; what is no run of ours and what is under way stays."""
    found = []
    with contextlib.suppress(OSError):
        for path in runs.iterdir():
            hold = path / _HOLD
            if not path.is_symlink() and hold.is_file() and path.resolve() != besides:
                found.append((hold.stat().st_mtime_ns, path))
    for _, path in sorted(found)[: max(len(found) + 1 - kept, 0)]:
        if not _is_held(path / _HOLD):
            shutil.rmtree(path, ignore_errors=True)


def _is_held(hold: Path) -> bool:
    try:
        descriptor = os.open(hold, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
