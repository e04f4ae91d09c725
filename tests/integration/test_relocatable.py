"""envsmith.tools.relocatable: interpreters are found, packed to the same bytes, unpacked safely and proven to move.

The Python under the tests is the real one; the other prefixes are shell scripts that answer as an interpreter would.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from uv import find_uv_bin

from envsmith.errors import EnvsmithError, HostError, IntegrityError, SupplyError
from envsmith.tools.elf import read_elf
from envsmith.tools.files import sha256_file
from envsmith.tools.interpreter import interpreter_digest
from envsmith.tools.relocatable import Found, Packed, find_relocatable, pack, prove, unpack
from envsmith.tools.searchpath import DoesNotFitError, made_relative, without_folders

MINOR = "{}.{}".format(*sys.version_info)
PATCH = "{}.{}.{}".format(*sys.version_info)
ARCH = platform.machine()

needs_cc = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")

# --- the real interpreter ---


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    folder = tmp_path_factory.mktemp("packed")
    try:
        found = find_relocatable(MINOR, {}, Path(sys.base_prefix), work=folder)
    except HostError as error:
        pytest.skip(error.problems[0].message)
    assert found is not None
    return pack(found.prefix, folder / "python.tar")


@pytest.fixture(scope="module")
def moved(packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prefix at another place."""
    return unpack(packed.path, tmp_path_factory.mktemp("moved") / "python").parent.parent


def test_the_packed_interpreter_runs_elsewhere_and_is_the_one_that_was_packed(packed: Packed, tmp_path: Path) -> None:
    assert (packed.version, packed.arch) == (PATCH, ARCH)
    prove(packed.path, tmp_path / "work", version=PATCH, arch=ARCH)
    assert list((tmp_path / "work").iterdir()) == []


def test_the_archive_says_what_it_is_and_what_it_asks_of_a_machine(packed: Packed) -> None:
    assert packed.sha256 == sha256_file(packed.path)
    assert packed.size == packed.path.stat().st_size
    assert packed.glibc is not None
    assert tuple(map(int, packed.glibc.split("."))) <= tuple(map(int, platform.libc_ver()[1].split(".")))
    assert not [name for name in packed.needs if name.startswith(("libpython", "libc.so", "libm.so", "ld-linux"))]


def test_the_archive_is_plain_ustar_without_a_trace_of_the_machine(packed: Packed) -> None:
    with tarfile.open(packed.path, "r:") as tar:
        members = tar.getmembers()
        assert not tar.pax_headers
    assert [one.name for one in members] == sorted(one.name for one in members)
    assert {(one.uid, one.gid, one.uname, one.gname, one.mtime) for one in members} == {(0, 0, "", "", 315_619_200)}
    assert {one.mode for one in members if one.isfile()} == {0o644, 0o755}
    assert {one.mode for one in members if one.isdir()} == {0o755}
    held = {one.name for one in members}
    library = f"lib/python{MINOR}"
    assert {f"bin/python{MINOR}", "bin/python3", "bin/python", f"include/python{MINOR}/Python.h"} <= held
    assert {f"{library}/site-packages", f"{library}/ensurepip/__init__.py", f"{library}/os.py"} <= held
    assert {name for name in held if name.startswith("bin/")} == {f"bin/python{MINOR}", "bin/python3", "bin/python"}
    unwanted = ("__pycache__", "/site-packages/", f"{library}/test/", "/idlelib/", "share/", "/man/", "/pkgconfig/")
    assert not [name for name in held if name.endswith((".a", ".pyc")) or any(part in name for part in unwanted)]


def test_the_unpacked_one_has_the_digest_of_the_original_and_it_is_known_beforehand(
    packed: Packed, moved: Path
) -> None:
    executable = moved / "bin" / f"python{MINOR}"
    assert interpreter_digest(executable) == packed.digest
    assert packed.digest == interpreter_digest(Path(sys.base_prefix) / "bin" / f"python{MINOR}")


def test_packing_the_moved_one_gives_the_same_interpreter_unchanged(
    packed: Packed, moved: Path, tmp_path: Path
) -> None:
    """Bytecode, times and installed packages of the place do not matter; nothing is left to be rewritten."""
    executable = moved / "bin" / f"python{MINOR}"
    subprocess.run([executable, "-c", "import json, ssl"], check=True, timeout=60)
    (moved / f"lib/python{MINOR}/site-packages/mine.py").write_text("x = 1")
    os.utime(moved / f"lib/python{MINOR}/os.py", (1, 1))
    again = pack(moved, tmp_path / "again.tar")
    assert (again.sha256, again.digest, again.rewritten) == (packed.sha256, packed.digest, ())
    assert interpreter_digest(executable) == again.digest


