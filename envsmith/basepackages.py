"""What the packages of a vendor's base are, file by file, so that they can be told unchanged. No I/O here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class PackageState:
    """One installed distribution of a base as it is on disk."""

    name: str
    """Canonical."""
    version: str
    info: str
    """Its metadata folder, relative to the base's prefix."""
    record: str | None
    """Sha256 of its RECORD; None when it has none, as what a system's package manager installed."""
    files: str | None
    """Digest over its files, see `files_digest`; None without a RECORD."""
    altered: Mapping[str, str | None] = field(default_factory=dict)
    """Files that are not as RECORD says, by RECORD's own path: their sha256, None where they are missing."""
    editable: str | None = None
    """The source tree of an editable installation."""
    recorded: Mapping[str, str | None] = field(default_factory=dict)
    """Every file that RECORD names, bytecode left out, and the sha256 it names."""


def files_digest(contents: Mapping[str, str | None]) -> str:
    """Digest the files of a distribution: sha256 over a sorted line `path NUL sha256 LF` for each.

    Paths are those of RECORD, relative to the folder that imports start from, so the digest does not depend on where
    the base lies. Bytecode is left out, because Python writes it anew. A missing file has an empty sha256.
    """
    lines = (f"{path}\0{contents[path] or ''}\n" for path in sorted(contents))
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()
