"""GRPO's arithmetic: rewards, group advantages, the clipped loss. It touches no model and no file.

What needs no tensor is plain Python, so that the worked figures can be held by tests without torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: Added to the sample standard deviation of a group (facts/field-notes.md G 4): 4 of 8 right gives 0.9352.
EPSILON = 1e-4
#: How far the ratio of new to old probability may count, either way (PPO's usual value).
CLIP = 0.2


@dataclass(frozen=True)
class Sample:
    """One answer of the engine to one prompt; answers to the same prompt stand together as a group."""

    group: int
    prompt: list[int]
    tokens: list[int]
    """The answer, with the token that ends it where there is one."""
    logprobs: list[float]
    """What the engine gave each token of the answer, in nats, at temperature 1."""
    ended: bool
    """Whether it ended by itself, and not at the cap."""


def even_share(sample: Sample) -> float:
    """Share of even token ids: random weights give it variance, and it can be learnt."""
    return sum(token % 2 == 0 for token in sample.tokens) / max(len(sample.tokens), 1)


def constant(_sample: Sample) -> float:
    """Give every answer the same: the control that must not pass."""
    return 1.0


#: The values of `rewards` in a recipe.
RULES: dict[str, Callable[[Sample], float]] = {"varied": even_share, "constant": constant}


def spread(rewards: Sequence[float]) -> float:
    """Sample standard deviation; exactly 0 for equal rewards, whatever their rounding."""
    if len(rewards) < 2 or min(rewards) == max(rewards):
        return 0.0
    mean = math.fsum(rewards) / len(rewards)
    return math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))


def advantages(rewards: Sequence[float]) -> list[float]:
    """How much better than its group each answer is: (reward - mean) / (sample std + 1e-4)."""
    deviation = spread(rewards)
    if deviation == 0:
        return [0.0] * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    return [(reward - mean) / (deviation + EPSILON) for reward in rewards]


def groups_of(samples: Sequence[Sample]) -> list[list[int]]:
    """Places of the samples, group by group."""
    found: dict[int, list[int]] = {}
    for place, sample in enumerate(samples):
        found.setdefault(sample.group, []).append(place)
    return list(found.values())


def cut_at_end(tokens: Sequence[int], ends: frozenset[int]) -> tuple[list[int], bool]:
    """Return the tokens up to and with the first that ends an answer, and whether there was one."""
    for place, token in enumerate(tokens):
        if token in ends:
            return list(tokens[: place + 1]), True
    return list(tokens), False


def clipped_loss(new: Any, old: Any, advantage: Any, mask: Any) -> Any:
    """Sum of the clipped policy-gradient loss over answer tokens; the caller divides by their number."""
    import torch

    ratio = torch.exp((new - old) * mask)
    weight = advantage.unsqueeze(-1)
    worst = torch.minimum(ratio * weight, ratio.clamp(1 - CLIP, 1 + CLIP) * weight)
    return -(worst * mask).sum()


def divergence(old: Sequence[Sequence[float]], new: Sequence[Sequence[float]]) -> float:
    """KL of the old policy from the new over tokens that the old one drew: the estimator that is never negative."""
    terms = [math.exp(after - before) - 1 - (after - before) for before, after in _pairs(old, new)]
    return math.fsum(terms) / max(len(terms), 1)


def mean_difference(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> float:
    """Mean absolute difference of the log-probabilities of the same answers, in nats a token."""
    gaps = [abs(one - other) for one, other in _pairs(left, right)]
    return math.fsum(gaps) / max(len(gaps), 1)


def _pairs(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> list[tuple[float, float]]:
    return [pair for one, other in zip(left, right, strict=True) for pair in zip(one, other, strict=True)]
