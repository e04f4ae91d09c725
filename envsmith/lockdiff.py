"""Two locks against each other: every difference as a value, with sizes, and their text.

Every field of a lock is compared, so two locks without a difference are the same lock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from typing import Any

from packaging.version import InvalidVersion, Version

from envsmith.lock import BuiltWheel, Conflict, File, Lock, LockedSeries, LockedSource, PatchedWheel, Wheel
from envsmith.plan import megabytes

#: Parts in the order in which people ask for them, with their headings.
PARTS = {
    "target": "target",
    "package": "packages",
    "source": "sources",
    "patched": "patched wheels",
    "built": "wheels built from an sdist",
    "build-requires": "build requirements",
    "conflict": "accepted conflicts",
    "base": "base packages",
    "asset": "assets",
    "extra": "extras",
    "lock": "the lock itself",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Detail:
    """One field of something that is in both locks; None where one has it not."""

    field: str
    old: str | None
    new: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One difference."""

    part: str
    """A key of PARTS."""
    kind: str
    """added, removed, up, down, wheel (the same version, another file) or changed."""
    name: str
    old: str | None = None
    new: str | None = None
    bytes: int = 0
    """How many bytes more the second lock has for this."""
    details: tuple[Detail, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LockDiff:
    """All differences of two locks."""

    changes: tuple[Change, ...]
    old_bytes: int
    """Size of all wheels of the first lock."""
    new_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "equal": not self.changes,
            "bytes": {"a": self.old_bytes, "b": self.new_bytes, "change": self.new_bytes - self.old_bytes},
            "changes": [asdict(change) for change in self.changes],
        }


def compare(old: Lock, new: Lock) -> LockDiff:
    """Compare two locks."""
    changes = [
        *_target(old, new),
        *_wheels("package", old.wheels, new.wheels),
        *_listed("source", old.sources, new.sources, lambda item: item.name, _source),
        *_listed("patched", old.patched, new.patched, lambda item: item.name, _patched),
        *_listed("built", old.built, new.built, lambda item: item.name, _built),
        *_wheels("build-requires", old.build_requires, new.build_requires),
        *_listed("conflict", old.conflicts, new.conflicts, lambda item: (item.package, item.requirement), _conflict),
        *_listed("base", getattr(old, "base", ()), getattr(new, "base", ()), lambda item: item.name, _plain),
        *_listed("asset", old.assets, new.assets, lambda item: item.name, _plain),
        *_extras(old.extras, new.extras),
        *_rest(old, new),
    ]
    rank = {part: n for n, part in enumerate(PARTS)}
    return LockDiff(
        changes=tuple(sorted(changes, key=lambda change: (rank[change.part], change.name, change.kind))),
        old_bytes=sum(wheel.size for wheel in old.wheels),
        new_bytes=sum(wheel.size for wheel in new.wheels),
    )


#: What the functions above look at; all other fields are compared as they are.
_LOOKED_AT = {
    "target", "wheels", "sources", "built", "patched", "build_requires", "conflicts", "base", "assets", "extras",
}  # fmt: skip


def _rest(old: Lock, new: Lock) -> Iterator[Change]:
    for field in fields(Lock):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if field.name not in _LOOKED_AT and before != after:
            name = field.name.replace("_", "-")
            yield Change(part="lock", kind="changed", name=name, old=_text(before), new=_text(after))


def _target(old: Lock, new: Lock) -> Iterator[Change]:
    for detail in _details(asdict(old.target), asdict(new.target)):
        yield Change(part="target", kind="changed", name=detail.field, old=detail.old, new=detail.new)


def _wheels(part: str, old: Iterable[Wheel], new: Iterable[Wheel]) -> Iterator[Change]:
    """Packages by name; of a package that is in both, its version, else its file."""
    before, after = {wheel.name: wheel for wheel in old}, {wheel.name: wheel for wheel in new}
    for name in sorted(before.keys() | after.keys()):
        mine, theirs = before.get(name), after.get(name)
        if mine == theirs:
            continue
        if mine is None or theirs is None:
            only = mine or theirs
            assert only is not None
            kind, size = ("removed", -only.size) if mine else ("added", only.size)
            versions = (only.version, None) if mine else (None, only.version)
            yield Change(part=part, kind=kind, name=name, old=versions[0], new=versions[1], bytes=size)
            continue
        details = _details(_file(mine.file), _file(theirs.file))
        kind = _direction(mine.version, theirs.version)
        yield Change(
            part=part, kind=kind, name=name, old=mine.version, new=theirs.version, bytes=theirs.size - mine.size,
            details=details if kind == "wheel" else (),
        )  # fmt: skip


def _direction(old: str, new: str) -> str:
    if old == new:
        return "wheel"
    try:
        return "up" if Version(new) > Version(old) else "down"
    except InvalidVersion:
        return "changed"


def _listed(
    part: str,
    old: Sequence[Any],
    new: Sequence[Any],
    key: Callable[[Any], Hashable],
    plain: Callable[[Any], Mapping[str, str | None]],
) -> Iterator[Change]:
    """Anything else that has a name."""
    before, after = {key(item): item for item in old}, {key(item): item for item in new}
    for name in sorted(before.keys() | after.keys(), key=str):
        mine, theirs = before.get(name), after.get(name)
        if mine == theirs:
            continue
        kind = "added" if mine is None else "removed" if theirs is None else "changed"
        details = _details(plain(mine) if mine else {}, plain(theirs) if theirs else {})
        yield Change(part=part, kind=kind, name=_name(name), details=details, bytes=_size(theirs) - _size(mine))


