"""Lists what is to be delivered, and holds a delivered copy against its record."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from envsmith.delivery import BEFORE, JOURNAL, LOCK, RECORD, SUMS, Delivered, is_part, link_fault, parse_record
from envsmith.errors import InputError, IntegrityError, NegativeAnswer, Problem
from envsmith.tools.checkpointprobe import is_trial
from envsmith.tools.files import filesystem, read_plain

_NAMED = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """A file of a source as it was when the source was listed."""

    path: str
    """Relative to the source, with `/`."""
    size: int
    mtime_ns: int
    mode: int
    """Permission bits."""

    def is_as(self, status: os.stat_result) -> bool:
        """Whether the file still has the size and time it had."""
        return (self.size, self.mtime_ns) == (status.st_size, status.st_mtime_ns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What there is to copy."""

    base: Path
    files: tuple[SourceFile, ...]
    links: dict[str, str] = field(default_factory=dict)
    folders: dict[str, int] = field(default_factory=dict)
    """Permission bits of folders, without the source itself."""
    record: Delivered | None = None
    """Where the source itself was delivered: what it held then."""
    is_file: bool = False

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def list_source(path: Path) -> Source:
    """List a file or a folder with all below it; every problem of the folder is raised at once.

    Raises:
        InputError: `delivery-source-missing`, `delivery-source-empty`, `link-leaves-source`, `special-file`.
        NegativeAnswer: `delivery-source-unfinished`.
        IntegrityError: `delivery-source-differs` where a delivered copy lacks files of its record, or has others.
        SupplyError: what `filesystem` raises.
    """
    if path.is_file():
        with filesystem(path):
            file = _file_of(path.name, path.stat())
        return Source(base=path.parent, files=(file,), is_file=True, record=_record_of_file(path))
    if not path.is_dir():
        hint = "name the folder of a checkpoint, or one file"
        message = f"`{path}` is no file and no folder"
        raise InputError(Problem(code="delivery-source-missing", message=message, hint=hint))
    walk = _Walk(path)
    walk.run()
    if walk.unfinished:
        message = f"`{path}` is a copy that is not finished: {walk.unfinished[0]} is in it"
        hint = "end that delivery first, or remove what is left of it"
        raise NegativeAnswer(Problem(code="delivery-source-unfinished", message=message, hint=hint))
    if walk.problems:
        raise InputError(*walk.problems[:_NAMED], *_rest(len(walk.problems) - _NAMED, walk.problems[-1]))
    if not walk.files:
        message = f"there is no file in `{path}`"
        hint = "name the folder that the checkpoint is in"
        raise InputError(Problem(code="delivery-source-empty", message=message, hint=hint))
    if walk.record:
        _require_recorded(path, walk, walk.record)
    files = tuple(sorted(walk.files, key=lambda file: file.path))
    return Source(base=path, files=files, links=walk.links, folders=walk.folders, record=walk.record)


def _record_of_file(path: Path) -> Delivered | None:
    """What the nearest record above a file says of it; None where there is none, or it does not name the file."""
    for folder in path.parents:
        if os.path.lexists(folder / RECORD):
            content = _read_record(folder / RECORD).files.get(path.relative_to(folder).as_posix())
            return Delivered(files={path.name: content}, links={}) if content else None
    return None


def _read_record(path: Path) -> Delivered:
    with filesystem(path):
        record = parse_record(read_plain(path).decode(errors="replace"))
    if record is None:
        message = f"`{path}` is no record of a delivery, so nobody can tell what was delivered there"
        raise IntegrityError(_differs(message))
    return record


def _require_recorded(base: Path, walk: _Walk, record: Delivered) -> None:
    """Hold names and links of a delivered copy against its record; contents are held against it while they are read."""
    there, recorded = {file.path for file in walk.files}, record.files.keys()
    rows = [(path, "is not there any more, though the record names it") for path in sorted(recorded - there)]
    rows += [(path, "is not in the record: it came after the delivery") for path in sorted(there - recorded)]
    changed = {path for path, _ in walk.links.items() ^ record.links.items()}
    rows += [(path, "is not the link that the record has, or none") for path in sorted(changed)]
    problems = [_differs(f"`{base / path}` {words}") for path, words in rows]
    if problems:
        raise IntegrityError(*problems[:_NAMED], *_rest(len(problems) - _NAMED, problems[-1]))


def _differs(message: str) -> Problem:
    hint = "deliver from where the copy came; or remove its record, if it is meant to be so"
    return Problem(code="delivery-source-differs", message=message, hint=hint)


def _rest(count: int, last: Problem) -> Iterator[Problem]:
    if count > 0:
        yield Problem(code=last.code, message=f"and {count:,} more", hint=last.hint)


def _file_of(path: str, status: os.stat_result) -> SourceFile:
    mode = stat.S_IMODE(status.st_mode)
    return SourceFile(path=path, size=status.st_size, mtime_ns=status.st_mtime_ns, mode=mode)


class _Walk:
    """One pass over a folder; follows no link."""

    def __init__(self, base: Path) -> None:
        self.files: list[SourceFile] = []
        self.links: dict[str, str] = {}
        self.folders: dict[str, int] = {}
        self.problems: list[Problem] = []
        self.unfinished: list[str] = []
        self.record: Delivered | None = None
        self._base = base

    def run(self) -> None:
        """Walk all of it; what may not be copied is noted."""
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            with filesystem(self._base / folder), os.scandir(self._base / folder) as entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_symlink():
                        self._link(path)
                    elif entry.is_dir(follow_symlinks=False):
                        self.folders[path] = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
                        waiting.append(path)
                    elif entry.is_file(follow_symlinks=False):
                        self._file(path, entry)
                    else:
                        self._special(path)

    def _file(self, path: str, entry: os.DirEntry[str]) -> None:
        if is_part(entry.name) or entry.name in (JOURNAL, BEFORE):
            self.unfinished.append(f"`{path}`")
        elif path == RECORD:
            self.record = _read_record(self._base / path)
        elif path not in (SUMS, LOCK) and not is_trial(entry.name):
            self.files.append(_file_of(path, entry.stat(follow_symlinks=False)))

    def _link(self, path: str) -> None:
        with filesystem(self._base / path):
            target = str((self._base / path).readlink())
        fault = link_fault(path, target)
        if fault is None and not (self._base / path).exists():
            fault = "its target is not there"
        if fault is None:
            self.links[path] = target
            return
        hint = "deliver the folder that holds the target too, or make the link a file of its own"
        message = f"the link `{path}` → `{target}` cannot be copied: {fault}"
        self.problems.append(Problem(code="link-leaves-source", message=message, hint=hint))

    def _special(self, path: str) -> None:
        message = f"`{path}` is no file, folder or link, but a socket, a pipe or a device"
        hint = "remove it: whatever made it leaves it behind, and nothing reads it from a checkpoint"
        self.problems.append(Problem(code="special-file", message=message, hint=hint))
