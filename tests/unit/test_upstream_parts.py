"""What the rungs of upstream's own entry points ask for and how they judge it, without any of upstream's code."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from envsmith.rungs import llamafactory_parts as lf
from envsmith.rungs import verl_parts as verl

SAFE = "backend:native,expandable_segments:False"
LAUNCH = {"PYTORCH_ALLOC_CONF": SAFE, "OPTIM_TORCH": "0"}


def verdicts(sayings: list[lf.Saying]) -> dict[str, str]:
    return {one.what: one.verdict for one in sayings}


def state(steps: int, *, shift: float = 0.0, rate: float = 1e-4, first: int = 1, bad: float | None = None) -> dict:
    history = [
        {
            "step": n,
            "loss": bad if bad is not None else 5.0 - n / 10 + shift,
            "learning_rate": rate / n,
            "grad_norm": 1.5,
        }
        for n in range(first, steps + 1)
    ]
    return {"global_step": steps, "epoch": steps / 8, "log_history": [*history, {"step": steps, "train_loss": 5.0}]}


def test_the_data_set_is_in_alpaca_form_with_its_own_index(tmp_path: Path) -> None:
    folder = lf.write_dataset(tmp_path / "data")
    rows = json.loads((folder / "tiny.json").read_text())
    assert json.loads((folder / "dataset_info.json").read_text()) == {lf.DATASET: {"file_name": "tiny.json"}}
    assert len(rows) == lf.ROWS and all(set(row) == {"instruction", "input", "output"} for row in rows)


def test_only_what_must_differ_is_overridden(tmp_path: Path) -> None:
    common = {"model": tmp_path, "template": "qwen3_nothink", "data": tmp_path, "total": 4, "save": 2}
    on_cpu = lf.overrides(**common, device="cpu", bf16=False)
    on_device = lf.overrides(**common, device="cuda:0", bf16=True)
    assert {"bf16", "use_cpu"} == on_cpu.keys() - on_device.keys()
    assert not {"learning_rate", "lora_rank", "stage", "per_device_train_batch_size"} & on_cpu.keys()
    assert lf.words({"a": "1", "b": "x"}) == ["a=1", "b=x"]


@pytest.mark.parametrize("value", [{"lora_rank": 4, "seed": 1}, ["lora_rank=4", "seed=1"]])
def test_the_recipe_may_override_too(value: object) -> None:
    assert lf.given({"overrides": value}) == {"lora_rank": "4", "seed": "1"}
    assert lf.given({}) == {}


def test_a_template_and_a_configuration_are_chosen_by_what_is_there(tmp_path: Path) -> None:
    assert lf.first_there(tmp_path, lf.CONFIGS) is None
    path = tmp_path / lf.CONFIGS[1]
    path.parent.mkdir(parents=True)
    path.touch()
    assert lf.first_there(tmp_path, lf.CONFIGS) == path
    templates = tmp_path / "src/llamafactory/data/template.py"
    templates.parent.mkdir(parents=True)
    templates.write_text('register(\n    name="qwen",\n)\nregister(\n    name="qwen3",\n)\n')
    assert lf.pick_template(tmp_path) == "qwen3"


@pytest.mark.parametrize(
    ("launch", "found", "verdict"),
    [
        (LAUNCH, {"PYTORCH_ALLOC_CONF": SAFE}, "ok"),
        (LAUNCH, {"PYTORCH_ALLOC_CONF": SAFE, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "failed"),
        (LAUNCH, {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "failed"),
        (LAUNCH, {}, "failed"),
        ({}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "note"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "a"}, {"PYTORCH_CUDA_ALLOC_CONF": "a"}, "ok"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "a"}, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "failed"),
    ],
)
def test_every_rank_must_have_the_recipes_allocator(launch: dict, found: dict, verdict: str) -> None:
    assert lf.judge_allocator(launch, {"rank 0": dict(launch), "rank 1": found}, False).verdict == verdict


def test_ranks_that_nobody_saw_prove_nothing() -> None:
    assert lf.judge_allocator(LAUNCH, {}, True).verdict == "failed"


def test_a_run_with_all_steps_and_finite_numbers_is_well() -> None:
    assert set(verdicts(lf.judge_training(state(4), 4)).values()) == {"ok"}


@pytest.mark.parametrize(
    ("found", "total", "what"),
    [
        (state(3), 4, "training-steps"),
        (state(4, bad=math.nan), 4, "training-loss"),
        ({}, 4, "training-steps"),
        ({"global_step": 1, "log_history": [{"step": 1, "loss": 1.0, "grad_norm": 0.0}]}, 1, "training-gradient"),
    ],
)
def test_a_run_that_went_wrong_is_seen(found: dict, total: int, what: str) -> None:
    assert verdicts(lf.judge_training(found, total))[what] == "failed"


def test_a_resumed_run_that_went_on_where_it_stopped_is_well() -> None:
    assert set(verdicts(lf.judge_resume(state(4), state(4, first=3), 2, 4, True)).values()) == {"ok"}


@pytest.mark.parametrize(
    ("resumed", "what"),
    [
        (state(4, shift=0.05), "resume-loss"),
        (state(4, rate=2e-4), "resume-learning-rate"),
        (state(3), "resume-steps"),
        (state(3), "resume-epoch"),
        ({}, "resume-loss"),
    ],
)
def test_a_resumed_run_that_began_elsewhere_is_seen(resumed: dict, what: str) -> None:
    assert verdicts(lf.judge_resume(state(4), resumed, 2, 4, True))[what] == "failed"


def test_losses_that_any_place_of_the_data_gives_do_not_show_the_place() -> None:
    flat = state(4, bad=5.0)
    assert verdicts(lf.judge_resume(flat, flat, 2, 4, False))["resume-loss"] == "warning"


@pytest.mark.parametrize(
    ("norms", "verdict"),
    [
        ({"a.lora_B": 0.1}, "ok"),
        ({"a.lora_B": 0.1, "b.lora_B": 0.0}, "failed"),
        ({"a.lora_B": math.nan}, "failed"),
        ({}, "failed"),
    ],
)
def test_an_adapter_that_is_still_zero_is_seen(norms: dict, verdict: str) -> None:
    assert lf.judge_adapter(norms, "after 2 steps").verdict == verdict


def test_verls_rows_have_its_form_and_its_reward_differs() -> None:
    rows = verl.rows()
    assert len(rows) == 16 and {"data_source", "prompt", "reward_model", "extra_info"} < set(rows[0])
    scope: dict = {}
    exec(verl.REWARD, scope)
    assert scope["compute_score"]("", "aab", "1") < scope["compute_score"]("", "abcd", "1")


def test_verls_overrides_keep_the_rules_of_the_field(tmp_path: Path) -> None:
    common = {"model": tmp_path, "data": tmp_path, "reward": tmp_path, "out": tmp_path, "device": "cuda", "steps": 2}
    values = verl.overrides(**common, ranks=1)
    assert (values["data.train_batch_size"], values["actor_rollout_ref.actor.ppo_mini_batch_size"]) == ("2", "2")
    assert values["actor_rollout_ref.model.use_remove_padding"] == "False"
    assert values["actor_rollout_ref.actor.use_dynamic_bsz"] == "False"
    assert verl.overrides(**common, ranks=8)["data.train_batch_size"] == "8"


LOG = (
    "(TaskRunnerV1 pid=7) \x1b[36mstep:1 - actor/pg_loss:0.1 - actor/grad_norm:np.float64(0.5) - critic/rewards/min:0.1"
    " - critic/rewards/max:0.4 - response_length/clip_ratio:{clip}\n"
    "step:2 - actor/pg_loss:-0.1 - actor/grad_norm:{norm} - critic/rewards/min:0.2 - critic/rewards/max:0.2\n"
)


def test_verls_log_is_read_with_rays_prefixes_and_numpys_numbers() -> None:
    found = verl.metrics(LOG.format(clip=0.5, norm="1e-3"))
    assert found[1]["actor/grad_norm"] == 0.5 and found[2]["actor/grad_norm"] == 1e-3
    assert set(verdicts(verl.judge_steps(found, 2)).values()) == {"ok"}


def test_a_step_that_is_missing_or_not_finite_fails() -> None:
    found = verl.metrics(LOG.format(clip=0.5, norm="nan"))
    assert verdicts(verl.judge_steps(found, 3))["verl-steps"] == "failed"
    assert verdicts(verl.judge_steps(found, 2))["verl-finite"] == "failed"


def test_equal_rewards_in_every_step_are_inconclusive_and_one_group_with_variance_is_enough() -> None:
    found = verl.metrics(LOG.format(clip=0.5, norm="1e-3"))
    assert verdicts(verl.judge_steps({1: found[2]}, 1))["equal-rewards"] == "inconclusive"
    assert "equal-rewards" not in verdicts(verl.judge_steps(found, 2))


def test_answers_that_all_end_at_the_cap_are_a_warning() -> None:
    found = verl.metrics(LOG.format(clip="1.0", norm="1e-3"))
    assert verdicts(verl.judge_steps(found, 2))["all-at-the-cap"] == "warning"


STAGES = [
    {"stage": "platform"},
    {"stage": "ray"},
    {"stage": "actor-step", "loss": 0.1, "grad_norm": 1.0, "logprobs_moved": 0.2},
    {"stage": "critic-model", "attention": "sdpa"},
    {"stage": "allocator", "calls": []},
    {"stage": "end"},
]
VETO = {"VERL_DISABLE_EXPANDABLE_SEGMENTS": "1", "VERL_ATTN_IMPLEMENTATION": "sdpa"}


def test_verls_workers_on_a_cpu_are_well_when_they_reach_the_end() -> None:
    said = verdicts(verl.judge_workers(STAGES, VETO, None))
    assert said == {"verl-actor-step": "ok", "verl-attention": "ok", "allocator-toggled-in-code": "ok"}


@pytest.mark.parametrize(
    ("number", "fault", "what"),
    [
        (2, {"grad_norm": 0.0}, "verl-actor-step"),
        (2, {"loss": math.nan}, "verl-actor-step"),
        (3, {"attention": "flash_attention_2"}, "verl-attention"),
        (4, {"calls": ["expandable_segments:True"]}, "allocator-toggled-in-code"),
        (5, {"stage": "late"}, "verl-workers"),
    ],
)
def test_what_went_wrong_in_verls_workers_is_seen(number: int, fault: dict, what: str) -> None:
    stages = [one | fault if n == number else one for n, one in enumerate(STAGES)]
    assert verdicts(verl.judge_workers(stages, VETO, "KeyError: 'x'"))[what] == "failed"


def test_a_configuration_without_what_was_asked_for_is_seen(tmp_path: Path) -> None:
    wanted = {"algorithm.adv_estimator": "grpo", "m.use_remove_padding": "False", "trainer.total_training_steps": "2"}
    text = "algorithm:\n  adv_estimator: grpo\nm:\n  use_remove_padding: false\ntrainer:\n  total_training_steps: 2\n"
    assert verl.judge_config(text, wanted)[0].verdict == "ok"
    assert verl.judge_config(text.replace("grpo", "gae"), wanted)[0].verdict == "failed"
