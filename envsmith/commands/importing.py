"""Bringing the blobs of a bundle into the store: every byte of the bundle is read and proven on the way."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from envsmith.bundle import DELTA_BASE, DELTA_RESULT, Descriptor
from envsmith.bundlecheck import judge_layout
from envsmith.commands.bundles import (
    Opened,
    layout_of,
    open_bundle,
    require_trust,
    signatures_of,
    site_signers,
)
from envsmith.commands.deltas import applied
from envsmith.commands.supplies import Supplies
from envsmith.commands.unbundled import git_sources
from envsmith.errors import IntegrityError, Problem, SupplyError
from envsmith.tools.files import filesystem, free_bytes
from envsmith.tools.layout import Layout, Spooled, copy_blob, malformed, read_small, root_files
from envsmith.tools.progress import Progress
from envsmith.tools.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """What an import did."""

    copied: int
    known: int
    """Blobs that the store had already; they were read in the bundle all the same."""
    rebuilt: int
    from_base: int


def bring_in(opened: Opened, supplies: Supplies, bases: Iterable[Layout] = ()) -> Imported:
    """Verify a bundle and have all of its blobs in the store.

    What a delta leaves out is taken from the store or from the bases, and wheels are rebuilt.

    Raises:
        IntegrityError: `bundle-blob-missing`, `bundle-blob-corrupt`, `bundle-file-differs` and their kin.
        SupplyError: `bundle-base-missing` with the digest of the base; `delta-not-reproducible`; `disk-full`.
    """
    layout, store = opened.layout, supplies.store
    problems = list(judge_layout(opened.laid, layout.sizes, root_files(layout), layout.others, layout.where))
    if problems:
        raise IntegrityError(*problems)
    for one in opened.signatures.manifest.blobs if opened.signatures else ():
        read_small(layout, one.sha256, one.size, one.title or "config of the signatures")
    titles = {one.sha256: one.title or "config" for one in opened.manifest.blobs}
    here = [one for one in opened.manifest.blobs if one.sha256 not in opened.bundle.omitted]
    deltas = opened.deltas
    side = list(deltas.manifest.layers) if deltas else []
    _require_room([*here, *side], store)
    known = _copy_all(layout, [*here, *side], store, supplies.screen)
    absent = [one for one in opened.manifest.blobs if one.sha256 in opened.bundle.omitted]
    rebuilt = {_result(one): one for one in side}
    stray = next((one.title for sha256, one in rebuilt.items() if sha256 not in titles), None)
    if stray is not None:
        raise malformed(f"the delta `{stray}` makes nothing of this bundle", layout.where)
    from_base = _from_bases([one for one in absent if one.sha256 not in rebuilt], opened, bases, store, supplies)
    for sha256, delta in rebuilt.items():
        if not store.holds(sha256):
            supplies.screen.say(f"rebuild {titles[sha256].rpartition('/')[2]}")
            _rebuild(delta, opened, bases, supplies)
    return Imported(copied=len(here) + len(side) - known, known=known, rebuilt=len(rebuilt), from_base=from_base)


def _copy_all(layout: Layout, blobs: list[Descriptor], store: Store, progress: Progress) -> int:
    """Read every blob, and keep those that the store lacks; return how many it had."""
    if isinstance(layout, Spooled) and layout.store is store:
        return len(blobs)  # each was hashed when it came through the pipe
    gate = threading.Lock()

    def counted(count: int) -> None:
        with gate:
            progress.advance(count)

    progress.start(sum(one.size for one in blobs), len(blobs))
    try:
        with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
            return sum(done.result() for done in [pool.submit(_copy, layout, one, store, counted) for one in blobs])
    finally:
        progress.done()


def _copy(layout: Layout, one: Descriptor, store: Store, counted: Callable[[int], None]) -> bool:
    """Read one blob of a layout; say whether the store had it, and mend a store that has it wrong."""
    what = one.title or "config"
    if store.has(one.sha256, one.size) and _agrees(layout, one, store, counted):
        return True
    with store.receiving(one.sha256) as receiver:
        copy_blob(layout, one.sha256, one.size, what, receiver.write, counted)
        receiver.commit(name=one.name or None)
    return False


def _agrees(layout: Layout, one: Descriptor, store: Store, counted: Callable[[int], None]) -> bool:
    """Read a blob in the bundle and in the store at once; one that differs in the store is moved aside."""
    path = store.blob_path(one.sha256)
    equal = True
    with filesystem(path), path.open("rb") as kept:

        def compare(data: memoryview) -> None:
            nonlocal equal
            equal = equal and kept.read(len(data)) == bytes(data)

        copy_blob(layout, one.sha256, one.size, one.title or "config", compare, counted)
    if not equal:
        with contextlib.suppress(IntegrityError):
            store.verify(one.sha256)
    return equal


def _from_bases(
    absent: list[Descriptor], opened: Opened, bases: Iterable[Layout], store: Store, supplies: Supplies
) -> int:
    missing: list[Descriptor] = []
    count = 0
    for one in absent:
        if store.holds(one.sha256):
            continue
        base = next((layout for layout in bases if one.sha256 in layout.sizes), None)
        if base is None:
            missing.append(one)
            continue
        _copy(base, one, store, supplies.screen.advance)
        count += 1
    if missing:
        raise _base_missing(opened, [one.title or "config" for one in missing])
    return count


def _rebuild(delta: Descriptor, opened: Opened, bases: Iterable[Layout], supplies: Supplies) -> None:
    old = delta.annotations[DELTA_BASE].removeprefix("sha256:")
    store = supplies.store
    with supplies.work("rebuild") as work:
        path = store.blob_path(old)
        if not store.holds(old):
            base = next((layout for layout in bases if old in layout.sizes), None)
            if base is None:
                raise _base_missing(opened, [delta.title])
            path = work / old
            with filesystem(path), path.open("wb") as stream:
                copy_blob(base, old, base.sizes[old], f"the older wheel of {delta.title}", stream.write)
        applied(delta, store.blob_path(delta.sha256), Path(path), supplies, work)


def _result(delta: Descriptor) -> str:
    return delta.annotations[DELTA_RESULT].removeprefix("sha256:")


def _base_missing(opened: Opened, titles: list[str]) -> SupplyError:
    listed = ", ".join(f"`{title}`" for title in titles[:3]) + (", …" if len(titles) > 3 else "")
    return SupplyError(
        Problem(
            code="bundle-base-missing",
            message=f"this bundle holds only what its base lacks, and {len(titles)} files are not here: {listed}",
            where=opened.layout.where,
            expected=f"the bundle sha256:{opened.bundle.entry.base}",
            hint="install that bundle first, or name it with `--base`; `envsmith join` makes one whole bundle of both",
        )
    )


def _require_room(blobs: Iterable[Descriptor], store: Store) -> None:
    """Fail before the first byte rather than after the last that fits."""
    from envsmith.tools.files import disk_full

    needed = sum(one.size for one in blobs if not store.has(one.sha256, one.size))
    if needed > free_bytes(store.home):
        raise SupplyError(disk_full(store.home, needed, "it would not hold what the bundle brings"))


@dataclass(frozen=True, kw_only=True, slots=True)
class BundleSupply:
    """A bundle whose blobs are in the store, as a supply of builds."""

    opened: Opened
    store: Store

    def added_to(self, supplies: Supplies, env: str) -> Supplies:
        """Supplies that also know the git sources that it carries for an env."""
        carried = git_sources(self.opened.manifest, env, self.store)
        return replace(supplies, sources={**carried, **supplies.sources})


def bundle_supply(word: str, supplies: Supplies) -> BundleSupply:
    """Open a bundle and have its blobs in the store.

    Raises:
        EnvsmithError: what opening and bringing in raise.
    """
    with layout_of(word, supplies.screen, supplies.store) as layout:
        opened = open_bundle(layout)
        trusted = site_signers(None)
        require_trust(signatures_of(opened, trusted or ()), trusted, layout.where)
        bring_in(opened, supplies)
        return BundleSupply(opened=opened, store=supplies.store)
