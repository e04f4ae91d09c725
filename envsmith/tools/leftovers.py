"""What a rung leaves behind on a machine: processes that carry its mark, and shared memory that nobody uses."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from envsmith.smoke import Leftover, Segment
from envsmith.tools.procfs import PROC, marked, read_process

SHARED_MEMORY: Final = Path("/dev/shm")


def leftovers(mark: Path, *, patience_s: float, proc: Path = PROC) -> tuple[Leftover, ...]:
    """Processes with `mark` in their environment, command line or folder that are there `patience_s` from now on.

    Helpers of frameworks, for example the resource trackers of multiprocessing, end a moment after their parents.
    """
    deadline = time.monotonic() + patience_s
    while found := marked(str(mark), proc=proc):
        if time.monotonic() > deadline:
            return tuple(_leftover(pid, proc) for pid in found)
        time.sleep(0.1)
    return ()


def _leftover(pid: int, proc: Path) -> Leftover:
    seen = read_process(pid, proc=proc)
    return Leftover(pid=pid, name=seen.role or seen.name, argv=seen.argv)


def shared_names(folder: Path = SHARED_MEMORY) -> frozenset[str]:
    """Names of the files in /dev/shm that belong to this user."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in folder.iterdir():
            with contextlib.suppress(OSError):
                if entry.lstat().st_uid == os.getuid():
                    found.add(entry.name)
    return frozenset(found)


def orphaned(before: Collection[str], *, folder: Path = SHARED_MEMORY, proc: Path = PROC) -> tuple[Segment, ...]:
    """Files of this user that came into /dev/shm since `before` and that no process has open or mapped.

    Another program of the same user that dies meanwhile would be blamed on the rung; its name tells.
    """
    new = {name for name in shared_names(folder) - set(before) if (folder / name).is_file()}
    if not new:
        return ()
    used = _used(folder, proc)
    found = []
    for name in sorted(new):
        with contextlib.suppress(OSError):
            if str(folder / name) not in used:
                found.append(Segment(name=name, size_bytes=(folder / name).lstat().st_size))
    return tuple(found)


def _used(folder: Path, proc: Path) -> set[str]:
    """Paths below `folder` that some process of this machine has open or mapped."""
    prefix = f"{folder}/"
    found: set[str] = set()
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            found |= {
                str(link.readlink()) for link in (process / "fd").iterdir() if str(link.readlink()).startswith(prefix)
            }
        with contextlib.suppress(OSError):
            lines = (process / "maps").read_text(errors="replace").splitlines()
            found |= {line[line.index(prefix) :] for line in lines if prefix in line}
    return found
