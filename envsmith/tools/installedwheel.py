"""Makes a wheel again of a distribution that is installed beside envsmith.

The last resort for a bundle whose tools no index here has: contents are held against the RECORD of the installation,
the archive is written anew, so its digest is not that of the published wheel.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path

from envsmith.errors import IntegrityError, Problem, SupplyError
from envsmith.tools.files import filesystem
from envsmith.tools.rawzip import RawZip
from envsmith.wheelfile import in_order, record_row

#: What an installer adds to a dist-info folder (PEP 376, PEP 610, PEP 627), read 2026-11-30.
_ADDED = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "RECORD.jws", "RECORD.p7s", "uv_cache.json")
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
    tags = [line.partition(":")[2].strip() for line in (found.read_text("WHEEL") or "").splitlines() if "Tag:" in line]
    info = next((row.parts[0] for row in found.files or () if row.name == "METADATA" and len(row.parts) == 2), None)
    if not tags or info is None:
        raise _absent(name, _NO_WHEEL)
    members = dict(sorted(_members(name, found, info)))
    stem = info.removesuffix(".dist-info")
    path = out_dir / f"{stem}-{_compressed(tags)}.whl"
    rows = []
    with filesystem(path):
        out_dir.mkdir(parents=True, exist_ok=True)
        with RawZip(path) as out:
            for member in in_order(members, info):
                content, executable = members[member]
                out.store(member, content, executable=executable)
                rows.append(record_row(member, hashlib.sha256(content).hexdigest(), len(content)))
            record = "".join(f"{row}\n" for row in [*rows, f"{info}/RECORD,,"])
            out.store(f"{info}/RECORD", record.encode(), executable=False)
    return path


def _compressed(tags: list[str]) -> str:
    """Several tags as a file name has them."""
    parts = [tag.split("-") for tag in tags]
    return "-".join(".".join(dict.fromkeys(part[n] for part in parts)) for n in range(3))


def _members(name: str, found: Distribution, info: str) -> Iterator[tuple[str, tuple[bytes, bool]]]:
    scripts = {point.name for point in found.entry_points if point.group in ("console_scripts", "gui_scripts")}
    data = f"{info.removesuffix('.dist-info')}.data"
    for row in found.files or ():
        text = row.as_posix()
        if text.endswith(".pyc") or "/__pycache__/" in text:
            continue
        if text.startswith(f"{info}/") and text.removeprefix(f"{info}/") in _ADDED:
            continue
        outside = re.fullmatch(r"(?:\.\./)+(bin|share|include|etc)/(.+)", text)
        if outside and outside[1] == "bin" and outside[2] in scripts:
            continue
        member = text
        if outside:
            member = f"{data}/scripts/{outside[2]}" if outside[1] == "bin" else f"{data}/data/{outside[1]}/{outside[2]}"
        elif text.startswith(("..", "/")):
            raise _absent(name, f"`{text}` of it lies outside of its folder")
        yield member, _content(row, outside is not None and outside[1] == "bin")


def _content(row: PackagePath, script: bool) -> tuple[bytes, bool]:
    path = Path(str(row.locate()))
    with filesystem(path):
        content = path.read_bytes()
        executable = os.access(path, os.X_OK)
    if row.hash and row.hash.mode == "sha256" and row.hash.value != _encoded(content):
        hint = "install envsmith and what it needs again"
        message = f"`{path.name}` is not what was installed"
        raise IntegrityError(Problem(code="tool-altered", message=message, where=str(path), hint=hint))
    if script and content.startswith(b"#!") and b"python" in content.split(b"\n", 1)[0]:
        content = b"#!python" + content[content.index(b"\n") :]
    return content, executable


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def _absent(name: str, why: str) -> SupplyError:
    message = f"`{name}` cannot be taken from the running installation: {why}"
    hint = "name an index or a folder that has it with ENVSMITH_INDEX or ENVSMITH_FIND_LINKS"
    return SupplyError(Problem(code="tool-not-installed", message=message, where=name, hint=hint))
