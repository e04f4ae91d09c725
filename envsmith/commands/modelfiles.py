"""The model of a job as it lies on this machine: its config.json, the size of its weights, and who knows its type.

Only small files are read: a configuration, an index, the head of one file of weights, two modules of a wheel.
"""

from __future__ import annotations

import os
import re
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from envsmith.commands.envs import shown, user_path
from envsmith.commands.workspace import Workspace
from envsmith.errors import EnvsmithError, InputError, Problem
from envsmith.jobconfig import JobFacts
from envsmith.lock import Lock
from envsmith.modelshape import parse_model
from envsmith.modelsize import Model, parse_index
from envsmith.recipe import Job
from envsmith.report import Finding, Severity
from envsmith.rules.situation import FAMILY
from envsmith.tools.store import open_store

#: Configurations take kilobytes, the index of the largest models some megabytes.
MOST_BYTES = 64 << 20
#: Where transformers lists its model types: the first in every release, the second from 5.6 on.
_MAPPINGS = ("transformers/models/auto/configuration_auto.py", "transformers/models/auto/auto_mappings.py")
_TYPE = re.compile(r"""["']([\w.-]+)["']\s*[,:]\s*["']\w+Config["']""")
#: With fewer the list is not where it was.
_FEWEST_TYPES = 50


def find_model(
    workspace: Workspace, env: str, facts: JobFacts, config: str | None, named: str | None
) -> tuple[Model | None, Finding | None]:
    """The model that `--model`, a configuration or the recipe names, in this order.

    A name in a configuration that is no folder here may be one of a hub, which says nothing.

    Raises:
        InputError: `model-config-unreadable`, `model-config-syntax`, `model-config-value`.
    """
    if named is not None:
        return read_model(user_path(named)), None
    said = facts.values.get("model")
    if said is not None and config is not None:
        places = [user_path(said), user_path(config).parent / said]
        found = next((place for place in places if _config(place).is_file()), None)
        return (read_model(found) if found else None), None
    recorded = workspace.stack.env[env].job.model
    if recorded is None:
        return None, None
    place = user_path(str(workspace.path.absolute().parent / recorded))
    if place.exists():
        return read_model(place), None
    return None, Finding(
        check=FAMILY,
        kind="model-not-at-hand",
        severity=Severity.NOTE,
        subject=f"env.{env}.job.model",
        message=f"`{recorded}` is not on this machine, so nothing was sized",
        hint="check where the model lies, or name its folder or config.json with `--model`",
    )


def with_model(job: Job, model: Model | None) -> Job:
    """The job, of the type that the model itself says."""
    return job.model_copy(update={"model_type": model.shape.model_type}) if model else job


def said_by(facts: JobFacts, model: Model | None, *, is_option: bool) -> Mapping[str, str]:
    """Where each value of a job was said, the model's own included."""
    own = {"model_type": f"{model.shape.where}: model_type"} if model else {}
    return {**facts.said_by, **own, **({"model": "--model"} if is_option else {})}


def read_model(place: Path) -> Model:
    """Read a folder of a model, or its config.json alone.

    Raises:
        InputError: `model-config-unreadable`, `model-config-syntax`, `model-config-value`.
    """
    config = _config(place)
    shape = parse_model(_read(config), _tidy(config))
    return Model(shape=shape, stored_bytes=_stored(config.parent))


def _config(place: Path) -> Path:
    return place / "config.json" if place.is_dir() else place


def _tidy(path: Path) -> str:
    """A path as it is shown, without `..` where that names the same file."""
    short = Path(os.path.normpath(path))
    try:
        return shown(short if short.samefile(path) else path)
    except OSError:
        return shown(path)


def _read(path: Path) -> str:
    hint = "name the folder of a model as it was saved, or its config.json"
    try:
        size = path.stat().st_size
        if not path.is_file():
            words = "it is no file"
        elif size > MOST_BYTES:
            words = f"it has {size} bytes, which no configuration has"
        else:
            return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        words = getattr(error, "strerror", None) or "it is not UTF-8 text"
    raise InputError(
        Problem(
            code="model-config-unreadable",
            message=f"the model's configuration cannot be read: {words}",
            where=_tidy(path),
            hint=hint,
        )
    )


def _stored(folder: Path) -> int | None:
    """Bytes of all tensors: what the index says, or what one file holds behind its head.

    Eight bytes with the length of the head, the head, the tensors: a file that safetensors 0.8.0 wrote, measured
    2026-11-30.
    """
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        return parse_index(_read(index), _tidy(index))
    try:
        with single.open("rb") as stream:
            head = stream.read(8)
        size = single.stat().st_size - 8 - struct.unpack("<Q", head)[0]
    except (OSError, struct.error):
        return None
    return size if size > 0 else None


def known_types(lock: Lock | None, environ: Mapping[str, str]) -> frozenset[str] | None:
    """The model types that the locked transformers lists; None where its wheel is not in the store.

    Every key of `CONFIG_MAPPING_NAMES` is found in the wheels of 5.3.0 (475) and 5.6.0 (610); measured 2026-11-30.
    """
    wheel = next((one for one in lock.wheels if one.name == "transformers"), None) if lock else None
    if wheel is None:
        return None
    store = open_store(environ)
    try:
        if not store.has(wheel.sha256, wheel.size):
            return None
        with zipfile.ZipFile(store.blob_path(wheel.sha256)) as archive:
            members = [info for info in archive.infolist() if info.filename in _MAPPINGS]
            small = [info for info in members if info.file_size <= MOST_BYTES]
            text = "".join(archive.read(info).decode("utf-8", "replace") for info in small)
    except (EnvsmithError, OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError):
        return None  # a build says what is wrong with it
    found = frozenset(_TYPE.findall(text))
    return found if len(found) >= _FEWEST_TYPES else None
