"""`envsmith patch`: from an edit to a series that builds, onto another tree hunk by hunk, and every fault at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envsmith.series import parse_patch, parse_series
from tests.support.project import TOOL, Project, Said, diff, write_series
from tests.support.repos import commit, git, make_repo
from tests.support.wheels import make_sdist

WORDS = ("--description", "say eager", "--seen-as", "flash is not there", "--origin", "vendor")
LONG = "".join(f"line {n}\n" for n in range(1, 61))


def new(p: Project, tree: str | Path, name: str, *words: str | Path, series: str = "mine.series") -> Said:
    return p.run("patch", "new", tree, "-o", f"patches/tool-1/{name}", "--series", series, *words)


@pytest.fixture
def repo(project: Project) -> Path:
    """A plain git tree with a long file."""
    make_repo(project.folder / "repo", {"a/long.txt": LONG, "a/b.py": "x = 1\n", "same.txt": "same\n" * 30})
    return project.folder / "repo"


def replace(path: Path, *pairs: tuple[str, str]) -> None:
    text = path.read_text()
    for old, now in pairs:
        assert old in text
        text = text.replace(old, now, 1)
    path.write_text(text)


# from an edit to a build


def test_an_edit_becomes_a_patch_of_a_series_and_the_next_build_has_it(built: Project) -> None:
    assert built.run("work", "demo/app", "tool", "-o", "copy", "--root", built.envs).code == 0
    copy = built.folder / "copy"
    replace(copy / "tool/__init__.py", ('"sdpa"', '"eager"'))
    (copy / "tool/more.py").write_text("MORE = 1\n")
    said = new(built, "copy", "0001-say-eager.patch", *WORDS, "--layer", "research", "--description", "more words")
    assert said.code == 0, said.out + said.err
    assert (said.json["command"], said.json["data"]["series_is_new"]) == ("patch new", True)
    file = built.folder / "patches/tool-1/0001-say-eager.patch"
    patch = parse_patch(file.read_bytes(), file.name, str(file))
    assert patch.paths == ("tool/__init__.py", "tool/more.py")
    assert patch.field("Description") == "say eager\nmore words"
    assert (patch.field("Forwarded"), patch.field("Seen-As")) == ("no", "flash is not there")
    assert "index " not in file.read_text()
    assert "mode 1" not in file.read_text().replace("new file mode 100644", "")
    series = parse_series((file.parent / "mine.series").read_text(), "mine.series")
    commit_id = git(built.folder / "upstream", "rev-parse", "HEAD")
    assert (series.layer.value, series.base, series.entries) == ("research", commit_id, (file.name,))
    built.edit('series = ["tool-1/demo.series"]', 'series = ["tool-1/demo.series", "tool-1/mine.series"]')
    done = built.build()
    assert done.code == 0, done.out + done.err
    ran = built.run(
        "run", "demo/app", "--root", built.envs, "--", "python", "-c",
        "import tool, tool.more; print(tool.BACKEND, tool.more.MORE)", json=False,
    )  # fmt: skip
    assert ran.out.endswith("eager 1\n"), ran.err


def test_a_copy_of_a_release_makes_a_series_for_that_release(project: Project, index: object) -> None:
    files = {path.name: path.read_bytes() for path in (project.folder / "upstream").iterdir() if path.is_file()}
    make_sdist(project.index, "tool", "1.0", {**files, "tool/__init__.py": TOOL})
    text = project.recipe.read_text()
    git_lines = [line for line in text.splitlines() if line.startswith(("git = ", "commit = "))]
    project.edit("\n".join(git_lines), 'sdist = "tool==1.0"')
    project.edit('series = ["tool-1/demo.series"]\n', "")
    said = project.build()
    assert said.code == 0, said.out + said.err
    assert project.run("work", "demo/app", "tool", "-o", "copy", "--root", project.envs).code == 0
    replace(project.folder / "copy/tool/__init__.py", ('"flash"', '"eager"'))
    assert new(project, "copy", "0001-say-eager.patch", *WORDS, "--layer", "fix").json["data"]["base"] == "tool==1.0"
    project.edit('sdist = "tool==1.0"', 'sdist = "tool==1.0"\nseries = ["tool-1/mine.series"]')
    assert project.run("lock", "demo").code == 0


def test_the_next_patch_of_a_copy_holds_the_next_edit_alone(built: Project) -> None:
    assert built.run("work", "demo/app", "tool", "-o", "copy", "--root", built.envs).code == 0
    module = built.folder / "copy/tool/__init__.py"
    replace(module, ('"sdpa"', '"eager"'))
    assert new(built, "copy", "0001-say-eager.patch", *WORDS, "--layer", "research").code == 0
    again = new(built, "copy", "0002-say-more.patch", *WORDS)
    assert (again.code, again.codes) == (1, ["patch-nothing-changed"])
    replace(module, ('"backend:"', '"my backend:"'))
    said = new(built, "copy", "0002-say-more.patch", *WORDS)
    assert (said.code, said.json["data"]["series_is_new"]) == (0, False)
    text = (built.folder / "patches/tool-1/0002-say-more.patch").read_text()
    assert '+    print("my backend:", BACKEND)' in text
    assert "-BACKEND" not in text
    assert git(built.folder / "copy", "status", "--porcelain").strip() == "M tool/__init__.py"
    # mine.series stands on demo.series: tried behind it, it applies, and without it nothing does.
    source = f"tool={built.folder / 'upstream'}"
    assert built.run("patch", "check", "--source", source).code == 0
    assert built.run("patch", "check", "tool-1/mine.series", "--source", source).codes == ["patch-did-not-apply"]


def test_a_plain_git_tree_gives_a_series_for_its_head(project: Project, repo: Path) -> None:
    replace(repo / "a/b.py", ("x = 1", "x = 2"))
    said = new(project, repo, "0001-set-two.patch", *WORDS, "--layer", "fix")
    assert said.code == 0, said.out
    assert said.json["data"]["base"] == git(repo, "rev-parse", "HEAD")
    assert git(repo, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    assert git(repo, "status", "--porcelain") == "M a/b.py"


def test_modes_and_ignored_files_stay_out_of_a_patch(project: Project, repo: Path) -> None:
    start = commit(repo, {".gitignore": "*.log\n"})
    (repo / "a/b.py").chmod(0o755)
    git(repo, "commit", "--quiet", "--all", "--message", "make it executable")
    (repo / "a/run.log").write_text("noise")
    replace(repo / "a/b.py", ("x = 1", "x = 2"))
    said = new(project, repo, "0001-set-two.patch", *WORDS, "--layer", "fix", "--since", start)
    assert said.json["data"]["files"] == ["a/b.py"]
    (repo / "a/b.py").write_text("x = 1\n")
    said = new(project, repo, "0002-set-nothing.patch", *WORDS)
    assert said.codes == ["patch-nothing-changed"]


def test_context_grows_until_each_hunk_fits_one_place(project: Project, repo: Path) -> None:
    text = "\n".join(f"def f{n}():\n    a\n    b\n    c\n    x = 1\n    d\n    e\n    f\n" for n in range(4))
    commit(repo, {"a/alike.py": text})
    (repo / "a/alike.py").write_text(text.replace("x = 1", "x = 2", 1))
    data = new(project, repo, "0001-set-two.patch", *WORDS, "--layer", "fix").json["data"]
    assert (data["context"], data["ambiguous"]) == (4, [])
    git(repo, "checkout", "--quiet", ".")
    (repo / "same.txt").write_text("same\n" * 15 + "other\n" + "same\n" * 15)
    data = new(project, repo, "0002-set-other.patch", *WORDS).json["data"]
    assert data["ambiguous"] == ["same.txt, hunk 1"]


def test_what_is_missing_or_wrong_is_said_before_anything_is_written(project: Project, repo: Path) -> None:
    replace(repo / "a/b.py", ("x = 1", "x = 2"))
    before = sorted(project.folder.glob("patches/**/*"))
    bare = new(project, repo, "0001-set-two.patch", "--layer", "fix")
    assert bare.codes == ["patch-header"] * 3
    assert {error["hint"].split("`")[1] for error in bare.json["errors"]} == {"--description", "--seen-as", "--origin"}
    assert new(project, repo, "two.patch", *WORDS, "--layer", "fix").codes == ["patch-name"]
    assert new(project, repo, "0001-set-two.patch", *WORDS).codes == ["series-header"]
    assert new(project, repo, "0001-set-two.patch", *WORDS, "--layer", "other").codes == ["series-header"]
    assert new(project, repo, "0001-set-two.patch", *WORDS, series="patches/x.series").codes == ["series-entry"]
    assert new(project, repo, "0001-set-two.patch", *WORDS, "--since", "v9").codes == ["unknown-commit"]
    assert new(project, project.folder, "0001-set-two.patch", *WORDS).codes == ["work-without-git"]
    wrong = new(project, repo, "0001-set-two.patch", *WORDS, "--base", "9" * 40, series="demo.series")
    assert wrong.codes == ["series-wrong-base"]
    (repo / "a/link").symlink_to("b.py")
    (repo / "a/data.bin").write_bytes(b"\0\1\2")
    assert set(new(project, repo, "0001-set-two.patch", *WORDS, "--layer", "fix").codes) == {
        "patch-binary", "patch-symlink",
    }  # fmt: skip
    assert sorted(project.folder.glob("patches/**/*")) == before


# onto another tree


@pytest.fixture
def moved(project: Project, repo: Path) -> tuple[str, str]:
    """A series of two patches for the repository; returns its base and a later commit where all lines have moved."""
    base = git(repo, "rev-parse", "HEAD")
    folder = project.folder / "patches/repo-0"
    edited = LONG.replace("line 10\n", "ten\n").replace("line 50\n", "fifty\n")
    write_series(folder, base, "0001-say-words.patch", diff("a/long.txt", LONG, edited), "fix")
    header = (folder / "0001-say-words.patch").read_text().partition("diff ")[0]
    (folder / "0002-set-two.patch").write_text(header + diff("a/b.py", "x = 1\n", "x = 2\n"))
    series = folder / "demo.series"
    series.write_text(series.read_text() + "0002-set-two.patch\n")
    return base, commit(repo, {"a/long.txt": "new\n" * 5 + LONG})


def refresh(p: Project, onto: str, repo: Path, *words: str) -> Said:
    return p.run("patch", "refresh", "patches/repo-0/demo.series", "--onto", onto, "--source", repo, *words)


def test_a_series_that_still_applies_is_written_for_the_new_tree(
    project: Project, repo: Path, moved: tuple[str, str]
) -> None:
    old = {path: path.read_bytes() for path in (project.folder / "patches/repo-0").iterdir()}
    said = refresh(project, moved[1], repo)
    assert said.code == 0, said.out
    first, second = said.json["data"]["patches"]
    assert [(o["hunk"], o["line"], o["offset"]) for o in first["offsets"]] == [(1, 12, 5), (2, 52, 5)]
    assert second["offsets"] == []
    assert {path: path.read_bytes() for path in (project.folder / "patches/repo-0").iterdir()} == old
    folder = project.folder / f"patches/repo-{moved[1][:8]}"
    series = parse_series((folder / "demo.series").read_text(), "demo.series")
    assert (series.base, series.description) == (moved[1], "demo")
    assert "@@ -12,7 +12,7 @@" in (folder / "0001-say-words.patch").read_text()
    assert (folder / "0002-set-two.patch").read_bytes() == old[project.folder / "patches/repo-0/0002-set-two.patch"]
    assert project.run("patch", "check", folder / "demo.series", "--source", f"repo={repo}").code == 0
    assert refresh(project, moved[1], repo).codes == ["patch-exists"]


def test_the_hunk_that_no_longer_applies_is_named_with_both_places(
    project: Project, repo: Path, moved: tuple[str, str]
) -> None:
    onto = commit(repo, {"a/long.txt": "new\n" * 5 + LONG.replace("line 49\n", "line forty-nine\n")})
    said = refresh(project, onto, repo)
    assert (said.code, said.codes) == (1, ["hunk-did-not-apply"]), said.out
    first, second = said.json["data"]["patches"]
    (failed,) = first["failed"]
    patch = (project.folder / "patches/repo-0/0001-say-words.patch").read_text().splitlines()
    assert patch[failed["line"] - 1].startswith("@@ -47,7")
    assert (failed["hunk"], failed["path"], failed["target_line"]) == (2, "a/long.txt", 54)
    assert (failed["expected"], failed["actual"]) == ("line 49", "line forty-nine")
    assert second["applies"]
    error = said.json["errors"][0]
    assert error["where"] == f"patches/repo-0/0001-say-words.patch:{failed['line']}"
    assert "`a/long.txt`, line 54" in error["message"]
    assert not (project.folder / f"patches/repo-{onto[:8]}").exists()


def test_a_file_that_is_gone_and_a_change_that_is_there_already_are_said(
    project: Project, repo: Path, moved: tuple[str, str]
) -> None:
    (repo / "a/long.txt").unlink()
    onto = commit(repo, {"a/b.py": "x = 2\n"})
    said = refresh(project, onto, repo)
    assert said.codes == ["hunk-did-not-apply", "patch-already-applied"]
    assert "not there any more" in said.json["errors"][0]["message"]


def test_a_series_goes_onto_a_release(project: Project, repo: Path, moved: tuple[str, str], tmp_path: Path) -> None:
    sdist = make_sdist(tmp_path, "repo", "2.0", {"a/long.txt": "new\n" + LONG, "a/b.py": "x = 1\n"})
    said = refresh(project, "repo==2.0", sdist, "-o", "patches/elsewhere-2.0")
    assert said.code == 0, said.out
    checked = project.run("patch", "check", "patches/elsewhere-2.0/demo.series", "--source", f"elsewhere={sdist}")
    assert (checked.code, checked.json["data"]["series"][0]["applied"]) == (0, True)


def test_what_refresh_cannot_start_with_is_refused(project: Project, repo: Path, moved: tuple[str, str]) -> None:
    assert refresh(project, "main", repo).codes == ["usage"]
    assert refresh(project, "9" * 40, repo).codes == ["commit-missing"]
    assert refresh(project, "repo==2.0", repo).codes == ["usage"]
    assert refresh(project, moved[1], repo, "-o", "patches/repo-0").codes == ["patch-exists"]


def test_a_rename_is_refreshed_as_git_applies_it(project: Project, repo: Path) -> None:
    git(repo, "mv", "same.txt", "other.txt")
    replace(repo / "a/b.py", ("x = 1", "x = 2"))
    words = (*WORDS, "--layer", "fix", "--base", git(repo, "rev-parse", "HEAD"))
    made = project.run(
        "patch", "new", repo, "-o", "patches/repo-0/0001-move-same.patch", "--series", "mine.series", *words
    )
    assert made.code == 0, made.out
    body = project.folder / "patches/repo-0/0001-move-same.patch"
    head, _, _ = body.read_text().partition("diff --git ")
    rename = "diff --git a/same.txt b/other.txt\nsimilarity index 100%\nrename from same.txt\nrename to other.txt\n"
    body.write_text(head + rename)
    git(repo, "reset", "-q", "--hard")
    onto = commit(repo, {"more.txt": "more\n"})
    said = project.run(
        "patch", "refresh", "patches/repo-0/mine.series", "--onto", onto, "--source", repo, "-o", "patches/repo-1"
    )
    assert said.code == 0, said.out
    assert "rename to other.txt" in (project.folder / "patches/repo-1/0001-move-same.patch").read_text()


def test_a_header_may_speak_of_a_diff(project: Project, repo: Path) -> None:
    base = git(repo, "rev-parse", "HEAD")
    replace(repo / "a/long.txt", ("line 30\n", "line thirty\n"))
    words = (*WORDS, "--layer", "fix", "--base", base, "--description", "see: diff --git a/x b/x")
    out = "patches/repo-0/0001-say-thirty.patch"
    made = project.run("patch", "new", repo, "-o", out, "--series", "mine.series", *words)
    assert made.code == 0, made.out
    git(repo, "reset", "-q", "--hard")
    onto = commit(repo, {"a/long.txt": "line 0\n" + LONG})
    said = project.run(
        "patch", "refresh", "patches/repo-0/mine.series", "--onto", onto, "--source", repo, "-o", "patches/repo-1"
    )
    assert said.code == 0, said.out
    assert "see: diff --git a/x b/x" in (project.folder / "patches/repo-1/0001-say-thirty.patch").read_text()


@pytest.mark.parametrize(
    ("series", "words", "code"),
    [
        ("0001-say-eager.patch", (), "series-name"),
        ("mine", (), "series-name"),
        ("mine.series", ("--seen-as", "caf\udce9"), "patch-header"),
    ],
)
def test_what_new_would_spoil_is_refused(
    project: Project, repo: Path, series: str, words: tuple[str, ...], code: str
) -> None:
    replace(repo / "a/b.py", ("x = 1", "x = 2"))
    said = new(project, repo, "0001-say-eager.patch", *WORDS, *words, "--layer", "fix", series=series)
    assert (said.code, said.codes) == (2, [code]), said.out + said.err
    assert not (project.folder / f"patches/tool-1/{series}").exists()
    assert not (project.folder / "patches/tool-1/0001-say-eager.patch").exists()


def test_a_patch_is_not_listed_behind_a_higher_number(project: Project, repo: Path) -> None:
    base = git(repo, "rev-parse", "HEAD")
    replace(repo / "a/b.py", ("x = 1", "x = 2"))
    words = (*WORDS, "--layer", "fix", "--base", base)
    assert new(project, repo, "0002-say-two.patch", *words).code == 0
    said = new(project, repo, "0001-say-one.patch", *words)
    assert (said.code, said.codes) == (2, ["series-order"]), said.out


@pytest.mark.parametrize("epoch", ["99999999999999999", "\N{SUPERSCRIPT TWO}"])
def test_a_date_that_is_none_is_not_taken(project: Project, repo: Path, epoch: str) -> None:
    replace(repo / "a/b.py", ("x = 1", "x = 2"))
    out = "patches/repo-0/0001-say-two.patch"
    words = (*WORDS, "--layer", "fix", "--base", git(repo, "rev-parse", "HEAD"))
    said = project.run(
        "patch", "new", repo, "-o", out, "--series", "mine.series", *words, env={"SOURCE_DATE_EPOCH": epoch}
    )
    assert said.code == 0, said.out


# check


def test_a_sound_folder_has_no_problems(project: Project) -> None:
    said = project.run("patch", "check")
    assert said.code == 0, said.out
    assert [row["series"] for row in said.json["data"]["series"]] == [
        "patches/alpha-1.0/demo.series", "patches/tool-1/demo.series",
    ]  # fmt: skip
    assert not any(row["applied"] for row in said.json["data"]["series"])
    applied = project.run("patch", "check", "--source", f"tool={project.folder / 'upstream'}").json["data"]["series"]
    assert [row["applied"] for row in applied] == [False, True]


def test_a_mirror_of_the_store_is_at_hand(built: Project) -> None:
    rows: list[dict[str, Any]] = built.run("patch", "check").json["data"]["series"]
    assert [row["applied"] for row in rows] == [False, True]


FOLDER = "patches/tool-1"


def orphan(p: Project) -> None:
    path = p.folder / FOLDER / "use-sdpa.patch"
    (path.parent / "lost.patch").write_text(path.read_text().replace('+BACKEND = "sdpa"', '+BACKEND = "other"'))


def twice(p: Project) -> None:
    path = p.folder / FOLDER / "use-sdpa.patch"
    (path.parent / "copy.patch").write_bytes(path.read_bytes())
    series = path.with_name("demo.series")
    series.write_text(series.read_text() + "copy.patch\n")


def order(p: Project) -> None:
    folder = p.folder / FOLDER
    body = diff("tool/__init__.py", TOOL, TOOL.replace("flash", "a")), diff("tool/__init__.py", TOOL, TOOL + "x = 1\n")
    commit_id = git(p.folder / "upstream", "rev-parse", "HEAD")
    for name, text in zip(("0002-a-b.patch", "0001-c-d.patch"), body, strict=True):
        write_series(folder, commit_id, name, text, "fix")
    (folder / "use-sdpa.patch").unlink()
    series = folder / "demo.series"
    series.write_text(series.read_text().replace("0001-c-d.patch", "0002-a-b.patch\n0001-c-d.patch"))


def change(name: str, old: str, now: str) -> Callable[[Project], None]:
    def plant(p: Project) -> None:
        replace(p.folder / FOLDER / name, (old, now))

    plant.__name__ = f"{name}:{old[:12]}"
    return plant


PLANTED = [
    (orphan, "patch-orphan"),
    (twice, "patch-duplicate"),
    (order, "series-order"),
    (change("demo.series", "use-sdpa.patch", "use-sdpa.patch\nuse-sdpa.patch"), "series-duplicate"),
    (change("demo.series", "use-sdpa.patch", "use-sdpa.patch\ngone.patch"), "patch-missing"),
    (change("demo.series", "# Layer: device\n", ""), "series-header"),
    (change("demo.series", "# Base: ", "# Base: main "), "series-header"),
    (change("use-sdpa.patch", "Forwarded: no\n", ""), "patch-header"),
    (change("use-sdpa.patch", "Description: change one value", "Description:"), "patch-header"),
    (change("use-sdpa.patch", "--- a/tool", "--- a/../tool"), "patch-path-escapes"),
    (change("use-sdpa.patch", '-BACKEND = "flash"\n', ""), "patch-malformed"),
]


@pytest.mark.parametrize(("plant", "code"), PLANTED, ids=[f"{plant.__name__}-{code}" for plant, code in PLANTED])
def test_check_finds_what_was_planted(project: Project, plant: Callable[[Project], None], code: str) -> None:
    plant(project)
    said = project.run("patch", "check")
    assert (said.code, set(said.codes)) == (2, {code}), said.out
    assert all(error["where"].startswith(FOLDER) for error in said.json["errors"])


def test_all_problems_of_all_files_are_said_at_once(project: Project) -> None:
    orphan(project)
    replace(project.folder / FOLDER / "use-sdpa.patch", ("Forwarded: no\n", ""))
    replace(project.folder / "patches/alpha-1.0/demo.series", ("# Layer: fix", "# Layer: mine"))
    said = project.run("patch", "check")
    assert sorted(said.codes) == ["patch-header", "patch-orphan", "series-header"]
    named = project.run("patch", "check", "alpha-1.0/demo.series")
    assert named.codes == ["series-header"]


def test_check_says_which_patch_does_not_apply(project: Project) -> None:
    upstream = project.folder / "upstream"
    replace(project.folder / FOLDER / "use-sdpa.patch", ('-BACKEND = "flash"', '-BACKEND = "other"'))
    said = project.run("patch", "check", "--source", f"tool={upstream}")
    assert said.codes == ["patch-did-not-apply"]
    assert said.json["errors"][0]["where"].startswith("patches/tool-1/use-sdpa.patch:")
    assert project.run("patch", "check", "--source", f"tol={upstream}").codes == ["unknown-source"]


def test_the_verbs_of_patch_share_options_and_envelope(project: Project) -> None:
    assert project.run("patch", "chek").json["errors"][0]["message"].endswith("Did you mean `check`?")
    assert project.run("patch").codes == ["usage"]
    for words in (("--json", "patch", "check"), ("patch", "--json", "check"), ("patch", "check", "--json")):
        said = project.run(*words, json=False)
        assert said.json["command"] == "patch check"
    plain = project.run("patch", "check", json=False)
    assert plain.out.startswith("2 series, 2 patches: no problems")
