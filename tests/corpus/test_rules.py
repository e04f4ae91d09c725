"""The stacks that ship keep the rules: none has an error, and what is a warning is meant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from envsmith.commands.check import run
from envsmith.report import Severity

STACKS = Path(__file__).parents[2] / "stacks"
RECIPES = sorted(path for path in STACKS.glob("*.toml") if not path.name.startswith("pylock."))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_stack_breaks_no_rule(path: Path) -> None:
    found = run(str(path), envs=(), config=None, environ=os.environ).data["findings"]
    rules = [one for one in found if one["check"] == "rules" and one["severity"] != Severity.NOTE.value]
    assert [(one["kind"], one["subject"]) for one in rules] == []


def test_a_planted_break_is_seen(tmp_path: Path) -> None:
    text = (STACKS / "quickstart.toml").read_text()
    broken = tmp_path / "stacks" / "quickstart.toml"
    broken.parent.mkdir()
    (tmp_path / "patches").symlink_to(STACKS.parent / "patches")
    broken.write_text(text.replace("[env.worker.verify]", '[env.worker.job]\ndtype = "bfloat16"\n\n[env.worker.verify]')
                      .replace("[host]", '[host]\ncompute-capability = ["7.0"]'))  # fmt: skip
    found = run(str(broken), envs=(), config=None, environ=os.environ).data["findings"]
    assert "bf16-unsupported" in {one["kind"] for one in found}
