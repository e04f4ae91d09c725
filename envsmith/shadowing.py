"""What of an env's additions would answer in the place of a protected package of its base.

The env comes first on every path, so whatever has a name of the base hides it: a module, a package, a module below a
namespace package that both have portions of, a command, a site hook.

Source: importlib's path finder (docs.python.org, "The import system", read 2026-11-30): the first folder with a module
or a package with `__init__` wins; folders without one are portions of a namespace, which count only where none wins.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from envsmith.manifest import Entry, importable

#: Folders that wheels ship beside their package by accident; nobody means to import them.
ACCIDENTAL = frozenset({"test", "tests", "doc", "docs", "example", "examples", "benchmark", "benchmarks"})
_SITE = re.compile(r"lib(64)?/python3[^/]*/(site|dist)-packages/")
_EMPTY = hashlib.sha256().hexdigest()
_LIBRARY = re.compile(r"\.so(\.[0-9.]+)?$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shadow:
    """An addition that would stand before a protected package."""

    owner: str
    """Of the addition."""
    protected: str
    """`torch==2.11.0`, or words for what belongs to the base itself."""
    name: str
    """The import name, the library or the command that both have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Module:
    owner: str
    sha256: str
    is_package: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Provided:
    """What the protected packages of a base answer for."""

    modules: Mapping[str, _Module]
    """By dotted name."""
    namespaces: Mapping[str, str]
    """Dotted names below which there is something, though no file stands for them, with an owner of that."""
    libraries: Mapping[str, str]
    """Shared libraries by their path below the folder of packages."""
    commands: Mapping[str, str] = field(default_factory=dict)


def provided(
    entries: Iterable[Entry],
    *,
    folders: Collection[str],
    tops: Mapping[str, str],
    commands: Mapping[str, str],
) -> Provided:
    """Read the files of protected packages.

    `entries` have paths relative to the root of the file system, `folders` are the base's folders of packages in that
    form. `tops` are further top-level names with their owner, of packages whose files nobody recorded; `commands` are
    programs with their owner.
    """
    modules: dict[str, _Module] = {
        name: _Module(owner=owner, sha256="", is_package=True) for name, owner in tops.items()
    }
    namespaces: dict[str, str] = {above: owner for name, owner in tops.items() for above in _above(name)}
    libraries: dict[str, str] = {}
    for entry in entries:
        rest = _below(entry.path, folders)
        if rest is None:
            continue
        if _LIBRARY.search(rest):
            libraries[rest] = entry.owner
        found = importable(rest)
        if found is None:
            continue
        name, rank = found
        modules.setdefault(name, _Module(owner=entry.owner, sha256=entry.sha256, is_package=rank == 0))
        for above in _above(name):
            namespaces.setdefault(above, entry.owner)
    return Provided(
        modules=modules,
        namespaces={name: owner for name, owner in namespaces.items() if name not in modules},
        libraries=libraries,
        commands=dict(commands),
    )


def shadows(additions: Iterable[Entry], base: Provided, extending: Collection[str] = ()) -> tuple[Shadow, ...]:
    """Say what of the additions hides something of the base; their paths are relative to the env.

    `extending` are digests of `__init__` files that look for the other portions of their package: where both sides have
    one, or one side has one and the other none at all, nothing is hidden. Another `__init__` with the same bytes on
    both sides hides what lies below it in the base, where there is more than empty files.
    Data files hide nothing: nobody imports them by name.
    """
    ours = tuple(additions)
    names = {name for name, _, _ in _modules(ours)}
    shared = {name for name, entry, rank in _modules(ours) if rank == 0 and _is_shared(name, entry, base, extending)}
    shared |= {
        name
        for name, module in base.modules.items()
        if module.is_package and module.sha256 in extending and name not in names
    }
    same = {
        name
        for name, entry, rank in _modules(ours)
        if rank == 0 and name in base.modules and entry.sha256 and base.modules[name].sha256 == entry.sha256
    } - shared
    shared |= same - {above for name in _filled(base) if name not in names for above in _above(name)}
    found: dict[tuple[str, str], Shadow] = {}

    def keep(owner: str, protected: str, name: str) -> None:
        found.setdefault((owner, protected), Shadow(owner=owner, protected=protected, name=name))

    for name, entry, _ in _modules(ours):
        if name.split(".")[0] in ACCIDENTAL or name in shared:
            continue
        if name in base.modules:
            keep(entry.owner, base.modules[name].owner, name)
        elif name in base.namespaces:
            keep(entry.owner, base.namespaces[name], name)
        else:
            inside = next((above for above in _above(name) if above in base.modules and above not in shared), None)
            if inside is not None:
                keep(entry.owner, base.modules[inside].owner, inside)
    for entry in ours:
        rest = _below(entry.path, ())
        if rest is not None and rest in base.libraries:
            keep(entry.owner, base.libraries[rest], rest)
        folder, _, command = entry.path.rpartition("/")
        if folder == "bin" and command in base.commands:
            keep(entry.owner, base.commands[command], f"bin/{command}")
    return tuple(found.values())


def _is_shared(name: str, entry: Entry, base: Provided, extending: Collection[str]) -> bool:
    there = base.modules.get(name)
    if entry.sha256 not in extending:
        return False
    return name in base.namespaces if there is None else there.is_package and there.sha256 in extending


def _filled(base: Provided) -> Iterator[str]:
    """Modules of the base that are more than an empty file."""
    return (name for name, module in base.modules.items() if module.sha256 != _EMPTY)


def _modules(entries: Iterable[Entry]) -> Iterator[tuple[str, Entry, int]]:
    for entry in entries:
        rest = _below(entry.path, ())
        found = importable(rest) if rest is not None else None
        if found is not None:
            yield found[0], entry, found[1]


def _above(name: str) -> Iterator[str]:
    """Every package that a dotted name lies in, the outermost first."""
    parts = name.split(".")
    return (".".join(parts[:n]) for n in range(1, len(parts)))


def _below(path: str, folders: Collection[str]) -> str | None:
    """A file by its path below the folder of packages that it lies in; None for one that lies in none."""
    match = _SITE.match(path)
    if match:
        return path[match.end() :]
    return next((path[len(folder) + 1 :] for folder in folders if path.startswith(f"{folder}/")), None)
