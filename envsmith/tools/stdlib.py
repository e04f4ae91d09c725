"""Look at an env's interpreter: where its links lead, what its binary is, and every importable file of its library.

What is looked at is what `sys.path` holds without site folders, asked of the interpreter itself: sources, extension
modules, bytecode that needs no source, and a library archive. Left out: site-packages and dist-packages (they belong to
whoever installs there), tests (systems add them later, nobody imports them), the static library in `config-*`, and data
files. Nothing is written and no code of the library runs beyond what answers the question.

The library may be read-only, full of links (Debian, Nix) or on another file system than the env.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from envsmith.bytecode import Fit, cache_name, judge_header
from envsmith.errors import EnvsmithError, Problem, StepError
from envsmith.observed import Observed, Seen
from envsmith.stdlib import LINKS, LibraryFile, PythonRecord, PythonSeen, minor_of, parse_pyvenv
from envsmith.tools.process import run
from envsmith.tools.tree import Row, StatIndex, hash_tree

LEFT_OUT = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test"})
_SUFFIXES = (".py", ".so", ".pyc")
#: How far the clock of a file system that may be a server's is trusted to go with ours.
SKEW_NS = 600 * 10**9
ASK_SECONDS = 20.0
CONFIG_BYTES = 1 << 16
_MARK = "envsmith-python:"
_QUESTION = f"""
import os, sys
try:
    maps = open("/proc/self/maps").read().splitlines()
except (IOError, OSError):
    maps = []
shared = sorted(set(line.split(None, 5)[5] for line in maps if "/libpython" in line))
import json
print("{_MARK}" + json.dumps([
    "%d.%d.%d" % sys.version_info[:3], shared[0] if shared else None, [part for part in sys.path if part],
    sorted(getattr(sys, "stdlib_module_names", ())),
]))
"""
_FITS = {Fit.HASHED: "checked-hash", Fit.UNCHECKED: "unchecked-hash", Fit.FITS: "timestamp"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What an interpreter says about itself."""

    version: str
    libpython: str | None
    path: tuple[str, ...]
    names: tuple[str, ...]


def ask(python: Path, *, env: Mapping[str, str]) -> Answer:
    """Ask an interpreter what it is, without site hooks and without the user's settings.

    Raises:
        StepError: `interpreter-broken`, `program-timeout`.
    """
    try:
        done = run((python, "-I", "-S", "-B", "-c", _QUESTION), env=env, cwd=Path("/"), timeout_s=ASK_SECONDS)
    except StepError as error:
        if error.problems[0].code == "program-missing":
            raise _broken(python, error.problems[0].message) from error
        raise
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            with contextlib.suppress(ValueError, TypeError):
                version, libpython, path, names = json.loads(line.removeprefix(_MARK))
                return Answer(version=version, libpython=libpython, path=tuple(path), names=tuple(names))
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    raise _broken(python, f"it ended with {how}; it said: {done.tail(3) or 'nothing'}")


def make_record(python: Path, *, env: Mapping[str, str], directory: Path | None = None) -> PythonRecord:
    """Record an interpreter as it is now; with `directory`, also what that env's pyvenv.cfg says.

    Raises:
        StepError: `interpreter-broken`, `program-timeout`; also when a file of it cannot be read.
    """
    answer = ask(python, env=env)
    executable = os.path.realpath(python)
    observed, _ = _library(answer.path, [executable, answer.libpython], StatIndex(), deep=True)
    if observed.unreadable:
        raise _broken(python, f"`/{observed.unreadable[0]}` cannot be read")
    digests = observed.digests
    binaries = {executable[1:], (answer.libpython or "/")[1:]}
    files = [s for s in observed.files if s.path in digests and s.path not in binaries]
    return PythonRecord(
        version=answer.version,
        executable=executable,
        executable_sha256=digests[executable[1:]],
        libpython=answer.libpython,
        libpython_sha256=digests[answer.libpython[1:]] if answer.libpython else None,
        path=answer.path,
        names=answer.names,
        bytecode=tuple(sorted(set(_policies(observed, observed.bytecode).values()))),
        pyvenv=_pyvenv(directory / "pyvenv.cfg") or {} if directory else {},
        files=tuple(LibraryFile(f"/{s.path}", s.size, digests[s.path]) for s in files),
    )