def test_uv_makes_a_venv_of_the_moved_one_that_sees_nothing_of_the_old_place(moved: Path, tmp_path: Path) -> None:
    argv = [find_uv_bin(), "venv", "--offline", "--no-config", "--quiet", "--python", moved / "bin" / "python3"]
    subprocess.run([*argv, tmp_path / "venv"], check=True, timeout=60)
    code = "import json, ssl, sys; print(json.dumps([sys.base_prefix, *sys.path]))"
    python = tmp_path / "venv" / "bin" / "python"
    done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True, env={}, timeout=60)
    base, *path = json.loads(done.stdout)
    assert base == str(moved)
    assert all(one.startswith((str(moved), str(tmp_path))) for one in path)


def test_one_that_still_loads_from_its_old_place_is_not_passed(packed: Packed, moved: Path, tmp_path: Path) -> None:
    if f"bin/python{MINOR}" not in packed.rewritten:
        pytest.skip("this Python never searched a fixed place")
    executable = moved / "bin" / f"python{MINOR}"
    kept = executable.read_bytes()
    executable.unlink()  # its name alone: what runs keeps the old file
    shutil.copy2(Path(sys.base_prefix) / "bin" / f"python{MINOR}", executable)
    try:
        planted = pack(moved, tmp_path / "planted.tar")
        with pytest.raises(HostError) as error:
            prove(planted.path, tmp_path / "work", version=PATCH, arch=ARCH)
    finally:
        executable.write_bytes(kept)
    assert f"it loads `{Path(sys.base_prefix).resolve()}/lib/libpython" in error.value.problems[0].message


# --- interpreters that only answer ---

ANSWERS = """#!/bin/sh
place="${{0%/bin/*}}"
case "$*" in
*envsmith-moved:*) read -r line <<END
envsmith-moved:{moved}
END
;;
*envsmith-interpreter:*) read -r line <<END
envsmith-interpreter:{asked}
END
;;
*) echo no such option; exit 9 ;;
esac
printf '%s\\n' "$line"
"""


def fake(
    prefix: Path,
    *,
    version: str = "3.11.7",
    asked: Mapping[str, object] | None = None,
    moved: Mapping[str, object] | None = None,
) -> Path:
    """Lay out a prefix whose executable says what it is told to; `$place` is where it lies."""
    minor = version.rpartition(".")[0]
    executable = prefix / "bin" / f"python{minor}"
    told = {
        "version": version, "release": "final", "implementation": "CPython", "prefix": "$place", "arch": ARCH,
        "base_prefix": "$place", "executable": f"$place/bin/python{minor}", "glibc": "glibc 2.36", "libpython": None,
        "debug": False, "free_threaded": False, "venv": True, **(asked or {}),
    }  # fmt: skip
    says = {
        "version": version, "arch": ARCH, "executable": f"$place/bin/python{minor}", "prefix": "$place",
        "base_prefix": "$place", "path": [f"$place/lib/python{minor}"], "paths": {"stdlib": f"$place/lib/{minor}"},
        "mapped": ["[heap]", "$place/lib/x.so"], "broken": {}, **(moved or {}),
    }  # fmt: skip
    put(executable, ANSWERS.format(asked=json.dumps(told), moved=json.dumps(says)), 0o755)
    (prefix / "bin" / "python3").symlink_to(executable.name)
    put(prefix / "lib" / f"python{minor}" / "os.py", "")
    return prefix


