"""Libraries of the machine that LD_LIBRARY_PATH would put before those of the env's wheels.

LD_LIBRARY_PATH beats the RUNPATH of a wheel's libraries (ld.so(8)), so an older copy of a library that the env ships is
loaded in its place. Source of the two cases that everybody meets: facts/symptoms.md D14 and D15.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from posixpath import normpath

from packaging.version import InvalidVersion, Version

from envsmith.checks.host_subject import LIBRARY_PATH, Fitting, found, listed, numbers
from envsmith.checks.host_tables import cuda_of
from envsmith.hostfacts import LoaderLibrary
from envsmith.native import family
from envsmith.report import Finding, Severity
from envsmith.rules.tables import capability

#: A toolkit's folder by its name: `/usr/local/cuda-12.1/lib64`, `/apps/cuda/11.8/lib64`, `/opt/CUDA/12.4.1/lib`,
#: `/usr/local/cuda-12/lib64`, `/sw/cuda12.1/lib64`.
_TOOLKIT = re.compile(
    r"/cuda(?:toolkit)?(?:[-_/]?v?(?P<version>[0-9]+(?:\.[0-9]+)?)[0-9.]*)?(?:/targets/[^/]+)?/lib(?:64)?\Z",
    re.IGNORECASE,
)
#: The release of a toolkit anywhere in a path: `/usr/local/cuda-12.1/extras/CUPTI/lib64`.
_RELEASE = re.compile(r"/cuda(?:toolkit)?[-_/]?v?(?P<version>[0-9]+(?:\.[0-9]+)?)", re.IGNORECASE)
#: Words beside `nccl` that make a folder one of plugins or tests, which hold no libnccl.so: `aws-ofi-nccl`,
#: `nccl_rdma_sharp_plugin`, `nccl-tests`.
_NOT_THE_LIBRARY = frozenset({"ofi", "plugin", "plugins", "tests", "rdma", "sharp", "net", "tuner"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Shipped:
    """One library that wheels ship."""

    kind: str
    stem: str
    """Its name up to `.so`; parts of it (`libcudnn_ops`) count as it."""
    package: re.Pattern[str]
    """Names of the wheels that ship it."""
    in_toolkit: bool
    """Whether a CUDA toolkit brings it too."""


def _library(kind: str, stem: str, package: str, *, in_toolkit: bool = True) -> Shipped:
    return Shipped(kind=kind, stem=stem, package=re.compile(rf"nvidia-{package}(-cu[0-9]+)?\Z"), in_toolkit=in_toolkit)


#: Of one folder the first that is shadowed names the finding, so what fails first and worst stands first.
#: The number of the SONAME is the major of the wheel's version for all of them (wheels for cu12 and cu13, read).
LIBRARIES = (
    _library("duplicate-native-lib-cudnn", "libcudnn", "cudnn", in_toolkit=False),
    _library("duplicate-native-lib-nccl", "libnccl", "nccl", in_toolkit=False),
    _library("duplicate-native-lib-nvjitlink", "libnvJitLink", "nvjitlink"),
    _library("duplicate-native-lib-cublas", "libcublas", "cublas"),
    _library("duplicate-native-lib-cublas", "libcublasLt", "cublas"),
    _library("duplicate-native-lib-cudart", "libcudart", "cuda-runtime"),
    _library("duplicate-native-lib-cusparse", "libcusparse", "cusparse"),
    _library("duplicate-native-lib-cusolver", "libcusolver", "cusolver"),
    _library("duplicate-native-lib-cufft", "libcufft", "cufft"),
    _library("duplicate-native-lib-curand", "libcurand", "curand"),
    _library("duplicate-native-lib-nvrtc", "libnvrtc", "cuda-nvrtc"),
    _library("duplicate-native-lib-cupti", "libcupti", "cuda-cupti"),
    _library("duplicate-native-lib-cusparselt", "libcusparseLt", "cusparselt", in_toolkit=False),
    _library("duplicate-native-lib-nvshmem", "libnvshmem_host", "nvshmem", in_toolkit=False),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Hit:
    """One library of a folder that goes before the env's."""

    library: Shipped
    path: str
    ours: str
    """What ships it: `nvidia-cudnn-cu12 9.10.2.21`, or `torch 1.12.1`."""
    certain: bool
    """Whether it goes by the very name that the env's has."""


def check_loader(fit: Fitting) -> Iterator[Finding]:
    """Judge LD_LIBRARY_PATH as a process of the env gets it, by what the snapshot found there, else by folder names."""
    elements = fit.library_path
    if any(not element for element in elements):
        yield found(
            "empty-element",
            LIBRARY_PATH,
            "LD_LIBRARY_PATH has an empty element, which means the current directory: whoever starts a process "
            "elsewhere loads from there",
            severity=Severity.WARNING,
            actual=fit.variable(LIBRARY_PATH),
            hint="take out the colon at the start or the end, or two in a row",
        )
    ours = _ours(fit)
    if any("{env}" in element for element in elements[:1]):  # the env's own folders are first
        return
    taken: set[str] = set()
    for folder in dict.fromkeys(normpath(element) for element in elements if element):
        if _is_of_env(fit, folder):
            continue
        rows = [row for row in fit.facts.library if normpath(str(PurePosixPath(row.path).parent)) == folder]
        hits = _seen(rows, ours) if rows else _guessed(fit, folder, ours)
        yield from _of_folder(fit, folder, [hit for hit in hits if hit.library.stem not in taken])
        taken |= {hit.library.stem for hit in hits}


