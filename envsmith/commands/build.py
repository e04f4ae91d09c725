"""`envsmith build`: from recipe and lock to a verified env, or the plan of it."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envsmith.commands.basing import open_base, require_hooks
from envsmith.commands.current import env_lock, find_place
from envsmith.commands.depth import Examination
from envsmith.commands.envs import env_root, shown
from envsmith.commands.freshness import staleness
from envsmith.commands.lock import make_and_write
from envsmith.commands.making import origins_of, patches_of, stored_of
from envsmith.commands.patchfiles import patched_lines
from envsmith.commands.result import Result
from envsmith.commands.screen import Screen
from envsmith.commands.snapshots import read_snapshot
from envsmith.commands.supplies import Supplies, open_supplies, require_git_sources
from envsmith.commands.verify import report_text
from envsmith.commands.workspace import Workspace, open_stack, read_lock
from envsmith.errors import EnvsmithError, InputError, NegativeAnswer, Problem
from envsmith.execute import Order, VerificationFailed, execute
from envsmith.lock import Lock, fingerprint
from envsmith.plan import CreateVenv, Plan, make_plan
from envsmith.tools.files import remove_tree
from envsmith.tools.interpreter import interpreter_digest
from envsmith.tools.journal import Journal
from envsmith.tools.process import listening
from envsmith.tools.storeusage import using

if TYPE_CHECKING:
    from envsmith.commands.importing import BundleSupply


def run(
    stack: str | None,
    *,
    envs: tuple[str, ...],
    root: str | None,
    offline: bool,
    locked: bool,
    sources: tuple[str, ...],
    dry_run: bool,
    rebuild: bool,
    bundle: str | None,
    environ: Mapping[str, str],
    screen: Screen,
) -> Result:
    """Build the envs of a stack, one after the other; with a bundle its files are taken from there first."""
    folder = env_root(root, environ)
    require_usable(folder)
    with contextlib.ExitStack() as stack_of_locks:
        if bundle is not None and stack is None:
            hint = "`envsmith install BUNDLE` builds the stack that a bundle brings, and judges who made it"
            message = "`--from` takes files from a bundle for a recipe that is here: name the stack"
            raise InputError(Problem(code="usage", message=message, hint=hint))
        workspace = open_stack(stack)
        supplied = None if bundle is None else _supplied(bundle, environ, screen, stack_of_locks)
        supplies = open_supplies(environ, stacks=workspace.path.parent, screen=screen, offline=offline, sources=sources)
        wishes = Wishes(locked=locked or offline, dry_run=dry_run, rebuild=rebuild)
        chosen = workspace.envs(envs)
        known = {name: source for _, env in chosen for name, source in env.source.items()}
        require_git_sources(supplies.sources, known, shown(workspace.path))
        if not dry_run:
            stack_of_locks.enter_context(using(supplies.store, screen.message))
        outcomes = [
            build_one(workspace, name, folder, supplied.added_to(supplies, name) if supplied else supplies, wishes)
            for name, _ in chosen
        ]
    return Result(
        command="build",
        data={"envs": [outcome.data for outcome in outcomes], "dry_run": dry_run},
        text="\n".join(outcome.text for outcome in outcomes),
    )


def _supplied(bundle: str, environ: Mapping[str, str], screen: Screen, stack: contextlib.ExitStack) -> BundleSupply:
    """Bring a bundle into the store; its locks decide nothing, its files are found by their digests."""
    from envsmith.commands.importing import bundle_supply

    supplies = open_supplies(environ, stacks=None, screen=screen, offline=True, sources=())
    stack.enter_context(using(supplies.store, screen.message))
    return bundle_supply(bundle, supplies)


def require_usable(root: Path) -> None:
    """Refuse a root that PATH, a .pth line or a script's first line cannot hold, before anything is fetched."""
    text = str(root)
    if ":" in text or not text.isprintable():
        raise InputError(
            Problem(
                code="root-unusable",
                message="envs cannot lie below a path with a colon, a control character or bytes that are no text",
                where=text,
                hint="choose another root with `--root`",
            )
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What the command line asks for."""

    locked: bool
    dry_run: bool
    rebuild: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of one env."""

    data: Mapping[str, Any]
    text: str


def build_one(workspace: Workspace, env: str, root: Path, supplies: Supplies, wishes: Wishes) -> Outcome:
    """Lock where need be, plan and build one env.

    Raises:
        NegativeAnswer: a stale lock where it may not be made anew.
        EnvsmithError: the step that failed.
    """
    stale = staleness(workspace, env)
    if stale is not None:
        if wishes.locked:
            raise NegativeAnswer(stale)
        if wishes.dry_run:
            return _unplanned(workspace, env, stale)
        make_and_write(workspace, env, supplies)
    present = read_lock(workspace, env)
    assert present is not None

    def order() -> Order:
        return _order(workspace, env, *present, root, supplies, rebuild=wishes.rebuild)

    planned = order()
    if wishes.dry_run:
        return _outcome(planned, "planned")
    if not planned.plan.steps:
        return _outcome(planned, "unchanged")
    with env_lock(Path(planned.plan.directory), supplies.screen.message):
        planned = order()  # whoever held the lock before us may have built this very env
        return _execute(planned, supplies) if planned.plan.steps else _outcome(planned, "unchanged")


def _order(
    workspace: Workspace, env: str, lock: Lock, text: str, root: Path, supplies: Supplies, *, rebuild: bool
) -> Order:
    """Read everything that a build needs and make its plan; nothing is written."""
    recipe = workspace.stack.env[env]
    launch = recipe.launch.table()
    if recipe.base is not None:
        # Python would write bytecode into the base where it may; the env's hook comes too late for the modules that
        # the interpreter itself imports at its start.
        launch = replace(launch, set={"PYTHONDONTWRITEBYTECODE": "1", **launch.set})
    verify = recipe.verify.model_dump(mode="json", by_alias=True)
    verify["compute-capability"] = list(workspace.stack.host.compute_capability or ())
    base = open_base(recipe.base.python, lock.target.python_minor, supplies.environ) if recipe.base else None
    if base is not None:
        require_hooks(read_snapshot(workspace, env), base)
    interpreter = base.interpreter if base else supplies.interpreter(recipe.python)
    python_sha256 = interpreter_digest(interpreter.path)
    over = recipe.base.python if recipe.base else None
    patches = patches_of(workspace, env, lock)
    smoke: dict[str, Any] = {"rungs": [rung.table() for rung in recipe.smoke], "patched": patched_lines(patches)}
    if recipe.job.checkpoint_dir:
        smoke["checkpoint-dir"] = recipe.job.checkpoint_dir
    mark = fingerprint(lock, launch.to_dict(), interpreter.version, python_sha256, base=over)
    place = find_place(root / f"{lock.stack}-{lock.env}", mark, rebuild=rebuild)
    plan = make_plan(
        lock,
        directory=str(place.directory),
        fingerprint=mark,
        python=(str(interpreter.path), interpreter.version),
        stored=stored_of(lock, supplies),
        complete=place.receipt is not None,
        current=place.current,
        verified=place.receipt is not None and _same_tables(verify, smoke, place.receipt),
        base=over,
    )
    return Order(
        plan=plan,
        lock=lock,
        lock_text=text,
        root=root,
        launch=launch,
        verify=verify,
        smoke=smoke,
        origins=origins_of(workspace, env, lock),
        patches=patches,
        interpreter=interpreter,
        python_sha256=python_sha256,
        environ=supplies.environ,
        base=base,
    )


def _same_tables(verify: Mapping[str, Any], smoke: Mapping[str, Any], receipt: Mapping[str, Any]) -> bool:
    """Whether an env was verified by this verify table, and its receipt knows these rungs."""
    kept = receipt.get("verify")
    same = isinstance(kept, dict) and all(kept.get(key) == value for key, value in verify.items())
    return same and receipt.get("smoke") == smoke


def _execute(order: Order, supplies: Supplies) -> Outcome:
    journal = Journal(_log_path(order))
    try:
        try:
            examination = _logged(order, supplies, journal)
        except VerificationFailed as failure:
            if not _is_cache_suspect(failure) or not _builds(order):
                raise  # an env that stands was not made just now: it has drifted
            # uv's cache links into envs; what it holds is ours to throw away, and the store is hashed on arrival.
            supplies.screen.say("a file out of uv's cache is not what its wheel says: emptying the cache, once more")
            journal.line("emptying uv's cache")
            remove_tree(supplies.uv.cache)
            examination = _logged(order, supplies, journal)
    except EnvsmithError as error:
        journal.line(str(error))
        error.log = error.log or str(journal.path)
        raise
    report = report_text(examination) if examination else ""
    return _outcome(order, "built" if _builds(order) else "verified", report)


def _builds(order: Order) -> bool:
    """Whether the plan makes the env, and does not only verify one that stands."""
    return any(isinstance(step, CreateVenv) for step in order.plan.steps)


def _logged(order: Order, supplies: Supplies, journal: Journal) -> Examination | None:
    with listening(journal.program):
        return execute(order, supplies, journal)


def _is_cache_suspect(failure: VerificationFailed) -> bool:
    kinds = {"file-changed", "unowned-file", "unowned-module", "file-missing"}
    findings = (finding for finding in failure.examination.report.findings if finding.check == "files")
    return any(f.kind == "record-missing-files" or (f.kind in kinds and f.subject.startswith("lib/")) for f in findings)


def _log_path(order: Order) -> Path:
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return Path(order.plan.directory).parent / "logs" / f"{order.plan.fingerprint[:12]}-{stamp}.log"


def _outcome(order: Order, state: str, report: str = "") -> Outcome:
    plan: Plan = order.plan
    steps = [step.describe() for step in plan.steps]
    data = {
        "env": plan.env,
        "directory": plan.directory,
        "fingerprint": plan.fingerprint,
        "state": state,
        "steps": steps,
        "current": str(Path(plan.directory).parent / "current"),
    }
    where = shown(Path(plan.directory))
    if state == "planned":
        lines = [f"[{n}/{len(steps)}] {words}" for n, words in enumerate(steps, 1)]
        text = "\n".join([f"{plan.env} → {where}", *lines] if steps else [f"{plan.env}: nothing to do ({where})"])
    elif state == "unchanged":
        text = f"{plan.env}: nothing to do ({where})"
    else:
        words = "built" if state == "built" else "nothing built, current is"
        tried = f"try: envsmith run {plan.env}{_root_option(order)} -- python -V"
        text = "\n".join(filter(None, [report, f"{plan.env}: {words} {where}", tried]))
    return Outcome(data=data, text=text)


def _root_option(order: Order) -> str:
    """The option that names the root again, where the next command would look elsewhere without it."""
    default = env_root(None, order.environ)
    return "" if order.root == default else f" --root {shlex.quote(shown(order.root))}"


def _unplanned(workspace: Workspace, env: str, stale: Problem) -> Outcome:
    """A dry run without a lock can only say what comes first."""
    name = f"{workspace.stack.stack.name}/{env}"
    step = f"lock {name}: {stale.message}"
    return Outcome(
        data={"env": name, "state": "planned", "steps": [step], "lock": stale.to_dict()},
        text=f"{name}\n[1/1] {step}; the remaining steps follow from the lock",
    )
