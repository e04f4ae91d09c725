"""Every test runs as a stranger: own home, own store, own folder, no settings of whoever runs it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Marks of tests that are skipped unless their option is given.
BY_HAND = ("big", "gpu", "sources")
_DROPPED = ("PIP_", "UV_", "GIT_", "ENVSMITH_", "CONDA_", "PYTHON", "VIRTUAL_ENV", "CUDA_", "RAY_")
#: How this machine is left for the network, not what is found there.
_KEPT = ("GIT_SSL_CAINFO", "ENVSMITH_TEST_OFFLINE")


def pytest_configure() -> None:
    """Take signals as a terminal gives them: a shell lets what it starts with `&` ignore both, and so its children."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    for mark in BY_HAND:
        parser.addoption(f"--run-{mark}", action="store_true", help=f"run the tests marked `{mark}` too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    offline = os.environ.get("ENVSMITH_TEST_OFFLINE") == "1"
    for item in items:
        for mark in BY_HAND:
            if item.get_closest_marker(mark) and not config.getoption(f"--run-{mark}"):
                item.add_marker(pytest.mark.skip(reason=f"needs --run-{mark}"))
        if offline and item.get_closest_marker("network"):
            item.add_marker(pytest.mark.skip(reason="ENVSMITH_TEST_OFFLINE=1"))


@pytest.fixture(autouse=True)
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a test its own home, caches and working folder; return the folder all of them are in."""
    for name in list(os.environ):
        if name.startswith(_DROPPED) and name not in _KEPT:
            monkeypatch.delenv(name)
    places = {
        "HOME": "home",
        "XDG_CACHE_HOME": "home/.cache",
        "XDG_CONFIG_HOME": "home/.config",
        "XDG_DATA_HOME": "home/.local/share",
        "XDG_STATE_HOME": "home/.local/state",
        "ENVSMITH_HOME": "store",
    }
    for name, place in places.items():
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv(name, str(tmp_path / place))
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "never")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    # A version manager's shims start a shell and a manager for every question, a second for each lock of these tests;
    # tests/integration/test_interpreter.py has shims of its own.
    path = [part for part in os.environ["PATH"].split(os.pathsep) if Path(part).name != "shims"]
    monkeypatch.setenv("PATH", os.pathsep.join(dict.fromkeys(path)))
    direct = [part for part in os.environ.get("NO_PROXY", "").split(",") if part]
    monkeypatch.setenv("NO_PROXY", ",".join([*direct, "127.0.0.1", "localhost"]))
    work = tmp_path / "cwd"
    work.mkdir()
    monkeypatch.chdir(work)
    return tmp_path


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """Give a folder with a path short enough for a socket in it (107 bytes, AF_UNIX)."""
    path = Path(tempfile.mkdtemp(prefix="es", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
