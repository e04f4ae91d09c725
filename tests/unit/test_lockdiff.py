"""Every difference of two locks is said once, with its kind and its size."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from envsmith.lock import Lock, LockedBase, LockedSeries
from envsmith.lockdiff import PARTS, Change, compare, render
from envsmith.target import Target
from tests.unit.test_lock import BUILT, LOCK, PATCHED, RAY, sha, wheel


def changes(new: Lock, old: Lock = LOCK) -> list[Change]:
    return list(compare(old, new).changes)


def only(new: Lock) -> Change:
    (change,) = changes(new)
    return change


def wheels(*there: Any) -> Lock:
    return replace(LOCK, wheels=there)


def test_a_lock_does_not_differ_from_itself() -> None:
    diff = compare(LOCK, LOCK)
    assert (diff.changes, diff.old_bytes) == ((), diff.new_bytes)
    assert render(diff, "a", "b") == "a and b are equal, wheels 0.1 kB"
    assert diff.to_dict()["equal"] is True


OTHER: dict[str, Any] = {
    "stack": "gpu", "env": "sft", "target": Target(python="3.12", arch="x86_64", glibc="2.31"),
    "recipe_digest": sha("other"), "uv": "0.14.0", "exclude_newer": None, "wheels": (), "sources": (), "built": (),
    "patched": (), "build_requires": (), "conflicts": (), "assets": (), "extras": {}, "snapshot": sha("snapshot"),
}  # fmt: skip


OTHER["base"] = (LockedBase(name="torch", version="2.9.0+ppu", protected=True, files=None),)


@pytest.mark.parametrize("name", [field.name for field in fields(Lock)])
def test_every_field_of_a_lock_is_compared(name: str) -> None:
    found = changes(replace(LOCK, **{name: OTHER[name]}))
    assert found
    assert {change.part for change in found} <= PARTS.keys()


def test_versions_go_up_and_down_as_pep_440_orders_them() -> None:
    antlr, _, numpy, ray = LOCK.wheels
    assert only(wheels(antlr, wheel("deepspeed", "0.18.10", 30), numpy, ray)) == Change(
        part="package", kind="up", name="deepspeed", old="0.18.4", new="0.18.10", bytes=20
    )
    assert only(wheels(antlr, wheel("deepspeed", "0.18.4rc1"), numpy, ray)).kind == "down"


def test_packages_that_come_and_go_are_counted_with_their_bytes() -> None:
    antlr, deepspeed, numpy, ray = LOCK.wheels
    new = wheels(antlr, deepspeed, ray, wheel("zstd", "1.5", 7))
    assert [(c.kind, c.name, c.old, c.new, c.bytes) for c in changes(new)] == [
        ("removed", "numpy", "1.26.4", None, -numpy.size),
        ("added", "zstd", None, "1.5", 7),
    ]
    diff = compare(LOCK, new)
    assert diff.new_bytes - diff.old_bytes == 7 - numpy.size


def test_another_wheel_of_the_same_version_is_told_apart() -> None:
    antlr, *rest = LOCK.wheels
    change = only(wheels(replace(antlr, sha256=sha("rebuilt")), *rest))
    assert (change.kind, change.old, change.new) == ("wheel", "1.0", "1.0")
    assert [detail.field for detail in change.details] == ["sha256"]
    assert "another wheel antlr 1.0" in render(compare(LOCK, wheels(replace(antlr, sha256="0" * 64), *rest)), "a", "b")


def test_a_source_says_commit_tree_and_each_patch_by_name_and_digest() -> None:
    verl = LOCK.source("verl")
    (series,) = verl.series
    first, *others = series.patches
    edited = replace(series, patches=(replace(first, sha256=sha("edited")), *others))
    more = LockedSeries(
        path="verl-1bf9d2d/mine.series", layer="research", patches=(replace(first, path="verl/mine.patch"),)
    )
    new = replace(verl, commit="9" * 40, tree="8" * 40, series=(edited, more))
    change = only(replace(LOCK, sources=tuple(new if s.name == "verl" else s for s in LOCK.sources)))
    assert (change.part, change.kind, change.name) == ("source", "changed", "verl")
    said = {detail.field: (detail.old, detail.new) for detail in change.details}
    assert said["commit"] == (verl.commit, "9" * 40)
    assert said["tree"] == (verl.tree, "8" * 40)
    assert said[f"patch {first.path}"] == (first.sha256, sha("edited"))
    assert said["patch verl/mine.patch"] == (None, first.sha256)
    assert "mine.series (research)" in str(said["series"][1])


def test_another_order_of_the_same_patches_is_a_difference() -> None:
    verl = LOCK.source("verl")
    (series,) = verl.series
    twice = replace(series, patches=(*series.patches, replace(series.patches[0], path="verl/second.patch")))
    turned = replace(twice, patches=twice.patches[::-1])
    old, new = (
        replace(LOCK, sources=tuple(replace(s, series=(x,)) if s.name == "verl" else s for s in LOCK.sources))
        for x in (twice, turned)
    )
    (change,) = changes(new, old)
    assert [detail.field for detail in change.details] == ["series"]


def test_patched_and_built_wheels_say_what_they_were_made_from() -> None:
    new = replace(LOCK, patched=(replace(PATCHED, tree="5" * 40),), built=(replace(BUILT, source_date_epoch=1),))
    assert [(c.part, c.name, [d.field for d in c.details]) for c in changes(new)] == [
        ("patched", "ray", ["tree"]),
        ("built", BUILT.name, ["source-date-epoch"]),
    ]


def test_accepted_conflicts_show_their_reasons() -> None:
    (conflict,) = LOCK.conflicts
    gone = only(replace(LOCK, conflicts=()))
    assert (gone.kind, gone.name) == ("removed", "ray: numpy>=2")
    change = only(replace(LOCK, conflicts=(replace(conflict, because="trained with it"),)))
    (detail,) = change.details
    assert (detail.field, detail.old, detail.new) == ("because", "tried", "trained with it")


def test_base_packages_are_compared_by_name() -> None:
    (torch,) = OTHER["base"]
    assert only(replace(LOCK, base=(torch,))).kind == "added"
    old = replace(LOCK, base=(torch,))
    (change,) = changes(replace(LOCK, base=(replace(torch, protected=False),)), old)
    assert [(d.field, d.old, d.new) for d in change.details] == [("protected", "true", "false")]


def test_the_text_groups_by_part_and_says_sizes() -> None:
    new = replace(LOCK, wheels=(*LOCK.wheels[:3], replace(RAY, size=10_000_071)), target=OTHER["target"])
    text = render(compare(LOCK, new), "old", "new")
    assert text.splitlines()[0] == "old -> new: 2 differences; wheels 0.1 kB -> 10.0 MB (+10.0 MB)"
    assert text.splitlines()[2:4] == ["target", "  changed  python 3.11 -> 3.12"]
    assert "+10.0 MB" in text.splitlines()[6]
