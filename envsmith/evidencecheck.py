"""Judging an evidence folder: are its files those that the manifest lists, and do they say the same thing.

Pure: what lies where, and what is in it, comes in as values. Nobody can tell from the folder alone that all of it was
written anew with care; against that stand its digest, said over another channel, and a signature.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envsmith.bundlejson import parsed
from envsmith.errors import EnvsmithError, Problem
from envsmith.evidence import (
    BESIDE,
    IDENTITIES,
    LOCK,
    MANIFEST,
    PATCHES,
    RECEIPT,
    RECORD,
    SBOM,
    SECONDS,
    SUMS,
    VERIFY,
    EvidenceManifest,
    moment,
    overall,
)
from envsmith.evidencefacts import (
    Rung,
    identities_document,
    patches_document,
    rungs_of,
)
from envsmith.evidencepapers import pages_faults, paper_faults, stack_faults
from envsmith.evidencerungs import given_back_faults, ladder_faults, rung_faults
from envsmith.lock import Lock, digest, fingerprint
from envsmith.lock import parse as parse_lock
from envsmith.receipt import Receipt
from envsmith.receipt import parse as parse_receipt

#: Problems that are no damage of the folder: its files are whole, and do not agree.
SHORTCOMINGS = ("evidence-inconsistent", "evidence-summary-differs")
_HINT = "the files of this folder do not belong together: do not rely on it, run the rungs again"
#: Rungs run one after the other; clocks are read a little before and after.
_SLACK_S = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One entry of the folder on the disk."""

    kind: str
    """`file`, `folder`, or what else it is, in words."""
    size: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Papers:
    """What the files say, as far as each can be read."""

    documents: Mapping[str, Any]
    """JSON documents by path, answers among them."""
    lock: Lock | None
    lock_text: str
    receipt: Receipt | None
    texts: Mapping[str, str]
    """Every other file that was read, by path."""


def judge_tree(manifest: EvidenceManifest, seen: Mapping[str, Seen], where: str) -> Iterator[Problem]:
    """Compare what lies in the folder with what the manifest lists, by existence, kind and size."""
    listed = {one.path: one for one in manifest.files}
    folders = {"/".join(path.split("/")[:n]) for path in listed for n in range(1, path.count("/") + 1)}
    for path in sorted({*listed, SUMS} - seen.keys()):
        words = f"`{path}` is missing" + (f", the {listed[path].what}" if path in listed else "")
        yield _damage("evidence-file-missing", words, where)
    for path, entry in sorted(seen.items()):
        if path in folders and entry.kind == "folder":
            continue
        if path not in listed and path not in BESIDE:
            yield _damage("evidence-file-unlisted", f"{_quoted(path)}, a {entry.kind}, is not in the manifest", where)
        elif entry.kind != "file":
            yield _damage("evidence-file-unsafe", f"{_quoted(path)} is a {entry.kind}, not a plain file", where)
        elif path in listed and entry.size != listed[path].size:
            words = f"`{path}` has {entry.size} bytes instead of {listed[path].size}"
            yield _damage("evidence-file-changed", words, where)


def judge_digest(path: str, expected: str, actual: str, where: str) -> Iterator[Problem]:
    """Compare one file with its digest."""
    if expected != actual:
        yield _damage("evidence-file-changed", f"`{path}` has other content", where, f"sha256:{expected}", actual)


def read_papers(contents: Mapping[str, bytes], where: str) -> tuple[Papers, tuple[Problem, ...]]:
    """Parse the files that are judged; those that cannot be read are problems and otherwise missing."""
    problems: list[Problem] = []
    documents: dict[str, Any] = {}
    for path, data in sorted(contents.items()):
        if path.endswith(".json") and path != RECEIPT:
            try:
                documents[path] = parsed(data.decode("utf-8"))
            except ValueError as error:
                problems.append(_differs(f"`{path}` is not JSON: {error!s:.120}", where))
    texts = {path: contents.get(path, b"").decode("utf-8", "replace") for path in (LOCK, RECEIPT)}

    def read(path: str, parse: Callable[[str, str], Any]) -> Any:
        try:
            return parse(texts[path], f"{where}/{path}") if path in contents else None
        except EnvsmithError as error:
            problems.append(_differs(f"`{path}` cannot be read: {error.problems[0].message}", where))
            return None

    papers = Papers(
        documents=documents,
        lock=read(LOCK, parse_lock),
        lock_text=texts[LOCK],
        receipt=read(RECEIPT, parse_receipt),
        texts={path: data.decode("utf-8", "replace") for path, data in contents.items() if path not in documents},
    )
    return papers, tuple(problems)


