"""Native stacks are found in real logs of processes that died."""

from __future__ import annotations

import subprocess
import sys

import pytest

from envsmith.nativestack import ended, stacks_of
from tests.support.smoke import CRASH

ABSEIL = """\
*** SIGABRT received at time=1764520000 on cpu 3 ***
PC: @     0x7f1e8a2969fc  (unknown)  pthread_kill
    @     0x7f1e8a242520  (unknown)  (unknown)
[2026-11-30 12:00:00,000 E 1 1] logging.cc:440: *** SIGABRT received at time=1764520000 on cpu 3 ***
[2026-11-30 12:00:00,000 E 1 1] logging.cc:440: PC: @     0x7f1e8a2969fc  (unknown)  pthread_kill
next line
"""


@pytest.mark.parametrize(
    ("code", "cause"),
    [("import ctypes; ctypes.string_at(0)", "Segmentation fault"), ("import os; os.abort()", "Aborted")],
)
def test_the_stack_of_a_process_that_really_dies_is_found(code: str, cause: str) -> None:
    argv = [sys.executable, "-X", "faulthandler", "-c", f"print('before', flush=True)\n{code}"]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    assert done.returncode < 0
    (stack,) = stacks_of(done.stdout + "after\n")
    assert stack.startswith(f"Fatal Python error: {cause}")
    assert 'File "<string>", line 2 in <module>' in stack
    assert "before" not in stack
    assert "after" not in stack


def test_threads_and_modules_belong_to_one_stack_and_other_lines_do_not() -> None:
    (stack,) = stacks_of(CRASH)
    assert stack == CRASH.partition("\n")[2]


def test_two_stacks_are_two() -> None:
    assert len(stacks_of(f"{CRASH}more\n{CRASH}")) == 2
    assert len(stacks_of(f"{CRASH}{CRASH.partition(chr(10))[2]}")) == 2


def test_the_stack_that_abseil_prints_is_found() -> None:
    (stack,) = stacks_of(f"ok\n{ABSEIL}")
    assert stack == ABSEIL.removesuffix("next line\n")


@pytest.mark.parametrize("log", ["", "\n\n", 'Traceback (most recent call last):\n  File "x", line 1\nValueError\n'])
def test_a_log_without_one_has_none(log: str) -> None:
    assert stacks_of(log) == ()


@pytest.mark.parametrize(
    ("code", "words"),
    [(-11, "SIGSEGV (exit code -11)"), (137, "SIGKILL (exit code 137)"), (1, "exit code 1"), (-200, "exit code -200")],
)
def test_a_signal_is_named(code: int, words: str) -> None:
    assert ended(code) == words
