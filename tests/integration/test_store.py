"""envsmith.tools.store: digests are computed, not believed; wrong blobs go to quarantine; many may write at once."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envsmith.errors import InputError, IntegrityError, SupplyError
from envsmith.tools.store import Store, open_store

CONTENT = b"wheel bytes " * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "home of blobs")


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "x-1-py3-none-any.whl"
    path.write_bytes(CONTENT)
    return path


def litter(store: Store) -> list[Path]:
    return [path for path in (store.home / "partial").iterdir()] + list((store.home / "locks").glob("*"))


def test_an_added_file_is_named_by_its_digest_read_only_and_has_its_own_inode(store: Store, wheel: Path) -> None:
    assert store.add_file(wheel) == SHA256
    blob = store.blob_path(SHA256)
    assert blob == store.home / "blobs" / "sha256" / SHA256
    assert blob.read_bytes() == CONTENT
    assert blob.stat().st_mode & 0o777 == 0o444
    assert blob.stat().st_nlink == 1
    assert store.facts(SHA256) == {"name": wheel.name}
    wheel.write_bytes(b"edited")
    assert store.verify(SHA256) == blob
    assert litter(store) == []


def test_a_blob_is_there_only_with_its_right_size(store: Store, wheel: Path) -> None:
    assert not store.has(SHA256)
    store.add_file(wheel, SHA256)
    assert store.has(SHA256)
    assert store.has(SHA256, len(CONTENT))
    assert not store.has(SHA256, len(CONTENT) + 1)


def test_a_file_with_another_digest_than_promised_does_not_come_in(store: Store, wheel: Path) -> None:
    promised = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(IntegrityError) as error:
        store.add_file(wheel, promised)
    (problem,) = error.value.problems
    assert problem.code == "blob-digest-differs"
    assert (problem.expected, problem.actual) == (f"sha256 {promised}", f"sha256 {SHA256}")
    assert not store.has(promised)
    assert not store.has(SHA256)
    assert litter(store) == []


def test_a_corrupt_blob_is_found_moved_aside_and_reported_once(store: Store, wheel: Path) -> None:
    store.add_file(wheel)
    blob = store.blob_path(SHA256)
    blob.chmod(0o644)
    blob.write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(IntegrityError) as error:
        store.verify(SHA256)
    (problem,) = error.value.problems
    assert problem.code == "store-blob-corrupt"
    assert wheel.name in problem.message
    assert problem.where is not None
    assert Path(problem.where).parent == store.home / "blobs" / "quarantine"
    assert Path(problem.where).is_file()
    assert not store.has(SHA256)
    with pytest.raises(SupplyError, match="store-blob-missing"):
        store.verify(SHA256)


def test_adding_a_file_again_mends_a_corrupt_blob_of_the_same_size(store: Store, wheel: Path) -> None:
    store.add_file(wheel)
    blob = store.blob_path(SHA256)
    blob.chmod(0o644)
    blob.write_bytes(bytes(len(CONTENT)))
    store.add_file(wheel, SHA256)
    store.verify(SHA256)
    assert len(list((store.home / "blobs" / "quarantine").iterdir())) == 1


def test_a_missing_source_file_is_named(store: Store, tmp_path: Path) -> None:
    with pytest.raises(SupplyError, match="absent"):
        store.add_file(tmp_path / "absent")


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "A" * 64, SHA256[:-1], "sha256:" + SHA256])
def test_what_is_no_digest_never_becomes_a_path(store: Store, digest: str) -> None:
    with pytest.raises(InputError, match="digest-malformed"):
        store.blob_path(digest)


def test_many_processes_add_the_same_file_at_once_and_all_succeed(store: Store, wheel: Path) -> None:
    code = "import sys; from pathlib import Path; from envsmith.tools.store import Store\n"
    code += "for _ in range(20): print(Store(Path(sys.argv[1])).add_file(Path(sys.argv[2])))"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-c", code, store.home, wheel]
    children = [subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [child.communicate(timeout=60)[0].split() for child in children]
    assert [child.returncode for child in children] == [0] * 4
    assert {digest for digests in said for digest in digests} == {SHA256}
    store.verify(SHA256)
    assert litter(store) == []


def test_the_store_is_where_the_environment_says(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert open_store(home).home == tmp_path / ".cache" / "envsmith"
    assert open_store({**home, "XDG_CACHE_HOME": "/scratch"}).home == Path("/scratch/envsmith")
    assert open_store({**home, "ENVSMITH_HOME": "/x"}).home == Path("/x")
    assert open_store({**home, "ENVSMITH_HOME": "relative"}).home == Path.cwd() / "relative"
    with pytest.raises(InputError, match="home-unknown"):
        open_store({})


def test_opening_a_store_and_asking_it_writes_nothing(tmp_path: Path) -> None:
    store = open_store({"ENVSMITH_HOME": str(tmp_path / "new")})
    assert not store.has(SHA256)
    assert list(store.blobs()) == []
    assert store.facts(SHA256) == {}
    assert not (tmp_path / "new").exists()
