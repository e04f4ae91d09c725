"""Bad input and bad luck: one clear error, the right exit code, nothing half-written, the old env untouched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.index import SimpleIndex
from tests.support.project import Project, Said, envsmith
from tests.support.wheels import make_wheel

#: A port of this machine that nobody listens on.
NOBODY = "http://127.0.0.1:9/simple"


def in_namespace(project: Project, mount: str, *words: str, env: dict[str, str] | None = None) -> Said:
    """Run the program after a mount that nobody else sees; root only."""
    script = f"{mount} && exec {sys.executable} -m envsmith {' '.join(words)} --json"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], cwd=project.folder, env={**os.environ, **(env or {})},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode in (1, 32) and not done.stdout:
        pytest.skip(f"no private mounts here: {done.stderr.strip()}")
    assert "Traceback" not in done.stderr + done.stdout, done.stderr
    return Said(done.returncode, done.stdout, done.stderr)


def test_unreachable_index_while_locking_leaves_no_lock(project: Project) -> None:
    said = project.run("lock", "demo", env={"ENVSMITH_INDEX": NOBODY})
    assert (said.code, said.codes) == (4, ["index-unreachable"])
    assert not project.lock.exists()


def test_unreachable_index_while_building_keeps_the_old_env(built: Project, tmp_path: Path) -> None:
    old = built.current.resolve()
    built.edit('DEMO_MODE = "on"', 'DEMO_MODE = "off"')
    said = built.build(env={"ENVSMITH_INDEX": NOBODY, "ENVSMITH_HOME": str(tmp_path / "empty")})
    assert (said.code, said.codes) == (4, ["index-unreachable"])
    assert built.current.resolve() == old
    assert built.verify().code == 0


def test_a_file_with_another_content_is_an_alarm(project: Project, index: SimpleIndex, tmp_path: Path) -> None:
    project.run("lock", "demo")
    index.faults.hashes = False  # a mirror that states none: the download decides
    make_wheel(project.index, "gamma", "0.3", {"gamma/__init__.py": "evil = 1\n"})
    said = project.build(env={"ENVSMITH_HOME": str(tmp_path / "fresh")})
    assert (said.code, said.codes) == (5, ["wheel-digest-differs"])
    assert "gamma-0.3-py3-none-any.whl" in said.json["errors"][0]["message"]
    assert not project.current.exists()


def test_a_missing_wheel_is_named_with_the_places_that_were_asked(
    project: Project, index: SimpleIndex, tmp_path: Path
) -> None:
    project.run("lock", "demo")
    (project.index / "gamma-0.3-py3-none-any.whl").unlink()
    said = project.build(env={"ENVSMITH_HOME": str(tmp_path / "fresh")})
    assert (said.code, said.codes) == (4, ["file-not-found"])
    (error,) = said.json["errors"]
    assert "gamma-0.3-py3-none-any.whl" in error["message"]
    assert index.url in error["where"]


def test_offline_names_every_missing_file_at_once(project: Project, index: SimpleIndex, tmp_path: Path) -> None:
    project.run("lock", "demo")
    said = project.build("--offline", env={"ENVSMITH_HOME": str(tmp_path / "fresh")})
    assert said.code == 4
    assert set(said.codes) == {"offline-missing"}
    words = json.dumps(said.json["errors"])
    assert all(name in words for name in ("alpha-1.0", "beta-2.0", "gamma-0.3", "delta-0.5.tar.gz"))


def test_a_full_disk_under_the_root_is_said_and_keeps_the_old_env(built: Project) -> None:
    old = built.current.resolve()
    built.edit('DEMO_MODE = "on"', 'DEMO_MODE = "off"')
    full = built.folder / "full"
    full.mkdir()
    said = in_namespace(built, f"mount -t tmpfs -o size=40k none {full}", "build", "demo", "--root", str(full))
    assert said.code in (4, 6), said.out
    assert set(said.codes) & {"disk-full", "venv-failed", "install-failed"}
    assert "space" in said.out
    assert built.current.resolve() == old


def test_a_full_disk_under_the_store_is_said(project: Project, index: SimpleIndex, tmp_path: Path) -> None:
    project.run("lock", "demo")
    make_wheel(project.index, "gamma", "0.4", {"gamma/__init__.py": "", "gamma/big.bin": os.urandom(300_000)})
    project.run("lock", "demo", "--upgrade-package", "gamma")
    home = tmp_path / "small"
    home.mkdir()
    said = in_namespace(
        project, f"mount -t tmpfs -o size=200k none {home}", "build", "demo", "--root", str(project.envs),
        env={"ENVSMITH_HOME": str(home)},
    )  # fmt: skip
    assert (said.code, set(said.codes)) == (4, {"disk-full"})
    assert not project.current.exists()


def test_a_read_only_root_is_said(project: Project, index: SimpleIndex) -> None:
    project.run("lock", "demo")
    root = project.folder / "readonly"
    root.mkdir()
    said = in_namespace(project, f"mount -t tmpfs -o ro none {root}", "build", "demo", "--root", str(root))
    assert (said.code, said.codes) == (4, ["root-not-writable"])


def test_a_missing_interpreter_lists_what_was_seen(project: Project, index: SimpleIndex) -> None:
    project.recipe.write_text('[stack]\nname = "demo"\n[env.app]\npython = "3.99"\nrequires = ["gamma"]\n')
    said = project.build()
    assert (said.code, said.codes) == (4, ["no-interpreter"])
    (error,) = said.json["errors"]
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in error["message"] + str(error["where"])
    assert "ENVSMITH_PYTHON" in error["hint"]
    assert not project.envs.exists()


def test_a_stale_lock_stops_a_locked_build(built: Project) -> None:
    old = built.current.resolve()
    built.edit('"beta", "delta"]', '"beta", "delta", "gamma"]')
    for option in ("--locked", "--offline"):
        said = built.build(option)
        assert (said.code, said.codes) == (1, ["lock-stale"])
    assert built.current.resolve() == old
    assert built.build().code == 0  # without the option it is locked anew, as uv does


def test_a_missing_lock_stops_a_locked_build(project: Project, index: SimpleIndex) -> None:
    said = project.build("--locked")
    assert (said.code, said.codes) == (1, ["lock-missing"])
    assert not project.envs.exists()


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("build", "demoo"), 2, "unknown-stack"),
        (("build", "./no/such.toml"), 2, "unknown-stack"),
        (("build", "demo", "--env", "apq"), 2, "unknown-env"),
        (("build", "demo", "--source", "tool"), 2, "usage"),
        (("biuld",), 2, "usage"),
        (("build", "--no-such-option"), 2, "usage"),
        (("verify", "demo/app"), 1, "env-missing"),
        (("verify", "demo"), 2, "env-name"),
        (("verify", "/no/such/env"), 1, "env-missing"),
        (("run", "demo/app", "--", "true"), 1, "env-missing"),
        (("lock", "demo", "--upgrade-package", "nothing"), 2, "unknown-package"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_words_get_one_error_and_the_envelope(
    project: Project, index: SimpleIndex, words: tuple[str, ...], code: int, error: str
) -> None:
    if error == "unknown-package":
        project.run("lock", "demo")
    said = envsmith("--json", *words, cwd=project.folder)
    assert (said.code, said.codes) == (code, [error]), said.out
    assert said.json["status"] == "error"
    assert set(said.json) == {"envsmith", "command", "status", "exit_code", "data", "errors"}
    plain = envsmith(*words, cwd=project.folder)
    assert plain.code == code
    assert plain.out == ""
    assert plain.err.startswith((f"error[{error}]: ", "lock "))


def test_did_you_mean_is_said_for_stacks_verbs_and_families(project: Project) -> None:
    assert "did you mean `demo`?" in envsmith("build", "demoo", cwd=project.folder).err
    assert "Did you mean `build`?" in envsmith("biuld", cwd=project.folder).err


def test_every_problem_of_a_recipe_is_said_at_once_with_its_line(project: Project) -> None:
    project.edit('glibc = "2.17"', 'glibc = "two"\nkernal = ">=4"')
    project.edit('requires = ["alpha", "beta", "delta"]', 'requires = ["alpha =>1"]\nno-deps = ["zeta"]')
    said = project.run("check", "demo")
    assert said.code == 2
    where = {error["code"]: error["where"] for error in said.json["errors"]}
    assert len(said.json["errors"]) == 4
    assert where["recipe-unknown-key"] == "stacks/demo.toml:6"
    assert where["recipe-contradiction"].startswith("stacks/demo.toml:")


@pytest.mark.parametrize("text", [b"", b"\xff\xfe", b"[stack", b"stack = 3", b"[env]\n", b"a = " + b"[" * 2000])
def test_a_broken_recipe_is_an_input_error(project: Project, text: bytes) -> None:
    project.recipe.write_bytes(text)
    said = project.run("check", "demo")
    assert said.code == 2
    assert said.codes
    assert all(error["where"].startswith("stacks/demo.toml") for error in said.json["errors"])


@pytest.mark.parametrize("text", ["", "lock-version = 3", 'lock-version = "1.0"', 'lock-version = "2.0"'])
def test_a_broken_lock_is_an_input_error(project: Project, text: str) -> None:
    project.lock.write_text(text)
    said = project.build()
    assert said.code == 2
    assert set(said.codes) <= {"lock-syntax", "lock-invalid"}


def test_an_unaccepted_conflict_stops_the_lock_with_a_block_to_paste(project: Project, index: SimpleIndex) -> None:
    text = project.recipe.read_text()
    block = text[text.index("[[env.app.accept]]") : text.index("[env.app.source.tool]")]
    project.recipe.write_text(text.replace(block, ""))
    said = project.run("lock", "demo")
    assert (said.code, said.codes) == (2, ["conflict-unaccepted"])
    assert not project.lock.exists()
    suggested = project.run("lock", "demo", "--suggest-accept", json=False)
    assert suggested.code == 1
    project.recipe.write_text(project.recipe.read_text() + "\n" + suggested.out)
    assert project.run("lock", "demo").code == 0


def test_an_accept_that_no_longer_bites_is_a_warning(project: Project, index: SimpleIndex) -> None:
    project.recipe.write_text(
        project.recipe.read_text()
        + '\n[[env.app.accept]]\npackage = "beta"\nrequirement = "gamma<1"\nbecause = "once"\n'
    )
    said = project.run("lock", "demo")
    assert said.code == 0
    assert [warning["code"] for warning in said.json["data"]["locks"][0]["warnings"]] == ["accept-stale"]


def test_an_unsatisfiable_recipe_is_said_in_the_resolvers_words(project: Project, index: SimpleIndex) -> None:
    project.edit('"beta", "delta"]', '"beta", "delta", "gamma>9"]')
    said = project.run("lock", "demo")
    assert (said.code, said.codes) == (2, ["unsatisfiable"])
    assert "gamma" in said.json["errors"][0]["message"]
    assert said.json["errors"][0]["where"] == "stacks/demo.toml:env.app"


def test_an_sdist_that_build_does_not_allow_is_refused(project: Project, index: SimpleIndex) -> None:
    project.edit('build = ["delta"]\n', "")
    said = project.run("lock", "demo")
    assert said.code == 2
    assert "delta" in said.json["errors"][0]["message"]


def test_a_patch_that_does_not_apply_names_the_patch(project: Project, index: SimpleIndex) -> None:
    patch = project.folder / "patches/tool-1/use-sdpa.patch"
    patch.write_text(patch.read_text().replace('"flash"', '"flesh"'))
    said = project.run("lock", "demo")
    assert (said.code, said.codes) == (2, ["patch-did-not-apply"])
    assert "use-sdpa.patch" in said.json["errors"][0]["message"]
    assert not project.lock.exists()


def test_ambient_index_settings_do_not_change_a_lock(project: Project, index: SimpleIndex, tmp_path: Path) -> None:
    """What machines inject into pip and uv is not seen (facts/symptoms.md D29)."""
    project.run("lock", "demo")
    first = project.lock.read_bytes()
    project.lock.unlink()
    make_wheel(tmp_path / "ambient", "gamma", "9.0")
    (project.folder / "uv.toml").write_text(f'find-links = ["{tmp_path / "ambient"}"]\n')
    ambient = {
        "PIP_FIND_LINKS": str(tmp_path / "ambient"), "UV_FIND_LINKS": str(tmp_path / "ambient"),
        "UV_INDEX_URL": NOBODY, "PIP_INDEX_URL": NOBODY, "UV_CONSTRAINT": "/nowhere", "UV_OVERRIDE": "/nowhere",
    }  # fmt: skip
    assert project.run("lock", "demo", env=ambient).code == 0
    assert project.lock.read_bytes() == first
