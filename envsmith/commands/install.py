"""`envsmith install`: from a bundle to verified envs, on a machine that may have no network."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envsmith.bundle import PYTHON, SDIST, SOURCE, Descriptor, locks_version
from envsmith.bundlecheck import is_older, lacking, stated_version
from envsmith.commands.build import Outcome, build_one, require_usable
from envsmith.commands.build import Wishes as BuildWishes
from envsmith.commands.bundles import (
    Opened,
    layout_of,
    open_bundle,
    require_expected,
    require_trust,
    signatures_of,
    site_signers,
)
from envsmith.commands.envs import BUNDLE_RECORD, env_root, shown
from envsmith.commands.importing import Imported, bring_in
from envsmith.commands.result import Result
from envsmith.commands.screen import Screen
from envsmith.commands.supplies import Supplies, open_supplies
from envsmith.commands.unbundled import git_sources, unbundle
from envsmith.commands.workspace import Workspace
from envsmith.errors import HostError, InputError, IntegrityError, NegativeAnswer, Problem
from envsmith.target import Target
from envsmith.tools.files import write_atomic
from envsmith.tools.interpreter import machine
from envsmith.tools.layout import Layout, malformed
from envsmith.tools.storeusage import using


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What the command line asks for."""

    root: str | None = None
    envs: tuple[str, ...] = ()
    trust: str | None = None
    expect: str | None = None
    tag: str | None = None
    bases: tuple[str, ...] = ()
    allow_older: bool = False
    rebuild: bool = False


def run(bundle: str, wishes: Wishes, *, environ: Mapping[str, str], screen: Screen) -> Result:
    """Install envs of a bundle; no network is ever tried.

    Raises:
        IntegrityError: a damaged, unexpected or untrusted bundle.
        SupplyError: `bundle-base-missing`, `no-interpreter`.
        NegativeAnswer: `bundle-older`.
    """
    from envsmith.tools.netguard import enter

    guard = enter(environ)
    screen.detail(f"network guard: {guard.state} ({guard.why})")
    root = env_root(wishes.root, environ)
    require_usable(root)
    if not environ.get("ENVSMITH_HOME") and not environ.get("HOME"):
        environ = {**environ, "ENVSMITH_HOME": str(root / ".store")}  # as install.sh has it
    supplies = open_supplies(environ, stacks=None, screen=screen, offline=True, sources=())
    with (
        using(supplies.store, screen.message),
        layout_of(bundle, screen, supplies.store) as layout,
        _opened(wishes.bases, screen) as bases,
    ):
        opened = open_bundle(layout, wishes.tag, wishes.expect)
        require_expected(opened, wishes.expect)
        trusted = site_signers(wishes.trust)
        signed = signatures_of(opened, trusted or ())
        # A digest that was said over another channel is all that a signature could prove.
        enough = wishes.expect is not None and wishes.trust is None
        who = require_trust(signed, None if enough else trusted, layout.where)
        _require_fit(opened, wishes)
        _require_newer(opened, root, wishes)
        screen.say(f"verify {layout.where}: {opened.manifest.stack} {opened.manifest.version}")
        done = bring_in(opened, supplies, bases)
        _require_complete(opened, supplies)
        workspace = unbundle(opened.manifest, opened.manifest_bytes, opened.sha256, supplies.store)
        _require_own_version(opened, workspace)
        outcomes = [
            _install_one(workspace, env, opened, root, supplies, who=who, rebuild=wishes.rebuild)
            for env in _envs(opened, wishes)
        ]
    return _result(opened, outcomes, done, who, expected=wishes.expect is not None, guard=guard.state)


@contextlib.contextmanager
def _opened(words: tuple[str, ...], screen: Screen) -> Iterator[list[Layout]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(layout_of(word, screen)) for word in words]


