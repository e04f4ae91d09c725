"""JSON that comes from outside: read strictly, shown safely, written so that one value has one form."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from envsmith.errors import IntegrityError, Problem

#: A registry takes manifests up to 4 MiB (docker-registry 2.8, measured); JSON beyond that is no bundle.
LARGEST_MANIFEST = 4 << 20
#: Nothing of ours nests deeper than a handful of levels.
_DEEPEST = 24
#: So many faults of one file are said; the rest is counted.
_SAID = 20


def said(value: Any) -> str:
    """Show a value from outside in a message: short, and without what a terminal would obey."""
    if value is None:
        return "missing"
    if isinstance(value, int) and value.bit_length() > 256:
        return "a number of many digits"
    shown = value if isinstance(value, str) and value.isprintable() else ascii(value) if _is_short(value) else "…"
    return f"`{shown[:120]}`"


def _is_short(value: Any) -> bool:
    return isinstance(value, bool | int | float) or len(value) <= 1000


def to_json(content: Any) -> bytes:
    """Write a value: sorted keys, no spaces, UTF-8."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def read_table(data: bytes, where: str) -> dict[str, Any]:
    """Read a file that is one JSON object.

    Raises:
        IntegrityError: `bundle-malformed`.
    """
    if len(data) > LARGEST_MANIFEST:
        raise malformed(f"it has {len(data)} bytes or more, more than any registry takes", where)
    try:
        content = parsed(data.decode("utf-8"))
    except ValueError as error:
        raise malformed(f"it is not JSON: {error!s:.120}", where) from error
    if not isinstance(content, dict):
        raise malformed("it is not a JSON object", where)
    return content


def parsed(text: str) -> Any:
    """Read JSON that has no key twice, no NaN, no half of a character, and nests as deep as sane things do.

    Raises:
        ValueError: it is not such JSON.
    """
    try:
        content = json.loads(text, object_pairs_hook=_table, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError("it nests too deep") from error
    level = [content]
    for _ in range(_DEEPEST):
        level = [inner for one in level if isinstance(one, dict | list) for inner in _inner(one)]
    if level:
        raise ValueError("it nests too deep")
    to_json(content)  # half of a surrogate pair is a ValueError here
    return content


def _inner(one: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return one.values() if isinstance(one, dict) else one


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key stands twice in one table")
    return table


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def all_malformed(faults: list[str], where: str) -> IntegrityError:
    """State every fault of a file at once."""
    listed = faults if len(faults) <= _SAID else [*faults[:_SAID], f"and {len(faults) - _SAID} faults more"]
    return IntegrityError(*(problem for fault in listed for problem in malformed(fault, where).problems))


def malformed(message: str, where: str) -> IntegrityError:
    """State that a file is none of a bundle that envsmith wrote."""
    return IntegrityError(
        Problem(
            code="bundle-malformed",
            message=f"this is not a bundle that envsmith wrote: {message}",
            where=where,
            hint="copy the bundle again from where it was made; if it is the same there, do not use it",
        )
    )
