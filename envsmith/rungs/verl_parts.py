"""What `verl-step` asks VERL for, and how it judges what came of it: values in, values out.

Names of settings and metrics: VERL 1bf9d2d (`trainer/config/ppo_trainer.yaml`, `trainer/ppo/metric_utils.py`,
`utils/logger/aggregate_logger.py`, `examples/grpo_trainer/run_qwen3_8b_fsdp.sh`), read 2026-11-30.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .llamafactory_parts import Saying

#: Variable that names the file where allocator calls are written down that nothing vetoed.
CALLS = "ENVSMITH_ALLOCATOR_CALLS"
#: Ray's resource that stands for a device where there is none.
RESOURCE = "envsmith_cpu"
ROWS, GROUP = 16, 4
PROMPT_TOKENS, ANSWER_TOKENS = 128, 32
#: Answers of an untrained model differ in length and letters, so their rewards differ within a group.
REWARD = '''\
"""A reward that needs no knowledge: how many different characters an answer has, from 0 to 1."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return min(len(set(solution_str)), 50) / 50
'''
_STEP = re.compile(r"step:(\d+) - (.*)$", re.MULTILINE)
_PAIR = re.compile(r"([\w/.@-]+):(?:np\.\w+\()?([-+\w.]+)\)?$")
#: Stages of `verl_workers.py`, in order, in words.
STAGES = {
    "platform": "VERL imported, the CPU as its platform",
    "ray": "Ray started",
    "actor-group": "a worker group of VERL's in a placement group",
    "actor-model": "the actor's model built under FSDP",
    "actor-logprobs": "log-probabilities of the actor",
    "actor-step": "one update step of the actor",
    "critic-model": "the critic's model built with its value head",
    "critic-values": "values of the critic",
    "allocator": "the allocator call in a Ray worker",
    "end": "Ray ended",
}


_FIXED = {
    "algorithm.adv_estimator": "grpo",
    "algorithm.use_kl_in_reward": "False",
    "data.max_prompt_length": str(PROMPT_TOKENS),
    "data.max_response_length": str(ANSWER_TOKENS),
    "data.dataloader_num_workers": "0",
    # Packed sequences need flash-attn, and give a shape error with qwen3_5 at this commit.
    "actor_rollout_ref.model.use_remove_padding": "False",
    "actor_rollout_ref.model.enable_gradient_checkpointing": "False",
    "actor_rollout_ref.model.use_fused_kernels": "False",
    "actor_rollout_ref.actor.use_dynamic_bsz": "False",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "2",
    "actor_rollout_ref.actor.use_torch_compile": "False",
    "actor_rollout_ref.actor.optim.lr": "1e-3",
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.n": str(GROUP),
    "actor_rollout_ref.rollout.tensor_model_parallel_size": "1",
    "actor_rollout_ref.rollout.gpu_memory_utilization": "0.2",
    "actor_rollout_ref.rollout.enforce_eager": "True",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": "2",
    "actor_rollout_ref.rollout.agent.num_workers": "1",
    "reward.custom_reward_function.name": "compute_score",
    "reward.num_workers": "1",
    "trainer.nnodes": "1",
    "trainer.logger": "[console]",
    "trainer.val_before_train": "False",
    "trainer.test_freq": "-1",
    "trainer.save_freq": "-1",
}


def rows() -> list[dict[str, Any]]:
    """A task in VERL's form."""
    found = []
    for number in range(ROWS):
        a, b = number % 8 + 1, number // 8 + 1
        found.append(
            {
                "data_source": "envsmith/tiny",
                "prompt": [{"role": "user", "content": f"what is {a} + {b}"}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(a + b)},
                "extra_info": {"split": "train", "index": number},
            }
        )
    return found


def overrides(
    *, model: Path, data: Path, reward: Path, out: Path, device: str, ranks: int, steps: int
) -> dict[str, str]:
    """GRPO as the shipped examples set it, made small, with what is known to be needed (facts, field-notes I)."""
    batch = str(max(2, ranks))  # with 1 the actor did not update
    return _FIXED | {
        "data.train_files": str(data),
        "data.val_files": str(data),
        "data.train_batch_size": batch,
        "actor_rollout_ref.model.path": str(model),
        "actor_rollout_ref.actor.ppo_mini_batch_size": batch,
        "reward.custom_reward_function.path": str(reward),
        "trainer.device": device,
        "trainer.n_gpus_per_node": str(max(1, ranks)),
        "trainer.total_training_steps": str(steps),
        "trainer.default_local_dir": str(out),
    }


def metrics(log: str) -> dict[int, dict[str, float]]:
    """Step to metrics, from the lines that VERL's console logger prints (Ray puts a prefix in front of them)."""
    found: dict[int, dict[str, float]] = {}
    for match in _STEP.finditer(re.sub(r"\x1b\[[0-9;]*m", "", log)):
        pairs = [pair for one in match[2].split(" - ") if (pair := _PAIR.match(one.strip()))]
        values = {}
        for pair in pairs:
            try:
                values[pair[1]] = float(pair[2])
            except ValueError:
                continue
        found[int(match[1])] = values
    return found


def judge_steps(found: Mapping[int, Mapping[str, float]], steps: int) -> list[Saying]:
    """Every step is there with finite numbers, and at least one had rewards that differ and a gradient."""
    wanted = list(range(1, steps + 1))
    there = sorted(found)
    if not set(wanted) <= set(there):
        text = "the log has not every step that was asked for"
        return [Saying("verl-steps", "failed", text, str(wanted), str(there))]
    sayings = [Saying("verl-steps", "ok", "every step is in the log", str(wanted), str(there))]
    chosen = [found[step] for step in wanted]
    for name in ("actor/pg_loss", "actor/grad_norm"):
        values = [one.get(name, math.nan) for one in chosen]
        finite = all(map(math.isfinite, values))
        text = f"{name} is finite" if finite else f"{name} is absent or not finite"
        sayings.append(Saying("verl-finite", "ok" if finite else "failed", text, "finite", _shown(values)))
    ranges = [(one.get("critic/rewards/min", math.nan), one.get("critic/rewards/max", math.nan)) for one in chosen]
    norms = [one.get("actor/grad_norm", math.nan) for one in chosen]
    if not any(low < high for low, high in ranges):
        text = "all rewards of every step were equal, so every advantage was zero and nothing was learned or shown"
        hint = "try another seed, or a reward that differs"
        return [*sayings, Saying("equal-rewards", "inconclusive", text, "rewards that differ", str(ranges), hint)]
    moved = any(norm > 0 for norm in norms)
    text = "rewards differed and the gradient moved the parameters" if moved else "the gradient was zero"
    sayings.append(Saying("verl-update", "ok" if moved else "failed", text, "> 0", _shown(norms)))
    capped = [one["response_length/clip_ratio"] for one in chosen if "response_length/clip_ratio" in one]
    if capped and min(capped) >= 1:
        text = "every answer ended at the cap and none by itself"
        sayings.append(Saying("all-at-the-cap", "warning", text, "less than 1", _shown(capped)))
    return sayings


def judge_config(text: str, wanted: Mapping[str, str]) -> list[Saying]:
    """The resolved configuration has what was asked for; a mistyped key would have been refused by Hydra."""
    leaves = {key.rpartition(".")[2]: value for key, value in wanted.items()}
    keys = ("adv_estimator", "use_remove_padding", "total_training_steps")
    absent = [f"{key}: {leaves[key]}" for key in keys if not re.search(rf"(?mi)^\s*{key}: {leaves[key]}\s*$", text)]
    message = "VERL's configuration was resolved with the overrides in place"
    if absent:
        return [Saying("verl-config", "failed", f"not so: {message}", None, f"not in it: {', '.join(absent)}")]
    return [Saying("verl-config", "ok", message, None, f"{text.count(chr(10))} lines")]


def judge_workers(stages: Sequence[Mapping[str, Any]], launch: Mapping[str, str], error: str | None) -> list[Saying]:
    """What VERL's own workers did on a CPU; the rollout is never among it."""
    reached = {str(one["stage"]): one for one in stages}
    last = STAGES.get(str(stages[-1]["stage"]), "nothing") if stages else "nothing"
    sayings = []
    if "end" not in reached:
        text = f"VERL's own workers stopped after: {last}"
        sayings.append(Saying("verl-workers", "failed", text, STAGES["end"], error or last))
    if step := reached.get("actor-step"):
        numbers = [float(step[key]) for key in ("loss", "grad_norm", "logprobs_moved")]
        good = all(map(math.isfinite, numbers)) and numbers[1] > 0 and numbers[2] > 0
        text = "VERL's own actor made one update step in a Ray worker on the CPU, and its log-probabilities moved"
        shown = "loss {:.6g}, gradient {:.6g}, log-probabilities moved by {:.6g}".format(*numbers)
        sayings.append(Saying("verl-actor-step", "ok" if good else "failed", text, "finite, > 0, > 0", shown))
    if critic := reached.get("critic-model"):
        wanted = launch.get("VERL_ATTN_IMPLEMENTATION", "sdpa")
        good = critic["attention"] == wanted
        text = "the critic's value head was built with the attention that the environment names"
        sayings.append(_said(good, "verl-attention", text, wanted, critic["attention"]))
    if (call := reached.get("allocator")) and launch.get("VERL_DISABLE_EXPANDABLE_SEGMENTS") == "1":
        good = not call["calls"]
        text = "asked for expandable segments in a Ray worker, VERL left the allocator alone"
        sayings.append(_said(good, "allocator-toggled-in-code", text, "no call", str(call["calls"])))
    return sayings


def _said(good: bool, what: str, text: str, expected: str, actual: str) -> Saying:
    return Saying(what, "ok" if good else "failed", text if good else f"not so: {text}", expected, str(actual))


def _shown(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.6g}" for value in values)
