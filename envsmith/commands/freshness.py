"""Whether a lock still says what its recipe and patches say; asked without network and without writing."""

from __future__ import annotations

import shlex

from packaging.utils import canonicalize_name

from envsmith.commands.envs import shown
from envsmith.commands.patchfiles import read_patches
from envsmith.commands.snapshots import read_snapshot
from envsmith.commands.workspace import Workspace, read_lock
from envsmith.errors import Problem
from envsmith.lock import Lock, LockedSeries


def staleness(workspace: Workspace, env: str) -> Problem | None:
    """Say what makes the lock of an env missing or stale, or None when it is fresh.

    Raises:
        InputError: the lock or a patch cannot be read at all.
    """
    path = workspace.lock_path(env)
    present = read_lock(workspace, env)
    hint = f"run `envsmith lock {shlex.quote(workspace.named or workspace.stack.stack.name)} --env {env}`"
    if present is None:
        return Problem(code="lock-missing", message=f"the env `{env}` has no lock yet", where=shown(path), hint=hint)
    lock = present[0]
    expected, actual = workspace.stack.recipe_digest(env), lock.recipe_digest
    if expected != actual:
        return Problem(
            code="lock-stale",
            message="the recipe has changed since the lock was made",
            where=shown(path),
            expected=f"recipe {expected[:12]}",
            actual=f"recipe {actual[:12]}",
            hint=hint,
        )
    if (lock.stack, lock.env) != (workspace.stack.stack.name, env):
        return Problem(
            code="lock-stale",
            message=f"the lock was made for `{lock.stack}/{lock.env}`",
            where=shown(path),
            hint=hint,
        )
    recipe_env = workspace.stack.env[env]
    named = (set(recipe_env.source), {str(canonicalize_name(name)) for name in recipe_env.patch})
    if named != ({source.name for source in lock.sources}, {wheel.name for wheel in lock.patched}):
        return Problem(
            code="lock-stale",
            message="the lock names other sources or patched wheels than the recipe",
            where=shown(path),
            hint=hint,
        )
    snapshot = read_snapshot(workspace, env)
    if (snapshot.digest() if snapshot else None) != lock.snapshot:
        return Problem(
            code="lock-stale",
            message="the snapshot of the base has changed since the lock was made",
            where=shown(path),
            hint=hint,
        )
    changed = _changed_patches(workspace, env, lock)
    if changed:
        return Problem(
            code="lock-stale",
            message=f"a patch has changed since the lock was made: `{changed[0]}`",
            where=shown(workspace.patches / changed[0]),
            hint=hint,
        )
    return None


def _changed_patches(workspace: Workspace, env: str, lock: Lock) -> list[str]:
    recipe = workspace.stack.env[env]
    changed: list[str] = []
    for name, source in recipe.source.items():
        now = read_patches(workspace.patches, source.series, source.base).series
        changed += _differing(lock.source(name).series, now)
    for raw, table in recipe.patch.items():
        name = str(canonicalize_name(raw))
        locked = next(wheel for wheel in lock.patched if wheel.name == name)
        version = locked.original_version
        now = read_patches(workspace.patches, table.series, f"{name}=={version}").series
        changed += _differing(locked.series, now)
    return changed


def _differing(locked: tuple[LockedSeries, ...], now: tuple[LockedSeries, ...]) -> list[str]:
    before = {patch.path: patch.sha256 for series in locked for patch in series.patches}
    after = {patch.path: patch.sha256 for series in now for patch in series.patches}
    differing = [path for path in sorted(before.keys() | after.keys()) if before.get(path) != after.get(path)]
    if not differing and [s.patches for s in locked] != [s.patches for s in now]:
        return [series.path for series in now][:1]  # same patches, other order
    return differing
