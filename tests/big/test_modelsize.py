"""The formulas of sizes against real models: tiny random ones of many families, and the cache that each really keeps.

ENVSMITH_TEST_TRANSFORMERS=PYTHON ENVSMITH_TEST_VLLM=PYTHON pytest --run-big tests/big/test_modelsize.py
The interpreters need torch and transformers, or vllm, and neither a device nor the network.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envsmith.modelshape import CacheShape, parse_model
from envsmith.modelsize import kv_cache_bytes, parameters

# Read when the module is loaded: every test runs as a stranger, without the variables of whoever runs it.
PYTHON = os.environ.get("ENVSMITH_TEST_TRANSFORMERS", "")
ENGINE = os.environ.get("ENVSMITH_TEST_VLLM", "")

pytestmark = pytest.mark.big
needs_models = pytest.mark.skipif(not PYTHON, reason="ENVSMITH_TEST_TRANSFORMERS names no interpreter")
needs_engine = pytest.mark.skipif(not ENGINE, reason="ENVSMITH_TEST_VLLM names no interpreter")

PLAIN = {
    "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 48, "vocab_size": 99,
    "intermediate_size": 40, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
OLD = {"n_layer": 5, "n_head": 4, "n_embd": 48, "vocab_size": 99, "n_positions": 64}
EXPERTS = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_local_experts": 4,
    "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "shared_expert_intermediate_size": 16,
}  # fmt: skip
LINEAR = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
WINDOW = {"sliding_window": 9}
DIM = {"head_dim": 20}
MAMBA = {
    "mamba_n_heads": 4, "mamba_d_head": 24, "mamba_expand": 2, "mamba_d_state": 8, "mamba_n_groups": 1,
    "mamba_d_ssm": 96,
}  # fmt: skip
#: Type to the keys of a tiny model.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {**PLAIN},
    "llama/dim": {**PLAIN, **DIM},
    "llama/mha": {**PLAIN, "num_key_value_heads": None},
    "phi": {**PLAIN},
    "arcee": {**PLAIN},
    "cohere": {**PLAIN},
    "granite": {**PLAIN},
    "granitemoe": {**PLAIN, **EXPERTS},
    "olmo": {**PLAIN},
    "olmo2": {**PLAIN},
    "olmoe": {**PLAIN, **EXPERTS},
    "hunyuan_v1_dense": {**PLAIN, **DIM},
    "nanochat": {**PLAIN},
    "flex_olmo": {**PLAIN, **EXPERTS},
    "apertus": {**PLAIN},
    "stablelm": {**PLAIN, "hidden_size": 64},
    "mistral": {**PLAIN, **WINDOW},
    "mistral/none": {**PLAIN, "sliding_window": None},
    "ministral3": {**PLAIN, **DIM},
    "mixtral": {**PLAIN, **EXPERTS},
    "phimoe": {**PLAIN, **EXPERTS},
    "phi3": {**PLAIN, **WINDOW},
    "starcoder2": {**PLAIN, **WINDOW},
    "qwen2": {**PLAIN},
    "qwen2/window": {**PLAIN, **WINDOW, "use_sliding_window": True, "max_window_layers": 5},
    "qwen2_moe": {**PLAIN, **EXPERTS},
    "qwen3": {**PLAIN, **DIM},
    "qwen3/window": {**PLAIN, **DIM, **WINDOW, "use_sliding_window": True, "max_window_layers": 3},
    "qwen3_moe": {**PLAIN, **EXPERTS, **DIM},
    "qwen3_moe/window": {**PLAIN, **EXPERTS, **DIM, **WINDOW, "use_sliding_window": True},
    "smollm3": {**PLAIN},
    "qwen3_next": {**PLAIN, **EXPERTS, **LINEAR, **DIM},
    "qwen3_5_text": {**PLAIN, **LINEAR, **DIM},
    "qwen3_5_moe_text": {**PLAIN, **EXPERTS, **LINEAR, **DIM},
    "gemma": {**PLAIN, **DIM},
    "gemma2": {**PLAIN, **DIM, **WINDOW},
    "gemma3_text": {**PLAIN, **DIM, **WINDOW},
    "cohere2": {**PLAIN, **WINDOW},
    "olmo3": {**PLAIN, **WINDOW},
    "gpt_oss": {**PLAIN, **EXPERTS, **DIM, **WINDOW},
    "glm": {**PLAIN, **DIM},
    "glm4": {**PLAIN, **DIM},
    "glm4_moe": {**PLAIN, **EXPERTS, **DIM},
    "seed_oss": {**PLAIN, **DIM},
    "minimax_m2": {**PLAIN, **EXPERTS, **DIM},
    "ernie4_5": {**PLAIN, **DIM},
    "ernie4_5_moe": {**PLAIN, **EXPERTS},
    "falcon_h1": {**PLAIN, **MAMBA},
    "jamba": {**PLAIN, **EXPERTS, "attn_layer_period": 3, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "minimax": {**PLAIN, **EXPERTS},
    "lfm2": {**PLAIN, "layer_types": ["conv", "full_attention"] * 4},
    "granitemoehybrid": {**PLAIN, **EXPERTS, **MAMBA, "layer_types": ["mamba", "attention"] * 4},
    "bamba": {**PLAIN, **MAMBA, "attn_layer_indices": [1, 4, 6]},
    "nemotron_h": {
        **{name: value for name, value in PLAIN.items() if name != "num_hidden_layers"}, **EXPERTS, **DIM,
        "layers_block_type": ["mamba", "attention", "mlp", "attention"], "mamba_num_heads": 4, "mamba_head_dim": 24,
        "ssm_state_size": 8, "n_groups": 1, "expand": 2,
    },
    "gpt2": OLD,
    "gptj": {**OLD, "rotary_dim": 4},
    "codegen": {**OLD, "rotary_dim": 4},
    "bloom": {"n_layer": 5, "n_head": 4, "hidden_size": 48, "vocab_size": 99},
    "opt": {**{name: value for name, value in PLAIN.items() if name != "num_key_value_heads"},
            "ffn_dim": 40, "word_embed_proj_dim": 48},
    "gpt_neox": {name: value for name, value in PLAIN.items() if name != "num_key_value_heads"},
    "mpt": {"n_layers": 5, "n_heads": 4, "d_model": 48, "vocab_size": 99, "max_seq_len": 64},
    "ctrl": {**OLD, "dff": 40},
    "biogpt": {name: value for name, value in PLAIN.items() if name != "num_key_value_heads"},
    "persimmon": {name: value for name, value in PLAIN.items() if name != "num_key_value_heads"},
    "gpt_bigcode": OLD,
    "gpt_bigcode/mha": {**OLD, "multi_query": False},
    "falcon": {"num_hidden_layers": 5, "num_attention_heads": 4, "hidden_size": 48, "vocab_size": 99},
    "falcon/mha": {"num_hidden_layers": 5, "num_attention_heads": 4, "hidden_size": 48, "vocab_size": 99,
                   "multi_query": False},
}  # fmt: skip
#: Under multi-head latent attention transformers keeps keys and values of every head; engines keep the latent.
LATENT: dict[str, dict[str, Any]] = {
    name: {
        **PLAIN, **EXPERTS, "num_key_value_heads": 4, "kv_lora_rank": 12, "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8, "v_head_dim": 8, "q_lora_rank": 12, "first_k_dense_replace": 1,
    }
    for name in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")
}  # fmt: skip
SHORT, LONG, SEQUENCES = 6, 21, 3


def measured(python: str, script: str, jobs: list[dict[str, Any]]) -> list[Any]:
    path = Path(__file__).parents[1] / "support" / script
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}
    environ.pop("PYTHONPATH", None)
    done = subprocess.run(
        [python, "-B", "-W", "ignore", str(path)], input=json.dumps(jobs), env=environ, capture_output=True,
        text=True, check=True, timeout=900,
    )  # fmt: skip
    return list(json.loads(done.stdout))


@pytest.fixture(scope="module")
def answers() -> dict[tuple[str, int], dict[str, Any]]:
    asked = [(name, tokens) for name in (*MODELS, *LATENT) for tokens in (SHORT, LONG)]
    keys = {**MODELS, **LATENT}
    jobs = [
        {"type": name.partition("/")[0], "keys": keys[name], "tokens": tokens, "sequences": SEQUENCES}
        for name, tokens in asked
    ]
    return dict(zip(asked, measured(PYTHON, "measure_cache.py", jobs), strict=True))


@needs_models
@pytest.mark.parametrize("tokens", [SHORT, LONG])
@pytest.mark.parametrize("name", MODELS)
def test_the_formula_is_what_a_model_keeps(
    name: str, tokens: int, answers: dict[tuple[str, int], dict[str, Any]]
) -> None:
    answer = answers[name, tokens]
    assert "error" not in answer, answer["error"]
    for config in (answer["config"], answer["whole"]):
        cache = parse_model(json.dumps(config), "config.json").cache
        assert cache is not None
        size = kv_cache_bytes(cache, tokens=tokens, sequences=SEQUENCES, element_bytes=4)
        # A window of transformers' own cache leaves room for the token that comes next.
        if cache.window is not None and tokens >= cache.window:
            size -= SEQUENCES * cache.window_layers * 2 * cache.kv_heads * cache.head_dim * 4
        assert size == answer["bytes"]


@needs_models
@pytest.mark.parametrize("name", LATENT)
def test_the_latent_is_what_stands_for_the_heads(name: str, answers: dict[tuple[str, int], dict[str, Any]]) -> None:
    answer = answers[name, LONG]
    assert "error" not in answer, answer["error"]
    keys = LATENT[name]
    cache = parse_model(json.dumps(answer["config"]), "config.json").cache
    assert cache is not None
    elements = answer["bytes"] // (4 * SEQUENCES * LONG * PLAIN["num_hidden_layers"])
    assert elements == keys["num_attention_heads"] * (
        keys["qk_nope_head_dim"] + keys["qk_rope_head_dim"] + keys["v_head_dim"]
    )
    assert cache.latent == keys["kv_lora_rank"] + keys["qk_rope_head_dim"]


@needs_models
@pytest.mark.parametrize("name", [name for name in MODELS if "/" not in name])
def test_an_estimate_of_parameters_is_near(name: str, answers: dict[tuple[str, int], dict[str, Any]]) -> None:
    answer = answers[name, SHORT]
    counted = parameters(parse_model(json.dumps(answer["whole"]), "config.json"))
    if counted is not None:
        assert abs(counted - answer["parameters"]) <= 0.02 * answer["parameters"]


@needs_engine
def test_a_page_of_vllm_is_what_the_formula_gives_for_its_tokens() -> None:
    asked = [
        {"tokens": 16, "kv_heads": heads, "head_dim": dim, "element_bytes": element, "is_latent": is_latent}
        for heads in (1, 2, 8)
        for dim in (64, 128, 256, 576)
        for element in (1, 2, 4)
        for is_latent in (False, True)
        if not is_latent or heads == 1
    ]
    for one, page in zip(asked, measured(ENGINE, "measure_pages.py", asked), strict=True):
        latent = one["head_dim"] if one["is_latent"] else None
        cache = CacheShape(kv_heads=one["kv_heads"], head_dim=one["head_dim"], full_layers=1, latent=latent)
        size = kv_cache_bytes(cache, tokens=16, sequences=1, element_bytes=one["element_bytes"])
        assert (one, size) == (one, page)
