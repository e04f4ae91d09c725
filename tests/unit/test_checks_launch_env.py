"""Variables of processes: each rule of the launch table broken once, and LD_LIBRARY_PATH in its many wrong forms."""

from __future__ import annotations

from typing import Any

import pytest

from envsmith.checks.launch_env import Surrounding, check_launched, check_shell
from envsmith.checks.linking import Shadow
from envsmith.launch import LaunchTable
from envsmith.native import LibraryFolder
from envsmith.report import Finding, Severity

TABLE = LaunchTable(
    unset=("PYTHONHOME", "PYTHONPATH", "PYTORCH_CUDA_ALLOC_CONF"), set={"MODE": "sdpa"}, require=("VENDOR_HOME",)
)
WANTED = {"MODE": "sdpa", "PYTHONNOUSERSITE": "1"}
CLEAN = {"MODE": "sdpa", "PYTHONNOUSERSITE": "1", "VENDOR_HOME": "/opt/vendor", "PATH": "/e/bin:/usr/bin"}


def folder(path: str, *names: str) -> LibraryFolder:
    return LibraryFolder(path=path, exists=True, names=frozenset(names))


def shadow(family: str, takes: tuple[str, ...], immune: tuple[str, ...] = ()) -> Shadow:
    name = f"{family}.so.2"
    ours = (f"lib/python3.11/site-packages/nvidia/{name}",)
    return Shadow(name=name, family=family, path=f"/opt/other/{name}", ours=ours, takes=takes, immune=immune)


def around(environ: dict[str, str] | None = None, **more: Any) -> Surrounding:
    return Surrounding(environ={**CLEAN, **(environ or {})}, **more)


def launched(seen: Surrounding) -> list[Finding]:
    return list(check_launched(TABLE, WANTED, seen))


def said(findings: list[Finding]) -> set[tuple[str, str, str]]:
    return {(finding.kind, finding.subject, finding.severity.value) for finding in findings}


def test_a_process_as_the_table_wants_it_has_no_findings() -> None:
    assert launched(around()) == []
    assert list(check_shell(TABLE, around())) == []


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "variable-not-unset"),
        ("MODE", "flash_attention_2", "variable-differs"),
        ("MODE", None, "variable-differs"),
        ("PYTHONNOUSERSITE", None, "variable-differs"),
        ("VENDOR_HOME", None, "variable-missing"),
        ("VENDOR_HOME", "", "variable-missing"),
    ],
)
def test_each_rule_of_the_table_is_held_inside_the_process(name: str, value: str | None, kind: str) -> None:
    environ = {key: item for key, item in {**CLEAN, name: value}.items() if item is not None}
    findings = launched(Surrounding(environ=environ))
    assert said(findings) == {(kind, name, "error")}
    assert findings[0].actual == (value or "not set")


def test_a_value_that_the_probe_cut_is_not_called_another() -> None:
    assert launched(around({"MODE": "(redacted)"})) == []


def test_the_shell_may_lack_what_the_table_sets_but_not_have_what_it_forbids() -> None:
    seen = Surrounding(environ={"PATH": "/usr/bin", "PYTORCH_CUDA_ALLOC_CONF": "x", "PYTHONPATH": "/x"})
    assert said(list(check_shell(TABLE, seen))) == {("variable-not-unset", "PYTORCH_CUDA_ALLOC_CONF", "error")}


@pytest.mark.parametrize("value", ["/a:", ":/a", "/a::/b"])
@pytest.mark.parametrize("name", ["LD_LIBRARY_PATH", "PATH"])
def test_an_empty_element_is_the_current_directory(name: str, value: str) -> None:
    (finding,) = launched(around({name: value}))
    assert (finding.kind, finding.subject, finding.severity) == ("empty-element", name, Severity.WARNING)


