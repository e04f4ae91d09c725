"""Opening an env that another tool made: venv, virtualenv, uv, conda, a vendor's image. Nothing is written into it."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from packaging.pylock import Pylock
from packaging.utils import canonicalize_name

from envsmith.commands.envs import BuiltEnv, lock_file, shown, user_path
from envsmith.commands.subject import HOOKS, Foreign, Subject, verify_table
from envsmith.errors import EnvsmithError, InputError, NegativeAnswer, Problem
from envsmith.launch import LaunchTable
from envsmith.lock import Lock
from envsmith.lock import parse as parse_lock
from envsmith.recorded import SCAFFOLDING, Recorded, recorded_manifest
from envsmith.target import Target, applies
from envsmith.toml_reader import TomlError, read_toml
from envsmith.tools.distributions import read_distributions
from envsmith.tools.interpreter import machine
from envsmith.tools.store import open_store
from envsmith.tools.tree import hash_tree, scan

#: Programs that start training or serving; of an env without a recipe these are looked for on PATH.
#: Source: the entry points of torch, ray, vllm, deepspeed, accelerate, llamafactory and trl, read 2026-11-30.
LAUNCHERS = ("torchrun", "ray", "vllm", "deepspeed", "accelerate", "llamafactory-cli", "trl", "ninja")

#: Packages whose import is worth a try where no recipe has a list.
IMPORTS = (
    "torch", "torchvision", "vllm", "ray", "transformers", "pyarrow", "numpy", "deepspeed", "trl", "accelerate",
    "datasets", "peft", "flash_attn", "triton", "jax", "cupy", "tokenizers", "safetensors", "pandas", "scipy",
)  # fmt: skip


def open_foreign(built: BuiltEnv, *, lock: str | None, environ: Mapping[str, str]) -> Subject:
    """Read what an env says about itself.

    Raises:
        NegativeAnswer: `no-env` when the directory holds no Python environment.
        InputError: `lock-syntax` and its kin for a named lock.
    """
    root = built.directory
    sites = site_dirs(root) if root.resolve() != Path("/") else ()
    if not sites:
        raise NegativeAnswer(
            Problem(
                code="no-env",
                message="this directory holds no Python environment: no `lib/pythonX.Y/site-packages` is in it",
                where=shown(root),
                hint="name the folder that holds `pyvenv.cfg` or `bin/python`, or `stack/env`",
            )
        )
    is_venv = (root / "pyvenv.cfg").is_file()
    distributions = tuple(one if is_venv else _within(one, sites) for one in read_distributions(root, sites))
    known = Foreign(distributions=distributions, site_dirs=sites, is_venv=is_venv)
    seen = {item.path: item for item in scan(root, below(known))}
    python = _python_version(root, sites)
    ours, versions = _read_lock(lock, python)
    # What no RECORD gives a hash for is taken as it is; of hooks the content is wanted, so that they can be told apart.
    hooks = [item for path, item in seen.items() if path.endswith(HOOKS)]
    digests = hash_tree(root, hooks).digests
    manifest = recorded_manifest(distributions, seen, digests)
    plain = _scaffolding(root, digests)
    own_hooks = {path: digests[path] for path in plain}
    names = set(manifest.import_roots())
    outside = [one.editable for one in distributions if one.editable and _is_project(one.editable, root)]
    outside += [line for lines in plain.values() for line in lines if line.startswith("/") and _is_project(line, root)]
    table = {
        "imports": [name for name in IMPORTS if name in names],
        "attributes": [],
        "launchers": [name for name in LAUNCHERS if (root / "bin" / name).is_file()],
        "contexts": [],
        "single-instance": ["libarrow", "libnccl", "libcudart", "libcuda"],
        "allow-outside": [os.path.realpath(folder) for folder in outside],
        "allow-changed": [],
        "compute-capability": [],
    }
    return Subject(
        name=built.name,
        directory=root,
        listed=manifest,
        index=index_path(root, environ),
        python=python,
        launch=LaunchTable(unset=()),
        verify=verify_table(table, editable={}, base_hooks=own_hooks),
        lock=ours,
        versions=versions,
        foreign=known,
    )


def _within(one: Recorded, sites: tuple[str, ...]) -> Recorded:
    """A distribution without what it put elsewhere in an interpreter's own prefix, which is not looked into."""
    if one.rows is None:
        return one
    folders = tuple(f"{site}/" for site in sites)
    return replace(one, rows=tuple(row for row in one.rows if row.path.startswith(folders)))


