"""Who changed what: which known wheel the content of a changed file comes from, when it came and whose it is."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone

from envsmith.commands.subject import Subject
from envsmith.errors import EnvsmithError
from envsmith.report import Finding
from envsmith.tools.knownwheels import Known, known_wheels
from envsmith.tools.store import open_store

#: An mtime that is so much older than the ctime was set, by whoever wrote the file or by an archive.
LAG_S = 2.0
#: Kinds of findings whose subject is one file of the env.
FILE_KINDS = frozenset(
    {"file-changed", "unowned-module", "unowned-file", "unowned-pth", "mode-changed", "link-changed"}
)


def explained(
    findings: Iterable[Finding], subject: Subject, digests: Mapping[str, str], environ: Mapping[str, str]
) -> Iterator[Finding]:
    """Add to findings about single files what this machine knows about the content that is there."""
    listed = list(findings)
    changed = {f.subject: digests[f.subject] for f in listed if f.kind == "file-changed" and f.subject in digests}
    projects = {
        owner.partition("==")[0]
        for entry in subject.manifest.entries
        if entry.path in changed
        for owner in entry.owners
    }
    known = _known(set(changed.values()), projects, environ) if changed else {}
    for finding in listed:
        if finding.check != "files" or finding.kind not in FILE_KINDS:
            yield finding
            continue
        wheel = known.get(changed.get(finding.subject, ""))
        said = [finding.actual or "", _of_wheel(wheel) if wheel else "", _written(subject, finding.subject)]
        yield replace(finding, actual="; ".join(filter(None, said)) or None)


def _known(wanted: set[str], projects: set[str], environ: Mapping[str, str]) -> Mapping[str, Known]:
    try:
        return known_wheels(open_store(environ), wanted, first=projects)
    except EnvsmithError:
        return {}  # without a store there is nothing to compare with


def _of_wheel(wheel: Known) -> str:
    return f"this is `{wheel.member}` of {wheel.name} {wheel.version}"


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _written(subject: Subject, path: str) -> str:
    """When a file got its content, and whose it is now."""
    try:
        info = os.lstat(subject.directory / path)
    except (OSError, ValueError):
        return ""
    when = _utc(info.st_mtime)
    if info.st_ctime - info.st_mtime > LAG_S:
        when += f" as its mtime says, touched last {_utc(info.st_ctime)}"
    try:
        who = pwd.getpwuid(info.st_uid).pw_name
    except KeyError:
        who = f"uid {info.st_uid}"
    return f"written {when}, owned by {who}"
