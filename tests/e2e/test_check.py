"""`envsmith check` as a process: rules over a real recipe, a real source and a real configuration."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.index import SimpleIndex
from tests.support.project import Project, diff, make_project, write_series
from tests.support.repos import make_repo
from tests.support.wheels import project_files

#: `annotationlib` came with Python 3.14.
LATE = 'from annotationlib import Format\n\n\ndef load(m):\n    return m(attn_implementation="flash_attention_2")\n'
PATCHED = LATE.replace('"flash_attention_2"', "None")


@pytest.fixture
def coded(tmp_path: Path) -> Project:
    """The project with a source whose code breaks rules."""
    project = make_project(tmp_path / "coded")
    files = project_files("tool", "1.0", {"tool/__init__.py": LATE}, requires=["gamma"])
    commit = make_repo(tmp_path / "coded" / "code", files)
    old = next(line for line in project.recipe.read_text().splitlines() if line.startswith("commit"))
    project.edit(old, f'commit = "{commit}"')
    project.edit(f'git = "{project.folder / "upstream"}"', f'git = "{project.folder / "code"}"')
    project.edit('series = ["tool-1/demo.series"]\n', "deps = false\n")
    project.edit("[env.app.launch]", '[env.app.job]\nattention = "sdpa"\n\n[env.app.launch]')
    accept = '[[env.app.accept]]\npackage = "tool"\nrequirement = "*"\nbecause = "not run"\n\n'
    project.edit("[env.app.source.tool]", f"{accept}[env.app.source.tool]")
    write_series(
        project.folder / "patches" / "tool-2", commit, "sdpa.patch", diff("tool/__init__.py", LATE, PATCHED), "fix"
    )
    return project


def locked(project: Project) -> Project:
    with SimpleIndex(project.index) as served:
        said = project.run("lock", "demo", env={"ENVSMITH_INDEX": served.url})
        assert said.code == 0, said.out + said.err
    return project


def test_without_lock_and_code_it_says_so_and_makes_no_store(project: Project, tmp_path: Path) -> None:
    said = project.run("check", "demo")
    assert (said.code, said.kinds) == (1, {"lock/lock-missing", "rules/source-not-at-hand"})
    assert list((tmp_path / "store").iterdir()) == []


def test_a_fresh_project_has_no_findings(built: Project) -> None:
    said = built.run("check", "demo", json=False)
    assert (said.code, said.out) == (0, "stacks/demo.toml: no findings (recipe, patches, lock, rules)\n")


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="the planted name is in this Python")
def test_code_is_read_after_its_series_and_nothing_is_left_behind(coded: Project, tmp_path: Path) -> None:
    locked(coded)
    before = sorted(path for path in (tmp_path / "store").rglob("*") if "git" not in path.parts)
    said = coded.run("check", "demo", env={"TMPDIR": str(tmp_path / "cwd")})
    assert (said.code, said.kinds) == (1, {"rules/stdlib-too-old", "rules/attention-hard-coded"})
    assert {finding["subject"] for finding in said.json["data"]["findings"]} == {
        "src/tool/tool/__init__.py:1", "src/tool/tool/__init__.py:5",
    }  # fmt: skip
    assert sorted(path for path in (tmp_path / "store").rglob("*") if "git" not in path.parts) == before
    assert list((tmp_path / "cwd").iterdir()) == []
    coded.edit("deps = false\n", 'deps = false\nseries = ["tool-2/demo.series"]\n')
    assert coded.run("check", "demo").kinds == {"lock/lock-stale", "rules/stdlib-too-old"}


def test_a_built_env_has_the_code_when_the_store_is_gone(built: Project, tmp_path: Path) -> None:
    environ = {"ENVSMITH_HOME": str(tmp_path / "empty"), "ENVSMITH_ROOT": str(built.envs)}
    assert built.run("check", "demo", env=environ).kinds == set()
    (built.current / "src" / "tool" / "tool" / "__init__.py").write_text("edited\n")
    assert built.run("check", "demo", env=environ).kinds == {"rules/source-not-at-hand"}


def test_a_llamafactory_file_is_laid_over_the_recipe(built: Project) -> None:
    built.edit("[host]", '[host]\ncompute-capability = ["7.0"]')
    assert built.run("check", "demo").code == 0
    config = built.folder / "sft.yaml"
    config.write_text("bf16: true\nflash_attn: fa2\ndeepspeed: nowhere/ds.json\n")
    said = built.run("check", "demo", "--config", config)
    assert said.code == 1
    assert said.kinds == {
        "rules/bf16-unsupported", "rules/flash-attention-unsupported", "rules/deepspeed-config-not-at-hand",
    }  # fmt: skip
    assert "sft.yaml: bf16" in {finding["subject"] for finding in said.json["data"]["findings"]}


def test_a_deepspeed_file_beside_it_is_read(built: Project) -> None:
    built.edit('requires = ["alpha", "beta", "delta"]', 'requires = ["alpha", "beta", "delta", "deepspeed"]')
    (built.folder / "ds.json").write_text(json.dumps({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}))
    (built.folder / "sft.yaml").write_text("deepspeed: ds.json\n")
    built.lock.unlink()
    said = built.run("check", "demo", "--config", "sft.yaml")
    assert "rules/cpu-adam-unpatched" in said.kinds


def test_overrides_are_laid_over_the_recipe(built: Project) -> None:
    overrides = built.folder / "grpo.txt"
    overrides.write_text(
        "actor_rollout_ref.model.use_fused_kernels=True\n"
        "actor_rollout_ref.actor.fsdp_config.param_offload=True\n"
    )  # fmt: skip
    said = built.run("check", "demo", "--env", "app", "--config", overrides)
    assert (said.code, said.kinds) == (1, {"rules/offload-with-fused-kernels"})
    overrides.write_text("actor_rollout_ref.model.use_fused_kernels=True\n")
    assert built.run("check", "demo", "--config", overrides).code == 0


@pytest.mark.parametrize(
    ("text", "code"), [(None, "job-config-unreadable"), ("nonsense here", "job-config-syntax")]
)  # fmt: skip
def test_a_configuration_that_cannot_be_read_is_an_error(project: Project, text: str | None, code: str) -> None:
    config = project.folder / "job.txt"
    if text is not None:
        config.write_text(text)
    said = project.run("check", "demo", "--config", config)
    assert (said.code, said.codes) == (2, [code])


def test_a_configuration_is_for_one_env(project: Project) -> None:
    project.recipe.write_text(project.recipe.read_text() + '\n[env.other]\npython = "3.11"\n')
    (project.folder / "job.txt").write_text("")
    said = project.run("check", "demo", "--config", "job.txt")
    assert (said.code, said.codes) == (2, ["usage"])
    assert "app, other" in said.json["errors"][0]["hint"]
    assert project.run("check", "demo", "--env", "nothing").codes == ["unknown-env"]


def test_a_recipe_in_the_current_folder_has_its_name_too(project: Project) -> None:
    """Hints name it like this, whatever path it was given by."""
    (project.folder / "mine.toml").write_text(project.recipe.read_text().replace('name = "demo"', 'name = "mine"'))
    assert project.run("check", "mine").codes == project.run("check", "mine.toml").codes
    assert project.run("check", "mine").kinds == {"lock/lock-missing"} | project.run("check", "mine.toml").kinds
