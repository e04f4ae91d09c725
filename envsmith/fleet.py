"""One node's answer: digests by family and by fact, small enough that thousands fit into one process.

What stands behind a digest is the node's *detail*, which stays on the node, or in a file beside the answer, and is
read only where nodes differ. Nothing is read here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

#: Version of the answer's form; one of another version is named, never counted.
VERSION: Final = 1
#: Largest answer that is read; a real one has below 2 KB.
LIMIT_BYTES: Final = 16 * 1024
#: A fact that is as short as this stands in the answer itself.
_SHORT: Final = 40
_VALUE = re.compile(r"#[0-9a-f]{24}|[^#\x00-\x1f][^\x00-\x1f]{0,199}|")
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,39}")
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:\[\]-]{0,200}")

#: Why a node is not counted.
DEAD: Final = "dead"
LATE: Final = "late"
RUBBISH: Final = "rubbish"
FOREIGN: Final = "foreign"
DUPLICATE: Final = "duplicate"
FAILED: Final = "failed"
MISSING: Final = "missing"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeAnswer:
    """What one node says about one env."""

    node: str
    """Unique in the fleet: its host name, with the address where several share one."""
    env: str
    """`stack/env`, or the path."""
    families: Mapping[str, str]
    """What each family found, as a digest; nothing found has a digest too."""
    facts: Mapping[str, str]
    """What holds there, by name: the value itself where it is short, else its digest."""
    errors: int
    warnings: int
    id: str = ""
    """The launcher's own name for the node."""
    address: str = ""
    clock_offset_s: float | None = None
    """How far its clock is ahead of the one who asked; None where that was not measured."""
    seconds: float = 0.0
    """How long it took there."""
    arrived_s: float | None = None
    """When it arrived after the question, by the clock of the one who asked; not part of the JSON form."""

    def to_json(self) -> str:
        """The canonical form: sorted keys, no spaces, one line."""
        return canonical({
            "envsmith-fleet": VERSION, "node": self.node, "id": self.id, "address": self.address, "env": self.env,
            "families": dict(self.families), "facts": dict(self.facts), "errors": self.errors,
            "warnings": self.warnings, "clock-offset-s": self.clock_offset_s, "seconds": round(self.seconds, 3),
        })  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Silent:
    """A node that is not counted, and why."""

    node: str
    reason: str
    """`dead`, `late`, `rubbish`, `foreign`, `duplicate`, `failed` or `missing`."""
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Detail:
    """What stands behind the digests of one node."""

    families: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    """The findings of each family, in the form of the JSON envelope."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Texts, or tables of texts by what is compared: a path, a package, a variable."""

    def to_json(self) -> str:
        """The canonical form."""
        rows = {name: list(found) for name, found in self.families.items()}
        return canonical({"envsmith-fleet-detail": VERSION, "families": rows, "facts": dict(self.facts)})


def canonical(value: object) -> str:
    """JSON with one spelling for one value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(value: object) -> str:
    """96 bits of the sha256 of a value's canonical form: differences are looked for here, not forgeries."""
    return "#" + hashlib.sha256(canonical(value).encode()).hexdigest()[:24]


def shortened(value: object) -> str:
    """A fact as an answer carries it."""
    text = value if isinstance(value, str) else None
    fits = text is not None and len(text) <= _SHORT and not text.startswith("#") and text.isprintable()
    return text if fits and text is not None else digest(value)


def answer_of(detail: Detail, *, node: str, env: str, **more: Any) -> NodeAnswer:
    """Take the digests of a detail; times and texts that name the node itself must not be in it."""
    findings = [row for found in detail.families.values() for row in found]
    return NodeAnswer(
        node=node,
        env=env,
        families={name: digest(_judged(rows)) for name, rows in detail.families.items()},
        facts={name: shortened(value) for name, value in detail.facts.items()},
        errors=sum(row.get("severity") == "error" for row in findings),
        warnings=sum(row.get("severity") == "warning" for row in findings),
        **more,
    )


def _judged(rows: tuple[Mapping[str, Any], ...]) -> list[list[Any]]:
    """Findings without their order and their advice."""
    keys = ("kind", "severity", "subject", "message", "expected", "actual")
    return sorted(([row.get(key) for key in keys] for row in rows), key=canonical)


