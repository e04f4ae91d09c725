"""`envsmith verify`: compare the disk and what processes load with the lock."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from envsmith.commands.depth import FAMILIES, Depth, Examination
from envsmith.commands.envs import (
    BuiltEnv,
    built_envs,
    env_root,
    is_ours,
    lock_file,
    open_env,
    shown,
    user_path,
    was_moved,
)
from envsmith.commands.examine import examine, examine_running
from envsmith.commands.foreign import open_foreign
from envsmith.commands.look_contexts import env_of, running
from envsmith.commands.reporting import figures
from envsmith.commands.result import Result
from envsmith.commands.screen import Screen
from envsmith.commands.seal import foreign_place, place_of_built, sealed
from envsmith.commands.subject import open_with_work
from envsmith.errors import EnvsmithError, InputError, NegativeAnswer, Problem
from envsmith.lock import Lock
from envsmith.lock import parse as parse_lock
from envsmith.receipt import NAME as RECEIPT
from envsmith.report import Finding, Report, Severity, ordered
from envsmith.report_brief import brief
from envsmith.report_text import text
from envsmith.tools.files import write_atomic


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """In which forms the reports are wanted, besides text or JSON on stdout."""

    brief: bool = False
    """At most 40 lines of 100 columns in the place of the text."""
    html: str | None = None
    """File for a page."""


def run(
    envs: tuple[str, ...],
    *,
    root: str | None,
    quick: bool,
    deep: bool,
    imports: bool,
    everything: bool,
    contexts: bool,
    families: tuple[str, ...],
    lock_file: str | None,
    pid: int | None,
    output: Output,
    environ: Mapping[str, str],
    screen: Screen,
) -> Result:
    """Verify the named envs, or every env under the root."""
    levels = {"--deep": deep, "--imports": imports, "--contexts": contexts, "--all": everything}
    depth = depth_of(quick=quick, levels=levels, families=families)
    if output.html is not None:
        _require_folder(user_path(output.html))
    folder = env_root(root, environ)
    if pid is not None:
        words = {"--quick": quick, **levels, "--lock": lock_file is not None}
        return _result([_verify_running(envs, pid, folder, words, families, environ)], [], output)
    names = envs or tuple(built_envs(folder))
    if not names:
        raise NegativeAnswer(
            Problem(
                code="env-missing",
                message="no env is built here",
                where=shown(folder),
                hint="build one with `envsmith build`, or name another root with `--root`",
            )
        )
    examinations: list[Examination] = []
    failed: list[EnvsmithError] = []
    for name in dict.fromkeys(names):
        screen.detail(f"verify {name}")
        try:
            built = open_env(name, folder)
            examinations.append(verify_one(built, depth, lock_file=lock_file, environ=environ, screen=screen))
        except EnvsmithError as error:
            failed.append(error)  # what is wrong with one env does not hide the others
    return _result(examinations, failed, output)


def depth_of(*, quick: bool, levels: Mapping[str, bool], families: tuple[str, ...]) -> Depth:
    """How much the options ask for; `levels` by option, and whether it was given.

    Raises:
        InputError: `usage`, `unknown-family`.
    """
    asked = {name for name, given in levels.items() if given}
    if quick and asked:
        raise InputError(
            Problem(
                code="usage",
                message=f"`--quick` cannot be combined with `{min(asked)}`",
                hint="leave one of them out; `envsmith verify --help` lists the levels",
            )
        )
    problems = []
    for family in families:
        if family not in FAMILIES:
            close = difflib.get_close_matches(family, FAMILIES, n=1)
            hint = f"did you mean `{close[0]}`?" if close else f"families: {', '.join(FAMILIES)}"
            problems.append(Problem(code="unknown-family", message=f"there is no family `{family}`", hint=hint))
    if problems:
        raise InputError(*problems)
    chosen = families or (("files",) if quick else FAMILIES)
    everything = "--all" in asked
    return Depth(
        bytes="stat" if quick else "deep" if everything or "--deep" in asked else "default",
        imports=everything or "--imports" in asked,
        contexts="every" if everything or "--contexts" in asked or "contexts" in families else "none",
        families=tuple(family for family in FAMILIES if family in chosen),
    )


def verify_one(
    built: BuiltEnv, depth: Depth, *, lock_file: str | None, environ: Mapping[str, str], screen: Screen
) -> Examination:
    """Verify one env."""
    if built.receipt is None:
        if not is_ours(built):
            return _verify_foreign(built, depth, lock_file=lock_file, environ=environ, screen=screen)
        return _never_passes(
            built,
            "half-env",
            "there is no receipt of envsmith: the build did not end, or it was removed",
            "build it with `envsmith build`",
        )
    if was_moved(built.directory, built.receipt):
        return _never_passes(
            built,
            "env-moved",
            f"the env was built below `{built.receipt.get('root')}`: its scripts and links name that place",
            "an env cannot be moved; build it where it should be: "
            f"`envsmith build {built.receipt['stack']} --env {built.receipt['env']} --root DIR`",
        )
    if lock_file is None and (answer := sealed(place_of_built(built), built.name, depth)):
        return answer
    subject = open_with_work(built)
    examination = examine(subject, depth, environ=environ, progress=screen)
    if lock_file is not None:
        assert subject.lock is not None
        other = parse_lock(_named_lock(lock_file), lock_file)
        more = tuple(_against(subject.lock, other))
        report = examination.report
        examination.report = replace(
            report, families=(*report.families, "lock"), findings=ordered((*report.findings, *more))
        )
    return examination


def _verify_running(
    envs: tuple[str, ...],
    pid: int,
    root: Path,
    levels: Mapping[str, bool],
    families: tuple[str, ...],
    environ: Mapping[str, str],
) -> Examination:
    """Judge a process that runs already, and its descendants; the env's own files are not looked at."""
    chosen = [name for name, wanted in levels.items() if wanted] + [f"--only {name}" for name in families]
    if len(envs) > 1 or chosen:
        raise InputError(
            Problem(
                code="usage",
                message=f"`--pid` takes one ENV and no level, not `{chosen[0] if chosen else ' '.join(envs)}`",
                hint="name the env that the process should run; verify the env itself without `--pid`",
            )
        )
    processes = running(pid)
    name = envs[0] if envs else env_of(processes)
    built = open_env(name, root)
    subject = open_with_work(built) if built.receipt else open_foreign(built, lock=None, environ=environ)
    return examine_running(subject, processes, environ=environ)


