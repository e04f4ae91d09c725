"""What a bundle need not carry, because another one does: whole blobs, and wheels that are rebuilt from older ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from envsmith.bundle import DELTA_BASE, DELTA_RESULT, TITLE, WHEEL, WHEEL_DELTA, Descriptor, config_json
from envsmith.commands.bundles import Opened
from envsmith.commands.bundling import Gathered
from envsmith.commands.composing import Side, delta_side
from envsmith.commands.supplies import Supplies
from envsmith.errors import IntegrityError
from envsmith.plan import megabytes
from envsmith.tools.files import filesystem, sha256_file
from envsmith.tools.layout import copy_blob
from envsmith.tools.layout_writing import Content, FileContent

#: Below this a wheel travels whole: a delta saves nothing worth the time.
_SMALL_BYTES = 256 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Rebuilt:
    """A wheel that travels as a delta."""

    title: str
    size: int
    """Bytes of the wheel."""
    delta_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Since:
    """What a delta leaves out, and how it makes up for it."""

    base: str
    """Sha256 of the base's manifest."""
    omitted: frozenset[str]
    rebuilt: tuple[Rebuilt, ...]
    side: Side


def made_since(gathered: Gathered, base: Opened, supplies: Supplies, work: Path) -> Since:
    """Compare a bundle with an older one, and make deltas of the wheels that changed.

    Every delta is proven before it is used: it is applied here, and the result has the digest of the lock.

    Raises:
        IntegrityError: `bundle-blob-corrupt` for a base whose wheel is not what its name says; `delta-result-differs`.
        HostError: `zstd-missing`.
    """
    there = {one.sha256 for one in base.manifest.blobs}
    common = {one.sha256 for one in gathered.manifest.blobs if one.sha256 in there}
    older = [
        one for one in base.manifest.of(WHEEL) if one.sha256 not in {w.sha256 for w in gathered.manifest.of(WHEEL)}
    ]
    layers: list[tuple[Descriptor, Content]] = []
    rebuilt: list[Rebuilt] = []
    for wheel in gathered.manifest.of(WHEEL):
        if wheel.sha256 in common or wheel.size < _SMALL_BYTES:
            continue
        made = _delta(wheel, _nearest(wheel, older), base, supplies, work)
        if made is not None:
            layers.append(made)
            rebuilt.append(Rebuilt(title=wheel.title, size=wheel.size, delta_size=made[0].size))
    results = {one.annotations[DELTA_RESULT].removeprefix("sha256:") for one, _ in layers}
    omitted = frozenset(common | results)
    config = config_json({"base": f"sha256:{base.sha256}", "omitted": sorted(omitted)})
    side = delta_side(gathered.data, config, layers)
    return Since(base=base.sha256, omitted=omitted, rebuilt=tuple(rebuilt), side=side)


def _nearest(wheel: Descriptor, older: list[Descriptor]) -> list[Descriptor]:
    """The older wheels of the same project, those with the same tags first."""
    project = _project(wheel)
    found = [one for one in older if project is not None and _project(one) == project]
    tags = wheel.name.split("-")[-3:]
    return sorted(found, key=lambda one: (one.name.split("-")[-3:] != tags, one.title))


def _project(wheel: Descriptor) -> str | None:
    try:
        return str(parse_wheel_filename(wheel.name)[0])
    except InvalidWheelFilename:
        return None


def _delta(
    wheel: Descriptor, older: list[Descriptor], base: Opened, supplies: Supplies, work: Path
) -> tuple[Descriptor, Content] | None:
    from envsmith.tools.wheeldelta import make_delta

    old = _old_file(older[0], base, supplies, work) if older else None
    if old is None:
        return None
    supplies.screen.say(f"compare {wheel.name} with {older[0].name}")
    out = work / f"{wheel.sha256}.delta"
    new = supplies.store.blob_path(wheel.sha256)
    made = make_delta(old, older[0].sha256, new, wheel.sha256, out, work=work, progress=supplies.screen)
    if made is None:
        supplies.screen.say(f"  {wheel.name} travels whole")
        return None
    supplies.screen.say(f"  {megabytes(made.size)} instead of {megabytes(wheel.size)}")
    with filesystem(out):
        size = out.stat().st_size
    descriptor = Descriptor(
        media_type=WHEEL_DELTA,
        sha256=sha256_file(out),
        size=size,
        annotations={
            TITLE: f"deltas/{wheel.sha256}.delta",
            DELTA_BASE: f"sha256:{older[0].sha256}",
            DELTA_RESULT: f"sha256:{wheel.sha256}",
        },
    )
    return descriptor, FileContent(path=out)


def _old_file(older: Descriptor, base: Opened, supplies: Supplies, work: Path) -> Path | None:
    """The older wheel as a file that was proven: out of the store, else out of the base; None where neither has it."""
    store = supplies.store
    if store.has(older.sha256, older.size):
        try:
            return store.verify(older.sha256)
        except IntegrityError:
            pass
    if older.sha256 not in base.layout.sizes:
        return None
    path = work / older.sha256
    with filesystem(path), path.open("wb") as stream:
        copy_blob(base.layout, older.sha256, older.size, older.title, stream.write)
    return path


def applied(layer: Descriptor, delta: Path, old: Path, supplies: Supplies, work: Path) -> None:
    """Rebuild a wheel from its delta into the store.

    Raises:
        IntegrityError: `delta-malformed`, `delta-base-differs`, `blob-digest-differs`.
        SupplyError: `delta-not-reproducible` where this machine cannot make the same bytes; `delta-base-missing`.
        HostError: `zstd-missing`.
    """
    from envsmith.tools.wheeldelta import apply_delta

    wanted = layer.annotations[DELTA_RESULT].removeprefix("sha256:")
    out = work / f"{wanted}.whl"
    apply_delta(old, delta, out, progress=supplies.screen)
    supplies.store.add_file(out, wanted)
    with filesystem(out):
        out.unlink()
