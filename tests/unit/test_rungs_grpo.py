"""envsmith.rungs.grpo and the sampler: arithmetic that needs no torch."""

from __future__ import annotations

import random

import pytest

from envsmith.rungs.grpo import Sample, advantages, cut_at_end, divergence, even_share, mean_difference, spread
from envsmith.rungs.supervised import BATCH, SAMPLES, Sampler, data_set, rate
from envsmith.rungs.vllm_engine import joined


def test_four_of_eight_right_gives_the_worked_advantages() -> None:
    values = advantages([1, 1, 1, 1, 0, 0, 0, 0])
    assert [round(value, 4) for value in values] == [0.9352] * 4 + [-0.9352] * 4


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
@pytest.mark.parametrize("count", [1, 3, 7, 8])
def test_equal_rewards_give_advantages_of_exactly_zero(reward: float, count: int) -> None:
    assert advantages([reward] * count) == [0.0] * count
    assert spread([reward] * count) == 0.0


def test_advantages_of_a_group_sum_to_nothing() -> None:
    draw = random.Random(3)
    values = advantages([draw.random() for _ in range(8)])
    assert abs(sum(values)) < 1e-12 and max(values) > 0


def test_an_answer_ends_with_its_first_end_token_or_at_the_cap() -> None:
    assert cut_at_end([5, 2, 7, 2], frozenset({2})) == ([5, 2], True)
    assert cut_at_end([5, 7], frozenset({2})) == ([5, 7], False)


def test_the_rule_counts_even_tokens() -> None:
    assert even_share(Sample(group=0, prompt=[1], tokens=[2, 3, 4, 5], logprobs=[], ended=False)) == 0.5


def test_a_policy_diverges_from_itself_by_nothing_and_from_another_by_more() -> None:
    assert divergence([[-1.0, -2.0]], [[-1.0, -2.0]]) == 0
    assert divergence([[-1.0], [-2.0]], [[-1.5], [-1.0]]) > 0
    assert mean_difference([[-1.0], [-2.0, -2.0]], [[-1.0], [-2.0, -2.3]]) == pytest.approx(0.1)


def test_answers_of_unequal_length_are_not_compared() -> None:
    with pytest.raises(ValueError, match="zip"):
        mean_difference([[-1.0]], [[-1.0, -2.0]])


def test_a_sampler_resumed_anywhere_gives_the_rest_of_the_same_order() -> None:
    whole = Sampler(SAMPLES, 5).take(40)
    for stop in range(40):
        first = Sampler(SAMPLES, 5)
        first.take(stop)
        second = Sampler(SAMPLES, seed=0)
        second.resume(first.position())
        assert second.take(40 - stop) == whole[stop:]


def test_each_epoch_has_every_sample_once_in_another_order() -> None:
    sampler = Sampler(SAMPLES, 0)
    first, second = sampler.take(SAMPLES), sampler.take(SAMPLES)
    assert sorted(first) == sorted(second) == list(range(SAMPLES))
    assert first != second
    assert sampler.position() == {"seed": 0, "epoch": 2, "offset": 0}


def test_the_learning_rate_differs_in_every_step_of_the_default_run() -> None:
    factors = [rate(step, 4) for step in range(4)]
    assert len(set(factors)) == 4 and max(factors) == 1 and min(factors) > 0


def test_a_batch_crosses_the_end_of_an_epoch() -> None:
    assert SAMPLES % BATCH
    assert all(3 <= token < 64 for line in data_set(64) for token in line)


def test_weights_are_joined_in_the_order_of_vllm_whatever_the_order_they_come_in() -> None:
    state = {"a.up_proj.weight": ["u"], "a.v_proj.bias": ["v"], "a.k_proj.bias": ["k"], "norm": ["n"],
             "a.q_proj.bias": ["q"], "a.gate_proj.weight": ["g"]}  # fmt: skip
    assert joined(state, lambda parts: [one for part in parts for one in part]) == {
        "a.gate_up_proj.weight": ["g", "u"],
        "a.qkv_proj.bias": ["q", "k", "v"],
        "norm": ["n"],
    }
