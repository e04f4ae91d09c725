"""Which wheel that this machine knows holds a given file: the store's wheels by their own RECORDs, nothing unpacked."""

from __future__ import annotations

import time
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from envsmith.recorded import parse_rows
from envsmith.tools.store import Store

#: What looking for an explanation may cost, in seconds; a large store is not read to its end.
BUDGET_S = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """A wheel that holds a file."""

    name: str
    version: str
    member: str


def known_wheels(
    store: Store, wanted: Collection[str], *, first: Collection[str] = (), budget_s: float = BUDGET_S
) -> Mapping[str, Known]:
    """Find for each sha256 in `wanted` a wheel in the store that holds a file of that content.

    Wheels of the projects in `first` (canonical names) are read first. What a RECORD says of its own wheel is believed:
    the answer explains, it proves nothing.
    """
    started, left = time.monotonic(), set(wanted)
    found: dict[str, Known] = {}
    for project, version, sha256 in sorted(_wheels(store), key=lambda wheel: (wheel[0] not in first, wheel)):
        if not left or time.monotonic() - started > budget_s:
            break
        for digest, member in _contents(store, sha256).items():
            if digest in left:
                found[digest] = Known(name=project, version=version, member=member)
                left.discard(digest)
    return found


def _wheels(store: Store) -> list[tuple[str, str, str]]:
    found = []
    for sha256, _ in store.blobs():
        try:
            name, version, _, _ = parse_wheel_filename(store.facts(sha256).get("name", ""))
        except (InvalidWheelFilename, ValueError):
            continue
        found.append((str(canonicalize_name(name)), str(version), sha256))
    return found


def _contents(store: Store, sha256: str) -> dict[str, str]:
    """The files of a wheel by their sha256."""
    try:
        with zipfile.ZipFile(store.blob_path(sha256)) as archive:
            record = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
            text = archive.read(record).decode("utf-8", "replace")
    except (OSError, zipfile.BadZipFile, StopIteration, RuntimeError, NotImplementedError):
        return {}
    return {row.sha256: row.path for row in parse_rows(text, "") if row.sha256}
