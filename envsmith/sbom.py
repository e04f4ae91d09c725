"""What an env or a bundle is made of, as values, and the same as CycloneDX 1.6 JSON.

The document is a function of the values alone: no time, no random number, no order of the caller, no host but that of
a git URL that the caller gives. Nothing here does I/O.
Source: the JSON schema bom-1.6 of CycloneDX and the package URL types `pypi`, `github` and `generic`, read 2026-11-30.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from envsmith.errors import printable
from envsmith.licences import Licence
from envsmith.lock import File, Lock, LockedSeries
from envsmith.series import Patch

Kind = Literal["wheel", "sdist", "source", "build", "interpreter", "tool", "library", "asset"]

#: Kind to component type. `library` is a package that envsmith itself needs, `build` one that only building needs.
_TYPES = {
    "wheel": "library", "sdist": "library", "source": "application", "build": "library", "interpreter": "platform",
    "tool": "application", "library": "library", "asset": "data",
}  # fmt: skip
_PYTHON = {"wheel", "sdist", "build", "tool", "library"}
#: What no env holds when it runs.
_EXCLUDED = {"sdist", "build", "tool", "library"}
_NAMESPACE = uuid.UUID("6f1d0f5c-2f6e-5c39-9d0e-0c6c5a4e3b52")
_LONGEST = 200
_NO_LICENCE = Licence()


@dataclass(frozen=True, kw_only=True, slots=True)
class AppliedPatch:
    """One patch of a series, with what its header says."""

    path: str
    """Relative to `patches/`."""
    sha256: str
    layer: str
    description: str = ""
    """First line of its Description."""
    origin: str = ""
    forwarded: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ancestor:
    """The file that a made one was made from."""

    name: str
    version: str
    filename: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """One part; where its file is had from or lies is not said."""

    kind: Kind
    name: str
    version: str | None = None
    filename: str | None = None
    size: int | None = None
    sha256: str | None = None
    envs: tuple[str, ...] = ()
    licence: Licence = _NO_LICENCE
    native: bool | None = None
    """Whether it holds machine code; None where nobody looked."""
    ancestors: tuple[Ancestor, ...] = ()
    patches: tuple[AppliedPatch, ...] = ()
    """In the order of use."""
    commit: str | None = None
    tree: str | None = None
    """Git tree id after the patches."""
    url: str | None = None
    """The git URL of the recipe."""
    made_with: tuple[str, ...] = ()
    """Build requirements of a built wheel."""

    @property
    def key(self) -> str:
        """What makes two components one: kind, name, version and content; one file of a source gives many trees."""
        content = (self.sha256 or self.commit or "", self.tree if self.kind == "source" else None)
        return ":".join((self.kind, self.name, self.version or "", *filter(None, content)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What the document is about."""

    name: str
    version: str
    """The lock's digest where nothing better is known."""
    envs: Mapping[str, str] = field(default_factory=dict)
    """Env to its target in words."""
    envsmith: str = ""
    """Version of the envsmith that writes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What a lock does not hold, by digest, path or name; every entry may be missing."""

    licences: Mapping[str, Licence] = field(default_factory=dict)
    """By sha256 of a wheel."""
    native: Mapping[str, bool] = field(default_factory=dict)
    """By sha256 of a wheel."""
    patches: Mapping[str, Patch] = field(default_factory=dict)
    """By path relative to `patches/`."""
    urls: Mapping[str, str] = field(default_factory=dict)
    """By name of a source."""
    files: Mapping[str, File] = field(default_factory=dict)
    """By name of a source or asset: the file that carries it."""


# --- values out of locks ---


def components_of(lock: Lock, known: Known) -> tuple[Component, ...]:
    """List what a lock names: wheels, sources, build requirements and assets. The base is not ours and left out."""
    made = _made_wheels(lock, known)
    found = []
    for kind, wheels in (("wheel", lock.wheels), ("build", lock.build_requires)):
        for wheel in wheels:
            plain = Component(
                kind=kind,  # type: ignore[arg-type]
                name=wheel.name, version=wheel.version, filename=wheel.filename, size=wheel.size, sha256=wheel.sha256,
                envs=(lock.env,), licence=known.licences.get(wheel.sha256, _NO_LICENCE),
                native=known.native.get(wheel.sha256),
            )  # fmt: skip
            found.append(replace(plain, **made.get(wheel.sha256, {})) if kind == "wheel" else plain)
    return (*found, *_sources(lock, known), *_assets(lock, known))


