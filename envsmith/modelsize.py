"""Bytes of a model: its key-value cache by tokens and sequences, and its weights. Exact integers, no I/O.

The cache of one device is what v1/kv_cache_interface.py of vllm 0.18.0 counts a page from (`AttentionSpec`,
`MLAAttentionSpec`, `SlidingWindowSpec`), read 2026-11-30, without rounding up to pages and without what a prefill in
flight takes beyond a window: an engine needs at least this much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from envsmith.errors import InputError, Problem
from envsmith.modelkeys import read_object
from envsmith.modelshape import CacheShape, ModelShape, is_gated
from envsmith.recipe import Job

GIB = 1 << 30
ELEMENT_BYTES = {
    "float32": 4, "float16": 2, "bfloat16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "float8_e4m3fn": 1,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A model as it lies on this machine."""

    shape: ModelShape
    stored_bytes: int | None = None
    """Of all tensors, as the index or the one file of its weights says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheSize:
    """The key-value cache that a job asks for, on one device."""

    tokens: int
    sequences: int
    element_bytes: int
    tensor_parallel: int
    needed_bytes: int
    quota_bytes: int | None
    most_sequences: int | None = None
    """How many the quota holds; None without a quota."""
    most_tokens: int | None = None
    """The longest that the quota holds so many of; None where it holds what was asked."""


def size_cache(shape: ModelShape, job: Job) -> CacheSize | None:
    """The cache of a job's longest sequences; None where the model is not sized or the job does not say how long.

    A job that names no number of sequences is sized for one: an engine does not start where that has no room.
    """
    cache, tokens = shape.cache, job.max_tokens
    if cache is None or tokens is None:
        return None
    sequences, parallel = job.max_sequences or 1, job.tensor_parallel or 1
    element = kv_element_bytes(kv_dtype=job.kv_cache_dtype, dtype=job.dtype)
    needed = kv_cache_bytes(cache, tokens=tokens, sequences=sequences, element_bytes=element, tensor_parallel=parallel)
    size = CacheSize(
        tokens=tokens, sequences=sequences, element_bytes=element, tensor_parallel=parallel, needed_bytes=needed,
        quota_bytes=None,
    )  # fmt: skip
    if job.kv_cache_gib is None:
        return size
    quota = int(job.kv_cache_gib * GIB)
    longest = most_tokens(
        cache, sequences=sequences, quota_bytes=quota, below=tokens, element_bytes=element, tensor_parallel=parallel
    )
    return replace(
        size,
        quota_bytes=quota,
        most_sequences=most_sequences(
            cache, tokens=tokens, quota_bytes=quota, element_bytes=element, tensor_parallel=parallel
        ),
        most_tokens=longest if needed > quota else None,
    )


def kv_element_bytes(*, kv_dtype: str | None, dtype: str | None) -> int:
    """Bytes of one element of the cache: its own format, else the job's, else 16 bits.

    vllm's `auto` takes the model's format, and one of 16 bits also for a model that is saved as float32 or says nothing
    (`_resolve_auto_dtype` in config/model.py of vllm 0.18.0, read 2026-11-30).
    """
    for named in (kv_dtype, dtype):
        if named is not None and named in ELEMENT_BYTES:
            return ELEMENT_BYTES[named]
    return 2


def kv_cache_bytes(
    cache: CacheShape, *, tokens: int, sequences: int, element_bytes: int, tensor_parallel: int = 1
) -> int:
    """Bytes on one device for so many sequences of so many tokens.

    Tensor parallelism splits the heads; a device has one at least, and the latent of MLA is on every device.
    """
    heads = max(1, -(-cache.kv_heads // tensor_parallel))
    elements = cache.latent if cache.latent is not None else 2 * heads * cache.head_dim
    kept = cache.full_layers * tokens + cache.window_layers * min(tokens, cache.window or tokens)
    return sequences * kept * elements * element_bytes


def most_sequences(
    cache: CacheShape, *, tokens: int, quota_bytes: int, element_bytes: int, tensor_parallel: int = 1
) -> int:
    """The largest number of sequences that a quota holds."""
    one = kv_cache_bytes(
        cache, tokens=tokens, sequences=1, element_bytes=element_bytes, tensor_parallel=tensor_parallel
    )
    return quota_bytes // one if one else 0


def most_tokens(
    cache: CacheShape, *, sequences: int, quota_bytes: int, below: int, element_bytes: int, tensor_parallel: int = 1
) -> int:
    """The largest length below a limit that a quota holds."""
    low, high = 0, below
    while low + 1 < high:
        middle = (low + high) // 2
        size = kv_cache_bytes(
            cache, tokens=middle, sequences=sequences, element_bytes=element_bytes, tensor_parallel=tensor_parallel
        )
        low, high = (middle, high) if size <= quota_bytes else (low, middle)
    return low


def parameters(shape: ModelShape) -> int | None:
    """An estimate of the parameters of a plain decoder, without biases; None for every other model.

    Embedding, and for each layer four projections of attention, three of the MLP and two norms.
    """
    sizes = (shape.layers, shape.attention_heads, shape.kv_heads, shape.head_dim, shape.hidden_size)
    layers, heads, kv_heads, head_dim, hidden = (size or 0 for size in sizes)
    vocabulary, inner = shape.vocab_size or 0, shape.intermediate_size or 0
    if not is_gated(shape.text_type) or shape.model_type != shape.text_type:
        return None
    if not all((layers, heads, kv_heads, head_dim, hidden, vocabulary, inner)):
        return None
    attention = 2 * hidden * head_dim * (heads + kv_heads)
    embeddings = vocabulary * hidden * (1 if shape.tied else 2)
    return embeddings + layers * (attention + 3 * hidden * inner + 2 * hidden) + hidden


def weight_bytes(model: Model, dtype: str | None) -> tuple[int, bool] | None:
    """Bytes of the weights in memory, and whether that is exact: stored tensors, in the format that they keep.

    A job in another format converts what is stored; a quantised model stays as it is stored.
    """
    shape = model.shape
    own, wanted = ELEMENT_BYTES.get(shape.dtype or ""), ELEMENT_BYTES.get(dtype or "")
    if model.stored_bytes is not None:
        if shape.quantisation or wanted is None or wanted == own:
            return model.stored_bytes, True
        return (model.stored_bytes * wanted // own, True) if own else (model.stored_bytes, False)
    counted = parameters(shape)
    return (counted * (wanted or own or 2), False) if counted and not shape.quantisation else None


def parse_index(text: str, where: str) -> int | None:
    """The bytes of all tensors that a `model.safetensors.index.json` says, or None when it does not.

    Raises:
        InputError: `model-config-syntax`, `model-config-value`.
    """
    metadata = read_object(text, where).get("metadata")
    size = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    if isinstance(size, float) and size.is_integer():
        size = int(size)
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 60:
        message = "`metadata.total_size` is no number of bytes"
        raise InputError(Problem(code="model-config-value", message=message, where=f"{where}: metadata.total_size"))
    return size


def gib(size_bytes: int) -> str:
    """`7.71 GiB`; the nearest hundredth, whatever the size is."""
    hundredths = (size_bytes * 100 + GIB // 2) // GIB
    return f"{hundredths // 100}.{hundredths % 100:02d} GiB"
