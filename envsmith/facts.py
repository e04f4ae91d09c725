"""What a probe saw in one process, typed: the mirror of the answer that envsmith/probe/observe.py writes.

One `Facts` is one process, called a context. The field names are the keys of the answer; paths are absolute, their
directory is resolved and their last name is not, so that a link can be told from its target.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from envsmith.errors import IntegrityError, Problem

SCHEMA = 1
"""Version of request and answer; payload and reader come from the same envsmith or the answer is refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Python:
    """The interpreter that answered."""

    executable: str
    realpath: str
    version: str
    """Three numbers, `3.11.7`."""
    prefix: str
    base_prefix: str
    real_prefix: str
    real_base_prefix: str
    implementation: str
    stdlib: tuple[str, ...]
    """Path entries of the interpreter itself, to be matched exactly: its site-packages may lie inside one of them."""
    purelib: str
    platlib: str
    site_packages: tuple[str, ...]
    """Directories whose .pth files are read at start, in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PathEntry:
    """One entry of sys.path."""

    entry: str
    real: str
    exists: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PthFile:
    """A .pth file: plain lines extend sys.path, import lines are run."""

    path: str
    sha256: str
    lines: tuple[str, ...]
    import_lines: tuple[str, ...]
    sure: bool
    """False where the directory is on sys.path by some code, so that the file may or may not have been read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Customize:
    """A sitecustomize or usercustomize that some path entry offers."""

    name: str
    path: str
    sha256: str
    loaded: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Finder:
    """An import hook on sys.meta_path that is not the interpreter's own."""

    name: str
    module: str
    file: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """What runs before a program's first line."""

    user_enabled: bool
    user_dir: str | None
    user_exists: bool
    pth: tuple[PthFile, ...]
    customize: tuple[Customize, ...]
    finders: tuple[Finder, ...]

    def hooks(self) -> dict[str, str]:
        """The sha256 of every file that runs at start, by its path."""
        found = {customize.path: customize.sha256 for customize in self.customize}
        return found | {pth.path: pth.sha256 for pth in self.pth}


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    """Which file an import of a top-level name would load."""

    kind: str
    """regular, module, extension, namespace, builtin, frozen, missing or error."""
    origin: str | None
    locations: tuple[str, ...]
    error: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Import:
    """How a real import went."""

    ok: bool
    error_type: str | None
    error: str | None
    file: str | None
    version: str | None
    seconds: float
    cause: str | None = None
    """The first exception of the chain, where the one that was raised hides another."""
    said: str | None = None
    """The end of what the import printed on stderr."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attribute:
    """Whether `package.attribute` is there."""

    ok: bool
    error_type: str | None
    error: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Launcher:
    """What a shell would start for a command name."""

    path: str | None
    realpath: str | None
    shebang: str | None
    interpreter: str | None
    """The program that ends up running a script: `env` and installers' sh trampolines are seen through."""
    interpreter_exists: bool
    executable: bool
    skipped: tuple[str, ...]
    """Files of that name earlier on PATH that are not executable."""
    beside: str | None
    """The file of that name beside the interpreter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """A file that names the program which runs it by path."""

    path: str
    shebang: str
    interpreter: str
    """The program that ends up running it."""
    interpreter_exists: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Distribution:
    """A metadata directory on the path."""

    name: str
    version: str
    metadata: str
    requires: tuple[str, ...]
    readable: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class MappedFile:
    """A file mapped as code."""

    path: str
    deleted: bool
    sha256: str | None = None
    """Of the files of a library that is mapped from several paths; None for all others, and where it cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """A section that the payload could not answer."""

    section: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Everything that one probe saw."""

    schema: int
    context: str
    """How the process was started: `plain`, `launched`, `spawn`, `fork`, `torchrun[0]`, `ray`, `vllm` …"""
    python: Python
    flags: Mapping[str, int]
    path: tuple[PathEntry, ...]
    environ: Mapping[str, str]
    site: Site
    modules: Mapping[str, Module]
    imports: Mapping[str, Import]
    attributes: Mapping[str, Attribute]
    launchers: Mapping[str, Launcher]
    scripts: tuple[Script, ...]
    distributions: tuple[Distribution, ...]
    maps: tuple[MappedFile, ...]
    faults: tuple[Fault, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Level:
    """One process of the chain that starts in the launch environment."""

    name: str
    """`launched`, `spawn`, `torchrun[0]`, `ray`, `ray-child` …"""
    parent: str | None
    """The level that it was started from; None for what the launch environment itself starts."""
    facts: Facts


@dataclass(frozen=True, kw_only=True, slots=True)
class Unstarted:
    """A context that gave no answer."""

    context: str
    reason: str
    """Its last words, or what is missing."""
    skipped: bool = False
    """True where the env has no such package, so that nothing could be started."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LibcudaAnswer:
    """What the driver's library said in a fresh process that loaded nothing else."""

    loaded: bool
    error: str | None
    """The loader's words where it could not be loaded."""
    init: int | None
    """What `cuInit(0)` returned; 0 is success."""
    driver_version: int | None
    """What `cuDriverGetVersion` gave: 12080 is CUDA 12.8."""
    path: str | None
    """The mapped file, links resolved."""
    version: str | None
    """As the file's name has it: `570.86.15`."""


