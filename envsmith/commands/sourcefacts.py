"""What rules want to know about the code of sources: from the store or a built env, never from the network."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from envsmith.commands.envs import env_root
from envsmith.commands.patchfiles import read_patches
from envsmith.commands.supplies import mirror_folder
from envsmith.commands.workspace import Workspace
from envsmith.errors import EnvsmithError, InputError
from envsmith.lock import Lock
from envsmith.recipe import Source
from envsmith.rules.scan import SourceFacts, is_importable, scan
from envsmith.tools.store import Store, open_store


def source_facts(
    workspace: Workspace, env: str, lock: Lock | None, environ: Mapping[str, str]
) -> Mapping[str, SourceFacts | None]:
    """Facts about each source of an env after its series; None where its code is not on this machine.

    Raises:
        InputError: `patch-did-not-apply`, `patch-already-applied`.
    """
    found: dict[str, SourceFacts | None] = {}
    for name, source in workspace.stack.env[env].source.items():
        with tempfile.TemporaryDirectory(prefix="envsmith-check-") as folder:
            tree = Path(folder) / name
            try:
                exported = _export(workspace, name, source, lock, open_store(environ), tree)
            except InputError:
                raise
            except EnvsmithError:  # no git here, or a store that is damaged: a build says it, a check looks elsewhere
                exported = False
            if exported:
                found[name] = scan(_files(tree))
                continue
        copy = _work_copy(workspace, env, name, lock, environ)
        found[name] = scan(_files(copy)) if copy else None
    return found


def _export(workspace: Workspace, name: str, source: Source, lock: Lock | None, store: Store, tree: Path) -> bool:
    """Make a patched copy of a source from what the store holds; False when it does not hold it."""
    from envsmith.tools import git

    locked = next((one for one in lock.sources if one.name == name), None) if lock else None
    if source.git and source.commit:
        mirror = mirror_folder(store, source.git)
        if not mirror.is_dir() or not git.holds(mirror, source.commit):
            return False
        git.export_commit(mirror, source.commit, tree)
    elif locked and locked.sdist and store.has(locked.sdist.sha256, locked.sdist.size):
        from envsmith.tools.sdist import unpack_sdist

        named = tree.parent / locked.sdist.filename
        named.symlink_to(store.blob_path(locked.sdist.sha256))
        unpack_sdist(named, tree.parent / "files")
        git.export_tree(tree.parent / "files", tree)
    else:
        return False
    patches = read_patches(workspace.patches, source.series, source.base)
    if patches.patches:
        git.apply_series(tree, patches.named)
    return True


def _work_copy(workspace: Workspace, env: str, name: str, lock: Lock | None, environ: Mapping[str, str]) -> Path | None:
    """The work copy of the built env, when its tree is the locked one."""
    from envsmith.tools.git import tree_id

    locked = next((one for one in lock.sources if one.name == name), None) if lock else None
    copy = env_root(None, environ) / f"{workspace.stack.stack.name}-{env}" / "current" / "src" / name
    if locked is None or not (copy / ".git").exists():
        return None
    try:
        return copy if tree_id(copy) == locked.tree else None
    except EnvsmithError:
        return None


def _files(tree: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(tree.rglob("*.py")):
        relative = path.relative_to(tree).as_posix()
        if is_importable(relative) and path.is_file() and not path.is_symlink():
            yield relative, path.read_text(encoding="utf-8", errors="replace")
