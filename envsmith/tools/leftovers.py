"""What a rung leaves behind on a machine: processes, and shared memory that nobody uses."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from envsmith.smoke import Leftover, Segment
from envsmith.tools.procfs import PROC, carriers, descendants, read_process

SHARED_MEMORY: Final = Path("/dev/shm")
#: Option of prctl(2), Linux 3.4: orphans of ours become our children, whatever they did to hide (read 2026-11-30).
_SET_CHILD_SUBREAPER: Final = 36
#: How much an older file in /dev/shm must have grown to count.
_GROWN_BYTES: Final = 1 << 20
_PASSES: Final = 20


def adopt_orphans() -> None:
    """Become the parent of every process that a child of ours leaves behind; where Linux cannot, marks alone tell."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def left_processes(mark: Path, proc: Path = PROC) -> tuple[int, ...]:
    """Living processes below this one, and those elsewhere that carry `mark` in their environment."""
    return tuple(sorted({*descendants(os.getpid(), proc=proc), *carriers(str(mark), proc=proc)}))


def leftovers(mark: Path, *, patience_s: float, proc: Path = PROC) -> tuple[Leftover, ...]:
    """Processes of a rung that are there `patience_s` after its own have ended.

    Helpers of frameworks, for example the resource trackers of multiprocessing, end a moment after their parents.
    """
    deadline = time.monotonic() + patience_s
    while found := left_processes(mark, proc):
        _bury(found)
        if time.monotonic() > deadline:
            return tuple(_leftover(pid, proc) for pid in found)
        time.sleep(0.1)
    return ()


def kill_rest(mark: Path) -> None:
    """Kill what is left, in whichever session and by whatever name; who forks on meanwhile is met in a later pass."""
    for _ in range(_PASSES):
        found = left_processes(mark)
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _bury(found)
        if not found:
            return
        time.sleep(0.02)


def _bury(pids: Collection[int]) -> None:
    """Take note of the end of orphans that we have become the parent of."""
    for pid in pids:
        with contextlib.suppress(OSError):
            os.waitpid(pid, os.WNOHANG)


def _leftover(pid: int, proc: Path) -> Leftover:
    seen = read_process(pid, proc=proc)
    return Leftover(pid=pid, name=seen.role or seen.name, argv=seen.argv)


def shared_files(folder: Path = SHARED_MEMORY) -> dict[str, int]:
    """Files in /dev/shm that belong to this user, with their sizes in bytes; those in folders too."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for entry in folder.rglob("*"):
            with contextlib.suppress(OSError):
                status = entry.lstat()
                if status.st_uid == os.getuid() and entry.is_file() and not entry.is_symlink():
                    found[entry.relative_to(folder).as_posix()] = status.st_size
    return found


def orphaned(before: Mapping[str, int], *, folder: Path = SHARED_MEMORY, proc: Path = PROC) -> tuple[Segment, ...]:
    """Files of this user that came into /dev/shm since `before`, or grew, and that no process has open or mapped.

    Another program of the same user that dies meanwhile would be blamed on the rung; its name tells.
    """
    now = shared_files(folder)
    grown = {name: size - before.get(name, 0) for name, size in now.items()}
    new = {name: size for name, size in grown.items() if name not in before or size > _GROWN_BYTES}
    if not new:
        return ()
    used = _used(folder, proc)
    return tuple(
        Segment(name=name, size_bytes=size) for name, size in sorted(new.items()) if str(folder / name) not in used
    )


def _used(folder: Path, proc: Path) -> set[str]:
    """Paths below `folder` that some process of this machine has open or mapped."""
    prefix = f"{folder}/"
    found: set[str] = set()
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            opened = [str(link.readlink()) for link in (process / "fd").iterdir()]
            found |= {path for path in opened if path.startswith(prefix)}
        with contextlib.suppress(OSError):
            lines = (process / "maps").read_text(errors="replace").splitlines()
            found |= {line[line.index(prefix) :] for line in lines if prefix in line}
    return found
