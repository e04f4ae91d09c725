"""A diagnosis as text: each cause with its line, its evidence and what to do; or the first error that nothing fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from envsmith.diagnosis import Diagnosis, Relation
from envsmith.errors import printable
from envsmith.listening import FoundFact
from envsmith.logs.firsterror import FirstError, Secondary
from envsmith.logs.samples import Sample
from envsmith.logs.samples import told as told_sample
from envsmith.proving import CONFIRMED, CONTRADICTED, Founded
from envsmith.redaction import for_paper
from envsmith.report import Severity
from envsmith.report_brief import LINES, plain, wrapped
from envsmith.startup import Confirmation

#: How many secondary lines are told; the rest is counted.
SHOWN = 5
SHOWN_SAMPLES = 16
_LETTERS = 1200
"""How much of one value is told."""
START_UP_FIX = "Look at how the run was started: its configuration or environment says otherwise than `[env.X.job]`."
_MARKS = {CONFIRMED: "+", CONTRADICTED: "-"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """All that is told of one run."""

    diagnosis: Diagnosis
    causes: tuple[Founded, ...]
    files: tuple[str, ...]
    samples: tuple[Sample, ...] = ()
    training: tuple[FoundFact, ...] = ()
    confirmations: tuple[Confirmation, ...] = ()
    """Of the recipe's statements, where there is a recipe."""
    env: str | None = None
    """The env as the user named it."""


def text(told: Told) -> str:
    """Render for a terminal."""
    return "\n\n".join(["\n".join(block) for block in _blocks(told)] + [summary(told)])


def _blocks(told: Told) -> Iterator[list[str]]:
    first = told.diagnosis.first
    if first is not None and not _explained(told.causes):
        refuted = any(one.state == CONTRADICTED and one.cause.relation is Relation.SAME for one in told.causes)
        yield list(_unknown(first, told.diagnosis.layer, refuted=refuted))
    yield from (list(_block(one, told.env)) for one in told.causes)
    yield from (list(_fact(one)) for one in told.training)
    yield from (list(_differs(one)) for one in told.confirmations if one.state == "other")
    silent = [f"`{one.expected}`" for one in told.confirmations if one.state == "absent"]
    if silent:
        yield [f"the logs do not say what the recipe states: {', '.join(silent)}"]
    if first is not None and first.time_s is not None and told.samples:
        lines = [f"  {one.file}:{one.line}: {told_sample(one, first.time_s)}" for one in told.samples[:SHOWN_SAMPLES]]
        more = len(told.samples) - SHOWN_SAMPLES
        yield ["the devices then", *lines, *([f"  and {more} more"] if more > 0 else [])]


def _fact(one: FoundFact) -> Iterator[str]:
    fact = one.fact
    yield f"{fact.severity.value}[{fact.kind}]: {_clean(fact.message)}"
    yield f"  line:     {one.file}:{fact.line}"
    yield f"  cause:    {_clean(fact.cause)}"
    yield f"  fix:      {_clean(fact.fix)}"


def _differs(one: Confirmation) -> Iterator[str]:
    yield f"{one.severity.value}[start-up-differs]: {one.title}"
    if one.said is not None:
        yield f"  line:     {one.said.file}:{one.said.line}: {_clean(one.said.text)}"
    yield f"  cause:    {_clean(one.message)}"
    yield f"  fix:      {START_UP_FIX}"


def _explained(causes: Sequence[Founded]) -> bool:
    """Whether a cause is named for the first effective error itself."""
    return any(one.cause.severity is Severity.ERROR and one.cause.relation is Relation.SAME for one in causes)


def _block(one: Founded, env: str | None) -> Iterator[str]:
    cause = one.cause
    yield f"{cause.severity.value}[{cause.symptom.kind}]: {cause.symptom.title}"
    yield f"  line:     {cause.file}:{cause.line}: {_who(cause.rank, cause.worker)}{_clean(cause.text)}"
    yield f"  cause:    {_clean(cause.cause)}"
    yield f"  evidence: {one.state}" + ("" if one.proofs else ": the log alone says it")
    for proof in one.proofs:
        yield f"    {_MARKS.get(proof.state, '?')} {proof.by}: {_clean(proof.says)}"
    yield f"  fix:      {_clean(cause.fix)}"
    yield f"  check:    {command(cause.symptom.check, env)}"
    yield from _following(cause.secondary)


