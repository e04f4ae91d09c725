"""Docker's registry, as Debian ships it, takes what is pushed and gives it back; skopeo copies it unharmed."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from envsmith.errors import EnvsmithError, IntegrityError, SupplyError
from envsmith.ocireference import parse_reference
from envsmith.tools.registry import Registry
from envsmith.tools.registry_pull import IntoStore
from envsmith.tools.registry_push import Blob, Moved
from envsmith.tools.store import Store
from tests.support.registry import MANIFEST_TYPE, digest_of

PROGRAM = shutil.which("docker-registry")
OPENSSL = shutil.which("openssl")
SKOPEO = shutil.which("skopeo")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="docker-registry is not installed")
needs_openssl = pytest.mark.skipif(OPENSSL is None, reason="openssl makes the certificates")

USER, PASSWORD = "anna", "pass:word-1"
#: bcrypt of PASSWORD, four rounds.
HTPASSWD = f"{USER}:$2b$04$EowWpb9iNNneh68.IzcaAuYKEWBz7AYPDy5mlV73eELyf1kxn.BUO\n"


@dataclass(frozen=True)
class Served:
    """A running registry and the folder it keeps things in."""

    host: str
    folder: Path

    def stored(self, digest: str) -> Path:
        algorithm, _, name = digest.partition(":")
        return self.folder / "docker/registry/v2/blobs" / algorithm / name[:2] / name / "data"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def serving(
    folder: Path, *, tls: tuple[Path, Path] | None = None, auth: dict[str, Any] | None = None, port: int = 0
) -> Iterator[Served]:
    """Run a registry; JSON is YAML, so that is what its configuration is written in."""
    folder.mkdir(parents=True, exist_ok=True)
    host = f"127.0.0.1:{port or free_port()}"
    http: dict[str, Any] = {"addr": host, "secret": "tests"}
    if tls:
        http["tls"] = {"certificate": str(tls[0]), "key": str(tls[1])}
    storage = {"filesystem": {"rootdirectory": str(folder / "data")}}
    config = {"version": 0.1, "log": {"level": "error"}, "storage": storage, "http": http}
    config |= {"auth": auth} if auth else {}
    (folder / "config.yml").write_text(json.dumps(config))
    assert PROGRAM
    with (folder / "log").open("ab") as log:
        child = subprocess.Popen((PROGRAM, "serve", str(folder / "config.yml")), stdout=log, stderr=log)
        try:
            for _ in range(500):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(host.split(":")[1]))):
                    break
                assert child.poll() is None, (folder / "log").read_text()
                time.sleep(0.02)
            yield Served(host=host, folder=folder / "data")
        finally:
            child.terminate()
            child.wait()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One registry for all tests that need nothing special of it; each uses repositories of its own."""
    with serving(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("certificate")
    paths = folder / "cert.pem", folder / "key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    argv += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(paths[0]), "-keyout", str(paths[1])]
    subprocess.run(argv, check=True, capture_output=True)
    return paths


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def contents() -> list[bytes]:
    return [random.Random(1).randbytes(3 << 20), b"lock", b"", b'{"schema": 1}']


def client(served: Served, repository: str, *, environ: dict[str, str] | None = None, **options: Any) -> Registry:
    reference = parse_reference(f"oci://{served.host}/{repository}:3")
    return Registry(reference, environ=environ or {}, **{"insecure": True, "attempts": 3, "backoff_s": 0.05, **options})


def blobs_in(folder: Path, contents: list[bytes]) -> list[Blob]:
    folder.mkdir(exist_ok=True)
    for content in contents:
        (folder / digest_of(content)[7:]).write_bytes(content)
    return [Blob(digest=digest_of(c), size=len(c), path=folder / digest_of(c)[7:]) for c in contents]


def manifest_of(contents: list[bytes]) -> bytes:
    """A manifest as our bundles have it: kinds of our own, the last blob as its config."""
    named = [
        {"mediaType": f"application/vnd.envsmith.x{n}.v1", "digest": digest_of(c), "size": len(c)}
        for n, c in enumerate(contents)
    ]
    named[-1]["mediaType"] = "application/vnd.envsmith.bundle.config.v1+json"
    whole = {"artifactType": "application/vnd.envsmith.bundle.v1", "config": named[-1], "layers": named[:-1]}
    return json.dumps({**whole, "mediaType": MANIFEST_TYPE, "schemaVersion": 2}, sort_keys=True).encode()


def push(registry: Registry, folder: Path, contents: list[bytes], mount_from: tuple[str, ...] = ()) -> Moved:
    with registry:
        return registry.push(blobs_in(folder, contents), manifest_of(contents), MANIFEST_TYPE, ("3",), mount_from)


def pull(registry: Registry, store: Store, contents: list[bytes]) -> Any:
    into = IntoStore(store)
    with registry:
        return registry.pull([(digest_of(c), len(c)) for c in contents], have=into.has, into=into)


def codes(error: pytest.ExceptionInfo[EnvsmithError]) -> list[str]:
    return [problem.code for problem in error.value.problems]


def docker_config(folder: Path, host: str, password: str = PASSWORD) -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))
    return {"DOCKER_CONFIG": str(folder)}


