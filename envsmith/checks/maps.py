"""Native libraries as they are really mapped: one copy of each, from the right place, still there, and whose driver."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final

from envsmith.checks.expected import Expected, within
from envsmith.facts import Level, LibcudaAnswer, MappedFile
from envsmith.report import REBUILD, Finding, Severity

FAMILY: Final = "contexts"
#: Libraries with state of their own, of which a process may have one copy only (facts/symptoms.md D13, D14).
SINGLE_INSTANCE: Final = (
    "libcuda", "libcudart", "libnccl", "libcudnn", "libcublas", "libcublasLt", "libnvJitLink", "libarrow", "libstdc++",
    "libtorch",
)  # fmt: skip
#: `libcudart.e8e8b82a.so.12`: tools that bundle libraries into wheels write eight digits of a hash into the name.
_NAME: Final = re.compile(r"(?P<stem>lib.+?)(?P<hash>[-.][0-9a-f]{8})?\.so(?:\.(?P<version>[0-9.]+))?$")
#: Where the loader looks without being told (ld.so(8)).
_DEFAULT_FOLDERS: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib")
#: Folders of files that programs make, map and delete on purpose.
_PASSING: Final = ("/tmp", "/dev", "/var/tmp", "/run")

#: Answers of `cuInit` and what they say: enum CUresult in cuda.h of CUDA 12.8 (read 2026-11-30).
CUDA_RESULTS: Final = {
    3: ("CUDA_ERROR_NOT_INITIALIZED", "the driver was not initialised"),
    34: ("CUDA_ERROR_STUB_LIBRARY", "a stub was loaded instead of the driver's library"),
    46: ("CUDA_ERROR_DEVICE_UNAVAILABLE", "the device is busy or in a mode that forbids a new context"),
    100: ("CUDA_ERROR_NO_DEVICE", "no device is visible"),
    101: ("CUDA_ERROR_INVALID_DEVICE", "a visible device is not valid"),
    802: ("CUDA_ERROR_SYSTEM_NOT_READY", "a service of the system, such as the fabric manager, does not run"),
    803: ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "libcuda and the kernel's driver do not fit each other"),
    804: ("CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "a compat libcuda was loaded on a device that allows none"),
    805: ("CUDA_ERROR_MPS_CONNECTION_FAILED", "the MPS server cannot be reached"),
    999: ("CUDA_ERROR_UNKNOWN", "the driver does not say why"),
}
#: What a machine without a device may answer without anything being wrong.
_NO_DEVICE: Final = (100, 999)


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """What the machine and the env say about libraries, besides the maps."""

    shipped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What `shipped_libraries` made of the manifest."""
    single_instance: tuple[str, ...] = ()
    """The recipe's, besides those that are always."""
    loader: Mapping[str, str] = field(default_factory=dict)
    """Folders of the loader's configuration, each with the file that names it."""
    driver: str | None = None
    """Version of the kernel's driver."""

    @property
    def families(self) -> tuple[str, ...]:
        """All single-instance families."""
        return tuple(dict.fromkeys((*SINGLE_INSTANCE, *self.single_instance)))


