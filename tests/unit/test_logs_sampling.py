"""Series are sampled out of logs of any size: the head whole, the rest by lines that are spread over it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsmith.diagnosis import read_run
from envsmith.logs.lines import BLOCK_BYTES, LogFile, blocks
from envsmith.logs.sampling import LEAST_WHOLE_BYTES, ODD_LINES, WHOLE_BYTES, SeriesSampler, whole_bytes
from envsmith.logs.training import KEPT_VALUES, read_series

NOISE = "(Worker pid=7) INFO 11-30 12:00:00 [core.py:105] inference of nano batch took 1.2 s: finance\n"
METRICS = "[rank{rank}]: {{'loss': {loss}, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'reward_std': 0.25}}\n"


def sampled(log: bytes, *, whole: int = WHOLE_BYTES) -> SeriesSampler:
    sampler, number = SeriesSampler(whole=whole), 1
    for block in blocks([log]):
        sampler.tap(block, number)
        number += block.count(b"\n")
    return sampler


def log_of(lines: int, *, every: int = 4, odd: dict[int, str] | None = None) -> bytes:
    """A log of so many lines in which each `every`th has metrics, its loss being the number of the line."""
    made = []
    for number in range(1, lines + 1):
        value = (odd or {}).get(number, f"{number}.5")
        has = number % every == 0 or number in (odd or {})
        made.append(METRICS.format(rank=number % 64, loss=value) if has else NOISE)
    return "".join(made).encode()


line = st.sampled_from([NOISE, METRICS.format(rank=1, loss="nan"), METRICS.format(rank=2, loss="0.5"), "a: 1\r b: 2\n"])


@given(st.lists(line, max_size=40), st.booleans())
def test_a_small_log_is_read_as_the_ladder_reads_it(lines: list[str], ended: bool) -> None:
    log = "".join(lines).encode()
    log = log if ended else log.rstrip(b"\n")
    assert repr(sampled(log).series()) == repr(read_series([log]))


def test_a_log_up_to_the_limit_is_read_as_the_ladder_reads_it() -> None:
    log = log_of(20_000)
    assert BLOCK_BYTES < len(log) < WHOLE_BYTES
    assert sampled(log).series() == read_series([log])


def test_behind_the_head_few_lines_are_parsed_and_they_are_spread_over_the_log() -> None:
    log = log_of(60_000)
    all_lines = read_series([log])["loss"]
    loss = sampled(log, whole=LEAST_WHOLE_BYTES).series()["loss"]
    assert len(loss.values) < len(all_lines.values) / 5
    assert set(zip(loss.lines, loss.values, strict=True)) <= set(zip(all_lines.lines, all_lines.values, strict=True))
    assert list(loss.lines) == sorted(set(loss.lines))
    assert max(b - a for a, b in zip(loss.lines, loss.lines[1:], strict=False)) < 2 * BLOCK_BYTES / len(NOISE)


@pytest.mark.parametrize("tail", [0, 30_000])
def test_the_first_and_the_last_lines_with_metrics_are_in(tail: int) -> None:
    log = log_of(40_000) + NOISE.encode() * tail
    loss = sampled(log, whole=LEAST_WHOLE_BYTES).series()["loss"]
    assert (loss.lines[0], loss.lines[-1], loss.values[-1]) == (4, 40_000, 40_000.5)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "'nan'", "tensor(nan)"])
def test_a_single_line_that_is_no_number_is_found_wherever_it_stands(value: str) -> None:
    log = log_of(60_000, odd={41_111: value})
    loss = sampled(log, whole=LEAST_WHOLE_BYTES).series()["loss"]
    assert [n for n, seen in zip(loss.lines, loss.values, strict=True) if not math.isfinite(seen)] == [41_111]


def test_the_words_of_json_are_found_in_logs_of_json() -> None:
    good, bad = '{"loss": 0.5, "grad_norm": 0.25}\n', '{"loss": 0.5, "grad_norm": %s}\n'
    for word in ("NaN", "Infinity", "-Infinity"):
        log = (good * 30_000 + bad % word + good * 30_000).encode()
        gradient = sampled(log, whole=LEAST_WHOLE_BYTES).series()["grad_norm"]
        assert [n for n, one in zip(gradient.lines, gradient.values, strict=True) if not math.isfinite(one)] == [30_001]


def test_lines_that_are_no_numbers_are_read_up_to_a_limit() -> None:
    log = log_of(60_000, odd={n: "nan" for n in range(20_000, 60_000, 2)})
    loss = sampled(log, whole=LEAST_WHOLE_BYTES).series()["loss"]
    assert ODD_LINES <= sum(math.isnan(value) for value in loss.values) < 4_000
    assert len(loss.values) < KEPT_VALUES


def test_nan_in_a_word_or_a_line_of_others_is_no_value() -> None:
    log = log_of(20_000) + b"loss of finance: banana infinite, nan is a word here\nlatency: nan\n" * 5 + log_of(20_000)
    series = sampled(log, whole=LEAST_WHOLE_BYTES).series()
    assert all(math.isfinite(value) for value in series["loss"].values)
    assert "latency" not in series


def test_one_long_line_a_step_is_found_among_many_others() -> None:
    fields = " - ".join(f"timing_s/part_{n}:0.{n}" for n in range(150))
    log = b"".join(
        NOISE.encode() * 900 + f"step:{n} - actor/loss:{n}.5 - actor/grad_norm:1.5 - {fields}\n".encode()
        for n in range(60)
    )
    loss = sampled(log, whole=LEAST_WHOLE_BYTES).series()["actor/loss"]
    assert (loss.values[0], loss.values[-1]) == (0.5, 59.5)
    assert len(loss.values) >= 10


def test_asking_twice_and_reading_on_changes_nothing() -> None:
    head, rest = log_of(40_000), log_of(10_000)
    sampler = sampled(head, whole=LEAST_WHOLE_BYTES)
    assert sampler.series() == sampler.series()
    sampler.tap(rest[:BLOCK_BYTES][: rest[:BLOCK_BYTES].rfind(b"\n") + 1], 40_001)
    assert sampler.series()["loss"].lines == tuple(sorted(set(sampler.series()["loss"].lines)))


def test_a_sampler_reads_in_the_pass_that_diagnoses() -> None:
    log = log_of(1_000)
    sampler = SeriesSampler()
    read_run([LogFile(name="a.log", pieces=[log])], lambda place: (sampler.tap,))
    assert sampler.series() == read_series([log])


def test_a_run_of_many_logs_reads_no_more_of_their_heads_than_one() -> None:
    assert whole_bytes(1) == WHOLE_BYTES
    assert whole_bytes(16) * 16 == WHOLE_BYTES
    assert whole_bytes(1_000) == LEAST_WHOLE_BYTES
