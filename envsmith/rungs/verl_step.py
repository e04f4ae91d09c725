"""VERL's own trainer with its shipped configuration: resolved, and run as far as this machine allows.

With a device `python -m verl.trainer.main_ppo` makes its steps. Without one the rollout cannot run; then VERL's own
workers are shown on a CPU, and the verdict is `warning`, never `ok`: docs/smoke-upstream.md says what that leaves open.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import tracing
from . import verl_parts as parts
from .answering import Answer, Task, identities_of, main, pick_device
from .llamafactory_parts import Saying, given, words
from .starting import Outcome, first_error, start
from .tiny import tiny_model

_REASONS = {"verl/utils/model.py": "the second load is for models that have no token classification class"}
_VARIABLES = (*tracing.VARIABLES, "ENVSMITH_RUNG_CHILD")


def rung(task: Task, answer: Answer) -> None:
    """Resolve the configuration, then train on a device or show what a CPU can."""
    device = pick_device(answer)
    kind = "cpu" if device == "cpu" else "cuda"
    data = _write_data(task.folder / "data")
    model = Path(task.options["model"]) if task.options.get("model") else tiny_model(task.shared, task.seed)
    values = parts.overrides(
        model=model, data=data / "train.parquet", reward=data / "reward.py", out=task.folder / "checkpoints",
        device=kind, ranks=_count_ranks(task, kind), steps=max(1, task.steps),
    ) | given(task.options)  # fmt: skip
    (task.folder / "overrides.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    answer.identities = {"model": identities_of(model), "data": identities_of(data)}
    answer.figures |= {"overrides": " ".join(words(values)), "steps": max(1, task.steps)}
    env = {**os.environ, **tracing.prepare(task, task.folder / "trace"), "PYTHONDONTWRITEBYTECODE": "1"}
    deadline = time.monotonic() + task.timeout_s * 0.95
    # Hydra writes below the working directory, which is the rung's own.
    command = [sys.executable, "-B", "-m", "verl.trainer.main_ppo", *words(values)]
    config = _start(task, answer, "config", [*command, "--cfg", "job", "--resolve"], env, deadline)
    if config.exit_code == 0:
        _say(answer, "config", parts.judge_config(config.text, values))
        if kind == "cuda":
            _train(task, answer, command, env, deadline)
        else:
            _without_device(task, answer, model, env, deadline)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer.figures["processor seconds"] = round(used.ru_utime + used.ru_stime, 1)
    tracing.say_observed(answer, task.folder / "trace")
    tracing.report(task, answer, tracing.events(task.folder / "trace"), _REASONS)


def _count_ranks(task: Task, kind: str) -> int:
    import torch

    return (task.ranks or torch.cuda.device_count()) if kind == "cuda" else 1


def _write_data(folder: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    folder.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(parts.rows()), folder / "train.parquet")
    (folder / "reward.py").write_text(parts.REWARD, encoding="utf-8")
    return folder


def _start(task: Task, answer: Answer, name: str, argv: list[str], env: dict[str, str], deadline: float) -> Outcome:
    work = task.folder / "work"
    work.mkdir(exist_ok=True)
    outcome = start(
        argv, env=env, cwd=work, log=task.folder / f"{name}.log", timeout_s=max(1.0, deadline - time.monotonic()),
        variables=_VARIABLES,
    )  # fmt: skip
    answer.figures |= {f"{name} seconds": round(outcome.seconds, 1), f"{name} exit code": outcome.exit_code}
    if outcome.left:
        left = ", ".join(outcome.left)
        answer.say("processes-left", "warning", "processes were left behind and killed", subject=name, actual=left)
    error = first_error(outcome.text) or (outcome.text.splitlines() or ["the log is empty"])[-1]
    ended = "was ended at the time limit" if outcome.timed_out else f"exit code {outcome.exit_code}"
    answer.check(
        "upstream-exit", outcome.exit_code == 0, "the program ended with exit code 0",
        otherwise=f"the program did not end well; its log is {outcome.log.name}", subject=name,
        expected="exit code 0", actual=ended if not outcome.exit_code else f"{ended}: {error}",
    )  # fmt: skip
    return outcome


def _train(task: Task, answer: Answer, command: list[str], env: dict[str, str], deadline: float) -> None:
    """VERL's trainer on a device, to its end."""
    outcome = _start(task, answer, "train", command, env, deadline)
    found = parts.metrics(outcome.text)
    for step, values in found.items():
        for name in ("actor/pg_loss", "actor/grad_norm", "critic/rewards/mean", "response_length/mean"):
            if name in values:
                answer.figures[f"step {step} {name}"] = values[name]
    _say(answer, "train", parts.judge_steps(found, max(1, task.steps)))


def _without_device(task: Task, answer: Answer, model: Path, env: dict[str, str], deadline: float) -> None:
    """VERL's own workers on a CPU, and the plain word that this is not the whole."""
    package = str(__package__)
    path = os.pathsep.join([env["PYTHONPATH"], str(Path(__file__).resolve().parent.parent)])
    more = {
        "PYTHONPATH": path,
        "VERL_USE_EXTERNAL_MODULES": f"{package}.verl_platform",
        "VERL_PLATFORM": "envsmith-cpu",
        "VERL_ENGINE_DEVICE": "cuda",  # the FSDP engine is registered for devices only; it is the same class
        parts.CALLS: str(task.folder / "allocator-calls.txt"),
    }
    stages = task.folder / "stages.jsonl"
    argv = [sys.executable, "-B", "-m", f"{package}.verl_workers", str(model), str(stages)]
    outcome = _start(task, answer, "workers", argv, env | more, deadline)
    lines = stages.read_text(encoding="utf-8").splitlines() if stages.exists() else []
    found: list[dict[str, Any]] = [json.loads(line) for line in lines]
    answer.figures["stages reached"] = " ".join(one["stage"] for one in found)
    _say(answer, "workers", parts.judge_workers(found, task.launch, first_error(outcome.text)))
    last = [text for stage, text in parts.STAGES.items() if stage in {one["stage"] for one in found}]
    answer.say(
        "partial-without-device", "warning",
        "without a device the trainer was not run: no rollout, no reward, no weight sync from actor to engine",
        subject="train", expected=f"{max(1, task.steps)} steps of verl.trainer.main_ppo",
        actual=f"the configuration resolved; on the CPU: {', '.join(last) or 'nothing'}",
        hint="run this rung on a machine with a GPU before you trust the stack with a training run",
    )  # fmt: skip


def _say(answer: Answer, subject: str, sayings: Iterable[Saying]) -> None:
    for one in sayings:
        answer.say(
            one.what, one.verdict, one.message, subject=subject, expected=one.expected, actual=one.actual, hint=one.hint
        )


if __name__ == "__main__":
    main(rung)
