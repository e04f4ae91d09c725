"""`envsmith diff`: in what two locks, or two bundles, differ."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envsmith.commands import bundle_diff
from envsmith.commands.envs import is_path, open_env, shown, user_path
from envsmith.commands.result import Result
from envsmith.commands.workspace import open_stack, read_lock
from envsmith.errors import InputError, NegativeAnswer, Problem
from envsmith.lock import Lock
from envsmith.lock import parse as parse_lock
from envsmith.lockdiff import compare, render


@dataclass(frozen=True, kw_only=True, slots=True)
class _Named:
    """A lock and where it was found."""

    name: str
    path: Path
    lock: Lock


def run(a: str, b: str) -> Result:
    """Compare; exit code 0 when the two are equal, 1 when they differ.

    Raises:
        InputError: `diff-unsupported`, `lock-syntax`, `lock-invalid`, `unknown-stack`, `unknown-env`.
        NegativeAnswer: `lock-missing`, `env-missing`.
    """
    paths = [user_path(word) for word in (a, b)]
    if all(bundle_diff.is_bundle(path) for path in paths):
        return bundle_diff.run(*paths)
    old, new = _find(a), _find(b)
    diff = compare(old.lock, new.lock)
    sides = {side: {"name": one.name, "path": shown(one.path)} for side, one in (("a", old), ("b", new))}
    return Result(
        command="diff",
        data={**sides, **diff.to_dict()},
        text=render(diff, old.name, new.name),
        exit_code=1 if diff.changes else 0,
    )


def _find(word: str) -> _Named:
    path = user_path(word)
    if path.is_dir():
        return _kept(word, path)
    if path.is_file():
        return _read(word, path)
    parts = word.split("/")
    if is_path(word) or len(parts) != 2 or not all(parts) or word.endswith(".toml"):
        raise _unsupported(word, "there is no such lock")
    workspace = open_stack(parts[0])
    workspace.envs((parts[1],))
    found = read_lock(workspace, parts[1])
    if found is None:
        hint = f"run `envsmith lock {parts[0]} --env {parts[1]}`"
        place = shown(workspace.lock_path(parts[1]))
        raise NegativeAnswer(Problem(code="lock-missing", message=f"`{word}` has no lock", where=place, hint=hint))
    return _Named(name=word, path=workspace.lock_path(parts[1]), lock=found[0])


def _kept(word: str, path: Path) -> _Named:
    """The lock that a built env was made from, which lies beside it."""
    built = open_env(str(path), path.parent)
    kept = built.beside("pylock.toml")
    if built.receipt is None or not kept.is_file():
        raise _unsupported(word, "this folder is no env that envsmith built")
    return _read(word, kept)


def _read(word: str, path: Path) -> _Named:
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unsupported(word, f"it cannot be read as a lock: {error}") from error
    if "lock-version" not in text:
        raise _unsupported(word, "this file is no lock")
    return _Named(name=word, path=path, lock=parse_lock(text, shown(path)))


def _unsupported(word: str, message: str) -> InputError:
    hint = "it compares locks (a file, `stack/env`, or the path of a built env) and bundles: name two of one kind"
    return InputError(Problem(code="diff-unsupported", message=message, where=word, hint=hint))
