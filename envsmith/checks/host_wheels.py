"""Whether the machine's C library, architecture and Python can load what the lock names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from envsmith.checks.host_subject import Fitting, found, listed, numbers
from envsmith.checks.host_tables import cuda_of
from envsmith.lock import Wheel
from envsmith.native import newest
from envsmith.report import Finding, Severity
from envsmith.target import Target

#: Wheels of one kind of finding that are named one by one; the rest is counted.
SHOWN = 10
#: PEP 600, "Legacy manylinux tags".
_LEGACY = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}


def check_wheels(fit: Fitting) -> Iterator[Finding]:
    """Hold architecture, kernel and glibc against the recipe's class, the tags of wheels and what their files need."""
    arch, wanted = fit.arch, fit.situation.host.arch
    if arch and arch != wanted:
        yield found(
            "host-arch-differs",
            "host.arch",
            f"the recipe is for {wanted}, this machine is {arch}: no wheel with native code would load",
            expected=wanted,
            actual=arch,
            hint="take or make a stack for this architecture and lock it",
        )
        return
    yield from _kernel(fit)
    yield from _driver_class(fit)
    yield from _glibc(fit)
    yield from _python(fit)


def _kernel(fit: Fitting) -> Iterator[Finding]:
    said, kernel = fit.situation.host.kernel, re.match(r"[0-9]+(\.[0-9]+)*", fit.facts.kernel or "")
    if said and kernel and not SpecifierSet(said).contains(Version(kernel[0])):
        yield found(
            "kernel-outside-class",
            "host.kernel",
            f"the recipe is for Linux {said}, this machine runs {fit.facts.kernel}",
            expected=said,
            actual=fit.facts.kernel,
            hint="a container shares this kernel, so take another machine, or widen `kernel` when that is meant",
        )


def _driver_class(fit: Fitting) -> Iterator[Finding]:
    said = fit.situation.host.driver
    if said and fit.driver and not SpecifierSet(said).contains(Version(fit.driver)):
        proved = fit.proof(cuda_of(fit.situation)) is not None
        yield found(
            "driver-outside-class",
            "host.driver",
            f"the recipe is for driver {said}, this machine has {fit.driver}",
            severity=Severity.WARNING if proved else Severity.ERROR,
            expected=said,
            actual=fit.driver,
            hint="take the stack that is made for this driver, or widen `driver` when that is meant",
        )


def _glibc(fit: Fitting) -> Iterator[Finding]:
    lock, glibc = fit.situation.lock, fit.glibc
    if glibc is None:
        return
    if lock is None:
        if numbers(fit.situation.host.glibc) > numbers(glibc):
            yield _below_class(fit, glibc, Severity.ERROR)
        return
    target = Target(python=lock.target.python, arch=lock.target.arch, glibc=glibc)
    tagged = [wheel for wheel in lock.wheels if not _fits(wheel, target)]
    yield from _tags(tagged, glibc)
    needing = [wheel for wheel in lock.wheels if wheel not in tagged]
    native = [(wheel, *need) for wheel in needing if (need := _need(fit, wheel, glibc))]
    for wheel, file, version in native[:SHOWN]:
        yield found(
            "glibc-too-old",
            file,
            f"`{file}` of {wheel.name} {wheel.version} needs GLIBC_{version}, this machine has glibc {glibc}",
            expected=version,
            actual=glibc,
            hint=f"build it on a machine with glibc {glibc} or older, or run in a container with {version} or newer",
        )
    if len(native) > SHOWN:
        yield found(
            "glibc-too-old", "host.glibc", f"{len(native) - SHOWN:,} more wheels need a newer glibc", hint="as above"
        )
    if not tagged and not native and numbers(fit.situation.host.glibc) > numbers(glibc):
        yield _below_class(fit, glibc, Severity.WARNING)


def _tags(wheels: list[Wheel], glibc: str) -> Iterator[Finding]:
    ranked = sorted(wheels, key=lambda wheel: (-wheel.size, wheel.name))
    for wheel in ranked[:SHOWN]:
        needs = _tag_needs(wheel)
        yield found(
            "manylinux-mismatch",
            wheel.filename,
            f"{wheel.name} {wheel.version} is a wheel for {_platform(wheel)}, and this machine has glibc {glibc}",
            expected=f"glibc {needs} or newer" if needs else _platform(wheel),
            actual=glibc,
            hint="use another base image or a container with a newer glibc, or lock for this machine with "
            f'`glibc = "{glibc}"`; another file name would not change what is inside',
        )
    if len(ranked) > SHOWN:
        left = [wheel.name for wheel in ranked[SHOWN:]]
        yield found(
            "manylinux-mismatch",
            "host.glibc",
            f"{len(left):,} more wheels are for a newer glibc: {listed(left)}",
            actual=glibc,
            hint="as above",
        )


def _below_class(fit: Fitting, glibc: str, severity: Severity) -> Finding:
    return found(
        "glibc-below-class",
        "host.glibc",
        f"the recipe is for glibc {fit.situation.host.glibc} or newer, this machine has {glibc}",
        severity=severity,
        expected=fit.situation.host.glibc,
        actual=glibc,
        hint=f'use a container with a newer glibc, or lock for `glibc = "{glibc}"` and see what is left',
    )


def _fits(wheel: Wheel, target: Target) -> bool:
    platforms = _platforms(wheel)
    return not platforms or bool(platforms & {"any", *target.platforms()})


def _platforms(wheel: Wheel) -> frozenset[str]:
    try:
        return frozenset(tag.platform for tag in parse_wheel_filename(wheel.filename)[3])
    except InvalidWheelFilename:
        return frozenset()


def _platform(wheel: Wheel) -> str:
    return ", ".join(sorted(_platforms(wheel)))


def _tag_needs(wheel: Wheel) -> str | None:
    """The oldest glibc that one of its tags admits."""
    versions = [
        ".".join(m.groups()) for one in _platforms(wheel) if (m := re.match(r"manylinux_([0-9]+)_([0-9]+)_", one))
    ]
    versions += [_LEGACY[one.partition("_")[0]] for one in _platforms(wheel) if one.partition("_")[0] in _LEGACY]
    return min(versions, key=numbers, default=None)


def _need(fit: Fitting, wheel: Wheel, glibc: str) -> tuple[str, str] | None:
    """The file with the highest need, and what it needs, when the machine has less."""
    highest: tuple[str, str] | None = None
    for file in fit.native.get(wheel.filename, ()):
        wanted = [need.version for need in file.elf.needs if need.version.startswith("GLIBC_2") and not need.weak]
        version = (newest(wanted) or "").removeprefix("GLIBC_")
        if version and numbers(version) > numbers(highest[1] if highest else glibc):
            highest = file.path, version
    return highest


def _python(fit: Fitting) -> Iterator[Finding]:
    """The interpreter of the base must be of the env's minor version."""
    env, there = fit.situation.env, fit.python
    if env.base is None or there is None:
        return
    minor = ".".join(there.version.split(".")[:2])
    if minor != env.python_minor:
        yield found(
            "base-python-differs",
            fit.situation.key("base", "python"),
            f"the env is for Python {env.python_minor}, the base `{there.executable}` is {there.version}",
            expected=env.python_minor,
            actual=there.version,
            hint="name the interpreter that the stack was locked for, or take a new snapshot and lock again",
        )
