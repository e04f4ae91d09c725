"""Read the header, the dynamic section and the section names of ELF files, a few kilobytes of each.

Every offset and count comes from the file and is held against its size and a limit: a file that lies, is cut short or
loops is answered as a value with `damaged`. Nothing is mapped, so a file that shrinks meanwhile cannot kill us.

Sources: System V ABI, chapters 4 and 5; Linux Standard Base 5.0, "Symbol Versioning" (read 2026-11-30).
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from envsmith.native import DeviceImage, Elf, VersionNeed
from envsmith.tools.devicecode import SECTIONS, device_images

MAGIC = b"\x7fELF"

_BLOCK_BYTES = 4096
#: Blocks kept of one file: what a parse reads lies close together.
_BLOCKS = 64
_MAX_SEGMENTS = 1024
_MAX_SECTIONS = 65_536
_MAX_DYNAMIC = 8192
_MAX_VERSIONS = 8192
_MAX_NAME_BYTES = 4096

_ET_REL, _ET_CORE = 1, 4
_PT_LOAD, _PT_DYNAMIC, _PT_INTERP = 1, 2, 3
_SHT_NOBITS = 8
_DT_NEEDED, _DT_STRTAB, _DT_STRSZ, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 5, 10, 14, 15, 29
_DT_VERDEF, _DT_VERDEFNUM, _DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_VER_FLG_BASE, _VER_FLG_WEAK = 1, 2


class _Damaged(Exception):
    """What is wrong with a file, in a few words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ElfRead:
    """All that one look at a file gave."""

    elf: Elf
    device: tuple[DeviceImage, ...] = ()
    device_complete: bool = True


def read_elf(path: Path | str) -> ElfRead | None:
    """Read a file; None when it does not begin like an ELF file.

    Whatever is wrong with it, or keeps it from being opened, is in `elf.damaged`.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        return ElfRead(elf=Elf(damaged=f"it cannot be opened: {os.strerror(error.errno or errno.EIO)}"))
    try:
        info = os.fstat(descriptor)
        if not stat.S_ISREG(info.st_mode):
            return ElfRead(elf=Elf(damaged="it is no regular file"))
        source = _Source(descriptor, info.st_size)
        return _read(source) if source.some(0, 4) == MAGIC else None
    except OSError as error:
        return ElfRead(elf=Elf(damaged=f"it cannot be read: {os.strerror(error.errno or errno.EIO)}"))
    finally:
        os.close(descriptor)


def machine_of(path: Path | str) -> int | None:
    """Return e_machine of an ELF file, from its first 20 bytes; None for anything else."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    try:
        head = os.pread(descriptor, 20, 0)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    if len(head) < 20 or head[:4] != MAGIC:
        return None
    return int(struct.unpack_from(">H" if head[5] == 2 else "<H", head, 18)[0])


class _Source:
    """A file read in blocks, each at most once while it is still among the last ones."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self._descriptor = descriptor
        self._blocks: dict[int, bytes] = {}

    def some(self, offset: int, size: int) -> bytes:
        """Return what the file has there, which may be less."""
        if not 0 <= offset < self.size or size <= 0:
            return b""
        start, inside = divmod(offset, _BLOCK_BYTES)
        if inside + size > _BLOCK_BYTES:
            return os.pread(self._descriptor, size, offset)
        block = self._blocks.get(start)
        if block is None:
            if len(self._blocks) >= _BLOCKS:
                self._blocks.clear()
            block = self._blocks[start] = os.pread(self._descriptor, _BLOCK_BYTES, start * _BLOCK_BYTES)
        return block[inside : inside + size]

    def direct(self, offset: int, size: int) -> bytes:
        """Return what the file has there, without keeping it."""
        if not 0 <= offset < self.size or not 0 < size < 1 << 20:
            return b""
        return os.pread(self._descriptor, size, offset)

    def all(self, offset: int, size: int, what: str) -> bytes:
        """Return exactly that many bytes."""
        found = self.some(offset, size)
        if len(found) != size:
            raise _Damaged(f"cut short: its {what} would end at byte {offset + size:,} of {self.size:,}")
        return found

    def name(self, offset: int, limit: int) -> str:
        """Return the string that ends with a zero before `limit`."""
        size = min(limit - offset, _MAX_NAME_BYTES)
        for wanted in (min(size, 96), size):  # nearly all are short
            text, zero, _ = self.some(offset, wanted).partition(b"\0")
            if zero:
                said = text.decode("utf-8", "backslashreplace")
                return said if said.isprintable() else said.encode("unicode_escape").decode()
        raise _Damaged("a name does not end")

    def will_jump(self) -> None:
        """Tell the kernel that reading ahead is a waste."""
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where things stand in a file of one class and byte order."""

    order: str
    wide: bool

    def unpack(self, wide: str, narrow: str, data: bytes, offset: int = 0) -> tuple[int, ...]:
        return struct.unpack_from(self.order + (wide if self.wide else narrow), data, offset)

    def size(self, wide: str, narrow: str) -> int:
        return struct.calcsize(self.order + (wide if self.wide else narrow))


