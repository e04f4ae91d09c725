"""Walk the device code of a CUDA library: which architectures are in it, without unpacking or running anything.

A section holds fat binaries one after another; each is a header of 16 bytes and entries, an entry a header that gives
its own size and that of its payload. Only those headers are read.

Source: the layout was found by reading libraries of CUDA 12.8 (counts agree with `cuobjdump --list-elf`, 2026-11-29)
and files that ptxas and fatbinary of CUDA 13.5 made for sm_80, 90a, 100, 100a, 100f, 120f and 103a (2026-11-30): flag
0x100000 is the suffix `a`, 0x200000 is `f`.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable

from envsmith.native import DeviceImage

SECTIONS = frozenset({".nv_fatbin", "__nv_relfatbin"})
MAGIC = 0xBA55ED50
#: The largest library known, libcublasLt 12.8, has 2,918 fat binaries with 5,868 entries.
MAX_HEADERS = 200_000
#: Bytes between two fat binaries that are searched for the next one; known libraries have none, an alignment has few.
MAX_GAP_BYTES = 4096

_FAT = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHIIIQ")
_FLAG_EXACT, _FLAG_FAMILY = 0x100000, 0x200000
_KINDS = {1: "ptx", 2: "sm"}
_MAX_ARCH = 999

Reader = Callable[[int, int], bytes]
"""Gives `size` bytes at `offset`, fewer where the file ends."""


def device_images(read: Reader, sections: Iterable[tuple[int, int]]) -> tuple[tuple[DeviceImage, ...], bool]:
    """Return the images in sections of `(offset, size)`, and whether all of the sections was understood."""
    counts: Counter[tuple[str, str]] = Counter()
    budget, complete = MAX_HEADERS, True
    for offset, size in sections:
        position, end = offset, offset + size
        while complete and position + _FAT.size <= end:
            position, used, complete = _fat_binary(read, position, end, counts, budget)
            budget -= used
            complete = complete and budget > 0
    images = tuple(DeviceImage(kind, arch, count) for (kind, arch), count in sorted(counts.items()))
    return images, complete


def _fat_binary(
    read: Reader, position: int, end: int, counts: Counter[tuple[str, str]], budget: int
) -> tuple[int, int, bool]:
    """Count one fat binary; return where the next may begin, how many headers were read, and whether it was whole."""
    start = _next_magic(read, position, end)
    if start is None:
        return end, 1, not any(read(position, min(end - position, MAX_GAP_BYTES)))  # zeros fill a section up
    _, _, header, total = _FAT.unpack(read(start, _FAT.size))
    entry, stop, used = start + header, start + header + total, 1
    if header < _FAT.size or total == 0 or stop > end:
        return end, used, False
    while entry + _ENTRY.size <= stop:
        used += 1
        fields = read(entry, _ENTRY.size)
        if used > budget or len(fields) < _ENTRY.size:
            return end, used, False
        kind, _, header, payload, _, _, _, _, arch, _, _, flags = _ENTRY.unpack(fields)
        if header < _ENTRY.size or entry + header + payload > stop or arch > _MAX_ARCH:
            return end, used, False
        counts[_KINDS.get(kind, f"kind{kind}"), _named(arch, flags)] += 1
        entry += header + payload
    return stop, used, True


def _next_magic(read: Reader, position: int, end: int) -> int | None:
    """Find the next header at or after a position, in steps of the alignment, 8 bytes."""
    wanted = struct.pack("<I", MAGIC)
    if read(position, len(wanted)) == wanted:
        return position
    gap = read(position, min(end - position, MAX_GAP_BYTES))
    found = gap.find(wanted)
    while found != -1 and (found % 8 or position + found + _FAT.size > end):
        found = gap.find(wanted, found + 1)
    return None if found == -1 else position + found


def _named(arch: int, flags: int) -> str:
    return f"{arch}{'a' if flags & _FLAG_EXACT else 'f' if flags & _FLAG_FAMILY else ''}"
