"""Find out how each member of a new wheel comes from an old one, and write the patches down."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from envsmith.deltaformat import (
    MAX_PLAN,
    Base,
    Content,
    Copy,
    DeltaHeader,
    Packing,
    Patch,
    Plan,
    Region,
    Segment,
)
from envsmith.deltaplan import render_plan
from envsmith.tools import zstdpatch
from envsmith.tools.deflate import InflateError, Sample, inflated, makes, sample, seen
from envsmith.tools.deltacontent import Limits, Scratch, Workers, base_pieces, pieces_of, watched, write_at
from envsmith.tools.zipskeleton import Member, Origins, gaps

#: The number that the skeleton has among the members.
_SKELETON = -1
#: Of a library of 448 MB, level 9 leaves 10 % less than level 3 in thrice its time, level 15 another 3 % in ten times
#: that; measured 2026-11-30. Small contents may take any time.
_FAST, _SMALL = 9, 4 << 20
#: A packed sample holds more symbols than zlib gathers before it writes a block, 32,768 at most.
_SAMPLES, _SAMPLE_PACKED, _SAMPLE_SIZE = 8, 64 << 10, 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """What a delta is put together from."""

    header: DeltaHeader
    plan: bytes
    parts: tuple[Region, ...]
    """Where in the scratch file the body lies; it was written in the order the workers ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """An open wheel."""

    descriptor: int
    size: int
    members: tuple[Member, ...]

    @property
    def regions(self) -> tuple[Region, ...]:
        """Return where the data of its members lies."""
        return tuple(member.region for member in self.members)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Work:
    """One member of the new wheel, and what is tried with it."""

    number: int
    member: Member
    gap: int
    same: int | None
    base: int | None
    inflate: bool


class _NotWorthItError(Exception):
    """The delta is too large."""


