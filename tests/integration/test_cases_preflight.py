"""Failures that others met before a job ran, as snapshots, recipes and locks of ours: what `check --host` says.

The ids are those of facts/symptoms.md; each input is the case's own, in the case's own words, and is turned into our
formats here. What must not be said is held too, on everything that is printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from envsmith.checks.host import judge_host
from envsmith.commands.check import run
from envsmith.lock import Lock, render
from envsmith.native import Elf, NativeFile, VersionNeed, newest
from envsmith.recipe import parse
from envsmith.report import Severity
from tests.unit.test_checks_host import facts, fit
from tests.unit.test_rules import lock, wheel

#: The libraries that the wheels of NVIDIA bring beside a torch of the public index.
SHIPPED = {"nvidia-cudnn-cu12": "9.1.0.70", "nvidia-nccl-cu12": "2.21.5", "nvidia-nvjitlink-cu12": "12.4.127"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """The files of one case, by name without suffix."""

    host: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] | None = None
    maps: str = ""
    mounts: str = ""
    locked: Mapping[str, str] = field(default_factory=dict)
    wheelhouse: tuple[str, ...] = ()
    recipe: str = ""
    """Tables of the env `a`."""
    host_table: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Facts that a snapshot has and the case tells otherwise: folders, runs, answers."""


def snapshot(case: Case) -> dict[str, Any]:
    """The `[host]` table of a case."""
    said = case.host
    capability = said.get("compute_capability")
    names = said.get("gpu") or (["NVIDIA A100-SXM4-80GB"] if "gpus" in said else [])
    devices = [
        {"name": name, "count": said.get("gpus", 1)}
        | ({"compute-capability": capability} if capability else {})
        | ({"data-centre": said["datacenter_gpu"]} if "datacenter_gpu" in said else {})
        for name in names
    ]
    table: dict[str, Any] = {
        "arch": "x86_64", "glibc": said.get("glibc", "2.35"), "driver": said.get("kernel_driver"),
        "cuda-driver-version": said.get("driver_cuda"), "cpus": said.get("cpus"), "open-files": said.get("nofile_soft"),
        "open-files-max": said.get("nofile_hard"), "accelerator": devices or None, "environ": case.env,
        "compiler": (said["gcc"] or "") if "gcc" in said else None,
    }  # fmt: skip
    for key, name in (("dev_shm_total_mib", "shm-bytes"), ("dev_shm_free_mib", "shm-free-bytes")):
        table[name] = said[key] << 20 if key in said else None
    mapped = re.search(r"(/\S*libcuda\.so(?:\.([\d.]+))?)$", case.maps, re.MULTILINE)
    if mapped:
        table |= {"libcuda": mapped[1], "libcuda-version": mapped[2]}
    for line in said.get("ldconfig_libcuda", ()):
        path = line.rpartition(" ")[2]
        table |= {"libcuda": path}
        table["driver-folder"] = [
            {"path": path.rpartition("/")[0], "kind": "driver", "found-by": "loader", "unversioned": False}
        ]
    rows = [line.split() for line in case.mounts.splitlines()]
    table["file-system"] = [
        {"path": row[1], "type": row[2], "kind": "fuse" if row[2].startswith("fuse") else "local"} for row in rows
    ] or None
    return {name: value for name, value in {**table, **case.extra}.items() if value is not None}


def value(said: Any) -> str:
    if isinstance(said, Mapping):
        return "{ " + ", ".join(f"{json.dumps(name)} = {value(one)}" for name, one in said.items()) + " }"
    if isinstance(said, list):
        return "[" + ", ".join(map(value, said)) + "]"
    return json.dumps(said)


@dataclass(frozen=True)
class Answer:
    code: int
    text: str
    findings: list[dict[str, str]]
    facts: Mapping[str, Any]

    @property
    def errors(self) -> set[str]:
        return {one["kind"] for one in self.findings if one["severity"] == "error"}

    def the(self, kind: str) -> dict[str, str]:
        (found,) = [one for one in self.findings if one["kind"] == kind]
        return found


