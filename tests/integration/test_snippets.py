"""The Slurm script, run by a shell with a stand-in for `srun`, and the Kubernetes Job, read as Kubernetes reads it."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from envsmith.launch import LaunchTable, resolve
from envsmith.snippets import Job, kubernetes, not_text, slurm
from tests.support.elsewhere import expanded, stand_in_srun

HOSTILE = "a b'c\"d$HOME`id`\\e\n*;#!~{}[]$(HOME) $$(x) $$ \t"
TABLE = LaunchTable(
    unset=("GONE",),
    set={"HOSTILE": HOSTILE, "WORDS": "grüße 你好 😀 \x7f\x85", "TRUE": "yes", "NUMBER": "1", "EMPTY": ""},
    prepend={"LD_LIBRARY_PATH": "/new lib"},
    short_dirs={"SHORT": "{scratch}/r d"},
)
ENVIRON = {"PATH": "/usr/bin:/bin", "GONE": "x", "LD_LIBRARY_PATH": "/old", "HOME": "/h"}
OWN = {"PWD", "OLDPWD", "SHLVL", "_"}


def job(folder: Path, *command: str, table: LaunchTable = TABLE, bundle: str | None = None) -> Job:
    root = f"{folder}/e nvs"
    launch = resolve(table, env_dir=f"{root}/demo-app/0123456789ab", scratch=f"{folder}/scratch")
    return Job(stack="demo", env="app", launch=launch, root=root, bundle=bundle, digest=None, command=command)


def read(raw: bytes) -> dict[str, str]:
    pairs = (pair.split("=", 1) for pair in raw.decode().split("\0") if pair)
    return {name: value for name, value in pairs if name not in OWN}


def run_script(text: str, folder: Path, environ: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[bytes]:
    script = folder / "job.sh"
    script.write_text(text)
    path = f"{stand_in_srun(folder)}:{environ['PATH']}"
    return subprocess.run(
        ["sh", script, *words], env={**environ, "PATH": path}, capture_output=True, timeout=60, check=False
    )


@pytest.mark.parametrize("given", [True, False])
def test_a_task_of_slurm_gets_the_environment_and_the_words(tmp_path: Path, given: bool) -> None:
    command = ("/usr/bin/env", "-0", "A='1 $HOME' \\", "B=--export=NONE")
    one = job(tmp_path, *(command if given else ()))
    done = run_script(slurm(one), tmp_path, ENVIRON, *(() if given else command))
    assert done.stderr == b""
    seen = read(done.stdout)
    assert (seen.pop("A"), seen.pop("B")) == ("'1 $HOME' \\", "--export=NONE")
    path = f"{tmp_path}/stand-in:/usr/bin:/bin"
    assert seen == one.launch.apply({**ENVIRON, "PATH": path})
    assert (tmp_path / "scratch" / "r d").is_dir()
    assert (tmp_path / "srun.words").read_text().split() == ["--export=ALL", "--output=demo-app-%j-%N-%t.out"]


def test_what_sbatch_reads_stands_before_the_first_command(tmp_path: Path) -> None:
    lines = slurm(job(tmp_path, "x")).splitlines()
    assert lines[0] == "#!/bin/sh"
    asked = [line for line in lines if line.startswith("#SBATCH")]
    assert asked == lines[1 : 1 + len(asked)]
    assert "#SBATCH --job-name=demo-app" in asked


def test_a_required_variable_and_an_exit_code_reach_slurm(tmp_path: Path) -> None:
    assert run_script(slurm(job(tmp_path, "sh", "-c", "exit 7")), tmp_path, ENVIRON).returncode == 7
    missing = run_script(slurm(job(tmp_path, "true", table=LaunchTable(require=("VENDOR",)))), tmp_path, ENVIRON)
    assert missing.returncode != 0
    assert b"VENDOR" in missing.stderr


def test_kubernetes_reads_what_was_meant(tmp_path: Path) -> None:
    words = ("python", "-c", HOSTILE, "")
    one = job(tmp_path, *words, bundle="/bundle/$(x) it's.tar")
    found = yaml.safe_load(kubernetes(one))
    pod = found["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {entry["name"]: entry["value"] for entry in container["env"]}
    assert all(isinstance(value, str) for value in variables.values())
    expected = {**dict(one.launch.set), "VIRTUAL_ENV": one.current}
    assert {name: expanded(value, variables) for name, value in variables.items()} == expected
    assert tuple(expanded(word, variables) for word in container["args"]) == words
    assert expanded(container["command"][2], variables) == f". '{one.current}/env.sh'\nexec \"$@\""
    (install,) = pod["initContainers"]
    script = expanded(install["args"][0], {})
    assert "bundle='/bundle/$(x) it'\"'\"'s.tar'" in script
    assert "$(mktemp -d)" in script
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
    mounts = {mount["name"]: mount["mountPath"] for mount in install["volumeMounts"]}
    assert mounts == {"envs": one.root, "bundle": "/bundle"}
    assert {volume["name"] for volume in pod["volumes"]} == set(mounts)


def test_a_scratch_folder_of_this_user_is_in_no_pod(tmp_path: Path) -> None:
    launch = resolve(TABLE, env_dir=f"{tmp_path}/demo-app/0", scratch="/tmp/es4711")
    one = Job(stack="demo", env="app", launch=launch, root="/envs", bundle="/b/x", digest=None, command=())
    assert "4711" not in kubernetes(one) + slurm(one)


@pytest.mark.parametrize("seed", range(20))
def test_kubernetes_gives_back_any_mixture_of_its_own_signs(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    values = {f"V{n}": "".join(chance.choices("$$$()V1 x\n'\"", k=chance.randint(0, 9))) for n in range(50)}
    found = yaml.safe_load(kubernetes(job(tmp_path, table=LaunchTable(set=values), bundle="/b/x")))
    variables = {entry["name"]: entry["value"] for entry in found["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert {name: expanded(variables[name], variables) for name in values} == values


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    assert not_text(job(tmp_path, "x\udcff", table=LaunchTable(set={"A": "\udcff"}))) == ("A", "x\udcff")
    assert not_text(job(tmp_path, "x")) == ()


def test_a_bundle_that_stands_is_not_unpacked_again(tmp_path: Path) -> None:
    """The install lines alone, with a bundle whose installer counts."""
    bundle = tmp_path / "b"
    bundle.mkdir()
    digest = f"sha256:{'0' * 64}"
    (bundle / "install.sh").write_text(
        f'set -e; echo "$*" >>"{tmp_path}/calls"; sleep 0.3; mkdir -p "$2/demo-app/current"\n'
        f'echo "{digest}" >"$2/demo-app/bundle.json"; touch "$2/demo-app/current/envsmith.json"\n'
        ': >"$2/demo-app/current/env.sh"\n'
    )
    subprocess.run(["tar", "-cf", tmp_path / "b.tar", "-C", bundle, "install.sh"], check=True)
    launch = resolve(LaunchTable(), env_dir="/x", scratch="/s")
    text = slurm(Job(stack="demo", env="app", launch=launch, root=f"{tmp_path}/r 1", bundle=f"{tmp_path}/b.tar",
                     digest=digest, command=("echo", "ran")))  # fmt: skip
    path = f"{stand_in_srun(tmp_path)}:/usr/bin:/bin"
    (tmp_path / "job.sh").write_text(text)
    children = [
        subprocess.Popen(["sh", tmp_path / "job.sh"], env={"PATH": path}, stdout=subprocess.PIPE) for _ in range(4)
    ]
    assert [child.communicate(timeout=60)[0] for child in children] == [b"ran\n"] * 4
    assert (tmp_path / "calls").read_text() == f"--root {tmp_path}/r 1 --env app --expect {digest}\n"
    shutil.rmtree(tmp_path / "r 1")
    (bundle / "install.sh").write_text("exit 5\n")
    broken = slurm(Job(stack="demo", env="app", launch=launch, root=f"{tmp_path}/r 1", bundle=str(bundle),
                       digest=digest, command=("echo", "ran")))  # fmt: skip
    done = run_script(broken, tmp_path, {"PATH": "/usr/bin:/bin"})
    assert (done.returncode, done.stdout) == (5, b"")


PLACES = ("@VARIABLES@", "@WORDS@ @ROOT@", "@NAME@", "@LOCK@ @OPTIONS@ @DIGEST@ @STANDS@ @BUNDLE@")


def test_places_to_be_filled_in_are_no_places_in_what_is_filled_in(tmp_path: Path) -> None:
    table = LaunchTable(set={"PLACES": " ".join(PLACES)})
    read_back = yaml.safe_load(kubernetes(job(tmp_path, *PLACES, table=table, bundle="/b/@VARIABLES@/@ROOT@.tar")))
    pod = read_back["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == list(PLACES)
    assert {"name": "PLACES", "value": " ".join(PLACES)} in container["env"]
    assert "bundle=/b/@VARIABLES@/@ROOT@.tar\n" in pod["initContainers"][0]["args"][0]
    assert run_script(slurm(job(tmp_path, "echo", *PLACES)), tmp_path, ENVIRON).stdout.decode().split("\n")[0] == (
        " ".join(PLACES)
    )


def test_a_path_with_a_place_in_it_runs_nothing(tmp_path: Path) -> None:
    launch = resolve(LaunchTable(), env_dir="/x", scratch="/s")
    bundle = tmp_path / "$(touch PWN1) @LOCK@"
    bundle.mkdir()
    (bundle / "install.sh").write_text('printf "%s\\n" "$@"\nexit 5\n')
    root = f"{tmp_path}/x $y @BUNDLE@ @LOCK@ @STANDS@"
    text = slurm(Job(stack="demo", env="app", launch=launch, root=root, bundle=str(bundle), digest=None,
                     command=("true",)))  # fmt: skip
    done = run_script(text, tmp_path, {"PATH": "/usr/bin:/bin"})
    assert (done.returncode, done.stdout.decode().split("\n")[:2]) == (5, ["--root", root])
    assert not Path("PWN1").exists()
    assert Path(root).is_dir()


def test_a_slurm_script_with_nothing_to_run_says_so_and_installs_nothing(tmp_path: Path) -> None:
    bundle = tmp_path / "b"
    bundle.mkdir()
    (bundle / "install.sh").write_text(f'touch "{tmp_path}/called"\n')
    done = run_script(slurm(job(tmp_path, bundle=str(bundle))), tmp_path, ENVIRON)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"demo-app: there is no command to run" in done.stderr
    assert not (tmp_path / "called").exists()
