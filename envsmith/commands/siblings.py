"""Other envs that share native libraries with the store: linking a file once more changes its ctime there too.

Their stat indexes are looked at before and restamped after, under one lock, so that building one env does not make
the next verification of every other one read its gigabytes again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from envsmith.commands.supplies import Supplies
from envsmith.observed import Seen
from envsmith.tools.files import FileLock, filesystem, write_atomic
from envsmith.tools.tree import FINE_NS, StatIndex, clock_ns, restamp, scan


class Siblings:
    """Held around whatever links files out of uv's cache."""

    def __init__(self, supplies: Supplies, environ: Mapping[str, str]) -> None:
        self._list = _list(supplies)
        self._lock = FileLock(supplies.store.home / "locks" / "links.lock", supplies.screen.message)
        self._before: dict[Path, tuple[Seen, ...]] = {}

    def __enter__(self) -> Siblings:
        self._lock.__enter__()
        for env in _registered(self._list):
            if _index(env).is_file() and os.access(env.parent, os.W_OK):
                self._before[env] = scan(env)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._before:
                # The index vouches for no file as young as its own clock: let the tick of the last link pass.
                time.sleep(2 * FINE_NS / 1e9)
            for env, before in self._before.items():
                taken = clock_ns(env.parent)
                after = scan(env)
                if after != before:
                    restamp(StatIndex.load(_index(env)), before, after, taken).save(_index(env))
        finally:
            self._lock.__exit__(kind, error, trace)

    @staticmethod
    def register(supplies: Supplies, env: Path) -> None:
        """Remember an env that was built from this store."""
        path = _list(supplies)
        with FileLock(supplies.store.home / "locks" / "envs.lock"), filesystem(path):
            envs = {*_registered(path), env}
            write_atomic(path, "".join(f"{one}\n" for one in sorted(envs)))


def _list(supplies: Supplies) -> Path:
    return supplies.store.home / "envs.txt"


def _registered(path: Path) -> list[Path]:
    try:
        lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    return [Path(line) for line in lines if Path(line).is_dir()]


def _index(env: Path) -> Path:
    return env.parent / f"{env.name}.stat.json"
