"""The env under trial: its records, and choosing places in it for faults."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TypeVar

from envsmith.lock import Lock
from envsmith.lock import parse as parse_lock
from envsmith.manifest import Entry, Kind, Manifest, Root, site_packages
from envsmith.receipt import NAME as RECEIPT
from envsmith.receipt import Receipt
from envsmith.receipt import parse as parse_receipt

T = TypeVar("T")

#: Larger files are left alone, because an overlay copies a file before it is changed.
LIMIT_BYTES = 96 << 20


@dataclass(frozen=True, kw_only=True)
class Target:
    """One built env."""

    name: str
    """As it was given: `stack/env`, or a path."""
    root: Path
    directory: Path
    """The env directory itself, resolved."""
    receipt: Receipt
    lock: Lock
    manifest: Manifest

    @property
    def bin(self) -> Path:
        return self.directory / "bin"

    @property
    def python(self) -> Path:
        return self.bin / "python"

    @property
    def version(self) -> str:
        """`3.11`."""
        return ".".join(self.receipt.python.split(".")[:2])

    @property
    def site(self) -> str:
        """site-packages relative to the env."""
        return site_packages(self.version)

    @property
    def base_prefix(self) -> Path:
        """The prefix of the base interpreter."""
        return self.python.resolve().parent.parent

    @property
    def stdlib(self) -> Path:
        return self.base_prefix / "lib" / f"python{self.version}"

    def path(self, relative: str) -> Path:
        return self.directory / relative

    @cached_property
    def entries(self) -> Mapping[str, Entry]:
        return self.manifest.by_path()

    @cached_property
    def roots(self) -> Mapping[str, tuple[Root, ...]]:
        return self.manifest.import_roots()

    @cached_property
    def files(self) -> Sequence[Entry]:
        """Portable files of one owner in site-packages, metadata apart, not too large to be copied."""
        return [
            e
            for e in self.manifest.entries
            if e.kind is Kind.FILE
            and e.part == "portable"
            and not e.alternatives
            and e.path.startswith(f"{self.site}/")
            and ".dist-info/" not in e.path
            and len(e.owners) == 1
            and e.size <= LIMIT_BYTES
        ]

    @cached_property
    def modules(self) -> Sequence[Entry]:
        """Python sources of regular packages that hold something."""
        return [e for e in self.files if e.path.endswith(".py") and e.size >= 16 and self.package_of(e.path)]

    @cached_property
    def libraries(self) -> Sequence[Entry]:
        """Native libraries and extensions, by content."""
        named = [e for e in self.files if ".so" in e.path.rsplit("/", 1)[-1] and e.size > 4096]
        return [e for e in named if _starts_with(self.path(e.path), b"\x7fELF")]

    @cached_property
    def metadata(self) -> Mapping[str, str]:
        """`name==version` to its .dist-info folder, relative to the env; one owner each."""
        found = {}
        for entry in self.manifest.entries:
            if entry.path.endswith(".dist-info/METADATA") and entry.path.startswith(f"{self.site}/"):
                found[entry.owner] = entry.path.rsplit("/", 1)[0]
        return found

    @cached_property
    def owned(self) -> Mapping[str, Sequence[Entry]]:
        """`name==version` to its files in site-packages, metadata apart."""
        found: dict[str, list[Entry]] = defaultdict(list)
        for entry in self.files:
            found[entry.owner].append(entry)
        return found

    def package_of(self, path: str) -> str | None:
        """The top-level regular package of one owner that a path lies in."""
        rest = path[len(self.site) + 1 :]
        top = rest.split("/", 1)[0]
        roots = self.roots.get(top, ())
        if "/" not in rest or len(roots) != 1 or roots[0].kind != "package":
            return None
        return top if f"{self.site}/{top}/__init__.py" in self.entries else None

    def packages(self, *kinds: str) -> Sequence[tuple[str, Root]]:
        """Top-level names in site-packages with exactly one owner and one of these kinds."""
        return [
            (name, roots[0])
            for name, roots in sorted(self.roots.items())
            if len(roots) == 1
            and roots[0].kind in kinds
            and roots[0].path.startswith(f"{self.site}/")
            and roots[0].owner in self.metadata
        ]

    def pure(self, limit_bytes: int = 2 << 20) -> Sequence[str]:
        """Distributions small enough to be made into a wheel again, without native code."""
        return [
            owner
            for owner, entries in sorted(self.owned.items())
            if owner in self.metadata
            and sum(e.size for e in entries) < limit_bytes
            and not any(".so" in e.path or e.path.endswith(".pth") for e in entries)
            and any(self.package_of(e.path) for e in entries)
        ]

    def scripts(self) -> Sequence[Entry]:
        """Console scripts that the installer wrote for this env's Python."""
        line = f"#!{self.python}".encode()[:120]
        made = [e for e in self.manifest.entries if e.part == "site" and e.path.startswith("bin/") and e.executable]
        return [e for e in made if _starts_with(self.path(e.path), line)]


def open_target(name: str, root: str | None = None) -> Target:
    """Read the records of an env; `root` counts for a name, not for a path."""
    folder = Path(root or os.environ.get("ENVSMITH_ROOT") or ".envsmith/envs").absolute()
    directory = env_directory(name, folder)
    beside = directory.parent / directory.name
    return Target(
        name=name,
        root=folder,
        directory=directory,
        receipt=parse_receipt((directory / RECEIPT).read_text(), RECEIPT),
        lock=parse_lock(Path(f"{beside}.pylock.toml").read_text(), "lock"),
        manifest=Manifest.from_json(Path(f"{beside}.manifest.json").read_text()),
    )


def env_directory(name: str, root: Path) -> Path:
    """The directory that `stack/env` or a path stands for, resolved."""
    if name.startswith(("/", ".", "~")):
        return Path(name).expanduser().resolve()
    return (root / name.replace("/", "-") / "current").resolve()


class NoPlace(Exception):
    """The env has no place for this fault."""


def choose(pick: Random, items: Sequence[T]) -> T:
    """One of the items.

    Raises:
        NoPlace: when there is none.
    """
    if not items:
        raise NoPlace
    return pick.choice(items)


def other_pythons(target: Target) -> Sequence[Path]:
    """Interpreters of this machine in another place than the env's own, other versions first."""
    own = target.python.resolve()
    folders = [Path(item) for item in os.environ.get("PATH", "").split(":") if item]
    folders += sorted(target.base_prefix.parent.glob("*/bin"))
    found = {path.resolve() for folder in folders for path in folder.glob("python3.[0-9]*") if "-" not in path.name}
    others = [path for path in found - {own} if _starts_with(path, b"\x7fELF")]
    return sorted(others, key=lambda path: (path.name == own.name, str(path)))


def _starts_with(path: Path, start: bytes) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(start)) == start
    except OSError:
        return False
