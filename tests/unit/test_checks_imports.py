"""Every fault of the import path is found and named once; every legitimate arrangement stays silent."""

from __future__ import annotations

from typing import Any

import pytest

from envsmith.checks.expected import Expected, within
from envsmith.checks.imports import check_imports
from envsmith.facts import Attribute, Facts, Fault, Import
from envsmith.report import Finding, Severity
from tests.support.facts import (
    BASE,
    CLEAN_PATH,
    ENV,
    PACKAGES,
    customize,
    entry,
    expected,
    facts,
    module,
    pth,
    python,
    root,
    site,
)

RAY = {"ray": (root("ray==2.56.1", "package", "ray/__init__.py"),)}


def judged(intended: Expected, seen: Facts) -> list[Finding]:
    return list(check_imports(intended, seen))


def the_one(intended: Expected, seen: Facts) -> Finding:
    (finding,) = judged(intended, seen)
    assert finding.check == "imports"
    return finding


def imported(**changes: Any) -> Import:
    values = {"ok": True, "error_type": None, "error": None, "file": None, "version": None, "seconds": 0.1}
    return Import(**{**values, **changes})


# -- what must stay silent ------------------------------------------------------------------------------------------

CLEAN = {
    "a regular package": (RAY, {"ray": module("regular", f"{PACKAGES}/ray/__init__.py")}),
    "a module and an extension": (
        {
            "six": (root("six==1", "module", "six.py"),),
            "_cffi": (root("cffi==1", "extension", "_cffi.cpython-311-x86_64-linux-gnu.so"),),
        },
        {
            "six": module("module", f"{PACKAGES}/six.py"),
            "_cffi": module("extension", f"{PACKAGES}/_cffi.cpython-311-x86_64-linux-gnu.so"),
        },
    ),
    "a declared namespace of two owners": (
        {"google": (root("protobuf==6", "namespace"), root("googleapis==1", "namespace"))},
        {"google": module("namespace", None, f"{PACKAGES}/google")},
    ),
    "one `__init__` shipped by eleven owners": (
        {"nvidia": tuple(root(f"nvidia-{n}==12", "package", "nvidia/__init__.py") for n in range(11))},
        {"nvidia": module("regular", f"{PACKAGES}/nvidia/__init__.py")},
    ),
    "a package whose further portions come without `__init__`": (
        {"nvidia": (root("nvidia-a==12", "package", "nvidia/__init__.py"), root("nvidia-b==12", "namespace"))},
        {"nvidia": module("regular", f"{PACKAGES}/nvidia/__init__.py")},
    ),
    "one owner that ships an extension and its pure form": (
        {"md": (root("c==3", "module", "md.py"), root("c==3", "extension", "md.cpython-311-x86_64-linux-gnu.so"))},
        {"md": module("extension", f"{PACKAGES}/md.cpython-311-x86_64-linux-gnu.so")},
    ),
    "N01: a redirector that owns no import name of the other": (
        {
            "pynvml": (root("nvidia-ml-py==13.615.71", "module", "pynvml.py"),),
            "_pynvml_redirector": (root("pynvml==13.0.1", "module", "_pynvml_redirector.py"),),
        },
        {
            "pynvml": module("module", f"{PACKAGES}/pynvml.py"),
            "_pynvml_redirector": module("module", f"{PACKAGES}/_pynvml_redirector.py"),
        },
    ),
}


@pytest.mark.parametrize("case", CLEAN)
def test_a_legitimate_arrangement_is_silent(case: str) -> None:
    roots, modules = CLEAN[case]

    assert judged(expected(roots=roots), facts(modules=modules)) == []


def test_paths_through_a_link_to_the_environment_are_inside_it() -> None:
    linked = "/envs/a100-rl/current"
    seen = facts(
        python=python(prefix=linked, executable=f"{linked}/bin/python"),
        path=(*CLEAN_PATH[:3], entry(f"{linked}/lib/python3.11/site-packages", real=PACKAGES)),
    )

    assert judged(expected(), seen) == []


