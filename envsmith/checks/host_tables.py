"""Outside facts about drivers and devices as typed values, and the CUDA release of an env."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from envsmith.checks.host_subject import Numbers, numbers
from envsmith.data import table
from envsmith.hostfacts import Accelerator
from envsmith.rules.situation import Situation, is_vendor_build
from envsmith.rules.tables import Capability, Compat, capability, compat_libraries

#: Wheels whose version is that of the CUDA release they belong to.
_RUNTIMES = re.compile(r"nvidia-cuda-runtime(-cu[0-9]+)?|cuda-toolkit")
_OF_MAJOR = re.compile(r"nvidia-[a-z-]+-cu([0-9]+)")


@cache
def floors() -> Mapping[int, str]:
    """The oldest kernel driver for programs of a CUDA major, to the patch level where that is sourced."""
    return {row["cuda-major"]: row.get("exact", row["floor"]) for row in table("torch-builds")["driver"]}


def cuda_major(driver: Numbers) -> int | None:
    """The newest CUDA major whose programs a libcuda of this version runs by itself; None for one before CUDA 11."""
    known = [major for major, floor in floors().items() if driver and numbers(floor)[: len(driver)] <= driver]
    return max(known, default=None)


def library_of_branch(branch: int) -> tuple[str, Compat] | None:
    """The compat library that was built from a driver branch, with its CUDA release; None when no table has it."""
    return next(((cuda, one) for cuda, one in compat_libraries().items() if one.driver == branch), None)


def libraries_for(cuda: str, branch: int) -> tuple[str, ...]:
    """CUDA releases whose compat library runs programs of a release on a kernel driver branch, as the tables know."""
    major = capability(cuda)[0]
    known = [
        release
        for release, one in compat_libraries().items()
        if branch in one.branches and release.startswith(f"{major}.")
    ]
    return tuple(sorted(known, key=capability))


def is_data_centre(device: Accelerator) -> bool | None:
    """Whether forward compatibility exists for a device: as the snapshot says, else by its name; None when unknown."""
    if device.data_centre is not None:
        return device.data_centre
    for row in table("devices")["line"]:
        if re.search(row["name"], device.name, re.IGNORECASE):
            return bool(row["data-centre"])
    return None


def is_of_nvidia(device: Accelerator) -> bool:
    """Whether the name of a device says that it is NVIDIA's."""
    named = re.search(r"nvidia|quadro|\bgrid\b|\bRTX\b", device.name, re.IGNORECASE)
    return bool(named) or any(re.search(row["name"], device.name, re.IGNORECASE) for row in table("devices")["line"])


def cuda_too_old(device: Capability, cuda: str) -> str | None:
    """The first CUDA release that makes code for a device, when that is newer than the given one."""
    for row in table("devices")["first"]:
        if row["major"] == device[0] and capability(cuda) < capability(row["cuda"]):
            return str(row["cuda"])
    return None


def cuda_too_new(device: Capability, cuda: str) -> str | None:
    """The CUDA release from which no code is made for a device any more, when the given one is not older."""
    for row in table("devices")["dropped"]:
        if device < capability(row["below"]) and capability(cuda) >= capability(row["cuda"]):
            return str(row["cuda"])
    return None


def cuda_of(situation: Situation) -> str | None:
    """The CUDA release of an env's torch, as `12.8`; `12.0` where only the major is known. None for other builds.

    Torch's local version says it, else the table, else the wheels of NVIDIA's libraries that the lock names.
    """
    version = situation.version("torch")
    if version is None or is_vendor_build(version) or (version.local or "").startswith("cpu"):
        return None
    said = situation.torch_cuda()
    if said:
        return said
    versions = situation.versions()
    for name, text in sorted(versions.items()):
        release = re.match(r"[0-9]+\.[0-9]+", text)
        if _RUNTIMES.fullmatch(name) and release:
            return release[0]
    majors = {int(match[1]) for name in versions if (match := _OF_MAJOR.fullmatch(name))}
    return f"{max(majors)}.0" if majors else None
