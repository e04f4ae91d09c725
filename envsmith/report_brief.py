"""Reports on one sheet: what is carried out of an air gap on paper, or typed off a screen.

At most 40 lines of at most 100 columns, in ASCII; errors first, then counts of what was left out. Secrets, the names
of people in paths and the middle of long paths are cut, digests end after 12 digits.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from envsmith.redaction import for_paper, holds_secret, without_secrets
from envsmith.report import Cause, Finding, Report, Severity, causes, mark

LINES = 40
COLUMNS = 100
#: How many envs get a line of their own; the failed come first.
ENVS = 8
#: Lines kept for what was left out and for the check.
_FOOT = 3
_RANKS = list(Severity)
#: Typographic signs that have a plain form; what has none is shown by its number.
_PLAIN = str.maketrans(
    {"…": "...", "–": "-", "—": "-", "×": "x", "→": "->", "’": "'", "“": '"', "”": '"', "\u00a0": " "}
)


def brief(reports: Sequence[Report]) -> str:
    """Render reports on one sheet."""
    head = [*_head(reports), *(_envs(reports) if len(reports) > 1 else _facts(reports))]
    entries = [_Entry(report, cause) for report in reports for cause in causes(map(without_secrets, report.findings))]
    entries.sort(key=lambda entry: _RANKS.index(entry.cause.severity))
    _fill(entries, LINES - len(head) - _FOOT, name_env=len(reports) > 1)
    shown = [line for entry in entries for line in entry.lines()]
    foot = f"check {mark(reports)}: begin of the sha256 of all findings, as `--json` gives them"
    return "\n".join([*head, *shown, *_left_out(entries), foot])


@dataclass(slots=True)
class _Entry:
    """A cause with the lines that found room."""

    report: Report
    cause: Cause
    head: list[str] = field(default_factory=list)
    subjects: list[list[str]] = field(default_factory=list)
    hint: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Its lines from top to bottom."""
        yield from self.head
        for lines in self.subjects:
            yield from lines
        yield from self.hint


def _head(reports: Sequence[Report]) -> Iterator[str]:
    verdict = "FAILED" if any(report.failed for report in reports) else "passed"
    name = reports[0].subject if len(reports) == 1 else f"{len(reports):,} envs"
    counts = _counts(finding for report in reports for finding in report.findings)
    yield from wrapped(f"envsmith verify {verdict}: {plain(name)}: {counts}", most=2)


def _facts(reports: Sequence[Report]) -> Iterator[str]:
    """Say of the one env what it is and what was looked at."""
    for report in reports:
        yield from wrapped(f"looked at: {plain(', '.join(report.families))}", most=2)
        facts = {**report.environment, **report.figures}
        said = "; ".join(f"{plain(k)} {'(cut)' if holds_secret(k) else plain(v)}" for k, v in facts.items())
        yield from wrapped(said, most=4)


def _envs(reports: Sequence[Report]) -> Iterator[str]:
    failed_first = sorted(reports, key=lambda report: not report.failed)
    for report in failed_first[:ENVS]:
        yield from wrapped(f"- {plain(report.summary())}", most=1)
    rest = failed_first[ENVS:]
    if rest:
        yield f"- {len(rest):,} more, {sum(report.failed for report in rest):,} of them failed"


def _fill(entries: list[_Entry], room: int, *, name_env: bool) -> None:
    """Give out the lines in turns: what fails, an example of each, then what else, what to do, more examples."""
    for severity in _RANKS:
        entered = [entry for entry in entries if entry.cause.severity is severity]
        for entry in entered:
            room -= _take(entry.head, _sentence(entry, name_env), room)
        room = _examples(entered, 0, room)
    for entry in entries:
        if entry.head and entry.cause.hint:
            room -= _take(entry.hint, list(wrapped(f"  do: {plain(entry.cause.hint)}", most=2)), room)
    for turn in range(1, LINES):
        room = _examples(entries, turn, room)


def _examples(entries: Iterable[_Entry], turn: int, room: int) -> int:
    """Give each cause that is named its next example; the room that is left."""
    for entry in entries:
        if entry.head and turn == len(entry.subjects) < len(entry.cause.findings):
            lines: list[str] = []
            room -= _take(lines, _subject(entry.cause.findings[turn]), room)
            entry.subjects += [lines] if lines else []
    return room


def _take(place: list[str], lines: list[str], room: int) -> int:
    """Put lines into their place if all of them find room; the number of lines taken."""
    if len(lines) > room:
        return 0
    place += lines
    return len(lines)


def _sentence(entry: _Entry, name_env: bool) -> list[str]:
    cause = entry.cause
    times = f" x{len(cause.findings):,}" if len(cause.findings) > 1 else ""
    env = f" in {plain(entry.report.subject)}" if name_env else ""
    others = len(cause.by_message()) - 1
    alike = f" (and {others:,} other sentence{'s' if others > 1 else ''})" if others else ""
    head = f"{cause.severity.value.upper()} {plain(cause.name)}{times}{env}: "
    return list(wrapped(f"{head}{plain(cause.findings[0].message)}{alike}", most=2))


def _subject(finding: Finding) -> list[str]:
    pairs = (("expected", finding.expected), ("actual", finding.actual))
    values = ", ".join(f"{name} {plain(value)}" for name, value in pairs if value)
    return list(wrapped(f"  - {plain(finding.subject)}" + (f": {values}" if values else ""), most=3))


def _left_out(entries: Iterable[_Entry]) -> Iterator[str]:
    """Count what found no room, by what a reader would ask for."""
    entries = list(entries)
    hidden = [finding for entry in entries if not entry.head for finding in entry.cause.findings]
    more = sum(len(entry.cause.findings) - len(entry.subjects) for entry in entries if entry.head)
    said = [f"{more:,} more subjects of what is named"] if more else []
    said += [f"{sum(not entry.head for entry in entries):,} more causes ({_counts(hidden)})"] if hidden else []
    if said:
        yield from wrapped(f"left out: {'; '.join(said)}", most=_FOOT - 1)


def _counts(findings: Iterable[Finding]) -> str:
    found = [finding.severity for finding in findings]
    counts = [(found.count(severity), severity.value) for severity in Severity]
    return ", ".join(f"{n:,} {word}{'s' if n > 1 else ''}" for n, word in counts if n) or "no findings"


def wrapped(said: str, *, most: int) -> Iterator[str]:
    """Break at spaces into at most `most` lines, the later ones two columns further in; the end of more is cut."""
    indent = " " * (len(said) - len(said.lstrip()) + 2)
    lines = textwrap.wrap(
        said, COLUMNS, subsequent_indent=indent, break_on_hyphens=False, max_lines=most, placeholder=" ..."
    )
    yield from (_cut(line, COLUMNS) for line in lines)


def _cut(line: str, columns: int) -> str:
    return line if len(line) <= columns else line[: columns - 3] + "..."


def plain(value: str) -> str:
    """Bring a text into the form that survives paper."""
    said = for_paper(value).translate(_PLAIN)
    return "".join(c if " " <= c <= "~" else " " if c in "\n\t" else ascii(c)[1:-1] for c in said)
