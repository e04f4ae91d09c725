"""Expectations are read strictly and judged on what the log holds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsmith.errors import InputError
from envsmith.logs.expected import FieldResult, judge_fields, judge_output, parse_expectations, parse_patterns
from envsmith.logs.training import Series

WHERE = "envsmith.toml: env.rl.smoke[0].expect-fields"


def judged(values: list[float], text: str) -> list[FieldResult]:
    series = {"loss": Series(name="loss", values=tuple(values), lines=tuple(range(10, 10 + len(values))))}
    return list(judge_fields(series, parse_expectations({"loss": text}, where=WHERE)))


@pytest.mark.parametrize(
    ("values", "text", "ok", "actual", "line"),
    [
        ([3.0, 1, 2], "< 2.5", True, "2", 12),
        ([3.0, 1, 2], "last < 2", False, "2", 12),
        ([3.0, 1, 2], "first >= 3", True, "3", 10),
        ([3.0, 1, 2], "all < 2.5", False, "3", 10),
        ([3.0, 1, 2], "all < 3.5", True, "3, 1, 2", None),
        ([3.0, 1, 2], "any == 1", True, "1", 11),
        ([3.0, 1, 2], "any > 5", False, "3, 1, 2", None),
        ([3.0, 1, 2], "min == 1", True, "1", 11),
        ([3.0, 1, 2], "max <= 2", False, "3", 10),
        ([3.0, 1, 2], "mean 1.9..2.1", True, "2", None),
        ([3.0, 1, 2], "count == 3", True, "3", None),
        ([3.0, 1, 2], "!= 2", False, "2", 12),
        ([0.6935], "0.6931 ± 1e-3", True, "0.6935", 10),
        ([0.6951], "0.6931 +- 1e-3", False, "0.6951", 10),
        ([-0.5], "-1..-.25", True, "-0.5", 10),
        ([1.0, 2], "changes", True, "1, 2", None),
        ([1.0, 1], "changes", False, "1, 1", None),
        ([1.0, 1], "constant", True, "1, 1", None),
        ([math.nan, 1], "all finite", False, "nan", 10),
        ([math.nan, 1], "finite", True, "1", 11),
        ([math.inf], "finite", False, "inf", 10),
        ([math.nan, 1], "min < 5", False, "nan", 10),
        ([math.nan], "!= 3", False, "nan", 10),
    ],
)
def test_a_condition_is_judged(values: list[float], text: str, ok: bool, actual: str, line: int | None) -> None:
    (result,) = judged(values, text)
    assert (result.ok, result.actual, result.line, result.expected) == (ok, actual, line, text)


def test_and_makes_two_conditions() -> None:
    assert [one.ok for one in judged([1.0, 2], "changes and > 5")] == [True, False]


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
def test_operators_mean_what_they_mean_in_python(value: float, limit: float) -> None:
    for operator, held in (("<", value < limit), (">=", value >= limit), ("==", value == limit)):
        assert judged([value], f"{operator} {limit!r}")[0].ok is held


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it is empty"),
        ("min", "a test is missing"),
        ("finit", "did you mean `finite`?"),
        ("> 1 and ", "is no test"),
        ("< ten", "is no test"),
        ("== nan", "is no test"),
        ("1..0", "ends before it begins"),
        ("1 ± -1", "is negative"),
        ("> 1e999", "too large"),
        ("max changes", "looks at all values"),
        ("last changes", "looks at all values"),
        ("is equal to y", "is no test"),
        ("< 1 or > 2", "is no test"),
    ],
)
def test_what_cannot_be_read_is_a_problem_with_its_place(text: str, why: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_expectations({"loss": text, "fine": "> 0"}, where=WHERE)
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("expect-field-malformed", f"{WHERE}.loss")
    assert why in problem.message


def test_every_problem_is_said_at_once() -> None:
    with pytest.raises(InputError) as caught:
        parse_expectations({"a": "?", "b": "!"}, where=WHERE)
    assert [problem.where for problem in caught.value.problems] == [f"{WHERE}.a", f"{WHERE}.b"]


@given(st.text(max_size=20))
def test_no_text_is_trouble(text: str) -> None:
    try:
        parse_expectations({"x": text}, where=WHERE)
    except InputError as error:
        assert error.problems[0].code == "expect-field-malformed"


def test_an_absent_field_fails_and_says_what_was_seen() -> None:
    series = {"actor/grad_norm": Series(name="actor/grad_norm", values=(1.0,), lines=(1,))}
    (result,) = judge_fields(series, parse_expectations({"grad_norm": "> 0"}, where=WHERE))
    assert not result.ok
    assert (result.actual, result.hint) == ("absent; seen: actor/grad_norm", "did you mean `actor/grad_norm`?")


def test_a_log_without_fields_says_so() -> None:
    (result,) = judge_fields({}, parse_expectations({"loss": "> 0"}, where=WHERE))
    assert result.actual == "absent; the log has no numeric field"


def test_patterns_are_looked_for_in_each_line_with_and_without_its_prefix() -> None:
    patterns = parse_patterns(["^saved", r"rank3.*saved", "absent", "red text"], where="x")
    results = judge_output([b"step 1\n[rank3]: saved 7\n\x1b[31mred\x1b[0m text\n"], patterns)
    assert [(one.ok, one.line) for one in results] == [(True, 2), (True, 2), (False, None), (True, 3)]


def test_reading_ends_with_the_last_pattern_found() -> None:
    def endless() -> object:
        while True:
            yield b"saved\n" * 100_000

    results = judge_output(endless(), parse_patterns(["saved"], where="x"))  # type: ignore[arg-type]
    assert results[0].line == 1


def test_no_pattern_reads_nothing() -> None:
    assert judge_output(["x"], ()) == ()


def test_a_pattern_that_cannot_be_compiled_is_a_problem() -> None:
    with pytest.raises(InputError) as caught:
        parse_patterns(["fine", "(", "*"], where="envsmith.toml: env.rl.smoke[0].expect-output")
    assert [(problem.code, problem.where) for problem in caught.value.problems] == [
        ("expect-output-malformed", "envsmith.toml: env.rl.smoke[0].expect-output[1]"),
        ("expect-output-malformed", "envsmith.toml: env.rl.smoke[0].expect-output[2]"),
    ]


def test_a_secret_in_the_line_found_is_cut() -> None:
    (result,) = judge_output(["from https://me:hunter2@host/x"], parse_patterns(["from"], where="x"))
    assert "hunter2" not in (result.text or "")
