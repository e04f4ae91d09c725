"""envsmith.keeping: whatever something in use names is kept, with a reason; what cannot be told is kept too."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envsmith.errors import InputError
from envsmith.keeping import (
    ASIDE,
    BLOB,
    BUNDLE,
    GRACE_S,
    HELD,
    KINDS,
    LEFTOVER,
    MIRROR,
    NAMED,
    NOTE,
    PARTIAL,
    RECENT,
    SOURCE,
    UNSURE,
    Claim,
    Item,
    digests_in,
    judge,
    named_by_lock,
    reasons,
    totals,
)
from envsmith.lock import digest, render
from tests.unit.test_lock import LOCK

OLD = 2 * GRACE_S
COMMIT = "1" * 40


def item(kind: str, key: str, *, age_s: float = OLD, size: int = 10, names: tuple[str, ...] = ()) -> Item:
    return Item(kind=kind, path=f"{kind}/{key}", size_bytes=size, age_s=age_s, key=key, names=frozenset(names))


def claim(label: str, *names: str, lock: str = "") -> Claim:
    return Claim(label=label, names=frozenset(names), locks=frozenset(filter(None, [lock])))


def kept(items: list[Item], *claims: Claim, unsure: frozenset[str] = frozenset()) -> dict[str, tuple[str, ...]]:
    return {row.item.path: row.kept_by for row in judge(items, claims, unsure=unsure)}


# --- what a lock names ---


def test_a_lock_names_wheels_originals_sdists_build_requirements_built_wheels_assets_and_commits() -> None:
    named = named_by_lock(render(LOCK), "x")
    files = {file.sha256 for _, file in LOCK.downloads()} | {wheel.sha256 for wheel in LOCK.wheels}
    files |= {source.wheel.sha256 for source in LOCK.sources if source.wheel}
    files |= {asset.sha256 for asset in LOCK.assets}
    assert files <= named.digests
    assert named.commits == {COMMIT}


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.8, 0.97])
def test_a_lock_that_was_cut_off_is_no_list_of_what_is_in_use(cut: float) -> None:
    text = render(LOCK)
    with pytest.raises(InputError):
        named_by_lock(text[: int(len(text) * cut)], "x")


def test_a_lock_of_another_tool_is_read_for_its_digests() -> None:
    text = f'lock-version = "1.0"\ncreated-by = "uv"\n[[packages]]\nname = "a"\nsdist.hashes.sha256 = "{digest("a")}"\n'
    assert named_by_lock(text, "x").digests == {digest("a")}
    with pytest.raises(InputError):
        named_by_lock(text.replace('"uv"', '"envsmith"'), "x")


@pytest.mark.parametrize("text", ["f" * 63, "f" * 65, "F" * 64, f"{'f' * 64}0"])
def test_what_is_no_digest_names_nothing(text: str) -> None:
    assert digests_in(text) == frozenset()


# --- who keeps what ---


def test_a_blob_is_kept_by_everyone_who_names_it_and_by_nobody_else() -> None:
    found = kept([item(BLOB, "a"), item(BLOB, "b")], claim("env x", "a"), claim("lock y", "a"), claim("lock z", "c"))
    assert found == {"blob/a": ("env x", "lock y"), "blob/b": ()}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_young_or_held_stays_and_what_is_neither_goes(kind: str) -> None:
    young = item(kind, "young", age_s=GRACE_S - 1)
    held = replace(item(kind, "held"), held=True)
    found = kept([young, held, item(kind, "old")])
    assert found == {f"{kind}/young": (RECENT,), f"{kind}/held": (HELD,), f"{kind}/old": ()}


@pytest.mark.parametrize("kind", KINDS)
def test_in_doubt_all_that_a_record_may_name_stays(kind: str) -> None:
    (reason,) = kept([item(kind, "a")], unsure=NAMED).values()
    assert reason == ((UNSURE,) if kind in (BLOB, SOURCE, BUNDLE, MIRROR, NOTE) else ())


def test_an_imported_bundle_is_in_use_with_all_its_blobs_while_one_of_its_locks_is() -> None:
    bundle = item(BUNDLE, "m" * 64, names=("lock", "wheel", COMMIT))
    items = [bundle, item(BLOB, "wheel"), item(BLOB, "m" * 64), item(SOURCE, COMMIT, names=("git",)), item(BLOB, "git")]
    used = kept(items, claim("env x", lock="lock"))
    assert used[bundle.path] == ("env x",)
    assert all(used[one.path] == (f"bundle {'m' * 12}",) for one in items[1:])
    assert set(kept(items, claim("env x", lock="other")).values()) == {()}


def test_a_young_bundle_keeps_its_old_blobs() -> None:
    found = kept([item(BUNDLE, "b", age_s=1, names=("wheel",)), item(BLOB, "wheel")])
    assert found == {"bundle/b": (RECENT,), "blob/wheel": ("bundle b",)}


def test_a_source_bundle_is_kept_through_the_commit_that_a_lock_names() -> None:
    items = [item(SOURCE, COMMIT, names=("git",)), item(BLOB, "git")]
    assert set(kept(items, claim("env x", COMMIT)).values()) == {("env x",)}
    assert set(kept(items, claim("env x", "2" * 40)).values()) == {()}


def test_a_mirror_is_kept_by_a_recipe_with_its_address_or_a_lock_with_a_commit_that_it_holds() -> None:
    mirror = item(MIRROR, "hash", names=(COMMIT,))
    assert kept([mirror], claim("recipe", "hash"))[mirror.path] == ("recipe",)
    assert kept([mirror], claim("env", COMMIT))[mirror.path] == ("env",)
    assert kept([mirror], claim("env", "2" * 40))[mirror.path] == ()


def test_a_note_goes_with_its_blob() -> None:
    items = [item(BLOB, "a"), item(NOTE, "a"), item(NOTE, "b"), item(NOTE, "c")]
    found = kept(items, claim("env", "a"), claim("lock", "c"))
    assert found == {"blob/a": ("env",), "note/a": ("env",), "note/b": (), "note/c": ("lock",)}


def test_sums_say_what_would_be_freed_without_each_reason() -> None:
    items = [item(BLOB, "a", size=1), item(BLOB, "b", size=2), item(BLOB, "c", size=4), item(ASIDE, "d", size=8)]
    claims = (claim("env", "a", "b"), claim("lock", "b"), claim("empty"))
    rows = judge(items, claims)
    found = {one.label: (one.count, one.size_bytes, one.alone_bytes) for one in reasons(rows, claims)}
    assert found == {"env": (2, 3, 1), "lock": (1, 2, 0), "empty": (0, 0, 0)}
    total = totals(rows)
    assert (total[BLOB].count, total[BLOB].size_bytes, total[BLOB].free_count, total[BLOB].free_bytes) == (3, 7, 1, 4)
    assert (total[ASIDE].free_bytes, total[PARTIAL].count, total[LEFTOVER].count) == (8, 0, 0)
