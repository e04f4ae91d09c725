"""What stands before a line's own words: rank, worker, time and level, peeled off one after the other."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LEVEL = r"DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL"
_DATE = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?"

#: Forms read in the loggers of Ray 2.56, torchrun 2.10, vLLM 0.18, glog, absl, Slurm 23, BuildKit, transformers 5 and
#: the kernel, 2026-11-30. Each takes at most one blank after it, so that the indentation of a traceback stays.
_PREFIX = re.compile(
    rf"""
      \[(?:rank|default|Rank[ ])(?P<rank>\d{{1,6}})\]:?[ ]?
    | \[\d{{1,6}},(?P<mpi>\d{{1,6}})\]<\w+>:?[ ]?
    | \((?P<worker>(?:[A-Za-z_][^()]{{0,120}}?)?\bpid=[^()]{{1,120}}|raylet|autoscaler|head|bundle_[^()]+)\)[ ]?
    | \[repeated[ ]\d+x[ ]across[ ]cluster\](?:[ ]\(Ray[ ]dedup[^)]*\))?[ ]?
    | [\w.-]+:\d+:\d+[ ]\[(?P<nccl>\d{{1,4}})\][ ]
    | \[(?P<bare>\d{{1,4}})\][ ](?=[\w/.]+:\d+[ ]NCCL)
    | (?P<vlevel>{_LEVEL})[ ](?P<vtime>\d\d-\d\d[ ]\d\d:\d\d:\d\d(?:\.\d+)?)[ ](?:\[[^\]]*\]|[\w./-]+:\d+\])[ ]?
    | \[(?P<hlevel>{_LEVEL})\|(?P<hmore>[^\]]*\][ ](?:{_DATE}[ ])?(?:[\w.]+:\d+[ ])?)>>[ ]?
    | \[?(?P<glog>[EWIF])(?P<gtime>\d{{4}}[ ]\d\d:\d\d:\d+(?:\.\d+)?)[ ]+(?:\d+[ ])?[\w./<>+-]+:\d+\][ ]?
    | \[?(?P<short>[EWIF])(?:[ ][\w./+-]+:\d+)?\][ ]?
    | \[{_DATE}[ ](?P<core>[DIWEC])[ ]\d+[ ]\d+\][ ]?
    | [\[|]?(?P<iso>{_DATE})\]?(?:[:,][ ]?|[ ]-[ ]|[ ]\|[ ]|[ \t])?
    | \[(?P<ctime>[A-Z][a-z]{{2}}[ ][A-Z][a-z]{{2}}[ ][ \d]\d[ ]\d\d:\d\d:\d\d[ ]\d{{4}})\][ ]?
    | (?P<syslog>[A-Z][a-z]{{2}}[ ][ \d]\d[ ]\d\d:\d\d:\d\d)[ ][\w.-]+[ ](?:kernel|[\w.-]+\[\d+\]):[ ]
    | \[[ ]*\d+\.\d+\][ ](?=[A-Za-z])
    | \d\d:\d\d:\d\d-\d{{6}}[ ]
    | \#\d{{1,4}}[ ]\d{{1,6}}\.\d{{1,3}}(?:[ ]|$)
    """,
    re.X,
)
_SRUN = re.compile(r"[ ]{0,4}(\d{1,5}):(?: |$)")
_NODE = re.compile(r"(?:worker|node|host|gpu|ip)[-\w.]{0,60}\d:[ ]")
_LEVELLED = re.compile(
    rf"\[?(?P<level>{_LEVEL})\]?(?:\s*\|\s*[\w.<>]+:[\w.<>]+:\d+ - |:[A-Za-z_][\w.]*:"
    r"| - [\w.]+ - |\s*[-:|]\s?|\s+\[[^\]]*\]\s|\s+)"
)
#: The group that closes last in its form, and the group that holds the level.
_LEVELS = {"vtime": "vlevel", "hmore": "hlevel", "gtime": "glog", "short": "short", "core": "core"}
_RANKS = ("rank", "mpi", "nccl", "bare")
_LETTERS = {"D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "C": "CRITICAL", "F": "FATAL"}
_REPEATED = re.compile(r"\[repeated \d+x across cluster\].*$|\[?\(?last message repeated \d+ times\)?\]?$")
_ADDRESS = re.compile(r",\s*(?:ip|actor_id|repr|node_id|job_id)=[^,]*")
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_TIMES = re.compile(
    r"(?P<iso>\d{4}[-/](?P<m>\d\d)[-/](?P<d>\d\d)[T ](?P<t>\d\d:\d\d:\d\d(?:[.,]\d+)?)(?P<z>Z|[+-]\d\d:?\d\d)?)"
    r"|(?<!\d)[EWIF](?P<gm>\d\d)(?P<gd>\d\d) (?P<gt>\d\d:\d\d:\d\d(?:\.\d+)?)"
    r"|(?<![\d-])(?P<vm>\d\d)-(?P<vd>\d\d) (?P<vt>\d\d:\d\d:\d\d(?:\.\d+)?)"
    rf"|(?P<sm>{'|'.join(_MONTHS[n : n + 3] for n in range(0, 36, 3))}) (?P<sd>[ \d]\d) (?P<st>\d\d:\d\d:\d\d)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A cleaned line and what its prefixes said."""

    number: int
    text: str
    """Without rank, worker and time; with its level, where that stands alone."""
    body: str
    """Without the level and the logger's name, too."""
    rank: int | None = None
    worker: str | None = None
    time_s: float | None = None
    """Seconds within a year: loggers that name no year are compared with those that do."""
    level: str | None = None

    @property
    def stream(self) -> tuple[int | None, str | None]:
        """Who wrote it, as far as the line tells."""
        return self.rank, self.worker