def parse(text: str) -> Facts:
    """Read a probe's answer.

    Raises:
        IntegrityError: `probe-answer-malformed` when it is not JSON or not exactly of this form.
    """
    try:
        facts: Facts = _build(Facts, json.loads(text), "answer")
        if facts.schema != SCHEMA:
            raise _MismatchError(f"answer.schema: `{facts.schema}` instead of `{SCHEMA}`")
    except (ValueError, RecursionError) as error:
        raise _malformed(error) from error
    return facts


def parse_libcuda(text: str) -> LibcudaAnswer:
    """Read the answer about the driver's library.

    Raises:
        IntegrityError: `probe-answer-malformed`.
    """
    try:
        answer: LibcudaAnswer = _build(LibcudaAnswer, json.loads(text), "answer")
    except (ValueError, RecursionError) as error:
        raise _malformed(error) from error
    return answer


def _malformed(error: Exception) -> IntegrityError:
    return IntegrityError(
        Problem(
            code="probe-answer-malformed",
            message=f"the probe's answer cannot be read: {error}",
            hint="something in the probed process wrote into the answer, or the probe is of another version",
        )
    )


class _MismatchError(ValueError):
    """The answer is JSON, but not of the expected form."""


@cache
def _hints(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _build(kind: Any, value: Any, where: str) -> Any:
    """Turn decoded JSON into `kind`, strictly: no missing key, no extra key, no coercion but int to float."""
    origin, args = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(value, list):
        return tuple(_build(args[0], item, f"{where}[{n}]") for n, item in enumerate(value))
    if origin is Mapping and isinstance(value, dict):
        return {key: _build(args[1], item, f"{where}.{key}") for key, item in value.items()}
    if origin in (Union, types.UnionType):
        return None if value is None else _build(args[0], value, where)
    if is_dataclass(kind) and isinstance(kind, type) and isinstance(value, dict):
        return _build_record(kind, value, where)
    if kind is float and type(value) is int:
        return float(value)
    if isinstance(kind, type) and type(value) is kind:
        return value
    raise _MismatchError(f"{where}: not of the form `{getattr(kind, '__name__', kind)}`")


def _build_record(kind: type, value: dict[str, Any], where: str) -> Any:
    names = {field.name for field in fields(kind)}
    if names != value.keys():
        odd = sorted(names ^ value.keys())[0]
        raise _MismatchError(f"{where}.{odd}: {'missing' if odd in names else 'unknown key'}")
    return kind(**{name: _build(_hints(kind)[name], value[name], f"{where}.{name}") for name in names})
