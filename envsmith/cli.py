"""The command line: parse words, run one verb, render its result once, exit with its code."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from envsmith import __version__, cli_bundles, cli_checkpoints, cli_diagnose, cli_envs, cli_patches, cli_smoke
from envsmith.cli_group import group, use_color
from envsmith.errors import EnvsmithError, InputError, Problem

if TYPE_CHECKING:
    from envsmith.commands.result import Result

#: Importing them has put their verbs into the group.
VERBS = (cli_envs, cli_bundles, cli_patches, cli_checkpoints, cli_smoke, cli_diagnose)


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit; nothing but a result reaches stdout, and no traceback a user."""
    words = sys.argv[1:] if argv is None else argv
    shared: dict[str, Any] = {"as_json": "--json" in _before_dashes(words)}
    for name in ("SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), _interrupt)
    code = _print_safely(_run(words, shared), shared)
    if code == 130:
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> None:
    """End at once: a thread of a library that waits for a child would keep an interrupted process alive for hours."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _interrupt(number: int, frame: object) -> None:
    """End as on ^C: what is under way is given up in order, and children are ended with us."""
    raise KeyboardInterrupt


def _print_safely(result: Result | int, shared: dict[str, Any]) -> int:
    """Render a result; a reader that has gone is no error of ours, a full disk behind stdout is said."""
    if isinstance(result, int):
        return result
    try:
        return _render(result, shared)
    except BrokenPipeError:
        _drop_stdout()
        return result.exit_code
    except OSError as error:
        _drop_stdout()
        problem = Problem(code="output-failed", message=f"the result could not be written: {error.strerror}")
        click.echo(problem.text(), err=True)
        return 4


def _drop_stdout() -> None:
    """Point stdout at nothing: Python would complain again when it closes the stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _before_dashes(words: list[str]) -> list[str]:
    return words[: words.index("--")] if "--" in words else words


def _run(words: list[str], shared: dict[str, Any]) -> Result | int:
    """Run one verb; an exit code alone means that there is nothing to render, as after `--help`."""
    from envsmith.commands.result import Result

    try:
        _require_folder()
        done = group.main(args=words or ["--help"], prog_name="envsmith", standalone_mode=False, obj=shared)
        result = shared.get("result")
        return result if isinstance(result, Result) else done if isinstance(done, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        hint = "put `--` before the command: `envsmith run ENV -- COMMAND`" if _lacks_dashes(error, words) else None
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "envsmith"
        problem = Problem(
            code="usage",
            message=error.format_message().rstrip("."),
            hint=hint or f"`{where} --help` shows how it is used",
        )
        return Result(command=_command(shared, words), exit_code=2, errors=(problem,))
    except EnvsmithError as error:
        data = {"log": error.log} if error.log else {}
        return Result(command=_command(shared, words), data=data, exit_code=error.exit_code, errors=error.problems)
    except (KeyboardInterrupt, click.Abort):
        problem = Problem(code="interrupted", message="interrupted", hint="run it again: what is done is kept")
        return Result(command=_command(shared, words), exit_code=130, errors=(problem,))
    except Exception as error:
        return _bug(error, _command(shared, words))


def _require_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError as error:
        problem = Problem(
            code="folder-gone", message="the current folder does not exist any more", hint="change to another folder"
        )
        raise InputError(problem) from error


def _lacks_dashes(error: click.ClickException, words: list[str]) -> bool:
    return isinstance(error, click.NoSuchOption) and "run" in words and "--" not in words


def _command(shared: dict[str, Any], words: list[str]) -> str:
    return str(shared.get("command") or next((word for word in words if word in group.commands), ""))


def _render(result: Result, shared: dict[str, Any]) -> int:
    if shared.get("as_json"):
        _print(json.dumps(result.envelope(), indent=2, sort_keys=True))
        return result.exit_code
    if result.text:
        _print(result.text.rstrip("\n"))
    for problem in result.errors:
        click.echo(_coloured(problem, shared), err=True)
    if result.errors and result.data.get("log"):
        click.echo(f"log: {result.data['log']}", err=True)
    return result.exit_code


def _print(text: str) -> None:
    """Write one result on stdout, whatever its encoding; names of files need not be text."""
    stream = sys.stdout
    if stream is None:  # closed by whoever started us
        return
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()


def _coloured(problem: Problem, shared: dict[str, Any]) -> str:
    text = problem.text()
    if not use_color(shared.get("color")):
        return text
    head, _, rest = text.partition(": ")
    return (
        click.style(head, fg="red", bold=True) + ": " + rest.replace("\nhint:", click.style("\nhint", fg="cyan") + ":")
    )


def _store_logs() -> Path:
    from envsmith.tools.store import open_store

    try:
        return open_store(os.environ).home / "logs"
    except EnvsmithError:
        return Path("/nonexistent")


def _bug(error: Exception, command: str) -> Result:
    """Keep the traceback in a file, where whoever reports the bug finds it."""
    import tempfile
    import traceback

    from envsmith.commands.result import Result

    text = f"envsmith {__version__} {sys.version}\n{' '.join(sys.argv)}\n\n{traceback.format_exc()}"
    log = "(could not be written)"
    for folder in (_store_logs(), Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle, log = tempfile.mkstemp(prefix="bug-", suffix=".log", dir=folder, text=True)
            with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as stream:
                stream.write(text)
            break
        except OSError:
            continue
    problem = Problem(
        code="bug",
        message=f"envsmith met a case it does not know: {type(error).__name__}: {error}",
        where=log,
        hint="please report it with that log",
    )
    return Result(command=command, exit_code=70, errors=(problem,))
