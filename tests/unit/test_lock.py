"""A lock is written and read without loss, refused in words when it is not one, and names its env by what counts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.pylock import Pylock

from envsmith.errors import InputError
from envsmith.lock import (
    BuiltWheel,
    Conflict,
    File,
    Lock,
    LockedAsset,
    LockedBase,
    LockedPatch,
    LockedSeries,
    LockedSource,
    PatchedWheel,
    Wheel,
    digest,
    fingerprint,
    lock_name,
    parse,
    render,
)
from envsmith.target import Target

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def sha(text: str) -> str:
    return digest(text)


def wheel(name: str, version: str = "1.0", size: int = 10) -> Wheel:
    filename = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    return Wheel(name=name, version=version, filename=filename, size=size, sha256=sha(filename))


SERIES = LockedSeries(
    path="verl-1/a100.series", layer="device", patches=(LockedPatch(path="verl-1/0001-x.patch", sha256=sha("p")),)
)
VERL = LockedSource(
    name="verl",
    project="verl",
    version="0.9.0.dev0",
    commit="1" * 40,
    sdist=None,
    extras=("math",),
    series=(SERIES,),
    base_tree="2" * 40,
    tree="3" * 40,
    install="editable",
    deps=True,
    requires=('ray[default]>=2 ; extra == "x"',),
    requires_python=">=3.10",
    build_requires=("setuptools==80.9.0",),
)
SOME_SDIST = File(filename="deepspeed-0.18.4.tar.gz", size=99, sha256=sha("ds"))
SPEED = replace(
    VERL, name="speed", project="deepspeed", commit=None, sdist=SOME_SDIST, install="wheel", series=(),
    wheel=wheel("deepspeed", "0.18.4").file,
)  # fmt: skip
BUILT = BuiltWheel(
    name="antlr",
    filename=wheel("antlr").filename,
    sha256=wheel("antlr").sha256,
    sdist=File(filename="antlr-1.0.tar.gz", size=7, sha256=sha("antlr sdist")),
    build_requires=("setuptools==80.9.0",),
    source_date_epoch=315532800,
)
PATCHED = PatchedWheel(
    name="ray",
    filename="ray-2.56.1+envsmith.t0123abcd-py3-none-any.whl",
    sha256=sha("ray patched"),
    original=wheel("ray", "2.56.1", 70).file,
    series=(SERIES,),
    tree="4" * 40,
)
RAY = Wheel(name="ray", version="2.56.1+envsmith.t0123abcd", filename=PATCHED.filename, size=71, sha256=PATCHED.sha256)
LOCK = Lock(
    stack="a100",
    env="rl",
    target=Target(python="3.11", arch="x86_64", glibc="2.31"),
    recipe_digest=sha("recipe"),
    uv="0.13.9",
    exclude_newer="2026-11-01T00:00:00Z",
    wheels=(wheel("antlr"), wheel("deepspeed", "0.18.4"), wheel("numpy", "1.26.4"), RAY),
    sources=(SPEED, VERL),
    built=(BUILT,),
    patched=(PATCHED,),
    build_requires=(wheel("setuptools", "80.9.0"),),
    conflicts=(Conflict(package="ray", version="2.56.1", requirement="numpy>=2", found="1.26.4", because="tried"),),
    assets=(LockedAsset(name="gsm8k", path="data/gsm8k.parquet", sha256=sha("gsm8k")),),
    extras={"ray": ("default", "serve")},
)


# --- writing and reading ---


def test_what_is_written_is_read_back() -> None:
    assert parse(render(LOCK), "x") == LOCK
    assert render(parse(render(LOCK), "x")) == render(LOCK)


def test_the_smallest_lock_is_written_and_read() -> None:
    small = Lock(
        stack="s", env="e", target=LOCK.target, recipe_digest="", uv="0.13.9", exclude_newer=None, wheels=()
    )  # fmt: skip
    assert parse(render(small), "x") == small


def test_the_reference_reader_takes_it_and_sees_no_place_to_download_from() -> None:
    read = Pylock.from_dict(tomllib.loads(render(LOCK)))
    assert [str(package.name) for package in read.packages] == ["antlr", "deepspeed", "numpy", "ray"]
    assert str(read.requires_python) == "==3.11.*"
    for package, locked in zip(read.packages, LOCK.wheels, strict=True):
        (one,) = package.wheels or ()
        assert (one.url, one.path) == (None, f"wheels/{locked.filename}")
        assert one.hashes == {"sha256": locked.sha256}
    assert "://" not in render(LOCK)


def test_the_file_name_is_one_that_pep_751_allows() -> None:
    assert lock_name("a100", "rl") == "pylock.a100-rl.toml"


TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
NAME = st.from_regex(r"[a-z][a-z0-9]{0,5}(-[a-z0-9]{1,3})?", fullmatch=True)
VERSION = st.from_regex(r"[1-9]?[0-9]\.[0-9](rc1|\.post2|\.dev3)?(\+cu128)?", fullmatch=True)
SHA = st.integers(0, 16**64 - 1).map("{:064x}".format)
SIZE = st.integers(0, 2**62)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
FILENAME = TEXT.filter(lambda text: text not in ("", ".", "..") and not set(text) & {"/", "\0"})
FILES = st.builds(File, filename=FILENAME, size=SIZE, sha256=SHA)
WHEELS = st.builds(
    lambda name, version, size, sha256: Wheel(
        name=name, version=version, filename=wheel(name, version).filename, size=size, sha256=sha256
    ),
    NAME, VERSION, SIZE, SHA,
)  # fmt: skip
WHEEL_FILES = WHEELS.map(lambda one: one.file)
ALL_SERIES = st.lists(
    st.builds(
        LockedSeries,
        path=TEXT,
        layer=TEXT,
        patches=st.lists(st.builds(LockedPatch, path=TEXT, sha256=SHA), max_size=2).map(tuple),
    ),
    max_size=2,
).map(tuple)
SOURCES = st.builds(
    LockedSource,
    name=FILENAME, project=TEXT, version=TEXT, commit=st.none() | TEXT, sdist=st.none() | FILES, extras=TEXTS,
    series=ALL_SERIES, base_tree=TEXT, tree=TEXT, install=st.sampled_from(["editable", "wheel"]), deps=st.booleans(),
    requires=TEXTS, requires_python=st.none() | TEXT, build_requires=TEXTS, wheel=st.none() | WHEEL_FILES,
)  # fmt: skip
BUILTS = st.builds(
    BuiltWheel,
    name=TEXT,
    filename=WHEELS.map(lambda one: one.filename),
    sha256=SHA,
    sdist=FILES,
    build_requires=TEXTS,
    source_date_epoch=SIZE,
)
PATCHES = st.builds(
    PatchedWheel,
    name=TEXT,
    filename=WHEELS.map(lambda one: one.filename),
    sha256=SHA,
    original=WHEEL_FILES,
    series=ALL_SERIES,
    tree=TEXT,
)
LOCKS = st.builds(
    Lock,
    stack=TEXT,
    env=TEXT,
    target=st.builds(
        Target,
        python=st.sampled_from(["3.8", "3.11", "3.12.4"]),
        arch=st.sampled_from(["x86_64", "aarch64"]),
        glibc=st.sampled_from(["2.17", "2.31"]),
    ),
    recipe_digest=TEXT,
    uv=TEXT,
    exclude_newer=st.none() | TEXT,
    wheels=st.lists(WHEELS, max_size=3).map(tuple),
    sources=st.lists(SOURCES, max_size=2).map(tuple),
    built=st.lists(BUILTS, max_size=2).map(tuple),
    patched=st.lists(PATCHES, max_size=2).map(tuple),
    build_requires=st.lists(WHEELS, max_size=2).map(tuple),
    conflicts=st.lists(
        st.builds(Conflict, package=TEXT, version=TEXT, requirement=TEXT, found=st.none() | TEXT, because=TEXT),
        max_size=2,
    ).map(tuple),
    assets=st.lists(st.builds(LockedAsset, name=TEXT, path=TEXT, sha256=SHA), max_size=2).map(tuple),
    extras=st.dictionaries(TEXT, st.lists(TEXT, min_size=1, max_size=2).map(tuple), max_size=2),
)


@settings(max_examples=40, deadline=None)
@given(LOCKS)
def test_every_lock_survives_writing_and_reading(lock: Lock) -> None:
    text = render(lock)
    assert parse(text, "x") == lock
    assert render(parse(text, "x")) == text


# --- what is no lock ---

Change = Callable[[dict[str, Any]], object]


def tool(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = data["tool"]["envsmith"]
    return found


def spoiled(change: Change) -> str:
    """The text of a good lock after one change."""
    data = tomllib.loads(render(LOCK))
    change(data)
    return tomlkit.dumps(data)


def test_a_lock_in_another_style_of_toml_is_the_same_lock() -> None:
    assert parse(spoiled(lambda data: None), "x") == LOCK


SPOILED: dict[str, tuple[Change, str]] = {
    "two wheels": (lambda d: d["packages"][0]["wheels"].append(d["packages"][1]["wheels"][0]), "has 2 wheels"),
    "no wheel": (lambda d: d["packages"][0]["wheels"].clear(), "has 0 wheels"),
    "an sdist": (lambda d: d["packages"][0].pop("wheels"), "the key `wheels` is missing"),
    "a URL for a path": (
        lambda d: d["packages"][0]["wheels"][0].update(path="https://example.invalid/a-1.0-py3-none-any.whl"),
        "should lie in `wheels/`",
    ),
    "a URL instead of a path": (
        lambda d: d["packages"][0]["wheels"][0].update(url=d["packages"][0]["wheels"][0].pop("path")),
        "the key `path` is missing",
    ),
    "an absolute path": (lambda d: d["packages"][0]["wheels"][0].update(path="/wheels/a.whl"), "should lie in"),
    "a path leading out": (lambda d: d["packages"][0]["wheels"][0].update(path="wheels/../a.whl"), "not a file name"),
    "a path to a folder": (lambda d: d["packages"][0]["wheels"][0].update(path="wheels/"), "not a file name"),
    "a path with NUL": (lambda d: d["packages"][0]["wheels"][0].update(path="wheels/a\0.whl"), "not a file name"),
    "a file that is no wheel": (lambda d: d["packages"][0]["wheels"][0].update(path="wheels/a.whl"), "wheel filename"),
    "a short sha256": (lambda d: d["packages"][0]["wheels"][0]["hashes"].update(sha256="ab"), "not a sha256"),
    "a sha256 in capitals": (
        lambda d: d["packages"][0]["wheels"][0]["hashes"].update(sha256="AB" * 32),
        "not a sha256",
    ),
    "no sha256": (
        lambda d: d["packages"][0]["wheels"][0].update(hashes={"md5": "0" * 32}),
        "the key `sha256` is missing",
    ),
    "a negative size": (lambda d: d["packages"][0]["wheels"][0].update(size=-1), "should be a size"),
    "a size in words": (lambda d: d["packages"][0]["wheels"][0].update(size="10"), "should be a size"),
    "a size that is true": (lambda d: d["packages"][0]["wheels"][0].update(size=True), "should be a size"),
    "a package without a version": (lambda d: d["packages"][0].pop("version"), "the key `version` is missing"),
    "packages is a word": (lambda d: d.update(packages="all"), "not a lock"),
    "a version of PEP 751 to come": (lambda d: d.update({"lock-version": "2.0"}), "newer than this envsmith"),
    "a version that is a number": (lambda d: d.update({"lock-version": 1.0}), "not a lock"),
    "another schema": (lambda d: tool(d).update(schema=2), "its schema is 2, this envsmith reads 1"),
    "no schema": (lambda d: tool(d).pop("schema"), "the key `schema` is missing"),
    "another tool's lock": (lambda d: d.pop("tool"), "the key `tool` is missing"),
    "no target": (lambda d: tool(d).pop("target"), "the key `target` is missing"),
    "a target without glibc": (lambda d: tool(d)["target"].pop("glibc"), "the key `glibc` is missing"),
    "a glibc in words": (lambda d: tool(d)["target"].update(glibc="new"), "`new` is none of the values"),
    "a python that is none": (lambda d: tool(d)["target"].update(python="3"), "`3` is none of the values"),
    "a recipe that is a number": (lambda d: tool(d).update(recipe=3), "should be a string"),
    "a time that is a number": (lambda d: tool(d).update({"exclude-newer": 3}), "should be a string"),
    "extras that are text": (lambda d: tool(d)["extras"].update(ray="default"), "should be an array"),
    "sources is a table": (lambda d: tool(d).update(sources={"a": 1}), "not a lock"),
    "a source without a tree": (lambda d: tool(d)["sources"][0].pop("tree"), "the key `tree` is missing"),
    "a source that leads out": (lambda d: tool(d)["sources"][0].update(name="../x"), "not a file name"),
    "a source installed by magic": (lambda d: tool(d)["sources"][0].update(install="egg"), "`egg` is none of"),
    "a source with deps in words": (lambda d: tool(d)["sources"][0].update(deps="no"), "should be true or false"),
    "requirements that are text": (lambda d: tool(d)["sources"][0].update(requires="ray"), "should be an array"),
    "a requirement that is a number": (lambda d: tool(d)["sources"][0].update(requires=[1]), "should be a string"),
    "a commit that is a number": (lambda d: tool(d)["sources"][1].update(commit=1), "should be a string"),
    "a patch without sha256": (
        lambda d: tool(d)["sources"][1]["series"][0]["patches"][0].pop("sha256"),
        "the key `sha256` is missing",
    ),
    "a built wheel without an sdist": (lambda d: tool(d)["built"][0].pop("sdist"), "the key `sdist` is missing"),
    "a date before time": (lambda d: tool(d)["built"][0].update({"source-date-epoch": -1}), "should be a size"),
    "a patched file that is no wheel": (
        lambda d: tool(d)["patched"][0]["original"].update(filename="ray.zip"),
        "wheel filename",
    ),
    "a build requirement that is no wheel": (
        lambda d: tool(d)["build-requires"][0].update(filename="setuptools-80.9.0.tar.gz"),
        "wheel filename",
    ),
    "a conflict without a reason": (lambda d: tool(d)["conflicts"][0].pop("because"), "the key `because` is missing"),
    "an asset without sha256": (lambda d: tool(d)["assets"][0].update(sha256="0"), "not a sha256"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "words"), SPOILED.values(), ids=SPOILED)
def test_what_is_not_a_lock_is_refused_in_words(change: Change, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(spoiled(change), "stacks/pylock.a100-rl.toml")
    (problem,) = caught.value.problems
    assert (problem.code, problem.where) == ("lock-invalid", "stacks/pylock.a100-rl.toml")
    assert words in problem.message
    assert problem.hint is not None


@pytest.mark.parametrize("text", ["[", "a = 1\na = 2", "a = " + "[" * 3000], ids=["open", "twice", "deep"])
def test_what_is_no_toml_is_refused_as_such(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, "x")
    assert [p.code for p in caught.value.problems] == ["lock-syntax"]


@pytest.mark.parametrize("text", ["", 'lock-version = "1.0"', 'lock-version = "1.0"\n[tool.envsmith]', "tool = 3"])
def test_half_a_lock_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text, "x")
    assert [p.code for p in caught.value.problems] == ["lock-invalid"]


def paths_of(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [inner for key, one in pairs for inner in ((*path, key), *paths_of(one, (*path, key)))]


@settings(max_examples=60, deadline=None)
@given(
    place=st.sampled_from(paths_of(tomllib.loads(render(LOCK)))),
    value=st.one_of(st.none(), st.integers(), st.booleans(), TEXT, st.sampled_from([[], {}, [{}], [1]])),
)  # fmt: skip
def test_any_one_wrong_value_is_read_or_refused_but_never_a_crash(place: tuple[str | int, ...], value: Any) -> None:
    data = tomllib.loads(render(LOCK))
    parent: Any = data
    for key in place[:-1]:
        parent = parent[key]
    if value is None:
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    try:
        lock = parse(tomlkit.dumps(data), "x")
    except InputError as error:
        assert {problem.code for problem in error.problems} == {"lock-invalid"}
    else:
        assert parse(render(lock), "x") == replace(lock, extras={k: v for k, v in lock.extras.items() if v})
        assert lock.target.tags()
        assert all(one.original_version for one in lock.patched)


# --- the fingerprint ---


def mark(
    lock: Lock = LOCK, *, launch: dict[str, object] | None = None, python: tuple[str, str] = ("3.11.7", "aa")
) -> str:
    return fingerprint(lock, launch or {"set": {}}, *python)


NOT_COUNTED: dict[str, dict[str, Any]] = {
    "recipe digest": {"recipe_digest": "other"},
    "uv": {"uv": "0.14.0"},
    "exclude-newer": {"exclude_newer": None},
    "conflicts": {"conflicts": ()},
}
COUNTED: dict[str, dict[str, Any]] = {
    "stack": {"stack": "a10"},
    "env": {"env": "sft"},
    "target python": {"target": replace(LOCK.target, python="3.12")},
    "target arch": {"target": replace(LOCK.target, arch="aarch64")},
    "target glibc": {"target": replace(LOCK.target, glibc="2.28")},
    "wheels one less": {"wheels": LOCK.wheels[1:]},
    "wheels version": {"wheels": (replace(LOCK.wheels[0], version="2.0"), *LOCK.wheels[1:])},
    "wheels sha256": {"wheels": (replace(LOCK.wheels[0], sha256=sha("other")), *LOCK.wheels[1:])},
    "sources commit": {"sources": (SPEED, replace(VERL, commit="5" * 40))},
    "sources tree": {"sources": (SPEED, replace(VERL, tree="5" * 40))},
    "sources extras": {"sources": (SPEED, replace(VERL, extras=()))},
    "sources install": {"sources": (SPEED, replace(VERL, install="wheel"))},
    "sources series": {"sources": (SPEED, replace(VERL, series=()))},
    "built": {"built": (replace(BUILT, sha256=sha("other")),)},
    "patched": {"patched": (replace(PATCHED, tree="6" * 40),)},
    "build_requires": {"build_requires": (wheel("setuptools", "80.8.0"),)},
    "base": {"base": (LockedBase(name="torch", version="2.9.0+v", protected=True, files=None),)},
    "snapshot": {"snapshot": sha("snapshot")},
    "assets": {"assets": ()},
    "extras": {"extras": {"ray": ("default",)}},
}


@pytest.mark.parametrize("change", NOT_COUNTED.values(), ids=NOT_COUNTED)
def test_what_does_not_make_another_env_keeps_the_fingerprint(change: dict[str, Any]) -> None:
    assert mark(replace(LOCK, **change)) == mark()


@pytest.mark.parametrize("change", COUNTED.values(), ids=COUNTED)
def test_whatever_makes_another_env_changes_the_fingerprint(change: dict[str, Any]) -> None:
    assert mark(replace(LOCK, **change)) != mark()


def test_every_part_of_a_lock_is_in_one_of_the_two_tables() -> None:
    named = {key for change in (*NOT_COUNTED.values(), *COUNTED.values()) for key in change}
    assert named == {one.name for one in fields(Lock)}
    assert set(LOCK.canonical()) == {key for change in COUNTED.values() for key in change}


def test_launch_and_interpreter_count() -> None:
    marks = {
        mark(),
        mark(launch={"set": {"A": "1"}}),
        mark(python=("3.11.8", "aa")),
        mark(python=("3.11.7", "bb")),
    }
    assert len(marks) == 4
    assert all(len(one) == 64 for one in marks)


def test_the_order_of_tables_does_not_count() -> None:
    assert mark(launch={"a": 1, "b": 2}) == mark(launch={"b": 2, "a": 1})
    more = replace(LOCK, extras={"b": ("x",), "a": ("y",)})
    assert mark(more) == mark(replace(more, extras={"a": ("y",), "b": ("x",)}))


def test_a_lock_that_was_written_and_read_has_the_same_fingerprint() -> None:
    assert mark(parse(render(LOCK), "x")) == mark()


# --- downloads ---


def test_downloads_are_what_cannot_be_made_here() -> None:
    assert [(name, file.filename) for name, file in LOCK.downloads()] == [
        ("antlr", "antlr-1.0.tar.gz"),
        ("deepspeed", "deepspeed-0.18.4.tar.gz"),
        ("numpy", "numpy-1.26.4-py3-none-any.whl"),
        ("ray", "ray-2.56.1-py3-none-any.whl"),
        ("setuptools", "setuptools-80.9.0-py3-none-any.whl"),
    ]


def test_a_patched_wheel_that_was_built_here_is_not_downloaded() -> None:
    both = replace(LOCK, patched=(replace(PATCHED, original=wheel("antlr").file),))
    assert ("ray", wheel("antlr").file) not in both.downloads()


def test_a_file_that_is_needed_twice_is_obtained_once() -> None:
    twice = replace(LOCK, wheels=(*LOCK.wheels, wheel("setuptools", "80.9.0")))
    assert len(twice.downloads()) == len(LOCK.downloads())


def test_versions_and_sources_are_found_by_name() -> None:
    assert PATCHED.original_version == "2.56.1"
    assert LOCK.source("verl") is VERL