def shipped_libraries(paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Libraries by name up to `.so`. A bundled one keeps its hash: it never answers for the plain name."""
    found: dict[str, list[str]] = {}
    for path in paths:
        name = PurePosixPath(path).name
        if _NAME.match(name):
            found.setdefault(name.partition(".so")[0], []).append(path)
    return {name: tuple(sorted(places)) for name, places in found.items()}


def family_of(path: str) -> str | None:
    """The library that a file is a build of: `libcudart` for `libcudart.e8e8b82a.so.12`; None when it is none."""
    match = _NAME.match(PurePosixPath(path).name)
    return match["stem"] if match else None


def check_level_maps(expected: Expected, levels: Sequence[Level], around: Surroundings) -> Iterator[Finding]:
    """Judge the maps of every process of the chain; what several share is said once, with the first of them."""
    said: dict[Finding, list[str]] = {}
    for level in levels:
        for finding in check_maps(expected, level.facts.maps, level.facts.environ, around):
            said.setdefault(finding, []).append(level.name)
    for finding, names in said.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield replace(finding, message=f"{finding.message} (in `{names[0]}`{more})")


def check_maps(
    expected: Expected, maps: Sequence[MappedFile], environ: Mapping[str, str], around: Surroundings
) -> Iterator[Finding]:
    """Judge the files that one process maps as code.

    Proves, for the libraries of `SINGLE_INSTANCE` and the recipe's, that one content is mapped and that it is the
    env's where the env ships one; that no mapped file was replaced under the process; that libcuda is no stub and not
    older than the kernel's driver. Misses libraries that this process has not loaded (yet), other libraries that are
    mapped twice, and a file that was overwritten in place, which no map shows (the files family does).
    """
    yield from check_twice(expected, maps, around)
    yield from check_outside(expected, maps, environ, around)
    yield from check_deleted(expected, maps)
    yield from check_driver_library(maps, around)


def check_twice(expected: Expected, maps: Sequence[MappedFile], around: Surroundings) -> Iterator[Finding]:
    """Prove that no single-instance library is mapped from two files of different content.

    Two copies of the same bytes are silent: torchvision ships the libcudart of its torch, and it works
    (facts/verify.md §4, measured). Files that could not be hashed count as different.
    """
    mapped: dict[str, list[MappedFile]] = {}
    for file in maps:
        family = family_of(file.path)
        if family in around.families:
            mapped.setdefault(family, []).append(file)
    for family, files in sorted(mapped.items()):
        if len(files) < 2 or len({file.sha256 or file.path for file in files}) < 2:
            continue
        yield Finding(
            check=FAMILY,
            kind="library-twice",
            severity=Severity.ERROR,
            subject=family,
            message=f"one process maps {len(files)} different files of `{family}`, which must be there once",
            expected="one file",
            actual=", ".join(expected.relative(file.path) for file in files),
            hint="keep the one that the env ships: look who brings the other (LD_LIBRARY_PATH, a second package)",
        )


def check_outside(
    expected: Expected, maps: Sequence[MappedFile], environ: Mapping[str, str], around: Surroundings
) -> Iterator[Finding]:
    """Prove that a single-instance library that the env ships is not mapped from elsewhere.

    libcuda and libstdc++ belong to the host as long as the env ships none of that very name.
    """
    for file in maps:
        name = PurePosixPath(file.path).name.partition(".so")[0]
        family = family_of(file.path)
        own = around.shipped.get(name)
        if own is None or not _is_of(family, around.families) or within(file.path, expected.allowed()):
            continue
        yield Finding(
            check=FAMILY,
            kind="library-outside",
            severity=Severity.ERROR,
            subject=name,
            message=f"`{name}` is mapped from outside of the env, though it ships one; "
            + _way(file.path, environ, around),
            expected=own[0],
            actual=file.path,
            hint="take the folder out of its cause, or name it under `launch.unset`; then start a new process",
        )


def _is_of(family: str | None, families: Collection[str]) -> bool:
    """Whether a library is one of the families or a part of one: `libcudnn_ops` is a part of `libcudnn`."""
    return family is not None and any(family == one or family.startswith(f"{one}_") for one in families)


def _way(path: str, environ: Mapping[str, str], around: Surroundings) -> str:
    """Who leads the loader to a file, as far as one can see it from outside."""
    folder = str(PurePosixPath(path).parent)
    preloaded = environ.get("LD_PRELOAD", "").replace(":", " ").split()
    if path in preloaded or PurePosixPath(path).name in map(_last, preloaded):
        return "`LD_PRELOAD` names it"
    elements = [element.rstrip("/") for element in environ.get("LD_LIBRARY_PATH", "").split(":") if element]
    if folder in elements:
        return f"`LD_LIBRARY_PATH` holds `{folder}`"
    if folder in around.loader:
        return f"`{around.loader[folder]}` names `{folder}`"
    if within(folder, _DEFAULT_FOLDERS):
        return f"`{folder}` is one of the loader's default folders"
    if elements:
        return f"perhaps an element of `LD_LIBRARY_PATH` is a link to `{folder}`: `{':'.join(elements)}`"
    return "the RPATH of another library, or code that names the file, leads there"


def _last(path: str) -> str:
    return PurePosixPath(path).name


def check_deleted(expected: Expected, maps: Sequence[MappedFile]) -> Iterator[Finding]:
    """Prove that no mapped library was replaced since it was mapped: old and new code would mix in one job."""
    gone = [file.path for file in maps if file.deleted]
    inside = [path for path in gone if within(path, (expected.env_dir,))]
    outside = [path for path in gone if path not in inside and family_of(path) and not within(path, _PASSING)]
    for paths, severity, hint in (
        (inside, Severity.ERROR, f"end the process and start it anew; never change an env in place: {REBUILD}"),
        (outside, Severity.WARNING, "the machine's libraries were updated: restart the process when it may end"),
    ):
        if paths:
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            yield Finding(
                check=FAMILY,
                kind="library-deleted",
                severity=severity,
                subject=expected.relative(paths[0]),
                message=f"the process still runs a file that was deleted or replaced on disk{more}",
                hint=hint,
            )


def check_driver_library(maps: Sequence[MappedFile], around: Surroundings) -> Iterator[Finding]:
    """Prove that the mapped libcuda is no stub and not older than the kernel's driver.

    A compat libcuda is for drivers that are older than it; before a newer one it answers error 803 (facts/symptoms.md
    D01), within one branch too: 580.95.05 on driver 580.159.04 did (measured on an H200, 2026-11-30). Needs a version
    in the file's name and a loaded driver.
    """
    for file in maps:
        if family_of(file.path) != "libcuda":
            continue
        if "stubs" in PurePosixPath(file.path).parts:
            yield _stub(file.path)
        yield from _older(file.path, around)


def _stub(path: str) -> Finding:
    return Finding(
        check=FAMILY,
        kind="libcuda-stub",
        severity=Severity.ERROR,
        subject=path,
        message="the process maps the stub of libcuda, which is there to link against and can do nothing",
        hint="take the `stubs` folder out of LD_LIBRARY_PATH and out of the loader's configuration",
    )


def _older(path: str, around: Surroundings) -> Iterator[Finding]:
    match = _NAME.match(PurePosixPath(path).name)
    version = match["version"] if match and match["version"] and "." in match["version"] else None
    if version is None or around.driver is None or _numbers(version) >= _numbers(around.driver):
        return
    source = around.loader.get(str(PurePosixPath(path).parent))
    yield Finding(
        check=FAMILY,
        kind="libcuda-wrong-compat",
        severity=Severity.ERROR,
        subject=path,
        message="the mapped libcuda is older than the kernel's driver: expect error 803"
        + (f"; `{source}` names its folder" if source else ""),
        expected=around.driver,
        actual=version,
        hint="put the folder of the host driver's own libcuda first in LD_LIBRARY_PATH, or remove the compat folder "
        "from the loader's configuration; unsetting LD_LIBRARY_PATH alone does not help; start a new process",
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def check_libcuda(answer: LibcudaAnswer, around: Surroundings, *, has_device: bool) -> Iterator[Finding]:
    """Judge what a fresh process got from the driver's library.

    Proves that libcuda can be loaded by its name and initialised in the launch environment. Proves nothing about
    kernels, memory or other devices. Without a device only a stub and a library that does not fit are findings.
    """
    if answer.path:
        yield from check_driver_library((MappedFile(path=answer.path, deleted=False),), around)
    if not answer.loaded or answer.error:
        if has_device:
            yield _libcuda(
                "libcuda-missing" if not answer.loaded else "libcuda-init-failed", answer, answer.error or ""
            )
        return
    if answer.init in (0, None) or (not has_device and answer.init in _NO_DEVICE):
        return
    name, says = CUDA_RESULTS.get(answer.init or 0, ("another CUresult", "see the CUDA Driver API reference"))
    yield _libcuda("libcuda-init-failed", answer, f"{answer.init} {name}", says)


def _libcuda(kind: str, answer: LibcudaAnswer, actual: str, says: str = "") -> Finding:
    missing = kind == "libcuda-missing"
    return Finding(
        check=FAMILY,
        kind=kind,
        severity=Severity.ERROR,
        subject=answer.path or "libcuda.so.1",
        message="there is a device, but a new process cannot load the driver's library"
        if missing
        else f"a new process loads the driver's library, but `cuInit` fails{': ' + says if says else ''}",
        expected="0 CUDA_SUCCESS" if not missing else None,
        actual=actual or None,
        hint="give LD_LIBRARY_PATH or the loader's configuration the folder of the host driver's libcuda",
    )
