"""Reading running processes from /proc: one process, its descendants, the driver's version, the loader's folders.

Every file may be forbidden or vanish between two reads: that is recorded in the value, never raised. All reads are
bounded; whoever runs a process chooses what its command line and environment hold.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

from envsmith.facts import MappedFile
from envsmith.running import RunningProcess

PROC: Final = Path("/proc")
#: Limits of one read; a command line may have 2 MiB, /proc/PID/maps of a large process some 100,000 lines.
ENVIRON_BYTES: Final = 4 * 1024 * 1024
MAPS_BYTES: Final = 64 * 1024 * 1024
_DELETED = " (deleted)"
_LIBRARY = re.compile(r"(lib[^/]+?)(?:[-.][0-9a-f]{8})?\.so(?:\.|$)")
_T = TypeVar("_T")


def look_at(pid: int, *, proc: Path = PROC) -> tuple[RunningProcess, ...]:
    """A process and all its descendants, parents before children, siblings by pid; empty when there is no such pid.

    The tree is taken from one pass over /proc: a process that starts or ends meanwhile may be missed.
    """
    parents = dict(_parents(proc))
    if pid not in parents:
        return ()
    order, waiting = [], [pid]
    while waiting:
        current = waiting.pop(0)
        order.append(current)
        waiting += sorted(child for child, parent in parents.items() if parent == current and child not in order)
    return tuple(read_process(one, proc=proc) for one in order)


def read_process(pid: int, *, proc: Path = PROC) -> RunningProcess:
    """Everything about one process that may be read."""
    reader = _Reader(folder=proc / str(pid))
    stat = reader.get("stat", lambda path: _stat(_bytes(path, 4096)))
    argv = reader.get("cmdline", lambda path: _words(_bytes(path, ENVIRON_BYTES))) or ()
    link = reader.get("exe", lambda path: str(path.readlink()))
    environ = reader.get("environ", lambda path: _environ(_bytes(path, ENVIRON_BYTES)))
    cwd = reader.get("cwd", lambda path: str(path.readlink()))
    maps = reader.get("maps", lambda path: _maps(_bytes(path, MAPS_BYTES), proc / str(pid)))
    executable = link.removesuffix(_DELETED) if link else None
    return RunningProcess(
        pid=pid,
        parent=stat[1] if stat else None,
        uid=reader.get("", lambda path: path.stat().st_uid),
        name=stat[0] if stat else "",
        started_ticks=stat[2] if stat else None,
        argv=argv,
        executable=executable,
        executable_deleted=bool(link and link.endswith(_DELETED)),
        interpreter=_interpreter(argv, executable, cwd, environ, maps or ()),
        cwd=cwd,
        environ=environ,
        maps=maps,
        unreadable=dict(reader.unreadable),
    )


def named(name: str, *, proc: Path = PROC) -> tuple[RunningProcess, ...]:
    """Every process whose kernel name this is, by pid."""
    found = []
    for pid in _pids(proc):
        with contextlib.suppress(OSError, ValueError):
            if _stat(_bytes(proc / str(pid) / "stat", 4096))[0] == name:
                found.append(read_process(pid, proc=proc))
    return tuple(found)


def caller_environ(environ: Mapping[str, str], *, proc: Path = PROC) -> dict[str, str]:
    """Our environment as the caller gave it: Python itself sets LC_CTYPE where the locale is C (PEP 538)."""
    name = "LC_CTYPE"
    with contextlib.suppress(OSError, ValueError):
        given = _environ(_bytes(proc / "self/environ", ENVIRON_BYTES))
        kept = {other: value for other, value in environ.items() if other != name}
        return {**kept, name: given[name]} if name in given else kept
    return dict(environ)


def kill_marked(mark: str, *, timeout_s: float = 5.0, proc: Path = PROC) -> tuple[int, ...]:
    """Kill every process of ours that has `mark` in its environment, command line or working directory.

    For what a launcher left behind in sessions of its own, which no process group reaches. `mark` must be a path
    that only our children can know. Returns the pids that were killed.
    """
    killed: list[int] = []
    deadline = time.monotonic() + timeout_s
    while found := marked(mark, proc=proc):
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return tuple(dict.fromkeys(killed))


def descendants(pid: int, *, proc: Path = PROC) -> tuple[int, ...]:
    """Living processes below a process, zombies left out."""
    children: dict[int, list[int]] = {}
    for one, parent in _parents(proc):
        children.setdefault(parent, []).append(one)
    found: list[int] = []
    waiting = list(children.get(pid, ()))
    while waiting:
        one = waiting.pop()
        waiting += children.get(one, ())
        if not _is_zombie(proc / str(one)):
            found.append(one)
    return tuple(found)


def carriers(mark: str, *, proc: Path = PROC) -> tuple[int, ...]:
    """Living processes with `mark` in their environment; not ours."""
    found = []
    for pid in _pids(proc):
        with contextlib.suppress(OSError):
            environ = _bytes(proc / str(pid) / "environ", ENVIRON_BYTES)
            if mark.encode() in environ and pid != os.getpid() and not _is_zombie(proc / str(pid)):
                found.append(pid)
    return tuple(found)


def _is_zombie(folder: Path) -> bool:
    """Whether a process is dead already and only waits for its parent, or is gone."""
    with contextlib.suppress(OSError):
        return b") Z " in _bytes(folder / "stat", 4096)
    return True


def marked(mark: str, *, proc: Path = PROC) -> tuple[int, ...]:
    """Pids of living processes that have `mark` in their environment, command line or working directory; not ours."""
    return tuple(pid for pid in _marked(mark.encode(), proc) if pid != os.getpid())


def kernel_driver(path: Path = PROC / "driver/nvidia/version") -> str | None:
    """The version of NVIDIA's kernel driver, `580.105.08`; None where none is loaded."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")[:4096]
    except OSError:
        return None
    match = re.search(r"Kernel Module[^\n]*?\s(\d+\.\d+(?:\.\d+)?)\s", text)
    return match[1] if match else None


