"""The one page of an evidence folder as a value, and as Markdown; `evidencehtml` makes the same value a web page.

It is made of the other files of the folder alone, so whoever has those can make it again. Everything it shows was
chosen by others: `_cell` takes marks and line ends out of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from envsmith.errors import printable
from envsmith.evidence import About
from envsmith.evidencefacts import Rung, ending
from envsmith.receipt import Receipt
from envsmith.recipe import RUNGS as LADDER

#: So many rows of each part are shown; the page has about 60 lines.
MOST_RUNGS: Final = 24
_MOST: Final = 6
#: Figures that say most, by a part of their name, in this order.
_KEY_FIGURES = ("loss", "grad", "reward", "tokens_per_s", "gb_per_s", "gib_per_s", "max_abs", "similarity", "memory")
_ROW = re.compile(r"^\| ([^|]+?) \| (passed|failed|inconclusive|skipped|not-run) \|", re.MULTILINE)
_WORDS = {
    "passed": "every rung that ran passed",
    "failed": "at least one rung failed",
    "inconclusive": "at least one rung proved nothing",
    "nothing-passed": "no rung passed, and none failed",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One rung in the table."""

    rung: str
    status: str
    seconds: str
    device: str
    figures: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What the page says."""

    about: About
    words: str
    """The result in a sentence."""
    facts: tuple[tuple[str, str], ...]
    """Label and value: env, machine, digests."""
    rows: tuple[Row, ...]
    not_proved: tuple[str, ...]
    """What was not run, and what ran in a lesser way, with the reason."""
    patches: tuple[str, ...]
    warnings: tuple[str, ...]
    errors: tuple[str, ...]
    """The first effective error of each rung that did not pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """What the page is made of, each as the folder has it."""

    about: About
    receipt: Receipt
    rungs: tuple[Rung, ...]
    findings: Sequence[Mapping[str, Any]]
    host: Mapping[str, Any]
    """The table `[host]` of the snapshot."""
    patches: Sequence[Mapping[str, Any]]
    stacks: Mapping[str, str]
    """Rung folder to how a rank of it died, where native stacks were found."""


def summarise(told: Told) -> Summary:
    """Make the page's value."""
    return Summary(
        about=told.about,
        words=_WORDS[told.about.result],
        facts=tuple(_facts(told)),
        rows=tuple(row_of(rung) for rung in told.rungs),
        not_proved=_capped(_not_proved(told.rungs), 8),
        patches=_capped(_patches(told), 8),
        warnings=_capped(_warnings(told), _MOST),
        errors=_capped(_errors(told), _MOST),
    )


def _facts(told: Told) -> Iterator[tuple[str, str]]:
    about, receipt, host = told.about, told.receipt, told.host
    yield "env", f"{about.name}, Python {receipt.python}, built {receipt.built_at} by envsmith {receipt.envsmith}"
    yield "fingerprint", about.fingerprint
    yield "lock", f"sha256:{about.lock}"
    yield "portable files", f"sha256:{receipt.portable}"
    cards = [one for one in host.get("accelerator", ()) if isinstance(one, Mapping)]
    yield "devices", ", ".join(f"{one.get('count', 1)} × {one.get('name')}" for one in cards) or "none"
    yield "driver", f"{host.get('driver') or 'none'}, libcuda {host.get('libcuda') or 'not found'}"
    machine = (host.get("os"), host.get("arch"), f"kernel {host.get('kernel')}", f"glibc {host.get('glibc')}")
    yield "machine", ", ".join(str(one) for one in machine if one)
    yield "run", f"{about.started} to {about.ended}, by envsmith {about.envsmith}"


def row_of(rung: Rung) -> Row:
    """A rung as the table has it."""
    shown = [f"{name} {value}" for name, value in key_figures(rung.figures)]
    return Row(
        rung=rung.rung,
        status=rung.status,
        seconds=f"{rung.seconds:.1f}",
        device=rung.device or "-",
        figures=", ".join(shown) or "-",
    )


def key_figures(figures: Mapping[str, Any], most: int = 4) -> list[tuple[str, str]]:
    """The figures that say most, short enough for a table."""

    def rank(name: str) -> tuple[int, str]:
        low = name.lower()
        return next((n for n, part in enumerate(_KEY_FIGURES) if part in low), len(_KEY_FIGURES)), name

    short = [(name, said) for name in sorted(figures, key=rank) if (said := _figure(figures[name])) is not None]
    return short[:most]


def _figure(value: Any) -> str | None:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, str):
        return value if len(value) <= 24 else None
    if isinstance(value, list) and len(value) == 1:
        return _figure(value[0])
    numbers = isinstance(value, list) and len(value) > 1 and all(isinstance(one, int | float) for one in value)
    return f"{_figure(value[0])} … {_figure(value[-1])}" if numbers else None


def _not_proved(rungs: tuple[Rung, ...]) -> Iterator[str]:
    there = {rung.kind for rung in rungs}
    left = [rung.rung for rung in rungs if rung.status == "not-run"]
    if left:
        yield f"not run, because a rung before did not pass: {', '.join(left)}"
    absent = [name for name in LADDER if name not in there]
    if absent:
        yield f"not in this run: {', '.join(absent)} (not asked for, or the env lacks their packages)"
    for rung in rungs:
        said = [str(one.get("message")) for one in rung.statements if one.get("verdict") == "inconclusive"]
        if rung.status == "skipped":
            why = [str(one.get("message")) for one in rung.statements if one.get("message")]
            yield f"{rung.rung} was skipped{': ' + why[0] if why else ''}"
        elif rung.status == "inconclusive":
            yield f"{rung.rung} proved nothing{': ' + said[0] if said else ''}"
    on_cpu = [rung.rung for rung in rungs if (rung.device or "").split(" ")[0] == "cpu"]
    if on_cpu:
        yield f"ran on the CPU, so nothing is proved of a GPU: {', '.join(on_cpu)}"


