"""Work copies of sources: export, apply the series, compare tree ids, and ask or run the build backend.

Lock and build both come through here, so that what is built is what was locked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from envsmith.commands.patchfiles import PatchSet
from envsmith.commands.supplies import Supplies
from envsmith.errors import InputError, IntegrityError, Problem
from envsmith.lock import File, Wheel
from envsmith.tools.backend import Backend, Kind
from envsmith.tools.uv import install_pylock


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a source tree starts: a commit of a git source, or an sdist in the store."""

    name: str
    git: str | None = None
    commit: str | None = None
    sdist: File | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """A work copy with its tree ids before and after the series."""

    tree: Path
    base_id: str
    tree_id: str


def export(origin: Origin, patches: PatchSet, dest: Path, supplies: Supplies) -> Exported:
    """Make a work copy at `dest` and apply its series.

    Raises:
        InputError: `patch-did-not-apply`, `patch-already-applied`.
        SupplyError: the source cannot be had.
    """
    from envsmith.tools import git

    if origin.sdist is not None:
        unpack_to_work_copy(origin.sdist, dest, supplies)
    else:
        assert origin.git is not None and origin.commit is not None
        mirror = supplies.git_mirror(origin.name, origin.git, origin.commit)
        git.export_commit(mirror, origin.commit, dest)
    base_id = git.tree_id(dest)
    try:
        tree_id = git.apply_series(dest, patches.named) if patches.patches else base_id
    except InputError as error:
        raise InputError(*(_located(problem, patches) for problem in error.problems)) from error
    return Exported(tree=dest, base_id=base_id, tree_id=tree_id)


def _located(problem: Problem, patches: PatchSet) -> Problem:
    """Give the patch that git complained about its folder."""
    name, colon, line = (problem.where or "").partition(":")
    paths = (patch.path for series in patches.series for patch in series.patches)
    path = next((path for path in paths if path.rpartition("/")[2] == name), None)
    return replace(problem, where=f"patches/{path}{colon}{line}") if path else problem


def unpack_to_work_copy(sdist: File, dest: Path, supplies: Supplies) -> None:
    """Unpack an sdist of the store into a fresh git work copy."""
    from envsmith.tools.git import export_tree
    from envsmith.tools.sdist import unpack_sdist

    with supplies.work("sdist") as work:
        named = work / sdist.filename
        named.symlink_to(supplies.store.blob_path(sdist.sha256))
        unpack_sdist(named, work / "files")
        export_tree(work / "files", dest)


def check_tree(exported: Exported, *, base: str, tree: str, name: str) -> None:
    """Compare an exported work copy with the lock.

    Raises:
        IntegrityError: `tree-differs`.
    """
    for what, expected, actual in (("before", base, exported.base_id), ("after", tree, exported.tree_id)):
        if expected != actual:
            raise IntegrityError(
                Problem(
                    code="tree-differs",
                    message=f"the tree of the source `{name}` {what} its series is not the locked one",
                    where=str(exported.tree),
                    expected=expected,
                    actual=actual,
                    hint="the source or a patch is not what was locked; `envsmith lock --check` says which",
                )
            )


def build_environment(wheels: Iterable[Wheel], *, interpreter: Path, supplies: Supplies, work: Path) -> Path:
    """Make an environment of pinned build requirements below `work` and return its interpreter."""
    venv = work / "build"
    supplies.uv.create_venv(venv, interpreter=interpreter, prompt="build")
    wheels = tuple(wheels)
    if wheels:
        pylock = work / "pylock.build.toml"
        pylock.write_text(pylock_of(wheels, supplies))
        supplies.uv.sync(pylock, python=venv / "bin" / "python", link_mode="copy")
    return venv / "bin" / "python"


def pylock_of(wheels: Iterable[Wheel], supplies: Supplies) -> str:
    """The install lock over wheels that lie in the store."""
    return install_pylock(
        (wheel.name, wheel.version, wheel.filename, supplies.store.blob_path(wheel.sha256), wheel.size, wheel.sha256)
        for wheel in wheels
    )


def backend(tree: Path, python: Path, supplies: Supplies, version: str | None) -> Backend:
    """The build backend of a work copy, told the version of a tree that would ask git for it."""
    return Backend(tree=tree, python=python, environ=supplies.environ, version=version)


def build_wheel(builder: Backend, kind: Kind, *, work: Path, origin: str | None = None) -> Path:
    """Build a tree's wheel and bring it into a form that depends on its content alone.

    `origin` is the directory that an editable wheel's `direct_url.json` names (PEP 610).
    """
    from envsmith.tools.wheel import inject, list_wheel, normalise

    raw, made, final = work / "raw", work / "made", work / "final"
    for folder in (raw, made, final):
        folder.mkdir(parents=True)
    built = builder.build(kind, raw)
    normalise(built, made / built.name)
    if origin is None:
        return made / built.name
    listing = list_wheel(made / built.name)
    info = next(
        member.path.partition("/")[0] for member in listing.members if member.path.endswith(".dist-info/METADATA")
    )
    direct_url = json.dumps({"url": Path(origin).as_uri(), "dir_info": {"editable": True}}, sort_keys=True)
    inject(made / built.name, final / built.name, {f"{info}/direct_url.json": direct_url.encode()})
    return final / built.name
