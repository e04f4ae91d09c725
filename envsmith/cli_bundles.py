"""Verbs about bundles, registries and the store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from envsmith.cli_group import VerbGroup, group, linux_only, screen, settle, shared_options, verb

if TYPE_CHECKING:
    from envsmith.commands.result import Result


@verb("bundle")
@click.argument("stack")
@click.option("--env", "envs", multiple=True, metavar="E", help="Only this env; may be given again.")
@click.option("-o", "--output", "out", required=True, metavar="PATH", help="A folder, or one file ending in .tar.")
@click.option("--no-python", is_flag=True, help="Leave the interpreter out; the target has one.")
@click.option("--python", metavar="PATH", help="Carry this interpreter: a prefix, an executable or an archive.")
@click.option("--since", metavar="BUNDLE", help="Write only what this bundle lacks; wheels travel as exact deltas.")
@click.option("--max-size", metavar="SIZE", help="Split the .tar into parts of at most this size, such as 3900M.")
@click.option("--sign", metavar="KEY", help="Sign with this OpenSSH ed25519 key; a .pub asks the agent.")
@click.option("--source", "sources", multiple=True, metavar="N=PATH", help="Take the git source N from here.")
@click.option("--locked", is_flag=True, help="Stop when the lock is missing or older than its recipe.")
@click.option("--offline", is_flag=True, help="Never try the network.")
def bundle(
    stack: str,
    envs: tuple[str, ...],
    out: str,
    no_python: bool,
    python: str | None,
    since: str | None,
    max_size: str | None,
    sign: str | None,
    sources: tuple[str, ...],
    locked: bool,
    offline: bool,
) -> Result:
    """Pack everything that a machine without a network needs to build the envs of STACK.

    \b
    envsmith bundle a100 -o a100.tar --sign ~/.ssh/id_ed25519
    envsmith bundle a100 --env rl -o /mnt/usb/a100.tar --max-size 3900M
    envsmith bundle a100 -o a100-new.tar --since a100-old.tar      only what is new
    """
    from envsmith.commands.bundle import Wishes
    from envsmith.commands.bundle import run as command

    linux_only("bundle")
    wishes = Wishes(
        out=out,
        envs=envs,
        with_python=not no_python,
        python=python,
        since=since,
        max_size=max_size,
        sign=sign,
        offline=offline,
        locked=locked,
        sources=sources,
    )
    return command(stack, wishes, environ=os.environ, screen=screen())


@verb("install")
@click.argument("bundle", metavar="BUNDLE")
@click.option("--root", metavar="DIR", help="Where envs are built [default: $ENVSMITH_ROOT or .envsmith/envs].")
@click.option("--env", "envs", multiple=True, metavar="E", help="Only this env; may be given again.")
@click.option("--trust", metavar="FILE", help="Keys to accept signatures of [default: /etc/envsmith/allowed_signers].")
@click.option("--expect", metavar="sha256:…", help="The digest of the bundle, said over another channel.")
@click.option("--base", "bases", multiple=True, metavar="BUNDLE", help="The bundle that a delta was made from.")
@click.option("--tag", metavar="TAG", help="Which bundle, where a folder holds several.")
@click.option("--allow-older", is_flag=True, help="Go back to an older version of the stack.")
@click.option("--rebuild", is_flag=True, help="Build anew beside an env that stands, for one that has drifted.")
def install(
    bundle: str,
    root: str | None,
    envs: tuple[str, ...],
    trust: str | None,
    expect: str | None,
    bases: tuple[str, ...],
    tag: str | None,
    allow_older: bool,
    rebuild: bool,
) -> Result:
    """Verify a bundle and build its envs; no network is ever tried.

    BUNDLE is a folder, a .tar, the first part of a split one, or `-` for a tar on stdin.

    \b
    envsmith install a100.tar --root /data/envs --trust site_signers
    cat a100.tar.part* | envsmith install - --root /data/envs --expect sha256:…
    """
    from envsmith.commands.install import Wishes
    from envsmith.commands.install import run as command

    linux_only("install")
    wishes = Wishes(
        root=root,
        envs=envs,
        trust=trust,
        expect=expect,
        tag=tag,
        bases=bases,
        allow_older=allow_older,
        rebuild=rebuild,
    )
    return command(bundle, wishes, environ=os.environ, screen=screen())


@verb("inspect")
@click.argument("bundle", metavar="BUNDLE|EVIDENCE")
@click.option("--check", "check_all", is_flag=True, help="Read every byte and compare it with its digest.")
@click.option("--trust", metavar="FILE", help="Keys to accept signatures of [default: /etc/envsmith/allowed_signers].")
@click.option("--tag", metavar="TAG", help="Which bundle, where a folder holds several.")
@click.option("--expect", metavar="sha256:…", help="The digest of the whole, said over another channel.")
def inspect(bundle: str, check_all: bool, trust: str | None, tag: str | None, expect: str | None) -> Result:
    """Say what a bundle or an evidence folder holds, where it comes from and who signed it.

    \b
    envsmith inspect a100.tar
    envsmith inspect a100.tar --check     exit code 5 for every kind of damage
    envsmith inspect evidence --check     the same for what `smoke --evidence` wrote
    """
    from envsmith.commands.inspect import run as command

    return command(bundle, check=check_all, trust=trust, tag=tag, expect=expect, screen=screen())


@verb("join")
@click.argument("bundles", nargs=-1, required=True, metavar="BUNDLE...")
@click.option("-o", "--output", "out", required=True, metavar="PATH", help="A folder, or one file ending in .tar.")
@click.option("--max-size", metavar="SIZE", help="Split the .tar into parts of at most this size, such as 3900M.")
def join(bundles: tuple[str, ...], out: str, max_size: str | None) -> Result:
    """Make one whole bundle of a delta and its base, or bring a bundle into another form.

    \b
    envsmith join a100-old.tar a100-new.tar -o a100.tar    the delta's bundle, byte for byte
    envsmith join a100.tar -o a100                         unpacked, and verified on the way
    """
    from envsmith.commands.join import run as command

    return command(bundles, out=out, max_size=max_size, environ=os.environ, screen=screen())


@verb("push")
@click.argument("bundle", metavar="BUNDLE")
@click.argument("place", metavar="oci://HOST/REPOSITORY:TAG")
@click.option("--mount-from", multiple=True, metavar="REPOSITORY", help="Take blobs from this repository there, too.")
@click.option("--plain-http", is_flag=True, help="Speak http, not https; for a registry on a trusted wire only.")
@click.option("--tag", metavar="TAG", help="Which bundle, where a folder holds several.")
def push(bundle: str, place: str, mount_from: tuple[str, ...], plain_http: bool, tag: str | None) -> Result:
    """Bring a bundle into an OCI registry; only blobs that it lacks are sent.

    \b
    envsmith push a100.tar oci://registry.site:5000/train/a100:3
    """
    from envsmith.commands.transfer import push as command

    return command(
        bundle, place, mount_from=mount_from, plain_http=plain_http, tag=tag, environ=os.environ, screen=screen()
    )


@verb("pull")
@click.argument("words", nargs=-1, required=True, metavar="oci://HOST/REPOSITORY:TAG [PATH]")
@click.option("-o", "--output", "out", metavar="PATH", help="A folder, or one file ending in .tar.")
@click.option("--max-size", metavar="SIZE", help="Split the .tar into parts of at most this size, such as 3900M.")
@click.option("--plain-http", is_flag=True, help="Speak http, not https; for a registry on a trusted wire only.")
def pull(words: tuple[str, ...], out: str | None, max_size: str | None, plain_http: bool) -> Result:
    """Bring a bundle from an OCI registry; only blobs that are not here are fetched.

    \b
    envsmith pull oci://registry.site:5000/train/a100:3 -o a100
    """
    from envsmith.commands.transfer import pull as command

    return command(words, out=out, max_size=max_size, plain_http=plain_http, environ=os.environ, screen=screen())


@group.group("store", cls=VerbGroup, invoke_without_command=True, no_args_is_help=False)
@shared_options
@click.pass_context
def store(ctx: click.Context, as_json: bool, quiet: int, verbose: int, color: str | None) -> None:
    """Say what the store keeps and for whom, and free what nothing needs."""
    settle(ctx.find_root().ensure_object(dict), as_json=as_json, quiet=quiet, verbose=verbose, color=color)
    if ctx.invoked_subcommand is None:
        raise click.UsageError(f"say which: {', '.join(store.commands)}", ctx)


@verb("list", parent=store)
def store_list() -> Result:
    """List what the store keeps, for whom, and what a collection would free; nothing is written."""
    from envsmith.commands.store_verbs import list_store

    return list_store(environ=os.environ, screen=screen())


@verb("gc", parent=store)
@click.option("--dry-run", is_flag=True, help="Say what would be freed and free nothing.")
@click.option(
    "--keep-days",
    type=click.FloatRange(min=0),
    metavar="N",
    help="Keep what is younger than N days [default: an hour].",
)
def store_gc(dry_run: bool, keep_days: float | None) -> Result:
    """Free what nothing in use names; a run that uses the store is waited for."""
    from envsmith.commands.store_verbs import collect

    linux_only("store gc")
    return collect(dry_run=dry_run, keep_days=keep_days, environ=os.environ, screen=screen())
