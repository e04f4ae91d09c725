"""Family `launch_env`: do the variables of a process do what the launch table says, and nothing besides.

Sources: ld.so(8), "LD_LIBRARY_PATH" (an empty element is the current directory); CUDA driver API, error codes 34 and
803; NVIDIA, "CUDA Compatibility" (a compat library is for an older driver only); facts/symptoms.md D01, D03, D14, D15.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from envsmith.checks.hooks import VARIABLES as JUDGED_BY_HOOKS
from envsmith.checks.linking import Shadow
from envsmith.launch import LaunchTable
from envsmith.native import LibraryFolder, version_numbers
from envsmith.report import Finding, Severity

FAMILY: Final = "launch_env"
#: Lists of folders in which an empty element means the current directory.
FOLDER_LISTS: Final = ("LD_LIBRARY_PATH", "PATH")
#: Two libraries of one of these in a process is how training jobs die; another kind of shadow is worth a warning.
#: Source: facts/symptoms.md D13 to D15, facts/verify.md §4.
ONCE: Final = (
    "libnccl", "libcudnn", "libcublas", "libcublasLt", "libnvJitLink", "libcudart", "libnvrtc", "libcusparse",
    "libarrow", "libtorch", "libc10",
)  # fmt: skip
#: What the probe puts in the place of a value that may be a secret.
CUT: Final = "(redacted)"
DRIVER: Final = "libcuda.so.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Surrounding:
    """The variables of one process, and what lies behind those that name folders."""

    environ: Mapping[str, str]
    """Whole for a process of the launch environment, at least the decisive ones elsewhere."""
    folders: tuple[LibraryFolder, ...] = ()
    """What LD_LIBRARY_PATH names."""
    shadows: tuple[Shadow, ...] = ()
    """Libraries of the environment that it would replace."""
    drivers: Mapping[str, str] = field(default_factory=dict)
    """Folder to the version of the libcuda in it, as its file name has it."""
    kernel_driver: str | None = None
    """Version of the kernel's driver."""


def check_launched(table: LaunchTable, wanted: Mapping[str, str], around: Surrounding) -> Iterator[Finding]:
    """Prove that a launched process has what the launch table says.

    Proves that no variable of `unset` is left, that those of `set` have their values, and that required ones are there,
    seen from inside the process, where site hooks have already run. `wanted` is the resolved `set`. Misses what a
    program changes later (the family contexts), and what a folder holds that nothing of the environment is named like.
    """
    for name in sorted({*table.unset} - {*wanted} - {*dict(table.prepend)} - {*JUDGED_BY_HOOKS}):
        if name in around.environ:
            message = f"`{name}` should be unset in every process of this env, but this one has it"
            hint = "a site hook or the vendor's profile sets it: remove its cause"
            yield _error("variable-not-unset", name, message, "not set", around.environ[name], hint)
    for name, value in sorted(wanted.items()):
        actual = around.environ.get(name)
        if actual not in (value, CUT) and name not in table.prepend:
            message = f"`{name}` has another value than the launch table gives it"
            hint = "a site hook or the vendor's profile changes it: remove its cause"
            yield _error("variable-differs", name, message, value, actual or "not set", hint)
    for name in sorted(table.require):
        if not around.environ.get(name):
            message = f"`{name}` is required in every process of this env and is not set"
            hint = "set it in the shell that starts the job, or in the vendor's profile"
            yield _error("variable-missing", name, message, "set", "not set", hint)
    yield from check_folders(around)


def check_shell(table: LaunchTable, around: Surrounding) -> Iterator[Finding]:
    """Say which variables of the calling shell would reach a process that is started without `envsmith run`.

    Values of `set` are not expected there, but another value is what a program gets that somebody starts by hand.
    Variables that the family hooks judges are left to it.
    """
    for name in sorted({*table.unset} - {*JUDGED_BY_HOOKS}):
        if name in around.environ:
            message = f"`{name}` is set, which the launch table forbids"
            hint = f"unset {name}, or start the program through `envsmith run`"
            yield _error("variable-not-unset", name, message, "not set", around.environ[name], hint)
    for name, value in sorted(table.set.items()):
        actual = around.environ.get(name)
        if actual not in (None, value, CUT) and "{" not in value:
            yield Finding(
                check=FAMILY,
                kind="variable-differs",
                severity=Severity.WARNING,
                subject=name,
                message=f"`{name}` has another value than the launch table gives it",
                expected=value,
                actual=actual,
                hint=f"unset {name}, or start every program through `envsmith run`",
            )
    yield from check_folders(around)


