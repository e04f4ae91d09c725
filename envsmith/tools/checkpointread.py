"""Reads the few bytes that say whether shards are whole; opens nothing but files, and runs no pickle."""

from __future__ import annotations

import lzma
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from envsmith.shardfiles import (
    LENGTH_BYTES,
    TAIL_BYTES,
    fault_of_gguf,
    fault_of_metadata,
    fault_of_safetensors,
    fault_of_torch,
    fault_of_zip,
    files_of_metadata,
    header_length,
    is_zip,
    whole_number,
)
from envsmith.shards import METADATA, Checkpoint, is_index, is_model_states, is_pointer
from envsmith.tools.checkpointscan import Source
from envsmith.tools.files import filesystem, open_plain, read_plain

#: An index of the largest models has a few megabytes; what is larger than this is none.
_MOST_TEXT_BYTES = 64 << 20
_MOST_POINTER_BYTES = 4096
_ZIPPED = (".pt", ".pth", ".bin", ".ckpt")
#: Files that only torch.save writes, as an archive or, before torch 1.6, as a pickle (protocol 2 and later).
_SHARD = re.compile(r"(?:model|optim|extra_state)_world_size_|(?:bf16_|fp16_)?zero_pp_rank_|mp_rank_|rng_state_\d")
_TORCH_BIN = re.compile(r"(?:pytorch_model|diffusion_pytorch_model|adapter_model|optimizer|scheduler|training_args)\b")
_PICKLE = b"\x80"
_FIRST_BYTES = 512
_PIECE_BYTES, _OVERLAP_BYTES = 1 << 20, 256
#: What reading an archive of any bytes may raise.
_BAD_ARCHIVE = (
    StopIteration,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    NotImplementedError,
    RuntimeError,
    ValueError,
    OverflowError,
    KeyError,
    EOFError,
)


def read_checkpoint(source: Source) -> Checkpoint:
    """Read what `envsmith.shards` judges by: indexes, headers and ends, a few kilobytes a file.

    Raises:
        SupplyError: what `filesystem` raises.
    """
    seen = _Seen(source.base)
    sizes = {file.path: file.size for file in source.files}
    for path in source.links:  # a link stays inside the source, so its target is a shard as others are
        if (source.base / path).is_file():
            sizes[path] = (source.base / path).stat().st_size
    for path, size in sizes.items():
        with filesystem(source.base / path):
            seen.look(path, size)
    folders = {*source.folders, *(path for path in source.links if (source.base / path).is_dir())}
    return Checkpoint(
        sizes=sizes,
        folders=frozenset(folders),
        texts=seen.texts,
        faults=seen.faults,
        named=seen.named,
        worlds=seen.worlds,
    )


class _Seen:
    """What was read of the files of a source."""

    def __init__(self, base: Path) -> None:
        self.texts: dict[str, str] = {}
        self.faults: dict[str, str] = {}
        self.worlds: dict[str, int] = {}
        self.named: dict[str, frozenset[str]] = {}
        self._base = base

    def look(self, path: str, size: int) -> None:
        """Read what the name of a file says is worth it."""
        place = self._base / path
        if is_index(path):  # one that is too large is none
            self.texts[path] = _read_text(place) if size <= _MOST_TEXT_BYTES else ""
        elif is_pointer(path) and size <= _MOST_POINTER_BYTES:
            self.texts[path] = _read_text(place)
        elif (fault := _fault(place, size)) is not None:
            self.faults[path] = fault
        elif place.name == METADATA:
            self.named[path] = _named(place)
        elif is_model_states(path) and (world := _world(place)) is not None:
            self.worlds[path] = world


def _read_text(path: Path) -> str:
    """Read a small file, whatever its bytes are."""
    return read_plain(path, follow=True).decode(errors="replace")


def _opened(path: Path) -> BinaryIO:
    return os.fdopen(open_plain(path, follow=True), "rb")


def _named(path: Path) -> frozenset[str]:
    """The files that `.metadata` names, read in pieces that overlap by more than such a name."""
    found: frozenset[str] = frozenset()
    rest = b""
    with _opened(path) as stream:
        while chunk := stream.read(_PIECE_BYTES):
            found |= files_of_metadata(rest + chunk)
            rest = (rest + chunk)[-_OVERLAP_BYTES:]
    return found


def _fault(path: Path, size: int) -> str | None:
    judge: Callable[[BinaryIO, Path, int], str | None]
    if path.suffix == ".safetensors":
        judge = _safetensors_fault
    elif path.suffix in _ZIPPED:
        judge = _zip_fault
    elif path.suffix == ".gguf":
        judge = _gguf_fault
    elif path.name == METADATA:
        judge = _metadata_fault
    else:
        return None
    if not size:
        return None
    with _opened(path) as stream:
        return judge(stream, path, size)


def _safetensors_fault(stream: BinaryIO, _: Path, size: int) -> str | None:
    first = stream.read(LENGTH_BYTES)
    return fault_of_safetensors(first, stream.read(min(header_length(first) or 0, size)), size)


def _gguf_fault(stream: BinaryIO, _: Path, size: int) -> str | None:
    return fault_of_gguf(stream.read(min(size, 4)))


def _metadata_fault(stream: BinaryIO, path: Path, size: int) -> str | None:
    if not any(one.name.endswith(".distcp") for one in path.parent.iterdir()):
        return None  # of another program
    stream.seek(size - 1)
    return fault_of_metadata(stream.read(1))


def _zip_fault(stream: BinaryIO, path: Path, size: int) -> str | None:
    first = stream.read(_FIRST_BYTES)
    if not is_zip(first):
        is_shard = _SHARD.match(path.name)
        if is_shard and not first.startswith(_PICKLE):
            return "it begins as no file that torch.save writes"
        # What is called `.bin` is the work of torch.save only under these names.
        return fault_of_torch(first) if path.suffix != ".bin" or _TORCH_BIN.match(path.name) else None
    stream.seek(max(0, size - TAIL_BYTES))
    return fault_of_zip(stream.read(TAIL_BYTES), size)


def _world(path: Path) -> int | None:
    """The world size in the pickle of a file of `torch.save`; None where nobody can tell."""
    try:
        with _opened(path) as stream, zipfile.ZipFile(stream) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            if archive.getinfo(name).file_size > _MOST_TEXT_BYTES:
                return None
            return whole_number(archive.read(name), "dp_world_size")
    except _BAD_ARCHIVE:
        return None
