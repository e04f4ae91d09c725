"""File systems of every mood, in a mount namespace of one process: nothing of them is seen outside, or stays."""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
import signal
import stat
import struct
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x00020000, 0x4000, 1 << 18
MS_RDONLY, MS_REMOUNT, MS_BIND = 1, 32, 4096


class MountError(RuntimeError):
    """The namespace could not be made, or the job in it failed."""


def inside(mount: Callable[[], None], job: Callable[[], T]) -> T:
    """Call `mount`, then `job`, in a child with mounts of its own; return what `job` returns."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _child(mount, job, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    if not said:
        raise MountError("the process in the namespace died without a word")
    ok, value = pickle.loads(said)  # our own child wrote it
    if not ok:
        raise MountError(value)
    result: T = value
    return result


def refusal(place: Path, *, fuse: bool = False) -> str | None:
    """Say why this machine cannot do it, or None."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux"
    if fuse and not Path("/dev/fuse").exists():
        return "there is no /dev/fuse"
    try:
        inside(lambda: mount_fuse(place, Mood()) if fuse else mount_tmpfs(place, "1m"), lambda: None)
    except MountError as error:
        return f"nothing can be mounted here: {str(error).strip().splitlines()[-1]}"
    return None


def mount_tmpfs(place: Path, size: str) -> None:
    """A file system in memory with so much room."""
    _mount(b"tmpfs", place, b"tmpfs", 0, f"size={size}".encode())


def mount_read_only(place: Path) -> None:
    """The folder itself, read-only."""
    _mount(os.fsencode(place), place, b"none", MS_BIND, b"")
    _mount(b"none", place, b"none", MS_BIND | MS_REMOUNT | MS_RDONLY, b"")


def _child(mount: Callable[[], None], job: Callable[[], object], writer: int) -> None:
    """Never return: a fork must not run on as a second copy of its parent."""
    try:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            _check(libc.unshare(_CLONE_NEWNS), "unshare")
            _check(libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None), "make / private")
            mount()
            answer = pickle.dumps((True, job()))
        except BaseException:
            answer = pickle.dumps((False, traceback.format_exc()))
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(answer)
        for server in _SERVERS:
            os.kill(server, signal.SIGKILL)
    finally:
        os._exit(0)


def _mount(source: bytes, place: Path, kind: bytes, flags: int, data: bytes) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.mount(source, os.fsencode(place), kind, ctypes.c_ulong(flags), data), f"mount {place}")


def _check(status: int, what: str) -> None:
    if status != 0:
        raise MountError(f"{what}: {os.strerror(ctypes.get_errno())}")


# -- FUSE, without a library: the protocol of include/uapi/linux/fuse.h, 7.31 (read 2026-11-30)


@dataclass(frozen=True, kw_only=True)
class Mood:
    """What a FUSE file system does wrong."""

    refuses: frozenset[str] = frozenset()
    """`ftruncate`, `rename`, `fallocate`, `mmap`, `append`, `fsync`, `unlink`, `chmod`."""
    fails_after: int | None = None
    """Writes give EIO when so many bytes have been written, whatever room it shows."""
    flips: int | None = None
    """The byte at this offset of the whole that is written is kept as another one."""


_SERVERS: list[int] = []


def mount_fuse(place: Path, mood: Mood, kind: str = "fuse.moody") -> None:
    """Mount a file system in memory with a mood, served by a child; it shows much room."""
    device = os.open("/dev/fuse", os.O_RDWR)
    _mount(b"moody", place, kind.encode(), 0, f"fd={device},rootmode=40000,user_id=0,group_id=0".encode())
    server = os.fork()
    if server == 0:
        try:
            _Server(device, mood).serve()
        finally:
            os._exit(0)
    os.close(device)
    _SERVERS.append(server)


@dataclass
class _Node:
    mode: int
    data: bytearray = field(default_factory=bytearray)
    names: dict[bytes, int] = field(default_factory=dict)
    mtime_ns: int = 0


class _RefusedError(Exception):
    def __init__(self, number: int) -> None:
        self.number = number


