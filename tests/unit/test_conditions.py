"""The small language of the table of symptoms."""

from __future__ import annotations

import pytest

from envsmith.conditions import derived, filled, holds, parse_condition, parse_derived, sentences

NAMES = {"found": "11040", "host.driver": "470.82.01", "lock.torch": "2.10.0+cu128", "rank": 3, "path": "/a/b", "e": ""}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("found < 12000", True),
        ("found >= 12000", False),
        ("host.driver < 525.60.13", True),
        ("host.driver >= 470.82", True),
        ("lock.torch >= 2.10", True),
        ("lock.torch == '2.10.0+cu128'", True),
        ("lock.torch matches 'cu1[23]'", True),
        ("lock.torch matches 'rocm'", False),
        ("rank == 3", True),
        ("rank != 3", False),
        ("path == '/a/b'", True),
        ("path == path", True),
        ("found known", True),
        ("found unknown", False),
        ("host.glibc known", False),
        ("host.glibc unknown", True),
        ("host.glibc < 2.17", None),
        ("path < 3", None),
        ("e == ''", True),
        ("2.17 < 2.9", False),
    ],
)
def test_a_condition_holds_or_not_or_is_unknown(text: str, answer: bool | None) -> None:
    assert holds(parse_condition(text), NAMES) is answer


@pytest.mark.parametrize(
    "text", ["", "found", "found <", "found ~ 3", "found < 3 and x", "a matches '('", "known found"]
)
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(Exception, match=r"no condition|unterminated|missing"):
        parse_condition(text)


def test_a_sentence_whose_place_has_no_value_is_left_out() -> None:
    assert filled("rank {rank}", NAMES) == "rank 3"
    assert filled("glibc {host.glibc}", NAMES) is None
    assert sentences(["It took {rank}.", "It took {rank} of 8."], NAMES) == ("It took 3 of 8.",)
    assert sentences(["always", "on {host.driver}", "and {nothing}"], NAMES) == ("always", "on 470.82.01")


@pytest.mark.parametrize(
    ("call", "value", "made"),
    [
        ("length(x)", "äb", 3),
        ("cuda-version(x)", "11040", "11.4"),
        ("cuda-version(x)", "x", None),
        ("major(x)", "cu128", "128"),
        ("minor(x)", "12.8.1", "12.8"),
        ("basename(x)", "/a/b.so", "b.so"),
        ("folder(x)", "/a/b.so", "/a"),
        ("soname-major(x)", "libarrow.so.2500", "25"),
        ("soname-major(x)", "libarrow.so", None),
        ("dotted(x)", "_12_4", "12.4"),
        ("capability(x)", "sm_120", "12.0"),
        ("capability(x)", "sm", None),
        ("gib(x)", "1073741824", "1.0"),
        ("gib(x)", "x", None),
        ("kib(x)", "49152", "48"),
        ("distribution(x)", "flash_attn.bert", "flash-attn"),
    ],
)
def test_values_are_made_of_captured_ones(call: str, value: str, made: object) -> None:
    assert derived({"y": parse_derived(call)}, {"x": value}).get("y") == made
    assert "y" not in derived({"y": parse_derived(call)}, {})


@pytest.mark.parametrize("text", ["length", "length()", "shout(x)", "length(x) "])
def test_an_unknown_function_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        parse_derived(text)
