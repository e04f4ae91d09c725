"""The rungs `train-step` and `resume` in a real env with torch and transformers, on the CPU, sound and with faults."""

from __future__ import annotations

import ast
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support.torchenv import make_torch_env, session_folder
from tests.support.trainrungs import Desk, Said, _ranked, once, said

pytestmark = pytest.mark.network
MODEL = ("config.json", "model.safetensors", "tokenizer.json")
#: Cases of train-step that need no change of the code: name to options.
ASKED: dict[str, dict[str, object]] = {
    "equal": {"rewards": "constant"},
    "capped": {"max_tokens": 1},
    "no-rate": {"learning_rate": 0.0},
    "vllm": {"engine": "vllm"},
}
PLANTED = (
    "frozen", "nan-weight", "nan-gradient", "no-gradient", "decay", "one-tensor", "ascent", "noise", "no-load",
    "other-tensor", "old-answers",
)  # fmt: skip
DAMAGED = (
    "cut-short", "no-optimizer", "empty-optimizer", "zero-optimizer", "other-weight", "other-random", "shifted-data",
    "reset-scheduler", "reset-step", "forgetful", "puts-back",
)  # fmt: skip


@pytest.fixture(scope="session")
def torch_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with torch: ENVSMITH_TEST_TORCH_PYTHON names one that is there already."""
    named = os.environ.get("ENVSMITH_TEST_TORCH_PYTHON")
    return Path(named) if named else make_torch_env(session_folder(tmp_path_factory))


@pytest.fixture(scope="session")
def trained(torch_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound run on two ranks."""

    def make(folder: Path) -> None:
        desk = Desk(torch_python, folder)
        codes = desk.run("train_step", desk.task("two", "train-step", ranks=2), ranks=2, log=folder / "two")
        (folder / "codes.json").write_text(json.dumps(codes))

    return once(tmp_path_factory, "rungs-trained", make)