def test_what_is_pushed_comes_back_and_is_pushed_and_pulled_once(
    served: Served, tmp_path: Path, store: Store, contents: list[bytes]
) -> None:
    moved = push(client(served, "round/trip"), tmp_path / "x", contents)
    assert moved == Moved(sent=4, skipped=0, mounted=0, bytes_sent=sum(map(len, contents)))
    moved = push(client(served, "round/trip"), tmp_path / "x", contents)
    assert moved == Moved(sent=0, skipped=4, mounted=0, bytes_sent=0)
    with client(served, "round/trip") as registry:
        assert registry.fetch_manifest() == manifest_of(contents)
        assert registry.resolve("3") == digest_of(manifest_of(contents))
        assert registry.list_tags() == ["3"]
    pulled = pull(client(served, "round/trip"), store, contents)
    assert (pulled.received, pulled.bytes_received) == (4, sum(map(len, contents)))
    assert pull(client(served, "round/trip"), store, contents).received == 0
    assert [store.verify(digest_of(c)[7:]).read_bytes() for c in contents] == contents


def test_blobs_are_mounted_from_another_repository(
    served: Served, tmp_path: Path, store: Store, contents: list[bytes]
) -> None:
    push(client(served, "mount/old"), tmp_path / "x", contents[:2])
    moved = push(client(served, "mount/new"), tmp_path / "x", contents, ("mount/none", "mount/old"))
    assert (moved.sent, moved.mounted) == (2, 2)
    assert pull(client(served, "mount/new"), store, contents).received == 4


def test_a_delta_is_pushed_where_its_base_is(served: Served, tmp_path: Path, contents: list[bytes]) -> None:
    push(client(served, "delta/a"), tmp_path / "base", contents)
    new = [*contents[:3], b"another config"]
    blobs = [Blob(digest=digest_of(c), size=len(c)) for c in new[:3]] + blobs_in(tmp_path / "delta", new[3:])
    with client(served, "delta/a") as registry:
        moved = registry.push(blobs, manifest_of(new), MANIFEST_TYPE, ("4",))
    assert (moved.sent, moved.skipped) == (1, 3)
    with client(served, "delta/b") as registry, pytest.raises(SupplyError) as error:
        registry.push(blobs, manifest_of(new), MANIFEST_TYPE, ("4",))
    assert codes(error) == ["blob-missing"] * 3


def test_a_half_pulled_blob_is_continued(served: Served, tmp_path: Path, store: Store, contents: list[bytes]) -> None:
    push(client(served, "resume"), tmp_path / "x", contents)
    store.partial(digest_of(contents[0])[7:]).write_bytes(contents[0][: 2 << 20])
    pulled = pull(client(served, "resume"), store, contents[:1])
    assert pulled.bytes_received == 1 << 20
    assert store.verify(digest_of(contents[0])[7:])


@pytest.mark.parametrize("damage", ["flip", "truncate", "extend"])
def test_a_blob_damaged_in_the_registrys_store_is_refused(
    served: Served, tmp_path: Path, store: Store, contents: list[bytes], damage: str
) -> None:
    content = contents[0] + damage.encode()
    push(client(served, f"damaged/{damage}"), tmp_path / "x", [content])
    stored = served.stored(digest_of(content))
    whole = stored.read_bytes()
    stored.write_bytes({"flip": b"\0" + whole[1:], "truncate": whole[:-1], "extend": whole + b"x"}[damage])
    with pytest.raises(IntegrityError) as error:
        pull(client(served, f"damaged/{damage}"), store, [content])
    assert codes(error) == ["blob-digest-differs"]
    assert not store.has(digest_of(content)[7:]) and not list((store.home / "partial").iterdir())