def _name(key: Hashable) -> str:
    return ": ".join(key) if isinstance(key, tuple) else str(key)


def _size(item: Any) -> int:
    """What a source adds to the download, beside the wheels."""
    return item.sdist.size if isinstance(item, LockedSource) and item.sdist else 0


def _conflict(conflict: Conflict) -> dict[str, str | None]:
    return _plain(conflict, "package", "requirement")


def _source(source: LockedSource) -> dict[str, str | None]:
    return {
        **_plain(source, "series", "sdist", "wheel"),
        **(_file(source.sdist, "sdist ") if source.sdist else {}),
        **(_file(source.wheel, "wheel ") if source.wheel else {}),
        **_series(source.series),
    }


def _patched(wheel: PatchedWheel) -> dict[str, str | None]:
    return {**_plain(wheel, "series", "original"), **_file(wheel.original, "original "), **_series(wheel.series)}


def _built(wheel: BuiltWheel) -> dict[str, str | None]:
    return {**_plain(wheel, "sdist"), **_file(wheel.sdist, "sdist ")}


def _series(series: Iterable[LockedSeries]) -> dict[str, str | None]:
    """Each patch by name and digest, and the order that they are applied in."""
    found: dict[str, str | None] = {}
    order = []
    for one in series:
        order += [f"{one.path} ({one.layer}): {', '.join(p.path.rpartition('/')[2] for p in one.patches) or 'none'}"]
        found |= {f"patch {patch.path}": patch.sha256 for patch in one.patches}
    return {"series": "; ".join(order) or None, **found}


def _plain(item: Any, *left_out: str) -> dict[str, str | None]:
    """The fields of a data class as text, but for its name and those that are written out otherwise."""
    values = ((field.name, getattr(item, field.name)) for field in fields(item))
    return {name.replace("_", "-"): _text(value) for name, value in values if name not in ("name", *left_out)}


def _file(file: File, prefix: str = "") -> dict[str, str | None]:
    return {f"{prefix}filename": file.filename, f"{prefix}size": str(file.size), f"{prefix}sha256": file.sha256}


def _extras(old: Mapping[str, tuple[str, ...]], new: Mapping[str, tuple[str, ...]]) -> Iterator[Change]:
    mine, theirs = ({name: _text(extras) for name, extras in one.items() if extras} for one in (old, new))
    for detail in _details(mine, theirs):
        kind = "added" if detail.old is None else "removed" if detail.new is None else "changed"
        yield Change(part="extra", kind=kind, name=detail.field, old=detail.old, new=detail.new)


def _details(old: Mapping[str, str | None], new: Mapping[str, str | None]) -> tuple[Detail, ...]:
    names = dict.fromkeys([*old, *new])
    found = (Detail(field=name, old=old.get(name), new=new.get(name)) for name in names)
    return tuple(detail for detail in found if detail.old != detail.new)


def _text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or None
    return str(value)


# --- text ---


def render(diff: LockDiff, a: str, b: str) -> str:
    """Say the differences for people, grouped by part."""
    sizes = f"{megabytes(diff.old_bytes)} -> {megabytes(diff.new_bytes)} ({_more(diff.new_bytes - diff.old_bytes)})"
    if not diff.changes:
        return f"{a} and {b} are equal, wheels {megabytes(diff.old_bytes)}"
    lines = [f"{a} -> {b}: {_counted(diff.changes)}; wheels {sizes}"]
    for part, changes in groupby(diff.changes, key=lambda change: change.part):
        lines += ["", PARTS[part], *(line for change in changes for line in _lines(change))]
    return "\n".join(lines)


def _counted(changes: Sequence[Change]) -> str:
    return f"{len(changes)} difference{'' if len(changes) == 1 else 's'}"


def _lines(change: Change) -> Iterator[str]:
    values = [value if len(value) != 64 else value[:12] for value in (change.old, change.new) if value is not None]
    said = " -> ".join(dict.fromkeys(values))
    if change.kind == "changed" and change.old is None and change.new is not None:
        said = f"none -> {said}"
    elif change.kind == "changed" and change.old is not None and change.new is None:
        said = f"{said} -> none"
    size = f" ({_more(change.bytes)})" if change.bytes else ""
    kind = "another wheel" if change.kind == "wheel" else change.kind
    yield f"  {kind:<8} {change.name}{' ' + said if said else ''}{size}"
    for detail in change.details:
        shown = (_short(value) for value in (detail.old, detail.new))
        if change.kind in ("added", "removed"):
            value = detail.new if change.kind == "added" else detail.old
            yield f"           {detail.field}: {_short(value)}"
        else:
            yield f"           {detail.field}: {' -> '.join(shown)}"


def _short(value: str | None) -> str:
    """Digests and commits are long; what is cut is whole in the JSON form."""
    if value is None:
        return "none"
    return value[:12] if len(value) in (40, 64) and not set(value) - set("0123456789abcdef") else value


def _more(count: int) -> str:
    sign = "+" if count > 0 else "-" if count < 0 else "±"
    return f"{sign}{megabytes(abs(count))}"
