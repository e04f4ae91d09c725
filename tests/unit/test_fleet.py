"""A fleet's answers as values: read, reduced to one, and never counted where they are none."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pytest

from envsmith.fleet import Detail, NodeAnswer, Silent, answer_of, arrived, digest, read_answer, read_detail, shortened
from envsmith.fleetreduce import ORDER, Reduction, needed, reduce, with_details
from envsmith.fleettext import data, text

FAMILIES = (
    "files", "pyc", "sources", "conflicts", "base", "native", "interpreter", "hooks", "imports", "launchers",
    "launch_env", "contexts", "worker",
)  # fmt: skip
FACTS = {
    "env": "46c65cac222a", "driver": "470.57.02", "libcuda": {"path": "/usr/lib/libcuda.so.470.57.02", "cuInit": "0"},
    "devices": {"A100-SXM4-80GB": "8"}, "arch": "x86_64", "glibc": "2.31", "kernel": "4.9.0-8", "ray": "2.56.1",
    "python": {"version": "3.11.9", "prefix": "/e"}, "path": {"0": "/e/lib/python3.11"},
    "packages": {f"package-{n}": "1.0" for n in range(200)}, "modules": {"torch": "/e/torch/__init__.py"},
    "variables": {"PATH": "/e/bin:/usr/bin"}, "libraries": {"/e/libarrow.so": "mapped"},
    "worker-variables": {"PATH": "/e/bin"}, "worker-python": {"version": "3.11.9"},
    "mounts": {"/e": "ext4 ro"}, "limits": {"open-files": "65536"},
}  # fmt: skip


def finding(kind: str = "file-changed", subject: str = "lib/x.py", severity: str = "error") -> dict[str, str]:
    return {
        "check": "files", "kind": kind, "severity": severity, "subject": subject, "message": "a file was changed",
        "expected": "sha256:aa", "actual": "sha256:bb", "hint": "build again",
    }  # fmt: skip


CLEAN = Detail(families=dict.fromkeys(FAMILIES, ()), facts=FACTS)


def node(number: int) -> str:
    return f"node{number:04}"


def answer(number: int, detail: Detail = CLEAN) -> NodeAnswer:
    made = answer_of(detail, node=node(number), env="a100/rl", id=f"{number:056x}", address=f"10.0.0.{number % 250}")
    return replace(made, seconds=2.5, clock_offset_s=0.01)


def with_fact(name: str, value: object) -> Detail:
    return replace(CLEAN, facts={**FACTS, name: value})


def with_finding(family: str, row: dict[str, str]) -> Detail:
    return replace(CLEAN, families={**CLEAN.families, family: (row,)})


def fleet(size: int, planted: dict[int, Detail]) -> list[NodeAnswer]:
    return [answer(number, planted.get(number, CLEAN)) for number in range(size)]


def details(planted: dict[int, Detail], reduction: Reduction) -> Reduction:
    asked: list[str] = []

    def detail(name: str) -> Detail | None:
        asked.append(name)
        return planted.get(int(name.removeprefix("node")), CLEAN)

    told = with_details(reduction, detail)
    assert set(asked) <= set(needed(reduction))
    return told


# --- one answer ---


def test_an_answer_survives_its_json_form_and_is_small() -> None:
    one = answer(7)
    written = one.to_json()
    assert read_answer(written, "node0007") == one
    assert len(written) < 2048
    assert written == read_answer(written, "node0007").to_json()  # type: ignore[union-attr]


def test_order_and_advice_of_findings_are_no_difference_and_everything_else_is() -> None:
    first, second = finding(), finding(subject="lib/y.py")
    pair = replace(CLEAN, families={"files": (first, second)})
    turned = replace(CLEAN, families={"files": ({**second, "hint": "other"}, first)})
    assert answer_of(pair, node="a", env="e").families == answer_of(turned, node="a", env="e").families
    for key in ("kind", "severity", "subject", "message", "expected", "actual"):
        other = replace(CLEAN, families={"files": (first, {**second, key: "z"})})
        assert answer_of(other, node="a", env="e").families != answer_of(pair, node="a", env="e").families


def test_short_facts_stand_in_the_answer_and_no_value_can_pass_for_a_digest() -> None:
    assert shortened("470.57.02") == "470.57.02"
    assert shortened("x" * 41) == digest("x" * 41)
    assert shortened("#" + "0" * 24) == digest("#" + "0" * 24)
    assert shortened("a\nb") == digest("a\nb")


def spoiled(**changes: object) -> str:
    return json.dumps({**json.loads(answer(7).to_json()), **changes})


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        ("", "rubbish", "empty"),
        (answer(7).to_json()[:-9], "rubbish", "was cut"),
        ("[" * 5000, "rubbish", "was cut"),
        ("[1, 2]", "rubbish", "none of envsmith's"),
        ('{"findings": []}', "rubbish", "none of envsmith's"),
        ("x" * 20000, "rubbish", "20000 bytes"),
        (spoiled(**{"envsmith-fleet": 2}), "foreign", "another envsmith"),
        (spoiled(**{"envsmith-fleet": True}), "foreign", "another envsmith"),
        (spoiled(families=[]), "rubbish", "`families`"),
        (spoiled(families={"files": "fine"}), "rubbish", "`families`"),
        (spoiled(facts={"driver": 470}), "rubbish", "`facts`"),
        (spoiled(facts={"driver": "a\nb"}), "rubbish", "`facts`"),
        (spoiled(errors=-1), "rubbish", "`errors`"),
        (spoiled(errors=True), "rubbish", "`errors`"),
        (spoiled(seconds="1"), "rubbish", "`seconds`"),
        (spoiled(**{"clock-offset-s": "now"}), "rubbish", "`clock-offset-s`"),
        (spoiled(**{"clock-offset-s": float("inf")}), "rubbish", "`clock-offset-s`"),
        (spoiled(node="../x"), "rubbish", "`node`"),
        (spoiled(node="node0008"), "duplicate", "`node0008`"),
    ],
)
def test_what_is_no_answer_of_a_node_is_named(text: str, reason: str, words: str) -> None:
    seen = read_answer(text, "node0007")
    assert isinstance(seen, Silent)
    assert (seen.node, seen.reason) == ("node0007", reason)
    assert words in seen.message


def test_a_detail_survives_its_json_form_and_rubbish_is_none() -> None:
    planted = with_finding("files", finding())
    assert read_detail(planted.to_json()) == planted
    for spoilt in ("", "[]", "{}", '{"envsmith-fleet-detail": 1, "families": [], "facts": {}}', planted.to_json()[:-5]):
        assert read_detail(spoilt) is None


# --- many answers ---


def test_a_fleet_that_agrees_says_so() -> None:
    seen = reduce(fleet(100, {}), 100)
    assert seen.agreed and not seen.failed
    assert len(seen.agree) == 100
    assert text(seen, "a100/rl") == "a100/rl: 100 of 100 nodes agree, slowest 2.5 s"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_planted_difference_in_any_family_is_named_with_node_and_finding(family: str) -> None:
    planted = {17: with_finding(family, {**finding(), "check": family})}
    seen = details(planted, reduce(fleet(50, planted), 50))
    (group,) = seen.divergences
    assert (group.nodes, group.name, group.is_family) == (("node0017",), family, True)
    assert [one.subject for one in group.differences] == ["file-changed lib/x.py"]
    assert seen.failing == ("node0017",)
    assert len(seen.agree) == 49
    assert f"node0017 differs from the others in the family `{family}`" in text(seen, "e")


@pytest.mark.parametrize("fact", FACTS)
def test_a_planted_difference_in_any_fact_is_named_with_node_and_both_sides(fact: str) -> None:
    value = FACTS[fact]
    wrong = {**value, "odd": "1"} if isinstance(value, dict) else "other"
    planted = {3: with_fact(fact, wrong)}
    seen = details(planted, reduce(fleet(50, planted), 50))
    (group,) = seen.divergences
    assert (group.nodes, group.name, group.is_family) == (("node0003",), fact, False)
    sides = [(one.subject, one.expected, one.actual) for one in group.differences]
    assert sides == [("odd", None, "1") if isinstance(value, dict) else (fact, value, "other")]
    assert seen.failed and not seen.failing


def test_every_name_of_the_tests_has_its_place_in_the_order() -> None:
    assert {*FAMILIES, *FACTS} <= set(ORDER)


def test_a_clock_that_is_off_is_named_and_one_within_the_limit_is_not() -> None:
    answers = fleet(20, {})
    answers[4] = replace(answers[4], clock_offset_s=-7.5)
    answers[5] = replace(answers[5], clock_offset_s=1.9)
    seen = details({}, reduce(answers, 20))
    (group,) = seen.divergences
    assert (group.nodes, group.name, group.actual, group.expected) == (("node0004",), "clock", "-7.5 s", "+0.0 s")


def test_nodes_with_one_fault_are_one_group_and_the_first_difference_explains_the_others() -> None:
    both = replace(with_finding("files", finding()), facts={**FACTS, "mounts": {"/e": "overlay rw"}})
    planted = {number: both for number in range(10, 17)}
    seen = reduce(fleet(40, planted), 40)
    (group,) = seen.divergences
    assert (group.name, group.further, len(group.nodes)) == ("files", ("mounts",), 7)
    assert needed(seen) == ("node0010", "node0000")
    assert "and 2 more differ" in text(seen, "e")


def test_ten_nodes_wrong_in_ten_ways_are_each_held_against_what_most_have() -> None:
    planted = {n: with_finding(family, finding()) for n, family in enumerate(FAMILIES[:10])}
    seen = reduce(fleet(10, planted), 10)
    assert seen.agree == ()
    assert {group.nodes[0]: group.name for group in seen.divergences} == {
        node(n): f for n, f in enumerate(FAMILIES[:10])
    }
    assert seen.tied == ()


def test_of_two_nodes_the_one_without_errors_is_the_reference_and_it_is_said_that_nobody_has_a_majority() -> None:
    planted = {0: with_finding("files", finding())}
    seen = reduce(fleet(2, planted), 2)
    assert (seen.agree, seen.tied, seen.divergences[0].nodes) == (("node0001",), ("files",), ("node0000",))
    assert "no majority for files" in text(seen, "e")


def test_nodes_that_agree_on_an_error_do_not_pass() -> None:
    planted = dict.fromkeys(range(5), with_finding("files", finding()))
    seen = reduce(fleet(5, planted), 5)
    assert seen.agreed and seen.failed
    assert needed(seen) == ("node0000",)
    assert "findings-everywhere" in text(seen, "e")


def test_a_family_that_one_node_did_not_answer_is_a_difference() -> None:
    less = {name: rows for name, rows in CLEAN.families.items() if name != "pyc"}
    seen = reduce(fleet(5, {2: replace(CLEAN, families=less)}), 5)
    assert [(group.nodes, group.name, group.actual) for group in seen.divergences] == [(("node0002",), "pyc", "")]


def test_silent_nodes_are_named_and_never_counted() -> None:
    answers: list[NodeAnswer | Silent] = [*fleet(6, {})]
    answers[1] = Silent(node=node(1), reason="dead", message="its raylet died")
    answers[2] = arrived(answer(2), after_s=61.0, clock_offset_s=0.0)
    answers[3] = read_answer("{", node(3))
    answers.append(answer(4))
    seen = reduce(answers, [node(number) for number in range(7)], limit_s=60)
    assert seen.agree == ("node0000", "node0005")
    assert {one.node: one.reason for one in seen.silent} == {
        "node0001": "dead", "node0002": "late", "node0003": "rubbish", "node0004": "duplicate", "node0006": "missing",
    }  # fmt: skip
    assert (seen.expected, seen.failed) == (7, True)
    assert "2 of 7 nodes agree, 5 gave no answer that counts" in text(seen, "e")


def test_a_stranger_is_not_counted_and_a_number_of_nodes_that_is_not_reached_is_said() -> None:
    seen = reduce(fleet(3, {}), ["node0000", "node0001"])
    assert (seen.agree, [one.node for one in seen.silent]) == (("node0000", "node0001"), ["node0002"])
    short = reduce(fleet(3, {}), 5)
    assert [one.node for one in short.silent] == ["(2 nodes)"]
    assert short.failed


def test_no_answer_at_all_does_not_pass() -> None:
    assert reduce([], 3).failed
    assert text(reduce([], ["a"]), "e").startswith("error[fleet/node-missing]: a: ")


@pytest.mark.parametrize("size", [1000, 5000])
def test_a_big_fleet_is_reduced_in_memory_that_its_planted_nodes_do_not_change(size: int) -> None:
    planted = {number * 37: with_fact("driver", f"535.{number}") for number in range(20)}

    def answers() -> Iterator[NodeAnswer | Silent]:
        for number in range(size):
            seen = read_answer(answer(number, planted.get(number, CLEAN)).to_json(), node(number))
            yield seen if number != 5 else Silent(node=node(5), reason="dead", message="gone")

    tracemalloc.start()
    seen = reduce(answers(), size)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(seen.agree) == size - 21
    assert {group.nodes[0] for group in seen.divergences} == {node(number) for number in planted}
    assert len(needed(seen)) == 21  # twenty that differ and one that has it right
    assert peak < size * 2048


def test_the_json_form_has_every_node_and_side() -> None:
    planted = {3: with_fact("driver", "535")}
    form = data(details(planted, reduce(fleet(9, planted), 9)))
    assert json.loads(json.dumps(form)) == form
    assert form["differ"][0]["differences"] == [{"subject": "driver", "expected": "470.57.02", "actual": "535"}]
    assert len(form["agree"]) == 8
