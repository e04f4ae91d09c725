"""Whatever bytes a log holds, lines come out of them, numbered as in the file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsmith.logs.expected import judge_output, parse_patterns
from envsmith.logs.firsterror import first_effective_error
from envsmith.logs.lines import BLOCK_BYTES, LINE_BYTES, NEEDLES, LogFile, Reader, blocks, cleaned, every_line
from envsmith.logs.prefixes import peel, time_of
from envsmith.logs.training import read_series
from envsmith.logs.trainingfacts import judge_series

RUBBISH = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.sampled_from(
            [
                b"Traceback (most recent call last):\n",
                b'  File "a.py", line 1, in f\n',
                b"KeyError: 'x'\n",
                b"\r",
                b"\n",
                b"\x00",
                b"\xff\xfe",
                b"\xe2\x96",
                b"\x1b[31m",
                b"During handling of the above exception, another exception occurred:\n",
                b"[rank3]: ",
                b"  + Exception Group Traceback (most recent call last):\n",
                b"*** SIGSEGV received\n",
                b"E9999 99:99:99.9 1 x.cc:1] error\n",
                b"{'loss': nan, 'x': 1e999}\n",
                b"step:1 - a/b:0.5 - c:tensor(1)\n",
            ]
        ),
    ),
    max_size=40,
)


@given(RUBBISH)
def test_no_bytes_are_trouble(pieces: list[bytes]) -> None:
    first_effective_error([LogFile(name="x", pieces=pieces)])
    judge_series(read_series(pieces))
    judge_output(pieces, parse_patterns(["a+", "^x$"], where="here"))


@given(RUBBISH, st.integers(1, 50))
def test_where_the_pieces_are_cut_makes_no_difference(pieces: list[bytes], size: int) -> None:
    whole = b"".join(pieces)
    if whole[:2] in (b"\xff\xfe", b"\xfe\xff"):
        whole = b"." + whole
    cut = [whole[n : n + size] for n in range(0, len(whole), size)]
    one = first_effective_error([LogFile(name="x", pieces=[whole])])
    assert first_effective_error([LogFile(name="x", pieces=cut)]) == one


@given(st.lists(st.sampled_from(["step 1 of 2", "", "KeyError: 'x'", "all failed", "[rank1]: ok"]), max_size=60))
def test_the_reader_gives_the_lines_with_needles_under_their_numbers(lines: list[str]) -> None:
    text = "\n".join(lines).encode()
    given_lines = [(raw.number, raw.data.decode()) for raw in Reader(pieces=[text]).lines()]
    assert given_lines == [(n, line) for n, line in enumerate(lines, 1) if "Error" in line or "failed" in line]


def test_numbers_hold_across_blocks() -> None:
    filler = b"nothing to see here, step 1 of 2\n"
    count = 3 * BLOCK_BYTES // len(filler)
    pieces = [filler] * count + [b"ValueError: x"]
    found = first_effective_error([LogFile(name="x", pieces=pieces)])
    assert found is not None
    assert found.line == count + 1
    assert [number for number, _ in every_line(pieces)][-1] == count + 1


def test_a_line_without_end_keeps_its_head_only() -> None:
    pieces = [b"ValueError: head " + b"x" * BLOCK_BYTES] * 20 + [b"\nKeyError: 2\n"]
    assert max(len(block) for block in blocks(pieces)) < 4 * BLOCK_BYTES
    found = first_effective_error([LogFile(name="x", pieces=pieces)])
    assert found is not None
    assert found.line == 1 and found.text.startswith("ValueError: head")
    assert len(cleaned(b"x" * (LINE_BYTES + 9))) == LINE_BYTES


def test_a_bar_without_end_keeps_its_last_state() -> None:
    pieces = [b"\r 10%| | 1/10 [00:01<00:09, 1it/s]" * 9000] * 20 + [b"\rValueError: last\n"]
    found = first_effective_error([LogFile(name="x", pieces=pieces)])
    assert found is not None and found.text == "ValueError: last"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_a_mark_of_byte_order_is_understood(encoding: str) -> None:
    data = "step 1\nValueError: ä\n".encode(encoding)
    found = first_effective_error([LogFile(name="x", pieces=[data[:7], data[7:]])])
    assert found is not None
    assert (found.line, found.text) == (2, "ValueError: ä")


def test_strings_are_lines() -> None:
    found = first_effective_error([LogFile(name="x", pieces=["ok", "ok\n", "ValueError: x"])])
    assert found is not None and found.line == 3


def test_needles_are_lower_case_as_the_text_they_are_looked_for_in() -> None:
    assert all(needle == needle.lower() and len(needle) >= 4 for needle in NEEDLES)


@pytest.mark.parametrize(
    ("text", "rest", "rank", "worker"),
    [
        ("[rank3]:   File", "  File", 3, None),
        ("12:   File", "  File", 12, None),
        ("(WorkerDict pid=77) [repeated 7x across cluster] x", "x", None, "WorkerDict pid=77"),
        ("(WorkerDict pid=77, ip=10.0.0.1) x", "x", None, "WorkerDict pid=77"),
        ("(raylet) x", "x", None, "raylet"),
        ("(EngineCore_DP0 pid=5) ERROR 11-30 18:49:53 [core.py:1]   File", "  File", None, "EngineCore_DP0 pid=5"),
        ("n1:55:77 [2] NCCL WARN x", "NCCL WARN x", 2, None),
        ("[INFO|2026-11-30 18:49:53] llamafactory.x:12 >> x", "x", None, None),
        ("[WARNING|trainer.py:816] 2026-11-30 18:49:53,123 >> x", "x", None, None),
        ("E1130 18:49:53.123 77 file.cc:12] x", "x", None, None),
        ("KeyError: 'x'", "KeyError: 'x'", None, None),
    ],
)
def test_prefixes_are_peeled(text: str, rest: str, rank: int | None, worker: str | None) -> None:
    line = peel(1, text)
    assert (line.text, line.rank, line.worker) == (rest, rank, worker)


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-30 18:49:53,000",
        "2026/11/30T18:49:53Z",
        "E1130 18:49:53.000 1 a.cc:1]",
        "ERROR 11-30 18:49:53 [",
        "[Mon Nov 30 18:49:53 2026]",
        "Nov 30 18:49:53 n1 kernel:",
        "2026-11-30T20:49:53+02:00",
    ],
)
def test_times_of_all_loggers_are_the_same_moment(text: str) -> None:
    assert time_of(text) == ((11 * 31 + 30) * 24 + 18) * 3600 + 49 * 60 + 53
