"""Many answers become one: which nodes agree, what the others have otherwise, and who gave no answer.

The reference is taken name by name, the value that most nodes have: with ten nodes that are wrong in ten ways there is
still a right one. Answers may come from a generator; a row of shared texts is all that is kept of each.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

from envsmith.fleet import DUPLICATE, LATE, MISSING, Detail, NodeAnswer, Silent, canonical

#: How far a clock may be from the fleet's middle. TLS, Kerberos and caches by time stand five minutes; logs of two
#: nodes that are to be read side by side do not.
CLOCK_S: Final = 2.0
CLOCK: Final = "clock"
#: The order in which differences are told: what explains the others comes first.
ORDER: Final = (
    "env", "envsmith", "files", "pyc", "sources", "base", "interpreter", "conflicts", "hooks", "native", "imports",
    "launchers", "launch_env", "worker", "contexts", "driver", "libcuda", "devices", "arch", "glibc", "kernel",
    "ray", "python", "path", "packages", "modules", "variables", "libraries", "worker-python", "worker-path",
    "worker-packages", "worker-modules", "worker-variables", "worker-libraries", "mounts", "limits", CLOCK,
)  # fmt: skip
_ABSENT: Final = ""
#: Differences of one group whose two sides are said.
_SAID: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Divergence:
    """Nodes that have the same wrong value of the same family or fact."""

    name: str
    is_family: bool
    actual: str
    """What the answers carry: a value, or a digest."""
    expected: str
    nodes: tuple[str, ...]
    reference: str
    """A node that has the expected value."""
    further: tuple[str, ...]
    """What else differs on at least one of them."""
    differences: tuple[Difference, ...] = ()
    """What stands behind it, once details were read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One thing that one side has otherwise."""

    subject: str
    expected: str | None
    actual: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduction:
    """The answer of a fleet."""

    expected: int
    """Nodes that should have answered."""
    agree: tuple[str, ...]
    """Nodes with the reference's value of everything."""
    divergences: tuple[Divergence, ...]
    silent: tuple[Silent, ...]
    tied: tuple[str, ...]
    """Names whose reference is one of several values that equally many nodes have."""
    failing: tuple[str, ...]
    """Nodes with findings that are errors, whether they agree or not."""
    seconds: float
    """Of the slowest node."""
    common: tuple[Mapping[str, Any], ...] = ()
    """Findings that are errors on nodes that agree, once a detail was read; in the form of the JSON envelope."""

    @property
    def agreed(self) -> bool:
        """Whether every expected node answered, and with the same."""
        return len(self.agree) == self.expected and not self.silent and not self.divergences

    @property
    def failed(self) -> bool:
        """Whether the answer is no."""
        return not self.agreed or bool(self.failing)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Row:
    """What is kept of an answer."""

    values: tuple[str, ...]
    errors: int
    clock_s: float | None


def reduce(
    answers: Iterable[NodeAnswer | Silent],
    expected_nodes: Sequence[str] | int | None = None,
    limit_s: float | None = None,
) -> Reduction:
    """Reduce the answers.

    `expected_nodes` are names, or how many there should be; None expects whoever said or was said something. An answer
    that arrived after `limit_s` is late and not counted, nor is either of two that speak for one node.
    """
    kept = _Kept()
    for answer in answers:
        kept.take(answer, limit_s)
    rows = kept.rows
    names = _ordered(kept.columns)
    silent = dict(kept.silent)
    if expected_nodes is not None and not isinstance(expected_nodes, int):
        for node in expected_nodes:
            if node not in rows and node not in silent:
                silent[node] = Silent(node=node, reason=MISSING, message="it gave no answer")
        for node in sorted(rows.keys() - set(expected_nodes)):
            del rows[node]
            silent[node] = Silent(node=node, reason=DUPLICATE, message="it answered, but is none of the expected nodes")
    elif isinstance(expected_nodes, int) and (short := expected_nodes - len(rows) - len(silent)) > 0:
        word = f"{short} node{'s' if short > 1 else ''}"
        silent[f"({word})"] = Silent(node=f"({word})", reason=MISSING, message="no answer, and nobody says which")
    reference, tied = _reference(rows, kept.columns)
    off = {node: found for node, row in rows.items() if (found := tuple(_off(row, reference, kept.columns)))}
    return Reduction(
        expected=_expected(expected_nodes, len(rows) + len(silent)),
        agree=tuple(sorted(rows.keys() - off)),
        divergences=tuple(_divergences(kept, off, reference, names)),
        silent=tuple(silent[node] for node in sorted(silent)),
        tied=tuple(name for name in names if name in tied),
        failing=tuple(sorted(node for node, row in rows.items() if row.errors)),
        seconds=kept.slowest_s,
    )


