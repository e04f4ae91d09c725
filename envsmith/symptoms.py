"""Log → sightings of symptoms: the table of `symptomtable` held against the lines of a run, in the pass that reads it.

It judges nothing: what a sighting is worth beside the first effective error is said in `diagnosis`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from envsmith.conditions import Names, Value, derived, holds
from envsmith.logs.prefixes import Line
from envsmith.logs.streams import Event
from envsmith.symptomtable import Detail, Pattern, Sign, Symptom

KEPT = 64
"""How many lines of one pattern are kept of one file; a log repeats itself."""
NEAR_LINES = 60
_WAITING = 64
_DIGITS = str.maketrans("", "", "0123456789")
_FORMS = 16384
_FORM_LETTERS = 512

_Writer = tuple[int | None, str | None]


@dataclass(kw_only=True, slots=True)
class Seen:
    """A line on which a pattern was found."""

    file: int
    line: Line
    captured: Mapping[str, str]
    event: Event | None = None
    """What went wrong on the line itself."""
    inside: bool = False
    """It stands within a traceback or a native stack."""
    before: Event | None = None
    """What its writer said went wrong last before it."""
    after: Event | None = None
    """And first after it."""


@dataclass(kw_only=True, slots=True)
class Listener:
    """Listens for the patterns of a table in one file; give it to `found_in` as its watch."""

    symptoms: Sequence[Symptom]
    file: int
    needles: tuple[bytes, ...] = ()
    taps: Sequence[Callable[[bytes, int], None]] = ()
    seen: dict[int, list[Seen]] = field(default_factory=dict)
    """By the identity of the pattern."""
    _rows: list[tuple[str, list[Pattern]]] = field(default_factory=list)
    _bare: list[str] = field(default_factory=list)
    """Those texts that have digits, without them: a line with other numbers may hold the text itself."""
    _dull: set[str] = field(default_factory=set)
    _last: dict[_Writer, Event] = field(default_factory=dict)
    _waiting: dict[_Writer, list[Seen]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Put the patterns under the text that each needs."""
        rows: dict[str, list[Pattern]] = {}
        for symptom in self.symptoms:
            for pattern in symptom.patterns:
                for has in pattern.has:
                    rows.setdefault(has, []).append(pattern)
        self._rows = list(rows.items())
        self._bare = [bare for has in rows if (bare := has.translate(_DIGITS)) != has]

    def tap(self, block: bytes, number: int) -> None:
        """Hand the block on."""
        for take in self.taps:
            take(block, number)

    def see(self, line: Line, event: Event | None, *, inside: bool) -> None:
        """Look for every pattern in a line."""
        text = line.text
        form = text.translate(_DIGITS)
        if form not in self._dull:
            hits = {id(one): one for has, patterns in self._rows if has in text for one in patterns}
            self._try(hits.values(), line, event, inside=inside)
            self._remember(form, bool(hits))
        if event is not None:
            for one in self._waiting.pop(line.stream, ()):
                one.after = event
            self._last[line.stream] = event
            if len(self._last) > 4 * _WAITING * _WAITING:
                self._last.clear()

    def _remember(self, form: str, hit: bool) -> None:
        """Keep the forms of lines, digits left out, that hold no pattern's text whatever their numbers are."""
        if hit or len(form) > _FORM_LETTERS or any(has in form for has in self._bare):
            return
        if len(self._dull) >= _FORMS:
            self._dull.clear()
        self._dull.add(form)

    def _try(self, patterns: Iterable[Pattern], line: Line, event: Event | None, *, inside: bool) -> None:
        for pattern in patterns:
            captured = pattern.captured(line.text)
            if captured is None:
                continue
            kept = self.seen.setdefault(id(pattern), [])
            if len(kept) >= KEPT:
                continue
            one = Seen(
                file=self.file,
                line=line,
                captured=captured,
                event=event,
                inside=inside,
                before=self._last.get(line.stream),
            )
            kept.append(one)
            waiting = self._waiting.setdefault(line.stream, [])
            if event is None and len(waiting) < _WAITING:
                waiting.append(one)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sighting:
    """A symptom seen on a line, with everything that its sentences can name."""

    symptom: Symptom
    sign: Sign
    seen: Seen
    names: Names


def sightings(
    symptoms: Sequence[Symptom], listeners: Sequence[Listener], files: Sequence[str], facts: Names
) -> Iterator[Sighting]:
    """Give every sign whose details and conditions are met, in the order of the table.

    `facts` are known beyond the log, as `host.driver` and `lock.torch`.
    """
    seen: dict[int, list[Seen]] = {}
    for listener in listeners:
        for key, found in listener.seen.items():
            seen.setdefault(key, []).extend(found)
    for symptom in symptoms:
        for sign in symptom.signs:
            for one in seen.get(id(sign.pattern), ()):
                names = _names(symptom, one, seen, files)
                if names is not None:
                    said = derived(symptom.derive, {**facts, **names})
                    if all(holds(condition, said) is not False for condition in symptom.when):
                        yield Sighting(symptom=symptom, sign=sign, seen=one, names=said)


def _names(
    symptom: Symptom, one: Seen, seen: Mapping[int, Sequence[Seen]], files: Sequence[str]
) -> dict[str, Value] | None:
    """What is captured of the sign and its details; None where a detail is missing that is needed, or is there."""
    names: dict[str, Value] = {"file": files[one.file], "line": one.line.number, "text": one.line.body.strip()}
    if one.line.rank is not None:
        names["rank"] = one.line.rank
    if one.line.worker is not None:
        names["worker"] = one.line.worker
    names.update(one.captured)
    for detail in symptom.details:
        places = [other for other in seen.get(id(detail.pattern), ()) if _fits(detail, one, other)]
        if detail.absent and places:
            return None
        if detail.needed and not places:
            return None
        if len(places) >= detail.nth and not detail.absent:
            nearest = sorted(places, key=lambda other: _distance(one, other))[detail.nth - 1]
            names = {**nearest.captured, **names}
    return names


def _fits(detail: Detail, one: Seen, other: Seen) -> bool:
    if detail.where == "log":
        return True
    if one.file != other.file:
        return False
    apart = other.line.number - one.line.number
    if detail.where == "near":
        return abs(apart) <= NEAR_LINES and one.line.stream == other.line.stream
    return {"file": True, "before": apart <= 0, "after": apart >= 0}[detail.where]


def _distance(one: Seen, other: Seen) -> tuple[bool, bool, int]:
    return (
        one.file != other.file,
        one.line.stream != other.line.stream,
        abs(one.line.number - other.line.number),
    )
