"""Code that runs at start and variables that redirect imports are found unless the manifest knows them."""

from __future__ import annotations

from typing import Any

import pytest

from envsmith.checks.expected import Expected
from envsmith.checks.hooks import check_hooks
from envsmith.facts import Facts
from envsmith.report import Finding, Severity
from tests.support.facts import (
    BASE,
    CLEAN_PATH,
    ENV,
    PACKAGES,
    RELATIVE,
    customize,
    entry,
    expected,
    facts,
    finder,
    pth,
    site,
)

ERROR, WARNING = Severity.ERROR, Severity.WARNING
USER = "/home/u/.local/lib/python3.11/site-packages"


def judged(intended: Expected, seen: Facts) -> list[Finding]:
    return list(check_hooks(intended, seen))


def the_one(intended: Expected, seen: Facts) -> Finding:
    (finding,) = judged(intended, seen)
    assert finding.check == "hooks"
    return finding


def test_a_clean_process_is_silent() -> None:
    assert judged(expected(), facts()) == []


def test_n01_hooks_that_the_manifest_knows_are_silent() -> None:
    seen = facts(
        site=site(
            pth=(
                pth(f"{PACKAGES}/_pynvml_redirector.pth", runs=("import _pynvml_redirector",), sha256="1"),
                pth(f"{PACKAGES}/distutils-precedence.pth", runs=("import os; …",), sha256="2"),
                pth(f"{PACKAGES}/__editable__.verl.pth", lines=(f"{ENV}/src/verl",), sha256="3"),
            ),
            customize=(
                customize(f"{PACKAGES}/sitecustomize.py", sha256="4"),
                customize("/usr/lib/python3.11/sitecustomize.py", sha256="5"),
            ),
            finders=(
                finder("_distutils_hack", f"{PACKAGES}/_distutils_hack/__init__.py"),
                finder("_virtualenv", f"{PACKAGES}/_virtualenv.py"),
                finder("__editable___verl_0_5_finder", f"{PACKAGES}/__editable___verl_0_5_finder.py"),
                finder("site", None),
                finder("zipimport_hook", f"{BASE}/lib/python3.11/zipimport_hook.py"),
            ),
        )
    )
    hooks = {
        f"{RELATIVE}/_pynvml_redirector.pth": "1",
        f"{RELATIVE}/distutils-precedence.pth": "2",
        f"{RELATIVE}/__editable__.verl.pth": "3",
        f"{RELATIVE}/sitecustomize.py": "4",
        "/usr/lib/python3.11/sitecustomize.py": "5",
    }

    assert judged(expected(hooks=hooks), seen) == []


def test_d17_only_the_unowned_pth_is_named() -> None:
    seen = facts(
        site=site(
            pth=(
                pth(f"{PACKAGES}/distutils-precedence.pth", runs=("import os; …",), sha256="2"),
                pth(f"{PACKAGES}/zz_site.pth", runs=("import sys; sys.path.insert(0, '/old')",)),
            )
        )
    )

    finding = the_one(expected(hooks={f"{RELATIVE}/distutils-precedence.pth": "2"}), seen)
    assert (finding.kind, finding.severity, finding.subject) == ("unowned-pth", ERROR, f"{RELATIVE}/zz_site.pth")
    assert "sys.path.insert(0, '/old')" in finding.message


@pytest.mark.parametrize(
    ("file", "hooks", "kind", "severity"),
    [
        (pth(f"{PACKAGES}/a.pth", lines=("/x",)), {}, "unowned-pth", ERROR),
        (pth(f"{PACKAGES}/a.pth"), {}, "unowned-pth", WARNING),
        (pth(f"{PACKAGES}/a.pth", lines=("/x",), sure=False), {}, "unowned-pth", WARNING),
        (pth(f"{PACKAGES}/a.pth", lines=("/x",)), {f"{RELATIVE}/a.pth": "0"}, "changed-pth", ERROR),
        (pth("/opt/vendor/a.pth", lines=("/x",)), {"/opt/vendor/a.pth": "0"}, "changed-pth", ERROR),
    ],
)
def test_a_pth_file_is_judged_by_owner_content_and_effect(
    file: Any, hooks: dict[str, str], kind: str, severity: Severity
) -> None:
    finding = the_one(expected(hooks=hooks, allow_outside=("/opt/vendor",)), facts(site=site(pth=(file,))))

    assert (finding.kind, finding.severity) == (kind, severity)


def test_hooks_of_an_allowed_folder_are_accepted() -> None:
    seen = facts(
        site=site(
            pth=(pth("/opt/vendor/lib/a.pth", lines=("/opt/vendor/src",)),),
            customize=(customize("/opt/vendor/lib/sitecustomize.py"),),
            finders=(finder("vendor", "/opt/vendor/lib/vendor.py"),),
        )
    )

    assert judged(expected(allow_outside=("/opt/vendor",)), seen) == []


