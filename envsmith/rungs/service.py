"""Start a service, wait until it is healthy, ask it, and end it: the asking side of `embed` and `merge-serve`."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .answering import Answer, Task
from .surroundings import end, free_port, start, tail

#: A service that takes a connection and says nothing for so long does not answer.
SILENCE_S = 5.0
ANSWER_S = 60.0
#: Exit codes of a service that was asked to end: by itself, by the signal, or a shell's word for the signal.
ENDED = (0, -15, 143)


class Service:
    """One service on a port of this machine. It is asked directly: no proxy stands between."""

    def __init__(self, task: Task, answer: Answer, command: Sequence[str], port: int) -> None:
        self.answer = answer
        self.port = port
        self.log = task.folder / "service.log"
        self.health_s = float(task.options.get("health-timeout-s", max(10.0, min(300.0, task.timeout_s * 0.6))))
        self._started = time.monotonic()
        self.process: subprocess.Popen[bytes] = start(command, self.log)

    def wait_healthy(self) -> bool:
        """Wait until GET /health answers 200; else say what happened instead."""
        last = "nobody listens on the port"
        while time.monotonic() - self._started < self.health_s:
            if self.process.poll() is not None:
                self._say_died()
                return False
            last = self._probe()
            if last == "200":
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

    def _probe(self) -> str:
        """The status of /health as text, or what came instead of one."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), SILENCE_S):
                pass
        except OSError:
            return "nobody listens on the port"
        try:
            return str(self.get("/health", SILENCE_S)[0])
        except TimeoutError:
            return f"silent for {SILENCE_S:g} s after the connection was taken"
        except (OSError, http.client.HTTPException) as error:
            return f"silent: {type(error).__name__} instead of an answer in HTTP"

    def _say_died(self) -> None:
        self.answer.say(
            "service-died",
            "failed",
            f"the service ended by itself with exit code {self.process.returncode}",
            expected="a service that runs until it is asked to end",
            actual=tail(self.log),
            hint=f"read {self.log.name} in the rung's folder",
        )

    def get(self, path: str, timeout_s: float = ANSWER_S) -> tuple[int, Any]:
        """Status and content of GET."""
        return self._ask("GET", path, None, timeout_s)

    def post(self, path: str, content: Any) -> Any | None:
        """The content that POST brought with status 200; anything else is said and gives None."""
        try:
            status, found = self._ask("POST", path, content, ANSWER_S)
        except (OSError, http.client.HTTPException) as error:
            if self.process.poll() is not None:
                self._say_died()
            else:
                self._say_refused(path, f"{type(error).__name__}: {error}", "service-no-answer")
            return None
        if status != 200:
            self._say_refused(path, f"{status}: {str(found)[:200]}", "service-refused")
            return None
        return found

    def _say_refused(self, path: str, actual: str, what: str) -> None:
        message = f"POST {path} was not answered with 200"
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
        """End it by SIGTERM and say with which exit code it ended."""
        died = self.process.poll() is not None
        code = end(self.process)
        self.answer.figures["service_exit_code"] = code
        if not died:
            self.answer.check(
                "service-exit",
                code in ENDED,
                "the service ends when it is asked to",
                otherwise="the service does not end properly when it is asked to",
                expected="exit code 0, -15 or 143 after SIGTERM",
                actual=code,
            )


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
