"""Judging the packages of a base: what is said about each way in which one can differ."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from envsmith.basepackages import PackageState, files_digest
from envsmith.checks.base import SHOWN, check_base, check_base_python
from envsmith.lock import AlteredFile, LockedBase
from envsmith.overlay import Base
from envsmith.report import Finding, Severity

A, B = "a" * 64, "b" * 64


def state(**changes: Any) -> PackageState:
    values: dict[str, Any] = {"name": "torch", "version": "2.9", "info": "x", "record": A, "files": A, "recorded": {}}
    return PackageState(**{**values, **changes})


def locked(**changes: Any) -> LockedBase:
    values: dict[str, Any] = {"name": "torch", "version": "2.9", "protected": True, "files": A, "record": A}
    return LockedBase(**{**values, **changes})


def judged(package: LockedBase, *states: PackageState) -> list[Finding]:
    return list(check_base([package], {"torch": states}))


def test_an_equal_package_is_silent() -> None:
    assert judged(locked(), state()) == []
    assert judged(locked(protected=False), state()) == []


def test_a_changed_package_that_is_not_protected_is_a_warning() -> None:
    (finding,) = judged(locked(protected=False), state(files=B))
    assert (finding.kind, finding.severity) == ("base-package-rewritten", Severity.WARNING)
    assert judged(locked(protected=False, files=None), state(files=B)) == [], "nobody recorded its files"
    assert judged(locked(protected=False), state(files=B, version="3.0")) == [], "the family conflicts says it"
    assert judged(locked(protected=False)) == []


def test_a_snapshot_without_digests_proves_versions_only_and_says_so() -> None:
    (finding,) = judged(locked(files=None, record=None), state())
    assert (finding.kind, finding.severity) == ("base-unproved", Severity.NOTE)


def test_two_of_one_name_are_an_error_unless_the_first_is_the_locked_one() -> None:
    """Debian's own Python has `cryptography` twice: a base that is as its snapshot says is right as it is."""
    assert judged(locked(), state(), state(version="3.0", info="y")) == []
    (finding,) = judged(locked(), state(version="3.0", info="y"), state())
    assert finding.kind == "base-package-twice"
    assert "3.0 in y" in (finding.actual or "")


def test_an_editable_installation_is_unproved() -> None:
    (finding,) = judged(locked(), state(editable="/opt/vendor/src/torch"))
    assert (finding.kind, finding.severity) == ("base-unproved", Severity.NOTE)
    assert "/opt/vendor/src/torch" in finding.message


def test_another_path_and_a_hook_that_is_gone_are_named() -> None:
    built = Base(python="/opt/vendor/bin/python", site=("/opt/vendor/site",), beside=("/opt/src",))
    hooks = {"/opt/vendor/site/a.pth": A}
    assert list(check_base_python(built, hooks, built, hooks)) == []
    assert list(check_base_python(built, hooks, built, {**hooks, "/opt/vendor/site/b.pth": B})) == []
    (gone,) = check_base_python(built, hooks, built, {})
    assert (gone.kind, gone.subject) == ("base-hook-missing", "/opt/vendor/site/a.pth")
    (moved,) = check_base_python(built, hooks, replace(built, site=("/usr/lib/python3/dist-packages",)), hooks)
    assert (moved.kind, moved.actual) == ("base-path-differs", "/usr/lib/python3/dist-packages, /opt/src")


def test_a_digest_that_differs_without_a_file_that_does_means_a_rewritten_record() -> None:
    (finding,) = judged(locked(record=None), state(files=B))
    assert finding.kind == "base-package-rewritten"
    assert "RECORD was changed with them" in finding.message


def test_many_files_are_counted() -> None:
    changed = {f"torch/{n}.py": B for n in range(SHOWN + 5)}
    findings = judged(locked(), state(files=B, altered=changed, recorded=dict.fromkeys(changed, A)))
    assert len(findings) == SHOWN + 1
    assert "5 more files" in findings[-1].message


def test_a_file_altered_before_is_right_only_as_it_was_then() -> None:
    package = locked(altered=(AlteredFile(path="t.pem", sha256=A), AlteredFile(path="gone.py", sha256=None)))
    same = state(files=B, record=A, altered={"t.pem": A, "gone.py": None, "x.py": B}, recorded={"x.py": A})
    assert [f.subject for f in judged(package, same)] == ["x.py"]
    (finding,) = judged(package, state(files=B, altered={"t.pem": B, "gone.py": None}, recorded={"t.pem": B}))
    assert (finding.subject, finding.expected) == ("t.pem", f"sha256:{A[:12]}")


@pytest.mark.parametrize(
    "other", [{"a": A, "b": A}, {"a": B}, {"b": A}, {"a": None}, {}], ids=["more", "content", "name", "missing", "none"]
)
def test_the_digest_of_files_depends_on_every_name_and_content(other: dict[str, str | None]) -> None:
    assert files_digest({"a": A}) != files_digest(other)
    assert files_digest({"a": A, "b": B}) == files_digest({"b": B, "a": A})
