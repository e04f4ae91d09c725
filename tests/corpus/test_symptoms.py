"""Every entry of the table of symptoms on the logs of tests/symptoms: what it must name, and what it must not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from envsmith.conditions import places
from envsmith.diagnosis import Diagnosis, judge, read_run
from envsmith.logs.lines import LogFile
from envsmith.report import Severity
from envsmith.symptomtable import symptoms
from tests.support.symptomcases import Case, cases, faults

CASES = tuple(cases())


def diagnosed(case: Case) -> Diagnosis:
    files = [LogFile(name=path.name, pieces=[path.read_bytes()]) for path in case.paths]
    return judge(read_run(files), {})


def test_the_cases_are_well_formed() -> None:
    assert list(faults()) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_log_gives_its_cause_and_no_other(case: Case) -> None:
    found = diagnosed(case)
    named = [one.symptom.kind for one in found.causes]
    assert set(named) <= {case.kind, *case.also}
    assert case.kind is None or named[:1] == [case.kind], named
    first = found.causes[0] if found.causes else found.first
    assert (f"{first.file}:{first.line}" if first else None) == case.first
    if case.kind is None or not found.causes:
        return
    cause = found.causes[0]
    assert cause.severity is Severity.ERROR
    for words in case.fix_says:
        assert words.lower() in cause.fix.lower()
    for words in case.fix_never_says:
        assert words.lower() not in cause.fix.lower()
    for words in case.cause_says:
        assert words.lower() in cause.cause.lower()
    shown = {f"{one.file}:{one.line}" for one in cause.secondary}
    assert set(case.secondary) <= shown


@pytest.mark.parametrize("kind", sorted({entry.kind for entry in symptoms()}))
def test_an_entry_has_a_log_that_shows_it_and_one_that_is_not_it(kind: str) -> None:
    own = [case for case in CASES if case.subject == kind]
    assert any(case.kind == kind for case in own)
    assert any(case.kind != kind for case in own)


def test_a_kind_of_the_cases_is_an_entry_of_the_table() -> None:
    known = {entry.kind for entry in symptoms()}
    assert {case.kind for case in CASES if case.kind} <= known


def test_the_page_lists_the_kinds_and_no_other() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "symptoms.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([a-z0-9-]+)` \| (machine|stack|job) \|", page, re.M)
    assert [kind for kind, _ in listed] == sorted({entry.kind for entry in symptoms()})
    layers = {entry.kind: entry.layer for entry in reversed(symptoms())}
    assert dict(listed) == layers


def test_every_place_of_a_sentence_is_filled_or_left_out() -> None:
    for case in CASES:
        for cause in diagnosed(case).causes:
            templates = [*cause.symptom.cause, *cause.symptom.fix]
            places_of = {f"{{{place}}}" for template in templates for place in places(template)}
            assert not any(place in cause.cause + cause.fix for place in places_of), case.id
            assert cause.cause and cause.fix, case.id
