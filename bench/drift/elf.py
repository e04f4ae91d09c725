"""As much of ELF as planting needs: the name of a library, and where in the file its search path stands.

Independent of the reader that verify uses, so that one cannot hide a mistake of the other.
Source: System V ABI, gabi chapter 5, program header and dynamic section (read 2026-11-29).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from struct import Struct

_PHDR = Struct("<IIQQQQQQ")
_DYN = Struct("<qQ")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 5, 14, 15, 29


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """One 64-bit little-endian library."""

    soname: str | None
    needed: tuple[str, ...]
    search: str | None
    """DT_RPATH or DT_RUNPATH."""
    search_offset: int
    """Where its text stands in the file."""
    is_rpath: bool
    """It is DT_RPATH, which comes before LD_LIBRARY_PATH."""


def read_library(path: Path) -> Library | None:
    """Parse a file that the env shipped; None when it is no such library."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        return None
    offset, count = int.from_bytes(data[32:40], "little"), int.from_bytes(data[56:58], "little")
    headers = [_PHDR.unpack_from(data, offset + number * _PHDR.size) for number in range(count)]
    dynamic = next((header for header in headers if header[0] == _PT_DYNAMIC), None)
    if dynamic is None:
        return None
    tags = list(_DYN.iter_unpack(data[dynamic[2] : dynamic[2] + dynamic[5] // _DYN.size * _DYN.size]))
    values = dict(reversed(tags))
    if _DT_STRTAB not in values:
        return None
    address = values[_DT_STRTAB]
    load = next(h for h in headers if h[0] == _PT_LOAD and h[3] <= address < h[3] + h[6])
    table = address - load[3] + load[2]

    def text(at: int) -> str:
        return data[table + at : data.index(b"\0", table + at)].decode(errors="replace")

    search = values.get(_DT_RUNPATH, values.get(_DT_RPATH))
    return Library(
        soname=text(values[_DT_SONAME]) if _DT_SONAME in values else None,
        needed=tuple(text(value) for tag, value in tags if tag == _DT_NEEDED),
        search=None if search is None else text(search),
        search_offset=0 if search is None else table + search,
        is_rpath=_DT_RPATH in values and _DT_RUNPATH not in values,
    )
