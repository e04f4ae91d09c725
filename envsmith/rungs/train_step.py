"""The rung `train-step`: GRPO steps of our own, and the proof that they moved weights that the next rollout uses.

    rollout by the engine -> rewards -> group advantages -> loss, gradient, AdamW -> sync to the engine -> next rollout

It is data-parallel over any number of ranks. Every step is checked as it happens and said once at the end.
"""

from __future__ import annotations

import copy
import importlib.util
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import grpo, weights
from .answering import Answer, Task, identities_of, main, pick_device
from .rollout import TransformersEngine, ends_of
from .tiny import prompts, tiny_model
from .train_claims import TOLERANCE_NATS, conclude, say_fault, say_step
from .trainranks import Ranks
from .update import logprobs_of
from .update import step as update

PROMPTS, ANSWERS, CAP = 4, 8, 64
LEARNING_RATE = 1e-3
#: Least cosine between the first step and AdamW's own; a sound one is 1 but for rounding, noise is near 0.
COSINE = 0.9


@dataclass
class Run:
    """What one rank holds during the steps, and what it saw in each."""

    task: Task
    answer: Answer
    ranks: Ranks
    actor: Any
    optimizer: Any
    engine: Any
    questions: list[list[int]]
    """Prompts of all steps and ranks as tokens."""
    seen: dict[str, list[Any]] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    """Slug of a claim that did not hold, to the first place where it did not."""

    def note(self, **figures: Any) -> None:
        """Add one value to each list of figures."""
        for name, value in figures.items():
            self.seen.setdefault(name, []).append(value)

    def breaks(self, what: str, holds: bool, place: str) -> None:
        """Remember the first place where a claim did not hold."""
        if not holds:
            self.broken.setdefault(what, place)

    def rollout(self, number: int) -> list[grpo.Sample]:
        """Let the engine answer this rank's prompts of one step."""
        options, size = self.task.options, int(self.task.options.get("prompts", PROMPTS))
        start = (number * self.ranks.world + self.ranks.rank) * size
        mine = [self.questions[(start + n) % len(self.questions)] for n in range(size)]
        seed = self.task.seed + 1000 * number + self.ranks.rank
        cap = int(options.get("max-tokens", CAP))
        return list(self.engine.answer(mine, int(options.get("answers", ANSWERS)), cap, seed))


def train_step(task: Task, answer: Answer) -> None:
    """Run all steps and say what they proved."""
    import torch

    device = pick_device(answer)
    if device == "cpu":
        # More threads wait for each other longer than the tiny model computes, above all on a machine in use.
        torch.set_num_threads(min(torch.get_num_threads(), 4) if "model" in task.options else 1)
    else:
        torch.cuda.reset_peak_memory_stats()
    ranks = Ranks.join(device, task.timeout_s)
    folder = model_folder(task)
    actor, questions = load_actor(folder, device), read_prompts(folder)
    answer.identities["model"] = identities_of(folder)
    moving = list(weights.trainable(actor).values())
    if not moving:
        answer.say(
            "nothing-trainable", "failed", "no parameter of the model may be trained: a step can change nothing",
            expected="parameters with requires_grad", actual="0",
            hint="look for what freezes them: `requires_grad` is off for all",
        )  # fmt: skip
        return ranks.close()
    engine = make_engine(task, answer, folder, actor, device, max(map(len, questions)))
    run = Run(task, answer, ranks, actor, make_optimizer(moving, task), engine, questions)
    try:
        go(run)
    finally:
        engine.close()
    conclude(run)
    ranks.close()


def model_folder(task: Task) -> Path:
    """The model of the recipe, or the one that rungs make themselves."""
    named = task.options.get("model")
    return Path(named) if named else tiny_model(task.shared, task.seed)


