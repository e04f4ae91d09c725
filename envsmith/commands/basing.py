"""The vendor's Python under an env: found, asked what it is, and held against the lock before anything is written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from envsmith.basepackages import PackageState
from envsmith.checks.base import check_base
from envsmith.commands.envs import shown
from envsmith.errors import EnvsmithError, HostError, InputError, Problem
from envsmith.facts import Facts
from envsmith.lock import Lock
from envsmith.manifest import Entry
from envsmith.overlay import Base, Command, protected_roots, shadows
from envsmith.probe import Request, probe
from envsmith.recorded import Recorded, recorded_manifest
from envsmith.report import Finding, Severity
from envsmith.tools.basecommands import base_commands
from envsmith.tools.distributions import indexed_states, read_distributions
from envsmith.tools.interpreter import Interpreter, interpreter_at
from envsmith.tools.process import scrubbed
from envsmith.tools.progress import Progress
from envsmith.tools.tree import StatIndex

ROOT = Path("/")
"""Paths of a base are taken from here: its folders may lie in several places."""
#: Problems that are listed one by one.
_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class BaseAt:
    """The base of an env on this machine."""

    base: Base
    interpreter: Interpreter
    """The real Python under it: the env is made from this one."""
    hooks: Mapping[str, str]
    """Its own hooks by path, with their sha256."""

    @cached_property
    def distributions(self) -> tuple[Recorded, ...]:
        """What is installed in it, in the order of its path."""
        return installed_in(self.base)

    def commands(self) -> tuple[Command, ...]:
        """Every command that its packages offer."""
        return base_commands(ROOT, self.distributions, Path(self.base.python))


def open_base(python: str, minor: str, environ: Mapping[str, str]) -> BaseAt:
    """Find the base of an env and ask it where its packages are; it is started isolated, and nothing is written.

    `python` is the recipe's path, `minor` the version that the env is locked for.

    Raises:
        HostError: `base-missing`, `base-python-differs`.
    """
    path = Path(python)
    interpreter = interpreter_at(path, environ)
    if isinstance(interpreter, str):
        raise HostError(
            Problem(
                code="base-missing",
                message=f"the Python that this env is to be laid over cannot be used: {interpreter}",
                where=python,
                hint="build on a machine of the vendor's image, or correct `base.python` and lock again",
            )
        )
    if not f"{interpreter.version}.".startswith(f"{minor}."):
        raise HostError(
            Problem(
                code="base-python-differs",
                message="the base has another Python than the env is locked for",
                where=python,
                expected=minor,
                actual=interpreter.version,
                hint="take a snapshot of this machine and lock again",
            )
        )
    facts = _ask(path, environ)
    return BaseAt(base=_base(python, facts), interpreter=interpreter, hooks=_hooks(facts))


def _ask(path: Path, environ: Mapping[str, str]) -> Facts:
    try:
        return probe(path, Request(context="base"), env=scrubbed(environ), flags=("-B", "-I"))
    except EnvsmithError as error:
        raise HostError(*error.problems) from error


def _base(python: str, facts: Facts) -> Base:
    site = tuple(folder for folder in facts.python.site_packages if folder != facts.site.user_dir)
    known = {*facts.python.stdlib, *site}
    beside = dict.fromkeys(entry.real for entry in facts.path if entry.exists and entry.real not in known)
    return Base(python=python, site=site, beside=tuple(beside))


def _hooks(facts: Facts) -> dict[str, str]:
    found = {customize.path: customize.sha256 for customize in facts.site.customize}
    return found | {pth.path: pth.sha256 for pth in facts.site.pth}


def site_folders(base: Base) -> tuple[str, ...]:
    """The site folders of a base, relative to `ROOT`."""
    return tuple(folder.lstrip("/") for folder in base.site)


def installed_in(base: Base) -> tuple[Recorded, ...]:
    """The distributions of a base, relative to `ROOT`; of several of one name only the one that is imported."""
    found: dict[str, Recorded] = {}
    for folder in site_folders(base):
        for one in read_distributions(ROOT, (folder,)):
            found.setdefault(one.name, one)
    return tuple(found.values())


def base_entries(distributions: Iterable[Recorded]) -> tuple[Entry, ...]:
    """Every file that distributions of a base record, relative to `ROOT`."""
    return recorded_manifest(distributions, {}, {}).entries


def judge_base(
    lock: Lock, base: Base, index: StatIndex | None = None, progress: Progress | None = None
) -> tuple[tuple[Finding, ...], StatIndex]:
    """Hold the protected packages of a base against the lock, and say what the index of its files is now."""
    wanted = {one.name for one in lock.base if one.protected}
    states, renewed = indexed_states(ROOT, site_folders(base), wanted, index or StatIndex(), progress)
    found: dict[str, list[PackageState]] = defaultdict(list)
    for state in states:
        found[state.name].append(state)
    return tuple(check_base(lock.base, found)), renewed


def require_unchanged(lock: Lock, base: Base, progress: Progress) -> StatIndex:
    """Refuse to build over a base that is not the locked one.

    Raises:
        HostError: `base-differs`, with the packages and files that differ.
    """
    findings, index = judge_base(lock, base, progress=progress)
    wrong = [finding for finding in findings if finding.severity is Severity.ERROR]
    if wrong:
        raise HostError(*_problems(wrong, base))
    return index


def _problems(findings: list[Finding], base: Base) -> Iterator[Problem]:
    for finding in findings[:_SHOWN]:
        yield Problem(
            code="base-differs",
            message=finding.message,
            where=f"{shown(Path(base.python))}: {finding.subject}",
            expected=finding.expected,
            actual=finding.actual,
            hint=finding.hint,
        )
    if len(findings) > _SHOWN:
        more = f"{len(findings) - _SHOWN} more files or packages of the base differ"
        yield Problem(code="base-differs", message=more, where=shown(Path(base.python)))


def refuse_shadows(lock: Lock, at: BaseAt, additions: Iterable[Entry], editable: Mapping[str, str]) -> None:
    """Refuse additions that would stand before a protected package of the base.

    `additions` are the files of the wheels, relative to the env; `editable` maps import names of work copies to
    their source.

    Raises:
        InputError: `base-shadowed` for every addition, with the name that both have.
    """
    protected = {one.name for one in lock.base if one.protected}
    entries = base_entries(at.distributions)
    ours = {wheel.name: wheel.version for wheel in lock.wheels} | {s.project: s.version for s in lock.sources}
    same = ours.keys() & protected
    found = [(f"{name}=={ours[name]}", name, name) for name in sorted(same)]
    found += [
        (shadow.owner, shadow.protected, shadow.name)
        for shadow in shadows(additions, entries, folders=site_folders(at.base), protected=protected - same)
    ]
    theirs = protected_roots(entries, folders=site_folders(at.base), protected=protected - same)
    found += [(source, theirs[name][0].owner, name) for name, source in sorted(editable.items()) if name in theirs]
    if found:
        raise InputError(
            *(
                Problem(
                    code="base-shadowed",
                    message=f"`{owner}` would stand before `{kept}` of the base, which must stay: both have `{name}`",
                    where=f"base.protect: {kept.partition('==')[0]}",
                    hint="leave the addition out, name it under `exclude`, or take one that does not bring it",
                )
                for owner, kept, name in dict.fromkeys(found)
            )
        )
