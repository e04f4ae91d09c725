"""LLaMA-Factory's own command with a shipped configuration: train, save, resume, and what its patches did meanwhile.

The command runs as a user would start it: `llamafactory-cli train CONFIG key=value …` with FORCE_TORCHRUN, so that
the launcher's own branch for several ranks is what starts them. Where the env has DeepSpeed, the same again with the
shipped ZeRO offload, whose optimizer is CPUAdam. docs/smoke-upstream.md says what each statement means.
Facts: LLaMA-Factory v0.9.5 (7af90952) `launcher.py`, `v1/launcher.py`, `hparams/parser.py`, read 2026-11-30.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import socket
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import llamafactory_parts as parts
from . import tracing
from .answering import Answer, Task, identities_of, main, pick_device
from .starting import Outcome, first_error, start
from .tiny import tiny_model

#: Ranks on a CPU: with more the Trainer of transformers 5.6 cannot resume there, since it reads the optimizer onto
#: `cpu:0`, a place that torch.load does not know (trainer.py, `map_location`, tried 2026-11-30).
CPU_RANKS = 1
#: With less time left a stage is not begun.
LEAST_S = 20.0
_LAUNCHERS = ("src/llamafactory/launcher.py", "src/llamafactory/v1/launcher.py")
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_NO_DRIVER = "Found no NVIDIA driver"


@dataclass(frozen=True)
class Stage:
    """One program to start."""

    name: str
    argv: list[str]
    env: dict[str, str]
    needs: str | None = None
    """The stage that has to have ended well."""
    cwd: Path | None = None


@dataclass(frozen=True)
class Setting:
    """What all stages have in common."""

    task: Task
    source: Path
    config: Path
    device: str
    ranks: int
    save: int
    total: int
    values: dict[str, str]
    data: Path
    model: Path
    env: dict[str, str]
    plant: bool
    """Whether a stale allocator value is put in front of the launcher, which the patch has to take away."""

    def place(self, stage: str) -> Path:
        """The output folder of a stage."""
        return self.task.folder / "out" / stage


def rung(task: Task, answer: Answer) -> None:
    """Run all stages, then judge them."""
    setting = _set(task, answer)
    if setting is None:
        return
    chosen = task.options.get("stages")
    every = (_plain(setting), _offload(setting) + _v1(setting))
    lanes = [[stage for stage in lane if not chosen or stage.name in chosen] for lane in every]
    deadline = time.monotonic() + task.timeout_s * 0.95
    if setting.device == "cpu":
        with ThreadPoolExecutor(len(lanes)) as pool:
            runs = list(pool.map(lambda lane: _run(setting, lane, deadline), lanes))
    else:  # on a device two trainings at once would measure each other
        runs = [_run(setting, lane, deadline) for lane in lanes]
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer.figures["processor seconds"] = round(used.ru_utime + used.ru_stime, 1)
    outcomes = {name: outcome for run in runs for name, outcome in run.items()}
    found = tracing.events(task.folder / "trace")
    for name, outcome in outcomes.items():
        _say_end(setting, answer, name, outcome)
    for stage in (stage for lane in lanes for stage in lane if stage.name not in outcomes):
        if not stage.needs or _ended(outcomes, stage.needs):
            answer.say("no-time-left", "failed", "the time limit left nothing for this stage", subject=stage.name)
    _judge_runs(setting, answer, outcomes)
    _judge_adam(setting, answer, outcomes)
    _judge_allocator(setting, answer, outcomes, found)
    tracing.say_observed(answer, task.folder / "trace")
    tracing.report(task, answer, found, _reasons(outcomes))


def _set(task: Task, answer: Answer) -> Setting | None:
    device = pick_device(answer)
    source = Path(task.sources.get("llamafactory", "absent"))
    wanted = task.options.get("config")
    config = parts.first_there(source, [wanted] if wanted else parts.CONFIGS)
    if config is None:
        answer.say(
            "no-shipped-config", "failed", "the work copy has no configuration of that name",
            subject=str(source), expected=wanted or ", ".join(parts.CONFIGS), hint="name one with `config`",
        )  # fmt: skip
        return None
    model = Path(task.options["model"]) if task.options.get("model") else tiny_model(task.shared, task.seed)
    data = parts.write_dataset(task.folder / "data")
    save = max(2, task.steps)
    values = parts.overrides(
        model=model, template=parts.pick_template(source), data=data, total=save + 2, save=save, device=device,
        bf16=_has_bf16(device),
    ) | parts.given(task.options)  # fmt: skip
    ranks = _count_ranks(task, answer, device)
    answer.identities = {"model": identities_of(model), "data": identities_of(data)}
    answer.figures |= {"config": config.relative_to(source).as_posix(), "ranks": ranks}
    answer.figures |= {
        "steps before saving": save,
        "steps in all": save + 2,
        "overrides": " ".join(parts.words(values)),
    }
    (task.folder / "overrides.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    return Setting(
        task=task, source=source, config=config, device=device, ranks=ranks, save=save, total=save + 2, values=values,
        data=data, model=model, env=_environment(task), plant=_may_plant(task),
    )  # fmt: skip


def _environment(task: Task) -> dict[str, str]:
    """The rung's own, with the observer in front of PYTHONPATH and without what would make it one rank of a run."""
    env = {name: value for name, value in os.environ.items() if name not in _RANK_VARIABLES}
    env |= tracing.prepare(task, task.folder / "trace")
    extensions = {"TORCH_EXTENSIONS_DIR": str(task.shared / "extensions")}
    return env | extensions | {"PYTHONDONTWRITEBYTECODE": "1", "DISABLE_VERSION_CHECK": "0"}


