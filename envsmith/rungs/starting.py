"""Starts a program of upstream's, keeps its log, looks at what its children have, and leaves nothing behind.

Children are known by a mark in their environment, because torchrun puts its workers into sessions of their own and
Ray's outlive the process that started them. Linux only (/proc).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

MARK = "ENVSMITH_RUNG_CHILD"
_POLL_S = 0.2
#: Looks at a process of somebody else's before it is left alone; a child of ours has its own variables after its exec.
_LOOKS = 3
_GRACE_S = 10.0
#: The beginning of the last line of a Python traceback.
_ERROR = re.compile(r"^(?:\[?rank\d+\]?:? ?|\([^)]*\) ?)?\s*((?:[\w.]+(?:Error|Exception|Interrupt|Exit)): ?.*)$")


@dataclass
class Outcome:
    """How a program ended."""

    argv: list[str]
    exit_code: int
    """As the operating system says it; negative for a signal."""
    seconds: float
    timed_out: bool
    log: Path
    seen: dict[int, dict[str, str]] = field(default_factory=dict)
    """Process id to the wanted variables of its environment, as they were when it was started (/proc/PID/environ)."""
    left: list[str] = field(default_factory=list)
    """Command lines of processes that were still there some seconds after the end, and were killed."""

    @property
    def text(self) -> str:
        """The log."""
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    log: Path,
    timeout_s: float,
    variables: Sequence[str] = (),
) -> Outcome:
    """Run a program to its end or to its time limit, then kill whatever of it is left."""
    mark = uuid.uuid4().hex
    seen: dict[int, dict[str, str]] = {}
    others: dict[int, int] = {}
    began = time.monotonic()
    with log.open("wb") as stream:
        process = subprocess.Popen(
            list(argv),
            env={**env, MARK: mark},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while process.poll() is None and time.monotonic() - began < timeout_s:
            _look(mark, variables, seen, others)
            time.sleep(_POLL_S)
        timed_out = process.poll() is None
    finally:
        if process.poll() is None:
            _kill(_marked(mark))
            process.kill()
        code = process.wait()
    seconds = time.monotonic() - began
    left = _leave_nothing(mark, 0.0 if timed_out else _GRACE_S)
    return Outcome(argv=list(argv), exit_code=code, seconds=seconds, timed_out=timed_out, log=log, seen=seen, left=left)


def first_error(text: str) -> str | None:
    """The first line of a log that ends a traceback; later ones are mostly consequences of it."""
    found = (match[1] for line in text.splitlines() if (match := _ERROR.match(line)))
    # torchrun's own error says only that a child failed.
    return next((line for line in found if "ChildFailedError" not in line), None)


def environment_of(pid: int) -> dict[str, str]:
    """The variables that a process was started with; nothing where it is gone or not ours."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in data.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs}


def _marked(mark: str) -> list[int]:
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())
    return [pid for pid in pids if pid != os.getpid() and environment_of(pid).get(MARK) == mark]


def _look(mark: str, variables: Iterable[str], seen: dict[int, dict[str, str]], others: dict[int, int]) -> None:
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        if others.get(pid, 0) >= _LOOKS:
            continue
        # Read anew each time: between fork and exec a process has its parent's.
        found = environment_of(pid)
        if found.get(MARK) == mark:
            seen[pid] = {name: found[name] for name in variables if name in found}
        else:
            others[pid] = others.get(pid, 0) + 1


def _leave_nothing(mark: str, grace_s: float) -> list[str]:
    """Wait a moment for stragglers, kill what remains, and name it."""
    end = time.monotonic() + grace_s
    while (pids := _marked(mark)) and time.monotonic() < end:
        time.sleep(_POLL_S)
    names = [_command_line(pid) for pid in pids]
    for _ in range(50):
        if not pids:
            break
        _kill(pids)
        time.sleep(_POLL_S)
        pids = _marked(mark)
    return names


def _command_line(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return f"process {pid}"
    return " ".join(word.decode("utf-8", "replace") for word in words[:3] if word)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
