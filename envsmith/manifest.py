"""The manifest: what every file of an environment must be, taken from wheels and templates, never from the disk.

*Portable* entries follow from the wheels alone and are equal on every machine. *Site* entries depend on where the
environment lies; envsmith/installed.py computes them. No I/O here: callers read and write the files.

Source: binary distribution format (packaging.python.org specifications, read 2026-11-29).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from envsmith.errors import IntegrityError, Problem

if TYPE_CHECKING:
    from envsmith.wheelfile import WheelListing

Part = Literal["portable", "site"]
RootKind = Literal["module", "package", "namespace", "extension"]

#: Files of a .dist-info that the installer writes; a wheel's own copy of one of these is replaced.
INSTALLER_FILES = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json"})

_FIRST: tuple[RootKind, ...] = ("package", "extension", "module", "namespace")
_SITE_PACKAGES = re.compile(r"lib(64)?/python\d+(\.\d+)?t?/(site|dist)-packages/")


class Kind(str, Enum):
    """What a path is, without following it."""

    FILE = "file"
    LINK = "link"


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """What one owner puts at a path."""

    owner: str
    sha256: str
    size: int
    executable: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One path of an environment and what it must be."""

    path: str
    """POSIX, relative to the environment directory."""
    kind: Kind = Kind.FILE
    executable: bool = False
    size: int
    sha256: str
    """Hex digest of the content; of the target string for a link."""
    target: str | None = None
    owner: str
    """`ray==2.56.1`, `source:verl`, `venv` or `envsmith`; several with equal content are joined with a comma."""
    part: Part = "portable"
    alternatives: tuple[Content, ...] = ()
    """All contents, the first included, when owners disagree: which one is on disk is decided by the install."""

    @property
    def owners(self) -> tuple[str, ...]:
        """Every owner of the path."""
        return tuple(self.owner.split(", "))

    @property
    def contents(self) -> tuple[Content, ...]:
        """Every content that is right for the path."""
        own = Content(owner=self.owner, sha256=self.sha256, size=self.size, executable=self.executable)
        return self.alternatives or (own,)


