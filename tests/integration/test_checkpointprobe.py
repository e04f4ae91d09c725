"""envsmith.tools.checkpointprobe on real file systems: a good, a full, a read-only one, and FUSE with faults."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from envsmith.checkpointfolder import DIFFERS, FolderAnswer, judge_checkpoint_folder
from envsmith.report import Severity
from envsmith.tools.checkpointprobe import file_system_type, probe_checkpoint_folder
from tests.support.mounts import Mood, inside, mount_fuse, mount_read_only, mount_tmpfs, refusal


def probed(place: Path, mount: Callable[[], None], *, fuse: bool = False) -> FolderAnswer:
    if reason := refusal(place, fuse=fuse):
        pytest.skip(reason)
    answer, left = inside(mount, lambda: (probe_checkpoint_folder(place), [path.name for path in place.iterdir()]))
    assert left == [] or "unlink" in answer.failed
    return answer


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / "place"
    path.mkdir()
    return path


def kinds(answer: FolderAnswer) -> dict[str, Severity]:
    return {one.kind: one.severity for one in judge_checkpoint_folder(answer)}


def test_a_good_folder_passes_and_nothing_stays_in_it(place: Path) -> None:
    answer = probe_checkpoint_folder(place)
    assert (answer.failed, answer.untried, kinds(answer)) == ({}, (), {})
    assert answer.write_mb_s and answer.free_bytes and answer.type != "unknown"
    assert list(place.iterdir()) == []


def test_a_folder_that_is_not_there_is_tried_where_it_would_be_made(place: Path) -> None:
    assert probe_checkpoint_folder(place / "a" / "b").path == str(place)
    assert list(place.iterdir()) == []


def test_a_read_only_mount_is_named(place: Path) -> None:
    answer = probed(place, lambda: mount_read_only(place))
    assert answer.failed == {"create": "EROFS"}
    assert "write" in answer.untried
    assert kinds(answer) == {"folder-unwritable": Severity.ERROR}


def test_a_small_tmpfs_is_full_and_not_broken(place: Path) -> None:
    answer = probed(place, lambda: mount_tmpfs(place, "2m"))
    assert (answer.type, answer.failed) == ("tmpfs", {"write": "ENOSPC"})
    assert kinds(answer) == {"no-room": Severity.ERROR}


def test_a_limit_of_the_size_of_files_is_named(place: Path) -> None:
    def limited() -> FolderAnswer:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 21, 1 << 21))
        return probe_checkpoint_folder(place)

    if reason := refusal(place):
        pytest.skip(reason)
    assert inside(lambda: None, limited).failed == {"write": "EFBIG"}


@pytest.mark.parametrize(
    ("mood", "failed", "found"),
    [
        (Mood(), {}, {}),
        (
            Mood(refuses=frozenset({"ftruncate"})),
            {"ftruncate": "ENOSYS"},
            {"ftruncate-unsupported": Severity.ERROR},
        ),
        (Mood(fails_after=3 << 20), {"write": "EIO"}, {"write-failed": Severity.ERROR}),
        (Mood(flips=5_000_000), {"read-back": DIFFERS}, {"read-back-differs": Severity.ERROR}),
        (Mood(refuses=frozenset({"rename"})), {"rename": "ENOSYS"}, {"rename-failed": Severity.ERROR}),
        (Mood(refuses=frozenset({"mmap"})), {"mmap": "ENODEV"}, {"mmap-unsupported": Severity.WARNING}),
        (Mood(refuses=frozenset({"fsync"})), {"fsync": "EIO"}, {"write-failed": Severity.ERROR}),
        (Mood(refuses=frozenset({"unlink"})), {"unlink": "EIO"}, {"unlink-failed": Severity.WARNING}),
        (Mood(refuses=frozenset({"fallocate"})), {"fallocate": "ENOTSUP"}, {"fallocate-unsupported": Severity.NOTE}),
    ],
)
def test_a_fuse_mount_shows_its_fault(
    place: Path, mood: Mood, failed: dict[str, str], found: dict[str, Severity]
) -> None:
    answer = probed(place, lambda: mount_fuse(place, mood, "fuse.hdfs"), fuse=True)
    assert (answer.type, answer.failed) == ("fuse.hdfs", failed)
    assert kinds(answer) == {"fuse-file-system": Severity.WARNING, **found}
    assert (answer.free_bytes or 0) > 1 << 40  # it shows room, whatever its fault is


def test_the_mount_that_is_seen_is_found_by_its_place(tmp_path: Path) -> None:
    rows = (
        "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n"
        rf"2 1 0:9 / {tmp_path!s}/with\040space rw shared:1 - nfs4 server:/x rw" + "\n"
        rf"3 1 0:9 / {tmp_path!s}/with\040space rw - fuse.hdfs hdfs rw" + "\n"
    )
    (tmp_path / "mounts").write_text(rows)
    (tmp_path / "with space").mkdir()
    assert file_system_type(tmp_path / "with space" / "x", tmp_path / "mounts") == "fuse.hdfs"
    assert file_system_type(tmp_path / "with", tmp_path / "mounts") == "ext4"
    assert file_system_type(tmp_path, tmp_path / "nothing") == "unknown"
