"""The manifest follows from wheels, says who owns what, and cannot be talked into leaving the environment."""

from __future__ import annotations

import hashlib

import pytest

from envsmith.errors import IntegrityError
from envsmith.installed import (
    check_record,
    expected_console_script,
    expected_record_rows,
    rewritten_script,
    site_entries,
)
from envsmith.manifest import (
    Entry,
    Kind,
    Manifest,
    file_entry,
    import_roots,
    importable,
    link_entry,
    merge,
    portable_entries,
)
from envsmith.wheelfile import WheelListing, WheelMember

SITE = "lib/python3.11/site-packages"


def _hex(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _member(path: str, content: bytes = b"x", executable: bool = False) -> WheelMember:
    return WheelMember(path=path, size=len(content), sha256=_hex(content), executable=executable)


def _listing(*members: WheelMember, name: str = "my-pkg", scripts: tuple[tuple[str, str], ...] = ()) -> WheelListing:
    info = "My_Pkg-1.0.dist-info"
    return WheelListing(
        filename="my_pkg-1.0-py3-none-any.whl",
        name=name,
        version="1.0",
        root_is_purelib=True,
        members=(*members, _member(f"{info}/METADATA"), _member(f"{info}/RECORD")),
        console_scripts=scripts,
        rewritten_scripts=tuple(m.path for m in members if m.path.endswith("rewritten")),
    )


def _file(path: str, content: bytes = b"x", owner: str = "a==1") -> Entry:
    return file_entry(f"{SITE}/{path}", content, owner, part="portable")


def test_every_wheel_scheme_is_installed_where_uv_puts_it() -> None:
    data = "My_Pkg-1.0.data"
    listing = _listing(
        _member("pkg/a.py"),
        _member(f"{data}/purelib/p.py"),
        _member(f"{data}/platlib/q.so"),
        _member(f"{data}/scripts/tool"),
        _member(f"{data}/scripts/rewritten"),
        _member(f"{data}/data/share/x.txt"),
        _member(f"{data}/headers/h.h"),
    )
    entries = {entry.path: entry for entry in portable_entries(listing, "my-pkg==1.0")}
    assert set(entries) == {
        f"{SITE}/pkg/a.py",
        f"{SITE}/p.py",
        f"{SITE}/q.so",
        "bin/tool",
        "share/x.txt",
        "include/site/python3.11/my-pkg/h.h",
        f"{SITE}/My_Pkg-1.0.dist-info/METADATA",
    }
    assert entries["bin/tool"].executable
    assert not entries[f"{SITE}/pkg/a.py"].executable
    assert all(entry.part == "portable" for entry in entries.values())


def test_an_unknown_data_scheme_is_refused() -> None:
    with pytest.raises(IntegrityError, match="wheel-data-unknown"):
        portable_entries(_listing(_member("My_Pkg-1.0.data/elsewhere/x")), "a==1")


def test_a_folder_that_only_looks_like_the_data_folder_is_a_plain_folder() -> None:
    (entry, _) = portable_entries(_listing(_member("other-1.0.data/scripts/x")), "a==1")[::-1]
    assert "METADATA" not in entry.path and entry.path == f"{SITE}/other-1.0.data/scripts/x"


def test_equal_contents_of_two_owners_become_one_entry() -> None:
    manifest = merge([_file("nvidia/__init__.py", b"", "b==1"), _file("nvidia/__init__.py", b"", "a==1")])
    (entry,) = manifest.entries
    assert entry.owner == "a==1, b==1"
    assert entry.owners == ("a==1", "b==1")
    assert manifest.collisions == ()


def test_different_contents_of_two_owners_are_kept_side_by_side_in_any_order() -> None:
    one, two = _file("build_backend.py", b"1", "z==1"), _file("build_backend.py", b"2", "a==1")
    manifest = merge([one, two])
    assert manifest == merge([two, one])
    assert manifest.collisions == ((f"{SITE}/build_backend.py", (("a==1", _hex(b"2")), ("z==1", _hex(b"1")))),)


def test_three_owners_with_two_contents_are_two_alternatives() -> None:
    manifest = merge([_file("x.py", b"1", "a==1"), _file("x.py", b"2", "b==1"), _file("x.py", b"1", "c==1")])
    assert [c.owner for c in manifest.entries[0].alternatives] == ["a==1, c==1", "b==1"]


def test_merging_a_merged_manifest_changes_nothing() -> None:
    manifest = merge([_file("x.py", b"1", "a==1"), _file("x.py", b"2", "b==1"), _file("y.py")])
    assert merge(manifest.entries) == manifest


def test_a_path_that_is_a_file_for_one_and_a_link_for_another_is_refused() -> None:
    with pytest.raises(IntegrityError, match="manifest-path-clash"):
        merge([_file("x"), link_entry(f"{SITE}/x", "y", "venv")])


def test_json_is_read_back_as_it_was_written() -> None:
    manifest = merge(
        [
            _file("x.py", b"1", "a==1"),
            _file("x.py", b"2", "b==1"),
            _file("bad\udc80name.py"),
            link_entry("bin/python", "/opt/python3.11", "venv"),
            file_entry("bin/x", b"#!", "a==1", part="site", executable=True),
        ]
    )
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert Manifest.from_json(manifest.to_json()).digest() == manifest.digest()
    assert [e.kind for e in manifest.entries[:1]] == [Kind.LINK]


def test_the_portable_digest_does_not_depend_on_site_entries() -> None:
    portable = [_file("x.py")]
    there = merge([*portable, link_entry("bin/python", "/a", "venv")])
    here = merge([*portable, link_entry("bin/python", "/b", "venv")])
    assert there.digest() != here.digest()
    assert there.portable().digest() == here.portable().digest()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"envsmith-manifest":2,"entries":[]}',
        '{"envsmith-manifest":1,"entries":[["../x","file",1,"00","a","site"]]}',
        '{"envsmith-manifest":1,"entries":[["/x","file",1,"00","a","site"]]}',
        '{"envsmith-manifest":1,"entries":[["x//y","file",1,"00","a","site"]]}',
        '{"envsmith-manifest":1,"entries":[["b","file",1,"00","a","site"],["a","file",1,"00","a","site"]]}',
        '{"envsmith-manifest":1,"entries":[["a","file",1,"00","a","site"],["a","file",1,"00","a","site"]]}',
        '{"envsmith-manifest":1,"entries":[["a","file","1","00","a","site"]]}',
        '{"envsmith-manifest":1,"entries":[["a","link",1,"00","a","site"]]}',
        '{"envsmith-manifest":1,"entries":[["a","file",1,"00","a","elsewhere"]]}',
        '{"envsmith-manifest":1,"entries":[["a"]]}',
        '{"envsmith-manifest":1,"entries":[["a","file",1,"00","a","site",null,[["b"]]]]}',
        "[" * 100_000,
    ],
)
def test_a_malformed_manifest_is_refused_with_its_own_code(text: str) -> None:
    with pytest.raises(IntegrityError, match="manifest-malformed"):
        Manifest.from_json(text)


