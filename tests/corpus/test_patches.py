"""The patches that ship: each parses, each is used, and each fails its behaviour test when it is left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envsmith.series import Layer, Patch, Series, parse_patch, parse_series
from envsmith.tools.git import apply_series, export_commit, export_tree, mirror
from envsmith.tools.sdist import unpack_sdist

PATCHES = Path(__file__).parents[2] / "patches"
ALL_SERIES = sorted(PATCHES.glob("*/*.series"))
ALL_PATCHES = sorted(PATCHES.glob("*/*.patch"))


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(PATCHES).as_posix() for path in paths]


def read_series(path: Path) -> tuple[Series, list[Patch]]:
    series = parse_series(path.read_text(), str(path))
    return series, [parse_patch((path.parent / e).read_bytes(), e, str(path.parent / e)) for e in series.entries]


# the corpus as data


def test_there_is_a_corpus() -> None:
    assert ALL_SERIES
    assert ALL_PATCHES


@pytest.mark.parametrize("path", ALL_SERIES, ids=names(ALL_SERIES))
def test_every_series_parses_and_lists_patches_that_parse(path: Path) -> None:
    series, patches = read_series(path)
    assert series.description
    assert [patch.name for patch in patches] == list(series.entries)


@pytest.mark.parametrize("path", ALL_SERIES, ids=names(ALL_SERIES))
def test_every_folder_is_named_after_the_base_of_its_series(path: Path) -> None:
    base = read_series(path)[0].base
    stem, _, tag = path.parent.name.rpartition("-")
    assert base == f"{stem}=={tag}" if "==" in base else base.startswith(tag)


def test_no_patch_is_an_orphan_and_nothing_else_lies_about() -> None:
    listed = {path.parent / entry for path in ALL_SERIES for entry in read_series(path)[0].entries}
    assert listed == set(ALL_PATCHES)
    files = {path for path in PATCHES.rglob("*") if path.is_file()}
    assert files == {*ALL_SERIES, *ALL_PATCHES, PATCHES / "README.md"}


@pytest.mark.parametrize("path", ALL_PATCHES, ids=names(ALL_PATCHES))
def test_every_patch_is_named_by_number_and_purpose_and_says_why(path: Path) -> None:
    patch = parse_patch(path.read_bytes(), path.name, str(path))
    number, _, words = path.stem.partition("-")
    assert number.isdigit() and len(number) == 4
    assert words == words.lower() and "-" in words
    assert len((patch.field("Description") or "").splitlines()) > 1


#: Folders whose patches are one change for several bases: a series lists names beside itself, so it is copied.
COPIES = {
    "llamafactory-7af9095": "llamafactory-0.9.5",
    "deepspeed-0.18.2": "deepspeed-0.18.4",
}


@pytest.mark.parametrize(("copy", "original"), COPIES.items())
def test_a_change_for_several_bases_is_the_same_bytes_in_every_folder(copy: str, original: str) -> None:
    content = {
        folder: {path.name: path.read_bytes() for path in (PATCHES / folder).glob("*.patch")}
        for folder in (copy, original)
    }
    assert content[copy]
    assert content[copy] == content[original]


def test_no_two_folders_hold_the_same_patch_without_it_being_said() -> None:
    by_content: dict[bytes, set[str]] = {}
    for path in ALL_PATCHES:
        by_content.setdefault(path.read_bytes(), set()).add(path.parent.name)
    shared = [folders for folders in by_content.values() if len(folders) > 1]
    assert sorted(map(sorted, shared)) == sorted(sorted(pair) for pair in COPIES.items())


def test_every_series_is_in_the_readme() -> None:
    readme = (PATCHES / "README.md").read_text()
    assert [name for name in names(ALL_SERIES) if f"`{name}`" not in readme] == []


# what the patches do, on the real sources


def fetch_sdist(requirement: str, folder: Path, environ: dict[str, str]) -> Path:
    """Fetch an sdist with pip, without building anything but its metadata."""
    name = requirement.partition("==")[0]
    command = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name, requirement)
    done = subprocess.run([*command, "--dest", str(folder)], env=environ, capture_output=True, text=True)
    if done.returncode != 0 and "No module named pip" in done.stderr:
        pytest.skip("this interpreter has no pip")
    assert done.returncode == 0, done.stderr
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


#: How this machine reaches its index; taken before the tests hide it from the code under test.
HOW_TO_REACH_THE_INDEX = {
    name: value
    for name, value in os.environ.items()
    if name.startswith("PIP_") or name.endswith(("_proxy", "_PROXY")) or name in ("HOME", "PATH", "SSL_CERT_FILE")
}


def trees(requirement: str, series: str, folder: Path) -> dict[str, Path]:
    """Return the source as it is published, and with the series."""
    sdist = fetch_sdist(requirement, folder / "sdist", HOW_TO_REACH_THE_INDEX)
    found = {}
    for name in ("pristine", "patched"):
        unpack_sdist(sdist, folder / f"{name}-files")
        export_tree(folder / f"{name}-files", folder / name)
        found[name] = folder / name
    apply_series(found["patched"], [(patch.name, patch.data) for patch in read_series(PATCHES / series)[1]])
    return found


@pytest.fixture(scope="module")
def llamafactory(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("llamafactory")
    return trees("llamafactory==0.9.5", "llamafactory-0.9.5/old-driver.series", folder)


#: Taken before the tests hide it from the code under test.
CLONE = os.environ.get("ENVSMITH_TEST_LLAMAFACTORY", "")


@pytest.fixture(scope="module")
def llamafactory_at_the_commit(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    if not CLONE:
        pytest.skip("ENVSMITH_TEST_LLAMAFACTORY names no clone of LLaMA-Factory")
    series, patches = read_series(PATCHES / "llamafactory-7af9095" / "old-driver.series")
    folder = tmp_path_factory.mktemp("llamafactory-commit")
    mirror(CLONE, series.base, folder / "mirror")
    for name in ("pristine", "patched"):
        export_commit(folder / "mirror", series.base, folder / name)
    apply_series(folder / "patched", [(patch.name, patch.data) for patch in patches])
    return {name: folder / name for name in ("pristine", "patched")}


#: Every release that the fault is known in, with the series that mends it; for the last one there is no series.
DEEPSPEED = {
    "deepspeed==0.18.2": "deepspeed-0.18.2/cpu-adam.series",
    "deepspeed==0.18.4": "deepspeed-0.18.4/cpu-adam.series",
    "deepspeed==0.19.8": "deepspeed-0.18.4/cpu-adam.series",
}


@pytest.fixture(scope="module", params=DEEPSPEED)
def deepspeed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return trees(request.param, DEEPSPEED[request.param], tmp_path_factory.mktemp("deepspeed"))


OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
EXPANDABLE = "expandable_segments:True"
SAFE = "backend:native,expandable_segments:False,max_split_size_mb:512"
OWN = "max_split_size_mb:128"
OFF = {"OPTIM_TORCH": "0"}
#: (environment of the parent, what a rank gets as published, what it gets with the series).
CASES: list[tuple[dict[str, str], dict[str, str], dict[str, str]]] = [
    ({}, {OLD: EXPANDABLE}, {OLD: EXPANDABLE}),
    (OFF, {}, {NEW: SAFE}),
    ({**OFF, OLD: EXPANDABLE}, {OLD: EXPANDABLE}, {NEW: SAFE}),
    ({**OFF, NEW: OWN}, {NEW: OWN}, {NEW: OWN}),
    ({**OFF, OLD: EXPANDABLE, NEW: OWN}, {OLD: EXPANDABLE, NEW: OWN}, {NEW: OWN}),
    ({NEW: OWN}, {OLD: EXPANDABLE, NEW: OWN}, {OLD: EXPANDABLE, NEW: OWN}),
]

#: The launchers import helpers that need torch; these answer for them, and tell the truth about words like `0`.
HELPERS = {
    "extras/logging.py": "import logging\n\n\ndef get_logger(name):\n"
    "    logger = logging.getLogger(name)\n    logger.info_rank0 = logger.info\n    return logger\n",
    "extras/env.py": "VERSION = '0.9.5'\n\n\ndef print_env():\n    pass\n",
    "extras/misc.py": "{shared}",
    "v1/accelerator/helper.py": "def get_device_count():\n    return 2\n",
    "v1/utils/env.py": "{shared}",
    "v1/utils/logging.py": "import logging\n\n\ndef get_logger(name):\n"
    "    logger = logging.getLogger(name)\n    logger.info_rank0 = logger.info\n    return logger\n",
}
SHARED = """\
import os


