"""The record of a climb: one value for the JSON form, the text, and the evidence."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from envsmith.commands.climbing import Climb, Climbed
from envsmith.redaction import redacted, without_secrets
from envsmith.report import Finding, Report, Severity, ordered
from envsmith.report_text import text
from envsmith.scrubbing import Scrubber, known_secrets
from envsmith.smoke import Rung


def record_of(
    way: Climb, rungs: Sequence[Rung], climbed: Sequence[Climbed], *, started: datetime, seconds: float
) -> dict[str, Any]:
    """What `--json` gives as `data`."""
    rows = [_row(one) for one in climbed]
    rows += [_unclimbed(rung) for rung in rungs[len(climbed) :]]
    findings = [without_secrets(one) for one in (*way.remarks, *(f for one in climbed for f in one.findings))]
    scrubber = Scrubber(known_secrets({**way.environ, **way.launched}))
    whole = {
        "env": way.subject.name,
        "directory": way.subject.env_dir,
        "folder": str(way.folder),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "result": result_of(climbed),
        "rungs": rows,
        "findings": [finding.to_dict() for finding in ordered(findings)],
    }
    record: dict[str, Any] = scrubber.value(whole)
    return record


def result_of(climbed: Sequence[Climbed]) -> str:
    """`passed`, or the status of the rung where the climb ended."""
    return climbed[-1].status if climbed else "passed"


def _row(one: Climbed) -> dict[str, Any]:
    run = one.run
    memory = {"before": run.memory_before, "after": run.memory_after} if run.memory_before is not None else None
    answer = run.answers.get(0, {})
    return {
        "rung": run.rung.label,
        "kind": run.rung.kind,
        "status": one.status,
        "seconds": run.seconds,
        "device": run.device,
        "ranks": run.rung.ranks,
        "steps": run.rung.steps,
        "timeout_s": run.rung.timeout_s,
        "options": dict(run.rung.options),
        "argv": [redacted(word) for word in run.argv],
        "exit_codes": {str(end.rank): end.returncode for end in run.ended},
        "ends": {str(end.rank): end.words for end in run.ended},
        "figures": finite(answer.get("figures", {})),
        "figures_of_ranks": {str(rank): finite(other["figures"]) for rank, other in run.answers.items() if rank},
        "identities": answer.get("identities", {}),
        "statements": [{"rank": rank, **statement} for rank, statement in run.statements],
        "first_error": asdict(one.first_error) if one.first_error else None,
        "last_words": [redacted(line) for line in one.last_words],
        "device_memory": memory,
        "left_behind": [{"pid": left.pid, "name": left.name} for left in run.leftovers],
        "shared_memory_left": [asdict(segment) for segment in run.segments],
        "folder": one.folder.name,
    }


def finite(value: Any) -> Any:
    """The same with NaN and infinities as text: JSON has no numbers for them, and other readers refuse ours."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _unclimbed(rung: Rung) -> dict[str, Any]:
    return {"rung": rung.label, "kind": rung.kind, "status": "not-run", "options": dict(rung.options)}


def text_of(record: dict[str, Any], climbed: Sequence[Climbed]) -> str:
    """For people: the findings with what to do, a line a rung, and how it came out."""
    findings = tuple(finding for one in climbed for finding in one.findings if finding.severity is not Severity.NOTE)
    blocks = []
    if findings:
        report = Report(subject=record["env"], families=(), findings=ordered(findings))
        blocks.append(text(report).rpartition("\n\n")[0])
    blocks += [_first_error(one) if one.first_error else _last_words(one) for one in climbed]
    lines = [_line(row) for row in record["rungs"]]
    lines += _notes(finding for one in climbed for finding in one.findings)
    blocks.append("\n".join(lines))
    last = f"{record['env']}: {_verdict(record)}; logs and answers in {record['folder']}"
    return "\n\n".join([*filter(None, blocks), last])


def _notes(findings: Iterable[Finding]) -> list[str]:
    """One line for what several rungs say in the same words."""
    said: dict[tuple[str, str], list[str]] = {}
    for one in findings:
        if one.severity is Severity.NOTE:
            said.setdefault((one.kind, one.message), []).append(one.check)
    return [
        f"note[{kind}]: {redacted(message)} ({', '.join(dict.fromkeys(rungs))})"
        for (kind, message), rungs in said.items()
    ]


def _verdict(record: dict[str, Any]) -> str:
    ran = [row for row in record["rungs"] if row["status"] != "not-run"]
    if record["result"] == "passed":
        partly = [row["rung"] for row in ran if _warns(row)]
        some = f", {', '.join(partly)} in part" if partly else ""
        return f"all {len(ran)} rungs passed{some} in {record['seconds']:.0f} s"
    rest = len(record["rungs"]) - len(ran)
    words = "is inconclusive: it proved nothing" if record["result"] == "inconclusive" else "failed"
    return f"the rung `{ran[-1]['rung']}` {words}" + (f", {rest} not climbed" if rest else "")


def _line(row: dict[str, Any]) -> str:
    if row["status"] == "not-run":
        return f"{row['status']:<13} {row['rung']}"
    where = f", {row['device']}" if row["device"] else ""
    partly = "; in part only, see its warnings" if _warns(row) else ""
    return f"{row['status']:<13} {row['rung']} ({row['seconds']:.1f} s{where}){partly}"


def _warns(row: dict[str, Any]) -> bool:
    return row["status"] == "passed" and any(one["verdict"] == "warning" for one in row["statements"])


def _last_words(one: Climbed) -> str:
    """The end of the log of a rung that failed without a line which says why."""
    if not one.last_words:
        return ""
    lines = "\n".join(f"  {redacted(line)}" for line in one.last_words)
    return f"no line of `{one.run.rung.label}` says why; its log {one.folder.name}/rank0.log ends with\n{lines}"


def _first_error(one: Climbed) -> str:
    error = one.first_error
    assert error is not None
    where = f"{one.folder.name}/{error.file}:{error.line}"
    return f"first effective error of `{one.run.rung.label}`, {where}\n  {redacted(error.text)}"
