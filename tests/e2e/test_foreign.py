"""`envsmith verify PATH` on environments that another tool made: all that needs no build record, nothing written.

The ids are those of facts/symptoms.md; each case is laid out as its users met it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import PYTHON, SITE
from tests.support.venvs import Venv, everything, findings, make_venv

#: What installers write where the interpreter is to be found beside the script.
TRAMPOLINE = """\
#!/bin/sh
'''exec' "$(dirname -- "$(realpath -- "$0")")"/'python3' "$0" "$@"
' '''
"""


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    return make_venv(tmp_path / "theirs")


def tree(folder: Path) -> set[tuple[str, int, int]]:
    """Every path below a folder with size and time."""
    return {
        (str(path), path.lstat().st_size, path.lstat().st_mtime_ns) for path in [folder, *sorted(folder.rglob("*"))]
    }


@pytest.mark.parametrize("maker", ["venv", "virtualenv-like", "uv"])
def test_a_clean_env_of_another_tool_has_no_findings_and_stays_as_it_is(tmp_path: Path, maker: str) -> None:
    path = tmp_path / "theirs"
    if maker == "uv":
        subprocess.run([sys.executable, "-m", "uv", "venv", "-q", "--python", sys.executable, path], check=True)
        venv = Venv(path)
    else:
        venv = make_venv(path)
    if maker == "virtualenv-like":
        (venv.site / "_virtualenv.py").write_text("x = 1\n")
        (venv.site / "_virtualenv.pth").write_text("import _virtualenv")
    venv.install("alpha", "1.0", {"alpha/__init__.py": "", "alpha/data.txt": "x"}, more={"top_level.txt": "alpha\n"})
    venv.script("alpha-run", f"{path}/bin/python")
    before = tree(path)
    for words in ((), ("--deep",) if maker == "uv" else (), ("--quick",)):
        said = venv.verify(*words)
        assert said.code == 0, said.out + said.err
        assert said.json["data"]["findings"] == []
    assert tree(path) == before
    assert not list(tmp_path.glob("theirs.*"))


def test_a_second_look_trusts_an_index_that_lies_in_our_own_store(venv: Venv, stranger: Path) -> None:
    venv.install("alpha", "1.0", {"alpha.py": "x = 1\n"})
    os.utime(venv.site / "alpha.py", (1, 1))
    first, second = venv.verify(), venv.verify()
    assert first.json["data"]["envs"][0]["hashed_bytes"] > 0
    assert len(list((stranger / "store" / "foreign").glob("*.stat.json"))) == 1
    (venv.site / "alpha.py").write_text("x = 2\n")
    os.utime(venv.site / "alpha.py", (1, 1))
    third = venv.verify()
    assert (first.code, second.code, third.code) == (0, 0, 1)
    (finding,) = findings(third, "files/file-changed")
    assert finding["subject"] == f"{SITE}/alpha.py"
    assert "--reinstall-package alpha 'alpha==1.0'" in finding["hint"]


def test_d10_two_distributions_claim_one_import_name(venv: Venv) -> None:
    venv.install("pynvml", "11.5.3", {"pynvml/__init__.py": "from .nvml import *\n", "pynvml/nvml.py": "a = 1\n"})
    venv.install("nvidia_ml_py", "12.570.86", {"pynvml.py": "b = 1\n"})
    said = venv.verify()
    (finding,) = findings(said, "imports/module-owned-twice")
    assert (said.code, finding["subject"]) == (1, "pynvml")
    assert "pynvml/__init__.py` of pynvml==11.5.3 wins" in finding["message"]
    assert len(said.json["data"]["findings"]) == 1


def test_d11_two_distributions_are_interleaved(venv: Venv) -> None:
    for name, version, text in (("opencv_python_headless", "4.10.0.84", "h"), ("opencv_python", "4.11.0.86", "o")):
        files = {"cv2/__init__.py": f"x = '{text}'\n", "cv2/gapi/__init__.py": f"y = '{text}'\n"}
        venv.install(name, version, files)
    (venv.site / "cv2/__init__.py").write_text("x = 'h'\n")
    said = venv.verify()
    (finding,) = findings(said, "files/overlapping-files")
    assert (said.code, finding["subject"]) == (1, f"{SITE}/cv2")
    assert "1 from opencv-python-headless==4.10.0.84, 1 from opencv-python==4.11.0.86" in finding["actual"]


def test_d12_files_went_with_the_other_owner(venv: Venv) -> None:
    files = {"ray/__init__.py": "", "ray/remote_function.py": "", "ray/_private/worker.py": ""}
    venv.install("ray", "2.56.1", files)
    (venv.site / "ray/__init__.py").unlink()
    (venv.site / "ray/remote_function.py").unlink()
    said = venv.verify()
    assert {"files/record-missing-files", "imports/became-namespace"} == said.kinds
    (finding,) = findings(said, "files/record-missing-files")
    assert "ray/__init__.py, ray/remote_function.py" in finding["message"]
    assert "--reinstall-package ray 'ray==2.56.1'" in finding["hint"]


def test_d16_the_user_site_wins_over_an_env_that_lets_it_in(venv: Venv, stranger: Path) -> None:
    venv.install("torch", "2.10.0", {"torch/__init__.py": "__version__ = '2.10.0'\n"})
    config = venv.path / "pyvenv.cfg"
    config.write_text(
        config.read_text().replace("include-system-site-packages = false", "include-system-site-packages = true")
    )
    user = stranger / "home/.local" / SITE
    (user / "torch").mkdir(parents=True)
    (user / "torch/__init__.py").write_text("__version__ = '2.1.0'\n")
    said = venv.verify()
    assert said.code == 1
    assert "hooks/user-site-leak" in said.kinds
    assert str(user) in everything(said)
    assert "user-site-leak" not in everything(venv.verify(env={"PYTHONNOUSERSITE": "1"}))


def test_d17_a_pth_that_nobody_owns_adds_another_pythons_packages(venv: Venv, tmp_path: Path) -> None:
    other = tmp_path / "old/lib/python3.9/site-packages"
    other.mkdir(parents=True)
    venv.install(
        "setuptools", "80.0.0", {"distutils-precedence.pth": "import os\n"}, unhashed=("distutils-precedence.pth",)
    )
    (venv.site / "zz_site.pth").write_text(f"import sys; sys.path.insert(0, '{other}')\n")
    said = venv.verify()
    assert said.code == 1
    assert {"hooks/unowned-pth", "imports/foreign-python-path"} <= said.kinds
    assert "zz_site.pth" in everything(said)
    assert "distutils-precedence" not in everything(said)


def test_n01_a_pth_that_a_distribution_owns_is_no_offence(venv: Venv) -> None:
    files = {"_pynvml_redirector.pth": "import _pynvml_redirector\n", "_pynvml_redirector.py": "x = 1\n"}
    venv.install("pynvml", "13.0.1", files)
    venv.install("nvidia_ml_py", "13.615.71", {"pynvml.py": "b = 1\n"})
    said = venv.verify()
    assert (said.code, said.json["data"]["findings"]) == (0, [])


def test_d18_a_launcher_of_another_env_comes_first(venv: Venv, tmp_path: Path) -> None:
    venv.script("torchrun", f"{venv.path}/bin/python")
    other = make_venv(tmp_path / "conda")
    other.script("torchrun", f"{other.path}/bin/python")
    path = f"{other.path}/bin:{venv.path}/bin:/usr/bin:/bin"
    said = venv.verify(env={"PATH": path})
    (finding,) = findings(said, "launchers/launcher-from-wrong-env")
    assert (said.code, finding["subject"]) == (1, "torchrun")
    assert finding["actual"].startswith(f"{other.path}/bin/torchrun")
    assert "launcher" not in everything(venv.verify(env={"PATH": f"{venv.path}/bin:{other.path}/bin:/usr/bin:/bin"}))


def test_d44_a_moved_env_has_scripts_of_its_old_place(venv: Venv, tmp_path: Path) -> None:
    for name in ("torchrun", "ray"):
        venv.script(name, "/build/worker/env/bin/python3")
    trampoline = venv.path / "bin/vllm"
    trampoline.write_text(TRAMPOLINE)
    trampoline.chmod(0o755)
    said = venv.verify()
    (finding,) = findings(said, "launchers/shebang-relocation")
    assert said.code == 1
    assert finding["subject"] == "bin/ray, bin/torchrun"
    assert finding["actual"] == "/build/worker/env/bin/python3"


def test_d44_activate_names_the_old_place(venv: Venv) -> None:
    activate = venv.path / "bin/activate"
    for line in ("VIRTUAL_ENV=/build/worker/env\n", "export VIRTUAL_ENV='/build/worker/env'\n"):
        activate.write_text(line)
        (finding,) = findings(venv.verify("--only", "launchers"), "launchers/shebang-relocation")
        assert (finding["subject"], finding["actual"]) == ("bin/activate", "/build/worker/env")
    activate.write_text('VIRTUAL_ENV="$(cd "$(dirname "$0")/.." && pwd)"\n')
    assert venv.verify("--only", "launchers").code == 0


def test_a_file_in_no_record_is_named_and_data_is_only_a_note(venv: Venv) -> None:
    venv.install("alpha", "1.0", {"alpha/__init__.py": ""})
    (venv.site / "alpha/cache.bin").write_text("x")
    (venv.site / "intruder.py").write_text("")
    said = venv.verify()
    assert [f["subject"] for f in findings(said, "files/unowned-module")] == [f"{SITE}/intruder.py"]
    (note,) = findings(said, "files/unowned-file")
    assert note["severity"] == "note"


def test_a_distribution_without_a_record_may_own_its_files(venv: Venv) -> None:
    info = venv.site / "debian_thing-1.0.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text("Name: debian-thing\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("debthing\n")
    (venv.site / "debthing").mkdir()
    (venv.site / "debthing/__init__.py").write_text("")
    said = venv.verify()
    assert (said.code, said.json["data"]["findings"]) == (0, [])


def test_an_editable_installation_may_lie_outside(venv: Venv, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "tool.py").write_text("")
    url = f'{{"url": "file://{work}", "dir_info": {{"editable": true}}}}'
    venv.install("tool", "1.0", {"tool.pth": f"{work}\n"}, more={"direct_url.json": url})
    said = venv.verify()
    assert (said.code, said.json["data"]["findings"]) == (0, [])


def test_an_editable_installation_that_leads_nowhere_is_named(venv: Venv, tmp_path: Path) -> None:
    url = f'{{"url": "file://{tmp_path}/project", "dir_info": {{"editable": true}}}}'
    venv.install("tool", "1.0", {"tool.pth": f"{tmp_path}/project/src\n"}, more={"direct_url.json": url})
    said = venv.verify("--only", "files")
    (finding,) = findings(said, "files/editable-missing")
    assert (said.code, finding["subject"], finding["expected"]) == (1, f"{SITE}/tool.pth", f"{tmp_path}/project/src")


def test_a_record_that_is_gone_is_said_once_and_its_bytecode_is_nobodys_offence(venv: Venv) -> None:
    info = venv.install("alpha", "1.0", {"alpha/__init__.py": "x = 1\n"})
    venv.python("-c", "import alpha")
    (info / "RECORD").unlink()
    said = venv.verify()
    assert [(f["kind"], f["severity"]) for f in said.json["data"]["findings"]] == [("record-missing", "error")]
    (info / "INSTALLER").write_text("debian\n")
    assert findings(venv.verify("--only", "files"), "files/record-missing")[0]["severity"] == "note"


def test_a_copy_of_a_library_on_the_search_path_with_the_same_bytes_shadows_nothing(venv: Venv, tmp_path: Path) -> None:
    import _ctypes

    library = Path(_ctypes.__file__).read_bytes()
    venv.install("alpha", "1.0", {"alpha/__init__.py": ""})
    for place in (venv.site / "alpha/libalpha.so.1", tmp_path / "same/libalpha.so.1", tmp_path / "other/libalpha.so.1"):
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(library + b"other" * (place.parent.name == "other"))
    record = next(venv.site.glob("alpha-*.dist-info/RECORD"))
    record.write_text(record.read_text() + "alpha/libalpha.so.1,,\n")
    same = venv.verify("--only", "launch_env", env={"LD_LIBRARY_PATH": str(tmp_path / "same")})
    other = venv.verify("--only", "launch_env", env={"LD_LIBRARY_PATH": str(tmp_path / "other")})
    assert (same.code, same.json["data"]["findings"]) == (0, [])
    assert [f["subject"] for f in findings(other, "launch_env/library-shadowed")] == [str(tmp_path / "other")]


def test_an_interpreters_own_prefix_has_no_false_alarms_of_its_links_and_programs() -> None:
    said = Venv(Path(sys.base_prefix)).verify("--only", "interpreter", "--only", "launchers", "--only", "native")
    assert said.json["errors"] == []
    assert not [f for f in said.json["data"]["findings"] if f["severity"] == "error"], said.out


def test_a_link_in_place_of_a_file_is_right_where_its_end_has_the_recorded_content(venv: Venv, tmp_path: Path) -> None:
    venv.install("alpha", "1.0", {"alpha.py": "x = 1\n"})
    (venv.site / "alpha.py").rename(tmp_path / "cached.py")
    (venv.site / "alpha.py").symlink_to(tmp_path / "cached.py")
    assert venv.verify("--only", "files").json["data"]["findings"] == []
    (tmp_path / "cached.py").write_text("x = 'evil'\n")
    (finding,) = findings(venv.verify("--only", "files"), "files/link-changed")
    assert (finding["subject"], str(tmp_path / "cached.py") in finding["actual"]) == (f"{SITE}/alpha.py", True)


def test_scaffolding_is_known_by_what_it_does_and_not_by_its_name(venv: Venv) -> None:
    (venv.site / "_virtualenv.pth").write_text("import sys; sys.stderr.write('')\n")
    assert "hooks/unowned-pth" in venv.verify("--only", "hooks").kinds


def test_nobody_claims_what_another_distribution_has_a_record_for(venv: Venv) -> None:
    venv.install("click", "8.0", {"click/__init__.py": "", "click/core.py": ""})
    info = venv.site / "x-1.egg-info"
    info.mkdir()
    (info / "top_level.txt").write_text("click\n")
    (venv.site / "click/core").mkdir()
    (venv.site / "click/core/__init__.py").write_text("evil = 1\n")
    (finding,) = findings(venv.verify("--only", "files"), "files/unowned-module")
    assert "shadows `click.core`" in finding["message"]


def test_a_project_at_the_root_of_the_disk_opens_nothing(venv: Venv, tmp_path: Path) -> None:
    (tmp_path / "evil").mkdir()
    url = '{"url": "file:///", "dir_info": {"editable": true}}'
    venv.install("tool", "1.0", {"tool.py": ""}, more={"direct_url.json": url})
    said = venv.verify("--only", "imports", env={"PYTHONPATH": str(tmp_path / "evil")})
    assert "imports/path-outside" in said.kinds


def test_an_env_that_takes_in_its_base_is_as_its_own_file_says(venv: Venv) -> None:
    config = venv.path / "pyvenv.cfg"
    key = "include-system-site-packages = "
    config.write_text(config.read_text().replace(f"{key}false", f"{key}true"))
    assert "path-outside" not in venv.verify("--only", "imports", env={"PYTHONNOUSERSITE": "1"}).out


def test_folders_of_bytecode_that_virtualenv_lists_are_no_missing_files(venv: Venv) -> None:
    info = venv.install("alpha", "1.0", {"alpha/__init__.py": ""})
    record = info / "RECORD"
    record.write_text(record.read_text() + "alpha/__pycache__,,\n")
    assert venv.verify("--only", "files").json["data"]["findings"] == []


def test_markers_of_a_plain_lock_are_answered_for_this_env(venv: Venv, tmp_path: Path) -> None:
    venv.install("alpha", "1.0", {"alpha.py": ""})
    lock = tmp_path / "pylock.toml"
    rows = [
        ("alpha", "1.0", "python_version >= '3.8'"), ("alpha", "0.9", "python_version < '3.8'"),
        ("colorama", "1.0", "sys_platform == 'win32'"),
    ]  # fmt: skip
    lines = ['lock-version = "1.0"', 'created-by = "uv"']
    for name, version, marker in rows:
        file = f'name = "{name}-{version}-py3-none-any.whl", path = "x.whl"'
        lines += ["[[packages]]", f'name = "{name}"', f'version = "{version}"', f'marker = "{marker}"']
        lines += [f'wheels = [{{ {file}, hashes = {{ sha256 = "{"0" * 64}" }} }}]']
    lock.write_text("\n".join(lines) + "\n")
    said = venv.verify("--only", "conflicts", "--lock", str(lock))
    assert (said.code, said.json["data"]["findings"]) == (0, [])


@pytest.mark.parametrize("path", ["pyvenv.cfg", "bin/activate", "envsmith.json"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(venv: Venv, path: str) -> None:
    (venv.path / path).unlink(missing_ok=True)
    os.mkfifo(venv.path / path)
    assert venv.verify().json["errors"] == []


def test_a_name_that_is_a_command_does_not_get_into_one(venv: Venv) -> None:
    info = venv.install("alpha", "1.0", {"alpha.py": ""})
    (info / "METADATA").write_text("Name: six'; touch PWNED; '\nVersion: 1.0\n")
    (venv.site / "alpha.py").write_text("changed\n")
    assert "touch" not in str([finding["hint"] for finding in venv.verify("--only", "files").json["data"]["findings"]])


def test_a_tree_deeper_than_a_path_may_be_is_said(venv: Venv) -> None:
    here = os.open(venv.site, os.O_RDONLY)
    for _ in range(25):
        os.mkdir("d" * 200, dir_fd=here)
        deeper = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    said = venv.verify()
    assert (said.code, said.codes) == (3, ["tree-unreadable"])


def test_broken_requirements_are_warnings_where_nobody_said_what_is_meant(venv: Venv) -> None:
    venv.install("alpha", "1.0", {"alpha.py": ""}, requires=("beta>=2", "gamma; extra == 'more'"))
    venv.install("beta", "1.0", {"beta.py": ""})
    said = venv.verify()
    (finding,) = findings(said, "conflicts/requirement-broken")
    assert (said.code, finding["severity"], finding["subject"]) == (0, "warning", "alpha")


def test_a_plain_lock_says_which_versions_are_meant(venv: Venv, tmp_path: Path) -> None:
    venv.install("alpha", "1.0", {"alpha.py": ""})
    venv.install("beta", "1.0", {"beta.py": ""})
    lock = tmp_path / "pylock.toml"
    lines = ['lock-version = "1.0"', 'created-by = "uv"']
    for name, version in (("alpha", "1.1"), ("gamma", "1.0")):
        wheel = (
            f'{{ name = "{name}-{version}-py3-none-any.whl", path = "x.whl", hashes = {{ sha256 = "{"0" * 64}" }} }}'
        )
        lines += ["[[packages]]", f'name = "{name}"', f'version = "{version}"', f"wheels = [{wheel}]"]
    lock.write_text("\n".join(lines) + "\n")
    said = venv.verify("--lock", str(lock))
    assert said.code == 1
    assert {"conflicts/version-differs", "conflicts/distribution-extra", "conflicts/distribution-missing"} <= said.kinds


@pytest.mark.parametrize(
    ("content", "code"),
    [("no [toml", "lock-syntax"), ('lock-version = "1.0"\n', "lock-invalid"), (None, "lock-syntax")],
)
def test_a_lock_that_is_none_is_refused(venv: Venv, tmp_path: Path, content: str | None, code: str) -> None:
    lock = tmp_path / "pylock.toml"
    if content is not None:
        lock.write_text(content)
    said = venv.verify("--lock", str(lock))
    assert (said.code, said.codes) == (2, [code])


def test_a_directory_without_an_env_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    said = Venv(tmp_path / "empty").verify()
    assert (said.code, said.codes) == (1, ["no-env"])


def test_an_env_whose_interpreter_is_gone_is_named_and_its_files_are_still_judged(venv: Venv) -> None:
    venv.install("alpha", "1.0", {"alpha.py": ""})
    (venv.site / "alpha.py").write_text("changed\n")
    shutil.rmtree(venv.path / "bin")
    said = venv.verify()
    assert said.code == 1
    assert {"files/file-changed", "imports/interpreter-broken"} <= said.kinds


@pytest.mark.parametrize(
    "content", [b"", b"\0\0\0", b'a"b\n"', b"x,sha256=!!!,\n,,,\n../../../../etc/passwd,,\n", b"\xff\xfe"]
)
def test_a_record_of_any_bytes_gives_findings_and_no_traceback(venv: Venv, content: bytes) -> None:
    info = venv.install("alpha", "1.0", {"alpha.py": ""})
    (info / "RECORD").write_bytes(content)
    said = venv.verify()
    assert said.code in (0, 1)
    assert said.json["errors"] == []


def test_the_version_of_an_env_is_the_one_it_was_made_for(venv: Venv) -> None:
    config = venv.path / "pyvenv.cfg"
    config.write_text(config.read_text().replace(f"version = {PYTHON}", "version = 3.4"))
    said = venv.verify()
    assert said.code == 1
    assert "imports/wrong-interpreter" in said.kinds