def load_actor(folder: Path, device: str) -> Any:
    """The model in float32: its weights are the master weights."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).train()


def read_prompts(folder: Path) -> list[list[int]]:
    """Sixty-four questions as tokens, in the model's chat template where it has one."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    plain = [f"what is {a} + {b}" for a in range(1, 9) for b in range(1, 9)]
    texts = prompts(tokenizer, 64) if tokenizer.chat_template else plain
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def make_optimizer(parameters: list[Any], task: Task) -> Any:
    """AdamW without weight decay, so that nothing moves without a gradient."""
    import torch

    rate = float(task.options.get("learning-rate", LEARNING_RATE))
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)


def make_engine(task: Task, answer: Answer, folder: Path, actor: Any, device: str, longest: int) -> Any:
    """VLLM where it is asked for and can run; otherwise a second copy of the model in transformers."""
    if task.options.get("engine") == "vllm":
        if device != "cpu" and importlib.util.find_spec("vllm"):
            from .vllm_engine import VllmEngine

            length = longest + int(task.options.get("max-tokens", CAP))
            return VllmEngine(folder, task.folder / f"engine.{task.rank}", device, ends_of(actor), length)
        why = "no GPU can be used" if device == "cpu" else "the env has no vllm"
        answer.say(
            "engine-substituted", "warning" if device == "cpu" else "failed",
            f"the rollouts were made by transformers, not by vLLM: {why}", expected="vllm", actual="transformers",
        )  # fmt: skip
    return TransformersEngine(actor, device)


def go(run: Run) -> None:
    """All steps; each ends with the rollout of the next one, made with the new weights."""
    started = time.monotonic()
    samples = run.rollout(0)
    run.note(rollout_s=time.monotonic() - started)
    same_everywhere(run, "before the first step")
    for number in range(1, max(run.task.steps, 1) + 1):
        old = copy.deepcopy(run.actor)
        if not train(run, samples, number):
            return
        started = time.monotonic()
        fresh = sync(run, number)
        run.note(sync_s=time.monotonic() - started)
        started = time.monotonic()
        samples = run.rollout(number)
        run.note(rollout_s=time.monotonic() - started)
        prove_rollout(run, samples, old, number, moved=fresh)


def train(run: Run, samples: list[grpo.Sample], number: int) -> bool:
    """Reward one rollout and step; False where the step could not be made."""
    started = time.monotonic()
    rule = grpo.RULES[run.task.options.get("rewards", "varied")]
    rewards = [rule(sample) for sample in samples]
    groups = grpo.groups_of(samples)
    spreads = [grpo.spread([rewards[place] for place in places]) for places in groups]
    weight = [0.0] * len(samples)
    for places in groups:
        for place, value in zip(places, grpo.advantages([rewards[place] for place in places]), strict=True):
            weight[place] = value
    old = logprobs_of(run.actor, samples, run.ranks.device)
    before = weights.copies(weights.trainable(run.actor))
    outcome = update(run.actor, run.optimizer, samples, old, weight, run.ranks)
    run.note(
        loss=outcome.loss,
        gradient_norm=outcome.gradient_norm,
        reward_mean=run.ranks.mean(sum(rewards) / len(rewards)),
        reward_std=run.ranks.mean(sum(spreads) / len(spreads)),
        reward_std_largest=max(run.ranks.gather(max(spreads))),
        advantage_max=max(map(abs, weight)),
        groups_with_variance=sum(run.ranks.gather(sum(value > 0 for value in spreads))),
        answers=len(samples),
        ended_by_themselves=sum(sample.ended for sample in samples),
        answer_tokens=sum(len(sample.tokens) for sample in samples),
    )
    if outcome.fault:
        say_fault(run, outcome, number)
        return False
    moved(run, weights.change(before, weights.trainable(run.actor)), number)
    followed(run, before, outcome.gradients, number)
    new = logprobs_of(run.actor, samples, run.ranks.device)
    run.note(kl_to_old_nats=grpo.divergence(old, new), update_s=time.monotonic() - started)
    say_step(run, number)
    same_everywhere(run, f"after step {number}")
    return True


