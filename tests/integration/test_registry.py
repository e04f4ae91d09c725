"""A registry is pushed to and pulled from by its rules, believed in nothing, and told no more than it may know."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import random
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from envsmith.errors import EnvsmithError, InputError, IntegrityError, StepError, SupplyError
from envsmith.ocireference import parse_reference
from envsmith.tools.progress import Progress
from envsmith.tools.registry import MANIFEST_BYTES, Registry
from envsmith.tools.registry_auth import find_login, parse_challenges
from envsmith.tools.registry_pull import IntoStore
from envsmith.tools.registry_push import Blob, Moved
from envsmith.tools.store import Store
from tests.support.registry import MANIFEST_TYPE, RegistryDouble, digest_of

REPOSITORY = "site/envs"
USER, PASSWORD = "anna", "pass:word-1"


@pytest.fixture
def double() -> Iterator[RegistryDouble]:
    with RegistryDouble() as registry:
        yield registry


@pytest.fixture
def other() -> Iterator[RegistryDouble]:
    with RegistryDouble() as registry:
        yield registry


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def contents() -> list[bytes]:
    """Blobs of our kinds: some megabytes, a few bytes, none."""
    return [random.Random(1).randbytes(3 << 20), b"lock", b"", b"[1]"]


class Heard(Progress):
    def __init__(self) -> None:
        self.total = self.items = self.done_bytes = 0
        self.said: list[str] = []

    def start(self, total_bytes: int, items: int) -> None:
        self.total, self.items, self.done_bytes = total_bytes, items, 0

    def advance(self, count: int) -> None:
        self.done_bytes += count

    def message(self, text: str) -> None:
        self.said.append(text)


def client(
    registry: RegistryDouble,
    *,
    repository: str = REPOSITORY,
    name: str = ":3",
    environ: dict[str, str] | None = None,
    **options: Any,
) -> Registry:
    reference = parse_reference(f"oci://{registry.host}/{repository}{name}")
    given: dict[str, Any] = {"insecure": registry.scheme == "http", "attempts": 3, "backoff_s": 0.01, "timeout_s": 5.0}
    return Registry(reference, environ=environ or {}, **{**given, **options})


def blobs_in(folder: Path, contents: list[bytes]) -> list[Blob]:
    folder.mkdir(exist_ok=True)
    for content in contents:
        (folder / digest_of(content)[7:]).write_bytes(content)
    return [Blob(digest=digest_of(c), size=len(c), path=folder / digest_of(c)[7:]) for c in contents]


def manifest_of(contents: list[bytes]) -> bytes:
    named = [{"mediaType": "application/x", "digest": digest_of(c), "size": len(c)} for c in contents]
    whole = {"schemaVersion": 2, "mediaType": MANIFEST_TYPE, "config": named[-1], "layers": named[:-1]}
    return json.dumps(whole).encode()


def push(registry: Registry, folder: Path, contents: list[bytes], **options: Any) -> Moved:
    with registry:
        return registry.push(blobs_in(folder, contents), manifest_of(contents), MANIFEST_TYPE, ("3",), **options)


def pull(registry: Registry, store: Store, contents: list[bytes]) -> Any:
    into = IntoStore(store)
    with registry:
        return registry.pull([(digest_of(c), len(c)) for c in contents], have=into.has, into=into)


def codes(error: pytest.ExceptionInfo[EnvsmithError]) -> list[str]:
    return [problem.code for problem in error.value.problems]


def parts(store: Store) -> list[str]:
    folder = store.home / "partial"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def docker_config(folder: Path, host: str, user: str = USER, password: str = PASSWORD, **more: Any) -> dict[str, str]:
    """Write a docker config with one login and return the environment that names it."""
    folder.mkdir(exist_ok=True)
    entry = {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()} if password else {}
    (folder / "config.json").write_text(json.dumps({"auths": {host: {**entry, **more}}}))
    return {"DOCKER_CONFIG": str(folder)}


# --- push ------------------------------------------------------------------------------------------------------------


def test_a_push_brings_every_blob_and_then_the_manifest(
    double: RegistryDouble, tmp_path: Path, contents: list[bytes]
) -> None:
    heard = Heard()
    moved = push(client(double, progress=heard), tmp_path / "x", contents)
    size = sum(map(len, contents))
    assert moved == Moved(sent=4, skipped=0, mounted=0, bytes_sent=size)
    assert double.blobs[REPOSITORY] == {digest_of(c): c for c in contents}
    assert double.manifests[REPOSITORY]["3"] == manifest_of(contents)
    assert (heard.total, heard.items, heard.done_bytes) == (size, 4, size)
    writes = [one for one in double.log if one.method in ("PUT", "PATCH")]
    assert "/manifests/3" in writes[-1].path and not double.uploads


def test_pushed_again_nothing_is_sent(double: RegistryDouble, tmp_path: Path, contents: list[bytes]) -> None:
    push(client(double), tmp_path / "x", contents)
    heard = Heard()
    double.log.clear()
    moved = push(client(double, progress=heard), tmp_path / "x", contents)
    assert moved == Moved(sent=0, skipped=4, mounted=0, bytes_sent=0)
    assert not double.asked("POST") and heard.done_bytes == heard.total
    assert [one.path.rpartition("/")[2] for one in double.asked("PUT")] == ["3"]


def test_a_manifest_gets_every_tag_or_its_digest_alone(double: RegistryDouble, tmp_path: Path) -> None:
    blobs = blobs_in(tmp_path / "x", [b"config"])
    manifest = manifest_of([b"config"])
    with client(double) as registry:
        registry.push(blobs, manifest, MANIFEST_TYPE, ("3", "latest", "3"))
        assert len(double.asked("PUT", "/manifests/")) == 2
        registry.push(blobs, manifest_of([b"config", b"config"]), MANIFEST_TYPE)
    names = {"3", "latest", digest_of(manifest), digest_of(manifest_of([b"config", b"config"]))}
    assert set(double.manifests[REPOSITORY]) == names


def test_what_a_sibling_has_is_mounted(double: RegistryDouble, tmp_path: Path, contents: list[bytes]) -> None:
    double.add("site/old", *contents[:2])
    heard = Heard()
    moved = push(
        client(double, progress=heard), tmp_path / "x", contents, mount_from=(REPOSITORY, "site/none", "site/old")
    )
    assert moved == Moved(sent=2, skipped=0, mounted=2, bytes_sent=3)
    assert heard.done_bytes == heard.total
    assert not double.uploads, "uploads that a failed mount began are cancelled"
    assert not double.asked("POST", f"from={REPOSITORY.replace('/', '%2F')}")


@pytest.mark.parametrize("fault", ["mounts", "mounts_unauthorized", "errors"])
def test_refused_mounts_are_sent_instead(
    double: RegistryDouble, tmp_path: Path, contents: list[bytes], fault: str
) -> None:
    double.add("site/old", *contents)
    if fault == "errors":
        double.faults.errors["post-upload"] = [403, 404, 405, 400]
    else:
        setattr(double.faults, fault, fault != "mounts")
    moved = push(client(double, jobs=1), tmp_path / "x", contents, mount_from=("site/old",))
    assert (moved.sent, moved.mounted) == (4, 0)
    assert not double.uploads


def test_a_blob_that_only_the_registry_has_is_no_hindrance(
    double: RegistryDouble, tmp_path: Path, contents: list[bytes]
) -> None:
    double.add(REPOSITORY, contents[0])
    double.add("site/old", contents[1])
    blobs = blobs_in(tmp_path / "x", contents[2:])
    blobs += [Blob(digest=digest_of(contents[0]), size=len(contents[0]), path=tmp_path / "gone")]
    blobs += [Blob(digest=digest_of(contents[1]), size=len(contents[1]))]
    with client(double) as registry:
        moved = registry.push(blobs, manifest_of(contents), MANIFEST_TYPE, ("3",), ("site/old",))
    assert moved == Moved(sent=2, skipped=1, mounted=1, bytes_sent=3)


def test_blobs_that_are_nowhere_are_named_before_anything_is_sent(
    double: RegistryDouble, tmp_path: Path, contents: list[bytes]
) -> None:
    blobs = blobs_in(tmp_path / "x", contents)
    blobs += [Blob(digest=digest_of(f"{n}".encode()), size=1) for n in range(25)]
    with client(double) as registry, pytest.raises(SupplyError) as error:
        registry.push(blobs, manifest_of(contents), MANIFEST_TYPE, ("3",))
    assert codes(error) == ["blob-missing"] * 20 + ["more-failures"]
    assert digest_of(b"0") in error.value.problems[0].message
    assert not double.asked("POST") and not double.manifests[REPOSITORY]


@pytest.mark.parametrize("size", [4, 3 << 20])
@pytest.mark.parametrize("damage", ["flip", "truncate", "extend", "empty"])
def test_a_local_blob_that_is_not_what_its_name_says_is_not_committed(
    double: RegistryDouble, tmp_path: Path, size: int, damage: str
) -> None:
    content = random.Random(2).randbytes(size)
    (blob,) = blobs_in(tmp_path / "x", [content])
    damaged = {"flip": content[:-1] + bytes([content[-1] ^ 1]), "truncate": content[:-1], "extend": content + b"x"}
    assert blob.path
    blob.path.write_bytes(damaged.get(damage, b""))
    with client(double) as registry, pytest.raises(IntegrityError) as error:
        registry.push([blob], manifest_of([content]), MANIFEST_TYPE, ("3",))
    assert codes(error) == ["blob-digest-differs"]
    assert not double.blobs[REPOSITORY] and not double.manifests[REPOSITORY]
    assert not double.asked("PATCH")


def test_an_empty_blob_with_a_wrong_name_is_refused(double: RegistryDouble, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    blob = Blob(digest=digest_of(b"something"), size=0, path=tmp_path / "x")
    with client(double) as registry, pytest.raises(IntegrityError) as error:
        registry.push([blob], b"{}", MANIFEST_TYPE, ("3",))
    assert codes(error) == ["blob-digest-differs"]
    assert not double.blobs[REPOSITORY]


def test_a_blob_may_come_out_of_an_archive(double: RegistryDouble, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(b"head-content")

    def opened() -> Any:
        stream = (tmp_path / "archive").open("rb", buffering=0)
        stream.seek(5)
        return stream

    blob = Blob(digest=digest_of(b"content"), size=7, path=tmp_path / "archive", source=opened)
    with client(double) as registry:
        registry.push([blob], manifest_of([b"content"]), MANIFEST_TYPE, ("3",))
    assert double.blobs[REPOSITORY] == {blob.digest: b"content"}


def test_a_blob_of_another_size_at_the_registry_stops(double: RegistryDouble, tmp_path: Path) -> None:
    double.add(REPOSITORY, b"content")
    double.faults.wrong_length = 1
    with pytest.raises(IntegrityError) as error:
        push(client(double), tmp_path / "x", [b"content"])
    assert codes(error) == ["blob-digest-differs"]


def test_a_broken_upload_is_continued_where_it_ended(double: RegistryDouble, tmp_path: Path) -> None:
    content = random.Random(3).randbytes(5 << 20)
    double.faults.cut_upload = [2 << 20, 1 << 20]
    heard = Heard()
    moved = push(client(double, progress=heard), tmp_path / "x", [content])
    assert double.blobs[REPOSITORY] == {digest_of(content): content}
    assert double.bytes_in == len(content), "no byte was taken twice"
    assert moved.bytes_sent >= len(content)
    assert [one.content_range for one in double.asked("PATCH")] == ["2097152-5242879", "3145728-5242879"]
    assert heard.done_bytes == heard.total


def test_a_broken_upload_that_the_registry_forgot_begins_again(double: RegistryDouble, tmp_path: Path) -> None:
    content = random.Random(3).randbytes(5 << 20)
    double.faults.cut_upload = [2 << 20, 3 << 20]
    double.faults.forgets_uploads = True
    heard = Heard()
    push(client(double, progress=heard), tmp_path / "x", [content])
    assert double.blobs[REPOSITORY] == {digest_of(content): content}
    assert len(double.asked("POST")) == 3 and not double.asked("PATCH")
    assert heard.done_bytes == heard.total


@pytest.mark.parametrize(
    "kind", ["put-upload", "patch-upload", "get-upload", "post-upload", "head-blob", "put-manifest"]
)
@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_what_may_pass_is_tried_again(double: RegistryDouble, tmp_path: Path, kind: str, status: int) -> None:
    content = random.Random(3).randbytes(2 << 20)
    if kind in ("patch-upload", "get-upload"):
        double.faults.cut_upload = [1 << 20]
    double.faults.errors[kind] = [status]
    push(client(double), tmp_path / "x", [content])
    assert double.blobs[REPOSITORY] == {digest_of(content): content}
    assert not double.faults.errors[kind]


@pytest.mark.parametrize("kind", ["put-upload", "patch-upload"])
@pytest.mark.parametrize("status", [404, 416])
def test_an_upload_that_is_not_known_any_more_begins_again(
    double: RegistryDouble, tmp_path: Path, kind: str, status: int
) -> None:
    double.faults.cut_upload = [1 << 20] if kind == "patch-upload" else []
    double.faults.errors[kind] = [status]
    push(client(double), tmp_path / "x", [bytes(2 << 20)])
    assert len(double.asked("POST")) == 2


@pytest.mark.parametrize("fault", ["cut", "status", "forget"])
def test_attempts_to_send_end(double: RegistryDouble, tmp_path: Path, fault: str) -> None:
    double.faults.cut_upload = [] if fault == "status" else [1000] * 50
    double.faults.forgets_uploads = fault == "forget"
    double.faults.errors["put-upload"] = [500] * 50 if fault == "status" else []
    double.faults.errors["get-upload"] = [500] * 50 if fault == "cut" else []
    with pytest.raises(SupplyError) as error:
        push(client(double), tmp_path / "x", [bytes(1 << 20)])
    assert codes(error) == ["registry-unreachable"]
    assert not double.manifests[REPOSITORY]


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        ("put-upload", 400, "registry-refused"),
        ("put-upload", 413, "registry-refused"),
        ("put-upload", 403, "registry-unauthorized"),
        ("post-upload", 405, "registry-refused"),
        ("post-upload", 201, "registry-refused"),
        ("head-blob", 405, "registry-refused"),
        ("put-manifest", 400, "registry-refused"),
        ("put-manifest", 409, "registry-refused"),
        ("put-manifest", 200, "registry-refused"),
    ],
)
def test_what_is_final_is_said_in_the_registrys_words(
    double: RegistryDouble, tmp_path: Path, kind: str, status: int, code: str
) -> None:
    double.faults.errors[kind] = [status]
    with pytest.raises(SupplyError) as error:
        push(client(double), tmp_path / "x", [b"content"])
    assert codes(error) == [code]
    assert str(status) in error.value.problems[0].message
    assert kind == "head-blob" or "PLANTED planted by the tests" in error.value.problems[0].message
    assert not double.uploads and not double.manifests[REPOSITORY]


def test_a_manifest_that_reads_back_differently_is_an_error(double: RegistryDouble, tmp_path: Path) -> None:
    double.faults.manifest = b"{}"
    with pytest.raises(IntegrityError) as error:
        push(client(double), tmp_path / "x", [b"content"])
    assert codes(error) == ["registry-manifest-differs"]


def test_a_manifest_that_is_too_large_is_not_tried(double: RegistryDouble, tmp_path: Path) -> None:
    with client(double) as registry, pytest.raises(SupplyError) as error:
        registry.push([], bytes(MANIFEST_BYTES + 1), MANIFEST_TYPE, ("3",))
    assert codes(error) == ["manifest-too-large"]
    assert not double.log


@pytest.mark.parametrize(
    ("digest", "tags", "mounts", "code"),
    [
        ("0" * 64, ("3",), (), "digest-malformed"),
        ("sha256:../../x", ("3",), (), "digest-malformed"),
        (digest_of(b""), ("../x",), (), "oci-reference-malformed"),
        (digest_of(b""), ("3",), ("A/B",), "oci-reference-malformed"),
        (digest_of(b""), ("3",), ("a&from=b",), "oci-reference-malformed"),
    ],
)
def test_names_that_are_none_never_become_a_url(
    double: RegistryDouble, digest: str, tags: tuple[str, ...], mounts: tuple[str, ...], code: str
) -> None:
    with client(double) as registry, pytest.raises(InputError) as error:
        registry.push([Blob(digest=digest, size=0)], b"{}", MANIFEST_TYPE, tags, mounts)
    assert codes(error) == [code]
    assert not double.log


@pytest.mark.parametrize("target", ["", "ftp://127.0.0.1/x", "http://[", "javascript:alert(1)"])
def test_an_upload_location_that_is_no_url_is_refused(double: RegistryDouble, tmp_path: Path, target: str) -> None:
    double.faults.location = lambda path: target or "file:///etc/passwd"
    with pytest.raises(SupplyError) as error:
        push(client(double), tmp_path / "x", [b"content"])
    assert codes(error) == ["registry-answer-malformed"]


# --- pull ------------------------------------------------------------------------------------------------------------


def test_a_pull_brings_what_is_missing_and_nothing_else(
    double: RegistryDouble, store: Store, contents: list[bytes]
) -> None:
    double.add(REPOSITORY, *contents)
    heard = Heard()
    pulled = pull(client(double, progress=heard), store, contents[:2])
    assert (pulled.received, pulled.skipped) == (2, 0)
    assert (heard.total, heard.items, heard.done_bytes) == (len(contents[0]) + 4, 2, len(contents[0]) + 4)
    double.log.clear()
    heard = Heard()
    pulled = pull(client(double, progress=heard), store, contents)
    assert (pulled.received, pulled.skipped, pulled.bytes_received) == (2, 2, 3)
    assert len(double.asked("GET")) == 1, "a blob of no bytes need not be asked for"
    assert heard.done_bytes == heard.total
    for content in contents:
        assert store.verify(digest_of(content)[7:]).read_bytes() == content
    assert parts(store) == []


def test_an_interrupted_pull_goes_on_where_it_ended(double: RegistryDouble, store: Store) -> None:
    content = random.Random(4).randbytes(4 << 20)
    (digest,) = double.add(REPOSITORY, content)
    store.partial(digest[7:]).write_bytes(content[:1000])
    double.faults.cut = [1 << 20]
    heard = Heard()
    pulled = pull(client(double, progress=heard), store, [content])
    assert store.verify(digest[7:])
    assert [one.range for one in double.asked("GET")] == ["bytes=1000-", f"bytes={1000 + (1 << 20)}-"]
    assert pulled.bytes_received == len(content) - 1000
    assert heard.done_bytes == heard.total == len(content)


@pytest.mark.parametrize("kept", ["wrong", "too long", "whole", "whole but wrong"])
def test_what_an_earlier_run_left_is_hashed(double: RegistryDouble, store: Store, kept: str) -> None:
    content = random.Random(4).randbytes(1 << 20)
    (digest,) = double.add(REPOSITORY, content)
    left = {"wrong": b"x" * 1000, "too long": content + b"x", "whole": content, "whole but wrong": bytes(len(content))}
    store.partial(digest[7:]).write_bytes(left[kept])
    heard = Heard()
    pulled = pull(client(double, progress=heard), store, [content])
    assert store.verify(digest[7:])
    assert pulled.bytes_received == {"wrong": 2 * len(content) - 1000, "whole": 0}.get(kept, len(content))
    assert heard.done_bytes == heard.total
    assert parts(store) == []


@pytest.mark.parametrize("fault", ["ranges", "range_shift"])
def test_a_registry_that_does_not_continue_properly_is_asked_for_all(
    double: RegistryDouble, store: Store, fault: str
) -> None:
    content = random.Random(4).randbytes(1 << 20)
    (digest,) = double.add(REPOSITORY, content)
    store.partial(digest[7:]).write_bytes(content[:1000])
    setattr(double.faults, fault, {"ranges": False, "range_shift": 7}[fault])
    assert pull(client(double), store, [content]).bytes_received == len(content)
    assert store.verify(digest[7:])


@pytest.mark.parametrize("fault", [("wrong_bytes", True), ("extra_bytes", 1), ("extra_bytes", 1 << 22),
                                   ("wrong_length", 5), ("wrong_length", -5), ("page", True)])  # fmt: skip
@pytest.mark.parametrize("resumed", [False, True])
def test_wrong_bytes_are_refused_and_thrown_away(
    double: RegistryDouble, store: Store, fault: tuple[str, Any], resumed: bool
) -> None:
    content = random.Random(4).randbytes(1 << 20)
    (digest,) = double.add(REPOSITORY, content)
    if resumed:
        store.partial(digest[7:]).write_bytes(content[:1000])
    setattr(double.faults, *fault)
    with pytest.raises(IntegrityError) as error:
        pull(client(double), store, [content])
    assert codes(error) == ["blob-digest-differs"]
    assert not store.has(digest[7:]) and parts(store) == []
    if fault[0] == "page":
        assert "web page" in (error.value.problems[0].hint or "")


def test_a_hostile_registry_cannot_fill_the_disk(double: RegistryDouble, store: Store) -> None:
    (digest,) = double.add(REPOSITORY, b"content")
    double.faults.extra_bytes = 64 << 20
    sizes: list[int] = []

    class Watched(Heard):
        def advance(self, count: int) -> None:
            super().advance(count)
            sizes.append(store.partial(digest[7:]).stat().st_size if parts(store) else 0)

    with pytest.raises(IntegrityError):
        pull(client(double, progress=Watched()), store, [b"content"])
    assert max(sizes, default=0) <= 7
    assert parts(store) == []


def test_all_failures_of_a_pull_are_said_together(double: RegistryDouble, store: Store) -> None:
    double.add(REPOSITORY, b"there")
    with pytest.raises(SupplyError) as error:
        pull(client(double), store, [b"absent 1", b"there", b"absent 2"])
    assert codes(error) == ["blob-missing", "blob-missing"]
    assert store.has(digest_of(b"there")[7:])


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_a_pull_tries_again_what_may_pass(double: RegistryDouble, store: Store, status: int) -> None:
    double.add(REPOSITORY, b"content")
    double.faults.errors["get-blob"] = [status, status]
    pull(client(double), store, [b"content"])
    assert store.has(digest_of(b"content")[7:])


def test_a_line_that_always_breaks_but_gives_bytes_is_enough(double: RegistryDouble, store: Store) -> None:
    content = random.Random(5).randbytes(1 << 20)
    double.add(REPOSITORY, content)
    double.faults.cut = [100_000] * 9
    pull(client(double), store, [content])
    assert store.verify(digest_of(content)[7:])


def test_a_pull_ends_when_nothing_comes(double: RegistryDouble, store: Store) -> None:
    double.add(REPOSITORY, b"content")
    double.faults.cut = [0] * 9
    with pytest.raises(SupplyError) as error:
        pull(client(double), store, [b"content"])
    assert codes(error) == ["registry-unreachable"]
    assert len(double.asked("GET")) == 3


def test_retry_after_is_heeded(double: RegistryDouble, store: Store) -> None:
    double.add(REPOSITORY, b"content")
    double.faults.errors["get-blob"] = [429]
    double.faults.retry_after = "7"
    registry = client(double)
    waits: list[float] = []
    registry._session._sleep = waits.append  # the one clock of the client
    pull(registry, store, [b"content"])
    assert waits == [7.0]


def test_no_room_is_an_error_before_the_first_byte_and_in_the_middle(
    double: RegistryDouble, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = random.Random(4).randbytes(1 << 20)
    (digest,) = double.add(REPOSITORY, content)
    into = IntoStore(store)
    with client(double) as registry, pytest.raises(SupplyError) as error:
        registry.pull([(digest, 1 << 60)], have=into.has, into=into)
    assert codes(error) == ["disk-full"] and not double.log

    class Full(IntoStore):
        def part_path(self, digest: str) -> Path:
            path = super().part_path(digest)
            if not path.is_symlink():
                path.symlink_to("/dev/full")
            return path

    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with client(double) as registry, pytest.raises(SupplyError) as error:
        registry.pull([(digest, len(content))], have=into.has, into=Full(store))
    assert codes(error) == ["disk-full"]
    assert os.strerror(errno.ENOSPC) in str(error.value)


def test_two_pulls_at_once_bring_each_blob_once(double: RegistryDouble, store: Store) -> None:
    many = [f"blob {n}".encode() * 1000 for n in range(12)]
    double.add(REPOSITORY, *many)
    into = IntoStore(store)
    with client(double, jobs=8) as registry:
        pulled = registry.pull([(digest_of(c), len(c)) for c in many * 3], have=into.has, into=into)
    assert pulled.received == 12
    assert len(double.asked("GET")) == 12


# --- redirects -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["basic", "bearer"])
def test_a_blob_may_lie_on_another_host_that_is_told_nothing(
    double: RegistryDouble, other: RegistryDouble, store: Store, tmp_path: Path, kind: str
) -> None:
    content = random.Random(4).randbytes(1 << 20)
    (digest,) = double.add(REPOSITORY, content)
    other.add(REPOSITORY, content)
    other.faults.cut = [1000]
    setattr(double.faults, kind, (USER, PASSWORD))
    double.faults.redirect = lambda path: f"{other.url}{path}?signature=secret"
    pull(client(double, environ=docker_config(tmp_path / "docker", double.host)), store, [content])
    assert store.verify(digest[7:])
    assert [one.range for one in other.log] == [None, "bytes=1000-"]
    assert {one.authorization for one in other.log} == {None}
    assert any(one.authorization for one in double.log)


@pytest.mark.parametrize("login", [None, "basic", "bearer"])
@pytest.mark.parametrize("challenge", ["Basic realm=x", 'Bearer realm="{url}/token",service="x"'])
def test_a_redirect_target_that_asks_who_we_are_is_not_told(
    double: RegistryDouble, other: RegistryDouble, store: Store, tmp_path: Path, login: str | None, challenge: str
) -> None:
    double.add(REPOSITORY, b"content", b"more")
    if login:
        setattr(double.faults, login, (USER, PASSWORD))
    double.faults.redirect = lambda path: f"{other.url}{path}?signature=secret"
    other.faults.scheme = challenge.format(url=other.url)
    environ = docker_config(tmp_path / "docker", double.host)
    with pytest.raises(SupplyError) as error:
        pull(client(double, environ=environ, jobs=1), store, [b"content", b"more"])
    assert codes(error) == ["registry-refused"] * 2
    assert len(other.log) == 2 and {one.authorization for one in other.log} == {None}
    assert not other.token_requests
    assert "secret" not in str(error.value)


def test_an_upload_may_go_to_another_host_that_is_told_nothing(
    double: RegistryDouble, other: RegistryDouble, tmp_path: Path
) -> None:
    double.faults.basic = (USER, PASSWORD)
    other.uploads["upload-1"] = bytearray()
    double.faults.location = lambda path: f"{other.url}/v2/{REPOSITORY}/blobs/uploads/upload-1"
    with pytest.raises(SupplyError):  # the manifest names a blob that this double cannot know
        push(client(double, environ=docker_config(tmp_path / "docker", double.host)), tmp_path / "x", [b"content"])
    assert other.blobs[REPOSITORY] == {digest_of(b"content"): b"content"}
    assert {one.authorization for one in other.log} == {None}


def test_redirects_in_a_circle_end(double: RegistryDouble, store: Store) -> None:
    double.add(REPOSITORY, b"content")
    double.faults.redirect = lambda path: path
    with pytest.raises(SupplyError) as error:
        pull(client(double), store, [b"content"])
    assert codes(error) == ["redirect-refused"]


# --- manifests and tags ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["tag", "digest"])
def test_a_manifest_is_fetched_byte_for_byte(double: RegistryDouble, by: str) -> None:
    manifest = manifest_of([b"x"]) + b"\n"
    digest = double.add_manifest(REPOSITORY, "3", manifest)
    with client(double, name=":3" if by == "tag" else f"@{digest}") as registry:
        assert registry.fetch_manifest() == manifest
        assert registry.resolve("3") == digest
        double.faults.no_stated_digest = True
        assert registry.fetch_manifest() == manifest
        assert registry.resolve("3") == digest


@pytest.mark.parametrize("by", ["tag", "digest"])
@pytest.mark.parametrize("fault", ["stated", "content"])
def test_a_manifest_that_is_not_the_one_asked_for_is_refused(double: RegistryDouble, by: str, fault: str) -> None:
    digest = double.add_manifest(REPOSITORY, "3", manifest_of([b"x"]))
    if fault == "content":
        double.faults.manifest = manifest_of([b"y"])
    double.faults.stated_digest = digest if fault == "content" else digest_of(b"another")
    with client(double, name=":3" if by == "tag" else f"@{digest}") as registry:
        if (by, fault) == ("digest", "stated"):
            assert registry.fetch_manifest() == manifest_of([b"x"]), "what was asked for counts, not what is said"
            return
        with pytest.raises(IntegrityError) as error:
            registry.fetch_manifest()
    assert codes(error) == ["registry-manifest-differs"]


@pytest.mark.parametrize("stated", [None, "nonsense"])
def test_a_manifest_of_any_size_is_not_read(double: RegistryDouble, stated: str | None) -> None:
    double.add_manifest(REPOSITORY, "3", bytes(MANIFEST_BYTES + 1))
    with client(double) as registry, pytest.raises(SupplyError) as error:
        registry.fetch_manifest()
    assert codes(error) == ["manifest-too-large"]


@pytest.mark.parametrize("ask", [Registry.fetch_manifest, lambda one: one.resolve("3"), Registry.list_tags])
def test_what_is_not_there_is_said(double: RegistryDouble, ask: Callable[[Registry], object]) -> None:
    with client(double) as registry, pytest.raises(SupplyError) as error:
        ask(registry)
    assert codes(error) == ["manifest-missing"]
    assert f"oci://{double.host}/{REPOSITORY}:3" in error.value.problems[0].message


@pytest.mark.parametrize("ask", [Registry.fetch_manifest, Registry.list_tags])
def test_a_login_page_is_not_taken_for_an_answer(double: RegistryDouble, ask: Callable[[Registry], object]) -> None:
    double.faults.page = True
    with client(double) as registry, pytest.raises(SupplyError) as error:
        ask(registry)
    assert codes(error) == ["registry-answer-malformed"]
    assert "web page" in (error.value.problems[0].hint or "")


def test_tags_are_listed_over_pages(double: RegistryDouble) -> None:
    for tag in ("3", "1", "latest", "2", "4"):
        double.add_manifest(REPOSITORY, tag, b"{}")
    with client(double) as registry:
        assert registry.list_tags() == ["1", "2", "3", "4", "latest"]
    assert len(double.asked("GET", "tags/list")) == 3


def test_no_tags_are_an_empty_list(double: RegistryDouble) -> None:
    double.add_manifest(REPOSITORY, "1", b"{}")
    double.faults.tags = []
    with client(double) as registry:
        assert registry.list_tags() == []


def test_tags_that_are_none_and_pages_elsewhere_are_refused(double: RegistryDouble, other: RegistryDouble) -> None:
    double.add_manifest(REPOSITORY, "1", b"{}")
    with client(double) as registry:
        double.faults.tags = ["\x1b[31m"]
        with pytest.raises(SupplyError) as error:
            registry.list_tags()
        assert codes(error) == ["registry-answer-malformed"]
        double.faults.tags, double.faults.next_page = ["1", "2", "3"], f"{other.url}/v2/x/tags/list"
        with pytest.raises(SupplyError) as error:
            registry.list_tags()
    assert codes(error) == ["registry-answer-malformed"]
    assert not other.log


# --- logins ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["basic", "bearer"])
def test_a_login_opens_push_and_pull(
    double: RegistryDouble, tmp_path: Path, store: Store, contents: list[bytes], kind: str
) -> None:
    setattr(double.faults, kind, (USER, PASSWORD))
    environ = docker_config(tmp_path / "docker", double.host)
    double.add("site/old", contents[0])
    moved = push(client(double, environ=environ), tmp_path / "x", contents, mount_from=("site/old",))
    assert (moved.sent, moved.mounted) == (3, 1)
    pull(client(double, environ=environ), store, contents)
    assert all(store.has(digest_of(content)[7:]) for content in contents)
    if kind == "bearer":
        scopes = [asked["scope"] for asked in double.token_requests]
        assert [f"repository:{REPOSITORY}:pull,push", "repository:site/old:pull"] in scopes
        assert scopes[-1] == [f"repository:{REPOSITORY}:pull"]
        assert len(scopes) == 3, "each token is asked for once, by however many threads"


def test_an_anonymous_token_is_enough_where_none_is_wanted(double: RegistryDouble, store: Store) -> None:
    double.faults.bearer = ("", "")
    double.add(REPOSITORY, b"content")
    pull(client(double), store, [b"content"])
    assert store.has(digest_of(b"content")[7:])


def test_an_identity_token_is_exchanged_and_goes_nowhere_else(
    double: RegistryDouble, store: Store, tmp_path: Path
) -> None:
    double.faults.bearer, double.faults.identity_token = (USER, PASSWORD), "refresh-1"
    double.add(REPOSITORY, b"content")
    environ = docker_config(tmp_path / "docker", double.host, password="", identitytoken="refresh-1")
    pull(client(double, environ=environ), store, [b"content"])
    (asked,) = double.token_requests
    assert asked["grant_type"] == ["refresh_token"] and asked["scope"] == [f"repository:{REPOSITORY}:pull"]
    assert all("refresh-1" not in f"{one.path}{one.authorization}" for one in double.log)


@pytest.mark.parametrize("uses", [1, 2, 3])
def test_a_token_that_ends_midway_is_replaced(
    double: RegistryDouble, tmp_path: Path, store: Store, contents: list[bytes], uses: int
) -> None:
    double.faults.bearer, double.faults.token_uses = (USER, PASSWORD), uses
    environ = docker_config(tmp_path / "docker", double.host)
    push(client(double, environ=environ, jobs=1), tmp_path / "x", contents)
    pull(client(double, environ=environ, jobs=1), store, contents)
    assert double.blobs[REPOSITORY] == {digest_of(c): c for c in contents}
    assert len(double.token_requests) > 3


def test_a_token_is_replaced_before_it_ends(double: RegistryDouble, tmp_path: Path) -> None:
    double.faults.bearer, double.faults.token_life_s = ("", ""), 1
    double.add_manifest(REPOSITORY, "3", b"{}")
    with client(double) as registry:
        registry.fetch_manifest()
        keys = registry._session._keys
        (scopes,) = keys._tokens
        keys._tokens[scopes] = keys._tokens[scopes][0], 0.0
        registry.fetch_manifest()
    assert [one.status for one in double.asked("GET", "/manifests/")] == [401, 200, 200]


@pytest.mark.parametrize("kind", ["basic", "bearer"])
@pytest.mark.parametrize("known", ["nothing", "wrong password"])
def test_who_is_not_let_in_reads_what_to_do_and_no_secret(
    double: RegistryDouble, tmp_path: Path, store: Store, kind: str, known: str
) -> None:
    setattr(double.faults, kind, (USER, PASSWORD))
    wrong = "wrong-secret-9"
    environ = {} if known == "nothing" else docker_config(tmp_path / "docker", double.host, password=wrong)
    with pytest.raises(SupplyError) as error:
        pull(client(double, environ=environ), store, [b"content", b"more"])
    assert codes(error) == ["registry-unauthorized"]
    text = str(error.value)
    assert wrong not in text and base64.b64encode(f"{USER}:{wrong}".encode()).decode() not in text
    expected = "docker login" if known == "nothing" else str(tmp_path / "docker" / "config.json")
    assert expected in (error.value.problems[0].hint or "")


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"{}", "registry-answer-malformed"),
        (b"[]", "registry-answer-malformed"),
        (b'{"token": 1}', "registry-answer-malformed"),
        (b'{"token": "a\\r\\nX: y"}', "registry-answer-malformed"),
        (b"<html>", "registry-answer-malformed"),
        (b"[" * 100_000, "registry-answer-malformed"),
        (b'{"token": "never-given"}', "registry-unauthorized"),
    ],
)
def test_a_token_server_is_not_believed(double: RegistryDouble, store: Store, answer: bytes, code: str) -> None:
    double.faults.bearer, double.faults.token_answer = ("", ""), answer
    with pytest.raises(SupplyError) as error:
        pull(client(double), store, [b"content"])
    assert codes(error) == [code]


def test_a_token_server_that_fails_for_now_is_asked_again(double: RegistryDouble, store: Store) -> None:
    double.faults.bearer = ("", "")
    double.faults.errors["token"] = [503, 429]
    double.add(REPOSITORY, b"content")
    pull(client(double), store, [b"content"])


@pytest.mark.parametrize("realm", ["", "ftp://x/token", "//x", "http://[", "token"])
def test_a_realm_that_is_no_url_is_refused(double: RegistryDouble, store: Store, realm: str) -> None:
    double.faults.scheme = f'Bearer realm="{realm}"'
    with pytest.raises(SupplyError) as error:
        pull(client(double), store, [b"content"])
    assert codes(error) == ["registry-answer-malformed"]


@pytest.mark.parametrize("scheme", ["Negotiate", "Digest realm=x", "%%%", "Basic"])
def test_a_scheme_we_do_not_speak_is_said(double: RegistryDouble, store: Store, scheme: str) -> None:
    double.faults.scheme = scheme
    with pytest.raises(SupplyError) as error:
        pull(client(double), store, [b"content"])
    assert codes(error) == ["registry-unauthorized"]


def test_a_realm_on_another_host_gets_the_password_only_over_tls(
    double: RegistryDouble, other: RegistryDouble, store: Store, tmp_path: Path
) -> None:
    double.faults.bearer = (USER, PASSWORD)
    double.faults.realm = f"http://localhost:{other.host.rpartition(':')[2]}/token"
    with pytest.raises(SupplyError) as error:
        pull(client(double, environ=docker_config(tmp_path / "docker", double.host)), store, [b"content"])
    assert codes(error) == ["registry-unauthorized"]
    assert other.log and {one.authorization for one in other.log} == {None}


def test_netrc_has_no_say(double: RegistryDouble, store: Store, tmp_path: Path) -> None:
    (tmp_path / "home/.netrc").write_text("machine 127.0.0.1 login net password rc\n")
    (tmp_path / "home/.netrc").chmod(0o600)
    double.faults.bearer = ("", "")
    double.add(REPOSITORY, b"content")
    pull(client(double), store, [b"content"])
    assert not any("Basic" in (one.authorization or "") for one in double.log)


@pytest.mark.parametrize(
    ("key", "user"),
    [
        ("registry.site:5000", "anna"),
        ("https://registry.site:5000", "anna"),
        ("https://registry.site:5000/v1/", "anna"),
        ("registry.site:5000/", "anna"),
        ("registry.site:5000/a", "anna"),
        ("registry.site:5000/a/b", "anna"),
        ("registry.site", None),
        ("registry.site:5000/a/bc", None),
        ("registry.site:5000/b", None),
        ("evil-registry.site:5000", None),
    ],
)
def test_a_login_is_found_by_its_key(tmp_path: Path, key: str, user: str | None) -> None:
    login = find_login("registry.site:5000", "a/b", docker_config(tmp_path / "docker", key))
    assert (login.user if login else None) == user
    assert PASSWORD not in repr(login)


def auths(path: Path, **users: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = {
        key.replace("_", "/"): {"auth": base64.b64encode(f"{u}:p".encode()).decode()} for key, u in users.items()
    }
    path.write_text(json.dumps({"auths": entries}))
    return str(path)


def test_the_first_file_with_a_login_counts_and_its_longest_key(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path / "h"), "XDG_RUNTIME_DIR": str(tmp_path / "run")}

    def found() -> str | None:
        login = find_login("host", "a/b", environ)
        return login.user if login else None

    assert found() is None
    auths(tmp_path / "h/.config/containers/auth.json", host="settings")
    assert found() == "settings"
    auths(tmp_path / "run/containers/auth.json", host="podman")
    assert found() == "podman"
    auths(tmp_path / "h/.docker/config.json", elsewhere="nobody")
    assert found() == "podman"
    auths(tmp_path / "h/.docker/config.json", host="docker", host_a="docker-a", host_a_b="docker-ab", host_a_b_c="no")
    assert found() == "docker-ab"
    environ["DOCKER_CONFIG"] = str(tmp_path / "d")
    auths(tmp_path / "d/config.json", host="named-docker")
    assert found() == "named-docker"
    environ["REGISTRY_AUTH_FILE"] = auths(tmp_path / "f.json", host="named-file")
    assert found() == "named-file"


def test_a_named_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SupplyError) as error:
        find_login("host", "a", {"REGISTRY_AUTH_FILE": str(tmp_path / "none")})
    assert codes(error) == ["file-missing"]


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{", "\x00", "[" * 100_000, '{"auths": [1]}', '{"auths": {"host": []}}',
        '{"auths": {"host": {"auth": 1}}}',
        '{"auths": {"host": {"auth": "=secret="}}}', '{"auths": {"host": {"auth": "c2VjcmV0"}}}',
        '{"auths": {"host": {"auth": "/////w=="}}}', '{"credHelpers": {"host": "../x"}}',
        '{"credHelpers": {"host": 1}}', '{"credsStore": "a b"}', '{"credHelpers": 1}',
    ],
)  # fmt: skip
def test_a_broken_config_is_named_and_not_shown(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InputError) as error:
        find_login("host", "a", {"DOCKER_CONFIG": str(tmp_path)})
    assert codes(error) == ["registry-config-malformed"]
    assert error.value.problems[0].where == str(tmp_path / "config.json")
    assert "secret" not in str(error.value) and "c2VjcmV0" not in str(error.value)


def helper(folder: Path, name: str, script: str) -> dict[str, str]:
    """Put a credential helper on the PATH of an environment."""
    folder.mkdir(exist_ok=True)
    program = folder / f"docker-credential-{name}"
    program.write_text(f'#!/bin/sh\n[ "$1" = get ] || exit 9\nread -r key\n{script}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"DOCKER_CONFIG": str(folder), "PATH": f"{folder}:/usr/bin:/bin"}


@pytest.mark.parametrize("where", ["credHelpers", "credsStore"])
def test_a_credential_helper_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    answer = """printf '{"ServerURL":"%s","Username":"%s","Secret":"hush"}' "$key" "at-$key" """
    environ = helper(tmp_path / "bin", "vault", answer)
    monkeypatch.setenv("PATH", environ["PATH"])
    named = {"host:5000": "vault"} if where == "credHelpers" else "vault"
    (tmp_path / "bin/config.json").write_text(json.dumps({where: named, "auths": {"host:5000": {}}}))
    login = find_login("host:5000", "a", environ)
    assert login and (login.user, login.password) == ("at-host:5000", "hush")
    assert "hush" not in repr(login)


def test_a_helper_may_give_an_identity_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = helper(tmp_path / "bin", "vault", """echo '{"Username":"<token>","Secret":"refresh"}' """)
    monkeypatch.setenv("PATH", environ["PATH"])
    (tmp_path / "bin/config.json").write_text('{"credsStore": "vault"}')
    login = find_login("host", "a", environ)
    assert login and (login.password, login.identity_token) == ("", "refresh")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("echo credentials not found in native keychain; exit 1", None),
        ("echo no; exit 1", "credential-helper-failed"),
        ("echo '{'", "credential-helper-failed"),
        ("echo '[]'", "credential-helper-failed"),
        ('echo \'{"Username": 1, "Secret": "hush"}\'', "credential-helper-failed"),
    ],
)
def test_a_helper_that_fails_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, code: str | None
) -> None:
    environ = helper(tmp_path / "bin", "vault", script)
    monkeypatch.setenv("PATH", environ["PATH"])
    (tmp_path / "bin/config.json").write_text('{"credsStore": "vault"}')
    if code is None:
        assert find_login("host", "a", environ) is None
        return
    with pytest.raises(SupplyError) as error:
        find_login("host", "a", environ)
    assert codes(error) == [code]
    assert "hush" not in str(error.value)


def test_a_helper_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"credHelpers": {"host": "nowhere"}}')
    with pytest.raises(StepError) as error:
        find_login("host", "a", {"DOCKER_CONFIG": str(tmp_path)})
    assert codes(error) == ["program-missing"]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", []),
        ("Basic", [("basic", {})]),
        ('Basic realm="a, b=c"', [("basic", {"realm": "a, b=c"})]),
        ('bearer Realm="u" , service=s,scope="a b"', [("bearer", {"realm": "u", "service": "s", "scope": "a b"})]),
        (r'Bearer realm="a\"b"', [("bearer", {"realm": 'a"b'})]),
        ('Negotiate, Basic realm="x", Bearer realm="y"',
         [("negotiate", {}), ("basic", {"realm": "x"}), ("bearer", {"realm": "y"})]),
        ('"', []),
    ],
)  # fmt: skip
def test_challenges_are_read(header: str, expected: list[tuple[str, dict[str, str]]]) -> None:
    assert parse_challenges(header) == expected


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("certificate")
    paths = folder / "cert.pem", folder / "key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    argv += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(paths[0]), "-keyout", str(paths[1])]
    subprocess.run(argv, check=True, capture_output=True)
    return paths


@pytest.mark.parametrize("way", ["blob", "upload", "realm"])
def test_nobody_is_led_out_of_tls(
    other: RegistryDouble, store: Store, tmp_path: Path, certificate: tuple[Path, Path], way: str
) -> None:
    with RegistryDouble(tls=certificate) as secure:
        secure.add(REPOSITORY, b"content")
        other.add(REPOSITORY, b"content")
        environ = docker_config(tmp_path / "docker", secure.host) | {"SSL_CERT_FILE": str(certificate[0])}
        pull(client(secure, environ=environ), Store(tmp_path / "before"), [b"content"])
        if way == "blob":
            secure.faults.redirect = lambda path: f"{other.url}{path}"
        elif way == "upload":
            secure.faults.location = lambda path: f"http://{secure.host}{path}"
        else:
            secure.faults.bearer, secure.faults.realm = (USER, PASSWORD), f"{other.url}/token"
        with pytest.raises(SupplyError) as error:
            if way == "upload":
                push(client(secure, environ=environ), tmp_path / "x", [b"new"])
            else:
                pull(client(secure, environ=environ), store, [b"content"])
    assert codes(error) == ["redirect-refused"]
    assert not other.log and not other.token_requests


# --- connections -----------------------------------------------------------------------------------------------------


def test_plain_http_is_only_spoken_when_asked_for(double: RegistryDouble, store: Store) -> None:
    double.add(REPOSITORY, b"content")
    with pytest.raises(SupplyError) as error:
        pull(client(double, insecure=False), store, [b"content"])
    assert codes(error) == ["registry-scheme-differs"]
    assert "--plain-http" in (error.value.problems[0].hint or "")
    assert not double.log, "no request was made in the open"


@pytest.mark.parametrize("kind", [None, "basic", "bearer"])
def test_a_thread_needs_one_connection(double: RegistryDouble, tmp_path: Path, store: Store, kind: str | None) -> None:
    if kind:
        setattr(double.faults, kind, (USER, PASSWORD))
    many = [f"blob {n}".encode() for n in range(15)]
    double.add("site/old", *many[:5])
    registry = client(double, environ=docker_config(tmp_path / "docker", double.host))
    with registry:
        registry.push(blobs_in(tmp_path / "x", many), manifest_of(many), MANIFEST_TYPE, ("3",), ("site/old",))
        registry.pull([(digest_of(c), len(c)) for c in many], have=IntoStore(store).has, into=IntoStore(store))
        assert registry.fetch_manifest() == manifest_of(many)
        assert registry.list_tags() == ["3"] and registry.resolve("3")
    token_server = 1 if kind == "bearer" else 0
    assert len({one.port for one in double.log}) <= 4 + token_server
    assert {one.encoding for one in double.log} == {"identity"}, "no proxy may pack what is hashed"


def test_a_registry_that_is_not_there_is_said_soon(double: RegistryDouble, store: Store) -> None:
    double._server.server_close()
    with pytest.raises(SupplyError) as error:
        pull(client(double), store, [f"{n}".encode() for n in range(50)])
    assert codes(error) == ["registry-unreachable"]


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
def test_certificates_that_are_not_there_are_said(double: RegistryDouble, tmp_path: Path, name: str) -> None:
    with pytest.raises(SupplyError) as error:
        client(double, environ={name: str(tmp_path / "none")})
    assert codes(error) == ["file-missing"] and error.value.problems[0].where == name


def test_digests_in_tests_are_those_of_the_contents() -> None:
    assert digest_of(b"x") == "sha256:" + hashlib.sha256(b"x").hexdigest()
