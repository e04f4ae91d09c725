"""A venv with a CPU build of torch, for payloads that run inside an env; only where that fetches no gigabytes."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from uv import find_uv_bin

TORCH = "torch==2.13.0"
OTHERS = ("transformers==5.3.0", "ray==2.56.1", "numpy", "safetensors", "jinja2")


def make_torch_env(base: Path) -> Path:
    """The interpreter of the venv below `base`, made once for all workers of a session."""
    folder = base / "torchenv"
    with locked(base / "torchenv.lock"):
        verdict = base / "torchenv.json"
        if not verdict.exists():
            verdict.write_text(json.dumps(build(folder)))
        reason = json.loads(verdict.read_text())
    if reason:
        pytest.skip(reason)
    return folder / "bin" / "python"


def build(folder: Path) -> str:
    """Make the venv; the reason why not, where torch would have to be fetched."""
    command = [sys.executable, "-m", "venv", folder]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    asked = subprocess.run(
        [*pip, "--dry-run", "--ignore-installed", "--no-deps", "--report", "-", TORCH],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    if asked.returncode:
        return f"pip finds no {TORCH} for this interpreter"
    url = json.loads(asked.stdout)["install"][0]["download_info"]["url"]
    if not url.startswith("file:"):
        return f"{TORCH} lies on no disk here: it would have to be fetched"
    # uv, since pip takes a minute for the same; bytecode, since the payloads write none.
    into = ["--python", folder / "bin" / "python"]
    subprocess.run(
        [find_uv_bin(), "pip", "install", "--quiet", "--compile-bytecode", *into, f"torch @ {url}", *OTHERS],
        check=True, timeout=600,
    )  # fmt: skip
    return ""


def session_folder(factory: pytest.TempPathFactory) -> Path:
    """The folder that all workers of a session share."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@contextmanager
def locked(path: Path) -> Iterator[None]:
    with path.open("w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield
