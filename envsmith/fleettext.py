"""A fleet's answer as text for people and as the data of the JSON envelope."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from envsmith.errors import printable
from envsmith.fleetreduce import Difference, Divergence, Reduction, everywhere

#: Names of nodes that a line of text shows; the JSON form has all.
_NODES: Final = 5
_GROUPS: Final = 50
_COLUMNS: Final = 300


def text(reduction: Reduction, env: str, more: Mapping[str, str] | None = None) -> str:
    """Groups of nodes that differ, silent nodes, findings that the agreeing ones share, one line of summary."""
    lines = [line for group in reduction.divergences[:_GROUPS] for line in _group(group, reduction)]
    if len(reduction.divergences) > _GROUPS:
        lines += [f"… and {len(reduction.divergences) - _GROUPS} more groups; `--json` has all", ""]
    for silent in reduction.silent[: 4 * _GROUPS]:
        lines.append(f"error[fleet/node-{silent.reason}]: {silent.node}: {silent.message}")
    lines += [""] if reduction.silent else []
    if same := everywhere(reduction):
        verb = "has" if len(same) == 1 else "agree and have"
        lines += [f"error[fleet/findings-everywhere]: {_nodes(same)} {verb} findings that are errors"]
        lines += [line for row in reduction.common[:_GROUPS] for line in _finding(row)]
        lines += [""]
    lines.append(summary(reduction, env, more))
    return printable("\n".join(lines))


def summary(reduction: Reduction, env: str, more: Mapping[str, str] | None = None) -> str:
    """One line: how many agree, differ and are silent."""
    differ = sum(len(group.nodes) for group in reduction.divergences)
    words = [f"{len(reduction.agree)} of {reduction.expected} nodes agree"]
    words += [f"{differ} differ{'s' if differ == 1 else ''}"] if differ else []
    words += [f"{len(reduction.silent)} gave no answer that counts"] if reduction.silent else []
    words += [f"no majority for {', '.join(reduction.tied)}"] if reduction.tied else []
    words += [f"slowest {reduction.seconds:.1f} s"]
    words += [f"{name} {value}" for name, value in (more or {}).items()]
    return f"{env}: {', '.join(words)}"


def _group(group: Divergence, reduction: Reduction) -> Iterator[str]:
    what = f"the family `{group.name}`" if group.is_family else f"`{group.name}`"
    tied = " (as many nodes have the one as the other)" if group.name in reduction.tied else ""
    verb = "differs" if len(group.nodes) == 1 else "differ"
    yield f"error[fleet/node-differs]: {_nodes(group.nodes)} {verb} from the others in {what}{tied}"
    told = group.differences or (Difference(subject="", expected=group.expected, actual=group.actual),)
    for one in told:
        if one.subject:
            yield f"  subject:  {_cut(one.subject)}"
        yield f"  expected: {_cut(one.expected)}{_from(group)}"
        yield f"  actual:   {_cut(one.actual)}"
    if group.further:
        yield f"  also:     {', '.join(group.further)}"
    yield ""


def _finding(row: Mapping[str, Any]) -> Iterator[str]:
    yield f"  {row.get('check')}/{row.get('kind')}: {_cut(str(row.get('message')))}"
    for name in ("subject", "expected", "actual"):
        if row.get(name):
            yield f"    {name + ':':<9} {_cut(str(row[name]))}"


def _from(group: Divergence) -> str:
    return f" (as on {group.reference})" if group.reference else ""


def _cut(value: str | None) -> str:
    if value is None:
        return "not there"
    line = value.replace("\n", " ") or "no answer"
    return line if len(line) <= _COLUMNS else f"{line[:_COLUMNS]}…"


def _nodes(nodes: Sequence[str]) -> str:
    rest = len(nodes) - _NODES
    return ", ".join(nodes[:_NODES]) + (f" and {rest} more" if rest > 0 else "")


def data(reduction: Reduction) -> dict[str, Any]:
    """The same for the JSON envelope; `findings` has the form of `verify`."""
    return {
        "expected": reduction.expected,
        "agree": list(reduction.agree),
        "differ": [_divergence(group) for group in reduction.divergences],
        "silent": [{"node": one.node, "reason": one.reason, "message": one.message} for one in reduction.silent],
        "tied": list(reduction.tied),
        "failing": list(reduction.failing),
        "common": [dict(row) for row in reduction.common],
        "slowest_s": round(reduction.seconds, 3),
    }


def _divergence(group: Divergence) -> dict[str, Any]:
    return {
        "name": group.name,
        "kind": "family" if group.is_family else "fact",
        "nodes": list(group.nodes),
        "expected": group.expected,
        "actual": group.actual,
        "reference": group.reference,
        "further": list(group.further),
        "differences": [
            {"subject": one.subject, "expected": one.expected, "actual": one.actual} for one in group.differences
        ],
    }
