"""See a directory tree: names and attributes, contents by sha256, and an index that makes the next look cheap.

Nothing here follows a link or writes into the tree. The index holds, for each path, the attributes a file had when it
was hashed. A file whose attributes are still the same is not read again: `ctime` cannot be set back by a program, so an
edit that restores size and mtime is seen too. `st_dev` is not part of a row: a remount or a container changes it.

Source of the rule for entries as young as the look itself: git's documentation of "racy git" (read 2026-11-29).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
import threading
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from envsmith.errors import HostError, Problem
from envsmith.observed import Observed, Seen, SeenKind
from envsmith.tools.files import write_atomic

Mode = Literal["stat", "default", "deep"]

BUFFER_BYTES = 1 << 20
#: Files above this size are hashed as tasks of their own; smaller ones travel in batches.
BIG_BYTES = 1 << 16
BATCH_FILES = 256
#: What mode `stat` reads at most to settle files whose attributes changed.
STAT_BUDGET_BYTES = 64 << 20
#: Timestamps of file systems that keep fractions of a second step with the kernel's tick, 10 ms at worst.
FINE_NS = 20_000_000
COARSE_NS = 2_000_000_000


class Row(NamedTuple):
    """Attributes of a file when it was hashed, and its hash."""

    size: int
    mtime_ns: int
    ctime_ns: int
    ino: int
    mode: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StatIndex:
    """Rows by path; local to one host and mount, never shipped."""

    taken_ns: int = 0
    """Clock of the file system just before the files of the rows were looked at."""
    rows: Mapping[str, Row] = field(default_factory=dict)

    def digest(self, seen: Seen) -> str | None:
        """Return the sha256 of a file if its row still vouches for it."""
        row = self.rows.get(seen.path)
        if row is None or row[:5] != (seen.size, seen.mtime_ns, seen.ctime_ns, seen.ino, seen.mode):
            return None
        # A write after the hash may carry the same timestamp as long as the tick of the look has not passed.
        margin = FINE_NS if seen.ctime_ns % 1_000_000 else COARSE_NS
        return row.sha256 if max(seen.mtime_ns, seen.ctime_ns) < self.taken_ns - margin else None

    @staticmethod
    def load(path: Path) -> StatIndex:
        """Read an index; one that is missing or malformed is an empty one, which costs time and nothing else."""
        try:
            data = json.loads(path.read_bytes())
            rows = {name: Row(*row) for name, row in data["rows"].items()}
            if not all(type(row.sha256) is str and all(type(n) is int for n in row[:5]) for row in rows.values()):
                return StatIndex()
            return StatIndex(taken_ns=int(data["taken_ns"]), rows=rows)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return StatIndex()

    def to_json(self) -> str:
        """Render on one line."""
        return json.dumps({"taken_ns": self.taken_ns, "rows": self.rows}, separators=(",", ":"))

    def save(self, path: Path) -> None:
        """Write the index in one step."""
        write_atomic(path, self.to_json())


@dataclass(frozen=True, kw_only=True, slots=True)
class Hashed:
    """Result of reading files."""

    digests: Mapping[str, str]
    unreadable: tuple[str, ...]
    files: int
    """Files read; a file with several names is read once."""
    bytes: int


def scan(root: Path, below: Iterable[str] = ("",)) -> tuple[Seen, ...]:
    """Return everything below `root` that is no directory, and empty directories, sorted by path.

    An empty directory can be imported as a namespace package; others are known by what is in them. `below` names the
    folders of `root` to look into, each with a final slash and none inside another.

    Raises:
        HostError: `tree-unreadable` when a directory may not be listed.
    """
    found: list[Seen] = []
    folders = list(below)
    tops = frozenset(folders)
    while folders:
        prefix = folders.pop()
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if prefix in tops else os.O_NOFOLLOW)
        try:
            # A handle instead of a path: names are then looked up in the directory itself, a quarter faster.
            handle = os.open(f"{root}/{prefix}", flags)
        except (FileNotFoundError, NotADirectoryError):
            continue  # the root is not there, or a directory went away while we looked
        except OSError as error:
            raise _unlistable(error) from error
        try:
            empty = True
            with os.scandir(handle) as items:
                for item in items:
                    empty = False
                    if item.is_dir(follow_symlinks=False):
                        folders.append(f"{prefix}{item.name}/")
                    elif seen := _look(item, prefix + item.name, handle):
                        found.append(seen)
            if empty and prefix:
                found.append(_empty_folder(prefix, handle))
        finally:
            os.close(handle)
    found.sort()
    return tuple(found)


def _empty_folder(prefix: str, handle: int) -> Seen:
    info = os.fstat(handle)
    mode = info.st_mode & 0o7777
    times = (info.st_mtime_ns, info.st_ctime_ns)
    return Seen(prefix.rstrip("/"), "folder", mode, 0, *times, info.st_ino, info.st_dev, info.st_nlink, None)


def _target(name: str, handle: int) -> str:
    """Where a link points; links of the kernel's own may not be read by everybody."""
    try:
        return os.readlink(name, dir_fd=handle)
    except PermissionError:
        return ""


