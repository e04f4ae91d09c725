"""Rules about sizes: what the model of a job takes, against the room that the job and the machine give it."""

from __future__ import annotations

from collections.abc import Iterator

from envsmith.modelsize import GIB, CacheSize, gib, size_cache, weight_bytes
from envsmith.report import Finding, Severity
from envsmith.rules.situation import Situation, found


def model_differs(s: Situation) -> Iterator[Finding]:
    """The model's own word on its type is the one that is judged."""
    said, own = s.env.job.model_type, s.model.shape.model_type if s.model else None
    if s.model and said and own and said not in (own, s.model.shape.text_type):
        yield found(
            "model-type-differs",
            s.key("job", "model-type"),
            f"the recipe says `{said}`, and {s.model.shape.where} says `{own}`, which was judged",
            severity=Severity.WARNING,
            expected=own,
            actual=said,
            hint="correct `model-type`, or leave it out: the model's configuration says it",
        )


def kv_cache(s: Situation) -> Iterator[Finding]:
    """An engine keeps keys and values of every token of every sequence; what does not fit, waits or is refused."""
    if s.model is None:
        return
    if s.model.shape.unsized:
        if s.job.kv_cache_gib is not None or s.job.max_tokens is not None:
            yield found(
                "model-not-sized",
                s.job_key("model"),
                f"the key-value cache of {s.model.shape.where} is not counted: {s.model.shape.unsized}",
                severity=Severity.NOTE,
                hint="let the engine say at its start how many tokens its cache holds",
            )
        return
    size = size_cache(s.model.shape, s.job)
    if size is None or size.quota_bytes is None or size.needed_bytes <= size.quota_bytes:
        return
    many = f"{size.sequences} sequences of {size.tokens} tokens"
    yield found(
        "kv-cache-over-quota",
        s.job_key("kv_cache_gib"),
        f"the key-value cache of {many if s.job.max_sequences else f'one sequence of {size.tokens} tokens'} needs "
        f"{gib(size.needed_bytes)} on a device, and the quota is {gib(size.quota_bytes)}",
        expected=f"at most {size.quota_bytes} bytes ({gib(size.quota_bytes)})",
        actual=f"{size.needed_bytes} bytes ({gib(size.needed_bytes)})",
        hint=_what_fits(size),
    )


def _what_fits(size: CacheSize) -> str:
    ways = []
    if size.most_sequences:
        ways.append(f"`max-sequences` to {size.most_sequences}")
    if size.most_tokens:
        ways.append(f"`max-tokens` to {size.most_tokens}")
    if ways:
        return f"lower {' or '.join(ways)}"
    hundredths = -(-size.needed_bytes * 100 // GIB)
    return f"raise `kv-cache-gib` to {hundredths // 100}.{hundredths % 100:02d}"


def positions(s: Situation) -> Iterator[Finding]:
    """Beyond its positions a model was never trained; engines refuse such a length unless they are overruled."""
    reach, tokens = s.model.shape.max_positions if s.model else None, s.job.max_tokens
    if s.model and reach is not None and tokens is not None and tokens > reach:
        yield found(
            "max-tokens-beyond-model",
            s.job_key("max_tokens"),
            f"max-tokens is {tokens}, and the positions of {s.model.shape.where} reach {reach}",
            severity=Severity.WARNING,
            expected=f"at most {reach}",
            actual=str(tokens),
            hint="lower `max-tokens`, or give the model a rope scaling that reaches it",
        )


def heads(s: Situation) -> Iterator[Finding]:
    """Tensor parallelism gives every device whole heads; fewer key-value heads than devices are copied evenly.

    Source: `verify_with_parallel_config` in config/model.py and the attention of models/qwen3.py of vllm 0.18.0, read
    2026-11-30.
    """
    parallel = s.job.tensor_parallel
    if s.model is None or parallel is None:
        return
    shape = s.model.shape
    queries = shape.attention_heads
    pairs = shape.cache.kv_heads if shape.cache and shape.cache.latent is None else None
    if queries is not None and queries % parallel:
        kind, count = "attention heads", queries
    elif pairs is not None and pairs % parallel and parallel % pairs:
        kind, count = "key-value heads", pairs
    else:
        return
    fine = [
        one
        for one in range(1, min(parallel, (queries or count) + 1))
        if not (queries or one) % one and (pairs is None or not pairs % one or not one % pairs)
    ]
    yield found(
        "heads-not-divisible",
        s.job_key("tensor_parallel"),
        f"the model has {count} {kind}, which {parallel} devices cannot share evenly",
        expected=f"a divisor of {count}" + (" or a multiple of it" if kind == "key-value heads" else ""),
        actual=str(parallel),
        hint=f"set `tensor-parallel` to {fine[-1]}",
    )


def memory(s: Situation) -> Iterator[Finding]:
    """Weights and the quota of the cache, against the memory of the devices of one machine, where that is known."""
    sized = weight_bytes(s.model, s.job.dtype) if s.model else None
    devices = s.facts.accelerator if s.facts else ()
    rooms = [(one.memory_bytes, one.count) for one in devices if one.memory_bytes]
    if sized is None or not rooms or len(rooms) != len(devices) or s.job.quantised_load:
        return
    weights, is_exact = sized
    total = sum(size * count for size, count in rooms)
    if weights > total and is_exact and not s.job.cpu_offload:
        yield found(
            "weights-over-memory",
            s.job_key("model"),
            f"the model's weights take {gib(weights)}, and all devices of the machine together have {gib(total)}",
            expected=f"at most {total} bytes ({gib(total)})",
            actual=f"{weights} bytes ({gib(weights)})",
            hint="take a smaller or quantised model or a larger machine, or say `cpu-offload` where the job does that",
        )
        return
    least, parallel = min(size for size, _ in rooms), s.job.tensor_parallel or 1
    quota = int(s.job.kv_cache_gib * GIB) if s.job.kv_cache_gib is not None else None
    if quota is not None and weights // parallel + quota > least:
        about = "" if is_exact else "about "
        yield found(
            "memory-over-device",
            s.job_key("kv_cache_gib"),
            f"{about}{gib(weights // parallel)} of weights and {gib(quota)} of key-value cache are more than the "
            f"{gib(least)} of a device",
            severity=Severity.WARNING,
            expected=f"at most {gib(least)}",
            actual=f"{about}{gib(weights // parallel + quota)}",
            hint="lower `kv-cache-gib`, or raise `tensor-parallel`",
        )
