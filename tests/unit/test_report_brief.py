"""A sheet of at most 40 lines and 100 columns in ASCII, with errors first, what was left out, and no secret."""

from __future__ import annotations

import hashlib
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsmith.report import Finding, Report, Severity
from envsmith.report_brief import COLUMNS, LINES, brief
from tests.support.reports import AROUND, HOSTILE, NAMES, PLANTED, SECRET_WORDS, everywhere, finding, report

TEXTS = AROUND | st.text(max_size=400) | st.sampled_from([HOSTILE, "/a" * 300, "x" * 5000, "word " * 200])
FINDINGS = st.builds(
    Finding, check=TEXTS, kind=TEXTS, severity=st.sampled_from(Severity), subject=TEXTS, message=TEXTS,
    expected=st.none() | TEXTS, actual=st.none() | TEXTS, hint=st.none() | TEXTS,
)  # fmt: skip
REPORTS = st.builds(
    Report, subject=TEXTS, families=st.lists(TEXTS, max_size=12).map(tuple),
    findings=st.lists(FINDINGS, max_size=20).map(tuple), environment=st.dictionaries(TEXTS, TEXTS, max_size=6),
    figures=st.dictionaries(TEXTS, TEXTS, max_size=4),
)  # fmt: skip


def fits(sheet: str) -> bool:
    lines = sheet.split("\n")
    return len(lines) <= LINES and all(len(line) <= COLUMNS and re.fullmatch("[ -~]*", line) for line in lines)


@settings(max_examples=150, deadline=None)
@given(st.lists(REPORTS, max_size=12))
def test_every_sheet_fits(reports: list[Report]) -> None:
    assert fits(brief(reports))


@settings(max_examples=150, deadline=None)
@given(PLANTED)
def test_no_planted_secret_is_on_the_sheet_in_whichever_place(planted: tuple[str, str]) -> None:
    secret, text = planted
    for reports in ([everywhere(text)], [everywhere(text, fields=("hint",)), report()]):
        sheet = brief(reports)
        assert secret not in re.sub(r"\s", "", sheet)


@settings(deadline=None)
@given(SECRET_WORDS, st.sampled_from(NAMES))
def test_the_value_of_a_secret_variable_is_not_on_the_sheet(secret: str, name: str) -> None:
    said = report(
        finding(subject=name, message=f"it is {secret}", expected=secret, actual=secret), environment={name: secret}
    )
    assert secret not in re.sub(r"\s", "", brief([said]))


def test_what_fails_comes_first_with_its_example_and_what_to_do() -> None:
    sheet = brief(
        [report(finding(Severity.NOTE, kind="n"), finding(expected="1", actual="2", hint="`envsmith build`"))]
    )
    assert sheet.splitlines() == [
        "envsmith verify FAILED: a100/rl: 1 error, 1 note",
        "looked at: files, imports, hooks",
        "ERROR files/file-changed: a file was changed",
        "  - lib/a.py: expected 1, actual 2",
        "  do: `envsmith build`",
        "NOTE files/n: a file was changed",
        "  - lib/a.py",
        sheet.splitlines()[-1],
    ]


def test_what_found_no_room_is_counted() -> None:
    many = [finding(kind=f"k{n:03}", subject=f"{m}") for n in range(60) for m in range(3)]
    sheet = brief([report(*many, finding(Severity.WARNING))])
    shown = sheet.count("ERROR files/k")
    assert fits(sheet)
    assert f"left out: {shown * 3} more subjects of what is named; {61 - shown} more causes" in sheet
    assert f"({(60 - shown) * 3} errors, 1 warning)" in sheet


def test_examples_fill_the_room_that_is_there() -> None:
    sheet = brief([report(*(finding(subject=f"lib/{n:04}.py") for n in range(4000)))])
    assert len(sheet.splitlines()) >= LINES - 1
    assert "ERROR files/file-changed x4,000: a file was changed" in sheet


def test_of_many_envs_the_failed_come_first_and_the_rest_is_counted() -> None:
    envs = [report(subject=f"s/e{n}") for n in range(20)] + [report(finding(), subject="s/broken")]
    lines = brief(envs).splitlines()
    assert lines[0] == "envsmith verify FAILED: 21 envs: 1 error"
    assert lines[1].startswith("- s/broken: 1 error")
    assert "- 13 more, 0 of them failed" in lines
    assert "ERROR files/file-changed in s/broken: a file was changed" in lines


def test_the_check_can_be_made_again_from_the_envelope() -> None:
    one = report(finding(actual="\u00e9"), finding(Severity.NOTE))
    data = [{**said.to_dict(), "env": "a100/rl"} for said in one.findings]
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    assert brief([one]).splitlines()[-1].startswith(f"check {hashlib.sha256(text.encode()).hexdigest()[:12]}: ")


@pytest.mark.parametrize("reports", [[], [report()], [report(), report(subject="b/c")]])
def test_nothing_found_is_said(reports: list[Report]) -> None:
    sheet = brief(reports)
    assert sheet.startswith("envsmith verify passed: ")
    assert "no findings" in sheet and "left out" not in sheet


def test_the_same_reports_give_the_same_sheet() -> None:
    assert brief([everywhere("x")]) == brief([everywhere("x")])
