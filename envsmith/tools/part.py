"""The part of a download: what an earlier run left is hashed and continued. Whoever uses one holds the blob's lock."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from envsmith.tools.files import chunks, filesystem, write_atomic


class Part:
    """The beginning of a file, on disk and in a running hash."""

    def __init__(self, path: Path, advance: Callable[[int], None]) -> None:
        self.path = path
        self.offset = 0
        self._advance = advance
        self._tag = path.with_suffix(".tag")
        self._digest = hashlib.sha256()
        with filesystem(path):
            path.touch()
            self._file = path.open("r+b", buffering=0)

    def __enter__(self) -> Part:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def resume(self, size: int | None) -> None:
        """Hash what an earlier run left; drop it when it is too long to be right."""
        with filesystem(self.path):
            kept = os.fstat(self._file.fileno()).st_size
            if size is not None and kept > size:
                self._file.truncate(0)
            for chunk in chunks(self._file) if kept else ():
                self._digest.update(chunk)
                self._count(len(chunk))

    def write(self, chunk: bytes) -> None:
        """Add bytes at the end."""
        with filesystem(self.path):
            rest = memoryview(chunk)
            while rest:
                rest = rest[self._file.write(rest) :]
        self._digest.update(chunk)
        self._count(len(chunk))

    def restart(self) -> None:
        """Forget everything."""
        with filesystem(self.path):
            self._file.seek(0)
            self._file.truncate(0)
        self._digest = hashlib.sha256()
        self._count(-self.offset)
        self.forget_tag()

    def discard(self) -> None:
        """Remove a part that can never become the file."""
        self.restart()
        with filesystem(self.path):
            self.path.unlink(missing_ok=True)

    def sha256(self) -> str:
        """Return the digest of what is there."""
        return self._digest.hexdigest()

    def headers(self, url: str) -> dict[str, str]:
        """Return the headers that ask for the rest; when the file changed meanwhile, for all of it."""
        asked = {"Accept-Encoding": "identity"}
        if self.offset:
            asked["Range"] = f"bytes={self.offset}-"
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                kept = json.loads(self._tag.read_text("utf-8"))
                if kept["url"] == _url_key(url):
                    asked["If-Range"] = str(kept["etag"])
        return asked

    def keep_tag(self, url: str, etag: str) -> None:
        """Remember the ETag for a later run; a weak one says nothing about bytes."""
        if etag and not etag.startswith("W/") and not self.offset:
            write_atomic(self._tag, json.dumps({"etag": etag, "url": _url_key(url)}))

    def forget_tag(self) -> None:
        """Remove what was kept for a later run."""
        with filesystem(self._tag):
            self._tag.unlink(missing_ok=True)

    def _count(self, count: int) -> None:
        self.offset += count
        self._advance(count)


def _url_key(url: str) -> str:
    """Return what tells URLs apart without keeping one: a signed URL is a secret."""
    return hashlib.sha256(url.encode()).hexdigest()
