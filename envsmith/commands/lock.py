"""`envsmith lock`: make the locks of a stack, or say whether they agree with their recipe."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.utils import canonicalize_name

from envsmith.commands.envs import shown
from envsmith.commands.freshness import staleness
from envsmith.commands.locking import Locked, Locker
from envsmith.commands.result import Result
from envsmith.commands.screen import Screen
from envsmith.commands.supplies import Supplies, open_supplies, require_git_sources
from envsmith.commands.workspace import Workspace, open_stack, read_lock
from envsmith.conflicts import suggest
from envsmith.errors import EnvsmithError, InputError, Problem
from envsmith.lock import Lock, render
from envsmith.plan import megabytes
from envsmith.tools.files import write_atomic
from envsmith.tools.storeusage import using


def run(
    stack: str,
    *,
    envs: tuple[str, ...],
    upgrade: bool,
    packages: tuple[str, ...],
    sources: tuple[str, ...],
    suggest_accept: bool,
    check_only: bool,
    offline: bool,
    environ: Mapping[str, str],
    screen: Screen,
) -> Result:
    """Make or check the locks of a stack."""
    workspace = open_stack(stack)
    chosen = tuple(name for name, _ in workspace.envs(envs))
    if check_only and (upgrade or packages or suggest_accept):
        raise InputError(
            Problem(
                code="usage",
                message="`--check` only looks: it cannot be combined with options that change a lock",
                hint="leave one of them out",
            )
        )
    if check_only:
        return _check(workspace, chosen)
    supplies = open_supplies(environ, stacks=workspace.path.parent, screen=screen, offline=offline, sources=sources)
    known = {source: table for name in chosen for source, table in workspace.stack.env[name].source.items()}
    require_git_sources(supplies.sources, known, shown(workspace.path))
    rows = []
    suggestions = []
    problems: list[Problem] = []
    exit_code = 0
    with using(supplies.store, screen.message):
        for name in chosen:
            forget = None if upgrade else packages
            try:
                locked, changed = make_and_write(workspace, name, supplies, forget=forget, keep_open=suggest_accept)
            except EnvsmithError as error:
                problems += error.problems
                exit_code = max(exit_code, error.exit_code)
                continue
            if suggest_accept and locked.verdict.unaccepted:
                suggestions.append(suggest(locked.verdict.unaccepted, name))
            rows.append(_row(workspace, name, locked, changed))
    data = {"locks": rows, "suggestions": suggestions}
    if suggestions:
        return Result(command="lock", data=data, text="\n".join(suggestions), exit_code=1, errors=tuple(problems))
    text = "\n".join(_sentence(row) for row in rows)
    return Result(command="lock", data=data, text=text, exit_code=exit_code, errors=tuple(problems))


def make_and_write(
    workspace: Workspace,
    env: str,
    supplies: Supplies,
    *,
    forget: tuple[str, ...] | None = (),
    keep_open: bool = False,
) -> tuple[Locked, bool]:
    """Make one lock and write it when it differs; returns it and whether it was written.

    `forget` names packages whose present version is not preferred, None forgets all. With `keep_open` conflicts that
    nobody accepts leave the file as it is instead of being an error.

    Raises:
        InputError: `conflict-unaccepted`, and everything that making a lock finds.
    """
    supplies.screen.say(f"lock {workspace.stack.stack.name}/{env}")
    locked = Locker(workspace, env, supplies, prefer=_preferred(workspace, env, forget)).make()
    for warning in locked.warnings:
        supplies.screen.say(f"warning[{warning.code}]: {warning.message} ({warning.where})")
    if locked.verdict.unaccepted:
        if keep_open:
            return locked, False
        raise unaccepted(workspace, env, locked)
    path = workspace.lock_path(env)
    text = render(locked.lock)
    if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
        return locked, False
    write_atomic(path, text)
    return locked, True


def unaccepted(workspace: Workspace, env: str, locked: Locked) -> InputError:
    """The error over every conflict that no `accept` names, with blocks to paste."""
    found = locked.verdict.unaccepted
    where = f"{shown(workspace.path)}:env.{env}.accept"
    problems = [Problem(code="conflict-unaccepted", message=v.sentence(), where=where) for v in found]
    last = problems[-1]
    hint = f"if that is meant, add to the recipe:\n\n{suggest(found, env)}"
    problems[-1] = Problem(code=last.code, message=last.message, where=last.where, hint=hint)
    return InputError(*problems)


def _preferred(workspace: Workspace, env: str, forget: tuple[str, ...] | None) -> dict[str, str]:
    if forget is None:
        return {}
    try:
        present = read_lock(workspace, env)
    except InputError:
        return {}  # a lock that cannot be read is replaced, not kept to
    if present is None:
        return {}
    lock = present[0]
    forgotten = {str(canonicalize_name(name)) for name in forget}
    unknown = forgotten - {wheel.name for wheel in lock.wheels}
    if unknown:
        raise InputError(
            Problem(
                code="unknown-package",
                message=f"{', '.join(f'`{name}`' for name in sorted(unknown))} is not in the lock",
                where=shown(workspace.lock_path(env)),
            )
        )
    versions = {wheel.name: wheel.version for wheel in lock.wheels}
    # What is patched was resolved under its own version, which no index knows with our local part.
    versions |= {wheel.name: wheel.original_version for wheel in lock.patched}
    return {name: version for name, version in versions.items() if name not in forgotten}


def _row(workspace: Workspace, env: str, locked: Locked, changed: bool) -> dict[str, object]:
    lock: Lock = locked.lock
    return {
        "env": f"{lock.stack}/{env}",
        "path": shown(workspace.lock_path(env)),
        "changed": changed,
        "packages": len(lock.wheels),
        "bytes": sum(wheel.size for wheel in lock.wheels),
        "sources": {source.name: source.tree for source in lock.sources},
        "conflicts": [
            {"package": c.package, "requirement": c.requirement, "found": c.found, "because": c.because}
            for c in lock.conflicts
        ],
        "base": _over_base(locked),
        "unaccepted": [violation.sentence() for violation in locked.verdict.unaccepted],
        "warnings": [warning.to_dict() for warning in locked.warnings],
    }


def _over_base(locked: Locked) -> dict[str, object] | None:
    """What of the base stays, and what is laid over it, with both versions; None for an env without a base."""
    lock = locked.lock
    if lock.snapshot is None:
        return None
    ours = {wheel.name: wheel.version for wheel in lock.wheels} | {s.project: s.version for s in lock.sources}
    over = {name: [version, ours[name]] for name, version in sorted(locked.base.items()) if name in ours}
    return {"uses": len(lock.base), "protected": sum(one.protected for one in lock.base), "over": over}


def _sentence(row: Mapping[str, object]) -> str:
    state = "written" if row["changed"] else "unchanged"
    size = row["bytes"]
    assert isinstance(size, int)
    sources, conflicts = row["sources"], row["conflicts"]
    assert isinstance(sources, dict) and isinstance(conflicts, list)
    more = f", {len(sources)} source{'s' if len(sources) > 1 else ''}" if sources else ""
    kept = f", {len(conflicts)} accepted conflict{'s' if len(conflicts) > 1 else ''}" if conflicts else ""
    text = f"{row['env']}: {row['packages']} packages{more}, {megabytes(size)}{kept}, {row['path']} {state}"
    base = row["base"]
    if isinstance(base, dict):
        text += f"\n  of the base: {base['uses']} packages, {base['protected']} of them protected"
        laid = [f"{name} {old or 'of unknown version'} → {new}" for name, (old, new) in base["over"].items()]
        text += f"\n  laid over it: {', '.join(laid)}" if laid else ""
    return text


def _check(workspace: Workspace, envs: tuple[str, ...]) -> Result:
    rows = []
    problems = []
    for name in envs:
        problem = staleness(workspace, name)
        rows.append({"env": f"{workspace.stack.stack.name}/{name}", "fresh": problem is None})
        problems += [problem] if problem else []
    text = "\n".join(f"{row['env']}: recipe and lock {'agree' if row['fresh'] else 'differ'}" for row in rows)
    return Result(
        command="lock",
        data={"locks": rows},
        text=text,
        exit_code=1 if problems else 0,
        errors=tuple(problems),
    )