def loader_folders(conf: Path = Path("/etc/ld.so.conf")) -> dict[str, str]:
    """Folders that the loader's configuration names, each with the file that names it; includes are followed."""
    found: dict[str, str] = {}
    waiting = [conf]
    read: set[Path] = set()
    while waiting and len(read) < 200:
        file = waiting.pop(0)
        if file in read:
            continue
        read.add(file)
        try:
            lines = file.read_text(encoding="utf-8", errors="replace")[:65536].splitlines()
        except OSError:
            continue
        for line in (raw.partition("#")[0].strip() for raw in lines):
            if line.startswith("include"):
                for pattern in line.split()[1:]:
                    waiting += _matching(file.parent, pattern)
            elif line.startswith("/"):
                found.setdefault(os.path.realpath(line), str(file))
    return found


def _matching(folder: Path, pattern: str) -> list[Path]:
    absolute = folder / pattern
    return sorted(Path("/").glob(str(absolute)[1:]))


# --- one process ---


@dataclass(kw_only=True, slots=True)
class _Reader:
    """Reads below /proc/PID and remembers what could not be read."""

    folder: Path
    unreadable: dict[str, str] = field(default_factory=dict)

    def get(self, name: str, read: Callable[[Path], _T]) -> _T | None:
        try:
            return read(self.folder / name)
        except PermissionError:
            self.unreadable[name] = "permission"
        except OSError as error:
            # a kernel thread and a zombie have no executable; ESRCH and ENOENT say the process went away
            gone = error.errno in (errno.ENOENT, errno.ESRCH) and not self.folder.joinpath("stat").exists()
            self.unreadable[name] = "gone" if gone else (error.strerror or "unreadable").lower()
        except ValueError as error:
            self.unreadable[name] = str(error)
        return None


def _bytes(path: Path, limit: int) -> bytes:
    with path.open("rb") as stream:
        return stream.read(limit)


def _stat(content: bytes) -> tuple[str, int, int]:
    """Name, parent and start time; the name stands in parentheses and may hold anything, parentheses too."""
    head, _, tail = content.rpartition(b")")
    fields = tail.split()
    if len(fields) < 20:
        raise ValueError("malformed")
    return head.partition(b"(")[2].decode(errors="replace"), int(fields[1]), int(fields[19])


def _words(content: bytes) -> tuple[str, ...]:
    """The command line; a title may be followed by the padding of what it replaced."""
    return tuple(os.fsdecode(word) for word in content.rstrip(b"\0").split(b"\0")) if content.strip(b"\0") else ()


