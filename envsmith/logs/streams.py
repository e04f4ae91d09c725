"""What one writer says over several lines: tracebacks with their frames and chains, native stacks after a crash."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from envsmith.logs.prefixes import Line
from envsmith.logs.signs import Sign, Tier, ending_of, exception_of, sign_of, signal_of, tier_of_exception

_HEADER = re.compile(r"Traceback \(most recent call last\)")
_GROUP = re.compile(r"^\s*(?:[|+]\s?)+(?=\s|\S)")
_DIVIDER = re.compile(r"^\s*\+[-+]+ ?(?:\d+ -+|\.\.\. -+|-*)$")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_BOXED = re.compile(r"^\s*[│|]\s(?P<file>\S+\.py):(?P<line>\d+) in (?P<function>\S+)")
_FAULT = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)$')
_CHAINED = re.compile(r"^\s*(?:During handling of the above exception|The above exception was the direct cause)")
_IGNORED = re.compile(r"Exception ignored (?:in|on|while)\b")
_LIBRARY = re.compile(r"(?<![\w.+-])(?P<name>[\w+-][\w+.-]*\.so(?:\.\d+)*)(?![\w])")
_COMMON = re.compile(r"^(?:libc|libpthread|ld-linux[\w-]*|libpython[\w.]*|libdl|libm)(?:-[\d.]+)?\.so")
_LIBRARIES = ("site-packages/", "dist-packages/", "/lib/python3", "<frozen")
_NATIVE = re.compile(r"^(?:\*\*\* SIG|Fatal Python error|Segmentation fault|terminate called|\*\*\* stack smashing)")

NATIVE_LINES = 300
"""How many lines of one writer after a crash may hold its native stack."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """A place in Python code."""

    file: str
    line: int
    function: str | None = None


@dataclass(kw_only=True, slots=True)
class Event:
    """Something that went wrong, as it is being read."""

    line: Line
    sign: Sign
    tier: Tier
    frame: Frame | None = None
    library: str | None = None
    text: str | None = None
    """The words to show, where they are not the line's own."""
    root: Event | None = None
    """The first exception of the chain that this one belongs to."""


