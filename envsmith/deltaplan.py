"""The plan of an exact wheel delta as bytes: numbers as varints, column by column, since like compresses with like.

One plan has one form: whatever would be written otherwise is refused, and so is whatever does not add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from envsmith.deltaformat import (
    MAX_NUMBER,
    MAX_SEGMENT,
    MAX_WINDOW,
    Base,
    Content,
    Copy,
    DeltaHeader,
    Packing,
    Patch,
    Plan,
    Region,
    Segment,
    malformed,
)

#: Source: zlib's technical details (zlib.net/zlib_tech.html), "1032:1"; read 2026-11-30. Some bytes more for the end.
_MAX_INFLATION = 1032
_COPY, _STORED, _DEFLATED = range(3)
_NO_BASE, _SKELETON, _AS_IS, _INFLATED = range(4)
_LEVELS, _MEMORIES, _STRATEGIES = range(10), range(1, 10), range(5)


def render_plan(plan: Plan) -> bytes:
    """Write a plan down."""
    ends = [0, *(region.start + region.length for region in plan.regions)]
    patches = [step for step in plan.steps if isinstance(step, Patch)]
    packings = [(step.packing, step.length, step.crc) for step in patches if step.packing]
    columns: list[list[int]] = [
        [len(plan.regions), len(plan.steps)],
        [region.start - end for region, end in zip(plan.regions, ends, strict=False)],
        [region.length for region in plan.regions],
        [step.gap for step in plan.steps],
        [_COPY if isinstance(step, Copy) else _DEFLATED if step.packing else _STORED for step in plan.steps],
        _jumps([step.region for step in plan.steps if isinstance(step, Copy)]),
        *_content_columns(plan.contents),
        [packing.level for packing, _, _ in packings],
        [packing.memory for packing, _, _ in packings],
        [packing.strategy for packing, _, _ in packings],
        [length for _, length, _ in packings],
        [crc for _, _, crc in packings],
    ]
    return b"".join(_varint(number) for column in columns for number in column)


def parse_plan(data: bytes, header: DeltaHeader, where: str) -> Plan:
    """Read a plan and check that all in it fits: regions, windows, sizes and their sums.

    Raises:
        IntegrityError: `delta-malformed`.
    """
    try:
        column = _Column(data)
        regions = _regions(column, header)
        skeleton_size = header.base_size - sum(region.length for region in regions)
        plan = _plan(column, regions, skeleton_size)
        _check_sums(plan, header)
    except _WrongError as error:
        raise malformed(where, str(error)) from None
    return plan


class _WrongError(Exception):
    """The reason why a plan is refused."""


def _want(fact: bool, otherwise: str) -> None:
    if not fact:
        raise _WrongError(otherwise)


class _Column:
    """The numbers of a plan, taken from the front."""

    def __init__(self, data: bytes) -> None:
        self._numbers = list(_numbers(data))
        self._at = 0
        self.steps = 0
        """How many the plan has; the second number."""

    def take(self, count: int) -> list[int]:
        taken = self._numbers[self._at : self._at + count]
        self._at += count
        _want(self._at <= len(self._numbers), "its plan ends too early")
        return taken

    def finish(self) -> None:
        _want(self._at == len(self._numbers), "its plan is longer than its counts say")


def _content_columns(contents: Sequence[Content]) -> list[list[int]]:
    bases = [content.base for content in contents]
    pairs = [(content, segment) for content in contents for segment in content.segments]
    return [
        [_base_kind(base) for base in bases],
        _jumps([base.region for base in bases if base and base.region is not None]),
        [base.size for base in bases if base and base.inflated],
        [content.size for content in contents],
        [len(content.segments) for content in contents],
        [segment.start for content, segment in pairs if content.base],
        [content.base.size - segment.start - segment.window for content, segment in pairs if content.base],
        [segment.size for content in contents for segment in content.segments[:-1]],
        [segment.patch for _, segment in pairs],
    ]


def _base_kind(base: Base | None) -> int:
    if base is None:
        return _NO_BASE
    return _SKELETON if base.region is None else _INFLATED if base.inflated else _AS_IS


def _regions(column: _Column, header: DeltaHeader) -> tuple[Region, ...]:
    count, column.steps = column.take(2)
    gaps, lengths = column.take(count), column.take(count)
    regions, end = [], 0
    for gap, length in zip(gaps, lengths, strict=True):
        _want(length > 0, "its plan names an empty region")
        regions.append(Region(start=end + gap, length=length))
        end += gap + length
    _want(end <= header.base_size, "its plan names a region beyond the end of the old wheel")
    return tuple(regions)


def _plan(column: _Column, regions: tuple[Region, ...], skeleton_size: int) -> Plan:
    gaps, kinds = column.take(column.steps), column.take(column.steps)
    _want(max(kinds, default=0) <= _DEFLATED, "its plan holds an unknown kind of step")
    copied = _landings(column.take(kinds.count(_COPY)), len(regions))
    skeleton, *made = _contents(column, 1 + len(kinds) - kinds.count(_COPY), regions, skeleton_size)
    packed, contents = _packings(column, kinds.count(_DEFLATED)), iter(made)
    column.finish()
    steps: list[Copy | Patch] = []
    for gap, kind in zip(gaps, kinds, strict=True):
        if kind == _COPY:
            steps.append(Copy(gap=gap, region=next(copied)))
            continue
        content = next(contents)
        packing, length, crc = (None, content.size, 0) if kind == _STORED else next(packed)
        steps.append(Patch(gap=gap, content=content, packing=packing, length=length, crc=crc))
    return Plan(regions=regions, skeleton=skeleton, steps=tuple(steps))


def _packings(column: _Column, count: int) -> Iterator[tuple[Packing, int, int]]:
    levels, memories, strategies, lengths, crcs = (column.take(count) for _ in range(5))
    known = all(level in _LEVELS for level in levels) and all(memory in _MEMORIES for memory in memories)
    _want(known and all(strategy in _STRATEGIES for strategy in strategies), "its plan holds unknown zlib parameters")
    _want(max(crcs, default=0) <= 0xFFFFFFFF, "its plan holds a checksum out of range")
    parameters = zip(levels, memories, strategies, strict=True)
    packings = [Packing(level=level, memory=memory, strategy=strategy) for level, memory, strategy in parameters]
    return zip(packings, lengths, crcs, strict=True)


def _contents(column: _Column, count: int, regions: Sequence[Region], skeleton_size: int) -> list[Content]:
    bases = _bases(column, count, regions, skeleton_size)
    sizes, counts = column.take(count), column.take(count)
    based = sum(number for number, base in zip(counts, bases, strict=True) if base)
    starts, rests = iter(column.take(based)), iter(column.take(based))
    inner = iter(column.take(sum(number - 1 for number in counts if number)))
    patches = iter(column.take(sum(counts)))
    contents = []
    for base, size, number in zip(bases, sizes, counts, strict=True):
        segments, left = [], size
        for later in range(number - 1, -1, -1):
            start, rest = (next(starts), next(rests)) if base else (0, 0)
            length = next(inner) if later else left
            window = (base.size if base else 0) - start - rest
            segments.append(_segment(Segment(start=start, window=window, size=length, patch=next(patches))))
            left -= length
        _want(bool(segments) or not size, "its plan leaves a content without segments")
        contents.append(Content(base=base, size=size, segments=tuple(segments)))
    return contents


def _segment(segment: Segment) -> Segment:
    _want(0 <= segment.window <= MAX_WINDOW, "its plan holds a window out of range")
    _want(0 < segment.size <= MAX_SEGMENT, "its plan holds a segment out of range")
    return segment


def _bases(column: _Column, count: int, regions: Sequence[Region], skeleton_size: int) -> list[Base | None]:
    kinds = column.take(count)
    _want(max(kinds) <= _INFLATED, "its plan holds an unknown kind of base")
    indices = _landings(column.take(kinds.count(_AS_IS) + kinds.count(_INFLATED)), len(regions))
    inflated = iter(column.take(kinds.count(_INFLATED)))
    bases: list[Base | None] = []
    for kind in kinds:
        if kind == _NO_BASE:
            bases.append(None)
        elif kind == _SKELETON:
            bases.append(Base(region=None, inflated=False, size=skeleton_size))
        else:
            region = next(indices)
            size = next(inflated) if kind == _INFLATED else regions[region].length
            _want(size <= (regions[region].length + 64) * _MAX_INFLATION, "its plan inflates a region beyond measure")
            bases.append(Base(region=region, inflated=kind == _INFLATED, size=size))
    return bases


def _check_sums(plan: Plan, header: DeltaHeader) -> None:
    patches = sum(content.patch for content in plan.contents)
    _want(patches == header.body_size, "the patches of its plan are not its body")
    gaps = sum(step.gap for step in plan.steps)
    _want(gaps <= plan.skeleton.size, "the gaps of its plan are more than its skeleton")
    result = plan.skeleton.size + sum(plan.length_of(step) for step in plan.steps)
    _want(result == header.result_size, "the steps of its plan do not make a file of the size in its header")
    copied = sum(isinstance(step, Copy) for step in plan.steps)
    counted = header.patched + header.literal
    _want((copied, len(plan.steps) - copied) == (header.copied, counted), "the counts in its header are wrong")


def _jumps(indices: Iterable[int]) -> list[int]:
    """Write indices as distances from the one expected next, 0 for it; signs go into the lowest bit."""
    jumps, expected = [], 0
    for index in indices:
        jump = index - expected
        jumps.append(jump * 2 if jump >= 0 else -jump * 2 - 1)
        expected = index + 1
    return jumps


def _landings(jumps: Iterable[int], end: int) -> Iterator[int]:
    landings, expected = [], 0
    for jump in jumps:
        index = expected + (jump // 2 if jump % 2 == 0 else -(jump + 1) // 2)
        _want(0 <= index < end, "its plan names a region that is not there")
        landings.append(index)
        expected = index + 1
    return iter(landings)


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def _numbers(data: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        _want(number <= MAX_NUMBER and shift <= 70, "its plan holds a number out of range")
        if byte & 0x80:
            continue
        _want(byte != 0 or shift == 7, "its plan writes a number longer than needed")
        yield number
        number = shift = 0
    _want(shift == 0, "its plan ends within a number")
