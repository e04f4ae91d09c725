"""The child chain: does every process that is started from the launched one still see the same env?

Each level is held against its parent, so that a fault is told where it first shows and not again below.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final

from envsmith.checks.expected import way_in
from envsmith.checks.maps import SINGLE_INSTANCE, family_of
from envsmith.facts import Facts, Level, MappedFile, Module, Unstarted
from envsmith.launch import LaunchEnvironment
from envsmith.report import Finding, Severity
from envsmith.running import SECRET_WORDS, shown

FAMILY: Final = "contexts"
#: What frameworks put on sys.path or take from it, below the env's own site-packages: ray 2.56.1 ray/__init__.py and
#: the folder of its worker's program; setuptools setuptools/__init__.py (read and measured 2026-11-30).
OWN_ENTRIES: Final = ("ray/thirdparty_files", "ray/_private/workers", "setuptools/_vendor")
#: Variables that frameworks set on purpose and that decide nothing about what is loaded: seen in real workers of torch
#: 2.10.0 and ray 2.56.1 (facts/verify.md §5, measured). CUDA_VISIBLE_DEVICES is Ray's, per actor:
#: ray/_private/accelerators/nvidia_gpu.py (read 2026-11-30).
OWN_VARIABLES: Final = (
    "OMP_NUM_THREADS", "PYTHONBREAKPOINT", "PYTHONUNBUFFERED", "PYTHONHASHSEED", "PYTHONFAULTHANDLER",
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "CUDA_VISIBLE_DEVICES",
)  # fmt: skip
OWN_PREFIXES: Final = ("RAY_", "TORCHELASTIC_")
#: Never to appear in a child, whatever the recipe says about them.
FORBIDDEN: Final = ("PYTHONPATH", "PYTHONHOME", "LD_PRELOAD")
#: opencv 5.0.0.93 cv2/__init__.py puts this and an empty element before LD_LIBRARY_PATH (opencv-python #1268, read
#: 2026-11-30). Its own edit is known; any other empty element is a finding.
_CV2: Final = "/cv2/../../lib64"


@dataclass(frozen=True, kw_only=True, slots=True)
class Intended:
    """What the launch table wants of every process."""

    launch: LaunchEnvironment
    forwarded: tuple[str, ...] = ()
    """Variables that must reach Ray workers."""
    single_instance: tuple[str, ...] = ()

    @property
    def values(self) -> dict[str, str]:
        """Variables with their one value."""
        return dict(self.launch.set)

    @property
    def watched(self) -> tuple[str, ...]:
        """Variables that a probe has to report, besides those that it always does."""
        launch = self.launch
        names = {*self.values, *(name for name, _ in launch.prepend), *launch.require, *launch.unset, *self.forwarded}
        return tuple(sorted(names))

    @property
    def kept(self) -> tuple[str, ...]:
        """Variables that a walk through the chain must leave as the launch table has them."""
        return tuple(sorted({*self.values, *(name for name, _ in self.launch.prepend)}))


def check_contexts(intended: Intended, levels: Sequence[Level], unstarted: Sequence[Unstarted]) -> Iterator[Finding]:
    """Judge a chain level by level.

    Proves that interpreter, sys.path, the files behind the probed names, package versions, the launch table's
    variables and the single-instance libraries are in every level what they are in its parent, and in the first one
    what the launch table says. Misses what only the user's own program does to its children, levels that were not
    started, and variables that decide nothing about what is loaded.
    """
    yield from _unstarted(unstarted)
    by_name = {level.name: level for level in levels}
    groups: dict[Finding, list[Level]] = {}
    for level in levels:
        parent = by_name.get(level.parent or "")
        for finding in _of_level(intended, parent, level):
            groups.setdefault(finding, []).append(level)
    for finding, found in groups.items():
        where = f"first changes in {_names(found)} ({chain_text(found[0], by_name)})"
        yield replace(finding, message=f"{finding.message}; {where}")


def chain_text(level: Level, by_name: Mapping[str, Level]) -> str:
    """The levels down to this one: `launched -> ray -> ray-child`."""
    names = [level.name]
    while (parent := by_name[names[0]].parent if names[0] in by_name else None) and parent not in names:
        names.insert(0, parent)
    return " -> ".join(names if len(names) > 1 else ["launch table", *names])


def _names(levels: Sequence[Level]) -> str:
    return " and ".join(f"`{level.name}`" for level in levels)


def _unstarted(unstarted: Sequence[Unstarted]) -> Iterator[Finding]:
    for one in unstarted:
        yield Finding(
            check=FAMILY,
            kind="context-skipped" if one.skipped else "context-failed",
            severity=Severity.NOTE if one.skipped else Severity.ERROR,
            subject=one.context,
            message=f"the context `{one.context}` cannot be looked at: {one.reason}"
            if one.skipped
            else f"the context `{one.context}` does not start, or does not end well",
            actual=None if one.skipped else one.reason,
            hint="take it out of `verify.contexts`, or add the package" if one.skipped else None,
        )


def _of_level(intended: Intended, parent: Level | None, level: Level) -> Iterator[Finding]:
    facts = level.facts
    for fault in facts.faults:
        yield _error("context-failed", fault.section, "a part of the probe failed there", actual=fault.message)
    if parent is None:
        yield from _against_table(intended, facts)
        return
    yield from check_same_interpreter(parent.facts, facts)
    yield from check_same_path(parent.facts, facts)
    yield from check_same_modules(parent.facts, facts)
    yield from check_same_packages(parent.facts, facts)
    yield from check_same_variables(intended, parent.facts, level)
    yield from check_same_libraries(intended, parent.facts, facts)


def _against_table(intended: Intended, facts: Facts) -> Iterator[Finding]:
    """The first process has every value of the launch table: a profile or a site hook may have changed one."""
    for name, value in intended.values.items():
        actual = facts.environ.get(name)
        if actual != value and not _is_secret(name):
            yield _variable("context-variable", name, value, actual)
    for name, first in intended.launch.prepend:
        actual = facts.environ.get(name, "")
        if actual != first and not actual.startswith(f"{first}:"):
            yield _variable("context-variable", name, f"{first}:…", actual or None)
    for name in intended.launch.unset:
        if name in facts.environ and name not in {key for key, _ in intended.launch.prepend}:
            yield _variable("context-variable", name, None, facts.environ[name])


def check_same_interpreter(before: Facts, after: Facts) -> Iterator[Finding]:
    """Prove that the child runs the same binary, of the same version, for the same environment (D19)."""
    old, new = before.python, after.python
    for label, was, now in (
        ("version", old.version, new.version),
        ("prefix", old.real_prefix, new.real_prefix),
        ("executable", old.realpath, new.realpath),
    ):
        if was != now:
            yield _error(
                "context-interpreter", label, "the child runs another Python", was, f"{now} ({new.executable})"
            )
            return


def check_same_path(before: Facts, after: Facts) -> Iterator[Finding]:
    """Prove that sys.path holds the same directories in the same order; frameworks' own entries are known.

    The folder of the probe itself, which stands for that of the user's script, and the working directory are left out
    by the probe.
    """
    old, new = _entries(before), _entries(after)
    for real, entry in new.items():
        if real not in old:
            found = next(one for one in after.path if one.real == real)
            how = way_in(found, after)
            yield Finding(
                check=FAMILY,
                kind="context-path",
                severity=Severity.ERROR if found.exists else Severity.WARNING,
                subject=entry or ".",
                message="sys.path of the child holds a directory more" + (f"; it came {how}" if how else ""),
                hint="remove its cause",
            )
    for real, entry in old.items():
        if real not in new:
            yield _error("context-path", entry or ".", "sys.path of the child lacks a directory of its parent")
    common = [real for real in old if real in new]
    moved = [real for real in new if real in old]
    if common != moved:
        first = next(now for was, now in zip(common, moved, strict=True) if was != now)
        yield _error("context-path", new[first], "sys.path of the child has another order, so another file may win")


def _entries(facts: Facts) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in facts.path:
        if not _is_own(entry.real, facts):
            found.setdefault(entry.real, entry.entry)
    return found


def _is_own(path: str, facts: Facts) -> bool:
    """Whether a path is one of the folders that frameworks add, or lies in one."""
    bases = {facts.python.purelib, facts.python.platlib}
    return any(PurePosixPath(path).is_relative_to(f"{base}/{name}") for base in bases if base for name in OWN_ENTRIES)


def check_same_modules(before: Facts, after: Facts) -> Iterator[Finding]:
    """Prove that each probed top-level name is answered by the same file; a framework's own copy is known."""
    for name, new in sorted(after.modules.items()):
        old = before.modules.get(name)
        if old is None or _answers(old) == _answers(new):
            continue
        if any(_is_own(place, after) for place in _answers(new)) or any(_is_own(p, before) for p in _answers(old)):
            continue
        actual = ", ".join(_answers(new)) or new.error or new.kind
        yield _error("context-module", name, f"`import {name}` gives the child another file", answer_text(old), actual)


