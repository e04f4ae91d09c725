"""A distribution that is installed becomes a wheel again, from which the same is installed; never an altered one."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from uv import find_uv_bin

from envsmith.errors import EnvsmithError, IntegrityError, SupplyError
from envsmith.tools.installedwheel import make_installed_wheel
from envsmith.tools.wheel import list_wheel, normalise
from tests.support.wheels import make_wheel

DATA = "demo_pkg-1.0.data"


def demo(folder: Path, tag: str = "py3-none-any") -> Path:
    """A wheel with one of everything that installers treat differently."""
    return make_wheel(
        folder,
        "demo-pkg",
        "1.0",
        {
            "demo/__init__.py": "def main():\n    print(1)\n",
            "demo/tool.sh": "#!/bin/sh\n",
            "demo/a b.txt": "a space in the name\n",
            f"{DATA}/scripts/rewritten": "#!python\nimport sys\nprint(sys.prefix)\n",
            f"{DATA}/scripts/plain": "#!/bin/sh\necho plain\n",
            f"{DATA}/data/share/demo.conf": "x\n",
        },
        entry_points={"console_scripts": {"demo": "demo:main"}},
        executable=("demo/tool.sh", f"{DATA}/scripts/rewritten", f"{DATA}/scripts/plain"),
        tag=tag,
    )


def installed(root: Path, wheel: Path) -> Path:
    """Install a wheel with the real uv and return its site-packages."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(root), "UV_CACHE_DIR": str(root / "cache")}
    uv = [find_uv_bin(), "--offline", "--no-config", "--quiet"]
    subprocess.run([*uv, "venv", "--python", sys.executable, root / "venv"], env=environ, check=True, timeout=120)
    argv = [*uv, "pip", "install", "--no-index", "--no-deps", "--python", root / "venv" / "bin" / "python", wheel]
    subprocess.run(argv, env=environ, check=True, timeout=120)
    return next((root / "venv").glob("lib/python3.*/site-packages"))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pristine")
    return installed(path, demo(path))


