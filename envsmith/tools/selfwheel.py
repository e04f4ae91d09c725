"""Makes the wheel of the envsmith that is running: no network, no build backend, the same bytes wherever it runs from.

Files of an installed wheel are the rows of its RECORD and are held against it; those of a checkout are what lies in
the package, with `stacks/` and `patches/` where pyproject's `force-include` puts them.
Source: the binary distribution format of packaging.python.org/specifications, read 2026-11-30.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.utils import canonicalize_version

import envsmith
from envsmith.errors import IntegrityError, Problem, SupplyError
from envsmith.tools.files import filesystem, sha256_file
from envsmith.tools.rawzip import RawZip
from envsmith.wheelfile import check_names, in_order, parse_record, record_row

_NAME = "envsmith"
_TAG = "py3-none-any"
#: As pyproject's `force-include` has it: a folder of the checkout to its place in the package.
_CONTENT = {"stacks": f"{_NAME}/content/stacks", "patches": f"{_NAME}/content/patches"}
_WHEEL = f"Wheel-Version: 1.0\nGenerator: {_NAME}\nRoot-Is-Purelib: true\nTag: {_TAG}\n"
_LEFT_OUT = ("__pycache__", "tests")


def make_self_wheel(out_dir: Path) -> Path:
    """Write the wheel of the running envsmith into a folder and return its path.

    Raises:
        SupplyError: `self-not-installed` when it runs from a folder that was never installed, or what `filesystem`
            raises.
        IntegrityError: `self-altered` when an installed file is not what was installed, or as `parse_record`.
    """
    try:
        dist = distribution(_NAME)
    except PackageNotFoundError as error:
        raise SupplyError(
            Problem(
                code="self-not-installed",
                message="envsmith runs from a folder that was never installed, so its own metadata is unknown",
                where=str(_package()),
                hint="install it: `pip install -e .` in the checkout",
            )
        ) from error
    version = canonicalize_version(dist.version, strip_trailing_zero=False)
    info = f"{_NAME}-{version}.dist-info"
    files = dict(_files(dist))
    with filesystem(_package()):
        members = {name: path.read_bytes() for name, path in files.items()}
    members |= {f"{info}/{name}": content for name, content in _metadata(dist)}
    check_names(sorted(members), str(_package()))
    path = out_dir / f"{_NAME}-{version}-{_TAG}.whl"
    with filesystem(path, needed_bytes=sum(map(len, members.values()))):
        out_dir.mkdir(parents=True, exist_ok=True)
        _write(path, info, members)
    return path


def _package() -> Path:
    return Path(envsmith.__file__).absolute().parent


def _write(path: Path, info: str, members: dict[str, bytes]) -> None:
    rows = []
    with RawZip(path) as out:
        for name in in_order(members, info):
            content = members[name]
            out.store(name, content, executable=False)
            rows.append(record_row(name, hashlib.sha256(content).hexdigest(), len(content)))
        record = "".join(f"{row}\n" for row in [*rows, f"{info}/RECORD,,"])
        out.store(f"{info}/RECORD", record.encode(), executable=False)


def _files(dist: Distribution) -> Iterator[tuple[str, Path]]:
    """Yield member name and place of every file of the package."""
    package = _package()
    rows = {
        name: (Path(str(dist.locate_file(name))), row.sha256)
        for name, row in parse_record(dist.read_text("RECORD") or "", "RECORD").items()
        if name.startswith(f"{_NAME}/") and not _is_left_out(name)
    }
    own = rows.get(f"{_NAME}/__init__.py")
    with filesystem(package):
        if own and own[0].is_file() and own[0].samefile(package / "__init__.py"):
            yield from _installed(rows)
            return
        yield from _below(package, _NAME)
        if not (package / "content").is_dir():
            for folder, inside in _CONTENT.items():
                yield from _below(package.parent / folder, inside)


def _installed(rows: Mapping[str, tuple[Path, str | None]]) -> Iterator[tuple[str, Path]]:
    """Yield the rows of RECORD, held against what is there; whatever else lies there was made afterwards."""
    problems = []
    for name, (path, sha256) in sorted(rows.items()):
        if not path.is_file():
            problems.append(_altered(path, "is not there"))
        elif sha256 is not None and sha256_file(path) != sha256:
            problems.append(_altered(path, "has another content than was installed"))
        yield name, path
    if problems:
        raise IntegrityError(*problems)


def _altered(path: Path, said: str) -> Problem:
    hint = "install envsmith again; to bundle a changed one, install its checkout with `pip install -e .`"
    return Problem(
        code="self-altered", message=f"`{path.name}` of the installed envsmith {said}", where=str(path), hint=hint
    )


def _below(folder: Path, place: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of a checkout's folder; hidden ones and what editors leave are nobody's content."""
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        hidden = any(part.startswith(".") for part in name.split("/"))
        if path.is_file() and not hidden and not _is_left_out(f"{place}/{name}"):
            yield f"{place}/{name}", path


def _is_left_out(name: str) -> bool:
    parts = name.split("/")
    return any(part in _LEFT_OUT for part in parts) or name.endswith((".pyc", ".pyo", "~", ".orig", ".rej"))


def _metadata(dist: Distribution) -> Iterator[tuple[str, bytes]]:
    """Yield the files of dist-info that do not depend on how and where it was installed."""
    for name in ("METADATA", "entry_points.txt"):
        yield name, (dist.read_text(name) or "").encode()
    yield "WHEEL", _WHEEL.encode()
    for stated in dist.metadata.get_all("License-File") or ():
        text = dist.read_text(f"licenses/{stated}") or dist.read_text(stated)  # PEP 639, and before it
        if text is not None:
            yield f"licenses/{stated}", text.encode()
