"""Whether the base interpreter of a machine has the packages that the lock rests on."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from envsmith.checks.host_subject import Fitting, found
from envsmith.report import Finding, Severity
from envsmith.rules.situation import Situation


def absent_base(situation: Situation) -> Finding:
    """Say that the Python which an env is laid over is not on the machine."""
    base = situation.env.base
    assert base is not None, "only an env over a base has one"
    return found(
        "base-missing",
        situation.key("base", "python"),
        f"the Python that this env is to be laid over is not on this machine: `{base.python}`",
        hint="check on a machine of the vendor's image, or correct the path",
    )


def check_base(fit: Fitting) -> Iterator[Finding]:
    """Compare full versions, local parts included: `==2.9.0` cannot tell a vendor's build from the community's.

    Protected packages must be what the lock says; another one is a warning. Nothing is said without a list of packages.
    """
    lock = fit.situation.lock
    if lock is None or not fit.packages:
        return
    for package in lock.base:
        there = fit.packages.get(package.name)
        severity = Severity.ERROR if package.protected else Severity.WARNING
        if there is None:
            yield found(
                "base-package-missing",
                package.name,
                f"the lock rests on {package.name} of the base, and the base of this machine has none",
                severity=severity,
                expected=package.version,
                actual="not there",
                hint="start from the image that the stack was locked for, or take a new snapshot and lock again",
            )
        elif package.version and there.version and not _equal(package.version, there.version):
            yield found(
                "base-version-differs",
                package.name,
                f"{package.name} of the base is {there.version} on this machine, the lock rests on {package.version}",
                severity=severity,
                expected=package.version,
                actual=there.version,
                hint="start from the image that the stack was locked for, or take a new snapshot and lock again",
            )


def _equal(a: str, b: str) -> bool:
    try:
        return Version(a) == Version(b)
    except InvalidVersion:
        return a == b
