"""envsmith.checkpointfolder: what the answers of a file system mean for checkpoints."""

from __future__ import annotations

import pytest

from envsmith.checkpointfolder import DIFFERS, OPERATIONS, FolderAnswer, for_copying, judge_checkpoint_folder
from envsmith.report import Severity

KINDS = {
    "create": ("folder-unwritable", Severity.ERROR),
    "ftruncate": ("ftruncate-unsupported", Severity.ERROR),
    "fallocate": ("fallocate-unsupported", Severity.NOTE),
    "write": ("write-failed", Severity.ERROR),
    "fsync": ("write-failed", Severity.ERROR),
    "read-back": ("read-back-differs", Severity.ERROR),
    "mmap": ("mmap-unsupported", Severity.WARNING),
    "flock": ("flock-unsupported", Severity.WARNING),
    "rename": ("rename-failed", Severity.ERROR),
    "fsync-folder": ("folder-sync-unsupported", Severity.NOTE),
    "unlink": ("unlink-failed", Severity.WARNING),
}


def kinds(answer: FolderAnswer, need: int | None = None) -> list[tuple[str, Severity]]:
    return [(one.kind, one.severity) for one in judge_checkpoint_folder(answer, need)]


def test_every_operation_has_a_judgement() -> None:
    assert {*KINDS} == {*OPERATIONS}
    assert kinds(FolderAnswer(path="/c", type="ext4", free_bytes=1)) == []


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_operation_that_failed_is_named_with_its_error(operation: str) -> None:
    answer = FolderAnswer(path="/c", type="ext4", failed={operation: "ENOSYS"})
    (found,) = judge_checkpoint_folder(answer)
    assert (found.kind, found.severity) == KINDS[operation]
    assert "ENOSYS" in found.message and "/c" in found.message and found.hint


@pytest.mark.parametrize("error", ["ENOSPC", "EDQUOT", "EFBIG"])
def test_no_room_is_told_from_a_file_system_that_fails(error: str) -> None:
    (found,) = judge_checkpoint_folder(FolderAnswer(path="/c", type="ext4", failed={"write": error}))
    assert found.kind == "no-room"
    assert ("quota" in (found.hint or "")) is (error == "EDQUOT")


@pytest.mark.parametrize(("name", "is_fuse"), [("fuse.hdfs", True), ("fuse", True), ("fuseblk", True), ("ext4", False)])
def test_fuse_is_a_warning_though_everything_worked(name: str, is_fuse: bool) -> None:
    found = kinds(FolderAnswer(path="/c", type=name))
    assert found == ([("fuse-file-system", Severity.WARNING)] if is_fuse else [])


def test_room_is_held_against_what_is_needed_where_both_are_known() -> None:
    answer = FolderAnswer(path="/c", type="ext4", free_bytes=10)
    assert kinds(answer, 11) == [("room-too-small", Severity.ERROR)]
    assert kinds(answer, 10) == kinds(answer) == kinds(FolderAnswer(path="/c", type="ext4"), 11) == []


def test_a_copy_needs_no_ftruncate_and_all_the_rest() -> None:
    failed = {"ftruncate": "ENOSYS", "read-back": DIFFERS}
    found = list(for_copying(judge_checkpoint_folder(FolderAnswer(path="/c", type="ext4", failed=failed))))
    assert {one.kind: one.severity for one in found} == {
        "ftruncate-unsupported": Severity.WARNING,
        "read-back-differs": Severity.ERROR,
    }