@dataclass(frozen=True, kw_only=True, slots=True)
class Root:
    """A place from which one owner provides a top-level import name."""

    owner: str
    path: str
    kind: RootKind


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """All entries of an environment, sorted by path, one for each path."""

    entries: tuple[Entry, ...]

    def portable(self) -> Manifest:
        """Return the part that must be equal on every machine."""
        return Manifest(entries=tuple(entry for entry in self.entries if entry.part == "portable"))

    @property
    def collisions(self) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
        """Paths whose owners disagree: (path, ((owner, sha256), …))."""
        return tuple(
            (e.path, tuple((c.owner, c.sha256) for c in e.alternatives)) for e in self.entries if e.alternatives
        )

    def by_path(self) -> dict[str, Entry]:
        """Index the entries by path."""
        return {entry.path: entry for entry in self.entries}

    def digest(self) -> str:
        """Return the sha256 of the canonical JSON form."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def import_roots(self, extra: tuple[str, ...] = ()) -> dict[str, tuple[Root, ...]]:
        """Return who provides each top-level import name, and from where; Python takes the first one.

        `extra` names import directories of the environment besides its site-packages, such as `src/verl`.
        """
        return import_roots(self.entries, extra)

    def to_json(self) -> str:
        """Render canonically, one line an entry, so that two manifests can be compared with line tools."""
        lines = [json.dumps(_row(entry), separators=(",", ":")) for entry in self.entries]
        return '{"envsmith-manifest":1,"entries":[\n' + ",\n".join(lines) + "\n]}\n"

    @staticmethod
    def from_json(text: str) -> Manifest:
        """Read what `to_json` wrote.

        Raises:
            IntegrityError: `manifest-malformed` when it is not one, or names a path outside the environment.
        """
        try:
            data = json.loads(text)
            if data["envsmith-manifest"] != 1:
                raise ValueError(f"its version is {data['envsmith-manifest']!r}")
            entries = tuple(map(_entry, data["entries"]))
        except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
            raise _malformed(f"{type(error).__name__}: {error}") from error
        paths = [entry.path for entry in entries]
        if any(a >= b for a, b in pairwise(paths)):
            raise _malformed("its paths are not sorted and unique")
        outside = [path for path in paths if not is_inside(path)]
        if outside:
            raise _malformed(f"`{outside[0]}` leaves the environment")
        return Manifest(entries=entries)


def is_inside(path: str) -> bool:
    """Tell whether a POSIX path is relative, normal and without `..`."""
    return bool(path) and "\0" not in path and not {"", ".", ".."} & set(path.split("/"))


def merge(entries: Iterable[Entry]) -> Manifest:
    """Join entries of several owners into one manifest.

    Equal contents of a path become one entry with all its owners. Contents that differ are kept side by side in
    `alternatives`, because installers let the last one win and run in parallel.

    Raises:
        IntegrityError: `manifest-path-clash` when a path is a file for one owner and a link for another.
    """
    grouped: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        grouped[entry.path].append(entry)
    return Manifest(entries=tuple(_merged(grouped[path]) for path in sorted(grouped)))


def _merged(group: list[Entry]) -> Entry:
    if len(group) == 1:
        return group[0]
    first = group[0]
    if any((entry.kind, entry.target) != (first.kind, first.target) for entry in group):
        raise IntegrityError(
            Problem(
                code="manifest-path-clash",
                message=f"`{first.path}` is not the same kind of file for all its owners",
                where=", ".join(sorted({entry.owner for entry in group})),
            )
        )
    owners: dict[tuple[str, int, bool], set[str]] = defaultdict(set)
    for entry in group:
        for content in entry.contents:
            owners[content.sha256, content.size, content.executable].update(content.owner.split(", "))
    contents = sorted(
        (
            Content(owner=", ".join(sorted(who)), sha256=key[0], size=key[1], executable=key[2])
            for key, who in owners.items()
        ),
        key=lambda content: (content.owner, content.sha256, content.executable),
    )
    return replace(
        first,
        executable=contents[0].executable,
        size=contents[0].size,
        sha256=contents[0].sha256,
        owner=", ".join(sorted({name for who in owners.values() for name in who})),
        part="site" if any(entry.part == "site" for entry in group) else "portable",
        alternatives=tuple(contents) if len(contents) > 1 else (),
    )


def site_packages(python: str) -> str:
    """Return the path of site-packages in an environment for Python `python` (`3.11`)."""
    return f"lib/python{python}/site-packages"


def portable_entries(listing: WheelListing, owner: str, python: str = "3.11") -> tuple[Entry, ...]:
    """Return the entries that follow from a wheel alone, sorted by path.

    Left out, because their content depends on the place or the installer: RECORD and its like, console scripts,
    and scripts whose `#!python` line is rewritten. Scripts that are not rewritten become executable.
    """
    info, data = wheel_folders(listing)
    rewritten = {path for path in listing.rewritten_scripts if path.startswith(f"{data}/scripts/")}
    entries = []
    for member in listing.members:
        folder, _, name = member.path.rpartition("/")
        if member.path in rewritten or (folder == info and name in INSTALLER_FILES):
            continue
        path, is_script = installed_path(member.path, data, listing.name, python)
        entries.append(
            Entry(
                path=path,
                executable=member.executable or is_script,
                size=member.size,
                sha256=member.sha256,
                owner=owner,
            )
        )
    return tuple(sorted(entries, key=lambda entry: entry.path))


def file_entry(path: str, content: bytes, owner: str, *, part: Part, executable: bool = False) -> Entry:
    """Make the entry of a file with known content."""
    digest = hashlib.sha256(content).hexdigest()
    return Entry(path=path, executable=executable, size=len(content), sha256=digest, owner=owner, part=part)


def link_entry(path: str, target: str, owner: str) -> Entry:
    """Make the entry of a symbolic link."""
    content = target.encode(errors="surrogateescape")
    digest = hashlib.sha256(content).hexdigest()
    return Entry(path=path, kind=Kind.LINK, size=len(content), sha256=digest, target=target, owner=owner, part="site")


def import_roots(entries: Iterable[Entry], extra: tuple[str, ...] = ()) -> dict[str, tuple[Root, ...]]:
    """Return who provides each top-level import name; see `Manifest.import_roots`."""
    kinds: dict[tuple[str, str, str], RootKind] = {}
    for entry in entries:
        base = import_base(entry.path, extra)
        if base is None or (found := _root_of(entry.path[len(base) :])) is None:
            continue
        name, place, kind = found
        for owner in entry.owners:
            key = (name, base + place, owner)
            kinds[key] = kind if kinds.get(key, "namespace") == "namespace" else kinds[key]
    roots: dict[str, list[Root]] = defaultdict(list)
    for (name, path, owner), kind in sorted(kinds.items()):
        roots[name].append(Root(owner=owner, path=path, kind=kind))
    return {name: tuple(sorted(found, key=lambda root: _FIRST.index(root.kind))) for name, found in roots.items()}


def import_base(path: str, extra: tuple[str, ...] = ()) -> str | None:
    """Return the import directory that `path` lies in, with its final slash, or None."""
    match = _SITE_PACKAGES.match(path)
    if match:
        return match.group()
    return next((f"{folder}/" for folder in extra if path.startswith(f"{folder}/")), None)


def importable(rest: str) -> tuple[str, int] | None:
    """Return the dotted name that a path below an import directory provides, and its rank; None when it provides none.

    Of two paths for one name the lower rank wins: package, extension, source, bytecode.
    Source: `importlib.machinery.FileFinder`, docs.python.org, read 2026-11-29.
    """
    *folders, name = rest.split("/")
    # `x.cpython-311-x86_64-linux-gnu.so`, `x.abi3.so`, `x.py`; `libx.so.9` and `x.cfg.py` provide nothing.
    stem, dot, suffix = name.partition(".")
    native = suffix == "so" or suffix.endswith(".so")
    if not dot or not (native or suffix in ("py", "pyc")) or "__pycache__" in folders:
        return None
    if not all(part.isidentifier() for part in (*folders, stem)):
        return None
    if stem == "__init__" and folders:
        return ".".join(folders), 0
    return ".".join((*folders, stem)), 1 if native else 2 if suffix == "py" else 3


def _root_of(rest: str) -> tuple[str, str, RootKind] | None:
    """Return (top-level name, its place, its kind) for a path below an import directory."""
    found = importable(rest)
    if found is None:
        return None
    name, rank = found
    if "/" not in rest:
        return name, rest, "extension" if rank == 1 else "module"
    top = rest.split("/", 1)[0]
    return top, top, "package" if rank == 0 and name == top else "namespace"


def wheel_folders(listing: WheelListing) -> tuple[str, str]:
    """Return the names of the wheel's .dist-info and .data directories, as the wheel spells them."""
    tops = (member.path.split("/", 1)[0] for member in listing.members)
    info = next((top for top in tops if top.endswith(".dist-info")), f"{listing.name}-{listing.version}.dist-info")
    return info, info.removesuffix(".dist-info") + ".data"


