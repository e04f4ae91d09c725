"""Finds an interpreter that may be carried to another machine, and proves that a packed one runs wherever it lies.

Best are uv's own builds (python-build-standalone), which are made for it. Any other prefix has to hold all of the
interpreter and nothing else; whether it runs elsewhere is tried, not believed.
"""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from envsmith.errors import EnvsmithError, Problem, SupplyError
from envsmith.tools.files import filesystem
from envsmith.tools.hostlibs import cache_entries, default_folders
from envsmith.tools.interpreter import Interpreter, find_interpreter
from envsmith.tools.process import run
from envsmith.tools.pythonpack import Packed, minor_below, not_relocatable, pack
from envsmith.tools.pythonunpack import unpack, unpack_members

__all__ = ["Found", "Packed", "find_relocatable", "pack", "prove", "unpack"]

_NOWHERE = Path("/nonexistent")
_TIMEOUT_S = 120
_SYSTEM = tuple(map(Path, ("/", "/usr", "/usr/local")))
#: What python-build-standalone has above `bin` in its archives, and what our own have.
_TOPS = ("", "python", "python/install")
_IMPORTS = (
    "ssl", "sqlite3", "ctypes", "zlib", "lzma", "bz2", "hashlib", "json", "venv", "ensurepip", "multiprocessing",
    "decimal", "_socket", "select", "pyexpat",
)  # fmt: skip
_QUESTION = """
import importlib, json, os, platform, sys, sysconfig
broken = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception as error:
        broken[name] = "%s: %s" % (type(error).__name__, error)
with open("/proc/self/maps", errors="surrogateescape") as stream:
    mapped = sorted({line.rstrip("\\n").split(None, 5)[5] for line in stream if len(line.split(None, 5)) == 6})
print("envsmith-moved:" + json.dumps(dict(
    version="%d.%d.%d" % sys.version_info[:3], arch=platform.machine(), executable=os.path.realpath(sys.executable),
    prefix=sys.prefix, base_prefix=sys.base_prefix, path=sys.path, paths=sysconfig.get_paths(), mapped=mapped,
    broken=broken)))
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """An interpreter that may be worth packing."""

    prefix: Path
    executable: Path
    version: str
    """Such as 3.11.7."""
    kind: Literal["named", "uv", "found"]


def find_relocatable(
    version: str,
    environ: Mapping[str, str],
    named: Path | None = None,
    *,
    work: Path,
    on_refusal: Callable[[Path, str], None] = lambda prefix, why: None,
    system: Path = Path("/"),
) -> Found | None:
    """Return a Python "3.11" or "3.11.7" to pack: the named one, one of uv's, or what this machine has.

    `named` is a prefix, an executable or an archive, which is unpacked below `work`. `on_refusal` hears of every
    interpreter of that version that must stay where it is, and why.

    Raises:
        HostError: `interpreter-not-relocatable` for a named one.
        SupplyError: `interpreter-version` when a named one is of another version, `no-interpreter` when it does not
            run.
        IntegrityError: as `unpack`, for a named archive.
        InputError: `python-version-malformed`.
    """
    if named is not None:
        return _named(version, named, work)
    for kind, python in _candidates(version, environ, system):
        why = _why_not(python)
        if why is None:
            return Found(prefix=python.base, executable=python.path, version=python.version, kind=kind)
        on_refusal(python.base, why)
    return None


def _named(version: str, named: Path, work: Path) -> Found:
    prefix = named.expanduser().absolute()
    if not prefix.exists():
        message = f"there is no `{named}`"
        hint = "name the prefix of an interpreter, its executable, or an archive of it"
        raise SupplyError(Problem(code="no-interpreter", message=message, where=str(named), hint=hint))
    if prefix.is_file() and tarfile.is_tarfile(prefix):
        with filesystem(work):
            work.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix="named-python-", dir=work))
        unpack_members(prefix, folder)
        prefix = next((folder / top for top in _TOPS if minor_below(folder / top)), folder)
    elif prefix.is_file():
        in_venv = (prefix.parent.parent / "pyvenv.cfg").exists()
        prefix = (prefix if in_venv else prefix.resolve()).parent.parent
    if (prefix / "pyvenv.cfg").exists():
        raise not_relocatable("it is a virtual environment, which only points to one", named)
    minor = minor_below(prefix)
    if minor is None:
        raise not_relocatable("there is no `bin/python3.N` with its `lib/python3.N`", named)
    python = _of(minor, [prefix / "bin" / f"python{minor}"])
    if python is None:
        find_interpreter(minor, {"ENVSMITH_PYTHON": str(prefix / "bin" / f"python{minor}")}, system=_NOWHERE)
        raise not_relocatable("it does not run", named)
    if not f"{python.version}.".startswith(f"{version}."):
        message = f"`{named}` is a Python {python.version}, and {version} is needed"
        raise SupplyError(Problem(code="interpreter-version", message=message, where=str(named)))
    if why := _why_not(python):
        raise not_relocatable(why, named)
    return Found(prefix=python.base, executable=python.path, version=python.version, kind="named")


def _candidates(
    version: str, environ: Mapping[str, str], system: Path
) -> Iterator[tuple[Literal["uv", "found"], Interpreter]]:
    """Yield the newest of uv's, what an env would be built on, and the newest of pyenv's."""
    home = Path(environ.get("HOME") or _NOWHERE)
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    uvs = Path(environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")
    if python := _of(version, _folders(uvs)):
        yield "uv", python
    try:
        yield "found", find_interpreter(version, environ, system=system)
    except SupplyError:
        return
    if python := _of(version, _folders(Path(environ.get("PYENV_ROOT") or home / ".pyenv") / "versions")):
        yield "found", python


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:
        return []


def _of(version: str, places: list[Path]) -> Interpreter | None:
    """Return the newest interpreter of a version among places, and only those."""
    if not places:
        return None
    named = {"ENVSMITH_PYTHON": os.pathsep.join(map(str, places))}
    try:
        return find_interpreter(version, named, system=_NOWHERE)
    except SupplyError:
        return None


def _why_not(python: Interpreter) -> str | None:
    """Say why an interpreter must stay where it is, as far as that shows without trying."""
    prefix = python.base.resolve()
    if prefix in _SYSTEM:
        return f"it belongs to the system: `{prefix}` holds more than it"
    if (prefix / "conda-meta").is_dir():
        return "conda writes the place of the prefix into its files"
    if (prefix / "pyvenv.cfg").exists():
        return "it is a virtual environment, which only points to one"
    if python.glibc is None:
        return "it was not built for glibc"
    outside = [one for one in (python.path, python.libpython) if one and prefix not in one.resolve().parents]
    if outside:
        return f"`{outside[0]}` of it lies outside of `{prefix}`"
    if minor_below(prefix) is None:
        return f"its standard library is not below `{prefix}`"
    return None


def prove(archive: Path, work: Path, *, version: str, arch: str) -> None:
    """Unpack an interpreter at another place, run it there without any variable, and let it make a venv.

    Everything it sees and loads must lie at the new place or be a library of the system. It proves nothing about the
    libraries of another machine: `Packed.needs` and `Packed.glibc` name those.

    Raises:
        HostError: `interpreter-not-relocatable` with everything that failed.
        IntegrityError: as `unpack`.
    """
    with filesystem(work):
        work.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix="moved-python-", dir=work)
    with scratch as folder:
        place = Path(folder).resolve() / "python"
        executable = unpack(archive, place)
        faults = _faults(_answer((executable, "-I", "-c", _QUESTION, *_IMPORTS)), place, version, arch)
        venv = place.parent / "venv"
        if not faults:
            made = _run((executable, "-I", "-m", "venv", "--without-pip", venv))
            faults += [f"it cannot make a venv: {made}"] if made else []
        if not faults:
            facts = _answer((venv / "bin" / "python", "-I", "-c", _QUESTION, *_IMPORTS))
            faults += [f"in a venv: {fault}" for fault in _faults(facts, place, version, arch, venv=venv)]
    if faults:
        more = "; ".join(faults[1:12])
        raise not_relocatable(faults[0], archive, more or None)


def _run(argv: tuple[str | Path, ...]) -> str:
    try:
        done = run(argv, env={}, cwd=Path("/"), timeout_s=_TIMEOUT_S)
    except EnvsmithError as error:
        return error.problems[0].message
    return done.tail(1) or f"exit {done.returncode}" if done.returncode else ""


def _answer(argv: tuple[str | Path, ...]) -> dict[str, Any] | str:
    """Return what the moved interpreter says of itself, or why it says nothing."""
    try:
        done = run(argv, env={}, cwd=Path("/"), timeout_s=_TIMEOUT_S)
    except EnvsmithError as error:
        return error.problems[0].message
    line = next((line for line in done.stdout.splitlines() if line.startswith("envsmith-moved:")), None)
    if line is None:
        return f"it does not run when it is moved: {done.tail(1) or f'exit {done.returncode}'}"
    answer: dict[str, Any] = json.loads(line.partition(":")[2])
    return answer


def _faults(
    facts: dict[str, Any] | str, place: Path, version: str, arch: str, *, venv: Path | None = None
) -> list[str]:
    if isinstance(facts, str):
        return [facts]
    faults = [
        f"its {name} is {facts[name]} instead of {expected}"
        for name, expected in (
            ("version", version), ("arch", arch), ("prefix", str(venv or place)), ("base_prefix", str(place)),
        )
        if facts[name] != expected
    ]  # fmt: skip
    inside = tuple(f"{one}/" for one in (place, venv) if one)
    named = [("`sys.executable`", facts["executable"]), *(("`sys.path`", one) for one in facts["path"])]
    named += [(f"`sysconfig` path `{name}`", one) for name, one in sorted(facts["paths"].items())]
    faults += [f"{name} is still `{one}`" for name, one in named if not f"{one}/".startswith(inside)]
    faults += [f"it loads `{one}`" for one in _foreign(facts["mapped"], inside)]
    return faults + [f"`import {name}` fails: {said}" for name, said in facts["broken"].items()]


def _foreign(mapped: list[str], inside: tuple[str, ...]) -> list[str]:
    """Return mapped files that are neither the interpreter's own nor the system's; a libpython is never that."""
    folders = tuple(f"{folder}/" for folder in default_folders()) + tuple(
        f"{os.path.realpath(folder)}/" for folder in default_folders()
    )
    cached = {os.path.realpath(path) for _, path in cache_entries()}
    files = [one for one in mapped if one.startswith("/") and not one.startswith(("/dev/", *inside))]
    return [
        one for one in files if "/libpython" in one or not (one.startswith(folders) or os.path.realpath(one) in cached)
    ]
