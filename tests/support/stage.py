"""One place where the demo project stands built at the start of every test that asks for it.

An env knows its own path, so a copy elsewhere would be another env. Therefore the place stays the same, and what is on
it is put back: project, env and store, as the one real build of this worker left them.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import time
from pathlib import Path

from envsmith.tools.tree import FINE_NS, StatIndex, verify_bytes
from tests.support.index import SimpleIndex
from tests.support.project import Project, make_project

#: Two numbers of any size, and the array that follows.
_STAMP = re.compile(rb"\x92\x92(?:\xce.{4}|\xcf.{8})(?:\xce.{4}|\xcd.{2}|\xcc.|[\0-\x7f])\x95", re.DOTALL)


class Stage:
    """The place of one worker; nobody else may use its folder."""

    def __init__(self, folder: Path) -> None:
        self.now = folder / "now"
        self._kept = folder / "kept"

    @property
    def store(self) -> Path:
        """What the build filled: `ENVSMITH_HOME` of the tests."""
        return self.now / "store"

    def reset(self) -> Project:
        """Put the built project on the place; whatever was there goes."""
        self.clear()
        if not self._kept.exists():
            self._build()
            copy(self.now, self._kept)
        else:
            copy(self._kept, self.now)
            self._renew_indexes()
            self._renew_pointers()
        return Project(self.now / "project", self.now / "project" / "index")

    def clear(self) -> None:
        if self.now.exists():
            # A test may have taken rights from a folder, which is no obstacle for its owner.
            subprocess.run(["chmod", "-R", "u+rwX", self.now], check=True, timeout=60)
            shutil.rmtree(self.now)

    def _build(self) -> None:
        self.now.mkdir(parents=True)
        self.store.mkdir()
        project = make_project(self.now / "project")
        with SimpleIndex(project.index) as served:
            said = project.build(env={"ENVSMITH_INDEX": served.url, "ENVSMITH_HOME": str(self.store)})
        assert said.code == 0, said.out + said.err

    def _renew_indexes(self) -> None:
        """Write the stat index that the build would have left: inode and ctime are the copy's, contents the same."""
        time.sleep(1.5 * FINE_NS / 1e9)  # an index does not vouch for what is as young as itself
        for path in sorted((self.now / "project" / "envs").glob("*/*.stat.json")):
            directory = path.with_name(path.name.removesuffix(".stat.json"))
            built = StatIndex.load(path)
            _, renewed = verify_bytes(directory, built.rows.keys(), StatIndex(), mode="deep", clock=directory.parent)
            digests = {name: row.sha256 for name, row in built.rows.items()}
            assert digests
            assert {name: row.sha256 for name, row in renewed.rows.items()} == digests
            path.write_text(renewed.to_json())
            assert json.loads(path.read_text())["taken_ns"] > built.taken_ns

    def _renew_pointers(self) -> None:
        """Let uv take the copied wheels for those that it has unpacked, as it would take the built ones.

        Source: uv 0.13.9, seen 2026-11-30: a `.rev` file is a message pack that begins with ctime of the wheel's file
        in seconds and nanoseconds; the sha256 of the wheel is in it.
        """
        renewed = 0
        for pointer in self.store.glob("uv/wheels-v*/index/*/*/*.rev"):
            data = pointer.read_bytes()
            (sha256,) = re.findall(rb"[0-9a-f]{64}", data)
            blob = self.store / "blobs" / "sha256" / sha256.decode()
            if not blob.exists():
                continue  # a wheel of an editable source, made anew by every build
            stamp = re.match(
                rb"\x92\x92(?:\xce.{4}|\xcf.{8})(?:\xce.{4}|\xcd.{2}|\xcc.|[\0-\x7f])\x95", data, re.DOTALL
            )
            assert stamp, data[:20]
            now = blob.stat().st_ctime_ns
            renewed_stamp = struct.pack(">2sBIBIB", data[:2], 0xCE, now // 10**9, 0xCE, now % 10**9, 0x95)
            pointer.write_bytes(renewed_stamp + data[stamp.end() :])
            renewed += 1
        assert renewed


def copy(source: Path, target: Path) -> None:
    """Copy a tree with its times and modes; no file is shared, because tests write into them."""
    subprocess.run(["cp", "-a", "--reflink=auto", source, target], check=True, timeout=120)
