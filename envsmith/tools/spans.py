"""Files that are read: each says by itself what the system refuses, parts are read as one, spans as files."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

from envsmith.tools.files import filesystem


class SourceFile(io.FileIO):
    """A file opened for reading whose failures are problems of that file.

    A reader seldom stands alone: what fails while its bytes are written elsewhere must not be told of this file.
    """

    def __init__(self, path: Path, *, follow: bool = True) -> None:
        """Open `path`; with `follow=False` a symbolic link in its place is refused."""
        self._path = path
        extra = 0 if follow else os.O_NOFOLLOW
        with filesystem(path):
            super().__init__(path, "rb", opener=lambda name, flags: os.open(name, flags | extra))

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read into a buffer."""
        with filesystem(self._path):
            return super().readinto(buffer)

    def read(self, count: int | None = -1) -> bytes:
        """Read so many bytes, or all."""
        with filesystem(self._path):
            return super().read(-1 if count is None else count)


class JoinedFiles(io.RawIOBase):
    """Several files read as one."""

    def __init__(self, paths: tuple[Path, ...]) -> None:
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as opening:
            self._streams = [opening.enter_context(SourceFile(path)) for path in paths]
            self._sizes = [os.fstat(stream.fileno()).st_size for stream in self._streams]
            self._stack = opening.pop_all()
        self.size = sum(self._sizes)
        self._position = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Return the place in the whole."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place in the whole."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read into a buffer."""
        left = self._position
        for stream, size in zip(self._streams, self._sizes, strict=True):
            if left < size:
                stream.seek(left)
                count = stream.readinto(memoryview(buffer).cast("B")[: size - left])
                self._position += count
                return count
            left -= size
        return 0

    def close(self) -> None:
        """Close every file."""
        self._stack.close()
        super().close()


class Span(io.RawIOBase):
    """The next `size` bytes of a stream."""

    def __init__(self, stream: io.RawIOBase, size: int) -> None:
        self._stream = stream
        self._left = size

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read into a buffer."""
        view = memoryview(buffer).cast("B")[: self._left]
        count = (self._stream.readinto(view) or 0) if view else 0
        self._left -= count
        return count


def walk_files(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield everything below a folder that is not a folder, with its path from there; follow no link."""
    folders = [""]
    while folders:
        above = folders.pop()
        with os.scandir(folder / above) as entries:
            for entry in entries:
                name = f"{above}{entry.name}"
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{name}/")
                else:
                    yield name, entry