@pytest.mark.parametrize(
    ("rest", "answer"),
    [
        ("six.py", ("six", 2)),
        ("ray/__init__.py", ("ray", 0)),
        ("ray/_raylet.so", ("ray._raylet", 1)),
        ("_yaml.cpython-311-x86_64-linux-gnu.so", ("_yaml", 1)),
        ("a/b.abi3.so", ("a.b", 1)),
        ("legacy.pyc", ("legacy", 3)),
        ("a/__pycache__/b.cpython-311.pyc", None),
        ("nvidia/lib/libcudnn.so.9", None),
        ("numpy-1.0.dist-info/x.py", None),
        ("a/b.cfg.py", None),
        ("a/data.txt", None),
    ],
)
def test_a_path_provides_the_name_that_python_would_look_for(rest: str, answer: tuple[str, int] | None) -> None:
    assert importable(rest) == answer


def test_import_roots_name_every_owner_of_a_top_level_name() -> None:
    roots = import_roots(
        [
            _file("pynvml.py", owner="nvidia-ml-py==12"),
            _file("pynvml/__init__.py", owner="pynvml==11"),
            _file("pynvml/nvml.py", owner="pynvml==11"),
            _file("google/protobuf/__init__.py", owner="protobuf==7"),
            _file("_yaml.cpython-311-x86_64-linux-gnu.so", owner="pyyaml==6"),
            _file("cv2/__init__.py", owner="a==1, b==1"),
            file_entry("src/verl/verl/__init__.py", b"", "source:verl", part="portable"),
        ],
        extra=("src/verl",),
    )
    assert [(r.owner, r.kind) for r in roots["pynvml"]] == [("pynvml==11", "package"), ("nvidia-ml-py==12", "module")]
    assert [r.kind for r in roots["google"]] == ["namespace"]
    assert [r.kind for r in roots["_yaml"]] == ["extension"]
    assert [r.owner for r in roots["cv2"]] == ["a==1", "b==1"]
    assert roots["verl"][0].path == "src/verl/verl"