@dataclass(frozen=True)
class Desk:
    """A folder with the files that a user would have."""

    folder: Path

    def check(self, case: Case, *, python: str = "") -> Answer:
        stacks = self.folder / "stacks"
        stacks.mkdir(exist_ok=True)
        named = [f"{name}=={version.partition('+')[0]}" for name, version in case.locked.items()]
        requires = f"requires = {json.dumps(named)}\n"
        text = f'[stack]\nname = "t"\n[host]\n{case.host_table}\n[env.a]\npython = "3.11"\n{requires}{case.recipe}\n'
        (stacks / "t.toml").write_text(text)
        (stacks / "pylock.t-a.toml").write_text(render(self._lock(case, text)))
        table = "\n".join(f"{name} = {value(said)}" for name, said in snapshot(case).items())
        head = '[snapshot]\nschema = 1\norigin = "transcribed"\n\n[host]\n'
        (self.folder / "node.toml").write_text(f"{head}{table}\n{python}")
        done = run(
            str(stacks / "t.toml"), envs=(), config=None, host=str(self.folder / "node.toml"),
            environ={"ENVSMITH_HOME": str(self.folder / "store"), "ENVSMITH_ROOT": str(self.folder / "envs")},
        )  # fmt: skip
        assert "judged for the machine of" in done.text
        return Answer(done.exit_code, done.text, done.data["findings"], done.data["host"]["facts"])

    def _lock(self, case: Case, text: str) -> Lock:
        wheels = [wheel(name, version) for name, version in sorted(case.locked.items())]
        for filename in case.wheelhouse:
            name, version = filename.split("-")[:2]
            wheels.append(wheel(name, version, filename))
        made = lock(*sorted(wheels, key=lambda one: one.name))
        return replace(made, recipe_digest=parse(text, "t.toml").recipe_digest("a"))


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


# --- D01: a compat library older than the driver ---

COMPAT_129 = "/usr/local/cuda-12.9/compat"
D01 = Case(
    host={"gpu": ["NVIDIA H100 80GB HBM3"], "datacenter_gpu": True, "kernel_driver": "580.105.08"},
    env={"LD_LIBRARY_PATH": ""},
    maps=(
        f"7f10a0000000-7f10a1c00000 r-xp 00000000 00:3a 1201 {COMPAT_129}/libcuda.so.575.57.08\n"
        "7f10b0000000-7f10b0100000 r-xp 00000000 00:3a 1188 "
        "/opt/env/lib/python3.11/site-packages/torch/lib/libc10_cuda.so"
    ),
    locked={"torch": "2.10.0+cu128"},
)


def test_d01_an_older_compat_library_is_named_with_the_driver(desk: Desk) -> None:
    said = desk.check(D01)
    assert (said.code, said.errors) == (3, {"libcuda-wrong-compat"})
    message = said.the("libcuda-wrong-compat")["message"]
    assert all(word in message for word in ("575.57.08", "580.105.08", "803", COMPAT_129))
    lower = said.text.lower()
    assert "upgrade the driver" not in lower and "reinstall" not in lower and "update the driver" not in lower


def test_d01_with_the_drivers_own_library_it_is_fine(desk: Desk) -> None:
    maps = "7f-7f r-xp 0 0 1 /usr/local/nvidia/lib64/libcuda.so.580.105.08"
    assert desk.check(replace(D01, maps=maps)).code == 0
    row = {"path": "/usr/local/nvidia/lib64", "kind": "driver", "version": "580.105.08"}
    mended = replace(D01, recipe='[env.a.launch]\ndriver-library = "host"', extra={"driver-folder": [row]})
    said = desk.check(mended)
    assert (said.code, said.the("libcuda-wrong-compat")["severity"]) == (0, "note")


# --- D02: forward compatibility on a GeForce ---

D02 = Case(
    host={
        "gpu": ["NVIDIA GeForce RTX 3060"], "datacenter_gpu": False, "kernel_driver": "525.147.05",
        "driver_cuda": "12.0",
    },
    env={"LD_LIBRARY_PATH": "/usr/local/cuda/compat"},
    maps="7f00-7f01 r-xp 0 00:3a 1 /usr/local/cuda/compat/libcuda.so.530.30.02",
    locked={"torch": "2.3.1+cu121"},
)  # fmt: skip


def test_d02_no_forward_compatibility_on_a_geforce_and_the_driver_is_new_enough(desk: Desk) -> None:
    said = desk.check(D02)
    assert (said.code, said.errors) == (3, {"libcuda-compat-unsupported-hw"})
    finding = said.the("libcuda-compat-unsupported-hw")
    assert "530.30.02" in finding["message"] and "804" in finding["message"]
    assert "525.147.05 runs programs of every CUDA 12" in finding["hint"]
    assert "driver-too-old" not in said.text


