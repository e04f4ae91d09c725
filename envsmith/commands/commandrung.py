"""The rung `command`: the user's own program in exactly the launch environment, held against what it should give."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from envsmith.errors import InputError, Problem
from envsmith.logs.expected import judge_fields, judge_output, parse_expectations, parse_patterns
from envsmith.logs.training import read_series
from envsmith.report import Finding, Severity
from envsmith.smoke import Ended, Rung, RungRun
from envsmith.tools.files import filesystem
from envsmith.tools.ranks import Start, run_ranks

if TYPE_CHECKING:
    from envsmith.commands.climbing import Climb

#: The program's own folder, for what it writes: also `{rung}` in its words and in `expect-files`.
FOLDER_VARIABLE = "ENVSMITH_RUNG_DIR"


def run_command(
    rung: Rung, folder: Path, way: Climb, mark: Mapping[str, str], keep: Callable[[Path, Start], None]
) -> RungRun:
    """Run it to its end in the caller's folder, with `{rung}`, `{env}` and `{python}` in its words filled in.

    `keep` writes down what was started.
    """
    words = tuple(_filled(word, folder, way) for word in rung.options["command"])
    env = {**way.launched, **mark, FOLDER_VARIABLE: str(folder)}
    program = shutil.which(words[0], path=env.get("PATH", ""))
    if program is None:
        missing = _finding(rung, "command-not-found", f"`{words[0]}` is no program of the env or on PATH")
        return RungRun(rung=rung, argv=words, seconds=0.0, ended=(), findings=(missing,))
    log = folder / "rank0.log"
    start = Start(argv=(program, *words[1:]), env=env, cwd=Path.cwd(), log=log)
    keep(folder, start)
    log.touch()
    with log.open("rb") as said:  # held from now on: a program may put something else under that name
        ended = run_ranks([start], timeout_s=rung.timeout_s)
        _put_back(log, said)
        found = tuple(_judge(rung, folder, way, said)) if _ended_well(ended) else ()
    return RungRun(rung=rung, argv=start.argv, seconds=0.0, ended=ended, findings=found)


def _put_back(log: Path, said: BinaryIO) -> None:
    """Give what the program said its name again, where that was taken away or given to something else."""
    ours = os.fstat(said.fileno())
    with contextlib.suppress(OSError):
        if (seen := log.lstat()) and (seen.st_dev, seen.st_ino) == (ours.st_dev, ours.st_ino):
            return
    with filesystem(log):
        if log.is_dir() and not log.is_symlink():
            shutil.rmtree(log)
        log.parent.mkdir(mode=0o700, exist_ok=True)
        log.unlink(missing_ok=True)
        with log.open("wb") as again:
            said.seek(0)
            shutil.copyfileobj(said, again)


def _ended_well(ended: tuple[Ended, ...]) -> bool:
    return all(one.returncode == 0 for one in ended)


def _filled(word: str, folder: Path, way: Climb) -> str:
    values = {"rung": str(folder), "env": way.subject.env_dir, "python": str(way.subject.executable)}
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", value)
    return word


def _judge(rung: Rung, folder: Path, way: Climb, said: BinaryIO) -> Iterator[Finding]:
    """Hold what it said and what it left against the recipe."""
    patterns = parse_patterns(rung.options.get("expect-output", ()), where=f"{rung.label}.expect-output")
    fields = parse_expectations(rung.options.get("expect-fields", {}), where=f"{rung.label}.expect-fields")
    said.seek(0)
    for one in judge_output(said, patterns):
        if not one.ok:
            message = f"the command's output holds nothing that `{one.pattern}` fits"
            yield _finding(rung, "output-missing", message, expected=one.pattern)
    said.seek(0)
    for field in judge_fields(read_series(said) if fields else {}, fields):
        if not field.ok:
            at = f" (line {field.line})" if field.line else ""
            message = f"the field `{field.field}` of its log is not as expected{at}"
            words = {"expected": field.expected, "actual": field.actual, "hint": field.hint}
            yield _finding(rung, "field-differs", message, **words)
    yield from _files(rung, folder, way)


def require_expectations(rungs: Iterable[Rung]) -> None:
    """Refuse what a recipe expects in words that nobody understands, before anything runs.

    Raises:
        InputError: `expect-output-malformed`, `expect-field-malformed`.
    """
    problems: list[Problem] = []
    for rung in rungs:
        for read, key, empty in ((parse_patterns, "expect-output", ()), (parse_expectations, "expect-fields", {})):
            try:
                read(rung.options.get(key, empty), where=f"{rung.label}.{key}")
            except InputError as error:
                problems += error.problems
    if problems:
        raise InputError(*problems)


def _files(rung: Rung, folder: Path, way: Climb) -> Iterator[Finding]:
    """Files that must be there and hold something; patterns are those of a shell."""
    for pattern in rung.options.get("expect-files", ()):
        found = [Path(path) for path in glob.glob(_filled(pattern, folder, way), recursive=True)]  # noqa: PTH207
        if not any(path.is_file() and path.stat().st_size for path in found):
            actual = "empty or no file" if found else "nothing of that name"
            yield _finding(rung, "file-missing", f"the command left no `{pattern}` with a content", actual=actual)


def _finding(rung: Rung, kind: str, message: str, **words: str | None) -> Finding:
    return Finding(check=rung.kind, kind=kind, severity=Severity.ERROR, subject=rung.label, message=message, **words)