def put(path: Path, text: str, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def names(archive: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(archive, "r:") as tar:
        return {one.name: one for one in tar}


def code_of(call: Callable[[], object]) -> tuple[str, str]:
    with pytest.raises(EnvsmithError) as error:
        call()
    problem = error.value.problems[0]
    return problem.code, problem.message


# --- packing ---


def test_only_what_a_venv_needs_comes_along(tmp_path: Path) -> None:
    prefix = fake(tmp_path / "prefix")
    kept = [
        "lib/python3.11/json/__init__.py", "lib/python3.11/ensurepip/_bundled/pip-24-py3-none-any.whl",
        "lib/python3.11/lib-dynload/_x.so", "lib/python3.11/config-3.11-x/Makefile", "lib/libpython3.11.so.1.0",
        "lib/libcrypto.so.3", "lib/tcl8.6/init.tcl", "include/python3.11/Python.h", "include/python3.11/cpython/x.h",
        "lib/python3.11/unittest/test.py",
    ]  # fmt: skip
    left = [
        "bin/pip", "bin/idle3", "bin/2to3", "bin/python3.11-config", "share/man/man1/python.1", "lib/pkgconfig/p.pc",
        "lib/python3.11/site-packages/demo/__init__.py", "lib/python3.11/test/test_os.py", "lib/libpython3.11.a",
        "lib/python3.11/idlelib/x.py", "lib/python3.11/turtledemo/x.py", "lib/python3.11/config-3.11-x/libp.a",
        "lib/python3.11/__pycache__/os.cpython-311.pyc", "lib/python3.11/json/__pycache__/x.pyc", "lib/x.pyc",
        "lib/python3.10/os.py", "lib/libpython3.10.so.1.0", "lib/node_modules/x.js", "include/openssl/ssl.h",
        "openssl/lib/libssl.so", "README",
    ]  # fmt: skip
    for name in (*kept, *left):
        put(prefix / name, name)
    held = names(pack(prefix, tmp_path / "out" / "python.tar").path)
    files = {name for name, one in held.items() if one.isfile()}
    assert files == {*kept, "bin/python3.11", "lib/python3.11/os.py"}
    assert held["lib/python3.11/site-packages"].isdir()
    assert {name: one.linkname for name, one in held.items() if one.issym()} == {
        "bin/python": "python3.11",
        "bin/python3": "python3.11",
    }


def test_links_stay_inside_and_what_they_take_from_outside_becomes_a_file(tmp_path: Path) -> None:
    prefix = fake(tmp_path / "prefix")
    put(prefix / "lib" / "libx.so.1", "x")
    put(tmp_path / "outside.so", "outside")
    for name, target in {
        "lib/libx.so": "libx.so.1",
        "lib/libabsolute.so": str(prefix / "lib/libx.so.1"),
        "lib/liboutside.so": str(tmp_path / "outside.so"),
        "lib/libgone.so": "nothing",
        "lib/python3.11/config.so": "../libx.so",
        "lib/python3.11/folder": str(prefix / "lib/python3.11/real"),
        "lib/libleft.so": "../share/x.so",
    }.items():
        (prefix / name).symlink_to(target)
    put(prefix / "lib/python3.11/real/x.py", "")
    put(prefix / "share/x.so", "shared")
    (prefix / "lib64").symlink_to("lib")
    archive = pack(prefix, tmp_path / "python.tar").path
    held = names(archive)
    links = {name: one.linkname for name, one in held.items() if one.issym() and not name.startswith("bin/")}
    assert links == {
        "lib/libx.so": "libx.so.1",
        "lib/libabsolute.so": "libx.so.1",
        "lib/python3.11/config.so": "../libx.so.1",
        "lib/python3.11/folder": "real",
        "lib64": "lib",
    }
    place = unpack(archive, tmp_path / "moved").parent.parent
    assert (place / "lib/liboutside.so").read_text() == "outside"
    assert (place / "lib/libleft.so").read_text() == "shared"
    assert (place / "lib64/libabsolute.so").read_text() == "x"
    assert not (place / "lib/libgone.so").is_symlink()


def test_times_modes_order_and_owner_do_not_change_the_bytes(tmp_path: Path) -> None:
    prefix = fake(tmp_path / "a")
    for number in range(20):
        put(prefix / f"lib/python3.11/m{number}.py", str(number))
    first = pack(prefix, tmp_path / "1.tar")
    other = tmp_path / "somewhere else"
    shutil.copytree(prefix, other, symlinks=True)
    for path in sorted(other.rglob("*.py"), reverse=True):
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
        path.chmod(0o600)
        os.utime(path, (10**9, 10**9))
    second = pack(other, tmp_path / "2.tar")
    assert (second.sha256, second.size) == (first.sha256, first.size)
    assert first.path.stat().st_mode & 0o777 == 0o644
    put(other / "lib/python3.11/m1.py", "changed")
    assert pack(other, tmp_path / "3.tar").sha256 != first.sha256


def test_long_and_foreign_names_survive(tmp_path: Path) -> None:
    prefix = fake(tmp_path / "prefix")
    long = "lib/python3.11/" + "/".join(["a" * 60] * 4) + "/" + "b" * 120 + ".py"
    for name in (long, "lib/python3.11/ü.py"):
        put(prefix / name, name)
    place = unpack(pack(prefix, tmp_path / "python.tar").path, tmp_path / "moved").parent.parent
    assert (place / long).read_text() == long
    assert (place / "lib/python3.11/ü.py").read_text() == "lib/python3.11/ü.py"


@pytest.mark.parametrize("kind", ["fifo", "link to a folder outside", "no library"])
def test_a_prefix_that_cannot_be_packed_is_refused_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    prefix = fake(tmp_path / "prefix")
    if kind == "fifo":
        os.mkfifo(prefix / "lib/python3.11/pipe")
    elif kind == "no library":
        (prefix / "lib/python3.11/os.py").unlink()
    else:
        (prefix / "lib/python3.11/outside").symlink_to(tmp_path)
    code, _ = code_of(lambda: pack(prefix, tmp_path / "out" / "python.tar"))
    assert code == "interpreter-not-relocatable"
    assert not list(tmp_path.glob("out/*"))


@needs_cc
def test_libraries_that_neither_it_nor_glibc_brings_are_needs(tmp_path: Path) -> None:
    prefix = fake(tmp_path / "prefix")
    source = put(tmp_path / "x.c", "int x(void) { return 1; }\n")
    dynload = prefix / "lib/python3.11/lib-dynload"
    dynload.mkdir()
    for folder, soname in ((prefix / "lib", "libmine.so.2"), (tmp_path, "libtheirs.so.7")):
        argv = ["cc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", "-o", folder / "lib.so", source]
        subprocess.run(argv, check=True)
    libraries = ["-Wl,--no-as-needed", prefix / "lib/lib.so", tmp_path / "lib.so", "-lm"]
    subprocess.run(["cc", "-shared", "-fPIC", "-o", dynload / "_x.so", source, *libraries], check=True)
    assert pack(prefix, tmp_path / "python.tar").needs == ("libtheirs.so.7",)


# --- search paths ---


def built(path: Path, rpath: str, *options: str) -> bytes:
    source = put(path.parent / "x.c", "int lib(void) { return 1; }\nint x(void) { return lib(); }\n")
    argv = ["cc", "-shared", "-fPIC", f"-Wl,-rpath,{rpath}", *options, "-o", path, source]
    subprocess.run(argv, check=True)
    return path.read_bytes()


@needs_cc
@pytest.mark.parametrize("option", ["-Wl,--enable-new-dtags", "-Wl,--disable-new-dtags"])
def test_a_fixed_search_path_is_made_relative_without_moving_a_byte(tmp_path: Path, option: str) -> None:
    prefix = "/opt/some/where/python"
    content = built(tmp_path / "x.so", f"{prefix}/lib:/usr/lib/x:{prefix}/lib/deep/", option, "-Wl,-O2")
    new = made_relative(content, "lib/python3.11/lib-dynload", ["/other", prefix])
    (tmp_path / "new.so").write_bytes(new)
    read = read_elf(tmp_path / "new.so")
    assert read is not None
    said = read.elf.rpath if "disable" in option else read.elf.runpath
    assert said is not None
    first, second, third = said.split(":")
    assert (second, len(new)) == ("/usr/lib/x", len(content))
    origin = f"{prefix}/lib/python3.11/lib-dynload"
    assert os.path.normpath(first.replace("$ORIGIN", origin)) == f"{prefix}/lib"
    assert os.path.normpath(third.replace("$ORIGIN", origin)) == f"{prefix}/lib/deep"
    changed = [n for n, (a, b) in enumerate(zip(content, new, strict=True)) if a != b]
    assert max(changed) - min(changed) < len(said)
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).x())"
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "new.so"], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"


