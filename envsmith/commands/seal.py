"""The seal of an env: what the last whole look at its files said, and the digest of the tree and records it held for.

While names and attributes of everything in the tree are the same, so is the answer, and a quick look need read nothing
else. It lies beside the env, is good for one machine and mount like the stat index, and is never shipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith import __version__
from envsmith.commands.depth import Depth, Examination
from envsmith.commands.envs import BuiltEnv
from envsmith.commands.foreign import below, index_path, site_dirs
from envsmith.commands.look_files import clock_folder
from envsmith.commands.records import keep_beside
from envsmith.commands.subject import Foreign, Subject
from envsmith.receipt import NAME as RECEIPT
from envsmith.report import Finding, Report, Severity
from envsmith.tools.tree import TreeState, clock_ns, tree_state

#: Records beside an env of ours that its answer rests on.
RECORDS = ("manifest.json", "pylock.toml", "receipt.sha256", "python.json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a seal lies, and what it is about."""

    path: Path
    directory: Path
    below: tuple[str, ...] = ("",)
    """The folders of it that are looked into."""
    records: tuple[Path, ...] = ()
    """Files whose content the answer rests on, besides the tree."""


def place_of(subject: Subject) -> Place:
    """The seal of an env."""
    records: tuple[Path, ...] = ()
    if subject.foreign is None:
        records = (subject.directory / RECEIPT, *(subject.beside(name) for name in RECORDS))
    return Place(
        path=subject.beside("seal.json"),
        directory=subject.directory,
        below=below(subject.foreign) if subject.foreign else ("",),
        records=records,
    )


def place_of_built(built: BuiltEnv) -> Place:
    """The seal of an env of ours, before its records are read."""
    records = (built.directory / RECEIPT, *(built.beside(name) for name in RECORDS))
    return Place(path=built.beside("seal.json"), directory=built.directory, records=records)


def foreign_place(built: BuiltEnv, environ: Mapping[str, str]) -> Place:
    """The seal of an env that another tool made, before it is read."""
    sites = site_dirs(built.directory)
    known = Foreign(distributions=(), site_dirs=sites, is_venv=(built.directory / "pyvenv.cfg").is_file())
    index = index_path(built.directory, environ)
    return Place(
        path=index.with_name(index.name.replace("stat.json", "seal.json")),
        directory=built.directory,
        below=below(known),
    )


def sealed(place: Place, name: str, depth: Depth) -> Examination | None:
    """The answer to a quick look that the seal gives, None when anything is not as it was."""
    if depth.bytes != "stat" or depth.families != ("files",):
        return None
    try:
        seal = json.loads(place.path.read_bytes())
        if seal["envsmith"] != __version__ or seal["records"] != _digests(place):
            return None
        if seal["tree"] != tree_state(place.directory, place.below).digest:
            return None
        findings = tuple(_finding(one) for one in seal["findings"])
        report = Report(subject=name, families=depth.families, findings=findings)
        return Examination(report=report, files=int(seal["files"]), trusted_bytes=int(seal["bytes"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def begin(subject: Subject, depth: Depth) -> tuple[TreeState, int] | None:
    """Look at the tree before a whole look at the files begins; None when no seal is to be made."""
    whole = "files" in depth.families and depth.bytes != "stat"
    if not subject.finished or not whole:
        return None
    place = place_of(subject)
    if depth.bytes == "default" and place.path.exists():
        return None  # it holds, or the files have changed and a new index comes first
    clock = clock_folder(subject)
    taken_ns = clock_ns(clock) if clock else 0
    return (tree_state(place.directory, place.below), taken_ns) if taken_ns else None


def keep(subject: Subject, begun: tuple[TreeState, int] | None, examination: Examination) -> None:
    """Make the seal of what was found; without one the next quick look reads the records, which takes longer."""
    if begun is None:
        return
    state, taken_ns = begun
    place = place_of(subject)
    if not state.settled(taken_ns):
        return
    try:
        seal = {
            "envsmith": __version__,
            "records": _digests(place),
            "tree": state.digest,
            "files": examination.files,
            "bytes": examination.hashed_bytes + examination.trusted_bytes,
            "findings": [f.to_dict() for f in examination.report.findings if f.check == "files"],
        }
    except OSError:
        return
    keep_beside(place.path, json.dumps(seal))


def drop(subject: Subject) -> None:
    """Take an old seal away, because files were read anew."""
    with contextlib.suppress(OSError):
        place_of(subject).path.unlink(missing_ok=True)


def _digests(place: Place) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in place.records]


def _finding(one: dict[str, Any]) -> Finding:
    return Finding(**{**one, "severity": Severity(one["severity"])})
