"""Start a service, wait until it is healthy, ask it, and end it: the asking side of `embed` and `merge-serve`."""

from __future__ import annotations

import http.client
import json
import secrets
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .answering import Answer, Task
from .listening import MARK, Owner, family, owner_of, program
from .surroundings import end, free_port, start, tail

#: A service that takes a connection and says nothing for so long does not answer.
SILENCE_S = 5.0
ANSWER_S = 60.0
#: Exit codes of a service that was asked to end: by itself, by the signal, or a shell's word for the signal.
ENDED = (0, -15, 143)
#: How long a process may take to end after its connection has broken.
DEATH_S = 2.0


class Service:
    """One service on a port of this machine. It is asked directly: no proxy stands between.

    Whoever listens must be the started process or one that it started, from the first request until it is stopped.
    """

    def __init__(self, task: Task, answer: Answer, command: Sequence[str], port: int) -> None:
        self.answer = answer
        self.port = port
        self.log = task.folder / "service.log"
        self.health_s = float(task.options.get("health-timeout-s", max(10.0, min(300.0, task.timeout_s * 0.6))))
        self._started = time.monotonic()
        self._healthy = self._died_said = False
        self._mark = secrets.token_hex(8)
        self.process: subprocess.Popen[bytes] = start(command, self.log, **{MARK: self._mark})

    def wait_healthy(self) -> bool:
        """Wait until GET /health answers 200; else say what happened instead."""
        last = "nobody listens on the port"
        while time.monotonic() - self._started < self.health_s:
            if self.process.poll() is not None:
                self._say_died()
                return False
            found = self._probe()
            if isinstance(found, Owner):
                self._say_stranger(found)
                return False
            last = found
            if last == "200":
                self._healthy = True
                self.answer.figures["healthy_after_s"] = round(time.monotonic() - self._started, 2)
                self.answer.say("service-health", "ok", "the service answers /health with 200")
                return True
            time.sleep(0.1)
        silent = last.startswith("silent")
        self.answer.say(
            "service-no-answer" if silent else "service-no-health",
            "failed",
            f"the service listens on port {self.port}, but does not answer" if silent
            else f"the service was not healthy within {self.health_s:g} s",
            subject=f"port {self.port}",
            expected=f"200 from /health within {self.health_s:g} s",
            actual=last,
            hint=f"the end of its log: {tail(self.log)}",
        )  # fmt: skip
        return False

    def _probe(self) -> str | Owner:
        """The status of /health as text, or what came instead of one, or the stranger who would be asked."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), SILENCE_S):
                pass
        except OSError:
            return "nobody listens on the port"
        owner = self._owner()
        if owner.verdict == "stranger":
            return owner
        try:
            return str(self.get("/health", SILENCE_S)[0])
        except TimeoutError:
            return f"silent for {SILENCE_S:g} s after the connection was taken"
        except (OSError, http.client.HTTPException) as error:
            return f"silent: {type(error).__name__} instead of an answer in HTTP"

    def _owner(self) -> Owner:
        """Who listens; a stranger is looked at twice, since a process may end between the readings of /proc."""
        owner = self._look()
        if owner.verdict == "stranger":
            time.sleep(0.2)
            owner = self._look()
        return owner

    def _look(self) -> Owner:
        return owner_of(self.port, self.process.pid if self.process.poll() is None else None, self._mark)

    def _say_stranger(self, owner: Owner) -> None:
        self.answer.say(
            "service-stranger",
            "failed",
            f"{owner.who} listens on port {self.port}, and the started service did not start it",
            subject=f"port {self.port}",
            expected=f"{program(self.process.pid)} or a process that it started",
            actual=owner.who,
            hint=f"end that process or choose another `port`; the end of the service's log: {tail(self.log)}",
        )

    def _say_died(self) -> None:
        """Say once that the started process ended, and what it has left running."""
        if self._died_said:
            return
        self._died_said = True
        message = f"the service ended by itself with exit code {self.process.returncode}"
        left = ", ".join(program(pid) for pid in sorted(family(None, self._mark)))
        self.answer.say(
            "service-died",
            "failed",
            f"{message}, while {left} goes on: nobody waits for the exit code of that" if left else message,
            expected="a service that runs until it is asked to end",
            actual=f"exit code {self.process.returncode}; {tail(self.log)}",
            hint="start it in the foreground (`exec` in a shell)" if left
            else f"read {self.log.name} in the rung's folder",
        )  # fmt: skip

    def get(self, path: str, timeout_s: float = ANSWER_S) -> tuple[int, Any]:
        """Status and content of GET."""
        return self._ask("GET", path, None, timeout_s)

    def post(self, path: str, content: Any) -> Any | None:
        """The content that POST brought with status 200; anything else is said and gives None."""
        try:
            status, found = self._ask("POST", path, content, ANSWER_S)
        except (OSError, http.client.HTTPException) as error:
            self.say_broken(f"POST {path}", error)
            return None
        if status != 200:
            self._say_refused(f"POST {path}", f"{status}: {str(found)[:200]}", "service-refused")
            return None
        return found

    def say_broken(self, asked: str, error: Exception) -> None:
        """Say why a request brought no answer: the service has died, or it is silent."""
        try:
            # Its connections are closed before it can be waited for.
            self.process.wait(DEATH_S)
        except subprocess.TimeoutExpired:
            self._say_refused(asked, f"{type(error).__name__}: {error}", "service-no-answer")
        else:
            self._say_died()

    def _say_refused(self, asked: str, actual: str, what: str) -> None:
        message = f"{asked} was not answered with 200"
        path = asked.rpartition(" ")[2]
        self.answer.say(what, "failed", message, subject=path, expected=f"200 within {ANSWER_S:g} s", actual=actual)

    def _ask(self, method: str, path: str, content: Any, timeout_s: float) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            body = None if content is None else json.dumps(content)
            connection.request(method, path, body, {"Content-Type": "application/json", "Connection": "close"})
            response = connection.getresponse()
            data = response.read()
        finally:
            connection.close()
        try:
            return response.status, json.loads(data)
        except ValueError:
            return response.status, data[:200].decode(errors="replace")

    def stop(self) -> None:
        """Look once more who listens, end the service by SIGTERM and say with which exit code it ended."""
        if self._healthy and self.process.poll() is None:
            self._judge_owner()
        died = self.process.poll() is not None
        code = end(self.process)
        self.answer.figures["service_exit_code"] = code
        if died:
            self._say_died()
            return
        self.answer.check(
            "service-exit",
            code in ENDED,
            "the service ends when it is asked to",
            otherwise="the service does not end properly when it is asked to",
            expected="exit code 0, -15 or 143 after SIGTERM",
            actual=code,
        )

    def _judge_owner(self) -> None:
        """State who listens at the end; at the beginning it was no stranger."""
        owner = self._owner()
        subject = f"port {self.port}"
        if owner.verdict == "stranger":
            self._say_stranger(owner)
        elif owner.verdict == "ours":
            self.answer.say("service-owner", "ok", f"{owner.who}, which was started here, listens", subject=subject)
        elif owner.verdict == "unknown":
            self.answer.say("service-owner-unknown", "note", f"it cannot be told who listens: {owner.who}",
                            subject=subject, hint="run the ladder as the user of the service")  # fmt: skip
        else:
            self.answer.say("service-no-answer", "failed", f"{owner.who} any more, though the service still runs",
                            subject=subject, expected="a port that is open until the service is asked to end",
                            actual=owner.who, hint=f"the end of its log: {tail(self.log)}")  # fmt: skip


def chosen_port(task: Task, answer: Answer) -> int | None:
    """The port of the recipe, unless somebody else listens there, else any free one."""
    wanted = task.options.get("port")
    if wanted is None:
        return free_port()
    try:
        with socket.create_connection(("127.0.0.1", int(wanted)), 1.0):
            pass
    except OSError:
        return int(wanted)
    answer.say("port-taken", "failed", f"somebody else listens on port {wanted}", subject=f"port {wanted}",
               hint="end that process or choose another `port`")  # fmt: skip
    return None


def filled(command: str | Sequence[str], words: dict[str, str]) -> list[str]:
    """A recipe's command with its `{port}`, `{python}` and `{model}` filled in; no shell reads it."""
    import shlex

    parts = shlex.split(command) if isinstance(command, str) else [str(part) for part in command]
    for name, word in words.items():
        parts = [part.replace(f"{{{name}}}", word) for part in parts]
    return parts


def own_command(python: str, model: Path, port: int, device: str, *more: str) -> list[str]:
    """The command that starts our own service."""
    module = f"{__package__}.serving"
    start_it = [python, "-B", "-X", "faulthandler", "-m", module]
    return [*start_it, "--model", str(model), "--port", str(port), "--device", device, *more]
