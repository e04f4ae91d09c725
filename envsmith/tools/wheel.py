"""Read wheels without trusting them, and write wheels whose bytes depend on their content alone."""

from __future__ import annotations

import contextlib
import hashlib
import re
import stat
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from envsmith.errors import InputError, Problem
from envsmith.tools import git
from envsmith.tools.rawzip import LOCAL_HEADER, RawZip, TooLargeError
from envsmith.wheelfile import (
    RecordRow,
    RepackedWheel,
    WheelListing,
    WheelMember,
    check_names,
    find_dist_info,
    in_order,
    local_version,
    malformed,
    parse_entry_points,
    parse_filename,
    parse_record,
    record_row,
    scripts_of,
)

_CHUNK = 1 << 20
_ENCRYPTED = 0x1


def list_wheel(path: Path) -> WheelListing:
    """Describe a wheel from its central directory and RECORD, inflating only what RECORD does not vouch for.

    Raises:
        IntegrityError: `wheel-malformed`, `wheel-unsafe-member`, `wheel-duplicate-member` or `wheel-colliding-members`.
    """
    name, version = parse_filename(path.name)
    with _opened(path) as archive:
        infos = _members(archive, path)
        dist_info = find_dist_info(infos, path.name)
        rows = parse_record(_text(archive, f"{dist_info}/RECORD", path), str(path))
        return WheelListing(
            filename=path.name,
            name=name,
            version=version,
            root_is_purelib=_is_purelib(_text(archive, f"{dist_info}/WHEEL", path)),
            members=tuple(_member(archive, info, rows.get(info.filename)) for _, info in sorted(infos.items())),
            console_scripts=scripts_of(_entry_points(archive, infos, dist_info, path)),
            rewritten_scripts=tuple(sorted(name for name in infos if _is_rewritten(archive, name))),
        )


def read_metadata(path: Path) -> bytes:
    """Return the METADATA file of a wheel.

    Raises:
        IntegrityError: as `list_wheel`.
    """
    with _opened(path) as archive:
        dist_info = find_dist_info(_members(archive, path), path.name)
        return _read(archive, f"{dist_info}/METADATA", path)


def entry_points(path: Path) -> tuple[tuple[str, str, str], ...]:
    """Return every entry point of a wheel as `(group, name, value)`.

    Raises:
        IntegrityError: as `list_wheel`.
    """
    with _opened(path) as archive:
        infos = _members(archive, path)
        return _entry_points(archive, infos, find_dist_info(infos, path.name), path)


def normalise(src: Path, dst: Path) -> str:
    """Rewrite a wheel so that its bytes depend on its content alone, and return the sha256 of the result.

    Members are sorted with dist-info last, stored, dated 1980, 0644 or 0755; RECORD is written anew, folders and
    signatures are dropped.

    Raises:
        IntegrityError: as `list_wheel`.
    """
    with _opened(src) as archive, RawZip(dst) as out:
        infos = _members(archive, src)
        dist_info = find_dist_info(infos, src.name)
        rows = []
        for name in in_order(infos, dist_info):
            info = infos[name]
            sha256 = out.store_member(archive, info, executable=_executable(info))
            rows.append(record_row(name, sha256, info.file_size))
        _store_record(out, dist_info, rows)
    return out.sha256


def inject(src: Path, dst: Path, added: Mapping[str, bytes]) -> str:
    """Add or replace members of a wheel, write RECORD anew, and return the sha256 of the result.

    Raises:
        IntegrityError: as `list_wheel`, also for a new name that is unsafe.
    """
    listing = list_wheel(src)
    return _rewrite(src, dst, listing, added, frozenset(), {}).sha256


def patch_wheel(src: Path, into: Path, patches: Sequence[tuple[str, bytes]], label: str = "envsmith") -> RepackedWheel:
    """Make a wheel with a series applied, in folder `into`, under a local version that names the patched tree.

    Members that no patch touches keep their compressed bytes and the others are stored, so the digest of the result
    depends on the source wheel and the patches, not on the zlib of the machine.

    Raises:
        InputError: `patch-did-not-apply`, `patch-already-applied` or `patch-touches-metadata`.
        IntegrityError: as `list_wheel`.
    """
    listing = list_wheel(src)
    touched = git.touched(patches)
    folder = _dist_info(listing)
    if inside := [path for path in touched if path.startswith(f"{folder}/")]:
        hint = "change requirements with `override` in the recipe; a patch changes code"
        message = f"the series touches `{inside[0]}`, which the repacking writes"
        raise InputError(Problem(code="patch-touches-metadata", message=message, where=src.name, hint=hint))
    with tempfile.TemporaryDirectory(prefix="envsmith-") as scratch:
        tree, changed = _apply(src, Path(scratch), touched, patches)
    version = local_version(listing.version, f"{label}.t{tree[:8]}")
    stem = folder.removesuffix(".dist-info")
    moved = f"{stem.rpartition('-')[0]}-{version}"
    renamed = {f"{stem}.dist-info": f"{moved}.dist-info", f"{stem}.data": f"{moved}.data"}
    changed[f"{folder}/METADATA"] = _with_version(read_metadata(src), version, src)
    name, _, tags = src.name.split("-", 2)
    filename = f"{name}-{version}-{tags}"
    into.mkdir(parents=True, exist_ok=True)
    gone = frozenset(touched) - changed.keys()
    out = _rewrite(src, into / filename, listing, changed, gone, renamed)
    return RepackedWheel(
        filename=filename,
        version=version,
        sha256=out.sha256,
        size=(into / filename).stat().st_size,
        tree=tree,
        touched=touched,
    )


