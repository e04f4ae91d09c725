"""A report as text says a cause once, names its subjects, and ends with one line that sums up."""

from __future__ import annotations

from envsmith.report import Severity, causes, mark
from envsmith.report_text import SHOWN, text
from tests.support.reports import HOSTILE, everywhere, finding, report


def test_a_single_finding_has_the_form_of_the_pages() -> None:
    said = text(report(finding(expected="1", actual="2", hint="`envsmith build`")))
    assert said == (
        "error[files/file-changed]: a file was changed\n  subject:  lib/a.py\n  expected: 1\n  actual:   2\n"
        "  hint:     `envsmith build`\n\na100/rl: 1 error (files, imports, hooks)"
    )


def test_findings_of_one_cause_are_one_block_with_the_message_and_hint_once() -> None:
    said = text(report(*(finding(subject=f"lib/{n}.py", expected="1", actual=f"{n}", hint="build") for n in range(3))))
    assert said.splitlines()[:4] == [
        "error[files/file-changed]: a file was changed (3 times)",
        "  - lib/0.py",
        "    expected 1, actual 0",
        "  - lib/1.py",
    ]
    assert (said.count("a file was changed"), said.count("hint:")) == (1, 1)


def test_another_severity_kind_or_hint_is_another_block() -> None:
    said = text(report(finding(), finding(Severity.NOTE), finding(kind="other"), finding(hint="x")))
    assert said.count("\n\n") == 4


def test_the_many_are_counted() -> None:
    said = text(report(*(finding(subject=f"lib/{n:04}.py") for n in range(4000))))
    assert (said.count("- lib/"), "and 3,990 more" in said) == (SHOWN, True)


def test_one_package_with_many_files_does_not_hide_the_others() -> None:
    many = [finding(subject=f"lib/{n:04}.py", message="a file of ray was changed") for n in range(50)]
    said = text(report(*many, finding(subject="lib/x.py", message="a file of vllm was changed")))
    assert "error[files/file-changed]: 51 findings\n  a file of ray was changed (50 times)\n" in said
    assert "  a file of vllm was changed\n    - lib/x.py" in said


def test_messages_beyond_the_limit_are_counted() -> None:
    said = text(report(*(finding(subject=f"{n}", message=f"message {n:02}") for n in range(14))))
    assert "  and 4 more in other words" in said


def test_long_values_stand_below_each_other() -> None:
    pair = [finding(subject=name, expected="a" * 70, actual="b" * 70) for name in "xy"]
    assert f"    expected {'a' * 70}\n    actual {'b' * 70}" in text(report(*pair))


def test_a_clean_report_is_one_line_with_its_figures() -> None:
    said = text(report(figures={"files": "39,825", "read": "9.77 GB"}))
    assert said == "a100/rl: no findings (files, imports, hooks); files 39,825, read 9.77 GB"


def test_nothing_hostile_reaches_the_terminal() -> None:
    said = text(everywhere(HOSTILE))
    assert all(c.isprintable() or c == "\n" for c in said)
    assert "\\x1b[31m" in said


def test_secrets_are_cut() -> None:
    assert "hunter2" not in text(
        report(finding(subject="HF_TOKEN", actual="hunter2"), finding(hint="https://a:hunter2@b/"))
    )


def test_causes_hold_every_finding_once_and_errors_first() -> None:
    said = [finding(Severity.NOTE), finding(subject="b"), finding(subject="a"), finding(kind="k")]
    groups = causes(said)
    assert sorted(map(repr, said)) == sorted(repr(one) for group in groups for one in group.findings)
    assert [(group.severity, group.name, len(group.findings)) for group in groups] == [
        (Severity.ERROR, "files/file-changed", 2),
        (Severity.ERROR, "files/k", 1),
        (Severity.NOTE, "files/file-changed", 1),
    ]


def test_the_mark_follows_the_findings_alone() -> None:
    one, other = report(finding()), report(finding(actual="2"))
    assert mark([one]) == mark([report(finding(), environment={"time": "now"})]) != mark([other])
    assert len(mark([])) == 12