def test_d02_without_the_folder_it_is_fine(desk: Desk) -> None:
    without = replace(D02, env={"PATH": "/usr/bin"}, maps="7f-7f r-xp 0 0 1 /usr/lib64/libcuda.so.525.147.05")
    assert desk.check(without).code == 0


# --- D03: stubs ---

STUBS = "/usr/local/cuda-11.8/targets/x86_64-linux/lib/stubs"
D03 = Case(
    env={"LD_LIBRARY_PATH": f"{STUBS}:/usr/local/cuda/lib64"},
    maps=f"7f00-7f01 r-xp 0 00:3a 1 {STUBS}/libcuda.so",
)


def test_d03_stubs_are_for_the_linker(desk: Desk) -> None:
    said = desk.check(D03)
    assert (said.code, said.errors) == (3, {"libcuda-stub"})
    assert STUBS in said.the("libcuda-stub")["subject"] and "34" in said.the("libcuda-stub")["message"]
    clean = Case(env={"LD_LIBRARY_PATH": "/usr/lib64"}, maps="7f-7f r-xp 0 0 1 /usr/lib64/libcuda.so.535.129.03")
    assert desk.check(clean).code == 0


# --- D04: libcuda.so.1 alone ---

D04 = Case(
    host={"ldconfig_libcuda": ["libcuda.so.1 -> /usr/lib64/libcuda.so.1"], "gcc": "/usr/bin/gcc"},
    locked={"torch": "2.5.1", "triton": "3.1.0"},
)


def test_d04_the_launcher_of_triton_links_a_name_without_a_version(desk: Desk) -> None:
    said = desk.check(D04)
    assert (said.code, said.errors) == (3, {"libcuda-unversioned-missing"})
    assert "-lcuda" in said.the("libcuda-unversioned-missing")["message"]
    beside = [{"path": "/usr/lib64", "kind": "driver", "found-by": "loader", "unversioned": True}]
    assert desk.check(replace(D04, extra={"driver-folder": beside})).code == 0
    mended = desk.check(replace(D04, recipe='[env.a.launch]\ndriver-library = "host"'))
    assert (mended.code, mended.the("libcuda-unversioned-missing")["severity"]) == (0, "note")


# --- D05, D06, N02: the driver and the CUDA of torch ---

D05 = Case(
    host={"gpu": ["NVIDIA A100-SXM4-80GB"], "datacenter_gpu": True, "kernel_driver": "470.86", "driver_cuda": "11.4"},
    locked={"torch": "2.3.1+cu121"},
)


def test_d05_driver_470_does_not_run_cuda_12(desk: Desk) -> None:
    said = desk.check(D05)
    assert (said.code, said.errors) == (3, {"driver-too-old"})
    finding = said.the("driver-too-old")
    assert (finding["expected"], finding["actual"]) == (">=525.60.13", "470.86")
    assert "cu118" in finding["hint"] and "compat library" in finding["hint"]
    assert "another build for CUDA 12 does not help" in finding["hint"]


def test_d05_with_a_library_or_a_run_or_other_wheels_it_is_fine(desk: Desk) -> None:
    library = {"path": "/usr/local/cuda-12.1/compat", "kind": "compat", "version": "530.30.02"}
    assert desk.check(replace(D05, extra={"driver-folder": [library]})).code == 0
    ran = {"dtype": "bfloat16", "ok": True, "torch": "2.3.1+cu121", "driver": "470.86", "device": D05.host["gpu"][0]}
    said = desk.check(replace(D05, extra={"run": [ran]}))
    assert (said.code, said.the("table-overruled")["severity"]) == (0, "note")
    assert desk.check(replace(D05, locked={"torch": "2.3.1+cu118"})).code == 0


def test_d06_a_torch_of_cuda_13_on_driver_570(desk: Desk) -> None:
    case = Case(host={"kernel_driver": "570.86.10", "driver_cuda": "12.8"}, locked={"torch": "2.11.0"})
    said = desk.check(case)
    assert (said.code, said.errors) == (3, {"driver-too-old"})
    assert "cu128" in said.the("driver-too-old")["hint"]
    assert desk.check(replace(case, locked={"torch": "2.10.0"})).code == 0


