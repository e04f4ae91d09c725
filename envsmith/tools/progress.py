"""What long work says about itself; the command line gives a subclass that draws."""

from __future__ import annotations


class Progress:
    """Hears of bytes and messages and does nothing. Its methods are called by one thread at a time."""

    def start(self, total_bytes: int, items: int) -> None:
        """Begin a piece of work of so many bytes in so many items."""

    def advance(self, count: int) -> None:
        """Count bytes as done; a negative count takes back those of a download that begins again."""

    def message(self, text: str) -> None:
        """Say one line, secrets already cut out."""

    def done(self) -> None:
        """End the piece of work."""
