"""Looking at the packages of a vendor's base that an env may not change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from envsmith.basepackages import PackageState
from envsmith.checks.base import check_base
from envsmith.commands.basing import judge_base
from envsmith.commands.depth import Depth
from envsmith.commands.records import keep_beside
from envsmith.commands.subject import Subject
from envsmith.report import Finding
from envsmith.tools.distributions import package_states
from envsmith.tools.progress import Progress
from envsmith.tools.tree import StatIndex


def judges_base(subject: Subject) -> bool:
    """Whether there is a base to judge: that of an env of ours, or a vendor's own env that a lock is over."""
    if subject.foreign is None:
        return subject.base is not None
    return subject.lock is not None and any(one.protected for one in subject.lock.base)


def look_at_base(subject: Subject, depth: Depth, progress: Progress | None) -> Iterator[Finding]:
    """Run the family `base`.

    Of an env of ours the index beside it vouches for files that were read before, except in a deep look; of a vendor's
    own env every byte of the protected packages is read.
    """
    assert subject.lock is not None
    if subject.base is not None:
        index = subject.beside("base.json")
        known = StatIndex() if depth.bytes == "deep" else StatIndex.load(index)
        findings, renewed = judge_base(subject.lock, subject.base, known, progress)
        if renewed.rows != known.rows:
            keep_beside(index, renewed.to_json())
        yield from findings
        return
    assert subject.foreign is not None
    wanted = {one.name for one in subject.lock.base if one.protected}
    found: dict[str, list[PackageState]] = defaultdict(list)
    for state in package_states(subject.directory, subject.foreign.site_dirs, wanted):
        found[state.name].append(state)
    yield from check_base(subject.lock.base, found)
