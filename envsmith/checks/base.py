"""Family `base`: are the packages of the vendor's base, which nobody may change, what they were in the snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from envsmith.basepackages import PackageState
from envsmith.lock import LockedBase
from envsmith.overlay import Base
from envsmith.report import Finding, Severity

FAMILY = "base"
#: Files of one package that are named one by one; the rest is counted.
SHOWN = 10
HINT = "the base belongs to its vendor: start from a fresh image, or take a new snapshot and lock again"


def check_base(locked: Iterable[LockedBase], found: Mapping[str, Sequence[PackageState]]) -> Iterator[Finding]:
    """Hold the packages of the base that the lock rests on against it, file by file.

    Proves version and content of each file that the snapshot's RECORD named, whatever was done to the RECORD since.
    What the vendor had altered before the snapshot is right as it was then. A changed file of a package that is not
    protected is a warning; another version of one is a matter of the family `conflicts`. Files that belong to no
    package are not looked at, nor are packages that the lock does not rest on. `found` maps canonical names to what is
    installed.
    """
    for package in locked:
        states = found.get(package.name, ())
        if package.protected:
            yield from _judge(package, states)
        elif package.files is not None and states and states[0].version == package.version:
            for finding in _judge_state(package, states[0]):
                if finding.severity is Severity.ERROR:
                    yield replace(finding, severity=Severity.WARNING)


def _judge(package: LockedBase, states: Sequence[PackageState]) -> Iterator[Finding]:
    if not states:
        yield _error(
            "base-package-missing", package.name, f"{package.name} of the base is gone", package.version, "not there"
        )
        return
    # The first is the one that imports find, and the one that the snapshot recorded.
    found = tuple(_judge_state(package, states[0]))
    if len(states) > 1 and any(finding.severity is Severity.ERROR for finding in found):
        where = ", ".join(f"{state.version} in {state.info}" for state in states)
        yield _error(
            "base-package-twice", package.name, f"{package.name} is in the base more than once", package.version, where
        )
        return
    yield from found


def _judge_state(package: LockedBase, state: PackageState) -> Iterator[Finding]:
    if package.version is not None and state.version != package.version:
        message = f"{package.name} of the base has another version than in the snapshot"
        yield _error("base-version-differs", package.name, message, package.version, state.version)
    elif package.files is None and _has_other_record(package, state):
        yield _installed_anew(package, state)
    elif package.files is None:
        yield Finding(
            check=FAMILY,
            kind="base-unproved",
            severity=Severity.NOTE,
            subject=package.name,
            message=f"the snapshot knows the version of {package.name} only, so its files cannot be compared",
            hint="take the snapshot on the target itself",
        )
    elif package.files != state.files:
        yield from _files(package, state)
    elif state.editable is not None:
        yield Finding(
            check=FAMILY,
            kind="base-unproved",
            severity=Severity.NOTE,
            subject=package.name,
            message=f"{package.name} is installed as editable: its code lies in `{state.editable}` and in no RECORD",
            hint="whoever may write there can change it; the vendor should install it as a wheel",
        )


def _files(package: LockedBase, state: PackageState) -> Iterator[Finding]:
    """Name the files behind another digest: first those that RECORD itself tells apart, then a changed RECORD."""
    before = {one.path: one.sha256 for one in package.altered}
    changed = {path: sha for path, sha in state.altered.items() if path not in before or before[path] != sha}
    restored = [path for path in before if path not in state.altered]
    said = [_file(package, state, path, sha256, before) for path, sha256 in sorted(changed.items())]
    said += [_file(package, state, path, state.recorded.get(path), before) for path in sorted(restored)]
    yield from said[:SHOWN]
    if len(said) > SHOWN:
        more = f"{len(said) - SHOWN:,} more files of {package.name} in the base were changed"
        yield _error("base-file-changed", package.name, more, None, None)
    if _has_other_record(package, state):
        yield _installed_anew(package, state)
    elif not said:
        message = f"the files of {package.name} are not those of the snapshot, and its RECORD was changed with them"
        yield _error("base-package-rewritten", package.name, message, _short(package.files), _short(state.files))


def _has_other_record(package: LockedBase, state: PackageState) -> bool:
    return package.record is not None and package.record != state.record


def _installed_anew(package: LockedBase, state: PackageState) -> Finding:
    message = f"{package.name} was installed anew: its RECORD is not the snapshot's, although the version is"
    return _error("base-package-rewritten", package.name, message, _short(package.record), _short(state.record))


def _file(
    package: LockedBase, state: PackageState, path: str, actual: str | None, before: Mapping[str, str | None]
) -> Finding:
    expected = before[path] if path in before else state.recorded.get(path)
    return _error(
        "base-file-changed",
        path,
        f"a file of {package.name} {state.version} in the base was changed after the snapshot",
        _short(expected),
        _short(actual),
    )


def _short(sha256: str | None) -> str:
    return f"sha256:{sha256[:12]}" if sha256 else "missing"


def _error(kind: str, subject: str, message: str, expected: str | None, actual: str | None) -> Finding:
    return Finding(
        check=FAMILY,
        kind=kind,
        severity=Severity.ERROR,
        subject=subject,
        message=message,
        expected=expected,
        actual=actual,
        hint=HINT,
    )


def check_base_python(built: Base, hooks: Mapping[str, str], now: Base, there: Mapping[str, str]) -> Iterator[Finding]:
    """Hold the base's interpreter against that of the build: what it searches, and which hooks it still runs.

    `hooks` and `there` are hooks by path, of the build and of now. A hook that is new or has another content is found
    by the family `hooks`.
    """
    if now.site != built.site or now.beside != built.beside:
        yield _error(
            "base-path-differs",
            built.python,
            "the base searches other folders for packages than when the env was built",
            ", ".join(built.folders),
            ", ".join(now.folders),
        )
    for path in sorted(hooks.keys() - there.keys()):
        yield _error(
            "base-hook-missing", path, "a hook of the base is gone: what it set up is missing now", None, "missing"
        )
