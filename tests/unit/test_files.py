"""envsmith.tools.files: what it promises about whole files, own inodes, locks and words for refusals."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from envsmith.errors import SupplyError
from envsmith.tools.files import (
    FileLock,
    filesystem,
    free_bytes,
    remove_tree,
    sha256_file,
    write_atomic,
)
from tests.support.index import wait_until


def code_of(error: pytest.ExceptionInfo[SupplyError]) -> str:
    return error.value.problems[0].code


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_hashed_whole_and_its_bytes_are_counted(tmp_path: Path) -> None:
    content = os.urandom(3 * (1 << 20) + 17)
    path = tmp_path / "x"
    path.write_bytes(content)
    counted: list[int] = []
    assert sha256_file(path, counted.append) == hashlib.sha256(content).hexdigest()
    assert sum(counted) == len(content)


def test_an_atomic_write_makes_folders_sets_the_mode_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "x"
    write_atomic(path, "old")
    write_atomic(path, b"new", mode=0o600)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert names(path.parent) == ["x"]


def test_a_failed_atomic_write_keeps_the_old_file_and_removes_its_temporary(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    (target / "inside").mkdir(parents=True)
    with pytest.raises(SupplyError) as error:
        write_atomic(target, "x")  # a file cannot replace a folder that is not empty
    assert code_of(error) == "file-in-the-way"
    assert (target / "inside").is_dir()
    assert not [name for name in names(tmp_path) if name.startswith(".envsmith-")]


def test_a_copy_to_a_full_disk_says_disk_full_with_the_room_there_is(tmp_path: Path) -> None:
    full = Path("/dev/full").open("wb", buffering=0)  # noqa: SIM115 -- the kernel's own ENOSPC
    with full, pytest.raises(SupplyError) as error, filesystem(tmp_path / "x", needed_bytes=5 << 30):
        full.write(b"x")
    (problem,) = error.value.problems
    assert problem.code == "disk-full"
    assert problem.hint is not None
    assert problem.hint.startswith("5.0 GiB needed, ")
    assert "free there" in problem.hint


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, "disk-full"),
        (errno.EDQUOT, "disk-full"),
        (errno.EACCES, "root-not-writable"),
        (errno.EPERM, "root-not-writable"),
        (errno.EROFS, "root-not-writable"),
        (errno.ENOENT, "file-missing"),
        (errno.ENOTDIR, "file-in-the-way"),
        (errno.EIO, "file-system-failed"),
        (errno.ESTALE, "file-system-failed"),
    ],
)
def test_what_the_system_refuses_has_a_code_and_a_place(tmp_path: Path, number: int, code: str) -> None:
    with pytest.raises(SupplyError) as error, filesystem(tmp_path / "x"):
        raise OSError(number, os.strerror(number))
    assert code_of(error) == code
    assert error.value.problems[0].where == str(tmp_path / "x")


def test_an_error_that_is_not_the_systems_passes_through() -> None:
    with pytest.raises(OSError, match="not from the kernel"), filesystem(Path("x")):
        raise OSError("not from the kernel")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_one_may_not_write_to_says_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(SupplyError) as error:
        write_atomic(tmp_path / "x", "x")
    assert code_of(error) == "root-not-writable"


def test_a_proc_file_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    with pytest.raises(SupplyError) as error:
        write_atomic(Path("/proc/self/envsmith"), "x")  # a read-only place even for root
    assert code_of(error) in ("root-not-writable", "file-missing")


def test_a_tree_is_removed_with_read_only_folders_and_without_following_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "x").write_text("x")
    (tree / "link").symlink_to(outside)
    (tree / "deep").chmod(0o500)
    remove_tree(tree)
    remove_tree(tree)  # not there any more: nothing to do
    assert not tree.exists()
    assert (outside / "precious").exists()


def test_removing_a_link_to_a_folder_leaves_the_folder(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "link")
    assert names(tmp_path / "kept") == []
    assert not (tmp_path / "link").is_symlink()


def test_free_bytes_are_those_of_the_place_that_will_hold_the_path(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "not" / "yet" / "there") > 0


def test_two_threads_never_hold_one_lock_together(tmp_path: Path) -> None:
    inside, worst = 0, 0
    gate = threading.Lock()

    def work() -> None:
        nonlocal inside, worst
        for _ in range(20):
            with FileLock(tmp_path / "locks" / "x", keep=False):
                with gate:
                    inside += 1
                    worst = max(worst, inside)
                time.sleep(0.001)
                with gate:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert worst == 1
    assert names(tmp_path / "locks") == []


def test_a_lock_of_another_process_is_waited_for_once_told_and_let_go_when_it_is_killed(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    code = "import sys,time; from pathlib import Path; from envsmith.tools.files import FileLock\n"
    code += "with FileLock(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    root = Path(__file__).parents[2]
    environ = {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen([sys.executable, "-c", code, lock], stdout=subprocess.PIPE, env=environ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        told: list[str] = []
        got = threading.Event()

        def wait() -> None:
            with FileLock(lock, told.append):
                got.set()

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: told)
        assert not got.is_set()
        child.kill()
        assert got.wait(10)
        thread.join()
    assert told == [f"waiting for another process that holds `{lock}`"]
    assert lock.exists()
