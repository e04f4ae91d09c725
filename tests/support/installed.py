"""A real environment made by the real uv from wheels of our own, with its manifest."""

from __future__ import annotations

import os
import sys
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from envsmith.checks.files import check_files
from envsmith.installed import check_record, expected_record_rows, site_entries
from envsmith.manifest import Entry, Manifest, file_entry, link_entry, merge, portable_entries, site_packages
from envsmith.observed import Observed, Seen
from envsmith.report import Finding
from envsmith.tools.tree import Mode, StatIndex, scan, verify_bytes
from envsmith.tools.uv import Uv
from envsmith.tools.wheel import list_wheel
from tests.support.wheels import make_wheel

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
SITE = site_packages(PYTHON)
ELF = b"\x7fELF" + bytes(range(256)) * 300


def demo_wheel(directory: Path) -> Path:
    """Write a wheel with one of everything: package, library, launcher, scripts, data, headers."""
    data = "Demo_Pkg-1.0.data"
    return make_wheel(
        directory,
        "Demo.Pkg",
        "1.0",
        {
            "demo/__init__.py": "def main():\n    print(1)\n\n\nclass App:\n    run = staticmethod(main)\n",
            "demo/core.py": "def work():\n    return 1\n",
            "demo/lib/libdemo.so.1": ELF,
            "demo/notes and more.txt": "a space in the name\n",
            "demo/tool.sh": "#!/bin/sh\n",
            "demo_pkg-1.0.data/scripts/inert": "#!python\n",
            f"{data}/scripts/rewritten": "#!python -E\nimport sys\nprint(sys.prefix)\n",
            f"{data}/scripts/plain": "#!/bin/sh\necho plain\n",
            f"{data}/data/share/demo.conf": "x\n",
            f"{data}/headers/demo.h": "/* h */\n",
        },
        entry_points={
            "console_scripts": {"demo": "demo:main", "demo-app": "demo:App.run"},
            "gui_scripts": {"g": "demo:main"},
        },
        executable=("demo/tool.sh",),
    )


@dataclass
class Installed:
    """An environment, what it must be, and the index of the last look."""

    root: Path
    manifest: Manifest
    index: StatIndex = field(default_factory=StatIndex)

    def look(self, mode: Mode = "default", **more: int) -> Observed:
        """Look at the environment and keep the new index."""
        owned = self.manifest.by_path()
        observed, self.index = verify_bytes(self.root, owned, self.index, mode=mode, clock=self.root.parent, **more)
        return observed

    def findings(self, mode: Mode = "default") -> list[Finding]:
        """Look at the environment and judge it."""
        return list(check_files(self.manifest, self.look(mode)))

    def settle(self) -> None:
        """Fill the index and let it become old enough to vouch for every file."""
        deadline = time.monotonic() + 10
        self.look()
        while self.look().hashed_files:
            assert time.monotonic() < deadline, "the index never vouches for these files"
            time.sleep(0.02)

    def seen(self, path: str) -> Seen:
        """Return the attributes of one path."""
        return next(seen for seen in scan(self.root) if seen.path == path)


def install(root: Path, cache: Path, *wheels: Path, link_mode: str = "copy") -> Installed:
    """Make an environment and its manifest; every RECORD is proved on the way."""
    uv = Uv(cache=cache, environ=os.environ)
    root.parent.mkdir(parents=True, exist_ok=True)
    uv.create_venv(root, interpreter=Path(sys.executable), prompt="test")
    entries = [_observed(root, seen) for seen in scan(root) if seen.kind != "folder"]
    options = ("--offline", "--no-index", "--no-deps", "--link-mode", link_mode, "--python", root / "bin/python")
    done = uv.call("pip", "install", *options, *wheels, cwd=root.parent, timeout_s=120)
    assert done.returncode == 0, done.stderr
    for wheel in wheels:
        entries += _wheel_entries(root, wheel)
    return Installed(root=root, manifest=merge(entries))


def _observed(root: Path, seen: Seen) -> Entry:
    if seen.target is not None:
        return link_entry(seen.path, seen.target, "venv")
    content = (root / seen.path).read_bytes()
    return file_entry(seen.path, content, "venv", part="site", executable=bool(seen.mode & 0o100))


def _wheel_entries(root: Path, wheel: Path) -> list[Entry]:
    listing = list_wheel(wheel)
    owner = f"{listing.name}=={listing.version}"
    info = next(m.path for m in listing.members if m.path.endswith(".dist-info/METADATA")).split("/")[0]
    folder = root / SITE / info
    extras = {
        name: (folder / name).read_bytes() for name in ("direct_url.json", "uv_cache.json") if (folder / name).exists()
    }
    with zipfile.ZipFile(wheel) as archive:
        rewritten = {path: archive.read(path) for path in listing.rewritten_scripts}
    entries = [
        *portable_entries(listing, owner, PYTHON),
        *site_entries(
            listing, owner, python_path=str(root / "bin/python"), python=PYTHON, rewritten=rewritten, extras=extras
        ),
    ]
    text = (folder / "RECORD").read_bytes()
    rows = expected_record_rows(entries, owner, info=info, python=PYTHON)
    assert check_record(text.decode(), rows, "RECORD") == ()
    path = folder.relative_to(root) / "RECORD"
    executable = bool((root / path).stat().st_mode & 0o111)
    return [*entries, file_entry(str(path), text, owner, part="site", executable=executable)]
