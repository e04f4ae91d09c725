"""Native libraries as plain values: what ELF files say about themselves, and what a host gives.

Read by tools/elf.py, tools/devicecode.py and tools/hostlibs.py, judged by envsmith/checks/native.py. No I/O here.

Sources: System V ABI, chapters 4 and 5; ld.so(8); elf/dl-load.c of glibc 2.36 (order of the search, empty entries);
CUDA C++ Programming Guide, "Compute Capabilities" and "Family-Specific Features" (all read 2026-11-30).
"""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

#: `libx.so`, `libx.so.1.2`, `libcrypto-ray.so.1.1.1k`.
LIBRARY_NAME = re.compile(r"\.so(\.\d\w*)*$")

#: What auditwheel and its like put before the suffix: `libgomp-a34b3233.so.1`, `libcudart.e8e8b82a.so.12`.
_HASH = re.compile(r"[-.][0-9a-f]{8}(?=\.|$)")
_TRAILING_VERSION = re.compile(r"-\d+(\.\d+)*$")
_ARCH = re.compile(r"(\d{2,3})([af]?)\Z")

#: glibc gives a feature this name instead of a number. Source: NEWS of glibc 2.36, read 2026-11-30.
_NAMED_GLIBC = {"GLIBC_ABI_DT_RELR": (2, 36)}

#: What nvcc compiles for when nobody names an architecture: sm_52 up to CUDA 12, sm_75 in CUDA 13.
#: Source: nvcc manual, option `--gpu-architecture`, read 2026-11-30.
_DEFAULT_TARGETS = ("52", "75")


#: What `damaged` says of libraries that packages carry along for macOS and Windows.
FOREIGN = "it is for another operating system"


class VersionNeed(NamedTuple):
    """One symbol version that a file wants from a library."""

    library: str
    version: str
    weak: bool


class DeviceImage(NamedTuple):
    """Device code of one kind and architecture in a file."""

    kind: str
    """`sm` for machine code, `ptx` for what the driver compiles; `kind8` and the like for what is neither."""
    arch: str
    """`80`, `90a` (that device only), `100f` (that family only)."""
    entries: int
    """How many of that kind the file holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Elf:
    """What the header and the dynamic section of a file say."""

    machine: int = 0
    """e_machine; 62 is x86_64, 183 aarch64."""
    bits: int = 0
    soname: str | None = None
    needed: tuple[str, ...] = ()
    rpath: str | None = None
    """DT_RPATH, unsplit; without effect where there is a DT_RUNPATH, even an empty one."""
    runpath: str | None = None
    interp: str | None = None
    needs: tuple[VersionNeed, ...] = ()
    defines: tuple[str, ...] = ()
    """Symbol versions that the file defines."""
    damaged: str | None = None
    """Why the file is no whole ELF file; of the other fields only machine and bits may then be known."""

    @property
    def own_rpath(self) -> str:
        """DT_RPATH where it counts: before LD_LIBRARY_PATH, and only without DT_RUNPATH."""
        return (self.rpath or "") if self.runpath is None else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NativeFile:
    """One candidate of an environment that is an ELF file, or should be one."""

    path: str
    """POSIX, relative to the environment directory."""
    size: int
    sha256: str | None = None
    """None where nobody read the whole file."""
    elf: Elf
    device: tuple[DeviceImage, ...] = ()
    device_complete: bool = True
    """False where the walk over the device code met something it does not know, or its limit."""

    @property
    def folder(self) -> str:
        """Where it lies."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """Its file name."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class OutsideFolder:
    """A folder outside of the environment that some RPATH or RUNPATH names."""

    path: str
    exists: bool
    names: frozenset[str] = frozenset()
    """File names of libraries in it."""
    writable_by: str | None = None
    """Who besides root and the owner of the environment could put a library there; None when nobody."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NativeFacts:
    """The native side of one environment."""

    root: str
    """Absolute, without links."""
    machine: int | None
    """e_machine of its interpreter; None when that could not be read."""
    files: tuple[NativeFile, ...]
    """Sorted by path."""
    links: Mapping[str, str | None] = field(default_factory=dict)
    """Links by path: what they lead to, relative when inside, absolute when outside, None when to nothing."""
    outside: tuple[OutsideFolder, ...] = ()
    preloaded: frozenset[str] = frozenset()
    """Families that `import torch` of this env loads by full path, before whoever needs them asks the loader."""

    @property
    def libraries(self) -> tuple[NativeFile, ...]:
        """Whole ELF files for the machine of the interpreter: those a process of this env could map."""
        machine = self.machine or _most_common(file.elf.machine for file in self.files if not file.elf.damaged)
        return tuple(f for f in self.files if not f.elf.damaged and f.elf.machine == machine)


@dataclass(frozen=True, kw_only=True, slots=True)
class LibraryFolder:
    """One element of LD_LIBRARY_PATH."""

    path: str
    exists: bool
    names: frozenset[str] = frozenset()
    """File names of libraries for this machine."""
    empty: bool = False
    """True for an element without characters, which means the current directory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostLibraries:
    """What the loader of this host would find without the help of the environment."""

    machine: int | None
    names: Mapping[str, str] = field(default_factory=dict)
    """File names that the loader's cache and default folders answer, with the path."""
    default_folders: tuple[str, ...] = ()
    library_path: tuple[LibraryFolder, ...] = ()
    beside_python: frozenset[str] = frozenset()
    """Libraries of the base interpreter; a process has its libpython already."""
    glibc: str | None = None
    """`2.36`; the newest GLIBC version that its libc.so.6 defines."""
    libstdcxx: str | None = None
    """Path of the libstdc++.so.6 that the loader would take."""
    libstdcxx_versions: frozenset[str] = frozenset()
    """GLIBCXX and CXXABI versions which that library defines."""