def peel(number: int, text: str) -> Line:
    """Take the prefixes off a cleaned line."""
    at, rank, worker, when, level = 0, None, None, None, None
    if match := (_SRUN.match(text) or _NODE.match(text)):
        rank = int(match[1]) if match.re is _SRUN else None
        at = match.end()
    for _ in range(8):
        match = _PREFIX.match(text, at)
        if match is None or match.end() == at:
            break
        kind, said = match.lastgroup, match.group()
        if kind in _RANKS:
            rank = int(match[kind])
        elif kind == "worker":
            worker = _ADDRESS.sub("", match[kind])
        elif kind in _LEVELS:
            named = match[_LEVELS[kind]]
            level = _LETTERS.get(named, named)
        if when is None and ":" in said:
            when = time_of(said)
        at = match.end()
    if worker and (inner := re.search(r"\brank=(\d{1,6})\b", worker)):
        rank = int(inner[1])
    rest = text[at:]
    if "repeated " in rest:
        rest = _REPEATED.sub("", rest.rstrip()).rstrip()
    own = _LEVELLED.match(rest)
    body = rest[own.end() :] if own else rest
    level = own["level"] if own else level
    return Line(number=number, text=rest, body=body, rank=rank, worker=worker, time_s=when, level=level)


def time_of(text: str, *, last: bool = False) -> float | None:
    """The first (or last) time in some text, in seconds within a year; a written offset from UTC is taken off."""
    found = None
    for match in _TIMES.finditer(text):
        found = match
        if not last:
            break
    if found is None:
        return None
    parts = found.groupdict()
    month = parts["m"] or parts["gm"] or parts["vm"]
    number = int(month) if month else _MONTHS.index(parts["sm"]) // 3 + 1
    day = int(parts["d"] or parts["gd"] or parts["vd"] or parts["sd"])
    hours, minutes, seconds = (parts["t"] or parts["gt"] or parts["vt"] or parts["st"]).replace(",", ".").split(":")
    if not (1 <= number <= 12 and 1 <= day <= 31):
        return None
    return ((number * 31 + day) * 24 + int(hours)) * 3600 + int(minutes) * 60 + float(seconds) - _offset_s(parts["z"])


def _offset_s(zone: str | None) -> int:
    if zone is None or zone == "Z":
        return 0
    digits = zone[1:].replace(":", "")
    return (int(digits[:2]) * 3600 + int(digits[2:]) * 60) * (-1 if zone[0] == "-" else 1)