def judge_papers(manifest: EvidenceManifest, papers: Papers, where: str) -> Iterator[Problem]:
    """Say where the files do not agree with each other.

    Misses: figures and logs that were invented as a whole.
    """
    yield from _judge_identity(manifest, papers, where)
    record = papers.documents.get(RECORD)
    if not isinstance(record, Mapping):
        yield _differs(f"`{RECORD}` is not an object", where)
        return
    try:
        rungs = rungs_of(record)
    except ValueError as error:
        yield _differs(f"`{RECORD}` is not the record of a run: {error}", where)
        return
    yield from _judge_result(manifest, papers, rungs, where)
    for rung in rungs:
        yield from (_differs(words, where) for words in rung_faults(rung, papers.documents))
    paths = [one.path for one in manifest.files]
    about, receipt, texts = manifest.about, papers.receipt, papers.texts
    whole = [*ladder_faults(rungs, paths), *given_back_faults(rungs), *stack_faults(rungs, texts)]
    whole += paper_faults(about, record, receipt, papers.documents, texts)
    yield from (_differs(words, where) for words in whole)
    wanted = patches_document(papers.lock, receipt) if papers.lock and receipt else None
    for words in pages_faults(about, record, receipt, rungs, wanted, texts, paths):
        yield Problem(code="evidence-summary-differs", message=words, where=where, hint=_HINT)
    yield from _judge_findings(record, rungs, where)
    yield from _judge_times(manifest, papers, rungs, where)
    answers = {path: one for path, one in papers.documents.items() if path.startswith("rungs/")}
    if papers.documents.get(IDENTITIES) != identities_document(rungs, answers):
        yield _differs(f"`{IDENTITIES}` is not what the answers of the rungs say", where)


def _judge_identity(manifest: EvidenceManifest, papers: Papers, where: str) -> Iterator[Problem]:
    """The env: lock, receipt, fingerprint, patches and bill of materials belong together."""
    about, lock, receipt = manifest.about, papers.lock, papers.receipt
    yield from _same("the lock", about.lock, digest(papers.lock_text), where)
    if lock is not None and (lock.stack, lock.env) != (about.stack, about.env):
        yield _other("the lock is that of another env", about.name, f"{lock.stack}/{lock.env}", where)
    if receipt is not None:
        yield from _same("the lock of the receipt", receipt.lock_sha256, about.lock, where)
        yield from _same("the fingerprint of the receipt", receipt.fingerprint, about.fingerprint, where)
        if (receipt.stack, receipt.env) != (about.stack, about.env):
            yield _other("the receipt is that of another env", about.name, f"{receipt.stack}/{receipt.env}", where)
    if lock is None or receipt is None:
        return
    row = manifest.file(RECEIPT)
    if row is not None and not row.redactions:  # a secret in the launch table is part of the fingerprint
        yield from _same(
            "the fingerprint of lock, launch table and Python", about.fingerprint, mark(lock, receipt), where
        )
    wanted = json.loads(json.dumps(patches_document(lock, receipt)))
    if papers.documents.get(PATCHES) != wanted:
        yield _other(f"`{PATCHES}` does not say what lock and receipt say", None, None, where)
    for name, tree in sorted(receipt.trees.items()):
        known = next((source.tree for source in lock.sources if source.name == name), None)
        if known != tree:
            yield _other(f"the tree of `{name}` is not the locked one", known, tree, where)
    yield from _judge_series(lock, receipt, where)
    yield from _judge_bill(lock, papers.documents.get(SBOM), where)


def mark(lock: Lock, receipt: Receipt) -> str:
    """The fingerprint that lock and receipt give."""
    base = receipt.verify.get("base")
    return fingerprint(
        lock, receipt.launch, receipt.python, receipt.python_sha256, base=base["python"] if base else None
    )


def _judge_series(lock: Lock, receipt: Receipt, where: str) -> Iterator[Problem]:
    locked = {source.name: source.series for source in lock.sources} | {one.name: one.series for one in lock.patched}
    for name, series in sorted(locked.items()):
        sums = tuple(patch.sha256 for one in series for patch in one.patches)
        applied = tuple(receipt.series.get(name, ()))
        if sums != applied:
            words = f"the patches that were applied to `{name}` are not the locked ones"
            yield _other(words, " ".join(sums)[:200], " ".join(applied)[:200], where)


def _judge_bill(lock: Lock, document: Any, where: str) -> Iterator[Problem]:
    """Every package of the lock is in the bill with its sha256, and no package besides."""
    rows = document.get("components") if isinstance(document, Mapping) else None
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        yield _differs(f"`{SBOM}` is no bill of materials", where)
        return
    listed = {(str(row.get("name")), str(row.get("version")), sha256) for row in rows for sha256 in _sums(row)}
    wanted = {(one.name, one.version, one.sha256) for one in lock.wheels}
    for name, version, sha256 in sorted(wanted - listed)[:20]:
        yield _other(f"`{SBOM}` lacks `{name}` {version} as it is locked", f"sha256:{sha256}", None, where)
    known = wanted | {(one.name, one.version, one.sha256) for one in lock.build_requires}
    wheels = {row for row in listed if row[0] in {name for name, _, _ in known}}
    for name, version, sha256 in sorted(wheels - known)[:20]:
        yield _other(f"`{SBOM}` has `{name}` {version}, which is not locked", None, f"sha256:{sha256}", where)


