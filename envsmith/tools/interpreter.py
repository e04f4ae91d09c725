"""Finds a real Python of a version on this machine: every candidate is run, none is believed by its name.

Shims that fail, hang or write something else are passed over; a venv's interpreter is replaced by its base.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from envsmith.errors import EnvsmithError, InputError, Problem, SupplyError
from envsmith.tools.files import filesystem
from envsmith.tools.process import run, scrubbed
from envsmith.tools.searchpath import without_folders

_SHOWN = 25
_MARK = "envsmith-interpreter:"
#: What a candidate is asked. It has to parse on any Python, so that an old one says its version, not a syntax error.
_QUESTION = f"""
import json, os, platform, sys, sysconfig
try:
    glibc = os.confstr("CS_GNU_LIBC_VERSION")
except (ValueError, OSError, AttributeError):
    glibc = None
try:
    maps = open("/proc/self/maps").read().splitlines()
except (IOError, OSError):
    maps = []
shared = sorted(set(line.split(None, 5)[5] for line in maps if "/libpython" in line))
try:
    import venv
except ImportError:
    venv = None
print("{_MARK}" + json.dumps(dict(
    version="%d.%d.%d" % sys.version_info[:3],
    release=sys.version_info[3],
    implementation=platform.python_implementation(),
    executable=os.path.realpath(sys.executable),
    prefix=sys.prefix,
    base_prefix=getattr(sys, "base_prefix", sys.prefix),
    arch=platform.machine(),
    glibc=glibc,
    libpython=shared[0] if shared else None,
    debug=hasattr(sys, "gettotalrefcount"),
    free_threaded=bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    venv=venv is not None,
)))
"""
_answers: dict[tuple[str, int, int], Interpreter | str] = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Interpreter:
    """A CPython that environments can be made from."""

    path: Path
    """The real executable: absolute, no link, no shim, no venv."""
    version: str
    """Such as 3.11.7."""
    implementation: str
    base: Path
    """Its `sys.base_prefix`."""
    arch: str
    glibc: str | None
    """Such as 2.36; None where the C library is another one."""
    libpython: Path | None
    """The shared library that holds the interpreter, where it is not in the executable."""

    @property
    def order(self) -> tuple[int, ...]:
        """The version, to compare by."""
        return tuple(int(part) for part in self.version.split("."))


def find_interpreter(
    version: str, environ: Mapping[str, str], *, system: Path = Path("/"), timeout_s: float = 10.0
) -> Interpreter:
    """Return the interpreter for "3.11" (the newest patch found) or "3.11.7" (that one).

    One named by ENVSMITH_PYTHON wins when it fits; a list of them, for several versions, is fine. `system` is where
    usr and opt are; `timeout_s` is what one candidate may take.

    Raises:
        InputError: `python-version-malformed`.
        SupplyError: `no-interpreter`, with every candidate and what became of it.
    """
    if not re.fullmatch(r"\d+\.\d+(\.\d+)?", version):
        message = f"`{version}` is not a Python version such as 3.11 or 3.11.7"
        raise InputError(Problem(code="python-version-malformed", message=message))
    minor = ".".join(version.split(".")[:2])
    seen: dict[str, Interpreter | str] = {}
    prefixes = tuple(_prefixes(environ, system))
    folders = tuple(_search_path(environ, system))
    by_name = [folder / name for folder in folders for name in (f"python{minor}", "python3", "python")]
    by_name += [prefix / "bin" / f"python{minor}" for prefix in prefixes]
    # The rest is seldom a find, but a message that does not list it would send people looking.
    rest = [prefix / "bin" / "python3" for prefix in prefixes]
    ask = partial(_ask, environ=environ, timeout_s=timeout_s)
    for paths in (_named(environ), by_name, rest):
        found = [one for one in _asked(paths, ask, seen) if f"{one.version}.".startswith(f"{version}.")]
        if found:
            return max(found, key=lambda one: one.order)  # the first of equals
    raise SupplyError(_none_fits(version, seen))


def interpreter_at(path: Path, environ: Mapping[str, str]) -> Interpreter | str:
    """Return the real interpreter behind one named path, a venv's base included; in a few words why there is none."""
    return _ask(path, environ=environ)


