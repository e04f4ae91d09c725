"""Git bundles with real git: what they hold, that their bytes are those of the commit, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from envsmith.commands.screen import Screen
from envsmith.commands.sourcebundle import SourceBundle, source_bundle
from envsmith.commands.sources import Origin
from envsmith.commands.supplies import Supplies, mirror_folder, open_supplies
from envsmith.commands.workspace import open_stack
from envsmith.errors import EnvsmithError, InputError, IntegrityError, SupplyError
from envsmith.lock import LockedSource
from envsmith.tools import git as door
from envsmith.tools.files import sha256_file
from envsmith.tools.gitbundle import BUNDLE_REF, bundle_head, mirror_history, prove_bundle, write_bundle
from tests.support.repos import commit, git, make_repo, tree_id
from tests.unit.test_lock import VERL

ROOT = Path(__file__).parents[2]
#: Clones by source name for the tests marked `sources`, taken before the tests hide them from the code under test.
CLONES = {
    "verl": os.environ.get("ENVSMITH_TEST_VERL", ""),
    "llamafactory": os.environ.get("ENVSMITH_TEST_LLAMAFACTORY", ""),
}
#: Bytes that no compression makes small, the same in every run.
HUGE = b"".join(bytes([n * n % 251, n % 239, n // 7 % 256]) for n in range(200_000))
URL = "https://host.invalid/group/demo"


@dataclass(frozen=True, kw_only=True, slots=True)
class Upstream:
    """A repository, the commit that a lock names, and that commit's tree."""

    path: Path
    commit: str
    tree: str


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Upstream:
    """A history with a merge, tags, a submodule, a link, odd names and a huge file that was removed later."""
    path = tmp_path_factory.mktemp("upstream") / "demo"
    text = "".join(f"line {n}\n" for n in range(400))
    make_repo(path, {"pkg/f.py": text, "pkg/__init__.py": "", "run.sh": "#!/bin/sh\n", "h\u00e9 llo.txt": "x"})
    (path / "run.sh").chmod(0o755)
    (path / "link").symlink_to("run.sh")
    commit(path, {"huge.bin": HUGE}, "huge")
    git(path, "tag", "--annotate", "--message", "one", "v1")
    (path / "huge.bin").unlink()
    commit(path, {"pkg/f.py": text.replace("line 7\n", "line seven\n")}, "removed")
    git(path, "checkout", "--quiet", "-b", "side", "HEAD~1")
    for n in range(20):
        commit(path, {"pkg/side.py": text + f"side {n}\n"}, f"side {n}")
    git(path, "checkout", "--quiet", "main")
    git(path, "merge", "--quiet", "--no-ff", "--message", "merged", "side")
    git(path, "update-index", "--add", "--cacheinfo", f"160000,{'5' * 40},third/party")
    git(path, "commit", "--quiet", "--message", "submodule")
    locked = git(path, "rev-parse", "HEAD")
    git(path, "tag", "v2")
    git(path, "commit", "--quiet", "--allow-empty", "--message", "later than the lock")
    return Upstream(path=path, commit=locked, tree=tree_id(path, locked))