def _patches(told: Told) -> Iterator[str]:
    said = [(rung.rung, one) for rung in told.rungs for one in rung.statements if "patch" in str(one.get("what"))]
    for target in told.patches:
        for series in target.get("series", ()):
            for patch in series.get("patches", ()):
                path, name = str(patch["path"]), str(patch["path"]).rpartition("/")[2]
                ran = [
                    f"{_slug_words(one)} in {rung}"
                    for rung, one in said
                    if name in str(one.get("subject")) or name in str(one.get("message"))
                ]
                seen = f"; {', '.join(dict.fromkeys(ran))}" if ran else "; no rung says that it ran these lines"
                sha256 = f"sha256:{str(patch['sha256'])[:12]}"
                yield f"{target.get('target')}: {path} ({series.get('layer')}), {sha256}{seen}"


def _slug_words(statement: Mapping[str, Any]) -> str:
    """`patch-not-exercised` as `not exercised`."""
    return str(statement.get("what")).removeprefix("patch-").replace("-", " ")


def _warnings(told: Told) -> Iterator[str]:
    for one in told.findings:
        if one.get("severity") == "warning":
            yield f"{one.get('check')}, {one.get('subject')}: {one.get('message') or one.get('actual') or ''}"


def _errors(told: Told) -> Iterator[str]:
    for rung in told.rungs:
        if rung.status not in ("failed", "inconclusive"):
            continue
        codes = [
            f"rank {rank}: {ending(rung, rank) if code is None else code}"
            for rank, code in sorted(rung.exit_codes.items())
            if code != 0
        ]
        first = rung.first_error
        if first:
            said = f"{first.get('file')}:{first.get('line')}: {first.get('text')}"
        else:
            against = [str(one.get("message")) for one in rung.statements if one.get("verdict") == "failed"]
            against += [
                f"{one.get('message')}" + (f" ({one['actual']})" if one.get("actual") else "")
                for one in told.findings
                if one.get("severity") == "error" and rung.rung in (one.get("check"), one.get("subject"))
            ]
            said = against[0] if against else "see its log"
        died = f"; {told.stacks[rung.folder]}" if rung.folder in told.stacks else ""
        yield f"{rung.rung}: {said}{' (' + ', '.join(codes) + ')' if codes else ''}{died}"


def _capped(lines: Iterable[str], most: int) -> tuple[str, ...]:
    kept = list(dict.fromkeys(lines))
    return tuple(kept) if len(kept) <= most else (*kept[: most - 1], f"and {len(kept) - most + 1} more, in record.json")


def markdown(summary: Summary) -> str:
    """The page as Markdown."""
    lines = [
        f"# Evidence: {_cell(summary.about.name)}",
        "",
        _result_line(summary.about) + f": {summary.words}",
        "",
        *(f"- {label}: {_cell(value)}" for label, value in summary.facts),
        "",
        "| rung | status | seconds | device | figures |",
        "| --- | --- | --- | --- | --- |",
        *(_table_row(row) for row in summary.rows[:MOST_RUNGS]),
    ]
    if len(summary.rows) > MOST_RUNGS:
        lines += ["", f"{len(summary.rows) - MOST_RUNGS} more rungs stand in record.json."]
    for title, part in parts(summary):
        lines += ["", f"## {title}", "", *(f"- {_cell(line, 400)}" for line in part)]
    lines += ["", "## How to check", "", HOW, ""]
    return "\n".join(lines)


#: How a reader checks the folder, below every page.
HOW: Final = (
    "`envsmith inspect DIR --check` reads every byte of this folder and holds its files against each other; "
    "`sha256sum -c SHA256SUMS` does the first half without envsmith. "
    "The digest of the whole is the sha256 of `evidence.json`: compare it with whoever made the folder."
)


def parts(summary: Summary) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The lists of the page under their titles, those that hold something."""
    listed = (
        ("First errors", summary.errors),
        ("Not proved", summary.not_proved),
        ("Patches", summary.patches),
        ("Warnings", summary.warnings),
    )
    return tuple((title, lines) for title, lines in listed if lines)


def _result_line(about: About) -> str:
    return f"**Result: {about.result}**"


def _table_row(row: Row) -> str:
    cells = (row.rung, row.status, row.seconds, row.device, row.figures)
    return f"| {' | '.join(_cell(cell) for cell in cells)} |"


def stated(text: str, about: About, rungs: Sequence[Rung]) -> tuple[list[str], list[str]]:
    """Say what a page lacks of what it has to state, and what it states besides, as ends of sentences."""
    needed = [_result_line(about), f"sha256:{about.lock}", about.fingerprint, about.started, about.ended]
    missing = [f"does not state `{words}`" for words in needed if words not in text]
    rows = [(row.rung, row.status) for row in map(row_of, rungs)]
    wanted = [(_cell(rung), status) for rung, status in rows[:MOST_RUNGS]]
    found = _ROW.findall(text)
    missing += [f"does not state that `{rung}` {status}" for rung, status in wanted if (rung, status) not in found]
    extra = [f"states that `{rung[:80]}` {status}" for rung, status in found if (rung, status) not in wanted]
    return missing, extra


def _cell(value: str, most: int = 160) -> str:
    """A text that others chose, as one that Markdown and a terminal take for text."""
    flat = printable(" ".join(value.split()), keep="")
    flat = flat if len(flat) <= most else f"{flat[: most - 1]}…"
    for mark, instead in (("&", "&amp;"), ("<", "&lt;"), ("|", "&#124;"), ("`", "'"), ("[", "&#91;"), ("*", "&#42;")):
        flat = flat.replace(mark, instead)
    return flat
