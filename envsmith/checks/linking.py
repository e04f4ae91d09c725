"""Who answers the loader: for each library that a file of the environment needs, where it would come from.

The model of the search: DT_RPATH of the file, LD_LIBRARY_PATH, DT_RUNPATH, then any file of the environment that goes
by the name, since packages load libraries for one another beforehand (torch does so for 20 others), then the host.
DT_RPATH of whatever loads the file is searched too; which file that is nobody can tell from the outside.

Source: ld.so(8), glibc 2.36 elf/dl-load.c; the order was tried with real files, tests/integration/test_elf.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import Literal

from envsmith.data import table
from envsmith.native import (
    HostLibraries,
    LibraryFolder,
    NativeFacts,
    NativeFile,
    family,
    newest,
    search_folders,
    version_numbers,
)
from envsmith.report import REBUILD, Finding, Severity

FAMILY = "native"
SHOWN = 3

Owner = Callable[[str], str]
Way = Literal["rpath", "library-path", "runpath", "env", "host"]


class Linkage:
    """Names and folders of an environment, and of a base below it, ready to be asked."""

    def __init__(self, facts: NativeFacts, host: HostLibraries, base: NativeFacts | None = None) -> None:
        self.facts, self.host = facts, host
        self.files = facts.libraries
        self._outside = {folder.path: folder.names for folder in facts.outside}
        whole = {file.path for file in self.files}
        links = {path for path, real in facts.links.items() if real in whole or (real or "").startswith("/")}
        self._paths = whole | links
        self._folders = {path: real for path, real in facts.links.items() if real and real not in whole}
        self.by_name: dict[str, list[str]] = defaultdict(list)
        self.by_soname: dict[str, list[NativeFile]] = defaultdict(list)
        for path in sorted(self._paths):
            self.by_name[path.rpartition("/")[2]].append(path)
        for file in self.files:
            if file.elf.soname:
                self.by_soname[file.elf.soname].append(file)
        self._other_names = _names(base) if base else frozenset()
        # A damaged library is a finding of its own; that it is missing, too, would be the same said twice.
        self._other_names |= {file.name for file in facts.files if file.elf.damaged}

    def answer(self, file: NativeFile, name: str) -> Way | None:
        """Say by which way a file would get a library of that name; None when nothing answers."""
        if "/" in name:
            return "env"  # loaded by that very path, in which this search has no part
        if self._finds(file.elf.own_rpath, file, name):
            return "rpath"
        if any(name in folder.names for folder in self.host.library_path):
            return "library-path"
        if self._finds(file.elf.runpath, file, name):
            return "runpath"
        if name in self.by_name or name in self.by_soname or name in self._other_names:
            return "env"
        return "host" if name in self.host.names or name in self.host.beside_python else None

    def own_rpath_finds(self, file: NativeFile, name: str) -> bool:
        """Say whether DT_RPATH of the file itself settles it, so that LD_LIBRARY_PATH has no say."""
        return self._finds(file.elf.own_rpath, file, name)

    def _finds(self, path: str | None, file: NativeFile, name: str) -> bool:
        return any(self._holds(folder, name) for folder in search_folders(path, file.folder, self.facts.root))

    def _holds(self, folder: str, name: str) -> bool:
        if folder.startswith("/"):
            return name in self._outside.get(folder, ())
        head, slash, rest = folder.partition("/")
        if head in self._folders:  # lib64 -> lib
            folder = f"{self._folders[head]}{slash}{rest}"
        return (f"{folder}/{name}" if folder else name) in self._paths


@dataclass(frozen=True, kw_only=True, slots=True)
class Shipped:
    """What is known of how the packages of an environment came."""

    names: Collection[str] = ()
    """File names that its packages brought."""
    unchanged: Callable[[NativeFile], bool] = lambda file: False
    """Whether a file is proved to be as its package shipped it."""


NOTHING_SHIPPED = Shipped()


def check_linking(
    linkage: Linkage, *, owner: Owner, glibc: str | None, has_device: bool, shipped: Shipped = NOTHING_SHIPPED
) -> Iterator[Finding]:
    """Hold what the files need against what answers.

    Proves that every library named in DT_NEEDED is somewhere, and that the symbol versions wanted of glibc and
    libstdc++ are there. Misses libraries opened by name at run time, and symbols without a version.
    """
    yield from _unlinked(linkage, owner)
    machines = {file.elf.machine for file in linkage.files}
    here = linkage.host.machine is None or linkage.host.machine in machines
    if here:
        yield from _missing(linkage, owner, has_device, shipped)
        yield from _libstdcxx(linkage, owner)
    yield from _glibc(linkage, owner, glibc or (linkage.host.glibc if here else None))


def _missing(linkage: Linkage, owner: Owner, has_device: bool, shipped: Shipped) -> Iterator[Finding]:
    """Find needs that nothing answers.

    A file that is as its package shipped it, and whose package never brought the library, may be a plug-in that nobody
    loads: mpi4py ships one extension for each MPI. Then it is a warning, and real imports tell.
    """
    needing: dict[str, list[NativeFile]] = defaultdict(list)
    driver = {str(row["library"]) for row in table("optional_libraries")["driver"]}
    for file in linkage.files:
        for name in dict.fromkeys(file.elf.needed):
            if (has_device or name not in driver) and not linkage.answer(file, name) and not _optional(file.name, name):
                needing[name].append(file)
    for name, files in sorted(needing.items()):
        whose = "the driver" if name in driver else "the host or another package"
        idle = name not in driver and name not in shipped.names and all(map(shipped.unchanged, files))
        yield _finding(
            "library-missing",
            name,
            f"nothing answers for `{name}`, needed by {_packages(files, owner)}",
            expected=f"a file of that name in the env, on LD_LIBRARY_PATH or where the loader looks; {whose} gives it",
            actual=f"missed by {_some(file.path for file in files)}",
            hint="install what provides it on this machine, or name its folder in the launch table of the recipe",
            severity=Severity.WARNING if idle else Severity.ERROR,
        )


@cache
def _optional(file: str, library: str) -> bool:
    rows = table("optional_libraries")["optional"]
    return any(fnmatchcase(library, str(row["library"])) and fnmatchcase(file, str(row["files"])) for row in rows)


def _unlinked(linkage: Linkage, owner: Owner) -> Iterator[Finding]:
    """Find libraries that are there, but not under the name by which the loader asks: an archive lost its links."""
    for soname, holders in sorted(linkage.by_soname.items()):
        versioned = [file for file in holders if file.name.startswith(f"{soname}.")]
        if not versioned or soname in linkage.by_name:
            continue
        needing = [file for file in linkage.files if soname in file.elf.needed]
        if not needing:
            continue
        path = linkage.host.names.get(soname)
        instead = f"`{path}` of the host answers instead" if path else "nothing answers the loader"
        yield _finding(
            "soname-link-missing",
            versioned[0].path,
            f"there is no file named by its SONAME `{soname}`, needed by {_packages(needing, owner)}: {instead}",
            expected=f"{versioned[0].folder}/{soname}".lstrip("/"),
            actual="no such file or link",
            hint=f"links were lost, by an archive or a copy without them; put the link back, or {REBUILD}",
        )


def _glibc(linkage: Linkage, owner: Owner, glibc: str | None) -> Iterator[Finding]:
    given = version_numbers(glibc or "")
    if given is None:
        return
    beyond: dict[str, dict[str, str]] = defaultdict(dict)
    for file in linkage.files:
        wanted = [need.version for need in file.elf.needs if not need.weak and need.version.startswith("GLIBC_")]
        above = newest(version for version in wanted if (version_numbers(version) or ()) > given)
        if above:
            beyond[owner(file.path)][file.path] = above
    for package, files in sorted(beyond.items()):
        highest = newest(files.values()) or ""
        worst = [path for path, version in files.items() if version == highest]
        yield _finding(
            "glibc-too-old",
            package,
            f"{_count(len(files))} of {package} cannot be loaded with glibc {glibc}: {_some(worst)}",
            expected=highest,
            actual=f"glibc {glibc}",
            hint="lock with the target's glibc in `[host]`, so that an older build is taken, or use a newer system",
        )


def _libstdcxx(linkage: Linkage, owner: Owner) -> Iterator[Finding]:
    """Judge GLIBCXX and CXXABI by what is defined, not by order: these versions have names, too."""
    host, name = linkage.host, "libstdc++.so.6"
    given = set(host.libstdcxx_versions)
    if not given:
        return  # there is none at all: `library-missing`
    for holder in linkage.by_soname.get(name, ()):
        given.update(holder.elf.defines)
    beyond: dict[str, dict[str, str]] = defaultdict(dict)
    for file in linkage.files:
        needs = (need.version for need in file.elf.needs if not need.weak and need.library == name)
        lacking = [v for v in needs if v.startswith(("GLIBCXX_", "CXXABI_")) and v not in given]
        if lacking:
            beyond[owner(file.path)][file.path] = newest(lacking) or lacking[0]
    has = newest(version for version in host.libstdcxx_versions if version.startswith("GLIBCXX_"))
    for package, files in sorted(beyond.items()):
        highest = newest(files.values()) or next(iter(files.values()))
        worst = [path for path, version in files.items() if version == highest]
        yield _finding(
            "libstdcxx-too-old",
            package,
            f"{_count(len(files))} of {package} needs a newer libstdc++ than the one that answers: {_some(worst)}",
            expected=highest,
            actual=f"{host.libstdcxx} defines {has}",
            hint="put a newer libstdc++ into the env or first on its library path; leave the system's alone",
        )


# --- what LD_LIBRARY_PATH takes over ---


@dataclass(frozen=True, kw_only=True, slots=True)
class Shadow:
    """One library of LD_LIBRARY_PATH that goes by a name which the environment also has."""

    name: str
    family: str
    path: str
    ours: tuple[str, ...]
    """Files of the environment with that name or SONAME."""
    takes: tuple[str, ...]
    """Files that need it and get this one: DT_RUNPATH, or no search path at all, comes after LD_LIBRARY_PATH."""
    immune: tuple[str, ...]
    """Files that need it and find the environment's through their own DT_RPATH."""
    preloaded: bool = False
    """True when `import torch` loads the environment's by full path, which settles it for the process."""

    @property
    def verdict(self) -> Literal["taken", "first-loaded", "immune", "opened-by-name"]:
        """`first-loaded`: whoever loads first decides for the process, since one SONAME is loaded once.

        `opened-by-name`: no file names it in DT_NEEDED; whoever opens it at run time without DT_RPATH gets this one.
        """
        if self.takes:
            return "first-loaded" if self.immune or self.preloaded else "taken"
        return "immune" if self.immune else "opened-by-name"