def installed_path(path: str, data: str, name: str, python: str) -> tuple[str, bool]:
    """Return where a wheel member is installed, and whether it is a script."""
    top, _, rest = path.partition("/")
    scheme, _, below = rest.partition("/")
    if top != data or not below:
        return f"{site_packages(python)}/{path}", False
    folders = {
        "purelib": f"{site_packages(python)}/",
        "platlib": f"{site_packages(python)}/",
        "scripts": "bin/",
        "data": "",
        "headers": f"include/site/python{python}/{name}/",
    }
    if scheme not in folders:
        raise IntegrityError(
            Problem(code="wheel-data-unknown", message=f"`{path}` has no place in an environment", where=name)
        )
    return folders[scheme] + below, scheme == "scripts"


def _row(entry: Entry) -> list[object]:
    kind = "link" if entry.kind is Kind.LINK else "exec" if entry.executable else "file"
    row: list[object] = [entry.path, kind, entry.size, entry.sha256, entry.owner, entry.part]
    if entry.target is not None or entry.alternatives:
        row.append(entry.target)
    if entry.alternatives:
        row.append([[c.owner, c.sha256, c.size, c.executable] for c in entry.alternatives])
    return row


def _entry(row: list[object]) -> Entry:
    path, kind, size, sha256, owner, part, *rest = row
    target = rest[0] if rest else None
    alternatives = rest[1] if len(rest) > 1 else []
    if not (isinstance(path, str) and isinstance(size, int) and isinstance(sha256, str) and isinstance(owner, str)):
        raise ValueError(f"a row is not well formed: {str(row)[:120]}")
    if (
        part not in ("portable", "site")
        or kind not in ("file", "exec", "link")
        or (kind == "link") != (target is not None)
    ):
        raise ValueError(f"a row is not well formed: {str(row)[:120]}")
    return Entry(
        path=path,
        kind=Kind.LINK if kind == "link" else Kind.FILE,
        executable=kind == "exec",
        size=size,
        sha256=sha256,
        target=None if target is None else str(target),
        owner=owner,
        part="portable" if part == "portable" else "site",
        alternatives=tuple(
            Content(owner=who, sha256=digest, size=length, executable=bool(mode))
            for who, digest, length, mode in (alternatives if isinstance(alternatives, list) else [])
        ),
    )


def _malformed(why: str) -> IntegrityError:
    return IntegrityError(
        Problem(
            code="manifest-malformed",
            message=f"the manifest cannot be read: {why}",
            hint="build the environment again",
        )
    )
