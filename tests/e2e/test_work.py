"""`envsmith work`: a copy to edit that comes first, is named by every verification, and is never drift."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import Project, Said
from tests.support.repos import git

SHOW = ("--", "python", "-c", "import tool; print(tool.BACKEND, tool.__file__)")


def work(p: Project, *words: str | Path) -> Said:
    return p.run("work", "demo/app", "tool", *words, "--root", p.envs)


def ran(p: Project) -> Said:
    return p.run("run", "demo/app", "--root", p.envs, *SHOW, json=False)


def findings(said: Said) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = said.json["data"]["findings"]
    return found


@pytest.fixture
def copy(built: Project) -> Path:
    """A work copy of the demo's source."""
    said = work(built, "-o", "my-tool")
    assert said.code == 0, said.out + said.err
    return built.folder / "my-tool"


def edit(copy: Path, old: str = "sdpa", new: str = "eager") -> None:
    path = copy / "tool/__init__.py"
    path.write_text(path.read_text().replace(old, new))


def test_the_copy_is_a_clean_git_repository_of_its_own_on_top_of_the_series(built: Project, copy: Path) -> None:
    assert git(copy, "status", "--porcelain") == ""
    assert git(copy, "branch", "--show-current") == "work"
    assert git(copy, "log", "-1", "--format=%s") == "use-sdpa"
    assert git(copy, "remote") == ""
    assert not (copy / ".git/objects/info/alternates").exists()
    assert 'BACKEND = "sdpa"' in (copy / "tool/__init__.py").read_text()


def test_run_imports_the_edit_and_the_env_stays_as_it_was(built: Project, copy: Path) -> None:
    receipt = (built.current / "envsmith.json").read_bytes()
    assert ran(built).out == f"sdpa {copy}/tool/__init__.py\n"
    edit(copy)
    assert ran(built).out == f"eager {copy}/tool/__init__.py\n"
    lines = built.run("run", "demo/app", "--root", built.envs, "--print", json=False).out
    assert f"_envsmith_prepend PYTHONPATH {copy}\n" in lines
    assert str(copy) not in (built.current / "env.sh").read_text()
    assert (built.current / "envsmith.json").read_bytes() == receipt


@pytest.mark.parametrize("level", [(), ("--all",)])
def test_verify_names_the_copy_and_what_differs_as_a_note(built: Project, copy: Path, level: tuple[str, ...]) -> None:
    said = built.verify(*level)
    assert (said.code, said.kinds) == (0, {"sources/job-layer"}), said.out
    (note,) = findings(said)
    assert (note["severity"], note["subject"]) == ("note", "tool")
    assert str(copy) in note["message"]
    assert git(copy, "rev-parse", "HEAD")[:12] in note["message"]
    assert "holds the locked tree" in note["message"]
    assert note["hint"] == "`envsmith work demo/app --root envs tool --forget` takes it out"
    edit(copy)
    (copy / "tool/extra.py").write_text("X = 1\n")
    said = built.verify(*level)
    assert (said.code, said.kinds) == (0, {"sources/job-layer"}), said.out
    assert "differs from the locked tree: `tool/__init__.py`, `tool/extra.py`" in findings(said)[0]["message"]


def test_a_commit_in_the_copy_differs_too(built: Project, copy: Path) -> None:
    edit(copy)
    git(copy, "commit", "--quiet", "--all", "--message", "mine")
    (note,) = findings(built.verify())
    assert git(copy, "rev-parse", "HEAD")[:12] in note["message"]
    assert "differs" in note["message"]


def test_drift_beside_a_work_copy_is_still_drift(built: Project, copy: Path) -> None:
    edit(copy)
    edit(built.current.resolve() / "src/tool")
    said = built.verify()
    assert said.code == 1
    assert said.kinds == {"sources/job-layer", "sources/source-edited"}


def test_a_source_without_git_is_compared_no_more_but_still_named(built: Project, copy: Path) -> None:
    shutil.rmtree(copy / ".git")
    said = built.verify()
    assert (said.code, said.kinds) == (0, {"sources/job-layer"})
    assert "cannot compare" in findings(said)[0]["message"]


def test_a_copy_that_has_gone_is_a_warning_and_run_leaves_it_out(built: Project, copy: Path) -> None:
    shutil.rmtree(copy)
    said = built.verify()
    assert (said.code, said.kinds) == (0, {"sources/job-layer-missing"})
    assert findings(said)[0]["severity"] == "warning"
    after = ran(built)
    assert after.out == f"sdpa {built.current.resolve()}/src/tool/tool/__init__.py\n"
    assert "warning[job-layer-missing]" in after.err
    assert work(built, "-o", "another").code == 0


