"""Rules about the code of sources."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from packaging.version import Version

from envsmith.report import Finding, Severity
from envsmith.rules.scan import Site
from envsmith.rules.situation import Situation, found
from envsmith.rules.tables import stdlib_floors


def stdlib(s: Situation) -> Iterator[Finding]:
    """Code that needs a newer standard library than the env's Python fails when it is imported."""
    python, floors = Version(s.env.python_minor), stdlib_floors()
    for name, facts in s.sources.items():
        late: dict[str, list[Site]] = defaultdict(list)
        for site in facts.stdlib if facts else ():
            if floors[site.what] > python:
                late[site.what].append(site)
        for what, sites in late.items():
            more = f", here and in {len(sites) - 1} other places" if len(sites) > 1 else ""
            yield found(
                "stdlib-too-old",
                f"src/{name}/{sites[0].place}",
                f"`{what}` came with Python {floors[what]}{more}; the env has {python}",
                expected=f"Python {floors[what]}",
                actual=f"Python {python}",
                hint=f'set `python = "{floors[what]}"`, or patch the source',
            )


def at_hand(s: Situation) -> Iterator[Finding]:
    """Say which sources nobody could look into: no network is used for that."""
    for name in (name for name, facts in s.sources.items() if facts is None):
        yield found(
            "source-not-at-hand",
            f"src/{name}",
            "the code of this source is not on this machine, so the rules about code said nothing",
            severity=Severity.NOTE,
            hint="build or lock the env once, then check again",
        )