def test_of_a_local_blob_with_a_wrong_name_nothing_is_committed(served: Served, tmp_path: Path) -> None:
    content = random.Random(7).randbytes(2 << 20)
    (blob,) = blobs_in(tmp_path / "x", [content])
    assert blob.path
    blob.path.write_bytes(content[:-1] + b"\0")
    with client(served, "wrong") as registry, pytest.raises(IntegrityError) as error:
        registry.push([blob], manifest_of([content]), MANIFEST_TYPE, ("3",))
    assert codes(error) == ["blob-digest-differs"]
    assert not served.stored(blob.digest).exists()
    with client(served, "wrong") as registry, pytest.raises(SupplyError) as missing:
        registry.fetch_manifest()
    assert codes(missing) == ["manifest-missing"]


def test_an_upload_that_breaks_off_is_sent_again(tmp_path: Path, store: Store) -> None:
    content = random.Random(8).randbytes(6 << 20)
    with serving(tmp_path / "r") as real, cutting(real.host, 2 << 20) as host:
        proxied = Served(host=host, folder=real.folder)
        moved = push(client(proxied, "cut"), tmp_path / "x", [content])
        assert moved.sent == 1 and moved.bytes_sent > len(content)
        assert pull(client(proxied, "cut"), store, [content]).received == 1
        assert real.stored(digest_of(content)).read_bytes() == content


