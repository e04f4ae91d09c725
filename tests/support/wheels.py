"""Real wheels and sdists made in milliseconds: right RECORDs, the same bytes every time."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import re
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

Content = bytes | str
Backend = Literal["intree", "setuptools"]


def make_wheel(
    directory: Path,
    name: str,
    version: str,
    files: Mapping[str, Content] | None = None,
    *,
    requires: Iterable[str] = (),
    tag: str = "py3-none-any",
    entry_points: Mapping[str, Mapping[str, str]] | None = None,
    build: str | None = None,
    metadata: Iterable[str] = (),
    executable: Iterable[str] = (),
    compress: bool = True,
) -> Path:
    """Write a wheel and return its path.

    `files` are the members apart from .dist-info (default: an empty package of that name); `entry_points` is
    {group: {name: "mod:attr"}}; `metadata` are more header lines, such as "Provides-Extra: math".
    """
    stem = f"{wheel_name(name)}-{version}"
    if files is None:
        files = {f"{wheel_name(name).lower()}/__init__.py": f"__version__ = {version!r}\n"}
    members = {path: to_bytes(content) for path, content in files.items()}
    members |= dist_info(stem, name, version, requires, tag, entry_points, build, metadata)
    members[f"{stem}.dist-info/RECORD"] = record(members, f"{stem}.dist-info/RECORD")
    tags = f"{build}-{tag}" if build else tag
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{stem}-{tags}.whl"
    runnable = set(executable)
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            info = zipfile.ZipInfo(member, date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system = 3
            info.external_attr = (0o100755 if member in runnable else 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
            archive.writestr(info, content)
    return path


def dist_info(
    stem: str,
    name: str,
    version: str,
    requires: Iterable[str],
    tag: str,
    entry_points: Mapping[str, Mapping[str, str]] | None,
    build: str | None,
    metadata: Iterable[str],
) -> dict[str, bytes]:
    """Return the .dist-info members but RECORD."""
    headers = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    headers += [f"Requires-Dist: {requirement}" for requirement in requires]
    headers += list(metadata)
    pure = "true" if tag.endswith("-any") else "false"
    wheel = ["Wheel-Version: 1.0", "Generator: envsmith-tests", f"Root-Is-Purelib: {pure}"]
    pythons, abis, platforms = tag.split("-")
    wheel += [
        f"Tag: {py}-{abi}-{p}" for py in pythons.split(".") for abi in abis.split(".") for p in platforms.split(".")
    ]
    wheel += [f"Build: {build}"] if build else []
    members = {
        f"{stem}.dist-info/METADATA": ("\n".join(headers) + "\n").encode(),
        f"{stem}.dist-info/WHEEL": ("\n".join(wheel) + "\n").encode(),
    }
    if entry_points:
        lines = []
        for group, targets in entry_points.items():
            lines += [f"[{group}]", *(f"{key} = {target}" for key, target in targets.items()), ""]
        members[f"{stem}.dist-info/entry_points.txt"] = "\n".join(lines).encode()
    return members


def record(members: Mapping[str, bytes], own_path: str) -> bytes:
    """Return a RECORD of these members, with its own row."""
    rows = [f"{path},sha256={record_digest(content)},{len(content)}" for path, content in members.items()]
    return ("\n".join([*rows, f"{own_path},,"]) + "\n").encode()


def record_digest(content: bytes) -> str:
    """Return a sha256 the way RECORD writes it."""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def wheel_name(name: str) -> str:
    """Return a name as a wheel's file name spells it."""
    return re.sub(r"[-_.]+", "_", name)


def to_bytes(content: Content) -> bytes:
    return content.encode() if isinstance(content, str) else content


