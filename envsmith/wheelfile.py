"""Values that describe a wheel, and the pure parsers behind them: RECORD, entry points, METADATA, member names.

Nothing here opens a file; `tools/wheel.py` reads the archive and hands over text and names.
Source: the binary distribution format of packaging.python.org/specifications, read 2026-11-29.
"""

from __future__ import annotations

import base64
import binascii
import configparser
import csv
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from envsmith.errors import IntegrityError, Problem

#: Members of a dist-info folder that RECORD cannot describe: itself, and signatures over itself.
UNRECORDED = ("RECORD", "RECORD.jws", "RECORD.p7s")

_SCRIPT_GROUPS = ("console_scripts", "gui_scripts")


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelMember:
    """One file inside a wheel."""

    path: str
    """POSIX path inside the archive."""
    size: int
    """Bytes when unpacked."""
    sha256: str
    """Hex digest of the unpacked content."""
    executable: bool
    """True when the archive marks it executable for anybody."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelListing:
    """What a wheel holds and how an installer will treat it."""

    filename: str
    name: str
    """Normalised project name."""
    version: str
    """Normalised version, with its local part."""
    root_is_purelib: bool
    members: tuple[WheelMember, ...]
    """Every file, RECORD included, sorted by path."""
    console_scripts: tuple[tuple[str, str], ...]
    """Launchers an installer generates, `(name, "module:attribute")`; on Linux `gui_scripts` are made the same way."""
    rewritten_scripts: tuple[str, ...]
    """Members below `.data/scripts` that start with `#!python`: the installer rewrites their first line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RepackedWheel:
    """A wheel made from another one by a series of patches."""

    filename: str
    version: str
    """`X+envsmith.t<tree8>`, or `X.envsmith.t<tree8>` where X has a local part."""
    sha256: str
    """Hex digest of the new archive; a function of the source wheel and the patches alone."""
    size: int
    tree: str
    """Git tree id of the touched members after the series."""
    touched: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordRow:
    """One row of a RECORD file."""

    path: str
    sha256: str | None
    """Hex digest; `None` where the row has no hash or another algorithm."""
    size: int | None


def parse_filename(filename: str) -> tuple[str, str]:
    """Return the normalised name and version that a wheel's file name states.

    Raises:
        IntegrityError: `wheel-malformed` when the name is not a wheel's.
    """
    try:
        name, version, _, _ = parse_wheel_filename(filename)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise malformed(filename, f"file name is not a wheel's: {error}") from error
    return str(name), str(version)


def check_names(names: Sequence[str], where: str) -> None:
    """Refuse an archive whose member names an installer could be fooled with; all problems at once.

    A folder's name ends with a slash. Two names equal but for case or Unicode normalisation are one file on some file
    systems, so they are refused too, and so is a file that is another one's folder.

    Raises:
        IntegrityError: `wheel-unsafe-member`, `wheel-duplicate-member` or `wheel-colliding-members`.
    """
    problems = [
        Problem(code="wheel-unsafe-member", message=f"member `{name}` {reason}", where=where)
        for name in names
        if (reason := _unsafe(name.removesuffix("/")))
    ]
    files = {name for name in names if not name.endswith("/")}
    seen: dict[str, str] = {}
    for name in names:
        if parent := next((parent for parent in _parents(name) if parent in files), None):
            message = f"member `{name}` lies below `{parent}`, which is a file"
            problems.append(Problem(code="wheel-colliding-members", message=message, where=where))
        key = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
        other = seen.setdefault(key, name)
        if other is not name:
            code = "wheel-duplicate-member" if other == name else "wheel-colliding-members"
            said = "appears twice" if other == name else f"differs from `{other}` only in case or Unicode form"
            problems.append(Problem(code=code, message=f"member `{name}` {said}", where=where))
    if problems:
        raise IntegrityError(*problems)


def find_dist_info(names: Iterable[str], filename: str) -> str:
    """Return the one dist-info folder, which must carry the file name's project and version.

    Raises:
        IntegrityError: `wheel-malformed` when there is none, more than one, or another project's.
    """
    found = sorted({name.split("/", 1)[0] for name in names if name.split("/", 1)[0].endswith(".dist-info")})
    if len(found) != 1:
        raise malformed(filename, f"there must be one dist-info folder, found {len(found)}")
    name, version = parse_filename(filename)
    stated_name, _, stated_version = found[0].removesuffix(".dist-info").rpartition("-")
    try:
        agrees = canonicalize_name(stated_name) == name and str(Version(stated_version)) == version
    except InvalidVersion:
        agrees = False
    if not agrees:
        raise malformed(filename, f"folder `{found[0]}` belongs to another project or version")
    return found[0]


