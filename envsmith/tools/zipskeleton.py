"""Where the packed data of an archive's members lies, and which old member a new one was most likely made from.

The archive may be anyone's: whatever is not plainly the data of one member is left to the skeleton.
"""

from __future__ import annotations

import errno
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envsmith.deltaformat import Region
from envsmith.tools.rawzip import LOCAL_HEADER

_ENCRYPTED = 0x1
_READABLE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_NOT_A_ZIP = (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError, EOFError, struct.error)
#: What changes in a name between two builds: the hash that auditwheel puts into it, and numbers.
_GRAFT = re.compile(r"-[0-9a-f]{8,}(?=\.)")
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """The packed data of one member and what the directory says of it."""

    name: str
    region: Region
    deflated: bool
    crc: int
    size: int


def members(path: Path) -> tuple[Member, ...] | None:
    """Return the members whose data lies apart from all others, in order of place; None when it is no archive."""
    with path.open("rb") as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                infos = archive.infolist()
        except _NOT_A_ZIP:
            return None
        except OSError as error:  # a directory said to be before the beginning of the file
            if error.errno != errno.EINVAL:
                raise
            return None
        size = stream.seek(0, 2)
        return tuple(_apart(found for info in infos if (found := _member(stream, info, size))))


def gaps(regions: Sequence[Region], size: int) -> Iterator[Region]:
    """Yield what lies between regions, from the beginning to the end of a file: its skeleton."""
    end = 0
    for region in regions:
        yield Region(start=end, length=region.start - end)
        end = region.start + region.length
    yield Region(start=end, length=size - end)


class Origins:
    """The members of an old archive, asked for what a new member may come from."""

    def __init__(self, old: Sequence[Member]) -> None:
        self._old = old
        self._same: Mapping[tuple[object, ...], int] = _first((_packed(m), n) for n, m in enumerate(old))
        self._content: Mapping[tuple[object, ...], int] = _first(((m.crc, m.size), n) for n, m in enumerate(old))
        self._name: Mapping[tuple[object, ...], int] = _first(((m.name,), n) for n, m in enumerate(old))
        self._families: dict[tuple[object, ...], list[int]] = {}
        for n, member in enumerate(old):
            for family in _families(member.name):
                self._families.setdefault(family, []).append(n)

    def same(self, new: Member) -> int | None:
        """Return the old member that has the same packed data, by all that the directory says."""
        return self._same.get(_packed(new))

    def base(self, new: Member) -> int | None:
        """Return the old member to patch: of the same content or name, or of a name that differs by a version."""
        found = self._content.get((new.crc, new.size), self._name.get((new.name,)))
        if found is not None:
            return found
        for family in _families(new.name):
            if alike := self._families.get(family):
                return min(alike, key=lambda n: (abs(self._old[n].size - new.size), n))
        return None


def _member(stream: BinaryIO, info: zipfile.ZipInfo, size: int) -> Member | None:
    if info.compress_type not in _READABLE or info.flag_bits & _ENCRYPTED or info.compress_size <= 0:
        return None
    if not 0 <= info.header_offset <= size:
        return None
    stream.seek(info.header_offset)
    head = stream.read(LOCAL_HEADER.size)
    if len(head) < LOCAL_HEADER.size or not head.startswith(b"PK\x03\x04"):
        return None
    fields = LOCAL_HEADER.unpack(head)
    start = info.header_offset + LOCAL_HEADER.size + fields[9] + fields[10]
    if start + info.compress_size > size:
        return None
    return Member(
        name=info.filename,
        region=Region(start=start, length=info.compress_size),
        deflated=info.compress_type == zipfile.ZIP_DEFLATED,
        crc=info.CRC,
        size=info.file_size,
    )


def _apart(found: Iterable[Member]) -> Iterator[Member]:
    end = 0
    for member in sorted(found, key=lambda member: (member.region.start, member.region.length)):
        if member.region.start >= end:
            yield member
            end = member.region.start + member.region.length


def _packed(member: Member) -> tuple[object, ...]:
    return member.crc, member.size, member.region.length, member.deflated


def _families(name: str) -> tuple[tuple[object, ...], ...]:
    general = _NUMBER.sub("0", _GRAFT.sub("", name))
    return (general,), ("in any folder", general.rpartition("/")[2])


def _first(pairs: Iterable[tuple[tuple[object, ...], int]]) -> dict[tuple[object, ...], int]:
    known: dict[tuple[object, ...], int] = {}
    for key, n in pairs:
        known.setdefault(key, n)
    return known
