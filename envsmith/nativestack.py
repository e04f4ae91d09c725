"""The native stacks of a process that died, out of its log: what faulthandler and abseil print on a fatal signal.

Sources: Python 3.11 `Python/traceback.c` and `Modules/faulthandler.c`, 3.14 for the C stack; abseil's
`failure_signal_handler.cc`, which Ray uses; all read 2026-11-30. Misses a stack that another process wrote into.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping

#: Where a stack begins; other output may stand before it on the line.
_BEGINS = re.compile(r"Fatal Python error: |Timeout \(\d+:\d\d:\d\d|\*\*\* SIG[A-Z]+ received at ")
#: What may follow, and blank lines.
_BELONGS = re.compile(
    r"Python runtime state: |Current thread|Thread 0x|Stack \(most recent call first\)|Extension modules: "
    r"|  File \"|  \.\.\.|  <[a-z]|  Binary file |  at .* in |.*(?:PC: )?@ +0x[0-9a-f]+ "
    r"|\[[^\]]{1,200}\] ?.*(?:\*\*\* SIG|@ +0x)|    @ "
)
#: No stack of ours is longer; a log that only looks like one ends here.
_LINES = 4000
_BASH_SIGNALS = 128


def stacks_of(log: str) -> tuple[str, ...]:
    """Return every stack in a log, from its first line to its last, in order."""
    return tuple(_stacks(log.split("\n")))


def _stacks(lines: list[str]) -> Iterator[str]:
    kept: list[str] = []
    for line in (*lines, None):
        belongs = line is not None and (not line.strip() or _BELONGS.match(line) is not None)
        begins = line is not None and _BEGINS.search(line) is not None
        if kept and (belongs or (begins and not _is_closed(kept))) and len(kept) < _LINES:
            kept.append((line or "").rstrip("\r"))
            continue
        if kept:
            yield "\n".join(kept).rstrip() + "\n"
            kept = []
        if begins:
            kept = [(line or "").rstrip("\r")]


def _is_closed(kept: list[str]) -> bool:
    """Whether a new beginning is another stack: this one has frames already."""
    return any(line.lstrip().startswith(("File ", "@", "PC:")) for line in kept)


def ended(exit_code: int) -> str:
    """How a process ended, in words: a negative code is the signal's number, one above 128 a shell's word for it."""
    number = -exit_code if exit_code < 0 else exit_code - _BASH_SIGNALS if exit_code > _BASH_SIGNALS else 0
    name = _signals().get(number)
    if name is None:
        return f"exit code {exit_code}"
    return f"{name} (exit code {exit_code})"


def _signals() -> Mapping[int, str]:
    return {int(one): one.name for one in signal.Signals}
