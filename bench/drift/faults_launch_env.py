"""Faults of the calling shell: variables that redirect imports, libraries and allocators."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

from bench.drift.elf import Library, read_library
from bench.drift.fault import FOLDER, Fault, Plant, one_of
from bench.drift.target import Target, choose
from envsmith.manifest import Entry

FAMILY = "launch_env"


def _fault(name: str, what: str, plant: Plant, kinds: frozenset[str], *names: str) -> Fault:
    return Fault(name=name, family=FAMILY, what=what, plant=plant, expect=kinds, names=names, severity="any",
                 exit_codes=(0, 1))  # fmt: skip


def python_path(target: Target, pick: Random) -> Iterator[Fault]:
    """PYTHONPATH leads to packages of an old Python."""
    name = f"planted_{pick.randrange(10**6)}"
    place = pick.choice(["lib/python3.10/site-packages", "tools", "src"])

    def plant(folder: Path) -> Mapping[str, str]:
        (folder / place / name).mkdir(parents=True)
        return {"PYTHONPATH": f"{folder}/{place}"}

    kinds = one_of("hooks/python-variable", "hooks/python-path-leak")
    yield _fault("python-path", f"PYTHONPATH={place}", plant, kinds, "PYTHONPATH", f"{FOLDER}/{place}")


def python_path_trailing_colon(target: Target, pick: Random) -> Iterator[Fault]:
    """An empty item of PYTHONPATH is whatever folder one stands in."""

    def plant(folder: Path) -> Mapping[str, str]:
        return {"PYTHONPATH": f"{target.directory}/{target.site}:"}

    kinds = one_of("hooks/python-variable", "hooks/python-path-leak")
    yield _fault("python-path-trailing-colon", "PYTHONPATH=<site-packages>:", plant, kinds, "PYTHONPATH")


def preloaded(target: Target, pick: Random) -> Iterator[Fault]:
    """LD_PRELOAD puts a library before those of every package."""
    mapped = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libm" in line]
    library = choose(pick, sorted(set(mapped)))

    def plant(folder: Path) -> Mapping[str, str]:
        shutil.copy(library, folder / "libplanted.so")
        return {"LD_PRELOAD": f"{folder}/libplanted.so"}

    kinds = one_of("hooks/python-variable", "hooks/python-path-leak")
    yield _fault("preloaded", "LD_PRELOAD of a library outside", plant, kinds, "LD_PRELOAD", f"{FOLDER}/libplanted.so")


def _answered_by_path(target: Target, pick: Random) -> list[tuple[Entry, Library]]:
    """Libraries that another one of the env needs and finds by RUNPATH or not at all: LD_LIBRARY_PATH comes first."""
    entries = [e for e in target.libraries if e.size < 32 << 20]
    pick.shuffle(entries)
    parsed = [(e, lib) for e in entries[:250] if (lib := read_library(target.path(e.path)))]
    wanted = {needed for _, library in parsed if not library.is_rpath for needed in library.needed}
    return [(entry, library) for entry, library in parsed if library.soname and library.soname in wanted]


def library_path_with_copy(target: Target, pick: Random) -> Iterator[Fault]:
    """LD_LIBRARY_PATH leads to another build of a library of the env."""
    entry, library = choose(pick, _answered_by_path(target, pick))

    def plant(folder: Path) -> Mapping[str, str]:
        (folder / "lib").mkdir()
        copy = Path(shutil.copy(target.path(entry.path), folder / "lib" / str(library.soname)))
        with copy.open("ab") as file:
            file.write(b"\0planted")
        return {"LD_LIBRARY_PATH": f"{folder}/lib"}

    kinds = one_of("launch_env/library-shadowed")
    what = f"LD_LIBRARY_PATH with another {library.soname}"
    yield _fault("library-path-with-copy", what, plant, kinds, f"{FOLDER}/lib", str(library.soname))


def library_path_trailing_colon(target: Target, pick: Random) -> Iterator[Fault]:
    """An empty item of LD_LIBRARY_PATH is whatever folder one stands in."""
    value = pick.choice(["/usr/lib:", ":/usr/lib", "/usr/lib::/lib"])

    def plant(folder: Path) -> Mapping[str, str]:
        return {"LD_LIBRARY_PATH": value}

    kinds = one_of("launch_env/empty-element")
    yield _fault("library-path-trailing-colon", f"LD_LIBRARY_PATH={value}", plant, kinds, "LD_LIBRARY_PATH")


def library_path_relative(target: Target, pick: Random) -> Iterator[Fault]:
    """A relative item of LD_LIBRARY_PATH is another folder in every process."""
    value = pick.choice(["lib", "./lib64", "../lib"])

    def plant(folder: Path) -> Mapping[str, str]:
        return {"LD_LIBRARY_PATH": f"/usr/lib:{value}"}

    kinds = one_of("launch_env/*", "native/*")
    yield _fault("library-path-relative", f"LD_LIBRARY_PATH holds {value}", plant, kinds, "LD_LIBRARY_PATH", value)


def driver_stub(target: Target, pick: Random) -> Iterator[Fault]:
    """LD_LIBRARY_PATH leads to the toolkit's stub of libcuda, which links and does nothing."""
    place = pick.choice(["cuda/lib64/stubs", "cuda-12.8/targets/x86_64-linux/lib/stubs"])

    def plant(folder: Path) -> Mapping[str, str]:
        (folder / place).mkdir(parents=True)
        mapped = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libm" in line]
        shutil.copy(mapped[0], folder / place / "libcuda.so")
        shutil.copy(mapped[0], folder / place / "libcuda.so.1")
        return {"LD_LIBRARY_PATH": f"{folder}/{place}"}

    kinds = one_of("launch_env/libcuda-stub")
    yield _fault("driver-stub", f"LD_LIBRARY_PATH={place}", plant, kinds, f"{FOLDER}/{place}")


def forbidden_variable(target: Target, pick: Random) -> Iterator[Fault]:
    """The shell sets what the launch table unsets: an allocator option under its old name wins over the new one."""
    names = [name for name in target.receipt.launch["unset"] if not name.startswith("PYTHON")]
    name = choose(pick, names)
    value = pick.choice(["expandable_segments:True", "max_split_size_mb:64"])

    def plant(folder: Path) -> Mapping[str, str]:
        return {name: value}

    kinds = one_of("launch_env/variable-not-unset")
    yield _fault("forbidden-variable", f"{name}={value} in the shell", plant, kinds, name, value)


def contradicting_variable(target: Target, pick: Random) -> Iterator[Fault]:
    """The shell holds another value than the launch table: right under `envsmith run`, wrong without it."""
    name = choose(pick, [n for n in sorted(target.receipt.launch["set"]) if not n.startswith("PYTHON")])
    value = "expandable_segments:True" if name.endswith("ALLOC_CONF") else "planted"

    def plant(folder: Path) -> Mapping[str, str]:
        return {name: value}

    kinds = one_of("launch_env/variable-*")
    yield _fault("contradicting-variable", f"{name}={value} in the shell", plant, kinds, name)


GENERATORS = (
    python_path, python_path_trailing_colon, preloaded, library_path_with_copy, library_path_trailing_colon,
    library_path_relative, driver_stub, forbidden_variable, contradicting_variable,
)  # fmt: skip
