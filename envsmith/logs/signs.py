"""What one line alone says: a cause, a death notice, a consequence, a hint, or nothing.

Every pattern needs one of the needles of `lines` in its line, else its line is never looked at.
The wordings were read in the logs handed with the cases, in torch 2.10, Ray 2.56, vLLM 0.18, pip 26.3 and glibc 2.36,
2026-11-30.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from envsmith.logs.prefixes import Line


class Tier(IntEnum):
    """How near to the cause a line is: the lowest counts first, whatever the order in time."""

    CAUSE = 0
    NOTICE = 1
    """A death or failure without a reason: killed, exit code, an ERROR line of nobody known."""
    CONSEQUENCE = 2
    """Something that follows when another process or layer has failed."""
    NEVER = 3
    """Shown beside another error, never one by itself."""
    HINT = 4
    """A warning that names the cause of an error after it, and nothing without one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sign:
    """What a line is."""

    tier: Tier
    exception: str | None = None
    message: str | None = None
    signal: str | None = None
    loud: bool = False
    """Nothing but its level ERROR speaks for it."""
    wants: re.Pattern[str] | None = None
    """Of a hint: what the later error must speak of."""


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


_BENIGN = _any(
    r"Unable to register cu\w+ factory",
    r"computation_placer already registered",
    r"process group has NOT been destroyed",
    r"dependency resolver does not currently take into account",
    r"XDG_RUNTIME_DIR",
    r"ld\.so: object .* ignored\.?$",
    r"Ignore above cudart dlerror",
    r"error_file\s*: ",
    r"Could not find TensorRT",
    r"^\s*warnings?\.warn\(",
    r"(?i:\b(?:no|0|zero|without) (?:errors?|failures?)\b)",
    r"^[Ss]uccessfully ",
    r"retry(?:ing)? \d+ (?:of|/) \d+",
)

#: A text that is quick to look for, the pattern, and what a later error must speak of.
_HINTS: tuple[tuple[str, re.Pattern[str], re.Pattern[str]], ...] = (
    (
        "Warning: ",
        _any(
            r"Warning: .*CUDA capability sm_\d+ is not compatible",
            r"Warning: CUDA initialization: ",
            r"Warning: .*NVIDIA driver on your system",
        ),
        re.compile(r"(?i)cuda|nvidia|driver|\bgpus?\b|device|kernel image|Engine core"),
    ),
    (
        "NumPy 1.x",
        re.compile(r"^A module that was compiled using NumPy 1\.x cannot be run in"),
        re.compile(r"(?i)numpy|_ARRAY_API|multiarray|Engine core|dtype size"),
    ),
    (
        "freed 0.00",
        re.compile(r"Sleep mode freed 0\.00 GiB"),
        re.compile(r"(?i)expandable segments|memory pool|out of memory|Engine core"),
    ),
)

_NEVER = _any(
    r"leaked (?:semaphore|shared_memory|folder) objects",
    r"^Exception ignored (?:in|on|while)\b",
    r"\bSIGTERM\b(?!\) received)",
    r"ds_opt_adam",
    r"Please try running Python from a different directory",
)

_CONSEQUENCE = _any(
    r"Engine core (?:proc\S* )?(?:initialization )?(?:failed|died)",
    r"EngineCore (?:encountered|failed|hit an exception)",
    r"(?:EngineDead|EngineGenerate|ChildFailed|\bActorDied|RayActor|ActorUnavailable|WorkerCrashed|NodeDied)Error",
    r"(?:OwnerDied|ObjectLost|LocalRayletDied|TaskUnschedulable|ActorUnschedulable|GetTimeout|RayTask)Error",
    r"[Ss]ee root cause above",
    r"[Ww]atchdog (?:caught|got stuck|timeout|thread)|NCCL watchdog|WorkNCCL\(.*ran for|collective operation timeout",
    r"terminate called .*DistBackendError|NCCL (?:work|operations).*(?:failed|timed out)",
    r"(?:take|taking) the entire process down",
    r"Dist(?:Store|Network)Error|recvValue failed|sendBytes failed|TCPStore.*(?:failed|closed)",
    r"[Cc]onnection (?:was )?(?:closed|reset) by peer|Broken pipe|remote process exited or there was a network error",
    r"^(?:\w+\.)*(?:BrokenPipeError|ConnectionResetError|ConnectionAbortedError|EOFError|CancelledError)\b",
    r"^(?:\w+\.)*(?:KeyboardInterrupt|SystemExit|GeneratorExit)\b",
    r"^(?:\w+\.)*(?:Base)?ExceptionGroup\b|^(?:\w+\.)*ProcessRaisedException\b",
    r"closing signal SIGTERM|\(SIGTERM\) received|exitcode\s*: -15|exit code:? (?:-15|143)\b",
    r"Killing subprocess|SignalException",
    r"[Cc]ould not find any running Ray instance|^The actor is dead because",
    r"subprocess-exited-with-error|metadata-generation-failed|^error: command .* failed|collect2: error",
    r"Failed (?:to build|building wheel)|ninja: build stopped|^FAILED: ",
    r"Error compiling objects|Error building extension",
    r"^make(?:\[\d+\])?: \*\*\*|ERROR: Failed to build installable wheels|did not run successfully",
    r"Failed to load the backend extension|Failed to infer device type",
)

