"""A program of upstream's is ended with all its children, whatever sessions they are in, and its end is told."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from envsmith.rungs.starting import Outcome, first_error, start


def run(folder: Path, source: str, timeout_s: float = 30.0) -> Outcome:
    script = folder / "main.py"
    script.write_text(source)
    return start(
        [sys.executable, str(script)],
        env={**os.environ, "A_B": "1"},
        cwd=folder,
        log=folder / "log",
        timeout_s=timeout_s,
        variables=["A_B", "RANK"],
    )


CHILD = """\
import os, subprocess, sys, time
p = subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True, env=dict(os.environ, RANK="3"))
print(p.pid, flush=True)
"""


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_and_the_log_are_kept(code: int, tmp_path: Path) -> None:
    done = run(tmp_path, f"import sys; print('said'); sys.exit({code})")
    assert (done.exit_code, done.timed_out, done.text, done.left) == (code, False, "said\n", [])


def test_the_time_limit_ends_the_program_and_a_child_in_another_session(tmp_path: Path) -> None:
    done = run(tmp_path, CHILD + "time.sleep(60)", timeout_s=3.0)
    assert (done.timed_out, done.exit_code) == (True, -9)
    assert done.seconds < 20
    child = int(done.text)
    assert not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text()
    assert done.seen[child] == {"A_B": "1", "RANK": "3"}


def test_a_child_that_outlives_the_program_is_named_and_killed(tmp_path: Path) -> None:
    began = time.monotonic()
    done = run(tmp_path, CHILD)
    assert done.exit_code == 0
    assert [line.split(" ")[1] for line in done.left] == ["-c"]
    assert time.monotonic() - began < 30


def test_the_first_error_is_the_one_that_caused_the_others() -> None:
    log = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "x.py", line 1, in f
[rank0]: KeyError: 'bias_correction'
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
subprocess.CalledProcessError: Command '['torchrun']' returned non-zero exit status 1.
"""
    assert first_error(log) == "KeyError: 'bias_correction'"
    assert first_error("all is well\n") is None
