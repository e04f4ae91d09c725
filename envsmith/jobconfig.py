"""Facts of a job from its training configuration: a LLaMA-Factory YAML file, or a list of Hydra overrides for VERL.

Only what is said counts: a default of the framework is no fact, nor is a value that is put together at run time.
The keys are those of LLaMA-Factory 0.9.5 and of VERL 1bf9d2d, read 2026-11-29.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from envsmith.errors import InputError, Problem
from envsmith.recipe import Job


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFacts:
    """What a configuration says about a job."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `recipe.Job`."""
    said_by: Mapping[str, str] = field(default_factory=dict)
    """The same fields to the key that said them."""
    deepspeed: str | None = None
    """Path of a DeepSpeed file, as the configuration names it."""

    def over(self, job: Job) -> Job:
        """The recipe's job with these facts laid over it."""
        return job.model_copy(update=dict(self.values))

    def with_deepspeed(self, text: str, where: str) -> JobFacts:
        """These facts and those of the DeepSpeed file.

        Raises:
            InputError: `job-config-syntax`.
        """
        found = dict(_deepspeed(_data(text, where)))
        said = {name: f"{where}: {key}" for name, (key, _) in found.items()}
        values = {name: value for name, (_, value) in found.items()}
        return JobFacts(values={**self.values, **values}, said_by={**self.said_by, **said})


def parse(text: str, where: str) -> JobFacts:
    """Read a configuration; its name says whether it is YAML (or JSON), anything else is a list of overrides.

    Raises:
        InputError: `job-config-syntax` when it is neither, `job-config-value` for values that cannot be.
    """
    text = text.removeprefix("\ufeff")
    if where.lower().endswith((".yaml", ".yml", ".json")):
        data = _data(text, where)
        if isinstance(data, Mapping) and _is_verl(data):
            return _facts(_verl(dict(_flat(data))), where)
        if isinstance(data, Mapping):
            return _facts(_llamafactory(data), where, data.get("deepspeed"))
        if isinstance(data, list) and all(isinstance(one, str) for one in data):  # Hydra's own `overrides.yaml`
            return _facts(_verl(dict(_override(one, where, n) for n, one in enumerate(data, 1))), where)
        raise InputError(_wrong(where, "it holds neither settings by name nor a list of overrides"))
    return _facts(_verl(dict(_overrides(text, where))), where)


def _facts(found: Iterator[tuple[str, str, Any]], where: str, deepspeed: object = None) -> JobFacts:
    values: dict[str, Any] = {}
    said_by: dict[str, str] = {}
    problems: list[Problem] = []
    for name, key, value in found:
        if isinstance(value, int) and not isinstance(value, bool) and value < (0 if name == "zero_stage" else 1):
            message = f"`{key}` is {value}"
            problems.append(Problem(code="job-config-value", message=message, where=where, hint="it counts from 1"))
        elif name not in values or _graver(name, value, values[name]):
            values[name], said_by[name] = value, f"{where}: {key}"
    if problems:
        raise InputError(*problems)
    if isinstance(deepspeed, Mapping):
        for name, (key, value) in _deepspeed(deepspeed):
            values[name], said_by[name] = value, f"{where}: deepspeed.{key}"
    return JobFacts(values=values, said_by=said_by, deepspeed=deepspeed if isinstance(deepspeed, str) else None)


def _graver(name: str, value: Any, before: Any) -> bool:
    """Whether another key says more than an earlier one: some part of the job does it, or with less."""
    if isinstance(value, bool):
        return value
    return value < before if isinstance(value, int) else bool(value == "bfloat16")


# LLaMA-Factory

_ATTENTION = {
    "disabled": "eager", "sdpa": "sdpa", "fa2": "flash_attention_2", "fa3": "flash_attention_3",
    "eager": "eager", "flash_attention_2": "flash_attention_2", "flash_attention_3": "flash_attention_3",
    "flex_attention": "flex_attention",
}  # fmt: skip
_DTYPES = {
    "bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16", "float16": "float16", "half": "float16",
    "fp32": "float32", "float32": "float32", "float": "float32", "auto": "auto",
}  # fmt: skip


