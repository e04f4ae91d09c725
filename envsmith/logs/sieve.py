"""Which lines of a block can matter: those that hold a needle, found without looking for every needle in every line.

Logs repeat themselves but for their numbers. So lines are compared without their digits, and a needle is looked for in
each such form once; what is known to hold none is passed over at the speed of a set. Text that does not repeat itself
is searched as it stands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

_DIGITS = b"0123456789"
_FORM_BYTES = 512
"""Longer lines are searched each time: what is remembered stays small."""
_KNOWN_BYTES = 8 << 20
_FRESH = 0.6
"""Of a block's lines: where so many are of new forms, remembering them costs more than it saves."""
_STEPS_BLOCKS = 8
"""How many blocks are then searched as they stand before forms are tried again."""


@dataclass(kw_only=True, slots=True)
class Sieve:
    """Passes on where the lines start that hold a needle; needles are lower-case."""

    needles: tuple[bytes, ...]
    _bare: tuple[bytes, ...] = field(init=False)
    """The needles without digits: a line's form holds one wherever the line holds the needle itself."""
    _cold: set[bytes] = field(default_factory=set, init=False)
    _hot: set[bytes] = field(default_factory=set, init=False)
    _size: int = field(default=0, init=False)
    _as_it_stands: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Make the needles that forms are searched for."""
        bare = dict.fromkeys(needle.translate(None, _DIGITS) for needle in self.needles)
        self._bare = tuple(one for one in bare if one)

    def starts(self, block: bytes) -> list[int]:
        """Give the places in a block of whole lines where such lines begin, in order."""
        lower = block.lower()
        if self._as_it_stands:
            self._as_it_stands -= 1
            return _holding(lower, self.needles)
        forms = lower.translate(None, _DIGITS).split(b"\n")
        different = set(forms)
        fresh = different - self._cold
        fresh -= self._hot
        if len(fresh) > _FRESH * len(forms) and len(forms) > 64:
            self._as_it_stands = _STEPS_BLOCKS
            return _holding(lower, self.needles)
        hot = self._learn(fresh) | (different & self._hot)
        if not hot:
            return []
        before = list(accumulate(map(len, block.split(b"\n")), initial=0))
        return [before[n] + n for n, form in enumerate(forms) if form in hot]

    def _learn(self, fresh: set[bytes]) -> set[bytes]:
        """Search forms that were not seen before, remember the answer, and give those that hold a needle."""
        if not fresh:
            return set()
        text = b"\n".join(fresh)
        hot = set()
        for start in _holding(text, self._bare):
            end = text.find(b"\n", start)
            hot.add(text[start : end if end >= 0 else len(text)])
        self._size += len(text)
        if self._size > _KNOWN_BYTES:
            self._cold, self._hot, self._size = set(), set(), len(text)
        self._cold.update(form for form in fresh - hot if len(form) <= _FORM_BYTES)
        self._hot.update(form for form in hot if len(form) <= _FORM_BYTES)
        return hot


def _holding(lower: bytes, needles: tuple[bytes, ...]) -> list[int]:
    starts: set[int] = set()
    for needle in needles:
        at = lower.find(needle)
        while at >= 0:
            starts.add(lower.rfind(b"\n", 0, at) + 1)
            end = lower.find(b"\n", at)
            at = lower.find(needle, end) if end >= 0 else -1
    return sorted(starts)
