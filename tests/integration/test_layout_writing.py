"""Bundles are written whole or not at all, the same bytes every time, and never so that an edit reaches the store."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from envsmith.bundle import Descriptor
from envsmith.bundlecheck import judge_layout
from envsmith.errors import EnvsmithError, IntegrityError, Problem, SupplyError
from envsmith.tools.layout import open_layout, read_small, root_files
from envsmith.tools.layout_writing import (
    BytesContent,
    Content,
    FileContent,
    Written,
    part_size,
    write_folder,
    write_tar,
)
from envsmith.tools.progress import Progress
from envsmith.tools.registry_work import Work
from envsmith.tools.store import Store
from envsmith.tools.ustar import ending, header, padding
from tests.support.bundles import sample, sha

SAMPLE = sample()
OTHER = sample("h100", "7", extra=b"only here" * 999)
BLOBS = {**SAMPLE.blobs, SAMPLE.sha256: SAMPLE.data}
TORCH = SAMPLE.titled("wheels/torch-1-py3-none-any.whl")
OTHER_LAID = sample("h100", "7").laid
ROOT = Path(__file__).parent.parent.parent
QUIET = Progress()


class Counting(Progress):
    """Sums what it hears."""

    def __init__(self) -> None:
        self.total = self.seen = self.open = 0
        self.said: list[str] = []

    def start(self, total_bytes: int, items: int) -> None:
        self.total, self.open = total_bytes, self.open + 1

    def advance(self, count: int) -> None:
        self.seen += count

    def message(self, text: str) -> None:
        self.said.append(text)

    def done(self) -> None:
        self.open -= 1


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "home of blobs")
    for sha256, data in BLOBS.items():
        source = tmp_path / "incoming"
        source.write_bytes(data)
        assert store.add_file(source) == sha256
    return store


def from_store(store: Store) -> Written:
    return SAMPLE.written(contents={sha256: FileContent(path=store.blob_path(sha256)) for sha256 in SAMPLE.blobs})


def is_sound(path: Path) -> bool:
    """Whether every blob and every root file of the sample is there and right."""
    layout = open_layout(path, "x")
    for sha256, data in BLOBS.items():
        assert read_small(layout, sha256, len(data), "x") == data
    assert list(judge_layout([SAMPLE.laid], layout.sizes, root_files(layout), layout.others, "x")) == []
    return layout.root_file("index.json") == SAMPLE.written().index


def files_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(one.relative_to(folder)): (one.stat().st_mode & 0o777, one.read_bytes())
        for one in sorted(folder.rglob("*"))
        if one.is_file()
    }


def names(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir()}


# --- folders ---


def test_a_folder_holds_every_blob_and_the_files_for_people(store: Store, tmp_path: Path) -> None:
    heard = Counting()
    write_folder(tmp_path / "deep" / "x", from_store(store), heard)
    assert is_sound(tmp_path / "deep" / "x")
    found = files_of(tmp_path / "deep" / "x")
    assert {name: mode for name, (mode, _) in found.items() if mode != 0o644} == {"install.sh": 0o755}
    assert set(found) == {f"blobs/sha256/{sha256}" for sha256 in BLOBS} | names(tmp_path / "deep" / "x") - {"blobs"}
    assert (heard.seen, heard.open) == (heard.total, 0)
    assert heard.total == sum(map(len, BLOBS.values()))
    summed = subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=tmp_path / "deep" / "x", timeout=60)
    assert summed.returncode == 0


def test_the_same_folder_is_written_twice(store: Store, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_folder(tmp_path / name, from_store(store), QUIET)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    before = {one: one.stat().st_ino for one in (tmp_path / "a" / "blobs" / "sha256").iterdir()}
    heard = Counting()
    write_folder(tmp_path / "a", from_store(store), heard)
    assert {one: one.stat().st_ino for one in (tmp_path / "a" / "blobs" / "sha256").iterdir()} == before
    assert heard.seen == heard.total


def test_an_edit_of_the_folder_never_reaches_the_store(store: Store, tmp_path: Path) -> None:
    write_folder(tmp_path / "x", from_store(store), QUIET)
    for sha256 in SAMPLE.blobs:
        mine, theirs = tmp_path / "x" / "blobs" / "sha256" / sha256, store.blob_path(sha256)
        assert mine.stat().st_ino != theirs.stat().st_ino
        with mine.open("r+b") as stream:
            stream.write(b"edited")
        store.verify(sha256)


@pytest.mark.parametrize("damage", ["cut", "flip", "longer", "link", "hard link", "folder"])
def test_a_blob_in_the_folder_that_is_wrong_is_replaced(store: Store, tmp_path: Path, damage: str) -> None:
    write_folder(tmp_path / "x", from_store(store), QUIET)
    blob = tmp_path / "x" / "blobs" / "sha256" / TORCH
    data = blob.read_bytes()
    blob.unlink()
    outside = tmp_path / "outside"
    outside.write_bytes(data)
    if damage == "link":
        blob.symlink_to(outside)
    elif damage == "hard link":
        blob.hardlink_to(outside)
    elif damage == "folder":
        blob.mkdir()
        with pytest.raises(SupplyError) as error:
            write_folder(tmp_path / "x", from_store(store), QUIET)
        assert error.value.problems[0].code == "file-in-the-way"
        return
    else:
        blob.write_bytes({"cut": data[:1000], "flip": b"!" + data[1:], "longer": data + b"x"}[damage])
    heard = Counting()
    write_folder(tmp_path / "x", from_store(store), heard)
    assert heard.seen == heard.total
    assert is_sound(tmp_path / "x")
    assert outside.read_bytes() == data
    assert blob.stat().st_nlink == 1
    assert not blob.is_symlink()


def test_a_second_bundle_is_added_beside_the_first(store: Store, tmp_path: Path) -> None:
    write_folder(tmp_path / "x", from_store(store), QUIET)
    write_folder(tmp_path / "x", OTHER.written(SAMPLE.laid), QUIET)
    layout = open_layout(tmp_path / "x", "x")
    laid = [SAMPLE.laid, OTHER.laid]
    assert list(judge_layout(laid, layout.sizes, root_files(layout), layout.others, "x")) == []
    for sha256, data in {**BLOBS, **OTHER.blobs}.items():
        assert read_small(layout, sha256, len(data), "x") == data
    assert (layout.root_file("index.json") or b"").count(b'"digest"') == 2


ENDED = """
import os, shutil, sys
from pathlib import Path
from envsmith.tools.layout_writing import write_folder
from envsmith.tools.progress import Progress
from tests.support.bundles import sample

