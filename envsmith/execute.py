"""A plan becomes effects: the one place where the steps of a build are carried out.

Every step can be repeated: what is in the store stays there, and an env directory without a receipt is begun anew.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from envsmith import __version__
from envsmith.commands.basing import BaseAt, refuse_shadows, require_unchanged
from envsmith.commands.current import switch_current
from envsmith.commands.depth import Depth, Examination
from envsmith.commands.envs import BuiltEnv, read_receipt
from envsmith.commands.examine import examine
from envsmith.commands.launching import resolved
from envsmith.commands.look_processes import base_hooks
from envsmith.commands.making import Maker
from envsmith.commands.manifests import (
    Installable,
    Listed,
    leftover_entries,
    made_entry,
    read_wheels,
    record_entries,
    scaffold_entries,
    source_entries,
    wheel_entries,
    whole,
)
from envsmith.commands.patchfiles import PatchSet
from envsmith.commands.siblings import Siblings
from envsmith.commands.sources import (
    Origin,
    build_wheel,
    pylock_of,
)
from envsmith.commands.subject import Subject, built_subject, open_subject, verify_table
from envsmith.commands.supplies import Supplies
from envsmith.commands.unpacking import Unpacker
from envsmith.errors import EnvsmithError, IntegrityError, NegativeAnswer, Problem
from envsmith.launch import LaunchTable, path_filter_hook
from envsmith.lock import Lock, LockedSource, Wheel, digest
from envsmith.manifest import Entry, Manifest, site_packages
from envsmith.modulefile import modulefile
from envsmith.overlay import HOOK, hook
from envsmith.plan import (
    BuildSdist,
    BuildSource,
    CompareBase,
    CreateVenv,
    ExportSource,
    Isolate,
    LayOver,
    Obtain,
    Plan,
    RepackWheel,
    Step,
    SwitchCurrent,
    SyncWheels,
    VerifyAgain,
    VerifyEnv,
    WriteLaunchFiles,
    WriteReceipt,
    make_plan,
)
from envsmith.receipt import NAME as RECEIPT
from envsmith.receipt import Receipt
from envsmith.report import Severity
from envsmith.tools.basecommands import write_commands
from envsmith.tools.editable import editable_names, editable_portions
from envsmith.tools.files import filesystem, remove_tree, write_atomic
from envsmith.tools.interpreter import Interpreter
from envsmith.tools.isolate import isolate
from envsmith.tools.journal import Journal
from envsmith.tools.process import scrubbed
from envsmith.tools.stdlib import make_record
from envsmith.tools.uv import uv_version


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """Everything about one build that is not a step: its inputs as the commands read them."""

    plan: Plan
    lock: Lock
    lock_text: str
    root: Path
    launch: LaunchTable
    verify: Mapping[str, Any]
    smoke: Mapping[str, Any]
    """As the receipt keeps it."""
    origins: Mapping[str, Origin]
    """Where each source starts."""
    patches: Mapping[str, PatchSet]
    """By source name, and `wheel:<name>` for patched wheels."""
    interpreter: Interpreter
    python_sha256: str
    environ: Mapping[str, str]
    base: BaseAt | None = None
    """The vendor's Python that the env is laid over."""


@dataclass(kw_only=True)
class _State:
    """What later steps need of earlier ones."""

    scaffold: tuple[Entry, ...] = ()
    made: list[Entry] = field(default_factory=list)
    editable_wheels: list[Installable] = field(default_factory=list)
    editable: dict[str, tuple[str, ...]] = field(default_factory=dict)
    base_hooks: dict[str, str] = field(default_factory=dict)
    python_record: str = ""
    gitlinks: dict[str, dict[str, str]] = field(default_factory=dict)
    steps: dict[str, tuple[str, ...]] = field(default_factory=dict)
    listed: tuple[Listed, ...] = ()
    manifest: Manifest | None = None
    manifest_sha256: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    examination: Examination | None = None
    renewed: Receipt | None = None
    """The receipt of an env that stands and was verified again."""


def execute(order: Order, supplies: Supplies, journal: Journal) -> Examination | None:
    """Carry out a plan and return what its verification found.

    Raises:
        EnvsmithError: the step that failed; its log path is attached. The old `current` is untouched.
    """
    return _Build(order, supplies, journal).run()


