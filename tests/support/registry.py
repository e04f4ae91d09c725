"""A registry on 127.0.0.1 that keeps to the OCI distribution spec, with faults one can plant and a log of requests."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import ssl
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
PAGE = b"<html><title>Please sign in</title></html>"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class Faults:
    """What goes wrong. Kinds of requests: `head-blob`, `get-blob`, `post-upload`, `put-upload`, `patch-upload`,
    `get-upload`, `delete-upload`, `get-manifest`, `head-manifest`, `put-manifest`, `get-tags`, `token`."""

    basic: tuple[str, str] | None = None
    bearer: tuple[str, str] | None = None
    """Ask for a token; the token server wants this user and password, and none if both are empty."""
    identity_token: str = ""
    """What the token server takes in a POST."""
    realm: str = ""
    """Name another token server than our own."""
    token_uses: int = 1 << 30
    """How often a token is good."""
    token_life_s: int | None = 300
    token_answer: bytes | None = None
    scheme: str = ""
    """Ask for this scheme instead."""
    errors: dict[str, list[int]] = field(default_factory=dict)
    """Statuses by kind, one a request, before it works."""
    retry_after: str = ""
    cut: list[int] = field(default_factory=list)
    """Per GET of a blob: close after so many body bytes."""
    cut_upload: list[int] = field(default_factory=list)
    """Per PUT or PATCH: take so many bytes and close."""
    forgets_uploads: bool = False
    """A broken upload is gone, instead of waiting to be continued."""
    ranges: bool = True
    range_shift: int = 0
    """Continue this many bytes off."""
    wrong_bytes: bool = False
    extra_bytes: int = 0
    """Send so many more, with no length announced."""
    wrong_length: int = 0
    """Blobs, and what is said of them, are so many bytes longer."""
    redirect: Callable[[str], str] | None = None
    """Send GETs of blobs to another URL, made of the path."""
    location: Callable[[str], str] | None = None
    """Name another URL for uploads."""
    mounts: bool = True
    mounts_unauthorized: bool = False
    stated_digest: str | None = None
    """What Docker-Content-Digest says of manifests."""
    no_stated_digest: bool = False
    manifest: bytes | None = None
    """Give this instead of every manifest."""
    page: bool = False
    """Answer every GET with a web page."""
    tags: list[str] | None = None
    next_page: str = ""


@dataclass(frozen=True)
class Asked:
    """One request and what was answered."""

    method: str
    path: str
    status: int
    authorization: str | None
    range: str | None
    content_range: str | None
    host: str | None
    encoding: str | None
    port: int
    """The client's, by which one connection is told from another."""


