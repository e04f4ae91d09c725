"""`envsmith smoke` as a program: verification, the user's own command, and what both leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import Project, Said

OPEN = "open(os.environ['ENVSMITH_RUNG_DIR'] + '/f', 'w')"


def with_rungs(built: Project, *tables: dict[str, Any]) -> None:
    """Give the recipe at hand a smoke table; the env need not be built again for it."""
    lines = []
    for table in tables:
        lines.append("[[env.app.smoke]]")
        lines += [f"{key} = {_toml(value)}" for key, value in table.items()]
    built.recipe.write_text(built.recipe.read_text() + "\n" + "\n".join(lines) + "\n")


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {json.dumps(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


def command(code: str, **more: Any) -> dict[str, Any]:
    return {"rung": "command", "command": ["python", "-c", code], **more}


def smoke(built: Project, *words: str) -> Said:
    return built.run("smoke", "demo/app", "--root", built.envs, *words)


def rows(said: Said) -> dict[str, str]:
    return {row["rung"]: row["status"] for row in said.json["data"]["rungs"]}


def test_an_env_without_rungs_is_verified_and_left_clean(built: Project) -> None:
    said = smoke(built)
    assert said.code == 0 and said.json["status"] == "ok"
    assert rows(said) == {"static": "passed", "exit-clean": "passed"}


def test_a_drifted_file_ends_the_climb_at_the_first_rung(built: Project) -> None:
    (built.site / "alpha" / "__init__.py").write_text("def answer():\n    return 43\n")
    with_rungs(built, {"rung": "static"}, command("print('never')"))
    said = smoke(built)
    assert said.code == 1 and said.json["status"] == "findings"
    assert rows(said) == {"static": "failed", "command": "not-run"}
    assert "static/files/file-changed" in said.kinds
    assert all(finding["check"] == "static" for finding in said.json["data"]["findings"])


def test_a_command_runs_in_the_launch_environment_and_what_it_says_is_kept(built: Project) -> None:
    code = f"import os, sys; print(os.environ['DEMO_MODE'], sys.prefix); {OPEN}.write('x')"
    with_rungs(built, command(code, **{"expect-files": ["{rung}/f"]}))
    said = smoke(built)
    assert said.code == 0, said.out
    folder = Path(said.json["data"]["folder"])
    assert (folder / "01-command" / "rank0.log").read_text().split() == ["on", str(built.current.resolve())]


@pytest.mark.parametrize(
    ("table", "kind"),
    [
        (command("print('done'); raise SystemExit(1)"), "rank-exit"),
        (command("print('done', flush=True); import os; os.abort()"), "rank-exit"),
        (command("import time; time.sleep(60)", **{"timeout-s": 1.0}), "rung-timeout"),
        ({"rung": "command", "command": ["no-such-program"]}, "command-not-found"),
        (command("pass", **{"expect-files": ["{rung}/model.safetensors"]}), "file-missing"),
        (
            command("import os; open(os.environ['ENVSMITH_RUNG_DIR'] + '/f', 'w')", **{"expect-files": ["{rung}/f"]}),
            "file-missing",
        ),
    ],
)
def test_a_command_fails_by(built: Project, table: dict[str, Any], kind: str) -> None:
    with_rungs(built, table)
    said = smoke(built)
    assert said.code == 1
    assert f"command/{kind}" in said.kinds, said.out
    assert rows(said) == {"command": "failed"}


def test_a_process_that_left_its_session_is_named_and_killed(built: Project) -> None:
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'],"
        " start_new_session=True); print(p.pid)"
    )
    with_rungs(built, command(code))
    said = smoke(built)
    assert said.code == 1 and said.kinds == {"command/process-left-behind"}
    pid = int((Path(said.json["data"]["folder"]) / "01-command" / "rank0.log").read_text())
    assert not Path(f"/proc/{pid}").exists() or "State:\tZ" in Path(f"/proc/{pid}/status").read_text()


def test_shared_memory_that_nobody_holds_any_more_is_named(built: Project) -> None:
    name = f"psm_{os.getpid()}_{time.monotonic_ns()}"
    with_rungs(built, command(f"open('/dev/shm/{name}', 'wb').write(bytes(4096))"))
    try:
        said = smoke(built)
    finally:
        Path("/dev/shm", name).unlink(missing_ok=True)
    assert said.code == 1 and said.kinds == {"command/memory-not-returned"}
    assert any(name in finding["message"] for finding in said.json["data"]["findings"])


def test_a_key_is_changed_for_one_run_and_wrong_ones_are_refused_together(built: Project) -> None:
    with_rungs(built, command("import time; time.sleep(60)"))
    said = smoke(built, "--set", "command.timeout-s=1")
    assert said.code == 1 and "command/rung-timeout" in said.kinds
    said = smoke(
        built, "--set", "command.timeout-s=-1", "--set", "nope.ranks=2", "--set", "ranks", "--set", "device.rank=2"
    )
    assert said.code == 2 and said.codes == ["smoke-setting"] * 4


def test_secrets_of_the_caller_are_not_kept(built: Project) -> None:
    with_rungs(built, {"rung": "device"})
    secret = "hf_" + "Q7x" * 11
    said = built.run(
        "smoke", "demo/app", "--root", built.envs, env={"HF_TOKEN": secret, "MY_PASSWORD": "hunter2hunter2"}
    )
    folder = Path(said.json["data"]["folder"])
    kept = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file() and "payload" not in path.parts)
    assert b"HF_TOKEN" in kept and secret.encode() not in kept and b"hunter2" not in kept
    assert said.code == 1  # the demo env has no torch
    assert "device/rank-exit" in said.kinds


def test_an_interrupt_ends_everything_that_was_started(built: Project) -> None:
    with_rungs(built, command("import time; print('up', flush=True); time.sleep(300)"))
    words = [sys.executable, "-m", "envsmith", "smoke", "demo/app", "--root", str(built.envs), "--json"]
    child = subprocess.Popen(words, cwd=built.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    runs = built.envs / "demo-app" / "smoke"
    deadline = time.monotonic() + 60
    logs: list[Path] = []
    while not any(log.stat().st_size for log in logs):
        assert time.monotonic() < deadline
        time.sleep(0.1)
        logs = list(runs.glob("*/01-command/rank0.log"))
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert child.returncode == 130 and json.loads(out)["errors"][0]["code"] == "interrupted"
    mark = str(logs[0].parent.parent).encode()
    for process in Path("/proc").glob("[0-9]*/environ"):
        try:
            assert mark not in process.read_bytes()
        except OSError:
            continue


def test_only_the_last_runs_are_kept(built: Project) -> None:
    with_rungs(built, command("pass"))
    for _ in range(7):
        assert smoke(built).code == 0
    assert len(list((built.envs / "demo-app" / "smoke").iterdir())) == 5


def test_an_env_of_another_tool_can_be_tried_too(built: Project, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=120)
    said = built.run("smoke", venv)
    assert said.code == 0, said.out
    assert rows(said) == {"static": "passed", "exit-clean": "passed"}


def test_a_rung_in_the_receipt_is_climbed_where_no_recipe_is_at_hand(
    built: Project, index: Any, tmp_path: Path
) -> None:
    with_rungs(built, command("print('from the receipt')"))
    assert built.build("--locked").code == 0
    said = built.run("smoke", str(built.current))
    assert rows(said) == {"command": "passed"}
    elsewhere = subprocess.run(
        [sys.executable, "-m", "envsmith", "smoke", str(built.current), "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert json.loads(elsewhere.stdout)["data"]["rungs"][0]["status"] == "passed"


def test_evidence_of_a_run_is_checked_elsewhere_and_a_changed_byte_is_found(built: Project, tmp_path: Path) -> None:
    with_rungs(
        built,
        {"rung": "static"},
        {"rung": "exit-clean"},
        command("print('token hf_' + 'Ab1' * 10); raise SystemExit(3)"),
    )
    folder = tmp_path / "evidence"
    said = smoke(built, "--evidence", str(folder))
    assert said.code == 1 and rows(said)["command"] == "failed"
    checked = built.run("inspect", folder, "--check")
    assert checked.code == 0, checked.out
    assert checked.json["data"]["digest"] == said.json["data"]["evidence"]["digest"]
    assert "failed" in (folder / "SUMMARY.md").read_text()
    assert b"Ab1Ab1" not in b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    record = folder / "record.json"
    record.write_text(record.read_text().replace('"failed"', '"passed"'))
    assert built.run("inspect", folder, "--check").code == 5
    again = smoke(built, "--evidence", str(folder))
    assert again.code == 2 and again.codes == ["evidence-folder-unusable"]


def test_a_command_that_was_ended_at_its_limit_leaves_evidence_that_checks(built: Project, tmp_path: Path) -> None:
    with_rungs(built, command("import time; print('up', flush=True); time.sleep(60)", **{"timeout-s": 1.0}))
    said = smoke(built, "--evidence", str(tmp_path / "e"))
    assert said.code == 1 and "command/rung-timeout" in said.kinds, said.out
    row = json.loads((tmp_path / "e" / "record.json").read_text())["rungs"][0]
    assert row["exit_codes"] == {"0": None}
    checked = built.run("inspect", tmp_path / "e", "--check")
    assert (checked.code, checked.json["data"]["result"]) == (0, "failed"), checked.out
    assert "rank 0: no end within the limit" in (tmp_path / "e" / "SUMMARY.md").read_text()


@pytest.mark.parametrize(("folder", "code"), [("{tmp}/checkpoints", 0), ("/proc/checkpoints", 1)])
def test_the_folder_of_checkpoints_is_tried_first(
    built: Project, index: Any, tmp_path: Path, folder: str, code: int
) -> None:
    place = folder.replace("{tmp}", str(tmp_path))
    built.recipe.write_text(built.recipe.read_text() + f'\n[env.app.job]\ncheckpoint-dir = "{place}"\n')
    assert built.build("--locked").code == 0
    said = smoke(built, "--to", "static")
    assert said.code == code, said.out
    errors = [one for one in said.json["data"]["findings"] if one["severity"] == "error"]
    assert [one["kind"].split("/")[0] for one in errors] == ["checkpoint"] * len(errors)
    assert bool(errors) == bool(code)
    assert not list(tmp_path.glob("**/.envsmith-probe-*"))


def test_an_exit_alone_shows_nothing(built: Project) -> None:
    said = smoke(built, "--only", "exit-clean")
    assert said.code == 1 and rows(said) == {"exit-clean": "inconclusive"}


@pytest.mark.parametrize(
    "deed",
    [
        "os.remove(log); os.mkfifo(log)",
        "os.remove(log); os.mkdir(log)",
        "os.remove(log); os.symlink('/etc/hostname', log)",
        "import shutil; shutil.rmtree(os.path.dirname(log))",
        "os.remove(log); open(log, 'w').write('gold')",
    ],
)
def test_a_command_cannot_put_another_log_in_the_place_of_its_own(built: Project, deed: str) -> None:
    code = f"import os; print('lead', flush=True); log = os.environ['ENVSMITH_RUNG_DIR'] + '/rank0.log'; {deed}"
    with_rungs(built, command(code, **{"expect-output": ["gold"]}))
    said = smoke(built)
    assert said.code == 1 and said.kinds == {"command/output-missing"}, said.err
    assert (Path(said.json["data"]["folder"]) / "01-command" / "rank0.log").read_text() == "lead\n"


def test_a_child_that_drops_every_mark_is_found_too(built: Project) -> None:
    code = (
        "import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'],"
        " start_new_session=True, env={}, cwd='/'); print('done')"
    )
    with_rungs(built, command(code))
    said = smoke(built)
    assert said.code == 1 and said.kinds == {"command/process-left-behind"}


def test_who_looks_on_is_left_alone(built: Project, tmp_path: Path) -> None:
    with_rungs(built, command("import time; print('up', flush=True); time.sleep(3)"))
    words = [sys.executable, "-m", "envsmith", "smoke", "demo/app", "--root", str(built.envs), "--json"]
    child = subprocess.Popen(words, cwd=built.folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    deadline, logs = time.monotonic() + 60, []
    while not logs:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        logs = list((built.envs / "demo-app" / "smoke").glob("*/01-command/rank0.log"))
    looker = subprocess.Popen(["tail", "-f", logs[0]], cwd=logs[0].parent, stdout=subprocess.DEVNULL)
    try:
        out, _ = child.communicate(timeout=60)
        assert json.loads(out)["exit_code"] == 0
        assert looker.poll() is None
    finally:
        looker.kill()
        looker.wait()


def test_a_command_that_changes_the_env_does_not_pass(built: Project) -> None:
    with_rungs(built, command("import alpha; open(alpha.__file__, 'a').write('x = 1')"))
    said = smoke(built)
    assert said.code == 1 and "command/files/file-changed" in said.kinds, said.out


def test_an_unreadable_recipe_is_not_passed_over(built: Project) -> None:
    with_rungs(built, {"rung": "comand", "command": ["true"]})
    said = smoke(built)
    assert said.code == 2 and said.codes == ["recipe-contradiction"]


def test_static_keeps_its_limit(built: Project) -> None:
    said = smoke(built, "--only", "static", "--set", "static.timeout-s=0.0001")
    assert said.code == 1 and said.kinds == {"static/work-timeout"}


def test_a_changed_launch_table_is_said(built: Project) -> None:
    built.edit('DEMO_MODE = "on"', 'DEMO_MODE = "off"')
    with_rungs(built, {"rung": "static"})
    said = smoke(built)
    assert said.code == 0 and "recipe/recipe-changed" in said.kinds


def test_runs_under_way_and_what_is_no_run_stay(built: Project, tmp_path: Path) -> None:
    wait = f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.1)"
    with_rungs(built, command("pass", name="quick"), command(wait, name="slow"))
    words = [sys.executable, "-m", "envsmith", "smoke", "demo/app", "--root", str(built.envs), "--only", "slow"]
    child = subprocess.Popen(words, cwd=built.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    runs = built.envs / "demo-app" / "smoke"
    deadline = time.monotonic() + 60
    while not list(runs.glob("*/01-slow/rank0.log")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (runs / "notes").mkdir()
    for _ in range(6):
        assert smoke(built, "--only", "quick").code == 0
    (tmp_path / "go").touch()
    assert child.wait(timeout=60) == 0
    assert (runs / "notes").is_dir()
