"""Packages that share their name with others: whose `__init__` only looks for the other portions of it."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from envsmith.manifest import Entry, importable

#: The two old ways; source: "Packaging namespace packages", packaging.python.org (read 2026-11-30).
_EXTENDS = re.compile(rb"\bextend_path\s*\(|\bdeclare_namespace\s*\(")
#: With a licence above it; real code is longer.
_LIMIT_BYTES = 4096


def extending_in_wheels(wheels: Iterable[Path], site: Collection[str]) -> Iterator[str]:
    """The sha256 of every such `__init__` in wheels, of the packages that `site` names."""
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if member.file_size <= _LIMIT_BYTES and _is_init(member.filename, site):
                    yield from _judged(archive.read(member))


def extending_on_disk(
    root: Path, entries: Iterable[Entry], folders: Iterable[str], site: Collection[str]
) -> Iterator[str]:
    """The same of files below `root` that lie in one of `folders`."""
    places = tuple(f"{folder}/" for folder in folders)
    for entry in entries:
        rest = next((entry.path[len(place) :] for place in places if entry.path.startswith(place)), None)
        if rest is not None and entry.size <= _LIMIT_BYTES and _is_init(rest, site):
            try:
                yield from _judged((root / entry.path).read_bytes())
            except OSError:
                continue


def _is_init(path: str, site: Collection[str]) -> bool:
    found = importable(re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", path))
    return found is not None and path.endswith("/__init__.py") and found[0] in site


def _judged(data: bytes) -> Iterator[str]:
    if _EXTENDS.search(data):
        yield hashlib.sha256(data).hexdigest()
