"""The table of symptoms, `data/symptoms.toml`, as values: what a log says, what it means, what proves it, what to do.

docs/symptoms.md says how an entry is written and `tests/symptoms` holds the logs that each is shown on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from envsmith.conditions import Condition, parse_condition, parse_derived, places
from envsmith.data import table

LAYERS = ("machine", "stack", "job")
ROLES = ("error", "warning", "silent", "death", "root")
WHERE = ("log", "file", "before", "after", "near")
#: Names that every sighting has beside what its patterns capture.
GIVEN = ("file", "line", "text", "rank", "worker")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """A wording of a line."""

    has: tuple[str, ...]
    """Texts of which one must stand in the line: quick to look for."""
    match: re.Pattern[str] | None
    """What must be found in it besides; its named groups are the captured values."""
    alone: bool
    """The line holds no word of an error, so every line of a log has to be looked through for `has`."""

    def captured(self, text: str) -> Mapping[str, str] | None:
        """What the pattern captures of a line without prefixes; None where it is not there."""
        if not any(has in text for has in self.has):
            return None
        if self.match is None:
            return {}
        found = self.match.search(text)
        return {name: value for name, value in found.groupdict().items() if value is not None} if found else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    """A wording that shows a symptom."""

    pattern: Pattern
    role: str
    """`error`: the line is an error or belongs to one. `warning`: it names the cause of an error that comes after it in
    its file, and is nothing without one. `silent`: it is wrong even where nothing failed. `death`: it says only that a
    process ended, so it counts only where nothing better is the first effective error. `root`: it is wrong in itself,
    and the cause of whatever error comes after it in its file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Detail:
    """A wording beside the sign: it adds captured values, and may be needed, or must be absent."""

    pattern: Pattern
    where: str
    """`log`: in any file; `file`, `before`, `after`: in the sign's file; `near`: within 60 lines of the same writer."""
    needed: bool
    absent: bool
    nth: int
    """Which of several such lines is captured, the nearest first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What can be looked at beyond the log, and what each answer means."""

    family: str | None
    """A family of `verify`, or `host` or `rules` of `check`; None for a condition on facts."""
    kinds: tuple[str, ...]
    """Kinds of findings of that family that confirm the symptom."""
    clean_contradicts: bool
    """Whether the family without such a finding contradicts it; else that says nothing."""
    condition: Condition | None
    """On facts (`host.…`, `lock.…`, `env.…`) and captured values: it confirms when it holds, else it contradicts."""
    false_is_silent: bool
    """Whether a condition that does not hold says nothing, instead of contradicting."""
    says: str | None
    """A sentence for the case that it confirms; findings have their own."""
    denies: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Symptom:
    """One entry: a kind of failure as one program or another words it."""

    kind: str
    title: str
    layer: str
    check: str
    """Who proves it: `verify FAMILY`, `check host`, `check rules`, `smoke RUNG`, `log` when nothing but the log can."""
    signs: tuple[Sign, ...]
    details: tuple[Detail, ...]
    derive: Mapping[str, tuple[str, str]]
    when: tuple[Condition, ...]
    """Conditions on captured values and facts: the entry is out when one is known not to hold."""
    cause: tuple[str, ...]
    fix: tuple[str, ...]
    beats: tuple[str, ...]
    """Kinds that give way to this one where both are seen."""
    mistaken: tuple[str, ...]
    """What it must not be mistaken for, in words or as a kind."""
    proofs: tuple[Proof, ...]
    sources: tuple[str, ...]

    @property
    def patterns(self) -> Iterator[Pattern]:
        """Every wording of it."""
        yield from (sign.pattern for sign in self.signs)
        yield from (detail.pattern for detail in self.details)


@cache
def symptoms() -> tuple[Symptom, ...]:
    """The entries that ship, in the order of the file."""
    return tuple(symptom_of(row) for row in table("symptoms")["symptom"])


@cache
def needles() -> tuple[str, ...]:
    """Lower-case texts for which every line has to be looked through, besides those of errors."""
    return tuple(
        dict.fromkeys(has.lower() for entry in symptoms() for one in entry.patterns if one.alone for has in one.has)
    )


def symptom_of(row: Mapping[str, Any]) -> Symptom:
    """Read one entry.

    Raises:
        ValueError: with every fault of it.
    """
    faults = list(_faults(row))
    if faults:
        raise ValueError("; ".join(faults))
    return Symptom(
        kind=row["kind"],
        title=row["title"],
        layer=row["layer"],
        check=row["check"],
        signs=tuple(Sign(pattern=_pattern(one), role=one.get("role", "error")) for one in row["sign"]),
        details=tuple(
            Detail(
                pattern=_pattern(one),
                where=one.get("where", "file"),
                needed=one.get("needed", False),
                absent=one.get("absent", False),
                nth=one.get("nth", 1),
            )
            for one in row.get("detail", ())
        ),
        derive={name: parse_derived(text) for name, text in row.get("derive", {}).items()},
        when=tuple(parse_condition(text) for text in row.get("when", ())),
        cause=tuple(row["cause"]),
        fix=tuple(row["fix"]),
        beats=tuple(row.get("beats", ())),
        mistaken=tuple(row.get("mistaken", ())),
        proofs=tuple(_proof(one) for one in row.get("proof", ())),
        sources=tuple(row["sources"]),
    )


