"""`envsmith verify`: compare the disk and what processes load with the lock."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from envsmith.commands.examine import FAMILIES, Depth, Examination, Subject, examine
from envsmith.commands.findings import finding_text
from envsmith.commands.lock import lock_file
from envsmith.commands.result import Result
from envsmith.commands.screen import Screen
from envsmith.commands.workcopies import work_copies
from envsmith.commands.workspace import BuiltEnv, built_envs, env_root, open_env, shown, user_path, was_moved
from envsmith.errors import EnvsmithError, InputError, IntegrityError, NegativeAnswer, Problem
from envsmith.lock import Lock, digest, fingerprint
from envsmith.lock import parse as parse_lock
from envsmith.manifest import Manifest
from envsmith.plan import megabytes
from envsmith.receipt import NAME as RECEIPT
from envsmith.receipt import parse as parse_receipt
from envsmith.report import Finding, Report, Severity, ordered


def run(
    envs: tuple[str, ...],
    *,
    root: str | None,
    quick: bool,
    deep: bool,
    imports: bool,
    everything: bool,
    families: tuple[str, ...],
    lock_file: str | None,
    environ: Mapping[str, str],
    screen: Screen,
) -> Result:
    """Verify the named envs, or every env under the root."""
    depth = _depth(quick=quick, deep=deep, imports=imports, everything=everything, families=families)
    folder = env_root(root, environ)
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
    return _result(examinations, failed)


def _depth(*, quick: bool, deep: bool, imports: bool, everything: bool, families: tuple[str, ...]) -> Depth:
    if quick and (deep or everything or imports):
        raise InputError(
            Problem(
                code="usage",
                message="`--quick` cannot be combined with a deeper level",
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
    mode = "stat" if quick else "deep" if deep or everything else "default"
    return Depth(bytes=mode, imports=imports or everything, families=tuple(f for f in FAMILIES if f in chosen))  # type: ignore[arg-type]


def verify_one(
    built: BuiltEnv, depth: Depth, *, lock_file: str | None, environ: Mapping[str, str], screen: Screen
) -> Examination:
    """Verify one env."""
    if built.receipt is None:
        return _never_passes(
            built,
            "half-env",
            "there is no receipt of envsmith: the build did not end, or another tool made this env",
            "build it with `envsmith build`",
        )
    if was_moved(built.directory, built.receipt):
        return _never_passes(
            built,
            "env-moved",
            f"the env was built below `{built.receipt.get('root')}`: its scripts and links name that place",
            "an env cannot be moved; build it where it should be with `envsmith build --root`",
        )
    subject = open_subject(built)
    subject = replace(subject, work=work_copies(built, subject.receipt.verify["editable"]))
    examination = examine(subject, depth, environ=environ, progress=screen)
    if lock_file is not None:
        other = parse_lock(_named_lock(lock_file), lock_file)
        more = tuple(_against(subject.lock, other))
        report = examination.report
        examination.report = Report(
            subject=report.subject, families=(*report.families, "lock"), findings=ordered((*report.findings, *more))
        )
    return examination


def _named_lock(path: str) -> str:
    return lock_file(user_path(path))


def _never_passes(built: BuiltEnv, kind: str, message: str, hint: str) -> Examination:
    """The report of an env that nothing more can be said of."""
    finding = Finding(check="files", kind=kind, severity=Severity.ERROR, subject=RECEIPT, message=message, hint=hint)
    return Examination(report=Report(subject=built.name, families=("files",), findings=(finding,)))


def open_subject(built: BuiltEnv) -> Subject:
    """Read the records of an env and hold each against the others.

    Raises:
        IntegrityError: `receipt-malformed`, `receipt-differs`, `manifest-differs`, `lock-differs`.
        NegativeAnswer: `env-records-missing`.
    """
    receipt_text = (built.directory / RECEIPT).read_text()
    receipt = parse_receipt(receipt_text, shown(built.directory / RECEIPT))
    manifest_text = _record(built, "manifest.json")
    lock_text = _record(built, "pylock.toml")
    problems = []
    if digest(receipt_text) not in _record(built, "receipt.sha256").split():
        problems.append(_differs("receipt-differs", "the receipt", built.directory / RECEIPT))
    if hashlib.sha256(manifest_text.encode()).hexdigest() != receipt.manifest:
        problems.append(_differs("manifest-differs", "the manifest", built.beside("manifest.json")))
    if digest(lock_text) != receipt.lock_sha256:
        problems.append(_differs("lock-differs", "the lock kept with the env", built.beside("pylock.toml")))
    if problems:
        raise IntegrityError(*problems)
    lock = parse_lock(lock_text, shown(built.beside("pylock.toml")))
    mark = fingerprint(lock, receipt.launch, receipt.python, receipt.python_sha256)
    if mark != receipt.fingerprint or not built.directory.name.startswith(mark[:12]):
        raise IntegrityError(_differs("receipt-differs", "the receipt", built.directory / RECEIPT))
    return Subject(
        name=built.name,
        directory=built.directory,
        receipt=receipt,
        lock=lock,
        manifest=Manifest.from_json(manifest_text),
        index=built.beside("stat.json"),
    )


def _record(built: BuiltEnv, suffix: str) -> str:
    path = built.beside(suffix)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NegativeAnswer(
            Problem(
                code="env-records-missing",
                message="a record that lies beside the env cannot be read, so nothing can be proved",
                where=shown(path),
                hint="build the env again; an env is not moved without its records",
            )
        ) from error


def _differs(code: str, what: str, path: Path) -> Problem:
    return Problem(
        code=code,
        message=f"{what} is not the one that the build wrote",
        where=shown(path),
        hint="somebody changed a record; build the env again and compare",
    )


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


def _result(examinations: list[Examination], errors: list[EnvsmithError]) -> Result:
    reports = [examination.report for examination in examinations]
    findings: list[dict[str, Any]] = []
    for report in reports:
        findings += [{**finding.to_dict(), "env": report.subject} for finding in report.findings]
    data = {
        "findings": findings,
        "envs": [
            {
                "env": examination.report.subject,
                "families": list(examination.report.families),
                "errors": examination.report.count(Severity.ERROR),
                "warnings": examination.report.count(Severity.WARNING),
                "files": examination.files,
                "hashed_bytes": examination.hashed_bytes,
                "trusted_bytes": examination.trusted_bytes,
            }
            for examination in examinations
        ],
    }
    text = "\n\n".join(report_text(examination) for examination in examinations)
    codes = [1 if report.failed else 0 for report in reports] + [error.exit_code for error in errors]
    problems = tuple(problem for error in errors for problem in error.problems)
    return Result(command="verify", data=data, text=text, exit_code=max(codes), errors=problems)


def report_text(examination: Examination) -> str:
    """Render one report: findings with what to do, then one line of summary."""
    blocks = [finding_text(finding) for finding in examination.report.findings]
    line = examination.report.summary()
    if "files" in examination.report.families:
        line += f"; read {megabytes(examination.hashed_bytes)}"
        if examination.trusted_bytes:
            line += f", trusted {megabytes(examination.trusted_bytes)} by the stat index (`--deep` reads all)"
    return "\n\n".join([*blocks, line])
