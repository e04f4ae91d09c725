"""Scripts of `bin` and `bin/activate`: which Python runs them, and where the environment believes it lies."""

from __future__ import annotations

import pytest

from envsmith.checks.launchers import check_activate, check_scripts
from envsmith.facts import Script
from tests.support.facts import ENV, expected, facts


def script(name: str, interpreter: str, *, exists: bool = True) -> Script:
    return Script(
        path=f"{ENV}/bin/{name}", shebang=f"#!{interpreter}", interpreter=interpreter, interpreter_exists=exists
    )


def judged(*scripts: Script, shipped: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    found = check_scripts(expected(), facts(scripts=scripts), shipped)
    return [(finding.kind, finding.severity.value, finding.subject) for finding in found]


@pytest.mark.parametrize(
    "interpreter", ["/old/env/bin/python", "/old/bin/python3.7m", "/old/bin/python3.13t", "/old/bin/pypy3"]
)
def test_scripts_of_another_place_are_one_finding(interpreter: str) -> None:
    scripts = [script(name, interpreter, exists=False) for name in ("ray", "torchrun")]
    assert judged(*scripts) == [("shebang-relocation", "error", "bin/ray, bin/torchrun")]
    assert judged(script("ray", interpreter)) == [("shebang-relocation", "warning", "bin/ray")]


def test_scripts_of_the_env_other_languages_and_what_a_wheel_shipped_are_fine() -> None:
    own = [script("ray", f"{ENV}/bin/python"), script("vllm", f"{ENV}/bin/python3"), script("tool", "/bin/sh")]
    assert judged(*own) == []
    assert judged(script("odd", "/usr/bin/python3"), shipped=("bin/odd",)) == []


def test_activate_of_another_place_is_named() -> None:
    assert list(check_activate(expected(), None)) == []
    assert list(check_activate(expected(), f"{ENV}/")) == []
    (finding,) = check_activate(expected(), "/build/env")
    assert (finding.subject, finding.expected, finding.actual) == ("bin/activate", ENV, "/build/env")
