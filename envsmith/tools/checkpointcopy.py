"""Copies the files of a checkpoint: each grows under a name of its own, is read again, and only then gets its name.

The hash of the source is that of the bytes that were written; the copy is read back from its file system, past the page
cache where the kernel lets go of it. Whoever copies holds the lock of the destination.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envsmith.delivery import Content, journal_line, part_name
from envsmith.errors import IntegrityError, Problem, SupplyError
from envsmith.tools.checkpointscan import SourceFile
from envsmith.tools.files import CHUNK, filesystem, fsync_folder, open_plain


class Stopped(Exception):
    """Another file failed, or the user interrupted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Copied:
    """One file that has its final name now."""

    path: str
    content: Content
    resumed_bytes: int
    """Of these the copy had the right bytes from an earlier run."""
    is_dressed: bool
    """Whether the file system took mode and time over."""


class DeliveryJournal:
    """Names what will get its final name next; appended to by many threads, a line at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._gate = threading.Lock()
        with filesystem(path):
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            self._descriptor = os.open(path, flags, 0o644)

    def __enter__(self) -> DeliveryJournal:
        self._write(b"\n")  # a kill may have cut the last line off
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def enter(self, path: str, content: Content, *, is_found: bool = False) -> None:
        """Append one file; `is_found` where it was there before and is replaced."""
        self._write(journal_line(path, content, is_found=is_found))

    def _write(self, data: bytes) -> None:
        with self._gate, filesystem(self.path):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]


class Copier:
    """Copies single files; may be called by many threads, one file each."""

    def __init__(
        self,
        source: Path,
        destination: Path,
        journal: DeliveryJournal,
        advance: Callable[[int], None],
        stop: threading.Event,
    ) -> None:
        self._source, self._destination, self._journal = source, destination, journal
        self._advance, self._stop = advance, stop

    def copy(self, file: SourceFile, expected: Content | None, *, replace: bool) -> Copied:
        """Copy one file; `expected` is the content that the source had when it was delivered itself.

        Raises:
            SupplyError: `source-changed`, `disk-full` and what else `filesystem` raises.
            IntegrityError: `delivery-differs`, `delivery-source-differs`.
        """
        target = self._destination / file.path
        part = target.with_name(part_name(target.name))
        with open_source(self._source / file.path, file) as stream, filesystem(self._source / file.path):
            digest, kept = self._write(stream, part)  # what fails there in the copy says so itself
            require_unchanged(self._source / file.path, file, os.fstat(stream.fileno()))
        content = Content(size=file.size, sha256=digest)
        if expected is not None and expected != content:
            raise IntegrityError(_source_differs(self._source / file.path, expected, content))
        self._read_back(part, target, content)
        is_dressed = dress(part, file)
        self._journal.enter(file.path, content)
        with filesystem(target):
            if not replace and os.path.lexists(target):
                raise FileExistsError(17, "it came into being meanwhile", str(target))
            part.replace(target)
        return Copied(path=file.path, content=content, resumed_bytes=kept, is_dressed=is_dressed)

    def _write(self, stream: BinaryIO, part: Path) -> tuple[str, int]:
        """Write what the part lacks; return the digest of all of the source, and how much was there."""
        descriptor, digest, kept = self._continue(stream, part) or self._begin(stream, part)
        try:
            for chunk in self._chunks(stream):
                digest.update(chunk)
                with filesystem(part):
                    rest = memoryview(chunk)
                    while rest:
                        rest = rest[os.write(descriptor, rest) :]
            with filesystem(part):
                os.fsync(descriptor)
                _let_go(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(descriptor)
            raise
        with filesystem(part):
            os.close(descriptor)  # a file system of a network may say only here that a write has failed
        return digest.hexdigest(), kept

    def _begin(self, stream: BinaryIO, part: Path) -> tuple[int, hashlib._Hash, int]:
        stream.seek(0)
        with filesystem(part):
            part.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            return os.open(part, flags, 0o600), hashlib.sha256(), 0

    def _continue(self, stream: BinaryIO, part: Path) -> tuple[int, hashlib._Hash, int] | None:
        """Open a part whose bytes are the beginning of the source; None where it must be written anew."""
        digest = hashlib.sha256()
        kept = self._compare(stream, part, digest)
        if kept is None:
            return None
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            return os.open(part, flags), digest, kept
        except OSError:  # such as a file system that cannot append
            self._advance(-kept)
            return None

    def _compare(self, stream: BinaryIO, part: Path, digest: hashlib._Hash) -> int | None:
        """Hash the beginning of the source that a part of an earlier run has; None where there is no such part."""
        try:
            descriptor = open_plain(part)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb", buffering=0) as kept:
            if not 0 < os.fstat(descriptor).st_size <= os.fstat(stream.fileno()).st_size:
                return None
            count = 0
            with contextlib.suppress(OSError):  # what cannot be read is written anew
                for chunk in self._chunks(kept):
                    if _read_whole(stream, len(chunk)) != chunk:
                        self._advance(-count)
                        return None
                    digest.update(chunk)
                    count += len(chunk)
                return count
        self._advance(-count)
        return None

    def _read_back(self, part: Path, target: Path, content: Content) -> None:
        with filesystem(part):
            descriptor = open_plain(part)
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            _let_go(descriptor)
            seen = hash_stream(stream, part, self._stop)
        if seen != content:
            with filesystem(part):
                part.unlink()
            message = f"what was written for `{target}` is not what is read there"
            hint = "the file system or the disk behind it changes bytes: look into its logs, and use another place"
            raise IntegrityError(
                Problem(
                    code="delivery-differs",
                    message=message,
                    hint=hint,
                    expected=f"{content.size:,} bytes, sha256 {content.sha256}",
                    actual=f"{seen.size:,} bytes, sha256 {seen.sha256}",
                )
            )

    def _chunks(self, stream: io.RawIOBase | BinaryIO) -> Iterator[bytes]:
        while chunk := self._chunk(stream):
            yield chunk
            self._advance(len(chunk))

    def _chunk(self, stream: io.RawIOBase | BinaryIO) -> bytes:
        if self._stop.is_set():
            raise Stopped
        return stream.read(CHUNK) or b""


@contextlib.contextmanager
def open_source(path: Path, file: SourceFile) -> Iterator[BinaryIO]:
    """Open a file of a source that is still as it was listed."""
    try:
        with filesystem(path):
            descriptor = open_plain(path)
    except SupplyError as error:
        if error.problems[0].code in ("file-missing", "file-in-the-way"):
            raise SupplyError(_changed(path)) from error
        raise
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        require_unchanged(path, file, os.fstat(descriptor))
        yield stream


def require_unchanged(path: Path, file: SourceFile, status: os.stat_result) -> None:
    """Stop where a file is not as it was listed.

    Raises:
        SupplyError: `source-changed`.
    """
    if not file.is_as(status):
        raise SupplyError(_changed(path))


def hash_stream(stream: io.RawIOBase | BinaryIO, path: Path, stop: threading.Event) -> Content:
    """Hash all that a stream still holds."""
    digest, size = hashlib.sha256(), 0
    with filesystem(path):
        while chunk := stream.read(CHUNK):
            if stop.is_set():
                raise Stopped
            digest.update(chunk)
            size += len(chunk)
    return Content(size=size, sha256=digest.hexdigest())


def hash_file(path: Path, stop: threading.Event) -> Content:
    """Hash a file, from its file system where the kernel lets go of the pages it has."""
    with filesystem(path):
        descriptor = open_plain(path)
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        _let_go(descriptor)
        return hash_stream(stream, path, stop)


def write_whole(path: Path, data: bytes) -> None:
    """Write one of our own files through a part, which whatever comes after a kill knows and removes."""
    part = path.with_name(part_name(path.name))
    with filesystem(part, needed_bytes=len(data)):
        part.unlink(missing_ok=True)
        with part.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(path)
        fsync_folder(path.parent)


def dress(path: Path, file: SourceFile) -> bool:
    """Give a file mode and time of its source; say whether the file system took them."""
    try:
        path.chmod(file.mode)
        os.utime(path, ns=(file.mtime_ns, file.mtime_ns))
    except OSError:
        return False
    return True


def _let_go(descriptor: int) -> None:
    """Ask the kernel to forget the pages of a file, so that the next read is one of the disk."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _read_whole(stream: BinaryIO, count: int) -> bytes:
    found = b""
    while len(found) < count and (more := stream.read(count - len(found))):
        found += more
    return found


def _changed(path: Path) -> Problem:
    return Problem(
        code="source-changed",
        message=f"`{path}` changed while it was copied",
        hint="deliver again when the checkpoint is written: what was copied is kept",
    )


def _source_differs(path: Path, expected: Content, actual: Content) -> Problem:
    return Problem(
        code="delivery-source-differs",
        message=f"`{path}` is not what was delivered there: its folder has a record of another content",
        hint="the copy that is the source was changed or damaged; deliver from where it came, or remove its record",
        expected=f"{expected.size:,} bytes, sha256 {expected.sha256}",
        actual=f"{actual.size:,} bytes, sha256 {actual.sha256}",
    )
