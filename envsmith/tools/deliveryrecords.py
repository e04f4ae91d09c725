"""What deliveries left in a destination: the journal of one that did not end, and the record of those that did.

While a delivery is under way the old record stands aside under another name, so that no kill loses it. Nothing but
plain files is opened: a pipe would never answer.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from envsmith.delivery import (
    BEFORE,
    JOURNAL,
    RECORD,
    SUMS,
    Content,
    Delivered,
    Written,
    parse_journal,
    parse_record,
    record_text,
    sums_text,
)
from envsmith.errors import InputError, Problem
from envsmith.tools.checkpointcopy import hash_file, write_whole
from envsmith.tools.checkpointscan import Source, SourceFile
from envsmith.tools.files import filesystem, fsync_folder, read_plain


class Earlier:
    """What earlier deliveries left, as one of a source into the same folder meets it."""

    def __init__(self, source: Source, destination: Path) -> None:
        """Read journal and record.

        Raises:
            InputError: `destination-differs` where something else has one of their names.
            SupplyError: what `filesystem` raises.
        """
        self._destination = destination
        self._taken = {file.path for file in source.files} | source.links.keys()
        self.is_open = os.path.lexists(destination / JOURNAL)
        if os.path.lexists(destination / SUMS) and not is_plain(destination / SUMS):
            raise InputError(blocked(destination / SUMS))
        self.record = _read_record(destination / RECORD)
        self._before = self.record or _read_record(destination / BEFORE)
        self._written = self._read_written()
        self.carried = Delivered(files={}, links={})

    def written(self, path: str) -> Written:
        """What is known of one file."""
        return self._written.get(path, Written())

    def files(self) -> list[SourceFile]:
        """Files of the old record that the source has not."""
        rows = sorted(self._before.files.items()) if self._before else []
        return [
            SourceFile(path=path, size=one.size, mtime_ns=0, mode=0) for path, one in rows if path not in self._taken
        ]

    def content(self, file: SourceFile, stop: threading.Event) -> Content | None:
        """Read one of them again; None where it is not as it was recorded."""
        place = self._destination / file.path
        if self._before is None or not self._is_reached(file.path) or not is_plain(place):
            return None
        there = hash_file(place, stop) if place.stat().st_size == file.size else None
        return there if there == self._before.files[file.path] else None

    def carry(self, files: dict[str, Content]) -> None:
        """Keep in the new record what is as it was recorded: these files, and the links."""
        if self._before is None:
            return
        links = {
            path: target
            for path, target in self._before.links.items()
            if path not in self._taken and self._is_reached(path) and _target(self._destination / path) == target
        }
        is_complete = self._before.is_complete or not (files or links)
        self.carried = Delivered(files=files, links=links, is_complete=is_complete)

    def dropped(self) -> tuple[str, ...]:
        """What was recorded, is not in the source, and is not carried."""
        if self._before is None:
            return ()
        old = self._before.files.keys() | self._before.links.keys()
        return tuple(sorted(old - self._taken - self.carried.files.keys() - self.carried.links.keys()))

    def set_aside(self) -> None:
        """Move the record of deliveries that ended to its other name; the journal must be there already."""
        with filesystem(self._destination / RECORD):
            if self.record is not None:
                (self._destination / RECORD).replace(self._destination / BEFORE)
                fsync_folder(self._destination)
            (self._destination / SUMS).unlink(missing_ok=True)

    def write(self, delivered: Delivered) -> None:
        """Write the new record, and remove the journal last."""
        write_whole(self._destination / SUMS, sums_text(delivered.files))
        write_whole(self._destination / RECORD, record_text(delivered).encode())
        with filesystem(self._destination / JOURNAL):
            (self._destination / BEFORE).unlink(missing_ok=True)
            (self._destination / JOURNAL).unlink()

    def _read_written(self) -> dict[str, Written]:
        written = parse_journal(_read_ours(self._destination / JOURNAL) or b"")
        for path, content in self._before.files.items() if self._before else ():
            old = written.get(path, Written())
            written[path] = Written(ended=frozenset({content}), ours=old.ours, found=old.found)
        return written

    def _is_reached(self, path: str) -> bool:
        """Whether no folder on the way is a link."""
        return not any((self._destination / one).is_symlink() for one in Path(path).parents)


def is_plain(place: Path) -> bool:
    """Whether it is a file, and no link to one."""
    return place.is_file() and not place.is_symlink()


def blocked(place: Path) -> Problem:
    """State that something else has a name that is needed."""
    hint = "move it away, or deliver into another folder"
    message = f"`{place}` is in the way: something else than what is to be delivered has its name"
    return Problem(code="destination-differs", message=message, hint=hint)


def _target(place: Path) -> str | None:
    return str(place.readlink()) if place.is_symlink() else None


def _read_ours(path: Path) -> bytes | None:
    if not os.path.lexists(path):
        return None
    if not is_plain(path):
        raise InputError(blocked(path))
    with filesystem(path):
        return read_plain(path)


def _read_record(path: Path) -> Delivered | None:
    data = _read_ours(path)
    if data is None:
        return None
    record = parse_record(data.decode(errors="replace"))
    if record is None:
        raise InputError(blocked(path))
    return record
