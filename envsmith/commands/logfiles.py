"""Logs as a user names them: files, folders of logs, compressed ones and `-`, read in pieces and never whole."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from envsmith.commands.envs import shown, user_path
from envsmith.errors import InputError, Problem
from envsmith.logs.lines import LogFile
from envsmith.tools.progress import Progress

STDIN = "-"
PIECE_BYTES = 1 << 20
#: What counts as a log in a folder, by the end of its name.
ENDINGS = (".log", ".txt", ".out", ".err", ".csv", ".log.gz")
MOST_FILES = 4096
_GZIP = b"\x1f\x8b"


def log_paths(named: Iterable[str]) -> list[tuple[str, Path | None]]:
    """The files that logs named by a user are, each once, with the name that answers use; None is standard input.

    Raises:
        InputError: `log-unreadable` for each that is not there, or is a folder without logs; `path-malformed`.
    """
    problems: list[Problem] = []
    found: dict[str, Path | None] = {}
    for text in named:
        if text == STDIN:
            found[STDIN] = None
            continue
        path = user_path(text)
        inner = _in_folder(path) if path.is_dir() else None
        if inner is not None:
            found.update({f"{text.rstrip('/')}/{one.relative_to(path).as_posix()}": one for one in inner})
            if not inner:
                problems.append(
                    _unreadable(path, "no log lies in this folder", f"its files end in {', '.join(ENDINGS)}")
                )
        elif not path.exists():
            problems.append(_unreadable(path, "there is no such file", "name the log of the run that failed"))
        elif not (path.is_file() or path.is_fifo()):
            problems.append(_unreadable(path, "this is no file", "name the log of the run that failed"))
        else:
            found[text] = path
    if len(found) > MOST_FILES:
        hint = "name the logs of the run that failed only"
        problems.append(Problem(code="log-unreadable", message=f"these are {len(found):,} files", hint=hint))
    if problems:
        raise InputError(*problems)
    return list(found.items())


def _in_folder(folder: Path) -> list[Path]:
    files = (path for path in folder.rglob("*") if path.name.endswith(ENDINGS) or path.suffix[1:].isdigit())
    return sorted(path for path in files if path.is_file() and not path.name.startswith("."))


def _unreadable(path: Path, words: str, hint: str) -> Problem:
    return Problem(code="log-unreadable", message=words, where=shown(path), hint=hint)


def total_bytes(paths: Iterable[tuple[str, Path | None]]) -> int:
    """How much there is to read, as far as sizes say."""
    return sum(path.stat().st_size for _, path in paths if path is not None and path.is_file())


def opened(paths: Iterable[tuple[str, Path | None]], stack: ExitStack, progress: Progress) -> list[LogFile]:
    """Open logs for one reading; `stack` closes them.

    Raises:
        InputError: `log-unreadable` for each that cannot be read.
    """
    problems: list[Problem] = []
    files: list[LogFile] = []
    for name, path in paths:
        try:
            stream = sys.stdin.buffer if path is None else stack.enter_context(path.open("rb"))
        except OSError as error:
            assert path is not None
            problems.append(_unreadable(path, f"it cannot be read: {error.strerror}", "run as a user who may read it"))
            continue
        files.append(LogFile(name=name, pieces=_pieces(stream, name, progress)))
    if problems:
        raise InputError(*problems)
    return files


def _pieces(stream: IO[bytes], name: str, progress: Progress) -> Iterator[bytes]:
    first = _read(stream, name, progress)
    if not first.startswith(_GZIP):
        while first:
            yield first
            first = _read(stream, name, progress)
        return
    unpacked = zlib.decompressobj(31)
    while first:
        try:
            yield unpacked.decompress(first)
        except zlib.error:
            return  # half a file: what could be unpacked was given
        first = unpacked.unused_data or _read(stream, name, progress)
        if unpacked.eof:
            unpacked = zlib.decompressobj(31)


def _read(stream: IO[bytes], name: str, progress: Progress) -> bytes:
    try:
        data = stream.read(PIECE_BYTES)
    except OSError as error:
        words = f"reading stopped: {error.strerror}"
        hint = "copy it to a disk that answers"
        raise InputError(Problem(code="log-unreadable", message=words, where=name, hint=hint)) from error
    progress.advance(len(data))
    return data