def test_n02_driver_535_runs_cuda_12_8(desk: Desk) -> None:
    host = {"gpu": ["NVIDIA A100-SXM4-80GB"], "kernel_driver": "535.129.03", "driver_cuda": "12.2"}
    maps = "7f-7f r-xp 0 0 1 /usr/lib/x86_64-linux-gnu/libcuda.so.535.129.03"
    said = desk.check(Case(host=host, maps=maps, locked={"torch": "2.10.0+cu128"}))
    assert said.code == 0
    assert {one["severity"] for one in said.findings} == {"note"}


# --- D07, D08, D09: what a device can run ---


def test_d07_no_code_for_sm_120(desk: Desk) -> None:
    host = {"gpu": ["NVIDIA GeForce RTX 5090"], "compute_capability": "12.0", "kernel_driver": "570.124.06"}
    for torch in ("2.5.1+cu124", "2.5.1+cu121", "2.7.0.dev20250301+cu124"):
        said = desk.check(Case(host=host, locked={"torch": torch}))
        assert (said.code, said.errors) == (3, {"no-kernel-image"})
        assert "RTX 5090" in said.the("no-kernel-image")["message"] and "12.8" in said.the("no-kernel-image")["hint"]
    assert desk.check(Case(host=host, locked={"torch": "2.10.0+cu128"})).code == 0


BF16 = '[env.a.job]\ndtype = "bfloat16"\nattention = "flash_attention_2"'


def test_d08_the_snapshots_v100_refuses_bfloat16_whatever_the_recipe_is_for(desk: Desk) -> None:
    host = {"gpu": ["Tesla V100-SXM2-32GB"], "compute_capability": "7.0"}
    said = desk.check(Case(host=host, recipe=BF16))
    assert (said.code, said.errors) == (1, {"bf16-unsupported", "flash-attention-unsupported"})
    assert "7.0" in said.the("bf16-unsupported")["message"]
    said = desk.check(Case(host=host, recipe=BF16, host_table='compute-capability = ["8.0"]'))
    assert (said.code, said.errors) == (
        3, {"bf16-unsupported", "flash-attention-unsupported", "capability-outside-class"},
    )  # fmt: skip


def test_d09_a_p40_is_refused_for_its_kernels_and_not_for_its_memory(desk: Desk) -> None:
    recipe = BF16 + "\nliger = true"
    said = desk.check(Case(host={"gpu": ["Tesla P40"], "compute_capability": "6.1"}, recipe=recipe))
    assert said.errors == {"bf16-unsupported", "flash-attention-unsupported", "triton-unsupported"}
    assert "out of memory" not in said.text.lower() and "reduce" not in said.text.lower()


# --- D14, D15: LD_LIBRARY_PATH ---


def test_d14_the_cudnn_of_a_module(desk: Desk) -> None:
    folder = "/public/apps/cudnn/v8.0.3.33-cuda.11.0/cuda/lib64"
    case = Case(
        env={"LD_LIBRARY_PATH": f"{folder}:/public/slurm/20.11.8/lib"}, locked={"torch": "1.12.1+cu113"},
    )  # fmt: skip
    for extra in ({}, {"library": [row("libcudnn.so.8", folder), row("libcudnn_ops_infer.so.8", folder)]}):
        said = desk.check(replace(case, extra=extra))
        assert (said.code, said.errors) == (3, {"duplicate-native-lib-cudnn"})
        assert folder in said.the("duplicate-native-lib-cudnn")["subject"]
    unset = '[env.a.launch]\nunset = ["LD_LIBRARY_PATH"]'
    assert desk.check(replace(case, recipe=unset)).code == 0


def row(name: str, folder: str) -> dict[str, str]:
    return {"name": name, "path": f"{folder}/{name}", "found-by": "LD_LIBRARY_PATH"}


