"""Looking at one env: what was seen on disk and in a launched process, judged family by family."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from envsmith.checks.conflicts import check_conflicts
from envsmith.checks.expected import Expected, ImportRoot
from envsmith.checks.files import JUDGED_ELSEWHERE, check_files
from envsmith.checks.hooks import check_hooks
from envsmith.checks.imports import check_imports
from envsmith.checks.launchers import check_launchers
from envsmith.checks.sources import WORK, SourceState, check_job_layers, check_sources
from envsmith.commands.launching import process_environment, resolved, table_from
from envsmith.commands.workcopies import WorkCopy, job_layers, work_dirs
from envsmith.commands.workspace import env_root, shown
from envsmith.errors import EnvsmithError, SupplyError
from envsmith.facts import Facts
from envsmith.lock import Lock
from envsmith.manifest import Entry, Kind, Manifest, Root, site_packages
from envsmith.observed import Observed, Seen
from envsmith.probe import Request, probe
from envsmith.receipt import Receipt
from envsmith.report import REBUILD, Finding, Report, Severity, ordered
from envsmith.tools.gittree import tree_on_disk
from envsmith.tools.process import scrubbed
from envsmith.tools.progress import Progress
from envsmith.tools.tree import Mode, StatIndex, hash_tree, scan, verify_bytes

FAMILIES = ("files", "imports", "hooks", "launchers", "sources", "conflicts")

#: Names that hooks of Python itself look for.
_HOOK_NAMES = ("sitecustomize.py", "usercustomize.py")


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """An env with the records that say what it should be."""

    name: str
    directory: Path
    receipt: Receipt
    lock: Lock
    manifest: Manifest
    index: Path
    """Where its stat index lies."""
    finished: bool = True
    """False while a build is still on its way to the receipt."""
    work: tuple[WorkCopy, ...] = ()
    """Writable copies of its sources that `run` puts first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Depth:
    """How much is looked at."""

    bytes: Mode = "default"
    imports: bool = False
    """Really import the recipe's list."""
    shell: bool = True
    """Also judge what the calling shell would start, besides the launch environment."""
    families: tuple[str, ...] = FAMILIES


@dataclass(kw_only=True, slots=True)
class Examination:
    """A report with the figures behind it."""

    report: Report
    trusted_bytes: int = 0
    hashed_bytes: int = 0
    files: int = 0
    facts: tuple[Facts, ...] = field(default_factory=tuple)


def examine(
    subject: Subject, depth: Depth, *, environ: Mapping[str, str], progress: Progress | None = None
) -> Examination:
    """Judge an env. Nothing is written into it; the stat index beside it is renewed when bytes were read.

    Raises:
        EnvsmithError: only when nothing can be said at all, for example an interpreter that does not start.
    """
    findings: list[Finding] = []
    examination = Examination(report=Report(subject=subject.name, families=depth.families, findings=()))
    if "files" in depth.families:
        findings += _files(subject, depth, examination, progress)
    if "sources" in depth.families:
        findings += check_sources(_source_states(subject))
        findings += check_job_layers(job_layers(subject.work, subject.lock))
    if _needs_probe(depth.families):
        findings += _processes(subject, depth, environ, examination)
    named = _with_commands(findings, subject, environ)
    examination.report = Report(subject=subject.name, families=depth.families, findings=ordered(_unique(named)))
    return examination


