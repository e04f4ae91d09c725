"""Failures that others met before anything was built, as recipes and locks of ours: what `envsmith check` says.

The ids are those of facts/symptoms.md. What must not be said is held too.
"""

from __future__ import annotations

import pytest

from tests.unit.test_rules import HOOK, OFF, TOGGLE, VERL, cc, found, job, kinds, lock, locked, wheel

# --- D05, N02, D06: the driver and the CUDA that torch is built for ---


def test_d05_driver_470_does_not_run_a_build_for_cuda_12() -> None:
    (said,) = found(
        host='driver = "==470.86"\n' + cc("8.0"), requires='["torch==2.3.1"]', lock=locked(torch="2.3.1+cu121")
    )
    assert (said.kind, said.expected) == ("driver-too-old", ">=525")


def test_d05_the_compatibility_library_is_offered_where_one_exists() -> None:
    (said,) = found(host='driver = ">=470"', requires='["torch==2.10.0"]')
    assert "cuda-compat" in (said.hint or "")
    assert found(host='driver = ">=470"\ncuda-compat = "12.8"', requires='["torch==2.10.0"]') == ()


def test_n02_driver_535_runs_a_build_for_cuda_12_8() -> None:
    pinned = '["torch==2.10.0"]'
    assert found(host='driver = "==535.129.03"\n' + cc("8.0"), requires=pinned, lock=locked(torch="2.10.0+cu128")) == ()


def test_d06_a_torch_without_a_version_is_refused() -> None:
    said = found(host='driver = "==570.86.10"', requires='["torch", "torchaudio", "vllm>=0.12.0"]')
    assert kinds(said) == {"torch-unpinned"}


def test_d06_the_lock_shows_what_it_resolved_to() -> None:
    said = found(host='driver = "==570.86.10"', requires='["torch", "vllm>=0.12.0"]', lock=locked(torch="2.11.0"))
    assert kinds(said) == {"torch-unpinned", "driver-too-old"}


def test_d06_pinned_to_cuda_12_8_it_is_fine() -> None:
    assert found(host='driver = "==570.86.10"', requires='["torch==2.10.0"]', lock=locked(torch="2.10.0")) == ()


# --- D08, D09: old GPUs ---


def test_d08_a_v100_has_neither_bfloat16_nor_flash_attention() -> None:
    said = found(job(dtype="bfloat16", attention="flash_attention_2"), host=cc("7.0"))
    assert kinds(said) == {"bf16-unsupported", "flash-attention-unsupported"}
    assert "trainer and in the rollout engine" in " ".join(one.hint or "" for one in said)
    assert found(job(dtype="float16", attention="sdpa"), host=cc("7.0")) == ()


def test_d09_a_p40_is_refused_for_its_kernels_and_not_for_its_memory() -> None:
    said = found(job(dtype="bfloat16", attention="flash_attention_2", liger=True), host=cc("6.1"))
    assert kinds(said) == {"bf16-unsupported", "flash-attention-unsupported", "triton-unsupported"}
    words = " ".join(f"{one.message} {one.hint}" for one in said).lower()
    assert "out of memory" not in words and "reduce" not in words
    assert "49,152 bytes of shared memory" in words and "81,920" in words and "`float32`" in words
    assert found(job(dtype="float32", attention="eager"), host=cc("6.1")) == ()


@pytest.mark.parametrize(("attention", "kind"), [
    ("flash_attention_2", "flash-attention-unsupported"), ("flex_attention", "triton-unsupported"),
])  # fmt: skip
def test_d09_each_attention_of_large_kernels_is_named_with_both_sizes(attention: str, kind: str) -> None:
    (said,) = found(job(dtype="float32", attention=attention), host=cc("6.1"))
    assert said.kind == kind
    assert "49,152" in said.message and "81,920" in said.message
    assert said.hint is not None and said.hint.startswith("take `sdpa` or `eager`, with `float32`")


# --- D22, N03: room for Ray's sockets ---

SLURM = "/scratch/cluster/u0001/slurm_jobdir/1355700/tmp.t0016"


def test_d22_a_job_directory_of_slurm_is_too_long() -> None:
    (said,) = found(f'[env.a.launch.set]\nRAY_TMPDIR = "{SLURM}"')
    assert (said.kind, said.expected, said.actual) == ("socket-path-too-long", "at most 39 bytes", "53 bytes")
    assert "121 bytes" in said.message


