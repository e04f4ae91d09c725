"""Findings as text."""

from __future__ import annotations

from envsmith.errors import printable
from envsmith.report import Finding


def finding_text(finding: Finding) -> str:
    """Render one finding in the form of design §6."""
    lines = [f"{finding.severity.value}[{finding.check}/{finding.kind}]: {printable(finding.message, keep='')}"]
    details = (("subject", finding.subject), ("expected", finding.expected), ("actual", finding.actual))
    lines += [f"  {name + ':':<9} {printable(value, keep='')}" for name, value in details if value]
    if finding.hint:
        lines.append(f"  hint:     {finding.hint}")
    return "\n".join(lines)