def check_folders(around: Surrounding) -> Iterator[Finding]:
    """Judge LD_LIBRARY_PATH, and empty elements of PATH.

    Proves that no element replaces a library of the environment for a library that does not insist on its own
    (DT_RPATH does, DT_RUNPATH does not), that none leads to link-time stubs, that no user-mode driver older than the
    kernel's comes first, and that no element is empty.
    """
    for name in FOLDER_LISTS:
        value = around.environ.get(name)
        if value and "" in value.split(":"):
            where = "at its end" if value.endswith(":") else "at its start" if value.startswith(":") else "in it"
            yield Finding(
                check=FAMILY,
                kind="empty-element",
                severity=Severity.WARNING,
                subject=name,
                message=f"`{name}` has an empty element {where}, which means the current directory",
                actual=value,
                hint=f'write `{name}="$X${{{name}:+:${name}}}"` where it is put together',
            )
        relative = [item for item in (value or "").split(":") if item and not item.startswith(("/", "$"))]
        if relative:
            yield Finding(
                check=FAMILY,
                kind="relative-element",
                severity=Severity.WARNING,
                subject=name,
                message=f"`{name}` has an element that is another folder in every working folder",
                expected="absolute paths",
                actual=", ".join(f"`{item}`" for item in relative),
                hint="write the whole path",
            )
    for folder in around.folders:
        if "stubs" in PurePosixPath(folder.path).parts:
            message = "LD_LIBRARY_PATH leads to stub libraries, which are for linking and answer CUDA error 34"
            hint = "keep stubs in LIBRARY_PATH while compiling, never in LD_LIBRARY_PATH"
            yield _error("libcuda-stub", folder.path, message, None, None, hint)
    yield from _drivers(around)
    yield from _shadows(around.shadows)


def _drivers(around: Surrounding) -> Iterator[Finding]:
    """A user-mode driver older than the kernel's answers 803; a newer one is what compat folders are for.

    All numbers count: libcuda 580.95.05 on kernel driver 580.159.04 did (seen on an H200, 2026-11-30). The first folder
    that has one decides; `launch.driver-library` is such a folder, and what comes behind it is not loaded.
    """
    kernel = version_numbers(around.kernel_driver or "")
    first = next((folder.path for folder in around.folders if DRIVER in folder.names), None)
    found = version_numbers(around.drivers.get(first or "", ""))
    if first is not None and kernel is not None and found is not None and found < kernel:
        yield _error(
            "libcuda-wrong-compat",
            f"{first}/{DRIVER}",
            "LD_LIBRARY_PATH puts an older user-mode CUDA driver before the host's own: expect error 803",
            f"{around.kernel_driver} (the kernel's driver)",
            around.drivers[first],
            "put the folder of the host's own libcuda first, or take this one out; then start a new process",
        )


def _shadows(shadows: Sequence[Shadow]) -> Iterator[Finding]:
    """One finding for each folder, and two where some of its libraries do no harm yet."""
    groups: dict[tuple[str, bool], list[Shadow]] = defaultdict(list)
    for shadow in shadows:
        if shadow.verdict != "immune":
            grave = shadow.verdict in ("taken", "first-loaded") or shadow.family in ONCE
            groups[str(PurePosixPath(shadow.path).parent), grave].append(shadow)
    for (folder, grave), group in sorted(groups.items()):
        names = _some([shadow.name for shadow in group])
        users = dict.fromkeys(path.rsplit("/", 1)[-1] for shadow in group for path in shadow.takes)
        who = f"{_some(list(users))} would load it" if users else "whatever opens it by name would load it"
        yield Finding(
            check=FAMILY,
            kind="library-shadowed",
            severity=Severity.ERROR if grave else Severity.WARNING,
            subject=folder,
            message=f"LD_LIBRARY_PATH puts another {names} before the environment's own; {who}",
            expected=_some([shadow.ours[0] for shadow in group]),
            actual=_some([shadow.path for shadow in group]),
            hint=f"take `{folder}` out of LD_LIBRARY_PATH: the wheels bring their own",
        )


def _some(items: Sequence[str]) -> str:
    return ", ".join(items[:3]) + (f" and {len(items) - 3} more" if len(items) > 3 else "")


def _error(
    kind: str, subject: str, message: str, expected: str | None, actual: str | None, hint: str | None
) -> Finding:
    return Finding(
        check=FAMILY,
        kind=kind,
        severity=Severity.ERROR,
        subject=subject,
        message=message,
        expected=expected,
        actual=actual,
        hint=hint,
    )
