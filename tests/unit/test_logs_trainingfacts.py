"""What the numbers of a training show to be wrong is said with its weight, and healthy trainings show nothing."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from envsmith.logs.training import Series, read_series
from envsmith.logs.trainingfacts import KINDS, TrainingFact, judge_series
from envsmith.report import Severity

NAN, INF = math.nan, math.inf

#: As TRL 0.24 writes a step, and VERL 0.9.
TRL = (
    "{{'loss': {loss}, 'grad_norm': {grad}, 'learning_rate': 1e-06, 'num_tokens': {n}00.0, "
    "'completions/mean_length': 200.25, 'completions/min_length': 17.0, 'completions/max_length': 256.0, "
    "'completions/clipped_ratio': {cut}, 'completions/mean_terminated_length': {ended}, "
    "'rewards/accuracy/mean': {mean}, 'rewards/accuracy/std': {std}, 'rewards/form/mean': 1.0, "
    "'rewards/form/std': 0.0, 'reward': {mean}, 'reward_std': {std}, 'frac_reward_zero_std': {equal}, "
    "'entropy': 0.4{n}, 'clip_ratio/low_min': 0.0, 'epoch': 0.0{n}}}\n"
)
VERL = (
    "(TaskRunner pid=88) step:{n} - actor/entropy:0.2226578 - actor/pg_loss:{loss} - actor/grad_norm:{grad} - "
    "actor/lr:1e-06 - training/global_step:{n} - val-core/gsm8k/acc/mean@1:{val} - critic/score/mean:{mean} - "
    "critic/score/max:{high} - critic/score/min:{low} - critic/rewards/max:{high} - critic/rewards/min:{low} - "
    "critic/advantages/max:{adv} - critic/advantages/min:-{adv} - response_length/max:3072.0 - "
    "response_length/min:38.0 - response_length/clip_ratio:{cut} - timing_s/agent_loop/compute_score/min:0.0 - "
    "timing_s/agent_loop/compute_score/max:0.0 - prompt_length/clip_ratio:0.0\n"
)
TRL_STEP = {
    "loss": "0.0", "grad": "0.1235", "cut": "0.25", "ended": "120.5", "mean": "0.5", "std": "0.3251", "equal": "0.125",
}  # fmt: skip
VERL_STEP = {
    "loss": "0.0423969", "grad": "0.129638", "val": "nan", "mean": "-0.0182", "high": "1.0", "low": "-1.0",
    "adv": "1.7888", "cut": "0.012",
}  # fmt: skip


def trl(*steps: dict[str, str]) -> str:
    return "".join(TRL.format(n=n, **{**TRL_STEP, "loss": f"0.000{n}", **step}) for n, step in enumerate(steps, 1))


def verl(*steps: dict[str, str]) -> str:
    return "".join(VERL.format(n=n, **{**VERL_STEP, "loss": f"0.042{n}69", **one}) for n, one in enumerate(steps, 1))


def judged(log: str) -> tuple[TrainingFact, ...]:
    return judge_series(read_series([log.encode()]))


def said(log: str) -> list[tuple[str, str]]:
    return [(fact.kind, fact.severity.value) for fact in judged(log)]


def of(**values: list[float]) -> list[tuple[str, str, str]]:
    series = {
        name: Series(name=name, values=tuple(row), lines=tuple(range(1, len(row) + 1)))
        for name, row in ((name.replace("__", "/"), row) for name, row in values.items())
    }
    return [(fact.kind, fact.severity.value, fact.field) for fact in judge_series(series)]


HEALTHY: dict[str, list[float]] = {
    "step": [1.0, 2, 3],
    "loss": [0.9123, 0.8, 0.7],
    "grad_norm": [0.1, 0.2, 0.1],
    "critic__rewards__min": [0.0, 0, 0],
    "critic__rewards__max": [1.0, 1, 0],
    "reward_std": [0.5, 0, 0.4],
    "response_length__clip_ratio": [1.0, 0.5, 1],
}


@pytest.mark.parametrize(
    "log",
    [
        trl({}, {}, {}),
        trl({"std": "0.0", "equal": "1.0", "grad": "0.0"}, {}, {}),
        trl({"ended": "nan", "cut": "1.0"}, {}, {}),
        verl({}, {}, {}),
        verl({"high": "0.0", "low": "0.0", "adv": "0.0", "grad": "0.0"}, {}),
        "{'loss': '5.839', 'grad_norm': '1.69', 'learning_rate': '0', 'epoch': '0.125'}\n"
        "{'loss': '5.844', 'grad_norm': '1.625', 'learning_rate': '0.0001', 'epoch': '0.25'}\n",
        "{'eval_loss': 1.25, 'eval_runtime': 3.1, 'epoch': 1.0}\n" * 2
        + "{'eval_loss': 1.25, 'eval_reward_std': 0.0, 'epoch': 2.0}\n{'eval_loss': 1.25, 'epoch': 3.0}\n",
        "step:1 - critic/vf_loss:0.51234 - critic/grad_norm:3\nstep:2 - critic/vf_loss:0.4123 - critic/grad_norm:2.2\n",
        "step:0 - val-core/x/reward/mean@1:nan - val-aux/x/score/min:0.0 - val-aux/x/score/max:0.0\n" * 3,
        "{'loss': 0.0, 'grad_norm': 0.0865, 'reward_std': 0.57, 'kl': 0.0005}\n" * 2
        + "{'loss': 0.0, 'grad_norm': 0.0912, 'reward_std': 0.41, 'kl': 0.0006}\n",
        "{'train_runtime': 2.77, 'train_loss': 0.0, 'epoch': 0.5}\n",
    ],
    ids=[
        "trl", "trl-one-equal-step", "trl-nothing-ended", "verl", "verl-one-equal-step", "hf-warm-up", "eval-only",
        "critic-warm-up", "verl-validation", "trl-loss-zero-by-design", "hf-summary",
    ],
)  # fmt: skip
def test_a_healthy_log_shows_nothing(log: str) -> None:
    assert said(log) == []


def test_a_healthy_table_of_values_shows_nothing() -> None:
    assert of(**HEALTHY) == []


@pytest.mark.parametrize(
    ("kind", "severity", "field", "planted"),
    [
        ("not-finite", "warning", "loss", {"loss": [0.9, NAN, 0.7]}),
        ("not-finite", "error", "loss", {"loss": [0.9, 0.8, INF]}),
        ("not-finite", "error", "loss", {"loss": [NAN]}),
        ("not-finite", "error", "actor/kl_loss", {"actor__kl_loss": [0.1, NAN]}),
        ("not-finite", "error", "actor/entropy", {"actor__entropy": [NAN, NAN]}),
        ("not-finite", "error", "critic/score/mean", {"critic__score__mean": [0.5, NAN]}),
        ("not-finite", "error", "reward", {"reward": [0.5, NAN]}),
        ("not-finite", "error", "loss/policy_avg", {"loss__policy_avg": [0.5, NAN]}),
        ("not-finite", "error", "policy/entropy_avg", {"policy__entropy_avg": [0.5, NAN]}),
        ("not-finite", "error", "loss", {"loss": [1, NAN, NAN, NAN, 1, NAN, NAN, NAN, 1]}),
        ("not-finite", "error", "loss", {"loss": [1, NAN, *[1] * 63] * 5 + [1, NAN, 1, 1]}),
        ("not-finite", "warning", "loss", {"loss": [1, NAN, *[1] * 63] * 2}),
        ("not-finite", "warning", "grad_norm", {"grad_norm": [1, NAN, *[1] * 63] * 5 + [1, INF, 1, 1]}),
        ("not-finite", "warning", "grad_norm", {"grad_norm": [INF, INF, 0.3]}),
        ("not-finite", "warning", "grad_norm", {"grad_norm": [0.2, 0.3, INF]}),
        ("not-finite", "error", "grad_norm", {"grad_norm": [0.2, INF, INF, INF]}),
        ("not-finite", "error", "grad_norm", {"grad_norm": [0.2, 0.3, NAN]}),
        ("not-finite", "warning", "eval_loss", {"eval_loss": [0.5, NAN]}),
        ("exploding", "error", "loss", {"loss": [2.0, 1.9, 1.8, 1.8, 1.7, 1.7, 1.6, 9e3, 8e4, 9e4, 9e4]}),
        ("exploding", "warning", "grad_norm", {"grad_norm": [1.0] * 9 + [2e3] * 3}),
        ("zero-gradient", "error", "grad_norm", {"grad_norm": [0.0, 0, 0]}),
        ("zero-gradient", "warning", "grad_norm", {"grad_norm": [0.0]}),
        ("constant-rewards", "warning", "critic/rewards/min", {"critic__rewards__max": [0.0, 0, 0]}),
        ("constant-rewards", "warning", "reward_std", {"reward_std": [0.0, 0, 0]}),
        ("constant-rewards", "warning", "frac_reward_zero_std", {"frac_reward_zero_std": [1.0, 1]}),
        ("constant-rewards", "error", "reward_std", {"reward_std": [0.0, 0], "grad_norm": [0.0, 0]}),
        ("zero-learning-rate", "warning", "learning_rate", {"learning_rate": [0.0] * 3}),
        ("lengths-at-cap", "warning", "response_length/clip_ratio", {"response_length__clip_ratio": [1.0, 0.95, 1]}),
        (
            "lengths-at-cap",
            "warning",
            "completions/max_length",
            {"completions__max_length": [256.0, 256], "completions__min_length": [256.0, 256]},
        ),
    ],
)
def test_a_planted_fault_is_seen(kind: str, severity: str, field: str, planted: dict[str, list[float]]) -> None:
    assert of(**HEALTHY | planted) == [(kind, severity, field)]


@pytest.mark.parametrize(
    "planted",
    [
        {"loss": [2.0, 1.9, 1.8, 1.8, 1.7, 1.7, 1.6, 9e3, 1.6, 1.5, 1.5]},
        {"actor__pg_loss": [1e-8] * 8 + [0.5] * 3},
        {"learning_rate": [0.0, 0]},
        {"learning_rate": [0.0, 0, 1e-6]},
        {"critic__vf_explained_var": [0.1, NAN]},
        {"rewards__judge__mean": [0.1, NAN], "rewards__judge__std": [0.1, NAN]},
        {"rewards__form__std": [0.0, 0, 0], "rewards__right__std": [0.4, 0.3, 0.2]},
        {"completions__max_length": [256.0, 128], "completions__min_length": [256.0, 128]},
        {"prompt_length__clip_ratio": [1.0, 1]},
    ],
)
def test_what_only_looks_like_a_fault_shows_nothing(planted: dict[str, list[float]]) -> None:
    assert of(**HEALTHY | planted) == []


def test_a_rate_of_zero_over_ten_steps_is_an_error() -> None:
    assert of(learning_rate=[0.0] * 10) == [("zero-learning-rate", "error", "learning_rate")]


def test_groups_of_equal_rewards_in_logs_of_trl_and_verl_are_errors_with_their_gradient() -> None:
    step = {"std": "0.0", "equal": "1.0", "grad": "0.0", "mean": "0.0", "cut": "1.0"}
    assert said(trl(step, step)) == [("constant-rewards", "error"), ("lengths-at-cap", "warning")]
    step = {"high": "0.0", "low": "0.0", "mean": "0.0", "adv": "0.0"}
    fact = judged(verl(step, step))[0]
    assert (fact.kind, fact.severity, fact.line) == ("constant-rewards", Severity.ERROR, 1)
    assert "`critic/advantages/max` is 0" in fact.message
    assert said(verl(step | {"adv": "1.5"}, step | {"adv": "1.4"})) == [("constant-rewards", "warning")]


def test_a_step_that_two_ranks_print_is_one_step() -> None:
    step = verl({"high": "0.0", "low": "0.0", "mean": "0.0", "adv": "0.0"})
    assert said(step * 2) == []


def test_three_decimals_prove_no_zero() -> None:
    old = "step:{n} - actor/lr:0.000 - actor/grad_norm:0.000 - actor/pg_loss:-0.013 - critic/score/max:1.000\n"
    log = "".join(old.format(n=n) for n in range(1, 12))
    assert said(log) == [("zero-gradient", "warning")]
    assert said(log.replace("0.013", "0.0134567")) == [("zero-gradient", "error"), ("zero-learning-rate", "error")]


def test_a_counter_that_moves_while_nothing_changes_is_seen() -> None:
    loss = [0.51234] * 3
    assert of(step=[1, 2, 3], loss=loss, lr=[1, 2, 3]) == [("nothing-changes", "error", "loss")]
    assert of(epoch=[0.1, 0.2, 0.3], loss=loss) == [("nothing-changes", "error", "loss")]
    assert of(step=[1, 2, 3], loss=loss, kl=[0, 0, 1]) == []
    assert of(step=[1, 1, 1], loss=loss) == []
    assert of(step=[1, 2, 3], eval_loss=loss) == []


def test_few_decimals_show_no_standstill_before_ten_values() -> None:
    assert of(step=[1, 2, 3], loss=[0.51] * 3) == []
    assert of(step=[*range(1, 11)], loss=[0.51] * 10) == [("nothing-changes", "error", "loss")]


def test_a_rate_with_four_decimals_may_be_a_small_one() -> None:
    assert of(lr=[0.0] * 10, loss=[0.7123] * 5 + [0.7124] * 5) == []
    assert of(lr=[0.0] * 10, loss=[0.71234567] * 5 + [0.7124] * 5) == [("zero-learning-rate", "error", "lr")]


def test_one_cause_in_many_fields_is_one_fact() -> None:
    facts = judged("loss: 1 grad_norm: 1 kl: 1\nloss: 1 grad_norm: nan kl: 1\nloss: nan grad_norm: nan kl: nan\n")
    assert [(fact.field, fact.line) for fact in facts] == [("grad_norm", 2)]
    assert facts[0].message == "`grad_norm` is nan in 2 of 3 values, first on line 2 and in the last; `loss`, `kl` too"
    assert "logging_nan_inf_filter" in facts[0].cause


def test_a_series_that_recovered_says_where() -> None:
    facts = judged("loss: 1\nloss: inf\nloss: 2\n")
    assert facts[0].message == "`loss` is inf in 1 of 3 values, first on line 2 and a number again from line 3 on"


def test_errors_stand_first_and_every_kind_has_its_words_and_its_row_in_the_page() -> None:
    facts = judged(trl({"cut": "1.0"}, {"cut": "1.0", "grad": "nan"}))
    assert [fact.severity for fact in facts] == [Severity.ERROR, Severity.WARNING]
    page = (Path(__file__).parents[2] / "docs" / "training-logs.md").read_text().split("## What programs")[0]
    assert {*re.findall(r"^\| `([a-z-]+)` \| (?:error|warning) \|", page, re.MULTILINE)} == {*KINDS}
    assert all(fact.kind in KINDS and fact.cause.endswith(".") and fact.fix.endswith(".") for fact in facts)
