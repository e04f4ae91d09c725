"""Series of metrics out of logs of any size, in the pass that reads them: enough lines to judge by, never all.

The head of a log is read whole. Behind it each block gives a few lines, spread over it, and every line that holds
something that is no number, up to a limit. What a line says is read by `training`, as the smoke ladder reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from envsmith.logs.lines import cleaned, lines_of
from envsmith.logs.training import LINE_LETTERS, Gathering, Series

WHOLE_BYTES = 8 * 1024 * 1024
"""How much of the head of a run's logs is read line by line."""
LEAST_WHOLE_BYTES = 256 * 1024
"""And of each log, however many there are."""
PARSED_BYTES = 1024
"""How much of a block behind the head may be parsed, on average; a longer line waits until that much is saved up."""
ODD_LINES = 64
"""How many lines with NaN or an infinity are read behind the head."""
LAST_LINES = 8
"""How many of the last lines with metrics are read in any case."""
_LINES = 8
_FEW_LINES = 24
"""Up to so many lines with metrics in a block are looked at one by one."""
_FEW = 128
"""How many places of a block that look like NaN are looked at one by one, whatever stands before them."""
_ODD_PLACES = 1024

#: A line of a trainer holds one of them: HF Trainer, TRL, LLaMA-Factory, VERL, DeepSpeed's engine, OpenRLHF.
_MARKS = (b"grad_norm", b"reward", b"loss")
#: What Python prints, and what its JSON does.
_ODD = (b"nan", b"inf")
_ODD_JSON = (b"NaN", b"Infinity")
_PREFIXES = (b": ", b":", b"= ", b"=", b"'", b'"', b"-", b"(", b"| ")
_WORDS = {b"inf": (b"info", b"infer")}
_BEFORE = b":= \t'\"(-+|"
"""What stands before such a value."""
_LETTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def whole_bytes(logs: int) -> int:
    """How much of each of so many logs is read whole, so that a run of many ranks costs no more than one log."""
    return max(WHOLE_BYTES // max(logs, 1), LEAST_WHOLE_BYTES)


@dataclass(kw_only=True, slots=True)
class SeriesSampler:
    """Samples the series of one log; give `tap` to whoever reads it."""

    whole: int = WHOLE_BYTES
    """How much of its head is read whole: see `whole_bytes`."""
    _gathering: Gathering = field(default_factory=Gathering)
    _read: int = 0
    _saved: int = 0
    _odd: int = 0
    _json: bool = False
    _line: int = 0
    """The last line that was read."""
    _last: tuple[bytes, int] | None = None
    """The last block that holds metrics behind the head."""

    def tap(self, block: bytes, number: int) -> None:
        """Take a block of whole lines with the number of its first."""
        if self._read < self.whole:
            self._read += len(block)
            self._all(block, number)
            return
        present = tuple(mark for mark in _MARKS if block.rfind(mark) >= 0)
        if not present:
            return
        self._last = (block, number)
        self._saved = min(self._saved + PARSED_BYTES, LINE_LETTERS)
        near = list(islice(_marked(block, present), _FEW_LINES + 1))
        dense = len(near) > _FEW_LINES
        starts = self._of_many(block, present) if dense else self._of_few(block, near)
        self._take(block, number, sorted(set(starts)))

    def series(self) -> dict[str, Series]:
        """The series so far, with the last lines that hold metrics; more blocks may follow."""
        if self._last is None:
            return self._gathering.series()
        block, number = self._last
        self._take(block, number, sorted(_last_lines(block)))
        return self._gathering.series()

    def _all(self, block: bytes, number: int) -> None:
        lines = lines_of(block)
        for n, line in enumerate(lines, number):
            self._gathering.take(n, cleaned(line))
        self._line = number + len(lines) - 1
        self._json = self._json or b'"loss"' in block or b'"reward"' in block

    def _of_few(self, block: bytes, near: list[int]) -> Iterator[int]:
        """Choose among all lines of a block that hold metrics."""
        if self._odd < ODD_LINES:
            yield from (start for start in near if _is_odd(_line(block, start)))
        for start in near[:: max(1, len(near) // _LINES)]:
            if self._saved <= 0:
                return
            self._saved -= min(len(_line(block, start)), LINE_LETTERS)
            yield start

    def _of_many(self, block: bytes, present: tuple[bytes, ...]) -> Iterator[int]:
        """Choose lines with metrics without looking at each: about evenly, and those that hold what is no number."""
        if self._odd < ODD_LINES:
            yield from self._odd_lines(block)
        marks, at, step = _Marks(block, present), 0, max(1, len(block) // _LINES)
        while self._saved > 0 and (found := marks.after(at)) is not None:
            start = block.rfind(b"\n", 0, found) + 1
            size = len(_line(block, start))
            self._saved -= min(size, LINE_LETTERS)
            self._json = self._json or block[found - 1 : found] == b'"'
            yield start
            at = max(start + size + 1, (start // step + 1) * step)

    def _odd_lines(self, block: bytes) -> Iterator[int]:
        """Where lines start that hold NaN or an infinity as a value beside a mark."""
        for needle in (*_ODD, *(_ODD_JSON if self._json else ())):
            start, end = 0, 0
            for at in _places(block, needle):
                if start <= at < end or not _is_value(block, at, needle):
                    continue  # a line is looked at once, however long it is and however often it says so
                start = block.rfind(b"\n", 0, at) + 1
                line = _line(block, start)
                end = start + len(line)
                if any(mark in line for mark in _MARKS):
                    yield start

    def _take(self, block: bytes, number: int, starts: list[int]) -> None:
        """Read the lines that start there, those that were read already left out."""
        counted = 0
        for start in starts:
            number += block.count(b"\n", counted, start)
            counted = start
            if number <= self._line:
                continue
            self._odd += self._gathering.take(number, cleaned(_line(block, start)))
            self._line = number


def _line(block: bytes, start: int) -> bytes:
    end = block.find(b"\n", start)
    return block[start:] if end < 0 else block[start:end]


class _Marks:
    """Finds marks from left to right, in one pass over a block for each."""

    def __init__(self, block: bytes, present: tuple[bytes, ...]) -> None:
        self._block = block
        self._next = dict.fromkeys(present, -1)

    def after(self, at: int) -> int | None:
        """Where the next mark stands; `at` never goes back."""
        for mark, place in tuple(self._next.items()):
            if place < at:
                found = self._block.find(mark, at)
                if found < 0:
                    del self._next[mark]
                else:
                    self._next[mark] = found
        return min(self._next.values(), default=None)


def _marked(block: bytes, present: tuple[bytes, ...]) -> Iterator[int]:
    """Where lines with a mark start."""
    marks, at = _Marks(block, present), 0
    while (found := marks.after(at)) is not None:
        yield block.rfind(b"\n", 0, found) + 1
        end = block.find(b"\n", found)
        at = len(block) if end < 0 else end + 1


def _is_odd(line: bytes) -> bool:
    """Whether a line holds a value that is NaN or infinite."""
    return any(_is_value(line, at, needle) for needle in (*_ODD, *_ODD_JSON) for at in _places(line, needle))


def _is_value(block: bytes, at: int, needle: bytes) -> bool:
    after = at + len(needle)
    return block[at - 1 : at] in _BEFORE and (after == len(block) or block[after] not in _LETTERS)


def _places(block: bytes, needle: bytes) -> Iterator[int]:
    """Where a value may stand; where words of the log are full of it, only behind what stands before values."""
    many = block.count(needle)
    if many == 0 or (many > _FEW and many <= sum(block.count(word) for word in _WORDS.get(needle, ()))):
        return
    for before in _PREFIXES if many > _FEW else (b"",):
        looked, at = 0, block.find(before + needle)
        while at >= 0 and looked < _ODD_PLACES:
            looked += 1
            yield at + len(before)
            at = block.find(before + needle, at + 1)


def _last_lines(block: bytes) -> Iterator[int]:
    """Where the last lines with a mark start."""
    limit = len(block)
    for _ in range(LAST_LINES):
        found = max(block.rfind(mark, 0, limit) for mark in _MARKS)
        if found < 0:
            return
        limit = block.rfind(b"\n", 0, found) + 1
        yield limit
