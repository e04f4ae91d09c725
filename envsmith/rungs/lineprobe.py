"""Runs in every process that a rung starts: writes down which patched lines it executes and which variables it has.

`tracing.py` copies this file as `sitecustomize.py` into a folder of the rung, which stands first on PYTHONPATH; the
environment itself is not touched. The next `sitecustomize` on the path runs first, as if this one were not there.
Nothing but the standard library, no imports at the top that a training process would not make anyway, and no
exception may leave this file: a training run must not fail because it is looked at.
Interpreters started with -E or -I do not read PYTHONPATH, and are not seen.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import CodeType, FrameType
from typing import Any


class Probe:
    """What one process has seen so far."""

    def __init__(self, folder: str) -> None:
        with open(os.path.join(folder, "plan.json"), encoding="utf-8") as stream:  # noqa: PTH118, PTH123
            plan: dict[str, Any] = json.load(stream)
        self.out: str = plan["out"]
        self.names: list[str] = plan["variables"]
        self.lines = {path: frozenset(lines) for path, lines in plan["lines"].items()}
        self.endings = tuple({os.path.basename(path) for path in self.lines})  # noqa: PTH119
        self.known: dict[str, frozenset[int]] = {}
        self.left = {(path, line) for path, lines in self.lines.items() for line in lines}

    def wanted(self, name: str) -> frozenset[int]:
        """The lines to look for in a file, by the name that its code has; nothing for other files."""
        found = self.known.get(name)
        if found is None:
            found = self.lines.get(os.path.realpath(name), frozenset()) if name.endswith(self.endings) else frozenset()
            self.known[name] = found
        return found

    def hit(self, name: str, line: int) -> None:
        """Write a line down once for this process."""
        key = (os.path.realpath(name), line)
        if key in self.left:
            self.left.discard(key)
            self.write({"event": "hit", "file": key[0], "line": line})

    def write(self, event: dict[str, Any]) -> None:
        """Append one line; short appends of several processes do not mix (write(2), O_APPEND)."""
        event |= {"pid": os.getpid(), "ppid": os.getppid(), "process": label()}
        try:
            number = os.open(self.out, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(number, (json.dumps(event) + "\n").encode())
            finally:
                os.close(number)
        except OSError as error:
            print(f"lineprobe: {error}", file=sys.stderr)  # noqa: T201

    def look(self, event: str) -> None:
        """Write down the named variables as they are now."""
        self.write({"event": event, "variables": {name: os.environ[name] for name in self.names if name in os.environ}})


def label() -> str:
    """A name for this process: its module, its script, or `-c`, with its rank where it has one."""
    words = list(getattr(sys, "orig_argv", sys.argv))[1:]
    name = os.path.basename(sys.executable or "python")  # noqa: PTH119
    for number, word in enumerate(words):
        if word == "-m" and number + 1 < len(words):
            name = words[number + 1]
            break
        if word == "-c" or not word.startswith("-"):
            name = word if word == "-c" else os.path.basename(word)  # noqa: PTH119
            break
    rank = os.environ.get("RANK")
    return name if rank is None else f"{name} rank {rank}"


def start(folder: str) -> None:
    """Begin to look, unless every wanted line is in no file at all."""
    probe = Probe(folder)
    probe.look("start")
    atexit.register(probe.look, "exit")
    if not probe.left:
        return
    if hasattr(sys, "monitoring"):
        _monitor(probe)
    else:
        _trace(probe)


def _trace(probe: Probe) -> None:
    """Python 3.10 and 3.11: a trace function that leaves frames of other files at once."""
    import threading

    def local(frame: FrameType, event: str, arg: object) -> Any:
        if event == "line" and frame.f_lineno in probe.wanted(frame.f_code.co_filename):
            probe.hit(frame.f_code.co_filename, frame.f_lineno)
        return local

    def enter(frame: FrameType, event: str, arg: object) -> Any:
        if not probe.left:
            sys.settrace(None)
            return None
        return local if probe.wanted(frame.f_code.co_filename) else None

    def again() -> None:
        """A forked child answers for itself."""
        probe.left = {(path, line) for path, lines in probe.lines.items() for line in lines}
        sys.settrace(enter)

    os.register_at_fork(after_in_child=again)
    threading.settrace(enter)
    sys.settrace(enter)


def _monitor(probe: Probe) -> None:
    """Python 3.12 and later: each code object is asked once, and only those of patched files report lines."""
    monitoring: Any = vars(sys)["monitoring"]
    tool = next((n for n in (4, 3) if monitoring.get_tool(n) is None), None)
    if tool is None:
        probe.write({"event": "no-tool"})
        return
    events = monitoring.events

    def enter(body: CodeType, offset: int) -> Any:
        if probe.wanted(body.co_filename):
            monitoring.set_local_events(tool, body, events.LINE)
        return monitoring.DISABLE

    def line(body: CodeType, number: int) -> Any:
        if number in probe.wanted(body.co_filename):
            probe.hit(body.co_filename, number)
        return monitoring.DISABLE

    def again() -> None:
        probe.left = {(path, one) for path, lines in probe.lines.items() for one in lines}
        monitoring.restart_events()

    monitoring.use_tool_id(tool, "envsmith-lineprobe")
    monitoring.register_callback(tool, events.PY_START, enter)
    monitoring.register_callback(tool, events.LINE, line)
    monitoring.set_events(tool, events.PY_START)
    os.register_at_fork(after_in_child=again)


def run_next(folder: str) -> None:
    """Run the next sitecustomize on the path, which this one hides; it then is `sitecustomize`."""
    rest = [entry for entry in sys.path if os.path.realpath(entry or ".") != os.path.realpath(folder)]
    spec = PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    _folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
    try:
        run_next(_folder)
    finally:
        try:
            start(_folder)
        except Exception as _error:
            print(f"lineprobe: {_error!r}", file=sys.stderr)  # noqa: T201
