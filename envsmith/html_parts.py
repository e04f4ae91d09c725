"""The small parts of the page of `--html`; what others chose becomes HTML here and nowhere else."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping

from envsmith.errors import printable
from envsmith.redaction import CUT, holds_secret, redacted

#: Long names may break after these, before they break anywhere.
_BREAKS = re.compile(r"(?<=/)(?=[^/\s])|(?<=[:,])(?=[/~])")


def shown(value: str) -> str:
    """Escape a text: markup is text, control and direction characters are seen by their numbers, secrets are cut."""
    return _BREAKS.sub("<wbr>", plain(value))


def plain(value: str) -> str:
    """The same without places to break, for the title and for attributes."""
    return html.escape(printable(redacted(value), keep="\n"))


def words(sentence: str) -> str:
    """Escape a sentence and set what stands between backticks as code."""
    return _with_code(sentence, "<code>{}</code>")


def command_words(hint: str) -> str:
    """The same for a hint: what looks like a command, having a space, can be copied."""
    return _with_code(hint, "<code>{}</code>", '<code data-command="">{}</code>')


def _with_code(sentence: str, form: str, command: str | None = None) -> str:
    said = []
    for n, part in enumerate(redacted(sentence).split("`")):
        use = command if command and " " in part.strip() else form
        said.append(use.format(shown(part)) if n % 2 else shown(part))
    # an odd number of backticks: the last one was no opening one
    if len(said) % 2 == 0:
        said[-1] = "`" + shown(redacted(sentence).rpartition("`")[2])
    return "".join(said)


def heading(level: int, text: str, *, safe: bool = False) -> str:
    """A heading; `safe` text is HTML already."""
    return f"<h{level}>{text if safe else shown(text)}</h{level}>"


def tiles(figures: Mapping[str, str], kinds: Iterable[str]) -> str:
    """Figures at a glance; the first ones have a kind that colours them."""
    coloured = dict(zip(figures, kinds, strict=False))
    items = "".join(
        f"<div{f' class={kind}' if (kind := coloured.get(label)) else ''}><dt>{shown(label)}</dt>"
        f"<dd>{shown(value)}</dd></div>"
        for label, value in figures.items()
    )
    return f'<dl class="tiles">{items}</dl>'


def value_of(label: str, value: str) -> str:
    """The value of a variable or fact, unless its name says that it is secret."""
    return CUT if holds_secret(label) else shown(value)


def facts(environment: Mapping[str, str], anchor: str, level: int) -> str:
    """What was verified, and where."""
    if not environment:
        return ""
    rows = "".join(
        f"<div><dt>{shown(label)}</dt><dd>{value_of(label, value)}</dd></div>\n" for label, value in environment.items()
    )
    head = heading(level, "Environment")
    return f'<section class="sheet" id="{anchor}">{head}\n<dl class="facts">{rows}</dl></section>\n'


def tools(what: str, choices: Iterable[str], *, folded: bool = False) -> str:
    """What a script shows and uses: search, filters; hidden where none runs."""
    search = f'<label class="wide">Search {what} <input type="search" autocomplete="off" spellcheck="false"></label>'
    live = '<span class="soft" aria-live="polite"></span>'
    if what == "packages":
        options = "".join(f'<option value="{plain(choice)}">{shown(choice)}</option>' for choice in choices)
        more = f'<label>State <select><option value="">all</option>{options}</select></label>'
    else:
        boxes = "".join(
            f'<label><input type="checkbox" value="{choice}" checked> {choice}s</label>' for choice in choices
        )
        more = f"<fieldset><legend>Show</legend>{boxes}</fieldset>"
        more += '<button type="button" aria-pressed="false">Unfold all</button>' if folded else ""
    return f'<div class="tools" hidden>{search}{more}{live}</div>\n'
