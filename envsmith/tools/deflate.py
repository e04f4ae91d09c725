"""Raw deflate in pieces: inflate a member within bounds, pack content again, find the parameters it was packed with.

Which bytes zlib makes is a matter of the library, not of the format: zlib-ng makes others at the same level (of 876
members of a wheel 42 came out the same, zlib 1.2.13 made 876; measured 2026-11-30). So nothing here is believed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from envsmith.deltaformat import Packing

PIECE = 1 << 20
#: What writers of wheels use: `zipfile` at its stock level, then the others, then other memory and strategies.
STOCK = Packing(level=6, memory=8, strategy=zlib.Z_DEFAULT_STRATEGY)
KNOWN = (
    *(Packing(level=level, memory=8, strategy=0) for level in (6, 9, 1, 5, 7, 8, 4, 3, 2)),
    *(Packing(level=level, memory=9, strategy=0) for level in (6, 9, 1, 5, 7, 8, 4, 3, 2)),
    *(Packing(level=level, memory=8, strategy=zlib.Z_FILTERED) for level in (6, 9)),
    Packing(level=0, memory=8, strategy=0),
)


class InflateError(Exception):
    """Packed data is damaged, or is more or less than it should be."""


def inflated(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield the content of packed data in pieces of at most `PIECE`; never more than `size` bytes.

    Raises:
        InflateError: when the data does not end where it should, or its content has another size.
    """
    decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
    left = size
    for packed in pieces:
        if decompressor.eof:
            raise InflateError
        try:
            while piece := decompressor.decompress(packed, PIECE):
                left -= len(piece)
                if left < 0:
                    raise InflateError
                yield piece
                packed = decompressor.unconsumed_tail
        except zlib.error as error:
            raise InflateError from error
    if left or not decompressor.eof or decompressor.unused_data:
        raise InflateError


def deflated(pieces: Iterable[bytes], packing: Packing) -> Iterator[bytes]:
    """Yield content packed as this machine's zlib does it."""
    compressor = _compressor(packing)
    for piece in pieces:
        if packed := compressor.compress(piece):
            yield packed
    yield compressor.flush()


def makes(pieces: Iterable[bytes], packing: Packing, length: int, packed: Callable[[int, int], bytes]) -> bool:
    """Say whether packing some content makes exactly the `length` bytes that `packed` reads by offset and count."""
    at = 0
    for made in deflated(pieces, packing):
        if made != packed(at, min(len(made), length - at)):
            return False
        at += len(made)
    return at == length


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The beginning of a content and of its packed data."""

    content: bytes
    packed: bytes
    whole: bool
    """Nothing follows."""


def sample(packed: bytes, most: int) -> Sample:
    """Return what the beginning of packed data holds, at most so many bytes of it."""
    decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        content = decompressor.decompress(packed, most)
    except zlib.error:
        content = b""
    return Sample(content=content, packed=packed, whole=decompressor.eof)


def seen(samples: Sequence[Sample]) -> tuple[Packing, ...]:
    """Return the parameters worth a try for an archive: the stock ones, and others for samples those do not fit."""
    found = [STOCK]
    left = [one for one in samples if not _fits(STOCK, one)]
    for packing in KNOWN:
        rest = [one for one in left if not _fits(packing, one)]
        if len(rest) < len(left):
            found.append(packing)
        left = rest
    return tuple(found)


def _fits(packing: Packing, one: Sample) -> bool:
    made = b"".join(deflated((one.content,), packing)) if one.whole else _begun(packing, one.content)
    return bool(made) and one.packed.startswith(made)


def _begun(packing: Packing, content: bytes) -> bytes:
    """Pack without an end, so that all that comes out is what more content would not change."""
    return _compressor(packing).compress(content)


def _compressor(packing: Packing) -> zlib._Compress:
    return zlib.compressobj(packing.level, zlib.DEFLATED, -zlib.MAX_WBITS, packing.memory, packing.strategy)
