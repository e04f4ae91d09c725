"""Which lines of the finished tree each patch of a series added or changed.

A smoke rung traces these lines, to show that a patch was not only applied but also executed. Made for patches that
`series.parse_patch` takes and that applied where they say; nothing here judges their form, and nothing here runs git.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envsmith.hunks import Hunk, paths, read_hunks


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchedFile:
    """What one patch left in one file of the finished tree."""

    path: str
    """Relative to the tree, under its name after the whole series."""
    lines: tuple[int, ...]
    """From 1, rising; empty where the patch only removes lines, or where later patches changed all of them again."""
    texts: tuple[str, ...]
    """What stands on these lines, without newlines."""


def final_lines(patches: Sequence[bytes]) -> tuple[tuple[PatchedFile, ...], ...]:
    """Return for each patch of a series, in series order, the lines that are still its own in the finished tree.

    A line belongs to the last patch that added or changed it. Files that a later patch deletes are left out.
    """
    owned: dict[str, dict[int, tuple[int, str]]] = {}
    touched: list[list[str]] = []
    for number, data in enumerate(patches):
        moves, deleted = _moves(data), _deleted(data)
        # Hunks of a moved file stand under its new name and speak of the lines under its old one.
        before = {new: owned.get(old, {}) for new, old, _ in moves}
        for new, old, kept in moves:
            if not kept:
                owned.pop(old, None)
                touched = [[new if path == old else path for path in one] for one in touched]
            owned[new] = before[new]
        for path in paths(data):
            own = [hunk for hunk in read_hunks(data) if hunk.path == path]
            owned[path] = _applied(owned.get(path, {}), own, number)
        for path in deleted:
            owned.pop(path, None)
        touched.append(list(paths(data)))
    return tuple(
        tuple(_file(path, owned[path], number) for path in one if path in owned) for number, one in enumerate(touched)
    )


def mislaid(file: PatchedFile, content: str) -> tuple[int, ...]:
    """Return the lines of a patched file that hold another text than the patch wrote there."""
    there = content.split("\n")
    pairs = zip(file.lines, file.texts, strict=True)
    return tuple(line for line, text in pairs if line > len(there) or there[line - 1] != text)


def _applied(owned: dict[int, tuple[int, str]], own: Sequence[Hunk], number: int) -> dict[int, tuple[int, str]]:
    """Move what earlier patches own by the hunks of one patch, drop what it removes, add what it adds."""
    after: dict[int, tuple[int, str]] = {}
    gone: set[int] = set()
    steps: list[tuple[int, int]] = []
    shift = 0
    for hunk in own:
        # A hunk without old lines names the line in front of it.
        old = hunk.start if hunk.old else hunk.start + 1
        new = old + shift
        for mark in hunk.marks:
            if mark.startswith("+"):
                after[new] = (number, mark[1:])
                shift, new = shift + 1, new + 1
            elif mark.startswith("-"):
                gone.add(old)
                shift, old = shift - 1, old + 1
            else:
                old, new = old + 1, new + 1
            steps.append((old, shift))
    for line, owner in owned.items():
        if line not in gone:
            after[line + _shift_at(line, steps)] = owner
    return after


def _shift_at(line: int, steps: Sequence[tuple[int, int]]) -> int:
    """How far an old line has moved: what holds from the last step at or in front of it."""
    shift = 0
    for old, now in steps:
        if old > line:
            break
        shift = now
    return shift


def _file(path: str, owned: dict[int, tuple[int, str]], number: int) -> PatchedFile:
    mine = sorted((line, text) for line, (owner, text) in owned.items() if owner == number)
    return PatchedFile(path=path, lines=tuple(line for line, _ in mine), texts=tuple(text for _, text in mine))


def _headers(data: bytes) -> Iterator[str]:
    """Lines of file headers; lines inside hunks begin with a mark, the patch's own description with a blank."""
    yield from (line for line in data.decode("utf-8", "surrogateescape").split("\n") if line[:1] not in "+- \\")


def _moves(data: bytes) -> list[tuple[str, str, bool]]:
    """(New path, old path, whether the old one stays) of every rename and copy."""
    found: list[tuple[str, str, bool]] = []
    old = ""
    for line in _headers(data):
        word, _, value = line.partition(" from ")
        if word in ("rename", "copy") and value:
            old = value
        word, _, value = line.partition(" to ")
        if word in ("rename", "copy") and value and old:
            found.append((value, old, word == "copy"))
    return found


def _deleted(data: bytes) -> list[str]:
    found: list[str] = []
    path = ""
    for line in _headers(data):
        if line.startswith("diff --git "):
            path = line.rpartition(" b/")[2]
        elif line.startswith("deleted file mode ") and path:
            found.append(path)
    return found
