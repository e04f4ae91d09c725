"""Files: hashing, whole-or-nothing writes, private copies, locks between processes, room on the disk.

What the operating system refuses becomes a problem here, once (`filesystem`); nothing above meets an OSError.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import io
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from envsmith.errors import Problem, SupplyError

CHUNK = 1 << 20
#: Source: linux/fs.h, `#define FICLONE _IOW(0x94, 9, int)`; the same number on x86_64 and aarch64.
_FICLONE = 0x40049409
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
_FIRST_LOOK_S, _LAST_LOOK_S = 0.01, 0.25
_SWEEP_AGE_S = 60.0


@contextlib.contextmanager
def filesystem(path: Path, *, needed_bytes: int | None = None) -> Iterator[None]:
    """Translate what the operating system refuses while `path` is worked on.

    Raises:
        SupplyError: `disk-full`, `root-not-writable`, `file-not-readable`, `file-missing`, `file-in-the-way` or
            `file-system-failed`.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:  # not from the operating system: requests, for one, derives its errors from OSError
            raise
        raise SupplyError(_problem(error, path, needed_bytes)) from error


def sha256_file(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Return the sha256 of a file, in hex."""
    with filesystem(path), path.open("rb", buffering=0) as stream:
        return sha256_stream(stream, on_bytes)


def sha256_stream(stream: io.RawIOBase, on_bytes: Callable[[int], None] | None = None) -> str:
    """Return the sha256 of what is left of a file opened without buffering, in hex."""
    digest = hashlib.sha256()
    for chunk in chunks(stream):
        digest.update(chunk)
        if on_bytes:
            on_bytes(len(chunk))
    return digest.hexdigest()


def chunks(stream: io.RawIOBase) -> Iterator[memoryview]:
    """Yield all that a file opened without buffering holds, in one buffer that is used again and again."""
    buffer = memoryview(bytearray(CHUNK))
    while count := stream.readinto(buffer):
        yield buffer[:count]


def write_atomic(path: Path, data: bytes | str, mode: int = 0o644) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part of it."""
    content = data.encode() if isinstance(data, str) else data
    with filesystem(path, needed_bytes=len(content)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_beside(path) as (descriptor, temporary):
            with open(descriptor, "wb", closefd=False) as stream:
                stream.write(content)
            # Made for the owner alone; some FUSE mounts take no modes, and then it stays that private.
            with contextlib.suppress(PermissionError) if mode & 0o600 == 0o600 else contextlib.nullcontext():
                _chmod(descriptor, mode)
            os.fsync(descriptor)
            temporary.replace(path)
        fsync_folder(path.parent)


def _chmod(descriptor: int, mode: int) -> None:
    """Give a file its mode; a file system that knows no such call refuses as one that forbids it."""
    try:
        os.fchmod(descriptor, mode)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
            raise PermissionError(error.errno, error.strerror) from error
        raise


@contextlib.contextmanager
def temporary_beside(path: Path) -> Iterator[tuple[int, Path]]:
    """Give an open descriptor and the path of a new file in the folder of `path`; it is gone or moved afterwards."""
    descriptor, name = tempfile.mkstemp(prefix=".envsmith-", dir=path.parent)
    try:
        yield descriptor, Path(name)
    finally:
        os.close(descriptor)
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()


def open_plain(path: Path, *, follow: bool = False) -> int:
    """Open a file to be read; whatever else has its name is refused at once, where opening a pipe would wait.

    Raises:
        FileExistsError: it is no file, which `filesystem` makes `file-in-the-way`.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileExistsError(errno.EEXIST, "it is no file", str(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_plain(path: Path, *, follow: bool = False) -> bytes:
    """Read all of a file, and nothing that is none."""
    with os.fdopen(open_plain(path, follow=follow), "rb") as stream:
        return stream.read()


def fsync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut, where the file system lets folders be synced."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some network file systems answer EINVAL; the rename itself is done
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def reflink(source: int, target: int) -> bool:
    """Let two open files share their blocks until one is written to; say whether the file system could."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def remove_tree(path: Path) -> None:
    """Remove a folder and all in it, read-only folders too; follows no link, does nothing when it is not there."""
    with filesystem(path):
        if path.is_symlink():
            path.unlink()
            return
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            return
        except PermissionError:
            for folder, _, _ in os.walk(path):
                Path(folder).chmod(0o700)
            shutil.rmtree(path)


def free_bytes(path: Path) -> int:
    """Return the bytes a user may still write on the file system that holds `path`, or will hold it. No quotas."""
    with filesystem(path):
        place = path.absolute()
        while not place.exists() and place != place.parent:
            place = place.parent
        status = os.statvfs(place)
        return status.f_bavail * status.f_frsize


class FileLock:
    """A lock between processes (and threads), held while the `with` block runs, let go of by the kernel on a crash.

    Raises:
        SupplyError: `lock-not-supported` where the file system has no locks, or what `filesystem` raises.
    """

    def __init__(
        self,
        path: Path,
        on_wait: Callable[[str], None] | None = None,
        *,
        keep: bool = True,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Lock the file `path`, made if absent; with `keep=False` whoever held it removes it again.

        `on_wait` hears once that another one holds it; `sleep` may raise to end the waiting.
        """
        self.path = path
        self._on_wait = on_wait
        self._keep = keep
        self._sleep = sleep
        self._descriptor = -1

    def __enter__(self) -> FileLock:
        with filesystem(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            while True:
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                try:
                    self._wait_for(descriptor)
                    if self._is_still_at_path(descriptor):
                        self._descriptor = descriptor
                        return self
                except BaseException:
                    os.close(descriptor)
                    raise
                os.close(descriptor)  # its last holder removed the file between our open and our lock: look again

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._keep:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1

    def _wait_for(self, descriptor: int) -> None:
        """Look again and again instead of sleeping in the kernel, so that an interrupt is heard in every thread."""
        pause = _FIRST_LOOK_S
        while not self._try(descriptor):
            if self._on_wait and pause == _FIRST_LOOK_S:
                self._on_wait(f"waiting for another process that holds `{self.path}`")
            self._sleep(pause)
            pause = min(pause * 2, _LAST_LOOK_S)

    def _try(self, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            message = f"the file system of `{self.path.parent}` cannot lock files"
            hint = "set ENVSMITH_HOME (store) or --root (environments) to a folder on a local disk"
            problem = Problem(code="lock-not-supported", message=message, where=str(self.path), hint=hint)
            raise SupplyError(problem) from error
        return True

    def _is_still_at_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:
            return False


class FolderLock:
    """A mark on a folder of our own that the kernel takes away when its process ends, however it ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._descriptor = -1

    def __enter__(self) -> FolderLock:
        with filesystem(self._folder):
            self._descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # without locks nothing is swept, see `sweep`
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


def sweep(folder: Path) -> None:
    """Remove subfolders that nobody holds a `FolderLock` on: those of runs that were killed.

    A folder younger than `_SWEEP_AGE_S` is left alone, since it may have been made and not yet been locked.
    """
    for path in folder.iterdir():
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            old = time.time() - os.fstat(descriptor).st_mtime > _SWEEP_AGE_S
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        else:
            if old:
                with contextlib.suppress(SupplyError):
                    remove_tree(path)
        finally:
            os.close(descriptor)


def _one_at_a_time(call: Callable[[int], None]) -> Callable[[int], None]:
    gate = threading.Lock()

    def told(count: int) -> None:
        with gate:
            call(count)

    return told


def _problem(error: OSError, path: Path, needed_bytes: int | None) -> Problem:
    said = os.strerror(error.errno or 0)
    where = str(path)
    if error.errno in _NO_ROOM:
        return disk_full(path, needed_bytes, said)
    if error.errno in _NOT_ALLOWED:
        seen = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else path
        if error.errno != errno.EROFS and seen.is_file() and not os.access(seen, os.R_OK):
            hint = "let this user read it"
            return Problem(code="file-not-readable", message=f"`{seen}` cannot be read: {said}", where=where, hint=hint)
        hint = "choose a folder this user may write to (--root, ENVSMITH_ROOT or ENVSMITH_HOME), or change its owner"
        return Problem(code="root-not-writable", message=f"`{seen}` cannot be written: {said}", where=where, hint=hint)
    if error.errno == errno.ENOENT:
        seen_name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else where
        return Problem(code="file-missing", message=f"`{seen_name}` is not there", where=where)
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY):
        return Problem(code="file-in-the-way", message=f"`{path}` is not what is needed there: {said}", where=where)
    return Problem(code="file-system-failed", message=f"the file system failed at `{path}`: {said}", where=where)


def disk_full(path: Path, needed_bytes: int | None, said: str = "No space left on device") -> Problem:
    """State that there is no room at `path`."""
    try:
        free = _readable(free_bytes(path))
    except SupplyError:
        free = "unknown"
    needed = f"{_readable(needed_bytes)} needed, " if needed_bytes is not None else ""
    hint = f"{needed}{free} free there (a quota may allow less); make room, or choose another place"
    return Problem(code="disk-full", message=f"there is no room at `{path}`: {said}", where=str(path), hint=hint)


def _readable(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def in_memory(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> bool:
    """Whether a path lies on tmpfs or ramfs, where a write through a memory map changes no time (seen 2026-11-30)."""
    try:
        device = path.stat().st_dev
        rows = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    name = f"{os.major(device)}:{os.minor(device)}"
    kinds = (row.partition(" - ")[2].split(" ")[0] for row in rows if f" {name} " in row)
    return any(kind in ("tmpfs", "ramfs") for kind in kinds)
