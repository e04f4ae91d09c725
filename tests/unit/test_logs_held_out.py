"""Logs written after the patterns, in the forms of public reports: which line counts, and as what.

`>>> ` marks the line that counts; it is taken off before the log is read.
"""

from __future__ import annotations

import pytest

from envsmith.logs.firsterror import first_effective_error
from envsmith.logs.lines import LogFile

LOGS: dict[str, tuple[str, str | None, int | None, str]] = {
    "torchelastic after a SIGKILL": (
        "notice",
        "SIGKILL",
        4,
        """WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 1 closing signal SIGTERM
>>> ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 4 (pid: 8) of binary: /h/p
Traceback (most recent call last):
  File "/h/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
====
Root Cause (first observed failure):
  rank      : 4 (local_rank: 4)
  exitcode  : -9 (pid: 8)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 8""",
    ),
    "Ray's list of what may have killed a worker names no signal": (
        "notice",
        None,
        None,
        """>>> (raylet) A worker died or was killed while executing a task by an unexpected system error. \
There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer. (3) SIGSEGV
Error executing job with overrides: ['a=1']
Traceback (most recent call last):
  File "/x/main.py", line 1, in main
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
The actor is dead because its worker process has died.""",
    ),
    "Ray's own logger": (
        "cause",
        None,
        None,
        """(WorkerDict pid=1) [2025-03-04 19:28:29,014 I 1 7] actor_manager.cc:1: state: DEAD, exit code: 9, SIGKILL
>>> (WorkerDict pid=7) [2025-03-04 19:28:30,014 E 7 7] logging.cc:113: Unhandled exception: E. what(): unavailable
(raylet) A worker died or was killed while executing a task by an unexpected system error.""",
    ),
    "vLLM's engine process": (
        "cause",
        None,
        None,
        """(APIServer pid=1) INFO 10-15 08:32:29 [utils.py:1] hello
(EngineCore_DP0 pid=5) ERROR 10-15 08:32:29 [core.py:708] EngineCore failed to start.
(EngineCore_DP0 pid=5) ERROR 10-15 08:32:29 [core.py:708] Traceback (most recent call last):
(EngineCore_DP0 pid=5) ERROR 10-15 08:32:29 [core.py:708]   File "/h/core.py", line 699, in run
>>> (EngineCore_DP0 pid=5) ERROR 10-15 08:32:29 [core.py:708] torch.OutOfMemoryError: CUDA out of memory.
(EngineCore_DP0 pid=5) Process EngineCore_DP0:
(EngineCore_DP0 pid=5) Traceback (most recent call last):
(EngineCore_DP0 pid=5)   File "/usr/lib/python3.10/multiprocessing/process.py", line 314, in _bootstrap
(EngineCore_DP0 pid=5) torch.OutOfMemoryError: CUDA out of memory.
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.""",
    ),
    "NCCL's watchdog before the cause": (
        "cause",
        None,
        2,
        """[rank0]:[E1130 18:49:53.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout
[rank2]: Traceback (most recent call last):
[rank2]:   File "/j/t.py", line 4, in <module>
>>> [rank2]: torch.AcceleratorError: CUDA error: device-side assert triggered
[rank0]: terminate called after throwing an instance of 'c10::DistBackendError'
[rank0]: Fatal Python error: Aborted""",
    ),
    "NCCL's watchdog and the abort that it makes": (
        "consequence",
        None,
        0,
        """>>> [rank0]:[E1130 18:49:53.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0] Process group watchdog thread terminated with exception
Fatal Python error: Aborted""",
    ),
    "an abort of another rank beside NCCL's watchdog": (
        "notice",
        "SIGABRT",
        3,
        """[rank0]:[E1130 18:49:53.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout
>>> [rank3]: Fatal Python error: Aborted""",
    ),
    "Slurm's memory limit": (
        "cause",
        "SIGKILL",
        None,
        """0: step 1
>>> slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.
srun: error: n1: task 3: Out Of Memory""",
    ),
    "DeepSpeed's launcher": (
        "cause",
        None,
        None,
        """[2026-11-30 18:49:53,123] [INFO] [launch.py:1:main] start
Traceback (most recent call last):
>>> ValueError: x is wanted
[2026-11-30 18:49:54,123] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 1
[2026-11-30 18:49:55,123] [ERROR] [launch.py:325:sigkill_handler] ['/p', 'x.py'] exits with return code = 1""",
    ),
    "a module that python -m does not find": ("cause", None, None, ">>> /e/bin/python: No module named llamafactory"),
    "a program that the shell does not find": ("cause", None, None, ">>> bash: /e/bin/x: No such file or directory"),
    "a script that may not run": ("cause", None, None, ">>> bash: ./run.sh: Permission denied"),
    "a module specification that python -m does not find": (
        "cause",
        None,
        None,
        ">>> /e/bin/python3: Error while finding module specification for 'a' (ImportError: x)",
    ),
    "a launcher that was told to end": (
        "consequence",
        "SIGTERM",
        None,
        ">>> W1130 10:00:00.0 1 torch/elastic/agent/api.py:719] Received 15 death signal, shutting down",
    ),
    "a port that is taken, under torchrun": (
        "cause",
        None,
        None,
        """[W1130 10:00:00.1 socket.cpp:755] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98).
[E1130 10:00:00.1 socket.cpp:790] [c10d] The server socket has failed to listen on any local network address.
Traceback (most recent call last):
  File "/e/torchrun", line 1, in <module>
>>> torch.distributed.DistNetworkError: failed to listen. port: 29500, code: -98, name: EADDRINUSE""",
    ),
    "NCCL's summary before its warning": (
        "cause",
        None,
        0,
        """[rank1]: torch.distributed.DistBackendError: NCCL error in: x, unhandled system error
[rank1]: ncclSystemError: System call or external library call failed or device error.
>>> n1:1:1 [0] NCCL WARN Call to ibv_create_qp failed: Cannot allocate memory""",
    ),
    "a DataLoader's worker": (
        "cause",
        None,
        None,
        """Traceback (most recent call last):
  File "/j/t.py", line 1, in <module>
KeyError: Caught KeyError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/j/ds.py", line 9, in __getitem__
>>> KeyError: 'text'""",
    ),
    "a program that dash does not find": ("notice", None, None, ">>> /bin/sh: 1: foo: not found"),
    "an error of the reward behind a prompt that was printed": (
        "cause",
        None,
        None,
        """(TaskRunner pid=1) [prompt] mend this
(TaskRunner pid=1) Traceback (most recent call last):
(TaskRunner pid=1)   File "a.py", line 1, in <module>
(TaskRunner pid=1) NameError: name 'x' is not defined
(TaskRunner pid=1) [ground_truth] 3
(TaskRunner pid=1) [score] 1.0
(TaskRunner pid=1) Traceback (most recent call last):
(TaskRunner pid=1)   File "/j/reward.py", line 1, in f
>>> (TaskRunner pid=1) KeyError: 'y'""",
    ),
    "an error of another worker amid a prompt": (
        "cause",
        None,
        None,
        "(TaskRunner pid=1) [prompt] mend this\n>>> (W pid=2) KeyError: 'y'\n(TaskRunner pid=1) [score] 1.0",
    ),
    "ptxas before Triton": (
        "cause",
        None,
        None,
        ">>> ptxas fatal   : Value 'sm_120' is not defined\nRuntimeError: Internal Triton PTX codegen error",
    ),
}

