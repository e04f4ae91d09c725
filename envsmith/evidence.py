"""The form of an evidence folder: the names of its files, the manifest with every digest, one digest of the whole.

`render_manifest` and `parse_manifest` are inverses. The manifest's bytes are canonical, so the sha256 of the file is
the digest of the whole folder: every other file hangs on it. Nothing here does I/O.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from envsmith.bundlejson import parsed, said, to_json
from envsmith.errors import IntegrityError, Problem

SCHEMA: Final = 1

MANIFEST: Final = "evidence.json"
SIGNATURE: Final = "evidence.json.sig"
"""Where `ssh-keygen -Y sign` puts it, too."""
SUMS: Final = "SHA256SUMS"
RECORD: Final = "record.json"
HOST: Final = "host.toml"
LOCK: Final = "env/pylock.toml"
RECEIPT: Final = "env/receipt.json"
LAUNCH: Final = "launch.json"
PATCHES: Final = "patches.json"
SBOM: Final = "sbom.cdx.json"
VERIFY: Final = "verify.json"
VERIFY_TEXT: Final = "verify.txt"
IDENTITIES: Final = "identities.json"
SECONDS: Final = "seconds.json"
SUMMARY: Final = "SUMMARY.md"
PAGE: Final = "SUMMARY.html"
RUNGS: Final = "rungs"

#: What every folder holds. The report of verify is missing where the rung `static` was not run.
REQUIRED: Final = (RECORD, HOST, LOCK, RECEIPT, LAUNCH, PATCHES, SBOM, IDENTITIES, SECONDS, SUMMARY, PAGE)
#: What lies beside the files that the manifest lists, and cannot be listed in it.
BESIDE: Final = (MANIFEST, SIGNATURE, SUMS)

#: What a signature of evidence is for.
NAMESPACE: Final = "envsmith-evidence"
#: A manifest of a hundred rungs of eight ranks each stays far below.
LARGEST_MANIFEST: Final = 4 << 20
RESULTS: Final = ("passed", "failed", "inconclusive", "nothing-passed")

_PART = re.compile(r"[A-Za-z0-9_+][A-Za-z0-9._+-]{0,99}")
_MEDIA_TYPE = re.compile(r"[a-z]+/[a-z0-9.+-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_DEEPEST_PATH = 8
_LARGEST_FILE = 1 << 40
_MOST_FILES = 20_000
_SAID = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceFile:
    """One file of the folder, by its path below it."""

    path: str
    size: int
    sha256: str
    media_type: str
    what: str
    """What it is, in words."""
    cut_bytes: int = 0
    """How many bytes of the original were left out of its middle."""
    redactions: int = 0
    """How many secrets were cut out."""

    @property
    def remarks(self) -> str:
        """What was done to it while it was copied, in words; empty for nothing."""
        cut = f"{self.cut_bytes:,} bytes left out" if self.cut_bytes else ""
        hidden = f"{self.redactions:,} secrets cut" if self.redactions else ""
        return ", ".join(filter(None, (cut, hidden)))


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """What a folder is evidence of."""

    envsmith: str
    """Version of the envsmith that wrote it."""
    stack: str
    env: str
    fingerprint: str
    lock: str
    """Sha256 of the lock."""
    result: str
    """One of RESULTS."""
    started: str
    """UTC, ISO 8601 with `Z`."""
    ended: str

    @property
    def name(self) -> str:
        """`stack/env`."""
        return f"{self.stack}/{self.env}"


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceManifest:
    """What the folder is about, and every file in it."""

    about: About
    files: tuple[EvidenceFile, ...]
    """Sorted by path."""

    def file(self, path: str) -> EvidenceFile | None:
        """The file of that path."""
        return next((one for one in self.files if one.path == path), None)


def overall(statuses: Iterable[str]) -> str:
    """The result of a run, by the statuses of its rungs: the worst one, and `passed` only where something was."""
    found = set(statuses)
    worst = next((one for one in ("failed", "inconclusive") if one in found), None)
    return worst or ("passed" if "passed" in found else "nothing-passed")


def moment(text: str) -> datetime | None:
    """Read a time that names its zone; None for anything else."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def render_manifest(manifest: EvidenceManifest) -> bytes:
    """Write the manifest in its one form: sorted keys, no spaces, a line end."""
    about = manifest.about
    content: dict[str, Any] = {
        "envsmith-evidence": SCHEMA,
        **{key: getattr(about, key) for key in about.__slots__},
        "files": [_plain(one) for one in sorted(manifest.files, key=lambda one: one.path)],
    }
    return to_json(content) + b"\n"


def _plain(one: EvidenceFile) -> dict[str, Any]:
    plain = {"path": one.path, "size": one.size, "sha256": one.sha256, "media-type": one.media_type, "what": one.what}
    marks = {"cut-bytes": one.cut_bytes, "redactions": one.redactions}
    return {**plain, **{key: count for key, count in marks.items() if count}}


def digest(manifest: bytes) -> str:
    """The digest of the whole folder: sha256 of the manifest's bytes, in hex."""
    return hashlib.sha256(manifest).hexdigest()


