"""Where imports come from: the interpreter, sys.path, the file behind every top-level name, and real imports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from envsmith.checks.expected import Expected, ImportRoot, from_library, way_in, within
from envsmith.checks.failures import Failure, failure_of
from envsmith.facts import Facts, Import, Module, PathEntry
from envsmith.report import REBUILD, Finding, Severity
from envsmith.shadowing import ACCIDENTAL

FAMILY: Final = "imports"
RANK: Final = {"package": 0, "extension": 1, "module": 2}
"""The interpreter's order inside one directory: a package hides an extension, which hides a module."""
#: The one failure that a machine without a driver explains (facts/verify.md §3); any other words are a real failure.
NO_DRIVER: Final = "libcuda.so.1: cannot open shared object file: No such file or directory"


def check_imports(expected: Expected, facts: Facts) -> Iterator[Finding]:
    """Run every check of this family.

    Proves that this process is the environment's interpreter, that nothing but the environment, the interpreter's
    library and the allowed directories can be imported from, that each probed top-level name is answered by the file
    that the manifest names, and that the recipe's imports and attributes work. Misses changed content (the files
    family), submodules hidden inside their package, and whatever code does to sys.path after it was imported.
    """
    for fault in facts.faults:
        yield _error(
            "probe-incomplete",
            fault.section,
            f"the probe could not look at `{fault.section}`: {fault.message}",
            hint="nothing can be said about this part of the environment",
        )
    if "python" not in {fault.section for fault in facts.faults}:
        yield from check_interpreter(expected, facts)
        yield from check_path(expected, facts)
    yield from check_owners(expected, facts)
    yield from check_origins(expected, facts)
    yield from check_real_imports(expected, facts)


def check_interpreter(expected: Expected, facts: Facts) -> Iterator[Finding]:
    """Prove version, prefix and base prefix. Misses an exchanged binary in the same place (the base family)."""
    python = facts.python
    if not f"{python.version}.".startswith(f"{expected.python_version}."):
        yield _error(
            "wrong-interpreter",
            "python",
            "the process runs another Python version",
            expected.python_version,
            f"{python.version} ({python.executable})",
        )
    if expected.env_dir not in (python.prefix, python.real_prefix):
        yield _error(
            "wrong-interpreter",
            "prefix",
            f"`{python.executable}` belongs to another environment",
            expected.env_dir,
            python.prefix,
            "start the program through `envsmith run`",
        )
    if expected.base_prefix not in (None, python.base_prefix, python.real_base_prefix):
        yield _error(
            "wrong-interpreter",
            "base_prefix",
            "the environment runs on another base interpreter",
            expected.base_prefix,
            python.base_prefix,
            "PYTHONHOME, pyvenv.cfg or the link bin/python was changed",
        )


def check_path(expected: Expected, facts: Facts) -> Iterator[Finding]:
    """Prove that every entry of sys.path is inside the environment, the interpreter's library or an allowed directory.

    An entry that does not exist loads nothing today and is a warning. Misses entries that code adds after start.
    """
    own = {*facts.python.stdlib, *expected.base_site_dirs}
    seen: set[str] = set()
    for entry in facts.path:
        if entry.real in seen:
            continue
        seen.add(entry.real)
        foreign = _foreign_version(entry, expected, facts)
        outside = entry.real not in own and not within(entry.real, expected.allowed())
        if not (foreign or outside):
            continue
        yield Finding(
            check=FAMILY,
            kind="foreign-python-path" if foreign else "path-outside",
            severity=Severity.ERROR if entry.exists else Severity.WARNING,
            subject=entry.entry or ".",
            message=_path_message(entry, foreign, facts),
            expected=facts.python.version if foreign else None,
            actual=entry.real if entry.real != entry.entry else None,
            hint="remove its cause, or name the directory under `allow-outside`" if outside else "remove its cause",
        )


def _path_message(entry: PathEntry, foreign: str | None, facts: Facts) -> str:
    what = f"a directory of Python {foreign}" if foreign else "a directory outside of the environment"
    how = way_in(entry, facts)
    came = f"; it came {how}" if how else ""
    return f"sys.path holds {what}{came}" + ("" if entry.exists else "; it does not exist, so it gives nothing yet")


