"""What a line is worth that says little: an end without its reason, and the line after NCCL says `Last error:`."""

from __future__ import annotations

from envsmith.diagnosis import Diagnosis, judge, read_run
from envsmith.logs.lines import LogFile

TRACEBACK = 'Traceback (most recent call last):\n  File "/job/train.py", line 3, in <module>\n    main()\n'
KILLED = "[2026-11-30 01:02:03,100] [ERROR] [launch.py:325:sigkill_handler] ['python'] exits with return code = -9\n"
NCCL = (
    TRACEBACK + "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, invalid usage\n"
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
)


def diagnosed(text: str) -> Diagnosis:
    return judge(read_run([LogFile(name="log", pieces=[text.encode()])]), {})


def kinds(text: str) -> list[str]:
    return [cause.symptom.kind for cause in diagnosed(text).causes]


def test_an_end_by_sigkill_is_named_where_nothing_else_is_known() -> None:
    assert kinds("step 4 loss 1.2\n" + KILLED) == ["host-oom-killer"]


def test_an_end_by_sigkill_is_no_cause_beside_an_error_that_says_what_is_wrong() -> None:
    for apart in ("", "step\n" * 40):
        assert kinds(TRACEBACK + "KeyError: 'planted'\n" + apart + KILLED) == []


def test_the_line_after_nccls_last_error_is_read() -> None:
    assert kinds(NCCL + "Last error:\nBootstrap : no socket interface found\n") == ["nccl-interface"]
    assert kinds(NCCL + "Bootstrap has begun\n") == []


def test_an_older_prefix_of_vllm_hides_neither_the_traceback_nor_its_end() -> None:
    prefix = "ERROR 03-02 21:08:59 worker_base.py:581] "
    lines = (TRACEBACK + "RuntimeError: No CUDA GPUs are available").splitlines()
    found = diagnosed("".join(f"(Worker pid=7) {prefix}{line}\n" for line in lines))
    assert [(cause.symptom.kind, cause.line) for cause in found.causes] == [("gpu-not-visible", 4)]


def test_a_warning_of_a_card_without_code_is_no_cause_of_an_error_of_another_kind() -> None:
    warning = (
        "NVIDIA GeForce GT 710 with CUDA capability sm_35 is not compatible with the current PyTorch installation.\n"
    )
    assert kinds(warning + TRACEBACK + "KeyError: 'planted'\n") == []
    assert kinds(warning + TRACEBACK + "RuntimeError: CUDA error: no kernel image is available\n") == [
        "no-kernel-image"
    ]