@dataclass(kw_only=True, slots=True)
class Stream:
    """What one writer has begun and not ended."""

    header: Line | None = None
    """Where the traceback that is being read began."""
    indent: int = 0
    inner: Frame | None = None
    own: Frame | None = None
    grouped: bool = False
    ignored: bool = False
    chained: bool = False
    last: Event | None = None
    ended_s: float | None = None
    """The time of the last exception: lines of that time go on with its message."""
    native: int = 0
    crash: Event | None = None
    quiet: bool = field(default=False)
    """The traceback was logged below the level ERROR: somebody caught it."""

    @property
    def header_level(self) -> str | None:
        """The level of the traceback's first line: a line of another level is not its end."""
        return self.header.level if self.header else None

    @property
    def open(self) -> bool:
        """Whether the next lines of this writer matter whatever they hold."""
        return self.header is not None or self.native > 0

    def close(self) -> None:
        """Forget what was begun."""
        self.header, self.inner, self.own, self.native, self.crash, self.grouped = None, None, None, 0, None, False

    def feed(self, line: Line) -> Event | None:
        """Take the writer's next line; give what it completes."""
        body = self._unmargined(line.body)
        if body is None:
            return None
        if _HEADER.search(body):
            self._begin(line, body)
            return None
        if _CHAINED.match(body):
            self.chained, self.header = self.last is not None, None
            return None
        if self.native and self._native(body):
            return None
        if frame := _FRAME.match(body) or (_BOXED.match(body) if self.header else None):
            if self.header is None:
                indent = len(body) - len(body.lstrip())
                self.header, self.indent, self.quiet = line, max(0, indent - 2), line.level in ("INFO", "WARNING")
            self._remember(frame)
            return None
        return self._in_traceback(line, body) if self.header is not None else self._alone(line)

    def _unmargined(self, body: str) -> str | None:
        """Take off the margin that groups of exceptions draw; None for a line of drawing only."""
        if "Exception Group Traceback" in body:
            self.grouped = True
            return body.replace("+ ", "  ", 1)
        if not self.grouped:
            return body
        if _DIVIDER.match(body):
            return None
        match = _GROUP.match(body)
        if match is None:
            self.grouped = False
            return body
        return body[match.end() :]

    def _begin(self, line: Line, body: str) -> None:
        self.header, self.inner, self.own = line, None, None
        self.indent = 0 if not body[:1].isspace() else len(body) - len(body.lstrip())
        self.quiet = line.level in ("INFO", "WARNING", "WARN", "DEBUG")

    def _remember(self, match: re.Match[str]) -> None:
        frame = Frame(file=match["file"], line=int(match["line"]), function=match.groupdict()["function"])
        self.inner = frame
        if not in_library(frame):
            self.own = frame

    def _in_traceback(self, line: Line, body: str) -> Event | None:
        indent = len(body) - len(body.lstrip())
        if not body.strip() or indent > self.indent or body.lstrip()[:1] in "│╭╰┌└─":
            return None
        text = body.strip()
        if self.inner is not None and indent == self.indent and line.level == self.header_level:
            name, message = ending_of(line, text)
        else:
            name, message = exception_of(text, strict=False)
        if name is None:
            return self._alone(line)
        tier = tier_of_exception(text)
        if self.quiet and tier is Tier.CAUSE:
            tier = Tier.NEVER
        event = Event(line=line, sign=Sign(tier=tier, exception=name, message=message), tier=tier, text=text)
        event.frame = self.own or self.inner
        self.header, self.inner, self.own = None, None, None
        return self._linked(event)

    def _alone(self, line: Line) -> Event | None:
        sign = sign_of(line)
        if _IGNORED.search(line.body):
            self.ignored = True
            return Event(line=line, sign=sign, tier=sign.tier) if sign else None
        if sign is None or (sign.loud and self.last is not None and line.time_s == self.ended_s):
            return None
        event = Event(line=line, sign=sign, tier=sign.tier)
        if _NATIVE.match(line.body.strip()):
            self.native = NATIVE_LINES
            self.crash = self.crash or event
        if sign.exception is not None:
            return self._linked(event)
        return event

    def _linked(self, event: Event) -> Event:
        """Put an exception into its chain, and mark what Python itself ignored."""
        if self.ignored:
            event.tier, self.ignored = Tier.NEVER, False
        elif self.chained and self.last is not None:
            event.root = self.last.root or self.last
            if event.tier is Tier.CAUSE and event.root.tier <= Tier.CAUSE:
                event.tier = Tier.CONSEQUENCE
        self.chained, self.last, self.ended_s = False, event, event.line.time_s
        return event

    def _native(self, body: str) -> bool:
        """Read a line of a native stack, or of faulthandler's; False when it is a line of its own."""
        self.native -= 1
        crash = self.crash
        if crash is None:
            return False
        if match := _FAULT.match(body):
            frame = Frame(file=match["file"], line=int(match["line"]), function=match["function"])
            if crash.frame is None or (in_library(crash.frame) and not in_library(frame)):
                crash.frame = frame
            return True
        if crash.library is None and ("@ 0x" in body or "[0x" in body or "(+0x" in body or "Extension modules" in body):
            names = [match["name"] for match in _LIBRARY.finditer(body)]
            crash.library = next((name for name in names if not _COMMON.match(name)), None)
        if crash.sign.signal is None and (signal := signal_of(body)):
            crash.sign = Sign(tier=crash.sign.tier, message=crash.sign.message, signal=signal)
        return "@ 0x" in body or body[:1].isspace() or "most recent call first" in body


def in_library(frame: Frame) -> bool:
    """Whether a frame is in an installed package or the standard library, not in code of the user's."""
    return any(part in frame.file for part in _LIBRARIES)
