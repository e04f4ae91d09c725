"""The form of an evidence folder: what is written is read back, and what we would not write is refused."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsmith.errors import IntegrityError
from envsmith.evidence import (
    BESIDE,
    LARGEST_MANIFEST,
    REQUIRED,
    SUMS,
    About,
    EvidenceFile,
    EvidenceManifest,
    digest,
    overall,
    parse_manifest,
    path_fault,
    render_manifest,
    sums_text,
)
from envsmith.evidencecheck import Seen, judge_tree
from envsmith.evidencefacts import folder_names, rungs_of
from tests.support.smoke import SHA

ABOUT = About(
    envsmith="0.1.0",
    stack="a100",
    env="rl",
    fingerprint=SHA,
    lock=SHA,
    result="passed",
    started="2026-11-30T12:00:00Z",
    ended="2026-11-30T12:10:00Z",
)


def row(path: str, size: int = 3) -> EvidenceFile:
    return EvidenceFile(path=path, size=size, sha256=SHA, media_type="text/plain", what="a file")


MANIFEST = EvidenceManifest(about=ABOUT, files=tuple(sorted(map(row, REQUIRED), key=lambda one: one.path)))


def with_files(*more: EvidenceFile) -> EvidenceManifest:
    return replace(MANIFEST, files=tuple(sorted((*MANIFEST.files, *more), key=lambda one: one.path)))


def test_a_manifest_is_read_back_as_it_was_written() -> None:
    manifest = with_files(replace(row("rungs/00-device/rank0.log"), cut_bytes=7, redactions=2))
    data = render_manifest(manifest)
    assert parse_manifest(data, "x") == manifest
    assert digest(data) == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize(
    "path",
    [
        "../outside", "/etc/passwd", "a/../b", "a//b", "./a", "a/", "", "a\\b", "a b", "a\nb", ".hidden", "~/x",
        "a/b/c/d/e/f/g/h/i", "x" * 101, "caf\u00e9", "\u202egpj.exe", *BESIDE,
    ],
)  # fmt: skip
def test_a_path_that_could_leave_the_folder_or_hide_in_it_is_refused(path: str) -> None:
    assert path_fault(path)
    with pytest.raises(IntegrityError) as caught:
        parse_manifest(render_manifest(with_files(row(path))), "x")
    assert {one.code for one in caught.value.problems} == {"evidence-malformed"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"envsmith-evidence":1', '"envsmith-evidence":2', "schema"),
        ('"envsmith-evidence":1', '"envsmith-evidence":true', "one form"),
        ('"result":"passed"', '"result":"fine"', "result"),
        ('"size":3', '"size":-3', "size"),
        ('"size":3', '"size":true', "size"),
        ('"size":3', '"size":1e3', "size"),
        ('"size":3', f'"size":{10**400}', "size"),
        ('"started":"2026', '"started":"20x6', "started"),
        (f'"lock":"{SHA}"', '"lock":"abc"', "lock"),
        ('"stack":"a100"', '"stack":"A/../b"', "stack"),
        ('"what":"a file"', '"what":"a\\nfile"', "what"),
        ('"stack":"a100"', '"stack":"a100","stack":"b"', "twice"),
        ('"path":"SUMMARY.md"', '"path":"summary.HTML"', "twice"),
        ('"path":"SUMMARY.md"', '"path":"env"', "a file and a folder"),
        ('"path":"SUMMARY.md"', '"path":"other.md"', "lists no"),
        ('"stack":"a100"', '"stack": "a100"', "one form"),
        ('"stack":"a100"', '"more":1,"stack":"a100"', "one form"),
        ('"files":[', '"files":["x",', "tables"),
        ('"result":"passed"', '"result":NaN', "NaN"),
    ],
)
def test_a_manifest_that_envsmith_would_not_write_is_refused(old: str, new: str, words: str) -> None:
    text = render_manifest(MANIFEST).decode()
    assert old in text
    with pytest.raises(IntegrityError) as caught:
        parse_manifest(text.replace(old, new, 1).encode(), "x")
    assert {one.code for one in caught.value.problems} == {"evidence-malformed"}
    assert any(words in one.message for one in caught.value.problems)


@given(st.binary(max_size=200))
def test_bytes_that_are_no_manifest_are_one_clear_error(data: bytes) -> None:
    with pytest.raises(IntegrityError):
        parse_manifest(data, "x")


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b" " * (LARGEST_MANIFEST + 1),
        b'{"files": "\xff"}',
        b"\xef\xbb\xbf{}",
        b'"\\ud800"',
    ],
    ids=["deep list", "deep table", "huge", "no UTF-8", "a mark", "half a pair"],
)
def test_hostile_json_is_refused_in_no_time(data: bytes) -> None:
    started = time.perf_counter()
    with pytest.raises(IntegrityError):
        parse_manifest(data, "x")
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize(
    ("statuses", "result"),
    [
        ([], "nothing-passed"),
        (["skipped"], "nothing-passed"),
        (["passed", "skipped"], "passed"),
        (["passed", "inconclusive"], "inconclusive"),
        (["passed", "inconclusive", "failed"], "failed"),
    ],
)
def test_the_worst_rung_decides_the_result(statuses: list[str], result: str) -> None:
    assert overall(statuses) == result


def test_the_sums_name_every_file_and_the_manifest() -> None:
    text = sums_text(MANIFEST, "f" * 64)
    assert text.count("\n") == len(REQUIRED) + 1
    assert f"{'f' * 64}  evidence.json\n" in text


def seen() -> dict[str, Seen]:
    there = {one.path: Seen(kind="file", size=one.size) for one in MANIFEST.files}
    return {**there, "env": Seen(kind="folder"), SUMS: Seen(kind="file", size=1), "evidence.json": Seen(kind="file")}


@pytest.mark.parametrize(
    ("path", "entry", "code"),
    [
        ("record.json", None, "evidence-file-missing"),
        (SUMS, None, "evidence-file-missing"),
        ("record.json", Seen(kind="file", size=4), "evidence-file-changed"),
        ("record.json", Seen(kind="link", size=3), "evidence-file-unsafe"),
        ("SHA256SUMS", Seen(kind="named pipe"), "evidence-file-unsafe"),
        ("more.txt", Seen(kind="file"), "evidence-file-unlisted"),
        ("env/deep", Seen(kind="folder"), "evidence-file-unlisted"),
        ("a\udcffb", Seen(kind="file"), "evidence-file-unlisted"),
        ("env", Seen(kind="link"), "evidence-file-unlisted"),
    ],
)
def test_what_lies_in_the_folder_is_held_against_the_manifest(path: str, entry: Seen | None, code: str) -> None:
    assert not [*judge_tree(MANIFEST, seen(), "x")]
    there = seen()
    there.pop(path, None)
    if entry is not None:
        there[path] = entry
    (problem,) = judge_tree(MANIFEST, there, "x")
    assert problem.code == code
    problem.text().encode()


def test_folders_of_rungs_get_plain_names_that_differ() -> None:
    rows = [
        {"rung": "device", "folder": "/run/rungs/device"},
        {"rung": "device", "folder": "/other/DEVICE/"},
        {"rung": "../x", "folder": "/a/.."},
        {"rung": "command", "folder": None},
    ]
    assert folder_names(rows) == ("device", "02-device", "03-x", "04-command")


@pytest.mark.parametrize(
    "rung",
    [
        {}, {"rung": 1, "status": "passed"}, {"rung": "a", "status": "fine"},
        {"rung": "a", "status": "passed", "seconds": "1"}, {"rung": "a", "status": "passed", "exit_codes": [0]},
        {"rung": "a", "status": "passed", "exit_codes": {"0": "0"}},
        {"rung": "a", "status": "passed", "seconds": 10**400},
        {"rung": "a", "status": "passed", "seconds": float("inf")},
        {"rung": "a", "status": "passed", "seconds": float("nan")},
        {"rung": "a", "status": "passed", "exit_codes": {"0": False}},
        {"rung": "a", "status": "failed", "exit_codes": {"0": None}, "ends": {"0": 1}},
        {"rung": "a", "status": "passed", "statements": [1]},
        {"rung": "a", "status": "passed", "figures": [1]}, {"rung": "a", "status": "passed", "device": 1},
    ],
)  # fmt: skip
def test_a_record_of_another_form_is_a_value_error(rung: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"rung|status"):
        rungs_of({"rungs": [rung]})
    assert json.dumps(rung)
