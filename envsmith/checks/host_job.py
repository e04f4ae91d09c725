"""What a job needs of the machine beyond devices: its vendor's variables, room for sockets, a place for checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from envsmith.checks.host_subject import Fitting, found
from envsmith.hostfacts import FileSystem
from envsmith.report import Finding, Severity
from envsmith.rules.launching import RAY_SUFFIX, SOCKET_BYTES

#: From this release on safetensors makes a file as large as it will be before it writes (facts/symptoms.md D45).
PREALLOCATES = Version("0.8")


def check_job(fit: Fitting) -> Iterator[Finding]:
    """Judge the shell's variables, where they are known, and the folder for checkpoints."""
    if fit.facts.environ:
        yield from _profile(fit)
        yield from _socket(fit)
    yield from _checkpoints(fit)


def _profile(fit: Fitting) -> Iterator[Finding]:
    launch = fit.situation.env.launch
    missing = [name for name in launch.require if not fit.variable(name)]
    if missing and launch.profile is None:
        yield found(
            "vendor-profile-missing",
            fit.situation.key("launch", "require"),
            f"the recipe requires {', '.join(missing)} in every process, and the shell of this machine does not set "
            f"{'it' if len(missing) == 1 else 'them'}: the vendor's profile was not sourced",
            expected=", ".join(launch.require),
            actual=f"not set: {', '.join(missing)}",
            hint="source the vendor's file in the script that starts the job, also where the shell is not interactive, "
            "or name it as `launch.profile`; workers of Ray must get the variables too",
        )


def _socket(fit: Fitting) -> Iterator[Finding]:
    """Ray's sockets below the folder that the shell names; what the launch table names the rules judge."""
    launch, has_ray = fit.situation.env.launch, fit.situation.has("ray")
    own = {*launch.set, *launch.short_dirs}
    name = next((one for one in ("RAY_TMPDIR", "TMPDIR") if one in own or fit.variable(one)), None)
    if name is None or name in own or (name == "TMPDIR" and not has_ray):
        return
    folder = (fit.variable(name) or "").rstrip("/")
    size, room = len(folder.encode()), SOCKET_BYTES - len(RAY_SUFFIX)
    if size > room:
        yield found(
            "af-unix-path",
            name,
            f"Ray's socket below {name} would have a path of {size + len(RAY_SUFFIX)} bytes, and a Unix socket takes "
            f"{SOCKET_BYTES}",
            severity=Severity.ERROR if has_ray else Severity.WARNING,
            expected=f"at most {room} bytes",
            actual=f"{size} bytes: {folder}",
            hint='give Ray a short local folder in the launch table: `short-dirs = { RAY_TMPDIR = "{scratch}/r" }`',
        )


def _checkpoints(fit: Fitting) -> Iterator[Finding]:
    folder = fit.situation.job.checkpoint_dir
    row = fit.facts.behind(folder) if folder and folder.startswith("/") else None
    if folder is None or row is None:
        return
    subject = fit.situation.job_key("checkpoint_dir")
    if row.write not in (None, "ok"):
        yield found(
            "checkpoint-dir-unwritable",
            subject,
            f"a file could not be written below `{row.path}`, where checkpoints go: {row.write}",
            actual=row.write,
            hint="name a folder that this user may write to as `checkpoint-dir`",
        )
        return
    yield from _truncate(fit, row, folder, subject)


def _truncate(fit: Fitting, row: FileSystem, folder: str, subject: str) -> Iterator[Finding]:
    """Growing a file beforehand, as safetensors 0.8 does, is what FUSE backends refuse."""
    version, lock = fit.situation.version("safetensors"), fit.situation.lock
    is_absent = lock is not None and version is None and not fit.situation.has("safetensors")
    # A release candidate does as its release.
    preallocates = not is_absent and (version is None or Version(version.base_version) >= PREALLOCATES)
    refuses = row.truncate not in (None, "ok")
    is_fuse = row.kind == "fuse" or row.type.startswith("fuse.")
    if not is_fuse and row.kind != "network" and not refuses:
        return
    error = preallocates and (refuses or (is_fuse and row.truncate is None))
    named = f"safetensors {version}" if version else "safetensors 0.8 or newer"
    if refuses and preallocates:
        why = f"{named} grows a file to its size before it writes (ftruncate), which failed there: {row.truncate}"
    elif error:
        why = f"{named} grows a file to its size before it writes (ftruncate), which FUSE file systems often refuse"
    else:
        why = "a write to such a mount failed in the middle of an 18 GB file, though it showed room"
    yield found(
        "fuse-checkpoint-write",
        subject,
        f"checkpoints go to `{folder}` on {row.type}: {why}",
        severity=Severity.ERROR if error else Severity.WARNING,
        expected="a local file system",
        actual=f"{row.type} at {row.path}" + (f", ftruncate: {row.truncate}" if row.truncate else ""),
        hint="write checkpoints to local disk, then copy them and compare their sha256"
        + (", or take `safetensors==0.7.*`" if preallocates else ""),
    )
