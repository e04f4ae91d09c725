"""Writing bundles: a folder that can be continued, or one deterministic tar, whole or in parts.

Every blob is hashed while it is written, so that a store that has gone bad cannot pass. A folder becomes a bundle with
its `index.json`, which is written last; a tar and its parts get their names when they are complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from envsmith.bundle import Descriptor
from envsmith.errors import IntegrityError, Problem, SupplyError
from envsmith.tools.files import (
    FileLock,
    chunks,
    filesystem,
    fsync_folder,
    sha256_file,
    temporary_beside,
    write_atomic,
)
from envsmith.tools.layout import part_number
from envsmith.tools.progress import Progress
from envsmith.tools.registry_work import Work
from envsmith.tools.spans import SourceFile
from envsmith.tools.store import copy_hashed
from envsmith.tools.ustar import ending, header, padding

LAYOUT_FILE = b'{"imageLayoutVersion":"1.0.0"}'
_EXECUTABLE = ("install.sh",)
_LOCK = ".envsmith-lock"


class Content(Protocol):
    """Where the bytes of a blob are."""

    def stream(self) -> contextlib.AbstractContextManager[io.RawIOBase]:
        """Open it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileContent:
    """A blob that lies in a file."""

    path: Path

    @contextlib.contextmanager
    def stream(self) -> Iterator[io.RawIOBase]:
        """Open it."""
        with SourceFile(self.path) as stream:
            yield stream


@dataclass(frozen=True, kw_only=True, slots=True)
class BytesContent:
    """A blob that was made here."""

    data: bytes

    @contextlib.contextmanager
    def stream(self) -> Iterator[io.RawIOBase]:
        """Open it."""
        yield cast(io.RawIOBase, io.BytesIO(self.data))


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """All that a layout will hold."""

    index: bytes
    root: Mapping[str, bytes]
    """Files at the root besides `oci-layout` and `index.json`, by name."""
    blobs: Sequence[tuple[Descriptor, Content]]

    @property
    def size(self) -> int:
        """Bytes of all blobs."""
        return sum(blob.size for blob, _ in self.blobs)


def write_folder(folder: Path, written: Written, progress: Progress) -> None:
    """Write a layout into a folder; blobs that are there already are read, and replaced when they are wrong.

    Blobs share blocks with the store where the file system can, and are copies elsewhere: a hard link would let an
    edit of the bundle reach the store. A second writer of the same folder waits for the first.

    Raises:
        IntegrityError: `store-blob-corrupt`.
        SupplyError: `disk-full` and its kin.
    """
    blobs = folder / "blobs" / "sha256"
    with filesystem(folder):
        blobs.mkdir(parents=True, exist_ok=True)
    with _alone(folder / _LOCK, progress) as is_alone, filesystem(folder):
        for litter in (*folder.glob(".envsmith-*"), *blobs.glob(".envsmith-*")) if is_alone else ():
            if litter.name != _LOCK:
                litter.unlink(missing_ok=True)
        write_atomic(folder / "oci-layout", LAYOUT_FILE)
        work = Work(progress, jobs=min(4, os.cpu_count() or 1))
        work.start(written.size, len(written.blobs))
        try:
            work.each(written.blobs, lambda one: _write_blob(blobs, *one, work))
        finally:
            progress.done()
        fsync_folder(blobs)
        _finish(folder, written)


def write_tar(path: Path, written: Written, progress: Progress, *, part_bytes: int | None = None) -> tuple[Path, ...]:
    """Write a layout as one ustar, or as parts of at most so many bytes with a file of their sums; return the files.

    The bytes are a function of the layout: sorted, without times and owners, small blobs first. What an earlier run
    wrote in the other form, or in more parts, is removed, so that one bundle lies under one name.

    Raises:
        IntegrityError: `store-blob-corrupt`.
        SupplyError: `disk-full` and its kin.
    """
    with filesystem(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.with_name(f".envsmith-{path.name}.lock"), progress) as is_alone:
        progress.start(written.size, len(written.blobs))
        try:
            with filesystem(path, needed_bytes=written.size), _Parts(path, part_bytes) as parts:
                if is_alone:
                    parts.remove_litter()
                _fill(parts.write, written, progress)
                made = parts.publish()
        finally:
            progress.done()
        with filesystem(path):
            for one in path.parent.iterdir():
                own = one == path or part_number(one.name, path.name) >= 0 or one.name == f"{path.name}.SHA256SUMS"
                if own and one not in made and not one.is_dir():
                    one.unlink(missing_ok=True)
    return made


