"""Prove bytecode: recompile sources in the interpreter that would load it, in a few processes, and remember the rest.

The payload is envsmith/probe/recompile.py. A file that kills the process that reads it is found, not fatal: what was
answered before stays answered, the file is asked about once more alone, and the others go on.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from envsmith.bytecode import Memory, Pair, Proof, Row, Verdict
from envsmith.errors import EnvsmithError
from envsmith.observed import Observed, Seen
from envsmith.tools.process import Completed, run
from envsmith.tools.tree import COARSE_NS, FINE_NS, clock_ns, hash_tree

PAYLOAD = Path(__file__).parent.parent / "probe" / "recompile.py"
#: What the default level of verify recompiles at most: about half a second on two cores.
BUDGET_FILES = 200
BATCH_FILES = 200
#: More processes gain nothing that anybody would wait for, and a shared login node has other users.
JOBS = 16
FILE_SECONDS = 20.0
"""User time of one file; the slowest source of a 10 GB environment takes 1.5 s."""
BATCH_SECONDS = 600.0
MEMORY_BYTES = 4 << 30
#: Files that may kill a process before the rest is given up: each costs two starts of an interpreter.
CRASHES = 100
_WORDS = frozenset({"same", "lines", "differs", "unreadable", "stale", "no-compile", "unproved"})
_SLOW = f"it takes more than {FILE_SECONDS:.0f} s"
_TOO_SLOW = -26  # SIGVTALRM: the payload's own clock


def prove(
    root: Path,
    pairs: Iterable[Pair],
    observed: Observed,
    *,
    python: Path,
    identity: str,
    env: Mapping[str, str],
    memory: Memory | None = None,
    deep: bool = False,
    budget_files: int = BUDGET_FILES,
    clock: Path | None = None,
    on_file: Callable[[int], None] | None = None,
) -> tuple[Proof, Memory]:
    """Prove that bytecode holds what its source compiles to; return what came out, and the memory, itself if unchanged.

    With `deep` every file is read, and every pair that is not remembered byte for byte is recompiled. Without it, a
    pair whose attributes are those of its proof is believed, and the newest `budget_files` of the others are
    recompiled: what was planted a moment ago is among them.

    `identity` names the interpreter (a digest of its binary): under another one nothing is remembered. `observed` must
    hold the digests of the sources that are to be remembered. `clock` is a folder on the file system of `root` where a
    file may be made for a moment. Nothing is written below `root`, nothing is raised over bad files.
    """
    started, pairs = time.monotonic(), tuple(pairs)
    old = memory if memory is not None and memory.identity == identity else Memory(identity=identity)
    taken_ns = clock_ns(clock) if clock else 0
    if taken_ns and old.taken_ns > taken_ns:
        old = Memory(identity=identity, rows=old.rows)  # a memory from the future vouches for any attributes
    seen = {item.path: item for item in observed.files}
    kept = _remembered(root, pairs, seen, observed.digests, old, deep)
    rest = sorted((pair for pair in pairs if pair.pyc not in kept), key=lambda pair: -seen[pair.pyc].ctime_ns)
    chosen = rest if deep else rest[:budget_files]
    found = recompile(root, chosen, python=python, env=env, on_file=on_file)
    proof = _proof(pairs, kept, rest, found, time.monotonic() - started)
    same = [verdict for verdict in found.verdicts if verdict.word == "same"]
    rows = {**kept, **{v.pyc: _row(seen[v.pyc], v.pyc_sha256, v.source_sha256) for v in same}}
    if rows == old.rows and all(_vouches(row, seen[path], old.taken_ns) for path, row in rows.items()):
        return proof, old
    return proof, Memory(identity=identity, taken_ns=taken_ns or old.taken_ns, rows=rows)


def _proof(
    pairs: Sequence[Pair], kept: Mapping[str, Row], rest: Sequence[Pair], found: Recompiled, seconds: float
) -> Proof:
    answered = {verdict.pyc for verdict in found.verdicts}
    return Proof(
        pairs=len(pairs),
        remembered=len(kept),
        recompiled=len(answered),
        verdicts=tuple(sorted(verdict for verdict in found.verdicts if verdict.word != "same")),
        left=tuple(sorted(pair.pyc for pair in rest if pair.pyc not in answered)),
        seconds=seconds,
        problem=found.problem,
    )


def load_memory(path: Path) -> Memory:
    """Read a memory; one that is missing or malformed is an empty one."""
    try:
        return Memory.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return Memory()


def _remembered(
    root: Path,
    pairs: Sequence[Pair],
    seen: Mapping[str, Seen],
    digests: Mapping[str, str],
    memory: Memory,
    deep: bool,
) -> dict[str, Row]:
    """Return the rows that still hold: source and bytecode are the same, the latter by attributes or by content."""
    kept: dict[str, Row] = {}
    doubtful: dict[str, Row] = {}
    for pair in pairs:
        row = memory.rows.get(pair.pyc)
        if row is None or digests.get(pair.source) != row.source_sha256:
            continue
        if not deep and _vouches(row, seen[pair.pyc], memory.taken_ns):
            kept[pair.pyc] = row
        else:
            doubtful[pair.pyc] = row
    read = hash_tree(root, [seen[path] for path in doubtful]).digests if doubtful else {}
    for path, row in doubtful.items():
        if read.get(path) == row.pyc_sha256:
            kept[path] = _row(seen[path], row.pyc_sha256, row.source_sha256)
    return kept


def _vouches(row: Row, item: Seen, taken_ns: int) -> bool:
    """Believe attributes by the rule of the stat index: a write in the same tick as the look leaves them alike."""
    if row[:4] != (item.size, item.mtime_ns, item.ctime_ns, item.ino):
        return False
    margin = FINE_NS if item.ctime_ns % 1_000_000 else COARSE_NS
    return max(item.mtime_ns, item.ctime_ns) < taken_ns - margin


def _row(item: Seen, pyc_sha256: str, source_sha256: str) -> Row:
    return Row(item.size, item.mtime_ns, item.ctime_ns, item.ino, pyc_sha256, source_sha256)


@dataclass(kw_only=True, slots=True)
class Recompiled:
    """What the processes said, in the order in which they said it."""

    verdicts: list[Verdict] = field(default_factory=list)
    problem: str | None = None
    crashes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def broke(self, problem: str) -> None:
        """Note why the rest is given up; the first reason stays."""
        with self.lock:
            self.problem = self.problem or problem


def recompile(
    root: Path,
    pairs: Sequence[Pair],
    *,
    python: Path,
    env: Mapping[str, str],
    jobs: int | None = None,
    on_file: Callable[[int], None] | None = None,
) -> Recompiled:
    """Ask `python` about every pair, on all cores. A pair without a verdict was not asked: `problem` says why."""
    result = Recompiled()
    if not pairs:
        return result
    cores = jobs or min(JOBS, len(os.sched_getaffinity(0)))
    size = max(1, min(BATCH_FILES, -(-len(pairs) // cores)))
    # Every n-th file: files of one package are alike in size, and one core should not get all of torch.
    count = -(-len(pairs) // size)
    batches = [pairs[start::count] for start in range(count)]
    with tempfile.TemporaryDirectory(prefix="envsmith-recompile-") as scratch:
        desk = _Desk(root=root, python=python, env=env, scratch=Path(scratch))

        def work(batch: Sequence[Pair]) -> None:
            for verdict in _batch(desk, batch, result):
                with result.lock:
                    result.verdicts.append(verdict)
                if on_file:
                    on_file(1)

        with ThreadPoolExecutor(max_workers=cores) as pool:
            list(pool.map(work, batches))
    return result


@dataclass(frozen=True, kw_only=True, slots=True)
class _Desk:
    root: Path
    python: Path
    env: Mapping[str, str]
    scratch: Path


def _batch(desk: _Desk, batch: Sequence[Pair], result: Recompiled) -> Iterator[Verdict]:
    """Ask about a batch until all of it is answered; whoever kills the process is asked about alone."""
    rest = list(batch)
    while rest and result.problem is None:
        answers, ended = _ask(desk, rest)
        if answers is None:
            result.broke(ended)
            return
        yield from answers
        rest = rest[len(answers) :]
        if not rest:
            return
        with result.lock:
            result.crashes += 1
            if result.crashes > CRASHES:
                result.problem = f"more than {CRASHES} files ended the process that read them"
                return
        alone, how = _ask(desk, rest[:1])
        if alone is None:
            result.broke(how)
            return
        yield alone[0] if alone else _fatal(rest[0], how)
        rest = rest[1:]


def _fatal(pair: Pair, how: str) -> Verdict:
    if how == _SLOW:
        return Verdict(pair.pyc, "unproved", how)
    return Verdict(pair.pyc, "crash", how)


def _ask(desk: _Desk, pairs: Sequence[Pair]) -> tuple[list[Verdict] | None, str]:
    """Run the payload once. Returns the answers up to where it ended, and how it ended; None when it never began."""
    with tempfile.TemporaryDirectory(dir=desk.scratch) as folder:
        asked, answered, empty = (Path(folder, name) for name in ("request", "answer", "empty"))
        empty.mkdir()
        paths = [part for pair in pairs for part in (pair.pyc, pair.source, str(pair.level))]
        parts = [str(FILE_SECONDS), str(MEMORY_BYTES), str(desk.root.absolute()), *paths]
        asked.write_bytes(b"".join(os.fsencode(part) + b"\0" for part in parts))
        # Its own start-up must not load bytecode that may be what is asked about.
        argv = (desk.python, "-I", "-S", "-B", "-X", f"pycache_prefix={empty}", PAYLOAD, asked, answered)
        try:
            done = run(argv, env=desk.env, cwd=empty, timeout_s=BATCH_SECONDS)
        except EnvsmithError as error:
            problem = error.problems[0]
            if problem.code != "program-timeout":
                return None, problem.message
            # A disk that hangs, or so many processes that nobody gets on: it says nothing about a file.
            return None, f"{len(pairs)} files were not recompiled within {BATCH_SECONDS:.0f} s"
        answers = _answers(answered, pairs)
        if answers is None:
            return None, f"`{desk.python}` {_ended(done)} before its first line of ours: {done.tail(3) or 'no words'}"
        return answers, _SLOW if done.returncode == _TOO_SLOW else _ended(done)


def _ended(done: Completed) -> str:
    return f"ended by signal {-done.returncode}" if done.returncode < 0 else f"ended with exit code {done.returncode}"


def _answers(path: Path, pairs: Sequence[Pair]) -> list[Verdict] | None:
    """Read whole lines as long as they have their form."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError:
        return None
    if not lines or lines[0] != b"begin":
        return None
    answers: list[Verdict] = []
    for pair, line in zip(pairs, lines[1:], strict=False):
        row = line.decode("ascii", errors="replace").split("\t")
        if len(row) != 4 or row[0] not in _WORDS:
            break
        answers.append(Verdict(pair.pyc, *row))
    return answers
