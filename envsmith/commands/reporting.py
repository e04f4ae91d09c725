"""Completing a report with what a reader needs to judge it: what was verified, how much of it, which packages."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from packaging.utils import canonicalize_name

from envsmith import __version__
from envsmith.commands.depth import Examination
from envsmith.commands.envs import shown
from envsmith.commands.subject import Subject
from envsmith.plan import megabytes
from envsmith.report import Finding, Package, Report
from envsmith.tools.interpreter import machine

#: What a page shows as a figure of its own; longer words stand with the environment.
TILE_COLUMNS = 20


def completed(report: Report, subject: Subject, examination: Examination) -> Report:
    """Add environment, figures and packages to a report."""
    said = figures(examination)
    long = {name: words for name, words in said.items() if len(words) > TILE_COLUMNS}
    return replace(
        report,
        environment={**_environment(subject), **long},
        figures={name: words for name, words in said.items() if name not in long},
        packages=tuple(_packages(subject, examination, report.findings)),
        contexts=examination.contexts,
    )


def figures(examination: Examination) -> dict[str, str]:
    """How much was looked at, for people."""
    said = {}
    if examination.files:
        said["files"] = f"{examination.files:,}"
        said["read"] = megabytes(examination.hashed_bytes)
    if examination.trusted_bytes:
        said["trusted by the stat index"] = megabytes(examination.trusted_bytes)
    return said | {name: str(value) for name, value in examination.figures.items()}


def _environment(subject: Subject) -> dict[str, str]:
    arch, glibc = machine()
    said = {"directory": shown(subject.directory), "Python": subject.python}
    if subject.receipt is not None:
        said |= {
            "built": f"{subject.receipt.built_at} by envsmith {subject.receipt.envsmith}",
            "fingerprint": subject.receipt.fingerprint,
            "lock": f"sha256:{subject.receipt.lock_sha256}",
            "portable files": f"sha256:{subject.receipt.portable}",
        }
    else:
        said["made by"] = "another tool; its files are held against their own RECORDs"
    said["host"] = f"{platform.node()}, Linux {platform.release()}, {arch}, glibc {glibc or 'unknown'}"
    said["verified by"] = f"envsmith {__version__}"
    return said


def _packages(subject: Subject, examination: Examination, findings: Iterable[Finding]) -> Iterable[Package]:
    origins, locked = _locked(subject)
    installed = {
        str(canonicalize_name(one.name)): one.version for facts in examination.facts[:1] for one in facts.distributions
    }
    files = Counter(owner for entry in subject.manifest.entries for owner in entry.owners)
    counts = {_name(owner): count for owner, count in files.items()}
    named = _findings_by_package(subject, findings)
    for name in sorted(installed.keys() | locked.keys()):
        yield Package(
            name=name,
            version=installed.get(name) if installed else locked.get(name),
            locked=locked.get(name),
            origin=origins.get(name, "unknown" if locked else "installed"),
            files=counts.get(name, counts.get(f"source:{name}", 0)),
            findings=named[name],
        )


def _locked(subject: Subject) -> tuple[dict[str, str], dict[str, str]]:
    """Where each package of the lock comes from, and its version."""
    lock = subject.lock
    if lock is None:
        return {}, dict(subject.versions or {})
    origins = {wheel.name: "wheel" for wheel in lock.wheels}
    origins |= {wheel.name: "built" for wheel in lock.built} | {wheel.name: "patched" for wheel in lock.patched}
    versions = {wheel.name: wheel.version for wheel in lock.wheels}
    for source in lock.sources:
        origins[source.project], versions[source.project] = "source", source.version
    for package in lock.base:
        origins[package.name] = "base"
        if package.version is not None:
            versions[package.name] = package.version
    return origins, versions


def _findings_by_package(subject: Subject, findings: Iterable[Finding]) -> Mapping[str, int]:
    owners = {entry.path: [_name(owner) for owner in entry.owners] for entry in subject.manifest.entries}
    named: Counter[str] = Counter()
    for finding in findings:
        named.update(set(owners.get(finding.subject) or [_name(finding.subject)]))
    return named


def _name(owner: str) -> str:
    return owner.partition("==")[0]