def _foreign_version(entry: PathEntry, expected: Expected, facts: Facts) -> str | None:
    """The Python version in a path entry's name where it is not ours: 3.11 imports from a 3.10 folder silently."""
    if within(entry.real, expected.allow_outside):
        return None
    name = expected.relative(entry.real)
    match = re.search(r"(?:^|/)python(\d+\.\d+)t?/(?:site|dist)-packages(?:/|$)", name)
    ours = {".".join(version.split(".")[:2]) for version in (facts.python.version, expected.python_version)}
    return None if match is None or match[1] in ours else match[1]


def check_owners(expected: Expected, facts: Facts) -> Iterator[Finding]:
    """Prove that no import name is shipped as two different files by two owners.

    No path overlaps when one ships `x.py` and the other `x/`, so a comparison of file lists cannot see it
    (facts/symptoms.md D10). Namespace portions and the same file shipped twice are left to the files family.
    """
    for name, roots in expected.roots.items():
        real = [root for root in roots if root.kind != "namespace"]
        if len({root.origin for root in real}) < 2 or len({root.owner for root in real}) < 2:
            continue
        origin = facts.modules[name].origin if name in facts.modules else None
        winner = next((root for root in real if origin and root.origin == expected.relative(origin)), None)
        winner = winner or min(real, key=_rank)
        losers = sorted({root.owner for root in real} - {winner.owner})
        yield _error(
            "module-owned-twice",
            name,
            f"`import {name}` is claimed by {' and '.join(sorted({root.owner for root in real}))}; "
            f"`{winner.origin}` of {winner.owner} wins",
            actual=", ".join(sorted({root.origin for root in real})),
            hint=f"exclude one of them: code written for {', '.join(losers)} gets {winner.owner} instead",
        )


def check_origins(expected: Expected, facts: Facts) -> Iterator[Finding]:
    """Prove that each probed top-level name would be loaded from the file that the manifest names.

    Nothing is imported for this. Names that the probe was not asked for are not judged, unless it was asked for
    others; submodules are not looked at.
    """
    for name in sorted({*expected.roots, *expected.editable}):
        module = facts.modules.get(name)
        if module is None:
            if facts.modules:
                yield _error("module-missing", name, f"the probe did not look for `{name}`")
            continue
        roots, directories = expected.roots.get(name, ()), expected.editable.get(name)
        if module.kind in ("missing", "error"):
            said = f" ({module.error})" if module.error else ""
            yield _error(
                "module-missing",
                name,
                f"`import {name}` would find nothing{said}",
                expected=_wanted(roots, directories),
                hint=f"files were deleted: build it again with {REBUILD}",
            )
        elif directories is not None:
            yield from _judge_work_copy(name, module, directories, facts)
        else:
            yield from _judge_module(name, module, roots, expected, facts)


def _judge_work_copy(name: str, module: Module, directories: tuple[str, ...], facts: Facts) -> Iterator[Finding]:
    places = (module.origin,) if module.origin else module.locations
    outside = [place for place in places if not within(place, directories)]
    if outside or not places:
        actual = ", ".join(outside) or module.kind
        how = _how(actual, facts)
        message = f"`import {name}` is not answered by the work copy{how}"
        yield _error("unexpected-file", name, message, " or ".join(directories), actual)


def _judge_module(
    name: str, module: Module, roots: tuple[ImportRoot, ...], expected: Expected, facts: Facts
) -> Iterator[Finding]:
    real = [root for root in roots if root.kind != "namespace"]
    if not real:
        yield from _judge_namespace(name, module, expected, facts)
    elif module.kind == "namespace":
        yield _error(
            "became-namespace",
            name,
            f"`{name}` lost its `__init__` file and imports as an empty namespace package",
            _wanted(roots, None),
            ", ".join(module.locations),
            f"another owner of its files was removed: build it again with {REBUILD}, do not reinstall on top",
        )
    elif module.origin is None or expected.relative(module.origin) not in _winners(real):
        actual = module.origin or module.kind
        message = f"`import {name}` would load another file{_how(actual, facts)}"
        yield _error("unexpected-file", name, message, _wanted(roots, None), actual)


def _judge_namespace(name: str, module: Module, expected: Expected, facts: Facts) -> Iterator[Finding]:
    if module.kind != "namespace":
        if module.origin and within(module.origin, expected.base_folders):
            return  # the base has an `__init__` that looks for the other portions; real imports prove that it does
        if module.origin and name in ACCIDENTAL and from_library(module.origin, expected, facts):
            return  # a wheel's own tests beside the library's `test`: nobody means to import them
        actual = module.origin or module.kind
        message = f"the namespace package `{name}` is hidden by a file that nobody owns{_how(actual, facts)}"
        yield _error("unexpected-file", name, message, "a namespace package", actual)
        return
    for location in module.locations:
        # an editable installation's finder answers with a name of its own instead of a directory
        if location.startswith("/") and not within(location, expected.allowed()):
            message = f"the namespace package `{name}` has a portion outside of the environment{_how(location, facts)}"
            yield _error("namespace-portion-outside", name, message, expected.site_packages, location)


