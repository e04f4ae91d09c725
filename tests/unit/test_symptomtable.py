"""The table of symptoms: what ships is sound, and every fault of an entry is named."""

from __future__ import annotations

from typing import Any

import pytest

from envsmith.checks import host_subject
from envsmith.commands.depth import FAMILIES
from envsmith.symptomtable import needles, symptom_of, symptoms

SOUND: dict[str, Any] = {
    "kind": "a-kind",
    "title": "a thing",
    "layer": "job",
    "check": "check rules",
    "cause": ["It is so.", "It took {size}."],
    "fix": ["Do this."],
    "sources": ["somewhere"],
    "sign": [{"has": "took ", "match": "took (?P<size>\\d+)"}],
}


def test_every_entry_that_ships_can_be_read() -> None:
    assert len({entry.kind for entry in symptoms()}) >= 1
    assert all(needle == needle.lower() for needle in needles())


def test_a_proof_names_a_family_that_exists() -> None:
    known = {*FAMILIES, host_subject.FAMILY, "rules"}
    for entry in symptoms():
        for proof in entry.proofs:
            assert proof.family is None or (proof.family in known and proof.kinds), entry.kind
            assert (proof.family is None) != (proof.condition is None), entry.kind


def test_a_kind_that_gives_way_exists() -> None:
    kinds = {entry.kind for entry in symptoms()}
    for entry in symptoms():
        assert set(entry.beats) <= kinds - {entry.kind}, entry.kind


def test_what_proves_it_is_a_verb_of_ours() -> None:
    for entry in symptoms():
        verb, _, rest = entry.check.partition(" ")
        assert (
            (verb == "verify" and rest in FAMILIES)
            or entry.check in ("check host", "check rules", "log")
            or (verb == "smoke" and rest)
        ), entry.check


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "A Kind"}, "no slug"),
        ({"layer": "cloud"}, "layer `cloud`"),
        ({"cause": []}, "`cause` is missing"),
        ({"sign": []}, "`sign` is missing"),
        ({"odd": 1}, "unknown key `odd`"),
        ({"sign": [{"has": "took ", "match": "("}]}, r"missing \)"),
        ({"sign": [{"has": ""}]}, "needs `has`"),
        ({"sign": [{"has": "a", "role": "loud"}]}, "`role` is one of"),
        ({"sign": [{"has": "a", "colour": "red"}]}, "unknown key `colour` in `sign`"),
        ({"detail": [{"has": "a", "where": "there"}]}, "`where` is one of"),
        ({"when": ["size ~ 3"]}, "is no condition"),
        ({"derive": {"x": "shout(size)"}}, "is no `function"),
        ({"cause": ["It took {time}.", "So."]}, "nothing gives `{time}` a value"),
        ({"cause": ["It took {size}."]}, "a sentence each that holds without"),
        ({"proof": [{"holds": "host.shm_bytes <"}]}, "is no condition"),
    ],
)
def test_a_fault_of_an_entry_is_named(change: dict[str, Any], words: str) -> None:
    symptom_of(SOUND | {"sign": [{"has": "took", "match": "took (?P<size>\\d+)"}]})
    with pytest.raises(ValueError, match=words):
        symptom_of({**SOUND, "sign": [{"has": "took", "match": "took (?P<size>\\d+)"}], **change})
