"""What a child said, cut to what a user can act on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from envsmith.tools.process import without_frames

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
