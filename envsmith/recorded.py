"""What an environment says about itself: the RECORDs of its distributions, and the manifest that follows from them.

For an env that another tool made this is all there is. It is weaker than a manifest made from wheels: whoever changes a
file can change its RECORD too. No I/O here; tools/distributions.py reads the files.

Source: recording installed projects (packaging.python.org specifications, read 2026-11-30).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import csv
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from envsmith.manifest import Entry, Kind, Manifest, import_base, is_inside, link_entry, merge
from envsmith.observed import Seen

#: What venv, virtualenv and uv put into site-packages themselves; no distribution owns it.
SCAFFOLDING = ("_virtualenv.py", "_virtualenv.pth", "README.txt", "easy-install.pth")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One row of a RECORD."""

    path: str
    """Relative to the environment; starts with `../` where it lies outside."""
    sha256: str | None
    """None where the row names no sha256, as the row of RECORD itself and those of bytecode do."""
    size: int | None = None
    """Bytes; None where the row names none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """One installed distribution as its metadata folder describes it."""

    name: str
    version: str
    info: str
    """Its `.dist-info` or `.egg-info`, relative to the environment."""
    installer: str | None
    rows: tuple[Row, ...] | None
    """None when it has no RECORD, as what a system's package manager installed."""
    editable: str | None = None
    """Absolute folder of an editable installation."""
    top_level: tuple[str, ...] = ()
    """Import names that it claims, where it has no RECORD."""

    @property
    def owner(self) -> str:
        """`ray==2.56.1`."""
        return f"{self.name}=={self.version}"


def parse_rows(text: str, base: str) -> tuple[Row, ...]:
    """Read a RECORD; `base` is the folder, relative to the environment, that its paths start from.

    Rows that cannot be read are left out: files that they would name then belong to nothing, and that is said.
    """
    rows = []
    for row in _csv_rows(text):
        if row and row[0] and "\0" not in row[0]:
            path = posixpath.normpath(posixpath.join(base, row[0]))
            digest, size = (*row[1:3], "", "")[:2]
            known = int(size) if size.isascii() and size.isdigit() and len(size) < 19 else None
            rows.append(Row(path=path, sha256=_sha256(digest), size=known))
    return tuple(rows)


def _csv_rows(text: str) -> list[list[str]]:
    """All rows in one go; where the library refuses the whole, every line that it can read alone."""
    lines = text.splitlines()
    try:
        return list(csv.reader(lines))
    except csv.Error:
        rows: list[list[str]] = []
        for line in lines:
            with contextlib.suppress(csv.Error):
                rows += csv.reader([line])
        return rows


def _sha256(text: str) -> str | None:
    name, _, value = text.partition("=")
    if name != "sha256":
        return None
    try:
        digest = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except (binascii.Error, ValueError):
        return None
    return digest.hex() if len(digest) == 32 else None


def recorded_manifest(
    distributions: Iterable[Recorded], seen: Mapping[str, Seen], digests: Mapping[str, str]
) -> Manifest:
    """Make a manifest of RECORDs.

    A RECORD knows no modes and no links, so those are as they were seen; a row without a hash proves only that the
    file is there.
    """
    entries = []
    for one in distributions:
        for row in _own_rows(one):
            item = seen.get(row.path)
            if item is not None and item.kind == "link":
                entries.append(link_entry(row.path, item.target or "", one.owner))
                continue
            entries.append(
                Entry(
                    path=row.path,
                    kind=Kind.FILE,
                    executable=bool(item and item.mode & 0o100),
                    size=row.size if row.size is not None else item.size if item else 0,
                    sha256=row.sha256 or digests.get(row.path, ""),
                    owner=one.owner,
                    part="portable" if row.sha256 else "site",
                )
            )
    return merge(_of_one_kind(entries))


def _of_one_kind(entries: list[Entry]) -> list[Entry]:
    """Several owners of a link that was a file: `merge` wants one kind."""
    links = {entry.path for entry in entries if entry.kind is Kind.LINK}
    return [entry for entry in entries if entry.path not in links or entry.kind is Kind.LINK]


def _own_rows(one: Recorded) -> Iterable[Row]:
    # virtualenv lists the folders of bytecode themselves
    left_out = (".pyc", "/__pycache__")
    return (row for row in one.rows or () if is_inside(row.path) and not row.path.endswith(left_out))


def claimed_files(seen: Iterable[Seen], distributions: Iterable[Recorded]) -> frozenset[str]:
    """Files that a distribution without a RECORD may well own."""
    claimed = _claims(distributions)
    return frozenset(item.path for item in seen if import_base(item.path) and not _is_strange(item, claimed))


def judged(seen: Iterable[Seen], owned: frozenset[str], distributions: Iterable[Recorded]) -> tuple[Seen, ...]:
    """What of a foreign environment can be judged: owned files, and what lies in a folder that imports look into.

    What the makers of virtual environments put there themselves, and what a distribution without a RECORD may well
    own, is left out.
    """
    known = tuple(distributions)
    claimed, metadata = _claims(known), tuple(f"{one.info}/" for one in known)
    return tuple(
        item
        for item in seen
        if item.path in owned or (_is_strange(item, claimed) and not item.path.startswith(metadata))
    )


def _claims(distributions: Iterable[Recorded]) -> frozenset[str]:
    claimed, owned = set(), set()
    for one in distributions:
        base = import_base(one.info) or ""
        if one.rows is None:
            claimed |= {one.info} | {f"{base}{name}" for name in one.top_level} | {f"{base}{one.name}"}
        owned |= {base + row.path[len(base) :].split("/", 1)[0] for row in one.rows or () if row.path.startswith(base)}
    return frozenset(claimed - owned)  # nobody claims what another has a RECORD for


def _is_strange(item: Seen, claimed: frozenset[str]) -> bool:
    base = import_base(item.path)
    if base is None:
        return False
    top = item.path[len(base) :].split("/", 1)[0]
    stem = top.split(".", 1)[0]
    return top not in SCAFFOLDING and not {base + top, base + stem} & claimed
