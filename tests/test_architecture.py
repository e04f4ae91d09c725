"""The import rules of docs/design.md, held by a test: rows may only look downward, and the core has no effects."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "envsmith"

#: Rows from the bottom to the top; a module may import its own row and those below it.
ROWS: tuple[tuple[str, ...], ...] = (
    ("errors", "toml_position", "toml_reader", "__init__"),
    (
        "host",
        "hostfacts",
        "launch",
        "modulefile",
        "rayforward",
        "snippets",
        "conditions",
        "report",
        "report_text",
        "report_brief",
        "report_html",
        "html_parts",
        "html_tables",
        "redaction",
        "target",
        "data",
        "observed",
        "patchbody",
        "hunks",
        "patchlines",
        "sshsig",
        "ed25519",
        "ocireference",
        "scrubbing",
        "nativestack",
    ),
    (
        "recipe",
        "series",
        "lock",
        "conflicts",
        "wheelfile",
        "manifest",
        "installed",
        "receipt",
        "recorded",
        "basepackages",
        "overlay",
        "shadowing",
        "bundle",
        "bundlecheck",
        "bundlejson",
        "bundlekinds",
        "bootstrap",
        "deltaformat",
        "deltaplan",
        "licences",
        "shards",
        "shardfiles",
        "checkpointfolder",
        "delivery",
        "evidence",
        "evidencefacts",
        "evidencesummary",
        "evidencehtml",
    ),
    (
        "plan",
        "facts",
        "native",
        "bytecode",
        "stdlib",
        "running",
        "raylets",
        "fleet",
        "fleetreduce",
        "fleetfacts",
        "fleettext",
        "lockdiff",
        "checks",
        "symptoms",
        "symptomtable",
        "diagnosis",
        "diagnosis_text",
        "listening",
        "knownfacts",
        "proving",
        "layers",
        "logs",
        "rules",
        "jobconfig",
        "modelkeys",
        "modelshape",
        "modelsize",
        "keeping",
        "sbom",
        "officer_sheet",
        "smoke",
        "startup",
        "evidencerungs",
        "evidencepapers",
        "evidencecheck",
    ),
    ("tools", "probe"),
    ("commands", "execute", "rungs"),
    (
        "cli",
        "cli_group",
        "cli_envs",
        "cli_bundles",
        "cli_patches",
        "cli_checkpoints",
        "cli_smoke",
        "cli_diagnose",
        "__main__",
    ),
)

#: Everything below `tools` is core: values and judgements.
CORE = {name for row in ROWS[:4] for name in row}

EFFECTS = {
    "os", "io", "subprocess", "shutil", "socket", "tempfile", "time", "random", "pathlib.Path", "glob",
    "urllib.request", "http", "requests", "git", "pynvml", "rich", "click", "threading",
    "multiprocessing", "concurrent", "ctypes",
}  # fmt: skip
EFFECT_CALLS = {"open", "print", "input", "exec", "eval"}

#: Doors: who alone may import what.
DOORS = {
    "subprocess": {"tools/process.py"},
    "git": {"tools/git.py"},
    "requests": {
        "tools/transport.py",
        "tools/download.py",
        "tools/registry.py",
        "tools/registry_session.py",
        "tools/registry_push.py",
        "tools/registry_pull.py",
    },
    "click": {
        "cli.py",
        "cli_group.py",
        "cli_envs.py",
        "cli_bundles.py",
        "cli_patches.py",
        "cli_checkpoints.py",
        "cli_smoke.py",
        "cli_diagnose.py",
    },
    "rich": {"commands/screen.py", "cli.py"},
    "pynvml": {"tools/device.py"},
    "yaml": {"jobconfig.py"},
    "pydantic": {"recipe.py", "host.py", "hostfacts.py"},
}
NEVER = {"torch", "ray", "vllm"}
#: Sources that only foreign interpreters run.
PAYLOADS = {"probe/collect.py", "probe/observe.py", "probe/chain.py", "probe/recompile.py", "probe/rayfleet.py"}


def modules() -> Iterator[Path]:
    """Every module that is ours to import; the payloads run elsewhere and are held by their own tests."""
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        if relative.as_posix() not in PAYLOADS and relative.parts[0] not in ("rungs", "content"):
            yield path


def imports_of(source: str) -> set[str]:
    """Dotted names that a module imports at run time, at any depth; TYPE_CHECKING blocks do not count."""
    tree = ast.parse(source)
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def row_of(part: str) -> int:
    """The row of a top-level module or folder of the package."""
    return next(n for n, row in enumerate(ROWS) if part in row)


def broken_rows(relative: str, source: str) -> set[str]:
    """Imports of ours that look upward."""
    here = row_of(relative.split("/")[0].removesuffix(".py"))
    ours = {name.split(".")[1] for name in imports_of(source) if name.startswith("envsmith.") and name.count(".")}
    known = {part for row in ROWS for part in row}
    return {part for part in ours & known if row_of(part) > here}


def broken_purity(relative: str, source: str) -> set[str]:
    """Effects in the core."""
    if relative.split("/")[0].removesuffix(".py") not in CORE or relative.startswith("data/"):
        return set()
    used = {effect for effect in EFFECTS for name in imports_of(source) if f"{name}.".startswith(f"{effect}.")}
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    calls = {node.func.id for node in nodes if isinstance(node.func, ast.Name)}
    return used | (calls & EFFECT_CALLS)


def broken_doors(relative: str, source: str) -> set[str]:
    """Libraries that came in by another door than theirs."""
    tops = {name.split(".")[0] for name in imports_of(source)}
    return {top for top in tops & DOORS.keys() if relative not in DOORS[top]} | (tops & NEVER)


@pytest.mark.parametrize("path", list(modules()), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_module_keeps_the_import_rules(path: Path) -> None:
    relative, source = path.relative_to(PACKAGE).as_posix(), path.read_text()
    assert broken_rows(relative, source) == set()
    assert broken_purity(relative, source) == set()
    assert broken_doors(relative, source) == set()


@pytest.mark.parametrize(
    ("relative", "source", "rule"),
    [
        ("recipe.py", "from envsmith.tools.store import Store", "rows"),
        ("errors.py", "import envsmith.lock", "rows"),
        ("tools/store.py", "from envsmith import execute", "rows"),
        ("lock.py", "def f():\n    import requests", "purity"),
        ("checks/files.py", "from pathlib import Path", "purity"),
        ("plan.py", "print('x')", "purity"),
        ("commands/build.py", "import subprocess", "doors"),
        ("tools/uv.py", "from git import Repo", "doors"),
        ("execute.py", "import torch", "doors"),
    ],
)
def test_a_planted_break_is_seen(relative: str, source: str, rule: str) -> None:
    found = {"rows": broken_rows, "purity": broken_purity, "doors": broken_doors}[rule](relative, source)
    assert found


@pytest.mark.parametrize(
    ("relative", "source"),
    [
        ("checks/files.py", "from pathlib import PurePosixPath"),
        ("facts.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from envsmith.tools.store import Store"),
    ],
)
def test_what_is_allowed_is_not_seen(relative: str, source: str) -> None:
    assert broken_rows(relative, source) | broken_purity(relative, source) | broken_doors(relative, source) == set()
