"""Family `conflicts`: are the installed distributions the locked ones, and is every broken requirement a meant one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from packaging.utils import canonicalize_name

from envsmith.checks.expected import within
from envsmith.conflicts import Acceptance, Declaration, Violation, concerning, judge, violations
from envsmith.facts import Distribution, Facts
from envsmith.lock import Lock
from envsmith.report import REBUILD, Finding, Severity
from envsmith.target import Target

FAMILY = "conflicts"


def check_conflicts(lock: Lock, facts: Facts) -> Iterator[Finding]:
    """Hold the metadata that a launched process sees against the lock.

    Proves that names and versions are the locked ones and that no requirement is broken beyond those that the
    recipe accepts. Metadata is not code: what is imported is the matter of `imports` and `files`.
    """
    expected = {wheel.name: wheel.version for wheel in lock.wheels}
    expected |= {source.project: source.version for source in lock.sources}
    yield from check_versions(expected, facts)
    yield from _broken(lock, facts)


def check_conflicts_over_base(lock: Lock, facts: Facts, env_dir: str) -> Iterator[Finding]:
    """The same for an env over a vendor's base: the env's own distributions come first, those of the base behind them.

    Proves that the env holds exactly its locked distributions, that the packages of the base that the lock builds on
    have their locked versions, and that no requirement between env and base is broken beyond the accepted ones. What
    the base's packages want of each other is their vendor's matter, and what else the base holds is not judged.
    """
    inside = tuple(d for d in facts.distributions if within(d.metadata, (env_dir,)))
    own = {str(canonicalize_name(one.name)) for one in inside}
    expected = {wheel.name: wheel.version for wheel in lock.wheels}
    expected |= {source.project: source.version for source in lock.sources}
    yield from check_versions(expected, replace(facts, distributions=inside))
    first: dict[str, Distribution] = {}
    for one in facts.distributions:
        first.setdefault(str(canonicalize_name(one.name)), one)
    for package in lock.base:
        seen = first.get(package.name)
        if package.protected or package.name in own:
            continue  # of protected ones the family `base` says more
        if seen is None or (package.version is not None and seen.version != package.version):
            yield Finding(
                check=FAMILY,
                kind="base-version-differs" if seen else "base-package-missing",
                severity=Severity.ERROR,
                subject=package.name,
                message=f"the env was locked over {package.name} of the base, which is another one now",
                expected=package.version,
                actual=seen.version if seen else "not there",
                hint="take a new snapshot and lock again",
            )
    yield from _broken(lock, replace(facts, distributions=tuple(first.values())), own)


def check_versions(expected: Mapping[str, str], facts: Facts) -> Iterator[Finding]:
    """Prove that the installed distributions are exactly those of `expected`, canonical name to version."""
    found = _installed(facts)
    for name in sorted(expected.keys() | found.keys()):
        wanted, seen = expected.get(name), found.get(name, [])
        versions = sorted({version for version, _ in seen})
        if wanted is None:
            yield _finding(
                "distribution-extra",
                name,
                f"{name} {', '.join(versions)} is installed, but the lock does not name it",
                "not installed",
                f"{', '.join(versions)} in {seen[0][1]}",
            )
        elif not seen:
            yield _finding(
                "distribution-missing", name, f"{name} {wanted} is locked, but not installed", wanted, "not installed"
            )
        elif len(versions) > 1:
            yield _twice(name, wanted, seen)
        elif versions[0] != wanted:
            yield _finding("version-differs", name, f"{name} has another version than the lock", wanted, versions[0])


def check_requirements(target: Target, facts: Facts) -> Iterator[Finding]:
    """Say which declared requirements do not hold, and what is installed twice, where no lock says what is meant.

    A broken requirement is a warning: without a lock nobody can tell whether it was accepted. Extras that nobody
    asks for are not followed.
    """
    for name, seen in sorted(_installed(facts).items()):
        if len({version for version, _ in seen}) > 1:
            yield _twice(name, None, seen)
    declarations = {
        str(canonicalize_name(d.name)): Declaration(
            name=str(canonicalize_name(d.name)), version=d.version, requires=d.requires
        )
        for d in facts.distributions
        if d.readable
    }
    versions = {name: declared.version for name, declared in declarations.items()}
    for violation in violations(declarations, versions, target):
        yield Finding(
            check=FAMILY,
            kind="requirement-broken",
            severity=Severity.WARNING,
            subject=violation.package,
            message=violation.sentence(),
            expected=violation.requirement,
            actual=violation.found or "absent",
        )


def _installed(facts: Facts) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for distribution in facts.distributions:
        found[str(canonicalize_name(distribution.name))].append((distribution.version, distribution.metadata))
    return found


def _twice(name: str, wanted: str | None, seen: list[tuple[str, str]]) -> Finding:
    return Finding(
        check=FAMILY,
        kind="distribution-twice",
        severity=Severity.ERROR,
        subject=name,
        message=f"{name} is installed more than once, and which one a tool sees is chance",
        expected=wanted,
        actual=", ".join(f"{version} in {where}" for version, where in sorted(seen)),
        hint=f"build it again with {REBUILD}",
    )


def _broken(lock: Lock, facts: Facts, own: Collection[str] | None = None) -> Iterator[Finding]:
    """Judge declared requirements; with `own` only those of these packages, and those on them."""
    declarations = {
        str(canonicalize_name(d.name)): Declaration(
            name=str(canonicalize_name(d.name)), version=d.version, requires=d.requires
        )
        for d in facts.distributions
        if d.readable
    }
    for source in lock.sources:
        if source.project in declarations:
            declarations[source.project] = Declaration(
                name=source.project,
                version=source.version,
                requires=source.requires,
                requires_python=source.requires_python,
            )
    versions = {name: declared.version for name, declared in declarations.items()}
    roots = [f"{name}[{','.join(extras)}]" for name, extras in lock.extras.items()]
    roots += [f"{source.project}[{','.join(source.extras)}]" for source in lock.sources]
    meant = tuple(Acceptance(package=c.package, requirement=c.requirement, because=c.because) for c in lock.conflicts)
    found = violations(declarations, versions, lock.target, roots)
    verdict = judge(found if own is None else concerning(found, own), meant)
    for violation in verdict.unaccepted:
        yield _unmeant(violation)
    for entry in verdict.stale:
        if str(canonicalize_name(entry.package)) not in declarations:
            continue  # `distribution-missing` says more
        yield Finding(
            check=FAMILY,
            kind="conflict-gone",
            severity=Severity.WARNING,
            subject=entry.package,
            message=f"the lock accepts that `{entry.requirement}` is broken, but it holds here",
            hint="lock again",
        )


def _unmeant(violation: Violation) -> Finding:
    return Finding(
        check=FAMILY,
        kind="conflict-unaccepted",
        severity=Severity.ERROR,
        subject=violation.package,
        message=violation.sentence(),
        expected=violation.requirement,
        actual=violation.found or "absent",
        hint="rebuild from the lock, or accept it in the recipe with a reason (`envsmith lock --suggest-accept`)",
    )


def _finding(kind: str, subject: str, message: str, expected: str, actual: str) -> Finding:
    return Finding(
        check=FAMILY,
        kind=kind,
        severity=Severity.ERROR,
        subject=subject,
        message=message,
        expected=expected,
        actual=actual,
        hint=f"build it again with {REBUILD}",
    )
