"""Run something in a private mount namespace where folders can be changed and nothing of it stays.

Each folder is covered by an overlay on its own path, so absolute paths in scripts stay true. Inode, size, mtime and
ctime of an untouched file are those of the file below, so a stat index stays valid. Needs root and overlayfs.
Source: Documentation/filesystems/overlayfs.rst of Linux, inode properties (read 2026-11-29).
"""

from __future__ import annotations

import ctypes
import os
import pickle
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_CLONE_NEWNS = 0x00020000
_MS_REC = 0x4000
_MS_PRIVATE = 1 << 18
_UNWRITABLE = frozenset(':,\\"\n')


class OverlayError(RuntimeError):
    """The namespace could not be made, or the job in it failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cover:
    """One folder to cover."""

    path: Path
    """Absolute and resolved."""
    warm: Path | None = None
    """An upper layer of an earlier run that lies between the folder and the new upper layer."""
    kept: Path | None = None
    """Where the upper layer is left for a later `warm`; None throws it away."""


def run_covered(covers: Sequence[Cover], scratch: Path, job: Callable[[], T]) -> T:
    """Call `job` in a child process that sees the covers, and return what it returns.

    Upper layers lie below `scratch`, which should be on the file system of the folders.

    Raises:
        OverlayError: with the words of whatever went wrong.
    """
    layers = Path(tempfile.mkdtemp(prefix="layers-", dir=scratch))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(covers, layers, job, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    shutil.rmtree(layers, ignore_errors=True)
    if not said:
        raise OverlayError("the process in the namespace died without a word")
    ok, value = pickle.loads(said)  # our own child wrote it
    if not ok:
        raise OverlayError(value)
    result: T = value
    return result


def refusal(scratch: Path) -> str | None:
    """Say why overlays cannot be used below `scratch`, or None when they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux"
    folder = Path(tempfile.mkdtemp(prefix="trial-", dir=scratch))
    try:
        run_covered([Cover(path=folder)], scratch, lambda: (folder / "x").write_text(""))
    except OverlayError as error:
        return f"overlays cannot be mounted here: {str(error).strip().splitlines()[-1]}"
    finally:
        shutil.rmtree(folder)
    return None


def _child(covers: Sequence[Cover], layers: Path, job: Callable[[], object], writer: int) -> None:
    """Never return: a fork must not run on as a second copy of its parent."""
    code = 0
    try:
        try:
            _mount_all(covers, layers)
            answer = pickle.dumps((True, job()))
        except BaseException:
            answer = pickle.dumps((False, traceback.format_exc()))
            code = 1
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(code)


def _mount_all(covers: Sequence[Cover], layers: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(_CLONE_NEWNS), "unshare")
    _check(libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None), "make / private")
    for number, cover in enumerate(covers):
        upper, work = cover.kept or layers / f"{number}-upper", layers / f"{number}-work"
        if cover.kept:
            work = cover.kept.with_name(f"{cover.kept.name}-work")
        upper.mkdir(parents=True, exist_ok=True)
        work.mkdir(parents=True, exist_ok=True)
        lower = ":".join(str(path) for path in (cover.warm, cover.path) if path)
        for path in (cover.path, upper, work, *([cover.warm] if cover.warm else [])):
            if _UNWRITABLE & set(str(path)):
                raise OverlayError(f"`{path}` cannot be written in mount options")
        data = f"lowerdir={lower},upperdir={upper},workdir={work}".encode()
        _check(libc.mount(b"overlay", os.fsencode(cover.path), b"overlay", ctypes.c_ulong(0), data), f"{cover.path}")


def _check(status: int, what: str) -> None:
    if status != 0:
        raise OverlayError(f"{what}: {os.strerror(ctypes.get_errno())}")
