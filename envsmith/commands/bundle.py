"""`envsmith bundle`: everything that a machine without a network needs to build envs, in one folder or file."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith.commands.bundles import layout_of, open_bundle
from envsmith.commands.bundling import Chosen, Gathered, Gathering, choose
from envsmith.commands.composing import Composed, Side, signature_side, write
from envsmith.commands.deltas import Since, made_since
from envsmith.commands.envs import shown, user_path
from envsmith.commands.freshness import staleness
from envsmith.commands.lock import make_and_write
from envsmith.commands.outputs import Output, output_of
from envsmith.commands.result import Result
from envsmith.commands.screen import Screen
from envsmith.commands.supplies import Supplies, open_supplies, require_git_sources
from envsmith.commands.workspace import Workspace, open_stack, read_lock
from envsmith.errors import NegativeAnswer
from envsmith.plan import megabytes
from envsmith.tools.layout_writing import Written
from envsmith.tools.storeusage import using


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What the command line asks for besides the stack."""

    out: str
    envs: tuple[str, ...] = ()
    with_python: bool = True
    python: str | None = None
    since: str | None = None
    max_size: str | None = None
    sign: str | None = None
    offline: bool = False
    locked: bool = False
    sources: tuple[str, ...] = ()


def run(stack: str, wishes: Wishes, *, environ: Mapping[str, str], screen: Screen) -> Result:
    """Make the bundle.

    Raises:
        InputError: `bundle-output-unusable`, `max-size-malformed`, and what opening stack and key raises.
        NegativeAnswer: a stale lock under `--locked` or `--offline`.
    """
    workspace = open_stack(stack)
    target = output_of(wishes.out, wishes.max_size, [wishes.since] if wishes.since else [])
    supplies = open_supplies(
        environ, stacks=workspace.path.parent, screen=screen, offline=wishes.offline, sources=wishes.sources
    )
    known = {name: source for _, env in workspace.envs(wishes.envs) for name, source in env.source.items()}
    require_git_sources(supplies.sources, known, shown(workspace.path))
    if wishes.sign is not None:
        _require_key(wishes.sign)
    with using(supplies.store, screen.message):
        if wishes.since is None:
            gathered = _gathered(workspace, wishes, supplies)
            target.require(gathered.sha256, gathered.manifest.stack)
            return _finished(gathered, None, target, wishes, supplies)
        with layout_of(wishes.since, screen) as layout, supplies.work("since") as work:
            base = open_bundle(layout)  # before the long work, so that a wrong one is said at once
            gathered = _gathered(workspace, wishes, supplies)
            target.require(gathered.sha256, gathered.manifest.stack)
            since = made_since(gathered, base, supplies, work)
            return _finished(gathered, since, target, wishes, supplies)


def _gathered(workspace: Workspace, wishes: Wishes, supplies: Supplies) -> Gathered:
    chosen = [_chosen(workspace, name, wishes, supplies) for name, _ in workspace.envs(wishes.envs)]
    python = user_path(wishes.python) if wishes.python is not None else None
    gathering = Gathering(workspace, chosen, supplies, with_python=wishes.with_python, python=python)
    return gathering.make()


def _chosen(workspace: Workspace, env: str, wishes: Wishes, supplies: Supplies) -> Chosen:
    stale = staleness(workspace, env)
    if stale is not None:
        if wishes.locked or wishes.offline:
            raise NegativeAnswer(stale)
        make_and_write(workspace, env, supplies)
    present = read_lock(workspace, env)
    assert present is not None
    return choose(workspace, env, *present)


def _finished(gathered: Gathered, since: Since | None, target: Output, wishes: Wishes, supplies: Supplies) -> Result:
    sides = (*_signatures(gathered, wishes, supplies), *([since.side] if since else ()))
    composed = Composed(
        data=gathered.data,
        contents=gathered.contents,
        root=gathered.root_files(),
        sides=sides,
        base=since.base if since else None,
        omitted=since.omitted if since else frozenset(),
    )
    written = composed.written()
    files = write(target.path, written, target.part_bytes, supplies.screen)
    for note in gathered.notes:
        supplies.screen.say(f"note: {note}")
    return Result(
        command="bundle",
        data=_data(gathered, since, written, files, target.path),
        text=_text(gathered, since, written, files, target.path),
    )


def _signatures(gathered: Gathered, wishes: Wishes, supplies: Supplies) -> tuple[Side, ...]:
    if wishes.sign is None:
        return ()
    from envsmith.tools.signer import sign

    supplies.screen.say("sign the manifest")
    return (signature_side(gathered.data, [sign(gathered.data, user_path(wishes.sign), supplies.environ)]),)


def _require_key(sign: str) -> None:
    """Refuse a key that cannot sign before anything is fetched."""
    from envsmith.tools.signer import public_key

    public_key(user_path(sign))


def _data(
    gathered: Gathered, since: Since | None, written: Written, files: tuple[Path, ...], target: Path
) -> dict[str, Any]:
    manifest = gathered.manifest
    return {
        "path": str(target),
        "files": [str(file) for file in files],
        "digest": f"sha256:{gathered.sha256}",
        "stack": manifest.stack,
        "version": manifest.version,
        "locks": manifest.locks,
        "blobs": len(written.blobs),
        "bytes": written.size,
        "base": f"sha256:{since.base}" if since else None,
        "omitted": len(since.omitted) if since else 0,
        "rebuilt": [
            {"title": one.title, "bytes": one.size, "delta_bytes": one.delta_size}
            for one in (since.rebuilt if since else ())
        ],
        "notes": list(gathered.notes),
    }


def _text(gathered: Gathered, since: Since | None, written: Written, files: tuple[Path, ...], target: Path) -> str:
    manifest = gathered.manifest
    envs = ", ".join(f"{manifest.stack}/{env}" for env in manifest.locks)
    lines = [
        f"{shown(target)}: {envs}, {len(written.blobs)} blobs, {megabytes(written.size)}",
        f"digest: sha256:{gathered.sha256}",
    ]
    if since is not None:
        lines.append(f"delta:  needs the bundle sha256:{since.base}; wheels rebuilt from it: {len(since.rebuilt)}")
    if len(files) > 1:
        lines.append(f"parts:  {len(files) - 1}, and {files[-1].name}")
    if since is not None:
        lines.append(f"on the target: envsmith install {shlex.quote(shown(target))} --root DIR --base THE_OLD_BUNDLE")
    else:
        words = _install_words(target, split=len(files) > 1)
        lines.append(f"on the target: {words} --expect sha256:{gathered.sha256}")
    return "\n".join(lines)


def _install_words(target: Path, *, split: bool) -> str:
    place = shlex.quote(shown(target))
    if target.suffix != ".tar":
        return f"sh {place}/install.sh --root DIR"
    unpack = f"cat {place}.part* | tar -xf - -C b" if split else f"tar -xf {place} -C b"
    return f"mkdir b && {unpack} && sh b/install.sh --root DIR"
