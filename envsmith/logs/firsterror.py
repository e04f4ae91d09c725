"""The first effective error of a run: the line that would have to go for the others not to come.

Causes come before notices of death and these before consequences, whatever came first in time; among equals, time
orders files where all have it, else the order in which they were given. docs/logs.md says the rules to users.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from envsmith.logs.lines import LogFile, RawLine, Reader, cleaned
from envsmith.logs.prefixes import Line, peel, time_of
from envsmith.logs.signs import Tier
from envsmith.logs.streams import Event, Frame, Stream
from envsmith.redaction import redacted

KEPT_EVENTS = 64
"""How many events of a tier are kept of one file."""
SECONDARY = 50
"""How many later lines an answer shows."""
OPEN_LINES = 4000
"""How many lines of a file a traceback may take, other writers' lines included, before it is given up."""
LINE_LETTERS = 4096
"""How much of a line is judged and shown: what follows is data that somebody printed."""
DULL_LINES = 4096
"""How many lines that say nothing, or nothing more, are remembered, since logs repeat themselves."""
DULL_BYTES = 256
SURVIVED_STEPS = 3
"""How many steps of a training behind an error show that it was survived."""
_STREAMS = 4096
_Writer = tuple[int | None, str | None]
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,6})(?!\d)", re.I)
_RECITAL = re.compile(rb"\[(prompt|response|ground_truth|score)\]")
_TABLE_RANK = re.compile(r"\blocal_rank: (\d+)|^\s*rank\s*: (\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Secondary:
    """Another line that went wrong beside the first."""

    file: str
    line: int
    text: str
    reason: str
    """`raised-from`, `consequence`, `notice`, `ignored`, or `other` for an error of its own."""
    rank: int | None = None
    worker: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstError:
    """The first effective error."""

    file: str
    line: int
    """1-based."""
    text: str
    """Cleaned of rank, worker, time and colours; secrets are cut."""
    tier: str
    """`cause`; `notice` when only deaths without a reason were found, `consequence` when only what follows others."""
    exception: str | None = None
    message: str | None = None
    rank: int | None = None
    worker: str | None = None
    signal: str | None = None
    """Such as `SIGKILL`, when the process was killed or crashed."""
    library: str | None = None
    """The shared library that the native stack names first."""
    frame: Frame | None = None
    """The innermost frame of user code, or the innermost at all."""
    time_s: float | None = None
    """Seconds within a year, None where the log has no times."""
    secondary: tuple[Secondary, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Something that went wrong, in the file of this place among those that were given."""

    file: int
    event: Event


class Watch(Protocol):
    """Who looks at the same lines for something of its own, in the one pass over a log."""

    @property
    def needles(self) -> tuple[bytes, ...]:
        """Lower-case texts for which every line is looked through besides those of errors."""

    def see(self, line: Line, event: Event | None, *, inside: bool) -> None:
        """Take a line that holds a needle, with what went wrong on it; `inside` is within a traceback or a stack."""

    def tap(self, block: bytes, number: int) -> None:
        """Take every block of whole lines, with the number of its first line."""


def first_effective_error(files: Sequence[LogFile]) -> FirstError | None:
    """Read the logs of one run and name the first effective error, None when nothing went wrong in them."""
    found = [one for n, file in enumerate(files) for one in found_in(file, n)]
    return first_of([file.name for file in files], found)


def first_of(files: Sequence[str], found: Sequence[Found]) -> FirstError | None:
    """Name the first effective error among all that went wrong in files of these names."""
    first = choose(found)
    return None if first is None else answer(files, first, found)


def choose(found: Sequence[Found], progress: Mapping[int, Sequence[int]] | None = None) -> Found | None:
    """Choose the first effective error among all that went wrong.

    `progress` holds, by the place of a file, the lines in order on which a training said that it goes on: an error
    that it went on after is none, where another one comes behind.
    """
    ranked = sorted((one for one in found if one.event.tier <= Tier.CONSEQUENCE), key=lambda one: one.event.tier)
    best = [one for one in ranked if one.event.tier == ranked[0].event.tier]
    best = _not_survived(best, progress or {})
    if not best:
        return None
    first = _earliest(best)
    return _hinted(found, first) or first


def _not_survived(best: list[Found], progress: Mapping[int, Sequence[int]]) -> list[Found]:
    """Leave out what the run went on after, for several steps, up to another error of its own in the same file."""
    last = {one.file: one.event.line.number for one in sorted(best, key=lambda one: one.event.line.number)}

    def survived(one: Found) -> bool:
        steps, begun = progress.get(one.file, ()), one.event.line.number
        return bisect_left(steps, last[one.file]) - bisect_right(steps, begun) >= SURVIVED_STEPS

    return [one for one in best if not survived(one)]


@dataclass(kw_only=True, slots=True)
class _Writers:
    """The writers of one log, and which of them have begun something that is not ended."""

    streams: dict[_Writer, Stream] = field(default_factory=dict)
    open: dict[_Writer, None] = field(default_factory=dict)
    """In the order in which they began."""

    def feed(self, line: Line, reader: Reader) -> Event | None:
        """Give a line to its writer, and say to the reader whether it must give every line."""
        key = line.stream
        stream = self.streams.setdefault(key, Stream())
        event = stream.feed(line)
        if not stream.open:
            self.open.pop(key, None)
        elif key not in self.open:
            self.open[key], reader.attentive = None, OPEN_LINES
        if self.open and reader.attentive == 0:
            self._give_up(len(self.open))
        if not self.open:
            reader.attentive = 0
        if len(self.streams) > _STREAMS:
            self._give_up(len(self.open) - _STREAMS // 2)
            self.streams = {key: self.streams[key] for key in self.open}
        return event

    def plain(self, line: Line) -> bool:
        """Whether nothing of the line's writer is begun, so that its lines are judged each for itself."""
        stream = self.streams.get(line.stream)
        return stream is None or not (stream.open or stream.grouped or stream.ignored or stream.chained)

    def _give_up(self, count: int) -> None:
        """Forget what those began that began first."""
        for key in list(self.open)[: max(0, count)]:
            self.streams[key].close()
            del self.open[key]


def events_of(file: LogFile, watch: Watch | None = None) -> Iterator[Event]:
    """Give what went wrong in one log, in the order of its lines, in flat memory; what repeats itself not each time."""
    reader, writers = Reader(pieces=file.pieces), _Writers()
    if watch is not None:
        reader.more_needles, reader.tap = watch.needles, watch.tap
    last_time: float | None = None
    dull: set[bytes] = set()
    counts: dict[Tier, int] = {}
    for raw in reader.lines():
        if raw.data in dull and not writers.open:
            continue
        line = peel(raw.number, cleaned(raw.data)[:LINE_LETTERS])
        last_time = line.time_s if line.time_s is not None else last_time
        event = writers.feed(line, reader)
        if line.body.startswith("Last error:"):  # NCCL says what it was on the next line
            reader.attentive = max(reader.attentive, 1)
        enough = event is None
        if watch is not None:
            watch.see(line, event, inside=not writers.plain(line))
        if event is not None:
            few = counts.get(event.tier, 0) <= 2 * KEPT_EVENTS
            if few and event.tier is Tier.CAUSE and _recited(line, raw, is_exception=event.sign.exception is not None):
                event.tier = Tier.NEVER
            counts[event.tier] = counts.get(event.tier, 0) + 1
            enough = counts[event.tier] > 2 * KEPT_EVENTS
            yield event if enough else _timed(event, raw, last_time)
            enough = enough and event.sign.exception is None
        if enough and line.time_s is None and len(raw.data) <= DULL_BYTES and writers.plain(line):
            if len(dull) >= DULL_LINES:
                dull.clear()
            dull.add(raw.data)


def _recited(line: Line, raw: RawLine, *, is_exception: bool) -> bool:
    """Whether a line stands in a prompt or an answer that its writer prints, as VERL's reward managers do.

    They print `[prompt]`, `[response]`, `[ground_truth]` and `[score]`, each at the start of a line (VERL 0.9.0.dev,
    read 2026-11-30): what stands behind one of the first two is data.
    """
    if line.body.startswith(("[prompt]", "[response]")):
        return True
    before = raw.before if is_exception else b""
    for match in reversed(list(_RECITAL.finditer(before))):
        begin = before.rfind(b"\n", 0, match.start()) + 1
        teller = peel(0, cleaned(before[begin : match.end()]))
        if teller.stream == line.stream and teller.body.startswith("["):
            return match[1] in (b"prompt", b"response")
    return False


def _timed(event: Event, raw: RawLine, last_time: float | None) -> Event:
    """Give an event the time of its line, else the last one that stands before it."""
    line = event.line
    if line.time_s is not None:
        return event
    near = time_of(raw.before.decode("utf-8", "replace"), last=True)
    values = {name: getattr(line, name) for name in Line.__slots__}
    event.line = Line(**values | {"time_s": near if near is not None else last_time})
    return event


def found_in(file: LogFile, place: int, watch: Watch | None = None) -> list[Found]:
    """Read one log, the `place`-th of its run, and give what went wrong in it, the first of each tier only."""
    counts: dict[Tier, int] = {}
    kept: list[Found] = []
    guarded: set[int | None] = set()
    for event in events_of(file, watch):
        if event.tier is Tier.CONSEQUENCE and "atchdog" in event.line.text:
            guarded.add(event.line.rank)
        elif event.tier <= Tier.NOTICE and event.sign.signal == "SIGABRT" and _guarded(guarded, event.line.rank):
            event.tier = Tier.CONSEQUENCE
        counts[event.tier] = counts.get(event.tier, 0) + 1
        if counts[event.tier] <= KEPT_EVENTS:
            kept.append(Found(file=place, event=event))
    return kept


def _guarded(ranks: set[int | None], rank: int | None) -> bool:
    """Whether NCCL's watchdog of this rank spoke before: then the abort is its deed, and no death without a reason."""
    return bool(ranks) and (rank is None or None in ranks or rank in ranks)


def _earliest(found: Sequence[Found]) -> Found:
    """The first of one tier: per file by line, across files by time where each has one, else as given."""
    firsts: dict[int, Found] = {}
    for one in found:
        if one.file not in firsts or one.event.line.number < firsts[one.file].event.line.number:
            firsts[one.file] = one
    times = {n: one.event.line.time_s for n, one in firsts.items()}
    if any(time is None for time in times.values()):
        return firsts[min(firsts)]
    return firsts[min(firsts, key=lambda n: (times[n] or 0.0, n))]


def _hinted(found: Sequence[Found], first: Found) -> Found | None:
    """The warning before the error, in its file, that names its cause."""
    for one in found:
        wants = one.event.sign.wants
        if wants is None or one.file != first.file or one.event.line.number > first.event.line.number:
            continue
        if wants.search(first.event.line.text):
            return one
    return None


def answer(files: Sequence[str], first: Found, found: Sequence[Found]) -> FirstError:
    """Tell of the error that was chosen, with the others beside it."""
    event, name = first.event, files[first.file]
    exception = event.sign.exception is not None
    others = sorted(
        (one for one in found if one.event is not event and one.event.tier is not Tier.HINT),
        key=lambda one: (one.file != first.file, one.file, one.event.line.number),
    )
    return FirstError(
        file=name,
        line=event.line.number,
        text=_text(event),
        tier="cause" if event.tier is Tier.HINT else event.tier.name.lower(),
        exception=event.sign.exception,
        message=redacted(event.sign.message) if event.sign.message else event.sign.message,
        rank=_rank(event, name),
        worker=event.line.worker,
        signal=event.sign.signal,
        library=event.library,
        frame=event.frame if exception or event.library or event.sign.signal else None,
        time_s=event.line.time_s,
        secondary=tuple(_secondary(files, one) for one in others[:SECONDARY]),
    )


def _secondary(files: Sequence[str], one: Found) -> Secondary:
    event, name = one.event, files[one.file]
    reasons = {Tier.CAUSE: "other", Tier.NOTICE: "notice", Tier.NEVER: "ignored"}
    reason = "raised-from" if event.root is not None else reasons.get(event.tier, "consequence")
    return Secondary(
        file=name,
        line=event.line.number,
        text=_text(event),
        reason=reason,
        rank=_rank(event, name),
        worker=event.line.worker,
    )


def _text(event: Event) -> str:
    return redacted(event.text or (event.line.body if event.sign.exception else event.line.text).strip())


def _rank(event: Event, name: str) -> int | None:
    """The rank that the line names, else the one that its file is named for."""
    if event.line.rank is not None:
        return event.line.rank
    if match := _TABLE_RANK.search(event.line.text):
        return int(match[1] or match[2])
    match = _RANK_IN_NAME.search(name)
    return int(match[1]) if match else None
