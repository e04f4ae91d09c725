"""One GRPO step of the actor: log-probabilities of the answers, the loss, its gradient, and what was not finite."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from .grpo import Sample, clipped_loss, groups_of
from .trainranks import Ranks
from .weights import not_finite, trainable


@dataclass
class Outcome:
    """Loss and gradient norm of one step over all ranks, and the first thing that was no number."""

    loss: float = float("nan")
    gradient_norm: float = float("nan")
    fault: str | None = None
    """Slug of a statement: `loss-not-finite` or `gradient-not-finite`."""
    names: list[str] = field(default_factory=list)
    """Parameters that hold the values, or the gradients, that are not finite."""
    gradients: dict[str, Any] = field(default_factory=dict)
    """Copies from before the optimizer's step, which may change them."""


def token_logprobs(model: Any, samples: Sequence[Sample], device: str) -> tuple[Any, Any]:
    """Log-probability of each answer token in nats, and the mask of answer tokens, both (samples, longest answer)."""
    import torch

    prompt = max(len(sample.prompt) for sample in samples)
    answer = max(len(sample.tokens) for sample in samples)
    ids = torch.zeros((len(samples), prompt + answer), dtype=torch.long)
    place = torch.zeros((len(samples), answer), dtype=torch.long)
    mask = torch.zeros((len(samples), answer))
    for row, sample in enumerate(samples):  # padding stands on the right, where a causal model does not see it
        line = sample.prompt + sample.tokens
        ids[row, : len(line)] = torch.tensor(line)
        place[row] = (torch.arange(answer) + len(sample.prompt)).clamp(max=prompt + answer - 1)
        mask[row, : len(sample.tokens)] = 1
    ids, place, mask = ids.to(device), place.to(device), mask.to(device)
    with precision(device):
        logits = model(input_ids=ids, use_cache=False).logits
    logp = torch.log_softmax(logits[:, :-1].float(), dim=-1).gather(-1, ids[:, 1:, None])[..., 0]
    return logp.gather(1, place - 1), mask


def precision(device: str) -> AbstractContextManager[Any]:
    """Bfloat16 on a GPU over float32 master weights; plain float32 on the CPU."""
    import torch

    kind: AbstractContextManager[Any] = torch.autocast(device.partition(":")[0], torch.bfloat16, device != "cpu")
    return kind


def logprobs_of(model: Any, samples: Sequence[Sample], device: str) -> list[list[float]]:
    """Log-probabilities of every answer's tokens as lists, group by group, without a graph."""
    import torch

    found: list[list[float]] = [[] for _ in samples]
    training = model.training
    model.eval()
    with torch.no_grad():
        for places in groups_of(samples):
            logp, _ = token_logprobs(model, [samples[place] for place in places], device)
            for place, line in zip(places, logp.tolist(), strict=True):
                found[place] = line[: len(samples[place].tokens)]
    model.train(training)
    return found


def backward(model: Any, samples: Sequence[Sample], old: Any, weight: Sequence[float], device: str) -> float:
    """Add the gradient of the loss over all groups and return the loss; a loss that is no number gets no gradient."""
    import torch

    count = sum(len(sample.tokens) for sample in samples)
    total = 0.0
    for places in groups_of(samples):
        new, mask = token_logprobs(model, [samples[place] for place in places], device)
        before = torch.zeros_like(mask)
        for row, place in enumerate(places):
            before[row, : len(old[place])] = torch.tensor(old[place], device=device)
        advantage = torch.tensor([weight[place] for place in places], device=device)
        loss = clipped_loss(new, before, advantage, mask) / count
        total += float(loss.detach())
        if not bool(loss.isfinite()):
            return total
        loss.backward()
    return total


def step(model: Any, optimizer: Any, samples: Sequence[Sample], old: Any, weight: Sequence[float], ranks: Ranks) -> Any:
    """Do one step on all ranks, or none: every rank learns of a fault on any of them."""
    import torch

    optimizer.zero_grad(set_to_none=True)
    loss = backward(model, samples, old, weight, ranks.device)
    outcome = Outcome(loss=ranks.mean(loss))
    if outcome.loss != outcome.loss or abs(outcome.loss) == float("inf"):
        return Outcome(outcome.loss, fault="loss-not-finite", names=not_finite(model.named_parameters()))
    moving = trainable(model)
    ranks.average_gradients(list(moving.values()))
    grads = [(name, weight.grad) for name, weight in moving.items() if weight.grad is not None]
    outcome.gradient_norm = float(torch.linalg.vector_norm(torch.stack([grad.float().norm() for _, grad in grads])))
    names = not_finite(grads)
    if names or outcome.gradient_norm != outcome.gradient_norm:
        return Outcome(outcome.loss, outcome.gradient_norm, "gradient-not-finite", names)
    outcome.gradients = {name: grad.detach().clone() for name, grad in grads}
    optimizer.step()
    return outcome
