"""What is set so that Ray hands variables on: the same from the core and from the lines that a shell sources."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from envsmith.launch import LaunchTable, resolve
from envsmith.rayforward import CLIENT, JOB_CONFIG, OVERRIDE, not_forwarded, ray_variables

SHELLS = [shell for shell in ("sh", "bash", "zsh", "busybox") if shutil.which(shell)]
NAMES = ("A", "B", "MISSING", "EXPANDED", "BRACED", "EMPTY")
VALUES = {"A": 'it\'s "a"\n\tb\\', "B": "grüße 你 $ $$ 1$", "EXPANDED": "x$HOME", "BRACED": "${}", "EMPTY": ""}


@pytest.fixture
def env(tmp_path: Path) -> Path:
    """An environment that has a Python, and Ray's command."""
    folder = tmp_path / "e nv"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "bin" / "ray").touch()
    return folder


def sourced(shell: str, env: Path, names: tuple[str, ...], environ: dict[str, str]) -> dict[str, str]:
    launch = resolve(LaunchTable(forward=names), env_dir=str(env), scratch="/tmp/none")
    script = env.parent / "env.sh"
    script.write_text(f'set -eu\n{launch.shell()}\n"{shutil.which("env")}" -0 >"{env.parent}/out"\n')
    argv = [shutil.which(shell) or shell, *(["sh"] if shell == "busybox" else [])]
    subprocess.run([*argv, script], env={**environ, "PATH": "/usr/bin:/bin"}, check=True, timeout=60)
    raw = (env.parent / "out").read_bytes().decode(errors="surrogateescape")
    pairs = dict(pair.split("=", 1) for pair in raw.split("\0") if pair)
    return {name: pairs[name] for name in (CLIENT, JOB_CONFIG, OVERRIDE) if name in pairs}


BEFORE = {
    "nothing": {},
    "a job's own": {
        JOB_CONFIG: '{"runtime_env": {"working_dir": "gcs://x.zip", "env_vars": {"A": "job", "C": "3"}}}',
        OVERRIDE: "0",
    },
    "nulls": {JOB_CONFIG: '{"runtime_env": {"env_vars": null}}', CLIENT: ""},
    "malformed": {JOB_CONFIG: "{", CLIENT: "[]"},
}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("before", list(BEFORE))
def test_the_shell_sets_what_the_core_sets(env: Path, shell: str, before: str) -> None:
    environ = {**VALUES, **BEFORE[before]}
    found = sourced(shell, env, NAMES, environ)
    assert found == {**BEFORE[before], **ray_variables(NAMES, environ)}
    if before != "malformed":
        job = json.loads(found[JOB_CONFIG])["runtime_env"]
        assert {"A", "B", "EMPTY"} <= job["env_vars"].keys()
        assert job["env_vars"]["A"] == VALUES["A"]


def test_what_ray_would_change_is_not_handed_on(env: Path) -> None:
    environ = {**VALUES, "BYTES": "a\udcff"}
    assert not_forwarded((*NAMES, "BYTES"), environ) == ("EXPANDED", "BRACED", "BYTES")
    assert json.loads(ray_variables(NAMES, environ)[CLIENT]) == {
        "env_vars": {name: VALUES[name] for name in ("A", "B", "EMPTY")}
    }


def test_a_job_keeps_what_the_recipe_does_not_name(env: Path) -> None:
    job = json.loads(ray_variables(NAMES, {**VALUES, **BEFORE["a job's own"]})[JOB_CONFIG])
    assert job["runtime_env"]["working_dir"] == "gcs://x.zip"
    assert job["runtime_env"]["env_vars"]["C"] == "3"
    assert job["runtime_env"]["env_vars"]["A"] == VALUES["A"]


def test_without_ray_or_without_names_nothing_is_set(env: Path) -> None:
    assert sourced("sh", env, (), VALUES) == {}
    assert ray_variables((), VALUES) == ray_variables(("MISSING",), VALUES) == {}
    (env / "bin" / "ray").unlink()
    assert sourced("sh", env, NAMES, VALUES) == {}