def _verify_foreign(
    built: BuiltEnv, depth: Depth, *, lock_file: str | None, environ: Mapping[str, str], screen: Screen
) -> Examination:
    """Verify an env that another tool made: everything that needs no build record."""
    if lock_file is None and (answer := sealed(foreign_place(built, environ), built.name, depth)):
        return answer
    subject = open_foreign(built, lock=lock_file, environ=environ)
    return examine(subject, depth, environ=environ, progress=screen)


def _named_lock(path: str) -> str:
    return lock_file(user_path(path))


def _never_passes(built: BuiltEnv, kind: str, message: str, hint: str) -> Examination:
    """The report of an env that nothing more can be said of."""
    finding = Finding(check="files", kind=kind, severity=Severity.ERROR, subject=RECEIPT, message=message, hint=hint)
    return Examination(report=Report(subject=built.name, families=("files",), findings=(finding,)))


def _against(built: Lock, other: Lock) -> Iterator[Finding]:
    """Say where the lock an env was built from differs from another one."""
    mine = {wheel.name: (wheel.version, wheel.sha256) for wheel in built.wheels}
    theirs = {wheel.name: (wheel.version, wheel.sha256) for wheel in other.wheels}
    mine |= {f"source {source.name}": (source.version, source.tree) for source in built.sources}
    theirs |= {f"source {source.name}": (source.version, source.tree) for source in other.sources}
    for name in sorted(mine.keys() | theirs.keys()):
        have, want = mine.get(name), theirs.get(name)
        if have != want:
            yield Finding(
                check="lock",
                kind="lock-differs",
                severity=Severity.ERROR,
                subject=name,
                message=f"{name} is not what the named lock says",
                expected=f"{want[0]} ({want[1][:12]})" if want else "not in the lock",
                actual=f"{have[0]} ({have[1][:12]})" if have else "not built",
                hint="build from that lock",
            )


def _result(examinations: list[Examination], errors: list[EnvsmithError], output: Output) -> Result:
    reports = [examination.report for examination in examinations]
    findings = [{**finding.to_dict(), "env": report.subject} for report in reports for finding in report.findings]
    data: dict[str, Any] = {"findings": findings, "envs": [_env_data(examination) for examination in examinations]}
    text = brief(reports) if output.brief else "\n\n".join(report_text(examination) for examination in examinations)
    if output.html is not None:
        _write_page(user_path(output.html), reports)
        data["html"] = output.html
    codes = [1 if report.failed else 0 for report in reports] + [error.exit_code for error in errors]
    problems = tuple(problem for error in errors for problem in error.problems)
    return Result(command="verify", data=data, text=text, exit_code=max(codes), errors=problems)


def _env_data(examination: Examination) -> dict[str, Any]:
    report = examination.report
    return {
        "env": report.subject,
        "families": list(report.families),
        "errors": report.count(Severity.ERROR),
        "warnings": report.count(Severity.WARNING),
        "files": examination.files,
        "hashed_bytes": examination.hashed_bytes,
        "trusted_bytes": examination.trusted_bytes,
        "figures": dict(examination.figures),
        "contexts": [asdict(row) for row in report.contexts],
    }


def _require_folder(page: Path) -> None:
    """Refuse a page that cannot be written before the work is done."""
    there = page.exists() or page.is_symlink()
    if (there and (page.is_symlink() or not page.is_file())) or not os.access(page.parent, os.W_OK):
        raise InputError(
            Problem(
                code="page-unwritable",
                message="the page cannot be written there",
                where=shown(page),
                hint="name a plain file in a folder that exists and that this user may write to",
            )
        )


def _write_page(path: Path, reports: list[Report]) -> None:
    from envsmith.report_html import page

    title = ", ".join(report.subject for report in reports[:3]) + (", …" if len(reports) > 3 else "")
    write_atomic(path, page(reports, title=f"envsmith verify {title}"))


def report_text(examination: Examination) -> str:
    """Render one report: findings with what to do, then one line of summary."""
    return text(replace(examination.report, figures=figures(examination)))
