"""Looking at the chain of processes that start from an env, and at processes that already run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from envsmith.checks.contexts import Intended, check_contexts
from envsmith.checks.expected import Expected, within
from envsmith.checks.imports import check_origins, check_path
from envsmith.checks.maps import check_level_maps, check_libcuda
from envsmith.checks.rows import context_rows, running_rows
from envsmith.checks.running import check_running
from envsmith.commands.depth import Examination
from envsmith.commands.launching import resolved, with_driver
from envsmith.commands.libraries import libraries
from envsmith.commands.look_processes import Surroundings
from envsmith.commands.subject import Subject, expectation
from envsmith.commands.workcopies import work_dirs
from envsmith.errors import EnvsmithError, HostError, InputError, Problem
from envsmith.launch import LaunchEnvironment
from envsmith.probe import Request
from envsmith.probe.contexts import CONTEXTS, NEEDS, libcuda_answer, replay, walk_chain
from envsmith.report import ContextRow, Finding, Severity
from envsmith.running import RunningProcess
from envsmith.tools.device import has_nvidia_device
from envsmith.tools.procfs import look_at
from envsmith.tools.progress import Progress

#: What every process of the chain imports, as far as the env has it, before its libraries are looked at: between them
#: they bring every library that must be in a process once.
IMPORTED = ("numpy", "pyarrow", "torch")
#: Packages whose origin a report shows for every process.
SHOWN = ("torch", "vllm", "ray", "transformers", "pyarrow", "numpy", "deepspeed", "triton", "verl", "llamafactory")


def look_at_contexts(
    subject: Subject, around: Surroundings, examination: Examination, *, every: bool, progress: Progress | None
) -> tuple[list[Finding], tuple[ContextRow, ...]]:
    """Start the chain; `every` context that the env has a package for, else those of the recipe."""
    expected, intended = expectation(subject), intention(subject, around.shell, around.launch)
    names = {*expected.roots, *expected.editable}
    contexts = _contexts(subject, names, every=every)
    if progress:
        progress.message(f"start processes: {', '.join(contexts)}")
    request = Request(
        locate=tuple(sorted(names)),
        imports=tuple(name for name in IMPORTED if name in names),
        environ_names=intended.watched,
        maps=True,
    )
    env = _with_own_programs(subject, around.launched) if subject.foreign else around.launched
    chain = walk_chain(subject.executable, contexts, request, env=env, kept=intended.kept)
    examination.facts += tuple(level.facts for level in chain.levels)
    for context, seconds in chain.seconds.items():
        examination.figures[f"context {context}"] = f"{seconds:.1f} s"
    findings = list(check_contexts(intended, chain.levels, chain.unstarted))
    findings += check_level_maps(expected, chain.levels, libraries(subject))
    findings += _driver(subject, around)
    return findings, context_rows(intended, chain.levels, [name for name in SHOWN if name in names])


def _with_own_programs(subject: Subject, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The caller's variables; whoever has not activated an env means its own torchrun all the same."""
    path, own = environ.get("PATH", ""), f"{subject.env_dir}/bin"
    there = any(os.path.realpath(folder) == own for folder in path.split(":") if folder)
    return environ if there else {**environ, "PATH": f"{own}:{path}" if path else own}


def _contexts(subject: Subject, names: set[str], *, every: bool) -> tuple[str, ...]:
    wanted = {"launched", *subject.verify["contexts"]}
    if every:
        wanted |= {name for name in CONTEXTS if name not in NEEDS or NEEDS[name] in names}
    return tuple(name for name in CONTEXTS if name in wanted)


def _driver(subject: Subject, around: Surroundings) -> Iterator[Finding]:
    """What the CUDA driver's library says in a process that loaded nothing else."""
    try:
        answer = libcuda_answer(subject.executable, around.launched)
    except EnvsmithError:
        return  # an interpreter that does not start was said of the launched process
    yield from check_libcuda(answer, libraries(subject), has_device=has_nvidia_device())


