"""See what the loader of this host gives to a process: its cache, its default folders, LD_LIBRARY_PATH, its glibc.

Nothing is started and nothing is loaded. A host without a cache, or with one that cannot be understood, is one whose
default folders answer alone.

Sources: ld.so(8); sysdeps/generic/dl-cache.h of glibc 2.36 (layout of the cache); read 2026-11-30.
"""

from __future__ import annotations

import os
import platform
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from envsmith.native import HostLibraries, LibraryFolder, newest
from envsmith.tools.elf import machine_of, read_elf
from envsmith.tools.nativescan import library_names

CACHE = Path("/etc/ld.so.cache")
_MAGIC = b"glibc-ld.so.cache1.1"
_HEADER_BYTES = 48
_ENTRY = struct.Struct("iIIIQ")
_MAX_CACHE_BYTES = 64 << 20
_MAX_ENTRIES = 200_000
#: Elements of LD_LIBRARY_PATH that are looked into.
_MAX_FOLDERS = 200

LIBC, LIBSTDCXX = "libc.so.6", "libstdc++.so.6"


def host_libraries(
    environ: Mapping[str, str], *, python: Path | None = None, cwd: Path | None = None, cache: Path = CACHE
) -> HostLibraries:
    """Return what a process gets that is started with these variables.

    `python` is the interpreter of the environment, whose base brings libraries of its own; `cwd` is where the process
    would start, since an empty element of LD_LIBRARY_PATH means that folder.
    """
    machine = machine_of(sys.executable) or machine_of("/proc/self/exe")
    folders = default_folders()
    names: dict[str, str] = {}
    for name, path in cache_entries(cache):
        if name not in names and machine_of(path) == machine:
            names[name] = path
    for folder in folders:
        for name in sorted(library_names(folder) or ()):
            if name not in names and machine_of(f"{folder}/{name}") == machine:
                names[name] = f"{folder}/{name}"
    searched = library_path(environ.get("LD_LIBRARY_PATH", ""), machine=machine, cwd=cwd)
    libstdcxx = _first(LIBSTDCXX, searched) or names.get(LIBSTDCXX)
    return HostLibraries(
        machine=machine,
        names=names,
        default_folders=folders,
        library_path=searched,
        beside_python=_beside(python) if python else frozenset(),
        glibc=_glibc(names.get(LIBC)),
        libstdcxx=libstdcxx,
        libstdcxx_versions=frozenset(_defines(libstdcxx)),
    )


def library_path(value: str, *, machine: int | None = None, cwd: Path | None = None) -> tuple[LibraryFolder, ...]:
    """List the folders of an LD_LIBRARY_PATH in the order of the search; both `:` and `;` part them."""
    if not value:
        return ()
    found = []
    for element in value.replace(";", ":").split(":")[:_MAX_FOLDERS]:
        folder = os.path.join(cwd or Path.cwd(), element) if element else str(cwd or Path.cwd())  # noqa: PTH118
        names = library_names(folder, machine)
        tuned = _tuned_names(folder, machine) if names is not None else frozenset()
        found.append(
            LibraryFolder(
                path=folder, exists=names is not None, names=(names or frozenset()) | tuned, empty=not element
            )
        )
    return tuple(found)


def default_folders() -> tuple[str, ...]:
    """Return the folders that the loader searches without being told, that of Debian's multiarch first."""
    triplet = f"{platform.machine()}-linux-gnu"
    wanted = (f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
    seen: dict[str, str] = {}
    for folder in wanted:
        real = os.path.realpath(folder)
        if os.path.isdir(real):  # noqa: PTH112
            seen.setdefault(real, folder)
    return tuple(seen.values())


def cache_entries(path: Path = CACHE) -> Iterator[tuple[str, str]]:
    """Give name and path of every entry of the loader's cache; nothing when it is missing or malformed."""
    try:
        with path.open("rb") as stream:
            data = stream.read(_MAX_CACHE_BYTES)
    except OSError:
        return
    start = data.find(_MAGIC)
    if start % 8 or len(data) < start + _HEADER_BYTES:  # -1 is odd too: there is no such cache
        return
    order = _byte_order(data[start + 28 : start + 29])
    (count,) = struct.unpack_from(f"{order}I", data, start + len(_MAGIC))
    size = struct.calcsize(f"{order}{_ENTRY.format}")
    for n in range(min(count, _MAX_ENTRIES)):
        place = start + _HEADER_BYTES + n * size
        if place + size > len(data):
            return
        _, key, value, _, _ = struct.unpack_from(f"{order}{_ENTRY.format}", data, place)
        name, found = _string(data, start + key), _string(data, start + value)
        if name and found:
            yield name, found


def _byte_order(flags: bytes) -> str:
    """Source: dl-cache.h; the low two bits are 2 for little, 3 for big endian, 0 where an old ldconfig wrote it."""
    return {2: "<", 3: ">"}.get((flags or b"\0")[0] & 3, "<" if sys.byteorder == "little" else ">")


def _string(data: bytes, offset: int) -> str | None:
    end = data.find(b"\0", offset, offset + 4096)
    return os.fsdecode(data[offset:end]) if end > offset else None


def _tuned_names(folder: str, machine: int | None) -> frozenset[str]:
    """List what lies below `glibc-hwcaps`, which is searched before the folder itself."""
    above = f"{folder}/glibc-hwcaps"
    try:
        levels = sorted(os.listdir(above))[:32]  # noqa: PTH208
    except (OSError, ValueError):
        return frozenset()
    return frozenset().union(*(library_names(f"{above}/{level}", machine) or () for level in levels))


def _first(name: str, folders: Iterable[LibraryFolder]) -> str | None:
    return next((f"{folder.path}/{name}" for folder in folders if name in folder.names), None)


def _beside(python: Path) -> frozenset[str]:
    real = os.path.realpath(python)
    base = os.path.dirname(os.path.dirname(real))  # noqa: PTH120
    return library_names(f"{base}/lib") or frozenset()


def _defines(path: str | None) -> tuple[str, ...]:
    read = read_elf(path) if path else None
    return read.elf.defines if read else ()


def _glibc(libc: str | None) -> str | None:
    """Ask libc itself, not the running process: that may have brought its own."""
    version = newest(text for text in _defines(libc) if text.startswith("GLIBC_2"))
    return version.removeprefix("GLIBC_") if version else None