def _answers(module: Module) -> tuple[str, ...]:
    if module.origin:
        return (module.origin,)
    return tuple(sorted(module.locations)) if module.kind == "namespace" else ()


def answer_text(module: Module) -> str:
    """What answers an import, as text."""
    return ", ".join(_answers(module)) or module.kind


def check_same_packages(before: Facts, after: Facts) -> Iterator[Finding]:
    """Prove that the metadata on the path is of the same packages in the same versions."""
    old, new = _versions(before), _versions(after)
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            message = f"the child finds another version of `{name}`"
            yield _error("context-package", name, message, old.get(name, "absent"), new.get(name, "absent"))


def _versions(facts: Facts) -> dict[str, str]:
    """The first of each name on the path, which is what importlib.metadata answers with."""
    found: dict[str, str] = {}
    for one in facts.distributions:
        if not _is_own(one.metadata, facts):
            found.setdefault(one.name.lower().replace("_", "-"), one.version)
    return found


def check_same_variables(intended: Intended, before: Facts, level: Level) -> Iterator[Finding]:
    """Prove that no variable of the launch table is lost or changed and that no forbidden one appears (D20, D21, D37).

    Judged are the launch table's, `FORBIDDEN`, allocator settings, PATH and what the loader reads. Of a variable that
    may hold a secret only its presence is compared.
    """
    old, new = before.environ, level.facts.environ
    for name in sorted(old.keys() | new.keys()):
        was, now = old.get(name), new.get(name)
        if was == now or (_is_free(name) and name not in intended.values):
            continue
        if now is not None and name.endswith("PATH") and _without_empty(name, now) == _without_empty(name, was or ""):
            if "" in _elements(name, now) and "" not in _elements(name, was or ""):
                yield _empty_element(name, now)
            continue
        lost = now is None and name in intended.forwarded
        ray = level.name.startswith("ray")
        yield _variable("variable-not-forwarded" if lost and ray else "context-variable", name, was, now)