def _apply(
    src: Path, scratch: Path, touched: Sequence[str], patches: Sequence[tuple[str, bytes]]
) -> tuple[str, dict[str, bytes]]:
    """Apply a series to the touched members alone; return the tree id and what is there afterwards."""
    files, work = scratch / "files", scratch / "work"
    files.mkdir()
    with _opened(src) as archive:
        for name in set(touched) & _members(archive, src).keys():
            target = files / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))
            target.chmod(0o644)
    git.export_tree(files, work)
    tree = git.apply_series(work, patches)
    return tree, {name: (work / name).read_bytes() for name in touched if (work / name).is_file()}


def _rewrite(
    src: Path,
    dst: Path,
    listing: WheelListing,
    changed: Mapping[str, bytes],
    gone: frozenset[str],
    renamed: Mapping[str, str],
) -> RawZip:
    """Copy a wheel member by member; `renamed` maps top folders."""
    dist_info = _dist_info(listing)
    known = {member.path: member for member in listing.members if member.path not in gone}
    with _opened(src) as archive, RawZip(dst) as out:
        infos = _members(archive, src)
        names = {name: _moved(name, renamed) for name in [*known, *(changed.keys() - known.keys())]}
        check_names(sorted(names.values()), str(src))
        rows = []
        for name in in_order(names, dist_info):
            new, executable = names[name], name in known and known[name].executable
            if name in changed:
                data = changed[name]
                out.store(new, data, executable=executable)
                rows.append(record_row(new, hashlib.sha256(data).hexdigest(), len(data)))
            else:
                out.copy_member(archive, infos[name], new, executable=executable)
                rows.append(record_row(new, known[name].sha256, known[name].size))
        _store_record(out, _moved(dist_info, renamed), rows)
    return out


def _moved(path: str, renamed: Mapping[str, str]) -> str:
    top, slash, rest = path.partition("/")
    return f"{renamed.get(top, top)}{slash}{rest}"


def _store_record(out: RawZip, dist_info: str, rows: Sequence[str]) -> None:
    text = "".join(f"{row}\n" for row in [*rows, f"{dist_info}/RECORD,,"])
    out.store(f"{dist_info}/RECORD", text.encode(), executable=False)


def _dist_info(listing: WheelListing) -> str:
    return find_dist_info((member.path for member in listing.members), listing.filename)


def _with_version(metadata: bytes, version: str, path: Path) -> bytes:
    blank = re.search(rb"\n\r?\n", metadata)  # the description below it may hold anything
    head = metadata[: blank.start()] if blank else metadata
    changed, count = re.subn(rb"(?im)^(version:[ \t]*)[^\r\n]*", rb"\g<1>" + version.encode(), head)
    if count != 1:
        raise malformed(str(path), f"METADATA states its version {count} times")
    return changed + metadata[len(head) :]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive, turning every way in which zip data can be broken into one error."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except TooLargeError as error:
        raise malformed(str(path), f"with `{error}` it would exceed 4 GiB") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error, NotImplementedError, UnicodeDecodeError) as error:
        raise malformed(str(path), str(error) or type(error).__name__) from error


def _members(archive: zipfile.ZipFile, path: Path) -> dict[str, zipfile.ZipInfo]:
    """Return the files of an archive by name, after refusing what an installer could be fooled with."""
    infos = archive.infolist()
    check_names([info.orig_filename for info in infos], str(path))
    for info in infos:
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
            raise malformed(str(path), f"member `{info.filename}` is a link or a device")
        if info.flag_bits & _ENCRYPTED:
            raise malformed(str(path), f"member `{info.filename}` is encrypted")
        _check_local_header(archive, info, path)
    return {info.filename: info for info in infos if not info.is_dir()}


def _check_local_header(archive: zipfile.ZipFile, info: zipfile.ZipInfo, path: Path) -> None:
    """Compare a member's own header with the directory: an unpacker that streams believes the former."""
    stream = archive.fp
    assert stream is not None
    stream.seek(info.header_offset)
    fields = LOCAL_HEADER.unpack(stream.read(LOCAL_HEADER.size))
    name = stream.read(fields[9])
    expected = info.orig_filename.encode("utf-8" if fields[2] & 0x800 else "cp437", errors="replace")
    if fields[0] != b"PK\x03\x04" or name != expected or fields[3] != info.compress_type:
        raise malformed(str(path), f"member `{info.filename}` has a header that contradicts the archive's directory")


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, row: RecordRow | None) -> WheelMember:
    vouched = row.sha256 if row is not None and row.size == info.file_size else None
    return WheelMember(
        path=info.filename,
        size=info.file_size,
        sha256=vouched or _digest(archive, info),
        executable=_executable(info),
    )


def _executable(info: zipfile.ZipInfo) -> bool:
    return bool(info.external_attr >> 16 & 0o111)


def _digest(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> str:
    digest = hashlib.sha256()
    with archive.open(info) as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _read(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    try:
        return archive.read(name)
    except KeyError:
        raise malformed(str(path), f"`{name}` is missing") from None


def _text(archive: zipfile.ZipFile, name: str, path: Path) -> str:
    return _read(archive, name, path).decode("utf-8")


def _entry_points(
    archive: zipfile.ZipFile, infos: Mapping[str, zipfile.ZipInfo], dist_info: str, path: Path
) -> tuple[tuple[str, str, str], ...]:
    name = f"{dist_info}/entry_points.txt"
    return parse_entry_points(_text(archive, name, path), str(path)) if name in infos else ()


def _is_purelib(wheel: str) -> bool:
    return any(line.lower().replace(" ", "") == "root-is-purelib:true" for line in wheel.splitlines())


def _is_rewritten(archive: zipfile.ZipFile, name: str) -> bool:
    parts = name.split("/")
    if len(parts) < 3 or not parts[0].endswith(".data") or parts[1] != "scripts":
        return False
    with archive.open(name) as stream:
        return stream.read(8) == b"#!python"
