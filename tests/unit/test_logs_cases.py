"""The logs of the known failures, told in other words: each names the line that its cause is on, and no other.

`>>> ` marks the line that counts; it is taken off before the log is read.
"""

from __future__ import annotations

import pytest

from envsmith.logs.firsterror import FirstError, first_effective_error
from envsmith.logs.lines import LogFile

CASES: dict[str, str] = {
    "D01-compat-library": """INFO serving begins
>>> /e/torch/cuda/__init__.py:1: UserWarning: CUDA initialization: an error. Error 803
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}""",
    "D02-compat-on-geforce": """>>> RuntimeError: Error 804: forward compatibility was tried""",
    "D03-stub": """>>> CUDA_ERROR_STUB_LIBRARY: the library that answers is a stub (34)
is_available -> False""",
    "D04-no-libcuda-to-link": """(Worker pid=7) INFO shards: 100% done
>>> (Worker pid=7) /usr/bin/ld: cannot find -lcuda: No such file or directory
(Worker pid=7) collect2: error: ld returned 1 exit status
(Worker pid=7) subprocess.CalledProcessError: Command '['gcc', 'main.c', '-lcuda']' returned non-zero exit status 1.
(Worker pid=7) torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:
RuntimeError: Engine core initialization failed.""",
    "D05-old-driver": """>>> RuntimeError: The NVIDIA driver on your system is too old (found version 11040).""",
    "D06-old-driver-without-class": """>>> The NVIDIA driver on your system is too old (found version 12080)""",
    "D07-no-kernel-image": """>>> UserWarning: NVIDIA X9 with CUDA capability sm_120 is not compatible with it.
It supports sm_50 to sm_90.
available -> True
RuntimeError: CUDA error: no kernel image is available for execution on the device""",
    "D08-bf16": """>>> ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.""",
    "D09-shared-memory": """
>>> (WorkerDict pid=5) triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 81920
ray.exceptions.RayTaskError(OutOfResources): ray::WorkerDict.step()""",
    "D12-half-a-ray": """import of ray: fine
>>> AttributeError: module 'ray' has no attribute 'remote'""",
    "D13-old-nccl": """>>> ImportError: /e/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister""",
    "D14-old-cudnn": """>>> RuntimeError: cuDNN version incompatibility: (8, 3, 2) against (8, 0, 3).""",
    "D15-nvjitlink": """>>> ImportError: /e/libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4""",
    "D18-foreign-torchrun": """INFO - llamafactory.cli - distributed tasks at: 127.0.0.1:2000
Traceback (most recent call last):
>>> ModuleNotFoundError: No module named 'llamafactory'
ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 of binary: /b/python""",
    "D19-other-python": """>>> RuntimeError: Version mismatch: The cluster runs:
    Ray: 2.53.0
    Python: 3.11.14
this process:
    Python: 3.12.12""",
    "D20-variable-lost": """>>> (WorkerDict pid=9) ImportError: FlashAttention2 is on, but flash_attn is absent""",
    "D21-vendor-profile": """>>> ImportError: libhccl.so: cannot open shared object file: No such file or directory
RuntimeError: Failed to load the backend extension: torch_npu.
RuntimeError: Failed to infer device type""",
    "D22-socket-path": """>>> OSError: AF_UNIX path length cannot exceed 107 bytes: '/s/sockets/plasma_store'""",
    "D23-crash-in-actor": """plain python: text came
>>> (pid=88) *** SIGSEGV received at time=1 on cpu 3 ***
(pid=88) PC: @ 0x7f  (unknown)  libarrow.so.2500
(pid=88) Fatal Python error: Segmentation fault
ray.exceptions.ActorDiedError: The actor died before its task was done.""",
    "D24-numpy-1": """>>> A module that was compiled using NumPy 1.x cannot be run in NumPy 2.2.6 as it may crash.
AttributeError: _ARRAY_API not found
ImportError: numpy.core.multiarray failed to import""",
    "D25-protobuf": """>>> TypeError: Descriptors cannot not be created directly.
Generate the _pb2.py files anew with protoc.""",
    "D26-libstdcxx": """>>> ImportError: /l/libstdc++.so.6: version `GLIBCXX_3.4.30' not found""",
    "D27-glibc": """>>> ImportError("/lib64/libc.so.6: version `GLIBC_2.32' not found")
ModuleNotFoundError: No module named 'vllm._C'""",
    "D32-flash-attn-abi": """>>> ImportError: /e/flash_attn_2_cuda.so: undefined symbol: _ZN3c104cuda9SetDeviceEab""",
    "D33-isolated-build": """Getting requirements to build wheel ... error
>>>       ModuleNotFoundError: No module named 'torch'
ERROR: Failed to build 'fake' when getting requirements to build wheel""",
    "D34-unknown-model-type": """>>> KeyError: 'qwen9'

During handling of the above exception, another exception occurred:

ValueError: the checkpoint has model type `qwen9`, which is not known.""",
    "D35-stdlib": """>>> ImportError: cannot import name 'StrEnum' from 'enum' (/l/python3.10/enum.py)""",
    "D36-sleep-mode": """>>> INFO worker.py:1] Sleep mode freed 0.00 GiB memory, 63.15 GiB is still in use.
AssertionError: Expandable segments are not compatible with memory pool.""",
    "D37-allocator": """>>> [rank3]: RuntimeError: CUDA driver error: invalid argument
[rank3]: Exception raised from map at CUDACachingAllocator.cpp  cuMemMap CUDA_ERROR_INVALID_VALUE
[rank0]: torch.distributed.DistBackendError: NCCL watchdog timeout""",
    "D39-bias-correction": """[rank6]:   File "/e/deepspeed/stage3.py", line 1070, in _optimizer_step
[rank6]:   File "/e/deepspeed/cpu_adam.py", line 164, in step
>>> [rank6]: KeyError: 'bias_correction'
[rank0]: torch.distributed.elastic.multiprocessing.errors.ChildFailedError:""",
    "D40-op-build": """[INFO] extensions root /h/py310
>>> deepspeed.ops.op_builder.builder.CUDAMismatchException: >- installed CUDA 12.1, torch wants 11.8
Exception ignored in: <function DeepSpeedCPUAdam.__del__ at 0x7f>
AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'""",
    "D41-no-setuptools": """error: subprocess-exited-with-error
>>>     ERROR: Could not find a version that satisfies the requirement setuptools>=40.8.0 (from versions: none)
    ERROR: No matching distribution found for setuptools>=40.8.0""",
    "D42-scm": """>>> LookupError: setuptools-scm was unable to detect version for /t/x.""",
    "D43-manylinux": """>>> ERROR: t-2.4-cp310-manylinux_2_28_x86_64.whl is not a supported wheel on this platform.""",
    "D44-moved": """>>> bash: /e/bin/torchrun: /b/bin/python3: bad interpreter: No such file or directory
FileNotFoundError: [Errno 2] No such file or directory: '/e/bin/ray'""",
    "D45-fuse": """>>> safetensors._safetensors_rust.SafetensorError: Error while serializing: I/O error (os error 38)
OSError: [Errno 5] Input/output error""",
    "D46-descriptors": """>>> (raylet) OSError: [Errno 24] Too many open files
(raylet) *** SIGABRT received at time=2
ConnectionError: Could not find any running Ray instance.""",
    "D47-shm": """>>> [3] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-Y to 33 bytes
[3] misc/shmutils.cc:129 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Y
torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, unhandled system error""",
    "D48-no-compiler": """>>> RuntimeError: Failed to find C compiler. Set CC.""",
    "D48-no-header": """>>> /t/cuda_utils.c:5:10: fatal error: Python.h: No such file or directory""",
    "D49-stdin": """>>> FileNotFoundError: [Errno 2] No such file or directory: '/w/<stdin>'
RuntimeError: Engine core initialization failed. See root cause above.""",
    "D50-crash-at-exit": """training/global_step:2
Training is done.
>>> pure virtual method called
terminate called without an active exception
Fatal Python error: Aborted""",
    "D51-vendor-extension": """>>> ImportError: /e/libmusa_kernels.so: undefined symbol: _ZN2at18_Generator
ImportError: Please try running Python from a different directory!""",
    "D52-log-alone": """[launch.py:1:sigkill_handler] Killing subprocess 41
>>> ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.""",
}