SUCCESSES = (
    "2026-11-30 18:49:53,123\tINFO utils.py:330 -- Module x cannot be loaded. Error: No module named 'y'",
    """INFO 10-15 08:32:29 [__init__.py:1384] Found nccl from library libnccl.so.2
(APIServer pid=1) INFO:     Application shutdown complete.
[rank0]:[W1015 08:33:00.1 ProcessGroupNCCL.cpp:1538] Warning: destroy_process_group() was not called
INFO 10-15 08:33:00 [x.py:1] Received SIGTERM, exiting
W1015 08:33:00.100 1 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 2 closing signal SIGTERM""",
    """Some weights were not initialized: ['error_head.weight']
Could not estimate the number of tokens of the input
Error rate is 0.0
The following columns will be ignored: failed_flag, error_message.""",
    "Error: 0.02\nERROR: 0\nWord Error Rate: 3.1\nerror: 0.031\nerror: 0\nError: None\nfoo: error: 0.3\nerror: 1.5e-3",
    """(TaskRunner pid=1) [prompt] mend this
(TaskRunner pid=1) Traceback (most recent call last):
(TaskRunner pid=1)   File "a.py", line 1, in <module>
(TaskRunner pid=1) NameError: name 'x' is not defined
(TaskRunner pid=1) [response] ValueError: it was this
(TaskRunner pid=1) [ground_truth] 3
(TaskRunner pid=1) [score] 1.0""",
)


@pytest.mark.parametrize("name", LOGS)
def test_a_log_of_another_form_is_read(name: str) -> None:
    tier, signal, rank, text = LOGS[name]
    lines = text.split("\n")
    wanted = next(n for n, line in enumerate(lines, 1) if line.startswith(">>> "))
    pieces = ["\n".join(line.removeprefix(">>> ") for line in lines).encode()]
    found = first_effective_error([LogFile(name="log.txt", pieces=pieces)])
    assert found is not None
    assert (found.line, found.tier, found.signal, found.rank) == (wanted, tier, signal, rank)


@pytest.mark.parametrize("text", SUCCESSES)
def test_a_success_of_another_form_gives_nothing(text: str) -> None:
    assert first_effective_error([LogFile(name="log.txt", pieces=[text.encode()])]) is None