class _Server:
    def __init__(self, device: int, mood: Mood) -> None:
        self._device, self._mood = device, mood
        self._nodes = {1: _Node(stat.S_IFDIR | 0o755)}
        self._next, self._written = 2, 0
        self._acts: dict[int, Callable[[int, bytes], bytes]] = {
            1: self._lookup, 3: self._getattr, 4: self._setattr, 5: self._readlink, 6: self._symlink, 9: self._mkdir,
            10: self._unlink, 11: self._unlink, 12: self._rename, 14: self._open, 15: self._read, 16: self._write,
            17: self._statfs, 18: self._nothing, 20: self._fsync, 25: self._nothing, 26: self._init, 27: self._opendir,
            28: self._readdir, 29: self._nothing, 30: self._nothing, 35: self._create, 43: self._fallocate,
            45: self._rename2,
        }  # fmt: skip

    def serve(self) -> None:
        while True:
            try:
                request = os.read(self._device, 1 << 20)
            except OSError as error:
                if error.errno in (errno.EINTR, errno.ENOENT):
                    continue
                return
            _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
            if opcode in (2, 36, 42):  # FORGET, INTERRUPT, BATCH_FORGET have no answer
                continue
            number, body = 0, b""
            try:
                if opcode not in self._acts:
                    raise _RefusedError(errno.ENOSYS)
                body = self._acts[opcode](node, request[40:])
            except _RefusedError as error:
                number = error.number
            os.write(self._device, struct.pack("<IiQ", 16 + len(body), -number, unique) + body)

    def _refuse(self, what: str, number: int = errno.ENOSYS) -> None:
        if what in self._mood.refuses:
            raise _RefusedError(number)

    def _init(self, node: int, body: bytes) -> bytes:
        return struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 17, 1 << 5, 12, 9, 1 << 17, 1, 0, 0, 0)

    def _attr(self, number: int) -> bytes:
        node = self._nodes[number]
        size = len(node.data)
        seconds, rest = divmod(node.mtime_ns, 10**9)
        times = (seconds, seconds, seconds, rest, rest, rest)
        return struct.pack("<6Q10I", number, size, (size + 511) // 512, *times, node.mode, 1, 0, 0, 0, 4096, 0)

    def _entry(self, number: int) -> bytes:
        return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + self._attr(number)

    def _lookup(self, node: int, body: bytes) -> bytes:
        name = body.rstrip(b"\0")
        if name not in self._nodes[node].names:
            raise _RefusedError(errno.ENOENT)
        return self._entry(self._nodes[node].names[name])

    def _getattr(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._attr(node)

    def _setattr(self, node: int, body: bytes) -> bytes:
        valid, _, _, size, _, _, mtime, _, _, mtime_rest, _, mode = struct.unpack_from("<IIQQQQQQIIII", body)
        one = self._nodes[node]
        if valid & 8:
            self._refuse("ftruncate")
            one.data[size:] = b"" if size < len(one.data) else bytes(size - len(one.data))
        if valid & 1:
            self._refuse("chmod")
            one.mode = stat.S_IFMT(one.mode) | stat.S_IMODE(mode)
        if valid & 32:
            one.mtime_ns = mtime * 10**9 + mtime_rest
        return self._getattr(node, b"")

    def _add(self, parent: int, name: bytes, mode: int, data: bytes = b"") -> int:
        number, self._next = self._next, self._next + 1
        self._nodes[number] = _Node(mode, bytearray(data))
        self._nodes[parent].names[name] = number
        return number

    def _readlink(self, node: int, body: bytes) -> bytes:
        return bytes(self._nodes[node].data)

    def _symlink(self, node: int, body: bytes) -> bytes:
        name, target = body.split(b"\0")[:2]
        return self._entry(self._add(node, name, stat.S_IFLNK | 0o777, target))

    def _mkdir(self, node: int, body: bytes) -> bytes:
        return self._entry(self._add(node, body[8:].rstrip(b"\0"), stat.S_IFDIR | 0o755))

    def _unlink(self, node: int, body: bytes) -> bytes:
        self._refuse("unlink", errno.EIO)
        del self._nodes[node].names[body.rstrip(b"\0")]
        return b""

    def _rename(self, node: int, body: bytes, head: int = 8) -> bytes:
        self._refuse("rename")
        (folder,) = struct.unpack_from("<Q", body)
        old, new = body[head:].split(b"\0")[:2]
        self._nodes[folder].names[new] = self._nodes[node].names.pop(old)
        return b""

    def _rename2(self, node: int, body: bytes) -> bytes:
        return self._rename(node, body, 16)

    def _open(self, node: int, body: bytes) -> bytes:
        (flags,) = struct.unpack_from("<I", body)
        if flags & os.O_APPEND:
            self._refuse("append", errno.EOPNOTSUPP)
        return self._opened()

    def _opened(self) -> bytes:
        return struct.pack("<QII", 0, 1 if "mmap" in self._mood.refuses else 0, 0)  # FOPEN_DIRECT_IO cannot be mapped

    def _create(self, node: int, body: bytes) -> bytes:
        _, mode = struct.unpack_from("<II", body)
        return self._entry(self._add(node, body[16:].rstrip(b"\0"), mode)) + self._opened()

    def _read(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        return bytes(self._nodes[node].data[offset : offset + size])

    def _write(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        data, kept = bytearray(body[40 : 40 + size]), self._nodes[node].data
        if self._mood.fails_after is not None and self._written + size > self._mood.fails_after:
            raise _RefusedError(errno.EIO)
        if self._mood.flips is not None and self._written <= self._mood.flips < self._written + size:
            data[self._mood.flips - self._written] ^= 1
        kept.extend(bytes(max(0, offset - len(kept))))
        kept[offset : offset + size] = data
        self._written += size
        return struct.pack("<II", size, 0)

    def _statfs(self, node: int, body: bytes) -> bytes:
        return struct.pack("<5Q4I24x", 1 << 30, 1 << 29, 1 << 29, 1 << 20, 1 << 19, 4096, 255, 4096, 0)

    def _fsync(self, node: int, body: bytes) -> bytes:
        self._refuse("fsync", errno.EIO)
        return b""

    def _fallocate(self, node: int, body: bytes) -> bytes:
        self._refuse("fallocate", errno.EOPNOTSUPP)
        _, offset, length = struct.unpack_from("<QQQ", body)
        data = self._nodes[node].data
        data.extend(bytes(max(0, offset + length - len(data))))
        return b""

    def _opendir(self, node: int, body: bytes) -> bytes:
        return struct.pack("<QII", 0, 0, 0)

    def _readdir(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        found = b""
        for place, (name, number) in enumerate(sorted(self._nodes[node].names.items()), 1):
            kind = stat.S_IFMT(self._nodes[number].mode) >> 12
            row = struct.pack("<QQII", number, place, len(name), kind) + name
            row += bytes(-len(row) % 8)
            if place > offset and len(found) + len(row) <= size:
                found += row
        return found

    def _nothing(self, node: int, body: bytes) -> bytes:
        return b""
