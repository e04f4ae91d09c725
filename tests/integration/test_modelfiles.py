"""Which model types the locked transformers knows, read from its wheel in a store; and the case that needs it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from envsmith.commands.check import run
from envsmith.commands.modelfiles import known_types
from envsmith.lock import Lock, Wheel, render
from envsmith.recipe import parse
from envsmith.tools.store import open_store
from tests.support.wheels import make_wheel
from tests.unit.test_rules import QWEN, lock

AUTO = "transformers/models/auto"
TYPES = [f"kind{n}" for n in range(60)]
OLDER = "CONFIG_MAPPING_NAMES = OrderedDict(\n    [\n{rows}    ]\n)\n"


def listed(*types: str) -> str:
    return OLDER.format(rows="".join(f'        ("{one}", "{one.title()}Config"),\n' for one in types))


def stored(folder: Path, files: dict[str, str], version: str = "4.57.6") -> Lock:
    """A lock of a transformers whose wheel is in the store of this test."""
    made = make_wheel(folder, "transformers", version, {"transformers/__init__.py": "", **files})
    sha256 = open_store(os.environ).add_file(made)
    one = Wheel(name="transformers", version=version, filename=made.name, size=made.stat().st_size, sha256=sha256)
    return lock(one)


def test_types_are_read_where_each_release_lists_them(tmp_path: Path) -> None:
    older = stored(tmp_path / "a", {f"{AUTO}/configuration_auto.py": listed(*TYPES)})
    assert known_types(older, os.environ) == frozenset(TYPES)
    added = 'CONFIG_MAPPING_NAMES.update(\n    {\n        "gpt-sw3": "GPT2Config",\n    }\n)\n'
    newer = stored(tmp_path / "b", {f"{AUTO}/auto_mappings.py": listed(*TYPES), f"{AUTO}/configuration_auto.py": added})
    assert known_types(newer, os.environ) == frozenset([*TYPES, "gpt-sw3"])


def test_what_is_not_a_list_of_types_claims_nothing(tmp_path: Path) -> None:
    assert known_types(None, os.environ) is None
    assert known_types(lock(), os.environ) is None
    assert known_types(stored(tmp_path / "a", {}), os.environ) is None
    assert known_types(stored(tmp_path / "b", {f"{AUTO}/configuration_auto.py": listed("one")}), os.environ) is None
    here = stored(tmp_path / "c", {f"{AUTO}/configuration_auto.py": listed(*TYPES)})
    (elsewhere,) = (replace(one, sha256="0" * 64) for one in here.wheels)
    assert known_types(replace(here, wheels=(elsewhere,)), os.environ) is None


@pytest.mark.parametrize(("types", "kinds"), [((*TYPES, "qwen2"), ["model-type-unknown"]), ((*TYPES, "qwen3"), [])])
def test_d34_a_type_without_a_row_is_looked_up_in_the_locked_wheel(
    tmp_path: Path, types: tuple[str, ...], kinds: list[str]
) -> None:
    recipe = '[stack]\nname = "t"\n[env.a]\npython = "3.11"\nrequires = ["transformers==4.57.6"]\n'
    (tmp_path / "t.toml").write_text(recipe)
    made = stored(tmp_path / "w", {f"{AUTO}/configuration_auto.py": listed(*types)})
    whole = replace(made, recipe_digest=parse(recipe, "t.toml").recipe_digest("a"))
    (tmp_path / "pylock.t-a.toml").write_text(render(whole))
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    done = run(str(tmp_path / "t.toml"), envs=(), config=None, environ=os.environ, model=str(tmp_path / "config.json"))
    rules = [one for one in done.data["findings"] if one["check"] == "rules"]
    assert [(one["kind"], one["severity"]) for one in rules] == [(kind, "error") for kind in kinds]
    assert all("transformers 4.57.6 does not know the model type `qwen3`" in one["message"] for one in rules)