def test_d15_the_nvjitlink_of_a_toolkit_and_an_empty_element(desk: Desk) -> None:
    folder = "/usr/local/cuda-12.1/lib64"
    case = Case(env={"LD_LIBRARY_PATH": f"{folder}:"}, locked={"torch": "2.5.1+cu124", **SHIPPED})
    for extra in ({}, {"library": [row("libnvJitLink.so.12", folder), row("libcublas.so.12", folder)]}):
        said = desk.check(replace(case, extra=extra))
        assert (said.code, said.errors) == (3, {"duplicate-native-lib-nvjitlink"})
        assert "nvidia-nvjitlink-cu12 12.4.127" in said.the("duplicate-native-lib-nvjitlink")["message"]
        assert said.the("empty-element")["severity"] == "warning"
    own = '[env.a.launch.prepend]\nLD_LIBRARY_PATH = "{env}/lib/python3.11/site-packages/nvidia/nvjitlink/lib"'
    assert desk.check(replace(case, recipe=own)).code == 0


# --- D21, D22, N03: the shell ---

D21_VARIABLES = ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "LD_LIBRARY_PATH"]


def test_d21_the_vendors_profile_was_not_sourced(desk: Desk) -> None:
    recipe = f"[env.a.launch]\nrequire = {json.dumps(D21_VARIABLES)}"
    case = Case(env={"PATH": "/usr/bin", "HOME": "/home/u"}, recipe=recipe)
    said = desk.check(case)
    assert (said.code, said.errors) == (3, {"vendor-profile-missing"})
    assert all(name in said.the("vendor-profile-missing")["message"] for name in D21_VARIABLES)
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in said.text
    sourced = {name: f"/usr/local/Ascend/{name.lower()}" for name in D21_VARIABLES}
    assert desk.check(replace(case, env=sourced)).code == 0


HOOK = '[env.a.launch.set]\nRAY_ENABLE_UV_RUN_RUNTIME_ENV = "0"'


def test_d22_a_job_folder_of_slurm_is_too_long_for_rays_sockets(desk: Desk) -> None:
    long = "/scratch/cluster/u0001/slurm_jobdir/1355700/tmp.t0016"
    case = Case(env={"RAY_TMPDIR": long}, locked={"ray": "2.56.1"}, recipe=HOOK)
    said = desk.check(case)
    assert (said.code, said.errors) == (3, {"af-unix-path"})
    finding = said.the("af-unix-path")
    assert (
        "121 bytes" in finding["message"] and "107" in finding["message"] and finding["expected"] == "at most 39 bytes"
    )
    mended = f'{HOOK}\n[env.a.launch.short-dirs]\nRAY_TMPDIR = "{{scratch}}/r"'
    assert desk.check(replace(case, recipe=mended)).code == 0


N03 = "/" + "a" * 106


@pytest.mark.parametrize(("size", "code"), [(107, 0), (108, 3)])
def test_n03_a_socket_path_of_exactly_107_bytes_is_fine(desk: Desk, size: int, code: int) -> None:
    folder = (N03 + "a")[: size - 68]  # Ray adds 68 bytes
    case = Case(env={"RAY_TMPDIR": folder}, locked={"ray": "2.56.1"}, recipe=HOOK)
    assert desk.check(case).code == code


# --- D27, D43: glibc ---


def test_d27_an_extension_that_was_built_for_a_newer_glibc() -> None:
    versions = {"vllm/_C.abi3.so": ["GLIBC_2.2.5", "GLIBC_2.32"]}
    built = lock(wheel("vllm", "0.6.0", "vllm-0.6.0-cp311-cp311-linux_x86_64.whl"))
    native = {
        built.wheels[0].filename: tuple(
            NativeFile(
                path=path, size=1, elf=Elf(machine=62, needs=tuple(VersionNeed("libc.so.6", v, False) for v in all_))
            )
            for path, all_ in versions.items()
        )
    }
    assert newest(versions["vllm/_C.abi3.so"]) == "GLIBC_2.32"
    host = {"accelerator": [], "driver": "", "libcuda": "", "libcuda_version": None, "cuinit": None}
    (finding,) = judge_host([fit(facts(glibc="2.17", **host), lock=built, native=native)])
    assert (finding.kind, finding.severity) == ("glibc-too-old", Severity.ERROR)
    assert all(word in finding.message for word in ("vllm/_C.abi3.so", "2.32", "2.17"))
    assert judge_host([fit(facts(glibc="2.32", **host), lock=built, native=native)]) == ()


