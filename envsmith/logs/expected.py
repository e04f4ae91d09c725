"""What a recipe expects of a command's output: fields with a small grammar, and patterns. docs/logs.md shows both.

expectation = condition { "and" condition }
condition   = [ which ] test
which       = "last" | "first" | "all" | "any" | "min" | "max" | "mean" | "count"
test        = ("<" | "<=" | ">" | ">=" | "==" | "!=") number | number ".." number | number ("±" | "+-") number
            | "finite" | "changes" | "constant"
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envsmith.errors import InputError, Problem
from envsmith.logs.lines import Pieces, every_line
from envsmith.logs.prefixes import peel
from envsmith.logs.training import Series, values_text
from envsmith.redaction import redacted

WHICH = ("last", "first", "all", "any", "min", "max", "mean", "count")
WORDS = ("finite", "changes", "constant")
_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"
_TEST = re.compile(
    rf"(?P<op><=|>=|==|!=|<|>)\s*(?P<number>{_NUMBER})"
    rf"|(?P<low>{_NUMBER})\s*\.\.\s*(?P<high>{_NUMBER})"
    rf"|(?P<middle>{_NUMBER})\s*(?:±|\+-)\s*(?P<off>{_NUMBER})"
    rf"|(?P<word>[A-Za-z][\w-]*)"
)
_HINT = 'write for instance "< 10", "all finite", "0.1..0.5", "0.6931 ± 1e-3", "max > 0 and changes"'


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """One condition on a series."""

    which: str
    """One of `WHICH`; `all` for `changes` and `constant`, which look at the whole series."""
    test: str
    """An operator, `range`, `about`, or one of `WORDS`."""
    numbers: tuple[float, ...]
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldExpectation:
    """What is expected of one field."""

    field: str
    conditions: tuple[Condition, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldResult:
    """Whether one condition on a field held."""

    field: str
    expected: str
    ok: bool
    actual: str
    line: int | None
    """The line of the value that decided, None where no single one did."""
    hint: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PatternResult:
    """Whether a pattern was seen, and where first."""

    pattern: str
    ok: bool
    line: int | None
    text: str | None


def parse_expectations(table: Mapping[str, str], *, where: str) -> tuple[FieldExpectation, ...]:
    """Read `expect-fields`; `where` is the table's place in the recipe.

    Raises:
        InputError: `expect-field-malformed`, one problem for each field.
    """
    read: list[FieldExpectation] = []
    problems: list[Problem] = []
    for name, text in table.items():
        parts = [_condition(part.strip()) for part in re.split(r"\s+and\s+", text.strip())]
        wrong = [part for part in parts if isinstance(part, str)]
        if wrong:
            problems.append(_malformed(f"{where}.{name}", text, wrong[0]))
        read.append(FieldExpectation(field=name, conditions=tuple(p for p in parts if isinstance(p, Condition))))
    if problems:
        raise InputError(*problems)
    return tuple(read)


def parse_patterns(texts: Sequence[str], *, where: str) -> tuple[re.Pattern[str], ...]:
    """Compile `expect-output`; `where` is the list's place in the recipe.

    Raises:
        InputError: `expect-output-malformed`, one problem for each pattern.
    """
    read: list[re.Pattern[str]] = []
    problems: list[Problem] = []
    for n, text in enumerate(texts):
        try:
            read.append(re.compile(text))
        except (re.error, OverflowError, RecursionError) as error:
            message = f"`{text}` is not a regular expression: {error}"
            hint = "escape characters such as `(`, `[` and `*` with a backslash to mean them literally"
            problems.append(Problem(code="expect-output-malformed", message=message, where=f"{where}[{n}]", hint=hint))
    if problems:
        raise InputError(*problems)
    return tuple(read)


def judge_fields(series: Mapping[str, Series], expected: Sequence[FieldExpectation]) -> tuple[FieldResult, ...]:
    """Judge each condition against what was read; a field that is absent fails each of its conditions."""
    results: list[FieldResult] = []
    for one in expected:
        found = series.get(one.field)
        for condition in one.conditions:
            results.append(_absent(one.field, condition, series) if found is None else _judged(found, condition))
    return tuple(results)


def judge_output(pieces: Pieces, patterns: Sequence[re.Pattern[str]]) -> tuple[PatternResult, ...]:
    """Look for each pattern in the cleaned lines, with their prefixes and without; reading ends with the last found."""
    found: dict[int, tuple[int, str]] = {}
    for number, text in every_line(pieces) if patterns else ():
        own: str | None = None
        for n, pattern in enumerate(patterns):
            if n in found:
                continue
            hit = pattern.search(text)
            if hit is None:
                own = peel(number, text).text if own is None else own
                hit = pattern.search(own) if own != text else None
            if hit is not None:
                found[n] = (number, text)
        if len(found) == len(patterns):
            break
    return tuple(
        PatternResult(
            pattern=pattern.pattern, ok=n in found, line=at[0] if at else None, text=redacted(at[1]) if at else None
        )
        for n, pattern in enumerate(patterns)
        for at in [found.get(n)]
    )


def _condition(text: str) -> Condition | str:
    """Read one condition, or say in a clause what is wrong with it."""
    which, rest = "last", text
    word = re.match(r"([a-z]+)\b\s*", text)
    if word and word[1] in WHICH:
        which, rest = word[1], text[word.end() :]
    if not rest:
        return "a test is missing" if text else "it is empty"
    match = _TEST.fullmatch(rest)
    if match is None:
        return f"`{rest}` is no test"
    if match["word"]:
        return _worded(match["word"], which, text)
    numbers: tuple[float, ...]
    if match["op"]:
        test, numbers = match["op"], (float(match["number"]),)
    elif match["low"]:
        test, numbers = "range", (float(match["low"]), float(match["high"]))
        if numbers[0] > numbers[1]:
            return f"the range `{rest}` ends before it begins"
    else:
        test, numbers = "about", (float(match["middle"]), float(match["off"]))
        if numbers[1] < 0:
            return f"the tolerance of `{rest}` is negative"
    if not all(math.isfinite(number) for number in numbers):
        return f"`{rest}` has a number that is too large"
    return Condition(which=which, test=test, numbers=numbers, text=text)


def _worded(word: str, which: str, text: str) -> Condition | str:
    if word not in WORDS:
        close = difflib.get_close_matches(word, (*WORDS, *WHICH), n=1)
        return f"`{word}` is no test" + (f", did you mean `{close[0]}`?" if close else "")
    if word == "finite":
        return Condition(which=which, test=word, numbers=(), text=text)
    if which not in ("last", "all") or text.startswith("last"):
        return f"`{word}` looks at all values and takes no `{which}`"
    return Condition(which="all", test=word, numbers=(), text=text)


def _malformed(where: str, text: str, why: str) -> Problem:
    message = f"the expectation `{text}` cannot be read: {why}"
    return Problem(code="expect-field-malformed", message=message, where=where, hint=_HINT)


def _absent(name: str, condition: Condition, series: Mapping[str, Series]) -> FieldResult:
    close = difflib.get_close_matches(name, series, n=1, cutoff=0.5)
    ends = [other for other in series if other.rpartition("/")[2] == name.rpartition("/")[2]]
    likely = [*ends, *close][:1]
    names = sorted(series)
    seen = ", ".join(names[:20]) + (f", … ({len(names)} fields)" if len(names) > 20 else "")
    hint = f"did you mean `{likely[0]}`?" if likely else "a field is written as the log writes it"
    actual = f"absent; seen: {seen}" if names else "absent; the log has no numeric field"
    return FieldResult(field=name, expected=condition.text, ok=False, actual=actual, line=None, hint=hint)


def _judged(series: Series, condition: Condition) -> FieldResult:
    values = series.values
    if condition.test in ("changes", "constant"):
        moved = len({None if math.isnan(value) else value for value in values}) > 1
        ok, at = moved is (condition.test == "changes"), None
        actual = values_text(values)
    elif condition.which in ("all", "any"):
        held = [_holds(condition, value) for value in values]
        ok = all(held) if condition.which == "all" else any(held)
        at = next((n for n, one in enumerate(held) if one is (condition.which == "any")), None)
        actual = values_text(values) if at is None else f"{values[at]:.10g}"
    else:
        value, at = _picked(values, condition.which)
        ok, actual = _holds(condition, value), f"{value:.10g}"
    line = None if at is None else series.lines[at]
    return FieldResult(field=series.name, expected=condition.text, ok=ok, actual=actual, line=line)


def _picked(values: Sequence[float], which: str) -> tuple[float, int | None]:
    """The value that a condition looks at; a NaN anywhere is the least, the greatest and the mean."""
    if which == "count":
        return float(len(values)), None
    if which in ("first", "last"):
        at = 0 if which == "first" else len(values) - 1
        return values[at], at
    bad = next((n for n, value in enumerate(values) if math.isnan(value)), None)
    if bad is not None:
        return values[bad], bad
    if which == "mean":
        return sum(values) / len(values), None
    value = min(values) if which == "min" else max(values)
    return value, list(values).index(value)


def _holds(condition: Condition, value: float) -> bool:
    """Whether a value is as wanted; NaN never is, not even for `!=`."""
    if math.isnan(value):
        return False
    numbers = condition.numbers
    if condition.test == "finite":
        return math.isfinite(value)
    if condition.test == "range":
        return numbers[0] <= value <= numbers[1]
    if condition.test == "about":
        return abs(value - numbers[0]) <= numbers[1]
    wanted = numbers[0]
    held = {
        "<": value < wanted,
        "<=": value <= wanted,
        ">": value > wanted,
        ">=": value >= wanted,
        "==": value == wanted,
        "!=": value != wanted,
    }
    return held[condition.test]
