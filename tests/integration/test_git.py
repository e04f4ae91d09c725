"""envsmith.tools.git with real git: what is fetched, what a series really changed, and what verification sees."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from envsmith.errors import EnvsmithError, HostError, InputError, IntegrityError, StepError, SupplyError
from envsmith.series import parse_patch
from envsmith.tools import git as tool
from envsmith.tools.process import without_secrets
from tests.support.repos import commit, git, make_repo, tree_id
from tests.unit.test_series import EDIT, EMPTY, GONE, HEADER, NEW, NO_NEWLINE, RENAME

FILES: dict[str, str | bytes] = {"pkg/f.py": "one\ntwo\nthree\n", "pkg/__init__.py": "", "run.sh": "#!/bin/sh\n"}
PATCH = """\
Description: second line in French
Origin: vendor

diff --git a/pkg/f.py b/pkg/f.py
--- a/pkg/f.py
+++ b/pkg/f.py
@@ -1,3 +1,3 @@
 one
-two
+deux
 three
"""
NEXT = (
    PATCH.replace("-two\n+deux", " deux")
    .replace("-1,3 +1,3", "-2,2 +2,3")
    .replace(" one\n", "")
    .replace(" three", " three\n+quatre")
)


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    path = tmp_path / "upstream"
    make_repo(path, FILES)
    (path / "run.sh").chmod(0o755)
    (path / "link").symlink_to("run.sh")
    commit(path, {})
    return path


@pytest.fixture
def work(upstream: Path, tmp_path: Path) -> Path:
    """A work copy at upstream's newest commit, below another repository."""
    outer = tmp_path / "outer"
    make_repo(outer, {"README": "outer\n"})
    return export(upstream, outer / "work")


def export(upstream: Path, dest: Path) -> Path:
    mirror, head = dest.with_name(dest.name + "-mirror"), git(upstream, "rev-parse", "HEAD")
    tool.mirror(upstream, head, mirror)
    tool.export_commit(mirror, head, dest)
    return dest


def code_of(error: pytest.ExceptionInfo[EnvsmithError]) -> str:
    (problem,) = error.value.problems
    return problem.code


