"""The smoke ladder as values: which rungs, and what ends and answers mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from envsmith.errors import InputError
from envsmith.recipe import RUNGS
from envsmith.report import Severity
from envsmith.smoke import (
    LADDER,
    MEMORY_TOLERANCE_BYTES,
    Ended,
    Leftover,
    Rung,
    RungRun,
    Segment,
    climb,
    judge_exit,
    judge_rung,
    parse_answer,
    status_of,
)

ALL = frozenset({"torch", "transformers", "ray", "llamafactory", "verl"})


def rung(kind: str = "device", **changed: Any) -> Rung:
    about = LADDER[kind]
    values = {"kind": kind, "label": kind, "timeout_s": about.timeout_s, "ranks": about.ranks, "steps": 2}
    return Rung(**{**values, "options": {}, **changed})


def ended(returncode: int | None = 0, rank: int = 0, **changed: Any) -> Ended:
    return Ended(rank=rank, returncode=returncode, seconds=1.0, **changed)


def answer(*statements: dict[str, Any]) -> Any:
    shown = [said("ok", what) for what in LADDER["device"].shows]
    whole = {"device": "cpu", "figures": {}, "identities": {}, "statements": [*shown, *statements]}
    return parse_answer(whole)


def said(verdict: str, what: str = "loss-finite") -> dict[str, Any]:
    return {"what": what, "verdict": verdict, "message": "it is so"}


def ran(**changed: Any) -> RungRun:
    values: dict[str, Any] = {"rung": rung(), "argv": ("python",), "seconds": 1.0, "ended": (ended(),)}
    values |= {"answers": {0: answer()}, "memory_before": (5,), "memory_after": (5,)}
    return RungRun(**{**values, **changed})


def kinds(run: RungRun, severity: Severity = Severity.ERROR) -> set[str]:
    return {finding.kind for finding in judge_rung(run) if finding.severity is severity}


def status(run: RungRun) -> str:
    return status_of(run, judge_rung(run))


# --- which rungs ---


def test_the_ladder_has_the_rungs_of_recipes_in_their_order() -> None:
    assert tuple(LADDER) == RUNGS


def test_without_a_recipe_an_env_climbs_what_it_has_packages_for() -> None:
    assert [one.kind for one in climb((), packages=(), to=None)] == ["static", "exit-clean"]
    whole = [one.kind for one in climb((), packages=ALL, to=None)]
    assert whole == [kind for kind in RUNGS if kind != "command"]
    assert "ray-generate" not in [one.kind for one in climb((), packages=ALL - {"ray"}, to=None)]


def test_rungs_are_climbed_in_the_order_of_the_ladder_whatever_the_recipe_says() -> None:
    tables = [{"rung": "exit-clean"}, {"rung": "device"}, {"rung": "static"}]
    assert [one.kind for one in climb(tables, packages=(), to=None)] == ["static", "device", "exit-clean"]


def test_to_cuts_the_ladder_and_brings_its_own_rung_along() -> None:
    tables = [{"rung": "static"}, {"rung": "generate", "timeout-s": 7.0}, {"rung": "exit-clean"}]
    assert [one.kind for one in climb(tables, packages=(), to="device")] == ["static", "device"]
    assert [one.timeout_s for one in climb(tables, packages=(), to="generate")] == [LADDER["static"].timeout_s, 7.0]


def test_a_rung_that_does_not_exist_is_named_with_a_near_one() -> None:
    with pytest.raises(InputError) as caught:
        climb((), packages=ALL, to="trainstep")
    assert caught.value.problems[0].code == "unknown-rung"
    assert "train-step" in str(caught.value.problems[0].hint)


def test_a_command_cannot_be_asked_for_without_saying_which() -> None:
    with pytest.raises(InputError, match="unknown-rung"):
        climb((), packages=ALL, to="command")


def test_several_rungs_of_one_kind_have_labels_of_their_own() -> None:
    tables = [{"rung": "command", "command": ["a"]}, {"rung": "command", "command": ["b"], "name": "loss-on"}]
    assert [one.label for one in climb(tables, packages=(), to=None)] == ["command-1", "loss-on"]


def test_only_ranked_rungs_get_a_process_a_rank() -> None:
    one, two = climb([{"rung": "collective", "ranks": 4}, {"rung": "verl-step", "ranks": 8}], packages=(), to=None)
    assert (one.processes, two.processes) == (4, 1)


# --- what came of one ---


def test_a_rung_passes_when_it_ended_with_zero_and_answered() -> None:
    run = ran(answers={0: answer(said("ok"), said("warning", "all-at-cap"), said("note", "no-device"))})
    assert status(run) == "passed"
    assert kinds(run, Severity.WARNING) == {"all-at-cap"}


@pytest.mark.parametrize("code", [1, 7, -6, -11])
def test_an_exit_code_counts_whatever_was_answered(code: int) -> None:
    run = ran(ended=(ended(), ended(code, rank=1)), answers={0: answer(said("ok")), 1: answer(said("ok"))})
    assert status(run) == "failed"
    found = next(finding for finding in judge_rung(run) if finding.kind == "rank-exit")
    assert "rank 1" in found.message and "although it had answered" in found.message
    assert found.actual == {1: "exit code 1", 7: "exit code 7", -6: "signal SIGABRT", -11: "signal SIGSEGV"}[code]


def test_ranks_that_envsmith_ended_are_not_blamed() -> None:
    run = ran(ended=(ended(1), ended(None, rank=1, stopped=True)), answers={})
    assert [finding.message for finding in judge_rung(run)] == ["rank 0 ended with exit code 1"]


def test_a_rank_that_hangs_is_named() -> None:
    run = ran(ended=(ended(), ended(None, rank=3, timed_out=True)))
    assert any(f.kind == "rung-timeout" and "rank 3" in f.message for f in judge_rung(run))


def test_an_early_end_without_an_answer_is_no_pass() -> None:
    assert kinds(ran(answers={})) == {"no-answer"}
    assert "`figures`" in str(next(iter(judge_rung(ran(answers={}, malformed={0: "`figures` is missing"})))).actual)


@pytest.mark.parametrize(("verdict", "expected"), [("failed", "failed"), ("inconclusive", "inconclusive")])
def test_a_statement_against_it_is_the_rungs_status(verdict: str, expected: str) -> None:
    assert status(ran(answers={0: answer(said(verdict, "equal-rewards"))})) == expected


def test_what_is_inconclusive_and_failed_is_failed() -> None:
    run = ran(answers={0: answer(said("inconclusive", "equal-rewards"), said("failed", "loss-not-finite"))})
    assert status(run) == "failed"
    assert status(ran(ended=(ended(1),), answers={0: answer(said("inconclusive"))})) == "failed"


# --- what is left behind ---

LEFT = Leftover(pid=7, name="python", argv=("python", "x.py"))
MANY = 10 * MEMORY_TOLERANCE_BYTES


def test_a_process_left_behind_is_a_warning_for_its_rung_and_an_error_at_the_exit() -> None:
    run = ran(leftovers=(LEFT,))
    assert status(run) == "passed" and kinds(run, Severity.WARNING) == {"process-left-behind"}
    assert {f.kind for f in judge_exit(rung("exit-clean"), [run], None)} == {"process-left-behind"}


def test_a_forged_answer_without_what_the_rung_shows_is_inconclusive() -> None:
    forged = {"device": "cuda:0 NVIDIA H200", "figures": {}, "identities": {}, "statements": []}
    run = ran(answers={0: parse_answer(forged)})
    assert kinds(run) == {"nothing-shown"} and status(run) == "inconclusive"


@pytest.mark.parametrize("after", [None, (5,), (5, 5, 5)])
def test_a_device_that_does_not_answer_any_more_is_an_error(after: tuple[int, ...] | None) -> None:
    found = judge_exit(rung("exit-clean"), [ran(memory_before=(5, 5), memory_after=after)], (5, 5))
    assert {f.kind for f in found} == {"device-lost"}


def test_files_in_shared_memory_that_no_framework_names_so_are_a_warning() -> None:
    run = ran(segments=(Segment(name="my-cache", size_bytes=1),))
    assert {f.severity for f in judge_exit(rung("exit-clean"), [run], (5,))} == {Severity.WARNING}


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"memory_before": (5,), "memory_after": (MANY,)}, "memory-not-returned"),
        ({"segments": (Segment(name="psm_1", size_bytes=4096),)}, "memory-not-returned"),
        ({"leftovers": (LEFT,)}, "process-left-behind"),
        ({"ended": (ended(-6),)}, "rank-exit"),
    ],
)
def test_the_exit_is_not_clean_with(changed: dict[str, Any], kind: str) -> None:
    assert {f.kind for f in judge_exit(rung("exit-clean"), [ran(**changed)], (5,))} == {kind}


def test_a_driver_may_keep_a_little() -> None:
    run = ran(memory_before=(5, 5), memory_after=(5 + MEMORY_TOLERANCE_BYTES, 0))
    assert list(judge_exit(rung("exit-clean"), [run], (5, 5))) == []


def test_each_device_is_held_against_its_own_baseline() -> None:
    run = ran(memory_before=(0, MANY), memory_after=(MANY, MANY))
    assert [f.message.split(" had")[0] for f in judge_exit(rung("exit-clean"), [run], (0, MANY))] == ["device 0"]


def test_what_a_command_leaves_is_an_error_of_its_own() -> None:
    run = ran(rung=rung("command"), answers={}, leftovers=(LEFT,), memory_before=(0,), memory_after=(MANY,))
    assert kinds(run) == {"process-left-behind", "memory-not-returned"}
    assert status(replace(run, leftovers=(), memory_after=(0,))) == "passed"


# --- the form of answers ---


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"device": 1, "figures": {}, "identities": {}, "statements": []},
        {"device": "cpu", "figures": [], "identities": {}, "statements": []},
        {"device": "cpu", "figures": {}, "statements": []},
        {"device": "cpu", "figures": {}, "identities": {}, "statements": {}},
        {"device": "cpu", "figures": {}, "identities": {}, "statements": [1]},
        {"device": "cpu", "figures": {}, "identities": {}, "statements": [{"what": "x", "verdict": "ok"}]},
        {"device": "cpu", "figures": {}, "identities": {}, "statements": [said("fine")]},
        {"device": "cpu", "figures": {}, "identities": {}, "statements": [{**said("ok"), "actual": 3}]},
        {"device": "cpu", "figures": {"a": eval("[" * 60 + "]" * 60)}, "identities": {}, "statements": []},
        {"device": "cpu\ud800", "figures": {}, "identities": {}, "statements": []},
        {"device": "cpu", "figures": {"a": 10**400}, "identities": {}, "statements": []},
    ],
)
def test_an_answer_of_another_form_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_answer(data)
