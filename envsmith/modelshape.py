"""The shape of a model from its config.json: what its key-value cache and its weights are counted from.

Text in, values out; nothing is read from a disk. A model that the formulas do not know has a reason instead of a
shape of its cache, never a guess. Keys and defaults are those of `data/model-shapes.toml`, which names its sources.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from envsmith.data import table
from envsmith.errors import InputError
from envsmith.modelkeys import LARGEST, Keys, read_object, said

#: No model has more; layers, and devices that share heads, are counted one by one.
MOST_LAYERS, MOST_HEADS = 10_000, 65_536


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheShape:
    """What one sequence keeps for each of its tokens."""

    kv_heads: int
    head_dim: int
    full_layers: int
    """Layers that keep every token."""
    window_layers: int = 0
    """Layers that keep the last `window` tokens."""
    window: int | None = None
    latent: int | None = None
    """Elements a token and layer under multi-head latent attention, in place of keys and values by head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """What a config.json says, as far as sizes and limits need it."""

    where: str
    """The file, as it is shown."""
    model_type: str
    """Of the whole model, as transformers looks it up."""
    text_type: str
    """Of the part that generates text."""
    layers: int | None = None
    attention_heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None
    intermediate_size: int | None = None
    tied: bool = True
    """Whether the output layer shares the embedding's weights."""
    dtype: str | None = None
    max_positions: int | None = None
    """Tokens that the positions reach, with the rotary embedding's scaling taken at its most generous."""
    quantisation: str | None = None
    has_own_code: bool = False
    """`auto_map`: the model brings code, so transformers need not know its type."""
    cache: CacheShape | None = None
    unsized: str | None = None
    """Why there is no `cache`."""


class Unsized(Exception):
    """The formulas do not know this model; the text says why. Never leaves this module."""


def parse_model(text: str, where: str) -> ModelShape:
    """Read a config.json; `where` is its path as errors show it.

    Raises:
        InputError: `model-config-syntax` when it is no JSON object, else `model-config-value` for every wrong value.
    """
    top = read_object(text, where)
    below = top.get("text_config")
    is_nested = isinstance(below, Mapping) and bool(below)
    keys = Keys(data=below if isinstance(below, Mapping) and is_nested else top, where=where,
                prefix="text_config." if is_nested else "")  # fmt: skip
    outer = Keys(data=top, where=where, problems=keys.problems)
    model_type = outer.text("model_type")
    if model_type is None and not keys.problems:
        outer.refuse("model_type", "is missing: this is not the config.json of a model")
    if below is not None and not isinstance(below, Mapping):
        outer.refuse("text_config", "is no table")
    text_type = keys.text("model_type") or ("" if is_nested else model_type or "")
    shape = _shape(outer, keys, model_type or "", text_type, _row(text_type))
    if keys.problems:
        raise InputError(*dict.fromkeys(keys.problems))
    return shape


@cache
def _rows() -> Mapping[str, Mapping[str, Any]]:
    return {name: row for row in table("model-shapes")["shape"] for name in row["types"]}


def _row(text_type: str) -> Mapping[str, Any]:
    return _rows().get(text_type, {})


def is_gated(text_type: str) -> bool:
    """Whether the layers are plain, with a gated MLP, so that parameters can be counted."""
    return bool(_row(text_type).get("gated"))


