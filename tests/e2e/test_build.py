"""The main job, end to end: recipe, lock, build, run; what repeats, what is refused, what survives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from packaging.pylock import Pylock

from tests.support.index import SimpleIndex
from tests.support.project import PYTHON, Project, envsmith

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def test_build_makes_lock_env_receipt_and_current(built: Project) -> None:
    lock = tomllib.loads(built.lock.read_text())
    assert [package["name"] for package in lock["packages"]] == ["alpha", "beta", "delta", "gamma"]
    receipt = json.loads((built.current / "envsmith.json").read_text())
    assert receipt["trees"] == {"tool": lock["tool"]["envsmith"]["sources"][0]["tree"]}
    assert receipt["stack"] == "demo"
    assert built.current.is_symlink()
    assert not (built.current / "envsmith.json").is_symlink()


def test_lock_is_pep_751_without_hosts_and_with_one_wheel_a_package(built: Project) -> None:
    text = built.lock.read_text()
    parsed = Pylock.from_dict(tomllib.loads(text))
    assert all(len(package.wheels or ()) == 1 for package in parsed.packages)
    assert "://" not in text.replace(str(built.folder), "")


def test_the_env_runs_patched_source_and_patched_wheel(built: Project) -> None:
    said = envsmith(
        "run", "demo/app", "--root", built.envs, "--",
        "python", "-c", "import alpha, delta; print(alpha.answer(), delta.D)", cwd=built.folder,
    )  # fmt: skip
    assert (said.code, said.out) == (0, "42 5\n")
    said = envsmith("run", "demo/app", "--root", built.envs, "--", "tool", cwd=built.folder)
    assert (said.code, said.out) == (0, "backend: sdpa\n")


def test_run_passes_exit_code_and_launch_table_through(built: Project) -> None:
    code = "import os, sys; print(os.environ['DEMO_MODE'], os.path.isdir(os.environ['DEMO_TMP'])); sys.exit(7)"
    said = envsmith("run", "demo/app", "--root", built.envs, "--", "python", "-c", code, cwd=built.folder)
    assert (said.code, said.out) == (7, "on True\n")


def test_run_print_can_be_sourced_by_a_shell(built: Project) -> None:
    said = envsmith("run", "demo/app", "--root", built.envs, "--print", cwd=built.folder)
    script = f"{said.out}\nbeta-run; echo $DEMO_MODE"
    done = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True)
    assert done.stdout == "2.0\non\n"


def test_a_second_build_does_nothing(built: Project) -> None:
    before = (built.current / "envsmith.json").stat().st_mtime_ns
    said = built.build()
    assert said.code == 0
    assert said.json["data"]["envs"][0]["state"] == "unchanged"
    assert (built.current / "envsmith.json").stat().st_mtime_ns == before


def test_dry_run_prints_the_plan_that_a_build_runs(project: Project, index: SimpleIndex, tmp_path: Path) -> None:
    assert project.run("lock", "demo").code == 0
    fresh = {"ENVSMITH_HOME": str(tmp_path / "fresh")}
    planned = project.build("--dry-run", env=fresh).json["data"]["envs"][0]
    assert not project.envs.exists()
    assert not (tmp_path / "fresh").exists()
    project.build(env=fresh)
    receipt = json.loads((project.current / "envsmith.json").read_text())
    assert receipt["steps"] == planned["steps"]
    assert any("obtain" in step for step in planned["steps"])


def test_a_lock_is_byte_identical_on_another_store(project: Project, index: SimpleIndex, tmp_path: Path) -> None:
    project.run("lock", "demo")
    first = project.lock.read_bytes()
    project.lock.unlink()
    said = project.run("lock", "demo", env={"ENVSMITH_HOME": str(tmp_path / "other-store")})
    assert said.code == 0, said.err
    assert project.lock.read_bytes() == first


def test_the_same_lock_builds_from_a_folder_without_network(
    project: Project, index: SimpleIndex, tmp_path: Path
) -> None:
    project.run("lock", "demo")
    offline = {"ENVSMITH_INDEX": "", "ENVSMITH_FIND_LINKS": str(project.index), "ENVSMITH_HOME": str(tmp_path / "s2")}
    asked = len(index.log)
    said = project.build("--offline", env=offline)
    assert said.code == 0, said.out
    assert len(index.log) == asked


def test_equal_builds_have_equal_receipts_but_for_place_and_time(built: Project, tmp_path: Path) -> None:
    from envsmith.receipt import VARIABLE

    said = built.run("build", "demo", "--root", tmp_path / "elsewhere", env={"ENVSMITH_HOME": str(tmp_path / "s2")})
    assert said.code == 0, said.out
    one = json.loads((built.current / "envsmith.json").read_text())
    two = json.loads((tmp_path / "elsewhere/demo-app/current/envsmith.json").read_text())
    assert one["portable"] == two["portable"]
    variable = {*VARIABLE, "steps"}  # a store that has files plans no step for them
    assert {k: v for k, v in one.items() if k not in variable} == {k: v for k, v in two.items() if k not in variable}


def test_changed_launch_table_is_a_new_env_and_the_old_one_stays(built: Project) -> None:
    old = built.current.resolve()
    built.edit('DEMO_MODE = "on"', 'DEMO_MODE = "off"')
    said = built.build()
    assert said.code == 0
    assert built.current.resolve() != old
    assert (old / "envsmith.json").is_file()


def test_source_option_takes_a_copy_and_holds_it_against_the_commit(project: Project, index: SimpleIndex) -> None:
    moved = project.folder / "moved"
    (project.folder / "upstream").rename(moved)
    assert project.run("lock", "demo").codes == ["source-unreachable"]
    assert project.run("lock", "demo", "--source", f"tool={moved}").code == 0


def test_kill_at_random_instants_leaves_the_old_env_and_the_next_run_continues(built: Project) -> None:
    old = built.current.resolve()
    built.edit('DEMO_MODE = "on"', 'DEMO_MODE = "off"')
    argv = [sys.executable, "-m", "envsmith", "build", "demo", "--root", str(built.envs)]
    for delay in (0.3, 0.6, 0.9, 1.2, 1.5):
        child = subprocess.Popen(
            argv, cwd=built.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(delay)
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        assert built.current.resolve().is_dir()
        receipt = json.loads((built.current / "envsmith.json").read_text())
        assert receipt["launch"]["set"]["DEMO_MODE"] in ("on", "off")
        assert (old / "envsmith.json").is_file()
    assert built.build().code == 0
    assert built.verify("--all").code == 0
    assert json.loads((built.current / "envsmith.json").read_text())["launch"]["set"]["DEMO_MODE"] == "off"


def test_two_builds_of_one_env_wait_for_each_other(project: Project, index: SimpleIndex) -> None:
    project.run("lock", "demo")
    argv = [sys.executable, "-m", "envsmith", "build", "demo", "--root", str(project.envs), "--json"]
    children = [
        subprocess.Popen(argv, cwd=project.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(3)
    ]
    states = [json.loads(child.communicate(timeout=120)[0])["data"]["envs"][0]["state"] for child in children]
    assert sorted(states) == ["built", "unchanged", "unchanged"]


def test_an_edit_in_one_env_does_not_reach_the_next_one(built: Project, tmp_path: Path) -> None:
    """The uv-cache poisoning case (facts/anchors.md M7): an edit in place, then another env from the same store."""
    victim = built.site / "beta" / "core.py"
    with victim.open("a") as stream:
        stream.write("POISON = True\n")
    said = built.run("build", "demo", "--root", tmp_path / "second")
    assert said.code == 0, said.out
    clean = tmp_path / "second/demo-app/current" / victim.relative_to(built.current.resolve())
    assert "POISON" not in clean.read_text()


def test_a_poisoned_uv_cache_cannot_pass(built: Project, tmp_path: Path) -> None:
    """Whoever writes into uv's cache itself is found out by the build, which empties the cache and begins again."""
    cache = Path(os.environ["ENVSMITH_HOME"]) / "uv"
    found = [path for path in cache.rglob("core.py") if path.parent.name == "beta"]
    assert found
    for path in found:
        path.write_text("POISON = True\n")
    said = built.run("build", "demo", "--root", tmp_path / "second")
    assert said.code == 0, said.out
    assert "emptying the cache" in said.err
    clean = next((tmp_path / "second/demo-app/current").resolve().rglob("beta/core.py"))
    assert "POISON" not in clean.read_text()


