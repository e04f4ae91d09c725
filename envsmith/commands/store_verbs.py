"""`envsmith store list` and `store gc`: what the store keeps and for whom; freeing what nothing in use names.

Nothing is freed that a readable record names, that is young, that a running process holds, or that cannot be told.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from envsmith.commands.envs import shown
from envsmith.commands.result import Result
from envsmith.commands.screen import Screen
from envsmith.commands.siblings import Siblings
from envsmith.commands.store_claims import Claims, find_claims
from envsmith.commands.supplies import Supplies
from envsmith.errors import EnvsmithError, Problem, StepError
from envsmith.keeping import (
    BLOB,
    BUNDLE,
    GRACE_S,
    KINDS,
    MIRROR,
    NAMED,
    NOTE,
    PARTIAL,
    SOURCE,
    Item,
    Row,
    Total,
    judge,
    reasons,
    to_dict,
    totals,
)
from envsmith.plan import megabytes
from envsmith.tools.process import without_secrets
from envsmith.tools.settings import Settings
from envsmith.tools.store import Store, open_store
from envsmith.tools.storeusage import (
    Unpacked,
    cache_bytes,
    collecting,
    discard,
    forget,
    in_use,
    survey,
    unpacked,
)
from envsmith.tools.uv import Uv

#: What names others goes before what it names: a killed collection leaves no index that leads nowhere.
_ORDER = (BUNDLE, SOURCE, *(kind for kind in KINDS if kind not in (BUNDLE, SOURCE)))
_PRUNE_TIMEOUT_S = 3600.0
_UV = "unpacked wheels in uv's cache"
_WIDTH = 54


@dataclass(frozen=True, kw_only=True, slots=True)
class _View:
    """A store as it was judged."""

    store: Store
    claims: Claims
    rows: tuple[Row, ...]
    stale: tuple[Unpacked, ...]
    """What uv has unpacked from wheels that the store does not keep."""
    warnings: tuple[Problem, ...]
    unsure: frozenset[str]
    """Kinds of which nothing may go."""

    @property
    def free(self) -> tuple[Row, ...]:
        """What nobody keeps, in the order in which it may go."""
        loose = (row for row in self.rows if not row.kept_by)
        return tuple(sorted(loose, key=lambda row: _ORDER.index(row.item.kind)))


@dataclass(kw_only=True)
class _Freed:
    """What went, or would go."""

    kinds: dict[str, Total] = field(default_factory=dict)
    uv_count: int = 0
    uv_bytes: int = 0
    errors: tuple[Problem, ...] = ()
    exit_code: int = 0

    @property
    def count(self) -> int:
        """Files and folders, unpacked wheels among them."""
        return self.uv_count + sum(total.free_count for total in self.kinds.values())

    @property
    def size_bytes(self) -> int:
        """All together."""
        return self.uv_bytes + sum(total.free_bytes for total in self.kinds.values())


def list_store(*, environ: Mapping[str, str], screen: Screen) -> Result:
    """Say what the store holds and who keeps it; nothing is written."""
    store = open_store(environ)
    view = _look(store, environ, GRACE_S, waited_for=in_use(store))
    _warn(view, screen)
    uv_bytes = cache_bytes(_cache(view.store))
    blobs = [row for row in view.rows if row.item.kind == BLOB]
    data = {
        **_data(view),
        "blobs": [to_dict(row, view.store.facts(row.item.key).get("name")) for row in blobs],
        "others": [
            {"kind": row.item.kind, "path": row.item.path, "size": row.item.size_bytes, "kept_by": list(row.kept_by)}
            for row in view.rows
            if row.item.kind != BLOB
        ],
        "uv_cache_bytes": uv_bytes,
    }
    return Result(command="store list", data=data, text=_listing(view, uv_bytes))


def collect(*, dry_run: bool, keep_days: float | None, environ: Mapping[str, str], screen: Screen) -> Result:
    """Free what nothing in use names, or say what that would be.

    `keep_days` keeps whatever is younger, instead of an hour.
    """
    store = open_store(environ)
    grace_s = max(GRACE_S, (keep_days or 0) * 86400)
    if dry_run or not store.home.is_dir():
        # Runs that hold the store's lock are no doubt: a collection would wait for them.
        view = _look(store, environ, grace_s, waited_for=in_use(store))
        _warn(view, screen)
        freed = _Freed(
            kinds=totals(view.rows),
            uv_count=len(view.stale),
            uv_bytes=sum(wheel.size_bytes for wheel in view.stale),
        )
        return _answer(view, freed, dry_run=dry_run)
    with collecting(store, screen.message):
        view = _look(store, environ, grace_s, waited_for=False)
        _warn(view, screen)
        freed = _free(view, _supplies(store, environ, screen))
    return _answer(view, freed, dry_run=False)


def _look(store: Store, environ: Mapping[str, str], grace_s: float, *, waited_for: bool) -> _View:
    claims = find_claims(store, environ)
    seen = survey(store, time.time())
    busy = [] if waited_for else [_busy(store.home / path) for path in seen.busy]
    items = [_with_commits(item, store, claims) if item.kind == MIRROR else item for item in seen.items]
    unsure = {*claims.unsure, *(NAMED if seen.unread or busy else ()), *((PARTIAL,) if busy else ())}
    rows = judge(items, claims.found, unsure=frozenset(unsure), grace_s=grace_s)
    kept = {row.item.key for row in rows if row.item.kind == BLOB and row.kept_by}
    stale = () if BLOB in unsure else tuple(w for w in unpacked(_cache(store)) if w.sha256 not in kept)
    warnings = (*claims.unread, *seen.unread, *seen.foreign, *busy)
    return _View(store=store, claims=claims, rows=rows, stale=stale, warnings=warnings, unsure=frozenset(unsure))


def _cache(store: Store) -> Path:
    return store.home / "uv"


def _busy(work: Path) -> Problem:
    return Problem(
        code="store-busy",
        message="a run that does not hold the store's lock is at work",
        where=str(work),
        hint="collect again when it has ended; until then nothing goes that it might use",
    )


def _with_commits(item: Item, store: Store, claims: Claims) -> Item:
    """Note which of the commits in use a mirror holds: a lock does not say where a commit came from."""
    from envsmith.tools.git import holds

    try:
        held = frozenset(commit for commit in sorted(claims.commits) if holds(store.home / item.path, commit))
    except EnvsmithError:
        claims.doubt(store.home / item.path, "git cannot read a mirror", frozenset({MIRROR}))
        return item
    return replace(item, names=held)


def _free(view: _View, supplies: Supplies) -> _Freed:
    loose = view.free
    if loose:
        with supplies.work("collected") as work:
            for row in loose:
                supplies.screen.detail(f"remove {row.item.path}")
                discard(view.store, row.item, work)
    freed = _Freed(kinds=totals(loose))
    cache = supplies.uv.cache
    if BLOB in view.unsure or not cache.is_dir() or cache.is_symlink():
        return freed
    before = cache_bytes(cache)
    try:
        with Siblings(supplies, supplies.environ):
            for wheel in view.stale:
                forget(wheel)
            _prune(supplies.uv)
    except EnvsmithError as error:
        freed.errors, freed.exit_code = error.problems, error.exit_code
    freed.uv_count = sum(not wheel.archive.exists() for wheel in view.stale)
    freed.uv_bytes = max(0, before - cache_bytes(cache))
    return freed


def _prune(uv: Uv) -> None:
    done = uv.call("cache", "prune", cwd=uv.cache.parent, timeout_s=_PRUNE_TIMEOUT_S, offline=True)
    if done.returncode != 0:
        said = without_secrets(done.tail(12))
        raise StepError(Problem(code="uv-failed", message="uv could not prune its cache", actual=said))


def _supplies(store: Store, environ: Mapping[str, str], screen: Screen) -> Supplies:
    """Nothing is fetched here, so no setting can be wrong."""
    return Supplies(
        environ=environ,
        settings=Settings(),
        store=store,
        uv=Uv(cache=_cache(store), environ=environ),
        screen=screen,
        offline=True,
        sources={},
    )


def _warn(view: _View, screen: Screen) -> None:
    for warning in view.warnings:
        screen.say(f"warning[{warning.code}]: {warning.message} ({warning.where})")


# --- what is said ---


def _data(view: _View) -> dict[str, Any]:
    named = [row for row in view.rows if row.item.kind != NOTE]
    return {
        "home": str(view.store.home),
        "reasons": [asdict(reason) for reason in reasons(named, view.claims.found)],
        "kinds": {kind: asdict(total) for kind, total in totals(view.rows).items()},
        "gone_envs": view.claims.gone,
        "warnings": [warning.to_dict() for warning in view.warnings],
    }


def _answer(view: _View, freed: _Freed, *, dry_run: bool) -> Result:
    kinds = {
        kind: {"count": total.free_count, "bytes": total.free_bytes}
        for kind, total in freed.kinds.items()
        if total.free_count
    }
    data = {
        **_data(view),
        "dry_run": dry_run,
        "freed": {**kinds, "uv": {"count": freed.uv_count, "bytes": freed.uv_bytes}},
        "freed_count": freed.count,
        "freed_bytes": freed.size_bytes,
    }
    text = _table(view, freed, dry_run=dry_run)
    return Result(command="store gc", data=data, text=text, exit_code=freed.exit_code, errors=freed.errors)


def _table(view: _View, freed: _Freed, *, dry_run: bool) -> str:
    loose = [(KINDS[kind], total.free_count, total.free_bytes) for kind, total in freed.kinds.items()]
    lines = [_line(*row) for row in (*loose, (_UV, freed.uv_count, freed.uv_bytes)) if row[1] or row[2]]
    held = [row for row in view.rows if row.kept_by]
    said = "would be freed" if dry_run else "freed"
    lines.append(_line(said, freed.count, freed.size_bytes) if lines else "nothing to collect")
    lines.append(_line("kept", len(held), _size(held)))
    return "\n".join([shown(view.store.home), "", *lines])


def _listing(view: _View, uv_bytes: int) -> str:
    named = [row for row in view.rows if row.item.kind != NOTE]
    keepers = [one for one in reasons(named, view.claims.found) if one.count or one.label.startswith("env ")]
    loose = [row for row in named if not row.kept_by]
    width = max(_WIDTH, *(len(reason.label) for reason in keepers)) if keepers else _WIDTH
    lines = [f"{'kept for':<{width}} {'count':>7} {'size':>10} {'alone':>10}"]
    lines += [_line(one.label, one.count, one.size_bytes, width, one.alone_bytes) for one in keepers]
    lines.append(_line("nobody: `envsmith store gc` frees it", len(loose), _size(loose), width, _size(loose)))
    lines += ["", f"{'what it is':<{width}} {'count':>7} {'size':>10}"]
    kinds = totals(view.rows).items()
    lines += [_line(KINDS[kind], total.count, total.size_bytes, width) for kind, total in kinds if total.count]
    lines.append(f"{_UV + ', less what envs share':<{width}} {'':>7} {megabytes(uv_bytes):>10}")
    return "\n".join([shown(view.store.home), "", *lines])


def _size(rows: Iterable[Row]) -> int:
    return sum(row.item.size_bytes for row in rows)


def _line(words: str, count: int, size: int, width: int = _WIDTH, alone: int | None = None) -> str:
    more = "" if alone is None else f" {megabytes(alone):>10}"
    return f"{words:<{width}} {count:>7} {megabytes(size):>10}{more}"
