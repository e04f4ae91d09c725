"""`envsmith check`: recipe, patches and lock freshness; no network, no writes."""

from __future__ import annotations

from packaging.utils import canonicalize_name

from envsmith.commands.findings import finding_text
from envsmith.commands.freshness import staleness
from envsmith.commands.locking import refuse_base
from envsmith.commands.patchfiles import read_patches
from envsmith.commands.result import Result
from envsmith.commands.workspace import Workspace, open_stack, read_lock, shown
from envsmith.errors import InputError, Problem
from envsmith.lock import Lock
from envsmith.recipe import Env
from envsmith.report import Finding, Severity


def run(stack: str) -> Result:
    """Check a stack; a recipe or patch that is wrong is an error, a lock that is stale a finding."""
    workspace = open_stack(stack)
    problems: list[Problem] = []
    findings: list[Finding] = []
    for name, env in workspace.stack.env.items():
        try:
            _read_series(workspace, env, read_lock(workspace, name))
            refuse_base(workspace, name)
            stale = staleness(workspace, name)
        except InputError as error:
            problems += error.problems
            continue
        if stale:
            findings.append(
                Finding(
                    check="lock",
                    kind=stale.code,
                    severity=Severity.ERROR,
                    subject=f"{workspace.stack.stack.name}/{name}",
                    message=stale.message,
                    expected=stale.expected,
                    actual=stale.actual,
                    hint=stale.hint,
                )
            )
    if problems:
        raise InputError(*problems)
    text = "\n\n".join(finding_text(finding) for finding in findings)
    return Result(
        command="check",
        data={"recipe": shown(workspace.path), "findings": [finding.to_dict() for finding in findings]},
        text=text or f"{shown(workspace.path)}: no findings (recipe, patches, lock)",
        exit_code=1 if findings else 0,
    )


def _read_series(workspace: Workspace, env: Env, present: tuple[Lock, str] | None) -> None:
    """Parse every series of an env; a patched wheel's version is known once there is a lock."""
    locked = {wheel.name: f"{wheel.name}=={wheel.original_version}" for wheel in present[0].patched} if present else {}
    wanted: list[tuple[tuple[str, ...], str | None]] = [(s.series, s.base) for s in env.source.values()]
    wanted += [(table.series, locked.get(str(canonicalize_name(raw)))) for raw, table in env.patch.items()]
    problems: list[Problem] = []
    for series, base in wanted:
        try:
            read_patches(workspace.patches, series, base)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
