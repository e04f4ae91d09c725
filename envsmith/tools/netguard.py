"""Puts this process, and so every child, where there is no network: a namespace of its own with nothing but loopback.

What must not be tried cannot be tried then, whichever library means to. A kernel or container that does not allow it
is answered as a value: an install goes on without the guard. All is done in a forked child first, since a process
that has left its user namespace halfway cannot go back.

Limits: Unix sockets that lie in the file system still work. Without CAP_SYS_ADMIN a user namespace that holds one user
is needed; in it, root may no longer read what only other users may.

Sources: unshare(2), user_namespaces(7), network_namespaces(7), netdevice(7); linux/sched.h, linux/sockios.h and
linux/if.h for the numbers, the same on x86_64 and aarch64 (read 2026-11-30).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

#: `off` leaves the network as it is.
VARIABLE = "ENVSMITH_NETGUARD"

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_IFF_UP = 0x1
_IFREQ = struct.Struct("16sh22x")
_ANSWER_BYTES = 4096
_PROC = Path("/proc/self")


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard:
    """Whether this process can still reach a network."""

    state: Literal["namespace", "none"]
    why: str
    """How it was done, or why it was not."""


def enter(environ: Mapping[str, str]) -> Guard:
    """Leave every network but a loopback of our own, where the kernel allows it; there is no way back.

    It must be called while the process has one thread: the others would stay outside.
    """
    if environ.get(VARIABLE) == "off":
        return Guard(state="none", why=f"switched off by {VARIABLE}=off")
    count = _threads()
    if count != 1:
        return Guard(state="none", why=f"this process has {count} threads, and only one of them could be shut in")
    reasons = []
    for how, flags in (
        ("a network namespace", _CLONE_NEWNET),
        ("a user and a network namespace", _CLONE_NEWUSER | _CLONE_NEWNET),
    ):
        refused = _tried(flags)
        if refused is None:
            try:
                _shut_in(flags)
            except OSError as error:
                return Guard(state="none", why=f"{how}: {_said(error)}")  # it just worked: nothing else is sure either
            return Guard(state="namespace", why=how)
        reasons.append(f"{how}: {refused}")
    return Guard(state="none", why="the kernel refuses; " + "; ".join(reasons))


def _threads() -> int:
    """Count the threads of the kernel, which libraries start too."""
    try:
        return sum(1 for _ in (_PROC / "task").iterdir())
    except OSError:
        return threading.active_count()


def _tried(flags: int) -> str | None:
    """Do all of it in a child that ends at once; return what went wrong."""
    try:
        reader, writer = os.pipe()
        child = os.fork()
    except OSError as error:
        return _said(error)
    if child == 0:
        said = "it died"
        try:
            _shut_in(flags)
            said = ""
        except BaseException as error:
            said = _said(error)
        finally:
            os.write(writer, b"." + said.encode(errors="replace")[: _ANSWER_BYTES - 1])
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        answer = stream.read(_ANSWER_BYTES)
    os.waitpid(child, 0)
    return None if answer == b"." else answer[1:].decode() or "the trial died"


def _shut_in(flags: int) -> None:
    user, group = os.geteuid(), os.getegid()
    _unshare(flags)
    if flags & _CLONE_NEWUSER:
        # Source: user_namespaces(7): without `deny` an unprivileged process may not write its gid_map.
        (_PROC / "setgroups").write_text("deny")
        (_PROC / "uid_map").write_text(f"{user} {user} 1")
        (_PROC / "gid_map").write_text(f"{group} {group} 1")
    _raise_loopback()


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.unshare came with Python 3.12
    if libc.unshare(flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def _raise_loopback() -> None:
    """Let `lo` work: the kernel gives 127.0.0.1 and ::1 to it by itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as place:
        answer = fcntl.ioctl(place, _SIOCGIFFLAGS, _IFREQ.pack(b"lo", 0))
        _, flags = _IFREQ.unpack(answer)
        fcntl.ioctl(place, _SIOCSIFFLAGS, _IFREQ.pack(b"lo", flags | _IFF_UP))


def _said(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno:
        name = errno.errorcode.get(error.errno, str(error.errno))
        return f"{error.strerror} ({name})" + (f", `{error.filename}`" if error.filename else "")
    return str(error) or type(error).__name__
