"""Tries what saving a checkpoint does, in a folder, with one small file of its own that is gone afterwards."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from envsmith.checkpointfolder import DIFFERS, OPERATIONS, FolderAnswer

#: safetensors grows a file to its whole size; 1 MiB is enough for a refusal to be seen (facts/symptoms.md D45).
GROWN_BYTES = 1 << 20
WRITTEN_BYTES = 8 << 20
_TRIAL = ".envsmith-probe-"
#: Without these the rest cannot be tried.
_NEEDED = ("create", "write")


def probe_checkpoint_folder(path: Path) -> FolderAnswer:
    """Try a folder, or the nearest above it that is there; whatever the operating system refuses is an answer."""
    folder = path.absolute()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    started = time.monotonic()
    free: int | None = None
    with contextlib.suppress(OSError):
        status = os.statvfs(folder)
        free = status.f_bavail * status.f_frsize
    trial = _Trial(folder)
    trial.run()
    return FolderAnswer(
        path=str(folder),
        type=file_system_type(folder),
        free_bytes=free,
        failed=trial.failed,
        untried=tuple(one for one in OPERATIONS if one not in trial.tried),
        seconds=time.monotonic() - started,
        write_mb_s=trial.write_mb_s,
    )


def is_trial(name: str) -> bool:
    """Whether a file is one of a trial, which a kill may have left."""
    return name.startswith(_TRIAL)


def remove_trials(folder: Path, older_s: float = 600.0) -> None:
    """Remove what trials left that were killed; one that is younger may still be under way, here or elsewhere."""
    with contextlib.suppress(OSError):
        for path in folder.glob(f"{_TRIAL}*"):
            if time.time() - path.lstat().st_mtime > older_s:
                path.unlink()


def file_system_type(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Return the type of the mount that is seen at a path, `unknown` where nothing says so.

    Source: proc_pid_mountinfo(5): field 5 is the mount point, the type stands behind ` - ` (read 2026-11-30).
    """
    found, longest = "unknown", -1
    try:
        real = os.path.realpath(path)
        rows = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return found
    for row in rows:
        left, _, right = row.partition(" - ")
        fields = left.split(" ")
        if len(fields) < 5 or not right:
            continue
        point = _unescaped(fields[4])
        # Of two mounts at one place the later is seen.
        if (real + "/").startswith(point.rstrip("/") + "/") and len(point) >= longest:
            found, longest = right.split(" ")[0], len(point)
    return found


def _unescaped(text: str) -> str:
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, letter)
    return text


class _Trial:
    """One go through all operations."""

    def __init__(self, folder: Path) -> None:
        self.failed: dict[str, str] = {}
        self.tried: set[str] = set()
        self.write_mb_s: float | None = None
        self._folder = folder
        self._made: list[Path] = []
        self._descriptor = -1
        self._write_started = 0.0
        self._content = os.urandom(1 << 16) * (WRITTEN_BYTES >> 16)

    def run(self) -> None:
        """Try everything in order, as far as it can be tried."""
        acts: dict[str, Callable[[], None]] = {
            "create": self._create,
            "ftruncate": lambda: os.ftruncate(self._descriptor, GROWN_BYTES),
            "fallocate": self._fallocate,
            "write": self._write,
            "fsync": lambda: os.fsync(self._descriptor),
            "read-back": self._read_back,
            "mmap": self._map,
            "flock": lambda: fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB),
            "rename": self._rename,
            "fsync-folder": self._sync_folder,
        }
        try:
            for name, act in acts.items():
                if not self._try(name, act) and name in _NEEDED:
                    break
                if name == "fsync" and name not in self.failed:
                    self.write_mb_s = WRITTEN_BYTES / 1e6 / max(time.monotonic() - self._write_started, 1e-6)
        finally:
            if self._descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(self._descriptor)
            if self._made:
                self._try("unlink", self._unlink)

    def _try(self, name: str, act: Callable[[], None]) -> bool:
        self.tried.add(name)
        try:
            act()
        except _DiffersError:
            self.failed[name] = DIFFERS
        except OSError as error:
            self.failed[name] = errno.errorcode.get(error.errno or 0, str(error.errno))
        return name not in self.failed

    def _create(self) -> None:
        self._descriptor, name = tempfile.mkstemp(prefix=_TRIAL, dir=self._folder)
        self._made.append(Path(name))

    def _fallocate(self) -> None:
        # Not `os.posix_fallocate`: the C library writes where the file system cannot, and answers that it could.
        libc = ctypes.CDLL(None, use_errno=True)
        size = ctypes.c_int64(GROWN_BYTES)
        if libc.fallocate(self._descriptor, 0, ctypes.c_int64(0), size) != 0:
            raise OSError(ctypes.get_errno(), "fallocate")

    def _write(self) -> None:
        self._write_started = time.monotonic()
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        rest = memoryview(self._content)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def _read_back(self) -> None:
        with contextlib.suppress(OSError):  # a hint alone
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        with self._made[0].open("rb", buffering=0) as stream:
            if stream.readall() != self._content:
                raise _DiffersError

    def _map(self) -> None:
        with (
            self._made[0].open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ) as mapped,
        ):
            if mapped[:16] != self._content[:16] or mapped[-16:] != self._content[-16:]:
                raise _DiffersError

    def _rename(self) -> None:
        descriptor, name = tempfile.mkstemp(prefix=_TRIAL, dir=self._folder)
        os.close(descriptor)
        self._made.append(Path(name))
        self._made[0].replace(name)
        del self._made[0]

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _unlink(self) -> None:
        for path in self._made:
            path.unlink()


class _DiffersError(Exception):
    """Other bytes came back than were written."""
