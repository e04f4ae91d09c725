"""`envsmith deliver`: a checkpoint into another folder, file by file, every byte read again there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith.checkpointfolder import FolderAnswer, for_copying, judge_checkpoint_folder
from envsmith.commands.envs import shown, user_path
from envsmith.commands.findings import finding_text
from envsmith.commands.result import Result
from envsmith.commands.screen import Screen
from envsmith.delivery import LOCK, RECORD, SUMS
from envsmith.errors import InputError, Problem, SupplyError
from envsmith.plan import megabytes
from envsmith.report import Finding, Severity, ordered
from envsmith.shards import judge_checkpoint, judge_insides
from envsmith.tools.checkpointprobe import probe_checkpoint_folder, remove_trials
from envsmith.tools.checkpointread import read_checkpoint
from envsmith.tools.checkpointscan import Source, list_source
from envsmith.tools.delivering import Delivery, Outcome
from envsmith.tools.deliveryrecords import blocked, is_plain
from envsmith.tools.files import FileLock, filesystem
from envsmith.tools.store import open_store

UNFIT, NEGATIVE = 3, 1
_NAMED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What the command line asks for."""

    allow_incomplete: bool = False
    replace: bool = False


def run(source: str, destination: str, wishes: Wishes, *, environ: Mapping[str, str], screen: Screen) -> Result:
    """Look at the source, try the destination, copy, record.

    Raises:
        InputError: `delivery-overlaps`, `destination-differs` and those of `list_source`.
        IntegrityError: `delivered-file-changed`, `delivery-differs`, `delivery-source-differs`.
        SupplyError: `source-changed`, `disk-full`, `root-not-writable`, …
    """
    started = time.monotonic()
    place, target = Path(os.path.realpath(user_path(source))), Path(os.path.realpath(user_path(destination)))
    screen.step(1, 3, f"look at {shown(place)}")
    listed = list_source(place)
    _require_apart(listed, place, target)
    _require_folder(target)
    checkpoint = read_checkpoint(listed)
    lacking = ordered(judge_insides(checkpoint) if listed.is_file else judge_checkpoint(checkpoint))
    is_complete = not _fails(lacking)
    data: dict[str, Any] = {"source": str(place), "destination": str(target), "findings": _rows(lacking)}
    if not is_complete and not wishes.allow_incomplete:
        ending = f"{shown(place)} is not whole: nothing was copied (`--allow-incomplete` copies what is there)"
        return Result(command="deliver", data=data, text=_text(lacking, ending), exit_code=NEGATIVE)
    screen.step(2, 3, f"try {shown(target)}")
    answer = probe_checkpoint_folder(target)
    findings = ordered([*lacking, *for_copying(judge_checkpoint_folder(answer))])
    data |= {"findings": _rows(findings), "file_system": _answer(answer)}
    if _fails(one for one in findings if one not in lacking):
        ending = f"{shown(target)} is not fit for it: nothing was copied"
        return Result(command="deliver", data=data, text=_text(findings, ending), exit_code=UNFIT)
    screen.step(3, 3, f"copy {len(listed.files):,} files, {megabytes(listed.size)}")
    with _alone(target, environ, screen):
        outcome = Delivery(listed, target, replace=wishes.replace, progress=screen).run(is_complete=is_complete)
    return _done(data, findings, outcome, target, time.monotonic() - started)


