"""What a target takes: its tags, its one wheel of many, its answers to markers."""

from __future__ import annotations

import itertools

import pytest
from packaging.markers import Marker

from envsmith.target import Target, applies, choose_wheel

X86 = Target(python="3.11", arch="x86_64", glibc="2.28")
ARM = Target(python="3.12.4", arch="aarch64", glibc="2.31")


def test_platforms_run_from_the_newest_glibc_to_the_oldest() -> None:
    found = list(X86.platforms())
    assert found[:2] == ["manylinux_2_28_x86_64", "manylinux_2_27_x86_64"]
    assert found[-3:] == ["manylinux_2_5_x86_64", "manylinux1_x86_64", "linux_x86_64"]


@pytest.mark.parametrize(
    ("level", "legacy"), [("2_17", "manylinux2014"), ("2_12", "manylinux2010"), ("2_5", "manylinux1")]
)
def test_legacy_names_follow_their_level(level: str, legacy: str) -> None:
    found = list(X86.platforms())
    assert found[found.index(f"manylinux_{level}_x86_64") + 1] == f"{legacy}_x86_64"


def test_aarch64_begins_at_glibc_2_17_as_its_ports_do() -> None:
    found = list(ARM.platforms())
    assert found[-3:] == ["manylinux_2_17_aarch64", "manylinux2014_aarch64", "linux_aarch64"]


def test_the_best_tag_is_the_own_abi_and_the_last_is_pure() -> None:
    tags = [str(tag) for tag in X86.tags()]
    assert tags[0] == "cp311-cp311-manylinux_2_28_x86_64"
    assert tags.index("cp311-abi3-linux_x86_64") < tags.index("cp310-abi3-manylinux_2_28_x86_64")
    assert tags[-1] == "py30-none-any"
    assert "cp312-cp312-manylinux_2_28_x86_64" not in tags
    assert len(tags) == len(set(tags))


BEST_FIRST = (
    "p-1.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    "p-1.0-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    "p-1.0-cp311-cp311-manylinux1_x86_64.whl",
    "p-1.0-cp311-cp311-linux_x86_64.whl",
    "p-1.0-cp311-abi3-manylinux2014_x86_64.whl",
    "p-1.0-cp37-abi3-manylinux2014_x86_64.whl",
    "p-1.0-py3-none-manylinux2014_x86_64.whl",
    "p-1.0-cp311-none-any.whl",
    "p-1.0-py3-none-any.whl",
)


@pytest.mark.parametrize(("better", "worse"), list(itertools.pairwise(BEST_FIRST)), ids=BEST_FIRST[1:])
def test_the_closer_wheel_wins_in_any_order(better: str, worse: str) -> None:
    assert choose_wheel([better, worse], X86) == better
    assert choose_wheel([worse, better], X86) == better


@pytest.mark.parametrize(
    "filename",
    [
        "p-1.0-cp311-cp311-manylinux_2_31_x86_64.whl",
        "p-1.0-cp311-cp311-manylinux_2_29_x86_64.whl",
        "p-1.0-cp311-cp311-musllinux_1_2_x86_64.whl",
        "p-1.0-cp311-cp311-manylinux_2_17_aarch64.whl",
        "p-1.0-cp311-cp311-macosx_11_0_arm64.whl",
        "p-1.0-cp311-cp311-win_amd64.whl",
        "p-1.0-cp312-cp312-manylinux_2_17_x86_64.whl",
        "p-1.0-cp312-abi3-manylinux_2_17_x86_64.whl",
        "p-1.0-cp311-cp311t-manylinux_2_17_x86_64.whl",
        "p-1.0-cp310-cp310-manylinux_2_17_x86_64.whl",
        "p-1.0-pp311-pypy311_pp73-manylinux_2_17_x86_64.whl",
        "p-1.0-py2-none-any.whl",
        "no wheel at all.whl",
        "p-1.0.tar.gz",
    ],
)
def test_what_the_target_cannot_load_is_refused(filename: str) -> None:
    assert choose_wheel([filename], X86) is None
    assert choose_wheel([filename, BEST_FIRST[-1]], X86) == BEST_FIRST[-1]