first, written = Path(sys.argv[1]), sample("h100", "7").written(sample().laid)
for steps in (0, 3, *range(14, 31)):
    shutil.copytree(first, f"{first}{steps}")
    child = os.fork()
    if not child:
        left = [steps]
        def hook(event, args):
            if event in ("os.rename", "os.remove"):
                left[0] -= 1
                if left[0] < 0:
                    os._exit(9)
        sys.addaudithook(hook)
        write_folder(Path(f"{first}{steps}"), written, Progress())
        os._exit(0)
    print(steps, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_whoever_is_killed_while_a_bundle_is_added_leaves_the_first_one_sound(tmp_path: Path) -> None:
    """Before any rename and any removal: the layout is sound for the index that it has."""
    write_folder(tmp_path / "x", SAMPLE.written(), QUIET)
    argv = [sys.executable, "-c", ENDED, str(tmp_path / "x")]
    said = subprocess.run(argv, timeout=60, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    rows = [line.split() for line in said.splitlines()]
    assert {code for _, code in rows} == {"9", "0"}
    added = 0
    for steps, _ in rows:
        folder = tmp_path / f"x{steps}"
        layout = open_layout(folder, "x")
        both = layout.root_file("index.json") != SAMPLE.written().index
        laid = [SAMPLE.laid, OTHER_LAID] if both else [SAMPLE.laid]
        assert list(judge_layout(laid, layout.sizes, root_files(layout), layout.others, "x")) == [], steps
        added += both
    assert 0 < added < len(rows)
    for steps in ("3", "18"):
        folder = tmp_path / f"x{steps}"
        write_folder(folder, sample("h100", "7").written(SAMPLE.laid), QUIET)
        assert not any(name.startswith(".envsmith-") for name in names(folder) | names(folder / "blobs" / "sha256"))


# --- tar files and parts ---


def test_a_tar_is_the_same_bytes_every_time(store: Store, tmp_path: Path) -> None:
    made = []
    for number in range(3):
        written = from_store(store)
        for sha256 in BLOBS:
            os.utime(store.blob_path(sha256), (number * 999, number * 999))
        shuffled = replace(
            written,
            blobs=written.blobs[::-1] if number % 2 else written.blobs,
            root=dict(sorted(written.root.items(), reverse=bool(number % 2))),
        )
        path = tmp_path / str(number) / "x.tar"
        assert write_tar(path, shuffled, QUIET) == (path,)
        made.append(path.read_bytes())
    assert made[0] == made[1] == made[2]
    assert is_sound(tmp_path / "0" / "x.tar")
    assert len(made[0]) % 10240 == 0


def test_a_tar_is_one_that_python_and_gnu_tar_take_small_blobs_first(store: Store, tmp_path: Path) -> None:
    write_tar(tmp_path / "x.tar", from_store(store), QUIET)
    with tarfile.open(tmp_path / "x.tar") as tar:
        members = tar.getmembers()
        assert {one.name: one.mode for one in members if one.mode != 0o644} == {"install.sh": 0o755}
        assert {(one.mtime, one.uid, one.gid, one.uname, one.gname, one.type) for one in members} == {
            (0, 0, 0, "", "", tarfile.REGTYPE)
        }
        blobs = [one.size for one in members if one.name.startswith("blobs/")]
        assert blobs == sorted(blobs)
        assert [one.name for one in members[:2]] == ["oci-layout", "index.json"]
    (tmp_path / "out").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "x.tar", "-C", tmp_path / "out"], check=True, timeout=60)
    assert is_sound(tmp_path / "out")
    write_folder(tmp_path / "same", from_store(store), QUIET)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "same")


