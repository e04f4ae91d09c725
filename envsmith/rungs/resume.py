"""The rung `resume`: a run that was stopped and resumed must be the run that was not, to the bit.

    a   2N steps in one process
    b   N steps, a checkpoint, and the process ends
    c   a new process loads the checkpoint and does N steps

Each is a process of its own (`python -m envsmith_rungs.resume TASK.json --part a`), and this module compares what
they wrote: right after loading with what was saved, and at the end with the run that never stopped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import checkpoint
from .answering import Answer, Task, identities_of, main, pick_device
from .supervised import Training
from .tiny import tiny_model

#: On a GPU the end may differ by this much of the Euclidean norm; on the CPU, and right after loading, by nothing.
TOLERANCE = 1e-3
#: Exit code of part c when the checkpoint is not whole.
INCOMPLETE = 3


def resume(task: Task, answer: Answer) -> None:
    """Start the three parts and compare them."""
    pick_device(answer)
    answer.identities["model"] = identities_of(model_folder(task))
    started = time.monotonic()
    first = {part: start(task, part) for part in "ab"}
    codes = {part: finish(task, part, process, started) for part, process in first.items()}
    if codes["b"] == 0:
        codes["c"] = finish(task, "c", start(task, "c"), started)
    judge(task, answer, codes)


def model_folder(task: Task) -> Path:
    """The model of the recipe, or the one that rungs make themselves."""
    named = task.options.get("model")
    return Path(named) if named else tiny_model(task.shared, task.seed)


def start(task: Task, part: str) -> subprocess.Popen[bytes]:
    """Start one part; it writes its log beside its result."""
    command = [sys.executable, "-B", "-X", "faulthandler", "-m", f"{__package__}.resume", sys.argv[1], "--part", part]
    environ = os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # cuBLAS is deterministic only with it
    with (task.folder / f"part-{part}.log").open("wb") as log:
        return subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)


def finish(task: Task, part: str, process: subprocess.Popen[bytes], started: float) -> int:
    """Wait for one part within the rung's time; the log of one that failed is repeated in the rung's own."""
    try:
        code = process.wait(max(task.timeout_s - 5 - (time.monotonic() - started), 1))
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    if code:
        sys.stderr.write((task.folder / f"part-{part}.log").read_text(encoding="utf-8", errors="replace")[-20_000:])
    return code


# one part


def run_part(task: Task, part: str) -> int:
    """Do one part in this process; returns its exit code."""
    import torch

    torch.set_num_threads(1)  # sums in another order are other sums
    torch.use_deterministic_algorithms(True, warn_only=True)
    device = pick_device(Answer())
    steps = max(task.steps, 1)
    training = Training(model_folder(task), device, task.seed, total=2 * steps)
    result: dict[str, Any] = {"pid": os.getpid()}
    try:
        PARTS[part](task, training, steps, result)
    except checkpoint.IncompleteError as error:
        result = {"incomplete": error.problems}
    result |= {"losses": training.losses, "rates": training.rates, "ids": training.ids}
    _write(task.folder / f"part-{part}.json", result)
    return INCOMPLETE if "incomplete" in result else 0


def part_a(task: Task, training: Training, steps: int, result: dict[str, Any]) -> None:
    """Never stop."""
    training.run(2 * steps)
    result["end"] = training.snapshot()
    checkpoint.write(task.folder / "end-a", training.tensors(), training.state())


def part_b(task: Task, training: Training, steps: int, result: dict[str, Any]) -> None:
    """Stop half-way."""
    result["start"] = training.snapshot()
    training.run(steps)
    result["saved"] = training.snapshot()
    started = time.monotonic()
    size = checkpoint.write(task.folder / "checkpoint", training.tensors(), training.state())
    result |= {"checkpoint_bytes": size, "write_s": time.monotonic() - started}


def part_c(task: Task, training: Training, steps: int, result: dict[str, Any]) -> None:
    """Go on from the checkpoint."""
    started = time.monotonic()
    training.load(*checkpoint.read(task.folder / "checkpoint"))
    result |= {"load_s": time.monotonic() - started, "loaded": training.snapshot()}
    training.run(steps)
    result["end"] = training.snapshot()
    checkpoint.write(task.folder / "end-c", training.tensors(), training.state())


PARTS: dict[str, Callable[[Task, Training, int, dict[str, Any]], None]] = {"a": part_a, "b": part_b, "c": part_c}


def _write(path: Path, content: Any) -> None:
    staging = path.with_suffix(".part")
    staging.write_text(json.dumps(content) + "\n", encoding="utf-8")
    staging.replace(path)


# the comparison


@dataclass(frozen=True)
class Claim:
    """One thing that must be the same; `of` picks it out of a snapshot."""

    what: str
    thing: str
    of: Callable[[Mapping[str, Any]], Any]
    hint: str
    history: str | None = None
    """List of values step by step that must be the same too."""
    file: str | None = None
    """The tensors that a GPU may compute slightly differently."""


CLAIMS = (
    Claim("step-differs", "the global step", lambda s: s["step"], "save and load the step"),
    Claim("data-position-differs", "the data position", lambda s: s["data"],
          "save epoch and offset of the sampler after the step, not before it", "ids"),
    Claim("scheduler-differs", "the scheduler", lambda s: s["scheduler"],
          "save and load the scheduler's state, after the optimizer's", "rates"),
    Claim("random-differs", "the random generators' state", lambda s: s["digests"][checkpoint.RANDOM],
          "save the generators' states, of the CPU and of the GPU"),
    Claim("optimizer-differs", "the optimizer's state", lambda s: {**s["digests"][checkpoint.OPTIMIZER],
          "groups": s["optimizer"]}, "save exp_avg, exp_avg_sq and step of every parameter", file=checkpoint.OPTIMIZER),
    Claim("parameters-differ", "the parameters", lambda s: s["digests"][checkpoint.MODEL],
          "look first at what else differs: parameters follow", "losses", checkpoint.MODEL),
)  # fmt: skip


def judge(task: Task, answer: Answer, codes: Mapping[str, int]) -> None:
    """Compare what the parts wrote, and say the first difference of each kind."""
    answer.figures |= {f"exit_code_{part}": code for part, code in codes.items()}
    incomplete = checkpoint.problems_of(task.folder / "checkpoint") if codes.get("b") == 0 else []
    if codes.get("c") == INCOMPLETE:
        incomplete = _read(task, "c")["incomplete"]
    if incomplete:
        answer.say(
            "checkpoint-incomplete", "failed", f"the checkpoint is not what was written: {'; '.join(incomplete)}",
            subject=incomplete[0].split("`")[1] if "`" in incomplete[0] else None, actual=len(incomplete),
            expected="0 problems", hint="look at the disk that it was written to: space, quota, what else writes there",
        )  # fmt: skip
    failed = {part: code for part, code in codes.items() if code and not (part == "c" and incomplete)}
    for part, code in failed.items():
        answer.say(
            "part-failed", "failed", f"part {part} ended with exit code {code}", subject=f"part-{part}.log",
            expected=0, actual=code, hint=f"read part-{part}.log in the rung's folder",
        )  # fmt: skip
    if failed or incomplete or set(codes) != set("abc"):
        return
    whole, saved, resumed = (_read(task, part) for part in "abc")
    answer.say("checkpoint-incomplete", "ok", "every file of the checkpoint has the size and sha256 that were written")
    say_trained(answer, *(part["digests"][checkpoint.MODEL] for part in (saved["start"], saved["saved"], whole["end"])))
    say_claims(answer, [(claim, compare(task, answer, claim, whole, saved, resumed)) for claim in CLAIMS])
    keep_figures(answer, whole, saved, resumed)


def say_trained(answer: Answer, start: Any, saved: Any, end: Any) -> None:
    """Runs that train nothing are the same whatever a checkpoint holds: parameters must move in both halves."""
    halves = (("between start and checkpoint", start, saved), ("between checkpoint and end", saved, end))
    moved = {when: sum(one[name] != other[name] for name in one) for when, one, other in halves}
    still = [when for when, count in moved.items() if not count]
    answer.figures["parameters_moved"] = list(moved.values())
    answer.check(
        "nothing-trained", not still, "parameters moved before the checkpoint and after it",
        otherwise=f"no parameter moved {' and '.join(still)}: equal runs prove nothing of the checkpoint",
        expected="parameters that differ at the start, in the checkpoint and at the end",
        actual=", ".join(f"{count} of {len(start)} moved {when}" for when, count in moved.items()),
        hint="look at the optimizer: run the rung `train-step`",
    )  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """Where a resumed run first left the run that never stopped."""

    moment: int
    """0 right after loading, 1 in a step after it, 2 at the end: what differs earlier explains what differs later."""
    when: str
    expected: Any
    actual: Any


def compare(task: Task, answer: Answer, claim: Claim, whole: Any, saved: Any, resumed: Any) -> Difference | None:
    """Hold one thing against what was saved, against each step of the run that never stopped, and against its end."""
    steps, history = len(resumed["losses"]), claim.history
    moments = [("after loading", claim.of(saved["saved"]), claim.of(resumed["loaded"]))]
    if history and (history != "losses" or answer.device == "cpu"):
        moments.append((f"in the {history} of the steps after it", whole[history][-steps:], resumed[history]))
    else:
        moments.append(("", None, None))
    end = ("at the end", claim.of(whole["end"]), claim.of(resumed["end"]))
    if claim.file and answer.device != "cpu":
        gap = distance(task, claim.file)
        answer.figures[f"relative_difference_{claim.file.partition('.')[0]}"] = gap
        end = ("at the end", f"within {TOLERANCE}", f"within {TOLERANCE}" if gap <= TOLERANCE else gap)
    for moment, (when, expected, actual) in enumerate([*moments, end]):
        if expected != actual:
            return Difference(moment, when, expected, actual)
    return None


def say_claims(answer: Answer, found: list[tuple[Claim, Difference | None]]) -> None:
    """Say what differs, causes first, then what does not."""
    broken = [(claim, difference) for claim, difference in found if difference]
    for claim, difference in sorted(broken, key=lambda pair: pair[1].moment):
        subject, expected, actual = first_difference(difference.expected, difference.actual)
        answer.say(
            claim.what, "failed", f"{claim.thing} differs from the run that never stopped, first {difference.when}",
            subject=subject, expected=expected, actual=actual, hint=claim.hint,
        )  # fmt: skip
    for claim, nothing in found:
        if nothing is None:
            answer.say(claim.what, "ok", f"{claim.thing}: the same after loading and at the end")


def first_difference(expected: Any, actual: Any) -> tuple[str | None, Any, Any]:
    """The first key or place at which two values differ, and both values there."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in [*expected, *actual]:
            if expected.get(key) != actual.get(key):
                inner, left, right = first_difference(expected.get(key), actual.get(key))
                return key if inner is None else f"{key}.{inner}", left, right
    return None, expected, actual