def _winners(real: list[ImportRoot]) -> set[str]:
    """Origins that may answer: with one owner the strongest form only, else any, as the clash is its own finding."""
    if len({root.owner for root in real}) > 1:
        return {root.origin for root in real}
    best = min(map(_rank, real))
    return {root.origin for root in real if _rank(root) == best}


def _rank(root: ImportRoot) -> int:
    return RANK.get(root.kind, len(RANK))


def _wanted(roots: tuple[ImportRoot, ...], directories: tuple[str, ...] | None) -> str:
    real = [root for root in roots if root.kind != "namespace"]
    if directories is not None:
        return " or ".join(directories)
    return " or ".join(sorted(_winners(real))) if real else "a namespace package"


def _how(path: str, facts: Facts) -> str:
    """Name the entry of sys.path that a file came from and, where visible, how the entry got there."""
    entries = [entry for entry in facts.path if entry.real != "/" and within(path, (entry.real,))]
    if not entries:
        return ""
    entry = max(entries, key=lambda entry: len(entry.real))
    if entry.real == facts.python.purelib:
        return ""
    how = way_in(entry, facts)
    return f", from `{entry.entry or '.'}`" + (f", which came onto sys.path {how}" if how else "")


def check_real_imports(expected: Expected, facts: Facts) -> Iterator[Finding]:
    """Prove that the recipe's imports ran and came from allowed places, and that its attributes are there.

    A top-level import proves little, so the recipe lists deep names. A probe that was asked for no import is not
    judged. Misses what only happens on a device or in another process.
    """
    for name in expected.imports if facts.imports else ():
        result = facts.imports.get(name)
        if result is None:
            yield _error("import-failed", name, f"the probe did not try to import `{name}`")
        elif not result.ok:
            yield _failed_import(name, result, expected)
        elif (unfit := failure_of(result.said)) is not None and unfit.kind == "native-abi-numpy":
            yield _unfit(name, unfit, result.said)
        elif result.file and not _may_load(result.file, expected, facts):
            message = f"`import {name}` loaded a file outside of the environment{_how(result.file, facts)}"
            yield _error("unexpected-file", name, message, expected.env_dir, result.file)
    for name in expected.attributes if facts.attributes else ():
        found = facts.attributes.get(name)
        if found is None or not found.ok:
            said = f"{found.error_type}: {found.error}" if found else "not looked for"
            yield _error("attribute-missing", name, f"`{name}` cannot be reached", actual=said)


def _may_load(path: str, expected: Expected, facts: Facts) -> bool:
    return within(path, expected.allowed()) or from_library(path, expected, facts)


def _unfit(name: str, failure: Failure, words: str | None) -> Finding:
    line = next((line for line in (words or "").splitlines() if failure.fits(line)), words)
    return _error(
        failure.kind,
        name,
        f"`import {name}` shows that {failure.cause}",
        actual=(line or "").strip(),
        hint=failure.hint,
    )


def _failed_import(name: str, result: Import, expected: Expected) -> Finding:
    said = f"{result.error_type}: {result.error}"
    if result.error_type == "ImportError" and result.error == NO_DRIVER and not expected.has_device:
        return Finding(
            check=FAMILY,
            kind="import-needs-driver",
            severity=Severity.NOTE,
            subject=name,
            message=f"`import {name}` needs the accelerator's driver, which this machine does not have",
            actual=said,
            hint="verify again on a machine with a device",
        )
    words = "\n".join(filter(None, (result.cause, said, result.said)))
    failure = failure_of(words)
    if failure is not None:
        return _unfit(name, failure, words)
    return _error("import-failed", name, f"`import {name}` failed", actual=result.cause or said)


def _error(
    kind: str,
    subject: str,
    message: str,
    expected: str | None = None,
    actual: str | None = None,
    hint: str | None = None,
) -> Finding:
    return Finding(
        check=FAMILY,
        kind=kind,
        severity=Severity.ERROR,
        subject=subject,
        message=message,
        expected=expected,
        actual=actual,
        hint=hint,
    )
