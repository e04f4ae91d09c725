"""What the scan sees in code, and what it must pass over."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from envsmith.rules.scan import SourceFacts, scan
from envsmith.rules.tables import (
    bad_pins,
    compat_libraries,
    driver_floors,
    model_types,
    stdlib_floors,
    torch_builds,
    wheel_floors,
)


def names(text: str, path: str = "pkg/a.py") -> list[str]:
    return [site.what for site in scan([(path, text)]).stdlib]


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("from enum import StrEnum", ["enum.StrEnum"]),
        ("import enum\nclass A(enum.StrEnum): pass", ["enum.StrEnum"]),
        ("import enum as e\nx = e.StrEnum", ["enum.StrEnum"]),
        ("import tomllib", ["tomllib"]),
        ("def f():\n    from typing import Self, List", ["typing.Self"]),
        ("import asyncio\nasync def f():\n    async with asyncio.timeout(1): pass", ["asyncio.timeout"]),
        ("try:\n    import x\nexcept KeyError:\n    pass\nimport tomllib", ["tomllib"]),
        ("try:\n    import tomllib\nfinally:\n    pass", ["tomllib"]),
    ],
)
def test_a_name_of_the_standard_library_is_seen(text: str, seen: list[str]) -> None:
    assert names(text) == seen


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    from enum import StrEnum\nexcept ImportError:\n    StrEnum = None",
        "import sys\nif sys.version_info >= (3, 11):\n    import tomllib\nelse:\n    import tomli as tomllib",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from typing import Self",
        "from typing_extensions import Self",
        "from .enum import StrEnum",
        "x = 'from enum import StrEnum'  # StrEnum",
        "class enum: pass\nenum.StrEnum = 1",
        "from enum import StrEnum(",
    ],
)
def test_what_runs_only_where_it_can_is_not_seen(text: str) -> None:
    assert names(text) == []


@pytest.mark.parametrize("path", ["tests/a.py", "examples/x/a.py", "docs/conf.py", "pkg/a.txt"])
def test_files_that_no_job_imports_are_left_out(path: str) -> None:
    assert scan([(path, "import tomllib")]) == SourceFacts()


def test_a_literal_backend_is_seen_and_a_default_is_not() -> None:
    text = (
        'm.load(\n    attn_implementation="flash_attention_2",\n)\n'
        'get("attn_implementation", "flash_attention_2")\nload(attn_implementation=chosen)\n'
        'class C:\n    attn_implementation: str = "flash_attention_2"\n'
    )
    assert [site.place for site in scan([("verl/m.py", text)]).attention] == ["verl/m.py:2"]


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ('env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"', ["PYTORCH_CUDA_ALLOC_CONF"]),
        ('os.environ.setdefault("PYTORCH_ALLOC_CONF", "a:b,expandable_segments: true")', ["PYTORCH_ALLOC_CONF"]),
        ('v = {"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True", **x}', ["PYTORCH_NPU_ALLOC_CONF"]),
        ('env["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:False"', []),
        ('# PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True', []),
        ('env.pop("PYTORCH_CUDA_ALLOC_CONF", None)', []),
    ],
)  # fmt: skip
def test_writes_to_an_allocator_variable_are_seen(text: str, variables: list[str]) -> None:
    assert [site.what for site in scan([("pkg/a.py", text)]).allocator] == variables


def test_the_switch_nearest_to_a_write_is_kept() -> None:
    text = (
        'if on("FORCE_RUN"):\n    if on("OPTIM_TORCH", "1"):\n        e["X_ALLOC_CONF"] = "expandable_segments:True"\n'
    )
    assert [site.switches for site in scan([("pkg/a.py", text)]).allocator] == [("OPTIM_TORCH",)]


def test_calls_that_turn_expandable_segments_on_are_seen() -> None:
    text = (
        "set_expandable_segments(True)\nd.set_expandable_segments(enable=True)\nset_expandable_segments(False)\n"
        'torch.cuda.memory._set_allocator_settings("expandable_segments:True")\nset_expandable_segments(flag)\n'
    )
    assert [site.line for site in scan([("pkg/a.py", text)]).expandable] == [1, 2, 4]


def test_a_veto_is_seen_and_a_late_return_is_none() -> None:
    veto = 'def set_expandable_segments(x):\n    if os.getenv("NO_SEGMENTS"):\n        return\n    go(x)\n'
    late = 'def set_expandable_segments(x):\n    go(x)\n    if os.getenv("NO_SEGMENTS"):\n        return\n'
    assert [site.what for site in scan([("a/a.py", veto)]).vetoes] == ["NO_SEGMENTS"]
    assert scan([("a/a.py", late)]).vetoes == ()


def test_the_tables_can_be_read_and_every_row_has_a_source() -> None:
    from envsmith.data import table

    for made in (torch_builds(), driver_floors(), compat_libraries(), bad_pins(), model_types(), wheel_floors()):
        assert made
    for name in ("torch-builds", "known-bad-pins", "model-types", "wheel-floors", "stdlib-floors"):
        assert [row for rows in table(name).values() for row in rows if not row["source"]] == []


def test_the_floors_hold_for_this_interpreter() -> None:
    """Every name with a floor up to ours is there, and no other: 3.10 and 3.11 disagree about the rows between."""
    script = (
        "import importlib, json, sys\n"
        "def there(name):\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "        return True\n"
        "    except ImportError:\n"
        "        module, _, attribute = name.rpartition('.')\n"
        "        try:\n"
        "            return bool(module) and hasattr(importlib.import_module(module), attribute)\n"
        "        except ImportError:\n"
        "            return False\n"
        "print(json.dumps([name for name in json.load(sys.stdin) if there(name)]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], input=json.dumps(sorted(stdlib_floors())), capture_output=True,
        text=True, check=True, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    here = ".".join(map(str, sys.version_info[:2]))
    from packaging.version import Version

    assert set(json.loads(done.stdout)) == {n for n, floor in stdlib_floors().items() if floor <= Version(here)}
