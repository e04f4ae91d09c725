"""Running processes against the env they should be of: interpreter, variables, mapped files, and who differs first.

Only what the kernel shows is judged. The environment is the one of the start: what a program changed in itself later
does not show, and a process that gave itself a title has usually overwritten it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from envsmith.checks.contexts import FORBIDDEN, Intended
from envsmith.checks.expected import Expected, within
from envsmith.checks.maps import Surroundings, check_maps, family_of
from envsmith.report import Finding, Severity
from envsmith.running import RunningProcess, chain_of, shown

FAMILY: Final = "contexts"
_SITE: Final = re.compile(r"^(?P<site>.*/(?:site|dist)-packages)/(?P<name>[^/]+)")
#: Places of the host that any process may map code from.
_HOST: Final = ("/lib", "/lib64", "/usr", "/run", "/dev", "/tmp", "/var/tmp", "/opt/hpcx", "/etc/alternatives")
_WHY: Final = {
    "permission": "they belong to another user or are protected",
    "gone": "the process ended meanwhile",
    "overwritten": "the process wrote its title over them (setproctitle)",
}


def check_running(
    expected: Expected, intended: Intended, around: Surroundings, processes: Sequence[RunningProcess]
) -> Iterator[Finding]:
    """Judge a process and its descendants.

    Proves of every Python process, and of every program of the env, that it runs the env's interpreter, was started
    with the launch table's variables and maps its packages and single-instance libraries from the env. A fault is told
    at the first process of its chain; processes beside each other with one fault share a line. Misses pure Python
    packages (replay a probe for them) and what could not be read, which is said.
    """
    groups: dict[Finding, list[RunningProcess]] = {}
    for process in processes:
        for finding in _of_process(expected, intended, around, process):
            groups.setdefault(finding, []).append(process)
    for finding, found in groups.items():
        first = [one for one in found if not _inherited(one, found, processes)]
        yield replace(finding, message=f"{finding.message}; {_place(first, found, processes)}")


def _inherited(process: RunningProcess, found: Sequence[RunningProcess], processes: Sequence[RunningProcess]) -> bool:
    return any(other in found for other in chain_of(process, processes)[:-1])


def _place(
    first: Sequence[RunningProcess], found: Sequence[RunningProcess], processes: Sequence[RunningProcess]
) -> str:
    """The first process with its chain, and how many more have the same fault."""
    chain = " -> ".join(one.label for one in chain_of(first[0], processes))
    beside, below = len(first) - 1, len(found) - len(first)
    more = [f"{beside} beside it"] if beside else []
    more += [f"{below} below"] if below else []
    return f"first in `{first[0].label}` ({chain})" + (f", and {' and '.join(more)}" if more else "")


def _of_process(
    expected: Expected, intended: Intended, around: Surroundings, process: RunningProcess
) -> Iterator[Finding]:
    yield from check_readable(process)
    ours = process.is_python or within(process.executable or "", (expected.env_dir,))
    if not ours:
        return
    yield from check_program(expected, process)
    if process.environ is not None:
        yield from check_environment(expected, intended, process)
    if process.maps is not None:
        yield from check_packages(expected, process)
        yield from check_maps(expected, process.maps, process.environ or {}, around)
        yield from check_outside_files(expected, process)


def check_readable(process: RunningProcess) -> Iterator[Finding]:
    """Say what could not be read, so that silence is not taken for health; kernel threads and zombies have nothing."""
    if process.executable is None and not process.argv and "permission" not in process.unreadable.values():
        return
    for reason, says in _WHY.items():
        names = sorted(name for name, why in process.unreadable.items() if why == reason)
        if not names:
            continue
        yield Finding(
            check=FAMILY,
            kind="pid-unreadable",
            severity=Severity.NOTE if reason == "overwritten" else Severity.WARNING,
            subject=", ".join(names),
            message=f"`{', '.join(names)}` could not be read: {says}",
            hint={
                "permission": "run this as the owner of the process or as root",
                "overwritten": "set SPT_NOENV=1 in the launch table: titles then leave the variables alone",
            }.get(reason),
        )


def check_program(expected: Expected, process: RunningProcess) -> Iterator[Finding]:
    """Prove that a Python process is the env's, by the name it was started with, not by the binary that all share.

    Where neither command line nor variables nor native modules tell the name, only the base interpreter is known;
    nothing is then said as long as that is the env's.
    """
    if process.executable_deleted:
        yield _error("pid-interpreter", "exe", "the program was deleted or replaced on disk", None, process.executable)
    name = process.interpreter
    if name is None or within(name, (f"{expected.env_dir}/bin",)):
        return
    if name == process.executable and _unknown_name(process) and _is_base(expected, name):
        return
    yield _error(
        "pid-interpreter",
        "interpreter",
        "the process runs the interpreter of another environment",
        f"{expected.env_dir}/bin/python",
        name,
        "start it through `envsmith run`, or look which launcher is found on its PATH",
    )


def _unknown_name(process: RunningProcess) -> bool:
    """Whether the process gave away no name: a title instead of a command line."""
    return not process.argv or "/" not in process.argv[0]


def _is_base(expected: Expected, executable: str) -> bool:
    return expected.base_prefix is None or within(executable, (expected.base_prefix,))


def check_environment(expected: Expected, intended: Intended, process: RunningProcess) -> Iterator[Finding]:
    """Prove that the launch table's variables are there as it says and that no forbidden one is (D20, D21, D37).

    A forbidden one that names only files of allowed directories is accepted: Ray starts its servers with LD_PRELOAD on
    its own libjemalloc (ray 2.56.1, seen in running processes 2026-11-30).
    """
    environ = process.environ or {}
    prepended = dict(intended.launch.prepend)
    for name, value in intended.values.items():
        actual = environ.get(name)
        if actual is None and name in intended.forwarded and process.role.startswith("ray::"):
            yield _variable("variable-not-forwarded", name, value, None)
        elif actual != value:
            yield _variable("pid-variable", name, value, actual)
    for name, first in prepended.items():
        actual = environ.get(name, "")
        if actual != first and not actual.startswith(f"{first}:"):
            yield _variable("pid-variable", name, f"{first}:…", actual or None)
    for name in intended.launch.require:
        if not environ.get(name):
            yield _variable("pid-variable", name, "a value", None)
    forbidden = {*FORBIDDEN, *intended.launch.unset, *(one for one in environ if one.endswith("_ALLOC_CONF"))}
    for name in sorted(forbidden - intended.values.keys() - prepended.keys()):
        found = environ.get(name, "")
        if found and not (name in FORBIDDEN and _names_only(found, expected.allowed())):
            yield _variable("pid-variable", name, None, found)


def _names_only(value: str, directories: Sequence[str]) -> bool:
    """Whether every element lies in an allowed directory; an empty one is the current directory and does not."""
    return all(within(item, directories) for item in value.replace(":", " ").split(" "))


def _variable(kind: str, name: str, was: str | None, now: str | None) -> Finding:
    what = "is not there" if now is None else "is set" if was is None else "has another value"
    return _error(
        kind,
        name,
        f"the variable `{name}` {what}",
        "unset" if was is None else shown(name, was),
        "unset" if now is None else shown(name, now),
        "start the process through `envsmith run`; whoever starts it in between must pass the variables on",
    )


def check_packages(expected: Expected, process: RunningProcess) -> Iterator[Finding]:
    """Prove that every package with mapped native modules comes from the env or an allowed directory."""
    foreign: dict[str, list[str]] = {}
    for file in process.maps or ():
        match = _SITE.match(file.path)
        if match and not within(file.path, expected.allowed()):
            foreign.setdefault(match["site"], []).append(match["name"].removesuffix(".libs").partition(".")[0])
    for site, names in sorted(foreign.items()):
        packages = sorted(set(names))
        shown_names = ", ".join(packages[:5]) + (f" and {len(packages) - 5} more" if len(packages) > 5 else "")
        yield _error(
            "pid-package",
            packages[0],
            f"packages are loaded from another environment: {shown_names}",
            expected.site_packages,
            site,
            "look for PYTHONPATH, a .pth file or another interpreter in this process or its parents",
        )


def check_outside_files(expected: Expected, process: RunningProcess) -> Iterator[Finding]:
    """Say which mapped libraries come neither from the env and its interpreter nor from the usual places of a host."""
    base = str(PurePosixPath(process.executable or "/none/bin/python").parent.parent)
    own = (*expected.allowed(), *_HOST, base)
    odd = [
        file.path
        for file in process.maps or ()
        if not within(file.path, own) and not _SITE.match(file.path) and family_of(file.path)
    ]
    if odd:
        yield Finding(
            check=FAMILY,
            kind="pid-file-outside",
            severity=Severity.WARNING,
            subject=odd[0],
            message="a library is mapped from a place that is neither the env's nor the host's"
            + (f", and {len(odd) - 1} more" if len(odd) > 1 else ""),
            hint="name the folder under `verify.allow-outside` when it is meant",
        )


def _error(
    kind: str, subject: str, message: str, expected: str | None, actual: str | None, hint: str | None = None
) -> Finding:
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
