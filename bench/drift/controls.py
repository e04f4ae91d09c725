"""Benign changes: verify must say nothing more about them than about the untouched env."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random

from bench.drift.edits import same_times
from bench.drift.fault import Control
from bench.drift.target import NoPlace, Target, choose

_IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception:
        pass
"""


def nothing(target: Target, pick: Random) -> Iterator[Control]:
    """The untouched env."""
    yield Control(name="nothing", what="nothing was done", plant=lambda folder: None)
    yield Control(name="nothing-quick", what="nothing was done", plant=lambda folder: None, level=("--quick",))


def touched(target: Target, pick: Random) -> Iterator[Control]:
    """mtime alone, on sources and libraries."""
    entries = [choose(pick, target.modules) for _ in range(20)] + [choose(pick, target.libraries or target.modules)]

    def plant(folder: Path) -> None:
        for entry in entries:
            target.path(entry.path).touch()

    yield Control(name="touched", what=f"touch {len(entries)} files, {entries[0].path} first", plant=plant)
    yield Control(name="touched-quick", what="the same, asked with --quick", plant=plant, level=("--quick",))


def hard_linked(target: Target, pick: Random) -> Iterator[Control]:
    """A sibling env links the same inodes: nlink and ctime change, contents do not."""
    entries = [choose(pick, target.libraries or target.modules) for _ in range(3)]

    def plant(folder: Path) -> None:
        for number, entry in enumerate(entries):
            path = target.path(entry.path)
            with same_times(path):
                path.touch()
            os.link(path, target.directory.parent / f"sibling-{number}")

    yield Control(name="hard-linked", what=f"a sibling links {entries[0].path} and more", plant=plant)


def compiled(target: Target, pick: Random) -> Iterator[Control]:
    """`compileall` over whole packages."""
    names = [choose(pick, target.packages("package"))[0] for _ in range(4)]

    def plant(folder: Path) -> None:
        _python(target, "-m", "compileall", "-q", *(str(target.path(f"{target.site}/{name}")) for name in names))

    yield Control(name="compiled", what=f"compileall over {', '.join(names)}", plant=plant)
    yield Control(name="compiled-deep", what="the same, asked with --deep", plant=plant, level=("--deep",))


def compiled_for_other_levels(target: Target, pick: Random) -> Iterator[Control]:
    """Bytecode of `-O` and `-OO` lies beside that without."""
    name = choose(pick, target.packages("package"))[0]

    def plant(folder: Path) -> None:
        _python(target, "-O", "-m", "compileall", "-q", str(target.path(f"{target.site}/{name}")))
        _python(target, "-OO", "-m", "compileall", "-q", str(target.path(f"{target.site}/{name}")))

    yield Control(name="compiled-optimised", what=f"compileall -O and -OO over {name}", plant=plant)


def run_without_b(target: Target, pick: Random) -> Iterator[Control]:
    """A run that imports writes its bytecode, as every run does."""
    own = target.pure()
    names = sorted({n for n, root in target.packages("package", "module") if root.owner in own})
    chosen = [choose(pick, names) for _ in range(6)]

    def plant(folder: Path) -> None:
        _python(target, "-c", _IMPORT, *chosen, folder=folder)

    yield Control(name="run-without-b", what=f"import {', '.join(chosen)} with bytecode", plant=plant)


def verified_twice(target: Target, pick: Random) -> Iterator[Control]:
    """The state after a verify that renewed its index is as good as before."""
    entry = choose(pick, target.modules)

    def plant(folder: Path) -> None:
        target.path(entry.path).touch()
        _verify(target, folder)
        (target.directory.parent / f"{target.directory.name}.stat.json").unlink()
        _verify(target, folder, "--quick")

    yield Control(name="verified-twice", what="verify, lose the index, verify", plant=plant)


def other_folders_on_path(target: Target, pick: Random) -> Iterator[Control]:
    """PATH has the env first and other folders with the same commands after it."""
    names = target.receipt.verify["launchers"]

    def plant(folder: Path) -> Mapping[str, str]:
        for name in names:
            (folder / name).write_text("#!/usr/bin/env python3\n")
            (folder / name).chmod(0o755)
        return {"PATH": f"{target.bin}:{folder}:/usr/bin:/bin", "VIRTUAL_ENV": str(target.directory)}

    yield Control(name="other-folders-on-path", what="another env after this one on PATH", plant=plant)


