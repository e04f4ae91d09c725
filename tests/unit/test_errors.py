"""Errors say the fact, the place and one thing to do; each class has the exit code that scripts rely on."""

from __future__ import annotations

import pytest

from envsmith import errors
from envsmith.errors import EnvsmithError, InputError, Problem


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (Problem(code="a-b", message="it is so"), "error[a-b]: it is so"),
        (Problem(code="a", message="m", where="f:3"), "error[a]: m\n  where: f:3"),
        (Problem(code="a", message="m", hint="do it"), "error[a]: m\n\nhint: do it"),
        (
            Problem(code="a", message="m", where="f", expected="1", actual="2", hint="h"),
            "error[a]: m\n  where:    f\n  expected: 1\n  actual:   2\n\nhint: h",
        ),
        (Problem(code="a", message="m", expected="", actual="2"), "error[a]: m\n  expected: \n  actual:   2"),
    ],
)
def test_a_problem_is_rendered_as_the_design_says(problem: Problem, text: str) -> None:
    assert problem.text() == text


@pytest.mark.parametrize(
    ("expected", "actual", "message"),
    [
        (None, None, "m"),
        ("1", "2", "m (expected: 1, actual: 2)"),
        (None, "2", "m (actual: 2)"),
        ("1", None, "m (expected: 1)"),
        ("", None, "m (expected: )"),
    ],
)
def test_the_envelope_has_four_keys_and_loses_no_value(expected: str | None, actual: str | None, message: str) -> None:
    problem = Problem(code="a", message="m", where="f", hint="h", expected=expected, actual=actual)
    assert problem.to_dict() == {"code": "a", "message": message, "where": "f", "hint": "h"}


def test_an_error_of_many_problems_says_all_of_them() -> None:
    error = InputError(Problem(code="a", message="m"), Problem(code="b", message="n"), log="/l")
    assert str(error) == "error[a]: m\n\nerror[b]: n"
    assert [one.code for one in error.problems] == ["a", "b"]
    assert error.log == "/l"


EXITS = {
    "NegativeAnswer": 1, "InputError": 2, "HostError": 3, "SupplyError": 4, "IntegrityError": 5, "StepError": 6,
    "Bug": 70,
}  # fmt: skip


def test_every_class_has_its_exit_code_and_no_class_is_forgotten() -> None:
    found = {one.__name__: one.exit_code for one in EnvsmithError.__subclasses__() if one.__module__ == errors.__name__}
    assert found == EXITS
    assert EnvsmithError.exit_code == 70


def test_problems_are_values() -> None:
    assert len({Problem(code="a", message="m"), Problem(code="a", message="m")}) == 1
    with pytest.raises(AttributeError):
        Problem(code="a", message="m").code = "b"  # type: ignore[misc]