def get_device_count():
    return 2


def find_available_port():
    return 29500


def use_ray():
    return False


use_kt = use_ray


def is_env_enabled(name, default="0"):
    return os.getenv(name, default).lower() in ("true", "y", "1")
"""
#: Stands in for torchrun: says what a rank's environment holds.
TORCHRUN = f"""\
#!{sys.executable}
import json, os
with open(os.environ["ANSWER"], "w") as answer:
    json.dump({{name: os.environ[name] for name in ("{OLD}", "{NEW}") if name in os.environ}}, answer)
"""


def child_environment(tree: Path, module: str, environ: dict[str, str], folder: Path) -> dict[str, str]:
    """Run a real launcher of this tree with `torchrun` faked and return the allocator variables of its child."""
    package = folder / "llamafactory"
    for part in ("", "extras", "v1", "v1/accelerator", "v1/utils"):
        (package / part).mkdir(parents=True, exist_ok=True)
        (package / part / "__init__.py").touch()
    for name, text in HELPERS.items():
        (package / name).write_text(text.replace("{shared}", SHARED))
    source = f"{module.replace('.', '/')}.py"
    (folder / source).write_text((tree / "src" / source).read_text())
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "torchrun").write_text(TORCHRUN)
    (folder / "bin" / "torchrun").chmod(0o755)
    answer = folder / "answer.json"
    code = f"import sys; sys.argv = ['x', 'train', 'a.yaml']; import {module} as m; m.launch()"
    base = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "PYTHONPATH": str(folder), "ANSWER": str(answer)}
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], env={**base, **environ}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(answer.read_text())
    return found


@pytest.mark.network
@pytest.mark.parametrize("module", ["llamafactory.launcher", "llamafactory.v1.launcher"])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_the_ranks_of_a_launcher_get_the_safe_allocator_when_optimisation_is_off(
    llamafactory: dict[str, Path], module: str, case: int, tmp_path: Path
) -> None:
    parent, pristine, patched = CASES[case]
    found = {name: child_environment(tree, module, parent, tmp_path / name) for name, tree in llamafactory.items()}
    assert found == {"pristine": pristine, "patched": patched}


@pytest.mark.sources
@pytest.mark.parametrize("module", ["llamafactory.launcher", "llamafactory.v1.launcher"])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_at_the_commit_of_the_release_the_launchers_do_the_same(
    llamafactory_at_the_commit: dict[str, Path], module: str, case: int, tmp_path: Path
) -> None:
    parent, pristine, patched = CASES[case]
    trees_of = llamafactory_at_the_commit.items()
    found = {name: child_environment(tree, module, parent, tmp_path / name) for name, tree in trees_of}
    assert found == {"pristine": pristine, "patched": patched}


def test_the_cases_can_tell_a_patched_launcher_from_a_published_one() -> None:
    assert sum(pristine != patched for _, pristine, patched in CASES) >= 3


#: Enough of torch for the module to be imported and for a checkpoint to be loaded the way torch does it.
TORCH = """\
class Optimizer:
    def __init__(self, params, defaults):
        self.param_groups = [{**defaults, "params": list(params)}]
        self.state = {}

    def __setstate__(self, state):
        self.__dict__.update(state)

    def load_state_dict(self, saved):
        self.__setstate__({"state": saved["state"], "param_groups": saved["param_groups"]})
