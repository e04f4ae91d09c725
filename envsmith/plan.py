"""The plan: which steps a build will take, as values. `--dry-run` prints exactly the tuple that `execute` runs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from envsmith.lock import BuiltWheel, File, Lock, LockedSource, PatchedWheel


@dataclass(frozen=True, kw_only=True, slots=True)
class Obtain:
    """Bring every file that is not in the store yet, and unpack wheels as they arrive."""

    files: tuple[tuple[str, File], ...]
    """(package, file)."""

    def describe(self) -> str:
        """One line for people."""
        size = sum(file.size for _, file in self.files)
        return f"obtain {_counted(len(self.files), 'file', 'files')}, {megabytes(size)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildSdist:
    """Build one allowed sdist and compare the result with the lock."""

    wheel: BuiltWheel

    def describe(self) -> str:
        """One line for people."""
        return f"build {self.wheel.filename} from {self.wheel.sdist.filename}"


@dataclass(frozen=True, kw_only=True, slots=True)
class RepackWheel:
    """Patch one wheel and compare the result with the lock."""

    wheel: PatchedWheel

    def describe(self) -> str:
        """One line for people."""
        count = sum(len(series.patches) for series in self.wheel.series)
        return (
            f"repack {self.wheel.original.filename} with {_counted(count, 'patch', 'patches')} as {self.wheel.filename}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareBase:
    """Hold the vendor's packages against the lock before anything is fetched or made."""

    python: str
    """The base's executable, as the recipe names it."""
    count: int
    """Protected packages."""

    def describe(self) -> str:
        """One line for people."""
        packages = _counted(self.count, "protected package", "protected packages")
        return f"compare {self.python} with the lock, {packages} file by file"


@dataclass(frozen=True, kw_only=True, slots=True)
class LayOver:
    """Make the base's packages visible behind the env's own, and its commands run by the env's Python."""

    python: str

    def describe(self) -> str:
        """One line for people."""
        return f"lay it over {self.python}"


@dataclass(frozen=True, kw_only=True, slots=True)
class CreateVenv:
    """Make the empty environment."""

    python: str
    """Path of the interpreter."""
    version: str

    def describe(self) -> str:
        """One line for people."""
        return f"create the environment with Python {self.version}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportSource:
    """Make the work copy of a source, apply its series, compare the tree id."""

    source: LockedSource

    def describe(self) -> str:
        """One line for people."""
        origin = self.source.sdist.filename if self.source.sdist else f"commit {(self.source.commit or '')[:12]}"
        count = sum(len(series.patches) for series in self.source.series)
        applied = f", apply {_counted(count, 'patch', 'patches')}" if count else ""
        return f"export {self.source.name} from {origin}{applied}, expect tree {self.source.tree[:12]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildSource:
    """Let a source's backend make the wheel that installs it."""

    source: LockedSource

    def describe(self) -> str:
        """One line for people."""
        count = len(self.source.build_requires)
        needs = _counted(count, "pinned build requirement", "pinned build requirements")
        return f"build {self.source.name} ({self.source.install}) with {needs}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncWheels:
    """Install everything in one uv sync, offline and hash-checked."""

    count: int

    def describe(self) -> str:
        """One line for people."""
        return f"install {_counted(self.count, 'wheel', 'wheels')} in one offline sync"


@dataclass(frozen=True, kw_only=True, slots=True)
class Isolate:
    """Cut the links through which an edit here could reach the store or another env."""

    def describe(self) -> str:
        """One line for people."""
        return "isolate: private copies of everything but native libraries"


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteLaunchFiles:
    """Write `env.sh` and the modulefile."""

    def describe(self) -> str:
        """One line for people."""
        return "write env.sh and modulefile"


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyEnv:
    """Hash every file against the wheels and probe the env as launched."""

    def describe(self) -> str:
        """One line for people."""
        return "verify every file and import against the lock"


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyAgain:
    """Verify an env that stands: before it becomes current again, or because the recipe asks for other things now."""

    def describe(self) -> str:
        """One line for people."""
        return "verify the env that stands, by the recipe's present verify table"


@dataclass(frozen=True, kw_only=True, slots=True)
class WriteReceipt:
    """Write the receipt, the last file of an env."""

    def describe(self) -> str:
        """One line for people."""
        return "write the receipt"


@dataclass(frozen=True, kw_only=True, slots=True)
class SwitchCurrent:
    """Point `current` at the new env with one rename."""

    directory: str

    def describe(self) -> str:
        """One line for people."""
        return f"switch current to {self.directory}"


Step = (
    CompareBase | Obtain | BuildSdist | RepackWheel | CreateVenv | ExportSource | BuildSource | SyncWheels | Isolate
    | LayOver | WriteLaunchFiles | VerifyEnv | VerifyAgain | WriteReceipt | SwitchCurrent
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Everything one build will do, in order. An empty plan means that the env stands."""

    env: str
    """`stack/env`."""
    directory: str
    """The env directory."""
    fingerprint: str
    steps: tuple[Step, ...]


def make_plan(
    lock: Lock,
    *,
    directory: str,
    fingerprint: str,
    python: tuple[str, str],
    stored: Collection[str],
    complete: bool,
    current: bool,
    verified: bool = True,
    base: str | None = None,
) -> Plan:
    """Derive the steps that bring an env from what is there to what the lock says.

    `python` is (path, version) of the interpreter, `stored` the sha256 of blobs that the store has, `complete`
    says that the env directory has its receipt, `current` that `current` points at it, `verified` that it was verified
    by the recipe's present verify table. `base` is the executable of the vendor's Python that the env is laid over.
    """
    name = f"{lock.stack}/{lock.env}"
    switch = SwitchCurrent(directory=directory.rpartition("/")[2])
    if complete:
        again: list[Step] = [] if verified and current else [VerifyAgain()]
        again += [] if verified else [WriteReceipt()]
        again += [] if current else [switch]
        return Plan(env=name, directory=directory, fingerprint=fingerprint, steps=tuple(again))
    missing = tuple(entry for entry in lock.downloads(stored) if entry[1].sha256 not in stored)
    steps: list[Step] = []
    if base is not None:
        steps.append(CompareBase(python=base, count=sum(one.protected for one in lock.base)))
    steps += [Obtain(files=missing)] if missing else []
    steps += [BuildSdist(wheel=wheel) for wheel in lock.unbuilt(stored)]
    steps += [RepackWheel(wheel=wheel) for wheel in lock.patched if wheel.sha256 not in stored]
    steps.append(CreateVenv(python=python[0], version=python[1]))
    for source in lock.sources:
        steps += [ExportSource(source=source), BuildSource(source=source)]
    steps += [
        SyncWheels(count=len(lock.wheels) + sum(source.wheel is None for source in lock.sources)),
        Isolate(),
        *([LayOver(python=base)] if base is not None else []),
        WriteLaunchFiles(),
        VerifyEnv(),
        WriteReceipt(),
        switch,
    ]
    return Plan(env=name, directory=directory, fingerprint=fingerprint, steps=tuple(steps))


def megabytes(size: int) -> str:
    """A size for people, in decimal units as download tools use them."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
