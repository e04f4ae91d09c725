"""Unpacks an archive of an interpreter without trusting it: nothing is written outside, all of it appears at once."""

from __future__ import annotations

import contextlib
import lzma
import os
import posixpath
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from envsmith.errors import IntegrityError, Problem, SupplyError
from envsmith.tools.files import CHUNK, filesystem, fsync_folder, remove_tree, sha256_file
from envsmith.tools.pythonpack import minor_below, parents

#: A file in the unpacked folder that says which archive it came from.
MARK = ".envsmith-archive"
_KINDS = "neither a file, a folder nor a link"


def unpack(archive: Path, dest: Path) -> Path:
    """Unpack an interpreter into the folder `dest` and return its executable; nothing is done when it is there.

    Raises:
        IntegrityError: `interpreter-archive-malformed` or `interpreter-archive-unsafe`.
        SupplyError: `file-in-the-way` when `dest` holds something else, or what `filesystem` raises.
    """
    sha256 = sha256_file(archive)
    if not _is_there(dest, sha256):
        with filesystem(dest):
            dest.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=".envsmith-python-", dir=dest.parent))
        try:
            unpack_members(archive, scratch)
            _executable(scratch, archive)
            with filesystem(dest):
                (scratch / MARK).write_text(f"{sha256}\n")
                scratch.chmod(0o755)
                with contextlib.suppress(FileExistsError):
                    _rename(scratch, dest)
                fsync_folder(dest.parent)
        finally:
            remove_tree(scratch)
        if not _is_there(dest, sha256):
            message = f"`{dest}` is there and was not unpacked from this archive"
            hint = "remove it, or choose another place"
            raise SupplyError(Problem(code="file-in-the-way", message=message, where=str(archive), hint=hint))
    return _executable(dest, archive)


def unpack_members(archive: Path, folder: Path) -> None:
    """Unpack a tar, compressed or not, into an empty folder, after looking at all of its names.

    Raises:
        IntegrityError: as `unpack`.
    """
    with filesystem(folder), _opened(archive) as tar:
        members = tar.getmembers()
        while tar.fileobj and tar.fileobj.read(CHUNK):
            pass  # to the end, where a compressed file has its check sum
        _check(members, archive)
        for member in members:
            if member.isdir():
                (folder / member.name).mkdir(parents=True, exist_ok=True)
        for member in (one for one in members if one.isreg() or one.islnk()):
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            content = tar.extractfile(member)
            assert content is not None
            with content, path.open("xb") as stream:
                shutil.copyfileobj(content, stream)
            path.chmod(0o755 if member.mode & 0o111 else 0o644)
            os.utime(path, (member.mtime, member.mtime))
        for member in (one for one in members if one.issym()):  # last: nothing is written through one
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(member.linkname)


@contextlib.contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(archive) as tar:
            yield tar
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, KeyError, UnicodeError, OverflowError) as error:
        raise _malformed(archive, str(error) or type(error).__name__) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise _malformed(archive, str(error)) from error  # what gzip and bz2 say of broken data


def _malformed(archive: Path, said: str) -> IntegrityError:
    return IntegrityError(
        Problem(
            code="interpreter-archive-malformed",
            message=f"this archive of an interpreter cannot be used: {said}",
            where=str(archive),
            hint="fetch or pack it again",
        )
    )


def _check(members: list[tarfile.TarInfo], archive: Path) -> None:
    """Refuse names and links that would reach outside or stand for two things; all of them at once."""
    kinds: dict[str, tarfile.TarInfo] = {}
    problems = []
    for member in members:
        member.name = posixpath.normpath(member.name) if _is_plain(member.name) else member.name
        fault = _fault(member)
        if fault is None and member.name in kinds and not (member.isdir() and kinds[member.name].isdir()):
            fault = "is there twice"
        kinds.setdefault(member.name, member)
        if fault:
            problems.append((member.name, fault))
    for name in kinds:
        problems += [
            (name, f"lies below `{above}`, which is no folder")
            for above in parents(name)
            if above in kinds and not kinds[above].isdir()
        ]
    problems += [(one.name, "links to what is no file in it") for one in members if _leads_nowhere(one, kinds)]
    if problems:
        where = str(archive)
        raise IntegrityError(
            *(
                Problem(code="interpreter-archive-unsafe", message=f"member `{name}` {said}", where=where)
                for name, said in problems[:20]
            )
        )


def _is_plain(name: str) -> bool:
    return not name.startswith("/") and ".." not in name.split("/")


def _fault(member: tarfile.TarInfo) -> str | None:
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        return f"is {_KINDS}"
    if not _is_plain(member.name):
        return "would lie outside"
    if not member.name.isprintable() or "\\" in member.name:
        return "has a control character or a backslash in its name"
    if member.issym():
        target = posixpath.normpath(posixpath.join(posixpath.dirname(member.name), member.linkname))
        # A `..` behind a name could be taken behind another link, and lead out.
        down = member.linkname.split("/")[member.linkname.count("../") :]
        if member.linkname.startswith("/") or target.split("/")[0] == ".." or ".." in down[:-1]:
            return f"links to `{member.linkname}`, which would lie outside"
    return None


def _leads_nowhere(member: tarfile.TarInfo, kinds: dict[str, tarfile.TarInfo]) -> bool:
    if not member.islnk():
        return False
    member.linkname = posixpath.normpath(member.linkname)
    return member.linkname not in kinds or not kinds[member.linkname].isreg()


def _executable(folder: Path, archive: Path) -> Path:
    minor = minor_below(folder)
    if minor is None:
        raise _malformed(archive, "there is no `bin/python3.N` with its `lib/python3.N`")
    return folder / "bin" / f"python{minor}"


def _is_there(dest: Path, sha256: str) -> bool:
    try:
        return (dest / MARK).read_text() == f"{sha256}\n"
    except (OSError, UnicodeDecodeError):
        return False


def _rename(scratch: Path, dest: Path) -> None:
    """Give the folder its name; another process that was faster, or something else there, is the caller's to judge."""
    try:
        scratch.rename(dest)
    except (FileExistsError, NotADirectoryError, OSError) as error:
        if not os.path.lexists(dest):
            raise
        raise FileExistsError(str(dest)) from error
