"""The seal of an env: what the last whole look at its files said, and the digest of the tree and records it held for.

While names and attributes of everything in the tree are the same, so is the answer, and a quick look need read nothing
else. It lies beside the env, is good for one machine and mount like the stat index, and is never shipped.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from envsmith import __version__
from envsmith.commands.depth import Depth, Examination
from envsmith.commands.envs import BuiltEnv
from envsmith.commands.subject import Subject
from envsmith.errors import EnvsmithError
from envsmith.receipt import NAME as RECEIPT
from envsmith.report import Finding, Report, Severity
from envsmith.tools.files import write_atomic
from envsmith.tools.tree import TreeState, clock_ns, tree_state

#: Records beside an env that its answer rests on.
RECORDS = ("manifest.json", "pylock.toml", "receipt.sha256")


def sealed(built: BuiltEnv, depth: Depth) -> Examination | None:
    """The answer to a quick look that the seal gives, None when anything is not as it was."""
    if depth.bytes != "stat" or depth.families != ("files",):
        return None
    try:
        seal = json.loads(built.beside("seal.json").read_bytes())
        if seal["envsmith"] != __version__ or seal["records"] != _records(built):
            return None
        if seal["tree"] != tree_state(built.directory).digest:
            return None
        findings = tuple(_finding(one) for one in seal["findings"])
        report = Report(subject=built.name, families=depth.families, findings=findings)
        return Examination(report=report, files=int(seal["files"]), trusted_bytes=int(seal["bytes"]))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def begin(subject: Subject, depth: Depth) -> tuple[TreeState, int] | None:
    """Look at the tree before a whole look at the files begins; None when no seal is to be made."""
    whole = "files" in depth.families and depth.bytes != "stat"
    if subject.receipt is None or not subject.finished or not whole:
        return None
    if depth.bytes == "default" and _path(subject).exists():
        return None  # it holds, or the files have changed and a new index comes first
    taken_ns = clock_ns(subject.directory.parent)
    return (tree_state(subject.directory), taken_ns) if taken_ns else None


def keep(subject: Subject, begun: tuple[TreeState, int] | None, examination: Examination) -> None:
    """Make the seal of what was found; without one the next quick look reads the records, which takes longer."""
    if begun is None:
        return
    state, taken_ns = begun
    built = BuiltEnv(name=subject.name, directory=subject.directory, receipt=None)
    if not state.settled(taken_ns):
        return
    try:
        seal = {
            "envsmith": __version__,
            "records": _records(built),
            "tree": state.digest,
            "files": examination.files,
            "bytes": examination.hashed_bytes + examination.trusted_bytes,
            "findings": [f.to_dict() for f in examination.report.findings if f.check == "files"],
        }
        write_atomic(_path(subject), json.dumps(seal))
    except (OSError, EnvsmithError):
        return


def drop(subject: Subject) -> None:
    """Take an old seal away, because files were read anew."""
    try:
        _path(subject).unlink(missing_ok=True)
    except OSError:
        return


def _path(subject: Subject) -> Path:
    return BuiltEnv(name=subject.name, directory=subject.directory, receipt=None).beside("seal.json")


def _records(built: BuiltEnv) -> list[str]:
    paths = [built.directory / RECEIPT, *(built.beside(name) for name in RECORDS)]
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def _finding(one: dict[str, Any]) -> Finding:
    return Finding(**{**one, "severity": Severity(one["severity"])})
