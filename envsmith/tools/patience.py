"""Trying again what may pass by itself, with longer and longer pauses."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from envsmith.errors import SupplyError

T = TypeVar("T")
_LONGEST_PAUSE_S = 30.0


class Temporary(Exception):
    """A failure that may pass by itself."""

    def __init__(self, said: str, *, connecting: bool = False, after_s: float = 0.0) -> None:
        super().__init__(said)
        self.connecting = connecting
        """No connection came about: the host itself is in doubt, not one file of it."""
        self.after_s = after_s


class Patient:
    """What speaks with a server: tries again, and at last says what became of it."""

    def __init__(self, *, attempts: int, backoff_s: float, sleep: Callable[[float], None]) -> None:
        """`backoff_s` is the first pause; `sleep` may raise to end a wait early."""
        self.attempts = attempts
        self._backoff_s = backoff_s
        self._sleep = sleep

    def give_up(self, url: str, failure: Temporary) -> SupplyError:
        """Return the error for a failure that did not pass."""
        raise NotImplementedError

    def retrying(self, url: str, action: Callable[[], T]) -> T:
        """Call `action` until it raises no Temporary, or often enough.

        Raises:
            SupplyError: what `give_up` returns.
        """
        failures = 0
        while True:
            try:
                return action()
            except Temporary as failure:
                failures += 1
                self.pause(url, failure, failures)

    def pause(self, url: str, failure: Temporary, failures: int) -> None:
        """Wait longer after every failure in a row.

        Raises:
            SupplyError: what `give_up` returns when that was the last attempt.
        """
        if failures >= self.attempts:
            raise self.give_up(url, failure) from failure
        delay = self._backoff_s * 2 ** (failures - 1) * random.uniform(0.5, 1.5)
        self._sleep(min(max(delay, failure.after_s), _LONGEST_PAUSE_S))