_NOTICE = _any(
    r"^(?:\S+: line \d+:\s+\d+ )?(?:Killed|Aborted|Terminated)(?:\s{2,}.*)?$",
    r"\(core dumped\)|^Fatal Python error: Aborted",
    r"exitcode\s*: -?[1-9]\d*|\bexit(?:ed with)?(?: exit)? code:? -?[1-9]\d*|exited unexpectedly",
    r"Signal \d+ \(SIG[A-Z]+\) received",
    r"^A worker died or was killed while executing|Worker unexpectedly exits",
    r"terminated with signal|was killed by signal",
    r"ray\.exceptions\.OutOfMemoryError|running low on memory",
    r"CalledProcessError|BrokenProcessPool|DistBackendError|ProcessExitedException",
    r"^Error executing job with overrides",
    r"srun: error: .*: (?:Killed|Aborted|Segmentation fault|Exited)",
)

_CAUSE = _any(
    r"^Fatal Python error: (?!Aborted)|Unhandled exception: ",
    r"^\*\*\* SIG[A-Z]+ .*received",
    r"^(?:\S+: line \d+:\s+\d+ )?(?:Segmentation fault|Bus error|Illegal instruction|Floating point exception)\b",
    r"terminate called|pure virtual method called|\*\*\* stack smashing|double free|corrupted (?:size|double-linked)",
    r"^(?:free|malloc|realloc|munmap_chunk|calloc)\(\): |Assertion [`'].*failed",
    r"Out of memory: Kill(?:ed)? process|Memory cgroup out of memory|invoked oom-killer|oom[-_]kill(?: event|:)",
    r"DUE TO TIME LIMIT|NVRM: Xid",
    r"CUDA (?:driver )?error: |CUDA_ERROR_[A-Z_]+|^CUDA out of memory|\bError 80\d: ",
    r"cannot open shared object file|undefined symbol: |version `[^']+' not found",
    r"^\S+: No module named \S+$|^\w*sh: .*: (?:No such file or directory|Permission denied)$",
    r"bad interpreter|cannot execute: |: command not found|can't open file|cannot find -l\w+|undefined reference to",
    r"^[^\s:][^:\n]*(?::\d+)+: (?:fatal )?error: |^[^\s(][^(\n]*\(\d+\): (?:fatal )?error: |(?:nvcc|ptxas) fatal",
    r"CMake Error|No solution found|Failed to find C compiler",
    r"NCCL WARN .*(?i:error|failed|cannot|unable)",
    r"[Nn]o space left on device|Too many open files",
    r"^(?:The )?NVIDIA driver on your system is too old",
    r"^[\w./-]+: error: |^[Ee]rror: |^ERROR: ",
    r"^Could not (?:override|append|load)|^Error (?:locating|in call to) target",
)

_NAME = r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*"
_SURE = re.compile(
    rf"^(?P<name>{_NAME})(?:\((?P<inner>\w+)\))?(?:: ?(?P<message>.*)|(?P<quoted>\(['\"].*))?$",
)
_ENDINGS = (
    "Error",
    "Exception",
    "KeyboardInterrupt",
    "SystemExit",
    "ExceptionGroup",
    "CompilerFailed",
    "TimeoutExpired",
)
_HOMES = re.compile(r"(?:^|\.)_?(?:errors?|exceptions?|exc)\.")
_ODD = {"Empty", "Full", "Again", "StopIteration", "StopAsyncIteration"}
_DEATHS = {"Killed", "Aborted", "Terminated"}
_MEASURE = re.compile(r"[-+]?\d[\d.,eE+-]*\s?(?:%|s|ms|it/s)?|nan|inf")
_QUIET = {"DEBUG", "INFO", "WARNING", "WARN"}
_LOUD = {"ERROR", "CRITICAL", "FATAL"}
_SIGNALS = {
    "Segmentation fault": "SIGSEGV",
    "Bus error": "SIGBUS",
    "Illegal instruction": "SIGILL",
    "Floating point exception": "SIGFPE",
    "Aborted": "SIGABRT",
    "Killed": "SIGKILL",
    "terminate called": "SIGABRT",
    "pure virtual": "SIGABRT",
    "stack smashing": "SIGABRT",
    "double free": "SIGABRT",
    "corrupted": "SIGABRT",
}
_NUMBERED = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
_CODE = re.compile(r"(?:exitcode\s*: |exit(?:ed with)?(?: exit)? code:? )(-\d+|1[3-5]\d)\b")


