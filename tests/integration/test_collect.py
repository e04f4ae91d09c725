"""The payload of `envsmith snapshot`: what it makes of files of the kernel, of programs, libraries and environments."""

from __future__ import annotations

import ast
import errno
import hashlib
import importlib.util
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from envsmith.basepackages import PackageState
from envsmith.commands.snapshot import PAYLOAD
from envsmith.host import Snapshot, parse_snapshot
from envsmith.hostfacts import HostFacts
from envsmith.toml_reader import read_toml
from envsmith.tools.distributions import package_states, read_distributions
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
    # a release is text that a person may set to numbers with dots only
    assert scalars == {key: "text" if form == "release" else form for key, form in collect.FACTS.items()}


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
        ("GLIBC", "rubbish"), ("GLIBC", "2"), ("GLIBC", "2.٣"), ("CUDA_DRIVER_VERSION", "rubbish"), ("CPUS", "٣"),
        ("PROCESSES", "٣"), ("CPU_LIMIT", "٣.٥"), ("CUINIT", "٨"), ("ACCELERATOR", "8xA100:٨.٠"),
        ("ACCELERATOR", "٨xA100:8.0"), ("ACCELERATOR", "8xA100:8.0:٨"), ("CPUS", "9" * 20), ("CPU_LIMIT", "9" * 400),
        ("ACCELERATOR", "9" * 20 + "xA100:8.0"), ("ACCELERATOR", "8xA100:8.0:" + "9" * 20),
        ("ACCELERATOR", "8x :8.0"),
    ],
)  # fmt: skip
def test_an_override_that_does_not_fit_is_one_clear_error(name: str, value: str) -> None:
    with pytest.raises(collect.Refused) as error:
        collect.overrides({f"ENVSMITH_HOST_{name}": value, "ENVSMITH_HOST_ARCH": "aarch64"})
    assert (error.value.exit_code, error.value.code, len(error.value.messages)) == (2, "snapshot-override-malformed", 1)
    assert error.value.messages[0].startswith(f"ENVSMITH_HOST_{name}={value}: ")


@pytest.mark.parametrize("name", ["DRIVER", "OS", "COMPILER", "ACCELERATOR", "GLIBC"])
@pytest.mark.parametrize("mark", ["\n", "\x1b[31m", "\x7f", "\x85", "\u2028"])
def test_control_characters_are_refused_in_every_override_and_not_repeated(name: str, mark: str) -> None:
    with pytest.raises(collect.Refused) as error:
        collect.overrides({f"ENVSMITH_HOST_{name}": f"8xA{mark}B:8.0"})
    (message,) = error.value.messages
    assert message.endswith("it must be one line without control characters")
    assert mark not in message or mark == "\u2028"


def test_a_driver_of_another_vendor_is_free_text() -> None:
    assert collect.overrides({"ENVSMITH_HOST_DRIVER": "1.5.3-5239a4 (PPU)"}) == {"driver": "1.5.3-5239a4 (PPU)"}
    assert collect.overrides({"ENVSMITH_HOST_GLIBC": "2.31", "ENVSMITH_HOST_CUDA_DRIVER_VERSION": "12.8"}) == {
        "glibc": "2.31", "cuda-driver-version": "12.8",
    }  # fmt: skip


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


@pytest.mark.parametrize(
    ("files", "driver"),
    [
        ({}, ""),
        ({"/dev/nvidiactl": ""}, None),
        ({"/proc/driver/nvidia/version": "nothing to read here\n"}, None),
        ({"/proc/driver/nvidia/gpus/0/information": "Model: \t Tesla P40\n"}, None),
        ({"/proc/driver/nvidia/version": CLOSED}, "470.57.02"),
    ],
)
def test_no_driver_is_told_from_one_that_nobody_can_name(
    tmp_path: Path, files: dict[str, str], driver: str | None
) -> None:
    root = place(tmp_path, files)
    assert collect.accelerator_facts(root, {"PATH": "/nonexistent"}, None, {}, [], [])[2] == driver


