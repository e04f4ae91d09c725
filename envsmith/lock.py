"""The lock: PEP 751 with our extras in `[tool.envsmith]`, host-free, one wheel per package.

`render` and `parse` are inverses; `fingerprint` names an environment's directory. Nothing here does I/O.
Source of the format: PEP 751; `packaging.pylock` is its reference reader.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from packaging.utils import parse_wheel_filename

from envsmith.errors import InputError, Problem
from envsmith.target import Target
from envsmith.toml_reader import TomlError, read_toml

SCHEMA = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class File:
    """A file by what it is: name, size in bytes and sha256. Where it is had from is nobody's business here."""

    filename: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    """The one wheel of a package."""

    name: str
    """Canonical name."""
    version: str
    filename: str
    size: int
    sha256: str

    @property
    def file(self) -> File:
        """The wheel as a file."""
        return File(filename=self.filename, size=self.size, sha256=self.sha256)


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedPatch:
    """One patch of a series by name and content."""

    path: str
    """Relative to `patches/`."""
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedSeries:
    """One series as it was applied."""

    path: str
    layer: str
    patches: tuple[LockedPatch, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedSource:
    """A source tree: where it starts, what was applied, what came out."""

    name: str
    project: str
    """Canonical distribution name its build backend reports."""
    version: str
    commit: str | None
    """Git commit, or None for an sdist."""
    sdist: File | None
    extras: tuple[str, ...]
    series: tuple[LockedSeries, ...]
    base_tree: str
    """Git tree id before the series."""
    tree: str
    """Git tree id after the series."""
    install: str
    deps: bool
    requires: tuple[str, ...]
    """Requirements found in the patched tree, as its backend reports them."""
    requires_python: str | None
    build_requires: tuple[str, ...]
    """Canonical names in the lock's `build-requires` that building it needs."""
    wheel: File | None = None
    """The built wheel when `install` is `wheel`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltWheel:
    """A wheel built from an sdist that the recipe's `build` allows."""

    name: str
    filename: str
    sha256: str
    sdist: File
    build_requires: tuple[str, ...]
    source_date_epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchedWheel:
    """A wheel repacked with a series applied."""

    name: str
    filename: str
    sha256: str
    original: File
    series: tuple[LockedSeries, ...]
    tree: str
    """Git tree id over the files that the series touches, after it."""

    @property
    def original_version(self) -> str:
        """The version before our local part."""
        return str(parse_wheel_filename(self.original.filename)[1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Conflict:
    """A declared requirement that is broken on purpose."""

    package: str
    version: str
    requirement: str
    found: str | None
    because: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AlteredFile:
    """A file of a base package that was not as its RECORD says when the snapshot was taken."""

    path: str
    """As RECORD spells it."""
    sha256: str | None
    """None where it was missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedBase:
    """A package of the vendor's base that the env uses or must leave unchanged. It is never downloaded."""

    name: str
    version: str | None
    """The full version, local part included; None where only its presence is known."""
    protected: bool
    files: str | None
    """Digest over its installed files, where the snapshot has it."""
    record: str | None = None
    """Sha256 of its RECORD, where the snapshot has it."""
    altered: tuple[AlteredFile, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LockedAsset:
    """A file that travels with the env."""

    name: str
    path: str
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lock:
    """A whole lock of one env."""

    stack: str
    env: str
    target: Target
    recipe_digest: str
    uv: str
    """Version of uv that resolved it."""
    exclude_newer: str | None
    wheels: tuple[Wheel, ...]
    """Sorted by name; built and patched wheels stand here under their final names."""
    sources: tuple[LockedSource, ...] = ()
    built: tuple[BuiltWheel, ...] = ()
    patched: tuple[PatchedWheel, ...] = ()
    build_requires: tuple[Wheel, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    base: tuple[LockedBase, ...] = ()
    snapshot: str | None = None
    """Digest of the snapshot's interpreter and packages, for an env over a base."""
    assets: tuple[LockedAsset, ...] = ()
    extras: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Extras that were asked for, by package: they decide which requirements are active."""

    def unbuilt(self, stored: Collection[str] = ()) -> tuple[BuiltWheel, ...]:
        """The wheels that still have to be built from sdists; one that is only patched ends with its patched form."""
        finished = {patched.original.sha256 for patched in self.patched if patched.sha256 in stored}
        return tuple(built for built in self.built if built.sha256 not in {*stored, *finished})

    def downloads(self, stored: Collection[str] = ()) -> tuple[tuple[str, File], ...]:
        """Every file that has to be had from an index, a folder or a bundle: (package name, file).

        What is only needed to make a wheel that is `stored` (sha256) is left out.
        """
        made = {built.sha256 for built in self.built} | {patched.sha256 for patched in self.patched}
        made |= {source.wheel.sha256 for source in self.sources if source.wheel}
        found = [(wheel.name, wheel.file) for wheel in self.wheels if wheel.sha256 not in made]
        found += [(wheel.name, wheel.file) for wheel in self.build_requires]
        found += [(built.name, built.sdist) for built in self.unbuilt(stored)]
        unpatched = [patched for patched in self.patched if patched.sha256 not in stored]
        found += [(patched.name, patched.original) for patched in unpatched if patched.original.sha256 not in made]
        found += [(source.project, source.sdist) for source in self.sources if source.sdist]
        return tuple(sorted(set(found), key=lambda entry: (entry[0], entry[1].filename)))

    def source(self, name: str) -> LockedSource:
        """The source of that name; a missing one is a mistake of the caller."""
        return next(source for source in self.sources if source.name == name)

    def canonical(self) -> dict[str, Any]:
        """The content that decides what an env is, for the fingerprint."""
        content = asdict(self)
        for key in ("recipe_digest", "uv", "exclude_newer", "conflicts"):
            content.pop(key)
        return content


def lock_name(stack: str, env: str) -> str:
    """File name of a lock; PEP 751 allows no dot between `pylock.` and `.toml`."""
    return f"pylock.{stack}-{env}.toml"


def fingerprint(
    lock: Lock, launch: Mapping[str, object], python_version: str, python_digest: str, *, base: str | None = None
) -> str:
    """Sha256 that names an env directory: lock content, launch table and interpreter; comments never count.

    `base` is the path of the vendor's Python that the env is laid over.
    """
    content: dict[str, Any] = {
        "lock": lock.canonical(),
        "launch": launch,
        "python": {"version": python_version, "sha256": python_digest},
    }
    if base is not None:
        content["base"] = base
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def digest(text: str) -> str:
    """Sha256 of a lock file's text, as receipts record it."""
    return hashlib.sha256(text.encode()).hexdigest()


def render(lock: Lock) -> str:
    """Write the lock as TOML: the same lock gives the same bytes."""
    out = [
        "# Made by `envsmith lock`. Do not edit: change the recipe and lock again.",
        'lock-version = "1.0"',
        f"environments = [{_value(lock.target.environment_marker())}]",
        f"requires-python = {_value(f'=={lock.target.python_minor}.*')}",
        'created-by = "envsmith"',
    ]
    for wheel in lock.wheels:
        out += ["", "[[packages]]", f"name = {_value(wheel.name)}", f"version = {_value(wheel.version)}"]
        entry = {
            "path": f"wheels/{wheel.filename}",
            "size": wheel.size,
            "hashes": {"sha256": wheel.sha256},
        }
        out.append(f"wheels = [{_value(entry)}]")
    tool = {
        "schema": SCHEMA,
        "stack": lock.stack,
        "env": lock.env,
        "recipe": lock.recipe_digest,
        "uv": lock.uv,
        "exclude-newer": lock.exclude_newer,
        "snapshot": lock.snapshot,
        "target": {"python": lock.target.python, "arch": lock.target.arch, "glibc": lock.target.glibc},
        "extras": {name: list(extras) for name, extras in sorted(lock.extras.items()) if extras},
    }
    out += [
        "",
        "[tool.envsmith]",
        *(f"{key} = {_value(value)}" for key, value in tool.items() if value not in (None, {})),
    ]
    for table, entries in _tables(lock):
        for one in entries:
            out += ["", f"[[tool.envsmith.{table}]]"]
            plain = {key: value for key, value in _plain(one).items() if value is not None}
            out += [f"{key} = {_value(value)}" for key, value in plain.items() if key != "altered" or value]
    return "\n".join(out) + "\n"


def _tables(lock: Lock) -> Iterable[tuple[str, tuple[Any, ...]]]:
    return (
        ("sources", lock.sources),
        ("built", lock.built),
        ("patched", lock.patched),
        ("build-requires", lock.build_requires),
        ("base", lock.base),
        ("conflicts", lock.conflicts),
        ("assets", lock.assets),
    )


def _plain(value: Any) -> dict[str, Any]:
    """A data class as a TOML table: kebab-case keys, absent instead of None."""

    def convert(item: Any) -> Any:
        if isinstance(item, dict):
            return {key.replace("_", "-"): convert(inner) for key, inner in item.items() if inner is not None}
        if isinstance(item, (list, tuple)):
            return [convert(inner) for inner in item]
        return item

    made = convert(asdict(value))
    assert isinstance(made, dict)
    return made


def _value(value: Any) -> str:
    """A TOML value. JSON's string form is TOML's basic string but for DEL, which TOML wants escaped."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, dict):
        inner = ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    items = [_value(item) for item in value]
    flat = f"[{', '.join(items)}]"
    if len(flat) <= 100:
        return flat
    return "[\n" + "".join(f"    {item},\n" for item in items) + "]"


def _key(key: str) -> str:
    return key if key and all(c.isascii() and (c.isalnum() or c in "-_") for c in key) else _value(key)


def parse(text: str, where: str) -> Lock:
    """Read a lock file.

    Raises:
        InputError: `lock-syntax` when it is no TOML, `lock-invalid` when PEP 751 or our tables are not met.
    """
    try:
        data = read_toml(text)
    except TomlError as error:
        raise _wrong("lock-syntax", f"this is not TOML: {error}", where) from error
    try:
        if data["lock-version"].split(".")[0] != "1":
            raise _wrong("lock-invalid", f"lock-version {data['lock-version']} is newer than this envsmith", where)
        return _lock(data)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        words = f"the key `{error.args[0]}` is missing" if isinstance(error, KeyError) else str(error)
        raise _wrong("lock-invalid", f"this is not a lock of envsmith: {words}", where) from error


def _wrong(code: str, message: str, where: str) -> InputError:
    return InputError(
        Problem(code=code, message=message, where=where, hint="make it again with `envsmith lock`, it is never edited")
    )


def _lock(data: dict[str, Any]) -> Lock:
    tool = data["tool"]["envsmith"]
    if tool["schema"] != SCHEMA:
        raise ValueError(f"its schema is {tool['schema']}, this envsmith reads {SCHEMA}")
    target = tool["target"]
    return Lock(
        stack=_text(tool["stack"]),
        env=_text(tool["env"]),
        target=Target(
            python=_matching(target["python"], r"3\.\d+(\.\d+)?"),
            arch=_matching(target["arch"], r"\w+"),
            glibc=_matching(target["glibc"], r"\d+\.\d+"),
        ),
        recipe_digest=_text(tool["recipe"]),
        uv=_text(tool["uv"]),
        exclude_newer=_optional_text(tool.get("exclude-newer")),
        extras={name: _texts(extras) for name, extras in tool.get("extras", {}).items()},
        wheels=tuple(_package(entry) for entry in data.get("packages", [])),
        sources=tuple(_source(entry) for entry in tool.get("sources", [])),
        built=tuple(_built(entry) for entry in tool.get("built", [])),
        patched=tuple(_patched(entry) for entry in tool.get("patched", [])),
        build_requires=tuple(_wheel(entry) for entry in tool.get("build-requires", [])),
        conflicts=tuple(_conflict(entry) for entry in tool.get("conflicts", [])),
        snapshot=_optional_text(tool.get("snapshot")),
        base=tuple(_base(entry) for entry in tool.get("base", [])),
        assets=tuple(
            LockedAsset(name=_text(e["name"]), path=_text(e["path"]), sha256=_sha256(e["sha256"]))
            for e in tool.get("assets", [])
        ),
    )


def _base(entry: dict[str, Any]) -> LockedBase:
    return LockedBase(
        name=_text(entry["name"]),
        version=_optional_text(entry.get("version")),
        protected=_truth(entry["protected"]),
        files=_optional_text(entry.get("files")),
        record=_optional_text(entry.get("record")),
        altered=tuple(
            AlteredFile(path=_text(one["path"]), sha256=_optional_text(one.get("sha256")))
            for one in entry.get("altered", [])
        ),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"`{value}` should be a string")
    return value


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"`{value}` should be an array")
    return tuple(_text(item) for item in value)


def _matching(value: Any, expression: str) -> str:
    text = _text(value)
    if not re.fullmatch(expression, text, re.ASCII):
        raise ValueError(f"`{text}` is none of the values that can stand here")
    return text


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"`{value}` should be true or false")
    return value


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"`{value}` should be a size in bytes")
    return value


def _sha256(value: Any) -> str:
    text = _text(value)
    if len(text) != 64 or set(text) - set("0123456789abcdef"):
        raise ValueError(f"`{text}` is not a sha256")
    return text


def _filename(value: Any) -> str:
    text = _text(value)
    if "/" in text or "\0" in text or text in ("", ".", ".."):
        raise ValueError(f"`{text}` is not a file name")
    return text


def _wheel_name(value: Any) -> str:
    text = _filename(value)
    parse_wheel_filename(text)
    return text


def _package(entry: dict[str, Any]) -> Wheel:
    wheels = entry["wheels"]
    if len(wheels) != 1:
        raise ValueError(f"`{entry['name']}` has {len(wheels)} wheels, a lock of ours names exactly one")
    path = _text(wheels[0]["path"])
    if not path.startswith("wheels/"):
        raise ValueError(f"`{path}` should lie in `wheels/`")
    return Wheel(
        name=_text(entry["name"]),
        version=_text(entry["version"]),
        filename=_wheel_name(path.removeprefix("wheels/")),
        size=_size(wheels[0]["size"]),
        sha256=_sha256(wheels[0]["hashes"]["sha256"]),
    )


def _file(entry: dict[str, Any] | None) -> File | None:
    if entry is None:
        return None
    return File(filename=_filename(entry["filename"]), size=_size(entry["size"]), sha256=_sha256(entry["sha256"]))


def _needed_file(entry: dict[str, Any]) -> File:
    found = _file(entry)
    assert found is not None
    return found


def _wheel(entry: dict[str, Any]) -> Wheel:
    found = _needed_file(entry)
    _wheel_name(found.filename)
    return Wheel(name=_text(entry["name"]), version=_text(entry["version"]), **asdict(found))


def _series(entries: list[dict[str, Any]]) -> tuple[LockedSeries, ...]:
    return tuple(
        LockedSeries(
            path=_text(entry["path"]),
            layer=_text(entry["layer"]),
            patches=tuple(
                LockedPatch(path=_text(patch["path"]), sha256=_sha256(patch["sha256"])) for patch in entry["patches"]
            ),
        )
        for entry in entries
    )


def _source(entry: dict[str, Any]) -> LockedSource:
    return LockedSource(
        name=_filename(entry["name"]),
        project=_text(entry["project"]),
        version=_text(entry["version"]),
        commit=_optional_text(entry.get("commit")),
        sdist=_file(entry.get("sdist")),
        extras=_texts(entry["extras"]),
        series=_series(entry["series"]),
        base_tree=_text(entry["base-tree"]),
        tree=_text(entry["tree"]),
        install=_matching(entry["install"], "editable|wheel"),
        deps=_truth(entry["deps"]),
        requires=_texts(entry["requires"]),
        requires_python=_optional_text(entry.get("requires-python")),
        build_requires=_texts(entry["build-requires"]),
        wheel=_file(entry.get("wheel")),
    )


def _built(entry: dict[str, Any]) -> BuiltWheel:
    return BuiltWheel(
        name=_text(entry["name"]),
        filename=_wheel_name(entry["filename"]),
        sha256=_sha256(entry["sha256"]),
        sdist=_needed_file(entry["sdist"]),
        build_requires=_texts(entry["build-requires"]),
        source_date_epoch=_size(entry["source-date-epoch"]),
    )


def _patched(entry: dict[str, Any]) -> PatchedWheel:
    original = _needed_file(entry["original"])
    _wheel_name(original.filename)
    return PatchedWheel(
        name=_text(entry["name"]),
        filename=_wheel_name(entry["filename"]),
        sha256=_sha256(entry["sha256"]),
        original=original,
        series=_series(entry["series"]),
        tree=_text(entry["tree"]),
    )


def _conflict(entry: dict[str, Any]) -> Conflict:
    return Conflict(
        package=_text(entry["package"]),
        version=_text(entry["version"]),
        requirement=_text(entry["requirement"]),
        found=_optional_text(entry.get("found")),
        because=_text(entry["because"]),
    )