@contextlib.contextmanager
def _alone(lock: Path, progress: Progress) -> Iterator[bool]:
    """Keep other writers of the same bundle out; say whether the file system could."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(lock, progress.message, keep=False))
        except SupplyError as error:
            if error.problems[0].code != "lock-not-supported":
                raise
            yield False
            return
        yield True


def _write_blob(folder: Path, blob: Descriptor, content: Content, work: Work) -> None:
    target = folder / blob.sha256
    with filesystem(target, needed_bytes=blob.size):
        if _is_whole(target, blob, work):
            return
        with temporary_beside(target) as (descriptor, temporary):
            with content.stream() as source:
                digest = copy_hashed(source, descriptor, _counted(work))
            if digest != blob.sha256:
                raise _corrupt(blob, f"sha256 {digest}")
            os.fchmod(descriptor, 0o644)
            os.fsync(descriptor)
            temporary.replace(target)


def _is_whole(target: Path, blob: Descriptor, work: Work) -> bool:
    """Whether a blob lies in the folder already: a file of its own with this content."""
    try:
        status = target.lstat()
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_size != blob.size:
        return False
    if sha256_file(target, _counted(work)) == blob.sha256:
        return True
    work.advance(-blob.size)
    return False


def _counted(work: Work) -> Callable[[int], None]:
    def told(count: int) -> None:
        work.sleep(0)
        work.advance(count)

    return told


def _finish(folder: Path, written: Written) -> None:
    """Write the files at the root.

    In a new folder the index comes last. Where there is one, what it will not fit any more goes before it is replaced
    and comes back after: whoever is killed in between leaves a bundle that lacks files, never one that looks changed.
    """
    index = folder / "index.json"
    with filesystem(folder):
        is_new = not index.exists()
        for name, data in written.root.items():
            if not is_new and (folder / name).is_file() and (folder / name).read_bytes() != data:
                (folder / name).unlink()
    if not is_new:
        write_atomic(index, written.index)
    for name, data in sorted(written.root.items()):
        write_atomic(folder / name, data, 0o755 if name in _EXECUTABLE else 0o644)
    if is_new:
        write_atomic(index, written.index)


def _fill(write: Callable[[bytes | memoryview], None], written: Written, progress: Progress) -> None:
    length = 0
    root = {"oci-layout": LAYOUT_FILE, "index.json": written.index, **dict(sorted(written.root.items()))}
    for name, data in root.items():
        block = header(name, len(data), executable=name in _EXECUTABLE) + data + bytes(padding(len(data)))
        write(block)
        length += len(block)
    for blob, content in sorted(written.blobs, key=lambda one: (one[0].size, one[0].sha256)):
        block = header(f"blobs/sha256/{blob.sha256}", blob.size)
        write(block)
        _append(write, blob, content, progress)
        write(bytes(padding(blob.size)))
        length += len(block) + blob.size + padding(blob.size)
    write(ending(length))


def _append(
    write: Callable[[bytes | memoryview], None], blob: Descriptor, content: Content, progress: Progress
) -> None:
    digest, size = hashlib.sha256(), 0
    with content.stream() as stream:
        for chunk in chunks(stream):
            digest.update(chunk)
            size += len(chunk)
            if size > blob.size:
                raise _corrupt(blob, f"more than its {blob.size} bytes")
            write(chunk)
            progress.advance(len(chunk))
    if digest.hexdigest() != blob.sha256:
        raise _corrupt(blob, f"sha256 {digest.hexdigest()}" if size == blob.size else f"{size} bytes")


class _Parts:
    """A stream over files of at most so many bytes, none under its name until all are complete."""

    def __init__(self, path: Path, part_bytes: int | None) -> None:
        self._path = path
        self._limit = part_bytes
        self._files: list[Path] = []
        self._sums: list[str] = []
        self._descriptor = -1
        self._digest = hashlib.sha256()
        self._room = 0

    def __enter__(self) -> _Parts:
        return self

    def __exit__(self, *error: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        for file in self._files:
            file.unlink(missing_ok=True)

    def remove_litter(self) -> None:
        """Remove what runs that were killed left of this very file."""
        litter = re.compile(rf"\.envsmith-{re.escape(self._path.name)}\.[a-z0-9_]{{8}}")
        for one in self._path.parent.iterdir():
            if litter.fullmatch(one.name) and one.is_file():
                one.unlink(missing_ok=True)

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            if not self._room:
                self._next()
            count = os.write(self._descriptor, view if self._limit is None else view[: self._room])
            if self._limit is not None:
                self._digest.update(view[:count])
                self._room -= count
            view = view[count:]

    def publish(self) -> tuple[Path, ...]:
        """Give every file its name."""
        self._complete()
        if self._limit is None:
            self._files[0].replace(self._path)
            fsync_folder(self._path.parent)
            return (self._path,)
        names = [self._path.with_name(f"{self._path.name}.part{number:03}") for number in range(len(self._files))]
        for temporary, name in zip(self._files, names, strict=True):
            temporary.replace(name)
        summary = self._path.with_name(f"{self._path.name}.SHA256SUMS")
        write_atomic(
            summary, "".join(f"{sha256}  {name.name}\n" for sha256, name in zip(self._sums, names, strict=True))
        )
        return (*names, summary)

    def _next(self) -> None:
        self._complete()
        prefix = f".envsmith-{self._path.name}."
        self._descriptor, name = tempfile.mkstemp(prefix=prefix, dir=self._path.parent)
        self._files.append(Path(name))
        self._digest = hashlib.sha256()
        self._room = self._limit or 1  # without a limit there is always room

    def _complete(self) -> None:
        """Close the file at hand: there may be more parts than a process may have files open."""
        if self._descriptor < 0:
            return
        os.fchmod(self._descriptor, 0o644)
        os.fsync(self._descriptor)
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)
        self._sums.append(self._digest.hexdigest())


def part_size(text: str) -> int | None:
    """Read a size as coreutils' split takes it: 3900M is 3900 · 2^20 bytes, 4GB is 4 · 10^9; None when it is none."""
    found = re.fullmatch(r"([0-9]{1,15})([KMGT]?)(i?B)?", text.strip())
    if not found or (found[3] and not found[2]):
        return None
    power = " KMGT".index(found[2] or " ")
    size = int(found[1]) * int((1000 if found[3] == "B" else 1024) ** power)
    return size or None


def _corrupt(blob: Descriptor, actual: str) -> IntegrityError:
    return IntegrityError(
        Problem(
            code="store-blob-corrupt",
            message=f"the content of a blob, `{blob.title or 'a config'}`, is not what its name says",
            where=f"blobs/sha256/{blob.sha256}",
            hint="`envsmith store list` says where the store is; take the blob away and build again to fetch it anew",
            expected=f"sha256 {blob.sha256}",
            actual=actual,
        )
    )
