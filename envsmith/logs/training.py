"""Series of metrics out of training logs, whoever wrote them; `trainingfacts` says what is wrong with them.

Read are dicts and JSON as HF Trainer, TRL and LLaMA-Factory write them (numbers or strings), VERL's `step:1 - a/b:0.5`
with plain and with NumPy 2 numbers, `key = value`, `key: value`, tqdm's postfixes, and rows of tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from envsmith.logs.lines import Pieces, every_line
from envsmith.logs.prefixes import peel

KEPT_VALUES = 20_000
"""How many values of a series are held; beyond it every second finite one in the middle goes."""
KEPT_NAMES = 2_000
LINE_LETTERS = 16 * 1024
"""How much of a line is read; VERL writes all of a step on one line."""

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|NaN|inf|Inf|Infinity)"
_VALUE = rf"(?:(?P<value>{_NUMBER})|(?:(?:np|numpy|torch)\.\w+|tensor)\(\s*(?P<inner>{_NUMBER})(?:,[^()]*)?\))"
_END = r"(?![\w.:/%(]|\s*(?:GB|GiB|MB|MiB)\b)"
_QUOTED = re.compile(rf"(?P<q>['\"])(?P<name>[^'\"]{{1,200}})(?P=q)\s*:\s*['\"]?{_VALUE}['\"]?(?=\s*[,}}\]])")
_FIELD = re.compile(rf"(?<![\w./@'\"-])(?P<name>[A-Za-z_][\w./@%()-]{{0,200}}?)\s*[:=]\s*{_VALUE}{_END}")
_ROW = re.compile(
    rf"[|│┃]\s*(?P<name>[A-Za-z_][\w./@%-]{{0,200}})\s*[|│┃]\s*(?P<value>{_NUMBER})(?P<inner>)\s*(?=[|│┃])"
)
_SOURCE = re.compile(r"\.(?:py|cc|cpp|cu|c|h)$")
_MAYBE = re.compile(r"[:=|│┃]\s*(?:['\"]?[\w.]*\(?['\"]?)[-+.]?(?:\d|nan|NaN|[Ii]nf)")
_NOT_METRICS = {"pid", "ip", "line", "port"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """The values of one field, in the order of the log."""

    name: str
    values: tuple[float, ...]
    lines: tuple[int, ...]
    """The 1-based line of each value."""


@dataclass(kw_only=True, slots=True)
class _Growing:
    values: list[float] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def take(self, value: float, line: int) -> None:
        self.values.append(value)
        self.lines.append(line)
        if len(self.values) > KEPT_VALUES:
            last = len(self.values) - 1
            kept = [
                n for n, seen in enumerate(self.values) if n % 2 == 0 or n == last or (n < last and not _finite(seen))
            ][-KEPT_VALUES:]
            kept = kept if kept[0] == 0 else [0, *kept[1:]]
            self.values = [self.values[n] for n in kept]
            self.lines = [self.lines[n] for n in kept]


@dataclass(kw_only=True, slots=True)
class Gathering:
    """Series while lines are read, in their order."""

    growing: dict[str, _Growing] = field(default_factory=dict)

    def take(self, number: int, whole: str) -> bool:
        """Read a cleaned line; say whether it holds a field that is no number or infinite."""
        text, odd = whole[:LINE_LETTERS], False
        if not _MAYBE.search(text):
            return False
        for name, value in fields_of(peel(number, text).text):
            odd = odd or not _finite(value)
            if name in self.growing or len(self.growing) < KEPT_NAMES:
                self.growing.setdefault(name, _Growing()).take(value, number)
        return odd

    def series(self) -> dict[str, Series]:
        """What was read so far."""
        return {
            name: Series(name=name, values=tuple(one.values), lines=tuple(one.lines))
            for name, one in self.growing.items()
        }


def read_series(pieces: Pieces) -> dict[str, Series]:
    """Read every numeric field of a log, by name."""
    gathering = Gathering()
    for number, whole in every_line(pieces):
        gathering.take(number, whole)
    return gathering.series()


def fields_of(text: str) -> Iterator[tuple[str, float]]:
    """Give the numeric fields of one line."""
    seen: set[str] = set()
    quoted = list(_QUOTED.finditer(text)) if ("'" in text or '"' in text) else []
    matches = quoted or [*_FIELD.finditer(text), *_ROW.finditer(text)]
    for match in matches:
        name = match["name"]
        if name in seen or name in _NOT_METRICS or _SOURCE.search(name):
            continue
        seen.add(name)
        yield name, float(match["value"] or match["inner"])


def values_text(values: Sequence[float]) -> str:
    """Show values for a sentence, the ends of a long row only."""
    if len(values) <= 6:
        return ", ".join(_shown(value) for value in values)
    return f"{', '.join(_shown(value) for value in values[:3])}, … {_shown(values[-1])} ({len(values)} values)"


def _shown(value: float) -> str:
    return f"{value:.10g}"


def _finite(value: float) -> bool:
    return math.isfinite(value)
