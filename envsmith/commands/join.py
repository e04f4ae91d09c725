"""`envsmith join`: one whole bundle out of a delta and its base, byte for byte what a full one would have been."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from envsmith.commands.bundles import Opened, layout_of, open_bundle
from envsmith.commands.composing import Composed, Side, stored, write
from envsmith.commands.envs import shown
from envsmith.commands.importing import bring_in
from envsmith.commands.outputs import output_of
from envsmith.commands.result import Result
from envsmith.commands.screen import Screen
from envsmith.commands.supplies import Supplies, open_supplies
from envsmith.errors import InputError, Problem
from envsmith.plan import megabytes
from envsmith.tools.layout import read_small
from envsmith.tools.layout_writing import BytesContent, Content
from envsmith.tools.storeusage import using


def run(
    words: tuple[str, ...], *, out: str, max_size: str | None, environ: Mapping[str, str], screen: Screen
) -> Result:
    """Join; the last bundle is the one that becomes whole, those before it are what it lacks.

    Raises:
        SupplyError: `bundle-base-missing` with the digest of the base.
        IntegrityError: a damaged bundle.
        InputError: `bundle-output-unusable`, `max-size-malformed`.
    """
    target = output_of(out, max_size, words)
    supplies = open_supplies(environ, stacks=None, screen=screen, offline=True, sources=())
    with contextlib.ExitStack() as stack:
        stack.enter_context(using(supplies.store, screen.message))
        layouts = [stack.enter_context(layout_of(word, screen, supplies.store)) for word in words]
        opened = _delta_of([open_bundle(layout) for layout in layouts])
        bases = [layout for layout in layouts if layout is not opened.layout]
        done = bring_in(opened, supplies, bases)
        composed = whole(opened, supplies)
        target.require(composed.sha256, opened.manifest.stack)
        written = composed.written()
        files = write(target.path, written, target.part_bytes, screen)
    return Result(
        command="join",
        data={
            "path": str(target.path),
            "files": [str(file) for file in files],
            "digest": f"sha256:{composed.sha256}",
            "blobs": len(written.blobs),
            "bytes": written.size,
            "rebuilt": done.rebuilt,
            "from_base": done.from_base,
        },
        text=(
            f"{shown(target.path)}: {len(written.blobs)} blobs, {megabytes(written.size)}\n"
            f"digest: sha256:{composed.sha256}"
        ),
    )


def _delta_of(bundles: list[Opened]) -> Opened:
    """The one bundle that becomes whole: the delta, else the last."""
    deltas = [one for one in bundles if one.bundle.entry.base is not None]
    if len(deltas) > 1:
        tops = [one for one in deltas if one.sha256 not in {d.bundle.entry.base for d in deltas}]
        if len(tops) != 1:
            message = f"{len(deltas)} of these bundles are deltas, and none of them is the last of a chain"
            raise InputError(Problem(code="join-ambiguous", message=message, hint="join one delta with its base"))
        return tops[0]
    return deltas[0] if deltas else bundles[-1]


def whole(opened: Opened, supplies: Supplies) -> Composed:
    """A bundle whose blobs are all in the store, with its signatures, ready to be written."""
    sides: tuple[Side, ...] = ()
    signatures = opened.signatures
    if signatures is not None:
        entry = signatures.entry
        data = read_small(opened.layout, entry.sha256, entry.size, "signatures")
        contents: dict[str, Content] = {
            one.sha256: BytesContent(data=read_small(opened.layout, one.sha256, one.size, one.title or "signatures"))
            for one in signatures.manifest.blobs
        }
        sides = (Side(data=data, contents=contents),)
    tag = opened.bundle.entry.tag or None
    return stored(opened.manifest_bytes, opened.manifest, supplies.store, sides, tag)
