"""`launch.driver-library`: real libraries, real loaders and real shells, on hosts that are folders of a test."""

from __future__ import annotations

import functools
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from envsmith import launch as launch_module
from envsmith.checks.contexts import Intended, check_contexts
from envsmith.checks.maps import Surroundings, check_libcuda
from envsmith.commands import driverlibrary
from envsmith.commands import run as run_command
from envsmith.commands.driverlibrary import DriverFolder, driver_folder, prove_driver_library
from envsmith.commands.launching import prepared, resolved
from envsmith.errors import HostError
from envsmith.launch import DriverPlaces, LaunchEnvironment, LaunchTable
from envsmith.probe import Request
from envsmith.probe.contexts import libcuda_answer, walk_chain
from envsmith.tools.driver import host_driver
from tests.support.project import Project

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler here")

SHELLS = [shell for shell in ("sh", "dash", "bash", "zsh", "ksh", "busybox") if shutil.which(shell)]
#: Who looks for the library and makes the folder: they must agree.
FINDERS = ["python", *SHELLS]

DRIVER, COMPAT = "580.159.04", "580.95.05"
NAMES = {"libcuda.so.1", "libcuda.so"}
VERSION_FILE = (
    f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build  (someone@somewhere)\n"
    "GCC version:  gcc version 14.2.1 20250322 (GCC)\n"
)
#: Answers as it is told, unless no device is chosen; says how often it was asked. The text is how a driver's file says
#: its version where the name does not.
SOURCE = """
#include <stdio.h>
#include <stdlib.h>
const char *envsmith_text = "v" TEXT;
int cuInit(unsigned flags) {
    const char *chosen = getenv("CUDA_VISIBLE_DEVICES"), *count = getenv("ASKED");
    if (count) { FILE *f = fopen(count, "a"); if (f) { fputs("x", f); fclose(f); } }
    return chosen && !*chosen ? 100 : ANSWER;
}
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
"""


def argv_of(shell: str) -> list[str]:
    return [shutil.which(shell) or shell, *(["sh"] if shell == "busybox" else [])]


