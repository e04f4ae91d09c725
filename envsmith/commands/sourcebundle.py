"""Git bundles of a lock's sources: made once from the whole history, proven, and kept in the store.

What is kept is found again by its commit, and read again before it is handed out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from envsmith.commands.sources import Origin
from envsmith.commands.supplies import Supplies, mirror_folder
from envsmith.errors import EnvsmithError, IntegrityError, Problem, StepError, SupplyError
from envsmith.lock import LockedSource
from envsmith.tools.files import FileLock, filesystem, remove_tree, sha256_file, write_atomic

#: What a damaged history mirror shows itself by; any of it is mended by fetching the history again.
_DAMAGE = ("source-bundle-broken", "source-shallow", "source-objects-missing", "commit-missing", "git-failed")


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceBundle:
    """A git bundle in the store."""

    title: str
    """`sources/<name>@<commit>.bundle`: what a bundle of files calls it."""
    size: int
    sha256: str


def source_bundle(source: LockedSource, origin: Origin, supplies: Supplies) -> SourceBundle:
    """Return the git bundle of a locked commit, made now or earlier by any build on this machine.

    Raises:
        IntegrityError: `tree-differs`, `source-bundle-broken`.
        SupplyError: `offline-missing` when it would take the network, `source-unreachable`, `commit-missing`,
            `source-shallow`, `source-objects-missing`.
    """
    from envsmith.tools.git import check_commit

    assert origin.git is not None and source.commit is not None
    check_commit(source.commit)
    history = _history_folder(origin.git, supplies)
    lock = supplies.store.home / "locks" / f"git-{history.name}.lock"
    with FileLock(lock, supplies.screen.message):
        kept = _kept(source, source.commit, supplies)
        return kept or _made(source, source.commit, origin.git, history, supplies)


def _history_folder(url: str, supplies: Supplies) -> Path:
    """Where the store mirrors whole histories: the next commit of a source takes only what is new."""
    mirror = mirror_folder(supplies.store, url)
    return mirror.with_name(f"{mirror.name}.history")


def _index_path(commit: str, supplies: Supplies) -> Path:
    return supplies.store.home / "sources" / f"{commit}.json"


def _kept(source: LockedSource, commit: str, supplies: Supplies) -> SourceBundle | None:
    """A bundle that was made earlier, by whichever version of git, and is still what it was."""
    from envsmith.tools.gitbundle import bundle_head

    try:
        entry = json.loads(_index_path(commit, supplies).read_text("utf-8"))
        sha256, size = str(entry["sha256"]), int(entry["size"])
        if entry["tree"] != source.base_tree or not supplies.store.has(sha256, size):
            return None
        if bundle_head(supplies.store.verify(sha256)).get("HEAD") != commit:
            return None
    except (OSError, ValueError, TypeError, KeyError, EnvsmithError):
        return None
    return SourceBundle(title=_title(source.name, commit), size=size, sha256=sha256)


def _made(source: LockedSource, commit: str, url: str, history: Path, supplies: Supplies) -> SourceBundle:
    """Make a bundle; where the mirror turns out to be damaged, and can be had again, begin anew once."""
    _fetch(source.name, commit, url, history, supplies)
    try:
        return _sealed(source, commit, history, supplies)
    except (IntegrityError, StepError, SupplyError) as error:
        damaged = any(problem.code in _DAMAGE for problem in error.problems)
        if not damaged or (supplies.offline and not supplies.source_place(source.name, url)[1]):
            raise
    supplies.screen.message(f"the mirror of the source `{source.name}` is damaged; fetching it again")
    remove_tree(history)
    _fetch(source.name, commit, url, history, supplies)
    return _sealed(source, commit, history, supplies)


def _fetch(name: str, commit: str, url: str, history: Path, supplies: Supplies) -> None:
    from envsmith.tools.git import holds
    from envsmith.tools.gitbundle import mirror_history

    place, local = supplies.source_place(name, url)
    if supplies.offline and not local and not holds(history, commit):
        raise SupplyError(
            Problem(
                code="offline-missing",
                message=f"the history of the source `{name}` up to commit {commit[:12]} is not in the store, "
                "and the network is off",
                where=f"env source {name}",
                hint=f"name a full copy of the repository: `--source {name}=PATH`",
            )
        )
    with filesystem(history):
        mirror_history(place, commit, history)


def _sealed(source: LockedSource, commit: str, history: Path, supplies: Supplies) -> SourceBundle:
    """Pack, prove, and only then give the file its name in the store."""
    from envsmith.tools.git import tree_named, version
    from envsmith.tools.gitbundle import prove_bundle, write_bundle

    if (tree := tree_named(history, commit)) != source.base_tree:
        raise IntegrityError(
            Problem(
                code="tree-differs",
                message=f"the tree of the source `{source.name}` before its series is not the locked one",
                where=str(history),
                expected=source.base_tree,
                actual=tree,
                hint="the lock names a tree that its commit does not have; `envsmith lock --check` says more",
            )
        )
    supplies.screen.message(f"packing the history of the source `{source.name}`")
    title = _title(source.name, commit)
    with supplies.work("source") as work:
        file = work / "bundle"
        write_bundle(history, commit, file)
        prove_bundle(file, commit, tree, work / "proof")
        with filesystem(file):
            size = file.stat().st_size
        sha256 = sha256_file(file)
        supplies.store.commit(file, sha256, name=title.rpartition("/")[2])
    entry = {"git": version(), "sha256": sha256, "size": size, "tree": tree}
    write_atomic(_index_path(commit, supplies), json.dumps(entry, sort_keys=True) + "\n")
    return SourceBundle(title=title, size=size, sha256=sha256)


def _title(name: str, commit: str) -> str:
    return f"sources/{name}@{commit}.bundle"
