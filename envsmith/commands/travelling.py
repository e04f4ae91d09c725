"""What travels beside the env itself: the interpreter, and envsmith with all it needs to run on the target."""

from __future__ import annotations

import contextlib
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name, parse_wheel_filename

from envsmith.bootstrap import choose
from envsmith.commands.supplies import Supplies
from envsmith.errors import HostError, SupplyError
from envsmith.lock import File, Wheel
from envsmith.target import Target
from envsmith.tools.download import download_all
from envsmith.tools.index import Item

if TYPE_CHECKING:
    from envsmith.tools.relocatable import Found


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """An interpreter that travels."""

    file: File
    version: str
    """Such as 3.11.7."""
    glibc: str | None
    """The oldest glibc that it runs with."""
    needs: tuple[str, ...]
    """Libraries that the target must have."""


class Interpreters:
    """Packs interpreters that run wherever they are unpacked; one that cannot be had is said, not fatal."""

    def __init__(self, supplies: Supplies, *, named: Path | None, wanted: bool) -> None:
        self.notes: list[str] = []
        """For whoever makes the bundle; they may name places of this machine."""
        self.facts: list[str] = []
        """For whoever gets it."""
        self._supplies = supplies
        self._named = named
        self._wanted = wanted
        self._known: dict[tuple[str, str], Archive | None] = {}

    def archive(self, target: Target) -> Archive | None:
        """Return the archive of an interpreter for the target, in the store; None when none travels.

        Raises:
            HostError: `interpreter-not-relocatable` for one that the user names.
        """
        key = (target.python, target.arch)
        if key not in self._known:
            self._known[key] = self._make(target) if self._wanted else None
        return self._known[key]

    def _make(self, target: Target) -> Archive | None:
        from envsmith.tools.relocatable import find_relocatable

        if self._named is None and target.arch != platform.machine():
            self._without(target, f"this machine has none for {target.arch}; name one with `--python`")
            return None
        refused: list[str] = []
        with self._supplies.work("python") as work:
            one = self._own_choice(target, work) if self._named is None else None
            one = one or find_relocatable(
                target.python,
                self._supplies.environ,
                self._named,
                work=work,
                on_refusal=lambda prefix, why: refused.append(f"{prefix}: {why}"),
            )
            if one is None:
                self._without(target, "; ".join(refused) or "none is here; name one with `--python`")
                return None
            try:
                return self._packed(one.prefix, target, work)
            except HostError as error:
                if self._named is not None:
                    raise
                self._without(target, error.problems[0].message)
                return None

    def _own_choice(self, target: Target, work: Path) -> Found | None:
        """The interpreter that a build here takes, so that the env over there gets the same fingerprint."""
        from envsmith.tools.relocatable import find_relocatable

        with contextlib.suppress(HostError, SupplyError):
            base = self._supplies.interpreter(target.python).base
            return find_relocatable(target.python, self._supplies.environ, base, work=work)
        return None

    def _packed(self, prefix: Path, target: Target, work: Path) -> Archive:
        from envsmith.tools.relocatable import pack, prove

        self._supplies.screen.say(f"pack the interpreter below {prefix}")
        packed = pack(prefix, work / "python.tar")
        store = self._supplies.store
        name = f"cpython-{packed.version}-{packed.arch}.tar"
        if store.facts(packed.sha256).get("proven") != "moved" or not store.has(packed.sha256, packed.size):
            prove(packed.path, work, version=packed.version, arch=packed.arch)
            store.add_file(packed.path, packed.sha256, name=name)
            store.remember(packed.sha256, proven="moved")
        if packed.needs:
            listed = ", ".join(packed.needs)
            self.facts.append(
                f"the interpreter {packed.version} needs libraries that the target must have: {listed}; one of uv's"
                " builds needs none (`uv python install`, then `--python`)"
            )
        if packed.glibc and _numbers(packed.glibc) > _numbers(target.glibc):
            self.facts.append(
                f"the interpreter {packed.version} needs glibc {packed.glibc}, the recipe promises {target.glibc}: a"
                " target with less uses a Python of its own; one of uv's builds runs on all"
            )
        return Archive(
            file=File(filename=name, size=packed.size, sha256=packed.sha256),
            version=packed.version,
            glibc=packed.glibc,
            needs=packed.needs,
        )

    def _without(self, target: Target, why: str) -> None:
        self.notes.append(f"no interpreter travels, the target needs a Python {target.python} of its own: {why}")


class Tools:
    """Brings the wheels of envsmith and its dependencies into the store."""

    def __init__(self, supplies: Supplies) -> None:
        self.notes: list[str] = []
        self._supplies = supplies
        self._known: dict[Target, tuple[Wheel, ...]] = {}

    def wheels(self, target: Target) -> tuple[Wheel, ...]:
        """Return the wheels for a target, envsmith's own among them; none when it cannot run there."""
        if target not in self._known:
            self._known[target] = self._obtained(target)
        return self._known[target]

    def _obtained(self, target: Target) -> tuple[Wheel, ...]:
        try:
            wanted = choose(target)
            return (*self._pinned(wanted, target), self._own())
        except (HostError, SupplyError) as error:
            words = error.problems[0].message
            self.notes.append(f"envsmith does not travel for Python {target.python_minor}, {target.arch}: {words}")
            return ()

    def _pinned(self, wanted: tuple[Wheel, ...], target: Target) -> tuple[Wheel, ...]:
        """The pinned wheels, else the same packages out of the running installation."""
        store = self._supplies.store
        missing = [wheel for wheel in wanted if not store.has(wheel.sha256, wheel.size)]
        items = [Item(name=w.name, filename=w.filename, size=w.size, sha256=w.sha256) for w in missing]
        try:
            if items:
                self._supplies.screen.say(f"obtain {len(items)} wheels that envsmith needs on the target")
                download_all(items, self._supplies.supply(), store, progress=self._supplies.screen)
            return wanted
        except SupplyError:
            here = (".".join(platform.python_version_tuple()[:2]), platform.machine())
            if here != (target.python_minor, target.arch):
                raise
        self.notes.append("the tools are taken from the running installation: no index here has the pinned wheels")
        return tuple(self._installed(wheel.name) for wheel in wanted)

    def _installed(self, name: str) -> Wheel:
        from envsmith.tools.installedwheel import make_installed_wheel

        with self._supplies.work("tool") as work:
            return self._kept(make_installed_wheel(name, work))

    def _own(self) -> Wheel:
        from envsmith.tools.selfwheel import make_self_wheel

        with self._supplies.work("tool") as work:
            return self._kept(make_self_wheel(work))

    def _kept(self, path: Path) -> Wheel:
        name, version, _, _ = parse_wheel_filename(path.name)
        sha256 = self._supplies.store.add_file(path, name=path.name)
        return Wheel(
            name=str(canonicalize_name(name)),
            version=str(version),
            filename=path.name,
            size=path.stat().st_size,
            sha256=sha256,
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
