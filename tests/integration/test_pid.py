"""Real running processes, looked at from outside: a tree of them, planted faults, and what may not be read."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envsmith.checks.contexts import Intended
from envsmith.checks.expected import Expected
from envsmith.checks.maps import Surroundings
from envsmith.checks.running import check_running
from envsmith.launch import LaunchEnvironment
from envsmith.probe import Request
from envsmith.probe.contexts import replay
from envsmith.running import RunningProcess
from envsmith.tools.procfs import kernel_driver, kill_marked, loader_folders, look_at, read_process

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
#: A parent with one child; both say that they are ready and wait.
TREE = """\
import os, subprocess, sys, time
{first}
if len(sys.argv) > 1:
    env = dict(os.environ)
    {between}
    subprocess.Popen([sys.executable, "-B", sys.argv[0]], env=env)
open("ready.%d" % os.getpid(), "w").close()
time.sleep(600)
"""


class Lab:
    """A virtual environment, its launch environment and programs that run in it."""

    def __init__(self, folder: Path) -> None:
        self.dir, self.cwd = folder / "env", folder / "job"
        self.cwd.mkdir()
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", self.dir], check=True)
        self.packages = self.dir / f"lib/python{VERSION}/site-packages"
        launch = LaunchEnvironment(
            unset=("PYTHONPATH",),
            set=(("PYTHONNOUSERSITE", "1"), ("VIRTUAL_ENV", str(self.dir)), ("DEMO_TOKEN", "hunter2")),
            prepend=(("PATH", f"{self.dir}/bin"),),
            require=(),
            directories=(),
            profile=None,
        )
        self.intended = Intended(launch=launch)
        self.expected = Expected(
            env_dir=str(self.dir),
            site_packages=str(self.packages),
            python_version=VERSION,
            base_prefix=os.path.realpath(sys.base_prefix),
        )
        self.children: list[subprocess.Popen[bytes]] = []

    def start(self, *, first: str = "", between: str = "pass", python: str | None = None) -> int:
        """Start the tree and wait until both stand."""
        (self.cwd / "job.py").write_text(TREE.format(first=first, between=between))
        env = self.intended.launch.apply({"PATH": "/usr/bin:/bin", "HOME": str(self.cwd)})
        argv = [python or str(self.dir / "bin/python"), "-B", "job.py", "parent"]
        child = subprocess.Popen(argv, cwd=self.cwd, env=env, start_new_session=True)
        self.children.append(child)
        wait_until(lambda: len(list(self.cwd.glob("ready.*"))) == 2)
        return child.pid

    def kinds(self, *processes: RunningProcess) -> list[tuple[str, str]]:
        return [(f.kind, f.subject) for f in check_running(self.expected, self.intended, Surroundings(), processes)]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    yield made
    kill_marked(str(tmp_path))
    for child in made.children:
        child.wait(10)


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_tree_of_the_env_is_read_and_silent(lab: Lab) -> None:
    parent, child = look_at(lab.start())

    assert (child.parent, child.uid) == (parent.pid, os.getuid())
    assert parent.argv[1:] == ("-B", "job.py", "parent")
    assert parent.interpreter == str(lab.dir / "bin/python")
    assert parent.executable == os.path.realpath(sys.executable)
    assert parent.cwd == str(lab.cwd)
    assert parent.environ is not None
    assert parent.environ["DEMO_TOKEN"] == "hunter2"
    assert any("libc" in mapped.path for mapped in parent.maps or ())
    assert parent.started_ticks is not None
    assert parent.unreadable == {}
    assert parent.label == f"python job.py ({parent.pid})"
    assert "hunter2" not in repr(parent)
    assert lab.kinds(parent, child) == []


def test_what_a_launcher_does_to_its_child_is_told_at_the_child(lab: Lab) -> None:
    between = "env.update(PYTHONPATH='/old', PYTORCH_CUDA_ALLOC_CONF='x', DEMO_TOKEN='other')"
    processes = look_at(lab.start(between=between))
    found = list(check_running(lab.expected, lab.intended, Surroundings(), processes))
    assert [(f.kind, f.subject) for f in found] == [
        ("pid-variable", "DEMO_TOKEN"),
        ("pid-variable", "PYTHONPATH"),
        ("pid-variable", "PYTORCH_CUDA_ALLOC_CONF"),
    ]
    assert all(f"first in `python job.py ({processes[1].pid})`" in f.message for f in found)
    assert "hunter2" not in str(found)


def test_another_interpreter_is_found_though_all_share_one_binary(lab: Lab, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", other], check=True)
    assert ("pid-interpreter", "interpreter") in lab.kinds(*look_at(lab.start(python=str(other / "bin/python"))))


def test_a_library_that_was_replaced_while_it_ran_is_found(lab: Lab) -> None:
    known = ctypes.util.find_library("z")
    loaded = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if known and known in line]
    if not loaded:
        pytest.skip("no libz here")
    library = lab.packages / "demo/libdemo.so.1"
    library.parent.mkdir()
    shutil.copy(loaded[0], library)
    pid = lab.start(first=f"import ctypes; ctypes.CDLL({str(library)!r})")
    assert lab.kinds(*look_at(pid)) == []
    library.unlink()
    shutil.copy(loaded[0], library)
    assert lab.kinds(*look_at(pid)) == [("library-deleted", f"lib/python{VERSION}/site-packages/demo/libdemo.so.1")]


def test_packages_of_another_environment_are_found_by_their_native_modules(lab: Lab, tmp_path: Path) -> None:
    other = tmp_path / "o/lib/python3.10/site-packages/numpy"
    other.mkdir(parents=True)
    import _struct

    module = other / Path(_struct.__file__).name
    shutil.copy(_struct.__file__, module)
    pid = lab.start(first=f"import ctypes; ctypes.CDLL({str(module)!r})")
    assert lab.kinds(*look_at(pid)) == [("pid-package", "numpy")]


#: What setproctitle does: it writes the title over the arguments and clears the environment behind them.
TITLE = """
import ctypes
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
start, args, end = int(fields[47]), int(fields[45]), int(fields[46])
if {child} == (len(sys.argv) == 1):
    ctypes.memset(start, 0, int(fields[48]) - start)
    ctypes.memset(args, 0, end - args)
    ctypes.memmove(args, b"VLLM::EngineCore", 16)
