"""An env laid over a vendor's Python: what makes the base's packages visible, and its commands run by the env's Python.

The env is a virtual environment of its own; `venv --system-site-packages` made from a virtual environment would not
see the packages of that environment (shown on the H200 image, 2026-11-30). Nothing here touches the base.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from envsmith.manifest import Entry, Root, import_roots

HOOK = "zz_envsmith_base.pth"
"""Its name puts it behind the hooks of the env's own packages: their editables come before the base."""
#: Programs of a virtual environment itself: the env has its own.
_SCAFFOLD = re.compile(r"python(\d(\.\d+)?t?)?|activate(\..+|_this\.py)?|[Aa]ctivate\..+|deactivate\..+|pydoc\.bat")


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """A vendor's Python on this machine, as an env over it needs to know it."""

    python: str
    """The executable, as the recipe names it."""
    site: tuple[str, ...]
    """Folders that it searches for packages, resolved, in its order."""
    beside: tuple[str, ...] = ()
    """Further folders that its own hooks put on sys.path: its editable installations."""

    def to_dict(self) -> dict[str, object]:
        """As receipts keep it."""
        return {"python": self.python, "site": list(self.site), "beside": list(self.beside)}

    @staticmethod
    def from_dict(data: Mapping[str, object]) -> Base:
        """Read what `to_dict` wrote."""
        return Base(
            python=str(data["python"]),
            site=tuple(map(str, _items(data["site"]))),
            beside=tuple(map(str, _items(data["beside"]))),
        )

    @property
    def folders(self) -> tuple[str, ...]:
        """Everywhere that code of the base may come from."""
        return (*self.site, *self.beside)


def _items(value: object) -> Iterable[object]:
    return value if isinstance(value, (list, tuple)) else ()


def hook(site: Iterable[str]) -> str:
    """The `.pth` file that puts the base behind the env, its own `.pth` files included.

    Python would write bytecode into the base where it may, so it is told not to. No comprehension: the site module
    runs the line inside a function, where one would not see its names.
    """
    calls = "; ".join(f"site.addsitedir({folder!r})" for folder in site)
    return (
        "# Written by envsmith: the packages of the base come after those of this env, and nothing is written there.\n"
        "import sys; sys.dont_write_bytecode = True\n"
        f"import site; {calls}\n"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A program that the base offers."""

    name: str
    kind: Literal["entry-point", "script", "program"]
    """An entry point of a package, a Python script, or any other executable file."""
    target: str
    """`torch.distributed.run:main`, or the absolute path of the file."""

    def text(self, python: str) -> str | None:
        """The file that stands for it in the env's `bin`; None for a program, which is linked to."""
        if self.kind == "program":
            return None
        head = _shebang(python) + "# Written by envsmith: this command of the base runs with the env's own Python.\n"
        if self.kind == "script":
            return (
                head
                + f"import runpy\nimport sys\n\nsys.argv[0] = {self.target!r}\n"
                + (f'runpy.run_path({self.target!r}, run_name="__main__")\n')
            )
        module, _, attribute = self.target.partition(":")
        first = attribute.split(".")[0]
        return head + (
            f'import sys\n\nfrom {module} import {first}\n\nif __name__ == "__main__":\n    sys.exit({attribute}())\n'
        )


def _shebang(python: str) -> str:
    """The first lines of a script: the kernel takes 127 bytes and no blanks, so a longer path goes through sh."""
    if len(python) <= 120 and " " not in python:
        return f"#!{python}\n"
    quoted = "'" + python.replace("'", "'\"'\"'") + "'" if " " in python else python
    return f"#!/bin/sh\n'''exec' {quoted} \"$0\" \"$@\"\n' '''\n"


def entry_points(text: str) -> Iterator[Command]:
    """Commands of one `entry_points.txt`.

    Source: packaging.python.org, "Entry points specification" (read 2026-11-30): INI, groups `console_scripts` and
    `gui_scripts`, `name = module:attribute [extras]`.
    """
    group = ""
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("["):
            group = line.strip("[] ")
        elif group in ("console_scripts", "gui_scripts") and "=" in line and not line.startswith(("#", ";")):
            name, _, value = (part.strip() for part in line.partition("="))
            target = value.partition("[")[0].strip()
            target = re.sub(r"\s*:\s*", ":", target)
            if re.fullmatch(r"[\w.]+:[\w.]+", target) and is_command(name):
                yield Command(name=name, kind="entry-point", target=target)


def is_command(name: str) -> bool:
    """Whether a file of the base's `bin` is one that an env over it may offer: no part of a virtual environment."""
    return bool(name) and "/" not in name and name not in (".", "..") and not _SCAFFOLD.fullmatch(name)


def protected_roots(
    base: Iterable[Entry], *, folders: Collection[str], protected: Collection[str]
) -> dict[str, tuple[Root, ...]]:
    """What stands for each import name of the protected packages; a namespace counts only where nothing else does."""
    return import_roots(_of(base, protected), tuple(folders))


def _of(base: Iterable[Entry], names: Collection[str]) -> tuple[Entry, ...]:
    wanted = {*names}
    return tuple(entry for entry in base if wanted.intersection(owner.partition("==")[0] for owner in entry.owners))