def variables_without_effect(target: Target, pick: Random) -> Iterator[Control]:
    """What a shell of a busy user holds and what redirects nothing."""

    def plant(folder: Path) -> Mapping[str, str]:
        return {
            "CUDA_VISIBLE_DEVICES": "0,1",
            "OMP_NUM_THREADS": "8",
            "EDITOR": "vi",
            "LD_LIBRARY_PATH": "",
            "TERM": "dumb",
        }

    yield Control(name="variables-without-effect", what="OMP_NUM_THREADS, an empty LD_LIBRARY_PATH …", plant=plant)


def launch_table_in_shell(target: Target, pick: Random) -> Iterator[Control]:
    """The shell sourced env.sh: it already holds the launch table."""
    if target.receipt.launch["require"] or target.receipt.launch["driver-library"]:
        raise NoPlace

    def plant(folder: Path) -> Mapping[str, str]:
        return dict(target.receipt.launch["set"])

    yield Control(name="launch-table-in-shell", what="the shell holds the launch table", plant=plant)


def user_site_that_is_off(target: Target, pick: Random) -> Iterator[Control]:
    """`~/.local` exists, and a plain env does not look at it."""

    def plant(folder: Path) -> Mapping[str, str]:
        place = folder / f".local/lib/python{target.version}/site-packages/planted"
        place.mkdir(parents=True)
        (place / "__init__.py").write_text("")
        return {"HOME": str(folder)}

    yield Control(name="user-site-that-is-off", what="a user site that this env does not look at", plant=plant)


def notes_in_work_copy(target: Target, pick: Random) -> Iterator[Control]:
    """A log and data in a work copy, and git's own housekeeping."""
    names = [source.name for source in target.lock.sources if source.install == "editable"]
    place = target.path(f"src/{choose(pick, names)}")

    def plant(folder: Path) -> None:
        (place / "outputs").mkdir()
        (place / "outputs/run.log").write_text("step 1\n")
        (place / "outputs/metrics.jsonl").write_text("{}\n")
        argv = ["git", "-c", "safe.directory=*", "gc", "-q"]
        subprocess.run(argv, cwd=place, check=True, env={"PATH": "/usr/bin:/bin"}, capture_output=True)

    yield Control(name="notes-in-work-copy", what="a log in a work copy, and git gc", plant=plant)


def data_that_may_change(target: Target, pick: Random) -> Iterator[Control]:
    """A file that `verify.allow-changed` names was rewritten by its own package."""
    from fnmatch import fnmatchcase

    patterns = target.receipt.verify["allow-changed"]
    entry = choose(pick, [e for e in target.files if any(fnmatchcase(e.path, pattern) for pattern in patterns)])

    def plant(folder: Path) -> None:
        target.path(entry.path).write_text("rewritten\n")

    yield Control(name="data-that-may-change", what=f"rewrite {entry.path}", plant=plant)


def locked_by_uv(target: Target, pick: Random) -> Iterator[Control]:
    """uv was asked about the env, which leaves an empty lock file."""

    def plant(folder: Path) -> None:
        (target.directory / ".lock").write_bytes(b"")
        (target.directory / ".lock").chmod(0o666)

    yield Control(name="locked-by-uv", what="uv's lock file was made anew", plant=plant)


def _python(target: Target, *words: str, folder: Path = Path("/")) -> None:
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONNOUSERSITE": "1"}
    subprocess.run([target.python, *words], env=environ, cwd=folder, capture_output=True, timeout=300, check=False)


def _verify(target: Target, folder: Path, *words: str) -> None:
    from bench.drift.trial import verify

    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    verify(target, {**os.environ, **environ}, folder, words)


GENERATORS: tuple[Callable[[Target, Random], Iterator[Control]], ...] = (
    nothing, touched, hard_linked, compiled, compiled_for_other_levels, run_without_b, verified_twice,
    other_folders_on_path, variables_without_effect, launch_table_in_shell, user_site_that_is_off, notes_in_work_copy,
    data_that_may_change, locked_by_uv,
)  # fmt: skip
