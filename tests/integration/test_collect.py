"""The payload of `envsmith snapshot`: what it makes of files of the kernel, of programs, libraries and environments."""

from __future__ import annotations

import ast
import errno
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from envsmith.commands.snapshot import PAYLOAD
from envsmith.host import Snapshot, parse_snapshot
from envsmith.hostfacts import HostFacts
from envsmith.toml_reader import read_toml
from envsmith.tools.distributions import package_states
from envsmith.tools.hostlibs import cache_entries
from tests.integration.test_probe import OLD
from tests.support.venvs import SITE, Venv, make_venv

COMPILER = shutil.which("cc") or shutil.which("gcc")


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("envsmith_collect", PAYLOAD)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    before = sys.dont_write_bytecode
    spec.loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


collect: Any = loaded()


def place(root: Path, files: Mapping[str, str]) -> str:
    """Lay files of a machine below another root."""
    for path, text in files.items():
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return str(root)


def program(folder: Path, name: str, text: str) -> Path:
    """An executable script."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def run_payload(
    *words: str, env: Mapping[str, str] | None = None, python: str | Path = sys.executable
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, PAYLOAD, *words],
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        timeout=120,
        check=False,
    )


def snapshot(*words: str, env: Mapping[str, str] | None = None, python: str | Path = sys.executable) -> Snapshot:
    done = run_payload(*words, env=env, python=python)
    assert done.returncode == 0, done.stderr
    return parse_snapshot(done.stdout, "stdout")


# -- the payload as a text --------------------------------------------------------------------------------------------


def test_only_sys_is_imported_before_the_gate_and_only_the_standard_library_after() -> None:
    tree = ast.parse(PAYLOAD.read_text(encoding="ascii"))
    gate = next(node for node in tree.body if isinstance(node, ast.If))
    before = [node for node in tree.body if node.lineno < gate.lineno]
    assert "version_info" in ast.dump(gate.test)
    assert [type(node) for node in before] == [ast.Expr, ast.Import]
    assert [name.name for node in before if isinstance(node, ast.Import) for name in node.names] == ["sys"]

    imports = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    imports |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in imports} - set(sys.stdlib_module_names) == {"torch"}
    (torch,) = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and "import torch" in (ast.get_source_segment(PAYLOAD.read_text(), node) or "")
    )
    assert torch.name == "run_torch"


def test_the_payload_keeps_to_its_oldest_python() -> None:
    vermin = Path(sys.executable).with_name("vermin")
    if not vermin.exists():
        pytest.skip("vermin is not installed beside this Python")
    done = subprocess.run([vermin, "-t=3.8-", PAYLOAD], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(not OLD, reason="no interpreter older than 3.8 here")
@pytest.mark.parametrize("python", OLD)
def test_an_old_interpreter_refuses_clearly_and_is_refused(python: str) -> None:
    done = run_payload(python=python)
    assert (done.returncode, done.stderr) == (79, "envsmith-snapshot: python too old\n")
    done = run_payload("--python", python)
    assert done.returncode == 3
    assert "error[python-too-old]" in done.stderr


def test_the_facts_it_can_set_are_the_scalar_facts_of_a_host() -> None:
    hints = get_type_hints(HostFacts, include_extras=True)
    scalars = {}
    for name in HostFacts.model_fields:
        kind = next((one for one in get_args(hints[name]) if one is not type(None)), None)
        if type(None) in get_args(hints[name]):
            words = str(kind)
            scalars[name.replace("_", "-")] = (
                "text" if kind is str
                else "number" if "float" in words
                else "limit" if "ge=-1" in words
                else "count" if "ge=0" in words
                else "whole"
            )  # fmt: skip
    assert scalars == collect.FACTS


# -- overrides --------------------------------------------------------------------------------------------------------


def test_facts_are_set_by_hand_in_their_own_types_and_an_empty_value_takes_one_away() -> None:
    told = snapshot(
        env={
            "ENVSMITH_HOST_DRIVER": "470.57.02", "ENVSMITH_HOST_CPU_LIMIT": "6.5", "ENVSMITH_HOST_PROCESSES": "-1",
            "ENVSMITH_HOST_CUINIT": "803", "ENVSMITH_HOST_GLIBC": "", "ENVSMITH_HOST_CPUS": "96",
            "ENVSMITH_HOST_ACCELERATOR": "8xNVIDIA A100-SXM4-80GB:8.0:80,1xNVIDIA RTX A5500:8.6",
        }
    )  # fmt: skip
    host = told.host
    assert (host.driver, host.cpu_limit, host.processes, host.cuinit, host.glibc, host.cpus) == (
        "470.57.02", 6.5, -1, 803, None, 96,
    )  # fmt: skip
    assert [
        (one.name, one.count, one.compute_capability, one.memory_bytes, one.data_centre) for one in host.accelerator
    ] == [
        ("NVIDIA A100-SXM4-80GB", 8, "8.0", 80 << 30, True),
        ("NVIDIA RTX A5500", 1, "8.6", None, None),
    ]
    assert told.snapshot.note.endswith("set by hand: accelerator, cpu-limit, cpus, cuinit, driver, glibc, processes")
    assert not [name for name in host.environ if name.startswith("ENVSMITH_HOST_")]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CPUS", "many"), ("CPUS", "-1"), ("PROCESSES", "-2"), ("CPU_LIMIT", "1e3"), ("CUINIT", "8.0"),
        ("SHM_BYTES", "64G"), ("NO_SUCH_FACT", "1"), ("ACCELERATOR", "8 A100"), ("ACCELERATOR", "0xA100:8.0"),
    ],
)  # fmt: skip
def test_an_override_that_does_not_fit_is_one_clear_error(name: str, value: str) -> None:
    with pytest.raises(collect.Refused) as error:
        collect.overrides({f"ENVSMITH_HOST_{name}": value, "ENVSMITH_HOST_ARCH": "aarch64"})
    assert (error.value.exit_code, error.value.code, len(error.value.messages)) == (2, "snapshot-override-malformed", 1)
    assert error.value.messages[0].startswith(f"ENVSMITH_HOST_{name}={value}: ")


def test_every_wrong_override_is_said_at_once() -> None:
    done = run_payload(env={"ENVSMITH_HOST_CPUS": "x", "ENVSMITH_HOST_CUINIT": "y"})
    assert (done.returncode, done.stdout, done.stderr.count("error[snapshot-override-malformed]")) == (2, "", 2)


# -- files of the kernel ----------------------------------------------------------------------------------------------

V2_MOUNT = "30 24 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1_MOUNTS = (
    "31 24 0:27 /docker/a /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "32 24 0:28 /docker/a /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


def test_the_smallest_limit_of_all_groups_above_counts(tmp_path: Path) -> None:
    group = "/sys/fs/cgroup/kubepods/pod1/c1"
    root = place(
        tmp_path,
        {
            "/proc/self/mountinfo": V2_MOUNT,
            "/proc/self/cgroup": "0::/kubepods/pod1/c1\n",
            f"{group}/cpu.max": "max 100000\n",
            f"{group}/memory.max": f"{64 << 30}\n",
            "/sys/fs/cgroup/kubepods/pod1/cpu.max": "750000 100000\n",
            "/sys/fs/cgroup/kubepods/pod1/memory.max": f"{32 << 30}\n",
            "/sys/fs/cgroup/kubepods/cpu.max": "3200000 100000\n",
            "/sys/fs/cgroup/kubepods/other/memory.max": "1\n",
        },
    )
    assert collect.cgroup_facts(root) == {"cpu-limit": 7.5, "memory-limit-bytes": 32 << 30}


def test_limits_of_version_one_are_read_where_the_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    root = place(
        tmp_path,
        {
            "/proc/self/mountinfo": V1_MOUNTS,
            "/proc/self/cgroup": "4:cpu,cpuacct:/docker/a\n3:memory:/docker/a\n2:freezer:/docker/a\n",
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert collect.cgroup_facts(root) == {"cpu-limit": 2.0, "memory-limit-bytes": -1}


@pytest.mark.parametrize("path", ["/../../outer", "/elsewhere", "/"])
def test_a_group_that_this_namespace_cannot_see_leaves_the_mount_point(tmp_path: Path, path: str) -> None:
    files = {
        "/proc/self/mountinfo": V2_MOUNT,
        "/proc/self/cgroup": f"0::{path}\n",
        "/sys/fs/cgroup/cpu.max": "50000 100000",
    }
    assert collect.cgroup_facts(place(tmp_path, files)) == {"cpu-limit": 0.5, "memory-limit-bytes": -1}


def test_without_groups_there_is_no_fact(tmp_path: Path) -> None:
    assert collect.cgroup_facts(str(tmp_path)) == {}


CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05 UTC 2021\nGCC version:  gcc\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (nixbld@)  \nGCC version:\n"


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"/proc/driver/nvidia/version": CLOSED}, "470.57.02"),
        ({"/proc/driver/nvidia/version": OPEN}, "580.159.04"),
        ({"/sys/module/nvidia/version": "535.104.05\n"}, "535.104.05"),
        ({"/proc/driver/nvidia/version": "nothing to read here\n"}, None),
        ({}, None),
    ],
)
def test_the_kernel_driver_is_read_in_the_words_of_every_module(
    tmp_path: Path, files: dict[str, str], version: str | None
) -> None:
    assert collect.kernel_driver(place(tmp_path, files)) == version


def test_devices_without_any_program_are_known_by_name_from_the_kernel_driver(tmp_path: Path) -> None:
    files = {f"/proc/driver/nvidia/gpus/0000:0{n}:00.0/information": "Model: \t Tesla P40\nIRQ: 3\n" for n in range(2)}
    files["/proc/driver/nvidia/version"] = CLOSED
    rows, links, driver = collect.accelerator_facts(place(tmp_path, files), {"PATH": "/nonexistent"}, None, {}, [], [])
    assert rows == [{"name": "Tesla P40", "count": 2, "data-centre": True}]
    assert (links, driver) == ([], "470.57.02")


MOUNTS = """\
overlay / overlay rw 0 0
proc /proc proc rw 0 0
tmpfs /dev tmpfs rw 0 0
shm /dev/shm tmpfs rw 0 0
nas:/x /mnt/my\\040share nfs4 rw 0 0
hdfs /mnt/h fuse.hdfs rw 0 0
/dev/vdb /data ext4 rw 0 0
/dev/vdc /data xfs rw 0 0
"""


def test_mounts_are_unescaped_and_the_last_of_a_place_counts() -> None:
    mounts = dict(collect.mounts_in(MOUNTS))
    assert mounts["/data"] == "xfs"
    assert mounts["/mnt/my share"] == "nfs4"
    kinds = {point: collect.storage_kind(name) for point, name in mounts.items()}
    assert [kinds[one] for one in ("/", "/dev/shm", "/mnt/my share", "/mnt/h", "/data")] == [
        "local", "memory", "network", "fuse", "local",
    ]  # fmt: skip
    assert not collect.matters("/proc", "proc")
    assert not collect.matters("/dev", "devtmpfs")
    assert collect.matters("/", "overlay")


def test_a_folder_is_tried_and_nothing_stays(tmp_path: Path) -> None:
    folder = tmp_path / "tried"
    folder.mkdir()
    assert collect.tried(str(folder)) == dict.fromkeys(("write", "truncate", "rename", "lock"), "ok")
    assert list(folder.iterdir()) == []
    refused = collect.tried("/proc/self")
    assert list(refused) == ["write"]
    assert refused["write"] in errno.errorcode.values()


def test_a_failed_step_is_named_and_the_others_are_still_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> Any:
        def call(*_: object) -> None:
            raise OSError(number, "planted")

        return call

    monkeypatch.setattr(collect.os, "ftruncate", refuse(errno.EOPNOTSUPP))
    monkeypatch.setattr(collect.fcntl, "flock", refuse(errno.ENOLCK))
    assert collect.tried(str(tmp_path)) == {"write": "ok", "truncate": "EOPNOTSUPP", "lock": "ENOLCK", "rename": "ok"}


def test_paths_that_matter_have_rows_and_one_that_is_not_there_yet_is_tried_above(tmp_path: Path) -> None:
    later = tmp_path / "later" / "still"
    host = snapshot("--path", str(later), env={"HF_HOME": str(tmp_path / "hf")}).host
    rows = {row.path: row for row in host.file_system}
    for path in (str(Path.cwd()), os.environ["HOME"], "/dev/shm", str(tmp_path / "hf"), str(later)):
        assert rows[path].write == "ok", path
        assert (rows[path].size_bytes or 0) > 0
    assert not later.parent.exists()
    assert host.behind(str(later / "deeper")) == rows[str(later)]
    assert len(rows) == len(host.file_system)


# -- programs ---------------------------------------------------------------------------------------------------------

TOPO = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
    "GPU0\t X \tNV12\tSYS\tPIX\t0-15\t0\n"
    "GPU1\tNV12\t X \tPXB\tSYS\t0-15\t0\n"
    "GPU2\tSYS\tPXB\t X \tSYS\t16-31\t1\n"
    "NIC0\tPIX\tSYS\tSYS\t X \n\nLegend:\n\n  X    = Self\n"
)


def test_links_are_read_once_a_pair_without_network_cards_and_colours() -> None:
    assert collect.links_in(TOPO) == [
        {"a": 0, "b": 1, "kind": "NV12"}, {"a": 0, "b": 2, "kind": "SYS"}, {"a": 1, "b": 2, "kind": "PXB"},
    ]  # fmt: skip
    assert collect.links_in("No devices were found\n") == []


def test_an_old_nvidia_smi_without_the_field_of_capabilities_still_answers(tmp_path: Path) -> None:
    text = (
        'case "$*" in\n*compute_cap*) echo \'Field "compute_cap" is not a valid field to query.\'; exit 2;;\n'
        "*query-gpu*) printf 'name, memory.total [MiB], driver_version\\n';"
        " for i in 1 2 3; do echo 'Tesla P40, 24451 MiB, 470.57.02'; done;;\n"
        f"topo*) cat <<'END'\n{TOPO}END\n;;\nesac"
    )
    program(tmp_path / "bin", "nvidia-smi", text)
    host = snapshot(env={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}).host
    (row,) = host.accelerator
    assert (row.name, row.count, row.memory_bytes, row.compute_capability) == ("Tesla P40", 3, 24451 << 20, None)
    assert (row.data_centre, len(host.link), host.driver) == (True, 3, "470.57.02")


def test_a_program_that_fails_is_a_note_and_no_error(tmp_path: Path) -> None:
    program(
        tmp_path / "bin", "nvidia-smi", "echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18"
    )
    told = snapshot(env={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"})
    assert told.host.accelerator == ()
    assert "nvidia-smi failed: Failed to initialize NVML: Driver/library version mismatch" in told.snapshot.note


CSV = (
    "name, memory.total [GiB], driver_version, compute_cap, power\n"
    "Vendor X1, 96, 1.5.3-5239a4, [N/A], 400\nVendor X1, 96, 1.5.3-5239a4, [N/A], 380\n"
)
JSON = json.dumps([{"name": "Vendor X1", "memory-bytes": 96 << 30, "driver": "1.5.3-5239a4", "count": 2}])


@pytest.mark.parametrize("answer", [CSV, JSON], ids=["csv", "json"])
def test_a_declared_query_gives_the_accelerators_of_any_vendor(tmp_path: Path, answer: str) -> None:
    (tmp_path / "answer").write_text(answer)
    query = program(tmp_path, "query it", f"test \"$1\" = '--list all' && cat '{tmp_path}/answer'")
    told = snapshot("--query", f"'{query}' '--list all'")
    (row,) = told.host.accelerator
    assert (row.name, row.count, row.memory_bytes, row.compute_capability) == ("Vendor X1", 2, 96 << 30, None)
    assert (told.host.driver, row.data_centre) == ("1.5.3-5239a4", None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("exit 3", "it ended with exit code 3: nothing"),
        ("echo 'temperature, power'; echo 1, 2", "its first line has no column `name`"),
        ("echo '[1, 2]'", "its JSON is no list of objects"),
        ('echo \'[{"name": "A", "count": 0}]\'', "`0` is no count"),
    ],
)
def test_a_query_that_gives_nothing_is_said_in_the_note(tmp_path: Path, text: str, words: str) -> None:
    query = program(tmp_path, "query", text)
    told = snapshot("--query", str(query))
    assert told.host.accelerator == ()
    assert f"the query gave nothing: {words}" in told.snapshot.note


def test_what_a_better_source_had_replaces_the_program(tmp_path: Path) -> None:
    program(tmp_path / "bin", "nvidia-smi", "echo 'name, driver_version'; echo 'Other, 1.0'")
    given_facts = {
        "accelerator": [{"name": "NVIDIA H200", "memory-bytes": 5, "compute-capability": "9.0"}] * 2,
        "link": [{"a": 0, "b": 1, "kind": "NV18"}],
        "driver": "580.159.04",
    }
    (tmp_path / "given.json").write_text(json.dumps(given_facts))
    host = snapshot(
        "--given", str(tmp_path / "given.json"), env={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    ).host
    assert [(one.name, one.count, one.data_centre) for one in host.accelerator] == [("NVIDIA H200", 2, True)]
    assert (host.driver, [link.kind for link in host.link]) == ("580.159.04", ["NV18"])


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("NVIDIA H200", True), ("Tesla V100-SXM2-32GB", True), ("NVIDIA A100-SXM4-80GB", True), ("NVIDIA L40S", True),
        ("NVIDIA GeForce RTX 4090", False), ("NVIDIA TITAN V", False), ("NVIDIA RTX A5500", None),
        ("NVIDIA T1000", None), ("Vendor A100", None), ("Quadro P4000", None),
    ],
)  # fmt: skip
def test_data_centre_lines_are_told_from_others_and_the_rest_is_left_open(name: str, answer: bool | None) -> None:
    assert collect.grouped([{"name": name}])[0].get("data-centre") is answer


# -- libcuda ----------------------------------------------------------------------------------------------------------


def make_libcuda(folder: Path, body: str, *, version: str = "550.54.15", linker: bool = True) -> Path:
    """Build a libcuda with the compiler of this machine, laid out as a driver is."""
    assert COMPILER
    folder.mkdir(parents=True)
    source = folder / "cuda.c"
    source.write_text(
        f"#include <stdlib.h>\nint cuInit(unsigned int flags) {{ {body} }}\n"
        "int cuDriverGetVersion(int *v) { *v = 12040; return 0; }\n"
        "int cuDeviceGetCount(int *n) { *n = 2; return 0; }\n"
        "int cuDeviceGet(int *d, int n) { *d = n; return 0; }\n"
        "int cuDeviceGetName(char *s, int n, int d) { s[0] = 'N'; s[1] = 0; return 0; }\n"
        "int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 9 : 0; return 0; }\n"
        "int cuDeviceTotalMem_v2(size_t *v, int d) { *v = 1234; return 0; }\n"
    )
    library = folder / f"libcuda.so.{version}"
    subprocess.run([COMPILER, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, source], check=True)
    (folder / "libcuda.so.1").symlink_to(library.name)
    if linker:
        (folder / "libcuda.so").symlink_to("libcuda.so.1")
    return library


needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler here")


@needs_compiler
@pytest.mark.parametrize(
    ("body", "answer", "note"),
    [
        ("return 803;", 803, ""),
        ("return 0;", 0, ""),
        ("abort();", -6, "cuInit ended its process with signal SIGABRT"),
    ],
)
def test_what_a_fresh_process_maps_and_is_answered(tmp_path: Path, body: str, answer: int, note: str) -> None:
    library = make_libcuda(tmp_path / "compat", body)
    told = snapshot(env={"LD_LIBRARY_PATH": f"/nonexistent:{tmp_path / 'compat'}"})
    host = told.host
    assert (host.libcuda, host.libcuda_version, host.cuinit) == (str(library), "550.54.15", answer)
    assert host.cuda_driver_version == (None if note else "12.4")
    assert note in told.snapshot.note
    (folder,) = (row for row in host.driver_folder if row.path == str(tmp_path / "compat"))
    assert (folder.kind, folder.version, folder.unversioned, folder.found_by) == (
        "compat", "550.54.15", True, "LD_LIBRARY_PATH",
    )  # fmt: skip
    if answer == 0:  # no program names a device here: the library's own words are taken
        (device,) = host.accelerator
        assert (device.name, device.count, device.compute_capability, device.memory_bytes) == ("N", 2, "9.0", 1234)


@needs_compiler
def test_a_libcuda_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = make_libcuda(tmp_path / "x", "for (;;);")
    monkeypatch.setattr(collect, "CUINIT_S", 2.0)
    notes: list[str] = []
    facts, devices = collect.libcuda_facts({**os.environ, "LD_LIBRARY_PATH": str(tmp_path / "x")}, notes)
    assert (facts, devices) == ({"libcuda": str(library), "libcuda-version": "550.54.15"}, [])
    assert notes == ["cuInit did not answer within 2 s"]


@needs_compiler
def test_a_stub_is_told_by_its_answer(tmp_path: Path) -> None:
    make_libcuda(tmp_path / "lib", "return 34;")
    host = snapshot(env={"LD_LIBRARY_PATH": str(tmp_path / "lib")}).host
    assert [row.kind for row in host.driver_folder if row.path == str(tmp_path / "lib")] == ["stubs"]


@needs_compiler
def test_every_folder_with_a_libcuda_appears_once_with_what_it_is(tmp_path: Path) -> None:
    root = tmp_path / "root"
    make_libcuda(root / "usr/local/nvidia/lib64", "return 0;", version="580.159.04")
    (root / "usr/local/nvidia/lib").symlink_to("lib64")
    (root / "usr/lib").mkdir()
    (root / "usr/lib/libcuda.so.1").symlink_to(root / "usr/local/nvidia/lib64/libcuda.so.1")
    make_libcuda(root / "usr/local/cuda-13.0/compat", "return 803;", version="580.95.05", linker=False)
    (root / "usr/local/cuda").symlink_to("cuda-13.0")
    stubs = make_libcuda(root / "usr/local/cuda-13.0/targets/x86_64-linux/lib/stubs", "return 34;")
    for name in ("libcuda.so.1", "libcuda.so"):
        (stubs.parent / name).unlink()
    stubs.rename(stubs.parent / "libcuda.so")
    (root / "opt/text").mkdir(parents=True)
    (root / "opt/text/libcuda.so.1").write_text("no library")
    loader = collect.Loader(str(root), {"LD_LIBRARY_PATH": "/usr/local/nvidia/lib64:/opt/text"}, "/")
    rows = {row["path"]: row for row in collect.driver_folders(loader, "580.159.04")}
    assert {path: (row["kind"], row["version"], row["unversioned"], row["found-by"]) for path, row in rows.items()} == {
        "/usr/local/nvidia/lib64": ("driver", "580.159.04", True, "LD_LIBRARY_PATH"),
        "/usr/local/cuda-13.0/compat": ("compat", "580.95.05", False, "search"),
        "/usr/local/cuda-13.0/targets/x86_64-linux/lib/stubs": ("stubs", None, True, "search"),
    }


@needs_compiler
def test_libraries_of_the_family_are_those_that_the_loader_would_give(tmp_path: Path) -> None:
    library = make_libcuda(tmp_path / "lib", "return 0;")
    for name in ("libnccl.so.2", "libcudnn.so.9", "libnccl-net.so.1"):
        shutil.copy(library, tmp_path / "lib" / name)
    (tmp_path / "lib" / "libcublas.so.12").write_text("no library")
    rows = {row.name: row for row in snapshot(env={"LD_LIBRARY_PATH": str(tmp_path / "lib")}).host.library}
    assert rows["libnccl.so.2"].path == str(tmp_path / "lib" / "libnccl.so.2")
    assert rows["libcudnn.so.9"].found_by == "LD_LIBRARY_PATH"
    assert "libnccl-net.so.1" not in rows
    assert getattr(rows.get("libcublas.so.12"), "path", "") != str(tmp_path / "lib" / "libcublas.so.12")


def test_the_cache_of_the_loader_is_read_as_the_other_reader_does() -> None:
    cache = Path("/etc/ld.so.cache")
    if not cache.is_file():
        pytest.skip("this machine has no loader's cache")
    entries = list(collect.ld_cache(cache.read_bytes()))
    assert entries == list(cache_entries(cache))
    assert any(name == "libc.so.6" for name, _ in entries)
    assert list(collect.ld_cache(cache.read_bytes()[:100])) == []


# -- variables and TOML -----------------------------------------------------------------------------------------------


def test_variables_that_may_be_secret_are_left_out_name_and_all() -> None:
    secret = {
        "HF_TOKEN": "x", "RAY_REDIS_PASSWORD": "x", "SLURM_JWT_SECRET": "x", "NVIDIA_API_KEY": "x",
        "HF_ENDPOINT": "https://me:word@mirror/hf", "HF_HUB": "https://mirror/hf?X-Amz-Signature=abc",
        "CUDA_CACHE_PATH": "hf_abcdefghijklmnopqrstuvwxyz",
    }  # fmt: skip
    plain = {
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64", "PYTORCH_CUDA_ALLOC_CONF": "backend:native",
        "PPU_SDK": "/opt/sdk", "HF_HOME": "/data/hf", "NCCL_SOCKET_IFNAME": "eth0", "CC": "gcc", "HF_ENDPOINT_2": "https://mirror/hf?page=2",
    }  # fmt: skip
    assert collect.shown_environ({**secret, **plain, "EDITOR": "vi", "ENVSMITH_HOST_CPUS": "2"}) == plain


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_any_text_is_written_so_that_it_is_read_back(content: dict[str, str]) -> None:
    clean = {
        key.encode("utf-8", "replace").decode(): value.encode("utf-8", "replace").decode()
        for key, value in content.items()
    }
    assert read_toml(collect.table("[x]", clean))["x"] == clean


def test_bytes_that_are_no_text_become_visible_escapes() -> None:
    env = {**os.environ, "LD_X": "placeholder"}
    raw = {os.fsencode(key): os.fsencode(value) for key, value in env.items()}
    raw[b"LD_X"] = b'a\xff\x1b[31m"\\\n'
    done = subprocess.run([sys.executable, PAYLOAD], capture_output=True, env=raw, timeout=120, check=True)
    told = parse_snapshot(done.stdout.decode("utf-8"), "stdout")
    assert told.host.environ["LD_X"] == 'a\\xff\x1b[31m"\\\n'


# -- sections and outputs ---------------------------------------------------------------------------------------------


def test_a_section_that_crashes_is_named_and_the_others_still_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(collect, "cgroup_facts", crash)
    monkeypatch.setattr(collect, "file_systems", crash)
    answer = collect.collect(collect.words_of([]), dict(os.environ), str(Path.cwd()))
    told = parse_snapshot(collect.written(answer), "x")
    assert "the section `cgroup` failed: RuntimeError: planted" in told.snapshot.note
    assert "the section `file-system` failed: RuntimeError: planted" in told.snapshot.note
    assert (told.host.cpu_limit, told.host.file_system) == (None, ())
    assert told.host.arch == os.uname().machine
    assert told.host.open_files is not None


def test_the_file_is_whole_or_not_there(tmp_path: Path) -> None:
    done = run_payload("-o", str(tmp_path / "s.toml"), "--tool", "test 1")
    assert (done.returncode, done.stdout, [one.name for one in tmp_path.glob("*s.toml*")]) == (0, "", ["s.toml"])
    about = parse_snapshot((tmp_path / "s.toml").read_text(), "x").snapshot
    assert (about.origin, about.tool) == ("captured", "test 1")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", about.taken or "")
    done = run_payload("-o", str(tmp_path / "none" / "s.toml"))
    assert (done.returncode, "error[root-not-writable]" in done.stderr) == (4, True)


def test_from_a_pipe_it_says_that_it_must_be_a_file() -> None:
    with PAYLOAD.open("rb") as source:
        done = subprocess.run([sys.executable, "-"], stdin=source, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("envsmith-snapshot: error[usage]: save this file first")


def test_a_reader_that_goes_away_is_no_error() -> None:
    child = subprocess.Popen([sys.executable, PAYLOAD], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout and child.stderr
    child.stdout.close()
    assert (child.wait(timeout=120), child.stderr.read()) == (0, b"")
    child.stderr.close()


def test_site_hooks_neither_break_it_nor_change_what_it_sees(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "hooked")
    hook = (
        "import json, os, subprocess, sys\n"
        "json.dumps = None\nsubprocess.Popen = None\nos.environ['LD_PLANTED'] = 'by the hook'\n"
        "print('noise on stdout')\n"
    )
    (venv.site / "sitecustomize.py").write_text(hook)
    told = snapshot("--python", str(venv.path / "bin/python"), python=venv.path / "bin/python", env={"LD_REAL": "1"})
    assert told.host.environ["LD_REAL"] == "1"
    assert "LD_PLANTED" not in told.host.environ
    assert told.snapshot.note == ""
    assert told.python is not None
    assert [Path(one.path).name for one in told.python.hook] == ["sitecustomize.py"]


# -- an interpreter and its packages ----------------------------------------------------------------------------------


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    venv = make_venv(tmp_path / "venv")
    venv.install(
        "Good_Pkg", "1.0+cu128",
        {"good/__init__.py": "a = 1\n", "good/b.py": "b = 2\n", "good/c.pyc": "x", "good/d": "d", "good/e": ""},
        requires=("numpy>=1.20", "broken ==> 2"), unhashed=("good/d", "good/e"),
    )  # fmt: skip
    (venv.site / "good/b.py").write_text("b = 3\n")
    (venv.site / "good/c.pyc").write_text("another")
    (venv.site / "good/e").unlink()
    venv.install("lost", "2.0", {"lost.py": "x = 1\n", "kept.py": "y = 1\n"})
    (venv.site / "lost.py").unlink()
    venv.install("clean", "3.0", {"clean.py": "x = 1\n", "../../../bin/clean": "#!/bin/sh\n"})
    direct = json.dumps({"url": "file:///src/my%20tree", "dir_info": {"editable": True}})
    venv.install("edit", "0.1", {}, more={"direct_url.json": direct})
    venv.install("odd", "not-a-version", {"odd.py": ""})
    (venv.site / "hook.pth").write_text("import sys\n")
    venv.install("hooked", "1.0", {"hooked.pth": "import os\n"})
    egg = venv.site / "egg-1.5.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: Egg\nVersion: 1.5\n")
    (egg / "installed-files.txt").write_text("../egg.py\nPKG-INFO\n")
    (venv.site / "egg.py").write_text("e = 1\n")
    (venv.site / "bare-2.5.egg-info").write_text("Metadata-Version: 1.0\nName: bare\nVersion: 2.5\n")
    (venv.site / "linked.py").write_text("l = 1\n")
    os.link(venv.site / "clean.py", venv.site / "clean_too.py")
    venv.install("linked", "1.0", {"link.py": "l = 1\n"})
    (venv.site / "link.py").unlink()
    (venv.site / "link.py").symlink_to("linked.py")
    return venv


def test_files_record_and_altered_are_those_of_the_other_reader(venv: Venv) -> None:
    told = snapshot("--python", str(venv.path / "bin/python"))
    states = {state.name: state for state in package_states(venv.path, (SITE,))}
    assert told.by_name().keys() == states.keys()
    for name, package in told.by_name().items():
        state = states[name]
        assert package.files == state.files, name
        assert package.record == state.record, name
        assert {one.path: one.sha256 for one in package.altered} == state.altered, name
        assert package.version == (None if name == "odd" else state.version)
    assert {name for name, state in states.items() if state.altered} == {"good-pkg", "lost"}
    assert states["egg"].files is not None
    assert states["bare"].files is None


def test_names_versions_requirements_and_hooks_of_an_interpreter(venv: Venv) -> None:
    told = snapshot("--python", str(venv.path / "bin" / ".." / "bin" / "python"), env={"PYTHONPATH": "/nonexistent"})
    python, packages = told.python, told.by_name()
    assert python is not None
    assert (python.executable, python.prefix) == (str(venv.path / "bin/python"), str(venv.path))
    assert python.version == "{}.{}.{}".format(*sys.version_info[:3])
    assert python.site == (str(venv.site),)
    assert packages["good-pkg"].version == "1.0+cu128"
    assert packages["good-pkg"].requires == ("numpy>=1.20",)
    assert packages["edit"].editable == "/src/my tree"
    assert {Path(one.path).name: one.owner for one in python.hook} == {"hook.pth": None, "hooked.pth": "hooked"}
    assert "1 requirements of packages cannot be read" in told.snapshot.note
    assert "odd `not-a-version`" in told.snapshot.note


def test_the_first_of_two_of_a_name_counts_and_the_other_is_said(venv: Venv) -> None:
    venv.install("Clean", "2.9", {})
    told = snapshot("--python", str(venv.path / "bin/python"))
    assert sum(1 for one in told.packages if one.name == "clean") == 1
    assert "hidden by others of their name: clean" in told.snapshot.note


def test_nothing_is_written_into_the_environment(venv: Venv) -> None:
    def listed() -> set[tuple[str, int]]:
        return {(str(one), one.lstat().st_mtime_ns) for one in venv.path.rglob("*")}

    before = listed()
    snapshot("--python", str(venv.path / "bin/python"))
    assert listed() == before


@pytest.mark.parametrize("words", ["missing", "folder", "text"])
def test_what_is_no_python_is_refused(tmp_path: Path, words: str) -> None:
    (tmp_path / "folder").mkdir()
    program(tmp_path, "text", "echo hello; exit 9")
    done = run_payload("--python", str(tmp_path / words))
    assert (done.returncode, done.stdout) == (6, "")
    assert done.stderr.startswith("envsmith-snapshot: error[interpreter-broken]: `")
    assert done.stderr.count("\n") == 1


REQUIREMENTS = (
    "a", "a>=1", "a (>=1.0)", "a[b,c]~=1.2; extra == 'x'", "a @ https://x/y.whl", "a @ https://x/y.whl ; os_name=='nt'",
    "a==1.*", "a!=1.0.dev1", "a<2,>=1; (python_version < '3' or sys_platform == 'win32') and extra == \"t\"", "a===odd",
    "a>=1,", "a; 'x' in platform_version", "a; python_version not in '2.7'", "zope.interface>=4; os.name == 'posix'",
)  # fmt: skip
NO_REQUIREMENTS = (
    "a =>1", "a>=1 b", "a;", "a; foo == 'x'", "a; python_version", "a; (os_name == 'x'", "a[b", "-a", "", "a ~= 1",
    "a>1.*", "a>=", "a; os_name == 'x' and", "a; os_name 'x'",
)  # fmt: skip


@pytest.mark.parametrize("line", [*REQUIREMENTS, *NO_REQUIREMENTS])
def test_requirements_are_judged_as_packaging_judges_them(line: str) -> None:
    try:
        Requirement(line)
        expected = True
    except InvalidRequirement:
        expected = False
    assert expected is (line in REQUIREMENTS)
    assert collect.is_requirement(line) is expected


def test_every_requirement_installed_here_is_kept() -> None:
    from importlib.metadata import distributions

    lines = {line for one in distributions() for line in one.requires or ()}
    assert len(lines) > 50
    assert {line for line in lines if not collect.is_requirement(line)} == set()


@given(
    st.text(alphabet="ab1.[],;()<>=!~*@+ '\"-", max_size=24)
    | st.from_regex(r"a[<>=!~]=?[0-9a.*+!-]{0,8}", fullmatch=True)
)
def test_what_is_kept_can_always_be_read_later(line: str) -> None:
    if collect.is_requirement(line):
        Requirement(line)


@given(st.from_regex(r"v?(\d!)?\d(\.\d){0,2}[-_.]?(a|rc|post|dev|x)?\d?(\+[a-z.]{0,3})?", fullmatch=True))
def test_versions_are_judged_as_packaging_judges_them(text: str) -> None:
    try:
        Version(text)
        expected = True
    except InvalidVersion:
        expected = False
    assert bool(collect.VERSION.match(text)) is expected


# -- one real computation ---------------------------------------------------------------------------------------------

#: As much of torch as the run touches; numbers stand for matrices.
TORCH = """
import os
__version__ = "2.10.0+cu128"
bfloat16 = "bfloat16"
class version: cuda = "12.8"
class T(float):
    to = lambda self, *a, **k: self
    double = cpu = abs = max = all = lambda self: self
    __sub__ = lambda self, other: T(float(self) - float(other))
    __abs__ = lambda self: T(float.__abs__(self))
