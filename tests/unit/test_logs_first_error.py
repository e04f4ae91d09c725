"""The first effective error among many writers, whatever their prefixes, order and interleaving."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsmith.logs.firsterror import FirstError, first_effective_error
from envsmith.logs.lines import LogFile
from envsmith.logs.streams import Frame

CAUSE = """Traceback (most recent call last):
  File "/job/train.py", line 40, in main
    trainer.step(batch)
  File "/env/lib/python3.11/site-packages/torch/x.py", line 9, in step
    return fn()
           ^^^^
KeyError: 'planted'"""
CONSEQUENCES = (
    "torch.distributed.DistBackendError: NCCL watchdog timeout",
    "RuntimeError: Engine core initialization failed. See root cause above.",
    'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nBrokenPipeError: [Errno 32] Broken pipe',
    'Traceback (most recent call last):\n  File "/job/a.py", line 2, in f\n    g()\nKeyboardInterrupt',
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n====\nRoot Cause",
    "ray.exceptions.RayTaskError(KeyError): ray::W.f()",
    "EOFError",
)
PREFIXES: dict[str, Callable[[int], str]] = {
    "torchrun": lambda rank: f"[rank{rank}]: ",
    "tee": lambda rank: f"[default{rank}]: ",
    "srun": lambda rank: f"{rank}: ",
    "mpirun": lambda rank: f"[1,{rank}]<stderr>: ",
    "ray": lambda rank: f"(Worker rank={rank} pid={700 + rank}, ip=10.0.0.{rank}) ",
    "vllm": lambda rank: f"(Worker rank={rank} pid={rank}) ERROR 11-30 18:49:53 [core.py:1] ",
    "coloured": lambda rank: f"\x1b[36m[rank{rank}]:\x1b[0m ",
    "timed": lambda rank: f"[rank{rank}]: 2026-11-30 18:49:53,123 ",
}


def read(*texts: str, names: Sequence[str] = ()) -> FirstError | None:
    names = names or [f"log{n}.txt" for n in range(len(texts))]
    files = [LogFile(name=name, pieces=[text.encode()]) for name, text in zip(names, texts, strict=True)]
    return first_effective_error(files)


def found_in(*texts: str, names: Sequence[str] = ()) -> FirstError:
    found = read(*texts, names=names)
    assert found is not None
    return found


def prefixed(prefix: Callable[[int], str], rank: int, text: str) -> list[str]:
    return [prefix(rank) + line for line in text.split("\n")]


@pytest.mark.parametrize("prefix", PREFIXES)
@settings(max_examples=25)
@given(data=st.data())
def test_interleaving_keeps_the_answer(prefix: str, data: st.DataObject) -> None:
    per_rank = [
        prefixed(PREFIXES[prefix], rank, CAUSE if rank == 3 else data.draw(st.sampled_from(CONSEQUENCES)))
        for rank in range(data.draw(st.integers(4, 8)))
    ]
    log: list[str] = []
    while any(per_rank):
        lines = data.draw(st.sampled_from([lines for lines in per_rank if lines]))
        log.append(lines.pop(0))
    found = found_in("\n".join(log))
    assert log[found.line - 1].endswith("KeyError: 'planted'")
    assert (found.exception, found.message, found.rank, found.tier) == ("KeyError", "'planted'", 3, "cause")
    assert found.frame == Frame(file="/job/train.py", line=40, function="main")
    assert found.text == "KeyError: 'planted'"
    assert {one.reason for one in found.secondary} <= {"consequence", "ignored"}


@given(order=st.permutations(CONSEQUENCES), at=st.integers(0, len(CONSEQUENCES)))
def test_a_consequence_is_never_first_whatever_its_time(order: list[str], at: int) -> None:
    texts = [f"2026-11-30 18:{n:02d}:00 {text}" for n, text in enumerate([*order[:at], "KeyError: 'x'", *order[at:]])]
    assert found_in("\n".join(texts)).exception == "KeyError"
    assert found_in(*texts).exception == "KeyError"


@pytest.mark.parametrize("text", CONSEQUENCES)
def test_a_consequence_alone_is_given_as_one(text: str) -> None:
    assert found_in(text).tier == "consequence"


def test_files_are_ordered_by_their_times() -> None:
    late = "2026-11-30 18:49:53 INFO begin\nValueError: late"
    early = "[E1130 18:49:50.123 x.cpp:12] begin\nValueError: early"
    assert found_in(late, early).message == "early"
    assert found_in(early, late).message == "early"


def test_a_written_offset_counts() -> None:
    late = "2026-11-30T18:49:53+02:00 ValueError: earlier in truth"
    early = "2026-11-30T17:00:00Z ValueError: later in truth"
    assert found_in(early, late).message == "earlier in truth"


def test_without_times_files_count_as_given() -> None:
    assert found_in("ValueError: one", "2026-11-30 18:49:53 ValueError: two").message == "one"


def test_a_file_named_for_a_rank_names_the_rank() -> None:
    assert found_in("ok", "ValueError: x", names=("rank0.log", "rank17.log")).rank == 17


@pytest.mark.parametrize(
    ("text", "signal", "rank"),
    [
        ("ERROR:torch.distributed.elastic:failed (exitcode: -9) local_rank: 3 (pid: 16) of binary: /p", "SIGKILL", 3),
        ("./run.sh: line 3:  1234 Killed                  python train.py", "SIGKILL", None),
        ("Segmentation fault (core dumped)", "SIGSEGV", None),
        ("Aborted (core dumped)", "SIGABRT", None),
        ("2: *** stack smashing detected ***: terminated", "SIGABRT", 2),
        ("[rank5]: double free or corruption (!prev)", "SIGABRT", 5),
        ("  traceback : Signal 11 (SIGSEGV) received by PID 77", "SIGSEGV", None),
        ("worker exited with exit code 137", "SIGKILL", None),
    ],
)
def test_a_killed_rank_says_so(text: str, signal: str, rank: int | None) -> None:
    found = found_in(f"{text}\n[rank0]: torch.distributed.DistBackendError: NCCL watchdog timeout")
    assert (found.line, found.signal, found.rank) == (1, signal, rank)


def test_faulthandlers_stack_names_the_innermost_frame() -> None:
    found = found_in(
        "(pid=9) Fatal Python error: Segmentation fault\n(pid=9) Current thread 0x7f (most recent call first):\n"
        '(pid=9)   File "/job/inner.py", line 3 in f\n(pid=9)   File "/job/outer.py", line 9 in <module>\n'
    )
    assert found.frame == Frame(file="/job/inner.py", line=3, function="f")
    assert found.signal == "SIGSEGV"


CHAIN = """Traceback (most recent call last):
  File "/job/a.py", line 1, in f
    d["x"]
