"""The logs of tests/symptoms with what a diagnosis of them must say; docs/diagnose.md says how to add one."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith.toml_reader import TomlError, read_toml

FOLDER = Path(__file__).parent.parent / "symptoms"
LISTS = ("cases.toml", "held.toml", "real.toml")
"""Seen by whoever wrote the patterns; held out from them; logs of programs that really failed, held out too."""
_KEYS = {
    "name", "files", "kind", "first", "first-holds", "also", "fix-says", "fix-never-says", "cause-says", "secondary",
    "origin",
}  # fmt: skip
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*\.(?:log|txt|csv|out|err)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Logs of one run and what must be said of them."""

    folder: Path
    subject: str
    """The kind that the folder is named for."""
    held: bool
    """Written by another hand than the patterns, or by a program that failed, and not seen by who wrote them."""
    name: str
    files: tuple[str, ...]
    kind: str | None
    first: str | None
    first_holds: str
    also: tuple[str, ...]
    fix_says: tuple[str, ...]
    fix_never_says: tuple[str, ...]
    cause_says: tuple[str, ...]
    secondary: tuple[str, ...]

    @property
    def id(self) -> str:
        """For pytest."""
        return f"{self.subject}-{'held-' if self.held else ''}{self.name}".replace(" ", "_")

    @property
    def paths(self) -> tuple[Path, ...]:
        """The logs, in the order in which they are given."""
        return tuple(self.folder / name for name in self.files)


def cases(folder: Path = FOLDER) -> Iterator[Case]:
    """Give every case, the seen ones of a kind before the held-out."""
    for place in sorted(one for one in folder.iterdir() if one.is_dir()):
        for name in LISTS:
            if (place / name).is_file():
                data = read_toml((place / name).read_text(encoding="utf-8"))
                for row in data.get("case", ()):
                    yield _case(place, row, held=name != "cases.toml")


def _case(folder: Path, row: dict[str, Any], *, held: bool) -> Case:
    return Case(
        folder=folder,
        subject=folder.name,
        held=held,
        name=row["name"],
        files=tuple(row["files"]),
        kind=row.get("kind"),
        first=row.get("first"),
        first_holds=row.get("first-holds", ""),
        also=tuple(row.get("also", ())),
        fix_says=tuple(row.get("fix-says", ())),
        fix_never_says=tuple(row.get("fix-never-says", ())),
        cause_says=tuple(row.get("cause-says", ())),
        secondary=tuple(row.get("secondary", ())),
    )


def faults(folder: Path = FOLDER) -> Iterator[str]:
    """Say what is wrong with the cases themselves."""
    for place in sorted(one for one in folder.iterdir() if one.is_dir()):
        used: set[str] = set()
        for name in LISTS:
            if not (place / name).is_file():
                continue
            where = f"{place.name}/{name}"
            try:
                rows = read_toml((place / name).read_text(encoding="utf-8")).get("case", ())
            except TomlError as error:
                yield f"{where}:{error.line}: {error}"
                continue
            names = [row.get("name") for row in rows]
            yield from (f"{where}: two cases are named `{one}`" for one in set(names) if names.count(one) > 1)
            for row in rows:
                said = f"{where}: `{row.get('name')}`"
                yield from (f"{said}: {words}" for words in _faults(place, row, held=name != "cases.toml"))
                used |= set(row.get("files", ()))
        for path in sorted(place.iterdir()):
            if path.name not in used and path.name not in LISTS:
                yield f"{place.name}/{path.name}: no case names this file"


def _faults(place: Path, row: dict[str, Any], *, held: bool) -> Iterator[str]:
    yield from (f"unknown key `{key}`" for key in sorted(row.keys() - _KEYS))
    yield from (f"`{key}` is missing" for key in ("name", "files", "origin") if not row.get(key))
    for name in row.get("files", ()):
        if not _NAME.fullmatch(name) or name.startswith(("held-", "real-")) != held:
            yield f"`{name}` is no name for a log here"
        if not (place / name).is_file():
            yield f"`{name}` is not there"
            return
    if row.get("kind") and not row.get("first"):
        yield "a cause without `first`"
    if row.get("first") and not row.get("first-holds"):
        yield "`first` without `first-holds`"
    for place_of_line in (*([row["first"]] if row.get("first") else ()), *row.get("secondary", ())):
        name, _, number = place_of_line.rpartition(":")
        if name not in row.get("files", ()) or not number.isdigit():
            yield f"`{place_of_line}` is no FILE:LINE of the case"
            continue
        lines = (place / name).read_bytes().split(b"\n")
        if not 1 <= int(number) <= len(lines) or not lines[int(number) - 1].strip():
            yield f"`{place_of_line}` is no line of the file"
        elif place_of_line == row.get("first"):
            text = lines[int(number) - 1].decode("utf-8", "replace")
            if row.get("first-holds", "") not in text:
                yield f"`{place_of_line}` does not hold `{row['first-holds']}`: {text[:120]}"


if __name__ == "__main__":
    found = list(faults(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
    print("\n".join(found) or f"{sum(1 for _ in cases(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))} cases")
    sys.exit(bool(found))
