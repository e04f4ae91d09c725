"""Which rungs an env's recipe asks for, and what the caller changes about them for one run."""

from __future__ import annotations

import contextlib
import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envsmith.commands.envs import shown
from envsmith.commands.subject import Subject
from envsmith.commands.workspace import Workspace, open_stack, shipped_content
from envsmith.errors import InputError, Problem
from envsmith.receipt import Receipt
from envsmith.recipe import Env, Smoke, smoke_table
from envsmith.report import Finding, Severity
from envsmith.smoke import LADDER
from envsmith.toml_reader import TomlError, read_toml


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """The smoke tables that count for an env, and what has to be said about where they come from."""

    rungs: tuple[Mapping[str, Any], ...]
    remarks: tuple[Finding, ...] = ()


def tables_of(subject: Subject) -> Tables:
    """The tables of the recipe at hand where the env was built from it, else the receipt's.

    So an edit of the ladder counts at once, and a target without recipes climbs what the build was told.

    Raises:
        InputError: what is wrong with the recipe at hand: an older ladder is not climbed in its place.
    """
    if subject.receipt is None:
        return Tables(rungs=())
    receipt = subject.receipt
    kept = tuple(receipt.smoke.get("rungs", ()))
    try:
        workspace = open_stack(receipt.stack)
    except InputError as error:
        if {problem.code for problem in error.problems} == {"unknown-stack"}:
            return Tables(rungs=kept)
        raise
    env = workspace.stack.env.get(receipt.env)
    if env is not None and workspace.stack.recipe_digest(receipt.env) == receipt.recipe:
        changed = not _same_launch(env, receipt)
        rungs = tuple(one.table() for one in env.smoke)
        return Tables(rungs=rungs, remarks=(_recipe_changed(workspace, "launch table"),) if changed else ())
    if env is None or workspace.path.is_relative_to(shipped_content()):
        return Tables(rungs=kept)  # a recipe that ships may have the name of the user's own
    return Tables(rungs=kept, remarks=(_recipe_changed(workspace, "locked part"),))


def _same_launch(env: Env, receipt: Receipt) -> bool:
    """Whether the recipe's launch table is what the env was built with; a base adds one variable at the build."""
    now = env.launch.table().to_dict()
    then = dict(receipt.launch)
    if env.base is not None:
        then["set"] = {name: value for name, value in then["set"].items() if name != "PYTHONDONTWRITEBYTECODE"}
        then["forward"] = [name for name in then["forward"] if name != "PYTHONDONTWRITEBYTECODE"]
    return json.dumps(now, sort_keys=True) == json.dumps(then, sort_keys=True)


def _recipe_changed(workspace: Workspace, part: str) -> Finding:
    name = workspace.stack.stack.name
    return Finding(
        check="recipe",
        kind="recipe-changed",
        severity=Severity.WARNING,
        subject=shown(workspace.path),
        message=f"the recipe's {part} has changed since the env was built: the env is tried as it was built",
        hint=f"`envsmith build {name}` makes the env that the recipe describes now",
    )


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
    known = [str(field.alias) for field in Smoke.model_fields.values()]
    if key not in known:
        close = difflib.get_close_matches(key, known, n=1)
        return [_problem(text, f"a rung has no key `{key}`" + (f", did you mean `{close[0]}`?" if close else ""))]
    meant = _value(value)
    if key == "timeout-s" and isinstance(meant, int) and not isinstance(meant, bool):
        meant = float(meant)
    try:
        parsed = smoke_table({**table, key: meant})
    except ValueError as error:
        return [_problem(text, f"`{key}`: {error}")]
    if table["rung"] == "command" and not parsed.get("command"):
        return [_problem(text, "the rung `command` has no `command` then")]
    try:
        json.dumps(parsed, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return [_problem(text, "it holds half of a character")]
    table.clear()
    table.update(parsed)
    return []


def _value(text: str) -> Any:
    """A value as TOML or JSON writes it, else the words themselves."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    with contextlib.suppress(TomlError):
        return read_toml(f"value = {text}")["value"]
    return text


def unused_setting(text: str) -> Problem:
    """The problem of a setting for a rung that is not among those to climb."""
    return _problem(text, "that rung is not climbed in this run")


def _problem(text: str, why: str) -> Problem:
    return Problem(
        code="smoke-setting",
        message=f"`--set {text}` cannot be used: {why}",
        hint="for example `--set train-step.rewards=constant` or `--set collective.ranks=2`; the keys are the recipe's",
    )
