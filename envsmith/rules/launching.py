"""Rules about how processes are started: room for sockets, and the hook of `uv run`."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from envsmith.report import Finding, Severity
from envsmith.rules.situation import Situation, found

#: What the kernel takes as the path of a Unix socket: 107 bytes bind, 108 do not. Measured on Linux 2026-11-29.
SOCKET_BYTES = 107

#: What Ray appends to its folder, with a process id of 7 digits: `sun_path` of the longest socket it makes.
RAY_SUFFIX = "/ray/session_2025-04-16_17-26-47_592207_2944448/sockets/plasma_store"

#: The longest default of `{scratch}`: `/tmp/es` and a user id of 32 bits.
LONGEST_SCRATCH = "/tmp/es4294967295"

HOOK = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"


def socket_path(s: Situation) -> Iterator[Finding]:
    """Ray's sockets lie deep below RAY_TMPDIR, or TMPDIR without it, and must fit into 107 bytes."""
    places = {**{name: "set" for name in s.env.launch.set}, **{name: "short-dirs" for name in s.env.launch.short_dirs}}
    values = {**s.env.launch.set, **s.env.launch.short_dirs}
    name = "RAY_TMPDIR" if "RAY_TMPDIR" in values else "TMPDIR"
    if name not in values or (name == "TMPDIR" and not s.has("ray")):
        return
    subject, room = s.key("launch", places[name], name), SOCKET_BYTES - len(RAY_SUFFIX)
    if "{env}" in values[name]:
        yield found(
            "socket-path-too-long",
            subject,
            f"{name} lies below the env, whose path may be long; Ray's sockets leave {room} bytes for it",
            severity=Severity.WARNING,
            hint="use a folder below `{scratch}`",
        )
        return
    folder = values[name].replace("{scratch}", LONGEST_SCRATCH).rstrip("/")
    size = len(folder.encode())
    if size > room:
        yield found(
            "socket-path-too-long",
            subject,
            f"Ray's socket below {name} would have a path of {size + len(RAY_SUFFIX)} bytes of {SOCKET_BYTES}",
            expected=f"at most {room} bytes",
            actual=f"{size} bytes",
            hint="use a short local folder, such as `{scratch}/r` in `short-dirs`",
        )


def uv_run(s: Situation) -> Iterator[Finding]:
    """Ray 2.47 and newer give workers another Python when the driver was started by `uv run`; this VERL crashes."""
    ray = s.version("ray")
    wrapped = [rung for rung in s.env.smoke if rung.command[:2] == ("uv", "run")]
    if not s.has("ray") or (ray is not None and ray < Version("2.47")) or s.switched_off(HOOK):
        return
    severity = Severity.ERROR if s.is_this_verl() or wrapped else Severity.WARNING
    yield found(
        "uv-run-hook",
        s.key("launch", "set"),
        "under `uv run` Ray gives its workers another environment"
        + (", and this VERL stops: path_or_uri must be a string" if s.is_this_verl() else ""),
        expected=f'{HOOK} = "0"',
        severity=severity,
        hint=f'set `{HOOK} = "0"` in the launch table, and start through `envsmith run`',
    )
