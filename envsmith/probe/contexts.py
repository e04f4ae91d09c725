"""Start the processes that frameworks start from a launched one, and collect what each of them sees.

Every process answers through a file of its own. All of it runs in a throw-away home; whatever is still alive when a
context is over, in whichever session, is killed, and the folders go.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from envsmith.errors import EnvsmithError, StepError
from envsmith.facts import SCHEMA, Facts, Level, LibcudaAnswer, Unstarted, parse, parse_libcuda
from envsmith.probe import PAYLOAD, Request, probe
from envsmith.running import RunningProcess
from envsmith.tools.process import run, without_frames
from envsmith.tools.procfs import kill_marked

CHAIN: Final = Path(__file__).with_name("chain.py")
"""The payload's source."""
CONTEXTS: Final = ("launched", "spawn", "fork", "torchrun", "ray", "vllm")
#: The levels of each context by the names of their answers, in the order of the chain, each with its parent.
LEVELS: Final[Mapping[str, tuple[tuple[str, str, str], ...]]] = {
    "spawn": (("spawn", "spawn", "launched"),),
    "fork": (("fork", "fork", "launched"),),
    "torchrun": (("torchrun.0", "torchrun[0]", "launched"), ("torchrun.1", "torchrun[1]", "launched")),
    "ray": (("ray", "ray", "launched"), ("ray-second", "ray-second", "ray"), ("ray-child", "ray-child", "ray")),
    "vllm": (("vllm", "vllm", "launched"),),
}
#: The import name without which a context cannot exist.
NEEDS: Final = {"torchrun": "torch", "ray": "ray", "vllm": "vllm"}
#: Ray puts `session_<date>_<time>_<microseconds>_<pid>/sockets/plasma_store` below its folder, 64 bytes and a slash;
#: a socket's path may have 107 (facts/symptoms.md D22).
RAY_ROOT_BYTES: Final = 107 - 65
_SAID_BYTES: Final = 65536


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """What the asked contexts gave."""

    levels: tuple[Level, ...]
    unstarted: tuple[Unstarted, ...]
    seconds: Mapping[str, float]
    """Wall time of each context that was tried."""


def walk_chain(
    python: Path,
    contexts: Sequence[str],
    request: Request,
    *,
    env: Mapping[str, str],
    kept: Sequence[str] = (),
    runtime_env: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
) -> Chain:
    """Start every context once, one after the other, each within `timeout_s`; `launched` always comes first.

    `env` is the launch environment; of it the variables that are `kept` stay as they are even where they name places
    that would otherwise be thrown away (HOME, TMPDIR, caches). `runtime_env` are the `env_vars` that the job itself
    gives to `ray.init`; without it the actor gets what it inherits, as with `envsmith run`, which hands Ray nothing.
    """
    wanted = [name for name in CONTEXTS if name in contexts and name != "launched"]
    locate = tuple(sorted({*(request.locate or ()), *(NEEDS[name] for name in wanted if name in NEEDS)}))
    asked = replace(request, locate=locate, context="launched", maps=True)
    levels: list[Level] = []
    unstarted: list[Unstarted] = []
    seconds: dict[str, float] = {}
    with _desk(env, kept) as desk:
        started = time.monotonic()
        try:
            facts = probe(python, asked, env=desk.env, cwd=desk.empty, timeout_s=timeout_s)
        except EnvsmithError as error:
            return Chain(levels=(), unstarted=(_failed("launched", error),), seconds={})
        finally:
            seconds["launched"] = round(time.monotonic() - started, 2)
        levels.append(Level(name="launched", parent=None, facts=facts))
        for context in wanted:
            package = NEEDS.get(context)
            if package and facts.modules[package].kind == "missing":
                unstarted.append(Unstarted(context=context, reason=f"the env has no `{package}`", skipped=True))
                continue
            started = time.monotonic()
            seen, gone = _Start(python=python, context=context, asked=asked, desk=desk, limit_s=timeout_s).go(
                runtime_env or {}
            )
            seconds[context] = round(time.monotonic() - started, 2)
            levels += seen
            unstarted += gone
    return Chain(levels=tuple(levels), unstarted=tuple(unstarted), seconds=seconds)