def shadowed_by(folders: Sequence[LibraryFolder], facts: NativeFacts) -> tuple[Shadow, ...]:
    """Say which libraries of the environment LD_LIBRARY_PATH would replace, for whom. The first folder wins.

    Misses the DT_RPATH of whatever loads a file without search path, which may save it.
    """
    linkage = Linkage(facts, HostLibraries(machine=None))
    needing: dict[str, list[NativeFile]] = defaultdict(list)
    for file in linkage.files:
        for name in dict.fromkeys(file.elf.needed):
            needing[name].append(file)
    found: dict[str, Shadow] = {}
    for folder in folders:
        if folder.path == facts.root or folder.path.startswith(f"{facts.root}/"):
            continue
        for name in sorted(folder.names):
            ours = dict.fromkeys([*linkage.by_name.get(name, ()), *(f.path for f in linkage.by_soname.get(name, ()))])
            if name in found or not ours:
                continue
            immune = [file.path for file in needing[name] if linkage.own_rpath_finds(file, name)]
            found[name] = Shadow(
                name=name,
                family=family(name),
                path=f"{folder.path}/{name}",
                ours=tuple(ours),
                takes=tuple(file.path for file in needing[name] if file.path not in set(immune)),
                immune=tuple(immune),
                preloaded=family(name) in facts.preloaded,
            )
    return tuple(found[name] for name in sorted(found))


def _names(facts: NativeFacts) -> frozenset[str]:
    sonames = {file.elf.soname for file in facts.libraries if file.elf.soname}
    links = {path.rpartition("/")[2] for path, real in facts.links.items() if real}
    return frozenset(sonames | links | {file.name for file in facts.libraries})


def _packages(files: Iterable[NativeFile], owner: Owner) -> str:
    return _some(sorted({owner(file.path) for file in files}))


def _some(items: Iterable[str]) -> str:
    said = list(items)
    more = f" and {len(said) - SHOWN:,} more" if len(said) > SHOWN else ""
    return ", ".join(said[:SHOWN]) + more


def _count(number: int) -> str:
    return "1 file" if number == 1 else f"{number:,} files"


def _finding(
    kind: str,
    subject: str,
    message: str,
    *,
    expected: str,
    actual: str,
    hint: str,
    severity: Severity = Severity.ERROR,
) -> Finding:
    return Finding(
        check=FAMILY,
        kind=kind,
        severity=severity,
        subject=subject,
        message=message,
        expected=expected,
        actual=actual,
        hint=hint,
    )