QUIET: dict[str, str] = {
    "N04-noise": """E cuda_dnn.cc:9342] Unable to register cuDNN factory: Attempting to register one twice
/e/x.py:3: FutureWarning: pynvml is deprecated, an error will follow some day.
Setting OMP_NUM_THREADS for each process
[rank0]:[W1130 18:49:53.123 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed
training/global_step:1 - reward/mean:0.41 grad_norm:0.82""",
    "warnings": """UserWarning: CUDA initialization: Found no NVIDIA driver on your system.
WARNING 11-30 18:49:53 [cuda.py:12] Failed to import from x: ImportError("libcuda.so.1: cannot open shared object file")
2026-11-30 18:49:53.1: E external/cuda_fft.cc:477] Unable to register cuFFT factory
resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked semaphore objects to clean up
Exception ignored in: <function X.__del__ at 0x7f>
Traceback (most recent call last):
  File "x.py", line 3, in __del__
TypeError: 'NoneType' object is not callable""",
    "numbers": """{'loss': 0.5, 'error_rate': 0.1, 'failed': 0}
INFO 0 errors, 0 failed
eval/error: 0.25 - tests: 12 passed, no failures
Successfully installed exceptiongroup-1.2 errors-0.1""",
    "caught": """WARNING 11-30 18:49:53 [x.py:1] Traceback (most recent call last):
WARNING 11-30 18:49:53 [x.py:1]   File "/e/x.py", line 3, in f
WARNING 11-30 18:49:53 [x.py:1] ValueError: caught
Training is done.""",
    "hint-and-nothing-after": "INFO worker.py:1] Sleep mode freed 0.00 GiB memory, 1 GiB is still in use.",
    "empty": "",
}


