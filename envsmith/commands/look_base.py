"""Looking at the packages of a vendor's base that an env may not change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from envsmith.basepackages import PackageState
from envsmith.checks.base import check_base
from envsmith.commands.subject import Subject
from envsmith.report import Finding
from envsmith.tools.distributions import package_states


def judges_base(subject: Subject) -> bool:
    """Whether there is a lock over a base and the env named is that base: a vendor's own, which we did not make."""
    return subject.foreign is not None and subject.lock is not None and any(one.protected for one in subject.lock.base)


def look_at_base(subject: Subject) -> Iterator[Finding]:
    """Run the family `base`; every byte of the protected packages is read."""
    assert subject.foreign is not None and subject.lock is not None
    wanted = {one.name for one in subject.lock.base if one.protected}
    found: dict[str, list[PackageState]] = defaultdict(list)
    for state in package_states(subject.directory, subject.foreign.site_dirs, wanted):
        found[state.name].append(state)
    yield from check_base(subject.lock.base, found)
