"""Brings blobs from a registry: only the missing ones, resumed, hashed while they stream, never more than named."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import requests

from envsmith.errors import IntegrityError, SupplyError
from envsmith.tools.files import disk_full, filesystem, free_bytes
from envsmith.tools.part import Part
from envsmith.tools.patience import Temporary
from envsmith.tools.registry_push import absent, differs
from envsmith.tools.registry_session import RegistrySession, page_hint
from envsmith.tools.registry_work import Work
from envsmith.tools.store import Store

_CHUNK = 1 << 18
_WRONG = "what came was thrown away; the registry, or something between, changed it: ask whoever runs it"


class Destination(Protocol):
    """Where blobs come to lie: a store or a layout. Digests are `sha256:` and 64 digits."""

    def part_path(self, digest: str) -> Path:
        """Return where the blob grows; the folder exists, the name ends in `.part`."""

    def commit(self, part: Path, digest: str) -> None:
        """Give a finished part its name."""

    def lock(self, digest: str) -> AbstractContextManager[object]:
        """Return what keeps other processes off the part meanwhile."""


class IntoStore:
    """A store as a destination."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def has(self, digest: str, size: int) -> bool:
        """Say whether a blob of this name and size is there."""
        return self._store.has(digest.removeprefix("sha256:"), size)

    def part_path(self, digest: str) -> Path:
        """Return where the blob grows."""
        return self._store.partial(digest.removeprefix("sha256:"))

    def commit(self, part: Path, digest: str) -> None:
        """Give a finished part its name."""
        self._store.commit(part, digest.removeprefix("sha256:"))

    def lock(self, digest: str) -> AbstractContextManager[object]:
        """Return the store's own lock of the blob."""
        return self._store.lock(digest.removeprefix("sha256:"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulled:
    """What a pull did, in blobs."""

    received: int
    skipped: int
    bytes_received: int
    """Over the line; what an interrupted pull had left is not among them."""


class Pull:
    """One pull from one repository."""

    def __init__(
        self, session: RegistrySession, work: Work, base: str, scopes: tuple[str, ...], into: Destination
    ) -> None:
        """`base` is the URL of the repository."""
        self._session, self._work, self._base, self._scopes, self._into = session, work, base, scopes, into

    def blobs(self, blobs: Sequence[tuple[str, int]], have: Callable[[str, int], bool]) -> Pulled:
        """Bring every blob in that `have` denies.

        Raises:
            IntegrityError: `blob-digest-differs`, with whatever else failed.
            SupplyError: `blob-missing`, `disk-full`, and what a session raises.
        """
        wanted = list(dict.fromkeys(blobs))
        missing = sorted((blob for blob in wanted if not have(*blob)), key=lambda blob: (-blob[1], blob[0]))
        self._require_room(missing)
        self._work.start(sum(size for _, size in wanted), len(wanted))
        self._work.advance(sum(size for _, size in wanted) - sum(size for _, size in missing))
        counts = self._work.each(missing, lambda blob: self._obtain(*blob, have))
        received = [count for count in counts if count is not None]
        return Pulled(received=len(received), skipped=len(wanted) - len(received), bytes_received=sum(received))

    def _require_room(self, missing: Sequence[tuple[str, int]]) -> None:
        """Fail before the first byte rather than after the last that fits."""
        needed = 0
        for digest, size in missing:
            with contextlib.suppress(FileNotFoundError):
                needed -= min(size, self._into.part_path(digest).stat().st_size)
            needed += size
        place = self._into.part_path(missing[0][0]).parent if missing else Path()
        if missing and needed > free_bytes(place):
            raise SupplyError(disk_full(place, needed, "it would not hold what has to be pulled"))

    def _obtain(self, digest: str, size: int, have: Callable[[str, int], bool]) -> int | None:
        """Bring one blob in and return the bytes that came; None when another process was quicker."""
        self._work.sleep(0)
        with self._into.lock(digest):
            if have(digest, size):
                self._work.advance(size)
                return None
            with Part(self._into.part_path(digest), self._work.advance) as part:
                return _Download(self._session, self._work, self._base, self._scopes, digest, size, part).run(
                    self._into
                )


class _Download:
    """One blob on its way into its part."""

    def __init__(
        self,
        session: RegistrySession,
        work: Work,
        base: str,
        scopes: tuple[str, ...],
        digest: str,
        size: int,
        part: Part,
    ) -> None:
        self._session, self._work, self._scopes = session, work, scopes
        self._digest, self._size, self._part = digest, size, part
        self._base, self._url = base, f"{base}/blobs/{digest}"
        self._received = 0
        self._hint: str | None = None

    def run(self, into: Destination) -> int:
        """Fill the part until it is whole; begin again at most once for a kept part that was wrong."""
        part = self._part
        part.resume(self._size)
        resumed = part.offset > 0
        self._fill()
        if not self._is_right() and resumed:
            self._work.say(f"the kept part of {self._digest} is not right: getting it again")
            part.restart()
            self._fill()
        if not self._is_right():
            actual = f"sha256:{part.sha256()}"
            part.discard()
            raise IntegrityError(differs(self._digest, self._url, self._digest, actual, self._hint or _WRONG))
        with filesystem(part.path):
            into.commit(part.path, self._digest)
        return self._received

    def _is_right(self) -> bool:
        return f"sha256:{self._part.sha256()}" == self._digest

    def _fill(self) -> None:
        failures = 0
        while self._part.offset < self._size:
            before = self._part.offset
            try:
                self._stream()
            except Temporary as failure:
                failures = 1 if self._part.offset > before else failures + 1  # a line that gives bytes is worth more
                self._session.pause(self._url, failure, failures)

    def _stream(self) -> None:
        """Ask once and take what comes.

        Raises:
            Temporary: less came than was announced, or the connection broke.
            IntegrityError: more came.
        """
        part = self._part
        headers = {"Range": f"bytes={part.offset}-"} if part.offset else {}
        with self._session.ask("GET", self._url, self._scopes, headers=headers) as response:
            self._begin(response)
            while chunk := response.raw.read(_CHUNK, decode_content=False):
                self._work.sleep(0)
                self._received += len(chunk)
                if part.offset + len(chunk) > self._size:
                    raise self._wrong_size(response, f"more than {self._size} bytes")
                part.write(chunk)
        if part.offset < self._size:
            raise Temporary(f"the body ended after {part.offset} of {self._size} bytes")

    def _begin(self, response: requests.Response) -> None:
        """Bring the part to where the body starts, or refuse the answer."""
        part, status = self._part, response.status_code
        self._hint = page_hint(response)
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if status == 416 or (status == 206 and (span is None or int(span[1]) != part.offset)):
            part.restart()
            raise Temporary("the registry did not continue where it was asked to")
        if status == 404:
            hint = "what was pushed is not whole, or was removed: push the bundle again"
            fact = f"the registry has no blob `{self._digest}`"
            raise SupplyError(*absent([self._digest], self._base, lambda _: fact, hint))
        if status not in (200, 206):
            raise SupplyError(self._session.refusal(response, f"the question for `{self._digest}`"))
        if status == 200 and part.offset:
            part.restart()
        total = span[2] if status == 206 and span else response.headers.get("Content-Length", "")
        if total.isdigit() and int(total) != self._size:
            raise self._wrong_size(response, f"{total} bytes")

    def _wrong_size(self, response: requests.Response, actual: str) -> IntegrityError:
        self._part.discard()
        hint = page_hint(response) or _WRONG
        return IntegrityError(differs(self._digest, self._url, f"{self._size} bytes", actual, hint))
