"""A running process as values: what the kernel says about it, and what may not be read.

Nothing here reads; envsmith/tools/procfs.py does. A process that is gone or belongs to somebody else is a value too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from envsmith.facts import MappedFile
from envsmith.redaction import CUT, redacted

#: Words in the name of a variable whose value is never shown; the same as the probe's payload has.
SECRET_WORDS: Final = ("TOKEN", "KEY", "PASSWORD", "PASSWD", "SECRET", "CREDENTIAL")

#: Titles that frameworks give their processes (read 2026-11: ray 2.56.1 `ray::<Class>` and `ray::IDLE`; vllm 0.18.0
#: vllm/utils/system_utils.py, `VLLM::EngineCore`, `VLLM::Worker_TP0`).
_TITLE = re.compile(r"(ray|VLLM)::\S+")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningProcess:
    """One process as /proc shows it; None stands for what could not be read, and `unreadable` says why."""

    pid: int
    parent: int | None
    uid: int | None
    """Whose it is."""
    name: str
    """The kernel's name of it, at most 15 characters."""
    argv: tuple[str, ...]
    """Its command line, or the title that it gave itself."""
    started_ticks: int | None
    """Clock ticks since boot: with the pid it names one process for good."""
    executable: str | None
    executable_deleted: bool = False
    interpreter: str | None = None
    """The program name through which a Python finds its environment, such as `<env>/bin/python`."""
    cwd: str | None = None
    environ: Mapping[str, str] | None = field(default=None, repr=False)
    """As it was at its start: what the program itself changed later does not show."""
    maps: tuple[MappedFile, ...] | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """What could not be read (`environ`, `maps`, `exe` …) and why: `permission`, `gone`, `overwritten`."""

    @property
    def role(self) -> str:
        """What it is to a person: the title of Ray and vLLM processes, else program and script."""
        title = self.argv[0] if self.argv else ""
        if _TITLE.match(title):
            return title.split()[0]
        program = PurePosixPath(title or self.executable or self.name).name or self.name
        return f"{program} {started}" if self.is_python and (started := _started(self.argv[1:])) else program

    @property
    def label(self) -> str:
        """Role and pid."""
        return f"{self.role} ({self.pid})"

    @property
    def is_python(self) -> bool:
        """Whether it runs a Python interpreter, by its executable or by a mapped libpython."""
        program = PurePosixPath(self.executable or "").name
        return program.startswith(("python", "pypy")) or any(
            PurePosixPath(mapped.path).name.startswith("libpython") for mapped in self.maps or ()
        )


def _started(words: Sequence[str]) -> str:
    """What a Python was told to run: `-c`, `-m name` or the name of a script."""
    for at, word in enumerate(words):
        if word == "-m":
            return " ".join(("-m", *words[at + 1 : at + 2]))
        if word == "-c" or not word.startswith("-"):
            return PurePosixPath(word).name
    return ""


def chain_of(process: RunningProcess, processes: Iterable[RunningProcess]) -> tuple[RunningProcess, ...]:
    """The process and its ancestors among `processes`, the oldest first."""
    by_pid = {other.pid: other for other in processes}
    chain = [process]
    while (parent := by_pid.get(chain[0].parent or -1)) is not None and parent not in chain:
        chain.insert(0, parent)
    return tuple(chain)


def shown(name: str, value: str) -> str:
    """The value of a variable as it may be shown."""
    return CUT if any(word in name.upper() for word in SECRET_WORDS) else redacted(value)
