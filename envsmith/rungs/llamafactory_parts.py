"""What `llamafactory-step` asks LLaMA-Factory for, and how it judges what came of it: values in, values out.

Names of files and keys: LLaMA-Factory v0.9.5 (commit 7af90952), transformers 5.6, read 2026-11-30.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATASET = "envsmith_tiny"
#: Shipped configurations of one LoRA run, the present name first.
CONFIGS = ("examples/train_lora/qwen3_lora_sft.yaml", "examples/train_lora/llama3_lora_sft.yaml")
V1_CONFIGS = ("examples/v1/train_lora/train_lora_sft.yaml",)
OFFLOADS = ("examples/deepspeed/ds_z3_offload_config.json", "examples/deepspeed/ds_z2_offload_config.json")
#: Templates whose turns are those of the tiny model; `nothink` adds no thought to an answer.
TEMPLATES = ("qwen3_nothink", "qwen3", "qwen")
OLD_NAME, NEW_NAME = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
#: A stale value as a shell may have it, which the patched launcher has to take away from its ranks.
STALE = "expandable_segments:True"
ROWS = 64


@dataclass(frozen=True)
class Saying:
    """A judgement, ready to be said."""

    what: str
    verdict: str
    message: str
    expected: str | None = None
    actual: str | None = None
    hint: str | None = None


def first_there(source: Path, names: Sequence[str]) -> Path | None:
    """The first of some files of a source that exists."""
    return next((source / name for name in names if (source / name).is_file()), None)


def pick_template(source: Path) -> str:
    """A template of this LLaMA-Factory that renders turns as the tiny model's own does."""
    path = source / "src/llamafactory/data/template.py"
    known = set(re.findall(r'name="([^"]+)"', path.read_text(encoding="utf-8"))) if path.is_file() else set()
    return next((name for name in TEMPLATES if name in known), TEMPLATES[0])


def write_dataset(folder: Path) -> Path:
    """Write a data set in alpaca form with its own index, and the index of the same for v1; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    pairs = [(a, b) for a in range(1, 9) for b in range(1, 9)][:ROWS]
    rows = [{"instruction": f"what is {a} + {b}", "input": "", "output": f"the answer is {a + b}"} for a, b in pairs]
    index = {DATASET: {"file_name": "tiny.json"}}
    (folder / "tiny.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    (folder / "dataset_info.json").write_text(json.dumps(index), encoding="utf-8")
    v1 = f"{DATASET}:\n  path: {json.dumps(str(folder / 'tiny.json'))}\n  source: local\n  converter: alpaca\n"
    (folder / "v1.yaml").write_text(v1, encoding="utf-8")
    return folder


def overrides(
    *, model: Path, template: str, data: Path, total: int, save: int, device: str, bf16: bool
) -> dict[str, str]:
    """What must differ from a shipped configuration, and nothing else."""
    found = {
        "model_name_or_path": str(model),
        "template": template,
        "dataset": DATASET,
        "dataset_dir": str(data),
        "cutoff_len": "128",
        "max_steps": str(total),
        "save_steps": str(save),
        "logging_steps": "1",
        "plot_loss": "false",
        "report_to": "none",
        "preprocessing_num_workers": "1",
        "dataloader_num_workers": "0",
    }
    if not bf16:
        found["bf16"] = "false"
    if device == "cpu":
        found["use_cpu"] = "true"
    return found


def given(options: Mapping[str, Any]) -> dict[str, str]:
    """The recipe's own overrides, as a table or as a list of `key=value`."""
    value = options.get("overrides") or {}
    if isinstance(value, Mapping):
        return {str(key): str(one) for key, one in value.items()}
    pairs = (str(one).partition("=") for one in value)
    return {key: one for key, _, one in pairs}


def words(values: Mapping[str, str]) -> list[str]:
    """LLaMA-Factory's own form of overrides, which OmegaConf reads."""
    return [f"{key}={value}" for key, value in values.items()]


def judge_allocator(launch: Mapping[str, str], ranks: Mapping[str, Mapping[str, str]], planted: bool) -> Saying:
    """Compare what every rank had with what the recipe sets; torch prefers the old name when both are set."""
    wanted = launch.get(NEW_NAME)
    expected = f"{NEW_NAME}={wanted}, no {OLD_NAME}" if wanted else f"{OLD_NAME}={launch.get(OLD_NAME)}"
    if not ranks:
        return Saying("allocator-env-overridden", "failed", "no rank was seen, so nothing is known of its allocator")
    shown = "; ".join(sorted({_shown(found) for found in ranks.values()}))
    if wanted is None and OLD_NAME not in launch:
        return Saying("allocator-env", "note", "the recipe sets no allocator variable; the ranks had this", None, shown)
    wrong = {name: found for name, found in ranks.items() if not _as_recipe(launch, found)}
    if not wrong:
        after = f", although {OLD_NAME}={STALE} was planted in front of the launcher" if planted else ""
        message = f"every rank had the recipe's allocator variables{after}"
        return Saying("allocator-env", "ok", message, expected, shown)
    return Saying(
        "allocator-env-overridden",
        "failed",
        f"{len(wrong)} of {len(ranks)} ranks had other allocator variables than the recipe sets",
        expected,
        "; ".join(f"{name}: {_shown(found)}" for name, found in sorted(wrong.items())),
        "set OPTIM_TORCH=0 in the launch table and apply the launcher patch (stacks/a100.toml has both)",
    )


