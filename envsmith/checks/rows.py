"""The processes of a chain as a report shows them beside each other; values that may be secrets are cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from envsmith.checks.contexts import FORBIDDEN, Intended, answer_text, libraries
from envsmith.checks.maps import SINGLE_INSTANCE
from envsmith.facts import Facts, Level, MappedFile
from envsmith.report import ContextRow
from envsmith.running import RunningProcess, shown

_VARIABLES = (*FORBIDDEN, "LD_LIBRARY_PATH")


def context_rows(intended: Intended, levels: Sequence[Level], modules: Sequence[str]) -> tuple[ContextRow, ...]:
    """Every level, with the origins of `modules`."""
    rows: dict[str, ContextRow] = {}
    for level in levels:
        parent = rows.get(level.parent or "")
        rows[level.name] = _row(level.name, level.parent, _probed(intended, level.facts, modules), parent)
    return tuple(rows.values())


def running_rows(intended: Intended, processes: Sequence[RunningProcess]) -> tuple[ContextRow, ...]:
    """Every running process, parents first."""
    rows: dict[int, ContextRow] = {}
    labels = {process.pid: process.label for process in processes}
    for process in processes:
        parent = rows.get(process.parent or -1)
        name = labels.get(process.parent or -1)
        rows[process.pid] = _row(process.label, name, _running(intended, process), parent)
    return tuple(rows.values())


def _row(name: str, parent: str | None, facts: Mapping[str, str], above: ContextRow | None) -> ContextRow:
    before = above.facts if above else facts
    differs = tuple(label for label in sorted(facts.keys() | before.keys()) if facts.get(label) != before.get(label))
    return ContextRow(name=name, parent=parent, facts=facts, differs=differs)


def _probed(intended: Intended, facts: Facts, modules: Sequence[str]) -> dict[str, str]:
    python = facts.python
    row = {"executable": python.executable, "version": python.version, "prefix": python.real_prefix}
    row |= _variables(intended, facts.environ)
    row |= {f"import {name}": answer_text(facts.modules[name]) for name in modules if name in facts.modules}
    return row | _libraries(intended, facts.maps)


def _running(intended: Intended, process: RunningProcess) -> dict[str, str]:
    row = {"executable": process.interpreter or process.executable or "unreadable"}
    if process.environ is None:
        row["variables"] = process.unreadable.get("environ", "unreadable")
    return row | _variables(intended, process.environ or {}) | _libraries(intended, process.maps or ())


def _variables(intended: Intended, environ: Mapping[str, str]) -> dict[str, str]:
    names = sorted({*intended.watched, *_VARIABLES} & environ.keys())
    return {f"${name}": shown(name, environ[name]) for name in names}


def _libraries(intended: Intended, maps: Sequence[MappedFile]) -> dict[str, str]:
    families = {*SINGLE_INSTANCE, *intended.single_instance}
    return {family: ", ".join(paths) for family, paths in sorted(libraries(maps, families).items())}
