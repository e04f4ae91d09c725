"""Looking at bytecode: does the code that Python would load hold what its source says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from envsmith.bytecode import Proof, pairs_to_prove
from envsmith.checks.pyc import check_pyc
from envsmith.commands.depth import Depth, Examination
from envsmith.commands.look_files import clock_folder
from envsmith.commands.records import keep_beside
from envsmith.commands.subject import Subject
from envsmith.observed import Observed
from envsmith.recorded import claimed_files
from envsmith.report import Finding, Severity
from envsmith.tools.bytecode import BUDGET_FILES, load_memory, prove
from envsmith.tools.process import scrubbed
from envsmith.tools.progress import Progress


def look_at_bytecode(
    subject: Subject,
    observed: Observed,
    depth: Depth,
    environ: Mapping[str, str],
    examination: Examination,
    identity: str,
    progress: Progress | None,
) -> Iterator[Finding]:
    """Run the family `pyc`: headers always, recompiling as far as the level goes; the proof is remembered.

    `identity` names the interpreter that compiles: a proof under another one proves nothing here.
    """
    listed = {entry.path: entry.sha256 for entry in subject.manifest.entries}
    if subject.foreign:
        listed |= dict.fromkeys(claimed_files(observed.files, subject.foreign.distributions), "")
    path = subject.beside("pyc.json")
    memory = load_memory(path)
    pairs = [
        pair
        for pair in pairs_to_prove(observed, listed, python=subject.python)
        if not _is_edited(pair.source, listed, observed)
    ]
    proof = Proof()
    if pairs:
        if progress and depth.bytes == "deep":
            progress.message(f"recompile {len(pairs):,} files of bytecode")
        proof, renewed = prove(
            subject.directory,
            pairs,
            observed,
            python=subject.executable,
            identity=identity,
            env=scrubbed(environ),
            memory=memory,
            deep=depth.bytes == "deep",
            budget_files=0 if depth.bytes == "stat" else BUDGET_FILES,
            clock=clock_folder(subject),
        )
        if renewed is not memory:
            keep_beside(path, renewed.to_json())
        examination.figures["bytecode"] = proof.figure()
    for finding in check_pyc(observed, listed, python=subject.python, proof=proof):
        system = subject.foreign is not None and not subject.foreign.is_venv and finding.kind == "unowned-bytecode"
        yield replace(finding, severity=Severity.NOTE) if system else finding


def _is_edited(source: str, listed: Mapping[str, str], observed: Observed) -> bool:
    """Whether the family `files` says that a source was changed: its bytecode is then that of the old text."""
    wanted, found = listed.get(source), observed.digests.get(source)
    return bool(wanted and found) and wanted != found
