"""Finding env directories and their records, and paths as users write and read them. Cheap to import."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith.errors import InputError, NegativeAnswer, Problem
from envsmith.receipt import SCHEMA as RECEIPT_SCHEMA


def shown(path: Path) -> str:
    """A path as messages name it: relative to the current folder where it lies below."""
    try:
        return str(path.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def user_path(text: str) -> Path:
    """A path as a user wrote it, absolute, `~` filled in.

    Raises:
        InputError: `path-malformed`.
    """
    try:
        path = Path(text).expanduser().absolute()
        path.exists()
    except (RuntimeError, ValueError, OSError) as error:
        words = getattr(error, "strerror", None) or str(error)
        shortened = text if len(text) <= 80 else f"{text[:77]}…"
        raise InputError(
            Problem(code="path-malformed", message=f"this path cannot be used: {words}", where=shortened)
        ) from error
    return path


def env_root(root: str | None, environ: Mapping[str, str]) -> Path:
    """The folder that envs are built under: `--root`, else `$ENVSMITH_ROOT`, else `.envsmith/envs`."""
    path = user_path(root if root is not None else environ.get("ENVSMITH_ROOT") or ".envsmith/envs")
    # Installers write relative paths into RECORD, which a `..` in the middle would make others.
    return path.resolve() if ".." in path.parts else path


def is_path(env: str) -> bool:
    """Say whether an ENV argument is a path: it starts with `/`, `.` or `~`."""
    return env.startswith(("/", ".", "~"))


@dataclass(frozen=True, kw_only=True, slots=True)
class BuiltEnv:
    """An env directory, with our records when we built it."""

    name: str
    """`stack/env`, or the path for an env that another tool made."""
    directory: Path
    receipt: Mapping[str, object] | None

    def beside(self, suffix: str) -> Path:
        """Our record of that kind, which lies beside the env directory."""
        return self.directory.parent / f"{self.directory.name}.{suffix}"


def open_env(env: str, root: Path) -> BuiltEnv:
    """Find one env.

    Raises:
        InputError: `env-name` when the argument is neither a path nor `stack/env`.
        NegativeAnswer: `env-missing` when nothing is built there.
    """
    if is_path(env):
        directory = user_path(env)
        hint = "name the folder that holds `pyvenv.cfg`, or `stack/env`"
    else:
        parts = env.split("/")
        if len(parts) != 2 or not all(parts):
            raise InputError(
                Problem(
                    code="env-name",
                    message=f"`{env}` is neither `stack/env` nor a path",
                    hint="write for example `quickstart/worker`; a path starts with `/`, `.` or `~`",
                )
            )
        directory = user_path(f"{root}/{'-'.join(parts)}/current")
        hint = (
            f"envs of this root: {', '.join(built_envs(root)) or 'none'}; the root is `.envsmith/envs` of the current"
            " folder unless --root or ENVSMITH_ROOT names another"
        )
    if not directory.is_dir():
        raise NegativeAnswer(
            Problem(code="env-missing", message=f"there is no env `{env}`", where=shown(directory), hint=hint)
        )
    # `current` is a link of ours; the env's own paths name the directory it points at.
    real = directory.resolve() if directory.is_symlink() else directory
    receipt = read_receipt(real)
    name = f"{receipt['stack']}/{receipt['env']}" if receipt else env
    return BuiltEnv(name=name, directory=real, receipt=receipt)


def read_receipt(directory: Path) -> Mapping[str, object] | None:
    """The receipt of an env directory, or None when the env is not (completely) ours."""
    path = directory / "envsmith.json"
    try:
        data = json.loads(path.read_text() if path.is_file() else "")
    except (OSError, ValueError, RecursionError):
        return None
    wanted = ("fingerprint", "stack", "env")
    ours = isinstance(data, dict) and data.get("envsmith-receipt") == RECEIPT_SCHEMA
    return data if ours and all(isinstance(data.get(key), str) for key in wanted) else None


def is_ours(built: BuiltEnv) -> bool:
    """Whether a directory without a receipt is an env of ours whose build did not end, or whose receipt was removed.

    Its name is a fingerprint, and beside it lies the lock file of builds.
    """
    named = re.fullmatch(r"[0-9a-f]{12}(-\d+)?", built.directory.name) is not None
    return named and (built.directory.parent / ".lock").exists()


def was_moved(directory: Path, receipt: Mapping[str, Any]) -> bool:
    """Whether an env lies elsewhere than it was built: its scripts and links name the old place."""
    root = receipt.get("root")
    place = Path(str(root)) / f"{receipt['stack']}-{receipt['env']}" / directory.name
    return place.resolve() != directory.resolve()


#: Beside the env directories of an env: which bundle it was installed from last.
BUNDLE_RECORD = "bundle.json"


def installed_from(directory: Path, lock_sha256: str) -> str | None:
    """The digest of the bundle that an env directory was installed from, None where it was built from a recipe."""
    try:
        record = json.loads((directory.parent / BUNDLE_RECORD).read_text("utf-8"))
        fits = record["lock"] == lock_sha256
        return str(record["bundle"]) if fits else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def built_envs(root: Path) -> Iterator[str]:
    """`stack/env` of every env under a root that has a `current`."""
    if not root.is_dir():
        return
    for folder in sorted(root.iterdir()):
        if (folder / "current").is_symlink():
            stack, _, env = folder.name.rpartition("-")
            yield f"{stack}/{env}"


def lock_file(path: Path) -> str:
    """Read a lock file that a user names.

    Raises:
        InputError: `lock-syntax`.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            Problem(
                code="lock-syntax",
                message=f"it cannot be read: {error}",
                where=shown(path),
                hint="name a lock that `envsmith lock` made",
            )
        ) from error