def _llamafactory(data: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    for key, dtype in (("bf16", "bfloat16"), ("pure_bf16", "bfloat16"), ("fp16", "float16")):
        if data.get(key) is True:
            yield "dtype", key, dtype
    if data.get("bf16") is False and data.get("fp16") is False and data.get("pure_bf16") is not True:
        yield "dtype", "bf16", "float32"
    named = data.get("flash_attn")
    backend = _ATTENTION.get(named) if isinstance(named, str) else None
    if backend:
        yield "attention", "flash_attn", backend
    for key in ("packing", "neat_packing"):
        if isinstance(data.get(key), bool):
            yield "packing", key, data[key]
    if isinstance(data.get("enable_liger_kernel"), bool):
        yield "liger", "enable_liger_kernel", data["enable_liger_kernel"]
    if isinstance(data.get("model_name_or_path"), str) and data["model_name_or_path"]:
        yield "model", "model_name_or_path", data["model_name_or_path"]
    if data.get("quantization_bit") is not None:
        yield "quantised_load", "quantization_bit", True
    if isinstance(data.get("output_dir"), str) and data["output_dir"]:
        yield "checkpoint_dir", "output_dir", data["output_dir"]
    fsdp = data.get("fsdp")
    words = fsdp.split() if isinstance(fsdp, str) else fsdp
    if isinstance(words, list) and "offload" in words:
        yield "cpu_offload", "fsdp", True


def _deepspeed(data: object) -> Iterator[tuple[str, tuple[str, Any]]]:
    zero = data.get("zero_optimization") if isinstance(data, Mapping) else None
    if not isinstance(zero, Mapping):
        return
    if zero.get("stage") in (0, 1, 2, 3):
        yield "zero_stage", ("zero_optimization.stage", int(zero["stage"]))
    for key, name in (("offload_optimizer", "optimizer_offload"), ("offload_param", "cpu_offload")):
        table = zero.get(key)
        device = table.get("device") if isinstance(table, Mapping) else None
        yield name, (f"zero_optimization.{key}", device in ("cpu", "nvme"))


# VERL

_OVERRIDE = re.compile(r"(['\"]?)[+~]{0,2}([A-Za-z_][\w.@/-]*)(?:=(.*))?\1", re.DOTALL)
_ROLES = (
    r"(actor_rollout_ref\.(actor|ref|rollout|model)|actor_rollout_ref|critic|critic\.model|critic\.fsdp|reward_model)"
)
_TRUTHS = {
    "cpu_offload": r"(fsdp_config|fsdp|fsdp\.fsdp_config)?\.?(param_offload|offload_policy)",
    "optimizer_offload": r"(fsdp_config|fsdp)?\.?optimizer_offload",
    "fused_kernels": r"use_fused_kernels",
    "remove_padding": r"use_remove_padding",
    "dynamic_batch": r"(use_dynamic_bsz|log_prob_use_dynamic_bsz|forward_use_dynamic_bsz)",
    "liger": r"use_liger",
}
_NUMBERS = {
    "train_batch_size": r"data\.train_batch_size",
    "mini_batch_size": r"(actor_rollout_ref\.actor|critic)\.ppo_mini_batch_size",
    "tensor_parallel": r"actor_rollout_ref\.rollout\.tensor_model_parallel_size",
    "max_tokens": r"actor_rollout_ref\.rollout\.max_model_len",
    "max_sequences": r"actor_rollout_ref\.rollout\.max_num_seqs",
}


def _verl(data: Mapping[str, str]) -> Iterator[tuple[str, str, Any]]:
    for key, text in data.items():
        value = _scalar(text)
        for name, pattern in _TRUTHS.items():
            if isinstance(value, bool) and re.fullmatch(rf"{_ROLES}\.{pattern}", key):
                yield name, key, value
        for name, pattern in _NUMBERS.items():
            if isinstance(value, int) and not isinstance(value, bool) and re.fullmatch(pattern, key):
                yield name, key, value
        if re.fullmatch(rf"{_ROLES}\.((fsdp_config|fsdp)\.)?(model_dtype|dtype)", key) and str(value) in _DTYPES:
            yield "dtype", key, _DTYPES[str(value)]
        if key.endswith("override_config.attn_implementation") and str(value) in _ATTENTION:
            yield "attention", key, _ATTENTION[str(value)]
    model = _scalar(data.get("actor_rollout_ref.model.path", ""))
    if isinstance(model, str) and model:
        yield "model", "actor_rollout_ref.model.path", model
    cache = _scalar(data.get("actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype", ""))
    if cache in ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"):
        yield "kv_cache_dtype", "actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype", cache
    folder = _scalar(data.get("trainer.default_local_dir", ""))
    if isinstance(folder, str) and folder:
        yield "checkpoint_dir", "trainer.default_local_dir", folder
    # Without sleep mode the cache is not freed either; with it, freeing is what the default asks for.
    for key in ("actor_rollout_ref.rollout.enable_sleep_mode", "actor_rollout_ref.rollout.free_cache_engine"):
        if isinstance(_scalar(data.get(key, "")), bool):
            yield "sleep_mode", key, _scalar(data[key])
            return


def _is_verl(data: Mapping[Any, Any]) -> bool:
    return any(isinstance(key, str) and key.split(".")[0] == "actor_rollout_ref" for key in data)


def _flat(data: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """A resolved configuration, as Hydra keeps it beside a run, as overrides."""
    for key, value in data.items():
        path = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping):
            yield from _flat(value, path)
        elif isinstance(value, (bool, int, float, str)):
            yield path, str(value)


def _overrides(text: str, where: str) -> Iterator[tuple[str, str]]:
    """Lines of `key=value`, as on a command line: `+` before the key, a backslash behind, comments anywhere."""
    problems: list[Problem] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.strip().removesuffix("\\").strip()
        if words and not words.startswith("#"):
            for one in _as_typed(words):
                try:
                    yield _override(one, where, number)
                except InputError as error:
                    problems += error.problems
    if problems:
        raise InputError(*problems)


def _as_typed(line: str) -> list[str]:
    """The overrides of one line as a shell would part them; a line that is one override with blanks stays whole."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return [line]
    typed = all(_OVERRIDE.fullmatch(word) and ("=" in word or word.startswith("~")) for word in words)
    return words if words and typed else [line]


def _override(words: str, where: str, number: int) -> tuple[str, str]:
    found = _OVERRIDE.fullmatch(words)
    takes_out = words.lstrip("'\"").startswith("~")
    if found is None or (found[3] is None and not takes_out):
        raise InputError(_wrong(f"{where}:{number}", f"`{words}` is no override such as `data.train_batch_size=8`"))
    if takes_out:  # `~key=value` names what is taken out, so nothing is said
        return found[2], ""
    value = (found[3] or "").strip()
    quoted = re.fullmatch(r"(['\"])(.*)\1", value, re.DOTALL)
    return found[2], quoted[2] if quoted else value


def _scalar(text: str) -> Any:
    """A value as Hydra reads it, as far as facts need: truth values, numbers, text; None where a shell decides."""
    if "$" in text:
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text


def _data(text: str, where: str) -> Any:
    """JSON by its name, else YAML; YAML forbids the tabs that JSON is often indented with."""
    if where.lower().endswith(".json"):
        try:
            return json.loads(text.removeprefix("\ufeff"))
        except (ValueError, RecursionError) as error:
            line = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            words = error.msg if isinstance(error, json.JSONDecodeError) else "its values cannot be read"
            raise InputError(_wrong(f"{where}{line}", f"this is not JSON: {words}")) from error
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f"{where}:{mark.line + 1}" if mark else where
        words = getattr(error, "problem", None) or "its values cannot be read"
        raise InputError(_wrong(at, f"this is not YAML: {words}")) from error


def _wrong(where: str, message: str) -> Problem:
    return Problem(
        code="job-config-syntax",
        message=message,
        where=where,
        hint="name a LLaMA-Factory YAML file, or a file of Hydra overrides with one `key=value` a line",
    )
