"""envsmith.deltaformat and deltaplan: one plan has one form, and what does not add up is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsmith.deltaformat import (
    HEADER_SIZE,
    MAX_PLAN,
    MAX_SEGMENT,
    MAX_WINDOW,
    Base,
    Content,
    Copy,
    DeltaHeader,
    Packing,
    Patch,
    Plan,
    Region,
    Segment,
    parse_header,
    render_header,
)
from envsmith.deltaplan import parse_plan, render_plan
from envsmith.errors import IntegrityError

REGIONS = (Region(start=30, length=100), Region(start=130, length=7), Region(start=200, length=50))
SKELETON = Content(
    base=Base(region=None, inflated=False, size=143),
    size=120,
    segments=(Segment(start=0, window=143, size=120, patch=9),),
)
INFLATED = Content(
    base=Base(region=2, inflated=True, size=400),
    size=700,
    segments=(Segment(start=0, window=300, size=500, patch=20), Segment(start=90, window=310, size=200, patch=1)),
)
STORED = Content(
    base=Base(region=0, inflated=False, size=100),
    size=60,
    segments=(Segment(start=10, window=80, size=60, patch=30),),
)
FRESH = Content(base=None, size=5, segments=(Segment(start=0, window=0, size=5, patch=14),))
EMPTY = Content(base=None, size=0, segments=())
PACKING = Packing(level=6, memory=8, strategy=0)
DEFLATED = Patch(gap=11, content=INFLATED, packing=PACKING, length=222, crc=0xDEADBEEF)
FIRST = Copy(gap=30, region=1)
AS_IS = Patch(gap=12, content=STORED, packing=None, length=60, crc=0)
PLAN = Plan(
    regions=REGIONS,
    skeleton=SKELETON,
    steps=(
        FIRST,
        DEFLATED,
        Copy(gap=0, region=0),
        AS_IS,
        Patch(gap=0, content=FRESH, packing=None, length=5, crc=0),
        Patch(gap=0, content=EMPTY, packing=replace(PACKING, level=9), length=2, crc=1),
        Copy(gap=5, region=1),
    ),
)
HEADER = DeltaHeader(
    base_sha256="ab" * 32,
    base_size=300,
    result_sha256="cd" * 32,
    result_size=120 + 7 + 222 + 100 + 60 + 5 + 2 + 7,
    copied=3,
    patched=3,
    literal=1,
    plan_packed=50,
    plan_size=len(render_plan(PLAN)),
    body_size=9 + 21 + 30 + 14,
)


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(IntegrityError) as error:
        call()
    (problem,) = error.value.problems
    assert problem.code == "delta-malformed"
    assert problem.where == "x.delta"
    return problem.message


def test_a_header_and_a_plan_come_back_as_they_were_written() -> None:
    data = render_header(HEADER)
    assert len(data) == HEADER_SIZE
    assert parse_header(data, HEADER.delta_size, "x.delta") == HEADER
    assert parse_plan(render_plan(PLAN), HEADER, "x.delta") == PLAN


def test_a_header_of_another_version_or_cut_off_or_of_another_size_is_refused() -> None:
    data = render_header(HEADER)
    assert "version" in refused(
        lambda: parse_header(data.replace(b"delta 1", b"delta 2"), HEADER.delta_size, "x.delta")
    )
    refused(lambda: parse_header(data[:-1], HEADER.delta_size, "x.delta"))
    refused(lambda: parse_header(b"", 0, "x.delta"))
    refused(lambda: parse_header(data, HEADER.delta_size + 1, "x.delta"))


def test_a_header_that_asks_for_a_huge_plan_is_refused() -> None:
    data = render_header(replace(HEADER, plan_size=MAX_PLAN + 1))
    assert "out of range" in refused(lambda: parse_header(data, HEADER.delta_size, "x.delta"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"base_size": 249},
        {"base_size": 0},
        {"result_size": HEADER.result_size + 1},
        {"copied": 2},
        {"literal": 0},
        {"body_size": HEADER.body_size - 1},
    ],
    ids=str,
)
def test_a_plan_that_does_not_fit_its_header_is_refused(wrong: dict[str, Any]) -> None:
    refused(lambda: parse_plan(render_plan(PLAN), replace(HEADER, **wrong), "x.delta"))


def with_segment(**changes: int) -> Plan:
    content = replace(STORED, segments=(replace(STORED.segments[0], **changes),))
    return replace(PLAN, steps=(*PLAN.steps[:3], replace(AS_IS, content=content), *PLAN.steps[4:]))


@pytest.mark.parametrize(
    "plan",
    [
        replace(PLAN, steps=(replace(FIRST, region=3), *PLAN.steps[1:])),
        replace(PLAN, steps=(replace(FIRST, gap=121), *PLAN.steps[1:])),
        replace(PLAN, regions=(*REGIONS[:2], Region(start=200, length=101))),
        replace(PLAN, regions=(*REGIONS[:2], Region(start=200, length=0))),
        replace(PLAN, steps=(FIRST, replace(DEFLATED, packing=replace(PACKING, level=10)), *PLAN.steps[2:])),
        replace(PLAN, steps=(FIRST, replace(DEFLATED, packing=replace(PACKING, memory=0)), *PLAN.steps[2:])),
        replace(PLAN, steps=(FIRST, replace(DEFLATED, packing=replace(PACKING, strategy=5)), *PLAN.steps[2:])),
        replace(PLAN, steps=(FIRST, replace(DEFLATED, crc=1 << 32), *PLAN.steps[2:])),
        with_segment(start=20, window=MAX_WINDOW),
        with_segment(start=101, window=-1),
        replace(PLAN, skeleton=replace(SKELETON, size=MAX_SEGMENT + 1)),
        replace(PLAN, skeleton=replace(SKELETON, segments=())),
        replace(PLAN, skeleton=replace(SKELETON, base=Base(region=2, inflated=True, size=1 << 40))),
    ],
    ids=range(13),
)
def test_a_plan_with_a_number_out_of_range_is_refused(plan: Plan) -> None:
    try:
        data = render_plan(plan)
    except ValueError:  # a negative number has no form at all
        return
    refused(lambda: parse_plan(data, HEADER, "x.delta"))


@given(st.data())
def test_damaged_plans_are_refused_or_are_the_one_form_of_another_plan(data: st.DataObject) -> None:
    plan = bytearray(render_plan(PLAN))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(0, len(plan) - 1)))
        kind = data.draw(st.sampled_from(["set", "cut", "grow", "end"]))
        if kind == "set" and plan:
            plan[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del plan[at : at + 1]
        elif kind == "grow":
            plan.insert(at, data.draw(st.integers(0, 255)))
        else:
            del plan[at:]
    try:
        parsed = parse_plan(bytes(plan), HEADER, "x.delta")
    except IntegrityError as error:
        assert error.problems[0].code == "delta-malformed"
    else:
        assert render_plan(parsed) == bytes(plan)


@given(st.binary(max_size=200))
def test_noise_is_no_plan(noise: bytes) -> None:
    refused(lambda: parse_plan(noise, HEADER, "x.delta"))


def test_a_number_written_longer_than_needed_is_refused() -> None:
    data = render_plan(PLAN)
    assert data[0] == 3
    assert "longer than needed" in refused(lambda: parse_plan(b"\x83\x00" + data[1:], HEADER, "x.delta"))
    assert "out of range" in refused(lambda: parse_plan(b"\xff" * 11 + data, HEADER, "x.delta"))
    assert "within a number" in refused(lambda: parse_plan(data + b"\x80", HEADER, "x.delta"))
    assert "longer than its counts" in refused(lambda: parse_plan(data + b"\x00", HEADER, "x.delta"))
