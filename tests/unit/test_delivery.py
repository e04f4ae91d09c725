"""envsmith.delivery: journal, record, sums, names, and what stands at a destination."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsmith.delivery import (
    Content,
    Delivered,
    Standing,
    Written,
    is_part,
    journal_line,
    link_fault,
    parse_journal,
    parse_record,
    part_name,
    record_text,
    standing,
    sums_text,
)

#: Names as a file system gives them, bytes that are no UTF-8 included.
NAMES = st.binary(min_size=1, max_size=40).filter(lambda raw: not {0, 47} & {*raw} and raw not in (b".", b".."))
PATHS = NAMES.map(os.fsdecode)
CONTENTS = st.builds(
    lambda data: Content(size=len(data), sha256=hashlib.sha256(data).hexdigest()), st.binary(max_size=9)
)


@given(rows=st.lists(st.tuples(PATHS, CONTENTS), max_size=9), cut=st.integers(0, 30))
def test_a_journal_is_read_up_to_where_a_kill_cut_it(rows: list[tuple[str, Content]], cut: int) -> None:
    lines = [journal_line(path, content) for path, content in rows]
    whole = b"".join(lines)
    read = parse_journal(whole)
    assert all(content in read[path].ours for path, content in rows)
    assert {path for path, _ in rows} == read.keys()
    last = lines[-1] if lines else b""
    torn = parse_journal(whole + last[: max(0, len(last) - 2 - cut)] + b"\n" + b"".join(lines[:1]))
    assert torn == read


@given(files=st.dictionaries(PATHS, CONTENTS, max_size=9), links=st.dictionaries(PATHS, PATHS, max_size=3))
def test_a_record_says_what_was_delivered(files: dict[str, Content], links: dict[str, str]) -> None:
    delivered = Delivered(files=files, links=links, is_complete=False)
    text = record_text(delivered)
    assert parse_record(text) == delivered
    assert delivered.digest == "sha256:" + hashlib.sha256(sums_text(files)).hexdigest()
    assert record_text(Delivered(files=dict(reversed(files.items())), links=links, is_complete=False)) == text


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"envsmith-delivery": 2}', '{"envsmith-delivery": 1, "files": 3}'])
def test_what_is_no_record_is_none(text: str) -> None:
    assert parse_record(text) is None


@pytest.mark.parametrize("size", ["1e999", "-1", "1.5", "true", "null", '"1"'])
def test_a_size_that_is_none_is_never_taken(size: str) -> None:
    row = f'{{"path": "a", "size": {size}, "sha256": "x"}}'
    assert parse_journal(row.encode()) == {}
    assert parse_record(f'{{"envsmith-delivery": 1, "complete": true, "files": [{row}], "links": []}}') is None


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", ".", "..", "a//b", "a/."])
def test_a_record_names_nothing_outside_its_folder(path: str) -> None:
    row = {"path": path, "size": 1, "sha256": "x"}
    assert parse_record(json.dumps({"envsmith-delivery": 1, "complete": True, "files": [row], "links": []})) is None


def test_sha256sum_reads_the_sums_of_every_name(tmp_path: Path) -> None:
    raw_names = [b"plain", b"with space", b"two\nlines", b"back\\slash", "é".encode(), b"\xff\xfe", b" lead", b"*star"]
    files = {}
    for raw in raw_names:
        Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), raw))).write_bytes(raw)  # noqa: PTH118
        files[os.fsdecode(raw)] = Content(size=len(raw), sha256=hashlib.sha256(raw).hexdigest())
    (tmp_path / "sums").write_bytes(sums_text(files))
    done = subprocess.run(("sha256sum", "--strict", "-c", "sums"), cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout.count(b": OK")) == (0, len(raw_names)), done.stderr
    (tmp_path / "plain").write_bytes(b"other")
    done = subprocess.run(("sha256sum", "--strict", "-c", "sums"), cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 1


@given(name=st.binary(min_size=1, max_size=255).filter(lambda raw: not {0, 47} & {*raw}))
def test_the_name_of_a_part_fits_and_is_known(name: bytes) -> None:
    part = part_name(os.fsdecode(name))
    assert len(os.fsencode(part)) <= 255
    assert is_part(part)
    assert not is_part("model.safetensors")


@pytest.mark.parametrize(
    ("path", "target", "is_kept"),
    [
        ("a/link", "x", True),
        ("a/link", "../b/x", True),
        ("link", "a/../b", True),
        ("a/link", "../../x", False),
        ("link", "..", False),
        ("link", "/etc/passwd", False),
    ],
)
def test_a_link_that_leads_outside_is_told_from_one_that_stays(path: str, target: str, is_kept: bool) -> None:
    assert (link_fault(path, target) is None) is is_kept


def test_a_file_is_what_its_content_says() -> None:
    new, old, other = (Content(size=1, sha256=letter * 64) for letter in "abc")
    ended, ours = Written(ended=frozenset({old})), Written(ours=frozenset({old}))
    assert standing(new, new, Written()) is Standing.DONE
    assert standing(new, old, ours) is Standing.OURS
    assert standing(new, old, ended) is Standing.OLDER
    assert standing(new, old, Written(ended=frozenset({old}), ours=frozenset({old}))) is Standing.OLDER
    assert standing(new, other, ours) is Standing.DAMAGED
    assert standing(new, other, ended) is Standing.DAMAGED
    assert standing(new, other, Written()) is Standing.FOREIGN
    assert standing(new, other, Written(ours=frozenset({new}), found=frozenset({other}))) is Standing.FOREIGN