def _scaffolding(root: Path, digests: Mapping[str, str]) -> dict[str, list[str]]:
    """The `.pth` files that the makers of environments write themselves, with the folders that they name.

    One that runs other code than it should is nobody's.
    """
    found = {}
    for path in digests:
        name = path.rsplit("/", 1)[-1]
        if name not in SCAFFOLDING or not name.endswith(".pth"):
            continue
        lines = [line.strip() for line in _text(root / path).splitlines() if line.strip()]
        code = [line for line in lines if line.startswith("import")]
        if code == (["import _virtualenv"] if name == "_virtualenv.pth" else []):
            found[path] = [line for line in lines if line not in code]
    return found


def _text(path: Path) -> str:
    """A small file, empty when it is none: a pipe in its place would never end."""
    try:
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError:
        return ""


def _is_project(folder: str, root: Path) -> bool:
    """Whether a folder can be somebody's project: not the root of a disk, nor a folder that the env lies in."""
    place = Path(os.path.realpath(folder))
    return len(place.parts) > 2 and place not in (root.resolve(), *root.resolve().parents)


def below(foreign: Foreign) -> tuple[str, ...]:
    """The folders of a foreign env that are looked into: all of a virtual environment, else where packages lie."""
    return ("",) if foreign.is_venv else tuple(f"{folder}/" for folder in foreign.site_dirs)


def opened_to_system(root: Path) -> bool:
    """Whether an env takes in the packages of its base, as its own `pyvenv.cfg` says."""
    text = _text(root / "pyvenv.cfg")
    return re.search(r"(?mi)^\s*include-system-site-packages\s*=\s*true\s*$", text) is not None


def site_dirs(root: Path) -> tuple[str, ...]:
    """Its site folders, relative; `lib64` of a virtual environment is a link to `lib` and is named once."""
    folders = [
        folder
        for pattern in ("lib/python3*/site-packages", "lib/python3*/dist-packages", "lib64/python3*/site-packages")
        for folder in sorted(root.glob(pattern))
        if folder.is_dir()
    ]
    first = {folder.resolve(): folder for folder in reversed(folders)}
    return tuple(str(folder.relative_to(root)) for folder in folders if first[folder.resolve()] == folder)


def _python_version(root: Path, sites: Iterable[str]) -> str:
    """The version that `pyvenv.cfg` names, else that of the folder names.

    Source: `version` of the standard library's venv, `version_info` of uv and virtualenv, read 2026-11-30.
    """
    text = _text(root / "pyvenv.cfg")
    found = re.search(r"(?m)^version(?:_info)?\s*=\s*(\d+\.\d+(?:\.\d+)?)", text)
    if found:
        return found[1]
    names = [*sites, *(path.name for path in sorted(root.glob("lib/python3.*")))]
    named = (re.search(r"python(3\.\d+)", name) for name in names)
    return next((match[1] for match in named if match), "3")


def index_path(root: Path, environ: Mapping[str, str]) -> Path:
    """Where the stat index of an env that is not ours lies: in our own store, never beside it."""
    try:
        home = open_store(environ).home
    except EnvsmithError:
        home = Path("/nonexistent")
    return home / "foreign" / f"{hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]}.stat.json"


def _read_lock(path: str | None, python: str) -> tuple[Lock | None, Mapping[str, str] | None]:
    """A lock of ours whole; of any other PEP 751 lock the names and versions.

    Raises:
        InputError: `lock-syntax`, `lock-invalid`.
    """
    if path is None:
        return None, None
    text = lock_file(user_path(path))
    try:
        data = read_toml(text)
    except TomlError as error:
        raise InputError(
            Problem(code="lock-syntax", message=f"this is not TOML: {error}", where=f"{path}:{error.line}")
        ) from error
    if "envsmith" in data.get("tool", {}):
        lock = parse_lock(text, path)
        return lock, None
    try:
        pylock = Pylock.from_dict(data)
    except Exception as error:  # the library's own errors have no common base that it documents
        raise InputError(
            Problem(code="lock-invalid", message=f"this is no lock: {error}", where=path, hint="name a pylock.toml")
        ) from error
    arch, glibc = machine()
    target = Target(python=python, arch=arch, glibc=glibc or "2.17")
    meant = (p for p in pylock.packages if p.version is not None and applies(p.marker, target, ()))
    return None, {str(canonicalize_name(p.name)): str(p.version) for p in meant}


def reinstall(owner: str, python: Path) -> str:
    """The command that puts a distribution's own files back, for an env that is not ours to build again.

    Proven to restore a package that lost files (facts/verify.md §2).
    """
    name = owner.partition("==")[0]
    if not re.fullmatch(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?==[A-Za-z0-9.!+_-]+", owner):
        return "`uv pip install --reinstall` of it"  # what METADATA says is put into a command only where it is a name
    place = shlex.quote(shown(python))
    return f"`uv pip install --python {place} --no-deps --reinstall-package {name} '{owner}'`"
