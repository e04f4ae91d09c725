"""Faults of native libraries. Most of them change a file, so `files` names them; a second trial asks `native` alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from bench.drift.edits import copy_of, flip_quietly, replace_by, rewrite, same_times
from bench.drift.elf import Library, read_library
from bench.drift.fault import Fault, Plant, one_of
from bench.drift.target import NoPlace, Target, choose
from envsmith.manifest import Entry
from envsmith.tools.elf import machine_of

FAMILY = "native"
_ALONE = ("--only", "native")
_FATBIN_MAGIC = b"\x50\xed\x55\xba"


def _fault(name: str, what: str, plant: Plant, kinds: frozenset[str], *names: str) -> Fault:
    return Fault(name=name, family=FAMILY, what=what, plant=plant, expect=kinds, names=names)


def _alone(fault: Fault, kinds: frozenset[str], *names: str) -> Fault:
    """The same change, asked of `native` without the help of `files`."""
    return replace(
        fault,
        name=f"{fault.name}-alone",
        expect=kinds,
        names=names or fault.names,
        level=_ALONE,
        severity="any",
        exit_codes=(0, 1),
    )


def _shared(target: Target, pick: Random, most: int = 40) -> list[tuple[Entry, Library]]:
    """Some libraries with a SONAME, in a chosen order; wheels also ship stubs for machines of other kinds."""
    own = machine_of(sys.executable)
    entries = [e for e in target.libraries if Path(e.path).name.startswith("lib")]
    entries = [e for e in entries if machine_of(str(target.path(e.path))) == own]
    pick.shuffle(entries)
    parsed = [(entry, read_library(target.path(entry.path))) for entry in entries[:most]]
    return [(entry, library) for entry, library in parsed if library and library.soname]


def swapped_quietly(target: Target, pick: Random) -> Iterator[Fault]:
    """Another build of a library: same size, same mtime."""
    entry = choose(pick, target.libraries)

    def plant(folder: Path) -> None:
        flip_quietly(target.path(entry.path), entry.size // 2)

    what = f"flip the middle byte of {entry.path}, times put back"
    yield _fault("swapped-quietly", what, plant, one_of("files/file-changed"), entry.path)


def replaced_by_another(target: Target, pick: Random) -> Iterator[Fault]:
    """A library was replaced by one with another name inside."""
    found = _shared(target, pick)
    (entry, library), (other, strange) = choose(pick, found), choose(pick, found)
    if library.soname == strange.soname:
        raise NoPlace

    def plant(folder: Path) -> None:
        replace_by(target.path(entry.path), target.path(other.path))

    what = f"{entry.path} is a copy of {other.path}, times put back"
    fault = _fault("replaced-by-another", what, plant, one_of("files/file-changed"), entry.path)
    yield fault
    yield _alone(fault, one_of("native/wrong-library"), entry.path, str(strange.soname))


def second_copy(target: Target, pick: Random) -> Iterator[Fault]:
    """A wheel's own copy of a library that the env already has, as vendored builds bring it."""
    wanted = tuple(target.receipt.verify.get("single-instance", ())) or ("libarrow", "libnccl", "libcudart", "libcuda")
    found = [e for e in target.libraries if Path(e.path).name.startswith(wanted)]
    entry = choose(pick, found or [e for e, _ in _shared(target, pick)])
    place = f"{target.site}/planted.libs/{Path(entry.path).name}"

    def plant(folder: Path) -> None:
        copy_of(target.path(entry.path), target.path(place).parent)
        with target.path(place).open("ab") as file:
            file.write(b"\0planted")

    kinds = one_of("files/unowned-file")
    fault = _fault("second-copy", f"another build of {entry.path} as {place}", plant, kinds, "planted.libs")
    yield fault
    yield _alone(fault, one_of("native/soname-twice"), Path(entry.path).name)


