"""What the locked wheels and sources declare, read without downloading a wheel where the index can do that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from envsmith.commands.supplies import Supplies
from envsmith.conflicts import Declaration
from envsmith.lock import LockedSource, Wheel
from envsmith.tools.backend import parse_metadata
from envsmith.tools.candidates import Known, metadata_of


def declared(
    wheels: Iterable[Wheel], sources: Iterable[LockedSource], locations: Mapping[str, str], supplies: Supplies
) -> dict[str, Declaration]:
    """Return the declarations by canonical name.

    `locations` maps the sha256 of a wheel to the URL or path that the resolution named.
    """
    supply, store = supplies.supply(), supplies.store

    def read(wheel: Wheel) -> Declaration:
        known = Known(**asdict(wheel.file))
        location = locations.get(wheel.sha256)
        metadata = parse_metadata(metadata_of(known, wheel.name, location, supply, store, transport))
        return Declaration(name=wheel.name, version=wheel.version, requires=metadata.requires)

    with supply.transport() as transport, ThreadPoolExecutor(max_workers=16) as pool:
        found = {declaration.name: declaration for declaration in pool.map(read, wheels)}
    for source in sources:
        found[source.project] = Declaration(
            name=source.project,
            version=source.version,
            requires=source.requires,
            requires_python=source.requires_python,
        )
    return found