def test_a_glibc_floor_is_exact() -> None:
    wheel = "p-1.0-cp311-cp311-manylinux_2_31_x86_64.whl"
    assert choose_wheel([wheel], Target(python="3.11", arch="x86_64", glibc="2.30")) is None
    assert choose_wheel([wheel], Target(python="3.11", arch="x86_64", glibc="2.31")) == wheel


def test_nothing_to_choose_from_is_no_wheel() -> None:
    assert choose_wheel([], X86) is None


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [("", "-3", "-3"), ("-3", "-2", "-3"), ("-9", "-10", "-10"), ("-1", "-1a", "-1a"), ("-0", "", "-0")],
)
def test_among_equal_tags_the_highest_build_wins(first: str, second: str, wanted: str) -> None:
    """Two files answer `torch==2.10.0`: `torch-2.10.0` and `torch-2.10.0-3` (facts/anchors.md)."""
    names = [f"torch-2.10.0{build}-cp311-cp311-manylinux_2_28_x86_64.whl" for build in (first, second)]
    expected = f"torch-2.10.0{wanted}-cp311-cp311-manylinux_2_28_x86_64.whl"
    assert choose_wheel(names, X86) == choose_wheel(reversed(names), X86) == expected


def test_a_better_tag_beats_a_higher_build() -> None:
    names = ["p-1.0-cp311-cp311-manylinux_2_28_x86_64.whl", "p-1.0-7-py3-none-any.whl"]
    assert choose_wheel(names, X86) == names[0]


def test_markers_answer_for_the_target_and_not_for_this_machine() -> None:
    answers = ARM.markers(extra="math")
    assert (answers["platform_machine"], answers["python_version"]) == ("aarch64", "3.12")
    assert (answers["python_full_version"], answers["extra"]) == ("3.12.4", "math")
    assert X86.markers()["python_full_version"] == "3.11.0"


@pytest.mark.parametrize(
    ("marker", "extras", "holds"),
    [
        (None, (), True),
        ("", (), True),
        ("python_version >= '3.10'", (), True),
        ("python_version < '3.11'", (), False),
        ("python_version < '3.9' or platform_machine == 'x86_64'", (), True),
        ("sys_platform == 'linux' and platform_system == 'Linux' and os_name == 'posix'", (), True),
        ("sys_platform == 'win32' or sys_platform == 'darwin'", (), False),
        ("platform_python_implementation == 'CPython' and implementation_name == 'cpython'", (), True),
        ("extra == 'math'", (), False),
        ("extra == 'math'", ("math",), True),
        ("extra == 'Deep_Speed'", ("deep-speed",), True),
        ("extra == 'a' or extra == 'b'", ("b", "c"), True),
        ("extra == 'a' and python_version < '3.8'", ("a",), False),
        ("extra != 'a'", ("a",), True),
        ("sys_platform == 'darwin' and platform_release >= '20.0'", (), False),
        ("platform_machine ~= 'x86'", (), False),
        ("extras == 'a'", ("a",), False),
    ],
)
def test_markers_hold_or_not(marker: str | None, extras: tuple[str, ...], holds: bool) -> None:
    assert applies(marker, X86, extras) is holds
    if marker:
        assert applies(Marker(marker), X86, extras) is holds


@pytest.mark.parametrize(
    ("glibc", "platform"),
    [
        ("2.17", "manylinux_2_17"), ("2.27", "manylinux_2_17"), ("2.28", "manylinux_2_28"),
        ("2.30", "manylinux_2_28"), ("2.31", "manylinux_2_31"), ("2.36", "manylinux_2_36"), ("2.41", "manylinux_2_40"),
    ],
)  # fmt: skip
def test_uv_is_told_the_nearest_level_that_promises_no_more(glibc: str, platform: str) -> None:
    assert Target(python="3.11", arch="x86_64", glibc=glibc).uv_platform() == f"x86_64-{platform}"


def test_the_environment_marker_holds_on_the_target_alone() -> None:
    marker = Marker(X86.environment_marker())
    assert marker.evaluate(X86.markers())
    assert not marker.evaluate(ARM.markers())
    assert not marker.evaluate(Target(python="3.12", arch="x86_64", glibc="2.28").markers())
