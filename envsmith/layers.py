"""The layer that an error without a signature speaks of: the machine, the stack or the job, by its own lines only."""

from __future__ import annotations

import re
from functools import cache

from envsmith.data import table
from envsmith.logs.firsterror import FirstError
from envsmith.logs.streams import in_library


def layer_of(first: FirstError) -> str | None:
    """Name the layer whose words stand in the line, else `job` for an error in the user's own code, else None."""
    for layer, pattern in _rows():
        if pattern.search(first.text):
            return layer
    if first.frame is not None and not in_library(first.frame):
        return "job"
    return None


@cache
def _rows() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((row["layer"], re.compile(row["match"])) for row in table("symptoms")["layer"])
