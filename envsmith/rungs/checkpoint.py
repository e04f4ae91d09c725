"""A checkpoint: written beside its name and renamed, with the sha256 of every file, and refused where one differs.

No file needs pickle: tensors stand in safetensors files, everything else in JSON.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .answering import sha256_of

MANIFEST = "manifest.json"
MODEL, OPTIMIZER, RANDOM, STATE = "model.safetensors", "optimizer.safetensors", "random.safetensors", "state.json"


class IncompleteError(Exception):
    """A file of the checkpoint is missing, cut short, or another than was written."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


def write(folder: Path, tensors: Mapping[str, Mapping[str, Any]], state: Mapping[str, Any]) -> int:
    """Write the files of tensors and `state.json`, then the manifest, then rename; returns the size in bytes."""
    from safetensors.torch import save_file

    staging = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    for name, group in tensors.items():
        save_file({key: value.detach().to("cpu").contiguous().clone() for key, value in group.items()}, staging / name)
    (staging / STATE).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    seal(staging)
    size = sum(path.stat().st_size for path in staging.iterdir())
    shutil.rmtree(folder, ignore_errors=True)
    staging.rename(folder)
    return size


def seal(folder: Path) -> None:
    """Write the manifest of the files as they are."""
    files = {
        path.name: {"sha256": sha256_of(path), "size_bytes": path.stat().st_size}
        for path in sorted(folder.iterdir())
        if path.name != MANIFEST
    }
    (folder / MANIFEST).write_text(json.dumps({"files": files}, indent=1) + "\n", encoding="utf-8")


def problems_of(folder: Path) -> list[str]:
    """What is missing or other than the manifest says, a file a sentence."""
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError) as error:
        return [f"`{MANIFEST}` cannot be read: {error}"]
    found = [f"`{name}` is not in the manifest" for name in (MODEL, OPTIMIZER, RANDOM, STATE) if name not in files]
    for name, written in files.items():
        path = folder / name
        if not path.is_file():
            found.append(f"`{name}` is missing")
        elif (size := path.stat().st_size) != written["size_bytes"]:
            found.append(f"`{name}` has {size} bytes, {written['size_bytes']} were written")
        elif sha256_of(path) != written["sha256"]:
            found.append(f"`{name}` has another sha256 than was written")
    return found


def read(folder: Path) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Read all files of a checkpoint that is whole.

    Raises:
        IncompleteError: a file is missing or differs from the manifest.
    """
    from safetensors.torch import load_file

    if problems := problems_of(folder):
        raise IncompleteError(problems)
    tensors = {name: load_file(folder / name) for name in (MODEL, OPTIMIZER, RANDOM)}
    return tensors, json.loads((folder / STATE).read_text(encoding="utf-8"))
