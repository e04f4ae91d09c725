"""The libcuda files of a host: by what their names say, that of the kernel's driver, and a private folder for it.

Sources: the .run installer and every distribution name the file `libcuda.so.<version of the driver>` and put links
named `libcuda.so.1` and `libcuda.so` beside it; ld.so(8) on LD_LIBRARY_PATH (read 2026-11-30).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from envsmith.launch import DriverPlaces
from envsmith.tools.elf import machine_of
from envsmith.tools.files import filesystem, remove_tree
from envsmith.tools.hostlibs import cache_entries
from envsmith.tools.procfs import kernel_driver


@dataclass(frozen=True, kw_only=True, slots=True)
class HostDriver:
    """The driver that the kernel has loaded, and the libcuda that came with it."""

    version: str
    """`580.159.04`."""
    library: str | None
    """The file itself, every link followed; None where none of that version was found."""
    looked: tuple[str, ...]
    """Folders that were looked into, as they were named."""
    others: tuple[str, ...]
    """Files that could be loaded by libcuda's names and are not this one."""


def libcuda_versions(folders: Iterable[str]) -> dict[str, str]:
    """The version of the libcuda.so.1 in each folder that has one: it is a link to `libcuda.so.580.95.05`."""
    found = {}
    for folder in dict.fromkeys(folders):
        name = os.path.basename(os.path.realpath(f"{folder}/libcuda.so.1"))  # noqa: PTH119
        match = re.fullmatch(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)*)", name)
        if match:
            found[folder] = match[1]
    return found


# --- the driver's own ---


def host_driver(library_path: str, places: DriverPlaces) -> HostDriver | None:
    """Find the libcuda of the kernel's driver; None where the kernel has no NVIDIA driver.

    `library_path` is the LD_LIBRARY_PATH that a process would get. A file counts that is named by the driver's version
    once its links are followed, else one with no version in its name that holds it as text; never a stub, never one
    for another kind of processor.
    """
    version = driver_version(places)
    if version is None:
        return None
    folders = tuple(_folders(library_path, places))
    found = tuple(dict.fromkeys(_libraries(version, folders)))
    named = (file for file in found if os.path.basename(file) == f"libcuda.so.{version}")  # noqa: PTH119
    library = next(named, None) or next((file for file in found if _holds(file, version)), None)
    return HostDriver(
        version=version, library=library, looked=folders, others=tuple(file for file in found if file != library)
    )


def driver_version(places: DriverPlaces) -> str | None:
    """The version of the kernel's driver, by the first of the files that names one."""
    for file in map(Path, places.versions):
        if (version := kernel_driver(file)) is not None:
            return version
        with contextlib.suppress(OSError, ValueError):
            text = file.read_text(encoding="ascii")[:64].strip()  # /sys has the bare version
            if re.fullmatch(r"\d+\.\d+(\.\d+)*", text):
                return text
    return None


def _folders(library_path: str, places: DriverPlaces) -> Iterator[str]:
    cached = cache_entries(Path(places.cache)) if places.cache else ()
    seen = [os.path.dirname(file) for name, file in cached if name.startswith("libcuda.so")]  # noqa: PTH120
    elements = [part for part in library_path.replace(";", ":").split(":") if part.startswith("/")]
    for folder in dict.fromkeys((*seen, *elements, *places.folders)):
        if os.path.isdir(folder):  # noqa: PTH112
            yield folder


def _libraries(version: str, folders: Iterable[str]) -> Iterator[str]:
    """Every file that could be loaded as libcuda by our kind of process, links followed."""
    ours = machine_of(sys.executable) or machine_of("/proc/self/exe")
    for folder in folders:
        for name in (f"libcuda.so.{version}", "libcuda.so.1", "libcuda.so"):
            file = os.path.realpath(f"{folder}/{name}")
            stub = "stubs" in (*Path(folder).parts, *Path(file).parts)
            if not stub and os.path.isfile(file) and machine_of(file) == ours:  # noqa: PTH113
                yield file


def _holds(file: str, version: str) -> bool:
    """Whether a file without a version in its name is of this one: the driver's libraries hold it as text."""
    if os.path.basename(file) not in ("libcuda.so", "libcuda.so.1"):  # noqa: PTH119
        return False
    wanted = re.compile(rb"(?<![0-9.])" + re.escape(version.encode()) + rb"(?![0-9.])")
    try:
        with open(file, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:  # noqa: PTH123
            return wanted.search(data) is not None
    except (OSError, ValueError):
        return False


# --- the private folder ---


def link_folder(parent: Path, name: str, links: Mapping[str, str]) -> Path:
    """Make or mend a folder of ours in `parent` that holds exactly these links, and return it.

    Mode 0700. What another user, or a link, has at that name is never used: then the name gets the user's id, then a
    random end. Links come whole by renames, so processes may do this at once; anything else in the folder goes.

    Raises:
        SupplyError: what `filesystem` makes of a refusal.
    """
    with filesystem(parent):
        for folder in (parent / name, parent / f"{name}.{os.geteuid()}"):
            if _holds_exactly(folder, links) or _made(folder, links):
                return folder
        folder = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=parent))
        _made(folder, links)
        return folder


def _is_ours(folder: Path) -> bool:
    try:
        seen = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid()


def _holds_exactly(folder: Path, links: Mapping[str, str]) -> bool:
    """Whether nothing is left to do: what every start but the first finds."""
    if not _is_ours(folder) or stat.S_IMODE(folder.lstat().st_mode) != 0o700:
        return False
    return {item.name for item in folder.iterdir()} == {*links} and not _wrong(folder, links)


def _wrong(folder: Path, links: Mapping[str, str]) -> list[str]:
    def target(name: str) -> str | None:
        try:
            return str((folder / name).readlink())
        except OSError:
            return None

    return [name for name, wanted in links.items() if target(name) != wanted]


def _made(folder: Path, links: Mapping[str, str]) -> bool:
    """Bring the folder into that state; False where the name is not ours to use."""
    staging = Path(tempfile.mkdtemp(prefix=".driver-", dir=folder.parent))
    try:
        for name, target in links.items():
            (staging / name).symlink_to(target)
        with contextlib.suppress(OSError):  # a folder that stands is mended; another's, or a link, is left alone
            staging.rename(folder)
        if not _is_ours(folder):
            return False
        folder.chmod(0o700)
        for item in [item for item in folder.iterdir() if item.name not in links]:
            _remove(item)
        for name in _wrong(folder, links):
            if (folder / name).is_dir() and not (folder / name).is_symlink():
                _remove(folder / name)
            (staging / name).replace(folder / name)
        return True
    finally:
        remove_tree(staging)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)
