"""The receipt: what a build did, written last into an env. Without it an env does not exist."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from envsmith.errors import IntegrityError, Problem

NAME = "envsmith.json"
SCHEMA = 1

#: Keys that may differ between two equal builds.
VARIABLE = ("built-at", "seconds", "log", "root", "python-path", "manifest")


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """Everything that verification and people need to know about a finished build."""

    stack: str
    env: str
    fingerprint: str
    lock_sha256: str
    recipe: str
    """Digest of the recipe's locked part."""
    python: str
    """Version of the interpreter."""
    python_path: str
    python_sha256: str
    uv: str
    envsmith: str
    manifest: str
    """Sha256 of the whole manifest file."""
    portable: str
    """Digest of the manifest's portable part: equal for equal envs on every machine."""
    trees: Mapping[str, str]
    """Source name to git tree id."""
    series: Mapping[str, tuple[str, ...]]
    """Source or patched wheel to the sha256 of every patch, in order."""
    tree_steps: Mapping[str, tuple[str, ...]]
    """Source name to the tree ids along its series, before the first patch first."""
    launch: Mapping[str, Any]
    verify: Mapping[str, Any]
    steps: tuple[str, ...]
    root: str
    log: str
    built_at: str
    """UTC, ISO 8601."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall time of each step."""

    def to_json(self) -> str:
        """Render with sorted keys."""
        content = {key.replace("_", "-"): value for key, value in asdict(self).items()}
        return json.dumps({"envsmith-receipt": SCHEMA, **content}, indent=2, sort_keys=True) + "\n"


def parse(text: str, where: str) -> Receipt:
    """Read a receipt.

    Raises:
        IntegrityError: `receipt-malformed`.
    """
    try:
        data = json.loads(text)
        if data.pop("envsmith-receipt") != SCHEMA:
            raise ValueError("it was written by another version of envsmith")
        values = {key.replace("-", "_"): value for key, value in data.items()}
        for key in ("series", "tree_steps"):
            values[key] = {name: tuple(items) for name, items in values[key].items()}
        values["steps"] = tuple(values["steps"])
        return _typed(Receipt(**values))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise IntegrityError(
            Problem(
                code="receipt-malformed",
                message=f"the receipt cannot be read: {error}",
                where=where,
                hint="build the env again",
            )
        ) from error


def _typed(receipt: Receipt) -> Receipt:
    """Hold plain text and tables to their types."""
    kinds = {"str": str, "Mapping": Mapping, "tuple": tuple}
    for one in fields(receipt):
        kind = kinds[str(one.type).partition("[")[0]]
        if not isinstance(getattr(receipt, one.name), kind):
            raise TypeError(f"`{one.name.replace('_', '-')}` has the wrong type")
    return receipt