def _shape(outer: Keys, keys: Keys, model_type: str, text_type: str, row: Mapping[str, Any]) -> ModelShape:
    defaults = row.get("defaults", {})
    with_defaults = Keys(
        data={**{name: value for name, value in defaults.items() if name not in keys.data}, **keys.data},
        where=keys.where, prefix=keys.prefix, problems=keys.problems,
    )  # fmt: skip
    layers = keys.number("num_hidden_layers", "n_layer", "n_layers", "num_layers", most=MOST_LAYERS)
    heads = with_defaults.number("num_attention_heads", "n_head", "n_heads", "num_heads", most=MOST_HEADS)
    hidden = keys.number("hidden_size", "n_embd", "d_model")
    kv_heads = _kv_heads(with_defaults, row, heads)
    head_dim = with_defaults.number("head_dim") or (hidden // heads if hidden and heads else None)
    quantisation = outer.table("quantization_config") or keys.table("quantization_config")
    method = quantisation.get("quant_method")
    dtype = outer.text("dtype", "torch_dtype") or keys.text("dtype", "torch_dtype")
    found: CacheShape | None = None
    why: str | None = None
    try:
        found = _cache(with_defaults, row, text_type, layers, heads, kv_heads, head_dim)
    except Unsized as error:
        why = str(error)
    return ModelShape(
        where=keys.where,
        model_type=model_type,
        text_type=text_type,
        layers=layers,
        attention_heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        hidden_size=hidden,
        vocab_size=with_defaults.number("vocab_size"),
        intermediate_size=keys.number("intermediate_size") if row.get("gated") else None,
        tied=outer.truth("tie_word_embeddings", keys.truth("tie_word_embeddings", True)),
        dtype=dtype.removeprefix("torch.") if dtype else None,
        max_positions=_positions(keys),
        quantisation=method.replace("_", "-").lower() if isinstance(method, str) else None,
        has_own_code=bool(outer.data.get("auto_map")),
        cache=found,
        unsized=why,
    )


def _kv_heads(keys: Keys, row: Mapping[str, Any], heads: int | None) -> int | None:
    """Heads of keys and values: the query heads would be too many under grouped queries."""
    names = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads")
    named = keys.number(*names, most=MOST_HEADS)
    if named is None and (inner := keys.table("attn_config")):  # where mpt has it
        below = Keys(data=inner, where=keys.where, prefix=f"{keys.prefix}attn_config.", problems=keys.problems)
        named = below.number("kv_n_heads", most=MOST_HEADS)
        named = named or (1 if inner.get("attn_type") == "multiquery_attention" else None)
    if row.get("kv") == "multi-query":
        if keys.truth("new_decoder_architecture", False):
            return named or heads
        return 1 if keys.truth("multi_query", True) else heads
    says_null = any(name in keys.data and keys.data[name] is None for name in names)
    return named or (heads if says_null or row.get("kv") == "heads" else None)


def _positions(keys: Keys) -> int | None:
    """Tokens that the positions reach; vllm takes the least of its keys, times the factor of most scalings.

    Source: `_get_and_verify_max_len` in config/model.py of vllm 0.18.0, read 2026-11-30. Whether a configuration's
    number is already scaled differs by family, so the larger reading counts here.
    """
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    limits = [number for name in names if (number := keys.number(name))]
    plain = min(limits, default=None)
    rope = keys.table("rope_parameters") or keys.table("rope_scaling")
    tables = [one for one in rope.values() if isinstance(one, Mapping)] or [rope]
    reach = []
    for one in tables:
        factor, base = one.get("factor"), one.get("original_max_position_embeddings")
        if factor is None:
            continue
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < LARGEST:
            keys.refuse("rope_scaling", f"has the factor {said(factor)}, which is no number above 0")
        elif plain is not None:
            whole = isinstance(base, int) and not isinstance(base, bool) and 0 < base < LARGEST
            reach.append(math.floor((base if whole and isinstance(base, int) else plain) * factor))
    return max([plain, *reach]) if plain is not None else None


# Which layers keep what


def _cache(
    keys: Keys, row: Mapping[str, Any], text_type: str, layers: int | None, heads: int | None, kv_heads: int | None,
    head_dim: int | None,
) -> CacheShape:  # fmt: skip
    if not row:
        raise Unsized(f"how the model type `{text_type}` lays out its cache is not known here")
    kinds = _kinds(keys, row, layers)
    window = keys.number("sliding_window", "attention_chunk_size", least=0)
    full, short = kinds.count("full"), kinds.count("window")
    if short and not window:
        raise Unsized(f"some layers keep a window, and `{keys.prefix}sliding_window` does not say how long it is")
    if row.get("latent"):
        rank, rope = keys.number("kv_lora_rank"), keys.number("qk_rope_head_dim")
        if rank is None or rope is None:
            raise Unsized(f"`{keys.prefix}kv_lora_rank` or `{keys.prefix}qk_rope_head_dim` is null")
        return CacheShape(kv_heads=1, head_dim=rank + rope, full_layers=full, latent=rank + rope)
    missing = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}
    for name, value in missing.items():
        if value is None:
            raise Unsized(f"`{keys.prefix}{name}` is not there, and what stands for it is not known here")
    if not kinds or not full + short:
        raise Unsized(f"no layer of `{text_type}` keeps keys and values")
    return CacheShape(
        kv_heads=kv_heads or 0, head_dim=head_dim or 0, full_layers=full, window_layers=short,
        window=window if short else None,
    )  # fmt: skip