def look(
    directory: Path,
    record: PythonRecord | None,
    index: StatIndex | None = None,
    *,
    env: Mapping[str, str],
    deep: bool = False,
) -> tuple[PythonSeen, StatIndex]:
    """Look at an env's interpreter; return what was seen, and the index that makes the next look cheap.

    `deep` reads every file and trusts nothing. Without a record the interpreter is asked where its library is, which is
    looked at with `deep` alone, for the proof of its bytecode. With a record it is asked only when something differs.
    Never raises over an interpreter that is gone or broken.
    """
    index = index or StatIndex()
    python = directory / "bin" / "python"
    executable = _end(python)
    same = record if record is not None and executable == record.executable else None
    answer, problem = _asked(python, env) if executable and same is None else (None, None)
    libpython = same.libpython if same else answer.libpython if answer else None
    path = same.path if same else answer.path if answer and deep and not record else ()
    binaries = [executable, libpython]
    observed, renewed = _library(path, binaries, index, deep=deep) if executable else (None, index)
    digests: Mapping[str, str] = observed.digests if observed else {}
    own = (digests.get((executable or "/")[1:]), digests.get((libpython or "/")[1:]))
    if same and own != (same.executable_sha256, same.libpython_sha256):
        answer, problem = _asked(python, env)
    policies = _policies(observed, _hashed(observed)) if observed else {}
    seen = PythonSeen(
        executable=executable,
        executable_sha256=own[0],
        libpython=libpython,
        libpython_sha256=own[1],
        version=answer.version if answer else None,
        problem=problem,
        observed=observed,
        unchecked=tuple(sorted(f"/{path}" for path, policy in policies.items() if policy == "unchecked-hash")),
        **_surroundings(directory, record, executable, libpython),
    )
    return seen, renewed


class _Surroundings(TypedDict):
    links: Mapping[str, str | None]
    copied: bool
    pyvenv: Mapping[str, str] | None
    pyvenv_in_bin: bool
    path_files: tuple[str, ...]
    home_executable: str | None
    libraries: tuple[str, ...]


def _surroundings(
    directory: Path, record: PythonRecord | None, executable: str | None, libpython: str | None
) -> _Surroundings:
    """Look at what the env itself says about its interpreter."""
    links = {name: _end(directory / name) for name in _link_names(directory, record)}
    pyvenv = _pyvenv(directory / "pyvenv.cfg")
    libraries = tuple(sorted(one.name for one in _folders(directory / "lib") if one.name.startswith("python")))
    return _Surroundings(
        links=links,
        copied=executable is not None and executable.startswith(f"{os.path.realpath(directory)}/"),
        pyvenv=pyvenv,
        pyvenv_in_bin=(directory / "bin" / "pyvenv.cfg").is_file(),
        path_files=tuple(_path_files(directory, [*links, executable, libpython])),
        home_executable=_home_executable(pyvenv, (*libraries, Path(executable or "python").name)),
        libraries=libraries,
    )


def _asked(python: Path, env: Mapping[str, str]) -> tuple[Answer | None, str | None]:
    try:
        return ask(python, env=env), None
    except EnvsmithError as error:
        return None, error.problems[0].message


def _broken(python: Path, why: str) -> StepError:
    message = f"`{python}` cannot be used as an interpreter: {why}"
    return StepError(Problem(code="interpreter-broken", message=message, where=str(python)))


# --- the env's side ---


def _link_names(directory: Path, record: PythonRecord | None) -> Iterator[str]:
    yield from LINKS
    names = [one.name for one in _folders(directory / "lib") if one.name.startswith("python")]
    for minor in [minor_of(record.version)] if record else sorted(name.removeprefix("python") for name in names):
        if record or os.path.lexists(directory / "bin" / f"python{minor}"):
            yield f"bin/python{minor}"


def _end(path: Path) -> str | None:
    """Return the file that a name leads to in the end."""
    real = os.path.realpath(path)
    return real if Path(real).is_file() else None


def _path_files(directory: Path, places: list[str | None]) -> Iterator[str]:
    """Yield the files that make `getpath` forget sys.path.

    They are documented for Windows, and read everywhere: tried with CPython 3.11.7 on Linux (2026-11-30).
    """
    for place in dict.fromkeys(one for one in places if one):
        name = f"{place}._pth"
        if (directory / name).is_file():
            yield name


def _folders(folder: Path) -> list[Path]:
    try:
        return [one for one in folder.iterdir() if one.is_dir()]
    except OSError:
        return []


def _pyvenv(path: Path) -> dict[str, str] | None:
    try:
        with path.open("rb") as stream:
            return parse_pyvenv(stream.read(CONFIG_BYTES).decode(errors="replace"))
    except OSError:
        return None


