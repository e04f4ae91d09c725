"""A real bundle of gigabytes, damaged by kind, every kind of blob in turn. Run by hand:

ENVSMITH_TEST_BUNDLE=DIR pytest --run-big tests/big/test_bundle.py
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from envsmith.bundle import BUNDLE, SIGNATURES, Descriptor, parse_index, parse_manifest
from tests.support.project import envsmith

pytestmark = pytest.mark.big
#: Read before a test becomes a stranger here.
SOURCE = os.environ.get("ENVSMITH_TEST_BUNDLE", "")


def flip(path: Path, other: Path) -> None:
    data = bytearray(path.read_bytes()) if path.stat().st_size < 1 << 20 else None
    if data is not None:
        data[len(data) // 2] ^= 1
        replace(path, bytes(data))
        return
    copy_private(path)
    with path.open("r+b") as stream:
        stream.seek(path.stat().st_size // 2)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 1]))


def truncate(path: Path, other: Path) -> None:
    copy_private(path)
    os.truncate(path, path.stat().st_size // 2)


def lengthen(path: Path, other: Path) -> None:
    copy_private(path)
    with path.open("ab") as stream:
        stream.write(b"x")


def swap(path: Path, other: Path) -> None:
    aside = path.with_name("aside")
    path.rename(aside)
    other.rename(path)
    aside.rename(other)


def remove(path: Path, other: Path) -> None:
    path.unlink()


def rename(path: Path, other: Path) -> None:
    path.rename(path.with_name(f"{'0' * 63}1"))


KINDS = (flip, truncate, lengthen, swap, remove, rename)
#: What only reading finds; the others show by names and sizes.
READING = (flip, swap)


def replace(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def copy_private(path: Path) -> None:
    aside = path.with_name("aside")
    shutil.copyfile(path, aside)
    aside.replace(path)


@pytest.fixture
def bundle() -> Path:
    if not SOURCE:
        pytest.skip("ENVSMITH_TEST_BUNDLE names no bundle")
    return Path(SOURCE)


def linked(source: Path) -> Path:
    """A copy of hard links beside the bundle: whoever damages a file gives it an inode of its own first."""
    copy = source.with_name(f"{source.name}.damaged")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy, copy_function=os.link)
    return copy


def one_of_each_kind(source: Path) -> Iterator[tuple[str, str, Descriptor]]:
    """(kind, sha256, descriptor) of the first blob of every media type, the manifests and configs included."""
    entries = parse_index((source / "index.json").read_bytes(), "index.json")
    for entry in entries:
        data = (source / "blobs/sha256" / entry.sha256).read_bytes()
        manifest = parse_manifest(data, entry.tag)
        own = Descriptor(media_type="manifest", sha256=entry.sha256, size=entry.size)
        seen: set[str] = set()
        for one in (own, manifest.config, *manifest.layers):
            if one.media_type not in seen and manifest.artifact in (BUNDLE, SIGNATURES):
                seen.add(one.media_type)
                yield f"{manifest.artifact}:{one.media_type}", one.sha256, one


def test_every_damage_to_every_kind_of_blob_is_exit_5_and_names_blob_and_file(bundle: Path, tmp_path: Path) -> None:
    tried, failed = 0, []
    for kind, sha256, one in one_of_each_kind(bundle):
        for damage in KINDS:
            copy = linked(bundle)
            blobs = copy / "blobs" / "sha256"
            other = next(
                path for path in sorted(blobs.iterdir()) if path.name != sha256 and path.stat().st_size < 1 << 20
            )
            damage(blobs / sha256, other)
            words = ["inspect", copy, "--json", *(["--check"] if damage in READING else [])]
            said = envsmith(*words, cwd=tmp_path)
            messages = " ".join(error["message"] for error in said.json["errors"])
            named = sha256 in messages and (not one.title or one.title in messages)
            tried += 1
            if said.code != 5 or not named:
                failed.append((kind, damage.__name__, said.code, messages[:200]))
    shutil.rmtree(bundle.with_name(f"{bundle.name}.damaged"))
    print(f"{tried} damages")
    assert failed == []
    assert tried >= 60