def _pattern(row: Mapping[str, Any]) -> Pattern:
    match = re.compile(row["match"]) if "match" in row else None
    return Pattern(has=_texts(row.get("has")), match=match, alone=row.get("alone", False))


def _texts(said: object) -> tuple[str, ...]:
    """`has` is a text, or several."""
    return (said,) if isinstance(said, str) else tuple(said) if isinstance(said, (list, tuple)) else ()


def _proof(row: Mapping[str, Any]) -> Proof:
    return Proof(
        family=row.get("family"),
        kinds=tuple(row.get("kinds", ())),
        clean_contradicts=row.get("clean", "") == "contradicts",
        condition=parse_condition(row["holds"]) if "holds" in row else None,
        false_is_silent=row.get("clean", "") == "nothing",
        says=row.get("says"),
        denies=row.get("denies"),
    )


_ALONE = 4
_KEYS = {
    "kind", "title", "layer", "check", "sign", "detail", "derive", "when", "cause", "fix", "beats", "mistaken", "proof",
    "sources",
}  # fmt: skip
_NEEDED = ("kind", "title", "layer", "check", "sign", "cause", "fix", "sources")
_TABLES = {
    "sign": {"has", "match", "alone", "role"},
    "detail": {"has", "match", "alone", "where", "needed", "absent", "nth"},
    "proof": {"family", "kinds", "clean", "holds", "says", "denies"},
}


def _faults(row: Mapping[str, Any]) -> Iterator[str]:
    said = f"symptom `{row.get('kind')}`"
    yield from (f"{said}: unknown key `{key}`" for key in sorted(row.keys() - _KEYS))
    missing = [key for key in _NEEDED if not row.get(key)]
    yield from (f"{said}: `{key}` is missing" for key in missing)
    if missing:
        return
    if not re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", row["kind"]):
        yield f"{said}: the kind is no slug"
    if row["layer"] not in LAYERS:
        yield f"{said}: layer `{row['layer']}` is none of {', '.join(LAYERS)}"
    for name, keys in _TABLES.items():
        for one in row.get(name, ()):
            yield from (f"{said}: unknown key `{key}` in `{name}`" for key in sorted(one.keys() - keys))
    yield from _pattern_faults(row, said)
    yield from _language_faults(row, said)


def _pattern_faults(row: Mapping[str, Any], said: str) -> Iterator[str]:
    for one in (*row["sign"], *row.get("detail", ())):
        texts = _texts(one.get("has"))
        if not texts or any(not text or text != text.strip() for text in texts):
            yield f"{said}: a pattern needs `has`, a text without blanks around it"
        if one.get("alone") and any(len(text) < _ALONE for text in texts):
            yield f"{said}: a text that every line is looked through for has {_ALONE} letters and more"
        try:
            re.compile(one.get("match", ""))
        except re.error as error:
            yield f"{said}: `{one['match']}`: {error}"
    if any(one.get("role", "error") not in ROLES for one in row["sign"]):
        yield f"{said}: `role` is one of {', '.join(ROLES)}"
    if any(one.get("where", "file") not in WHERE for one in row.get("detail", ())):
        yield f"{said}: `where` is one of {', '.join(WHERE)}"


def _language_faults(row: Mapping[str, Any], said: str) -> Iterator[str]:
    texts = [*row.get("when", ()), *(one["holds"] for one in row.get("proof", ()) if "holds" in one)]
    for parse, found in ((parse_condition, texts), (parse_derived, list(row.get("derive", {}).values()))):
        for text in found:
            try:
                parse(text)
            except (ValueError, re.error) as error:
                yield f"{said}: {error}"
    captured = {
        name
        for one in (*row["sign"], *row.get("detail", ()))
        for name in re.findall(r"\(\?P<(\w+)>", one.get("match", ""))
    }
    known = captured | set(row.get("derive", {})) | set(GIVEN)
    sentences = [
        *row["cause"],
        *row["fix"],
        *(one.get(key, "") for one in row.get("proof", ()) for key in ("says", "denies")),
    ]
    for place in {place for text in sentences for place in places(text)}:
        if place not in known and not place.startswith(("host.", "lock.", "env.")):
            yield f"{said}: nothing gives `{{{place}}}` a value"
    if not any(not places(text) for text in row["cause"]) or not any(not places(text) for text in row["fix"]):
        yield f"{said}: cause and fix need a sentence each that holds without captured values"
