"""Failures that others met on machines without a network, as recipes of ours: what bundles do about each.

The ids are those of facts/symptoms.md. Wheels, index, uv and the program are real; only the packages are small.
"""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from envsmith import bundle as form
from tests.integration.test_cases_lock import D41_SDIST, SCM, SCM_NEEDS, Case, download
from tests.support.bundlekit import Bundle, Site
from tests.support.index import SimpleIndex
from tests.support.project import PYTHON, SITE, Said, envsmith
from tests.support.repos import commit, git, make_repo
from tests.support.wheels import make_sdist, make_wheel

ARCH = platform.machine()


@pytest.fixture
def case(tmp_path: Path) -> Case:
    folder = tmp_path / "case"
    folder.mkdir()
    return Case(folder)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


def bundle(case: Case, *words: str) -> tuple[Said, Path]:
    """Make the bundle beside an index that serves the case's wheels."""
    out = case.folder / "bundle"
    with SimpleIndex(case.wheels) as served:
        said = envsmith(
            "bundle", "case", "-o", out, "--no-python", *words, "--json",
            cwd=case.folder, env={"ENVSMITH_INDEX": served.url},
        )  # fmt: skip
    return said, out


def wheels(out: Path, role: str) -> list[str]:
    return [one.name for one in Bundle(out).manifest.of(form.WHEEL) if role in one.roles]


# --- D41: a folder that holds an sdist but not what builds it ---


def test_d41_what_cannot_be_built_here_never_gets_into_a_bundle(case: Case) -> None:
    make_sdist(case.wheels, "legacy-pkg", "1.0", D41_SDIST, backend="setuptools")
    case.recipe(["legacy-pkg==1.0"], 'build = ["legacy-pkg"]')
    said, out = bundle(case)
    assert (said.code, said.codes) == (2, ["unsatisfiable"])
    assert "setuptools was not found" in said.json["errors"][0]["message"]
    assert not out.exists()


def test_d41_a_bundle_carries_the_built_wheel_and_the_target_builds_nothing(case: Case, site: Site) -> None:
    make_sdist(case.wheels, "legacy-pkg", "1.0", D41_SDIST)
    case.recipe(["legacy-pkg==1.0"], 'build = ["legacy-pkg"]')
    said, out = bundle(case)
    assert said.code == 0, said.out
    manifest = Bundle(out).manifest
    assert manifest.of(form.SDIST) == ()
    assert not [one.title for one in manifest.layers if one.title.endswith((".tar.gz", ".zip"))]
    assert wheels(out, "built") == ["legacy_pkg-1.0-py3-none-any.whl"]
    said = site.install(out)
    assert said.code == 0, said.out
    assert not [step for step in said.json["data"]["envs"][0]["steps"] if step.startswith("build")]
    assert (site.root / "case-a" / "current" / SITE / "legacy_pkg" / "__init__.py").is_file()


@pytest.mark.network
def test_d41_with_setuptools_in_the_folder_it_comes_along_as_a_build_requirement(case: Case, site: Site) -> None:
    download(case.wheels, "setuptools==80.9.0")
    make_sdist(case.wheels, "legacy-pkg", "1.0", D41_SDIST, backend="setuptools")
    case.recipe(["legacy-pkg==1.0"], 'build = ["legacy-pkg"]')
    said, out = bundle(case)
    assert said.code == 0, said.out
    assert wheels(out, "build") == ["setuptools-80.9.0-py3-none-any.whl"]
    assert wheels(out, "env") == ["legacy_pkg-1.0-py3-none-any.whl"]
    assert site.install(out).code == 0
    assert not (site.root / "case-a" / "current" / SITE / "setuptools").exists()


# --- D42: a version that comes from git, in a copy without its history ---


def scm_source(case: Case, upstream: Path) -> list[str]:
    make_repo(upstream, {path: text.encode() for path, text in SCM.items()})
    git(upstream, "tag", "v1.2.0")
    last = commit(upstream, {"scmpkg/more.py": "X = 1\n"})
    return ["[env.a.source.scmpkg]", f'git = "{upstream}"', f'commit = "{last}"']


