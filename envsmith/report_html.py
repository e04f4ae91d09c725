"""Reports as one page that needs nothing else: no network, no script for reading, from a disk or on paper.

Everything a report says was chosen by others, so it goes through `shown` and only through it. A policy in the page
lets nothing run but our own script, which only searches, filters, sorts and copies. Same reports, same bytes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from string import Template

from envsmith.data import text
from envsmith.html_parts import command_words, facts, heading, plain, shown, tiles, tools, words
from envsmith.html_tables import contexts, packages
from envsmith.redaction import without_secrets
from envsmith.report import Cause, Finding, Report, Severity, causes, mark

#: So many rows of a cause stand open, by the number of causes of the report; the rest is folded in.
_OPEN_ROWS = ((10, 10), (40, 3))
#: From so many causes on a list of them comes first; up to so many it stands open.
_LISTED = (8, 40)
#: Expected and actual stand side by side up to this many characters.
_SHORT = 60


def page(reports: Sequence[Report], *, title: str) -> str:
    """Render reports as an HTML document."""
    script = text("report.js")
    digest = base64.b64encode(hashlib.sha256(f"\n{script}".encode()).digest()).decode()
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    level = 2 if len(reports) == 1 else 3
    sections = "\n".join(_env(report, f"e{n}", level) for n, report in enumerate(reports))
    body = f'{_top(reports, title)}\n<main id="main">\n{_overview(reports)}{sections}\n</main>\n{_footer()}'
    return Template(text("report.html")).substitute(
        policy=policy,
        title=plain(f"{_verdict(reports)[1]}: {title}"),
        style=text("report.css"),
        script=script,
        body=body,
    )


def _verdict(reports: Iterable[Report]) -> tuple[str, str]:
    """The class of the banner and its word."""
    severities = {finding.severity for report in reports for finding in report.findings}
    if Severity.ERROR in severities:
        return "failed", "Failed"
    return ("warned", "Passed with warnings") if Severity.WARNING in severities else ("passed", "Passed")


def _top(reports: Sequence[Report], title: str) -> str:
    kind, word = _verdict(reports)
    sign = {"failed": "\u2715", "warned": "!", "passed": "\u2713"}[kind]
    findings = [finding for report in reports for finding in report.findings]
    what = f"{len(findings):,} findings of {len(causes(findings)):,} causes" if len(findings) > 1 else counts(findings)
    figures = {f"{severity.value}s": f"{_count(findings, severity):,}" for severity in Severity}
    figures |= dict(reports[0].figures) if len(reports) == 1 else {"environments": f"{len(reports):,}"}
    return (
        f'<header>\n<div class="verdict {kind}">\n<h1>{shown(title)}</h1>\n'
        f'<p class="word"><span aria-hidden="true">{sign}</span> {word}: {what}</p>\n'
        f'<p class="mark">Check <code>{mark(reports)}</code> names these findings on every paper</p>\n</div>\n'
        f"{tiles(figures, [severity.value if _count(findings, severity) else '' for severity in Severity])}\n"
        f"{_navigation(reports)}\n</header>"
    )


def _navigation(reports: Sequence[Report]) -> str:
    if len(reports) == 1:
        links = [(f"e0-{part.lower()}", part) for part in _parts(reports[0])]
    else:
        links = [(f"e{n}", report.subject) for n, report in enumerate(reports)]
    items = "".join(f'<li><a href="#{anchor}">{shown(label)}</a></li>' for anchor, label in links)
    return f'<nav aria-label="Parts of this report"><ul>{items}</ul></nav>'


def _parts(report: Report) -> list[str]:
    parts = {
        "Environment": report.environment,
        "Findings": True,
        "Contexts": report.contexts,
        "Packages": report.packages,
    }
    return [name for name, there in parts.items() if there]


def _overview(reports: Sequence[Report]) -> str:
    """The envs below each other, where there are several."""
    if len(reports) == 1:
        return ""
    rows = "".join(
        f'<tr><th scope="row"><a href="#e{n}">{shown(report.subject)}</a></th><td>{_badge([report])}</td>'
        f"<td>{counts(report.findings)}</td><td>{words(', '.join(report.families))}</td></tr>\n"
        for n, report in enumerate(reports)
    )
    return (
        '<div class="sheet"><div class="scroll" role="region" aria-label="Environments" tabindex="0"><table>\n'
        "<caption>Environments</caption>\n<thead><tr>"
        + "".join(f'<th scope="col">{name}</th>' for name in ("Environment", "Verdict", "Findings", "Looked at"))
        + f"</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div></div>\n"
    )


def _badge(reports: Sequence[Report]) -> str:
    kind, word = _verdict(reports)
    return f'<span class="badge {dict(failed="error", warned="warning").get(kind, "passed")}">{word}</span>'


def _env(report: Report, anchor: str, level: int) -> str:
    parts = [
        facts(report.environment, f"{anchor}-environment", level),
        _findings(report, anchor, level),
        contexts(report.contexts, f"{anchor}-contexts", level),
        packages(report.packages, f"{anchor}-packages", level),
    ]
    if level > 2:
        figures = tiles(report.figures, ()) if report.figures else ""
        head = f"<h2>{shown(report.subject)} {_badge([report])}</h2>\n{figures}"
    else:
        head = ""
    return f'<section class="env" id="{anchor}">{head}{"".join(parts)}</section>'


# --- findings ---


def _findings(report: Report, anchor: str, level: int) -> str:
    found = causes(map(without_secrets, report.findings))
    families = _families(report, found)
    open_rows = next((rows for most, rows in _OPEN_ROWS if len(found) <= most), 1)
    strip = "".join(_family_link(family, members, anchor, n) for n, (family, members) in enumerate(families.items()))
    blocks = "".join(
        _family(family, members, f"{anchor}-f{n}", level + 1, open_rows)
        for n, (family, members) in enumerate(families.items())
        if members
    )
    severities = [severity.value for severity in Severity if report.count(severity)]
    tool = tools("findings", severities, folded="<details" in blocks)
    return (
        f'<section class="sheet" id="{anchor}-findings"{" data-part=findings" if found else ""}>\n'
        f"{heading(level, 'Findings')}\n"
        f'<ul class="families" aria-label="Families that were looked at">{strip}</ul>\n'
        + (
            _list_of_causes(families, anchor) + tool + blocks
            if found
            else "<p>Nothing was found: what was looked at is as it should be.</p>\n"
        )
        + "</section>\n"
    )


def _families(report: Report, found: Sequence[Cause]) -> Mapping[str, list[Cause]]:
    """Causes by family: what fails first, and then as it was looked at."""
    named: dict[str, list[Cause]] = {family: [] for family in report.families}
    for cause in found:
        named.setdefault(cause.check, []).append(cause)
    ranks = list(Severity)
    worst = {family: min((ranks.index(c.severity) for c in members), default=9) for family, members in named.items()}
    return {family: named[family] for family in sorted(named, key=worst.__getitem__)}


def _list_of_causes(families: Mapping[str, Sequence[Cause]], anchor: str) -> str:
    """What was found at a glance, in the order of the page."""
    linked = [
        (f"{anchor}-f{n}-c{m}", cause) for n, members in enumerate(families.values()) for m, cause in enumerate(members)
    ]
    fewest, most_open = _LISTED
    if len(linked) < fewest:
        return ""
    items = "".join(
        f'<li><span class="badge {cause.severity.value}">{cause.severity.value}</span> '
        f'<a href="#{place}"><code>{shown(cause.name)}</code></a> '
        f'<span class="soft"><span aria-hidden="true">\u00d7</span> {len(cause.findings):,}</span></li>\n'
        for place, cause in linked
    )
    is_open = " open" if len(linked) <= most_open else ""
    return (
        f'<details class="rest"{is_open}><summary>{len(linked):,} causes at a glance</summary>'
        f'<ul class="glance">{items}</ul></details>\n'
    )


def _family_link(family: str, members: Sequence[Cause], anchor: str, n: int) -> str:
    label = f"<b>{shown(family)}</b> {counts(_members(members))}"
    if not members:
        return f"<li><span>{label}</span></li>"
    return f'<li class="{members[0].severity.value}"><a href="#{anchor}-f{n}">{label}</a></li>'


def _family(family: str, members: Sequence[Cause], anchor: str, level: int, open_rows: int) -> str:
    head = heading(level, f"{shown(family)} <small>{counts(_members(members))}</small>", safe=True)
    blocks = "".join(_cause(cause, f"{anchor}-c{n}", level + 1, open_rows) for n, cause in enumerate(members))
    return f'<section class="family" id="{anchor}">{head}\n{blocks}</section>\n'


def _cause(cause: Cause, anchor: str, level: int, open_rows: int) -> str:
    severity, count = cause.severity.value, len(cause.findings)
    head = (
        f'<span class="badge {severity}">{severity}</span> <code>{shown(cause.name)}</code> '
        f'<span class="n">{count:,} finding{"s" if count > 1 else ""}</span>'
    )
    one_message = len(cause.by_message()) == 1
    message = f'<p class="message">{words(cause.findings[0].message)}</p>\n' if one_message else ""
    hint = f'<p class="hint"><b>What to do:</b> {command_words(cause.hint)}</p>\n' if cause.hint else ""
    return (
        f'<article class="cause {severity}" id="{anchor}" data-severity="{severity}">\n'
        f"{heading(level, head, safe=True)}\n{message}{hint}"
        f"{_rows(cause.findings, open_rows, own_message=not one_message)}</article>\n"
    )


def _rows(findings: Sequence[Finding], open_rows: int, *, own_message: bool) -> str:
    rows = [_row(finding, own_message=own_message) for finding in findings]
    open_rows += len(rows) == open_rows + 1  # folding a single row in would save nothing
    first, rest = rows[:open_rows], rows[open_rows:]
    folded = f'<ul class="rows">{"".join(rest)}</ul>'
    return f'<ul class="rows">{"".join(first)}</ul>' + (
        f'<details class="more"><summary>{len(rest):,} more</summary>{folded}</details>\n' if rest else "\n"
    )


def _row(finding: Finding, *, own_message: bool) -> str:
    pairs = (("expected", finding.expected), ("actual", finding.actual))
    values = [(name, value) for name, value in pairs if value is not None]
    message = f"<p>{words(finding.message)}</p>" if own_message else ""
    long = any(len(value) > _SHORT for _, value in values)
    said = "".join(f"<div><dt>{name}</dt><dd><code>{shown(value)}</code></dd></div>" for name, value in values)
    details = f"<dl{' class=whole' if long else ''}>{said}</dl>" if said else ""
    return f'<li><code class="subject">{shown(finding.subject)}</code>{message}{details}</li>\n'


def _members(found: Iterable[Cause]) -> Iterator[Finding]:
    for cause in found:
        yield from cause.findings


def counts(findings: Iterable[Finding]) -> str:
    """How many of each severity, in words."""
    found = list(findings)
    said = [(_count(found, severity), severity.value) for severity in Severity]
    return ", ".join(f"{n:,} {word}{'s' if n > 1 else ''}" for n, word in said if n) or "no findings"


def _count(findings: Iterable[Finding], severity: Severity) -> int:
    return sum(finding.severity is severity for finding in findings)


def _footer() -> str:
    return (
        "<footer><p>Made by <code>envsmith verify --html</code>. Passwords, tokens and the values of variables whose "
        "names say so were cut. Every kind of finding is explained in <code>docs/verify.md</code>.</p></footer>"
    )
