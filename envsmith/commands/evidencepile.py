"""The files of an evidence folder while it is written: each is cleaned of secrets, hashed and listed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envsmith.commands.evidencelogs import KEPT_BYTES, Left, files_of, read_kept
from envsmith.commands.smokerecord import finite
from envsmith.evidence import (
    HOST,
    IDENTITIES,
    LAUNCH,
    LOCK,
    PAGE,
    PATCHES,
    RECEIPT,
    RECORD,
    RUNGS,
    SBOM,
    SECONDS,
    SUMMARY,
    VERIFY,
    VERIFY_TEXT,
    About,
    EvidenceFile,
)
from envsmith.evidencefacts import (
    Rung,
    death,
    deaths,
    findings_of,
    host_of,
    identities_document,
    launch_document,
    patches_document,
    rank_of_answer,
    report_document,
    report_of,
    rungs_of,
    seconds_document,
    shallow_answer,
    stack_path,
)
from envsmith.evidencehtml import page
from envsmith.evidencesummary import Told, markdown, summarise
from envsmith.launch import LaunchEnvironment
from envsmith.lock import Lock
from envsmith.nativestack import stacks_of
from envsmith.receipt import Receipt
from envsmith.redaction import CUT, holds_secret
from envsmith.report import Report
from envsmith.report_text import text as report_text
from envsmith.scrubbing import Scrubber
from envsmith.tools.files import filesystem

#: As much of an answer as a run reads.
ANSWER_BYTES = 16 << 20
_TYPES = {
    ".json": "application/json", ".toml": "application/toml", ".md": "text/markdown", ".html": "text/html",
    ".yaml": "application/yaml", ".yml": "application/yaml", ".csv": "text/csv",
}  # fmt: skip


@dataclass(kw_only=True, slots=True)
class Pile:
    """A folder that grows, and the rows of its manifest."""

    folder: Path
    scrubber: Scrubber
    rows: list[EvidenceFile] = field(default_factory=list)
    _rungs: tuple[Rung, ...] = ()
    _record: dict[str, Any] = field(default_factory=dict)
    _patches: list[dict[str, Any]] = field(default_factory=list)
    _host: Mapping[str, Any] = field(default_factory=dict)
    _receipt: Receipt | None = None

    def write(self, path: str, data: bytes) -> None:
        """Write one file; those that the manifest lists go through `_add`."""
        place = self.folder / path
        with filesystem(place, needed_bytes=len(data)):
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("xb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())

    def _add(self, path: str, text: str, what: str, *, before: int | None = None, cut_bytes: int = 0) -> None:
        """Write and list a file; `before` is what the scrubber had counted before it."""
        data = text.encode("utf-8", "replace")
        self.write(path, data)
        self.rows.append(
            EvidenceFile(
                path=path,
                size=len(data),
                sha256=hashlib.sha256(data).hexdigest(),
                media_type=_TYPES.get(Path(path).suffix, "text/plain"),
                what=what,
                cut_bytes=cut_bytes,
                redactions=0 if before is None else self.scrubber.count - before,
            )
        )

    def _add_json(self, path: str, value: Any, what: str) -> Any:
        """Write a value without its secrets; return what was written."""
        before = self.scrubber.count
        clean = self.scrubber.value(value)
        self._add(path, _json(clean), what, before=before)
        return clean

    def add_env(self, lock_text: str, receipt_text: str, lock: Lock, receipt: Receipt) -> None:
        """Lock and receipt as the env has them; a secret in the launch table is cut, and the manifest says so."""
        self._receipt = receipt
        self._add(LOCK, lock_text, "lock of the env")
        before = self.scrubber.count
        clean = self.scrubber.value(json.loads(receipt_text))
        text = receipt_text if self.scrubber.count == before else _json(clean)
        self._add(RECEIPT, text, "receipt of the build", before=before)
        self._patches = patches_document(lock, receipt)
        self._add(PATCHES, _json(self._patches), "every patch by its sha256, with the trees before and after")

    def add_bill(self, bill: str) -> None:
        """The bill of materials."""
        self._add(SBOM, bill, "bill of materials, CycloneDX 1.6")

    def add_host(self, snapshot: str) -> None:
        """The machine."""
        before = self.scrubber.count
        clean = self.scrubber.text(snapshot)
        self._add(HOST, clean, "snapshot of the machine, and the versions in the env", before=before)
        self._host = host_of(clean) or {}

    def add_launch(self, launch: LaunchEnvironment, environment: Mapping[str, str]) -> None:
        """The environment of the processes."""
        document = launch_document(launch, environment)
        names = document["environment"].pop("secret")  # names only: a value under such a key would be cut
        clean = self.scrubber.value(document)
        # Names are said as they are: `HF_TOKEN` is no secret.
        clean["environment"]["names"] = sorted(environment)
        clean["environment"]["not-shown"] = names
        for table in ("set", "prepend"):
            clean[table] = {name: CUT if holds_secret(name) else value for name, value in clean[table].items()}
        self._add(LAUNCH, _json(clean), "environment of the processes: what the recipe changes, and names")

    def add_report(self, report: Report) -> None:
        """What verify said."""
        # the text is made of the document, so that whoever has that can make it again
        clean = report_of(self._add_json(VERIFY, report_document(report), "report of verify"))
        self._add(VERIFY_TEXT, report_text(clean) + "\n", "report of verify, as text")

    def add_run(self, record: Mapping[str, Any], folders: Mapping[str, Path], stages: Mapping[str, float]) -> None:
        """The record, and logs and answers of every rung; `folders` are where they lie, by their names here."""
        assert self._receipt is not None, "the env comes first"
        self._record = self._add_json(RECORD, record, "record of the run: every rung, and what was found")
        self._record = json.loads(_json(self._record).encode("utf-8", "replace"))  # as its readers see it
        self._rungs = rungs_of(self._record)
        answers: dict[str, Any] = {}
        for rung in self._rungs:
            for left in files_of(folders[rung.folder]) if rung.folder in folders else ():
                self._add_left(rung, left, answers)
        self._add(IDENTITIES, _json(identities_document(self._rungs, answers)), "models and data by sha256")
        self._add(SECONDS, _json(seconds_document(self._receipt, self._rungs, stages)), "seconds of every stage")

    def _add_left(self, rung: Rung, left: Left, answers: dict[str, Any]) -> None:
        rank = rank_of_answer(left.name)
        kept = read_kept(left.path, KEPT_BYTES if rank is None else ANSWER_BYTES)
        name = self._clean_name(left.name)
        path = self._free(f"{RUNGS}/{rung.folder}/{name}")
        if left.path.suffix == ".json" and not kept.cut_bytes:
            what = f"answer of rank {rank} of `{rung.rung}`" if rank is not None else f"`{name}` of `{rung.rung}`"
            try:
                value = shallow_answer(self._lenient(kept.text))
            except (ValueError, RecursionError):
                pass  # no JSON, and no answer: what the run could not read is kept as a text
            else:
                answers[path] = self._add_json(path, value, what)
                return
            path = self._free(f"{path}.txt")
        before = self.scrubber.count
        clean = self.scrubber.text(kept.text)
        of = f"log of rank {left.rank} of" if left.rank is not None else f"`{name}` of"
        self._add(path, clean, f"{of} `{rung.rung}`", before=before, cut_bytes=kept.cut_bytes)
        if left.rank is not None:
            self._add_stack(rung, left.rank, clean)

    def _clean_name(self, name: str) -> str:
        """A name without its secrets, of characters that a path here may have."""
        clean = self.scrubber.text(name)
        return name if clean == name else clean.replace(CUT, "cut")

    def _free(self, path: str) -> str:
        """A path that no other file has, also where case does not count."""
        there = {one.path.casefold() for one in self.rows}
        stem, dot, ending = path.rpartition(".")
        tried = (path, *(f"{stem}-{number}{dot}{ending}" for number in range(2, 1000)))
        return next(one for one in tried if one.casefold() not in there)

    def _lenient(self, text: str) -> Any:
        """Read JSON as Python writes it; NaN and infinity become text, as in the record."""
        return finite(json.loads(text.removeprefix("\ufeff")))

    def _add_stack(self, rung: Rung, rank: str, log: str) -> None:
        code = rung.exit_codes.get(rank, 0)
        stacks = stacks_of(log)
        if not stacks and (code is None or code >= 0):
            return
        said = stacks or ("its log holds no native stack\n",)
        text = "\n".join((f"{death(rung, rank)}\n", *said))
        self._add(stack_path(rung, rank), text, f"native stacks of rank {rank} of `{rung.rung}`")

    def add_summary(self, about: About) -> None:
        """The page for people, made of what was written before."""
        assert self._receipt is not None, "the env comes first"
        told = Told(
            about=about,
            receipt=self._receipt,
            rungs=self._rungs,
            findings=findings_of(self._record),
            host=self._host,
            patches=self._patches,
            stacks=deaths(self._rungs, {one.path for one in self.rows}),
        )
        summary = summarise(told)
        self._add(SUMMARY, markdown(summary), "one page for people")
        self._add(PAGE, page(summary), "the same page for a browser")


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
