"""Looking at one env: what was seen on disk and in its processes, judged family by family."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from envsmith.checks.sources import WORK, check_job_layers, check_sources
from envsmith.commands import seal
from envsmith.commands.depth import READ, Depth, Examination
from envsmith.commands.envs import env_root, installed_from, shown
from envsmith.commands.explain import explained
from envsmith.commands.foreign import reinstall
from envsmith.commands.look_base import judges_base, look_at_base
from envsmith.commands.look_bytecode import look_at_bytecode
from envsmith.commands.look_contexts import look_at_contexts, look_at_running
from envsmith.commands.look_files import judge_files, look_at_files, source_states
from envsmith.commands.look_interpreter import interpreter_identity, look_at_interpreter
from envsmith.commands.look_native import NativeLook
from envsmith.commands.look_processes import look_at_processes, needs_probe, surroundings
from envsmith.commands.reporting import completed
from envsmith.commands.subject import Subject
from envsmith.commands.workcopies import job_layers
from envsmith.observed import Observed
from envsmith.redaction import without_secrets
from envsmith.report import REBUILD, Finding, Report, ordered
from envsmith.running import RunningProcess
from envsmith.tools.progress import Progress


def examine(
    subject: Subject, depth: Depth, *, environ: Mapping[str, str], progress: Progress | None = None
) -> Examination:
    """Judge an env. Nothing is written into it; the stat index beside it is renewed when bytes were read.

    Raises:
        EnvsmithError: only when nothing can be said at all, for example an interpreter that does not start.
    """
    depth = replace(depth, families=tuple(family for family in depth.families if _applies(family, subject, depth)))
    examination = Examination(report=Report(subject=subject.name, families=depth.families, findings=()))
    begun = seal.begin(subject, depth)
    findings: list[Finding] = []
    native: NativeLook | None = None
    if depth.wants(READ):
        observed = look_at_files(subject, depth.bytes, progress)
        native = NativeLook(subject=subject, observed=observed)
        findings += _contents(subject, depth, observed, environ, examination, progress)
    findings += _disk(subject, depth, environ, examination, progress)
    chain = "contexts" in depth.families and _starts_chain(subject, depth)
    around = surroundings(subject, environ) if needs_probe(depth) or chain else None
    if around and needs_probe(depth):
        if native and "native" in depth.families:
            findings += native.judge(around.launched)
        findings += look_at_processes(subject, depth, around, native, examination)
    if around and chain:
        more, examination.contexts = look_at_contexts(
            subject, around, examination, every=depth.contexts == "every", progress=progress
        )
        findings += more
    report = _report(subject, depth.families, findings, environ)
    examination.report = completed(report, subject, examination) if depth.bytes != "stat" else report
    seal.keep(subject, begun, examination)
    return examination


def _contents(
    subject: Subject,
    depth: Depth,
    observed: Observed,
    environ: Mapping[str, str],
    examination: Examination,
    progress: Progress | None,
) -> Iterator[Finding]:
    """Judge what the files hold."""
    examination.hashed_bytes, examination.trusted_bytes = observed.hashed_bytes, observed.trusted_bytes
    examination.files = len(observed.files)
    if observed.hashed_files:
        seal.drop(subject)
    if "files" in depth.families:
        yield from explained(judge_files(subject, observed), subject, observed.digests, environ)
    if "pyc" in depth.families:
        identity = interpreter_identity(subject) if observed.bytecode else ""
        yield from look_at_bytecode(subject, observed, depth, environ, examination, identity, progress)


def _disk(
    subject: Subject,
    depth: Depth,
    environ: Mapping[str, str],
    examination: Examination,
    progress: Progress | None,
) -> Iterator[Finding]:
    """Judge what else lies on the disk: work copies, the interpreter, a vendor's packages."""
    if "sources" in depth.families and subject.lock is not None and subject.receipt is not None:
        yield from check_sources(source_states(subject))
        yield from check_job_layers(job_layers(subject.work, subject.lock))
    if "interpreter" in depth.families:
        yield from look_at_interpreter(subject, depth, environ, examination)
    if "base" in depth.families and judges_base(subject):
        yield from look_at_base(subject, depth, examination, progress, environ)