#: Answers that make the readers of CSV and JSON raise something else than ValueError, at least in some Python.
STRANGE = {
    "nul": "printf 'name\\nX\\000Y\\n'",
    "deep": "head -c 200000 /dev/zero | tr '\\0' '['",
    "long": "echo name; head -c 200000 /dev/zero | tr '\\0' 'x'",
    "huge": "echo 'name, memory.total'; printf 'X, '; head -c 500 /dev/zero | tr '\\0' '9'",
}


@pytest.mark.parametrize("text", STRANGE.values(), ids=STRANGE)
def test_no_answer_of_a_program_takes_away_what_the_kernel_says(tmp_path: Path, text: str) -> None:
    root = place(tmp_path / "root", {"/proc/driver/nvidia/version": CLOSED})
    path = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    program(tmp_path / "bin", "nvidia-smi", text)
    for query in (None, str(tmp_path / "bin" / "nvidia-smi")):
        assert collect.accelerator_facts(root, path, query, {}, [], [])[2] == "470.57.02"
    told = snapshot("--query", str(tmp_path / "bin" / "nvidia-smi"))
    assert "the section" not in told.snapshot.note
    if not told.host.accelerator:
        assert "the query gave nothing" in told.snapshot.note
        assert told.host.driver is None  # whoever could have named one did not


def test_a_section_of_accelerators_that_crashes_leaves_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(collect, "accelerator_facts", crash)
    for kernel in ("470.57.02", None):
        monkeypatch.setattr(collect, "kernel_driver", lambda root, kernel=kernel: kernel)
        answer = collect.collect(collect.words_of([]), dict(os.environ), str(Path.cwd()))
        assert parse_snapshot(collect.written(answer), "x").host.driver == kernel


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


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[str]:
    """Words for a shell that leave a process behind, in a session of its own, which keeps stdout and stderr open."""
    pids = tmp_path / "daemons"
    yield f"setsid sh -c 'echo $$ >> {pids}; exec sleep 1000' &\nwhile ! test -s {pids}; do :; done"
    for number in pids.read_text().split():
        os.kill(int(number), signal.SIGKILL)


def test_a_daemon_that_a_program_leaves_behind_does_not_hold_us(tmp_path: Path, daemon: str) -> None:
    query = program(tmp_path, "query", f"{daemon}\necho name\necho X\necho words >&2")
    told = snapshot("--query", str(query))
    assert [one.name for one in told.host.accelerator] == ["X"]
    said = collect.run_program([str(query)], dict(os.environ))
    assert (said.code, said.out, said.error) == (0, "name\nX\n", "words\n")


def test_a_program_that_hangs_behind_a_daemon_is_given_up_and_not_asked_twice(
    tmp_path: Path, daemon: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "PROGRAM_S", 2.0)
    monkeypatch.setattr(collect, "LINGER_S", 0.1)
    monkeypatch.setattr(collect.run_program, "__defaults__", (2.0, None))
    smi = program(tmp_path / "bin", "nvidia-smi", f"echo x >> {tmp_path}/calls\n{daemon}\nexec sleep 1000")
    path = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    root, notes = place(tmp_path / "root", {"/proc/driver/nvidia/version": CLOSED}), []  # type: ignore[var-annotated]
    assert collect.accelerator_facts(root, path, None, {}, [], notes) == ([], [], "470.57.02")
    assert notes == ["nvidia-smi failed: `nvidia-smi` did not end within 2 s"]
    assert (tmp_path / "calls").read_text() == "x\n"
    assert collect.accelerator_facts(root, path, str(smi), {}, [], notes)[2] == "470.57.02"
    assert (tmp_path / "calls").read_text() == "x\nx\n"


