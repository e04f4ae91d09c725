"""envsmith.tools.selfwheel: the running envsmith as a wheel, the same from a checkout and from that very wheel."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from uv import find_uv_bin

import envsmith
from envsmith.errors import SupplyError
from envsmith.tools import selfwheel
from envsmith.tools.selfwheel import make_self_wheel
from envsmith.tools.wheel import entry_points, list_wheel, normalise, read_metadata

PACKAGE = Path(envsmith.__file__).parent
#: Makes the wheel with the envsmith of the running interpreter and prints its path, or the code of the problem.
MAKE = """
import sys
from pathlib import Path
from envsmith.errors import EnvsmithError
from envsmith.tools.selfwheel import make_self_wheel
try:
    print(make_self_wheel(Path(sys.argv[1])))
except EnvsmithError as error:
    print(*(f"{problem.code} {Path(problem.where).name}" for problem in error.problems), sep="\\n")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_self_wheel(tmp_path_factory.mktemp("self"))


@pytest.fixture(scope="module")
def venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv with the made wheel, and our dependencies from the environment of the tests."""
    path = tmp_path_factory.mktemp("venv") / "venv"
    environ = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    common = {"env": environ | {"UV_CACHE_DIR": str(path.parent / "cache")}, "check": True, "timeout": 120}
    uv = [find_uv_bin(), "--offline", "--no-config", "--quiet"]
    subprocess.run([*uv, "venv", "--python", sys.executable, path], **common)  # type: ignore[call-overload]
    argv = [*uv, "pip", "install", "--no-deps", "--no-index", "--python", path / "bin" / "python", wheel]
    subprocess.run(argv, **common)  # type: ignore[call-overload]
    (path / "dependencies").mkdir()
    for entry in Path(sys.modules["packaging"].__path__[0]).parent.iterdir():
        if "envsmith" not in entry.name:
            (path / "dependencies" / entry.name).symlink_to(entry)
    site = next(path.glob("lib/python3.*/site-packages"))
    (site / "dependencies.pth").write_text(f"{path / 'dependencies'}\n")
    return path


def made_by(venv: Path, out: Path) -> str:
    argv = [venv / "bin" / "python", "-B", "-c", MAKE, out]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False, cwd=out.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def site(venv: Path) -> Iterator[Path]:
    """The installed package, put back afterwards."""
    path = next(venv.glob("lib/python3.*/site-packages"))
    shutil.copytree(path / "envsmith", venv / "kept")
    yield path
    shutil.rmtree(path / "envsmith")
    (venv / "kept").rename(path / "envsmith")


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_wheel_is_sound_and_holds_every_module_and_all_shipped_content(wheel: Path) -> None:
    listing = list_wheel(wheel)
    assert (listing.name, listing.version) == ("envsmith", envsmith.__version__)
    assert listing.console_scripts == (("envsmith", "envsmith.__main__:main"),)
    assert ("console_scripts", "envsmith", "envsmith.__main__:main") in entry_points(wheel)
    assert b"\nName: envsmith\n" in read_metadata(wheel)
    held = names(wheel)
    modules = {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*.py")}
    assert modules <= held
    assert {"envsmith/tools/git.config", "envsmith/data/report.css"} <= held
    content = PACKAGE / "content" if (PACKAGE / "content").is_dir() else PACKAGE.parent
    for folder in ("stacks", "patches"):
        files = {path.relative_to(content).as_posix() for path in (content / folder).rglob("*.*") if path.is_file()}
        assert {f"envsmith/content/{name}" for name in files} <= held
        assert files
    assert f"envsmith-{envsmith.__version__}.dist-info/licenses/LICENSE" in held


def test_nothing_is_in_it_that_depends_on_the_machine(wheel: Path) -> None:
    assert not [name for name in names(wheel) if "__pycache__" in name or name.endswith(".pyc") or "/tests/" in name]
    assert not [name for name in names(wheel) if name.endswith(("INSTALLER", "direct_url.json", "REQUESTED"))]
    with zipfile.ZipFile(wheel) as archive:
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {info.external_attr >> 16 for info in archive.infolist()} == {0o100644}


def test_it_is_in_the_normal_form_of_our_wheels(wheel: Path, tmp_path: Path) -> None:
    again = tmp_path / wheel.name
    assert normalise(wheel, again) == sha256(wheel)


def test_the_installed_wheel_makes_the_same_bytes(wheel: Path, venv: Path, tmp_path: Path) -> None:
    again = Path(made_by(venv, tmp_path / "again"))
    assert again.name == wheel.name
    assert sha256(again) == sha256(wheel)


def test_modes_times_bytecode_and_litter_change_nothing(wheel: Path, tmp_path: Path, site: Path, venv: Path) -> None:
    for path in (site / "envsmith").rglob("*.py"):
        path.chmod(0o755)
        os.utime(path, (1, 1))
    (site / "envsmith" / "__pycache__").mkdir(exist_ok=True)
    (site / "envsmith" / "__pycache__" / "cli.pyc").write_bytes(b"x")
    (site / "envsmith" / "mine.py").write_text("notes = 1")
    assert sha256(Path(made_by(venv, tmp_path / "again"))) == sha256(wheel)


def test_an_installation_that_was_changed_is_not_passed_on(tmp_path: Path, site: Path, venv: Path) -> None:
    with (site / "envsmith" / "sealed.py").open("w"), (site / "envsmith" / "plan.py").open("a") as stream:
        stream.write("\n# quick fix\n")
    (site / "envsmith" / "data" / "report.css").unlink()
    said = made_by(venv, tmp_path / "again").splitlines()
    assert sorted(said) == ["self-altered plan.py", "self-altered report.css"]
    assert not list(tmp_path.glob("again/*"))


def test_a_checkout_passes_on_its_edits_but_not_what_editors_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    for name, text in {
        "envsmith/__init__.py": "",
        "envsmith/new.py": "X = 1\n",
        "envsmith/new.py~": "",
        "envsmith/.new.py.swp": "",
        "envsmith/__pycache__/new.cpython-311.pyc": "",
        "stacks/mine.toml": "",
        "stacks/.hidden/x.toml": "",
        "patches/x/0001.patch": "",
        "patches/x/0001.patch.orig": "",
        "tests/test_x.py": "",
    }.items():
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text(text)
    monkeypatch.setattr(selfwheel.envsmith, "__file__", str(checkout / "envsmith" / "__init__.py"))
    held = {name for name in names(make_self_wheel(tmp_path / "out")) if ".dist-info/" not in name}
    assert held == {
        "envsmith/__init__.py",
        "envsmith/new.py",
        "envsmith/content/stacks/mine.toml",
        "envsmith/content/patches/x/0001.patch",
    }


def test_an_envsmith_without_metadata_says_how_to_get_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(SupplyError) as error:
        make_self_wheel(tmp_path / "out")
    assert error.value.problems[0].code == "self-not-installed"


def test_a_folder_that_cannot_be_written_is_a_problem_with_a_code(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(SupplyError) as error:
        make_self_wheel(tmp_path / "out")
    assert error.value.problems[0].code == "file-in-the-way"