def parse_record(text: str, where: str) -> Mapping[str, RecordRow]:
    """Read a RECORD into rows by path.

    Raises:
        IntegrityError: `wheel-malformed` for a row that is not `path,hash,size`.
    """
    rows: dict[str, RecordRow] = {}
    try:
        for fields in csv.reader(text.splitlines(), strict=True):
            if fields:
                row = _record_row(fields)
                rows[row.path] = row
    except (ValueError, csv.Error) as error:
        raise malformed(where, f"RECORD cannot be read: {error}") from error
    return rows


def record_row(path: str, sha256: str, size: int) -> str:
    """Write one RECORD row, without its line end."""
    digest = base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode()
    quoted = f'"{path.replace(chr(34), chr(34) * 2)}"' if any(c in path for c in ',"') else path
    return f"{quoted},sha256={digest},{size}"


def in_order(names: Iterable[str], dist_info: str) -> tuple[str, ...]:
    """Sort members with dist-info last, as the format recommends; what RECORD cannot describe is left out."""
    kept = (name for name in names if name not in {f"{dist_info}/{each}" for each in UNRECORDED})
    return tuple(sorted(kept, key=lambda name: (name.startswith(f"{dist_info}/"), name)))


def parse_entry_points(text: str, where: str) -> tuple[tuple[str, str, str], ...]:
    """Read entry_points.txt into `(group, name, value)`; extras behind a value are cut.

    Raises:
        IntegrityError: `wheel-malformed` when it is not in INI form.
    """
    parser = configparser.RawConfigParser(delimiters=("=",), strict=False, default_section="\0")
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise malformed(where, f"entry_points.txt cannot be read: {str(error).splitlines()[0]}") from error
    return tuple(
        (group, name, value.split("[", 1)[0].strip())
        for group in parser.sections()
        for name, value in parser.items(group)
    )


def scripts_of(entry_points: Iterable[tuple[str, str, str]]) -> tuple[tuple[str, str], ...]:
    """Pick the launchers an installer will generate."""
    return tuple(sorted({(name, value) for group, name, value in entry_points if group in _SCRIPT_GROUPS}))


def local_version(version: str, label: str) -> str:
    """Append a local version label: `1.0` becomes `1.0+label`, `1.0+cu128` becomes `1.0+cu128.label`."""
    return f"{version}{'.' if '+' in version else '+'}{label}"


def malformed(where: str, reason: str) -> IntegrityError:
    """Build the error for a wheel that breaks the format."""
    return IntegrityError(Problem(code="wheel-malformed", message=f"this is not a sound wheel: {reason}", where=where))


def _parents(name: str) -> tuple[str, ...]:
    parts = name.removesuffix("/").split("/")
    return tuple("/".join(parts[:n]) for n in range(1, len(parts)))


def _unsafe(name: str) -> str | None:
    parts = name.split("/")
    if name.startswith("/") or parts[0].endswith(":"):
        return "has an absolute path"
    if ".." in parts:
        return "leaves the archive's folder"
    if "" in parts or "." in parts:
        return "has an empty path component"
    if "\\" in name or any(ord(c) < 32 or ord(c) == 127 for c in name):
        return "has a backslash or a control character in its path"
    return None


def _record_row(fields: Sequence[str]) -> RecordRow:
    if len(fields) != 3:
        raise ValueError(f"row `{','.join(fields)}` does not have three fields")
    path, stated, size = fields
    algorithm, _, digest = stated.partition("=")
    sha256 = None
    if algorithm == "sha256":
        try:
            raw = base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4))
        except binascii.Error as error:
            raise ValueError(f"hash of `{path}` is not base64") from error
        if len(raw) != 32:
            raise ValueError(f"hash of `{path}` is not a sha256")
        sha256 = raw.hex()
    return RecordRow(path=path, sha256=sha256, size=int(size) if size else None)