def _is_free(name: str) -> bool:
    return name in OWN_VARIABLES or name.startswith(OWN_PREFIXES)


def _elements(name: str, value: str) -> list[str]:
    """The elements of a list of paths, the known edit of cv2 taken away."""
    elements = value.split(":") if value else []
    if name == "LD_LIBRARY_PATH" and elements and elements[0].endswith(_CV2):
        elements = elements[1:] if elements[1:] != [""] else []
    return elements


def _without_empty(name: str, value: str) -> list[str]:
    return [element for element in _elements(name, value) if element]


def _empty_element(name: str, value: str) -> Finding:
    return Finding(
        check=FAMILY,
        kind="context-empty-element",
        severity=Severity.WARNING,
        subject=name,
        message=f"`{name}` of the child has got an empty element, which stands for the current directory",
        actual=value,
        hint=f"look which import edits `{name}`; whatever lies in the current directory may be loaded",
    )


def _variable(kind: str, name: str, was: str | None, now: str | None) -> Finding:
    what = "is not there" if now is None else "appears" if was is None else "has another value"
    hint = "whoever starts the child writes or drops it: patch the launcher, or set it there"
    if kind == "variable-not-forwarded":
        hint = f"name `{name}` in the `env_vars` of Ray's `runtime_env`, and start a new Ray session"
    return Finding(
        check=FAMILY,
        kind=kind,
        severity=Severity.ERROR,
        subject=name,
        message=f"the variable `{name}` {what}",
        expected="unset" if was is None else shown(name, was),
        actual="unset" if now is None else shown(name, now),
        hint=hint,
    )


def check_same_libraries(intended: Intended, before: Facts, after: Facts) -> Iterator[Finding]:
    """Prove that a single-instance library that parent and child both map comes from the same file."""
    families = {*SINGLE_INSTANCE, *intended.single_instance}
    old, new = libraries(before.maps, families), libraries(after.maps, families)
    for family in sorted(old.keys() & new.keys()):
        if foreign := [path for path in new[family] if path not in old[family]]:
            if _same_bytes(before, after, foreign, old[family]):
                continue
            message = f"the child maps another file of `{family}`"
            yield _error("context-library", family, message, ", ".join(old[family]), ", ".join(foreign))


def _same_bytes(before: Facts, after: Facts, foreign: Sequence[str], known: Sequence[str]) -> bool:
    """Whether the other files are copies of a known one, as far as they were hashed."""
    digests = {file.path: file.sha256 for file in (*before.maps, *after.maps) if file.sha256}
    wanted = {digests[path] for path in known if path in digests}
    return all(digests.get(path) in wanted for path in foreign)


def libraries(maps: Sequence[MappedFile], families: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Mapped files of some libraries."""
    found: dict[str, list[str]] = {}
    for file in maps:
        if (family := family_of(file.path)) in families and family:
            found.setdefault(family, []).append(file.path)
    return {family: tuple(paths) for family, paths in found.items()}


def _is_secret(name: str) -> bool:
    return any(word in name.upper() for word in SECRET_WORDS)


def _error(kind: str, subject: str, message: str, expected: str | None = None, actual: str | None = None) -> Finding:
    return Finding(
        check=FAMILY,
        kind=kind,
        severity=Severity.ERROR,
        subject=subject,
        message=message,
        expected=expected,
        actual=actual,
    )
