"""What real uv installs equals the manifest, byte for byte, and every planted fault is seen on a real disk."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from envsmith.installed import expected_console_script
from envsmith.report import Severity
from envsmith.tools.process import run
from envsmith.tools.tree import StatIndex, clock_ns, hash_tree, restamp, scan, verify_bytes
from tests.support.installed import ELF, SITE, Installed, demo_wheel, install
from tests.support.wheels import make_wheel, record_digest


@pytest.fixture
def env(tmp_path: Path) -> Installed:
    made = install(tmp_path / "env", tmp_path / "cache", demo_wheel(tmp_path / "wheels"))
    made.settle()
    return made


def _overwrite_keeping_size_and_mtime(path: Path, old: bytes, new: bytes) -> None:
    before = path.stat()
    content = path.read_bytes()
    assert content.count(old) == 1 and len(old) == len(new)
    path.chmod(before.st_mode | 0o200)
    path.write_bytes(content.replace(old, new))
    path.chmod(before.st_mode)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)


@pytest.mark.parametrize("name", ["env", "l" * 140, "with space", "it's a' quote", "é" * 60])
def test_a_fresh_environment_equals_its_manifest_wherever_it_lies(tmp_path: Path, name: str) -> None:
    made = install(tmp_path / name, tmp_path / "cache", demo_wheel(tmp_path / "wheels"))
    assert made.findings("deep") == []
    python = str(made.root / "bin/python")
    assert (made.root / "bin/demo").read_bytes() == expected_console_script(python, "demo", "main")
    assert (made.root / "bin/demo-app").read_bytes() == expected_console_script(python, "demo", "App.run")
    for launcher in ("demo", "g", "demo-app", "rewritten"):
        assert run([made.root / "bin" / launcher], env={"PATH": os.defpath}, timeout_s=60).returncode == 0


def test_the_second_look_reads_nothing(env: Installed) -> None:
    observed = env.look()
    assert (observed.hashed_files, observed.hashed_bytes) == (0, 0)
    assert observed.trusted_files == sum(entry.target is None for entry in env.manifest.entries)


def test_deep_trusts_nothing(env: Installed) -> None:
    observed = env.look("deep")
    assert observed.trusted_files == 0
    assert observed.hashed_bytes == sum(entry.size for entry in env.manifest.entries if entry.target is None)


def _edit(env: Installed) -> None:
    with (env.root / SITE / "demo/core.py").open("ab") as file:
        file.write(b"#")


def _edit_unseen(env: Installed) -> None:
    _overwrite_keeping_size_and_mtime(env.root / SITE / "demo/core.py", b"return 1", b"return 2")


def _swap_library(env: Installed) -> None:
    _overwrite_keeping_size_and_mtime(env.root / SITE / "demo/lib/libdemo.so.1", ELF[:300], ELF[:299] + b"!")


def _replace_library(env: Installed) -> None:
    path = env.root / SITE / "demo/lib/libdemo.so.1"
    before = path.stat()
    path.unlink()
    path.write_bytes(ELF[:-1] + b"!")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _edit_with_record(env: Installed) -> None:
    _edit_unseen(env)
    content = (env.root / SITE / "demo/core.py").read_bytes()
    (record,) = (env.root / SITE).glob("*.dist-info/RECORD")
    text = re.sub(
        r"(?m)^demo/core.py,sha256=[^,]+", f"demo/core.py,sha256={record_digest(content)}", record.read_text()
    )
    record.write_text(text)


def _delete(env: Installed) -> None:
    (env.root / SITE / "demo/core.py").unlink()


def _uninstall_half(env: Installed) -> None:
    for path in (env.root / SITE / "demo").glob("*.py"):
        path.unlink()


def _add_module(env: Installed) -> None:
    (env.root / SITE / "demo.cpython-311-x86_64-linux-gnu.so").write_bytes(ELF)


def _shadow_module(env: Installed) -> None:
    (env.root / SITE / "demo/core").mkdir()
    (env.root / SITE / "demo/core/__init__.py").write_text("")


def _add_pth(env: Installed) -> None:
    (env.root / SITE / "zz.pth").write_text("import sys\n")


def _drop_mode(env: Installed) -> None:
    (env.root / "bin/demo").chmod(0o644)


def _retarget(env: Installed) -> None:
    python = env.root / "bin/python"
    python.unlink()
    python.symlink_to("/bin/false")


def _edit_launcher(env: Installed) -> None:
    path = env.root / "bin/demo"
    path.write_bytes(path.read_bytes().replace(b"#!/", b"#!/usr/bin/env /", 1))


def _system_site(env: Installed) -> None:
    path = env.root / "pyvenv.cfg"
    path.write_text(path.read_text().replace("= false", "= true"))


def _leftover(env: Installed) -> None:
    shutil.copytree(env.root / SITE / "demo", env.root / SITE / "~emo")


def _empty(env: Installed) -> None:
    shutil.rmtree(env.root / SITE)
    (env.root / SITE).mkdir()


def _lose_metadata(env: Installed) -> None:
    (folder,) = (env.root / SITE).glob("*.dist-info")
    shutil.rmtree(folder)


def _gone(env: Installed) -> None:
    shutil.rmtree(env.root)


@pytest.mark.parametrize(
    ("fault", "kinds"),
    [
        (_edit, {"file-changed"}),
        (_edit_unseen, {"file-changed"}),
        (_swap_library, {"file-changed"}),
        (_replace_library, {"file-changed"}),
        (_edit_with_record, {"file-changed"}),
        (_delete, {"file-missing"}),
        (_uninstall_half, {"record-missing-files"}),
        (_add_module, {"unowned-module"}),
        (_shadow_module, {"unowned-module"}),
        (_add_pth, {"unowned-pth"}),
        (_drop_mode, {"mode-changed"}),
        (_retarget, {"link-changed"}),
        (_edit_launcher, {"file-changed"}),
        (_system_site, {"file-changed"}),
        (_leftover, {"leftover"}),
        (_empty, {"half-env", "record-missing-files"}),
        (_lose_metadata, {"half-env", "record-missing-files"}),
        (_gone, {"half-env"}),
    ],
)
def test_a_planted_fault_is_found_by_every_mode(
    env: Installed, fault: Callable[[Installed], None], kinds: set[str]
) -> None:
    fault(env)
    index = env.index
    for mode in ("stat", "default", "deep"):
        env.index = index
        found = env.findings(mode)  # type: ignore[arg-type]
        assert {finding.kind for finding in found} == kinds, mode
        assert {finding.severity for finding in found} == {Severity.ERROR}


def test_a_file_that_was_only_touched_is_read_once_and_silent(env: Installed) -> None:
    os.utime(env.root / SITE / "demo/core.py")
    observed = env.look()
    assert observed.hashed_files == 1
    env.settle()
    assert env.findings() == []


def test_bytecode_that_the_interpreter_writes_is_silent(env: Installed) -> None:
    done = run([env.root / "bin/python", "-c", "import demo.core"], env={"PATH": os.defpath}, timeout_s=60)
    assert done.returncode == 0
    assert list((env.root / SITE / "demo/__pycache__").iterdir())
    assert env.findings() == []


def test_stat_mode_leaves_what_is_over_its_budget_and_says_so(env: Installed) -> None:
    os.utime(env.root / SITE / "demo/core.py")
    os.utime(env.root / SITE / "demo/lib/libdemo.so.1")
    observed = env.look("stat", budget_bytes=1000)
    assert observed.unread == (f"{SITE}/demo/lib/libdemo.so.1",)
    assert observed.hashed_files == 1


def test_an_index_survives_saving_and_one_that_is_broken_costs_only_time(env: Installed, tmp_path: Path) -> None:
    place = tmp_path / "index.json"
    env.index.save(place)
    assert StatIndex.load(place) == env.index
    assert [path.name for path in tmp_path.iterdir() if "index" in path.name] == ["index.json"]
    for text in ("", "[]", "{", '{"taken_ns":1,"rows":{"a":[1]}}', '{"taken_ns":1,"rows":[]}'):
        place.write_text(text)
        assert StatIndex.load(place) == StatIndex()
    assert StatIndex.load(tmp_path / "none.json") == StatIndex()


def test_a_file_as_young_as_the_look_is_not_trusted(env: Installed) -> None:
    seen = env.seen(f"{SITE}/demo/core.py")
    young = max(seen.ctime_ns, seen.mtime_ns)
    for taken, trusted in ((young, False), (young + 1_000_000, False), (young + 3_000_000_000, True)):
        assert (StatIndex(taken_ns=taken, rows=env.index.rows).digest(seen) is not None) is trusted


def test_the_device_number_is_not_part_of_a_row(env: Installed) -> None:
    seen = env.seen(f"{SITE}/demo/core.py")
    assert env.index.digest(seen._replace(dev=seen.dev + 1)) == env.index.digest(seen) is not None


def test_a_look_without_a_clock_vouches_for_nothing_new(env: Installed) -> None:
    owned = env.manifest.by_path()
    _, index = verify_bytes(env.root, owned, StatIndex())
    observed, _ = verify_bytes(env.root, owned, index)
    assert observed.trusted_files == 0


def test_rows_are_carried_over_a_link_that_we_made_and_not_over_an_edit(env: Installed, tmp_path: Path) -> None:
    library, core = f"{SITE}/demo/lib/libdemo.so.1", f"{SITE}/demo/core.py"
    _edit_unseen(env)
    before = scan(env.root)
    os.link(env.root / library, tmp_path / "sibling")
    assert env.index.digest(env.seen(library)) is None
    taken_ns = clock_ns(tmp_path) + 3_000_000_000
    carried = restamp(env.index, before, scan(env.root), taken_ns)
    assert carried.digest(env.seen(library)) == hashlib.sha256(ELF).hexdigest()
    assert carried.digest(env.seen(core)) is None


def test_rows_are_dropped_when_the_content_changed_between_the_two_looks(env: Installed, tmp_path: Path) -> None:
    before = scan(env.root)
    _edit(env)
    carried = restamp(env.index, before, scan(env.root), clock_ns(tmp_path) + 3_000_000_000)
    assert carried.digest(env.seen(f"{SITE}/demo/core.py")) is None


def test_scan_names_links_and_sockets_and_follows_nothing(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    (root / "a/b").mkdir(parents=True)
    (root / "a/b/file").write_text("x")
    (root / "a/loop").symlink_to("..")
    (root / "dangling").symlink_to("nowhere")
    os.mkfifo(root / "pipe")
    assert [(s.path, s.kind, s.target) for s in scan(root)] == [
        ("a/b/file", "file", None),
        ("a/loop", "link", ".."),
        ("dangling", "link", "nowhere"),
        ("pipe", "other", None),
    ]
    assert scan(tmp_path / "absent") == ()
    assert scan(root / "a/b/file") == ()


def test_every_file_is_hashed_once_whatever_its_size_and_number_of_names(tmp_path: Path) -> None:
    sizes = (0, 1, 65_536, 65_537, (1 << 20) + 7, 3 << 20)
    contents = {f"f{n}": os.urandom(size) for n, size in enumerate(sizes)}
    contents |= {f"small{n}": str(n).encode() for n in range(600)}
    for name, content in contents.items():
        (tmp_path / "tree").mkdir(exist_ok=True)
        (tmp_path / "tree" / name).write_bytes(content)
    os.link(tmp_path / "tree/f5", tmp_path / "tree/second name")
    told: list[int] = []
    hashed = hash_tree(tmp_path / "tree", scan(tmp_path / "tree"), on_bytes=told.append)
    right = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    assert hashed.digests == {**right, "second name": right["f5"]}
    assert hashed.files == len(contents)
    assert hashed.bytes == sum(map(len, contents.values())) == sum(told)


def test_a_file_that_became_a_link_or_went_away_is_unreadable_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    for name in ("one", "two"):
        (root / name).write_text(name)
    files = scan(root)
    (root / "one").unlink()
    (root / "one").symlink_to("two")
    (root / "two").rename(root / "three")
    hashed = hash_tree(root, files)
    assert (hashed.unreadable, dict(hashed.digests)) == (("one", "two"), {})


def test_two_distributions_of_one_file_install_as_one_of_the_two_and_are_a_warning(tmp_path: Path) -> None:
    one = make_wheel(tmp_path, "one", "1", {"example.py": "1\n", "one.py": ""})
    two = make_wheel(tmp_path, "two", "1", {"example.py": "2\n", "two.py": ""})
    (finding,) = install(tmp_path / "env", tmp_path / "cache", one, two).findings()
    assert (finding.kind, finding.severity) == ("overlapping-files", Severity.WARNING)


def test_a_package_mixed_from_two_distributions_is_an_error(tmp_path: Path) -> None:
    one = make_wheel(tmp_path, "std", "1", {"rayx/__init__.py": "1\n", "rayx/a.py": "1\n", "rayx/only.py": ""})
    two = make_wheel(tmp_path, "vendor", "1", {"rayx/__init__.py": "2\n", "rayx/a.py": "2\n"})
    (finding,) = install(tmp_path / "env", tmp_path / "cache", one, two).findings()
    assert (finding.kind, finding.severity) == ("overlapping-files", Severity.ERROR)


def test_the_index_file_is_plain_json_without_device_numbers(env: Installed, tmp_path: Path) -> None:
    env.index.save(tmp_path / "index.json")
    rows = json.loads((tmp_path / "index.json").read_text())["rows"]
    assert len(rows[f"{SITE}/demo/core.py"]) == 6
