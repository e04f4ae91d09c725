"""TOML text into plain values, with one kind of error on every Python."""

from __future__ import annotations

import re
import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class TomlError(ValueError):
    """The text is not TOML; `line` is where, as far as the parser says."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line


def read_toml(text: str) -> dict[str, Any]:
    """Parse a whole document.

    Raises:
        TomlError: it is not TOML, or nested deeper than the parser can go.
    """
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise TomlError("its values are nested too deeply", 1) from error
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"\(at line (\d+), column \d+\)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        raise TomlError(re.sub(r"\s*\(at .*\)$", "", str(error)), line) from error
