"""Snapshots: what a target machine gives and nobody may change, and the packages of a base interpreter on it.

A snapshot is one TOML file, captured on the target or transcribed from a record, so that one can lock for a machine
that one cannot reach. Every fact may be missing: that is a value, not an error.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, StrictBool, ValidationError

from envsmith.errors import InputError, Problem
from envsmith.hostfacts import FactTable, HostFacts
from envsmith.toml_position import KeyPath, line_of, locate
from envsmith.toml_reader import TomlError, read_toml

SCHEMA = 1


def _version(text: str) -> str:
    try:
        Version(text)
    except InvalidVersion as error:
        raise ValueError(f"`{text}` is not a version") from error
    return text


def _requirement(text: str) -> str:
    try:
        Requirement(text)
    except InvalidRequirement as error:
        raise ValueError(f"`{text}` is not a requirement") from error
    return text


class About(FactTable):
    """`[snapshot]`: where the file comes from."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    origin: Literal["captured", "transcribed"]
    """Captured by a program on the machine, or written down from a record."""
    taken: str | None = None
    """UTC, ISO 8601."""
    tool: str | None = None
    note: str = ""


class Hook(FactTable):
    """`[[python.hook]]`: a `.pth` file, sitecustomize or usercustomize of the base."""

    path: str
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    owner: str | None = None
    """The distribution whose RECORD names it."""


class BasePython(FactTable):
    """`[python]`: the base interpreter."""

    executable: str
    version: Annotated[str, AfterValidator(_version)]
    prefix: str | None = None
    site: tuple[str, ...] = ()
    """The folders that its site module searches for packages, in order."""
    headers: StrictBool | None = None
    """Whether Python.h lies where its sysconfig says: what compiling at run time needs."""
    hook: tuple[Hook, ...] = ()
    """What runs in every process of it."""


class Altered(FactTable):
    """One file of a base package that was not as its RECORD says when the snapshot was taken."""

    path: Annotated[str, Field(min_length=1)]
    """As RECORD spells it."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """What it was; None where it was missing."""


class BasePackage(FactTable):
    """`[[packages]]`: one distribution of the base."""

    name: str
    version: Annotated[str, AfterValidator(_version)] | None = None
    """The full version, local part included: `==2.9.0` cannot tell a vendor's build from the community's.

    None where it is only known that the package is there.
    """
    requires: tuple[Annotated[str, AfterValidator(_requirement)], ...] = ()
    files: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Digest over its installed files; None where only the version is known."""
    record: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Sha256 of its RECORD, which names every file of it."""
    altered: tuple[Altered, ...] = ()
    """Files that were not as RECORD says already then."""
    editable: str | None = None
    """The source tree of an editable installation, which is part of the base."""


class Snapshot(FactTable):
    """A whole snapshot file."""

    snapshot: About
    host: HostFacts = HostFacts()
    python: BasePython | None = None
    packages: tuple[BasePackage, ...] = ()

    def by_name(self) -> dict[str, BasePackage]:
        """Packages by canonical name."""
        return {str(canonicalize_name(package.name)): package for package in self.packages}

    def digest(self) -> str:
        """Sha256 over interpreter and packages, for locks; order and the machine's facts do not count."""
        content = {
            "python": self.python.model_dump(mode="json", include={"executable", "version", "prefix"})
            if self.python
            else None,
            "packages": sorted(map(_for_digest, self.packages), key=lambda package: str(package["name"])),
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _for_digest(package: BasePackage) -> dict[str, Any]:
    """What of a package counts; keys that came later count only where they are there, so that old locks stay fresh."""
    said = package.model_dump(mode="json", by_alias=True)
    return {key: value for key, value in said.items() if value or key in ("name", "version", "requires", "files")}


def parse_snapshot(text: str, where: str) -> Snapshot:
    """Read a snapshot file.

    Raises:
        InputError: `snapshot-syntax`, or every `snapshot-invalid` of the file at once.
    """
    try:
        data = read_toml(text)
    except TomlError as error:
        raise InputError(
            Problem(code="snapshot-syntax", message=f"this is not TOML: {error}", where=f"{where}:{error.line}")
        ) from error
    lines = locate(text)
    problems: list[Problem] = []
    try:
        snapshot: Snapshot | None = Snapshot.model_validate(data)
    except ValidationError as error:
        snapshot = None
        problems += [_problem(where, lines, dict(one)) for one in error.errors(include_url=False)]
    problems += _twice(where, lines, data)
    if problems or snapshot is None:
        raise InputError(*problems)
    return snapshot


def _problem(where: str, lines: dict[KeyPath, int], error: dict[str, Any]) -> Problem:
    path: KeyPath = tuple(error["loc"])
    words = re.sub(r"^(Value error|Input), ?", "", str(error["msg"]))
    line = line_of(lines, path)
    return Problem(
        code="snapshot-invalid",
        message=f"`{'.'.join(str(part) for part in path)}`: {words[:1].lower()}{words[1:]}",
        where=f"{where}:{line or 1}",
    )


def _twice(where: str, lines: dict[KeyPath, int], data: dict[str, Any]) -> Iterator[Problem]:
    seen: set[str] = set()
    packages = data.get("packages")
    for index, package in enumerate(packages if isinstance(packages, list) else ()):
        name = package.get("name") if isinstance(package, dict) else None
        if not isinstance(name, str):
            continue
        key = str(canonicalize_name(name))
        if key in seen:
            line = line_of(lines, ("packages", index, "name")) or 1
            yield Problem(code="snapshot-invalid", message=f"`{name}` stands twice", where=f"{where}:{line}")
        seen.add(key)


def protected_names(snapshot: Snapshot, protect: tuple[str, ...]) -> frozenset[str]:
    """Canonical names of the packages that must come out unchanged; `*` means all."""
    known = snapshot.by_name()
    if "*" in protect:
        return frozenset(known)
    return frozenset(str(canonicalize_name(name)) for name in protect)
