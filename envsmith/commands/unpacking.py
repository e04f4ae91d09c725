"""Unpacking wheels while others are still on their way."""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path

from envsmith.commands.sources import pylock_of
from envsmith.commands.supplies import Supplies
from envsmith.lock import Wheel
from envsmith.tools.index import Item

#: Wheels are unpacked ahead of the sync once this many bytes of them have arrived.
BATCH_BYTES = 64 << 20


class Unpacker:
    """Unpacks wheels into uv's cache in a thread of its own while others are still on their way."""

    def __init__(self, wheels: Iterable[Wheel], supplies: Supplies, *, python: Path, work: Path) -> None:
        self._wheels = {wheel.sha256: wheel for wheel in wheels}
        self._supplies = supplies
        self._python = python
        self._work = work
        self._arrivals: queue.Queue[Wheel | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="unpack", daemon=True)
        self._thread.start()

    def arrived(self, item: Item) -> None:
        """Take note of a file that is in the store now."""
        wheel = self._wheels.get(item.sha256)
        if wheel is not None:
            self._arrivals.put(wheel)

    def finish(self) -> None:
        """Wait for the batch at work; what is left, the sync unpacks."""
        self._arrivals.put(None)
        self._thread.join()

    def _run(self) -> None:
        number = 0
        batch: list[Wheel] = []
        while (wheel := self._arrivals.get()) is not None:
            batch.append(wheel)
            if sum(w.size for w in batch) >= BATCH_BYTES:
                number += 1
                self._unpack(batch, number)
                batch = []

    def _unpack(self, batch: list[Wheel], number: int) -> None:
        pylock = self._work / f"pylock.unpack{number}.toml"
        pylock.write_text(pylock_of(batch, self._supplies))
        scratch = self._work / f"unpack-{number}"
        self._supplies.uv.unpack(pylock, python=self._python, scratch=scratch)
        shutil.rmtree(scratch, ignore_errors=True)