def read(text: str, name: str = "log.txt") -> FirstError | None:
    return first_effective_error([LogFile(name=name, pieces=[text.encode()])])


@pytest.mark.parametrize("name", CASES)
def test_the_cause_of_a_known_failure_is_found(name: str) -> None:
    lines = CASES[name].split("\n")
    wanted = next(n for n, line in enumerate(lines, 1) if line.startswith(">>> "))
    found = read("\n".join(line.removeprefix(">>> ") for line in lines))
    assert found is not None
    assert (found.file, found.line) == ("log.txt", wanted)


@pytest.mark.parametrize("name", QUIET)
def test_a_success_has_no_first_error(name: str) -> None:
    assert read(QUIET[name]) is None


@pytest.mark.parametrize("name", QUIET)
def test_noise_before_an_error_does_not_hide_it(name: str) -> None:
    found = read(QUIET[name] + "\nValueError: planted")
    assert found is not None and found.message == "planted"


def test_the_kernels_word_comes_before_what_the_job_says_of_its_death() -> None:
    files = [
        LogFile(name="log.txt", pieces=[CASES["D52-log-alone"].removeprefix(">>> ").encode()]),
        LogFile(name="dmesg.txt", pieces=[b"[856341.77] Out of memory: Killed process 41 (python) total-vm:1kB\n"]),
    ]
    found = first_effective_error(files)
    assert found is not None
    assert (found.file, found.line, found.signal) == ("dmesg.txt", 1, "SIGKILL")


def test_the_library_of_a_crash_is_named() -> None:
    found = read(CASES["D23-crash-in-actor"].replace(">>> ", ""))
    assert found is not None
    assert (found.signal, found.library, found.worker) == ("SIGSEGV", "libarrow.so.2500", "pid=88")
