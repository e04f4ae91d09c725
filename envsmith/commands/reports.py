"""The papers of a bundle: the bill of materials, and the sheet for the officer who must approve it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from envsmith import __version__
from envsmith.bundle import PYTHON, SDIST, SOURCE, WHEEL, Descriptor
from envsmith.commands.patchfiles import PatchSet
from envsmith.commands.supplies import Supplies
from envsmith.commands.workspace import Workspace
from envsmith.errors import IntegrityError
from envsmith.licences import Licence, licence_of
from envsmith.lock import File, Lock, Wheel, digest
from envsmith.officer_sheet import SheetEnv, SheetInput, sheet
from envsmith.sbom import Component, Known, Subject, components_of, cyclonedx, render

SBOM_TITLE = "reports/sbom.cdx.json"
SHEET_TITLE = "MANIFEST.md"
_NATIVE_PLATFORMS = ("linux", "manylinux", "musllinux")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported:
    """What the papers are about."""

    workspace: Workspace
    locks: Mapping[str, tuple[Lock, str]]
    """Env to lock and its text."""
    patches: Sequence[PatchSet]
    sources: Mapping[str, File]
    """Source to its git bundle."""
    tools: tuple[Wheel, ...]
    layers: tuple[Descriptor, ...]
    versions: Mapping[str, str]
    version: str
    notes: tuple[str, ...] = ()


def reports_of(reported: Reported, supplies: Supplies) -> tuple[tuple[str, str, str], ...]:
    """Return (kind, title, text) of every paper.

    Raises:
        IntegrityError: `wheel-malformed` for a wheel without readable METADATA.
    """
    known = _known(reported, supplies)
    parts = [part for lock, _ in reported.locks.values() for part in components_of(lock, known)]
    parts += [_tool(wheel, known) for wheel in reported.tools]
    parts += [_interpreter(layer) for layer in reported.layers if layer.media_type == PYTHON]
    stack = reported.workspace.stack.stack.name
    targets = {
        env: f"Python {lock.target.python}, {lock.target.arch}, glibc {lock.target.glibc}"
        for env, (lock, _) in reported.locks.items()
    }
    subject = Subject(name=stack, version=reported.version, envs=targets, envsmith=__version__)
    bill = render(cyclonedx(parts, subject=subject))
    return (("json", SBOM_TITLE, bill), ("md", SHEET_TITLE, sheet(_sheet_input(reported, parts))))


def _sheet_input(reported: Reported, parts: Iterable[Component]) -> SheetInput:
    stack = reported.workspace.stack
    listed = (WHEEL, SDIST, SOURCE, PYTHON)
    others = tuple(
        File(filename=layer.title, size=layer.size, sha256=layer.sha256)
        for layer in reported.layers
        if layer.media_type not in listed
    )
    envs = tuple(
        SheetEnv(
            name=env,
            target=lock.target,
            lock_sha256=digest(text),
            conflicts=lock.conflicts,
            base=base.python if (base := stack.env[env].base) else None,
        )
        for env, (lock, text) in reported.locks.items()
    )
    return SheetInput(
        stack=stack.stack.name,
        summary=stack.stack.summary,
        envs=envs,
        driver=stack.host.driver,
        versions=reported.versions,
        components=tuple(parts),
        others=others,
        notes=reported.notes,
    )


def _known(reported: Reported, supplies: Supplies) -> Known:
    licences: dict[str, Licence] = {}
    native: dict[str, bool] = {}
    for wheel in _wheels(reported):
        licences[wheel.sha256] = _licence(wheel, supplies)
        native[wheel.sha256] = wheel.filename.removesuffix(".whl").rpartition("-")[2].startswith(_NATIVE_PLATFORMS)
    patches = {
        locked.path: patch
        for one in reported.patches
        for locked, patch in zip((p for s in one.series for p in s.patches), one.patches, strict=True)
    }
    recipes = reported.workspace.stack.env
    urls = {name: source.git for env in reported.locks for name, source in recipes[env].source.items() if source.git}
    return Known(licences=licences, native=native, patches=patches, urls=urls, files=reported.sources)


def _wheels(reported: Reported) -> Iterable[Wheel]:
    for lock, _ in reported.locks.values():
        yield from lock.wheels
        yield from lock.build_requires
    yield from reported.tools


def _licence(wheel: Wheel, supplies: Supplies) -> Licence:
    from envsmith.tools.wheel import read_metadata

    with supplies.work("licence") as work:
        named = work / wheel.filename
        named.symlink_to(supplies.store.blob_path(wheel.sha256))
        try:
            return licence_of(read_metadata(named))
        except IntegrityError:
            return Licence()  # a wheel that cannot be read is refused where it is installed or checked


def _tool(wheel: Wheel, known: Known) -> Component:
    return Component(
        kind="tool" if wheel.name in ("envsmith", "uv") else "library",
        name=wheel.name,
        version=wheel.version,
        filename=wheel.filename,
        size=wheel.size,
        sha256=wheel.sha256,
        licence=known.licences.get(wheel.sha256, Licence()),
        native=known.native.get(wheel.sha256),
    )


def _interpreter(layer: Descriptor) -> Component:
    version = layer.name.split("-")[1] if layer.name.count("-") >= 2 else None
    return Component(
        kind="interpreter",
        name="cpython",
        version=version,
        filename=layer.name,
        size=layer.size,
        sha256=layer.sha256,
        envs=layer.envs,
        native=True,
    )
