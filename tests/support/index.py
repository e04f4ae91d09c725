"""A real package index on 127.0.0.1, with faults one can plant and a log of what was asked."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import ssl
import threading
import time
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlsplit

JSON_TYPE = "application/vnd.pypi.simple.v1+json"


@dataclass
class Faults:
    """What goes wrong. File faults are keyed by file name; change them while the server runs."""

    truncate: dict[str, list[int]] = field(default_factory=dict)
    """Per response: close the connection after so many body bytes; the last number stays."""
    errors: dict[str, list[int]] = field(default_factory=dict)
    """Statuses to answer with, one a request, before it works. Key: a file name or a project name."""
    wrong_bytes: set[str] = field(default_factory=set)
    """Serve other bytes of the same size."""
    extra_bytes: dict[str, int] = field(default_factory=dict)
    """Append so many bytes, without a Content-Length."""
    absent: set[str] = field(default_factory=set)
    """404 for these files, although the page lists them."""
    redirect: dict[str, str] = field(default_factory=dict)
    """302 to this URL."""
    bytes_per_s: float | None = None
    """Serve files no faster than this."""
    stall: set[str] = field(default_factory=set)
    """Accept the request and say nothing, until the server stops."""
    ranges: bool = True
    etags: bool = True
    hashes: bool = True
    json: bool = True
    """Offer PEP 691 JSON; otherwise PEP 503 HTML only."""
    metadata: bool = True
    """Offer PEP 658 metadata files."""
    wrong_metadata: set[str] = field(default_factory=set)
    auth: tuple[str, str] | None = None
    """Require this user and password."""


@dataclass(frozen=True)
class Asked:
    """One request and what was answered."""

    method: str
    path: str
    status: int
    range: str | None
    if_range: str | None
    authorization: str | None

    @property
    def file(self) -> str:
        return unquote(self.path.rsplit("/", 1)[-1])


class SimpleIndex:
    """`with SimpleIndex(folder) as index:` serves its wheels and sdists under `index.url`."""

    def __init__(self, folder: Path, *, tls: tuple[Path, Path] | None = None) -> None:
        """Serve this folder; `tls` is a certificate and its key."""
        self.folder = folder
        self._scheme = "https" if tls else "http"
        self.faults = Faults()
        self.log: list[Asked] = []
        self.stopping = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.index = self
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self.port}/simple"

    def with_auth(self, user: str, password: str) -> str:
        """The URL with credentials in it."""
        return f"{self._scheme}://{user}:{password}@127.0.0.1:{self.port}/simple"

    def __enter__(self) -> SimpleIndex:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stopping.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def asked_for(self, filename: str) -> list[Asked]:
        """The requests for one file, in order."""
        return [asked for asked in self.log if asked.file == filename]

    def projects(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for path in sorted(self.folder.iterdir()):
            if path.name.endswith((".whl", ".tar.gz")):
                found.setdefault(project_of(path.name), []).append(path)
        return found


def project_of(filename: str) -> str:
    """Return the normalised project name of a wheel's or an sdist's file name."""
    stem = filename.split("-")[0] if filename.endswith(".whl") else filename.removesuffix(".tar.gz").rsplit("-", 1)[0]
    return re.sub(r"[-_.]+", "-", stem).lower()


def metadata_of(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA")))


def write_folder_index(folder: Path, root: Path, *, hashes: bool = True) -> str:
    """Write a PEP 503 tree of the files of `folder` under `root` and return its file:// URL."""
    for path in sorted(folder.glob("*.whl")):
        project = root / project_of(path.name)
        project.mkdir(parents=True, exist_ok=True)
        (project / path.name).write_bytes(path.read_bytes())
        fragment = f"#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}" if hashes else ""
        with (project / "index.html").open("a") as page:
            page.write(f'<a href="{path.name}{fragment}">{path.name}</a>\n')
    return root.as_uri()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    index: SimpleIndex

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet: the index has its own log."""

    def _answer(self, *, body: bool) -> None:
        faults = self.server.index.faults
        parts = [unquote(part) for part in urlsplit(self.path).path.split("/") if part]
        last = parts[-1] if parts else ""
        if faults.auth and self.headers.get("Authorization") != _basic(*faults.auth):
            self._send(401, b"who are you?", extra={"WWW-Authenticate": 'Basic realm="tests"'}, body=body)
        elif faults.errors.get(last):
            self._send(faults.errors[last].pop(0), b"planted", body=body)
        elif last in faults.redirect:
            self._send(302, b"", extra={"Location": faults.redirect[last]}, body=body)
        elif last in faults.stall:
            self._note(0)
            self.server.index.stopping.wait()
            self.close_connection = True
        elif parts[:1] == ["simple"] and len(parts) <= 2:
            self._page(last if len(parts) == 2 else None, body=body)
        elif parts[:1] == ["files"] and len(parts) == 2:
            self._file(last, body=body)
        else:
            self._send(404, b"no such thing", body=body)

    def _page(self, project: str | None, *, body: bool) -> None:
        projects = self.server.index.projects()
        faults = self.server.index.faults
        as_json = faults.json and JSON_TYPE in self.headers.get("Accept", "")
        kind = JSON_TYPE if as_json else "text/html"
        if project is None:
            names = sorted(projects)
            listed = {"meta": {"api-version": "1.0"}, "projects": [{"name": name} for name in names]}
            page = json.dumps(listed) if as_json else "".join(f'<a href="{name}/">{name}</a>\n' for name in names)
        elif project not in projects:
            return self._send(404, b"no such project", body=body)
        else:
            page = _json_page(project, projects[project], faults) if as_json else _html_page(projects[project], faults)
        self._send(200, page.encode(), kind=kind, body=body)

    def _file(self, name: str, *, body: bool) -> None:
        index, faults = self.server.index, self.server.index.faults
        wheel = index.folder / name.removesuffix(".metadata")
        if name in faults.absent or not wheel.is_file():
            return self._send(404, b"no such file", body=body)
        if name.endswith(".metadata"):
            if not faults.metadata:
                return self._send(404, b"no metadata", body=body)
            return self._send(200, metadata_of(wheel) + (b"X: y\n" if wheel.name in faults.wrong_metadata else b""))
        content = wheel.read_bytes()
        if name in faults.wrong_bytes:
            content = bytes(byte ^ 0xFF for byte in content)
        self._send_file(name, content, body=body)

    def _send_file(self, name: str, content: bytes, *, body: bool) -> None:
        faults = self.server.index.faults
        etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        start, end, status = 0, len(content), 200
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if faults.ranges and asked and self.headers.get("If-Range", etag) == etag:
            first, last = asked.groups()
            start = int(first) if first else max(0, len(content) - int(last))
            end = min(int(last) + 1, len(content)) if first and last else len(content)
            status = 206
            if start >= len(content):
                return self._send(416, b"", extra={"Content-Range": f"bytes */{len(content)}"}, body=body)
        self._note(status)
        self.send_response(status)
        self.send_header("Content-Type", "application/octet-stream")
        if faults.etags:
            self.send_header("ETag", etag)
        if faults.ranges:
            self.send_header("Accept-Ranges", "bytes")
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        part = content[start:end] + bytes(faults.extra_bytes.get(name, 0))
        if name in faults.extra_bytes:
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if body:
            self._write(part, _cut(faults.truncate.get(name)))

    def _write(self, part: bytes, cut: int | None) -> None:
        speed = self.server.index.faults.bytes_per_s
        step = max(1, int(speed / 20)) if speed else 1 << 16
        whole = part if cut is None else part[:cut]
        for offset in range(0, len(whole), step):
            self.wfile.write(whole[offset : offset + step])
            self.wfile.flush()
            if speed and self.server.index.stopping.wait(step / speed):
                break
        if cut is not None:
            self.close_connection = True

    def _send(
        self, status: int, content: bytes, *, kind: str = "text/plain", extra: dict[str, str] | None = None,
        body: bool = True,
    ) -> None:  # fmt: skip
        self._note(status)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        for key, value in (extra or {}).items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _note(self, status: int) -> None:
        heads = self.headers
        noted = (heads.get("Range"), heads.get("If-Range"), heads.get("Authorization"))
        self.server.index.log.append(Asked(self.command, self.path, status, *noted))


def _cut(planned: list[int] | None) -> int | None:
    if not planned:
        return None
    return planned.pop(0) if len(planned) > 1 else planned[0]


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def _json_page(project: str, paths: list[Path], faults: Faults) -> str:
    files = []
    for path in paths:
        entry: dict[str, object] = {"filename": path.name, "url": f"../../files/{path.name}"}
        entry["hashes"] = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()} if faults.hashes else {}
        if faults.metadata and path.suffix == ".whl":
            entry["core-metadata"] = {"sha256": hashlib.sha256(metadata_of(path)).hexdigest()}
        files.append(entry)
    return json.dumps({"meta": {"api-version": "1.0"}, "name": project, "files": files})


def _html_page(paths: list[Path], faults: Faults) -> str:
    lines = ["<!DOCTYPE html><html><body>"]
    for path in paths:
        fragment = f"#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}" if faults.hashes else ""
        attribute = ""
        if faults.metadata and path.suffix == ".whl":
            attribute = f' data-core-metadata="sha256={hashlib.sha256(metadata_of(path)).hexdigest()}"'
        link = html.escape(f"../../files/{path.name}{fragment}")
        lines.append(f'<a href="{link}"{attribute}>{path.name}</a>')
    return "\n".join([*lines, "</body></html>"])


def wait_until(true: object, *, timeout_s: float = 10.0) -> None:
    """Wait until `true()` holds; fail the test when it never does."""
    assert callable(true)
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.01)
