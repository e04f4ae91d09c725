"""Findings and reports: what verification says, as values, with their text and JSON forms."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
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
class Package:
    """One row of the package table of a report."""

    name: str
    version: str | None
    """As installed; None when it is not there."""
    locked: str | None
    """As the lock has it; None when it names no such package, or when there is no lock."""
    origin: str
    """`wheel`, `built`, `patched`, `source`, `base`; `unknown` beside a lock, `installed` where there is none."""
    files: int
    findings: int
    """How many findings name it or one of its files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ContextRow:
    """One process of the chain as a report shows it, beside the others."""

    name: str
    """`launched`, `spawn`, `torchrun`, `ray` …; of a running process its name and pid."""
    parent: str | None
    facts: Mapping[str, str]
    """What can be compared, by label: executable, version, prefix, a variable, the origin of a module, a library."""
    differs: tuple[str, ...] = ()
    """Labels whose value is not that of the parent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """All findings of one verification, with the families that ran and what a reader needs to judge them."""

    subject: str
    families: tuple[str, ...]
    findings: tuple[Finding, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """What was verified and where, by label: directory, Python, lock digest, host, time; for people, never judged."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """How much was looked at, by label: files, bytes read, bytes trusted."""
    packages: tuple[Package, ...] = ()
    contexts: tuple[ContextRow, ...] = ()

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """Findings that a reader takes for one: of one severity, family and kind, with one thing to do about them."""

    severity: Severity
    check: str
    kind: str
    hint: str | None
    findings: tuple[Finding, ...]

    @property
    def name(self) -> str:
        """`family/kind`, as docs/verify.md lists it."""
        return f"{self.check}/{self.kind}"

    def by_message(self) -> dict[str, tuple[Finding, ...]]:
        """Its findings under what they say, in their order."""
        said: dict[str, list[Finding]] = {}
        for finding in self.findings:
            said.setdefault(finding.message, []).append(finding)
        return {message: tuple(findings) for message, findings in said.items()}


def causes(findings: Iterable[Finding]) -> tuple[Cause, ...]:
    """Group findings by cause, errors first; whoever lost 4,000 files reads one line."""
    groups: dict[tuple[Severity, str, str, str | None], list[Finding]] = {}
    for finding in ordered(findings):
        groups.setdefault((finding.severity, finding.check, finding.kind, finding.hint), []).append(finding)
    return tuple(
        Cause(severity=severity, check=check, kind=kind, hint=hint, findings=tuple(members))
        for (severity, check, kind, hint), members in groups.items()
    )


def mark(reports: Iterable[Report]) -> str:
    """Name the findings of reports by 12 hexadecimal digits, so that two papers can be told apart.

    It is the sha256 of `data.findings` of the JSON envelope with sorted keys and no spaces; anyone can make it again.
    """
    said = [{**finding.to_dict(), "env": report.subject} for report in reports for finding in report.findings]
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:12]
