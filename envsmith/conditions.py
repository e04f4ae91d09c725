"""Conditions on names with values, and sentences with places for them: the small language of `data/symptoms.toml`.

condition = name "known" | name "unknown" | name "matches" string | operand op operand
op        = "==" | "!=" | "<" | "<=" | ">" | ">="
operand   = name | string in single quotes | number or version
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from posixpath import basename, dirname

Value = str | int | float | bool
Names = Mapping[str, Value]

OPERATORS = ("==", "!=", "<=", ">=", "<", ">")
_NAME = r"[A-Za-z_][\w.-]*"
_OPERAND = rf"(?:'[^']*'|{_NAME}|-?\d[\w.+]*)"
_COMPARED = re.compile(rf"^(?P<left>{_OPERAND})\s*(?P<op>{'|'.join(OPERATORS)})\s*(?P<right>{_OPERAND})$")
_KNOWN = re.compile(rf"^(?P<left>{_NAME})\s+(?P<op>known|unknown)$")
_MATCHES = re.compile(rf"^(?P<left>{_NAME})\s+(?P<op>matches)\s+'(?P<right>[^']*)'$")
_PLACE = re.compile(rf"\{{({_NAME})\}}")
_DERIVED = re.compile(rf"^(?P<function>[a-z-]+)\((?P<name>{_NAME})\)$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """One condition."""

    left: str
    op: str
    """One of `OPERATORS`, `known`, `unknown` or `matches`."""
    right: str = ""


def parse_condition(text: str) -> Condition:
    """Read a condition.

    Raises:
        ValueError: it is none.
    """
    for form in (_KNOWN, _MATCHES, _COMPARED):
        if match := form.match(text.strip()):
            parts = match.groupdict()
            if parts["op"] == "matches":
                re.compile(parts["right"])
            return Condition(left=parts["left"], op=parts["op"], right=parts.get("right") or "")
    raise ValueError(f"`{text}` is no condition")


def holds(condition: Condition, names: Names) -> bool | None:
    """Whether a condition holds; None where a name that it needs has no value."""
    if condition.op in ("known", "unknown"):
        return (condition.left in names) is (condition.op == "known")
    left = _value(condition.left, names)
    if condition.op == "matches":
        return None if left is None else re.search(condition.right, str(left)) is not None
    right = _value(condition.right, names)
    if left is None or right is None:
        return None
    return _compared(left, condition.op, right)


def filled(template: str, names: Names) -> str | None:
    """Fill the places of a sentence; None where one of them has no value, or an empty one."""
    if any(names.get(match[1], "") == "" for match in _PLACE.finditer(template)):
        return None
    return _PLACE.sub(lambda match: str(names[match[1]]), template)


def sentences(templates: Sequence[str], names: Names) -> tuple[str, ...]:
    """Fill those sentences whose places all have values; the shorter form of one that is told is left out."""
    told = [said for template in templates if (said := filled(template, names)) is not None]
    return tuple(one for one in told if not any(other != one and other.startswith(one[:-1]) for other in told))


def places(template: str) -> tuple[str, ...]:
    """The names that a sentence has places for."""
    return tuple(match[1] for match in _PLACE.finditer(template))


def parse_derived(text: str) -> tuple[str, str]:
    """Read `function(name)`.

    Raises:
        ValueError: it is no such call, or of a function that is not in `FUNCTIONS`.
    """
    match = _DERIVED.match(text)
    if match is None or match["function"] not in FUNCTIONS:
        raise ValueError(f"`{text}` is no `function(name)` with one of {', '.join(FUNCTIONS)}")
    return match["function"], match["name"]


def derived(rules: Mapping[str, tuple[str, str]], names: Names) -> dict[str, Value]:
    """Give the names with those that are made of them; what cannot be made is left out."""
    said = dict(names)
    for name, (function, source) in rules.items():
        if source in said and (value := FUNCTIONS[function](str(said[source]))) is not None:
            said[name] = value
    return said


def _length(text: str) -> int:
    return len(text.encode())


def _cuda_version(text: str) -> str | None:
    """CUDA's number of a version: 1000 times its major plus 10 times its minor (CUDA driver API, 2026-11-30)."""
    return f"{int(text) // 1000}.{int(text) % 1000 // 10}" if text.isdigit() else None


def _major(text: str) -> str | None:
    match = re.match(r"\D{0,3}(\d+)", text)
    return match[1] if match else None


def _minor(text: str) -> str | None:
    match = re.match(r"\D{0,3}(\d+\.\d+)", text)
    return match[1] if match else None


def _soname_major(text: str) -> str | None:
    """`libarrow.so.2500` is of release 25: Arrow's SONAME is the major release times 100 (facts/symptoms.md D23)."""
    match = re.search(r"\.so\.(\d+)", text)
    return str(int(match[1]) // 100) if match else None


def _dotted(text: str) -> str:
    return text.strip("_").replace("_", ".")


def _capability(text: str) -> str | None:
    """`sm_120` is compute capability 12.0."""
    digits = re.sub(r"\D", "", text)
    return f"{digits[:-1]}.{digits[-1]}" if len(digits) >= 2 else None


def _gib(text: str) -> str | None:
    try:
        return f"{float(text) / (1 << 30):.1f}"
    except ValueError:
        return None


def _kib(text: str) -> str | None:
    return f"{int(text) // 1024}" if text.isdigit() else None


def _spread(text: str) -> str | None:
    """The last number of a text less its first."""
    numbers = re.findall(r"\d+(?:\.\d+)?", text)
    return f"{float(numbers[-1]) - float(numbers[0]):.2f}" if len(numbers) > 1 else None


def _distribution(text: str) -> str:
    """The project name of an import name, as far as it can be guessed by spelling."""
    return text.partition(".")[0].replace("_", "-").lower()


FUNCTIONS: Mapping[str, Callable[[str], str | int | None]] = {
    "length": _length,
    "cuda-version": _cuda_version,
    "major": _major,
    "minor": _minor,
    "basename": basename,
    "folder": dirname,
    "soname-major": _soname_major,
    "dotted": _dotted,
    "capability": _capability,
    "gib": _gib,
    "kib": _kib,
    "distribution": _distribution,
    "lower": str.lower,
    "spread": _spread,
}


def _value(operand: str, names: Names) -> Value | None:
    if operand.startswith("'"):
        return operand[1:-1]
    if operand in names:
        return names[operand]
    return operand if operand[:1].isdigit() or operand[:1] == "-" else None


def _compared(left: Value, op: str, right: Value) -> bool | None:
    if op in ("==", "!="):
        a, b = _key(str(left)), _key(str(right))
        same = str(left) == str(right) if a is None or b is None else a == b
        return same is (op == "==")
    a, b = _key(str(left)), _key(str(right))
    if a is None or b is None:
        return None
    return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op]


@cache
def _key(text: str) -> tuple[int, ...] | None:
    """Numbers of a version in order, trailing zeroes off; None where there is no number."""
    match = re.match(r"^-?\d+(?:\.\d+)*", text)
    if match is None:
        return None
    numbers = [int(part) for part in match[0].lstrip("-").split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    if match[0].startswith("-"):
        numbers[0] = -numbers[0]
    return tuple(numbers)
