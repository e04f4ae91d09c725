"""Changes to files, as people and tools make them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def same_times(path: Path) -> Iterator[None]:
    """Put mtime and atime back afterwards: ctime is the only witness left."""
    before = path.stat()
    yield
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def append(path: Path, data: bytes) -> None:
    """Add to the end of a file."""
    with path.open("ab") as file:
        file.write(data)


def rewrite(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Replace the content in place; a change that changes nothing is a mistake of the trial."""
    before = path.read_bytes()
    after = change(before)
    if before == after:
        raise AssertionError(f"nothing was changed in {path}")
    path.write_bytes(after)


def flip(path: Path, offset: int) -> None:
    """Change one byte in place, not the size."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x01]))


def flip_quietly(path: Path, offset: int) -> None:
    """Change one byte and put the times back."""
    with same_times(path):
        flip(path, offset)


def replace_by(path: Path, other: Path) -> None:
    """Put a copy of another file in a file's place, with the times and mode of the first."""
    before = path.stat()
    path.unlink()
    shutil.copyfile(other, path)
    path.chmod(before.st_mode & 0o7777)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def copy_of(path: Path, folder: Path, name: str | None = None) -> Path:
    """Copy a file into a folder that may not exist yet."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy2(path, folder / (name or path.name)))
