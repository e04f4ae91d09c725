"""What one line alone says: a cause, a death notice, a consequence, a hint, or nothing.

Every wording needs one of the needles of `lines` in its line, else its line is never looked at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from envsmith.logs.prefixes import Line
from envsmith.logs.wordings import BENIGN, CAUSE, CERTAIN, CONSEQUENCE, HINTS, NEVER, NOTICE, Wordings


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
_WARNING = re.compile(r"\S+: \w*Warning: ")
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
_NUMBERED = {
    1: "SIGHUP",
    2: "SIGINT",
    4: "SIGILL",
    6: "SIGABRT",
    7: "SIGBUS",
    8: "SIGFPE",
    9: "SIGKILL",
    11: "SIGSEGV",
    15: "SIGTERM",
}
_DEATH_SIGNAL = re.compile(r"\bReceived (?:Signals\.(?P<name>SIG[A-Z]+)|(?P<number>\d{1,2})) death signal")
_CODE = re.compile(r"(?:exitcode\s*: |exit(?:ed with)?(?: exit)? code:? )(-\d+|1[3-5]\d)\b")


def sign_of(line: Line) -> Sign | None:
    """Say what a line is that belongs to no traceback, None when it is nothing to care about."""
    body = line.body.strip()
    for warning, wants in HINTS:
        if warning.found(body):
            return Sign(tier=Tier.HINT, message=body, wants=wants)
    if "death signal" in body and (signal := _DEATH_SIGNAL.search(body)):  # a launcher's warning of its own end
        named = signal["name"] or _NUMBERED.get(int(signal["number"]))
        return Sign(tier=Tier.CONSEQUENCE, message=body, signal=named)
    if "Killing subprocess" in body:  # DeepSpeed's launcher says at level INFO that it ends the others
        return Sign(tier=Tier.CONSEQUENCE, message=body)
    if not body or line.level in _QUIET or _found(BENIGN, line, body):
        return None
    name, message = exception_of(body, strict=True)
    if (name or "").endswith("Warning") or ("Warning: " in body and _WARNING.match(body)):
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
    return CONSEQUENCE.found(text)


def tier_of_exception(body: str) -> Tier:
    """The tier of the line that ends a traceback."""
    if NEVER.found(body):
        return Tier.NEVER
    if CERTAIN.found(body):
        return Tier.CAUSE
    if CONSEQUENCE.found(body):
        return Tier.CONSEQUENCE
    return Tier.NOTICE if NOTICE.found(body) else Tier.CAUSE


def signal_of(text: str) -> str | None:
    """The signal that a line names, by its name, its exit code or what the shell prints."""
    if "potential root causes" in text:  # Ray lists what it may have been
        return None
    if "SIG" in text and (match := re.search(r"\bSIG[A-Z]{3,6}\b", text)):
        return match[0]
    if "exit" in text and (match := _CODE.search(text)):
        code = int(match[1])
        return _NUMBERED.get(-code if code < 0 else code - 128)
    if "Killed process" in text or "Kill process" in text:
        return "SIGKILL"
    return next((signal for words, signal in _SIGNALS.items() if words in text), None)


def _found(words: Wordings, line: Line, body: str) -> bool:
    return words.found(body) or (len(line.text) != len(body) and words.found(line.text))


def _judged(line: Line, body: str, name: str | None, message: str | None) -> Sign | None:
    tier: Tier | None = None
    if CERTAIN.found(body):
        tier = Tier.CAUSE
    elif _found(CONSEQUENCE, line, body):
        tier = Tier.CONSEQUENCE
    elif NEVER.found(body):
        tier = Tier.NEVER
    elif NOTICE.found(body):
        tier = Tier.NOTICE
    elif name is not None or _found(CAUSE, line, body):
        tier = Tier.CAUSE
    elif line.level in _LOUD and re.search(r"[^\W\d_]", body):
        return Sign(tier=Tier.NOTICE, message=body, signal=signal_of(body), loud=True)
    if tier is None:
        return None
    signal = signal_of(body) if name is None or tier is not Tier.CAUSE else None
    return Sign(tier=tier, exception=name, message=message if name else body, signal=signal)
