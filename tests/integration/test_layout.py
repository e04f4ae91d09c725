"""Bundles are read from folders, tar files, parts and pipes; nothing that is there is believed."""

from __future__ import annotations

import io
import os
import random
import shutil
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from envsmith.bundle import LARGEST_MANIFEST
from envsmith.errors import EnvsmithError, InputError, IntegrityError, SupplyError
from envsmith.tools.layout import Layout, Spooled, bundle_files, copy_blob, open_layout, read_small, root_files, spool
from envsmith.tools.layout_writing import write_folder, write_tar
from envsmith.tools.progress import Progress
from envsmith.tools.store import Store
from envsmith.tools.ustar import header, padding
from tests.support.bundles import crafted_tar, gnu_tar, sample, sha

SAMPLE = sample()
BLOBS = {**SAMPLE.blobs, SAMPLE.sha256: SAMPLE.data}
SIZES = {sha256: len(data) for sha256, data in BLOBS.items()}
ROOT = {"oci-layout", "index.json", "FILES.tsv", "SHA256SUMS", "install.sh", "MANIFEST.md", "pylock.a100-rl.toml"}
TORCH = SAMPLE.titled("wheels/torch-1-py3-none-any.whl")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample as a folder `x` and as a tar `x.tar`; tests copy what they change."""
    path = tmp_path_factory.mktemp("made")
    write_folder(path / "x", SAMPLE.written(), Progress())
    write_tar(path / "x.tar", SAMPLE.written(), Progress())
    return path


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "x", tmp_path / "x"))


@pytest.fixture
def tar(made: Path) -> bytes:
    return (made / "x.tar").read_bytes()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "blobs of mine")


def blob(folder: Path, sha256: str) -> Path:
    return folder / "blobs" / "sha256" / sha256


def content(layout: Layout, sha256: str) -> bytes:
    with layout.open(sha256) as stream:
        return stream.read()


def same_as_sample(layout: Layout) -> None:
    assert dict(layout.sizes) == SIZES
    assert set(layout.others) == ROOT
    for sha256, data in BLOBS.items():
        assert read_small(layout, sha256, len(data), "x") == data
    assert layout.root_file("index.json") == SAMPLE.written().index
    assert layout.root_file("absent") is None
    assert root_files(layout) == dict(SAMPLE.written().root)


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def problem_of(call: Callable[[], object], kind: type[EnvsmithError] = IntegrityError) -> tuple[str, str]:
    with pytest.raises(kind) as error:
        call()
    (problem,) = error.value.problems
    return problem.code, problem.message


def refused(tmp_path: Path, store: Store, data: bytes) -> str:
    """What is said of a tar that must be refused, the same of a file, of its parts and of a pipe."""
    path = written(tmp_path / "bad.tar", data)
    parts = tmp_path / "parts"
    parts.mkdir(exist_ok=True)
    for old in parts.iterdir():
        old.unlink()
    for number, start in enumerate(range(0, max(len(data), 1), 40_001)):
        written(parts / f"bad.tar.part{number:03}", data[start : start + 40_001])
    said = problem_of(lambda: open_layout(path, "bad"))
    assert problem_of(lambda: open_layout(parts / "bad.tar", "bad")) == said
    assert problem_of(lambda: spool(io.BytesIO(data), store, "stdin")) == said
    assert list((store.home / "partial").glob("*")) == []
    assert said[0] == "bundle-malformed"
    return said[1]


# --- sound bundles in all their forms ---


def test_a_folder_is_read(made: Path) -> None:
    same_as_sample(open_layout(made / "x", "x"))


def test_a_tar_of_ours_is_read(made: Path) -> None:
    same_as_sample(open_layout(made / "x.tar", "x"))


@pytest.mark.parametrize(
    "options", [(), ("--format=ustar",), ("--format=posix",), ("--format=v7",), ("--format=oldgnu",), ("-b", "400")]
)
def test_a_tar_of_the_folder_by_gnu_tar_is_read(
    made: Path, tmp_path: Path, store: Store, options: tuple[str, ...]
) -> None:
    path = gnu_tar(made / "x", tmp_path / "g.tar", *options)
    same_as_sample(open_layout(path, "x"))
    with path.open("rb") as stream:
        same_as_sample(spool(stream, store, "stdin"))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_a_tar_of_the_folder_by_python_is_read(made: Path, tmp_path: Path, form: int) -> None:
    with tarfile.open(tmp_path / "p.tar", "w", format=form) as out:
        out.add(made / "x", arcname="./")
    same_as_sample(open_layout(tmp_path / "p.tar", "x"))


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="skopeo is not here")
def test_what_skopeo_copies_is_read(made: Path, tmp_path: Path, store: Store) -> None:
    path = tmp_path / "s.tar"
    argv = ["skopeo", "--insecure-policy", "copy", "--quiet", f"oci:{made / 'x'}:a100-3", f"oci-archive:{path}:t"]
    subprocess.run(argv, check=True, timeout=120, env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)})
    with path.open("rb") as stream:
        piped = spool(stream, store, "stdin")
    for layout in (open_layout(path, "x"), piped):
        assert dict(layout.sizes) == SIZES
        assert set(layout.others) == {"oci-layout", "index.json"}
        assert read_small(layout, TORCH, SIZES[TORCH], "torch") == BLOBS[TORCH]


@pytest.mark.parametrize("size", [70_001, 100_000, 512 * 200, 40 << 10])
def test_parts_cut_anywhere_are_read_by_any_of_their_names(tar: bytes, tmp_path: Path, store: Store, size: int) -> None:
    pieces = [tar[start : start + size] for start in range(0, len(tar), size)]
    for number, piece in enumerate(pieces):
        written(tmp_path / f"x.tar.part{number:03}", piece)
    written(tmp_path / "x.tar.partial", b"not a part")
    written(tmp_path / "y.tar.part000", b"of another")
    for name in ("x.tar", "x.tar.part000", f"x.tar.part{len(pieces) - 1:03}"):
        same_as_sample(open_layout(tmp_path / name, "x"))


def test_a_tar_through_a_pipe_comes_to_lie_in_the_store(tar: bytes, store: Store) -> None:
    heard: list[int] = []
    layout = spool(io.BytesIO(tar), store, "stdin", heard.append)
    same_as_sample(layout)
    assert sum(heard) == sum(SIZES.values())
    assert {sha256 for sha256, _ in store.blobs()} == set(SIZES)
    for sha256 in SIZES:
        store.verify(sha256)
    assert list((store.home / "partial").iterdir()) == []


def test_a_pipe_that_comes_in_drops_is_read(tar: bytes, store: Store) -> None:
    class Dripping(io.RawIOBase):
        def __init__(self) -> None:
            self.left = memoryview(tar)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            count = min(len(buffer), random.randint(1, 5000), len(self.left))
            memoryview(buffer)[:count] = self.left[:count]
            self.left = self.left[count:]
            return count

    same_as_sample(spool(cast(BinaryIO, Dripping()), store, "stdin"))


def test_a_real_pipe_of_joined_parts_is_read_to_its_end(made: Path, store: Store) -> None:
    with subprocess.Popen(["cat", made / "x.tar"], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        same_as_sample(spool(cast(BinaryIO, cat.stdout), store, "stdin"))
    assert cat.returncode == 0


def test_many_threads_read_one_archive(made: Path) -> None:
    layout = open_layout(made / "x.tar", "x")
    wrong: list[str] = []

    def read() -> None:
        for sha256, data in list(BLOBS.items()) * 5:
            if content(layout, sha256) != data:
                wrong.append(sha256)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- what is no bundle ---


def test_what_is_not_there_or_no_bundle_is_said_with_what_to_name(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("absent", "absent.tar", "empty", "absent/below"):
        code, _ = problem_of(lambda name=name: open_layout(tmp_path / name, name), InputError)  # type: ignore[misc]
        assert code == "bundle-unknown"


@pytest.mark.parametrize("tool", ["gzip", "bzip2", "xz", "zstd"])
def test_a_packed_tar_is_told_from_a_damaged_one(made: Path, tmp_path: Path, tool: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not here")
    packed = subprocess.run([tool, "-c", made / "x.tar"], check=True, capture_output=True, timeout=60).stdout
    code, said = problem_of(lambda: open_layout(written(tmp_path / "x.tar", packed), "x"), InputError)
    assert code == "bundle-unknown"
    assert f"packed with {tool}" in said


# --- parts ---


@pytest.fixture
def parts(made: Path, tmp_path: Path) -> Path:
    write_tar(tmp_path / "p" / "x.tar", SAMPLE.written(), Progress(), part_bytes=64 << 10)
    return tmp_path / "p"


def test_a_gap_names_the_first_part_that_is_missing(parts: Path) -> None:
    (parts / "x.tar.part001").unlink()
    code, said = problem_of(lambda: open_layout(parts / "x.tar", "x"), SupplyError)
    assert (code, said) == ("bundle-part-missing", "part `x.tar.part001` is not there")
    (parts / "x.tar.part002").unlink()
    assert "and 1 more are not there" in problem_of(lambda: open_layout(parts / "x.tar", "x"), SupplyError)[1]


def test_a_missing_last_part_is_known_by_the_file_of_sums(parts: Path) -> None:
    last = max(bundle_files(parts / "x.tar"))
    last.unlink()
    code, said = problem_of(lambda: open_layout(parts / "x.tar", "x"), SupplyError)
    assert (code, said) == ("bundle-part-missing", f"part `{last.name}` is not there")
    (parts / "x.tar.SHA256SUMS").unlink()
    assert "it ends" in problem_of(lambda: open_layout(parts / "x.tar", "x"))[1]


def test_a_file_of_sums_may_hold_anything(parts: Path) -> None:
    good = (parts / "x.tar.SHA256SUMS").read_bytes()
    for junk in (b"", b"\xff\xfe", b"x  y\n", b"\n" * 9, b"0  x.tar.part" + b"9" * 400, b"0  ../x.tar.part999\n"):
        written(parts / "x.tar.SHA256SUMS", good + junk)
        same_as_sample(open_layout(parts / "x.tar", "x"))


def test_a_first_part_that_is_missing_is_missed(parts: Path) -> None:
    (parts / "x.tar.part000").unlink()
    assert "`x.tar.part000`" in problem_of(lambda: open_layout(parts / "x.tar", "x"), SupplyError)[1]


def test_parts_in_the_wrong_order_or_twice_are_refused(parts: Path) -> None:
    one, two = parts / "x.tar.part000", parts / "x.tar.part001"
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    assert problem_of(lambda: open_layout(parts / "x.tar", "x"))[0] == "bundle-malformed"


def test_what_only_looks_like_a_part_is_none(tmp_path: Path, tar: bytes) -> None:
    written(tmp_path / "x.tar.part000", tar)
    for name in ("x.tar.part٠٠١", "x.tar.part0001", "x.tar.part01", "x.tar.part001\n", "x.tar.part001.bak"):
        written(tmp_path / name, b"junk")
    same_as_sample(open_layout(tmp_path / "x.tar", "x"))


# --- damaged archives ---


def places(tar: bytes) -> Iterator[tuple[str, int]]:
    """Where a tar can break off, by kind."""
    with tarfile.open(fileobj=io.BytesIO(tar)) as read:
        members = read.getmembers()
    last = members[-1]
    yield "before the first header", 0
    yield "in the first header", 100
    yield "after the first header", 512
    for member in (members[2], members[len(members) // 2], last):
        yield f"before {member.name}", member.offset
        yield f"in the header of {member.name}", member.offset + 300
        yield f"at the begin of {member.name}", member.offset_data
        yield f"in the middle of {member.name}", member.offset_data + member.size // 2
        if member.size:
            yield f"one byte before the end of {member.name}", member.offset_data + member.size - 1
        if member.size % 512:
            yield f"before the padding of {member.name}", member.offset_data + member.size
    end = last.offset_data + last.size + padding(last.size)
    yield "before the end mark", end
    yield "in the end mark", end + 512
    yield "one byte before the end of the end mark", end + 1023


def test_an_archive_that_ends_early_is_refused_wherever_it_breaks_off(tar: bytes, tmp_path: Path, store: Store) -> None:
    seen = 0
    for name, place in places(tar):
        said = refused(tmp_path, store, tar[:place])
        assert "it ends" in said, name
        seen += 1
    assert seen > 15


def test_a_truncated_member_is_named(tar: bytes, tmp_path: Path, store: Store) -> None:
    assert f"it ends in the middle of `blobs/sha256/{TORCH}`" in refused(tmp_path, store, tar[:-20_000])


def test_the_end_mark_needs_no_filling(tar: bytes, tmp_path: Path, store: Store) -> None:
    end = len(tar.rstrip(b"\0"))
    bare = tar[: end + padding(end) + 1024]
    same_as_sample(open_layout(written(tmp_path / "b.tar", bare), "x"))
    same_as_sample(spool(io.BytesIO(bare + bytes(10_000)), store, "stdin"))


@pytest.mark.parametrize("tail", [b"x", bytes(5000) + b"x", bytes(2 << 20)], ids=["at-once", "later", "zeros"])
def test_an_archive_that_goes_on_after_its_end_is_refused(
    tar: bytes, tmp_path: Path, store: Store, tail: bytes
) -> None:
    assert "it goes on after its end" in refused(tmp_path, store, tar + tail)


def test_two_archives_in_a_row_are_refused(tar: bytes, tmp_path: Path, store: Store) -> None:
    assert "it goes on after its end" in refused(tmp_path, store, tar + tar)


def test_a_changed_byte_in_any_header_is_refused(tar: bytes, tmp_path: Path, store: Store) -> None:
    with tarfile.open(fileobj=io.BytesIO(tar)) as read:
        offsets = [member.offset for member in read.getmembers()]
    chosen = random.Random(5)
    for offset in offsets:
        damaged = bytearray(tar)
        damaged[offset + chosen.randrange(400)] ^= 1 << chosen.randrange(8)
        refused(tmp_path, store, bytes(damaged))


def test_random_bytes_are_refused(tmp_path: Path, store: Store) -> None:
    for size in (1, 511, 512, 5000):
        refused(tmp_path, store, random.Random(size).randbytes(size))


def info(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size = kind, link, size
    return member


GOOD = (info("oci-layout"), b"{}")


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (info("x", tarfile.SYMTYPE, "/etc/passwd"), "a symbolic link"),
        (info(f"blobs/sha256/{TORCH}", tarfile.SYMTYPE, "../../x"), "a symbolic link"),
        (info("x", tarfile.LNKTYPE, "oci-layout"), "a hard link"),
        (info("x", tarfile.CHRTYPE), "a device"),
        (info("x", tarfile.BLKTYPE), "a device"),
        (info("x", tarfile.FIFOTYPE), "a named pipe"),
        (info("x", tarfile.GNUTYPE_SPARSE), "a sparse file"),
        (info("x", tarfile.CONTTYPE), "of an unknown kind"),
        (info("x", b"Z"), "of an unknown kind"),
        (info("../x"), "plain relative path"),
        (info("blobs/../../x"), "plain relative path"),
        (info("/etc/x"), "plain relative path"),
        (info("blobs//x"), "plain relative path"),
        (info("blobs/./x"), "plain relative path"),
        (info(".."), "plain relative path"),
        (info("../x", tarfile.DIRTYPE), "plain relative path"),
        (info("/x", tarfile.DIRTYPE), "plain relative path"),
        (info("a\nb"), "plain relative path"),
        (info("a\x1b[2Jb"), "plain relative path"),
        (info(""), "plain relative path"),
    ],
    ids=lambda value: value if isinstance(value, str) else ascii(value.name)[:30],
)
def test_a_member_that_no_bundle_holds_is_refused(
    tmp_path: Path, store: Store, member: tarfile.TarInfo, words: str
) -> None:
    beside = {path: path.lstat().st_mtime_ns for path in tmp_path.parent.iterdir() if path != tmp_path}
    said = refused(tmp_path, store, crafted_tar([GOOD, (member, b"")]))
    assert words in said
    assert "\x1b" not in said
    assert {path: path.lstat().st_mtime_ns for path in tmp_path.parent.iterdir() if path != tmp_path} == beside


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path, store: Store) -> None:
    assert "not UTF-8" in refused(tmp_path, store, crafted_tar([(info("caf\udce9"), b"")]))


@pytest.mark.parametrize("name", ["index.json", "./index.json", f"blobs/sha256/{TORCH}", f"./blobs/sha256/{TORCH}"])
def test_a_member_that_stands_twice_is_refused(tmp_path: Path, store: Store, name: str) -> None:
    data = BLOBS[TORCH]
    crafted = crafted_tar([(info(name.removeprefix("./")), data), (info(name), data)])
    assert f"it holds `{name.removeprefix('./')}` twice" in refused(tmp_path, store, crafted)


def test_a_root_file_that_is_named_like_a_digest_is_no_blob(tmp_path: Path, store: Store) -> None:
    data = crafted_tar([(info(f"blobs/sha256/{TORCH}"), BLOBS[TORCH]), (info(TORCH), b"x")])
    for layout in (open_layout(written(tmp_path / "x.tar", data), "x"), spool(io.BytesIO(data), store, "stdin")):
        assert dict(layout.sizes) == {TORCH: SIZES[TORCH]}
        assert dict(layout.others) == {TORCH: 1}


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_in_both_forms_are_read(tmp_path: Path, store: Store, form: int) -> None:
    name = "notes/" + "n" * 150 + "/ü.txt"
    data = crafted_tar([GOOD, (info(name), b"hello"), (info("z"), b"")], form)
    for layout in (open_layout(written(tmp_path / "x.tar", data), "x"), spool(io.BytesIO(data), store, "stdin")):
        assert dict(layout.others) == {"oci-layout": 2, name: 5, "z": 0}
    evil = crafted_tar([GOOD, (info("n" * 150 + "/../../x"), b"")], form)
    assert "plain relative path" in refused(tmp_path, store, evil)


def extended(kind: bytes, data: bytes, size: int | None = None) -> bytes:
    """An extended header, which Python would not write, and an empty file after it."""
    block = bytearray(header("ext", len(data) if size is None else size))
    block[156:157] = kind
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + data + bytes(padding(len(data))) + header("oci-layout", 0) + bytes(1024)


@pytest.mark.parametrize(
    ("kind", "data", "size"),
    [
        (b"x", b"", 1 << 32), (b"L", b"", 1 << 32), (b"x", b"x" * 70_000, None), (b"x", b"nonsense", None),
        (b"x", b"99 path=x\n", None), (b"x", b"0 path=x\n", None), (b"x", b"9 path=x ", None),
        (b"x", b"12 size=-5\n\n", None), (b"x", b"10 size=-5\n", None), (b"x", b"11 size=1e9\n", None),
        (b"x", b"13 path=../x\n", None), (b"x", b"12 path=a\0b\n", None), (b"x", b"11 path=\xff\xfe\n", None),
        (b"g", b"10 path=x\n", None), (b"g", b"9 size=5\n", None), (b"x", b"22 GNU.sparse.major=1\n", None),
        (b"L", b"../../etc/x\0", None), (b"L", b"/etc/x\0", None), (b"K", b"target\0", None),
    ],
)  # fmt: skip
def test_a_bad_extended_header_is_refused(
    tmp_path: Path, store: Store, kind: bytes, data: bytes, size: int | None
) -> None:
    refused(tmp_path, store, extended(kind, data, size))


@pytest.mark.parametrize("kind", [b"x", b"g", b"L"])
def test_an_extended_header_is_never_read_whole_when_it_is_long(tmp_path: Path, store: Store, kind: bytes) -> None:
    sound = b"70000 comment=" + b"x" * (70_000 - 15) + b"\n"
    assert f"it holds an extended header of {len(sound)} bytes" in refused(tmp_path, store, extended(kind, sound))
    assert "it holds an extended header of" in refused(tmp_path, store, extended(kind, b"", 6 << 30))


def test_an_extended_header_before_nothing_is_refused(tmp_path: Path, store: Store) -> None:
    data = extended(b"x", b"10 path=x\n")
    cut = data[:1024] + bytes(1024)
    assert "the mark at its end is damaged" in refused(tmp_path, store, cut)


def test_extended_headers_with_nothing_but_times_are_passed_over(tmp_path: Path) -> None:
    for kind in (b"x", b"g"):
        path = written(tmp_path / "x.tar", extended(kind, b"20 mtime=1700000000\n19 comment=whatever\n"[:20]))
        assert dict(open_layout(path, "x").others) == {"oci-layout": 0}


def test_a_sparse_tar_by_gnu_tar_is_refused(made: Path, tmp_path: Path, store: Store) -> None:
    shutil.copytree(made / "x", tmp_path / "sparse")
    with (tmp_path / "sparse" / "hole").open("wb") as stream:
        stream.truncate(1 << 20)
    for form in ("--format=gnu", "--format=posix"):
        data = gnu_tar(tmp_path / "sparse", tmp_path / "s.tar", "--sparse", form).read_bytes()
        assert "sparse" in refused(tmp_path, store, data)


def test_a_member_that_claims_exabytes_is_refused(tmp_path: Path, store: Store) -> None:
    for size in (1 << 60, (8 << 30) - 1):
        data = header(f"blobs/sha256/{TORCH}", size) + b"x" * 5000
        assert f"in the middle of `blobs/sha256/{TORCH}`" in refused(tmp_path, store, data)


def test_files_at_the_root_are_read_as_far_as_they_may_be_long(tmp_path: Path, store: Store) -> None:
    data = crafted_tar([(info("index.json"), b"x" * (LARGEST_MANIFEST + 900)), (info("junk"), b"y" * 9_000_000)])
    for layout in (open_layout(written(tmp_path / "x.tar", data), "x"), spool(io.BytesIO(data), store, "stdin")):
        assert len(layout.root_file("index.json") or b"") == LARGEST_MANIFEST + 1
        assert layout.others["junk"] == 9_000_000
        assert root_files(layout) == {}


def test_more_at_the_root_than_any_bundle_has_is_refused(tmp_path: Path, store: Store) -> None:
    big = b"x" * LARGEST_MANIFEST
    data = crafted_tar([GOOD, *((info(f"pylock.{n}.toml"), big) for n in range(18))])
    code, said = problem_of(lambda: spool(io.BytesIO(data), store, "stdin"))
    assert (code, "files at its root" in said) == ("bundle-malformed", True)
    layout = open_layout(written(tmp_path / "x.tar", data), "x")
    assert problem_of(lambda: root_files(layout))[0] == code


# --- damaged blobs ---


@pytest.mark.parametrize("title", [one.title for one in SAMPLE.manifest.layers if "empty" not in one.title])
def test_a_wrong_blob_in_a_pipe_is_named_with_its_title_and_not_kept(tar: bytes, store: Store, title: str) -> None:
    sha256 = SAMPLE.titled(title)
    with tarfile.open(fileobj=io.BytesIO(tar)) as read:
        place = read.getmember(f"blobs/sha256/{sha256}").offset_data
    damaged = bytearray(tar)
    damaged[place + SIZES[sha256] // 2] ^= 0x10
    code, said = problem_of(lambda: spool(io.BytesIO(bytes(damaged)), store, "stdin"))
    assert code == "bundle-blob-corrupt"
    assert f"the blob {sha256}, which is `{title}`, is not what its name says" in said
    assert not store.has(sha256)
    assert list((store.home / "partial").iterdir()) == []


def test_a_broken_pipe_leaves_nothing_half_in_the_store(tar: bytes, tmp_path: Path, store: Store) -> None:
    script = f"import sys; sys.stdout.buffer.write(open({str(written(tmp_path / 'x', tar))!r}, 'rb').read()[:-30000])"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        code, _ = problem_of(lambda: spool(cast(BinaryIO, writer.stdout), store, "stdin"))
    assert code == "bundle-malformed"
    assert list((store.home / "partial").iterdir()) == []
    for sha256, _ in store.blobs():
        store.verify(sha256)


def test_an_interrupted_pipe_leaves_nothing_half_in_the_store(tar: bytes, store: Store) -> None:
    class Interrupted(io.BytesIO):
        def read(self, count: int | None = -1) -> bytes:
            if self.tell() > len(tar) - 100_000:
                raise KeyboardInterrupt
            return super().read(min(count or 0, 10_000))

    with pytest.raises(KeyboardInterrupt):
        spool(Interrupted(tar), store, "stdin")
    assert list((store.home / "partial").iterdir()) == []
    assert not store.has(TORCH)


def test_a_pipe_that_the_system_breaks_is_told_of_the_pipe(tar: bytes, store: Store) -> None:
    class Failing(io.BytesIO):
        def read(self, count: int | None = -1) -> bytes:
            if self.tell() > len(tar) - 100_000:
                raise OSError(5, "Input/output error")
            return super().read(min(count or 0, 10_000))

    code, said = problem_of(lambda: spool(Failing(tar), store, "stdin"), SupplyError)
    assert code == "file-system-failed"
    assert "`stdin`" in said
    assert list((store.home / "partial").iterdir()) == []


def test_a_corrupt_blob_in_the_store_is_replaced_by_the_one_that_comes(tar: bytes, store: Store) -> None:
    spool(io.BytesIO(tar), store, "stdin")
    path = store.blob_path(TORCH)
    path.chmod(0o644)
    path.write_bytes(b"rotten")
    layout = spool(io.BytesIO(tar), store, "stdin")
    store.verify(TORCH)
    assert isinstance(layout, Spooled)


def damages() -> dict[str, Callable[[bytes], bytes]]:
    return {
        "flip": lambda data: bytes([data[0] ^ 1]) + data[1:],
        "cut": lambda data: data[: len(data) // 2],
        "longer": lambda data: data + b"x",
        "empty": lambda data: b"",
        "swap": lambda data: BLOBS[SAMPLE.titled("install.sh")],
    }


@pytest.mark.parametrize("form", ["folder", "tar"])
def test_every_damage_of_a_blob_names_it_and_its_title(folder: Path, tmp_path: Path, form: str) -> None:
    for title in ("wheels/torch-1-py3-none-any.whl", "stacks/pylock.a100-rl.toml", "assets/data/x.bin"):
        sha256 = SAMPLE.titled(title)
        for name, damage in damages().items():
            blob(folder, sha256).write_bytes(damage(BLOBS[sha256]))
            path = folder if form == "folder" else gnu_tar(folder, tmp_path / "d.tar")
            layout = open_layout(path, "here")
            with pytest.raises(IntegrityError) as error:
                copy_blob(layout, sha256, SIZES[sha256], title, lambda data: None)
            (problem,) = error.value.problems
            assert (problem.code, problem.where) == ("bundle-blob-corrupt", "here"), name
            assert f"the blob {sha256}, which is `{title}`" in problem.message
            assert problem.expected != problem.actual
        blob(folder, sha256).unlink()
        code, said = problem_of(lambda: copy_blob(open_layout(folder, "x"), sha256, 1, title, lambda data: None))  # noqa: B023
        assert (code, f"{sha256}, which is `{title}`" in said) == ("bundle-blob-missing", True)
        blob(folder, sha256).write_bytes(BLOBS[sha256])


def test_a_blob_of_another_size_than_its_manifest_says_is_refused(made: Path) -> None:
    layout = open_layout(made / "x.tar", "x")
    for size in (0, SIZES[TORCH] - 1, SIZES[TORCH] + 1):
        code, said = problem_of(lambda size=size: copy_blob(layout, TORCH, size, "torch", lambda data: None))  # type: ignore[misc]
        assert (code, f"{TORCH}, which is `torch`" in said) == ("bundle-blob-corrupt", True)


def test_a_blob_that_changes_while_it_is_read_is_found(folder: Path) -> None:
    layout = open_layout(folder, "x")
    blob(folder, TORCH).write_bytes(b"x" * SIZES[TORCH])
    assert problem_of(lambda: read_small(layout, TORCH, SIZES[TORCH], "torch"))[0] == "bundle-blob-corrupt"


def test_what_is_read_whole_has_a_limit(made: Path) -> None:
    layout = open_layout(made / "x", "x")
    assert problem_of(lambda: read_small(layout, TORCH, 1 << 50, "lock"))[0] == "bundle-blob-corrupt"


def test_a_disk_that_is_full_is_told_of_the_place_that_is_written_to(made: Path) -> None:
    def write(data: memoryview) -> None:
        raise OSError(28, "No space left on device", "elsewhere")

    with pytest.raises(OSError, match="elsewhere"):
        copy_blob(open_layout(made / "x", "x"), TORCH, SIZES[TORCH], "torch", write)


# --- folders ---


def test_a_link_in_a_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    target = written(tmp_path / "outside", BLOBS[TORCH])
    for place in (blob(folder, TORCH), folder / "install.sh", folder / "blobs" / "deep" / "link"):
        place.parent.mkdir(exist_ok=True)
        place.unlink(missing_ok=True)
        place.symlink_to(target)
        code, said = problem_of(lambda: open_layout(folder, "x"))
        assert (code, "neither a file nor a folder" in said) == ("bundle-malformed", True)
        place.unlink()
    (folder / "loop").symlink_to(folder)
    assert "`loop`" in problem_of(lambda: open_layout(folder, "x"))[1]


def test_a_link_that_comes_after_the_look_is_not_followed(folder: Path, tmp_path: Path) -> None:
    layout = open_layout(folder, "x")
    for place, read in (
        (blob(folder, TORCH), lambda: content(layout, TORCH)),
        (folder / "install.sh", lambda: layout.root_file("install.sh")),
    ):
        place.unlink()
        place.symlink_to(written(tmp_path / "outside", b"secret"))
        assert problem_of(read, SupplyError)[0] == "file-system-failed"  # type: ignore[arg-type]


def test_a_pipe_in_a_folder_is_refused(folder: Path) -> None:
    os.mkfifo(folder / "fifo")
    assert "`fifo`" in problem_of(lambda: open_layout(folder, "x"))[1]


def test_a_folder_of_thousands_of_folders_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as here:
        here.chdir(folder)
        for _ in range(1010):
            Path("d").mkdir()
            here.chdir("d")
    assert set(open_layout(folder, "x").others) == ROOT
    subprocess.run(["rm", "-rf", folder / "d"], check=True, timeout=60)


def test_what_cannot_be_read_is_said_of_the_file(made: Path, folder: Path, tmp_path: Path) -> None:
    """A stranger without rights, since root may read everything."""
    blob(folder, TORCH).chmod(0)
    script = (
        "import sys; from pathlib import Path; from envsmith.errors import EnvsmithError\n"
        "from envsmith.tools.layout import open_layout, read_small\n"
        "import os; os.geteuid() or os.setuid(65534)\n"
        "try:\n"
        f"    read_small(open_layout(Path({str(folder)!r}), 'x'), {TORCH!r}, {SIZES[TORCH]}, 'torch')\n"
        "except EnvsmithError as error: print(error.problems[0].code, error.problems[0].message)\n"
    )
    for path in (tmp_path, *tmp_path.parents):
        if not path.stat().st_mode & stat.S_IXOTH and os.geteuid() == 0 and path != Path("/"):
            path.chmod(path.stat().st_mode | 0o055)
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True).stdout
    assert said.startswith("file-not-readable")
    assert TORCH in said


def test_a_store_gets_what_sha256_says(tar: bytes, store: Store) -> None:
    spool(io.BytesIO(tar), store, "stdin")
    assert all(sha(store.blob_path(sha256).read_bytes()) == sha256 for sha256 in SIZES)