def test_endless_words_of_a_program_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "HEARD_BYTES", 1000)
    said = collect.run_program(["sh", "-c", "head -c 300000 /dev/zero; exit 3"], dict(os.environ))
    assert (said.code, len(said.out), said.error) == (3, 1000, "")


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
        ('echo \'[{"name": "A", "count": "٣"}]\'', "`٣` is no count"),
        (f'echo \'[{{"name": "A", "count": 1{"0" * 30}}}]\'', f"`1{'0' * 30}` is no count"),
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
        ("NVIDIA A100-SXM4-80GB", True), ("NVIDIA A100 80GB PCIe", True), ("A100-PCIE-40GB", True),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", True), ("NVIDIA A800-SXM4-80GB", True), ("NVIDIA A800 80GB PCIe", True),
        ("NVIDIA H100 80GB HBM3", True), ("NVIDIA H100 PCIe", True), ("NVIDIA H800", True), ("NVIDIA H20", True),
        ("NVIDIA H20-3e", True), ("NVIDIA H200", True), ("NVIDIA H200 NVL", True), ("NVIDIA B200", True),
        ("NVIDIA GB200", True), ("NVIDIA GB300", True), ("NVIDIA GH200 480GB", True), ("NVIDIA L4", True),
        ("NVIDIA L40", True), ("NVIDIA L40S", True), ("NVIDIA A10", True), ("NVIDIA A10G", True), ("NVIDIA A30", True),
        ("NVIDIA A40", True), ("NVIDIA A40-48Q", True), ("Tesla T4", True), ("NVIDIA T4", True), ("GRID T4-16Q", True),
        ("Tesla V100-SXM2-32GB", True), ("Tesla V100S-PCIE-32GB", True), ("Tesla P40", True),
        ("Tesla P100-PCIE-16GB", True), ("Tesla K40m", True), ("Tesla K80", True), ("NVIDIA A100X", True),
        ("NVIDIA GeForce RTX 4090", False), ("NVIDIA GeForce RTX 5090 D", False), ("GeForce GTX 1080 Ti", False),
        ("NVIDIA TITAN V", False), ("TITAN Xp", False), ("NVIDIA TITAN RTX", False),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None), ("NVIDIA RTX PRO 4000 Blackwell", None),
        ("NVIDIA RTX A5500", None), ("NVIDIA RTX A2000 12GB", None), ("Quadro P4000", None), ("Quadro RTX 8000", None),
        ("Quadro GV100", None), ("NVIDIA RTX 6000 Ada Generation", None), ("NVIDIA RTX 5000 Ada Generation", None),
        ("NVIDIA T1000", None), ("NVIDIA T400 4GB", None), ("NVIDIA A800 40GB Active", None), ("NVIDIA GB10", None),
        ("Vendor A100", None), ("NVIDIA A1000", None), ("NVIDIA H2000", None),
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


