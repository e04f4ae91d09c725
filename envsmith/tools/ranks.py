"""Start the processes of a rung, one a rank, and wait for how the operating system says that they ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from envsmith.smoke import Ended
from envsmith.tools.process import Begun

#: How long the other ranks have to fail by themselves, with words of their own, once one has failed.
GRACE_S: Final = 15.0
#: How long a process has for its stacks after SIGABRT: faulthandler writes them at once, a core dump may take a while.
_STACKS_S: Final = 5.0
_TICK_S: Final = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """One process that is to be started."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    log: Path


@dataclass(kw_only=True, slots=True)
class _Rank:
    rank: int
    begun: Begun
    ended: Ended | None = None


def run_ranks(starts: Sequence[Start], *, timeout_s: float, grace_s: float = GRACE_S) -> tuple[Ended, ...]:
    """Start all, wait for all; whoever runs past the limit, or on after another has failed, is ended with its stacks.

    A process gets SIGABRT first: with faulthandler on it then says where each of its threads stands.

    Raises:
        StepError: `program-missing`; whatever had been started is killed.
    """
    ranks: list[_Rank] = []
    began = time.monotonic()
    try:
        for rank, start in enumerate(starts):
            ranks.append(_Rank(rank=rank, begun=Begun(start.argv, env=start.env, cwd=start.cwd, log=start.log)))
        _wait(ranks, began, timeout_s, grace_s)
    finally:
        for one in ranks:
            if one.begun.ended() is None:
                one.begun.kill()
    return tuple(one.ended for one in ranks if one.ended)


def _wait(ranks: list[_Rank], began: float, timeout_s: float, grace_s: float) -> None:
    failed_at: float | None = None
    while open_ranks := [one for one in ranks if one.ended is None]:
        now = time.monotonic()
        for one in open_ranks:
            code = one.begun.ended()
            if code is not None:
                one.ended = Ended(rank=one.rank, returncode=code, seconds=round(now - began, 3))
                failed_at = failed_at or (now if code else None)
        late = now - began > timeout_s
        if late or (failed_at is not None and now - failed_at > grace_s):
            _end([one for one in ranks if one.ended is None], began, late=late and failed_at is None)
            return
        time.sleep(_TICK_S)


def _end(ranks: list[_Rank], began: float, *, late: bool) -> None:
    """End what still runs, leaders first, so that they can say where they stand."""
    for one in ranks:
        one.begun.send(signal.SIGABRT)
    deadline = time.monotonic() + _STACKS_S
    while time.monotonic() < deadline and any(one.begun.ended() is None for one in ranks):
        time.sleep(_TICK_S)
    for one in ranks:
        one.begun.kill()
        seconds = round(time.monotonic() - began, 3)
        one.ended = Ended(rank=one.rank, returncode=None, seconds=seconds, timed_out=late, stopped=not late)