#: What a name in `layer_types` or `layers_block_type` keeps; sources: `ALLOWED_LAYER_TYPES` in configuration_utils.py
#: and the layers of cache_utils.py in transformers 5.6.0, read 2026-11-30.
_KINDS = {
    "full_attention": "full", "attention": "full", "sliding_attention": "window", "chunked_attention": "window",
    "linear_attention": "none", "mamba": "none", "conv": "none", "moe": "none", "mlp": "none",
}  # fmt: skip


def _kinds(keys: Keys, row: Mapping[str, Any], layers: int | None) -> list[str]:
    """For each layer `full`, `window` or `none`."""
    named = keys.listed("layer_types") or keys.listed("layers_block_type")
    if named is not None:
        return list(_named(keys, named, layers))
    if layers is None and row.get("layout") != "letters":
        raise Unsized(f"`{keys.prefix}num_hidden_layers` is not there, and what stands for it is not known here")
    if "layout" in row:
        return _laid_out(keys, row, layers or 0)
    return _windowed(keys, row, layers or 0)


def _named(keys: Keys, named: tuple[Any, ...], layers: int | None) -> Iterator[str]:
    if layers is not None and len(named) != layers:
        keys.refuse("layer_types", f"names {len(named)} layers, and there are {layers}")
    for one in named:
        kind = _KINDS.get(one) if isinstance(one, str) else None
        if kind is None:
            raise Unsized(f"what a layer of the type {said(one)} keeps is not known here")
        yield kind


def _laid_out(keys: Keys, row: Mapping[str, Any], layers: int) -> list[str]:
    """Hybrids, which keep keys and values in some layers only."""
    layout = row["layout"]
    if layout == "interval" and (step := keys.number("full_attention_interval")):
        return ["none" if (layer + 1) % step else "full" for layer in range(layers)]
    if layout == "period" and (step := keys.number("attn_layer_period")):
        rest = keys.number("attn_layer_offset", least=0) or 0
        return ["full" if layer % step == rest else "none" for layer in range(layers)]
    if layout == "indices" and (chosen := keys.listed("attn_layer_indices")) is not None:
        return ["full" if layer in chosen else "none" for layer in range(layers)]
    if layout == "letters" and (letters := keys.text("hybrid_override_pattern")):
        if layers and len(letters) != layers:
            keys.refuse("hybrid_override_pattern", f"names {len(letters)} layers, and there are {layers}")
        return ["full" if letter == "*" else "none" for letter in letters]
    raise Unsized(f"which layers keep keys and values is not said: `{keys.prefix}layer_types` is not there")


def _windowed(keys: Keys, row: Mapping[str, Any], layers: int) -> list[str]:
    """Plain decoders: every layer keeps every token, or a window of them."""
    rule, window = row.get("windows"), keys.number("sliding_window", least=0)
    if not window or (rule in ("after", "all-if", "unknown-if") and not keys.truth("use_sliding_window", False)):
        return ["full"] * layers
    if rule in ("all", "all-if"):
        return ["window"] * layers
    if rule == "after":
        from_layer = keys.number("max_window_layers", least=0) or 0
        return ["window" if layer >= from_layer else "full" for layer in range(layers)]
    if rule == "every":
        pattern = keys.number("sliding_window_pattern") or row["pattern"]
        return ["window" if (layer + 1) % pattern else "full" for layer in range(layers)]
    raise Unsized(f"which layers keep only the last `{keys.prefix}sliding_window` tokens is not known here")
