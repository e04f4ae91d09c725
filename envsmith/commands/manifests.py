"""Making the manifest of an env: from the wheels in the store and from templates, never from what is on the disk.

Only what has no other source is taken from the disk, right when envsmith itself or uv has made it: the scaffolding of
the empty environment, and files that a build backend left in a work copy.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from envsmith.errors import IntegrityError, Problem
from envsmith.installed import check_record, expected_record_rows, site_entries
from envsmith.lock import Wheel
from envsmith.manifest import (
    Entry,
    Kind,
    Manifest,
    file_entry,
    link_entry,
    merge,
    portable_entries,
    site_packages,
    wheel_folders,
)
from envsmith.observed import Seen
from envsmith.receipt import NAME as RECEIPT
from envsmith.tools.tree import hash_tree, scan
from envsmith.tools.wheel import list_wheel
from envsmith.wheelfile import WheelListing


@dataclass(frozen=True, kw_only=True, slots=True)
class Installable:
    """One wheel that goes into an env, with the file that holds it."""

    wheel: Wheel
    path: Path
    """A file whose name is the wheel's."""
    owner: str
    """`ray==2.56.1`, or `source:verl` for the editable wheel of a source."""
    portable: bool = True
    """False for an editable wheel: it holds paths of this machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """A wheel that was read."""

    item: Installable
    listing: WheelListing


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """The entries that wheels bring, and what their RECORDs have to say."""

    entries: tuple[Entry, ...]
    records: tuple[tuple[str, str], ...]
    """(owner, dist-info folder)."""


def read_wheels(wheels: Iterable[Installable], scaffold: Iterable[Entry], python: str) -> tuple[Listed, ...]:
    """Read what every wheel holds, before anything is installed.

    Raises:
        IntegrityError: `wheel-malformed` and its kin, `wheel-claims-env` for one that brings a file of the env's own.
    """
    own = {entry.path for entry in scaffold} | {RECEIPT, ".lock", "env.sh", "modulefile"}
    found: list[Listed] = []
    problems: list[Problem] = []
    for item in wheels:
        try:
            listing = list_wheel(item.path)
        except IntegrityError as error:
            problems += (replace(problem, where=item.wheel.filename) for problem in error.problems)
            continue
        found.append(Listed(item=item, listing=listing))
        problems += (
            Problem(
                code="wheel-claims-env",
                message=f"a wheel brings `{entry.path}`, which belongs to the environment itself",
                where=item.wheel.filename,
                hint="do not use it; ask its maintainers",
            )
            for entry in portable_entries(listing, item.owner, python)
            if entry.path in own or entry.path.startswith("src/")
        )
    if problems:
        raise IntegrityError(*problems[:20])
    return tuple(found)


def wheel_entries(wheels: Iterable[Listed], *, env: Path, python: str) -> Content:
    """List what the wheels put into an env; of the env itself only uv's own note of each wheel file is read."""
    entries: list[Entry] = []
    records: list[tuple[str, str]] = []
    for listed in wheels:
        item, listing = listed.item, listed.listing
        portable = portable_entries(listing, item.owner, python)
        if not item.portable:
            portable = tuple(_as_site(entry) for entry in portable)
        entries += portable
        extras = _members(item.path, listing, ("direct_url.json",)) | _uv_note(env, listing, python)
        rewritten = _rewritten(item.path, listing)
        entries += site_entries(
            listing,
            item.owner,
            python_path=str(env / "bin" / "python"),
            python=python,
            rewritten=rewritten,
            extras=extras,
        )
        records.append((item.owner, wheel_folders(listing)[0]))
    return Content(entries=tuple(entries), records=tuple(records))


def _as_site(entry: Entry) -> Entry:
    return replace(entry, part="site")


def _uv_note(env: Path, listing: WheelListing, python: str) -> dict[str, bytes]:
    """`uv_cache.json`: the times of the wheel file that uv installed from. Nothing but uv reads it."""
    name = "uv_cache.json"
    try:
        return {name: (env / site_packages(python) / wheel_folders(listing)[0] / name).read_bytes()}
    except OSError:
        return {}


