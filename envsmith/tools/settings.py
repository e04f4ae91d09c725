"""Where files may be had from: variables first, then `envsmith.toml` beside the stacks, then the user's own.

These are facts of a machine or a site, so they never stand in a recipe or a lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from envsmith.errors import InputError, Problem
from envsmith.toml_reader import TomlError, read_toml
from envsmith.tools.process import without_secrets

KEYS = ("index", "find-links", "mirrors")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What a machine says about its supply."""

    index: tuple[str, ...] = ()
    """Index URLs, the first one first; empty means uv's default index."""
    find_links: tuple[str, ...] = ()
    """Absolute folders of wheels and sdists, or URLs of pages with links to them."""
    mirrors: Mapping[str, str] = field(default_factory=dict)
    """URL prefix of a git source to what stands for it here."""

    def mirrored(self, url: str) -> str:
        """Replace the longest known prefix of a source's URL."""
        for prefix in sorted(self.mirrors, key=len, reverse=True):
            if url.startswith(prefix):
                return self.mirrors[prefix] + url[len(prefix) :]
        return url


def load_settings(environ: Mapping[str, str], stacks: Path | None) -> Settings:
    """Read the settings that hold for a stack folder; variables beat files, the nearer file beats the farther.

    Raises:
        InputError: `settings-invalid` for a file that cannot be used.
    """
    config = Path(environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "envsmith" / "envsmith.toml"
    merged: dict[str, Any] = {}
    for path in (config, *([stacks / "envsmith.toml"] if stacks else [])):
        merged.update(_read(path))
    if environ.get("ENVSMITH_INDEX"):
        merged["index"] = environ["ENVSMITH_INDEX"].split()
    if environ.get("ENVSMITH_FIND_LINKS"):
        merged["find-links"] = [_place(text, Path.cwd()) for text in environ["ENVSMITH_FIND_LINKS"].split()]
    for place in (*merged.get("index", ()), *merged.get("find-links", ())):
        _require_place(place)
    return Settings(
        index=tuple(merged.get("index", ())),
        find_links=tuple(merged.get("find-links", ())),
        mirrors=merged.get("mirrors", {}),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        data = read_toml(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, TomlError) as error:
        raise InputError(
            Problem(code="settings-invalid", message=f"cannot be read: {error}", where=str(path))
        ) from error
    problems = [
        Problem(
            code="settings-invalid",
            message=f"unknown key `{key}`",
            where=f"{path}:{key}",
            hint=f"known keys: {', '.join(KEYS)}",
        )
        for key in data
        if key not in KEYS
    ]
    index = data.get("index", [])
    data["index"] = [index] if isinstance(index, str) else index
    for key in ("index", "find-links"):
        values = data.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            problems.append(
                Problem(code="settings-invalid", message=f"`{key}` is not a list of strings", where=f"{path}:{key}")
            )
    mirrors = data.get("mirrors", {})
    if not isinstance(mirrors, dict) or not all(isinstance(value, str) for value in mirrors.values()):
        problems.append(
            Problem(code="settings-invalid", message="`mirrors` is not a table of strings", where=f"{path}:mirrors")
        )
    if problems:
        raise InputError(*problems)
    # A folder in a file is relative to the file, so that a checkout can be moved.
    data["find-links"] = [_place(text, path.parent) for text in data.get("find-links", [])]
    return {key: value for key, value in data.items() if value}


def _require_place(text: str) -> None:
    """An index or a page of links is a URL that we can ask, or a folder."""
    try:
        parts = urlsplit(text)
        fine = (
            "://" not in text or (parts.scheme in ("http", "https") and bool(parts.hostname)) or parts.scheme == "file"
        )
        words = "only http, https and file URLs and folders can be asked"
    except ValueError as error:
        fine, words = False, str(error)
    if not fine:
        raise InputError(
            Problem(
                code="index-url-malformed",
                message=f"an index or wheel folder cannot be used: {words}",
                where=without_secrets(text),
                hint="it is named by ENVSMITH_INDEX, ENVSMITH_FIND_LINKS or an envsmith.toml",
            )
        )


def _place(text: str, folder: Path) -> str:
    """A wheel folder as an absolute path; a URL stays as it is."""
    return text if "://" in text else str((folder / Path(text).expanduser()).absolute())
