"""What programs said at their start about settings that a recipe states, and whether it is what the recipe states.

The wordings stand in `data/confirmations.toml`. A log that says nothing proves nothing: that is a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from envsmith.data import table
from envsmith.logs.lines import cleaned
from envsmith.recipe import Job
from envsmith.report import Severity

HEAD_BYTES = 64 * 1024 * 1024
"""How much of a log is looked through: what a program says at its start stands there."""
KEPT = 16
"""How many lines of one text are kept of one log; every rank says the same."""
_LOOKED = 256
_LINE_BYTES = 16 * 1024

#: Topic → attribute of `recipe.Job` that states it; None is only told: an engine chooses its kernels by itself.
TOPICS: Mapping[str, str | None] = {
    "attention": "attention",
    "engine-attention": None,
    "dtype": "dtype",
    "tensor-parallel": "tensor_parallel",
    "optimizer-offload": "optimizer_offload",
    "parameter-offload": "cpu_offload",
    "sleep-mode": "sleep_mode",
    "expandable-segments": "expandable_segments",
    "liger": "liger",
}
_MEANINGS = {
    "none": "false", "cpu": "true", "nvme": "true", "half": "float16", "bf16": "bfloat16", "fp16": "float16",
    "float": "float32",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Wording:
    """How a program says something."""

    topic: str
    program: str
    has: bytes
    match: re.Pattern[str]
    values: tuple[str, ...]
    """What the words mean where they hold no value."""
    form: str
    firm: bool
    """What the program does; else what it was asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """Something that a program said."""

    topic: str
    program: str
    values: tuple[str, ...]
    """What it may mean, as a recipe writes it; of an engine's attention as it was printed."""
    firm: bool
    file: str
    line: int
    """1-based."""
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Confirmation:
    """A statement of a recipe beside what the logs say of it."""

    topic: str
    state: str
    """`as-expected`, `other` or `absent`."""
    severity: Severity
    expected: str
    """The key of `[env.X.job]` and its value, as in a recipe."""
    message: str
    said: Said | None

    @property
    def title(self) -> str:
        """What is wrong where the state is `other`."""
        return f"the run has another {self.topic} than its recipe states"

    """The first line that says so; None where none does."""


@cache
def wordings() -> tuple[Wording, ...]:
    """The wordings that ship."""
    return tuple(
        Wording(
            topic=row["topic"],
            program=row["program"],
            has=row["has"].encode(),
            match=re.compile(row["match"]),
            values=tuple(row.get("values", ())),
            form=row.get("form", "{}"),
            firm=row.get("firm", True),
        )
        for row in table("confirmations")["confirmation"]
    )


@dataclass(kw_only=True, slots=True)
class Confirmer:
    """Listens to one log for what programs say at their start; give `tap` to whoever reads it."""

    file: str
    """The name that answers use."""
    _said: list[Said] = field(default_factory=list)
    _left: dict[bytes, list[Wording]] = field(default_factory=dict)
    _kept: dict[bytes, int] = field(default_factory=dict)
    _looked: dict[bytes, int] = field(default_factory=dict)
    _read: int = 0

    def __post_init__(self) -> None:
        """Put the wordings under the text that each needs."""
        for one in wordings():
            self._left.setdefault(one.has, []).append(one)

    def tap(self, block: bytes, number: int) -> None:
        """Take a block of whole lines with the number of its first."""
        if self._read >= HEAD_BYTES:
            return
        self._read += len(block)
        for has in tuple(self._left):
            self._look(has, block, number)

    def said(self) -> tuple[Said, ...]:
        """What was said so far, in the order of the lines."""
        return tuple(sorted(self._said, key=lambda one: one.line))

    def _look(self, has: bytes, block: bytes, number: int) -> None:
        at = block.find(has)
        while at >= 0:
            start, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
            end = len(block) if end < 0 else end
            text = cleaned(block[start : min(end, start + _LINE_BYTES)])
            found = self._of_line(self._left[has], text, number + block.count(b"\n", 0, start))
            self._kept[has] = self._kept.get(has, 0) + found
            self._looked[has] = self._looked.get(has, 0) + 1
            if self._kept[has] >= KEPT or self._looked[has] >= _LOOKED:
                del self._left[has]
                return
            at = block.find(has, end)

    def _of_line(self, rows: Iterable[Wording], text: str, line: int) -> bool:
        before = len(self._said)
        for row in rows:
            for match in row.match.finditer(text):
                self._said.append(
                    Said(
                        topic=row.topic,
                        program=row.program,
                        values=_values(row, match),
                        firm=row.firm,
                        file=self.file,
                        line=line,
                        text=match.group().strip(),
                    )
                )
        return len(self._said) > before


def _values(row: Wording, match: re.Match[str]) -> tuple[str, ...]:
    if row.values:
        return row.values
    value: str = match["value"]
    if row.topic == "engine-attention":
        return (value,)
    return (row.form.format(_MEANINGS.get(value.lower(), value.lower())),)


def judge_confirmations(said: Iterable[Said], job: Job) -> tuple[Confirmation, ...]:
    """Hold what the logs of a run say against what its recipe states; what a recipe leaves out is not asked for.

    A program contradicts the recipe where it says something of a topic and never what is expected: a run may hold
    several engines. What a configuration asked for counts only where no program says what it does.
    """
    heard = tuple(said)
    return tuple(
        _confirmation(topic, key, getattr(job, key), [one for one in heard if one.topic == topic])
        for topic, key in TOPICS.items()
        if key is not None and getattr(job, key) not in (None, "auto")
    )


def _confirmation(topic: str, key: str, stated: object, heard: list[Said]) -> Confirmation:
    wanted = str(stated).lower()
    written = f'"{stated}"' if isinstance(stated, str) else wanted
    expected = f"{key.replace('_', '-')} = {written}"
    counted = [one for one in heard if one.firm] or heard
    programs = dict.fromkeys(one.program for one in counted)
    against = [
        next(one for one in counted if one.program == program)
        for program in programs
        if not any(wanted in one.values for one in counted if one.program == program)
    ]
    if against:
        one = against[0]
        message = f"`{one.file}:{one.line}`: {one.program} says `{one.text}`, the recipe `{expected}`"
        state, severity = "other", Severity.ERROR
    elif counted:
        one = next(one for one in counted if wanted in one.values)
        message = f"`{one.file}:{one.line}`: {one.program} says `{one.text}`, as the recipe has it"
        state, severity = "as-expected", Severity.NOTE
    else:
        message = f"nothing in the logs says whether `{expected}` holds"
        return Confirmation(
            topic=topic, state="absent", severity=Severity.NOTE, expected=expected, message=message, said=None
        )
    return Confirmation(topic=topic, state=state, severity=severity, expected=expected, message=message, said=one)
