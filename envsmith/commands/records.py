"""Files that lie beside an env and make the next look cheap; without them it takes longer and says the same."""

from __future__ import annotations

from pathlib import Path

from envsmith.errors import EnvsmithError
from envsmith.tools.files import write_atomic


def read_beside(path: Path) -> str | None:
    """The text of such a file, None when there is none that can be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def keep_beside(path: Path, text: str) -> None:
    """Write one; a folder that cannot be written costs time, not truth."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text)
    except (OSError, EnvsmithError):
        return
