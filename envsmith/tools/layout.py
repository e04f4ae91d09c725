"""Reading bundles: a folder, one tar file, its parts, or a stream, all as named blobs.

Nothing is believed: names are checked before they are used, and whoever reads a blob through `copy_blob` or
`hash_blob` learns that its bytes are what its name says.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from envsmith.bundle import LARGEST_MANIFEST
from envsmith.bundlecheck import LISTING_FILE, SUMS_FILE
from envsmith.bundlekinds import stands_at_root
from envsmith.errors import EnvsmithError, InputError, IntegrityError, Problem, SupplyError
from envsmith.tools.files import chunks, filesystem
from envsmith.tools.spans import JoinedFiles, SourceFile, Span, walk_files
from envsmith.tools.store import Store
from envsmith.tools.ustar import ArchiveError, ArchiveReader, Member

#: The end of the name of a part: three digits, more only where three are too few.
PART = re.compile(r"\.part([0-9]{3}|[1-9][0-9]{3,5})\Z")
_BLOB = re.compile(r"blobs/sha256/([0-9a-f]{64})")
#: Root files are short: the longest, a derived lock or a sheet, has some hundred kilobytes.
_LARGEST_ROOT_FILE = LARGEST_MANIFEST
_LARGEST_ROOT = 16 * _LARGEST_ROOT_FILE
_OF_LAYOUT = ("oci-layout", "index.json")
#: How files begin that a bundle was packed into (RFC 1952, RFC 8878, xz-file-format 1.1.0, read 2026-11-30).
_PACKED = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ\0", "xz"),
    (b"BZh", "bzip2"),
    (b"PK\3\4", "zip"),
)


class Layout(Protocol):
    """A bundle as it lies somewhere."""

    @property
    def where(self) -> str:
        """What messages call it."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Sha256 to size of every blob that is there."""

    @property
    def others(self) -> Mapping[str, int]:
        """Every other file, path to size."""

    def open(self, sha256: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """Open a blob for reading; its content is not checked."""

    def root_file(self, name: str) -> bytes | None:
        """Return a short file at the root, None when it is not there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Folder:
    """A layout in a folder."""

    path: Path
    where: str
    sizes: Mapping[str, int]
    others: Mapping[str, int]

    @contextlib.contextmanager
    def open(self, sha256: str) -> Iterator[BinaryIO]:
        """Open a blob."""
        with SourceFile(self.path / "blobs" / "sha256" / sha256, follow=False) as stream:
            yield cast(BinaryIO, stream)

    def root_file(self, name: str) -> bytes | None:
        """Return a short file at the root."""
        if name not in self.others:
            return None
        with SourceFile(self.path / name, follow=False) as stream:
            return stream.read(_LARGEST_ROOT_FILE + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """A layout in a tar file, or in the parts of one."""

    files: tuple[Path, ...]
    where: str
    sizes: Mapping[str, int]
    others: Mapping[str, int]
    offsets: Mapping[str, int]
    """Path of a member to where its data begins."""

    @contextlib.contextmanager
    def open(self, sha256: str) -> Iterator[BinaryIO]:
        """Open a blob."""
        with JoinedFiles(self.files) as whole:
            whole.seek(self.offsets[f"blobs/sha256/{sha256}"])
            yield cast(BinaryIO, Span(whole, self.sizes[sha256]))

    def root_file(self, name: str) -> bytes | None:
        """Return a short file at the root."""
        if name not in self.others:
            return None
        with JoinedFiles(self.files) as whole, io.BufferedReader(whole) as buffered:
            buffered.seek(self.offsets[name])
            return buffered.read(min(self.others[name], _LARGEST_ROOT_FILE + 1))


@dataclass(frozen=True, kw_only=True, slots=True)
class Spooled:
    """A layout that came through a pipe: its blobs are in a store now, each proven on arrival."""

    store: Store
    where: str
    sizes: Mapping[str, int]
    others: Mapping[str, int]
    root_files: Mapping[str, bytes]
    """The contents of those at the root that a layout or a bundle knows."""

    @contextlib.contextmanager
    def open(self, sha256: str) -> Iterator[BinaryIO]:
        """Open a blob."""
        with SourceFile(self.store.blob_path(sha256)) as stream:
            yield cast(BinaryIO, stream)

    def root_file(self, name: str) -> bytes | None:
        """Return a short file at the root."""
        return self.root_files.get(name)


def open_layout(path: Path, where: str) -> Layout:
    """Open a bundle by its folder, its tar file, or the first of its parts.

    Raises:
        InputError: `bundle-unknown` when nothing like a bundle is there.
        SupplyError: `bundle-part-missing`.
        IntegrityError: `bundle-malformed` when a tar holds what a bundle may not, or ends early.
    """
    with filesystem(path):
        if path.is_dir():
            return _folder(path, where)
        files = bundle_files(path)
    if not files:
        hint = "name the folder, the .tar file, or the first of its parts; `-` reads a tar from a pipe"
        raise InputError(Problem(code="bundle-unknown", message="there is no such bundle", where=where, hint=hint))
    return _archive(files, where)


def bundle_files(path: Path) -> tuple[Path, ...]:
    """Return the file itself, or all parts when it names a split bundle or one of its parts; none when absent.

    Raises:
        SupplyError: `bundle-part-missing` for a gap, and for a part that only the file of their sums names.
    """
    if path.is_file() and not PART.search(path.name):
        return (path,)
    stem = PART.sub("", path.name)
    parts: dict[int, Path] = {}
    if path.parent.is_dir():
        parts = {part_number(one.name, stem): one for one in path.parent.iterdir() if part_number(one.name, stem) >= 0}
    last = max([*parts, *_promised(path.with_name(f"{stem}.SHA256SUMS"), stem)]) if parts else -1
    absent = [number for number in range(last + 1) if number not in parts]
    if absent:
        more = f", and {len(absent) - 1} more are not there" if len(absent) > 1 else " is not there"
        hint = "copy all parts into one folder; `sha256sum -c` with the file SHA256SUMS beside says which are whole"
        message = f"part `{stem}.part{absent[0]:03}`{more}"
        raise SupplyError(Problem(code="bundle-part-missing", message=message, where=str(path.parent), hint=hint))
    return tuple(parts[number] for number in sorted(parts))


def part_number(name: str, stem: str) -> int:
    """Return which part of `stem` a file is by its name; -1 when it is none."""
    found = PART.search(name)
    return int(found[1]) if found and name.removesuffix(found[0]) == stem else -1


def _promised(sums: Path, stem: str) -> Iterator[int]:
    """Numbers of the parts that the file of sums names; it may be absent, or anything."""
    if sums.is_file():
        with SourceFile(sums) as stream:
            lines = stream.read(_LARGEST_ROOT_FILE).decode("utf-8", "replace").splitlines()
        yield from (part_number(line.partition("  ")[2], stem) for line in lines)


def root_files(layout: Layout) -> dict[str, bytes]:
    """Return every file at the root that a blob may have to equal.

    Raises:
        IntegrityError: `bundle-malformed` when they are more than any bundle has.
    """
    found: dict[str, bytes] = {}
    for name in sorted(layout.others):
        data = layout.root_file(name) if _is_judged(name) else None
        if data is not None:
            found[name] = data
            _require_short(found, layout.where)
    return found


def _is_judged(name: str) -> bool:
    return name in (SUMS_FILE, LISTING_FILE) or stands_at_root(name)


def _require_short(root: Mapping[str, bytes], where: str) -> None:
    size = sum(map(len, root.values()))
    if size > _LARGEST_ROOT:
        raise malformed(f"the files at its root have {size} bytes or more", where)


def read_small(layout: Layout, sha256: str, size: int, what: str) -> bytes:
    """Return a blob that has to be read whole, after comparing size and digest.

    Raises:
        IntegrityError: `bundle-blob-missing`, `bundle-blob-corrupt`.
    """
    out = io.BytesIO()
    if size > LARGEST_MANIFEST * 4:
        raise damaged(layout, sha256, what, f"{size} bytes", "a size that no such file has")
    copy_blob(layout, sha256, size, what, out.write)
    return out.getvalue()


def copy_blob(
    layout: Layout,
    sha256: str,
    size: int,
    what: str,
    write: Callable[[memoryview], object],
    on_bytes: Callable[[int], None] | None = None,
) -> None:
    """Hand the bytes of a blob on, and refuse it at the end when they are not what its name says.

    Raises:
        IntegrityError: `bundle-blob-missing`, `bundle-blob-corrupt`, naming the blob and the file it is.
    """
    there = layout.sizes.get(sha256)
    if there is None:
        raise missing(layout, sha256, what)
    if there != size:
        raise damaged(layout, sha256, what, f"{size} bytes", f"{there} bytes")
    digest = hashlib.sha256()
    with layout.open(sha256) as stream:
        for chunk in chunks(cast(io.RawIOBase, stream)):
            digest.update(chunk)
            write(chunk)
            if on_bytes:
                on_bytes(len(chunk))
    if digest.hexdigest() != sha256:
        raise damaged(layout, sha256, what, f"sha256 {sha256}", f"sha256 {digest.hexdigest()}")


def missing(layout: Layout, sha256: str, what: str) -> IntegrityError:
    """State that a blob is not there."""
    return IntegrityError(
        Problem(
            code="bundle-blob-missing",
            message=f"the bundle lacks the blob {sha256}, which is `{what}`",
            where=layout.where,
            hint="copy the bundle again from where it was made",
        )
    )


def damaged(layout: Layout, sha256: str, what: str, expected: str, actual: str) -> IntegrityError:
    """State that a blob is not what its name says."""
    return _damaged(layout.where, sha256, what, expected, actual)


def _damaged(where: str, sha256: str, what: str, expected: str, actual: str) -> IntegrityError:
    return IntegrityError(
        Problem(
            code="bundle-blob-corrupt",
            message=f"the blob {sha256}, which is `{what}`, is not what its name says",
            where=where,
            hint="copy the bundle again from where it was made; if it differs again, do not use it",
            expected=expected,
            actual=actual,
        )
    )


def spool(stream: BinaryIO, store: Store, where: str, on_bytes: Callable[[int], None] | None = None) -> Spooled:
    """Read a tar from a pipe into a store: every blob is hashed on arrival, none is kept that is wrong.

    Raises:
        IntegrityError: `bundle-malformed`, `bundle-blob-corrupt`.
    """
    sizes: dict[str, int] = {}
    others: dict[str, int] = {}
    root: dict[str, bytes] = {}
    reader = ArchiveReader(stream)
    with filesystem(Path(where)), _damage(where):
        for member in reader.members():
            _note(member, sizes, others, where)
            found = _BLOB.fullmatch(member.name)
            if found:
                _spool_blob(reader.content(member), found[1], root, store, where, on_bytes)
            elif member.name in _OF_LAYOUT or _is_judged(member.name):
                root[member.name] = _beginning(reader.content(member))
                _require_short(root, where)
    return Spooled(store=store, where=where, sizes=sizes, others=others, root_files=root)


def _spool_blob(
    content: Iterator[memoryview],
    sha256: str,
    root: Mapping[str, bytes],
    store: Store,
    where: str,
    on_bytes: Callable[[int], None] | None,
) -> None:
    with store.receiving(sha256) as receiver:
        for chunk in content:
            receiver.write(chunk)
            if on_bytes:
                on_bytes(len(chunk))
        if receiver.digest != sha256:
            what = _listed(root.get(LISTING_FILE, b""), sha256)
            raise _damaged(where, sha256, what, f"sha256 {sha256}", f"sha256 {receiver.digest}")
        receiver.commit()


def _beginning(content: Iterator[memoryview]) -> bytes:
    """Return a file as far as it is short; one byte too many shows that it is not."""
    kept = bytearray()
    for chunk in content:
        kept += chunk[: _LARGEST_ROOT_FILE + 1 - len(kept)]
    return bytes(kept)


def _listed(listing: bytes, sha256: str) -> str:
    """Return the title of a blob by the list that came before it, which nobody has proven yet."""
    for line in listing.decode("utf-8", "replace").splitlines():
        columns = line.split("\t")
        if len(columns) == 3 and columns[0] == sha256:
            return columns[2][:120]
    return "not in FILES.tsv"


def _folder(path: Path, where: str) -> Folder:
    if not (path / "oci-layout").is_file():
        hint = "a bundle is a folder that holds `oci-layout`, `index.json` and `blobs/`, or a tar file of it"
        raise InputError(
            Problem(
                code="bundle-unknown",
                message="this folder is no bundle, and no evidence of a smoke run",
                where=where,
                hint=hint,
            )
        )
    sizes: dict[str, int] = {}
    others: dict[str, int] = {}
    for name, entry in walk_files(path):
        if not entry.is_file(follow_symlinks=False):
            raise malformed(f"{_quoted(name)} is neither a file nor a folder", where)
        _note(Member(name=name, size=entry.stat(follow_symlinks=False).st_size, offset=0), sizes, others, where)
    return Folder(path=path, where=where, sizes=sizes, others=others)


def _archive(files: tuple[Path, ...], where: str) -> Archive:
    sizes: dict[str, int] = {}
    others: dict[str, int] = {}
    offsets: dict[str, int] = {}
    with JoinedFiles(files) as whole, io.BufferedReader(whole) as buffered, _damage(where):
        _require_unpacked(buffered.peek(8), where)
        for member in ArchiveReader(cast(BinaryIO, buffered), whole.size).members():
            _note(member, sizes, others, where)
            offsets[member.name] = member.offset
    return Archive(files=files, where=where, sizes=sizes, others=others, offsets=offsets)


def _note(member: Member, sizes: dict[str, int], others: dict[str, int], where: str) -> None:
    """Sort a file to the blobs or to the other files.

    Raises:
        IntegrityError: `bundle-malformed` when one of that name is there already.
    """
    found = _BLOB.fullmatch(member.name)
    kept, key = (sizes, found[1]) if found else (others, member.name)
    if key in kept:
        raise malformed(f"it holds {_quoted(member.name)} twice", where)
    kept[key] = member.size


def _require_unpacked(beginning: bytes, where: str) -> None:
    packer = next((name for magic, name in _PACKED if beginning.startswith(magic)), None)
    if packer:
        message = f"this file is packed with {packer}, a bundle is a plain tar file"
        hint = "unpack it first; wheels are compressed already, packing them again gains nothing"
        raise InputError(Problem(code="bundle-unknown", message=message, where=where, hint=hint))


def _quoted(name: str) -> str:
    return f"`{name[:120]}`" if name.isprintable() else ascii(name[:120])


@contextlib.contextmanager
def _damage(where: str) -> Iterator[None]:
    try:
        yield
    except ArchiveError as error:
        raise malformed(f"{error}", where) from error


def malformed(message: str, where: str) -> EnvsmithError:
    """State that something is no bundle of ours, or a damaged one."""
    hint = "copy the bundle again from where it was made"
    return IntegrityError(
        Problem(code="bundle-malformed", message=f"this bundle is damaged: {message}", where=where, hint=hint)
    )