KeyError: 'x'

{}

Traceback (most recent call last):
  File "/job/b.py", line 2, in g
    f()
RuntimeError: outer"""


@pytest.mark.parametrize(
    "words",
    [
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    ],
)
def test_the_first_of_a_chain_counts(words: str) -> None:
    found = found_in(CHAIN.format(words))
    assert (found.exception, found.line, found.frame) == ("KeyError", 4, Frame(file="/job/a.py", line=1, function="f"))
    assert [(one.line, one.reason) for one in found.secondary] == [(11, "raised-from")]


def test_the_first_of_a_group_counts() -> None:
    found = found_in("""  + Exception Group Traceback (most recent call last):
  |   File "/job/a.py", line 3, in <module>
  |     raise ExceptionGroup("both", [a, b])
  | ExceptionGroup: both (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/job/b.py", line 4, in f
    |     raise ValueError(1)
    | ValueError: 1
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/job/c.py", line 5, in g
    | TypeError: 2
    +------------------------------------""")
    assert (found.line, found.exception, found.frame) == (
        9,
        "ValueError",
        Frame(file="/job/b.py", line=4, function="f"),
    )
    assert [(one.line, one.reason) for one in found.secondary] == [(4, "consequence"), (13, "other")]


def test_what_a_ray_task_wraps_counts() -> None:
    found = found_in("""Traceback (most recent call last):
  File "/job/main.py", line 1, in <module>
    ray.get(x)
ray.exceptions.RayTaskError(ValueError): ray::W.f() (pid=1, ip=10.0.0.1)
  File "/job/w.py", line 7, in f
    raise ValueError("inner")
ValueError: inner""")
    assert (found.line, found.message, found.frame) == (
        7,
        "inner",
        Frame(file="/job/w.py", line=7, function="f"),
    )


def test_a_remote_traceback_counts_before_what_carries_it() -> None:
    found = found_in('''multiprocessing.pool.RemoteTraceback:
"""
Traceback (most recent call last):
  File "/job/a.py", line 1, in f
ZeroDivisionError: division by zero
"""

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/job/b.py", line 1, in g
ZeroDivisionError: division by zero''')
    assert found.line == 5


@pytest.mark.parametrize(
    "line",
    [
        "train.py: error: unrecognized arguments: --lr",
        "Could not override 'trainer.x'.",
        "src/a.cu(12): error: identifier is undefined",
        "/t/a.cpp:3:1: error: expected ';'",
        "AssertionError",
        "Assertion `n > 0' failed.",
        "/t/python: symbol lookup error: /e/x.so: undefined symbol: f",
        "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-30T18:49:53 DUE TO TIME LIMIT ***",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.",
        "[Sun Nov 30 18:49:53 2026] NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "Nov 30 18:49:53 n1 kernel: Out of memory: Kill process 5 (python) score 1",
        "bash: torchrun: command not found",
        "  × No solution found when resolving dependencies:",
        "python: can't open file '/job/x.py': [Errno 2] No such file or directory",
        "free(): invalid pointer",
        "a.o: undefined reference to `f'",
        "nvcc fatal   : Unsupported gpu architecture 'compute_999'",
        "make: *** [all] Error 1",
        "Error: no such option: --x",
        "Terminated",
        "EngineCore failed to start.",
        "[rank3]:[E1130 18:49:53.1 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout",
    ],
)
def test_lines_of_other_programs_are_seen(line: str) -> None:
    assert found_in(f"all is well\n{line}\nall is well").line == 2


def test_a_compilers_error_comes_before_the_builders() -> None:
    found = found_in("""FAILED: [code=1] a.o
/t/a.cpp:3:1: error: expected ';'
/t/a.cpp:9:1: error: and more
ninja: build stopped: subcommand failed.
error: command '/usr/bin/g++' failed with exit code 1
RuntimeError: Error compiling objects for extension""")
    assert found.line == 2


def test_a_bar_before_the_error_on_its_line_is_taken_off() -> None:
    found = found_in("10%|█   | 1/10 [00:01<00:09]\r 50%|██  | 5/10 [00:05<00:05,  1it/s]ValueError: glued\n")
    assert (found.line, found.text) == (1, "ValueError: glued")


def test_the_last_state_of_a_bar_counts() -> None:
    assert read("ValueError: overwritten\r100%|████| 10/10 [00:01<00:00]\n") is None


def test_rays_count_of_repetitions_is_taken_off() -> None:
    found = found_in("(W pid=7, ip=10.0.0.1) ValueError: x [repeated 7x across cluster] (Ray deduplicates logs)")
    assert (found.text, found.worker) == ("ValueError: x", "W pid=7")


def test_a_crash_amid_anothers_traceback_is_seen() -> None:
    text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n*** SIGSEGV received at time=1\n'
    assert found_in(text).signal == "SIGSEGV"


def test_a_traceback_without_an_end_gives_way() -> None:
    begun = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "a.py", line 1, in f\n'
    found = found_in(begun + "step\n" * 9000 + "ValueError: after")
    assert (found.line, found.message) == (9003, "after")


def test_a_secret_in_the_line_is_cut() -> None:
    found = found_in("ValueError: cannot read https://me:hunter2@host/x")
    assert "hunter2" not in found.text + str(found.message)


HOSTILE = {
    "error": b"error\n",
    "Killed": b"Killed\n",
    "NCCL WARN": b"NCCL WARN " * 400 + b"\n",
    "TCPStore": b"TCPStore" * 500 + b"error\n",
    "WorkNCCL": b"WorkNCCL(" * 450 + b"error\n",
    "ld.so": b"ld.so: object " * 290 + b"error\n",
    "terminate": b"terminate called " * 230 + b"\n",
    "Assertion": b"Assertion `" * 360 + b"\n",
    "retry": b"retrying 1 of " * 300 + b"error\n",
    "repeated": b"error repeated " + b" " * 4000 + b"x\n",
    "places": b"a" * 2000 + b":1" * 1000 + b" error\n",
    "blanks": b"(A" + b" " * 118 + b"pid=error\n",
    "dots": b"a." * 2000 + b"Error\n",
    "ranks": b"[rank1]:" * 500 + b" error\n",
    "bars": b"1%|" * 1300 + b"error\n",
    "margins": b"  + Exception Group Traceback (most recent call last):\n" + b"  | " * 1000 + b"\n",
    "a rollout": b'{"prompt": "' + b"Explain the error. " * 200 + b'"}\n',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_megabyte_of_a_hostile_line_is_read_soon(name: str) -> None:
    line = HOSTILE[name]
    begun = time.process_time()
    first_effective_error([LogFile(name=name, pieces=[line] * (1024 * 1024 // len(line)))])
    assert time.process_time() - begun < 20  # a guard against growth with the square, no measure of speed


def test_very_many_writers_with_open_tracebacks_are_read_soon() -> None:
    writers = [f"(W pid={n}) Traceback (most recent call last):\n".encode() for n in range(20_000)]
    last = b'(W pid=19999)   File "/job/a.py", line 1, in f\n(W pid=19999) KeyError: 1\n'
    begun = time.process_time()
    found = first_effective_error([LogFile(name="x", pieces=[*writers, last])])
    assert time.process_time() - begun < 20
    assert found is not None
    assert (found.line, found.worker) == (20_002, "W pid=19999")


def test_a_line_repeated_without_end_does_not_hide_the_next() -> None:
    found = found_in("Killed\nno error here\n" * 5000 + "KeyError: 'x'\n")
    assert (found.line, found.exception) == (10_001, "KeyError")


FRAMES = 'Traceback (most recent call last):\n  File "/job/a.py", line 1, in <module>\n'


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Exception: the data has no split train", "Exception"),
        ("Exception", "Exception"),
        ("Error: no", "Error"),
        ("zlib.error: Error -3 while decompressing data", "zlib.error"),
        ("struct.error: unpack requires a buffer of 8 bytes", "struct.error"),
        ("re.error: bad escape", "re.error"),
        ("socket.timeout: timed out", "socket.timeout"),
        ("socket.gaierror: [Errno -2] Name or service not known", "socket.gaierror"),
        ("Oops: x", "Oops"),
        ("Oops", "Oops"),
        ("mylib.bad_thing: x", "mylib.bad_thing"),
    ],
)
def test_any_class_may_end_a_traceback(line: str, name: str) -> None:
    found = found_in(f"{FRAMES}{line}\nstep 2\nSavedModel: /out/x\n")
    assert (found.line, found.exception, found.tier) == (3, name, "cause")
    assert found.frame == Frame(file="/job/a.py", line=1, function="<module>")


def test_a_plain_exception_of_a_rank_comes_before_the_launchers_notice() -> None:
    rank = "".join(f"[rank0]: {line}\n" for line in f"{FRAMES}Exception: no split".split("\n"))
    found = found_in(f"{rank}failed (exitcode: 1) local_rank: 0 (pid: 1) of binary: /p\n")
    assert (found.line, found.message, found.rank) == (3, "no split", 0)


def test_a_plain_exception_may_be_the_first_of_a_chain() -> None:
    words = "During handling of the above exception, another exception occurred:"
    found = found_in(f"{FRAMES}Exception: first\n\n{words}\n\n{FRAMES}RuntimeError: second\n")
    assert (found.line, found.message) == (3, "first")


def test_a_plain_exception_under_a_box_is_named() -> None:
    found = found_in(
        "╭──── Traceback (most recent call last) ────╮\n│ /job/a.py:10 in main │\n╰────╯\nException: no split"
    )
    assert (found.line, found.frame) == (4, Frame(file="/job/a.py", line=10, function="main"))


@pytest.mark.parametrize("line", ["loss: 0.25", "Killed", "INFO:root:step: done", "srun: error: n1: task 0: Killed"])
def test_a_foreign_line_amid_a_traceback_does_not_end_it(line: str) -> None:
    assert found_in(f"{FRAMES}{line}\nmylib.bad_thing: x").line == 4
