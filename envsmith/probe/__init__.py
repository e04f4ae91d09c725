"""Run the probe's payload inside an interpreter and return what it saw.

The payload is copied into an empty directory and answers through a file, so neither modules lying beside it nor
whatever site hooks print can reach the answer. The environment, HOME included, is the caller's choice: it is what
is being probed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from envsmith.errors import EnvsmithError, HostError, Problem, StepError
from envsmith.facts import SCHEMA, Facts, parse
from envsmith.tools.process import Completed, run

PAYLOAD = Path(__file__).with_name("observe.py")
"""The payload's source, for contexts that ship it themselves."""
TOO_OLD_EXIT = 79
TOO_OLD_MARK = "envsmith-probe: python too old"
FLOOR = "3.8"


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What to look for; the defaults look at the interpreter, its path, its hooks and its metadata only."""

    context: str = "plain"
    locate: tuple[str, ...] | None = None
    """Top-level names to find without running package code."""
    imports: tuple[str, ...] = ()
    """Dotted names to really import."""
    attributes: tuple[str, ...] = ()
    launchers: tuple[str, ...] = ()
    launch_path: str | None = None
    """PATH for looking up launchers; None takes that of the process."""
    scripts: str | None = None
    """Directory whose scripts to report."""
    maps: bool = False
    """Report the files mapped as code after the imports."""
    environ_names: tuple[str, ...] = ()
    """Variables to report besides those that decide what Python or the loader loads."""

    def to_json(self) -> str:
        """Render for the payload."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, sort_keys=True)


def probe(
    python: Path,
    request: Request,
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    timeout_s: float = 60.0,
    flags: tuple[str, ...] = ("-B",),
) -> Facts:
    """Start `python` with `flags` and `env` and ask the payload.

    `python` is made absolute but not resolved: a virtual environment is found through its link. Without `cwd` the
    process starts in an empty directory.

    Raises:
        HostError: `python-too-old` when it is older than the payload's floor.
        StepError: `interpreter-broken` when it cannot be started or ends before the payload's first step;
            `probe-failed` when it ends without an answer; `program-timeout`.
        IntegrityError: `probe-answer-malformed`.
    """
    python = python if python.is_absolute() else Path.cwd() / python
    with tempfile.TemporaryDirectory(prefix="envsmith-probe-") as scratch:
        code, desk, empty = (Path(scratch) / name for name in ("code", "desk", "empty"))
        for folder in (code, desk, empty):
            folder.mkdir()
        payload = code / PAYLOAD.name
        payload.write_bytes(PAYLOAD.read_bytes())
        asked, answer = desk / "request.json", desk / "answer.json"
        asked.write_text(request.to_json(), encoding="utf-8")
        done = _start((python, *flags, payload, asked, answer), env=env, cwd=cwd or empty, timeout_s=timeout_s)
        if not answer.is_file():
            step = answer.with_name(answer.name + ".step")
            raise _failure(python, done, step.read_text(encoding="utf-8") if step.is_file() else None)
        return parse(answer.read_text(encoding="utf-8"))


def _start(argv: tuple[str | Path, ...], *, env: Mapping[str, str], cwd: Path, timeout_s: float) -> Completed:
    try:
        return run(argv, env=env, cwd=cwd, timeout_s=timeout_s)
    except StepError as error:
        problem = error.problems[0]
        if problem.code != "program-missing":
            raise
        raise StepError(
            Problem(
                code="interpreter-broken",
                message=problem.message,
                where=str(argv[0]),
                hint="the interpreter, or the program that its link names, is gone: rebuild the environment",
            )
        ) from error


def _failure(python: Path, done: Completed, step: str | None) -> EnvsmithError:
    """Name the failure; `step` is what the payload was doing, None when it was never reached."""
    # Python 2 knows no -I and stops at the command line
    if (done.returncode == TOO_OLD_EXIT and TOO_OLD_MARK in done.stderr) or "Unknown option: -I" in done.stderr:
        return HostError(
            Problem(
                code="python-too-old",
                message=f"`{python}` is older than Python {FLOOR}, the oldest that can be probed",
                where=str(python),
            )
        )
    ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    said = done.tail(8) or "nothing"
    if step is None:
        return StepError(
            Problem(
                code="interpreter-broken",
                message=f"`{python}` ended with {ended} before its first line of ours; it said: {said}",
                where=str(python),
                hint="the interpreter or one of its site hooks (.pth, sitecustomize) is broken",
            )
        )
    return StepError(
        Problem(
            code="probe-failed",
            message=f"`{python}` ended with {ended} during {step}; it said: {said}",
            where=str(python),
        )
    )
