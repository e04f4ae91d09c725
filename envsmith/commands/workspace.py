"""Finding recipes, locks and patches from what a user names on the command line."""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

import envsmith
from envsmith.commands.envs import shown, user_path
from envsmith.errors import InputError, Problem
from envsmith.lock import Lock, lock_name
from envsmith.lock import parse as parse_lock
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
    own, shipped = _stack_folders()
    for folder in (own, Path.cwd(), shipped):  # a recipe given by its path is named like this in hints
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


def _stack_folders() -> tuple[Path, Path]:
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
