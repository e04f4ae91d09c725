"""Reading the JSON files of a model: values by name, each of its type, with every wrong one noted.

Text in, values out; what a value means is for `modelshape` and `modelsize`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from envsmith.errors import InputError, Problem

#: No configuration has larger numbers; one that says so is damaged.
LARGEST = 1 << 40


def read_object(text: str, where: str) -> Mapping[str, Any]:
    """The table that a JSON file holds; NaN and infinities, which Python's reader takes, are no JSON.

    Raises:
        InputError: `model-config-syntax`.
    """

    def constant(name: str) -> Any:
        raise ValueError(f"`{name}` is no value of JSON")

    hint = "name the folder of a model as it was saved, or its config.json"
    try:
        data = json.loads(text.removeprefix("\ufeff"), parse_constant=constant)
    except (ValueError, RecursionError) as error:
        words = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        words = "it is nested too deeply" if isinstance(error, RecursionError) else words[:200]
        at = f"{where}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else where
        raise InputError(
            Problem(code="model-config-syntax", message=f"this is not JSON: {words}", where=at, hint=hint)
        ) from error
    if not isinstance(data, Mapping):
        raise InputError(
            Problem(code="model-config-syntax", message="it holds no settings by name", where=where, hint=hint)
        )
    return data


class Keys:
    """Values of a table by name, each of its type; what is of another is a problem and reads as absent."""

    __slots__ = ("data", "prefix", "problems", "where")

    def __init__(
        self, *, data: Mapping[str, Any], where: str, prefix: str = "", problems: list[Problem] | None = None
    ) -> None:
        self.data, self.where, self.prefix = data, where, prefix
        self.problems: list[Problem] = [] if problems is None else problems

    def refuse(self, key: str, words: str) -> None:
        """Note that a value cannot be."""
        where = f"{self.where}: {self.prefix}{key}"
        hint = "take the config.json that belongs to the model's weights"
        problem = Problem(code="model-config-value", message=f"`{self.prefix}{key}` {words}", where=where, hint=hint)
        self.problems.append(problem)

    def number(self, *names: str, least: int = 1, most: int = LARGEST) -> int | None:
        """The first of some keys that holds a whole number; None when all are absent or null."""
        name = next((one for one in names if self.data.get(one) is not None), None)
        if name is None:
            return None
        value = self.data[name]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(name, f"is {said(value)}, which is no whole number")
        elif not least <= value <= most:
            self.refuse(name, f"is {said(value)}; it counts from {least} to {most}")
        else:
            return value
        return None

    def text(self, *names: str) -> str | None:
        """The first of some keys that is text."""
        name = next((one for one in names if self.data.get(one) is not None), None)
        value = self.data[name] if name else None
        if name and not isinstance(value, str):
            self.refuse(name, f"is {said(value)}, which is no text")
        return value if isinstance(value, str) else None

    def truth(self, name: str, default: bool) -> bool:
        """A truth value."""
        value = self.data.get(name)
        if value is not None and not isinstance(value, bool):
            self.refuse(name, f"is {said(value)}, which is neither true nor false")
        return value if isinstance(value, bool) else default

    def listed(self, name: str) -> tuple[Any, ...] | None:
        """A list, or None when it is absent or null."""
        value = self.data.get(name)
        if value is not None and not isinstance(value, list):
            self.refuse(name, f"is {said(value)}, which is no list")
        return tuple(value) if isinstance(value, list) else None

    def table(self, name: str) -> Mapping[str, Any]:
        """A table, empty when it is absent or null."""
        value = self.data.get(name)
        if value is not None and not isinstance(value, Mapping):
            self.refuse(name, f"is {said(value)}, which is no table")
        return value if isinstance(value, Mapping) else {}


def said(value: object) -> str:
    """A value as messages show it, never at length."""
    if isinstance(value, (list, Mapping)):
        return "a list" if isinstance(value, list) else "a table"
    words = json.dumps(value) if not isinstance(value, int) or abs(value) < 1 << 70 else "a number of many digits"
    return f"`{words[:40]}`"
