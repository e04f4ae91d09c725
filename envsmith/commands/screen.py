"""What a person sees of long work, on stderr: numbered steps, bytes with speed and remaining time, messages.

Without a terminal it prints plain lines, one a step.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from envsmith.tools.progress import Progress


class Screen(Progress):
    """Draws with rich on a terminal, prints plain lines elsewhere, says nothing when quiet."""

    def __init__(self, *, quiet: bool = False, verbose: int = 0, color: bool = False) -> None:
        self.quiet = quiet
        self.verbose = verbose
        self.color = color
        self._bar: Any = None
        self._task: Any = None
        self._label = ""
        self._step_started = 0.0

    @property
    def _live(self) -> bool:
        return not self.quiet and sys.stderr.isatty()

    def step(self, number: int, total: int, words: str) -> None:
        """Begin a numbered step."""
        self.done()
        self._label = words
        self._step_started = time.monotonic()
        self.say(f"[{number}/{total}] {words}")

    def say(self, text: str) -> None:
        """Print one line on stderr."""
        if self.quiet:
            return
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False)
        else:
            print(text, file=sys.stderr, flush=True)  # noqa: T201  (this is the one place that prints)

    def detail(self, text: str) -> None:
        """Print one line when the user asked for more."""
        if self.verbose:
            self.say(f"  {text}")

    def start(self, total_bytes: int, items: int) -> None:
        """Begin a bar over bytes."""
        self.done()
        if not self._live or total_bytes <= 0:
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bar

        console = Console(stderr=True, no_color=not self.color)
        columns = (TextColumn("  "), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._bar = Bar(*columns, console=console, transient=True)
        self._bar.start()
        self._task = self._bar.add_task("", total=total_bytes)

    def advance(self, count: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.advance(self._task, count)

    def message(self, text: str) -> None:
        """Say one line beside the bar."""
        self.say(f"  {text}")

    def done(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
