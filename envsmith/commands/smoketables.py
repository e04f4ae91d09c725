"""Which rungs an env's recipe asks for, and what the caller changes about them for one run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from envsmith.commands.subject import Subject
from envsmith.commands.workspace import open_stack
from envsmith.errors import EnvsmithError, InputError, Problem
from envsmith.recipe import smoke_table
from envsmith.smoke import LADDER


def tables_of(subject: Subject) -> tuple[Mapping[str, Any], ...]:
    """The smoke tables of the recipe at hand where the env was built from its locked part, else the receipt's.

    So an edit of the ladder counts at once, and a target without recipes climbs what the build was told.
    """
    if subject.receipt is None:
        return ()
    receipt = subject.receipt
    with contextlib.suppress(EnvsmithError):
        stack = open_stack(receipt.stack).stack
        if receipt.env in stack.env and stack.recipe_digest(receipt.env) == receipt.recipe:
            return tuple(one.table() for one in stack.env[receipt.env].smoke)
    return tuple(receipt.smoke.get("rungs", ()))


def packages_of(subject: Subject) -> frozenset[str]:
    """Canonical names of all distributions of an env, a vendor's below it included."""
    names: set[str] = set()
    if subject.lock is not None:
        names |= {wheel.name for wheel in subject.lock.wheels} | {one.project for one in subject.lock.sources}
        names |= {one.name for one in subject.lock.base}
        names |= {one.name for one in subject.base_distributions}
    if subject.foreign is not None:
        names |= {one.name for one in subject.foreign.distributions}
    return frozenset(names)


def with_settings(tables: Sequence[Mapping[str, Any]], settings: Sequence[str]) -> tuple[Mapping[str, Any], ...]:
    """Change keys for one run: `RUNG.KEY=VALUE`, the value as TOML or JSON has it, or a plain word.

    Raises:
        InputError: `smoke-setting` for each that is wrong.
    """
    changed = [dict(table) for table in tables]
    problems: list[Problem] = []
    for text in settings:
        place, equals, value = text.partition("=")
        rung, dot, key = place.partition(".")
        if not equals or not dot or not key:
            problems.append(_problem(text, "it is not of the form `RUNG.KEY=VALUE`"))
            continue
        if rung not in {*LADDER, *(str(table.get("name")) for table in changed)}:
            problems.append(_problem(text, f"there is no rung `{rung}`"))
            continue
        if not any(rung in (table["rung"], table.get("name")) for table in changed):
            changed.append({"rung": rung})
        for table in changed:
            if rung in (table["rung"], table.get("name")):
                problems += _change(table, key, value, text)
    if problems:
        raise InputError(*problems)
    return tuple(changed)


def _change(table: dict[str, Any], key: str, value: str, text: str) -> list[Problem]:
    """Put one key into a table that must still be a smoke table then."""
    if key in ("rung", "name"):
        return [_problem(text, f"`{key}` says which rung it is and cannot be changed")]
    meant: Any = value
    with contextlib.suppress(ValueError):
        meant = json.loads(value)
    if key == "timeout-s" and isinstance(meant, int):
        meant = float(meant)
    try:
        parsed = smoke_table({**table, key: meant})
    except ValueError as error:
        return [_problem(text, f"`{key}`: {error}")]
    table.clear()
    table.update(parsed)
    return []


def _problem(text: str, why: str) -> Problem:
    return Problem(
        code="smoke-setting",
        message=f"`--set {text}` cannot be used: {why}",
        hint="for example `--set train-step.rewards=constant` or `--set collective.ranks=2`; the keys are the recipe's",
    )
