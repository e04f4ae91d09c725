"""Pages of the simple API, read: PEP 691 (JSON), PEP 503 (HTML), PEP 658 (metadata files). Text in, links out.

Source: https://packaging.python.org/specifications/simple-repository-api/, read 2026-09.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag, urljoin, urlsplit


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """One file on a page."""

    url: str
    sha256: str | None
    """What the page says; a mirror may say nothing."""
    has_metadata: bool
    """`url` + ".metadata" is there too."""
    metadata_sha256: str | None

    @property
    def filename(self) -> str:
        """The last part of the URL's path."""
        return unquote(urlsplit(self.url).path.rsplit("/", 1)[-1])


def parse_json(text: str, base: str) -> tuple[Listed, ...]:
    """Read a PEP 691 page.

    Raises:
        ValueError: it is not one.
    """
    page = json.loads(text)
    if not isinstance(page, dict) or not isinstance(page.get("files"), list):
        raise ValueError("not a PEP 691 page")
    found = []
    for file in page["files"]:
        if not isinstance(file, dict) or not isinstance(file.get("url"), str):
            raise ValueError("not a PEP 691 file entry")
        metadata = file.get("core-metadata", file.get("dist-info-metadata", False))
        found.append(
            Listed(
                url=urldefrag(urljoin(base, file["url"])).url,
                sha256=_sha256_in(file.get("hashes")),
                has_metadata=bool(metadata),
                metadata_sha256=_sha256_in(metadata),
            )
        )
    return tuple(found)


def _sha256_in(hashes: object) -> str | None:
    value = hashes.get("sha256") if isinstance(hashes, dict) else None
    return value.lower() if isinstance(value, str) else None


def parse_html(text: str, base: str) -> tuple[Listed, ...]:
    """Read a PEP 503 page, or any page of links."""
    reader = _Links(base)
    reader.feed(text)
    return tuple(reader.found)


class _Links(HTMLParser):
    def __init__(self, base: str) -> None:
        super().__init__(convert_charrefs=True)
        self.base = base
        self.found: list[Listed] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        target = values.get("href")
        if target is None:
            return
        if tag == "base":
            self.base = urljoin(self.base, target)
        elif tag == "a":
            url, fragment = urldefrag(urljoin(self.base, target))
            metadata = values.get("data-core-metadata", values.get("data-dist-info-metadata"))
            self.found.append(
                Listed(
                    url=url,
                    sha256=_sha256_of(fragment),
                    has_metadata=metadata is not None and metadata != "false",
                    metadata_sha256=_sha256_of(metadata or ""),
                )
            )


def _sha256_of(text: str) -> str | None:
    found = re.search(r"(?:^|&)sha256=([0-9a-fA-F]{64})", text)
    return found[1].lower() if found else None
