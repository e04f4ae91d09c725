"""A command name must start the environment's own program on the environment's own Python."""

from __future__ import annotations

import pytest

from envsmith.checks.launchers import check_launchers
from envsmith.facts import Launcher
from envsmith.report import Finding, Severity
from tests.support.facts import BASE, ENV, expected, facts, script

OWN = f"{ENV}/bin/torchrun"
ELSEWHERE = "/opt/conda/bin/torchrun"
NOWHERE = script(OWN, None, path=None, realpath=None, executable=False, beside=None)


def judged(launcher: Launcher) -> list[Finding]:
    found = list(check_launchers(expected(launchers=("torchrun",)), facts(launchers={"torchrun": launcher})))
    assert all(finding.severity is Severity.ERROR and finding.check == "launchers" for finding in found)
    return found


@pytest.mark.parametrize(
    "launcher",
    [
        script(OWN, f"{ENV}/bin/python"),
        script(OWN, f"{ENV}/bin/python3.11"),
        script(OWN, None),
        script(OWN, "/usr/bin/bash"),
        script("/home/u/bin/torchrun", f"{ENV}/bin/python", realpath=OWN),
        script(OWN, f"{ENV}/bin/python", shebang="#!/bin/sh"),
        script(OWN, f"{ENV}/bin/python", skipped=("/home/u/bin/torchrun",)),
    ],
    ids=["script", "versioned", "binary", "shell", "link", "trampoline", "blunt file earlier on PATH"],
)
def test_the_environments_own_launcher_is_silent(launcher: Launcher) -> None:
    assert judged(launcher) == []


def test_a_launcher_that_was_not_probed_is_not_judged() -> None:
    assert list(check_launchers(expected(launchers=("torchrun",)), facts())) == []


@pytest.mark.parametrize(
    ("launcher", "kind", "actual"),
    [
        (NOWHERE, "launcher-missing", "nowhere"),
        (script(OWN, None, path=None, realpath=None), "launcher-missing", f"only beside the interpreter, as {OWN}"),
        (script(ELSEWHERE, "/opt/conda/bin/python"), "launcher-from-wrong-env", f"{ELSEWHERE}, run by /opt/conda/bin/"),
        (script(ELSEWHERE, None), "launcher-from-wrong-env", ELSEWHERE),
        (script(f"{ENV}/bin2/torchrun", None), "launcher-from-wrong-env", "bin2"),
        (script(OWN, "/opt/conda/bin/python"), "launcher-wrong-interpreter", "/opt/conda/bin/python"),
        (script(OWN, f"{BASE}/bin/python3.11"), "launcher-wrong-interpreter", f"{BASE}/bin/python3.11"),
        (
            script(OWN, "/moved/bin/python", interpreter_exists=False),
            "launcher-wrong-interpreter",
            "/moved/bin/python, which does not exist",
        ),
        (script(OWN, None, shebang="#!/usr/bin/env python9"), "launcher-wrong-interpreter", "leads to no program"),
        (script(OWN, None, path=None, realpath=None, skipped=(OWN,)), "launcher-not-executable", "not found"),
        (script(ELSEWHERE, None, skipped=(OWN,)), "launcher-not-executable", ELSEWHERE),
    ],
)
def test_any_other_launcher_is_named_once(launcher: Launcher, kind: str, actual: str) -> None:
    (finding,) = judged(launcher)

    assert (finding.kind, finding.subject) == (kind, "torchrun")
    assert finding.actual is not None
    assert actual in finding.actual
    assert finding.expected is not None
    assert finding.expected.startswith(f"{ENV}/bin/")


def test_d18_the_launcher_of_the_base_environment_is_named_with_its_python() -> None:
    base = script("/home/u/.local/bin/torchrun", "/opt/conda/bin/python")

    (finding,) = judged(base)
    assert finding.kind == "launcher-from-wrong-env"
    assert finding.actual == "/home/u/.local/bin/torchrun, run by /opt/conda/bin/python"
