"""Unpack source distributions: nothing lands outside the folder, and nothing but files, folders and inner links."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from envsmith.errors import InputError, IntegrityError, Problem

_CHUNK = 1 << 20
_LINK = 0o120000


@dataclass(frozen=True, kw_only=True, slots=True)
class _Member:
    path: str
    """As in the archive, without a trailing slash."""
    kind: str
    """`file`, `folder`, `link`, `copy` (a hard link) or what else it claims to be."""
    executable: bool
    target: str
    """Of a link: relative to its folder; of a copy: a path in the archive."""
    open: Callable[[], IO[bytes]]


def unpack_sdist(archive: Path, dest: Path) -> None:
    """Unpack a `.tar.gz` or `.zip` into the new folder `dest`, without the top folder that an sdist has.

    Files become 0644 or 0755; contents are not touched. Everything that is unsafe is said at once, before a byte is
    written.

    Raises:
        InputError: `work-exists`.
        IntegrityError: `sdist-malformed` or `sdist-unsafe-member`.
    """
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise InputError(Problem(code="work-exists", message=f"`{dest}` is already there", where=str(dest)))
    with _members(archive) as members:
        top = _top(members, archive)
        inner = {m.path.partition("/")[2]: m for m in members if m.path != top}
        problems = [
            Problem(code="sdist-unsafe-member", message=f"member `{m.path}` {reason}", where=str(archive))
            for m in members
            if (reason := _unsafe(m, inner, top))
        ]
        if len(inner) + sum(m.path == top for m in members) < len(members):
            problems.append(Problem(code="sdist-malformed", message="a member appears twice", where=str(archive)))
        if problems:
            raise IntegrityError(*problems)
        dest.mkdir(parents=True, exist_ok=True)
        for path, member in inner.items():
            _write(dest / path, member, inner, top)


def _unsafe(member: _Member, inner: dict[str, _Member], top: str) -> str | None:
    parts = member.path.split("/")
    if member.path.startswith("/") or ".." in parts or "" in parts:
        return "leaves the archive's folder"
    if "\\" in member.path or any(ord(c) < 32 for c in member.path):
        return "has a backslash or a control character in its path"
    if any(part.casefold() == ".git" for part in parts):
        return "is inside a git folder"
    parents = (str(parent) for parent in PurePosixPath(member.path.partition("/")[2]).parents)
    if any(parent in inner and inner[parent].kind != "folder" for parent in parents):
        return "lies below something that is not a folder"
    if member.kind == "link" and not _stays_inside(member, inner):
        return f"is a link to `{member.target}`, outside the archive's folder"
    if member.kind == "copy" and not _names_a_file(member.target, inner, top):
        return f"is a hard link to `{member.target}`, which is no file of the archive"
    return None if member.kind in ("file", "folder", "link", "copy") else f"is a {member.kind}"


def _stays_inside(member: _Member, inner: dict[str, _Member]) -> bool:
    """Follow a link's words below the top folder; a way through another link is refused, its end cannot be told."""
    at = member.path.split("/")[1:-1]
    if member.target.startswith("/") or not member.target:
        return False
    for part in member.target.split("/"):
        if "/".join(at) in inner and inner["/".join(at)].kind == "link":
            return False
        if part == ".." and not at:
            return False
        if part == "..":
            at.pop()
        elif part not in ("", "."):
            at.append(part)
    return True


def _names_a_file(target: str, inner: dict[str, _Member], top: str) -> bool:
    inside = inner.get(target.removeprefix(f"{top}/"))
    return target.startswith(f"{top}/") and inside is not None and inside.kind == "file"


def _top(members: Iterable[_Member], archive: Path) -> str:
    tops = {member.path.partition("/")[0] for member in members}
    top = next(iter(tops)) if len(tops) == 1 else ""
    if top in ("", ".", ".."):
        message = f"an sdist holds one folder, this has {len(tops)} entries at the top"
        raise IntegrityError(Problem(code="sdist-malformed", message=message, where=str(archive)))
    return top


def _write(target: Path, member: _Member, inner: dict[str, _Member], top: str) -> None:
    if member.kind == "folder":
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if member.kind == "link":
        target.symlink_to(member.target)
        return
    source = inner[member.target.removeprefix(f"{top}/")] if member.kind == "copy" else member
    with source.open() as stream, target.open("xb") as out:
        while chunk := stream.read(_CHUNK):
            out.write(chunk)
    target.chmod(0o755 if source.executable else 0o644)


@contextmanager
def _members(archive: Path) -> Iterator[tuple[_Member, ...]]:
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                yield tuple(_from_zip(packed, info) for info in packed.infolist())
        else:
            with tarfile.open(archive, "r:*") as tar:
                yield tuple(_from_tar(tar, info) for info in tar)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        message = f"the archive cannot be read: {error}"
        raise IntegrityError(Problem(code="sdist-malformed", message=message, where=str(archive))) from error


def _from_tar(tar: tarfile.TarFile, info: tarfile.TarInfo) -> _Member:
    kinds = {
        tarfile.REGTYPE: "file",
        tarfile.AREGTYPE: "file",
        tarfile.GNUTYPE_SPARSE: "file",
        tarfile.DIRTYPE: "folder",
        tarfile.SYMTYPE: "link",
        tarfile.LNKTYPE: "copy",
    }

    def opened() -> IO[bytes]:
        stream = tar.extractfile(info)
        assert stream is not None
        return stream

    return _Member(
        path=info.name.removeprefix("./").rstrip("/"),
        kind=kinds.get(info.type, "device, pipe or unknown thing"),
        executable=bool(info.mode & 0o111),
        target=info.linkname.removeprefix("./"),
        open=opened,
    )


def _from_zip(packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> _Member:
    mode = info.external_attr >> 16
    link = mode & 0o170000 == _LINK
    return _Member(
        path=info.orig_filename.removeprefix("./").rstrip("/"),
        kind="link" if link else "folder" if info.is_dir() else "file",
        executable=bool(mode & 0o111),
        target=packed.read(info).decode("utf-8", "surrogateescape") if link else "",
        open=lambda: packed.open(info),
    )