def sums_text(manifest: EvidenceManifest, manifest_sha256: str) -> str:
    """The file SHA256SUMS: what `sha256sum -c` reads, where there is no envsmith."""
    rows = {one.path: one.sha256 for one in manifest.files} | {MANIFEST: manifest_sha256}
    return "".join(f"{rows[path]}  {path}\n" for path in sorted(rows))


def path_fault(path: str) -> str | None:
    """Say why a path cannot be one of a file in the folder, as the end of a sentence; None for a good one."""
    parts = path.split("/")
    if len(parts) > _DEEPEST_PATH:
        return "lies too deep"
    if not all(map(_PART.fullmatch, parts)):
        return "is no plain relative path of letters, digits and `._+-`"
    return "is a name that the folder keeps for itself" if path in BESIDE else None


def parse_manifest(data: bytes, where: str) -> EvidenceManifest:
    """Read a manifest and refuse everything that our own would not hold: its paths are chosen by others.

    Raises:
        IntegrityError: `evidence-malformed`, every fault at once.
    """
    if len(data) > LARGEST_MANIFEST:
        raise malformed([f"it has {len(data)} bytes or more, more than any manifest of ours"], where)
    try:
        content = parsed(data.decode("utf-8"))
    except ValueError as error:
        raise malformed([f"it is not JSON: {error!s:.120}"], where) from error
    if not isinstance(content, dict):
        raise malformed(["it is not a JSON object"], where)
    if content.get("envsmith-evidence") != SCHEMA:
        raise malformed([f"its schema is {said(content.get('envsmith-evidence'))}, and this envsmith reads 1"], where)
    faults = [*_about_faults(content), *_file_faults(content.get("files"))]
    if not faults:
        manifest = _manifest(content)
        if render_manifest(manifest) == data:
            return manifest
        faults = ["it is not in the one form that envsmith writes: a key more, another order, or spaces"]
    raise malformed(faults, where)


def _manifest(content: Mapping[str, Any]) -> EvidenceManifest:
    files = tuple(
        EvidenceFile(
            path=row["path"],
            size=row["size"],
            sha256=row["sha256"],
            media_type=row["media-type"],
            what=row["what"],
            cut_bytes=row.get("cut-bytes", 0),
            redactions=row.get("redactions", 0),
        )
        for row in content["files"]
    )
    return EvidenceManifest(about=About(**{key: content[key] for key in About.__slots__}), files=files)


def _about_faults(content: Mapping[str, Any]) -> Iterator[str]:
    patterns = {
        "envsmith": re.compile(r"[0-9A-Za-z.+-]{1,64}"),
        "stack": _NAME,
        "env": _NAME,
        "fingerprint": _SHA256,
        "lock": _SHA256,
        "result": re.compile("|".join(RESULTS)),
        "started": _TIME,
        "ended": _TIME,
    }
    for key, pattern in patterns.items():
        value = content.get(key)
        if not isinstance(value, str) or not pattern.fullmatch(value):
            yield f"its `{key}` is {said(value)}"


def _file_faults(rows: Any) -> Iterator[str]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        yield "its files are no list of tables"
        return
    if len(rows) > _MOST_FILES:
        yield f"it lists {len(rows):,} files"
        return
    paths = []
    for number, row in enumerate(rows):
        faults = list(_row_faults(row))
        yield from (f"file {number}: {fault}" for fault in faults)
        paths += [] if faults else [row["path"]]
    folded = [path.casefold() for path in paths]
    yield from (f"`{path}` is listed twice" for path in sorted(set(folded)) if folded.count(path) > 1)
    folders = {"/".join(path.split("/")[:n]) for path in folded for n in range(1, path.count("/") + 1)}
    yield from (f"`{path}` is a file and a folder" for path in sorted(folders & set(folded)))
    there = set(paths)
    yield from (f"it lists no `{path}`" for path in REQUIRED if path not in there)


def _row_faults(row: Mapping[str, Any]) -> Iterator[str]:
    path = row.get("path")
    if not isinstance(path, str):
        yield f"its path is {said(path)}"
    elif fault := path_fault(path):
        yield f"{said(path)} {fault}"
    for key, pattern in (("sha256", _SHA256), ("media-type", _MEDIA_TYPE), ("what", re.compile(r"[^\n]{1,200}"))):
        if not isinstance(row.get(key), str) or not pattern.fullmatch(row[key]):
            yield f"its `{key}` is {said(row.get(key))}"
    for key, least in (("size", 0), ("cut-bytes", 1), ("redactions", 1)):
        value = row.get(key, None if key == "size" else least)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _LARGEST_FILE:
            yield f"its `{key}` is {said(value)}"


def malformed(faults: Iterable[str], where: str) -> IntegrityError:
    """State every fault of a manifest, up to a number."""
    listed = list(faults)
    if len(listed) > _SAID:
        listed = [*listed[:_SAID], f"and {len(listed) - _SAID} faults more"]
    return IntegrityError(
        *(
            Problem(
                code="evidence-malformed",
                message=f"this is no evidence that envsmith wrote: {fault}",
                where=where,
                hint="copy the folder again from where it was made; if it is the same there, do not rely on it",
            )
            for fault in listed
        )
    )
