"""What is known of the env and the machine that a failed run had: facts of lock and snapshot, and the checks that fit.

A built env is verified where it lies. Of an env that is not built here, but whose recipe is, the lock is read alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from envsmith.commands import check
from envsmith.commands.depth import FAMILIES, Depth
from envsmith.commands.envs import BuiltEnv, env_root, is_path, open_env
from envsmith.commands.foreign import open_foreign
from envsmith.commands.launching import resolved
from envsmith.commands.screen import Screen
from envsmith.commands.snapshots import named_snapshot
from envsmith.commands.subject import Subject, open_subject
from envsmith.commands.verify import verify_one
from envsmith.commands.workspace import Workspace, open_stack, read_lock
from envsmith.conditions import Value
from envsmith.errors import EnvsmithError, NegativeAnswer
from envsmith.hostfacts import HostFacts
from envsmith.knownfacts import env_facts, host_facts, lock_facts
from envsmith.lock import Lock
from envsmith.proving import CHECKED, Looks
from envsmith.recipe import Env
from envsmith.report import Finding, Severity

#: Families that start programs of the env for a minute: they are asked for, never run by the way.
BY_REQUEST = ("contexts",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """The env and the machine of a run, as far as they were named."""

    facts: Mapping[str, Value] = field(default_factory=dict)
    name: str | None = None
    """The env as the user named it."""
    built: BuiltEnv | None = None
    workspace: Workspace | None = None
    env: str | None = None
    """Its name in the recipe."""
    host: str | None = None
    """`local`, or the path of a snapshot."""

    @property
    def recipe(self) -> Env | None:
        """The env's recipe, where it is at hand."""
        if self.workspace is None or self.env is None:
            return None
        return self.workspace.stack.env.get(self.env)


def known(env: str | None, host: str | None, root: str | None, environ: Mapping[str, str]) -> Known:
    """Read what is said of the env and the machine.

    Raises:
        InputError: `snapshot-missing` and what a snapshot, a recipe or a lock has wrong.
        NegativeAnswer: `env-missing` where neither an env nor a recipe of that name is here.
    """
    facts: dict[str, Value] = {}
    if host is not None:
        facts |= host_facts(_machine(host, environ))
    if env is None:
        return Known(facts=facts, host=host)
    built = _built(env, root, environ)
    workspace, name = _recipe(env, built)
    if built is None and workspace is None:
        open_env(env, env_root(root, environ))  # it says what is missing
    if built is not None:
        facts |= _facts_of(env, built, environ)
    elif workspace is not None and name is not None:
        present = read_lock(workspace, name)
        facts |= _lock_facts(present[0]) if present else {}
        facts |= env_facts(env, None, {})
    return Known(facts=facts, name=env, built=built, workspace=workspace, env=name, host=host)


def _machine(host: str, environ: Mapping[str, str]) -> HostFacts:
    from envsmith.commands.snapshot import capture

    if host == check.LOCAL:
        return capture(None, query=None, paths=(), no_files=True, environ=environ).host
    return named_snapshot(host, environ).host


def _built(env: str, root: str | None, environ: Mapping[str, str]) -> BuiltEnv | None:
    try:
        return open_env(env, env_root(root, environ))
    except NegativeAnswer:
        if is_path(env):
            raise
        return None


def _recipe(env: str, built: BuiltEnv | None) -> tuple[Workspace | None, str | None]:
    """The recipe of an env, where the folder has one of its stack's name."""
    if built is not None and built.receipt is not None:
        stack, name = str(built.receipt["stack"]), str(built.receipt["env"])
    elif built is None:
        stack, _, name = env.partition("/")
    else:
        return None, None
    try:
        workspace = open_stack(stack)
    except EnvsmithError:
        return None, None
    return (workspace, name) if name in workspace.stack.env else (None, None)


def _facts_of(env: str, built: BuiltEnv, environ: Mapping[str, str]) -> dict[str, Value]:
    subject = _subject(built, environ)
    launch = resolved(subject.launch, built.directory, environ)
    facts: dict[str, Value] = dict(env_facts(env, str(built.directory), dict(launch.set)))
    if subject.lock is not None:
        return facts | _lock_facts(subject.lock)
    there = {one.name: one.version for one in subject.foreign.distributions if one.version} if subject.foreign else {}
    return facts | lock_facts(dict(subject.versions or there), subject.python)


def _subject(built: BuiltEnv, environ: Mapping[str, str]) -> Subject:
    return open_subject(built) if built.receipt else open_foreign(built, lock=None, environ=environ)


def _lock_facts(lock: Lock) -> dict[str, Value]:
    versions = {one.name: one.version for one in lock.base if one.version}
    versions |= {one.name: one.version for one in lock.wheels}
    versions |= {one.project: one.version for one in lock.sources}
    return lock_facts(versions, lock.target.python)


def look(here: Known, families: Sequence[str], environ: Mapping[str, str], screen: Screen) -> Looks:
    """Run the checks that would show the causes, and say of the others why they were not run."""
    findings: dict[str, Sequence[Finding]] = {}
    reasons: dict[str, str] = {}
    wanted = [family for family in families if family in FAMILIES and family not in BY_REQUEST]
    for family in (one for one in families if one in BY_REQUEST):
        reasons[family] = f"not started: `envsmith verify {here.name or 'ENV'} --contexts` starts the child chain"
    if here.built is not None and wanted:
        _verify(here.built, wanted, environ, screen, findings, reasons)
    elif wanted and here.name is not None:
        reasons |= dict.fromkeys(wanted, f"`{here.name}` is not built here")
    if any(family in CHECKED for family in families):
        _check(here, environ, findings, reasons)
    return Looks(findings=findings, reasons=reasons)


def _verify(
    built: BuiltEnv,
    wanted: Sequence[str],
    environ: Mapping[str, str],
    screen: Screen,
    findings: dict[str, Sequence[Finding]],
    reasons: dict[str, str],
) -> None:
    if not sys.platform.startswith("linux"):
        reasons |= dict.fromkeys(wanted, "verify runs on Linux only")
        return
    depth = Depth(
        bytes="default",
        imports="imports" in wanted,
        families=tuple(family for family in FAMILIES if family in wanted),
    )
    screen.say(f"verify {built.name}: {', '.join(depth.families)}")
    try:
        report = verify_one(built, depth, lock_file=None, environ=environ, screen=screen).report
    except EnvsmithError as error:
        reasons |= dict.fromkeys(wanted, f"verify could not look: {error.problems[0].message}")
        return
    for family in depth.families:
        if family in report.families:
            findings[family] = [one for one in report.findings if one.check == family]


def _check(
    here: Known, environ: Mapping[str, str], findings: dict[str, Sequence[Finding]], reasons: dict[str, str]
) -> None:
    if here.workspace is None or here.env is None:
        reasons |= dict.fromkeys(CHECKED, "no recipe of the env is here: name it with `--env STACK/ENV`")
        return
    stack = str(here.workspace.path)
    try:
        said = check.judged(stack, envs=(here.env,), config=None, environ=environ, host=here.host).findings
    except EnvsmithError as error:
        reasons |= dict.fromkeys(CHECKED, f"check could not look: {error.problems[0].message}")
        return
    for family in CHECKED if here.host is not None else ("rules",):
        findings[family] = [one for one in said if one.check == family and one.severity is not Severity.NOTE]
    if here.host is None:
        reasons["host"] = "no machine is named: add `--host SNAPSHOT`, or `--host local`"
