"""Looking at the files of an env, and at the work copies in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from envsmith.checks.files import JUDGED_ELSEWHERE, check_files
from envsmith.checks.recorded import RECORDING, Linked, check_linked, check_recorded
from envsmith.checks.sources import SourceState
from envsmith.commands.foreign import below
from envsmith.commands.records import keep_beside
from envsmith.commands.subject import Foreign, Subject
from envsmith.errors import EnvsmithError
from envsmith.lock import Lock
from envsmith.manifest import Entry, Kind, Manifest, import_base
from envsmith.observed import Observed, Seen
from envsmith.recorded import judged
from envsmith.report import Finding, Severity
from envsmith.tools.files import in_memory, sha256_file
from envsmith.tools.gittree import tree_on_disk
from envsmith.tools.progress import Progress
from envsmith.tools.tree import Mode, StatIndex, hash_tree, scan, verify_bytes


def look_at_files(subject: Subject, mode: Mode, progress: Progress | None) -> Observed:
    """See every file of the env and learn the content of those that belong to something; renew the stat index."""
    index = StatIndex() if mode == "deep" else StatIndex.load(subject.index)
    paths = {entry.path for entry in subject.manifest.entries}
    if progress and mode == "deep":
        progress.start(sum(entry.size for entry in subject.manifest.entries), len(paths))
    observed, renewed = verify_bytes(
        subject.directory,
        paths,
        index,
        mode=mode,
        clock=clock_folder(subject),
        on_bytes=progress.advance if progress else None,
        below=below(subject.foreign) if subject.foreign else ("",),
    )
    if progress:
        progress.done()
    _renew(subject.index, renewed, observed)
    return observed


def clock_folder(subject: Subject) -> Path | None:
    """A folder on the env's own file system that is ours to write into, to ask for the time there."""
    folder = subject.directory.parent if subject.foreign is None else subject.index.parent
    if subject.foreign is not None:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        if not _same_device(folder, subject.directory):
            return None
    return folder if os.access(folder, os.W_OK) and not in_memory(subject.directory) else None


def _same_device(one: Path, other: Path) -> bool:
    try:
        return one.stat().st_dev == other.stat().st_dev
    except OSError:
        return False


def judge_files(subject: Subject, observed: Observed) -> Iterator[Finding]:
    """Run the family `files`."""
    if subject.foreign:
        yield from _judge_foreign(subject, subject.foreign, observed)
        return
    assert subject.lock is not None
    yield from check_files(
        subject.manifest,
        observed,
        receipt=subject.finished,
        distributions=[f"{wheel.name}=={wheel.version}" for wheel in subject.lock.wheels],
        allow_changed=tuple(subject.verify["allow-changed"]),
        elsewhere=(*JUDGED_ELSEWHERE, *_work_copies(subject.lock)),
    )


def _judge_foreign(subject: Subject, foreign: Foreign, observed: Observed) -> Iterator[Finding]:
    """Hold what RECORDs name against the disk; a row without a hash proves only that the file is there."""
    manifest = Manifest(
        entries=tuple(
            entry if entry.sha256 else replace(entry, sha256=observed.digests.get(entry.path, ""))
            for entry in subject.manifest.entries
        )
    )
    owned = frozenset(entry.path for entry in manifest.entries)
    seen = judged(observed.files, owned, foreign.distributions)
    owners = {entry.path: entry.owner for entry in manifest.entries}
    # A system's packagers patch what they ship and keep the RECORD of before.
    packaged = {
        one.owner
        for one in foreign.distributions
        if one.installer not in (*RECORDING, None) or "/dist-packages/" in one.info
    }
    yield from check_recorded(foreign.distributions, _gone(subject, observed))
    yield from check_linked(_behind_links(subject, foreign))
    for finding in check_files(manifest, replace(observed, files=seen), whole=False):
        # Data that programs leave beside their code is nobody's business where no lock says what should be there.
        mere = finding.kind == "unowned-file" or owners.get(finding.subject, finding.subject) in packaged
        # Whose files of an interpreter's own prefix are, the system's package manager knows.
        mere = mere or (finding.kind.startswith("unowned-") and not foreign.is_venv)
        yield replace(finding, severity=Severity.NOTE) if mere else finding


