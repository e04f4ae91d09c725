"""Facts from training configurations: what is said counts, nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from envsmith.errors import InputError
from envsmith.jobconfig import JobFacts, parse
from envsmith.recipe import Job

SFT = """
### model
model_name_or_path: some/model
trust_remote_code: true
stage: sft
bf16: true
flash_attn: sdpa
packing: false
enable_liger_kernel: true
deepspeed: examples/deepspeed/ds_z3_offload_config.json
learning_rate: 1.0e-5
"""
ZERO3 = (
    '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "none"}}}'
)
GRPO = """
# one task, two answers
data.train_batch_size=8
actor_rollout_ref.model.use_remove_padding=False \\
+actor_rollout_ref.model.override_config.attn_implementation=sdpa
actor_rollout_ref.actor.ppo_mini_batch_size=4
actor_rollout_ref.actor.use_dynamic_bsz=False
actor_rollout_ref.actor.fsdp_config.param_offload=True
actor_rollout_ref.actor.fsdp_config.optimizer_offload=True
actor_rollout_ref.ref.fsdp_config.param_offload=False
actor_rollout_ref.model.use_fused_kernels=false
actor_rollout_ref.rollout.tensor_model_parallel_size=2
actor_rollout_ref.rollout.dtype=bfloat16
++actor_rollout_ref.rollout.enable_sleep_mode=False
actor_rollout_ref.rollout.free_cache_engine=True
'data.train_files=["a.parquet", "b.parquet"]'
trainer.logger="console"
~trainer.x
"""


def values(text: str, name: str = "job.txt") -> dict[str, Any]:
    return dict(parse(text, name).values)


def codes(text: str, name: str) -> list[tuple[str, str | None]]:
    with pytest.raises(InputError) as raised:
        parse(text, name)
    return [(problem.code, problem.where) for problem in raised.value.problems]


def test_a_llamafactory_file_is_read() -> None:
    facts = parse(SFT, "sft.yaml")
    assert facts.values == {
        "dtype": "bfloat16", "attention": "sdpa", "packing": False, "liger": True, "model": "some/model",
    }  # fmt: skip
    assert facts.deepspeed == "examples/deepspeed/ds_z3_offload_config.json"
    assert facts.said_by["dtype"] == "sft.yaml: bf16"


def test_its_deepspeed_file_adds_to_it() -> None:
    facts = parse(SFT, "sft.yaml").with_deepspeed(ZERO3, "ds.json")
    assert facts.values["zero_stage"] == 3
    assert (facts.values["optimizer_offload"], facts.values["cpu_offload"]) == (True, False)
    assert facts.said_by["optimizer_offload"] == "ds.json: zero_optimization.offload_optimizer"


def test_a_deepspeed_table_may_stand_in_the_file() -> None:
    facts = parse(f"bf16: true\ndeepspeed: {ZERO3}\n", "sft.yaml")
    assert (facts.values["zero_stage"], facts.deepspeed) == (3, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fp16: true", {"dtype": "float16"}),
        ("bf16: false\nfp16: false", {"dtype": "float32"}),
        ("bf16: false", {}),
        ("flash_attn: fa2", {"attention": "flash_attention_2"}),
        ("flash_attn: disabled", {"attention": "eager"}),
        ("flash_attn: auto", {}),
        ("packing: false\nneat_packing: true", {"packing": True}),
        ("fsdp: full_shard auto_wrap offload", {"cpu_offload": True}),
        ("model_name_or_path: models/small", {"model": "models/small"}),
        ("model_name_or_path: [1]", {}),
        ("quantization_bit: 4", {"quantised_load": True}),
        ("quantization_bit: null", {}),
    ],
)
def test_each_key_of_llamafactory_says_one_thing(text: str, expected: dict[str, Any]) -> None:
    assert values(text, "sft.yaml") == expected


def test_a_list_of_overrides_is_read() -> None:
    assert values(GRPO) == {
        "train_batch_size": 8, "remove_padding": False, "attention": "sdpa", "mini_batch_size": 4,
        "dynamic_batch": False, "cpu_offload": True, "optimizer_offload": True, "fused_kernels": False,
        "tensor_parallel": 2, "dtype": "bfloat16", "sleep_mode": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("actor_rollout_ref.model.path=~/models/small", {"model": "~/models/small"}),
        ("actor_rollout_ref.model.path=$MODEL", {}),
        ("+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype=fp8", {"kv_cache_dtype": "fp8"}),
        ("+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype=int3", {}),
    ],
)
def test_the_model_and_the_format_of_its_cache_are_read(text: str, expected: dict[str, Any]) -> None:
    assert values(text) == expected


def test_the_list_that_hydra_writes_is_read_too() -> None:
    assert values("- data.train_batch_size=1\n- +a.b=c\n", "overrides.yaml") == {"train_batch_size": 1}


BOTH = {"train_batch_size": 1, "dynamic_batch": True}


def test_a_resolved_configuration_says_the_same() -> None:
    text = "actor_rollout_ref:\n  model: {use_fused_kernels: true, path: x}\ndata: {train_batch_size: 1, seed: null}\n"
    said = {"fused_kernels": True, "train_batch_size": 1}
    assert values(text, "config.yaml") == {**said, "model": "x"}
    assert values("actor_rollout_ref.model.use_fused_kernels: true\ndata.train_batch_size: 1\n", "a.yaml") == said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data.train_batch_size=1 data.x=2 actor_rollout_ref.actor.use_dynamic_bsz=True \\", BOTH),
        ("data.train_batch_size=1   # don't", {"train_batch_size": 1}),
        ("'data.train_batch_size=1' \"+a.b=c d\"", {"train_batch_size": 1}),
        ("trainer.name=my run", {}),
        ("\ufeffdata.train_batch_size=1", {"train_batch_size": 1}),
        ("data.train_batch_size=1\n~data.train_batch_size=1", {}),
        ("~actor_rollout_ref.actor.use_dynamic_bsz=True", {}),
        ("data.train_batch_size=" + "9" * 5000, {}),
    ],
)
def test_a_line_is_read_as_a_shell_and_hydra_would(text: str, expected: dict[str, Any]) -> None:
    assert values(text) == expected


def test_json_may_be_indented_with_tabs() -> None:
    text = '{\n\t"bf16": true,\n\t"packing": true\n}\n'
    assert values(text, "job.json") == {"dtype": "bfloat16", "packing": True}
    assert codes('{"a": 1,\n}', "job.json") == [("job-config-syntax", "job.json:2")]


def test_fsdp_may_be_a_list_and_aliases_are_not_spelled_out() -> None:
    assert values("fsdp: [full_shard, offload]", "a.yaml") == {"cpu_offload": True}
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    assert values(f"{bomb}flash_attn: *a11\nfsdp: *a11\n", "a.yaml") == {}


@pytest.mark.parametrize(
    "text",
    [
        "data.train_batch_size=$BATCH",
        "data.train_batch_size=${oc.env:BATCH}",
        "actor_rollout_ref.model.use_remove_padding=${x}",
        "other.use_remove_padding=True",
        "actor_rollout_ref.rollout.dtype=mystery",
        "",
    ],
)
def test_what_is_decided_elsewhere_is_no_fact(text: str) -> None:
    assert values(text) == {}


def test_the_part_that_says_more_wins_whatever_the_order() -> None:
    on = "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True"
    off = "actor_rollout_ref.actor.use_dynamic_bsz=False"
    assert values(f"{on}\n{off}") == values(f"{off}\n{on}") == {"dynamic_batch": True}
    assert values("critic.ppo_mini_batch_size=1\nactor_rollout_ref.actor.ppo_mini_batch_size=8") == {
        "mini_batch_size": 1
    }


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("a: [1", "x.yaml", [("job-config-syntax", "x.yaml:1")]),
        ("just words", "x.yaml", [("job-config-syntax", "x.yaml")]),
        ("a: b: c", "x.yml", [("job-config-syntax", "x.yml:1")]),
        ("- 1\n- 2", "x.yaml", [("job-config-syntax", "x.yaml")]),
        ("data.train_batch_size=8\npython3 -m x", "x.sh", [("job-config-syntax", "x.sh:2")]),
        ("a b\nc d", "x", [("job-config-syntax", "x:1"), ("job-config-syntax", "x:2")]),
        ("data.train_batch_size=0", "x", [("job-config-value", "x")]),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, name: str, expected: list[tuple[str, str]]) -> None:
    assert codes(text, name) == expected


def test_facts_lie_over_the_recipe_and_leave_the_rest() -> None:
    job = JobFacts(values={"liger": True}).over(Job.model_validate({"dtype": "float16", "liger": False}))
    assert (job.dtype, job.liger) == ("float16", True)
