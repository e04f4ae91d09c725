"""Each rule is seen failing on a recipe that breaks it, and silent on its neighbour that does not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import pytest

from envsmith.commands.modelfiles import with_model
from envsmith.hostfacts import HostFacts
from envsmith.lock import Lock, LockedBase, Wheel
from envsmith.modelshape import parse_model
from envsmith.modelsize import Model
from envsmith.recipe import parse
from envsmith.report import Finding, Severity
from envsmith.rules.judge import judge
from envsmith.rules.launching import RAY_SUFFIX, SOCKET_BYTES
from envsmith.rules.scan import SourceFacts, scan
from envsmith.rules.situation import Situation
from envsmith.target import Target

VERL = '[env.a.source.verl]\ngit = "https://git.example/verl"\ncommit = "1bf9d2d76c244238e8219531c582819a6b407d47"\n'
HOOK = '[env.a.launch.set]\nRAY_ENABLE_UV_RUN_RUNTIME_ENV = "0"\n'
OFF = "backend:native,expandable_segments:False,max_split_size_mb:512"
LAUNCHER = """
def launch(env):
    if is_env_enabled("OPTIM_TORCH", "1"):
        env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
"""
TOGGLE = "def update():\n    set_expandable_segments(False)\n    set_expandable_segments(True)\n"
VETO = """
def set_expandable_segments(enable):
    '''Switch.'''
    if os.environ.get("VERL_DISABLE_EXPANDABLE_SEGMENTS") == "1":
        return
    apply(enable)
