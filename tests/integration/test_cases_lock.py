"""Failures that others met while resolving and building, as recipes of ours: what `envsmith lock` does about each.

The ids are those of facts/symptoms.md. Wheels, index, uv and the program are real; only the packages are small.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envsmith.lock import Lock, parse
from envsmith.tools.uv import uv_binary
from tests.support.index import SimpleIndex
from tests.support.project import PYTHON, Said, envsmith
from tests.support.repos import commit, git, make_repo
from tests.support.wheels import make_sdist, make_wheel


class Case:
    """A recipe over a served folder of wheels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wheels = folder / "wheels"
        self.wheels.mkdir()
        (folder / "stacks").mkdir()

    def recipe(self, requires: list[str], *lines: str) -> None:
        head = f'[stack]\nname = "case"\n\n[env.a]\npython = "{PYTHON}"\nrequires = {requires}\n'
        (self.folder / "stacks" / "case.toml").write_text(head + "\n".join(lines) + "\n")

    def lock(self, **env: str) -> Said:
        return envsmith("lock", "case", "--json", cwd=self.folder, env=env)

    def read(self) -> Lock:
        path = self.folder / "stacks" / "pylock.case-a.toml"
        return parse(path.read_text(), path.name)

    @property
    def locked(self) -> bool:
        return (self.folder / "stacks" / "pylock.case-a.toml").exists()


@pytest.fixture
def case(tmp_path: Path) -> Case:
    folder = tmp_path / "case"
    folder.mkdir()
    return Case(folder)


@pytest.fixture
def index(case: Case, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleIndex]:
    with SimpleIndex(case.wheels) as served:
        monkeypatch.setenv("ENVSMITH_INDEX", served.url)
        yield served


def versions(lock: Lock) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in lock.wheels}


# --- D29: the machine's own index settings ---


@pytest.mark.parametrize("variable", ["PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX", "PIP_INDEX_URL"])
def test_d29_an_index_of_the_machine_does_not_bring_another_build(
    case: Case, index: SimpleIndex, tmp_path: Path, variable: str
) -> None:
    make_wheel(case.wheels, "ztorch", "2.12.0.dev20260530+cu130")
    cpu = tmp_path / "cpu"
    make_wheel(cpu, "ztorch", "2.12.0+cpu")
    case.recipe(["ztorch>=2.12.0.dev1"])
    with SimpleIndex(cpu) as ambient:
        said = case.lock(**{variable: ambient.url})
        assert (said.code, ambient.log) == (0, [])
    assert versions(case.read()) == {"ztorch": "2.12.0.dev20260530+cu130"}


