"""Family `pyc`: does the bytecode that Python would load hold what its source says?

Two parts. By name and header, always: is there bytecode without a source of ours, bytecode that Python believes
whatever its source says, bytecode that it passes over? By recompiling, as far as a proof went: is the code what the
source compiles to? A right time and size in the header prove nothing: whoever writes code can write those too.

Sources: cached bytecode invalidation (docs.python.org, "The import system", read 2026-11-30), PEP 552, PEP 3147.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from envsmith.bytecode import CacheName, Fit, Proof, Verdict, cache_name, judge_header, magic_of, tag_of
from envsmith.checks.unowned import leftover_root
from envsmith.observed import Observed, Seen
from envsmith.report import REBUILD, Finding, Severity

FAMILY = "pyc"
SHOWN = 10
HINT_REMOVE = "remove it; Python writes its own when it may"
HINT_POISON = (
    "find out who wrote it, then remove it; bytecode that another patch release of Python left differs too, and is "
    f"removed alike, or comes new with {REBUILD}"
)
#: What a verdict of the proof means for whoever imports the file.
POISONED: Mapping[str, str] = {
    "differs": "runs other code than its source says",
    "unreadable": "fits its source by its header and cannot be read: importing it fails",
    "crash": "fits its source by its header and ends the process that reads it",
}


def check_pyc(
    observed: Observed,
    listed: Collection[str],
    *,
    python: str,
    proof: Proof | None = None,
) -> Iterator[Finding]:
    """Judge every `.pyc` that the manifest does not list, and what recompiling said about those that would be loaded.

    `listed` are the paths of the manifest, `python` is the version of the env's interpreter.

    Proves, with a proof that left nothing, that every file of bytecode that this Python loads holds what its source
    compiles to, constants, docstrings and flags included. Misses without one: bytecode with a right header and other
    code. Misses always: what pytest rewrote (its own loader reads that), bytecode of other interpreters, columns in
    line tables, and bytecode outside of the env that `PYTHONPYCACHEPREFIX` names.
    """
    yield from _by_header(observed, listed, python)
    if proof is not None:
        yield from judge_proof(proof, FAMILY)


def judge_proof(proof: Proof, check: str, poisoned: str = "poisoned-bytecode") -> Iterator[Finding]:
    """Turn a proof into findings of `check`; `poisoned` is the kind of those that would run something else."""
    if proof.problem:
        message = f"recompiling broke off: {proof.problem}"
        hint = "nothing can be said about the code in these files; look into the interpreter first"
        subject = f"{len(proof.left):,} files"
        yield _finding("bytecode-not-proved", Severity.WARNING, subject, message, hint, check)
    words: dict[str, list[Verdict]] = defaultdict(list)
    for verdict in proof.verdicts:
        words[verdict.word].append(verdict)
    for word, meaning in POISONED.items():
        for verdict in words[word][:SHOWN]:
            detail = f": {verdict.detail}" if verdict.detail else ""
            yield _finding(poisoned, Severity.ERROR, verdict.pyc, f"{meaning}{detail}", HINT_POISON, check)
        yield from _more(poisoned, Severity.ERROR, len(words[word]), meaning, HINT_POISON, check)
    meaning = "does what its source says but names other lines, so tracebacks and debuggers show other code"
    yield from _group("misleading-bytecode", Severity.WARNING, words["lines"], meaning, HINT_REMOVE, check)
    meaning = "would be loaded, and its source does not compile: who wrote it cannot be told"
    yield from _group("unproved-bytecode", Severity.NOTE, words["no-compile"], meaning, None, check)
    meaning = "would be loaded, and could not be compared with its source: too large, too deep, or unreadable"
    yield from _group("unreadable-bytecode", Severity.ERROR, words["unproved"], meaning, HINT_REMOVE, check)


def _by_header(observed: Observed, listed: Collection[str], python: str) -> Iterator[Finding]:
    seen = {item.path: item for item in observed.files}
    tag, magic = tag_of(python), magic_of(python)
    orphans: dict[str, list[str]] = defaultdict(list)
    stale: list[str] = []
    foreign: dict[str, list[str]] = defaultdict(list)
    for item in observed.files:
        if not item.path.endswith(".pyc") or item.kind == "folder" or item.path in listed:
            continue
        if leftover_root(item.path) or "/.git/" in item.path:
            continue  # the family `files` has them
        name = cache_name(item.path)
        if name and name.tag.startswith(f"{tag}-pytest-"):
            continue
        if name and name.tag != tag:
            foreign[name.tag].append(item.path)
        elif why := _orphaned(item, name, listed):
            orphans[why].append(item.path)
        elif name and name.source in seen:
            fit, _ = judge_header(observed.bytecode.get(item.path, b""), seen[name.source], magic)
            if fit is Fit.UNCHECKED:
                orphans["is never compared with its source (unchecked hash)"].append(item.path)
            elif fit is Fit.STALE:
                stale.append(item.path)
    for why, paths in sorted(orphans.items()):
        for path in paths[:SHOWN]:
            yield _finding("unowned-bytecode", Severity.ERROR, path, f"bytecode {why}", HINT_REMOVE)
        yield from _more("unowned-bytecode", Severity.ERROR, len(paths), f"bytecode {why}", HINT_REMOVE)
    yield from _notes(stale, foreign, tag)


def _orphaned(item: Seen, name: CacheName | None, listed: Collection[str]) -> str | None:
    if name is None:
        return "can be imported without a source and belongs to no distribution"
    if name.source not in listed:
        return "has no source that belongs to a distribution"
    return None if item.kind == "file" else "is a link, and Python follows it"


def _notes(stale: list[str], foreign: Mapping[str, list[str]], tag: str) -> Iterator[Finding]:
    if stale:
        message = "Python will not load it, because its header does not fit its source"
        yield _counted("stale-bytecode", stale, message)
    for other, paths in sorted(foreign.items()):
        message = f"another interpreter ({other}) wrote it, so that one imported from this env; {tag} never loads it"
        yield _counted("foreign-bytecode", paths, message)


def _counted(kind: str, paths: list[str], message: str) -> Finding:
    """One note for all: who touched a folder reads one line."""
    subject = paths[0] if len(paths) == 1 else f"{len(paths):,} files"
    names = "" if len(paths) == 1 else f": {', '.join(paths[:2])}{', …' if len(paths) > 2 else ''}"
    return _finding(kind, Severity.NOTE, subject, message + names, None)


def _group(
    kind: str, severity: Severity, verdicts: list[Verdict], meaning: str, hint: str | None, check: str
) -> Iterator[Finding]:
    if not verdicts:
        return
    first = verdicts[0]
    subject = first.pyc if len(verdicts) == 1 else f"{len(verdicts):,} files"
    example = first.detail if len(verdicts) == 1 else f"{first.pyc} ({first.detail}), …"
    yield _finding(kind, severity, subject, f"{meaning}: {example}", hint, check)


def _more(
    kind: str, severity: Severity, count: int, message: str, hint: str | None, check: str = FAMILY
) -> Iterator[Finding]:
    if count > SHOWN:
        yield _finding(kind, severity, f"{count - SHOWN:,} more files", message, hint, check)


def _finding(
    kind: str, severity: Severity, subject: str, message: str, hint: str | None, check: str = FAMILY
) -> Finding:
    return Finding(check=check, kind=kind, severity=severity, subject=subject, message=message, hint=hint)
