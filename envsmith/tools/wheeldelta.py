"""Exact wheel deltas: from a wheel that is there already and a small file, the byte-identical new wheel.

zlib packs the same content into the same bytes wherever the same zlib is, so a delta may carry patches of contents
and still give the wheel whose sha256 the lock pins. A delta is made only with the proof that it does so here.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from envsmith.deltaformat import DeltaHeader, render_header
from envsmith.errors import IntegrityError, Problem, SupplyError
from envsmith.tools import zstdpatch
from envsmith.tools.deltacontent import Limits, Workers, pieces_of, write_at
from envsmith.tools.deltamaking import Archive, Delta, Making
from envsmith.tools.deltarebuild import apply_delta, base_differs, read_header
from envsmith.tools.files import filesystem, fsync_folder, sha256_file, temporary_beside
from envsmith.tools.progress import Progress
from envsmith.tools.zipskeleton import Member, members

__all__ = ["DeltaHeader", "Limits", "Made", "apply_delta", "make_delta", "read_header"]

_FILE_MODE = 0o644
_DEFAULT = Limits()


@dataclass(frozen=True, kw_only=True, slots=True)
class Made:
    """A delta that was made and proven."""

    size: int
    new_size: int
    copied: int
    patched: int
    literal: int


def make_delta(
    old: Path,
    old_sha256: str,
    new: Path,
    new_sha256: str,
    out: Path,
    *,
    work: Path,
    progress: Progress,
    limits: Limits = _DEFAULT,
) -> Made | None:
    """Write the delta from an old wheel to a new one, after it has rebuilt the new one in `work`.

    None, and no file, when a delta is not worth it, when a wheel is no archive, or when the rebuilt wheel differs.

    Raises:
        IntegrityError: `delta-base-differs` or `delta-result-differs` when a wheel has another digest than given.
        HostError: `zstd-missing`.
    """
    zstdpatch.library()
    if (actual := sha256_file(old)) != old_sha256:
        raise base_differs(old, old_sha256, actual)
    if (actual := sha256_file(new)) != new_sha256:
        raise _result_differs(new, new_sha256, actual)
    with filesystem(old):
        before = members(old)
    with filesystem(new):
        after = members(new)
    if before is None or after is None:
        return None
    with filesystem(old), old.open("rb") as base, filesystem(new), new.open("rb") as result:
        first, second = _archive(base, before), _archive(result, after)
        progress.start(2 * second.size, len(after))
        try:
            with filesystem(work), tempfile.TemporaryFile(dir=work) as body:
                making = Making(first, second, body, work, limits, Workers(progress.advance))
                delta = making.run(old_sha256, new_sha256)
                return _proven(delta, body, old, out, work, progress, limits) if delta else None
        finally:
            progress.done()


def _archive(stream: BinaryIO, found: tuple[Member, ...]) -> Archive:
    descriptor = stream.fileno()
    return Archive(descriptor=descriptor, size=os.fstat(descriptor).st_size, members=found)


def _proven(
    delta: Delta, body: BinaryIO, old: Path, out: Path, work: Path, progress: Progress, limits: Limits
) -> Made | None:
    """Give a delta its name after it has rebuilt the wheel."""
    header = delta.header
    if header.delta_size > limits.worth * header.result_size:
        return None
    with filesystem(out, needed_bytes=header.delta_size), temporary_beside(out) as (descriptor, temporary):
        _write(delta, body.fileno(), descriptor)
        rebuilt = work / f"{header.result_sha256}.rebuilt"
        try:
            apply_delta(old, temporary, rebuilt, progress=_Proof(progress.advance), limits=limits)
        except SupplyError as error:
            if error.problems[0].code != "delta-not-reproducible":
                raise
            return None
        finally:
            rebuilt.unlink(missing_ok=True)
        os.fchmod(descriptor, _FILE_MODE)
        os.fsync(descriptor)
        temporary.replace(out)
        fsync_folder(out.parent)
    return Made(
        size=header.delta_size,
        new_size=header.result_size,
        copied=header.copied,
        patched=header.patched,
        literal=header.literal,
    )


class _Proof(Progress):
    """The rebuilding as a part of the making."""

    def __init__(self, on_bytes: Callable[[int], None]) -> None:
        self._on_bytes = on_bytes

    def advance(self, count: int) -> None:
        self._on_bytes(count)


def _write(delta: Delta, body: int, target: int) -> None:
    digest = hashlib.sha256()
    at = 0
    pieces = (piece for part in delta.parts for piece in pieces_of(body, part))
    for piece in chain((render_header(delta.header), delta.plan), pieces):
        digest.update(piece)
        at += write_at(target, piece, at)
    write_at(target, digest.digest(), at)


def _result_differs(new: Path, expected: str, actual: str) -> IntegrityError:
    message = "the wheel that a delta shall lead to is not the locked one"
    return IntegrityError(
        Problem(
            code="delta-result-differs",
            message=message,
            where=str(new),
            hint="fetch the wheel again",
            expected=f"sha256 {expected}",
            actual=f"sha256 {actual}",
        )
    )
