"""Makes a wheel again of a distribution that is installed beside envsmith.

The last resort for a bundle whose tools no index here has: contents are held against the RECORD of the installation,
the archive is written anew, so its digest is not that of the published wheel.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path

from envsmith.errors import IntegrityError, Problem, SupplyError
from envsmith.tools.files import filesystem
from envsmith.tools.rawzip import RawZip, TooLargeError
from envsmith.wheelfile import in_order, record_row

#: What an installer adds to a dist-info folder (PEP 376, PEP 610, PEP 627), read 2026-11-30.
_ADDED = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "RECORD.jws", "RECORD.p7s", "uv_cache.json")
#: What RECORD may use (PEP 427: sha256 or better).
_ALGORITHMS = ("sha256", "sha384", "sha512")
_NO_WHEEL = "it was not installed from a wheel"


def make_installed_wheel(name: str, out_dir: Path) -> Path:
    """Write the wheel of an installed distribution into a folder and return its path.

    Raises:
        SupplyError: `tool-not-installed`.
        IntegrityError: `tool-altered` when an installed file is not what was installed.
    """
    try:
        found = distribution(name)
    except PackageNotFoundError as error:
        raise _absent(name, "it is not installed") from error
    info = next((row.parts[0] for row in found.files or () if row.name == "METADATA" and len(row.parts) == 2), None)
    tags = _tags(found.read_text("WHEEL") or "")
    if not tags or info is None:
        raise _absent(name, _NO_WHEEL)
    if _is_editable(found.read_text("direct_url.json")):
        raise _absent(name, "it is installed in editable mode")
    members = dict(sorted(_members(name, found, info)))
    path = out_dir / f"{info.removesuffix('.dist-info')}-{tags}.whl"
    try:
        with filesystem(path):
            out_dir.mkdir(parents=True, exist_ok=True)
            _write(path, members, info)
    except TooLargeError as error:
        raise _absent(name, "it has more than 4 GiB") from error
    return path


def _tags(text: str) -> str | None:
    """The tags of a WHEEL file as a file name has them, such as py2.py3-none-any; None when it has none."""
    stated = [line.removeprefix("Tag:").strip().split("-") for line in text.splitlines() if line.startswith("Tag:")]
    if not stated or any(len(parts) != 3 for parts in stated):
        return None
    return "-".join(".".join(dict.fromkeys(parts[n] for parts in stated)) for n in range(3))


def _is_editable(direct_url: str | None) -> bool:
    """Whether an installation is but a pointer to a folder (PEP 660, PEP 610; read 2026-11-30)."""
    try:
        found = json.loads(direct_url or "{}")
    except ValueError:
        return False
    folder = found.get("dir_info") if isinstance(found, dict) else None
    return isinstance(folder, dict) and folder.get("editable") is True


def _write(path: Path, members: Mapping[str, tuple[bytes, bool]], info: str) -> None:
    rows = []
    with RawZip(path) as out:
        for member in in_order(members, info):
            content, executable = members[member]
            out.store(member, content, executable=executable)
            rows.append(record_row(member, hashlib.sha256(content).hexdigest(), len(content)))
        record = "".join(f"{row}\n" for row in [*rows, f"{info}/RECORD,,"])
        out.store(f"{info}/RECORD", record.encode(), executable=False)


def _members(name: str, found: Distribution, info: str) -> Iterator[tuple[str, tuple[bytes, bool]]]:
    scripts = {point.name for point in found.entry_points if point.group in ("console_scripts", "gui_scripts")}
    data = f"{info.removesuffix('.dist-info')}.data"
    for row in found.files or ():
        text = row.as_posix()
        if text.endswith(".pyc"):
            continue
        if text.startswith(f"{info}/") and text.removeprefix(f"{info}/") in _ADDED:
            continue
        outside = re.fullmatch(r"(?:\.\./)+(bin|share|include|etc)/(.+)", text)
        if outside and outside[1] == "bin" and outside[2] in scripts:
            continue
        member = text
        if outside:
            member = f"{data}/scripts/{outside[2]}" if outside[1] == "bin" else f"{data}/data/{outside[1]}/{outside[2]}"
        if ".." in member.split("/") or member.startswith("/"):
            raise _absent(name, f"`{text}` of it lies outside of its folder")
        content, executable = _content(row)
        yield member, (_moved(content) if outside is not None and outside[1] == "bin" else content, executable)


def _content(row: PackagePath) -> tuple[bytes, bool]:
    path = Path(str(row.locate()))
    try:
        with filesystem(path):
            content = path.read_bytes()
            executable = os.access(path, os.X_OK)
    except SupplyError as error:
        if error.problems[0].code != "file-missing":
            raise
        raise _altered(path, "is no longer there") from error
    if row.hash is not None and row.hash.mode in _ALGORITHMS and row.hash.value != _encoded(content, row.hash.mode):
        raise _altered(path, "is not what was installed")
    return content, executable


def _moved(script: bytes) -> bytes:
    """Take the interpreter's path out of a script, which installers put in (distlib 0.3.9's two forms, uv 0.13's)."""
    lines = script.split(b"\n", 3)
    if len(lines) > 3 and lines[0] == b"#!/bin/sh" and lines[1].startswith(b"'''exec' ") and lines[2] == b"' '''":
        return b"#!python\n" + lines[3]
    first, newline, rest = script.partition(b"\n")
    return b"#!python" + newline + rest if first.startswith(b"#!") and b"python" in first else script


def _altered(path: Path, what: str) -> IntegrityError:
    hint = "install envsmith and what it needs again"
    return IntegrityError(Problem(code="tool-altered", message=f"`{path.name}` {what}", where=str(path), hint=hint))


def _encoded(content: bytes, algorithm: str) -> str:
    return base64.urlsafe_b64encode(hashlib.new(algorithm, content).digest()).rstrip(b"=").decode()


def _absent(name: str, why: str) -> SupplyError:
    message = f"`{name}` cannot be taken from the running installation: {why}"
    hint = "name an index or a folder that has it with ENVSMITH_INDEX or ENVSMITH_FIND_LINKS"
    return SupplyError(Problem(code="tool-not-installed", message=message, where=name, hint=hint))
