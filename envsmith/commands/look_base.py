"""Looking at the packages of a vendor's base that an env may not change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from envsmith.checks.base import check_base_python
from envsmith.commands.basing import judge_base, judge_states, open_base, proved_packages
from envsmith.commands.depth import Depth, Examination
from envsmith.commands.records import keep_beside
from envsmith.commands.subject import Subject
from envsmith.errors import HostError
from envsmith.overlay import Base
from envsmith.report import Finding, Severity
from envsmith.tools.distributions import package_states
from envsmith.tools.progress import Progress
from envsmith.tools.tree import StatIndex


def judges_base(subject: Subject) -> bool:
    """Whether there is a base to judge: that of an env of ours, or a vendor's own env that a lock is over."""
    if subject.foreign is None:
        return subject.base is not None
    return subject.lock is not None and any(one.protected for one in subject.lock.base)


def look_at_base(
    subject: Subject,
    depth: Depth,
    examination: Examination,
    progress: Progress | None,
    environ: Mapping[str, str],
) -> Iterator[Finding]:
    """Run the family `base`.

    Of an env of ours the index beside it vouches for files that were read before, except in a deep look; of a vendor's
    own env every byte of them is read.
    """
    assert subject.lock is not None
    if subject.base is not None:
        stopped, findings = _python(subject, subject.base, environ)
        yield from findings
        if stopped:
            return
        index = subject.beside("base.json")
        known = StatIndex() if depth.bytes == "deep" else StatIndex.load(index)
        judged, renewed = judge_base(subject.lock, subject.base, known, progress)
        if renewed.rows != known.rows:
            keep_beside(index, renewed.to_json())
        yield from judged
        proved = sum(one.files is not None for one in subject.lock.base)
        examination.figures["base"] = f"{proved} of {len(subject.lock.base)} packages that the lock rests on"
        return
    assert subject.foreign is not None
    states = package_states(subject.directory, subject.foreign.site_dirs, proved_packages(subject.lock))
    yield from judge_states(subject.lock, states)


def _python(subject: Subject, base: Base, environ: Mapping[str, str]) -> tuple[bool, tuple[Finding, ...]]:
    """Ask the base's interpreter again; say too whether nothing more can be said of it."""
    try:
        at = open_base(base.python, ".".join(subject.python.split(".")[:2]), environ)
    except HostError as error:
        return True, tuple(
            Finding(
                check="base",
                kind=problem.code,
                severity=Severity.ERROR,
                subject=base.python,
                message=problem.message,
                expected=problem.expected,
                actual=problem.actual,
                hint=problem.hint,
            )
            for problem in error.problems
        )
    known = {path: sha for path, sha in subject.verify["base-hooks"].items() if _is_of(path, base)}
    there = {path: sha for path, sha in at.hooks.items() if _is_of(path, base)}
    return False, tuple(check_base_python(base, known, at.base, there))


def _is_of(path: str, base: Base) -> bool:
    """Whether a hook lies in a folder of the base: those of the Python under it are the family `hooks`' own."""
    return any(path.startswith(f"{folder}/") for folder in base.folders)
