"""What the words of a failed import mean: the table data/import-failures.toml, and who matches it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from envsmith.data import table


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """One known way for an import to fail."""

    kind: str
    pattern: re.Pattern[str]
    cause: str
    """A clause that follows "shows that"."""
    hint: str

    def fits(self, text: str) -> bool:
        """Whether these words are of this kind."""
        return self.pattern.search(text) is not None


@cache
def failures() -> tuple[Failure, ...]:
    """Every row of the table, in order: the first that fits counts."""
    return tuple(
        Failure(kind=row["kind"], pattern=re.compile(row["pattern"]), cause=row["cause"], hint=row["hint"])
        for row in table("import-failures")["failures"]
    )


def failure_of(words: str | None) -> Failure | None:
    """Name the known failure behind some words, None when nobody knows it."""
    return next((failure for failure in failures() if failure.fits(words)), None) if words else None
