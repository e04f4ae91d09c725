"""What is known beyond the log → whether it bears a cause out: confirmed, contradicted, or not checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from envsmith.conditions import Names, filled, holds
from envsmith.diagnosis import Cause
from envsmith.report import Finding, Severity
from envsmith.symptomtable import Proof

#: Families of `check`, which judge a recipe and its lock, not an env on the disk.
CHECKED = ("host", "rules")
CONFIRMED, CONTRADICTED, UNCHECKED = "confirmed", "contradicted", "not-checked"
_SHOWN = 3
"""How many findings of one family are told for one cause."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proved:
    """What one look beyond the log says of a cause."""

    by: str
    """`verify native`, `check host`, `facts`."""
    state: str
    says: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Looks:
    """What was looked at beyond the log."""

    findings: Mapping[str, Sequence[Finding]]
    """By family; an empty sequence where the family ran and found nothing."""
    reasons: Mapping[str, str]
    """Families that did not run, with what to say of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Founded:
    """A cause with its evidence."""

    cause: Cause
    proofs: tuple[Proved, ...]

    @property
    def state(self) -> str:
        """One confirmation confirms; a contradiction counts where nothing confirms."""
        states = {one.state for one in self.proofs}
        return next((state for state in (CONFIRMED, CONTRADICTED) if state in states), UNCHECKED)


def families_of(causes: Sequence[Cause]) -> tuple[str, ...]:
    """The families that would say something of these causes."""
    return tuple(dict.fromkeys(proof.family for one in causes for proof in one.symptom.proofs if proof.family))


def found(causes: Sequence[Cause], looks: Looks) -> tuple[Founded, ...]:
    """Hold every cause against what was looked at; what is contradicted comes last, and is a warning."""
    held = [Founded(cause=one, proofs=tuple(_proofs(one, looks))) for one in causes]
    held = [
        replace(one, cause=replace(one.cause, severity=Severity.WARNING)) if one.state == CONTRADICTED else one
        for one in held
    ]
    # The order in which the log founds them stays, but for what is disproved.
    return tuple(sorted(held, key=lambda one: (one.cause.severity is not Severity.ERROR, one.state == CONTRADICTED)))


def _proofs(cause: Cause, looks: Looks) -> Iterator[Proved]:
    for proof in cause.symptom.proofs:
        if proof.family is not None:
            yield from _by_family(proof, proof.family, looks)
        elif proof.condition is not None:
            yield _by_facts(proof, cause.names)


def _by_family(proof: Proof, family: str, looks: Looks) -> Iterator[Proved]:
    by = f"check {family}" if family in CHECKED else f"verify {family}"
    if family not in looks.findings:
        reason = looks.reasons.get(family, "not looked at: name the env with `--env`")
        yield Proved(by=by, state=UNCHECKED, says=reason)
        return
    said = [one for one in looks.findings[family] if one.kind in proof.kinds]
    for one in said[:_SHOWN]:
        yield Proved(by=by, state=CONFIRMED, says=f"{one.kind}: {one.subject}: {one.message}")
    if not said:
        state = CONTRADICTED if proof.clean_contradicts else UNCHECKED
        words = "which it would show" if proof.clean_contradicts else "which proves nothing about the run that failed"
        yield Proved(by=by, state=state, says=f"no finding of {' or '.join(proof.kinds)} now, {words}")


def _by_facts(proof: Proof, names: Names) -> Proved:
    assert proof.condition is not None
    condition = proof.condition
    words = f"{condition.left} {condition.op} {condition.right}".strip()
    answer = holds(condition, names)
    space = condition.left.partition(".")[0] + "."
    if condition.op in ("known", "unknown") and not any(name.startswith(space) for name in names):
        answer = None  # nothing at all is known of that machine, lock or env
    if answer is None:
        unknown = [one for one in (condition.left, condition.right) if one.startswith(("host.", "lock.", "env."))]
        missing = ", ".join(f"`{one}`" for one in unknown if one not in names) or words
        option = "--host" if "host." in words else "--env"
        return Proved(by="facts", state=UNCHECKED, says=f"{missing} is not known: name it with `{option}`")
    template = proof.says if answer else proof.denies
    said = filled(template, names) if template else None
    fallback = f"{words}: {'so it is' if answer else 'it is not so'}"
    refused = UNCHECKED if proof.false_is_silent else CONTRADICTED
    return Proved(by="facts", state=CONFIRMED if answer else refused, says=said or fallback)