def _sums(row: Mapping[str, Any]) -> Iterator[str]:
    hashes = row.get("hashes")
    for one in hashes if isinstance(hashes, list) else ():
        if isinstance(one, Mapping) and one.get("alg") == "SHA-256":
            yield str(one.get("content"))


def _judge_result(manifest: EvidenceManifest, papers: Papers, rungs: tuple[Rung, ...], where: str) -> Iterator[Problem]:
    about = manifest.about
    result = overall(rung.status for rung in rungs)
    if result != about.result:
        yield _differs(f"`{MANIFEST}` states another result than the rungs give", where, result, about.result)
    report = papers.documents.get(VERIFY)
    if any(rung.kind == "static" and rung.status == "passed" for rung in rungs):
        if report is None:
            yield _differs(f"the rung `static` passed, and there is no `{VERIFY}`", where)
        elif count := _errors(report):
            yield _differs(f"the rung `static` passed, and `{VERIFY}` holds {count} errors", where)


def _errors(report: Any) -> int:
    findings = report.get("findings") if isinstance(report, Mapping) else None
    if not isinstance(findings, list):
        return 1
    return sum(not isinstance(one, Mapping) or one.get("severity") == "error" for one in findings)


def _judge_findings(record: Mapping[str, Any], rungs: tuple[Rung, ...], where: str) -> Iterator[Problem]:
    """What the record says as a whole: its result, what was found, and what was left behind."""
    result = overall(rung.status for rung in rungs)
    if "result" in record and record["result"] != result and result != "nothing-passed":
        yield _differs(f"`{RECORD}` states another result than its rungs", where, result, str(record["result"])[:60])
    findings = record.get("findings")
    found = [one for one in findings if isinstance(one, Mapping)] if isinstance(findings, list) else []
    errors = {str(one.get("check")).removeprefix("smoke/") for one in found if one.get("severity") == "error"}
    statuses: dict[str, set[str]] = {}
    for rung in rungs:
        statuses.setdefault(rung.kind, set()).add(rung.status)
    for kind in sorted(kind for kind, there in statuses.items() if there == {"passed"} and kind in errors):
        yield _differs(f"the rung `{kind}` passed, and an error was found in it", where)


def _judge_times(manifest: EvidenceManifest, papers: Papers, rungs: tuple[Rung, ...], where: str) -> Iterator[Problem]:
    started, ended = moment(manifest.about.started), moment(manifest.about.ended)
    if started is None or ended is None or ended < started:
        yield _differs(f"the run ended ({manifest.about.ended}) before it started ({manifest.about.started})", where)
        return
    built = moment(papers.receipt.built_at) if papers.receipt else None
    if built is not None and (built - started).total_seconds() > _SLACK_S:
        yield _differs(f"the run started ({manifest.about.started}) before the env was built ({built})", where)
    total, there = sum(rung.seconds for rung in rungs), (ended - started).total_seconds()
    if not 0 <= total <= there * 1.05 + _SLACK_S or any(rung.seconds < 0 for rung in rungs):
        yield _differs(f"the rungs took {total:.1f} s, and the whole run {there:.0f} s", where)
    document = papers.documents.get(SECONDS)
    said = document.get("rungs") if isinstance(document, Mapping) else None
    if said != {rung.folder: rung.seconds for rung in rungs}:
        yield _differs(f"`{SECONDS}` is not what `{RECORD}` says of the rungs", where)


def _same(what: str, one: str, other: str, where: str) -> Iterator[Problem]:
    if one != other:
        yield _other(f"{what} is another one", f"sha256:{one}", f"sha256:{other}", where)


def _quoted(path: str) -> str:
    return f"`{path}`" if path.isprintable() and len(path) <= 200 else ascii(path)[:200]


def _damage(code: str, message: str, where: str, expected: str | None = None, actual: str | None = None) -> Problem:
    return Problem(
        code=code,
        message=message,
        where=where,
        hint="copy the folder again from where it was made; if it is the same there, do not rely on it",
        expected=expected,
        actual=f"sha256:{actual}" if actual else None,
    )


def _other(message: str, expected: str | None, actual: str | None, where: str) -> Problem:
    return Problem(
        code="evidence-identity-differs",
        message=message,
        where=where,
        hint=_HINT,
        expected=expected,
        actual=actual,
    )


def _differs(message: str, where: str, expected: str | None = None, actual: str | None = None) -> Problem:
    return Problem(
        code="evidence-inconsistent",
        message=message,
        where=where,
        hint=_HINT,
        expected=expected,
        actual=actual,
    )
