"""The demo project, behind a real index on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.index import SimpleIndex
from tests.support.project import Project, make_project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return make_project(tmp_path / "project")


@pytest.fixture
def index(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleIndex]:
    """Serve the project's wheels, and name the index in the environment."""
    with SimpleIndex(project.index) as served:
        monkeypatch.setenv("ENVSMITH_INDEX", served.url)
        yield served


@pytest.fixture
def built(project: Project, index: SimpleIndex) -> Project:
    """The project with its env built and verified."""
    said = project.build()
    assert said.code == 0, said.out + said.err
    return project
