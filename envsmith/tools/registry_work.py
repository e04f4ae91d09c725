"""Runs one action on many blobs in a few threads: ends early where going on is no use, raises all failures together."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import TypeVar

from envsmith.errors import EnvsmithError
from envsmith.tools.download import _together
from envsmith.tools.progress import Progress

T = TypeVar("T")
R = TypeVar("R")
#: What every other blob would meet too.
_FOR_ALL = (
    "disk-full",
    "root-not-writable",
    "certificate-not-trusted",
    "registry-config-malformed",
    "registry-scheme-differs",
    "registry-unauthorized",
    "registry-unreachable",
)


class Stopped(Exception):
    """Another thread found that going on is no use, or the user interrupted."""


class Work:
    """Threads, their common end, and a progress that hears one of them at a time."""

    def __init__(self, progress: Progress, jobs: int) -> None:
        self._progress = progress
        self._jobs = max(1, jobs)
        self._stop = threading.Event()
        self._gate = threading.Lock()

    def each(self, items: Sequence[T], action: Callable[[T], R]) -> list[R]:
        """Return what `action` makes of every item, in their order.

        Raises:
            EnvsmithError: all failures as one; a wrong blob outranks a missing one, and what every blob would meet is
                said once, however many threads met it before they heard of each other.
        """
        self._stop.clear()
        failures: dict[int, EnvsmithError] = {}
        with ThreadPoolExecutor(max_workers=self._jobs, thread_name_prefix="registry") as pool:
            futures = [pool.submit(self._run, action, item) for item in items]
            try:
                places = {future: place for place, future in enumerate(futures)}
                for future in as_completed(futures):
                    self._take(future, places[future], failures)
            except BaseException:
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        if failures:
            raise _together(_once([failures[place] for place in sorted(failures)]))
        return [future.result() for future in futures]

    def start(self, total_bytes: int, items: int) -> None:
        """Begin a piece of work of so many bytes in so many items."""
        with self._gate:
            self._progress.start(total_bytes, items)

    def advance(self, count: int) -> None:
        """Count bytes as done; a negative count takes some back."""
        with self._gate:
            self._progress.advance(count)

    def say(self, text: str) -> None:
        """Say one line."""
        with self._gate:
            self._progress.message(text)

    def sleep(self, seconds: float) -> None:
        """Wait, or only look whether to go on.

        Raises:
            Stopped: there is no use in going on.
        """
        if self._stop.wait(seconds) if seconds else self._stop.is_set():
            raise Stopped

    def _run(self, action: Callable[[T], R], item: T) -> R:
        self.sleep(0)
        try:
            return action(item)
        except EnvsmithError as error:
            if any(problem.code in _FOR_ALL for problem in error.problems):
                self._stop.set()
            raise

    def _take(self, future: Future[R], place: int, failures: dict[int, EnvsmithError]) -> None:
        with contextlib.suppress(Stopped):
            try:
                future.result()
            except EnvsmithError as error:
                failures[place] = error


def _once(failures: Sequence[EnvsmithError]) -> list[EnvsmithError]:
    kept: list[EnvsmithError] = []
    said: set[str] = set()
    for error in failures:
        codes = {problem.code for problem in error.problems}.intersection(_FOR_ALL)
        if not codes or codes - said:
            kept.append(error)
        said |= codes
    return kept
