"""Reading a folder that came from outside: plain files only, no link is followed, no pipe is waited for."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Collection
from pathlib import Path

from envsmith.errors import IntegrityError, Problem
from envsmith.evidencecheck import Seen
from envsmith.tools.files import CHUNK, filesystem

#: Nothing of ours holds so many; whoever fills a folder should not keep us busy for hours.
_MOST = 100_000
_KINDS = (
    (stat.S_ISREG, "file"),
    (stat.S_ISDIR, "folder"),
    (stat.S_ISLNK, "link"),
    (stat.S_ISFIFO, "named pipe"),
    (stat.S_ISSOCK, "socket"),
)


def look(root: Path, folders: Collection[str]) -> dict[str, Seen]:
    """Return every entry of `root` and of those `folders` below it, by path; other folders are not entered.

    Raises:
        IntegrityError: `evidence-malformed` where there are too many.
        SupplyError: what `filesystem` raises.
    """
    found: dict[str, Seen] = {}
    left = [""]
    with filesystem(root):
        while left:
            below = left.pop()
            with os.scandir(root / below) as items:
                for item in items:
                    path = f"{below}/{item.name}" if below else item.name
                    info = item.stat(follow_symlinks=False)
                    found[path] = Seen(kind=_kind(info.st_mode), size=info.st_size)
                    if len(found) > _MOST:
                        raise _crowded(root)
                    if stat.S_ISDIR(info.st_mode) and path in folders:
                        left.append(path)
    return found


def read_plain(root: Path, path: str, on_bytes: Callable[[int], None], *, most: int) -> tuple[str, bytes | None]:
    """Return the sha256 of a file below `root`, and its content where that has at most `most` bytes.

    Raises:
        IntegrityError: `evidence-file-unsafe` for anything but a plain file behind plain folders.
        SupplyError: what `filesystem` raises.
    """
    digest, kept, size = hashlib.sha256(), bytearray(), 0
    with filesystem(root / path), open(_open(root, path), "rb", buffering=0) as stream:
        while block := stream.read(CHUNK):
            digest.update(block)
            size += len(block)
            if size <= most:
                kept += block
            on_bytes(len(block))
    return digest.hexdigest(), bytes(kept) if size <= most else None


def read_small(root: Path, path: str, *, most: int) -> bytes | None:
    """Return the content of a file below `root`; None for one of more than `most` bytes, which is not read.

    Raises:
        IntegrityError: `evidence-file-unsafe`, as `read_plain`.
        SupplyError: what `filesystem` raises.
    """
    with filesystem(root / path), open(_open(root, path), "rb", buffering=0) as stream:
        data = bytearray()
        while len(data) <= most and (block := stream.read(CHUNK)):
            data += block
    return bytes(data) if len(data) <= most else None


def _open(root: Path, path: str) -> int:
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    *folders, name = path.split("/")
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        for folder in folders:
            below = os.open(folder, flags | os.O_DIRECTORY, dir_fd=handle)
            os.close(handle)
            handle = below
        info = os.stat(name, dir_fd=handle, follow_symlinks=False)
        if not stat.S_ISREG(info.st_mode):
            raise _unsafe(root, path, _kind(info.st_mode))
        return os.open(name, flags | os.O_NONBLOCK, dir_fd=handle)
    finally:
        os.close(handle)


def _kind(mode: int) -> str:
    return next((name for matches, name in _KINDS if matches(mode)), "device")


def _unsafe(root: Path, path: str, kind: str) -> IntegrityError:
    return IntegrityError(
        Problem(
            code="evidence-file-unsafe",
            message=f"`{path}` is a {kind}, not a plain file",
            where=str(root),
            hint="copy the folder again from where it was made; it holds plain files only",
        )
    )


def _crowded(root: Path) -> IntegrityError:
    return IntegrityError(
        Problem(
            code="evidence-malformed",
            message=f"this is no evidence that envsmith wrote: it holds more than {_MOST:,} entries",
            where=str(root),
            hint="copy the folder again from where it was made",
        )
    )
