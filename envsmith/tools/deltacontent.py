"""What making a wheel delta and applying one share: bounds, pieces of files, contents on scratch files, workers."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from envsmith.deltaformat import MAX_SEGMENT, MAX_WINDOW, Base, Region
from envsmith.tools import zstdpatch
from envsmith.tools.deflate import PIECE, inflated
from envsmith.tools.zipskeleton import gaps

#: A content of at most so many bytes stays in memory.
_SMALL = 4 << 20
_LEAST_WINDOW = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much of the machine a delta may take."""

    memory_bytes: int = 1 << 30
    """Decides the windows of a new delta, and how many workers apply one."""
    workers: int = 2
    file_bytes: int = 32 << 30
    member_bytes: int = 16 << 30
    ratio: int = 32
    """All that is inflated, in multiples of both wheels, and `slack_bytes` more."""
    slack_bytes: int = 256 << 20
    worth: float = 0.6
    """A delta larger than this part of the new wheel is not worth it."""

    @property
    def window(self) -> int:
        """Return the largest part of a base that a segment is made from: a worker holds one, and one is loading."""
        return max(_LEAST_WINDOW, min(MAX_WINDOW, self.memory_bytes // (2 * self.workers)))

    @property
    def segment(self) -> int:
        """Return the largest segment of a content."""
        return min(MAX_SEGMENT, self.window // 4)

    def inflated_bytes(self, base_size: int, result_size: int) -> int:
        """Return how many bytes all members of two wheels may inflate to."""
        return self.ratio * (base_size + result_size) + self.slack_bytes


class Interrupted(Exception):
    """Work was given up because other work failed."""


class Scratch:
    """A content that was made, in memory or in a file without a name; read by the one worker that made it."""

    def __init__(self, pieces: Iterable[bytes], folder: Path) -> None:
        self._file = tempfile.SpooledTemporaryFile(_SMALL, dir=str(folder))  # noqa: SIM115 - `__exit__` closes it
        self.size = 0
        try:
            for piece in pieces:
                self.size += len(piece)
                self._file.write(piece)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, start: int, length: int) -> bytes:
        """Return a part of the content."""
        self._file.seek(start)
        return self._file.read(length)

    def pieces(self, start: int, length: int) -> Iterator[bytes]:
        """Yield a part of the content."""
        for at in range(start, start + length, PIECE):
            yield self.read(at, min(PIECE, start + length - at))


class Workers:
    """Runs pieces of work side by side; the first failure ends the others at their next look."""

    def __init__(self, on_bytes: Callable[[int], None]) -> None:
        self._on_bytes = on_bytes
        self._stop = threading.Event()
        self._gate = threading.Lock()
        self._loading = threading.Lock()

    def look(self) -> None:
        """Give up when other work has failed."""
        if self._stop.is_set():
            raise Interrupted

    def advance(self, count: int) -> None:
        """Count bytes as done, for all threads."""
        with self._gate:
            self._on_bytes(count)

    def prefix(self, content: Scratch, start: int, length: int) -> zstdpatch.Prefix:
        """Load a window of a base; it is there twice meanwhile, so one worker does it at a time."""
        with self._loading:
            return zstdpatch.prefix(content.read(start, length))

    def run(self, count: int, works: Sequence[Callable[[], None]], meanwhile: Callable[[], None] | None = None) -> None:
        """Run all works on `count` threads, and `meanwhile` on this one; raise what the first work that failed did."""
        with ThreadPoolExecutor(count) as pool:
            futures = [pool.submit(self._guarded, work) for work in works]
            try:
                if meanwhile:
                    meanwhile()
                wait(futures, return_when=FIRST_EXCEPTION)
            except Interrupted:
                pass
            except BaseException:
                self._stop.set()
                raise
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        errors = [future.exception() for future in futures if not future.cancelled()]
        for error in errors:
            if error and not isinstance(error, Interrupted):
                raise error

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:
            self._stop.set()
            raise


def pieces_of(descriptor: int, region: Region) -> Iterator[bytes]:
    """Yield a part of a file; less than asked for when the file ends before."""
    at, end = region.start, region.start + region.length
    while at < end and (piece := os.pread(descriptor, min(PIECE, end - at), at)):
        at += len(piece)
        yield piece


def base_pieces(descriptor: int, base: Base, regions: Sequence[Region], file_size: int) -> Iterator[bytes]:
    """Yield what contents are patched from: a region, its content, or the skeleton.

    Raises:
        InflateError: when a region does not inflate to the size of the base.
    """
    if base.region is None:
        for gap in gaps(regions, file_size):
            yield from pieces_of(descriptor, gap)
        return
    packed = pieces_of(descriptor, regions[base.region])
    yield from inflated(packed, base.size) if base.inflated else packed


def write_at(descriptor: int, data: bytes, at: int) -> int:
    """Write all of some bytes to a place in a file and return how many they are."""
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, at)
        at, view = at + count, view[count:]
    return len(data)


def watched(pieces: Iterable[bytes], look: Callable[[], None]) -> Iterator[bytes]:
    """Yield pieces, with a look before each."""
    for piece in pieces:
        look()
        yield piece
