"""Files that a lock is being made of: their metadata without their bytes, sdists by version, sizes and hashes.

Only locking asks here; a build knows every file by name, size and sha256 already.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import InvalidSdistFilename, canonicalize_name, parse_sdist_filename
from packaging.version import InvalidVersion, Version

from envsmith.errors import Problem, SupplyError
from envsmith.tools.download import download_all
from envsmith.tools.files import filesystem, sha256_file, write_atomic
from envsmith.tools.index import (
    Item,
    Location,
    Supply,
    fetch_metadata,
    index_urls,
    listed_files,
    local_folder,
    metadata_at,
    metadata_in,
)
from envsmith.tools.progress import Progress
from envsmith.tools.store import Store
from envsmith.tools.transport import Auth, Transport, same_origin, split_auth


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """A file with its size and sha256, and where it was seen."""

    filename: str
    size: int
    sha256: str


def metadata_of(
    known: Known, name: str, location: str | None, supply: Supply, store: Store, transport: Transport
) -> bytes:
    """Return the METADATA of a wheel, from the store, a note of an earlier lock, or as few bytes as its place allows.

    `location` is the URL or path that a resolution named; without one the configured places are asked.

    Raises:
        SupplyError: it cannot be had.
        IntegrityError: it is no wheel.
    """
    note = store.home / "metadata" / known.sha256
    if store.has(known.sha256, known.size):
        with filesystem(store.blob_path(known.sha256)), store.blob_path(known.sha256).open("rb") as stream:
            return metadata_in(stream, known.filename)
    try:
        return note.read_bytes()
    except OSError:
        pass
    if location is not None and location.startswith("/"):
        with filesystem(Path(location)), Path(location).open("rb") as stream:
            return metadata_in(stream, known.filename)
    if location is not None and not supply.offline:
        plain, auth = split_auth(location)
        place = Location(url=plain, auth=auth or _auth_for(plain, supply), has_metadata=True)
        data = metadata_at(place, known.filename, transport)
    else:
        data = fetch_metadata(supply, name, known.filename, known.sha256, known.size, store=store, transport=transport)
    with filesystem(note):
        note.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(note, data)
    return data


def _auth_for(url: str, supply: Supply) -> Auth | None:
    """Credentials of the index that a file URL belongs to: uv writes file URLs without them."""
    for index in (supply.index_url, *supply.extra_indexes):
        plain, auth = split_auth(index) if index else ("", None)
        if auth and same_origin(url, plain):
            return auth
    return None


def find_sdist(supply: Supply, store: Store, name: str, version: str, progress: Progress) -> Known:
    """Find the one sdist of a version, bring it into the store and state its size and sha256.

    Raises:
        SupplyError: `sdist-not-found` naming where it was looked for.
    """
    looked: list[str] = []
    with supply.transport() as transport:
        for filename, sha256, path in _sdists(supply, name, version, transport, looked):
            if path is not None:
                digest = store.add_file(path, name=filename)
                return Known(filename=filename, size=path.stat().st_size, sha256=digest)
            if sha256 is not None:
                item = Item(name=name, filename=filename, size=None, sha256=sha256)
                download_all([item], supply, store, progress=progress)
                size = store.blob_path(sha256).stat().st_size
                return Known(filename=filename, size=size, sha256=sha256)
            looked.append(f"{filename} (the index states no sha256, so it cannot be pinned)")
    raise SupplyError(
        Problem(
            code="sdist-not-found",
            message=f"there is no sdist of `{name}` {version}",
            where="; ".join(looked) or "nowhere: no folder and no index is configured",
            hint="name a mirror or a folder that has it with ENVSMITH_INDEX or ENVSMITH_FIND_LINKS",
        )
    )


def _sdists(
    supply: Supply, name: str, version: str, transport: Transport, looked: list[str]
) -> Iterator[tuple[str, str | None, Path | None]]:
    """(file name, sha256 when the index states it, path when it lies on a disk)."""
    for place in supply.find_links:
        folder = local_folder(place)
        looked.append(str(folder or place))
        for path in sorted(folder.iterdir()) if folder and folder.is_dir() else ():
            if _is_sdist(path.name, name, version):
                yield path.name, None, path
    for index in index_urls(supply):
        for file in listed_files(index, name, supply, transport, looked):
            if _is_sdist(file.filename, name, version):
                local = local_folder(file.url)
                yield file.filename, file.sha256, local


def _is_sdist(filename: str, name: str, version: str) -> bool:
    try:
        found, stated = parse_sdist_filename(filename)
        return found == canonicalize_name(name) and stated == Version(version)
    except (InvalidSdistFilename, InvalidVersion):
        return False


def complete(
    name: str, filename: str, location: str, size: int | None, sha256: str | None, supply: Supply, store: Store
) -> Known:
    """State size and sha256 of a candidate; wheel folders give neither, some mirrors no size.

    Raises:
        SupplyError: `hash-not-stated` for a file behind a URL that its index gives no sha256 for.
    """
    if location.startswith("/"):
        path = Path(location)
        with filesystem(path):
            return Known(filename=filename, size=path.stat().st_size, sha256=sha256 or sha256_file(path))
    if sha256 is None:
        raise SupplyError(
            Problem(
                code="hash-not-stated",
                message=f"the index states no sha256 for `{filename}`, so it cannot be pinned",
                where=name,
                hint="use an index that states hashes, or put the file into a wheel folder (ENVSMITH_FIND_LINKS)",
            )
        )
    if size is None:
        download_all([Item(name=name, filename=filename, size=None, sha256=sha256)], supply, store)
        size = store.blob_path(sha256).stat().st_size
    return Known(filename=filename, size=size, sha256=sha256)