class RegistryDouble:
    """`with RegistryDouble() as registry:` serves below `registry.host`; look into `blobs` and `manifests`."""

    def __init__(self, *, tls: tuple[Path, Path] | None = None) -> None:
        self.faults = Faults()
        self.log: list[Asked] = []
        self.blobs: dict[str, dict[str, bytes]] = defaultdict(dict)
        self.manifests: dict[str, dict[str, bytes]] = defaultdict(dict)
        self.uploads: dict[str, bytearray] = {}
        self.token_requests: list[dict[str, list[str]]] = []
        self.tokens: dict[str, tuple[list[str], int]] = {}
        self.bytes_in = 0
        self.gate = threading.Lock()
        self.numbers = itertools.count(1)
        self.scheme = "https" if tls else "http"
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.registry = self
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}"

    def __enter__(self) -> RegistryDouble:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def add(self, repository: str, *contents: bytes) -> list[str]:
        """Put blobs there and return their digests."""
        for content in contents:
            self.blobs[repository][digest_of(content)] = content
        return [digest_of(content) for content in contents]

    def add_manifest(self, repository: str, tag: str, content: bytes) -> str:
        self.manifests[repository][tag] = self.manifests[repository][digest_of(content)] = content
        return digest_of(content)

    def asked(self, method: str, part: str = "") -> list[Asked]:
        """The requests of one method whose path holds `part`."""
        return [one for one in self.log if one.method == method and part in one.path]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    registry: RegistryDouble

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are part of the tests."""


_ROUTE = re.compile(r"/v2/(?P<repository>.+)/(?P<kind>blobs/uploads|blobs|manifests|tags)/(?P<name>[^/]*)")


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet: the registry has its own log."""

    def do_GET(self) -> None:
        self._route()

    def do_HEAD(self) -> None:
        self._route()

    def do_POST(self) -> None:
        self._route()

    def do_PUT(self) -> None:
        self._route()

    def do_PATCH(self) -> None:
        self._route()

    def do_DELETE(self) -> None:
        self._route()

    @property
    def registry(self) -> RegistryDouble:
        return self.server.registry

    def _route(self) -> None:
        parts = urlsplit(self.path)
        self.query = parse_qs(parts.query)
        faults, method = self.registry.faults, self.command.lower()
        self.left = int(self.headers.get("Content-Length", "0"))
        match = _ROUTE.fullmatch(parts.path)
        kind = {"blobs/uploads": "upload", "blobs": "blob", "manifests": "manifest", "tags": "tags"}
        route = f"{method}-{kind[match['kind']]}" if match else "token" if parts.path == "/token" else ""
        if faults.errors.get(route):
            extra = {"Retry-After": faults.retry_after} if faults.retry_after else {}
            return self._error(faults.errors[route].pop(0), "PLANTED", extra)
        if route == "token":
            return self._token()
        if not match:
            return self._error(404, "NOT_FOUND")
        self.repository, self.name = match["repository"], match["name"]
        refused = self._challenge(method)
        if refused:
            return self._error(401, "UNAUTHORIZED", {"WWW-Authenticate": refused})
        if faults.page and method == "get":
            return self._send(200, PAGE, {"Content-Type": "text/html"})
        handler = getattr(self, "_" + route.replace("-", "_"), None)
        if handler is None:
            return self._error(405, "UNSUPPORTED")
        handler()

    # who asks

    def _challenge(self, method: str) -> str:
        """Return the challenge for a request that is not allowed, else nothing."""
        faults, sent = self.registry.faults, self.headers.get("Authorization")
        if faults.scheme:
            return faults.scheme
        if faults.basic and sent != _basic(*faults.basic):
            return 'Basic realm="tests, here"'
        if faults.bearer is None:
            return ""
        needed = {f"repository:{self.repository}:{'pull' if method in ('get', 'head') else 'push'}"}
        needed |= {f"repository:{other}:pull" for other in self.query.get("from", [])}
        with self.registry.gate:
            scopes, uses = self.registry.tokens.get((sent or "").removeprefix("Bearer "), ([], 0))
            if uses > 0 and needed <= set(scopes):
                self.registry.tokens[(sent or "").removeprefix("Bearer ")] = scopes, uses - 1
                return ""
        realm = faults.realm or f"{self.registry.url}/token"
        return f'Bearer realm="{realm}",service="tests",scope="{" ".join(sorted(needed))}"'

    def _token(self) -> None:
        faults = self.registry.faults
        asked = parse_qs(self._body().decode()) if self.command == "POST" else self.query
        self.registry.token_requests.append(asked)
        if faults.token_answer is not None:
            return self._send(200, faults.token_answer)
        if self.command == "POST":
            allowed = bool(faults.identity_token) and asked.get("refresh_token") == [faults.identity_token]
        else:
            allowed = faults.bearer in (None, ("", "")) or self.headers.get("Authorization") == _basic(*faults.bearer)
        if not allowed:
            return self._error(401, "UNAUTHORIZED")
        scopes = []
        for scope in " ".join(asked.get("scope", [])).split():
            kind, name, actions = scope.split(":")
            scopes += [f"{kind}:{name}:{action}" for action in actions.split(",")]
        with self.registry.gate:
            token = f"token-{next(self.registry.numbers)}"
            self.registry.tokens[token] = scopes, faults.token_uses
        answer: dict[str, object] = {"token" if self.command == "GET" else "access_token": token}
        if faults.token_life_s is not None:
            answer["expires_in"] = faults.token_life_s
        self._send(200, json.dumps(answer).encode())

    # blobs

    def _head_blob(self) -> None:
        content = self.registry.blobs[self.repository].get(self.name)
        if content is None:
            return self._error(404, "BLOB_UNKNOWN")
        length = len(content) + self.registry.faults.wrong_length
        self._send(200, b"", {"Content-Length": str(length), "Docker-Content-Digest": self.name})

    def _get_blob(self) -> None:
        faults = self.registry.faults
        content = self.registry.blobs[self.repository].get(self.name)
        if content is None:
            return self._error(404, "BLOB_UNKNOWN")
        if faults.redirect:
            return self._send(307, b"", {"Location": faults.redirect(self.path)})
        if faults.wrong_bytes:
            content = bytes(byte ^ 0xFF for byte in content)
        content += bytes(max(0, faults.wrong_length))
        content = content[: len(content) + min(0, faults.wrong_length)]
        start, total = 0, len(content)
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and faults.ranges:
            start = int(asked[1]) + faults.range_shift
            if start >= total:
                return self._send(416, b"", {"Content-Range": f"bytes */{total}"})
        self._note(206 if asked and faults.ranges else 200)
        self.send_response(206 if asked and faults.ranges else 200)
        if asked and faults.ranges:
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        if faults.extra_bytes:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(total - start))
        self.send_header("Content-Type", "application/octet-stream")
        self.end_headers()
        body = content[start:] + bytes(faults.extra_bytes)
        if faults.cut:
            body = body[: faults.cut.pop(0)]
            self.close_connection = True
        self.wfile.write(body)

    # uploads

    def _post_upload(self) -> None:
        registry, faults = self.registry, self.registry.faults
        mount, others = self.query.get("mount", [""])[0], self.query.get("from", [])
        if mount and faults.mounts_unauthorized:
            return self._error(401, "UNAUTHORIZED", {"WWW-Authenticate": "Basic realm=tests"})
        for other in others if faults.mounts else ():
            if mount in registry.blobs[other]:
                registry.blobs[self.repository][mount] = registry.blobs[other][mount]
                return self._send(201, b"", {"Location": f"/v2/{self.repository}/blobs/{mount}"})
        with registry.gate:
            name = f"upload-{next(registry.numbers)}"
            registry.uploads[name] = bytearray()
        self._send(202, b"", {"Location": self._location(name), "Range": "0-0"})

    def _location(self, name: str) -> str:
        path = f"/v2/{self.repository}/blobs/uploads/{name}?state=a%2Fb"
        return self.registry.faults.location(path) if self.registry.faults.location else path

    def _upload(self) -> bytearray | None:
        upload = self.registry.uploads.get(self.name)
        if upload is None:
            self._error(404, "BLOB_UPLOAD_UNKNOWN")
        return upload

    def _get_upload(self) -> None:
        upload = self._upload()
        if upload is not None:
            end = max(0, len(upload) - 1)
            self._send(204, b"", {"Location": self._location(self.name), "Range": f"0-{end}"})

    def _delete_upload(self) -> None:
        if self._upload() is not None:
            del self.registry.uploads[self.name]
            self._send(204, b"")

    def _take(self, upload: bytearray) -> bool:
        """Append the body; say whether all of it came."""
        faults = self.registry.faults
        cut = faults.cut_upload.pop(0) if faults.cut_upload and self.left else None
        body = self._body(cut)
        self.registry.bytes_in += len(body)
        upload += body
        if cut is None:
            return True
        if faults.forgets_uploads:
            del self.registry.uploads[self.name]
        self._note(0)
        self.close_connection = True
        return False

    def _patch_upload(self) -> None:
        upload = self._upload()
        if upload is None:
            return
        span = re.fullmatch(r"(\d+)-(\d+)", self.headers.get("Content-Range", ""))
        if not span or int(span[1]) != len(upload) or int(span[2]) - int(span[1]) + 1 != self.left:
            return self._error(416, "BLOB_UPLOAD_INVALID", {"Range": f"0-{max(0, len(upload) - 1)}"})
        if self._take(upload):
            self._send(202, b"", {"Location": self._location(self.name), "Range": f"0-{len(upload) - 1}"})

    def _put_upload(self) -> None:
        upload = self._upload()
        if upload is None or not self._take(upload):
            return
        content, digest = bytes(upload), self.query.get("digest", [""])[0]
        if digest_of(content) != digest:
            return self._error(400, "DIGEST_INVALID")
        del self.registry.uploads[self.name]
        self.registry.blobs[self.repository][digest] = content
        headers = {"Location": f"/v2/{self.repository}/blobs/{digest}", "Docker-Content-Digest": digest}
        self._send(201, b"", headers)

    # manifests and tags

    def _head_manifest(self) -> None:
        self._get_manifest()

    def _get_manifest(self) -> None:
        faults = self.registry.faults
        content = self.registry.manifests[self.repository].get(self.name)
        if content is None:
            return self._error(404, "MANIFEST_UNKNOWN")
        content = faults.manifest if faults.manifest is not None else content
        headers = {"Content-Type": MANIFEST_TYPE, "Docker-Content-Digest": faults.stated_digest or digest_of(content)}
        if faults.no_stated_digest:
            del headers["Docker-Content-Digest"]
        self._send(200, content, headers)

    def _put_manifest(self) -> None:
        content = self._body()
        named = json.loads(content)
        unknown = {one["digest"] for one in [named["config"], *named["layers"]]}
        unknown -= self.registry.blobs[self.repository].keys()
        if unknown:
            return self._error(404, "MANIFEST_BLOB_UNKNOWN")
        if self.name.startswith("sha256:") and digest_of(content) != self.name:
            return self._error(400, "DIGEST_INVALID")
        digest = self.registry.add_manifest(self.repository, self.name, content)
        self._send(201, b"", {"Docker-Content-Digest": digest})

    def _get_tags(self) -> None:
        faults = self.registry.faults
        if self.repository not in self.registry.manifests:
            return self._error(404, "NAME_UNKNOWN")
        known = sorted(name for name in self.registry.manifests[self.repository] if ":" not in name)
        known = faults.tags if faults.tags is not None else known
        last = self.query.get("last", [""])[0]
        page = [name for name in known if name > last][:2]
        headers = {}
        if page and page[-1] != known[-1]:
            following = faults.next_page or f"/v2/{self.repository}/tags/list?n=2&last={page[-1]}"
            headers["Link"] = f'<{following}>; rel="next"'
        self._send(200, json.dumps({"name": self.repository, "tags": page or None}).encode(), headers)

    # the wire

    def _body(self, limit: int | None = None) -> bytes:
        content = self.rfile.read(self.left if limit is None else min(self.left, limit))
        self.left -= len(content)
        return content

    def _error(self, status: int, code: str, extra: dict[str, str] | None = None) -> None:
        body = json.dumps({"errors": [{"code": code, "message": "planted by the tests", "detail": None}]}).encode()
        self._send(status, body, {"Content-Type": "application/json", **(extra or {})})

    def _send(self, status: int, content: bytes, extra: dict[str, str] | None = None) -> None:
        self._body()  # what of the request was not read would be taken for the next one
        self._note(status)
        headers = {"Content-Length": str(len(content)), "Content-Type": "application/json", **(extra or {})}
        self.send_response(status)
        for key, value in headers.items():
            if status != 204 or key not in ("Content-Length", "Content-Type"):
                self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _note(self, status: int) -> None:
        heads = self.headers
        noted: tuple[Any, ...] = (heads.get("Authorization"), heads.get("Range"), heads.get("Content-Range"))
        noted += (heads.get("Host"), heads.get("Accept-Encoding"), self.client_address[1])
        self.registry.log.append(Asked(self.command, self.path, status, *noted))


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
