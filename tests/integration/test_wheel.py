"""envsmith.tools.wheel and .sdist on real archives: hostile ones are refused, written ones are the same everywhere."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from uv import find_uv_bin

from envsmith.errors import EnvsmithError, InputError, IntegrityError
from envsmith.tools.sdist import unpack_sdist
from envsmith.tools.wheel import entry_points, inject, list_wheel, normalise, patch_wheel, read_metadata
from tests.support.wheels import make_sdist, make_wheel

CODE = "def answer():\n    return 41\n\n\ndef main():\n    print(answer())\n"
FILES: dict[str, bytes | str] = {
    "demo/__init__.py": "",
    "demo/core.py": CODE,
    "demo/data.txt": "data " * 500,
    "demo/tool.sh": "#!/bin/sh\necho tool\n",
    "demo/é.txt": "ü",
    "demo-1.0.data/scripts/old": "#!python\nprint('old')\n",
    "demo-1.0.data/scripts/plain": "#!/bin/sh\nexit 0\n",
}
PATCH = b"""Description: the answer is 42

diff --git a/demo/core.py b/demo/core.py
--- a/demo/core.py
+++ b/demo/core.py
@@ -1,5 +1,5 @@
 def answer():
-    return 41
+    return 42
\x20
\x20
 def main():
"""
ADDS = b"""diff --git a/demo/more.py b/demo/more.py
new file mode 100644
--- /dev/null
+++ b/demo/more.py
@@ -0,0 +1 @@
+X = 1
"""
DROPS = "diff --git a/demo/é.txt b/demo/é.txt\ndeleted file mode 100644\n--- a/demo/é.txt\n+++ /dev/null\n" + (
    "@@ -1 +0,0 @@\n-ü\n\\ No newline at end of file\n"
)
MOVES = b"""diff --git a/demo/core.py b/demo/heart.py
similarity index 100%
rename from demo/core.py
rename to demo/heart.py
"""


def demo(directory: Path, name: str = "demo", version: str = "1.0", **changes: object) -> Path:
    files = {path.replace("demo-1.0", f"demo-{version}"): content for path, content in FILES.items()}
    scripts = {"console_scripts": {"demo": "demo.core:main"}, "demo.plugins": {"a": "demo.core [x]"}}
    options: dict[str, object] = {"entry_points": scripts, "executable": ["demo/tool.sh"], **changes}
    return make_wheel(directory, name, version, files, **options)  # type: ignore[arg-type]


def codes(error: pytest.ExceptionInfo[EnvsmithError]) -> set[str]:
    return {problem.code for problem in error.value.problems}


def packed(path: Path) -> dict[str, bytes]:
    """Return the data of each member as it lies in the archive, compressed or not."""
    found, raw = {}, path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            names = int.from_bytes(raw[info.header_offset + 26 : info.header_offset + 28], "little")
            extra = int.from_bytes(raw[info.header_offset + 28 : info.header_offset + 30], "little")
            start = info.header_offset + 30 + names + extra
            found[info.filename] = raw[start : start + info.compress_size]
    return found


def check_record(path: Path) -> None:
    """Compare every row of RECORD with the member it names, the way an auditor would."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        names = set(archive.namelist())
        own = next(name for name in names if name.endswith(".dist-info/RECORD"))
        rows = list(csv.reader(io.StringIO(archive.read(own).decode())))
        assert {row[0] for row in rows} == names
        for name, digest, size in rows:
            content = archive.read(name)
            expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (digest, size) == (("", "") if name == own else (f"sha256={expected}", str(len(content))))


