"""What the locked wheels need of a machine, read from the store and a built env; nothing is written.

Members of a wheel are inflated into memory one at a time, and only so many bytes of all; what lies in a built env of
the same lock is read there, a few kilobytes of each file.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO

from envsmith.commands.envs import env_root
from envsmith.commands.workspace import Workspace
from envsmith.errors import EnvsmithError
from envsmith.lock import Lock, Wheel
from envsmith.native import LIBRARY_NAME, NativeFile
from envsmith.tools.elf import ElfRead, read_elf
from envsmith.tools.store import Store, open_store

#: The largest library that is inflated; libtorch_cuda.so is ten times that and is read in a built env or not at all.
MEMBER_BYTES = 128 << 20
#: Bytes that are inflated for one env, at about 250 MB/s.
BUDGET_BYTES = 384 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What the wheels of one lock say of themselves."""

    native: Mapping[str, tuple[NativeFile, ...]] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    """Wheels of which some library was not read."""
    unpacked: Mapping[str, int] = field(default_factory=dict)
    stored: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Library:
    wheel: Wheel
    blob: Path
    member: zipfile.ZipInfo
    installed: Path | None


def needs_of(workspace: Workspace, env: str, lock: Lock | None, environ: Mapping[str, str]) -> Needs:
    """Read what is here: first wheels that were built or patched, whose tags promise nothing, then small files."""
    if lock is None:
        return Needs()
    store = open_store(environ)
    site = _site(workspace, env, lock, environ)
    libraries: list[_Library] = []
    unpacked: dict[str, int] = {}
    stored = {wheel.sha256 for wheel in lock.wheels if _has(store, wheel)}
    for wheel in lock.wheels:
        if wheel.sha256 in stored:
            blob = store.blob_path(wheel.sha256)
            members = _members(blob)
            if members:
                unpacked[wheel.filename] = sum(member.file_size for member in members)
            libraries += [
                _Library(wheel=wheel, blob=blob, member=member, installed=_installed(site, member))
                for member in members
                if LIBRARY_NAME.search(member.filename)
            ]
    made = {built.filename for built in lock.built} | {patched.filename for patched in lock.patched}
    libraries.sort(
        key=lambda one: (
            one.installed is None,
            one.wheel.filename not in made and "manylinux" in one.wheel.filename,
            one.member.file_size,
        )
    )
    native: dict[str, list[NativeFile]] = {}
    unread: set[str] = set()
    budget = BUDGET_BYTES
    for one in libraries:
        if one.installed is None:
            if one.member.file_size > min(MEMBER_BYTES, budget):
                unread.add(one.wheel.filename)
                continue
            budget -= one.member.file_size
        read = _read(one)
        if read is not None and not read.elf.damaged:
            native.setdefault(one.wheel.filename, []).append(_file(one, read))
        if read is None or read.elf.damaged or not read.device_complete:
            unread.add(one.wheel.filename)
    return Needs(
        native={name: tuple(files) for name, files in native.items()},
        unread=frozenset(unread),
        unpacked=unpacked,
        stored=frozenset(stored),
    )


def _has(store: Store, wheel: Wheel) -> bool:
    try:
        return store.has(wheel.sha256, wheel.size)
    except EnvsmithError:  # a store that cannot be read says nothing
        return False


def _members(blob: Path) -> tuple[zipfile.ZipInfo, ...]:
    try:
        with zipfile.ZipFile(blob) as archive:
            return tuple(info for info in archive.infolist() if not info.is_dir())
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError):  # a build says what is wrong with it
        return ()


def _site(workspace: Workspace, env: str, lock: Lock, environ: Mapping[str, str]) -> Path | None:
    """Folder of packages of the built env."""
    current = env_root(None, environ) / f"{workspace.stack.stack.name}-{env}" / "current"
    site = current / "lib" / f"python{lock.target.python_minor}" / "site-packages"
    return site if site.is_dir() else None


def _installed(site: Path | None, member: zipfile.ZipInfo) -> Path | None:
    """The member as it was installed, when it is of the same size."""
    path = site / member.filename if site and ".." not in PurePosixPath(member.filename).parts else None
    try:
        return path if path and path.is_file() and path.stat().st_size == member.file_size else None
    except OSError:
        return None


def _read(library: _Library) -> ElfRead | None:
    if library.installed is not None:
        return read_elf(library.installed)
    if not hasattr(os, "memfd_create"):  # only Linux has it
        return None
    descriptor = os.memfd_create("envsmith-library", os.MFD_CLOEXEC)
    try:
        with zipfile.ZipFile(library.blob) as archive, archive.open(library.member) as stream:
            for chunk in _chunks(stream, library.member.file_size):
                os.write(descriptor, chunk)
        return read_elf(f"/proc/self/fd/{descriptor}")
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError):
        return None
    finally:
        os.close(descriptor)


def _chunks(stream: IO[bytes], size: int) -> Iterator[bytes]:
    """The content, no more of it than the directory of the archive says."""
    while size > 0 and (chunk := stream.read(min(size, 1 << 20))):
        size -= len(chunk)
        yield chunk


def _file(library: _Library, read: ElfRead) -> NativeFile:
    return NativeFile(
        path=library.member.filename,
        size=library.member.file_size,
        elf=read.elf,
        device=read.device,
        device_complete=read.device_complete,
    )
