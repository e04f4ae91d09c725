"""The probe inside real interpreters and real environments, with real faults planted."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from envsmith.checks.expected import Expected, ImportRoot
from envsmith.checks.hooks import check_hooks
from envsmith.checks.imports import check_imports
from envsmith.checks.launchers import check_launchers
from envsmith.errors import EnvsmithError, HostError, StepError
from envsmith.facts import Facts
from envsmith.probe import PAYLOAD, TOO_OLD_EXIT, TOO_OLD_MARK, Request, probe

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
RELATIVE = f"lib/python{VERSION}/site-packages"


def interpreters() -> Iterator[Path]:
    """Every Python of this machine: version managers' and those on PATH, each once."""
    roots = [Path(sys.base_prefix).parent]
    roots += [Path(os.environ[name]) / "versions" for name in ("PYENV_ROOT",) if name in os.environ]
    found = [python for root in roots for python in sorted(root.glob("*/bin/python"))]
    minors = [f"python3.{minor}" for minor in range(6, 16)]
    for name in ("python2", "python2.7", "python3", *minors):
        found += [Path(path) for path in [shutil.which(name)] if path and "shims" not in path]
    seen: set[Path] = set()
    for python in found:
        if python.resolve() not in seen:
            seen.add(python.resolve())
            yield python


