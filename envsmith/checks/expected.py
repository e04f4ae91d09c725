"""What an environment should look like from inside a process: the measure that the facts of a probe are held against.

It is made from lock, manifest and recipe, never from the environment. Directories are given resolved, because the
probe resolves what it sees.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from envsmith.facts import Facts, PathEntry


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportRoot:
    """One file that may stand for a top-level import name."""

    owner: str
    """Who ships it: `ray==2.56.1`, `source:verl`."""
    origin: str
    """The file, relative to the environment: `lib/python3.11/site-packages/ray/__init__.py`; empty for a namespace."""
    kind: str
    """package, extension, module or namespace."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """The intended view of one environment from one of its processes."""

    env_dir: str
    """Absolute and resolved."""
    site_packages: str
    """Absolute and resolved."""
    python_version: str
    """`3.11`, or all three numbers to hold the patch release too."""
    base_prefix: str | None = None
    roots: Mapping[str, tuple[ImportRoot, ...]] = field(default_factory=dict)
    """By top-level name, all that claim it."""
    editable: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Top-level names of work copies, and the absolute directories that they may come from."""
    launchers: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    allow_outside: tuple[str, ...] = ()
    """Directories outside of the environment that code may come from: the recipe's allow-outside."""
    base_folders: tuple[str, ...] = ()
    """Where the packages of the vendor's base lie; its hooks are known one by one, those of `allow_outside` are not."""
    hooks: Mapping[str, str] = field(default_factory=dict)
    """sha256 of every known .pth, sitecustomize and usercustomize, by path relative to the environment; files outside
    of it, such as those of the base interpreter, by absolute path."""
    base_site_dirs: tuple[str, ...] = ()
    """Further path entries of the interpreter itself, matched exactly."""
    has_device: bool = True
    """False on a machine without an accelerator driver, where an import may fail for want of it."""

    def relative(self, path: str) -> str:
        """The path as users and the manifest name it: relative inside the environment, else as it is."""
        return path[len(self.env_dir) + 1 :] if within(path, (self.env_dir,)) and path != self.env_dir else path

    def allowed(self) -> tuple[str, ...]:
        """All directories that code may come from, the interpreter's own library not counted."""
        work_copies = [directory for directories in self.editable.values() for directory in directories]
        return (self.env_dir, *self.allow_outside, *self.base_folders, *work_copies)


def within(path: str, directories: Iterable[str]) -> bool:
    """Whether `path` is one of the directories or lies in one; by whole path components."""
    return any(PurePosixPath(path).is_relative_to(directory) for directory in directories)


def from_library(path: str, expected: Expected, facts: Facts) -> bool:
    """Whether a file belongs to the interpreter's standard library, its own site-packages not counted."""
    inside = within(path, (*facts.python.stdlib, *expected.base_site_dirs))
    return inside and not {"site-packages", "dist-packages"} & set(PurePosixPath(path).parts)


def way_in(entry: PathEntry, facts: Facts) -> str | None:
    """Say how an entry came onto sys.path, as far as a probe can see it."""
    variable = facts.environ.get("PYTHONPATH")
    items = [item.rstrip("/") for item in variable.split(":")] if variable else []
    if entry.entry in items or entry.real in items:
        return "through `PYTHONPATH`"
    if facts.site.user_dir == entry.real:
        return "as the user site directory"
    if entry.real in facts.python.site_packages:
        return "as a site directory of the interpreter (`include-system-site-packages`, or another prefix)"
    for pth in facts.site.pth:
        directory = PurePosixPath(pth.path).parent
        if any(str(directory / line) in (entry.entry, entry.real) for line in pth.lines):
            return f"through a line of `{pth.path}`"
    for pth in facts.site.pth:
        if any(entry.entry in line or entry.real in line for line in pth.import_lines):
            return f"through code in `{pth.path}`"
    if any(not item.startswith("/") for item in items):
        return "perhaps through an empty or relative item of `PYTHONPATH`"
    loaded = [customize.path for customize in facts.site.customize if customize.loaded]
    return f"perhaps through `{loaded[0]}`" if loaded else None