def _look(item: os.DirEntry[str], path: str, handle: int) -> Seen | None:
    try:
        info = item.stat(follow_symlinks=False)
        mode = info.st_mode
        kind: SeenKind = "file" if stat.S_ISREG(mode) else "link" if stat.S_ISLNK(mode) else "other"
        target = _target(item.name, handle) if kind == "link" else None
    except FileNotFoundError:
        return None  # it went away while we looked
    return Seen(
        path, kind, mode & 0o7777, info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, info.st_dev,
        info.st_nlink, target,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeState:
    """Names and attributes of everything in a tree, as one digest."""

    digest: str
    files: int
    newest_ns: int
    """The youngest mtime or ctime in it."""

    def settled(self, taken_ns: int) -> bool:
        """Whether every file was old enough at `taken_ns` that a write after it cannot carry the same time."""
        return self.newest_ns < taken_ns - COARSE_NS


def tree_state(root: Path, below: Iterable[str] = ("",)) -> TreeState:
    """Digest what `scan` would see: paths, kinds, modes, sizes, times, inodes, targets of links. No content is read.

    This is the whole of a quick look at an unchanged tree, so nothing is made for each file but its numbers.

    Raises:
        HostError: `tree-unreadable` when a directory may not be listed.
    """
    whole = hashlib.sha256()
    files = newest = 0
    folders = sorted(below, reverse=True)
    while folders:
        prefix = folders.pop()
        names, inner, numbers, times = [], [], array("q"), [0]
        for name, info, target in _listed(root, prefix):
            if info is None:
                inner.append(f"{prefix}{name}/")
                names.append(f"{name}/")
                continue
            mtime_ns, ctime_ns = info.st_mtime_ns, info.st_ctime_ns
            numbers.extend((info.st_mode, info.st_size, mtime_ns, ctime_ns, info.st_ino))
            times += (mtime_ns, ctime_ns)
            names.append(name if target is None else f"{name}\0{target}")
        text = f"{prefix}\0\0{'//'.join(names)}\0\0"
        whole.update(text.encode(errors="surrogateescape"))
        whole.update(numbers.tobytes())
        files += len(numbers) // 5
        newest = max(newest, *times)
        folders += reversed(inner)
    return TreeState(digest=whole.hexdigest(), files=files, newest_ns=newest)


def _listed(root: Path, prefix: str) -> Iterator[tuple[str, os.stat_result | None, str | None]]:
    """The items of a folder in the order of their names: attributes, None for a folder; and where a link points."""
    try:
        handle = os.open(f"{root}/{prefix}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise _unlistable(error) from error
    try:
        with os.scandir(handle) as items:
            for item in sorted(items, key=_name):
                if item.is_dir(follow_symlinks=False):
                    yield item.name, None, None
                    continue
                try:
                    info = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # it went away while we looked
                yield item.name, info, _target(item.name, handle) if stat.S_ISLNK(info.st_mode) else None
    finally:
        os.close(handle)


def _name(item: os.DirEntry[str]) -> str:
    return item.name


def _unlistable(error: OSError) -> HostError:
    """A directory that nobody may look into, or whose path is longer than the kernel takes."""
    message = f"a directory cannot be listed: {error.strerror}"
    return HostError(Problem(code="tree-unreadable", message=message, where=str(error.filename)[-200:]))


def hash_tree(
    root: Path,
    files: Iterable[Seen],
    *,
    jobs: int | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> Hashed:
    """Return the sha256 of regular files, in parallel; each inode is read once.

    Big files come first and alone, so that no thread ends with the largest one. hashlib drops the GIL, and reading from
    a cold disk gains from more threads than cores. `on_bytes` is called from those threads.
    """
    names: dict[tuple[int, int], list[Seen]] = {}
    for seen in files:
        if seen.kind == "file":
            names.setdefault((seen.dev, seen.ino), []).append(seen)
    first = [group[0] for group in names.values()]
    big = sorted((s for s in first if s.size > BIG_BYTES), key=lambda s: -s.size)
    small = [s for s in first if s.size <= BIG_BYTES]
    tasks = [[s] for s in big] + [small[i : i + BATCH_FILES] for i in range(0, len(small), BATCH_FILES)]
    buffers = threading.local()
    base = os.fspath(root)

    def work(batch: list[Seen]) -> list[tuple[Seen, str | None, int]]:
        return [_hash_file(base, seen, buffers, on_bytes) for seen in batch]

    digests: dict[str, str] = {}
    unreadable: list[str] = []
    read = 0
    with ThreadPoolExecutor(max_workers=jobs or max(4, os.cpu_count() or 1)) as pool:
        for seen, digest, size in (result for results in pool.map(work, tasks) for result in results):
            read += size
            group = [other.path for other in names[seen.dev, seen.ino]]
            if digest is None:
                unreadable += group
            else:
                digests.update(dict.fromkeys(group, digest))
    return Hashed(digests=digests, unreadable=tuple(sorted(unreadable)), files=len(first), bytes=read)


def _hash_file(
    base: str, seen: Seen, buffers: threading.local, on_bytes: Callable[[int], None] | None
) -> tuple[Seen, str | None, int]:
    view = getattr(buffers, "view", None)
    if view is None:
        view = buffers.view = memoryview(bytearray(BUFFER_BYTES))
    digest = hashlib.sha256()
    size = 0
    try:
        handle = os.open(f"{base}/{seen.path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return seen, None, 0
    try:
        while count := os.readv(handle, [view]):
            digest.update(view[:count])
            size += count
            if on_bytes:
                on_bytes(count)
    except OSError:
        return seen, None, size
    finally:
        os.close(handle)
    return seen, digest.hexdigest(), size


def verify_bytes(
    root: Path,
    paths: Collection[str],
    index: StatIndex,
    *,
    mode: Mode = "default",
    clock: Path | None = None,
    budget_bytes: int = STAT_BUDGET_BYTES,
    on_bytes: Callable[[int], None] | None = None,
    below: Iterable[str] = ("",),
) -> tuple[Observed, StatIndex]:
    """Look at a tree and learn the content of every one of `paths` that is a file.

    - `deep` reads every file and trusts nothing.
    - `default` trusts the index where it vouches for a file and reads the others.
    - `stat` does the same, but reads at most `budget_bytes`, smallest files first; the rest is `unread`.

    Returns what was seen and the index to save, which is `index` itself when nothing is new. `clock` is a directory on
    the same file system in which a file may be made for a moment, to ask for its time; without one the new index
    vouches only for files that were old at the last look that had one.
    """
    taken_ns = clock_ns(clock) if clock else 0
    if taken_ns and index.taken_ns > taken_ns:
        index = StatIndex()  # an index from the future vouches for anything
    files = scan(root, below)
    owned = paths if isinstance(paths, (set, frozenset, Mapping)) else frozenset(paths)
    wanted = [seen for seen in files if seen.kind == "file" and seen.path in owned]
    known = {} if mode == "deep" else {s.path: d for s in wanted if (d := index.digest(s))}
    suspects = [seen for seen in wanted if seen.path not in known]
    unread: list[Seen] = []
    if mode == "stat":
        suspects, unread = _within_budget(suspects, budget_bytes)
    hashed = hash_tree(root, suspects, on_bytes=on_bytes)
    digests = {**known, **hashed.digests}
    observed = Observed(
        files=files,
        digests=digests,
        unread=tuple(seen.path for seen in unread),
        unreadable=hashed.unreadable,
        bytecode=dict(_headers(root, files)),
        hashed_files=hashed.files,
        hashed_bytes=hashed.bytes,
        trusted_files=len(known),
        trusted_bytes=sum(seen.size for seen in wanted if seen.path in known),
    )
    if len(known) == len(wanted) == len(index.rows):
        return observed, index
    rows = {seen.path: row_of(seen, digests[seen.path]) for seen in wanted if seen.path in digests}
    return observed, StatIndex(taken_ns=taken_ns or index.taken_ns, rows=rows)


def restamp(index: StatIndex, before: Iterable[Seen], after: Iterable[Seen], taken_ns: int) -> StatIndex:
    """Carry rows over a change of ctime or mode that we made ourselves, such as linking a file once more.

    A row is carried only where the index vouched for the file `before` and size, mtime and inode are the same `after`;
    every other row is dropped, because under the new clock it would vouch for what it did not vouch for.
    `taken_ns` is the file system's clock before `after` was scanned (`clock_ns`). Nobody else may write meanwhile: the
    caller holds the store's lock.
    """
    known = {seen.path: (digest, seen) for seen in before if (digest := index.digest(seen))}
    rows = {}
    for seen in after:
        digest, old = known.get(seen.path, (None, seen))
        if digest and (seen.size, seen.mtime_ns, seen.ino) == (old.size, old.mtime_ns, old.ino):
            rows[seen.path] = row_of(seen, digest)
    return StatIndex(taken_ns=taken_ns or index.taken_ns, rows=rows)


def clock_ns(folder: Path) -> int:
    """Ask the file system of `folder` what time it is, 0 when it cannot be asked; its host's clock may differ."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\n")
            file.flush()
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return 0


def row_of(seen: Seen, digest: str) -> Row:
    """The row of a file that has just been hashed."""
    return Row(seen.size, seen.mtime_ns, seen.ctime_ns, seen.ino, seen.mode, digest)


def _within_budget(suspects: list[Seen], left: int) -> tuple[list[Seen], list[Seen]]:
    read: list[Seen] = []
    unread: list[Seen] = []
    for seen in sorted(suspects, key=lambda s: s.size):
        left -= seen.size
        (read if left >= 0 else unread).append(seen)
    return read, sorted(unread)


def _headers(root: Path, files: Iterable[Seen]) -> Iterator[tuple[str, bytes]]:
    for seen in files:
        if seen.kind == "file" and seen.path.endswith(".pyc"):
            with contextlib.suppress(OSError):
                handle = os.open(f"{root}/{seen.path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    yield seen.path, os.read(handle, 16)
                finally:
                    os.close(handle)
