"""Climbing one rung: its folder and task, its processes in the launch environment, and what was observed of it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

from envsmith.checkpointfolder import judge_checkpoint_folder
from envsmith.commands.commandrung import run_command
from envsmith.commands.depth import Depth, Examination
from envsmith.commands.driverlibrary import prove_driver_library
from envsmith.commands.examine import examine
from envsmith.commands.launching import prepared, resolved
from envsmith.commands.raylet_check import with_ray
from envsmith.commands.screen import Screen
from envsmith.commands.subject import Subject
from envsmith.commands.workcopies import work_dirs
from envsmith.errors import EnvsmithError, Problem
from envsmith.launch import LaunchEnvironment
from envsmith.logs.firsterror import FirstError, first_effective_error
from envsmith.logs.lines import LogFile
from envsmith.redaction import CUT, holds_secret, redacted
from envsmith.report import Finding, Severity
from envsmith.smoke import (
    LADDER,
    MEMORY_TOLERANCE_BYTES,
    Rung,
    RungRun,
    judge_exit,
    judge_rung,
    parse_answer,
    status_of,
)
from envsmith.tools.checkpointprobe import probe_checkpoint_folder
from envsmith.tools.device import memory_in_use
from envsmith.tools.files import filesystem, write_atomic
from envsmith.tools.leftovers import adopt_orphans, kill_rest, leftovers, orphaned, shared_files
from envsmith.tools.ranks import Start, run_ranks
from envsmith.tools.runfolders import forget_runs, hold_run
from envsmith.tools.store import open_store
from envsmith.tools.timelimit import time_limit, undisturbed

#: The payloads' source.
PAYLOADS: Final = Path(__file__).parent.parent / "rungs"
PACKAGE: Final = "envsmith_rungs"
#: The mark that every process of a run carries in its environment.
MARK: Final = "ENVSMITH_SMOKE"
#: How long processes and drivers have to give back what they hold after a rung's own process has ended.
SETTLE_S: Final = 10.0
#: Runs whose folders are kept beside an env; older ones go.
KEPT_RUNS: Final = 5
#: No answer is read further: a rung writes some kilobytes.
_ANSWER_BYTES: Final = 16 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Climb:
    """All that the rungs of one run share."""

    subject: Subject
    folder: Path
    """Where tasks, answers and logs lie; its path is the mark of every process."""
    launched: Mapping[str, str]
    """The launch environment, as `envsmith run` gives it."""
    launch: LaunchEnvironment | None
    """The change that made it; None for an env that another tool made."""
    baseline: tuple[int, ...] | None
    """Bytes in use on each device before the first rung; None without a device."""
    environ: Mapping[str, str]
    screen: Screen
    remarks: tuple[Finding, ...] = ()
    """What has to be said beside the rungs' findings."""

    @property
    def shared(self) -> Path:
        """What rungs share: the tiny model, caches, a home to throw away."""
        return self.folder / "shared"


@dataclass(frozen=True, kw_only=True, slots=True)
class Climbed:
    """One rung, run and judged."""

    run: RungRun
    findings: tuple[Finding, ...]
    status: str
    folder: Path
    first_error: FirstError | None = None
    last_words: tuple[str, ...] = ()
    """The end of its log where nothing in it says why it failed."""
    examination: Examination | None = None
    """Of the rung `static`."""


def open_climb(subject: Subject, *, remarks: tuple[Finding, ...], environ: Mapping[str, str], screen: Screen) -> Climb:
    """Make the folder of a run and the launch environment, and read what the devices hold before anything runs.

    Raises:
        EnvsmithError: as `envsmith run` does before it starts a command.
    """
    launch, launched = _launched(subject, environ, screen)
    adopt_orphans()
    folder = _run_folder(subject, environ)
    code = folder / "payload" / PACKAGE
    with filesystem(folder):
        code.mkdir(parents=True)
        for name in ("shared", "home", "tmp"):
            (folder / name).mkdir()
        for payload in sorted(PAYLOADS.glob("*.py")):
            (code / payload.name).write_bytes(payload.read_bytes())
    return Climb(
        subject=subject,
        folder=folder,
        launched=launched,
        launch=launch,
        baseline=memory_in_use(launched),
        environ=environ,
        screen=screen,
        remarks=remarks,
    )