@pytest.mark.parametrize("name", ["sitecustomize", "usercustomize"])
@pytest.mark.parametrize("place", [PACKAGES, f"{BASE}/lib/python3.11", "/lab"])
@pytest.mark.parametrize(("loaded", "severity"), [(True, ERROR), (False, WARNING)])
def test_an_unknown_customize_module_is_named_wherever_it_lies(
    name: str, place: str, loaded: bool, severity: Severity
) -> None:
    file = customize(f"{place}/{name}.py", name=name, loaded=loaded)

    finding = the_one(expected(), facts(site=site(customize=(file,))))
    assert (finding.kind, finding.severity) == (name, severity)


def test_a_known_sitecustomize_with_other_content_is_named() -> None:
    seen = facts(site=site(customize=(customize(f"{PACKAGES}/sitecustomize.py", sha256="9"),)))

    finding = the_one(expected(hooks={f"{RELATIVE}/sitecustomize.py": "4"}), seen)
    assert (finding.expected, finding.actual) == ("4", "9")


@pytest.mark.parametrize(
    ("enabled", "exists", "on_path", "severity"),
    [
        (True, True, True, ERROR),
        (True, True, False, WARNING),
        (True, False, False, None),
        (False, True, False, None),
    ],
)
def test_d16_the_user_site_is_an_error_where_it_takes_part_in_imports(
    enabled: bool, exists: bool, on_path: bool, severity: Severity | None
) -> None:
    seen = facts(
        site=site(user_enabled=enabled, user_exists=exists, user_dir=USER),
        path=(entry(USER), *CLEAN_PATH) if on_path else CLEAN_PATH,
    )

    said = [(f.kind, f.severity) for f in judged(expected(), seen)]
    assert said == ([("user-site-leak", severity)] if severity else [])


@pytest.mark.parametrize(
    ("environ", "severity"),
    [
        ({"PYTHONPATH": "/lab"}, ERROR),
        ({"PYTHONPATH": "."}, ERROR),
        ({"PYTHONPATH": f"{ENV}/src/verl:"}, ERROR),
        ({"PYTHONPATH": f"{ENV}/src/verl"}, None),
        ({"PYTHONPATH": "/home/u/verl"}, None),
        ({"PYTHONPATH": "/link/verl"}, None),
        ({"PYTHONPATH": ""}, None),
        ({"PYTHONHOME": BASE}, ERROR),
        ({"PYTHONUSERBASE": "/lab"}, WARNING),
        ({"PYTHONSTARTUP": "/lab/start.py"}, WARNING),
        ({"LD_PRELOAD": "libhook.so"}, ERROR),
        ({"LD_PRELOAD": f"{ENV}/lib/a.so:{ENV}/lib/b.so {ENV}/lib/c.so"}, None),
        ({"LD_PRELOAD": f"{ENV}/lib/a.so /lab/b.so"}, ERROR),
        ({"PYTHONNOUSERSITE": "1", "LD_LIBRARY_PATH": "/lab", "PYTHONHASHSEED": "0"}, None),
    ],
)
def test_variables_that_redirect_imports_are_named(environ: dict[str, str], severity: Severity | None) -> None:
    seen = facts(environ=environ, path=(*CLEAN_PATH, entry("/link/verl", real="/home/u/verl")))
    found = judged(expected(editable={"verl": ("/home/u/verl",)}), seen)

    names = [(next(iter(environ)), severity)] if severity else []
    assert [(f.subject, f.severity) for f in found if f.kind == "python-variable"] == names


def test_a_variable_that_this_process_ignores_is_a_warning_because_children_inherit_it() -> None:
    seen = facts(environ={"PYTHONPATH": "/lab"}, flags={"ignore_environment": 1})

    assert the_one(expected(), seen).severity is WARNING


def test_an_enabled_user_site_makes_its_variable_an_error() -> None:
    seen = facts(environ={"PYTHONUSERBASE": "/lab"}, site=site(user_enabled=True))

    assert the_one(expected(), seen).severity is ERROR


@pytest.mark.parametrize("file", ["/lab/hook.py", f"{BASE}/lib/python3.11/site-packages/hook.py", None])
def test_an_import_hook_from_outside_is_a_warning(file: str | None) -> None:
    finding = the_one(expected(), facts(site=site(finders=(finder("hook", file),))))

    assert (finding.kind, finding.severity, finding.subject) == ("foreign-finder", WARNING, "hook.MetaFinder")
