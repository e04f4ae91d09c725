"""Family `files`: is every file of the environment what the manifest says, and is nothing else there.

The manifest comes from the wheels, so an edit that also edits RECORD is found, and so is a file that no RECORD names.
Findings of one package are grouped: whoever deleted 4,000 files reads one line about it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import chain

from envsmith.bytecode import Fit, judge_header, source_of
from envsmith.checks.unowned import judge_unowned
from envsmith.manifest import Content, Entry, Kind, Manifest, import_base
from envsmith.observed import Observed, Seen
from envsmith.report import REBUILD, Finding, Severity

FAMILY = "files"
#: Findings of one kind and owner that are printed one by one; the rest is counted.
SHOWN = 10
HINT = f"build it again with {REBUILD}: an environment is not repaired in place"

#: What other families judge or what comes after the manifest: receipt, sources, and the empty lock file of any uv call.
JUDGED_ELSEWHERE = ("envsmith.json", ".lock")

#: What projects keep beside their packages to be built and tested with. Wheels that ship one by accident overwrite each
#: other's, and nothing that runs imports it (facts/verify.md §1: `build_backend.py` of two wheels).
BUILD_FILES = frozenset({"build_backend.py", "build_utils.py", "setup.py", "conftest.py"})

#: A package `__init__.py` this small, differing alone, is how old-style namespace packages look.
NAMESPACE_STUB_BYTES = 1024


def check_files(
    manifest: Manifest,
    observed: Observed,
    *,
    receipt: bool = True,
    distributions: Collection[str] = (),
    elsewhere: tuple[str, ...] = JUDGED_ELSEWHERE,
    allow_changed: tuple[str, ...] = (),
    whole: bool = True,
) -> Iterator[Finding]:
    """Hold what was seen on disk against the manifest.

    `distributions` are the `name==version` of the lock; an environment with none or fewer of them never passes.
    `elsewhere` are paths, or folders with a final slash, that this family leaves alone. `allow_changed` are shell
    patterns of data that its own package rewrites at run time: such a file must be there, its content is its own.
    `whole` is False for a manifest that an env's own RECORDs gave: nobody knows then what should be there at all.
    """
    folders = tuple(place for place in elsewhere if place.endswith("/"))
    seen = {item.path: item for item in observed.files}
    # What a build backend left in a work copy is judged here, its tracked and added files by `sources`.
    entries = [
        entry
        for entry in manifest.entries
        if _is_leftover(entry) or not (entry.path in elsewhere or entry.path.startswith(folders))
    ]
    owned = manifest.by_path()
    strange = [item for path, item in seen.items() if path not in owned]
    unowned = [item for item in strange if not (item.path in elsewhere or item.path.startswith(folders))]
    if whole:
        yield from _half(entries, seen, receipt, distributions)
    if any(entry.path in seen for entry in entries):
        yield from _missing(entries, seen)
    held = [e for e in entries if not any(fnmatchcase(e.path, pattern) for pattern in allow_changed)]
    yield from _changed(held, seen, observed)
    yield from _overlapping(entries, observed.digests)
    yield from judge_unowned(unowned, owned)


def _is_leftover(entry: Entry) -> bool:
    return entry.part == "site" and entry.owner.startswith("source:")


def _half(
    entries: list[Entry], seen: Mapping[str, Seen], receipt: bool, distributions: Collection[str]
) -> Iterator[Finding]:
    """An environment without receipt, or with fewer distributions than the lock, was never finished or was emptied."""
    if not receipt:
        yield _error("half-env", "envsmith.json", "there is no receipt: the build did not end, or it was removed")
    metadata = [entry for entry in entries if entry.path.endswith(".dist-info/METADATA")]
    named = {owner for entry in metadata for owner in entry.owners} | set(distributions)
    present = {owner for entry in metadata if entry.path in seen for owner in entry.owners}
    absent = sorted(named - present)
    if not entries:
        yield _error("half-env", "manifest", "the manifest names no file, so nothing can be proved")
    elif absent:
        total = len(named)
        yield _error(
            "half-env",
            ", ".join(absent[:SHOWN]) + (", …" if len(absent) > SHOWN else ""),
            f"{len(absent)} of {total} distributions are not there",
            expected=f"{total} distributions",
            actual=f"{total - len(absent)} distributions",
        )


def _missing(entries: list[Entry], seen: Mapping[str, Seen]) -> Iterator[Finding]:
    """One file that is gone is named; several of one package are one finding."""
    gone: dict[str, list[Entry]] = defaultdict(list)
    left: set[str] = set()
    for entry in entries:
        if entry.path in seen:
            left.update(entry.owners)
        else:
            gone[entry.owner].append(entry)
    for owner, group in sorted(gone.items()):
        if not left & set(group[0].owners) and any(entry.part == "portable" for entry in group):
            continue  # the whole distribution is gone: `half-env` names it
        note = _namespace_note(group, seen)
        if len(group) == 1:
            yield _error("file-missing", group[0].path, f"a file of {owner} is gone{note}", hint=HINT)
            continue
        names = ", ".join(_short(entry.path) for entry in group[:3]) + (", …" if len(group) > 3 else "")
        yield _error(
            "record-missing-files",
            owner,
            f"{len(group):,} files of {owner} are gone: {names}{note}",
            hint="another distribution that had files of the same names may have been uninstalled; " + HINT,
        )


def _short(path: str) -> str:
    return path[len(import_base(path) or "") :]


def _namespace_note(group: list[Entry], seen: Mapping[str, Seen]) -> str:
    """Say what Python makes of a package that lost its `__init__.py`."""
    for entry in group:
        base = import_base(entry.path)
        folder, _, name = entry.path.rpartition("/")
        if not base or name != "__init__.py" or folder + "/" == base:
            continue
        if any(path.startswith(folder + "/") for path in seen):
            return f"; what is left imports as an empty namespace package `{folder[len(base) :].replace('/', '.')}`"
    return ""


def _changed(entries: list[Entry], seen: Mapping[str, Seen], observed: Observed) -> Iterator[Finding]:
    found: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    unread, unreadable = set(observed.unread), set(observed.unreadable)
    unproved = []
    for entry in entries:
        item = seen.get(entry.path)
        if item is None or _is_right(entry, item, observed.digests):
            continue
        problem = _kind_differs(entry, item) or _mode_differs(entry, item)
        if entry.kind is Kind.FILE and item.kind == "file":
            if item.path in unreadable:
                problem = _error("file-unreadable", entry.path, f"a file of {entry.owner} cannot be read")
            elif item.path in unread and any(content.size == item.size for content in entry.contents):
                unproved.append(item.path)
            elif not _is_rewritten_bytecode(entry, seen, observed):
                problem = _content_differs(entry, item, observed.digests.get(entry.path)) or problem
        if problem:
            found[entry.owner, problem.kind].append(problem)
    for (owner, kind), group in sorted(found.items()):
        yield from _capped(group, kind, owner)
    yield from _open_to_all([e.path for e in entries if e.path in seen and _anybody_writes(seen[e.path])])
    if unproved:
        yield Finding(
            check=FAMILY,
            kind="stat-differs",
            severity=Severity.WARNING,
            subject=unproved[0] if len(unproved) == 1 else f"{len(unproved)} files",
            message="attributes changed since the last full look, and the content was not read",
            hint="run verify without --quick",
        )


def _anybody_writes(item: Seen) -> bool:
    return item.kind == "file" and bool(item.mode & 0o002)


def _open_to_all(paths: list[str]) -> Iterator[Finding]:
    """One line, however many: whoever builds under umask 000 has thousands."""
    if paths:
        yield Finding(
            check=FAMILY,
            kind="mode-open",
            severity=Severity.WARNING,
            subject=paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1:,} more",
            message="every user of this machine may write to it",
            hint="`chmod -R o-w` the environment, and set a umask of 022 before building",
        )


def _is_right(entry: Entry, item: Seen, digests: Mapping[str, str]) -> bool:
    """Settle the many in one go: a plain file with the expected content and mode."""
    return (
        item.kind == "file"
        and digests.get(entry.path) == entry.sha256
        and entry.executable == bool(item.mode & 0o100)
        and not item.mode & 0o6000
        and bool(item.mode & 0o400)
        and entry.kind is Kind.FILE
    )


def _is_rewritten_bytecode(entry: Entry, seen: Mapping[str, Seen], observed: Observed) -> bool:
    """Python replaces bytecode that came in a wheel when it is older than the installed source; that is no drift."""
    source = seen.get(source_of(entry.path) or "") if entry.part == "portable" else None
    header = observed.bytecode.get(entry.path)
    return source is not None and header is not None and judge_header(header, source)[0] in (Fit.FITS, Fit.HASHED)


def _kind_differs(entry: Entry, item: Seen) -> Finding | None:
    if entry.kind is Kind.LINK or item.kind == "link":
        wanted, got = entry.target or "a file", item.target or f"a {item.kind}"
        if (entry.kind is Kind.LINK, entry.target) != (item.kind == "link", item.target):
            message = f"a link of {entry.owner} points elsewhere" if entry.target else "a file was replaced by a link"
            return _error("link-changed", entry.path, message, expected=wanted, actual=got)
    elif item.kind != "file":
        return _error("file-changed", entry.path, f"a file of {entry.owner} was replaced by something else")
    return None


def _mode_differs(entry: Entry, item: Seen) -> Finding | None:
    if item.kind != "file" or entry.kind is not Kind.FILE:
        return None
    runs = bool(item.mode & 0o100)
    wrong = all(content.executable != runs for content in entry.contents)
    if wrong or item.mode & 0o6000 or not item.mode & 0o400:
        word = "an executable that its owner may read" if entry.executable else "a plain file that its owner may read"
        return _error(
            "mode-changed",
            entry.path,
            f"the mode of a file of {entry.owner} was changed",
            expected=word,
            actual=f"{item.mode:04o}",
        )
    return None


def _content_differs(entry: Entry, item: Seen, digest: str | None) -> Finding | None:
    if digest is None:
        right = any(content.size == item.size for content in entry.contents)
        actual = f"{item.size} bytes"
    else:
        right = any(content.sha256 == digest for content in entry.contents)
        actual = f"sha256:{digest[:12]}"
    if right and digest is not None:
        return None
    wanted = " or ".join(f"sha256:{content.sha256[:12]}" for content in entry.contents)
    return _error(
        "file-changed", entry.path, f"a file of {entry.owner} was changed", expected=wanted, actual=actual, hint=HINT
    )


def _capped(group: list[Finding], kind: str, owner: str) -> Iterator[Finding]:
    yield from group[:SHOWN]
    if len(group) > SHOWN:
        yield _error(kind, owner, f"{len(group) - SHOWN:,} more files of {owner} are `{kind}`")


def _overlapping(entries: list[Entry], digests: Mapping[str, str]) -> Iterator[Finding]:
    """Files that two distributions want with different contents: one of the two is broken."""
    groups: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.alternatives and _short(entry.path) not in BUILD_FILES:
            groups[_package_of(entry.path), entry.owner].append(entry)
    packages = {_package_of(e.path) for e in entries if e.path.endswith("/__init__.py")}
    for (package, owner), group in sorted(groups.items()):
        mixed = package in packages and not _is_namespace_stub(group)
        names = ", ".join(_short(entry.path) for entry in group[:3])
        yield Finding(
            check=FAMILY,
            kind="overlapping-files",
            severity=Severity.ERROR if mixed else Severity.WARNING,
            subject=package,
            message=f"{len(group)} file(s) are owned with different contents by {owner}: {names}"
            + (", …" if len(group) > 3 else ""),
            actual=_winners(group, digests),
            hint="keep exactly one of them: put the other in the recipe's `exclude` list" if mixed else None,
        )


def _package_of(path: str) -> str:
    """Return the top-level package folder that a path lies in, or the path itself."""
    base = import_base(path)
    if base is None or "/" not in path[len(base) :]:
        return path
    return base + path[len(base) :].split("/", 1)[0]


def _is_namespace_stub(group: list[Entry]) -> bool:
    only = group[0]
    return (
        len(group) == 1
        and only.path == f"{_package_of(only.path)}/__init__.py"
        and all(content.size <= NAMESPACE_STUB_BYTES for content in only.contents)
    )


def _winners(group: list[Entry], digests: Mapping[str, str]) -> str | None:
    counts: dict[str, int] = defaultdict(int)
    pairs: Iterable[tuple[Entry, Content]] = chain.from_iterable(((e, c) for c in e.contents) for e in group)
    for entry, content in pairs:
        if digests.get(entry.path) == content.sha256:
            counts[content.owner] += 1
    return "on disk: " + ", ".join(f"{n} from {who}" for who, n in sorted(counts.items())) if counts else None


def _error(kind: str, subject: str, message: str, **more: str | None) -> Finding:
    return Finding(check=FAMILY, kind=kind, severity=Severity.ERROR, subject=subject, message=message, **more)
