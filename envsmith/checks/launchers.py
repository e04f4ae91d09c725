"""Which program a command name starts, and which Python that program runs on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath
from typing import Final

from envsmith.checks.expected import Expected
from envsmith.facts import Facts, Launcher
from envsmith.report import REBUILD, Finding, Severity

FAMILY: Final = "launchers"
#: Scripts of one cause that are named; the rest is counted.
SHOWN: Final = 10


def check_launchers(expected: Expected, facts: Facts) -> Iterator[Finding]:
    """Hold every expected launcher against what the launch PATH leads to.

    Proves that the name is found, that it is the environment's own file, executable, and run by the environment's
    interpreter. A launcher of another environment works in the shell and breaks the training (facts/symptoms.md D18).
    Launchers that the probe was not asked for are not judged. Misses programs that call others by absolute path, and
    scripts of other languages that pick a Python themselves.
    """
    for name in expected.launchers:
        launcher = facts.launchers.get(name)
        if launcher is not None:
            yield from _judge(name, launcher, f"{expected.env_dir}/bin")


def check_scripts(expected: Expected, facts: Facts, shipped: Collection[str] = ()) -> Iterator[Finding]:
    """Prove that no script of the environment is run by the Python of another place.

    Console scripts name their interpreter by path, so an environment that was moved or copied starts another one or
    none, and the shell then says that the script itself is missing (facts/symptoms.md D44). `shipped` are scripts,
    relative to the environment, that a wheel brought as they are: their first line is their author's. Scripts that
    look their program up (`#!/usr/bin/env`) are not judged here.
    """
    groups: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for script in facts.scripts:
        path = expected.relative(script.path)
        if path in shipped or not _is_python(script.interpreter):
            continue
        if str(PurePosixPath(script.interpreter).parent) != f"{expected.env_dir}/bin" or not script.interpreter_exists:
            groups[script.interpreter, script.interpreter_exists].append(path)
    for (interpreter, exists), paths in sorted(groups.items()):
        many = f"{len(paths)} scripts are" if len(paths) > 1 else "a script is"
        state = "" if exists else ", which does not exist: the shell will say that the script itself is missing"
        yield Finding(
            check=FAMILY,
            kind="shebang-relocation",
            severity=Severity.WARNING if exists else Severity.ERROR,
            subject=", ".join(paths[:SHOWN]) + (", …" if len(paths) > SHOWN else ""),
            message=f"{many} run by the Python of another place{state}",
            expected=f"{expected.env_dir}/bin/python",
            actual=interpreter,
            hint=f"the environment was moved or copied, which venvs do not survive: build it again with {REBUILD}",
        )


def check_activate(expected: Expected, named: str | None) -> Iterator[Finding]:
    """Prove that `bin/activate`, where there is one, puts this environment on PATH and not that of its old place.

    `named` is what it gives VIRTUAL_ENV; None where it does not say, or works it out when it is sourced.
    """
    if named is not None and named.rstrip("/") != expected.env_dir:
        yield _finding(
            "shebang-relocation",
            "bin/activate",
            "`bin/activate` puts another place on PATH: the environment was moved or copied",
            expected.env_dir,
            named,
            f"the environment was moved or copied, which venvs do not survive: build it again with {REBUILD}",
        )


def _judge(name: str, launcher: Launcher, bin_dir: str) -> Iterator[Finding]:
    own = f"{bin_dir}/{name}"
    if own in launcher.skipped:
        message = f"`{name}` of the environment is not executable, so the shell passes over it"
        yield _finding("launcher-not-executable", name, message, own, launcher.path or "not found", f"chmod +x {own}")
        return
    if launcher.path is None or launcher.realpath is None:
        yield _finding(
            "launcher-missing",
            name,
            f"`{name}` is not found on PATH",
            own,
            f"only beside the interpreter, as {launcher.beside}" if launcher.beside else "nowhere",
            f"put {bin_dir} first on PATH: `envsmith run` does",
        )
        return
    if not _is_in(bin_dir, launcher.path, launcher.realpath):
        runs = f", run by {launcher.interpreter}" if launcher.interpreter else ""
        message = f"`{name}` on PATH belongs to another environment"
        hint = f"put {bin_dir} first on PATH: `envsmith run` does"
        yield _finding("launcher-from-wrong-env", name, message, own, launcher.path + runs, hint)
        return
    yield from _judge_interpreter(name, launcher, bin_dir)


def _judge_interpreter(name: str, launcher: Launcher, bin_dir: str) -> Iterator[Finding]:
    interpreter = launcher.interpreter
    if launcher.shebang is None or (interpreter is not None and not _is_python(interpreter)):
        return  # a binary, or a script of another language
    if interpreter is not None and launcher.interpreter_exists and str(PurePosixPath(interpreter).parent) == bin_dir:
        return
    if interpreter is None:
        actual = f"{launcher.shebang}, which leads to no program"
    else:
        actual = interpreter if launcher.interpreter_exists else f"{interpreter}, which does not exist"
    message = f"`{name}` is the environment's own script, but another Python would run it"
    hint = f"the environment was moved or the script changed: build it again with {REBUILD}"
    yield _finding("launcher-wrong-interpreter", name, message, f"{bin_dir}/python", actual, hint)


def _is_in(bin_dir: str, *paths: str) -> bool:
    """A link from elsewhere to the environment's own file is fine."""
    return any(str(PurePosixPath(path).parent) == bin_dir for path in paths)


def _is_python(interpreter: str) -> bool:
    """By its name, the letters of its ABI included: `python3.7m`, `python3.13t`, `python3.12d`."""
    return re.fullmatch(r"(python|pypy)[\d.]*[dmut]*", PurePosixPath(interpreter).name) is not None


def _finding(kind: str, subject: str, message: str, expected: str, actual: str, hint: str) -> Finding:
    return Finding(
        check=FAMILY,
        kind=kind,
        severity=Severity.ERROR,
        subject=subject,
        message=message,
        expected=expected,
        actual=actual,
        hint=hint,
    )
