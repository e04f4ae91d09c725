"""The logs and answers of rungs on their way into an evidence folder: the parts that are kept, whole lines only."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from envsmith.evidence import path_fault
from envsmith.tools.files import filesystem

#: Of a longer log so much of its beginning and of its end is kept together.
KEPT_BYTES = 8 << 20
#: What a rung leaves beside logs and answers, configurations for example, is kept up to this size, so many of them.
_LARGEST_OTHER = 1 << 20
_MOST_OTHERS = 40
#: Checkpoints may be deep and many; logs lie near the top.
_MOST_FOLDERS, _DEEPEST = 2000, 4
_LOG = re.compile(r"rank(\d{1,5})\.log")
_OTHER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}\.(?:json|jsonl|yaml|yml|toml|txt|log|csv)")
_LINE_END = re.compile(rb"[\r\n]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """What is kept of one text file."""

    text: str
    cut_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Left:
    """A file that a rung left."""

    path: Path
    name: str
    """Its path below the rung's folder."""
    rank: str | None
    """The rank whose log it is."""


def files_of(folder: Path) -> Iterator[Left]:
    """Yield the plain files of a rung's folder that are evidence, logs and answers first; links are not followed."""
    names = sorted(_names(folder))
    logs = [name for name in names if _LOG.fullmatch(name)]
    answers = [name for name in names if re.fullmatch(r"answer\.\d{1,5}\.json", name)]
    others = [name for name in names if name not in {*logs, *answers} and _is_evidence(name)]
    for name in (*logs, *answers):
        if _size(folder / name) is not None:
            found = _LOG.fullmatch(name)
            yield Left(path=folder / name, name=name, rank=str(int(found[1])) if found else None)
    wanted = [name for name in others if name.endswith(".log") or _is_small(folder / name)]
    yield from (Left(path=folder / name, name=name, rank=None) for name in wanted[:_MOST_OTHERS])


def _names(folder: Path) -> Iterator[str]:
    """Relative paths of what lies in a folder, and of the logs below it, for processes that its payload started."""
    for number, (place, folders, files) in enumerate(os.walk(folder)):
        below = Path(place).relative_to(folder)
        if number >= _MOST_FOLDERS or len(below.parts) >= _DEEPEST:
            folders.clear()
        yield from ((below / name).as_posix() for name in files if not below.parts or name.endswith(".log"))


def _is_evidence(name: str) -> bool:
    """`command.json` holds the whole environment, of which only names are evidence; stacks are written here."""
    kept = name not in ("command.json",) and not name.startswith("stack.")
    return kept and path_fault(name) is None and _OTHER.fullmatch(name.rpartition("/")[2]) is not None


def _is_small(path: Path) -> bool:
    size = _size(path)
    return size is not None and size <= _LARGEST_OTHER


def _size(path: Path) -> int | None:
    try:
        info = path.lstat()
    except OSError:
        return None
    return info.st_size if stat.S_ISREG(info.st_mode) else None


def read_kept(path: Path, most: int = KEPT_BYTES) -> Kept:
    """Read a text; of a longer one its beginning and its end, at line ends, with a line between that says the cut.

    Raises:
        SupplyError: what `filesystem` raises.
    """
    with filesystem(path), path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size <= most:
            return Kept(text=stream.read(most).decode("utf-8", "replace"), cut_bytes=0)
        head = stream.read(most // 2)
        stream.seek(size - most // 2)
        tail = stream.read(most // 2)
    # half of a line may be half of a secret
    ends = [found.end() for found in _LINE_END.finditer(head, max(0, len(head) - (1 << 16)))]
    head = head[: ends[-1]] if ends else b""
    begins = _LINE_END.search(tail)
    tail = tail[begins.end() :] if begins else b""
    cut = size - len(head) - len(tail)
    text = head.decode("utf-8", "replace") + f"\n[envsmith: {cut:,} bytes are left out here]\n"
    return Kept(text=text + tail.decode("utf-8", "replace"), cut_bytes=cut)
