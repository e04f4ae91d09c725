"""Real children of a real environment: spawn, fork, a launcher, Ray; nothing of them is left afterwards."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envsmith.checks.contexts import Intended, check_contexts
from envsmith.checks.expected import Expected
from envsmith.checks.maps import Surroundings, check_level_maps, shipped_libraries
from envsmith.commands.launching import process_environment, resolved, table_from
from envsmith.launch import LaunchEnvironment
from envsmith.probe import Request
from envsmith.probe.contexts import CHAIN, Chain, libcuda_answer, walk_chain
from tests.integration.test_probe import OLD
from tests.support.project import envsmith

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
#: A launcher of the same manners as torchrun: ranks in sessions of their own, told who they are by variables.
TORCHRUN = """\
import os, subprocess, sys
at = next(n for n, word in enumerate(sys.argv) if word.endswith("chain.py"))
def start(rank):
    env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), OMP_NUM_THREADS="1")
    return subprocess.Popen([sys.executable, "-u", *sys.argv[at:]], env=env, start_new_session=True)
sys.exit(max(child.wait() for child in [start(0), start(1)]))
"""


class Lab:
    """A virtual environment with a package and a launcher, and the launch environment that fits it."""

    def __init__(self, folder: Path) -> None:
        self.dir = folder / "env"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.dir], check=True)
        self.packages = self.dir / f"lib/python{VERSION}/site-packages"
        self.write("torch/__init__.py", "__version__ = '2.10.0'\n")
        self.write("torch-2.10.0.dist-info/METADATA", "Name: torch\nVersion: 2.10.0\nRequires-Dist: numpy\n\n")
        self.torchrun = self.dir / "bin/torchrun"
        self.script(f"#!{self.dir}/bin/python\n{TORCHRUN}")
        launch = LaunchEnvironment(
            unset=("PYTHONPATH", "PYTORCH_CUDA_ALLOC_CONF"),
            set=(("PYTHONNOUSERSITE", "1"), ("PYTORCH_ALLOC_CONF", "expandable_segments:False")),
            prepend=(("PATH", f"{self.dir}/bin"),),
            require=(),
            directories=(),
            profile=None,
        )
        self.intended = Intended(launch=launch)

    def write(self, name: str, text: str) -> None:
        path = self.packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def script(self, text: str) -> None:
        self.torchrun.write_text(text)
        self.torchrun.chmod(0o755)

    def walk(self, *contexts: str, imports: tuple[str, ...] = (), timeout_s: float = 60) -> Chain:
        request = Request(locate=("torch", "json"), imports=imports, environ_names=self.intended.watched)
        env = self.intended.launch.apply(dict(os.environ))
        python = self.dir / "bin/python"
        return walk_chain(python, contexts, request, env=env, kept=self.intended.kept, timeout_s=timeout_s)

    def kinds(self, chain: Chain) -> list[tuple[str, str]]:
        return [(f.kind, f.subject) for f in check_contexts(self.intended, chain.levels, chain.unstarted)]


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """The lab; whatever a walk leaves behind fails its test."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    yield Lab(tmp_path)
    assert list(scratch.iterdir()) == []
    assert alive(str(scratch)) == []
    assert not list((tmp_path / "env").rglob("*.pyc"))