def version_of(python: Path) -> tuple[int, ...] | None:
    done = subprocess.run(
        [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True, check=False
    )
    return tuple(map(int, done.stdout.split("."))) if done.returncode == 0 else None


ALL = {f"{python}": version for python in interpreters() if (version := version_of(python))}
YOUNG = [path for path, version in ALL.items() if version >= (3, 8)]
OLD = [path for path, version in ALL.items() if version < (3, 8)]


# -- the payload as a text --------------------------------------------------------------------------------------------


def test_only_sys_is_imported_before_the_gate_and_only_the_standard_library_after() -> None:
    tree = ast.parse(PAYLOAD.read_text(encoding="utf-8"))
    gate = next(node for node in tree.body if isinstance(node, ast.If))
    before = [node for node in tree.body if node.lineno < gate.lineno]
    assert "version_info" in ast.dump(gate.test)
    assert [type(node) for node in before] == [ast.Expr, ast.Import]
    assert [name.name for node in before if isinstance(node, ast.Import) for name in node.names] == ["sys"]

    imports = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    imports += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    private = next(
        node.value for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PRIVATE"
    )
    imports += ast.literal_eval(private)
    assert {name.split(".")[0] for name in imports} <= set(sys.stdlib_module_names)


def test_the_payload_keeps_to_its_oldest_python() -> None:
    vermin = Path(sys.executable).with_name("vermin")
    if not vermin.exists():
        pytest.skip("vermin is not installed beside this Python")
    done = subprocess.run([vermin, "-t=3.8-", PAYLOAD], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout


# -- every interpreter ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [("-B",), ("-B", "-I"), ("-B", "-S")], ids=" ".join)
@pytest.mark.parametrize("python", YOUNG)
def test_every_supported_interpreter_answers_completely(python: str, flags: tuple[str, ...]) -> None:
    request = Request(
        locate=("sys", "json", "nosuchname"),
        imports=("xml.dom.minidom", "nosuchname.sub"),
        attributes=("os.path.join", "xml.dom.minidom.parse", "json.nothing"),
        launchers=("sh", "nosuchname"),
        launch_path="/bin:/usr/bin",
        maps=True,
    )
    facts = probe(Path(python), request, env=dict(os.environ), flags=flags)

    assert facts.faults == ()
    assert tuple(map(int, facts.python.version.split(".")[:2])) == ALL[python]
    assert {name: seen.kind for name, seen in facts.modules.items()} == {
        "sys": "builtin",
        "json": "regular",
        "nosuchname": "missing",
    }
    assert [facts.imports[name].ok for name in request.imports] == [True, False]
    assert facts.imports["nosuchname.sub"].error_type == "ModuleNotFoundError"
    assert [facts.attributes[name].ok for name in request.attributes] == [True, True, False]
    assert facts.launchers["sh"].path == os.path.realpath("/bin") + "/sh"
    assert facts.launchers["nosuchname"].path is None
    assert any("libc.so" in mapped.path or "libc-" in mapped.path for mapped in facts.maps)
    assert facts.flags["dont_write_bytecode"] == 1
    assert {entry.real for entry in facts.path} <= {*facts.python.stdlib, *facts.python.site_packages}


@pytest.mark.skipif(not OLD, reason="no interpreter older than 3.8 here")
@pytest.mark.parametrize("flags", [("-B",), ("-B", "-I")], ids=" ".join)
@pytest.mark.parametrize("python", OLD)
def test_older_interpreters_are_refused_by_name(python: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(HostError) as caught:
        probe(Path(python), Request(), env=dict(os.environ), flags=flags)
    assert caught.value.problems[0].code == "python-too-old"

    done = subprocess.run([python, PAYLOAD, "asked", "answer"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (TOO_OLD_EXIT, TOO_OLD_MARK + "\n")


# -- interpreters that cannot answer ----------------------------------------------------------------------------------


def problem_of(run: Callable[[], Facts], kind: type[EnvsmithError] = StepError) -> tuple[str, str]:
    with pytest.raises(kind) as caught:
        run()
    (problem,) = caught.value.problems
    return problem.code, problem.message


def test_an_interpreter_that_is_gone_or_no_program_is_broken(tmp_path: Path) -> None:
    dangling, text = tmp_path / "python", tmp_path / "text"
    dangling.symlink_to(tmp_path / "gone")
    text.write_text("#!/bin/sh\necho cannot load libpython >&2\nexit 127\n")
    text.chmod(0o755)

    assert problem_of(lambda: probe(dangling, Request(), env={}))[0] == "interpreter-broken"
    code, message = problem_of(lambda: probe(text, Request(), env={}))
    assert code == "interpreter-broken"
    assert "cannot load libpython" in message


def test_a_wrong_pythonhome_is_a_broken_interpreter(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONHOME": str(tmp_path)}

    assert problem_of(lambda: probe(Path(sys.executable), Request(), env=env))[0] == "interpreter-broken"


def test_an_import_that_kills_the_process_is_named(tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text("import os\nos.abort()\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}

    code, message = problem_of(
        lambda: probe(Path(sys.executable), Request(imports=("json", "deadly")), env=env, flags=("-B",))
    )
    assert code == "probe-failed"
    assert "signal 6 during the import of `deadly`" in message


def test_an_import_that_leaves_or_raises_anything_is_only_a_failed_import(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    (tmp_path / "odd.py").write_text("class Odd(BaseException):\n    def __str__(self):\n        1 / 0\nraise Odd\n")
    (tmp_path / "lingers.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
    )
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    facts = probe(Path(sys.executable), Request(imports=("leaves", "odd", "lingers")), env=env, timeout_s=20)

    assert [facts.imports[name].error_type for name in ("leaves", "odd", "lingers")] == ["SystemExit", "Odd", None]


def test_a_probe_that_never_ends_is_ended(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text("import time\ntime.sleep(60)\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}

    run = lambda: probe(Path(sys.executable), Request(imports=("stuck",)), env=env, timeout_s=1)  # noqa: E731
    assert problem_of(run)[0] == "program-timeout"


# -- an environment and its faults ------------------------------------------------------------------------------------


@cache
def hooks_of_base() -> dict[str, str]:
    """What the base interpreter itself brings, as Debian's does: recorded, it is no finding."""
    facts = probe(Path(sys.executable).resolve(), Request(), env={"PATH": "/bin"}, flags=("-B", "-I"))
    return {customize.path: customize.sha256 for customize in facts.site.customize}


class Lab:
    """A real virtual environment with a package, a module, a namespace, a launcher and the view that fits it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dir = folder / "env"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.dir], check=True)
        self.packages = self.dir / RELATIVE
        self.write("ray/__init__.py", "remote = 1\n__version__ = '2.56.1'\n")
        self.write("ray/_private/worker.py", "")
        self.write("six.py", "")
        self.write("google/protobuf/__init__.py", "")
        self.write("ray-2.56.1.dist-info/METADATA", "Name: ray\nVersion: 2.56.1\nRequires-Dist: click\n\nbody: no\n")
        self.launcher = self.dir / "bin/ray"
        self.script(self.launcher, f"#!{self.dir}/bin/python\n")
        self.env = {**os.environ, "PATH": f"{self.dir}/bin:/usr/bin:/bin"}
        self.expected = Expected(
            env_dir=str(self.dir),
            site_packages=str(self.packages),
            python_version=VERSION,
            base_prefix=os.path.realpath(sys.base_prefix),
            roots={
                "ray": (ImportRoot(owner="ray==2.56.1", origin=f"{RELATIVE}/ray/__init__.py", kind="package"),),
                "six": (ImportRoot(owner="six==1.17.0", origin=f"{RELATIVE}/six.py", kind="module"),),
                "google": (ImportRoot(owner="protobuf==6", origin="", kind="namespace"),),
            },
            launchers=("ray",),
            imports=("ray", "google.protobuf"),
            attributes=("ray.remote",),
            hooks=hooks_of_base(),
        )

    def write(self, name: str, text: str) -> Path:
        path = self.packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    @staticmethod
    def script(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def probe(self, *flags: str, python: Path | None = None) -> Facts:
        request = Request(
            locate=tuple(self.expected.roots),
            imports=self.expected.imports,
            attributes=self.expected.attributes,
            launchers=self.expected.launchers,
        )
        return probe(python or self.dir / "bin/python", request, env=self.env, flags=("-B", *flags))

    def kinds(self, *flags: str, python: Path | None = None) -> list[tuple[str, str]]:
        facts = self.probe(*flags, python=python)
        checks = (check_imports, check_hooks, check_launchers)
        found = [finding for check in checks for finding in check(self.expected, facts)]
        return sorted((finding.kind, finding.subject) for finding in found)


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path.resolve() / "lab")


@pytest.mark.parametrize("flags", [(), ("-I",)], ids=["plain", "isolated"])
def test_a_clean_environment_has_no_finding(lab: Lab, flags: tuple[str, ...]) -> None:
    assert lab.kinds(*flags) == []


def test_a_clean_environment_reached_through_a_link_has_no_finding(lab: Lab) -> None:
    current = lab.folder / "current"
    current.symlink_to(lab.dir)
    lab.env["PATH"] = f"{current}/bin:/usr/bin:/bin"

    assert lab.kinds(python=current / "bin/python") == []


def test_probing_leaves_the_environment_as_it_was(lab: Lab) -> None:
    lab.write("hook.pth", "import ray\n")
    before = sorted(path.relative_to(lab.dir) for path in lab.dir.rglob("*"))
    lab.probe()

    assert sorted(path.relative_to(lab.dir) for path in lab.dir.rglob("*")) == before


def test_metadata_and_versions_are_reported(lab: Lab) -> None:
    facts = lab.probe()
    (ray,) = facts.distributions

    assert (ray.name, ray.version, ray.requires, ray.readable) == ("ray", "2.56.1", ("click",), True)
    assert facts.imports["ray"].version == "2.56.1"


def test_only_asked_and_decisive_variables_are_carried_and_secrets_never(lab: Lab) -> None:
    lab.env.update(PYTHONHASHSEED="0", HF_TOKEN="s3cret", RAY_X="1", OTHER="2", PYTHON_API_KEY="s3cret")
    request = Request(environ_names=("HF_TOKEN", "RAY_X"))
    environ = probe(lab.dir / "bin/python", request, env=lab.env).environ

    assert environ["HF_TOKEN"] == environ["PYTHON_API_KEY"] == "(redacted)"
    assert (environ["RAY_X"], environ["PYTHONHASHSEED"]) == ("1", "0")
    assert "OTHER" not in environ


def test_d12_a_deleted_init_is_found_although_the_import_works(lab: Lab) -> None:
    (lab.packages / "ray/__init__.py").unlink()

    found = lab.kinds()
    assert ("became-namespace", "ray") in found
    assert ("attribute-missing", "ray.remote") in found
    assert "import-failed" not in {kind for kind, _ in found}


def test_a_deleted_module_is_found(lab: Lab) -> None:
    (lab.packages / "six.py").unlink()

    assert ("module-missing", "six") in lab.kinds()


def test_d10_a_folder_beside_a_module_is_found(lab: Lab) -> None:
    lab.write("six/__init__.py", "")

    assert ("unexpected-file", "six") in lab.kinds()


@pytest.mark.parametrize("flags", [(), ("-I",)], ids=["plain", "isolated"])
def test_d17_a_pth_that_inserts_an_older_pythons_folder_is_found_even_in_isolated_mode(
    lab: Lab, flags: tuple[str, ...]
) -> None:
    old = lab.folder / "usr/lib/python2.7/site-packages"
    (old / "six").mkdir(parents=True)
    (old / "six/__init__.py").write_text("")
    lab.write("zz_site.pth", f"import sys; sys.path.insert(0, {str(old)!r})\n")

    found = lab.kinds(*flags)
    assert ("foreign-python-path", str(old)) in found
    assert ("unexpected-file", "six") in found
    assert ("unowned-pth", f"{RELATIVE}/zz_site.pth") in found


def test_a_pth_that_the_manifest_knows_is_silent_until_it_changes(lab: Lab) -> None:
    lab.write("owned.pth", "import os\n")
    (pth,) = (pth for pth in lab.probe().site.pth if pth.path.endswith("owned.pth"))
    lab.expected = replace(lab.expected, hooks={**hooks_of_base(), f"{RELATIVE}/owned.pth": pth.sha256})

    assert "pth" not in " ".join(kind for kind, _ in lab.kinds())
    lab.write("owned.pth", "import os, sys\n")
    assert ("changed-pth", f"{RELATIVE}/owned.pth") in lab.kinds()


def test_a_site_directory_that_code_adds_is_searched_for_pth_files_too(lab: Lab) -> None:
    added = lab.folder / "base"
    added.mkdir()
    (added / "inner.pth").write_text("import os\n")
    lab.write("zz_base.pth", f"import site; site.addsitedir({str(added)!r})\n")

    assert ("unowned-pth", str(added / "inner.pth")) in lab.kinds()


BREAKING = """
import builtins, os, sys
print("a banner on stdout")
os.write(1, b"more of it")
sys.modules["json"] = None
import hashlib, shutil
hashlib.sha256 = shutil.which = builtins.open = None
sys.path.insert(0, FOLDER)
class Hook:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("re", "shutil", "sysconfig"):
            raise RuntimeError("hijacked")
sys.meta_path.insert(0, Hook)
"""


def test_site_hooks_that_print_and_break_modules_do_not_reach_the_answer(lab: Lab) -> None:
    shadows = lab.folder / "shadows"
    shadows.mkdir()
    for name in ("hashlib", "json", "re", "shutil", "sysconfig", "tempfile"):
        (shadows / f"{name}.py").write_text("raise SystemError('shadowed')\n")
    lab.write("breaking.py", BREAKING.replace("FOLDER", repr(str(shadows))))
    lab.write("zz.pth", "import breaking\n")

    facts = lab.probe()
    assert facts.faults == ()
    assert facts.modules["ray"].origin == f"{lab.packages}/ray/__init__.py"
    found = lab.kinds()
    assert ("unowned-pth", f"{RELATIVE}/zz.pth") in found
    assert ("path-outside", str(shadows)) in found


def test_the_modules_that_the_probe_uses_do_not_hide_what_a_program_would_import(lab: Lab) -> None:
    (lab.folder / "shutil.py").write_text("raise SystemError('shadowed')\n")
    lab.env["PYTHONPATH"] = str(lab.folder)
    facts = probe(lab.dir / "bin/python", Request(locate=("shutil",), imports=("shutil",)), env=lab.env)

    assert facts.modules["shutil"].origin == str(lab.folder / "shutil.py")
    assert facts.imports["shutil"].error_type == "SystemError"


def test_what_cannot_be_looked_at_is_reported_and_the_rest_is_still_answered(lab: Lab) -> None:
    lab.write("zz.pth", "import site; site.USER_SITE = 5\n")

    facts = lab.probe()
    assert [fault.section for fault in facts.faults] == ["site"]
    assert facts.imports["ray"].ok
    assert lab.kinds() == [("probe-incomplete", "site")]


def test_a_sitecustomize_in_the_environment_is_found(lab: Lab) -> None:
    lab.write("sitecustomize.py", "")

    assert lab.kinds() == [("sitecustomize", f"{RELATIVE}/sitecustomize.py")]


def test_a_pythonpath_shadow_is_found_with_its_way_in_and_isolated_mode_hides_it(lab: Lab) -> None:
    shadow = lab.folder / "shadow"
    (shadow / "ray").mkdir(parents=True)
    (shadow / "ray/__init__.py").write_text("remote = 0\n")
    lab.env["PYTHONPATH"] = str(shadow)

    findings = {finding.kind: finding for finding in check_imports(lab.expected, lab.probe())}
    assert "through `PYTHONPATH`" in findings["path-outside"].message
    assert findings["unexpected-file"].actual == str(shadow / "ray/__init__.py")
    assert ("python-variable", "PYTHONPATH") in lab.kinds()
    assert lab.kinds("-I") == [("python-variable", "PYTHONPATH")]


def test_a_namespace_portion_on_pythonpath_is_found(lab: Lab) -> None:
    (lab.folder / "more/google/cloud").mkdir(parents=True)
    lab.env["PYTHONPATH"] = str(lab.folder / "more")

    assert ("namespace-portion-outside", "google") in lab.kinds()


def test_d16_the_user_site_is_found_only_where_it_is_on(lab: Lab) -> None:
    user = Path(lab.env["HOME"]).resolve() / ".local" / RELATIVE
    user.mkdir(parents=True)
    (user / "six.py").write_text("")
    (lab.packages / "six.py").unlink()
    assert "user-site-leak" not in {kind for kind, _ in lab.kinds()}

    settings = lab.dir / "pyvenv.cfg"
    settings.write_text(settings.read_text().replace("= false", "= true"))
    found = lab.kinds()
    assert ("user-site-leak", str(user)) in found
    assert ("unexpected-file", "six") in found


def test_a_usercustomize_in_the_user_site_is_found(lab: Lab) -> None:
    settings = lab.dir / "pyvenv.cfg"
    settings.write_text(settings.read_text().replace("= false", "= true"))
    user = Path(lab.env["HOME"]).resolve() / ".local" / RELATIVE
    user.mkdir(parents=True)
    (user / "usercustomize.py").write_text("")

    assert ("usercustomize", str(user / "usercustomize.py")) in lab.kinds()


def test_an_environment_that_another_interpreter_opens_is_found(lab: Lab) -> None:
    other = Lab(lab.folder / "other")

    assert ("wrong-interpreter", "prefix") in lab.kinds(python=other.dir / "bin/python")


def test_editable_installations_are_seen_through_their_finder(lab: Lab) -> None:
    work = lab.folder / "verl"
    (work / "verl").mkdir(parents=True)
    (work / "verl/__init__.py").write_text("")
    lab.write("__editable___verl_finder.py", EDITABLE.replace("FILE", repr(str(work / "verl/__init__.py"))))
    lab.write("__editable__.verl.pth", "import __editable___verl_finder; __editable___verl_finder.install()\n")
    pth = {f"{RELATIVE}/{Path(pth.path).name}": pth.sha256 for pth in lab.probe().site.pth}
    verl = (ImportRoot(owner="source:verl", origin="src/verl/verl/__init__.py", kind="package"),)
    lab.expected = replace(lab.expected, roots={**lab.expected.roots, "verl": verl}, hooks={**hooks_of_base(), **pth})
    assert lab.kinds() == [("unexpected-file", "verl")]

    lab.expected = replace(lab.expected, editable={"verl": (str(work),)})
    assert lab.kinds() == []


EDITABLE = """
import sys
from importlib.util import spec_from_file_location
class _EditableFinder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return spec_from_file_location(name, FILE) if name == "verl" else None
def install():
    sys.meta_path.append(_EditableFinder)
"""


# -- launchers --------------------------------------------------------------------------------------------------------


#: Second lines of sh trampolines: two installers' forms, and the relocatable one.
TRAMPOLINES = {
    "single quotes": "'''exec' 'BIN/python' \"$0\" \"$@\"",
    "double quotes": '\'\'\'exec\' "BIN/python" "$0" "$@"',
    "bare": "'''exec' BIN/python \"$0\" \"$@\"",
    "relocatable": '\'\'\'exec\' "$(dirname -- "$(realpath -- "$0")")"/\'python\' "$0" "$@"',
}


@pytest.mark.parametrize("form", TRAMPOLINES)
def test_the_interpreter_behind_a_trampoline_is_found(lab: Lab, form: str) -> None:
    line = TRAMPOLINES[form].replace("BIN", str(lab.dir / "bin"))
    lab.script(lab.launcher, f"#!/bin/sh\n{line}\n' '''\nimport sys; print(sys.prefix)\n")
    ran = subprocess.run([lab.launcher], capture_output=True, text=True, check=True)

    assert Path(ran.stdout.strip()).resolve() == lab.dir
    assert lab.kinds() == []
    assert lab.probe().launchers["ray"].interpreter == str(lab.dir / "bin/python")


@pytest.mark.parametrize(
    "head",
    [
        "#!/opt/conda/bin/python\n",
        "#!/bin/sh\n'''exec' '/opt/conda/bin/python' \"$0\" \"$@\"\n' '''\n",
        "#!/usr/bin/env -S nosuchpython -E\n",
    ],
)
def test_a_launcher_of_the_environment_on_another_python_is_found(lab: Lab, head: str) -> None:
    lab.script(lab.launcher, head)

    assert ("launcher-wrong-interpreter", "ray") in lab.kinds()


def test_env_in_a_shebang_is_resolved_on_the_launch_path(lab: Lab) -> None:
    other = lab.folder / "other"
    lab.script(other / "mypython", "#!/bin/sh\n")
    lab.script(lab.launcher, "#!/usr/bin/env -S mypython -E\n")
    lab.env["PATH"] += f":{other}"

    assert lab.probe().launchers["ray"].interpreter == str(other / "mypython")


def test_d18_a_launcher_of_another_environment_earlier_on_path_is_found(lab: Lab) -> None:
    other = lab.folder / "conda/bin"
    lab.script(other / "ray", f"#!{other}/python\n")
    lab.env["PATH"] = f"{other}:{lab.env['PATH']}"

    assert ("launcher-from-wrong-env", "ray") in lab.kinds()


def test_a_launcher_without_its_bit_or_without_its_file_is_found(lab: Lab) -> None:
    lab.launcher.chmod(0o644)
    assert ("launcher-not-executable", "ray") in lab.kinds()

    lab.launcher.unlink()
    assert ("launcher-missing", "ray") in lab.kinds()


def test_a_launcher_beside_the_interpreter_but_not_on_path_is_missing_with_a_pointer(lab: Lab) -> None:
    lab.env["PATH"] = "/nowhere"
    (finding,) = check_launchers(lab.expected, lab.probe())

    assert finding.kind == "launcher-missing"
    assert str(lab.launcher) in str(finding.actual)


# -- the request ------------------------------------------------------------------------------------------------------


def test_the_payload_reads_exactly_the_requests_keys() -> None:
    text = PAYLOAD.read_text(encoding="utf-8")
    read = set(re.findall(r"request(?:\.get\(|\[)\"(\w+)\"", text))

    assert read | {"schema"} == json.loads(Request().to_json()).keys()


def test_file_names_that_are_no_text_do_not_break_the_answer(lab: Lab) -> None:
    odd = os.fsencode(lab.packages) + b"/odd\xff.pth"
    with open(odd, "wb") as stream:  # noqa: PTH123 - a name that pathlib cannot spell
        stream.write(b"import os\n")

    assert any("odd\\xff.pth" in pth.path for pth in lab.probe().site.pth)