@needs_cc
def test_a_search_path_that_is_too_short_is_said_and_others_stay(tmp_path: Path) -> None:
    content = built(tmp_path / "x.so", "/p/lib:/usr/lib/x")
    with pytest.raises(DoesNotFitError, match="/p/lib"):
        made_relative(content, "bin", ["/p"])
    assert made_relative(content, "bin", ["/q", "/usr/lib/y"]) == content
    assert made_relative(b"#!/bin/sh\n", "bin", ["/p"]) == b"#!/bin/sh\n"


@needs_cc
def test_without_its_folders_a_file_is_the_same_wherever_it_searches_and_another_file_is_not(tmp_path: Path) -> None:
    content = built(tmp_path / "x.so", "/opt/some/where/python/lib")
    new = made_relative(content, "bin", ["/opt/some/where/python"])
    assert new != content
    assert without_folders(new) == without_folders(content) != content
    other = new[:-1] + bytes([new[-1] ^ 1])
    assert without_folders(other) != without_folders(content)
    assert without_folders(b"#!/bin/sh\n") == b"#!/bin/sh\n"


@needs_cc
def test_broken_elf_files_never_raise(tmp_path: Path) -> None:
    content = built(tmp_path / "x.so", "/opt/some/where/python/lib")
    chance = random.Random(5)
    for length in range(0, 1024, 7):
        made_relative(content[:length], "lib", ["/opt/some/where/python"])
        without_folders(content[:length])
    for _ in range(300):
        broken = bytearray(content)
        for _ in range(8):
            broken[chance.randrange(1024)] = chance.randrange(256)
        made_relative(bytes(broken), "lib", ["/opt/some/where/python"])
        without_folders(bytes(broken))


