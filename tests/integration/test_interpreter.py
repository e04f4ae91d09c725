"""envsmith.tools.interpreter: whatever calls itself python is run; only real, fitting CPythons are taken."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from envsmith.errors import InputError, SupplyError
from envsmith.tools.interpreter import Interpreter, find_interpreter, interpreter_digest

MINOR = "{}.{}".format(*sys.version_info)
PATCH = "{}.{}.{}".format(*sys.version_info)
OTHER_VERSION = "3.99"

pytestmark = pytest.mark.skipif(
    platform.python_implementation() != "CPython" or sys.version_info.releaselevel != "final", reason="needs a CPython"
)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder for PATH, alone."""
    path = tmp_path / "bin"
    path.mkdir()
    return path


def find(version: str, environ: Mapping[str, str], tmp_path: Path, timeout_s: float = 10.0) -> Interpreter:
    """Leave out what this machine has in /usr and /opt."""
    return find_interpreter(version, environ, system=tmp_path / "system", timeout_s=timeout_s)


def environ(tmp_path: Path, **more: str) -> Mapping[str, str]:
    return {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path / "home"), **more}


def real() -> Path:
    """The executable behind the Python that runs the tests."""
    return Path(os.path.realpath(sys.executable))


def script(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)
    return path


def refused(version: str, tmp_path: Path, timeout_s: float = 10.0, **more: str) -> str:
    with pytest.raises(SupplyError) as error:
        find(version, environ(tmp_path, **more), tmp_path, timeout_s)
    (problem,) = error.value.problems
    assert problem.code == "no-interpreter"
    assert "ENVSMITH_PYTHON=" in (problem.hint or "")
    return problem.message


def test_a_link_on_the_path_leads_to_the_real_executable(tmp_path: Path, bare: Path) -> None:
    (bare / "python3").symlink_to(sys.executable)
    found = find(MINOR, environ(tmp_path), tmp_path)
    assert found.path == real()
    assert not found.path.is_symlink()
    assert (found.version, found.implementation, found.arch) == (PATCH, "CPython", platform.machine())
    assert found.base == Path(sys.base_prefix)
    assert found.glibc == (platform.libc_ver()[1] or None)
    assert find(PATCH, environ(tmp_path), tmp_path) == found


def test_a_shim_that_executes_the_real_one_is_seen_through(tmp_path: Path, bare: Path) -> None:
    script(bare / f"python{MINOR}", f'exec "{real()}" "$@"')
    assert find(MINOR, environ(tmp_path), tmp_path).path == real()


def test_the_interpreter_of_a_venv_is_replaced_by_its_base(tmp_path: Path, bare: Path) -> None:
    subprocess.run([real(), "-m", "venv", "--without-pip", "--copies", tmp_path / "venv"], check=True)
    (bare / "python3").symlink_to(tmp_path / "venv" / "bin" / "python3")
    found = find(MINOR, environ(tmp_path, ENVSMITH_PYTHON=str(tmp_path / "venv" / "bin" / "python3")), tmp_path)
    assert found.path == real()
    assert found.base == Path(sys.base_prefix)


def test_shims_that_fail_hang_or_babble_are_passed_over(tmp_path: Path, bare: Path) -> None:
    script(tmp_path / "a" / f"python{MINOR}", "echo 'pyenv: command not found' >&2", "exit 127")
    script(tmp_path / "b" / f"python{MINOR}", "exec /bin/sleep 60")
    script(tmp_path / "c" / f"python{MINOR}", "echo envsmith-interpreter:nonsense")
    script(tmp_path / "d" / f"python{MINOR}", "exec /usr/bin/head -c 100000 /dev/urandom")
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / f"python{MINOR}").write_bytes(b"\x7fELF not really")
    (tmp_path / "e" / f"python{MINOR}").chmod(0o755)
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / f"python{MINOR}").symlink_to(tmp_path / "gone")
    path = os.pathsep.join(str(tmp_path / name) for name in "abcdef")
    started = time.monotonic()
    message = refused(MINOR, tmp_path, timeout_s=1.0, PATH=path)
    assert time.monotonic() - started < 10
    for said in (
        "exit 127: pyenv: command not found", "no answer within 1 s", "no sensible answer", "cannot be started",
        "a link to nothing",
    ):  # fmt: skip
        assert said in message
    (bare / "python3").symlink_to(sys.executable)
    assert find(MINOR, environ(tmp_path, PATH=f"{path}:{bare}"), tmp_path).path == real()


