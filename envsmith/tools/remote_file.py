"""A file behind a URL, read where one looks: the METADATA of a wheel costs kilobytes, not the wheel."""

from __future__ import annotations

import io
import re
import zipfile
from typing import IO

from envsmith.tools.transport import Auth, SourceError, Transport, refused

_TAIL = 1 << 16
_AHEAD = 1 << 15


class RemoteFile(io.RawIOBase):
    """A file behind a URL that is read where it is looked at; taken whole when the server knows no ranges."""

    def __init__(self, url: str, auth: Auth | None, transport: Transport, whole: IO[bytes]) -> None:
        """Ask for the end of the file; when the server sends all of it instead, it is in `whole`."""
        super().__init__()
        self._url, self._auth, self._transport, self._whole = url, auth, transport, whole
        self._position = 0
        self._parts: list[tuple[int, bytes]] = []
        self._size = 0
        self.has_ranges = False
        self._fetch(f"bytes=-{_TAIL}")

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move, without reading."""
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def read(self, count: int = -1) -> bytes:
        """Read, asking the server for what is not here yet and a little more."""
        end = self._size if count is None or count < 0 else min(self._size, self._position + count)
        if end <= self._position:
            return b""
        start, part = self._part(self._position, end) or self._ask(self._position, end)
        found = part[self._position - start : end - start]
        self._position = end
        return found

    def _part(self, start: int, end: int) -> tuple[int, bytes] | None:
        held = ((first, part) for first, part in self._parts if first <= start and end <= first + len(part))
        return next(held, None)

    def _ask(self, start: int, end: int) -> tuple[int, bytes]:
        self._fetch(f"bytes={start}-{min(self._size, max(end, start + _AHEAD)) - 1}")
        found = self._part(start, end)
        if found is None:
            raise zipfile.BadZipFile("the server answered a range that was not asked for")
        return found

    def _fetch(self, wanted: str) -> None:
        self._transport.retrying(self._url, lambda: self._fetch_once(wanted))

    def _fetch_once(self, wanted: str) -> None:
        heads = {"Range": wanted, "Accept-Encoding": "identity"}
        with self._transport.get(self._url, self._auth, heads) as response:
            found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", response.headers.get("Content-Range", ""))
            if response.status_code == 206 and found:
                self.has_ranges, self._size = True, int(found[3])
                self._parts.append((int(found[1]), response.content))
            elif response.status_code == 200:
                self._whole.seek(0)
                self._whole.truncate()
                for chunk in response.iter_content(1 << 17):
                    self._whole.write(chunk)
            else:
                raise SourceError(refused(self._url, response.status_code))
