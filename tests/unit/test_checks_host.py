"""The family `host`: each check is seen failing on planted facts and silent on the healthy machine beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsmith.checks.host import judge_host
from envsmith.checks.host_driver import Answer, Library, bridges, runs_natively
from envsmith.checks.host_subject import Fitting, numbers
from envsmith.checks.host_tables import cuda_major, cuda_of, is_data_centre
from envsmith.host import BasePackage, BasePython
from envsmith.hostfacts import Accelerator, HostFacts
from envsmith.jobconfig import parse as parse_job
from envsmith.lock import Lock
from envsmith.native import DeviceImage, Elf, NativeFile, VersionNeed
from envsmith.recipe import parse
from envsmith.report import Finding, Severity
from envsmith.rules.judge import judge
from envsmith.rules.situation import Situation
from tests.unit.test_rules import lock as lock_of
from tests.unit.test_rules import locked, wheel

LIB = "/usr/lib/x86_64-linux-gnu"
STACK: Mapping[str, str] = {
    "torch": "2.10.0", "triton": "3.6.0", "nvidia-cudnn-cu12": "9.10.2.21", "nvidia-nccl-cu12": "2.27.5",
    "nvidia-nvjitlink-cu12": "12.8.93", "nvidia-cublas-cu12": "12.8.4.1", "nvidia-cuda-runtime-cu12": "12.8.90",
}  # fmt: skip


def device(name: str = "NVIDIA A100-SXM4-80GB", capability: str | None = "8.0", count: int = 8, **more: Any) -> Any:
    return {"name": name, "count": count, **({"compute-capability": capability} if capability else {}), **more}


def folder(path: str = LIB, version: str | None = None, kind: str = "driver", **more: Any) -> Any:
    row = {"path": path, "kind": kind, "found-by": "loader", "unversioned": True, **more}
    return {**row, "version": version} if version else row


def facts(driver: str = "580.105.08", **changes: Any) -> HostFacts:
    """A healthy machine with eight A100s and this driver; a change of None takes a fact out."""
    made: dict[str, Any] = {
        "arch": "x86_64", "kernel": "5.15.0-91-generic", "glibc": "2.35", "cpus": 64, "driver": driver,
        "libcuda": f"{LIB}/libcuda.so.{driver}", "libcuda-version": driver, "cuinit": 0,
        "open-files": 1_048_576, "open-files-max": 1_048_576, "shm-bytes": 64 << 30, "compiler": "/usr/bin/gcc",
        "accelerator": [device()], "driver-folder": [folder(version=driver)], "environ": {"PATH": "/usr/bin"},
    }  # fmt: skip
    made |= {name.replace("_", "-"): value for name, value in changes.items()}
    return HostFacts.model_validate({name: value for name, value in made.items() if value is not None})


def versions(table: Mapping[str, str] = STACK, **changes: str | None) -> Lock:
    """A lock of these versions; a change of None takes a package out."""
    changed = {name.replace("_", "-"): version for name, version in changes.items()}
    return locked(**{name: version for name, version in {**table, **changed}.items() if version})


def fit(
    machine: HostFacts,
    body: str = "",
    *,
    host: str = "",
    requires: Iterable[str] = (),
    lock: Lock | None = None,
    no_lock: bool = False,
    **more: Any,
) -> Fitting:
    """An env of a recipe, locked with `STACK` if nothing else is said, beside a machine."""
    text = f'[stack]\nname = "t"\n[host]\n{host}\n[env.a]\npython = "3.11"\n'
    stack = parse(f"{text}requires = {json.dumps(list(requires))}\n{body}\n", "t.toml")
    env, chosen = stack.env["a"], None if no_lock else lock or versions()
    situation = Situation(name="a", env=env, host=stack.host, job=env.job, lock=chosen, facts=machine)
    return Fitting(situation=situation, facts=machine, **more)


def said(machine: HostFacts, body: str = "", **more: Any) -> tuple[Finding, ...]:
    """What is said but for the note on missing facts."""
    return tuple(one for one in judge_host([fit(machine, body, **more)]) if one.kind != "facts-missing")


def errors(findings: Iterable[Finding]) -> set[str]:
    return {one.kind for one in findings if one.severity is Severity.ERROR}


def the(findings: Iterable[Finding], kind: str) -> Finding:
    (found,) = [one for one in findings if one.kind == kind]
    return found


def test_a_healthy_machine_is_silent() -> None:
    assert judge_host([fit(facts())]) == ()


def test_what_is_unknown_claims_nothing_and_is_named_once() -> None:
    both = [fit(HostFacts()), fit(HostFacts(), lock=versions(ray="2.56.1"))]
    (note,) = judge_host(both)
    assert (note.kind, note.severity) == ("facts-missing", Severity.NOTE)
    assert all(word in note.message for word in ("driver", "glibc", "shm-bytes", "open-files", "libcuda", "environ"))


# --- driver ---

CU118 = versions(torch="2.6.0+cu118")


def run(**more: Any) -> Any:
    made = {
        "dtype": "bfloat16", "ok": True, "torch": "2.10.0+cu128", "cuda": "12.8", "driver": "470.82.01",
        "device": "NVIDIA A100-SXM4-80GB",
    }  # fmt: skip
    return {name: value for name, value in {**made, **more}.items() if value is not None}


@pytest.mark.parametrize(
    ("driver", "torch", "fine"),
    [
        ("470.86", "2.3.1+cu121", False),
        ("470.86", "2.3.1", False),
        ("470.86", "2.0.1", True),
        ("520.61.05", "2.10.0", False),
        ("525.53", "2.10.0", False),  # a beta before the patch level that NVIDIA names
        ("525.60.13", "2.10.0", True),
        ("535.129.03", "2.10.0+cu128", True),
        ("570.86.10", "2.11.0", False),
        ("575.57.08", "2.12.0+cu130", False),
        ("580.65.06", "2.11.0", True),
        ("450.80.02", "2.6.0+cu118", True),
        ("450.51.06", "2.6.0+cu118", False),
        ("470.86", "2.6.0+cpu", True),
        ("470.86", "2.9.0+ppu2.0.0.oe", True),  # a vendor's own build
    ],
)
def test_the_driver_is_held_against_the_family_of_torch(driver: str, torch: str, fine: bool) -> None:
    findings = said(facts(driver), lock=versions(torch=torch))
    assert errors(findings) == (set() if fine else {"driver-too-old"})


@pytest.mark.parametrize(
    ("driver", "torch", "fine"),
    [
        ("470", "2.3.1+cu121", False), ("525", "2.3.1+cu121", True), ("450", "2.6.0+cu118", True),
        ("570", "2.11.0", False), ("580", "2.11.0", True), ("580 ", "2.11.0", True), ("418", "2.6.0+cu118", False),
    ],
)  # fmt: skip
def test_a_branch_alone_is_judged_as_its_newest_release(driver: str, torch: str, fine: bool) -> None:
    blind = facts(driver, libcuda=None, libcuda_version=None, cuinit=None, driver_folder=[])
    found = said(blind, lock=versions(torch=torch))
    assert errors(found) == (set() if fine else {"driver-too-old"})
    assert "driver-not-in-tables" not in {one.kind for one in found}


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 3060"])
def test_a_library_of_the_recorded_branch_is_no_compat_library(name: str) -> None:
    row = folder(version="580.105.08", kind="other")
    machine = facts("580", libcuda_version="580.105.08", accelerator=[device(name, "8.6")], driver_folder=[row])
    for cuinit in (0, None):
        assert said(machine.model_copy(update={"cuinit": cuinit})) == ()
    older = facts("580", libcuda="/c/libcuda.so.575.57.08", libcuda_version="575.57.08", cuinit=None, driver_folder=[])
    assert errors(said(older)) == {"libcuda-wrong-compat"}


@pytest.mark.parametrize(
    ("known", "torch", "fine"),
    [
        ({"cuda-driver-version": "11.4"}, "2.3.1+cu121", False),  # "found version 11040"
        ({"cuda-driver-version": "12.8"}, "2.11.0", False),  # "found version 12080"
        ({"cuda-driver-version": "12.2"}, "2.10.0", True),
        ({"cuda-driver-version": "13.0"}, "2.10.0", True),
        ({"cuda-driver-version": "11.4"}, "2.6.0+cu118", True),
        ({"cuda-driver-version": "0.0"}, "2.10.0", True),
        ({"libcuda": "/l/libcuda.so.470.86", "libcuda-version": "470.86"}, "2.3.1+cu121", False),
        ({"libcuda": "/l/libcuda.so.570.86.10"}, "2.11.0", False),
        ({"libcuda": "/l/libcuda.so.535.129.03"}, "2.10.0", True),
        ({"libcuda": "/l/libcuda.so.470.86"}, "2.9.0+ppu1", True),
        ({"libcuda": "/l/libcuda.so.470.86", "driver": ""}, "2.10.0", True),  # no device: nothing to run on
    ],
)
def test_where_only_the_library_is_known_it_bounds_what_runs(known: dict[str, str], torch: str, fine: bool) -> None:
    found = said(HostFacts.model_validate(known), lock=versions(torch=torch))
    assert errors(found) == (set() if fine else {"driver-too-old"})


def test_a_compat_library_leaves_open_what_an_unknown_driver_runs() -> None:
    blind = HostFacts.model_validate({"cuda-driver-version": "11.4"})
    assert errors(said(blind)) == {"driver-too-old"}
    assert errors(said(blind, host='driver = ">=470"\ncuda-compat = "12.8"')) == set()
    there = HostFacts.model_validate({"cuda-driver-version": "11.4", "driver-folder": [COMPAT]})
    assert errors(said(there)) == set()


def test_majors_before_those_of_the_table_run_on_every_newer_driver() -> None:
    v100 = [device("Tesla V100-SXM2-32GB", "7.0")]
    assert said(facts("535.129.03", accelerator=v100), lock=versions({"torch": "1.7.1+cu101"})) == ()


@pytest.mark.parametrize(
    ("packages", "cuda"),
    [
        ({"torch": "2.9.0", "nvidia-cuda-runtime-cu12": "12.8.90"}, "12.8"),
        ({"torch": "2.12.0", "nvidia-cuda-runtime": "13.0.96"}, "13.0"),
        ({"torch": "2.12.0", "cuda-toolkit": "13.0.2"}, "13.0"),
        ({"torch": "2.4.1", "nvidia-cudnn-cu12": "9.1.0"}, "12.1"),  # by the metadata of the release
        ({"torch": "2.3.1"}, "12.1"),
        ({"torch": "2.12.0"}, "13.0"),
        ({"torch": "2.99.0", "nvidia-cudnn-cu12": "9.1.0"}, "12.0"),
        ({"torch": "2.3.1+cpu"}, None),
        ({"torch": "2.10.0", "nvidia-cuda-runtime-cu12": "12.6.77"}, "12.8"),  # what the wheel holds was read
        ({"torch": "2.9.0+vendor1", "nvidia-cuda-runtime-cu12": "12.8.90"}, None),
        ({"torch": "2.10"}, "12.8"),
        ({"torch": "2.5.1+cu121.with.pypi.cudnn"}, "12.1"),
        ({"numpy": "2.0"}, None),
    ],
)
def test_the_cuda_release_is_taken_from_torch_else_from_its_libraries(packages: dict[str, str], cuda: str) -> None:
    assert cuda_of(fit(HostFacts(), lock=versions(packages)).situation) == cuda


@pytest.mark.parametrize(
    ("driver", "answers", "more", "kind"),
    [
        ("580.159.04", "13.0", {}, "driver-too-old"),
        ("580.159.04", None, {}, "driver-not-in-tables"),
        ("640.10.01", "14.0", {}, "driver-not-in-tables"),  # of that major, and no table has its floor
        ("570.86.10", None, {}, "driver-too-old"),
        ("580.159.04", "12.9", {"libcuda_version": "575.57.08", "cuinit": 803}, "driver-not-in-tables"),
    ],
)
def test_a_cuda_major_that_no_table_has(driver: str, answers: str | None, more: dict[str, Any], kind: str) -> None:
    machine = facts(driver, cuda_driver_version=answers, **more)
    finding = the(said(machine, lock=versions({"torch": "3.0.0+cu140"})), kind)
    assert finding.severity is (Severity.ERROR if kind == "driver-too-old" else Severity.WARNING)
    compat = [folder(version=driver), folder("/c", "700.10.01", "compat")]
    open_ = facts(driver, cuda_driver_version=answers, driver_folder=compat, **more)
    the(said(open_, lock=versions({"torch": "3.0.0+cu140"})), "driver-not-in-tables")


def test_an_older_minor_of_the_family_is_a_note() -> None:
    (note,) = said(facts("535.129.03"))
    assert (note.kind, note.severity) == ("driver-of-older-minor", Severity.NOTE)
    assert "12.2" in note.message and "12.8" in note.message


def test_the_way_out_names_what_helps_and_what_does_not() -> None:
    finding = the(said(facts("470.86"), lock=versions(torch="2.3.1+cu121")), "driver-too-old")
    hint = finding.hint or ""
    assert finding.expected == ">=525.60.13"
    assert "cu118" in hint and "compat library of CUDA 12.8" in hint and "another build for CUDA 12 does not" in hint
    consumer = [device("NVIDIA GeForce RTX 3090", "8.6")]
    assert "compat library" not in (the(said(facts("470.86", accelerator=consumer)), "driver-too-old").hint or "")
    assert "cu128" in (the(said(facts("570.86.10"), lock=versions(torch="2.11.0")), "driver-too-old").hint or "")


COMPAT = folder("/usr/local/cuda-12.8/compat", "570.124.06", "compat")


@pytest.mark.parametrize(
    ("driver", "library", "accelerator", "torch", "kinds"),
    [
        ("470.82.01", "570.124.06", device(), "2.10.0", set()),
        ("525.147.05", "570.124.06", device(), "2.11.0", {"driver-too-old"}),  # not for CUDA 13
        ("470.82.01", "580.95.05", device(), "2.11.0", {"driver-too-old"}),  # 13.0 does not run on 470
        ("535.129.03", "580.95.05", device(), "2.11.0", set()),
        ("470.82.01", "570.124.06", device("NVIDIA GeForce RTX 3090", "8.6"), "2.10.0", {"driver-too-old"}),
        ("470.82.01", "570.124.06", device("Graphics", "8.6", **{"data-centre": False}), "2.10.0", {"driver-too-old"}),
        ("470.82.01", "520.61.05", device(), "2.10.0", {"driver-too-old"}),  # itself of CUDA 11
        ("470.82.01", "550.54.15", device(), "2.6.0", set()),
    ],
)
def test_a_compat_library_bridges_where_nvidia_lists_it(
    driver: str, library: str, accelerator: Any, torch: str, kinds: set[str]
) -> None:
    row = folder("/opt/compat", library, "compat", **{"found-by": "search"})
    machine = facts(driver, accelerator=[accelerator], driver_folder=[folder(version=driver), row])
    findings = said(machine, lock=versions(torch=torch))
    assert errors(findings) == kinds
    if not kinds:  # there, but no process finds it
        (warning,) = [one for one in findings if one.severity is Severity.WARNING]
        assert (warning.kind, "/opt/compat" in (warning.hint or "")) == ("compat-not-on-path", True)
        told = '[env.a.launch.prepend]\nLD_LIBRARY_PATH = "/opt/compat"'
        assert [
            one for one in said(machine, told, lock=versions(torch=torch)) if one.severity is not Severity.NOTE
        ] == []


def test_a_library_that_no_table_knows_is_a_warning() -> None:
    row = folder("/opt/compat", "590.44.01", "compat")
    machine = facts("470.82.01", driver_folder=[folder(version="470.82.01"), row])
    (finding,) = said(machine)
    assert (finding.kind, finding.severity) == ("driver-not-in-tables", Severity.WARNING)


def test_the_recipe_says_that_a_library_is_there_until_a_snapshot_looked() -> None:
    host = 'driver = ">=470"\ncuda-compat = "12.8"'
    blind = facts("470.82.01", libcuda=None, libcuda_version=None, cuinit=None, driver_folder=[])
    assert said(blind, host=host) == ()
    assert errors(said(blind)) == {"driver-too-old"}
    assert errors(said(facts("470.82.01"), host=host)) == {"driver-too-old"}
    asset = '[env.a.asset.compat]\npath = "files/cuda-compat.tar"\nsha256 = "' + "0" * 64 + '"'
    assert said(facts("470.82.01"), asset, host=host) == ()
    assert errors(said(blind, host='driver = ">=470"\ncuda-compat = "13.0"', lock=versions(torch="2.11.0")))


def test_the_drivers_own_library_keeps_a_needed_compat_library_away() -> None:
    machine = facts("470.82.01", driver_folder=[folder(version="470.82.01"), COMPAT])
    finding = the(said(machine, '[env.a.launch]\ndriver-library = "host"'), "driver-too-old")
    assert "driver-library" in (finding.hint or "")


def test_cuinit_through_a_mapped_compat_library_is_an_answer() -> None:
    machine = facts(
        "525.147.05", libcuda="/c/libcuda.so.580.95.05", libcuda_version="580.95.05", accelerator=[device("X", "8.0")]
    )
    assert errors(said(machine, lock=versions(torch="2.11.0"))) == set()
    refused = facts("525.147.05", libcuda="/c/libcuda.so.580.95.05", libcuda_version="580.95.05", cuinit=803)
    assert "cuda-compat-unsupported" in errors(said(refused, lock=versions(torch="2.11.0")))


def test_a_run_overrules_the_tables_and_is_said() -> None:
    (note,) = said(facts("470.82.01", run=[run(libcuda="/x/libcuda.so.1")]))
    assert (note.kind, note.severity) == ("table-overruled", Severity.NOTE)
    assert "470.82.01" in note.message and "12.8" in note.message and "/x/libcuda.so.1" in note.message


@pytest.mark.parametrize(
    "change",
    [
        {"driver": "470.86"}, {"driver": None}, {"cuda": "12.6"}, {"cuda": None, "torch": "2.10.0"}, {"ok": False},
        {"dtype": "float32"},
    ],
)  # fmt: skip
def test_a_run_of_something_else_overrules_nothing(change: dict[str, Any]) -> None:
    assert "driver-too-old" in errors(said(facts("470.82.01", run=[run(**change)])))


def test_the_release_of_a_run_may_stand_in_its_torch() -> None:
    assert errors(said(facts("470.82.01", run=[run(cuda=None)]))) == set()


def test_a_run_in_the_jobs_own_format_counts_too() -> None:
    body = '[env.a.job]\ndtype = "float32"'
    assert errors(said(facts("470.82.01", run=[run(dtype="float32")]), body)) == set()


def test_a_failed_run_is_an_error_that_quotes_it_and_a_later_success_ends_it() -> None:
    failed = run(ok=False, error="CUDA error: no kernel image")
    finding = the(said(facts("470.82.01", run=[failed])), "device-run-failed")
    assert "no kernel image" in finding.message
    assert "device-run-failed" not in errors(said(facts("470.82.01", run=[failed, run()])))
    assert "device-run-failed" not in errors(said(facts("535.129.03", run=[failed])))


def test_a_capture_in_bfloat16_on_an_older_device_is_no_error_of_a_job_without_a_format() -> None:
    failed = run(ok=False, driver="580.105.08", device="Tesla V100-SXM2-32GB", error="CUBLAS_STATUS_NOT_SUPPORTED")
    v100 = facts(accelerator=[device("Tesla V100-SXM2-32GB", "7.0")], run=[failed])
    assert the(said(v100), "device-run-failed").severity is Severity.WARNING
    assert errors(said(v100, '[env.a.job]\ndtype = "float16"')) == set()
    assert errors(said(v100, '[env.a.job]\ndtype = "bfloat16"')) == {"device-run-failed"}
    a100 = facts(run=[run(ok=False, driver="580.105.08", error="sick")])
    assert errors(said(a100)) == {"device-run-failed"}


def test_only_a_run_of_this_driver_and_release_excuses_a_driver_outside_the_class() -> None:
    for other in ({"driver": "535.129.03"}, {"cuda": "12.6"}, {"ok": False}):
        machine = facts("570.86.10", run=[run(**{"driver": "570.86.10", **other})])
        assert "driver-outside-class" in errors(said(machine, host='driver = ">=575"'))
    proved = facts("570.86.10", run=[run(driver="570.86.10")])
    assert the(said(proved, host='driver = ">=575"'), "driver-outside-class").severity is Severity.WARNING


def test_the_way_out_of_missing_code_fits_the_device() -> None:
    for able, torch, cuda in (
        ("9.0", "1.12.1+cu113", "11.8"),
        ("8.0", "1.6.0+cu102", "11.0"),
        ("12.0", "2.6.0", "12.8"),
    ):
        machine = facts(accelerator=[device("Some device", able)])
        hint = the(said(machine, lock=versions({"torch": torch})), "no-kernel-image").hint or ""
        assert f"CUDA {cuda} or later" in hint and "2.7.1" not in hint
    v100 = facts(accelerator=[device("Tesla V100-SXM2-32GB", "7.0")])
    assert "2.10.0 for 7.0" in (the(said(v100, lock=versions({"torch": "2.11.0"})), "no-kernel-image").hint or "")


def test_a_run_through_a_compat_library_does_not_count_when_the_launch_table_keeps_it_away() -> None:
    proof = run(libcuda=f"{COMPAT['path']}/libcuda.so.570.124.06")
    machine = facts("470.82.01", driver_folder=[folder(version="470.82.01"), COMPAT], run=[proof])
    assert errors(said(machine)) == set()
    assert errors(said(machine, '[env.a.launch]\ndriver-library = "host"')) == {"driver-too-old"}


def test_a_driver_with_other_numbers_is_a_warning_for_a_public_torch_alone() -> None:
    other = facts("1.5.3-5239a4", accelerator=[device("PPU-ZW810", None)], libcuda=None, cuinit=None, driver_folder=[])
    assert the(said(other), "driver-not-in-tables").severity is Severity.WARNING
    assert said(other, lock=versions(torch="2.9.0+ppu2.0.0.oe")) == ()


DRIVERS = st.tuples(st.integers(390, 650), st.integers(0, 300), st.integers(0, 30)).map(
    lambda parts: ".".join(map(str, parts))
)


@given(
    kernel=DRIVERS,
    library=DRIVERS,
    data_centre=st.sampled_from([True, False, None]),
    major=st.sampled_from([11, 12, 13]),
)
def test_bridges_never_promise_what_they_cannot(
    kernel: str, library: str, data_centre: bool | None, major: int
) -> None:
    one = Library(driver=numbers(library), cuda="12.8", path="/c")
    answer, why = bridges(one, numbers(kernel)[0], data_centre=data_centre, major=major)
    assert (why == "") is (answer is Answer.YES)
    if answer is not Answer.NO:
        assert runs_natively(numbers(library), major) and data_centre is not False
    if data_centre is False or not runs_natively(numbers(library), major):
        assert answer is Answer.NO


@given(kernel=DRIVERS, torch=st.sampled_from(["2.6.0+cu118", "2.7.1", "2.10.0", "2.11.0", "2.15.0"]))
def test_without_help_the_floor_decides_alone(kernel: str, torch: str) -> None:
    cuda = {"2.6.0+cu118": 11, "2.7.1": 12, "2.10.0": 12, "2.11.0": 13, "2.15.0": 13}[torch]
    found = errors(said(facts(kernel), lock=versions(torch=torch)))
    assert ("driver-too-old" in found) is not runs_natively(numbers(kernel), cuda)
    newest = cuda_major(numbers(kernel))
    assert ("driver-too-old" in found) is (newest is None or newest < cuda)


@given(driver=DRIVERS, mapped=DRIVERS)
def test_an_older_libcuda_than_the_driver_is_always_told(driver: str, mapped: str) -> None:
    machine = facts(
        driver, libcuda=f"/c/libcuda.so.{mapped}", libcuda_version=mapped, cuinit=None, driver_folder=[], run=[]
    )
    found = {one.kind for one in said(machine, lock=CU118)}
    assert ("libcuda-wrong-compat" in found) is (numbers(mapped) < numbers(driver))


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("NVIDIA A100-SXM4-80GB", True), ("Tesla V100-SXM2-32GB", True), ("NVIDIA H100 80GB HBM3", True),
        ("NVIDIA H200", True), ("nvidia l40s", True), ("NVIDIA A10", True), ("NVIDIA GH200 480GB", True),
        ("NVIDIA GeForce RTX 3060", False), ("GeForce GTX 1050 Ti", False), ("NVIDIA TITAN RTX", False),
        ("NVIDIA RTX 4090", False), ("NVIDIA RTX A5500", None), ("NVIDIA RTX 6000 Ada Generation", None),
        ("PPU-ZW810", None),
    ],
)  # fmt: skip
def test_lines_of_devices_are_known_by_name(name: str, answer: bool | None) -> None:
    assert is_data_centre(Accelerator(name=name, count=1)) is answer
    assert is_data_centre(Accelerator(name=name, count=1, data_centre=True)) is True


# --- rules with the facts of a machine ---


def rules(machine: HostFacts, body: str = "", *, host: str = "") -> set[str]:
    return {one.kind for one in judge(fit(machine, body, host=host, requires=["torch==2.10.0"]).situation)}


def test_rules_take_the_devices_and_the_driver_of_the_machine() -> None:
    body = '[env.a.job]\ndtype = "bfloat16"\nattention = "flash_attention_2"'
    v100 = facts(accelerator=[device("Tesla V100-SXM2-32GB", "7.0")])
    assert rules(v100, body, host='compute-capability = ["8.0"]') == {"bf16-unsupported", "flash-attention-unsupported"}
    assert rules(facts(), body, host='compute-capability = ["7.0"]') == set()
    allocator = '[env.a.launch.set]\nPYTORCH_CUDA_ALLOC_CONF = "expandable_segments:True"'
    assert "expandable-segments-old-driver" in rules(facts("470.82.01"), allocator, host='driver = ">=580"')
    assert "expandable-segments-old-driver" not in rules(facts(), allocator, host='driver = ">=470"')


def test_rules_and_host_do_not_say_one_thing_twice() -> None:
    old = facts("470.82.01", accelerator=[device("Tesla P40", "6.1")])
    host = 'driver = ">=470"\ncompute-capability = ["6.1"]'
    assert not {"driver-too-old", "no-kernel-image"} & rules(old, host=host)
    assert errors(said(old, host=host)) == {"driver-too-old", "no-kernel-image"}
    assert {"driver-too-old", "no-kernel-image"} <= rules(HostFacts(), host=host)


# --- libcuda ---


def with_libcuda(path: str, version: str | None, driver: str = "580.159.04", **more: Any) -> HostFacts:
    return facts(driver, libcuda=path, libcuda_version=version, **{"cuinit": None, **more})


def test_all_numbers_count_and_803_names_library_and_driver() -> None:
    machine = with_libcuda("/usr/local/cuda-13.0/compat/libcuda.so.580.95.05", "580.95.05", cuinit=803)
    finding = the(said(machine), "libcuda-wrong-compat")
    assert finding.severity is Severity.ERROR
    for word in ("803", "580.95.05", "580.159.04", "/usr/local/cuda-13.0/compat"):
        assert word in finding.message
    assert LIB in (finding.hint or "")


def test_driver_library_host_mends_what_the_loader_would_do_wrong() -> None:
    body = '[env.a.launch]\ndriver-library = "host"'
    machine = with_libcuda("/usr/local/cuda-13.0/compat/libcuda.so.580.95.05", "580.95.05", cuinit=803)
    (note,) = said(machine, body)
    assert (note.kind, note.severity) == ("libcuda-wrong-compat", Severity.NOTE)
    assert "mends" in note.message
    nowhere = with_libcuda("/c/libcuda.so.580.95.05", "580.95.05", cuinit=803, driver_folder=[])
    assert errors(said(nowhere, body)) == {"libcuda-wrong-compat"}  # there is no folder to link to


@pytest.mark.parametrize(
    ("found_by", "body", "fine"),
    [
        ("LD_LIBRARY_PATH", "", False),
        ("LD_LIBRARY_PATH", '[env.a.launch]\nunset = ["LD_LIBRARY_PATH"]', True),  # the loader has the driver's own
        ("loader", '[env.a.launch]\nunset = ["LD_LIBRARY_PATH"]', False),
        ("LD_LIBRARY_PATH", f'[env.a.launch.prepend]\nLD_LIBRARY_PATH = "{LIB}"', True),
        ("LD_LIBRARY_PATH", f'[env.a.launch.set]\nLD_LIBRARY_PATH = "{LIB}"', True),
    ],
)
def test_what_the_launch_table_makes_of_the_path_counts(found_by: str, body: str, fine: bool) -> None:
    compat = folder("/c", "575.57.08", "compat", **{"found-by": found_by})
    environ = {"PATH": "/usr/bin"} | ({"LD_LIBRARY_PATH": "/c"} if found_by == "LD_LIBRARY_PATH" else {})
    rows = [compat, folder(version="580.159.04")]
    machine = with_libcuda("/c/libcuda.so.575.57.08", "575.57.08", driver_folder=rows, environ=environ)
    assert (errors(said(machine, body)) == set()) is fine


def test_the_folders_say_what_is_mapped_when_nobody_tried() -> None:
    rows = [folder(version="580.159.04"), folder("/c", "575.57.08", "compat", **{"found-by": "LD_LIBRARY_PATH"})]
    machine = facts(
        "580.159.04", libcuda=None, libcuda_version=None, cuinit=None, driver_folder=rows,
        environ={"LD_LIBRARY_PATH": "/nowhere:/c/"},
    )  # fmt: skip
    assert errors(said(machine)) == {"libcuda-wrong-compat"}


@pytest.mark.parametrize(
    ("name", "cuinit", "severity"),
    [
        ("NVIDIA GeForce RTX 3060", None, Severity.ERROR),
        ("NVIDIA RTX A5500", None, Severity.WARNING),
        ("NVIDIA RTX A5500", 804, Severity.ERROR),
        ("NVIDIA A100-SXM4-80GB", 804, Severity.ERROR),
        ("NVIDIA A100-SXM4-80GB", None, None),
        ("NVIDIA RTX A5500", 0, None),
    ],
)
def test_a_newer_library_is_for_data_centre_devices(name: str, cuinit: int | None, severity: Severity | None) -> None:
    machine = with_libcuda(
        "/c/libcuda.so.530.30.02", "530.30.02", "525.147.05", cuinit=cuinit, accelerator=[device(name, "8.6")]
    )
    found = [one for one in said(machine, lock=versions(torch="2.3.1+cu121")) if one.severity is not Severity.NOTE]
    assert [(one.kind, one.severity) for one in found] == (
        [("libcuda-compat-unsupported-hw", severity)] if severity else []
    )
    for one in found:
        assert "CUDA 12 by itself" in (one.hint or "")


def test_a_compat_library_on_a_branch_that_it_does_not_run_on() -> None:
    machine = with_libcuda("/c/libcuda.so.570.124.06", "570.124.06", "525.125.06")
    assert errors(said(machine)) == {"cuda-compat-unsupported"}
    fine = with_libcuda("/c/libcuda.so.570.124.06", "570.124.06", "535.129.03")
    assert errors(said(fine)) == set()


@pytest.mark.parametrize(
    "environ",
    [
        "/usr/local/cuda-11.8/targets/x86_64-linux/lib/stubs:/usr/local/x",
        "/a:/opt/cuda/lib64/stubs/",
        "/usr/lib/stubs;/b",
    ],
)
def test_a_folder_of_stubs_in_the_path_is_an_error(environ: str) -> None:
    machine = facts(environ={"LD_LIBRARY_PATH": environ})
    assert errors(said(machine)) == {"libcuda-stub"}
    assert errors(said(machine, '[env.a.launch]\nunset = ["LD_LIBRARY_PATH"]')) == set()
    assert errors(said(facts(environ={"LIBRARY_PATH": environ}))) == set()  # the linker's, at build time


def test_a_mapped_stub_is_an_error_and_34_says_so() -> None:
    stub = with_libcuda("/x/lib/stubs/libcuda.so", None, cuinit=34)
    assert "34" in the(said(stub), "libcuda-stub").message
    by_answer = with_libcuda("/x/lib/libcuda.so.1", None, cuinit=34)
    assert errors(said(by_answer)) == {"libcuda-stub"}


@pytest.mark.parametrize(
    ("cuinit", "word"), [(802, "802"), (999, "999"), (100, "100"), (-11, "signal 11"), (777, "777")]
)
def test_other_answers_are_quoted(cuinit: int, word: str) -> None:
    finding = the(said(facts(cuinit=cuinit)), "libcuda-init-failed")
    assert word in f"{finding.message} {finding.actual}"


def test_a_machine_without_devices_may_answer_100() -> None:
    bare = facts("", accelerator=[], libcuda="", libcuda_version=None, cuinit=100, driver_folder=[])
    assert said(bare) == ()


def test_a_driver_without_libcuda() -> None:
    machine = facts(libcuda="", libcuda_version=None, cuinit=None, driver_folder=[])
    assert errors(said(machine)) == {"libcuda-missing"}


@pytest.mark.parametrize(
    ("rows", "body", "severity"),
    [
        ([folder(unversioned=False)], "", Severity.ERROR),
        ([folder(unversioned=False)], '[env.a.launch]\ndriver-library = "host"', Severity.NOTE),
        ([folder(unversioned=False)], f'[env.a.launch.set]\nTRITON_LIBCUDA_PATH = "{LIB}"', None),
        ([folder(unversioned=False), folder("/usr/lib64")], "", None),
        ([folder(unversioned=False), folder("/s/stubs", kind="stubs", **{"found-by": "search"})], "", Severity.ERROR),
        ([folder(unversioned=True)], "", None),
    ],
)
def test_triton_needs_a_library_without_a_version(rows: list[Any], body: str, severity: Severity | None) -> None:
    lock = versions(torch="2.9.1", triton="3.5.1")
    found = [
        one for one in said(facts(driver_folder=rows), body, lock=lock) if one.kind == "libcuda-unversioned-missing"
    ]
    assert [one.severity for one in found] == ([severity] if severity else [])
    without = said(facts(driver_folder=rows), body, lock=versions(triton=None))
    assert "libcuda-unversioned-missing" not in {one.kind for one in without}


@pytest.mark.parametrize("torch", ["2.10.0+cpu", "2.10.0+rocm6.4", "2.10.0+xpu"])
def test_an_env_that_maps_no_libcuda_does_not_meet_a_wrong_one(torch: str) -> None:
    machine = with_libcuda("/c/libcuda.so.575.57.08", "575.57.08", cuinit=803)
    assert errors(said(machine)) == {"libcuda-wrong-compat"}
    assert said(machine, lock=versions({"torch": torch})) == ()


@pytest.mark.parametrize(
    ("name", "fine"),
    [
        ("Ascend910B3", True), ("AMD Instinct MI300X", True), ("PPU-ZW810", True), ("NVIDIA A100-SXM4-80GB", False),
        ("Tesla T4", False), ("Quadro RTX 6000", False), ("A100-SXM4-40GB", False),
    ],
)  # fmt: skip
def test_devices_of_other_vendors_need_no_libcuda(name: str, fine: bool) -> None:
    machine = HostFacts.model_validate({"accelerator": [device(name, None)], "libcuda": ""})
    assert errors(said(machine, lock=versions(torch="2.9.0+vendor1"))) == (set() if fine else {"libcuda-missing"})


def test_a_stub_that_the_launch_table_takes_out_of_the_way_is_no_error() -> None:
    rows = [folder("/u/stubs", kind="stubs", **{"found-by": "LD_LIBRARY_PATH"}), folder(version="580.105.08")]
    stub = with_libcuda(
        "/u/stubs/libcuda.so",
        None,
        "580.105.08",
        cuinit=34,
        driver_folder=rows,
        environ={"LD_LIBRARY_PATH": "/u/stubs"},
    )
    assert errors(said(stub)) == {"libcuda-stub"}
    assert errors(said(stub, '[env.a.launch]\nunset = ["LD_LIBRARY_PATH"]')) == set()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [(34, "libcuda-stub"), (803, "libcuda-wrong-compat"), (804, "libcuda-compat-unsupported-hw")],
)
def test_an_answer_names_the_fault_of_a_library_that_nobody_recorded(answer: int, kind: str) -> None:
    machine = HostFacts.model_validate({"cuinit": answer, "driver": "580.105.08"})
    finding = the(said(machine), kind)
    assert finding.severity is Severity.ERROR and str(answer) in finding.message
    assert "libcuda-init-failed" not in {one.kind for one in said(machine)}


BLIND: Mapping[str, Any] = {"libcuda": None, "libcuda_version": None, "cuinit": None}


def test_a_compat_folder_behind_a_link_is_known_by_how_it_was_found() -> None:
    compat = folder("/usr/local/cuda-12.9/compat", "575.57.08", "compat", **{"found-by": "LD_LIBRARY_PATH"})
    environ = {"LD_LIBRARY_PATH": "/usr/local/cuda/compat"}
    machine = facts(**BLIND, driver_folder=[compat, folder(version="580.105.08")], environ=environ)
    assert errors(said(machine)) == {"libcuda-wrong-compat"}


def test_an_older_library_beside_the_drivers_own_is_a_warning_until_somebody_tries() -> None:
    rows = [folder("/usr/local/cuda-12.9/compat", "575.57.08", "compat"), folder(version="580.105.08")]
    (one,) = said(facts(**BLIND, driver_folder=rows))
    assert (one.kind, one.severity) == ("libcuda-wrong-compat", Severity.WARNING)
    assert said(facts(driver_folder=rows)) == ()  # it was tried


@pytest.mark.parametrize(
    ("release", "driver", "name", "kinds"),
    [
        ("12.9", "580.105.08", "NVIDIA H100 80GB HBM3", {"libcuda-wrong-compat"}),
        ("12.9", "575.57.08", "NVIDIA H100 80GB HBM3", set()),
        ("12.9", "535.129.03", "NVIDIA H100 80GB HBM3", set()),
        ("12.8", "525.125.06", "NVIDIA H100 80GB HBM3", {"cuda-compat-unsupported"}),
        ("12.9", "535.129.03", "NVIDIA GeForce RTX 3060", {"libcuda-compat-unsupported-hw"}),
        ("99.9", "535.129.03", "NVIDIA GeForce RTX 3060", set()),
    ],
)
def test_the_folder_of_a_compat_library_tells_its_branch(release: str, driver: str, name: str, kinds: set[str]) -> None:
    machine = with_libcuda(
        f"/usr/local/cuda-{release}/compat/libcuda.so.1", None, driver, accelerator=[device(name, "9.0")],
        driver_folder=[],
    )  # fmt: skip
    assert errors(said(machine)) == kinds


def test_a_run_through_an_older_library_beats_what_its_number_lets_expect() -> None:
    old = "/c/libcuda.so.575.57.08"
    proof = run(driver="580.159.04", libcuda=old)
    machine = with_libcuda(old, "575.57.08", run=[proof])
    assert errors(said(machine)) == set() and the(said(machine), "table-overruled")
    assert errors(said(with_libcuda(old, "575.57.08", run=[run(driver="580.159.04", libcuda="/d/libcuda.so.1")])))
    assert errors(said(with_libcuda(old, "575.57.08", cuinit=803, run=[proof]))) == {"libcuda-wrong-compat"}


@pytest.mark.parametrize(
    "lock", [{"torch": "2.9.0+ppu2.0.0.oe", "triton": "3.5.0"}, {"torch": "2.9.1", "triton": "3.5.1+ppu2"}]
)
def test_what_a_vendors_triton_links_nobody_knows(lock: dict[str, str]) -> None:
    machine = facts("1.5.3-5239a4", driver_folder=[folder(unversioned=False)])
    assert errors(said(machine, lock=versions(lock))) == set()


@pytest.mark.parametrize(
    ("triton", "severity"), [("3.1.0", Severity.ERROR), ("3.5.1", Severity.ERROR), ("3.6.0", Severity.WARNING)]
)
def test_triton_from_3_6_on_links_the_library_by_its_full_name(triton: str, severity: Severity) -> None:
    machine = facts(driver_folder=[folder(unversioned=False, version="580.105.08")])
    assert the(said(machine, lock=versions(triton=triton)), "libcuda-unversioned-missing").severity is severity


# --- devices ---


def test_the_recipes_class_is_held_against_the_devices() -> None:
    host = 'devices = 8\ncompute-capability = ["8.0"]\ndriver = ">=470"'
    assert said(facts(), host=host) == ()
    few = facts(accelerator=[device(count=1)])
    assert [(one.kind, one.severity) for one in said(few, host=host)] == [("devices-too-few", Severity.WARNING)]
    ranks = '[[env.a.smoke]]\nrung = "collective"\nranks = 8'
    assert errors(said(few, ranks, host=host)) == {"devices-too-few"}
    assert errors(said(facts("", accelerator=[]), host=host)) == {"device-missing"}
    other = facts(accelerator=[device("NVIDIA H200", "9.0")])
    assert errors(said(other, host=host)) == {"capability-outside-class"}
    near = facts(accelerator=[device("NVIDIA A40", "8.6")])
    assert errors(said(near, host=host)) == set()


@pytest.mark.parametrize(
    ("torch", "capability", "fine"),
    [
        ("2.5.1+cu124", "12.0", False), ("2.7.0.dev1+cu124", "12.0", False), ("2.5.1+cu121", "12.0", False),
        ("2.10.0", "12.0", True), ("2.10.0", "12.1", True), ("2.10.0", "6.1", False), ("2.7.1", "6.1", True),
        ("2.11.0", "7.0", False), ("2.12.0+cu130", "7.0", False), ("2.12.0+cu130", "7.5", True),
        ("2.10.0", "8.9", True),
        ("2.9.0+vendor", "3.0", True), ("2.99.0", "3.0", True),
    ],
)  # fmt: skip
def test_the_tables_know_which_devices_torch_has_code_for(torch: str, capability: str, fine: bool) -> None:
    machine = facts(accelerator=[device("Some device", capability)])
    lock = versions({"torch": torch})
    assert ("no-kernel-image" not in errors(said(machine, lock=lock))) is fine


def test_every_kind_of_device_is_judged_and_named() -> None:
    machine = facts(accelerator=[device(), device("Tesla P40", "6.1", 1)])
    finding = the(said(machine), "no-kernel-image")
    assert "Tesla P40" in finding.message


def code(path: str, *arches: str, kind: str = "sm", needs: str | None = None) -> NativeFile:
    images = tuple(DeviceImage(kind, arch, 40) for arch in arches)
    wanted = (VersionNeed("libc.so.6", needs, False),) if needs else ()
    return NativeFile(path=path, size=1, elf=Elf(machine=62, needs=wanted), device=images)


def test_what_the_wheels_really_hold_beats_the_table() -> None:
    lock, p40 = versions(), facts(accelerator=[device("Tesla P40", "6.1")])
    torch = next(one.filename for one in lock.wheels if one.name == "torch")
    holds = {torch: (code("torch/lib/libtorch_cuda.so", "60", "80"), code("torch/lib/libx.so", "90"))}
    assert "no-kernel-image" not in errors(said(p40, lock=lock, native=holds))
    lacks = {torch: (code("torch/lib/libtorch_cuda.so", "80"), code("torch/lib/libx.so", "60"))}
    assert "libtorch_cuda.so" in (the(said(p40, lock=lock, native=lacks), "no-kernel-image").actual or "")
    ptx = {torch: (code("torch/lib/libtorch_cuda.so", "52", "60", kind="ptx"),)}
    assert "no-kernel-image" not in errors(said(p40, lock=lock, native=ptx))


def test_other_wheels_fail_when_none_of_their_libraries_runs() -> None:
    lock = versions(vllm="0.18.0")
    vllm = next(one.filename for one in lock.wheels if one.name == "vllm")
    native = {vllm: (code("vllm/_C.abi3.so", "90"), code("vllm/_fa3.so", "90a"))}
    assert "vllm 0.18.0" in the(said(facts(), lock=lock, native=native), "no-kernel-image").message
    some = {vllm: (code("vllm/_C.abi3.so", "80"), code("vllm/_fa3.so", "90a"))}
    assert errors(said(facts(), lock=lock, native=some)) == set()
    assert errors(said(facts(), lock=lock, native=native, unread=frozenset({vllm}))) == set()  # the rest may have it
    cudnn = next(one.filename for one in lock.wheels if one.name == "nvidia-cudnn-cu12")
    assert errors(said(facts(), lock=lock, native={cudnn: (code("libx.so", "90"),)})) == set()


def test_a_run_on_that_device_overrules_missing_code() -> None:
    p40 = facts("535.129.03", accelerator=[device("Tesla P40", "6.1"), device()], run=[run(driver="535.129.03")])
    assert "no-kernel-image" in errors(said(p40))  # the run was on the other one
    proof = [run(driver="535.129.03", device="Tesla P40")]
    proved = facts("535.129.03", accelerator=[device("Tesla P40", "6.1"), device()], run=proof)
    assert "no-kernel-image" not in errors(said(proved))


# --- wheels, glibc, architecture, kernel, Python, base ---


def test_tags_are_held_against_the_machine() -> None:
    tags = "cp311-cp311-manylinux_2_28_x86_64"
    lock = lock_of(
        wheel("torch", "2.10.0", f"torch-2.10.0-{tags}.whl"),
        wheel("numpy", "1.26.4", "numpy-1.26.4-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"),
        wheel("pure", "1.0"),
        wheel("old", "1.0", "old-1.0-cp311-cp311-manylinux1_x86_64.whl"),
        wheel("local", "1.0", "local-1.0-cp311-cp311-linux_x86_64.whl"),
    )
    finding = the(said(facts(glibc="2.17"), lock=lock), "manylinux-mismatch")
    assert (finding.subject, finding.expected, finding.actual) == (
        f"torch-2.10.0-{tags}.whl", "glibc 2.28 or newer", "2.17",
    )  # fmt: skip
    assert errors(said(facts(glibc="2.28"), lock=lock)) == set()


@pytest.mark.parametrize(
    "words", ["2.17", "2.17-326.el7_9", "glibc 2.17", "ldd (GNU libc) 2.17", "GLIBC_2.17", "v2.17", "2.17.0"]
)
def test_a_release_of_glibc_in_other_words(words: str) -> None:
    lock = lock_of(wheel("torch", "2.10.0", "torch-2.10.0-cp311-cp311-manylinux_2_28_x86_64.whl"))
    assert the(said(facts(glibc=words), lock=lock), "manylinux-mismatch").actual == "2.17"
    assert errors(said(facts(glibc=words.replace("2.17", "2.28")), lock=lock)) == set()


@pytest.mark.parametrize("words", ["musl 1.2.4", "unknown", ""])
def test_a_glibc_that_cannot_be_read_is_said_to_be_missing(words: str) -> None:
    (note,) = judge_host([fit(facts(glibc=words))])
    assert (note.kind, "glibc" in note.message) == ("facts-missing", True)


@pytest.mark.parametrize("name", ["amd64", "AMD64", "x86_64", "X86_64", "x64"])
def test_architectures_go_by_many_names(name: str) -> None:
    assert said(facts(arch=name)) == ()
    assert errors(said(facts(arch="arm64"))) == {"host-arch-differs"}


def test_many_wheels_are_counted() -> None:
    tag = "cp311-cp311-manylinux_2_28_x86_64"
    lock = lock_of(*(wheel(f"p{n}", "1", f"p{n}-1-{tag}.whl") for n in range(14)))
    found = [one for one in said(facts(glibc="2.17"), lock=lock) if one.kind == "manylinux-mismatch"]
    assert len(found) == 11 and any("4 more wheels" in one.message for one in found)


def test_symbols_of_built_libraries_are_held_against_the_machine() -> None:
    lock = lock_of(wheel("vllm", "0.6.0", "vllm-0.6.0-cp311-cp311-linux_x86_64.whl"))
    native = {lock.wheels[0].filename: (code("vllm/_C.abi3.so", needs="GLIBC_2.32"),)}
    finding = the(said(facts(glibc="2.17"), lock=lock, native=native), "glibc-too-old")
    assert (finding.expected, finding.actual) == ("2.32", "2.17") and "vllm/_C.abi3.so" in finding.message
    assert errors(said(facts(glibc="2.32"), lock=lock, native=native)) == set()
    weak = replace(native[lock.wheels[0].filename][0].elf, needs=(VersionNeed("libc.so.6", "GLIBC_2.99", True),))
    easy = {lock.wheels[0].filename: (replace(code("a.so"), elf=weak),)}
    assert errors(said(facts(glibc="2.32"), lock=lock, native=easy)) == set()


def test_the_recipes_floor_counts_where_no_lock_knows_better() -> None:
    machine = facts(glibc="2.24", accelerator=[], driver="", libcuda="", cuinit=None)
    assert errors(said(machine, host='glibc = "2.31"', no_lock=True)) == {"glibc-below-class"}
    findings = said(machine, host='glibc = "2.31"', lock=lock_of(wheel("pure", "1.0")))
    assert [(one.kind, one.severity) for one in findings] == [("glibc-below-class", Severity.WARNING)]


def test_architecture_kernel_and_driver_of_the_class() -> None:
    assert errors(said(facts(arch="aarch64"))) == {"host-arch-differs"}
    assert errors(said(facts(), host='kernel = ">=6.1"')) == {"kernel-outside-class"}
    assert errors(said(facts(), host='kernel = ">=4.9"')) == set()
    assert errors(said(facts(), host='driver = ">=590"')) == {"driver-outside-class"}
    assert errors(said(facts("470.82.01"), host='driver = ">=535"')) == {"driver-too-old"}
    proved = said(facts("470.82.01", run=[run()]), host='driver = ">=535"')
    assert the(proved, "driver-outside-class").severity is Severity.WARNING


def test_the_base_must_be_what_the_lock_rests_on() -> None:
    body = '[env.a.base]\npython = "/opt/v/bin/python"\nprotect = ["torch"]'
    lock = lock_of(wheel("add", "1.0"), base={"torch": "2.9.0+ppu2.0.0.oe", "vllm": "0.15.0"})
    bare = facts(accelerator=[], driver="", libcuda="", cuinit=None)

    def of(torch: str | None, python: str = "3.11.7") -> set[str]:
        packages = {"vllm": BasePackage(name="vllm", version="0.15.0")}
        packages |= {"torch": BasePackage(name="torch", version=torch)} if torch else {}
        base = BasePython(executable="/opt/v/bin/python", version=python)
        return errors(said(bare, body, lock=lock, packages=packages, python=base))

    assert of("2.9.0+ppu2.0.0.oe") == set()
    assert of("2.9.0") == {"base-version-differs"}
    assert of(None) == {"base-package-missing"}
    assert of("2.9.0+ppu2.0.0.oe", "3.12.3") == {"base-python-differs"}


# --- LD_LIBRARY_PATH ---


def path(value: str, *libraries: str, **more: Any) -> HostFacts:
    rows = [{"name": one.rpartition("/")[2], "path": one, "found-by": "LD_LIBRARY_PATH"} for one in libraries]
    return facts(environ={"LD_LIBRARY_PATH": value}, library=rows, **more)


@pytest.mark.parametrize(
    ("value", "libraries", "kinds"),
    [
        ("/m/cudnn/lib", ["/m/cudnn/lib/libcudnn.so.9"], {"duplicate-native-lib-cudnn"}),
        ("/m/cudnn/lib", ["/m/cudnn/lib/libcudnn_ops.so.9"], {"duplicate-native-lib-cudnn"}),
        ("/m/cudnn/lib", ["/m/cudnn/lib/libcudnn.so.8"], set()),  # another SONAME does not go before ours
        ("/x:/t/lib", ["/t/lib/libnvJitLink.so.12", "/t/lib/libcublas.so.12"], {"duplicate-native-lib-nvjitlink"}),
        ("/t/lib64", ["/t/lib64/libcublas.so.12", "/t/lib64/libcudart.so.12"], {"duplicate-native-lib-cublas"}),
        ("/t/lib64", ["/t/lib64/libnccl.so.2", "/t/lib64/libcudart.so.12"],
         {"duplicate-native-lib-nccl", "duplicate-native-lib-cudart"}),
        ("/t/lib64", ["/t/lib64/libstdc++.so.6"], set()),
        ("/public/apps/cudnn/v8.0.3/lib64:/public/slurm/lib", [], {"duplicate-native-lib-cudnn"}),
        ("/apps/nccl-2.18/lib", [], {"duplicate-native-lib-nccl"}),
        ("/usr/local/cuda-12.1/lib64", [], {"duplicate-native-lib-nvjitlink"}),
        ("/usr/local/cuda-12.1/lib64/", [], {"duplicate-native-lib-nvjitlink"}),
        ("/apps/CUDA/12.4.1/targets/x86_64-linux/lib", [], {"duplicate-native-lib-nvjitlink"}),
        ("/usr/local/cuda-12.9/lib64", [], set()),  # newer of the same major: a warning
        ("/usr/local/cuda/lib64", [], set()),  # of unknown version: a warning
        ("/usr/local/cuda-11.8/lib64", [], set()),
        ("/opt/tools/lib", [], set()),
    ],
)  # fmt: skip
def test_libraries_before_those_of_the_wheels(value: str, libraries: list[str], kinds: set[str]) -> None:
    assert errors(said(path(value, *libraries))) == kinds


@pytest.mark.parametrize(
    ("folder", "severity"),
    [
        ("/opt/aws-ofi-nccl/lib", None),  # plugins of NCCL: no libnccl.so
        ("/opt/amazon/ofi-nccl/lib", None),
        ("/opt/hpcx/nccl_rdma_sharp_plugin/lib", None),
        ("/opt/nccl-tests/build", None),
        ("/opt/nvidia/hpc_sdk/Linux_x86_64/23.3/comm_libs/nccl/lib", Severity.ERROR),
        ("/opt/nccl_2.10.3-1+cuda11.0_x86_64/lib", Severity.ERROR),
        ("/opt/nccl-2.27.5/lib", Severity.WARNING),  # the very version of the wheel
        ("/opt/nccl_2.28.3-1+cuda12.9_x86_64/lib", Severity.WARNING),  # newer
        ("/apps/cudnn/9.10/lib", Severity.WARNING),
        ("/apps/cudnn/9.1.0/lib", Severity.ERROR),
        ("/apps/cudnn/v8.9.7/lib64", Severity.ERROR),
        ("/opt/CUDNN/lib64", Severity.ERROR),
        ("/usr/local/cuda/extras/CUPTI/lib64", Severity.WARNING),  # of unknown release
        ("/usr/local/cuda-12.8/extras/CUPTI/lib64", Severity.WARNING),  # of torch's own release
        ("/usr/local/cuda-12.1/extras/CUPTI/lib64", Severity.ERROR),
        ("/usr/local/cuda-13.0/extras/CUPTI/lib64", None),  # libcupti.so.13 goes by another name
        ("/usr/local/cuda-12/lib64", Severity.WARNING),
        ("/usr/local/cuda-11/lib64", None),
        ("/sw/cuda12.1/lib64", Severity.ERROR),
        ("/usr//local/cuda-12.1//lib64/.", Severity.ERROR),
    ],
)  # fmt: skip
def test_what_the_name_of_a_folder_tells_of_its_libraries(folder: str, severity: Severity | None) -> None:
    lock = versions(nvidia_cuda_cupti_cu12="12.8.90")
    assert [one.severity for one in said(path(folder), lock=lock)] == ([severity] if severity else [])


def test_a_folder_of_cudnn_alone_is_no_toolkit() -> None:
    for torch in ("1.12.1+cu113", "2.10.0"):
        found = said(path("/public/apps/cudnn/v8.0.3.33-cuda.11.0/cuda/lib64"), lock=versions({"torch": torch}))
        assert [one.kind for one in found] == ["duplicate-native-lib-cudnn"]


def test_a_toolkit_of_cuda_11_has_no_nvjitlink() -> None:
    found = said(path("/usr/local/cuda-11.0/lib64"), lock=versions({"torch": "1.12.1+cu113"}))
    assert [one.kind for one in found] == ["duplicate-native-lib-cublas"]
    assert "nvJitLink" not in found[0].message


def test_the_folders_of_the_env_itself_shadow_nothing() -> None:
    own = "/envs/t-a/current/lib/python3.11/site-packages/nvidia/cudnn/lib"
    assert said(path(own)) == ()
    assert errors(said(path(own.replace("t-a", "t-b")))) == {"duplicate-native-lib-cudnn"}


@pytest.mark.parametrize("body", [
    '[env.a.launch]\nunset = ["LD_LIBRARY_PATH"]',
    '[env.a.launch.set]\nLD_LIBRARY_PATH = "/opt/x"',
    '[env.a.launch.prepend]\nLD_LIBRARY_PATH = "{env}/lib/python3.11/site-packages/nvidia/nvjitlink/lib"',
])  # fmt: skip
def test_a_launch_table_that_replaces_the_path_is_enough(body: str) -> None:
    assert errors(said(path("/usr/local/cuda-12.1/lib64"), body)) == set()


def test_without_packages_of_nvidia_torch_itself_ships_them() -> None:
    machine, lock = path("/m/lib", "/m/lib/libcudnn.so.8"), versions({"torch": "1.12.1+cu113"})
    assert errors(said(machine, lock=lock)) == {"duplicate-native-lib-cudnn"}
    assert errors(said(machine, lock=versions({"numpy": "1.26.4"}))) == set()


@pytest.mark.parametrize("value", ["/a:", ":/a", "/a::/b"])
def test_an_empty_element_is_a_warning(value: str) -> None:
    assert [(one.kind, one.severity) for one in said(path(value))] == [("empty-element", Severity.WARNING)]
    assert said(path(value), '[env.a.launch.prepend]\nLD_LIBRARY_PATH = "/z"') == ()  # a prepend drops them


def test_lower_case_names_and_other_variables_do_not_matter() -> None:
    assert said(facts(environ={"ld_library_path": "/usr/local/cuda-12.1/lib64", "PATH": "/x"})) == ()


# --- limits ---

RAY = versions(ray="2.56.1")


@pytest.mark.parametrize(
    ("soft", "hard", "cpus", "severity", "word"),
    [
        (1024, 1_048_576, 512, Severity.ERROR, "ulimit -n 65536"),
        (1024, -1, 64, Severity.ERROR, "ulimit -n"),
        (20_000, 20_000, 16, Severity.WARNING, "container"),  # 1,250 for each CPU
        (20_000, 20_000, 64, Severity.ERROR, "container"),
        (4_096, 65_536, 2, Severity.ERROR, "ulimit -n 65536"),
        (8_192, 65_536, 8, Severity.WARNING, "ulimit -n 65536"),
        (65_536, 65_536, 64, None, ""),
        (65_536, 1_048_576, 20_000, Severity.ERROR, "ulimit -n 80000"),
        (-1, -1, 512, None, ""),
    ],
)
def test_open_files_for_ray(soft: int, hard: int, cpus: int, severity: Severity | None, word: str) -> None:
    found = said(facts(open_files=soft, open_files_max=hard, cpus=cpus), lock=RAY)
    assert [(one.kind, one.severity) for one in found] == ([("fd-limit", severity)] if severity else [])
    assert all(word in (one.hint or "") for one in found)


def test_one_limit_that_several_envs_meet_is_said_once() -> None:
    low = facts(open_files=20_000, open_files_max=20_000, cpus=64, compiler="", accelerator=[device(count=1)])
    ranks = '[[env.a.smoke]]\nrung = "collective"\nranks = 8'
    few = "devices = 8"
    both = [fit(low, host=few), fit(low, ranks, host=few, lock=versions(ray="2.56.1", deepspeed="0.18.4"))]
    found = judge_host(both)
    assert [one.kind for one in found].count("fd-limit") == 1
    assert errors(found) == {"fd-limit", "devices-too-few", "runtime-toolchain-missing"}
    assert {one.kind for one in found if one.severity is Severity.WARNING} == set()
    assert "Triton and DeepSpeed" in the(found, "runtime-toolchain-missing").message


def test_open_files_without_ray_are_a_warning() -> None:
    found = said(facts(open_files=20_000, open_files_max=20_000, cpus=16))
    assert [(one.kind, one.severity) for one in found] == [("fd-limit", Severity.WARNING)]


@pytest.mark.parametrize(
    ("count", "mib", "host", "fine"),
    [
        (8, 64, "", False),
        (8, 8192, "", True),
        (1, 1023, "", False),
        (1, 1024, "", True),
        (8, 2048, "devices = 2", True),
    ],
)
def test_shared_memory_for_each_device(count: int, mib: int, host: str, fine: bool) -> None:
    found = said(facts(accelerator=[device(count=count)], shm_bytes=mib << 20), host=host)
    assert ("dev-shm-too-small" not in errors(found)) is fine
    assert all("full" not in f"{one.message} {one.hint}".lower() for one in found)


def test_shared_memory_at_the_very_edge() -> None:
    assert said(facts(shm_bytes=8 << 30, shm_free_bytes=(8 << 30) - 4096)) == ()  # a page is always taken
    (short,) = said(facts(shm_bytes=(8 << 30) - 4096))
    assert "8,589,930,496 bytes, and 8 GiB are wanted" in short.message


def test_shared_memory_that_is_taken_is_a_warning() -> None:
    (found,) = said(facts(shm_free_bytes=60 << 20))
    assert (found.kind, found.severity) == ("dev-shm-too-small", Severity.WARNING)


def test_a_compiler_and_headers_for_what_compiles_at_run_time() -> None:
    assert errors(said(facts(compiler=""))) == {"runtime-toolchain-missing"}
    assert errors(said(facts(compiler=""), lock=versions(triton=None))) == set()
    assert errors(said(facts(compiler=""), lock=versions(triton=None, deepspeed="0.18.4"))) == {
        "runtime-toolchain-missing"
    }
    assert errors(said(facts(compiler=""), '[env.a.launch.set]\nCC = "/opt/gcc/bin/gcc"')) == set()  # as the hint says
    bare = BasePython(executable="/usr/bin/python3", version="3.11.2", headers=False)
    assert "Python.h" in the(said(facts(), python=bare), "runtime-toolchain-missing").message
    other = BasePython(executable="/usr/bin/python3", version="3.12.3", headers=False)
    assert errors(said(facts(), python=other)) == set()  # another interpreter than the env's
    p40 = facts(compiler="", accelerator=[device("Tesla P40", "6.1")])
    assert errors(said(p40, lock=versions(torch="2.7.1"))) == set()  # torch leaves Triton alone there


def disk(free: int, **more: Any) -> dict[str, Any]:
    return {"path": "/home/u", "type": "ext4", "kind": "local", "free-bytes": free, "write": "ok", **more}


def test_room_for_downloads_and_env() -> None:
    big = lock_of(replace(wheel("torch", "2.10.0"), size=1 << 30))
    full = facts(environ={"HOME": "/home/u"}, file_system=[disk(1 << 30)], shm_bytes=None)
    finding = the(said(full, lock=big), "disk-too-small")
    assert finding.expected == "2.9 GiB"  # 1 GiB to download and 1.9 GiB unpacked, on one disk
    room = facts(environ={"HOME": "/home/u"}, file_system=[disk(3 << 30)])
    assert errors(said(room, lock=big)) == set()
    stored = frozenset(one.sha256 for one in big.wheels)
    assert the(said(full, lock=big, stored=stored), "disk-too-small").expected == "1.9 GiB"
    known = {big.wheels[0].filename: 1 << 20}
    assert errors(said(full, lock=big, stored=stored, unpacked=known)) == set()


def test_other_places_have_disks_of_their_own() -> None:
    big = lock_of(replace(wheel("torch", "2.10.0"), size=1 << 30))
    rows = [disk(3 << 30), disk(1 << 20, path="/scratch", type="xfs")]
    environ = {"HOME": "/home/u", "ENVSMITH_ROOT": "/scratch/envs"}
    assert the(said(facts(environ=environ, file_system=rows), lock=big), "disk-too-small").subject == "/scratch"


# --- the job ---


def test_variables_of_the_vendor() -> None:
    body = '[env.a.launch]\nrequire = ["ASCEND_HOME_PATH", "LD_LIBRARY_PATH"]'
    machine = facts(environ={"PATH": "/usr/bin", "HOME": "/h", "ASCEND_HOME_PATH": ""})
    finding = the(said(machine, body), "vendor-profile-missing")
    assert finding.actual == "not set: ASCEND_HOME_PATH, LD_LIBRARY_PATH"
    whole = facts(environ={"ASCEND_HOME_PATH": "/a", "LD_LIBRARY_PATH": "/a/lib"})
    assert errors(said(whole, body)) == set()
    assert errors(said(machine, f'{body}\nprofile = "/a/set_env.sh"')) == set()
    assert errors(said(facts(environ=None), body)) == set()
    given = f'{body}\n[env.a.launch.set]\nASCEND_HOME_PATH = "/a"\n[env.a.launch.prepend]\nLD_LIBRARY_PATH = "/a/lib"'
    assert errors(said(machine, given)) == set()


@pytest.mark.parametrize(
    ("environ", "body", "fine"),
    [
        ({"RAY_TMPDIR": "/" + "a" * 39}, "", False),
        ({"RAY_TMPDIR": "/" + "a" * 38}, "", True),
        ({"RAY_TMPDIR": "/" + "a" * 38 + "/"}, "", True),
        ({"TMPDIR": "/" + "ü" * 20}, "", False),
        ({"RAY_TMPDIR": "/r", "TMPDIR": "/" + "a" * 60}, "", True),
        ({"RAY_TMPDIR": "/" + "a" * 60}, '[env.a.launch.short-dirs]\nRAY_TMPDIR = "{scratch}/r"', True),
        ({"RAY_TMPDIR": "/" + "a" * 60}, '[env.a.launch]\nunset = ["RAY_TMPDIR"]', True),
    ],
)
def test_room_for_rays_sockets(environ: dict[str, str], body: str, fine: bool) -> None:
    found = said(facts(environ=environ), body, lock=RAY)
    assert (errors(found) == set()) is fine
    assert errors(found) <= {"af-unix-path"}
    assert errors(said(facts(environ=environ), body)) == set()  # no Ray


@pytest.mark.parametrize(
    ("row", "safetensors", "severity"),
    [
        ({"kind": "fuse", "type": "fuse.hdfs"}, "0.8.0", Severity.ERROR),
        ({"kind": "fuse", "type": "fuse.hdfs"}, "0.7.0", Severity.WARNING),
        ({"kind": "fuse", "type": "fuse.x", "truncate": "ENOSYS"}, "0.8.1", Severity.ERROR),
        ({"kind": "fuse", "type": "fuse.x", "truncate": "ENOSYS"}, "0.7.0", Severity.WARNING),
        ({"kind": "fuse", "type": "fuse.x", "truncate": "ok"}, "0.8.1", Severity.WARNING),
        ({"kind": "local", "type": "weird", "truncate": "EOPNOTSUPP"}, "0.8.1", Severity.ERROR),
        ({"kind": "network", "type": "nfs4"}, "0.8.1", Severity.WARNING),
        ({"kind": "local", "type": "ext4", "truncate": "ok"}, "0.8.1", None),
    ],
)
def test_checkpoints_on_mounts(row: dict[str, str], safetensors: str, severity: Severity | None) -> None:
    body = '[env.a.job]\ncheckpoint-dir = "/mnt/ckpt/run1"'
    machine = facts(file_system=[{"path": "/mnt/ckpt", **row}, {"path": "/", "kind": "local", "type": "ext4"}])
    found = said(machine, body, lock=versions(safetensors=safetensors))
    assert [(one.kind, one.severity) for one in found] == ([("fuse-checkpoint-write", severity)] if severity else [])
    assert all("sha256" in (one.hint or "") for one in found)


@pytest.mark.parametrize(
    ("row", "folder", "safetensors"),
    [
        ({"path": "/mnt/ckpt/", "type": "fuse.hdfs", "kind": "fuse"}, "/mnt/ckpt/run1", "0.8.0"),
        ({"path": "/mnt/ckpt", "type": "fuse.hdfs", "kind": "fuse"}, "/local/../mnt//ckpt/run1", "0.8.0"),
        ({"path": "/mnt/ckpt", "type": "fuse.s3fs", "kind": "network"}, "/mnt/ckpt/run1", "0.8.0"),
        ({"path": "/mnt/ckpt", "type": "fuse.hdfs", "kind": "fuse"}, "/mnt/ckpt/run1", "0.8.0rc1"),
    ],
)
def test_checkpoints_on_a_mount_in_other_words(row: dict[str, str], folder: str, safetensors: str) -> None:
    machine = facts(file_system=[row, {"path": "/", "kind": "local", "type": "ext4"}])
    found = said(machine, f'[env.a.job]\ncheckpoint-dir = "{folder}"', lock=versions(safetensors=safetensors))
    assert errors(found) == {"fuse-checkpoint-write"}


def test_without_a_lock_safetensors_may_be_of_any_release() -> None:
    body = '[env.a.job]\ncheckpoint-dir = "/mnt/ckpt/run1"'
    machine = facts(file_system=[{"path": "/mnt/ckpt", "kind": "fuse", "type": "fuse.hdfs"}])
    assert errors(said(machine, body, no_lock=True)) == {"fuse-checkpoint-write"}
    refused = facts(file_system=[{"path": "/mnt/ckpt", "kind": "local", "type": "ext4", "write": "EROFS"}])
    assert errors(said(refused, body)) == {"checkpoint-dir-unwritable"}


# --- what is known of devices, and of a job by its configuration ---


def test_a_driver_without_a_list_of_devices_says_nothing_of_their_number() -> None:
    blind = facts(accelerator=[], shm_bytes=1 << 20)
    assert errors(said(blind, host="devices = 8")) == {"dev-shm-too-small"}  # for the recipe's eight
    assert errors(said(facts(accelerator=[], cuinit=100))) == {"libcuda-init-failed"}


@pytest.mark.parametrize("libcuda", ["/c/libcuda.so.580.95.05", None])
def test_a_run_that_failed_through_the_wrong_library_is_mended_with_it(libcuda: str | None) -> None:
    failed = run(ok=False, driver="580.159.04", libcuda=libcuda, error="Error 803")
    rows = [folder("/c", "580.95.05", "compat"), folder(version="580.159.04")]
    machine = with_libcuda("/c/libcuda.so.580.95.05", "580.95.05", cuinit=803, driver_folder=rows, run=[failed])
    assert errors(said(machine)) == {"libcuda-wrong-compat"}
    assert the(said(machine), "device-run-failed").severity is Severity.NOTE  # it only follows
    assert errors(said(machine, '[env.a.launch]\ndriver-library = "host"')) == set()
    own = run(ok=False, driver="580.159.04", libcuda=f"{LIB}/libcuda.so.580.159.04", error="broken")
    sick = facts("580.159.04", driver_folder=rows, run=[own])
    assert errors(said(sick, '[env.a.launch]\ndriver-library = "host"')) == {"device-run-failed"}


def test_a_vendors_own_torch_is_judged_by_its_own_runs() -> None:
    other = {"accelerator": [device("PPU-ZW810", None)], "libcuda": None, "cuinit": None, "driver_folder": []}
    torch = "2.9.0+ppu2.0.0.oe"
    failed = run(ok=False, torch=torch, cuda=None, driver="1.5.3-5239a4", device="PPU-ZW810", error="hggc: no device")
    machine = facts("1.5.3-5239a4", run=[failed], **other)
    assert "hggc" in the(said(machine, lock=versions(torch=torch)), "device-run-failed").message
    assert errors(said(machine, lock=versions(torch="2.9.0+ppu3"))) == set()


@pytest.mark.parametrize("dtype", ["bf16", "torch.bfloat16", "BFloat16"])
def test_number_formats_go_by_many_names(dtype: str) -> None:
    assert errors(said(facts("470.82.01", run=[run(dtype=dtype)]))) == set()


@pytest.mark.parametrize(
    ("name", "text", "folder"),
    [
        ("sft.yaml", "output_dir: /mnt/ckpt/sft\n", "/mnt/ckpt/sft"),
        ("sft.yaml", "bf16: true\n", None),
        ("grpo.txt", "trainer.default_local_dir=/mnt/ckpt/rl\nactor_rollout_ref.model.path=x\n", "/mnt/ckpt/rl"),
        ("grpo.txt", "trainer.default_local_dir=checkpoints/${trainer.name}\n", None),
    ],
)
def test_where_checkpoints_go_is_read_from_a_configuration(name: str, text: str, folder: str | None) -> None:
    assert parse_job(text, name).values.get("checkpoint_dir") == folder


WORDS = st.sampled_from(
    ["", "?", "12", "12.8", "580.159.04", "470.82.01", "1.5.3-5239a4", "525", "abc", "9.9.9.9.9", "٣.٤"]
)
PATHS = st.sampled_from(
    ["", "/", "libcuda.so", "/usr/lib/libcuda.so.1", "/c/stubs/libcuda.so", "/c/libcuda.so.x.y", "//"]
)


@given(
    text=st.fixed_dictionaries(
        {},
        optional={
            **{name: WORDS for name in ("glibc", "kernel", "driver", "libcuda-version", "cuda-driver-version")},
            "libcuda": PATHS, "compiler": WORDS, "cuinit": st.integers(-40, 1000), "open-files": st.integers(-1, 9),
            "accelerator": st.lists(st.fixed_dictionaries({"name": WORDS, "count": st.just(1)}), max_size=2),
            "driver-folder": st.lists(
                st.fixed_dictionaries(
                    {"path": PATHS, "kind": st.sampled_from(["driver", "compat", "stubs", "other"])},
                    optional={"version": WORDS, "found-by": st.sampled_from(["LD_LIBRARY_PATH", "loader", "search"])},
                ),
                max_size=3,
            ),
            "library": st.lists(
                st.fixed_dictionaries({"name": WORDS, "path": PATHS, "found-by": st.just("LD_LIBRARY_PATH")}),
                max_size=2,
            ),
            "run": st.lists(
                st.fixed_dictionaries(
                    {"dtype": WORDS, "ok": st.booleans()}, optional={"cuda": WORDS, "torch": WORDS, "driver": WORDS}
                ),
                max_size=2,
            ),
            "environ": st.dictionaries(st.sampled_from(["LD_LIBRARY_PATH", "RAY_TMPDIR", "HOME"]), PATHS),
        },
    ),
    torch=st.sampled_from(["2.10.0", "2.12.0", "3.0.0+cu140", "2.9.0+ppu1", "1.0+cu9", "2.0+cu"]),
    launch=st.sampled_from(["", 'driver-library = "host"', 'unset = ["LD_LIBRARY_PATH"]']),
)  # fmt: skip
def test_whatever_a_snapshot_says_is_judged(text: dict[str, Any], torch: str, launch: str) -> None:
    machine = HostFacts.model_validate(text)
    host = 'kernel = ">=4"\ndriver = ">=470"\ncuda-compat = "12.8"'
    for one in judge_host(
        [fit(machine, f"[env.a.launch]\n{launch}", host=host, lock=versions(torch=torch, ray="2.5"))]
    ):
        assert one.message and one.hint
