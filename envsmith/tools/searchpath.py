"""Turns the absolute folders that an ELF file of a prefix searches for libraries into ones relative to the file.

The new text has the length of the old one, since nothing in the file may move; slashes fill it up, which no system
minds. Its last component stays, so a symbol name that the linker let share the end of the old text stays whole too.

Sources: System V ABI, chapter 5 (string table, dynamic section); ld.so(8) on `$ORIGIN`; binutils ld, `--optimize`
merges string tails (read 2026-11-30).
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Iterator, Sequence

_MAGIC = b"\x7fELF\x02\x01"  # 64 bit, little endian, as x86_64 and aarch64 are
_SEGMENT = struct.Struct("<IIQQQQQQ")
_DYNAMIC = struct.Struct("<qQ")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_STRTAB, _DT_RPATH, _DT_RUNPATH = 5, 15, 29
_ORIGIN = "$ORIGIN"


class DoesNotFitError(Exception):
    """The folder whose relative form is longer than it."""


def made_relative(content: bytes, folder: str, prefixes: Sequence[str]) -> bytes:
    """Return a file's content with every searched folder below one of the prefixes made relative to the file.

    `folder` is where the file lies, relative to the prefix, without `.`. A file of another kind comes back as it is.

    Raises:
        DoesNotFitError: when there is too little room.
    """
    changed = bytearray(content)
    try:
        places = list(_texts(content))
    except (struct.error, ValueError, OverflowError):
        return content
    for start, text in places:
        new = ":".join(_element(element, folder, prefixes) for element in text.split(":"))
        changed[start : start + len(new.encode())] = new.encode()
    return bytes(changed)


def without_folders(content: bytes) -> bytes:
    """Return a file's content with the text of its searched folders blanked: what is the same wherever it lies."""
    changed = bytearray(content)
    try:
        for start, text in _texts(content):
            changed[start : start + len(text.encode())] = bytes(len(text.encode()))
    except (struct.error, ValueError, OverflowError):
        return content
    return bytes(changed)


def _element(element: str, folder: str, prefixes: Sequence[str]) -> str:
    """Rewrite one searched folder into just as many bytes."""
    bare = element.rstrip("/")
    path = posixpath.normpath(element) if element else ""
    inside = next((path[len(one) + 1 :] for one in prefixes if path.startswith(f"{one}/")), None)
    if inside is None or posixpath.basename(bare) != posixpath.basename(inside):
        return element
    up = "/".join([".."] * len(folder.split("/")))
    room = len(bare.encode()) - len(f"{_ORIGIN}{up}/{inside}".encode())
    if room < 1:
        raise DoesNotFitError(element)
    return f"{_ORIGIN}{'/' * room}{up}/{inside}{element[len(bare) :]}"


def _texts(content: bytes) -> Iterator[tuple[int, str]]:
    """Yield offset and text of DT_RPATH and DT_RUNPATH."""
    if content[:6] != _MAGIC:
        return
    (table,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    segments = [_SEGMENT.unpack_from(content, table + n * size) for n in range(count)]
    loads = [(one[3], one[5], one[2]) for one in segments if one[0] == _PT_LOAD]
    dynamic = next((one for one in segments if one[0] == _PT_DYNAMIC), None)
    if dynamic is None:
        return
    entries = dict(_entries(content, dynamic[2], dynamic[5]))
    if _DT_STRTAB not in entries:
        return
    wanted = entries[_DT_STRTAB]
    strings = next((offset + wanted - start for start, length, offset in loads if 0 <= wanted - start < length), None)
    if strings is None:
        return
    for tag in (_DT_RPATH, _DT_RUNPATH):
        if tag in entries:
            start = strings + entries[tag]
            yield start, content[start : content.index(b"\0", start)].decode()


def _entries(content: bytes, offset: int, length: int) -> Iterator[tuple[int, int]]:
    for tag, value in _DYNAMIC.iter_unpack(content[offset : offset + length]):
        if tag == 0:
            return
        yield tag, value