# --- unpacking ---


def tar_of(path: Path, *members: tuple[str, str, str]) -> Path:
    """Write an archive of (name, kind, content or target) beside what an interpreter has."""
    kinds = {"link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "fifo": tarfile.FIFOTYPE, "device": tarfile.CHRTYPE}
    with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
        for name, kind, content in (
            ("bin/python3.11", "file", "#!/bin/sh\n"), ("lib/python3.11/os.py", "file", ""), *members,
        ):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.mode = 0o755
            if kind == "file":
                info.size = len(content)
            elif kind == "folder":
                info.type = tarfile.DIRTYPE
            else:
                info.type, info.linkname = kinds[kind], content
            tar.addfile(info, io.BytesIO(content.encode()))
    return path


HOSTILE: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "absolute": (("/tmp/evil", "file", "x"),),
    "upward": (("../evil", "file", "x"),),
    "upward inside": (("lib/../../evil", "file", "x"),),
    "twice": (("lib/x", "file", "1"), ("lib/x", "file", "2")),
    "twice by another spelling": (("lib/x", "file", "1"), ("./lib//x", "file", "2")),
    "file and folder": (("lib/x", "file", "1"), ("lib/x", "folder", "")),
    "below a file": (("lib/x", "file", "1"), ("lib/x/y", "file", "2")),
    "below a link": (("lib/x", "link", "python3.11"), ("lib/x/y", "file", "2")),
    "absolute link": (("lib/x", "link", "/etc/passwd"),),
    "upward link": (("lib/x", "link", "../../evil"),),
    "link through a link": (("a/b/d", "link", "../../lib"), ("lib/x", "link", "../a/b/d/../../evil")),
    "hard link outside": (("lib/x", "hard", "../evil"),),
    "hard link to nothing": (("lib/x", "hard", "lib/none"),),
    "fifo": (("lib/x", "fifo", ""),),
    "device": (("lib/x", "device", ""),),
    "control character": (("lib/x\x1b[2J", "file", "x"),),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_before_anything_is_written(tmp_path: Path, kind: str) -> None:
    archive = tar_of(tmp_path / "python.tar", *HOSTILE[kind])
    with pytest.raises(IntegrityError) as error:
        unpack(archive, tmp_path / "place" / "python")
    assert {problem.code for problem in error.value.problems} == {"interpreter-archive-unsafe"}
    assert list((tmp_path / "place").iterdir()) == []
    assert not (tmp_path / "evil").exists()
    assert not Path("/tmp/evil").exists()


def test_what_archives_of_others_have_is_taken(tmp_path: Path) -> None:
    members = (("./lib/", "folder", ""), ("lib/a.py", "file", "a"), ("lib/b.py", "hard", "lib/a.py"))
    archive = tar_of(tmp_path / "python.tar.gz", *members, ("lib/c.py", "link", "a.py"), ("lib", "folder", ""))
    place = unpack(archive, tmp_path / "python").parent.parent
    assert (place / "lib/b.py").read_text() == (place / "lib/c.py").read_text() == "a"
    assert (place / "lib/a.py").stat().st_nlink == 1


@pytest.mark.parametrize("kind", ["text", "empty", "cut", "cut gz", "broken gz", "no interpreter"])
def test_what_is_no_whole_archive_of_an_interpreter_is_malformed(tmp_path: Path, kind: str) -> None:
    whole = tar_of(tmp_path / "whole.tar", ("lib/x", "file", "x" * 5000)).read_bytes()
    packed = bytearray(gzip.compress(whole, 0))
    packed[-20] ^= 1
    content = {
        "text": b"hello " * 1000,
        "empty": b"",
        "cut": whole[:4000],
        "cut gz": bytes(packed[:-3000]),
        "broken gz": bytes(packed[:-5]) + bytes(5),
        "no interpreter": whole.replace(b"bin/python3.11", b"bin/pythonX.11").replace(b"", b""),
    }[kind]
    if kind == "no interpreter":
        with tarfile.open(tmp_path / "other.tar", "w") as tar:
            tar.addfile(tarfile.TarInfo("README"))
        content = (tmp_path / "other.tar").read_bytes()
    archive = tmp_path / "python.tar"
    archive.write_bytes(content)
    assert code_of(lambda: unpack(archive, tmp_path / "place" / "python"))[0] == "interpreter-archive-malformed"
    assert list((tmp_path / "place").iterdir()) == []


def test_unpacking_twice_does_nothing_and_another_archive_is_in_the_way(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "1.tar")
    executable = unpack(archive, tmp_path / "python")
    assert executable == tmp_path / "python" / "bin" / "python3.11"
    before = executable.stat()
    (tmp_path / "python" / "lib" / "kept").write_text("")
    assert unpack(archive, tmp_path / "python") == executable
    assert executable.stat() == before
    other = tar_of(tmp_path / "2.tar", ("lib/x", "file", "other"))
    assert code_of(lambda: unpack(other, tmp_path / "python"))[0] == "file-in-the-way"
    assert (tmp_path / "python" / "lib" / "kept").exists()
    assert sorted(path.name for path in tmp_path.glob(".envsmith*")) == []


@pytest.mark.parametrize("kind", ["folder", "file", "link", "no parent"])
def test_what_is_there_already_is_never_replaced(tmp_path: Path, kind: str) -> None:
    archive, dest = tar_of(tmp_path / "1.tar"), tmp_path / "python"
    if kind == "folder":
        put(dest / "mine", "x")
    elif kind == "file":
        put(dest, "x")
    elif kind == "link":
        dest.symlink_to(tmp_path / "nothing")
    else:
        dest = put(tmp_path / "file", "x") / "python"
    code, _ = code_of(lambda: unpack(archive, dest))
    assert code == "file-in-the-way"


# --- proving ---


@pytest.mark.parametrize(
    ("moved", "said"),
    [
        ({"version": "3.11.8"}, "its version is 3.11.8 instead of 3.11.7"),
        ({"arch": "riscv64"}, f"its arch is riscv64 instead of {ARCH}"),
        ({"prefix": "/old"}, "its prefix is /old instead of "),
        ({"base_prefix": "/old"}, "its base_prefix is /old instead of "),
        ({"executable": "/old/bin/python3.11"}, "`sys.executable` is still `/old/bin/python3.11`"),
        ({"path": ["$place/lib/python3.11", "/old/lib"]}, "`sys.path` is still `/old/lib`"),
        ({"path": ["$place-not/lib"]}, "`sys.path` is still `"),
        ({"paths": {"include": "/old/include"}}, "`sysconfig` path `include` is still `/old/include`"),
        ({"mapped": ["/old/lib/libssl.so.3"]}, "it loads `/old/lib/libssl.so.3`"),
        ({"mapped": ["/usr/lib/libpython3.11.so.1.0"]}, "it loads `/usr/lib/libpython3.11.so.1.0`"),
        ({"broken": {"ssl": "ImportError: no"}}, "`import ssl` fails: ImportError: no"),
    ],
)
def test_every_sign_of_the_old_place_is_a_reason(tmp_path: Path, moved: Mapping[str, object], said: str) -> None:
    packed = pack(fake(tmp_path / "prefix", moved=moved), tmp_path / "python.tar")
    with pytest.raises(HostError) as error:
        prove(packed.path, tmp_path / "work", version="3.11.7", arch=ARCH)
    (problem,) = error.value.problems
    assert problem.code == "interpreter-not-relocatable"
    assert said in problem.message
    assert list((tmp_path / "work").iterdir()) == []


def test_all_that_failed_is_said_at_once(tmp_path: Path) -> None:
    packed = pack(fake(tmp_path / "prefix", moved={"version": "1.0.0", "broken": {"ssl": "x"}}), tmp_path / "p.tar")
    with pytest.raises(HostError) as error:
        prove(packed.path, tmp_path / "work", version="3.11.7", arch=ARCH)
    assert error.value.problems[0].actual == "`import ssl` fails: x"


def test_one_that_cannot_make_a_venv_or_does_not_start_is_not_passed(tmp_path: Path) -> None:
    packed = pack(fake(tmp_path / "prefix"), tmp_path / "python.tar")
    _, said = code_of(lambda: prove(packed.path, tmp_path / "work", version="3.11.7", arch=ARCH))
    assert "it cannot make a venv: no such option" in said
    silent = tar_of(tmp_path / "silent.tar")
    _, said = code_of(lambda: prove(silent, tmp_path / "work", version="3.11.7", arch=ARCH))
    assert "it does not run when it is moved: exit 0" in said
    foreign = tar_of(tmp_path / "foreign.tar")
    foreign.write_bytes(foreign.read_bytes().replace(b"#!/bin/sh", b"\x7fELF\x02\x01\x01\0\0"))
    code, said = code_of(lambda: prove(foreign, tmp_path / "work", version="3.11.7", arch=ARCH))
    assert (code, "cannot be started" in said) == ("interpreter-not-relocatable", True)


# --- finding ---


def search(tmp_path: Path, version: str = "3.11", **variables: str) -> tuple[Found | None, list[str]]:
    """Look below a home of our own, and nowhere in the system."""
    refused: list[str] = []
    environ = {"HOME": str(tmp_path / "home"), **variables}
    found = find_relocatable(
        version,
        environ,
        work=tmp_path / "work",
        on_refusal=lambda _, why: refused.append(why),
        system=tmp_path / "system",
    )
    return found, refused


@pytest.mark.parametrize("place", ["HOME", "XDG_DATA_HOME", "UV_PYTHON_INSTALL_DIR"])
def test_a_build_of_uv_wins_and_the_newest_of_them(tmp_path: Path, place: str) -> None:
    below = {"HOME": "home/.local/share/uv/python", "XDG_DATA_HOME": "data/uv/python", "UV_PYTHON_INSTALL_DIR": "uvs"}
    folder = tmp_path / below[place]
    fake(folder / "cpython-3.11.7-linux-x86_64-gnu")
    newest = fake(folder / "cpython-3.11.11-linux-x86_64-gnu", version="3.11.11")
    fake(folder / "cpython-3.12.1-linux-x86_64-gnu", version="3.12.1")
    (folder / "cpython-3.11-linux-x86_64-gnu").symlink_to(newest)
    other = fake(tmp_path / "other", version="3.11.12")
    variables = {"XDG_DATA_HOME": str(tmp_path / "data"), "UV_PYTHON_INSTALL_DIR": str(tmp_path / "uvs")}
    given = {"PATH": str(other / "bin"), **({place: variables[place]} if place in variables else {})}
    found, refused = search(tmp_path, **given)
    assert found == Found(prefix=newest, executable=newest / "bin/python3.11", version="3.11.11", kind="uv")
    assert refused == []
    found, _ = search(tmp_path, "3.11.7", **given)
    assert found is not None
    assert found.version == "3.11.7"


def test_what_an_env_would_be_built_on_comes_next(tmp_path: Path) -> None:
    other = fake(tmp_path / "other")
    found, _ = search(tmp_path, PATH=str(other / "bin"))
    assert found == Found(prefix=other, executable=other / "bin/python3.11", version="3.11.7", kind="found")
    assert search(tmp_path, "3.13") == (None, [])


REFUSED: Mapping[str, tuple[Mapping[str, object], str]] = {
    "usr": ({"base_prefix": "/usr", "prefix": "/usr"}, "it belongs to the system: `/usr`"),
    "usr local": ({"base_prefix": "/usr/local", "prefix": "/usr/local"}, "it belongs to the system: `/usr/local`"),
    "conda": ({}, "conda writes the place of the prefix into its files"),
    "venv": ({}, "it is a virtual environment"),
    "musl": ({"glibc": None}, "it was not built for glibc"),
    "libpython outside": ({"libpython": "/elsewhere/libpython3.11.so.1.0"}, "`/elsewhere/libpython3.11.so.1.0` of it"),
    "no library": ({}, "its standard library is not below"),
}


def refusable(prefix: Path, kind: str) -> Path:
    fake(prefix, asked=REFUSED[kind][0])
    if kind == "conda":
        put(prefix / "conda-meta" / "history", "")
    elif kind == "venv":
        put(prefix / "pyvenv.cfg", "home = /usr/bin\n")
    elif kind == "no library":
        (prefix / "lib/python3.11/os.py").unlink()
    return prefix


@pytest.mark.parametrize("kind", REFUSED)
def test_one_that_must_stay_is_refused_with_its_reason_and_the_next_is_taken(tmp_path: Path, kind: str) -> None:
    path = str(refusable(tmp_path / "prefix", kind) / "bin")
    found, refused = search(tmp_path, PATH=path)
    assert found is None
    assert len(refused) == 1
    assert refused[0].startswith(REFUSED[kind][1])
    other = fake(tmp_path / "home/.pyenv/versions/3.11.7")
    found, again = search(tmp_path, PATH=path)
    assert found is not None
    assert (found.prefix, again) == (other, refused)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_named_one_that_must_stay_is_an_error(tmp_path: Path, kind: str) -> None:
    prefix = refusable(tmp_path / "prefix", kind)
    code, _ = code_of(lambda: find_relocatable("3.11", {}, prefix, work=tmp_path / "work"))
    assert code == "interpreter-not-relocatable"


def test_the_system_and_a_real_venv_are_refused_when_they_are_named(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True, timeout=60)
    for named in (tmp_path / "venv", tmp_path / "venv" / "bin" / "python", Path("/usr")):
        if named == Path("/usr") and not Path(f"/usr/bin/python{MINOR}").exists():
            continue
        with pytest.raises(HostError) as error:
            find_relocatable(MINOR, {}, named, work=tmp_path / "work")
        assert error.value.problems[0].code == "interpreter-not-relocatable"


def test_a_folder_an_executable_and_an_archive_can_be_named(tmp_path: Path) -> None:
    prefix = fake(tmp_path / "prefix")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(prefix / "bin" / "python3")
    executables = (prefix / "bin" / "python3.11", prefix / "bin" / "python3", tmp_path / "bin" / "python")
    for named in (prefix, *executables):
        found = find_relocatable("3.11", {}, named, work=tmp_path / "work")
        assert found == Found(prefix=prefix, executable=prefix / "bin/python3.11", version="3.11.7", kind="named")
    direct = pack(prefix, tmp_path / "ours.tar")
    for top, ending in (("python", ".tar.gz"), ("python/install", ".tar")):
        archive = tmp_path / f"theirs{ending}"
        with tarfile.open(archive, "w:gz" if ending == ".tar.gz" else "w") as tar:
            tar.add(prefix, top)
        found = find_relocatable("3.11.7", {}, archive, work=tmp_path / "work")
        assert found is not None
        assert pack(found.prefix, tmp_path / "again.tar").sha256 == direct.sha256
    found = find_relocatable("3.11", {}, direct.path, work=tmp_path / "work")
    assert found is not None
    assert pack(found.prefix, tmp_path / "again.tar").sha256 == hashlib.sha256(direct.path.read_bytes()).hexdigest()


def test_a_named_one_of_another_version_or_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    prefix = fake(tmp_path / "prefix")
    for version in ("3.12", "3.11.8", "3.1"):
        code, said = code_of(lambda version=version: find_relocatable(version, {}, prefix, work=tmp_path))
        assert (code, "is a Python 3.11.7" in said) == ("interpreter-version", True)
    put(prefix / "bin" / "python3.11", "#!/bin/sh\nexit 3\n", 0o755)
    with pytest.raises(SupplyError) as error:
        find_relocatable("3.11", {}, prefix, work=tmp_path)
    assert error.value.problems[0].code == "no-interpreter"
    assert code_of(lambda: find_relocatable("3.11", {}, tmp_path, work=tmp_path))[0] == "interpreter-not-relocatable"
    gone = tmp_path / "gone"
    with pytest.raises(SupplyError) as error:
        find_relocatable("3.11", {}, gone, work=tmp_path)
    assert "there is no `" in error.value.problems[0].message