def _launched(
    subject: Subject, environ: Mapping[str, str], screen: Screen
) -> tuple[LaunchEnvironment | None, dict[str, str]]:
    """The launch environment as `run` makes it; of an env of another tool the caller's, with its programs first."""
    if subject.receipt is None:
        shell = {name: value for name, value in environ.items() if name != "VIRTUAL_ENV"}
        programs = f"{subject.env_dir}/bin"
        rest = [part for part in shell.get("PATH", os.defpath).split(":") if part and part != programs]
        return None, {**shell, "PATH": ":".join([programs, *rest])}
    ready = prepared(resolved(subject.launch, subject.directory, environ, work_dirs(subject.work)), environ)
    launched = with_ray(subject.directory, ready.launch, ready.environment, screen)
    if ready.driver:
        prove_driver_library(ready.driver, subject.directory / "bin" / "python", launched)
    return ready.launch, launched


def _run_folder(subject: Subject, environ: Mapping[str, str]) -> Path:
    """A new folder beside the env, or in our store where another tool made the env or that place is read-only."""
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
    mine = open_store(environ).home / "smoke" / hashlib.sha256(subject.env_dir.encode()).hexdigest()[:12]
    beside = [subject.directory.resolve().parent / "smoke"] if subject.receipt is not None else []
    for runs in (*beside, mine):
        try:
            runs.mkdir(parents=True, exist_ok=True)
            if runs.is_symlink():
                continue
            folder = Path(tempfile.mkdtemp(prefix=f"{stamp}-", dir=runs)).resolve()
            hold_run(folder)
        except OSError:
            continue
        forget_runs(runs, KEPT_RUNS, besides=folder)
        return folder
    return Path(tempfile.mkdtemp(prefix="envsmith-smoke-")).resolve()


def climb_rung(way: Climb, rung: Rung, number: int, before: Sequence[Climbed]) -> Climbed:
    """Run one rung and judge it; what it leaves behind is named and then killed."""
    folder = way.folder / f"{number:02}-{rung.label}"
    folder.mkdir()
    if rung.kind == "exit-clean":
        run = _exit_clean(way, rung, before)
        return _judged(run, folder, None)
    if rung.kind == "static":
        return _static(way, rung, folder)
    segments = shared_files()
    memory = memory_in_use(way.launched)
    began = time.monotonic()
    if rung.kind == "command":
        run = run_command(rung, folder, way, {MARK: str(way.folder)}, keep_command)
        run = replace(run, findings=(*run.findings, *_env_changed(way, rung)))
    else:
        run = _payload(way, rung, folder)
    seconds = time.monotonic() - began
    left = leftovers(way.folder, patience_s=SETTLE_S)
    after = _settled(memory, way.launched)
    with undisturbed():
        kill_rest(way.folder)
    run = replace(
        run,
        seconds=round(seconds, 3),
        memory_before=memory,
        memory_after=after,
        leftovers=left,
        segments=orphaned(segments),
    )
    return _judged(run, folder, None)


def _judged(run: RungRun, folder: Path, examination: Examination | None) -> Climbed:
    findings = judge_rung(run)
    status = status_of(run, findings)
    error = None if status == "passed" else _first_error(run, folder)
    wordless = status == "failed" and error is None and any(end.returncode != 0 for end in run.ended)
    return Climbed(
        run=run,
        findings=findings,
        status=status,
        folder=folder,
        first_error=error,
        last_words=_last_words(folder / "rank0.log") if wordless else (),
        examination=examination,
    )


def _last_words(log: Path) -> tuple[str, ...]:
    """The last lines of a log, each cut to what one can read."""
    try:
        if not log.is_file() or log.is_symlink():
            return ()
        with log.open("rb") as stream:
            stream.seek(max(log.stat().st_size - 8192, 0))
            lines = stream.read(8192).decode(errors="replace").splitlines()
    except OSError:
        return ()
    return tuple(line.rstrip()[:200] for line in lines if line.strip())[-5:]


def _first_error(run: RungRun, folder: Path) -> FirstError | None:
    """What the logs of a rung first say of a cause, those of processes that its payload started included.

    That envsmith itself ended a process which ran past its limit is none.
    """
    # What NCCL writes down of its own decisions holds lines about libraries that it can do without.
    logs = (path for path in folder.rglob("*.log") if not path.name.startswith("nccl."))
    paths = sorted(path for path in logs if path.is_file() and not path.is_symlink())
    with contextlib.ExitStack() as opened:
        files = [
            LogFile(name=str(path.relative_to(folder)), pieces=opened.enter_context(path.open("rb"))) for path in paths
        ]
        found = first_effective_error(files)
    ours = any(end.timed_out or end.stopped for end in run.ended)
    return None if ours and found and "Fatal Python error: Aborted" in found.text else found