def uv_install(wheel: Path, folder: Path) -> Path:
    """Install one wheel with the real uv into a new environment and return its interpreter."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "UV_CACHE_DIR": str(folder / "cache")}
    uv, python = find_uv_bin(), folder / "venv" / "bin" / "python"
    shared = ("--quiet", "--no-config", "--offline", "--python")
    for arguments in (
        ("venv", *shared, sys.executable, str(folder / "venv")),
        ("pip", "install", *shared, str(python), "--no-index", "--no-deps", str(wheel)),
    ):
        subprocess.run([uv, *arguments], env=environ, check=True, capture_output=True, text=True)
    return python


# reading


def test_a_listing_says_what_an_installer_will_write(tmp_path: Path) -> None:
    listing = list_wheel(demo(tmp_path))
    assert (listing.name, listing.version, listing.root_is_purelib) == ("demo", "1.0", True)
    assert listing.console_scripts == (("demo", "demo.core:main"),)
    assert listing.rewritten_scripts == ("demo-1.0.data/scripts/old",)
    members = {member.path: member for member in listing.members}
    assert list(members) == sorted(members)
    assert members["demo/core.py"].sha256 == hashlib.sha256(CODE.encode()).hexdigest()
    assert [path for path, member in members.items() if member.executable] == ["demo/tool.sh"]
    assert "demo-1.0.dist-info/RECORD" in members


def test_metadata_and_every_entry_point_can_be_read(tmp_path: Path) -> None:
    wheel = demo(tmp_path)
    assert b"Name: demo\n" in read_metadata(wheel)
    assert set(entry_points(wheel)) == {
        ("console_scripts", "demo", "demo.core:main"),
        ("demo.plugins", "a", "demo.core"),
    }


def test_a_name_with_a_build_tag_and_a_local_version_is_read(tmp_path: Path) -> None:
    listing = list_wheel(demo(tmp_path, "De.Mo", "2.10.0+cu128", build="3"))
    assert (listing.name, listing.version) == ("de-mo", "2.10.0+cu128")


@pytest.mark.parametrize("row", ["", "demo/core.py,,\n", "demo/core.py,sha256=AAAA,1\n", "demo/core.py,md5=x,9\n"])
def test_a_member_that_record_does_not_vouch_for_is_hashed(tmp_path: Path, row: str) -> None:
    wheel = rewrite(demo(tmp_path), {"demo-1.0.dist-info/RECORD": row.replace("AAAA", "A" * 43).encode()})
    members = {member.path: member.sha256 for member in list_wheel(wheel).members}
    assert members["demo/core.py"] == hashlib.sha256(CODE.encode()).hexdigest()


def rewrite(wheel: Path, changes: dict[str, bytes], **attributes: int) -> Path:
    """Write a wheel again with members replaced or added; `attributes` set fields of the added entries."""
    with zipfile.ZipFile(wheel) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()} | changes
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            if name in changes:
                for field, value in attributes.items():
                    setattr(info, field, value)
            archive.writestr(info, content)
    return wheel


def add(wheel: Path, name: str, content: bytes = b"x") -> Path:
    """Append one more entry, a repeated name included."""
    with warnings.catch_warnings(), zipfile.ZipFile(wheel, "a") as archive:
        warnings.simplefilter("ignore")  # the standard library warns of a repeated name
        archive.writestr(zipfile.ZipInfo(name), content)
    return wheel


def overwrite(wheel: Path, content: bytes) -> Path:
    wheel.write_bytes(content)
    return wheel


def other_local_name(wheel: Path) -> Path:
    """Make a member's own header name another file than the archive's directory does."""
    data = wheel.read_bytes()
    first = data.index(b"demo/core.py")
    wheel.write_bytes(data[:first] + b"demo/evil.py" + data[first + 12 :])
    return wheel


def flip(wheel: Path) -> Path:
    """Damage a stored member that RECORD does not vouch for."""
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("demo/core.py", CODE)
        archive.writestr("demo-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("demo-1.0.dist-info/RECORD", "")
    wheel.write_bytes(wheel.read_bytes().replace(b"return 41", b"return 43"))
    return wheel


HOSTILE: dict[str, tuple[Callable[[Path], Path], str]] = {
    "dot dot": (lambda w: add(w, "../evil.py"), "wheel-unsafe-member"),
    "dot dot inside": (lambda w: add(w, "demo/../../evil.py"), "wheel-unsafe-member"),
    "absolute": (lambda w: add(w, "/etc/evil"), "wheel-unsafe-member"),
    "backslash": (lambda w: add(w, "demo\\..\\evil.py"), "wheel-unsafe-member"),
    "newline": (lambda w: add(w, "demo/a\nb"), "wheel-unsafe-member"),
    "empty component": (lambda w: add(w, "demo//a.py"), "wheel-unsafe-member"),
    "twice": (lambda w: add(w, "demo/core.py"), "wheel-duplicate-member"),
    "case": (lambda w: add(w, "demo/CORE.py"), "wheel-colliding-members"),
    "unicode form": (lambda w: add(w, "demo/e\u0301.txt"), "wheel-colliding-members"),
    "file and folder": (lambda w: add(w, "demo/core.py/x"), "wheel-colliding-members"),
    "link": (lambda w: rewrite(w, {"demo/l": b"/etc/passwd"}, external_attr=0o120777 << 16), "wheel-malformed"),
    "pipe": (lambda w: rewrite(w, {"demo/p": b""}, external_attr=0o010644 << 16), "wheel-malformed"),
    "two dist-infos": (lambda w: add(w, "other-1.0.dist-info/METADATA"), "wheel-malformed"),
    "another project": (lambda w: w.rename(w.with_name("other-1.0-py3-none-any.whl")), "wheel-malformed"),
    "another version": (lambda w: w.rename(w.with_name("demo-1.1-py3-none-any.whl")), "wheel-malformed"),
    "no wheel's name": (lambda w: w.rename(w.with_name("demo.whl")), "wheel-malformed"),
    "record is binary": (lambda w: rewrite(w, {"demo-1.0.dist-info/RECORD": b"\xff\xfe,x"}), "wheel-malformed"),
    "record row": (lambda w: rewrite(w, {"demo-1.0.dist-info/RECORD": b"demo/core.py\n"}), "wheel-malformed"),
    "entry points": (lambda w: rewrite(w, {"demo-1.0.dist-info/entry_points.txt": b"x = y\n"}), "wheel-malformed"),
    "header contradicts": (other_local_name, "wheel-malformed"),
    "damaged": (flip, "wheel-malformed"),
    "cut": (lambda w: overwrite(w, w.read_bytes()[:-40]), "wheel-malformed"),
    "no zip": (lambda w: overwrite(w, b"no zip"), "wheel-malformed"),
}
MENDED_BY_REPACKING = ("record is binary", "record row", "entry points")


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_wheel_is_refused(tmp_path: Path, case: str) -> None:
    make, code = HOSTILE[case]
    wheel = make(demo(tmp_path))
    with pytest.raises(IntegrityError) as caught:
        list_wheel(wheel)
    assert codes(caught) == {code}
    if case not in MENDED_BY_REPACKING:
        with pytest.raises(IntegrityError):
            normalise(wheel, tmp_path / "out.whl")
    assert not list(tmp_path.glob("out.whl*"))


def test_all_unsafe_members_are_named_at_once(tmp_path: Path) -> None:
    wheel = add(add(demo(tmp_path), "../a"), "/b")
    with pytest.raises(IntegrityError) as caught:
        list_wheel(wheel)
    assert len(caught.value.problems) == 2


# writing


def test_normalised_bytes_depend_on_content_alone(tmp_path: Path) -> None:
    one, two = demo(tmp_path / "1"), demo(tmp_path / "2", compress=False)
    with zipfile.ZipFile(one) as archive:
        members = [(info, archive.read(info)) for info in reversed(archive.infolist())]
    with zipfile.ZipFile(one, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(zipfile.ZipInfo("demo/", (2026, 1, 1, 0, 0, 0)), b"")
        for info, content in members:
            again = zipfile.ZipInfo(info.filename, (2026, 11, 29, 12, 0, 2))
            again.external_attr = (0o100775 if info.external_attr >> 16 & 0o111 else 0o100600) << 16
            archive.writestr(again, content, zipfile.ZIP_DEFLATED)
        archive.writestr("demo-1.0.dist-info/RECORD.jws", "signature")
    assert one.read_bytes() != two.read_bytes()
    assert normalise(one, tmp_path / "1" / "n.whl") == normalise(two, tmp_path / "2" / "n.whl")
    assert (tmp_path / "1" / "n.whl").read_bytes() == (tmp_path / "2" / "n.whl").read_bytes()
    check_record(tmp_path / "1" / "n.whl")
    with zipfile.ZipFile(tmp_path / "1" / "n.whl") as archive:
        infos = archive.infolist()
    assert {info.compress_type for info in infos} == {zipfile.ZIP_STORED}
    assert {info.date_time for info in infos} == {(1980, 1, 1, 0, 0, 0)}
    assert infos[-1].filename == "demo-1.0.dist-info/RECORD"
    assert {info.external_attr >> 16 for info in infos} == {0o100644, 0o100755}


def test_normalising_twice_changes_nothing(tmp_path: Path) -> None:
    wheel, out = demo(tmp_path), tmp_path / "n" / "demo-1.0-py3-none-any.whl"
    out.parent.mkdir()
    first = normalise(wheel, out)
    assert normalise(out, tmp_path / "again.whl") == first
    assert hashlib.sha256(out.read_bytes()).hexdigest() == first


def test_a_patched_wheel_installs_with_uv_and_runs_the_patched_code(tmp_path: Path) -> None:
    made = patch_wheel(demo(tmp_path), tmp_path / "out", [("0001-answer.patch", PATCH)])
    assert made.filename == f"demo-1.0+envsmith.t{made.tree[:8]}-py3-none-any.whl"
    assert made.touched == ("demo/core.py",)
    wheel = tmp_path / "out" / made.filename
    assert made.sha256 == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert made.size == wheel.stat().st_size
    check_record(wheel)
    python = uv_install(wheel, tmp_path)
    asked = "import importlib.metadata as m, demo.core; print(demo.core.answer(), m.version('demo'))"
    said = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.split()
    assert said == ["42", made.version]
    ran = [
        subprocess.run([python.with_name(name)], capture_output=True, text=True, check=True) for name in ("demo", "old")
    ]
    assert [done.stdout for done in ran] == ["42\n", "old\n"]


def test_untouched_members_keep_their_compressed_bytes(tmp_path: Path) -> None:
    source = demo(tmp_path)
    made = patch_wheel(source, tmp_path / "out", [("0001-answer.patch", PATCH), ("0002-more.patch", ADDS)])
    before, after = packed(source), packed(tmp_path / "out" / made.filename)
    moved = {name.replace("demo-1.0.", f"demo-{made.version}."): data for name, data in before.items()}
    assert {name for name in after if after[name] != moved.get(name)} == {
        "demo/core.py",
        "demo/more.py",
        f"demo-{made.version}.dist-info/METADATA",
        f"demo-{made.version}.dist-info/RECORD",
    }
    assert len(after["demo/data.txt"]) < 100  # it was, and stays, compressed


def test_a_patched_wheel_is_the_same_bytes_wherever_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = demo(tmp_path)
    first = patch_wheel(source, tmp_path / "1", [("0001-answer.patch", PATCH)])
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("GIT_AUTHOR_DATE", "2001-01-01T00:00:00Z")
    old = os.umask(0o077)
    try:
        second = patch_wheel(source, tmp_path / "2", [("0001-answer.patch", PATCH)])
    finally:
        os.umask(old)
    assert first == second


def test_a_series_may_add_drop_and_move_members(tmp_path: Path) -> None:
    series = [("1.patch", ADDS), ("2.patch", DROPS.encode()), ("3.patch", MOVES)]
    made = patch_wheel(demo(tmp_path), tmp_path / "out", series)
    listing = list_wheel(tmp_path / "out" / made.filename)
    names = {member.path for member in listing.members}
    assert {"demo/more.py", "demo/heart.py"} <= names
    assert not {"demo/é.txt", "demo/core.py"} & names
    check_record(tmp_path / "out" / made.filename)


def test_a_local_version_is_kept_and_added_to(tmp_path: Path) -> None:
    made = patch_wheel(demo(tmp_path, version="2.10.0+cu128", build="3"), tmp_path, [("0001-answer.patch", PATCH)])
    assert made.version == f"2.10.0+cu128.envsmith.t{made.tree[:8]}"
    assert made.filename == f"demo-{made.version}-3-py3-none-any.whl"
    uv_install(tmp_path / made.filename, tmp_path)


def test_only_the_header_of_metadata_changes(tmp_path: Path) -> None:
    body = "Name: demo\r\nVersion: 1.0\r\n\r\nVersion: 1.0 was nice\r\n"
    wheel = rewrite(demo(tmp_path), {"demo-1.0.dist-info/METADATA": body.encode()})
    made = patch_wheel(wheel, tmp_path / "out", [("0001-answer.patch", PATCH)])
    metadata = read_metadata(tmp_path / "out" / made.filename)
    assert metadata == body.replace("1.0\r\n\r\n", f"{made.version}\r\n\r\n").encode()


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        (PATCH.replace(b"41", b"40"), "patch-did-not-apply"),
        (PATCH.replace(b"core.py", b"none.py"), "patch-did-not-apply"),
        (PATCH.replace(b"demo/core.py", b"demo-1.0.dist-info/METADATA"), "patch-touches-metadata"),
    ],
)
def test_a_series_that_does_not_fit_leaves_no_wheel(tmp_path: Path, patch: bytes, code: str) -> None:
    source = demo(tmp_path)
    with pytest.raises(InputError) as caught:
        patch_wheel(source, tmp_path / "out", [("0001-answer.patch", patch)])
    assert codes(caught) == {code}
    assert not list((tmp_path / "out").glob("*"))


def test_a_file_can_be_injected_and_record_says_so(tmp_path: Path) -> None:
    source, out = demo(tmp_path), tmp_path / "out" / "demo-1.0-py3-none-any.whl"
    out.parent.mkdir()
    url = json.dumps({"url": "file:///src", "dir_info": {"editable": True}}).encode()
    digest = inject(source, out, {"demo-1.0.dist-info/direct_url.json": url, "demo/data.txt": b"new"})
    assert digest == hashlib.sha256(out.read_bytes()).hexdigest()
    check_record(out)
    assert (
        inject(source, tmp_path / "again.whl", {"demo-1.0.dist-info/direct_url.json": url, "demo/data.txt": b"new"})
        == digest
    )
    assert packed(out)["demo-1.0.dist-info/direct_url.json"] == url
    with pytest.raises(IntegrityError) as caught:
        inject(source, tmp_path / "bad.whl", {"../x": b""})
    assert codes(caught) == {"wheel-unsafe-member"}


# sdists


def tar_with(path: Path, *members: tuple[str, dict[str, object], bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, fields, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            for field, value in fields.items():
                setattr(info, field, value)
            archive.addfile(info, io.BytesIO(content))
    return path


def test_an_sdist_is_unpacked_without_its_top_folder(tmp_path: Path) -> None:
    unpack_sdist(make_sdist(tmp_path, "demo", "1.0", {"demo/a.py": "a\r\n"}), tmp_path / "out")
    assert (tmp_path / "out" / "PKG-INFO").is_file()
    assert (tmp_path / "out" / "demo" / "a.py").read_bytes() == b"a\r\n"


def test_modes_links_and_hard_links_of_an_sdist_are_kept_in_plain_form(tmp_path: Path) -> None:
    sdist = tar_with(
        tmp_path / "d-1.tar.gz",
        ("d-1/", {"type": tarfile.DIRTYPE}, b""),
        ("d-1/run.sh", {"mode": 0o4777}, b"run"),
        ("d-1/a", {"mode": 0o600}, b"a"),
        ("d-1/sub/link", {"type": tarfile.SYMTYPE, "linkname": "../a"}, b""),
        ("d-1/hard", {"type": tarfile.LNKTYPE, "linkname": "d-1/run.sh"}, b""),
    )
    unpack_sdist(sdist, tmp_path / "out")
    modes = {name: (tmp_path / "out" / name).stat().st_mode & 0o7777 for name in ("run.sh", "a", "hard")}
    assert modes == {"run.sh": 0o755, "a": 0o644, "hard": 0o755}
    assert (tmp_path / "out" / "sub" / "link").read_text() == "a"
    assert (tmp_path / "out" / "hard").stat().st_nlink == 1


def test_a_zip_is_an_sdist_too(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "d-1.zip", "w") as archive:
        archive.writestr("d-1/sub/a", "a")
    unpack_sdist(tmp_path / "d-1.zip", tmp_path / "out")
    assert (tmp_path / "out" / "sub" / "a").read_text() == "a"


LINK = {"type": tarfile.SYMTYPE}
BAD_MEMBERS: dict[str, list[tuple[str, dict[str, object], bytes]]] = {
    "dot dot": [("d-1/../../evil", {}, b"x")],
    "link to outside": [("d-1/l", {**LINK, "linkname": "../../etc"}, b"")],
    "absolute link": [("d-1/l", {**LINK, "linkname": "/etc/passwd"}, b"")],
    "link through a link": [
        ("d-1/x", {**LINK, "linkname": "."}, b""),
        ("d-1/y", {**LINK, "linkname": "x/x/../../a"}, b""),
    ],
    "file below a link": [("d-1/l", {**LINK, "linkname": "sub"}, b""), ("d-1/l/x", {}, b"x")],
    "file below a file": [("d-1/f", {}, b"x"), ("d-1/f/x", {}, b"x")],
    "hard link to outside": [("d-1/h", {"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}, b"")],
    "hard link to nothing": [("d-1/h", {"type": tarfile.LNKTYPE, "linkname": "d-1/none"}, b"")],
    "device": [("d-1/dev", {"type": tarfile.CHRTYPE}, b"")],
    "pipe": [("d-1/fifo", {"type": tarfile.FIFOTYPE}, b"")],
    "git folder": [("d-1/.git/hooks/x", {}, b"x")],
}


@pytest.mark.parametrize("case", BAD_MEMBERS)
def test_an_unsafe_sdist_is_refused_before_a_byte_is_written(tmp_path: Path, case: str) -> None:
    sdist = tar_with(tmp_path / "d-1.tar.gz", ("d-1/PKG-INFO", {}, b"x"), *BAD_MEMBERS[case])
    with pytest.raises(IntegrityError) as caught:
        unpack_sdist(sdist, tmp_path / "out")
    assert codes(caught) == {"sdist-unsafe-member"}
    assert not (tmp_path / "out").exists()


def test_an_sdist_that_is_no_sdist_is_refused(tmp_path: Path) -> None:
    two_tops = tar_with(tmp_path / "d-1.tar.gz", ("d-1/a", {}, b"x"), ("/etc/evil", {}, b"x"))
    twice = tar_with(tmp_path / "d-2.tar.gz", ("d-2/a", {}, b"x"), ("d-2/a", {}, b"y"))
    cut = tar_with(tmp_path / "d-3.tar.gz", ("d-3/a", {}, os.urandom(9000)))
    cut.write_bytes(cut.read_bytes()[:4000])
    text = tmp_path / "d-4.tar.gz"
    text.write_text("no archive")
    for number, sdist in enumerate((two_tops, twice, cut, text)):
        with pytest.raises(IntegrityError) as caught:
            unpack_sdist(sdist, tmp_path / f"out{number}")
        assert codes(caught) == {"sdist-malformed"}


def test_an_sdist_is_never_unpacked_over_files(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        unpack_sdist(make_sdist(tmp_path, "demo", "1.0"), tmp_path)
    assert codes(caught) == {"work-exists"}
