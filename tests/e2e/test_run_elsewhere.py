"""What `run --as` writes, from a real env and a real bundle: installed once, and the environment that `run` gives."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.test_install_sh import with_python
from tests.support.bundlekit import Kit
from tests.support.elsewhere import expanded, stand_in_srun
from tests.support.project import Project, envsmith

pytest_plugins = ("tests.e2e.bundle_fixtures",)

OWN = {"PWD", "OLDPWD", "SHLVL", "_"}


#: Writes its environment to $OUT: stdout has the words of the installer too.
WRITES = ("sh", "-c", 'env -0 >"$OUT"')


def written(out: Path) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in out.read_text().split("\0") if pair)
    return {name: value for name, _, value in pairs if name not in {*OWN, "OUT"}}


def of_run(root: Path, folder: Path, environ: dict[str, str]) -> dict[str, str]:
    """What `run` gives a process in the same situation."""
    argv = [sys.executable, "-m", "envsmith", "run", "demo/app", "--root", root, "--", *WRITES]
    subprocess.run(argv, cwd=folder, env={**environ, "OUT": str(folder / "run")}, check=True, timeout=300)
    return written(folder / "run")


def test_slurm_and_kubernetes_install_once_and_give_the_environment_of_run(kit: Kit, tmp_path: Path) -> None:
    root, scratch = tmp_path / "en vs", tmp_path / "s"
    words = ("run", "demo/app", "--root", kit.built.envs, "--bundle", kit.lean.path, "--at", root)
    said = envsmith(*words, "--as", "slurm", "--json", "--", *WRITES, cwd=tmp_path)
    assert said.code == 0, said.err
    data = said.json["data"]
    assert (data["as"], data["root"], data["digest"]) == ("slurm", str(root), kit.lean.digest)
    script = tmp_path / "job.sh"
    script.write_text(data["snippet"])
    start = with_python(HOME=str(tmp_path / "home"), ENVSMITH_SCRATCH=str(scratch), PYTHONPATH="/old", DEMO_MODE="off")
    on_nodes = {**start, "PATH": f"{stand_in_srun(tmp_path)}:{start['PATH']}"}
    jobs = [
        subprocess.Popen(
            ["sh", script], env={**on_nodes, "OUT": f"{tmp_path}/{n}"}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for n in range(2)
    ]
    ended = [[stream.decode() for stream in job.communicate(timeout=600)] for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], ended
    # one of them installed and said so; the other found the env in place
    assert sorted(out.count("bundle: sha256:") for out, _ in ended) == [0, 1]
    assert written(tmp_path / "0") == written(tmp_path / "1") == of_run(root, tmp_path, on_nodes)

    job = yaml.safe_load(envsmith(*words, "--as", "k8s", "--", *WRITES, cwd=tmp_path).out)
    pod = job["spec"]["template"]["spec"]
    (install,), (container,) = pod["initContainers"], pod["containers"]
    again = subprocess.run(
        [*install["command"], expanded(install["args"][0], {})], env=start, capture_output=True, text=True, check=True
    )
    assert again.stdout == ""
    variables = {one["name"]: expanded(one["value"], {}) for one in container["env"]}
    assert variables["DEMO_MODE"] == "on"
    argv = [expanded(word, variables) for word in (*container["command"], *container["args"])]
    subprocess.run(argv, env={**start, **variables, "OUT": f"{tmp_path}/pod"}, check=True)
    assert written(tmp_path / "pod") == of_run(root, tmp_path, start)


def test_a_modulefile_is_that_of_the_env(built: Project) -> None:
    said = envsmith("run", "demo/app", "--root", built.envs, "--as", "modulefile", cwd=built.folder)
    assert said.code == 0
    assert said.out == (built.current / "modulefile").read_text()


#: Sleeps under a raylet's name, with a raylet's words.
RAYLET = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(600)"


@pytest.fixture
def raylet(built: Project, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that /proc shows as the raylet of a cluster which was started from a bare shell."""
    program, up = tmp_path / "raylet", tmp_path / "up"
    program.symlink_to(sys.executable)
    worker = f"{built.current.resolve()}/bin/python /x/setup_worker.py --gcs-address=127.0.0.1:47111"
    argv = ["raylet", "-S", "-c", RAYLET, up, f"--python_worker_command={worker}", "--gcs-address=127.0.0.1:47111"]
    child = subprocess.Popen(argv, executable=program, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": "/old"})
    deadline = time.monotonic() + 60
    while not up.exists():
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield child
    child.kill()
    child.wait()


def test_a_ray_of_another_environment_is_refused_and_rays_own_command_is_not(
    built: Project, raylet: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """Case D20 on real processes."""
    bin_dir = built.current / "bin"
    temporary = tmp_path / "tmp"
    (temporary / "ray").mkdir(parents=True)

    def run(*words: str, **env: str) -> tuple[int, list[str], str]:
        own = {"RAY_TMPDIR": str(temporary), **env}
        said = envsmith("run", "demo/app", "--root", built.envs, "--json", *words, cwd=built.folder, env=own)
        return said.code, said.codes if said.out.startswith("{") else [], said.out

    joins = {"RAY_ADDRESS": "127.0.0.1:47111"}
    assert run("--", "echo", "ran", **joins) == (0, [], "ran\n"), "an env without Ray starts no driver"
    (bin_dir / "ray").write_text('#!/bin/sh\necho ray "$@"\n')
    (bin_dir / "ray").chmod(0o755)
    code, codes, out = run("--", "echo", "ran", **joins)
    assert (code, codes) == (1, ["raylet-differs"])
    problem = json.loads(out)["errors"][0]
    assert f"raylet {raylet.pid}," in problem["where"]
    assert "`DEMO_MODE`, `PYTHONPATH`" in problem["message"]
    assert f"{built.current.resolve()}/bin/ray stop" in problem["hint"]
    assert run("--", "ray", "stop", **joins) == (0, [], "ray stop\n")
    assert run("--any-raylet", "--", "echo", "ran", **joins) == (0, [], "ran\n")
    assert run("--", "echo", "ran") == (0, [], "ran\n"), "another cluster is nobody's business"
    (temporary / "ray" / "ray_current_cluster").write_text("127.0.0.1:47111")
    assert run("--", "echo", "ran")[:2] == (1, ["raylet-differs"])
    assert run("--", "echo", "ran", RAY_ADDRESS="local") == (0, [], "ran\n")
    raylet.kill()
    raylet.wait()
    assert run("--", "echo", "ran", **joins) == (0, [], "ran\n"), "a cluster that is gone is no cluster"


def test_ray_variables_are_set_in_an_env_with_ray(built: Project) -> None:
    (built.current / "bin" / "ray").touch()
    code = "import json, os; print(json.loads(os.environ['RAY_JOB_CONFIG_JSON_ENV_VAR'])['runtime_env'])"
    said = envsmith("run", "demo/app", "--root", built.envs, "--", "python", "-c", code, cwd=built.folder)
    assert (said.code, said.out) == (0, "{'env_vars': {'DEMO_MODE': 'on'}}\n")
