"""Brings blobs to a registry: asks what is there, mounts what a sibling repository has, sends the rest hashed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlencode

import requests

from envsmith.errors import EnvsmithError, IntegrityError, Problem, SupplyError
from envsmith.tools.files import chunks, filesystem
from envsmith.tools.patience import Temporary
from envsmith.tools.registry_session import RegistrySession
from envsmith.tools.registry_work import Stopped, Work

_SHOWN = 20
_BINARY = {"Content-Type": "application/octet-stream"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Blob:
    """A blob that a manifest names."""

    digest: str
    """`sha256:` and 64 digits."""
    size: int
    path: Path | None = None
    """None, or a path where nothing is, for a blob that only the registry has."""
    source: Callable[[], AbstractContextManager[BinaryIO]] | None = None
    """Opens a blob that is no file of its own, such as a member of an archive; `path` is then the archive."""

    def is_here(self) -> bool:
        """Say whether its bytes can be had here."""
        return self.source is not None or (self.path is not None and self.path.is_file())


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """What a push did, in blobs."""

    sent: int
    skipped: int
    """The repository had them."""
    mounted: int
    """Another repository of the registry had them."""
    bytes_sent: int
    """Of blobs, with those that had to be sent twice."""


class Push:
    """One push to one repository."""

    def __init__(
        self, session: RegistrySession, work: Work, base: str, scopes: tuple[str, ...], mount_from: Sequence[str]
    ) -> None:
        """`base` is the URL of the repository; `mount_from` names others of the same registry."""
        self._session, self._work, self._base, self._scopes = session, work, base, scopes
        self._mount_from = mount_from

    def blobs(self, blobs: Iterable[Blob]) -> Moved:
        """Make every blob known to the repository; nothing is sent while one is neither here nor there.

        Raises:
            SupplyError: `blob-missing`, and what a session raises.
            IntegrityError: `blob-digest-differs`.
        """
        wanted = list({blob.digest: blob for blob in blobs}.values())
        self._work.start(sum(blob.size for blob in wanted), len(wanted))
        states = self._work.each(wanted, self._look)
        missing = [blob for blob, state in zip(wanted, states, strict=True) if state == "missing"]
        _require_local(missing, self._base)
        counts = self._work.each(sorted(missing, key=lambda blob: (-blob.size, blob.digest)), self._send)
        return Moved(
            sent=len(missing),
            skipped=states.count("present"),
            mounted=states.count("mounted"),
            bytes_sent=sum(counts),
        )

    def _look(self, blob: Blob) -> str:
        url = f"{self._base}/blobs/{blob.digest}"
        state = "present" if self._session.retrying(url, lambda: self._has(url, blob)) else "missing"
        if state == "missing" and any(self._mount(blob, other) for other in self._mount_from):
            state = "mounted"
        if state != "missing":
            self._work.advance(blob.size)
        return state

    def _has(self, url: str, blob: Blob) -> bool:
        self._work.sleep(0)
        with self._session.ask("HEAD", url, self._scopes) as response:
            if response.status_code == 404:
                return False
            if response.status_code != 200:
                raise SupplyError(self._session.refusal(response, "the question for a blob"))
            length = response.headers.get("Content-Length", "")
        if length.isdigit() and int(length) != blob.size:
            raise IntegrityError(differs(blob.digest, url, f"{blob.size} bytes", f"{length} bytes", _AT_REGISTRY))
        return True

    def _mount(self, blob: Blob, other: str) -> bool:
        """Try to let the registry take a blob from another repository; what does not work is sent instead."""
        url = f"{self._base}/blobs/uploads/?{urlencode({'mount': blob.digest, 'from': other})}"
        scopes = (*self._scopes, f"repository:{other}:pull")
        with contextlib.suppress(SupplyError):
            return self._session.retrying(url, lambda: self._try_mount(url, scopes))
        return False

    def _try_mount(self, url: str, scopes: tuple[str, ...]) -> bool:
        with self._session.ask("POST", url, scopes) as response:
            begun = self._session.location(response) if response.status_code == 202 else ""
        self._cancel(begun)
        return response.status_code == 201

    def _send(self, blob: Blob) -> int:
        """Send one blob, going on where a broken attempt ended if the registry can; return the bytes sent."""
        upload = _Upload(self._session, self._base, self._scopes, blob, self._work)
        failures, furthest = 0, 0
        try:
            while True:
                try:
                    upload.run()
                    return upload.body.sent
                except Temporary as failure:
                    failures = 1 if upload.body.start > furthest else failures + 1
                    furthest = max(furthest, upload.body.start)
                    self._session.pause(f"{self._base}/blobs/{blob.digest}", failure, failures)
        except EnvsmithError:
            self._cancel(upload.location)
            raise

    def _cancel(self, location: str) -> None:
        """Tell the registry to forget an upload; it would do so by itself some day."""
        with contextlib.suppress(EnvsmithError, Temporary, Stopped):
            if location:
                with self._session.ask("DELETE", location, self._scopes):
                    pass


class _Upload:
    """One blob on its way: a POST opens it, one PUT brings all; after a break a PATCH brings what is missing."""

    def __init__(self, session: RegistrySession, base: str, scopes: tuple[str, ...], blob: Blob, work: Work) -> None:
        self._session, self._base, self._scopes, self._blob = session, base, scopes, blob
        self.location = ""
        self._broken = False
        self.body = _Body(blob, work)

    def run(self) -> None:
        """Go on until the blob is there.

        Raises:
            Temporary: call it again.
        """
        if self.location and self._broken:
            self._ask_how_far()
        if not self.location:
            self._begin()
        self._broken = True  # until the registry has said otherwise
        if self.body.start:
            self._patch()
        self._put()
        self._broken = False

    def _begin(self) -> None:
        self.body.start = 0
        with self._session.ask("POST", f"{self._base}/blobs/uploads/", self._scopes) as response:
            if response.status_code != 202:
                raise SupplyError(self._session.refusal(response, "the beginning of an upload"))
            self.location = self._session.location(response)

    def _ask_how_far(self) -> None:
        """Learn what the registry has of a broken upload; without a clear answer it is begun again.

        Docker's registry 2.8.2 says "0-0" for nothing and for one byte alike, and answers 404 to every question for
        an upload whose body broke off, also to the one that cancels it (both seen 2026-11-30).
        """
        try:
            with self._session.ask("GET", self.location, self._scopes) as response:
                span = re.fullmatch(r"(?:bytes=)?0-(\d+)", response.headers.get("Range", ""))
                if response.status_code != 204 or not span or not 0 < int(span[1]) < self._blob.size:
                    self.location = ""
                    return
                self.body.start = int(span[1]) + 1
                if "Location" in response.headers:
                    self.location = self._session.location(response)
        except Temporary as failure:
            if not failure.connecting:  # it was heard, and does not know
                self.location = ""
            raise

    def _patch(self) -> None:
        """Bring the rest, if there is one; it was all sent, and hashed, when the registry has it all."""
        if not len(self.body):
            return
        span = {"Content-Range": f"{self.body.start}-{self._blob.size - 1}"}
        with self._session.ask(
            "PATCH", self.location, self._scopes, headers=_BINARY | span, body=self.body
        ) as response:
            self._require(response, 202)
            self.location = self._session.location(response)
        self.body.start = self._blob.size

    def _put(self) -> None:
        url = f"{self.location}{'&' if '?' in self.location else '?'}{urlencode({'digest': self._blob.digest})}"
        if not self._blob.size:
            self.body.require_empty()
        body = self.body if len(self.body) else b""
        with self._session.ask("PUT", url, self._scopes, headers=_BINARY, body=body) as response:
            self._require(response, 201)

    def _require(self, response: requests.Response, status: int) -> None:
        """Take an answer that is not the wanted one for the end, or for an upload that must begin again."""
        if response.status_code == status:
            return
        lost = response.status_code in (404, 416) or (response.status_code == 400 and self.body.start)
        if lost:
            self.location = ""
            raise Temporary(f"answered {response.status_code}: the upload is not known any more")
        raise SupplyError(self._session.refusal(response, f"the upload of `{self._blob.digest}`"))


class _Body:
    """The bytes of a blob from `start` on. It may be read many times, and hashes all of them each time.

    The last bytes are only given when the hash is right, so that no registry gets a whole wrong blob.
    """

    def __init__(self, blob: Blob, work: Work) -> None:
        self._blob = blob
        self._path = blob.path or Path()
        self._work = work
        self._counted = 0
        self.start = 0
        self.sent = 0

    def __len__(self) -> int:
        return self._blob.size - self.start

    def __iter__(self) -> Iterator[memoryview]:
        digest = hashlib.sha256()
        position = 0
        self._count(0)
        with self._blob.source() if self._blob.source else self._opened() as stream:
            for chunk in chunks(stream):  # type: ignore[arg-type]
                self._work.sleep(0)
                digest.update(chunk)
                fresh = chunk[max(0, self.start - position) :]
                position += len(chunk)
                self._require_size(position, whole=False)
                if position == self._blob.size:
                    self._require_digest(digest.hexdigest())
                if fresh:
                    yield fresh
                    self.sent += len(fresh)
                self._count(position)
        self._require_size(position)

    def require_empty(self) -> None:
        """Hash a blob of no bytes, for which no body is read."""
        for _ in self:
            pass
        self._require_digest(hashlib.sha256().hexdigest())

    @contextlib.contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        with filesystem(self._path), self._path.open("rb", buffering=0) as stream:
            self._require_size(os.fstat(stream.fileno()).st_size)
            yield stream

    def _require_size(self, actual: int, *, whole: bool = True) -> None:
        if actual > self._blob.size or (whole and actual < self._blob.size):
            expected = f"{self._blob.size} bytes"
            raise IntegrityError(differs(self._blob.digest, str(self._path), expected, f"{actual} bytes", _HERE))

    def _require_digest(self, actual: str) -> None:
        if f"sha256:{actual}" != self._blob.digest:
            where = str(self._path)
            raise IntegrityError(differs(self._blob.digest, where, self._blob.digest, f"sha256:{actual}", _HERE))

    def _count(self, position: int) -> None:
        self._work.advance(position - self._counted)
        self._counted = position


_HERE = "nothing of it was pushed; make the bundle again, or get it again from where it came"
_AT_REGISTRY = "the registry's store is damaged, or the manifest was made by hand: ask whoever runs it"


def differs(digest: str, where: str, expected: str, actual: str, hint: str | None) -> Problem:
    """State that a blob is not what its name says."""
    message = f"the blob `{digest}` is not what its name says"
    return Problem(
        code="blob-digest-differs", message=message, where=where, hint=hint, expected=expected, actual=actual
    )


def absent(digests: Sequence[str], where: str, fact: Callable[[str], str], hint: str) -> list[Problem]:
    """State for each blob that it cannot be had; after the first 20 they are counted."""
    problems = [
        Problem(code="blob-missing", message=fact(digest), where=where, hint=hint) for digest in digests[:_SHOWN]
    ]
    if len(digests) > _SHOWN:
        message = f"{len(digests) - _SHOWN} more problems of this kind are not shown"
        problems.append(Problem(code="more-failures", message=message))
    return problems


def _require_local(missing: Sequence[Blob], base: str) -> None:
    gone = [blob.digest for blob in missing if not blob.is_here()]
    if gone:
        hint = "this bundle holds only what its base lacks: push the base first, or name its repository to mount from"
        raise SupplyError(
            *absent(gone, base, lambda one: f"the blob `{one}` is neither here nor at the registry", hint)
        )
