"""Make an installed environment its own: an edit in it must not reach the store or another environment.

uv hard-links files out of its cache. Every file with more than one name becomes a private copy, written beside it and
renamed over it, so that nothing is ever written through the shared inode. Native libraries are the exception: they are
nine tenths of the bytes and nobody edits them, so they stay shared and lose their write permission.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from envsmith.observed import Seen
from envsmith.tools.files import filesystem, reflink
from envsmith.tools.tree import scan

BATCH_FILES = 128
CHUNK_BYTES = 1 << 20

_NATIVE_NAME = re.compile(r"\.so(\.\d+)*$")
_serial = itertools.count()


@dataclass(frozen=True, kw_only=True, slots=True)
class Isolated:
    """What was done; files with one name are not counted, they were private before."""

    copied_files: int
    copied_bytes: int
    cloned_files: int
    """Of the copied ones, those that share blocks copy-on-write."""
    shared_files: int
    shared_bytes: int


def isolate(root: Path, files: Iterable[Seen] | None = None, *, jobs: int | None = None) -> Isolated:
    """Give every multiply linked file below `root` an inode of its own, native libraries excepted.

    `files` is what `scan(root)` returned, where the caller has it already.

    Raises:
        SupplyError: `disk-full` and what else tools/files.py `filesystem` says.
    """
    linked = [seen for seen in (scan(root) if files is None else files) if seen.kind == "file" and seen.nlink > 1]
    native = [seen for seen in linked if _is_native(root, seen)]
    kept = {seen.path for seen in native}
    private = [seen for seen in linked if seen.path not in kept]
    batches = [private[i : i + BATCH_FILES] for i in range(0, len(private), BATCH_FILES)]
    base = os.fspath(root)
    with filesystem(root, needed_bytes=sum(seen.size for seen in private)):
        for seen in native:
            if seen.mode & 0o222:
                os.chmod(f"{base}/{seen.path}", seen.mode & ~0o222)  # noqa: PTH101 - one of many
        with ThreadPoolExecutor(max_workers=jobs or max(4, os.cpu_count() or 1)) as pool:
            cloned = sum(pool.map(lambda batch: sum(_make_private(base, seen) for seen in batch), batches))
    return Isolated(
        copied_files=len(private),
        copied_bytes=sum(seen.size for seen in private),
        cloned_files=cloned,
        shared_files=len(native),
        shared_bytes=sum(seen.size for seen in native),
    )


def _is_native(root: Path, seen: Seen) -> bool:
    if not _NATIVE_NAME.search(seen.path):
        return False
    with filesystem(root / seen.path), (root / seen.path).open("rb", buffering=0) as file:
        return file.read(4) == b"\x7fELF"


def _make_private(base: str, seen: Seen) -> bool:
    """Replace a file by a copy of itself with the same mode and times; True when its blocks could be cloned."""
    path = f"{base}/{seen.path}"
    temporary = f"{os.path.dirname(path)}/.envsmith-{os.getpid()}-{next(_serial)}"  # noqa: PTH120 - hot loop
    source = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        target = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            cloned = _copy(source, target)
            info = os.fstat(source)
            os.fchmod(target, seen.mode)
            os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
        finally:
            os.close(target)
        os.replace(temporary, path)  # noqa: PTH105 - hot loop
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)  # noqa: PTH108 - hot loop
        raise
    finally:
        os.close(source)
    return cloned


def _copy(source: int, target: int) -> bool:
    if reflink(source, target):
        return True
    while chunk := os.read(source, CHUNK_BYTES):
        left = memoryview(chunk)
        while left:
            left = left[os.write(target, left) :]
    return False