def snapshot(work: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return size, ctime and content of everything below a folder, its git folder included."""
    files = (path for path in work.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path): (path.stat().st_size, path.stat().st_ctime_ns, path.read_bytes()) for path in files}


# mirrors and work copies


def test_a_mirror_fetches_one_commit_and_not_its_history(upstream: Path, tmp_path: Path) -> None:
    first, head = git(upstream, "rev-parse", "HEAD~1"), git(upstream, "rev-parse", "HEAD")
    tool.mirror(upstream, head, tmp_path / "m")
    assert tool.holds(tmp_path / "m", head)
    assert not tool.holds(tmp_path / "m", first)
    assert git(tmp_path / "m", "rev-list", "--all", "--count") == "1"
    tool.mirror(upstream, first, tmp_path / "m")
    assert tool.holds(tmp_path / "m", first)


def test_a_commit_that_no_ref_names_any_more_is_fetched_by_its_id(upstream: Path, tmp_path: Path) -> None:
    head = git(upstream, "rev-parse", "HEAD")
    git(upstream, "commit", "--amend", "--allow-empty", "--message", "rewritten")
    tool.mirror(upstream, head, tmp_path / "m")
    tool.export_commit(tmp_path / "m", head, tmp_path / "w")
    assert tool.tree_id(tmp_path / "w") == tree_id(upstream, head)


def test_a_mirror_is_reused_when_the_source_is_gone(upstream: Path, tmp_path: Path) -> None:
    head = git(upstream, "rev-parse", "HEAD")
    tool.mirror(upstream, head, tmp_path / "m")
    upstream.rename(tmp_path / "away")
    tool.mirror(upstream, head, tmp_path / "m")
    tool.export_commit(tmp_path / "m", head, tmp_path / "w")
    assert (tmp_path / "w" / "pkg" / "f.py").is_file()


def test_a_bundle_file_is_a_source_too(upstream: Path, tmp_path: Path) -> None:
    head = git(upstream, "rev-parse", "HEAD")
    git(upstream, "bundle", "create", "--quiet", str(tmp_path / "b.bundle"), "main")
    tool.mirror(tmp_path / "b.bundle", head, tmp_path / "m")
    tool.export_commit(tmp_path / "m", head, tmp_path / "w")
    assert tool.tree_id(tmp_path / "w") == tree_id(upstream)


def test_a_shallow_clone_is_a_source_for_what_it_holds(upstream: Path, tmp_path: Path) -> None:
    first, head = git(upstream, "rev-parse", "HEAD~1"), git(upstream, "rev-parse", "HEAD")
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{upstream}", "shallow")
    tool.mirror(tmp_path / "shallow", head, tmp_path / "m")
    with pytest.raises(SupplyError) as caught:
        tool.mirror(tmp_path / "shallow", first, tmp_path / "m")
    assert code_of(caught) == "commit-missing"


def test_a_commit_that_the_source_lacks_is_named_with_the_source(upstream: Path, tmp_path: Path) -> None:
    with pytest.raises(SupplyError) as caught:
        tool.mirror(upstream, "a" * 40, tmp_path / "m")
    assert code_of(caught) == "commit-missing"
    assert caught.value.problems[0].where == str(upstream)


def test_a_source_that_is_not_there_is_unreachable_and_its_password_is_not_shown(tmp_path: Path) -> None:
    url = "https://user:s3cret@127.0.0.1:9/group/x.git?private_token=t0ken"
    with pytest.raises(SupplyError) as caught:
        tool.mirror(url, "a" * 40, tmp_path / "m")
    assert code_of(caught) == "source-unreachable"
    assert "127.0.0.1:9/group/x.git" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in ("s3cret", "user:", "t0ken"))


@pytest.mark.parametrize("commit_id", ["main", "1bf9d2d", "A" * 40, "--upload-pack=x"])
def test_only_a_full_commit_id_is_taken(upstream: Path, tmp_path: Path, commit_id: str) -> None:
    with pytest.raises(InputError) as caught:
        tool.mirror(upstream, commit_id, tmp_path / "m")
    assert code_of(caught) == "commit-abbreviated"


def test_a_work_copy_has_its_own_objects_and_no_remote(upstream: Path, work: Path, tmp_path: Path) -> None:
    for path in (upstream, work.with_name("work-mirror")):
        path.rename(path.with_name(path.name + ".away"))
    assert not (work / ".git" / "objects" / "info" / "alternates").exists()
    assert git(work, "fsck", "--full") == ""
    assert git(work, "remote") == ""
    assert git(work, "status", "--porcelain", "--ignored") == ""
    assert (work / ".git").is_dir()
    assert os.access(work / "run.sh", os.X_OK)
    assert (work / "link").readlink() == Path("run.sh")


def test_a_work_copy_is_never_made_over_files(upstream: Path, work: Path) -> None:
    with pytest.raises(InputError) as caught:
        tool.export_commit(work.with_name("work-mirror"), git(upstream, "rev-parse", "HEAD"), work)
    assert code_of(caught) == "work-exists"


def test_files_hold_the_bytes_of_the_commit_whatever_its_attributes_say(tmp_path: Path) -> None:
    attributes = "*.py text eol=crlf\n*.txt ident\n*.bin filter=lfs\n"
    files: dict[str, str | bytes] = {".gitattributes": attributes, "a.py": b"x\n", "b.txt": "$Id$\n", "c.bin": "c"}
    make_repo(tmp_path / "u", files)
    work = export(tmp_path / "u", tmp_path / "w")
    assert (work / "a.py").read_bytes() == b"x\n"
    assert (work / "b.txt").read_bytes() == b"$Id$\n"
    (work / "a.py").write_bytes(b"x\r\n")
    assert tool.diff_tree(work, "HEAD") == ("a.py",)


def test_the_users_git_settings_change_nothing(upstream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = git(upstream, "rev-parse", "HEAD")
    (tmp_path / "home" / ".gitconfig").write_text(
        "[core]\n autocrlf = true\n hooksPath = /nonexistent\n[apply]\n whitespace = fix\n"
        "[user]\n name = Somebody\n[commit]\n gpgSign = true\n[init]\n defaultBranch = x\n[broken"
    )
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.setenv(name, "/nonexistent")
    tool.mirror(upstream, head, tmp_path / "m")
    tool.export_commit(tmp_path / "m", head, tmp_path / "w")
    tree = tool.apply_series(tmp_path / "w", [("0001-x.patch", PATCH.replace("+deux", "+deux  ").encode())])
    assert tool.diff_tree(tmp_path / "w", tree) == ()
    assert (tmp_path / "w" / "pkg" / "f.py").read_text() == "one\ndeux  \nthree\n"


def test_an_unpacked_sdist_becomes_a_commit_that_depends_on_content_alone(tmp_path: Path) -> None:
    commits = []
    for n in (1, 2):
        files = tmp_path / f"files{n}"
        for name, content in {**FILES, ".gitignore": "*.txt\n", "kept.txt": "x"}.items():
            (files / name).parent.mkdir(parents=True, exist_ok=True)
            (files / name).write_bytes(content.encode() if isinstance(content, str) else content)
            os.utime(files / name, (n, n))
        commits.append(tool.export_tree(files, tmp_path / f"w{n}"))
        assert tool.status(tmp_path / f"w{n}") == ((), ())
        assert "kept.txt" in git(tmp_path / f"w{n}", "ls-files")
    assert commits[0] == commits[1]
    (tmp_path / "files2" / "run.sh").chmod(0o755)
    assert tool.export_tree(tmp_path / "files2", tmp_path / "w3") != commits[0]


# applying a series


def test_a_series_is_applied_and_committed_patch_by_patch(work: Path) -> None:
    tree = tool.apply_series(work, [("0001-french.patch", PATCH.encode()), ("0002-more.patch", NEXT.encode())])
    assert (work / "pkg" / "f.py").read_text() == "one\ndeux\nthree\nquatre\n"
    assert tree == tree_id(work) == tool.tree_id(work)
    assert git(work, "status", "--porcelain") == ""
    assert git(work, "branch", "--show-current") == "envsmith"
    assert git(work, "log", "--format=%s", "-2") == "0002-more\n0001-french"
    assert "second line in French" in git(work, "log", "-1", "--format=%b")


def test_git_apply_alone_lies_below_another_repository_and_ours_does_not(work: Path, tmp_path: Path) -> None:
    """The trap: a copy without its own git folder, below a repository: git says yes and changes nothing."""
    bare_copy = tmp_path / "outer" / "copy" / "pkg"
    bare_copy.mkdir(parents=True)
    (bare_copy / "f.py").write_text("one\ntwo\nthree\n")
    (tmp_path / "p.patch").write_text(PATCH)
    subprocess.run(["git", "apply", str(tmp_path / "p.patch")], cwd=bare_copy.parent, check=True)
    assert "two" in (bare_copy / "f.py").read_text()
    with pytest.raises(InputError) as caught:
        tool.apply_series(bare_copy.parent, [("0001-french.patch", PATCH.encode())])
    assert code_of(caught) == "work-without-git"
    tool.apply_series(work, [("0001-french.patch", PATCH.encode())])
    assert "deux" in (work / "pkg" / "f.py").read_text()


def test_the_tree_id_is_the_same_for_two_copies_with_other_authors_and_dates(
    upstream: Path, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = tool.apply_series(work, [("0001-french.patch", PATCH.encode())])
    head = git(work, "rev-parse", "HEAD")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Other")
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2001-01-01T00:00:00Z")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    other = export(upstream, tmp_path / "other")
    assert tool.apply_series(other, [("0001-french.patch", PATCH.encode())]) == tree
    assert git(other, "rev-parse", "HEAD") == head


def test_a_patch_that_is_already_applied_is_called_that(work: Path) -> None:
    tool.apply_series(work, [("0001-french.patch", PATCH.encode())])
    with pytest.raises(InputError) as caught:
        tool.apply_series(work, [("0002-again.patch", PATCH.encode())])
    assert code_of(caught) == "patch-already-applied"
    assert "`0002-again.patch`" in str(caught.value)


def test_a_patch_for_another_tree_is_refused_with_patch_file_and_hunk(work: Path) -> None:
    wrong = PATCH.replace("-two\n+deux", "-zwei\n+drei")
    with pytest.raises(InputError) as caught:
        tool.apply_series(work, [("0001-french.patch", PATCH.encode()), ("0002-wrong.patch", wrong.encode())])
    (problem,) = caught.value.problems
    line = wrong.split("\n").index("@@ -1,3 +1,3 @@") + 1
    assert (problem.code, problem.where) == ("patch-did-not-apply", f"0002-wrong.patch:{line}")
    assert "pkg/f.py:1" in problem.message


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        (PATCH.replace("pkg/f.py", "pkg/none.py"), "does not exist"),
        (PATCH.replace("\n", "\r\n"), ""),
        (NEW.replace("new.py", "../outside.py"), "invalid path"),
        (NEW.replace("new.py", ".git/x"), "invalid path"),
        (PATCH.replace("-1,3 +1,3", "-1,9 +1,9"), "corrupt patch"),
        ("Description: nothing\n", ""),
    ],
    ids=["no such file", "CRLF", "outside", "git folder", "counts", "no diff"],
)
def test_what_git_cannot_apply_is_an_error_and_changes_nothing(work: Path, patch: str, said: str) -> None:
    before = tool.tree_id(work)
    with pytest.raises(InputError) as caught:
        tool.apply_series(work, [("0001-x.patch", patch.encode())])
    assert code_of(caught) == "patch-did-not-apply"
    assert said in str(caught.value)
    assert tool.tree_id(work) == before
    assert tool.status(work) == ((), ())


def test_a_patch_cannot_write_through_a_link_of_the_tree(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    make_repo(tmp_path / "u", {"a": "a\n"})
    (tmp_path / "u" / "door").symlink_to(outside)
    commit(tmp_path / "u", {})
    work = export(tmp_path / "u", tmp_path / "w")
    new = "diff --git a/door/x b/door/x\nnew file mode 100644\n--- /dev/null\n+++ b/door/x\n@@ -0,0 +1 @@\n+x\n"
    with pytest.raises(InputError) as caught:
        tool.apply_series(work, [("0001-x.patch", new.encode())])
    assert code_of(caught) == "patch-did-not-apply"
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("body", [EDIT, NEW, GONE, EMPTY, RENAME, NO_NEWLINE, EDIT + NEW + GONE])
def test_git_and_our_reader_agree_on_what_a_patch_touches(body: str) -> None:
    data = (HEADER + body).encode()
    assert tool.touched([("0001-x.patch", data)]) == parse_patch(data, "0001-x.patch", "p").paths


# what verification sees


def test_an_edit_of_the_same_size_and_time_is_found(work: Path) -> None:
    path = work / "pkg" / "f.py"
    git(work, "update-index", "--refresh")
    before = path.stat()
    path.write_text("one\nTWO\nthree\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    git(work, "update-index", "--assume-unchanged", "pkg/f.py")
    assert git(work, "status", "--porcelain") == ""  # git itself does not see it
    assert tool.diff_tree(work, "HEAD") == ("pkg/f.py",)
    assert tool.tree_id(work) != tree_id(work)


def test_staged_deleted_retyped_and_mode_changes_are_found(work: Path) -> None:
    tree = tree_id(work)
    (work / "pkg" / "f.py").write_text("staged\n")
    git(work, "add", "pkg/f.py")
    (work / "pkg" / "__init__.py").unlink()
    (work / "run.sh").chmod(0o644)
    (work / "link").unlink()
    (work / "link").write_text("run.sh")
    assert tool.diff_tree(work, tree) == ("link", "pkg/__init__.py", "pkg/f.py", "run.sh")


def test_a_commit_on_top_is_found_against_the_locked_tree(work: Path) -> None:
    tree = tree_id(work)
    commit(work, {"pkg/f.py": "mine\n"})
    assert tool.status(work) == ((), ())
    assert tool.diff_tree(work, tree) == ("pkg/f.py",)


def test_a_folder_swapped_for_a_link_is_found(work: Path, tmp_path: Path) -> None:
    (work / "pkg").rename(tmp_path / "pkg")
    (work / "pkg").symlink_to(tmp_path / "pkg")
    assert tool.diff_tree(work, "HEAD") == ("pkg/__init__.py", "pkg/f.py")
    assert tool.status(work)[1] == ("pkg",)


def test_untracked_files_are_listed_even_when_the_tree_ignores_them(work: Path) -> None:
    commit(work, {".gitignore": "*.log\n*.so\n"})
    (work / ".git" / "info" / "exclude").write_text("*\n")
    for name in ("a.log", "pkg/evil.so", "pkg/__pycache__/f.cpython-311.pyc", "nested/.git/HEAD"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("x")
    changed, untracked = tool.status(work, ("*/__pycache__/*",))
    assert changed == ()
    assert untracked == ("a.log", "nested/.git/HEAD", "pkg/evil.so")


def test_looking_at_a_work_copy_writes_nothing_into_it(work: Path) -> None:
    tool.apply_series(work, [("0001-french.patch", PATCH.encode())])
    (work / "pkg" / "f.py").write_text("one\nDEUX\nthree\n")
    time.sleep(0.02)
    before = snapshot(work)
    tool.tree_id(work)
    tool.diff_tree(work, "HEAD")
    tool.status(work)
    assert snapshot(work) == before


def test_exchanged_git_objects_do_not_hide_an_edit(work: Path) -> None:
    """Somebody edits a file and makes the locked tree's object say so too: the id of the content still tells."""
    tree = tree_id(work)
    (work / "pkg" / "f.py").write_text("evil\n")
    blob = git(work, "hash-object", "-w", "pkg/f.py")
    listing = git(work, "ls-tree", "HEAD:pkg").replace(git(work, "rev-parse", "HEAD:pkg/f.py"), blob)
    made = subprocess.run(["git", "mktree"], cwd=work, input=listing, capture_output=True, text=True, check=True)
    evil, good = made.stdout.strip(), git(work, "rev-parse", "HEAD:pkg")
    objects = work / ".git" / "objects"
    if not (objects / good[:2] / good[2:]).exists():
        for pack in (objects / "pack").glob("*.pack"):
            pack.rename(work.with_name("p.pack"))
            with work.with_name("p.pack").open("rb") as stream:
                subprocess.run(["git", "unpack-objects", "-q"], cwd=work, stdin=stream, check=True)
    (objects / good[:2] / good[2:]).unlink()
    (objects / good[:2] / good[2:]).write_bytes((objects / evil[:2] / evil[2:]).read_bytes())
    with pytest.raises((IntegrityError, StepError)):
        tool.diff_tree(work, tree)


def test_a_tree_that_the_work_copy_does_not_know_is_an_error_in_words(work: Path) -> None:
    with pytest.raises(StepError) as caught:
        tool.diff_tree(work, "a" * 40)
    assert code_of(caught) == "git-failed"


def test_a_submodule_is_left_alone(tmp_path: Path) -> None:
    make_repo(tmp_path / "u", {"a": "a\n"})
    git(tmp_path / "u", "update-index", "--add", "--cacheinfo", f"160000,{'b' * 40},sub")
    git(tmp_path / "u", "commit", "--quiet", "--message", "submodule")
    work = export(tmp_path / "u", tmp_path / "w")
    assert tool.tree_id(work) == tree_id(tmp_path / "u")
    assert tool.status(work) == ((), ())


def test_a_machine_without_git_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError) as caught:
        tool.version()
    assert code_of(caught) == "git-missing"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pw@host/x.git", "https://host/x.git"),
        (
            "fatal: unable to access 'https://tok@host:8443/a/b?x=y': no",
            "fatal: unable to access 'https://host:8443/a/b': no",
        ),
        ("git@host:x.git", "git@host:x.git"),
        ("ssh://git@host/x", "ssh://host/x"),
    ],
)
def test_secrets_are_cut_out_of_urls(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_a_git_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool.version()  # GitPython asks the first git that it meets when it is imported
    fake = tmp_path / "bin" / "git"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\nsleep 60\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(tool, "_QUICK_S", 0.3)
    started = time.monotonic()
    with pytest.raises(StepError) as caught:
        tool.version()
    assert code_of(caught) == "program-timeout"
    assert time.monotonic() - started < 20