def _behind_links(subject: Subject, foreign: Foreign) -> Iterator[Linked]:
    """Files with a recorded hash that are links: installers may link into their cache, and what is there counts."""
    links = {entry.path: entry for entry in subject.manifest.entries if entry.kind is Kind.LINK}
    for one in foreign.distributions if links else ():
        for row in one.rows or ():
            if row.path in links and row.sha256:
                real = Path(os.path.realpath(subject.directory / row.path))
                with contextlib.suppress(EnvsmithError, OSError):
                    actual = sha256_file(real) if real.is_file() else None
                    yield Linked(path=row.path, owner=one.owner, target=str(real), wanted=row.sha256, actual=actual)


def _gone(subject: Subject, observed: Observed) -> dict[str, tuple[str, ...]]:
    """Folders that lines of .pth files name and that are not there."""
    found = {}
    for item in observed.files:
        base = import_base(item.path)
        if base and item.kind == "file" and item.path.endswith(".pth") and "/" not in item.path[len(base) :]:
            folder = subject.directory / base
            named = (folder / line for line in _plain_lines(subject.directory / item.path))
            if lost := tuple(str(place) for place in named if not place.exists()):
                found[item.path] = lost
    return found


def _plain_lines(path: Path) -> list[str]:
    """Lines of a .pth file that name a folder or an archive."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    code = ("#", "import ", "import\t")
    return [line.rstrip() for line in lines if line.strip() and "\0" not in line and not line.startswith(code)]


def _work_copies(lock: Lock) -> tuple[str, ...]:
    """What `sources` judges: editable work copies; of one that a wheel was made of, its git folder is nobody's."""
    return tuple(f"src/{s.name}/" if s.install == "editable" else f"src/{s.name}/.git/" for s in lock.sources)


def _renew(path: Path, index: StatIndex, observed: Observed) -> None:
    """Keep the index when something was read."""
    if observed.hashed_files or not path.exists():
        keep_beside(path, index.to_json())


# --- sources ---


def source_states(subject: Subject) -> Iterator[SourceState]:
    """Look at every editable work copy. Its git folder is not asked: whoever edits files can edit that too."""
    steps = subject.receipt.tree_steps if subject.receipt else {}
    applied = subject.receipt.series if subject.receipt else {}
    gitlinks = subject.receipt.gitlinks if subject.receipt else {}
    for source in subject.lock.sources if subject.lock and subject.receipt else ():
        if source.install == "wheel":
            continue  # its wheel is judged by `files`; the work copy was only its origin
        work = subject.directory / "src" / source.name
        prefix = f"src/{source.name}/"
        entries = {e.path.removeprefix(prefix): e for e in subject.manifest.entries if e.path.startswith(prefix)}
        tracked = {path: entry for path, entry in entries.items() if entry.part == "portable"}
        seen = {item.path: item for item in scan(work) if not item.path.startswith(".git/")}
        digests = hash_tree(work, (seen[path] for path in tracked if path in seen)).digests
        changed = tuple(path for path, entry in tracked.items() if _differs(entry, seen.get(path), digests.get(path)))
        untracked = tuple(path for path, item in seen.items() if path not in tracked and item.kind != "folder")
        yield SourceState(
            name=source.name,
            locked_tree=source.tree,
            locked_patches=tuple(patch.sha256 for series in source.series for patch in series.patches),
            trees=steps.get(source.name, ()),
            present=work.is_dir(),
            tree=tree_on_disk(work, tracked, gitlinks.get(source.name, {})) if changed else source.tree,
            patches=applied.get(source.name),
            changed=changed,
            untracked=untracked,
            links=frozenset(path for path in untracked if seen[path].kind == "link"),
            allowed=frozenset(entries.keys() - tracked.keys()),
        )


def _differs(entry: Entry, item: Seen | None, sha256: str | None) -> bool:
    if item is None:
        return True
    if entry.kind is Kind.LINK or item.kind != "file":
        return (item.kind, item.target) != ("link" if entry.kind is Kind.LINK else "file", entry.target)
    return sha256 != entry.sha256 or bool(item.mode & 0o100) != entry.executable