@pytest.fixture(scope="session")
def faulty(trained: Path, torch_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All faults of train-step, one after the other in one process (two for `own-gradients`)."""

    def make(folder: Path) -> None:
        desk = Desk(torch_python, folder)
        shutil.copytree(trained / "shared", folder / "shared")
        shutil.copytree(trained / "shared/model", folder / "spoilt")
        tasks = [desk.task("own-gradients", "train-step", ranks=2, steps=1)]
        tasks += [desk.task(name, "train-step", steps=2, **options) for name, options in ASKED.items()]
        for name in PLANTED:
            options = {"nan-weight": {"model": str(folder / "spoilt")}, "decay": {"rewards": "constant"}}.get(name, {})
            tasks.append(desk.task(name, "train-step", steps=1, **options))
        (codes,) = desk.run("plants_train", json.dumps(_ranked(2)[0]), *tasks, log=folder)
        assert codes == 0, (folder / "rank0.log").read_text()

    return once(tmp_path_factory, "rungs-faulty", make)


@pytest.fixture(scope="session")
def resumed(trained: Path, torch_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound run of `resume`."""

    def make(folder: Path) -> None:
        desk = Desk(torch_python, folder)
        shutil.copytree(trained / "shared", folder / "shared")
        (code,) = desk.run("resume", desk.task("sound", "resume"), log=folder / "sound")
        assert code == 0, (folder / "sound/rank0.log").read_text()

    return once(tmp_path_factory, "rungs-resumed", make)


@pytest.fixture(scope="session")
def damaged(resumed: Path, torch_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a damaged checkpoint, a case after the other in one process."""

    def make(folder: Path) -> None:
        desk = Desk(torch_python, folder)
        shutil.copytree(resumed / "shared", folder / "shared")
        tasks = [desk.task(name, "resume") for name in DAMAGED]
        for name in DAMAGED:
            for kept in ("checkpoint", "end-a"):
                shutil.copytree(resumed / "sound" / kept, folder / name / kept)
            for part in "ab":
                shutil.copy(resumed / "sound" / f"part-{part}.json", folder / name)
        (code,) = desk.run("plants_resume", *tasks, log=folder)
        assert code == 0, (folder / "rank0.log").read_text()

    return once(tmp_path_factory, "rungs-damaged", make)


def test_a_sound_step_on_two_ranks_passes_and_every_rank_says_so(trained: Path) -> None:
    assert json.loads((trained / "codes.json").read_text()) == [0, 0]
    for rank in (0, 1):
        answer = said(trained / "two", rank)
        assert answer.bad == []
        assert answer.verdicts["ranks-differ"] == answer.verdicts["rollout-not-new"] == "ok"
        assert set(MODEL) <= set(answer.identities["model"])


def test_a_sound_step_moves_every_parameter_and_the_engine_follows(trained: Path) -> None:
    figures = said(trained / "two").figures
    total = figures["parameters_trainable"]
    assert total > 20
    assert figures["parameters_changed"] == figures["tensors_synced"] == figures["tensors_new_in_engine"] == [total] * 2
    assert max(figures["engine_to_new_actor_nats"]) < figures["tolerance_nats"] < 1e-3
    assert min(figures["engine_to_old_actor_nats"]) > 0.01
    assert min(figures["gradient_norm"] + figures["change_norm"] + figures["kl_to_old_nats"]) > 0
    assert len(figures["rollout_s"]) == 3 and len(figures["update_s"]) == len(figures["sync_s"]) == 2
    assert sum(figures["ended_by_themselves"]) > 0


def test_ranks_answer_prompts_of_their_own_and_share_loss_and_gradient(trained: Path) -> None:
    first, second = (said(trained / "two", rank).figures for rank in (0, 1))
    assert first["loss"] == second["loss"] and first["gradient_norm"] == second["gradient_norm"]
    assert first["answer_tokens"] != second["answer_tokens"]
    assert first["backend"] == "gloo" and first["ranks"] == 2


def test_the_log_has_a_line_a_step_from_the_first_rank_alone(trained: Path) -> None:
    logs = [(trained / "two" / f"rank{rank}.log").read_text().splitlines() for rank in (0, 1)]
    steps = [[ast.literal_eval(line) for line in log if line.startswith("{'loss'")] for log in logs]
    assert [step["global_step"] for step in steps[0]] == [1, 2]
    assert set(steps[0][0]) == {"loss", "grad_norm", "reward", "reward_std", "kl", "global_step"}
    assert steps[1] == []


def test_equal_rewards_prove_nothing_and_move_nothing(faulty: Path) -> None:
    answer = said(faulty / "equal")
    assert answer.bad == ["equal-rewards"]
    found = answer.about("equal-rewards")
    assert found["verdict"] == "inconclusive"
    assert "so every advantage is zero: that is why the gradient is zero" in found["message"]
    for figure in ("reward mean 1", "std of each group 0", "gradient norm 0", "parameters changed 0"):
        assert figure in found["actual"]
    assert answer.figures["global_step"] == 2
    assert answer.verdicts["moved-without-signal"] == "ok"
    assert not {"gradient-zero", "parameters-unchanged", "rollout-not-new"} & answer.verdicts.keys()


def test_answers_that_all_stop_at_the_cap_are_a_warning(faulty: Path, trained: Path) -> None:
    assert said(faulty / "capped").about("all-at-cap")["verdict"] == "warning"
    assert "all-at-cap" not in said(trained / "two").verdicts


def test_vllm_that_cannot_run_here_is_replaced_and_said_to_be(faulty: Path) -> None:
    answer = said(faulty / "vllm")
    assert answer.about("engine-substituted")["verdict"] == "warning" and answer.bad == []
    assert answer.figures["engine"] == "transformers float32"


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("no-rate", {"parameters-unchanged"}),
        ("frozen", {"nothing-trainable"}),
        ("nan-weight", {"loss-not-finite"}),
        ("nan-gradient", {"gradient-not-finite"}),
        ("no-gradient", {"gradient-zero", "parameters-unchanged"}),
        ("ascent", {"step-against-gradient", "step-beside-gradient"}),
        ("no-load", {"engine-not-synced", "engine-differs", "rollout-not-new"}),
        ("other-tensor", {"engine-not-synced", "engine-differs"}),
        ("old-answers", {"engine-differs", "rollout-not-new"}),
        ("own-gradients", {"ranks-differ"}),
    ],
)
def test_a_fault_of_the_step_is_named(faulty: Path, case: str, expected: set[str]) -> None:
    assert set(said(faulty / case).bad) == expected


def test_an_optimizer_that_moves_one_tensor_alone_is_seen_and_the_others_are_named(faulty: Path) -> None:
    answer = said(faulty / "one-tensor")
    assert "parameters-unchanged" in answer.bad
    assert "and 23 more" in answer.about("parameters-unchanged")["actual"]


def test_noise_in_place_of_the_gradient_is_seen(faulty: Path) -> None:
    answer = said(faulty / "noise")
    assert "step-beside-gradient" in answer.bad
    assert abs(answer.figures["update_gradient_cosine"][0]) < 0.1


def test_weight_decay_without_a_signal_is_seen_to_move_parameters(faulty: Path) -> None:
    answer = said(faulty / "decay")
    assert set(answer.bad) == {"moved-without-signal", "equal-rewards"}


def test_what_is_no_number_is_named_by_parameter(faulty: Path) -> None:
    weight = said(faulty / "nan-weight").about("loss-not-finite")
    assert weight["subject"] == "model.layers.1.mlp.up_proj.weight"
    gradient = said(faulty / "nan-gradient").about("gradient-not-finite")
    assert gradient["subject"] == "model.norm.weight"


def test_the_rank_that_differs_is_named_on_every_rank(faulty: Path) -> None:
    for rank in (0, 1):
        found = said(faulty / "own-gradients", rank).about("ranks-differ")
        assert "after step 1: ranks 1 differ from rank 0" in found["message"]


def test_a_resumed_run_is_to_the_bit_the_run_that_never_stopped(resumed: Path) -> None:
    answer = said(resumed / "sound")
    assert answer.bad == []
    assert {what for what, verdict in answer.verdicts.items() if verdict == "ok"} == {
        "checkpoint-incomplete", "nothing-trained", "step-differs", "data-position-differs", "scheduler-differs",
        "random-differs", "optimizer-differs", "parameters-differ",
    }  # fmt: skip
    figures = answer.figures
    assert figures["loss_resumed"] == figures["loss_uninterrupted"] and len(set(figures["loss_resumed"])) == 4
    assert [figures[f"exit_code_{part}"] for part in "abc"] == [0, 0, 0]
    assert figures["processes"] == 3
    assert (figures["global_step_saved"], figures["global_step_end"]) == (2, 4)
    assert figures["optimizer_states"] == 3 * figures["parameters"]


@pytest.mark.parametrize(
    ("case", "first", "subject"),
    [
        ("cut-short", "checkpoint-incomplete", "model.safetensors"),
        ("no-optimizer", "checkpoint-incomplete", "optimizer.safetensors"),
        ("empty-optimizer", "checkpoint-incomplete", None),
        ("zero-optimizer", "optimizer-differs", "model.embed_tokens.weight.step"),
        ("other-weight", "parameters-differ", "lm_head.weight"),
        ("other-random", "random-differs", "cpu"),
        ("shifted-data", "data-position-differs", "offset"),
        ("reset-scheduler", "scheduler-differs", "last_epoch"),
        ("reset-step", "step-differs", None),
    ],
)
def test_a_damaged_checkpoint_is_named_by_what_it_spoils(
    damaged: Path, case: str, first: str, subject: str | None
) -> None:
    answer: Said = said(damaged / case)
    assert answer.bad[0] == first
    assert answer.about(first)["subject"] == subject


def test_a_truncated_file_is_refused_with_both_sizes_and_nothing_else_is_claimed(damaged: Path) -> None:
    answer = said(damaged / "cut-short")
    assert answer.bad == ["checkpoint-incomplete"]
    assert "bytes" in answer.about("checkpoint-incomplete")["message"]
    assert answer.figures["exit_code_c"] == 3
    assert "parameters-differ" not in answer.verdicts


def test_an_optimizer_that_puts_every_weight_back_trains_nothing(damaged: Path) -> None:
    assert said(damaged / "puts-back").bad == ["nothing-trained"]


def test_draws_between_loading_and_the_next_step_change_the_run(damaged: Path) -> None:
    assert "random-differs" in said(damaged / "forgetful").bad
