"""`envsmith check`: recipe, patches, lock freshness, rules and, for one machine, its fitness.

No network, and nothing is left behind on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from envsmith.checks.host import judge_host
from envsmith.checks.host_base import absent_base
from envsmith.checks.host_subject import FAMILY as HOST
from envsmith.checks.host_subject import Fitting
from envsmith.commands.commandrung import require_expectations
from envsmith.commands.envs import env_root, shown, user_path
from envsmith.commands.findings import finding_text
from envsmith.commands.freshness import staleness
from envsmith.commands.hostneeds import needs_of
from envsmith.commands.modelfiles import find_model, known_types, said_by, with_model
from envsmith.commands.patchfiles import read_patches
from envsmith.commands.result import Result
from envsmith.commands.sizing import size_line, sizing
from envsmith.commands.snapshots import named_snapshot, read_snapshot
from envsmith.commands.sourcefacts import source_facts
from envsmith.commands.workspace import Workspace, open_stack, read_lock
from envsmith.errors import InputError, Problem
from envsmith.host import Snapshot
from envsmith.hostfacts import HostFacts
from envsmith.jobconfig import JobFacts
from envsmith.jobconfig import parse as parse_job
from envsmith.lock import Lock
from envsmith.modelsize import Model
from envsmith.recipe import Env
from envsmith.report import Finding, Report, Severity, ordered
from envsmith.rules.judge import judge
from envsmith.rules.situation import FAMILY, Situation
from envsmith.smoke import climb
from envsmith.tools.store import open_store

LOOKED_AT = ("recipe", "patches", "lock", FAMILY)
LOCAL = "local"
#: Exit code of "this machine cannot run this stack".
UNFIT = 3


def run(
    stack: str,
    *,
    envs: tuple[str, ...],
    config: str | None,
    environ: Mapping[str, str],
    host: str | None = None,
    model: str | None = None,
) -> Result:
    """Check a stack; a recipe, patch, configuration or snapshot that is wrong is an error, all else a finding.

    Raises: what `judged` raises.
    """
    return _result(judged(stack, envs=envs, config=config, environ=environ, host=host, model=model), host)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """What a stack was found to be."""

    workspace: Workspace
    findings: tuple[Finding, ...]
    machine: Snapshot | None
    """Whose fitness was judged too."""
    sizes: Mapping[str, Any]


def judged(
    stack: str,
    *,
    envs: tuple[str, ...],
    config: str | None,
    environ: Mapping[str, str],
    host: str | None = None,
    model: str | None = None,
) -> Judged:
    """Judge a stack.

    `host` is `local`, or the path of a snapshot: the machine whose fitness is judged too. `model` is the folder or the
    config.json of the model that the job is about.

    Raises:
        InputError: `snapshot-missing`, `snapshot-syntax`, `snapshot-invalid` and whatever the recipe has.
    """
    workspace = open_stack(stack)
    chosen = workspace.envs(envs)
    _one_env(chosen, {"--config": config, "--model": model})
    facts, missing = _job_facts(config) if config is not None else (JobFacts(), None)
    machine = _machine(host, workspace, [env for _, env in chosen], environ) if host is not None else None
    problems: list[Problem] = []
    findings: list[Finding] = [missing] if missing else []
    fittings: list[Fitting] = []
    sizes: dict[str, Any] = {}
    for name, env in chosen:
        try:
            found, absent = find_model(workspace, name, facts, config, model)
            findings += [absent] if absent else []
            situation = _situation(workspace, name, facts, found, model is not None, machine, environ)
            findings += _stale(workspace, name)
            findings += judge(situation)
            sizes |= {name: sizing(situation)} if found else {}
            require_expectations(climb([one.table() for one in env.smoke], packages=()))
            read_snapshot(workspace, name)
            if host == LOCAL and env.base is not None and not Path(env.base.python).is_file():
                findings.append(absent_base(situation))
            if machine:
                fittings.append(_fitting(workspace, situation, machine, host == LOCAL, environ))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*dict.fromkeys(problems))
    findings += judge_host(fittings)
    return Judged(workspace=workspace, findings=ordered(findings), machine=machine, sizes=sizes)


def _one_env(chosen: tuple[tuple[str, Env], ...], options: Mapping[str, str | None]) -> None:
    """Refuse what is about one job where several envs are checked."""
    given = [name for name, value in options.items() if value is not None]
    if given and len(chosen) > 1:
        hint = f"add `--env E`; its envs: {', '.join(name for name, _ in chosen)}"
        raise InputError(Problem(code="usage", message=f"say which env `{given[0]}` is for", hint=hint))


def _situation(
    workspace: Workspace,
    name: str,
    facts: JobFacts,
    model: Model | None,
    is_option: bool,
    machine: Snapshot | None,
    environ: Mapping[str, str],
) -> Situation:
    """What the rules judge: recipe, lock, code, job and model of one env, as far as they are here."""
    env = workspace.stack.env[name]
    present = read_lock(workspace, name)
    lock = present[0] if present else None
    job = with_model(facts.over(env.job), model)
    return Situation(
        name=name,
        env=env,
        host=workspace.stack.host,
        job=job,
        lock=lock,
        touched=_read_series(workspace, env, present),
        sources=source_facts(workspace, name, lock, environ),
        said_by=said_by(facts, model, is_option=is_option),
        model=model,
        known_types=known_types(lock, environ) if job.model_type else None,
        facts=machine.host if machine else None,
    )


def _result(checked: Judged, host: str | None) -> Result:
    workspace, findings, machine, sizes = checked.workspace, checked.findings, checked.machine, checked.sizes
    families = (*LOOKED_AT, HOST) if machine else LOOKED_AT
    report = Report(subject=shown(workspace.path), families=families, findings=findings)
    unfit = any(finding.check == HOST and finding.severity is Severity.ERROR for finding in findings)
    data: dict[str, Any] = {"recipe": report.subject, "findings": [finding.to_dict() for finding in findings]}
    ending = [report.summary(), *(size_line(name, size) for name, size in sizes.items())]
    if sizes:
        data["sizing"] = sizes
    if machine and host is not None:
        facts = machine.host.model_dump(mode="json", by_alias=True, exclude_none=True)
        data["host"] = {"source": LOCAL if host == LOCAL else shown(user_path(host)), "facts": facts}
        ending.append(f"judged for {_words(host, machine.host)}{_by_hand(machine)}")
        ending.append(f"the machine {'cannot' if unfit else 'can'} run {workspace.stack.stack.name}")
    return Result(
        command="check",
        data=data,
        text="\n\n".join([*map(finding_text, findings), "\n".join(ending)]),
        exit_code=UNFIT if unfit else 1 if report.failed else 0,
    )


def _by_hand(machine: Snapshot) -> str:
    """Which facts nobody saw."""
    said = [part for part in machine.snapshot.note.split("; ") if part.startswith("set by hand:")]
    return f" ({'; '.join(said)})" if said else ""


def _words(host: str, facts: HostFacts) -> str:
    """The machine in one line."""
    devices = ", ".join(f"{one.count}x {one.name}" for one in facts.accelerator)
    driver = f"driver {facts.driver}" if facts.driver else "no driver" if facts.driver == "" else ""
    glibc = f"glibc {facts.glibc}" if facts.glibc else ""
    known = [words for words in (facts.arch, glibc, devices, driver) if words]
    name = "this machine" if host == LOCAL else f"the machine of {shown(user_path(host))}"
    return f"{name}: {', '.join(known) or 'nothing is known of it'}"


def _machine(host: str, workspace: Workspace, envs: list[Env], environ: Mapping[str, str]) -> Snapshot:
    """The snapshot that is judged by; with `local` one of this machine, and of the base of the envs that have one."""
    if host == LOCAL:
        from envsmith.commands.snapshot import capture

        bases = {env.base.python for env in envs if env.base}
        folders = {env.job.checkpoint_dir for env in envs if env.job.checkpoint_dir}
        taken = capture(
            next(iter(bases)) if len(bases) == 1 and Path(next(iter(bases))).is_file() else None,
            query=workspace.stack.host.query,
            paths=tuple(sorted(folder for folder in folders if folder.startswith("/"))),
            no_files=True,
            environ=environ,
        )
        # A capture keeps variables by their names; what the recipe asks for by name is there to be seen.
        asked = {name: environ[name] for env in envs for name in env.launch.require if name in environ}
        seen = {**asked, **taken.host.environ}
        return taken.model_copy(update={"host": taken.host.model_copy(update={"environ": seen})})
    return named_snapshot(host, environ)


def _fitting(
    workspace: Workspace, situation: Situation, machine: Snapshot, is_local: bool, environ: Mapping[str, str]
) -> Fitting:
    needs = needs_of(workspace, situation.name, situation.lock, environ)
    return Fitting(
        situation=situation,
        facts=machine.host,
        python=machine.python,
        packages=machine.by_name(),
        native=needs.native,
        unread=needs.unread,
        unpacked=needs.unpacked,
        stored=needs.stored if is_local else frozenset(),
        root=str(env_root(None, environ).absolute()) if is_local else None,
        home=str(open_store(environ).home) if is_local else None,
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
