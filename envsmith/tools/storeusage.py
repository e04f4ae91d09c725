"""The files of a store as they lie there, for whoever lists or collects them, and the lock between use and collection.

A collection holds `collecting`, whatever reads or fills the store holds `using`: so no blob that a build has seen goes
away while it runs. Nothing here decides what may go, and no link is ever followed.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from envsmith.errors import Problem
from envsmith.keeping import ASIDE, BLOB, BUNDLE, LEFTOVER, MIRROR, NOTE, PARTIAL, SOURCE, Item, commits_in, digests_in
from envsmith.tools.files import FileLock, filesystem, remove_tree, sha256_file
from envsmith.tools.store import Store

_SHA256 = r"[0-9a-f]{64}"
#: What `temporary_beside` calls the files of a write that was killed.
_TEMPORARY = ".envsmith-"
#: Folder, kind, how the names of its entries look with the key in a group, whether they are folders.
_PLACES: tuple[tuple[str, str, str, bool], ...] = (
    ("blobs/sha256", BLOB, rf"({_SHA256})", False),
    ("blobs/quarantine", ASIDE, r"(.+)", False),
    ("differing", ASIDE, r"(.+)", False),
    ("sources", SOURCE, r"([0-9a-f]{40})\.json", False),
    ("bundles", BUNDLE, rf"({_SHA256})", True),
    ("git", MIRROR, r"([0-9a-f]{16})(?:\.history)?", True),
    ("facts", NOTE, rf"({_SHA256})\.json", False),
    ("metadata", NOTE, rf"({_SHA256})", False),
    ("partial", PARTIAL, rf"({_SHA256})\.part", False),
    ("tmp", LEFTOVER, r"(.+)", True),
    ("locks", LEFTOVER, rf"({_SHA256})\.lock", False),
)
_LARGEST_RECORD = 16 << 20


class SharedLock(FileLock):
    """A lock that many may hold at once, and nobody while another holds the same file as a `FileLock`."""

    def _try(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return super()._try(descriptor)  # says in words that there are no locks here
        return True


def using(store: Store, on_wait: Callable[[str], None] | None = None) -> SharedLock:
    """Return the lock that whatever counts on blobs of the store holds, from its first look to its end."""
    return SharedLock(_collection_lock(store), on_wait)


def collecting(store: Store, on_wait: Callable[[str], None] | None = None) -> FileLock:
    """Return the lock that a collection holds: it waits for all who use the store, and they for it."""
    return FileLock(_collection_lock(store), on_wait)


def _collection_lock(store: Store) -> Path:
    return store.home / "locks" / "collection.lock"


def in_use(store: Store) -> bool:
    """Whether anybody holds the lock between use and collection; makes and changes nothing."""
    return _is_held(_collection_lock(store), fcntl.LOCK_EX)


@dataclass(kw_only=True)
class Survey:
    """What lies in a store."""

    items: list[Item] = field(default_factory=list)
    unread: list[Problem] = field(default_factory=list)
    """Records and folders that could not be looked into: what they would have kept is not known."""
    foreign: list[Problem] = field(default_factory=list)
    """What is not of our making, or a link; it is left alone."""
    busy: list[str] = field(default_factory=list)
    """Work folders that a running process holds."""


def survey(store: Store, now: float) -> Survey:
    """Look at every file that a collection may free; `now` is in seconds since the epoch."""
    found = Survey()
    for folder, kind, expression, whole in _PLACES:
        for entry in _entries(store.home, folder, found):
            _take(store, f"{folder}/{entry.name}", entry, (kind, expression, whole), now, found)
    for entry in _entries(store.home, "", found):
        if entry.name.startswith(_TEMPORARY) and entry.is_file(follow_symlinks=False):
            _take(store, entry.name, entry, (LEFTOVER, "(.+)", False), now, found)
    return found


def _entries(home: Path, folder: str, found: Survey) -> list[os.DirEntry[str]]:
    """The entries of a folder of the store, none when it, or a folder above it, is a link."""
    path = home
    for part in filter(None, folder.split("/")):
        path = path / part
        if path.is_symlink():
            found.unread.append(_unread(path, "a folder of the store is a link, and links are not followed"))
            return []
    with filesystem(path):
        try:
            with os.scandir(path) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError:
            return []


def _take(
    store: Store, path: str, entry: os.DirEntry[str], place: tuple[str, str, bool], now: float, found: Survey
) -> None:
    kind, expression, whole = place
    with filesystem(Path(entry.path)):
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
    folder, match = stat.S_ISDIR(status.st_mode), re.fullmatch(expression, entry.name, re.DOTALL)
    plain = folder or stat.S_ISREG(status.st_mode)
    if plain and entry.name.startswith(_TEMPORARY):
        kind, key = LEFTOVER, ""
    elif plain and match and (folder == whole or path.startswith("tmp/")):
        key = match[1]
    else:
        if kind is not LEFTOVER or not plain:  # the other locks of the store stay
            found.foreign.append(_foreign(Path(entry.path)))
        return
    size, newest = _measure(Path(entry.path)) if folder else (status.st_size, status.st_mtime)
    held = _held(store, kind, key, Path(entry.path), folder)
    if held and path.startswith("tmp/"):
        found.busy.append(path)
    names = _names(kind, Path(entry.path), found)
    if kind == ASIDE:
        newest = _set_aside(entry.name, newest)
    item = Item(kind=kind, path=path, size_bytes=size, age_s=now - newest, key=key, held=held, names=names)
    found.items.append(item)


def _set_aside(name: str, otherwise: float) -> float:
    """When the store moved a file aside: its name says it, the file has kept the times it had."""
    stamp = name.rpartition(".")[2]
    return max(otherwise, int(stamp) / 1e9) if re.fullmatch(r"\d{15,19}", stamp) else otherwise


def _held(store: Store, kind: str, key: str, path: Path, folder: bool) -> bool:
    if kind in (BLOB, PARTIAL):
        return _is_held(store.home / "locks" / f"{key}.lock")
    if kind == MIRROR:
        return _is_held(store.home / "locks" / f"git-{path.name}.lock")
    return kind == LEFTOVER and (folder or path.name.endswith(".lock")) and _is_held(path)


def _is_held(path: Path, mode: int = fcntl.LOCK_SH) -> bool:
    """Whether a process holds a lock against `mode`; one that cannot be asked for counts as held."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _names(kind: str, path: Path, found: Survey) -> frozenset[str]:
    """What an index or an imported bundle names."""
    if kind == SOURCE:
        text = _record(path)
        if text is None or not digests_in(text):
            found.unread.append(_unread(path, "an index of a source bundle names no blob"))
        return digests_in(text or "")
    if kind == BUNDLE:
        manifest = path / "manifest.json"
        text = _record(manifest)
        if text is None or sha256_file(manifest) != path.name:
            found.unread.append(_unread(manifest, "the manifest of an imported bundle is missing or damaged"))
        return digests_in(text or "") | commits_in(text or "")
    return frozenset()


