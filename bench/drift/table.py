"""The table of a run, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from bench.drift.peers import TOOLS, alarm
from bench.drift.target import Target
from bench.drift.trial import Said, Status, Verdict

_MARK = {"": "-", "alarm": "alarm", "turned green": "turned green"}


def render(
    target: Target,
    seed: int,
    verdicts: Sequence[Verdict],
    clean: Said,
    untouched: Mapping[str, tuple[str, ...]],
    seconds: float,
) -> str:
    """Give all trials, then families, then one line of totals."""
    blocks = [
        f"# Drift gauntlet: {target.name}, seed {seed}",
        f"Untouched env: exit {clean.code}, {len(clean.findings)} finding(s)"
        + "".join(f"; {f['severity']} {f['check']}/{f['kind']} {f['subject']}" for f in clean.findings),
        "\n".join(_rows(verdicts, untouched)),
        "\n".join(_families(verdicts, untouched)),
        _totals(verdicts, seconds),
    ]
    return "\n\n".join(blocks) + "\n"


def _rows(verdicts: Sequence[Verdict], untouched: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    tools = TOOLS if untouched else ()
    yield "| " + " | ".join(("trial", "what was done", "verify", "said", "more", "s", *tools)) + " |"
    yield "|" + " --- |" * (6 + len(tools))
    for verdict in verdicts:
        said = verdict.said
        marks = [_MARK[alarm(untouched[tool], said.peers.get(tool, untouched[tool]))] for tool in tools]
        status = "silent" if verdict.family == "control" and verdict.status == "found" else verdict.status
        cells = (verdict.id, verdict.what, status, verdict.answer, str(verdict.other), f"{said.seconds:.1f}", *marks)
        yield "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _families(verdicts: Sequence[Verdict], untouched: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    tools = TOOLS if untouched else ()
    statuses: tuple[Status, ...] = ("found", "misnamed", "missed", "not wired", "plant failed")
    yield "| " + " | ".join(("family", "trials", *statuses, *tools)) + " |"
    yield "|" + " --- |" * (2 + len(statuses) + len(tools))
    for family in dict.fromkeys(verdict.family for verdict in verdicts):
        group = [verdict for verdict in verdicts if verdict.family == family]
        count = Counter(verdict.status for verdict in group)
        alarms = [sum(_alarmed(verdict, tool, untouched) for verdict in group) for tool in tools]
        cells = (family, len(group), *(count[status] for status in statuses), *alarms)
        yield "| " + " | ".join(map(str, cells)) + " |"


def _totals(verdicts: Sequence[Verdict], seconds: float) -> str:
    faults = [verdict for verdict in verdicts if verdict.family != "control"]
    controls = [verdict for verdict in verdicts if verdict.family == "control"]
    found = sum(verdict.status == "found" for verdict in faults)
    waiting = sum(verdict.status == "not wired" for verdict in faults)
    quiet = sum(verdict.status == "found" for verdict in controls)
    middle = median([verdict.said.seconds for verdict in verdicts] or [0.0])
    return (
        f"{found} of {len(faults)} faults named ({waiting} of families that are not wired), "
        f"{quiet} of {len(controls)} controls silent, {seconds:.0f} s, verify's median {middle:.1f} s"
    )


def _alarmed(verdict: Verdict, tool: str, untouched: Mapping[str, tuple[str, ...]]) -> bool:
    return alarm(untouched[tool], verdict.said.peers.get(tool, untouched[tool])) == "alarm"
