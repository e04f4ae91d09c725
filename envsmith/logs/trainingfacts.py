"""What the numbers of a training show to be wrong, with cause and remedy; docs/training-logs.md has the thresholds.

It reads no logs: `training` and `sampling` make the series. A series that is not there proves nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from envsmith.logs.factwords import words
from envsmith.logs.training import Series
from envsmith.report import Severity

KINDS = (
    "not-finite", "exploding", "constant-rewards", "zero-gradient", "zero-learning-rate", "lengths-at-cap",
    "nothing-changes",
)  # fmt: skip

EXPLODED = 1e3
"""How many times the median of what was before it a loss must be, over its last values, to be called exploded."""
AT_CAP = 0.9
"""From which share of cut answers on, in every step, lengths are called at the cap."""

_COUNTERS = ("global_step", "training/global_step", "step", "steps", "current_steps", "total_steps_done")
#: HF Trainer prints no step beside its numbers.
_TIMES = (*_COUNTERS, "num_tokens", "epoch")
#: Fields that no training makes: what is timed, measured or judged beside it.
_BESIDE = re.compile(r"^(?:val|eval|test|timing|perf|mfu|rollout_corr)(?:$|[-_/.])|^(?:rollout/moe|timing_\w+)/")
_LIVE = re.compile(r"(?:^|[/_.])(?:loss|pg_loss|grad_norm|reward|rewards|score|kl|ppo_kl|entropy)(?:$|[/_.])")
#: NaN elsewhere is often right: TRL 0.24.0 writes it for `rewards/NAME/mean` where a function gave no reward and for
#: lengths of no terminated completion, VERL for the explained variance of one return (sources read 2026-11-30).
_FINITE = re.compile(
    r"(?:^|[/_.])(?:loss|grad_norm|gradient_norm|kl|entropy|reward|rewards|score|advantages|returns|perplexity|ppl)"
    r"(?:(?:/|_)(?:mean|max|min|avg))?$|(?:^|/)loss/\w+$"
)
_PER_FUNCTION = re.compile(r"^(?:train/)?rewards/")
_GRADIENT = re.compile(r"(?:^|[/_.])grad(?:ient)?_norm$")
_LOSS = re.compile(r"(?:^|[/_.])(?:loss|lm_loss|train_loss)$")
_RATE = re.compile(r"(?:^|/)(?:learning_rate|lr)$")
_CUT = re.compile(r"(?:response_length(?:_non_aborted)?/clip_ratio|completions?/clipped_ratio|^clipped_ratio)$")
_LONGEST = re.compile(r"(?:response_length|completions?)/max(?:_length)?$")
_GROUP_STD = re.compile(r"(?:^|/)(?:reward_std|rewards_std|reward/std)$")
_ALL_EQUAL = re.compile(r"(?:^|/)frac_reward_zero_std$")
_FUNCTION_STD = re.compile(r"^(?:train/)?rewards/[^/]+/std$")
_SCORES = re.compile(r"(?:^|/)(?:score|rewards?)/min$")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingFact:
    """Something wrong with the numbers of a training."""

    kind: str
    """One of `KINDS`."""
    severity: Severity
    field: str
    line: int
    """Where it is seen first."""
    message: str
    cause: str
    fix: str


Table = Mapping[str, Series]


def judge_series(series: Table) -> tuple[TrainingFact, ...]:
    """Say what the numbers of one log show to be wrong, what matters most first."""
    own = {name: one for name, one in series.items() if one.values and not _BESIDE.search(name)}
    found = [*_not_finite(own), *_evaluated(series), *_exploding(own), *_constant_rewards(own)]
    if not any(fact.kind == "constant-rewards" and fact.severity is Severity.ERROR for fact in found):
        found += _zero_gradient(own)
    found += [*_zero_rate(own), *_lengths_at_cap(own)]
    if not any(fact.kind in ("constant-rewards", "zero-gradient") for fact in found):
        found += _nothing_changes(own)
    return tuple(sorted(found, key=lambda fact: list(Severity).index(fact.severity)))


def _fact(kind: str, severity: Severity, one: Series, message: str, *, line: int | None = None) -> TrainingFact:
    cause, fix = words(kind, one.name)
    at = one.lines[0] if line is None else line
    return TrainingFact(kind=kind, severity=severity, field=one.name, line=at, message=message, cause=cause, fix=fix)


def _not_finite(own: Table) -> Iterator[TrainingFact]:
    """What is no number: one fact for the fields where it lasts, one for those that came back."""
    bad = [one for name, one in own.items() if _FINITE.search(name) and not _PER_FUNCTION.search(name)]
    bad = sorted((one for one in bad if _odd(one)), key=lambda one: one.lines[_odd(one)[0]])
    for lasting, severity in ((True, Severity.ERROR), (False, Severity.WARNING)):
        chosen = [one for one in bad if _lasts(one) is lasting]
        if not chosen:
            continue
        first = chosen[0]
        places = _odd(first)
        line, value = first.lines[places[0]], first.values[places[0]]
        until = _until(first)
        many = f"in {len(places)} of {len(first.values)} values, first on line {line} {until}"
        message = f"`{first.name}` is {value} {many}{_besides(chosen[1:])}"
        yield _fact("not-finite", severity, first, message, line=line)


def _odd(one: Series) -> list[int]:
    return [n for n, value in enumerate(one.values) if not math.isfinite(value)]


def _lasts(one: Series) -> bool:
    """Whether the end of a series is no number; of 16 bit trainings one or two infinite gradients are none.

    Their loss scaler halves the scale until it fits, and tries a larger one every 1,000 or 2,000 steps.
    """
    scaled = bool(_GRADIENT.search(one.name)) and all(not math.isnan(value) for value in one.values[-2:])
    last = one.values[-3:] if scaled else one.values[-1:]
    if not any(math.isfinite(value) for value in last) and (not scaled or len(last) == 3):
        return True
    tail = one.values[-8:]
    if not scaled and len(tail) == 8 and sum(math.isfinite(value) for value in tail) <= 4:
        return True
    return not _GRADIENT.search(one.name) and _comes_back(one)


def _comes_back(one: Series) -> bool:
    """Whether it is no number again and again to the end: one rank of several that write into one log."""
    odd = _odd(one)
    spans = 1 + sum(after - before > 1 for before, after in pairwise(odd))
    return spans >= 3 and odd[-1] >= 0.9 * len(one.values)


def _until(one: Series) -> str:
    last = _odd(one)[-1] + 1
    return "and in the last" if last == len(one.values) else f"and a number again from line {one.lines[last]} on"


def _evaluated(series: Table) -> Iterator[TrainingFact]:
    """A loss on held-out data that is no number at last; other fields of an evaluation may be empty rightly."""
    for name in ("eval_loss", "eval/loss", "val/loss"):
        one = series.get(name)
        if one is not None and one.values and not math.isfinite(one.values[-1]):
            message = f"`{name}` is {one.values[-1]} on line {one.lines[-1]}, the last time it was written"
            yield _fact("not-finite", Severity.WARNING, one, message, line=one.lines[_odd(one)[0]])


def _exploding(own: Table) -> Iterator[TrainingFact]:
    """A loss far over what it was, and not back; a gradient norm likewise, as a warning."""
    for name, one in own.items():
        severity = Severity.ERROR if _LOSS.search(name) else Severity.WARNING if _GRADIENT.search(name) else None
        finite = [n for n, value in enumerate(one.values) if math.isfinite(value)]
        if severity is None or len(finite) < 10:
            continue
        usual = median(abs(one.values[n]) for n in finite[: len(finite) // 2])
        limit = max(EXPLODED * usual, 10.0)
        if usual < 0.01 or any(abs(one.values[n]) <= limit for n in finite[-3:]):
            continue
        first = next(n for n in finite if abs(one.values[n]) > limit)
        last = one.values[finite[-1]]
        message = (
            f"`{name}` was about {usual:.4g} and is {last:.4g} at last: over {limit:.4g} since line {one.lines[first]}"
        )
        yield _fact("exploding", severity, one, message, line=one.lines[first])


def _constant_rewards(own: Table) -> Iterator[TrainingFact]:
    """Groups without a preferred answer: an error where nothing else could move the model either."""
    found = [(one, said) for one, said in _equal_rewards(own) if _steps(own, one) >= 2]
    if not found:
        return
    still = [one for name, one in own.items() if _GRADIENT.search(name) and _all(one, 0)]
    still += [own[f"{stem}/max"] for stem in ("critic/advantages",) if _flat(own, stem)]
    first, said = found[0]
    moved = f", and `{still[0].name}` is 0: nothing is learnt" if still else ": no answer is preferred"
    message = f"`{first.name}` {said} in all {len(first.values)} values{moved}{_besides(one for one, _ in found[1:])}"
    yield _fact("constant-rewards", Severity.ERROR if still else Severity.WARNING, first, message)


def _equal_rewards(own: Table) -> Iterator[tuple[Series, str]]:
    """Series that say that all rewards of a group, or of a batch, are equal."""
    functions = [one for name, one in own.items() if _FUNCTION_STD.search(name)]
    grouped = False
    for name, one in own.items():
        if _GROUP_STD.search(name):
            grouped = True
            if _all(one, 0):
                yield one, "is 0"
        elif _ALL_EQUAL.search(name):
            grouped = True
            if _all(one, 1):
                yield one, "is 1"
        elif _SCORES.search(name):
            highest = own.get(name[: -len("min")] + "max")
            if highest is not None and highest.values == one.values and all(map(math.isfinite, one.values)):
                yield one, f"equals `{highest.name}`"
    if not grouped and functions and all(_all(one, 0) for one in functions):
        yield functions[0], "is 0"  # one function alone may be constant: a format that every answer keeps
    if _flat(own, "critic/advantages"):
        yield own["critic/advantages/max"], "and its min are 0"


def _flat(own: Table, stem: str) -> bool:
    low, high = own.get(f"{stem}/min"), own.get(f"{stem}/max")
    return low is not None and high is not None and _all(low, 0) and _all(high, 0)


def _zero_gradient(own: Table) -> Iterator[TrainingFact]:
    zero = [one for name, one in own.items() if _GRADIENT.search(name) and _all(one, 0)]
    if not zero:
        return
    first, steps = zero[0], min(_steps(own, zero[0]), len(zero[0].values))
    grave = steps >= 2 and not _rounded(own)
    many = f"in all {len(first.values)} values: nothing is learnt" if steps >= 2 else "in its only step"
    message = f"`{first.name}` is 0 {many}{_besides(zero[1:])}"
    yield _fact("zero-gradient", Severity.ERROR if grave else Severity.WARNING, first, message)


def _zero_rate(own: Table) -> Iterator[TrainingFact]:
    """A learning rate that never leaves 0: a few first steps may be a warm-up, or skipped by a loss scaler."""
    for name, one in own.items():
        if not _RATE.search(name) or not _all(one, 0) or (name != "learning_rate" and _rounded(own, 6)):
            continue
        steps = _steps(own, one)
        if steps >= 3:
            message = f"`{name}` is 0 in all {len(one.values)} values: no step changes the model"
            yield _fact("zero-learning-rate", Severity.ERROR if steps >= 10 else Severity.WARNING, one, message)


def _lengths_at_cap(own: Table) -> Iterator[TrainingFact]:
    cut = [one for name, one in own.items() if _CUT.search(name) and all(value >= AT_CAP for value in one.values)]
    cut = [one for one in cut if _steps(own, one) >= 2]
    if cut:
        least = min(cut[0].values)
        share = "1" if least >= 1 else f"{least:.3g} and more"
        message = f"`{cut[0].name}` is {share} in all {len(cut[0].values)} values: answers are cut at the limit"
        yield _fact("lengths-at-cap", Severity.WARNING, cut[0], message + _besides(cut[1:]))
        return
    for name, one in own.items():
        lowest = own.get(re.sub(r"max((?:_length)?)$", r"min\1", name)) if _LONGEST.search(name) else None
        if lowest is None or lowest.values != one.values or _steps(own, one) < 2 or len(set(one.values)) > 1:
            continue
        message = (
            f"`{name}` equals `{lowest.name}` in all {len(one.values)} values: each answer is {one.values[0]:g} long"
        )
        yield _fact("lengths-at-cap", Severity.WARNING, one, message)


def _nothing_changes(own: Table) -> Iterator[TrainingFact]:
    """A counter that moves over three values and more while each living field stays where it was."""
    counter = next((own[name] for name in _TIMES if name in own and len(set(own[name].values)) >= 3), None)
    living = [one for name, one in own.items() if _LIVE.search(name) and len(one.values) >= 3]
    if counter is None or not living or (_rounded(own) and max(len(one.values) for one in living) < 10):
        return
    if any(len(set(one.values)) > 1 or not math.isfinite(one.values[0]) for one in living):
        return
    names = ", ".join(f"`{one.name}`" for one in living[:4])
    message = f"`{counter.name}` moves from {counter.values[0]:.10g} to {counter.values[-1]:.10g}, {names} never"
    yield _fact("nothing-changes", Severity.ERROR, living[0], message)


def _all(one: Series, value: float) -> bool:
    return all(seen == value for seen in one.values)


def _steps(own: Table, one: Series) -> int:
    """Of how many steps a series has values: where ranks print the same step, they are as many as the counter says."""
    counted = [len(set(own[name].values)) for name in _COUNTERS if name in own]
    return min([len(one.values), *counted[:1]])


def _rounded(own: Table, decimals: int = 3) -> bool:
    """Whether nothing in the log has more decimals, as in older logs of VERL: then 0.000 may be a small number."""
    finite = [value for one in own.values() for value in one.values if math.isfinite(value)]
    inexact = [value for value in finite if value != int(value)]
    return bool(inexact) and all(round(value, decimals) == value for value in inexact)


def _besides(others: Iterable[Series]) -> str:
    names: Sequence[str] = [f"`{one.name}`" for one in others]
    if not names:
        return ""
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"; {', '.join(names[:4])}{more} too"