def test_d43_only_torchs_tag_is_too_new(desk: Desk) -> None:
    torch = "torch-2.4.1+das.opt2.dtk2504-cp310-cp310-manylinux_2_28_x86_64.whl"
    case = Case(
        host={"glibc": "2.17"},
        wheelhouse=(torch, "numpy-1.26.4-cp310-cp310-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"),
        host_table='glibc = "2.17"',
    )
    said = desk.check(case)
    assert (said.code, said.errors) == (3, {"manylinux-mismatch"})
    finding = said.the("manylinux-mismatch")
    assert finding["subject"] == torch and "2_28" in finding["message"] and finding["actual"] == "2.17"
    assert "rename" not in said.text.lower()
    assert desk.check(replace(case, host={"glibc": "2.28"})).code == 0


# --- D45 to D48: limits and places ---

D45 = Case(
    mounts="hdfs_fuse /mnt/ckpt fuse.hdfs rw 0 0\n/dev/nvme0n1 /local ext4 rw 0 0\n",
    locked={"safetensors": "0.8.0"},
    recipe='[env.a.job]\ncheckpoint-dir = "/mnt/ckpt/run1"',
)


def test_d45_safetensors_0_8_grows_files_on_a_fuse_mount(desk: Desk) -> None:
    said = desk.check(D45)
    assert (said.code, said.errors) == (3, {"fuse-checkpoint-write"})
    finding = said.the("fuse-checkpoint-write")
    assert "ftruncate" in finding["message"] and "fuse.hdfs" in finding["message"]
    assert "sha256" in finding["hint"] and "0.7" in finding["hint"]
    older = desk.check(replace(D45, locked={"safetensors": "0.7.0"}))
    assert (older.code, older.the("fuse-checkpoint-write")["severity"]) == (0, "warning")
    local = replace(D45, recipe='[env.a.job]\ncheckpoint-dir = "/local/run1"')
    assert desk.check(local).code == 0


def test_d46_a_file_limit_of_1024_on_512_cpus(desk: Desk) -> None:
    host = {"cpus": 512, "nofile_soft": 1024, "nofile_hard": 1_048_576}
    case = Case(host=host, locked={"ray": "2.56.1"}, recipe=HOOK)
    said = desk.check(case)
    assert (said.code, said.errors) == (3, {"fd-limit"})
    hint = said.the("fd-limit")["hint"]
    assert "ulimit -n 65536" in hint and "num_cpus" in hint
    bound = desk.check(replace(case, host={**host, "nofile_hard": 4096}))
    assert "container" in bound.the("fd-limit")["hint"] and "ulimit" not in bound.the("fd-limit")["hint"]
    assert desk.check(replace(case, host={**host, "nofile_soft": 65_536})).code == 0


def test_d47_64_mib_of_shared_memory_for_eight_devices(desk: Desk) -> None:
    host = {"dev_shm_total_mib": 64, "dev_shm_free_mib": 60, "gpus": 8}
    case = Case(host=host, locked={"torch": "2.10.0"})
    said = desk.check(case)
    assert (said.code, said.errors) == (3, {"dev-shm-too-small"})
    assert (
        "64 MiB" in said.the("dev-shm-too-small")["message"] and "--shm-size" in said.the("dev-shm-too-small")["hint"]
    )
    assert "disk" not in said.text.lower() and "full" not in said.text.lower()
    assert desk.check(replace(case, host={"dev_shm_total_mib": 8192, "dev_shm_free_mib": 8192, "gpus": 8})).code == 0


def test_d48_neither_a_compiler_nor_headers(desk: Desk) -> None:
    case = Case(host={"gcc": None}, locked={"torch": "2.10.0", "triton": "3.6.0"})
    bare = '[python]\nexecutable = "/usr/bin/python3"\nversion = "3.11.2"\nheaders = false\n'
    said = desk.check(case, python=bare)
    assert (said.code, said.errors) == (3, {"runtime-toolchain-missing"})
    words = " ".join(one["message"] for one in said.findings if one["kind"] == "runtime-toolchain-missing")
    assert "C compiler" in words and "Python.h" in words
    whole = replace(case, host={"gcc": "/usr/bin/gcc"})
    assert desk.check(whole, python=bare.replace("false", "true")).code == 0


def test_what_a_snapshot_says_is_in_the_answer(desk: Desk) -> None:
    said = desk.check(D05)
    assert said.facts["driver"] == "470.86"
    assert "driver 470.86" in said.text.splitlines()[-2]
    assert said.text.splitlines()[-1].startswith("the machine cannot run ")
