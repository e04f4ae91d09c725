"""The page of the smoke ladder has every statement that its rungs make."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNGS = (
    "answering", "surroundings", "service", "listening", "device", "reading", "reductions", "collective", "encode",
    "generate", "embed", "ray_generate", "merge_serve",
)  # fmt: skip
SLUG = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)+|numerics|merge|broadcast")


def slugs(source: str) -> Iterator[str]:
    """Literals that may be the first argument of `say`, `check` or a helper that hands it on."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        arguments = node.args[:1] if name in ("say", "check") else node.args if name in HELPERS else []
        for argument in arguments:
            literals = (inner.value for inner in ast.walk(argument) if isinstance(inner, ast.Constant))
            yield from (text for text in literals if isinstance(text, str) and SLUG.fullmatch(text))


HELPERS = {"compare_tokens", "_say_refused"}


def documented() -> set[str]:
    page = (ROOT / "docs" / "smoke-rungs.md").read_text()
    cells = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    return {slug for cell in cells for slug in re.findall(r"`([^`]+)`", cell)}


@pytest.mark.parametrize("rung", RUNGS)
def test_every_statement_of_a_rung_is_on_the_page(rung: str) -> None:
    found = set(slugs((ROOT / "envsmith" / "rungs" / f"{rung}.py").read_text()))
    assert found - documented() == set()


def test_a_statement_that_is_left_out_is_seen() -> None:
    assert set(slugs('answer.say("new-one" if x else "other-one", "ok", "a b")')) - documented() == {
        "new-one",
        "other-one",
    }


def test_the_page_names_no_statement_that_is_gone() -> None:
    text = "".join((ROOT / "envsmith" / "rungs" / f"{rung}.py").read_text() for rung in RUNGS)
    # A slug that is put together from another one has a part of it in the source.
    built = {"ray-same-tokens", "ray-worker-same-python"}
    assert {slug for slug in documented() - built if f'"{slug}"' not in text} == set()
