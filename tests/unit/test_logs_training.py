"""Metrics are read however a trainer writes them, and what they show to be wrong is said."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsmith.logs.training import KEPT_VALUES, read_series


def fields(text: str) -> dict[str, float]:
    return {name: one.values[-1] for name, one in read_series([text.encode()]).items()}


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("{'loss': 1.23, 'learning_rate': 1e-05, 'epoch': 0.1}", {"loss": 1.23, "learning_rate": 1e-05, "epoch": 0.1}),
        ("{'loss': '1.23', 'grad_norm': '0.5'}", {"loss": 1.23, "grad_norm": 0.5}),
        (
            '{"current_steps": 5, "loss": 0.9, "elapsed_time": "0:00:12", "percentage": 50.0}',
            {"current_steps": 5, "loss": 0.9, "percentage": 50},
        ),
        (
            "(TaskRunner pid=12) step:1 - actor/pg_loss:0.010 - critic/rewards/mean:-0.500 - val/gsm8k/acc/mean@1:0.5",
            {"step": 1, "actor/pg_loss": 0.01, "critic/rewards/mean": -0.5, "val/gsm8k/acc/mean@1": 0.5},
        ),
        (
            "step:2 - actor/pg_loss:np.float64(0.25) - x:1e-05 - y:tensor(0.4, device='cuda:0')",
            {"step": 2, "actor/pg_loss": 0.25, "x": 1e-05, "y": 0.4},
        ),
        ("training/global_step:1 - reward/mean:0.41 grad_norm:0.82", {"training/global_step": 1, "reward/mean": 0.41}),
        ("  train_loss               =     0.5432", {"train_loss": 0.5432}),
        ("  train_runtime            = 0:01:23.45", {}),
        (" 50%|█████     | 5/10 [00:01<00:01,  4.5it/s, loss=0.7, lr=1e-5]", {"loss": 0.7, "lr": 1e-5}),
        ("\r 1%|  | 1/9 [0<1]\r     \r{'loss': 2.5}", {"loss": 2.5}),
        ("| objective/kl | 0.25 |", {"objective/kl": 0.25}),
        ("│ reward │ -1 │", {"reward": -1}),
        ("[rank0]: 2026-11-30 18:49:53 INFO trainer.py:211 loss: 0.7 free 63.15 GiB", {"loss": 0.7}),
        ("epoch: 1/3, address: 10.0.0.1, size: 5GB, at file.cc:12, pid=7", {}),
        ("Training completed.", {}),
    ],
)
def test_fields_are_read(line: str, wanted: dict[str, float]) -> None:
    found = fields(line)
    assert {name: found.get(name) for name in wanted} == wanted
    assert wanted or not found


@pytest.mark.parametrize("value", ["nan", "NaN", "inf", "-inf", "Infinity", "'nan'"])
def test_values_that_are_no_numbers_are_read(value: str) -> None:
    assert not math.isfinite(fields(f"{{'loss': {value}, 'x': 1}}")["loss"])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_what_a_trainer_prints_is_what_is_read(values: list[float]) -> None:
    log = "".join(f"{{'loss': {value!r}, 'epoch': {n}}}\nnoise\n" for n, value in enumerate(values))
    series = read_series([log.encode()])["loss"]
    assert series.values == tuple(values)
    assert series.lines == tuple(range(1, 2 * len(values), 2))


def test_a_long_series_keeps_its_ends_and_its_nan() -> None:
    lines = [f"loss: {n if n != 777 else 'nan'}\n" for n in range(5 * KEPT_VALUES)]
    series = read_series(lines)["loss"]
    assert len(series.values) <= KEPT_VALUES + 1
    assert (series.values[0], series.values[-1], series.lines[-1]) == (0, 5 * KEPT_VALUES - 1, 5 * KEPT_VALUES)
    assert [line for value, line in zip(series.values, series.lines, strict=True) if math.isnan(value)] == [778]