def test_upgrade_package_moves_only_that_package(project: Project, index: SimpleIndex) -> None:
    from tests.support.wheels import make_wheel

    project.run("lock", "demo")
    make_wheel(project.index, "gamma", "0.4")
    make_wheel(project.index, "alpha", "1.0.1", requires=["beta<2"])
    kept = project.run("lock", "demo")
    assert kept.json["data"]["locks"][0]["changed"] is False
    moved = project.run("lock", "demo", "--upgrade-package", "gamma")
    assert moved.code == 0, moved.out
    versions = {p["name"]: p["version"] for p in tomllib.loads(project.lock.read_text())["packages"]}
    assert versions["gamma"] == "0.4"
    assert versions["alpha"].startswith("1.0+envsmith.t")


def test_lock_check_names_recipe_patch_and_absence(project: Project, index: SimpleIndex) -> None:
    assert project.run("lock", "demo", "--check").codes == ["lock-missing"]
    project.run("lock", "demo")
    assert project.run("lock", "demo", "--check").code == 0
    patch = project.folder / "patches/tool-1/use-sdpa.patch"
    patch.write_text(patch.read_text().replace("change one value", "change another value"))
    stale = project.run("lock", "demo", "--check")
    assert (stale.code, stale.codes) == (1, ["lock-stale"])
    assert "tool-1/use-sdpa.patch" in stale.json["errors"][0]["message"]


