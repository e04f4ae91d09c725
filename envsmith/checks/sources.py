"""Family `sources`: is each source tree the one that the lock names, with its series applied and nothing slipped in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envsmith.report import Finding, Severity

FAMILY = "sources"
SHOWN = 10
#: How a command in a hint begins; whoever reports it fills in which env.
WORK = "`envsmith work ENV "
WORK_HINT = (
    f"edit a copy ({WORK}{{name}} -o DIR`) and keep changes as a patch (`envsmith patch new`); "
    "`envsmith build --rebuild` builds it again"
)

#: Untracked files that change what is imported; data and logs that a run leaves do not.
IMPORTABLE = (".py", ".so", ".pyc", ".pth")


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceState:
    """One source: what the lock says and what is on disk."""

    name: str
    locked_tree: str
    """Git tree id after the series."""
    locked_patches: tuple[str, ...] = ()
    """sha256 of each patch of the series, in order."""
    trees: tuple[str, ...] = ()
    """Tree ids along the series as far as known: before the first patch, after the first, …"""
    present: bool = True
    tree: str | None = None
    """Tree id of the tracked files as they are on disk; None when it could not be computed."""
    patches: tuple[str, ...] | None = None
    """sha256 of each patch that the build recorded; None when it recorded none."""
    changed: tuple[str, ...] = ()
    """Tracked paths that differ from the locked tree."""
    untracked: tuple[str, ...] = ()
    """Paths of the work copy that are not in the tree."""
    links: frozenset[str] = frozenset()
    """Those of them that are links: a link to a folder can be imported whatever its name."""
    allowed: frozenset[str] = frozenset()
    """Untracked paths that the manifest lists: what the build backend left."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobLayer:
    """A work copy that somebody edits, put before the env's own source."""

    source: str
    directory: str
    present: bool
    head: str | None = None
    """Commit of its HEAD; None when it is no git work copy any more."""
    changed: tuple[str, ...] | None = None
    """Paths that differ from the locked tree; None when git cannot compare them."""


def check_job_layers(layers: Iterable[JobLayer]) -> Iterator[Finding]:
    """Name the work copies that stand before the env's sources. They are meant, so none of this is drift."""
    for layer in sorted(layers, key=lambda layer: layer.source):
        answers = f"imports of `{layer.source}` are answered by the work copy `{layer.directory}`, {_state(layer)}"
        gone = f"the work copy `{layer.directory}` has gone: the env's own source is used"
        yield Finding(
            check=FAMILY,
            kind="job-layer" if layer.present else "job-layer-missing",
            severity=Severity.NOTE if layer.present else Severity.WARNING,
            subject=layer.source,
            message=answers if layer.present else gone,
            hint=f"{WORK}{layer.source} --forget` takes it out",
        )


def _state(layer: JobLayer) -> str:
    if layer.head is None or layer.changed is None:
        return "which git cannot compare with the locked tree"
    head = f"HEAD {layer.head[:12]}"
    if not layer.changed:
        return f"{head}, which holds the locked tree"
    return f"{head}, which differs from the locked tree: {_listed(layer.changed)}"


def check_sources(states: Iterable[SourceState]) -> Iterator[Finding]:
    """Hold every source against the lock."""
    for state in sorted(states, key=lambda state: state.name):
        if not state.present:
            yield _error("source-missing", state, "the source tree is not there")
            continue
        yield from _tracked(state)
        yield from _recorded(state)
        yield from _untracked(state)


def _tracked(state: SourceState) -> Iterator[Finding]:
    if state.tree == state.locked_tree and not state.changed:
        return
    known = state.trees[: len(state.locked_patches)]
    if state.tree is not None and state.tree != state.locked_tree and state.tree in known:
        step, total = known.index(state.tree), len(state.locked_patches)
        said = "none of its patches is" if step == 0 else f"only the first {step} of its {total} patches are"
        yield _error("patch-reverted", state, f"{said} applied any more", trees=True)
        return
    if state.tree is None and not state.changed:
        yield _error("source-edited", state, "the tree id of the source could not be computed", trees=True)
        return
    yield _error("source-edited", state, f"tracked files were edited: {_listed(state.changed)}", trees=True)


def _recorded(state: SourceState) -> Iterator[Finding]:
    if state.patches is None or state.patches == state.locked_patches:
        return
    yield Finding(
        check=FAMILY,
        kind="patch-list-differs",
        severity=Severity.ERROR,
        subject=state.name,
        message="the build applied other patches than the lock lists",
        expected=", ".join(patch[:12] for patch in state.locked_patches) or "none",
        actual=", ".join(patch[:12] for patch in state.patches) or "none",
        hint="build again from this lock",
    )


def _untracked(state: SourceState) -> Iterator[Finding]:
    found = [
        path
        for path in sorted(state.untracked)
        if (path.endswith(IMPORTABLE) or path in state.links)
        and path not in state.allowed
        and "__pycache__" not in path.split("/")
    ]
    if found:
        yield _error("source-untracked", state, f"files that can be imported were added: {_listed(tuple(found))}")


def _listed(paths: tuple[str, ...]) -> str:
    shown = ", ".join(f"`{path}`" for path in sorted(paths)[:SHOWN]) or "git does not say which"
    return shown + (f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else "")


def _error(kind: str, state: SourceState, message: str, *, trees: bool = False) -> Finding:
    return Finding(
        check=FAMILY,
        kind=kind,
        severity=Severity.ERROR,
        subject=state.name,
        message=message,
        expected=f"tree {state.locked_tree[:12]}" if trees else None,
        actual=f"tree {(state.tree or 'unknown')[:12]}" if trees else None,
        hint=WORK_HINT.format(name=state.name),
    )
