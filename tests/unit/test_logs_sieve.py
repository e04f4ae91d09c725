"""The sieve gives every line that holds a needle, whatever it remembers."""

from __future__ import annotations

import random

import pytest

from envsmith.logs.lines import NEEDLES
from envsmith.logs.sieve import Sieve

WORDS = (
    *("step", "error", "Error:", "loss", "0.00", "freed 0.00", "freed 1.00", "NumPy 1.x", "numpy 2.x", "fatal", "ERR"),
    *("17", "x" * 600, "\r", "\x00", "failed=0", "[rank3]:", "é", "no such file", "no", "such", "file", ""),
)


def plainly(block: bytes, needles: tuple[bytes, ...]) -> set[int]:
    found, at = set(), 0
    for line in block.split(b"\n"):
        if any(needle in line.lower() for needle in needles):
            found.add(at)
        at += len(line) + 1
    return found


@pytest.mark.parametrize("fresh", [0.0, 0.05, 0.9])
def test_it_gives_the_lines_that_a_plain_search_gives(fresh: float) -> None:
    choose = random.Random(int(fresh * 100))
    sieve = Sieve(needles=NEEDLES)
    for _ in range(60):
        lines = []
        for _ in range(choose.randrange(1, 300)):
            said = [choose.choice(WORDS) for _ in range(choose.randrange(4))]
            if choose.random() < fresh:
                said.append("".join(choose.choices("abcdefgh", k=12)))
            lines.append(" ".join(said))
        block = "\n".join(lines).encode() + b"\n" * choose.randrange(2)
        given = sieve.starts(block)
        assert given == sorted(given)
        plain = plainly(block, NEEDLES)
        assert plain <= set(given)
        for start in set(given) - plain:  # one more than needed is a needle whose digits were left out
            line = block[start : block.find(b"\n", start) if b"\n" in block[start:] else None].lower()
            assert b"freed " in line or b"numpy " in line


def test_what_it_remembers_stays_small() -> None:
    choose = random.Random(1)
    sieve = Sieve(needles=NEEDLES)
    for _ in range(400):
        usual = [b"a line that comes again"] * 900
        fresh = ["".join(choose.choices("abcdefgh ", k=200)).encode() for _ in range(300)]
        sieve.starts(b"\n".join([*usual, *fresh]))
    assert sum(map(len, sieve._cold)) < 9 << 20
