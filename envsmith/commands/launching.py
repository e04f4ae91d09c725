"""Turning a launch table into the environment of a real process: scratch folders made, vendor profile sourced."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envsmith.errors import InputError, Problem
from envsmith.launch import LaunchEnvironment, LaunchTable, resolve
from envsmith.tools.files import filesystem
from envsmith.tools.process import run


def scratch_folder(environ: Mapping[str, str]) -> str:
    """A short, private, local folder that `{scratch}` stands for: `$ENVSMITH_SCRATCH`, else one in /tmp.

    Short, because Ray puts Unix sockets below it and their paths end at 107 bytes (facts/symptoms.md D22).
    """
    named = environ.get("ENVSMITH_SCRATCH")
    path = Path(named).expanduser().absolute() if named else Path("/tmp") / f"es{os.getuid()}"
    with filesystem(path):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mine = path.stat().st_uid == os.getuid() and not path.is_symlink()
    if not mine and not named:
        return tempfile.mkdtemp(prefix="es")  # somebody else sits on our name
    return str(path)


def table_from(data: Mapping[str, Any]) -> LaunchTable:
    """Read the launch table that a receipt holds."""
    return LaunchTable(
        unset=tuple(data["unset"]),
        set=dict(data["set"]),
        prepend=dict(data["prepend"]),
        require=tuple(data["require"]),
        forward=tuple(data["forward"]),
        driver_library=data["driver-library"],
        short_dirs=dict(data["short-dirs"]),
        profile=data["profile"],
        path_filter=tuple(data["path-filter"]),
    )


def resolved(
    table: LaunchTable, env_dir: Path, environ: Mapping[str, str], work_dirs: tuple[str, ...] = ()
) -> LaunchEnvironment:
    """Fill the table in for an env directory on this machine; `work_dirs` come first on PYTHONPATH."""
    return resolve(table, env_dir=str(env_dir), scratch=scratch_folder(environ), work_dirs=work_dirs)


def process_environment(launch: LaunchEnvironment, environ: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a process, with its directories made and the profile sourced.

    Raises:
        InputError: `launch-variable-missing`, `launch-profile-failed`.
    """
    for directory in launch.directories:
        with filesystem(Path(directory)):
            Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    sourced = _source(launch.profile, environ) if launch.profile else dict(environ)
    return launch.apply(sourced)


def _source(profile: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Source a vendor's shell file and return the environment after it.

    The environment comes back through a file, because profiles print.
    """
    with tempfile.TemporaryDirectory(prefix="envsmith-profile-") as folder:
        out = Path(folder) / "environ"
        shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
        script = '. "$1" && env -0 > "$2"'
        done = run([shell, "-c", script, "envsmith", profile, out], env=environ, timeout_s=60)
        if done.returncode != 0 or not out.is_file():
            raise InputError(
                Problem(
                    code="launch-profile-failed",
                    message="the vendor profile of the launch table could not be sourced",
                    where=profile,
                    actual=done.tail(3) or f"exit code {done.returncode}",
                )
            )
        pairs = out.read_text(errors="surrogateescape").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)