def test_sources_inside_the_environment_and_allowed_folders_are_no_finding() -> None:
    seen = facts(path=(*CLEAN_PATH, entry(f"{ENV}/src/verl"), entry("/opt/vendor/lib/python3.10/site-packages")))

    assert judged(expected(allow_outside=("/opt/vendor",)), seen) == []


def test_a_work_copy_is_the_job_layer_and_no_drift() -> None:
    roots = {"verl": (root("source:verl", "package", "verl/__init__.py"),)}
    seen = facts(
        path=(entry("/home/u/verl"), *CLEAN_PATH), modules={"verl": module("regular", "/home/u/verl/verl/__init__.py")}
    )

    assert judged(expected(roots=roots, editable={"verl": ("/home/u/verl",)}), seen) == []


def test_what_was_not_probed_is_not_judged() -> None:
    intended = expected(roots=RAY, imports=("ray",), attributes=("ray.remote",))

    assert judged(intended, facts()) == []


def test_directories_are_compared_by_whole_names() -> None:
    assert within("/a/b/c", ("/a/b",))
    assert within("/a/b", ("/a/b",))
    assert not within("/a/bc", ("/a/b",))


# -- the interpreter and sys.path -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "subject", "actual"),
    [
        ({"version": "3.10.13"}, "python", "3.10.13"),
        ({"version": "3.1.1"}, "python", "3.1.1"),
        ({"prefix": "/opt/conda", "real_prefix": "/opt/conda"}, "prefix", "/opt/conda"),
        ({"base_prefix": "/usr", "real_base_prefix": "/usr"}, "base_prefix", "/usr"),
    ],
)
def test_another_interpreter_is_named(change: dict[str, str], subject: str, actual: str) -> None:
    finding = the_one(expected(), facts(python=python(**change)))

    assert (finding.kind, finding.severity, finding.subject) == ("wrong-interpreter", Severity.ERROR, subject)
    assert finding.actual is not None
    assert actual in finding.actual


OLD = "/usr/local/lib/python3.10/site-packages"
#: How an entry came onto sys.path, and the words that must say so.
WAYS = {
    "PYTHONPATH": ({"environ": {"PYTHONPATH": f"/x:{OLD}/"}}, "through `PYTHONPATH`"),
    "a .pth line": (
        {"site": site(pth=(pth(f"{PACKAGES}/old.pth", lines=(OLD,)),))},
        f"through a line of `{PACKAGES}/old.pth`",
    ),
    "D17: .pth code": (
        {"site": site(pth=(pth(f"{PACKAGES}/zz_site.pth", runs=(f"import sys; sys.path.insert(0, {OLD!r})",)),))},
        f"through code in `{PACKAGES}/zz_site.pth`",
    ),
    "sitecustomize": (
        {"site": site(customize=(customize(f"{PACKAGES}/sitecustomize.py"),))},
        f"perhaps through `{PACKAGES}/sitecustomize.py`",
    ),
    "nothing visible": ({}, "directory of Python 3.10"),
}


@pytest.mark.parametrize("case", WAYS)
def test_a_folder_of_another_python_is_named_with_its_way_in(case: str) -> None:
    changes, words = WAYS[case]
    finding = the_one(expected(), facts(path=(entry(OLD), *CLEAN_PATH), **changes))

    assert (finding.kind, finding.severity, finding.subject) == ("foreign-python-path", Severity.ERROR, OLD)
    assert words in finding.message


def test_a_folder_of_another_python_is_found_inside_the_environment_too() -> None:
    finding = the_one(expected(), facts(path=(*CLEAN_PATH, entry(f"{ENV}/lib/python3.10/site-packages"))))

    assert finding.kind == "foreign-python-path"


def test_the_base_interpreters_site_packages_are_outside_although_its_library_is_not() -> None:
    shared = f"{BASE}/lib/python3.11/site-packages"
    seen = facts(path=(*CLEAN_PATH, entry(shared)), python=python(site_packages=(PACKAGES, shared)))

    finding = the_one(expected(), seen)
    assert (finding.kind, finding.subject) == ("path-outside", shared)
    assert "include-system-site-packages" in finding.message


