"""What programs say at their start is held against what a recipe states."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from envsmith.data import table
from envsmith.diagnosis import read_run
from envsmith.logs.lines import LogFile
from envsmith.recipe import Job
from envsmith.report import Severity
from envsmith.startup import HEAD_BYTES, KEPT, TOPICS, Confirmer, Said, judge_confirmations, wordings

ENGINE = (
    "(EngineCore pid=7) INFO 06-06 03:09:30 [core.py:104] Initializing a V1 LLM engine (v0.18.0) with config: "
    "model='/m', speculative_config=None, dtype={dtype}, max_seq_len=32768, tensor_parallel_size={tp}, "
    "pipeline_parallel_size=1, kv_cache_dtype=auto, seed=0\n"
)
ZERO = "[2026-11-30 12:00:00,000] [INFO] [config.py:959:print]   zero_config .................. stage=3 "
OFFLOADED = "DeepSpeedZeroOffloadOptimizerConfig(device="
HF = "[INFO|2026-11-30 21:38:55] llamafactory.model:144 >> "
SAYINGS = [
    ("attention", "flash_attention_2", HF + "Using FlashAttention-2 for faster training and inference."),
    ("attention", "sdpa", HF + "Using torch SDPA for faster training and inference."),
    ("attention", "eager", "Using vanilla attention implementation."),
    ("attention", "flash_attention_2", "You are attempting to use Flash Attention 2 without specifying a dtype."),
    ("attention", "flash_attention_2", " 'override_config': {'attn_implementation': 'flash_attention_2'},"),
    ("engine-attention", "FLASH_ATTN", "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN']."),
    ("engine-attention", "FLASH_ATTN", "Using AttentionBackendEnum.FLASH_ATTN backend."),
    ("engine-attention", "Flash Attention", "INFO 11-30 12:00:00 [cuda.py:87] Using Flash Attention backend."),
    ("engine-attention", "XFormers", "(W pid=4) INFO 07-02 05:17:22 selector.py:53] Using XFormers backend."),
    ("engine-attention", "Flash Attention", "Using Flash Attention backend on V1 engine."),
    ("dtype", "bfloat16", ENGINE.format(dtype="torch.bfloat16", tp=2)),
    ("dtype", "float16", "WARNING 11-30 12:00:00 [model.py:1920] Casting torch.bfloat16 to torch.float16."),
    ("dtype", "bfloat16", "Downcasting torch.float32 to torch.bfloat16."),
    ("dtype", "bfloat16", "Process rank: 0, world size: 1, device: cuda:0, compute dtype: torch.bfloat16"),
    ("tensor-parallel", "2", ENGINE.format(dtype="torch.bfloat16", tp=2)),
    ("tensor-parallel", "2", "(TaskRunner pid=3)                       'tensor_model_parallel_size': 2,"),
    ("optimizer-offload", "true", "Adam Optimizer #0 is created with AVX512 arithmetic capability."),
    ("optimizer-offload", "false", "[INFO] [stage_1_and_2.py:189:__init__] CPU Offload: False"),
    ("optimizer-offload", "true", ZERO + f"offload_optimizer={OFFLOADED}'cpu', ratio=1.0)"),
    ("optimizer-offload", "true", ZERO + f"offload_optimizer={OFFLOADED}<OffloadDeviceEnum.cpu: 'cpu'>)"),
    ("optimizer-offload", "false", ZERO + "offload_optimizer=None zenflow=None"),
    ("optimizer-offload", "true", "(TaskRunner pid=3)    'optimizer_offload': True,"),
    ("parameter-offload", "false", ZERO + "offload_param=None offload_optimizer=None"),
    ("parameter-offload", "true", "(TaskRunner pid=3)    'param_offload': True,"),
    ("parameter-offload", "true", "cpu_offload=CPUOffload(offload_params=True)"),
    ("sleep-mode", "true", "non-default args: {'model': 'm', 'enable_sleep_mode': True}"),
    ("sleep-mode", "true", "It took 1.234567 seconds to fall asleep."),
    ("expandable-segments", "false", "Warning: expandable_segments not supported on this platform"),
    ("expandable-segments", "true", "+ export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
    ("expandable-segments", "true", "{'env_vars': {'PYTORCH_CUDA_ALLOC_CONF': 'expandable_segments:True'}}"),
    ("liger", "true", HF + "Liger kernel has been applied to the model."),
]  # fmt: skip


def heard(log: str) -> tuple[Said, ...]:
    confirmer = Confirmer(file="rank0.log")
    confirmer.tap(log.encode(), 1)
    return confirmer.said()


def job(**keys: object) -> Job:
    return Job(**{key.replace("_", "-"): value for key, value in keys.items()})


@pytest.mark.parametrize(("topic", "value", "line"), SAYINGS)
def test_what_a_program_says_is_heard(topic: str, value: str, line: str) -> None:
    said = [one for one in heard(f"noise\n{line}") if one.topic == topic]
    assert said
    assert value in said[0].values
    assert (said[0].file, said[0].line) == ("rank0.log", 2)


def test_every_wording_that_ships_is_shown_and_has_its_source() -> None:
    shown = {(one.topic, one.program, one.text) for _, _, line in SAYINGS for one in heard(line)}
    for row in wordings():
        assert any(
            (topic, program) == (row.topic, row.program) and row.match.search(text) for topic, program, text in shown
        ) or any(row.has.decode() in line and row.match.search(line) for _, _, line in SAYINGS), row
    assert {row.topic for row in wordings()} == set(TOPICS)
    assert all(row["source"] for row in table("confirmations")["confirmation"])


@pytest.mark.parametrize(
    "line",
    [
        "compute dtype: None",
        "[get_mxfp4_backend_with_lora] Using Triton",
        "Using Transformers modeling backend.",
        "Using custom backend: inductor",
        "kv_cache_dtype=fp8 dtype=torch.float16",
        "'decode_tensor_model_parallel_size': 4",
        "'enable_activation_offload': True",
        "loading the Adam Optimizer #0",
        "reserved memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation",
        "Detected ZeRO Offload and non-DeepSpeed optimizers: offloaded parameters say so too",
    ],
)
def test_what_only_looks_like_it_is_not_heard(line: str) -> None:
    assert heard(line) == ()


@pytest.mark.parametrize(
    ("log", "stated", "topic", "state"),
    [
        (ENGINE.format(dtype="torch.bfloat16", tp=2), {"tensor_parallel": 2}, "tensor-parallel", "as-expected"),
        (ENGINE.format(dtype="torch.bfloat16", tp=1), {"tensor_parallel": 2}, "tensor-parallel", "other"),
        ("hello\n", {"tensor_parallel": 2}, "tensor-parallel", "absent"),
        (ENGINE.format(dtype="torch.float16", tp=1), {"dtype": "bfloat16"}, "dtype", "other"),
        ("Using torch SDPA for faster training and inference.", {"attention": "sdpa"}, "attention", "as-expected"),
        ("Using torch SDPA for faster training and inference.", {"attention": "eager"}, "attention", "other"),
        ("Using vanilla attention implementation.", {"attention": "eager"}, "attention", "as-expected"),
        ("Using Flash Attention backend.", {"attention": "sdpa"}, "attention", "absent"),
        ("Adam Optimizer #0 is created with AVX2 arithmetic capability.", {"optimizer_offload": True},
         "optimizer-offload", "as-expected"),
        ("Adam Optimizer #0 is created with AVX2 arithmetic capability.", {"optimizer_offload": False},
         "optimizer-offload", "other"),
        (ZERO + "offload_param=None offload_optimizer=None\n", {"cpu_offload": True}, "parameter-offload", "other"),
    ],
)  # fmt: skip
def test_a_recipe_is_confirmed_contradicted_or_left_open(
    log: str, stated: dict[str, object], topic: str, state: str
) -> None:
    (one,) = judge_confirmations(heard(log), job(**stated))
    assert (one.topic, one.state) == (topic, state)
    assert one.severity is (Severity.ERROR if state == "other" else Severity.NOTE)
    assert (one.said is None) == (state == "absent")


def test_what_a_recipe_does_not_state_is_not_asked_for() -> None:
    log = ENGINE.format(dtype="torch.float16", tp=8)
    assert judge_confirmations(heard(log), Job()) == ()
    assert judge_confirmations(heard(log), job(dtype="auto")) == ()


def test_the_answer_names_the_line_and_the_words() -> None:
    (one,) = judge_confirmations(heard("a\n" + ENGINE.format(dtype="torch.float16", tp=2)), job(dtype="bfloat16"))
    assert one.message == '`rank0.log:2`: vLLM says `dtype=torch.float16`, the recipe `dtype = "bfloat16"`'


def test_one_engine_of_several_may_be_the_one_that_is_meant() -> None:
    log = ENGINE.format(dtype="torch.bfloat16", tp=1) + ENGINE.format(dtype="torch.bfloat16", tp=2)
    assert [one.state for one in judge_confirmations(heard(log), job(tensor_parallel=2))] == ["as-expected"]
    assert [one.state for one in judge_confirmations(heard(log), job(tensor_parallel=4))] == ["other"]


def test_what_a_program_does_counts_more_than_what_it_was_asked_for() -> None:
    log = "'tensor_model_parallel_size': 2\n" + ENGINE.format(dtype="torch.bfloat16", tp=1)
    assert [one.state for one in judge_confirmations(heard(log), job(tensor_parallel=2))] == ["other"]
    assert [one.state for one in judge_confirmations(heard(log.splitlines()[0]), job(tensor_parallel=2))] == [
        "as-expected"
    ]


def test_two_programs_must_both_say_what_is_expected() -> None:
    log = "compute dtype: torch.bfloat16\n" + ENGINE.format(dtype="torch.float16", tp=1)
    (one,) = judge_confirmations(heard(log), job(dtype="bfloat16"))
    assert (one.state, one.said and one.said.program) == ("other", "vLLM")


def test_a_log_that_repeats_itself_is_kept_in_part_and_only_its_head_is_read() -> None:
    assert len(heard("It took 1.0 seconds to fall asleep.\n" * 100)) == KEPT
    confirmer = Confirmer(file="a")
    confirmer._read = HEAD_BYTES
    confirmer.tap(b"Using torch SDPA for faster training and inference.\n", 1)
    assert confirmer.said() == ()


def test_a_confirmer_listens_in_the_pass_that_diagnoses() -> None:
    confirmer = Confirmer(file="a.log")
    log = b"noise\n" * 100_000 + b"Using torch SDPA for faster training and inference.\n"
    read_run([LogFile(name="a.log", pieces=[log])], lambda place: (confirmer.tap,))
    assert [(one.line, one.text) for one in confirmer.said()] == [(100_001, "Using torch SDPA")]


def test_the_page_has_every_key_that_is_asked_for() -> None:
    page = (Path(__file__).parents[2] / "docs" / "training-logs.md").read_text().split("## What programs")[1]
    keys = {key.replace("_", "-") for key in TOPICS.values() if key is not None}
    assert {*re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)} == keys | {"as-expected", "other", "absent"}
