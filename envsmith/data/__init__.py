"""Tables of outside facts, one TOML file each, every row with its source; and the parts of the page of `--html`.

This is the one reader of files that the core may use: what it reads ships with the package and never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from envsmith.toml_reader import read_toml


@cache
def table(name: str) -> Mapping[str, tuple[Mapping[str, Any], ...]]:
    """The arrays of tables in `<name>.toml`."""
    text = files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return {key: tuple(rows) for key, rows in read_toml(text).items()}


@cache
def text(name: str) -> str:
    """The file `<name>` as it ships, a part of a page."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