def _with_commands(findings: Iterable[Finding], subject: Subject, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Name this env in the commands of hints, so that they can be typed as they stand."""
    receipt = subject.receipt
    root = Path(receipt.root)
    option = "" if root == env_root(None, environ) else f" --root {shlex.quote(shown(root))}"
    build = f"`envsmith build {receipt.stack} --env {receipt.env}{option} --rebuild`"
    work = f"`envsmith work {receipt.stack}/{receipt.env}{option} "
    for finding in findings:
        hint = (finding.hint or "").replace(REBUILD, build).replace(WORK, work)
        yield replace(finding, hint=hint or None)


def _unique(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(dict.fromkeys(findings))


def _needs_probe(families: Collection[str]) -> bool:
    return bool({"imports", "hooks", "launchers", "conflicts"} & set(families))


# --- files ---


def _files(subject: Subject, depth: Depth, examination: Examination, progress: Progress | None) -> Iterator[Finding]:
    index = StatIndex.load(subject.index)
    paths = {entry.path for entry in subject.manifest.entries}
    if progress and depth.bytes == "deep":
        progress.start(sum(entry.size for entry in subject.manifest.entries), len(paths))
    beside = subject.directory.parent
    observed, renewed = verify_bytes(
        subject.directory,
        paths,
        index,
        mode=depth.bytes,
        clock=beside if os.access(beside, os.W_OK) else None,
        on_bytes=progress.advance if progress else None,
    )
    if progress:
        progress.done()
    _renew(subject.index, renewed, observed)
    examination.hashed_bytes, examination.trusted_bytes = observed.hashed_bytes, observed.trusted_bytes
    examination.files = len(observed.files)
    distributions = [f"{wheel.name}=={wheel.version}" for wheel in subject.lock.wheels]
    yield from check_files(
        subject.manifest,
        observed,
        receipt=subject.finished,
        distributions=distributions,
        allow_changed=tuple(subject.receipt.verify["allow-changed"]),
        elsewhere=(*JUDGED_ELSEWHERE, *_work_copies(subject.lock)),
    )


def _work_copies(lock: Lock) -> tuple[str, ...]:
    """What `sources` judges: editable work copies; of one that a wheel was made of, its git folder is nobody's."""
    return tuple(f"src/{s.name}/" if s.install == "editable" else f"src/{s.name}/.git/" for s in lock.sources)


def _renew(path: Path, index: StatIndex, observed: Observed) -> None:
    """Keep the index when something was read and it can be kept; a read-only root costs time, not truth."""
    if observed.hashed_files == 0 and path.exists():
        return
    try:
        index.save(path)
    except (OSError, SupplyError):
        return


# --- sources ---


def _source_states(subject: Subject) -> Iterator[SourceState]:
    """Look at every editable work copy. Its git folder is not asked: whoever edits files can edit that too."""
    for source in subject.lock.sources:
        if source.install == "wheel":
            continue  # its wheel is judged by `files`; the work copy was only its origin
        work = subject.directory / "src" / source.name
        prefix = f"src/{source.name}/"
        entries = {e.path.removeprefix(prefix): e for e in subject.manifest.entries if e.path.startswith(prefix)}
        tracked = {path: entry for path, entry in entries.items() if entry.part == "portable"}
        seen = {item.path: item for item in scan(work) if not item.path.startswith(".git/")}
        digests = hash_tree(work, (seen[path] for path in tracked if path in seen)).digests
        changed = tuple(path for path, entry in tracked.items() if _differs(entry, seen.get(path), digests.get(path)))
        untracked = tuple(path for path, item in seen.items() if path not in tracked and item.kind != "folder")
        yield SourceState(
            name=source.name,
            locked_tree=source.tree,
            locked_patches=tuple(patch.sha256 for series in source.series for patch in series.patches),
            trees=subject.receipt.tree_steps.get(source.name, ()),
            present=work.is_dir(),
            tree=tree_on_disk(work, tracked) if changed else source.tree,
            patches=subject.receipt.series.get(source.name),
            changed=changed,
            untracked=untracked,
            links=frozenset(path for path in untracked if seen[path].kind == "link"),
            allowed=frozenset(entries.keys() - tracked.keys()),
        )


def _differs(entry: Entry, item: Seen | None, sha256: str | None) -> bool:
    if item is None:
        return True
    if entry.kind is Kind.LINK or item.kind != "file":
        return (item.kind, item.target) != ("link" if entry.kind is Kind.LINK else "file", entry.target)
    return sha256 != entry.sha256 or bool(item.mode & 0o100) != entry.executable


# --- processes ---


def _processes(
    subject: Subject, depth: Depth, environ: Mapping[str, str], examination: Examination
) -> Iterator[Finding]:
    expected = expectation(subject)
    python = subject.directory / "bin" / "python"
    launch = resolved(table_from(subject.receipt.launch), subject.directory, environ, work_dirs(subject.work))
    environment = process_environment(launch, environ)
    names = tuple(sorted({*expected.roots, *expected.editable}))
    request = Request(
        context="launched", locate=names, launchers=expected.launchers, environ_names=tuple(dict(launch.set))
    )
    try:
        facts = probe(python, request, env=environment)
    except EnvsmithError as error:
        yield from _unprobed(error)
        return
    examination.facts += (facts,)
    yield from _judge(subject, depth, expected, facts)
    if depth.imports and "imports" in depth.families:
        yield from _real_imports(subject, expected, environment, examination)
    if depth.shell:
        yield from _shell(subject, depth, expected, environ, examination)


def _unprobed(error: EnvsmithError) -> Iterator[Finding]:
    for problem in error.problems:
        yield Finding(
            check="imports",
            kind=problem.code,
            severity=Severity.ERROR,
            subject="bin/python",
            message=problem.message,
            expected=problem.expected,
            actual=problem.actual,
            hint=problem.hint or f"build it again with {REBUILD}",
        )


def _judge(subject: Subject, depth: Depth, expected: Expected, facts: Facts) -> Iterator[Finding]:
    if "imports" in depth.families:
        yield from check_imports(expected, facts)
    if "hooks" in depth.families:
        yield from check_hooks(expected, facts)
    if "launchers" in depth.families:
        yield from check_launchers(expected, facts)
    if "conflicts" in depth.families:
        yield from check_conflicts(subject.lock, facts)


def _real_imports(
    subject: Subject, expected: Expected, environment: Mapping[str, str], examination: Examination
) -> Iterator[Finding]:
    """Import the recipe's list in one process whose home is thrown away: packages write caches there."""
    verify = subject.receipt.verify
    copies = tuple(folder for folders in expected.editable.values() for folder in folders)
    wanted = replace(
        expected,
        imports=tuple(verify["imports"]),
        attributes=tuple(verify["attributes"]),
        allow_outside=(*expected.allow_outside, *copies),
        roots={},
        editable={},
    )
    with tempfile.TemporaryDirectory(prefix="envsmith-imports-") as home:
        throwaway = {
            "HOME": home, "XDG_CACHE_HOME": f"{home}/cache", "XDG_CONFIG_HOME": f"{home}/config", "TMPDIR": home,
            "HF_HUB_OFFLINE": "1",
        }  # fmt: skip
        request = Request(context="launched", imports=wanted.imports, attributes=wanted.attributes, maps=True)
        python = subject.directory / "bin" / "python"
        try:
            facts = probe(python, request, env={**environment, **throwaway}, cwd=Path(home), timeout_s=900)
        except EnvsmithError as error:
            yield from _unprobed(error)
            return
    examination.facts += (facts,)
    yield from check_imports(wanted, facts)


def _shell(
    subject: Subject, depth: Depth, expected: Expected, environ: Mapping[str, str], examination: Examination
) -> Iterator[Finding]:
    """Judge what a process gets that is started from the calling shell without `envsmith run`."""
    shell = {name: value for name, value in environ.items() if name != "VIRTUAL_ENV"}
    own = f"{subject.directory.resolve()}/bin/"
    request = Request(context="shell", launchers=expected.launchers)
    try:
        facts = probe(subject.directory / "bin" / "python", request, env=shell)
    except EnvsmithError as error:
        yield from _unprobed(error)
        return
    examination.facts += (facts,)
    if "hooks" in depth.families:
        for finding in check_hooks(expected, facts):
            yield replace(finding, message=f"in the calling shell, without `envsmith run`: {finding.message}")
    if "launchers" in depth.families:
        for finding in check_launchers(expected, facts):
            launcher = facts.launchers.get(finding.subject)
            if launcher is None or launcher.path is None:
                continue  # the shell has none: nothing wrong can be started
            if not launcher.path.startswith(own):
                yield replace(finding, message=f"in the calling shell, without `envsmith run`: {finding.message}")


def expectation(subject: Subject) -> Expected:
    """What a process of the env should see, from manifest, lock and recipe."""
    receipt = subject.receipt
    python = ".".join(receipt.python.split(".")[:2])
    env_dir = str(subject.directory.resolve())
    verify = receipt.verify
    return Expected(
        env_dir=env_dir,
        site_packages=f"{env_dir}/{site_packages(python)}",
        python_version=receipt.python,
        roots=_import_roots(subject, python),
        editable={
            name: tuple(f"{env_dir}/{folder}" for folder in folders) for name, folders in verify["editable"].items()
        }
        | {name: folders for copy in subject.work if copy.present for name, folders in copy.answers().items()},
        launchers=tuple(verify["launchers"]),
        allow_outside=tuple(verify["allow-outside"]),
        hooks={**_hooks(subject.manifest), **verify["base-hooks"]},
        has_device=_has_device(),
    )


def _import_roots(subject: Subject, python: str) -> dict[str, tuple[ImportRoot, ...]]:
    """Every top-level name of site-packages with the file that stands for it."""
    base = site_packages(python)
    paths = {entry.path for entry in subject.manifest.entries}
    editable = set(subject.receipt.verify["editable"])
    found: dict[str, tuple[ImportRoot, ...]] = {}
    for name, roots in subject.manifest.import_roots().items():
        if name in editable or not all(root.path.startswith(base) for root in roots):
            continue
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
    return {entry.path: entry.sha256 for entry in manifest.entries if entry.path.endswith((".pth", *_HOOK_NAMES))}


def _has_device() -> bool:
    return Path("/dev/nvidiactl").exists() or Path("/dev/nvidia0").exists() or sys.platform != "linux"


def verify_table(
    table: Mapping[str, Any], *, editable: Mapping[str, tuple[str, ...]], base_hooks: Mapping[str, str]
) -> dict[str, Any]:
    """The recipe's verify table as a receipt keeps it.

    `editable` maps import names to folders below the env, `base_hooks` the hooks that the interpreter itself ships
    (Debian's has a sitecustomize) to their sha256.
    """
    folders = {name: list(found) for name, found in sorted(editable.items())}
    return {**table, "editable": folders, "base-hooks": dict(sorted(base_hooks.items()))}


def base_hooks(python: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Hooks of an interpreter itself, seen without the user's settings: they were there before the env."""
    facts = probe(python, Request(context="base"), env=scrubbed(environ), flags=("-B", "-I"))
    found = {customize.path: customize.sha256 for customize in facts.site.customize}
    return found | {pth.path: pth.sha256 for pth in facts.site.pth}
