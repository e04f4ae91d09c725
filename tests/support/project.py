"""A whole user's project in miniature: recipe, index, git source with a series, a patched wheel, an allowed sdist.

Everything about it is real (uv, git, wheels, an HTTP index on this machine), only small.
"""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.repos import git, make_repo
from tests.support.wheels import make_sdist, make_wheel, project_files

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
SITE = f"lib/python{PYTHON}/site-packages"

TOOL = 'def main():\n    print("backend:", BACKEND)\n\n\nBACKEND = "flash"\n'
TOOL_PATCHED = TOOL.replace('"flash"', '"sdpa"')
ALPHA = "def answer():\n    return 41\n"
ALPHA_PATCHED = ALPHA.replace("41", "42")

RECIPE = """\
[stack]
name = "demo"

[host]
glibc = "2.17"

[env.app]
python = "{python}"
requires = ["alpha", "beta", "delta"]
override = ["beta==2.0"]
build = ["delta"]

[[env.app.accept]]
package = "alpha"
requirement = "beta<2"
because = "alpha 1.0 runs with beta 2.0"

[env.app.source.tool]
git = "{git}"
commit = "{commit}"
series = ["tool-1/demo.series"]

[env.app.patch.alpha]
series = ["alpha-1.0/demo.series"]

[env.app.launch]
set = {{ DEMO_MODE = "on" }}
short-dirs = {{ DEMO_TMP = "{{scratch}}/d" }}

[env.app.verify]
imports = ["alpha", "beta.core", "tool"]
attributes = ["alpha.answer"]
launchers = ["beta-run", "tool"]
"""


@dataclass(frozen=True, slots=True)
class Said:
    """How one run of the program ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def codes(self) -> list[str]:
        """Codes of its problems."""
        return [error["code"] for error in self.json["errors"]]

    @property
    def kinds(self) -> set[str]:
        """`check/kind` of its findings."""
        return {f"{finding['check']}/{finding['kind']}" for finding in self.json["data"]["findings"]}


@dataclass(frozen=True, slots=True)
class Project:
    """A folder with `stacks/demo.toml`, what it needs, and a root of its own for envs."""

    folder: Path
    index: Path
    """The folder of wheels and sdists that an index serves."""

    @property
    def recipe(self) -> Path:
        return self.folder / "stacks" / "demo.toml"

    @property
    def lock(self) -> Path:
        return self.folder / "stacks" / "pylock.demo-app.toml"

    @property
    def envs(self) -> Path:
        return self.folder / "envs"

    @property
    def current(self) -> Path:
        return self.envs / "demo-app" / "current"

    @property
    def site(self) -> Path:
        return self.current.resolve() / SITE

    def edit(self, old: str, new: str) -> None:
        """Change the recipe."""
        text = self.recipe.read_text()
        assert text.count(old) == 1, text.count(old)
        self.recipe.write_text(text.replace(old, new))

    def run(self, *words: str | Path, env: Mapping[str, str] | None = None, json: bool = True) -> Said:
        """Run the program in the project's folder."""
        return envsmith(*words, *(["--json"] if json else []), cwd=self.folder, env=env)

    def build(self, *words: str | Path, env: Mapping[str, str] | None = None) -> Said:
        return self.run("build", "demo", "--root", self.envs, *words, env=env)

    def verify(self, *words: str | Path, env: Mapping[str, str] | None = None) -> Said:
        return self.run("verify", "demo/app", "--root", self.envs, *words, env=env)


def envsmith(*words: str | Path, cwd: Path, env: Mapping[str, str] | None = None, timeout_s: float = 300) -> Said:
    """Run the program as a process of its own."""
    argv = [sys.executable, "-m", "envsmith", *map(str, words)]
    whole = {**os.environ, "COLUMNS": "100", **(env or {})}
    whole = {name: value for name, value in whole.items() if value != "\0"}
    done = subprocess.run(argv, cwd=cwd, env=whole, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert "Traceback (most recent call last)" not in done.stderr + done.stdout, done.stderr
    return Said(done.returncode, done.stdout, done.stderr)


def make_project(folder: Path) -> Project:
    """Lay everything out; nothing is locked or built yet."""
    index = folder / "index"
    fill_index(index)
    commit = make_tool(folder / "upstream")
    project = Project(folder, index)
    (folder / "stacks").mkdir(parents=True)
    project.recipe.write_text(RECIPE.format(python=PYTHON, git=folder / "upstream", commit=commit))
    write_series(
        folder / "patches" / "tool-1", commit, "use-sdpa.patch", diff("tool/__init__.py", TOOL, TOOL_PATCHED), "device"
    )
    write_series(
        folder / "patches" / "alpha-1.0", "alpha==1.0", "right-answer.patch",
        diff("alpha/__init__.py", ALPHA, ALPHA_PATCHED), "fix",
    )  # fmt: skip
    return project


def fill_index(index: Path) -> None:
    """Write the wheels and the sdist."""
    make_wheel(index, "alpha", "1.0", {"alpha/__init__.py": ALPHA, "alpha/extra.py": "X = 1\n"}, requires=["beta<2"])
    for version in ("1.0", "2.0"):
        make_wheel(
            index, "beta", version,
            {"beta/__init__.py": "", "beta/core.py": f"VERSION = {version!r}\n\n\ndef main():\n    print(VERSION)\n"},
            entry_points={"console_scripts": {"beta-run": "beta.core:main"}},
        )  # fmt: skip
    make_wheel(index, "gamma", "0.3")
    make_sdist(index, "delta", "0.5", {"delta/__init__.py": "D = 5\n"})


def make_tool(upstream: Path) -> str:
    """Make the git repository of the source and return its commit."""
    files = project_files("tool", "1.0", {"tool/__init__.py": TOOL}, requires=["gamma"])
    text = files["pyproject.toml"].decode() + '[project.scripts]\ntool = "tool:main"\n'
    files["pyproject.toml"] = text.encode()
    make_repo(upstream, files)
    # a submodule, as VERL has one: the tree names it, and nobody checks it out
    git(upstream, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},recipe")
    git(upstream, "commit", "--quiet", "--message", "name a submodule")
    return git(upstream, "rev-parse", "HEAD")


def diff(path: str, old: str, new: str) -> str:
    """A patch body as git writes it, without index and mode lines."""
    lines = difflib.unified_diff(old.splitlines(True), new.splitlines(True), f"a/{path}", f"b/{path}")
    return f"diff --git a/{path} b/{path}\n" + "".join(lines)


def write_series(folder: Path, base: str, name: str, body: str, layer: str) -> None:
    """Write one series with one patch."""
    folder.mkdir(parents=True, exist_ok=True)
    header = (
        "Description: change one value\nOrigin: vendor\nForwarded: no\n"
        "Last-Update: 2026-11-29\nSeen-As: a wrong value\n\n"
    )
    (folder / name).write_text(header + body)
    (folder / "demo.series").write_text(f"# Layer: {layer}\n# Base: {base}\n# Description: demo\n{name}\n")
