"""Series files and patch files: bytes and text in, values out; every problem of a file is said at once.

The body of a patch is read by `patchbody`. Nothing here reads or writes a file.
Source: DEP-3 (dep-team.pages.debian.net/deps/dep3) for the header, read 2026-11-29.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from dataclasses import dataclass
from enum import Enum

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, canonicalize_version
from packaging.version import InvalidVersion, Version

from envsmith.errors import InputError, Problem
from envsmith.patchbody import Problems, TouchedFile, read_sections

REQUIRED_FIELDS = ("Description", "Origin", "Forwarded", "Last-Update", "Seen-As")
_OPTIONAL_FIELDS = ("Bug", "Author", "Applied-Upstream", "Reviewed-By")
_FIELD = re.compile(r"([A-Za-z][A-Za-z-]*):(.*)")
_SERIES_FIELD = re.compile(r"#\s*(Layer|Base|Description):\s*(.*)")
#: A full commit id, SHA-1 or SHA-256.
COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


class Layer(str, Enum):
    """Why a series exists; the three are kept apart so that each can be left out alone."""

    DEVICE = "device"
    """Adapts the source to a class of machine."""
    FIX = "fix"
    """Mends a fault that upstream has not mended."""
    RESEARCH = "research"
    """Changes the experiment; belongs to the user."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """The ordered patches for one source."""

    entries: tuple[str, ...]
    """Patch file names, in order of use; they lie beside the series file."""
    layer: Layer
    base: str
    """The full commit, or `name==version` of the sdist or wheel, that the patches were made for."""
    description: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """One patch file that has passed every rule."""

    name: str
    header: tuple[tuple[str, str], ...]
    """DEP-3 fields in file order; continuation lines are joined by newlines."""
    touched: tuple[TouchedFile, ...]
    sha256: str
    """Hex digest of the whole file."""
    data: bytes

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path the patch reads or writes, sorted."""
        return tuple(sorted({p for t in self.touched for p in (t.old, t.new) if p is not None}))

    def field(self, name: str) -> str | None:
        """Return one header field."""
        return dict(self.header).get(name)


def parse_series(text: str, where: str) -> Series:
    """Read a series file.

    Raises:
        InputError: `series-header`, `series-entry`, `series-duplicate`, `series-empty` or `patch-crlf`.
    """
    problems = Problems(where)
    fields: dict[str, str] = {}
    entries: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.endswith("\r"):
            problems.add(
                number, "patch-crlf", "line ends with a carriage return", hint="save the file with Unix line ends"
            )
            continue
        if match := _SERIES_FIELD.fullmatch(line.strip()):
            if match[1] in fields:
                problems.add(number, "series-header", f"field `{match[1]}` is given twice")
            fields[match[1]] = match[2].strip()
            continue
        entry = line.split("#", 1)[0].strip()
        if entry in entries:
            problems.add(number, "series-duplicate", f"`{entry}` is listed twice")
        elif entry:
            _check_entry(entry, number, problems)
            entries.append(entry)
    if not entries:
        problems.add(1, "series-empty", "no patch is listed")
    _check_series_fields(fields, problems)
    problems.throw()
    return Series(
        entries=tuple(entries),
        layer=Layer(fields["Layer"]),
        base=fields["Base"],
        description=fields.get("Description", ""),
    )


def check_base(series: Series, base: str, where: str | None = None) -> None:
    """Refuse a series that was made for another tree.

    Raises:
        InputError: `series-wrong-base`.
    """
    if _base_key(series.base) != _base_key(base):
        raise InputError(
            Problem(
                code="series-wrong-base",
                message="the series was made for another tree",
                where=where,
                expected=series.base,
                actual=base,
                hint="pin the source to the series' base, or refresh the patches into a folder for the new one",
            )
        )


def halves(data: bytes) -> tuple[bytes, bytes]:
    """A patch's header and its body, which begins with the first line that `diff --git` begins."""
    found = re.search(rb"(?m)^diff --git ", data)
    at = found.start() if found else len(data)
    return data[:at], data[at:]


def parse_patch(data: bytes, name: str, where: str) -> Patch:
    """Read a patch file.

    Raises:
        InputError: `patch-header`, `patch-empty`, `patch-malformed`, `patch-path-escapes`, `patch-path-git`,
            `patch-symlink`, `patch-mode-line`, `patch-binary` or `patch-crlf`.
    """
    problems = Problems(where)
    text = data.decode("utf-8", errors="surrogateescape")
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    elif lines:
        problems.add(len(lines), "patch-malformed", "the file does not end with a newline")
    _check_bytes(lines, problems)
    start = next((n for n, line in enumerate(lines) if line.startswith("diff --git ")), len(lines))
    header = _parse_header(lines[:start], problems)
    touched: tuple[TouchedFile, ...] = ()
    if start == len(lines):
        problems.add(max(start, 1), "patch-empty", "there is no `diff --git` section")
    elif not problems.has("patch-crlf"):
        touched = read_sections(lines, start, problems)
    problems.throw()
    return Patch(name=name, header=header, touched=touched, sha256=hashlib.sha256(data).hexdigest(), data=data)


