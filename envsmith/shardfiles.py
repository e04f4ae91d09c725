"""What the bytes of one shard say about it: whether it is whole, how many ranks wrote, which files it names.

It judges the few bytes that whoever reads the file hands in, runs no pickle, and never raises over bad bytes.
"""

from __future__ import annotations

import json
import pickletools
import re
from math import prod
from typing import Any, Final

#: The first bytes of a zip member, and of the record that ends an archive (APPNOTE.TXT 6.3.10, 4.3.7 and 4.3.16).
_MEMBER, _END, _END64_LOCATOR = b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x07"
_END_BYTES: Final = 22
#: A comment behind the end record has at most 65,535 bytes, so the record begins in this last part of the file.
TAIL_BYTES: Final = _END_BYTES + 65_535
#: The header's length stands in the first 8 bytes; the format allows no longer header than this (safetensors,
#: `MAX_HEADER_SIZE` of src/tensor.rs 0.6, read 2026-11-30).
LENGTH_BYTES: Final = 8
HEADER_BYTES: Final = 100_000_000
#: Bits of an element (safetensors, `Dtype` of src/tensor.rs 0.6, read 2026-11-30).
_BITS: Final = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
#: The most ranks that anybody's number is believed to count.
_MOST_RANKS: Final = 1 << 40
_NUMBERS: Final = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4")
#: In pickles of torch's distributed checkpoint: `__RANK_NUMBER.distcp` (torch 2.10, filesystem.py, read 2026-11-30).
_DISTCP: Final = re.compile(rb"__[0-9]+_[0-9]+\.distcp")


def header_length(first: bytes) -> int | None:
    """The length of a safetensors header from the first 8 bytes; None where they cannot be such a length."""
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    return length if len(first) >= LENGTH_BYTES and 2 <= length <= HEADER_BYTES else None


def fault_of_safetensors(first: bytes, header: bytes, size: int) -> str | None:
    """Say what is wrong with a safetensors file of `size` bytes, or None.

    It proves that the tensors the header names fill the file without a gap, each with the bytes that its shape needs;
    it misses wrong bytes inside tensors.
    """
    length = header_length(first)
    if length is None:
        return "its first 8 bytes are no length of a header"
    if LENGTH_BYTES + length > size or len(header) < length:
        return f"its header ends at byte {LENGTH_BYTES + length:,}, the file at {size:,}"
    try:
        tensors = json.loads(header[:length])
        spans = [_span(one) for name, one in tensors.items() if name != "__metadata__"]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return "its header is no table of tensors"
    end = 0
    for start, stop, needed in sorted(spans, key=lambda span: span[:2]):
        if start != end:
            return (
                f"its header leaves a gap, or lets tensors lie in each other, at byte {LENGTH_BYTES + length + end:,}"
            )
        if needed is not None and needed != stop - start:
            return f"its header gives a tensor {stop - start:,} bytes that needs {needed:,}"
        end = stop
    end += LENGTH_BYTES + length
    return None if end == size else f"its tensors end at byte {end:,}, the file at {size:,}"


def _span(tensor: Any) -> tuple[int, int, int | None]:
    """Where a tensor begins and ends, and how many bytes it needs, None for a type that is not known."""
    start, stop = tensor["data_offsets"]
    shape, bits = tensor["shape"], _BITS.get(tensor["dtype"])
    if any(type(n) is not int or not 0 <= n < 1 << 63 for n in (start, stop, *shape)) or stop < start:
        raise ValueError(tensor)
    return start, stop, None if bits is None else (prod(shape) * bits + 7) // 8


def is_zip(first: bytes) -> bool:
    """Whether a file begins as a zip archive does, as `torch.save` has written them since 1.6."""
    return first.startswith(_MEMBER)


def fault_of_zip(tail: bytes, size: int) -> str | None:
    """Say what is wrong with the end of a zip archive of `size` bytes, or None; `tail` is its last part.

    It proves that the directory at the end is there, which is written last; it misses wrong bytes inside members.
    """
    at = tail.rfind(_END)
    while at >= 0:
        record = tail[at : at + _END_BYTES]
        if len(record) == _END_BYTES and at + _END_BYTES + int.from_bytes(record[20:22], "little") == len(tail):
            return _fault_of_directory(record, size, has_64=_END64_LOCATOR in tail[:at])
        at = tail.rfind(_END, 0, at)
    return "the directory at its end is missing: it was broken off while it was written"


def _fault_of_directory(record: bytes, size: int, *, has_64: bool) -> str | None:
    length, start = int.from_bytes(record[12:16], "little"), int.from_bytes(record[16:20], "little")
    if 0xFFFFFFFF in (length, start):
        return None if has_64 else "the record that an archive of its size needs is missing"
    return None if start + length <= size else "the directory at its end lies outside the file"


def fault_of_torch(first: bytes) -> str | None:
    """Say what is wrong with the beginning of a file of `torch.save`, or None: a file system may leave only zeros."""
    return "it begins with zeros, as a file whose bytes never reached the disk" if first and not any(first) else None


def fault_of_gguf(first: bytes) -> str | None:
    """Say what is wrong with the beginning of a GGUF file, or None (ggml, docs/gguf.md, read 2026-11-30)."""
    return None if first.startswith((b"GGUF", b"FUGG")) else "its first bytes are not those of a GGUF file"


def fault_of_metadata(last: bytes) -> str | None:
    """Say what is wrong with the end of `.metadata`, a pickle, which ends with the opcode STOP, or None."""
    return None if last.endswith(b".") else "it is a pickle without its end"


def files_of_metadata(pickle: bytes) -> frozenset[str]:
    """Names of the files that `.metadata` of a distributed checkpoint of torch refers to."""
    return frozenset(name.decode() for name in _DISTCP.findall(pickle))


def whole_number(pickle: bytes, key: str) -> int | None:
    """The number that a pickle holds under a key, found without running it; None where it is not seen.

    DeepSpeed writes `dp_world_size` into its model states (0.18.4, runtime/engine.py, read 2026-11-30).
    """
    was_key = False
    try:
        for opcode, argument, _ in pickletools.genops(pickle):
            if opcode.name in ("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"):
                continue
            if was_key and opcode.name in _NUMBERS and isinstance(argument, int):
                return argument if 0 <= argument <= _MOST_RANKS else None
            was_key = argument == key
    except (ValueError, IndexError, OverflowError, UnicodeDecodeError):
        return None
    return None
