"""Whether a folder is fit for checkpoints: what was tried there, and what its answers mean.

`tools/checkpointprobe.py` tries; this judges. A figure that nobody has claims nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from envsmith.report import Finding, Severity

FAMILY: Final = "checkpoint"
#: What is tried, in this order. `write` is 8 MiB, `ftruncate` grows a file to 1 MiB.
OPERATIONS: Final = (
    "create",
    "ftruncate",
    "fallocate",
    "write",
    "fsync",
    "read-back",
    "mmap",
    "flock",
    "rename",
    "fsync-folder",
    "unlink",
)
#: An answer that is no error of the operating system: other bytes came back than were written.
DIFFERS: Final = "DIFFERS"
_NO_ROOM: Final = ("ENOSPC", "EDQUOT", "EFBIG")
_LOCAL: Final = "write checkpoints to local disk and bring them here with `envsmith deliver`"


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderAnswer:
    """What the file system behind a folder answered."""

    path: str
    """The folder that was tried: the one that was asked for, or the nearest above it that is there."""
    type: str
    """As /proc/self/mountinfo has it: `ext4`, `fuse.hdfs`, `nfs4`; `unknown` where nothing says so."""
    free_bytes: int | None = None
    """For this user, without quotas."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Names of errors by operation: `{"ftruncate": "ENOSYS"}`."""
    untried: tuple[str, ...] = ()
    """Operations that could not be tried because one before them failed."""
    seconds: float = 0.0
    """For all of it."""
    write_mb_s: float | None = None
    """Megabytes (10^6) a second, of 8 MiB with its fsync."""

    @property
    def is_fuse(self) -> bool:
        """Whether a program of a user stands behind the mount."""
        return self.type == "fuse" or self.type.startswith(("fuse.", "fuseblk"))


def judge_checkpoint_folder(answer: FolderAnswer, need_bytes: int | None = None) -> Iterator[Finding]:
    """Say what stands against writing checkpoints into a folder.

    It proves what a file of 8 MiB met. It misses what only larger files, more load or a quota meet: a mount has failed
    in the middle of an 18 GB file while it showed room (facts/field-notes.md D), so FUSE is a warning by itself.
    """
    for operation in OPERATIONS:
        if operation in answer.failed:
            yield from _failed(answer, operation, answer.failed[operation])
    if answer.is_fuse:
        yield _finding(
            answer,
            "fuse-file-system",
            f"`{answer.path}` is a {answer.type} mount: such a mount has failed in the middle of an 18 GB file while "
            "it showed room",
            severity=Severity.WARNING,
            expected="a local file system",
            actual=answer.type,
            hint=_LOCAL,
        )
    if need_bytes is not None and answer.free_bytes is not None and answer.free_bytes < need_bytes:
        yield _finding(
            answer,
            "room-too-small",
            f"`{answer.path}` has less room than the checkpoint needs",
            expected=f"{need_bytes:,} bytes",
            actual=f"{answer.free_bytes:,} bytes",
            hint="make room, or choose another place",
        )


def for_copying(findings: Iterable[Finding]) -> Iterator[Finding]:
    """The same for a copy that writes files from front to back: what it does not need becomes a warning."""
    for finding in findings:
        is_needed = finding.kind != "ftruncate-unsupported"
        yield finding if is_needed else replace(finding, severity=Severity.WARNING)


def _failed(answer: FolderAnswer, operation: str, said: str) -> Iterator[Finding]:
    if said in _NO_ROOM:
        yield _finding(
            answer,
            "no-room",
            f"a file of 8 MiB did not fit into `{answer.path}` ({operation}): {said}",
            actual=said,
            hint="ask for a larger quota" if said == "EDQUOT" else "make room, or choose another place",
        )
        return
    words, hint = _WORDS[operation]
    message = f"{words.format(path=answer.path)}: {said if said != DIFFERS else 'other bytes were read'}"
    actual = f"{said} on {answer.type}"
    if operation == "create":
        yield _finding(answer, "folder-unwritable", message, hint=hint, actual=actual)
    elif operation == "ftruncate":
        yield _finding(answer, "ftruncate-unsupported", message, hint=hint, actual=actual)
    elif operation in ("write", "fsync"):
        yield _finding(answer, "write-failed", message, hint=hint, actual=actual)
    elif operation == "read-back":
        yield _finding(answer, "read-back-differs", message, hint=hint, actual=actual)
    elif operation == "rename":
        yield _finding(answer, "rename-failed", message, hint=hint, actual=actual)
    else:
        yield from _lesser(answer, operation, message, hint, actual)


def _lesser(answer: FolderAnswer, operation: str, message: str, hint: str, actual: str) -> Iterator[Finding]:
    """What programs meet in other ways than by losing a checkpoint."""
    warning = Severity.WARNING
    if operation == "mmap":
        yield _finding(answer, "mmap-unsupported", message, hint=hint, actual=actual, severity=warning)
    elif operation == "flock":
        yield _finding(answer, "flock-unsupported", message, hint=hint, actual=actual, severity=warning)
    elif operation == "unlink":
        yield _finding(answer, "unlink-failed", message, hint=hint, actual=actual, severity=warning)
    else:
        kind = "fallocate-unsupported" if operation == "fallocate" else "folder-sync-unsupported"
        yield _finding(answer, kind, message, hint=hint, actual=actual, severity=Severity.NOTE)


_WORDS: Final = {
    "create": ("no file can be made in `{path}`", "name a folder that this user may write to"),
    "ftruncate": (
        "a file in `{path}` cannot be made larger before it is written (ftruncate), as safetensors 0.8 and newer do",
        f"{_LOCAL}, or take `safetensors==0.7.*`",
    ),
    "fallocate": ("room cannot be set aside in `{path}` (fallocate)", "nothing has to be done"),
    "write": ("8 MiB could not be written into `{path}`", _LOCAL),
    "fsync": ("what was written into `{path}` could not be brought to the disk (fsync)", _LOCAL),
    "read-back": ("what was written into `{path}` could not be read again", "do not keep checkpoints there"),
    "mmap": (
        "a file in `{path}` cannot be mapped into memory, as loading safetensors does",
        "copy checkpoints to local disk before loading them",
    ),
    "flock": ("files in `{path}` cannot be locked", "let one process at a time write there"),
    "rename": (
        "a file in `{path}` cannot be replaced by another, which is how a save becomes whole at once",
        _LOCAL,
    ),
    "fsync-folder": ("the folder `{path}` itself cannot be synced", "nothing has to be done"),
    "unlink": ("a file in `{path}` cannot be removed, so old checkpoints stay", "remove old checkpoints by hand"),
}


def _finding(
    answer: FolderAnswer,
    kind: str,
    message: str,
    *,
    hint: str,
    severity: Severity = Severity.ERROR,
    expected: str | None = None,
    actual: str | None = None,
) -> Finding:
    return Finding(
        check=FAMILY,
        kind=kind,
        severity=severity,
        subject=answer.path,
        message=message,
        expected=expected,
        actual=actual,
        hint=hint,
    )
