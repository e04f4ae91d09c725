"""The store: files named by their sha256, shared by every build on this machine, safe for many processes at once.

Layout under `$ENVSMITH_HOME`: `blobs/sha256/<hex>` (read-only), `blobs/quarantine/`, `partial/`, `locks/` and
`facts/<hex>.json`. A blob gets its name by one rename, after its bytes were hashed and synced. That a blob exists
does not prove it right: `verify` does, and the build hashes every file it installs.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from envsmith.errors import InputError, IntegrityError, Problem, SupplyError
from envsmith.tools.files import (
    FileLock,
    chunks,
    filesystem,
    fsync_folder,
    reflink,
    sha256_file,
    temporary_beside,
    write_atomic,
)

_BLOB_MODE = 0o444


class Store:
    """A content-addressed folder. Making the object touches nothing; folders appear with the first write."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def blob_path(self, sha256: str) -> Path:
        """Return where the blob of this digest is, or would be."""
        return self.home / "blobs" / "sha256" / _checked(sha256)

    def has(self, sha256: str, size: int | None = None) -> bool:
        """Say whether a blob of this name, and size where given, is there. Its content is not read."""
        path = self.blob_path(sha256)
        with filesystem(path):
            try:
                status = path.stat()
            except FileNotFoundError:
                return False
        return size is None or status.st_size == size

    def verify(self, sha256: str) -> Path:
        """Read a blob again and return its path when it is what its name says.

        Raises:
            IntegrityError: `store-blob-corrupt`; the blob has been moved to `blobs/quarantine/`.
            SupplyError: `store-blob-missing`.
        """
        path = self.blob_path(sha256)
        if not self.has(sha256):
            message = f"the store has no blob `{sha256}`"
            raise SupplyError(Problem(code="store-blob-missing", message=message, where=str(path)))
        actual = sha256_file(path)
        if actual == sha256:
            return path
        message = f"the content of a blob in the store is not what its name says{self._named(sha256)}"
        raise IntegrityError(
            Problem(
                code="store-blob-corrupt",
                message=message,
                where=str(self._quarantine(path)),
                hint="it was moved aside and will be fetched again; find out who wrote to the store, or check the disk",
                expected=f"sha256 {sha256}",
                actual=f"sha256 {actual}",
            )
        )

    def add_file(self, path: Path, sha256: str | None = None, *, name: str | None = None) -> str:
        """Bring a private copy of a file in and return its digest, which was computed on the copy.

        A blob that is already there is read and checked instead, and replaced when it is wrong.

        Raises:
            IntegrityError: `blob-digest-differs` when `sha256` is given and the file has another digest.
        """
        if sha256 and self.holds(sha256):
            return sha256
        with filesystem(path):
            source = path.open("rb", buffering=0)
        partial = self._made("partial")
        with source, filesystem(partial), temporary_beside(partial / "x") as (descriptor, temporary):
            actual = copy_hashed(source, descriptor)
            if sha256 and actual != sha256:
                raise IntegrityError(_differs(path, sha256, actual))
            return self.commit(temporary, actual, name=name or path.name).name

    @contextlib.contextmanager
    def receiving(self, sha256: str) -> Iterator[Receiver]:
        """Give a receiver for the bytes of one blob; what was not committed is gone afterwards.

        What fails in the block, such as reading where the bytes come from, is not told of the store.
        """
        name = _checked(sha256)
        partial = self._made("partial")
        stack = contextlib.ExitStack()
        with filesystem(partial):
            descriptor, temporary = stack.enter_context(temporary_beside(partial / "x"))
        try:
            yield Receiver(self, name, descriptor, temporary)
        finally:
            with filesystem(partial):
                stack.close()

    def partial(self, sha256: str) -> Path:
        """Return where a download of this blob grows; its folder exists. Write to it only under `lock`."""
        return self._made("partial") / f"{_checked(sha256)}.part"

    def commit(self, part: Path, sha256: str, *, name: str | None = None) -> Path:
        """Give a finished file of ours its name in the store; the caller has hashed its content."""
        blob = self.blob_path(sha256)
        self._made("blobs/sha256")
        with filesystem(blob):
            descriptor = os.open(part, os.O_RDONLY)
            try:
                os.fchmod(descriptor, _BLOB_MODE)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            part.replace(blob)
            fsync_folder(blob.parent)
        if name:
            self.remember(sha256, name=name)
        return blob

    def lock(
        self, sha256: str, on_wait: Callable[[str], None] | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> FileLock:
        """Return the lock that whoever downloads or makes this blob holds meanwhile."""
        return FileLock(self.home / "locks" / f"{_checked(sha256)}.lock", on_wait, keep=False, sleep=sleep)

    def remember(self, sha256: str, **facts: str) -> None:
        """Keep side facts of a blob, such as its first file name, for people; what is known already stays."""
        path = self._facts_path(sha256)
        known = self.facts(sha256)
        if any(key not in known for key in facts):
            write_atomic(path, json.dumps({**facts, **known}, sort_keys=True) + "\n")

    def facts(self, sha256: str) -> Mapping[str, str]:
        """Return the side facts of a blob; none when nothing readable is known."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self._facts_path(sha256).read_text("utf-8"))
            return found if isinstance(found, dict) else {}
        return {}

    def blobs(self) -> Iterator[tuple[str, int]]:
        """Yield digest and size of every blob, in order of digest."""
        folder = self.home / "blobs" / "sha256"
        with filesystem(folder):
            paths = sorted(folder.iterdir()) if folder.is_dir() else []
        for path in paths:
            yield path.name, path.stat().st_size

    def holds(self, sha256: str) -> bool:
        """Say whether the store has this blob and it is right; a wrong one is set aside."""
        if not self.has(sha256):
            return False
        with contextlib.suppress(IntegrityError, SupplyError):
            self.verify(sha256)
            return True
        return False

    def _quarantine(self, path: Path) -> Path:
        aside = self._made("blobs/quarantine") / f"{path.name}.{time.time_ns()}"
        with filesystem(path):
            path.replace(aside)
        return aside

    def _made(self, folder: str) -> Path:
        path = self.home / folder
        with filesystem(path):
            path.mkdir(parents=True, exist_ok=True)
        return path

    def _facts_path(self, sha256: str) -> Path:
        return self.home / "facts" / f"{_checked(sha256)}.json"

    def _named(self, sha256: str) -> str:
        name = self.facts(sha256).get("name")
        return f" (`{name}`)" if name else ""


class Receiver:
    """Takes the bytes of one blob as they come, hashing them."""

    def __init__(self, store: Store, sha256: str, descriptor: int, path: Path) -> None:
        self._store = store
        self._sha256 = sha256
        self._descriptor = descriptor
        self._path = path
        self._digest = hashlib.sha256()

    def write(self, data: memoryview) -> None:
        """Append.

        Raises:
            SupplyError: `disk-full` and its kin.
        """
        self._digest.update(data)
        with filesystem(self._path):
            _write_all(self._descriptor, data)

    @property
    def digest(self) -> str:
        """Sha256 of all that came so far."""
        return self._digest.hexdigest()

    def commit(self, *, name: str | None = None) -> None:
        """Give the finished blob its name.

        Raises:
            IntegrityError: `blob-digest-differs`.
        """
        if self.digest != self._sha256:
            raise IntegrityError(_differs(Path(name or self._sha256), self._sha256, self.digest))
        self._store.commit(self._path, self._sha256, name=name)


def open_store(environ: Mapping[str, str]) -> Store:
    """Return the store of `$ENVSMITH_HOME`, else that in the user's cache folder.

    Raises:
        InputError: `home-unknown` when neither is known.
    """
    if environ.get("ENVSMITH_HOME"):
        return Store(Path(environ["ENVSMITH_HOME"]).expanduser().absolute())
    cache = Path(environ.get("XDG_CACHE_HOME", ""))
    if cache.is_absolute():
        return Store(cache / "envsmith")
    if environ.get("HOME"):
        return Store(Path(environ["HOME"]).absolute() / ".cache" / "envsmith")
    hint = "set ENVSMITH_HOME to a folder with room for the wheels"
    raise InputError(Problem(code="home-unknown", message="neither ENVSMITH_HOME nor HOME is set", hint=hint))


def copy_hashed(source: io.RawIOBase, target: int, on_bytes: Callable[[int], None] | None = None) -> str:
    """Copy an open file, blocks shared where the file system can; return the sha256 of the copy."""
    digest = hashlib.sha256()
    is_shared = isinstance(source, io.FileIO) and reflink(source.fileno(), target)
    with open(target, "rb", buffering=0, closefd=False) if is_shared else contextlib.nullcontext(source) as stream:
        for chunk in chunks(stream):
            digest.update(chunk)
            if not is_shared:
                _write_all(target, chunk)
            if on_bytes:
                on_bytes(len(chunk))
    return digest.hexdigest()


def _checked(sha256: str) -> str:
    """Refuse what is no digest before it becomes a path: digests come from locks and bundles, written by others.

    Raises:
        InputError: `digest-malformed`.
    """
    if len(sha256) != 64 or sha256.strip("0123456789abcdef"):
        message = f"`{sha256[:80]}` is not a sha256 in lower-case hex"
        raise InputError(Problem(code="digest-malformed", message=message))
    return sha256


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _differs(path: Path, expected: str, actual: str) -> Problem:
    return Problem(
        code="blob-digest-differs",
        message=f"`{path.name}` is not the file that was asked for",
        where=str(path),
        hint="get the file again from where it came; if it differs again, ask whoever provides it",
        expected=f"sha256 {expected}",
        actual=f"sha256 {actual}",
    )
