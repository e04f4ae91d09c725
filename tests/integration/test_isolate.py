"""After isolation an edit in one environment reaches neither uv's cache nor another environment."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envsmith.errors import SupplyError
from envsmith.tools.isolate import isolate
from envsmith.tools.tree import hash_tree, scan
from tests.support.installed import ELF, SITE, Installed, install
from tests.support.wheels import make_wheel

CORE, LIBRARY = f"{SITE}/demo/core.py", f"{SITE}/demo/lib/libdemo.so.1"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    files = {
        "demo/__init__.py": "",
        "demo/core.py": "x = 1\n",
        "demo/tool.sh": "#!/bin/sh\n",
        "demo/lib/libdemo.so.1": ELF,
        "demo/lib/plain.so": ELF,
        "demo/lib/script.so": "INPUT(libdemo.so.1)\n",
        "demo/lib/ptxas": ELF,
    }
    return make_wheel(tmp_path, "demo", "1", files, executable=("demo/tool.sh", "demo/lib/plain.so", "demo/lib/ptxas"))


@pytest.fixture
def linked(tmp_path: Path, cache: Path, wheel: Path) -> Installed:
    made = install(tmp_path / "one", cache, wheel, link_mode="hardlink")
    if made.seen(CORE).nlink < 2:
        pytest.skip("uv cannot hard-link on this file system")
    return made


def _cached(cache: Path, name: str) -> Path:
    (path,) = (path for path in cache.rglob(name) if "archive" in str(path))
    return path


def _contents(place: Path) -> dict[str, str]:
    return dict(hash_tree(place, scan(place)).digests)


def test_without_isolation_an_edit_poisons_the_cache_and_the_next_environment(
    linked: Installed, cache: Path, wheel: Path, tmp_path: Path
) -> None:
    (linked.root / CORE).write_text("x = 2\n")
    assert _cached(cache, "core.py").read_text() == "x = 2\n"
    second = install(tmp_path / "two", cache, wheel, link_mode="copy")
    assert [finding.kind for finding in second.findings()] == ["file-changed"]


def test_after_isolation_an_edit_stays_where_it_was_made(
    linked: Installed, cache: Path, wheel: Path, tmp_path: Path
) -> None:
    sibling = install(tmp_path / "two", cache, wheel, link_mode="hardlink")
    isolate(linked.root)
    before = _contents(cache)
    (linked.root / CORE).write_text("x = 2\n")
    assert _contents(cache) == before
    assert sibling.findings("deep") == []
    assert install(tmp_path / "three", cache, wheel).findings("deep") == []
    assert [finding.kind for finding in linked.findings()] == ["file-changed"]


def test_isolation_keeps_contents_modes_and_times(linked: Installed) -> None:
    before = {seen.path: seen for seen in scan(linked.root)}
    done = isolate(linked.root)
    assert linked.findings("deep") == []
    for seen in scan(linked.root):
        old = before[seen.path]
        assert seen.mtime_ns == old.mtime_ns
        assert seen.mode & 0o111 == old.mode & 0o111
        assert seen.nlink == 1 or seen.path.endswith((".so", ".so.1"))
    assert done.copied_files == sum(s.nlink > 1 for s in before.values()) - 2
    assert (done.shared_files, done.shared_bytes) == (2, 2 * len(ELF))


def test_only_real_native_libraries_stay_shared_and_lose_their_write_permission(linked: Installed) -> None:
    inode = linked.seen(LIBRARY).ino
    isolate(linked.root)
    library, runnable = linked.seen(LIBRARY), linked.seen(f"{SITE}/demo/lib/plain.so")
    assert (library.ino, library.mode) == (inode, 0o444)
    assert library.nlink > 1
    assert runnable.mode == 0o555
    for name in ("script.so", "ptxas"):
        assert linked.seen(f"{SITE}/demo/lib/{name}").nlink == 1


def test_isolation_writes_nothing_into_the_cache(linked: Installed, cache: Path) -> None:
    before = {s.path: (s.ino, s.size, s.mtime_ns) for s in scan(cache)}
    contents = _contents(cache)
    isolate(linked.root)
    assert {s.path: (s.ino, s.size, s.mtime_ns) for s in scan(cache)} == before
    assert _contents(cache) == contents


def test_a_second_isolation_and_one_of_private_files_change_nothing(linked: Installed) -> None:
    isolate(linked.root)
    before = scan(linked.root)
    assert isolate(linked.root).copied_files == 0
    assert scan(linked.root) == before


def test_two_names_inside_the_environment_become_two_files(linked: Installed) -> None:
    os.link(linked.root / CORE, linked.root / SITE / "demo/again.py")
    isolate(linked.root)
    assert linked.seen(CORE).ino != linked.seen(f"{SITE}/demo/again.py").ino


def test_a_failure_is_told_and_leaves_no_temporary_file(linked: Installed) -> None:
    files = scan(linked.root)
    (linked.root / CORE).unlink()
    with pytest.raises(SupplyError):
        isolate(linked.root, files)
    assert not [seen for seen in scan(linked.root) if ".envsmith-" in seen.path]
