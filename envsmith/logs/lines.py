"""Lines out of bytes: whatever a log holds, in flat memory, and quickly past the lines that cannot matter.

It neither opens files nor judges lines.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from envsmith.logs.sieve import Sieve

Pieces = Iterable[bytes | str]
"""A log as it is read: chunks of bytes cut anywhere, or strings that are one line each."""

BLOCK_BYTES = 256 * 1024
LINE_BYTES = 64 * 1024
"""What is kept of one line."""

NEEDLES = tuple(
    needle.encode()
    for needle in (
        *("error", "exception", "traceback", "fatal", "fail", 'file "', "could not ", "cannot find", "not found"),
        *("kill", "signal", "*** sig", "segmentation", "aborted", "(core dumped)", "exited", "out of memory"),
        *(
            "segfault",
            "terminate",
            "pure virtual",
            "smashing",
            "corrupt",
            "double free",
            "invalid pointer",
            "undefined reference",
        ),
        *("no such file", "permission denied", "no module", "no solution found"),
        *("nccl warn", "watchdog", "nvrm: xid"),
        *("cuda capability", "driver on your", "numpy 1.x", "freed 0.00"),
    )
)
"""Lower-case texts of which a line must hold one to matter; every pattern of `signs` needs one of them."""

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_BAR = re.compile(r"^.{0,200}?\d{1,3}%\|[^|]{0,400}\|.{0,80}?\](?=[^\s,\]])")


@dataclass(frozen=True, kw_only=True, slots=True)
class LogFile:
    """One log under the name that answers use."""

    name: str
    pieces: Pieces


@dataclass(frozen=True, kw_only=True, slots=True)
class RawLine:
    """One line as it stands in the file."""

    number: int
    """1-based."""
    data: bytes
    block: bytes
    """The lines among which it stands."""
    at: int
    """Where it begins in them."""

    @property
    def before(self) -> bytes:
        """Up to 8 KiB that stand before it, where a time may be found."""
        return self.block[max(0, self.at - 8192) : self.at]


@dataclass(kw_only=True, slots=True)
class Reader:
    """Gives the lines that hold a needle, and every line while `attentive` is above zero."""

    pieces: Pieces
    more_needles: tuple[bytes, ...] = ()
    """Lower-case texts besides `NEEDLES`."""
    tap: Callable[[bytes, int], None] | None = None
    """Who is given every block of whole lines too, with the number of its first line."""
    attentive: int = 0
    """How many of the next lines are wanted whatever they hold; whoever reads sets it between lines."""
    number: int = field(default=1, init=False)
    sieve: Sieve = field(init=False)

    def lines(self) -> Iterator[RawLine]:
        """Give the lines in order."""
        self.sieve = Sieve(needles=(*NEEDLES, *self.more_needles))
        for block in blocks(self.pieces):
            yield from self._of_block(block)

    def _of_block(self, block: bytes) -> Iterator[RawLine]:
        if self.tap is not None:
            self.tap(block, self.number)
        starts = self.sieve.starts(block)
        at, nth = 0, 0
        while at < len(block):
            if self.attentive <= 0:
                nth = bisect_left(starts, at, nth)
                if nth == len(starts):
                    break
                self.number += block.count(b"\n", at, starts[nth])
                at = starts[nth]
            end = block.find(b"\n", at)
            end = len(block) if end < 0 else end
            self.attentive -= self.attentive > 0
            yield RawLine(number=self.number, data=block[at:end], block=block, at=at)
            self.number, at = self.number + 1, end + 1
        self.number += block.count(b"\n", min(at, len(block)))


def blocks(pieces: Pieces) -> Iterator[bytes]:
    """Give whole lines in blocks; of a line without end only its head, or its last states after `\\r`, is kept."""
    parts: list[bytes] = []
    size, carry = 0, b""
    for piece in _as_bytes(pieces):
        parts.append(piece)
        size += len(piece)
        if size < BLOCK_BYTES:
            continue
        data = carry + b"".join(parts)
        cut = data.rfind(b"\n") + 1
        if cut:
            yield data[:cut]
        parts, size, carry = [], 0, _shortened(data[cut:])
    rest = carry + b"".join(parts)
    if rest:
        yield rest


def every_line(pieces: Pieces) -> Iterator[tuple[int, str]]:
    """Give each line with its 1-based number, cleaned."""
    number = 0
    for block in blocks(pieces):
        for line in lines_of(block):
            number += 1
            yield number, cleaned(line)


def lines_of(block: bytes) -> list[bytes]:
    """The lines of a block, without their ends."""
    lines = block.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def cleaned(data: bytes) -> str:
    """Decode a line: the last state after carriage returns, no colours, no NUL, at most `LINE_BYTES` of it."""
    if b"\r" in data:
        states = [state for state in data[-4 * LINE_BYTES :].split(b"\r") if state.strip(b"\x00 \t\x1b[KAm0\n")]
        data = states[-1] if states else b""
    text = data[:LINE_BYTES].decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\x00" in text:
        text = text.replace("\x00", "")
    if "%|" in text and (bar := _BAR.match(text)):
        text = text[bar.end() :]
    return text.rstrip()


def _shortened(data: bytes) -> bytes:
    if len(data) <= LINE_BYTES:
        return data
    if b"\r" in data:
        return data[data.find(b"\r", len(data) - LINE_BYTES) :] if b"\r" in data[-LINE_BYTES:] else data[:LINE_BYTES]
    return data[:LINE_BYTES]


def _as_bytes(pieces: Pieces) -> Iterator[bytes]:
    """Make bytes of strings, UTF-8 of UTF-16 with its mark, and cut what is larger than a block."""
    decoder: codecs.IncrementalDecoder | None = None
    first = True
    for piece in pieces:
        if isinstance(piece, str):
            yield piece.rstrip("\n").encode("utf-8", "replace") + b"\n"
            continue
        if first and piece:
            first = False
            if piece.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                decoder = codecs.getincrementaldecoder("utf-16")("replace")
            elif piece.startswith(codecs.BOM_UTF8):
                piece = piece[len(codecs.BOM_UTF8) :]
        data = decoder.decode(piece).encode("utf-8", "replace") if decoder else piece
        for at in range(0, len(data), 4 * BLOCK_BYTES):
            yield data[at : at + 4 * BLOCK_BYTES]