def _settled(before: tuple[int, ...] | None, environ: Mapping[str, str]) -> tuple[int, ...] | None:
    """What the devices hold once the driver has taken back what ended processes had: it may take a moment."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        now = memory_in_use(environ)
        back = (
            now is None
            or before is None
            or all(n <= b + MEMORY_TOLERANCE_BYTES for n, b in zip(now, before, strict=False))
        )
        if back or time.monotonic() > deadline:
            return now
        time.sleep(0.25)


# --- rungs that are envsmith's own work ---


def _static(way: Climb, rung: Rung, folder: Path) -> Climbed:
    """Verify every byte and really import the recipe's list; what frameworks start comes with later rungs."""
    began = time.monotonic()
    depth = Depth(bytes="deep", imports=True, shell=False)
    examination: Examination | None = None
    try:
        with time_limit(rung.timeout_s, "the verification"):
            examination = examine(way.subject, depth, environ=way.environ, progress=way.screen)
        findings = tuple(
            replace(one, check=rung.kind, kind=f"{one.check}/{one.kind}") for one in examination.report.findings
        )
    except EnvsmithError as error:
        findings = tuple(_of_problem(rung, problem, way) for problem in error.problems)
    findings = (*findings, *_checkpoint_folder(way, rung))
    write_atomic(folder / "verify.json", json.dumps([one.to_dict() for one in findings], indent=2) + "\n")
    seconds = round(time.monotonic() - began, 3)
    run = RungRun(
        rung=rung, argv=("envsmith", "verify", way.subject.name), seconds=seconds, ended=(), findings=findings
    )
    return _judged(run, folder, examination)


def _env_changed(way: Climb, rung: Rung) -> tuple[Finding, ...]:
    """Whether the user's own program has changed the env that it ran in: by sizes, times and modes."""
    if way.subject.receipt is None:
        return ()
    try:
        found = examine(way.subject, Depth(bytes="stat", families=("files",)), environ=way.environ).report.findings
    except EnvsmithError as error:
        return tuple(_of_problem(rung, problem, way) for problem in error.problems)
    wrong = [one for one in found if one.severity is Severity.ERROR]
    return tuple(replace(one, check=rung.kind, kind=f"{one.check}/{one.kind}") for one in wrong)


def _of_problem(rung: Rung, problem: Problem, way: Climb) -> Finding:
    return Finding(
        check=rung.kind,
        kind=problem.code,
        severity=Severity.ERROR,
        subject=problem.where or way.subject.name,
        message=problem.message,
        expected=problem.expected,
        actual=problem.actual,
        hint=problem.hint,
    )


def _checkpoint_folder(way: Climb, rung: Rung) -> tuple[Finding, ...]:
    """Try the folder into which the job writes its checkpoints, before hours of training are lost to it."""
    receipt = way.subject.receipt
    named = receipt.smoke.get("checkpoint-dir") if receipt else None
    if not named or not Path(named).is_absolute():
        return ()
    found = judge_checkpoint_folder(probe_checkpoint_folder(Path(named)))
    return tuple(replace(one, check=rung.kind, kind=f"{one.check}/{one.kind}") for one in found)


def _exit_clean(way: Climb, rung: Rung, before: Sequence[Climbed]) -> RungRun:
    began = time.monotonic()
    after = _settled(way.baseline, way.launched)
    runs = [one.run for one in before if one.run.ended]
    findings = list(judge_exit(rung, runs, way.baseline))
    if not runs:
        findings.append(_nothing_started(rung, is_alone=not before))
    if way.baseline is None:
        findings.append(
            Finding(
                check=rung.kind,
                kind="no-device",
                severity=Severity.NOTE,
                subject=rung.label,
                message="no device driver can be asked here: exit codes, processes and /dev/shm were compared",
            )
        )
    return RungRun(
        rung=rung,
        argv=(),
        seconds=round(time.monotonic() - began, 3),
        ended=(),
        findings=tuple(findings),
        memory_before=way.baseline,
        memory_after=after,
    )


def _nothing_started(rung: Rung, *, is_alone: bool) -> Finding:
    return Finding(
        check=rung.kind,
        kind="nothing-shown",
        severity=Severity.ERROR if is_alone else Severity.NOTE,
        subject=rung.label,
        message="no rung before this one started a process, so there is nothing that could have been left behind",
        hint="climb it after other rungs" if is_alone else None,
    )