@functools.cache
def built(answer: int, text: str) -> bytes:
    """One tiny libcuda."""
    assert COMPILER
    argv = [COMPILER, "-shared", "-fPIC", f"-DANSWER={answer}", f'-DTEXT="{text}"', "-Wl,-soname,libcuda.so.1"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "libcuda.so"
        subprocess.run([*argv, "-xc", "-", "-o", file], input=SOURCE.encode(), check=True)
        return file.read_bytes()


def put(folder: Path, version: str, answer: int = 0, *, links: bool = True) -> Path:
    """A libcuda as an installer lays it down."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"libcuda.so.{version}"
    file.write_bytes(built(answer, version))
    if links:
        (folder / "libcuda.so.1").symlink_to(file.name)
    return file


@dataclass(frozen=True)
class Host:
    """A machine with a driver, a compat folder, and nothing of the machine that runs the test."""

    root: Path
    places: DriverPlaces

    @property
    def scratch(self) -> Path:
        return self.root / "scratch"

    @property
    def folder(self) -> Path:
        return self.scratch / f"driver-{DRIVER}"

    @property
    def library(self) -> Path:
        return self.root / "driver" / f"libcuda.so.{DRIVER}"

    @property
    def compat(self) -> str:
        return str(self.root / "compat")

    @property
    def environ(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "ENVSMITH_SCRATCH": str(self.scratch), "LD_LIBRARY_PATH": self.compat}

    def launch(self, **table: object) -> LaunchEnvironment:
        asked = LaunchTable(driver_library="host", **table)  # type: ignore[arg-type]
        return resolved(asked, self.root / "env", self.environ)

    def found(self) -> DriverFolder:
        made = driver_folder(str(self.scratch), self.compat, self.places)
        assert made is not None
        return made


@pytest.fixture
def host(tmp_path: Path) -> Host:
    root = tmp_path / "host of"
    put(root / "driver", DRIVER)
    put(root / "compat", COMPAT, answer=803)
    (root / "scratch").mkdir(mode=0o700)
    (root / "version").write_text(VERSION_FILE)
    (root / "nvidiactl").touch()
    return Host(
        root=root,
        places=DriverPlaces(
            versions=(str(root / "version"), str(root / "sys-version")),
            folders=(str(root / "driver"),),
            cache=None,
            nodes=(str(root / "nvidiactl"),),
        ),
    )


def found_by(finder: str, host: Host, *, expect_words: bool = False) -> str | None:
    """The folder that comes first for a process; None when LD_LIBRARY_PATH stays as it was."""
    if finder == "python":
        try:
            return prepared(host.launch(), host.environ, host.places).environment["LD_LIBRARY_PATH"].partition(":")[0]
        except HostError:
            assert expect_words
            return None
    script = host.root / "env.sh"
    script.write_text(host.launch().shell(host.places))
    line = f'set -eu\n. "{script}"\nprintf %s "$LD_LIBRARY_PATH"'
    done = subprocess.run([*argv_of(finder), "-c", line], env=host.environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert bool(done.stderr) is expect_words, done.stderr
    first, _, rest = done.stdout.partition(":")
    if done.stdout == host.compat:
        return None
    assert rest == host.compat
    return first


def assert_holds(folder: Path, library: Path) -> None:
    """The folder is ours alone and holds the two links and nothing else."""
    seen = folder.lstat()
    assert stat.S_ISDIR(seen.st_mode)
    assert (stat.S_IMODE(seen.st_mode), seen.st_uid) == (0o700, os.geteuid())
    assert {item.name: str(item.readlink()) for item in folder.iterdir()} == dict.fromkeys(NAMES, str(library))


# --- finding it ---


@pytest.mark.parametrize("finder", FINDERS)
def test_the_drivers_own_library_comes_first_from_a_private_folder(host: Host, finder: str) -> None:
    assert found_by(finder, host) == str(host.folder)
    assert_holds(host.folder, host.library)
    assert found_by(finder, host) == str(host.folder)
    assert [item.name for item in host.scratch.iterdir()] == [host.folder.name]


def by_link(host: Host) -> Host:
    """The folder is reached through links, and holds only the SONAME, a link to elsewhere."""
    there = host.root / "store" / "driver"
    there.parent.mkdir()
    (host.root / "driver").rename(there)
    (host.root / "middle").mkdir()
    (host.root / "middle" / "libcuda.so.1").symlink_to(there / "libcuda.so.1")
    (host.root / "driver").symlink_to(host.root / "middle")
    return host


def by_content(host: Host) -> Host:
    (host.library.parent / "libcuda.so.1").unlink()
    host.library.rename(host.library.parent / "libcuda.so.1")
    return host


def by_sys(host: Host) -> Host:
    (host.root / "version").unlink()
    (host.root / "sys-version").write_text(f"{DRIVER}\n")
    return host


@pytest.mark.parametrize("finder", FINDERS)
@pytest.mark.parametrize("change", [by_link, by_content, by_sys])
def test_it_is_found_however_the_host_calls_it(host: Host, finder: str, change: Callable[[Host], Host]) -> None:
    change(host)
    assert found_by(finder, host) == str(host.folder)
    assert (host.folder / "libcuda.so.1").resolve().read_bytes() == built(0, DRIVER)


@pytest.mark.parametrize("finder", FINDERS)
def test_it_is_found_in_library_path_behind_a_compat_folder(host: Host, finder: str) -> None:
    moved = host.root / "elsewhere"
    (host.root / "driver").rename(moved)
    environ = f"{host.compat}::relative:{moved}"
    if finder == "python":
        driver = host_driver(environ, host.places)
        assert driver is not None
        assert driver.library == str(moved / host.library.name)
        return
    script = host.root / "env.sh"
    script.write_text(host.launch().shell(host.places))
    env = {**host.environ, "LD_LIBRARY_PATH": environ}
    subprocess.run([*argv_of(finder), "-c", f'. "{script}"'], env=env, check=True)
    assert_holds(host.folder, moved / host.library.name)


@pytest.mark.parametrize("finder", FINDERS)
@pytest.mark.skipif(shutil.which("ldconfig", path="/sbin:/usr/sbin") is None, reason="there is no ldconfig")
def test_it_is_found_in_the_loaders_cache(host: Host, finder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = shutil.which("ldconfig", path="/sbin:/usr/sbin")
    cache, conf = host.root / "cache", host.root / "conf"
    conf.write_text(f"{host.root / 'driver'}\n")
    subprocess.run([str(program), "-X", "-C", cache, "-f", conf], check=True, capture_output=True)
    (host.root / "bin").mkdir()
    (host.root / "bin" / "ldconfig").write_text(f'#!/bin/sh\nexec {program} -C "{cache}" "$@"\n')
    (host.root / "bin" / "ldconfig").chmod(0o755)
    here = replace(host, places=replace(host.places, folders=(), cache=str(cache)))
    path = f"{host.root}/bin:/usr/bin:/bin"
    monkeypatch.setattr(Host, "environ", property(lambda self: {**self_environ(self), "PATH": path}))
    assert found_by(finder, here) == str(host.folder)
    assert_holds(host.folder, host.library)


def self_environ(host: Host) -> dict[str, str]:
    return {"ENVSMITH_SCRATCH": str(host.scratch), "LD_LIBRARY_PATH": host.compat}


def another_version(host: Host) -> None:
    host.library.rename(host.library.with_name("libcuda.so.580.159.3"))
    (host.library.parent / "libcuda.so.1").unlink()
    (host.library.parent / "libcuda.so.1").symlink_to("libcuda.so.580.159.3")


def a_stub(host: Host) -> None:
    folder = host.root / "driver" / "stubs"
    folder.mkdir()
    host.library.rename(folder / host.library.name)
    (host.root / "driver" / "libcuda.so.1").unlink()
    (host.root / "driver" / "libcuda.so.1").symlink_to(f"stubs/{host.library.name}")


def another_processor(host: Host) -> None:
    data = bytearray(host.library.read_bytes())
    data[18:20] = b"\x16\x00"  # EM_S390
    host.library.write_bytes(data)


def a_vanished_file(host: Host) -> None:
    host.library.unlink()


def a_text(host: Host) -> None:
    host.library.write_text("GROUP ( libcuda.so.1 )")


@pytest.mark.parametrize("finder", FINDERS)
@pytest.mark.parametrize("change", [another_version, a_stub, another_processor, a_vanished_file, a_text])
def test_nothing_else_is_taken_for_it(host: Host, finder: str, change: Callable[[Host], None]) -> None:
    change(host)
    assert found_by(finder, host, expect_words=True) is None
    assert not host.folder.exists()


@pytest.mark.parametrize("finder", FINDERS)
def test_without_a_driver_nothing_happens_and_nothing_is_said(host: Host, finder: str) -> None:
    (host.root / "version").unlink()
    (host.root / "nvidiactl").unlink()
    if finder == "python":
        ready = prepared(host.launch(), host.environ, host.places)
        assert (ready.driver, ready.environment["LD_LIBRARY_PATH"]) == (None, host.compat)
        assert ready.launch.driver_scratch is None
    else:
        assert found_by(finder, host) is None
    assert list(host.scratch.iterdir()) == []


@pytest.mark.parametrize("finder", FINDERS)
def test_a_container_without_device_and_library_sees_the_driver_only_in_proc(host: Host, finder: str) -> None:
    (host.root / "nvidiactl").unlink()
    shutil.rmtree(host.root / "driver")
    shutil.rmtree(host.compat)
    if finder == "python":
        assert prepared(host.launch(), host.environ, host.places).driver is None
    else:
        assert found_by(finder, host) is None


def test_a_library_that_is_missing_is_said_with_the_folders_looked_at(host: Host) -> None:
    host.library.unlink()
    with pytest.raises(HostError) as caught:
        prepared(host.launch(), host.environ, host.places)
    (problem,) = caught.value.problems
    assert (problem.code, caught.value.exit_code) == ("driver-library-missing", 3)
    assert problem.expected == f"libcuda.so.{DRIVER}"
    assert problem.where == f"{host.compat}, {host.root / 'driver'}"
    assert f"libcuda.so.{COMPAT}" in problem.message
    (host.root / "nvidiactl").unlink()
    with pytest.raises(HostError):  # a libcuda of another version would be loaded
        prepared(host.launch(), host.environ, host.places)


def test_a_device_whose_driver_does_not_say_its_version_is_no_guess(host: Host) -> None:
    (host.root / "version").write_text("NVRM version: unknown\n")
    with pytest.raises(HostError) as caught:
        prepared(host.launch(), host.environ, host.places)
    assert caught.value.problems[0].code == "driver-library-missing"
    assert str(host.root / "version") in str(caught.value.problems[0].where)


# --- the folder ---


def strange_things(host: Host) -> None:
    host.folder.mkdir(mode=0o700)
    for name in ("libnccl.so.2", ".hidden", "..odd", "a b"):
        (host.folder / name).touch()
    (host.folder / "deep" / "er").mkdir(parents=True)
    (host.folder / "away").symlink_to("/etc")


def stale_links(host: Host) -> None:
    host.folder.mkdir(mode=0o700)
    (host.folder / "libcuda.so.1").symlink_to("/vanished/libcuda.so.1")
    (host.folder / "libcuda.so").symlink_to(f"{host.compat}/libcuda.so.1")


def no_links(host: Host) -> None:
    host.folder.mkdir(mode=0o700)
    (host.folder / "libcuda.so.1").mkdir()
    (host.folder / "libcuda.so.1" / "x").touch()
    (host.folder / "libcuda.so").write_bytes(built(803, COMPAT))


def links_to_folders(host: Host) -> None:
    host.folder.mkdir(mode=0o700)
    (host.folder / "libcuda.so.1").symlink_to(host.compat)


def open_to_others(host: Host) -> None:
    host.folder.mkdir()
    for name in NAMES:
        (host.folder / name).symlink_to(host.library)
    host.folder.chmod(0o777)


def empty(host: Host) -> None:
    host.folder.mkdir(mode=0o700)


@pytest.mark.parametrize("finder", FINDERS)
@pytest.mark.parametrize("change", [strange_things, stale_links, no_links, links_to_folders, open_to_others, empty])
def test_a_folder_of_ours_is_mended(host: Host, finder: str, change: Callable[[Host], None]) -> None:
    change(host)
    before = {item.name for item in Path(host.compat).iterdir()}
    assert found_by(finder, host) == str(host.folder)
    assert_holds(host.folder, host.library)
    assert {item.name for item in Path(host.compat).iterdir()} == before
    assert [item.name for item in host.scratch.iterdir()] == [host.folder.name]


def unchanging(path: Path) -> tuple[int, ...]:
    seen = path.lstat()
    return seen.st_ino, seen.st_mode, seen.st_uid, seen.st_mtime_ns, seen.st_ctime_ns


def a_link(host: Host) -> None:
    trap = host.root / "trap"
    trap.mkdir()
    (trap / "kept").touch()
    host.folder.symlink_to(trap)


def a_file(host: Host) -> None:
    host.folder.write_text("mine")


def a_strangers(host: Host) -> None:
    host.folder.mkdir(mode=0o755)
    (host.folder / "libcuda.so.1").symlink_to(host.library)
    (host.folder / "libcuda.so").symlink_to(host.library)
    os.chown(host.folder, 12345, 12345)


@pytest.mark.parametrize("finder", FINDERS)
@pytest.mark.parametrize("change", [a_link, a_file, a_strangers])
def test_what_is_not_ours_is_left_alone_and_not_used(host: Host, finder: str, change: Callable[[Host], None]) -> None:
    if change is a_strangers and os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    change(host)
    before = unchanging(host.folder)
    second = host.folder.with_name(f"{host.folder.name}.{os.geteuid()}")
    assert found_by(finder, host) == str(second)
    assert_holds(second, host.library)
    assert unchanging(host.folder) == before
    if change is a_link:
        assert [item.name for item in (host.root / "trap").iterdir()] == ["kept"]


def test_where_both_names_are_taken_a_new_one_is_made(host: Host) -> None:
    second = host.folder.with_name(f"{host.folder.name}.{os.geteuid()}")
    host.folder.touch()
    second.touch()
    made = host.found().folder
    assert made.name.startswith(f"{host.folder.name}.")
    assert made not in (host.folder, second)
    assert_holds(made, host.library)


@pytest.mark.parametrize("stale", [False, True])
def test_many_at_once_agree(host: Host, stale: bool) -> None:
    """Shells and Python mend the same folder meanwhile."""
    script = host.root / "env.sh"
    script.write_text(host.launch().shell(host.places))
    line = f'. "{script}"; printf %s "${{LD_LIBRARY_PATH%%:*}}"'

    def one(n: int) -> str:
        if n % 3 == 0:
            return str(host.found().folder)
        argv = [*argv_of(SHELLS[n % len(SHELLS)]), "-c", line]
        return subprocess.run(argv, env=host.environ, capture_output=True, text=True, check=True).stdout

    for _ in range(3):
        if stale:
            shutil.rmtree(host.folder, ignore_errors=True)
            stale_links(host)
            (host.folder / "strange").touch()
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(one, range(16))) == {str(host.folder)}
        assert_holds(host.folder, host.library)
        assert [item.name for item in host.scratch.iterdir()] == [host.folder.name]


def test_within_a_launched_process_the_folder_is_no_source_of_itself(host: Host) -> None:
    first = prepared(host.launch(), host.environ, host.places).environment
    again = prepared(host.launch(), first, replace(host.places, folders=()))
    assert again.environment["LD_LIBRARY_PATH"] == first["LD_LIBRARY_PATH"]
    assert_holds(host.folder, host.library)


@pytest.mark.parametrize("finder", FINDERS)
def test_it_comes_before_what_recipe_and_profile_put_first(host: Host, finder: str) -> None:
    profile = host.root / "profile"
    profile.write_text(f"export LD_LIBRARY_PATH='{host.root}/vendor'\n")
    launch = host.launch(prepend={"LD_LIBRARY_PATH": host.compat}, profile=str(profile))
    if finder == "python":
        value = prepared(launch, host.environ, host.places).environment["LD_LIBRARY_PATH"]
    else:
        script = host.root / "env.sh"
        script.write_text(launch.shell(host.places) * 2)
        line = f'. "{script}"; printf %s "$LD_LIBRARY_PATH"'
        argv = [*argv_of(finder), "-c", line]
        done = subprocess.run(argv, env=host.environ, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        value = done.stdout
    assert value == f"{host.folder}:{host.compat}:{host.root}/vendor"


@pytest.mark.parametrize("finder", FINDERS)
def test_companions_are_linked_where_they_lie_beside_it(
    host: Host, finder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (launch_module, driverlibrary):
        monkeypatch.setattr(module, "DRIVER_COMPANIONS", ("libnvidia-ptxjitcompiler.so.1", "libnvidia-nvvm.so.4"))
    compiler = host.library.with_name(f"libnvidia-ptxjitcompiler.so.{DRIVER}")
    compiler.touch()
    host.library.with_name("libnvidia-ptxjitcompiler.so.1").symlink_to(compiler.name)
    stale_links(host)
    (host.folder / "libnvidia-nvvm.so.4").symlink_to("/vanished")
    assert found_by(finder, host) == str(host.folder)
    assert {item.name: str(item.readlink()) for item in host.folder.iterdir()} == {
        **dict.fromkeys(NAMES, str(host.library)),
        "libnvidia-ptxjitcompiler.so.1": str(compiler),
    }


@pytest.mark.parametrize("shell", SHELLS)
def test_sourcing_leaves_nothing_of_ours_in_the_shell(host: Host, shell: str) -> None:
    script = host.root / "env.sh"
    script.write_text(host.launch().shell(host.places) + ":\nset\n")  # bash keeps the last word of a command
    done = subprocess.run([*argv_of(shell), str(script)], env=host.environ, capture_output=True, text=True, check=True)
    assert f"driver-{DRIVER}" in done.stdout
    assert "_envsmith" not in done.stdout
    assert f"version={DRIVER}" not in done.stdout


def test_the_shell_lines_know_nothing_of_the_machine_that_wrote_them(host: Host) -> None:
    text = host.launch().shell()
    assert str(host.scratch) not in text
    assert DRIVER not in text


# --- the proof ---


def asked(host: Host, **more: str) -> Callable[[], int]:
    """Prove with a library that counts; say how often it was asked."""
    count = host.root / "asked"
    environment = {**prepared(host.launch(), host.environ, host.places).environment, "ASKED": str(count), **more}

    def prove() -> int:
        prove_driver_library(host.found(), Path(sys.executable), environment, places=host.places)
        return len(count.read_text()) if count.exists() else 0

    return prove


def test_it_is_proven_once_for_each_boot_file_and_driver(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    prove = asked(host)
    assert [prove(), prove(), prove()] == [1, 1, 1]
    host.library.write_bytes(built(0, DRIVER) + b"\0")
    assert [prove(), prove()] == [2, 2]
    boot = host.root / "boot"
    boot.write_text("another\n")
    monkeypatch.setattr(driverlibrary, "BOOT_ID", boot)
    assert [prove(), prove()] == [3, 3]
    boot.unlink()
    assert [prove(), prove()] == [4, 5]


@pytest.mark.parametrize("trick", ["link", "open", "text", "folder"])
def test_a_proof_that_another_may_have_written_is_none(host: Host, trick: str) -> None:
    prove = asked(host)
    assert prove() == 1
    proof = host.folder.with_name(f"{host.folder.name}.proof")
    assert stat.S_IMODE(proof.stat().st_mode) == 0o600
    if trick == "link":
        proof.rename(host.root / "moved")
        proof.symlink_to(host.root / "moved")
    elif trick == "open":
        proof.chmod(0o666)
    elif trick == "text":
        proof.write_text("[" * 100_000)
    else:
        proof.unlink()
        proof.mkdir()
    assert prove() == 2


def test_a_library_that_answers_803_is_unproven(host: Host) -> None:
    host.library.write_bytes(built(803, DRIVER))
    with pytest.raises(HostError) as caught:
        asked(host)()
    (problem,) = caught.value.problems
    assert (problem.code, caught.value.exit_code) == ("driver-library-unproven", 3)
    assert "803 CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" in str(problem.actual)
    assert str(host.library) in str(problem.actual)
    assert not host.folder.with_name(f"{host.folder.name}.proof").exists()


def test_another_library_that_is_mapped_all_the_same_proves_nothing(host: Host) -> None:
    other = put(host.root.parent / "other", COMPAT)  # LD_PRELOAD parts at spaces
    with pytest.raises(HostError) as caught:
        asked(host, LD_PRELOAD=str(other))()
    assert caught.value.problems[0].code == "driver-library-unproven"
    assert str(other) in str(caught.value.problems[0].actual)


def test_a_library_that_ends_the_process_is_unproven(host: Host) -> None:
    assert COMPILER
    source = host.root / "abort.c"
    source.write_text("#include <stdlib.h>\nint cuInit(unsigned f) { abort(); }\n")
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", host.library, source], check=True)
    with pytest.raises(HostError) as caught:
        asked(host)()
    assert "-6" in str(caught.value.problems[0].actual)


def test_no_visible_device_is_no_failure_and_no_proof(host: Host) -> None:
    host.library.write_bytes(built(100, DRIVER))
    prove = asked(host)
    assert [prove(), prove()] == [1, 2]


def test_which_devices_the_caller_chose_does_not_decide(host: Host) -> None:
    prove = asked(host, CUDA_VISIBLE_DEVICES="")
    assert [prove(), prove()] == [1, 1]


def test_an_unknown_error_is_excused_only_where_there_is_no_device(host: Host) -> None:
    host.library.write_bytes(built(999, DRIVER))
    with pytest.raises(HostError):
        asked(host)()
    (host.root / "nvidiactl").unlink()
    assert asked(host)() == 2


# --- where it is used ---


def test_processes_of_the_chain_have_it_first_and_it_answers(host: Host) -> None:
    ready = prepared(host.launch(prepend={"LD_LIBRARY_PATH": host.compat}), host.environ, host.places)
    python = Path(sys.executable)
    answer = libcuda_answer(python, ready.environment)
    assert (answer.init, answer.path, answer.version) == (0, str(host.library), DRIVER)
    assert list(check_libcuda(answer, Surroundings(driver=DRIVER), has_device=True)) == []

    intended = Intended(launch=ready.launch)
    chain = walk_chain(
        python, ("spawn",), Request(environ_names=intended.watched), env=ready.environment, kept=intended.kept
    )
    findings = [*check_contexts(intended, chain.levels, chain.unstarted)]
    assert [f for f in findings if f.subject == "LD_LIBRARY_PATH"] == []
    lost = {**ready.environment, "LD_LIBRARY_PATH": host.compat}
    chain = walk_chain(python, (), Request(environ_names=intended.watched), env=lost, kept=intended.kept)
    findings = [*check_contexts(intended, chain.levels, chain.unstarted)]
    assert [(f.kind, f.expected) for f in findings if f.subject == "LD_LIBRARY_PATH"] == [
        ("context-variable", f"{host.folder}:{host.compat}:…")
    ]


def test_without_the_key_the_compat_folder_wins(host: Host) -> None:
    plain = prepared(resolved(LaunchTable(), host.root / "env", host.environ), host.environ, host.places)
    answer = libcuda_answer(Path(sys.executable), plain.environment)
    assert (answer.init, answer.version) == (803, COMPAT)
    kinds = {finding.kind for finding in check_libcuda(answer, Surroundings(driver=DRIVER), has_device=True)}
    assert kinds == {"libcuda-wrong-compat", "libcuda-init-failed"}


def test_run_starts_a_command_only_with_a_proven_library(
    built_project: Project, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, str]] = []
    monkeypatch.setattr(run_command, "prepared", functools.partial(prepared, places=host.places))
    monkeypatch.setattr(
        run_command, "prove_driver_library", functools.partial(prove_driver_library, places=host.places)
    )
    monkeypatch.setattr(run_command, "replace_process", lambda argv, env: started.append(env))

    def run() -> None:
        with pytest.raises(AssertionError, match="does not come back"):
            run_command.run(
                "demo/app", ("python", "-V"), run_command.Wishes(root=str(built_project.envs)), environ=host.environ,
                screen=None,  # type: ignore[arg-type]
            )  # fmt: skip

    run()
    assert started[0]["LD_LIBRARY_PATH"] == f"{host.folder}:{host.compat}"
    kept = json.loads(host.folder.with_name(f"{host.folder.name}.proof").read_text())
    assert (kept["driver"], kept["library"]) == (DRIVER, str(host.library))
    host.library.write_bytes(built(803, DRIVER) + b"\0")
    with pytest.raises(HostError):
        run()
    assert len(started) == 1


@pytest.fixture
def built_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """As far as `run` looks: a receipt with the key, and an interpreter."""
    env = tmp_path / "envs" / "demo-app" / "one"
    (env / "bin").mkdir(parents=True)
    (env / "bin" / "python").symlink_to(sys.executable)
    (env / "envsmith.json").write_text("{}")
    table = LaunchTable(driver_library="host")

    @dataclass
    class Built:
        directory: Path = env
        receipt: str = "there"

    @dataclass
    class Receipt:
        launch: dict[str, object]
        verify: dict[str, object]

    monkeypatch.setattr(run_command, "open_env", lambda *_: Built())
    monkeypatch.setattr(run_command, "work_copies", lambda *_: ())
    monkeypatch.setattr(run_command, "parse_receipt", lambda *_: Receipt(table.to_dict(), {"editable": ()}))
    return Project(folder=tmp_path, index=tmp_path)


# --- a real machine ---


@pytest.mark.gpu
def test_on_a_real_device_it_mends_what_the_compat_folder_breaks(tmp_path: Path) -> None:
    """Needs the folder of a compat libcuda that is older than the driver, in ENVSMITH_TEST_COMPAT or CUDA's place."""
    compat = os.environ.get("ENVSMITH_TEST_COMPAT", "/usr/local/cuda/compat")
    if not Path(compat, "libcuda.so.1").exists():
        pytest.skip(f"there is no compat libcuda in {compat}")
    environ = {"PATH": "/usr/bin:/bin", "ENVSMITH_SCRATCH": str(tmp_path / "s"), "LD_LIBRARY_PATH": compat}
    python = Path(sys.executable)
    without = libcuda_answer(python, environ)
    assert without.init not in (0, None), without
    launch = resolved(LaunchTable(driver_library="host"), tmp_path / "env", environ)
    ready = prepared(launch, environ)
    assert ready.driver is not None
    prove_driver_library(ready.driver, python, ready.environment)
    answer = libcuda_answer(python, ready.environment)
    assert (answer.init, answer.path) == (0, ready.driver.library)
    script = tmp_path / "env.sh"
    script.write_text(launch.shell())
    done = subprocess.run(
        ["sh", "-c", f'. "{script}"; printf %s "$LD_LIBRARY_PATH"'], env=environ, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == (ready.environment["LD_LIBRARY_PATH"], "")
