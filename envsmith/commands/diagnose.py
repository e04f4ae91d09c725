"""`envsmith diagnose`: from the logs of a failed run to its cause, what proves it and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from envsmith.commands.knownenv import known, look
from envsmith.commands.logfiles import log_paths, opened, total_bytes
from envsmith.commands.result import Result
from envsmith.commands.screen import Screen
from envsmith.diagnosis import judge, read_run
from envsmith.diagnosis_text import START_UP_FIX, Told, brief, text
from envsmith.errors import InputError, Problem
from envsmith.listening import Ears, FoundFact, facts_of, progress_of
from envsmith.logs.firsterror import FirstError
from envsmith.proving import Founded, Looks, families_of, found
from envsmith.report import Severity
from envsmith.startup import Confirmation


def run(
    logs: tuple[str, ...],
    *,
    env: str | None,
    host: str | None,
    root: str | None,
    short: bool,
    environ: Mapping[str, str],
    screen: Screen,
) -> Result:
    """Name the causes of a failed run.

    Raises:
        InputError: `log-unreadable`, and what the env, its recipe or the snapshot has wrong.
        NegativeAnswer: `env-missing`.
    """
    if not logs:
        hint = "name the logs of the run that failed: `envsmith diagnose run.log rank*.log dmesg.txt`"
        raise InputError(Problem(code="usage", message="no log is named", hint=hint))
    paths = log_paths(logs)
    here = known(env, host, root, environ)
    ears = Ears.for_files([name for name, _ in paths])
    screen.start(total_bytes(paths), len(paths))
    try:
        with ExitStack() as stack:
            reading = read_run(opened(paths, stack, screen), ears.taps)
    finally:
        screen.done()
    numbers = ears.numbers()
    diagnosis = judge(reading, here.facts, progress_of(numbers))
    looks = Looks(findings={}, reasons={})
    if here.name is not None or here.host is not None:
        looks = look(here, families_of(diagnosis.causes), environ, screen)
    causes = found(diagnosis.causes, looks)
    told = Told(
        diagnosis=diagnosis,
        causes=causes,
        files=reading.files,
        samples=ears.devices(diagnosis.first.time_s if diagnosis.first else None),
        training=facts_of(reading.files, numbers, failed=diagnosis.first is not None),
        confirmations=ears.confirmations(here.recipe.job if here.recipe else None),
        env=here.name,
    )
    return _result(told, short)


def _result(told: Told, short: bool) -> Result:
    first = told.diagnosis.first
    findings = [
        *map(_finding, told.causes),
        *map(_training, told.training),
        *(_start_up(one) for one in told.confirmations if one.state == "other" and one.said is not None),
    ]
    failed = first is not None or any(one["severity"] == Severity.ERROR.value for one in findings)
    data: dict[str, Any] = {
        "findings": findings,
        "first_error": None if first is None else _first(first),
        "layer": told.diagnosis.layer,
        "start_up": [_confirmation(one) for one in told.confirmations],
        "samples": [asdict(one) for one in told.samples],
        "logs": list(told.files),
    }
    return Result(
        command="diagnose", data=data, text=brief(told) if short else text(told), exit_code=1 if failed else 0
    )


def _finding(one: Founded) -> dict[str, Any]:
    cause = one.cause
    return {
        "kind": cause.symptom.kind,
        "severity": cause.severity.value,
        "file": cause.file,
        "line": cause.line,
        "cause": cause.cause,
        "fix": cause.fix,
        "check": cause.symptom.check,
        "secondary": [asdict(line) for line in cause.secondary],
        "title": cause.symptom.title,
        "text": cause.text,
        "layer": cause.symptom.layer,
        "rank": cause.rank,
        "worker": cause.worker,
        "evidence": one.state,
        "proofs": [asdict(proof) for proof in one.proofs],
        "sources": list(cause.symptom.sources),
    }


def _training(one: FoundFact) -> dict[str, Any]:
    fact = one.fact
    return {
        "kind": fact.kind,
        "severity": fact.severity.value,
        "file": one.file,
        "line": fact.line,
        "cause": f"{fact.message}. {fact.cause}",
        "fix": fact.fix,
        "check": "log",
        "secondary": [],
        "title": fact.message,
        "field": fact.field,
        "layer": "job",
    }


def _start_up(one: Confirmation) -> dict[str, Any]:
    assert one.said is not None
    return {
        "kind": "start-up-differs",
        "severity": one.severity.value,
        "file": one.said.file,
        "line": one.said.line,
        "cause": one.message,
        "fix": START_UP_FIX,
        "check": "verify contexts",
        "secondary": [],
        "title": one.title,
        "text": one.said.text,
        "layer": "job",
    }


def _confirmation(one: Confirmation) -> dict[str, Any]:
    said = one.said
    return {
        "topic": one.topic,
        "state": one.state,
        "expected": one.expected,
        "message": one.message,
        "file": said.file if said else None,
        "line": said.line if said else None,
    }


def _first(first: FirstError) -> dict[str, Any]:
    return {name: value for name, value in asdict(first).items() if name not in ("message", "time_s")}