def _following(secondary: Sequence[Secondary]) -> Iterator[str]:
    """What is not the cause, so that nobody goes after it."""
    if not secondary:
        return
    yield f"  besides:  {_lines(len(secondary))} not the cause"
    for line in secondary[:SHOWN]:
        yield f"    {line.file}:{line.line}: {line.reason}: {_who(line.rank, line.worker)}{_clean(line.text)[:120]}"
    if len(secondary) > SHOWN:
        yield f"    and {len(secondary) - SHOWN} more"


def command(check: str, env: str | None) -> str:
    """The command that proves a symptom, as one types it."""
    verb, _, rest = check.partition(" ")
    stack = env.partition("/")[0] if env and not env.startswith(("/", ".", "~")) else "STACK"
    if verb == "verify":
        return f"envsmith verify {env or 'ENV'} --only {rest}"
    if verb == "smoke":
        return f"envsmith smoke {env or 'ENV'} --to {rest}"
    if verb == "check":
        return f"envsmith check {stack}" + (" --host local" if rest == "host" else "")
    return "nothing but the log shows it"


def _unknown(first: FirstError, layer: str | None, *, refuted: bool) -> Iterator[str]:
    if refuted:
        yield "what was looked at speaks against the symptom that fits the first effective error"
    else:
        yield "no known symptom fits the first effective error, and nothing is guessed"
    yield f"  line:     {first.file}:{first.line}: {_who(first.rank, first.worker)}{_clean(first.text)}"
    if first.frame is not None:
        inside = f" in {first.frame.function}" if first.frame.function else ""
        yield f"  raised:   {_clean(first.frame.file)}:{first.frame.line}{inside}"
    if first.signal is not None or first.library is not None:
        yield f"  crash:    {', '.join(filter(None, (first.signal, first.library)))}"
    told = {
        "machine": "look at the machine first",
        "stack": "look at the packages first",
        "job": "look at the job first",
    }
    yield f"  layer:    {layer or 'its lines do not tell'}" + (f": {told[layer]}" if layer else "")
    yield from _following(first.secondary)


def _who(rank: int | None, worker: str | None) -> str:
    said = [*([f"rank {rank}"] if rank is not None else []), *([worker] if worker else [])]
    return f"({', '.join(said)}) " if said else ""


def summary(told: Told) -> str:
    """One line: what was read and how it came out."""
    first, causes = told.diagnosis.first, told.causes
    logs = told.files[0] if len(told.files) == 1 else f"{len(told.files):,} logs"
    kinds = [one.cause.symptom.kind for one in causes if one.cause.severity is Severity.ERROR]
    if first is None:
        kinds += [one.fact.kind for one in told.training if one.fact.severity is Severity.ERROR]
        kinds += ["start-up-differs" for one in told.confirmations if one.state == "other"]
        return f"{logs}: {', '.join(dict.fromkeys(kinds)) or 'no error'}"
    named = ", ".join(dict.fromkeys(kinds)) or "no known cause"
    return f"{logs}: {named}; first effective error {first.file}:{first.line}"


def brief(told: Told) -> str:
    """Render on one sheet: at most 40 lines of 100 columns in ASCII, secrets and long paths cut."""
    lines = list(wrapped(f"envsmith diagnose: {plain(summary(told))}", most=2))
    left = 0
    for block in _blocks(told):
        sheet = [cut for line in block for cut in wrapped(_sheet(line), most=4)]
        if len(lines) + len(sheet) > LINES - 1:
            left += 1
            continue
        lines += sheet
    if left:
        lines.append(f"left out: {left} more part{'s' if left > 1 else ''}")
    return "\n".join(lines[:LINES])


def _sheet(line: str) -> str:
    indent = len(line) - len(line.lstrip())
    return " " * indent + plain(for_paper(line.strip()))


def _clean(value: str) -> str:
    return printable(value, keep="")[:_LETTERS]


def _lines(count: int) -> str:
    return "1 line that is" if count == 1 else f"{count} lines that are"
