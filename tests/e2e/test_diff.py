"""`envsmith diff`: two locks, wherever they lie, and a clear no to anything else."""

from __future__ import annotations

from pathlib import Path

from tests.support.project import PYTHON, Project
from tests.support.wheels import make_wheel


def test_a_built_env_and_its_recipe_have_the_same_lock(built: Project) -> None:
    for words in (("demo/app", built.lock), (built.current, "demo/app"), (built.current.resolve(), built.lock)):
        said = built.run("diff", *words)
        assert (said.code, said.json["status"], said.json["data"]["changes"]) == (0, "ok", [])
    text = built.run("diff", "demo/app", built.current, json=False)
    assert (text.code, text.err) == (0, "")
    assert "are equal" in text.out


def test_what_a_new_lock_changed_is_said(built: Project) -> None:
    make_wheel(built.index, "gamma", "0.10")
    tool = built.folder / "patches/tool-1/use-sdpa.patch"
    tool.write_text(tool.read_text().replace('+BACKEND = "sdpa"', '+BACKEND = "eager"'))
    built.edit("alpha 1.0 runs with beta 2.0", "it was tried")
    assert built.run("lock", "demo", "--upgrade").code == 0
    said = built.run("diff", built.current, "demo/app")
    assert (said.code, said.json["status"]) == (1, "findings"), said.out
    data = said.json["data"]
    found = {(change["part"], change["name"]): change for change in data["changes"]}
    assert (found["package", "gamma"]["kind"], found["package", "gamma"]["new"]) == ("up", "0.10")
    details = {detail["field"]: detail for detail in found["source", "tool"]["details"]}
    assert {"tree", "patch tool-1/use-sdpa.patch"} <= details.keys()
    assert found["conflict", "alpha: beta<2"]["details"][0]["new"] == "it was tried"
    assert data["bytes"]["change"] == sum(c["bytes"] for c in data["changes"] if c["part"] == "package")
    text = built.run("diff", built.current, "demo/app", json=False).out
    assert "up       gamma 0.3 -> 0.10" in text
    assert "because: alpha 1.0 runs with beta 2.0 -> it was tried" in text


def test_anything_but_a_lock_is_refused_in_words(built: Project, tmp_path: Path) -> None:
    (tmp_path / "bundle.tar").write_bytes(b"\xff" * 2048)
    (tmp_path / "snapshot.toml").write_text("[host]\nglibc = '2.31'\n")
    for word in (tmp_path / "bundle.tar", tmp_path / "snapshot.toml", tmp_path, tmp_path / "nothing.toml"):
        said = built.run("diff", word, "demo/app")
        assert (said.code, said.codes) == (2, ["diff-unsupported"]), word
        assert "compares locks" in said.json["errors"][0]["hint"]
    assert built.run("diff", "demo/nothing", "demo/app").codes == ["unknown-env"]
    assert built.run("diff", "nothing/app", "demo/app").codes == ["unknown-stack"]


def test_a_stack_without_a_lock_says_how_to_make_one(project: Project) -> None:
    said = project.run("diff", "demo/app", "demo/app")
    assert (said.code, said.codes) == (1, ["lock-missing"])
    assert PYTHON in project.recipe.read_text()