def test_a_pipe_in_the_place_of_a_library_or_of_metadata_holds_nobody(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    for name in ("libnccl.so.2", "libcudnn.so.9"):
        os.mkfifo(tmp_path / "lib" / name)
    venv = make_venv(tmp_path / "venv")
    os.mkfifo(venv.site / "x.pth")  # nothing but the name matters: this Python is not started, it would wait too
    info = venv.install("piped", "1.0", {"piped.py": ""})
    (info / "RECORD").unlink()
    os.mkfifo(info / "RECORD")
    host = snapshot(env={"LD_LIBRARY_PATH": str(tmp_path / "lib")}).host
    assert not [row for row in host.library if row.path.startswith(str(tmp_path))]
    assert collect.hook_rows({"site": [str(venv.site)], "path": []}, []) == []
    (one,) = collect.distributions_in([str(venv.site)], [])
    assert (one.name, one.version, one.rows, one.record) == ("piped", "1.0", None, None)


def test_a_folder_of_the_loader_that_does_not_answer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand-in for a mount whose server is gone: everything that looks below `dead` waits until the test ends."""
    release, listed, is_file = threading.Event(), os.listdir, os.path.isfile

    def waits(real: Callable[[str], Any]) -> Callable[[str], Any]:
        def call(path: str) -> Any:
            if str(path).startswith(str(tmp_path / "dead")):
                release.wait(10.0)
            return real(path)

        return call

    monkeypatch.setattr(collect, "PATIENCE_S", 0.5)
    monkeypatch.setattr(collect.os, "listdir", waits(listed))
    monkeypatch.setattr(collect.os.path, "isfile", waits(is_file))
    environ = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path / "dead")}
    try:
        told = collect.collect(collect.words_of([]), environ, "/")
    finally:
        release.set()
    assert f"the folder `{tmp_path / 'dead'}` did not answer within 0 s" in told["snapshot"]["note"]
    assert told["host"]["arch"] == os.uname().machine


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "x1") for name in (
            "VLLM_PASS", "RAY_DB_PASS", "NCCL_PASSPHRASE", "RAY_REDIS_PW", "HF_PWD", "SLURM_JWT", "CUDA_JWT_FILE",
            "HF_TOKENS", "XDG_AUTH", "VLLM_API_KEY",
        )),
        *(("RAY_JOB_CONFIG_JSON_ENV_VAR", value) for value in (
            '{"runtime_env": {"env_vars": {"HF_TOKEN": "abc"}}}', '{"a": "{\\"HF_TOKEN\\": \\"abc\\"}"}',
            '{"env_vars":{"WANDB_API_KEY":"abc"}}', "{'db_password': 'abc'}", '{"DB_PASS": "abc"}', "HF_TOKEN: abc",
            "a HF_TOKEN=abc b", "export MY_KEY=abc",
        )),
        *(("VLLM_ARGS", value) for value in (
            "serve --api-key abc", "serve --api-key=abc", "--token abc", "--hf-token abc", "--password abc",
            "-H Authorization: Bearer abc", "Authorization: Basic dTpw", "Bearer abc", "bearer abc", "user:pw@host",
            "x user:pw@host:5432/db", "host=user:pw@host", "redis :pw@host", "user:p/w@host", "https://me:p/w@host/x",
            "https://host/#token=abc", "https://host/#access_token=abc", "https://host/?x=1&sig=abc",
            "postgres://me@host/", "-----BEGIN RSA PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----",
        )),
        *(("CUDA_PATH", value) for value in (
            "github_pat_11ABCDEFG0abcdefghijkl_ABCDEFGHIJ", "ghs_abcdefghijklmnop1234", "ghu_abcdefghijklmnop1234",
            "ghp_abcdefghijklmnop1234", "AIzaSyA1234567890abcdefghijklmnopqrstu", "nvapi-abcdefghijklmnop",
            "ASIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOP", "hf_abcdefghijklmnopqrstuvwxyz", "sk-abcdefghijklmnopqrst",
            "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.x",
        )),
    ],
)  # fmt: skip
def test_a_secret_in_any_form_takes_its_variable_away(name: str, value: str) -> None:
    assert collect.shown_environ({name: value}) == {}
    if value != "x1":
        assert value.rpartition("abc")[1] not in collect.cut(f"it said: {value}") or "abc" not in value
        assert "may hold a secret" in collect.cut(f"it said: {value}") or "://" in value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_LIBRARY_PATH", "/opt/keyring/lib:/opt/monkey:/usr/local/nvidia/lib64"),
        ("PATH", "/opt/python@3.11/bin:/opt/tokens:/usr/bin"), ("PATH", ":/opt/x@1/bin"), ("PATH", "bin:/opt/x@1/bin"),
        ("VLLM_ARGS", "--tokenizer /data/m --max-num-batched-tokens 8192"), ("RAY_ADDRESS", "10.0.0.1:6379"),
        ("HF_ENDPOINT", "https://mirror:8080/hf?page=2"), ("NCCL_SOCKET_IFNAME", "=eth0"), ("CC", "gcc -O2"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:128"), ("XDG_PASSES", "3"),
        *(("XDG_DATA", part * 8000) for part in ("-key", "keykey", "a_", "://a", "?sig", "a:b", "--key-", "eyJa")),
        ("CONDA_PREFIX", "/opt/conda"), ("OMP_PLACES", "{0:4},{4:4}"), ("SLURM_NODELIST", "gpu[01-04]"),
    ],
)  # fmt: skip
def test_what_is_no_secret_is_shown(name: str, value: str) -> None:
    assert collect.shown_environ({name: value}) == {name: value}
    assert "may hold a secret" not in collect.cut(value)


def test_notes_say_no_secret(tmp_path: Path) -> None:
    words = "echo 'cannot reach https://user:pw1@proxy.example/x?sig=pw2 or' >&2; exit 3"
    program(tmp_path / "bin", "nvidia-smi", words)
    env = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "CC": "\"ccache --token pw3",
    }  # fmt: skip
    told = snapshot(env=env)
    assert "nvidia-smi failed: cannot reach https://proxy.example/x or" in told.snapshot.note
    assert 'CC names `"ccache`, which is no program here' in told.snapshot.note
    query = program(tmp_path, "query", "echo '401 for Authorization: Bearer pw4' >&2; exit 3")
    done = run_payload("--query", str(query), env=env)
    assert "it ended with exit code 3: 401 for (the rest may hold a secret)" in done.stdout
    assert not re.search(r"pw\d", done.stdout)


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
    done = run_payload("-o", "")
    assert (done.returncode, done.stdout, "error[usage]: -o names no file" in done.stderr) == (2, "", True)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path, kind: str, linked: bool) -> None:
    target = tmp_path / kind
    if kind == "folder":
        target.mkdir()
    elif kind == "pipe":
        os.mkfifo(target)
    else:
        try:
            os.mknod(target, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("this user may make no device node")
    before = target.lstat()
    if linked:
        (tmp_path / "link").symlink_to(target)
    done = run_payload("-o", str(tmp_path / "link" if linked else target))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("envsmith-snapshot: error[snapshot-output-unusable]: `")
    assert (target.lstat().st_ino, target.lstat().st_mode) == (before.st_ino, before.st_mode)


@pytest.mark.parametrize("words", [[PAYLOAD], ["-m", "envsmith", "snapshot"]])
@pytest.mark.parametrize("name", ["/proc/self/fd/1", "link", "out"])
def test_our_own_stdout_is_not_replaced(tmp_path: Path, words: list[str], name: str) -> None:
    (tmp_path / "link").symlink_to("/proc/self/fd/2")  # as /dev/stderr is one
    with (tmp_path / "out").open("wb") as stream:
        done = subprocess.run(
            [sys.executable, *words, "-o", str(tmp_path / name)], stdout=stream, stderr=stream, timeout=120, check=False
        )
        stream.write(b"more\n")
    assert done.returncode == 2
    text = (tmp_path / "out").read_text()
    assert "error[snapshot-output-unusable]" in text and text.endswith("more\n")


@pytest.mark.parametrize("there", [True, False])
def test_a_link_to_a_file_is_followed(tmp_path: Path, there: bool) -> None:
    target, link = tmp_path / "real" / "s.toml", tmp_path / "link.toml"
    target.parent.mkdir()
    if there:
        target.write_text("old")
    link.symlink_to(target)
    assert run_payload("-o", str(link)).returncode == 0
    assert link.is_symlink()
    assert parse_snapshot(target.read_text(), "x").snapshot.origin == "captured"
    assert [one.name for one in target.parent.iterdir()] == ["s.toml"]


@pytest.mark.parametrize(
    ("words", "closed", "code", "said"),
    [
        ("--no-run", ">&-", 4, "error[output-failed]: stdout is closed"),
        ("--no-run", ">&- 2>&-", 4, ""),
        ("--no-run", "<&- >&-", 4, "error[output-failed]: stdout is closed"),
        ("--no-run -o s.toml", ">&-", 0, ""),
        ("--no-run -o s.toml", "<&- >&- 2>&-", 0, ""),
        ("--no-run -o s.toml --python {python}", "2>&-", 0, ""),
        ("--no-run -o s.toml --python {python}", "2>/dev/full", 0, ""),
        ("--python /nope", "2>&-", 6, ""),
        ("--python /nope", "2>/dev/full", 6, ""),
        ("--no-such-word", "2>&-", 2, ""),
        ("--no-run", ">/dev/full", 4, "error[output-failed]: the answer cannot be written"),
    ],
)
def test_closed_and_full_descriptors_are_no_crash(
    tmp_path: Path, words: str, closed: str, code: int, said: str
) -> None:
    venv = make_venv(tmp_path / "venv")
    venv.install("alpha", "1.0", {"alpha.py": ""})
    line = f"exec '{sys.executable}' '{PAYLOAD}' {words.format(python=venv.path / 'bin/python')} {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    if "-o" in words:
        told = parse_snapshot((tmp_path / "s.toml").read_text(), "x")
        assert "failed" not in told.snapshot.note
        assert len(told.packages) == (1 if "{python}" in words else 0)


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


def first_states(venv: Venv, root: Path = Path("/")) -> dict[str, PackageState]:
    """What the judge of a base reads, the first of each name."""
    states: dict[str, PackageState] = {}
    for state in package_states(root, (str(venv.site.relative_to(root)),)):
        states.setdefault(state.name, state)
    return states


def test_both_readers_choose_the_same_of_two_in_one_folder_and_skip_what_pip_left(tmp_path: Path) -> None:
    venv = make_venv(tmp_path / "venv")
    info = venv.install("torch", "2.9.0", {"torch/__init__.py": "old = 1\n"})
    info.rename(venv.site / "~orch-2.9.0.dist-info")
    venv.install("torch", "2.10.0", {"torch/__init__.py": "new = 1\n"})
    venv.install("cryptography", "38.0.4", {"cryptography/__init__.py": ""})
    egg = venv.site / "cryptography.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: cryptography\nVersion: 3.4.8\n")
    told, states = snapshot("--python", str(venv.path / "bin/python")), first_states(venv)
    assert {name: one.version for name, one in told.by_name().items()} == {
        "torch": "2.10.0", "cryptography": "38.0.4",
    }  # fmt: skip
    assert {name: one.version for name, one in states.items()} == {"torch": "2.10.0", "cryptography": "38.0.4"}
    for name, one in told.by_name().items():
        assert (one.files, one.record) == (states[name].files, states[name].record), name
    assert "metadata that names no project is left out: ~orch-2.9.0.dist-info in " in told.snapshot.note
    assert [one.name for one in read_distributions(venv.path, (SITE,))].count("torch") == 1


def test_folders_are_read_in_their_own_order_by_both(tmp_path: Path) -> None:
    for folder, version in (("z", "1.0"), ("a", "2.0")):
        place(tmp_path, {f"{folder}/same-{version}.dist-info/METADATA": f"Name: same\nVersion: {version}\n"})
    ours = [one.version for one in collect.distributions_in([str(tmp_path / "z"), str(tmp_path / "a")], [])]
    assert ours == [one.version for one in read_distributions(tmp_path, ("z", "a"))] == ["1.0", "2.0"]


@pytest.mark.parametrize("name", ["Bad Näme", "-bad", "bad-", "a/b", "a b", "näme"])
def test_a_name_that_is_none_is_left_out_and_said(tmp_path: Path, name: str) -> None:
    venv = make_venv(tmp_path / "venv")
    place(venv.site, {"bad-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"})
    venv.install("A.Good_1", "1.0", {"good.py": ""})
    told = snapshot("--python", str(venv.path / "bin/python"))
    assert set(told.by_name()) == {"a-good-1"}
    assert f"bad-1.0.dist-info in {venv.site}, which names `{name}`" in told.snapshot.note


@pytest.mark.parametrize("cwd", ["/", "/usr", "."])
def test_rows_that_lead_out_of_the_base_have_one_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cwd: str
) -> None:
    venv = make_venv(tmp_path / "venv")
    (tmp_path / "outside").write_text("o = 1\n")
    outside = str(tmp_path / "outside")
    far = "../" * 40 + outside[1:]
    rows = {
        outside: outside, far: far, f"/{outside}": f"/{outside}", "sub//x/../lost.py": "sub/lost.py",
        "../site-packages/./here.py": "../site-packages/here.py", "/nonexistent/x": "/nonexistent/x",
    }  # fmt: skip
    info = venv.install("odd", "1.0", {"here.py": "h = 1\n"})
    with (info / "RECORD").open("a") as stream:
        stream.writelines(f"{row},sha256={'A' * 43},\n" for row in rows)
    venv.install("plain", "1.0", {"plain.py": "p = 1\n"})
    told = snapshot("--python", str(venv.path / "bin/python")).by_name()
    monkeypatch.chdir(cwd)
    for root in (Path("/"), venv.path):
        states = first_states(venv, root)
        assert {one.path: one.sha256 for one in told["odd"].altered} == states["odd"].altered
        assert set(states["odd"].altered) == set(rows.values())
        assert {name: one.files for name, one in states.items()} == {name: one.files for name, one in told.items()}
    known = hashlib.sha256(b"o = 1\n").hexdigest()
    assert [states["odd"].altered[path] for path in (outside, far, f"/{outside}")] == [known] * 3


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
