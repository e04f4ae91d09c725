"""The whole drift gauntlet on a real env of many gigabytes: every fault is named, every benign change is left alone.

ENVSMITH_TEST_ENV=a100/rl ENVSMITH_ROOT=… ENVSMITH_HOME=… pytest --run-big tests/big/test_gauntlet.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.drift.controls import GENERATORS as BENIGN
from bench.drift.gauntlet import FAMILIES, make_controls, make_faults, run_gauntlet
from bench.drift.overlay import refusal
from bench.drift.target import Target, open_target
from bench.drift.trial import Ground, Verdict

# Read when the module is loaded: every test runs as a stranger, without the variables of whoever runs it.
ENV = os.environ.get("ENVSMITH_TEST_ENV", "")
ROOT = os.environ.get("ENVSMITH_ROOT")
STORE = os.environ.get("ENVSMITH_HOME")
SEED = int(os.environ.get("ENVSMITH_TEST_SEED", "1"))

pytestmark = [pytest.mark.big, pytest.mark.skipif(not ENV, reason="ENVSMITH_TEST_ENV names no env")]

LEAST_FAULTS = 40


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    if STORE:
        monkeypatch.setenv("ENVSMITH_HOME", STORE)
    if reason := refusal(tmp_path):
        pytest.skip(reason)
    return open_target(ENV, ROOT)


def said(verdicts: list[Verdict]) -> str:
    return "\n".join(f"{v.status}: {v.id}: {v.what}: exit {v.said.code}, {v.answer}" for v in verdicts)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_planted_fault_is_named(family: str, target: Target, tmp_path: Path) -> None:
    faults = list(make_faults(target, SEED, [family]))
    verdicts, _, _ = run_gauntlet(Ground(target, tmp_path), faults, [])
    wrong = [verdict for verdict in verdicts if verdict.status != "found"]
    assert not wrong, said(wrong)
    assert len(verdicts) == len(faults)


def test_no_benign_change_is_reported(target: Target, tmp_path: Path) -> None:
    benign = list(make_controls(target, SEED, BENIGN))
    verdicts, clean, _ = run_gauntlet(Ground(target, tmp_path), [], benign)
    wrong = [verdict for verdict in verdicts if verdict.status != "found"]
    assert not wrong, said(wrong)
    assert clean.code == 0
    assert verdicts


def test_there_are_enough_faults_and_another_seed_plants_others(target: Target) -> None:
    one, two = (list(make_faults(target, seed, FAMILIES)) for seed in (SEED, SEED + 1))
    assert len(one) >= LEAST_FAULTS
    assert [fault.what for fault in one] == [fault.what for fault in make_faults(target, SEED, FAMILIES)]
    same = sum(a.what == b.what for a, b in zip(one, two, strict=False))
    assert same < len(one) / 2