def _members(path: Path, listing: WheelListing, names: tuple[str, ...]) -> dict[str, bytes]:
    """Installer files that a wheel of our own brings along, by their name in the dist-info folder."""
    info = wheel_folders(listing)[0]
    wanted = {f"{info}/{name}": name for name in names}
    found = [member.path for member in listing.members if member.path in wanted]
    if not found:
        return {}
    with zipfile.ZipFile(path) as archive:
        return {wanted[member]: archive.read(member) for member in found}


def _rewritten(path: Path, listing: WheelListing) -> Mapping[str, bytes]:
    if not listing.rewritten_scripts:
        return {}
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in listing.rewritten_scripts}


def record_entries(env: Path, content: Content, python: str) -> tuple[Entry, ...]:
    """Hold every installed RECORD against what it must say, and list it.

    Raises:
        IntegrityError: `record-missing`, `record-row-unknown`, `record-row-differs`, `record-row-missing`.
    """
    base = site_packages(python)
    entries: list[Entry] = []
    problems: list[Problem] = []
    mine: dict[str, list[Entry]] = {}
    for entry in content.entries:
        mine.setdefault(entry.owner, []).append(entry)
    for owner, info in content.records:
        path = f"{base}/{info}/RECORD"
        try:
            data = (env / path).read_bytes()
        except OSError:
            problems.append(
                Problem(code="record-missing", message=f"{owner} has no RECORD after its install", where=path)
            )
            continue
        rows = expected_record_rows(mine.get(owner, ()), owner, info=info, python=python)
        problems += check_record(data.decode(errors="replace"), rows, path)
        # A wheel may mark its RECORD executable, and uv keeps the mark when it writes the file anew.
        executable = bool((env / path).stat().st_mode & 0o111)
        entries.append(file_entry(path, data, owner, part="site", executable=executable))
    if problems:
        raise IntegrityError(*problems[:20])
    return tuple(entries)


def scaffold_entries(env: Path) -> tuple[Entry, ...]:
    """List the empty environment, right after uv has made it."""
    return _on_disk(env, scan(env), "venv")


def source_entries(env: Path, name: str, tracked: Iterable[str]) -> tuple[Entry, ...]:
    """List the tracked files of a work copy whose tree id has just been compared with the lock."""
    wanted = {f"src/{name}/{path}" for path in tracked}
    prefix = f"src/{name}/"
    files = (seen._replace(path=prefix + seen.path) for seen in scan(env / "src" / name))
    found = _on_disk(env, tuple(seen for seen in files if seen.path in wanted), f"source:{name}")
    return tuple(replace(entry, part="portable") for entry in found)


def leftover_entries(env: Path, paths: Iterable[str], owner: str) -> tuple[Entry, ...]:
    """List files that a build backend left in a work copy; paths are relative to the env."""
    wanted = set(paths)
    return _on_disk(env, tuple(seen for seen in scan(env) if seen.path in wanted), owner)


def made_entry(env: Path, path: str, owner: str = "envsmith") -> Entry:
    """List one file or link that envsmith itself has just written."""
    if (env / path).is_symlink():
        return link_entry(path, str((env / path).readlink()), owner)
    data = (env / path).read_bytes()
    executable = bool((env / path).stat().st_mode & 0o111)
    return file_entry(path, data, owner, part="site", executable=executable)


def _on_disk(env: Path, files: Iterable[Seen], owner: str) -> tuple[Entry, ...]:
    found = tuple(files)
    digests = hash_tree(env, found).digests
    entries = []
    for seen in found:
        if seen.kind == "link":
            entries.append(link_entry(seen.path, seen.target or "", owner))
        elif seen.kind == "file" and seen.path in digests:
            entries.append(
                Entry(
                    path=seen.path,
                    kind=Kind.FILE,
                    executable=bool(seen.mode & 0o111),
                    size=seen.size,
                    sha256=digests[seen.path],
                    owner=owner,
                    part="site",
                )
            )
    return tuple(entries)


def whole(*parts: Iterable[Entry]) -> Manifest:
    """Join the parts of a manifest."""
    return merge(entry for part in parts for entry in part)
