"""Metadata-only wheels: they stand in a resolution for packages that a vendor's base has and no index knows."""

from __future__ import annotations

import zipfile
from pathlib import Path

from envsmith.tools.files import filesystem


def write_stand_in(folder: Path, name: str, version: str) -> Path:
    """Write a wheel that holds nothing but its name and version.

    It requires nothing: what a base package needs is in the base, and is not resolved again.
    """
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    members = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: envsmith\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n",
    }
    path = folder / f"{stem}-py3-none-any.whl"
    with filesystem(path), zipfile.ZipFile(path, "w") as archive:
        for member, text in members.items():
            archive.writestr(zipfile.ZipInfo(member, date_time=(1980, 1, 1, 0, 0, 0)), text)
    return path
