"""Finding things: recipes, locks, patches and env directories, from what a user names on the command line."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import envsmith
from envsmith.errors import InputError, NegativeAnswer, Problem
from envsmith.lock import Lock, lock_name
from envsmith.lock import parse as parse_lock
from envsmith.receipt import SCHEMA as RECEIPT_SCHEMA
from envsmith.recipe import Env, Stack
from envsmith.recipe import parse as parse_recipe

DEFAULT_STACK = "quickstart"


@dataclass(frozen=True, kw_only=True, slots=True)
class Workspace:
    """One recipe with the folders around it."""

    path: Path
    """The recipe file."""
    stack: Stack
    named: str = ""
    """What the user typed for it, for commands in hints."""

    @property
    def patches(self) -> Path:
        """The folder of patch series: `patches/` beside the recipe or beside its folder."""
        beside = self.path.parent / "patches"
        return beside if beside.is_dir() else self.path.parent.parent / "patches"

    def lock_path(self, env: str) -> Path:
        """Where the lock of an env lies."""
        return self.path.parent / lock_name(self.stack.stack.name, env)

    def shown(self, path: Path) -> str:
        """A path as messages name it: relative to the recipe's project where it lies inside."""
        return shown(path)

    def envs(self, names: tuple[str, ...]) -> tuple[tuple[str, Env], ...]:
        """The named envs, or all of them.

        Raises:
            InputError: `unknown-env`.
        """
        unknown = [name for name in names if name not in self.stack.env]
        if unknown:
            raise InputError(
                *(
                    Problem(
                        code="unknown-env",
                        message=f"the stack `{self.stack.stack.name}` has no env `{name}`",
                        where=self.shown(self.path),
                        hint=f"its envs: {', '.join(self.stack.env)}",
                    )
                    for name in unknown
                )
            )
        return tuple((name, env) for name, env in self.stack.env.items() if not names or name in names)


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


def shipped_content() -> Path:
    """The folder that holds our own `stacks/` and `patches/`: inside the wheel, or the checkout."""
    package = Path(envsmith.__file__).absolute().parent
    inside = package / "content"
    return inside if inside.is_dir() else package.parent


def open_stack(name: str | None) -> Workspace:
    """Find and parse a recipe by name or path; none means the quickstart.

    Raises:
        InputError: `unknown-stack`, or everything that `recipe.parse` finds.
    """
    path = _stack_path(DEFAULT_STACK if name is None else name)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            Problem(code="recipe-syntax", message="this is not UTF-8 text", where=f"{shown(path)}:1")
        ) from error
    except OSError as error:
        raise InputError(
            Problem(code="recipe-unreadable", message=f"it cannot be read: {error.strerror}", where=shown(path))
        ) from error
    return Workspace(path=path, stack=parse_recipe(text, shown(path)), named=DEFAULT_STACK if name is None else name)


def _stack_path(name: str) -> Path:
    if "/" in name or name.endswith(".toml"):
        path = user_path(name)
        if not path.is_file():
            raise InputError(
                Problem(code="unknown-stack", message="there is no such recipe", where=name, hint=_known(name))
            )
        return path
    for folder in _stack_folders():
        path = user_path(f"{folder}/{name}.toml")
        if path.is_file():
            return path.absolute()
    raise InputError(
        Problem(
            code="unknown-stack",
            message=f"there is no stack `{name}`",
            where=f"{shown(Path.cwd() / 'stacks')}/{name}.toml",
            hint=_known(name),
        )
    )


def _stack_folders() -> tuple[Path, ...]:
    return (Path.cwd() / "stacks", shipped_content() / "stacks")


def git_place(workspace: Workspace, git: str | None) -> str | None:
    """A recipe's git address; a relative path means beside the recipe, wherever the command is run."""
    if git is None or "://" in git or git.startswith(("/", "~")) or ":" in git.partition("/")[0]:
        return git
    return os.path.normpath(workspace.path.parent / git)


def known_stacks() -> tuple[str, ...]:
    """Names of the recipes in sight."""
    found = {
        path.stem
        for folder in _stack_folders()
        if folder.is_dir()
        for path in folder.glob("*.toml")
        if not path.name.startswith("pylock.") and path.name != "envsmith.toml"
    }
    return tuple(sorted(found))


def _known(name: str) -> str:
    stacks = known_stacks()
    close = difflib.get_close_matches(Path(name).stem, stacks, n=1)
    if close:
        return f"did you mean `{close[0]}`?"
    return f"stacks in sight: {', '.join(stacks)}" if stacks else "name a recipe file by its path"


def read_lock(workspace: Workspace, env: str) -> tuple[Lock, str] | None:
    """The lock of an env with its text, or None when there is none.

    Raises:
        InputError: `lock-syntax` or `lock-invalid`.
    """
    path = workspace.lock_path(env)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            Problem(code="lock-syntax", message=f"it cannot be read: {error}", where=shown(path))
        ) from error
    return parse_lock(text, shown(path)), text


def env_root(root: str | None, environ: Mapping[str, str]) -> Path:
    """The folder that envs are built under: `--root`, else `$ENVSMITH_ROOT`, else `.envsmith/envs`."""
    return user_path(root if root is not None else environ.get("ENVSMITH_ROOT") or ".envsmith/envs")


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
    try:
        data = json.loads((directory / "envsmith.json").read_text())
    except (OSError, ValueError, RecursionError):
        return None
    wanted = ("fingerprint", "stack", "env")
    ours = isinstance(data, dict) and data.get("envsmith-receipt") == RECEIPT_SCHEMA
    return data if ours and all(isinstance(data.get(key), str) for key in wanted) else None


def was_moved(directory: Path, receipt: Mapping[str, Any]) -> bool:
    """Whether an env lies elsewhere than it was built: its scripts and links name the old place."""
    root = receipt.get("root")
    place = Path(str(root)) / f"{receipt['stack']}-{receipt['env']}" / directory.name
    return place.resolve() != directory.resolve()


def built_envs(root: Path) -> Iterator[str]:
    """`stack/env` of every env under a root that has a `current`."""
    if not root.is_dir():
        return
    for folder in sorted(root.iterdir()):
        if (folder / "current").is_symlink():
            stack, _, env = folder.name.rpartition("-")
            yield f"{stack}/{env}"