def test_an_outside_folder_that_does_not_exist_is_a_warning_and_said_once() -> None:
    finding = the_one(expected(), facts(path=(entry("/gone", exists=False), *CLEAN_PATH, entry("/gone", exists=False))))

    assert (finding.kind, finding.severity) == ("path-outside", Severity.WARNING)


def test_a_link_out_of_the_environment_is_outside() -> None:
    finding = the_one(expected(), facts(path=(*CLEAN_PATH[:3], entry(PACKAGES, real="/elsewhere"))))

    assert (finding.kind, finding.actual) == ("path-outside", "/elsewhere")


# -- origins ----------------------------------------------------------------------------------------------------------

VERL = {"verl": (root("source:verl", "package", "verl/__init__.py"),)}
TYPING = {"typing_extensions": (root("typing-extensions==4", "module", "typing_extensions.py"),)}
MD = {"md": (root("c==3", "module", "md.py"), root("c==3", "extension", "md.abi3.so"))}
GOOGLE = {"google": (root("protobuf==6", "namespace"),)}
WRONG = {
    "D12: lost its __init__": (RAY, "ray", module("namespace", None, f"{PACKAGES}/ray"), "became-namespace"),
    "gone": (RAY, "ray", module("missing"), "module-missing"),
    "D16: from elsewhere": (RAY, "ray", module("regular", "/home/u/.local/ray/__init__.py"), "unexpected-file"),
    "an orphan package in the environment hides a module": (
        TYPING,
        "typing_extensions",
        module("regular", f"{PACKAGES}/typing_extensions/__init__.py"),
        "unexpected-file",
    ),
    "the extension is gone and the pure form answers": (
        MD,
        "md",
        module("module", f"{PACKAGES}/md.py"),
        "unexpected-file",
    ),
    "a builtin answers": (TYPING, "typing_extensions", module("builtin"), "unexpected-file"),
    "a namespace got an __init__": (
        GOOGLE,
        "google",
        module("regular", f"{PACKAGES}/google/__init__.py"),
        "unexpected-file",
    ),
    "a namespace got a portion": (
        GOOGLE,
        "google",
        module("namespace", None, f"{PACKAGES}/google", "/old/google"),
        "namespace-portion-outside",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_name_answered_by_the_wrong_file_is_named(case: str) -> None:
    roots, name, seen, kind = WRONG[case]
    finding = the_one(expected(roots=roots), facts(modules={name: seen}))

    assert (finding.kind, finding.severity, finding.subject) == (kind, Severity.ERROR, name)


def test_a_shadowing_folder_is_named_with_its_way_onto_the_path() -> None:
    seen = facts(
        path=(entry("/lab/tools"), *CLEAN_PATH),
        environ={"PYTHONPATH": "/lab/tools"},
        modules={"ray": module("regular", "/lab/tools/ray/__init__.py")},
    )

    found = {finding.kind: finding for finding in judged(expected(roots=RAY), seen)}
    assert set(found) == {"path-outside", "unexpected-file"}
    assert "from `/lab/tools`, which came onto sys.path through `PYTHONPATH`" in found["unexpected-file"].message


def test_a_work_copy_that_does_not_answer_is_named() -> None:
    seen = facts(modules={"verl": module("regular", f"{PACKAGES}/verl/__init__.py")})

    finding = the_one(expected(roots=VERL, editable={"verl": ("/home/u/verl",)}), seen)
    assert (finding.kind, finding.expected) == ("unexpected-file", "/home/u/verl")


def test_a_name_left_out_by_the_probe_is_no_silent_success() -> None:
    seen = facts(modules={"ray": module("regular", f"{PACKAGES}/ray/__init__.py")})

    assert the_one(expected(roots={**RAY, **TYPING}), seen).subject == "typing_extensions"


def test_d10_two_owners_of_one_name_are_named_with_the_winner() -> None:
    roots = {
        "pynvml": (
            root("nvidia-ml-py==12.570.86", "module", "pynvml.py"),
            root("pynvml==11.5.3", "package", "pynvml/__init__.py"),
        )
    }
    seen = facts(modules={"pynvml": module("regular", f"{PACKAGES}/pynvml/__init__.py")})

    finding = the_one(expected(roots=roots), seen)
    assert (finding.kind, finding.severity) == ("module-owned-twice", Severity.ERROR)
    assert "of pynvml==11.5.3 wins" in finding.message
    # the lock alone is enough to say so, before anything was probed
    assert "of pynvml==11.5.3 wins" in the_one(expected(roots=roots), facts()).message


# -- real imports -----------------------------------------------------------------------------------------------------


def test_real_imports_and_attributes_that_work_are_silent() -> None:
    seen = facts(
        imports={
            "ray.data": imported(file=f"{PACKAGES}/ray/data/__init__.py"),
            "json": imported(file=f"{BASE}/lib/python3.11/json/__init__.py"),
            "sys": imported(),
        },
        attributes={"ray.remote": Attribute(ok=True, error_type=None, error=None)},
    )

    assert judged(expected(imports=("ray.data", "json", "sys"), attributes=("ray.remote",)), seen) == []


def test_a_failed_import_is_named_with_its_words() -> None:
    seen = facts(imports={"vllm": imported(ok=False, error_type="ImportError", error="libnccl.so.2: no")})

    finding = the_one(expected(imports=("vllm",)), seen)
    assert (finding.kind, finding.actual) == ("import-failed", "ImportError: libnccl.so.2: no")


def test_an_import_left_out_by_the_probe_is_no_silent_success() -> None:
    assert the_one(expected(imports=("ray", "vllm")), facts(imports={"ray": imported()})).subject == "vllm"


NO_CUDA = "libcuda.so.1: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("words", "has_device", "severity"),
    [
        (NO_CUDA, False, Severity.NOTE),
        (NO_CUDA, True, Severity.ERROR),
        ("libcudart.so.12: cannot open shared object file: No such file or directory", False, Severity.ERROR),
    ],
)
def test_only_a_missing_driver_excuses_a_failed_import_and_only_without_a_device(
    words: str, has_device: bool, severity: Severity
) -> None:
    seen = facts(imports={"vllm._C": imported(ok=False, error_type="ImportError", error=words)})

    assert the_one(expected(imports=("vllm._C",), has_device=has_device), seen).severity is severity


def test_an_import_from_the_base_interpreters_packages_is_outside() -> None:
    file = f"{BASE}/lib/python3.11/site-packages/ray/__init__.py"

    assert the_one(expected(imports=("ray",)), facts(imports={"ray": imported(file=file)})).kind == "unexpected-file"


def test_d12_a_missing_attribute_is_named() -> None:
    gone = Attribute(ok=False, error_type="AttributeError", error="module 'ray' has no attribute 'remote'")

    finding = the_one(expected(attributes=("ray.remote",)), facts(attributes={"ray.remote": gone}))
    assert (finding.kind, finding.subject) == ("attribute-missing", "ray.remote")


def test_a_section_that_the_probe_could_not_look_at_is_an_error() -> None:
    finding = the_one(expected(), facts(faults=(Fault(section="site", message="OSError: no"),)))

    assert (finding.kind, finding.severity, finding.subject) == ("probe-incomplete", Severity.ERROR, "site")


def test_a_namespace_of_the_env_may_be_a_package_of_the_base() -> None:
    """backports.tarfile has an `__init__` that extends its path, backports.zstd has none; both are real wheels."""
    roots = {"backports": (root("backports-zstd==1", "namespace"),)}
    vendor = "/opt/vendor/lib/python3.11/site-packages"
    seen = facts(modules={"backports": module("regular", f"{vendor}/backports/__init__.py")})
    assert judged(expected(roots=roots, base_folders=(vendor,)), seen) == []
    assert the_one(expected(roots=roots), seen).kind == "unexpected-file"


def test_tests_that_a_wheel_ships_beside_its_package_may_lose_to_the_library() -> None:
    library = facts(modules={"test": module("regular", f"{BASE}/lib/python3.11/test/__init__.py")})
    assert judged(expected(roots={"test": (root("careless==1", "namespace"),)}), library) == []
    other = facts(modules={"queue": module("module", f"{BASE}/lib/python3.11/queue.py")})
    assert the_one(expected(roots={"queue": (root("careless==1", "namespace"),)}), other).kind == "unexpected-file"
