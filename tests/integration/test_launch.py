"""`env.sh` sourced by a real shell gives the environment that `apply` gives."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from envsmith.errors import InputError
from envsmith.launch import LaunchEnvironment, LaunchTable, resolve

SHELLS = [shell for shell in ("sh", "dash", "bash", "zsh", "ksh", "busybox") if shutil.which(shell)]
#: What a shell puts into its environment by itself.
OWN = {"PWD", "OLDPWD", "SHLVL", "_", "PS1", "LOGNAME", "A__z"}

HOSTILE = "a b'c\"d$HOME`id`\\e\n*;#!~{}[]"
TABLE = LaunchTable(
    unset=("GONE", "NEVER_THERE"),
    set={"PLAIN": "1", "EMPTY": "", "HOSTILE": HOSTILE, "WORDS": "grüße 你好", "LIST": "/set"},
    prepend={"LD_LIBRARY_PATH": "/new/lib:/with space", "LIST": "/first", "FRESH": "/f", "GLOB": "/*:/'q'", "NIL": ":"},
    short_dirs={"SHORT": "{scratch}/r d"},
)
ENVIRON = {
    "GONE": "x", "HOME": "/h", "KEPT": "k p", "LD_LIBRARY_PATH": ":/old::/new/lib:/o ld:", "GLOB": "/a*:/'q':/etc/*",
    "NIL": "/n", "LIST": "/old",
}  # fmt: skip


def launched(tmp_path: Path, table: LaunchTable = TABLE) -> LaunchEnvironment:
    return resolve(table, env_dir=f"{tmp_path}/e nv", scratch=f"{tmp_path}/scratch")


def sourced(
    shell: str, script: Path, environ: dict[str, str], *, options: str = ""
) -> subprocess.CompletedProcess[bytes]:
    argv = [shutil.which(shell) or shell, *(["sh"] if shell == "busybox" else [])]
    line = f'{options}\n. "{script}"\n"{shutil.which("env")}" -0'
    return subprocess.run([*argv, "-c", line], env=environ, capture_output=True, timeout=30, check=False)


def read(output: bytes) -> dict[str, str]:
    pairs = [pair.split("=", 1) for pair in output.decode().split("\0") if pair]
    return {name: value for name, value in pairs if name not in OWN}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("options", ["", "set -eu"])
def test_sourcing_gives_what_apply_gives(tmp_path: Path, shell: str, options: str) -> None:
    launch = launched(tmp_path)
    environ = {**ENVIRON, "PATH": "/usr/bin:/bin"}
    script = tmp_path / "env.sh"
    script.write_text(launch.shell())
    done = sourced(shell, script, environ, options=options)
    assert done.stderr == b""
    assert read(done.stdout) == launch.apply(environ)
    assert (tmp_path / "scratch" / "r d").is_dir()


@pytest.mark.parametrize("shell", SHELLS)
def test_sourcing_twice_is_sourcing_once(tmp_path: Path, shell: str) -> None:
    launch = launched(tmp_path)
    script = tmp_path / "env.sh"
    script.write_text(launch.shell() * 2)
    environ = {**ENVIRON, "PATH": "/usr/bin:/bin"}
    assert read(sourced(shell, script, environ).stdout) == launch.apply(environ)


def test_sourcing_leaves_no_names_of_ours_behind(tmp_path: Path) -> None:
    script = tmp_path / "env.sh"
    script.write_text(launched(tmp_path).shell() + "set\n")
    assert b"_envsmith" not in sourced("sh", script, dict(ENVIRON, PATH="/usr/bin:/bin")).stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_a_required_variable_that_is_missing_stops_the_shell_too(tmp_path: Path, shell: str) -> None:
    launch = launched(tmp_path, LaunchTable(require=("VENDOR_HOME",)))
    script = tmp_path / "env.sh"
    script.write_text(launch.shell())
    done = sourced(shell, script, {"PATH": "/usr/bin:/bin"})
    assert done.returncode != 0
    assert b"VENDOR_HOME" in done.stderr
    with pytest.raises(InputError):
        launch.apply({})
    assert sourced(shell, script, {"PATH": "/usr/bin:/bin", "VENDOR_HOME": "/v"}).returncode == 0


@pytest.mark.parametrize("shell", SHELLS)
def test_a_profile_is_sourced_first(tmp_path: Path, shell: str) -> None:
    profile = tmp_path / "vendor env.sh"
    profile.write_text("export LD_LIBRARY_PATH=/vendor/lib PYTHONPATH=/vendor/py\n")
    table = LaunchTable(profile=str(profile), prepend={"LD_LIBRARY_PATH": "/ours"}, require=("LD_LIBRARY_PATH",))
    script = tmp_path / "env.sh"
    script.write_text(launched(tmp_path, table).shell())
    found = read(sourced(shell, script, {"PATH": "/usr/bin:/bin"}).stdout)
    assert found["LD_LIBRARY_PATH"] == "/ours:/vendor/lib"
    assert "PYTHONPATH" not in found
