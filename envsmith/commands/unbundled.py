"""A bundle whose blobs are in the store, as the workspace that a build starts from."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from envsmith.bundle import ASSET, LOCK, PATCH, RECIPE, SERIES, SNAPSHOT, SOURCE, Descriptor, Manifest
from envsmith.commands.workspace import Workspace, open_stack
from envsmith.errors import SupplyError
from envsmith.tools.files import filesystem, fsync_folder, remove_tree, sha256_file, write_atomic
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
    if not _is_whole(folder, data, manifest):
        with filesystem(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=".envsmith-", dir=folder.parent))
        try:
            for kind in _KINDS:
                for layer in manifest.of(kind):
                    path = store.verify(layer.sha256)
                    with filesystem(path):
                        write_atomic(scratch / _place(layer), path.read_bytes())
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


def _is_whole(folder: Path, data: bytes, manifest: Manifest) -> bool:
    """Whether the folder is what the bundle says, byte for byte, and holds nothing else."""
    wanted = {_MANIFEST: hashlib.sha256(data).hexdigest()}
    wanted |= {_place(layer): layer.sha256 for kind in _KINDS for layer in manifest.of(kind)}
    try:
        there = {str(path.relative_to(folder)): path for path in folder.rglob("*") if not path.is_dir()}
        if there.keys() != wanted.keys() or any(path.is_symlink() for path in there.values()):
            return False
        return all(sha256_file(path) == wanted[name] for name, path in there.items())
    except (OSError, SupplyError):
        return False


def _place(layer: Descriptor) -> str:
    """Where a file lies in the workspace: assets are looked for beside the recipe."""
    return f"stacks/{layer.title.removeprefix('assets/')}" if layer.media_type == ASSET else layer.title
