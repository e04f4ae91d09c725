"""What a lock names and no index has: wheels built from sdists and sources, and patched wheels.

Build and bundle both come through here, and every result is compared with the lock before it enters the store.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import parse_wheel_filename

from envsmith.commands.patchfiles import PatchSet, read_patches
from envsmith.commands.sources import (
    Exported,
    Origin,
    backend,
    build_environment,
    build_wheel,
    check_tree,
    export,
    unpack_to_work_copy,
)
from envsmith.commands.supplies import Supplies
from envsmith.commands.workspace import Workspace, git_place
from envsmith.errors import IntegrityError, Problem
from envsmith.lock import BuiltWheel, File, Lock, LockedSource, PatchedWheel
from envsmith.tools.backend import Backend
from envsmith.tools.download import download_all
from envsmith.tools.files import filesystem, sha256_file
from envsmith.tools.index import Item


@dataclass(frozen=True, kw_only=True)
class Maker:
    """Fills the store with what one lock names."""

    lock: Lock
    origins: Mapping[str, Origin]
    patches: Mapping[str, PatchSet]
    """By source name, and `wheel:<name>` for patched wheels."""
    interpreter: Callable[[], Path]
    """The interpreter that builds; asked only when something is built."""
    supplies: Supplies
    work: Path
    """A folder of this run's own."""

    def obtain(self, files: Iterable[tuple[str, File]], on_done: Callable[[Item], None] | None = None) -> None:
        """Bring files into the store.

        Raises:
            EnvsmithError: what `download_all` raises.
        """
        items = [Item(name=name, filename=file.filename, size=file.size, sha256=file.sha256) for name, file in files]
        supplies = self.supplies
        download_all(items, supplies.supply(), supplies.store, progress=supplies.screen, on_done=on_done)

    def build_sdist(self, wheel: BuiltWheel) -> None:
        """Build one allowed sdist.

        Raises:
            IntegrityError: `build-differs`.
        """
        work = self.folder(f"sdist-{wheel.name}")
        unpack_to_work_copy(wheel.sdist, work / wheel.name, self.supplies)
        version = str(parse_wheel_filename(wheel.filename)[1])
        builder = self.backend(work / wheel.name, wheel.build_requires, work, version)
        made = build_wheel(builder, "wheel", work=work / "out")
        file = File(filename=wheel.filename, size=made.stat().st_size, sha256=wheel.sha256)
        self.keep_made(made, file, "build-differs")

    def repack(self, wheel: PatchedWheel) -> None:
        """Patch one wheel.

        Raises:
            IntegrityError: `tree-differs`, `repack-differs`.
        """
        from envsmith.tools.wheel import patch_wheel

        work = self.folder(f"patch-{wheel.name}")
        original = self.named(work, wheel.original)
        made = patch_wheel(original, work / "out", self.patches[f"wheel:{wheel.name}"].named)
        if made.tree != wheel.tree:
            raise _tree_error(wheel.name, wheel.tree, made.tree)
        path = work / "out" / made.filename
        self.keep_made(path, File(filename=wheel.filename, size=made.size, sha256=wheel.sha256), "repack-differs")

    def export(self, source: LockedSource, dest: Path) -> Exported:
        """Make the work copy of a source and apply its series.

        Raises:
            IntegrityError: `tree-differs`.
        """
        exported = export(self.origins[source.name], self.patches[source.name], dest, self.supplies)
        check_tree(exported, base=source.base_tree, tree=source.tree, name=source.name)
        return exported

    def build_source(self, source: LockedSource, builder: Backend, work: Path) -> None:
        """Build the wheel of a source that is installed as one.

        Raises:
            IntegrityError: `build-differs`.
        """
        assert source.wheel is not None
        made = build_wheel(builder, "wheel", work=work / "out")
        self.keep_made(made, source.wheel, "build-differs")

    def backend(self, tree: Path, names: tuple[str, ...], work: Path, version: str) -> Backend:
        """The build backend of a tree, in an environment of pinned requirements below `work`."""
        known = {f"{wheel.name}=={wheel.version}": wheel for wheel in self.lock.build_requires}
        wheels = [known[name] for name in names]
        python = build_environment(wheels, interpreter=self.interpreter(), supplies=self.supplies, work=work)
        return backend(tree, python, self.supplies, version)

    def folder(self, name: str) -> Path:
        """A folder below this run's own."""
        path = self.work / name
        with filesystem(path):
            path.mkdir(parents=True, exist_ok=True)
        return path

    def named(self, folder: Path, file: File) -> Path:
        """A blob under its file name: wheels are known by their names."""
        path = folder / file.filename
        if not path.is_symlink():
            path.symlink_to(self.supplies.store.blob_path(file.sha256))
        return path

    def keep_made(self, made: Path, locked: File, code: str) -> None:
        """Put a file of our making into the store when it is the locked one.

        Raises:
            IntegrityError: it is not; the file is kept for whoever looks into it.
        """
        actual = sha256_file(made)
        if actual != locked.sha256:
            kept = self.supplies.store.home / "differing" / f"{actual[:12]}-{made.name}"
            with filesystem(kept):
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(made, kept)
            raise IntegrityError(
                Problem(
                    code=code,
                    message=f"`{made.name}` was made here with another content than the lock says",
                    where=str(kept),
                    expected=f"sha256 {locked.sha256}",
                    actual=f"sha256 {actual}",
                    hint="compare both: the backend or its surroundings differ from where the lock was made",
                )
            )
        self.supplies.store.add_file(made, actual, name=locked.filename)


def stored_of(lock: Lock, supplies: Supplies) -> set[str]:
    """Which blobs of a lock the store has, by existence and size; their content is proven by the verification."""
    sizes: dict[str, int | None] = {file.sha256: file.size for _, file in lock.downloads()}
    sizes |= {wheel.sha256: wheel.size for wheel in lock.wheels}
    sizes |= {source.wheel.sha256: source.wheel.size for source in lock.sources if source.wheel}
    sizes |= {built.sha256: None for built in lock.built if built.sha256 not in sizes}
    return {sha256 for sha256, size in sizes.items() if supplies.store.has(sha256, size)}


def origins_of(workspace: Workspace, env: str, lock: Lock) -> dict[str, Origin]:
    """Where each source of a lock starts."""
    recipe = workspace.stack.env[env].source
    return {
        source.name: Origin(
            name=source.name,
            git=git_place(workspace, recipe[source.name].git),
            commit=source.commit,
            sdist=source.sdist,
        )
        for source in lock.sources
    }


def patches_of(workspace: Workspace, env: str, lock: Lock) -> dict[str, PatchSet]:
    """The patches of each source by its name, and of each patched wheel as `wheel:<name>`.

    Raises:
        InputError: what `read_patches` raises.
    """
    found: dict[str, PatchSet] = {}
    for source in lock.sources:
        recipe = workspace.stack.env[env].source[source.name]
        found[source.name] = read_patches(workspace.patches, (series.path for series in source.series), recipe.base)
    for wheel in lock.patched:
        base = f"{wheel.name}=={wheel.original_version}"
        found[f"wheel:{wheel.name}"] = read_patches(workspace.patches, (s.path for s in wheel.series), base)
    return found


def _tree_error(name: str, expected: str, actual: str) -> IntegrityError:
    return IntegrityError(
        Problem(
            code="tree-differs",
            message=f"the patched files of `{name}` are not the locked ones",
            expected=expected,
            actual=actual,
        )
    )
