"""Verbs about checkpoints."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from envsmith.cli_group import linux_only, screen, verb

if TYPE_CHECKING:
    from envsmith.commands.result import Result


@verb("deliver")
@click.argument("source", metavar="SRC")
@click.argument("destination", metavar="DST")
@click.option("--allow-incomplete", is_flag=True, help="Copy a checkpoint that lacks shards, and say so in the record.")
@click.option("--replace", is_flag=True, help="Replace files in DST that have another content.")
def deliver(source: str, destination: str, allow_incomplete: bool, replace: bool) -> Result:
    """Copy a checkpoint into the folder DST, file by file, every byte read again and compared by sha256.

    SRC is a folder, whose content goes into DST, or one file. Killed anywhere, the next run goes on.

    \b
    envsmith deliver /local/run1/global_step_100 /mnt/shared/run1/global_step_100
    """
    from envsmith.commands.deliver import Wishes
    from envsmith.commands.deliver import run as command

    linux_only("deliver")
    wishes = Wishes(allow_incomplete=allow_incomplete, replace=replace)
    return command(source, destination, wishes, environ=os.environ, screen=screen())