@cache
def family(name: str) -> str:
    """Name a library without hashes and versions: `libcudart.e8e8b82a.so.12` and `libcudart.so.13` are `libcudart`."""
    stem = _HASH.sub("", name.rpartition("/")[2])
    stem = stem.split(".so", 1)[0]
    return _TRAILING_VERSION.sub("", stem)


def in_family(name: str, families: Iterable[str]) -> str | None:
    """Return the family a library belongs to; `libcudnn_ops` and `libcudnn` are one."""
    stem = family(name)
    return next((f for f in families if stem == f or stem.startswith(f"{f}_")), None)


def version_numbers(text: str) -> tuple[int, ...] | None:
    """Order `GLIBC_2.34`, `GLIBCXX_3.4.30` or `2.34` as numbers; None where there are none, as in GLIBC_PRIVATE."""
    if text in _NAMED_GLIBC:
        return _NAMED_GLIBC[text]
    tail = text.rpartition("_")[2]
    parts = tail.split(".")
    return (
        tuple(int(part) for part in parts) if all(p.isascii() and p.isdigit() and len(p) < 9 for p in parts) else None
    )


def newest(versions: Iterable[str]) -> str | None:
    """Return the highest of some symbol versions of one prefix."""
    numbered = [(number, text) for text in versions if (number := version_numbers(text)) is not None]
    return max(numbered)[1] if numbered else None


def search_folders(path: str | None, origin: str, root: str) -> tuple[str, ...]:
    """Split an RPATH or RUNPATH into folders: relative to the environment when inside, else absolute.

    `origin` is the folder of the file, relative. An empty path is ignored by glibc, an empty element of a longer one
    means the current directory (tried with glibc 2.36, 2026-11-30), like every relative one: `.` stands for those.
    """
    if not path:
        return ()
    found: dict[str, None] = {}
    for element in path.split(":"):
        for folder in _expanded(element, f"{root}/{origin}"):
            found.setdefault(_placed(folder, root), None)
    return tuple(found)


