"""Write zip archives whose bytes are a function of their members alone.

The standard library's writer compresses with the zlib of the machine and cannot pass compressed data through; this
one stores or copies, nothing else, and leaves out every field that could differ between two machines.
Source: APPNOTE.TXT 6.3.10 of PKWARE, sections 4.3 and 4.4, read 2026-11-29.
"""

from __future__ import annotations

import hashlib
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_CENTRAL_HEADER = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_DATE_1980 = 0x21
_UTF8_NAME = 0x800
_LIMIT = 0xFFFFFFFF
_CHUNK = 1 << 20


class TooLargeError(Exception):
    """The archive would need the ZIP64 form, which no wheel of ours has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Written:
    name: bytes
    mode: int
    method: int
    crc: int
    packed: int
    size: int
    offset: int


class RawZip:
    """An archive being written; the file appears under its name only when the block ends well."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(path.name + ".part")
        self._members: list[_Written] = []
        self._digest = hashlib.sha256()
        self._offset = 0
        self.sha256 = ""
        """Hex digest of the archive, once it is closed."""

    def __enter__(self) -> RawZip:
        self._file: IO[bytes] = self._part.open("wb")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            self._file.close()
        if error is None:
            self.sha256 = self._digest.hexdigest()
            self._part.replace(self._path)
        else:
            self._part.unlink(missing_ok=True)

    def store(self, name: str, data: bytes, *, executable: bool) -> None:
        """Add a member, not compressed."""
        self._add(name, executable, zipfile.ZIP_STORED, zlib.crc32(data), len(data), len(data), (data,))

    def store_member(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, *, executable: bool) -> str:
        """Add another archive's member, not compressed, and return the hex sha256 of its content."""
        digest = hashlib.sha256()

        def content() -> Iterator[bytes]:
            with archive.open(info) as stream:  # checks the CRC
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
                    yield chunk

        self._add(info.filename, executable, zipfile.ZIP_STORED, info.CRC, info.file_size, info.file_size, content())
        return digest.hexdigest()

    def copy_member(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str, *, executable: bool) -> None:
        """Add another archive's member as it is, compressed bytes included."""
        stream = archive.fp
        assert stream is not None

        def packed() -> Iterator[bytes]:
            stream.seek(info.header_offset)
            header = LOCAL_HEADER.unpack(stream.read(LOCAL_HEADER.size))
            stream.seek(info.header_offset + LOCAL_HEADER.size + header[9] + header[10])
            left = info.compress_size
            while left and (chunk := stream.read(min(left, _CHUNK))):
                left -= len(chunk)
                yield chunk

        self._add(name, executable, info.compress_type, info.CRC, info.compress_size, info.file_size, packed())

    def _add(
        self, name: str, executable: bool, method: int, crc: int, packed: int, size: int, chunks: Iterable[bytes]
    ) -> None:
        if max(packed, size, self._offset + packed) >= _LIMIT or len(self._members) >= 0xFFFF - 1:
            raise TooLargeError(name)
        member = _Written(
            name=name.encode(),
            mode=stat.S_IFREG | (0o755 if executable else 0o644),
            method=method,
            crc=crc,
            packed=packed,
            size=size,
            offset=self._offset,
        )
        self._write(LOCAL_HEADER.pack(b"PK\x03\x04", *_about(member), len(member.name), 0) + member.name)
        start = self._offset
        for chunk in chunks:
            self._write(chunk)
        if self._offset - start != packed:
            raise zipfile.BadZipFile(f"member `{name}` is shorter or longer than the archive's directory says")
        self._members.append(member)

    def _finish(self) -> None:
        start = self._offset
        for member in self._members:
            fields = (len(member.name), 0, 0, 0, 0, member.mode << 16, member.offset)
            unix = 3 << 8 | 20
            self._write(_CENTRAL_HEADER.pack(b"PK\x01\x02", unix, *_about(member), *fields) + member.name)
        count = len(self._members)
        self._write(_END.pack(b"PK\x05\x06", 0, 0, count, count, self._offset - start, start, 0))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._offset += len(data)


def _about(member: _Written) -> tuple[int, ...]:
    """Return the fields that a local and a central header share."""
    needed = 20 if member.method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) else 63
    flags = 0 if member.name.isascii() else _UTF8_NAME
    return needed, flags, member.method, 0, _DATE_1980, member.crc, member.packed, member.size