@dataclass(slots=True)
class _Parse:
    """One file on its way to values; what was read before the damage is kept."""

    source: _Source
    layout: _Layout
    kind: int
    machine: int
    segments: tuple[int, int, int]
    """Offset, size of one, count."""
    sections: tuple[int, int, int, int]
    """Offset, size of one, count, index of the names."""


_HEADER = ("HHIQQQIHHHHHH", "HHIIIIIHHHHHH")
_SEGMENT = ("IIQQQQQQ", "IIIIIIII")
_SECTION = ("IIQQQQIIQQ", "IIIIIIIIII")
_DYNAMIC = ("qQ", "iI")


def _read(source: _Source) -> ElfRead:
    elf = Elf()
    try:
        parse = _header(source)
        elf = Elf(machine=parse.machine, bits=64 if parse.layout.wide else 32)
        _hold_whole(parse)
        elf = _dynamic(parse, elf)
        places = _device_sections(parse)
    except _Damaged as error:
        return ElfRead(elf=replace(elf, damaged=str(error)))
    except (struct.error, OverflowError):
        return ElfRead(elf=replace(elf, damaged="a header is malformed"))
    if not places:
        return ElfRead(elf=elf)
    source.will_jump()
    images, complete = device_images(source.direct, places)
    return ElfRead(elf=elf, device=images, device_complete=complete)


def _header(source: _Source) -> _Parse:
    ident = source.all(0, 16, "header")
    if ident[4] not in (1, 2) or ident[5] not in (1, 2):
        raise _Damaged("its class or byte order is none that exists")
    layout = _Layout("<" if ident[5] == 1 else ">", ident[4] == 2)
    data = source.all(16, layout.size(*_HEADER), "header")
    kind, machine, _, _, phoff, shoff, _, _, phsize, phnum, shsize, shnum, shnames = layout.unpack(*_HEADER, data)
    return _Parse(source, layout, kind, machine, (phoff, phsize, phnum), (shoff, shsize, shnum, shnames))


def _hold_whole(parse: _Parse) -> None:
    """See that the file is as long as its headers say."""
    offset, size, count, _ = parse.sections
    if offset and offset + size * count > parse.source.size:
        wanted = offset + size * count
        raise _Damaged(f"cut short: its section headers would end at byte {wanted:,} of {parse.source.size:,}")
    if parse.kind in (0, _ET_REL, _ET_CORE) or parse.segments[2] == 0:
        raise _Damaged("it is neither a library nor a program")
    for kind, start, length, _ in _segments(parse):
        if kind in (_PT_LOAD, _PT_DYNAMIC, _PT_INTERP) and start + length > parse.source.size:
            raise _Damaged(f"cut short: a segment would end at byte {start + length:,} of {parse.source.size:,}")


def _segments(parse: _Parse) -> Iterator[tuple[int, int, int, int]]:
    """Give kind, offset, size in the file and address of each program header."""
    offset, size, count = parse.segments
    if count > _MAX_SEGMENTS or size < parse.layout.size(*_SEGMENT):
        raise _Damaged("its program headers are malformed")
    for n in range(count):
        data = parse.source.all(offset + n * size, size, "program headers")
        fields = parse.layout.unpack(*_SEGMENT, data)
        if parse.layout.wide:
            yield fields[0], fields[2], fields[5], fields[3]
        else:
            yield fields[0], fields[1], fields[4], fields[2]


