"""A bundle whose blobs are in the store, as the workspace that a build starts from."""

from __future__ import annotations

import tempfile
from pathlib import Path

from envsmith.bundle import ASSET, LOCK, PATCH, RECIPE, SERIES, SNAPSHOT, SOURCE, Manifest
from envsmith.commands.workspace import Workspace, open_stack
from envsmith.tools.files import filesystem, fsync_folder, remove_tree, write_atomic
from envsmith.tools.store import Store

_MANIFEST = "manifest.json"
#: What lies in a workspace as files; everything else stays a blob.
_KINDS = (LOCK, RECIPE, SNAPSHOT, SERIES, PATCH, ASSET)


def unbundle(manifest: Manifest, data: bytes, sha256: str, store: Store) -> Workspace:
    """Lay out recipe, locks, patches and assets of a bundle below the store, and open the recipe.

    The folder appears by one rename; its `manifest.json` says which blobs it needs, for `envsmith store gc`.

    Raises:
        EnvsmithError: what opening the recipe raises.
    """
    folder = store.home / "bundles" / sha256
    if not _is_whole(folder, data):
        with filesystem(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=".envsmith-", dir=folder.parent))
        try:
            for kind in _KINDS:
                for layer in manifest.of(kind):
                    title = f"stacks/{layer.title.removeprefix('assets/')}" if kind == ASSET else layer.title
                    path = store.blob_path(layer.sha256)
                    with filesystem(path):
                        write_atomic(scratch / title, path.read_bytes())
            write_atomic(scratch / _MANIFEST, data)
            with filesystem(folder):
                if folder.exists():
                    remove_tree(folder)
                scratch.chmod(0o755)
                scratch.replace(folder)
                fsync_folder(folder.parent)
        finally:
            if scratch.exists():
                remove_tree(scratch)
    return open_stack(str(folder / "stacks" / f"{manifest.stack}.toml"))


def git_sources(manifest: Manifest, env: str, store: Store) -> dict[str, str]:
    """Source to the git bundle in the store that holds its commit, for one env."""
    return {
        layer.name.partition("@")[0]: str(store.blob_path(layer.sha256))
        for layer in manifest.of(SOURCE)
        if env in layer.envs
    }


def _is_whole(folder: Path, data: bytes) -> bool:
    try:
        return (folder / _MANIFEST).read_bytes() == data
    except OSError:
        return False