# --- rungs with a payload ---


def _payload(way: Climb, rung: Rung, folder: Path) -> RungRun:
    task = folder / "task.json"
    write_atomic(task, json.dumps(_task(way, rung, folder), indent=2, sort_keys=True) + "\n")
    argv = (str(way.subject.executable), "-B", "-X", "faulthandler", "-m", f"{PACKAGE}.{rung.module}", str(task))
    port = _free_port()
    starts = [
        Start(
            argv=argv,
            env=_environment(way, rung, rank, port),
            cwd=way.folder / "payload",
            log=folder / f"rank{rank}.log",
        )
        for rank in range(rung.processes)
    ]
    keep_command(folder, starts[0])
    ended = run_ranks(starts, timeout_s=rung.timeout_s)
    return _read_answers(RungRun(rung=rung, argv=argv, seconds=0.0, ended=ended), folder)


def _task(way: Climb, rung: Rung, folder: Path) -> dict[str, Any]:
    receipt = way.subject.receipt
    sources = way.subject.directory.resolve() / "src"
    return {
        "rung": rung.kind,
        "folder": str(folder),
        "shared": str(way.shared),
        "env": way.subject.env_dir,
        "ranks": rung.ranks,
        "steps": rung.steps,
        "seed": 0,
        "timeout_s": rung.timeout_s,
        "options": dict(rung.options),
        # A payload cannot compare what must not be written down.
        "launch": {name: value for name, value in way.launch.set if not holds_secret(name)} if way.launch else {},
        "sources": {name: str(sources / name) for name in (receipt.trees if receipt else {})},
        "patches": list(receipt.smoke.get("patched", ())) if receipt else [],
    }


def _environment(way: Climb, rung: Rung, rank: int, port: int) -> dict[str, str]:
    """The launch environment with offline hubs and places to throw away, and a rank's place among the ranks.

    What the recipe sets itself stays as it is.
    """
    home, shared = way.folder / "home", way.shared
    places = {
        "HOME": str(home), "XDG_CACHE_HOME": f"{home}/.cache", "XDG_CONFIG_HOME": f"{home}/.config",
        "XDG_DATA_HOME": f"{home}/.local/share", "XDG_STATE_HOME": f"{home}/.local/state",
        "HF_HOME": f"{shared}/hf", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false", "PYTHONDONTWRITEBYTECODE": "1",
        "TRITON_CACHE_DIR": f"{shared}/triton", "TORCHINDUCTOR_CACHE_DIR": f"{shared}/inductor",
        "TORCH_EXTENSIONS_DIR": f"{shared}/torch-extensions", "VLLM_CACHE_ROOT": f"{shared}/vllm",
        "TMPDIR": f"{way.folder}/tmp",
    }  # fmt: skip
    kept = {name for name, _ in way.launch.set} if way.launch else set()
    launched = {name: value for name, value in way.launched.items() if name not in _RANK_VARIABLES}
    env = {**launched, **{name: value for name, value in places.items() if name not in kept}}
    if LADDER[rung.kind].ranked:
        env |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(rung.ranks),
            "LOCAL_WORLD_SIZE": str(rung.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
    return {**env, MARK: str(way.folder)}


#: What torchrun, Slurm wrappers and operators of clusters set: a caller that is a rank itself is none for the rungs.
_RANK_VARIABLES: Final = frozenset({
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
})  # fmt: skip


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def keep_command(folder: Path, start: Start) -> None:
    """Write down what was started, so that a failure can be looked into; values that may be secrets are cut."""
    shown = {name: CUT if holds_secret(name) else redacted(value) for name, value in sorted(start.env.items())}
    content = {"argv": list(start.argv), "cwd": str(start.cwd), "environment": shown}
    write_atomic(folder / "command.json", json.dumps(content, indent=2) + "\n")


def _read_answers(run: RungRun, folder: Path) -> RungRun:
    answers: dict[int, Mapping[str, Any]] = {}
    malformed: dict[int, str] = {}
    for one in run.ended:
        path = folder / f"answer.{one.rank}.json"
        if not path.is_file():
            continue
        try:
            with path.open("rb") as stream:
                answers[one.rank] = parse_answer(json.loads(stream.read(_ANSWER_BYTES)))
        except (OSError, ValueError, RecursionError) as error:
            malformed[one.rank] = str(error)[:200]
    return replace(run, answers=answers, malformed=malformed)
