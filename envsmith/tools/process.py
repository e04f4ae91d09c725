"""The one door to subprocess: argv tuples, a whole environment, always a time limit, never a shell."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envsmith.errors import Problem, StepError

#: Variables that a child of ours may always see: where things are, who we are, how to trust TLS, how to go out.
#: Index, wheel-folder, constraint and Python settings are left out on purpose (facts/symptoms.md D29).
KEPT_VARIABLES = (
    "HOME", "PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "USER", "LOGNAME", "TERM",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
    "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
)  # fmt: skip


#: How programs say that a disk or a quota is used up.
NO_ROOM = ("No space left on device", "Disk quota exceeded")

#: How long the pipes of a killed program are waited for.
_PIPES_S = 5.0
_listeners: list[Callable[[Completed], None]] = []


@dataclass(frozen=True, kw_only=True, slots=True)
class Completed:
    """A finished child process."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    seconds: float

    def tail(self, lines: int = 20) -> str:
        """The last lines of what it said, stderr first choice."""
        said = without_frames(self.stderr.strip() or self.stdout.strip()).splitlines()
        return "\n".join(said[-lines:])


def without_frames(text: str) -> str:
    """Cut the frames of every Python traceback out of a child's words; the line that names the exception stays."""
    return re.sub(r"(?m)^([ \t│]*)Traceback \(most recent call last\):\n(?:\1[ \t]+.*\n)*", "", text)


def without_secrets(text: str) -> str:
    """Cut user names, passwords and query strings out of every URL in a text."""
    return re.sub(r"(?<=://)([^/@\s]*@)?([^\s?#'\"]*)(\?[^\s'\"]*)?", r"\2", text)


@contextlib.contextmanager
def listening(hear: Callable[[Completed], None]) -> Iterator[None]:
    """Let `hear` know of every program that ends meanwhile, in whichever thread: a log is kept that way."""
    _listeners.append(hear)
    try:
        yield
    finally:
        _listeners.remove(hear)


def scrubbed(environ: Mapping[str, str], **extra: str) -> dict[str, str]:
    """Return the part of `environ` that may not change a result, plus `extra`."""
    kept = {name: environ[name] for name in KEPT_VARIABLES if name in environ}
    return {**kept, **extra}


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str],
    timeout_s: float,
    cwd: Path | None = None,
    stdin: bytes | None = None,
) -> Completed:
    """Run a program to its end and return what it said.

    A non-zero exit code is a value, not an exception. On time-out the whole process group is killed.

    Raises:
        StepError: `program-missing` when it cannot be started, `program-timeout` when it ran past `timeout_s`.
    """
    args = tuple(str(part) for part in argv)
    started = time.monotonic()
    try:
        child = subprocess.Popen(
            args,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise StepError(
            Problem(code="program-missing", message=f"`{args[0]}` cannot be started: {error.strerror}", where=args[0])
        ) from error
    try:
        out, err = child.communicate(stdin, timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        _kill_group(child)
        err = _last_words(child)
        said = err.decode(errors="replace").strip().splitlines()[-1:]
        raise StepError(
            Problem(
                code="program-timeout",
                message=f"`{Path(args[0]).name}` did not end within {timeout_s:.0f} s"
                + (f"; it last said `{said[0]}`" if said else ""),
                where=" ".join(args[:4]),
            )
        ) from error
    except BaseException:
        _kill_group(child)
        child.wait()
        raise
    completed = Completed(
        argv=args,
        returncode=child.returncode,
        stdout=out.decode(errors="replace"),
        stderr=err.decode(errors="replace"),
        seconds=time.monotonic() - started,
    )
    for hear in tuple(_listeners):
        hear(completed)
    return completed


#: Option of prctl(2): a child gets this signal when its parent dies, however that was killed (read 2026-11-30).
_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    """Run between fork and exec: nothing but one system call."""
    if _libc is not None:
        _libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Begun:
    """A program on its way in a session of its own, with what it says in a file."""

    def __init__(self, argv: Sequence[str | Path], *, env: Mapping[str, str], cwd: Path, log: Path) -> None:
        """Start it.

        Raises:
            StepError: `program-missing` when it cannot be started.
        """
        args = tuple(str(part) for part in argv)
        with log.open("wb") as said:
            try:
                self._child = subprocess.Popen(
                    args,
                    env=dict(env),
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                )
            except OSError as error:
                problem = Problem(
                    code="program-missing", message=f"`{args[0]}` cannot be started: {error.strerror}", where=args[0]
                )
                raise StepError(problem) from error

    @property
    def pid(self) -> int:
        """Its process, which leads its group and session."""
        return self._child.pid

    def ended(self) -> int | None:
        """Exit code, or minus the signal; None while it runs."""
        return self._child.poll()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(number)

    def kill(self) -> None:
        """Kill its whole group and take note of its end."""
        _kill_group(self._child)
        self._child.wait()


def replace_process(argv: Sequence[str | Path], *, env: Mapping[str, str]) -> None:
    """Become another program: signals and the exit code are then its own. Returns only by raising.

    Python ignores SIGPIPE and SIGXFSZ at its start, and a program inherits what is ignored: both are put back.

    Raises:
        StepError: `program-missing` when it cannot be started.
    """
    args = [str(part) for part in argv]
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(args[0], args, dict(env))
    except OSError as error:
        raise StepError(
            Problem(code="program-missing", message=f"`{args[0]}` cannot be started: {error.strerror}", where=args[0])
        ) from error


def _last_words(child: subprocess.Popen[bytes]) -> bytes:
    """What a killed program said on stderr; a daemon that it left behind may hold the pipes for ever."""
    try:
        return child.communicate(timeout=_PIPES_S)[1]
    except subprocess.TimeoutExpired as error:
        for pipe in filter(None, (child.stdin, child.stdout, child.stderr)):
            pipe.close()
        child.wait()
        return error.stderr or b""


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
