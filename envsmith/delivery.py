"""The delivery of a checkpoint as values: names of our files, journal, record, and what stands at a destination.

Pure; `tools/checkpointcopy.py` reads and writes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from posixpath import dirname, isabs, join, normpath
from typing import Any, Final

#: What a delivery leaves in its destination when it is whole; both are written last.
RECORD, SUMS = "envsmith-delivery.json", "envsmith-delivery.sha256"
#: What is there while it is not.
JOURNAL, LOCK, PART_ENDING = ".envsmith-delivery.journal", ".envsmith-delivery.lock", ".envsmith-part"
#: The record of the deliveries that ended, while another one goes on; never there without the journal.
BEFORE: Final = ".envsmith-delivery.before"
#: NAME_MAX of Linux, in bytes (limits.h).
_LONGEST_NAME: Final = 255


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """The content of a file."""

    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivered:
    """A whole delivery, as its record states it."""

    files: Mapping[str, Content]
    links: Mapping[str, str]
    """Targets of symbolic links."""
    is_complete: bool = True
    """Whether no shard was missing; False where `--allow-incomplete` let it pass."""

    @property
    def digest(self) -> str:
        """`sha256:…` of the list of sums, so that anyone can make it again."""
        return f"sha256:{hashlib.sha256(sums_text(self.files)).hexdigest()}"

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(one.size for one in self.files.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """What is known of one file of a destination."""

    ended: frozenset[Content] = frozenset()
    """What deliveries that ended left there."""
    ours: frozenset[Content] = frozenset()
    """What the delivery that did not end wrote."""
    found: frozenset[Content] = frozenset()
    """What that one found there and was told to replace, though no delivery had written it."""


class Standing(Enum):
    """What a file in the destination is to a delivery."""

    DONE = "done"
    """It has the content of the source."""
    OURS = "ours"
    """A delivery that did not end wrote it, and the source has changed since: it is replaced."""
    OLDER = "older"
    """A delivery that ended wrote it, and the source has changed since."""
    DAMAGED = "damaged"
    """A delivery wrote another content than it has now."""
    FOREIGN = "foreign"
    """No delivery wrote it."""


def standing(wanted: Content, there: Content, written: Written) -> Standing:
    """Judge a file by its content alone; what a delivery that ended left is never given up for one that did not."""
    if there == wanted:
        return Standing.DONE
    if there in written.ended:
        return Standing.OLDER
    if there in written.ours:
        return Standing.OURS
    is_known = (written.ended or written.ours) and there not in written.found
    return Standing.DAMAGED if is_known else Standing.FOREIGN


def part_name(name: str) -> str:
    """The name of a file that is being written, beside where it will be."""
    long = f".{name}{PART_ENDING}"
    if len(long.encode(errors="surrogateescape")) <= _LONGEST_NAME:
        return long
    return f".{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:32]}{PART_ENDING}"


def is_part(name: str) -> bool:
    """Whether a file is one that a delivery has not finished."""
    return name.startswith(".") and name.endswith(PART_ENDING)


def link_fault(path: str, target: str) -> str | None:
    """Say why a symbolic link of a source cannot be copied as a link, or None; `path` is relative to the source."""
    if isabs(target):
        return "its target is an absolute path, which means another place in the copy"
    end = normpath(join(dirname(path), target))
    return "its target lies outside" if end == ".." or end.startswith("../") else None


def journal_line(path: str, content: Content, *, is_found: bool = False) -> bytes:
    """One file that will have its final name next, or that was found under the name of one that will."""
    row: dict[str, Any] = {"path": path, "size": content.size, "sha256": content.sha256}
    row |= {"found": True} if is_found else {}
    return (json.dumps(row, sort_keys=True) + "\n").encode()


def parse_journal(data: bytes) -> dict[str, Written]:
    """What a delivery wrote and found, by path; a line that a kill cut off is no line."""
    known: dict[str, Written] = {}
    for line in data.split(b"\n"):
        try:
            row = json.loads(line)
            path, content, is_found = str(row["path"]), _content(row), bool(row.get("found"))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
        old = known.get(path, Written())
        known[path] = replace(old, found=old.found | {content}) if is_found else replace(old, ours=old.ours | {content})
    return known


def _content(row: Any) -> Content:
    size = row["size"]
    if type(size) is not int or size < 0:  # `1e999` is a number of JSON too
        raise ValueError(size)
    return Content(size=size, sha256=str(row["sha256"]))


def _inside(path: Any) -> str:
    """A path that stays below the folder of its record."""
    if not isinstance(path, str) or "\0" in path or path in ("", ".", "..") or isabs(path) or path.startswith("../"):
        raise ValueError(path)
    if normpath(path) != path:
        raise ValueError(path)
    return path


def record_text(delivered: Delivered) -> str:
    """The record; the same files make the same bytes, and it names no place of the machine."""
    table: dict[str, Any] = {
        "envsmith-delivery": 1,
        "bytes": delivered.size,
        "complete": delivered.is_complete,
        "digest": delivered.digest,
        "files": [{"path": path, "size": one.size, "sha256": one.sha256} for path, one in _in_order(delivered.files)],
        "links": [{"path": path, "target": target} for path, target in sorted(delivered.links.items())],
    }
    return json.dumps(table, indent=1) + "\n"


def parse_record(text: str) -> Delivered | None:
    """A record; None for what is none."""
    try:
        table = json.loads(text)
        if table["envsmith-delivery"] != 1:
            return None
        return Delivered(
            files={_inside(row["path"]): _content(row) for row in table["files"]},
            links={_inside(row["path"]): str(row["target"]) for row in table["links"]},
            is_complete=bool(table["complete"]),
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def sums_text(files: Mapping[str, Content]) -> bytes:
    r"""The sums in the form that `sha256sum -c` reads.

    Source: GNU coreutils, cksum output modes: a backslash before the digest says that `\\` and `\n` in the name are
    escaped (read 2026-11-30).
    """
    lines = []
    for path, content in _in_order(files):
        name = path.encode(errors="surrogateescape")
        escaped = name.replace(b"\\", b"\\\\").replace(b"\n", b"\\n")
        mark = b"\\" if escaped != name else b""
        lines.append(mark + content.sha256.encode() + b"  " + escaped + b"\n")
    return b"".join(lines)


def _in_order(files: Mapping[str, Content]) -> Iterable[tuple[str, Content]]:
    return sorted(files.items(), key=lambda row: row[0].encode(errors="surrogateescape"))
