"""What surrounds a process: its variables, its mapped libraries, where its modules come from, its children.

Ranks, actors and services are compared by it with the process that started them; it proves nothing by itself.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .answering import Answer

#: Words in a variable's name by which its value is taken for a secret, as envsmith's own redaction does.
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|API_?KEY|ACCESS_?KEY|PRIVATE|COOKIE|SESSION", re.IGNORECASE)
#: Lines of a log that are shown, from its end.
TAIL_LINES = 12


def shown(name: str, value: str | None) -> str:
    """A variable's value as it may be shown."""
    if value is None:
        return "unset"
    return "(not shown)" if _SECRET.search(name) or re.search(r"://[^/\s]*@", value) else value


def check_launch(answer: Answer, wanted: Mapping[str, str], found: Mapping[str, str | None], where: str) -> bool:
    """Say for every variable of the recipe that differs in the process `where`, else once that all are the same."""
    wrong = [name for name in sorted(wanted) if found.get(name) != wanted[name]]
    for name in wrong:
        answer.say(
            "env-not-propagated",
            "failed",
            f"{where} does not have the variable `{name}` as the recipe sets it",
            subject=name,
            expected=shown(name, wanted[name]),
            actual=shown(name, found.get(name)),
            hint="something between envsmith and this process sets or drops it: look into launchers and `.pth` files",
        )
    if not wrong and wanted:
        answer.say("env-propagated", "ok", f"{where} has all {len(wanted)} variables of the recipe")
    return not wrong


def launch_here(wanted: Iterable[str]) -> dict[str, str | None]:
    """The named variables as this process has them."""
    return {name: os.environ.get(name) for name in wanted}


def mapped_libraries(*stems: str) -> list[str]:
    """Paths of the libraries that this process has mapped and whose file names begin with one of `stems`."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = {line.split(maxsplit=5)[5].strip() for line in maps.read_text().splitlines() if line.count("/")}
    return sorted(path for path in paths if Path(path).name.startswith(stems))


def portrait(wanted: Iterable[str]) -> dict[str, Any]:
    """Interpreter, path and launch variables of this process, as plain values."""
    return {
        "executable": sys.executable,
        "prefix": sys.prefix,
        "version": sys.version.split()[0],
        "path": list(sys.path),
        "launch": launch_here(wanted),
        "pid": os.getpid(),
    }


def origins(names: Iterable[str]) -> dict[str, str]:
    """Version and file of each top-level module that can be imported here; nothing is imported for it."""
    found = {}
    for name in names:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            continue
        if spec is None:
            continue
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "unknown version"
        found[name] = f"{version} from {spec.origin}"
    return found


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def start_module(module: str, arguments: Sequence[str], log: Path, **more: str) -> subprocess.Popen[bytes]:
    """Start a payload in another process of this env, with this environment and `more`; it writes into `log`."""
    command = [sys.executable, "-B", "-X", "faulthandler", "-m", f"{__package__}.{module}", *arguments]
    return start(command, log, **more)


def start(command: Sequence[str], log: Path, **more: str) -> subprocess.Popen[bytes]:
    """Start a program as this process would be started: its folder, its environment and `more`."""
    with log.open("wb") as stream:
        return subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, env={**os.environ, **more}
        )


def end(process: subprocess.Popen[bytes], timeout_s: float = 15.0) -> int:
    """Ask a process to end (SIGTERM), kill it when it does not, and return its exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(timeout_s)


def wait_all(processes: Sequence[subprocess.Popen[bytes]], timeout_s: float) -> list[int]:
    """Exit codes of all; as soon as one failed or time is up, the others are killed, since they would wait for it."""
    deadline = time.monotonic() + timeout_s
    while any(process.poll() is None for process in processes):
        if time.monotonic() > deadline or any(process.poll() for process in processes):
            for process in processes:
                end(process, 5.0)
            break
        time.sleep(0.05)
    return [process.wait() for process in processes]


def tail(log: Path) -> str:
    """The last lines of a log."""
    if not log.exists():
        return "(no log)"
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:])


def is_gone(pid: int, timeout_s: float = 10.0) -> bool:
    """Whether a process ends within the time; a zombie is gone."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
