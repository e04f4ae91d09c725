"""What docs/evidence holds of recorded runs is still what was recorded."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RECORDED = sorted((Path(__file__).parents[2] / "docs" / "evidence").glob("*/evidence"))


def problems(folder: Path) -> set[str]:
    words = [sys.executable, "-m", "envsmith", "inspect", str(folder), "--check", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    return {error["code"] for error in json.loads(done.stdout)["errors"]}


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.parent.name)
def test_every_byte_is_as_recorded(folder: Path) -> None:
    # The pages may be worded otherwise by a later envsmith; the files that they are made from may not change.
    assert problems(folder) <= {"evidence-summary-differs"}


def test_there_is_evidence_and_a_changed_byte_of_it_is_found(tmp_path: Path) -> None:
    copy = tmp_path / "evidence"
    shutil.copytree(RECORDED[0], copy)
    log = next(path for path in sorted(copy.rglob("rank0.log")) if path.stat().st_size)
    log.write_bytes(log.read_bytes()[:-1] + b"!")
    assert problems(copy) - {"evidence-summary-differs"}
