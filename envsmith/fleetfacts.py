"""What of a node is compared with other nodes: facts of the machine and of two processes, each as a table of texts.

Left out is what is every node's own: names, addresses, pids, times, sizes of what is free, devices behind a path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from envsmith.facts import Facts
from envsmith.hostfacts import HostFacts
from envsmith.redaction import redacted

#: Variables that are a process's or a node's own: what Ray 2.56 gives each worker, and where a shell stands.
_OWN: Final = re.compile(r"RAY_(?!ADDRESS$)|PWD$|OLDPWD$|_$|SHLVL$|SLURM|PMI|CUDA_VISIBLE_DEVICES$")
#: A session of Ray, whose name has a time and a pid; on a node of its own disk the rest of the path is the same.
_SESSION: Final = re.compile(r"session_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_\d+")


def of_host(host: HostFacts) -> dict[str, Any]:
    """The machine."""
    devices: dict[str, str] = {}
    for one in host.accelerator:
        name = one.name or "unknown"
        devices[name] = str(int(devices.get(name, "0")) + one.count)
    limits = {
        "open-files": host.open_files,
        "processes": host.processes,
        "locked-memory-bytes": host.locked_memory_bytes,
        "memory-limit-bytes": host.memory_limit_bytes,
        "cpu-limit": host.cpu_limit,
        "cpus": host.cpus,
    }
    return {
        "driver": host.driver or "none",
        "libcuda": _texts({
            "path": host.libcuda, "version": host.libcuda_version, "cuInit": host.cuinit,
            "cuda": host.cuda_driver_version,
        }),
        "devices": devices,
        "arch": host.arch or "unknown",
        "glibc": host.glibc or "unknown",
        "kernel": host.kernel or "unknown",
        "limits": _texts(limits),
    }  # fmt: skip


def of_process(facts: Facts, digests: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    """One process; `digests` are those of mapped files outside the env, which no manifest holds."""
    python = facts.python
    return {
        f"{prefix}python": {
            "executable": python.executable, "binary": python.realpath, "version": python.version,
            "prefix": python.real_prefix, "base": python.real_base_prefix,
        },
        f"{prefix}path": {f"{number:03}": _plain(entry.real) for number, entry in enumerate(facts.path)},
        f"{prefix}packages": _packages(facts),
        f"{prefix}modules": {
            name: _plain(module.origin or " ".join((module.kind, *module.locations)))
            for name, module in facts.modules.items()
        },
        f"{prefix}variables": {
            name: _plain(redacted(value)) for name, value in facts.environ.items() if not _OWN.match(name)
        },
        f"{prefix}libraries": {
            _plain(one.path): "deleted" if one.deleted else digests.get(one.path, "mapped") for one in facts.maps
        },
    }  # fmt: skip


def of_mounts(mountinfo: str, folders: Iterable[str]) -> dict[str, str]:
    """The mounts behind each folder, and those below the first, by path: type, read-only or not, a server's name.

    Fields of /proc/PID/mountinfo: proc_pid_mountinfo(5), read 2026-11-30.
    """
    mounts: dict[str, str] = {}
    for line in mountinfo.splitlines():
        head, _, tail = line.partition(" - ")
        fields, kind = head.split(" "), tail.split(" ")
        if len(fields) < 6 or len(kind) < 2:
            continue
        words = [kind[0], *(one for one in fields[5].split(",") if one in ("ro", "rw", "noexec"))]
        # A network's source is the fleet's own; a disk's device is the node's.
        words += [kind[1]] if ":" in kind[1] or kind[1].startswith("//") else []
        mounts[_unescaped(fields[4])] = redacted(" ".join(words))  # a later mount on the same path covers the earlier
    wanted = list(folders)
    found = {folder: mounts[_behind(folder, mounts)] for folder in wanted if _behind(folder, mounts)}
    if wanted:
        found |= {path: words for path, words in mounts.items() if path.startswith(wanted[0] + "/")}
    return found


def _behind(folder: str, mounts: Mapping[str, str]) -> str:
    above = (path for path in mounts if path == "/" or folder == path or folder.startswith(path + "/"))
    return max(above, key=len, default="")


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _packages(facts: Facts) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in facts.distributions:
        name = one.name.lower().replace("_", "-")
        found[name] = f"{found[name]} and {one.version}" if name in found else one.version
    return found


def _plain(text: str) -> str:
    return _SESSION.sub("session_…", text)


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}
