"""Writing an evidence folder of a smoke run: all of it or nothing, and no secret in it.

`require_free_folder` before the run, `write_evidence` after it. docs/evidence-format.md has the form.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from packaging.utils import canonicalize_name

from envsmith import __version__
from envsmith.commands.envs import shown
from envsmith.commands.evidence import judge, open_evidence
from envsmith.commands.evidencepile import Pile
from envsmith.commands.screen import Screen
from envsmith.commands.snapshot import capture_text
from envsmith.commands.subject import Subject
from envsmith.errors import EnvsmithError, InputError, Problem
from envsmith.evidence import (
    MANIFEST,
    NAMESPACE,
    SIGNATURE,
    SUMS,
    About,
    EvidenceManifest,
    digest,
    overall,
    render_manifest,
    sums_text,
)
from envsmith.evidencefacts import folder_names, shallow_row
from envsmith.launch import LaunchEnvironment
from envsmith.licences import Licence, licence_of
from envsmith.lock import Lock
from envsmith.manifest import site_packages
from envsmith.receipt import NAME as RECEIPT
from envsmith.report import Report
from envsmith.sbom import Component, Known, components_of, cyclonedx, render
from envsmith.sbom import Subject as BillSubject
from envsmith.scrubbing import Scrubber, known_secrets
from envsmith.tools.files import filesystem, fsync_folder, remove_tree
from envsmith.tools.signer import public_key, sign

_NATIVE = ("linux", "manylinux", "musllinux")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvidenceMaterial:
    """What a run has found out; secrets may still be in it."""

    record: Mapping[str, object]
    """The record of the run: `rungs`, each with its `folder` below the record's own, and `findings`."""
    subject: Subject
    """An env of ours."""
    report: Report | None
    """What verify said in the rung `static`; needed where that rung passed."""
    launch: LaunchEnvironment
    """The change that the env makes, as it was applied."""
    environment: Mapping[str, str]
    """The whole environment of the rungs' processes."""
    started: datetime
    """With a time zone, as `ended`."""
    ended: datetime
    environ: Mapping[str, str]
    """That of this process: what its secret variables hold is cut everywhere."""
    stages: Mapping[str, float] = field(default_factory=dict)
    """Seconds of what the run did besides its rungs."""
    host: str | None = None
    """A snapshot of this host; taken now where it is None."""
    key: Path | None = None
    """Key of OpenSSH to sign with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenEvidence:
    """A folder that was written."""

    folder: Path
    """Beside the wanted one where that was taken meanwhile."""
    digest: str
    """Of the whole, in hex."""
    files: int
    size_bytes: int
    redactions: int
    problems: tuple[Problem, ...]
    """What `inspect --check` would say of it."""

    def to_dict(self) -> dict[str, object]:
        """For `data.evidence` of the JSON envelope."""
        return {
            "folder": shown(self.folder),
            "digest": f"sha256:{self.digest}",
            "files": self.files,
            "problems": [one.message for one in self.problems],
            "bytes": self.size_bytes,
            "redactions": self.redactions,
        }


def require_free_folder(folder: Path, *, subject: Subject, key: Path | None = None) -> None:
    """Refuse a place, an env or a key that cannot be used, before a run of an hour is lost to it.

    Raises:
        InputError: `evidence-env-foreign`, `evidence-folder-unusable`, `signing-key-unusable`, `signing-key-type`.
    """
    if subject.receipt is None or subject.lock is None:
        raise InputError(
            Problem(
                code="evidence-env-foreign",
                message="another tool made this env, so there is no lock and no receipt that could be evidence",
                where=shown(subject.directory),
                hint="leave `--evidence` out, or build the env with `envsmith build`",
            )
        )
    place = folder
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    holder = folder.parent if place == folder else place
    problem = None
    if place == folder and (folder.is_symlink() or not folder.is_dir()):
        problem = "there is something of that name that is no folder"
    elif place == folder and any(folder.iterdir()):
        problem = "the folder is not empty"
    elif not place.is_dir() or not os.access(holder, os.W_OK | os.X_OK):
        problem = f"`{shown(holder)}` is no folder that this user may write to"
    elif folder.resolve().is_relative_to(subject.directory.resolve()):
        problem = "it lies in the env, which nothing is written into"
    if problem:
        hint = "name a folder that is empty or not there yet, such as `evidence/2026-11-30`"
        message = f"the evidence cannot be written there: {problem}"
        raise InputError(Problem(code="evidence-folder-unusable", message=message, where=shown(folder), hint=hint))
    if key is not None:
        public_key(key)


def write_evidence(folder: Path, material: EvidenceMaterial, screen: Screen) -> WrittenEvidence:
    """Write the folder under another name beside it, read it back, and rename it.

    Raises:
        SupplyError: `disk-full` and what else `filesystem` raises; nothing is left behind.
        InputError, HostError, IntegrityError: what `tools.signer.sign` raises.
    """
    with filesystem(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".envsmith-evidence-", dir=folder.parent))
    try:
        pile = Pile(folder=made, scrubber=Scrubber(known_secrets({**material.environment, **material.environ})))
        manifest, sha256 = _fill(pile, material)
        problems, _ = judge(open_evidence(made), check=True, screen=Screen(quiet=True))
        with filesystem(folder):
            made.chmod(0o755)
            for path in (made, *(one for one in made.rglob("*") if one.is_dir())):
                fsync_folder(path)
            final = _rename(made, folder)
    except BaseException:
        with contextlib.suppress(EnvsmithError):
            remove_tree(made)
        raise
    for problem in problems:
        screen.say(f"warning[{problem.code}]: {problem.message}")
    return WrittenEvidence(
        folder=final,
        digest=sha256,
        files=len(manifest.files),
        size_bytes=sum(one.size for one in manifest.files),
        redactions=sum(one.redactions for one in manifest.files),
        problems=tuple(problems),
    )


def _rename(made: Path, folder: Path) -> Path:
    """Give the folder its name; one that was taken meanwhile is left alone, and a number makes another."""
    for number in range(1, 1000):
        final = folder if number == 1 else folder.with_name(f"{folder.name}.{number}")
        if os.path.lexists(final) and (final.is_symlink() or not final.is_dir() or any(final.iterdir())):
            continue
        with contextlib.suppress(FileExistsError, NotADirectoryError):
            made.rename(final)  # over an empty folder this is one step, too
            fsync_folder(folder.parent)
            return final
    raise InputError(
        Problem(
            code="evidence-folder-unusable",
            message="the evidence cannot be written there: a thousand of that name are there",
            where=shown(folder),
            hint="name another folder",
        )
    )


def _fill(pile: Pile, material: EvidenceMaterial) -> tuple[EvidenceManifest, str]:
    lock, receipt = material.subject.records
    about = About(
        envsmith=__version__,
        stack=receipt.stack,
        env=receipt.env,
        fingerprint=receipt.fingerprint,
        lock=receipt.lock_sha256,
        result=overall(str(row.get("status")) for row in _rows(material.record)),
        started=_time(material.started),
        ended=_time(material.ended),
    )
    lock_text = material.subject.beside("pylock.toml").read_text(encoding="utf-8")
    receipt_text = (material.subject.directory / RECEIPT).read_text(encoding="utf-8")
    pile.add_env(lock_text, receipt_text, lock, receipt)
    pile.add_bill(_bill(material.subject, lock))
    pile.add_host(material.host or snapshot_text(material.subject, material.environment))
    pile.add_launch(material.launch, material.environment)
    if material.report is not None:
        pile.add_report(material.report)
    record, folders = _with_folders(material.record)
    pile.add_run(record, folders, material.stages)
    pile.add_summary(about)
    manifest = EvidenceManifest(about=about, files=tuple(sorted(pile.rows, key=lambda one: one.path)))
    data = render_manifest(manifest)
    sha256 = digest(data)
    pile.write(MANIFEST, data)
    pile.write(SUMS, sums_text(manifest, sha256).encode())
    if material.key is not None:
        armored = sign(data, material.key, material.environ, namespace=NAMESPACE)
        pile.write(SIGNATURE, armored.encode("ascii"))
    return manifest, sha256


def _time(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _rows(record: Mapping[str, object]) -> list[Mapping[str, object]]:
    rows = record.get("rungs")
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list | tuple) else []


def _with_folders(record: Mapping[str, object]) -> tuple[dict[str, object], dict[str, Path]]:
    """The record with the names of folders as the evidence has them, and where each one lies now."""
    rows = _rows(record)
    names = folder_names(rows)
    base = Path(str(record.get("folder") or "."))
    lies = {name: base / str(row["folder"]) for name, row in zip(names, rows, strict=True) if row.get("folder")}
    return {
        **record,
        "rungs": [{**shallow_row(row), "folder": f"rungs/{name}"} for name, row in zip(names, rows, strict=True)],
    }, lies


def snapshot_text(subject: Subject, environ: Mapping[str, str]) -> str:
    """This host and the versions in the env, as TOML; no file of the env is hashed and nothing runs on a device.

    A host that cannot be looked at costs no evidence: the text says why.
    """
    screen = Screen(quiet=True)
    try:
        return capture_text(
            str(subject.executable), query=None, paths=(), no_run=True, no_files=True, environ=environ, screen=screen
        )
    except EnvsmithError as error:
        reason = " ".join(error.problems[0].message.split())
        return f"# the host could not be looked at: {reason[:400]}\n[host]\n"


def _bill(subject: Subject, lock: Lock) -> str:
    """The bill of materials of one env, licences as the installed packages state them."""
    licences, native = _stated(subject), {}
    for wheel in (*lock.wheels, *lock.build_requires):
        native[wheel.sha256] = wheel.filename.removesuffix(".whl").rpartition("-")[2].startswith(_NATIVE)
    known = Known(
        licences={one.sha256: licences[one.name] for one in lock.wheels if one.name in licences}, native=native
    )
    receipt = subject.records[1]
    python = Component(
        kind="interpreter", name="cpython", version=receipt.python, sha256=receipt.python_sha256, envs=(lock.env,),
        native=True,
    )  # fmt: skip
    target = f"Python {lock.target.python}, {lock.target.arch}, glibc {lock.target.glibc}"
    about = BillSubject(
        name=f"{lock.stack}/{lock.env}", version=receipt.fingerprint, envs={lock.env: target}, envsmith=__version__
    )
    return render(cyclonedx([*components_of(lock, known), python], subject=about))


def _stated(subject: Subject) -> dict[str, Licence]:
    """Licence by canonical name, from the METADATA of what is installed."""
    found = {}
    site = subject.directory / site_packages(".".join(subject.python.split(".")[:2]))
    for path in sorted(site.glob("*.dist-info/METADATA")):
        with contextlib.suppress(OSError):
            found[str(canonicalize_name(path.parent.name.split("-")[0]))] = licence_of(path.read_bytes())
    return found
