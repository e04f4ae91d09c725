"""Findings and reports: what verification says, as values, with their text and JSON forms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

#: What a hint says where an env has to be built again; whoever reports it fills in which one.
REBUILD = "`envsmith build --rebuild`"


class Severity(str, Enum):
    """How much a finding matters: only an error makes the answer no."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One failed or remarkable statement about an environment."""

    check: str
    """Family, one of the names that `verify --only` takes."""
    kind: str
    """Kebab-case slug of the cause, listed in docs/verify.md."""
    severity: Severity
    subject: str
    """What the finding is about: a path relative to the environment, a package, a variable."""
    message: str
    """The cause in one sentence."""
    expected: str | None = None
    actual: str | None = None
    hint: str | None = None

    def to_dict(self) -> dict[str, str | None]:
        """Render for `data.findings` of the JSON envelope."""
        return {
            "check": self.check,
            "kind": self.kind,
            "severity": self.severity.value,
            "subject": self.subject,
            "message": self.message,
            "expected": self.expected,
            "actual": self.actual,
            "hint": self.hint,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All findings of one verification, with the families that ran."""

    subject: str
    families: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> bool:
        """True when at least one finding is an error."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)

    def count(self, severity: Severity) -> int:
        """Number of findings of one severity."""
        return sum(finding.severity is severity for finding in self.findings)

    def summary(self) -> str:
        """One line: what was checked and how it came out."""
        counts = [(self.count(severity), severity.value) for severity in Severity]
        said = ", ".join(f"{n} {word}{'s' if n > 1 else ''}" for n, word in counts if n)
        return f"{self.subject}: {said or 'no findings'} ({', '.join(self.families)})"


def ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Sort errors first, then by family, kind, subject and words, so that two runs print the same bytes."""
    rank = {severity: n for n, severity in enumerate(Severity)}

    def place(finding: Finding) -> tuple[int, tuple[str, ...]]:
        said = finding.to_dict()
        return rank[finding.severity], tuple(said[key] or "" for key in said if key != "severity")

    return tuple(sorted(findings, key=place))