@pytest.fixture(scope="module")
def bundle(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of the locked commit, made by way of a mirror."""
    folder = tmp_path_factory.mktemp("bundle")
    mirror_history(upstream.path, upstream.commit, folder / "history")
    write_bundle(folder / "history", upstream.commit, folder / "demo.bundle")
    return folder / "demo.bundle"


def code_of(error: pytest.ExceptionInfo[EnvsmithError]) -> str:
    (problem,) = error.value.problems
    return problem.code


def history_of(repository: Path, commitish: str) -> str:
    return git(repository, "rev-list", "--objects", commitish)


# what a bundle holds


def test_plain_git_clones_a_bundle_to_the_commit_with_its_whole_history(
    upstream: Upstream, bundle: Path, tmp_path: Path
) -> None:
    git(tmp_path, "clone", "--quiet", str(bundle), "clone")
    clone = tmp_path / "clone"
    assert git(clone, "rev-parse", "HEAD") == upstream.commit
    assert git(clone, "branch", "--show-current") == "locked"
    assert history_of(clone, "HEAD") == history_of(upstream.path, upstream.commit)
    assert git(clone, "fsck", "--full", "--strict") == ""
    assert (clone / "link").readlink() == Path("run.sh")
    assert git(clone, "ls-tree", "HEAD", "third/party").startswith("160000")


def test_a_bundle_names_the_commit_and_carries_nothing_that_came_later(
    upstream: Upstream, bundle: Path, tmp_path: Path
) -> None:
    assert bundle_head(bundle) == {"HEAD": upstream.commit, BUNDLE_REF: upstream.commit}
    git(tmp_path, "clone", "--quiet", "--bare", str(bundle), "clone")
    listed = git(tmp_path / "clone", "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").splitlines()
    expected = {line.split(" ")[0] for line in history_of(upstream.path, upstream.commit).splitlines()}
    assert set(listed) == expected
    assert git(tmp_path / "clone", "tag") == ""


def test_a_bundle_passes_gits_own_check_and_the_proof(upstream: Upstream, bundle: Path, tmp_path: Path) -> None:
    git(upstream.path, "bundle", "verify", "--quiet", str(bundle))
    prove_bundle(bundle, upstream.commit, upstream.tree, tmp_path / "proof")


def test_a_bundle_without_a_suffix_is_a_source_to_lock_and_build_from(
    upstream: Upstream, bundle: Path, tmp_path: Path
) -> None:
    blob = tmp_path / sha256_file(bundle)
    shutil.copy(bundle, blob)
    door.mirror(blob, upstream.commit, tmp_path / "mirror")
    door.export_commit(tmp_path / "mirror", upstream.commit, tmp_path / "work")
    assert door.tree_id(tmp_path / "work") == upstream.tree
    mirror_history(blob, upstream.commit, tmp_path / "history")
    write_bundle(tmp_path / "history", upstream.commit, tmp_path / "again.bundle")
    assert (tmp_path / "again.bundle").read_bytes() == bundle.read_bytes()


# the same commit gives the same bytes


def one_deep_pack(copy: Path) -> None:
    git(copy, "repack", "-adf", "--quiet", "--window=250", "--depth=1")


def bitmaps_and_graph(copy: Path) -> None:
    git(copy, "repack", "-ad", "--quiet", "--write-bitmap-index")
    git(copy, "commit-graph", "write", "--reachable")
    git(copy, "multi-pack-index", "write")


def loose_objects(copy: Path) -> None:
    (pack,) = (copy / "objects" / "pack").glob("*.pack")
    content = pack.read_bytes()
    shutil.rmtree(copy / "objects" / "pack")
    subprocess.run(("git", "unpack-objects", "-q"), cwd=copy, input=content, check=True)
    assert not (copy / "objects" / "pack").exists()


def many_packs(copy: Path) -> None:
    """Packs that overlap, every object stored as it is."""
    loose_objects(copy)
    (copy / "objects" / "pack").mkdir()
    command = ("git", "-c", "pack.compression=0", "pack-objects", "-q", "--revs", "--depth=0", "objects/pack/pack")
    for step in ("HEAD~3", "HEAD~1", "HEAD"):
        revision = f"{git(copy, 'rev-parse', step)}\n".encode()
        subprocess.run(command, cwd=copy, input=revision, check=True, capture_output=True)
    git(copy, "prune-packed", "--quiet")


def own_settings(copy: Path) -> None:
    for key, value in {
        "pack.window": "1",
        "pack.depth": "0",
        "pack.compression": "0",
        "core.compression": "9",
        "core.bigFileThreshold": "1",
        "pack.packSizeLimit": "1m",
        "pack.threads": "2",
    }.items():
        git(copy, "config", key, value)


def more_refs(copy: Path) -> None:
    for n, name in enumerate(git(copy, "rev-list", "HEAD").splitlines()):
        git(copy, "update-ref", f"refs/tags/t{n}", name)
    git(copy, "replace", "HEAD", "HEAD~1")


SHAPES: tuple[Callable[[Path], None], ...] = (
    one_deep_pack,
    bitmaps_and_graph,
    loose_objects,
    many_packs,
    own_settings,
    more_refs,
)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_the_bytes_are_those_of_the_commit_however_its_objects_lie_in_the_repository(
    upstream: Upstream, bundle: Path, tmp_path: Path, shape: Callable[[Path], None]
) -> None:
    git(tmp_path, "clone", "--quiet", "--bare", f"file://{upstream.path}", "copy")
    shape(tmp_path / "copy")
    write_bundle(tmp_path / "copy", upstream.commit, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == bundle.read_bytes()
    prove_bundle(tmp_path / "b", upstream.commit, upstream.tree, tmp_path / "proof")


def test_gits_own_bundle_would_follow_the_packs_of_the_repository(upstream: Upstream, tmp_path: Path) -> None:
    made = []
    for shape in (one_deep_pack, loose_objects):
        copy = tmp_path / shape.__name__
        git(tmp_path, "clone", "--quiet", "--bare", f"file://{upstream.path}", copy.name)
        shape(copy)
        git(copy, "-c", "pack.threads=1", "bundle", "create", "--quiet", "x.bundle", "main")
        made.append((copy / "x.bundle").read_bytes())
    assert made[0] != made[1]


def test_the_users_git_settings_change_no_byte(
    upstream: Upstream, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home" / ".gitconfig").write_text("[pack]\n window = 1\n compression = 0\n[core]\n compression = 0\n")
    monkeypatch.setenv("GIT_DEFAULT_HASH", "sha256")
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    write_bundle(upstream.path, upstream.commit, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == bundle.read_bytes()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(upstream: Upstream, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "b").write_text("old")
    with pytest.raises(SupplyError):
        write_bundle(upstream.path, "a" * 40, folder / "b")
    assert [path.name for path in folder.iterdir()] == ["b"]
    assert (folder / "b").read_text() == "old"


# whole histories


def test_a_history_comes_whole_and_the_next_commit_needs_only_what_is_new(upstream: Upstream, tmp_path: Path) -> None:
    early = git(upstream.path, "rev-parse", f"{upstream.commit}~2")
    for name in (early, upstream.commit):
        mirror_history(upstream.path, name, tmp_path / "m")
        assert history_of(tmp_path / "m", name) == history_of(upstream.path, name)
    mirror_history(tmp_path / "gone", upstream.commit, tmp_path / "m")
    assert git(tmp_path / "m", "rev-parse", "--is-shallow-repository") == "false"


def test_a_commit_that_no_ref_names_any_more_is_had_by_its_id(tmp_path: Path) -> None:
    old = make_repo(tmp_path / "u", {"a": "1"})
    git(tmp_path / "u", "commit", "--quiet", "--amend", "--message", "rewritten")
    mirror_history(tmp_path / "u", old, tmp_path / "m")
    assert door.holds(tmp_path / "m", old)


@pytest.fixture
def old_server(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A server that talks git's first protocol, in which only what a ref names can be asked for."""
    (tmp_path / "old-transport").write_text(
        '#!/bin/sh\n[ "$1" = -G ] && exit 1\nshift\nexec env -u GIT_PROTOCOL sh -c "$*"\n'
    )
    (tmp_path / "old-transport").chmod(0o755)
    monkeypatch.setenv("GIT_SSH", str(tmp_path / "old-transport"))
    return f"ssh://host.invalid{upstream.path}"


def test_a_server_that_serves_no_commit_ids_is_asked_for_its_branches_and_tags(
    upstream: Upstream, old_server: str, tmp_path: Path
) -> None:
    earlier = git(upstream.path, "rev-parse", f"{upstream.commit}~1")
    mirror_history(old_server, earlier, tmp_path / "m")
    assert git(tmp_path / "m", "rev-parse", "refs/source/tags/v2") == upstream.commit
    assert history_of(tmp_path / "m", earlier) == history_of(upstream.path, earlier)
    with pytest.raises(SupplyError) as caught:
        mirror_history(old_server, "a" * 40, tmp_path / "m")
    assert code_of(caught) == "commit-missing"


def test_a_shallow_source_behind_such_a_server_is_refused(upstream: Upstream, old_server: str, tmp_path: Path) -> None:
    source = shallow(upstream, tmp_path)
    url = old_server.replace(str(upstream.path), str(source))
    with pytest.raises(SupplyError) as caught:
        mirror_history(url, git(source, "rev-parse", "HEAD~1"), tmp_path / "m")
    assert code_of(caught) == "source-shallow"


def test_a_bundle_whose_tip_is_a_later_commit_serves_an_earlier_one(upstream: Upstream, tmp_path: Path) -> None:
    git(upstream.path, "bundle", "create", "--quiet", str(tmp_path / "u"), "main")
    mirror_history(tmp_path / "u", upstream.commit, tmp_path / "m")
    assert history_of(tmp_path / "m", upstream.commit) == history_of(upstream.path, upstream.commit)


def shallow(upstream: Upstream, folder: Path) -> Path:
    git(folder, "clone", "--quiet", "--depth=2", f"file://{upstream.path}", "shallow")
    return folder / "shallow"


def shallow_bundle(upstream: Upstream, folder: Path) -> Path:
    git(shallow(upstream, folder), "bundle", "create", "--quiet", "../made", "main")
    return folder / "made"


def bundle_of_the_last_commits(upstream: Upstream, folder: Path) -> Path:
    git(upstream.path, "bundle", "create", "--quiet", str(folder / "last"), "main~2..main")
    return folder / "last"


def grafted(upstream: Upstream, folder: Path) -> Path:
    git(folder, "clone", "--quiet", "--bare", f"file://{upstream.path}", "grafted")
    (folder / "grafted" / "info").mkdir(exist_ok=True)
    (folder / "grafted" / "info" / "grafts").write_text(f"{upstream.commit}\n")
    return folder / "grafted"


@pytest.mark.parametrize(
    "make", [shallow, shallow_bundle, bundle_of_the_last_commits, grafted], ids=lambda make: make.__name__
)
def test_a_source_without_the_whole_history_is_refused(
    upstream: Upstream, tmp_path: Path, make: Callable[[Upstream, Path], Path]
) -> None:
    source = make(upstream, tmp_path)
    with pytest.raises(SupplyError) as caught:
        mirror_history(source, upstream.commit, tmp_path / "m")
    assert code_of(caught) == "source-shallow"
    assert caught.value.problems[0].where == str(source)
    assert not door.holds(tmp_path / "m", upstream.commit)
    mirror_history(upstream.path, upstream.commit, tmp_path / "m")
    assert history_of(tmp_path / "m", upstream.commit) == history_of(upstream.path, upstream.commit)


def test_what_the_hint_for_a_shallow_source_says_works(upstream: Upstream, tmp_path: Path) -> None:
    source = shallow(upstream, tmp_path)
    with pytest.raises(SupplyError, match="git fetch --unshallow"):
        mirror_history(source, upstream.commit, tmp_path / "m")
    git(source, "fetch", "--quiet", "--unshallow")
    mirror_history(source, upstream.commit, tmp_path / "m")
    assert door.holds(tmp_path / "m", upstream.commit)


def partial(upstream: Upstream, folder: Path, *, filtered: str = "blob:none", checkout: bool = False) -> Path:
    git(upstream.path, "config", "uploadpack.allowFilter", "true")
    kind = ("--bare",) if not checkout else ()
    git(folder, "clone", "--quiet", *kind, f"--filter={filtered}", f"file://{upstream.path}", "partial")
    return folder / "partial"


@pytest.mark.parametrize("filtered", ["blob:none", "tree:0"])
@pytest.mark.parametrize("checkout", [False, True])
def test_a_partial_clone_is_refused_and_downloads_nothing_meanwhile(
    upstream: Upstream, tmp_path: Path, filtered: str, checkout: bool
) -> None:
    source = partial(upstream, tmp_path, filtered=filtered, checkout=checkout)
    before = sorted(source.rglob("*.pack"))
    with pytest.raises(SupplyError) as caught:
        mirror_history(source, upstream.commit, tmp_path / "m")
    assert code_of(caught) == "source-objects-missing"
    assert sorted(source.rglob("*.pack")) == before


def test_a_partial_clone_that_lacks_nothing_is_a_source(upstream: Upstream, tmp_path: Path) -> None:
    source = partial(upstream, tmp_path, filtered="blob:limit=1g")
    mirror_history(source, upstream.commit, tmp_path / "m")
    assert history_of(tmp_path / "m", upstream.commit) == history_of(upstream.path, upstream.commit)


def test_a_partial_clone_that_lacks_the_commit_too_says_that(upstream: Upstream, tmp_path: Path) -> None:
    with pytest.raises(SupplyError) as caught:
        mirror_history(partial(upstream, tmp_path), "a" * 40, tmp_path / "m")
    assert code_of(caught) == "commit-missing"


def test_a_file_that_is_missing_from_a_repository_is_noticed(upstream: Upstream, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--bare", f"file://{upstream.path}", "copy")
    loose_objects(tmp_path / "copy")
    oid = git(tmp_path / "copy", "rev-parse", f"{upstream.commit}:pkg/f.py")
    (tmp_path / "copy" / "objects" / oid[:2] / oid[2:]).unlink()
    for act in (mirror_history, write_bundle):
        with pytest.raises(SupplyError) as caught:
            act(tmp_path / "copy", upstream.commit, tmp_path / act.__name__)
        assert code_of(caught) == "source-objects-missing"
    assert not (tmp_path / "write_bundle").exists()


@pytest.mark.parametrize(
    ("make", "code"), [(shallow, "source-shallow"), (partial, "source-objects-missing")], ids=["shallow", "partial"]
)
def test_no_bundle_is_written_of_a_repository_that_holds_a_part(
    upstream: Upstream, tmp_path: Path, make: Callable[[Upstream, Path], Path], code: str
) -> None:
    with pytest.raises(SupplyError) as caught:
        write_bundle(make(upstream, tmp_path), upstream.commit, tmp_path / "b")
    assert code_of(caught) == code
    assert not (tmp_path / "b").exists()


def test_a_mirror_one_commit_deep_makes_no_bundle(upstream: Upstream, tmp_path: Path) -> None:
    door.mirror(f"file://{upstream.path}", upstream.commit, tmp_path / "m")
    with pytest.raises(SupplyError) as caught:
        write_bundle(tmp_path / "m", upstream.commit, tmp_path / "b")
    assert code_of(caught) == "source-shallow"


def test_a_commit_that_the_source_lacks_is_named_with_the_source(upstream: Upstream, tmp_path: Path) -> None:
    tag = git(upstream.path, "rev-parse", "v1")
    for missing in ("a" * 40, tag):
        for act in (mirror_history, write_bundle):
            with pytest.raises(SupplyError) as caught:
                act(upstream.path, missing, tmp_path / act.__name__)
            assert code_of(caught) == "commit-missing"
            assert caught.value.problems[0].where == str(upstream.path)


def test_a_source_that_is_not_there_is_unreachable_and_its_password_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(SupplyError) as caught:
        mirror_history("https://user:s3cret@127.0.0.1:9/x.git?private_token=t0ken", "a" * 40, tmp_path / "m")
    assert code_of(caught) == "source-unreachable"
    assert not any(secret in str(caught.value) for secret in ("s3cret", "user:", "t0ken"))


@pytest.mark.parametrize("name", ["main", "1bf9d2d", "A" * 40, "--upload-pack=x"])
def test_only_a_full_commit_id_is_taken(upstream: Upstream, tmp_path: Path, name: str) -> None:
    for act in (mirror_history, write_bundle):
        with pytest.raises(InputError) as caught:
            act(upstream.path, name, tmp_path / act.__name__)
        assert code_of(caught) == "commit-abbreviated"


# tampered bundles


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """A bundle taken apart."""

    lines: tuple[bytes, ...]
    pack: bytes

    def whole(self) -> bytes:
        return b"\n".join(self.lines) + b"\n\n" + self.pack


def parts_of(bundle: Path) -> Parts:
    head, _, pack = bundle.read_bytes().partition(b"\n\n")
    return Parts(lines=tuple(head.split(b"\n")), pack=pack)


def with_lines(parts: Parts, lines: Sequence[bytes]) -> bytes:
    return replace(parts, lines=tuple(lines)).whole()


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


#: Each kind takes the parts, the id of an earlier commit that the pack holds, and gives other bytes.
TAMPERED: dict[str, Callable[[Parts, str], bytes]] = {
    "a bit of the signature": lambda p, _: flipped(p.whole(), 2),
    "a bit of a ref's id": lambda p, _: flipped(p.whole(), len(p.lines[0]) + 5),
    "a bit of a ref's name": lambda p, _: flipped(p.whole(), len(b"\n".join(p.lines)) - 1),
    "a bit of the pack's head": lambda p, _: p.whole()[: -len(p.pack)] + flipped(p.pack, 11),
    "a bit in the middle": lambda p, _: flipped(p.whole(), len(p.whole()) // 2),
    "a bit of the trailer": lambda p, _: flipped(p.whole(), len(p.whole()) - 1),
    "cut in the head": lambda p, _: p.whole()[:60],
    "cut after the head": lambda p, _: p.whole()[: -len(p.pack)],
    "cut in the pack": lambda p, _: p.whole()[: -len(p.pack) // 2],
    "cut by one byte": lambda p, _: p.whole()[:-1],
    "empty": lambda p, _: b"",
    "a byte appended": lambda p, _: p.whole() + b"\0",
    "both refs name another commit": lambda p, oid: with_lines(
        p, [p.lines[0], *(oid.encode() + line[40:] for line in p.lines[1:])]
    ),
    "one ref names another commit": lambda p, oid: with_lines(p, [*p.lines[:2], oid.encode() + p.lines[2][40:]]),
    "refs name an object that is not there": lambda p, _: with_lines(
        p, [p.lines[0], *(b"a" * 40 + line[40:] for line in p.lines[1:])]
    ),
    "a prerequisite that is not there": lambda p, _: with_lines(p, [p.lines[0], b"-" + b"a" * 40, *p.lines[1:]]),
    "a prerequisite that it holds": lambda p, oid: with_lines(
        p, [p.lines[0], b"-" + oid.encode() + b" x", *p.lines[1:]]
    ),
    "a third ref": lambda p, oid: with_lines(p, [*p.lines, oid.encode() + b" refs/heads/more"]),
    "a ref twice": lambda p, oid: with_lines(p, [*p.lines, oid.encode() + p.lines[1][40:]]),
    "no refs": lambda p, _: with_lines(p, p.lines[:1]),
    "version 3": lambda p, _: with_lines(p, [b"# v3 git bundle", b"@object-format=sha1", *p.lines[1:]]),
    "a head without an end": lambda p, _: p.lines[0] + b"\n" + b"x" * (1 << 20),
    "a file that leads to a repository": lambda p, _: b"gitdir: /nonexistent/.git\n",
}


@pytest.mark.parametrize("kind", TAMPERED)
def test_a_bundle_that_was_tampered_with_is_broken(upstream: Upstream, bundle: Path, tmp_path: Path, kind: str) -> None:
    earlier = git(upstream.path, "rev-parse", f"{upstream.commit}~1")
    content = TAMPERED[kind](parts_of(bundle), earlier)
    assert content != bundle.read_bytes()
    (tmp_path / "b").write_bytes(content)
    with pytest.raises(IntegrityError) as caught:
        prove_bundle(tmp_path / "b", upstream.commit, upstream.tree, tmp_path / "proof")
    assert code_of(caught) == "source-bundle-broken"


@pytest.mark.parametrize("left_out", ["^{commit}~1", ":pkg/f.py", "^{tree}"])
def test_a_bundle_whose_pack_lacks_an_object_is_broken(
    upstream: Upstream, bundle: Path, tmp_path: Path, left_out: str
) -> None:
    oid = git(upstream.path, "rev-parse", f"{upstream.commit}{left_out}")
    listed = [line.split(" ")[0] for line in history_of(upstream.path, upstream.commit).splitlines()]
    assert oid in listed
    kept = "".join(f"{name}\n" for name in listed if name != oid)
    made = subprocess.run(
        ("git", "pack-objects", "-q", "--stdout"),
        cwd=upstream.path,
        input=kept.encode(),
        check=True,
        capture_output=True,
    )
    (tmp_path / "b").write_bytes(replace(parts_of(bundle), pack=made.stdout).whole())
    with pytest.raises(IntegrityError) as caught:
        prove_bundle(tmp_path / "b", upstream.commit, upstream.tree, tmp_path / "proof")
    assert code_of(caught) == "source-bundle-broken"


def test_a_bundle_of_another_tree_or_commit_is_broken(upstream: Upstream, bundle: Path, tmp_path: Path) -> None:
    for n, (name, tree) in enumerate([(upstream.commit, "a" * 40), ("a" * 40, upstream.tree)]):
        with pytest.raises(IntegrityError) as caught:
            prove_bundle(bundle, name, tree, tmp_path / str(n))
        assert code_of(caught) == "source-bundle-broken"


def test_the_head_alone_says_that_a_bundle_needs_more_or_names_a_ref_again(bundle: Path, tmp_path: Path) -> None:
    parts = parts_of(bundle)
    for line, words in ((b"-" + b"a" * 40 + b" x", "does not carry"), (parts.lines[1], "names one again")):
        (tmp_path / "b").write_bytes(with_lines(parts, [*parts.lines, line]))
        with pytest.raises(IntegrityError, match=words) as caught:
            bundle_head(tmp_path / "b")
        assert code_of(caught) == "source-bundle-broken"


def test_the_head_of_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(IntegrityError) as caught:
            bundle_head(path)
        assert code_of(caught) == "source-bundle-broken"
    with pytest.raises(SupplyError) as missing:
        bundle_head(tmp_path / "none")
    assert code_of(missing) == "file-missing"


# bundles in the store


def locked(upstream: Upstream, **changes: object) -> LockedSource:
    source = replace(VERL, name="demo", commit=upstream.commit, base_tree=upstream.tree, series=())
    return replace(source, **changes)  # type: ignore[arg-type]


def supplies(place: object = None, *, offline: bool = False, environ: Mapping[str, str] | None = None) -> Supplies:
    named = (f"demo={place}",) if place else ()
    return open_supplies(
        os.environ if environ is None else environ,
        stacks=None,
        screen=Screen(quiet=True),
        offline=offline,
        sources=named,
    )


@pytest.fixture(scope="module")
def full_store(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SourceBundle]:
    home = tmp_path_factory.mktemp("store")
    given = supplies(upstream.path, environ={"ENVSMITH_HOME": str(home), "HOME": str(home)})
    return home, source_bundle(locked(upstream), origin(upstream), given)


@pytest.fixture
def made(full_store: tuple[Path, SourceBundle]) -> SourceBundle:
    """The bundle that this test's store already has."""
    shutil.copytree(full_store[0], os.environ["ENVSMITH_HOME"], dirs_exist_ok=True)
    return full_store[1]


def origin(upstream: Upstream) -> Origin:
    return Origin(name="demo", git=URL, commit=upstream.commit)


def index_of(upstream: Upstream) -> Path:
    return supplies().store.home / "sources" / f"{upstream.commit}.json"


def test_a_source_becomes_a_blob_with_an_entry_that_finds_it_again(upstream: Upstream, bundle: Path) -> None:
    made = source_bundle(locked(upstream), origin(upstream), supplies(upstream.path, offline=True))
    assert made.title == f"sources/demo@{upstream.commit}.bundle"
    assert (made.sha256, made.size) == (sha256_file(bundle), bundle.stat().st_size)
    assert supplies().store.verify(made.sha256).read_bytes() == bundle.read_bytes()
    assert json.loads(index_of(upstream).read_text()) == {
        "git": door.version(), "sha256": made.sha256, "size": made.size, "tree": upstream.tree,
    }  # fmt: skip
    assert list((supplies().store.home / "tmp").iterdir()) == []


def test_a_bundle_in_the_store_is_reused_without_the_source_and_without_its_mirror(
    upstream: Upstream, made: SourceBundle
) -> None:
    shutil.rmtree(supplies().store.home / "git")
    assert source_bundle(locked(upstream), origin(upstream), supplies(offline=True)) == made


def overwrite(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)


SPOILED: dict[str, Callable[[Path, Path], object]] = {
    "index gone": lambda index, blob: index.unlink(),
    "index is no JSON": lambda index, blob: index.write_text("{"),
    "index is a list": lambda index, blob: index.write_text("[]"),
    "index is null": lambda index, blob: index.write_text("null"),
    "index names no digest": lambda index, blob: index.write_text(
        json.dumps({"sha256": "../x", "size": 1, "tree": json.loads(index.read_text())["tree"]})
    ),
    "index names another blob": lambda index, blob: index.write_text(
        json.dumps({**json.loads(index.read_text()), "sha256": "a" * 64})
    ),
    "index has another size": lambda index, blob: index.write_text(
        json.dumps({**json.loads(index.read_text()), "size": 1})
    ),
    "blob gone": lambda index, blob: blob.unlink(),
    "blob flipped": lambda index, blob: overwrite(blob, flipped(blob.read_bytes(), 500)),
    "blob cut": lambda index, blob: overwrite(blob, blob.read_bytes()[:-1]),
}


@pytest.mark.parametrize("kind", SPOILED)
def test_what_is_spoiled_in_the_store_is_made_again_with_the_same_bytes(
    upstream: Upstream, made: SourceBundle, kind: str
) -> None:
    SPOILED[kind](index_of(upstream), supplies().store.blob_path(made.sha256))
    assert source_bundle(locked(upstream), origin(upstream), supplies(offline=True)) == made
    supplies().store.verify(made.sha256)
    assert json.loads(index_of(upstream).read_text())["sha256"] == made.sha256


def test_an_entry_that_leads_to_the_bundle_of_another_commit_is_not_believed(
    upstream: Upstream, made: SourceBundle, tmp_path: Path
) -> None:
    other = git(upstream.path, "rev-parse", f"{upstream.commit}~1")
    write_bundle(upstream.path, other, tmp_path / "other")
    sha256 = supplies().store.add_file(tmp_path / "other")
    entry = {"sha256": sha256, "size": (tmp_path / "other").stat().st_size, "tree": upstream.tree}
    index_of(upstream).write_text(json.dumps(entry))
    assert source_bundle(locked(upstream), origin(upstream), supplies(offline=True)) == made


def test_a_damaged_mirror_is_fetched_again(upstream: Upstream, made: SourceBundle) -> None:
    mirror = mirror_folder(supplies().store, URL)
    (pack,) = mirror.with_name(f"{mirror.name}.history").glob("objects/pack/*.pack")
    overwrite(pack, flipped(pack.read_bytes(), pack.stat().st_size // 2))
    index_of(upstream).unlink()
    with pytest.raises(EnvsmithError):
        source_bundle(locked(upstream), origin(upstream), supplies(offline=True))
    assert source_bundle(locked(upstream), origin(upstream), supplies(upstream.path)) == made


def test_a_lock_with_another_tree_gets_no_bundle(upstream: Upstream, made: SourceBundle) -> None:
    assert supplies().store.has(made.sha256)
    with pytest.raises(IntegrityError) as caught:
        source_bundle(locked(upstream, base_tree="a" * 40), origin(upstream), supplies(upstream.path))
    assert code_of(caught) == "tree-differs"


def test_without_network_a_source_that_is_not_in_the_store_is_asked_for_by_name(upstream: Upstream) -> None:
    with pytest.raises(SupplyError, match="--source demo=PATH") as caught:
        source_bundle(locked(upstream), origin(upstream), supplies(offline=True))
    assert code_of(caught) == "offline-missing"


def test_a_mirror_of_the_settings_stands_for_the_source(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "home" / ".config" / "envsmith" / "envsmith.toml"
    place.parent.mkdir(parents=True)
    place.write_text(f'[mirrors]\n"https://host.invalid/group" = "{upstream.path.parent}"\n')
    made = source_bundle(locked(upstream), origin(upstream), supplies(offline=True))
    assert supplies().store.has(made.sha256, made.size)


def test_a_bundle_out_of_the_store_is_what_a_machine_without_network_builds_from(
    upstream: Upstream, made: SourceBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = supplies().store.blob_path(made.sha256)
    monkeypatch.setenv("ENVSMITH_HOME", str(tmp_path / "other store"))
    there = supplies(blob, offline=True)
    mirror = there.git_mirror("demo", URL, upstream.commit)
    door.export_commit(mirror, upstream.commit, tmp_path / "work")
    assert door.tree_id(tmp_path / "work") == upstream.tree
    assert source_bundle(locked(upstream), origin(upstream), there) == made


# the sources of the shipped stacks


@pytest.mark.sources
@pytest.mark.parametrize(("env", "name"), [("rl", "verl"), ("sft", "llamafactory")])
def test_the_history_of_a_shipped_source_becomes_the_same_bytes_from_two_packings(
    tmp_path: Path, env: str, name: str
) -> None:
    if not CLONES[name]:
        pytest.skip(f"ENVSMITH_TEST_{name.upper()} names no full clone")
    oid = open_stack(str(ROOT / "stacks" / "a100.toml")).stack.env[env].source[name].commit
    assert oid
    mirror_history(CLONES[name], oid, tmp_path / "one")
    mirror_history(CLONES[name], oid, tmp_path / "two")
    git(tmp_path / "one", "repack", "-adf", "--quiet", "--window=20")
    loose_objects(tmp_path / "two")
    for copy in ("one", "two"):
        write_bundle(tmp_path / copy, oid, tmp_path / f"{copy}.bundle")
    assert sha256_file(tmp_path / "one.bundle") == sha256_file(tmp_path / "two.bundle")
    prove_bundle(tmp_path / "one.bundle", oid, tree_id(tmp_path / "one", oid), tmp_path / "proof")
