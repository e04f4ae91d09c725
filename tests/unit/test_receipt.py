"""A receipt is read as it was written, or refused as an alarm."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from envsmith.errors import IntegrityError
from envsmith.launch import LaunchTable
from envsmith.receipt import VARIABLE, Receipt, parse

VERIFY = {
    "imports": ["ray"], "attributes": [], "launchers": ["ray"], "contexts": ["launched"], "single-instance": [],
    "allow-outside": [], "allow-changed": [], "editable": {"verl": ["src/verl"]},
    "base-hooks": {"/base/a.pth": "a" * 64}, "base": None, "compute-capability": ["8.0"],
}  # fmt: skip
RECEIPT = Receipt(
    stack="a100",
    env="rl",
    fingerprint="0123456789ab" * 5 + "0123",
    lock_sha256="a" * 64,
    recipe="b" * 64,
    python="3.11.7",
    python_path="/opt/python/bin/python3.11",
    python_sha256="c" * 64,
    python_record="9" * 64,
    uv="0.13.9",
    envsmith="0.1.0",
    manifest="d" * 64,
    portable="e" * 64,
    trees={"verl": "1" * 40},
    series={"verl": ("f" * 64, "0" * 64), "ray": ()},
    tree_steps={"verl": ("2" * 40, "1" * 40)},
    gitlinks={"verl": {"recipe": "3" * 40}},
    launch=LaunchTable(set={"GRÜSSE": "你好"}).to_dict(),
    verify=VERIFY,
    steps=("create the environment", "write the receipt"),
    root="/envs",
    log="/envs/a100-rl/0123456789ab.log",
    built_at="2026-11-29T10:00:00Z",
    seconds={"sync": 1.5},
)


def test_what_is_written_is_read_back() -> None:
    assert parse(RECEIPT.to_json(), "x") == RECEIPT
    assert parse(RECEIPT.to_json(), "x").to_json() == RECEIPT.to_json()


def test_a_receipt_of_before_the_record_of_interpreters_is_still_read() -> None:
    data = json.loads(RECEIPT.to_json())
    del data["python-record"], data["gitlinks"], data["verify"]["compute-capability"], data["verify"]["base"]
    old = parse(json.dumps(data), "x")
    assert (old.python_record, old.gitlinks, old.verify["compute-capability"]) == ("", {}, [])
    assert old.verify["base"] is None


def test_keys_are_sorted_and_in_the_style_of_our_files() -> None:
    data = json.loads(RECEIPT.to_json())
    assert list(data) == sorted(data)
    assert data["envsmith-receipt"] == 1
    assert not [key for key in data if "_" in key]
    assert RECEIPT.to_json().endswith("}\n")


def test_names_of_sources_and_variables_are_not_rewritten() -> None:
    odd = replace(RECEIPT, trees={"my_source": "1" * 40}, launch={**RECEIPT.launch, "set": {"A_B": "1"}})
    assert parse(odd.to_json(), "x") == odd


def test_equal_builds_differ_only_where_they_may() -> None:
    other = replace(
        RECEIPT, built_at="2027-01-01T00:00:00Z", seconds={"sync": 9.0}, log="/other.log", root="/other",
        python_path="/other/python", python_record="8" * 64, manifest="9" * 64,
        verify={**RECEIPT.verify, "base-hooks": {"/other/b.pth": "b" * 64}},
    )  # fmt: skip
    one, two = json.loads(RECEIPT.to_json()), json.loads(other.to_json())
    assert {key for key in one if one[key] != two[key]} == set(VARIABLE)


BROKEN: dict[str, str] = {
    "nothing": "",
    "half of it": RECEIPT.to_json()[:200],
    "a list": "[]",
    "a number": "3",
    "null": "null",
    "an empty table": "{}",
    "too deep": "[" * 100_000,
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_what_is_no_receipt_is_an_alarm(text: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        parse(text, "/envs/a/envsmith.json")
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("receipt-malformed", "/envs/a/envsmith.json")
    assert "envsmith build --rebuild" in (problem.hint or "")


def changed(**values: Any) -> str:
    data = json.loads(RECEIPT.to_json())
    data |= {key.replace("_", "-"): value for key, value in values.items()}
    return json.dumps({key: value for key, value in data.items() if value is not ...})


@pytest.mark.parametrize(
    "values",
    [
        {"envsmith-receipt": 2},
        {"envsmith-receipt": ...},
        {"stack": ...},
        {"stack": 3},
        {"log": None},
        {"lock_sha256": ["a"]},
        {"trees": "abc"},
        {"trees": None},
        {"series": ["a"]},
        {"series": {"a": 3}},
        {"tree_steps": ...},
        {"steps": 3},
        {"launch": []},
        {"seconds": "1"},
        {"seconds": ...},
        {"seconds": {"sync": "long"}},
        {"series": {"verl": "abc"}},
        {"steps": [1]},
        {"launch": {**RECEIPT.launch, "set": {"A": 1}}},
        {"launch": {"unset": []}},
        {"verify": {**VERIFY, "imports": "ray"}},
        {"verify": {**VERIFY, "editable": {"verl": "src"}}},
        {"verify": {}},
        {"more": 1},
    ],
    ids=lambda values: "-".join(values),
)
def test_one_wrong_value_is_an_alarm(values: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError) as caught:
        parse(changed(**values), "x")
    assert caught.value.problems[0].code == "receipt-malformed"