def test_the_shebang_is_wrapped_from_the_length_on_that_a_kernel_cuts() -> None:
    fits, long = "/" + "d" * 123, "/" + "d" * 124
    assert expected_console_script(fits, "m", "f").startswith(f"#!{fits}\n# -*-".encode())
    assert expected_console_script(long, "m", "f").startswith(b"#!/bin/sh\n'''exec' '/ddd")
    assert expected_console_script("/a b/python", "m", "f").startswith(
        b"#!/bin/sh\n'''exec' '/a b/python' \"$0\" \"$@\"\n"
    )


def test_a_quote_in_a_wrapped_path_is_escaped_for_the_shell() -> None:
    assert b"'/a'\"'\"' b/python'" in expected_console_script("/a' b/python", "m", "f")


def test_an_attribute_path_imports_its_first_part() -> None:
    script = expected_console_script("/p", " pkg.a ", "Cls.run [extra]")
    assert b"from pkg.a import Cls\n" in script and script.endswith(b"    sys.exit(Cls.run())\n")


@pytest.mark.parametrize("first", [b"#!python", b"#!pythonw", b"#!python3", b"#!python -E", b"#!python\r"])
def test_the_first_line_of_a_script_is_replaced_whole(first: bytes) -> None:
    assert rewritten_script("/p", first + b"\nimport sys\n") == b"#!/p\nimport sys\n"


def _recorded() -> tuple[str, tuple[tuple[str, str, str], ...]]:
    listing = _listing(_member("a,b.py"), _member("My_Pkg-1.0.data/data/lib/x"), scripts=(("tool", "pkg:main"),))
    entries = (*portable_entries(listing, "o"), *site_entries(listing, "o", python_path="/p"))
    rows = expected_record_rows(entries, "o", info="My_Pkg-1.0.dist-info", python="3.11")
    text = "".join(f'"{path}",{digest},{size}\n' for path, digest, size in rows)
    return text, rows


def test_a_record_of_wheel_and_installer_files_passes() -> None:
    text, rows = _recorded()
    assert check_record(text, rows, "RECORD") == ()
    assert [path for path, _, _ in rows] == [
        "../../../bin/tool",
        "../../x",
        "My_Pkg-1.0.dist-info/INSTALLER",
        "My_Pkg-1.0.dist-info/METADATA",
        "My_Pkg-1.0.dist-info/RECORD",
        "My_Pkg-1.0.dist-info/REQUESTED",
        "a,b.py",
    ]


def test_a_record_row_without_a_hash_states_nothing_and_passes() -> None:
    text, rows = _recorded()
    digest = rows[-1][1]
    assert check_record(text.replace(f'"a,b.py",{digest},1', '"a,b.py",,'), rows, "RECORD") == ()


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ('"a,b.py",sha256=', '"a,b.py",sha256=A', "record-row-differs"),
        (",1\n", ",2\n", "record-row-differs"),
        ('"a,b.py",', '"other.py",', "record-row-missing"),
        ('"a,b.py",', '"other.py",', "record-row-unknown"),
        ('"a,b.py",', '"/etc/passwd",', "record-row-unknown"),
    ],
)
def test_a_record_that_was_edited_is_named(old: str, new: str, code: str) -> None:
    text, rows = _recorded()
    assert old in text
    assert code in {problem.code for problem in check_record(text.replace(old, new), rows, "RECORD")}


def test_each_owner_of_a_collision_is_held_against_its_own_content() -> None:
    manifest = merge([_file("x.py", b"1", "a==1"), _file("x.py", b"22", "b==1")])
    rows = {
        owner: dict((r[0], r[2]) for r in expected_record_rows(manifest.entries, owner, info="i", python="3.11"))
        for owner in ("a==1", "b==1")
    }
    assert (rows["a==1"]["x.py"], rows["b==1"]["x.py"]) == ("1", "2")