def test_d29_settings_files_of_pip_and_uv_are_not_read(case: Case, index: SimpleIndex, tmp_path: Path) -> None:
    make_wheel(case.wheels, "ztorch", "2.11.0")
    cpu = tmp_path / "cpu"
    make_wheel(cpu, "ztorch", "2.12.0+cpu")
    home = Path(os.environ["HOME"])
    for path, text in (
        (home / ".config/pip/pip.conf", f"[global]\nfind-links = {cpu}\n"),
        (home / ".pip/pip.conf", f"[global]\nfind-links = {cpu}\n"),
        (home / ".config/uv/uv.toml", f'find-links = ["{cpu}"]\n'),
        (case.folder / "uv.toml", f'find-links = ["{cpu}"]\n'),
        (case.folder / "pyproject.toml", f'[tool.uv]\nfind-links = ["{cpu}"]\n'),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    case.recipe(["ztorch"])
    assert case.lock().code == 0
    assert versions(case.read()) == {"ztorch": "2.11.0"}


# --- D30: a declared conflict that has to be overridden on purpose ---

REASON = "transformers 5.3 was tried with this vllm"
OVERRIDE = 'override = ["ztransformers==5.3.0"]'
ACCEPT = (
    f'[[env.a.accept]]\npackage = "zvllm"\nrequirement = "ztransformers<5"\nbecause = "{REASON}"\n'
)  # fmt: skip


@pytest.fixture
def d30(case: Case, index: SimpleIndex) -> Case:
    make_wheel(case.wheels, "zvllm", "0.18.0", requires=["ztransformers>=4.56.0,<5"])
    make_wheel(case.wheels, "zverl", "0.9.0", requires=["ztransformers"])
    for version in ("4.57.6", "5.3.0"):
        make_wheel(case.wheels, "ztransformers", version)
    return case


D30 = ["zvllm==0.18.0", "zverl==0.9.0", "ztransformers>=5,<5.6"]


def test_d30_without_an_override_it_is_unsatisfiable_in_the_resolvers_words(d30: Case) -> None:
    d30.recipe(D30, ACCEPT)
    said = d30.lock()
    assert (said.code, said.codes) == (2, ["unsatisfiable"])
    message = said.json["errors"][0]["message"]
    assert "zvllm depend on ztransformers>=4.56.0,<5" in message
    assert "ztransformers>=5,<5.6" in message
    assert "override" in said.json["errors"][0]["hint"]
    assert not d30.locked


def test_d30_an_override_alone_is_not_enough(d30: Case) -> None:
    d30.recipe(D30, OVERRIDE)
    said = d30.lock()
    assert (said.code, said.codes) == (2, ["conflict-unaccepted"])
    assert "zvllm 0.18.0 declares `ztransformers<5,>=4.56.0`" in said.json["errors"][0]["message"]
    assert not d30.locked


def test_d30_a_star_does_not_accept_a_clash(d30: Case) -> None:
    d30.recipe(D30, OVERRIDE, ACCEPT.replace("ztransformers<5", "*"))
    assert "conflict-unaccepted" in d30.lock().codes


def test_d30_an_override_with_a_reason_is_locked_with_that_reason(d30: Case) -> None:
    d30.recipe(D30, OVERRIDE, ACCEPT)
    said = d30.lock()
    assert said.code == 0, said.out
    lock = d30.read()
    assert versions(lock) == {"zvllm": "0.18.0", "zverl": "0.9.0", "ztransformers": "5.3.0"}
    (conflict,) = lock.conflicts
    assert (conflict.package, conflict.version, conflict.found) == ("zvllm", "0.18.0", "5.3.0")
    assert conflict.requirement == "ztransformers<5,>=4.56.0"
    assert conflict.because == REASON


def test_d30_the_same_recipe_and_index_give_the_same_bytes(d30: Case) -> None:
    d30.recipe(D30, OVERRIDE, ACCEPT)
    path = d30.folder / "stacks" / "pylock.case-a.toml"
    texts = set()
    for _ in range(2):
        assert d30.lock().code == 0
        texts.add(path.read_bytes())
        path.unlink()
    assert len(texts) == 1


# --- D31: a local version in a vendor's requirement ---


@pytest.fixture
def d31(case: Case, index: SimpleIndex) -> Case:
    make_wheel(case.wheels, "ztorch", "2.1.0")
    make_wheel(case.wheels, "ztorch-npu", "2.1.0.post3", requires=["ztorch==2.1.0+cpu"])
    return case


def test_d31_the_error_names_the_asymmetry_of_local_versions(d31: Case) -> None:
    d31.recipe(["ztorch==2.1.0", "ztorch-npu==2.1.0.post3"])
    said = d31.lock()
    assert (said.code, said.codes) == (2, ["unsatisfiable"])
    assert "ztorch==2.1.0+cpu" in said.json["errors"][0]["message"]
    assert "local version" in said.json["errors"][0]["hint"]
    assert "no-deps" in said.json["errors"][0]["hint"]


def test_d31_without_its_dependencies_the_broken_one_has_to_be_accepted(d31: Case) -> None:
    d31.recipe(["ztorch==2.1.0", "ztorch-npu==2.1.0.post3"], 'no-deps = ["ztorch-npu"]')
    said = d31.lock()
    assert (said.code, said.codes) == (2, ["conflict-unaccepted"])
    accept = '[[env.a.accept]]\npackage = "ztorch-npu"\nrequirement = "ztorch==2.1.0+cpu"\nbecause = "same code"\n'
    d31.recipe(["ztorch==2.1.0", "ztorch-npu==2.1.0.post3"], 'no-deps = ["ztorch-npu"]', accept)
    assert d31.lock().code == 0
    assert [(c.package, c.requirement, c.found) for c in d31.read().conflicts] == [
        ("ztorch-npu", "ztorch==2.1.0+cpu", "2.1.0")
    ]


def test_d31_the_very_build_satisfies_both(d31: Case) -> None:
    make_wheel(d31.wheels, "ztorch", "2.1.0+cpu")
    d31.recipe(["ztorch==2.1.0", "ztorch-npu==2.1.0.post3"])
    assert d31.lock().code == 0
    assert versions(d31.read())["ztorch"] == "2.1.0+cpu"
    assert d31.read().conflicts == ()


# --- D41: a folder that holds an sdist but not what builds it ---

D41_SDIST = {"legacy_pkg/__init__.py": "X = 1\n"}


def test_d41_an_sdist_that_nobody_allowed_is_no_candidate(case: Case, index: SimpleIndex) -> None:
    make_sdist(case.wheels, "legacy-pkg", "1.0", D41_SDIST, backend="setuptools")
    case.recipe(["legacy-pkg==1.0"])
    said = case.lock()
    assert said.code == 2
    assert "legacy-pkg" in said.json["errors"][0]["message"]
    assert not case.locked


def test_d41_a_missing_build_requirement_is_named(case: Case, index: SimpleIndex) -> None:
    make_sdist(case.wheels, "legacy-pkg", "1.0", D41_SDIST, backend="setuptools")
    case.recipe(["legacy-pkg==1.0"], 'build = ["legacy-pkg"]')
    said = case.lock()
    assert (said.code, said.codes) == (2, ["unsatisfiable"])
    assert "setuptools was not found" in said.json["errors"][0]["message"]
    assert not case.locked


@pytest.mark.network
def test_d41_with_setuptools_in_the_folder_it_is_built_and_pinned(case: Case, tmp_path: Path) -> None:
    download(case.wheels, "setuptools==80.9.0")
    make_sdist(case.wheels, "legacy-pkg", "1.0", D41_SDIST, backend="setuptools")
    case.recipe(["legacy-pkg==1.0"], 'build = ["legacy-pkg"]')
    with SimpleIndex(case.wheels) as served:
        said = case.lock(ENVSMITH_INDEX=served.url)
    assert said.code == 0, said.out
    lock = case.read()
    assert [(wheel.name, wheel.version) for wheel in lock.build_requires] == [("setuptools", "80.9.0")]
    (built,) = lock.built
    assert (built.name, built.sdist.filename) == ("legacy-pkg", "legacy_pkg-1.0.tar.gz")
    assert built.build_requires == ("setuptools==80.9.0",)
    assert versions(lock) == {"legacy-pkg": "1.0"}


def download(folder: Path, *requirements: str) -> None:
    """Fetch wheels from the index of whoever runs the tests."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run(
        [*command, "--dest", folder, *requirements], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"these wheels cannot be had here: {done.stderr.strip()[-300:]}")


# --- D42: a version that comes from git, in a copy without its history ---

SCM = {
    "scmpkg/__init__.py": "",
    "pyproject.toml": """\
[build-system]
requires = ["setuptools>=61", "setuptools_scm>=8"]
build-backend = "setuptools.build_meta"

[project]
name = "scmpkg"
dynamic = ["version"]

[tool.setuptools_scm]

[tool.setuptools]
packages = ["scmpkg"]
""",
}


SCM_NEEDS = ("setuptools==80.9.0", "setuptools_scm==8.3.1", "packaging", "typing_extensions", "tomli")


@pytest.mark.network
def test_d42_a_git_source_that_asks_tags_for_its_version_is_told_it_by_the_recipe(case: Case, tmp_path: Path) -> None:
    """A work copy has no tags: without a word from the recipe the version would be 0.1.dev1."""
    download(case.wheels, *SCM_NEEDS)
    upstream = tmp_path / "upstream"
    make_repo(upstream, {path: text.encode() for path, text in SCM.items()})
    git(upstream, "tag", "v1.2.0")
    last = commit(upstream, {"scmpkg/more.py": "X = 1\n"})
    source = ["[env.a.source.scmpkg]", f'git = "{upstream}"', f'commit = "{last}"']
    with SimpleIndex(case.wheels) as served:
        case.recipe([], *source)
        said = case.lock(ENVSMITH_INDEX=served.url)
        assert (said.code, said.codes) == (2, ["source-version-missing"])
        case.recipe([], *source, 'version = "1.2.1.dev1"')
        said = case.lock(ENVSMITH_INDEX=served.url)
    assert said.code == 0, said.out
    (locked,) = case.read().sources
    assert locked.version == "1.2.1.dev1"


@pytest.mark.network
def test_d42_an_sdist_keeps_the_version_that_it_was_released_with(case: Case) -> None:
    """Its PKG-INFO says the version; a work copy of ours must not look like a history without tags."""
    download(case.wheels, *SCM_NEEDS)
    make_sdist(case.wheels, "scmpkg", "1.2.0", SCM)
    case.recipe(["scmpkg==1.2.0"], 'build = ["scmpkg"]')
    with SimpleIndex(case.wheels) as served:
        said = case.lock(ENVSMITH_INDEX=served.url)
    assert said.code == 0, said.out
    (built,) = case.read().built
    assert built.filename == "scmpkg-1.2.0-py3-none-any.whl"


# --- D33: an sdist imports at build time what it does not declare ---


def test_d33_a_build_that_imports_torch_without_declaring_it_is_named(case: Case) -> None:
    """Isolation is not the fault: no lock could pin what an undeclared requirement builds against."""
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "flash_backend"\nbackend-path = ["."]\n',
        "flash_backend.py": "import torch\n",
        "fakeflash/__init__.py": "",
    }
    make_sdist(case.wheels, "fakeflash", "2.8.3", files)
    case.recipe(["fakeflash==2.8.3"], 'build = ["fakeflash"]')
    with SimpleIndex(case.wheels) as served:
        said = case.lock(ENVSMITH_INDEX=served.url)
    assert (said.code, said.codes) == (6, ["build-requirement-undeclared"])
    assert "`torch`" in said.json["errors"][0]["message"]
    assert "ENVSMITH_FIND_LINKS" in said.json["errors"][0]["hint"]


# --- what the cases rest on ---


def test_uv_knows_every_platform_that_a_target_names() -> None:
    from envsmith.target import Target

    command: list[str | Path] = [uv_binary(), "pip", "compile", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"\w+-manylinux_2_\d+", said))
    targets = [
        Target(python="3.11", arch=arch, glibc=f"2.{n}") for arch in ("x86_64", "aarch64") for n in range(17, 46)
    ]
    assert known == {target.uv_platform() for target in targets}
