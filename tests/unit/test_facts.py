"""The answer's reader is strict: what it accepts is exactly what the payload writes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from envsmith.errors import IntegrityError
from envsmith.facts import Facts, parse


def answer() -> dict[str, Any]:
    """A complete answer, as the payload writes it."""
    python = dict.fromkeys(
        ("executable", "realpath", "prefix", "base_prefix", "real_prefix", "real_base_prefix", "purelib", "platlib"),
        "/e",
    )
    return {
        "schema": 1,
        "context": "plain",
        "python": {**python, "version": "3.11.7", "implementation": "cpython", "stdlib": ["/b"], "site_packages": []},
        "flags": {"isolated": 0},
        "path": [{"entry": "/e", "real": "/e", "exists": True}],
        "environ": {"PATH": "/bin"},
        "site": {
            "user_enabled": False,
            "user_dir": None,
            "user_exists": False,
            "pth": [{"path": "/e/a.pth", "sha256": "0", "lines": [], "import_lines": ["import os"], "sure": True}],
            "customize": [{"name": "sitecustomize", "path": "/e/s.py", "sha256": "1", "loaded": True}],
            "finders": [{"name": "F", "module": "m", "file": None}],
        },
        "modules": {"ray": {"kind": "namespace", "origin": None, "locations": ["/e/ray"], "error": None}},
        "imports": {
            "ray": {
                "ok": True,
                "error_type": None,
                "error": None,
                "file": None,
                "version": "2",
                "seconds": 1,
                "cause": None,
                "said": None,
            },
        },
        "attributes": {"ray.remote": {"ok": False, "error_type": "AttributeError", "error": "no"}},
        "launchers": {
            "ray": {
                **dict.fromkeys(("path", "realpath", "shebang", "interpreter", "beside")),
                **dict.fromkeys(("interpreter_exists", "executable"), False),
                "skipped": [],
            }
        },
        "scripts": [],
        "distributions": [{"name": "ray", "version": "2", "metadata": "/e/r", "requires": ["click"], "readable": True}],
        "maps": [{"path": "/lib/libc.so.6", "deleted": False, "sha256": None}],
        "faults": [{"section": "maps", "message": "OSError"}],
        "seconds": 0.5,
    }


def test_an_answer_becomes_immutable_facts() -> None:
    facts = parse(json.dumps(answer()))

    assert isinstance(facts, Facts)
    assert facts.modules["ray"].locations == ("/e/ray",)
    assert facts.site.pth[0].import_lines == ("import os",)
    assert facts.imports["ray"].seconds == 1.0
    assert isinstance(facts.imports["ray"].seconds, float)
    with pytest.raises(AttributeError):
        facts.context = "other"  # type: ignore[misc]


def damaged(*path: str | int, value: Any = ...) -> str:
    """An answer with one place deleted, or replaced by `value`."""
    whole = answer()
    inner: Any = whole
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return json.dumps(whole)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "Expecting value"),
        ("warning from a hook\n{}", "Expecting value"),
        ("[]", "answer: "),
        ("[" * 100_000, ""),
        (damaged("python", "version"), "answer.python.version: missing"),
        (damaged("extra", value=1), "answer.extra: unknown key"),
        (damaged("site", "pth", 0, "sure", value=1), "answer.site.pth[0].sure"),
        (damaged("path", value=None), "answer.path"),
        (damaged("environ", "PATH", value=3), "answer.environ.PATH"),
        (damaged("seconds", value=True), "answer.seconds"),
        (damaged("schema", value=2), "answer.schema"),
    ],
)
def test_anything_else_is_refused_and_the_place_is_named(text: str, named: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        parse(text)

    (problem,) = caught.value.problems
    assert problem.code == "probe-answer-malformed"
    assert named in problem.message
