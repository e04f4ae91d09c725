"""`store list` and `store gc` on a store that builds have filled: what is in use stays, whatever happens meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envsmith.commands.screen import Screen
from envsmith.commands.store_verbs import collect, list_store
from envsmith.commands.supplies import mirror_folder
from envsmith.tools.store import Store
from tests.support.index import SimpleIndex
from tests.support.project import Project, make_project
from tests.support.repos import make_repo

HOURS = 3600


@dataclass(frozen=True, slots=True)
class World:
    """A project with its env built, the store that it was built from, and plants in it."""

    project: Project
    store: Store

    @property
    def home(self) -> Path:
        return self.store.home

    @property
    def env(self) -> Path:
        return self.project.current.resolve()

    def beside(self, suffix: str) -> Path:
        return self.env.with_name(f"{self.env.name}.{suffix}")

    def plant(self, content: str, hours: float = 2) -> str:
        """Add a blob that nothing names."""
        path = self.project.folder / f"{content}-1.0-py3-none-any.whl"
        path.write_text(content)
        sha256 = self.store.add_file(path)
        age(self.store.blob_path(sha256), hours)
        age(self.home / "facts" / f"{sha256}.json", hours)
        return sha256

    def gc(self, *, dry_run: bool = False, keep_days: float | None = None, screen: Screen | None = None) -> Any:
        result = collect(
            dry_run=dry_run, keep_days=keep_days, environ=self.environ, screen=screen or Screen(quiet=True)
        )
        assert result.exit_code == 0, result.errors
        return json.loads(json.dumps(result.envelope()))["data"]

    def list(self) -> Any:
        result = list_store(environ=self.environ, screen=Screen(quiet=True))
        return json.loads(json.dumps(result.envelope()))["data"]

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "ENVSMITH_HOME": str(self.home)}

    def blobs(self) -> set[str]:
        return {sha256 for sha256, _ in self.store.blobs()}


def age(path: Path, hours: float = 2) -> None:
    """Make a file, or all of a folder, older."""
    then = time.time() - hours * HOURS
    for one in [path, *path.rglob("*")] if path.is_dir() and not path.is_symlink() else [path]:
        os.utime(one, (then, then), follow_symlinks=False)


def age_all(home: Path) -> None:
    for folder in ("blobs", "facts", "metadata", "git", "locks", "partial", "sources", "bundles", "tmp", "differing"):
        age(home / folder) if (home / folder).exists() else None


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Build once; tests work on copies, but for one that needs the env in its place."""
    folder = tmp_path_factory.mktemp("gc")
    project, home = make_project(folder / "project"), folder / "store"
    with SimpleIndex(project.index) as served:
        said = project.build(env={"ENVSMITH_HOME": str(home), "ENVSMITH_INDEX": served.url})
    assert said.code == 0, said.err
    age_all(home)
    shutil.copytree(folder, folder.with_name("gc-copy"), symlinks=True)
    return World(project, Store(home))