def _has_bf16(device: str) -> bool:
    import torch

    return device != "cpu" and torch.cuda.get_device_capability()[0] >= 8


def _count_ranks(task: Task, answer: Answer, device: str) -> int:
    import torch

    if device != "cpu":
        return task.ranks or torch.cuda.device_count()
    if task.ranks > CPU_RANKS:
        message = "without a device one rank was started, since transformers cannot resume several on a CPU"
        answer.say("fewer-ranks", "note", message, expected=str(task.ranks), actual=str(CPU_RANKS))
    return CPU_RANKS


def _may_plant(task: Task) -> bool:
    patched = any(file["path"] == _LAUNCHERS[0] for patch in task.patches for file in patch["files"])
    return patched and task.launch.get("OPTIM_TORCH", "1").lower() not in ("1", "true", "y")


def _train(setting: Setting, name: str, ranks: int, more: dict[str, str], **env: str) -> Stage:
    values = setting.values | {"output_dir": str(setting.place(name))} | more
    command = [str(setting.task.env / "bin" / "llamafactory-cli"), "train", str(setting.config), *parts.words(values)]
    return Stage(name=name, argv=command, env=setting.env | _torchrun(ranks) | env)


def _torchrun(ranks: int) -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {"FORCE_TORCHRUN": "1", "NPROC_PER_NODE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def _plain(setting: Setting) -> list[Stage]:
    first = _train(setting, "train", setting.ranks, {})
    checkpoint = {"resume_from_checkpoint": str(setting.place("train") / f"checkpoint-{setting.save}")}
    planted = {parts.OLD_NAME: parts.STALE} if setting.plant else {}
    second = _train(setting, "resume", setting.ranks, checkpoint, **planted)
    return [first, Stage(name="resume", argv=second.argv, env=second.env, needs="train")]


def _offload(setting: Setting) -> list[Stage]:
    """CPUAdam alone, then in LLaMA-Factory's shipped offload; a CPU needs DeepSpeed's own word that it is one."""
    config = parts.first_there(setting.source, parts.OFFLOADS)
    if importlib.util.find_spec("deepspeed") is None or config is None:
        return []
    env = {"DS_ACCELERATOR": "cpu"} if setting.device == "cpu" else {}
    ranks = 1 if setting.device == "cpu" else setting.ranks
    module = f"{__package__}.cpuadam"
    # By its real path, as upstream's commands name it: the operator's build has the path in it, and is made only once.
    python = str(setting.task.env.resolve() / "bin" / "python")
    probe = [python, "-B", "-m", module, str(setting.task.folder / "cpuadam.json")]
    more = {"deepspeed": str(config)}
    first = _train(setting, "offload", ranks, more, **env)
    more["resume_from_checkpoint"] = str(setting.place("offload") / f"checkpoint-{setting.save}")
    second = _train(setting, "offload-resume", ranks, more, **env)
    return [
        Stage(name="cpuadam", argv=probe, env=setting.env | env, cwd=Path(__file__).resolve().parent.parent),
        Stage(name="offload", argv=first.argv, env=first.env, needs="cpuadam"),
        Stage(name="offload-resume", argv=second.argv, env=second.env, needs="offload"),
    ]


def _v1(setting: Setting) -> list[Stage]:
    """The other launcher, where a patch is for it too; without a device its ranks end where they first ask for one."""
    patched = any(file["path"] == _LAUNCHERS[1] for patch in setting.task.patches for file in patch["files"])
    config = parts.first_there(setting.source, parts.V1_CONFIGS)
    if not patched or config is None:
        return []
    values = {
        "model": str(setting.model),
        "train_dataset": str(setting.data / "v1.yaml"),
        "output_dir": str(setting.place("v1")),
        "max_steps": "2",
        "cutoff_len": "128",
    }
    ranks = 1 if setting.device == "cpu" else setting.ranks
    command = [str(setting.task.env / "bin" / "llamafactory-cli"), "sft", str(config), *parts.words(values)]
    planted = {parts.OLD_NAME: parts.STALE} if setting.plant else {}
    return [Stage(name="v1", argv=command, env=setting.env | _torchrun(ranks) | {"USE_V1": "1"} | planted)]


def _run(setting: Setting, lane: Iterable[Stage], deadline: float) -> dict[str, Outcome]:
    """Run stages one after the other; one whose forerunner failed is left out, which the forerunner's end explains."""
    done: dict[str, Outcome] = {}
    work = setting.task.folder / "work"
    work.mkdir(exist_ok=True)
    for stage in lane:
        if stage.needs and not _ended(done, stage.needs):
            continue
        if deadline - time.monotonic() < LEAST_S:
            break
        done[stage.name] = start(
            stage.argv,
            env=stage.env,
            cwd=stage.cwd or work,
            log=setting.task.folder / f"{stage.name}.log",
            timeout_s=max(1.0, deadline - time.monotonic()),
            variables=tracing.VARIABLES,
        )
    return done


def _say_end(setting: Setting, answer: Answer, name: str, outcome: Outcome) -> None:
    answer.figures[f"{name} seconds"] = round(outcome.seconds, 1)
    answer.figures[f"{name} exit code"] = outcome.exit_code
    if outcome.left:
        left = ", ".join(outcome.left)
        answer.say("processes-left", "warning", "processes were left behind and killed", subject=name, actual=left)
    error = first_error(outcome.text) or (outcome.text.splitlines() or ["the log is empty"])[-1]
    if name == "v1" and outcome.exit_code:
        needs = setting.device == "cpu" and _NO_DRIVER in outcome.text
        what, verdict = ("v1-needs-a-device", "note") if needs else ("v1-failed", "warning")
        message = "v1 was started through its launcher and ended in its ranks; only the launcher was to be shown"
        answer.say(what, verdict, message, subject=name, expected="exit code 0", actual=error)
        return
    ended = "was ended at the time limit" if outcome.timed_out else f"exit code {outcome.exit_code}"
    answer.check(
        "upstream-exit", outcome.exit_code == 0, "the program ended with exit code 0",
        otherwise=f"the program did not end well; its log is {outcome.log.name}", subject=name,
        expected="exit code 0", actual=ended if not outcome.exit_code else f"{ended}: {error}",
    )  # fmt: skip


def _judge_runs(setting: Setting, answer: Answer, outcomes: dict[str, Outcome]) -> None:
    for first, second in (("train", "resume"), ("offload", "offload-resume")):
        states = [_state(setting, name) for name in (first, second) if _ended(outcomes, name)]
        if states:
            answer.figures[f"{first} losses"] = list(parts.history(states[0], "loss").values())
            _say(answer, first, parts.judge_training(states[0], setting.total))
            saved = setting.place(first) / f"checkpoint-{setting.save}"
            _say(answer, first, [parts.judge_adapter(_norms(saved), f"after {setting.save} steps")])
        if len(states) == 2:
            answer.figures[f"{second} losses"] = list(parts.history(states[1], "loss").values())
            exact = setting.device == "cpu"
            _say(answer, second, parts.judge_resume(states[0], states[1], setting.save, setting.total, exact))


def _judge_adam(setting: Setting, answer: Answer, outcomes: dict[str, Outcome]) -> None:
    if not _ended(outcomes, "cpuadam"):
        return
    found = json.loads((setting.task.folder / "cpuadam.json").read_text(encoding="utf-8"))
    answer.figures["cpuadam build seconds"] = found["built_s"]
    answer.figures["cpuadam against torch, largest difference"] = found["apart"]
    patched = any("cpu_adam.py" in file["path"] for patch in setting.task.patches for file in patch["files"])
    words: dict[str, Any] = {
        "expected": "as torch's AdamW goes on",
        "actual": found["error"] or f"{found['apart']:.3g} apart",
    }
    if not found["error"] and found["apart"] < 1e-4 < found["moved"]:
        message = "CPUAdam went on from another Adam's state, without `bias_correction` in its groups, as that one does"
        answer.say("bias-correction-default", "ok", message, subject="cpuadam", **words)
        return
    answer.say(
        "bias-correction-default", "failed" if patched else "warning",
        "CPUAdam cannot go on from another Adam's state", subject="cpuadam",
        hint="apply the cpu-adam series to deepspeed", **words,
    )  # fmt: skip


def _judge_allocator(
    setting: Setting, answer: Answer, outcomes: dict[str, Outcome], found: list[dict[str, Any]]
) -> None:
    """What the ranks had when they were started, and what they had when they ended."""
    ends = {event["pid"]: event["variables"] for event in found if event["event"] == "exit"}
    for name in ("train", "resume", "offload", "offload-resume", "v1"):
        if name not in outcomes:
            continue
        seen = {pid: values for pid, values in outcomes[name].seen.items() if "RANK" in values}
        ranks = {f"rank {values['RANK']}, process {pid}": values for pid, values in seen.items()}
        ranks |= {f"rank {values['RANK']} at its end": ends[pid] for pid, values in seen.items() if pid in ends}
        planted = setting.plant and name in ("resume", "v1")
        _say(answer, name, [parts.judge_allocator(setting.task.launch, ranks, planted)])


def _say(answer: Answer, subject: str, sayings: Iterable[parts.Saying]) -> None:
    for one in sayings:
        answer.say(
            one.what, one.verdict, one.message, subject=subject, expected=one.expected, actual=one.actual, hint=one.hint
        )


def _ended(outcomes: dict[str, Outcome], name: str) -> bool:
    return name in outcomes and outcomes[name].exit_code == 0


def _state(setting: Setting, name: str) -> dict[str, Any]:
    path = setting.place(name) / "trainer_state.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def _norms(folder: Path) -> dict[str, float]:
    from safetensors.torch import load_file

    path = folder / "adapter_model.safetensors"
    tensors = load_file(path) if path.is_file() else {}
    return {name: float(one.float().norm()) for name, one in tensors.items() if "lora_B" in name}


def _reasons(outcomes: dict[str, Outcome]) -> dict[str, str]:
    found = {}
    if "v1" not in outcomes:
        found[_LAUNCHERS[1]] = "v1 is another entry point, USE_V1=1, which was not started"
    if "cpuadam" not in outcomes:
        found["deepspeed/ops/adam/cpu_adam.py"] = "CPUAdam was not started"
    return found


if __name__ == "__main__":
    main(rung)