@pytest.mark.parametrize(("size", "fine"), [(39, True), (40, False)])
def test_n03_exactly_107_bytes_are_fine(size: int, fine: bool) -> None:
    assert (found(f'[env.a.launch.set]\nRAY_TMPDIR = "/{"a" * (size - 1)}"') == ()) is fine


# --- D23: pyarrow 25 in an actor ---


def test_d23_pyarrow_25_is_refused_beside_ray_and_against_the_pin() -> None:
    one = locked(ray="2.56.1", vllm="0.18.0", pyarrow="25.0.0", numpy="1.26.4")
    said = found(f'constrain = ["pyarrow==24.0.0"]\n{HOOK}', lock=one, host='glibc = "2.31"')
    assert kinds(said) == {"known-bad-pin", "pin-not-locked"}
    assert "pyarrow==24.0.0" in " ".join(one.hint or "" for one in said)


def test_d23_without_ray_it_is_nobodys_business() -> None:
    assert found(lock=locked(pyarrow="25.0.0")) == ()


# --- D32: flash-attn for another torch ---


def test_d32_the_wheel_says_what_it_was_built_for() -> None:
    wheels = (
        wheel("torch", "2.8.0+cu128"),
        wheel("flash-attn", "2.8.3", "flash_attn-2.8.3+cu12torch2.7cxx11abiFALSE-cp311-cp311-linux_x86_64.whl"),
    )
    (said,) = found(requires='["torch==2.8.0"]', lock=lock(*wheels))
    assert (said.kind, said.expected, said.actual) == (
        "flash-attn-abi", "torch 2.8, C++11 ABI TRUE", "torch 2.7, C++11 ABI FALSE",
    )  # fmt: skip


# --- D34: the model type ---


@pytest.mark.parametrize(
    ("transformers", "fine"), [("5.0.0", False), ("4.57.6", False), ("5.2.0", True), ("5.3.0.dev0", True)]
)
def test_d34_transformers_must_know_the_model_type(transformers: str, fine: bool) -> None:
    said = found(
        job(model_type="qwen3_5"), lock=locked(transformers=transformers, vllm="0.18.0"), host='glibc = "2.31"'
    )
    assert (kinds(said) == set()) is fine
    assert kinds(said) <= {"model-type-unknown"}


def test_d34_the_models_own_configuration_says_its_type() -> None:
    """The case's config.json has a type and no sizes."""
    model = {"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"]}
    (said,) = found(model=model, lock=locked(transformers="5.0.0", vllm="0.18.0"), host='glibc = "2.31"')
    assert (said.kind, said.expected) == ("model-type-unknown", "transformers>=5.2")
    assert "CONFIG_MAPPING" not in said.message and "qwen3_5" in said.message
    fine = found(model=model, lock=locked(transformers="5.2.0", vllm="0.18.0"), host='glibc = "2.31"')
    assert fine == ()


# --- D35: the standard library ---


def test_d35_a_source_needs_a_newer_standard_library() -> None:
    code = {"verl/utils/tokenizer/continuous_token_wiring.py": "from enum import StrEnum\nclass A(StrEnum): pass\n"}
    (said,) = found(python="3.10", code=code)
    assert (said.kind, said.expected) == ("stdlib-too-old", "Python 3.11")
    assert said.subject.endswith("continuous_token_wiring.py:1")
    assert found(python="3.11", code=code) == ()


# --- D36: sleep mode ---


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF"])
def test_d36_sleep_mode_and_expandable_segments_exclude_each_other(name: str) -> None:
    body = job(sleep_mode=True) + f'[env.a.launch.set]\n{name} = "expandable_segments:True"'
    assert "expandable-segments-sleep-mode" in kinds(found(body))
    assert "expandable-segments-sleep-mode" not in kinds(found(body.replace("True", "False")))
    assert "expandable-segments-sleep-mode" not in kinds(found(body.replace("true", "false")))


# --- D38: a call at run time ---


def test_d38_the_environment_alone_does_not_hold() -> None:
    body = VERL + f'[env.a.launch.set]\nPYTORCH_CUDA_ALLOC_CONF = "{OFF}"\n'
    said = found(body, host='driver = ">=470"', code={"verl/workers/engine_workers.py": TOGGLE})
    assert [(one.kind, one.severity.value) for one in said] == [("allocator-toggled-in-code", "warning")]
    assert said[0].subject == "src/src/verl/workers/engine_workers.py:3"


def test_d38_a_current_driver_is_left_alone() -> None:
    assert found(host='driver = ">=570"', code={"verl/workers/engine_workers.py": TOGGLE}) == ()