def libcuda_answer(python: Path, env: Mapping[str, str], *, timeout_s: float = 60.0) -> LibcudaAnswer:
    """Ask the driver's library in a fresh process of `python`, in the launch environment; a missing one is a value.

    Raises:
        StepError: `program-missing`, `program-timeout`.
    """
    with _desk(env, ()) as desk:
        said = desk.root / "libcuda.said"
        task = desk.task("libcuda", {"out": str(desk.out)})
        # the site hooks of the env are left out: one that imports torch would load libcuda before it is asked for
        program = (str(python), "-B", "-S", str(desk.chain), "libcuda", str(task))
        done = run(_door(python, desk, said, program), env=desk.env, cwd=desk.empty, timeout_s=timeout_s)
        answer = desk.out / "libcuda.json"
        if not answer.is_file():
            return _no_libcuda(_last_words(said) or f"ended with exit code {done.returncode}")
        seen = parse_libcuda(answer.read_text(encoding="utf-8"))
        if seen.loaded and seen.init is None and seen.error is None:
            return replace(seen, error=f"the process ended with exit code {done.returncode} in `cuInit`")
        return seen


def replay(process: RunningProcess, request: Request, *, timeout_s: float = 60.0) -> Facts | None:
    """What a new process sees that is started as `process` was: its interpreter, variables and folder, not its command.

    None where that cannot be known, and for a process of another user: running a stranger's interpreter with our
    rights is not ours to do. What the running program changed inside itself since its start is not seen.

    Raises:
        EnvsmithError: as `probe` does.
    """
    if process.interpreter is None or process.environ is None or process.uid != os.geteuid():
        return None
    cwd = Path(process.cwd) if process.cwd and Path(process.cwd).is_dir() else None
    asked = replace(request, context=process.label)
    return probe(Path(process.interpreter), asked, env=process.environ, cwd=cwd, timeout_s=timeout_s)


def _no_libcuda(error: str) -> LibcudaAnswer:
    return LibcudaAnswer(loaded=False, error=error, init=None, driver_version=None, path=None, version=None)


# --- the desk: where it all happens ---


@dataclass(frozen=True, kw_only=True, slots=True)
class _Desk:
    """The throw-away folders of one walk."""

    root: Path
    env: Mapping[str, str]

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def empty(self) -> Path:
        return self.root / "cwd"

    @property
    def chain(self) -> Path:
        return self.root / "code" / CHAIN.name

    def task(self, context: str, values: Mapping[str, object]) -> Path:
        path = self.root / f"{context}.task.json"
        place = {"path": str(path), "payload": str(self.chain), "scratch": str(self.root), "out": str(self.out)}
        path.write_text(json.dumps({**place, **values}), encoding="utf-8")
        return path


@contextmanager
def _desk(env: Mapping[str, str], kept: Sequence[str]) -> Iterator[_Desk]:
    """Make the folders and the environment; at the end nothing of it is left, processes first."""
    root = Path(tempfile.mkdtemp(prefix="envsmith-chain-")).resolve()
    try:
        for name in ("out", "cwd", "code", "home", "tmp"):
            (root / name).mkdir()
        for payload in (CHAIN, PAYLOAD):
            (root / "code" / payload.name).write_bytes(payload.read_bytes())
        yield _Desk(root=root, env=_environment(env, kept, root))
    finally:
        kill_marked(str(root))
        shutil.rmtree(root, ignore_errors=True)


def _environment(env: Mapping[str, str], kept: Sequence[str], root: Path) -> dict[str, str]:
    """The launch environment with places to throw away. -B does not reach grandchildren, its variable does."""
    places = {
        "HOME": f"{root}/home", "TMPDIR": f"{root}/tmp",
        "XDG_CACHE_HOME": f"{root}/home/.cache", "XDG_CONFIG_HOME": f"{root}/home/.config",
        "XDG_DATA_HOME": f"{root}/home/.local/share", "XDG_STATE_HOME": f"{root}/home/.local/state",
        "TORCHINDUCTOR_CACHE_DIR": f"{root}/home/inductor", "TRITON_CACHE_DIR": f"{root}/home/triton",
        "HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1", "ENVSMITH_CHAIN": str(root),
    }  # fmt: skip
    return {**env, **{name: value for name, value in places.items() if name not in kept or name not in env}}


def _door(python: Path, desk: _Desk, said: Path, program: Sequence[str]) -> tuple[str, ...]:
    """The command that becomes `program`, its output in a file: orphans of launchers would hold pipes open."""
    return (str(python), "-I", "-S", "-B", str(desk.chain), "door", str(said), *program)


# --- one context ---