def _is_of_env(fit: Fitting, folder: str) -> bool:
    """Whether a folder is the built env's own, as `launch` and people name it."""
    lock = fit.situation.lock
    return lock is not None and "/site-packages/" in folder and f"/{lock.stack}-{fit.situation.name}/" in folder


def _ours(fit: Fitting) -> dict[str, tuple[str, int | None]]:
    """By stem: what ships the library and the number of its SONAME; torch itself without a package of NVIDIA's."""
    versions = fit.situation.versions()
    ships: dict[str, tuple[str, int | None]] = {}
    for library in LIBRARIES:
        for name, text in sorted(versions.items()):
            if library.package.fullmatch(name):
                ships[library.stem] = f"{name} {text}", _major(text)
    torch = fit.situation.version("torch")
    if not ships and torch is not None and cuda_of(fit.situation):
        ships = {library.stem: (f"torch {torch}", None) for library in LIBRARIES}
    elif not ships and torch is None and fit.needs_torch:
        ships = {library.stem: ("torch", None) for library in LIBRARIES}
    return ships


def _major(text: str) -> int | None:
    try:
        return Version(text).major
    except InvalidVersion:
        return None


def _seen(rows: list[LoaderLibrary], ours: dict[str, tuple[str, int | None]]) -> list[_Hit]:
    """Libraries that the snapshot found in a folder."""
    hits = []
    for row in rows:
        stem = family(row.name)
        library = next((one for one in LIBRARIES if stem == one.stem or stem.startswith(f"{one.stem}_")), None)
        if library and library.stem in ours:
            said, major = ours[library.stem]
            number = re.search(r"\.so\.([0-9]+)", row.name)
            certain = number is None or major is None or int(number[1]) == major
            hits.append(_Hit(library=library, path=row.path, ours=said, certain=certain))
    return hits


def _guessed(fit: Fitting, folder: str, ours: dict[str, tuple[str, int | None]]) -> list[_Hit]:
    """What a folder that nobody looked into holds, by its name: a toolkit's libraries, or one library."""
    hits = []
    toolkit, cuda = _TOOLKIT.search(folder), cuda_of(fit.situation)
    alone = any(_named(folder, one.stem.removeprefix("lib").lower()) is not None for one in LIBRARIES)
    if toolkit and not toolkit["version"] and alone:
        toolkit = None  # `/apps/cudnn/v8.0.3/cuda/lib64`, as NVIDIA packs cuDNN alone
    for library in LIBRARIES:
        if library.stem not in ours:
            continue
        said, _ = ours[library.stem]
        named = _named(folder, library.stem.removeprefix("lib").lower())
        if named is not None and not library.in_toolkit:
            hits.append(_Hit(library=library, path=folder, ours=said, certain=not _is_as_new(named, said)))
        elif library.in_toolkit and (toolkit or named is not None):
            release = toolkit or _RELEASE.search(folder)
            version = numbers(release["version"])[:2] if release and release["version"] else None
            wanted = capability(cuda) if cuda else None
            if library.stem == "libnvJitLink" and min(version or (12,), wanted or (12,)) < (12,):
                continue  # it came with CUDA 12
            if version is None or wanted is None or version[0] == wanted[0]:
                older = version is not None and len(version) == 2 and (wanted is None or version < wanted)
                hits.append(_Hit(library=library, path=folder, ours=said, certain=older))
    return hits


def _named(folder: str, name: str) -> str | None:
    """What follows the name of a library in a path that has it as a word, where its version may stand."""
    parts = PurePosixPath(folder).parts
    for at, part in enumerate(parts):
        words = re.split(r"[-_.0-9]+", part.lower())
        if name in words and _NOT_THE_LIBRARY.isdisjoint(words):
            return "/".join((part[part.lower().index(name) + len(name) :], *parts[at + 1 : at + 2]))
    return None


def _is_as_new(named: str, said: str) -> bool:
    """Whether a path gives the library a version of the shipped one's major that is not older than it."""
    there = re.match(r"[-_/]*v?([0-9]+(?:\.[0-9]+)+)", named, re.IGNORECASE)
    here = numbers(said.rpartition(" ")[2]) if said.startswith("nvidia-") else ()
    if there is None or not here:
        return False
    version = numbers(there[1])
    return version[0] == here[0] and version >= here[: len(version)]


def _of_folder(fit: Fitting, folder: str, hits: list[_Hit]) -> Iterator[Finding]:
    """One finding for cuDNN, one for NCCL and one for what toolkits bring: of each the first names the kind."""
    groups: dict[str, list[_Hit]] = {}
    for hit in sorted(hits, key=lambda hit: LIBRARIES.index(hit.library)):
        groups.setdefault("toolkit" if hit.library.in_toolkit else hit.library.stem, []).append(hit)
    for group in groups.values():
        certain = [hit for hit in group if hit.certain]
        first = (certain or group)[0]
        others = listed(dict.fromkeys(hit.library.stem for hit in (certain or group) if hit is not first))
        yield found(
            first.library.kind,
            f"{LIBRARY_PATH}: {folder}",
            f"LD_LIBRARY_PATH puts the {first.library.stem} of `{folder}` before the one that {first.ours} ships"
            + (f"; so too {others}" if others else "")
            + ("" if certain else ", unless it goes by another name there"),
            severity=Severity.ERROR if certain else Severity.WARNING,
            expected=f"the library of {first.ours}",
            actual=first.path,
            hint="unload the module that adds the folder, or name LD_LIBRARY_PATH under `unset` of the launch table",
        )
