"""Rules about the job: settings that exclude each other, or fail with the versions of the env."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.specifiers import SpecifierSet

from envsmith.report import Finding, Severity
from envsmith.rules.situation import Situation, found, is_vendor_build
from envsmith.rules.tables import model_types

_CPU_ADAM = "deepspeed/ops/adam/cpu_adam.py"


def fused_kernels(s: Situation) -> Iterator[Finding]:
    """Offloaded parameters and fused logits kernels mix CPU and CUDA tensors in the first step."""
    if s.job.cpu_offload and s.job.fused_kernels:
        yield found(
            "offload-with-fused-kernels",
            s.job_key("fused_kernels"),
            "parameters are offloaded to the host and fused kernels are on: the first step mixes CPU and CUDA tensors",
            hint="switch fused kernels off, in VERL `actor_rollout_ref.model.use_fused_kernels=False`",
        )


def packed_sequences(s: Situation) -> Iterator[Finding]:
    """Qwen3.5's linear attention fails on packed sequences at this VERL, and on batches of one."""
    if not s.is_this_verl() or not (s.job.model_type or "").startswith("qwen3_5"):
        return
    if s.job.remove_padding:
        yield _packed(s, "remove_padding", "remove-padding packs sequences", "False")
    elif s.job.remove_padding is None:
        yield found(
            "packed-sequences",
            s.job_key("remove_padding"),
            "qwen3_5 fails on packed sequences at this VERL, and VERL removes padding unless it is told not to",
            severity=Severity.WARNING,
            hint="set `remove-padding = false`, and `actor_rollout_ref.model.use_remove_padding=False` in the job",
        )
    if s.job.dynamic_batch:
        yield _packed(s, "dynamic_batch", "dynamic batches pack sequences", "False")
    for name, size in (("train_batch_size", s.job.train_batch_size), ("mini_batch_size", s.job.mini_batch_size)):
        if size is not None and size < 2:
            yield _packed(s, name, f"{name.replace('_', '-')} is {size}", "2 or more")


def _packed(s: Situation, name: str, words: str, expected: str) -> Finding:
    return found(
        "packed-sequences",
        s.job_key(name),
        f"{words}, which fails for `{s.job.model_type}` at this VERL",
        expected=expected,
        hint="switch remove-padding and dynamic batches off, and keep train batch and mini-batch at 2 or more",
    )


def padding_helpers(s: Situation) -> Iterator[Finding]:
    """VERL's unpadding imports `flash_attn.bert_padding`, whatever the attention backend is."""
    if s.is_this_verl() and s.job.remove_padding and s.lock is not None and not s.has("flash-attn"):
        yield found(
            "padding-needs-flash-attn",
            s.job_key("remove_padding"),
            "without padding VERL imports flash_attn.bert_padding, and flash-attn is not in the env",
            hint="set `remove-padding = false`, or bring flash-attn in",
        )


def cpu_adam(s: Situation) -> Iterator[Finding]:
    """DeepSpeed's CPU Adam cannot resume from another Adam's checkpoint; no release has a fix (0.18.2 to 0.19.8)."""
    if not s.job.optimizer_offload or not s.has("deepspeed"):
        return
    if not any(path.endswith(_CPU_ADAM) for path in s.touched.get("deepspeed", ())):
        yield found(
            "cpu-adam-unpatched",
            s.key("patch"),
            "the optimizer is on the CPU: a resume from another Adam's checkpoint ends in KeyError `bias_correction`",
            expected=f"a series that patches {_CPU_ADAM}",
            hint='patch deepspeed: `series = ["deepspeed-0.18.4/cpu-adam.series"]`, or its like for your release',
        )


def trl_sleep(s: Situation) -> Iterator[Finding]:
    """With TRL 0.26 and vLLM 0.11 processes died in destructors after the last step."""
    trl, vllm = s.version("trl"), s.version("vllm")
    if s.job.sleep_mode and trl and vllm and trl in SpecifierSet("==0.26.*") and vllm in SpecifierSet("==0.11.*"):
        yield found(
            "sleep-mode-crash",
            s.job_key("sleep_mode"),
            f"with sleep mode, TRL {trl} and vLLM {vllm} crash when they exit",
            hint="set `sleep-mode = false`, in TRL `vllm_enable_sleep_mode: false`",
        )


def liger(s: Situation) -> Iterator[Finding]:
    """Liger 0.8.1 failed to serialise in one three-step ZeRO-3 smoke, at a place that was not recorded."""
    version = s.version("liger-kernel")
    if s.job.liger and s.job.zero_stage == 3 and version and version.base_version == "0.8.1":
        yield found(
            "liger-serialization",
            s.job_key("liger"),
            "Liger 0.8.1 failed to serialise in a short ZeRO-3 run, at a place nobody recorded",
            severity=Severity.NOTE,
            hint="prove a save before a long run, or switch Liger off",
        )


def model_type(s: Situation) -> Iterator[Finding]:
    """Trainer and engine must both know the model's architecture."""
    has_row = any((one.subject, one.package) == (s.job.model_type, "transformers") for one in model_types())
    for floor in model_types():
        version = s.version(floor.package)
        if s.job.model_type != floor.subject or version is None or is_vendor_build(version):
            continue
        if not floor.versions.contains(version, prereleases=True):
            yield found(
                "model-type-unknown",
                s.job_key("model_type"),
                f"{floor.package} {version} does not know the model type `{floor.subject}`",
                expected=f"{floor.package}{floor.versions}",
                actual=str(version),
                hint="take one that knows it; where a package forbids that, `override` it and accept the conflict",
            )
    if not has_row:
        yield from _unknown_type(s)


def _unknown_type(s: Situation) -> Iterator[Finding]:
    """A type that the table does not have is looked up in the locked transformers itself, where its wheel is here."""
    named, known = s.job.model_type, s.known_types
    if named is None or known is None or named in known or (s.model and s.model.shape.has_own_code):
        return
    yield found(
        "model-type-unknown",
        s.job_key("model_type"),
        f"transformers {s.version('transformers')} does not know the model type `{named}`",
        # vllm brings configurations of its own for some models.
        severity=Severity.WARNING if s.has("vllm") else Severity.ERROR,
        expected=f"`{named}` among its model types",
        actual=f"{len(known)} others",
        hint="lock a release of transformers that knows it, or take the model's own code",
    )


def attention(s: Situation) -> Iterator[Finding]:
    """A literal backend in the code beats the configuration, for that part of the model alone."""
    low = next(iter(s.capabilities()), (99, 0))
    if s.job.attention not in ("sdpa", "eager", "flex_attention") and low >= (8, 0):
        return
    for name, facts in s.sources.items():
        for site in facts.attention if facts else ():
            yield found(
                "attention-hard-coded",
                f"src/{name}/{site.place}",
                f"`flash_attention_2` is hard-coded, and the job says `{s.job.attention or 'nothing'}`",
                hint="patch it to follow the configuration; for VERL 1bf9d2d the series in `patches/verl-1bf9d2d` do",
            )