@pytest.mark.parametrize("value", ["/a:lib", "./lib64", "../x:/b"])
def test_a_relative_element_is_another_folder_everywhere(value: str) -> None:
    (finding,) = launched(around({"LD_LIBRARY_PATH": value}))
    assert (finding.kind, finding.severity) == ("relative-element", Severity.WARNING)


def test_another_value_in_the_shell_is_worth_a_word_and_no_value_is_not() -> None:
    seen = Surrounding(environ={"MODE": "flash_attention_2", "PATH": "/usr/bin"})
    assert said(list(check_shell(TABLE, seen))) == {("variable-differs", "MODE", "warning")}
    assert list(check_shell(TABLE, Surrounding(environ={"PATH": "/usr/bin"}))) == []


def test_lists_without_empty_elements_are_fine() -> None:
    assert launched(around({"LD_LIBRARY_PATH": "/a:/b"})) == []
    assert launched(around({"LD_LIBRARY_PATH": ""})) == []


def test_d03_stubs_are_for_linking() -> None:
    findings = launched(around(folders=(folder("/usr/local/cuda/lib64/stubs", "libcuda.so"), folder("/x/mystubs"))))
    assert said(findings) == {("libcuda-stub", "/usr/local/cuda/lib64/stubs", "error")}


@pytest.mark.parametrize(
    ("kernel", "found", "wrong"),
    [
        ("580.105.08", "575.57.08", True),
        ("580.159.04", "580.95.05", True),
        ("580.159.04", "580.159.04", False),
        ("470.82.01", "575.57.08", False),
        (None, "575.57.08", False),
        ("580.105.08", None, False),
    ],
)
def test_d01_a_compat_library_older_than_the_kernels_driver(kernel: str | None, found: str | None, wrong: bool) -> None:
    drivers = {"/usr/local/cuda/compat": found} if found else {}
    seen = around(folders=(folder("/usr/local/cuda/compat", "libcuda.so.1"),), drivers=drivers, kernel_driver=kernel)
    assert said(launched(seen)) == (
        {("libcuda-wrong-compat", "/usr/local/cuda/compat/libcuda.so.1", "error")} if wrong else set()
    )


@pytest.mark.parametrize(("order", "wrong"), [(("/own", "/compat"), False), (("/compat", "/own"), True)])
def test_d01_the_first_libcuda_on_the_path_decides(order: tuple[str, str], wrong: bool) -> None:
    seen = around(
        folders=(folder("/empty", "libx.so"), *(folder(path, "libcuda.so.1") for path in order)),
        drivers={"/own": "580.159.04", "/compat": "580.95.05"},
        kernel_driver="580.159.04",
    )
    assert said(launched(seen)) == ({("libcuda-wrong-compat", "/compat/libcuda.so.1", "error")} if wrong else set())


@pytest.mark.parametrize(
    ("one", "severity"),
    [
        (shadow("libnvJitLink", ("nvidia/cusparse/lib/libcusparse.so.12",)), "error"),
        (shadow("libcudnn", ()), "error"),
        (shadow("libfoo", ("a/libbar.so",)), "error"),
        (shadow("libfoo", ()), "warning"),
        (shadow("libnccl", (), immune=("torch/lib/libtorch_cuda.so",)), None),
    ],
)
def test_d13_d14_d15_a_library_that_would_be_taken_from_elsewhere(one: Shadow, severity: str | None) -> None:
    findings = launched(around(shadows=(one,)))
    assert said(findings) == ({("library-shadowed", "/opt/other", severity)} if severity else set())
    if severity:
        assert (findings[0].expected, findings[0].actual) == (one.ours[0], one.path)


def test_a_toolkits_folder_is_one_finding_that_names_some_of_its_libraries() -> None:
    shadows = tuple(
        shadow(name, ("a.so",)) for name in ("libnccl", "libcudnn", "libcublas", "libcudart", "libcusparse")
    )
    (finding,) = launched(around(shadows=shadows))
    assert "libnccl.so.2, libcudnn.so.2, libcublas.so.2 and 2 more" in finding.message
