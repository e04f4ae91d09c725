"""Hunks of a patch as values: where each stands, what it looks for, and where a tree differs from it.

Made for patches that `series.parse_patch` takes; nothing here judges their form, and nothing here runs git.
Source of what `git apply --reject --verbose` says: apply.c of git 2.39, read 2026-11-29.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
#: Lines above the hunks that say nothing `git apply` needs, or that a patch may not say.
_LEFT_OUT = ("index ", "old mode ", "new mode ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Hunk:
    """One hunk."""

    path: str
    """The file it changes."""
    number: int
    """Its place among the hunks of this file, from 1."""
    line: int
    """The line of the patch file that holds its `@@`."""
    start: int
    """The line of the old file that it begins at."""
    marks: tuple[str, ...]
    """Its lines with their first character."""

    @property
    def old(self) -> tuple[str, ...]:
        """What must be there."""
        return tuple(mark[1:] for mark in self.marks if not mark.startswith("+"))

    @property
    def context(self) -> int:
        """The greater number of unchanged lines at one of its ends."""
        kept = [mark.startswith(" ") for mark in self.marks]
        return max(_leading(kept), _leading(kept[::-1]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Miss:
    """Where a file comes nearest to a hunk, and the first line that differs."""

    line: int
    """Line of the target, from 1."""
    expected: str | None
    """What the hunk has there; None when the file is longer than it should be."""
    actual: str | None
    """What the file has there; None behind its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Offset:
    """A hunk that applied elsewhere than it says."""

    path: str
    number: int
    line: int
    """Where it applied."""
    lines: int
    """How far that is from where it said."""


def read_hunks(data: bytes) -> tuple[Hunk, ...]:
    """Return the hunks of a patch, in file order; a section without hunks gives none."""
    return tuple(_hunks(data.decode("utf-8", "surrogateescape").split("\n")))


def _hunks(lines: Sequence[str]) -> Iterator[Hunk]:
    path, number, at = "", 0, 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("diff --git "):
            path, number = line.rpartition(" b/")[2], 0
        match = _HUNK.match(line)
        if match is None or not path:
            at += 1
            continue
        number, begins = number + 1, at + 1
        at += 1
        marks = []
        while at < len(lines) and lines[at][:1] in (" ", "+", "-", "\\"):
            marks += [] if lines[at].startswith("\\") else [lines[at]]
            at += 1
        yield Hunk(path=path, number=number, line=begins, start=int(match[1]), marks=tuple(marks))


def paths(data: bytes) -> tuple[str, ...]:
    """Return the files of a patch in order, those without hunks too."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    return tuple(line.rpartition(" b/")[2] for line in lines if line.startswith("diff --git "))


def without_index_lines(diff: bytes) -> bytes:
    """Drop what a patch of ours does not carry from `git diff` output; lines inside hunks never begin like that."""
    kept = [line for line in diff.split(b"\n") if not line.startswith(tuple(word.encode() for word in _LEFT_OUT))]
    return b"\n".join(kept)


def is_unique(hunk: Hunk, lines: Sequence[str]) -> bool:
    """Say whether what a hunk looks for is in a file exactly once; a hunk that looks for nothing fits one place."""
    old = list(hunk.old)
    if not old:
        return True
    starts = (n for n, line in enumerate(lines) if line == old[0])
    return sum(list(lines[n : n + len(old)]) == old for n in starts) == 1


def nearest(hunk: Hunk, lines: Sequence[str]) -> Miss:
    """Find the place of a file that has most of a hunk's lines, the nearest to where it should be of equals."""
    old = hunk.old

    def alike(place: int) -> int:
        return sum(mine == theirs for mine, theirs in zip(old, lines[place : place + len(old)], strict=False))

    places = range(max(1, len(lines)))
    best = max(places, key=lambda place: (alike(place), -abs(place + 1 - hunk.start)))
    for n, expected in enumerate(old):
        actual = lines[best + n] if best + n < len(lines) else None
        if actual != expected:
            return Miss(line=best + n + 1, expected=expected, actual=actual)
    return Miss(line=best + 1, expected=old[0] if old else None, actual=None)


def rejected(said: str, data: bytes) -> tuple[tuple[str, int | None, str], ...]:
    """Read what `git apply --reject --verbose` said: (path, hunk number or None for the whole file, reason)."""
    found: list[tuple[str, int | None, str]] = []
    for path in paths(data):
        # A rename is said as `old => new`.
        shown = rf"(?:[^\n]+ => )?{re.escape(path)}"
        if re.search(rf"^Applied patch {shown} cleanly\.", said, re.MULTILINE):
            continue
        begin = re.search(rf"^Applying patch {shown} with ", said, re.MULTILINE)
        block = said[begin.end() :].partition("\nAppl")[0] if begin else ""
        numbers = [int(number) for number in re.findall(r"^Rejected hunk #(\d+)\.", block, re.MULTILINE)]
        if numbers:
            found += [(path, number, "it is not there") for number in numbers]
            continue
        reason = re.search(rf"^error: {re.escape(path)}: (.+)$", said, re.MULTILINE)
        found.append((path, None, reason[1] if reason else "git does not say why"))
    return tuple(found)


def offsets(said: str) -> tuple[Offset, ...]:
    """Read which hunks applied at another line than they say."""
    found = []
    path = ""
    for line in said.splitlines():
        if match := re.fullmatch(r"Checking patch (.+)\.\.\.", line):
            path = match[1].rpartition(" => ")[2]
        elif match := re.match(r"Hunk #(\d+) succeeded at (\d+) \(offset (-?\d+) lines?\)", line):
            found.append(Offset(path=path, number=int(match[1]), line=int(match[2]), lines=int(match[3])))
    return tuple(found)


def _leading(kept: Sequence[bool]) -> int:
    return next((n for n, one in enumerate(kept) if not one), len(kept))
