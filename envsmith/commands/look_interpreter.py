"""Looking at an env's interpreter: what its links lead to, its binary, pyvenv.cfg and the standard library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from envsmith.bytecode import pairs_to_prove
from envsmith.checks.interpreter import check_interpreter_files, library_figure
from envsmith.commands.depth import Depth, Examination
from envsmith.commands.records import keep_beside
from envsmith.commands.subject import Subject
from envsmith.errors import EnvsmithError
from envsmith.report import Finding
from envsmith.stdlib import PythonRecord, python_digest
from envsmith.tools.bytecode import load_memory, prove
from envsmith.tools.interpreter import interpreter_digest
from envsmith.tools.process import scrubbed
from envsmith.tools.stdlib import look
from envsmith.tools.tree import StatIndex


def look_at_interpreter(
    subject: Subject, depth: Depth, environ: Mapping[str, str], examination: Examination
) -> Iterator[Finding]:
    """Run the family `interpreter`; files that its stat index vouches for are not read, but with `--deep`."""
    deep = depth.bytes == "deep"
    record = PythonRecord.from_json(subject.python_record) if subject.python_record else None
    path = subject.beside("python-stat.json")
    index = StatIndex.load(path)
    seen, renewed = look(subject.directory, record, index, env=scrubbed(environ), deep=deep)
    if renewed is not index and seen.observed is not None and seen.observed.hashed_files:
        keep_beside(path, renewed.to_json())
    proof = None
    if deep and depth.library_bytecode and seen.observed is not None and seen.executable is not None:
        memory_path = subject.beside("python-pyc.json")
        known = load_memory(memory_path)
        proof, memory = prove(
            Path("/"),
            pairs_to_prove(seen.observed, {}, python=subject.python),
            seen.observed,
            python=Path(seen.executable),
            identity=python_digest(seen.executable_sha256 or "", seen.libpython_sha256),
            env=scrubbed(environ),
            memory=known,
            deep=True,
        )
        if memory is not known:
            keep_beside(memory_path, memory.to_json())
    examination.figures["interpreter"] = library_figure(seen, record)
    yield from check_interpreter_files(
        seen,
        record,
        python_sha256=subject.receipt.python_sha256 if subject.receipt else None,
        identity=interpreter_identity(subject) if record is None else None,
        proof=proof,
    )


def interpreter_identity(subject: Subject) -> str:
    """One digest of the interpreter that runs now, for proofs that hold under it alone; empty when it is gone."""
    try:
        return interpreter_digest(subject.executable)
    except EnvsmithError:
        return ""
