"""Series of metrics out of training logs, whoever wrote them, and what is wrong with them.

Read are dicts and JSON as HF Trainer, TRL and LLaMA-Factory write them (numbers or strings), VERL's `step:1 - a/b:0.5`
with plain and with NumPy 2 numbers, `key = value`, `key: value`, tqdm's postfixes, and rows of tables.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
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

_STEPS = ("global_step", "training/global_step", "step", "steps", "current_steps", "total_steps_done")
_LIVE = re.compile(r"(?:^|[/_.])(?:loss|pg_loss|grad_norm|reward|rewards|score|kl|ppo_kl|entropy)(?:$|[/_.])")
_GRADIENT = re.compile(r"(?:^|[/_.])grad(?:ient)?_norm$")
_CUT = re.compile(r"(?:response_length/clip_ratio|completions?/clipped_ratio|clipped_ratio)$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """The values of one field, in the order of the log."""

    name: str
    values: tuple[float, ...]
    lines: tuple[int, ...]
    """The 1-based line of each value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingFact:
    """Something wrong with the numbers of a training."""

    kind: str
    """`not-finite`, `zero-gradient`, `constant-rewards`, `lengths-at-cap` or `nothing-changes`."""
    field: str
    line: int
    """Where it is seen first."""
    message: str


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


def read_series(pieces: Pieces) -> dict[str, Series]:
    """Read every numeric field of a log, by name."""
    growing: dict[str, _Growing] = {}
    for number, whole in every_line(pieces):
        text = whole[:LINE_LETTERS]
        if not _MAYBE.search(text):
            continue
        for name, value in fields_of(peel(number, text).text):
            if name in growing or len(growing) < KEPT_NAMES:
                growing.setdefault(name, _Growing()).take(value, number)
    return {name: Series(name=name, values=tuple(one.values), lines=tuple(one.lines)) for name, one in growing.items()}


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


def judge_series(series: Mapping[str, Series]) -> tuple[TrainingFact, ...]:
    """Say what the numbers show to be wrong; a series that is not there proves nothing."""
    checks = (_not_finite, _zero_gradient, _constant_rewards, _lengths_at_cap, _nothing_changes)
    return tuple(fact for check in checks for fact in check(series))


def _not_finite(series: Mapping[str, Series]) -> Iterator[TrainingFact]:
    for one in series.values():
        bad = next((n for n, value in enumerate(one.values) if not _finite(value)), None)
        if bad is not None:
            message = f"`{one.name}` is {one.values[bad]} on line {one.lines[bad]}"
            yield TrainingFact(kind="not-finite", field=one.name, line=one.lines[bad], message=message)


def _zero_gradient(series: Mapping[str, Series]) -> Iterator[TrainingFact]:
    for one in series.values():
        if _GRADIENT.search(one.name) and all(value == 0 for value in one.values):
            message = f"`{one.name}` is 0 in all {len(one.values)} values: nothing is learnt"
            yield TrainingFact(kind="zero-gradient", field=one.name, line=one.lines[0], message=message)


def _constant_rewards(series: Mapping[str, Series]) -> Iterator[TrainingFact]:
    for one in series.values():
        if "reward" not in one.name and "score" not in one.name:
            continue
        highest = series.get(one.name[: -len("min")] + "max") if one.name.endswith("/min") else None
        if highest is not None and one.values == highest.values:
            message = f"`{one.name}` equals `{highest.name}` in all {len(one.values)} values: no answer is preferred"
        elif re.search(r"[/_.]std$", one.name) and all(value == 0 for value in one.values):
            message = f"`{one.name}` is 0 in all {len(one.values)} values: no answer is preferred"
        elif one.name == "frac_reward_zero_std" and all(value == 1 for value in one.values):
            message = f"`{one.name}` is 1 in all {len(one.values)} values: every group has equal rewards"
        else:
            continue
        yield TrainingFact(kind="constant-rewards", field=one.name, line=one.lines[0], message=message)


def _lengths_at_cap(series: Mapping[str, Series]) -> Iterator[TrainingFact]:
    for one in series.values():
        if _CUT.search(one.name) and all(value >= 1 for value in one.values):
            message = f"`{one.name}` is 1 in all {len(one.values)} values: every answer is cut at the limit"
            yield TrainingFact(kind="lengths-at-cap", field=one.name, line=one.lines[0], message=message)


def _nothing_changes(series: Mapping[str, Series]) -> Iterator[TrainingFact]:
    """A step counter that moves over three values and more while each living field stays where it was."""
    steps = next((series[name] for name in _STEPS if name in series and len(set(series[name].values)) >= 3), None)
    living = [one for one in series.values() if _LIVE.search(one.name) and len(one.values) >= 3]
    if steps is None or not living or any(len(set(one.values)) > 1 or not _finite(one.values[0]) for one in living):
        return
    names = ", ".join(f"`{one.name}`" for one in living[:4])
    message = f"`{steps.name}` moves from {_shown(steps.values[0])} to {_shown(steps.values[-1])}, {names} never"
    yield TrainingFact(kind="nothing-changes", field=living[0].name, line=living[0].lines[0], message=message)


def values_text(values: Sequence[float]) -> str:
    """Show values for a sentence, the ends of a long row only."""
    if len(values) <= 6:
        return ", ".join(_shown(value) for value in values)
    return f"{', '.join(_shown(value) for value in values[:3])}, … {_shown(values[-1])} ({len(values)} values)"


def _shown(value: float) -> str:
    return f"{value:.10g}"


def _finite(value: float) -> bool:
    return math.isfinite(value)
