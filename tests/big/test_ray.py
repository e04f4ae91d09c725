"""A real Ray: forwarded variables reach its workers, and a raylet of another environment is refused.

ENVSMITH_TEST_ENV=a100/rl ENVSMITH_ROOT=… pytest --run-big tests/big/test_ray.py
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envsmith.tools.procfs import kill_marked

# Read when the module is loaded: every test runs as a stranger, without the variables of whoever runs it.
ENV = os.environ.get("ENVSMITH_TEST_ENV", "")
ROOT = os.environ.get("ENVSMITH_ROOT", ".envsmith/envs")
CURRENT = Path(ROOT).absolute() / ENV.replace("/", "-") / "current"

pytestmark = [
    pytest.mark.big,
    pytest.mark.skipif(not ENV, reason="ENVSMITH_TEST_ENV names no env"),
    pytest.mark.skipif(bool(ENV) and not (CURRENT / "bin" / "ray").exists(), reason="the env has no Ray"),
]

DRIVER = """\
import json, os, sys
import ray

@ray.remote(num_cpus=0)
class Actor:
    def see(self, names):
        return {name: os.environ.get(name) for name in names}

if __name__ == "__main__":
    names, runtime_env = json.loads(sys.argv[1])
    ray.init(logging_level="ERROR", log_to_driver=False, **({"runtime_env": runtime_env} if runtime_env else {}))
    print(json.dumps(ray.get(Actor.remote().see.remote(names))))
"""


class Cluster:
    """A head that is started on a port of its own, in a short folder; no `ray stop`, which ends those of others too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "driver.py").write_text(DRIVER)
        self.bare = {
            "PATH": "/usr/bin:/bin", "HOME": str(folder), "ENVSMITH_SCRATCH": str(folder), "RAY_TMPDIR": f"{folder}/r",
            "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            self.port = 20000 + one.getsockname()[1] % 10000

    def start(self, *launcher: str) -> None:
        words = ("start", "--head", f"--port={self.port}", "--num-cpus=1", "--include-dashboard=false")
        argv = [*(launcher or (str(CURRENT / "bin" / "ray"),)), *words, "--disable-usage-stats"]
        subprocess.run(argv, env=self.bare, check=True, capture_output=True, timeout=300)

    def run(
        self, *options: str, words: tuple[str, ...] = (), env: dict[str, str] | None = None
    ) -> tuple[int, str, str]:
        argv = [
            sys.executable,
            "-m",
            "envsmith",
            "run",
            ENV,
            "--root",
            str(CURRENT.parent.parent),
            *options,
            "--",
            *words,
        ]
        done = subprocess.run(
            argv, env={**self.bare, **(env or {})}, capture_output=True, text=True, timeout=300, check=False
        )
        return done.returncode, done.stdout, done.stderr

    def see(self, names: list[str], runtime_env: object = None, *options: str) -> dict[str, str | None]:
        words = ("python", f"{self.folder}/driver.py", json.dumps([names, runtime_env]))
        code, out, err = self.run(*options, words=words)
        assert code == 0, err
        seen: dict[str, str | None] = json.loads(out.splitlines()[-1])
        return seen


@pytest.fixture
def cluster(short_dir: Path) -> Iterator[Cluster]:
    yield Cluster(short_dir)
    kill_marked(str(short_dir))


def forwarded() -> dict[str, str]:
    launch = json.loads((CURRENT / "envsmith.json").read_text())["launch"]
    return {name: launch["set"][name] for name in launch["forward"] if name in launch["set"]}


def test_a_raylet_from_a_bare_shell_is_refused_and_its_workers_get_the_variables_anyway(cluster: Cluster) -> None:
    cluster.start()
    expected = forwarded()
    assert expected, "the env of this test forwards something"
    code, out, err = cluster.run(words=("python", "-c", "print('started')"))
    assert (code, out) == (1, "")
    assert "raylet-differs" in err
    assert all(f"`{name}`" in err for name in expected if name != "RAY_USAGE_STATS_ENABLED")
    assert cluster.run(words=("ray", "--version"))[0] == 0
    assert cluster.run(words=("echo", "x"), env={"RAY_ADDRESS": "local"})[:2] == (0, "x\n")
    assert cluster.see(list(expected), None, "--any-raylet") == expected
    first = next(iter(expected))
    users = {"env_vars": {first: "the user's", "MINE": "1"}}
    assert cluster.see([*expected, "MINE"], users, "--any-raylet") == {**expected, first: "the user's", "MINE": "1"}


def test_a_raylet_that_was_started_in_the_env_is_joined(cluster: Cluster) -> None:
    code, _, err = cluster.run(
        words=("ray", "start", "--head", f"--port={cluster.port}", "--num-cpus=1", "--include-dashboard=false")
    )
    assert code == 0, err
    assert cluster.see(list(forwarded())) == forwarded()
    assert cluster.see(["MINE"], {"env_vars": {"MINE": "1"}}) == {"MINE": "1"}


def test_a_driver_that_starts_its_own_ray_has_the_variables_too(cluster: Cluster) -> None:
    assert cluster.see(list(forwarded())) == forwarded()
