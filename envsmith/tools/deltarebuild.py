"""Rebuild a wheel from an old one and a delta: byte for byte the locked one, or not at all.

Neither file is believed. The delta's own digest says whether it came whole, its plan is checked before it is used,
and the new file gets its name only when its sha256 is the one that the delta promised.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

from envsmith.deltaformat import (
    DIGEST_SIZE,
    HEADER_SIZE,
    Content,
    Copy,
    DeltaHeader,
    Patch,
    Plan,
    Region,
    malformed,
    parse_header,
)
from envsmith.deltaplan import parse_plan
from envsmith.errors import IntegrityError, Problem, SupplyError
from envsmith.tools.deflate import InflateError, deflated
from envsmith.tools.deltacontent import Limits, Scratch, Workers, base_pieces, pieces_of, watched, write_at
from envsmith.tools.files import filesystem, fsync_folder, sha256_file, temporary_beside
from envsmith.tools.progress import Progress
from envsmith.tools.zstdpatch import PatchError, unpack, unpatch

_FILE_MODE = 0o644
_DEFAULT = Limits()


def read_header(delta: Path) -> DeltaHeader:
    """Read what a delta says of itself; its size is checked, its content is not read.

    Raises:
        IntegrityError: `delta-malformed`.
    """
    with filesystem(delta), delta.open("rb") as stream:
        return _header(stream, str(delta))


def apply_delta(old: Path, delta: Path, out: Path, *, progress: Progress, limits: Limits = _DEFAULT) -> str:
    """Rebuild the new wheel at `out` and return its sha256, which is the one in the delta's header.

    Raises:
        IntegrityError: `delta-malformed` or `delta-base-differs`.
        SupplyError: `delta-base-missing`; `delta-not-reproducible` when this machine's zlib packs otherwise.
        HostError: `zstd-missing`.
    """
    with filesystem(delta), delta.open("rb") as stream:
        header, plan = _loaded(stream, str(delta), limits)
        _check_base(old, header)
        with filesystem(old), old.open("rb") as base, filesystem(out, needed_bytes=header.result_size):
            progress.start(header.result_size, len(plan.steps))
            try:
                rebuilding = _Rebuilding(base, stream, header, plan, str(delta), Workers(progress.advance))
                rebuilding.run(out, limits)
            finally:
                progress.done()
    return header.result_sha256


class _Rebuilding:
    def __init__(
        self, base: BinaryIO, delta: BinaryIO, header: DeltaHeader, plan: Plan, where: str, workers: Workers
    ) -> None:
        self._base = base.fileno()
        self._delta = delta.fileno()
        self._header = header
        self._plan = plan
        self._where = where
        self._workers = workers

    def run(self, out: Path, limits: Limits) -> None:
        """Write all parts to their places in a new file, then hash that file."""
        self._folder = out.parent
        with temporary_beside(out) as (self._target, temporary):
            os.ftruncate(self._target, self._header.result_size)
            body = HEADER_SIZE + self._header.plan_packed
            skeleton = Scratch(self._made(self._plan.skeleton, body), out.parent)
            with skeleton:
                works = self._patches(body + self._plan.skeleton.patch)
                self._workers.run(_workers(self._plan, limits), works, partial(self._copy, skeleton))
            os.fchmod(self._target, _FILE_MODE)
            os.fsync(self._target)
            actual = sha256_file(temporary)
            if actual != self._header.result_sha256:
                raise self._not_reproducible(f"sha256 {self._header.result_sha256}", f"sha256 {actual}")
            temporary.replace(out)
        fsync_folder(out.parent)

    def _patches(self, body: int) -> list[partial[None]]:
        """List the works that need a thread, the longest first."""
        works, at = [], 0
        for step in self._plan.steps:
            at += step.gap
            if isinstance(step, Patch):
                works.append((step.content.size, partial(self._patch, step, at, body)))
                body += step.content.patch
            at += self._plan.length_of(step)
        return [work for _, work in sorted(works, key=lambda pair: -pair[0])]

    def _copy(self, skeleton: Scratch) -> None:
        """Write the skeleton and the members that are as they were."""
        at = taken = 0
        for step in self._plan.steps:
            at += self._write(skeleton.pieces(taken, step.gap), at)
            taken += step.gap
            if isinstance(step, Copy):
                self._write(pieces_of(self._base, self._plan.regions[step.region]), at)
            at += self._plan.length_of(step)
        self._write(skeleton.pieces(taken, skeleton.size - taken), at)

    def _patch(self, step: Patch, at: int, body: int) -> None:
        content = self._made(step.content, body)
        if step.packing is None:
            self._write(content, at)
            return
        crc = written = 0
        for packed in deflated(content, step.packing):
            if written + len(packed) > step.length:
                raise self._not_reproducible(f"{step.length} bytes", "more")
            crc = zlib.crc32(packed, crc)
            written += self._write((packed,), at + written)
        if (written, crc) != (step.length, step.crc):
            raise self._not_reproducible(
                f"{step.length} bytes with CRC-32 {step.crc:08x}", f"{written} bytes with CRC-32 {crc:08x}"
            )

    def _made(self, content: Content, body: int) -> Iterator[bytes]:
        """Yield a content, made of a base and the part of the body that begins at `body`."""
        try:
            with self._base_of(content) as base:
                for segment in content.segments:
                    frame = b"".join(pieces_of(self._delta, Region(start=body, length=segment.patch)))
                    body += segment.patch
                    window = self._workers.prefix(base, segment.start, segment.window)
                    yield from watched(unpatch(window, frame, segment.size), self._workers.look)
        except (PatchError, InflateError) as error:
            raise malformed(self._where, "a patch in it does not make what its plan says") from error

    def _base_of(self, content: Content) -> Scratch:
        pieces: Iterable[bytes] = ()
        if content.base:
            pieces = base_pieces(self._base, content.base, self._plan.regions, self._header.base_size)
        return Scratch(watched(pieces, self._workers.look), self._folder)

    def _write(self, pieces: Iterable[bytes], at: int) -> int:
        start = at
        for piece in pieces:
            self._workers.look()
            at += write_at(self._target, piece, at)
            self._workers.advance(len(piece))
        return at - start

    def _not_reproducible(self, expected: str, actual: str) -> SupplyError:
        message = f"the zlib of this machine ({zlib.ZLIB_RUNTIME_VERSION}) does not make the wheel again"
        hint = "bring the whole wheel, or the full bundle, instead of the delta"
        problem = Problem(
            code="delta-not-reproducible",
            message=message,
            where=self._where,
            hint=hint,
            expected=expected,
            actual=actual,
        )
        return SupplyError(problem)


def _header(stream: BinaryIO, where: str) -> DeltaHeader:
    return parse_header(stream.read(HEADER_SIZE), os.fstat(stream.fileno()).st_size, where)


def _loaded(stream: BinaryIO, where: str, limits: Limits) -> tuple[DeltaHeader, Plan]:
    header = _header(stream, where)
    digest = hashlib.sha256()
    for piece in pieces_of(stream.fileno(), Region(start=0, length=header.delta_size - DIGEST_SIZE)):
        digest.update(piece)
    if os.pread(stream.fileno(), DIGEST_SIZE, header.delta_size - DIGEST_SIZE) != digest.digest():
        raise malformed(where, "its bytes are not those that its digest was made of")
    if header.result_size > limits.file_bytes:
        raise malformed(where, f"it makes a file of {header.result_size} bytes")
    try:
        data = unpack(os.pread(stream.fileno(), header.plan_packed, HEADER_SIZE), header.plan_size)
    except PatchError as error:
        raise malformed(where, "its plan cannot be read") from error
    plan = parse_plan(data, header, where)
    sizes = [content.size + (content.base.size if content.base else 0) for content in plan.contents]
    most = limits.inflated_bytes(header.base_size, header.result_size)
    if sum(sizes) > most or max(sizes) > 2 * limits.member_bytes:
        raise malformed(where, f"it inflates {sum(sizes)} bytes", f"at most {most}")
    return header, plan


def _check_base(old: Path, header: DeltaHeader) -> None:
    promised = f"sha256 {header.base_sha256}"
    with filesystem(old):
        here = old.is_file()
    if not here:
        message = "the wheel that a delta is made for is not here"
        hint = "bring the bundle that holds it, or the full bundle instead of the delta"
        raise SupplyError(
            Problem(code="delta-base-missing", message=message, where=str(old), hint=hint, expected=promised)
        )
    actual = sha256_file(old)
    if actual != header.base_sha256 or old.stat().st_size != header.base_size:
        raise base_differs(old, header.base_sha256, actual)


def base_differs(old: Path, expected: str, actual: str) -> IntegrityError:
    """State that the old wheel is another one than the delta's."""
    message = "the wheel at hand is not the one that the delta is made for"
    return IntegrityError(
        Problem(
            code="delta-base-differs",
            message=message,
            where=str(old),
            hint="bring the delta for this wheel, or the full bundle instead of the delta",
            expected=f"sha256 {expected}",
            actual=f"sha256 {actual}",
        )
    )


def _workers(plan: Plan, limits: Limits) -> int:
    """Return how many threads fit into the memory: each holds a window and a segment, and one window is loading."""
    segments = [segment for content in plan.contents for segment in content.segments]
    each = max((segment.window + segment.size for segment in segments), default=1)
    return max(1, min(limits.workers, (limits.memory_bytes - each) // max(1, each)))
