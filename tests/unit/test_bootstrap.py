"""envsmith.bootstrap: the table answers pyproject on every Python and machine, and the best wheel of each is picked."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from uv import find_uv_bin

from envsmith.bootstrap import choose, choose_from
from envsmith.data import table
from envsmith.errors import HostError
from envsmith.target import Target, applies
from envsmith.toml_reader import read_toml

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
MACHINES = ("x86_64", "aarch64")
KEYS = {"name", "version", "marker", "filename", "size", "sha256"}


def rows() -> tuple[Mapping[str, Any], ...]:
    return table("bootstrap")["wheel"]


def dependencies() -> list[Requirement]:
    project = read_toml((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(text) for text in project["dependencies"]]


def target(python: str = "3.11", arch: str = "x86_64", glibc: str = "2.28") -> Target:
    return Target(python=python, arch=arch, glibc=glibc)


def row(filename: str, marker: str | None = None) -> Mapping[str, Any]:
    name, version, *_ = parse_wheel_filename(filename)
    made = {"name": str(name), "version": str(version), "filename": filename, "size": 1, "sha256": "0" * 64}
    return made | ({"marker": marker} if marker else {})


def refused(rows: list[Mapping[str, Any]], wanted: Target) -> list[str]:
    with pytest.raises(HostError) as error:
        choose_from(rows, wanted)
    assert {problem.code for problem in error.value.problems} == {"bootstrap-unsupported"}
    assert error.value.exit_code == 3
    return [problem.message for problem in error.value.problems]


def unanswered(requirements: list[Requirement], chosen: Mapping[str, str], wanted: Target) -> list[str]:
    """Requirements that hold on the target and that what was chosen does not satisfy."""
    active = [one for one in requirements if applies(one.marker, wanted)]
    return [
        str(one)
        for one in active
        if not one.specifier.contains(chosen.get(canonicalize_name(one.name), "0.dev0"), prereleases=True)
    ]


@pytest.mark.parametrize("arch", MACHINES)
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("glibc", ["2.17", "2.28", "2.39"])
def test_the_table_answers_pyproject_on_every_python_and_machine(python: str, arch: str, glibc: str) -> None:
    wanted = target(python, arch, glibc)
    chosen = choose(wanted)
    versions = {wheel.name: wheel.version for wheel in chosen}
    assert unanswered(dependencies(), versions, wanted) == []
    assert [wheel.name for wheel in chosen] == sorted(versions)
    for wheel in chosen:
        assert not set(wanted.tags()).isdisjoint(parse_wheel_filename(wheel.filename)[3])


@pytest.mark.parametrize("planted", ["envsmith-missing>=1", "uv==0.0.1", "click>=999", "rich<1"])
def test_a_dependency_that_the_table_does_not_answer_is_seen(planted: str) -> None:
    versions = {wheel.name: wheel.version for wheel in choose(target())}
    assert unanswered([*dependencies(), Requirement(planted)], versions, target()) == [str(Requirement(planted))]


def test_every_row_is_whole_names_no_place_and_is_picked_somewhere() -> None:
    text = (ROOT / "envsmith" / "data" / "bootstrap.toml").read_text()
    assert "://" not in text
    for one in rows():
        assert set(one) | {"marker"} == KEYS
        name, version, *_ = parse_wheel_filename(one["filename"])
        assert (str(name), str(version)) == (one["name"], one["version"])
        assert re.fullmatch(r"[0-9a-f]{64}", one["sha256"])
        assert one["size"] > 0
    levels = ("2.17", "2.28", "2.34", "2.39")
    picked = {wheel.filename for p in PYTHONS for a in MACHINES for g in levels for wheel in choose(target(p, a, g))}
    assert {one["filename"] for one in rows()} == picked


def test_markers_decide_which_packages_come_along() -> None:
    assert "tomli" in {wheel.name for wheel in choose(target("3.10"))}
    assert "tomli" not in {wheel.name for wheel in choose(target("3.11"))}
    assert "zipp" in {wheel.name for wheel in choose(target("3.10.1"))}
    assert "zipp" not in {wheel.name for wheel in choose(target("3.10.13"))}


def test_the_wheel_nearest_to_the_python_and_glibc_is_picked() -> None:
    made = [
        row("demo-1.0-py3-none-any.whl"),
        row("demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"),
        row("demo-1.0-cp311-cp311-manylinux_2_34_x86_64.whl"),
        row("demo-1.0-cp312-cp312-manylinux_2_17_x86_64.whl"),
        row("demo-1.0-cp311-cp311-musllinux_1_2_x86_64.whl"),
        row("demo-1.0-cp311-cp311-manylinux_2_17_aarch64.whl"),
    ]
    for wanted, filename in (
        (target(), "demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"),
        (target(glibc="2.36"), "demo-1.0-cp311-cp311-manylinux_2_34_x86_64.whl"),
        (target("3.12"), "demo-1.0-cp312-cp312-manylinux_2_17_x86_64.whl"),
        (target(arch="aarch64"), "demo-1.0-cp311-cp311-manylinux_2_17_aarch64.whl"),
        (target("3.13"), "demo-1.0-py3-none-any.whl"),
    ):
        assert [wheel.filename for wheel in choose_from(made, wanted)] == [filename]


def test_a_python_that_envsmith_does_not_run_on_is_refused() -> None:
    for python in ("2.7", "3.8", "3.9.18"):
        with pytest.raises(HostError) as error:
            choose(target(python))
        (problem,) = error.value.problems
        assert problem.code == "bootstrap-unsupported"
        assert problem.message == "envsmith needs Python 3.10 or newer to run"


@pytest.mark.parametrize(
    "wanted", [target("3.99"), target(arch="ppc64le"), target(glibc="2.5")], ids=["python", "machine", "glibc"]
)
def test_a_target_without_wheels_is_refused_with_the_packages_that_lack_one(wanted: Target) -> None:
    with pytest.raises(HostError) as error:
        choose(wanted)
    assert "`pydantic-core`, which envsmith needs, has no wheel for it" in {p.message for p in error.value.problems}


def test_all_packages_without_a_wheel_are_named_at_once_and_no_inactive_one() -> None:
    made = [
        row("a-1-cp39-cp39-manylinux_2_17_x86_64.whl"),
        row("b-1-cp39-cp39-manylinux_2_17_x86_64.whl"),
        row("c-1-cp39-cp39-manylinux_2_17_x86_64.whl", "python_version < '3.10'"),
        row("d-1-py3-none-any.whl"),
    ]
    said = refused(made, target())
    assert said == [f"`{name}`, which envsmith needs, has no wheel for it" for name in "ab"]


@pytest.mark.network
def test_what_is_chosen_is_enough_to_run_envsmith(tmp_path: Path) -> None:
    python = "{}.{}.{}".format(*sys.version_info)
    glibc = platform.libc_ver()[1]
    chosen = choose(Target(python=python, arch=platform.machine(), glibc=glibc))
    listed = tmp_path / "requirements.txt"
    listed.write_text("".join(f"{one.name}=={one.version} --hash=sha256:{one.sha256}\n" for one in chosen))
    uv, venv = [find_uv_bin(), "--no-config", "--quiet"], tmp_path / "venv"
    subprocess.run([*uv, "venv", "--python", sys.executable, venv], check=True, timeout=60)
    there = ["--python", venv / "bin" / "python"]
    argv = [*uv, "pip", "install", *there, "--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", listed]
    subprocess.run(argv, check=True, timeout=300)
    subprocess.run([*uv, "pip", "check", *there], check=True, timeout=60)
    argv = [venv / "bin" / "python", "-m", "envsmith", "--version"]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