def _report(
    subject: Subject, families: tuple[str, ...], findings: Iterable[Finding], environ: Mapping[str, str]
) -> Report:
    named = _with_commands(findings, subject, environ)
    return Report(subject=subject.name, families=families, findings=ordered(_unique(map(without_secrets, named))))


def examine_running(
    subject: Subject, processes: Sequence[RunningProcess], *, environ: Mapping[str, str]
) -> Examination:
    """Judge processes that already run."""
    families = ("contexts",)
    examination = Examination(report=Report(subject=subject.name, families=families, findings=()))
    findings, rows = look_at_running(subject, processes, environ, examination)
    examination.contexts = rows
    examination.figures["processes"] = len(processes)
    examination.report = completed(_report(subject, families, findings, environ), subject, examination)
    return examination


def _applies(family: str, subject: Subject, depth: Depth) -> bool:
    """Whether a family has anything to judge: what is listed as looked at was looked at."""
    return {
        "sources": subject.receipt is not None,
        "base": judges_base(subject),
        "interpreter": subject.foreign is None or subject.foreign.is_venv,
        "contexts": depth.imports or _starts_chain(subject, depth),
    }.get(family, True)


def _starts_chain(subject: Subject, depth: Depth) -> bool:
    """Whether the child chain is started; a recipe that wants the launched process alone has none."""
    named = set(subject.verify["contexts"]) - {"launched"}
    return depth.contexts == "every" or (depth.contexts == "recipe" and bool(named))


def _with_commands(findings: Iterable[Finding], subject: Subject, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Name this env in the commands of hints, so that they can be typed as they stand."""
    receipt = subject.receipt
    if receipt is None:
        yield from _for_foreign(findings, subject)
        return
    root = Path(receipt.root)
    option = "" if root == env_root(None, environ) else f" --root {shlex.quote(shown(root))}"
    build = f"`envsmith build {receipt.stack} --env {receipt.env}{option} --rebuild`"
    bundle = installed_from(subject.directory, receipt.lock_sha256)
    if bundle is not None:
        build = f"`envsmith install BUNDLE --env {receipt.env}{option} --rebuild` (BUNDLE is {bundle})"
    work = f"`envsmith work {receipt.stack}/{receipt.env}{option} "
    for finding in findings:
        hint = (finding.hint or "").replace(REBUILD, build).replace(WORK, work)
        yield replace(finding, hint=hint or None)


def _for_foreign(findings: Iterable[Finding], subject: Subject) -> Iterator[Finding]:
    """An env that we did not build cannot be built again by us: name the command that puts files back."""
    owners = {entry.path: entry.owners[0] for entry in subject.manifest.entries}
    names = set(owners.values())
    for found in findings:
        finding = replace(found, hint=_without_recipe(found.hint))
        if finding.hint is None or REBUILD not in finding.hint:
            yield finding
            continue
        owner = owners.get(finding.subject) or (finding.subject if finding.subject in names else None)
        put_back = f"put its own files back: {reinstall(owner, subject.executable)}" if owner else None
        yield replace(finding, hint=put_back or "ask whoever made this environment, or build one with `envsmith build`")


#: Advice that only a recipe of ours can follow, and what is left of it without one.
WITHOUT_RECIPE = (
    (", or start the program through `envsmith run`", ""),
    (", or start every program through `envsmith run`", ""),
    (" in every process: `envsmith run` does", " in every process"),
    (" first on PATH: `envsmith run` does", " first on PATH"),
    ("start the program through `envsmith run`", "start it with the environment's own `bin/python`"),
    ("start it through `envsmith run`", "start it with the environment's own `bin/python`"),
    (": put the other in the recipe's `exclude` list", ": uninstall both, then install the one that is meant"),
    (", or name the directory under `allow-outside`", ""),
    (", or name its folder in the launch table of the recipe", ""),
)


def _without_recipe(hint: str | None) -> str | None:
    for words, rest in WITHOUT_RECIPE:
        hint = hint.replace(words, rest) if hint else hint
    return hint or None


def _unique(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(dict.fromkeys(findings))