def _dynamic(parse: _Parse, elf: Elf) -> Elf:
    """Read what the loader would: names, search paths, versions."""
    source, loads, place, interp = parse.source, [], None, None
    for kind, start, length, address in _segments(parse):
        if kind == _PT_LOAD:
            loads.append((address, length, start))
        elif kind == _PT_DYNAMIC:
            place = (start, length)
        elif kind == _PT_INTERP:
            interp = source.name(start, start + length)
    entries = tuple(_dynamic_entries(parse, *place)) if place else ()
    last = dict(entries)
    if _DT_STRTAB not in last:
        return replace(elf, interp=interp)
    strings = _offset(loads, last[_DT_STRTAB])
    limit = min(strings + last.get(_DT_STRSZ, 0), source.size)

    def name(offset: int) -> str:
        return source.name(strings + offset, limit)

    def named(tag: int) -> str | None:
        return name(last[tag]) if tag in last else None

    needs, defines = last.get(_DT_VERNEED), last.get(_DT_VERDEF)
    return replace(
        elf,
        interp=interp,
        needed=tuple(name(value) for tag, value in entries if tag == _DT_NEEDED),
        soname=named(_DT_SONAME),
        rpath=named(_DT_RPATH),
        runpath=named(_DT_RUNPATH),
        needs=tuple(_needs(parse, _offset(loads, needs), name)) if needs is not None else (),
        defines=tuple(_defines(parse, _offset(loads, defines), name)) if defines is not None else (),
    )


def _dynamic_entries(parse: _Parse, start: int, length: int) -> Iterator[tuple[int, int]]:
    size = parse.layout.size(*_DYNAMIC)
    for n in range(length // size):
        if n >= _MAX_DYNAMIC:
            raise _Damaged("its dynamic section does not end")
        tag, value = parse.layout.unpack(*_DYNAMIC, parse.source.all(start + n * size, size, "dynamic section"))
        if tag == 0:
            return
        yield tag, value


def _offset(loads: list[tuple[int, int, int]], address: int) -> int:
    for start, length, offset in loads:
        if start <= address < start + length:
            return offset + address - start
    raise _Damaged("an address of its dynamic section lies in no segment")


def _needs(parse: _Parse, offset: int, name: Callable[[int], str]) -> Iterator[VersionNeed]:
    """Walk the two-level list of wanted versions; its links only go forward, so it ends."""
    order, seen = parse.layout.order, 0
    while True:
        _, count, library, first, following = struct.unpack(f"{order}HHIII", parse.source.all(offset, 16, "versions"))
        place = offset + first
        for _ in range(count):
            seen += 1
            _, flags, _, text, step = struct.unpack(f"{order}IHHII", parse.source.all(place, 16, "versions"))
            yield VersionNeed(name(library), name(text), bool(flags & _VER_FLG_WEAK))
            place += step
            if not step:
                break
            if seen > _MAX_VERSIONS:
                raise _Damaged("its list of versions does not end")
        seen += 1
        if not following:
            return
        if seen > _MAX_VERSIONS:
            raise _Damaged("its list of versions does not end")
        offset += following


def _defines(parse: _Parse, offset: int, name: Callable[[int], str]) -> Iterator[str]:
    order = parse.layout.order
    for _ in range(_MAX_VERSIONS):
        data = parse.source.all(offset, 20, "versions")
        _, flags, _, count, _, first, following = struct.unpack(f"{order}HHHHIII", data)
        if count and not flags & _VER_FLG_BASE:
            (text,) = struct.unpack(f"{order}I", parse.source.all(offset + first, 4, "versions"))
            yield name(text)
        if not following:
            return
        offset += following
    raise _Damaged("its list of versions does not end")


def _device_sections(parse: _Parse) -> list[tuple[int, int]]:
    """Find the sections that hold device code; none where the section headers were stripped."""
    offset, size, count, names = parse.sections
    if not offset or not count or names >= count or size < parse.layout.size(*_SECTION) or count > _MAX_SECTIONS:
        return []

    def section(n: int) -> tuple[int, int, int, int]:
        data = parse.source.all(offset + n * size, size, "section headers")
        name, kind, _, _, start, length = parse.layout.unpack(*_SECTION, data)[:6]
        return name, kind, start, length

    _, _, strings, room = section(names)
    limit = min(strings + room, parse.source.size)
    found = []
    for name, kind, start, length in map(section, range(count)):
        if kind != _SHT_NOBITS and name and parse.source.name(strings + name, limit) in SECTIONS:
            found.append((start, min(length, max(parse.source.size - start, 0))))
    return found