@pytest.mark.parametrize("size", [64 << 10, 100_001, 1 << 30])
def test_parts_make_the_whole_and_their_sums_verify(store: Store, tmp_path: Path, size: int) -> None:
    write_tar(tmp_path / "whole.tar", from_store(store), QUIET)
    *parts, sums = write_tar(tmp_path / "p" / "x.tar", from_store(store), QUIET, part_bytes=size)
    whole = (tmp_path / "whole.tar").read_bytes()
    assert b"".join(part.read_bytes() for part in parts) == whole
    assert [part.name for part in parts] == [f"x.tar.part{n:03}" for n in range(-(-len(whole) // size))]
    assert all(part.stat().st_size == size for part in parts[:-1])
    assert {part.stat().st_mode & 0o777 for part in (*parts, sums)} == {0o644}
    check = ["sha256sum", "-c", "--strict", sums.name]
    assert subprocess.run(check, cwd=sums.parent, timeout=60, capture_output=True).returncode == 0
    assert is_sound(tmp_path / "p" / "x.tar")
    assert names(tmp_path / "p") == {one.name for one in (*parts, sums)}
    parts[0].write_bytes(b"!" + parts[0].read_bytes()[1:])
    assert subprocess.run(check, cwd=sums.parent, timeout=60, capture_output=True).returncode != 0


STRANGERS = (
    "x.tar.partial",
    "x.tar.part00a",
    "xx.tar.part001",
    "x.tar.part001.md5",
    "y.tar",
    ".envsmith-y.tar.abcdefgh",
)


def test_what_an_earlier_run_wrote_otherwise_goes_and_nothing_else(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    for name in STRANGERS:
        (folder / name).write_bytes(b"mine")
    (folder / "x.tar.part900").mkdir()
    kept = {*STRANGERS, "x.tar.part900"}
    many = write_tar(folder / "x.tar", from_store(store), QUIET, part_bytes=64 << 10)
    few = write_tar(folder / "x.tar", from_store(store), QUIET, part_bytes=200_000)
    assert len(few) < len(many)
    (folder / "x.tar.part900").rmdir()
    kept.remove("x.tar.part900")
    assert names(folder) == kept | {one.name for one in few}
    assert is_sound(folder / "x.tar")
    write_tar(folder / "x.tar", from_store(store), QUIET)
    assert names(folder) == kept | {"x.tar"}
    write_tar(folder / "x.tar", OTHER.written(), QUIET, part_bytes=200_000)
    assert "x.tar" not in names(folder)
    assert OTHER.sha256 in open_layout(folder / "x.tar", "x").sizes
    assert all((folder / name).read_bytes() == b"mine" for name in STRANGERS)


def test_more_parts_than_a_process_may_have_files_open(tmp_path: Path) -> None:
    script = (
        "import resource\nfrom pathlib import Path\nfrom envsmith.tools.layout_writing import write_tar\n"
        "from envsmith.tools.progress import Progress\nfrom tests.support.bundles import sample\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        f"print(len(write_tar(Path({str(tmp_path / 'x.tar')!r}), sample().written(), Progress(), part_bytes=4096)))\n"
    )
    argv = [sys.executable, "-c", script]
    said = subprocess.run(argv, check=True, timeout=60, cwd=ROOT, capture_output=True, text=True).stdout
    assert int(said) > 80


@pytest.mark.parametrize("size", [0, 1, 511, 512, (8 << 30) - 1, 8 << 30, 9 << 30, 1 << 45])
@pytest.mark.parametrize("name", [f"blobs/sha256/{'a' * 64}", "pylock." + "n" * 120 + ".toml", "ü.md"])
def test_headers_are_plain_and_extended_only_where_they_must_be(name: str, size: int) -> None:
    block = header(name, size)
    read = tarfile.TarFile(fileobj=io.BytesIO(block + bytes(1024))).firstmember
    assert read is not None
    assert (read.name, read.size, read.mode) == (name, size, 0o644)
    is_plain = size < 8 << 30 and len(name) <= 100 and name.isascii()
    assert (len(block) == 512) is is_plain
    assert header(name, size) == block


def test_gnu_tar_takes_a_member_of_nine_gibibytes(tmp_path: Path) -> None:
    size = 9 << 30
    with (tmp_path / "x.tar").open("wb") as stream:
        block = header("blobs/sha256/" + "a" * 64, size)
        stream.write(block)
        stream.seek(size, os.SEEK_CUR)
        stream.write(header("last", 0) + ending(len(block) + size + 512))
    listed = subprocess.run(["tar", "-tvf", tmp_path / "x.tar"], check=True, capture_output=True, text=True, timeout=60)
    assert [line.split()[2] for line in listed.stdout.splitlines()] == [str(size), "0"]
    assert list(open_layout(tmp_path / "x.tar", "x").sizes.values()) == [size]


# --- sizes of parts ---


def test_sizes_are_those_of_split() -> None:
    sizes = {"3900M": 3900 << 20, "4GB": 4 * 10**9, "64KiB": 64 << 10, "1T": 1 << 40, "512": 512, " 5G ": 5 << 30}
    assert {text: part_size(text) for text in sizes} == sizes
    for text in ("", "0", "0M", "-5M", "5m", "5MM", "M", "1.5G", "5B", "5iB", "٣M", "9" * 5000, "1e9", "5 M"):
        assert part_size(text) is None


# --- what goes wrong ---


def spoiled(store: Store, how: str) -> None:
    path = store.blob_path(TORCH)
    path.chmod(0o644)
    data = path.read_bytes()
    path.write_bytes({"flip": b"!" + data[1:], "cut": data[:1000], "longer": data + b"x", "empty": b""}[how])


@pytest.mark.parametrize("how", ["flip", "cut", "longer", "empty"])
@pytest.mark.parametrize("form", ["folder", "tar", "parts"])
def test_a_store_that_has_gone_bad_makes_no_bundle(store: Store, tmp_path: Path, how: str, form: str) -> None:
    spoiled(store, how)
    out = tmp_path / "out"
    with pytest.raises(IntegrityError) as error:
        if form == "folder":
            write_folder(out, from_store(store), QUIET)
        else:
            write_tar(out / "x.tar", from_store(store), QUIET, part_bytes=64 << 10 if form == "parts" else None)
    (problem,) = error.value.problems
    assert problem.code == "store-blob-corrupt"
    assert "`wheels/torch-1-py3-none-any.whl`" in problem.message
    assert (problem.expected, problem.where) == (f"sha256 {TORCH}", f"blobs/sha256/{TORCH}")
    if form == "folder":
        assert "index.json" not in names(out)
        assert TORCH not in names(out / "blobs" / "sha256")
        assert not any(name.startswith(".envsmith-") for name in names(out) | names(out / "blobs" / "sha256"))
    else:
        assert names(out) == set()


def test_a_blob_that_is_gone_from_the_store_is_said_of_the_store(store: Store, tmp_path: Path) -> None:
    store.blob_path(TORCH).unlink()
    for write in (lambda: write_folder(tmp_path / "x", from_store(store), QUIET),
                  lambda: write_tar(tmp_path / "x.tar", from_store(store), QUIET)):  # fmt: skip
        with pytest.raises(SupplyError) as error:
            write()
        (problem,) = error.value.problems
        assert (problem.code, problem.where) == ("file-missing", str(store.blob_path(TORCH)))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 300 KiB, where there is a right to mount one."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", path], timeout=60, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("no right to mount a file system")
    yield path
    subprocess.run(["umount", "-l", path], check=True, timeout=60)


@pytest.mark.parametrize("form", ["folder", "tar", "parts"])
def test_a_full_disk_is_said_of_the_place_and_leaves_nothing_half(store: Store, small_disk: Path, form: str) -> None:
    with pytest.raises(EnvsmithError) as error:
        if form == "folder":
            write_folder(small_disk / "x", from_store(store), QUIET)
        else:
            write_tar(small_disk / "x.tar", from_store(store), QUIET, part_bytes=64 << 10 if form == "parts" else None)
    (problem,) = error.value.problems
    assert problem.code == "disk-full"
    assert str(small_disk) in problem.message
    assert "needed" in (problem.hint or "")
    if form == "folder":
        assert "index.json" not in names(small_disk / "x")
        for blob in (small_disk / "x" / "blobs" / "sha256").iterdir():
            assert sha(blob.read_bytes()) == blob.name
    else:
        assert names(small_disk) == set()


def test_what_several_threads_meet_at_once_is_said_once() -> None:
    """Whether the second thread hears of the first in time is chance; what the user reads must not be."""
    both = threading.Barrier(2)

    def action(name: str) -> None:
        both.wait(timeout=30)
        raise SupplyError(Problem(code="disk-full", message=f"there is no room at `{name}`"))

    with pytest.raises(EnvsmithError) as error:
        Work(QUIET, jobs=2).each(["a", "b"], action)
    assert [problem.code for problem in error.value.problems] == ["disk-full"]


def test_a_store_that_is_full_is_said_of_the_store(small_disk: Path) -> None:
    store = Store(small_disk / "home")
    data = os.urandom(400 << 10)
    with pytest.raises(SupplyError) as error, store.receiving(sha(data)) as receiver:
        receiver.write(memoryview(data))
    assert error.value.problems[0].code == "disk-full"
    assert list((store.home / "partial").iterdir()) == []


def test_a_receiver_keeps_only_what_it_was_asked_for(store: Store) -> None:
    for promised, data in ((sha(b"a"), b"b"), (sha(b"a"), b"")):
        with pytest.raises(IntegrityError) as error, store.receiving(promised) as receiver:
            receiver.write(memoryview(data))
            receiver.commit()
        assert error.value.problems[0].code == "blob-digest-differs"
        assert not store.has(promised)
    with contextlib.suppress(KeyboardInterrupt), store.receiving(sha(b"a")) as receiver:
        receiver.write(memoryview(b"a"))
        raise KeyboardInterrupt
    assert not store.has(sha(b"a"))
    with store.receiving(sha(b"a")) as receiver:
        receiver.write(memoryview(b"a"))
        receiver.commit(name="a.whl")
    store.verify(sha(b"a"))
    assert store.facts(sha(b"a")) == {"name": "a.whl"}
    assert list((store.home / "partial").iterdir()) == []


def test_what_fails_where_the_bytes_come_from_is_not_told_of_the_store(store: Store) -> None:
    with pytest.raises(OSError, match="elsewhere"), store.receiving(sha(b"a")):
        raise OSError(5, "Input/output error", "elsewhere")
    assert list((store.home / "partial").iterdir()) == []


# --- killed and at once ---

KILLED = """
import sys, time
from pathlib import Path
from envsmith.tools.layout_writing import write_folder, write_tar
from envsmith.tools.progress import Progress
from tests.support.bundles import sample

class Slow(Progress):
    seen = 0
    def advance(self, count):
        self.seen += count
        if self.seen > 10_000:
            print("midway", flush=True)
            time.sleep(600)

form, place = sys.argv[1], Path(sys.argv[2])
if form == "folder":
    write_folder(place, sample().written(), Slow())
else:
    write_tar(place, sample().written(), Slow(), part_bytes=4096 if form == "parts" else None)
"""


@pytest.mark.parametrize("form", ["folder", "tar", "parts"])
def test_whoever_is_killed_midway_leaves_no_half_file_and_the_next_run_completes(tmp_path: Path, form: str) -> None:
    place = tmp_path / "out" / ("x" if form == "folder" else "x.tar")
    argv = [sys.executable, "-c", KILLED, form, str(place)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=ROOT) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"midway\n"
        writer.send_signal(signal.SIGKILL)
    left = names(place.parent) - {"x"}
    assert all(name.startswith(".envsmith-") for name in left)
    if form == "folder":
        assert "index.json" not in names(place)
        blobs = place / "blobs" / "sha256"
        for blob in blobs.iterdir():
            assert blob.name.startswith(".envsmith-") or sha(blob.read_bytes()) == blob.name
        (blobs / TORCH).write_bytes(BLOBS[TORCH][:1000])
        write_folder(place, SAMPLE.written(), QUIET)
        left = names(blobs) | names(place)
    else:
        write_tar(place, SAMPLE.written(), QUIET, part_bytes=65536 if form == "parts" else None)
        left = names(place.parent)
    assert not any(name.startswith(".envsmith-") for name in left)
    assert is_sound(place)


@dataclass(frozen=True)
class Stalled:
    """Content that waits until it is let go."""

    data: bytes
    begun: threading.Event
    go_on: threading.Event

    @contextlib.contextmanager
    def stream(self) -> Iterator[io.RawIOBase]:
        self.begun.set()
        assert self.go_on.wait(60)
        yield cast(io.RawIOBase, io.BytesIO(self.data))


@pytest.mark.parametrize("form", ["folder", "tar"])
def test_a_second_writer_waits_for_the_first(tmp_path: Path, form: str) -> None:
    begun, go_on = threading.Event(), threading.Event()
    contents: dict[str, Content] = {TORCH: Stalled(data=BLOBS[TORCH], begun=begun, go_on=go_on)}
    slow, heard, failed = SAMPLE.written(contents=contents), Counting(), []

    def write(written: Written, progress: Progress) -> None:
        try:
            if form == "folder":
                write_folder(tmp_path / "x", written, progress)
            else:
                write_tar(tmp_path / "x.tar", written, progress)
        except BaseException as error:
            failed.append(error)

    first = threading.Thread(target=write, args=(slow, QUIET))
    second = threading.Thread(target=write, args=(SAMPLE.written(), heard))
    first.start()
    assert begun.wait(60)
    second.start()
    deadline = time.monotonic() + 60
    while not heard.said and time.monotonic() < deadline:
        time.sleep(0.01)
    assert "waiting for another process" in heard.said[0]
    go_on.set()
    first.join()
    second.join()
    assert failed == []
    assert is_sound(tmp_path / ("x" if form == "folder" else "x.tar"))
    assert not any(name.startswith(".envsmith-") for name in names(tmp_path))


def test_a_failure_stops_the_other_threads(tmp_path: Path) -> None:
    """One wrong blob and thousands of others: what was not begun is not begun any more once the disk is full."""
    started = []

    @dataclass(frozen=True)
    class Noted:
        number: int

        @contextlib.contextmanager
        def stream(self) -> Iterator[io.RawIOBase]:
            started.append(self.number)
            if self.number == 0:
                raise OSError(28, "No space left on device")
            yield cast(io.RawIOBase, io.BytesIO(b"%d" % self.number))

    blobs = [
        (Descriptor(media_type="", sha256=hashlib.sha256(b"%d" % n).hexdigest(), size=len(str(n))), Noted(number=n))
        for n in range(2000)
    ]
    with pytest.raises(SupplyError) as error:
        write_folder(tmp_path / "x", Written(index=b"{}", root={}, blobs=blobs), QUIET)
    assert error.value.problems[0].code == "disk-full"
    assert len(started) < 500


def test_padding_and_end_fill_blocks_and_records() -> None:
    for size in (0, 1, 511, 512, 513, 10240):
        assert (size + padding(size)) % 512 == 0
    for length in range(0, 40960, 512):
        assert (length + len(ending(length))) % 10240 == 0
        assert len(ending(length)) >= 1024


def test_bytes_are_content_too(tmp_path: Path) -> None:
    with BytesContent(data=b"x").stream() as stream:
        assert stream.read() == b"x"
    (tmp_path / "f").write_bytes(b"y" * 10)
    with FileContent(path=tmp_path / "f").stream() as stream:
        assert (stream.read(4), stream.read()) == (b"yyyy", b"yyyyyy")
