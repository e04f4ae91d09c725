"""`launch.driver-library = "host"`: the libcuda of the kernel's driver first on the loader's path, and proven there.

A compat libcuda that LD_LIBRARY_PATH or the loader's cache puts first ends in error 803 before a newer driver; clearing
LD_LIBRARY_PATH does not help where the cache names it (facts/symptoms.md D01; seen on an H200, 2026-11-30). So a folder
with nothing but links to the driver's own comes before all of them, whatever the caller's variables say.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envsmith.checks.maps import CUDA_RESULTS
from envsmith.errors import EnvsmithError, HostError, Problem, StepError
from envsmith.facts import LibcudaAnswer
from envsmith.launch import DRIVER_COMPANIONS, DRIVER_LINKS, DriverPlaces
from envsmith.probe.contexts import libcuda_answer
from envsmith.tools.driver import HostDriver, host_driver, link_folder
from envsmith.tools.files import write_atomic

HOST: Final = DriverPlaces()
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
#: The proof is about the library, not about which devices the caller gives to this one process.
_CHOSEN_BY_CALLER: Final = "CUDA_VISIBLE_DEVICES"
_SUCCESS, _NO_DEVICE, _UNKNOWN = 0, 100, 999
_PROOF_BYTES: Final = 65536


@dataclass(frozen=True, kw_only=True, slots=True)
class DriverFolder:
    """The private folder of this machine and user, made."""

    folder: Path
    library: str
    """What its links lead to: a file, no link."""
    version: str
    """Of the kernel's driver."""


def driver_folder(scratch: str, library_path: str, places: DriverPlaces = HOST) -> DriverFolder | None:
    """Make the private folder below `scratch`; None where this machine, or this container, has no NVIDIA driver.

    `library_path` is the LD_LIBRARY_PATH that a process would get without it. A container that is given no device and
    no libcuda still sees the driver of its machine in /proc: there is nothing that could come first, and no error.

    Raises:
        HostError: `driver-library-missing` when there is a device, or a libcuda of another version, and none that fits.
        SupplyError: when the folder cannot be made.
    """
    driver = host_driver(library_path, places)
    has_device = any(Path(node).exists() for node in places.nodes)
    if driver is None:
        if has_device:
            raise _missing("it does not say which version that has", None, places.versions)
        return None
    if driver.library is None:
        if has_device or driver.others:
            raise _no_library(driver)
        return None
    folder = link_folder(Path(scratch), f"driver-{driver.version}", _links(driver.library))
    return DriverFolder(folder=folder, library=driver.library, version=driver.version)


def _links(library: str) -> dict[str, str]:
    """What the folder holds: names to files."""
    beside = {name: os.path.realpath(Path(library).with_name(name)) for name in DRIVER_COMPANIONS}
    return dict.fromkeys(DRIVER_LINKS, library) | {name: file for name, file in beside.items() if Path(file).is_file()}


def _no_library(driver: HostDriver) -> HostError:
    found = f"; found instead: {', '.join(driver.others)}" if driver.others else ""
    return _missing(f"none was found{found}", f"libcuda.so.{driver.version}", driver.looked)


def _missing(what: str, expected: str | None, looked: tuple[str, ...]) -> HostError:
    return HostError(
        Problem(
            code="driver-library-missing",
            message=f"`launch.driver-library` asks for the libcuda of this machine's NVIDIA driver, but {what}",
            where=", ".join(looked) or None,
            expected=expected,
            hint="give LD_LIBRARY_PATH the folder of the driver's libcuda, or mount the driver's libraries of the host "
            "into the container (NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
        )
    )


def prove_driver_library(
    driver: DriverFolder, python: Path, environment: Mapping[str, str], *, places: DriverPlaces = HOST
) -> None:
    """See that a fresh process of `python` maps this library and that `cuInit` answers 0 there.

    `environment` is that of the process which shall start. Asked once for each boot, driver, file and folder: a
    proof beside the folder says that it was. An answer that depends on more (no device is visible) is not kept.

    Raises:
        HostError: `driver-library-unproven`.
        StepError: `program-missing`.
    """
    proof = driver.folder.with_name(f"{driver.folder.name}.proof")
    facts = _proven(driver)
    if facts and _read(proof) == facts:
        return
    asked = {name: value for name, value in environment.items() if name != _CHOSEN_BY_CALLER}
    try:
        answer = libcuda_answer(python, asked)
    except StepError as error:
        if error.problems[0].code != "program-timeout":
            raise
        raise _unproven(driver, error.problems[0].message) from error
    if answer.path != driver.library or answer.error or not _accepted(answer, places):
        raise _unproven(driver, _words(answer))
    if facts and answer.init == _SUCCESS:
        with contextlib.suppress(EnvsmithError):  # without a proof it is only asked again
            write_atomic(proof, json.dumps(facts) + "\n", mode=0o600)


def _accepted(answer: LibcudaAnswer, places: DriverPlaces) -> bool:
    """No device is no failure of the library; without a device's file some drivers answer that they do not know why."""
    has_device = any(Path(node).exists() for node in places.nodes)
    return answer.init in (_SUCCESS, _NO_DEVICE) or (answer.init == _UNKNOWN and not has_device)


def _words(answer: LibcudaAnswer) -> str:
    if not answer.loaded:
        return answer.error or "it cannot be loaded"
    name, says = CUDA_RESULTS.get(answer.init or 0, ("CUDA_SUCCESS" if answer.init == 0 else "another CUresult", ""))
    said = answer.error or f"{answer.init} {name}" + (f" ({says})" if says else "")
    return f"{said}, from {answer.path}"


def _unproven(driver: DriverFolder, actual: str) -> HostError:
    return HostError(
        Problem(
            code="driver-library-unproven",
            message="the host driver's libcuda comes first in LD_LIBRARY_PATH, but a fresh process does not prove it",
            where=str(driver.folder),
            expected=f"0 CUDA_SUCCESS, from {driver.library}",
            actual=actual,
            hint="803: the driver was replaced and not loaded again; 802: a service of the machine does not run; "
            "another file: LD_PRELOAD or the interpreter's RPATH leads there; see the administrator of the machine",
        )
    )


def _proven(driver: DriverFolder) -> dict[str, object] | None:
    """What a proof holds for; None where the machine does not say when it was booted."""
    try:
        boot = BOOT_ID.read_text(encoding="ascii").strip()
        seen = Path(driver.library).stat()
    except (OSError, ValueError):
        return None
    return {
        "boot": boot,
        "driver": driver.version,
        "library": driver.library,
        "stat": [seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns],
        "folder": str(driver.folder),
    }


def _read(proof: Path) -> object:
    """A proof that nobody else can have written; None for anything else."""
    try:
        descriptor = os.open(proof, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            seen = os.fstat(descriptor)
            if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o022:
                return None
            return json.loads(stream.read(_PROOF_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
