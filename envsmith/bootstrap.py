"""What envsmith itself needs to run on a machine without a network: the pinned wheels of its dependencies.

The table `data/bootstrap.toml` is made by `python -m bench.bootstrap_lock`; this module only picks from it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from envsmith.data import table
from envsmith.errors import HostError, Problem
from envsmith.lock import Wheel
from envsmith.target import Target, applies, choose_wheel

#: The oldest Python that envsmith runs on, as pyproject's `requires-python` has it.
OLDEST = (3, 10)


def choose(target: Target) -> tuple[Wheel, ...]:
    """Pick one wheel for each package that envsmith needs on the target, sorted by name.

    Raises:
        HostError: `bootstrap-unsupported` when envsmith does not run on that Python, or a package has no wheel for it.
    """
    return choose_from(table("bootstrap")["wheel"], target)


def choose_from(rows: Iterable[Mapping[str, Any]], target: Target) -> tuple[Wheel, ...]:
    """Pick from rows of the table's form.

    Raises:
        HostError: as `choose`.
    """
    place = f"Python {target.python_minor}, {target.arch}, glibc {target.glibc}"
    if tuple(int(part) for part in target.python_minor.split(".")) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise HostError(_unsupported(f"envsmith needs Python {oldest} or newer to run", place))
    files: dict[str, dict[str, Wheel]] = defaultdict(dict)
    for row in rows:
        if applies(row.get("marker"), target):
            fields = ("name", "version", "filename", "size", "sha256")
            files[row["name"]][row["filename"]] = Wheel(**{field: row[field] for field in fields})
    picked = {name: choose_wheel(wheels, target) for name, wheels in sorted(files.items())}
    missing = [name for name, filename in picked.items() if filename is None]
    if missing:
        raise HostError(
            *(_unsupported(f"`{name}`, which envsmith needs, has no wheel for it", place) for name in missing)
        )
    return tuple(files[name][filename] for name, filename in picked.items() if filename is not None)


def _unsupported(message: str, place: str) -> Problem:
    return Problem(
        code="bootstrap-unsupported",
        message=message,
        where=place,
        hint="envsmith is bundled for CPython 3.10 to 3.14 on x86_64 and aarch64 with glibc 2.17 or newer",
    )
