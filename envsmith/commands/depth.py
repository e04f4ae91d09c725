"""How much is looked at, and what came of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal

from envsmith.facts import Facts
from envsmith.report import ContextRow, Report
from envsmith.tools.tree import Mode

#: Every family, from static to dynamic.
FAMILIES = (
    "files", "pyc", "sources", "conflicts", "base", "native", "interpreter", "hooks", "imports", "launchers",
    "launch_env", "contexts",
)  # fmt: skip
#: Families that ask a process of the env.
PROBED = frozenset({"imports", "hooks", "launchers", "conflicts", "launch_env", "native"})
#: Families that need the contents of files.
READ = frozenset({"files", "pyc", "native", "launch_env"})


Contexts = Literal["none", "recipe", "every"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Depth:
    """How much is looked at."""

    bytes: Mode = "default"
    imports: bool = False
    """Really import the recipe's list."""
    contexts: Contexts = "none"
    """Start the child chain: the contexts of the recipe, or every one that the env has a package for."""
    library_bytecode: bool = True
    """With `deep`, also recompile the standard library's own bytecode. A build does not: it has just recorded it."""
    shell: bool = True
    """Also judge what the calling shell would start, besides the launch environment."""
    families: tuple[str, ...] = FAMILIES

    def wants(self, names: Collection[str]) -> bool:
        """Whether one of these families is asked for."""
        return bool(set(names) & set(self.families))


@dataclass(kw_only=True, slots=True)
class Examination:
    """A report with the figures behind it."""

    report: Report
    trusted_bytes: int = 0
    hashed_bytes: int = 0
    files: int = 0
    facts: tuple[Facts, ...] = field(default_factory=tuple)
    contexts: tuple[ContextRow, ...] = ()
    figures: dict[str, Any] = field(default_factory=dict)
    """Further counts by name, for the JSON form."""
