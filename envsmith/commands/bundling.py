"""Gathering what a bundle of some envs holds: everything in the store, then one manifest over it.

The same locks, recipe, patches, envsmith, git and interpreter give the same manifest, byte for byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envsmith import __version__
from envsmith.bundle import (
    ASSET,
    BUNDLE,
    CONFIG,
    ENVS,
    INSTALLER,
    LOCK,
    LOCKS,
    PATCH,
    PYLOCK,
    PYTHON,
    RECIPE,
    REPORT,
    ROLES,
    SDIST,
    SERIES,
    SHEET,
    SNAPSHOT,
    SOURCE,
    TITLE,
    VERSION,
    WHEEL,
    Descriptor,
    Manifest,
    config_json,
    file_title,
    in_order,
    locks_version,
    render_manifest,
)
from envsmith.bundlecheck import lacking, root_titles
from envsmith.bundlejson import to_json
from envsmith.commands.assets import asset_path
from envsmith.commands.making import Maker, origins_of, patches_of, stored_of
from envsmith.commands.patchfiles import PatchSet, read_file
from envsmith.commands.reports import Reported, reports_of
from envsmith.commands.sourcebundle import source_bundle
from envsmith.commands.supplies import Supplies
from envsmith.commands.travelling import Interpreters, Tools
from envsmith.commands.workspace import Workspace
from envsmith.data import text as data_text
from envsmith.errors import Bug, Problem
from envsmith.lock import File, Lock, Wheel, digest
from envsmith.recipe import Env
from envsmith.tools.files import filesystem
from envsmith.tools.layout_writing import BytesContent, Content, FileContent
from envsmith.tools.uv import install_pylock, uv_version


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """One env that goes into a bundle."""

    name: str
    lock: Lock
    text: str
    """The lock file as it is."""
    patches: Mapping[str, PatchSet]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gathered:
    """A bundle before it is written."""

    manifest: Manifest
    data: bytes
    """The manifest as a blob."""
    contents: Mapping[str, Content]
    """Sha256 to where the bytes are: config and every layer."""
    notes: tuple[str, ...]
    """What the maker should know of it."""

    @property
    def sha256(self) -> str:
        """The digest of the bundle."""
        return hashlib.sha256(self.data).hexdigest()

    @property
    def descriptor(self) -> Descriptor:
        """The manifest as one blob among others."""
        return Descriptor(media_type="", sha256=self.sha256, size=len(self.data))

    def root_files(self) -> dict[str, bytes]:
        """Blobs that also stand at the root under their names."""
        found = {}
        for title, layer in root_titles(self.manifest).items():
            with self.contents[layer.sha256].stream() as stream:
                found[title] = stream.read()
        return found


@dataclass(kw_only=True)
class _Pile:
    """Layers as they are found, one a title; a blob that serves several envs or roles says so."""

    layers: dict[str, Descriptor] = field(default_factory=dict)
    contents: dict[str, Content] = field(default_factory=dict)
    envs: dict[str, set[str]] = field(default_factory=dict)
    roles: dict[str, set[str]] = field(default_factory=dict)

    def data(self, kind: str, title: str, data: bytes, *, env: str | None = None) -> str:
        """Add what was made here and return its digest."""
        sha256 = hashlib.sha256(data).hexdigest()
        self.put(kind, title, sha256, len(data), BytesContent(data=data), env=env)
        return sha256

    def put(
        self,
        kind: str,
        title: str,
        sha256: str,
        size: int,
        content: Content,
        *,
        env: str | None = None,
        role: str | None = None,
    ) -> None:
        """Add one file; two of one title and other content lie apart, below the name of their env."""
        known = self.layers.get(title)
        if known is not None and known.sha256 != sha256:
            folder, _, name = title.rpartition("/")
            title = f"{folder}/{env or 'tools'}/{name}"
        if known is None or known.sha256 != sha256:
            self.layers[file_title(kind, title)] = Descriptor(media_type=kind, sha256=sha256, size=size)
            self.contents[sha256] = content
        self.envs.setdefault(title, set()).update([env] if env else [])
        self.roles.setdefault(title, set()).update([role] if role else [])

    def finished(self) -> tuple[Descriptor, ...]:
        """Every layer, annotated and in the order of a manifest."""
        found = []
        for title, layer in self.layers.items():
            annotations = {TITLE: title}
            annotations |= {ENVS: ",".join(sorted(self.envs[title]))} if self.envs[title] else {}
            annotations |= {ROLES: ",".join(sorted(self.roles[title]))} if self.roles[title] else {}
            one = Descriptor(media_type=layer.media_type, sha256=layer.sha256, size=layer.size, annotations=annotations)
            found.append(one)
        return in_order(found)


class Gathering:
    """Makes one bundle; the steps share what was found."""

    def __init__(
        self,
        workspace: Workspace,
        chosen: Iterable[Chosen],
        supplies: Supplies,
        *,
        with_python: bool,
        python: Path | None,
    ) -> None:
        self.workspace = workspace
        self.chosen = tuple(sorted(chosen, key=lambda one: one.name))
        self.supplies = supplies
        self.notes: list[str] = []
        self._interpreters = Interpreters(supplies, named=python, wanted=with_python)
        self._pile = _Pile()
        self._sources: dict[str, File] = {}
        self._tools: list[tuple[str, Wheel]] = []
        self._pythons: dict[str, Any] = {}

    @property
    def stack(self) -> str:
        """Name of the stack."""
        return self.workspace.stack.stack.name

    def make(self) -> Gathered:
        """Bring everything into the store and list it.

        Raises:
            EnvsmithError: what getting and making the parts raises.
        """
        for one in self.chosen:
            self._fill_store(one)
            self._env(one)
        self._recipe()
        self._travelling()
        self._pile.data(INSTALLER, "install.sh", data_text("install.sh").encode())
        self._reports()
        manifest, contents = self._sealed()
        short = lacking(manifest, {one.name: one.lock for one in self.chosen})
        if short:
            raise Bug(Problem(code="bug", message=f"the bundle would lack {', '.join(short[:5])}"))
        return Gathered(manifest=manifest, data=render_manifest(manifest), contents=contents, notes=tuple(self.notes))

    # --- what one env needs ---

    def _fill_store(self, one: Chosen) -> None:
        """Have every wheel of a lock in the store: downloaded, built, patched."""
        lock, supplies = one.lock, self.supplies
        with supplies.work("bundle") as work:
            maker = Maker(
                lock=lock,
                origins=origins_of(self.workspace, one.name, lock),
                patches=one.patches,
                interpreter=lambda: supplies.interpreter(lock.target.python).path,
                supplies=supplies,
                work=work,
            )
            stored = stored_of(lock, supplies)
            missing = [entry for entry in lock.downloads(stored) if entry[1].sha256 not in stored]
            if missing:
                supplies.screen.say(f"obtain {len(missing)} files for {self.stack}/{one.name}")
                maker.obtain(missing)
            for built in lock.unbuilt(stored):
                supplies.screen.say(f"build {built.filename}")
                maker.build_sdist(built)
            for patched in lock.patched:
                if patched.sha256 not in stored:
                    supplies.screen.say(f"repack {patched.filename}")
                    maker.repack(patched)
            for source in lock.sources:
                if source.wheel is not None and source.wheel.sha256 not in stored:
                    supplies.screen.say(f"build {source.wheel.filename}")
                    tree = work / "src" / source.name
                    with filesystem(tree):
                        tree.parent.mkdir(exist_ok=True)
                    maker.export(source, tree)
                    folder = maker.folder(f"source-{source.name}")
                    builder = maker.backend(tree, source.build_requires, folder, source.version)
                    maker.build_source(source, builder, folder)

    def _env(self, one: Chosen) -> None:
        lock, env = one.lock, one.name
        self._pile.data(LOCK, f"stacks/pylock.{self.stack}-{env}.toml", one.text.encode(), env=env)
        self._pile.data(PYLOCK, f"pylock.{self.stack}-{env}.toml", _plain_lock(lock.wheels), env=env)
        made = {built.sha256 for built in lock.built} | {source.wheel.sha256 for source in lock.sources if source.wheel}
        patched = {wheel.sha256 for wheel in lock.patched}
        for wheel in lock.wheels:
            kind = "patched" if wheel.sha256 in patched else "built" if wheel.sha256 in made else None
            self._wheel(wheel, env, "env")
            if kind:
                self._wheel(wheel, env, kind)
        for wheel in lock.build_requires:
            self._wheel(wheel, env, "build")
        origins = origins_of(self.workspace, env, lock)
        for source in lock.sources:
            if source.sdist is not None:
                self._stored(SDIST, f"sdists/{source.sdist.filename}", source.sdist, env, "source")
            else:
                made_bundle = source_bundle(source, origins[source.name], self.supplies)
                file = File(filename=made_bundle.title, size=made_bundle.size, sha256=made_bundle.sha256)
                self._stored(SOURCE, made_bundle.title, file, env, "source")
                self._sources[source.name] = file
        self._patches(one)
        for asset in lock.assets:
            path = asset_path(self.workspace, asset)
            with filesystem(path):
                size = path.stat().st_size
            self._pile.put(ASSET, f"assets/{asset.path}", asset.sha256, size, FileContent(path=path), env=env)

    def _patches(self, one: Chosen) -> None:
        for patch_set in one.patches.values():
            for series in patch_set.series:
                data = read_file(self.workspace.patches / series.path, "series-missing", "there is no such series")
                self._pile.data(SERIES, f"patches/{series.path}", data, env=one.name)
            by_sha256 = {patch.sha256: patch.data for patch in patch_set.patches}
            for locked in (patch for series in patch_set.series for patch in series.patches):
                self._pile.data(PATCH, f"patches/{locked.path}", by_sha256[locked.sha256], env=one.name)

    def _wheel(self, wheel: Wheel, env: str | None, role: str) -> None:
        self._stored(WHEEL, f"wheels/{wheel.filename}", wheel.file, env, role)

    def _stored(self, kind: str, title: str, file: File, env: str | None, role: str) -> None:
        content = FileContent(path=self.supplies.store.blob_path(file.sha256))
        self._pile.put(kind, title, file.sha256, file.size, content, env=env, role=role)

    # --- what all of them need ---

    def _recipe(self) -> None:
        path = self.workspace.path
        self._pile.data(RECIPE, f"stacks/{path.name}", read_file(path, "recipe-unreadable", "it cannot be read"))
        name = self.workspace.stack.host.snapshot
        if name and (path.parent / name).is_file():
            data = read_file(path.parent / name, "snapshot-missing", "it cannot be read")
            self._pile.data(SNAPSHOT, f"stacks/{name}", data)

    def _travelling(self) -> None:
        """Add the interpreters, envsmith and what it needs."""
        tools = Tools(self.supplies)
        for one in self.chosen:
            if self.workspace.stack.env[one.name].base is None:
                archive = self._interpreters.archive(one.lock.target)
                if archive is not None:
                    self._stored(PYTHON, f"python/{archive.file.filename}", archive.file, one.name, "interpreter")
                    self._pythons[one.name] = {
                        "version": archive.version,
                        "sha256": archive.file.sha256,
                        "glibc": archive.glibc,
                        "needs": list(archive.needs),
                    }
            wheels = tools.wheels(one.lock.target)
            for wheel in wheels:
                self._wheel(wheel, None, "bootstrap")
            self._tools += [(one.name, wheel) for wheel in wheels]
            if wheels:
                minor = one.lock.target.python_minor.replace(".", "")
                arch = one.lock.target.arch.replace("_", "-")
                self._pile.data(PYLOCK, f"pylock.tools-{minor}-{arch}.toml", _plain_lock(wheels))
        self.notes += [*self._interpreters.notes, *self._interpreters.facts, *tools.notes]

    def _reports(self) -> None:
        locks = {one.name: (one.lock, one.text) for one in self.chosen}
        patches = [patch_set for one in self.chosen for patch_set in one.patches.values()]
        reported = Reported(
            workspace=self.workspace,
            locks=locks,
            patches=patches,
            sources=self._sources,
            tools=tuple(dict.fromkeys(wheel for _, wheel in self._tools)),
            layers=self._pile.finished(),
            versions=self._versions(),
            version=self._version(),
            notes=tuple(self._interpreters.facts),
        )
        for kind, title, text in reports_of(reported, self.supplies):
            self._pile.data({"json": REPORT, "md": SHEET}[kind], title, text.encode())

    def _sealed(self) -> tuple[Manifest, Mapping[str, Content]]:
        layers = self._pile.finished()
        content = config_json(self._config(layers))
        config = Descriptor(media_type=CONFIG, sha256=hashlib.sha256(content).hexdigest(), size=len(content))
        locks = {one.name: digest(one.text) for one in self.chosen}
        annotations = {TITLE: self.stack, VERSION: self._version(), LOCKS: to_json(locks).decode()}
        manifest = Manifest(artifact=BUNDLE, config=config, layers=layers, annotations=annotations)
        return manifest, {**self._pile.contents, config.sha256: BytesContent(data=content)}

    def _version(self) -> str:
        stated = self.workspace.stack.stack.version
        return stated or locks_version({one.name: digest(one.text) for one in self.chosen})

    def _versions(self) -> dict[str, str]:
        found = {"envsmith": __version__, "uv": uv_version()}
        if self._sources:
            from envsmith.tools.git import version

            found["git"] = version()
        return found

    def _config(self, layers: tuple[Descriptor, ...]) -> dict[str, Any]:
        counts: dict[str, dict[str, int]] = {}
        for layer in layers:
            count = counts.setdefault(layer.title.partition("/")[0], {"files": 0, "bytes": 0})
            count["files"] += 1
            count["bytes"] += layer.size
        host, envs = self.workspace.stack.host, self.workspace.stack.env
        return {
            "stack": self.stack,
            "version": self._version(),
            "envs": {one.name: _env_config(one, envs[one.name], self._pythons.get(one.name)) for one in self.chosen},
            "host": {"arch": host.arch, "glibc": host.glibc, "driver": host.driver, "kernel": host.kernel},
            "made-with": self._versions(),
            "counts": counts,
        }


def _env_config(one: Chosen, recipe: Env, python: Mapping[str, Any] | None) -> dict[str, Any]:
    lock = one.lock
    return {
        "lock": digest(one.text),
        "recipe": lock.recipe_digest,
        "python": lock.target.python,
        "arch": lock.target.arch,
        "glibc": lock.target.glibc,
        "trees": {source.name: source.tree for source in lock.sources},
        "interpreter": dict(python) if python else None,
        "base": bool(lock.base),
        "base-python": recipe.base.python if recipe.base else None,
        "protected": {one.name: one.version for one in lock.base if one.protected},
    }


def _plain_lock(wheels: Iterable[Wheel]) -> bytes:
    """The lock that plain uv installs from the blobs: paths are relative to the file, at the root of the layout."""
    return install_pylock(
        (wheel.name, wheel.version, wheel.filename, Path("blobs/sha256") / wheel.sha256, wheel.size, wheel.sha256)
        for wheel in wheels
    ).encode()


def choose(workspace: Workspace, env: str, lock: Lock, text: str) -> Chosen:
    """Make an env ready to be gathered.

    Raises:
        InputError: what reading the patches raises.
    """
    return Chosen(name=env, lock=lock, text=text, patches=patches_of(workspace, env, lock))