class Making:
    """The work on one pair of wheels; an object serves once."""

    def __init__(
        self, old: Archive, new: Archive, body: BinaryIO, folder: Path, limits: Limits, workers: Workers
    ) -> None:
        self._old, self._new = old, new
        self._regions = old.regions
        self._body = body.fileno()
        self._folder, self._limits, self._workers = folder, limits, workers
        self._body_size = 0
        self._gate = threading.Lock()
        self._places: dict[int, list[Region]] = {}
        self._steps: dict[int, Copy | Patch] = {}

    def run(self, old_sha256: str, new_sha256: str) -> Delta | None:
        """Look at every member, then put together what was found; None when it is too much."""
        self._packings = seen([self._sample(member) for member in self._largest()])
        between = list(gaps(self._new.regions, self._new.size))
        works = sorted(self._works(between), key=lambda work: (-work.member.size, work.number))
        try:
            self._workers.run(self._limits.workers, [partial(self._member, work) for work in works])
            skeleton = self._skeleton(between)
        except _NotWorthItError:
            return None
        self._workers.advance(between[-1].length)
        steps = tuple(self._steps[n] for n in range(len(works)))
        plan = render_plan(Plan(regions=self._regions, skeleton=skeleton, steps=steps))
        if len(plan) > MAX_PLAN:
            return None
        packed = zstdpatch.pack(plan)
        copied, literal = self._counts(steps)
        header = DeltaHeader(
            base_sha256=old_sha256,
            base_size=self._old.size,
            result_sha256=new_sha256,
            result_size=self._new.size,
            copied=copied,
            patched=len(steps) - copied - literal,
            literal=literal,
            plan_packed=len(packed),
            plan_size=len(plan),
            body_size=self._body_size,
        )
        parts = (part for n in (_SKELETON, *range(len(steps))) for part in self._places.get(n, ()))
        return Delta(header=header, plan=packed, parts=tuple(parts))

    def _works(self, between: Sequence[Region]) -> Iterator[_Work]:
        """Decide for all members, in their order, what is tried: all that is inflated must stay within bounds."""
        origins = Origins(self._old.members)
        left = self._limits.inflated_bytes(self._old.size, self._new.size) - self._old.size - 2 * self._new.size
        for number, (member, gap) in enumerate(zip(self._new.members, between, strict=False)):
            same, base = origins.same(member), origins.base(member)
            cost = max(self._old.members[base].size, self._regions[base].length) if base is not None else 0
            if cost > min(left, self._limits.member_bytes):
                base = None
            else:
                left -= cost
            inflate = member.deflated and member.size <= min(left, self._limits.member_bytes)
            left -= member.size if inflate else 0
            yield _Work(number=number, member=member, gap=gap.length, same=same, base=base, inflate=inflate)

    def _counts(self, steps: Sequence[Copy | Patch]) -> tuple[int, int]:
        """Return how many members are copied, and how many travel packed."""
        as_is = [isinstance(step, Patch) and step.packing is None for step in steps]
        literal = sum(alone and member.deflated for alone, member in zip(as_is, self._new.members, strict=True))
        return sum(isinstance(step, Copy) for step in steps), literal

    def _largest(self) -> list[Member]:
        deflated = (member for member in self._new.members if member.deflated)
        return sorted(deflated, key=lambda member: -member.region.length)[:_SAMPLES]

    def _sample(self, member: Member) -> Sample:
        region = member.region
        packed = os.pread(self._new.descriptor, min(_SAMPLE_PACKED, region.length), region.start)
        return sample(packed, _SAMPLE_SIZE)

    def _member(self, work: _Work) -> None:
        self._workers.look()
        region = work.member.region
        if work.same is not None and self._equal(self._regions[work.same], region):
            self._steps[work.number] = Copy(gap=work.gap, region=work.same)
        else:
            self._steps[work.number] = self._content(work) or self._as_is(work)
        self._workers.advance(work.gap + region.length)

    def _equal(self, old: Region, new: Region) -> bool:
        pairs = zip(pieces_of(self._old.descriptor, old), pieces_of(self._new.descriptor, new), strict=True)
        return all(before == after for before, after in pairs)

    def _content(self, work: _Work) -> Patch | None:
        """Patch the content of a member; None when zlib does not make its packed data again."""
        region = work.member.region
        if not work.inflate:
            return None
        try:
            content = self._scratch(inflated(self._packed(region), work.member.size))
        except InflateError:
            return None
        with content:
            packing = next((packing for packing in self._packings if self._makes(content, packing, region)), None)
            if packing is None:
                return None
            crc = 0
            for piece in self._packed(region):
                crc = zlib.crc32(piece, crc)
            made = self._patched(work.number, content, *self._base(work.base, literal=False))
        return Patch(gap=work.gap, content=made, packing=packing, length=region.length, crc=crc)

    def _as_is(self, work: _Work) -> Patch:
        """Patch the data of a member that is stored, or that zlib does not make again."""
        with self._scratch(self._packed(work.member.region)) as content:
            made = self._patched(work.number, content, *self._base(work.base, literal=work.member.deflated))
        return Patch(gap=work.gap, content=made, packing=None, length=made.size, crc=0)

    def _makes(self, content: Scratch, packing: Packing, region: Region) -> bool:
        def packed(at: int, count: int) -> bytes:
            self._workers.look()
            return os.pread(self._new.descriptor, count, region.start + at)

        return makes(content.pieces(0, content.size), packing, region.length, packed)

    def _base(self, number: int | None, *, literal: bool) -> tuple[Base | None, Scratch]:
        if number is None:
            return None, self._scratch(())
        old = self._old.members[number]
        inflate = old.deflated and not literal
        base = Base(region=number, inflated=inflate, size=old.size if inflate else old.region.length)
        try:
            return base, self._scratch(self._before(base))
        except InflateError:
            return None, self._scratch(())

    def _skeleton(self, between: Sequence[Region]) -> Content:
        size = self._old.size - sum(region.length for region in self._regions)
        base = Base(region=None, inflated=False, size=size)
        with self._scratch(piece for gap in between for piece in self._packed(gap)) as content:
            return self._patched(_SKELETON, content, base, self._scratch(self._before(base)))

    def _patched(self, number: int, content: Scratch, base: Base | None, before: Scratch) -> Content:
        """Write the patches of a content to the scratch file of the body."""
        segments = []
        level = zstdpatch.FINEST if content.size <= _SMALL else _FAST
        with before:
            for start, length in _segments(content.size, self._limits.segment):
                first, window = _window(start, length, content.size, before.size, self._limits.window)
                prefix = self._workers.prefix(before, first, window)
                pieces = watched(content.pieces(start, length), self._workers.look)
                frame = zstdpatch.patch(prefix, pieces, length, level)
                self._places.setdefault(number, []).append(self._kept(frame))
                segments.append(Segment(start=first, window=window, size=length, patch=len(frame)))
        return Content(base=base, size=content.size, segments=tuple(segments))

    def _kept(self, frame: bytes) -> Region:
        with self._gate:
            place = Region(start=self._body_size, length=len(frame))
            self._body_size += len(frame)
        if self._body_size > self._limits.worth * self._new.size:
            raise _NotWorthItError
        write_at(self._body, frame, place.start)
        return place

    def _packed(self, region: Region) -> Iterator[bytes]:
        return pieces_of(self._new.descriptor, region)

    def _before(self, base: Base) -> Iterator[bytes]:
        return base_pieces(self._old.descriptor, base, self._regions, self._old.size)

    def _scratch(self, pieces: Iterable[bytes]) -> Scratch:
        return Scratch(watched(pieces, self._workers.look), self._folder)


def _segments(size: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield start and length of the segments of a content."""
    for start in range(0, size, most):
        yield start, min(most, size - start)


def _window(start: int, length: int, size: int, base: int, most: int) -> tuple[int, int]:
    """Return start and length of the part of a base that lies around the same place as a segment does."""
    if base <= most:
        return 0, base
    middle = (2 * start + length) * base // (2 * size)
    return max(0, min(middle - most // 2, base - most)), most
