"""What is verified: an env of ours with the records that say what it should be, or one that another tool made."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from envsmith.checks.expected import Expected, ImportRoot
from envsmith.commands.basing import base_entries, installed_in, site_folders
from envsmith.commands.envs import BuiltEnv, shown
from envsmith.commands.launching import table_from
from envsmith.commands.workcopies import WorkCopy, work_copies
from envsmith.errors import IntegrityError, NegativeAnswer, Problem
from envsmith.launch import LaunchTable
from envsmith.lock import Lock, digest, fingerprint
from envsmith.lock import parse as parse_lock
from envsmith.manifest import Manifest, Root, site_packages
from envsmith.overlay import Base, protected_roots
from envsmith.receipt import NAME as RECEIPT
from envsmith.receipt import Receipt
from envsmith.receipt import parse as parse_receipt
from envsmith.recorded import Recorded
from envsmith.shadowing import ACCIDENTAL
from envsmith.tools.device import has_nvidia_device

#: How the names of files end that Python runs or reads at every start.
HOOKS = (".pth", "sitecustomize.py", "usercustomize.py")


@dataclass(frozen=True, kw_only=True, slots=True)
class Foreign:
    """What is known of an env that another tool made."""

    distributions: tuple[Recorded, ...]
    site_dirs: tuple[str, ...]
    """Relative to the env."""
    is_venv: bool
    """False for an interpreter's own prefix, where far more lies than an environment."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """An env and what it should be."""

    name: str
    directory: Path
    listed: Manifest | str
    """The manifest, or its JSON form: from the wheels for an env of ours, from the RECORDs for any other."""
    index: Path
    """Where its stat index lies."""
    python: str
    """Version of its interpreter, three numbers where they are known."""
    launch: LaunchTable
    verify: Mapping[str, Any]
    """The recipe's verify table as a receipt keeps it."""
    lock: Lock | None = None
    versions: Mapping[str, str] | None = None
    """Canonical names and versions of a lock that is not ours."""
    receipt: Receipt | None = None
    """None for an env that another tool made."""
    finished: bool = True
    """False while a build is still on its way to the receipt."""
    work: tuple[WorkCopy, ...] = ()
    """Writable copies of its sources that `run` puts first."""
    foreign: Foreign | None = None
    python_record: str | None = None
    """What its interpreter was when it was built, in its JSON form."""

    @property
    def env_dir(self) -> str:
        """The directory, absolute and resolved."""
        return str(self.directory.resolve())

    def beside(self, suffix: str) -> Path:
        """Our file of that kind about the env: beside its directory, or in our store for one that is not ours."""
        return self.index.with_name(self.index.name.removesuffix("stat.json") + suffix)

    @cached_property
    def manifest(self) -> Manifest:
        """What every file should be; read when it is first asked for, which takes longer than most other steps."""
        return Manifest.from_json(self.listed) if isinstance(self.listed, str) else self.listed

    @property
    def records(self) -> tuple[Lock, Receipt]:
        """Lock and receipt of an env of ours."""
        assert self.lock is not None and self.receipt is not None, "an env of another tool has no records"
        return self.lock, self.receipt

    @property
    def base(self) -> Base | None:
        """The vendor's Python that an env of ours is laid over."""
        kept = self.verify.get("base")
        return Base.from_dict(kept) if kept else None

    @cached_property
    def base_distributions(self) -> tuple[Recorded, ...]:
        """What is installed in its base, relative to the root of the file system."""
        return installed_in(self.base) if self.base else ()

    @property
    def executable(self) -> Path:
        """Its interpreter."""
        python = self.directory / "bin" / "python"
        return python if python.exists() or self.receipt else self.directory / "bin" / "python3"


def built_subject(
    *,
    name: str,
    directory: Path,
    receipt: Receipt,
    lock: Lock,
    listed: Manifest | str,
    python_record: str | None,
    index: Path,
    finished: bool = True,
) -> Subject:
    """An env of ours."""
    return Subject(
        name=name,
        directory=directory,
        listed=listed,
        python_record=python_record,
        index=index,
        python=receipt.python,
        launch=table_from(receipt.launch),
        verify=receipt.verify,
        lock=lock,
        receipt=receipt,
        finished=finished,
    )


def open_subject(built: BuiltEnv) -> Subject:
    """Read the records of an env of ours and hold each against the others.

    Raises:
        IntegrityError: `receipt-malformed`, `receipt-differs`, `manifest-differs`, `lock-differs`.
        NegativeAnswer: `env-records-missing`.
    """
    receipt_text = (built.directory / RECEIPT).read_text()
    receipt = parse_receipt(receipt_text, shown(built.directory / RECEIPT))
    manifest_text = _record(built, "manifest.json")
    lock_text = _record(built, "pylock.toml")
    python_record = _record(built, "python.json") if receipt.python_record else None
    problems = []
    if digest(receipt_text) not in _record(built, "receipt.sha256").split():
        problems.append(_differs("receipt-differs", "the receipt", built.directory / RECEIPT))
    if hashlib.sha256(manifest_text.encode()).hexdigest() != receipt.manifest:
        problems.append(_differs("manifest-differs", "the manifest", built.beside("manifest.json")))
    if digest(lock_text) != receipt.lock_sha256:
        problems.append(_differs("lock-differs", "the lock kept with the env", built.beside("pylock.toml")))
    if python_record is not None and digest(python_record) != receipt.python_record:
        problems.append(_differs("python-record-differs", "the record of the interpreter", built.beside("python.json")))
    if problems:
        raise IntegrityError(*problems)
    lock = parse_lock(lock_text, shown(built.beside("pylock.toml")))
    base = receipt.verify["base"]
    mark = fingerprint(
        lock, receipt.launch, receipt.python, receipt.python_sha256, base=base["python"] if base else None
    )
    if mark != receipt.fingerprint or not built.directory.name.startswith(mark[:12]):
        raise IntegrityError(_differs("receipt-differs", "the receipt", built.directory / RECEIPT))
    return built_subject(
        name=built.name,
        directory=built.directory,
        receipt=receipt,
        lock=lock,
        listed=manifest_text,
        python_record=python_record,
        index=built.beside("stat.json"),
    )


