"""`envsmith inspect` for an evidence folder: what it holds, who signed it, and whether all of it is right."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from envsmith.commands.bundles import Signed, expected_digest, site_signers
from envsmith.commands.envs import shown, user_path
from envsmith.commands.result import Result
from envsmith.commands.screen import Screen
from envsmith.errors import EnvsmithError, IntegrityError, NegativeAnswer, Problem
from envsmith.evidence import (
    LARGEST_MANIFEST,
    MANIFEST,
    NAMESPACE,
    RECORD,
    SIGNATURE,
    SUMMARY,
    SUMS,
    EvidenceManifest,
    digest,
    parse_manifest,
    sums_text,
)
from envsmith.evidencecheck import SHORTCOMINGS, Seen, judge_digest, judge_papers, judge_tree, read_papers
from envsmith.evidencefacts import Rung, is_paper, rungs_of
from envsmith.plan import megabytes
from envsmith.sshsig import Signer, parse_signature, verify
from envsmith.tools.plainfolder import look, read_plain, read_small

#: Papers are read whole up to this size; only logs are larger, and those are not judged.
_LARGEST_PAPER = 64 << 20
#: So many bytes of papers are held at once.
_MOST_PAPERS = 128 << 20
_LARGEST_SIGNATURE = 1 << 16
#: So many problems are said; the rest is counted.
_SAID = 40
#: A signature with one of these is damage, whoever is trusted.
_DAMAGED = ("signature-wrong", "signature-malformed", "signature-namespace", "signature-key-type")


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenedEvidence:
    """An evidence folder whose manifest was read."""

    folder: Path
    where: str
    manifest: EvidenceManifest
    manifest_bytes: bytes
    seen: Mapping[str, Seen]

    @property
    def sha256(self) -> str:
        """The digest of the whole."""
        return digest(self.manifest_bytes)


def is_evidence(word: str) -> bool:
    """Whether a word names an evidence folder, or one that lost its manifest."""
    if word == "-" or word.startswith("oci://"):
        return False
    folder = user_path(word)
    there = [os.path.lexists(folder / name) for name in (MANIFEST, RECORD, SUMMARY)]
    return folder.is_dir() and (there[0] or all(there[1:]))


def inspect_evidence(word: str, *, check: bool, trust: str | None, expect: str | None, screen: Screen) -> Result:
    """Describe an evidence folder; `check` reads every byte of it and holds its files against each other.

    Raises:
        IntegrityError: `evidence-malformed`, `evidence-file-missing`, `evidence-file-changed`,
            `evidence-file-unlisted`, `evidence-file-unsafe`, `evidence-identity-differs`, `evidence-unexpected`,
            `evidence-unsigned`, `evidence-too-large`, and those of signatures.
        NegativeAnswer: `evidence-inconsistent`, `evidence-summary-differs`.
        InputError: `expect-malformed`, `trust-unreadable`, `allowed-signers-malformed`.
    """
    wanted = None if expect is None else expected_digest(expect)
    trusted = site_signers(trust)
    opened = open_evidence(user_path(word))
    if wanted is not None and wanted != opened.sha256:
        raise _unexpected(opened, wanted)
    problems, hashed = judge(opened, check=check, screen=screen)
    signed = signature_of(opened, trusted or ()) if SIGNATURE in opened.seen else None
    problems += _signature_problems(opened, signed, wanted_by_site=trust is not None, check=check)
    if problems:
        raise refusal(problems)
    rungs = _rungs(opened)
    data = _data(opened, rungs, signed, check, hashed)
    return Result(command="inspect", data=data, text=_text(opened, rungs, data))


def open_evidence(folder: Path) -> OpenedEvidence:
    """Read the manifest of a folder, and see what lies in it.

    Raises:
        IntegrityError: `evidence-malformed`, `evidence-file-missing`, `evidence-file-unsafe`.
    """
    where = shown(folder)
    if not os.path.lexists(folder / MANIFEST):
        hint = "copy the folder again from where it was made; without its manifest nothing of it can be checked"
        message = f"`{MANIFEST}` is missing, the manifest"
        raise IntegrityError(Problem(code="evidence-file-missing", message=message, where=where, hint=hint))
    data = read_small(folder, MANIFEST, most=LARGEST_MANIFEST)
    manifest = parse_manifest(data if data is not None else bytes(LARGEST_MANIFEST + 1), f"{where}/{MANIFEST}")
    paths = [one.path for one in manifest.files]
    folders = {"/".join(path.split("/")[:n]) for path in paths for n in range(1, path.count("/") + 1)}
    return OpenedEvidence(
        folder=folder, where=where, manifest=manifest, manifest_bytes=data or b"", seen=look(folder, folders)
    )


def judge(opened: OpenedEvidence, *, check: bool, screen: Screen) -> tuple[list[Problem], int]:
    """Return what is wrong with the files of a folder, and how many bytes were read for it."""
    problems = list(judge_tree(opened.manifest, opened.seen, opened.where))
    problems += _size_problems(opened) if check else []
    if problems or not check:
        return problems, 0
    contents: dict[str, bytes] = {}
    hashed = 0

    def counted(count: int) -> None:
        nonlocal hashed
        hashed += count
        screen.advance(count)

    screen.start(sum(one.size for one in opened.manifest.files), len(opened.manifest.files))
    try:
        for one in opened.manifest.files:
            limit = _LARGEST_PAPER if is_paper(one.path) else 0
            sha256, data = read_plain(opened.folder, one.path, counted, most=limit)
            problems += judge_digest(one.path, one.sha256, sha256, opened.where)
            if data is not None:
                contents[one.path] = data
        sums, _ = read_plain(opened.folder, SUMS, counted, most=0)
    finally:
        screen.done()
    problems += judge_digest(SUMS, digest(sums_text(opened.manifest, opened.sha256).encode()), sums, opened.where)
    if not problems:
        papers, unreadable = read_papers(contents, opened.where)
        problems = [*unreadable, *judge_papers(opened.manifest, papers, opened.where)]
    return problems, hashed


def _size_problems(opened: OpenedEvidence) -> list[Problem]:
    """All papers are held in memory at once, and a document there is some twenty times its size."""
    total = sum(one.size for one in opened.manifest.files if is_paper(one.path))
    large = [one.path for one in opened.manifest.files if is_paper(one.path) and one.size > _LARGEST_PAPER]
    if total <= _MOST_PAPERS and not large:
        return []
    what = f"`{large[0]}` alone" if large else "its documents together"
    return [
        Problem(
            code="evidence-too-large",
            message=f"this folder cannot be judged: {what} are larger than what a run writes",
            where=opened.where,
            expected=f"at most {megabytes(_MOST_PAPERS)} of documents, {megabytes(_LARGEST_PAPER)} each",
            actual=megabytes(total),
            hint="`sha256sum -c SHA256SUMS` still checks the bytes; ask whoever made the folder what fills it",
        )
    ]


def refusal(problems: list[Problem]) -> EnvsmithError:
    """The error that carries problems of a folder: damage outranks files that do not agree."""
    kind = NegativeAnswer if all(one.code in SHORTCOMINGS for one in problems) else IntegrityError
    kept = problems[:_SAID]
    if len(problems) > _SAID:
        last = problems[_SAID]
        more = f"and {len(problems) - _SAID} problems more, the next: {last.message}"
        kept.append(Problem(code=last.code, message=more, where=last.where, hint=last.hint))
    return kind(*kept)


def signature_of(opened: OpenedEvidence, trusted: tuple[Signer, ...]) -> Signed:
    """Judge the signature that lies beside the manifest."""
    where = f"{opened.where}/{SIGNATURE}"
    fingerprint = ""
    try:
        data = read_small(opened.folder, SIGNATURE, most=_LARGEST_SIGNATURE)
        armored = (data or b"").decode("ascii", "replace")
        fingerprint = parse_signature(armored, where).fingerprint
        now = datetime.now(timezone.utc)
        verdict = verify(opened.manifest_bytes, armored, trusted, where=where, now=now, namespace=NAMESPACE)
    except IntegrityError as error:
        return Signed(fingerprint=fingerprint, who=None, problem=error.problems[0])
    return Signed(fingerprint=verdict.fingerprint, who=verdict.who, problem=verdict.problem)


def _signature_problems(
    opened: OpenedEvidence, signed: Signed | None, *, wanted_by_site: bool, check: bool
) -> list[Problem]:
    """Whoever names keys asks whether one of them signed; a signature of other bytes is damage."""
    if signed is None and wanted_by_site:
        hint = (
            f"have it signed: `ssh-keygen -Y sign -n {NAMESPACE} -f KEY {MANIFEST}`, or name its digest with `--expect`"
        )
        message = "signed evidence is asked for, and this folder is not signed"
        return [Problem(code="evidence-unsigned", message=message, where=opened.where, hint=hint)]
    if signed is None or signed.problem is None:
        return []
    return [signed.problem] if wanted_by_site or (check and signed.problem.code in _DAMAGED) else []


def _unexpected(opened: OpenedEvidence, wanted: str) -> IntegrityError:
    return IntegrityError(
        Problem(
            code="evidence-unexpected",
            message="this is another evidence folder than the one that is expected",
            where=opened.where,
            expected=f"sha256:{wanted}",
            actual=f"sha256:{opened.sha256} ({opened.manifest.about.name}, {opened.manifest.about.started})",
            hint="ask whoever said the digest which run they mean; do not rely on this one",
        )
    )


def _rungs(opened: OpenedEvidence) -> tuple[Rung, ...]:
    data = read_small(opened.folder, RECORD, most=_LARGEST_PAPER)
    papers, problems = read_papers({RECORD: data or b""}, opened.where)
    try:
        if problems:
            raise NegativeAnswer(*problems)
        return rungs_of(papers.documents[RECORD])
    except (ValueError, AttributeError) as error:
        message = f"`{RECORD}` is not the record of a run: {error}"
        raise NegativeAnswer(Problem(code="evidence-inconsistent", message=message, where=opened.where)) from error


def _data(
    opened: OpenedEvidence, rungs: tuple[Rung, ...], signed: Signed | None, check: bool, hashed: int
) -> dict[str, Any]:
    manifest = opened.manifest
    return {
        "kind": "evidence",
        "digest": f"sha256:{opened.sha256}",
        **asdict(manifest.about),
        "rungs": [
            {"rung": one.rung, "folder": one.folder, "status": one.status, "seconds": one.seconds, "device": one.device}
            for one in rungs
        ],
        "signature": signed.to_dict() if signed else None,
        "bytes": sum(one.size for one in manifest.files),
        "files": [asdict(one) for one in manifest.files],
        "checked": check,
        "hashed_bytes": hashed,
    }


def _text(opened: OpenedEvidence, rungs: tuple[Rung, ...], data: Mapping[str, Any]) -> str:
    about, files = opened.manifest.about, opened.manifest.files
    signature = data["signature"]
    lines = [
        f"evidence of {about.name}: {about.result}",
        f"digest:   {data['digest']}",
        f"env:      {about.fingerprint}",
        f"lock:     sha256:{about.lock}",
        f"run:      {about.started} to {about.ended}, by envsmith {about.envsmith}",
        f"holds:    {len(files)} files, {megabytes(data['bytes'])}",
        f"signed:   {_signed(signature) if signature else 'no'}",
        (
            f"checked:  every byte, {megabytes(data['hashed_bytes'])}, and the files agree with each other"
            if data["checked"]
            else "checked:  names and sizes; `--check` reads every byte"
        ),
        "",
    ]
    width = max((len(one.folder) for one in rungs), default=0)
    lines += [f"{one.status:<12}  {one.folder:<{width}}  {one.seconds:>8.1f} s  {one.device or ''}" for one in rungs]
    lines += ["", *(_file_line(one.sha256, one.size, one.path, one.remarks) for one in files)]
    return "\n".join(line.rstrip() for line in lines)


def _file_line(sha256: str, size: int, path: str, remarks: str) -> str:
    return f"{sha256[:12]}  {megabytes(size):>9}  {path}" + (f"  ({remarks})" if remarks else "")


def _signed(signature: Mapping[str, Any]) -> str:
    if signature["problem"] is None:
        return f"by {signature['who']}, {signature['fingerprint']}"
    return f"{signature['fingerprint'] or 'unreadable'}: {signature['problem']['message']}"
