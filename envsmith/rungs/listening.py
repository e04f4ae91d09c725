"""Who listens on a port of this machine: read from /proc, so that a service is not taken for a stranger's.

Nothing here judges; `service` states what is found.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

#: The variable that only a service and what it starts have; its value is new for every start.
MARK = "ENVSMITH_SERVICE"
#: The variable that all processes of one run of the ladder have.
RUN_MARK = "ENVSMITH_SMOKE"
_PROC = Path("/proc")
#: State LISTEN, and the local addresses that take a connection to 127.0.0.1, in the order in which the kernel asks
#: them (proc_net_tcp in the kernel's documentation, net/ipv4/inet_hashtables.c of Linux 6.6; read 2026-11-30).
_LISTEN = "0A"
_ADDRESSES = ("0100007F", "0000000000000000FFFF00000100007F", "00000000", "0" * 32)


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """Who listens: `verdict` is ours, stranger, nobody or unknown; `who` is for people."""

    verdict: str
    who: str


def owner_of(port: int, root: int | None, mark: str) -> Owner:
    """Whether those who take connections to 127.0.0.1:`port` belong to the service.

    To it belong the process `root` with its descendants and every process that carries `mark`.
    """
    sockets = listening(port)
    if sockets is None:
        return Owner(verdict="unknown", who="/proc/net/tcp cannot be read")
    if not sockets:
        return Owner(verdict="nobody", who=f"nobody listens on port {port}")
    holders, closed = _holders(sockets)
    own = family(root, mark)
    for inode, user in sockets.items():
        pids = holders.get(inode, set())
        if pids & own:
            continue
        if pids:
            return Owner(verdict="stranger", who=", ".join(program(pid) for pid in sorted(pids)))
        if closed & own or (closed and user == os.getuid()):
            return Owner(verdict="unknown", who="the open files of some processes cannot be read")
        return Owner(verdict="stranger", who=f"a process that cannot be seen from here, of user {user}")
    who = sorted(set().union(*holders.values()) & own)
    return Owner(verdict="ours", who=", ".join(program(pid) for pid in who))


def listening(port: int) -> dict[int, int] | None:
    """Inode to user of the sockets that take a connection to 127.0.0.1:`port`; None where /proc does not tell."""
    found: dict[str, dict[int, int]] = {}
    for name in ("tcp", "tcp6"):
        try:
            lines = (_PROC / "net" / name).read_text().splitlines()[1:]
        except OSError:
            if name == "tcp":
                return None
            continue  # a kernel without IPv6
        for words in map(str.split, lines):
            address, _, number = words[1].rpartition(":")
            if words[3] == _LISTEN and int(number, 16) == port:
                found.setdefault(address, {})[int(words[9])] = int(words[7])
    return next((found[address] for address in _ADDRESSES if address in found), {})


def _holders(sockets: Iterable[int]) -> tuple[dict[int, set[int]], set[int]]:
    """The processes that have each socket open, and those whose open files may not be read."""
    wanted = {f"socket:[{inode}]": inode for inode in sockets}
    holders: dict[int, set[int]] = {}
    closed = set()
    for pid in _pids():
        try:
            for entry in (_PROC / str(pid) / "fd").iterdir():
                inode = wanted.get(_target(entry))
                if inode is not None:
                    holders.setdefault(inode, set()).add(pid)
        except PermissionError:
            closed.add(pid)
        except OSError:
            continue  # it has ended
    return holders, closed


def _target(path: Path) -> str:
    """Where a link leads; nothing where it has been closed meanwhile."""
    try:
        return str(path.readlink())
    except FileNotFoundError:
        return ""


def _pids() -> Iterator[int]:
    try:
        yield from [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()]
    except OSError:
        return


def family(root: int | None, mark: str) -> set[int]:
    """The living process `root` with its descendants, and all that carry the mark, whoever their parent is now."""
    parents = {pid: parent for pid in _pids() if (parent := _parent(pid)) is not None}
    own = {pid for pid in parents if pid == root or _carries(pid, mark)}
    return own | {pid for pid in parents if _descends(pid, own, parents)}


def _descends(pid: int, own: set[int], parents: Mapping[int, int]) -> bool:
    seen = set()
    while pid in parents and pid not in seen:
        if pid in own:
            return True
        seen.add(pid)
        pid = parents[pid]
    return False


def _parent(pid: int) -> int | None:
    """The parent of a process that lives; a zombie does not."""
    try:
        words = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] in "ZX" else int(words[1])


def _carries(pid: int, mark: str) -> bool:
    """Whether a process was started with the service's mark within this run of the ladder."""
    try:
        variables = set((_PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return False
    wanted = {MARK: mark, RUN_MARK: os.environ.get(RUN_MARK)}
    return all(f"{name}={value}".encode() in variables for name, value in wanted.items() if value is not None)


def program(pid: int) -> str:
    """A process for people: its number, its program and the script it runs; other arguments may be secrets."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
        name = Path(words[0]).name or (_PROC / str(pid) / "comm").read_text(errors="replace").strip()
    except OSError:
        return f"process {pid}"
    script = next((f" {Path(word).name}" for word in words[1:3] if word.endswith((".py", ".sh"))), "")
    return f"process {pid} ({name}{script})"