@dataclass(frozen=True, kw_only=True, slots=True)
class _Start:
    """One context on its way."""

    python: Path
    context: str
    asked: Request
    desk: _Desk
    limit_s: float

    def go(self, runtime_env: Mapping[str, str]) -> tuple[list[Level], list[Unstarted]]:
        """Start it and read the answers of its levels; what did not answer is named with the last words."""
        said = self.desk.root / f"{self.context}.said"
        with self._ray_folder() as ray_dir:
            task = self.desk.task(self.context, self._task(runtime_env, ray_dir))
            program = self._program(task)
            if program is None:
                reason = "`torchrun` is not on the PATH of the launch environment"
                return [], [Unstarted(context=self.context, reason=reason)]
            trouble = self._run(said, program)
            kill_marked(str(self.desk.root))
        return self._answers(said, trouble)

    def _task(self, runtime_env: Mapping[str, str], ray_dir: str) -> dict[str, object]:
        return {
            "collect": str(self.desk.root / "code" / PAYLOAD.name),
            "request": {"schema": SCHEMA, **asdict(self.asked)},
            "limit_s": max(self.limit_s - 5, 1),
            "runtime_env": dict(runtime_env),
            "ray_dir": ray_dir,
        }

    def _program(self, task: Path) -> tuple[str, ...] | None:
        if self.context != "torchrun":
            return (str(self.python), "-B", str(self.desk.chain), self.context, str(task))
        found = shutil.which("torchrun", path=self.desk.env.get("PATH", ""))
        if found is None:
            return None
        # standalone: a free port and a store of its own, so that a training that runs here is not disturbed
        ours = ("--standalone", "--nproc-per-node", "2", "--log-dir", f"{self.desk.root}/tmp")
        return (found, *ours, str(self.desk.chain), "rank", str(task))

    def _run(self, said: Path, program: tuple[str, ...]) -> str | None:
        """Run to the end; None when it ended well, else what went wrong."""
        try:
            argv = _door(self.python, self.desk, said, program)
            done = run(argv, env=self.desk.env, cwd=self.desk.empty, timeout_s=self.limit_s)
        except StepError as error:
            return error.problems[0].message
        if done.returncode == 0:
            return None
        return f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"

    def _answers(self, said: Path, trouble: str | None) -> tuple[list[Level], list[Unstarted]]:
        levels: list[Level] = []
        silent: list[str] = []
        for file, name, parent in LEVELS[self.context]:
            answer = self.desk.out / f"{file}.json"
            if not answer.is_file():
                silent.append(name)
                continue
            try:
                facts = parse(answer.read_text(encoding="utf-8"))
            except EnvsmithError as error:
                return [], [_failed(self.context, error)]
            levels.append(Level(name=name, parent=parent, facts=replace(facts, context=name)))
        if not silent and trouble is None:
            return levels, []
        words = [f"`{', '.join(silent)}` gave no answer" if silent else "", trouble or ""]
        words.append(_last_words(said) or _last_words(self.desk.out / "ray-child.said"))
        return levels, [Unstarted(context=self.context, reason="; ".join(filter(None, words)))]

    @contextmanager
    def _ray_folder(self) -> Iterator[str]:
        """A folder for Ray's sessions: below the RAY_TMPDIR of the launch environment where its sockets fit."""
        if self.context != "ray":
            yield ""
            return
        named = self.desk.env.get("RAY_TMPDIR", "")
        short = len(os.fsencode(named)) + len("/es12345678") <= RAY_ROOT_BYTES
        base = named if named and short and Path(named).is_dir() else "/tmp"
        folder = tempfile.mkdtemp(prefix="es", dir=base)
        try:
            yield folder
        finally:
            kill_marked(str(self.desk.root))
            kill_marked(folder)
            shutil.rmtree(folder, ignore_errors=True)


def _failed(context: str, error: EnvsmithError) -> Unstarted:
    return Unstarted(context=context, reason=error.problems[0].message)


def _last_words(said: Path) -> str:
    """The end of what it printed, without frames of tracebacks."""
    try:
        with said.open("rb") as stream:
            stream.seek(max(said.stat().st_size - _SAID_BYTES, 0))
            text = stream.read(_SAID_BYTES).decode(errors="replace")
    except OSError:
        return ""
    lines = [line.rstrip() for line in without_frames(text).splitlines() if line.strip()]
    return "\n".join(line[:500] for line in lines[-6:])
