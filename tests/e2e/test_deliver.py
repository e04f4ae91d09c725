"""`envsmith deliver` as a process: copies are equal, kills and faults leave nothing half, nothing is overwritten."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from envsmith.delivery import BEFORE, JOURNAL, LOCK, RECORD, SUMS
from tests.support.checkpoints import KINDS, safetensors, torch_file, write
from tests.support.mounts import Mood, inside, mount_fuse, mount_tmpfs, refusal
from tests.support.project import Said, envsmith

OURS = {RECORD, SUMS, JOURNAL, LOCK, BEFORE}
KILLS = 20


def deliver(source: Path, target: Path, *words: str) -> Said:
    return envsmith("deliver", source, target, *words, "--json", cwd=source.parent)


def content(folder: Path) -> dict[str, bytes | str]:
    """Files and links below a folder, ours left out."""
    found: dict[str, bytes | str] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if name.startswith(".envsmith-probe-"):
            continue  # of a trial that was killed; a later delivery removes it
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif path.is_file() and name not in OURS and not name.endswith(".envsmith-part"):
            found[name] = path.read_bytes()
    return found


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkpoint of verl with awkward neighbours: names, an empty file, links, a file that nobody may write to."""
    folder = write(tmp_path / "src", KINDS["verl"]())
    names = ("with space", "two\nlines", "é", "-n", "back\\slash", "empty", "\udcff", ".hidden", "x" * 250)
    write(folder, {f"other/{name}": name.encode(errors="surrogateescape") for name in names})
    (folder / "other/empty").write_bytes(b"")
    (folder / "other/é").chmod(0o440)
    os.utime(folder / "other/-n", ns=(5, 1_234_567_890_123_456_789))
    (folder / "empty folder").mkdir()
    (folder / "latest_step").symlink_to("global_step_10")
    (folder / "other/up").symlink_to("../global_step_10/data.pt")
    os.link(folder / "other/with space", folder / "other/hard")
    return folder