def _expected(nodes: Sequence[str] | int | None, seen: int) -> int:
    if isinstance(nodes, int):
        return max(nodes, 0)
    return seen if nodes is None else len(set(nodes))


class _Kept:
    """Rows by node, with one place in a row for each family and fact."""

    def __init__(self) -> None:
        self.columns: dict[str, tuple[int, bool]] = {}
        """Place, and whether it is a family."""
        self.rows: dict[str, _Row] = {}
        self.silent: dict[str, Silent] = {}
        self.slowest_s = 0.0

    def take(self, answer: NodeAnswer | Silent, limit_s: float | None) -> None:
        """Keep what matters of one answer."""
        node = answer.node
        if isinstance(answer, Silent):
            self.silent[node] = answer
            self.rows.pop(node, None)
        elif node in self.rows or node in self.silent:
            self.rows.pop(node, None)
            told = Silent(node=node, reason=DUPLICATE, message="two answers speak for it")
            self.silent.setdefault(node, told)
        elif limit_s is not None and answer.arrived_s is not None and answer.arrived_s > limit_s:
            words = f"its answer came after {answer.arrived_s:.1f} s; the limit is {limit_s:g} s"
            self.silent[node] = Silent(node=node, reason=LATE, message=words)
        else:
            self.slowest_s = max(self.slowest_s, answer.seconds)
            self.rows[node] = self._row(answer)

    def _row(self, answer: NodeAnswer) -> _Row:
        values = [_ABSENT] * len(self.columns)
        for table, is_family in ((answer.families, True), (answer.facts, False)):
            for name, value in table.items():
                place = self.columns.setdefault(sys.intern(name), (len(self.columns), is_family))[0]
                values += [_ABSENT] * (place + 1 - len(values))
                values[place] = sys.intern(value)
        return _Row(values=tuple(values), errors=answer.errors, clock_s=answer.clock_offset_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Reference:
    values: tuple[str, ...]
    clock_s: float | None


def _reference(rows: Mapping[str, _Row], columns: Mapping[str, tuple[int, bool]]) -> tuple[_Reference, set[str]]:
    """The value of each name that most nodes have; of equally many the one with fewer errors, then the first node's."""
    values, tied = [_ABSENT] * len(columns), set()
    for name, (place, _) in columns.items():
        counts = Counter(_at(row, place) for row in rows.values())
        most = max(counts.values(), default=0)
        best = {value for value, count in counts.items() if count == most}
        if len(best) > 1:
            tied.add(name)
            _, _, value = min(
                (row.errors, node, _at(row, place)) for node, row in rows.items() if _at(row, place) in best
            )
            best = {value}
        values[place] = best.pop() if best else _ABSENT
    clocks = [row.clock_s for row in rows.values() if row.clock_s is not None]
    return _Reference(values=tuple(values), clock_s=median(clocks) if clocks else None), tied


def _at(row: _Row, place: int) -> str:
    return row.values[place] if place < len(row.values) else _ABSENT


def _off(row: _Row, reference: _Reference, columns: Mapping[str, tuple[int, bool]]) -> Iterator[str]:
    """Names that a node has otherwise."""
    for name, (place, _) in columns.items():
        if _at(row, place) != reference.values[place]:
            yield name
    if reference.clock_s is not None and row.clock_s is not None and abs(row.clock_s - reference.clock_s) > CLOCK_S:
        yield CLOCK


def _divergences(
    kept: _Kept, off: Mapping[str, tuple[str, ...]], reference: _Reference, names: Sequence[str]
) -> Iterator[Divergence]:
    """Groups of nodes by the first name that differs and its value, the largest group first.

    `off` has what each node that differs has otherwise.
    """
    rows, columns = kept.rows, kept.columns
    rank = {name: number for number, name in enumerate((*names, CLOCK))}
    groups: dict[tuple[str, str], list[str]] = {}
    further: dict[tuple[str, str], set[str]] = {}
    for node, found in off.items():
        first, *others = sorted(found, key=rank.__getitem__)
        key = (first, _clock(rows[node]) if first == CLOCK else _at(rows[node], columns[first][0]))
        groups.setdefault(key, []).append(node)
        further.setdefault(key, set()).update(others)
    right = {name: min((node for node in rows if name not in off.get(node, ())), default="") for name, _ in groups}
    for key in sorted(groups, key=lambda one: (-len(groups[one]), rank[one[0]], one[1])):
        name, actual = key
        yield Divergence(
            name=name,
            is_family=name != CLOCK and columns[name][1],
            actual=actual,
            expected=f"{reference.clock_s:+.1f} s" if name == CLOCK else reference.values[columns[name][0]],
            nodes=tuple(sorted(groups[key])),
            reference=right[name],
            further=tuple(sorted(further[key], key=rank.__getitem__)),
        )


def _clock(row: _Row) -> str:
    return f"{row.clock_s or 0.0:+.1f} s"


def _ordered(names: Iterable[str]) -> list[str]:
    rank = {name: number for number, name in enumerate(ORDER)}
    return sorted(names, key=lambda name: (rank.get(name, len(rank)), name))


# --- what stands behind it ---


def needed(reduction: Reduction, limit: int = 50) -> tuple[str, ...]:
    """Nodes whose detail tells the differences: one of each group and one that has it right, `limit` groups at most."""
    told = [group for group in reduction.divergences if group.name != CLOCK][:limit]
    wanted = [node for group in told for node in (group.nodes[0], group.reference) if node]
    wanted += everywhere(reduction)[:1]
    return tuple(dict.fromkeys(wanted))


def everywhere(reduction: Reduction) -> tuple[str, ...]:
    """Nodes that agree and have findings that are errors: those are the fleet's, not a node's."""
    agree = frozenset(reduction.agree)
    return tuple(node for node in reduction.failing if node in agree)


def with_details(reduction: Reduction, detail: Callable[[str], Detail | None]) -> Reduction:
    """Fill in what stands behind the differences; `detail` answers for the nodes of `needed`."""
    told = tuple(replace(group, differences=_told(group, detail)) for group in reduction.divergences)
    same = everywhere(reduction)
    theirs = detail(same[0]) if same else None
    rows = (row for found in theirs.families.values() for row in found) if theirs else ()
    return replace(reduction, divergences=told, common=tuple(row for row in rows if row.get("severity") == "error"))


def _told(group: Divergence, detail: Callable[[str], Detail | None]) -> tuple[Difference, ...]:
    if group.name == CLOCK:
        return (Difference(subject=CLOCK, expected=group.expected, actual=group.actual),)
    theirs, mine = detail(group.nodes[0]), detail(group.reference) if group.reference else Detail()
    if theirs is None or mine is None:
        return ()
    if group.is_family:
        return tuple(_findings(mine.families.get(group.name, ()), theirs.families.get(group.name, ())))[:_SAID]
    return tuple(_facts(mine.facts.get(group.name), theirs.facts.get(group.name), group.name))[:_SAID]


def _findings(
    expected: Sequence[Mapping[str, Any]], actual: Sequence[Mapping[str, Any]]
) -> Iterator[Difference]:  # fmt: skip
    """Findings that one side alone has, those of the node that differs first."""
    mine, theirs = {canonical(row) for row in expected}, {canonical(row) for row in actual}
    for row in actual:
        if canonical(row) not in mine:
            yield Difference(subject=_subject(row), expected=_text(row.get("expected")), actual=_said(row))
    for row in expected:
        if canonical(row) not in theirs:
            yield Difference(subject=_subject(row), expected=_said(row), actual="no such finding")


def _subject(row: Mapping[str, Any]) -> str:
    return f"{row.get('kind')} {row.get('subject')}"


def _said(row: Mapping[str, Any]) -> str:
    actual = row.get("actual")
    return f"{row.get('message')}: {actual}" if actual else str(row.get("message"))


def _facts(expected: Any, actual: Any, name: str) -> Iterator[Difference]:
    """The entries of two tables that differ, in the order of their names; two texts are one entry."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        for key in sorted(expected.keys() | actual.keys()):
            if expected.get(key) != actual.get(key):
                yield Difference(subject=key, expected=_text(expected.get(key)), actual=_text(actual.get(key)))
        return
    yield Difference(subject=name, expected=_text(expected), actual=_text(actual))


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return canonical(value)