def open_with_work(built: BuiltEnv) -> Subject:
    """The same with the env's recorded work copies, which every process of it has in front.

    Raises:
        EnvsmithError: as `open_subject`; `work-record-malformed`.
    """
    subject = open_subject(built)
    return replace(subject, work=work_copies(built, subject.verify["editable"]))


def _record(built: BuiltEnv, suffix: str) -> str:
    path = built.beside(suffix)
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NegativeAnswer(
            Problem(
                code="env-records-missing",
                message="a record that lies beside the env cannot be read, so nothing can be proved",
                where=shown(path),
                hint="build the env again; an env is not moved without its records",
            )
        ) from error


def _differs(code: str, what: str, path: Path) -> Problem:
    return Problem(
        code=code,
        message=f"{what} is not the one that the build wrote",
        where=shown(path),
        hint="somebody changed a record; build the env again and compare",
    )


def expectation(subject: Subject) -> Expected:
    """What a process of the env should see, from manifest, lock and recipe."""
    verify, base = subject.verify, subject.base
    python = ".".join(subject.python.split(".")[:2])
    site = f"{subject.env_dir}/{site_packages(python)}"
    return Expected(
        env_dir=subject.env_dir,
        site_packages=site,
        python_version=subject.python,
        roots={**(_roots_of_base(subject, base) if base else {}), **_import_roots(subject)},
        editable={
            name: tuple(f"{subject.env_dir}/{folder}" for folder in folders)
            for name, folders in verify["editable"].items()
        }
        | {name: folders for copy in subject.work if copy.present for name, folders in copy.answers().items()},
        launchers=tuple(verify["launchers"]),
        allow_outside=tuple(verify["allow-outside"]),
        base_folders=base.folders if base else (),
        hooks={**_hooks(subject.manifest), **verify["base-hooks"]},
        has_device=has_nvidia_device(),
    )


def _roots_of_base(subject: Subject, base: Base) -> dict[str, tuple[ImportRoot, ...]]:
    """What has to answer for the import names of protected packages: the vendor's own files.

    Names that several packages of the base claim are the vendor's matter, and namespaces may have portions in both.
    """
    assert subject.lock is not None
    protected = {one.name for one in subject.lock.base if one.protected}
    entries = base_entries(one for one in subject.base_distributions if one.name in protected)
    paths = {entry.path for entry in entries}
    found: dict[str, tuple[ImportRoot, ...]] = {}
    for name, roots in protected_roots(entries, folders=site_folders(base), protected=protected).items():
        first = _import_root(roots[0], paths)
        if len(roots) == 1 and first.kind != "namespace" and name not in ACCIDENTAL:
            found[name] = (replace(first, origin=f"/{first.origin}"),)
    return found


def _import_roots(subject: Subject) -> dict[str, tuple[ImportRoot, ...]]:
    """Every top-level name of site-packages with the file that stands for it."""
    paths = {entry.path for entry in subject.manifest.entries}
    editable = set(subject.verify["editable"])
    found: dict[str, tuple[ImportRoot, ...]] = {}
    for name, roots in subject.manifest.import_roots().items():
        if name not in editable:
            found[name] = tuple(_import_root(root, paths) for root in roots)
    return found


def _import_root(root: Root, paths: Collection[str]) -> ImportRoot:
    if root.kind != "package":
        return ImportRoot(owner=root.owner, origin="" if root.kind == "namespace" else root.path, kind=root.kind)
    origin = f"{root.path}/__init__.py"
    if origin not in paths:
        native = (path for path in paths if path.startswith(f"{root.path}/__init__.") and path.endswith(".so"))
        origin = next(native, origin)
    return ImportRoot(owner=root.owner, origin=origin, kind=root.kind)


def _hooks(manifest: Manifest) -> dict[str, str]:
    return {entry.path: entry.sha256 for entry in manifest.entries if entry.path.endswith(HOOKS)}


def verify_table(
    table: Mapping[str, Any],
    *,
    editable: Mapping[str, tuple[str, ...]],
    base_hooks: Mapping[str, str],
    base: Base | None = None,
) -> dict[str, Any]:
    """The recipe's verify table as a receipt keeps it.

    `editable` maps import names to folders below the env, `base_hooks` the hooks that the interpreter itself ships
    (Debian's has a sitecustomize) to their sha256; `base` is the vendor's Python that the env is laid over.
    """
    folders = {name: list(found) for name, found in sorted(editable.items())}
    return {
        **table,
        "editable": folders,
        "base-hooks": dict(sorted(base_hooks.items())),
        "base": base.to_dict() if base else None,
    }
