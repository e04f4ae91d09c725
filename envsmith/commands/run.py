"""`envsmith run`: a command in exactly the launch environment of an env, or the words that start one elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from envsmith.commands.driverlibrary import prove_driver_library
from envsmith.commands.envs import BuiltEnv, env_root, open_env, shown
from envsmith.commands.launching import prepared, resolved, table_from
from envsmith.commands.raylet_check import require_same_ray, with_ray
from envsmith.commands.result import Result
from envsmith.commands.screen import Screen
from envsmith.commands.workcopies import gone_sentence, work_copies, work_dirs
from envsmith.errors import InputError, NegativeAnswer, Problem
from envsmith.receipt import NAME as RECEIPT
from envsmith.receipt import Receipt
from envsmith.receipt import parse as parse_receipt
from envsmith.tools.process import replace_process


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What the command line asks for."""

    root: str | None = None
    print_only: bool = False
    form: str | None = None
    """`slurm`, `k8s` or `modulefile`: write this instead of starting anything."""
    bundle: str | None = None
    at: str | None = None
    any_raylet: bool = False


def run(env: str, command: tuple[str, ...], wishes: Wishes, *, environ: Mapping[str, str], screen: Screen) -> Result:
    """Become the command, or say how others start it. Work copies of the env come first.

    Raises:
        NegativeAnswer: `env-incomplete` for an env without our receipt; `raylet-differs`.
        InputError: `command-missing`, `command-not-found`, `launch-variable-missing`, `usage`, `snippet-not-text`.
        HostError: `driver-library-missing`, `driver-library-unproven`.
    """
    _require_usable(wishes)
    built = open_env(env, env_root(wishes.root, environ))
    receipt = _receipt(built)
    copies = work_copies(built, receipt.verify["editable"])
    for gone in (copy for copy in copies if not copy.present):
        screen.say(f"warning[job-layer-missing]: {gone_sentence(gone)}")
    launch = resolved(table_from(receipt.launch), built.directory, environ, work_dirs(copies))
    if wishes.print_only:
        data = {key: value for key, value in asdict(launch).items() if key != "marked"}
        return Result(command="run", data=data, text=launch.shell())
    if wishes.form is not None:
        from envsmith.commands.run_elsewhere import Elsewhere, written

        elsewhere = Elsewhere(form=wishes.form, bundle=wishes.bundle, at=wishes.at, command=command)
        return written(built, receipt, launch, elsewhere, screen)
    if not command:
        raise InputError(
            Problem(
                code="command-missing",
                message="there is no command to run",
                hint=f"for example `envsmith run {env} -- python -V`, or `--print` for lines to source",
            )
        )
    ready = prepared(launch, environ)
    whole = with_ray(built.directory, launch, ready.environment, screen)
    program = _program(command[0], whole, built)
    if not wishes.any_raylet:
        require_same_ray(env, built.directory, (program, *command[1:]), ready.launch, whole)
    if ready.driver:
        prove_driver_library(ready.driver, built.directory / "bin" / "python", whole)
    replace_process((program, *command[1:]), env=whole)
    raise AssertionError("a replaced process does not come back")


def _require_usable(wishes: Wishes) -> None:
    """Refuse options that would be left unheard.

    Raises:
        InputError: `usage`.
    """
    told = [option for option, value in (("--bundle", wishes.bundle), ("--at", wishes.at)) if value is not None]
    if wishes.print_only and wishes.form is not None:
        raise InputError(Problem(code="usage", message="`--print` and `--as` are two answers", hint="give one of them"))
    if told and wishes.form not in ("slurm", "k8s"):
        hint = "give `--as slurm` or `--as k8s` too"
        raise InputError(Problem(code="usage", message=f"`{told[0]}` says nothing about a command here", hint=hint))


def _receipt(built: BuiltEnv) -> Receipt:
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
    return parse_receipt(path.read_text(encoding="utf-8", errors="replace"), shown(path))


def _program(word: str, whole: Mapping[str, str], built: BuiltEnv) -> str:
    program = shutil.which(word, path=whole["PATH"])
    if program is None:
        raise InputError(
            Problem(
                code="command-not-found",
                message=f"`{word}` is no program of the env or on PATH",
                where=shown(built.directory / "bin"),
                hint="`envsmith run ENV --print` shows the PATH it is looked for on",
            )
        )
    return program
