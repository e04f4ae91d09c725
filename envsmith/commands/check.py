"""`envsmith check`: recipe, patches, lock freshness and rules; no network, and nothing is left behind on the disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from packaging.utils import canonicalize_name

from envsmith.commands.envs import shown, user_path
from envsmith.commands.findings import finding_text
from envsmith.commands.freshness import staleness
from envsmith.commands.patchfiles import read_patches
from envsmith.commands.result import Result
from envsmith.commands.sourcefacts import source_facts
from envsmith.commands.workspace import Workspace, open_stack, read_lock
from envsmith.errors import InputError, Problem
from envsmith.jobconfig import JobFacts
from envsmith.jobconfig import parse as parse_job
from envsmith.lock import Lock
from envsmith.recipe import Env
from envsmith.report import Finding, Report, Severity, ordered
from envsmith.rules.judge import judge
from envsmith.rules.situation import FAMILY, Situation

LOOKED_AT = ("recipe", "patches", "lock", FAMILY)


def run(stack: str, *, envs: tuple[str, ...], config: str | None, environ: Mapping[str, str]) -> Result:
    """Check a stack; a recipe, patch or configuration that is wrong is an error, all else a finding."""
    workspace = open_stack(stack)
    chosen = workspace.envs(envs)
    if config is not None and len(chosen) > 1:
        hint = f"add `--env E`; its envs: {', '.join(name for name, _ in chosen)}"
        raise InputError(Problem(code="usage", message="say which env `--config` is for", hint=hint))
    facts, missing = _job_facts(config) if config is not None else (JobFacts(), None)
    problems: list[Problem] = []
    findings: list[Finding] = [missing] if missing else []
    for name, env in chosen:
        try:
            present = read_lock(workspace, name)
            touched = _read_series(workspace, env, present)
            findings += _stale(workspace, name)
            situation = Situation(
                name=name,
                env=env,
                host=workspace.stack.host,
                job=facts.over(env.job),
                lock=present[0] if present else None,
                sources=source_facts(workspace, name, present[0] if present else None, environ),
                touched=touched,
                said_by=facts.said_by,
            )
            findings += judge(situation)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*dict.fromkeys(problems))
    return _result(workspace, ordered(findings))


def _result(workspace: Workspace, findings: tuple[Finding, ...]) -> Result:
    report = Report(subject=shown(workspace.path), families=LOOKED_AT, findings=findings)
    return Result(
        command="check",
        data={"recipe": report.subject, "findings": [finding.to_dict() for finding in findings]},
        text="\n\n".join([*map(finding_text, findings), report.summary()]),
        exit_code=1 if report.failed else 0,
    )


def _stale(workspace: Workspace, env: str) -> Iterator[Finding]:
    stale = staleness(workspace, env)
    if stale:
        yield Finding(
            check="lock",
            kind=stale.code,
            severity=Severity.ERROR,
            subject=f"{workspace.stack.stack.name}/{env}",
            message=stale.message,
            expected=stale.expected,
            actual=stale.actual,
            hint=stale.hint,
        )


def _job_facts(config: str) -> tuple[JobFacts, Finding | None]:
    """What a configuration says, its DeepSpeed file included where that is on this machine."""
    path = user_path(config)
    facts = parse_job(_read(path), shown(path))
    if facts.deepspeed is None:
        return facts, None
    # LLaMA-Factory takes the path from where it is started; beside the configuration is where it often lies.
    places = [user_path(facts.deepspeed), path.parent / facts.deepspeed]
    found = next((place for place in places if place.is_file()), None)
    if found:
        return facts.with_deepspeed(_read(found), shown(found)), None
    finding = Finding(
        check=FAMILY,
        kind="deepspeed-config-not-at-hand",
        severity=Severity.NOTE,
        subject=f"{shown(path)}: deepspeed",
        message=f"`{facts.deepspeed}` is not on this machine, so nothing is known about ZeRO and offloading",
        hint="check where LLaMA-Factory is started, or say it in the recipe's job table",
    )
    return facts, finding


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        words = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(
            Problem(code="job-config-unreadable", message=f"it cannot be read: {words}", where=shown(path))
        ) from error


def _read_series(workspace: Workspace, env: Env, present: tuple[Lock, str] | None) -> Mapping[str, frozenset[str]]:
    """Parse every series of an env and say which files it changes, by source or package.

    A patched wheel's version is known once there is a lock.
    """
    locked = {wheel.name: f"{wheel.name}=={wheel.original_version}" for wheel in present[0].patched} if present else {}
    wanted: list[tuple[str, tuple[str, ...], str | None]] = [(n, s.series, s.base) for n, s in env.source.items()]
    for raw, table in env.patch.items():
        name = str(canonicalize_name(raw))
        wanted.append((name, table.series, locked.get(name)))
    problems: list[Problem] = []
    touched: dict[str, frozenset[str]] = {}
    for name, series, base in wanted:
        try:
            patches = read_patches(workspace.patches, series, base).patches
            touched[name] = frozenset(path for patch in patches for path in patch.paths)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    return touched