def _envs(opened: Opened, wishes: Wishes) -> tuple[str, ...]:
    """The envs to install.

    Raises:
        InputError: `unknown-env`.
    """
    there = tuple(opened.manifest.locks)
    unknown = [env for env in wishes.envs if env not in there]
    if unknown:
        message = f"the bundle holds no env `{unknown[0]}`"
        hint = f"its envs: {', '.join(there)}"
        raise InputError(Problem(code="unknown-env", message=message, where=opened.layout.where, hint=hint))
    return tuple(env for env in there if not wishes.envs or env in wishes.envs)


def _require_fit(opened: Opened, wishes: Wishes) -> None:
    """Refuse a bundle that was made for other machines, before anything is copied.

    Raises:
        HostError: `bundle-other-machine`, `git-missing`.
    """
    chosen = _envs(opened, wishes)
    problems = [
        problem
        for env, lock in opened.locks().items()
        if env in chosen
        for problem in _misfits(env, lock.target, opened.layout.where)
    ]
    if problems:
        raise HostError(*problems)
    if any(opened.manifest.of(kind) for kind in (SOURCE, SDIST)):
        from envsmith.tools.git import version

        version()  # work copies are made with git


def _misfits(env: str, target: Target, where: str) -> Iterator[Problem]:
    """What this machine is not, and a lock was made for; a lock that a delta leaves out was judged with its base."""
    arch, glibc = machine()
    hint = "lower `arch` or `glibc` of the recipe's host and lock again; wheels may not be renamed"
    if target.arch != arch:
        message = f"`{env}` was locked for {target.arch}, and this machine is {arch}"
        yield Problem(code="bundle-other-machine", message=message, where=where, hint=hint)
    elif glibc is None or _numbers(glibc) < _numbers(target.glibc):
        said = f"glibc {glibc}" if glibc else "another C library than glibc"
        message = f"`{env}` needs glibc {target.glibc}, and this machine has {said}"
        yield Problem(code="bundle-other-machine", message=message, where=where, hint=hint)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _require_newer(opened: Opened, root: Path, wishes: Wishes) -> None:
    """Refuse an older version of a stack than the one that stands: a valid old bundle may pose as the new one.

    Raises:
        NegativeAnswer: `bundle-older`.
        IntegrityError: `bundle-record-unreadable`.
    """
    if wishes.allow_older:
        return
    new = stated_version(opened.manifest)
    for env in _envs(opened, wishes):
        standing = _record(root, opened.manifest.stack, env).get("stated-version")
        if isinstance(standing, str) and is_older(new, standing):
            raise NegativeAnswer(
                Problem(
                    code="bundle-older",
                    message=f"`{opened.manifest.stack}/{env}` stands here from a newer bundle, or one of known order",
                    where=opened.layout.where,
                    expected=f"version {standing} or newer",
                    actual=f"version {new}" if new else "a recipe that states no version",
                    hint="go back on purpose with `--allow-older`",
                )
            )


def _record(root: Path, stack: str, env: str) -> Mapping[str, Any]:
    path = root / f"{stack}-{env}" / BUNDLE_RECORD
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        hint = "remove it to install without comparing versions"
        message = "the note of which bundle stands here cannot be read"
        raise IntegrityError(Problem(code="bundle-record-unreadable", message=message, where=shown(path), hint=hint))
    return found


def _require_complete(opened: Opened, supplies: Supplies) -> None:
    """Hold the bundle against its own locks.

    Raises:
        IntegrityError: `bundle-incomplete`.
    """
    short = lacking(opened.manifest, opened.locks())
    if short:
        raise IntegrityError(
            Problem(
                code="bundle-incomplete",
                message=f"the bundle does not name what its own locks need: {', '.join(short[:5])}",
                where=opened.layout.where,
                hint="it was not made by `envsmith bundle`, or was changed afterwards: do not use it",
            )
        )


