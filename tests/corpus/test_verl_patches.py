"""What the VERL patches do, seen on the real files of the commit with and without them; no GPU and no torch needed.

The behaviour tests need a clone of VERL that holds the commit, named by ENVSMITH_TEST_VERL, and `--run-sources`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envsmith.commands.workspace import open_stack
from envsmith.recipe import Source
from envsmith.series import Layer, Series, parse_series
from envsmith.tools.git import apply_series, export_commit, mirror

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "patches" / "verl-1bf9d2d"
COMMIT = "1bf9d2d76c244238e8219531c582819a6b407d47"
ATTENTION = "0001-take-attention-backend-from-override-or-environment.patch"
VETO = "0002-veto-expandable-segments-calls.patch"
MACHINES = ("a100", "gpu", "ppu")

#: Taken before the tests hide it from the code under test.
CLONE = os.environ.get("ENVSMITH_TEST_VERL", "")


def series(machine: str) -> Series:
    path = FOLDER / f"{machine}.series"
    return parse_series(path.read_text(), str(path))


def patch_bytes(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


# which machine gets which patch


def of_one_machine(machine: str, others: tuple[str, ...]) -> set[str]:
    """The patches that only this machine's series lists."""
    return set(series(machine).entries) - {entry for other in others for entry in series(other).entries}


def a100_only(entries: tuple[str, ...]) -> set[str]:
    """Entries that belong to the old driver alone: by the veto's name in the file, whatever the file is called."""
    return {entry for entry in entries if b"VERL_DISABLE_EXPANDABLE_SEGMENTS" in patch_bytes(entry)}


def test_every_machine_has_one_device_series_for_this_commit_and_no_other_lies_about() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.series")) == sorted(MACHINES)
    assert {(series(machine).base, series(machine).layer) for machine in MACHINES} == {(COMMIT, Layer.DEVICE)}


def test_the_machines_share_what_they_share_and_nothing_else() -> None:
    assert {machine: series(machine).entries for machine in MACHINES} == {
        "a100": (ATTENTION, VETO),
        "gpu": (ATTENTION,),
        "ppu": (ATTENTION,),
    }


def test_a_patch_that_only_the_a100_needs_is_in_no_other_series() -> None:
    assert of_one_machine("a100", ("gpu", "ppu")) == {VETO} == a100_only(series("a100").entries)
    assert a100_only(series("ppu").entries) == set()
    assert a100_only(series("gpu").entries) == set()


def test_an_a100_patch_that_is_planted_in_the_ppu_series_is_seen() -> None:
    text = (FOLDER / "ppu.series").read_text()
    assert a100_only(parse_series(f"{text}{VETO}\n", "ppu.series").entries) == {VETO}


def verl_sources() -> Iterator[tuple[str, Source]]:
    for path in sorted((ROOT / "stacks").glob("*.toml")):
        if not path.name.startswith("pylock."):
            for env in open_stack(str(path)).stack.env.values():
                yield from ((path.stem, source) for name, source in env.source.items() if name == "verl")


def test_only_the_a100_stack_names_the_series_of_the_a100() -> None:
    named = {stack: source.series for stack, source in verl_sources()}
    assert [stack for stack, names in named.items() if "verl-1bf9d2d/a100.series" in names] == ["a100"]
    assert named["gpu"] == ("verl-1bf9d2d/gpu.series",)
    assert named.get("ppu", ("verl-1bf9d2d/ppu.series",)) == ("verl-1bf9d2d/ppu.series",)


# the patch files


@pytest.mark.parametrize("name", [ATTENTION, VETO])
def test_no_added_line_gives_a_variable_a_stand_in_when_it_is_unset(name: str) -> None:
    added = [line[1:] for line in patch_bytes(name).decode().splitlines() if re.match(r"\+(?!\+\+ )", line)]
    assert added
    assert [line for line in added if re.search(r"environ\.get\([^)]*,", line)] == []


@pytest.mark.parametrize("name", [ATTENTION, VETO])
def test_no_patch_has_a_mode_line(name: str) -> None:
    assert re.findall(r"(?m)^(?:old|new|new file|deleted file) mode .*", patch_bytes(name).decode()) == []


# the real sources


@dataclass(frozen=True, kw_only=True, slots=True)
class Trees:
    """The commit as it is, and with the series of each machine."""

    pristine: Path
    gpu: Path
    ppu: Path
    a100: Path


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not CLONE:
        pytest.skip("ENVSMITH_TEST_VERL names no clone of VERL")
    place = tmp_path_factory.mktemp("mirror") / "verl"
    mirror(CLONE, COMMIT, place)
    return place


