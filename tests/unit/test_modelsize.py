"""Bytes of caches and weights: the worked figure, the laws that every figure keeps, and what fits a quota."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsmith.errors import InputError
from envsmith.modelshape import CacheShape, ModelShape, parse_model
from envsmith.modelsize import (
    Model,
    gib,
    kv_cache_bytes,
    kv_element_bytes,
    most_sequences,
    most_tokens,
    parameters,
    parse_index,
    size_cache,
    weight_bytes,
)
from envsmith.recipe import Job

#: As the field notes have it; these are the sizes of a model of 0.6 billion parameters.
WORKED: dict[str, Any] = {
    "model_type": "qwen3", "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "hidden_size": 1024, "intermediate_size": 3072, "vocab_size": 151936, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "max_position_embeddings": 40960,
}  # fmt: skip


def model(**keys: Any) -> ModelShape:
    return parse_model(json.dumps({**WORKED, **keys}), "config.json")


def job(**values: Any) -> Job:
    said = {"kv_cache_gib": 8.0, "max_tokens": 18048, "dtype": "bfloat16", "tensor_parallel": 1}
    return Job().model_copy(update={**said, **values})


def test_the_worked_figure_is_exact_and_fits_eight_gib() -> None:
    size = size_cache(model(), job(max_sequences=4))
    assert size is not None
    assert (size.needed_bytes, gib(size.needed_bytes), size.quota_bytes) == (8_279_556_096, "7.71 GiB", 8 << 30)
    assert (size.most_sequences, size.most_tokens) == (4, None)
    assert size.needed_bytes == 28 * 8 * 128 * 18048 * 4 * 2 * 2


def test_five_sequences_do_not_fit_and_what_is_offered_does() -> None:
    size = size_cache(model(), job(max_sequences=5))
    assert size is not None and size.quota_bytes is not None
    assert size.needed_bytes > size.quota_bytes
    assert (size.most_sequences, size.most_tokens) == (4, 14979)
    for tokens, sequences, fits in ((18048, 4, True), (18048, 5, False), (14979, 5, True), (14980, 5, False)):
        one = size_cache(model(), job(max_sequences=sequences).model_copy(update={"max_tokens": tokens}))
        assert one is not None and (one.needed_bytes <= size.quota_bytes) is fits


def test_query_heads_would_overestimate() -> None:
    every = size_cache(model(num_key_value_heads=16), job(max_sequences=4))
    assert every is not None and every.needed_bytes == 2 * 8_279_556_096


def test_a_job_without_a_number_of_sequences_is_sized_for_one() -> None:
    size = size_cache(model(), job())
    assert size is not None and size.needed_bytes * 4 == 8_279_556_096
    assert size_cache(model(), Job()) is None
    assert size_cache(model(model_type="unheard-of"), job()) is None
    no_quota = size_cache(model(), job(kv_cache_gib=None))
    assert no_quota is not None and (no_quota.quota_bytes, no_quota.most_sequences) == (None, None)


@pytest.mark.parametrize(
    ("kv_dtype", "dtype", "size"),
    [
        (None, None, 2), (None, "bfloat16", 2), (None, "float16", 2), (None, "float32", 4), (None, "auto", 2),
        ("auto", "float32", 4), ("fp8", "bfloat16", 1), ("fp8_e5m2", None, 1), ("bfloat16", "float32", 2),
    ],
)  # fmt: skip
def test_the_format_of_the_cache_is_its_own_else_the_jobs(kv_dtype: str | None, dtype: str | None, size: int) -> None:
    assert kv_element_bytes(kv_dtype=kv_dtype, dtype=dtype) == size


WINDOWED = CacheShape(kv_heads=2, head_dim=4, full_layers=1, window_layers=3, window=10)
LATENT = CacheShape(kv_heads=1, head_dim=576, full_layers=61, latent=576)


def test_a_window_caps_its_layers_and_no_other() -> None:
    sizes = {n: kv_cache_bytes(WINDOWED, tokens=n, sequences=1, element_bytes=2) for n in (5, 10, 11, 100)}
    token = 2 * 2 * 4 * 2
    assert sizes == {5: 4 * 5 * token, 10: 4 * 10 * token, 11: (11 + 30) * token, 100: (100 + 30) * token}


def test_the_latent_is_one_vector_a_token_and_layer_on_every_device() -> None:
    one = kv_cache_bytes(LATENT, tokens=1, sequences=1, element_bytes=2)
    assert one == 61 * 576 * 2 == 70_272
    assert kv_cache_bytes(LATENT, tokens=1, sequences=1, element_bytes=2, tensor_parallel=8) == one


CACHES = st.builds(
    lambda heads, dim, full, windowed, window, latent: CacheShape(
        kv_heads=heads, head_dim=dim, full_layers=full, window_layers=windowed, window=window if windowed else None,
        latent=latent,
    ),
    st.integers(1, 128), st.integers(1, 600), st.integers(1, 100), st.integers(0, 100), st.integers(1, 10_000),
    st.none() | st.integers(1, 1000),
)  # fmt: skip
COUNTS = st.integers(1, 1 << 24)


@settings(deadline=None)
@given(CACHES, COUNTS, COUNTS, st.integers(0, 1000), st.integers(1, 64))
def test_more_tokens_or_sequences_never_take_less(
    cache: CacheShape, tokens: int, sequences: int, more: int, parallel: int
) -> None:
    def size(tokens: int, sequences: int) -> int:
        return kv_cache_bytes(
            cache, tokens=tokens, sequences=sequences, element_bytes=2, tensor_parallel=parallel
        )  # fmt: skip

    assert 0 < size(tokens, sequences) <= size(tokens + more, sequences)
    assert size(tokens, sequences + more) == size(tokens, sequences) // sequences * (sequences + more)


@settings(deadline=None)
@given(CACHES, COUNTS, st.integers(1, 256))
def test_devices_together_keep_at_least_what_one_would(cache: CacheShape, tokens: int, parallel: int) -> None:
    one = kv_cache_bytes(cache, tokens=tokens, sequences=3, element_bytes=2)
    each = kv_cache_bytes(cache, tokens=tokens, sequences=3, element_bytes=2, tensor_parallel=parallel)
    assert each <= one <= each * parallel
    if cache.latent is None and cache.kv_heads % parallel == 0:
        assert each * parallel == one


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(2, 16), st.integers(1, 256), COUNTS)
def test_grouped_queries_take_less_than_a_head_for_each(kv_heads: int, group: int, dim: int, tokens: int) -> None:
    grouped, every = (
        kv_cache_bytes(
            CacheShape(kv_heads=heads, head_dim=dim, full_layers=2), tokens=tokens, sequences=1, element_bytes=2
        )
        for heads in (kv_heads, kv_heads * group)
    )
    assert grouped * group == every


@settings(deadline=None)
@given(CACHES, st.integers(1, 1 << 18), st.integers(1, 512), st.integers(1, 1 << 42), st.integers(1, 16))
def test_what_is_offered_fits_and_one_more_does_not(
    cache: CacheShape, tokens: int, sequences: int, quota: int, parallel: int
) -> None:
    def size(tokens: int, sequences: int) -> int:
        return kv_cache_bytes(
            cache, tokens=tokens, sequences=sequences, element_bytes=2, tensor_parallel=parallel
        )  # fmt: skip

    most = most_sequences(cache, tokens=tokens, quota_bytes=quota, element_bytes=2, tensor_parallel=parallel)
    assert size(tokens, most) <= quota < size(tokens, most + 1)
    if size(tokens, sequences) > quota:
        longest = most_tokens(
            cache, sequences=sequences, quota_bytes=quota, below=tokens, element_bytes=2, tensor_parallel=parallel
        )
        assert longest < tokens
        assert size(longest, sequences) <= quota < size(longest + 1, sequences)


def test_the_parameters_of_a_plain_decoder_are_counted() -> None:
    counted = parameters(model())
    assert counted is not None and abs(counted - 596_049_920) < 10_000
    assert parameters(model(model_type="qwen3_moe")) is None
    assert parameters(model(intermediate_size=None)) is None


@pytest.mark.parametrize(
    ("stored", "keys", "dtype", "expected"),
    [
        (1000, {}, None, (1000, True)),
        (1000, {}, "bfloat16", (1000, True)),
        (1000, {}, "float32", (2000, True)),
        (1000, {"torch_dtype": "float32"}, "bfloat16", (500, True)),
        (1000, {"torch_dtype": None}, "bfloat16", (1000, False)),
        (1000, {"quantization_config": {"quant_method": "awq"}}, "float32", (1000, True)),
        (None, {"quantization_config": {"quant_method": "awq"}}, None, None),
        (None, {"model_type": "qwen3_moe"}, None, None),
    ],
)
def test_weights_are_exact_where_their_format_is_known(
    stored: int | None, keys: dict[str, Any], dtype: str | None, expected: tuple[int, bool] | None
) -> None:
    assert weight_bytes(Model(shape=model(**keys), stored_bytes=stored), dtype) == expected


def test_weights_that_are_not_here_are_an_estimate() -> None:
    found = weight_bytes(Model(shape=model()), None)
    assert found is not None and not found[1]
    assert gib(found[0]) == "1.11 GiB"


def test_an_index_says_how_many_bytes_there_are() -> None:
    assert parse_index('{"metadata": {"total_size": 12}, "weight_map": {}}', "i") == 12
    assert parse_index('{"metadata": {"total_size": 12.0}}', "i") == 12
    assert parse_index('{"metadata": {}}', "i") is None
    assert parse_index("{}", "i") is None


@pytest.mark.parametrize(
    "text", ["[]", "x", *(f'{{"metadata": {{"total_size": {size}}}}}' for size in ('"12"', "-1", "true", "NaN"))]
)
def test_an_index_that_is_wrong_is_a_problem(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_index(text, "i.json")
    assert [one.code.startswith("model-config-") for one in caught.value.problems] == [True]


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0.00 GiB"), (8 << 30, "8.00 GiB"), (8_279_556_096, "7.71 GiB"), (10**400, f"{(10**402 + 2**29) >> 30}")],
)
def test_sizes_are_shown_to_the_nearest_hundredth(size: int, words: str) -> None:
    assert gib(size).replace(".", "").startswith(words.replace(".", ""))
