"""Limits of a machine that a job meets after it has started: files, shared memory, disk, compiler."""

from __future__ import annotations

from collections.abc import Iterator

from envsmith.checks.host_subject import Fitting, capability_of, found
from envsmith.hostfacts import UNLIMITED, FileSystem
from envsmith.report import Finding, Severity

#: Ray opens about two log files for each worker and starts one worker a CPU (facts/symptoms.md D46).
FILES_AT_LEAST, FILES_A_CPU = 65_536, 4
#: Below 64 CPUs so many a CPU will do, and 8,192 at least, which `ray.init` itself recommends in its warning (read in
#: ray/_private/worker.py, 2026-11-30); that it is less than everywhere else is then a warning.
FILES_WILL_DO, FILES_A_CPU_WILL_DO = 8_192, 1_024
#: A policy: NCCL takes 33 MB a channel and peer, data loaders and engines add theirs (facts/symptoms.md D47).
SHM_A_DEVICE = 1 << 30
#: The part of that which must be free: a few pages are always taken.
SHM_FREE = 0.9
#: 231 wheels of 5.09 GB became an env of 9.92 GB (docs/performance.md).
UNPACKED = 1.9


def check_limits(fit: Fitting) -> Iterator[Finding]:
    """Judge what is known of the limits; a fact that is missing claims nothing."""
    yield from _files(fit)
    yield from _shared_memory(fit)
    yield from _toolchain(fit)
    yield from _disk(fit)


def _files(fit: Fitting) -> Iterator[Finding]:
    soft, hard = fit.facts.open_files, fit.facts.open_files_max
    needed = max(FILES_AT_LEAST, FILES_A_CPU * (fit.facts.cpus or 0))
    if soft is None or soft == UNLIMITED or soft >= needed:
        return
    has_ray, cpus = fit.situation.has("ray"), fit.facts.cpus
    is_short = cpus is None or soft < max(FILES_WILL_DO, FILES_A_CPU_WILL_DO * cpus)
    raise_it = f"`ulimit -n {needed}` in the script that starts the job, before Ray starts: children inherit it"
    if hard is not None and hard != UNLIMITED and hard < needed:
        hint = f"the hard limit is {hard:,}: only whoever starts the container or the job can raise it (`nofile`)"
    elif hard is None:
        hint = f"{raise_it}; where the hard limit forbids it, only the container's launch can raise it"
    else:
        hint = raise_it
    place = f" for {cpus} CPUs" if cpus else ""
    yield found(
        "fd-limit",
        "host.open-files",
        f"a process may open {soft:,} files, and {needed:,}{place} are wanted: Ray opens about two log files a worker "
        "and starts a worker a CPU"
        if has_ray
        else f"a process may open {soft:,} files; Ray would want {needed:,}{place}, this env has no Ray",
        severity=Severity.ERROR if has_ray and is_short else Severity.WARNING,
        expected=f"{needed}",
        actual=f"{soft}" + (f", hard {hard if hard != UNLIMITED else 'unlimited'}" if hard is not None else ""),
        hint=hint + ("; and cap `num_cpus` of `ray.init`" if has_ray and (cpus or 0) > 64 else ""),
    )


def _shared_memory(fit: Fitting) -> Iterator[Finding]:
    size, free = fit.facts.shm_bytes, fit.facts.shm_free_bytes
    if fit.has_no_device or not (fit.needs_torch or fit.situation.has("ray")):
        return
    there, wanted = fit.devices, fit.situation.host.devices
    used = min(there, wanted or there) if there is not None else wanted or 1
    needed = used * SHM_A_DEVICE
    place = f"{used} device{'s' if used > 1 else ''}"
    if size is not None and size < needed:
        yield found(
            "dev-shm-too-small",
            "host.shm-bytes",
            f"/dev/shm has {_less(size, needed)}, and {_binary(needed)} are wanted for {place}: NCCL and data loaders "
            "share memory through it and fail when they start",
            expected=_binary(needed),
            actual=_less(size, needed),
            hint="start the container with a larger one: `--shm-size`, `--ipc=host`, or an emptyDir of medium Memory",
        )
    elif free is not None and free < needed * SHM_FREE:
        yield found(
            "dev-shm-too-small",
            "host.shm-free-bytes",
            f"/dev/shm has {_binary(free)} left, and {_binary(needed)} are wanted for {place}: something else holds it",
            severity=Severity.WARNING,
            expected=_binary(needed),
            actual=_binary(free),
            hint="look what lies in /dev/shm: segments of processes that died stay there",
        )