@pytest.mark.network
def test_d42_a_version_that_only_tags_know_stops_a_bundle_until_the_recipe_says_it(
    case: Case, site: Site, tmp_path: Path
) -> None:
    download(case.wheels, *SCM_NEEDS)
    source = scm_source(case, tmp_path / "upstream")
    case.recipe([], *source)
    said, out = bundle(case)
    assert (said.code, said.codes) == (2, ["source-version-missing"])
    assert not out.exists()
    case.recipe([], *source, 'version = "1.2.1.dev1"')
    said, out = bundle(case)
    assert said.code == 0, said.out
    (tmp_path / "upstream").rename(tmp_path / "gone")
    said = site.install(out)
    assert said.code == 0, said.out
    code = "import importlib.metadata as m; print(m.version('scmpkg'))"
    ran = site.run("run", "case/a", "--root", site.root, "--", "python", "-c", code, json=False)
    assert (ran.code, ran.out) == (0, "1.2.1.dev1\n")


def test_d42_a_source_travels_with_its_history_and_is_built_where_its_upstream_is_not(
    case: Case, site: Site, tmp_path: Path
) -> None:
    from tests.support.project import make_tool

    upstream = tmp_path / "upstream"
    last = make_tool(upstream)
    make_wheel(case.wheels, "gamma", "0.3")
    case.recipe([], "[env.a.source.tool]", f'git = "{upstream}"', f'commit = "{last}"')
    said, out = bundle(case)
    assert said.code == 0, said.out
    upstream.rename(tmp_path / "gone")
    (source,) = Bundle(out).manifest.of(form.SOURCE)
    assert source.title == f"sources/tool@{last}.bundle"
    git(tmp_path, "clone", "--quiet", str(Bundle(out).blobs / source.sha256), "clone")
    assert git(tmp_path / "clone", "rev-parse", "HEAD") == last
    assert len(git(tmp_path / "clone", "log", "--format=%H").split()) == 2
    said = site.install(out)
    assert said.code == 0, said.out


# --- D43: wheels that are newer than the glibc of the target ---


def d43(case: Case, glibc: str) -> None:
    make_wheel(case.wheels, "ztorch", "2.4.1+das.opt2.dtk2504", tag=f"py3-none-manylinux_2_28_{ARCH}")
    make_wheel(case.wheels, "znumpy", "1.26.4", tag=f"py3-none-manylinux_2_17_{ARCH}.manylinux2014_{ARCH}")
    head = f'[stack]\nname = "case"\n\n[host]\narch = "{ARCH}"\nglibc = "{glibc}"\n\n[env.a]\npython = "{PYTHON}"\n'
    requires = 'requires = ["ztorch", "znumpy"]\n'
    (case.folder / "stacks" / "case.toml").write_text(head + requires)


def test_d43_only_the_wheel_that_the_target_cannot_load_is_refused_whatever_this_machine_could(case: Case) -> None:
    d43(case, "2.17")
    said, out = bundle(case)
    assert said.code == 2, said.out
    text = " ".join(error["message"] for error in said.json["errors"])
    assert "ztorch" in text
    assert not out.exists()


def test_d43_a_target_that_is_new_enough_gets_the_wheel_under_its_own_name(case: Case, site: Site) -> None:
    d43(case, "2.28")
    said, out = bundle(case)
    assert said.code == 0, said.out
    names = wheels(out, "env")
    assert f"ztorch-2.4.1+das.opt2.dtk2504-py3-none-manylinux_2_28_{ARCH}.whl" in names
    envs = site.inside("inspect", out).json["data"]["config"]["envs"]
    assert (envs["a"]["glibc"], envs["a"]["arch"]) == ("2.28", ARCH)


@pytest.mark.parametrize(
    ("key", "value", "word"),
    [("glibc", "2.99", "glibc 2.99"), ("arch", "aarch64" if ARCH != "aarch64" else "x86_64", "was locked for")],
)
def test_d43_a_machine_that_is_older_or_another_is_refused_before_anything_is_copied(
    case: Case, site: Site, key: str, value: str, word: str
) -> None:
    """The lock of a wheel that runs anywhere is made for the target all the same."""
    make_wheel(case.wheels, "gamma", "0.3")
    given = {"glibc": "2.28", "arch": ARCH, key: value}
    lines = "".join(f'{name} = "{one}"\n' for name, one in given.items())
    if key == "glibc":
        # No table knows a glibc that nobody has: the bundle's own word is what counts on the target.
        lines = lines.replace("2.99", "2.45")
    (case.folder / "stacks" / "case.toml").write_text(
        f'[stack]\nname = "case"\n\n[host]\n{lines}\n[env.a]\npython = "{PYTHON}"\nrequires = ["gamma"]\n'
    )
    said, out = bundle(case)
    assert said.code == 0, said.out
    said = site.refused(out)
    assert (said.code, said.codes) == (3, ["bundle-other-machine"])
    assert word.replace("2.99", "2.45") in said.json["errors"][0]["message"]
    assert not list((site.store / "blobs").rglob("*"))
    assert site.untouched
