"""The stacks that ship: each parses, has fresh locks without hosts, and its wheels fit the machine it is for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from packaging.pylock import Pylock
from packaging.utils import canonicalize_name, parse_wheel_filename

from envsmith.commands.freshness import staleness
from envsmith.commands.patchfiles import read_patches
from envsmith.commands.workspace import Workspace, open_stack
from envsmith.lock import lock_name, parse, render
from envsmith.series import Layer
from envsmith.target import Target

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

STACKS = Path(__file__).parents[2] / "stacks"
RECIPES = sorted(path for path in STACKS.glob("*.toml") if not path.name.startswith("pylock."))


def envs() -> list[tuple[Path, str]]:
    return [(path, name) for path in RECIPES for name in tomllib.loads(path.read_text())["env"]]


ENVS = envs()
EVERY_STACK = pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
EVERY_ENV = pytest.mark.parametrize(("path", "env"), ENVS, ids=[f"{path.stem}/{env}" for path, env in ENVS])


def lock_text(path: Path, env: str) -> str:
    return (STACKS / lock_name(path.stem, env)).read_text(encoding="utf-8")


def chosen(text: str, target: Target) -> dict[str, str]:
    """The wheel that the reference reader of PEP 751 installs for each package on the target."""
    selected = Pylock.from_dict(tomllib.loads(text)).select(environment=target.markers(), tags=target.tags())
    return {str(package.name): (wheel.path or "").rpartition("/")[2] for package, wheel in selected}


# recipes


def test_there_is_a_stack_and_the_default_one_is_among_them() -> None:
    assert "quickstart" in {path.stem for path in RECIPES}


@EVERY_STACK
def test_every_stack_parses_and_says_what_it_is(path: Path) -> None:
    workspace = open_stack(str(path))
    assert workspace.stack.stack.name == path.stem
    assert workspace.stack.stack.summary


@EVERY_STACK
def test_every_stack_is_in_the_table_of_the_readme_with_its_envs(path: Path) -> None:
    rows = [line for line in (STACKS / "README.md").read_text().splitlines() if f"({path.name})" in line]
    assert len(rows) == 1
    assert [env for stack, env in ENVS if stack == path and f"`{env}`" not in rows[0]] == []


@EVERY_ENV
def test_every_series_that_a_stack_names_is_there_and_made_for_its_source(path: Path, env: str) -> None:
    workspace = open_stack(str(path))
    recipe = workspace.stack.env[env]
    for source in recipe.source.values():
        found = read_patches(workspace.patches, source.series, source.base)
        assert [series.path for series in found.series] == list(source.series)
    for table in recipe.patch.values():
        assert [path for path in table.series if not (workspace.patches / path).is_file()] == []


@EVERY_ENV
def test_no_stack_ships_research(path: Path, env: str) -> None:
    lock = parse(lock_text(path, env), path.name)
    series = [series for part in (*lock.sources, *lock.patched) for series in part.series]
    assert [one.path for one in series if one.layer == Layer.RESEARCH.value] == []


@EVERY_ENV
def test_every_env_has_a_date_so_that_it_locks_alike_tomorrow(path: Path, env: str) -> None:
    assert open_stack(str(path)).stack.env[env].exclude_newer is not None


@EVERY_ENV
def test_every_accepted_conflict_has_a_reason_of_words(path: Path, env: str) -> None:
    reasons = [entry.because for entry in open_stack(str(path)).stack.env[env].accept]
    assert [reason for reason in reasons if len(reason.split()) < 4 or "…" in reason] == []


# locks


def test_no_lock_is_an_orphan() -> None:
    wanted = {lock_name(path.stem, env) for path, env in ENVS}
    assert {path.name for path in STACKS.glob("pylock.*.toml")} == wanted


@EVERY_ENV
def test_every_lock_is_fresh(path: Path, env: str) -> None:
    stale = staleness(open_stack(str(path)), env)
    assert stale is None, stale.text() if stale else ""


@EVERY_ENV
def test_every_lock_is_free_of_addresses(path: Path, env: str) -> None:
    assert "://" not in lock_text(path, env)


@EVERY_ENV
def test_every_lock_is_written_as_it_is_read(path: Path, env: str) -> None:
    text = lock_text(path, env)
    assert render(parse(text, path.name)) == text


@EVERY_ENV
def test_the_reference_reader_picks_exactly_the_listed_wheels(path: Path, env: str) -> None:
    text = lock_text(path, env)
    lock = parse(text, path.name)
    assert lock.wheels
    assert chosen(text, lock.target) == {wheel.name: wheel.filename for wheel in lock.wheels}


@EVERY_ENV
def test_every_wheel_fits_the_target_and_is_named_once(path: Path, env: str) -> None:
    lock = parse(lock_text(path, env), path.name)
    fitting = set(lock.target.tags())
    names = [wheel.name for wheel in lock.wheels]
    assert len(names) == len(set(names))
    assert [name for name in names if name != canonicalize_name(name)] == []
    assert [w.filename for w in lock.wheels if not parse_wheel_filename(w.filename)[3] & fitting] == []


@EVERY_ENV
def test_every_build_requirement_of_a_lock_is_pinned_in_it(path: Path, env: str) -> None:
    lock = parse(lock_text(path, env), path.name)
    pinned = {f"{wheel.name}=={wheel.version}" for wheel in lock.build_requires}
    wanted = {name for part in (*lock.sources, *lock.built) for name in part.build_requires}
    assert wanted == pinned


@EVERY_ENV
def test_every_conflict_of_a_lock_has_the_reason_of_the_recipe(path: Path, env: str) -> None:
    lock = parse(lock_text(path, env), path.name)
    accepted = {(str(canonicalize_name(e.package)), e.because) for e in open_stack(str(path)).stack.env[env].accept}
    assert {(conflict.package, conflict.because) for conflict in lock.conflicts} == accepted


# each of these is seen failing


@pytest.fixture
def copy(tmp_path: Path) -> Workspace:
    """A copy of the quickstart and its patches, to break."""
    for path in (STACKS / "quickstart.toml", STACKS / lock_name("quickstart", "worker")):
        (tmp_path / "stacks").mkdir(exist_ok=True)
        (tmp_path / "stacks" / path.name).write_bytes(path.read_bytes())
    for path in (STACKS.parent / "patches").glob("*/*"):
        place = tmp_path / "patches" / path.parent.name / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    return open_stack(str(tmp_path / "stacks" / "quickstart.toml"))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_an_untouched_copy_is_fresh(copy: Workspace) -> None:
    assert staleness(copy, "worker") is None


def test_a_recipe_that_moved_on_is_seen(copy: Workspace) -> None:
    edit(copy.path, "pyarrow==24.0.0", "pyarrow==23.0.0")
    stale = staleness(open_stack(str(copy.path)), "worker")
    assert stale is not None and stale.code == "lock-stale"


def test_a_patch_that_moved_on_is_seen(copy: Workspace) -> None:
    patch = next((copy.patches / "llamafactory-0.9.5").glob("*.patch"))
    edit(patch, "Description: ", "Description: now ")
    stale = staleness(copy, "worker")
    assert stale is not None and patch.name in stale.message


def test_a_lock_that_is_gone_is_seen(copy: Workspace) -> None:
    copy.lock_path("worker").unlink()
    stale = staleness(copy, "worker")
    assert stale is not None and stale.code == "lock-missing"


def test_a_lock_that_was_edited_by_hand_is_not_written_as_it_is_read(copy: Workspace) -> None:
    edit(copy.lock_path("worker"), 'name = "ray"', 'name   = "ray"')
    text = copy.lock_path("worker").read_text()
    assert render(parse(text, "lock")) != text


def test_a_wheel_for_another_machine_is_seen() -> None:
    text = lock_text(STACKS / "quickstart.toml", "worker")
    with pytest.raises(Exception, match="ray"):
        chosen(
            text.replace("ray-2.56.1-cp311-cp311-manylinux2014_x86_64", "ray-2.56.1-cp312-cp312-win_amd64"),
            parse(text, "lock").target,
        )
