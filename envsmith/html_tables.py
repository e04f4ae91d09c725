"""The two tables of the page of `--html`: processes side by side, and packages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from envsmith.html_parts import heading, shown, tools, value_of
from envsmith.report import ContextRow, Package

#: Packages that are as locked stand open up to this many rows.
_OPEN_PACKAGES = 12
_COLUMNS = ("Package", "State", "Installed", "Locked", "Origin", "Files")


def contexts(rows: Sequence[ContextRow], anchor: str, level: int) -> str:
    """Processes side by side where they differ; what is the same everywhere is said once."""
    if not rows:
        return ""
    labels = list(dict.fromkeys(label for row in rows for label in row.facts))
    marked = {label for row in rows for label in row.differs}
    same = [label for label in labels if label not in marked and len({row.facts.get(label) for row in rows}) == 1]
    different = [label for label in (*labels, *sorted(marked - set(labels))) if label not in same]
    count = f"{len(rows):,} process{'es' if len(rows) > 1 else ''}"
    said = f"{len(different):,} of {len(same) + len(different):,} facts differ between {count}."
    table = _side_by_side(rows, different) if different else ""
    return (
        f'<section class="sheet" id="{anchor}">{heading(level, "Contexts")}\n<p class="soft">{said}</p>\n'
        f"{table}{_same(rows[0], same, count, open_=not different)}</section>\n"
    )


def _side_by_side(rows: Sequence[ContextRow], labels: Iterable[str]) -> str:
    heads = "".join(
        f'<th scope="col">{shown(row.name)}<small>{f"child of {shown(row.parent)}" if row.parent else "first process"}'
        "</small></th>"
        for row in rows
    )
    body = "".join(
        f'<tr><th scope="row">{_label(label)}</th>{"".join(_cell(row, label) for row in rows)}</tr>\n'
        for label in labels
    )
    return (
        '<div class="scroll" role="region" aria-label="Processes side by side" tabindex="0"><table class="contexts">\n'
        "<caption>What differs; a cell that is not like its parent says so</caption>\n"
        f'<thead><tr><th scope="col">Fact</th>{heads}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>\n'
    )


def _label(label: str) -> str:
    """A label; names of variables may break between their words."""
    return shown(label).replace("_", "_<wbr>")


def _cell(row: ContextRow, label: str) -> str:
    value = row.facts.get(label)
    said = '<i class="soft">absent</i>' if value is None else f"<code>{value_of(label, value)}</code>"
    if label not in row.differs:
        return f"<td>{said}</td>"
    parent = f" from {shown(row.parent)}" if row.parent else ""
    return f'<td class="differs"><strong class="flag">differs{parent}</strong>{said}</td>'


def _same(row: ContextRow, labels: Sequence[str], count: str, *, open_: bool) -> str:
    if not labels:
        return ""
    body = "".join(
        f'<tr><th scope="row">{_label(label)}</th><td><code>{value_of(label, row.facts[label])}</code></td></tr>\n'
        for label in labels
    )
    is_open = " open" if open_ else ""
    return (
        f'<details class="rest"{is_open}><summary>{len(labels):,} facts are the same in all</summary>\n'
        '<div class="scroll" role="region" aria-label="Facts that are the same" tabindex="0"><table class="pairs">'
        f"<caption>The same in {count}</caption>\n"
        f'<thead><tr><th scope="col">Fact</th><th scope="col">Value</th></tr></thead>\n<tbody>\n{body}</tbody>\n'
        "</table></div></details>\n"
    )


#: States of a package that nobody has to look at: without a lock nothing is meant, so nothing is wrong.
FINE = ("as locked", "installed")


def packages(rows: Sequence[Package], anchor: str, level: int) -> str:
    """Packages that need a look first; the many that are as locked are folded in."""
    if not rows:
        return ""
    looked = [row for row in rows if state(row) not in FINE or row.findings]
    fine = [row for row in rows if state(row) in FINE and not row.findings]
    states = sorted({state(row) for row in rows})
    good = "as locked" if any(row.locked for row in rows) else "installed"
    parts = [_table(looked, f"Not {good}, or named by a finding")] if looked else []
    if fine:
        table = _table(fine, f"{good.capitalize()}, and named by no finding")
        is_open = " open" if len(fine) <= _OPEN_PACKAGES else ""
        parts.append(f'<details class="rest"{is_open}><summary>{len(fine):,} {good}</summary>\n{table}</details>\n')
    return (
        f'<section class="sheet" id="{anchor}" data-part="packages">{heading(level, "Packages")}\n'
        f"{tools('packages', states)}{''.join(parts)}</section>\n"
    )


def state(row: Package) -> str:
    """How a package stands to the lock, in words."""
    if row.version is None:
        return "missing"
    if row.locked is None:
        return "installed" if row.origin == "installed" else "not in the lock"
    return "as locked" if row.version == row.locked else "other version"


def _table(rows: Sequence[Package], caption: str) -> str:
    heads = "".join(f'<th scope="col"{" class=num" if name == "Files" else ""}>{name}</th>' for name in _COLUMNS)
    body = "".join(map(_row, rows))
    return (
        f'<div class="scroll" role="region" aria-label="{caption}" tabindex="0"><table class="packages">\n'
        f"<caption>{caption}</caption>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}</tbody>\n</table></div>\n"
    )


def _row(row: Package) -> str:
    now = state(row)
    found = f"{row.findings:,} finding{'s' if row.findings > 1 else ''}" if row.findings else ""
    kind = "passed" if now in FINE else "error"
    badges = f'<span class="badge {kind}">{now}</span>' + (
        f' <span class="badge error">{found}</span>' if found else ""
    )
    return (
        f'<tr data-state="{now}"><th scope="row">{shown(row.name)}</th><td>{badges}</td>'
        f"<td>{_or_dash(row.version)}</td><td>{_or_dash(row.locked)}</td><td>{shown(row.origin)}</td>"
        f'<td class="num">{row.files:,}</td></tr>\n'
    )


def _or_dash(version: str | None) -> str:
    return '<span class="soft">none</span>' if version is None else f"<code>{shown(version)}</code>"
