"""Real installers, let loose on the env with wheels that are made on the spot: no index is asked."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from email.parser import HeaderParser
from pathlib import Path

from uv import find_uv_bin

from bench.drift.target import Target
from tests.support.wheels import make_wheel


def uv_install(target: Target, wheel: Path, *words: str) -> None:
    """`uv pip install` into the env, as somebody does it beside envsmith."""
    _uv(target, wheel.parent, "install", "--offline", "--no-index", "--no-deps", *words, str(wheel))


def uv_uninstall(target: Target, name: str, folder: Path) -> None:
    """`uv pip uninstall`."""
    _uv(target, folder, "uninstall", name)


def pip_install(target: Target, wheel: Path, *words: str) -> None:
    """`pip install` by a pip outside of the env."""
    argv = [sys.executable, "-m", "pip", "--python", str(target.python), "install", "--no-index", "--no-deps", "-q"]
    _run([*argv, "--root-user-action=ignore", *words, str(wheel)], wheel.parent)


def wheel_again(
    target: Target, owner: str, folder: Path, *, version: str | None = None, more: Mapping[str, bytes] | None = None
) -> Path:
    """Make a wheel of an installed distribution: the same requirements, perhaps another version or other files."""
    text = target.path(f"{target.metadata[owner]}/METADATA").read_text(encoding="utf-8")
    headers = HeaderParser().parsestr(text)
    files = {e.path[len(target.site) + 1 :]: target.path(e.path).read_bytes() for e in target.owned[owner]}
    requires = headers.get_all("Requires-Dist", [])
    extras = [f"Provides-Extra: {extra}" for extra in headers.get_all("Provides-Extra", [])]
    return make_wheel(
        folder,
        headers["Name"],
        version or headers["Version"],
        {**files, **(more or {})},
        requires=requires,
        metadata=extras,
    )


def _uv(target: Target, folder: Path, *words: str) -> None:
    argv = [find_uv_bin(), "pip", words[0], "--no-config", "--python", str(target.python), *words[1:]]
    _run(argv, folder, {"UV_CACHE_DIR": str(folder / "uv-cache"), "UV_LINK_MODE": "copy"})


def _run(argv: list[str], folder: Path, more: Mapping[str, str] | None = None) -> None:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8", **(more or {})}
    done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(argv)}: {done.stderr.strip()}")