# --- reading answers that anybody may have written ---


def read_answer(text: str | bytes, node: str) -> NodeAnswer | Silent:
    """Read the answer that came from `node`; what is no answer of it is named."""
    if len(text) > LIMIT_BYTES:
        return Silent(
            node=node, reason=RUBBISH, message=f"its answer has {len(text)} bytes; one has below {LIMIT_BYTES}"
        )
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        words = "its answer is empty" if not text.strip() else "its answer is no JSON, or was cut"
        return Silent(node=node, reason=RUBBISH, message=words)
    if not isinstance(data, dict) or "envsmith-fleet" not in data:
        return Silent(node=node, reason=RUBBISH, message="its answer is JSON, but none of envsmith's")
    version = data["envsmith-fleet"]
    if version == VERSION and isinstance(data.get("failed"), str):
        return Silent(node=node, reason=FAILED, message=data["failed"][:1000])
    if version != VERSION or isinstance(version, bool):
        return Silent(node=node, reason=FOREIGN, message=f"its answer has form {str(version)[:20]!r}, not {VERSION}: "
                      "another envsmith is there")  # fmt: skip
    wrong = _misfit(data)
    if wrong:
        return Silent(node=node, reason=RUBBISH, message=f"its answer has no valid `{wrong}`")
    if data["node"] != node:
        return Silent(node=node, reason=DUPLICATE, message=f"its answer speaks for `{data['node']}`")
    return NodeAnswer(
        node=node,
        id=data["id"],
        address=data["address"],
        env=data["env"],
        families=data["families"],
        facts=data["facts"],
        errors=data["errors"],
        warnings=data["warnings"],
        clock_offset_s=data["clock-offset-s"],
        seconds=float(data["seconds"]),
    )


def failure_json(node: str, message: str) -> str:
    """The answer of a node where nothing could be looked at."""
    return canonical({"envsmith-fleet": VERSION, "node": node, "failed": message[:1000]})


def _misfit(data: Mapping[str, Any]) -> str | None:
    """The first key whose value cannot be what it should."""
    fits: dict[str, Callable[[Any], object]] = {
        "node": lambda value: isinstance(value, str) and _NODE.fullmatch(value),
        "id": lambda value: isinstance(value, str) and len(value) <= 200 and value.isprintable(),
        "address": lambda value: isinstance(value, str) and len(value) <= 200 and value.isprintable(),
        "env": lambda value: isinstance(value, str) and 0 < len(value) <= 4096,
        "families": lambda value: _is_table(value) and all(item.startswith("#") for item in value.values()),
        "facts": _is_table,
        "errors": _is_count,
        "warnings": _is_count,
        "clock-offset-s": lambda value: value is None or _is_number(value),
        "seconds": lambda value: _is_number(value) and value >= 0,
    }
    return next((name for name, judge in fits.items() if name not in data or not judge(data[name])), None)


def _is_table(value: object) -> bool:
    return isinstance(value, dict) and len(value) <= 100 and all(
        _NAME.fullmatch(name) and isinstance(item, str) and _VALUE.fullmatch(item) for name, item in value.items()
    )  # fmt: skip


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12


def read_detail(text: str | bytes) -> Detail | None:
    """Read a detail; None for anything that is none."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("envsmith-fleet-detail") != VERSION:
        return None
    families, facts = data.get("families"), data.get("facts")
    if not isinstance(families, dict) or not isinstance(facts, dict):
        return None
    if not all(isinstance(rows, list) and all(isinstance(row, dict) for row in rows) for rows in families.values()):
        return None
    return Detail(families={name: tuple(rows) for name, rows in families.items()}, facts=facts)


def is_node_name(text: str) -> bool:
    """Whether a node may be called so: it becomes a file's name."""
    return _NODE.fullmatch(text) is not None


def arrived(answer: NodeAnswer, *, after_s: float, clock_offset_s: float | None) -> NodeAnswer:
    """Note when an answer came, and how its node's clock stands."""
    return replace(answer, arrived_s=after_s, clock_offset_s=clock_offset_s)
