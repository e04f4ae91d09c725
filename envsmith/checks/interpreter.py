"""Family `interpreter`: is the Python under the env, its binary and its standard library, the one it was built on?

Every process of the env runs that library, and it lies outside of the env, where no manifest of wheels reaches. With a
record of the build every importable file of it is held against its sha256. Without one, an env that another tool made
is only held against itself: links, pyvenv.cfg and packages have to speak of one Python.

The family `imports` judges what a process says it is; this one judges what is on disk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from envsmith.bytecode import Proof
from envsmith.checks.pyc import judge_proof
from envsmith.checks.unowned import START_UP
from envsmith.manifest import importable
from envsmith.report import REBUILD, Finding, Severity
from envsmith.stdlib import PYVENV_DEFAULTS, PYVENV_KEYS, PythonRecord, PythonSeen, minor_of

FAMILY = "interpreter"
SHOWN = 10
HINT = f"put the interpreter back as it was, or build on the one that is there with {REBUILD}"
HINT_CONFIG = f"build it again with {REBUILD}: an environment is not repaired in place"


def check_interpreter_files(
    seen: PythonSeen,
    record: PythonRecord | None,
    *,
    python_sha256: str | None = None,
    identity: str | None = None,
    proof: Proof | None = None,
) -> Iterator[Finding]:
    """Hold an env's interpreter against the record of its build.

    `python_sha256` is the receipt's digest of the interpreter and `identity` that of now, for an env that has no
    record. `proof` is that of the
    library's own bytecode.

    Proves that `bin/python` and its like lead to the recorded file, that executable and libpython have the recorded
    bytes, that pyvenv.cfg says what it said, and that the library's importable files are the recorded ones and no
    others. Misses shared libraries of the system below libpython, data files and tests of the library, what base
    site-packages hold, and without a proof code in the library's bytecode.
    """
    yield from _links(seen, record)
    yield from _pyvenv(seen, record)
    for path in seen.path_files:
        message = "since Python 3.11 this file replaces sys.path and turns site off, on every system"
        yield _error("path-file-added", path, message, expected="no such file", hint="remove it")
    if seen.problem:
        yield _error("interpreter-broken", "bin/python", f"the interpreter cannot be asked: {seen.problem}", hint=HINT)
    if record is None:
        yield from _receipt_only(seen, python_sha256, identity)
    elif seen.executable == record.executable:
        yield from _binary(seen, record)
        if not _upgraded(seen, record):
            yield from _library(seen, record)
            yield from _unchecked(seen, record)
    if proof is not None:
        yield from judge_proof(proof, FAMILY, "stdlib-bytecode-poisoned")


def library_figure(seen: PythonSeen, record: PythonRecord | None) -> str:
    """Say how much of the standard library was judged, in one line."""
    if record is None:
        return "standard library not judged: there is no record of it from a build"
    if seen.executable != record.executable or seen.observed is None:
        return "standard library not judged: bin/python leads to another interpreter"
    read, trusted = seen.observed.hashed_bytes / 1e6, seen.observed.trusted_bytes / 1e6
    return f"{len(record.files):,} files of the standard library ({read:.0f} MB read, {trusted:.0f} MB known)"


# --- links and pyvenv.cfg ---


def _links(seen: PythonSeen, record: PythonRecord | None) -> Iterator[Finding]:
    wanted = record.executable if record else seen.executable
    wrong: dict[str | None, list[str]] = defaultdict(list)
    for name, end in sorted(seen.links.items()):
        # Copies are files of their own, one for each name.
        if end is None or (end != wanted and not (seen.copied and record is None)):
            wrong[end].append(name)
    for end, names in wrong.items():
        said = f"Python {seen.version}" if seen.version and end == seen.executable else "another interpreter"
        message = "leads to nothing: the base interpreter is gone" if end is None else f"leads to {said}"
        actual = end or "nothing"
        yield _error(
            "python-link-changed", ", ".join(names), message, expected=wanted or "a file", actual=actual, hint=HINT
        )
    minor = minor_of(record.version) if record else minor_of(seen.version or "")
    if minor and seen.libraries and f"python{minor}" not in seen.libraries:
        message = f"the packages of this env are for another Python than {minor}, so none of them would be found"
        yield _error(
            "python-link-changed", "lib", message, expected=f"lib/python{minor}", actual=", ".join(seen.libraries)
        )


def _pyvenv(seen: PythonSeen, record: PythonRecord | None) -> Iterator[Finding]:
    if seen.pyvenv_in_bin:
        message = "`site` reads this file instead of the one above it"
        yield _error("pyvenv-changed", "bin/pyvenv.cfg", message, expected="no such file", hint=HINT_CONFIG)
    if record is not None and record.pyvenv:
        yield from _pyvenv_as_built(seen.pyvenv, record.pyvenv)
    elif seen.pyvenv is not None:
        yield from _pyvenv_alone(seen, seen.pyvenv)


def _pyvenv_as_built(now: Mapping[str, str] | None, built: Mapping[str, str]) -> Iterator[Finding]:
    if now is None:
        message = "it is gone, so that this Python is no virtual environment any more and finds none of the packages"
        yield _error("pyvenv-changed", "pyvenv.cfg", message, hint=HINT_CONFIG)
        return
    for key, meaning in PYVENV_KEYS.items():
        wanted, got = (table.get(key, PYVENV_DEFAULTS.get(key)) for table in (built, now))
        if (wanted or "").lower() != (got or "").lower() if key in PYVENV_DEFAULTS else wanted != got:
            absent = " (it is not there)" if key not in now else ""
            message = f"`{key}` is not that of the build{absent}: {meaning}"
            yield _error(
                "pyvenv-changed", "pyvenv.cfg", message, expected=wanted or "no such key", actual=got or "no such key",
                hint=HINT_CONFIG,
            )  # fmt: skip


def _pyvenv_alone(seen: PythonSeen, pyvenv: Mapping[str, str]) -> Iterator[Finding]:
    """Without a record the file can only contradict what is on disk."""
    if "home" not in pyvenv:
        yield _error("pyvenv-changed", "pyvenv.cfg", "it has no `home`, so that Python does not take it for its own")
    elif seen.executable and seen.home_executable is None:
        message = "`home` names a folder without an interpreter"
        yield _error("pyvenv-changed", "pyvenv.cfg", message, actual=pyvenv["home"])
    elif seen.executable and seen.home_executable != seen.executable and not seen.copied:
        message = "`home` and bin/python speak of two interpreters"
        yield _error("pyvenv-changed", "pyvenv.cfg", message, expected=seen.executable, actual=seen.home_executable)
    for key in ("version", "version_info"):
        said = pyvenv.get(key)
        if said and seen.version and minor_of(said) != minor_of(seen.version):
            message = f"`{key}` names another Python than bin/python is"
            yield _error("pyvenv-changed", "pyvenv.cfg", message, expected=seen.version, actual=said)


# --- binary ---


def _receipt_only(seen: PythonSeen, python_sha256: str | None, actual: str | None) -> Iterator[Finding]:
    if python_sha256 is not None and actual and actual != python_sha256:
        message = "executable or libpython are not those that the env was built on"
        yield _error("interpreter-changed", seen.executable or "bin/python", message, python_sha256, actual, HINT)


def _binary(seen: PythonSeen, record: PythonRecord) -> Iterator[Finding]:
    if _upgraded(seen, record):
        count = sum(1 for _ in _differing(seen, record))
        message = f"the interpreter was replaced in place by Python {seen.version}"
        message += f"; {count:,} files of its library differ with it" if count else ""
        yield _error("interpreter-changed", record.executable, message, record.version, seen.version, HINT)
        return
    pairs = (
        (record.executable, record.executable_sha256, seen.executable_sha256, "executable"),
        (record.libpython, record.libpython_sha256, seen.libpython_sha256, "libpython"),
    )
    for path, wanted, got, what in pairs:
        if path and wanted != got:
            said = f", it still says Python {seen.version}" if seen.version else ""
            message = f"the {what} was changed{said}" if got else f"the {what} is gone or cannot be read"
            yield _error("interpreter-changed", path, message, _short(wanted), _short(got), HINT)


def _upgraded(seen: PythonSeen, record: PythonRecord) -> bool:
    return seen.version is not None and seen.version != record.version


# --- standard library ---


class _Difference(NamedTuple):
    kind: str
    path: str
    expected: str | None
    actual: str | None


def _differing(seen: PythonSeen, record: PythonRecord) -> Iterator[_Difference]:
    if seen.observed is None:
        return
    digests = seen.observed.digests
    unreadable = set(seen.observed.unreadable)
    present = {f"/{item.path}" for item in seen.observed.files} - {f"/{path}" for path in seen.observed.bytecode}
    recorded = {file.path: file for file in record.files}
    for path, file in recorded.items():
        if path not in present:
            yield _Difference("stdlib-missing", path, None, None)
        elif path[1:] in unreadable:
            yield _Difference("stdlib-changed", path, _short(file.sha256), "cannot be read")
        elif digests.get(path[1:]) != file.sha256:
            yield _Difference("stdlib-changed", path, _short(file.sha256), _short(digests.get(path[1:])))
    own = {record.executable, record.libpython}
    for path in sorted(present - recorded.keys() - own):
        if "/__pycache__/" not in path:
            yield _Difference("stdlib-extra", path, None, None)


def _library(seen: PythonSeen, record: PythonRecord) -> Iterator[Finding]:
    kinds: dict[str, list[_Difference]] = defaultdict(list)
    for difference in _differing(seen, record):
        kinds[difference.kind].append(difference)
    said = {
        "stdlib-changed": "a file of the standard library was changed after the env was built",
        "stdlib-missing": "a file of the standard library is gone",
    }
    for kind, message in said.items():
        found = kinds[kind]
        for one in found[:SHOWN]:
            yield _error(kind, one.path, message, one.expected, one.actual, HINT)
        if len(found) > SHOWN:
            yield _error(kind, f"{len(found) - SHOWN:,} more files", message, hint=HINT)
    yield from _extras([one.path for one in kinds["stdlib-extra"]], record)


def _extras(paths: list[str], record: PythonRecord) -> Iterator[Finding]:
    """One finding for each top-level thing that was added; what completes the library is a warning."""
    names: dict[str, str] = {}
    tops: set[str] = set()
    for file in record.files:
        if (found := _module(file.path, record)) is not None:
            names.setdefault(found, file.path)
            tops.add(found.split(".")[0])
    groups: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        module = _module(path, record)
        groups[module.split(".")[0] if module else path].append(path)
    completing = sorted(top for top in groups if top in record.names and top not in tops)
    others = sorted(groups.keys() - set(completing))
    for top in others[:SHOWN]:
        yield _extra(groups[top], names, record)
    if len(others) > SHOWN:
        message = "can be imported and was not in the standard library when the env was built"
        yield _error("stdlib-extra", f"{len(others) - SHOWN:,} more modules", message, hint=HINT)
    if completing:
        yield Finding(
            check=FAMILY,
            kind="stdlib-extra",
            severity=Severity.WARNING,
            subject=", ".join(completing[:SHOWN]) + (", …" if len(completing) > SHOWN else ""),
            message="parts of the standard library that were not installed when the env was built are there now",
            hint="a package of the operating system may have brought them; code that asks for them now runs otherwise",
        )


def _extra(paths: list[str], names: Mapping[str, str], record: PythonRecord) -> Finding:
    first = paths[0]
    module = _module(first, record)
    expected = names.get(module) if module else None
    if first in record.path:
        message = "an archive that Python searches before its own library was not there when the env was built"
    elif expected:
        message = f"stands for `{module}` beside the file that was there when the env was built"
    elif module in START_UP:
        message = f"`{module}` is run at every start and was not there when the env was built"
    else:
        message = "can be imported and was not in the standard library when the env was built"
    message += f" ({len(paths):,} files)" if len(paths) > 1 else ""
    return _error("stdlib-extra", first, message, expected, first if expected else None, HINT)


def _module(path: str, record: PythonRecord) -> str | None:
    """Return the dotted name that a file of the library can be imported by."""
    for folder in sorted(record.path, key=len, reverse=True):
        if path.startswith(f"{folder}/"):
            found = importable(path[len(folder) + 1 :])
            return found[0] if found else None
    return None


def _unchecked(seen: PythonSeen, record: PythonRecord) -> Iterator[Finding]:
    """Bytecode that is never compared with its source is how some systems ship Python, and a hiding place elsewhere."""
    if not seen.unchecked or "unchecked-hash" in record.bytecode:
        return
    names = seen.unchecked
    subject = names[0] if len(names) == 1 else f"{len(names):,} files"
    message = "bytecode of the standard library that Python never compares with its source; there was none at the build"
    message += "" if len(names) == 1 else f": {names[0]}, …"
    yield _error("stdlib-bytecode-unchecked", subject, message, hint="remove it; Python compiles the sources again")


def _short(sha256: str | None) -> str | None:
    return f"sha256:{sha256[:12]}" if sha256 else None


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
