"""A plan is exactly what is missing, in the order in which it can be done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from envsmith.lock import BuiltWheel, File, Lock, LockedPatch, LockedSeries, LockedSource, PatchedWheel, Wheel
from envsmith.plan import Obtain, Plan, make_plan, megabytes
from envsmith.target import Target

DIRECTORY = "/envs/a100-rl/0123456789ab"


def file(filename: str, size: int = 1000) -> File:
    return File(filename=filename, size=size, sha256=f"sha-of-{filename}")


def wheel(name: str, version: str = "1.0") -> Wheel:
    one = file(f"{name}-{version}-py3-none-any.whl")
    return Wheel(name=name, version=version, filename=one.filename, size=one.size, sha256=one.sha256)


SERIES = LockedSeries(path="s/a.series", layer="fix", patches=(LockedPatch(path="s/1.patch", sha256="p1"),))
SOURCE = LockedSource(
    name="verl", project="verl", version="0.9", commit="1bf9d2d76c244238e8219531c582819a6b407d47", sdist=None,
    extras=(), series=(SERIES,), base_tree="a" * 40, tree="b" * 40, install="editable", deps=True, requires=(),
    requires_python=None, build_requires=("setuptools==80.9.0",),
)  # fmt: skip
FROM_SDIST = replace(SOURCE, name="tool", commit=None, sdist=file("tool-1.0.tar.gz"), series=(), build_requires=())
AS_WHEEL = replace(SOURCE, install="wheel", wheel=wheel("verl", "0.9").file)
BUILT = BuiltWheel(
    name="antlr", filename=wheel("antlr").filename, sha256=wheel("antlr").sha256, sdist=file("antlr-1.0.tar.gz"),
    build_requires=(), source_date_epoch=0,
)  # fmt: skip
PATCHED_WHEEL = replace(wheel("ray", "2.0+envsmith.tabc"), filename="ray-2.0+envsmith.tabc-py3-none-any.whl")
PATCHED = PatchedWheel(
    name="ray", filename=PATCHED_WHEEL.filename, sha256=PATCHED_WHEEL.sha256, original=wheel("ray", "2.0").file,
    series=(SERIES,), tree="c" * 40,
)  # fmt: skip
PLAIN = Lock(
    stack="a100", env="rl", target=Target(python="3.11", arch="x86_64", glibc="2.31"), recipe_digest="r", uv="0.13.9",
    exclude_newer=None, wheels=(wheel("numpy"),),
)  # fmt: skip
RICH = replace(
    PLAIN,
    wheels=(wheel("antlr"), wheel("numpy"), PATCHED_WHEEL),
    sources=(FROM_SDIST, SOURCE),
    built=(BUILT,),
    patched=(PATCHED,),
    build_requires=(wheel("setuptools", "80.9.0"),),
)

ALWAYS = ("SyncWheels", "Isolate", "WriteLaunchFiles", "VerifyEnv", "WriteReceipt", "SwitchCurrent")
SOURCES = ("ExportSource", "BuildSource", "ExportSource", "BuildSource")


def plan(lock: Lock, *, stored: set[str] | None = None, complete: bool = False, current: bool = False) -> Plan:
    return make_plan(
        lock, directory=DIRECTORY, fingerprint="0123456789ab", python=("/usr/bin/python3.11", "3.11.7"),
        stored=stored or set(), complete=complete, current=current,
    )  # fmt: skip


def downloaded(lock: Lock) -> set[str]:
    return {file.sha256 for _, file in lock.downloads()}


CASES: dict[str, tuple[Lock, Callable[[Lock], set[str]], bool, bool, tuple[str, ...]]] = {
    "the env stands": (RICH, lambda lock: set(), True, True, ()),
    "the env stands, another is current": (RICH, lambda lock: set(), True, False, ("VerifyAgain", "SwitchCurrent")),
    "current points at an env without a receipt": (
        PLAIN, downloaded, False, True, ("CreateVenv", *ALWAYS),
    ),
    "nothing is there": (PLAIN, lambda lock: set(), False, False, ("Obtain", "CreateVenv", *ALWAYS)),
    "all files are there": (PLAIN, downloaded, False, False, ("CreateVenv", *ALWAYS)),
    "an empty lock": (replace(PLAIN, wheels=()), lambda lock: set(), False, False, ("CreateVenv", *ALWAYS)),
    "everything at once": (
        RICH, lambda lock: set(), False, False,
        ("Obtain", "BuildSdist", "RepackWheel", "CreateVenv", *SOURCES, *ALWAYS),
    ),
    "downloaded but not made": (
        RICH, downloaded, False, False, ("BuildSdist", "RepackWheel", "CreateVenv", *SOURCES, *ALWAYS),
    ),
    "made in an earlier build": (
        RICH, lambda lock: downloaded(lock) | {BUILT.sha256, PATCHED.sha256}, False, False,
        ("CreateVenv", *SOURCES, *ALWAYS),
    ),
    "one of two is made": (
        RICH, lambda lock: downloaded(lock) | {PATCHED.sha256}, False, False,
        ("BuildSdist", "CreateVenv", *SOURCES, *ALWAYS),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("lock", "stored", "complete", "current", "steps"), CASES.values(), ids=CASES)
def test_a_state_asks_for_its_steps(
    lock: Lock, stored: Callable[[Lock], set[str]], complete: bool, current: bool, steps: tuple[str, ...]
) -> None:
    made = plan(lock, stored=stored(lock), complete=complete, current=current)
    assert tuple(type(step).__name__ for step in made.steps) == steps


def test_only_what_is_missing_is_obtained() -> None:
    made = plan(RICH, stored={"sha-of-numpy-1.0-py3-none-any.whl"})
    first = made.steps[0]
    assert isinstance(first, Obtain)
    assert [file.filename for _, file in first.files] == [
        "antlr-1.0.tar.gz", "ray-2.0-py3-none-any.whl", "setuptools-80.9.0-py3-none-any.whl", "tool-1.0.tar.gz",
    ]  # fmt: skip


def test_a_plan_names_its_env() -> None:
    made = plan(PLAIN)
    assert (made.env, made.directory, made.fingerprint) == ("a100/rl", DIRECTORY, "0123456789ab")


def test_equal_states_make_equal_plans() -> None:
    assert plan(RICH) == plan(RICH)


def test_every_step_says_itself_in_one_line() -> None:
    assert [step.describe() for step in plan(RICH).steps] == [
        "obtain 5 files, 5.0 kB",
        "build antlr-1.0-py3-none-any.whl from antlr-1.0.tar.gz",
        "repack ray-2.0-py3-none-any.whl with 1 patch as ray-2.0+envsmith.tabc-py3-none-any.whl",
        "create the environment with Python 3.11.7",
        "export tool from tool-1.0.tar.gz, expect tree bbbbbbbbbbbb",
        "build tool (editable) with 0 pinned build requirements",
        "export verl from commit 1bf9d2d76c24, apply 1 patch, expect tree bbbbbbbbbbbb",
        "build verl (editable) with 1 pinned build requirement",
        "install 5 wheels in one offline sync",
        "isolate: private copies of everything but native libraries",
        "write env.sh and modulefile",
        "verify every file and import against the lock",
        "write the receipt",
        "switch current to 0123456789ab",
    ]


def test_one_is_not_many() -> None:
    said = [step.describe() for step in plan(PLAIN).steps]
    assert said[0] == "obtain 1 file, 1.0 kB"
    assert "install 1 wheel in one offline sync" in said


def test_a_source_that_is_a_wheel_is_counted_once() -> None:
    lock = replace(PLAIN, wheels=(wheel("numpy"), wheel("verl", "0.9")), sources=(AS_WHEEL,))
    assert "install 2 wheels in one offline sync" in [step.describe() for step in plan(lock).steps]


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0.0 kB"), (99_999, "100.0 kB"), (100_000, "0.1 MB"), (74_145_394, "74.1 MB"), (2_500_000_000, "2.50 GB")],
)
def test_sizes_are_said_in_decimal_units(size: int, said: str) -> None:
    assert megabytes(size) == said
