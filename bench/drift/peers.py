"""Other tools on the same fault, judged by how their words differ from those on the untouched env.

pip and uv are red on an env whose accepted conflicts are meant, so their exit code alone says nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from uv import find_uv_bin

from bench.drift.target import Target

Alarm = Literal["", "alarm", "turned green"]

#: In the order of the table.
TOOLS = ("uv pip check", "pip check", "uv pip sync --dry-run")

_SETTINGS = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "UV_NO_PROGRESS": "1", "UV_NO_CONFIG": "1", "NO_COLOR": "1"}
_TIMES = re.compile(r"\b(in )?\d+(\.\d+)?(ms|s|m)\b")
_NOISE = ("Using", "Resolved", "Checked", "Would make no", "Audited", "Found ")


def requirements(target: Target, folder: Path) -> Path:
    """Write the lock as pinned requirements: offline uv cannot build a source, nor need it."""
    lines = [f"{wheel.name}=={wheel.version}" for wheel in target.lock.wheels]
    lines += [f"{source.project}=={source.version}" for source in target.lock.sources]
    lines = list(dict.fromkeys(lines))
    path = folder / "requirements.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def ask(target: Target, pinned: Path, environ: Mapping[str, str], folder: Path) -> dict[str, tuple[str, ...]]:
    """Run every tool in the calling shell and return the lines of each, exit code first."""
    uv, python = find_uv_bin(), str(target.python)
    commands: dict[str, Sequence[str]] = {
        "uv pip check": (uv, "pip", "check", "--python", python),
        "pip check": (sys.executable, "-m", "pip", "--python", python, "check"),
        "uv pip sync --dry-run": (uv, "pip", "sync", "--dry-run", "--offline", "--python", python, str(pinned)),
    }
    whole = {**environ, **_SETTINGS, "UV_CACHE_DIR": str(folder / "uv-cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    return {tool: _lines(commands[tool], whole, folder) for tool in TOOLS}


def alarm(clean: Sequence[str], said: Sequence[str]) -> Alarm:
    """New words are an alarm; words that went away, or an exit code that turned 0, are the opposite."""
    if clean == said:
        return ""
    if said and said[0] == "exit 0" and clean[0] != "exit 0":
        return "turned green"
    return "alarm" if set(said) - set(clean) else "turned green"


def _lines(command: Sequence[str], environ: Mapping[str, str], folder: Path) -> tuple[str, ...]:
    try:
        done = subprocess.run(
            list(command), cwd=folder, env=dict(environ), capture_output=True, text=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        return ("exit timeout",)
    text = _TIMES.sub("", done.stdout + "\n" + done.stderr)
    kept = sorted({line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith(_NOISE)})
    return (f"exit {done.returncode}", *kept)