def _check_entry(entry: str, number: int, problems: Problems) -> None:
    if "/" in entry or "\\" in entry:
        problems.add(number, "series-entry", f"`{entry}` is a path; a series lists names of files beside it")
    elif len(entry.split()) > 1:
        problems.add(number, "series-entry", f"`{entry}` has options; a line is one file name, applied with `-p1`")
    elif not entry.endswith(".patch"):
        problems.add(number, "series-entry", f"`{entry}` does not end with `.patch`")


def _check_series_fields(fields: dict[str, str], problems: Problems) -> None:
    layers = ", ".join(layer.value for layer in Layer)
    if fields.get("Layer") not in [layer.value for layer in Layer]:
        said = f"`{fields['Layer']}` is no layer" if fields.get("Layer") else "field `Layer` is missing"
        problems.add(1, "series-header", said, hint=f"add a line `# Layer: …`, one of {layers}")
    if not fields.get("Base"):
        problems.add(
            1, "series-header", "field `Base` is missing", hint="add a line `# Base: <full commit or name==version>`"
        )
    elif _base_key(fields["Base"]) is None:
        problems.add(1, "series-header", f"base `{fields['Base']}` is neither a full commit nor `name==version`")


def _base_key(base: str) -> str | None:
    """Reduce a base to a comparable form; `None` when it is not one."""
    if COMMIT.fullmatch(base.lower()):
        return base.lower()
    try:
        requirement = Requirement(base)
        (pin,) = requirement.specifier
        version = Version(pin.version)
    except (InvalidRequirement, InvalidVersion, ValueError):
        return None
    plain = not (requirement.extras or requirement.marker or requirement.url)
    return (
        f"{canonicalize_name(requirement.name)}=={canonicalize_version(version)}"
        if plain and pin.operator == "=="
        else None
    )


def _check_bytes(lines: list[str], problems: Problems) -> None:
    crlf = [number for number, line in enumerate(lines, 1) if line.endswith("\r")]
    if crlf:
        hint = "save the patch with Unix line ends; a file that needs carriage returns cannot be patched here"
        problems.add(crlf[0], "patch-crlf", f"{len(crlf)} lines end with a carriage return", hint=hint)
    nul = next((number for number, line in enumerate(lines, 1) if "\0" in line), None)
    if nul is not None:
        problems.add(nul, "patch-binary", "the patch holds a NUL byte")


def _parse_header(lines: list[str], problems: Problems) -> tuple[tuple[str, str], ...]:
    fields: list[list[str]] = []
    for number, raw in enumerate(lines, 1):
        line = raw.rstrip("\r")
        if match := _FIELD.fullmatch(line):
            _check_field_name(match[1], [name for name, _ in fields], number, problems)
            fields.append([match[1], match[2].strip()])
        elif line.startswith(" ") and fields:
            fields[-1][1] = f"{fields[-1][1]}\n{line.strip()}".strip("\n")
        elif line.strip():
            problems.add(number, "patch-header", f"`{line[:60]}` is neither a field nor a continuation line")
    header = tuple((name, value) for name, value in fields)
    _check_header(dict(header), problems)
    return header


def _check_field_name(name: str, known: list[str], number: int, problems: Problems) -> None:
    if name in known:
        problems.add(number, "patch-header", f"field `{name}` is given twice")
    if name not in REQUIRED_FIELDS + _OPTIONAL_FIELDS:
        problems.add(number, "patch-header", f"field `{name}` is unknown")


def _check_header(header: dict[str, str], problems: Problems) -> None:
    for name in REQUIRED_FIELDS:
        if not header.get(name):
            problems.add(1, "patch-header", f"field `{name}` is missing", hint="see docs/patches.md for the header")
    if date := header.get("Last-Update"):
        try:
            datetime.date.fromisoformat(date)
        except ValueError:
            problems.add(1, "patch-header", f"`Last-Update: {date}` is not a date of the form YYYY-MM-DD")
    if any("\udc80" <= c <= "\udcff" for value in header.values() for c in value):
        problems.add(1, "patch-header", "the header is not UTF-8")
