"""A time limit for work of this process: what has children of its own to wait for sets theirs itself."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from envsmith.errors import Problem, StepError


@contextlib.contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """Give the work inside up after `seconds`; in the main thread alone, elsewhere there is no limit.

    Raises:
        StepError: `work-timeout`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(number: int, frame: FrameType | None) -> None:
        raise StepError(
            Problem(
                code="work-timeout",
                message=f"{what} did not end within {seconds:.0f} s",
                hint="raise `timeout-s` of the rung if it was only slow",
            )
        )

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let nobody interrupt what must be finished: an impatient user presses ^C more than once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {name: signal.signal(name, signal.SIG_IGN) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
