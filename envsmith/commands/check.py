"""`envsmith check`: recipe, patches and lock freshness; no network, no writes."""

from __future__ import annotations

from packaging.utils import canonicalize_name

from envsmith.commands.freshness import staleness
from envsmith.commands.patchfiles import read_patches
from envsmith.commands.result import Result
from envsmith.commands.workspace import open_stack, read_lock, shown
from envsmith.errors import InputError, Problem
from envsmith.report import Finding, Severity


def run(stack: str) -> Result:
    """Check a stack; a recipe or patch that is wrong is an error, a lock that is stale a finding."""
    workspace = open_stack(stack)
    problems: list[Problem] = []
    findings: list[Finding] = []
    for name, env in workspace.stack.env.items():
        try:
            for source in env.source.values():
                base = source.sdist.split(";")[0].strip() if source.sdist else source.commit or ""
                read_patches(workspace.patches, source.series, base)
            present = read_lock(workspace, name)
            for raw, table in env.patch.items():
                key = str(canonicalize_name(raw))
                version = (
                    next((w.original.filename.split("-")[1] for w in present[0].patched if w.name == key), None)
                    if present
                    else None
                )
                if version:
                    read_patches(workspace.patches, table.series, f"{key}=={version}")
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
    text = "\n".join(f"{f.severity.value}[{f.kind}]: {f.subject}: {f.message}" for f in findings)
    return Result(
        command="check",
        data={"recipe": shown(workspace.path), "findings": [finding.to_dict() for finding in findings]},
        text=text or f"{shown(workspace.path)}: no findings (recipe, patches, lock)",
        exit_code=1 if findings else 0,
    )
