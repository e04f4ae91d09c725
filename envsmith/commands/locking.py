"""How a lock is made: sources first, then one resolution, then what is built from it, then the conflicts.

uv resolves for the recipe's target, on any machine; everything that uv leaves open is decided here once.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from envsmith.commands.assets import read_assets
from envsmith.commands.declared import declared
from envsmith.commands.envs import shown
from envsmith.commands.patchfiles import read_patches
from envsmith.commands.snapshots import read_snapshot
from envsmith.commands.sources import Origin, backend, build_environment, build_wheel, export, unpack_to_work_copy
from envsmith.commands.supplies import Supplies
from envsmith.commands.workspace import Workspace, git_place
from envsmith.conflicts import Acceptance, Declaration, Verdict, active_extras, concerning, judge, violations
from envsmith.errors import InputError, Problem, StepError, SupplyError
from envsmith.host import BasePackage, protected_names
from envsmith.lock import (
    AlteredFile,
    BuiltWheel,
    Conflict,
    File,
    Lock,
    LockedBase,
    LockedSource,
    PatchedWheel,
    Wheel,
)
from envsmith.recipe import Env, Source
from envsmith.target import Target, applies, choose_wheel
from envsmith.tools.backend import (
    SOURCE_DATE_EPOCH,
    VERSION_FROM_TAGS,
    Backend,
    CoreMetadata,
    Kind,
    sdist_version,
    static_requires,
)
from envsmith.tools.candidates import complete, find_sdist
from envsmith.tools.download import download_all
from envsmith.tools.index import Item
from envsmith.tools.stand_in import write_stand_in
from envsmith.tools.uv import Candidate, Resolution, ResolvedPackage, uv_version


@dataclass(frozen=True, kw_only=True, slots=True)
class Locked:
    """A new lock with the verdict over its conflicts."""

    lock: Lock
    verdict: Verdict
    warnings: tuple[Problem, ...]
    base: Mapping[str, str | None] = field(default_factory=dict)
    """Every package of the base by name, with its version where the snapshot has it."""


class Locker:
    """Makes the lock of one env; the steps share what was found about files and metadata."""

    def __init__(
        self, workspace: Workspace, env_name: str, supplies: Supplies, *, prefer: Mapping[str, str] | None = None
    ) -> None:
        self.workspace = workspace
        self.env_name = env_name
        self.env: Env = workspace.stack.env[env_name]
        self.supplies = supplies
        self.prefer = dict(prefer or {})
        host = workspace.stack.host
        self.target = Target(python=self.env.python, arch=host.arch, glibc=host.glibc)
        self.build_requires: dict[str, Wheel] = {}
        self.locations: dict[str, str] = {}
        self.warnings: list[Problem] = []
        self.snapshot = read_snapshot(workspace, env_name)

    def make(self) -> Locked:
        """Make the lock.

        Raises:
            InputError: `unsatisfiable`, `no-wheel-fits` and what patches and sources say.
        """
        self._refuse_other_than_base()
        sources = tuple(self._source(name, source) for name, source in self.env.source.items())
        roots = self._roots(sources)
        packages, base = self._without_base(self._resolve(roots))
        wheels, built = self._wheels(packages)
        wheels, patched = self._patch(wheels)
        wheels += [wheel for source in sources if (wheel := self._source_wheel(source))]
        declarations = declared(wheels, sources, self.locations, self.supplies)
        lock = Lock(
            stack=self.workspace.stack.stack.name,
            env=self.env_name,
            target=self.target,
            recipe_digest=self.workspace.stack.recipe_digest(self.env_name),
            uv=uv_version(),
            exclude_newer=_timestamp(self.env),
            wheels=tuple(sorted(wheels, key=lambda wheel: wheel.name)),
            sources=tuple(sorted(sources, key=lambda source: source.name)),
            built=tuple(sorted(built, key=lambda wheel: wheel.name)),
            patched=tuple(sorted(patched, key=lambda wheel: wheel.name)),
            build_requires=tuple(self.build_requires[key] for key in sorted(self.build_requires)),
            base=base,
            snapshot=self.snapshot.digest() if self.snapshot else None,
            assets=read_assets(self.workspace, self.env),
            extras=_extras(declarations, roots, self.target),
        )
        verdict = self._judge(declarations, lock, roots)
        conflicts = tuple(
            Conflict(
                package=violation.package,
                version=violation.version,
                requirement=violation.requirement,
                found=violation.found,
                because=entry.because,
            )
            for violation, entry in verdict.accepted
        )
        warnings = (*self.warnings, *self._unreasoned(), *self._stale(verdict))
        return Locked(
            lock=replace(lock, conflicts=conflicts),
            verdict=verdict,
            warnings=warnings,
            base={name: package.version for name, package in self._base_packages()},
        )

    # --- sources ---

    def _source(self, name: str, source: Source) -> LockedSource:
        self.supplies.screen.detail(f"prepare source {name}")
        sdist = self._sdist(source.sdist) if source.sdist else None
        patches = read_patches(self.workspace.patches, source.series, source.base)
        kind: Kind = "editable" if source.install == "editable" else "wheel"
        origin = Origin(name=name, git=git_place(self.workspace, source.git), commit=source.commit, sdist=sdist)
        with self.supplies.work(f"source-{name}") as work:
            exported = export(origin, patches, work / name, self.supplies)
            version = sdist_version(exported.tree) if sdist else self._stated_version(name, source, exported.tree)
            builder, build_requires = self._backend(exported.tree, kind, work, version)
            metadata = builder.metadata(kind)
            self._require_extras(name, source, metadata)
            wheel = self._keep(build_wheel(builder, kind, work=work / "out")) if kind == "wheel" else None
            self._warn_of_git(name, source, exported.tree)
        return LockedSource(
            name=name,
            project=metadata.name,
            version=metadata.version,
            commit=source.commit,
            sdist=sdist,
            extras=tuple(sorted(source.extras)),
            series=patches.series,
            base_tree=exported.base_id,
            tree=exported.tree_id,
            install=source.install,
            deps=source.deps,
            requires=metadata.requires,
            requires_python=metadata.requires_python,
            build_requires=build_requires,
            wheel=wheel,
        )

    def _sdist(self, requirement: str) -> File:
        """Find and download the sdist that `name==version` names."""
        parsed = Requirement(requirement)
        version = next(iter(parsed.specifier)).version
        found = find_sdist(self.supplies.supply(), self.supplies.store, parsed.name, version, self.supplies.screen)
        return File(**asdict(found))

    def _where(self, *keys: str) -> str:
        """Where a key of this env stands, for messages."""
        return f"{shown(self.workspace.path)}:{'.'.join(('env', self.env_name, *keys))}"

    def _stated_version(self, name: str, source: Source, tree: Path) -> str | None:
        """The version that the recipe states for a git tree; one that would ask git for it needs it.

        Raises:
            InputError: `source-version-missing`.
        """
        asks = {str(canonicalize_name(Requirement(text).name)) for text in static_requires(tree)} & VERSION_FROM_TAGS
        if asks and source.version is None:
            raise InputError(
                Problem(
                    code="source-version-missing",
                    message=f"`{name}` asks git tags for its version ({', '.join(sorted(asks))}); a work copy has none",
                    where=self._where("source", name),
                    hint='state it in the recipe: `version = "…"`, as `git describe` in a full clone would say it',
                )
            )
        return source.version

    def _require_extras(self, name: str, source: Source, metadata: CoreMetadata) -> None:
        """Hold the extras that the recipe asks for against those that the tree has.

        Raises:
            InputError: `unknown-extra`.
        """
        unknown = [extra for extra in source.extras if str(canonicalize_name(extra)) not in metadata.extras]
        if unknown:
            has = ", ".join(sorted(metadata.extras)) or "none"
            raise InputError(
                Problem(
                    code="unknown-extra",
                    message=f"`{name}` has no extra {', '.join(f'`{extra}`' for extra in unknown)}",
                    where=self._where("source", name, "extras"),
                    hint=f"its extras: {has}",
                )
            )

    def _warn_of_git(self, name: str, source: Source, tree: Path) -> None:
        """Say what a commit names but does not hold."""
        attributes = tree / ".gitattributes"
        kinds = {
            "submodules, which stay empty folders": (tree / ".gitmodules").is_file(),
            "Git LFS files, which stay pointers": attributes.is_file() and b"filter=lfs" in attributes.read_bytes(),
        }
        self.warnings += [
            Problem(
                code="source-incomplete",
                message=f"the tree of `{name}` has {kind}",
                where=self._where("source", name),
                hint="take what is needed from there as an asset or a source of its own",
            )
            for kind, found in kinds.items()
            if found and source.git
        ]

    def _backend(self, tree: Path, kind: Kind, work: Path, version: str | None) -> tuple[Backend, tuple[str, ...]]:
        """Pin and install what building a tree needs: first what it declares, then what its backend asks for."""
        interpreter = self.supplies.interpreter(self.env.python)
        declared = tuple(r for r in static_requires(tree) if applies(Requirement(r).marker, self.target))
        wheels = self._resolve_build(declared)
        python = build_environment(wheels, interpreter=interpreter.path, supplies=self.supplies, work=work)
        asked = backend(tree, python, self.supplies, version).requires(kind)
        if asked:
            wheels = self._resolve_build((*declared, *asked))
            python = build_environment(wheels, interpreter=interpreter.path, supplies=self.supplies, work=work)
        names = tuple(f"{wheel.name}=={wheel.version}" for wheel in wheels)
        return backend(tree, python, self.supplies, version), names

    def _resolve_build(self, requires: tuple[str, ...]) -> list[Wheel]:
        """Resolve build requirements to wheels, never to sdists: a build needs no build."""
        if not requires:
            return []
        packages = self._run_resolution(self._resolution(requires))
        wheels = [self._choose(package) for package in packages if applies(package.marker, self.target)]
        self._download(wheels)
        for wheel in wheels:
            self.build_requires[f"{wheel.name}=={wheel.version}"] = wheel
        return wheels

    def _source_wheel(self, source: LockedSource) -> Wheel | None:
        if source.wheel is None:
            return None
        file = source.wheel
        return Wheel(
            name=source.project, version=source.version, filename=file.filename, size=file.size, sha256=file.sha256
        )

    # --- the resolution ---

    def _roots(self, sources: Iterable[LockedSource]) -> tuple[str, ...]:
        """What has to be in the env: the recipe's list, and what sources with `deps` require with their extras."""
        roots = list(self.env.requires)
        for source in sources:
            if not source.deps:
                continue
            for text in source.requires:
                requirement = Requirement(text)
                if applies(requirement.marker, self.target, source.extras):
                    requirement.marker = None
                    roots.append(str(requirement))
        return tuple(roots)

    def _resolve(self, roots: tuple[str, ...]) -> tuple[ResolvedPackage, ...]:
        """Resolve to wheels, and to sdists of the names that `build` allows.

        The sdists take part from the start: left out, a resolver drifts back to releases that avoid them. Where one
        of these names has a wheel that fits, the wheel is taken at the same version.
        """
        built = {str(canonicalize_name(name)) for name in self.env.build}
        packages = self._resolve_with(roots, built)
        versions = _versions(packages)
        for name in sorted(built & versions.keys()):
            with contextlib.suppress(InputError):
                other = self._resolve_once(roots, built - {name}, prefer=versions)
                if _versions(other) == versions:
                    packages, built = other, built - {name}
        return packages

    def _resolve_with(self, roots: tuple[str, ...], built: set[str]) -> tuple[ResolvedPackage, ...]:
        """Resolve with sdists of some names; one that has no sdist at all is asked for as a wheel."""
        first: InputError | None = None
        while True:
            try:
                return self._resolve_once(roots, built, prefer=self.prefer)
            except InputError as error:
                first = first or error
                words = {str(canonicalize_name(word)) for word in re.findall(r"[\w.-]*\w", str(error))}
                if not built & words:
                    raise first from error
                built -= words

    def _resolve_once(
        self, roots: tuple[str, ...], built: set[str], *, prefer: Mapping[str, str]
    ) -> tuple[ResolvedPackage, ...]:
        wanted = self._resolution(
            roots,
            override=self.env.override,
            constrain=self.env.constrain,
            exclude=self.env.exclude,
            build=tuple(sorted(built)),
            no_deps=self.env.no_deps,
            prefer=prefer,
        )
        return self._run_resolution(wanted, over_base=True)

    def _with_base(self, wanted: Resolution, folder: Path) -> Resolution:
        """Let the vendor's packages stand in a resolution: the protected ones pinned, the others preferred."""
        if self.snapshot is None or self.env.base is None:
            return wanted
        versions = self._base_versions()
        for name, version in versions.items():
            write_stand_in(folder, name, version)
        protected = protected_names(self.snapshot, self.env.base.protect)
        pinned = tuple(f"{name}=={version}" for name, version in sorted(versions.items()) if name in protected)
        return replace(
            wanted,
            constrain=(*wanted.constrain, *pinned),
            exclude=(*wanted.exclude, *sorted(self._base_unversioned())),
            prefer={**versions, **wanted.prefer},
            find_links=(str(folder), *wanted.find_links),
        )

    def _refuse_other_than_base(self) -> None:
        """Refuse a recipe that asks for another version of a protected package itself, without asking any index.

        Raises:
            InputError: `unsatisfiable` for every such requirement.
        """
        if self.snapshot is None or self.env.base is None:
            return
        versions = self._base_versions()
        protected = protected_names(self.snapshot, self.env.base.protect)
        problems = []
        for key in ("requires", "override", "constrain"):
            for text in getattr(self.env, key):
                requirement = Requirement(text)
                name = str(canonicalize_name(requirement.name))
                there = versions.get(name) if name in protected else None
                if there is None or not applies(requirement.marker, self.target, ()):
                    continue
                if not requirement.specifier.contains(there, prereleases=True):
                    problems.append(
                        Problem(
                            code="unsatisfiable",
                            message=f"`{text}` is asked for, and {name} {there} of the vendor's base is protected",
                            where=self._where(key),
                            hint=f"`{name}` of the vendor's base must stay: leave the requirement out, or say `{name}`",
                        )
                    )
        if problems:
            raise InputError(*problems)

    def _base_versions(self) -> dict[str, str]:
        """Packages of the base whose version the snapshot has."""
        return {name: package.version for name, package in self._base_packages() if package.version is not None}

    def _base_packages(self) -> Iterator[tuple[str, BasePackage]]:
        """Packages of the base, without those whose names no requirement can have, such as what pip left behind."""
        for name, package in self.snapshot.by_name().items() if self.snapshot else ():
            if re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", name):
                yield name, package

    def _base_unversioned(self) -> set[str]:
        """Packages of which it is only known that the base has them: they are there, and no resolver may bring them."""
        return {name for name, package in self._base_packages() if package.version is None}

    def _without_base(
        self, packages: tuple[ResolvedPackage, ...]
    ) -> tuple[tuple[ResolvedPackage, ...], tuple[LockedBase, ...]]:
        """Take the vendor's packages out of a resolution: they are used where they are, never downloaded."""
        if self.snapshot is None or self.env.base is None:
            return packages, ()
        known = self.snapshot.by_name()
        protected = protected_names(self.snapshot, self.env.base.protect)
        used = {
            str(canonicalize_name(package.name))
            for package in packages
            if (there := known.get(str(canonicalize_name(package.name)))) and there.version == package.version
        }
        base = tuple(
            LockedBase(
                name=name,
                version=known[name].version,
                protected=name in protected,
                files=known[name].files,
                record=known[name].record,
                altered=tuple(AlteredFile(path=one.path, sha256=one.sha256) for one in known[name].altered),
            )
            for name in sorted(used | protected)
        )
        return tuple(p for p in packages if str(canonicalize_name(p.name)) not in used), base

    def _run_resolution(self, wanted: Resolution, *, over_base: bool = False) -> tuple[ResolvedPackage, ...]:
        with self.supplies.work("resolve") as work:
            stand_ins = work / "base"
            stand_ins.mkdir()
            try:
                return self.supplies.uv.resolve(
                    self._with_base(wanted, stand_ins) if over_base else wanted,
                    interpreter=self._any_interpreter(),
                    work=work,
                )
            except InputError as error:
                hint = self._base_hint(str(error)) if over_base else None
                raise InputError(
                    *(replace(p, where=self._where(), hint=hint or p.hint) for p in error.problems)
                ) from error

    def _base_hint(self, said: str) -> str | None:
        """Say so when it is a protected package of the base that an addition would replace."""
        if self.snapshot is None or self.env.base is None:
            return None
        protected = protected_names(self.snapshot, self.env.base.protect)
        pinned = [name for name in sorted(protected) if re.search(rf"\b{re.escape(name)}==", said)]
        if not pinned:
            return None
        names = ", ".join(f"`{name}`" for name in pinned)
        return f"{names} of the vendor's base must stay: choose additions that accept it, or use `no-deps`"

    def _any_interpreter(self) -> Path:
        """The target's interpreter where there is one; for wheels alone any other will do."""
        import sys

        try:
            return self.supplies.interpreter(self.env.python).path
        except SupplyError:
            if self.env.build or self.env.source:
                raise
            return Path(sys.executable).absolute()

    def _resolution(self, requires: tuple[str, ...], **more: Any) -> Resolution:
        settings = self.supplies.settings
        return Resolution(
            requires=requires,
            python=self.env.python,
            platform=self.target.uv_platform(),
            exclude_newer=_timestamp(self.env),
            index=settings.index,
            find_links=settings.find_links,
            offline=self.supplies.offline,
            **more,
        )

    def _wheels(self, packages: Iterable[ResolvedPackage]) -> tuple[list[Wheel], list[BuiltWheel]]:
        allowed = {canonicalize_name(name) for name in self.env.build}
        wheels: list[Wheel] = []
        built: list[BuiltWheel] = []
        problems: list[Problem] = []
        for package in packages:
            if not applies(package.marker, self.target):
                continue
            try:
                if package.sdist is not None and canonicalize_name(package.name) in allowed:
                    wheel, record = self._build(package)
                    wheels.append(wheel)
                    built.append(record)
                else:
                    wheels.append(self._choose(package))
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(*problems)
        return wheels, built

    def _choose(self, package: ResolvedPackage) -> Wheel:
        """Pick the one wheel of a package.

        Raises:
            InputError: `no-wheel-fits`.
        """
        name = choose_wheel((candidate.filename for candidate in package.wheels), self.target)
        if name is None:
            raise InputError(
                Problem(
                    code="no-wheel-fits",
                    message=f"`{package.name}` {package.version} has no wheel for Python {self.target.python_minor},"
                    f" {self.target.arch}, glibc {self.target.glibc}",
                    where=self._where(),
                    actual=", ".join(c.filename for c in package.wheels[:4]) or "only an sdist",
                    hint=f'build it: `build = ["{package.name}"]`, or raise `host.glibc`, or pin another version',
                )
            )
        chosen = next(candidate for candidate in package.wheels if candidate.filename == name)
        file = self._known(package.name, chosen)
        self.locations[file.sha256] = chosen.location
        return Wheel(
            name=str(canonicalize_name(package.name)),
            version=package.version,
            filename=file.filename,
            size=file.size,
            sha256=file.sha256,
        )

    def _known(self, name: str, candidate: Candidate) -> File:
        found = complete(
            name,
            candidate.filename,
            candidate.location,
            candidate.size,
            candidate.sha256,
            self.supplies.supply(),
            self.supplies.store,
        )
        return File(**asdict(found))

    def _download(self, wheels: Iterable[Wheel]) -> None:
        items = [
            Item(name=wheel.name, filename=wheel.filename, size=wheel.size, sha256=wheel.sha256) for wheel in wheels
        ]
        download_all(items, self.supplies.supply(), self.supplies.store, progress=self.supplies.screen)

    def _keep(self, path: Path) -> File:
        """Put a file of our own making into the store."""
        sha256 = self.supplies.store.add_file(path)
        return File(filename=path.name, size=path.stat().st_size, sha256=sha256)

    # --- what is built or patched ---

    def _build(self, package: ResolvedPackage) -> tuple[Wheel, BuiltWheel]:
        """Build an allowed sdist once, with pinned requirements."""
        assert package.sdist is not None
        sdist = self._obtained(package.name, self._known(package.name, package.sdist))
        with self.supplies.work(f"build-{package.name}") as work:
            tree = work / package.name
            unpack_to_work_copy(sdist, tree, self.supplies)
            builder, build_requires = self._backend(tree, "wheel", work, sdist_version(tree) or package.version)
            self.supplies.screen.detail(f"build {package.name} {package.version}")
            file = self._keep(build_wheel(builder, "wheel", work=work / "out"))
            self._require_version(package, file)
        wheel = Wheel(
            name=str(canonicalize_name(package.name)),
            version=package.version,
            filename=file.filename,
            size=file.size,
            sha256=file.sha256,
        )
        record = BuiltWheel(
            name=wheel.name,
            filename=file.filename,
            sha256=file.sha256,
            sdist=sdist,
            build_requires=build_requires,
            source_date_epoch=SOURCE_DATE_EPOCH,
        )
        return wheel, record

    def _require_version(self, package: ResolvedPackage, built: File) -> None:
        """Hold what a backend made against what the resolution counted on.

        Raises:
            StepError: `built-version-differs`.
        """
        made = str(parse_wheel_filename(built.filename)[1])
        if Version(made) != Version(package.version):
            raise StepError(
                Problem(
                    code="built-version-differs",
                    message=f"the sdist of `{package.name}` was built as another version than it was released",
                    where=built.filename,
                    expected=package.version,
                    actual=made,
                )
            )

    def _obtained(self, name: str, file: File) -> File:
        item = Item(name=name, filename=file.filename, size=file.size, sha256=file.sha256)
        download_all([item], self.supplies.supply(), self.supplies.store, progress=self.supplies.screen)
        return file

    def _patch(self, wheels: list[Wheel]) -> tuple[list[Wheel], list[PatchedWheel]]:
        """Replace each wheel that the recipe patches by its repacked form."""
        from envsmith.tools.wheel import patch_wheel

        patched: list[PatchedWheel] = []
        by_name = {wheel.name: wheel for wheel in wheels}
        for raw, table in self.env.patch.items():
            name = str(canonicalize_name(raw))
            original = by_name.get(name)
            if original is None:
                raise InputError(
                    Problem(
                        code="patch-without-package",
                        message=f"the recipe patches `{raw}`, which is not among the locked packages",
                        where=self._where("patch", raw),
                    )
                )
            patches = read_patches(self.workspace.patches, table.series, f"{name}=={original.version}")
            if not self.supplies.store.has(original.sha256, original.size):
                self._download([original])
            with self.supplies.work(f"patch-{name}") as work:
                source = work / original.filename
                source.symlink_to(self.supplies.store.blob_path(original.sha256))
                made = patch_wheel(source, work / "out", patches.named)
                file = self._keep(work / "out" / made.filename)
            by_name[name] = Wheel(
                name=name, version=made.version, filename=file.filename, size=file.size, sha256=file.sha256
            )
            patched.append(
                PatchedWheel(
                    name=name,
                    filename=file.filename,
                    sha256=file.sha256,
                    original=original.file,
                    series=patches.series,
                    tree=made.tree,
                )
            )
        return list(by_name.values()), patched

    # --- declared requirements ---

    def _judge(self, declarations: Mapping[str, Declaration], lock: Lock, roots: tuple[str, ...]) -> Verdict:
        versions = {wheel.name: wheel.version for wheel in lock.wheels}
        versions |= {source.project: source.version for source in lock.sources}
        versions = {**self._base_versions(), **versions}
        asked = (*roots, *(f"{s.project}[{','.join(s.extras)}]" for s in lock.sources if s.extras))
        unversioned = self._base_unversioned()
        own = {wheel.name for wheel in lock.wheels} | {source.project for source in lock.sources}
        everything = {**self._base_declarations(), **declarations}
        found = (
            violation
            for violation in concerning(violations(everything, versions, self.target, asked), own)
            if canonicalize_name(Requirement(violation.requirement).name) not in unversioned
        )
        return judge(found, acceptances(self.env))

    def _base_declarations(self) -> dict[str, Declaration]:
        """What packages of the base want; what they want of each other is their vendor's matter."""
        return {
            name: Declaration(name=name, version=package.version, requires=package.requires)
            for name, package in self._base_packages()
            if package.version is not None
        }

    def _unreasoned(self) -> list[Problem]:
        """Entries that were pasted and never filled in."""
        return [
            Problem(
                code="accept-without-reason",
                message=f"the entry for `{entry.requirement}` of `{entry.package}` still holds the placeholder",
                where=self._where("accept"),
                hint="say in `because` why it is safe, and what was run to know it",
            )
            for entry in self.env.accept
            if entry.because.strip(" .…").lower() in ("", "todo", "tbd", "because")
        ]

    def _stale(self, verdict: Verdict) -> tuple[Problem, ...]:
        where = self._where("accept")
        return tuple(
            Problem(
                code="accept-stale",
                message=f"nothing breaks `{entry.requirement}` of `{entry.package}` any more",
                where=where,
                hint="remove the entry",
            )
            for entry in verdict.stale
        )


def _versions(packages: Iterable[ResolvedPackage]) -> dict[str, str]:
    return {str(canonicalize_name(package.name)): package.version for package in packages}


def acceptances(env: Env) -> tuple[Acceptance, ...]:
    """The recipe's `accept` entries as plain values."""
    return tuple(
        Acceptance(package=entry.package, requirement=entry.requirement, because=entry.because) for entry in env.accept
    )


def _extras(
    declarations: Mapping[str, Declaration], roots: tuple[str, ...], target: Target
) -> dict[str, tuple[str, ...]]:
    found = active_extras(declarations, roots, target)
    return {name: tuple(sorted(extras)) for name, extras in found.items() if extras}


def _timestamp(env: Env) -> str | None:
    from datetime import timezone

    if env.exclude_newer is None:
        return None
    return env.exclude_newer.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
