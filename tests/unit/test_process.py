"""What a child said, cut to what a user can act on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from envsmith.errors import StepError
from envsmith.tools.process import run, without_frames

CHAINED = """
def inner():
    raise KeyError("wanted")

try:
    inner()
except KeyError as error:
    print("before", flush=True)
    raise ValueError("chained\\n  with a second line") from error
"""


def said_by(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    return done.stderr


@pytest.mark.parametrize(
    ("program", "last"),
    [
        ("import not_a_module_at_all", "ModuleNotFoundError: No module named 'not_a_module_at_all'"),
        (CHAINED, "  with a second line"),
        ("def f(:", "SyntaxError: invalid syntax"),
    ],
)
def test_frames_go_and_the_exception_stays(program: str, last: str) -> None:
    said = said_by(program)
    assert "Traceback" in said or "SyntaxError" in said
    kept = without_frames(said)
    assert "Traceback" not in kept
    assert kept.splitlines()[-1] == last
    if program == CHAINED:
        assert "KeyError: 'wanted'" in kept


def test_an_indented_traceback_goes_too_and_other_words_stay() -> None:
    """uv indents what a backend said, below a heading of its own."""
    frames = "  Traceback (most recent call last):\n    File 'x', line 1\n      import torch\n"
    text = f"[stderr]\n{frames}  ModuleNotFoundError: torch\nhint: no"
    assert without_frames(text) == "[stderr]\n  ModuleNotFoundError: torch\nhint: no"
    assert without_frames("nothing to cut\n  here") == "nothing to cut\n  here"


def test_a_daemon_that_a_killed_program_left_behind_is_not_waited_for(tmp_path: Path) -> None:
    """It has a session of its own, and holds the pipes."""
    script = f"setsid sleep 30 & echo $! > {tmp_path}/pid; echo last words >&2; sleep 30"
    with pytest.raises(StepError) as error:
        run(("sh", "-c", script), env={"PATH": os.environ["PATH"]}, timeout_s=0.5)
    assert [problem.code for problem in error.value.problems] == ["program-timeout"]
    pid = int((tmp_path / "pid").read_text())
    os.kill(pid, 0)  # it is still there
    os.kill(pid, signal.SIGKILL)