def test_noise_of_a_start_up_hook_does_not_hide_the_answer(tmp_path: Path, bare: Path) -> None:
    script(bare / "python3", "echo 'welcome to this cluster'", f'exec "{real()}" "$@"')
    assert find(MINOR, environ(tmp_path), tmp_path).path == real()


def test_when_none_fits_each_candidate_is_named_with_its_version(tmp_path: Path, bare: Path) -> None:
    (bare / "python3").symlink_to(sys.executable)
    message = refused(OTHER_VERSION, tmp_path)
    assert f"no Python {OTHER_VERSION} is on this machine" in message
    assert f"{bare / 'python3'}: {PATCH}" in message


def test_another_patch_than_the_one_asked_for_does_not_fit(tmp_path: Path, bare: Path) -> None:
    (bare / "python3").symlink_to(sys.executable)
    assert PATCH in refused(f"{MINOR}.99", tmp_path)


def test_minor_versions_are_not_mistaken_by_their_first_digits(tmp_path: Path, bare: Path) -> None:
    (bare / "python3").symlink_to(sys.executable)
    refused("3.1", tmp_path)


def test_a_long_list_of_candidates_is_cut(tmp_path: Path) -> None:
    for number in range(60):
        script(tmp_path / "home" / ".pyenv" / "versions" / f"v{number:02}" / "bin" / "python3", "exit 1")
    message = refused(OTHER_VERSION, tmp_path)
    assert message.count("\n") <= 30
    assert "and 35 more" in message


def test_nothing_at_all_is_said_too(tmp_path: Path, bare: Path) -> None:
    assert refused(OTHER_VERSION, tmp_path).endswith("none at all")


def test_what_is_no_version_is_refused(tmp_path: Path) -> None:
    for wrong in ("3", "3.11.x", ">=3.11", ""):
        with pytest.raises(InputError, match="python-version-malformed"):
            find(wrong, environ(tmp_path), tmp_path)


def fake(path: Path, version: str, **differences: object) -> Path:
    """A program that answers as a Python of that version would: no other way to have a patch release at will."""
    import json

    facts = {
        "version": version, "release": "final", "implementation": "CPython", "executable": str(path), "prefix": "/p",
        "base_prefix": "/p", "arch": "x86_64", "glibc": "glibc 2.17", "libpython": None, "debug": False,
        "free_threaded": False, "venv": True, **differences,
    }  # fmt: skip
    return script(path, f"echo 'envsmith-interpreter:{json.dumps(facts)}'")


def test_the_newest_patch_wins_and_a_named_one_wins_over_it(tmp_path: Path, bare: Path) -> None:
    versions = tmp_path / "home" / ".pyenv" / "versions"
    old = fake(versions / "3.99.2" / "bin" / "python3.99", "3.99.2")
    new = fake(versions / "3.99.10" / "bin" / "python3.99", "3.99.10")
    assert find("3.99", environ(tmp_path), tmp_path).path == new
    assert find("3.99.2", environ(tmp_path), tmp_path).path == old
    named = os.pathsep.join(["/nowhere/python", str(old)])
    assert find("3.99", environ(tmp_path, ENVSMITH_PYTHON=named), tmp_path).path == old
    assert find("3.99.10", environ(tmp_path, ENVSMITH_PYTHON=named), tmp_path).path == new


def test_a_prefix_can_be_named_in_place_of_an_executable(tmp_path: Path) -> None:
    path = fake(tmp_path / "prefix" / "bin" / "python3", "3.99.1")
    assert find("3.99", environ(tmp_path, ENVSMITH_PYTHON=str(tmp_path / "prefix")), tmp_path).path == path


