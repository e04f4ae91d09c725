"""What a store keeps, and for whom: which of its files something in use names, and which nothing names.

Pure. A name is a sha256, a commit, or the name of a git mirror; whoever names a file keeps it. What cannot be told is
kept: a judgement that frees something must not rest on a record that could not be read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from envsmith.errors import InputError
from envsmith.lock import parse
from envsmith.toml_reader import TomlError, read_toml

#: How long a file is kept that nothing names: time for a run that takes no part in the store's lock to name it.
GRACE_S = 3600.0
RECENT, HELD, UNSURE = "recent", "in progress", "cannot be told"

BLOB, SOURCE, BUNDLE, MIRROR, NOTE = "blob", "source", "bundle", "mirror", "note"
PARTIAL, ASIDE, LEFTOVER = "partial", "aside", "leftover"
#: Kinds of files with what people call them, in the order in which they are listed.
KINDS: Mapping[str, str] = {
    BLOB: "wheels and other blobs",
    SOURCE: "index of source bundles",
    BUNDLE: "imported bundles",
    MIRROR: "git mirrors",
    NOTE: "notes on blobs",
    PARTIAL: "partial downloads",
    ASIDE: "wrong files set aside",
    LEFTOVER: "leftovers of killed runs",
}
#: Kinds that a record in use may name; in doubt they are kept.
NAMED = frozenset({BLOB, SOURCE, BUNDLE, MIRROR, NOTE})


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One thing in the store: a file, or a folder that goes as a whole."""

    kind: str
    path: str
    """Relative to the store."""
    size_bytes: int
    age_s: float
    key: str = ""
    """What it is named by: a digest, a commit, the name of a mirror."""
    held: bool = False
    """A running process holds the lock on it."""
    names: frozenset[str] = frozenset()
    """Digests that an index or a bundle names; commits that a mirror holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """Something in use, with all that it names."""

    label: str
    """What people call it: `env demo/app …`, `lock stacks/pylock.demo-app.toml`."""
    names: frozenset[str]
    locks: frozenset[str] = frozenset()
    """Sha256 of its lock file: an imported bundle that holds this lock is in use too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """An item with everyone who keeps it; nobody does when it may go."""

    item: Item
    kept_by: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """All that one claim keeps."""

    label: str
    count: int = 0
    size_bytes: int = 0
    alone_bytes: int = 0
    """What nobody else keeps: it would be freed without this claim."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Total:
    """All items of one kind."""

    count: int = 0
    size_bytes: int = 0
    free_count: int = 0
    free_bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """What a lock file names."""

    digests: frozenset[str]
    commits: frozenset[str] = field(default_factory=frozenset)


def named_by_lock(text: str, where: str) -> Named:
    """Collect every digest that stands in a lock, whatever for, and the commits of its sources.

    A lock of another tool names digests too, and no sources.

    Raises:
        InputError: `lock-syntax`, `lock-invalid` for one that is damaged, or newer than this envsmith.
    """
    found = digests_in(text)
    try:
        lock = parse(text, where)
    except InputError:
        if _is_foreign(text):
            return Named(digests=found)
        raise
    return Named(digests=found, commits=frozenset(source.commit for source in lock.sources if source.commit))


def digests_in(text: str) -> frozenset[str]:
    """Every sha256 in hex that stands in a text."""
    return frozenset(re.findall(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])", text))


def commits_in(text: str) -> frozenset[str]:
    """Every git object id in hex that stands in a text."""
    return frozenset(re.findall(r"(?<![0-9a-f])[0-9a-f]{40}(?![0-9a-f])", text))


def _is_foreign(text: str) -> bool:
    """A whole PEP 751 file that another tool says it made."""
    try:
        data = read_toml(text)
    except TomlError:
        return False
    maker = data.get("created-by")
    return isinstance(data.get("lock-version"), str) and isinstance(maker, str) and maker != "envsmith"


def judge(
    items: Iterable[Item], claims: Iterable[Claim], *, unsure: frozenset[str] = frozenset(), grace_s: float = GRACE_S
) -> tuple[Row, ...]:
    """Say of every item who keeps it.

    `unsure` are kinds of which nothing may go, because a record that could name them cannot be read. What a kept
    bundle or source index names is kept with it.
    """
    everything = tuple(items)
    known = list(claims)
    judgement = _Judgement(unsure=unsure, grace_s=grace_s)
    bundles = [judgement.row(item, _holding(item, known)) for item in everything if item.kind == BUNDLE]
    known += [
        Claim(label=f"bundle {row.item.key[:12]}", names=row.item.names | {row.item.key})
        for row in bundles
        if row.kept_by
    ]
    keepers = _keepers(known)
    sources = [judgement.row(item, keepers.get(item.key, ())) for item in everything if item.kind == SOURCE]
    for row in sources:
        for name in row.item.names if row.kept_by else ():
            keepers[name] = _joined(keepers.get(name, ()), row.kept_by)
    blobs = [judgement.row(item, keepers.get(item.key, ())) for item in everything if item.kind == BLOB]
    kept = {row.item.key: row.kept_by for row in blobs if row.kept_by}
    rest = []
    for item in everything:
        if item.kind == NOTE:
            rest.append(judgement.row(item, _joined(keepers.get(item.key, ()), kept.get(item.key, ()))))
        elif item.kind == MIRROR:
            names = sorted({item.key, *item.names})
            rest.append(judgement.row(item, _joined(*(keepers.get(name, ()) for name in names))))
        elif item.kind not in NAMED:
            rest.append(judgement.row(item, ()))
    return tuple(sorted((*bundles, *sources, *blobs, *rest), key=_by_kind))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Judgement:
    unsure: frozenset[str]
    grace_s: float

    def row(self, item: Item, named_by: tuple[str, ...]) -> Row:
        more: tuple[str, ...] = (HELD,) if item.held else ()
        if not named_by and not more:
            more += (RECENT,) if item.age_s < self.grace_s else ()
            more += (UNSURE,) if not more and item.kind in self.unsure else ()
        return Row(item=item, kept_by=(*named_by, *more))


def _holding(bundle: Item, claims: Iterable[Claim]) -> tuple[str, ...]:
    return _joined(*((claim.label,) for claim in claims if claim.locks & bundle.names))


def _keepers(claims: Iterable[Claim]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for claim in claims:
        for name in claim.names:
            found[name] = _joined(found.get(name, ()), (claim.label,))
    return found


def _joined(*labels: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(label for some in labels for label in some))


def _by_kind(row: Row) -> tuple[int, str]:
    return tuple(KINDS).index(row.item.kind), row.item.path


def reasons(rows: Iterable[Row], claims: Iterable[Claim] = ()) -> tuple[Reason, ...]:
    """Add up what everyone keeps, `claims` first, also those that keep nothing."""
    found = {claim.label: Reason(label=claim.label) for claim in claims}
    for row in rows:
        size = row.item.size_bytes
        for label in row.kept_by:
            old = found.get(label, Reason(label=label))
            found[label] = Reason(
                label=label,
                count=old.count + 1,
                size_bytes=old.size_bytes + size,
                alone_bytes=old.alone_bytes + (size if len(row.kept_by) == 1 else 0),
            )
    return tuple(found.values())


def totals(rows: Iterable[Row]) -> dict[str, Total]:
    """Add up every kind."""
    found = {kind: Total() for kind in KINDS}
    for row in rows:
        old, free = found[row.item.kind], not row.kept_by
        found[row.item.kind] = Total(
            count=old.count + 1,
            size_bytes=old.size_bytes + row.item.size_bytes,
            free_count=old.free_count + free,
            free_bytes=old.free_bytes + (row.item.size_bytes if free else 0),
        )
    return found


def to_dict(row: Row, name: str | None) -> dict[str, Any]:
    """A blob's row for `--json`."""
    return {"digest": row.item.key, "size": row.item.size_bytes, "name": name, "kept_by": list(row.kept_by)}
