"""The one page of an evidence folder as HTML that needs nothing else: no network, no script; escaped throughout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import Template

from envsmith.data import text
from envsmith.evidence import About
from envsmith.evidencefacts import Rung
from envsmith.evidencesummary import HOW, Row, Summary, parts, row_of
from envsmith.html_parts import facts, plain, shown, words

_SIGNS = {"passed": ("passed", "\u2713"), "failed": ("failed", "\u2715")}
_BADGES = {"passed": "passed", "failed": "error", "inconclusive": "warning", "skipped": "note", "not-run": "note"}
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_COLUMNS = ("rung", "status", "seconds", "device", "figures")


def page(summary: Summary) -> str:
    """Render the page; the same value gives the same bytes."""
    kind, sign = _SIGNS.get(summary.about.result, ("warned", "!"))
    title = f"Evidence: {summary.about.name}"
    lists = "".join(
        f'<section class="sheet"><h2>{shown(head)}</h2>\n<ul class="rows">'
        + "".join(f"<li>{shown(line)}</li>\n" for line in lines)
        + "</ul></section>\n"
        for head, lines in parts(summary)
    )
    body = (
        f'<header>\n<div class="verdict {kind}">\n<h1>{shown(title)}</h1>\n'
        f'<p class="word"><span aria-hidden="true">{sign}</span> {_result(summary.about)}, '
        f"{shown(summary.words)}</p>\n</div>\n</header>\n"
        f'<main id="main">\n{facts(dict(summary.facts), "environment", 2)}{_table(summary)}{lists}'
        f'<section class="sheet"><h2>How to check</h2>\n<p>{words(HOW)}</p></section>\n</main>\n'
        "<footer><p>Made by <code>envsmith smoke --evidence</code>. What looks like a password or a token, and the "
        "values of variables whose names say so, was cut.</p></footer>"
    )
    whole = Template(text("report.html")).substitute(
        policy=_POLICY, title=plain(f"{summary.about.result}: {title}"), style=text("report.css"), script="", body=body
    )
    return whole.replace("<script>\n</script>\n", "")


def _table(summary: Summary) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in _COLUMNS)
    rows = "".join(
        f'{_begin(row)}<td class="num">{shown(row.seconds)}</td><td>{shown(row.device)}</td>'
        f"<td>{shown(row.figures)}</td></tr>\n"
        for row in summary.rows
    )
    return (
        '<div class="sheet"><div class="scroll" role="region" aria-label="Rungs" tabindex="0"><table>\n'
        f"<caption>Rungs</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div></div>\n"
    )


def _begin(row: Row) -> str:
    badge = f'<span class="badge {_BADGES[row.status]}">{shown(row.status)}</span>'
    return f'<tr><th scope="row">{shown(row.rung)}</th><td>{badge}</td>'


def _result(about: About) -> str:
    return f"Result: {shown(about.result)}"


def page_faults(html: str, about: About, rungs: Sequence[Rung]) -> Iterator[str]:
    """Say what a page states otherwise than the record, as ends of sentences."""
    needed = [(_result(about), f"the result `{about.result}`")]
    needed += [(shown(words), f"`{words}`") for words in (about.fingerprint, f"sha256:{about.lock}")]
    needed += [(_begin(row_of(rung)), f"that `{rung.folder}` {rung.status}") for rung in rungs]
    yield from (f"does not state {words}" for fragment, words in needed if fragment not in html)
    rows = html.count('<th scope="row">')
    if rows != len(rungs):
        yield f"states {rows} rungs, and there are {len(rungs)}"
