"""What a hostile tester found once: each stays mended."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.index import SimpleIndex
from tests.support.project import PYTHON, SITE, Project, envsmith
from tests.support.wheels import make_wheel


def shell(project: Project, script: str) -> subprocess.CompletedProcess[str]:
    command = f"{sys.executable} -m envsmith"
    done = subprocess.run(
        ["sh", "-c", script.replace("envsmith", command)],
        cwd=project.folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_a_reader_that_has_gone_is_no_error(project: Project) -> None:
    done = shell(project, "envsmith schema | true; envsmith schema --json | head -c 1 > /dev/null")
    assert done.stderr == ""


def test_a_full_or_closed_stdout_is_said_in_one_line(project: Project) -> None:
    full = shell(project, "envsmith schema > /dev/full")
    assert (full.returncode, full.stderr.split(":")[0]) == (4, "error[output-failed]")
    assert shell(project, "envsmith schema >&-").returncode == 0


def test_a_removed_current_folder_is_an_input_error(project: Project) -> None:
    (project.folder / "gone").mkdir()
    done = shell(project, "cd gone && rmdir ../gone && envsmith check demo --json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["errors"][0]["code"] == "folder-gone"


@pytest.mark.parametrize(
    "words",
    [("verify", "~nosuchuser/x"), ("verify", "/" + "x" * 300), ("check", "x" * 300), ("check", "./" + "x" * 300)],
)
def test_paths_that_cannot_be_are_input_errors(project: Project, words: tuple[str, ...]) -> None:
    said = project.run(*words)
    assert (said.code, said.codes) == (2, ["path-malformed"])


@pytest.mark.parametrize("url", ["http://[::1", "ftp://host/simple", "http://"])
def test_index_urls_that_cannot_be_are_input_errors(project: Project, url: str) -> None:
    said = project.run("lock", "demo", env={"ENVSMITH_INDEX": url})
    assert (said.code, said.codes) == (2, ["index-url-malformed"])


def test_an_empty_name_is_not_the_default(project: Project) -> None:
    for verb in ("lock", "build", "check"):
        said = project.run(verb, "")
        assert (said.code, said.codes) == (2, ["unknown-stack"])


def test_options_after_the_env_belong_to_run(built: Project) -> None:
    said = envsmith(
        "run", "demo/app", "-q", "--root", built.envs, "--color", "never", "--", "python", "-c", "print(1)", "--json",
        cwd=built.folder,
    )  # fmt: skip
    assert (said.code, said.out) == (0, "1\n")


def test_names_of_files_cannot_forge_lines_or_break_the_envelope(built: Project) -> None:
    (built.site / "x\n\x1b[31merror: y.py").write_text("")
    (built.site / os.fsdecode(b"\xff.py")).write_text("")
    said = built.verify(env={"PYTHONIOENCODING": "utf-8", "LC_ALL": "C.UTF-8"})
    assert said.code == 1
    plain = envsmith("verify", "demo/app", "--root", built.envs, cwd=built.folder, env={"PYTHONIOENCODING": "utf-8"})
    assert "\x1b" not in plain.out
    assert "\nerror: y.py" not in plain.out


def link_called_a_file(p: Project) -> None:
    (p.site / "alpha/extra.py").unlink()
    (p.site / "alpha/extra.py").symlink_to("a file")


def link_to_a_package_in_a_work_copy(p: Project) -> None:
    (p.folder / "evil").mkdir()
    (p.folder / "evil/__init__.py").write_text("")
    (p.current.resolve() / "src/tool/evil").symlink_to(p.folder / "evil")


def unchecked_bytecode_in_a_work_copy(p: Project) -> None:
    source = p.current.resolve() / "src/tool/tool/__init__.py"
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


def empty_package_folder(p: Project) -> None:
    (p.site / "flash_attn").mkdir()


def fifo_for_a_file(p: Project) -> None:
    (p.site / "alpha/extra.py").unlink()
    os.mkfifo(p.site / "alpha/extra.py")


def folder_behind_a_link(p: Project) -> None:
    shutil.move(p.site / "alpha", p.folder / "alpha")
    (p.site / "alpha").symlink_to(p.folder / "alpha")


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (link_called_a_file, "files/link-changed"),
        (link_to_a_package_in_a_work_copy, "sources/source-untracked"),
        (unchecked_bytecode_in_a_work_copy, "pyc/unowned-bytecode"),
        (empty_package_folder, "files/unowned-module"),
        (fifo_for_a_file, "files/file-changed"),
        (folder_behind_a_link, "files/record-missing-files"),
    ],
)
def test_more_planted_drift_is_found(built: Project, plant: Callable[[Project], None], kind: str) -> None:
    plant(built)
    said = built.verify()
    assert said.code == 1
    assert kind in said.kinds


def test_the_git_folder_of_a_work_copy_is_not_asked(built: Project) -> None:
    """Whoever edits a work copy can edit its git folder too, and git runs what that names."""
    git = built.current.resolve() / "src/tool/.git"
    (git / "config").write_text(
        "[core]\n\trepositoryformatversion = 1\n\tfsmonitor = touch pwned\n[extensions]\n\tpartialClone = origin\n"
        '[remote "origin"]\n\turl = .\n\tuploadpack = "touch pwned; git-upload-pack"\n'
    )
    shutil.rmtree(git / "objects")
    (git / "objects").mkdir()
    assert built.verify().code == 0
    assert not list(built.folder.rglob("pwned"))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["verify"]["allow-changed"].append("*"),
        lambda data: data["launch"]["set"].update(LD_PRELOAD="/evil.so"),
        lambda data: data["launch"].pop("set"),
        lambda data: data["verify"].update({"base-hooks": True}),
        lambda data: data.update(steps=3),
        lambda data: data.update(fingerprint="0" * 64),
    ],
)
def test_a_changed_receipt_vouches_for_nothing(built: Project, change: Callable[[dict[str, object]], object]) -> None:
    path = built.current / "envsmith.json"
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    said = built.verify()
    assert said.code == 5
    assert set(said.codes) <= {"receipt-differs", "receipt-malformed"}


@pytest.mark.parametrize("text", ["", "[]", '{"taken_ns": 1, "rows": {"a": [0, 0, 0, 0, 0, 0]}}', '{"taken_ns": "x"}'])
def test_a_broken_stat_index_costs_only_time(built: Project, text: str) -> None:
    real = built.current.resolve()
    real.with_name(f"{real.name}.stat.json").write_text(text)
    said = built.verify()
    assert (said.code, said.json["data"]["findings"]) == (0, [])


def test_an_index_from_the_future_is_not_believed(built: Project) -> None:
    real = built.current.resolve()
    index = real.with_name(f"{real.name}.stat.json")
    victim = built.site / "alpha/extra.py"
    victim.write_text("X = 2\n")
    data = json.loads(index.read_text())
    info = victim.stat()
    row = data["rows"][f"{SITE}/alpha/extra.py"]
    data["rows"][f"{SITE}/alpha/extra.py"] = [info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino, *row[4:]]
    data["taken_ns"] = time.time_ns() + 10**15
    index.write_text(json.dumps(data))
    assert built.verify().code == 1


def test_verify_on_a_read_only_root_says_what_it_saw(built: Project) -> None:
    script = (
        f"mount --bind {built.envs} {built.envs} && mount -o remount,ro,bind {built.envs} && "
        f"exec {sys.executable} -m envsmith verify demo/app --root {built.envs} --deep --json"
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], cwd=built.folder, capture_output=True, text=True, check=False
    )
    if not done.stdout:
        pytest.skip(f"no private mounts here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout


def test_a_drifted_env_is_built_anew_beside_and_the_old_one_stays(built: Project) -> None:
    old = built.current.resolve()
    (built.site / "alpha/extra.py").write_text("X = 2\n")
    assert built.build().json["data"]["envs"][0]["state"] == "unchanged"
    said = built.build("--rebuild")
    assert said.code == 0, said.out
    assert built.current.resolve() == old.with_name(f"{old.name}-2")
    assert (old / "envsmith.json").is_file()
    assert built.verify().code == 0
    assert built.build().json["data"]["envs"][0]["state"] == "unchanged"


def test_a_moved_root_is_said_once_and_built_anew(built: Project) -> None:
    moved = built.folder / "moved"
    built.envs.rename(moved)
    said = built.run("verify", "demo/app", "--root", moved)
    assert (said.code, said.kinds) == (1, {"files/env-moved"})
    again = built.run("build", "demo", "--root", moved)
    assert again.json["data"]["envs"][0]["state"] == "built"
    assert built.run("verify", "demo/app", "--root", moved).code == 0


def test_a_changed_verify_table_verifies_again_without_building(built: Project) -> None:
    inode = (built.site / "alpha/extra.py").stat().st_ino
    built.edit('attributes = ["alpha.answer"]', 'attributes = ["alpha.answer", "alpha.__name__"]')
    said = built.build()
    assert said.code == 0, said.out
    assert "verify the env that stands" in said.json["data"]["envs"][0]["steps"][0]
    assert (built.site / "alpha/extra.py").stat().st_ino == inode
    receipt = json.loads((built.current / "envsmith.json").read_text())
    assert receipt["verify"]["attributes"] == ["alpha.answer", "alpha.__name__"]
    assert built.verify().code == 0
    built.edit('"alpha.__name__"]', '"alpha.nothing"]')
    failed = built.build()
    assert (failed.code, failed.codes) == (1, ["verify-attribute-missing"])
    assert built.verify().code == 0  # the env and its receipt are as they were


def test_a_root_that_path_cannot_hold_is_refused_before_anything_is_fetched(
    project: Project, index: SimpleIndex
) -> None:
    said = project.run("build", "demo", "--root", project.folder / "a:b")
    assert (said.code, said.codes) == (2, ["root-unusable"])
    assert not (project.folder / "a:b").exists()


@pytest.mark.parametrize("path", ["pyvenv.cfg", "envsmith.json", "src/tool/x.py", "bin/activate"])
def test_a_wheel_that_brings_the_envs_own_files_is_refused(project: Project, index: SimpleIndex, path: str) -> None:
    wheel = project.index / "gamma-0.3-py3-none-any.whl"
    wheel.unlink()
    make_wheel(project.index, "gamma", "0.3", {"gamma/__init__.py": "", f"gamma-0.3.data/data/{path}": "evil"})
    said = project.build()
    assert (said.code, said.codes) == (5, ["wheel-claims-env"])
    assert said.json["errors"][0]["where"] == wheel.name


def test_what_killed_runs_left_is_swept(built: Project) -> None:
    tmp = Path(os.environ["ENVSMITH_HOME"]) / "tmp"
    left = tmp / "build-killed"
    (left / "deep").mkdir(parents=True)
    os.utime(left, (1, 1))
    built.edit('DEMO_MODE = "on"', 'DEMO_MODE = "off"')
    assert built.build().code == 0
    assert list(tmp.iterdir()) == []


def test_a_lock_edited_by_hand_is_stale_not_a_bug(built: Project) -> None:
    text = built.lock.read_text()
    built.lock.write_text(text.replace('name = "tool"', 'name = "tooled"', 1))
    said = built.build("--locked")
    assert (said.code, said.codes) == (1, ["lock-stale"])


def test_an_unknown_source_and_a_missing_wheel_folder_are_said(project: Project) -> None:
    assert project.run("lock", "demo", "--source", "toll=.").codes == ["unknown-source"]
    said = project.run("lock", "demo", env={"ENVSMITH_FIND_LINKS": str(project.folder / "nowhere")})
    assert (said.code, said.codes) == (4, ["wheel-folder-missing"])


def test_the_log_of_a_failed_step_holds_what_the_program_said(project: Project, index: SimpleIndex) -> None:
    project.run("lock", "demo")
    broken = project.run("build", "demo", "--root", project.envs, env={"ENVSMITH_PYTHON": "/nonexistent"})
    assert broken.code == 0  # a named interpreter that is not there does not hide the others
    log = next((project.envs / "demo-app" / "logs").iterdir()).read_text()
    assert "pip sync" in log
    assert f"python{PYTHON}" in log or "bin/python" in log


def test_an_unknown_extra_of_a_source_is_said(project: Project, index: SimpleIndex) -> None:
    project.edit('series = ["tool-1/demo.series"]', 'series = ["tool-1/demo.series"]\nextras = ["nope"]')
    said = project.run("lock", "demo")
    assert (said.code, said.codes) == (2, ["unknown-extra"])


def test_one_broken_env_does_not_hide_the_others(built: Project) -> None:
    shutil.copytree(built.envs / "demo-app", built.envs / "demo-other", symlinks=True)
    said = built.run("verify", "--root", built.envs)
    assert said.code == 1
    assert {env["env"] for env in said.json["data"]["envs"]} == {"demo/app"}
    (built.current / "envsmith.json").write_text(
        (built.current / "envsmith.json").read_text().replace("built-at", "built-by")
    )
    said = built.run("verify", "--root", built.envs)
    assert said.code == 5


def test_files_beside_the_locks_sources_are_judged(built: Project) -> None:
    (built.current.resolve() / "src/other.py").write_text("")
    said = built.verify()
    assert said.code == 1
    assert "files/unowned-file" in said.kinds


def test_a_terminated_build_ends_in_order_with_the_envelope(project: Project, index: SimpleIndex) -> None:
    project.run("lock", "demo")
    index.faults.bytes_per_s = 200.0
    argv = [sys.executable, "-m", "envsmith", "build", "demo", "--root", str(project.envs), "--json"]
    env = {**os.environ, "ENVSMITH_HOME": str(project.folder / "slow")}
    child = subprocess.Popen(
        argv, cwd=project.folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    time.sleep(2.5)
    child.terminate()
    out = child.communicate(timeout=60)[0]
    assert child.returncode == 130
    assert json.loads(out)["errors"][0]["code"] == "interrupted"
    index.faults.bytes_per_s = None
    assert project.build(env={"ENVSMITH_HOME": str(project.folder / "slow")}).code == 0


def test_a_forgotten_double_dash_is_named(built: Project) -> None:
    said = built.run("run", "demo/app", "python", "-c", "print(1)")
    assert (said.code, said.codes) == (2, ["usage"])
    assert "`--` before the command" in said.json["errors"][0]["hint"]


def test_an_index_that_refuses_is_not_a_conflict(project: Project, index: SimpleIndex) -> None:
    index.faults.auth = ("user", "word")
    said = project.run("lock", "demo")
    assert (said.code, said.codes) == (4, ["index-refused"])


@pytest.mark.parametrize("origin", ["git", "sdist"])
def test_a_source_can_be_installed_as_a_wheel(project: Project, index: SimpleIndex, origin: str) -> None:
    project.edit('series = ["tool-1/demo.series"]', 'series = ["tool-1/demo.series"]\ninstall = "wheel"')
    if origin == "sdist":
        text = project.recipe.read_text()
        table = text[text.index("[env.app.source.tool]") : text.index("[env.app.patch.alpha]")]
        project.recipe.write_text(
            text.replace(table, '[env.app.source.delta]\nsdist = "delta==0.5"\ninstall = "wheel"\n\n')
            .replace(', "delta"]', "]", 1)
            .replace('build = ["delta"]\n', "")
            .replace('"beta.core", "tool"]', '"beta.core"]')
            .replace('"beta-run", "tool"]', '"beta-run"]')
        )
    said = project.build()
    assert said.code == 0, said.out + said.err
    assert "emptying" not in said.err
    assert project.verify("--all").json["data"]["findings"] == []


def test_an_env_that_has_drifted_does_not_become_current_again(built: Project) -> None:
    first = built.current.resolve()
    built.edit('DEMO_MODE = "on"', 'DEMO_MODE = "off"')
    built.build()
    second = built.current.resolve()
    (first / SITE / "alpha/extra.py").write_text("X = 2\n")
    built.edit('DEMO_MODE = "off"', 'DEMO_MODE = "on"')
    said = built.build()
    assert (said.code, said.codes) == (5, ["verify-file-changed"])
    assert "--env app" in said.json["errors"][0]["hint"]
    assert built.current.resolve() == second
    assert built.build("--rebuild").code == 0
    assert built.verify().code == 0


def test_the_hint_to_rebuild_works_as_it_stands(built: Project) -> None:
    (built.site / "alpha/extra.py").write_text("X = 2\n")
    hint = built.verify().json["data"]["findings"][0]["hint"]
    command = hint.split("`")[1]
    assert command.startswith("envsmith build demo --env app --root ")
    done = shell(built, command)
    assert done.returncode == 0, done.stderr
    assert built.verify().code == 0


def test_a_pasted_placeholder_is_warned_of(project: Project, index: SimpleIndex) -> None:
    project.edit('because = "alpha 1.0 runs with beta 2.0"', 'because = "…"')
    said = project.run("lock", "demo")
    assert said.code == 0
    assert [warning["code"] for warning in said.json["data"]["locks"][0]["warnings"]] == ["accept-without-reason"]


def test_locking_offline_says_what_is_missing(project: Project) -> None:
    (project.folder / "empty").mkdir()
    env = {"ENVSMITH_FIND_LINKS": str(project.folder / "empty"), "ENVSMITH_INDEX": "http://127.0.0.1:9/simple"}
    said = project.run("lock", "demo", "--offline", env=env)
    assert (said.code, said.codes) == (4, ["offline-missing"])


def test_a_relative_git_address_lies_beside_the_recipe(project: Project, index: SimpleIndex) -> None:
    project.edit(f'git = "{project.folder / "upstream"}"', 'git = "../upstream"')
    said = envsmith("lock", str(project.recipe), "--json", cwd=project.folder.parent)
    assert said.code == 0, said.out
