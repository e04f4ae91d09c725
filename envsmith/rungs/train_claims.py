"""What the training rung says: faults, the line of each step, and the claims that held over all of them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from . import weights

if TYPE_CHECKING:
    from .train_step import Run

#: Mean difference of log-probabilities between engine and actor, in nats, by the engine's type of number.
TOLERANCE_NATS = {"float32": 1e-4, "bfloat16": 2e-2}
#: Claims in the order in which a failure explains those behind it: slug, the claim, its failure, what to do.
CLAIMS = (
    ("gradient-zero", "every step with unequal rewards had a gradient", "the gradient is zero though rewards differ",
     "look for what detaches the log-probabilities from the parameters"),
    ("parameters-unchanged", "every step with unequal rewards moved every parameter that had a gradient",
     "parameters did not move though the step counter did",
     "look at the learning rate and at what the optimizer holds"),
    ("step-against-gradient", "the first step went down the gradient", "the first step did not go down the gradient",
     "look for `maximize`, and for a sign in the loss or in the optimizer"),
    ("step-beside-gradient", "the first step is AdamW's of this gradient",
     "the first step is not AdamW's of its gradient",
     "look at what replaces the optimizer, and at its state before the first step"),
    ("moved-without-signal", "no parameter moved without a signal",
     "parameters moved though every advantage is zero", "look for weight decay, or a loss beside the policy's"),
    ("ranks-differ", "all ranks hold the same parameters", "the ranks' parameters differ",
     "look at the all-reduce of the gradients: run the rung `collective`"),
    ("engine-not-synced", "the engine's tensors equal the actor's after every step",
     "the engine's tensors are not the actor's after the sync",
     "look at how the engine loads weights, and their names"),
    ("engine-differs", "the engine gives the next rollout the log-probabilities that the actor gives it",
     "engine and actor give the same tokens different log-probabilities",
     "compare both on one prompt: attention kernels, positions, type of numbers"),
    ("rollout-not-new", "the next rollout was made with the new weights",
     "the next rollout does not show the new weights",
     "look for a prefix cache or a graph captured with the old weights"),
)  # fmt: skip


def say_fault(run: Run, outcome: Any, number: int) -> None:
    """Name what was no number, and where."""
    loss = outcome.fault == "loss-not-finite"
    thing, value = ("loss", outcome.loss) if loss else ("gradient norm", outcome.gradient_norm)
    held = "hold a NaN or an infinity before the step" if loss else "have a gradient that is not finite"
    names = (
        f"these parameters {held}: {weights.some(outcome.names)}" if outcome.names else "all weights here are finite"
    )
    run.answer.say(
        outcome.fault, "failed", f"the {thing} of step {number} is {value}; {names}",
        subject=outcome.names[0] if outcome.names else None, expected="a finite number", actual=value,
        hint="check the weights that were loaded, then the kernels: run the rungs `device` and `encode`",
    )  # fmt: skip


def say_step(run: Run, number: int) -> None:
    """One line that readers of trainers' logs understand, from the first rank."""
    if run.ranks.rank == 0:
        last = {name: values[-1] for name, values in run.seen.items()}
        line = {
            "loss": last["loss"], "grad_norm": last["gradient_norm"], "reward": last["reward_mean"],
            "reward_std": last["reward_std"], "kl": last["kl_to_old_nats"], "global_step": number,
        }  # fmt: skip
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def conclude(run: Run) -> None:
    """Say what held over all steps, and keep the figures."""
    import torch

    answer, seen = run.answer, run.seen
    complete = len(seen.get("sync_s", [])) == max(run.task.steps, 1)
    for what, claim, otherwise, hint in CLAIMS:
        if what in run.broken:
            answer.say(what, "failed", f"{otherwise} ({run.broken[what]})", actual=run.broken[what], hint=hint)
        elif complete and proved(run, what):
            answer.say(what, "ok", claim)
    if complete:
        say_signal(run)
    if seen.get("answers") and sum(seen["ended_by_themselves"]) == 0:
        answer.say(
            "all-at-cap", "warning", f"all {sum(seen['answers'])} answers stopped at the cap, none ended by itself",
            hint="raise `max-tokens`, or check that the chat template and the end token fit the model",
        )  # fmt: skip
    steps = len(seen.get("update_s", []))
    limit = TOLERANCE_NATS[run.engine.dtype]
    answer.figures |= seen | {
        "global_step": steps, "ranks": run.ranks.world, "backend": run.ranks.backend or "none",
        "engine": f"{run.engine.name} {run.engine.dtype}", "tolerance_nats": limit,
    }  # fmt: skip
    if run.ranks.device != "cpu":
        answer.figures["torch_peak_allocated_bytes"] = torch.cuda.max_memory_allocated()
        answer.figures["torch_peak_reserved_bytes"] = torch.cuda.max_memory_reserved()


def proved(run: Run, what: str) -> bool:
    """Whether a claim that did not break had a chance to: nothing is said of what no step showed."""
    signal = run.seen["groups_with_variance"]
    if what in ("gradient-zero", "parameters-unchanged", "rollout-not-new"):
        return any(signal)
    if what.startswith("step-"):
        return "update_gradient_cosine" in run.seen
    if what == "moved-without-signal":
        return not all(signal)
    return what != "ranks-differ" or run.ranks.world > 1


def say_signal(run: Run) -> None:
    """One group with variance is enough; with none the steps proved nothing."""
    seen, signal = run.seen, run.seen["groups_with_variance"]
    if not any(signal):
        run.answer.say(
            "equal-rewards", "inconclusive",
            "every group's rewards are equal, so every advantage is zero: that is why the gradient is zero",
            expected="at least one group with unequal rewards",
            actual=f"reward mean {seen['reward_mean'][0]:.4g}, std of each group {max(seen['reward_std_largest'])}, "
            f"gradient norm {max(seen['gradient_norm'])}, parameters changed {sum(seen['parameters_changed'])}",
            hint="take prompts that the model answers sometimes right and sometimes wrong",
        )  # fmt: skip
    elif not all(signal):
        steps = ", ".join(str(n) for n, groups in enumerate(signal, 1) if not groups)
        run.answer.say("equal-rewards", "warning", f"no group of step {steps} had unequal rewards: it trained nothing")
    else:
        run.answer.say("equal-rewards", "ok", f"{sum(signal)} groups had unequal rewards")
