"""The wordings by which one line is known, each looked for only where a text of its own stands in the line.

A pattern alone would be tried at every letter of every line. So each has a needle that is quick to look for, and a
wording of two parts with anything between them is two patterns: the second is looked for behind the first place of the
first, so that no line takes time that grows with the square of its length.
The wordings were read in the logs handed with the cases, in torch 2.10, Ray 2.56, vLLM 0.18, pip 26.3 and glibc 2.36,
2026-11-30.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Wordings:
    """Some wordings of one meaning."""

    table: tuple[tuple[str, re.Pattern[str], re.Pattern[str] | None], ...]
    """A needle, the pattern, and the pattern that must follow it somewhere in the line."""

    def found(self, text: str) -> bool:
        """Whether one of the wordings stands in a line."""
        for needle, pattern, behind in self.table:
            if needle in text:
                match = pattern.search(text)
                if match is not None and (behind is None or behind.search(text, match.end()) is not None):
                    return True
        return False


def _words(*rows: tuple[str, str] | tuple[str, str, str]) -> Wordings:
    return Wordings(
        table=tuple((row[0], re.compile(row[1]), re.compile(row[2]) if len(row) == 3 else None) for row in rows)
    )


_NOTHING = r"(?:[-+]?[\d.][\d.,]*(?:[eE][-+]?\d+)?\s?%?|nan|inf|None|null|[Nn]one|[Ff]alse|\[\]|\{\}|''|\"\")$"
"""What stands behind `error: ` where a measure or an empty answer is printed."""

BENIGN = _words(
    (" factory", r"Unable to register cu\w+ factory"),
    ("computation_placer", r"computation_placer already registered"),
    ("process group has", r"process group has NOT been destroyed"),
    ("dependency resolver", r"dependency resolver does not currently take into account"),
    ("NCCL INFO", r"\bNCCL INFO "),
    ("XDG_RUNTIME_DIR", r"XDG_RUNTIME_DIR"),
    (" ignored", r"ld\.so: object ", r" ignored\.?$"),
    ("cudart dlerror", r"Ignore above cudart dlerror"),
    ("error_file", r"error_file\s*: "),
    ("TensorRT", r"Could not find TensorRT"),
    (".warn(", r"^\s*warnings?\.warn\("),
    ("uccessfully ", r"^[Ss]uccessfully "),
    ("retry", r"retry(?:ing)? \d+ (?:of|/) \d+"),
    ("rror", r"(?i:\b(?:no|0|zero|without) errors?\b)"),
    ("RROR", r"(?i:\b(?:no|0|zero|without) errors?\b)"),
    ("rror: ", r"^(?:[\w./-]+: )?[Ee]rror: " + _NOTHING),
    ("RROR: ", r"^(?:[\w./-]+: )?ERROR: " + _NOTHING),
    ("ailure", r"(?i:\b(?:no|0|zero|without) failures?\b)"),
    ("AILURE", r"(?i:\b(?:no|0|zero|without) failures?\b)"),
)

#: A warning that names the cause of a later error, and what the later error must speak of.
HINTS: tuple[tuple[Wordings, re.Pattern[str]], ...] = (
    (
        _words(
            ("Warning: CUDA init", r"Warning: CUDA initialization: "),
            ("NVIDIA driver on", r"Warning: ", r"NVIDIA driver on your system"),
        ),
        re.compile(r"(?i)cuda|nvidia|driver|\bgpus?\b|device|kernel image|Engine core"),
    ),
    (
        _words(
            ("CUDA capability", r"CUDA capability sm_\d+ is not compatible"),
            ("which is of c", r"^(?:\S+: \w*Warning: )?\s*Found GPU\d+ ", r"which is of (?:cuda|compute) capability"),
        ),
        re.compile(r"kernel image|invalid device function|NO_BINARY_FOR_GPU|CUBLAS_STATUS_|Engine core"),
    ),
    (
        _words(("Failed to import from", r"Failed to import from \S+ with (?:Import|ModuleNotFound|OS)Error")),
        re.compile(r"undefined symbol|_C\b|_OpNamespace|version `|\.so\b|infer device type|Engine core"),
    ),
    (
        _words(("NumPy 1.x", r"^A module that was compiled using NumPy 1\.x cannot be run in")),
        re.compile(r"(?i)numpy|_ARRAY_API|multiarray|Engine core|dtype size"),
    ),
    (
        _words(("freed 0.00", r"Sleep mode freed 0\.00 GiB")),
        re.compile(r"(?i)expandable segments|memory pool|out of memory|Engine core"),
    ),
)

NEVER = _words(
    ("leaked ", r"leaked (?:semaphore|shared_memory|folder) objects"),
    ("Exception ignored", r"^Exception ignored (?:in|on|while)\b"),
    ("SIGTERM", r"\bSIGTERM\b(?!\) received)"),
    ("ds_opt_adam", r"ds_opt_adam"),
    ("from a different dir", r"Please try running Python from a different directory"),
)

#: Causes that come as an exception which else only follows from another failure.
CERTAIN = _words(
    ("EADDRINUSE", r"EADDRINUSE"),
    ("ddress already in use", r"\b[Aa]ddress already in use"),
    ("The actor is dead because", r"^The actor is dead because ", r"running low on memory"),
)

CONSEQUENCE = _words(
    ("Caught ", r"Caught \w+ in (?:DataLoader worker process|pin memory thread|replica)\b"),
    ("Engine core", r"Engine core (?:proc\S{0,80} )?(?:initialization )?(?:failed|died)"),
    ("EngineCore", r"EngineCore (?:encountered|failed|hit an exception)"),
    ("Error", r"(?:EngineDead|EngineGenerate|ChildFailed|\bActorDied|RayActor|ActorUnavailable|WorkerCrashed)Error"),
    ("Error", r"(?:NodeDied|OwnerDied|ObjectLost|LocalRayletDied|TaskUnschedulable|ActorUnschedulable)Error"),
    ("Error", r"(?:GetTimeout|RayTask|DistStore|DistNetwork)Error"),
    ("errors above", r"[Ll]ook at the errors above"),
    ("root cause above", r"[Ss]ee root cause above"),
    ("failed collective", r"[Ss]tack trace of the failed collective"),
    ("dump signal", r"(?:flight recorder dump signal|Received a dump signal due to a collective timeout)"),
    ("dump debug info", r"preparing to dump debug info"),
    ("signal dumping", r"First PG on this rank to signal dumping"),
    ("by watchdog", r"[Dd]etected by watchdog"),
    ("atchdog", r"[Ww]atchdog (?:caught|got stuck|timeout|thread)|NCCL watchdog"),
    ("WorkNCCL(", r"WorkNCCL\(", r"ran for"),
    ("collective operation", r"collective operation timeout"),
    ("DistBackendError", r"terminate called ", r"DistBackendError"),
    ("NCCL ", r"NCCL (?:work|operations)", r"failed|timed out"),
    ("the entire process", r"(?:take|taking) the entire process down"),
    ("recvValue", r"recvValue failed"),
    ("sendBytes", r"sendBytes failed"),
    ("TCPStore", r"TCPStore", r"failed|closed"),
    ("by peer", r"[Cc]onnection (?:was )?(?:closed|reset) by peer"),
    ("Broken pipe", r"Broken pipe"),
    ("remote process exited", r"remote process exited or there was a network error"),
    ("Error", r"^(?:\w+\.)*(?:BrokenPipeError|ConnectionResetError|ConnectionAbortedError|EOFError|CancelledError)\b"),
    ("KeyboardInterrupt", r"^(?:\w+\.)*KeyboardInterrupt\b"),
    ("SystemExit", r"^(?:\w+\.)*SystemExit\b"),
    ("GeneratorExit", r"^(?:\w+\.)*GeneratorExit\b"),
    ("ExceptionGroup", r"^(?:\w+\.)*(?:Base)?ExceptionGroup\b"),
    ("ProcessRaised", r"^(?:\w+\.)*ProcessRaisedException\b"),
    ("SIGTERM", r"closing signal SIGTERM|\(SIGTERM\) received"),
    ("exit", r"exitcode\s*: -15|exit code:? (?:-15|143)\b"),
    ("Killing subprocess", r"Killing subprocess"),
    ("SignalException", r"SignalException"),
    ("running Ray instance", r"[Cc]ould not find any running Ray instance"),
    ("The actor is dead", r"^The actor is dead because"),
    ("subprocess-exited", r"subprocess-exited-with-error"),
    ("metadata-generation", r"metadata-generation-failed"),
    ("error: command ", r"^error: command .* failed"),
    ("collect2: error", r"collect2: error"),
    ("Failed to build", r"Failed to build"),
    ("building wheel", r"Failed building wheel"),
    ("ninja: build", r"ninja: build stopped"),
    ("FAILED: ", r"^FAILED: "),
    ("Error compiling", r"Error compiling objects"),
    ("Error building", r"Error building extension"),
    ("***", r"^make(?:\[\d+\])?: \*\*\*"),
    ("installable wheels", r"ERROR: Failed to build installable wheels"),
    ("did not run succ", r"did not run successfully"),
    ("backend extension", r"Failed to load the backend extension"),
    ("infer device type", r"Failed to infer device type"),
)

_ABSENT = r"(?:not found|Permission denied|No such file or directory)$"
_SHELL = r"^(?:\S+: line \d+:\s+\d+ )?"

NOTICE = _words(
    ("nccl", r"^nccl[A-Z]\w*: "),
    ("UCX  ERROR", r"\bUCX  ERROR "),
    (
        "sh: ",
        r"^(?:\S*/)?(?:da|ba|z|k)?sh: (?:line )?\d+: .*: (?:not found|Permission denied|No such file or directory)$",
    ),
    ("Killed", _SHELL + r"Killed(?:\s{2,}.*)?$"),
    ("Aborted", _SHELL + r"Aborted(?:\s{2,}.*)?$"),
    ("Terminated", _SHELL + r"Terminated(?:\s{2,}.*)?$"),
    ("(core dumped)", r"\(core dumped\)"),
    ("Fatal Python", r"^Fatal Python error: Aborted"),
    ("exit", r"exitcode\s*: -?[1-9]\d*|\bexit(?:ed with)?(?: exit)? code:? -?[1-9]\d*|exited unexpectedly"),
    ("Signal ", r"Signal \d+ \(SIG[A-Z]+\) received"),
    ("A worker died", r"^A worker died or was killed while executing"),
    ("unexpectedly exits", r"Worker unexpectedly exits"),
    ("terminated with", r"terminated with signal"),
    ("exited on signal", r"exited on signal \d+"),
    ("was killed by", r"was killed by signal"),
    ("OutOfMemoryError", r"ray\.exceptions\.OutOfMemoryError"),
    ("low on memory", r"running low on memory"),
    ("CalledProcessError", r"CalledProcessError"),
    ("BrokenProcessPool", r"BrokenProcessPool"),
    ("DistBackendError", r"DistBackendError"),
    ("ProcessExited", r"ProcessExitedException"),
    ("Error executing job", r"^Error executing job with overrides"),
    ("srun: error: ", r"srun: error: ", r": (?:Killed|Aborted|Segmentation fault|Exited)"),
)

CAUSE = _words(
    ("Fatal Python", r"^Fatal Python error: (?!Aborted)"),
    ("Unhandled exc", r"Unhandled exception: "),
    ("*** SIG", r"^\*\*\* SIG[A-Z]+ .*received"),
    ("Segmentation fault", _SHELL + r"Segmentation fault\b"),
    ("Segfault enc", r"^!+ Segfault encountered !+"),
    ("Bus error", _SHELL + r"Bus error\b"),
    ("Illegal instruction", _SHELL + r"Illegal instruction\b"),
    ("Floating point exc", _SHELL + r"Floating point exception\b"),
    ("terminate called", r"terminate called"),
    ("pure virtual", r"pure virtual method called"),
    ("stack smashing", r"\*\*\* stack smashing"),
    ("double free", r"double free"),
    ("corrupted ", r"corrupted (?:size|double-linked)"),
    ("(): ", r"^(?:free|malloc|realloc|munmap_chunk|calloc)\(\): "),
    ("Assertion ", r"Assertion [`']", r"' failed|` failed"),
    ("Out of memory: ", r"Out of memory: Kill(?:ed)? process"),
    ("cgroup out of", r"Memory cgroup out of memory"),
    ("oom-killer", r"invoked oom-killer"),
    ("kill", r"oom[-_]kill(?: event|:)"),
    ("killed by the OOM", r"killed by the OOM killer"),
    ("oom-kill", r"result 'oom-kill'"),
    ("OOMKilled", r"\bOOMKilled\b"),
    ("memory pressure", r"^Killed /\S+ due to memory pressure"),
    ("job killed: ", r"PBS: job killed: "),
    ("TERM_", r"^TERM_[A-Z]+: job killed"),
    ("DUE TO TIME LIMIT", r"DUE TO TIME LIMIT"),
    ("NVRM: Xid", r"NVRM: Xid"),
    ("CUDA ", r"CUDA (?:driver )?error: |^CUDA out of memory"),
    ("CUDA error", r"^(?:\w+ )?CUDA error (?:\(|\d+: )"),
    ("kernel image", r"no kernel image is available"),
    ("CUDA_ERROR_", r"CUDA_ERROR_[A-Z_]+"),
    ("NVIDIA-SMI", r"^NVIDIA-SMI has failed"),
    ("device handle", r"Unable to determine the device handle for GPU"),
    ("off the bus", r"NVRM: .{0,60}fallen off the bus"),
    ("from daemon", r"^docker: Error response from daemon: "),
    ("OMP: Error", r"^OMP: Error #\d+: "),
    ("invalid opcode", r"\btrap invalid opcode\b"),
    ("Error 80", r"\bError 80\d: "),
    ("cannot open shared", r"cannot open shared object file"),
    ("undefined symbol: ", r"undefined symbol: "),
    ("' not found", r"version `[^`']+' not found"),
    (": No module named", r"^\S+: No module named \S+$"),
    ("sh: ", r"^\w*sh: .*: (?:No such file or directory|Permission denied)$"),
    ("bad interpreter", r"bad interpreter"),
    ("cannot execute: ", r"cannot execute: "),
    (": command not found", r": command not found"),
    ("module spec", r"^\S+: Error while finding module specification for "),
    ("can't open file", r"can't open file"),
    ("cannot find -l", r"cannot find -l\w+"),
    ("undefined reference", r"undefined reference to"),
    ("error: ", r"^[^\s:][^:\n]*(?::\d+)+: (?:fatal )?error: "),
    ("error: ", r"^[^\s(][^(\n]*\(\d+\): (?:fatal )?error: "),
    (" fatal", r"(?:nvcc|ptxas) fatal"),
    ("CMake Error", r"CMake Error"),
    ("No solution found", r"No solution found"),
    ("out of resource: ", r"out of resource: .{0,60}Required: "),
    ("find C compiler", r"Failed to find C compiler"),
    ("NCCL WARN ", r"NCCL WARN ", r"(?i:error|fail(?:ed|ure)|cannot|unable|interface found|neither AF_INET)"),
    ("o space left", r"[Nn]o space left on device"),
    ("Too many open", r"Too many open files"),
    ("pthread_create", r"pthread_create(?:\(\))? (?:has )?failed"),
    ("emporarily unav", r"(?i:\bthreads?\b|\bfork: |system_error)", r"[Rr]esource temporarily unavailable"),
    ("is too old", r"^(?:The )?NVIDIA driver on your system is too old"),
    (": error: ", r"^[\w./-]+: error: "),
    ("rror: ", r"^[Ee]rror: "),
    ("ERROR: ", r"^ERROR: "),
    ("ERROR! ", r"^ERROR! "),
    ("Could not ", r"^Could not (?:override|append|load)"),
    ("Error ", r"^Error (?:locating|in call to) target"),
)
