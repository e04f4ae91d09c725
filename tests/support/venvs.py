"""Environments that another tool made: real virtual environments with distributions laid out by hand."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.project import SITE, Said


@dataclass(frozen=True, slots=True)
class Venv:
    """A virtual environment of the standard library, without pip."""

    path: Path

    @property
    def site(self) -> Path:
        """Its site-packages."""
        return self.path / SITE

    def install(
        self,
        name: str,
        version: str,
        files: Mapping[str, str],
        *,
        requires: tuple[str, ...] = (),
        unhashed: tuple[str, ...] = (),
        more: Mapping[str, str] | None = None,
    ) -> Path:
        """Lay a distribution out as an installer would; `more` are further files of its metadata, in no RECORD."""
        info = self.site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {one}" for one in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        rows = [f"{info.name}/METADATA,{_hash((info / 'METADATA').read_bytes())},", f"{info.name}/RECORD,,"]
        for path, text in files.items():
            place = self.site / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
            rows.append(f"{path},{'' if path in unhashed else _hash(text.encode())},")
        (info / "RECORD").write_text("\n".join(rows) + "\n")
        for path, text in {"INSTALLER": "pip\n", **(more or {})}.items():
            (info / path).write_text(text)
        return info

    def script(self, name: str, interpreter: str) -> Path:
        """Write an executable script into `bin`."""
        place = self.path / "bin" / name
        place.write_text(f"#!{interpreter}\nprint('hello')\n")
        place.chmod(0o755)
        return place

    def verify(self, *words: str, env: Mapping[str, str] | None = None) -> Said:
        """Run `envsmith verify` on it, in a shell with `env` besides."""
        done = subprocess.run(
            [sys.executable, "-m", "envsmith", "verify", str(self.path), "--json", *words],
            capture_output=True,
            text=True,
            env={**os.environ, **(env or {})},
            timeout=120,
            check=False,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def python(self, *words: str) -> str:
        """Run its interpreter."""
        done = subprocess.run(
            [self.path / "bin" / "python", *words], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout


def make_venv(path: Path) -> Venv:
    """Make a virtual environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True, timeout=60)
    return Venv(path)


def findings(said: Said, kind: str) -> list[dict[str, str]]:
    """The findings of one `family/kind`."""
    return [f for f in said.json["data"]["findings"] if f"{f['check']}/{f['kind']}" == kind]


def everything(said: Said) -> str:
    """All findings as text, for what must not be said."""
    return json.dumps(said.json["data"]["findings"])


def _hash(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
