"""Judging the rungs of an evidence folder: does the record say what the answers, the exit codes and the others say.

Every fault is a sentence. Pure: the documents come in as values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from envsmith.bundlejson import to_json
from envsmith.evidence import RUNGS, VERIFY
from envsmith.evidencefacts import (
    NOT_PASSING,
    OWN_WORK,
    UNANSWERED,
    Rung,
    answer_path,
    is_plain_name,
    statements_of,
)
from envsmith.smoke import LADDER, MEMORY_TOLERANCE_BYTES, Ended, parse_answer

#: Rungs that were not climbed.
_NOT_RUN: Final = ("skipped", "not-run")
#: What envsmith says of a process that it ended itself.
_OUR_ENDS: Final = (
    Ended(rank=0, returncode=None, seconds=0.0, timed_out=True).words,
    Ended(rank=0, returncode=None, seconds=0.0, stopped=True).words,
)


def rung_faults(rung: Rung, documents: Mapping[str, Any]) -> Iterator[str]:
    """Say what is wrong with one rung, by its row and the answers of its ranks."""
    yield from _row_faults(rung)
    yield from _answer_faults(rung, documents)
    if rung.status == "passed":
        yield from _passed_faults(rung, documents)
    elif rung.status in _NOT_RUN and rung.exit_codes:
        yield f"the rung `{rung.folder}` is {rung.status}, and has exit codes"


def _row_faults(rung: Rung) -> Iterator[str]:
    """Exit codes, ends, ranks and the command line belong together."""
    for rank, code in sorted(rung.exit_codes.items()):
        words = rung.ends.get(rank)
        if words not in (_OUR_ENDS if code is None else (Ended(rank=0, returncode=code, seconds=0.0).words,)):
            yield f"rank {rank} of `{rung.folder}` has the exit code {code}, and ended with `{str(words)[:60]}`"
    if set(rung.ends) != set(rung.exit_codes):
        yield f"the rung `{rung.folder}` has ends of other ranks than exit codes"
    if rung.status in _NOT_RUN or rung.kind not in LADDER:
        return
    about = LADDER[rung.kind]
    processes = _processes(rung)
    if rung.kind not in OWN_WORK and rung.exit_codes and set(rung.exit_codes) != set(map(str, range(processes))):
        yield f"the rung `{rung.folder}` ran as {processes} processes, and has {len(rung.exit_codes)} exit codes"
    if about.payload:
        argv = rung.row.get("argv")
        wanted = ["-B", "-X", "faulthandler", "-m", f"envsmith_rungs.{rung.kind.replace('-', '_')}"]
        given = argv if isinstance(argv, list) and all(isinstance(one, str) for one in argv) else []
        if given[1:6] != wanted or len(given) != 7 or not given[6].endswith(f"/{rung.folder}/task.json"):
            yield f"the rung `{rung.folder}` has a command line that runs no rung of that kind"


def _processes(rung: Rung) -> int:
    ranks = rung.row.get("ranks")
    return ranks if LADDER[rung.kind].ranked and type(ranks) is int else 1


def _answer_faults(rung: Rung, documents: Mapping[str, Any]) -> Iterator[str]:
    """Device, figures, statements and identities of the record are those of the answers, as a run writes them."""
    answers = {}
    for rank in sorted(rung.exit_codes, key=_number) if rung.kind not in UNANSWERED else ():
        try:
            answers[rank] = parse_answer(documents.get(answer_path(rung, rank)))
        except ValueError:
            continue  # a run takes what it cannot read for no answer, too
    first = answers.get("0", {})
    statements = [{"rank": _number(rank), **one} for rank, answer in answers.items() for one in answer["statements"]]
    wanted: dict[str, Any] = {
        "device": first.get("device"),
        "figures": first.get("figures", {}),
        "figures_of_ranks": {rank: answer["figures"] for rank, answer in answers.items() if rank != "0"},
        "identities": first.get("identities", {}),
        "statements": statements,
    }
    for key, value in wanted.items():
        there = rung.row.get(key)
        if rung.status in _NOT_RUN:
            if there and (rung.status, key) != ("skipped", "statements"):
                yield f"the rung `{rung.folder}` is {rung.status}, and has `{key}`"
        elif to_json(there) != to_json(value):
            yield f"`{key}` of the rung `{rung.folder}` are not what its answers say"


def _number(rank: str) -> int:
    return int(rank) if rank.isdecimal() and rank.isascii() and len(rank) < 6 else -1


def _passed_faults(rung: Rung, documents: Mapping[str, Any]) -> Iterator[str]:
    """A rung that passed has every exit code 0, every answer, and no statement against it."""
    if not rung.exit_codes and rung.kind not in OWN_WORK:
        yield f"the rung `{rung.folder}` passed without an exit code"
    if rung.first_error is not None:
        yield f"the rung `{rung.folder}` passed, and has a first error"
    bad = sorted(rank for rank, code in rung.exit_codes.items() if code != 0)
    if bad:
        codes = ", ".join(f"rank {rank}: {rung.exit_codes[rank]}" for rank in bad)
        yield f"the rung `{rung.folder}` passed with other exit codes than 0 ({codes})"
    against = [*_against(rung.statements)]
    for rank in sorted(rung.exit_codes):
        path = answer_path(rung, rank)
        if path not in documents and rung.kind not in UNANSWERED:
            yield f"the rung `{rung.folder}` passed, and `{path}` is not there"
        elif path in documents:
            try:
                parse_answer(documents[path])
            except ValueError as error:
                yield f"the rung `{rung.folder}` passed, and `{path}` is not an answer: {error!s:.80}"
        against += [f"{path}: {what}" for what in _against(statements_of(documents.get(path)))]
    if against:
        words = ", ".join(dict.fromkeys(against))[:200]
        yield f"the rung `{rung.folder}` passed with statements against it ({words})"


def _against(statements: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for one in statements:
        if one.get("verdict") in NOT_PASSING:
            yield f"`{str(one.get('what'))[:60]}`"


def ladder_faults(rungs: Sequence[Rung], paths: Collection[str]) -> Iterator[str]:
    """Say where the rungs of a record and the files of the folder are not those of one run, whole and in order."""
    climbed = [rung for rung in rungs if rung.status not in _NOT_RUN]
    for number, rung in enumerate(climbed, 1):
        name = f"{number:02d}-{rung.rung}"
        named = rung.row.get("folder") == f"{RUNGS}/{rung.folder}" and rung.folder.startswith(f"{number:02d}-")
        if not named or (is_plain_name(name) and rung.folder != name):
            yield f"the rung `{rung.rung}` is number {number} of the record, and its folder is `{rung.folder}`"
    held = {path.split("/")[1] for path in paths if path.startswith(f"{RUNGS}/")}
    for name in sorted(held - {rung.folder for rung in climbed})[:20]:
        yield f"there are files of a rung `{name}`, and the record says of none that it was climbed"
    if VERIFY in paths and all(rung.kind != "static" for rung in climbed):
        yield f"there is a `{VERIFY}`, and the record has no rung `static`"
    if any(rung.status not in _NOT_RUN for rung in rungs[len(climbed) :]):
        yield "a rung was climbed after one that was not"


def given_back_faults(rungs: Sequence[Rung]) -> Iterator[str]:
    """Say what contradicts that everything was given back, where `exit-clean` or a command after it passed.

    Rungs before `exit-clean` are judged by it, commands by themselves.
    """
    at = next((n for n, rung in enumerate(rungs) if rung.kind == "exit-clean" and rung.status == "passed"), None)
    if at is not None:
        memory = rungs[at].row.get("device_memory")
        baseline = memory.get("before") if isinstance(memory, Mapping) else None
        for rung in rungs[:at]:
            for words in _kept(rung, baseline):
                yield f"the rung `exit-clean` passed, and `{rung.rung}` {words}"
        for words in _kept(rungs[at], baseline):
            yield f"the rung `exit-clean` passed, and afterwards it {words}"
    for rung in rungs:
        if rung.kind == "command" and rung.status == "passed":
            memory = rung.row.get("device_memory")
            for words in _kept(rung, memory.get("before") if isinstance(memory, Mapping) else None):
                yield f"the rung `{rung.rung}` passed, and {words}"


def _kept(rung: Rung, baseline: Any) -> Iterator[str]:
    """What a rung did not give back, as the ends of sentences."""
    if rung.left_behind:
        yield "left processes behind"
    if rung.row.get("shared_memory_left"):
        yield "left shared memory behind"
    if any(code != 0 for code in rung.exit_codes.values()):
        yield "has other exit codes than 0"
    memory = rung.row.get("device_memory")
    if memory is None:
        return
    after = memory.get("after") if isinstance(memory, Mapping) else ()
    if after is None or baseline is None:
        return
    if not _are_counts(after) or not _are_counts(baseline) or len(after) != len(baseline):
        yield "has counts of device memory that are none"
    elif any(now > was + MEMORY_TOLERANCE_BYTES for was, now in zip(baseline, after, strict=True)):
        yield "held device memory that was not in use before"


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)