def _home_executable(pyvenv: Mapping[str, str] | None, names: tuple[str, ...]) -> str | None:
    home = (pyvenv or {}).get("home", "")
    if not home.startswith("/") or "\0" in home:
        return None
    return next((end for name in (*names, "python3", "python") if (end := _end(Path(home, name)))), None)


# --- the library ---


def _library(
    path: tuple[str, ...], binaries: list[str | None], index: StatIndex, *, deep: bool
) -> tuple[Observed, StatIndex]:
    """Look at all importable files below `path`, and at the binaries; logical names, contents of what they lead to."""
    taken_ns = time.time_ns() - SKEW_NS
    files: dict[str, Seen] = {}
    bytecode: dict[str, Seen] = {}
    visited: set[tuple[int, int]] = set()
    for part in (*path, *(one for one in binaries if one)):
        with contextlib.suppress(OSError):
            info = Path(part).stat()
            if stat.S_ISREG(info.st_mode):
                files[part[1:]] = _seen(part[1:], info)
            elif stat.S_ISDIR(info.st_mode):
                _walk(part, visited, files, bytecode)
    known = {} if deep else {name: digest for name, seen in files.items() if (digest := index.digest(seen))}
    # Contents are read through the real path, because the reader follows no link.
    real = {name: os.path.realpath(f"/{name}")[1:] for name in files if name not in known}
    hashed = hash_tree(Path("/"), [files[name]._replace(path=place) for name, place in real.items()])
    read = {name: hashed.digests[place] for name, place in real.items() if place in hashed.digests}
    digests = {**known, **read}
    observed = Observed(
        files=tuple(sorted((files | bytecode).values())),
        digests=digests,
        unreadable=tuple(sorted(name for name, place in real.items() if place not in hashed.digests)),
        bytecode={name: header for name in bytecode if (header := _header(f"/{name}")) is not None},
        hashed_files=hashed.files,
        hashed_bytes=hashed.bytes,
        trusted_files=len(known),
        trusted_bytes=sum(files[name].size for name in known),
    )
    if not read and len(known) == len(index.rows):
        return observed, index
    rows = {name: Row(s.size, s.mtime_ns, s.ctime_ns, s.ino, s.mode, digests[name])
            for name, s in files.items() if name in digests}  # fmt: skip
    return observed, StatIndex(taken_ns=taken_ns, rows=rows)


def _walk(folder: str, visited: set[tuple[int, int]], files: dict[str, Seen], bytecode: dict[str, Seen]) -> None:
    """Collect importable files and cached bytecode below a folder, each real folder once, links followed."""
    folders = [folder]
    while folders:
        here = folders.pop()
        with contextlib.suppress(OSError):
            info = Path(here).stat()
            if (info.st_dev, info.st_ino) in visited:
                continue
            visited.add((info.st_dev, info.st_ino))
            is_cache = here.endswith("/__pycache__")
            with os.scandir(here) as items:
                for item in items:
                    name = f"{here}/{item.name}"
                    if item.is_dir():
                        if item.name not in LEFT_OUT and not item.name.startswith("config-") and not is_cache:
                            folders.append(name)
                    elif item.name.endswith(_SUFFIXES):
                        found = _look(item, name[1:])
                        if found:
                            (bytecode if is_cache else files)[name[1:]] = found


def _look(item: os.DirEntry[str], name: str) -> Seen | None:
    try:
        info = item.stat()
    except OSError:
        return None  # a link to nothing cannot be imported
    return _seen(name, info) if stat.S_ISREG(info.st_mode) else None


def _seen(name: str, info: os.stat_result) -> Seen:
    mode = info.st_mode & 0o7777
    times = (info.st_mtime_ns, info.st_ctime_ns)
    return Seen(name, "file", mode, info.st_size, *times, info.st_ino, info.st_dev, info.st_nlink, None)


def _header(path: str) -> bytes | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.read(handle, 16)
    except OSError:
        return None
    finally:
        os.close(handle)


def _hashed(observed: Observed) -> list[str]:
    """Return the few whose header carries a hash: the others need no closer look."""
    return [path for path, header in observed.bytecode.items() if header[4:5] not in (b"", b"\0")]


def _policies(observed: Observed, paths: Iterable[str]) -> dict[str, str]:
    """Return how each of these cached files is held against its source, if it may be loaded."""
    seen = {item.path: item for item in observed.files}
    found: dict[str, str] = {}
    for path in paths:
        name = cache_name(path)
        source = seen.get(name.source) if name else None
        policy = _FITS.get(judge_header(observed.bytecode[path], source)[0]) if source else None
        if policy:
            found[path] = policy
    return found