def _toolchain(fit: Fitting) -> Iterator[Finding]:
    """Triton, Inductor and DeepSpeed compile on first use: a C compiler and Python.h must be there then."""
    able = [one for device in fit.facts.accelerator if (one := capability_of(device))]
    triton = fit.situation.has("triton") or (fit.situation.lock is None and fit.needs_torch)
    if able and all(one < (7, 0) for one in able):
        triton = False  # torch does not use Triton there (torch/utils/_triton.py of 2.6)
    users = [name for name, used in (("Triton", triton), ("DeepSpeed", fit.situation.has("deepspeed"))) if used]
    if not users:
        return
    who = " and ".join(users)
    if fit.facts.compiler == "" and not fit.situation.env.launch.set.get("CC"):  # a CC of the shell was tried
        yield found(
            "runtime-toolchain-missing",
            "host.compiler",
            f"{who} compile{'s' if len(users) == 1 else ''} C code on first use, and there is no C compiler: expect "
            "`Failed to find C compiler`",
            expected="gcc or clang on PATH, or named by CC",
            hint="take an image with gcc, or put one on PATH and name it as `CC` in the launch table",
        )
    headers = fit.python.headers if fit.python else None
    env = fit.situation.env
    is_meant = fit.python is not None and (
        env.base is not None or fit.python.version.split(".")[:2] == env.python_minor.split(".")
    )
    if headers is False and is_meant and fit.python:
        yield found(
            "runtime-toolchain-missing",
            "python.headers",
            f"{who} compile{'s' if len(users) == 1 else ''} against Python.h on first use, and "
            f"`{fit.python.executable}` ({fit.python.version}) has no headers: expect `Python.h: No such file`",
            expected="Python.h in its include folder",
            hint="take an interpreter that ships its headers, such as one of uv or conda, or the image's -dev package",
        )


def _disk(fit: Fitting) -> Iterator[Finding]:
    lock, environ = fit.situation.lock, fit.facts.environ
    if lock is None:
        return
    download = sum(wheel.size for wheel in lock.wheels if wheel.sha256 not in fit.stored)
    unpacked = sum(fit.unpacked.get(wheel.filename, int(wheel.size * UNPACKED)) for wheel in lock.wheels)
    wanted: dict[tuple[object, ...], tuple[FileSystem, list[tuple[str, int]]]] = {}
    # A capture tries its own working directory first, and envs are built below that where nothing else is said.
    tried = next((row.path for row in fit.facts.file_system if row.write is not None), None)
    root = fit.root or environ.get("ENVSMITH_ROOT") or tried
    home = fit.home or environ.get("ENVSMITH_HOME") or environ.get("XDG_CACHE_HOME") or environ.get("HOME")
    for path, size, what in ((home, download, "its store"), (root, unpacked, "the env")):
        row = fit.facts.behind(path) if path and path.startswith("/") else None
        if row is not None and row.free_bytes is not None:
            same_disk = (row.type, row.size_bytes, row.free_bytes)
            wanted.setdefault(same_disk, (row, []))[1].append((what, size))
    for row, parts in wanted.values():
        needed, free = sum(size for _, size in parts), row.free_bytes or 0
        if free < needed:
            yield found(
                "disk-too-small",
                row.path,
                f"{' and '.join(what for what, _ in parts)} need{'s' if len(parts) == 1 else ''} about "
                f"{_binary(needed)} on `{row.path}`, and {_binary(free)} are free for this user",
                expected=_binary(needed),
                actual=_binary(free),
                hint="set ENVSMITH_ROOT and ENVSMITH_HOME to folders with room, or make some with `envsmith store gc`",
            )


def _less(count: int, needed: int) -> str:
    """Bytes as people write them, unless that would read as what they fall short of."""
    return _binary(count) if _binary(count) != _binary(needed) else f"{count:,} bytes"


def _binary(count: int) -> str:
    """Bytes as people write them: 64 MiB, 2.5 GiB."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if count >= unit:
            return f"{count / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{count:,} bytes"
