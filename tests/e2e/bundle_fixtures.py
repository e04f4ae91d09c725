"""The bundles of tests.support.bundlekit.py as fixtures: made once for all modules and workers of a run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.bundlekit import Kit, Site


@pytest.fixture
def kit(stranger: Path, tmp_path_factory: pytest.TempPathFactory) -> Kit:
    """The shared bundles; `stranger` has cleaned the environment that they are made in."""
    base = tmp_path_factory.getbasetemp()
    return Kit((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "bundles")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")
