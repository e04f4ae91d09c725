"""Look at every native file of an environment; what was learned of a file is kept by its sha256.

Candidates are files named like libraries and executable files; which of those are ELF their first bytes say.
Only headers are read, never whole files: 9 GB of libraries cost some ten megabytes of reading.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from envsmith.native import (
    FOREIGN,
    LIBRARY_NAME,
    DeviceImage,
    Elf,
    NativeFacts,
    NativeFile,
    OutsideFolder,
    VersionNeed,
    search_folders,
)
from envsmith.observed import Seen
from envsmith.tools.elf import machine_of, read_elf

#: Written into the stored form; another number there means that this module has learned to see more.
SCHEMA = 1
#: Names listed of one folder outside of the environment.
MAX_NAMES = 20_000
#: On a cold disk each header waits for its own block, so many wait together; with all in memory it makes no difference.
READERS = 8
#: Folders outside that are looked at; environments are known with two.
MAX_FOLDERS = 500
_MAX_SOURCE_BYTES = 1 << 20
_MACH_O = (b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"\xca\xfe\xba\xbf")
_PRELOAD_ROW = re.compile(r'\("\w+", "(lib\w+)\.so\.')
_PRELOAD_CALL = re.compile(r'_preload_cuda_(?:deps|lib)\("\w+", "(lib\w+)\.so\.')


def scan_native(
    root: Path,
    files: Sequence[Seen],
    *,
    digests: Mapping[str, str] | None = None,
    known: Mapping[str, NativeFile] | None = None,
) -> NativeFacts:
    """Read what the native files among `files` say.

    `digests` are sha256 by path, where known; a file whose row in `known` has that very digest is not opened.
    """
    digests, known = digests or {}, known or {}
    candidates = [seen for seen in files if seen.kind == "file" and (_is_library(seen) or seen.mode & 0o111)]
    found, unknown = [], []
    for seen in candidates:
        row = known.get(seen.path)
        if row is not None and row.sha256 is not None and (row.sha256, row.size) == (digests.get(seen.path), seen.size):
            found.append(row)
        else:
            unknown.append(seen)
    unknown.sort(key=lambda seen: -seen.size)  # the largest alone would otherwise end last
    with ThreadPoolExecutor(max_workers=READERS) as pool:
        found += [
            file for file in pool.map(lambda seen: _looked_at(root, seen, digests.get(seen.path)), unknown) if file
        ]
    real = os.path.realpath(root)
    return NativeFacts(
        root=real,
        machine=machine_of(f"{real}/bin/python"),
        files=tuple(sorted(found, key=lambda file: file.path)),
        links=_links(real, files),
        outside=tuple(_outside(real, found)),
        preloaded=_preloaded(real, files),
    )


def _is_library(seen: Seen) -> bool:
    return LIBRARY_NAME.search(seen.path) is not None


def _looked_at(root: Path, seen: Seen, sha256: str | None) -> NativeFile | None:
    read = read_elf(f"{root}/{seen.path}")
    if not _is_library(seen) and (read is None or read.elf.damaged):
        return None  # a script, an object file: the family `files` holds it against the manifest
    if read is None:
        if _is_linker_script(root, seen):
            return None
        why = "it is empty" if not seen.size else FOREIGN if _is_foreign(root, seen) else "it is no ELF file"
        return _damaged(seen, sha256, why)
    return NativeFile(
        path=seen.path,
        size=seen.size,
        sha256=sha256,
        elf=read.elf,
        device=read.device,
        device_complete=read.device_complete,
    )


def _damaged(seen: Seen, sha256: str | None, why: str) -> NativeFile:
    return NativeFile(path=seen.path, size=seen.size, sha256=sha256, elf=Elf(damaged=why))


def _is_foreign(root: Path, seen: Seen) -> bool:
    """Source of the first bytes: mach-o/loader.h, mach-o/fat.h and the PE format (read 2026-11-30)."""
    try:
        with (root / seen.path).open("rb") as stream:
            head = stream.read(4)
    except OSError:
        return False
    return head in _MACH_O or head[:2] == b"MZ"


def _is_linker_script(root: Path, seen: Seen) -> bool:
    """Development files of toolchains are named `.so` and hold a few words for the linker."""
    if not 0 < seen.size <= 4096:
        return False
    try:
        text = (root / seen.path).read_bytes()
    except OSError:
        return False
    return any(word in text for word in (b"INPUT(", b"INPUT (", b"GROUP(", b"GROUP ("))


def _links(root: str, files: Iterable[Seen]) -> dict[str, str | None]:
    """Follow links to libraries and folders; a link to another kind of file is of no interest here."""
    found: dict[str, str | None] = {}
    for seen in files:
        if seen.kind != "link":
            continue
        path = f"{root}/{seen.path}"
        real = os.path.realpath(path)
        if not (_is_library(seen) or os.path.isdir(real)):  # noqa: PTH112
            continue
        inside = real[len(root) + 1 :] if real.startswith(f"{root}/") else real
        found[seen.path] = inside if os.path.exists(real) else None  # noqa: PTH110
    return found


def _outside(root: str, files: Iterable[NativeFile]) -> Iterator[OutsideFolder]:
    folders = {
        folder
        for file in files
        for path in (file.elf.own_rpath, file.elf.runpath)
        for folder in search_folders(path, file.folder, root)
        if folder.startswith("/")
    }
    trusted = {0, os.geteuid(), _owner(root)}
    for folder in sorted(folders)[:MAX_FOLDERS]:
        names = library_names(folder)
        yield OutsideFolder(
            path=folder,
            exists=names is not None,
            names=names or frozenset(),
            writable_by=_writable_by(folder, trusted),
        )


def _preloaded(root: str, files: Iterable[Seen]) -> frozenset[str]:
    """Read which CUDA libraries torch opens by full path while it is imported, from its own words.

    Source: torch/__init__.py of 2.10.0, `_load_global_deps`: it calls `_preload_cuda_deps()`, which walks a list of
    `("nvjitlink", "libnvJitLink.so.*[0-9]")`; others call `_preload_cuda_lib` or `_preload_cuda_deps` with such a pair,
    or walk the list only after a failure (read 2026-11-30).
    """
    found: set[str] = set()
    for seen in files:
        if seen.kind != "file" or not seen.path.endswith("/site-packages/torch/__init__.py"):
            continue
        try:
            with open(f"{root}/{seen.path}", "rb") as stream:  # noqa: PTH123
                text = stream.read(_MAX_SOURCE_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        found.update(_PRELOAD_CALL.findall(text))
        if "_preload_cuda_deps()" in text:
            found.update(_PRELOAD_ROW.findall(text))
    return frozenset(found)


def library_names(folder: str, machine: int | None = None) -> frozenset[str] | None:
    """List the libraries in a folder, of one machine if asked; None when it cannot be listed."""
    found = set()
    try:
        with os.scandir(folder) as items:
            for n, item in enumerate(items):
                if n >= MAX_NAMES:
                    break
                if LIBRARY_NAME.search(item.name) and (machine is None or machine_of(item.path) == machine):
                    found.add(item.name)
    except (OSError, ValueError):
        return None
    return frozenset(found)


def _owner(path: str) -> int:
    try:
        return os.stat(path).st_uid  # noqa: PTH116
    except OSError:
        return 0


def _writable_by(folder: str, trusted: set[int]) -> str | None:
    """Say who could put a file there: by the folder, or the nearest one above it that exists. Groups are not judged."""
    place = folder
    while True:
        try:
            info = os.stat(place)  # noqa: PTH116
            break
        except (OSError, ValueError):
            above = os.path.dirname(place)  # noqa: PTH120
            if above == place:
                return None
            place = above
    if not stat.S_ISDIR(info.st_mode):
        return None
    if info.st_mode & 0o002:
        return f"everybody (by the mode of `{place}`)"
    return None if info.st_uid in trusted else f"user {info.st_uid} (owner of `{place}`)"


# --- the stored form ---


def to_json(facts: NativeFacts) -> str:
    """Render what is known of files by content, to be kept beside the stat index; without a digest there is no row."""
    rows = {file.path: _row(file) for file in facts.files if file.sha256}
    return json.dumps({"envsmith-native": SCHEMA, "files": rows}, separators=(",", ":"))


def known_from_json(text: str | bytes) -> dict[str, NativeFile]:
    """Read rows back; what is malformed or of another schema is left out, which costs time and nothing else."""
    try:
        data = json.loads(text)
        rows = data["files"].items() if data["envsmith-native"] == SCHEMA else ()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
    found = {}
    for path, row in rows:
        try:
            found[path] = _file(path, row)
        except (ValueError, TypeError, KeyError, AttributeError):
            continue
    return found


def _row(file: NativeFile) -> dict[str, object]:
    elf = file.elf
    row: dict[str, object] = {
        "sha256": file.sha256,
        "size": file.size,
        "machine": elf.machine,
        "bits": elf.bits,
        "soname": elf.soname,
        "needed": elf.needed,
        "rpath": elf.rpath,
        "runpath": elf.runpath,
        "interp": elf.interp,
        "needs": elf.needs,
        "defines": elf.defines,
        "damaged": elf.damaged,
        "device": file.device,
        "device-complete": file.device_complete,
    }
    return {key: value for key, value in row.items() if value is not None and value != ()}


def _file(path: str, row: Mapping[str, object]) -> NativeFile:
    elf = Elf(
        machine=_number(row["machine"]),
        bits=_number(row["bits"]),
        soname=_text_or_none(row.get("soname")),
        needed=tuple(map(_text, _rows(row.get("needed")))),
        rpath=_text_or_none(row.get("rpath")),
        runpath=_text_or_none(row.get("runpath")),
        interp=_text_or_none(row.get("interp")),
        needs=tuple(VersionNeed(_text(a), _text(b), bool(c)) for a, b, c in _rows(row.get("needs"))),
        defines=tuple(map(_text, _rows(row.get("defines")))),
        damaged=_text_or_none(row.get("damaged")),
    )
    return NativeFile(
        path=_text(path),
        size=_number(row["size"]),
        sha256=_text(row["sha256"]),
        elf=elf,
        device=tuple(DeviceImage(_text(a), _text(b), _number(c)) for a, b, c in _rows(row.get("device"))),
        device_complete=row["device-complete"] is True,
    )


def _rows(value: object) -> list[list[object]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise TypeError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)


def _number(value: object) -> int:
    if type(value) is not int:
        raise TypeError
    return value
