"""Bytecode files as values: what a name and a header say, which pairs can be proved, what a proof found and remembers.

No I/O: tools/tree.py reads headers, tools/bytecode.py runs the proof, checks/pyc.py judges.

Sources: PEP 3147 (names), PEP 488 (`opt-` in names), PEP 552 (header), and for what the import system does with them
`Lib/importlib/_bootstrap_external.py` of CPython 3.8 to 3.13 (read 2026-11-30).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from struct import unpack
from typing import NamedTuple

from envsmith.observed import Observed, Seen

#: Magic number of every final release of a minor version, asked of the interpreters themselves (2026-11-30); a minor
#: that is not here is judged by the interpreter alone, when a pair is proved.
MAGIC: Mapping[str, int] = {"3.8": 3413, "3.9": 3425, "3.10": 3439, "3.11": 3495, "3.12": 3531, "3.13": 3571}
HEADER_BYTES = 16
SCHEMA = 1

_NAME = re.compile(
    r"(?P<stem>.+)\.(?P<tag>(?:cpython|pypy|graalpy|jython|ironpython)[^/]*?)(?:\.opt-(?P<level>[A-Za-z0-9]+))?\.pyc"
)
_LEVELS = {"": 0, "1": 1, "2": 2}


class CacheName(NamedTuple):
    """What the path of a `__pycache__/*.pyc` says."""

    source: str
    """The path that Python wants a source at; without one it does not load the file."""
    tag: str
    """`cpython-311`; pytest appends its own name and version and has its own loader for such files."""
    level: str
    """Optimisation: empty, `1` (-O) or `2` (-OO)."""


class Fit(str, Enum):
    """What Python makes of a file by its header alone."""

    FITS = "fits"
    """Loaded: modification time and size are those of the source."""
    HASHED = "hashed"
    """Loaded when the hash in the header is that of the source, which a header alone cannot tell."""
    UNCHECKED = "unchecked"
    """Loaded whatever the source says."""
    UNKNOWN = "unknown"
    """The source is a link: the attributes that Python compares are those of another file."""
    STALE = "stale"
    """Never loaded: Python compiles the source again."""


class Pair(NamedTuple):
    """A file of bytecode that Python would load, and the source that it stands for."""

    pyc: str
    source: str
    level: int
    """Optimisation level that `compile` takes."""


class Verdict(NamedTuple):
    """What recompiling one source said about its bytecode."""

    pyc: str
    word: str
    """`same`, `lines`, `differs`, `unreadable`, `crash`, `stale`, `no-compile` or `unproved`."""
    detail: str = ""
    pyc_sha256: str = ""
    source_sha256: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """Result of proving bytecode."""

    pairs: int = 0
    """Pairs that Python would load."""
    remembered: int = 0
    """Proved by an earlier look, with the same bytes on both sides."""
    recompiled: int = 0
    """Looked at now."""
    verdicts: tuple[Verdict, ...] = ()
    """Every verdict of now that is not `same`."""
    left: tuple[str, ...] = ()
    """Bytecode that nobody looked at: it was over the budget, or the proof broke off."""
    seconds: float = 0.0
    problem: str | None = None
    """Why the proof broke off."""

    @property
    def unproved(self) -> int:
        """Pairs about whose code nothing can be said."""
        return len(self.left) + sum(verdict.word in ("no-compile", "unproved") for verdict in self.verdicts)

    def figure(self) -> str:
        """Say what was proved and what was not, in one line."""
        wrong = sum(verdict.word in ("differs", "unreadable", "crash") for verdict in self.verdicts)
        proved = self.pairs - self.unproved - wrong
        said = f"{proved:,} of {self.pairs:,} files of bytecode proved ({self.recompiled:,} recompiled now)"
        return said + (f", {self.unproved:,} not yet: `--deep` proves them" if self.left else "")


class Row(NamedTuple):
    """A proved pair: attributes of the bytecode when it was proved, and the sha256 of both files."""

    size: int
    mtime_ns: int
    ctime_ns: int
    ino: int
    pyc_sha256: str
    source_sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Pairs that were proved, by path of the bytecode; local to one host and mount, never shipped.

    It is as trustworthy as the folder it lies in: whoever can write there can also claim a proof, as with the stat
    index.
    """

    identity: str = ""
    """The interpreter that compiled: another one, even a patch release, may compile otherwise."""
    taken_ns: int = 0
    """Clock of the file system before the files of the rows were read."""
    rows: Mapping[str, Row] = field(default_factory=dict)

    def to_json(self) -> str:
        """Render on one line."""
        content = {"envsmith-bytecode": SCHEMA, "identity": self.identity, "taken_ns": self.taken_ns, "rows": self.rows}
        return json.dumps(content, separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Memory:
        """Read a memory; one that is malformed is an empty one, which costs time and nothing else."""
        try:
            data = json.loads(text)
            rows = {path: Row(*row) for path, row in data["rows"].items()}
            whole = all(
                all(type(number) is int for number in row[:4]) and all(type(digest) is str for digest in row[4:])
                for row in rows.values()
            )
            if data["envsmith-bytecode"] != SCHEMA or type(data["taken_ns"]) is not int or not whole:
                return Memory()
            return Memory(identity=str(data["identity"]), taken_ns=data["taken_ns"], rows=rows)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return Memory()


def tag_of(python: str) -> str:
    """Return the cache tag of CPython `python` (`3.11` or `3.11.7`)."""
    return "cpython-" + "".join(python.split(".")[:2])


def magic_of(python: str) -> int | None:
    """Return the magic number of CPython `python`, None when it is not known."""
    return MAGIC.get(".".join(python.split(".")[:2]))


# An environment has 10,000 of them, and each is asked about when pairs are chosen and again when they are judged.
@lru_cache(maxsize=1 << 16)
def cache_name(path: str) -> CacheName | None:
    """Take a `__pycache__/*.pyc` apart; None for every other place and for a name without a tag."""
    folder, _, name = path.rpartition("/")
    above, _, cache = folder.rpartition("/")
    if cache != "__pycache__" or not name.endswith(".pyc"):
        return None
    prefix = f"{above}/" if above else ""
    # A pytest tag holds dots of its own: `test_x.cpython-311-pytest-8.4.1.pyc`.
    if match := _NAME.fullmatch(name):
        return CacheName(f"{prefix}{match['stem']}.py", match["tag"], match["level"] or "")
    stem, _, tag = name.removesuffix(".pyc").rpartition(".")
    return CacheName(f"{prefix}{stem}.py", tag, "") if stem and tag else None


def source_of(path: str) -> str | None:
    """Return the source that Python would want beside a `__pycache__/*.pyc`, or None elsewhere."""
    name = cache_name(path)
    return name.source if name else None


def judge_header(header: bytes, source: Seen, magic: int | None = None) -> tuple[Fit, str]:
    """Hold a header against the attributes of its source; the second part is a reason, for people.

    Without `magic` the magic number is not looked at.
    """
    if len(header) < HEADER_BYTES:
        return Fit.STALE, "its header is cut short"
    word, flags, mtime, size = unpack("<4I", header[:HEADER_BYTES])
    # The number stands in the lower half, carriage return and line feed in the upper.
    if magic is not None and word != magic | 0x0A0D0000:
        return Fit.STALE, "its magic number is that of another Python"
    if flags & ~0b11:
        return Fit.STALE, "its header has unknown flags"
    if flags & 1:
        return (Fit.HASHED, "compared by hash") if flags & 2 else (Fit.UNCHECKED, "never compared with its source")
    if source.kind != "file":
        return Fit.UNKNOWN, "its source is a link"
    if (mtime, size) == (source.mtime_ns // 1_000_000_000 & 0xFFFFFFFF, source.size & 0xFFFFFFFF):
        return Fit.FITS, "time and size are those of its source"
    return Fit.STALE, "its source has another time or size"


def pairs_to_prove(observed: Observed, listed: Mapping[str, str], *, python: str) -> tuple[Pair, ...]:
    """Return every pair whose bytecode this Python would load, sorted.

    `listed` are the digests that a manifest wants, by path: bytecode that is as listed came in a wheel and is proved by
    that. Bytecode of other interpreters and of pytest is not loaded by this one's import system.
    """
    return tuple(sorted(_pairs(observed, listed, tag_of(python), magic_of(python))))


def _pairs(observed: Observed, listed: Mapping[str, str], tag: str, magic: int | None) -> Iterator[Pair]:
    seen = {item.path: item for item in observed.files}
    for path, header in observed.bytecode.items():
        name = cache_name(path)
        if name is None or name.tag != tag or name.level not in _LEVELS:
            continue
        source = seen.get(name.source)
        if source is None or source.kind not in ("file", "link") or _is_listed(path, listed, observed):
            continue
        if judge_header(header, source, magic)[0] is not Fit.STALE:
            yield Pair(path, name.source, _LEVELS[name.level])


def _is_listed(path: str, listed: Mapping[str, str], observed: Observed) -> bool:
    digest = observed.digests.get(path)
    return digest is not None and listed.get(path) == digest
