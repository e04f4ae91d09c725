"""Verbs about patches."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from envsmith.cli_group import VerbGroup, group, settle, shared_options, verb

if TYPE_CHECKING:
    from envsmith.commands.result import Result


@group.group("patch", cls=VerbGroup, invoke_without_command=True, no_args_is_help=False)
@shared_options
@click.pass_context
def patch(ctx: click.Context, as_json: bool, quiet: int, verbose: int, color: str | None) -> None:
    """Make, move and check the patches of series."""
    settle(ctx.find_root().ensure_object(dict), as_json=as_json, quiet=quiet, verbose=verbose, color=color)
    if ctx.invoked_subcommand is None:
        raise click.UsageError(f"say which: {', '.join(patch.commands)}", ctx)


@verb("new", parent=patch)
@click.argument("directory", metavar="DIR")
@click.option(
    "-o", "--output", "out", required=True, metavar="FILE", help="patches/PROJECT-BASE/NNNN-verb-object.patch"
)
@click.option("--series", required=True, metavar="FILE", help="The series beside it that gets the entry.")
@click.option("--description", multiple=True, metavar="TEXT", help="What it does; again for symptom and cause.")
@click.option("--seen-as", default="", metavar="TEXT", help="The message that one would search for.")
@click.option("--origin", default="", metavar="TEXT", help="Who wrote it, or where it was taken from.")
@click.option("--forwarded", default="no", metavar="TEXT", help="Where it was sent [default: no].")
@click.option("--bug", default="", metavar="URL", help="An address that describes the fault.")
@click.option("--layer", metavar="LAYER", help="device, fix or research; for a series that is new.")
@click.option("--base", metavar="BASE", help="Full commit or name==version; work copies of `envsmith work` know it.")
@click.option("--since", metavar="COMMIT", help="Where the change begins [default: the last patch, the copy, HEAD].")
@click.option("--context", type=click.IntRange(1, 100), metavar="N", help="Lines around a change [default: 3].")
def patch_new(
    directory: str,
    out: str,
    series: str,
    description: tuple[str, ...],
    seen_as: str,
    origin: str,
    forwarded: str,
    bug: str,
    layer: str | None,
    base: str | None,
    since: str | None,
    context: int | None,
) -> Result:
    """Turn the edits of the work copy DIR into a patch, and list it in a series.

    \b
    envsmith patch new ../my-verl -o patches/verl-1bf9d2d/0003-log-rewards.patch --series mine.series \\
        --layer research --description "log rewards" --seen-as "no rewards in the log" --origin "me"
    """
    from envsmith.commands.patch_new import Words
    from envsmith.commands.patch_new import run as command

    words = Words(description="\n".join(description), seen_as=seen_as, origin=origin, forwarded=forwarded, bug=bug)
    return command(
        directory,
        out=out,
        series=series,
        layer=layer,
        base=base,
        since=since,
        context=context,
        words=words,
        environ=os.environ,
    )


@verb("refresh", parent=patch)
@click.argument("series", metavar="SERIES")
@click.option("--onto", required=True, metavar="BASE", help="The new tree: a full commit, or name==version.")
@click.option("--source", required=True, metavar="PATH", help="The repository that has it, or the sdist.")
@click.option("-o", "--output", "out", metavar="DIR", help="The new folder [default: PROJECT-BASE beside the old one].")
def patch_refresh(series: str, onto: str, source: str, out: str | None) -> Result:
    """Try a series on another tree and say which hunk does not apply; write it anew when all do.

    \b
    envsmith patch refresh patches/verl-1bf9d2d/a100.series --onto COMMIT --source ../verl
    """
    from envsmith.commands.patch_refresh import run as command

    return command(series, onto=onto, source=source, out=out, environ=os.environ)


@verb("check", parent=patch)
@click.argument("series", nargs=-1, metavar="[SERIES]...")
@click.option("--source", "sources", multiple=True, metavar="N=PATH", help="Apply series below N-… to this source.")
def patch_check(series: tuple[str, ...], sources: tuple[str, ...]) -> Result:
    """Check every series and patch below patches/: headers, order, orphans, duplicates, and that they apply.

    \b
    envsmith patch check
    envsmith patch check --source verl=../verl
    """
    from envsmith.commands.patch_check import run as command

    return command(series, sources=sources, environ=os.environ)
