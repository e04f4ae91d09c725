"""Who uses a store: envs that stand, locks in sight, recipes in sight. Every doubt is said, and frees nothing."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from envsmith.commands.envs import env_root, read_receipt, shown
from envsmith.commands.supplies import mirror_folder
from envsmith.commands.workspace import Workspace, git_place, shipped_content
from envsmith.errors import EnvsmithError, Problem
from envsmith.keeping import MIRROR, NAMED, Claim, named_by_lock
from envsmith.receipt import NAME as RECEIPT
from envsmith.recipe import parse as parse_recipe
from envsmith.tools.store import Store


@dataclass(kw_only=True)
class Claims:
    """What was found, and what could not be read."""

    found: list[Claim] = field(default_factory=list)
    commits: set[str] = field(default_factory=set)
    """Commits of all their sources."""
    unread: list[Problem] = field(default_factory=list)
    unsure: set[str] = field(default_factory=set)
    """Kinds of which nothing may go because of that."""
    gone: list[str] = field(default_factory=list)
    """Envs that were built from this store and are no longer where they were built."""

    def doubt(self, path: Path, message: str, kinds: frozenset[str] = NAMED) -> None:
        """Note a record that cannot be read."""
        hint = "mend or remove it; until then nothing goes that it might name"
        problem = Problem(code="store-record-unreadable", message=message, where=shown(path), hint=hint)
        self.unread.append(problem)
        self.unsure |= kinds


def find_claims(store: Store, environ: Mapping[str, str]) -> Claims:
    """Look at the envs built from a store, those under the root in sight, and the recipe folders in sight."""
    claims = Claims()
    registered = list(_registered(store, claims))
    # Whoever was killed between receipt and registry, or had its disk away for a while, is found by its neighbours.
    roots = {env.parent.parent for env in registered} | {env_root(None, environ)}
    for env in sorted({*registered, *(env for root in roots for env in _below(root))}):
        _claim_env(env, claims)
    folders = (Path.cwd(), Path.cwd() / "stacks", shipped_content() / "stacks")
    for folder in dict.fromkeys(folders):
        for path in sorted(folder.glob("pylock.*.toml")):
            _claim_lock(path, claims)
    for folder in dict.fromkeys(folders[1:]):
        for path in sorted(folder.glob("*.toml")):
            if not path.name.startswith("pylock.") and path.name != "envsmith.toml":
                _claim_recipe(path, store, claims)
    return claims


def _registered(store: Store, claims: Claims) -> Iterator[Path]:
    registry = store.home / "envs.txt"
    try:
        lines = _bytes(registry).decode("utf-8", "surrogateescape").splitlines()
    except FileNotFoundError:
        return
    except OSError as error:
        claims.doubt(registry, f"the list of envs cannot be read: {error.strerror}")
        return
    for line in lines:
        if line.startswith("/") and line.isprintable():  # `build` takes no other root
            yield Path(line)
        else:
            claims.doubt(registry, "a line of the list of envs is not the path of one")


def _below(root: Path) -> Iterator[Path]:
    """Folders with a receipt in the places of a root where builds lie."""
    try:
        for receipt in root.glob(f"*-*/*/{RECEIPT}"):
            if not receipt.parent.is_symlink():
                yield receipt.parent
    except OSError:
        return  # what others let nobody see was not built by this user


def _claim_env(env: Path, claims: Claims) -> None:
    lock = env.parent / f"{env.name}.pylock.toml"
    try:
        os.lstat(env)
    except (FileNotFoundError, NotADirectoryError):
        claims.gone.append(str(env))
        return
    except OSError as error:
        claims.doubt(env, f"an env that was built from this store cannot be looked at: {error.strerror}")
        return
    receipt = read_receipt(env)
    if receipt is None and os.path.lexists(env / RECEIPT):
        claims.doubt(env / RECEIPT, "the receipt of an env cannot be read")
    elif receipt is not None or os.path.lexists(lock):
        name = f"{receipt['stack']}/{receipt['env']}" if receipt else "without a receipt"
        expected = receipt.get("lock-sha256") if receipt else None
        _add(f"env {name} ({shown(env)})", lock, claims, expected=str(expected) if receipt else None)
    else:
        claims.gone.append(str(env))


def _claim_lock(path: Path, claims: Claims) -> None:
    _add(f"lock {shown(path)}", path, claims)


def _add(label: str, lock: Path, claims: Claims, *, expected: str | None = None) -> None:
    try:
        data = _bytes(lock)
        actual = hashlib.sha256(data).hexdigest()
        if expected is not None and actual != expected:
            claims.doubt(lock, "the lock beside an env is not the one that its receipt names")
            return
        named = named_by_lock(data.decode("utf-8"), shown(lock))
    except OSError as error:
        claims.doubt(lock, f"a lock cannot be read: {error.strerror}")
    except (EnvsmithError, UnicodeDecodeError) as error:
        words = error.problems[0].message if isinstance(error, EnvsmithError) else "it is not UTF-8"
        claims.doubt(lock, f"a lock cannot be read: {words}")
    else:
        claims.commits |= named.commits
        claims.found.append(Claim(label=label, names=named.digests | named.commits, locks=frozenset({actual})))


def _claim_recipe(path: Path, store: Store, claims: Claims) -> None:
    try:
        stack = parse_recipe(_bytes(path).decode("utf-8"), shown(path))
    except (EnvsmithError, OSError, UnicodeDecodeError):
        claims.doubt(path, "a recipe cannot be read", frozenset({MIRROR}))
        return
    workspace = Workspace(path=path, stack=stack)
    places = (git_place(workspace, source.git) for env in stack.env.values() for source in env.source.values())
    names = frozenset(mirror_folder(store, place).name for place in places if place)
    if names:
        claims.found.append(Claim(label=f"recipe {shown(path)}", names=names))


def _bytes(path: Path) -> bytes:
    """Read a file, but not what only looks like one and would block or never end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return path.read_bytes()
