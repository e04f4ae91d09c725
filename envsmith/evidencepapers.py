"""Judging the papers of an evidence folder that are not about one rung: env, times, host, launch, verify, the pages.

Pure: what the files say comes in as values. Every fault is a sentence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from envsmith import __version__
from envsmith.evidence import HOST, LAUNCH, PAGE, RECORD, SUMMARY, VERIFY, VERIFY_TEXT, About, moment
from envsmith.evidencefacts import LONGEST_S, Rung, death, deaths, findings_of, host_of, report_of, stack_path
from envsmith.evidencehtml import page, page_faults
from envsmith.evidencesummary import Told, markdown, stated, summarise
from envsmith.receipt import Receipt
from envsmith.report_text import text as report_text

#: Clocks are read a little before and after.
_SLACK_S: Final = 5.0
_LAUNCH: Final = {
    "unset": list,
    "set": dict,
    "prepend": dict,
    "require": list,
    "directories": list,
    "environment": dict,
}


def paper_faults(
    about: About, record: Mapping[str, Any], receipt: Receipt | None, documents: Mapping[str, Any],
    texts: Mapping[str, str],
) -> Iterator[str]:  # fmt: skip
    """Say where env and times of the record, host, launch and the report of verify are not those of this run."""
    yield from _record_faults(about, record)
    if not host_of(texts.get(HOST, "")) and not texts.get(HOST, "").startswith("# the host could not be looked at: "):
        yield f"`{HOST}` has no table `[host]`"
    launch = documents.get(LAUNCH)
    if not isinstance(launch, Mapping) or not all(isinstance(launch.get(key), kind) for key, kind in _LAUNCH.items()):
        yield f"`{LAUNCH}` is not the environment of a run"
    elif receipt is not None and (lacking := sorted(set(receipt.launch.get("set") or ()) - set(launch["set"]))):
        yield f"`{LAUNCH}` does not set `{lacking[0]}`, which the env sets"
    if (VERIFY in documents) != (VERIFY_TEXT in texts):
        yield f"of `{VERIFY}` and `{VERIFY_TEXT}` only one is there"
    elif VERIFY in documents:
        yield from _report_faults(about, documents[VERIFY], texts[VERIFY_TEXT])


def _record_faults(about: About, record: Mapping[str, Any]) -> Iterator[str]:
    if record.get("env") != about.name:
        yield f"`{RECORD}` is of `{str(record.get('env'))[:80]}`, and not of `{about.name}`"
    started, ended = moment(about.started), moment(about.ended)
    said, seconds = moment(str(record.get("started"))), record.get("seconds")
    if started is None or ended is None:
        return
    if said is None or abs((said - started).total_seconds()) > 1:
        yield f"`{RECORD}` says that the run started at {str(record.get('started'))[:40]}, and not at {about.started}"
    good = type(seconds) in (int, float) and 0 <= seconds < LONGEST_S  # type: ignore[operator]
    if not good or seconds > (ended - started).total_seconds() + _SLACK_S:  # type: ignore[operator]
        yield f"`{RECORD}` does not say how long the run took, or longer than it did"


def _report_faults(about: About, document: Any, text: str) -> Iterator[str]:
    try:
        report = report_of(document)
    except ValueError as error:
        yield f"`{VERIFY}` is no report of a verification: {error}"
        return
    if about.envsmith == __version__ and report_text(report) + "\n" != text:
        yield f"`{VERIFY_TEXT}` is not the text of `{VERIFY}`"
    elif not text.strip():
        yield f"`{VERIFY_TEXT}` is empty"


def stack_faults(rungs: Sequence[Rung], texts: Mapping[str, str]) -> Iterator[str]:
    """Say which stacks begin with another end than the record has."""
    for rung in rungs:
        for rank in rung.exit_codes:
            path = stack_path(rung, rank)
            if path in texts and texts[path].split("\n")[0] != death(rung, rank):
                yield f"`{path}` does not say how the rank ended"


def pages_faults(
    about: About, record: Mapping[str, Any], receipt: Receipt | None, rungs: tuple[Rung, ...],
    patches: Any, texts: Mapping[str, str], paths: Collection[str],
) -> Iterator[str]:  # fmt: skip
    """Say which page is not the one that the other files give; of another envsmith's pages only what they state."""
    if about.envsmith != __version__:
        missing, extra = stated(texts.get(SUMMARY, ""), about, rungs)
        yield from (f"`{SUMMARY}` {words}" for words in (*missing[:10], *extra[:10]))
        yield from (f"`{PAGE}` {words}" for words in [*page_faults(texts.get(PAGE, ""), about, rungs)][:10])
        return
    if receipt is None or not isinstance(patches, list):
        return
    told = Told(
        about=about,
        receipt=receipt,
        rungs=rungs,
        findings=findings_of(record),
        host=host_of(texts.get(HOST, "")) or {},
        patches=patches,
        stacks=deaths(rungs, paths),
    )
    summary = summarise(told)
    for path, wanted in ((SUMMARY, markdown(summary)), (PAGE, page(summary))):
        if texts.get(path) != wanted:
            yield f"`{path}` is not the page that the other files of this folder give"
