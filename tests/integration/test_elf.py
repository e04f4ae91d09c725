"""ELF files, device code and what the host gives, read from real files; no file of whatever content does us harm."""

from __future__ import annotations

import os
import platform
import random
import shutil
import struct
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from envsmith.checks.linking import shadowed_by
from envsmith.checks.native import check_native
from envsmith.native import FOREIGN, DeviceImage, VersionNeed, version_numbers
from envsmith.tools.devicecode import MAX_HEADERS, device_images
from envsmith.tools.elf import machine_of, read_elf
from envsmith.tools.hostlibs import cache_entries, host_libraries, library_path
from envsmith.tools.nativescan import known_from_json, scan_native, to_json
from envsmith.tools.tree import scan

SITE = "lib/python3.11/site-packages"

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no gcc to build libraries with")
needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="the bytes are those of x86_64")


def build(path: Path, source: str, *options: str) -> Path:
    """Compile one file of C."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = path.with_suffix(".c")
    code.write_text(source)
    shape = [] if "main(" in source else ["-shared", "-fPIC"]
    subprocess.run(["gcc", *shape, "-o", path, code, *options], check=True, capture_output=True)
    code.unlink()
    return path


def python_library() -> Path:
    """The smallest extension module of the running interpreter, or of its packages."""
    found = [path for place in ("platstdlib", "platlib") for path in Path(sysconfig.get_path(place)).rglob("*.so")]
    if not found:
        pytest.skip("this interpreter has no extension modules in files")
    return min(found, key=lambda path: path.stat().st_size)


def facts_of(root: Path, digests: Mapping[str, str] | None = None) -> list[tuple[str, str | None]]:
    return [(file.path, file.elf.damaged) for file in scan_native(root, scan(root), digests=digests).files]


# --- real files ---


def test_libraries_of_the_running_interpreter_are_read_whole() -> None:
    python_library()
    libraries = [p for place in ("platstdlib", "platlib") for p in Path(sysconfig.get_path(place)).rglob("*.so")]
    reads = [read for path in libraries if (read := read_elf(path))]
    assert len(reads) == len(libraries)
    assert {read.elf.damaged for read in reads} <= {None}
    assert {read.elf.machine for read in reads} <= {machine_of(sys.executable)}


def test_a_library_of_c_names_what_it_needs_of_libc() -> None:
    read = read_elf(python_library())
    assert read is not None
    assert "libc.so.6" in read.elf.needed
    assert any(need.library == "libc.so.6" and need.version.startswith("GLIBC_2") for need in read.elf.needs)


@needs_gcc
def test_names_search_paths_and_versions_are_those_that_the_linker_wrote(tmp_path: Path) -> None:
    script = tmp_path / "versions.map"
    script.write_text("DEEP_1.0 { global: deep; local: *; };\nDEEP_1.1 { global: deeper; } DEEP_1.0;\n")
    deep = build(
        tmp_path / "libdeep.so.1.2",
        "int deep(){return 1;} int deeper(){return 2;}",
        "-Wl,-soname,libdeep.so.1",
        f"-Wl,--version-script={script}",
    )
    user = "int deep(); int deeper(); int use(){return deep() + deeper();}"
    old = build(tmp_path / "old.so", user, str(deep), "-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN/a:/b")
    new = build(tmp_path / "new.so", user, str(deep), "-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN/a")
    elf = [read.elf for path in (deep, old, new) if (read := read_elf(path))]
    assert (elf[0].soname, elf[0].defines) == ("libdeep.so.1", ("DEEP_1.0", "DEEP_1.1"))
    assert (elf[1].rpath, elf[1].runpath, elf[1].own_rpath) == ("$ORIGIN/a:/b", None, "$ORIGIN/a:/b")
    assert (elf[2].rpath, elf[2].runpath, elf[2].own_rpath) == (None, "$ORIGIN/a", "")
    assert elf[1].needed[0] == "libdeep.so.1"
    assert {need for need in elf[1].needs if need.library == "libdeep.so.1"} == {
        VersionNeed("libdeep.so.1", "DEEP_1.0", False),
        VersionNeed("libdeep.so.1", "DEEP_1.1", False),
    }


@needs_gcc
def test_a_program_names_its_loader(tmp_path: Path) -> None:
    read = read_elf(build(tmp_path / "program", "int main(){return 0;}"))
    assert read is not None
    assert Path(read.elf.interp or "").exists()


@needs_gcc
@needs_x86
def test_a_32_bit_library_is_read_too(tmp_path: Path) -> None:
    path = build(tmp_path / "lib32.so", "int x(){return 1;}", "-m32", "-nostdlib", "-Wl,-soname,lib32.so.3")
    read = read_elf(path)
    assert read is not None
    assert (read.elf.bits, read.elf.machine, read.elf.soname, read.elf.damaged) == (32, 3, "lib32.so.3", None)


@needs_gcc
def test_an_object_file_and_a_text_are_no_libraries(tmp_path: Path) -> None:
    build(tmp_path / "x.so", "int x(){return 1;}", "-c")
    read = read_elf(tmp_path / "x.so")
    assert read is not None
    assert read.elf.damaged == "it is neither a library nor a program"
    (tmp_path / "text").write_text("\x7fEL")
    assert read_elf(tmp_path / "text") is None


# --- damaged files ---


@needs_gcc
def test_every_cut_of_a_library_is_a_value(tmp_path: Path) -> None:
    whole = build(tmp_path / "libx.so", "int x(){return 1;}", "-nostdlib").read_bytes()
    cut = tmp_path / "cut.so"
    for length in (*range(0, 1024, 5), *range(1024, len(whole), 97), len(whole) - 1):
        cut.write_bytes(whole[:length])
        read = read_elf(cut)
        assert (read is None) == (length < 4)
        assert read is None or (read.elf.damaged or "").startswith("cut short")


def test_flipped_bytes_never_raise_and_never_take_long(tmp_path: Path) -> None:
    whole = python_library().read_bytes()
    chance = random.Random(20261130)
    path = tmp_path / "flipped.so"
    started = time.process_time()
    for _ in range(600):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 4, 64))):
            place = chance.choice((chance.randrange(4, 1024), chance.randrange(4, len(data))))
            data[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        path.write_bytes(data)
        assert read_elf(path) is not None
    assert time.process_time() - started < 30


@needs_x86
def test_lists_that_do_not_end_are_given_up(tmp_path: Path) -> None:
    for table in ("needs", "defines"):
        path = tmp_path / f"{table}.so"
        path.write_bytes(_endless(table))
        started = time.process_time()
        read = read_elf(path)
        assert read is not None
        assert read.elf.damaged in ("its list of versions does not end", "a name does not end") or (
            read.elf.damaged or ""
        ).startswith("cut short")
        assert time.process_time() - started < 1


def _endless(table: str) -> bytes:
    """Make a library whose list of versions goes on to the end of the file."""
    room = 1 << 20
    header = struct.pack("<4sBBBx8xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    segments = struct.pack("<IIQQQQQQ", 1, 4, 0, 0, 0, room, room, 4096)
    segments += struct.pack("<IIQQQQQQ", 2, 4, 512, 512, 512, 112, 112, 8)
    tag = 0x6FFFFFFE if table == "needs" else 0x6FFFFFFC
    dynamic = b"".join(struct.pack("<qQ", *row) for row in ((5, 1024), (10, 16), (tag, 2048), (tag + 1, 1), (0, 0)))
    row = struct.pack("<HHIII", 1, 1, 1, 16, 16) if table == "needs" else struct.pack("<HHHHIII", 1, 0, 1, 1, 0, 20, 20)
    data = bytearray(room)
    data[: len(header)] = header
    data[64 : 64 + len(segments)] = segments
    data[512 : 512 + len(dynamic)] = dynamic
    data[1024:1028] = b"\0ab\0"
    data[2048:] = (row * (room // len(row)))[: room - 2048]
    return bytes(data)


def test_pipes_folders_and_missing_files_do_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.so")
    for name, why in (("pipe.so", "no regular file"), (".", "no regular file"), ("none.so", "cannot be opened")):
        read = read_elf(tmp_path / name)
        assert read is not None
        assert why in (read.elf.damaged or "")


# --- device code ---


def fat(*entries: tuple[int, int, int, int]) -> bytes:
    """Make one fat binary of entries `(kind, arch, flags, payload size)`."""
    body = b"".join(
        struct.pack("<HHIQIIHHIIIQ16x", kind, 0x101, 64, size, 0, 0, 8, 1, arch, 0, 0, flags) + b"\xaa" * size
        for kind, arch, flags, size in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def reader(data: bytes) -> Callable[[int, int], bytes]:
    return lambda offset, size: data[offset : offset + size]


def images_of(data: bytes) -> tuple[tuple[DeviceImage, ...], bool]:
    return device_images(reader(data), [(0, len(data))])


def test_kinds_architectures_and_suffixes_of_device_code_are_read() -> None:
    data = fat((2, 80, 0x2011, 8), (2, 90, 0x102011, 16), (2, 100, 0x1200011, 8), (1, 120, 0x2011, 8))
    images, complete = images_of(data + bytes(8) + fat((2, 80, 0x11, 8), (8, 80, 0x11, 8)) + bytes(64))
    assert complete
    assert [tuple(image) for image in images] == [
        ("kind8", "80", 1),
        ("ptx", "120", 1),
        ("sm", "100f", 1),
        ("sm", "80", 2),
        ("sm", "90a", 1),
    ]


def test_device_code_that_lies_is_incomplete_and_costs_little() -> None:
    good = fat((2, 80, 0x11, 8))
    assert images_of(good[:-1]) == ((), False)
    assert images_of(good[:40])[1] is False
    assert images_of(b"\xff" * 5000)[1] is False
    assert images_of(good + b"\xff" * 64) == ((DeviceImage("sm", "80", 1),), False)
    assert images_of(fat((2, 4_000_000_000, 0, 8)))[1] is False
    assert images_of(b"") == ((), True)
    started = time.process_time()
    many = fat(*[(2, 80, 0x11, 0)] * (MAX_HEADERS + 10))
    assert images_of(many)[1] is False
    assert images_of(fat() * 1000)[1] is False
    assert time.process_time() - started < 10


def test_flipped_device_code_never_raises() -> None:
    chance = random.Random(7)
    whole = fat((2, 80, 0x11, 8), (1, 80, 0x11, 24)) + fat((2, 90, 0x100011, 8))
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 3, 20))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        device_images(reader(bytes(data)), [(0, len(data))])


@needs_gcc
def test_device_code_is_found_in_its_section(tmp_path: Path) -> None:
    (tmp_path / "code.bin").write_bytes(fat((2, 80, 0x11, 8), (1, 80, 0x11, 8)))
    source = f'__asm__(".section .nv_fatbin, \\"a\\"\\n.incbin \\"{tmp_path}/code.bin\\"\\n.previous");int x;'
    read = read_elf(build(tmp_path / "libk.so", source))
    assert read is not None
    assert read.device == (DeviceImage("ptx", "80", 1), DeviceImage("sm", "80", 1))
    assert read.device_complete


# --- a whole environment ---


@pytest.fixture
def env(tmp_path: Path) -> Path:
    """An environment with one real library, a program, a script and what is none."""
    root = tmp_path / "env"
    site = root / SITE
    (site / "pkg").mkdir(parents=True)
    (root / "bin").mkdir()
    (root / "bin/python").symlink_to(os.path.realpath(sys.executable))
    shutil.copy(python_library(), site / "pkg/_x.so")
    (root / "bin/script").write_text("#!/bin/sh\n")
    (root / "bin/script").chmod(0o755)
    shutil.copy(python_library(), root / "bin/tool")
    (root / "bin/tool").chmod(0o755)
    (site / "pkg/note.py").write_text("x = 1\n")
    return root


def test_libraries_and_programs_are_found_and_scripts_are_not(env: Path) -> None:
    assert facts_of(env) == [("bin/tool", None), (f"{SITE}/pkg/_x.so", None)]


def test_what_is_named_like_a_library_and_is_none_is_damaged(env: Path) -> None:
    site = env / SITE / "pkg"
    (site / "liblfs.so").write_text("version https://git-lfs.example/spec/v1\n")
    (site / "libempty.so.1").write_bytes(b"")
    (site / "libmac.so").write_bytes(b"\xcf\xfa\xed\xfe" + bytes(40))
    (site / "libcut.so").write_bytes((site / "_x.so").read_bytes()[:2000])
    (site / "libc.so").write_text("/* GNU ld script */ GROUP ( /lib64/libc.so.6 )\n")
    damaged = {path.rpartition("/")[2]: why for path, why in facts_of(env) if why}
    assert damaged.pop("libcut.so").startswith("cut short")
    assert damaged == {"liblfs.so": "it is no ELF file", "libempty.so.1": "it is empty", "libmac.so": FOREIGN}


def test_links_are_followed_and_folders_outside_looked_at(env: Path, tmp_path: Path) -> None:
    (env / "lib64").symlink_to("lib")
    site = env / SITE / "pkg"
    (site / "lib_x.so.1").symlink_to("_x.so")
    (site / "libgone.so").symlink_to("nowhere")
    (site / "libout.so").symlink_to(os.path.realpath(sys.executable))
    facts = scan_native(env, scan(env))
    assert facts.links == {
        "lib64": "lib",
        f"{SITE}/pkg/lib_x.so.1": f"{SITE}/pkg/_x.so",
        f"{SITE}/pkg/libgone.so": None,
        f"{SITE}/pkg/libout.so": os.path.realpath(sys.executable),
    }
    assert facts.machine == machine_of(sys.executable)


@needs_gcc
def test_who_can_write_where_a_search_path_leads_is_seen(env: Path, tmp_path: Path) -> None:
    shared, private = tmp_path / "shared", tmp_path / "private"
    shared.mkdir()
    shared.chmod(0o1777)
    private.mkdir(mode=0o755)
    build(env / SITE / "pkg/_y.so", "int y;", f"-Wl,-rpath,{shared}/lib:{private}")
    seen = {Path(folder.path).name: folder for folder in scan_native(env, scan(env)).outside}
    assert not seen["lib"].exists
    assert seen["lib"].writable_by == f"everybody (by the mode of `{shared}`)"
    assert seen["private"].exists
    assert seen["private"].writable_by is None


def test_a_known_file_is_not_opened_again_and_a_changed_one_is(env: Path) -> None:
    files = scan(env)
    digests = {seen.path: "d" for seen in files}
    facts = scan_native(env, files, digests=digests)
    known = known_from_json(to_json(facts))
    assert known == {file.path: file for file in facts.files}
    library = env / SITE / "pkg/_x.so"
    library.unlink()
    assert scan_native(env, files, digests=digests, known=known) == facts
    library.write_bytes(b"not a library")
    changed = scan_native(env, scan(env), digests=digests, known=known)
    assert [file.elf.damaged for file in changed.files] == [None, "it is no ELF file"]
    assert scan_native(env, files, digests={}, known=known) != facts


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"envsmith-native":0,"files":{}}', '{"envsmith-native":1,"files":[]}', "[" * 100_000,
     '{"envsmith-native":1,"files":{"a":1,"b":{},"c":{"machine":"x"},"d":null}}'],
)  # fmt: skip
def test_a_malformed_store_is_an_empty_one(text: str) -> None:
    assert known_from_json(text) == {}


def test_flipped_characters_of_the_store_never_raise(env: Path) -> None:
    files = scan(env)
    text = to_json(scan_native(env, files, digests={seen.path: "d" for seen in files}))
    chance = random.Random(3)
    for _ in range(2000):
        place = chance.randrange(len(text))
        known_from_json(text[:place] + chance.choice('0"[]{},:xn') + text[place + 1 :])


def test_what_torch_loads_beforehand_is_read_from_torch_itself(env: Path) -> None:
    torch = env / SITE / "torch"
    torch.mkdir()
    rows = '_libs = [\n    ("cublas", "libcublasLt.so.*[0-9]"),\n    ("nccl", "libnccl.so.*[0-9]"),\n]\n'
    (torch / "__init__.py").write_text(rows + "if err:\n    _preload_cuda_deps(err)\n")
    assert scan_native(env, scan(env)).preloaded == frozenset()
    (torch / "__init__.py").write_text(rows + "_preload_cuda_deps()\n")
    assert scan_native(env, scan(env)).preloaded == {"libcublasLt", "libnccl"}
    (torch / "__init__.py").write_text('_preload_cuda_deps("nvjitlink", "libnvJitLink.so.*[0-9]")\n')
    assert scan_native(env, scan(env)).preloaded == {"libnvJitLink"}


# --- the host ---


@pytest.mark.skipif(shutil.which("ldconfig") is None or not Path("/etc/ld.so.cache").exists(), reason="no ldconfig")
def test_the_cache_holds_what_ldconfig_prints() -> None:
    said = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    rows = [line.strip().partition(" => ") for line in said.splitlines() if " => " in line]
    assert sorted(cache_entries()) == sorted((name.partition(" ")[0], path) for name, _, path in rows)


def test_the_host_has_a_glibc_and_what_it_defines() -> None:
    host = host_libraries({}, python=Path(sys.executable))
    name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    if name != "glibc":
        pytest.skip("this host has another libc")
    assert host.glibc is not None
    assert version_numbers(host.glibc) == version_numbers(version)
    assert host.machine == machine_of(sys.executable)
    assert "libc.so.6" in host.names
    if host.libstdcxx:
        assert any(text.startswith("GLIBCXX_3.4.") for text in host.libstdcxx_versions)


def test_a_malformed_cache_answers_nothing(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    assert list(cache_entries(path)) == []
    magic = b"glibc-ld.so.cache1.1"
    for data in (b"", magic, b"x" + magic + bytes(64), magic + b"\xff" * 200, magic + bytes(100)):
        path.write_bytes(data)
        assert list(cache_entries(path)) == []
    chance = random.Random(5)
    entry = struct.pack("<iIIIQ", 0x303, 72, 80, 0, 0)
    whole = magic + struct.pack("<II", 1, 40) + b"\x02" + bytes(19) + entry + b"libx.so\0/l/libx.so\0"
    path.write_bytes(whole)
    assert list(cache_entries(path)) == [("libx.so", "/l/libx.so")]
    for _ in range(400):
        flipped = bytearray(whole)
        flipped[chance.randrange(len(flipped))] = chance.randrange(256)
        path.write_bytes(flipped)
        list(cache_entries(path))


def test_the_library_path_is_split_as_the_loader_does(tmp_path: Path) -> None:
    tuned = tmp_path / "a/glibc-hwcaps/x86-64-v3"
    tuned.mkdir(parents=True)
    shutil.copy(python_library(), tmp_path / "a/libx.so.1")
    shutil.copy(python_library(), tuned / "libtuned.so")
    (tmp_path / "a/libtext.so").write_text("text")
    folders = library_path(f"{tmp_path}/a;/not/there:", machine=machine_of(sys.executable), cwd=tmp_path)
    assert [(folder.path, folder.exists, folder.empty) for folder in folders] == [
        (f"{tmp_path}/a", True, False),
        ("/not/there", False, False),
        (str(tmp_path), True, True),
    ]
    assert folders[0].names == {"libx.so.1", "libtuned.so"}
    assert library_path("") == ()


# --- the model and the loader ---


def _loaded(program: Path, library: str, variables: Mapping[str, str], cwd: Path) -> str:
    """Ask the real loader which file it takes."""
    said = subprocess.run(
        [program], env={"LD_TRACE_LOADED_OBJECTS": "1", **variables}, cwd=cwd, capture_output=True, text=True
    )
    line = next(line for line in said.stdout.splitlines() if library in line)
    return line.rpartition(" => ")[2].partition(" (")[0].strip()


@needs_gcc
@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        (["-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN/../lib"], "immune"),
        (["-Wl,--enable-new-dtags", "-Wl,-rpath,$ORIGIN/../lib"], "taken"),
        (["-Wl,--disable-new-dtags", "-Wl,-rpath,$ORIGIN/../elsewhere"], "taken"),
        ([], "taken"),
    ],
)
def test_the_model_says_what_the_loader_does(env: Path, tmp_path: Path, options: Sequence[str], verdict: str) -> None:
    ours = build(env / "lib/libdup.so.1", "int dup1(){return 1;}", "-Wl,-soname,libdup.so.1")
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(ours, other / "libdup.so.1")
    program = build(env / "bin/user", "int dup1(); int main(){return dup1();}", str(ours), *options)
    (shadow,) = shadowed_by(library_path(str(other), machine=machine_of(ours)), scan_native(env, scan(env)))
    taken = _loaded(program, "libdup.so.1", {"LD_LIBRARY_PATH": str(other)}, tmp_path)
    assert shadow.verdict == verdict
    assert os.path.realpath(taken) == os.path.realpath(other / "libdup.so.1" if verdict == "taken" else ours)


@needs_gcc
def test_an_empty_element_of_a_search_path_is_the_current_folder(env: Path, tmp_path: Path) -> None:
    ours = build(tmp_path / "here/libcwd.so", "int cwd1(){return 1;}", "-Wl,-soname,libcwd.so")
    program = build(env / "bin/user", "int cwd1(); int main(){return cwd1();}", str(ours), "-Wl,-rpath,$ORIGIN/none:")
    assert _loaded(program, "libcwd.so", {}, ours.parent) == "libcwd.so"
    assert "not found" in _loaded(program, "libcwd.so", {}, tmp_path)
    listed = {f"{SITE}/pkg/_x.so": ("d", "pkg==1")}
    facts = scan_native(env, scan(env))
    found = list(check_native(facts, host_libraries({}), env_manifest=listed, has_device=False))
    assert ("rpath-outside", "bin/user") in {(finding.kind, finding.subject) for finding in found}


@needs_gcc
def test_a_lost_link_is_found_in_real_files(env: Path) -> None:
    real = build(env / "lib/libzz.so.6.0.34", "int zz(){return 1;}", "-Wl,-soname,libzz.so.6")
    build(env / SITE / "pkg/_user.so", "int zz(); int user(){return zz();}", str(real))

    def found() -> set[tuple[str, str]]:
        facts = scan_native(env, scan(env))
        return {(f.kind, f.subject) for f in check_native(facts, host_libraries({}), has_device=False)}

    assert found() == {("soname-link-missing", "lib/libzz.so.6.0.34")}
    (env / "lib/libzz.so.6").symlink_to("libzz.so.6.0.34")
    assert found() == set()
    real.unlink()
    assert found() == {("library-missing", "libzz.so.6")}