def test_forget_removes_the_record_and_nothing_else(built: Project, copy: Path) -> None:
    edit(copy)
    said = work(built, "--forget")
    assert said.json["data"]["directory"] == str(copy)
    assert 'BACKEND = "eager"' in (copy / "tool/__init__.py").read_text()
    assert ran(built).out.startswith("sdpa ")
    assert findings(built.verify()) == []
    assert list(built.envs.rglob("*.work.json")) == []
    assert work(built, "--forget").codes == ["work-not-recorded"]


def test_the_record_lies_beside_the_env(built: Project, copy: Path) -> None:
    env = built.current.resolve()
    record = env.with_name(f"{env.name}.work.json")
    assert json.loads(record.read_text()) == {"tool": str(copy)}
    record.write_text("[]")
    assert built.verify().codes == ["work-record-malformed"]


def test_what_cannot_be_done_is_refused_and_leaves_nothing(built: Project) -> None:
    full = built.folder / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    assert work(built, "-o", full).codes == ["work-exists"]
    assert [path.name for path in full.iterdir()] == ["mine.txt"]
    assert work(built, "-o", "a:b").codes == ["work-place"]
    assert work(built, "-o", built.current / "mine").codes == ["work-place"]
    assert work(built).codes == ["usage"]
    assert built.run("work", "demo/app", "alpha", "-o", "x", "--root", built.envs).codes == ["unknown-source"]
    assert list(built.envs.rglob("*.work.json")) == []
    assert work(built, "-o", "once").code == 0
    assert work(built, "-o", "twice").codes == ["work-recorded"]


def test_an_env_whose_own_copy_was_rewritten_gives_no_work_copy(built: Project) -> None:
    own = built.current.resolve() / "src/tool"
    edit(own)
    git(own, "commit", "--quiet", "--all", "--message", "sneaked in")
    said = work(built, "-o", "copy")
    assert (said.code, said.codes) == (5, ["tree-differs"])
    assert not (built.folder / "copy").exists()


def test_a_source_in_a_src_folder_is_imported_from_there(project: Project, index: object) -> None:
    upstream = project.folder / "upstream"
    (upstream / "src").mkdir()
    git(upstream, "mv", "tool", "src/tool")
    backend = upstream / "tree_backend.py"
    backend.write_text(backend.read_text().replace('os.getcwd() + "\\n"', 'os.getcwd() + "/src\\n"'))
    git(upstream, "commit", "--quiet", "--all", "--message", "move")
    head = git(upstream, "rev-parse", "HEAD")
    text = project.recipe.read_text()
    old = next(line for line in text.splitlines() if line.startswith("commit = "))
    project.edit(old, f'commit = "{head}"')
    project.edit('series = ["tool-1/demo.series"]\n', "")
    said = project.build()
    assert said.code == 0, said.out + said.err
    assert work(project, "-o", "copy").code == 0
    assert ran(project).out == f"flash {project.folder}/copy/src/tool/__init__.py\n"
    assert project.verify("--all").kinds == {"sources/job-layer"}


def test_what_the_build_backend_left_comes_along_and_is_ignored(project: Project, index: object) -> None:
    upstream = project.folder / "upstream"
    backend = upstream / "tree_backend.py"
    left = (
        '    open("tool/_left [1].py", "w").write("LEFT = 1\\n")\n'
        '    os.makedirs("tool.egg-info", exist_ok=True)\n'
        '    open("tool.egg-info/PKG-INFO", "w").write("Metadata-Version: 2.1\\nName: tool\\nVersion: 1.0\\n")\n'
    )
    text = backend.read_text()
    head = "def build_editable(wheel_directory, config_settings=None, metadata_directory=None):\n"
    assert head in text
    backend.write_text(text.replace(head, head + left))
    git(upstream, "commit", "--quiet", "--all", "--message", "leave files")
    old = next(line for line in project.recipe.read_text().splitlines() if line.startswith("commit = "))
    project.edit(old, f'commit = "{git(upstream, "rev-parse", "HEAD")}"')
    project.edit('series = ["tool-1/demo.series"]\n', "")
    said = project.build()
    assert said.code == 0, said.out + said.err
    assert work(project, "-o", "copy").code == 0
    copy = project.folder / "copy"
    assert (copy / "tool/_left [1].py").read_text() == "LEFT = 1\n"
    assert not (copy / "tool.egg-info").exists()
    assert git(copy, "status", "--porcelain") == ""
    (note,) = findings(project.verify())
    assert "holds the locked tree" in note["message"]
