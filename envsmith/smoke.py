"""The smoke ladder as values: which rungs are climbed, with which limits, and what their ends and answers mean.

No process is started here. A rung passes when every process ended with exit code 0 as the operating system saw it,
every rank answered, and no statement of an answer is against it; what a process printed is no evidence
(facts/symptoms.md D50).
"""

from __future__ import annotations

import difflib
import re
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from envsmith.errors import InputError, Problem
from envsmith.report import Finding, Severity

#: Device memory that a driver may keep for itself between two readings, in bytes: contexts of other programs of the
#: driver come and go; a process that was left behind holds hundreds of MiB.
MEMORY_TOLERANCE_BYTES: Final = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RungKind:
    """What envsmith knows about one kind of rung."""

    timeout_s: float
    needs: tuple[str, ...] = ()
    """Distributions without which it is left out of a ladder that no recipe describes."""
    ranked: bool = False
    """Whether envsmith starts one process a rank; the others start their own."""
    payload: bool = True
    """Whether a file of envsmith/rungs runs in the env; the others are envsmith's own work or the user's command."""
    ranks: int = 1
    shows: tuple[str, ...] = ()
    """Statements that every rank must have made as `ok`: without them an answer proves nothing."""


#: Every kind, in the order in which a ladder is climbed: each widens one dimension (facts/field-notes.md G).
LADDER: Final[Mapping[str, RungKind]] = {
    "static": RungKind(timeout_s=1800, payload=False),
    "device": RungKind(timeout_s=300, needs=("torch",), shows=("numerics",)),
    "collective": RungKind(
        timeout_s=300, needs=("torch",), ranked=True, ranks=2, shows=("all-reduce", "broadcast", "all-gather")
    ),
    "encode": RungKind(timeout_s=300, needs=("transformers", "torch"), shows=("supervised-answers",)),
    "generate": RungKind(timeout_s=900, needs=("transformers", "torch"), shows=("finite-logits", "same-twice")),
    "embed": RungKind(timeout_s=300, needs=("transformers", "torch"), shows=("service-health", "service-dimension")),
    "ray-generate": RungKind(timeout_s=900, needs=("transformers", "torch", "ray"), shows=("ray-same-tokens",)),
    "train-step": RungKind(
        timeout_s=900,
        needs=("transformers", "torch"),
        ranked=True,
        shows=("parameters-unchanged", "engine-not-synced", "rollout-not-new"),
    ),
    "llamafactory-step": RungKind(timeout_s=3600, needs=("llamafactory", "torch"), shows=("upstream-exit",)),
    "verl-step": RungKind(timeout_s=3600, needs=("verl", "torch"), shows=("verl-config",)),
    "resume": RungKind(
        timeout_s=900,
        needs=("transformers", "torch"),
        shows=("step-differs", "optimizer-differs", "data-position-differs"),
    ),
    "merge-serve": RungKind(
        timeout_s=600, needs=("transformers", "torch"), shows=("merged-parameters", "served-completion")
    ),
    "exit-clean": RungKind(timeout_s=60, payload=False),
    "command": RungKind(timeout_s=3600, payload=False),
}
#: Rungs that only a recipe can ask for.
_ON_REQUEST: Final = ("command",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rung:
    """One rung that is to be climbed."""

    kind: str
    label: str
    """Its name in the record: the kind, with a number where a recipe has several of it."""
    timeout_s: float
    ranks: int
    steps: int
    options: Mapping[str, Any]
    """The recipe's table, keys in kebab-case, without what stands in the fields above."""

    @property
    def module(self) -> str:
        """The payload's module."""
        return self.kind.replace("-", "_")

    @property
    def processes(self) -> int:
        """How many processes envsmith starts."""
        return self.ranks if LADDER[self.kind].ranked else 1


def climb(
    tables: Sequence[Mapping[str, Any]],
    *,
    packages: Collection[str],
    to: str | None = None,
    only: Sequence[str] = (),
) -> tuple[Rung, ...]:
    """The rungs to climb, in the ladder's order: those of the recipe, else all that the env has the packages for.

    `to` is the last one, `only` names the ones to climb, by kind or name; one that is not among them is added with
    its own limits.

    Raises:
        InputError: `unknown-rung`.
    """
    known = list(LADDER)
    named = {str(table["name"]) for table in tables if table.get("name")}
    wrong = [_unknown(one, known) for one in filter(None, (to, *only)) if one not in LADDER and one not in named]
    if wrong:
        raise InputError(*wrong)
    if to in named:
        to = next(table["rung"] for table in tables if table.get("name") == to)
    chosen = list(tables) or [
        {"rung": kind}
        for kind, about in LADDER.items()
        if kind not in _ON_REQUEST and set(about.needs) <= set(packages)
    ]
    if to is not None:
        chosen = [table for table in chosen if known.index(table["rung"]) <= known.index(to)]
        if all(table["rung"] != to for table in chosen):
            if to in _ON_REQUEST:
                raise InputError(_nothing_to_run(to))
            chosen.append({"rung": to})
    if only:
        kept = [table for table in chosen if table["rung"] in only or table.get("name") in only]
        there = {table["rung"] for table in kept} | {table.get("name") for table in kept}
        lacking = [one for one in only if one not in there]
        if set(lacking) & set(_ON_REQUEST):
            raise InputError(_nothing_to_run(lacking[0]))
        chosen = kept + [{"rung": one} for one in dict.fromkeys(lacking)]
    chosen.sort(key=lambda table: known.index(table["rung"]))
    return tuple(_rung(table, chosen) for table in chosen)


def left_out(packages: Collection[str]) -> tuple[Finding, ...]:
    """What a ladder that no recipe describes leaves out, with the packages that the env lacks for it."""
    lacks = {kind: sorted(set(about.needs) - set(packages)) for kind, about in LADDER.items()}
    said: dict[str, list[str]] = {}
    for kind, names in lacks.items():
        if names:
            said.setdefault(", ".join(names), []).append(kind)
    return tuple(
        Finding(
            check="ladder",
            kind="left-out",
            severity=Severity.NOTE,
            subject=", ".join(kinds),
            message=f"not climbed, because the env has no {names}: {', '.join(kinds)}",
        )
        for names, kinds in said.items()
    )


def _unknown(name: str, known: Sequence[str]) -> Problem:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"rungs: {', '.join(known)}"
    return Problem(code="unknown-rung", message=f"`{name}` is not a rung of the smoke ladder", hint=hint)


def _nothing_to_run(kind: str) -> Problem:
    return Problem(
        code="unknown-rung",
        message=f"the recipe has no rung `{kind}`, and envsmith cannot know what it should run",
        hint=f'add `[[env.X.smoke]]` with `rung = "{kind}"` and `command = [...]` to the recipe, and build again',
    )


def _rung(table: Mapping[str, Any], chosen: Sequence[Mapping[str, Any]]) -> Rung:
    kind = table["rung"]
    same = [one for one in chosen if one["rung"] == kind]
    number = next(n for n, one in enumerate(same, 1) if one is table)
    own = {"rung", "timeout-s", "ranks", "steps", "name"}
    taken = {one.get("name") for one in chosen}
    label = kind if len(same) == 1 else f"{kind}-{number}"
    while label in taken:
        label += "-"
    return Rung(
        kind=kind,
        label=table.get("name") or label,
        timeout_s=float(table.get("timeout-s") or LADDER[kind].timeout_s),
        ranks=int(table.get("ranks") or LADDER[kind].ranks),
        steps=int(table.get("steps") or 2),
        options={key: value for key, value in table.items() if key not in own and value not in (None, [], (), {})},
    )


# --- what came of a rung ---


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How one process of a rung ended, as the operating system says."""

    rank: int
    returncode: int | None
    """Exit code, or minus the signal; None when it had to be killed."""
    seconds: float
    timed_out: bool = False
    """It ran past the rung's limit."""
    stopped: bool = False
    """envsmith ended it because another rank had failed."""

    @property
    def words(self) -> str:
        """`exit code 1`, `signal SIGSEGV`, `no end within the limit`."""
        if self.timed_out:
            return "no end within the limit"
        if self.stopped or self.returncode is None:
            return "ended by envsmith after another rank had failed"
        if self.returncode < 0:
            return f"signal {signal_name(-self.returncode)}"
        return f"exit code {self.returncode}"


def signal_name(number: int) -> str:
    """`SIGSEGV`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftover:
    """A process that a rung left running when its own had ended."""

    pid: int
    name: str
    argv: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A file in /dev/shm that a rung made, that is still there and that no process has open or mapped."""

    name: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RungRun:
    """What was observed of one rung."""

    rung: Rung
    argv: tuple[str, ...]
    seconds: float
    ended: tuple[Ended, ...]
    answers: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Rank to what it answered."""
    malformed: Mapping[int, str] = field(default_factory=dict)
    """Rank to why its answer could not be read."""
    findings: tuple[Finding, ...] = ()
    """What envsmith found itself: the verification of `static`, the expectations of `command`."""
    memory_before: tuple[int, ...] | None = None
    """Bytes in use on each device as the driver says; None where there is no device."""
    memory_after: tuple[int, ...] | None = None
    leftovers: tuple[Leftover, ...] = ()
    segments: tuple[Segment, ...] = ()

    @property
    def device(self) -> str | None:
        """Where it ran, as its first rank says."""
        answer = self.answers.get(0)
        return str(answer["device"]) if answer else None

    @property
    def statements(self) -> tuple[tuple[int, Mapping[str, Any]], ...]:
        """(rank, statement) of all answers."""
        return tuple((rank, one) for rank, answer in sorted(self.answers.items()) for one in answer["statements"])


_SEVERITIES: Final = {
    "failed": Severity.ERROR,
    "inconclusive": Severity.ERROR,
    "warning": Severity.WARNING,
    "note": Severity.NOTE,
}


def judge_rung(run: RungRun) -> tuple[Finding, ...]:
    """Everything that is to be said about a rung; it has passed when none of it is an error."""
    found = [*_ends(run), *_answered(run), *run.findings, *_statements(run), *_left(run)]
    if not any(one.severity is Severity.ERROR for one in found):
        found += _shown(run)
    unique = {(one.kind, one.message, one.actual): one for one in found}
    return tuple(unique.values())


def status_of(run: RungRun, findings: Collection[Finding]) -> str:
    """`passed`, `failed` or `inconclusive`: the latter when nothing failed and nothing was proved either."""
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if not errors:
        return "passed"
    undecided = {one["what"] for _, one in run.statements if one["verdict"] == "inconclusive"} | {"nothing-shown"}
    return "inconclusive" if {finding.kind for finding in errors} <= undecided else "failed"


def _finding(run: RungRun, kind: str, severity: Severity, message: str, **words: str | None) -> Finding:
    return Finding(check=run.rung.kind, kind=kind, severity=severity, subject=run.rung.label, message=message, **words)


_SLOW: Final = "its log ends with where each thread stood; raise `timeout-s` of the rung if it was only slow"
_SLOW_COMMAND: Final = (
    "raise `timeout-s` of the rung if it was only slow; with `python -X faulthandler` its log ends with where it stood"
)


def _ends(run: RungRun) -> Iterator[Finding]:
    several = len(run.ended) > 1
    for one in run.ended:
        who = f"rank {one.rank}" if several else "the process"
        if one.timed_out:
            yield _finding(
                run,
                "rung-timeout",
                Severity.ERROR,
                f"{who} did not end within {run.rung.timeout_s:.0f} s",
                expected=f"an end within {run.rung.timeout_s:.0f} s",
                actual=one.words,
                hint=_SLOW if LADDER[run.rung.kind].payload else _SLOW_COMMAND,
            )
        elif one.returncode != 0 and not one.stopped:
            answered = one.rank in run.answers and not any(
                rank == one.rank and said["verdict"] == "failed" for rank, said in run.statements
            )
            yield _finding(
                run,
                "rank-exit",
                Severity.ERROR,
                f"{who} ended with {one.words}" + (", although it had answered that it was done" if answered else ""),
                expected="exit code 0",
                actual=one.words,
                hint="read the log of that rank",
            )


def _answered(run: RungRun) -> Iterator[Finding]:
    if not LADDER[run.rung.kind].payload:
        return
    for one in run.ended:
        if one.returncode != 0 or one.rank in run.answers:
            continue
        why = run.malformed.get(one.rank)
        yield _finding(
            run,
            "no-answer",
            Severity.ERROR,
            f"rank {one.rank} ended with exit code 0 and gave no answer",
            expected="an answer file",
            actual=f"one that cannot be read: {why}" if why else "none",
            hint="something in the env ends processes early, for example an exit hook: its log is the place to look",
        )


def _shown(run: RungRun) -> Iterator[Finding]:
    """An answer that lacks what its rung is there to show: nothing failed, and nothing was proved."""
    for rank, answer in sorted(run.answers.items()):
        said = {one["what"] for one in answer["statements"] if one["verdict"] == "ok"}
        lacking = [what for what in LADDER[run.rung.kind].shows if what not in said]
        if lacking:
            yield _finding(
                run,
                "nothing-shown",
                Severity.ERROR,
                f"rank {rank} answered without saying what this rung is there to show",
                expected=", ".join(lacking),
                actual=", ".join(sorted(said)) or "no statement at all",
                hint="something in the env answers in the payload's place, or ends it early: look at its hooks",
            )


def _statements(run: RungRun) -> Iterator[Finding]:
    for rank, one in run.statements:
        severity = _SEVERITIES.get(one["verdict"])
        if severity is None:
            continue
        yield Finding(
            check=run.rung.kind,
            kind=one["what"],
            severity=severity,
            subject=one["subject"] or (f"{run.rung.label}, rank {rank}" if len(run.ended) > 1 else run.rung.label),
            message=one["message"],
            expected=one["expected"],
            actual=one["actual"],
            hint=one["hint"],
        )


def _left(run: RungRun) -> Iterator[Finding]:
    if run.rung.kind == "command":  # it comes after `exit-clean`, so nothing else judges what it leaves
        yield from judge_exit(run.rung, (replace(run, ended=()),), run.memory_before)
        return
    for one in run.leftovers:
        yield _finding(
            run,
            "process-left-behind",
            Severity.WARNING,
            f"process {one.pid} (`{one.name}`) was still there when the rung had ended, and was killed",
            actual=" ".join(one.argv)[:300] or None,
            hint="who started it should end it; `exit-clean` does not pass with it",
        )


#: How frameworks name their files in /dev/shm: multiprocessing (`psm_`, `sem.`), torch, NCCL, Ray's plasma, OpenMP,
#: CUDA, vLLM (`psm_` too), and what stands in a folder of theirs. Read off running processes, 2026-11-30.
_FRAMEWORKS: Final = re.compile(r"(?:psm_|sem\.|torch_|nccl-|plasma|ray|__KMP|cuda|vllm|mp-|pym-)", re.IGNORECASE)


def judge_exit(rung: Rung, before: Sequence[RungRun], baseline: tuple[int, ...] | None) -> Iterator[Finding]:
    """Whether everything that the rungs before took was given back: exit codes, processes, device and shared memory.

    Misses memory that the driver counts for nobody, and processes that left our session and dropped our mark.
    """
    for run in before:
        label = run.rung.label
        for end in run.ended:
            if end.returncode != 0:
                yield _exit(rung, "rank-exit", f"rank {end.rank} of `{label}` ended with {end.words}", label)
        for one in run.leftovers:
            yield _exit(rung, "process-left-behind", f"`{label}` left process {one.pid} (`{one.name}`) behind", label)
        for segment in run.segments:
            left = _exit(
                rung,
                "memory-not-returned",
                f"`{label}` left {segment.size_bytes} bytes in /dev/shm/{segment.name}, which no process uses",
                label,
                hint="that memory is lost until the file is removed; the process that made it died or forgot it",
            )
            # Nobody can say who made a file; those that frameworks name so are taken for ours.
            yield left if _FRAMEWORKS.match(segment.name) else replace(left, severity=Severity.WARNING)
        yield from _unreturned(rung, run, baseline)


def _unreturned(rung: Rung, run: RungRun, baseline: tuple[int, ...] | None) -> Iterator[Finding]:
    if baseline is None:
        return
    if run.memory_after is None or len(run.memory_after) != len(baseline):
        seen = "none" if run.memory_after is None else str(len(run.memory_after))
        message = f"after `{run.rung.label}` the driver does not answer for every device any more"
        hint = "look at the kernel's messages: `dmesg | grep -i xid`"
        words = {"expected": f"{len(baseline)} devices", "actual": seen, "hint": hint}
        yield _exit(rung, "device-lost", message, run.rung.label, **words)
        return
    for device, (was, now) in enumerate(zip(baseline, run.memory_after, strict=True)):
        if now > was + MEMORY_TOLERANCE_BYTES:
            yield _exit(
                rung,
                "memory-not-returned",
                f"device {device} had {now - was} bytes more in use after `{run.rung.label}` than at first",
                run.rung.label,
                expected=f"{was} bytes, and at most {MEMORY_TOLERANCE_BYTES} more",
                actual=f"{now} bytes, as the driver says",
                hint="a process that still holds it may hide in another session or container: `nvidia-smi` lists them",
            )


def _exit(rung: Rung, kind: str, message: str, subject: str, **words: str | None) -> Finding:
    return Finding(check=rung.kind, kind=kind, severity=Severity.ERROR, subject=subject, message=message, **words)


#: How deep an answer may be nested, and how large its whole numbers may be: what evidence can carry.
_DEEPEST, _LARGEST = 12, 2**63


def _require_plain(data: object) -> None:
    """Refuse what other readers of JSON choke on.

    Raises:
        ValueError: what it is.
    """
    level: list[object] = [data]
    for _ in range(_DEEPEST):
        level = [inner for one in level for inner in _inside(one)]
        for one in level:
            if isinstance(one, str):
                one.encode()  # a lone surrogate is a UnicodeEncodeError, which is a ValueError
            elif isinstance(one, int) and abs(one) > _LARGEST:
                raise ValueError("a number has more than 63 bits")
    if level:
        raise ValueError(f"it is nested deeper than {_DEEPEST} levels")


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return (*value.keys(), *value.values())
    return value if isinstance(value, list) else ()


def parse_answer(data: object) -> Mapping[str, Any]:
    """Hold an answer file against its form, docs/smoke.md.

    Raises:
        ValueError: what is wrong with it.
    """
    _require_plain(data)
    if not isinstance(data, dict) or not isinstance(data.get("device"), str):
        raise ValueError("it is no table with a `device`")
    for key in ("figures", "identities"):
        if not isinstance(data.get(key), dict):
            raise ValueError(f"`{key}` is missing or no table")
    statements = data.get("statements")
    if not isinstance(statements, list):
        raise ValueError("`statements` is missing or no list")
    for one in statements:
        if not isinstance(one, dict) or not all(
            isinstance(one.get(key), str) for key in ("what", "verdict", "message")
        ):
            raise ValueError("a statement lacks `what`, `verdict` or `message`")
        if one["verdict"] not in ("ok", *_SEVERITIES):
            raise ValueError(f"`{one['verdict'][:40]}` is no verdict")
        if not all(
            one.get(key) is None or isinstance(one[key], str) for key in ("subject", "expected", "actual", "hint")
        ):
            raise ValueError("a statement has words that are no text")
    keys = ("subject", "expected", "actual", "hint")
    return {**data, "statements": [{**dict.fromkeys(keys), **one} for one in statements]}
