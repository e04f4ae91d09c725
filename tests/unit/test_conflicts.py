"""A broken requirement is either meant, by name and with a reason, or it is said."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envsmith.conflicts import Acceptance, Declaration, Violation, accepts, active_extras, judge, suggest, violations
from envsmith.target import Target

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TARGET = Target(python="3.11", arch="x86_64", glibc="2.28")


def declared(name: str, *requires: str, version: str = "1.0", python: str | None = None) -> Declaration:
    return Declaration(name=name, version=version, requires=requires, requires_python=python)


def broken(
    *declarations: Declaration, roots: tuple[str, ...] = (), **versions: str
) -> list[tuple[str, str, str | None]]:
    """(package, requirement, found) of what does not hold; every declared package is there too."""
    by_name = {one.name: one for one in declarations}
    there = {one.name: one.version for one in declarations} | {k.replace("_", "-"): v for k, v in versions.items()}
    return [(v.package, v.requirement, v.found) for v in violations(by_name, there, TARGET, roots)]


def accept(package: str, requirement: str) -> Acceptance:
    return Acceptance(package=package, requirement=requirement, because="tried")


def violation(requirement: str, found: str | None, package: str = "a") -> Violation:
    return Violation(package=package, version="1.0", requirement=requirement, found=found)


# --- what is broken ---


@pytest.mark.parametrize(
    ("requirement", "there", "holds"),
    [
        ("b", "0.1", True),
        ("b>=1,<2", "1.5", True),
        ("b>=1,<2", "2.0", False),
        ("b<2", "2.0rc1", False),
        ("b<2", "1.9rc1", True),
        ("b>=2", "2.0rc1", False),
        ("b>=1", "2.0.dev3", True),
        ("b!=1.5", "1.5", False),
        ("b~=1.4", "1.9", True),
        ("b~=1.4.2", "1.5", False),
        ("b==1.*", "1.9", True),
        ("b==2.1.0", "2.1.0+cpu", True),
        ("b==2.1.0+cpu", "2.1.0", False),
        ("b==2.1.0+cpu", "2.1.0+cpu", True),
        ("b==2.1.0+cpu", "2.1.0+cu118", False),
        ("b<=2.1.0", "2.1.0+cu118", True),
        ("b>2.1.0", "2.1.0+cu118", False),
        ("b!=2.1.0", "2.1.0+cu118", False),
        ("b==1.0", "1.0.post3", False),
        ("b===1.0", "1.0", True),
        ("b[x]>=1", "1.0", True),
        ("b @ https://example.invalid/b.whl", "1.0", True),
        ("b<2", "nonsense", False),
        ("b", "nonsense", True),
    ],
)
def test_a_declared_requirement_holds_or_is_broken(requirement: str, there: str, holds: bool) -> None:
    found = broken(declared("a", requirement), b=there)
    assert (found == []) is holds
    assert all(package == "a" and version == there for package, _, version in found)


def test_the_local_version_is_not_symmetric() -> None:
    """`==2.1.0` takes `2.1.0+cpu`; `==2.1.0+cpu` does not take `2.1.0` (facts/symptoms.md D31)."""
    assert broken(declared("a", "torch==2.1.0"), torch="2.1.0+cpu") == []
    assert broken(declared("torch-npu", "torch==2.1.0+cpu"), torch="2.1.0") == [
        ("torch-npu", "torch==2.1.0+cpu", "2.1.0")
    ]


def test_an_absent_requirement_is_broken_and_keeps_its_extras_but_no_marker() -> None:
    found = broken(declared("a", "B_c[y,x]>=1; python_version >= '3.8'"))
    assert found == [("a", "B_c[x,y]>=1", None)]


def test_names_are_compared_in_canonical_form() -> None:
    assert broken(declared("a", "Foo.Bar_baz>=1"), foo_bar_baz="1") == []


def test_a_url_stays_out_of_what_is_said() -> None:
    assert broken(declared("a", "b @ https://user:secret@example.invalid/b.whl")) == [("a", "b", None)]


@pytest.mark.parametrize("marker", ["python_version < '3.9'", "sys_platform == 'win32'", "platform_machine ~= 'x86'"])
def test_a_requirement_whose_marker_does_not_hold_is_not_asked(marker: str) -> None:
    assert broken(declared("a", f"b; {marker}")) == []


def test_lines_that_are_no_requirements_are_passed_over() -> None:
    assert broken(declared("a", "b (not valid", "c>=2"), c="1") == [("a", "c>=2", "1")]


@pytest.mark.parametrize(
    ("python", "holds"),
    [
        (None, True), (">=3.8", True), (">=3.11.4", True), (">=3.12", False), ("<3.11", False), ("==3.11.*", True),
        ("~=3.10", True), (">=3.6.*", True), ("nonsense", True),
    ],
)  # fmt: skip
def test_the_python_that_a_source_asks_for_is_held_too(python: str | None, holds: bool) -> None:
    found = broken(declared("a", python=python))
    assert (found == []) is holds
    assert all((name, there) == ("a", "3.11") and text.startswith("python") for name, text, there in found)


def test_an_exact_patch_release_is_held_exactly() -> None:
    exact = Target(python="3.11.2", arch="x86_64", glibc="2.28")
    one = declared("a", python=">=3.11.4")
    assert [v.found for v in violations({"a": one}, {"a": "1.0"}, exact)] == ["3.11.2"]


def test_violations_are_sorted_and_said_once() -> None:
    found = broken(declared("b", "z>1", "y"), declared("a", "z>1", "z>1; python_version > '3'"), z="1")
    assert found == [("a", "z>1", "1"), ("b", "y", None), ("b", "z>1", "1")]


# --- extras ---


def test_a_requirement_of_an_extra_counts_only_when_it_is_asked_for() -> None:
    a = declared("a", "b; extra == 'more'")
    assert broken(a, roots=("a",)) == []
    assert broken(a, roots=("a[more]",)) == [("a", "b", None)]
    assert broken(a, roots=("A[More]",)) == [("a", "b", None)]


def test_extras_are_followed_through_chains() -> None:
    a = declared("a", "b[x]", "c[unused]; extra == 'q'")
    b = declared("b", "c[y,z]; extra == 'x'")
    c = declared("c", "d; extra == 'z'")
    by_name = {one.name: one for one in (a, b, c)}
    assert active_extras(by_name, ("a",), TARGET) == {
        "a": frozenset(), "b": frozenset({"x"}), "c": frozenset({"y", "z"}), "d": frozenset(),
    }  # fmt: skip
    assert broken(a, b, c, roots=("a",)) == [("c", "d", None)]


def test_an_extra_that_names_other_extras_of_its_own_package() -> None:
    a = declared("a", "a[one,two]; extra == 'all'", "b; extra == 'one'", "c; extra == 'two'")
    assert broken(a, roots=("a[all]",)) == [("a", "b", None), ("a", "c", None)]


def test_extras_that_come_late_reach_requirements_that_were_seen_before() -> None:
    a, b = declared("a", "b", "c"), declared("b", "d; extra == 'late'")
    c = declared("c", "b[late]")
    assert broken(a, b, c, roots=("a",)) == [("b", "d", None)]
    assert broken(a, b, c, roots=("b", "a")) == [("b", "d", None)]


def test_circles_come_to_an_end() -> None:
    a, b = declared("a", "b[x]"), declared("b", "a[y]; extra == 'x'")
    assert active_extras({"a": a, "b": b}, ("a[z]",), TARGET)["a"] == frozenset({"y", "z"})


def test_a_chain_stops_where_a_marker_does_not_hold() -> None:
    a, b = declared("a", "b[x]; sys_platform == 'win32'"), declared("b", "c; extra == 'x'")
    assert broken(a, b, roots=("a",)) == []


# --- what is meant ---


@pytest.mark.parametrize(
    ("entry", "declared_as", "found", "covered"),
    [
        ("b<2", "b<2", "3", True),
        ("b<2", "b>=1,<2", "3", True),
        ("b<2,>=1", "b>=1,<2", "3", True),
        ("B_x<2", "b-x<2", "3", True),
        ("b<2.0", "b<2", "3", True),
        ("b>=1", "b>=1,<2", "3", False),  # the broken clause is not among the named ones
        ("b<3", "b<2", "3", False),  # nobody declares that
        ("b", "b<2", "3", False),  # names no clause
        ("c<2", "b<2", "3", False),
        ("b!=3,<2", "b!=3,<2,>=1", "3", True),
        ("b<2", "b!=3,<2", "3", False),  # two clauses are broken, one is named
        ("*", "b<2", "3", False),
        ("*", "b<2", None, True),
        ("b", "b", None, True),
        ("b", "b<2", None, True),
        ("b<2", "b<2", None, True),
        ("b<3", "b<2", None, False),
        ("b[x]<2", "b<2", "3", True),
    ],
)
def test_an_entry_covers_what_it_names_and_no_more(
    entry: str, declared_as: str, found: str | None, covered: bool
) -> None:
    assert accepts(accept("a", entry), violation(declared_as, found)) is covered


def test_an_entry_of_another_package_covers_nothing() -> None:
    assert not accepts(accept("c", "*"), violation("b", None))
    assert accepts(accept("A_x", "*"), violation("b", None, package="a-x"))


def test_a_verdict_sorts_everything_into_its_place() -> None:
    meant, absent, not_meant = violation("b<2", "3"), violation("d", None), violation("c<2", "3")
    star, named, gone = accept("a", "*"), accept("a", "b<2"), accept("e", "f<1")
    verdict = judge([meant, not_meant, absent], [star, named, gone])
    assert verdict.accepted == ((meant, named), (absent, star))
    assert verdict.unaccepted == (not_meant,)
    assert verdict.stale == (gone,)


def test_of_two_equal_entries_the_second_is_stale() -> None:
    verdict = judge([violation("b<2", "3")], [accept("a", "b<2"), accept("a", "b<2")])
    assert len(verdict.stale) == 1


def test_a_star_that_would_cover_a_clash_is_stale() -> None:
    verdict = judge([violation("b<2", "3")], [accept("a", "*")])
    assert (len(verdict.unaccepted), len(verdict.stale)) == (1, 1)


@pytest.mark.parametrize(
    ("found", "said"),
    [("3", "a 1.0 declares `b[x]<2`, but b 3 is there"), (None, "a 1.0 declares `b[x]<2`, but it is absent")],
)
def test_a_violation_says_itself_in_a_sentence(found: str | None, said: str) -> None:
    assert violation("b[x]<2", found).sentence() == said


# --- suggestions ---


def entries(text: str, env: str = "rl") -> list[Acceptance]:
    return [
        Acceptance(package=one["package"], requirement=one["requirement"], because=one["because"])
        for one in tomllib.loads(text).get("env", {}).get(env, {}).get("accept", [])
    ]


def test_a_suggestion_names_only_the_broken_clause() -> None:
    (entry,) = entries(suggest([violation("b[x]>=1,<2", "3")], "rl"))
    assert (entry.package, entry.requirement) == ("a", "b<2")


def test_a_suggestion_for_an_absent_one_names_it_whole() -> None:
    (entry,) = entries(suggest([violation("b[x]>=1,<2", None)], "rl"))
    assert entry.requirement == "b[x]>=1,<2"


VERSIONS = st.builds(
    "{}{}{}".format,
    st.lists(st.integers(0, 5), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts))),
    st.sampled_from(["", "", "rc1", ".post2", ".dev3", "a1"]),
    st.sampled_from(["", "", "", "+cpu", "+cu118.x"]),
)
PUBLIC = VERSIONS.map(lambda text: text.partition("+")[0])
CLAUSES = st.one_of(
    st.builds("{}{}".format, st.sampled_from(["<", "<=", ">", ">="]), PUBLIC),
    st.builds("{}{}".format, st.sampled_from(["==", "!="]), VERSIONS),
    st.builds("~={}.{}".format, st.integers(0, 5), st.integers(0, 5)),
    st.builds("=={}.*".format, st.integers(0, 5)),
    st.just('==="1"'),
)
NAMES = st.sampled_from(["b", "C.c", "d_D-d", "e9"])
REQUIREMENTS = st.builds(
    "{}{}{}{}".format,
    NAMES,
    st.sampled_from(["", "[x]", "[x,y]"]),
    st.lists(CLAUSES, max_size=3).map(",".join),
    st.sampled_from(["", " ; python_version >= '3'", ' ; sys_platform == "linux"']),
)


@settings(max_examples=150, deadline=None)
@given(
    requires=st.lists(REQUIREMENTS, max_size=4),
    versions=st.dictionaries(st.sampled_from(["b", "c-c", "d-d-d", "e9"]), VERSIONS | st.just("not.a version")),
    python=st.none() | CLAUSES,
)
def test_every_suggestion_parses_and_is_then_accepted(
    requires: list[str], versions: dict[str, str], python: str | None
) -> None:
    one = declared("a", *requires, python=python)
    found = violations({"a": one}, {"a": "1.0", **versions}, TARGET)
    made = entries(suggest(found, "rl"))
    assert len(made) == len(found)
    verdict = judge(found, made)
    assert verdict.unaccepted == ()
    assert len(verdict.accepted) == len(found)