def test_a_copy_is_equal_and_can_be_checked_without_envsmith(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "made" / "dst"
    said = deliver(source, target)
    assert (said.code, said.codes) == (0, [])
    data = said.json["data"]
    assert content(target) == content(source)
    assert (target / "empty folder").is_dir()
    for name in content(source):
        if not (source / name).is_symlink():
            a, b = (source / name).stat(), (target / name).stat()
            assert (a.st_mode, a.st_mtime_ns) == (b.st_mode, b.st_mtime_ns)
    assert {path.name for path in target.iterdir()} & OURS == {RECORD, SUMS}
    check = subprocess.run(("sha256sum", "--strict", "-c", SUMS), cwd=target, capture_output=True, check=False)
    assert (check.returncode, check.stdout.count(b": OK")) == (0, data["files"])
    assert data["digest"] == "sha256:" + hashlib.sha256((target / SUMS).read_bytes()).hexdigest()
    assert (
        data["copied_bytes"]
        == data["bytes"]
        == sum(len(one) for one in content(source).values() if isinstance(one, bytes))
    )
    assert str(tmp_path) not in (target / RECORD).read_text()


def test_a_second_run_hashes_and_writes_nothing(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "dst"
    first = deliver(source, target).json["data"]
    before = {path: path.lstat() for path in target.rglob("*")}
    said = deliver(source, target).json["data"]
    assert (said["copied_files"], said["digest"]) == (0, first["digest"])
    assert {path: path.lstat().st_ctime_ns for path in target.rglob("*")} == {
        path: status.st_ctime_ns for path, status in before.items()
    }


def test_one_file_goes_into_the_folder(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "dst"
    file = source / "global_step_10/actor/model_world_size_8_rank_3.pt"
    assert deliver(file, target).code == 0
    assert content(target) == {file.name: file.read_bytes()}
    assert deliver(file, file.parent).codes == ["delivery-overlaps"]


def test_killed_at_any_instant_nothing_under_a_final_name_is_wrong_and_the_end_is_the_same(tmp_path: Path) -> None:
    chance = random.Random(20261130)
    source = write(
        tmp_path / "src",
        {
            **{f"big/{n}.bin": chance.randbytes(6 << 20) for n in range(6)},
            **{f"small/{n}": chance.randbytes(n) for n in range(300)},
        },
    )
    wanted = content(source)
    undisturbed = deliver(source, tmp_path / "whole").json["data"]["digest"]
    kills = finished = resumed = 0
    target = tmp_path / "dst0"
    for number in range(400):
        if kills >= KILLS and finished >= 2:
            break
        code = interrupted(source, target, chance.uniform(0, chance.choice((0.1, 0.4, 2.0))))
        there = content(target)
        assert all(wanted[name] == one for name, one in there.items())
        if code == 0:
            assert (there, finished) == (wanted, finished)
            assert digest_of(target) == undisturbed
            left = {path.name for path in target.iterdir() if not path.name.startswith(".envsmith-probe-")}
            assert left == {"big", "small", RECORD, SUMS}
            finished, target = finished + 1, tmp_path / f"dst{number + 1}"
        else:
            assert code == -signal.SIGKILL
            assert not (target / RECORD).exists() or digest_of(target) == undisturbed
            kills += 1
            resumed += len(there) > 0
    assert (kills >= KILLS, finished >= 2, resumed > 0) == (True, True, True)


def digest_of(target: Path) -> str:
    return str(json.loads((target / RECORD).read_text())["digest"])


def interrupted(source: Path, target: Path, after_s: float) -> int:
    """Start a delivery and kill it so long after its first file; 0 where it came to its end before."""
    argv = [sys.executable, "-m", "envsmith", "deliver", str(source), str(target), "-q"]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not (target / LOCK).exists() and process.poll() is None:
        time.sleep(0.002)
    time.sleep(after_s)
    process.kill()
    return process.wait()


def test_a_part_whose_bytes_are_the_beginning_is_continued_and_another_one_is_not(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(5 << 20)
    source, target = write(tmp_path / "src", {"x": data, "y": data}), tmp_path / "dst"
    write(target, {".x.envsmith-part": data[: 3 << 20], ".y.envsmith-part": b"?" + data[1 : 3 << 20]})
    said = deliver(source, target).json["data"]
    assert (said["resumed_bytes"], said["copied_bytes"]) == (3 << 20, 7 << 20)
    assert content(target) == {"x": data, "y": data}


def test_a_byte_that_flipped_after_the_delivery_is_found_and_mended_on_demand(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "dst"
    deliver(source, target)
    victim = target / "global_step_10/actor/optim_world_size_8_rank_5.pt"
    old, status = victim.read_bytes(), victim.stat()
    victim.write_bytes(old[:9] + bytes([old[9] ^ 1]) + old[10:])
    os.utime(victim, ns=(status.st_atime_ns, status.st_mtime_ns))  # size and time are as they were
    said = deliver(source, target)
    assert (said.code, said.codes) == (5, ["delivered-file-changed"])
    assert victim.name in said.out
    assert (target / RECORD).exists()
    onward = deliver(target, tmp_path / "onward")
    assert (onward.code, onward.codes) == (5, ["delivery-source-differs"])
    assert deliver(source, target, "--replace").code == 0
    assert content(target) == content(source)


def test_files_of_others_are_never_overwritten_silently(source: Path, tmp_path: Path) -> None:
    target = write(tmp_path / "dst", {"other/é": b"mine", "latest_step/x": b"mine", "unrelated": b"mine"})
    (target / "global_step_10").write_bytes(b"a file where a folder must be")
    before = content(target)
    said = deliver(source, target)
    assert (said.code, set(said.codes), len(said.codes)) == (2, {"destination-differs"}, 3)
    assert content(target) == before
    (target / "global_step_10").unlink()
    (target / "latest_step/x").unlink()
    (target / "latest_step").rmdir()
    assert deliver(source, target).codes == ["destination-differs"]
    assert deliver(source, target, "--replace").code == 0
    assert content(target) == {**content(source), "unrelated": b"mine"}


def test_a_link_in_the_destination_is_not_followed(source: Path, tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere", {"é": b"mine"})
    target = tmp_path / "dst"
    target.mkdir()
    (target / "other").symlink_to(elsewhere)
    assert set(deliver(source, target).codes) == {"destination-differs"}
    assert content(elsewhere) == {"é": b"mine"}


def test_a_file_of_an_interrupted_delivery_gives_way_to_the_new_source(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "dst"
    deliver(source, target)
    victim = source / "other/with space"
    victim.write_bytes(b"saved again")
    assert set(deliver(source, target).codes) == {"destination-differs"}  # that delivery had ended
    digests = json.loads((target / RECORD).read_text())["files"]
    (target / JOURNAL).write_text("".join(json.dumps(row) + "\n" for row in digests) + '{"path": "cut of')
    (target / RECORD).unlink()
    said = deliver(source, target)
    assert (said.code, said.json["data"]["copied_files"]) == (0, 2)  # the hard link has changed with it
    assert content(target) == content(source)


def broken_off(source: Path, target: Path, *words: str) -> None:
    """Begin a delivery that ends in the middle of a file of more than 8 MiB, as on a full disk."""
    argv = [sys.executable, "-c", LIMITED, str(source), str(target), *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, (target / JOURNAL).exists(), (target / RECORD).exists()) == (4, True, False), done.stdout


def test_what_an_ended_delivery_left_does_not_give_way_after_one_that_was_broken_off(tmp_path: Path) -> None:
    source, target = write(tmp_path / "src", {"a": b"first", "b": b"b"}), tmp_path / "dst"
    deliver(source, target)
    write(source, {"c": bytes(9 << 20)})
    broken_off(source, target)
    write(source, {"a": b"again"})
    for _ in range(2):
        said = deliver(source, target)
        assert (said.code, said.codes) == (2, ["destination-differs"])
        assert "an earlier delivery wrote it" in said.out
        assert (target / "a").read_bytes() == b"first"
    assert deliver(source, target, "--replace").code == 0
    assert content(target) == content(source)
    assert sums(target) == {"a", "b", "c"}
    assert {path.name for path in target.iterdir()} == {"a", "b", "c", RECORD, SUMS}


def test_what_was_replaced_on_demand_and_broken_off_is_still_of_others(tmp_path: Path) -> None:
    source = write(tmp_path / "src", {"a": bytes(9 << 20)})
    target = write(tmp_path / "dst", {"a": b"mine"})
    broken_off(source, target, "--replace")
    said = deliver(source, target)
    assert (said.code, said.codes, (target / "a").read_bytes()) == (2, ["destination-differs"], b"mine")
    assert "no delivery wrote it" in said.out


def sums(target: Path) -> set[str]:
    """The names in the sums, which must agree with the record and the files."""
    check = subprocess.run(("sha256sum", "--strict", "-c", SUMS), cwd=target, capture_output=True, check=False)
    assert check.returncode == 0, check.stdout
    names = {line.split("  ", 1)[1] for line in (target / SUMS).read_text().splitlines()}
    assert names == {row["path"] for row in json.loads((target / RECORD).read_text())["files"]}
    return names


def test_the_record_lists_what_every_delivery_wrote_and_is_still_so(tmp_path: Path) -> None:
    one = write(tmp_path / "one", {"a": b"a", "deep/b": b"b", "c": b"c"})
    (one / "link").symlink_to("a")
    two, target = write(tmp_path / "two", {"d": b"d"}), tmp_path / "dst"
    deliver(one, target)
    assert deliver(two, target).json["data"]["no_longer_recorded"] == []
    assert sums(target) == {"a", "deep/b", "c", "d"}
    assert deliver(write(tmp_path / "three", {"e": b"e"}) / "e", target).json["data"]["files"] == 5
    assert json.loads((target / RECORD).read_text())["links"] == [{"path": "link", "target": "a"}]
    before = (target / RECORD).stat().st_ctime_ns
    assert deliver(one, target).json["data"]["copied_files"] == 0
    assert (target / RECORD).stat().st_ctime_ns == before
    (target / "a").write_bytes(b"A")
    (target / "c").unlink()
    write(two, {"big": bytes(9 << 20)})
    broken_off(two, target)
    said = deliver(two, target)
    assert (said.code, said.json["data"]["no_longer_recorded"]) == (0, ["a", "c"])
    assert sums(target) == {"deep/b", "d", "e", "big"}
    assert (target / "a").read_bytes() == b"A"
    assert deliver(target, tmp_path / "onward").codes == ["delivery-source-differs"]  # `a` is in no record


def test_an_incomplete_delivery_stays_one_until_its_whole_source_is_delivered(tmp_path: Path) -> None:
    source, target = write(tmp_path / "src", KINDS["unindexed"]()), tmp_path / "dst"
    first = source / "pytorch_model-00001-of-00003.bin"
    first.unlink()
    assert deliver(source, target, "--allow-incomplete").code == 0
    assert deliver(write(tmp_path / "more", {"x": b"x"}), target).json["data"]["complete"] is False
    first.write_bytes(torch_file())
    write(source, {"x": b"x"})
    assert deliver(source, target).json["data"]["complete"] is True


@pytest.mark.parametrize("name", [".a.envsmith-part", RECORD, SUMS, JOURNAL, BEFORE, LOCK, "a"])
@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "folder"])
def test_what_is_no_file_under_a_name_of_ours_is_never_waited_for(tmp_path: Path, name: str, kind: str) -> None:
    source, target = write(tmp_path / "src", {"a": b"a"}), tmp_path / "dst"
    target.mkdir()
    if kind == "folder":
        (target / name).mkdir()
    else:
        os.mkfifo(tmp_path / "pipe")
        (target / name).symlink_to(tmp_path / "pipe") if kind != "pipe" else os.mkfifo(target / name)
    said = deliver(source, target)
    if name != ".a.envsmith-part":
        assert (said.code, said.codes) == (2, ["destination-differs"])
    else:
        assert (said.code, said.codes) == ((4, ["file-in-the-way"]) if kind == "folder" else (0, []))
    assert kind == "folder" or not (tmp_path / "pipe").is_file()


@pytest.mark.parametrize("name", [RECORD, BEFORE])
@pytest.mark.parametrize("text", ["", "{}", '{"envsmith-delivery": 1, "files": [{"path": "a", "size": 1e999}]}'])
def test_a_record_that_is_none_is_in_the_way(tmp_path: Path, name: str, text: str) -> None:
    source, target = write(tmp_path / "src", {"a": b"a"}), write(tmp_path / "dst", {name: text.encode()})
    said = deliver(source, target)
    assert (said.code, said.codes) == (2, ["destination-differs"])


def test_a_destination_that_is_a_file_or_below_one_is_refused(tmp_path: Path) -> None:
    source, target = write(tmp_path / "src", {"a": b"a"}), write(tmp_path, {"dst": b"mine"}) / "dst"
    for place in (target, target / "below"):
        said = deliver(source, place)
        assert (said.code, said.codes) == (2, ["destination-differs"])
    assert target.read_bytes() == b"mine"


def test_a_source_that_changes_meanwhile_is_an_error(tmp_path: Path) -> None:
    source = write(tmp_path / "src", {f"{n}": bytes(4 << 20) for n in range(6)})
    longer = bytes((4 << 20) + 1)
    for change in (lambda: (source / "3").write_bytes(longer), lambda: (source / "new").write_bytes(b"")):
        said = while_it_copies(source, tmp_path / "dst", change)
        assert (said.code, set(said.codes)) == (4, {"source-changed"}), said.err
        assert not (tmp_path / "dst" / RECORD).exists()
    assert deliver(source, tmp_path / "dst").code == 0
    assert content(tmp_path / "dst") == content(source)


def while_it_copies(source: Path, target: Path, change: Callable[[], object]) -> Said:
    """Hold the delivery between its list and its copies by the lock of the destination."""
    target.mkdir(exist_ok=True)
    argv = [sys.executable, "-m", "envsmith", "deliver", str(source), str(target), "--json"]
    with (target / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        assert any("waiting" in line for line in process.stderr)
        change()
    out, err = process.communicate(timeout=60)
    return Said(process.returncode, out, err)


def test_two_deliveries_into_one_folder_wait_for_each_other(source: Path, tmp_path: Path) -> None:
    said = while_it_copies(source, tmp_path / "dst", lambda: None)
    assert said.code == 0
    argv = [sys.executable, "-m", "envsmith", "deliver", str(source), str(tmp_path / "two"), "-q"]
    both = [subprocess.Popen(argv) for _ in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    assert content(tmp_path / "two") == content(source)
    assert not (tmp_path / "two" / LOCK).exists()


def test_a_checkpoint_that_lacks_a_rank_is_not_copied_but_on_demand(source: Path, tmp_path: Path) -> None:
    target, lost = tmp_path / "dst", "global_step_10/actor/model_world_size_8_rank_3.pt"
    (source / lost).unlink()
    (source / "global_step_10/actor/optim_world_size_8_rank_0.pt").write_bytes(torch_file()[:-5])
    write(source, {"a.safetensors": safetensors()[:-1], "b.pt": b""})
    said = deliver(source, target)
    assert (said.code, said.json["status"]) == (1, "findings")
    assert said.kinds == {"shards/shard-missing", "shards/shard-truncated", "shards/shard-empty"}
    assert f"rank 3 of 8 is not there: `{lost}`" in said.out
    assert not target.exists()
    said = deliver(source, target, "--allow-incomplete")
    assert (said.code, said.json["data"]["complete"]) == (0, False)
    assert json.loads((target / RECORD).read_text())["complete"] is False
    write(source, {lost: torch_file()})
    assert deliver(source, target).code == 1  # the others are still cut


def test_sources_that_cannot_be_copied_are_refused_at_once(source: Path, tmp_path: Path) -> None:
    (source / "out").symlink_to("../elsewhere")
    (source / "absolute").symlink_to(source / "other")
    (source / "dangling").symlink_to("nothing")
    os.mkfifo(source / "pipe")
    with socket.socket(socket.AF_UNIX) as one:
        os.chdir(source)
        one.bind("socket")
        said = deliver(source, tmp_path / "dst")
    assert said.code == 2
    assert sorted(said.codes) == ["link-leaves-source"] * 3 + ["special-file"] * 2
    assert not (tmp_path / "dst").exists()
    (tmp_path / "none").mkdir()
    assert deliver(tmp_path / "none", tmp_path / "dst").codes == ["delivery-source-empty"]
    assert deliver(tmp_path / "nothing", tmp_path / "dst").codes == ["delivery-source-missing"]
    assert deliver(write(tmp_path / "half", {JOURNAL: b""}), tmp_path / "dst").codes == ["delivery-source-unfinished"]


def test_a_delivered_copy_is_held_against_its_record_both_ways(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "dst"
    deliver(source, target)
    record = (target / RECORD).read_bytes()
    damage: dict[str, Callable[[], object]] = {
        "hidden` is not there": (target / "other/.hidden").unlink,
        "new` is not in the record": lambda: (target / "other/new").write_bytes(b""),
        "up` is not the link": (target / "other/up").unlink,
        "is no record": lambda: (target / RECORD).write_bytes(b"{}"),
    }
    for words, act in damage.items():
        act()
        said = deliver(target, tmp_path / "onward")
        assert (said.code, set(said.codes)) == (5, {"delivery-source-differs"})
        assert words in said.out
        assert not (tmp_path / "onward").exists()
    (target / RECORD).unlink()
    assert deliver(target, tmp_path / "onward").code == 0
    (target / RECORD).write_bytes(record)
    file = target / "global_step_10/actor/model_world_size_8_rank_3.pt"
    assert deliver(file, tmp_path / "single").code == 0
    file.write_bytes(torch_file(2))
    assert deliver(file, tmp_path / "another").codes == ["delivery-source-differs"]


def test_what_a_killed_trial_left_is_no_part_of_a_checkpoint(tmp_path: Path) -> None:
    source, target = write(tmp_path / "src", {"a": b"a", ".envsmith-probe-x1_y2z3a": bytes(9)}), tmp_path / "dst"
    assert deliver(source, target).code == 0
    assert content(target) == {"a": b"a"}
    assert sums(target) == {"a"}
    write(target, {".envsmith-probe-x1_y2z3a": bytes(9)})
    assert deliver(target, tmp_path / "onward").code == 0


def test_folders_that_hold_each_other_are_refused_by_any_name(source: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(source)
    for target in (source, source / "other" / "new", tmp_path, tmp_path / "alias", tmp_path / "alias" / "x"):
        assert deliver(source, target).codes == ["delivery-overlaps"]


def test_ten_thousand_files_take_seconds(tmp_path: Path) -> None:
    source = write(tmp_path / "src", {f"{n % 100}/{n}": b"%d" % n for n in range(10_000)})
    said = deliver(source, tmp_path / "dst").json["data"]
    assert (said["files"], said["copied_files"]) == (10_000, 10_000)
    assert said["seconds"] < 120


def test_the_result_for_people_has_the_digest(source: Path, tmp_path: Path) -> None:
    said = envsmith("deliver", source, tmp_path / "dst", cwd=tmp_path)
    assert said.code == 0
    assert "digest: sha256:" in said.out and SUMS in said.out
    assert "[3/3]" in said.err and "[3/3]" not in said.out


# -- file systems that fail


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    place = tmp_path / "mounted"
    place.mkdir()
    return place


def test_a_disk_that_is_full_is_one_error_and_the_next_run_goes_on(tmp_path: Path, mounted: Path) -> None:
    source = write(tmp_path / "src", {"a": os.urandom(9 << 20), "b": os.urandom(9 << 20)})
    if reason := refusal(mounted):
        pytest.skip(reason)

    def job() -> tuple[Said, Said, list[str], dict[str, bytes | str], Said]:
        before = deliver(source, mounted)  # 18 MiB do not fit, and that is known beforehand
        filler = mounted / "filler"
        filler.write_bytes(bytes(6 << 20))
        one = deliver(source / "a", mounted / "a")
        filler.write_bytes(b"")
        limited = [sys.executable, "-c", LIMITED, str(source / "b"), str(mounted / "b")]
        done = subprocess.run(limited, capture_output=True, text=True, check=False)
        names = [path.name for path in (mounted / "b").iterdir()]
        there = content(mounted / "b")
        return before, one, names, there, Said(done.returncode, done.stdout, done.stderr)

    before, one, names, there, limited = inside(lambda: mount_tmpfs(mounted, "14m"), job)
    assert (before.code, before.codes) == (4, ["disk-full"])
    assert (one.code, one.codes) in ((4, ["disk-full"]), (3, []))
    assert (limited.code, limited.codes) == (4, ["disk-full"])
    assert sorted(names) == [".b.envsmith-part", JOURNAL]
    assert there == {}


LIMITED = """
import resource, signal, sys
from envsmith import cli
from envsmith.tools import checkpointprobe
resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
cli.main(["deliver", *sys.argv[1:], "--json"])
"""


@pytest.mark.parametrize(
    ("mood", "code", "said"),
    [
        (Mood(), 0, {"checkpoint/fuse-file-system"}),
        (
            Mood(refuses=frozenset({"ftruncate", "append", "chmod", "mmap", "fallocate"})),
            0,
            {
                "checkpoint/fuse-file-system",
                "checkpoint/ftruncate-unsupported",
                "checkpoint/mmap-unsupported",
                "checkpoint/fallocate-unsupported",
            },
        ),
        (Mood(fails_after=(8 << 20) + (3 << 19)), 4, {"file-system-failed"}),
        (Mood(flips=(8 << 20) + 1_000_000), 5, {"delivery-differs"}),
        (Mood(fails_after=1 << 20), 3, {"checkpoint/fuse-file-system", "checkpoint/write-failed"}),
    ],
    ids=["good", "poor", "fails-in-the-middle", "changes-bytes", "fails-at-once"],
)
def test_on_a_fuse_mount(tmp_path: Path, mounted: Path, mood: Mood, code: int, said: set[str]) -> None:
    source = write(tmp_path / "src", {"a.safetensors": safetensors(2 << 20, b"\x2a"), "b/c": b"c"})
    (source / "link").symlink_to("b/c")
    if reason := refusal(mounted, fuse=True):
        pytest.skip(reason)

    def job() -> tuple[Said, dict[str, bytes | str], bool]:
        done = deliver(source, mounted)
        return done, content(mounted), (mounted / RECORD).exists()

    done, there, is_recorded = inside(lambda: mount_fuse(mounted, mood), job)
    found = done.kinds if code in (0, 3) else set(done.codes)
    assert (done.code, found, is_recorded) == (code, said, code == 0), done.err
    wanted = content(source)
    assert all(wanted[name] == one for name, one in there.items())
    assert there == wanted or code != 0
