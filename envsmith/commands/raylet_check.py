"""Refusing to start a driver that would join a Ray whose workers live in another environment."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from envsmith.commands.screen import Screen
from envsmith.errors import NegativeAnswer
from envsmith.launch import LaunchEnvironment
from envsmith.rayforward import not_forwarded, ray_variables
from envsmith.raylets import NAME, Raylet, differences, is_judged, joined, problem_of, raylet_of
from envsmith.tools.procfs import named


def has_ray(env_dir: Path) -> bool:
    """Whether the env has Ray's command, and so Ray."""
    return (env_dir / "bin" / "ray").exists()


def with_ray(
    env_dir: Path, launch: LaunchEnvironment, environment: Mapping[str, str], screen: Screen
) -> dict[str, str]:
    """The environment of a command, in an env with Ray also what makes Ray hand on the forwarded variables."""
    if not has_ray(env_dir):
        return dict(environment)
    for name in not_forwarded(launch.forward, environment):
        screen.say(f"warning[not-forwarded]: Ray would change the value of `{name}` on the way to its workers")
    return {**environment, **ray_variables(launch.forward, environment)}


def require_same_ray(
    env: str, env_dir: Path, command: Sequence[str], launch: LaunchEnvironment, whole: Mapping[str, str]
) -> None:
    """Compare every raylet of this machine that the command would use; `whole` is the command's environment.

    Raises:
        NegativeAnswer: `raylet-differs`.
    """
    if not has_ray(env_dir) or not is_judged(command):
        return
    raylets = list(_raylets())
    if not raylets:
        return
    mine = joined(raylets, named=whole.get("RAY_ADDRESS"), current=_current(whole), names=(socket.gethostname(),))
    judged = [(raylet, differences(raylet, launch, whole, str(env_dir.resolve()))) for raylet in mine]
    problems = [problem_of(raylet, found, env) for raylet, found in judged if found]
    if problems:
        raise NegativeAnswer(*problems)


def _raylets() -> Iterator[Raylet]:
    """Those that run; whoever started one through `current` has the same env as through its directory."""
    for process in named(NAME):
        raylet = raylet_of(process)
        if raylet is not None:
            python = Path(raylet.python)
            yield replace(raylet, python=str(python.parent.resolve() / python.name))


def _current(whole: Mapping[str, str]) -> str | None:
    """The address of the cluster that was started last in the temporary folder a driver would look in."""
    temporary = whole.get("RAY_TMPDIR", whole.get("TMPDIR", "/tmp"))
    with contextlib.suppress(OSError, ValueError):
        return (Path(temporary) / "ray" / "ray_current_cluster").read_text(encoding="utf-8")[:1024].strip() or None
    return None