def sign_of(line: Line) -> Sign | None:
    """Say what a line is that belongs to no traceback, None when it is nothing to care about."""
    body = line.body.strip()
    for mark, pattern, wants in _HINTS:
        if mark in body and pattern.search(body):
            return Sign(tier=Tier.HINT, message=body, wants=wants)
    if not body or line.level in _QUIET or _BENIGN.search(body) or _BENIGN.search(line.text):
        return None
    name, message = exception_of(body, strict=True)
    if (name or "").endswith("Warning") or re.match(r"\S+: \w*Warning: ", body):
        return None
    return _judged(line, body, name, message)


def exception_of(body: str, *, strict: bool) -> tuple[str | None, str | None]:
    """The class and message of a line such as `KeyError: 'x'`; not `strict` is for the line that ends a traceback."""
    match = _SURE.match(body)
    if match is None:
        return None, None
    name = match["name"]
    last = name.rpartition(".")[2]
    sure = last.endswith((*_ENDINGS, "Warning")) or (_HOMES.search(name) is not None and last[:1].isupper())
    humps = re.search(r"[a-z]", last) is not None and len(re.findall(r"[A-Z]", last)) >= 2
    loose = last in _ODD or (last[:1].isupper() and (humps or "." in name))
    if not (sure or (not strict and loose)):
        return None, None
    if strict and name in ("Error", "Exception"):
        return None, None
    return name, _message(match)


def ending_of(line: Line, body: str) -> tuple[str | None, str | None]:
    """The class and message of the line that ends a traceback whose frames were seen, whatever the class is called.

    `body` is the line's own without the margin of a group.
    """
    name, message = exception_of(body, strict=False)
    match = _SURE.match(body) if name is None else None
    if match is None:
        return name, message
    name, message = match["name"], _message(match)
    if message is None and (name in _DEATHS or (not name[:1].isupper() and "." not in name)):
        return None, None
    if message is not None and _MEASURE.fullmatch(message):
        return None, None
    if not name.rpartition(".")[2][:1].isupper() and not name.endswith((".error", ".timeout")):
        sign = sign_of(line)  # `srun: error: …` and the like of other programs
        if sign is not None and not sign.loud:
            return None, None
    return name, message


def _message(match: re.Match[str]) -> str | None:
    return match["message"] if match["quoted"] is None else match["quoted"][1:].rstrip(")")


def consequence(text: str) -> bool:
    """Whether an exception's line says that something else failed before."""
    return _CONSEQUENCE.search(text) is not None


def tier_of_exception(body: str) -> Tier:
    """The tier of the line that ends a traceback."""
    if _NEVER.search(body):
        return Tier.NEVER
    if _CONSEQUENCE.search(body):
        return Tier.CONSEQUENCE
    return Tier.NOTICE if _NOTICE.search(body) else Tier.CAUSE


def signal_of(text: str) -> str | None:
    """The signal that a line names, by its name, its exit code or what the shell prints."""
    if "potential root causes" in text:  # Ray lists what it may have been
        return None
    if match := re.search(r"\bSIG[A-Z]{3,6}\b", text):
        return match[0]
    if match := _CODE.search(text):
        code = int(match[1])
        return _NUMBERED.get(-code if code < 0 else code - 128)
    if "Killed process" in text or "Kill process" in text:
        return "SIGKILL"
    return next((signal for words, signal in _SIGNALS.items() if words in text), None)


def _judged(line: Line, body: str, name: str | None, message: str | None) -> Sign | None:
    tier: Tier | None = None
    if _CONSEQUENCE.search(body) or _CONSEQUENCE.search(line.text):
        tier = Tier.CONSEQUENCE
    elif _NEVER.search(body):
        tier = Tier.NEVER
    elif _NOTICE.search(body):
        tier = Tier.NOTICE
    elif name is not None or _CAUSE.search(body) or _CAUSE.search(line.text):
        tier = Tier.CAUSE
    elif line.level in _LOUD and re.search(r"[^\W\d_]", body):
        return Sign(tier=Tier.NOTICE, message=body, signal=signal_of(body), loud=True)
    if tier is None:
        return None
    signal = signal_of(body) if name is None or tier is not Tier.CAUSE else None
    return Sign(tier=tier, exception=name, message=message if name else body, signal=signal)
