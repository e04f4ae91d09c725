"""Snapshots from disk, held against the env that is laid over the base they describe."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from envsmith.commands.envs import shown, user_path
from envsmith.commands.workspace import Workspace
from envsmith.errors import InputError, Problem
from envsmith.host import Snapshot, parse_snapshot, protected_names


def named_snapshot(text: str, environ: Mapping[str, str]) -> Snapshot:
    """Read the snapshot of a machine that a user names by its path, facts of the environment laid over it.

    Raises:
        InputError: `snapshot-missing`, and what the parser finds.
    """
    from envsmith.commands.snapshot import planned

    path = user_path(text)
    try:
        content = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(
            Problem(
                code="snapshot-missing",
                message=f"the snapshot cannot be read: {error.strerror}",
                where=shown(path),
                hint="name a file that `envsmith snapshot -o FILE` wrote on the machine, or `local`",
            )
        ) from error
    return planned(parse_snapshot(content, shown(path)), environ)


def read_snapshot(workspace: Workspace, env: str) -> Snapshot | None:
    """Read the snapshot of an env over a base; None for an env without one.

    Raises:
        InputError: `snapshot-missing`, `snapshot-mismatch`, `protect-unknown`, and what the parser finds.
    """
    base = workspace.stack.env[env].base
    if base is None:
        return None
    where = f"{shown(workspace.path)}:env.{env}.base"
    name = workspace.stack.host.snapshot
    path = workspace.path.parent / name if name else None
    if path is None or not path.is_file():
        raise InputError(
            Problem(
                code="snapshot-missing",
                message="an env over a base needs a snapshot of it, to know what is there",
                where=shown(path) if path else where,
                hint="name the file as `host.snapshot`; its packages are what `base.python` has",
            )
        )
    snapshot = parse_snapshot(path.read_text(encoding="utf-8", errors="replace"), shown(path))
    _require_same_python(workspace, env, snapshot, shown(path))
    unknown = sorted(protected_names(snapshot, base.protect) - snapshot.by_name().keys())
    if unknown:
        raise InputError(
            *(
                Problem(
                    code="protect-unknown",
                    message=f"`{package}` is to be protected, but the snapshot does not have it",
                    where=f"{where}.protect",
                    hint=_near(package, snapshot),
                )
                for package in unknown
            )
        )
    return snapshot


def _near(package: str, snapshot: Snapshot) -> str:
    close = difflib.get_close_matches(package, snapshot.by_name(), n=1)
    return f"did you mean `{close[0]}`?" if close else "take the name as the base's own package list writes it"


def _require_same_python(workspace: Workspace, env: str, snapshot: Snapshot, where: str) -> None:
    wanted = workspace.stack.env[env].python_minor
    found = snapshot.python.version if snapshot.python else None
    if found is None or ".".join(found.split(".")[:2]) != wanted:
        raise InputError(
            Problem(
                code="snapshot-mismatch",
                message="the base has another Python than the env",
                where=f"{where}:python.version",
                expected=wanted,
                actual=found or "not stated",
                hint="correct the env's `python`, or take the snapshot of the right interpreter",
            )
        )
