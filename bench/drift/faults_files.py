"""Faults of files: what people, patches, installers and broken disks do to them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

from bench.drift.edits import append, copy_of, flip, flip_quietly, same_times
from bench.drift.fault import Fault, Plant, one_of
from bench.drift.target import Target, choose
from envsmith.manifest import Kind, importable
from tests.support.wheels import record_digest

FAMILY = "files"
_ORPHAN = b"PLANTED = True\n"


def _fault(name: str, what: str, plant: Plant, kinds: frozenset[str], *names: str) -> Fault:
    return Fault(name=name, family=FAMILY, what=what, plant=plant, expect=kinds, names=names)


def edited_module(target: Target, pick: Random) -> Iterator[Fault]:
    """Somebody adds a line to an installed module."""
    entry = choose(pick, target.modules)

    def plant(folder: Path) -> None:
        append(target.path(entry.path), b"\n# planted\n")

    yield _fault("edited-module", f"append to {entry.path}", plant, one_of("files/file-changed"), entry.path)


def edited_keeping_stat(target: Target, pick: Random) -> Iterator[Fault]:
    """An edit that keeps size and mtime."""
    entry = choose(pick, target.modules)
    offset = pick.randrange(entry.size)

    def plant(folder: Path) -> None:
        flip_quietly(target.path(entry.path), offset)

    what = f"flip byte {offset} of {entry.path}, times put back"
    yield _fault("edited-keeping-stat", what, plant, one_of("files/file-changed"), entry.path)


def edited_through_hard_link(target: Target, pick: Random) -> Iterator[Fault]:
    """An edit through another name of the same inode: a cache or a sibling env that shares it."""
    entry = choose(pick, target.modules)
    other = target.directory.parent / "sibling.py"

    def plant(folder: Path) -> None:
        path = target.path(entry.path)
        with same_times(path):
            path.touch()  # brought into the upper layer, so that the link below shares its inode
            os.link(path, other)
            flip(other, entry.size // 2)
        other.unlink()

    what = f"edit {entry.path} through another hard link"
    yield _fault("edited-through-hard-link", what, plant, one_of("files/file-changed"), entry.path)


def edited_with_record(target: Target, pick: Random) -> Iterator[Fault]:
    """An edit with the RECORD row made to fit it."""
    entry = choose(pick, [e for e in target.modules if e.owner in target.metadata])
    record = target.path(target.metadata[entry.owner]) / "RECORD"
    row = entry.path[len(target.site) + 1 :]

    def plant(folder: Path) -> None:
        path = target.path(entry.path)
        append(path, b"# planted\n")
        fitting = f"{row},sha256={record_digest(path.read_bytes())},{path.stat().st_size}"
        lines = record.read_text().splitlines()
        record.write_text("\n".join(fitting if x.startswith(f"{row},") else x for x in lines) + "\n")

    what = f"edit {entry.path} and its row in RECORD"
    yield _fault("edited-with-record", what, plant, one_of("files/file-changed"), entry.path)


def edited_data(target: Target, pick: Random) -> Iterator[Fault]:
    """Data of a package is drift like code: tokenizers, kernels' tables, templates."""
    suffixes = (".json", ".txt", ".yaml", ".yml", ".toml", ".cuh", ".h", ".jinja", ".html", ".css")
    entry = choose(pick, [e for e in target.files if e.path.endswith(suffixes) and e.size > 1])

    def plant(folder: Path) -> None:
        flip_quietly(target.path(entry.path), entry.size // 2)

    yield _fault("edited-data", f"flip a byte of {entry.path}", plant, one_of("files/file-changed"), entry.path)


def edited_installer(target: Target, pick: Random) -> Iterator[Fault]:
    """Another tool claims to have installed a distribution."""
    owner = choose(pick, sorted(target.metadata))
    path = f"{target.metadata[owner]}/INSTALLER"
    if path not in target.entries:
        return

    def plant(folder: Path) -> None:
        target.path(path).write_text("pip\n")

    yield _fault("edited-installer", f"write pip into {path}", plant, one_of("files/file-changed"), path)


def edited_record(target: Target, pick: Random) -> Iterator[Fault]:
    """A row is struck out of RECORD, so that an uninstall leaves the file behind."""
    entry = choose(pick, [e for e in target.modules if e.owner in target.metadata])
    path = f"{target.metadata[entry.owner]}/RECORD"
    row = entry.path[len(target.site) + 1 :]

    def plant(folder: Path) -> None:
        lines = target.path(path).read_text().splitlines()
        target.path(path).write_text("\n".join(x for x in lines if not x.startswith(f"{row},")) + "\n")

    yield _fault("edited-record", f"strike {row} out of {path}", plant, one_of("files/file-changed"), path)


def deleted_module(target: Target, pick: Random) -> Iterator[Fault]:
    """One module is gone."""
    entry = choose(pick, [e for e in target.modules if not e.path.endswith("/__init__.py")])

    def plant(folder: Path) -> None:
        target.path(entry.path).unlink()

    yield _fault("deleted-module", f"delete {entry.path}", plant, one_of("files/file-missing"), entry.path)


def deleted_init_of_subpackage(target: Target, pick: Random) -> Iterator[Fault]:
    """A subpackage becomes an empty namespace, which a top-level import does not show."""
    deep = [e for e in target.modules if e.path.endswith("/__init__.py") and e.path.count("/") > 4]
    entry = choose(pick, deep)

    def plant(folder: Path) -> None:
        target.path(entry.path).unlink()

    kinds = one_of("files/file-missing")
    yield _fault("deleted-init-of-subpackage", f"delete {entry.path}", plant, kinds, entry.path)


def deleted_package(target: Target, pick: Random) -> Iterator[Fault]:
    """The code of a distribution is gone and its metadata stays: every tool that reads metadata is content."""
    name, root = choose(pick, target.packages("package"))

    def plant(folder: Path) -> None:
        shutil.rmtree(target.path(root.path))

    kinds = one_of("files/record-missing-files", "files/file-missing")
    yield _fault("deleted-package", f"delete the folder of {name}, keep its metadata", plant, kinds, root.owner)


def replaced_by_folder(target: Target, pick: Random) -> Iterator[Fault]:
    """A package folder stands where a module was."""
    entry = choose(pick, [e for e in target.modules if not e.path.endswith("/__init__.py")])

    def plant(folder: Path) -> None:
        path = target.path(entry.path)
        path.unlink()
        path.mkdir()
        (path / "x.txt").write_text("planted\n")

    kinds = one_of("files/file-changed", "files/file-missing")
    yield _fault("replaced-by-folder", f"a folder in the place of {entry.path}", plant, kinds, entry.path)


def replaced_by_fifo(target: Target, pick: Random) -> Iterator[Fault]:
    """A pipe stands where a file was: whoever opens it waits for ever."""
    entry = choose(pick, target.modules)

    def plant(folder: Path) -> None:
        target.path(entry.path).unlink()
        os.mkfifo(target.path(entry.path))

    kinds = one_of("files/file-changed")
    yield _fault("replaced-by-fifo", f"a pipe in the place of {entry.path}", plant, kinds, entry.path)


def replaced_by_link(target: Target, pick: Random) -> Iterator[Fault]:
    """A link to an equal file outside, which anybody may change later."""
    entry = choose(pick, target.modules)

    def plant(folder: Path) -> None:
        path = target.path(entry.path)
        copy = copy_of(path, folder)
        path.unlink()
        path.symlink_to(copy)

    kinds = one_of("files/link-changed")
    yield _fault("replaced-by-link", f"a link to an equal copy for {entry.path}", plant, kinds, entry.path)


def folder_behind_link(target: Target, pick: Random) -> Iterator[Fault]:
    """A whole package was moved away and linked back: its files can change outside of the env."""
    name, root = choose(pick, target.packages("package"))

    def plant(folder: Path) -> None:
        shutil.copytree(target.path(root.path), folder / name, symlinks=True)
        shutil.rmtree(target.path(root.path))
        target.path(root.path).symlink_to(folder / name)

    kinds = one_of("files/record-missing-files", "files/file-missing", "files/link-changed", "files/unowned-file")
    yield _fault("folder-behind-link", f"{name} moved away and linked back", plant, kinds, name)


def retargeted_link(target: Target, pick: Random) -> Iterator[Fault]:
    """A link of the env points elsewhere, to something equal."""
    links = [e for e in target.manifest.entries if e.kind is Kind.LINK and not e.path.startswith("src/")]
    entry = choose(pick, [e for e in links if e.path != "bin/python"])

    def plant(folder: Path) -> None:
        path = target.path(entry.path)
        real = path.resolve()
        path.unlink()
        path.symlink_to(real)

    kinds = one_of("files/link-changed")
    yield _fault("retargeted-link", f"{entry.path} points at its target by another way", plant, kinds, entry.path)


def lost_executable_bit(target: Target, pick: Random) -> Iterator[Fault]:
    """A helper program of a package cannot be started any more."""
    programs = [e for e in target.files if e.executable and e.size > 0]
    entry = choose(pick, programs or target.scripts())

    def plant(folder: Path) -> None:
        target.path(entry.path).chmod(0o644)

    kinds = one_of("files/mode-changed")
    yield _fault("lost-executable-bit", f"chmod 644 {entry.path}", plant, kinds, entry.path)


def gained_set_id(target: Target, pick: Random) -> Iterator[Fault]:
    """A script runs with the rights of its owner."""
    entry = choose(pick, target.scripts())

    def plant(folder: Path) -> None:
        target.path(entry.path).chmod(0o4755)

    yield _fault("gained-set-id", f"chmod 4755 {entry.path}", plant, one_of("files/mode-changed"), entry.path)


def orphan_package_shadows_module(target: Target, pick: Random) -> Iterator[Fault]:
    """A folder `x/` wins over `x.py`."""
    name, root = choose(pick, [p for p in target.packages("module") if p[0] not in _ALREADY_LOADED])

    def plant(folder: Path) -> None:
        place = target.path(target.site) / name
        place.mkdir()
        (place / "__init__.py").write_bytes(target.path(root.path).read_bytes() + _ORPHAN)

    kinds = one_of("files/unowned-module", "imports/unexpected-file")
    yield _fault("orphan-package-shadows-module", f"add {name}/ beside {name}.py", plant, kinds, name)


#: Modules that .pth files of this kind of env bring in at start, so that a shadow would break the interpreter itself.
_ALREADY_LOADED = ("_virtualenv", "certifi")


def orphan_extension_shadows_source(target: Target, pick: Random) -> Iterator[Fault]:
    """An extension `x.so` wins over `x.py` in its package."""
    sources = [e for e in target.modules if importable(e.path[len(target.site) + 1 :])]
    sources = [e for e in sources if not e.path.endswith("/__init__.py")]
    small = [e for e in target.libraries if e.size < 4 << 20 and not Path(e.path).name.startswith("lib")]
    entry = choose(pick, sources)
    library = choose(pick, small)
    place = entry.path.removesuffix(".py") + ".abi3.so"

    def plant(folder: Path) -> None:
        shutil.copyfile(target.path(library.path), target.path(place))

    kinds = one_of("files/unowned-module")
    yield _fault("orphan-extension-shadows-source", f"add {place} beside its source", plant, kinds, place)


def orphan_submodule(target: Target, pick: Random) -> Iterator[Fault]:
    """A module that no wheel brought, inside a package: a model file copied in by hand."""
    entry = choose(pick, target.modules)
    place = f"{entry.path.rsplit('/', 1)[0]}/planted_{pick.randrange(10**6)}.py"

    def plant(folder: Path) -> None:
        target.path(place).write_bytes(_ORPHAN)

    yield _fault("orphan-submodule", f"add {place}", plant, one_of("files/unowned-module"), place)


def orphan_folder(target: Target, pick: Random) -> Iterator[Fault]:
    """An empty folder with a name that `find_spec` probes for: a package that seems to be there."""
    absent = [n for n in ("flash_attn", "apex", "deepspeed", "xformers", "bitsandbytes") if n not in target.roots]
    name = choose(pick, absent)

    def plant(folder: Path) -> None:
        (target.path(target.site) / name).mkdir()

    kinds = one_of("files/unowned-module")
    yield _fault("orphan-folder", f"an empty folder {name}", plant, kinds, f"{target.site}/{name}")


def orphan_data(target: Target, pick: Random) -> Iterator[Fault]:
    """A data file that no wheel brought."""
    entry = choose(pick, target.modules)
    place = f"{entry.path.rsplit('/', 1)[0]}/planted_{pick.randrange(10**6)}.json"

    def plant(folder: Path) -> None:
        target.path(place).write_text("{}")

    yield _fault("orphan-data", f"add {place}", plant, one_of("files/unowned-file"), Path(place).name)


def orphan_program(target: Target, pick: Random) -> Iterator[Fault]:
    """A program in the env's bin that hides one of the system."""
    name = choose(pick, ["git", "gcc", "nvcc", "ls", "srun", "ninja-build"])
    if f"bin/{name}" in target.entries:
        return

    def plant(folder: Path) -> None:
        (target.bin / name).write_text("#!/bin/sh\nexit 0\n")
        (target.bin / name).chmod(0o755)

    yield _fault("orphan-program", f"add bin/{name}", plant, one_of("files/unowned-file"), f"bin/{name}")


def orphan_pth(target: Target, pick: Random) -> Iterator[Fault]:
    """A .pth file that nobody owns adds a folder to sys.path."""
    name = f"planted_{pick.randrange(10**6)}.pth"

    def plant(folder: Path) -> None:
        (target.path(target.site) / name).write_text(f"{folder}\n")

    kinds = one_of("files/unowned-pth", "hooks/unowned-pth")
    yield _fault("orphan-pth", f"add {name} with a folder outside", plant, kinds, name)


def truncated_library(target: Target, pick: Random) -> Iterator[Fault]:
    """A disk that was full, or a copy that was cut."""
    entry = choose(pick, target.libraries)

    def plant(folder: Path) -> None:
        path = target.path(entry.path)
        with same_times(path):
            os.truncate(path, entry.size // 2)

    kinds = one_of("files/file-changed")
    yield _fault("truncated-library", f"cut {entry.path} in half", plant, kinds, entry.path)


def leftover_of_pip(target: Target, pick: Random) -> Iterator[Fault]:
    """What pip leaves when it is killed while it replaces a package."""
    small = [p for p in target.packages("package") if sum(e.size for e in target.owned[p[1].owner]) < 8 << 20]
    name, root = choose(pick, small)
    left = f"{target.site}/~{name[1:]}"

    def plant(folder: Path) -> None:
        shutil.copytree(target.path(root.path), target.path(left))

    yield _fault("leftover-of-pip", f"a copy of {name} as {left}", plant, one_of("files/leftover"), left)


def deleted_metadata(target: Target, pick: Random) -> Iterator[Fault]:
    """A distribution without its .dist-info: no tool knows it any more, and imports still work."""
    owner = choose(pick, sorted(target.metadata))
    name = owner.split("==")[0]

    def plant(folder: Path) -> None:
        shutil.rmtree(target.path(target.metadata[owner]))

    kinds = one_of("files/half-env", "conflicts/distribution-missing")
    yield _fault("deleted-metadata", f"delete {target.metadata[owner]}", plant, kinds, name)


def odd_name(target: Target, pick: Random) -> Iterator[Fault]:
    """A module whose name is no text: printing it must neither fail nor forge lines."""

    def plant(folder: Path) -> None:
        place = os.fsencode(target.path(target.site)) + b"/planted\n\xffodd.py"
        with open(place, "wb") as file:  # noqa: PTH123 - a name in bytes
            file.write(_ORPHAN)

    yield _fault("odd-name", "a module with a newline in its name", plant, one_of("files/unowned-module",
                 "files/unowned-file"), "odd.py")  # fmt: skip


GENERATORS = (
    edited_module, edited_keeping_stat, edited_through_hard_link, edited_with_record, edited_data, edited_installer,
    edited_record, deleted_module, deleted_init_of_subpackage, deleted_package, replaced_by_folder, replaced_by_fifo,
    replaced_by_link, folder_behind_link, retargeted_link, lost_executable_bit, gained_set_id,
    orphan_package_shadows_module, orphan_extension_shadows_source, orphan_submodule, orphan_folder, orphan_data,
    orphan_program, orphan_pth, truncated_library, leftover_of_pip, deleted_metadata, odd_name,
)  # fmt: skip