@pytest.fixture(scope="module")
def verl(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Trees:
    folder = tmp_path_factory.mktemp("verl")
    for name in ("pristine", *MACHINES):
        export_commit(repository, COMMIT, folder / name)
        if name != "pristine":
            apply_series(folder / name, [(entry, patch_bytes(entry)) for entry in series(name).entries])
    return Trees(**{name: folder / name for name in ("pristine", *MACHINES)})


def ask(tree: Path, code: str, environ: dict[str, str] | None = None, **question: object) -> Any:
    """Run `code` with this tree's files at hand in a process of its own; return what it puts into `answer`."""
    script = (
        f"import json, sys\nTREE = {str(tree)!r}\nQUESTION = json.loads({json.dumps(question)!r})\n{STAND_INS}\n{code}"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-I", "-c", f"{script}\nprint(json.dumps(answer))"],
        env={"PATH": "/usr/bin:/bin", **(environ or {})},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


#: Loads real files of the tree; what they import from elsewhere answers with these.
STAND_INS = '''
import ast, os, types
from unittest.mock import MagicMock

def source(path):
    with open(os.path.join(TREE, path)) as file:
        return file.read()

def module(name, **content):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)
    return sys.modules[name]

def load(path):
    """A whole real file as a module."""
    made = module("loaded")
    exec(compile(source(path), path, "exec"), vars(made))
    return made

def functions(path, names, scope):
    """Only these functions of a real file, where they are there, with `scope` as its imports."""
    tree = ast.parse(source(path))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in names]
    exec(compile(tree, path, "exec"), scope)
    return scope
'''

#: The critic is loaded by one call, and by another one when the model has no value head of its own.
VALUE_HEAD = """
asked = []
class Auto:
    def __init__(self, fails):
        self.fails = fails
    def from_pretrained(self, pretrained_model_name_or_path=None, attn_implementation=None, **rest):
        asked.append(attn_implementation)
        if self.fails:
            raise ImportError("no flash-attn")
        return MagicMock()
module("transformers", AutoModelForTokenClassification=Auto(QUESTION["site"] == 1), AutoModelForCausalLM=Auto(False))
module("trl", AutoModelForCausalLMWithValueHead=MagicMock())
scope = {"os": os, "is_trl_available": lambda: True, "patch_valuehead_model": lambda model: None,
         "AutoModelForVision2Seq": types.SimpleNamespace(_model_mapping={})}
functions("verl/utils/model.py", ("get_attn_implementation", "load_valuehead_model"), scope)
config = types.SimpleNamespace(**QUESTION["config"])
scope["load_valuehead_model"]("model", None, config, False)
answer = asked[QUESTION["site"]]
"""

#: The model configuration that actor, reference and critic share.
CONFIG = """
asked = []
class AutoConfig:
    @staticmethod
    def from_pretrained(path, trust_remote_code=False, attn_implementation=None):
        asked.append(attn_implementation)
        return types.SimpleNamespace(architectures=["X"], _attn_implementation=attn_implementation)
scope = functions("verl/utils/model.py", ("get_attn_implementation",), {"os": os})
mine = {name: scope[name] for name in ("get_attn_implementation",) if name in scope}
module("omegaconf", MISSING="???")
module("transformers", AutoConfig=AutoConfig)
module("verl")
module("verl.base_config", BaseConfig=object)
module("verl.utils", hf_processor=lambda *a, **k: None, hf_tokenizer=lambda *a, **k: None)
module("verl.utils.fs", copy_to_local=lambda path, **k: path)
module("verl.utils.import_utils", import_external_libs=lambda name: None)
module("verl.utils.model", get_generation_config=lambda *a, **k: None, update_model_config=lambda *a, **k: None, **mine)
config = load("verl/workers/config/model.py").HFModelConfig(path="model", override_config=QUESTION["override"])
answer = [asked[0], config.hf_config._attn_implementation]
"""

#: What the driver sends to every Ray worker.
FORWARDED = """
module("torch", version=types.SimpleNamespace(hip=None))
for name in ("ray", "ray._private", "ray._private.runtime_env"):
    module(name)
module("ray._private.runtime_env.constants", RAY_JOB_CONFIG_JSON_ENV_VAR="RAY_JOB_CONFIG_JSON_ENV_VAR")
module("verl")
module("verl.utils")
module("verl.utils.device", get_device_capability=lambda: (8, 0))
answer = load("verl/trainer/constants_ppo.py").get_ppo_ray_runtime_env()["env_vars"]
"""

#: What reaches the allocator when the workers switch expandable segments off and on again.
ALLOCATOR = """
reached = []
platform = types.SimpleNamespace(set_allocator_settings=reached.append)
module("torch", cuda=types.SimpleNamespace(is_available=lambda: False))
for name in ("packaging", "verl", "verl.plugin"):
    module(name, version=None)
module("verl.plugin.platform", get_platform=lambda: platform)
device = load("verl/utils/device.py")
device.set_expandable_segments(False)
device.set_expandable_segments(True)
answer = reached
"""

VARIABLE = "VERL_ATTN_IMPLEMENTATION"
FLASH = "flash_attention_2"
#: (backend that the override names, environment, what the patched source asks for).
BACKENDS: list[tuple[str | None, dict[str, str], str]] = [
    (None, {}, "sdpa"),
    (None, {VARIABLE: ""}, "sdpa"),
    (None, {VARIABLE: "eager"}, "eager"),
    ("eager", {}, "eager"),
    ("flash_attention_2", {VARIABLE: "sdpa"}, FLASH),
    ("eager", {VARIABLE: "sdpa"}, "eager"),
]
EVERY_BACKEND = pytest.mark.parametrize(("named", "environ", "expected"), BACKENDS)
EVERY_MACHINE = pytest.mark.parametrize("machine", MACHINES)


@pytest.mark.sources
@EVERY_MACHINE
@pytest.mark.parametrize("site", [0, 1], ids=["value-head", "causal-lm"])
@EVERY_BACKEND
def test_the_value_head_is_loaded_with_the_backend_that_was_asked_for(
    verl: Trees, machine: str, site: int, named: str | None, environ: dict[str, str], expected: str
) -> None:
    question = {"site": site, "config": {"_attn_implementation": named}}
    assert ask(verl.pristine, VALUE_HEAD, environ, **question) == FLASH
    assert ask(getattr(verl, machine), VALUE_HEAD, environ, **question) == expected


@pytest.mark.sources
def test_a_configuration_that_knows_no_backend_at_all_is_no_error(verl: Trees) -> None:
    assert ask(verl.gpu, VALUE_HEAD, {}, site=0, config={}) == "sdpa"


@pytest.mark.sources
@EVERY_BACKEND
def test_the_shared_model_configuration_has_the_backend_that_was_asked_for(
    verl: Trees, named: str | None, environ: dict[str, str], expected: str
) -> None:
    override = {"attn_implementation": named} if named else {}
    assert ask(verl.pristine, CONFIG, environ, override=override)[0] == (named or FLASH)
    assert ask(verl.gpu, CONFIG, environ, override=override) == [expected, expected]


@pytest.mark.sources
def test_no_literal_backend_is_left_where_a_model_is_loaded(verl: Trees) -> None:
    files = ("verl/utils/model.py", "verl/workers/config/model.py")
    assert sum((verl.pristine / name).read_text().count(FLASH) for name in files) == 3
    assert sum((verl.gpu / name).read_text().count(FLASH) for name in files) == 0


VETOED = "VERL_DISABLE_EXPANDABLE_SEGMENTS"


@pytest.mark.sources
@EVERY_MACHINE
def test_the_backend_reaches_workers_only_when_it_is_set(verl: Trees, machine: str) -> None:
    tree = getattr(verl, machine)
    assert VARIABLE not in ask(verl.pristine, FORWARDED, {VARIABLE: "eager"})
    assert ask(tree, FORWARDED, {VARIABLE: "eager"})[VARIABLE] == "eager"
    assert VARIABLE not in ask(tree, FORWARDED, {})
    assert VARIABLE not in ask(tree, FORWARDED, {VARIABLE: ""})


@pytest.mark.sources
def test_the_list_that_is_always_sent_puts_a_zero_in_place_of_what_is_unset(verl: Trees) -> None:
    """The trap: the variable added to that list would ask workers for a backend called 0."""
    assert ask(verl.pristine, FORWARDED, {})["PYTHONHASHSEED"] == "0"
    path = verl.pristine / "verl/trainer/constants_ppo.py"
    naive = path.read_text().replace('("PYTHONHASHSEED",', f'("PYTHONHASHSEED", "{VARIABLE}",')
    assert VARIABLE in naive
    code = FORWARDED.replace('load("verl/trainer/constants_ppo.py")', "load(QUESTION['path'])")
    other = verl.pristine / "naive.py"
    other.write_text(naive)
    try:
        assert ask(verl.pristine, code, {}, path="naive.py")[VARIABLE] == "0"
    finally:
        other.unlink()


@pytest.mark.sources
def test_the_veto_reaches_workers_only_when_it_is_set_and_only_on_the_a100(verl: Trees) -> None:
    for tree in (verl.pristine, verl.gpu, verl.ppu):
        assert VETOED not in ask(tree, FORWARDED, {VETOED: "1"})
    assert ask(verl.a100, FORWARDED, {VETOED: "1"})[VETOED] == "1"
    assert VETOED not in ask(verl.a100, FORWARDED, {})


@pytest.mark.sources
def test_everything_else_that_is_sent_to_workers_stays_as_it_was(verl: Trees) -> None:
    environ = {VARIABLE: "eager", VETOED: "1", "NCCL_DEBUG": "INFO", "PYTHONHASHSEED": "7"}
    before = ask(verl.pristine, FORWARDED, environ)
    after = ask(verl.a100, FORWARDED, environ)
    assert after == {**before, VARIABLE: "eager", VETOED: "1"}
    assert "NCCL_DEBUG" not in after
    assert after["PYTHONHASHSEED"] == "7"


CALLS = ["expandable_segments:False", "expandable_segments:True"]


@pytest.mark.sources
@pytest.mark.parametrize("environ", [{}, {VETOED: "0"}, {VETOED: ""}])
def test_without_a_veto_the_allocator_is_called_as_before(verl: Trees, environ: dict[str, str]) -> None:
    assert ask(verl.pristine, ALLOCATOR, environ) == ask(verl.a100, ALLOCATOR, environ) == CALLS


@pytest.mark.sources
def test_with_the_veto_no_call_is_made_at_all_and_only_the_a100_knows_it(verl: Trees) -> None:
    for tree in (verl.pristine, verl.gpu, verl.ppu):
        assert ask(tree, ALLOCATOR, {VETOED: "1"}) == CALLS
    assert ask(verl.a100, ALLOCATOR, {VETOED: "1"}) == []


@pytest.mark.sources
def test_every_place_that_switches_expandable_segments_goes_through_the_function_with_the_veto(verl: Trees) -> None:
    calls = {
        path.relative_to(verl.a100).as_posix()
        for path in (verl.a100 / "verl").rglob("*.py")
        if re.search(r"\.\s*_?set_allocator_settings\(", path.read_text())
    }
    assert calls == {
        "verl/utils/device.py",
        "verl/plugin/platform/platform_cuda.py",
        "verl/plugin/platform/platform_npu.py",
    }


def before_images(data: bytes) -> Iterator[tuple[str, str]]:
    """Of every hunk the file and the lines that it wants to find there."""
    path = ""
    wanted: list[str] = []
    for line in [*data.decode().split("\ndiff --git ", 1)[1].splitlines(), "@@"]:
        if line.startswith(("@@", "diff ")) and wanted:
            yield path, "\n".join(wanted)
            wanted = []
        if line.startswith("--- a/"):
            path = line.removeprefix("--- a/")
        elif line.startswith((" ", "-")) and not line.startswith("---"):
            wanted.append(line[1:])


def test_the_lines_that_a_patch_wants_to_find_are_read_from_it() -> None:
    images = list(before_images(patch_bytes(ATTENTION)))
    assert len(images) == 6
    assert {path for path, _ in images} == {
        "verl/trainer/constants_ppo.py",
        "verl/utils/model.py",
        "verl/workers/config/model.py",
    }


@pytest.mark.sources
@pytest.mark.parametrize("name", [ATTENTION, VETO])
def test_every_hunk_fits_exactly_one_place(verl: Trees, name: str) -> None:
    texts = {path: f"\n{(verl.pristine / path).read_text()}" for path, _ in before_images(patch_bytes(name))}
    found = [(path, texts[path].count(f"\n{image}\n")) for path, image in before_images(patch_bytes(name))]
    assert [path for path, count in found if count != 1] == []


@pytest.mark.sources
def test_the_patches_of_the_a100_do_not_need_each_other(repository: Path, tmp_path: Path) -> None:
    for number, order in enumerate(((VETO,), (VETO, ATTENTION))):
        export_commit(repository, COMMIT, tmp_path / str(number))
        apply_series(tmp_path / str(number), [(name, patch_bytes(name)) for name in order])
