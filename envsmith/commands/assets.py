"""Assets: files that travel with an env, held against the recipe's sha256."""

from __future__ import annotations

from pathlib import Path

from envsmith.commands.envs import shown
from envsmith.commands.workspace import Workspace
from envsmith.errors import IntegrityError, Problem, SupplyError
from envsmith.lock import LockedAsset
from envsmith.recipe import Env
from envsmith.tools.files import sha256_file


def read_assets(workspace: Workspace, env: Env) -> tuple[LockedAsset, ...]:
    """Find every asset beside the recipe or beside its folder, and check it.

    Raises:
        SupplyError: `asset-missing`.
        IntegrityError: `asset-digest-differs`.
    """
    found: list[LockedAsset] = []
    for name, asset in sorted(env.asset.items()):
        path = _found(workspace, name, asset.path)
        actual = sha256_file(path)
        if actual != asset.sha256:
            raise IntegrityError(
                Problem(
                    code="asset-digest-differs",
                    message=f"the asset `{name}` is not the file that the recipe names",
                    where=shown(path),
                    expected=asset.sha256,
                    actual=actual,
                )
            )
        found.append(LockedAsset(name=name, path=asset.path, sha256=asset.sha256))
    return tuple(found)


def asset_path(workspace: Workspace, asset: LockedAsset) -> Path:
    """Where the file of a locked asset lies.

    Raises:
        SupplyError: `asset-missing`.
    """
    return _found(workspace, asset.name, asset.path)


def _found(workspace: Workspace, name: str, path: str) -> Path:
    places = (workspace.path.parent / path, workspace.path.parent.parent / path)
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        where = " or ".join(shown(place) for place in places)
        raise SupplyError(Problem(code="asset-missing", message=f"the asset `{name}` is not there", where=where))
    return found