def _require_own_version(opened: Opened, workspace: Workspace) -> None:
    """Hold the version of a bundle against its recipe: rollbacks are judged by the former.

    Raises:
        IntegrityError: `bundle-malformed`.
    """
    stated = workspace.stack.stack.version
    expected = stated or locks_version(opened.manifest.locks)
    if opened.manifest.version != expected:
        words = f"its version is `{opened.manifest.version[:60]}`, and its recipe makes it `{expected}`"
        raise malformed(words, opened.layout.where)


def _install_one(
    workspace: Workspace, env: str, opened: Opened, root: Path, supplies: Supplies, *, who: str | None, rebuild: bool
) -> Outcome:
    environ = dict(supplies.environ)
    archive = next((one for one in opened.manifest.of(PYTHON) if env in one.envs), None)
    if archive is not None and _runs_here(env, opened, supplies.screen):
        environ["ENVSMITH_PYTHON"] = str(_unpacked(archive, root, supplies))
    own = replace(supplies, environ=environ, sources=git_sources(opened.manifest, env, supplies.store))
    outcome = build_one(workspace, env, root, own, BuildWishes(locked=True, dry_run=False, rebuild=rebuild))
    before = _record(root, opened.manifest.stack, env)
    same = before.get("bundle") == f"sha256:{opened.sha256}"
    record = {
        "bundle": f"sha256:{opened.sha256}",
        "stack": opened.manifest.stack,
        "version": opened.manifest.version,
        "stated-version": stated_version(opened.manifest),
        "lock": opened.manifest.locks[env],
        "signed-by": who or (before.get("signed-by") if same else None),
    }
    folder = root / f"{opened.manifest.stack}-{env}"
    write_atomic(folder / BUNDLE_RECORD, json.dumps(record, indent=2, sort_keys=True) + "\n")
    return outcome


def _runs_here(env: str, opened: Opened, screen: Screen) -> bool:
    """Whether the carried interpreter runs with this machine's glibc; else one of the machine's own is looked for."""
    envs = opened.config.get("envs")
    facts = envs.get(env) if isinstance(envs, dict) else None
    python = facts.get("interpreter") if isinstance(facts, dict) else None
    needed = python.get("glibc") if isinstance(python, dict) else None
    glibc = machine()[1]
    if not isinstance(needed, str) or not re.fullmatch(r"\d{1,3}(\.\d{1,3})*", needed) or glibc is None:
        return True
    if _numbers(glibc) >= _numbers(needed):
        return True
    screen.say(f"note: the bundle's interpreter needs glibc {needed}, this machine has {glibc}: looking for another")
    return False


def _unpacked(archive: Descriptor, root: Path, supplies: Supplies) -> Path:
    """Unpack the interpreter of the bundle below the root, once for all envs, and return its executable."""
    from envsmith.tools.pythonunpack import unpack

    dest = root / ".python" / f"{archive.name.removesuffix('.tar')}-{archive.sha256[:12]}"
    if not dest.is_dir():
        supplies.screen.say(f"unpack {archive.name}")
    return unpack(supplies.store.blob_path(archive.sha256), dest)


def _result(
    opened: Opened, outcomes: list[Outcome], done: Imported, who: str | None, *, expected: bool, guard: str
) -> Result:
    manifest = opened.manifest
    data = {
        "bundle": f"sha256:{opened.sha256}",
        "stack": manifest.stack,
        "version": manifest.version,
        "signed_by": who,
        "network_guard": guard,
        "blobs": {
            "copied": done.copied, "known": done.known, "rebuilt": done.rebuilt, "from_base": done.from_base,
        },
        "envs": [outcome.data for outcome in outcomes],
    }  # fmt: skip
    signed = f"signed by {who}" if who else "signed by nobody this site knows"
    signed = "the digest is the expected one" if expected and not who else signed
    lines = [outcome.text for outcome in outcomes]
    lines.append(f"bundle: sha256:{opened.sha256} ({manifest.stack} {manifest.version}), {signed}")
    return Result(command="install", data=data, text="\n".join(lines))