def intention(subject: Subject, environ: Mapping[str, str], prepared: LaunchEnvironment | None = None) -> Intended:
    """What the launch table wants of every process; nothing for an env without a recipe.

    `prepared` is the change that was already made for processes of our own.
    """
    if subject.foreign:
        launch = LaunchEnvironment(unset=(), set=(), prepend=(), require=(), directories=(), profile=None)
        forwarded: tuple[str, ...] = ()
    else:
        launch = prepared or _as_of_now(subject, environ)
        forwarded = subject.launch.forwarded
    return Intended(launch=launch, forwarded=forwarded, single_instance=tuple(subject.verify["single-instance"]))


def _as_of_now(subject: Subject, environ: Mapping[str, str]) -> LaunchEnvironment:
    """What a process would be started with now. A driver's library that is missing is said of new processes only."""
    launch = resolved(subject.launch, subject.directory, environ, work_dirs(subject.work))
    with contextlib.suppress(HostError):
        launch, _ = with_driver(launch, environ)
    return launch


# --- running processes ---


def running(pid: int) -> tuple[RunningProcess, ...]:
    """A process and its descendants.

    Raises:
        InputError: `pid-missing`.
    """
    found = look_at(pid)
    if not found:
        raise InputError(
            Problem(
                code="pid-missing",
                message=f"there is no process {pid}",
                hint="name a process that runs on this machine, in this container",
            )
        )
    return found


def env_of(processes: Sequence[RunningProcess]) -> str:
    """The env that a process says it runs, by the name of its interpreter.

    Raises:
        InputError: `pid-without-env`.
    """
    interpreter = processes[0].interpreter
    if interpreter is None:
        raise InputError(
            Problem(
                code="pid-without-env",
                message=f"`{processes[0].label}` does not say which Python environment it runs",
                hint="name the env it should run: `envsmith verify ENV --pid PID`",
            )
        )
    return str(Path(interpreter).parent.parent)


def look_at_running(
    subject: Subject, processes: Sequence[RunningProcess], environ: Mapping[str, str], examination: Examination
) -> tuple[list[Finding], tuple[ContextRow, ...]]:
    """Judge processes that already run, and what a new one would import that is started as each of them was."""
    expected, intended = expectation(subject), intention(subject, environ)
    findings = list(check_running(expected, intended, libraries(subject), processes))
    own = (process for process in processes if within(process.interpreter or "/", (expected.env_dir,)))
    for process in _different(own):  # what another env's interpreter imports is no news after `pid-interpreter`
        findings += _replayed(expected, process, examination)
    if not any(process.is_python for process in processes) and not findings:
        findings.append(_unjudged(processes))
    return findings, running_rows(intended, processes)


def _different(processes: Iterable[RunningProcess]) -> Iterator[RunningProcess]:
    """Python processes, one for each interpreter, folder and value of what decides imports."""
    seen = set()
    for process in processes:
        decisive = tuple(
            (name, value) for name, value in sorted((process.environ or {}).items()) if name.startswith("PYTHON")
        )
        key = (process.interpreter, process.cwd, decisive)
        if process.is_python and key not in seen:
            seen.add(key)
            yield process


def _replayed(expected: Expected, process: RunningProcess, examination: Examination) -> Iterator[Finding]:
    """Where its imports come from: pure Python leaves no trace in the maps."""
    request = Request(locate=tuple(sorted({*expected.roots, *expected.editable})))
    try:
        facts = replay(process, request)
    except EnvsmithError as error:
        yield _unreplayed(process, error)
        return
    if facts is None:
        return  # another user's; `pid-unreadable` says what else could not be seen
    examination.facts += (facts,)
    where = f"in a process started as `{process.label}` was: "
    for finding in (*check_path(expected, facts), *check_origins(expected, facts)):
        yield replace(finding, message=where + finding.message)


def _unjudged(processes: Sequence[RunningProcess]) -> Finding:
    return Finding(
        check="contexts",
        kind="pid-not-judged",
        severity=Severity.ERROR,
        subject=processes[0].label,
        message=f"neither `{processes[0].label}` nor a descendant runs Python, so nothing was judged",
        hint="name the process that runs the env's interpreter; `pgrep -af python` lists them",
    )


def _unreplayed(process: RunningProcess, error: EnvsmithError) -> Finding:
    problem = error.problems[0]
    return Finding(
        check="contexts",
        kind="pid-not-replayed",
        severity=Severity.WARNING,
        subject=process.label,
        message=f"a process like `{process.label}` could not be started to see what it imports: {problem.message}",
        hint=problem.hint,
    )
