"""The receipt: what a build did, written last into an env. Without it an env does not exist."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from envsmith.errors import IntegrityError, Problem

NAME = "envsmith.json"
SCHEMA = 1

#: Keys that may differ between two equal builds.
VARIABLE = ("built-at", "seconds", "log", "root", "python-path", "python-record", "base-hooks", "manifest")


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
    python_record: str = ""
    """Sha256 of the record of the interpreter and its library; empty in receipts of before there was one."""
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
    gitlinks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Source name to the submodules of its tree, path to commit; only for sources that have some."""
    launch: Mapping[str, Any]
    verify: Mapping[str, Any]
    smoke: Mapping[str, Any] = field(default_factory=dict)
    """`rungs`: the recipe's smoke tables; `patched`: what each patch changed, see envsmith/patchlines.py;
    `checkpoint-dir`: where the job writes its checkpoints, if it says so."""
    steps: tuple[str, ...]
    """What the env takes from an empty store on, in words; `seconds` says what was done here."""
    root: str
    log: str
    built_at: str
    """UTC, ISO 8601."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Wall time of each step."""

    def to_json(self) -> str:
        """Render with sorted keys."""
        content = {key.replace("_", "-"): value for key, value in asdict(self).items()}
        # What the interpreter at hand starts with is a fact of this machine, as its path is.
        content["base-hooks"] = content["verify"].pop("base-hooks", {})
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
        values["verify"] = {"base-hooks": values.pop("base_hooks", {}), **values["verify"]}
        values.setdefault("python_record", "")
        values.setdefault("gitlinks", {})
        values.setdefault("smoke", {})
        _require(values, _FIELDS, "")
        values["verify"].setdefault("compute-capability", [])
        values["verify"].setdefault("base", None)
        _require(values["launch"], _LAUNCH, "launch.")
        _require(values["verify"], _VERIFY, "verify.")
        for key in ("series", "tree_steps"):
            values[key] = {name: tuple(items) for name, items in values[key].items()}
        values["steps"] = tuple(values["steps"])
        return Receipt(**values)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise IntegrityError(
            Problem(
                code="receipt-malformed",
                message=f"the receipt cannot be read: {error}",
                where=where,
                hint="build the env again with `envsmith build --rebuild`",
            )
        ) from error


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_text_table(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _is_text_tables(value: object) -> bool:
    return isinstance(value, dict) and all(_is_text_table(item) for item in value.values())


def _is_texts_table(value: object) -> bool:
    return isinstance(value, dict) and all(_is_texts(item) for item in value.values())


def _is_text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_numbers(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, (int, float)) for item in value.values())


def _is_base(value: object) -> bool:
    if value is None:
        return True
    return (
        isinstance(value, dict)
        and _is_text(value.get("python"))
        and all(_is_texts(value.get(key)) for key in ("site", "beside"))
    )


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def _is_smoke(value: object) -> bool:
    """Tables of rungs and patches, or nothing, as in receipts of before there were rungs."""
    if not isinstance(value, dict) or not all(isinstance(value.get(key, []), list) for key in ("rungs", "patched")):
        return False
    if not isinstance(value.get("checkpoint-dir", ""), str):
        return False
    rungs = value.get("rungs", [])
    return all(isinstance(one, dict) and isinstance(one.get("rung"), str) for one in rungs)


_Fits = Callable[[object], bool]

_FIELDS: dict[str, _Fits] = {
    **dict.fromkeys(
        (
            "stack", "env", "fingerprint", "lock_sha256", "recipe", "python", "python_path", "python_sha256", "uv",
            "python_record", "envsmith", "manifest", "portable", "root", "log", "built_at",
        ),
        _is_text,
    ),
    "trees": _is_text_table,
    "series": _is_texts_table,
    "tree_steps": _is_texts_table,
    "gitlinks": _is_text_tables,
    "launch": _is_table,
    "verify": _is_table,
    "smoke": _is_smoke,
    "steps": _is_texts,
    "seconds": _is_numbers,
}  # fmt: skip
_LAUNCH: dict[str, _Fits] = {
    "unset": _is_texts,
    "set": _is_text_table,
    "prepend": _is_text_table,
    "require": _is_texts,
    "forward": _is_texts,
    "driver-library": _is_text_or_none,
    "short-dirs": _is_text_table,
    "profile": _is_text_or_none,
    "path-filter": _is_texts,
}
_VERIFY: dict[str, _Fits] = {
    **dict.fromkeys(
        (
            "imports",
            "attributes",
            "launchers",
            "contexts",
            "single-instance",
            "allow-outside",
            "allow-changed",
            "compute-capability",
        ),
        _is_texts,
    ),
    "editable": _is_texts_table,
    "base-hooks": _is_text_table,
    "base": _is_base,
}


def _require(values: Mapping[str, object], fields: Mapping[str, _Fits], prefix: str) -> None:
    for key, fits in fields.items():
        if key not in values:
            raise ValueError(f"`{prefix}{key}` is missing")
        if not fits(values[key]):
            raise ValueError(f"`{prefix}{key}` is of another form")
