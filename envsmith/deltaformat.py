"""The format of an exact wheel delta: what is written down, and what must hold before a byte of it is used.

    magic | header | plan, one zstd frame | body: zstd frames | sha256 of all before it

A wheel is a skeleton (headers, directory, gaps) with the packed data of members in between. The plan says for each
member of the new wheel, in order: copy this member's bytes of the old wheel, or make a content by patching another
one and pack it with these parameters of zlib. How the plan is written down is `deltaplan`'s matter.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from envsmith.errors import IntegrityError, Problem

MAGIC = b"envsmith wheel delta 1\n"
DIGEST_SIZE = 32
_HEADER = struct.Struct("<32sQ32sQ5LQ")
HEADER_SIZE = len(MAGIC) + _HEADER.size
#: A segment is rebuilt in memory against a window of its base, so both are bounded by the format.
MAX_WINDOW = 512 << 20
MAX_SEGMENT = 256 << 20
MAX_PLAN = 8 << 20
MAX_NUMBER = (1 << 63) - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaHeader:
    """What a delta says about itself in its first bytes."""

    base_sha256: str
    base_size: int
    result_sha256: str
    result_size: int
    copied: int
    patched: int
    literal: int
    """Members whose packed bytes travel because zlib does not make them again."""
    plan_packed: int
    plan_size: int
    body_size: int

    @property
    def delta_size(self) -> int:
        """Return the size that the file of this header has."""
        return HEADER_SIZE + self.plan_packed + self.body_size + DIGEST_SIZE


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """The packed data of one member in the old wheel."""

    start: int
    length: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """What a content is patched from."""

    region: int | None
    """Index of a region of the old wheel; None is its skeleton, all that lies between its regions."""
    inflated: bool
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A part of a content: a zstd frame of the body whose prefix is a window of the base."""

    start: int
    window: int
    size: int
    patch: int
    """Bytes of the frame."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Content:
    """Bytes to be made from a base and the body."""

    base: Base | None
    size: int
    segments: tuple[Segment, ...]

    @property
    def patch(self) -> int:
        """Return the bytes of the body that belong to it."""
        return sum(segment.patch for segment in self.segments)


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class Packing:
    """Parameters of zlib's raw deflate with a window of 32 KiB."""

    level: int
    memory: int
    strategy: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """Take a region of the old wheel as it is."""

    gap: int
    """Bytes of the skeleton before it."""
    region: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """Make a content and pack it."""

    gap: int
    content: Content
    packing: Packing | None
    """None writes the content as it is."""
    length: int
    """Bytes it takes in the new wheel."""
    crc: int
    """CRC-32 of those bytes; 0 without packing, where zstd's own checksum serves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How the new wheel is made from the old one and the body; patches lie there in this order."""

    regions: tuple[Region, ...]
    skeleton: Content
    steps: tuple[Copy | Patch, ...]

    def length_of(self, step: Copy | Patch) -> int:
        """Return the bytes that a step takes in the new wheel."""
        return step.length if isinstance(step, Patch) else self.regions[step.region].length

    @property
    def contents(self) -> tuple[Content, ...]:
        """Return every content in the order of the body."""
        return (self.skeleton, *(step.content for step in self.steps if isinstance(step, Patch)))


def render_header(header: DeltaHeader) -> bytes:
    """Write the first bytes of a delta."""
    return MAGIC + _HEADER.pack(
        bytes.fromhex(header.base_sha256),
        header.base_size,
        bytes.fromhex(header.result_sha256),
        header.result_size,
        header.copied,
        header.patched,
        header.literal,
        header.plan_packed,
        header.plan_size,
        header.body_size,
    )


def parse_header(data: bytes, file_size: int, where: str) -> DeltaHeader:
    """Read the first `HEADER_SIZE` bytes of a delta.

    Raises:
        IntegrityError: `delta-malformed`.
    """
    if not data.startswith(MAGIC) or len(data) < HEADER_SIZE:
        raise malformed(where, "it does not begin as a delta of this version does")
    base, base_size, result, result_size, *counts, body = _HEADER.unpack_from(data, len(MAGIC))
    header = DeltaHeader(
        base_sha256=base.hex(),
        base_size=base_size,
        result_sha256=result.hex(),
        result_size=result_size,
        copied=counts[0],
        patched=counts[1],
        literal=counts[2],
        plan_packed=counts[3],
        plan_size=counts[4],
        body_size=body,
    )
    if header.delta_size != file_size:
        raise malformed(where, "its size is not the one its header says", str(header.delta_size), str(file_size))
    if header.plan_size > MAX_PLAN or max(base_size, result_size) > MAX_NUMBER:
        raise malformed(where, "its header holds a number out of range")
    return header


def malformed(where: str, why: str, expected: str | None = None, actual: str | None = None) -> IntegrityError:
    """State that a delta cannot be what envsmith wrote."""
    hint = "bring the delta again, or the whole wheel"
    message = f"the wheel delta is damaged: {why}"
    return IntegrityError(
        Problem(code="delta-malformed", message=message, where=where, hint=hint, expected=expected, actual=actual)
    )
