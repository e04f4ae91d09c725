"""Verbs that run things in an env and keep what came of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from envsmith.cli_group import linux_only, screen, verb

if TYPE_CHECKING:
    from envsmith.commands.result import Result


@verb("smoke")
@click.argument("env")
@click.option("--root", metavar="DIR", help="Where envs were built [default: $ENVSMITH_ROOT or .envsmith/envs].")
@click.option("--to", metavar="RUNG", help="The last rung to climb [default: the last of the recipe].")
@click.option("--only", multiple=True, metavar="RUNG", help="Climb only this rung; may be given again.")
@click.option("--set", "settings", multiple=True, metavar="RUNG.KEY=VALUE", help="Change a key for this run.")
@click.option("--evidence", metavar="DIR", help="Write the record as a folder that can be checked elsewhere.")
@click.option("--sign", metavar="KEY", help="Sign the evidence with this OpenSSH ed25519 key; a .pub asks the agent.")
def smoke(
    env: str,
    root: str | None,
    to: str | None,
    only: tuple[str, ...],
    settings: tuple[str, ...],
    evidence: str | None,
    sign: str | None,
) -> Result:
    """Climb the smoke ladder in ENV: static to one training step and back from a checkpoint.

    \b
    envsmith smoke a100/rl                               every rung of the recipe, in order
    envsmith smoke a100/rl --to generate                 up to a generation
    envsmith smoke a100/rl --only collective --set collective.ranks=4
    envsmith smoke a100/rl --evidence out/a100-rl        with a record that `envsmith inspect` checks elsewhere
    envsmith smoke a100/rl --to train-step --set train-step.rewards=constant     shown failing
    """
    from envsmith.commands.smoke import EvidenceWishes
    from envsmith.commands.smoke import run as command

    linux_only("smoke")
    wishes = EvidenceWishes(folder=evidence, key=sign)
    return command(
        env, root=root, to=to, only=only, settings=settings, wishes=wishes, environ=os.environ, screen=screen()
    )
