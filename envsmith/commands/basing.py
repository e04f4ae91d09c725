"""The vendor's Python under an env: found, asked what it is, and held against the lock before anything is written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from envsmith.basepackages import PackageState
from envsmith.checks.base import check_base
from envsmith.commands.envs import shown
from envsmith.errors import EnvsmithError, HostError, InputError, Problem
from envsmith.facts import Facts
from envsmith.host import Snapshot
from envsmith.lock import Lock
from envsmith.manifest import Entry
from envsmith.overlay import Base, Command
from envsmith.probe import Request, probe
from envsmith.recorded import Recorded, recorded_manifest
from envsmith.report import Finding, Severity
from envsmith.shadowing import Provided, provided, shadows
from envsmith.tools.basecommands import base_commands
from envsmith.tools.distributions import indexed_states, read_distributions
from envsmith.tools.interpreter import Interpreter, interpreter_at
from envsmith.tools.namespaces import extending_in_wheels, extending_on_disk
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
    return BaseAt(base=_base(python, facts), interpreter=interpreter, hooks=facts.site.hooks())


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


def site_folders(base: Base) -> tuple[str, ...]:
    """The folders that a base imports packages from, relative to `ROOT`."""
    return tuple(folder.lstrip("/") for folder in base.folders)


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
    """Hold the packages that a lock rests on against the base, and say what the index of their files is now."""
    wanted = proved_packages(lock)
    states, renewed = indexed_states(ROOT, site_folders(base), wanted, index or StatIndex(), progress)
    return judge_states(lock, states), renewed


def judge_states(lock: Lock, states: Iterable[PackageState]) -> tuple[Finding, ...]:
    """Hold the packages that a lock rests on against what is installed, in the order in which imports find it."""
    found: dict[str, list[PackageState]] = defaultdict(list)
    for state in states:
        found[state.name].append(state)
    return tuple(check_base(lock.base, found))


def proved_packages(lock: Lock) -> set[str]:
    """Names of the base's packages of which the lock says what they must be."""
    return {one.name for one in lock.base if one.protected or one.files is not None}


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


def require_hooks(snapshot: Snapshot | None, at: BaseAt) -> None:
    """Refuse a base whose own hooks are not those of its snapshot: what runs in every process would be nobody's.

    Nothing is said of a transcribed snapshot that has none: nobody looked. A captured one without any saw none.

    Raises:
        HostError: `base-differs` for every hook that is new, gone or changed.
    """
    if snapshot is None or snapshot.python is None:
        return
    if not snapshot.python.hook and snapshot.snapshot.origin != "captured":
        return
    locked = {_settled(one.path): one.sha256 for one in snapshot.python.hook}
    there = {_settled(path): sha256 for path, sha256 in at.hooks.items()}
    problems = [
        Problem(
            code="base-differs",
            message=f"a hook that runs in every process of the base is {_what(locked.get(path), there.get(path))}",
            where=path,
            expected=f"sha256:{locked[path][:12]}" if path in locked else "not there",
            actual=f"sha256:{there[path][:12]}" if path in there else "not there",
            hint="start from a fresh image, or take a new snapshot and lock again",
        )
        for path in sorted(locked.keys() | there.keys())
        if locked.get(path) != there.get(path)
    ]
    if problems:
        raise HostError(*problems)


def _settled(path: str) -> str:
    """A file by the real folder that it lies in."""
    return str(Path(path).parent.resolve() / Path(path).name)


def _what(before: str | None, now: str | None) -> str:
    return "new" if before is None else "gone" if now is None else "another one"


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


def refuse_shadows(
    lock: Lock,
    at: BaseAt,
    additions: Iterable[Entry],
    copies: Mapping[str, Sequence[str]],
    tracked: Iterable[Entry],
    wheels: Iterable[Path] = (),
) -> None:
    """Refuse additions that would stand before a protected package of the base.

    `additions` are the files of the wheels and `tracked` those of work copies, relative to the env; `copies` maps
    import names of work copies to their folders below the env; `wheels` are the files that the additions come from.

    Raises:
        InputError: `base-shadowed` for every addition, with the name that both have.
    """
    protected = {one.name for one in lock.base if one.protected}
    ours = {wheel.name: wheel.version for wheel in lock.wheels} | {s.project: s.version for s in lock.sources}
    same = ours.keys() & protected
    found = [(f"{name}=={ours[name]}", name, name) for name in sorted(same)]
    answers = _provided(at, protected - same)
    packages = answers.modules.keys() | answers.namespaces.keys()
    kept_entries = base_entries(one for one in at.distributions if one.name in protected)
    extending = {
        *extending_in_wheels(wheels, packages),
        *extending_on_disk(ROOT, kept_entries, site_folders(at.base), packages),
    }
    every = (*additions, *_as_installed(copies, tracked))
    found += [(one.owner, one.protected, one.name) for one in shadows(every, answers, extending)]
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


def _provided(at: BaseAt, protected: Collection[str]) -> Provided:
    """What the protected packages answer for, those whose files nobody recorded by the names that they claim."""
    kept = tuple(one for one in at.distributions if one.name in protected)
    tops = {Path(path).stem: "the site hook" for path in at.hooks if path.endswith("customize.py")}
    for one in kept:
        if one.rows is None or one.editable is not None:
            names = (*one.top_level, *_editable_names(one, at.base)) or (one.name.replace("-", "_"),)
            tops |= dict.fromkeys((part for name in names for part in _portions(name, at.base)), one.owner)
    python = Path(at.base.python)
    commands = {command.name: one.owner for one in kept for command in base_commands(ROOT, (one,), python)}
    return provided(base_entries(kept), folders=site_folders(at.base), tops=tops, commands=commands)


def _portions(name: str, base: Base) -> Iterator[str]:
    """A claimed name; for a namespace that packages share, whatever lies in it."""
    place = next((path for folder in base.folders if (path := Path(folder, name)).is_dir()), None)
    if place is None or any(item.name.startswith("__init__.") for item in place.iterdir()):
        yield name
        return
    for item in sorted(place.iterdir()):
        if item.stem.isidentifier() and (item.suffix == ".py" or (item.is_dir() and item.name != "__pycache__")):
            yield f"{name}.{item.stem}"


def _editable_names(one: Recorded, base: Base) -> Iterator[str]:
    """Import names in the folders that an editable installation of the base put on the path."""
    for folder in base.beside:
        if one.editable is not None and Path(folder).is_relative_to(Path(one.editable).resolve()):
            for item in sorted(Path(folder).iterdir()):
                is_package = item.is_dir() and (item / "__init__.py").is_file()
                if (is_package or item.suffix == ".py") and item.stem.isidentifier():
                    yield item.stem


def _as_installed(copies: Mapping[str, Sequence[str]], tracked: Iterable[Entry]) -> Iterator[Entry]:
    """The files of work copies as if they lay in site-packages: where the names of the copies are looked for."""
    roots = {(folder, name) for name, folders in copies.items() for folder in folders[:1]}
    for entry in tracked:
        for root, name in roots:
            rest = entry.path[len(root) + 1 :] if entry.path.startswith(f"{root}/") else ""
            if rest.split("/")[0] in (name, f"{name}.py"):
                yield replace(entry, path=f"lib/python3/site-packages/{rest}")