@pytest.mark.parametrize(
    ("difference", "said"),
    [
        ({"implementation": "PyPy"}, "not CPython"),
        ({"release": "candidate"}, "a pre-release"),
        ({"debug": True}, "a debug build"),
        ({"free_threaded": True}, "a free-threaded build"),
        ({"venv": False}, "without the module `venv`"),
    ],
)
def test_pythons_that_wheels_or_venvs_do_not_fit_are_passed_over(
    tmp_path: Path, bare: Path, difference: Mapping[str, object], said: str
) -> None:
    fake(bare / "python3.99", "3.99.1", **difference)
    assert f"3.99.1, {said}" in refused("3.99", tmp_path)


@pytest.mark.parametrize(
    ("variable", "place"),
    [
        ("PYENV_ROOT", "versions/3.99.1"),
        ("CONDA_PREFIX", "."),
        ("CONDA_PREFIX", "envs/rl"),
        ("XDG_DATA_HOME", "uv/python/cpython-3.99"),
        ("XDG_DATA_HOME", "mise/installs/python/3.99.1"),
        ("ASDF_DATA_DIR", "installs/python/3.99.1"),
        ("HOME", "miniconda3"),
        ("HOME", ".local/share/uv/python/cpython-3.99"),
    ],
)
def test_the_places_of_version_managers_are_looked_into(tmp_path: Path, variable: str, place: str) -> None:
    path = fake((tmp_path / "root" / place / "bin" / "python3.99").resolve(), "3.99.1")
    found = find("3.99", environ(tmp_path, **{variable: str(tmp_path / "root")}), tmp_path)
    assert (found.path, found.glibc) == (path, "2.17")


def test_an_answer_is_remembered_until_the_file_changes(tmp_path: Path, bare: Path) -> None:
    path = fake(bare / "python3.99", "3.99.1")
    counted = tmp_path / "runs"
    path.write_text(path.read_text() + f"echo run >> {counted}\n")
    for _ in range(3):
        assert find("3.99", environ(tmp_path), tmp_path).version == "3.99.1"
    assert counted.read_text().splitlines() == ["run"]
    fake(path, "3.99.22")
    assert find("3.99", environ(tmp_path), tmp_path).version == "3.99.22"


def test_asking_writes_nothing_beside_an_interpreter(tmp_path: Path, bare: Path) -> None:
    (bare / "python3").symlink_to(sys.executable)
    find(MINOR, environ(tmp_path), tmp_path)
    assert [path.name for path in bare.iterdir()] == ["python3"]
    assert not list((tmp_path / "home").rglob("*.pyc"))


def test_the_digest_covers_the_executable_and_a_shared_libpython(tmp_path: Path, bare: Path) -> None:
    path = fake(bare / "python3.99", "3.99.1")
    alone = interpreter_digest(path)
    library = tmp_path / "libpython3.99.so"
    library.write_bytes(b"one")
    fake(path, "3.99.1", libpython=str(library))
    shared = interpreter_digest(path)
    library.write_bytes(b"two")
    assert len({alone, shared, interpreter_digest(path)}) == 3
    assert interpreter_digest(real()) == interpreter_digest(Path(sys.executable))


def test_the_digest_of_what_cannot_be_run_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(SupplyError, match="no-interpreter"):
        interpreter_digest(script(tmp_path / "broken", "exit 3"))


def test_every_python_of_this_machine_is_what_it_says() -> None:
    found: list[Interpreter] = []
    for minor in ("3.10", "3.11", "3.12", "3.13"):
        try:
            found.append(find_interpreter(minor, os.environ))
        except SupplyError:
            continue
        said = subprocess.run([found[-1].path, "-I", "-V"], capture_output=True, text=True, check=True).stdout
        assert said.split() == ["Python", found[-1].version]
        assert found[-1].version.startswith(f"{minor}.")
        assert found[-1].path == found[-1].path.resolve()
        assert (found[-1].base / "lib" / f"python{minor}" / "os.py").is_file()
    assert MINOR in {".".join(one.version.split(".")[:2]) for one in found}
