"""Packs the prefix of an interpreter into a plain tar whose bytes are a function of its files alone.

What a venv needs comes along: executable, libpython, standard library, ensurepip, headers. Installed packages, tests,
bytecode, static libraries and scripts with a fixed first line do not.
Source of the form: POSIX.1-2017, pax, "ustar interchange format".
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import re
import stat
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from envsmith.errors import HostError, Problem
from envsmith.native import newest
from envsmith.tools.elf import MAGIC, read_elf
from envsmith.tools.files import filesystem, fsync_folder, temporary_beside
from envsmith.tools.interpreter import Interpreter, find_interpreter
from envsmith.tools.searchpath import DoesNotFitError, made_relative, without_folders

#: 1980-01-02: zip archives hold no earlier date, in any time zone, and tools make them of a standard library.
MTIME = 315_619_200
#: What glibc itself brings. Source: glibc 2.36, `Makeconfig` and the `lib` folder of an installation, 2026-11-30.
_GLIBC = re.compile(r"(ld-linux.*|lib(c|m|pthread|dl|rt|util|resolv|anl|mvec|BrokenLocale))\.so\.\d+")
#: Folders of the standard library that nothing at run time needs.
_UNUSED = ("test", "idlelib", "turtledemo", "site-packages", "dist-packages")
_LIBRARIES = ("lib", "lib64")
_TCL = re.compile(r"(tcl|tk|itcl|tdbc|thread)\d[\d.]*")
_RECORD_BYTES = 10_240


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """An interpreter in an archive."""

    path: Path
    sha256: str
    size: int
    version: str
    """Such as 3.11.7."""
    arch: str
    glibc: str | None
    """The oldest glibc that every file of it runs with."""
    digest: str
    """What `interpreter_digest` says of it once it is unpacked."""
    needs: tuple[str, ...]
    """Libraries that its files load and that neither it nor glibc brings, such as `libssl.so.3`."""
    rewritten: tuple[str, ...]
    """Files that searched for libraries at a fixed place and now do beside themselves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Member:
    name: str
    mode: int = 0o755
    content: bytes | None = None
    target: str | None = None
    """Of a link; a folder has neither."""