def _environ(content: bytes) -> dict[str, str]:
    """The variables, unless the process wrote a title over them.

    setproctitle uses their memory unless SPT_NOENV is set, all of it or the first part (measured 2026-11-30 with
    setproctitle 1.3.8 and with the agents of ray 2.56.1): what is left then says nothing about what is missing.
    """
    if content and b"=" not in content.partition(b"\0")[0]:
        raise ValueError("overwritten")
    pairs = (os.fsdecode(pair).partition("=") for pair in content.split(b"\0") if b"=" in pair)
    return {name: value for name, _, value in pairs if name}


def _maps(content: bytes, folder: Path) -> tuple[MappedFile, ...]:
    """Files mapped as code; of a library that is mapped from several paths each file is hashed, as the probe does."""
    found: dict[str, bool] = {}
    for line in content.splitlines():
        parts = line.split(None, 5)
        if len(parts) < 6 or b"x" not in parts[1] or not parts[5].startswith(b"/") or parts[5].startswith(b"/memfd:"):
            continue
        path = os.fsdecode(parts[5])
        found[path.removesuffix(_DELETED)] = path.endswith(_DELETED)
    several = _several(path for path, deleted in found.items() if not deleted)
    return tuple(
        MappedFile(path=path, deleted=found[path], sha256=_digest(folder, path) if path in several else None)
        for path in sorted(found)
    )


def _several(paths: Iterable[str]) -> set[str]:
    families: dict[str, list[str]] = {}
    for path in paths:
        if match := _LIBRARY.match(PurePosixPath(path).name):
            families.setdefault(match[1], []).append(path)
    return {path for family in families.values() if len(family) > 1 for path in family}


def _digest(folder: Path, path: str) -> str | None:
    """Hash a mapped file as that process sees it, which may be in a container."""
    try:
        real = Path(f"{folder}/root{path}")
        if not real.is_file():
            return None
        with real.open("rb") as stream:
            digest = hashlib.sha256()
            while piece := stream.read(1 << 20):
                digest.update(piece)
        return digest.hexdigest()
    except OSError:
        return None


def _interpreter(
    argv: tuple[str, ...],
    executable: str | None,
    cwd: str | None,
    environ: Mapping[str, str] | None,
    maps: Iterable[MappedFile],
) -> str | None:
    """The name through which a Python was started, so that its virtual environment can be told.

    Tried in order: its own first word, `bin/python` beside the site-packages of its native modules, that of
    VIRTUAL_ENV, the executable itself. Only what resolves to the executable counts.
    """
    if executable is None or not PurePosixPath(executable).name.startswith(("python", "pypy")):
        return None
    for candidate in _candidates(argv, executable, cwd, environ or {}, maps):
        if os.path.realpath(candidate) == os.path.realpath(executable):
            return candidate
    return executable


def _candidates(
    argv: tuple[str, ...], executable: str, cwd: str | None, environ: Mapping[str, str], maps: Iterable[MappedFile]
) -> Iterator[str]:
    first = argv[0] if argv else ""
    if "/" in first:
        yield os.path.normpath(f"{cwd or ''}/{first}" if first[0] != "/" else first)
    elif first and (found := shutil.which(first, path=environ.get("PATH", ""))):
        yield found
    prefixes = dict.fromkeys(m.path.split("/lib/python")[0] for m in maps if "/site-packages/" in m.path)
    for prefix in (*prefixes, *filter(None, [environ.get("VIRTUAL_ENV")])):
        yield f"{prefix}/bin/python"


# --- all processes ---


def _parents(proc: Path) -> Iterator[tuple[int, int]]:
    for pid in _pids(proc):
        with contextlib.suppress(OSError, ValueError):
            yield pid, _stat(_bytes(proc / str(pid) / "stat", 4096))[1]


def _pids(proc: Path) -> list[int]:
    try:
        return sorted(int(entry.name) for entry in proc.iterdir() if entry.name.isdigit())
    except OSError:
        return []


def _marked(mark: bytes, proc: Path) -> Iterator[int]:
    for pid in _pids(proc):
        folder = proc / str(pid)
        seen = b""
        for name in ("environ", "cmdline"):
            with contextlib.suppress(OSError):
                seen += _bytes(folder / name, ENVIRON_BYTES) + b"\0"
        with contextlib.suppress(OSError):
            seen += os.fsencode((folder / "cwd").readlink())
        if mark in seen and not _is_zombie(folder):
            yield pid
