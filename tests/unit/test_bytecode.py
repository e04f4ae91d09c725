"""What a name and a header of bytecode say, and what of a proof is remembered."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping

import pytest

from envsmith.bytecode import (
    CacheName,
    Fit,
    Memory,
    Pair,
    Proof,
    Row,
    Verdict,
    cache_name,
    judge_header,
    magic_of,
    pairs_to_prove,
    source_of,
    tag_of,
)
from envsmith.observed import Observed, Seen

MTIME = 1_700_000_000
MAGIC = 3495 | 0x0A0D0000


def seen(path: str, size: int = 10, kind: str = "file", mtime: int = MTIME) -> Seen:
    return Seen(path, kind, 0o644, size, mtime * 10**9, mtime * 10**9, 1, 1, 1, None)  # type: ignore[arg-type]


def header(flags: int = 0, mtime: int = MTIME, size: int = 10, magic: int = MAGIC) -> bytes:
    return struct.pack("<4I", magic, flags, mtime & 0xFFFFFFFF, size & 0xFFFFFFFF)


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("a/__pycache__/b.cpython-311.pyc", CacheName("a/b.py", "cpython-311", "")),
        ("__pycache__/b.cpython-311.opt-2.pyc", CacheName("b.py", "cpython-311", "2")),
        ("a/__pycache__/b.c.cpython-311.pyc", CacheName("a/b.c.py", "cpython-311", "")),
        ("a/__pycache__/b.cpython-310.cpython-311.pyc", CacheName("a/b.cpython-310.py", "cpython-311", "")),
        ("t/__pycache__/t.cpython-311-pytest-8.4.1.pyc", CacheName("t/t.py", "cpython-311-pytest-8.4.1", "")),
        ("a/__pycache__/b.pypy310.pyc", CacheName("a/b.py", "pypy310", "")),
        ("a/__pycache__/b.strange.pyc", CacheName("a/b.py", "strange", "")),
        ("a/b.pyc", None),
        ("a/__pycache__/b.pyc", None),
        ("a/__pycache__/.pyc", None),
        ("a/__pycache__/c/b.cpython-311.pyc", None),
    ],
)
def test_a_name_says_source_interpreter_and_level(path: str, wanted: CacheName | None) -> None:
    assert cache_name(path) == wanted
    assert source_of(path) == (wanted.source if wanted else None)


def test_a_very_long_name_takes_no_time() -> None:
    assert cache_name("__pycache__/" + ".cpython-311" * 2000 + ".opt-.pyc") is not None
    assert cache_name("__pycache__/" + ".cpython-311" * 2000 + ".opt-1.py") is None


@pytest.mark.parametrize(
    ("data", "fit"),
    [
        (header(), Fit.FITS),
        (header()[:15], Fit.STALE),
        (b"", Fit.STALE),
        (header(mtime=MTIME + 1), Fit.STALE),
        (header(size=11), Fit.STALE),
        (header(magic=3494 | 0x0A0D0000), Fit.STALE),
        (header(magic=3495), Fit.STALE),
        (header(flags=4), Fit.STALE),
        (header(flags=2), Fit.FITS),  # the second bit says something only beside the first
        (header(flags=1), Fit.UNCHECKED),
        (header(flags=3), Fit.HASHED),
    ],
)
def test_a_header_is_judged_as_the_import_system_does(data: bytes, fit: Fit) -> None:
    assert judge_header(data, seen("a.py"), 3495)[0] is fit


def test_big_sizes_and_late_times_are_compared_as_the_header_keeps_them() -> None:
    late = 2**32 + 5
    assert judge_header(header(mtime=5, size=7), seen("a.py", size=2**32 + 7, mtime=late))[0] is Fit.FITS


def test_a_source_behind_a_link_is_left_to_the_proof() -> None:
    assert judge_header(header(), seen("a.py", kind="link"))[0] is Fit.UNKNOWN


def test_tags_and_numbers_of_versions() -> None:
    assert (tag_of("3.11.7"), tag_of("3.8"), magic_of("3.11.7"), magic_of("3.99")) == (
        "cpython-311",
        "cpython-38",
        3495,
        None,
    )


def observed(files: Mapping[str, bytes | None], digests: Mapping[str, str] | None = None) -> Observed:
    """Files by path; bytes are headers of bytecode."""
    return Observed(
        files=tuple(sorted(seen(path) for path in files)),
        digests=digests or {},
        bytecode={path: data for path, data in files.items() if data is not None},
    )


def test_only_what_this_python_would_load_is_to_be_proved() -> None:
    names = {
        "__pycache__/a.cpython-311.pyc": header(),
        "__pycache__/a.cpython-311.opt-1.pyc": header(flags=3),
        "__pycache__/a.cpython-311.opt-2.pyc": header(flags=1),
        "__pycache__/a.cpython-311.opt-x.pyc": header(),
        "__pycache__/a.cpython-310.pyc": header(),
        "__pycache__/a.cpython-311-pytest-8.4.1.pyc": header(),
        "__pycache__/b.cpython-311.pyc": header(size=1),
        "__pycache__/gone.cpython-311.pyc": header(),
        "a.pyc": header(),
    }
    disk = observed({**names, "a.py": None, "b.py": None})
    assert pairs_to_prove(disk, {}, python="3.11.7") == (
        Pair("__pycache__/a.cpython-311.opt-1.pyc", "a.py", 1),
        Pair("__pycache__/a.cpython-311.opt-2.pyc", "a.py", 2),
        Pair("__pycache__/a.cpython-311.pyc", "a.py", 0),
    )


def test_bytecode_of_a_wheel_is_proved_by_its_digest_and_a_replaced_one_is_not() -> None:
    path = "__pycache__/a.cpython-311.pyc"
    disk = observed({path: header(), "a.py": None}, {path: "1" * 64})
    assert pairs_to_prove(disk, {path: "1" * 64}, python="3.11") == ()
    assert len(pairs_to_prove(disk, {path: "2" * 64}, python="3.11")) == 1


def test_a_memory_survives_its_file() -> None:
    memory = Memory(identity="x", taken_ns=5, rows={"a": Row(1, 2, 3, 4, "p", "s")})
    assert Memory.from_json(memory.to_json()) == memory


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{}",
        "[" * 100_000,
        json.dumps({"envsmith-bytecode": 2, "identity": "", "taken_ns": 0, "rows": {}}),
        json.dumps({"envsmith-bytecode": 1, "identity": "", "taken_ns": "0", "rows": {}}),
        json.dumps({"envsmith-bytecode": 1, "identity": "", "taken_ns": 0, "rows": {"a": [1]}}),
        json.dumps({"envsmith-bytecode": 1, "identity": "", "taken_ns": 0, "rows": {"a": [1, 2, 3, 4, 5, "s"]}}),
        json.dumps({"envsmith-bytecode": 1, "identity": "", "taken_ns": 0, "rows": {"a": ["1", 2, 3, 4, "p", "s"]}}),
    ],
)
def test_a_malformed_memory_remembers_nothing(text: str) -> None:
    assert Memory.from_json(text) == Memory()


def test_the_figure_counts_what_is_proved_what_is_wrong_and_what_is_left() -> None:
    proof = Proof(
        pairs=10,
        remembered=4,
        recompiled=4,
        verdicts=(Verdict("a", "differs"), Verdict("b", "no-compile"), Verdict("c", "lines")),
        left=("d", "e"),
    )
    assert proof.unproved == 3
    assert proof.figure() == "6 of 10 files of bytecode proved (4 recompiled now), 3 not yet: `--deep` proves them"
