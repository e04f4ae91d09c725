"""The base interpreter as a value: its binary, its standard library, and what an env says about both.

A record is made at build and lies beside the env; `PythonSeen` is the same thing looked at later. No I/O here:
tools/stdlib.py looks, checks/interpreter.py judges.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from envsmith.errors import IntegrityError, Problem
from envsmith.observed import Observed

SCHEMA = 1
#: Names in an env that lead to its interpreter; the minor's own name comes with it.
LINKS = ("bin/python", "bin/python3")
#: Keys of pyvenv.cfg that change what runs, and what a wrong value means.
#: Source: `Modules/getpath.py` and `Lib/site.py` of CPython 3.11 to 3.13 (read 2026-11-30).
PYVENV_KEYS: Mapping[str, str] = {
    "home": "the base interpreter and its library are looked for there",
    "include-system-site-packages": "`true` lets packages of the base interpreter be imported",
    "version": "it names the Python that the env was made for",
    "version_info": "it names the Python that the env was made for",
}
#: What Python takes a key for that is not there.
PYVENV_DEFAULTS: Mapping[str, str] = {"include-system-site-packages": "true"}


class LibraryFile(NamedTuple):
    """One file of the standard library that can be imported."""

    path: str
    """Absolute, as Python's own path names it, links unresolved."""
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonRecord:
    """What an interpreter was when an env was built on it."""

    version: str
    """Such as 3.11.7."""
    executable: str
    """The real file, no link."""
    executable_sha256: str
    libpython: str | None = None
    """The shared library that holds the interpreter, where it is not in the executable."""
    libpython_sha256: str | None = None
    path: tuple[str, ...]
    """`sys.path` without site folders: library archive, library, its extension modules."""
    names: tuple[str, ...] = ()
    """Top-level names of the whole standard library, installed or not; empty before Python 3.10."""
    bytecode: tuple[str, ...] = ()
    """How its own bytecode is held against sources: `timestamp`, `checked-hash`, `unchecked-hash`."""
    pyvenv: Mapping[str, str] = field(default_factory=dict)
    """The env's pyvenv.cfg as it was built."""
    files: tuple[LibraryFile, ...]
    """Sorted by path."""

    def to_json(self) -> str:
        """Render canonically, one line a file."""
        head = {
            "envsmith-python": SCHEMA,
            "version": self.version,
            "executable": [self.executable, self.executable_sha256],
            "libpython": [self.libpython, self.libpython_sha256],
            "path": self.path,
            "names": self.names,
            "bytecode": self.bytecode,
            "pyvenv": dict(sorted(self.pyvenv.items())),
        }
        text = json.dumps(head, separators=(",", ":"))
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in self.files)
        return f'{text[:-1]},"files":[\n{lines}\n]}}\n'

    def digest(self) -> str:
        """Return the sha256 of the JSON form, for the receipt."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @staticmethod
    def from_json(text: str) -> PythonRecord:
        """Read what `to_json` wrote.

        Raises:
            IntegrityError: `python-record-malformed`.
        """
        try:
            return _record(json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise IntegrityError(
                Problem(
                    code="python-record-malformed",
                    message=f"the record of the base interpreter cannot be read: {error}",
                    hint="build the env again with `envsmith build --rebuild`",
                )
            ) from error


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonSeen:
    """An env's interpreter as it is now."""

    links: Mapping[str, str | None]
    """Where `bin/python` and its like lead in the end; None when they lead to nothing or are not there."""
    executable: str | None
    """What `bin/python` is in the end."""
    copied: bool = False
    """It is a file of the env itself, as `venv --copies` makes it."""
    executable_sha256: str | None = None
    libpython: str | None = None
    libpython_sha256: str | None = None
    version: str | None = None
    """What the interpreter says itself; None when it was not asked, because nothing had changed."""
    problem: str | None = None
    """Why it could not be asked."""
    pyvenv: Mapping[str, str] | None = None
    """pyvenv.cfg; None when there is none."""
    pyvenv_in_bin: bool = False
    """There is a second one in `bin`, which `site` reads first."""
    path_files: tuple[str, ...] = ()
    """`._pth` files beside the interpreter, its libpython or the env's links to it."""
    home_executable: str | None = None
    """The interpreter in the folder that `home` names."""
    libraries: tuple[str, ...] = ()
    """`python3.11` for each folder of packages that the env has."""
    observed: Observed | None = None
    """The standard library, paths relative to `/`; None when it was not looked at."""
    unchecked: tuple[str, ...] = ()
    """Bytecode of the library that Python believes whatever its source says."""


def python_digest(executable_sha256: str, libpython_sha256: str | None) -> str:
    """Join the digests of an executable and its libpython."""
    digest = hashlib.sha256(executable_sha256.encode())
    if libpython_sha256:
        digest.update(libpython_sha256.encode())
    return digest.hexdigest()


def parse_pyvenv(text: str) -> dict[str, str]:
    """Read a pyvenv.cfg as Python does: keys in any case; of `home` the first one counts, of others the last."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        name = key.strip().lower()
        if equals and not (name == "home" and name in found):
            found[name] = value.strip()
    return found


def minor_of(version: str) -> str:
    """Return `3.11` of `3.11.7`."""
    return ".".join(version.split(".")[:2])


def _record(data: dict[str, Any]) -> PythonRecord:
    if data["envsmith-python"] != SCHEMA:
        raise ValueError("it was written by another version of envsmith")
    files = tuple(LibraryFile(*row) for row in data["files"])
    executable, executable_sha256 = data["executable"]
    libpython, libpython_sha256 = data["libpython"]
    texts = [data["version"], executable, executable_sha256]
    for key in ("path", "names", "bytecode"):
        if not isinstance(data[key], list):
            raise ValueError(f"`{key}` is no list")
        texts += data[key]
    texts += [text for item in data["pyvenv"].items() for text in item]
    texts += [text for file in files for text in (file.path, file.sha256)]
    if not all(isinstance(text, str) for text in texts) or not all(type(file.size) is int for file in files):
        raise ValueError("a value is of another form")
    if not all(value is None or isinstance(value, str) for value in (libpython, libpython_sha256)):
        raise ValueError("`libpython` is of another form")
    return PythonRecord(
        version=data["version"],
        executable=executable,
        executable_sha256=executable_sha256,
        libpython=libpython,
        libpython_sha256=libpython_sha256,
        path=tuple(data["path"]),
        names=tuple(data["names"]),
        bytecode=tuple(data["bytecode"]),
        pyvenv=dict(data["pyvenv"]),
        files=files,
    )
