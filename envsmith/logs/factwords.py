"""Cause and remedy of each kind of fact that the numbers of a training show, in sentences."""

from __future__ import annotations

#: Sources: facts/symptoms.md B3 row 32; huggingface/trl #3452, #3857; modelscope/ms-swift #4570, #4950;
#: verl-project/verl #498, #747, #1197, #2626; transformers 5.6.0 trainer.py, deepspeed 0.18.4 fp16/loss_scaler.py;
#: all read 2026-11-30.
_WORDS = {
    "not-finite": (
        "A sum or a quotient ran out of its type's range: float16 overflows over 65,504, a batch without any label "
        "divides by zero, a learning rate is too high, or a kernel writes wrong numbers.",
        "Look at the first step that is no number: use bfloat16 or float32 in trainer and engine, drop empty batches, "
        "lower the learning rate, set a gradient limit, and try eager or sdpa attention once; go on from a checkpoint "
        "before that step, since the weights after it may be lost.",
    ),
    "exploding": (
        "The updates are too large for the model: a learning rate that is too high, no gradient limit, or data that "
        "changed at that point.",
        "Go back to the checkpoint before that line, lower the learning rate or lengthen its warm-up, set a gradient "
        "limit, and look at the data of that step.",
    ),
    "constant-rewards": (
        "All answers of a group have the same reward, so that every advantage is 0: each answer is cut at the length "
        "limit, the task is too hard or too easy, sampling is greedy, or the reward function gives one value for all.",
        "Raise the limit of the completion's length so that answers end, mix easier and harder prompts in a batch, "
        "sample with a temperature above 0 and more answers for a prompt, and try the reward function on two answers "
        "that should differ.",
    ),
    "zero-gradient": (
        "No parameter gets a gradient: all advantages or labels are empty, every weight is frozen, or the loss is cut "
        "off from the model. Only without KL and entropy terms do constant rewards do that.",
        "See that some labels are not masked and some weights are trainable, that rewards differ within a group, and "
        "that gradient checkpointing goes with inputs that require gradients; the rung `train-step` of "
        "`envsmith smoke` shows whether the env itself can train.",
    ),
    "zero-learning-rate": (
        "The schedule never leaves 0: the warm-up is longer than the run, the number of steps is counted wrongly, or "
        "every step is skipped because a loss scaler finds its gradients infinite.",
        "Set the warm-up and the total steps for this run, and with float16 look for skipped steps; bfloat16 needs no "
        "loss scaler.",
    ),
    "lengths-at-cap": (
        "Answers are cut before they end: the limit is too short for the task, or the model does not write the end of "
        "sequence that the engine waits for.",
        "Raise the limit of the completion's length, and see that the chat template's end token is among the stop "
        "tokens of the engine and was not masked in the training.",
    ),
    "nothing-changes": (
        "The counter moves but no step reaches the model: its weights are frozen or the learning rate is 0, updates "
        "are skipped, or the same numbers are logged again.",
        "Compare one weight before and after a step, look at learning rate and trainable parameters, and see that the "
        "optimiser holds the parameters of the model that is trained.",
    ),
}
_HIDDEN = "With a loss of 0 beside it, HF Trainer hides a NaN of the loss (`logging_nan_inf_filter`)."


def words(kind: str, field: str) -> tuple[str, str]:
    """Cause and fix of a kind of fact."""
    cause, fix = _WORDS[kind]
    if kind == "not-finite" and field == "grad_norm":
        cause = f"{cause} {_HIDDEN}"
    return cause, fix
