"""Faults of the interpreter below the env: nothing in the env's own folder changes, or only its scaffolding."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from bench.drift.edits import append, flip_quietly, rewrite, same_times
from bench.drift.fault import Fault, Plant, one_of
from bench.drift.faults_pyc import write_bytecode
from bench.drift.target import Target, choose, other_pythons

FAMILY = "interpreter"
_LINK = ("files/link-changed", "interpreter/python-link-changed")
_CHANGED = one_of("interpreter/stdlib-changed")


def _fault(name: str, what: str, plant: Plant, kinds: frozenset[str], *names: str) -> Fault:
    return Fault(name=name, family=FAMILY, what=what, plant=plant, expect=kinds, names=names)


def other_python(target: Target, pick: Random) -> Iterator[Fault]:
    """`bin/python` leads to another version: the env looks empty to every tool that asks it."""
    other = choose(pick, [path for path in other_pythons(target) if path.name != f"python{target.version}"])

    def plant(folder: Path) -> None:
        target.python.unlink()
        target.python.symlink_to(other)

    kinds = one_of(*_LINK)
    yield _fault("other-python", f"bin/python is {other}", plant, kinds, "bin/python", str(other))


def other_build(target: Target, pick: Random) -> Iterator[Fault]:
    """`bin/python` leads to another build of the same minor version."""
    other = choose(pick, [path for path in other_pythons(target) if path.name == f"python{target.version}"])

    def plant(folder: Path) -> None:
        target.python.unlink()
        target.python.symlink_to(other)

    kinds = one_of(*_LINK)
    yield _fault("other-build", f"bin/python is {other}", plant, kinds, "bin/python", str(other))


def python_is_a_wrapper(target: Target, pick: Random) -> Iterator[Fault]:
    """`bin/python` became a script that changes the environment and goes on."""
    real = target.python.resolve()

    def plant(folder: Path) -> None:
        target.python.unlink()
        target.python.write_text(f'#!/bin/sh\nPLANTED=1 exec {real} "$@"\n')
        target.python.chmod(0o755)

    yield _fault(
        "python-is-a-wrapper",
        "bin/python is a shell script",
        plant,
        one_of(*_LINK),
        "bin/python",
    )


def opened_to_system(target: Target, pick: Random) -> Iterator[Fault]:
    """`include-system-site-packages` lets the base's packages in."""

    def plant(folder: Path) -> None:
        old, new = b"include-system-site-packages = false", b"include-system-site-packages = true"
        rewrite(target.path("pyvenv.cfg"), lambda text: text.replace(old, new))

    yield _fault(
        "opened-to-system",
        "pyvenv.cfg lets the system in",
        plant,
        one_of("files/file-changed", "interpreter/pyvenv-changed"),
        "pyvenv.cfg",
    )


def _sources(target: Target) -> list[Path]:
    """Modules of the standard library, tests and installers apart."""
    skipped = {"test", "tests", "site-packages", "__pycache__", "idlelib", "lib2to3", "ensurepip"}
    found = [path for path in sorted(target.stdlib.rglob("*.py")) if not skipped & set(path.parts)]
    return [path for path in found if path.stat().st_size > 256]


def library_edited(target: Target, pick: Random) -> Iterator[Fault]:
    """One module of the standard library was edited."""
    path = choose(pick, _sources(target))

    def plant(folder: Path) -> None:
        append(path, b"\n# planted\n")

    yield _fault("library-edited", f"append to {path}", plant, _CHANGED, path.name)


def library_edited_quietly(target: Target, pick: Random) -> Iterator[Fault]:
    """The same, size and times kept: a letter in a comment."""
    paths = [path for path in _sources(target) if b"# " in path.read_bytes()]
    path = choose(pick, paths)

    def plant(folder: Path) -> None:
        data = path.read_bytes()
        at = data.index(b"# ") + 1
        with same_times(path), path.open("r+b") as file:
            file.seek(at)
            file.write(b"~")

    yield _fault("library-edited-quietly", f"one character of {path}", plant, _CHANGED, path.name)


def library_module_added(target: Target, pick: Random) -> Iterator[Fault]:
    """A module in the standard library wins over every package of the env with that name."""
    roots = [name for name, root in target.packages("package", "module") if not (target.stdlib / name).exists()]
    name = choose(pick, roots)

    def plant(folder: Path) -> None:
        (target.stdlib / f"{name}.py").write_text("PLANTED = True\n")

    kinds = one_of("interpreter/stdlib-extra")
    yield _fault("library-module-added", f"add {target.stdlib}/{name}.py", plant, kinds, f"{name}.py")


def library_module_gone(target: Target, pick: Random) -> Iterator[Fault]:
    """A module of the standard library was deleted, one that start-up does not need."""
    names = ("turtle.py", "this.py", "antigravity.py", "wave.py", "mailbox.py", "cgitb.py", "chunk.py", "aifc.py")
    path = choose(pick, [target.stdlib / name for name in names if (target.stdlib / name).is_file()])

    def plant(folder: Path) -> None:
        path.unlink()

    yield _fault("library-module-gone", f"delete {path}", plant, one_of("interpreter/stdlib-missing"), path.name)


