"""Where files are: wheel folders and package indexes, asked by file name and sha256, never by a URL of the lock.

An index is a simple API over HTTP or a PEP 503 folder tree. tools/download.py brings files home from here.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256 as new_sha256
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from envsmith.errors import EnvsmithError, InputError, IntegrityError, Problem, StepError, SupplyError
from envsmith.tools.files import filesystem, sha256_file
from envsmith.tools.patience import Temporary
from envsmith.tools.process import run, scrubbed
from envsmith.tools.remote_file import RemoteFile
from envsmith.tools.simple import Listed, parse_html, parse_json
from envsmith.tools.store import Store
from envsmith.tools.transport import Auth, SourceError, Transport, refused, same_origin, split_auth
from envsmith.tools.transport import without_secrets as without_secrets
from envsmith.tools.uv import uv_binary

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Supply:
    """Where this machine gets its files from: settings of the machine, never of a recipe or a lock."""

    index_url: str | None = field(default=None, repr=False)
    """A simple index (http, https, file, or a folder); None is uv's default index, "" is no index at all."""
    extra_indexes: tuple[str, ...] = field(default=(), repr=False)
    find_links: tuple[str, ...] = field(default=(), repr=False)
    """Folders, file:// URLs or pages of links; asked before any index."""
    offline: bool = False
    """Only what is on a disk: no connection is tried."""
    timeout_s: float = 30.0
    attempts: int = 5
    backoff_s: float = 0.5

    def transport(self) -> Transport:
        """Return a new session with these limits."""
        return Transport(timeout_s=self.timeout_s, attempts=self.attempts, backoff_s=self.backoff_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One file as the lock names it."""

    name: str
    filename: str
    size: int | None
    """Bytes; None only while a lock is being made."""
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Location:
    """A place that offers a file: a path on a disk, or a URL with the credentials for it."""

    path: Path | None = None
    url: str | None = field(default=None, repr=False)
    auth: Auth | None = field(default=None, repr=False)
    has_metadata: bool = False
    metadata_sha256: str | None = None

    def shown(self) -> str:
        """Return the place as it may be printed."""
        return str(self.path) if self.path else without_secrets(self.url or "")


@dataclass(kw_only=True, slots=True)
class Search:
    """What was seen while one file was looked for."""

    item: Item
    looked: list[str] = field(default_factory=list)
    failed: list[Problem] = field(default_factory=list)
    different: list[Problem] = field(default_factory=list)

    def error(self) -> EnvsmithError:
        """Return the error for a file that no place could give; a wrong file outranks a missing one."""
        if self.different:
            return IntegrityError(*self.different)
        if self.failed:
            return SupplyError(*self.failed)
        item = self.item
        places = "; ".join(self.looked) or "nowhere: no folder and no index is configured"
        message = f"`{item.filename}` of `{item.name}` was not found"
        hint = "name a mirror or folder that has it with ENVSMITH_INDEX or ENVSMITH_FIND_LINKS"
        return SupplyError(Problem(code="file-not-found", message=message, where=places, hint=hint))

    def found_other(self, place: str, actual: str, hint: str | None = None) -> None:
        """Note a file of the right name that is not the one of the lock."""
        self.different.append(digest_differs(self.item, place, actual, hint))


def digest_differs(item: Item, place: str, actual: str, hint: str | None = None) -> Problem:
    """State that a place has another file under the name of one in the lock."""
    size = f", {item.size} bytes" if item.size is not None else ""
    return Problem(
        code="wheel-digest-differs",
        message=f"`{item.filename}` is not the file that the lock names",
        where=place,
        hint=hint or "do not use it; find out why this place has another file of that name",
        expected=f"sha256 {item.sha256}{size}",
        actual=actual,
    )


def find_file(
    supply: Supply, name: str, filename: str, sha256: str, size: int | None, *, transport: Transport | None = None
) -> Location:
    """Return the first place that offers a file of this name and, as far as can be told before a download, digest.

    Raises:
        SupplyError: `file-not-found`, `index-unreachable`, `index-refused`.
        IntegrityError: `wheel-digest-differs` when only other files of that name were found.
    """
    item = Item(name=name, filename=filename, size=size, sha256=sha256)
    if transport is None:
        with supply.transport() as transport:
            return _find(supply, item, transport)
    return _find(supply, item, transport)


def _find(supply: Supply, item: Item, transport: Transport) -> Location:
    search = Search(item=item)
    for location in candidates(supply, search, transport):
        if location.path is None:
            return location
        actual = sha256_file(location.path)
        if actual == item.sha256:
            return location
        search.found_other(location.shown(), f"sha256 {actual}, {location.path.stat().st_size} bytes")
    raise search.error()


def candidates(supply: Supply, search: Search, transport: Transport | None) -> Iterator[Location]:
    """Yield every place that offers the file `search` is for, folders first; note in `search` what was in the way."""
    item = search.item
    if not item.filename or "/" in item.filename or item.filename in (".", ".."):
        message = f"`{item.filename}` is not the name of a file"
        raise InputError(Problem(code="file-name-malformed", message=message, where=item.name))
    for place in supply.find_links:
        folder = local_folder(place)
        if folder is not None:
            yield from _in_folder(folder, search)
        elif transport and not supply.offline:
            yield from _on_page(place, search, transport)
    for index in index_urls(supply):
        folder = local_folder(index)
        if folder is not None:
            yield from _in_tree(folder / canonicalize_name(item.name), search)
        elif transport and not supply.offline:
            yield from _on_page(f"{index.rstrip('/')}/{canonicalize_name(item.name)}/", search, transport)


def index_urls(supply: Supply) -> tuple[str, ...]:
    """Return the indexes in the order they are asked; uv's default one is left out when offline."""
    first = supply.index_url
    if first is None:
        first = "" if supply.offline else default_index_url(uv_binary())
    return tuple(url for url in (first, *supply.extra_indexes) if url)


@lru_cache(maxsize=8)
def default_index_url(uv: Path) -> str:
    """Return the index that uv uses when none is named, in its own words: no host is written in our files.

    Raises:
        StepError: `default-index-unknown`.
    """
    done = run((uv, "--no-config", "pip", "compile", "--help"), env=scrubbed(os.environ), timeout_s=60)
    option = done.stdout.partition("--default-index <")[2]
    found = re.search(r"by\s+default:\s+<(https://[^>\s]+)>", option)
    if not found:
        message = "uv does not say which index it uses by default"
        hint = "name the index with ENVSMITH_INDEX"
        raise StepError(Problem(code="default-index-unknown", message=message, where=str(uv), hint=hint))
    return found[1]


def local_folder(place: str) -> Path | None:
    """Return the folder that a setting names by path or file:// URL; None when it names something to connect to."""
    parts = urlsplit(place)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme in ("http", "https") else Path(place).expanduser()


def _in_folder(folder: Path, search: Search) -> Iterator[Location]:
    path = folder / search.item.filename
    with filesystem(path):
        if path.is_file():
            yield Location(path=path)
        else:
            search.looked.append(f"{folder} ({'no such file' if folder.is_dir() else 'no such folder'})")


def _in_tree(project: Path, search: Search) -> Iterator[Location]:
    """Look into the folder of one project in a PEP 503 tree: by its page, where it has one."""
    page = project / "index.html"
    if not page.is_file():
        yield from _in_folder(project, search)
        return
    with filesystem(page):
        listed = parse_html(page.read_text("utf-8", errors="replace"), page.as_uri())
    yield from _matching(listed, str(page), None, search)


def _on_page(url: str, search: Search, transport: Transport) -> Iterator[Location]:
    """Ask one page. A page that cannot be had is noted, for another place may do."""
    plain, auth = split_auth(url)
    shown = without_secrets(url)
    try:
        listed = transport.retrying(plain, lambda: _read_page(plain, auth, transport))
    except SourceError as error:
        search.failed += error.problems
        return
    if listed is None:
        search.looked.append(f"{shown} (404)")
        return
    yield from _matching(listed, url, auth, search)


def _read_page(url: str, auth: Auth | None, transport: Transport) -> tuple[Listed, ...] | None:
    with transport.get(url, auth, {"Accept": _ACCEPT}) as response:
        if response.status_code in (404, 410):
            return None
        if response.status_code != 200:
            raise SourceError(refused(url, response.status_code))
        read = parse_json if "json" in response.headers.get("Content-Type", "") else parse_html
        try:
            return read(response.content.decode("utf-8", errors="replace"), response.url)
        except ValueError as error:
            raise Temporary("the page is not what it says it is") from error


def _matching(listed: tuple[Listed, ...], page: str, auth: Auth | None, search: Search) -> Iterator[Location]:
    item, seen = search.item, False
    plain_page = split_auth(page)[0]
    for entry in listed:
        if entry.filename != item.filename:
            continue
        seen = True
        if entry.sha256 and entry.sha256 != item.sha256:
            search.found_other(without_secrets(entry.url), f"sha256 {entry.sha256} (says the index)")
            continue
        plain, own = split_auth(entry.url)
        known = own or (auth if same_origin(plain, plain_page) else None)
        local = local_folder(plain)
        yield Location(
            path=local,
            url=None if local else plain,
            auth=known,
            has_metadata=entry.has_metadata,
            metadata_sha256=entry.metadata_sha256,
        )
    if not seen:
        search.looked.append(f"{without_secrets(page)} (no such file)")


def fetch_metadata(
    supply: Supply,
    name: str,
    filename: str,
    sha256: str,
    size: int | None,
    *,
    store: Store | None = None,
    transport: Transport | None = None,
) -> bytes:
    """Return the METADATA of a wheel, from as few bytes as its place allows: blob, folder, PEP 658, ranges, all of it.

    What PEP 658 or a range gives is not held against the wheel's own digest: fit for resolving, no proof of content.

    Raises:
        IntegrityError: `metadata-digest-differs`, `wheel-malformed`, or what `find_file` raises.
        SupplyError: what `find_file` raises.
    """
    if store and store.has(sha256, size):
        with filesystem(store.blob_path(sha256)), store.blob_path(sha256).open("rb") as stream:
            return metadata_in(stream, filename)
    if transport is None:
        with supply.transport() as transport:
            return fetch_metadata(supply, name, filename, sha256, size, transport=transport)
    location = find_file(supply, name, filename, sha256, size, transport=transport)
    return metadata_at(location, filename, transport)


def metadata_at(location: Location, filename: str, transport: Transport) -> bytes:
    """Return the METADATA of a wheel whose place is known; raises as `fetch_metadata`."""
    if location.path:
        with filesystem(location.path), location.path.open("rb") as stream:
            return metadata_in(stream, filename)
    found = _metadata_file(location, transport) if location.has_metadata else None
    return found if found is not None else _metadata_by_ranges(location, filename, transport)


def listed_files(index: str, name: str, supply: Supply, transport: Transport, looked: list[str]) -> tuple[Listed, ...]:
    """Return every file that an index lists for a project; where it was looked goes to `looked`.

    Raises:
        SupplyError: `index-unreachable`, `index-refused`.
    """
    folder = local_folder(index)
    project = canonicalize_name(name)
    if folder is not None:
        page = folder / project / "index.html"
        looked.append(str(page.parent))
        if page.is_file():
            return parse_html(page.read_text("utf-8", errors="replace"), page.as_uri())
        paths = sorted(page.parent.iterdir()) if page.parent.is_dir() else []
        return tuple(Listed(url=path.as_uri(), sha256=None, has_metadata=False, metadata_sha256=None) for path in paths)
    if supply.offline:
        return ()
    url = f"{index.rstrip('/')}/{project}/"
    looked.append(without_secrets(url))
    plain, auth = split_auth(url)
    return transport.retrying(plain, lambda: _read_page(plain, auth, transport)) or ()


def metadata_in(stream: IO[bytes] | io.RawIOBase, filename: str) -> bytes:
    """Return METADATA out of an open wheel.

    Raises:
        IntegrityError: `wheel-malformed`.
    """
    try:
        with zipfile.ZipFile(stream) as archive:
            (member,) = (one for one in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", one))
            return archive.read(member)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError) as error:
        message = f"`{filename}` is not a wheel with one METADATA: {error}"
        raise IntegrityError(Problem(code="wheel-malformed", message=message, where=filename)) from error


def _metadata_file(location: Location, transport: Transport) -> bytes | None:
    url = f"{location.url}.metadata"

    def read() -> bytes | None:
        with transport.get(url, location.auth, {}) as response:
            return response.content if response.status_code == 200 else None

    found = transport.retrying(url, read)
    actual = new_sha256(found).hexdigest() if found is not None else None
    if location.metadata_sha256 and actual and actual != location.metadata_sha256:
        message = "a metadata file is not the one that its index names"
        raise IntegrityError(
            Problem(
                code="metadata-digest-differs",
                message=message,
                where=without_secrets(url),
                hint="ask whoever runs the index; until then name another one with ENVSMITH_INDEX",
                expected=f"sha256 {location.metadata_sha256}",
                actual=f"sha256 {actual}",
            )
        )
    return found


def _metadata_by_ranges(location: Location, filename: str, transport: Transport) -> bytes:
    with tempfile.TemporaryFile() as whole:
        remote = RemoteFile(location.url or "", location.auth, transport, whole)
        return metadata_in(remote if remote.has_ranges else whole, filename)
