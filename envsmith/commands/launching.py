"""Turning a launch table into the environment of a real process: folders made, profile sourced, driver found."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from envsmith.commands.driverlibrary import HOST, DriverFolder, driver_folder
from envsmith.errors import InputError, Problem
from envsmith.launch import DriverPlaces, LaunchEnvironment, LaunchTable, resolve
from envsmith.tools.files import filesystem
from envsmith.tools.process import run, scrubbed, without_frames


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """All that a process of an env needs, made on this machine."""

    environment: dict[str, str]
    """The whole environment of the process."""
    launch: LaunchEnvironment
    """The change that was applied; the private folder of the driver's library is among its elements."""
    driver: DriverFolder | None
    """That folder; None where the recipe does not ask for it or the machine has no driver."""


def prepared(launch: LaunchEnvironment, environ: Mapping[str, str], places: DriverPlaces = HOST) -> Prepared:
    """Make the directories, source the profile, find the driver's library, and apply the change.

    That `cuInit` works with it is another question: `prove_driver_library`.

    Raises:
        InputError: `launch-variable-missing`, `launch-profile-failed`.
        HostError: `driver-library-missing`.
    """
    for directory in launch.directories:
        with filesystem(Path(directory)):
            Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True)
    sourced = _source(launch.profile, environ) if launch.profile else dict(environ)
    launch, driver = with_driver(launch, sourced, places)
    return Prepared(environment=launch.apply(sourced), launch=launch, driver=driver)


def with_driver(
    launch: LaunchEnvironment, environ: Mapping[str, str], places: DriverPlaces = HOST
) -> tuple[LaunchEnvironment, DriverFolder | None]:
    """Put the private folder of the driver's library first, where the recipe asks for it and there is a driver.

    Raises:
        HostError: `driver-library-missing`.
    """
    if launch.driver_scratch is None:
        return launch, None
    driver = driver_folder(launch.driver_scratch, launch.library_path(environ), places)
    return launch.with_driver_folder(str(driver.folder) if driver else None), driver


def process_environment(launch: LaunchEnvironment, environ: Mapping[str, str]) -> dict[str, str]:
    """The whole environment of a process, as `prepared` makes it.

    Raises:
        EnvsmithError: as `prepared` does.
    """
    return prepared(launch, environ).environment


#: What a shell writes for itself, and what the folder that a profile went to says: the command has those of the caller.
_OF_THE_SHELL: Final = ("PWD", "OLDPWD", "SHLVL", "_")
_STATUS: Final = "_envsmith_status"


def _source(profile: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Source a vendor's shell file and return the environment after it.

    The profile gets no arguments of ours, which it could read or change: paths stand in the script. Its words go to a
    file, since what it leaves behind may keep them open for ever. `env` is called by path, as profiles change PATH.

    Raises:
        InputError: `launch-profile-failed`.
    """
    with tempfile.TemporaryDirectory(prefix="envsmith-profile-") as folder:
        out, said = Path(folder) / "environ", Path(folder) / "said"
        out.touch(mode=0o600)  # whatever umask the profile sets
        shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
        program = next((path for path in ("/usr/bin/env", "/bin/env") if Path(path).exists()), "/usr/bin/env")
        script = (
            f"exec >{shlex.quote(str(said))} 2>&1\n"
            f". {shlex.quote(profile)}\n"
            f'{program} -0 {_STATUS}="$?" >|{shlex.quote(str(out))}\n'
        )
        done = run([shell, "-c", script, "envsmith"], env=environ, timeout_s=60)
        pairs = [pair.split("=", 1) for pair in os.fsdecode(out.read_bytes()).split("\0") if "=" in pair]
        after = {name: value for name, value in pairs}
        words = said.read_bytes().decode(errors="replace") if said.exists() else done.stderr
    status = after.pop(_STATUS, None)
    if status is None or (status != "0" and not _reads(shell, profile, environ)):
        code = status or str(done.returncode)
        ends = "it ended the shell, with the exit code" if status is None else "exit code"
        raise InputError(
            Problem(
                code="launch-profile-failed",
                message="the vendor profile of the launch table could not be sourced",
                where=profile,
                actual="\n".join(without_frames(words.strip()).splitlines()[-3:]) or f"{ends} {code}",
            )
        )
    kept = {name: environ[name] for name in _OF_THE_SHELL if name in environ}
    return {**{name: value for name, value in after.items() if name not in _OF_THE_SHELL}, **kept}


def _reads(shell: str, profile: str, environ: Mapping[str, str]) -> bool:
    """Whether a shell can read a file to its end: one whose last command is false is a good profile.

    bash goes on behind a file that it cannot open or understand, and says the same status for both.
    """
    options = ("-O", "extglob") if shell.endswith("bash") else ()
    return run([shell, *options, "-n", profile], env=scrubbed(environ), timeout_s=60).returncode == 0