@contextlib.contextmanager
def cutting(target: str, after: int) -> Iterator[str]:
    """Give the address of a proxy that breaks its first long connection after so many bytes."""
    host, _, port = target.partition(":")
    listener = socket.create_server(("127.0.0.1", 0))
    left = [after]

    def copy(source: socket.socket, sink: socket.socket, *, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if counted and left and len(data) > 1000:
                    left[0] -= len(data)
                    if left[0] < 0:
                        left.clear()
                        break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection((host, int(port)))
                pairs = ((near, far, True), (far, near, False))
                threads = [threading.Thread(target=copy, args=p[:2], kwargs={"counted": p[2]}) for p in pairs]
                for thread in threads:
                    thread.start()
                ends.append((near, far, threads))

    ends: list[tuple[socket.socket, socket.socket, list[threading.Thread]]] = []
    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        assert not left, "the connection was never cut"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        for near, far, threads in ends:
            for end in (near, far):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
            near.close()
            far.close()


@needs_openssl
def test_tls_is_spoken_with_the_sites_certificate_only(
    tmp_path: Path, store: Store, contents: list[bytes], certificate: tuple[Path, Path]
) -> None:
    trusting = {"SSL_CERT_FILE": str(certificate[0])}
    with serving(tmp_path / "r", tls=certificate) as real:
        with pytest.raises(SupplyError) as error:
            push(client(real, "tls", insecure=False), tmp_path / "x", contents)
        assert codes(error) == ["certificate-not-trusted"]
        with pytest.raises(SupplyError) as error:
            push(client(real, "tls"), tmp_path / "x", contents)
        assert codes(error) == ["registry-scheme-differs"]
        assert "leave out --plain-http" in (error.value.problems[0].hint or "")
        assert push(client(real, "tls", insecure=False, environ=trusting), tmp_path / "x", contents).sent == 4
        assert pull(client(real, "tls", insecure=False, environ=trusting), store, contents).received == 4


def test_plain_http_needs_to_be_asked_for(served: Served, store: Store) -> None:
    with pytest.raises(SupplyError) as error:
        pull(client(served, "x", insecure=False), store, [b"x"])
    assert codes(error) == ["registry-scheme-differs"]
    assert "--plain-http" in (error.value.problems[0].hint or "")


def test_htpasswd_lets_in_who_knows_the_password(tmp_path: Path, store: Store, contents: list[bytes]) -> None:
    (tmp_path / "htpasswd").write_text(HTPASSWD)
    with serving(tmp_path / "r", auth={"htpasswd": {"realm": "tests", "path": str(tmp_path / "htpasswd")}}) as real:
        for environ in ({}, docker_config(tmp_path / "wrong", real.host, "wrong-secret")):
            with pytest.raises(SupplyError) as error:
                push(client(real, "closed", environ=environ), tmp_path / "x", contents)
            assert codes(error) == ["registry-unauthorized"]
            assert "wrong-secret" not in str(error.value)
        environ = docker_config(tmp_path / "docker", real.host)
        assert push(client(real, "closed", environ=environ), tmp_path / "x", contents).sent == 4
        assert push(client(real, "other", environ=environ), tmp_path / "x", contents, ("closed",)).mounted == 4
        assert pull(client(real, "other", environ=environ), store, contents).received == 4


class TokenServer:
    """A token server whose tokens Docker's registry believes: signed with the key of its certificate."""

    def __init__(self, certificate: tuple[Path, Path], lasts_s: int) -> None:
        der = subprocess.run(
            ("openssl", "x509", "-in", certificate[0], "-outform", "DER"), check=True, capture_output=True
        ).stdout
        self._head = _url64(
            json.dumps({"typ": "JWT", "alg": "RS256", "x5c": [base64.b64encode(der).decode()]}).encode()
        )
        self._key = certificate[1]
        self._lasts_s = lasts_s
        self.asked: list[list[str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = parse_qs(urlsplit(self.path).query)
                known = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
                allowed = self.headers.get("Authorization") == known
                body = outer.token(query.get("scope", [])) if allowed else b"{}"
                self.send_response(200 if allowed else 401)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})

    def token(self, scopes: list[str]) -> bytes:
        self.asked.append(scopes)
        now = int(time.time())
        access = [
            {"type": kind, "name": name, "actions": actions.split(",")}
            for kind, name, actions in (scope.split(":") for scope in scopes)
        ]
        claims = {
            "iss": "tests",
            "sub": USER,
            "aud": "registry",
            "nbf": now - 5,
            "iat": now,
            "exp": now + self._lasts_s,
        }
        claims |= {"jti": str(len(self.asked)), "access": access}
        signed = f"{self._head}.{_url64(json.dumps(claims).encode())}"
        signature = subprocess.run(
            ("openssl", "dgst", "-sha256", "-sign", self._key), input=signed.encode(), check=True, capture_output=True
        ).stdout
        return json.dumps({"token": f"{signed}.{_url64(signature)}"}).encode()

    def __enter__(self) -> TokenServer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


def _url64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@needs_openssl
@pytest.mark.parametrize("lasts_s", [300, -63])
def test_signed_tokens_open_push_mount_and_pull(
    tmp_path: Path, store: Store, contents: list[bytes], certificate: tuple[Path, Path], lasts_s: int
) -> None:
    """A token without `expires_in`; one that ended already is refused with 401, and that is said, not repeated."""
    with TokenServer(certificate, lasts_s) as tokens:
        realm = f"http://127.0.0.1:{tokens.server.server_address[1]}/token"
        auth = {"realm": realm, "service": "registry", "issuer": "tests", "rootcertbundle": str(certificate[0])}
        with serving(tmp_path / "r", auth={"token": auth}) as real:
            environ = docker_config(tmp_path / "docker", real.host)
            if lasts_s < 0:
                with pytest.raises(SupplyError) as error:
                    push(client(real, "a", environ=environ, jobs=1), tmp_path / "x", contents)
                assert codes(error) == ["registry-unauthorized"]
                assert len(tokens.asked) == 1
                return
            assert push(client(real, "a", environ=environ), tmp_path / "x", contents).sent == 4
            moved = push(client(real, "b", environ=environ), tmp_path / "x", contents, ("a",))
            assert (moved.mounted, moved.sent) == (4, 0)
            assert pull(client(real, "b", environ=environ), store, contents).received == 4
    assert tokens.asked == [
        ["repository:a:pull,push"],
        ["repository:b:pull,push"],
        ["repository:b:pull,push", "repository:a:pull"],
        ["repository:b:pull"],
    ]


@pytest.mark.skipif(SKOPEO is None, reason="skopeo is not installed")
def test_skopeo_copies_what_we_pushed_and_we_pull_what_skopeo_pushed(
    served: Served, tmp_path: Path, store: Store, contents: list[bytes]
) -> None:
    push(client(served, "skopeo/ours"), tmp_path / "x", contents)
    layout = tmp_path / "layout"
    ours, theirs = (f"docker://{served.host}/skopeo/{name}:3" for name in ("ours", "theirs"))
    skopeo("copy", "--src-tls-verify=false", ours, f"oci:{layout}:3")
    for content in (*contents, manifest_of(contents)):
        assert (layout / "blobs/sha256" / digest_of(content)[7:]).read_bytes() == content
    skopeo("copy", "--dest-tls-verify=false", f"oci:{layout}:3", theirs)
    with client(served, "skopeo/theirs") as registry:
        assert registry.fetch_manifest() == manifest_of(contents)
    assert pull(client(served, "skopeo/theirs"), store, contents).received == 4


def skopeo(*words: str) -> None:
    done = subprocess.run(("skopeo", "--insecure-policy", *words), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
