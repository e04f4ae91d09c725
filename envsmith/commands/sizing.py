"""What `envsmith check` says of a model's size beside its findings: for `data.sizing`, and one line of text."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from envsmith.modelsize import gib, size_cache, weight_bytes
from envsmith.rules.situation import Situation


def sizing(situation: Situation) -> dict[str, Any]:
    """The sizes of one env's model; bytes are those of one device, but for the weights."""
    model = situation.model
    if model is None:
        return {}
    shape = model.shape
    size, weights = size_cache(shape, situation.job), weight_bytes(model, situation.job.dtype)
    return {
        "config": shape.where,
        "model_type": shape.model_type,
        "layers": shape.layers,
        "attention_heads": shape.attention_heads,
        "dtype": shape.dtype,
        "max_positions": shape.max_positions,
        "cache": asdict(shape.cache) if shape.cache else None,
        "unsized": shape.unsized,
        "kv_cache": asdict(size) if size else None,
        "weight_bytes": weights[0] if weights else None,
        "weights_exact": weights[1] if weights else None,
    }


def size_line(name: str, sizes: dict[str, Any]) -> str:
    """The sizes of one env in words."""
    size, words = sizes["kv_cache"], []
    if size and size["quota_bytes"] is not None:
        spare = size["quota_bytes"] - size["needed_bytes"]
        words.append(
            f"key-value cache {gib(size['needed_bytes'])} of {gib(size['quota_bytes'])} a device, "
            + (f"{gib(spare)} to spare" if spare >= 0 else f"{gib(-spare)} too much")
        )
    elif size:
        words.append(f"key-value cache {gib(size['needed_bytes'])} a device")
    elif sizes["unsized"]:
        words.append(f"key-value cache not counted: {sizes['unsized']}")
    if sizes["weight_bytes"] is not None:
        words.append(f"weights {'' if sizes['weights_exact'] else 'about '}{gib(sizes['weight_bytes'])}")
    return f"sized {name} by {sizes['config']}: {', '.join(words) or 'the job does not say how long sequences get'}"