class _Build:
    def __init__(self, order: Order, supplies: Supplies, journal: Journal) -> None:
        self.order = order
        self.supplies = supplies
        self.journal = journal
        self.directory = Path(order.plan.directory)
        self.state = _State()
        self._work: Path = Path()

    @property
    def maker(self) -> Maker:
        order = self.order
        return Maker(
            lock=order.lock,
            origins=order.origins,
            patches=order.patches,
            interpreter=lambda: order.interpreter.path,
            supplies=self.supplies,
            work=self._work,
        )

    def run(self) -> Examination | None:
        with self.supplies.work("build") as self._work:
            for number, step in enumerate(self.order.plan.steps, 1):
                self._carry_out(step, number)
        return self.state.examination

    def _carry_out(self, step: Step, number: int) -> None:
        words = step.describe()
        self.supplies.screen.step(number, len(self.order.plan.steps), words)
        self.journal.line(f"[{number}/{len(self.order.plan.steps)}] {words}")
        started = time.monotonic()
        try:
            self._action(step)
        finally:
            self.supplies.screen.done()
        name = type(step).__name__
        self.state.seconds[name] = round(self.state.seconds.get(name, 0.0) + time.monotonic() - started, 3)

    def _action(self, step: Step) -> None:
        match step:
            case CompareBase():
                self._compare_base()
            case Obtain():
                self._obtain(step)
            case BuildSdist():
                self.maker.build_sdist(step.wheel)
            case RepackWheel():
                self.maker.repack(step.wheel)
            case CreateVenv():
                self._create_venv()
            case ExportSource():
                self._export(step.source)
            case BuildSource():
                self._build_source(step.source)
            case SyncWheels():
                self._sync()
            case Isolate():
                self._isolate()
            case LayOver():
                self._lay_over()
            case WriteLaunchFiles():
                self._write_launch_files()
            case VerifyEnv():
                self._verify()
            case VerifyAgain():
                self._verify_again()
            case WriteReceipt():
                self._write_receipt()
            case SwitchCurrent():
                switch_current(self.directory)

    # --- what the env is made of ---

    def _compare_base(self) -> None:
        assert self.order.base is not None
        index = require_unchanged(self.order.lock, self.order.base.base, self.supplies.screen)
        with filesystem(self.directory):
            self.directory.parent.mkdir(parents=True, exist_ok=True)
        index.save(self._beside("base.json"))

    def _obtain(self, step: Obtain) -> None:
        python = self.order.interpreter.path
        unpacker = Unpacker(self.order.lock.wheels, self.supplies, python=python, work=self._work)
        try:
            self.maker.obtain(step.files, unpacker.arrived)
        finally:
            unpacker.finish()

    def _create_venv(self) -> None:
        if self.directory.exists():
            # No receipt, or the plan would be empty: a build that did not end. Everything it had is in the store.
            remove_tree(self.directory)
        with filesystem(self.directory):
            self.directory.parent.mkdir(parents=True, exist_ok=True)
        prompt = f"{self.order.lock.stack}-{self.order.lock.env}"
        self.supplies.uv.create_venv(self.directory, interpreter=self.order.interpreter.path, prompt=prompt)
        self.state.scaffold = scaffold_entries(self.directory)
        self.state.base_hooks = base_hooks(self.order.interpreter.path, self.order.environ)
        if self.order.base is not None:
            self.state.base_hooks |= self.order.base.hooks

    def _export(self, source: LockedSource) -> None:
        from envsmith.tools import git

        dest = self.directory / "src" / source.name
        with filesystem(dest):
            dest.parent.mkdir(exist_ok=True)
        patches = self.order.patches[source.name]
        self.maker.export(source, dest)
        self.state.steps[source.name] = git.tree_steps(dest, len(patches.patches))
        self.state.gitlinks[source.name] = git.gitlinks(dest)
        self.state.made += source_entries(self.directory, source.name, git.tracked(dest))

    def _build_source(self, source: LockedSource) -> None:
        from envsmith.tools import git

        tree = self.directory / "src" / source.name
        work = self.maker.folder(f"source-{source.name}")
        builder = self.maker.backend(tree, source.build_requires, work, source.version)
        if source.wheel is not None:
            if not self.supplies.store.has(source.wheel.sha256):
                self.maker.build_source(source, builder, work)
        else:
            made = build_wheel(builder, "editable", work=work / "out", origin=str(tree))
            sha256 = self.supplies.store.add_file(made)
            wheel = Wheel(
                name=source.project,
                version=source.version,
                filename=made.name,
                size=made.stat().st_size,
                sha256=sha256,
            )
            self.state.editable_wheels.append(
                Installable(wheel=wheel, path=made, owner=f"source:{source.name}", portable=False)
            )
            self.state.editable.update(self._below(editable_names(made, tree)))
        changed, untracked = git.status(tree)
        if changed:
            raise IntegrityError(
                Problem(
                    code="tree-differs",
                    message=f"the build backend of `{source.name}` changed tracked files: {', '.join(changed[:5])}",
                    where=str(tree),
                )
            )
        left = [f"src/{source.name}/{path}" for path in untracked]
        self.state.made += leftover_entries(self.directory, left, f"source:{source.name}")

    def _sync(self) -> None:
        self.state.listed = self._listed()
        if self.order.base is not None:
            self._refuse_shadows(self.order.base)
        wheels = [*self.order.lock.wheels, *(item.wheel for item in self.state.editable_wheels)]
        pylock = self._work / "pylock.install.toml"
        pylock.write_text(pylock_of(wheels, self.supplies))
        with Siblings(self.supplies, self.order.environ):
            self.supplies.uv.sync(pylock, python=self.directory / "bin" / "python", link_mode=self._link_mode())

    def _link_mode(self) -> str:
        """Hard links where the store shares a file system with the env: `Isolate` breaks all but native ones."""
        same = self.supplies.store.home.stat().st_dev == self.directory.stat().st_dev
        return "hardlink" if same else "copy"

    def _isolate(self) -> None:
        done = isolate(self.directory)
        self.journal.line(f"isolate: {done}")

    def _refuse_shadows(self, base: BaseAt) -> None:
        python = self.order.lock.target.python_minor
        additions = wheel_entries(self.state.listed, env=self.directory, python=python).entries
        wheels = [one.item.path for one in self.state.listed]
        copies = {**self._portions(), **self.state.editable}
        refuse_shadows(self.order.lock, base, additions, copies, self.state.made, wheels)

    def _portions(self) -> dict[str, tuple[str, ...]]:
        """What the work copies put on the path beside their packages."""
        found: dict[str, tuple[str, ...]] = {}
        for item in self.state.editable_wheels:
            tree = self.directory / "src" / item.owner.removeprefix("source:")
            found |= self._below(editable_portions(item.path, tree))
        return found

    def _lay_over(self) -> None:
        base = self.order.base
        assert base is not None
        name = f"{site_packages(self.order.lock.target.python_minor)}/{HOOK}"
        write_atomic(self.directory / name, hook(base.base.site))
        made = write_commands(self.directory, base.commands())
        self.state.made += [made_entry(self.directory, path) for path in (name, *made)]

    def _write_launch_files(self) -> None:
        launch = resolved(self.order.launch, self.directory, self.order.environ)
        title = f"{self.order.plan.env} {self.order.plan.fingerprint[:12]}"
        write_atomic(self.directory / "env.sh", launch.shell())
        write_atomic(self.directory / "modulefile", modulefile(launch, title))
        self.state.made += [made_entry(self.directory, "env.sh"), made_entry(self.directory, "modulefile")]
        if self.order.launch.path_filter:
            name = f"{site_packages(self.order.lock.target.python_minor)}/zzz_envsmith_path_filter.pth"
            write_atomic(self.directory / name, path_filter_hook(self.order.launch.path_filter))
            self.state.made.append(made_entry(self.directory, name))

    # --- proof and record ---

    def _listed(self) -> tuple[Listed, ...]:
        """Read every wheel once: before the sync, so that a hostile one is not installed."""
        named = self.maker.folder("wheels")
        wheels = [
            Installable(wheel=wheel, path=self.maker.named(named, wheel.file), owner=f"{wheel.name}=={wheel.version}")
            for wheel in self.order.lock.wheels
        ]
        everything = [*wheels, *self.state.editable_wheels]
        return read_wheels(everything, self.state.scaffold, self.order.lock.target.python_minor)

    def _manifest(self) -> Manifest:
        python = self.order.lock.target.python_minor
        content = wheel_entries(self.state.listed, env=self.directory, python=python)
        records = record_entries(self.directory, content, python)
        return whole(self.state.scaffold, content.entries, records, self.state.made)

    def _verify(self) -> None:
        manifest = self._manifest()
        text = manifest.to_json()
        self.state.manifest = manifest
        self.state.manifest_sha256 = hashlib.sha256(text.encode()).hexdigest()
        python = self.directory / "bin" / "python"
        record = make_record(python, env=scrubbed(self.order.environ), directory=self.directory)
        self.state.python_record = record.to_json()
        write_atomic(self._beside("python.json"), self.state.python_record)
        write_atomic(self._beside("manifest.json"), text)
        write_atomic(self._beside("pylock.toml"), self.order.lock_text)
        subject = built_subject(
            name=self.order.plan.env,
            directory=self.directory,
            receipt=self._receipt(),
            lock=self.order.lock,
            listed=manifest,
            python_record=self.state.python_record,
            index=self._beside("stat.json"),
        )
        self._examine(subject)

    def _examine(self, subject: Subject) -> None:
        depth = Depth(bytes="deep", imports=True, contexts="recipe", library_bytecode=False, shell=False)
        examination = examine(subject, depth, environ=self.order.environ, progress=self.supplies.screen)
        self.state.examination = examination
        if examination.report.failed:
            raise VerificationFailed(examination)

    def _verify_again(self) -> None:
        """Verify an env that stands by another verify table; what its files must be has not changed."""
        receipt = read_receipt(self.directory)
        standing = open_subject(BuiltEnv(name=self.order.plan.env, directory=self.directory, receipt=receipt))
        receipt_before = standing.records[1]
        self.state.renewed = replace(
            receipt_before, verify={**receipt_before.verify, **self.order.verify}, smoke=self.order.smoke
        )
        self._examine(replace(standing, receipt=self.state.renewed, verify=self.state.renewed.verify))

    def _receipt(self) -> Receipt:
        order, manifest = self.order, self.state.manifest
        assert manifest is not None
        series = {source.name: source.series for source in order.lock.sources}
        series |= {wheel.name: wheel.series for wheel in order.lock.patched}
        return Receipt(
            stack=order.lock.stack,
            env=order.lock.env,
            fingerprint=order.plan.fingerprint,
            lock_sha256=digest(order.lock_text),
            recipe=order.lock.recipe_digest,
            python=order.interpreter.version,
            python_path=str(order.interpreter.path),
            python_sha256=order.python_sha256,
            python_record=digest(self.state.python_record),
            uv=uv_version(),
            envsmith=__version__,
            manifest=self.state.manifest_sha256,
            portable=manifest.portable().digest(),
            trees={source.name: source.tree for source in order.lock.sources},
            series={name: tuple(p.sha256 for s in found for p in s.patches) for name, found in series.items()},
            tree_steps=self.state.steps,
            gitlinks={name: links for name, links in self.state.gitlinks.items() if links},
            launch=order.launch.to_dict(),
            verify=verify_table(
                order.verify,
                editable=self.state.editable,
                base_hooks=self.state.base_hooks,
                base=order.base.base if order.base else None,
            ),
            smoke=order.smoke,
            steps=_from_nothing(order),
            root=str(order.root),
            log=str(self.journal.path),
            built_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            seconds=dict(self.state.seconds),
        )

    def _write_receipt(self) -> None:
        receipt = self.state.renewed or self._receipt()
        text = receipt.to_json()
        witness = self._beside("receipt.sha256")
        # Killed between the two writes, the old receipt must still be vouched for.
        before = witness.read_text() if self.state.renewed else ""
        write_atomic(witness, f"{before}{digest(text)}\n")
        write_atomic(self.directory / RECEIPT, text)
        write_atomic(witness, f"{digest(text)}\n")
        Siblings.register(self.supplies, self.directory)

    # --- helpers ---

    def _beside(self, suffix: str) -> Path:
        return self.directory.parent / f"{self.directory.name}.{suffix}"

    def _below(self, names: Mapping[str, tuple[Path, ...]]) -> dict[str, tuple[str, ...]]:
        """Folders of import names, relative to the env."""
        root = self.directory.resolve()
        return {name: tuple(str(folder.relative_to(root)) for folder in folders) for name, folders in names.items()}