def runs_on(image: DeviceImage, capability: tuple[int, int]) -> bool:
    """Say whether a device of a compute capability can use some device code.

    Machine code runs on the same major and an equal or higher minor; PTX on everything as new or newer. The suffix `a`
    ties either to exactly its device, `f` to its family, which is the same major.
    """
    found = _ARCH.match(image.arch)
    if not found or image.kind not in ("sm", "ptx"):
        return False
    number, suffix = int(found[1]), found[2]
    built = (number // 10, number % 10)
    if suffix == "a":
        return built == capability
    if suffix == "f" or image.kind == "sm":
        return built[0] == capability[0] and built[1] <= capability[1]
    return built <= capability


def judged_images(file: NativeFile) -> tuple[DeviceImage, ...]:
    """Return the device code that says where a library runs; none where it cannot be told.

    A lone image for the compiler's default target is a stub: libcufft 11.3 has one of sm_52 and keeps its real kernels,
    for every device, in another section (seen 2026-11-30).
    """
    images = tuple(image for image in file.device if image.kind in ("sm", "ptx"))
    lone = sum(image.entries for image in images) == 1 and images[0].arch in _DEFAULT_TARGETS
    return () if lone or not file.device_complete else images


def duplicates(facts: NativeFacts) -> dict[str, tuple[NativeFile, ...]]:
    """Return every SONAME that several files carry, with those files."""
    groups: dict[str, list[NativeFile]] = defaultdict(list)
    for file in facts.libraries:
        if file.elf.soname and file.elf.soname.startswith("lib"):
            groups[file.elf.soname].append(file)
    return {soname: tuple(group) for soname, group in sorted(groups.items()) if len(group) > 1}


def same_bytes(files: Iterable[NativeFile]) -> bool:
    """Say whether files are copies of one another; where digests are not known, sizes decide."""
    group = list(files)
    if any(file.sha256 is None for file in group):
        return len({file.size for file in group}) <= 1
    return len({file.sha256 for file in group}) <= 1


def stale_rpaths(facts: NativeFacts) -> dict[str, tuple[str, ...]]:
    """Return absolute search folders outside of the environment that do not exist here, with the files naming them."""
    gone = {folder.path for folder in facts.outside if not folder.exists}
    naming = outside_folders(facts.files, facts.root)
    return {path: files for path, files in sorted(naming.items()) if path in gone}


def searching_here(facts: NativeFacts) -> tuple[NativeFile, ...]:
    """Return the files that search the current directory, by an empty or relative element of their path."""

    def searched(file: NativeFile) -> tuple[str, ...]:
        return search_folders(file.elf.own_rpath or file.elf.runpath, file.folder, facts.root)

    return tuple(file for file in facts.files if "." in searched(file))


def outside_folders(files: Iterable[NativeFile], root: str) -> dict[str, tuple[str, ...]]:
    """Return the folders outside of the environment that files search because an absolute path names them."""
    naming: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for path in (file.elf.own_rpath, file.elf.runpath or ""):
            absolute = ":".join(part for part in path.split(":") if part.startswith("/"))
            for folder in search_folders(absolute, file.folder, root):
                if folder.startswith("/"):
                    naming[folder].append(file.path)
    return {folder: tuple(paths) for folder, paths in naming.items()}


def _expanded(element: str, origin: str) -> tuple[str, ...]:
    for token, value in (("ORIGIN", origin), ("PLATFORM", "")):
        element = element.replace(f"${{{token}}}", value).replace(f"${token}", value)
    if "$LIB" in element or "${LIB}" in element:
        # glibc knows one of these, set when it was built; the others do not exist there.
        return tuple(element.replace("${LIB}", lib).replace("$LIB", lib) for lib in ("lib64", "lib"))
    return (element,)


def _placed(folder: str, root: str) -> str:
    if not folder.startswith("/"):
        return "."
    path = posixpath.normpath(folder).replace("//", "/", 1)
    if path == root:
        return ""
    return path[len(root) + 1 :] if path.startswith(f"{root}/") else path


def _most_common(machines: Iterable[int]) -> int | None:
    counts: dict[int, int] = defaultdict(int)
    for machine in machines:
        counts[machine] += 1
    return max(counts, key=lambda machine: (counts[machine], machine)) if counts else None
