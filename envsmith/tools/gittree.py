"""Git's tree ids, computed from the files themselves.

Git's own index believes a file unchanged when size and times agree, and its objects can be exchanged; a content hash
of every file can be fooled by neither. Nothing here runs git or writes a file.
Source: gitformat-index(5), git-ls-tree(1), git-hash-object(1) of git 2.39, read 2026-11-29.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A leaf of a tree."""

    mode: str
    oid: str
    path: str


def parse_listing(listing: bytes) -> tuple[Entry, ...]:
    """Read what `git ls-tree -r -z` printed."""
    entries = []
    for record in listing.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        about, path = record.split("\t", 1)
        mode, _, oid = about.split(" ")
        entries.append(Entry(mode=mode, oid=oid, path=path))
    return tuple(entries)


def on_disk(work: Path, entries: Sequence[Entry]) -> Iterator[Entry | None]:
    """Yield each entry as it is on disk, `None` where it is gone or lies behind a link."""
    folders = {str(parent) for entry in entries for parent in PurePosixPath(entry.path).parents}
    links = {folder for folder in folders if folder != "." and (work / folder).is_symlink()}
    for entry in entries:
        behind = links and any(str(parent) in links for parent in PurePosixPath(entry.path).parents)
        yield None if behind else _read_entry(work / entry.path, entry)


def _read_entry(path: Path, entry: Entry) -> Entry | None:
    if entry.mode == "160000":  # a submodule is named by the tree but never checked out
        return entry
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    if stat.S_ISLNK(mode):
        kind, data = "120000", os.fsencode(path.readlink())
    elif stat.S_ISREG(mode):
        kind, data = "100755" if mode & 0o100 else "100644", path.read_bytes()
    else:
        return None
    old_style = entry.mode == "100664" and kind == "100644"  # early git wrote this mode
    return replace(entry, mode=entry.mode if old_style else kind, oid=_oid("blob", data, entry.oid))


def _oid(kind: str, data: bytes, like: str) -> str:
    digest = hashlib.sha1(usedforsecurity=False) if len(like) == 40 else hashlib.sha256()
    digest.update(b"%s %d\0" % (kind.encode(), len(data)))
    digest.update(data)
    return digest.hexdigest()


def tree_id_of(entries: Iterable[Entry], like: str) -> str:
    """Compute the id of a tree from its leaves, in the form that `git write-tree` gives it."""
    folders: dict[str, list[Entry]] = {}
    rows: list[tuple[bytes, bytes]] = []
    for entry in entries:
        head, slash, rest = entry.path.partition("/")
        if slash:
            folders.setdefault(head, []).append(replace(entry, path=rest))
        else:
            rows.append(
                (os.fsencode(head), f"{entry.mode} ".encode() + os.fsencode(head) + b"\0" + bytes.fromhex(entry.oid))
            )
    for head, inside in folders.items():
        name = os.fsencode(head)
        rows.append((name + b"/", b"40000 " + name + b"\0" + bytes.fromhex(tree_id_of(inside, like))))
    return _oid("tree", b"".join(row for _, row in sorted(rows)), like)


def tree_on_disk(work: Path, paths: Iterable[str], gitlinks: Mapping[str, str]) -> str | None:
    """Compute the tree id of these paths as they are on disk; what is gone is left out.

    None when there are none. `gitlinks` are the submodules of the tree, path to commit: they are never checked out.
    """
    like = "0" * 40
    entries = [Entry(mode="100644", oid=like, path=path) for path in paths]
    entries += [Entry(mode="160000", oid=commit, path=path) for path, commit in gitlinks.items()]
    found = [entry for entry in on_disk(work, entries) if entry is not None]
    return tree_id_of(found, like) if found else None


def files_below(work: Path) -> Iterator[str]:
    """Yield every file and link of a work copy, its own git folder left out, as paths relative to it."""
    for folder, names, files in os.walk(work):
        if Path(folder) == work and ".git" in names:
            names.remove(".git")
        links = [name for name in names if (Path(folder) / name).is_symlink()]
        yield from ((Path(folder) / name).relative_to(work).as_posix() for name in [*files, *links])