@dataclass(kw_only=True, slots=True)
class _Tree:
    """A prefix being looked through."""

    prefix: Path
    python: Interpreter
    minor: str
    prefixes: tuple[str, ...]
    members: dict[str, _Member] = field(default_factory=dict)
    rewritten: list[str] = field(default_factory=list)
    needed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Sonames by the file that loads them."""
    brought: set[str] = field(default_factory=set)
    glibc: set[str] = field(default_factory=set)


def pack(prefix: Path, out: Path) -> Packed:
    """Write the interpreter that lies below `prefix` into the archive `out`.

    A folder in which its files search for libraries is made relative to them where it lies below the prefix.

    Raises:
        SupplyError: `no-interpreter` when it does not run, or what `filesystem` raises.
        HostError: `interpreter-not-relocatable` when a file of it cannot be packed.
    """
    with filesystem(prefix):
        tree = _looked_through(prefix)
    needs = {name for names in tree.needed.values() for name in names} - tree.brought
    with filesystem(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        sha256, size = _write(out, tuple(tree.members[name] for name in sorted(tree.members)))
    return Packed(
        path=out,
        sha256=sha256,
        size=size,
        version=tree.python.version,
        arch=tree.python.arch,
        glibc=(newest(tree.glibc) or "").removeprefix("GLIBC_") or None,
        digest=_digest(tree),
        needs=tuple(sorted(name for name in needs if not _GLIBC.fullmatch(name))),
        rewritten=tuple(sorted(tree.rewritten)),
    )


def minor_below(prefix: Path) -> str | None:
    """Return the version of the standard library below a prefix, such as 3.11; that of `bin/python3` among several."""
    found = {
        path.parent.name.removeprefix("python")
        for folder in _LIBRARIES
        for path in prefix.glob(f"{folder}/python3.*/os.py")
        if (prefix / "bin" / path.parent.name).is_file()
    }
    named = (prefix / "bin" / "python3").resolve().name.removeprefix("python")
    return named if named in found else max(found, key=lambda one: int(one.partition(".")[2]), default=None)


def not_relocatable(said: str, place: Path, actual: str | None = None) -> HostError:
    """Build the error for an interpreter that must stay where it is."""
    return HostError(
        Problem(
            code="interpreter-not-relocatable",
            message=f"this Python cannot be carried to another machine: {said}",
            where=str(place),
            actual=actual,
            hint="name another one: a build of uv's (`uv python install`) or an archive of one",
        )
    )


def _looked_through(prefix: Path) -> _Tree:
    minor = minor_below(prefix)
    if minor is None:
        raise not_relocatable("there is no `bin/python3.N` with its `lib/python3.N`", prefix)
    executable = prefix / "bin" / f"python{minor}"
    named = {"ENVSMITH_PYTHON": str(executable)}
    python = find_interpreter(minor, named, system=Path("/nonexistent"))
    places = (str(prefix.absolute()), str(prefix.resolve()), str(python.base), str(python.base.resolve()))
    tree = _Tree(prefix=prefix, python=python, minor=minor, prefixes=tuple(dict.fromkeys(places)))
    _add_file(tree, f"bin/python{minor}", executable)
    for name in ("python3", "python"):
        tree.members[f"bin/{name}"] = _Member(name=f"bin/{name}", mode=0o777, target=f"python{minor}")
    for name in _names(tree):
        _add(tree, name)
    _make_relative(tree)
    for name in list(tree.members):
        for parent in parents(name):
            tree.members.setdefault(parent, _Member(name=parent))
    return tree


def parents(name: str) -> list[str]:
    """Return the folders above a member."""
    parts = name.split("/")
    return ["/".join(parts[:n]) for n in range(1, len(parts))]


def _names(tree: _Tree) -> Iterator[str]:
    """Yield what of the prefix comes along; a folder that a link leads to is named as one thing."""
    for top in (*_LIBRARIES, "include"):
        place = tree.prefix / top
        if place.is_symlink():
            yield top
            continue
        for folder, folders, files in os.walk(place):
            here = Path(folder).relative_to(tree.prefix).as_posix()
            kept = [name for name in folders if _comes_along(f"{here}/{name}", tree.minor)]
            links = [name for name in kept if (Path(folder) / name).is_symlink()]
            folders[:] = [name for name in kept if name not in links]
            yield from (f"{here}/{name}" for name in links)
            yield from (f"{here}/{name}" for name in files if _comes_along(f"{here}/{name}", tree.minor))
            if here.endswith(f"/python{tree.minor}") and here.startswith("lib"):
                yield f"{here}/site-packages"


def _comes_along(name: str, minor: str) -> bool:
    parts = name.split("/")
    python = f"python{minor}"
    if parts[0] == "include":
        return parts[1].startswith(python)
    if len(parts) == 2:
        other = re.match(r"libpython3\.(\d+)", parts[1])
        library = ".so" in parts[1] and not (other and f"3.{other[1]}" != minor)
        return library or parts[1] == python or bool(_TCL.fullmatch(parts[1]))
    unused = parts[1] == python and parts[2] in _UNUSED
    return not unused and "__pycache__" not in parts and not name.endswith((".pyc", ".pyo", ".a", ".o"))


def _add(tree: _Tree, name: str) -> None:
    path = tree.prefix / name
    if name.endswith(f"/python{tree.minor}/site-packages"):
        tree.members[name] = _Member(name=name)
    elif not path.is_symlink():
        _add_file(tree, name, path)
    elif (target := _inside(tree, path)) is not None:
        relative = posixpath.relpath(target, posixpath.dirname(name))
        tree.members[name] = _Member(name=name, mode=0o777, target=relative)
    elif path.is_file():
        _add_file(tree, name, path)
    elif path.exists():
        raise not_relocatable(f"`{name}` is a link out of it, to `{path.resolve()}`", tree.prefix)
    # What is left leads to nothing, here as there.


def _inside(tree: _Tree, link: Path) -> str | None:
    """Return where a link leads when that comes along too, relative to the prefix."""
    real, prefix = link.resolve(), tree.prefix.resolve()
    if not real.exists() or prefix not in real.parents:
        return None
    target = real.relative_to(prefix).as_posix()
    whole = target in _LIBRARIES or target == f"bin/python{tree.minor}"
    below = target.split("/")[0] in (*_LIBRARIES, "include") and target.count("/") and _comes_along(target, tree.minor)
    return target if whole or below else None


def _add_file(tree: _Tree, name: str, path: Path) -> None:
    info = path.stat()
    if not stat.S_ISREG(info.st_mode):
        raise not_relocatable(f"`{name}` is neither a file nor a folder", tree.prefix)
    content = path.read_bytes()
    mode = 0o755 if info.st_mode & 0o111 else 0o644
    tree.members[name] = _Member(name=name, mode=mode, content=content)
    read = read_elf(path) if content[:4] == MAGIC else None
    if read is not None:
        tree.needed[name] = read.elf.needed
        tree.brought |= {posixpath.basename(name), *((read.elf.soname,) if read.elf.soname else ())}
        tree.glibc |= {need.version for need in read.elf.needs if need.version.startswith("GLIBC_2")}


def _make_relative(tree: _Tree) -> None:
    for name, needed in tree.needed.items():
        member = tree.members[name]
        assert member.content is not None
        try:
            content = made_relative(member.content, posixpath.dirname(name), tree.prefixes)
        except DoesNotFitError as error:
            if tree.brought.isdisjoint(needed):
                continue  # it finds nothing of ours there
            said = f"`{name}` searches for libraries in `{error}`, too short a path to be made relative"
            raise not_relocatable(said, tree.prefix) from error
        if content != member.content:
            tree.members[name] = _Member(name=name, mode=member.mode, content=content)
            tree.rewritten.append(name)


def _digest(tree: _Tree) -> str:
    """Compute what `interpreter_digest` will say of the unpacked one."""
    names = [f"bin/python{tree.minor}"]
    if tree.python.libpython:
        library = tree.python.libpython.resolve()
        names += [name for name in tree.needed if (tree.prefix / name).resolve() == library]
    digest = hashlib.sha256()
    for name in names:
        digest.update(hashlib.sha256(without_folders(tree.members[name].content or b"")).hexdigest().encode())
    return digest.hexdigest()


def _write(out: Path, members: Sequence[_Member]) -> tuple[str, int]:
    with temporary_beside(out) as (descriptor, temporary):
        with open(descriptor, "wb", closefd=False) as stream:
            sha256, size = _written(stream, members)
        os.fchmod(descriptor, 0o644)
        os.fsync(descriptor)
        temporary.replace(out)
    fsync_folder(out.parent)
    return sha256, size


def _written(stream: IO[bytes], members: Sequence[_Member]) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0

    def put(data: bytes) -> None:
        nonlocal size
        stream.write(data)
        digest.update(data)
        size += len(data)

    for member in members:
        put(_header(member))
        if member.content is not None:
            put(member.content)
            put(bytes(-len(member.content) % tarfile.BLOCKSIZE))
    put(bytes(2 * tarfile.BLOCKSIZE))
    put(bytes(-size % _RECORD_BYTES))
    return digest.hexdigest(), size


def _header(member: _Member) -> bytes:
    info = tarfile.TarInfo(member.name)
    info.mode, info.mtime = member.mode, MTIME
    if member.target is not None:
        info.type, info.linkname = tarfile.SYMTYPE, member.target
    elif member.content is None:
        info.type = tarfile.DIRTYPE
    else:
        info.size = len(member.content)
    try:
        return info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
    except ValueError:  # a name that does not fit
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
