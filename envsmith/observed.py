"""What was seen on a disk, as plain values: tools/tree.py makes them, envsmith/checks judges them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

SeenKind = Literal["file", "link", "folder", "other"]


# A named tuple, not a frozen dataclass: an environment has 45,000 of them and they are made in a tight loop.
class Seen(NamedTuple):
    """One path that is not a directory, or an empty directory, as lstat describes it."""

    path: str
    """POSIX, relative to the scanned directory."""
    kind: SeenKind
    mode: int
    """Permission bits."""
    size: int
    mtime_ns: int
    ctime_ns: int
    ino: int
    dev: int
    nlink: int
    target: str | None
    """Where a link points, unresolved."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """A directory tree, with the contents that are known."""

    files: tuple[Seen, ...]
    """Sorted by path."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """sha256 of files, read now or taken from a trusted row of the index."""
    unread: tuple[str, ...] = ()
    """Files whose content is not known, because reading them was not asked for."""
    unreadable: tuple[str, ...] = ()
    """Files that could not be opened."""
    bytecode: Mapping[str, bytes] = field(default_factory=dict)
    """First 16 bytes of each `.pyc`."""
    hashed_files: int = 0
    hashed_bytes: int = 0
    trusted_files: int = 0
    trusted_bytes: int = 0