@pytest.fixture
def site(pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the installation that a test may spoil, where `importlib.metadata` finds it."""
    venv = pristine.parent.parent.parent
    subprocess.run(["cp", "-a", venv, tmp_path / "venv"], check=True, timeout=60)
    copied = tmp_path / "venv" / pristine.relative_to(venv)
    monkeypatch.syspath_prepend(str(copied))
    return copied


def lay_out(site: Path, files: Mapping[str, bytes], rows: Mapping[str, str] | None = None) -> None:
    """Lay a distribution `odd` out by hand; `rows` replaces the hashes of some files."""
    wheel = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    all_files = {
        "odd-2.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: odd\nVersion: 2.0\n",
        "odd-2.0.dist-info/WHEEL": wheel,
        **files,
    }
    lines = []
    for name, data in all_files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append((rows or {}).get(name, f"{name},sha256={digest},{len(data)}"))
    (site / "odd-2.0.dist-info" / "RECORD").write_text("\n".join([*lines, "odd-2.0.dist-info/RECORD,,", ""]))


def refused(name: str, out: Path, kind: type[EnvsmithError]) -> tuple[str, str]:
    with pytest.raises(kind) as error:
        make_installed_wheel(name, out)
    (problem,) = error.value.problems
    assert problem.hint
    assert not out.exists() or list(out.iterdir()) == []
    return problem.code, problem.message


def test_what_is_installed_again_from_it_is_the_same(site: Path, tmp_path: Path) -> None:
    wheel = make_installed_wheel("demo-pkg", tmp_path / "out")
    assert wheel.name == demo(tmp_path / "first").name
    normalise(wheel, tmp_path / "normal")
    assert {one.path for one in list_wheel(wheel).members} == {
        one.path for one in list_wheel(tmp_path / "first" / wheel.name).members
    }
    (tmp_path / "again").mkdir()
    again = installed(tmp_path / "again", wheel)
    prefix, other = site.parent.parent.parent, again.parent.parent.parent
    for path in [one for one in site.rglob("*") if one.is_file() and "demo" in one.as_posix()[len(str(site)) :]]:
        if path.name in ("RECORD", "direct_url.json", "uv_cache.json") or path.suffix == ".pyc":
            continue
        twin = again / path.relative_to(site)
        assert twin.read_bytes() == path.read_bytes(), path
        assert os.access(twin, os.X_OK) is os.access(path, os.X_OK), path
    assert (other / "share" / "demo.conf").read_bytes() == (prefix / "share" / "demo.conf").read_bytes()
    for script in ("plain", "demo", "rewritten"):
        assert os.access(other / "bin" / script, os.X_OK)
    said = subprocess.run([other / "bin" / "rewritten"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.strip() == str(other)


def test_the_wheel_is_the_same_bytes_wherever_it_was_installed(site: Path, pristine: Path, tmp_path: Path) -> None:
    """The path of the interpreter, bytecode and the installer's notes do not count."""
    one = make_installed_wheel("demo-pkg", tmp_path / "a")
    subprocess.run([sys.executable, "-m", "compileall", "-q", site / "demo"], check=True, timeout=60)
    script = site.parent.parent.parent / "bin" / "rewritten"
    moved = script.read_bytes().replace(script.read_bytes().split(b"\n")[0], b"#!/somewhere/else/bin/python3.11")
    script.write_bytes(moved)
    row = base64.urlsafe_b64encode(hashlib.sha256(moved).digest()).rstrip(b"=").decode()
    record = next(site.glob("demo_pkg-1.0.dist-info")) / "RECORD"
    lines = [f"../../../bin/rewritten,sha256={row},{len(moved)}" if "rewritten" in line else line
             for line in record.read_text().splitlines()]  # fmt: skip
    record.write_text("\n".join([*lines, "demo/__pycache__/__init__.cpython-311.pyc,,", ""]))
    two = make_installed_wheel("demo-pkg", tmp_path / "b")
    assert one.read_bytes() == two.read_bytes()


def test_what_is_not_installed_is_said(tmp_path: Path) -> None:
    code, said = refused("no-such-thing", tmp_path / "out", SupplyError)
    assert code == "tool-not-installed"
    assert "it is not installed" in said


@pytest.mark.parametrize("name", ["demo/__init__.py", "demo/tool.sh", "../../../bin/plain", "../../../share/demo.conf"])
def test_an_altered_or_missing_file_is_named(site: Path, tmp_path: Path, name: str) -> None:
    path = site / name
    path.write_bytes(path.read_bytes() + b"# edited\n")
    code, said = refused("demo-pkg", tmp_path / "out", IntegrityError)
    assert (code, said) == ("tool-altered", f"`{path.name}` is not what was installed")
    path.unlink()
    code, said = refused("demo-pkg", tmp_path / "out", IntegrityError)
    assert (code, said) == ("tool-altered", f"`{path.name}` is no longer there")


def test_other_hashes_than_sha256_count_too(site: Path, tmp_path: Path) -> None:
    good = base64.urlsafe_b64encode(hashlib.sha512(b"x = 1\n").digest()).rstrip(b"=").decode()
    lay_out(site, {"odd.py": b"x = 1\n"}, {"odd.py": f"odd.py,sha512={good},6"})
    make_installed_wheel("odd", tmp_path / "good")
    lay_out(site, {"odd.py": b"x = 2\n"}, {"odd.py": f"odd.py,sha512={good},6"})
    assert refused("odd", tmp_path / "out", IntegrityError)[0] == "tool-altered"


def test_an_editable_installation_is_no_wheel(site: Path, tmp_path: Path) -> None:
    lay_out(site, {"odd.pth": b"/home/me/odd\n"})
    note = site / "odd-2.0.dist-info" / "direct_url.json"
    note.write_text(json.dumps({"url": "file:///home/me/odd", "dir_info": {"editable": True}}))
    code, said = refused("odd", tmp_path / "out", SupplyError)
    assert (code, "editable" in said) == ("tool-not-installed", True)
    for other in ("", "[]", "{", '{"dir_info": []}', '{"dir_info": {"editable": false}}'):
        note.write_text(other)
        make_installed_wheel("odd", tmp_path / "good")


@pytest.mark.parametrize(
    "text", ["", "Wheel-Version: 1.0\n", "Tag: py3\n", "Tag: py3-none-any\nTag: x-y\n", "XTag: py3-none-any\n"]
)
def test_without_sound_tags_it_is_no_wheel(site: Path, tmp_path: Path, text: str) -> None:
    lay_out(site, {"odd-2.0.dist-info/WHEEL": text.encode()})
    code, said = refused("odd", tmp_path / "out", SupplyError)
    assert (code, "not installed from a wheel" in said) == ("tool-not-installed", True)


def test_several_tags_make_one_name(site: Path, tmp_path: Path) -> None:
    tags = b"Tag: py2-none-any\nTag: py3-none-any\n"
    lay_out(site, {"odd-2.0.dist-info/WHEEL": b"Wheel-Version: 1.0\n" + tags})
    assert make_installed_wheel("odd", tmp_path / "out").name == "odd-2.0-py2.py3-none-any.whl"


@pytest.mark.parametrize(
    "name", ["../outside.py", "../../../lib/outside.py", "../../../bin/../../x", "../../../etc/../../../x"]
)
def test_a_file_outside_of_its_folder_is_refused(site: Path, tmp_path: Path, name: str) -> None:
    lay_out(site, {name: b"x"})
    code, said = refused("odd", tmp_path / "out", SupplyError)
    assert (code, f"`{name}`" in said) == ("tool-not-installed", True)


SCRIPTS = {
    "one-line": (b"#!/opt/python3", b"#!python"),
    "usual": (b"#!/opt/bin/python3\nx\n", b"#!python\nx\n"),
    "long": (b"#!/bin/sh\n'''exec' \"/a very/long/python3\" \"$0\" \"$@\"\n' '''\nx\n", b"#!python\nx\n"),
    "shell": (b"#!/bin/sh\necho python\n", b"#!/bin/sh\necho python\n"),
    "binary": (b"\x7fELF python\n", b"\x7fELF python\n"),
    "empty": (b"", b""),
}


def test_scripts_lose_the_path_of_their_interpreter_in_any_form(site: Path, tmp_path: Path) -> None:
    lay_out(site, {f"../../../bin/{name}": data for name, (data, _) in SCRIPTS.items()})
    with zipfile.ZipFile(make_installed_wheel("odd", tmp_path / "out")) as archive:
        for name, (_, expected) in SCRIPTS.items():
            assert archive.read(f"odd-2.0.data/scripts/{name}") == expected