def alive(word: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                said = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if word.encode() + b"/envsmith-chain" in said and state != "Z":
                found.append(f"{entry.name}: {said[:200]!r}")
    return found


# -- the payload as a text --------------------------------------------------------------------------------------------


def test_the_payload_keeps_to_its_oldest_python() -> None:
    vermin = Path(sys.executable).with_name("vermin")
    if not vermin.exists():
        pytest.skip("vermin is not installed beside this Python")
    done = subprocess.run([vermin, "-t=3.8-", CHAIN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_at_the_top_the_payload_imports_only_the_standard_library() -> None:
    tree = ast.parse(CHAIN.read_text())
    top = [name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names]
    inside = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names} - set(top)
    assert set(top) == {"sys", "io", "json", "os"}
    assert inside == {"ctypes", "importlib", "multiprocessing", "ray", "subprocess"}


@pytest.mark.skipif(not OLD, reason="no interpreter older than 3.8 here")
@pytest.mark.parametrize("python", OLD)
def test_older_interpreters_are_refused(python: str) -> None:
    done = subprocess.run([python, CHAIN, "child", "x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (79, "envsmith-probe: python too old\n")


# -- children that are well -------------------------------------------------------------------------------------------


def test_children_of_a_clean_env_are_silent_and_report_what_they_import(lab: Lab) -> None:
    chain = lab.walk("spawn", "fork", "torchrun", imports=("torch", "sqlite3", "nosuch"))

    assert lab.kinds(chain) == []
    names = [(level.name, level.parent) for level in chain.levels]
    children = ("spawn", "fork", "torchrun[0]", "torchrun[1]")
    assert names == [("launched", None), *((name, "launched") for name in children)]
    assert set(chain.seconds) == {"launched", "spawn", "fork", "torchrun"}
    for level in chain.levels:
        facts = level.facts
        assert facts.faults == ()
        assert facts.context == level.name
        assert facts.imports["torch"].version == "2.10.0"
        assert facts.imports["nosuch"].error_type == "ModuleNotFoundError"
        assert facts.modules["torch"].origin == str(lab.packages / "torch/__init__.py")
        assert any("sqlite3" in mapped.path for mapped in facts.maps)
        assert [(one.name, one.version) for one in facts.distributions] == [("torch", "2.10.0")]
    ranks = [level.facts.environ for level in chain.levels[3:]]
    assert all(environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:False" for environ in ranks)


def test_a_package_that_is_not_there_is_said_and_not_started(lab: Lab) -> None:
    chain = lab.walk("ray", "vllm")
    assert lab.kinds(chain) == [("context-skipped", "ray"), ("context-skipped", "vllm")]
    assert set(chain.seconds) == {"launched"}


def test_what_the_launch_table_sets_stays_and_the_rest_is_thrown_away(lab: Lab, tmp_path: Path) -> None:
    lab.write("home.py", "import os\n__version__ = os.environ['HOME'] + ' ' + os.environ['TMPDIR']\n")
    launch = replace(lab.intended.launch, set=(*lab.intended.launch.set, ("TMPDIR", str(tmp_path / "tmp"))))
    lab.intended = replace(lab.intended, launch=launch)
    chain = lab.walk("spawn", imports=("home",))
    assert lab.kinds(chain) == []
    for level in chain.levels:
        home, tmp = str(level.facts.imports["home"].version).split()
        assert home != os.environ["HOME"]
        assert tmp == str(tmp_path / "tmp")


# -- planted faults ---------------------------------------------------------------------------------------------------


def test_a_hook_that_acts_in_children_only_is_found_there(lab: Lab, tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    (old / "torch.py").write_text("")
    lab.write(
        "sitecustomize.py",
        "import os, sys\n"
        "if os.environ.get('GENERATION'):\n"
        f"    os.environ['PYTHONPATH'] = {str(old)!r}\n"
        "os.environ['GENERATION'] = '1'\n",
    )
    lab.write("later.py", f"import sys\nsys.path.insert(0, {str(old)!r})\n")
    assert lab.kinds(lab.walk("spawn")) == [("context-variable", "PYTHONPATH")]
    assert lab.kinds(lab.walk("fork", imports=("later",))) == [("context-path", str(old)), ("context-module", "torch")]


def test_a_launcher_that_writes_an_allocator_setting_is_found(lab: Lab) -> None:
    """facts/symptoms.md D37."""
    lab.script(
        f"#!{lab.dir}/bin/python\nimport os\n"
        f"os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'\n{TORCHRUN}"
    )
    chain = lab.walk("torchrun")
    assert lab.kinds(chain) == [("context-variable", "PYTORCH_CUDA_ALLOC_CONF")]


def test_a_launcher_of_another_interpreter_is_found(lab: Lab) -> None:
    """facts/symptoms.md D18, D19."""
    lab.script(f"#!{Path(sys.executable).resolve()}\n{TORCHRUN}")
    found = lab.kinds(lab.walk("torchrun"))
    assert ("context-interpreter", "prefix") in found
    assert ("context-module", "torch") in found


def test_a_context_that_cannot_start_says_its_last_words(lab: Lab) -> None:
    lab.script(f"#!{lab.dir}/bin/python\nraise SystemExit('No module named llamafactory')\n")
    chain = lab.walk("torchrun", "spawn")
    (gone,) = chain.unstarted
    assert (gone.context, gone.skipped) == ("torchrun", False)
    assert "No module named llamafactory" in gone.reason
    assert [level.name for level in chain.levels] == ["launched", "spawn"]
    lab.torchrun.unlink()
    assert "not on the PATH" in lab.walk("torchrun").unstarted[0].reason


def test_a_context_that_hangs_ends_in_time_with_all_its_sessions(lab: Lab) -> None:
    """The children of launchers live in sessions of their own and would hold our pipes."""
    lab.script(
        f"#!{lab.dir}/bin/python\nimport subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print('waiting for node 7', flush=True)\ntime.sleep(600)\n"
    )
    started = time.monotonic()
    chain = lab.walk("torchrun", timeout_s=4)
    assert time.monotonic() - started < 30
    assert "did not end within 4 s" in chain.unstarted[0].reason
    assert "waiting for node 7" in chain.unstarted[0].reason


def test_a_child_that_dies_of_a_signal_is_a_failed_context(lab: Lab) -> None:
    lab.write("deadly.py", "import multiprocessing, os\nif multiprocessing.parent_process(): os.abort()\n")
    chain = lab.walk("spawn", imports=("deadly",))
    (gone,) = chain.unstarted
    assert "ended with exit code -6" in gone.reason


def test_an_env_that_cannot_be_launched_is_a_failed_context(lab: Lab) -> None:
    (lab.dir / "bin/python").unlink()
    chain = lab.walk("spawn")
    assert lab.kinds(chain) == [("context-failed", "launched")]


def test_words_on_stdout_and_huge_ones_do_not_reach_the_answers(lab: Lab) -> None:
    lab.write("loud.py", "print('{' * 10_000_000)\n")
    chain = lab.walk("spawn", "fork", imports=("loud",))
    assert lab.kinds(chain) == []


# -- the driver's library ---------------------------------------------------------------------------------------------


def test_the_drivers_library_is_asked_in_a_fresh_process(lab: Lab, tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here")
    folder = tmp_path / "compat"
    folder.mkdir()
    source = tmp_path / "cuda.c"
    source.write_text(
        "int cuInit(unsigned f) { return 803; }\nint cuDriverGetVersion(int *v) { *v = 12090; return 0; }\n"
    )
    library = folder / "libcuda.so.575.57.08"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    (folder / "libcuda.so.1").symlink_to(library.name)
    env = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(folder)}

    answer = libcuda_answer(lab.dir / "bin/python", env)
    assert (answer.loaded, answer.error, answer.init, answer.driver_version) == (True, None, 803, 12090)
    assert (answer.path, answer.version) == (str(library.resolve()), "575.57.08")

    source.write_text("#include <stdlib.h>\nint cuInit(unsigned f) { abort(); }\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    answer = libcuda_answer(lab.dir / "bin/python", env)
    assert (answer.loaded, answer.init) == (True, None)
    assert "-6" in str(answer.error)


def test_a_missing_drivers_library_is_a_value(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_text("no library")
    answer = libcuda_answer(lab.dir / "bin/python", {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": str(tmp_path)})
    assert answer.loaded is False
    assert "libcuda.so.1" in str(answer.error)


# -- a real Ray -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray_env(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default stack, which has Ray and pyarrow, built by the program."""
    folder = tmp_path_factory.mktemp("quickstart")
    env = {"ENVSMITH_HOME": str(folder / "store"), "ENVSMITH_ROOT": str(folder / "envs"), "HOME": str(folder)}
    said = envsmith("build", "--json", cwd=folder, env=env, timeout_s=600)
    if said.code == 4 and "no-interpreter" in said.codes:
        pytest.skip("no Python 3.11 on this machine")
    assert said.code == 0, said.out + said.err
    return (folder / "envs/quickstart-worker/current").resolve()


@pytest.mark.network
@pytest.mark.big
def test_real_ray_actors_are_silent_and_planted_faults_are_found(ray_env: Path, tmp_path: Path) -> None:
    table = table_from(json.loads((ray_env / "envsmith.json").read_text())["launch"])
    launch = resolved(table, ray_env, dict(os.environ))
    intended = Intended(launch=launch, forwarded=table.forwarded)
    env = process_environment(launch, dict(os.environ))
    packages = ray_env / "lib/python3.11/site-packages"
    around = Surroundings(shipped=shipped_libraries(str(p.relative_to(ray_env)) for p in packages.rglob("*.so*")))
    view = Expected(env_dir=str(ray_env), site_packages=str(packages), python_version="3.11")

    def walk(runtime_env: dict[str, str]) -> tuple[Chain, list[tuple[str, str]]]:
        request = Request(locate=("ray", "pyarrow", "pytest"), imports=("pyarrow",), environ_names=intended.watched)
        chain = walk_chain(
            ray_env / "bin/python", ("ray",), request, env=env, kept=intended.kept, runtime_env=runtime_env
        )
        found = [
            *check_contexts(intended, chain.levels, chain.unstarted),
            *check_level_maps(view, chain.levels, around),
        ]
        return chain, [(finding.kind, finding.subject) for finding in found]

    chain, found = walk({})
    assert found == []
    assert [level.name for level in chain.levels] == ["launched", "ray", "ray-second", "ray-child"]

    old, libs = tmp_path / "old", tmp_path / "libs"
    old.mkdir()
    (old / "pytest.py").write_text("")
    libs.mkdir()
    (arrow,) = packages.glob("pyarrow/libarrow.so.*")
    (libs / arrow.name).write_bytes(arrow.read_bytes() + b"x")
    _, found = walk({"LD_LIBRARY_PATH": str(libs)})
    assert ("context-library", "libarrow") in found
    assert ("library-outside", "libarrow") in found
    _, found = walk({"PYTHONPATH": str(old)})
    assert ("context-variable", "PYTHONPATH") in found
    assert ("context-path", str(old)) in found
    assert ("context-module", "pytest") in found
    assert not [name for name in alive(tempfile.gettempdir()) if "ray" in name]