def search_path_rewritten(target: Target, pick: Random) -> Iterator[Fault]:
    """The search path inside a library leads to where everybody can write."""
    entries = [e for e in target.libraries if e.size < 32 << 20]
    pick.shuffle(entries)
    parsed = ((entry, read_library(target.path(entry.path))) for entry in entries[:80])
    entry, library = choose(pick, [(e, lib) for e, lib in parsed if lib and lib.search and len(lib.search) >= 8])
    assert library.search is not None
    text = "/tmp".ljust(len(library.search), "/")

    def plant(folder: Path) -> None:
        path = target.path(entry.path)
        with same_times(path), path.open("r+b") as file:
            file.seek(library.search_offset)
            file.write(text.encode())

    kinds = one_of("files/file-changed")
    what = f"the search path of {entry.path} is {text.rstrip('/')}"
    fault = _fault("search-path-rewritten", what, plant, kinds, entry.path)
    yield fault
    yield _alone(fault, one_of("native/rpath-outside"), entry.path, "/tmp")


def needed_gone(target: Target, pick: Random) -> Iterator[Fault]:
    """A library that another one needs is gone."""
    found = _shared(target, pick, 200)
    names = {library.soname: entry for entry, library in found}
    names_of = {entry.path: library.soname for entry, library in found}
    users = [
        (user, names[needed])
        for user, library in found
        for needed in library.needed
        if names.get(needed) not in (None, user)
    ]
    user, entry = choose(pick, users)

    def plant(folder: Path) -> None:
        target.path(entry.path).unlink()

    what = f"delete {entry.path}, which {user.path} needs"
    fault = _fault("needed-gone", what, plant, one_of("files/file-missing"), entry.path)
    yield fault
    yield _alone(fault, one_of("native/library-missing"), str(names_of[entry.path]))


def device_code_gone(target: Target, pick: Random) -> Iterator[Fault]:
    """A library without its kernels: it loads, and every launch says `no kernel image`."""
    found = [e for e in target.libraries if e.size > 1 << 20]
    pick.shuffle(found)
    holding = [e for e in found[:80] if _FATBIN_MAGIC in target.path(e.path).read_bytes()]
    entry = choose(pick, holding)

    def plant(folder: Path) -> None:
        path = target.path(entry.path)
        with same_times(path):
            path.write_bytes(path.read_bytes().replace(_FATBIN_MAGIC, b"\0\0\0\0"))

    kinds = one_of("files/file-changed")
    fault = _fault("device-code-gone", f"wipe the fatbin marks of {entry.path}", plant, kinds, entry.path)
    yield fault


def damaged(target: Target, pick: Random) -> Iterator[Fault]:
    """A library that was cut short, asked of `native` alone."""
    entry = choose(pick, target.libraries)

    def plant(folder: Path) -> None:
        with same_times(target.path(entry.path)):
            os.truncate(target.path(entry.path), max(entry.size // 8, 64))

    what = f"cut {entry.path} to an eighth"
    fault = _fault("damaged", what, plant, one_of("files/file-changed"), entry.path)
    yield _alone(fault, one_of("native/library-damaged"), entry.path)


def newer_glibc(target: Target, pick: Random) -> Iterator[Fault]:
    """A library that asks for a glibc which no host has."""
    old, new = b"\0GLIBC_2.17\0", b"\0GLIBC_2.99\0"
    found = [e for e in target.libraries if e.size < 8 << 20 and old in target.path(e.path).read_bytes()]
    entry = choose(pick, found)

    def plant(folder: Path) -> None:
        with same_times(target.path(entry.path)):
            rewrite(target.path(entry.path), lambda data: data.replace(old, new))

    fault = _fault("newer-glibc", f"{entry.path} needs glibc 2.99", plant, one_of("files/file-changed"), entry.path)
    yield fault
    yield _alone(fault, one_of("native/glibc-too-old"), "2.99", entry.owner.split("==")[0])


GENERATORS = (
    damaged,
    newer_glibc,
    swapped_quietly, replaced_by_another, second_copy, search_path_rewritten, needed_gone, device_code_gone,
)  # fmt: skip
