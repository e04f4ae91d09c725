"""`envsmith run`: a command in exactly the launch environment of an env."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict

from envsmith.commands.driverlibrary import prove_driver_library
from envsmith.commands.envs import env_root, open_env, shown
from envsmith.commands.launching import prepared, resolved, table_from
from envsmith.commands.result import Result
from envsmith.commands.screen import Screen
from envsmith.commands.workcopies import gone_sentence, work_copies, work_dirs
from envsmith.errors import InputError, NegativeAnswer, Problem
from envsmith.receipt import NAME as RECEIPT
from envsmith.receipt import parse as parse_receipt
from envsmith.tools.process import replace_process


def run(
    env: str,
    command: tuple[str, ...],
    *,
    root: str | None,
    print_only: bool,
    environ: Mapping[str, str],
    screen: Screen,
) -> Result:
    """Become the command; with `print_only` print lines for a shell instead. Work copies of the env come first.

    Raises:
        NegativeAnswer: `env-incomplete` for an env without our receipt.
        InputError: `command-missing`, `command-not-found`, `launch-variable-missing`.
        HostError: `driver-library-missing`, `driver-library-unproven`.
    """
    built = open_env(env, env_root(root, environ))
    if built.receipt is None:
        raise NegativeAnswer(
            Problem(
                code="env-incomplete",
                message="the env has no receipt of envsmith: its build did not end, or another tool made it",
                where=shown(built.directory),
                hint="build it with `envsmith build`",
            )
        )
    path = built.directory / RECEIPT
    receipt = parse_receipt(path.read_text(encoding="utf-8", errors="replace"), shown(path))
    copies = work_copies(built, receipt.verify["editable"])
    for gone in (copy for copy in copies if not copy.present):
        screen.say(f"warning[job-layer-missing]: {gone_sentence(gone)}")
    environment = resolved(table_from(receipt.launch), built.directory, environ, work_dirs(copies))
    if print_only:
        return Result(command="run", data=asdict(environment), text=environment.shell())
    if not command:
        raise InputError(
            Problem(
                code="command-missing",
                message="there is no command to run",
                hint=f"for example `envsmith run {env} -- python -V`, or `--print` for lines to source",
            )
        )
    ready = prepared(environment, environ)
    whole = ready.environment
    program = shutil.which(command[0], path=whole["PATH"])
    if program is None:
        raise InputError(
            Problem(
                code="command-not-found",
                message=f"`{command[0]}` is no program of the env or on PATH",
                where=shown(built.directory / "bin"),
                hint="`envsmith run ENV --print` shows the PATH it is looked for on",
            )
        )
    if ready.driver:
        prove_driver_library(ready.driver, built.directory / "bin" / "python", whole)
    replace_process((program, *command[1:]), env=whole)
    raise AssertionError("a replaced process does not come back")
