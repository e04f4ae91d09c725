"""Read the metadata folders of an environment that envsmith did not make."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from envsmith.basepackages import PackageState, files_digest
from envsmith.observed import Seen, SeenKind
from envsmith.recorded import Recorded, Row, parse_rows
from envsmith.tools.progress import Progress
from envsmith.tools.tree import StatIndex, hash_tree, row_of

#: No metadata file of a real distribution comes near this; a larger one is not read.
LIMIT_BYTES = 64 << 20
#: How far the clock of a base's file system may be from this machine's.
_CLOCK_MARGIN_NS = 3_600_000_000_000


def read_distributions(root: Path, site_dirs: Iterable[str]) -> tuple[Recorded, ...]:
    """Describe every distribution in the site folders of an environment: folder by folder, sorted in each.

    So of several of one name the first is the one that imports find, and that probe/collect.py captures. `site_dirs`
    are relative to `root`. What pip renamed to remove it, `~orch-2.9.0.dist-info`, is no distribution.
    """
    return tuple(one for folder in dict.fromkeys(site_dirs) for one in _in_folder(root, folder))


def _in_folder(root: Path, folder: str) -> Iterator[Recorded]:
    try:
        names = sorted(item.name for item in (root / folder).iterdir())
    except OSError:
        return
    for name in names:
        if name.endswith((".dist-info", ".egg-info")) and not name.startswith("~"):
            yield _describe(root, folder, name)


def _describe(root: Path, folder: str, info: str) -> Recorded:
    place = root / folder / info
    header = _header(_text(place / "METADATA" if info.endswith(".dist-info") else place / "PKG-INFO") or _text(place))
    stem = info.rsplit(".", 1)[0].split("-")
    record = _text(place / "RECORD")
    rows = None if record is None else parse_rows(record, folder)
    if rows is None and (listed := _text(place / "installed-files.txt")) is not None:
        rows = parse_rows(listed, f"{folder}/{info}")
    return Recorded(
        name=str(canonicalize_name(header.get("Name") or stem[0])),
        version=header.get("Version") or (stem[1] if len(stem) > 1 else "0"),
        info=f"{folder}/{info}",
        installer=(_text(place / "INSTALLER") or "").strip() or None,
        rows=rows,
        editable=_editable(_text(place / "direct_url.json")),
        top_level=tuple((_text(place / "top_level.txt") or "").split()),
    )


def _header(text: str | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in (text or "").splitlines():
        if not line:
            break
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key, value.strip())
    return found


def _editable(text: str | None) -> str | None:
    """The folder of an editable installation. Source: PEP 610."""
    try:
        data = json.loads(text or "{}")
        if data["dir_info"]["editable"] is not True:
            return None
        parts = urlsplit(data["url"])
        return unquote(parts.path) if parts.scheme == "file" else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _text(path: Path) -> str | None:
    """A metadata file, None when it is not there, is no file, or is far too large to be one."""
    try:
        if not path.is_file() or path.stat().st_size > LIMIT_BYTES:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def package_states(root: Path, site_dirs: Iterable[str], wanted: Collection[str] | None = None) -> list[PackageState]:
    """Describe the distributions of a base, every file read; `wanted` are canonical names, None means all.

    Files are hashed in parallel, each inode once.
    """
    return indexed_states(root, site_dirs, wanted, StatIndex())[0]


def indexed_states(
    root: Path,
    site_dirs: Iterable[str],
    wanted: Collection[str] | None,
    index: StatIndex,
    progress: Progress | None = None,
) -> tuple[list[PackageState], StatIndex]:
    """The same, without reading the files that an index vouches for; return the index of now too.

    Nothing may be written into a base, so its file system cannot be asked for its time: a file counts as settled when
    it was changed an hour before this machine's clock.
    """
    taken_ns = time.time_ns() - _CLOCK_MARGIN_NS
    chosen = [one for one in read_distributions(root, tuple(site_dirs)) if wanted is None or one.name in wanted]
    paths = {row.path for one in chosen for row in one.rows or () if not row.path.endswith(".pyc")}
    seen = {path: item for path in sorted(paths) if (item := _look(root, path))}
    if index.taken_ns > taken_ns:
        index = StatIndex()  # an index from the future vouches for anything
    known = {item.path: digest for item in seen.values() if (digest := index.digest(item))}
    unknown = [item for item in seen.values() if item.path not in known]
    if progress:
        progress.start(sum(item.size for item in unknown), len(unknown))
    hashed = hash_tree(Path("/"), unknown, on_bytes=progress.advance if progress else None)
    if progress:
        progress.done()
    content = {**known, **hashed.digests}
    rows = {item.path: row_of(item, content[item.path]) for item in seen.values() if item.path in content}
    digests = {path: content[item.path] for path, item in seen.items() if item.path in content}
    return [_state(root, one, digests) for one in chosen], StatIndex(taken_ns=taken_ns, rows=rows)


def _look(root: Path, path: str) -> Seen | None:
    """The file behind a path, by its real one below `/`: what a process would read is what counts."""
    try:
        info = (root / path).stat()
    except OSError:
        return None
    real = os.path.realpath(root / path).lstrip("/")
    kind: SeenKind = "file" if stat.S_ISREG(info.st_mode) else "other"
    times = (info.st_mtime_ns, info.st_ctime_ns)
    return Seen(real, kind, info.st_mode & 0o7777, info.st_size, *times, info.st_ino, info.st_dev, info.st_nlink, None)


def _state(root: Path, one: Recorded, digests: Mapping[str, str]) -> PackageState:
    named = {name: row for name, row in _named_rows(root, one) if not row.path.endswith(".pyc")}
    actual = {name: digests.get(row.path) for name, row in named.items()}
    altered = {
        name: actual[name]
        for name, row in named.items()
        if actual[name] is None or (row.sha256 is not None and actual[name] != row.sha256)
    }
    record = _bytes(root / one.info / "RECORD")
    return PackageState(
        name=one.name,
        version=one.version,
        info=one.info,
        record=hashlib.sha256(record).hexdigest() if record is not None else None,
        files=files_digest(actual) if one.rows is not None else None,
        altered=altered,
        editable=one.editable,
        recorded={name: row.sha256 for name, row in named.items()},
    )


def _named_rows(root: Path, one: Recorded) -> Iterator[tuple[str, Row]]:
    """Every row by RECORD's own spelling, normalised, as probe/collect.py names it; absolute paths stay absolute."""
    if one.rows is None:
        return
    folder, _, info = one.info.rpartition("/")
    record = _text(root / one.info / "RECORD")
    listed = "" if record is not None else _text(root / one.info / "installed-files.txt")
    for row in parse_rows(record, "") if record is not None else parse_rows(listed or "", info):
        yield row.path, replace(row, path=posixpath.normpath(posixpath.join(folder, row.path)))


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError:
        return None
