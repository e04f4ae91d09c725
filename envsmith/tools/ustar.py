"""The tar form of a bundle: plain members with plain names, read in one pass and written without a free choice.

The standard library's reader takes a damaged header for the end of the archive and reads extended headers of any size
into memory; its writer's bytes differ between Python versions. Source of the form: POSIX.1-2017, pax, "ustar
interchange format" and "pax extended header"; GNU tar manual 1.34, "Basic Tar Format"; both read 2026-11-30.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from envsmith.tools.files import CHUNK

BLOCK = 512
#: What GNU tar pads to, and what the writer of Python pads to: a record of twenty blocks.
_RECORD = 20 * BLOCK
#: A header holds sizes of eleven octal digits and names of a hundred bytes.
_LARGEST, _LONGEST = 8 << 30, 100
#: Extended headers hold a name and some times; the zeros after an archive fill a record, whose size a user may choose.
_LARGEST_EXTENDED, _LARGEST_FILLING = 64 << 10, 1 << 20
_KINDS = {
    b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"6": "a named pipe",
    b"S": "a sparse file",
}  # fmt: skip
_CHECKSUM = slice(148, 156)


class ArchiveError(Exception):
    """An archive is damaged, or holds what no bundle holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A file in an archive."""

    name: str
    size: int
    offset: int
    """Where its content begins."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    name: str
    size: int
    kind: bytes


class ArchiveReader:
    """Reads an archive from its beginning to its end, from a file that can be sought in or from a pipe."""

    def __init__(self, stream: BinaryIO, size: int | None = None) -> None:
        """Read `stream`; `size` says that it is a file of so many bytes, where content can be left out."""
        self._stream = stream
        self._size = size
        self._position = 0

    def members(self) -> Iterator[Member]:
        """Yield every file; folders are passed over. Between two files `content` may be asked for the last one.

        Raises:
            ArchiveError: it is damaged, ends early, goes on after its end, or holds a link, a device and the like.
        """
        long: dict[str, str] = {}
        while True:
            block = self._read(BLOCK, "early, before the mark at its end")
            if not any(block):
                self._expect_end(bool(long))
                return
            header = _parse(block)
            if header.kind in (b"x", b"g", b"L"):
                long |= self._extension(header)
                continue
            name = _plain(long.get("path", header.name), header.kind)
            size = _decimal(long["size"]) if "size" in long else header.size
            long = {}
            if name is not None:
                member = Member(name=name, size=size, offset=self._position)
                yield member
                self._go_to(member.offset + size + padding(size), name)

    def content(self, member: Member) -> Iterator[memoryview]:
        """Yield the bytes of the file that `members` gave last, in one buffer that is used again.

        Raises:
            ArchiveError: the archive ends before they do.
        """
        left = member.size
        while left:
            data = self._stream.read(min(left, CHUNK))
            if not data:
                raise ArchiveError(f"it ends in the middle of `{member.name}`")
            self._position += len(data)
            left -= len(data)
            yield memoryview(data)

    def _extension(self, header: _Header) -> dict[str, str]:
        """Read a header of headers: what the next one says otherwise."""
        if header.size > _LARGEST_EXTENDED:
            raise ArchiveError(f"it holds an extended header of {header.size} bytes")
        data = self._read(header.size, "in the middle of an extended header")
        self._read(padding(header.size), "in the middle of an extended header")
        if header.kind == b"L":
            return {"path": _text(data.rstrip(b"\0"))}
        found = _records(data)
        if any(key.startswith("GNU.sparse") for key in found):
            raise ArchiveError("it holds a sparse file, which no bundle does")
        said = {key: value for key, value in found.items() if key in ("path", "size")}
        if said and header.kind == b"g":
            raise ArchiveError("it holds a global header that names files")
        return said

    def _read(self, count: int, place: str) -> bytes:
        data = b""
        while len(data) < count and (piece := self._stream.read(count - len(data))):
            data += piece
        self._position += len(data)
        if len(data) < count:
            raise ArchiveError(f"it ends {place}")
        return data

    def _go_to(self, position: int, name: str) -> None:
        if self._size is not None:
            if position > self._size:
                raise ArchiveError(f"it ends in the middle of `{name}`")
            self._stream.seek(position)
            self._position = position
        while self._position < position:
            self._read(min(position - self._position, CHUNK), f"in the middle of `{name}`")

    def _expect_end(self, pending: bool) -> None:
        if pending or any(self._read(BLOCK, "in the mark at its end")):
            raise ArchiveError("the mark at its end is damaged")
        filling = 0
        while data := self._stream.read(CHUNK):
            filling += len(data)
            if any(data) or filling > _LARGEST_FILLING:
                raise ArchiveError("it goes on after its end")


