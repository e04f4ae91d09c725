"""What the bytes of one shard say about it: whether it is whole, how many ranks wrote, which files it names.

It judges the few bytes that whoever reads the file hands in, runs no pickle, and never raises over bad bytes.
"""

from __future__ import annotations

import json
import pickletools
import re
from typing import Final

#: The first bytes of a zip member, and of the record that ends an archive (APPNOTE.TXT 6.3.10, 4.3.7 and 4.3.16).
_MEMBER, _END, _END64_LOCATOR = b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x07"
_END_BYTES: Final = 22
#: A comment behind the end record has at most 65,535 bytes, so the record begins in this last part of the file.
TAIL_BYTES: Final = _END_BYTES + 65_535
#: The header's length stands in the first 8 bytes; the format allows no longer header than this (safetensors,
#: `MAX_HEADER_SIZE` of src/tensor.rs 0.6, read 2026-11-30).
LENGTH_BYTES: Final = 8
HEADER_BYTES: Final = 100_000_000
_NUMBERS: Final = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4")
#: In pickles of torch's distributed checkpoint: `__RANK_NUMBER.distcp` (torch 2.10, filesystem.py, read 2026-11-30).
_DISTCP: Final = re.compile(rb"__[0-9]+_[0-9]+\.distcp")


def header_length(first: bytes) -> int | None:
    """The length of a safetensors header from the first 8 bytes; None where they cannot be such a length."""
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    return length if len(first) >= LENGTH_BYTES and 2 <= length <= HEADER_BYTES else None


def fault_of_safetensors(first: bytes, header: bytes, size: int) -> str | None:
    """Say what is wrong with a safetensors file of `size` bytes, or None.

    It proves that every tensor the header names lies in the file and that nothing lies behind the last one; it misses
    wrong bytes inside tensors.
    """
    length = header_length(first)
    if length is None:
        return "its first 8 bytes are no length of a header"
    if LENGTH_BYTES + length > size or len(header) < length:
        return f"its header ends at byte {LENGTH_BYTES + length:,}, the file at {size:,}"
    try:
        tensors = json.loads(header[:length])
        ends = [one["data_offsets"][1] for name, one in tensors.items() if name != "__metadata__"]
        end = LENGTH_BYTES + length + max(map(int, ends), default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return "its header is no table of tensors"
    return None if end == size else f"its tensors end at byte {end:,}, the file at {size:,}"


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
                return int(argument)
            was_key = argument == key
    except (ValueError, IndexError, OverflowError, UnicodeDecodeError):
        return None
    return None
