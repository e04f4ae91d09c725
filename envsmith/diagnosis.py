"""Sightings and the first effective error → the causes of a failed run, in order of evidence.

A sign counts where the first effective error is: on its line, in its traceback or its message. Elsewhere it counts
less, and on lines that only follow from another failure not at all. Without a sign nothing is guessed: then the answer
is the first effective error and the layer that its lines speak of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from envsmith.conditions import Names, sentences
from envsmith.layers import layer_of
from envsmith.logs.firsterror import FirstError, Found, Secondary, answer, choose, found_in
from envsmith.logs.lines import LogFile
from envsmith.logs.signs import Tier
from envsmith.logs.streams import Event
from envsmith.redaction import redacted
from envsmith.report import Severity
from envsmith.symptoms import NEAR_LINES, Listener, Seen, Sighting, sightings
from envsmith.symptomtable import Symptom, needles, symptoms

_TAIL_LINES = 30
"""How far behind its first line an error's message may go, and native stacks after it."""
_BESIDE_LINES = 20
"""How far from the first effective error another error of the same rank or worker belongs to it."""


class Relation(IntEnum):
    """What the line of a sign has to do with the first effective error: the lowest counts first."""

    SAME = 0
    CAUSE = 1
    """Another error that says what is wrong."""
    NOTICE = 2
    """A death without its reason, or a line that no error belongs to."""
    WARNING = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """A cause that is named."""

    symptom: Symptom
    severity: Severity
    relation: Relation | None
    """None where nothing failed."""
    file: str
    line: int
    """1-based: the first effective line of it."""
    text: str
    names: Names
    cause: str
    fix: str
    rank: int | None = None
    worker: str | None = None
    secondary: tuple[Secondary, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What one pass over the logs of a run has found."""

    files: tuple[str, ...]
    found: tuple[Found, ...]
    listeners: tuple[Listener, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What the logs of a run say."""

    first: FirstError | None
    causes: tuple[Cause, ...]
    layer: str | None
    """Of an error that no cause is named for."""


Tap = Callable[[bytes, int], None]
"""Takes every block of whole lines of one log, with the number of its first line."""


def read_run(files: Sequence[LogFile], taps: Callable[[int], Sequence[Tap]] = lambda place: ()) -> Reading:
    """Read the logs of one run, each once; `taps` gives who else is handed the blocks of the file of a place."""
    found: list[Found] = []
    listeners = []
    extra = tuple(needle.encode() for needle in needles())
    for place, file in enumerate(files):
        listener = Listener(symptoms=symptoms(), file=place, needles=extra, taps=taps(place))
        found += found_in(file, place, listener)
        listeners.append(listener)
    return Reading(files=tuple(file.name for file in files), found=tuple(found), listeners=tuple(listeners))


def judge(reading: Reading, facts: Names, progress: Mapping[int, Sequence[int]] | None = None) -> Diagnosis:
    """Name the causes in what was read, with what is known beyond the logs, as `host.driver` and `lock.torch`.

    `progress` is that of `choose`.
    """
    first = choose(reading.found, progress)
    told = None if first is None else answer(reading.files, first, reading.found)
    seen = sightings(symptoms(), reading.listeners, reading.files, facts)
    named = causes(seen, first, reading.files, told.secondary if told else ())
    layer = layer_of(told) if told is not None and not any(one.severity is Severity.ERROR for one in named) else None
    return Diagnosis(first=told, causes=named, layer=layer)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Placed:
    sighting: Sighting
    relation: Relation | None
    event: Event | None

    @property
    def order(self) -> tuple[int, int, int, int]:
        relation = -1 if self.relation is None else int(self.relation)
        own = self.event is not None and self.event is self.sighting.seen.event
        exact = own or self.sighting.sign.role == "root"
        return relation, not exact, self.sighting.seen.file, self.sighting.seen.line.number


def causes(
    found: Iterable[Sighting], first: Found | None, files: Sequence[str], secondary: Sequence[Secondary]
) -> tuple[Cause, ...]:
    """Name the causes, the best founded first; `secondary` are the lines that are shown beside the first error."""
    placed = [one for one in (_placed(sighting, first) for sighting in found) if one is not None]
    best: dict[int, _Placed] = {}
    order = {id(one.sighting.symptom): n for n, one in reversed(list(enumerate(placed)))}
    for one in placed:
        key = id(one.sighting.symptom)
        if key not in best or one.order < best[key].order:
            best[key] = one
    chosen = sorted(best.values(), key=lambda one: (one.order[:2], order[id(one.sighting.symptom)], one.order[2:]))
    kept = list(_without_rivals(chosen))
    return tuple(_cause(one, kept, first, files, secondary) for one in kept)


def _placed(sighting: Sighting, first: Found | None) -> _Placed | None:
    """Say what a sighting is worth; None where it is worth nothing."""
    seen, role = sighting.seen, sighting.sign.role
    event = _event_of(seen, role)
    if first is None:
        return _Placed(sighting=sighting, relation=None, event=event) if role in ("silent", "root") else None
    late = role in ("warning", "root") and (seen.file != first.file or seen.line.number > first.event.line.number)
    if late:
        return None
    if role == "death" and (event is None or _root(event) is not _root(first.event)):
        return None
    if role == "root" or _belongs(seen, event, first):
        return _Placed(sighting=sighting, relation=Relation.SAME, event=event)
    if role == "warning":
        return _Placed(sighting=sighting, relation=Relation.WARNING, event=event)
    if event is None:
        return _Placed(sighting=sighting, relation=Relation.NOTICE, event=event)
    if event.tier >= Tier.CONSEQUENCE and role != "silent":
        return None  # the first error is nearer to the cause, whatever this line says
    relation = Relation.CAUSE if event.tier is Tier.CAUSE else Relation.NOTICE
    return _Placed(sighting=sighting, relation=relation, event=event)


def _event_of(seen: Seen, role: str) -> Event | None:
    """The error that a line belongs to: its own, the one that ends its traceback, or the one whose message goes on."""
    if seen.event is not None:
        return seen.event
    if seen.inside and seen.after is not None:
        return seen.after
    if seen.before is not None and seen.line.number - seen.before.line.number <= _TAIL_LINES:
        return seen.before
    near = seen.after is not None and seen.after.line.number - seen.line.number <= NEAR_LINES
    return seen.after if near and role == "error" else None


def _belongs(seen: Seen, event: Event | None, first: Found) -> bool:
    if seen.file != first.file:
        return False
    if event is not None and _root(event) is _root(first.event):
        return True
    apart = abs(seen.line.number - first.event.line.number)
    if apart == 0:
        return True
    if seen.line.stream != first.event.line.stream or (event is not None and event.tier is Tier.NEVER):
        return False
    if seen.line.stream == (None, None):  # anybody may have written either: an error of its own is another one
        goes_on = first.event.line.text.rstrip().endswith(":")
        return apart <= 1 and (seen.event is None or goes_on)
    return apart <= _BESIDE_LINES


def _root(event: Event) -> Event:
    return event.root or event


def _without_rivals(chosen: Sequence[_Placed]) -> Iterator[_Placed]:
    """Leave out what gives way: one error has one cause, and one failure is named once."""
    beaten = {kind for one in chosen for kind in one.sighting.symptom.beats}
    rest = [one for one in chosen if one.sighting.symptom.kind not in beaten] or list(chosen)
    named: set[str] = set()
    lines: set[tuple[int, int]] = set()
    same = False
    for one in rest:
        kind, place = one.sighting.symptom.kind, (one.sighting.seen.file, one.sighting.seen.line.number)
        if one.relation is Relation.SAME and same:
            continue
        if place in lines or (kind in named and one.relation is not Relation.CAUSE):
            continue
        same = same or one.relation is Relation.SAME
        named.add(kind)
        lines.add(place)
        yield one


def _cause(
    one: _Placed, kept: Sequence[_Placed], first: Found | None, files: Sequence[str], secondary: Sequence[Secondary]
) -> Cause:
    seen, symptom = one.sighting.seen, one.sighting.symptom
    same = first if one.relation is Relation.SAME else None
    line = same.event.line if same else seen.line
    led = kept[0].relation is Relation.SAME
    grave = (one is kept[0] and one.relation is not Relation.WARNING) or (not led and one.relation is Relation.CAUSE)
    return Cause(
        symptom=symptom,
        severity=Severity.ERROR if grave else Severity.WARNING,
        relation=one.relation,
        file=files[same.file if same else seen.file],
        line=line.number,
        text=redacted(line.body.strip()),
        names=one.sighting.names,
        cause=redacted(" ".join(sentences(symptom.cause, one.sighting.names))),
        fix=redacted(" ".join(sentences(symptom.fix, one.sighting.names))),
        rank=line.rank,
        worker=line.worker,
        secondary=tuple(secondary) if same else (),
    )