def _as_recipe(launch: Mapping[str, str], found: Mapping[str, str]) -> bool:
    if launch.get(NEW_NAME) is None:
        return found.get(OLD_NAME) == launch.get(OLD_NAME)
    return OLD_NAME not in found and found.get(NEW_NAME) == launch[NEW_NAME]


def _shown(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={found.get(name, 'absent')}" for name in (OLD_NAME, NEW_NAME))


def history(state: Mapping[str, Any], key: str) -> dict[int, float]:
    """Step to value of a trainer_state.json; the closing summary has no such key."""
    return {entry["step"]: float(entry[key]) for entry in state.get("log_history", []) if key in entry}


def judge_training(state: Mapping[str, Any], total: int) -> list[Saying]:
    """The steps are there, and loss and gradient are numbers."""
    loss, gradient = history(state, "loss"), history(state, "grad_norm")
    steps = state.get("global_step")
    sayings = [
        _holds(steps == total, "training-steps", f"the run made {total} steps", str(total), str(steps)),
        _holds(
            len(loss) == total and all(map(math.isfinite, loss.values())),
            "training-loss",
            "the loss of every step is finite",
            f"{total} finite numbers",
            _numbers(loss),
        ),
    ]
    if gradient:
        moved = all(map(math.isfinite, gradient.values())) and any(gradient.values())
        sayings.append(
            _holds(moved, "training-gradient", "the gradient is finite and not zero", "> 0", _numbers(gradient))
        )
    return sayings


def judge_resume(
    whole: Mapping[str, Any], resumed: Mapping[str, Any], save: int, total: int, exact: bool
) -> list[Saying]:
    """Compare a resumed run with the one that was not interrupted, from the checkpoint's step on.

    Equal losses need the same weights, optimizer, scheduler and data position; on a GPU the last digits may differ.
    """
    steps = list(range(save + 1, total + 1))
    rates = [{step: history(state, "learning_rate").get(step) for step in steps} for state in (whole, resumed)]
    losses = [{step: history(state, "loss").get(step, math.nan) for step in steps} for state in (whole, resumed)]
    counted = resumed.get("global_step")
    epochs = (whole.get("epoch"), resumed.get("epoch"))
    apart = max((abs(a - b) for a, b in zip(losses[0].values(), losses[1].values(), strict=True)), default=math.nan)
    limit = 1e-4 if exact else 5e-3
    text = "the resumed run has the losses of the uninterrupted one, so weights, optimizer and data position came back"
    loss = _holds(apart <= limit, "resume-loss", text, _numbers(losses[0]), _numbers(losses[1]))
    first = history(whole, "loss").get(1, math.nan)
    if loss.verdict == "ok" and not abs(first - losses[0][steps[0]]) > 2 * limit:
        text = "the losses are equal, but another place of the data would have given the same: it is not shown"
        loss = Saying("resume-loss", "warning", text, loss.expected, loss.actual)
    return [
        _holds(counted == total, "resume-steps", f"the step counter went on to {total}", str(total), str(counted)),
        _holds(
            rates[0] == rates[1] and None not in rates[0].values(),
            "resume-learning-rate",
            "the learning rate went on as if there had been no break",
            str(rates[0]),
            str(rates[1]),
        ),
        _holds(epochs[0] == epochs[1], "resume-epoch", "both end at the same place of the data", *map(str, epochs)),
        loss,
    ]


def judge_adapter(norms: Mapping[str, float], when: str) -> Saying:
    """LoRA's B matrices begin as zeros, so a number in every one of them is what training put there."""
    still = [name for name, norm in norms.items() if not (math.isfinite(norm) and norm > 0)]
    return _holds(
        bool(norms) and not still,
        "adapter-changed",
        f"all {len(norms)} lora_B matrices left zero {when}",
        "every norm > 0",
        f"zero or not finite: {', '.join(still) or 'there is no lora_B'}" if still or not norms else None,
    )


def _holds(holds: bool, what: str, message: str, expected: str | None, actual: str | None) -> Saying:
    return Saying(what, "ok" if holds else "failed", message if holds else f"not so: {message}", expected, actual)


def _numbers(values: Mapping[int, float]) -> str:
    return ", ".join(f"{step}: {value:.6g}" for step, value in values.items()) or "none"
