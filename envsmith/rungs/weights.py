"""Weights as what they are byte for byte: digests, changes, values that are no number."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: What AdamW adds to the root of the second moment unless told otherwise (torch.optim.AdamW, read 2026-11-30).
ADAM_EPSILON = 1e-8


def digest(tensor: Any) -> str:
    """Sha256 of a tensor's bytes in its own type, as they stand in memory on the CPU."""
    import torch

    plain = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(plain.numpy().data).hexdigest()


def digests(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Digest of each tensor by name."""
    return {name: digest(tensor) for name, tensor in tensors.items()}


def one_digest(each: Mapping[str, str]) -> str:
    """One sha256 for many, in the order of their names."""
    lines = "".join(f"{name} {each[name]}\n" for name in sorted(each))
    return hashlib.sha256(lines.encode()).hexdigest()


def trainable(model: Any) -> dict[str, Any]:
    """The parameters that the optimizer may move."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def copies(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Copies that no later step touches; they stay on the device."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def not_finite(tensors: Iterable[tuple[str, Any]]) -> list[str]:
    """Names of the tensors that hold a NaN or an infinity."""
    return [name for name, tensor in tensors if not bool(tensor.detach().isfinite().all())]


@dataclass(frozen=True)
class Change:
    """What one step did to the weights."""

    changed: list[str]
    """Names of those whose bytes differ."""
    total: int
    norm: float
    """Euclidean norm of the difference over all of them."""


def change(before: Mapping[str, Any], after: Mapping[str, Any]) -> Change:
    """Compare by digest, and measure how far the weights moved."""
    old, new = digests(before), digests(after)
    square = sum(float((after[name].detach() - before[name]).double().pow(2).sum()) for name in before)
    return Change(changed=[name for name in old if old[name] != new[name]], total=len(old), norm=square**0.5)


@dataclass(frozen=True)
class Following:
    """How one step of the weights goes with the gradient."""

    along: float
    """Sum of update times gradient: below 0 where the loss goes down."""
    cosine: float
    """Between the update and that of AdamW's first step, -rate·g / (|g| + 1e-8)."""
    still: list[str]
    """Names of those that this first step would move and that did not move."""


def following(before: Mapping[str, Any], after: Mapping[str, Any], gradients: Mapping[str, Any], rate: float) -> Any:
    """Hold an update against its gradient; a tensor that rounding would leave as it is may stay."""
    along = product = moved = wanted = 0.0
    still = []
    for name, gradient in gradients.items():
        start, slope = before[name], gradient.double()
        update = after[name].detach().double() - start.double()
        expected = -rate * slope / (slope.abs() + ADAM_EPSILON)
        along += float((update * slope).sum())
        product += float((update * expected).sum())
        moved += float(update.square().sum())
        wanted += float(expected.square().sum())
        would = (start.double() + expected).to(start.dtype) != start
        if bool(would.any()) and not bool(update.any()):
            still.append(name)
    size = (moved * wanted) ** 0.5
    return Following(along=along, cosine=product / size if size else 0.0, still=still)


def some(names: Iterable[str], limit: int = 3) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more
