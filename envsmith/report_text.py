"""A report as text: one block a cause, then one line that sums up. Words carry everything, colour nothing."""

from __future__ import annotations

from collections.abc import Iterator

from envsmith.errors import printable
from envsmith.redaction import redacted, without_secrets
from envsmith.report import Cause, Finding, Report, causes

#: How many subjects of one cause are named before the rest is counted.
SHOWN = 10
#: Expected and actual stand on one line while it has at most this many columns.
COLUMNS = 100


def text(report: Report) -> str:
    """Render one report for a terminal; nothing in it reaches the terminal but letters, spaces and line ends."""
    blocks = [_block(cause) for cause in causes(map(without_secrets, report.findings))]
    line = report.summary()
    if report.figures:
        line += "; " + ", ".join(f"{label} {value}" for label, value in report.figures.items())
    return "\n\n".join([*blocks, _clean(redacted(line))])


def _block(cause: Cause) -> str:
    head = f"{cause.severity.value}[{_clean(cause.name)}]: "
    said = cause.by_message()
    if len(cause.findings) == 1:
        lines = [head + _clean(cause.findings[0].message), *_alone(cause.findings[0])]
    elif len(said) == 1:
        message = _clean(cause.findings[0].message)
        lines = [f"{head}{message} ({len(cause.findings):,} times)", *_subjects(cause.findings, SHOWN, "  ")]
    else:
        lines = [f"{head}{len(cause.findings):,} findings", *_by_message(said)]
    if cause.hint:
        lines.append(f"  hint:     {_clean(cause.hint)}")
    return "\n".join(lines)


def _alone(finding: Finding) -> Iterator[str]:
    details = (("subject", finding.subject), ("expected", finding.expected), ("actual", finding.actual))
    for name, value in details:
        if value:
            yield f"  {name + ':':<9} {_clean(value)}"


def _by_message(said: dict[str, tuple[Finding, ...]]) -> Iterator[str]:
    """Give every package or name its turn, so that one with many files does not hide the others."""
    each = max(1, SHOWN // len(said))
    for message, findings in list(said.items())[:SHOWN]:
        yield f"  {_clean(message)}" + (f" ({len(findings):,} times)" if len(findings) > 1 else "")
        yield from _subjects(findings, each, "    ")
    left = sum(len(findings) for findings in list(said.values())[SHOWN:])
    if left:
        yield f"  and {left:,} more in other words"


def _subjects(findings: tuple[Finding, ...], most: int, indent: str) -> Iterator[str]:
    for finding in findings[:most]:
        yield f"{indent}- {_clean(finding.subject)}"
        yield from _values(finding, indent + "  ")
    if len(findings) > most:
        yield f"{indent}- and {len(findings) - most:,} more"


def _values(finding: Finding, indent: str) -> Iterator[str]:
    pairs = (("expected", finding.expected), ("actual", finding.actual))
    values = [f"{name} {_clean(value)}" for name, value in pairs if value]
    whole = indent + ", ".join(values)
    if len(whole) <= COLUMNS:
        yield from [whole] if values else []
    else:
        yield from (indent + value for value in values)


def _clean(value: str) -> str:
    return printable(value, keep="")
