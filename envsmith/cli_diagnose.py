"""The verb that reads logs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from envsmith.cli_group import screen, verb

if TYPE_CHECKING:
    from envsmith.commands.result import Result


@verb("diagnose")
@click.argument("logs", nargs=-1, metavar="LOG...")
@click.option("--env", metavar="ENV", help="The env of the run: its lock is read and the checks that fit are run.")
@click.option("--host", metavar="SNAPSHOT", help="The machine of the run: a snapshot's file, or `local`.")
@click.option("--root", metavar="DIR", help="Where envs were built [default: $ENVSMITH_ROOT or .envsmith/envs].")
@click.option("--brief", is_flag=True, help="At most 40 lines of 100 columns, without secrets and long paths.")
def diagnose(logs: tuple[str, ...], env: str | None, host: str | None, root: str | None, brief: bool) -> Result:
    """Name the cause of a failed run from its logs, with the line, what proves it and what to do.

    LOG is a file (also .gz), a folder of logs, or `-`; give all of one run: one a rank or node, `dmesg -T`, samples of
    nvidia-smi.

    \b
    envsmith diagnose train.log                                   the cause, with file:line
    envsmith diagnose rank*.log dmesg.txt --env a100/rl           and what the env itself says of it
    envsmith diagnose train.log --env a100/rl --host node7.toml   and the machine's snapshot
    """
    from envsmith.commands.diagnose import run as command

    return command(logs, env=env, host=host, root=root, short=brief, environ=os.environ, screen=screen())