class VerificationFailed(EnvsmithError):
    """The finished env is not what the lock says: its receipt is not written."""

    def __init__(self, examination: Examination) -> None:
        self.examination = examination
        errors = [finding for finding in examination.report.findings if finding.severity is Severity.ERROR]
        families = {finding.check for finding in errors}
        # Wrong bytes mean stop and look; a failed check of processes is an answer.
        bytes_differ = families & {"files", "sources", "base"}
        self.exit_code = IntegrityError.exit_code if bytes_differ else NegativeAnswer.exit_code
        problems = [
            Problem(
                code=f"verify-{finding.kind}",
                message=finding.message,
                where=finding.subject,
                expected=finding.expected,
                actual=finding.actual,
                hint=finding.hint,
            )
            for finding in errors[:10]
        ]
        super().__init__(*problems)


def _from_nothing(order: Order) -> tuple[str, ...]:
    """The steps that this env takes where the store is empty: equal for equal envs, whatever was at hand here."""
    plan = make_plan(
        order.lock,
        directory=order.plan.directory,
        fingerprint=order.plan.fingerprint,
        python=(str(order.interpreter.path), order.interpreter.version),
        stored=(),
        complete=False,
        current=False,
        base=order.base.base.python if order.base else None,
    )
    return tuple(step.describe() for step in plan.steps)
