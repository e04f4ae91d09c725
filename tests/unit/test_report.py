"""Findings come in one order, count themselves, and only an error makes the answer no."""

from __future__ import annotations

import itertools

import pytest

from envsmith.report import Finding, Report, Severity, ordered


def finding(severity: Severity, check: str = "files", kind: str = "k", subject: str = "s", **more: str) -> Finding:
    return Finding(check=check, kind=kind, severity=severity, subject=subject, message=more.pop("message", "m"), **more)


ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE

SORTED = (
    finding(ERROR, "conflicts"),
    finding(ERROR, "files", "a"),
    finding(ERROR, "files", "b", "x"),
    finding(ERROR, "files", "b", "y"),
    finding(WARNING, "conflicts"),
    finding(NOTE, "aaa"),
)


def test_errors_come_first_then_family_kind_and_subject() -> None:
    for order in itertools.permutations(SORTED):
        assert ordered(order) == SORTED


def test_findings_of_one_subject_have_an_order_too() -> None:
    same = [
        finding(ERROR, message="b"),
        finding(ERROR, message="a", actual="2"),
        finding(ERROR, message="a", actual="1"),
    ]
    assert len({ordered(order) for order in itertools.permutations(same)}) == 1


def test_nothing_to_sort_is_nothing() -> None:
    assert ordered([]) == ()


@pytest.mark.parametrize(
    ("severities", "failed", "said"),
    [
        ((), False, "a100/rl: no findings (files, imports)"),
        ((NOTE,), False, "a100/rl: 1 note (files, imports)"),
        ((WARNING, WARNING, NOTE), False, "a100/rl: 2 warnings, 1 note (files, imports)"),
        ((NOTE, ERROR), True, "a100/rl: 1 error, 1 note (files, imports)"),
        ((ERROR, ERROR), True, "a100/rl: 2 errors (files, imports)"),
    ],
)
def test_a_report_sums_itself_up(severities: tuple[Severity, ...], failed: bool, said: str) -> None:
    report = Report(
        subject="a100/rl", families=("files", "imports"), findings=tuple(finding(one) for one in severities)
    )
    assert (report.failed, report.summary()) == (failed, said)
    assert [report.count(one) for one in Severity] == [severities.count(one) for one in Severity]


def test_a_finding_for_the_envelope_has_every_key() -> None:
    assert finding(ERROR, expected="1", hint="h").to_dict() == {
        "check": "files", "kind": "k", "severity": "error", "subject": "s", "message": "m", "expected": "1",
        "actual": None, "hint": "h",
    }  # fmt: skip
