"""The tables of outside facts as typed values; the facts and their sources are in `envsmith/data`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from envsmith.data import table

Capability = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchBuild:
    """What the wheel of one torch release holds."""

    cuda: str
    arch: tuple[Capability, ...]
    cxx11_abi: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Compat:
    """Where the user-mode library of a CUDA release runs."""

    driver: int | None
    """The driver branch it was built from, where known."""
    branches: tuple[int, ...]
    complete: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class BadPin:
    """A version that was seen to fail beside others."""

    package: str
    versions: SpecifierSet
    beside: Mapping[str, SpecifierSet]
    error: bool
    why: str
    hint: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Floor:
    """A model type, or a wheel for an architecture, and what it needs."""

    subject: str
    package: str
    versions: SpecifierSet
    glibc: str | None = None
    """For a wheel: its oldest glibc."""


def capability(text: str) -> Capability:
    """`8.6` as numbers that compare."""
    major, minor = text.split(".")
    return int(major), int(minor)


@cache
def torch_builds() -> Mapping[str, TorchBuild]:
    """By release, as `2.10.0`."""
    return {
        row["torch"]: TorchBuild(
            cuda=row["cuda"], arch=tuple(capability(one) for one in row["arch"]), cxx11_abi=row["cxx11-abi"]
        )
        for row in table("torch-builds")["build"]
    }


@cache
def torch_releases() -> Mapping[str, str]:
    """The CUDA release of torch releases whose wheel nobody opened, by their metadata."""
    return {row["torch"]: row["cuda"] for row in table("torch-builds")["release"]}


@cache
def driver_floors() -> Mapping[int, Version]:
    """The oldest kernel driver for programs of a CUDA major."""
    return {row["cuda-major"]: Version(row["floor"]) for row in table("torch-builds")["driver"]}


@cache
def compat_libraries() -> Mapping[str, Compat]:
    """By CUDA release, as `12.8`."""
    return {
        row["cuda"]: Compat(driver=row.get("driver"), branches=tuple(row["branches"]), complete=row["complete"])
        for row in table("torch-builds")["compat"]
    }


@cache
def bad_pins() -> tuple[BadPin, ...]:
    """In the order of the file."""
    return tuple(
        BadPin(
            package=row["package"],
            versions=SpecifierSet(row["versions"]),
            beside={name: SpecifierSet(text) for name, text in row["with"].items()},
            error=row["severity"] == "error",
            why=row["why"],
            hint=row["hint"],
            source=row["source"],
        )
        for row in table("known-bad-pins")["pin"]
    )


@cache
def model_types() -> tuple[Floor, ...]:
    """Which releases know a model type."""
    return tuple(
        Floor(subject=row["type"], package=row["package"], versions=SpecifierSet(row["versions"]))
        for row in table("model-types")["model"]
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantisation:
    """A way in which weights are stored smaller, and what loads them."""

    capability: Capability | None
    """The lowest that the engine takes it on."""
    package: str | None
    """What transformers needs beside itself."""


@cache
def quantisations() -> Mapping[str, Quantisation]:
    """By `quant_method`, as model configurations spell it, with hyphens."""
    return {
        row["method"]: Quantisation(
            capability=capability(row["capability"]) if "capability" in row else None, package=row.get("package")
        )
        for row in table("model-types")["quantisation"]
    }


@cache
def shared_memory() -> Mapping[Capability, tuple[int, int]]:
    """Bytes of shared memory that one block can have at most, and what kernels ask for, by compute capability."""
    return {
        capability(one): (row["bytes"], row["asked"]) for row in table("devices")["shared"] for one in row["capability"]
    }


@cache
def wheel_floors() -> tuple[Floor, ...]:
    """Which wheels need a newer glibc than their packages suggest; the subject is the architecture."""
    return tuple(
        Floor(
            subject=row["arch"],
            package=row["package"],
            versions=SpecifierSet(row["versions"]),
            glibc=row["glibc"],
        )
        for row in table("wheel-floors")["wheel"]
    )


@cache
def stdlib_floors() -> Mapping[str, Version]:
    """The first Python of names such as `enum.StrEnum`."""
    return {name: Version(row["python"]) for row in table("stdlib-floors")["floor"] for name in row["names"]}