def library_extension_swapped(target: Target, pick: Random) -> Iterator[Fault]:
    """One byte in an extension of the standard library."""
    names = ("_crypt", "audioop", "nis", "ossaudiodev", "_xxtestfuzz", "xxlimited", "_testcapi", "_testbuffer", "spwd")
    found = [p for name in names for p in sorted((target.stdlib / "lib-dynload").glob(f"{name}.*"))]
    path = choose(pick, found)

    def plant(folder: Path) -> None:
        flip_quietly(path, path.stat().st_size // 2)

    yield _fault("library-extension-swapped", f"one byte of {path}", plant, _CHANGED, path.name)


def library_bytecode_poisoned(target: Target, pick: Random) -> Iterator[Fault]:
    """Bytecode of the standard library with a fitting header and other code."""
    path = choose(pick, [path for path in _sources(target) if path.parent == target.stdlib])
    place = path.parent / "__pycache__" / f"{path.stem}.cpython-{target.version.replace('.', '')}.pyc"

    def plant(folder: Path) -> None:
        place.unlink(missing_ok=True)
        write_bytecode(target, path, path.read_bytes() + b"\nPLANTED = 'poison'\n", place, folder)

    kinds = one_of("interpreter/stdlib-bytecode-poisoned")
    fault = _fault("library-bytecode-poisoned", f"{place} holds other code than its source", plant, kinds, place.name)
    yield replace(fault, level=("--deep", "--only", "interpreter"))


def library_bytecode_unchecked(target: Target, pick: Random) -> Iterator[Fault]:
    """Bytecode of the standard library that is never compared with its source."""
    path = choose(pick, [path for path in _sources(target) if path.parent == target.stdlib])
    place = path.parent / "__pycache__" / f"{path.stem}.cpython-{target.version.replace('.', '')}.pyc"

    def plant(folder: Path) -> None:
        place.unlink(missing_ok=True)
        write_bytecode(target, path, path.read_bytes() + b"\nPLANTED = 'poison'\n", place, folder, flags=1)

    kinds = one_of("interpreter/stdlib-bytecode-unchecked")
    yield _fault("library-bytecode-unchecked", f"{place} is never compared", plant, kinds, place.name)


def path_file_beside_python(target: Target, pick: Random) -> Iterator[Fault]:
    """A `._pth` file beside the interpreter replaces the whole of sys.path."""
    place = target.bin / pick.choice(["python._pth", f"python{target.version}._pth"])

    def plant(folder: Path) -> None:
        place.write_text(f"{target.stdlib}\n{target.stdlib}/lib-dynload\n{target.directory}/{target.site}\n{folder}\n")

    kinds = one_of("interpreter/path-file-added")
    yield _fault("path-file-beside-python", f"add bin/{place.name}", plant, kinds, place.name)


def second_pyvenv(target: Target, pick: Random) -> Iterator[Fault]:
    """A `pyvenv.cfg` beside the interpreter is read before that of the env."""

    def plant(folder: Path) -> None:
        text = target.path("pyvenv.cfg").read_text()
        (target.bin / "pyvenv.cfg").write_text(text.replace("site-packages = false", "site-packages = true"))

    kinds = one_of("interpreter/pyvenv-changed")
    yield _fault("second-pyvenv", "add bin/pyvenv.cfg", plant, kinds, "bin/pyvenv.cfg")


#: Words in the binary that can be changed without harm: the help text of an option.
_HARMLESS = (b"usage: %s [option] ...", b"usage: %ls [option] ...", b"Options and arguments")


def binary_flipped(target: Target, pick: Random) -> Iterator[Fault]:
    """One byte of the interpreter, or of its shared library, in a help text."""
    places = [target.python.resolve(), *sorted((target.base_prefix / "lib").glob(f"libpython{target.version}*.so*"))]
    found = [
        (path, path.read_bytes().index(word))
        for path in dict.fromkeys(place.resolve() for place in places)
        for word in _HARMLESS
        if word in path.read_bytes()
    ]
    path, at = choose(pick, found)

    def plant(folder: Path) -> None:
        copy = folder / "python"
        shutil.copy2(path, copy)  # a running program cannot be written to: it is replaced
        flip_quietly(copy, at)
        with same_times(copy):
            path.unlink()
            shutil.copy2(copy, path)

    yield _fault("binary-flipped", f"byte {at} of {path}", plant, one_of("interpreter/interpreter-changed"), path.name)


GENERATORS = (
    library_bytecode_poisoned, library_bytecode_unchecked, path_file_beside_python, second_pyvenv,
    other_python, other_build, python_is_a_wrapper, opened_to_system, library_edited, library_edited_quietly,
    library_module_added, library_module_gone, library_extension_swapped, binary_flipped,
)  # fmt: skip