def distance(task: Task, file: str) -> float:
    """Euclidean norm of the difference of all tensors of a file, as a share of the norm of the whole."""
    from safetensors.torch import load_file

    whole, resumed = (load_file(task.folder / folder / file) for folder in ("end-a", "end-c"))
    gap = sum(float((whole[name].double() - resumed[name].double()).pow(2).sum()) for name in whole)
    return float((gap / max(sum(float(one.double().pow(2).sum()) for one in whole.values()), 1e-30)) ** 0.5)


def keep_figures(answer: Answer, whole: Any, saved: Any, resumed: Any) -> None:
    """The figures of the run."""
    digests = saved["saved"]["digests"]
    answer.figures |= {
        "global_step_saved": saved["saved"]["step"], "global_step_end": resumed["end"]["step"],
        "loss_uninterrupted": whole["losses"], "loss_resumed": saved["losses"] + resumed["losses"],
        "learning_rate": whole["rates"], "sample_ids_resumed": [one for ids in resumed["ids"] for one in ids],
        "data_epoch_saved": saved["saved"]["data"]["epoch"], "data_offset_saved": saved["saved"]["data"]["offset"],
        "parameters": len(digests[checkpoint.MODEL]), "optimizer_states": len(digests[checkpoint.OPTIMIZER]),
        "checkpoint_bytes": saved["checkpoint_bytes"], "write_s": saved["write_s"], "load_s": resumed["load_s"],
        "processes": len({part["pid"] for part in (whole, saved, resumed)}),
        "tolerance_relative": 0.0 if answer.device == "cpu" else TOLERANCE,
    }  # fmt: skip


def _read(task: Task, part: str) -> Any:
    return json.loads((task.folder / f"part-{part}.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    if sys.argv[2:3] == ["--part"]:
        sys.exit(run_part(Task.read(sys.argv), sys.argv[3]))
    main(resume)
