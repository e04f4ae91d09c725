"""The log of one build: every step and what the programs said, kept beside the envs for whoever must read it."""

from __future__ import annotations

import time
from pathlib import Path

from envsmith.tools.files import filesystem
from envsmith.tools.process import Completed, without_secrets

#: A program that says more is cut at the front.
KEPT_CHARACTERS = 20_000


class Journal:
    """Appends lines with the seconds since it was opened; opening it makes its folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._started = time.monotonic()
        with filesystem(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def program(self, done: Completed) -> None:
        """Append a program with all it said."""
        said = "\n".join(part.rstrip() for part in (done.stdout, done.stderr) if part.strip())
        head = f"> {' '.join(done.argv)} (exit code {done.returncode}, {done.seconds:.2f} s)"
        self.line(without_secrets(f"{head}\n{said[-KEPT_CHARACTERS:]}"))

    def line(self, text: str) -> None:
        """Append one entry; what cannot be written is lost, the build goes on."""
        stamp = f"{time.monotonic() - self._started:9.3f}"
        try:
            with self.path.open("a", encoding="utf-8", errors="replace") as stream:
                stream.write("".join(f"{stamp} {line}\n" for line in text.splitlines() or [""]))
        except OSError:
            return