"""


def wheel(name: str, version: str, filename: str | None = None) -> Wheel:
    sha256 = hashlib.sha256(name.encode()).hexdigest()
    made = filename or f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return Wheel(name=name, version=version, filename=made, size=1, sha256=sha256)


def lock(*wheels: Wheel, python: str = "3.11", base: Mapping[str, str] | None = None) -> Lock:
    return Lock(
        stack="t", env="a", target=Target(python=python, arch="x86_64", glibc="2.31"), recipe_digest="0" * 64,
        uv="0.13.9", exclude_newer=None, wheels=wheels,
        base=tuple(LockedBase(name=n, version=v, protected=True, files=None) for n, v in (base or {}).items()),
    )  # fmt: skip


def locked(**versions: str) -> Lock:
    return lock(*(wheel(name.replace("_", "-"), version) for name, version in versions.items()))


def found(
    body: str = "",
    *,
    host: str = "",
    requires: str = "[]",
    python: str = "3.11",
    lock: Lock | None = None,
    code: Mapping[str, str] | None = None,
    touched: Mapping[str, frozenset[str]] | None = None,
    model: Mapping[str, object] | None = None,
    stored: int | None = None,
    known: frozenset[str] | None = None,
    facts: HostFacts | None = None,
) -> tuple[Finding, ...]:
    """What the rules say about a recipe; `code` is the text of the files of its source `src`.

    `model` is the config.json of the model at hand, `stored` the bytes of its weights, `known` what the locked
    transformers lists, `facts` those of one machine.
    """
    text = f'[stack]\nname = "t"\n[host]\n{host}\n[env.a]\npython = "{python}"\nrequires = {requires}\n{body}\n'
    stack = parse(text, "t.toml")
    sources: dict[str, SourceFacts | None] = {"src": scan(code.items())} if code is not None else {}
    env = stack.env["a"]
    at_hand = Model(shape=parse_model(json.dumps(model), "m/config.json"), stored_bytes=stored) if model else None
    return judge(
        Situation(
            name="a", env=env, host=stack.host, job=with_model(env.job, at_hand), lock=lock, sources=sources,
            touched=touched or {}, model=at_hand, known_types=known, facts=facts,
        )
    )  # fmt: skip


def kinds(findings: tuple[Finding, ...]) -> set[str]:
    return {finding.kind for finding in findings}


def job(**values: object) -> str:
    lines = [
        f"{key.replace('_', '-')} = {str(v).lower() if isinstance(v, bool) else repr(v)}" for key, v in values.items()
    ]
    return "[env.a.job]\n" + "\n".join(lines) + "\n"


def cc(*values: str) -> str:
    return f"compute-capability = {list(values)}"


#: The model of the worked figure.
QWEN = {
    "model_type": "qwen3", "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "hidden_size": 1024, "intermediate_size": 3072, "vocab_size": 151936, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "max_position_embeddings": 40960,
}  # fmt: skip
BITS = {**QWEN, "quantization_config": {"quant_method": "bitsandbytes"}}


def quota(sequences: int = 4, **values: object) -> str:
    return job(**{"kv_cache_gib": 8.0, "max_tokens": 18048, "max_sequences": sequences, **values})


def cards(count: int, memory_gib: int) -> HostFacts:
    device = {"name": "NVIDIA A100", "count": count, "memory-bytes": memory_gib << 30}
    return HostFacts.model_validate({"accelerator": [device]})


#: rule, arguments of a recipe that breaks it, arguments of one that does not.
CASES = [
    (
        "bf16-unsupported",
        {"body": job(dtype="bfloat16"), "host": cc("7.0")},
        {"body": job(dtype="bfloat16"), "host": cc("8.0")},
    ),
    (
        "bf16-unsupported",
        {"body": job(dtype="auto"), "host": cc("7.5")},
        {"body": job(dtype="float16"), "host": cc("7.5")},
    ),
    ("bf16-unsupported", {"body": job(dtype="bfloat16"), "host": cc("9.0", "7.5")}, {"body": job(dtype="bfloat16")}),
    (
        "flash-attention-unsupported",
        {"body": job(attention="flash_attention_2"), "host": cc("7.5")},
        {"body": job(attention="flash_attention_2"), "host": cc("8.6")},
    ),
    (
        "flash-attention-unsupported",
        {"body": job(attention="flash_attention_3"), "host": cc("8.0")},
        {"body": job(attention="sdpa"), "host": cc("6.1")},
    ),
    ("triton-unsupported", {"body": job(liger=True), "host": cc("6.1")}, {"body": job(liger=True), "host": cc("7.0")}),
    (
        "vllm-without-kernels",
        {"requires": '["vllm==0.8.5"]', "host": cc("6.1")},
        {"requires": '["vllm==0.8.5"]', "host": cc("7.0")},
    ),
    (
        "no-kernel-image",
        {"requires": '["torch==2.8.0"]', "host": cc("6.1")},
        {"requires": '["torch==2.7.1"]', "host": cc("6.1")},
    ),
    (
        "no-kernel-image",
        {"requires": '["torch==2.7.1"]', "host": cc("12.0")},
        {"requires": '["torch==2.8.0"]', "host": cc("12.0")},
    ),
    (
        "no-kernel-image",
        {"lock": locked(torch="2.11.0"), "host": cc("7.0")},
        {"lock": locked(torch="2.10.0"), "host": cc("7.0")},
    ),
    (
        "driver-too-old",
        {"requires": '["torch==2.10.0"]', "host": 'driver = ">=470"'},
        {"requires": '["torch==2.10.0"]', "host": 'driver = ">=470"\ncuda-compat = "12.8"'},
    ),
    (
        "driver-too-old",
        {"requires": '["torch==2.11.0"]', "host": 'driver = ">=470"\ncuda-compat = "12.8"'},
        {"requires": '["torch==2.11.0"]', "host": 'driver = ">=580"'},
    ),
    (
        "driver-too-old",
        {"lock": locked(torch="2.10.0+cu130"), "host": 'driver = "==570.86.10"'},
        {"lock": locked(torch="2.10.0"), "host": 'driver = "==535.129.03"'},
    ),
    (
        "cuda-compat-unsupported",
        {"requires": '["torch==2.10.0"]', "host": 'driver = ">=525.125.06"\ncuda-compat = "12.8"'},
        {"requires": '["torch==2.10.0"]', "host": 'driver = ">=535"\ncuda-compat = "12.8"'},
    ),
    (
        "cuda-compat-unsupported",
        {"requires": '["torch==2.11.0"]', "host": 'driver = ">=470"\ncuda-compat = "13.0"'},
        {"requires": '["torch==2.11.0"]', "host": 'driver = ">=580"\ncuda-compat = "13.0"'},
    ),
    (
        "wheel-floor",
        {"requires": '["vllm==0.18.0"]', "host": 'glibc = "2.28"'},
        {"requires": '["vllm==0.18.0"]', "host": 'glibc = "2.31"'},
    ),
    ("torch-unpinned", {"requires": '["torch", "vllm>=0.12.0"]'}, {"requires": '["torch==2.10.0", "vllm>=0.12.0"]'}),
    (
        "torch-unpinned",
        {"lock": locked(torch="2.15.0")},
        {"lock": locked(torch="2.10.0"), "requires": '["vllm==0.18.0"]'},
    ),
    (
        "torch-unpinned",
        {"requires": '["torch<2.11"]'},
        {"requires": '["torch"]', "body": 'constrain = ["torch==2.10.*"]'},
    ),
    (
        "pin-not-locked",
        {"body": 'constrain = ["pyarrow==24.0.0"]', "lock": locked(pyarrow="23.0.0")},
        {"body": 'constrain = ["pyarrow==24.0.0"]', "lock": locked(pyarrow="24.0.0")},
    ),
    (
        "pin-not-locked",
        {"requires": '["numpy>=2"]', "lock": locked(numpy="1.26.4")},
        {"requires": '["numpy>=2"]', "body": 'override = ["numpy==1.26.4"]', "lock": locked(numpy="1.26.4")},
    ),
    (
        "known-bad-pin",
        {"lock": locked(pyarrow="25.0.0", ray="2.56.1"), "body": HOOK},
        {"lock": locked(pyarrow="24.0.0", ray="2.56.1"), "body": HOOK},
    ),
    (
        "known-bad-pin",
        {"lock": locked(pandas="3.1.1", numpy="1.26.4")},
        {"lock": locked(pandas="3.1.1", numpy="2.3.0")},
    ),
    (
        "known-bad-pin",
        {"lock": locked(transformers="5.6.0", flash_attn="2.8.3")},
        {"lock": locked(transformers="5.6.0")},
    ),
    (
        "known-bad-pin",
        {"lock": locked(datasets="1.2.1", transformers="5.3.0")},
        {"lock": locked(datasets="4.0.0", transformers="5.3.0")},
    ),
    (
        "model-type-unknown",
        {"body": job(model_type="qwen3_5"), "lock": locked(transformers="5.0.0", vllm="0.18.0")},
        {"body": job(model_type="qwen3_5"), "lock": locked(transformers="5.3.0", vllm="0.18.0")},
    ),
    (
        "model-type-unknown",
        {"body": job(model_type="qwen3_5"), "lock": locked(transformers="5.3.0", vllm="0.15.0")},
        {"body": job(model_type="qwen3_5"), "lock": lock(base={"transformers": "5.2.0", "vllm": "0.15.0+ppu2.0.0.oe"})},
    ),
    (
        "attention-hard-coded",
        {"body": job(attention="sdpa"), "code": {"pkg/m.py": 'load(attn_implementation="flash_attention_2")\n'}},
        {
            "body": job(attention="flash_attention_2"),
            "code": {"pkg/m.py": 'load(attn_implementation="flash_attention_2")\n'},
        },
    ),
    (
        "attention-hard-coded",
        {"host": cc("7.0"), "code": {"pkg/m.py": 'load(attn_implementation="flash_attention_2")\n'}},
        {"body": job(attention="sdpa"), "code": {"pkg/m.py": 'get("attn_implementation", "flash_attention_2")\n'}},
    ),
    (
        "offload-with-fused-kernels",
        {"body": job(cpu_offload=True, fused_kernels=True)},
        {"body": job(cpu_offload=True, fused_kernels=False)},
    ),
    (
        "packed-sequences",
        {"body": VERL + job(model_type="qwen3_5", remove_padding=True)},
        {"body": VERL + job(model_type="qwen3_5", remove_padding=False, train_batch_size=2, mini_batch_size=2)},
    ),
    (
        "packed-sequences",
        {"body": VERL + job(model_type="qwen3_5_moe", remove_padding=False, dynamic_batch=True)},
        {"body": VERL + job(model_type="qwen3", remove_padding=True, dynamic_batch=True)},
    ),
    (
        "packed-sequences",
        {"body": VERL + job(model_type="qwen3_5", remove_padding=False, mini_batch_size=1)},
        {"body": job(model_type="qwen3_5", mini_batch_size=1)},
    ),
    ("packed-sequences", {"body": VERL + job(model_type="qwen3_5")}, {"body": job(model_type="qwen3_5")}),
    (
        "padding-needs-flash-attn",
        {"body": VERL + job(remove_padding=True), "lock": locked(torch="2.10.0")},
        {"body": VERL + job(remove_padding=True), "lock": locked(torch="2.10.0", flash_attn="2.8.3")},
    ),
    (
        "cpu-adam-unpatched",
        {"body": job(optimizer_offload=True), "requires": '["deepspeed==0.18.4"]'},
        {
            "body": job(optimizer_offload=True),
            "requires": '["deepspeed==0.18.4"]',
            "touched": {"deepspeed": frozenset({"deepspeed/ops/adam/cpu_adam.py"})},
        },
    ),
    (
        "cpu-adam-unpatched",
        {
            "body": job(optimizer_offload=True),
            "lock": locked(deepspeed="0.19.8"),
            "touched": {"deepspeed": frozenset({"x.py"})},
        },
        {"body": job(optimizer_offload=True), "lock": locked(torch="2.10.0")},
    ),
    (
        "sleep-mode-crash",
        {"body": job(sleep_mode=True), "lock": locked(trl="0.26.0", vllm="0.11.0")},
        {"body": job(sleep_mode=True), "lock": locked(trl="0.26.0", vllm="0.18.0")},
    ),
    (
        "liger-serialization",
        {"body": job(liger=True, zero_stage=3), "lock": locked(liger_kernel="0.8.1")},
        {"body": job(liger=True, zero_stage=2), "lock": locked(liger_kernel="0.8.1")},
    ),
    (
        "expandable-segments-old-driver",
        {"body": job(expandable_segments=True), "host": 'driver = ">=470"'},
        {"body": job(expandable_segments=True), "host": 'driver = ">=535"'},
    ),
    (
        "expandable-segments-old-driver",
        {"body": '[env.a.launch.set]\nX_ALLOC_CONF = "expandable_segments:True"', "host": 'driver = ">=525"'},
        {"body": '[env.a.launch.set]\nX_ALLOC_CONF = "expandable_segments:False"', "host": 'driver = ">=470"'},
    ),
    (
        "expandable-segments-sleep-mode",
        {"body": job(sleep_mode=True) + '[env.a.launch.set]\nPYTORCH_NPU_ALLOC_CONF = "expandable_segments:True"'},
        {"body": job(sleep_mode=True) + '[env.a.launch.set]\nPYTORCH_CUDA_ALLOC_CONF = "expandable_segments:False"'},
    ),
    (
        "allocator-names-both",
        {"body": f'[env.a.launch.set]\nPYTORCH_CUDA_ALLOC_CONF = "{OFF}"\nPYTORCH_ALLOC_CONF = "{OFF}"'},
        {"body": f'[env.a.launch.set]\nPYTORCH_CUDA_ALLOC_CONF = "{OFF}"'},
    ),
    (
        "allocator-name-unknown",
        {"body": f'[env.a.launch.set]\nPYTORCH_ALLOC_CONF = "{OFF}"', "lock": locked(torch="2.8.0")},
        {"body": f'[env.a.launch.set]\nPYTORCH_ALLOC_CONF = "{OFF}"', "lock": locked(torch="2.9.1")},
    ),
    (
        "allocator-name-inherited",
        {"body": f'[env.a.launch.set]\nPYTORCH_ALLOC_CONF = "{OFF}"', "lock": locked(torch="2.10.0")},
        {
            "body": f'[env.a.launch]\nunset = ["PYTORCH_CUDA_ALLOC_CONF"]\nset = {{ PYTORCH_ALLOC_CONF = "{OFF}" }}',
            "lock": locked(torch="2.10.0"),
        },
    ),
    (
        "allocator-set-by-launcher",
        {"code": {"src/lf/launcher.py": LAUNCHER}, "host": 'driver = ">=470"'},
        {
            "code": {"src/lf/launcher.py": LAUNCHER},
            "host": 'driver = ">=470"',
            "body": '[env.a.launch.set]\nOPTIM_TORCH = "0"',
        },
    ),
    (
        "allocator-set-by-launcher",
        {"code": {"src/lf/launcher.py": LAUNCHER}, "body": job(expandable_segments=False)},
        {"code": {"src/lf/launcher.py": LAUNCHER}, "host": 'driver = ">=570"'},
    ),
    (
        "allocator-toggled-in-code",
        {"code": {"verl/w.py": TOGGLE}, "host": 'driver = ">=470"'},
        {"code": {"verl/w.py": TOGGLE}, "host": 'driver = ">=570"'},
    ),
    (
        "allocator-toggled-in-code",
        {"code": {"verl/w.py": TOGGLE, "verl/d.py": VETO}, "host": 'driver = ">=470"'},
        {
            "code": {"verl/w.py": TOGGLE, "verl/d.py": VETO},
            "host": 'driver = ">=470"',
            "body": '[env.a.launch.set]\nVERL_DISABLE_EXPANDABLE_SEGMENTS = "1"',
        },
    ),
    (
        "socket-path-too-long",
        {"body": f'[env.a.launch.set]\nRAY_TMPDIR = "/{"a" * 39}"'},
        {"body": f'[env.a.launch.set]\nRAY_TMPDIR = "/{"a" * 38}"'},
    ),
    (
        "socket-path-too-long",
        {"body": '[env.a.launch.short-dirs]\nRAY_TMPDIR = "{env}/r"'},
        {"body": '[env.a.launch.short-dirs]\nRAY_TMPDIR = "{scratch}/r"'},
    ),
    (
        "socket-path-too-long",
        {"body": f'{HOOK}TMPDIR = "/{"ü" * 20}"', "lock": locked(ray="2.56.1")},
        {"body": f'[env.a.launch.set]\nTMPDIR = "/{"a" * 60}"'},
    ),
    ("uv-run-hook", {"lock": locked(ray="2.56.1")}, {"lock": locked(ray="2.56.1"), "body": HOOK}),
    ("uv-run-hook", {"requires": '["ray==2.47.0"]'}, {"requires": '["ray==2.46.0"]'}),
    ("kv-cache-over-quota", {"body": quota(5), "model": QWEN}, {"body": quota(4), "model": QWEN}),
    ("kv-cache-over-quota", {"body": quota(9), "model": QWEN}, {"body": quota(9, tensor_parallel=4), "model": QWEN}),
    ("kv-cache-over-quota", {"body": quota(8), "model": QWEN}, {"body": quota(8, kv_cache_dtype="fp8"), "model": QWEN}),
    (
        "heads-not-divisible",
        {"body": job(tensor_parallel=3), "model": QWEN},
        {"body": job(tensor_parallel=8), "model": QWEN},
    ),
    (
        "heads-not-divisible",
        {"body": job(tensor_parallel=6), "model": {**QWEN, "num_attention_heads": 24}},
        {"body": job(tensor_parallel=24), "model": {**QWEN, "num_attention_heads": 24}},
    ),
    (
        "weights-over-memory",
        {"model": QWEN, "stored": 17 << 30, "facts": cards(2, 8)},
        {"model": QWEN, "stored": 16 << 30, "facts": cards(2, 8)},
    ),
    (
        "weights-over-memory",
        {"model": QWEN, "stored": 17 << 30, "facts": cards(2, 8)},
        {"model": QWEN, "stored": 17 << 30, "facts": cards(2, 8), "body": job(quantised_load=True)},
    ),
    (
        "memory-over-device",
        {"body": quota(), "model": QWEN, "facts": cards(2, 9)},
        {"body": quota(), "model": QWEN, "facts": cards(2, 10)},
    ),
    (
        "memory-over-device",
        {"body": quota(), "model": QWEN, "stored": 30 << 30, "facts": cards(2, 24)},
        {"body": quota(tensor_parallel=2), "model": QWEN, "stored": 30 << 30, "facts": cards(2, 24)},
    ),
    (
        "max-tokens-beyond-model",
        {"body": job(max_tokens=40961), "model": QWEN},
        {"body": job(max_tokens=40960), "model": QWEN},
    ),
    (
        "max-tokens-beyond-model",
        {"body": job(max_tokens=81921), "model": {**QWEN, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}},
        {"body": job(max_tokens=81920), "model": {**QWEN, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}},
    ),
    (
        "model-type-differs",
        {"body": job(model_type="qwen2"), "model": QWEN},
        {"body": job(model_type="qwen3"), "model": QWEN},
    ),
    ("model-not-sized", {"body": quota(), "model": {**QWEN, "model_type": "x"}}, {"body": quota(), "model": QWEN}),
    (
        "quantisation-unsupported",
        {"host": cc("6.1"), "model": BITS, "lock": locked(vllm="0.18.0", bitsandbytes="0.49")},
        {"host": cc("7.0"), "model": BITS, "lock": locked(vllm="0.18.0", bitsandbytes="0.49")},
    ),
    (
        "quantisation-package-missing",
        {"model": BITS, "lock": locked(transformers="5.6.0")},
        {"model": BITS, "lock": locked(transformers="5.6.0", bitsandbytes="0.49")},
    ),
    (
        "model-type-unknown",
        {"model": QWEN, "lock": locked(transformers="4.0.0"), "known": frozenset({"qwen2"})},
        {"model": QWEN, "lock": locked(transformers="5.6.0"), "known": frozenset({"qwen3"})},
    ),
    (
        "model-type-unknown",
        {"model": QWEN, "lock": locked(transformers="4.0.0"), "known": frozenset({"qwen2"})},
        {"model": {**QWEN, "auto_map": {"AutoConfig": "x.Y"}}, "known": frozenset({"qwen2"})},
    ),
    (
        "bf16-unsupported",
        {"body": job(dtype="auto"), "host": cc("7.5"), "model": QWEN},
        {"body": job(dtype="auto"), "host": cc("7.5"), "model": {**QWEN, "torch_dtype": "float16"}},
    ),
    (
        "triton-unsupported",
        {"body": job(attention="flex_attention"), "host": cc("6.1")},
        {"body": job(attention="flex_attention"), "host": cc("7.0")},
    ),
    (
        "stdlib-too-old",
        {"python": "3.10", "code": {"pkg/a.py": "from enum import StrEnum\n"}},
        {"python": "3.11", "code": {"pkg/a.py": "from enum import StrEnum\n"}},
    ),
]


@pytest.mark.parametrize(("kind", "broken", "fine"), CASES, ids=[f"{n}-{case[0]}" for n, case in enumerate(CASES)])
def test_a_rule_is_seen_failing_and_silent_beside_it(
    kind: str, broken: dict[str, object], fine: dict[str, object]
) -> None:
    assert kind in kinds(found(**broken))  # type: ignore[arg-type]
    assert kind not in kinds(found(**fine))  # type: ignore[arg-type]


def test_every_rule_but_those_below_has_a_case() -> None:
    from tests.corpus.test_docs import first_cells, page

    elsewhere = {"flash-attn-abi", "source-not-at-hand", "deepspeed-config-not-at-hand", "model-not-at-hand"}
    assert {case[0] for case in CASES} == first_cells(page("rules.md")) - elsewhere


@pytest.mark.parametrize(
    ("built", "python", "torch", "differing"),
    [
        ("2.8.3+cu12torch2.7cxx11abiFALSE-cp311-cp311", "3.11", "2.8.0+cu128", "torch, C++11 ABI"),
        ("2.8.3+cu12torch2.8cxx11abiFALSE-cp311-cp311", "3.11", "2.8.0", "C++11 ABI"),
        ("2.8.3+cu12torch2.8cxx11abiTRUE-cp310-cp310", "3.11", "2.8.0", "Python"),
        ("2.8.3+cu13torch2.10cxx11abiTRUE-cp311-cp311", "3.11", "2.10.0", "CUDA"),
        ("2.8.3+cu12torch2.8cxx11abiTRUE-cp311-cp311", "3.11", "2.8.0+cu128", None),
        ("2.8.3-cp311-cp311", "3.11", "2.8.0", None),
    ],
)
def test_a_flash_attn_wheel_must_be_for_this_torch(built: str, python: str, torch: str, differing: str | None) -> None:
    filename = f"flash_attn-{built}-linux_x86_64.whl"
    one = lock(wheel("torch", torch), wheel("flash-attn", "2.8.3", filename), python=python)
    about = [f for f in found(requires=f'["torch=={torch}"]', lock=one) if f.kind == "flash-attn-abi"]
    assert [", ".join(part.rpartition(" ")[0] for part in (f.expected or "").split(", ")) for f in about] == (
        [differing] if differing else []
    )


def test_the_longest_socket_path_of_ray_is_what_the_kernel_takes() -> None:
    assert (len(RAY_SUFFIX), SOCKET_BYTES) == (68, 107)


def test_the_default_scratch_leaves_room_for_everybody() -> None:
    assert kinds(found('[env.a.launch.short-dirs]\nRAY_TMPDIR = "{scratch}/0123456789012345678901"')) == {
        "socket-path-too-long"
    }
    assert kinds(found('[env.a.launch.short-dirs]\nRAY_TMPDIR = "{scratch}/012345678901234567890"')) == set()


def test_a_source_that_is_not_here_is_a_note() -> None:
    stack = parse('[stack]\nname = "t"\n[env.a]\npython = "3.11"\n', "t.toml")
    env = stack.env["a"]
    said = judge(Situation(name="a", env=env, host=stack.host, job=env.job, sources={"verl": None}))
    assert [(f.kind, f.severity, f.subject) for f in said] == [("source-not-at-hand", Severity.NOTE, "src/verl")]


def test_a_vendor_build_is_not_judged_by_public_wheels() -> None:
    vendor = lock(base={"torch": "2.9.0+ppu2.0.0.oe", "vllm": "0.18.0+ppu2.0.0.oe"})
    host = 'glibc = "2.28"\ndriver = ">=1.5"\n' + cc("6.1")
    assert kinds(found(host=host, lock=vendor)) == set()


def test_an_old_driver_is_an_error_where_it_failed_and_a_warning_where_nobody_tried() -> None:
    said = {
        driver: [f.severity for f in found(job(expandable_segments=True), host=f'driver = ">={driver}"')]
        for driver in ("470", "525", "535")
    }
    assert said == {"470": [Severity.ERROR], "525": [Severity.WARNING], "535": []}


def test_the_hook_of_uv_run_is_an_error_for_this_verl() -> None:
    one = locked(ray="2.56.1")
    assert [f.severity for f in found(lock=one)] == [Severity.WARNING]
    assert [f.severity for f in found(VERL, lock=one)] == [Severity.ERROR]


def test_a_name_in_many_files_is_one_finding() -> None:
    code = {f"pkg/{n}.py": "import enum\nclass A(enum.StrEnum): pass\n" for n in range(4)}
    (one,) = found(python="3.10", code=code)
    assert one.subject == "src/src/pkg/0.py:2"
    assert "3 other places" in one.message


def test_a_requirement_for_another_python_asks_nothing() -> None:
    elsewhere = """['torch==2.10.0', 'click<1; python_version < "3.0"', 'torch==2.11.0; python_version < "3.0"']"""
    there = lock(wheel("torch", "2.10.0"), wheel("click", "8.1.0"))
    driver = 'driver = ">=570"'
    assert kinds(found(requires=elsewhere, lock=there, host=driver)) == set()
    here = elsewhere.replace("<", ">")
    assert kinds(found(requires=here, lock=there, host=driver)) == {"pin-not-locked"}
    assert kinds(found(requires=elsewhere, host=driver)) == set()


def test_a_text_in_two_keys_is_one_finding() -> None:
    said = found("override = ['click==9.0']", requires="['click==9.0']", lock=lock(wheel("click", "8.1.0")))
    assert [finding.kind for finding in said] == ["pin-not-locked"]


def test_an_arbitrary_equality_is_a_pin_too() -> None:
    assert kinds(found(requires="['torch===2.11.0']", host='driver = ">=570"')) == {"driver-too-old"}


def test_findings_are_the_same_twice_and_errors_come_first() -> None:
    arguments = {"body": VERL + job(dtype="bfloat16", model_type="qwen3_5", dynamic_batch=True), "host": cc("7.0")}
    said = found(**arguments)  # type: ignore[arg-type]
    assert said == found(**arguments)  # type: ignore[arg-type]
    assert [f.severity for f in said] == sorted((f.severity for f in said), key=list(Severity).index)


def test_a_cache_that_does_not_fit_is_told_in_gib_with_what_fits() -> None:
    (said,) = found(quota(5), model=QWEN)
    assert said.message == (
        "the key-value cache of 5 sequences of 18048 tokens needs 9.64 GiB on a device, and the quota is 8.00 GiB"
    )
    assert said.expected == "at most 8589934592 bytes (8.00 GiB)"
    assert said.actual == "10349445120 bytes (9.64 GiB)"
    assert said.hint == "lower `max-sequences` to 4 or `max-tokens` to 14979"
    assert said.subject == "env.a.job.kv-cache-gib"


def test_one_sequence_that_does_not_fit_leaves_its_length_to_lower() -> None:
    body = job(kv_cache_gib=1.0, max_tokens=18048)
    (said,) = found(body, model=QWEN)
    assert "one sequence of 18048 tokens" in said.message
    assert said.hint == "lower `max-tokens` to 9362"
    assert found(body.replace("18048", "9362"), model=QWEN) == ()
    (said,) = found(job(kv_cache_gib=0.00001, max_tokens=10), model=QWEN)
    assert said.hint == "raise `kv-cache-gib` to 0.01"


@pytest.mark.parametrize(("queries", "pairs", "parallel", "fine"), [(16, 8, 3, 2), (16, 8, 32, 16), (24, 8, 6, 4),
                                                                    (24, 8, 12, 8), (7, 1, 6, 1)])  # fmt: skip
def test_the_parallelism_that_is_offered_is_one_that_is_fine(
    queries: int, pairs: int, parallel: int, fine: int
) -> None:
    model = {**QWEN, "num_attention_heads": queries, "num_key_value_heads": pairs}
    (said,) = found(job(tensor_parallel=parallel), model=model)
    assert said.hint == f"set `tensor-parallel` to {fine}"
    assert found(job(tensor_parallel=fine), model=model) == ()


def test_an_estimate_is_never_an_error() -> None:
    said = found(quota(), model=QWEN, facts=cards(1, 1))
    assert [(one.kind, one.severity) for one in said] == [("memory-over-device", Severity.WARNING)]


def test_a_type_that_vllm_may_know_is_a_warning_and_the_table_speaks_first() -> None:
    known = frozenset({"qwen2"})
    (said,) = found(model=QWEN, known=known, lock=locked(transformers="4.0.0", vllm="0.18.0"), host='glibc = "2.31"')
    assert (said.kind, said.severity) == ("model-type-unknown", Severity.WARNING)
    newer = {**QWEN, "model_type": "qwen3_5"}
    twice = found(model=newer, known=known, lock=locked(transformers="5.0.0", vllm="0.15.0"), host='glibc = "2.31"')
    assert [one.expected for one in twice] == ["transformers>=5.2", "vllm>=0.18"]