"""
#: The real module and its real step; only torch, the compiled op and what else the module imports are stand-ins.
RESUME = """\
import sys, types
from unittest.mock import MagicMock
scope = {}
exec(TORCH, scope)
torch = types.ModuleType("torch")
torch.optim = types.SimpleNamespace(Optimizer=scope["Optimizer"])
torch.device = str
torch.no_grad = lambda: (lambda function: function)
sys.modules["torch"] = torch
for name in ("cpuinfo", "cpuinfo.cpuinfo", "deepspeed", "deepspeed.utils", "deepspeed.utils.logging",
             "deepspeed.ops", "deepspeed.ops.op_builder"):
    sys.modules[name] = MagicMock(name=name)
scope = {"__name__": "cpu_adam"}
exec(compile(open(SOURCE).read(), SOURCE, "exec"), scope)
CPUAdam = scope["DeepSpeedCPUAdam"]
optimizer = CPUAdam.__new__(CPUAdam)
torch.optim.Optimizer.__init__(optimizer, [], {})
optimizer.opt_id, optimizer.ds_opt_adam = 0, MagicMock()
weight = MagicMock(device="cpu")
adamw = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01, "amsgrad": False, "params": [weight]}
groups = [dict(adamw), dict(adamw), {**adamw, "bias_correction": False}]
state = {weight: {"step": 1, "exp_avg": MagicMock(), "exp_avg_sq": MagicMock()}}
optimizer.load_state_dict({"state": state, "param_groups": groups})
optimizer.step()
print([call.args[7] for call in optimizer.ds_opt_adam.adam_update.call_args_list])
"""


def resume(tree: Path) -> str:
    """Load a checkpoint of torch's AdamW into this tree's CPUAdam and step; return what it prints or raises."""
    source = tree / "deepspeed" / "ops" / "adam" / "cpu_adam.py"
    code = f"TORCH = {TORCH!r}\nSOURCE = {str(source)!r}\n{RESUME}"
    done = subprocess.run([sys.executable, "-B", "-I", "-c", code], capture_output=True, text=True, timeout=60)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.mark.network
def test_cpu_adam_resumes_from_a_checkpoint_of_another_adam(deepspeed: dict[str, Path]) -> None:
    assert resume(deepspeed["pristine"]) == "KeyError: 'bias_correction'"
    assert resume(deepspeed["patched"]) == "[True, True, False]"


def test_the_layers_say_what_they_are() -> None:
    layers = {path.relative_to(PATCHES).as_posix(): read_series(path)[0].layer for path in ALL_SERIES}
    assert {name: layer.value for name, layer in layers.items()} == {
        "deepspeed-0.18.2/cpu-adam.series": Layer.FIX.value,
        "deepspeed-0.18.4/cpu-adam.series": Layer.FIX.value,
        "llamafactory-0.9.5/old-driver.series": Layer.DEVICE.value,
        "llamafactory-7af9095/old-driver.series": Layer.DEVICE.value,
        "verl-1bf9d2d/a100.series": Layer.DEVICE.value,
        "verl-1bf9d2d/gpu.series": Layer.DEVICE.value,
        "verl-1bf9d2d/ppu.series": Layer.DEVICE.value,
    }