def interpreter_digest(path: Path) -> str:
    """Return one digest of an interpreter's executable and, where it is shared, its libpython.

    The folders in which they search for libraries do not count: an interpreter that was moved is the same one.

    Raises:
        SupplyError: `no-interpreter` when it cannot be run.
    """
    answer = _ask(path, environ=os.environ)
    if isinstance(answer, str):
        raise SupplyError(_none_fits("any", {str(path): answer}))
    digest = hashlib.sha256()
    for file in filter(None, (answer.path, answer.libpython)):
        with filesystem(file):
            digest.update(hashlib.sha256(without_folders(file.read_bytes())).hexdigest().encode())
    return digest.hexdigest()


def _named(environ: Mapping[str, str]) -> Iterator[Path]:
    for place in environ.get("ENVSMITH_PYTHON", "").split(os.pathsep):
        if place:
            path = Path(place).expanduser().absolute()
            yield path / "bin" / "python3" if path.is_dir() else path


def _search_path(environ: Mapping[str, str], system: Path) -> Iterator[Path]:
    yield from (Path(place) for place in environ.get("PATH", "").split(os.pathsep) if place.startswith("/"))
    yield from (system / "usr" / "local" / "bin", system / "usr" / "bin")


def _prefixes(environ: Mapping[str, str], system: Path) -> Iterator[Path]:
    """Yield the prefixes where version managers, conda and vendors put Pythons."""
    home = Path(environ.get("HOME") or "/nonexistent")
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    conda = [Path(environ[name]) for name in ("CONDA_PREFIX", "CONDA_ROOT") if environ.get(name)]
    conda += [home / "miniconda3", home / "miniforge3", home / "anaconda3", system / "opt" / "conda"]
    yield from conda
    managers = (
        Path(environ.get("PYENV_ROOT") or home / ".pyenv") / "versions",
        *(prefix / "envs" for prefix in conda),
        Path(environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python"),
        Path(environ.get("ASDF_DATA_DIR") or home / ".asdf") / "installs" / "python",
        Path(environ.get("MISE_DATA_DIR") or data / "mise") / "installs" / "python",
        system / "opt",
        system / "opt" / "python",
    )
    for folder in managers:
        try:
            yield from sorted(path for path in folder.iterdir() if path.is_dir())
        except OSError:
            continue


def _asked(
    paths: Iterable[Path], ask: Callable[[Path], Interpreter | str], seen: dict[str, Interpreter | str]
) -> Iterator[Interpreter]:
    """Run every candidate that is there, several at once, each real file once; note in `seen` what it said."""
    todo: dict[str, Path] = {}
    for path in paths:
        if not os.access(path, os.X_OK) or not path.is_file():
            if not path.is_symlink() and not path.exists():
                continue
            seen.setdefault(str(path), "cannot be run by this user" if path.exists() else "a link to nothing")
        elif str(path) not in seen:
            todo.setdefault(_identity(path), path)
    with ThreadPoolExecutor(max_workers=4) as pool:
        for path, answer in zip(todo.values(), pool.map(ask, todo.values()), strict=True):
            if str(path) not in seen:
                seen[str(path)] = answer
                if isinstance(answer, Interpreter):
                    yield answer


def _identity(path: Path) -> str:
    """Return what makes two candidates the same: the real file, but a link to a shim acts by the name it is called."""
    real = path.resolve()
    return str(real if real.name.startswith("python") else path)


def _ask(path: Path, *, environ: Mapping[str, str], timeout_s: float = 10.0) -> Interpreter | str:
    """Run one candidate; return what it is, or in a few words why it is no use."""
    try:
        status = path.stat()
    except OSError as error:
        return error.strerror or "cannot be read"
    key = (str(path), status.st_mtime_ns, status.st_size)
    if key not in _answers:
        _answers[key] = _ask_now(path, environ, timeout_s, may_follow=True)
    return _answers[key]


def _ask_now(path: Path, environ: Mapping[str, str], timeout_s: float, *, may_follow: bool) -> Interpreter | str:
    argv = (path, "-I", "-B", "-c", _QUESTION)
    try:
        done = run(argv, env=scrubbed(environ), cwd=Path("/"), timeout_s=timeout_s)
    except EnvsmithError as error:
        (problem,) = error.problems
        slow = problem.code == "program-timeout"
        return f"no answer within {timeout_s:.0f} s" if slow else problem.message
    facts = _facts_in(done.stdout)
    if facts is None:
        said = done.tail(1)[:100]
        return f"exit {done.returncode}" + (f": {said}" if said else "") if done.returncode else "no sensible answer"
    real = _real(path, facts)
    if real is not None and real != path:
        if may_follow:
            return _ask_now(real, environ, timeout_s, may_follow=False)
        return f"it says that it is `{real}`"
    return _judged(path, facts)


def _facts_in(stdout: str) -> dict[str, object] | None:
    """Find our line in what was written: a start-up hook may write lines of its own."""
    line = next((line for line in stdout.splitlines() if line.startswith(_MARK)), None)
    if line is None:
        return None
    try:
        facts = json.loads(line.removeprefix(_MARK))
    except ValueError:
        return None
    return facts if isinstance(facts, dict) else None


def _real(path: Path, facts: Mapping[str, object]) -> Path | None:
    """Return the executable behind a shim or link, and the base's behind a venv; None when that is this very one."""
    executable, base = Path(str(facts["executable"])), Path(str(facts["base_prefix"]))
    if facts["prefix"] != facts["base_prefix"]:
        minor = ".".join(str(facts["version"]).split(".")[:2])
        own = (base / "bin" / name for name in (f"python{minor}", "python3", "python"))
        executable = next((one.resolve() for one in own if one.is_file()), executable)
    return None if executable == path else executable


def _judged(path: Path, facts: Mapping[str, object]) -> Interpreter | str:
    version = str(facts["version"])
    faults = {
        "not CPython": facts["implementation"] != "CPython",
        "a pre-release": facts["release"] != "final",
        "a debug build": facts["debug"],
        "a free-threaded build": facts["free_threaded"],
        "without the module `venv`": not facts["venv"],
    }
    found = [name for name, there in faults.items() if there]
    if found:
        return f"{version}, {', '.join(found)}"
    glibc = str(facts["glibc"] or "")
    return Interpreter(
        path=path,
        version=version,
        implementation=str(facts["implementation"]),
        base=Path(str(facts["base_prefix"])),
        arch=str(facts["arch"]),
        glibc=glibc.removeprefix("glibc ") if glibc.startswith("glibc ") else None,
        libpython=Path(str(facts["libpython"])) if facts["libpython"] else None,
    )


def _none_fits(version: str, seen: Mapping[str, Interpreter | str]) -> Problem:
    lines = [f"{path}: {one if isinstance(one, str) else one.version}" for path, one in seen.items()]
    if len(lines) > _SHOWN:
        lines[_SHOWN:] = [f"and {len(lines) - _SHOWN} more"]
    listed = "".join(f"\n    {line}" for line in lines) or " none at all"
    return Problem(
        code="no-interpreter",
        message=f"no Python {version} is on this machine; seen:{listed}",
        hint=f"install Python {version}, or name one that is not listed: ENVSMITH_PYTHON=/path/to/python",
    )


def machine() -> tuple[str, str | None]:
    """This machine's architecture, and its glibc where it has one: `("x86_64", "2.36")`."""
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION")
    except (ValueError, OSError, AttributeError):
        libc = None
    return os.uname().machine, libc.split()[-1] if libc and libc.startswith("glibc ") else None