def moved(run: Run, change: weights.Change, number: int) -> None:
    """Compare the weights with those before the step; with a signal they must have moved, without one they must not."""
    run.note(parameters_changed=len(change.changed), change_norm=change.norm)
    run.answer.figures["parameters_trainable"] = change.total
    signal = run.seen["groups_with_variance"][-1] > 0
    gradient = run.seen["gradient_norm"][-1]
    run.breaks("gradient-zero", not signal or gradient > 0, f"step {number}")
    run.breaks("parameters-unchanged", not signal or bool(change.changed), f"step {number}")
    run.breaks("moved-without-signal", signal or not change.changed, f"step {number}: {weights.some(change.changed)}")


def followed(run: Run, before: Any, gradients: Any, number: int) -> None:
    """Every parameter with a gradient must move, and the first step against the gradient; later ones have momentum."""
    if not run.seen["groups_with_variance"][-1] or not run.seen["parameters_changed"][-1]:
        return
    rate = float(run.task.options.get("learning-rate", LEARNING_RATE))
    step = weights.following(before, weights.trainable(run.actor), gradients, rate)
    first = "update_gradient_cosine" not in run.seen
    run.note(update_gradient_cosine=step.cosine, update_times_gradient=step.along)
    run.breaks("parameters-unchanged", not step.still, f"step {number}: {weights.some(step.still)}")
    if first and run.seen["gradient_norm"][-1] > 0:
        run.breaks("step-against-gradient", step.along < 0, f"step {number}: update times gradient {step.along:.3g}")
        run.breaks("step-beside-gradient", step.cosine > COSINE, f"step {number}: cosine {step.cosine:.3g}")


def sync(run: Run, number: int) -> bool:
    """Hand the weights to the engine and compare digests; returns whether the next rollout must show a change."""
    state = run.actor.state_dict()
    before = run.engine.digests()
    run.engine.load(state)
    after, expected = run.engine.digests(), run.engine.expected(state)
    wrong = [name for name, value in expected.items() if after[name] != value]
    run.note(tensors_synced=len(expected) - len(wrong), tensors_new_in_engine=sum(before[n] != after[n] for n in after))
    run.breaks("engine-not-synced", bool(expected) and not wrong, f"step {number}: {weights.some(wrong)}")
    changed = bool(run.seen["parameters_changed"][-1] > 0)
    run.breaks("engine-not-synced", not changed or before != after, f"step {number}: the engine's weights are the old")
    return changed and bool(run.seen["groups_with_variance"][-1] > 0)


def prove_rollout(run: Run, samples: list[grpo.Sample], old: Any, number: int, *, moved: bool) -> None:
    """Hold the engine's log-probabilities of the next rollout against the new actor's and the old one's."""
    drawn = [sample.logprobs for sample in samples]
    new = grpo.mean_difference(drawn, logprobs_of(run.actor, samples, run.ranks.device))
    past = grpo.mean_difference(drawn, logprobs_of(old, samples, run.ranks.device))
    limit = TOLERANCE_NATS[run.engine.dtype]
    run.note(engine_to_new_actor_nats=new, engine_to_old_actor_nats=past)
    run.breaks("engine-differs", new <= limit, f"after step {number}: {new:.3g} nats a token")
    run.breaks("rollout-not-new", not moved or past > max(limit, 2 * new), f"after step {number}: {past:.3g} nats")


def same_everywhere(run: Run, when: str) -> None:
    """All ranks must hold the same weights."""
    mine = weights.one_digest(weights.digests(dict(run.actor.named_parameters())))
    every = run.ranks.gather(mine)
    others = [str(rank) for rank, value in enumerate(every) if value != every[0]]
    run.breaks("ranks-differ", not others, f"{when}: ranks {', '.join(others)} differ from rank 0")


if __name__ == "__main__":
    main(train_step)
