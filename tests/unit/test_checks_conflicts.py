"""Installed distributions are the locked ones, and every broken requirement is a meant one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envsmith.checks.conflicts import check_conflicts
from envsmith.facts import Distribution, Facts
from envsmith.lock import Conflict, Lock, LockedSource, Wheel
from envsmith.report import Finding, Severity
from envsmith.target import Target
from tests.support.facts import PACKAGES, facts


def wheel(name: str, version: str) -> Wheel:
    return Wheel(name=name, version=version, filename=f"{name}-{version}-py3-none-any.whl", size=1, sha256="a" * 64)


def installed(name: str, version: str, *requires: str, where: str = PACKAGES, readable: bool = True) -> Distribution:
    return Distribution(
        name=name, version=version, metadata=f"{where}/{name}-{version}.dist-info", requires=requires, readable=readable
    )


VERL = LockedSource(
    name="verl", project="verl", version="0.9", commit="1" * 40, sdist=None, extras=("math",), series=(),
    base_tree="2" * 40, tree="2" * 40, install="editable", deps=True,
    requires=("ray>=2", 'sympy<1 ; extra == "math"'), requires_python=">=3.10", build_requires=(),
)  # fmt: skip
NUMPY = Conflict(package="ray", version="2.56.1", requirement="numpy>=2", found="1.26.4", because="tried")
SYMPY = Conflict(package="verl", version="0.9", requirement="sympy<1", found="1.13", because="tried too")
LOCK = Lock(
    stack="a100", env="rl", target=Target(python="3.11", arch="x86_64", glibc="2.31"), recipe_digest="r", uv="0.13.9",
    exclude_newer=None, wheels=(wheel("numpy", "1.26.4"), wheel("ray", "2.56.1"), wheel("sympy", "1.13")),
    sources=(VERL,), conflicts=(NUMPY, SYMPY), extras={"ray": ("default",)},
)  # fmt: skip
CLEAN = (
    installed("NumPy", "1.26.4"),
    installed("ray", "2.56.1", "numpy>=2", 'numpy<3 ; extra == "default"', 'starlette ; extra == "serve"'),
    installed("sympy", "1.13"),
    installed("verl", "0.9", "ray>=2", 'sympy<1 ; extra == "math"'),
)


def seen(*distributions: Distribution) -> Facts:
    return facts(distributions=distributions)


def only(lock: Lock, view: Facts) -> Finding:
    (finding,) = check_conflicts(lock, view)
    assert finding.check == "conflicts"
    return finding


def test_the_locked_env_is_silent_with_its_meant_conflicts() -> None:
    assert list(check_conflicts(LOCK, seen(*CLEAN))) == []


def test_an_empty_lock_and_an_empty_env_agree() -> None:
    assert list(check_conflicts(replace(LOCK, wheels=(), sources=(), conflicts=(), extras={}), seen())) == []


# --- one planted fault each ---


def test_a_distribution_that_the_lock_does_not_name_is_said_with_its_place() -> None:
    finding = only(LOCK, seen(*CLEAN, installed("pynvml", "11.5.3", where="/home/u/.local/lib")))
    assert (finding.kind, finding.subject, finding.severity) == ("distribution-extra", "pynvml", Severity.ERROR)
    assert "/home/u/.local/lib" in str(finding.actual)


def test_a_distribution_that_is_gone_is_missing() -> None:
    found = list(check_conflicts(LOCK, seen(CLEAN[0], CLEAN[1], CLEAN[3])))
    assert [(f.kind, f.subject) for f in found if f.kind == "distribution-missing"] == [
        ("distribution-missing", "sympy")
    ]


def test_another_version_is_said_with_both() -> None:
    finding = only(LOCK, seen(installed("numpy", "1.26.3"), *CLEAN[1:]))
    assert (finding.kind, finding.expected, finding.actual) == ("version-differs", "1.26.4", "1.26.3")


def test_a_local_build_is_another_version() -> None:
    finding = only(LOCK, seen(installed("numpy", "1.26.4+vendor"), *CLEAN[1:]))
    assert finding.kind == "version-differs"


def test_two_versions_at_once_are_said_with_their_places() -> None:
    finding = only(LOCK, seen(installed("numpy", "2.1.0", where="/elsewhere"), *CLEAN))
    assert finding.kind == "distribution-twice"
    assert "/elsewhere" in str(finding.actual)
    assert PACKAGES in str(finding.actual)


def test_a_conflict_that_nobody_accepted_is_an_error() -> None:
    finding = only(replace(LOCK, conflicts=(SYMPY,)), seen(*CLEAN))
    assert (finding.kind, finding.subject, finding.severity) == ("conflict-unaccepted", "ray", Severity.ERROR)
    assert (finding.expected, finding.actual) == ("numpy>=2", "1.26.4")
    assert "ray 2.56.1 declares `numpy>=2`" in finding.message


def test_exactly_one_declared_conflict_is_meant_and_any_other_is_not() -> None:
    """What D30 asks of verify: the declared conflict passes, any other does not."""
    more = installed("sympy", "1.13", "numpy>=9")
    finding = only(LOCK, seen(CLEAN[0], CLEAN[1], more, CLEAN[3]))
    assert (finding.kind, finding.subject, finding.expected) == ("conflict-unaccepted", "sympy", "numpy>=9")


def test_a_requirement_of_an_extra_that_was_locked_counts() -> None:
    finding = only(replace(LOCK, extras={"ray": ("default", "serve")}), seen(*CLEAN))
    assert (finding.kind, finding.expected, finding.actual) == ("conflict-unaccepted", "starlette", "absent")


def test_the_extras_of_a_source_count_though_no_package_asks_for_them() -> None:
    finding = only(replace(LOCK, conflicts=(NUMPY,)), seen(*CLEAN))
    assert (finding.kind, finding.subject, finding.expected) == ("conflict-unaccepted", "verl", "sympy<1")


def test_the_patched_requirements_of_a_source_are_held_and_not_those_of_its_metadata() -> None:
    stale = installed("verl", "0.9", "ray<1", "gone")
    assert list(check_conflicts(LOCK, seen(*CLEAN[:3], stale))) == []


def test_a_python_that_a_source_refuses_is_said() -> None:
    lock = replace(LOCK, sources=(replace(VERL, requires_python="<3.11"),))
    finding = only(lock, seen(*CLEAN))
    assert (finding.kind, finding.expected, finding.actual) == ("conflict-unaccepted", "python<3.11", "3.11")


def test_a_conflict_that_is_gone_is_a_warning() -> None:
    gone = Conflict(package="sympy", version="1.13", requirement="mpmath<1", found="2", because="once")
    finding = only(replace(LOCK, conflicts=(NUMPY, SYMPY, gone)), seen(*CLEAN))
    assert (finding.kind, finding.subject, finding.severity) == ("conflict-gone", "sympy", Severity.WARNING)
    assert "`mpmath<1`" in finding.message


def test_metadata_that_cannot_be_read_asks_for_nothing() -> None:
    unreadable = installed("sympy", "1.13", "nothing-of-this", readable=False)
    found = list(check_conflicts(replace(LOCK, conflicts=(NUMPY,)), seen(CLEAN[0], CLEAN[1], unreadable, CLEAN[3])))
    assert "nothing-of-this" not in "".join(f.message for f in found)


@pytest.mark.parametrize("requirement", ["not valid at all", "", "b (", "b; nonsense == 1"])
def test_bad_metadata_of_others_is_no_crash(requirement: str) -> None:
    assert (
        list(check_conflicts(LOCK, seen(CLEAN[0], CLEAN[1], installed("sympy", "1.13", requirement), CLEAN[3]))) == []
    )


def test_findings_are_by_name_in_any_order_of_the_facts() -> None:
    view = (installed("zeta", "1"), installed("alpha", "1"), *CLEAN)
    one = list(check_conflicts(LOCK, seen(*view)))
    assert [f.subject for f in one] == ["alpha", "zeta"]
    assert one == list(check_conflicts(LOCK, seen(*reversed(view))))
