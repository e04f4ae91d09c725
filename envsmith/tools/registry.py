"""A client of OCI registries (distribution spec v1.1): manifests and blobs to and from one repository.

It knows nothing of bundles: callers hand in blobs and a manifest, or say which blobs they want and where.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from urllib.parse import urlencode, urljoin

import requests

from envsmith.errors import InputError, IntegrityError, Problem, SupplyError
from envsmith.ocireference import Reference, is_digest, is_repository, is_tag
from envsmith.tools.progress import Progress
from envsmith.tools.registry_auth import find_login
from envsmith.tools.registry_pull import Destination, Pull, Pulled
from envsmith.tools.registry_push import Blob, Moved, Push
from envsmith.tools.registry_session import RegistrySession, malformed, page_hint, read, read_json
from envsmith.tools.registry_work import Work
from envsmith.tools.transport import same_origin

#: Source: OCI distribution spec v1.1, "Pushing manifests": registries should take at least this much, and Docker's
#: takes no more (read 2026-11-30).
MANIFEST_BYTES = 4 << 20
_MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_PAGES = 1000


class Registry:
    """One repository of one registry. Use it as a context manager."""

    def __init__(
        self,
        reference: Reference,
        *,
        environ: Mapping[str, str],
        insecure: bool = False,
        progress: Progress | None = None,
        jobs: int = 4,
        timeout_s: float = 30.0,
        attempts: int = 5,
        backoff_s: float = 0.5,
    ) -> None:
        """Nothing is sent yet. `insecure` speaks plain http; without it nothing but https is ever spoken."""
        self.reference = reference
        self._work = Work(progress or Progress(), jobs)
        self._session = RegistrySession(
            f"{'http' if insecure else 'https'}://{reference.host}",
            lambda: find_login(reference.host, reference.repository, environ),
            environ=environ,
            timeout_s=timeout_s,
            attempts=attempts,
            backoff_s=backoff_s,
            sleep=self._work.sleep,
        )
        self._base = f"{self._session.site}/v2/{reference.repository}"
        self._reading = (f"repository:{reference.repository}:pull",)
        self._writing = (f"repository:{reference.repository}:pull,push",)

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.__exit__(kind, error, trace)

    def push(
        self,
        blobs: Iterable[Blob],
        manifest: bytes,
        media_type: str,
        tags: Sequence[str] = (),
        mount_from: Sequence[str] = (),
    ) -> Moved:
        """Bring the blobs, then the manifest under every tag, or by its digest alone; read the manifest back.

        `mount_from` names repositories of the same registry that may have some of the blobs.

        Raises:
            InputError: `digest-malformed`, `oci-reference-malformed`, `registry-config-malformed`.
            IntegrityError: `blob-digest-differs`, `registry-manifest-differs`.
            SupplyError: `blob-missing`, `manifest-too-large`, `registry-refused`, `registry-unauthorized`,
                `registry-unreachable`, `registry-scheme-differs`, `registry-answer-malformed`, …
        """
        wanted = tuple(blobs)
        _require_names(tags, mount_from)
        _require_digests(blob.digest for blob in wanted)
        _require_size(len(manifest), str(self.reference))
        others = [other for other in dict.fromkeys(mount_from) if other != self.reference.repository]
        moved = Push(self._session, self._work, self._base, self._writing, others).blobs(wanted)
        digest = _digest(manifest)
        for name in dict.fromkeys(tags) or (digest,):
            url = f"{self._base}/manifests/{name}"
            self._session.retrying(url, lambda url=url: self._put_manifest(url, manifest, media_type))  # type: ignore[misc]
        returned, _ = self._get_manifest(digest, self._writing)
        if returned != manifest:
            raise IntegrityError(_manifest_differs(self._base, digest, _digest(returned)))
        return moved

    def fetch_manifest(self) -> bytes:
        """Return the manifest of the reference, byte for byte.

        Raises:
            SupplyError: `manifest-missing`, `manifest-too-large`, and what a session raises.
            IntegrityError: `registry-manifest-differs` from the digest asked for, or from the one the registry states.
        """
        content, stated = self._get_manifest(self.reference.name, self._reading)
        expected = self.reference.digest or stated
        if is_digest(expected) and _digest(content) != expected:
            raise IntegrityError(_manifest_differs(self._base, expected, _digest(content)))
        return content

    def resolve(self, tag: str) -> str:
        """Return the digest of the manifest that has this tag now.

        Raises:
            SupplyError: `manifest-missing`, and what a session raises.
        """
        url = f"{self._base}/manifests/{tag}"
        stated = self._session.retrying(url, lambda: self._ask_digest(url))
        return stated if is_digest(stated) else _digest(self._get_manifest(tag, self._reading)[0])

    def pull(self, blobs: Sequence[tuple[str, int]], *, have: Callable[[str, int], bool], into: Destination) -> Pulled:
        """Bring in the blobs, as digest and size, that `have` denies; it is asked again when a blob's turn comes.

        Raises:
            InputError: `digest-malformed`, `registry-config-malformed`.
            IntegrityError: `blob-digest-differs`; the part is gone.
            SupplyError: `blob-missing`, `disk-full`, `registry-unauthorized`, `registry-unreachable`, …
        """
        _require_digests(digest for digest, _ in blobs)
        return Pull(self._session, self._work, self._base, self._reading, into).blobs(blobs, have)

    def list_tags(self) -> list[str]:
        """Return the tags of the repository, in order.

        Raises:
            SupplyError: `manifest-missing` when there is no such repository, `registry-answer-malformed`, …
        """
        found: set[str] = set()
        url = f"{self._base}/tags/list?{urlencode({'n': 1000})}"
        for _ in range(_PAGES):
            tags, following = self._session.retrying(url, lambda url=url: self._get_tags(url))  # type: ignore[misc]
            found |= tags
            if not following or len(found) > 1000 * _PAGES:
                break
            url = following
        return sorted(found)

    def _put_manifest(self, url: str, manifest: bytes, media_type: str) -> None:
        headers = {"Content-Type": media_type}
        with self._session.ask("PUT", url, self._writing, headers=headers, body=manifest) as response:
            if response.status_code != 201:
                raise SupplyError(self._session.refusal(response, "the manifest"))
            read(response, MANIFEST_BYTES)

    def _get_manifest(self, name: str, scopes: tuple[str, ...]) -> tuple[bytes, str]:
        url = f"{self._base}/manifests/{name}"
        return self._session.retrying(url, lambda: self._take_manifest(url, scopes))

    def _take_manifest(self, url: str, scopes: tuple[str, ...]) -> tuple[bytes, str]:
        headers = {"Accept": ", ".join(_MANIFEST_TYPES)}
        with self._session.ask("GET", url, scopes, headers=headers) as response:
            self._require_found(response)
            length = response.headers.get("Content-Length", "")
            _require_size(int(length) if length.isdigit() else 0, url)
            if page_hint(response):
                raise SupplyError(malformed(response, "it is no manifest"))
            return read(response, MANIFEST_BYTES), response.headers.get("Docker-Content-Digest", "")

    def _ask_digest(self, url: str) -> str:
        headers = {"Accept": ", ".join(_MANIFEST_TYPES)}
        with self._session.ask("HEAD", url, self._reading, headers=headers) as response:
            self._require_found(response)
            return response.headers.get("Docker-Content-Digest", "")

    def _get_tags(self, url: str) -> tuple[set[str], str | None]:
        with self._session.ask("GET", url, self._reading) as response:
            self._require_found(response)
            answer = read_json(response)
            tags = (answer.get("tags") or []) if isinstance(answer, dict) else None
            if not isinstance(tags, list) or not all(isinstance(tag, str) and is_tag(tag) for tag in tags):
                raise SupplyError(malformed(response, "it holds no list of tags"))
            following = response.links.get("next", {}).get("url")
            return set(tags), self._page(response, following) if following else None

    def _page(self, response: requests.Response, target: str) -> str:
        url = urljoin(response.url, target)
        if not same_origin(url, self._session.site):
            raise SupplyError(malformed(response, "the next page is on another host"))
        return url

    def _require_found(self, response: requests.Response) -> None:
        if response.status_code == 404:
            message = f"the registry has no `{self.reference}`"
            hint = "check repository and tag; `envsmith push` brings a bundle there"
            raise SupplyError(Problem(code="manifest-missing", message=message, where=self._base, hint=hint))
        if response.status_code != 200:
            raise SupplyError(self._session.refusal(response, "the question for a manifest"))


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _require_size(size: int, where: str) -> None:
    if size > MANIFEST_BYTES:
        message = f"the manifest has {size} bytes, and registries take {MANIFEST_BYTES}"
        hint = "about 14,000 blobs fit: bundle fewer envs at once"
        raise SupplyError(Problem(code="manifest-too-large", message=message, where=where, hint=hint))


def _require_digests(digests: Iterable[str]) -> None:
    for digest in digests:
        if not is_digest(digest):
            message = f"`{digest[:80]}` is not `sha256:` and 64 lower-case hexadecimal digits"
            raise InputError(Problem(code="digest-malformed", message=message))


def _require_names(tags: Iterable[str], repositories: Iterable[str]) -> None:
    wrong = [f"`{tag[:140]}` is not a tag" for tag in tags if not is_tag(tag)]
    wrong += [f"`{name[:260]}` is not the name of a repository" for name in repositories if not is_repository(name)]
    if wrong:
        raise InputError(*(Problem(code="oci-reference-malformed", message=message) for message in wrong))


def _manifest_differs(base: str, expected: str, actual: str) -> Problem:
    message = "the registry gives another manifest than the one asked for"
    hint = "the registry, or something between, changed it: do not use it, and ask whoever runs it"
    return Problem(
        code="registry-manifest-differs", message=message, where=base, hint=hint, expected=expected, actual=actual
    )
