"""What a config.json says of a model's shape: families by their own keys, and files that are wrong."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsmith.errors import InputError
from envsmith.modelshape import CacheShape, ModelShape, parse_model

SMALL = {"num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32}


def shape(model_type: str = "llama", **keys: Any) -> ModelShape:
    return parse_model(json.dumps({"model_type": model_type, **SMALL, **keys}), "m/config.json")


def cache(model_type: str, **keys: Any) -> CacheShape:
    found = shape(model_type, **keys)
    assert found.cache is not None, found.unsized
    return found.cache


def plain(
    full: int, *, kv_heads: int = 2, head_dim: int = 8, windowed: int = 0, window: int | None = None
) -> CacheShape:
    return CacheShape(
        kv_heads=kv_heads, head_dim=head_dim, full_layers=full, window_layers=windowed, window=window
    )  # fmt: skip


FULL, LINEAR, SLIDING = "full_attention", "linear_attention", "sliding_attention"
ABSENT = {"num_hidden_layers": None, "num_attention_heads": None, "num_key_value_heads": None, "hidden_size": None}
OLD = {**ABSENT, "n_layer": 6, "n_head": 4, "n_embd": 32}

#: name, type, keys, what is kept.
FAMILIES: list[tuple[str, str, dict[str, Any], CacheShape]] = [
    ("head size is derived", "llama", {}, plain(6)),
    ("head size is said", "llama", {"head_dim": 20}, plain(6, head_dim=20)),
    ("null means as many as query heads", "llama", {"num_key_value_heads": None}, plain(6, kv_heads=4)),
    ("the class has a head size of its own", "qwen3", {}, plain(6, head_dim=128)),
    ("whole numbers may have a point", "llama", {"num_hidden_layers": 6.0}, plain(6)),
    ("a window for all", "mistral", {"sliding_window": 9}, plain(0, windowed=6, window=9)),
    ("a window that is null", "mistral", {"sliding_window": None}, plain(6)),
    ("a window that is not used", "qwen2", {"sliding_window": 9, "use_sliding_window": False}, plain(6)),
    (
        "a window from a layer on", "qwen2",
        {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 4}, plain(4, windowed=2, window=9),
    ),
    (
        "a window from the first layer on", "qwen2",
        {"sliding_window": 9, "use_sliding_window": True, "max_window_layers": 0}, plain(0, windowed=6, window=9),
    ),
    (
        "grouped queries in a table of their own", "mpt",
        {**ABSENT, "n_layers": 6, "n_heads": 4, "d_model": 32, "attn_config": {"kv_n_heads": 2}}, plain(6),
    ),
    (
        "one head for all, said there", "mpt",
        {**ABSENT, "n_layers": 6, "n_heads": 4, "d_model": 32, "attn_config": {"attn_type": "multiquery_attention"}},
        plain(6, kv_heads=1),
    ),
    ("every second layer", "gemma2", {"head_dim": 8, "sliding_window": 9}, plain(3, windowed=3, window=9)),
    ("all but each sixth", "gemma3_text", {"head_dim": 8, "sliding_window": 9}, plain(1, windowed=5, window=9)),
    (
        "a pattern of its own", "gemma3_text",
        {"head_dim": 8, "sliding_window": 9, "sliding_window_pattern": 3}, plain(2, windowed=4, window=9),
    ),
    (
        "layers by name", "gpt_oss",
        {"head_dim": 8, "sliding_window": 9, "layer_types": [SLIDING, FULL, FULL, FULL, FULL, SLIDING]},
        plain(4, windowed=2, window=9),
    ),
    ("linear attention by name", "qwen3_next", {"head_dim": 8, "layer_types": [LINEAR, FULL] * 3}, plain(3)),
    ("linear attention by interval", "qwen3_next", {"head_dim": 8}, plain(1)),
    ("its interval is said", "qwen3_5_text", {"head_dim": 8, "full_attention_interval": 2}, plain(3)),
    ("mamba by period", "jamba", {"attn_layer_period": 3, "attn_layer_offset": 1}, plain(2)),
    ("mamba by indices", "bamba", {"attn_layer_indices": [2]}, plain(1)),
    ("mamba by letters", "nemotron_h", {"head_dim": 8, "hybrid_override_pattern": "M-M*-*"}, plain(2)),
    ("convolutions", "lfm2", {"layer_types": ["conv", FULL, "conv", "conv", FULL, "conv"]}, plain(2)),
    ("older names", "gpt2", OLD, plain(6, kv_heads=4)),
    ("one head for all queries", "gpt_bigcode", OLD, plain(6, kv_heads=1)),
    ("or one for each", "gpt_bigcode", {**OLD, "multi_query": False}, plain(6, kv_heads=4)),
    (
        "falcon of the old kind has one head", "falcon",
        {**ABSENT, "num_hidden_layers": 6, "num_attention_heads": 4, "hidden_size": 32, "num_kv_heads": 4},
        plain(6, kv_heads=1),
    ),
    (
        "falcon of the new kind says how many", "falcon",
        {**OLD, "n_embd": None, "hidden_size": 32, "n_head_kv": 2, "new_decoder_architecture": True}, plain(6),
    ),
    (
        "a latent in place of heads", "deepseek_v3", {"kv_lora_rank": 12, "qk_rope_head_dim": 4},
        CacheShape(kv_heads=1, head_dim=16, full_layers=6, latent=16),
    ),
    (
        "the part that makes text", "gemma3",
        {"text_config": {"model_type": "gemma3_text", **SMALL, "head_dim": 8, "sliding_window": None}}, plain(6),
    ),
    (
        "a whole model of another name", "qwen3_5",
        {**ABSENT, "text_config": {"model_type": "qwen3_5_text", **SMALL, "head_dim": 8}}, plain(1),
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model_type", "keys", "kept"), [one[1:] for one in FAMILIES], ids=[one[0] for one in FAMILIES]
)
def test_each_family_is_read_by_its_own_keys(model_type: str, keys: dict[str, Any], kept: CacheShape) -> None:
    assert cache(model_type, **keys) == kept


@pytest.mark.parametrize(
    ("model_type", "keys", "reason"),
    [
        ("bert", {}, "model type `bert`"),
        ("mamba2", {}, "model type `mamba2`"),
        ("glm_moe_dsa", {"kv_lora_rank": 512}, "model type `glm_moe_dsa`"),
        ("somebody-elses", {}, "model type `somebody-elses`"),
        ("qwen3_5", {**ABSENT, "text_config": {"num_hidden_layers": 6}}, "model type ``"),
        ("llama", {"num_hidden_layers": None}, "num_hidden_layers"),
        ("llama", {"num_attention_heads": None, "num_key_value_heads": None}, "num_attention_heads"),
        ("llama", {"hidden_size": None}, "head_dim"),
        ("llama", {"sliding_window": 9}, "which layers keep only"),
        ("qwen2_moe", {"sliding_window": 9, "use_sliding_window": True}, "which layers keep only"),
        ("gpt_oss", {"sliding_window": None, "layer_types": [SLIDING, FULL] * 3}, "does not say how long"),
        ("llama", {"layer_types": ["sparse", *[FULL] * 5]}, "`\"sparse\"`"),
        ("llama", {"layer_types": [7, *[FULL] * 5]}, "`7`"),
        ("bamba", {}, "`layer_types` is not there"),
        ("granitemoehybrid", {"layer_types": ["mamba"] * 6}, "no layer"),
        ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank"),
    ],
)  # fmt: skip
def test_what_the_formulas_do_not_know_has_a_reason_and_no_shape(
    model_type: str, keys: dict[str, Any], reason: str
) -> None:
    found = shape(model_type, **keys)
    assert found.cache is None
    assert reason in (found.unsized or "")


def test_a_key_that_is_absent_is_not_guessed_where_the_class_has_no_default() -> None:
    text = json.dumps({"model_type": "hy", "num_hidden_layers": 2})
    assert parse_model(text, "c").cache is None
    keys = {name: value for name, value in SMALL.items() if name != "num_key_value_heads"}
    assert parse_model(json.dumps({"model_type": "llama", **keys}), "c").cache == plain(6, kv_heads=4)
    mistral = parse_model(json.dumps({"model_type": "mistral", **keys, "sliding_window": None}), "c").cache
    assert mistral == plain(6, kv_heads=8)


@pytest.mark.parametrize(
    ("keys", "reach"),
    [
        ({}, None),
        ({"max_position_embeddings": 100}, 100),
        ({"n_positions": 100}, 100),
        ({"max_position_embeddings": 100, "max_seq_len": 80}, 80),
        ({"max_position_embeddings": 100, "rope_scaling": None}, 100),
        ({"max_position_embeddings": 100, "rope_scaling": {"type": "linear", "factor": 4.0}}, 400),
        ({"max_position_embeddings": 100, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                                           "original_max_position_embeddings": 50}}, 200),
        ({"max_position_embeddings": 200, "rope_parameters": {"rope_type": "yarn", "factor": 4,
                                                              "original_max_position_embeddings": 50}}, 200),
        ({"max_position_embeddings": 100, "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0},
                                                              "sliding_attention": {"rope_type": "default"}}}, 800),
        ({"max_position_embeddings": 100, "rope_scaling": {"rope_type": "default", "mrope_section": [1, 2]}}, 100),
    ],
)  # fmt: skip
def test_positions_reach_as_far_as_their_scaling_takes_them(keys: dict[str, Any], reach: int | None) -> None:
    assert shape(**keys).max_positions == reach


def test_what_else_is_said_is_read() -> None:
    found = shape(torch_dtype="torch.bfloat16", quantization_config={"quant_method": "FBGEMM_fp8"}, auto_map={"a": "b"})
    assert (found.dtype, found.quantisation, found.has_own_code) == ("bfloat16", "fbgemm-fp8", True)
    outer = shape("gemma3", dtype="float16", text_config={"model_type": "gemma3_text", "dtype": "bfloat16", **SMALL})
    assert (outer.model_type, outer.text_type, outer.dtype) == ("gemma3", "gemma3_text", "float16")


DEEP = '{"model_type": "llama", "a": ' + "[" * 100_000 + "]" * 100_000 + "}"


@pytest.mark.parametrize(
    ("text", "code", "where"),
    [
        ("", "model-config-syntax", "c.json:1"),
        ("not json", "model-config-syntax", "c.json:1"),
        ('{"a": 1,\n}', "model-config-syntax", "c.json:2"),
        ("[1, 2]", "model-config-syntax", "c.json"),
        ("7", "model-config-syntax", "c.json"),
        ("null", "model-config-syntax", "c.json"),
        ('{"model_type": "llama", "num_hidden_layers": NaN}', "model-config-syntax", "c.json"),
        ('{"model_type": "llama", "num_hidden_layers": -Infinity}', "model-config-syntax", "c.json"),
        ('{"model_type": "llama", "num_hidden_layers": ' + "9" * 5000 + "}", "model-config-syntax", "c.json"),
        (DEEP, "model-config-syntax", "c.json"),
        ("{}", "model-config-value", "c.json: model_type"),
        ('{"model_type": null}', "model-config-value", "c.json: model_type"),
        ('{"model_type": 7}', "model-config-value", "c.json: model_type"),
        ('{"model_type": "llama", "text_config": 7}', "model-config-value", "c.json: text_config"),
        ('{"model_type": "llama", "text_config": {"num_hidden_layers": "9"}}', "model-config-value",
         "c.json: text_config.num_hidden_layers"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_has_one_problem_with_its_place(text: str, code: str, where: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_model(text, "c.json")
    assert caught.value.exit_code == 2
    assert [(one.code, one.where) for one in caught.value.problems] == [(code, where)]
    assert len(caught.value.problems[0].message) < 400


WRONG: list[tuple[str, Any]] = [
    (key, value)
    for key in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim")
    for value in ("32", "", -1, 0, 1 << 50, 2.5, True, [1], {"a": 1})
] + [
    ("num_hidden_layers", 10_001), ("num_attention_heads", 65_537), ("sliding_window", "9"), ("sliding_window", -1),
    ("layer_types", FULL), ("layer_types", [FULL]), ("layer_types", {}), ("dtype", 16), ("rope_scaling", [1]),
    ("rope_scaling", {"factor": "2"}), ("rope_scaling", {"factor": -2}), ("quantization_config", "fp8"),
    ("max_position_embeddings", "long"), ("vocab_size", -5), ("tie_word_embeddings", "yes"), ("intermediate_size", "x"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_value_that_cannot_be_is_named_with_its_key(key: str, value: Any) -> None:
    with pytest.raises(InputError) as caught:
        shape(**{"max_position_embeddings": 10, key: value})
    assert [(one.code, one.where) for one in caught.value.problems] == [
        ("model-config-value", f"m/config.json: {key}")
    ]  # fmt: skip


def test_every_wrong_value_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        shape(num_hidden_layers="6", hidden_size=-1, vocab_size=0)
    assert [one.where for one in caught.value.problems] == [
        f"m/config.json: {key}" for key in ("num_hidden_layers", "hidden_size", "vocab_size")
    ]  # fmt: skip


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([
    *SMALL, "model_type", "text_config", "layer_types", "layers_block_type", "sliding_window", "head_dim",
    "rope_scaling", "rope_parameters", "dtype", "kv_lora_rank", "attn_layer_period", "attn_layer_offset",
    "attn_layer_indices", "hybrid_override_pattern", "quantization_config", "multi_query", "tie_word_embeddings",
    "full_attention_interval",
])  # fmt: skip


@settings(deadline=None)  # the machine of a test may be busy
@given(
    st.sampled_from([one[1] for one in FAMILIES]), st.dictionaries(NAMES, ANYTHING, max_size=6),
    st.booleans(),
)  # fmt: skip
def test_no_content_ends_in_anything_but_a_shape_or_problems(model_type: str, keys: dict[str, Any], flat: bool) -> None:
    text = json.dumps({"model_type": model_type, **(SMALL if flat else {}), **keys})
    try:
        found = parse_model(text, "c")
    except InputError as error:
        assert all(one.code.startswith("model-config-") for one in error.problems)
    else:
        assert (found.cache is None) == (found.unsized is not None)
        assert found.layers is None or math.isfinite(found.layers)