def merged(parts: Iterable[Component]) -> tuple[Component, ...]:
    """Make one of equal components of several envs; sorted, whatever the order was."""
    groups: dict[str, list[Component]] = {}
    for part in parts:
        groups.setdefault(part.key, []).append(part)
    found = []
    for group in sorted(groups.values(), key=lambda one: (one[0].kind, one[0].name, one[0].version or "", one[0].key)):
        # the one that says most, then any fixed one: licences may be known to one caller only
        best = min(group, key=lambda one: (one.licence.source == "none", one.native is None, repr(one)))
        found.append(replace(best, envs=tuple(sorted({env for one in group for env in one.envs}))))
    return tuple(found)


def _made_wheels(lock: Lock, known: Known) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for source in lock.sources:
        if source.wheel:
            found[source.wheel.sha256] = {
                "commit": source.commit, "tree": source.tree, "url": known.urls.get(source.name),
                "patches": _patches(source.series, known), "made_with": source.build_requires,
                "ancestors": (_ancestor(source.project, source.version, source.sdist),) if source.sdist else (),
            }  # fmt: skip
    for built in lock.built:
        version = built.filename.partition("-")[2].partition("-")[0]
        ancestor = _ancestor(built.name, version, built.sdist)
        found[built.sha256] = {"ancestors": (ancestor,), "made_with": built.build_requires}
    for patched in lock.patched:
        ancestor = _ancestor(patched.name, patched.original_version, patched.original)
        below = found.get(patched.original.sha256, {})
        found[patched.sha256] = {
            **below, "ancestors": (ancestor, *below.get("ancestors", ())), "tree": patched.tree,
            "patches": (*below.get("patches", ()), *_patches(patched.series, known)),
        }  # fmt: skip
    return found


def _ancestor(name: str, version: str, file: File) -> Ancestor:
    return Ancestor(name=name, version=version, filename=file.filename, size=file.size, sha256=file.sha256)


def _patches(series: Iterable[LockedSeries], known: Known) -> tuple[AppliedPatch, ...]:
    found = []
    for one in series:
        for patch in one.patches:
            header = dict(whole.header) if (whole := known.patches.get(patch.path)) else {}
            said = (header.get(name, "").split("\n")[0] for name in ("Description", "Origin", "Forwarded"))
            description, origin, forwarded = said
            found.append(
                AppliedPatch(
                    path=patch.path, sha256=patch.sha256, layer=one.layer, description=description, origin=origin,
                    forwarded=forwarded,
                )
            )  # fmt: skip
    return tuple(found)


def _sources(lock: Lock, known: Known) -> Iterable[Component]:
    for source in lock.sources:
        file = known.files.get(source.name) or source.sdist
        yield Component(
            kind="source", name=source.name, version=source.version, envs=(lock.env,), commit=source.commit,
            tree=source.tree, url=known.urls.get(source.name), patches=_patches(source.series, known),
            ancestors=(_ancestor(source.project, source.version, source.sdist),) if source.sdist else (),
            filename=file.filename if file else None, size=file.size if file else None,
            sha256=file.sha256 if file else None,
        )  # fmt: skip


def _assets(lock: Lock, known: Known) -> Iterable[Component]:
    for asset in lock.assets:
        file = known.files.get(asset.name)
        yield Component(
            kind="asset", name=asset.name, envs=(lock.env,), filename=asset.path, sha256=asset.sha256,
            size=file.size if file else None,
        )  # fmt: skip


# --- CycloneDX ---


def cyclonedx(parts: Iterable[Component], *, subject: Subject) -> dict[str, Any]:
    """Make the document; the same parts in any order give the same one."""
    components = [_component(part) for part in merged(parts)]
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application", "bom-ref": "subject", "name": _clean(subject.name),
                "version": _clean(subject.version),
            },
            "tools": {"components": [_tool(subject.envsmith)]},
            "properties": [
                {"name": f"envsmith:env:{_clean(env)}", "value": _clean(target)}
                for env, target in sorted(subject.envs.items())
            ],
        },
        "components": components,
    }  # fmt: skip
    content = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    return {**document, "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, content)}"}


def render(document: Mapping[str, Any]) -> str:
    """Write the document; the same one gives the same bytes."""
    return json.dumps(document, sort_keys=True, indent=1) + "\n"


def _tool(version: str) -> dict[str, str]:
    return {"type": "application", "name": "envsmith", **({"version": _clean(version)} if version else {})}


