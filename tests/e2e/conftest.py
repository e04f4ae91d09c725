"""The demo project, behind a real index on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.index import SimpleIndex
from tests.support.project import Project, make_project
from tests.support.stage import Stage


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """Where `built` stands; the folder is this worker's own."""
    return Stage(tmp_path_factory.mktemp("stage"))


@pytest.fixture
def project(
    request: pytest.FixtureRequest, stranger: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Project]:
    """The project as somebody wrote it; on its stage, with its store, for a test that wants it built."""
    if "built" not in request.fixturenames:
        yield make_project(stranger / "project")
        return
    project = stage.reset()
    monkeypatch.setenv("ENVSMITH_HOME", str(stage.store))
    yield project
    stage.clear()


@pytest.fixture
def index(project: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleIndex]:
    """Serve the project's wheels, and name the index in the environment."""
    with SimpleIndex(project.index) as served:
        monkeypatch.setenv("ENVSMITH_INDEX", served.url)
        yield served


@pytest.fixture
def built(project: Project, index: SimpleIndex) -> Project:
    """The project with its env built and verified: one real build a worker, put back as it was for every test."""
    assert (project.current / "envsmith.json").is_file()
    return project