@pytest.fixture
def world(template: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A copy of that, seen from a folder without recipes: only the env keeps something."""
    source = template.home.parent.with_name("gc-copy")
    made = shutil.copytree(source, tmp_path / "gc", symlinks=True)
    project = Project(made / "project", made / "project" / "index")
    (made / "store" / "envs.txt").write_text(f"{project.current.resolve()}\n")
    monkeypatch.setenv("ENVSMITH_HOME", str(made / "store"))
    return World(project, Store(made / "store"))


def tool_wheel(world: World) -> str:
    """The editable wheel of the source: no lock names it."""
    (found,) = [d for d in world.blobs() if (world.store.facts(d).get("name") or "").startswith("tool-")]
    return found


# --- what is in use ---


def test_a_standing_env_keeps_its_wheels_sdists_originals_and_mirror_and_the_rest_goes(world: World) -> None:
    garbage = world.plant("garbage")
    before, loose = world.blobs(), {garbage, tool_wheel(world)}
    mirrors = sorted((world.home / "git").iterdir())
    answer = world.gc()
    assert world.blobs() == before - loose
    assert sorted((world.home / "git").iterdir()) == mirrors
    assert answer["freed"]["blob"]["count"] == 2
    assert not (world.home / "facts" / f"{garbage}.json").exists()
    assert all(world.store.verify(sha256) for sha256 in world.blobs())


def test_a_removed_env_frees_what_it_alone_kept(world: World) -> None:
    shutil.rmtree(world.env)
    answer = world.gc()
    assert world.blobs() == set()
    assert list((world.home / "git").iterdir()) == list((world.home / "facts").iterdir()) == []
    assert answer["freed"]["uv"]["count"] == 5
    assert list((world.home / "uv" / "archive-v0").iterdir()) == []
    assert answer["freed_bytes"] > sum(answer["freed"][kind]["bytes"] for kind in ("blob", "mirror"))
    assert len(answer["gone_envs"]) == 1
    again = world.gc()
    assert (again["freed_count"], again["freed_bytes"], again["warnings"]) == (0, 0, [])


def test_a_lock_in_sight_keeps_what_a_removed_env_needed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(world.env)
    monkeypatch.chdir(world.project.folder)
    before, editable = world.blobs(), tool_wheel(world)
    world.gc()
    assert before - world.blobs() == {editable}
    assert len(list((world.home / "git").iterdir())) == 1


def test_an_env_that_no_registry_names_is_found_beside_those_that_it_names(world: World) -> None:
    other = world.project.envs / "demo-app" / "000000000000"
    (world.home / "envs.txt").write_text(f"{other}\n")
    before = world.blobs()
    world.gc()
    assert len(before - world.blobs()) == 1


def test_dry_run_says_what_a_collection_frees_and_frees_nothing(world: World) -> None:
    world.plant("garbage")
    before = sorted(world.home.rglob("*"))
    planned = world.gc(dry_run=True)
    assert sorted(world.home.rglob("*")) == before
    done = world.gc()
    assert planned["freed"]["blob"] == done["freed"]["blob"]
    assert planned["freed"]["note"] == done["freed"]["note"]
    assert planned["freed"]["uv"]["count"] == done["freed"]["uv"]["count"] == 1


def test_keep_days_keeps_what_is_younger(world: World) -> None:
    young, old = world.plant("young", hours=40), world.plant("old", hours=60)
    world.gc(keep_days=2)
    assert young in world.blobs()
    assert old not in world.blobs()
    recent = world.plant("recent", hours=0.5)
    world.gc()
    assert young not in world.blobs()
    assert recent in world.blobs()


def test_a_store_that_is_not_there_is_listed_and_collected_without_being_made(tmp_path: Path) -> None:
    nowhere = World(Project(tmp_path, tmp_path), Store(tmp_path / "none"))
    assert nowhere.list()["blobs"] == []
    assert nowhere.gc()["freed_count"] == 0
    assert not nowhere.home.exists()


# --- what cannot be told ---


def cut_receipt(world: World) -> Path:
    receipt = world.env / "envsmith.json"
    receipt.write_text(receipt.read_text()[:100])
    return receipt


def cut_lock(world: World) -> Path:
    lock = world.beside("pylock.toml")
    lock.write_text(lock.read_text()[:-200])
    return lock


def no_lock(world: World) -> Path:
    world.beside("pylock.toml").unlink()
    return world.beside("pylock.toml")


def other_lock(world: World) -> Path:
    lock = world.beside("pylock.toml")
    lock.write_text(lock.read_text() + "\n# edited\n")
    return lock


def lock_is_a_pipe(world: World) -> Path:
    lock = no_lock(world)
    os.mkfifo(lock)
    return lock


def registry_is_garbage(world: World) -> Path:
    registry = world.home / "envs.txt"
    registry.write_bytes(b"\x00\x01/half/a/pa")
    return registry


def registry_is_a_folder(world: World) -> Path:
    registry = world.home / "envs.txt"
    registry.unlink()
    registry.mkdir()
    return registry


def manifest_is_damaged(world: World) -> Path:
    manifest = world.home / "bundles" / ("a" * 64) / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text("{}")
    age(world.home / "bundles")
    return manifest


def index_is_damaged(world: World) -> Path:
    index = world.home / "sources" / f"{'1' * 40}.json"
    index.parent.mkdir()
    index.write_text("{")
    age(index)
    return index


def blobs_are_elsewhere(world: World) -> Path:
    (world.home / "blobs").rename(world.home.parent / "elsewhere")
    (world.home / "blobs").symlink_to(world.home.parent / "elsewhere")
    return world.home / "blobs"


@pytest.mark.parametrize(
    "damage",
    [
        cut_receipt, cut_lock, no_lock, other_lock, lock_is_a_pipe, registry_is_garbage, registry_is_a_folder,
        manifest_is_damaged, index_is_damaged, blobs_are_elsewhere,
    ],
)  # fmt: skip
def test_a_record_that_cannot_be_read_frees_nothing_it_might_name_and_is_said(world: World, damage: Any) -> None:
    world.plant("garbage")
    where = damage(world)
    blobs, rest = world.blobs(), sorted(world.home.glob("*/*"))
    answer = world.gc()
    assert world.blobs() == blobs
    assert set(rest) <= {*world.home.glob("*/*")}
    assert answer["freed_count"] == 0
    assert {warning["code"] for warning in answer["warnings"]} == {"store-record-unreadable"}
    assert any(str(where.name) in warning["where"] for warning in answer["warnings"])


def test_a_lock_in_sight_that_cannot_be_read_frees_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    garbage = world.plant("garbage")
    monkeypatch.chdir(world.project.folder)
    world.project.lock.write_text("<<<<<<< ours\n")
    (warning,) = world.gc()["warnings"]
    assert warning["where"] == "stacks/pylock.demo-app.toml"
    assert garbage in world.blobs()


def test_a_recipe_that_cannot_be_read_keeps_the_mirrors_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(world.env)
    monkeypatch.chdir(world.project.folder)
    world.project.lock.unlink()
    world.project.recipe.write_text("[stack")
    world.gc()
    assert world.blobs() == set()
    assert len(list((world.home / "git").iterdir())) == 1


# --- what is in progress ---


def hold(world: World, kind: str, what: str = "") -> subprocess.Popen[str]:
    """Hold a lock in another process until its stdin is closed."""
    made = {"store": "using(store)", "blob": f"store.lock({what!r})", "work": f"FolderLock(Path({what!r}))"}[kind]
    code = (
        "import sys\nfrom pathlib import Path\nfrom envsmith.tools.files import FolderLock\n"
        "from envsmith.tools.store import Store\nfrom envsmith.tools.storeusage import using\n"
        f"store = Store(Path(sys.argv[1]))\nwith {made}:\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(world.home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def let_go(child: subprocess.Popen[str]) -> None:
    child.communicate()
    assert child.returncode == 0


class Waiting(Screen):
    """Lets the other process go on as soon as it hears that it is waited for."""

    def __init__(self, world: World, child: subprocess.Popen[str], sha256: str) -> None:
        super().__init__(quiet=True)
        self.world, self.child, self.sha256, self.heard = world, child, sha256, ""

    def message(self, text: str) -> None:
        self.heard += text
        assert self.sha256 in self.world.blobs()
        let_go(self.child)


def test_a_collection_waits_for_whoever_uses_the_store(world: World) -> None:
    garbage = world.plant("garbage")
    child = hold(world, "store")
    assert garbage not in kept_blobs(world)  # a dry run need not wait, and does not doubt
    screen = Waiting(world, child, garbage)
    world.gc(screen=screen)
    assert "waiting for another process" in screen.heard
    assert garbage not in world.blobs()


def kept_blobs(world: World) -> set[str]:
    return {row["digest"] for row in world.list()["blobs"] if row["kept_by"]}


def test_many_may_use_the_store_at_once(world: World) -> None:
    first, second = hold(world, "store"), hold(world, "store")
    let_go(first)
    let_go(second)


def test_a_blob_that_is_being_made_stays(world: World) -> None:
    garbage, partial = world.plant("garbage"), world.store.partial("a" * 64)
    partial.write_text("half")
    age(partial)
    children = [hold(world, "blob", garbage), hold(world, "blob", "a" * 64)]
    world.gc()
    assert garbage in world.blobs()
    assert partial.exists()
    for child in children:
        let_go(child)
    world.gc()
    assert garbage not in world.blobs()
    assert not partial.exists()


def test_a_run_that_holds_no_lock_of_the_store_is_seen_by_its_work_folder(world: World) -> None:
    garbage, work = world.plant("garbage"), world.home / "tmp" / "build-x"
    work.mkdir(parents=True)
    age(work)
    child = hold(world, "work", str(work))
    answer = world.gc()
    assert [warning["code"] for warning in answer["warnings"]] == ["store-busy"]
    assert garbage in world.blobs()
    assert work.is_dir()
    let_go(child)
    world.gc()
    assert garbage not in world.blobs()
    assert not work.exists()


KILLED = """
import os, signal, sys
from envsmith.commands.screen import Screen
from envsmith.commands.store_verbs import collect
left = int(sys.argv[1])
def hook(event, args):
    global left
    if event in ("os.remove", "os.rename", "os.rmdir") and os.environ["ENVSMITH_HOME"] in str(args[0]):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
collect(dry_run=False, keep_days=None, environ=os.environ, screen=Screen(quiet=True))
"""


def test_a_collection_that_is_killed_anywhere_leaves_the_store_whole(world: World) -> None:
    for content in ("one", "two", "three"):
        world.plant(content)
    stale = mirror_folder(world.store, "https://example.org/x.git")
    shutil.copytree(next((world.home / "git").iterdir()), stale)
    shutil.rmtree(stale / "refs" / "envsmith")
    age(stale)
    used = {row["digest"] for row in world.list()["blobs"] if any("env" in by for by in row["kept_by"])}
    codes = []
    for after in (1, 4, 2):
        codes.append(subprocess.run([sys.executable, "-c", KILLED, str(after)], check=False).returncode)
        assert used <= world.blobs()
        assert all(world.store.verify(sha256) for sha256 in world.blobs())
        assert not stale.exists() or (stale / "HEAD").is_file()
    assert codes == [-9, -9, -9]
    age_all(world.home)
    world.gc()
    assert world.gc()["freed_count"] == 0
    assert world.blobs() == used
    assert list((world.home / "tmp").iterdir()) == []


# --- what lies elsewhere, and other kinds ---


def test_links_are_neither_followed_nor_removed(world: World, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "file").write_text("precious")
    places = [
        world.home / "blobs" / "sha256" / ("a" * 64), world.home / "git" / ("b" * 16), world.home / "tmp" / "x",
        world.home / "bundles" / ("c" * 64), world.home / "facts" / f"{'d' * 64}.json",
        world.home / "partial" / f"{'e' * 64}.part",
    ]  # fmt: skip
    for number, place in enumerate(places):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(outside / "file" if number % 2 == 0 else outside / "folder")
        age(place)
    inner = world.home / "git" / ("f" * 16)
    inner.mkdir()
    (inner / "link").symlink_to(outside / "folder")
    age(inner)
    answer = world.gc()
    assert (outside / "file").read_text() == "precious"
    assert (outside / "folder").is_dir()
    assert all(place.is_symlink() for place in places)
    assert {warning["code"] for warning in answer["warnings"]} == {"store-entry-foreign"}
    assert not inner.exists()


def test_what_envsmith_did_not_put_there_is_left_alone(world: World) -> None:
    notes = [world.home / "blobs" / "sha256" / "README", world.home / "git" / "mine", world.home / "bundles" / "mine"]
    notes[2].parent.mkdir()
    for note in notes:
        note.write_text("mine")
        age(note)
    assert len(world.gc()["warnings"]) == 3
    assert all(note.exists() for note in notes)


def test_old_leavings_go_and_young_ones_stay(world: World) -> None:
    places = {
        "partial/" + "a" * 64 + ".part": "partial", "partial/.envsmith-x": "leftover", "differing/x.whl": "aside",
        "blobs/quarantine/" + "b" * 64 + ".x": "aside", "metadata/" + "c" * 64: "note", "tmp/file": "leftover",
        "locks/" + "d" * 64 + ".lock": "leftover", "tmp/build-1/x": "leftover", ".envsmith-y": "leftover",
    }  # fmt: skip
    paths = [world.home / place for place in places]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    world.gc()
    assert all(path.exists() for path in paths)
    for path in paths:
        age(path)
    age(world.home / "tmp")
    answer = world.gc()
    assert not any(path.exists() for path in paths)
    expected = {kind: list(places.values()).count(kind) for kind in ("partial", "leftover", "aside", "note")}
    assert {kind: answer["freed"][kind]["count"] for kind in expected} == expected


def test_what_was_just_set_aside_stays_for_whoever_looks(world: World) -> None:
    aside = world.home / "blobs" / "quarantine" / f"{'b' * 64}.{time.time_ns()}"
    aside.parent.mkdir()
    aside.write_text("wrong")
    age(aside, hours=500)
    world.gc()
    assert aside.exists()


def test_a_bundle_stays_with_its_blobs_while_an_env_of_it_stands(world: World) -> None:
    (wheel, source) = world.plant("wheel-of-bundle"), world.plant("source-of-bundle")
    lock = hashlib.sha256(world.beside("pylock.toml").read_bytes()).hexdigest()
    commit = "5" * 40
    manifest = json.dumps({"layers": [f"sha256:{lock}", f"sha256:{wheel}", f"sources/x@{commit}.bundle"]}).encode()
    folder = world.home / "bundles" / hashlib.sha256(manifest).hexdigest()
    (folder / "stacks").mkdir(parents=True)
    (folder / "manifest.json").write_bytes(manifest)
    (folder / "stacks" / "x.toml").write_text("x")
    index = world.home / "sources" / f"{commit}.json"
    index.parent.mkdir()
    index.write_text(json.dumps({"sha256": source, "tree": "6" * 40}))
    age(folder)
    age(index)
    world.gc()
    assert {wheel, source} <= world.blobs()
    assert f"bundle {folder.name[:12]}" in next(r for r in world.list()["blobs"] if r["digest"] == wheel)["kept_by"]
    shutil.rmtree(world.env)
    world.gc()
    assert world.blobs() == set()
    assert not folder.exists()
    assert not index.exists()


def test_a_mirror_that_no_source_in_use_comes_from_goes_with_its_history(world: World, tmp_path: Path) -> None:
    make_repo(tmp_path / "other", {"x": b"x"})
    used = next((world.home / "git").iterdir())
    stale = mirror_folder(world.store, "https://example.org/x.git")
    shutil.copytree(tmp_path / "other" / ".git", stale)
    shutil.copytree(stale, stale.with_name(f"{stale.name}.history"))
    shutil.copytree(used, used.with_name(f"{used.name}.history"))
    age(world.home / "git")
    world.gc()
    assert {path.name for path in (world.home / "git").iterdir()} == {used.name, f"{used.name}.history"}


# --- list ---


def test_list_names_every_blob_with_its_file_and_its_keepers(world: World) -> None:
    garbage = world.plant("garbage")
    before = sorted(world.home.rglob("*"))
    data = world.list()
    assert sorted(world.home.rglob("*")) == before
    rows = {row["digest"]: row for row in data["blobs"]}
    assert set(rows) == world.blobs()
    assert rows[garbage] == {
        "digest": garbage, "size": len("garbage"), "name": "garbage-1.0-py3-none-any.whl", "kept_by": [],
    }  # fmt: skip
    kept_rows = [row for row in rows.values() if row["kept_by"]]
    assert all(row["kept_by"][0].startswith("env demo/app (") for row in kept_rows)
    assert data["uv_cache_bytes"] > 0
    text = list_store(environ=world.environ, screen=Screen(quiet=True)).text
    assert "env demo/app" in text
    assert "nobody" in text


# --- afterwards ---


def test_after_a_collection_the_env_verifies_unread_stands_and_can_be_built_again_offline(
    template: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, project = template, template.project
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("ENVSMITH_HOME", str(world.home))
    env = {"ENVSMITH_HOME": str(world.home)}
    # An unpacked wheel that nothing points at any more, as after an update of uv; it shares a library with the env.
    shared = project.site / "beta" / "core.py"
    archive = world.home / "uv" / "archive-v0" / "dangling"
    archive.mkdir()
    os.link(shared, archive / "library.so")
    project.verify(env=env)
    ctime = shared.stat().st_ctime_ns
    world.gc()
    assert shared.stat().st_ctime_ns != ctime
    assert not archive.exists()
    said = project.verify(env=env)
    assert (said.code, said.json["data"]["envs"][0]["hashed_bytes"]) == (0, 0)
    assert project.build(env=env).json["data"]["envs"][0]["state"] == "unchanged"
    shutil.rmtree(world.home / "uv")
    again = project.build("--offline", "--rebuild", env=env)
    assert again.code == 0, again.err
    assert again.json["data"]["envs"][0]["state"] == "built"
