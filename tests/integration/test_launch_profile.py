"""A vendor's profile sourced by a real shell: its variables arrive, and nothing else of it or of us does."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from envsmith.commands.launching import prepared
from envsmith.errors import InputError
from envsmith.launch import LaunchTable, resolve

CALLER = {"PATH": "/usr/bin:/bin", "HOME": "/h", "SECRET_TOKEN": "hunter2", "CR": "a\r\nb\rc"}


def after(tmp_path: Path, profile: str, **more: str) -> dict[str, str]:
    """The environment of a command, without what the table itself sets."""
    script = tmp_path / "vendor's env.sh"
    script.write_text(profile)
    launch = resolve(LaunchTable(unset=(), profile=str(script)), env_dir="/e", scratch="/s")
    found = prepared(launch, {**CALLER, **more}).environment
    return {name: value for name, value in found.items() if name not in ("VIRTUAL_ENV", "PYTHONNOUSERSITE")}


WITH_OURS = {**CALLER, "PATH": "/e/bin:/usr/bin:/bin"}


@pytest.mark.parametrize(
    "profile",
    [
        'set -- a b\n[ "$#" = 2 ] || exit 9\nexport A=1',
        'export A="$((1 + $#))"',
        "export A=1\n[ -f /not/there ] && . /not/there",
        "export A=1\nreturn 3",
        "export A=1\nenv() { echo mine; }\nexec() { :; }\necho() { :; }",
        "export A=1\nset -uCf -o pipefail\numask 777\nIFS=/e",
        "export A=1\nexec >/dev/null 2>&1 3>&- 4>&-",
        "export A=1\necho words\necho words >&2\ntrap 'exit 7' EXIT",
        "export A=1\ncd /",
        "export A=1 SHLVL=9 OLDPWD=/x _=y",
    ],
)
def test_a_profile_gives_its_variables_and_nothing_else(
    tmp_path: Path, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "callers"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert after(tmp_path, profile) == {**WITH_OURS, "A": "1"}
    assert list(folder.iterdir()) == []


def test_a_profile_sees_no_argument_of_ours(tmp_path: Path) -> None:
    assert after(tmp_path, 'export A="$#-${1-none}-${2-none}"')["A"] == "0-none-none"


def test_the_callers_folder_and_shell_level_stay_the_callers(tmp_path: Path) -> None:
    own = {"PWD": "/callers", "OLDPWD": "/before", "SHLVL": "4", "_": "/usr/bin/envsmith"}
    assert after(tmp_path, "cd /tmp\nexport A=1", **own) == {**WITH_OURS, **own, "A": "1"}


@pytest.mark.parametrize(("change", "path"), [("export PATH=/vendor", "/e/bin:/vendor"), ("unset PATH", "/e/bin")])
def test_a_profile_may_set_another_path_or_none(tmp_path: Path, change: str, path: str) -> None:
    assert after(tmp_path, change)["PATH"] == path


@pytest.mark.parametrize("job", ["sleep {} &", "(while sleep 0.1; do [ -e '{folder}' ] || exit; done; sleep {}) &"])
def test_a_job_that_a_profile_leaves_behind_holds_nothing_up(tmp_path: Path, job: str) -> None:
    started = time.monotonic()
    left = job.replace("{}", "20").replace("{folder}", str(tmp_path / "never"))
    assert after(tmp_path, f"export A=1\n{left}\necho $! >'{tmp_path}/pid'")["A"] == "1"
    assert time.monotonic() - started < 10
    os.kill(int((tmp_path / "pid").read_text()), 15)


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ("export A=1\nexit 3\n", "it ended the shell, with the exit code 3"),
        ("exit 0\n", "it ended the shell, with the exit code 0"),
        ("set -e\nfalse\n", "it ended the shell, with the exit code 1"),
        ("echo no licence >&2\nexit 3\n", "no licence"),
        ("export A=1\nif then\n", "syntax error"),
        ("export A=1\nif true; then\n", "syntax error"),
        ("exec true\n", "it ended the shell, with the exit code 0"),
    ],
)
def test_a_profile_that_cannot_be_sourced_is_an_error(tmp_path: Path, profile: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        after(tmp_path, profile)
    (problem,) = caught.value.problems
    assert problem.code == "launch-profile-failed"
    assert said in (problem.actual or "").replace("unexpected", "syntax error")  # as dash says it


def test_a_profile_that_is_not_there_or_is_a_folder_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        launch = resolve(LaunchTable(profile=str(path)), env_dir="/e", scratch="/s")
        with pytest.raises(InputError) as caught:
            prepared(launch, CALLER)
        assert caught.value.problems[0].code == "launch-profile-failed"