def _record(path: Path) -> str | None:
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_RECORD:
            return None
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _measure(folder: Path) -> tuple[int, float]:
    """Bytes below a folder that nothing outside shares, and when something in it was last written."""
    size, newest = 0, 0.0
    for status in _walk(folder):
        newest = max(newest, status.st_mtime)
        size += status.st_size if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 else 0
    return size, newest


def _walk(folder: Path) -> Iterator[os.stat_result]:
    """The states of a folder and all below it; what goes away meanwhile is left out."""
    waiting = [str(folder)]
    while waiting:
        path = waiting.pop()
        with filesystem(Path(path)):
            try:
                yield os.lstat(path)
                with os.scandir(path) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
                        else:
                            yield entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue


def discard(store: Store, item: Item, work: Path) -> None:
    """Take one item out of the store; `work` is an empty folder on the store's own file system.

    A file goes by one unlink, a folder by one rename before it is emptied: whoever is killed in between leaves a
    whole item or none, and the next run sweeps `work`.
    """
    path = store.home / item.path
    with filesystem(path):
        if path.is_symlink():
            return
        if path.is_dir():
            aside = work / item.path.replace("/", "-")
            path.replace(aside)
            remove_tree(aside)
        elif item.path.startswith("locks/"):
            if not _is_held(path):
                with FileLock(path, keep=False):  # whoever took it just now is waited for
                    pass
        else:
            path.unlink(missing_ok=True)


# --- uv's cache ---


@dataclass(frozen=True, kw_only=True, slots=True)
class Unpacked:
    """A wheel that uv has unpacked: uv finds it through a pointer with its sha256 and a link to the archive."""

    sha256: str
    pointer: Path
    archive: Path
    size_bytes: int
    """What its removal frees: files that no env is linked to."""


def cache_bytes(cache: Path) -> int:
    """Bytes in uv's cache that no env shares; 0 where there is none, or only a link."""
    return _measure(cache)[0] if cache.is_dir() and not cache.is_symlink() else 0


def unpacked(cache: Path) -> Iterator[Unpacked]:
    """Yield every unpacked wheel of which uv's cache says from what bytes it came.

    Source: uv 0.13.9, seen 2026-11-30: `wheels-v8/index/<hash>/<name>/<version>-<tags>.rev` holds the sha256 in hex,
    and beside it the link `<version>-<tags>` leads to `archive-v0/<id>`. In another layout nothing is found.
    """
    if cache.is_symlink():
        return
    for pointer in sorted(cache.glob("wheels-v*/index/*/*/*.rev")):
        text = _bytes(pointer)
        digests = digests_in(text.decode("latin-1"))
        link = pointer.with_suffix("")
        if len(digests) != 1 or not link.is_symlink():
            continue
        archive = cache / "archive-v0" / link.readlink().name
        size = _measure(archive)[0] if archive.is_dir() and not archive.is_symlink() else 0
        yield Unpacked(sha256=min(digests), pointer=pointer, archive=archive, size_bytes=size)


def forget(wheel: Unpacked) -> None:
    """Take away both ways to an unpacked wheel; uv's own pruning then removes the archive."""
    with filesystem(wheel.pointer):
        # The pointer last: it is what finds the wheel again, should this be the end.
        wheel.pointer.with_suffix("").unlink(missing_ok=True)
        wheel.pointer.unlink(missing_ok=True)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes() if not path.is_symlink() and path.stat().st_size < _LARGEST_RECORD else b""
    except OSError:
        return b""


def _unread(path: Path, message: str) -> Problem:
    hint = "mend or remove it; until then nothing goes that it might name"
    return Problem(code="store-record-unreadable", message=message, where=str(path), hint=hint)


def _foreign(path: Path) -> Problem:
    message = "this is nothing that envsmith puts there, or a link; it is left alone"
    return Problem(code="store-entry-foreign", message=message, where=str(path))
