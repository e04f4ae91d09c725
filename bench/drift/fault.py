"""What a planted fault is: a change, and what `envsmith verify` has to say about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from bench.drift.target import Target

#: Makes the change. It is given an empty folder of its own; what it returns is set in the calling shell.
Plant: TypeAlias = Callable[[Path], Mapping[str, str] | None]

#: The word in `names` and values that stands for the plant's folder.
FOLDER = "{folder}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One change that must be named."""

    name: str
    """Slug of the generator, unique within a family."""
    family: str
    what: str
    """One line: what was done to which file."""
    plant: Plant
    expect: frozenset[str]
    """`family/kind`, one of which is the right answer; `*` stands for any kind of a family."""
    names: tuple[str, ...]
    """Words that the one right finding must hold together, in subject, message, expected or actual."""
    level: tuple[str, ...] = ()
    """Words added to `envsmith verify`."""
    severity: Literal["error", "warning", "any"] = "error"
    """Of the right finding; a warning leaves exit code 0."""
    exit_codes: tuple[int, ...] = (1,)

    @property
    def id(self) -> str:
        """Family and name."""
        return f"{self.family}/{self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Control:
    """One benign change that must leave verify silent."""

    name: str
    what: str
    plant: Plant
    level: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """As a fault's, so that tables can hold both."""
        return f"control/{self.name}"


#: Yields what one idea gives on this env with this choice; raises `NoPlace` when the env has no place for it.
Generator: TypeAlias = Callable[["Target", Random], Iterator[Fault]]
ControlGenerator: TypeAlias = Callable[["Target", Random], Iterator[Control]]


def one_of(*kinds: str) -> frozenset[str]:
    """Kinds that are right answers, as `family/kind`."""
    return frozenset(kinds)
