"""Mapped libraries as values; the cases of the symptom table are planted one by one."""

from __future__ import annotations

import pytest

from envsmith.checks.maps import Surroundings, check_level_maps, check_libcuda, check_maps, family_of, shipped_libraries
from envsmith.facts import Level, LibcudaAnswer, MappedFile
from envsmith.report import Finding, Severity
from tests.support.facts import ENV, PACKAGES, RELATIVE, expected, facts

NCCL = f"{RELATIVE}/nvidia/nccl/lib/libnccl.so.2"
SHIPPED = shipped_libraries(
    (
        NCCL,
        f"{RELATIVE}/pyarrow/libarrow.so.2400",
        f"{RELATIVE}/pillow.libs/libz-1a2b3c4d.so.1",
        f"{RELATIVE}/torch/x.py",
    )
)
COMPAT = "/usr/local/cuda-12.9/compat"
AROUND = Surroundings(shipped=SHIPPED, loader={COMPAT: "/etc/ld.so.conf.d/cuda-compat.conf"}, driver="580.105.08")
CLEAN = (
    f"{ENV}/{NCCL}", f"{PACKAGES}/pyarrow/libarrow.so.2400", f"{PACKAGES}/torch/_C.cpython-311-x86_64-linux-gnu.so",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08", "/usr/lib/x86_64-linux-gnu/libstdc++.so.6.0.30",
    "/usr/lib/x86_64-linux-gnu/libz.so.1.2.13",
)  # fmt: skip


def mapped(path: str, sha256: str | None = None, *, deleted: bool = False) -> MappedFile:
    return MappedFile(path=path, deleted=deleted, sha256=sha256)


def judge(*files: MappedFile, around: Surroundings = AROUND, **environ: str) -> list[Finding]:
    return list(check_maps(expected(), files, environ, around))


def test_a_process_of_the_env_on_its_host_is_silent() -> None:
    assert judge(*map(mapped, CLEAN)) == []


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("libcudart.e8e8b82a.so.12", "libcudart"),
        ("libz-1a2b3c4d.so.1", "libz"),
        ("libarrow.so.2400", "libarrow"),
        ("libstdc++.so.6", "libstdc++"),
        ("libcudnn_ops.so.9", "libcudnn_ops"),
        ("_C.abi3.so", None),
        ("libpython3.11.so.1.0", "libpython3.11"),
        ("lib.so", None),
        ("", None),
    ],
)
def test_the_family_of_a_file_is_its_name_without_hash_and_version(name: str, family: str | None) -> None:
    assert family_of(f"/x/{name}") == family


def test_an_older_nccl_of_the_system_is_found_with_who_led_to_it() -> None:
    """facts/symptoms.md D13."""
    old = mapped("/usr/lib/x86_64-linux-gnu/libnccl.so.2.16.2")
    (finding,) = judge(old)
    assert (finding.kind, finding.severity, finding.subject) == ("library-outside", Severity.ERROR, "libnccl")
    assert finding.expected == NCCL
    assert "default folders" in finding.message

    (finding,) = judge(mapped("/sdk/lib/libnccl.so.2"), LD_LIBRARY_PATH="/other:/sdk/lib/")
    assert "`LD_LIBRARY_PATH` holds `/sdk/lib`" in finding.message
    (finding,) = judge(mapped("/sdk/lib/libnccl.so.2"), LD_PRELOAD="/sdk/lib/libnccl.so.2")
    assert "LD_PRELOAD" in finding.message
    (finding,) = judge(mapped(f"{COMPAT}/libnccl.so.2"))
    assert "`/etc/ld.so.conf.d/cuda-compat.conf` names" in finding.message
    (finding,) = judge(mapped("/sdk/lib/libnccl.so.2"), LD_LIBRARY_PATH="/link")
    assert "perhaps" in finding.message


def test_two_builds_in_one_process_are_found_and_two_copies_are_not() -> None:
    ours, theirs = (
        f"{PACKAGES}/nvidia/cuda_runtime/lib/libcudart.so.12",
        f"{PACKAGES}/torchvision.libs/libcudart.e8e8b82a.so.12",
    )
    assert judge(mapped(ours, "a"), mapped(theirs, "a")) == []
    (finding,) = judge(mapped(ours, "a"), mapped(theirs, "b"))
    assert (finding.kind, finding.severity, finding.subject) == ("library-twice", Severity.ERROR, "libcudart")
    assert [f.kind for f in judge(mapped(ours), mapped(theirs))] == ["library-twice"]


def test_two_versions_of_one_family_are_two_files() -> None:
    files = [mapped(f"{PACKAGES}/{place}", place) for place in ("pyarrow/libarrow.so.2400", "old/libarrow.so.2500")]
    assert [f.kind for f in judge(*files)] == ["library-twice"]


