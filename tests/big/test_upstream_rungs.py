"""Upstream's own programs in real built envs: the rungs pass, and a planted fault of each kind is found.

ENVSMITH_TEST_SFT_ENV=…/current ENVSMITH_TEST_RL_ENV=…/current pytest --run-big tests/big/test_upstream_rungs.py
They also run without a GPU; each takes minutes, because CPUAdam is compiled and Ray started.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.upstreamrungs import ROOT, run_rung

# Read when the module is loaded: every test runs as a stranger, without the variables of whoever runs it.
SFT = os.environ.get("ENVSMITH_TEST_SFT_ENV", "")
RL = os.environ.get("ENVSMITH_TEST_RL_ENV", "")

needs_sft = pytest.mark.skipif(not SFT, reason="ENVSMITH_TEST_SFT_ENV names no env")
needs_rl = pytest.mark.skipif(not RL, reason="ENVSMITH_TEST_RL_ENV names no env")
pytestmark = pytest.mark.big
LIMIT_S = 3000.0


def unpatched(source: Path, target: Path, patch: str, strip: int) -> str:
    """A copy of a package as it was before a patch, for the front of PYTHONPATH; returns the folder to put there."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    command = ["git", "apply", "-R", f"-p{strip}", str(ROOT / "patches" / patch)]
    outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(target.parents[1])}
    subprocess.run(command, cwd=target.parent, check=True, env=outside)
    return str(target.parent)


@needs_sft
def test_llamafactory_trains_saves_and_resumes_and_its_patches_are_executed(short_dir: Path) -> None:
    run = run_rung(Path(SFT), "sft", "llamafactory_step", short_dir, timeout_s=LIMIT_S)
    said = {(one["what"], one["subject"]): one["verdict"] for one in run.answer["statements"]}
    assert run.exit_code == 0
    assert not {verdict for verdict in said.values()} & {"failed", "inconclusive"}, said
    for stage in ("resume", "offload-resume"):
        assert said["resume-loss", stage] == "ok"
    assert said["allocator-env", "resume"] == "ok"
    assert said["bias-correction-default", "cpuadam"] == "ok"
    assert list(run.verdict("patch-exercised")) == ["ok", "ok"]


@needs_sft
def test_an_unpatched_launcher_hands_the_stale_allocator_on_and_is_found(short_dir: Path) -> None:
    source = Path(SFT) / "src/llamafactory/src/llamafactory"
    patch = "llamafactory-7af9095/0001-clear-allocator-variable-in-launcher-children.patch"
    front = unpatched(source, short_dir / "src" / "llamafactory", patch, 2)
    run = run_rung(
        Path(SFT),
        "sft",
        "llamafactory_step",
        short_dir / "d",
        timeout_s=LIMIT_S,
        more_env={"PYTHONPATH": front},
        options={"stages": ["train", "resume"]},
    )
    assert run.exit_code == 0
    assert run.verdict("allocator-env", "train") == ["ok"]
    assert run.verdict("allocator-env-overridden", "resume") == ["failed"]
    assert "note" in run.verdict("patch-not-exercised")


@needs_sft
def test_a_launcher_without_optim_torch_off_is_found(short_dir: Path) -> None:
    run = run_rung(
        Path(SFT),
        "sft",
        "llamafactory_step",
        short_dir,
        timeout_s=LIMIT_S,
        more_env={"OPTIM_TORCH": None},
        options={"stages": ["train"]},
    )
    assert run.verdict("allocator-env-overridden", "train") == ["failed"]


@needs_sft
def test_an_unpatched_cpuadam_cannot_go_on_and_is_found(short_dir: Path) -> None:
    source = next((Path(SFT) / "lib").glob("python3*/site-packages/deepspeed"))
    patch = "deepspeed-0.18.4/0001-default-bias-correction-on-resume.patch"
    front = unpatched(source, short_dir / "site" / "deepspeed", patch, 1)
    run = run_rung(
        Path(SFT),
        "sft",
        "llamafactory_step",
        short_dir / "d",
        timeout_s=LIMIT_S,
        more_env={"PYTHONPATH": front},
        options={"stages": ["cpuadam"]},
    )
    said = next(one for one in run.answer["statements"] if one["what"] == "bias-correction-default")
    assert (said["verdict"], said["actual"]) == ("failed", "KeyError: 'bias_correction'")


@needs_rl
def test_verl_goes_as_far_as_the_machine_allows_and_says_so(short_dir: Path) -> None:
    run = run_rung(Path(RL), "rl", "verl_step", short_dir, timeout_s=LIMIT_S)
    said = {one["what"]: one["verdict"] for one in run.answer["statements"]}
    assert run.exit_code == 0
    assert not set(said.values()) & {"failed", "inconclusive"}, said
    if run.answer["device"] == "cpu":
        assert said["partial-without-device"] == "warning"
        assert (said["verl-actor-step"], said["verl-attention"], said["allocator-toggled-in-code"]) == (
            "ok",
            "ok",
            "ok",
        )
    else:
        assert said["verl-update"] == "ok"
    assert list(run.verdict("patch-exercised")) == ["ok", "ok"]


@needs_rl
def test_a_veto_that_is_not_set_is_found(short_dir: Path) -> None:
    run = run_rung(
        Path(RL), "rl", "verl_step", short_dir, timeout_s=LIMIT_S, more_env={"VERL_DISABLE_EXPANDABLE_SEGMENTS": None}
    )
    if run.answer["device"] != "cpu":
        pytest.skip("with a device the trainer runs instead")
    assert run.verdict("allocator-toggled-in-code") == ["failed"]