class Generator:
    def manual_seed(self, n): return self
def randn(*shape, generator): return T(2)
calls = []
def matmul(a, b):
    calls.append(1)
    return T(WRONG) if len(calls) == 2 else T(4)
def isfinite(x): return T(x == x)
class cuda:
    is_available = staticmethod(lambda: True)
    get_device_name = staticmethod(lambda n: "NVIDIA H200")
"""


def torch_venv(folder: Path, body: str) -> Path:
    venv = make_venv(folder)
    (venv.site / "torch").mkdir()
    (venv.site / "torch" / "__init__.py").write_text(body)
    return venv.path / "bin" / "python"


@pytest.mark.parametrize(
    ("body", "ok", "error"),
    [
        (TORCH.replace("WRONG", "4"), True, None),
        (TORCH.replace("WRONG", "9"), False, "the product is off by"),
        (TORCH.replace("WRONG", "float('nan')"), False, "the product is not finite"),
        ("raise ImportError('libcudart.so.12: cannot open')", False, "ImportError: libcudart.so.12: cannot open"),
        ("import os\nos.abort()", False, "the process ended while torch was imported; it ended with signal SIGABRT"),
    ],
)
def test_one_product_is_computed_in_a_fresh_process(tmp_path: Path, body: str, ok: bool, error: str | None) -> None:
    python = torch_venv(tmp_path / "t", body)
    words = ["--python", str(python)]
    place(tmp_path, {"other/torch/__init__.py": "raise ImportError('this is not the torch of that interpreter')"})
    (tmp_path / "given.json").write_text(json.dumps({"accelerator": [{"name": "NVIDIA H200"}], "driver": "580.159.04"}))
    told = snapshot(*words, "--given", str(tmp_path / "given.json"), env={"PYTHONPATH": str(tmp_path / "other")})
    (row,) = told.host.run
    assert (row.dtype, row.ok, row.driver) == ("bfloat16", ok, "580.159.04")
    assert (row.error or "").startswith(error or "") and bool(row.error) is bool(error)
    if "matmul" in body:
        assert (row.torch, row.cuda, row.device) == ("2.10.0+cu128", "12.8", "NVIDIA H200")
    assert snapshot(*words, "--no-run", "--given", str(tmp_path / "given.json")).host.run == ()
    assert snapshot(*words).host.run == ()  # no accelerator


def test_a_computation_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = torch_venv(tmp_path / "t", "import time\ntime.sleep(600)")
    monkeypatch.setattr(collect, "RUN_S", 2.0)
    row = collect.device_run(str(python), dict(os.environ), "580.1")
    assert (row["ok"], row["error"]) == (False, "`python` did not end within 2 s")