def test_comments_and_order_do_not_stale_a_lock(project: Project, index: SimpleIndex) -> None:
    project.run("lock", "demo")
    project.edit('requires = ["alpha", "beta", "delta"]', '# a remark\nrequires = ["delta", "beta", "alpha"]')
    assert project.run("lock", "demo", "--check").code == 0
    project.edit('"delta", "beta"', '"delta", "gamma", "beta"')
    assert project.run("lock", "demo", "--check").code == 1


def test_target_python_needs_no_interpreter_for_wheels_alone(project: Project, index: SimpleIndex) -> None:
    project.recipe.write_text('[stack]\nname = "demo"\n[env.app]\npython = "3.99"\nrequires = ["gamma"]\n')
    said = project.run("lock", "demo")
    assert said.code == 0, said.out
    assert 'python = "3.99"' in project.lock.read_text()
    assert PYTHON != "3.99"


@pytest.mark.parametrize("name", ["with space", "ünïcode", "x" * 120])
def test_spaced_non_ascii_and_long_roots_work(project: Project, index: SimpleIndex, tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    said = project.run("build", "demo", "--root", root)
    assert said.code == 0, said.out
    ran = envsmith("run", "demo/app", "--root", root, "--", "beta-run", cwd=project.folder)
    assert ran.out == "2.0\n"


def test_an_allowed_sdist_is_not_avoided_by_drifting_back(project: Project, index: SimpleIndex) -> None:
    """Left out at first, an sdist is never reached: the resolver finds an old release that does without it."""
    from tests.support.wheels import make_wheel

    make_wheel(project.index, "config", "1.3", requires=["delta"])
    make_wheel(project.index, "config", "0.11")
    project.edit('"beta", "delta"]', '"beta", "config"]')
    assert project.run("lock", "demo").code == 0
    versions = {p["name"]: p["version"] for p in tomllib.loads(project.lock.read_text())["packages"]}
    assert versions["config"] == "1.3"
    assert versions["delta"] == "0.5"


def test_build_means_may_be_built_a_wheel_that_fits_wins(project: Project, index: SimpleIndex) -> None:
    project.edit('build = ["delta"]', 'build = ["delta", "gamma"]')
    said = project.run("lock", "demo")
    assert said.code == 0, said.out
    assert [built["name"] for built in tomllib.loads(project.lock.read_text())["tool"]["envsmith"]["built"]] == [
        "delta"
    ]
