"""`envsmith snapshot`: this host, and where asked what one interpreter on it holds, as one TOML file."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from envsmith import __version__
from envsmith.commands.envs import shown, user_path
from envsmith.commands.result import Result
from envsmith.errors import EnvsmithError, HostError, InputError, Problem, StepError, SupplyError, printable
from envsmith.host import Snapshot, parse_snapshot
from envsmith.hostfacts import HostFacts
from envsmith.tools.device import devices_by_library, nvidia_links
from envsmith.tools.files import filesystem, write_atomic
from envsmith.tools.process import Completed, run, without_secrets
from envsmith.tools.progress import Progress

PAYLOAD = Path(__file__).parent.parent / "probe" / "collect.py"
#: Hashing a vendor's image from a cold network disk takes minutes; the parts that may hang have limits of their own.
_LIMIT_S = 3600.0
#: Answers of cuInit that need words. Source: CUDA driver API, CUresult (read 2026-11-30).
_CUINIT = {
    0: "success",
    1: "invalid value",
    2: "out of memory",
    3: "not initialised",
    34: "this libcuda is a stub",
    100: "no device that CUDA may use",
    101: "invalid device",
    801: "not supported",
    802: "the system is not ready; on NVSwitch machines the fabric manager may not run",
    803: "libcuda does not fit the kernel driver",
    804: "this compatibility libcuda is not supported on these devices",
    999: "unknown error; often device nodes or permissions",
}
_ERRORS: dict[int, type[EnvsmithError]] = {kind.exit_code: kind for kind in (HostError, SupplyError, StepError)}
_HINTS = {
    "interpreter-broken": "name a Python that starts; look at its `.pth` files and `sitecustomize`",
    "python-too-old": "name an interpreter of Python 3.8 or newer",
}


def run_verb(
    python: str | None,
    *,
    query: str | None,
    paths: Sequence[str],
    no_run: bool,
    no_files: bool,
    out: str | None,
    environ: Mapping[str, str],
    screen: Progress,
) -> Result:
    """Take a snapshot; it is the result, or, with `out`, a file and a summary of it.

    Raises:
        InputError: `snapshot-output-unusable` where `out` is no name, or names what a file must not replace.
        SupplyError: `output-failed` where stdout is closed and no file was named.
    """
    target = None if out is None else _target(out)
    if target is None and sys.stdout is None:
        raise SupplyError(Problem(code="output-failed", message="stdout is closed", hint="name a file with `-o`"))
    text = capture_text(
        python, query=query, paths=paths, no_run=no_run, no_files=no_files, environ=environ, screen=screen
    )
    snapshot = parse_snapshot(text, "the captured snapshot")
    data = {
        "path": str(target) if target else None,
        "snapshot": snapshot.model_dump(mode="json", by_alias=True, exclude_none=True),
    }
    if target is None:
        return Result(command="snapshot", data=data, text=text)
    write_atomic(Path(os.path.realpath(target)), text)  # a link to a file stays a link
    return Result(command="snapshot", data=data, text="\n".join((f"wrote {shown(target)}", *summary(snapshot))))


def _target(out: str) -> Path:
    """The file that `-o` names; it need not be there yet.

    Raises:
        InputError: `snapshot-output-unusable`.
    """
    target = user_path(out) if out else Path()
    with filesystem(target):
        try:
            info = target.stat()
        except (FileNotFoundError, NotADirectoryError):
            return target  # whether it can be made there shows when it is written
    if out and stat.S_ISREG(info.st_mode) and not _is_ours(info):
        return target
    what = (
        "`-o` names no file" if not out
        else "there is a folder of that name" if stat.S_ISDIR(info.st_mode)
        else "what is there is our own stdout or stderr" if stat.S_ISREG(info.st_mode)
        else "what is there is a device, a pipe or a socket, which a file must not replace"
    )  # fmt: skip
    raise InputError(
        Problem(
            code="snapshot-output-unusable",
            message=what,
            where=shown(target) if out else None,
            hint="name a file, such as snapshots/a100.toml, or leave `-o` out: then the snapshot goes to stdout",
        )
    )


def _is_ours(info: os.stat_result) -> bool:
    """Whether a file is the one that stdout or stderr goes to, as `/dev/stdout` is: replaced, it would lose its end."""
    for number in (1, 2):
        with contextlib.suppress(OSError):
            if os.path.samestat(info, os.fstat(number)):
                return True
    return False


def capture(
    python: str | None = None,
    *,
    query: str | None = None,
    paths: Sequence[str] = (),
    no_run: bool = False,
    no_files: bool = False,
    environ: Mapping[str, str],
    screen: Progress | None = None,
) -> Snapshot:
    """Take a snapshot of this host and return it.

    `python` is an interpreter whose packages are captured too; `query` a vendor's command that lists accelerators;
    `paths` are folders to try besides those that matter always. With `no_files` only the versions of packages are
    read, which takes no time. Nothing is written but files of our own that are
    removed again.

    Raises:
        InputError: `snapshot-override-malformed`, `usage`.
        HostError: `python-too-old`.
        StepError: `interpreter-broken`, `snapshot-failed`, `program-timeout`.
    """
    heard = screen or Progress()
    text = capture_text(
        python, query=query, paths=paths, no_run=no_run, no_files=no_files, environ=environ, screen=heard
    )
    return parse_snapshot(text, "the captured snapshot")


def capture_text(
    python: str | None,
    *,
    query: str | None,
    paths: Sequence[str],
    no_run: bool,
    no_files: bool = False,
    environ: Mapping[str, str],
    screen: Progress,
) -> str:
    """The same, as the TOML that the payload wrote. Raises as `capture` does."""
    words = ["--tool", f"envsmith {__version__}"]
    words += [f"--python={python}"] if python is not None else []
    words += [f"--query={query}"] if query else []
    words += [f"--path={path}" for path in paths]
    words += ["--no-run"] if no_run else []
    words += ["--no-files"] if no_files else []
    if python is not None and not no_files:
        screen.message(f"reading every package of {python}")
    with tempfile.TemporaryDirectory(prefix="envsmith-snapshot-") as scratch:
        given, answer = Path(scratch) / "given.json", Path(scratch) / "snapshot.toml"
        given.write_text(json.dumps(_given()), encoding="utf-8")
        words += ["--given", str(given), "-o", str(answer)]
        done = run((sys.executable, "-I", "-S", "-B", PAYLOAD, *words), env=environ, timeout_s=_LIMIT_S)
        if done.returncode != 0 or not answer.is_file():
            raise _failure(done)
        return answer.read_text(encoding="utf-8")


def planned(snapshot: Snapshot, environ: Mapping[str, str]) -> Snapshot:
    """Lay what ENVSMITH_HOST_* says over a snapshot that was taken before, as a capture would.

    What was seen through another driver or device is left out then: it says nothing of this one.

    Raises:
        InputError: `snapshot-override-malformed` for every variable that does not fit.
    """
    if not any(name.startswith("ENVSMITH_HOST_") for name in environ):
        return snapshot
    with tempfile.TemporaryDirectory(prefix="envsmith-snapshot-") as scratch:
        seen, answer = Path(scratch) / "seen.json", Path(scratch) / "planned.json"
        seen.write_text(snapshot.host.model_dump_json(by_alias=True, exclude_none=True), encoding="utf-8")
        done = run((sys.executable, "-I", "-S", "-B", PAYLOAD, "plan", seen, answer), env=environ, timeout_s=60)
        if done.returncode != 0 or not answer.is_file():
            raise _failure(done)
        said = json.loads(answer.read_text(encoding="utf-8"))
    note = "; ".join(filter(None, (snapshot.snapshot.note, f"set by hand: {', '.join(said['set'])}")))
    about = snapshot.snapshot.model_copy(update={"note": note})
    return snapshot.model_copy(
        update={"host": HostFacts.model_validate_json(json.dumps(said["host"])), "snapshot": about}
    )


def _given() -> dict[str, object]:
    """What the management library of NVIDIA says; empty where it cannot be asked: the payload asks the programs."""
    devices = devices_by_library()
    if not devices:
        return {}
    rows = [
        {"name": one.name, "compute-capability": one.compute_capability, "memory-bytes": one.memory_bytes}
        for one in devices
    ]
    return {
        "accelerator": [{key: value for key, value in row.items() if value is not None} for row in rows],
        "link": [{"a": link.a, "b": link.b, "kind": link.kind} for link in nvidia_links()],
        "driver": devices[0].driver,
    }


def _failure(done: Completed) -> EnvsmithError:
    """What the payload refused, in our errors; anything else is a failure of the payload itself."""
    said = re.findall(r"(?m)^envsmith-snapshot: error\[([a-z-]+)\]: (.*)$", done.stderr)
    if said and done.returncode == InputError.exit_code:
        return InputError(
            *(
                Problem(
                    code="usage" if code == "usage" else "snapshot-override-malformed",
                    message=without_secrets(text),
                    hint=None if code == "usage" else "correct the variable, or unset it",
                )
                for code, text in said
            )
        )
    kind = _ERRORS.get(done.returncode)
    if said and kind is not None:
        return kind(*(Problem(code=code, message=without_secrets(text), hint=_HINTS.get(code)) for code, text in said))
    ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    return StepError(
        Problem(
            code="snapshot-failed",
            message=f"the program that looks at this host ended with {ended}; it said: {done.tail(5) or 'nothing'}",
            where=str(PAYLOAD),
            hint="try `python3 collect.py` with another Python, and please report it",
        )
    )


def summary(snapshot: Snapshot) -> list[str]:
    """A few lines for people: machine, driver, what CUDA answered, devices, interpreter."""
    host = snapshot.host
    machine = (host.os, host.arch, host.kernel and f"kernel {host.kernel}", host.glibc and f"glibc {host.glibc}")
    lines = [f"machine: {_listed(machine)}", f"limits:  {_listed(_limits(host))}"]
    lines.append(f"driver:  {_known(host.driver, 'none')}")
    answer = f"; cuInit: {cuinit_words(host.cuinit)}" if host.libcuda or host.cuinit is not None else ""
    lines.append(f"libcuda: {_known(host.libcuda, 'a fresh process finds none')}{answer}")
    devices = [
        f"{one.count} × {one.name}" + (f" ({one.compute_capability})" if one.compute_capability else "")
        for one in host.accelerator
    ]
    lines.append(f"devices: {', '.join(devices) or 'none'}")
    for row in host.run:
        lines.append(f"run:     {row.dtype} {'is right' if row.ok else f'failed: {row.error}'}")
    if snapshot.python:
        altered = sum(1 for one in snapshot.packages if one.altered)
        lines.append(
            f"python:  {snapshot.python.executable} {snapshot.python.version}, {len(snapshot.packages)} packages"
            + (f", {altered} of them not as their RECORD says" if altered else "")
        )
    if snapshot.snapshot.note:
        lines.append(f"note:    {snapshot.snapshot.note}")
    return [printable(line, keep="") for line in lines]


def _known(text: str | None, without: str) -> str:
    """A fact in words; empty and missing are two things."""
    return "not known" if text is None else text or without


def cuinit_words(answer: int | None) -> str:
    """What cuInit answered, in words; a negative number is the signal that ended its process."""
    if answer is None:
        return "not known"
    if answer < 0:
        try:
            return f"its process ended with {signal.Signals(-answer).name}"
        except ValueError:
            return f"its process ended with signal {-answer}"
    words = _CUINIT.get(answer)
    return f"{answer}, {words}" if words else str(answer)


def _limits(host: HostFacts) -> tuple[str | None, ...]:
    limited = host.cpu_limit is not None and host.cpu_limit >= 0
    sizes = [size for size in (host.memory_bytes, host.memory_limit_bytes) if size is not None and size >= 0]
    return (
        f"{host.cpu_limit:g} of {host.cpus} CPUs"
        if limited
        else f"{host.cpus} CPUs"
        if host.cpus is not None
        else None,
        f"{min(sizes) / (1 << 30):.0f} GiB" if sizes else None,
        f"{host.open_files} open files" if host.open_files is not None else None,
    )


def _listed(words: Sequence[str | None]) -> str:
    return ", ".join(word for word in words if word) or "not known"