def _component(part: Component) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": _TYPES[part.kind],
        "bom-ref": _reference(part.key),
        "name": _clean(part.name),
        "version": _clean(part.version) if part.version else None,
        "scope": "excluded" if part.kind in _EXCLUDED else "required",
        "hashes": _hashes(part.sha256),
        "licenses": _licences(part.licence),
        "purl": _purl(part),
        "externalReferences": [{"type": "vcs", "url": url}] if (url := plain_url(part.url)) else [],
        "pedigree": _pedigree(part),
        "properties": _properties(part),
    }
    return {key: value for key, value in made.items() if value}


def _reference(key: str) -> str:
    """The key itself, or its digest where it could not stand in a document whole."""
    return key if key == _clean(key) else f"sha256:{hashlib.sha256(key.encode(errors='surrogatepass')).hexdigest()}"


def _hashes(sha256: str | None) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}] if sha256 else []


def _licences(licence: Licence) -> list[dict[str, Any]]:
    """An expression stands alone; anything else is a list of names. All are the author's word."""
    if licence.expression:
        return [{"expression": licence.expression, "acknowledgement": "declared"}]
    names = licence.classifiers if licence.source == "classifier" else (licence.text,)
    return [{"license": {"name": said, "acknowledgement": "declared"}} for name in names if (said := _clean(name))]


def _purl(part: Component) -> str | None:
    if part.kind in _PYTHON:
        return _package_url("pypi", re.sub(r"[-_.]+", "-", part.name).lower(), part.version)
    if part.kind == "asset":
        return None
    url = urlsplit(plain_url(part.url) or "")
    owner = re.fullmatch(r"/([\w.-]+)/([\w.-]+?)(?:\.git)?/?", url.path)
    if part.commit and url.hostname == "github.com" and owner:
        return _package_url(f"github/{_quoted(owner[1].lower())}", owner[2].lower(), part.commit)
    return _package_url("generic", part.name, part.commit or part.version)


def _package_url(space: str, name: str, version: str | None) -> str | None:
    said = _quoted(version or "")
    return f"pkg:{space}/{_quoted(name)}{f'@{said}' if said else ''}" if _quoted(name) else None


def _pedigree(part: Component) -> dict[str, Any]:
    ancestors = [_parent(one, f"{part.key}:from:{n}") for n, one in enumerate(part.ancestors)]
    # a diff has no place for a hash, so it goes where Python's indexes put theirs: behind the path
    patches = [
        {"type": "unofficial", "diff": {"url": f"patches/{quote(_clean(one.path))}#sha256={one.sha256}"}}
        for one in part.patches
    ]
    notes = [f"{one.path} ({one.layer}): {one.description}".removesuffix(": ") for one in part.patches]
    notes += [f"built with {', '.join(part.made_with)}"] if part.made_with else []
    made = {
        "ancestors": ancestors,
        "commits": [{"uid": part.commit}] if part.commit else [],
        "patches": patches,
        "notes": "; ".join(_clean(note) for note in notes),
    }
    return {key: value for key, value in made.items() if value}


def _parent(one: Ancestor, key: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": _reference(key),
        "name": _clean(one.name),
        "version": _clean(one.version),
        "hashes": _hashes(one.sha256),
        "purl": _package_url("pypi", one.name, one.version),
        "properties": [_property("file", one.filename), _property("size", str(one.size))],
    }
    return {key: value for key, value in made.items() if value}


def _properties(part: Component) -> list[dict[str, str]]:
    size = None if part.size is None else str(part.size)
    native = None if part.native is None else str(part.native).lower()
    said = [("kind", part.kind), *(("env", env) for env in part.envs)]
    said += [(name, value) for name, value in (
        ("file", part.filename), ("native", native), ("size", size), ("tree", part.tree),
    ) if value is not None]  # fmt: skip
    return [_property(name, value) for name, value in said]


def _property(name: str, value: str) -> dict[str, str]:
    return {"name": f"envsmith:{name}", "value": _clean(value)}


def plain_url(url: str | None) -> str | None:
    """A git URL without credentials; a local path or anything that is no plain URL is left out."""
    try:
        parts = urlsplit(url or "")
        if parts.scheme not in ("https", "http", "ssh", "git") or not parts.hostname:
            return None
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return None
    return f"{parts.scheme}://{parts.hostname}{port}{quote(_clean(parts.path), safe='/~%')}"


def _quoted(text: str) -> str:
    return quote(_clean(text), safe="")


def _clean(text: str, longest: int = _LONGEST) -> str:
    """One line that every JSON reader takes: no control characters, no half characters, not endless."""
    line = printable(" ".join(text[: longest * 4].split()), keep="")
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