def make_sdist(
    directory: Path,
    name: str,
    version: str,
    files: Mapping[str, Content] | None = None,
    *,
    requires: Iterable[str] = (),
    backend: Backend = "intree",
    build_requires: Iterable[str] | None = None,
) -> Path:
    """Write an sdist (tar.gz, the same bytes every time) and return its path."""
    stem = f"{wheel_name(name)}-{version}"
    tree = project_files(name, version, files, requires=requires, backend=backend, build_requires=build_requires)
    tree["PKG-INFO"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, content in sorted(tree.items()):
            info = tarfile.TarInfo(f"{stem}/{path}")
            info.size, info.mode = len(content), 0o644
            archive.addfile(info, io.BytesIO(content))
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"{stem}.tar.gz"
    target.write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    return target


def project_files(
    name: str,
    version: str,
    files: Mapping[str, Content] | None = None,
    *,
    requires: Iterable[str] = (),
    extras: Mapping[str, Iterable[str]] | None = None,
    backend: Backend = "intree",
    build_requires: Iterable[str] | None = None,
) -> dict[str, bytes]:
    """Return the files of a source tree that PEP 517 can build: what an sdist or a git repository holds.

    "intree" carries its own backend and needs nothing at all; "setuptools" needs setuptools.
    """
    package = wheel_name(name).lower()
    tree = {path: to_bytes(content) for path, content in (files or {f"{package}/__init__.py": ""}).items()}
    needs = list(build_requires) if build_requires is not None else ["setuptools"] if backend == "setuptools" else []
    lines = ["[build-system]", f"requires = {_toml(needs)}"]
    if backend == "intree":
        lines += ['build-backend = "tree_backend"', 'backend-path = ["."]']
        tree["tree_backend.py"] = _BACKEND.encode()
    else:
        lines += ['build-backend = "setuptools.build_meta"', "[tool.setuptools]"]
        lines += [f"packages = {_toml(sorted({path.split('/')[0] for path in tree if '/' in path}))}"]
    lines += ["[project]", f'name = "{name}"', f'version = "{version}"', f"dependencies = {_toml(requires)}"]
    if extras:
        lines += ["[project.optional-dependencies]", *(f"{key} = {_toml(value)}" for key, value in extras.items())]
    tree.setdefault("pyproject.toml", ("\n".join(lines) + "\n").encode())
    return tree


def _toml(values: Iterable[str]) -> str:
    return "[" + ", ".join("'" + value.replace("'", '"') + "'" for value in values) + "]"


#: A PEP 517/660 backend in the tree itself. It reads the few pyproject keys that `project_files` writes with
#: regular expressions, so that it runs on any Python without tomllib.
_BACKEND = r"""
import base64, hashlib, os, re, zipfile

def _project():
    text = open("pyproject.toml", encoding="utf-8").read()
    project = text[text.index("[project]"):]
    one = lambda key: re.search(r'^%s = "(.*)"$' % key, project, re.M).group(1)
    many = lambda line: re.findall(r"'([^']*)'", line)
    requires = many(re.search(r"^dependencies = (.*)$", project, re.M).group(1))
    extras = {}
    if "[project.optional-dependencies]" in project:
        for line in project.split("[project.optional-dependencies]\n")[1].splitlines():
            key, _, values = line.partition(" = ")
            extras[key] = many(values)
    return one("name"), one("version"), requires, extras

def _metadata():
    name, version, requires, extras = _project()
    lines = ["Metadata-Version: 2.1", "Name: " + name, "Version: " + version]
    lines += ["Requires-Dist: " + r for r in requires]
    for extra, needs in extras.items():
        lines.append("Provides-Extra: " + extra)
        for need in needs:
            need, _, marker = need.partition(";")
            marker = "(%s) and " % marker.strip() if marker else ""
            lines.append("Requires-Dist: %s; %sextra == '%s'" % (need, marker, extra))
    return "\n".join(lines) + "\n"

def _stem():
    name, version, _, _ = _project()
    return re.sub(r"[-_.]+", "_", name) + "-" + version

def _tree():
    for folder, folders, names in os.walk("."):
        folders[:] = sorted(f for f in folders if f not in ("build", "__pycache__") and not f.startswith("."))
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), ".")
            if "/" in path:
                yield path, open(path, "rb").read()

def _write(directory, members):
    stem = _stem()
    info = stem + ".dist-info/"
    members = dict(members)
    if _scripts():
        members[info + "entry_points.txt"] = _scripts()
    members[info + "METADATA"] = _metadata().encode()
    members[info + "WHEEL"] = b"Wheel-Version: 1.0\nGenerator: tree_backend\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    digest = lambda data: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    rows = ["%s,sha256=%s,%d" % (path, digest(data), len(data)) for path, data in members.items()]
    members[info + "RECORD"] = ("\n".join(rows + [info + "RECORD,,"]) + "\n").encode()
    filename = stem + "-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, filename), "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in members.items():
            member = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            member.external_attr = 0o100644 << 16
            archive.writestr(member, data)
    return filename

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return _write(wheel_directory, _tree())

def _scripts():
    text = open("pyproject.toml", encoding="utf-8").read()
    lines = text.partition("[project.scripts]\n")[2].splitlines()
    rows = [line.replace('"', "") for line in lines if " = " in line]
    return ("[console_scripts]\n" + "\n".join(rows) + "\n").encode() if rows else None

def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    hook = "__editable__." + _stem() + ".pth"
    return _write(wheel_directory, [(hook, (os.getcwd() + "\n").encode())])

def _prepare(metadata_directory, config_settings=None):
    folder = _stem() + ".dist-info"
    os.makedirs(os.path.join(metadata_directory, folder), exist_ok=True)
    with open(os.path.join(metadata_directory, folder, "METADATA"), "w", encoding="utf-8") as stream:
        stream.write(_metadata())
    return folder

prepare_metadata_for_build_wheel = prepare_metadata_for_build_editable = _prepare
"""
