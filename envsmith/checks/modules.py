"""Every module that the packages of an environment provide: which file would win. Part of the family `imports`.

Nothing is asked of a process: the names follow from the manifest, in the order of Python's own finder.
Source: `importlib.machinery.FileFinder`, docs.python.org, read 2026-11-30.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from envsmith.manifest import Entry, import_base, importable
from envsmith.report import Finding, Severity

FAMILY = "imports"


def check_modules(entries: Iterable[Entry]) -> Iterator[Finding]:
    """Prove that no module of one package is hidden by a file of another.

    A package hides an extension of its name, which hides a source, which hides bytecode: no path overlaps. One owner
    may do so on purpose, as compiled packages that ship their sources do. Top-level names are judged by
    `module-owned-twice`, files that no package owns by the family `files`.
    """
    claims: dict[str, list[tuple[int, Entry]]] = defaultdict(list)
    for entry in entries:
        base = import_base(entry.path)
        found = importable(entry.path[len(base) :]) if base else None
        if found is not None and "." in found[0]:
            claims[found[0]].append((found[1], entry))
    for name, claimed in claims.items():
        if len({entry.path for _, entry in claimed}) < 2:
            continue
        _, winner = min(claimed, key=lambda claim: (claim[0], claim[1].path))
        hidden = [entry for _, entry in claimed if not set(entry.owners) & set(winner.owners)]
        if hidden:
            owners = sorted({owner for entry in hidden for owner in entry.owners})
            yield Finding(
                check=FAMILY,
                kind="submodule-hidden",
                severity=Severity.ERROR,
                subject=name,
                message=f"`import {name}` gets a file of {winner.owner}, which hides that of {', '.join(owners)}",
                expected=", ".join(entry.path for entry in hidden),
                actual=winner.path,
                hint="exclude one of the packages, or move their versions apart",
            )
