"""Whether the Ray that a driver would join runs in the env's launch environment; judged on facts, nothing is read here.

Workers get the variables and the interpreter of the raylet's start shell, and Ray says nothing when the driver's differ
(facts/verify.md section 6). The command line of a raylet and the order in which a driver looks for a cluster are those
of ray 2.56.1, `_private/services.py`, read 2026-11-30.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from envsmith.errors import Problem
from envsmith.launch import LaunchEnvironment
from envsmith.running import RunningProcess, shown

#: The kernel's name of a raylet.
NAME: Final = "raylet"
#: Words after `ray` that hand over the user's code; all others look at a cluster, start it or stop it.
_SUBMITS: Final = (("job", "submit"), ("submit",), ("exec",))
#: Lists that no `runtime_env` mends: the loader and the interpreter read them before Ray sets anything.
_LISTS: Final = ("LD_LIBRARY_PATH", "PYTHONPATH")
#: What `ray start` writes itself into the environment of what it starts.
_WRITTEN_BY_RAY: Final = ("RAY_CLIENT_MODE", "RAY_USAGE_STATS_ENABLED", "LD_PRELOAD")
_LOCAL: Final = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Raylet:
    """A running raylet, as far as its command line says."""

    process: RunningProcess
    address: str
    """Of the cluster: `host:port` of its GCS."""
    python: str
    """The interpreter that its workers run."""

    @property
    def port(self) -> str:
        """The port of the cluster's address."""
        return self.address.rpartition(":")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One thing that a worker of this raylet would not get as the env says."""

    name: str
    """A variable, or `python`."""
    expected: str | None
    """None: not set."""
    actual: str | None


def raylet_of(process: RunningProcess) -> Raylet | None:
    """Read a raylet's command line; None for a process that only has its name."""
    words = [word for argument in process.argv for word in argument.split(" ")]
    address = _option(words, "--gcs-address=")
    command = _option(process.argv, "--python_worker_command=")
    try:
        python = shlex.split(command or "")[:1]
    except ValueError:
        python = []
    if not address or not python:
        return None
    return Raylet(process=process, address=address, python=python[0])


def is_judged(command: Sequence[str]) -> bool:
    """Whether a command may be a driver: Ray's own command is none, but where it submits code; it is needed to mend."""
    words = list(command)
    if words[1:3] == ["-m", "ray.scripts.scripts"]:
        words = ["ray", *words[3:]]
    if PurePosixPath(words[0]).name != "ray":
        return True
    valued = ("--logging-level", "--logging-format")
    pairs = itertools.pairwise(words)
    plain = [word for before, word in pairs if not word.startswith("-") and before not in valued]
    return any(tuple(plain[: len(submits)]) == submits for submits in _SUBMITS)


def joined(
    raylets: Iterable[Raylet], *, named: str | None, current: str | None, names: Sequence[str] = ()
) -> tuple[Raylet, ...]:
    """Those whose cluster `ray.init()` would join.

    `named` is RAY_ADDRESS, `current` what `ray_current_cluster` says in the driver's own temporary folder, `names` are
    this machine's. Not known here: an address in the user's code, and the cluster behind `ray://`.
    """
    every = tuple(raylets)
    if not named:
        return tuple(one for one in every if one.address == current)
    if named == "auto":
        clusters = {one.address for one in every}
        if len(clusters) > 1 and current:
            return tuple(one for one in every if one.address == current)
        return every
    host, _, port = named.rpartition(":")
    local = (*_LOCAL, *names)
    is_here = host.strip("[]") in local or re.fullmatch(r"127(\.\d+){3}", host) is not None
    return tuple(one for one in every if one.address == named or (one.port == port and is_here))


def differences(
    raylet: Raylet, launch: LaunchEnvironment, wanted: Mapping[str, str], env_dir: str
) -> tuple[Difference, ...]:
    """What the workers of a raylet would have otherwise than a process whose environment is `wanted`.

    Compared are the interpreter, forwarded and unset variables, and the first elements of LD_LIBRARY_PATH and
    PYTHONPATH where the recipe or a work copy puts some there. Of a process whose environment may not be read only the
    interpreter is.
    """
    found = []
    if PurePosixPath(raylet.python).parent != PurePosixPath(env_dir) / "bin":
        found.append(Difference(name="python", expected=f"{env_dir}/bin/python", actual=raylet.python))
    there = raylet.process.environ
    if there is None:
        return tuple(found)
    first = {name: value for name, value in launch.prepend if name in _LISTS}
    for name in dict.fromkeys((*launch.forward, *launch.unset)):
        if name in _WRITTEN_BY_RAY or name in first or there.get(name) == wanted.get(name):
            continue
        found.append(Difference(name=name, expected=wanted.get(name), actual=there.get(name)))
    for name, value in first.items():
        if not f"{there.get(name, '')}:".startswith(f"{value}:"):
            found.append(Difference(name=name, expected=wanted.get(name), actual=there.get(name)))
    return tuple(found)


def problem_of(raylet: Raylet, found: Sequence[Difference], env: str) -> Problem:
    """Say what differs, and the way to a Ray that does not."""
    stop = shlex.join([f"{PurePosixPath(raylet.python).parent}/ray", "stop"])
    what = (
        "interpreter and variables"
        if len({one.name == "python" for one in found}) == 2
        else ("interpreter" if found[0].name == "python" else "variables")
    )
    return Problem(
        code="raylet-differs",
        message=f"workers of the Ray that this command would join have other {what} than the env: "
        + ", ".join(f"`{one.name}`" for one in found),
        where=f"raylet {raylet.process.pid}, cluster {raylet.address}",
        expected=", ".join(_said(one.name, one.expected) for one in found),
        actual=", ".join(_said(one.name, one.actual) for one in found),
        hint=f"end it with `{stop}` (that ends every Ray of yours on this machine), and start it in the env: "
        f"`envsmith run {env} -- ray start --head`; `--any-raylet` runs the command as things are",
    )  # fmt: skip


def _said(name: str, value: str | None) -> str:
    return f"{name} not set" if value is None else f"{name}={shown(name, value)}"


def _option(words: Iterable[str], flag: str) -> str | None:
    return next((word.removeprefix(flag) for word in words if word.startswith(flag)), None)