def header(name: str, size: int, *, executable: bool = False) -> bytes:
    """Make the header of a file: no time, no owner; an extended one before it where the size or name needs it."""
    records = {"path": name} if len(name) > _LONGEST or not name.isascii() else {}
    records |= {"size": str(size)} if size >= _LARGEST else {}
    own = _header(name, 0 if "size" in records else size, b"0", 0o755 if executable else 0o644)
    if not records:
        return own
    data = b"".join(_record(key, value) for key, value in sorted(records.items()))
    extended = _header(f"PaxHeaders/{name.rpartition('/')[2]}", len(data), b"x", 0o644)
    return extended + data + bytes(padding(len(data))) + own


def padding(size: int) -> int:
    """Return the bytes between content of this size and the next header."""
    return -size % BLOCK


def ending(length: int) -> bytes:
    """Return what comes after so many bytes of members: two empty blocks, and zeros up to a whole record."""
    return bytes(2 * BLOCK + -(length + 2 * BLOCK) % _RECORD)


def _header(name: str, size: int, kind: bytes, mode: int) -> bytes:
    fields = (
        name.encode("ascii", "replace")[:_LONGEST].ljust(_LONGEST, b"\0"),
        b"%07o\0%07o\0%07o\0" % (mode, 0, 0),
        b"%011o\0%011o\0" % (size, 0),
        b" " * 8,
        kind.ljust(101, b"\0"),
        b"ustar\x0000".ljust(BLOCK - 257, b"\0"),
    )
    block = b"".join(fields)
    return block[: _CHECKSUM.start] + b"%06o\0 " % sum(block) + block[_CHECKSUM.stop :]


def _record(key: str, value: str) -> bytes:
    """Write a line that begins with its own length."""
    rest = f" {key}={value}\n".encode()
    length = len(rest) + len(str(len(rest)))
    length += len(str(length)) + len(rest) > length
    return str(length).encode() + rest


def _records(data: bytes) -> dict[str, str]:
    found: dict[str, str] = {}
    while data:
        match = re.match(rb"(\d{1,5}) ([^=]+)=", data)
        length = int(match[1]) if match else 0
        if match is None or not match.end() < length <= len(data) or data[length - 1 : length] != b"\n":
            raise ArchiveError("it holds a damaged extended header")
        key = match[2].decode("utf-8", "replace")
        if key in ("path", "size"):
            found[key] = _text(data[match.end() : length - 1])
        else:
            found[key] = ""
        data = data[length:]
    return found


def _parse(block: bytes) -> _Header:
    blanked = block[: _CHECKSUM.start] + b" " * 8 + block[_CHECKSUM.stop :]
    if _number(block[_CHECKSUM]) != sum(blanked):
        raise ArchiveError("it holds a damaged header, or is no tar file")
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    kind = block[156:157]
    return _Header(
        name=_text(prefix + b"/" + name if prefix else name),
        size=_number(block[124:136]),
        kind=b"0" if kind == b"\0" else kind,
    )


def _number(field: bytes) -> int:
    """Read a number: octal digits, or GNU tar's binary form for what they cannot hold."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    match = re.fullmatch(rb" *([0-7]*)[ \0]*", field)
    if match is None:
        raise ArchiveError("it holds a damaged number")
    return int(match[1] or b"0", 8)


def _decimal(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,20}", text):
        raise ArchiveError("it holds a damaged number")
    return int(text)


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArchiveError("it holds a name that is not UTF-8") from error


def _plain(raw: str, kind: bytes) -> str | None:
    """Return the name of a file; None for a folder."""
    is_folder = kind == b"5" or (kind == b"0" and raw.endswith("/"))
    name = raw.removeprefix("./").rstrip("/") if is_folder else raw.removeprefix("./")
    shown = f"`{raw[:120]}`" if raw.isprintable() else ascii(raw[:120])
    if is_folder and name in ("", "."):
        return None
    if not is_folder and kind != b"0":
        raise ArchiveError(f"it holds {shown}, which is {_KINDS.get(kind, 'of an unknown kind')}, not a file")
    if not raw.isprintable() or any(part in ("", ".", "..") for part in name.split("/")):
        raise ArchiveError(f"it holds {shown}, which is not a plain relative path")
    return None if is_folder else name
