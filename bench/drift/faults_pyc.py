"""Faults of bytecode: what runs is not what the source says."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

from bench.drift.fault import Fault, Plant, one_of
from bench.drift.target import Target, choose
from envsmith.manifest import Entry

FAMILY = "pyc"

#: Compiles with the env's own Python, without its site: marshal's form belongs to one version.
_COMPILE = """
import importlib._bootstrap_external as external, importlib.util, marshal, sys
source, text, out, mtime, size, flags, digest = sys.argv[1:]
code = compile(open(text, "rb").read(), source, "exec", dont_inherit=True)
head = importlib.util.MAGIC_NUMBER + int(flags).to_bytes(4, "little")
if int(flags):
    head += importlib.util.source_hash(open(digest, "rb").read())
else:
    head += (int(mtime) & 0xFFFFFFFF).to_bytes(4, "little") + (int(size) & 0xFFFFFFFF).to_bytes(4, "little")
open(out, "wb").write(head + marshal.dumps(code))
"""


def _fault(
    name: str, what: str, plant: Plant, kinds: frozenset[str], *names: str, level: tuple[str, ...] = ()
) -> Fault:
    return Fault(name=name, family=FAMILY, what=what, plant=plant, expect=kinds, names=names, level=level)


def cache_of(target: Target, path: str) -> str:
    """Where Python keeps the bytecode of a source."""
    folder, _, name = path.rpartition("/")
    return f"{folder}/__pycache__/{name.removesuffix('.py')}.cpython-{target.version.replace('.', '')}.pyc"


def write_bytecode(
    target: Target, source: str | Path, text: bytes, place: str | Path, folder: Path, flags: int = 0
) -> None:
    """Compile `text` into `place` with a header that fits `source`; paths are relative to the env, or absolute."""
    (folder / "text.py").write_bytes(text)
    real, out = target.directory / source, target.directory / place
    out.parent.mkdir(exist_ok=True)
    info = real.stat()
    argv = [
        str(target.python), "-I", "-S", "-B", "-c", _COMPILE, str(real), str(folder / "text.py"),
        str(out), str(int(info.st_mtime)), str(info.st_size), str(flags), str(real),
    ]  # fmt: skip
    subprocess.run(argv, check=True, capture_output=True, timeout=60)


def _source(target: Target, pick: Random) -> Entry:
    """A source whose bytecode the wheels did not bring."""
    return choose(pick, [e for e in target.modules if cache_of(target, e.path) not in target.entries])


def poisoned(target: Target, pick: Random) -> Iterator[Fault]:
    """Bytecode whose header fits its source, and whose code is another."""
    entry = _source(target, pick)
    place = cache_of(target, entry.path)

    def plant(folder: Path) -> None:
        text = target.path(entry.path).read_bytes() + b"\nPLANTED = 'poison'\n"
        write_bytecode(target, entry.path, text, place, folder)

    kinds = one_of("pyc/poisoned-bytecode")
    what = f"{place} holds other code than its source"
    yield _fault("poisoned", what, plant, kinds, place)
    yield _fault("poisoned-deep", f"{what}, asked with --deep", plant, kinds, place, level=("--deep",))


def unchecked_hash(target: Target, pick: Random) -> Iterator[Fault]:
    """Bytecode that Python never compares with its source."""
    entry = _source(target, pick)
    place = cache_of(target, entry.path)

    def plant(folder: Path) -> None:
        text = target.path(entry.path).read_bytes() + b"\nPLANTED = 'poison'\n"
        write_bytecode(target, entry.path, text, place, folder, flags=1)

    kinds = one_of("pyc/unowned-bytecode", "pyc/poisoned-bytecode")
    yield _fault("unchecked-hash", f"{place} is never compared", plant, kinds, place)


def checked_hash_poisoned(target: Target, pick: Random) -> Iterator[Fault]:
    """Bytecode with the right hash of its source in its header, and other code."""
    entry = _source(target, pick)
    place = cache_of(target, entry.path)

    def plant(folder: Path) -> None:
        text = target.path(entry.path).read_bytes() + b"\nPLANTED = 'poison'\n"
        write_bytecode(target, entry.path, text, place, folder, flags=3)

    kinds = one_of("pyc/poisoned-bytecode")
    what = f"{place} has the hash of its source and other code"
    yield _fault("checked-hash-poisoned", what, plant, kinds, place)


def orphan_in_cache(target: Target, pick: Random) -> Iterator[Fault]:
    """Bytecode of a source that is not there."""
    entry = _source(target, pick)
    place = cache_of(target, f"{entry.path.rsplit('/', 1)[0]}/planted_{pick.randrange(10**6)}.py")

    def plant(folder: Path) -> None:
        write_bytecode(target, entry.path, b"PLANTED = True\n", place, folder)

    kinds = one_of("pyc/unowned-bytecode")
    yield _fault("orphan-in-cache", f"add {place}", plant, kinds, place)


def orphan_beside_sources(target: Target, pick: Random) -> Iterator[Fault]:
    """A `.pyc` outside of `__pycache__` is imported without any source."""
    entry = _source(target, pick)
    place = f"{entry.path.rsplit('/', 1)[0]}/planted_{pick.randrange(10**6)}.pyc"

    def plant(folder: Path) -> None:
        write_bytecode(target, entry.path, b"PLANTED = True\n", place, folder)

    kinds = one_of("pyc/unowned-bytecode")
    yield _fault("orphan-beside-sources", f"add {place}", plant, kinds, place)


def source_gone_bytecode_left(target: Target, pick: Random) -> Iterator[Fault]:
    """The source was taken away and its bytecode put in its place."""
    entry = choose(pick, [e for e in target.modules if not e.path.endswith("/__init__.py")])
    place = entry.path + "c"

    def plant(folder: Path) -> None:
        write_bytecode(target, entry.path, target.path(entry.path).read_bytes(), place, folder)
        target.path(entry.path).unlink()

    kinds = one_of("files/file-missing")
    yield _fault("source-gone-bytecode-left", f"{entry.path} became {place}", plant, kinds, entry.path)


def poisoned_in_work_copy(target: Target, pick: Random) -> Iterator[Fault]:
    """The same in a work copy."""
    names = [source.name for source in target.lock.sources if source.install == "editable"]
    prefix = f"src/{choose(pick, names)}/"
    sources = [
        e for e in target.manifest.entries if e.path.startswith(prefix) and e.path.endswith(".py") and e.size > 64
    ]
    entry = choose(pick, [e for e in sources if e.part == "portable"])
    place = cache_of(target, entry.path)

    def plant(folder: Path) -> None:
        text = target.path(entry.path).read_bytes() + b"\nPLANTED = 'poison'\n"
        write_bytecode(target, entry.path, text, place, folder)

    kinds = one_of("pyc/poisoned-bytecode")
    what = f"{place} holds other code than its source"
    yield _fault("poisoned-in-work-copy", what, plant, kinds, place)


GENERATORS = (
    poisoned, unchecked_hash, checked_hash_poisoned, orphan_in_cache, orphan_beside_sources, source_gone_bytecode_left,
    poisoned_in_work_copy,
)  # fmt: skip