def test_other_libraries_may_be_there_twice_unless_the_recipe_says_no() -> None:
    files = [mapped(f"{PACKAGES}/{place}/libgomp.so.1", place) for place in ("torch/lib", "sentencepiece.libs")]
    assert judge(*files) == []
    assert [f.kind for f in judge(*files, around=Surroundings(single_instance=("libgomp",)))] == ["library-twice"]


def test_a_file_that_was_replaced_under_the_process_is_found() -> None:
    (finding,) = judge(mapped(f"{PACKAGES}/torch/lib/libc10.so", deleted=True))
    assert (finding.kind, finding.severity) == ("library-deleted", Severity.ERROR)
    (finding,) = judge(mapped("/usr/lib/libssl.so.3", deleted=True))
    assert finding.severity is Severity.WARNING
    assert judge(mapped("/tmp/ffiAbC", deleted=True), mapped("/dev/zero", deleted=True)) == []


def test_a_stub_is_found() -> None:
    (finding,) = judge(mapped("/usr/local/cuda/lib64/stubs/libcuda.so"))
    assert (finding.kind, finding.severity) == ("libcuda-stub", Severity.ERROR)


@pytest.mark.parametrize(
    ("library", "driver", "wrong"),
    [
        ("libcuda.so.575.57.08", "580.105.08", True),
        ("libcuda.so.570.86.15", "470.82.01", False),
        ("libcuda.so.580.95.05", "580.159.04", True),
        ("libcuda.so.580.105.08", "580.105.08", False),
        ("libcuda.so.580.9.1.", "580.105.08", True),
        ("libcuda.so.575.57.08", None, False),
        ("libcuda.so.1", "580.105.08", False),
    ],
)
def test_a_compat_library_is_for_older_drivers_only(library: str, driver: str | None, wrong: bool) -> None:
    """facts/symptoms.md D01; the A100 machines of the seeds run the second row."""
    around = Surroundings(loader=AROUND.loader, driver=driver)
    found = judge(mapped(f"{COMPAT}/{library}"), around=around)
    assert [f.kind for f in found] == (["libcuda-wrong-compat"] if wrong else [])
    assert all("cuda-compat.conf" in f.message and "upgrade" not in str(f.hint) for f in found)


def test_levels_that_share_a_fault_share_a_finding() -> None:
    old = (mapped("/usr/lib/libnccl.so.2.16.2"),)
    levels = [Level(name=name, parent=None, facts=facts(maps=old)) for name in ("launched", "spawn", "ray")]
    (finding,) = check_level_maps(expected(), levels, AROUND)
    assert finding.message.endswith("(in `launched` and 2 more)")


# -- the driver's answer ----------------------------------------------------------------------------------------------


def answer(init: int | None = 0, **changes: object) -> LibcudaAnswer:
    values: dict[str, object] = {
        "loaded": True, "error": None, "init": init, "driver_version": 12080,
        "path": "/usr/lib/x86_64-linux-gnu/libcuda.so.580.105.08", "version": "580.105.08",
    }  # fmt: skip
    return LibcudaAnswer(**{**values, **changes})  # type: ignore[arg-type]


def asked(given: LibcudaAnswer, *, has_device: bool = True) -> list[Finding]:
    return list(check_libcuda(given, AROUND, has_device=has_device))


def test_a_driver_that_answers_is_silent() -> None:
    assert asked(answer()) == []


CODES = {803: "SYSTEM_DRIVER_MISMATCH", 804: "COMPAT_NOT_SUPPORTED", 34: "STUB", 999: "UNKNOWN", 7: "another"}


@pytest.mark.parametrize(("code", "name"), CODES.items())
def test_a_failing_initialisation_is_named(code: int, name: str) -> None:
    (finding,) = asked(answer(code))
    assert (finding.kind, finding.severity) == ("libcuda-init-failed", Severity.ERROR)
    assert str(code) in str(finding.actual)
    assert name in str(finding.actual)


def test_without_a_device_only_what_does_not_fit_is_said() -> None:
    none = LibcudaAnswer(loaded=False, error="OSError", init=None, driver_version=None, path=None, version=None)
    assert asked(none, has_device=False) == []
    assert asked(answer(100), has_device=False) == []
    assert [f.kind for f in asked(answer(803), has_device=False)] == ["libcuda-init-failed"]
    assert [f.kind for f in asked(none)] == ["libcuda-missing"]
    assert [f.kind for f in asked(answer(100))] == ["libcuda-init-failed"]


def test_a_process_that_dies_in_the_driver_is_a_finding() -> None:
    (finding,) = asked(answer(None, error="the process ended with exit code -11 in `cuInit`"))
    assert (finding.kind, finding.actual) == ("libcuda-init-failed", "the process ended with exit code -11 in `cuInit`")