def _done(
    data: dict[str, Any], findings: tuple[Finding, ...], outcome: Outcome, target: Path, seconds: float
) -> Result:
    delivered, copied = outcome.delivered, sum(one.content.size for one in outcome.copied)
    figures = {
        "files": len(delivered.files),
        "links": len(delivered.links),
        "bytes": delivered.size,
        "copied_files": len(outcome.copied),
        "copied_bytes": copied - outcome.resumed_bytes,
        "resumed_bytes": outcome.resumed_bytes,
        "complete": delivered.is_complete,
        "digest": delivered.digest,
        "record": str(target / RECORD),
        "sums": str(target / SUMS),
        "without_mode_or_time": list(outcome.undressed),
        "no_longer_recorded": list(outcome.dropped),
        "seconds": round(seconds, 3),
    }
    kept = len(delivered.files) - len(outcome.copied)
    parts = [f"{len(outcome.copied):,} copied"] if outcome.copied else []
    parts += [f"{kept:,} there already"] if kept else []
    parts += [f"{megabytes(outcome.resumed_bytes)} continued"] if outcome.resumed_bytes else []
    lines = [
        f"{shown(target)}: {len(delivered.files):,} files, {megabytes(delivered.size)}, each read again "
        f"({', '.join(parts)})",
        f"digest: {delivered.digest}",
        f"check it with: cd {shlex.quote(shown(target))} && sha256sum -c {SUMS}",
    ]
    if outcome.dropped:
        named = ", ".join(f"`{path}`" for path in outcome.dropped[:_NAMED])
        lines.insert(1, f"not as an earlier delivery left them, so no longer in the record: {named[:500]}")
    if outcome.undressed:
        lines.insert(1, f"the file system did not take mode or time of {len(outcome.undressed):,} files")
    return Result(command="deliver", data={**data, **figures}, text=_text(findings, "\n".join(lines)))


def _require_apart(source: Source, place: Path, target: Path) -> None:
    """Refuse folders that hold each other, by whatever names.

    Raises:
        InputError: `delivery-overlaps`.
    """
    if source.is_file:
        overlaps = _holds(place.parent, target) and _same(place.parent, target)
    else:
        overlaps = _holds(place, target) or _holds(target, place)
    if overlaps:
        message = f"`{target}` and the source `{place}` hold each other"
        hint = "name a destination outside of the source, and not above it"
        raise InputError(Problem(code="delivery-overlaps", message=message, hint=hint))


def _require_folder(target: Path) -> None:
    """Refuse a destination that is no folder and can be none.

    Raises:
        InputError: `destination-differs`.
    """
    there = next(one for one in (target, *target.parents) if os.path.lexists(one))
    if not there.is_dir():
        raise InputError(blocked(there))


def _holds(above: Path, below: Path) -> bool:
    return any(_same(above, one) for one in (below, *below.parents))


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


@contextlib.contextmanager
def _alone(target: Path, environ: Mapping[str, str], screen: Screen) -> Iterator[None]:
    """Hold the destination against other deliveries; where it has no locks, against those of this user and machine."""
    with filesystem(target):
        target.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(target / LOCK) and not is_plain(target / LOCK):
        raise InputError(blocked(target / LOCK))
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(FileLock(target / LOCK, screen.message, keep=False))
        except SupplyError as error:
            if error.problems[0].code != "lock-not-supported":
                raise
            screen.message(f"{shown(target)} cannot lock files: see that no other machine delivers there meanwhile")
            name = hashlib.sha256(os.fsencode(target)).hexdigest()
            lock = open_store(environ).home / "locks" / f"deliver-{name}.lock"
            stack.enter_context(FileLock(lock, screen.message, keep=False))
        remove_trials(target)
        yield


def _answer(answer: FolderAnswer) -> dict[str, Any]:
    return {
        "path": answer.path,
        "type": answer.type,
        "free_bytes": answer.free_bytes,
        "failed": dict(answer.failed),
        "untried": list(answer.untried),
        "write_mb_s": answer.write_mb_s and round(answer.write_mb_s, 1),
        "seconds": round(answer.seconds, 3),
    }


def _fails(findings: Any) -> bool:
    return any(one.severity is Severity.ERROR for one in findings)


def _rows(findings: tuple[Finding, ...]) -> list[dict[str, str | None]]:
    return [one.to_dict() for one in findings]


def _text(findings: tuple[Finding, ...], ending: str) -> str:
    return "\n\n".join([*map(finding_text, findings), ending])
