"""Envs over a vendor's Python that nobody may change: a virtual environment, as on the H200 image."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import envsmith.probe
from tests.support.index import SimpleIndex
from tests.support.project import PYTHON, TOOL, TOOL_PATCHED, Project, Said, diff, make_tool, write_series
from tests.support.repos import make_repo
from tests.support.venvs import Venv, make_venv
from tests.support.wheels import make_wheel, project_files

RECIPE = """\
[stack]
name = "demo"

[host]
glibc = "2.17"
snapshot = "snapshots/vendor.toml"

[env.app]
python = "{python}"
requires = [{requires}]
{more}
[env.app.base]
python = "{base}"
protect = [{protect}]

[env.app.verify]
imports = ["good", "torch", "vendor_extra"]
attributes = ["torch.answer"]
launchers = ["torchrun", "good-run"]
"""
TORCH = "2.9.0+vendor.1"
COLLECT = Path(envsmith.probe.__file__).with_name("collect.py")
RUN = "import sys\nimport torch\n\n\ndef main():\n    print(sys.prefix, torch.__file__, *sys.argv[1:])\n"


class Vendor:
    """A vendor's environment that already has its own editable project, hook and program, and a project over it."""

    def __init__(self, project: Project, folder: Path) -> None:
        self.project = project
        self.venv: Venv = make_venv(folder / "vendor")
        torch = {"torch/__init__.py": "def answer():\n    return 42\n", "torch/run.py": RUN, "torch/lib/a.txt": "a\n"}
        self.venv.install(
            "torch", TORCH, torch, more={"entry_points.txt": "[console_scripts]\ntorchrun = torch.run:main\n"}
        )
        self.venv.install("numpy", "1.26.4", {"numpy/__init__.py": "VERSION = 1\n"})
        self.venv.install("pandas", "2.3.3", {"pandas/__init__.py": ""}, requires=("numpy<2",))
        (folder / "extra").mkdir()
        (folder / "extra" / "vendor_extra.py").write_text("FROM = 'the vendor'\n")
        (self.venv.site / "vendor_extra.pth").write_text(f"{folder / 'extra'}\n")
        tool = self.venv.script("ninja", "/bin/sh")
        tool.write_text("#!/bin/sh\necho ninja of the base\n")
        self.venv.install("ninja", "1.13", {"ninja/__init__.py": "", "../../../bin/ninja": tool.read_text()})
        tool.chmod(0o755)
        make_wheel(
            project.index, "good", "1.0", {"good/__init__.py": "", "good/cli.py": "def main():\n    print('good')\n"},
            requires=["torch>=2.9"], entry_points={"console_scripts": {"good-run": "good.cli:main"}},
        )  # fmt: skip
        make_wheel(project.index, "numpy", "2.2.0", {"numpy/__init__.py": "VERSION = 2\n"})
        make_wheel(project.index, "torch", "2.10.0")
        make_wheel(project.index, "modern", "1.0", requires=["numpy>=2"])
        make_wheel(project.index, "fake-torch", "1.0", {"torch/__init__.py": ""})
        self.snapshot()
        self.recipe("good")

    def snapshot(self) -> None:
        """Capture the base as its user would: with the one file that needs no envsmith."""
        take_snapshot(self.venv.path / "bin" / "python", self.project)

    def recipe(self, *requires: str, protect: tuple[str, ...] = ("torch",), more: str = "") -> None:
        self.project.recipe.write_text(
            RECIPE.format(
                python=PYTHON,
                requires=quoted(requires),
                protect=quoted(protect),
                more=more,
                base=self.venv.path / "bin" / "python",
            )
        )

    def state(self) -> dict[str, tuple[str, int]]:
        """Content and change time of everything in the base."""
        found = {}
        for path in sorted(self.venv.path.rglob("*")):
            data = str(path.readlink()).encode() if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            found[str(path.relative_to(self.venv.path))] = (hashlib.sha256(data).hexdigest(), path.lstat().st_ctime_ns)
        return found

    def python(self, code: str) -> str:
        done = subprocess.run(
            [self.project.current / "bin" / "python", "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout.strip()


def take_snapshot(python: Path, project: Project) -> None:
    path = project.folder / "stacks/snapshots/vendor.toml"
    path.parent.mkdir(exist_ok=True)
    words = [sys.executable, "-I", COLLECT, "--python", python, "--no-run", "-o", path]
    subprocess.run(words, check=True, timeout=120, capture_output=True)


def quoted(names: tuple[str, ...]) -> str:
    return ", ".join(f'"{name}"' for name in names)


@pytest.fixture
def vendor(project: Project, index: SimpleIndex, tmp_path: Path) -> Vendor:
    return Vendor(project, tmp_path)


def kinds(said: Said) -> set[str]:
    return {f"{f['check']}/{f['kind']}" for f in said.json["data"]["findings"]}


def test_the_env_sees_the_base_behind_itself_and_leaves_it_as_it_was(vendor: Vendor) -> None:
    before = vendor.state()
    said = vendor.project.build()
    assert said.code == 0, said.out + said.err
    assert vendor.state() == before
    site = vendor.venv.site
    assert vendor.python("import torch; print(torch.__file__)") == f"{site}/torch/__init__.py"
    assert vendor.python("import vendor_extra; print(vendor_extra.FROM)") == "the vendor"
    path = json.loads(vendor.python("import json, sys; print(json.dumps(sys.path))"))
    real = [str(Path(entry).resolve()) for entry in path]
    assert real.index(str(vendor.project.site)) < real.index(str(site))
    prefix = Path(vendor.python("import sys; print(sys.prefix)"))
    assert prefix.resolve() == vendor.project.current.resolve()
    checked = vendor.project.verify("--deep", "--imports")
    assert (checked.code, checked.json["data"]["findings"]) == (0, []), checked.out
    assert "base" in checked.json["data"]["envs"][0]["families"]
    assert vendor.state() == before


def test_commands_of_the_base_run_with_the_envs_own_python(vendor: Vendor) -> None:
    assert vendor.project.build().code == 0
    said = vendor.project.run("run", "demo/app", "--root", vendor.project.envs, "--", "torchrun", "--x", json=False)
    prefix, torch, *words = said.out.split()
    assert (prefix, torch) == (str(vendor.project.current.resolve()), f"{vendor.venv.site}/torch/__init__.py")
    assert words == ["--x"]
    said = vendor.project.run("run", "demo/app", "--root", vendor.project.envs, "--", "ninja", json=False)
    assert said.out.strip() == "ninja of the base"
    assert (vendor.project.current / "bin" / "ninja").is_symlink()


def test_nothing_is_done_again_and_the_receipts_of_two_builds_are_equal(vendor: Vendor, tmp_path: Path) -> None:
    first = vendor.project.build().json["data"]["envs"][0]
    assert any(step.endswith("with the lock, 1 protected package file by file") for step in first["steps"])
    assert any(step.startswith("lay it over") for step in first["steps"])
    assert vendor.project.build().json["data"]["envs"][0]["state"] == "unchanged"
    again = vendor.project.run("build", "demo", "--root", tmp_path / "other")
    other = again.json["data"]["envs"][0]
    receipts = [json.loads((Path(one["directory"]) / "envsmith.json").read_text()) for one in (first, other)]
    for name in ("built-at", "seconds", "log", "root", "python-record", "base-hooks", "manifest"):
        for receipt in receipts:
            receipt.pop(name)
    assert receipts[0] == receipts[1]
    assert receipts[0]["verify"]["base"]["python"] == str(vendor.venv.path / "bin" / "python")


@pytest.mark.parametrize("fault", ["changed", "missing", "version", "rewritten"])
def test_a_base_that_is_not_the_locked_one_is_refused_before_anything_is_made(vendor: Vendor, fault: str) -> None:
    assert vendor.project.run("lock", "demo").code == 0
    plant(vendor, fault)
    said = vendor.project.build("--locked")
    assert (said.code, set(said.codes)) == (3, {"base-differs"}), said.out
    assert "torch" in json.dumps(said.json["errors"])
    assert not list(vendor.project.envs.glob("*/*/bin"))


@pytest.mark.parametrize("fault", ["changed", "missing", "version", "rewritten"])
def test_verify_names_what_was_changed_in_the_base_after_the_build(vendor: Vendor, fault: str) -> None:
    assert vendor.project.build().code == 0
    plant(vendor, fault)
    said = vendor.project.verify()
    wanted = {
        "changed": "base/base-file-changed", "missing": "base/base-file-changed",
        "version": "base/base-version-differs", "rewritten": "base/base-package-rewritten",
    }[fault]  # fmt: skip
    assert said.code == 1 and wanted in kinds(said), said.out


def plant(vendor: Vendor, fault: str) -> None:
    site = vendor.venv.site
    info = next(site.glob("torch-*.dist-info"))
    if fault == "changed":
        (site / "torch/lib/a.txt").write_text("b\n")
    elif fault == "missing":
        (site / "torch/lib/a.txt").unlink()
    elif fault == "version":
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.10.0\n")
    else:
        (site / "torch/lib/a.txt").write_text("b\n")
        kept = [line for line in (info / "RECORD").read_text().splitlines() if "a.txt" not in line]
        (info / "RECORD").write_text("\n".join([*kept, "torch/lib/a.txt,,"]) + "\n")


def test_an_addition_that_would_stand_before_a_protected_package_is_refused_with_the_reason(vendor: Vendor) -> None:
    vendor.recipe("good", "fake-torch")
    said = vendor.project.build()
    assert (said.code, said.codes) == (2, ["base-shadowed"]), said.out
    (error,) = said.json["errors"]
    assert "fake-torch==1.0" in error["message"] and f"torch=={TORCH}" in error["message"]
    assert not vendor.project.current.exists()


def test_another_torch_is_refused_when_it_is_locked_and_no_index_is_asked(vendor: Vendor, index: SimpleIndex) -> None:
    vendor.recipe("good", "torch==2.10.0", more='override = ["Torch<2"]\n')
    index.log.clear()
    said = vendor.project.build()
    assert (said.code, said.codes) == (2, ["unsatisfiable"] * 2)
    assert all("`torch` of the vendor's base must stay" in error["hint"] for error in said.json["errors"])
    assert not index.log
    make_wheel(vendor.project.index, "vllm", "1.0", requires=["torch==2.10.0"])
    vendor.recipe("good", "vllm")
    said = vendor.project.build()
    assert (said.code, said.codes) == (2, ["unsatisfiable"])
    assert "`torch` of the vendor's base must stay" in said.json["errors"][0]["hint"]


def test_a_plain_pin_that_the_vendors_build_meets_is_fine(vendor: Vendor) -> None:
    vendor.recipe("good", "torch==2.9.0")
    assert vendor.project.run("lock", "demo").code == 0


def test_the_vendors_programs_first_on_the_shells_path_are_a_warning(vendor: Vendor) -> None:
    """In the vendor's image they are; what is started through `envsmith run` is the env's own."""
    assert vendor.project.build().code == 0
    vendor.venv.script("torchrun", str(vendor.venv.path / "bin" / "python"))
    path = {"PATH": f"{vendor.venv.path}/bin:{os.environ['PATH']}"}
    said = vendor.project.verify(env=path)
    assert said.code == 0, said.out
    (finding,) = [f for f in said.json["data"]["findings"] if f["check"] == "launchers"]
    assert (finding["severity"], finding["subject"]) == ("warning", "torchrun")
    other = make_venv(vendor.project.folder / "other")
    other.script("torchrun", str(other.path / "bin" / "python"))
    assert vendor.project.verify(env={"PATH": f"{other.path}/bin:{os.environ['PATH']}"}).code == 1


def test_an_unprotected_package_is_laid_over_and_what_that_breaks_in_the_base_must_be_accepted(vendor: Vendor) -> None:
    vendor.recipe("good", "modern")
    said = vendor.project.build()
    assert (said.code, said.codes) == (2, ["conflict-unaccepted"]), said.out
    assert "pandas" in said.json["errors"][0]["message"]
    accept = '\n[[env.app.accept]]\npackage = "pandas"\nrequirement = "numpy<2"\nbecause = "nobody imports it here"\n'
    vendor.recipe("good", "modern", more=accept)
    said = vendor.project.build()
    assert said.code == 0, said.out
    assert vendor.python("import numpy; print(numpy.VERSION)") == "2"
    assert vendor.venv.python("-c", "import numpy; print(numpy.VERSION)").strip() == "1"
    assert vendor.project.verify("--deep", "--imports").code == 0
    vendor.recipe("good", "modern", protect=("*",), more=accept)
    assert vendor.project.build().codes == ["unsatisfiable"]


def test_a_package_of_the_base_that_the_lock_builds_on_is_judged_though_unprotected(vendor: Vendor) -> None:
    make_wheel(vendor.project.index, "uses", "1.0", requires=["numpy"])
    vendor.recipe("good", "uses")
    assert vendor.project.build().code == 0
    (vendor.venv.site / "numpy/__init__.py").write_text("VERSION = 3\n")
    said = vendor.project.verify()
    assert (said.code, kinds(said)) == (0, {"base/base-file-changed"}), said.out
    assert [f["severity"] for f in said.json["data"]["findings"]] == ["warning"]
    info = next(vendor.venv.site.glob("numpy-*.dist-info"))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 1.26.5\n")
    said = vendor.project.verify()
    assert (said.code, kinds(said)) == (1, {"conflicts/base-version-differs"}), said.out


def test_a_hook_that_the_base_got_after_the_build_is_found(vendor: Vendor) -> None:
    assert vendor.project.build().code == 0
    (vendor.venv.site / "zz_evil.pth").write_text("import os; os.environ['EVIL'] = '1'\n")
    said = vendor.project.verify()
    assert said.code == 1 and "hooks/unowned-pth" in kinds(said), said.out


def test_a_torch_that_comes_before_the_vendors_is_found(vendor: Vendor) -> None:
    assert vendor.project.build().code == 0
    (vendor.project.site / "torch").mkdir()
    (vendor.project.site / "torch" / "__init__.py").write_text("")
    said = vendor.project.verify()
    assert said.code == 1 and "imports/unexpected-file" in kinds(said), said.out


def test_a_patched_source_comes_before_the_base(vendor: Vendor) -> None:
    upstream = vendor.project.folder / "overlaid"
    commit = make_tool(upstream)
    write_series(
        vendor.project.folder / "patches" / "tool-2", commit, "use-sdpa.patch",
        diff("tool/__init__.py", TOOL, TOOL_PATCHED), "device",
    )  # fmt: skip
    vendor.venv.install("tool", "0.1", {"tool/__init__.py": "BACKEND = 'of the vendor'\n"})
    vendor.snapshot()
    source = (
        f'[env.app.source.tool]\ngit = "{upstream}"\ncommit = "{commit}"\nseries = ["tool-2/demo.series"]\n'
        "deps = false\n"
        '[[env.app.accept]]\npackage = "tool"\nrequirement = "*"\nbecause = "gamma is not needed"\n'
    )
    vendor.recipe("good", more=source)
    said = vendor.project.build()
    assert said.code == 0, said.out
    assert vendor.python("import tool; print(tool.BACKEND)") == "sdpa"
    vendor.recipe("good", protect=("torch", "tool"), more=source)
    said = vendor.project.build()
    assert said.code == 2 and said.codes == ["base-shadowed"], said.out


@pytest.mark.parametrize(
    ("source", "path", "code"),
    [("tool", "nv/cub.py", 2), ("tool", "nvm.py", 2), ("nv", "nv/__init__.py", 2), ("tool", "nv/mine.py", 0)],
)
def test_a_source_may_not_stand_before_a_part_of_a_namespace(
    vendor: Vendor, tmp_path: Path, source: str, path: str, code: int
) -> None:
    upstream = tmp_path / "up"
    commit = make_repo(upstream, project_files("tool", "1.0", {path: ""}))
    vendor.venv.install("nvlib", "1.0", {"nv/cub/__init__.py": "", "nvm.py": ""})
    vendor.snapshot()
    table = f'[env.app.source.{source}]\ngit = "{upstream}"\ncommit = "{commit}"\n'
    vendor.recipe("good", protect=("torch", "nvlib"), more=table)
    said = vendor.project.build()
    assert (said.code, said.codes) == (code, ["base-shadowed"] if code else []), said.out


def test_a_base_that_is_not_on_this_machine_is_a_host_error(vendor: Vendor) -> None:
    assert vendor.project.run("lock", "demo").code == 0
    vendor.venv.path.rename(vendor.venv.path.with_name("elsewhere"))
    said = vendor.project.build("--locked")
    assert (said.code, said.codes) == (3, ["base-missing"])


def test_a_bundle_for_the_base_holds_only_the_additions_and_installs_on_it(vendor: Vendor, tmp_path: Path) -> None:
    before = vendor.state()
    made = vendor.project.run("bundle", "demo", "-o", tmp_path / "bundle")
    assert made.code == 0, made.out + made.err
    said = vendor.project.run("install", tmp_path / "bundle", "--root", tmp_path / "root")
    assert said.code == 0, said.out + said.err
    python = tmp_path / "root" / "demo-app" / "current" / "bin" / "python"
    done = subprocess.run([python, "-c", "import torch, good; print(torch.__file__)"], capture_output=True, text=True)
    assert done.stdout.strip() == f"{vendor.venv.site}/torch/__init__.py", done.stderr
    assert vendor.state() == before


def test_a_plain_interpreter_may_be_the_base(project: Project, index: SimpleIndex) -> None:
    """The Python that the tests' own environment was made from: no virtual environment, its packages are pip's."""
    base = Path(sys.base_prefix) / "bin" / f"python{PYTHON}"
    make_wheel(project.index, "good", "1.0")
    take_snapshot(base, project)
    recipe = RECIPE.format(python=PYTHON, requires='"good"', protect='"pip"', more="", base=base)
    project.recipe.write_text(recipe[: recipe.index("[env.app.verify]")])
    said = project.build()
    assert said.code == 0, said.out + said.err
    code = "import good, pip, sys; print(pip.__file__, sys.prefix != sys.base_prefix)"
    done = subprocess.run([project.current / "bin/python", "-c", code], capture_output=True, text=True, check=True)
    where, is_venv = done.stdout.split()
    assert Path(where).is_relative_to(Path(sys.base_prefix).resolve()) and is_venv == "True"
    assert (project.current / "bin" / "pip").read_text().startswith(f"#!{project.current.resolve()}/bin/python")
    assert project.verify("--deep", "--imports").code == 0


def test_a_hook_that_came_between_snapshot_and_build_is_refused(vendor: Vendor) -> None:
    assert vendor.project.run("lock", "demo").code == 0
    (vendor.venv.site / "zz_late.pth").write_text("import os\n")
    said = vendor.project.build("--locked")
    assert (said.code, said.codes) == (3, ["base-differs"]), said.out
    assert "zz_late.pth" in said.json["errors"][0]["where"]
    (vendor.venv.site / "zz_late.pth").unlink()
    (vendor.venv.site / "vendor_extra.pth").write_text("/elsewhere\n")
    assert vendor.project.build("--locked").codes == ["base-differs"]


def test_a_first_hook_is_refused_where_the_snapshot_saw_none(vendor: Vendor) -> None:
    (vendor.venv.site / "vendor_extra.pth").unlink()
    vendor.snapshot()
    assert vendor.project.run("lock", "demo").code == 0
    (vendor.venv.site / "zz_late.pth").write_text("import os\n")
    said = vendor.project.build("--locked")
    assert (said.code, said.codes) == (3, ["base-differs"]), said.out


@pytest.mark.parametrize("fault", ["moved", "hook", "path"])
def test_verify_says_what_became_of_the_bases_python(vendor: Vendor, fault: str) -> None:
    assert vendor.project.build().code == 0
    if fault == "moved":
        vendor.venv.path.rename(vendor.venv.path.with_name("elsewhere"))
    elif fault == "hook":
        (vendor.venv.site / "vendor_extra.pth").unlink()
    else:
        config = vendor.venv.path / "pyvenv.cfg"
        config.write_text(config.read_text().replace("site-packages = false", "site-packages = true"))
    said = vendor.project.verify("--only", "base")
    wanted = {"moved": {"base/base-missing"}, "hook": {"base/base-hook-missing", "base/base-path-differs"},
              "path": {"base/base-path-differs"}}[fault]  # fmt: skip
    assert (said.code, kinds(said)) == (1, wanted), said.out


def test_an_env_may_add_nothing_to_its_base(vendor: Vendor) -> None:
    vendor.recipe("torch")
    text = vendor.project.recipe.read_text()
    vendor.project.recipe.write_text(text[: text.index("[env.app.verify]")])
    said = vendor.project.build()
    assert said.code == 0, said.out
    assert vendor.python("import torch; print(torch.answer())") == "42"


def test_no_bytecode_gets_into_the_base_whatever_starts_the_env(vendor: Vendor) -> None:
    vendor.venv.install(
        "legacy", "1.0", {"legacy/__init__.py": "", "../../../bin/legacy": ""},
    )  # fmt: skip
    script = vendor.venv.path / "bin" / "legacy"
    python = vendor.venv.path / "bin" / "python"
    script.write_text(
        f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\nimport legacy, torch, sys\nprint(sys.prefix)\n"
    )
    script.chmod(0o755)
    vendor.snapshot()
    before = vendor.state()
    assert vendor.project.build().code == 0
    own = str(vendor.project.current.resolve())
    for words in (("legacy",), ("torchrun",), ("python", "-c", "import torch, sys; print(sys.prefix)")):
        said = vendor.project.run("run", "demo/app", "--root", vendor.project.envs, "--", *words, json=False)
        assert said.out.split()[0] == own, said.err
    code = f'. {own}/env.sh && python -c "import legacy, numpy, os; print(os.environ[chr(80)+chr(65)+chr(84)+chr(72)])"'
    done = subprocess.run(["sh", "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.startswith(f"{own}/bin:"), done.stderr
    subprocess.run([f"{own}/bin/python", "-c", "import pandas"], check=True, timeout=60)
    assert vendor.state() == before


def test_two_metadata_folders_of_one_name_are_right_when_the_snapshot_had_them(vendor: Vendor) -> None:
    info = next(vendor.venv.site.glob("torch-*.dist-info"))
    old = vendor.venv.site / "torch-2.99.dist-info"
    old.mkdir()
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.99\n")
    (vendor.venv.site / "~orch-2.8.dist-info").mkdir()
    vendor.snapshot()
    said = vendor.project.build()
    assert said.code == 0, said.out
    said = vendor.project.verify("--only", "base")
    assert (said.code, said.json["data"]["findings"]) == (0, [])
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1\n")
    assert "base/base-package-twice" in kinds(vendor.project.verify("--only", "base"))
