"""Random edits, made into patches and applied by the real git, have the lines that `patchlines` says."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from envsmith.patchlines import final_lines, mislaid


def git(folder: Path, *words: str, data: bytes | None = None) -> bytes:
    done = subprocess.run(["git", *words], cwd=folder, input=data, capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def edited(lines: list[str], dice: random.Random, mark: str) -> list[str]:
    """Insert, replace and remove blocks; every new line names the patch that it comes from."""
    result = list(lines)
    for edit in range(dice.randint(1, 5)):
        at = dice.randint(0, len(result))
        new = [f"{mark}:{edit}:{n}" for n in range(dice.randint(0, 4))]
        result[at : at + dice.randint(0, 3)] = new
    return result


def written(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("context", [0, 1, 3])
def test_every_line_belongs_to_the_patch_that_wrote_it_last(seed: int, context: int, tmp_path: Path) -> None:
    dice = random.Random(f"{seed}-{context}")
    git(tmp_path, "init", "-q")
    file = tmp_path / "f.py"
    lines = [f"base:{n}" for n in range(dice.randint(0, 40))]
    file.write_text(written(lines))
    git(tmp_path, "add", "f.py")
    base, patches = file.read_bytes(), []
    for number in range(4):
        lines = edited(lines, dice, str(number))
        file.write_text(written(lines))
        patches.append(git(tmp_path, "diff", f"-U{context}", "f.py"))
        git(tmp_path, "add", "f.py")
    file.write_bytes(base)
    for patch in filter(None, patches):
        git(tmp_path, "apply", "--unidiff-zero", "-", data=patch)
    assert file.read_text() == written(lines)
    for number, files in enumerate(final_lines(patches)):
        expected = tuple(n for n, line in enumerate(lines, 1) if line.startswith(f"{number}:"))
        assert sum((found.lines for found in files), ()) == expected
        assert all(mislaid(found, file.read_text()) == () for found in files)
