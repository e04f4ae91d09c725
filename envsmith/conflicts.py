"""Declared requirements against what is locked or installed: every broken one must be accepted by the recipe.

This is envsmith's own check, not `pip check`: it knows which conflicts are meant (measured: uv's and pip's checks
are red on every env with an override, facts/anchors.md M9).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from envsmith.target import Target, applies


@dataclass(frozen=True, kw_only=True, slots=True)
class Declaration:
    """What one distribution declares."""

    name: str
    """Canonical name."""
    version: str
    requires: tuple[str, ...]
    """`Requires-Dist` lines as written."""
    requires_python: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """One declared requirement that does not hold."""

    package: str
    version: str
    requirement: str
    """As declared, without its marker."""
    found: str | None
    """The version that is there; None when the package is absent."""

    def sentence(self) -> str:
        """For people: who declares what and what is there."""
        there = f"{Requirement(self.requirement).name} {self.found} is there" if self.found else "it is absent"
        return f"{self.package} {self.version} declares `{self.requirement}`, but {there}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Acceptance:
    """One `[[accept]]` entry of the recipe."""

    package: str
    requirement: str
    because: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Violations sorted by whether the recipe accepts them, and the entries that no longer bite."""

    accepted: tuple[tuple[Violation, Acceptance], ...]
    unaccepted: tuple[Violation, ...]
    stale: tuple[Acceptance, ...]


def active_extras(
    declarations: Mapping[str, Declaration], roots: Iterable[str], target: Target
) -> dict[str, frozenset[str]]:
    """Follow requirements from `roots` and collect the extras that are asked for of every package."""
    extras: dict[str, set[str]] = {}
    queue = [(Requirement(text), frozenset[str]()) for text in roots]
    seen: set[tuple[str, frozenset[str]]] = set()
    while queue:
        requirement, asking = queue.pop()
        if not applies(requirement.marker, target, asking):
            continue
        name = str(canonicalize_name(requirement.name))
        wanted = extras.setdefault(name, set())
        wanted |= {str(canonicalize_name(extra)) for extra in requirement.extras}
        state = (name, frozenset(wanted))
        if state in seen or name not in declarations:
            continue
        seen.add(state)
        queue += [(parsed, state[1]) for parsed in _parsed(declarations[name].requires)]
    return {name: frozenset(found) for name, found in extras.items()}


def violations(
    declarations: Mapping[str, Declaration],
    versions: Mapping[str, str],
    target: Target,
    roots: Iterable[str] = (),
) -> tuple[Violation, ...]:
    """List every declared requirement that `versions` (canonical name to version) does not satisfy."""
    extras = active_extras(declarations, roots, target)
    found: set[Violation] = set()
    for name, declared in declarations.items():
        for requirement in _parsed(declared.requires):
            if not applies(requirement.marker, target, extras.get(name, ())):
                continue
            there = versions.get(str(canonicalize_name(requirement.name)))
            if there is None or not _satisfies(requirement, there):
                found.add(_violation(declared, requirement, there))
        python = _specifiers(declared.requires_python)
        if _broken(set(python), _full(target)):
            found.add(
                Violation(package=name, version=declared.version, requirement=f"python{python}", found=target.python)
            )
    return tuple(sorted(found, key=lambda v: (v.package, v.requirement)))


def concerning(found: Iterable[Violation], own: Collection[str]) -> tuple[Violation, ...]:
    """Keep what some packages declare, and what others declare about them; names are canonical."""
    return tuple(
        one for one in found if one.package in own or str(canonicalize_name(Requirement(one.requirement).name)) in own
    )


def judge(found: Iterable[Violation], acceptances: Iterable[Acceptance]) -> Verdict:
    """Match violations with the recipe's `accept` entries."""
    entries = tuple(acceptances)
    accepted: list[tuple[Violation, Acceptance]] = []
    unaccepted: list[Violation] = []
    for violation in found:
        match = next((entry for entry in entries if accepts(entry, violation)), None)
        if match is None:
            unaccepted.append(violation)
        else:
            accepted.append((violation, match))
    used = {id(entry) for _, entry in accepted}
    return Verdict(
        accepted=tuple(accepted),
        unaccepted=tuple(unaccepted),
        stale=tuple(entry for entry in entries if id(entry) not in used),
    )


def accepts(entry: Acceptance, violation: Violation) -> bool:
    """Say whether an entry covers a violation.

    `*` covers requirements that are absent, never a version clash. A named requirement covers a violation of the
    same package when the clauses it names are declared and every broken clause is among them.
    """
    if canonicalize_name(entry.package) != canonicalize_name(violation.package):
        return False
    if entry.requirement == "*":
        return violation.found is None
    declared, named = Requirement(violation.requirement), Requirement(entry.requirement)
    if canonicalize_name(declared.name) != canonicalize_name(named.name):
        return False
    declared_clauses, named_clauses = set(declared.specifier), set(named.specifier)
    if not named_clauses <= declared_clauses:
        return False
    return violation.found is None or _broken(declared_clauses, violation.found) <= named_clauses


def suggest(found: Iterable[Violation], env: str) -> str:
    """Render paste-ready `[[accept]]` blocks."""
    blocks = [
        f"[[env.{env}.accept]]\n"
        f"package = {json.dumps(violation.package, ensure_ascii=False)}\n"
        f"requirement = {json.dumps(_named(violation), ensure_ascii=False)}\n"
        f'because = "…"   # {violation.sentence()}\n'
        for violation in found
    ]
    return "\n".join(blocks)


def _named(violation: Violation) -> str:
    declared = Requirement(violation.requirement)
    if violation.found is None:
        return violation.requirement
    return declared.name + ",".join(sorted(str(c) for c in _broken(set(declared.specifier), violation.found)))


def _violation(declared: Declaration, requirement: Requirement, there: str | None) -> Violation:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return Violation(
        package=declared.name,
        version=declared.version,
        requirement=f"{requirement.name}{extras}{requirement.specifier}",
        found=there,
    )


def _parsed(requires: Iterable[str]) -> list[Requirement]:
    parsed = []
    for text in requires:
        try:
            parsed.append(Requirement(text))
        except InvalidRequirement:
            continue  # resolvers skip these too; nothing can satisfy or break them
    return parsed


def _specifiers(requires_python: str | None) -> SpecifierSet:
    """`Requires-Python` as a set; one that cannot be read breaks nothing."""
    try:
        return SpecifierSet(requires_python or "")
    except InvalidSpecifier:
        return SpecifierSet()


def _satisfies(requirement: Requirement, version: str) -> bool:
    return not _broken(set(requirement.specifier), version)


def _broken(clauses: set[Specifier], version: str) -> set[Specifier]:
    try:
        parsed = Version(version)
    except InvalidVersion:
        return clauses
    return {clause for clause in clauses if not clause.contains(parsed, prereleases=True)}


def _full(target: Target) -> str:
    """A patch release that no `>=3.11.1` floor breaks when the recipe names only the minor version."""
    return target.python if target.python.count(".") == 2 else f"{target.python}.99"