"""


def test_a_process_that_wrote_its_title_over_its_variables_is_said_to_be_unreadable(lab: Lab) -> None:
    pid = lab.start(first=TITLE.format(child=True))
    wait_until(lambda: look_at(pid)[-1].argv == ("VLLM::EngineCore",))
    parent, child = look_at(pid)
    assert child.role == "VLLM::EngineCore"
    assert child.environ is None
    assert child.unreadable == {"environ": "overwritten"}
    assert lab.kinds(parent, child) == [("pid-unreadable", "environ")]


def test_a_process_that_is_gone_is_a_value() -> None:
    done = subprocess.Popen(["/bin/true"])
    done.wait()
    assert look_at(done.pid) == ()
    gone = read_process(done.pid)
    assert set(gone.unreadable.values()) == {"gone"}
    assert look_at(-1) == look_at(2**40) == ()


def test_a_zombie_and_a_kernel_thread_do_not_raise(lab: Lab) -> None:
    dead = subprocess.Popen(["/bin/true"])
    time.sleep(0.3)
    (zombie,) = look_at(dead.pid)
    dead.wait()
    assert lab.kinds(zombie) == []
    assert all(process.pid for process in look_at(1))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_what_belongs_to_somebody_else_is_said(lab: Lab) -> None:
    pid = lab.start()
    os.seteuid(65534)
    try:
        processes = look_at(pid)
    finally:
        os.seteuid(0)
    assert {"environ", "exe", "cwd"} <= set(processes[0].unreadable)
    assert set(processes[0].unreadable.values()) == {"permission"}
    assert processes[0].argv[2:] == ("job.py", "parent")
    assert {kind for kind, _ in lab.kinds(*processes)} == {"pid-unreadable"}
    assert replay(processes[0], Request()) is None


def test_a_replayed_probe_sees_what_a_new_process_would(lab: Lab) -> None:
    (lab.packages / "demo.py").write_text("raise SystemExit('never run')")
    parent, _ = look_at(lab.start())
    facts = replay(parent, Request(locate=("demo",)))
    assert facts is not None
    assert facts.python.prefix == str(lab.dir)
    assert facts.modules["demo"].origin == str(lab.packages / "demo.py")
    assert facts.context == parent.label


def test_nothing_of_a_stranger_is_started(lab: Lab) -> None:
    parent, _ = look_at(lab.start())
    assert replay(replace(parent, uid=4242), Request()) is None
    assert replay(replace(parent, interpreter=None), Request()) is None
    assert replay(replace(parent, environ=None), Request()) is None


def test_hostile_names_and_contents_of_proc_are_read_in_bounds(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    fields = " ".join(["S", "1", *["0"] * 17, "99", *["0"] * 30])
    (folder / "stat").write_text(f"7 (a) b) ({'x' * 20}) {fields}\n")
    (folder / "cmdline").write_bytes(b"\xff\0\0\0")
    (folder / "environ").write_bytes(b"A=1\0=x\0noequals\0B=\xff\0")
    (folder / "maps").write_bytes(
        b"garbage\n\n1-2 r-xp 0 00:00 1 /lib/a b.so (deleted)\n1-2 r-xp 0 00:00 1 /lib/a\xff.so\n1-2 r--p 0 0 1 /d\n"
    )
    read = read_process(7, proc=tmp_path)
    assert (read.name, read.parent, read.started_ticks) == (f"a) b) ({'x' * 20}", 1, 99)
    assert read.environ == {"A": "1", "B": "\udcff"}
    assert [(mapped.path, mapped.deleted) for mapped in read.maps or ()] == [
        ("/lib/a b.so", True),
        ("/lib/a\udcff.so", False),
    ]
    (folder / "environ").write_bytes(b"\0" * 200 + b"TAIL=of a title\0")
    assert read_process(7, proc=tmp_path).unreadable["environ"] == "overwritten"
    (folder / "stat").write_text("7 (short\n")
    assert read_process(7, proc=tmp_path).unreadable["stat"] == "malformed"


def test_the_drivers_version_is_read_in_both_forms(tmp_path: Path) -> None:
    version = tmp_path / "version"
    assert kernel_driver(version) is None
    version.write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.82.01  Wed Oct 27 21:21:55 UTC 2021\nGCC version:\n"
    )
    assert kernel_driver(version) == "470.82.01"
    version.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build  (x@y)\n")
    assert kernel_driver(version) == "580.105.08"
    version.write_text("nonsense")
    assert kernel_driver(version) is None


def test_folders_of_the_loader_are_found_through_includes_and_loops(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    conf = tmp_path / "ld.so.conf"
    conf.write_text("include d/*.conf\n/usr/local/one # why\nrelative\n")
    (tmp_path / "d/cuda-compat.conf").write_text(f"/usr/local/compat\ninclude {conf}\n")
    found = loader_folders(conf)
    assert found["/usr/local/compat"] == str(tmp_path / "d/cuda-compat.conf")
    assert found["/usr/local/one"] == str(conf)
    assert loader_folders(tmp_path / "none") == {}
