"""A source tree is the locked one, or the report says what happened to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envsmith.checks.sources import JobLayer, SourceState, check_job_layers, check_sources
from envsmith.report import Finding, Severity

BASE, MID, LOCKED, OTHER = "0" * 40, "1" * 40, "2" * 40, "3" * 40
GOOD = SourceState(
    name="verl",
    locked_tree=LOCKED,
    locked_patches=("a" * 64, "b" * 64),
    trees=(BASE, MID, LOCKED),
    tree=LOCKED,
    patches=("a" * 64, "b" * 64),
)


def _kinds(*states: SourceState) -> list[str]:
    return [finding.kind for finding in check_sources(states)]


def _only(state: SourceState) -> Finding:
    (finding,) = check_sources([state])
    assert finding.severity is Severity.ERROR
    return finding


def test_the_locked_tree_is_silent() -> None:
    assert _kinds(GOOD) == []


def test_leftovers_of_the_build_and_files_that_are_not_imported_are_silent() -> None:
    state = replace(
        GOOD,
        untracked=("verl/_build.so", "runs/log.txt", "verl/__pycache__/a.cpython-311.pyc", "verl.egg-info/PKG-INFO"),
        allowed=frozenset({"verl/_build.so"}),
    )
    assert _kinds(state) == []


def test_a_tree_that_is_gone_is_missing() -> None:
    assert _only(replace(GOOD, present=False, tree=None)).kind == "source-missing"


def test_an_edit_names_its_files_and_the_way_to_keep_it() -> None:
    finding = _only(replace(GOOD, tree=OTHER, changed=("verl/model.py",)))
    assert finding.kind == "source-edited"
    assert "`verl/model.py`" in finding.message
    assert "envsmith work" in (finding.hint or "")


def test_a_tree_id_that_is_unknown_is_not_a_pass() -> None:
    assert _only(replace(GOOD, tree=None)).kind == "source-edited"


def test_an_edit_that_git_status_alone_sees_is_not_a_pass() -> None:
    assert _only(replace(GOOD, changed=("verl/model.py",))).kind == "source-edited"


@pytest.mark.parametrize(("tree", "said"), [(BASE, "none of its patches"), (MID, "only the first 1 of its 2 patches")])
def test_a_tree_along_the_series_is_a_reverted_patch(tree: str, said: str) -> None:
    finding = _only(replace(GOOD, tree=tree, changed=("verl/model.py",)))
    assert finding.kind == "patch-reverted"
    assert said in finding.message


def test_a_series_of_no_patches_cannot_be_reverted() -> None:
    state = SourceState(name="x", locked_tree=BASE, trees=(BASE,), tree=OTHER, changed=("a.py",))
    assert _only(state).kind == "source-edited"


def test_a_build_from_other_patches_is_named() -> None:
    assert _only(replace(GOOD, patches=("a" * 64, "c" * 64))).kind == "patch-list-differs"


def test_an_added_module_is_named_and_many_are_counted() -> None:
    assert _only(replace(GOOD, untracked=("verl/os_hack.py",))).kind == "source-untracked"
    many = _only(replace(GOOD, untracked=tuple(f"verl/m{n}.py" for n in range(40))))
    assert "and 30 more" in many.message


def test_sources_are_reported_by_name() -> None:
    bad = replace(GOOD, present=False)
    subjects = [f.subject for f in check_sources([replace(bad, name="b"), replace(bad, name="a")])]
    assert subjects == ["a", "b"]


COPY = JobLayer(source="verl", directory="/home/me/verl", present=True, head="a" * 40, changed=())


def _layer(layer: JobLayer) -> Finding:
    (finding,) = check_job_layers([layer])
    return finding


def test_a_work_copy_is_a_note_that_says_where_it_is_and_whether_it_differs() -> None:
    same = _layer(COPY)
    assert (same.kind, same.severity, same.subject) == ("job-layer", Severity.NOTE, "verl")
    assert "`/home/me/verl`, HEAD aaaaaaaaaaaa, which holds the locked tree" in same.message
    edited = _layer(replace(COPY, changed=("verl/b.py", "verl/a.py")))
    assert edited.severity is Severity.NOTE
    assert "differs from the locked tree: `verl/a.py`, `verl/b.py`" in edited.message


def test_a_work_copy_that_git_cannot_judge_is_still_named() -> None:
    assert "cannot compare" in _layer(replace(COPY, head=None, changed=None)).message


def test_a_work_copy_that_has_gone_is_a_warning() -> None:
    gone = _layer(replace(COPY, present=False, head=None, changed=None))
    assert (gone.kind, gone.severity) == ("job-layer-missing", Severity.WARNING)
    assert "/home/me/verl" in gone.message


def test_without_work_copies_there_is_no_job_layer() -> None:
    assert list(check_job_layers([])) == []
