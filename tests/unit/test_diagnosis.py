"""What a sign is worth beside the first effective error, and what evidence makes of a cause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from envsmith import diagnosis, diagnosis_text, symptomtable
from envsmith.conditions import Names
from envsmith.diagnosis import Diagnosis, judge, read_run
from envsmith.diagnosis_text import Told, brief, text
from envsmith.logs.lines import LogFile
from envsmith.proving import Looks, found
from envsmith.report import Finding, Severity
from envsmith.symptomtable import symptom_of

ROW: dict[str, Any] = {
    "title": "t",
    "layer": "job",
    "check": "verify native",
    "cause": ["It is."],
    "fix": ["Mend it."],
    "sources": ["composed"],
}
ROWS: tuple[dict[str, Any], ...] = (
    {"kind": "plain", "sign": [{"has": "boom", "match": "boom (?P<size>\\d+)"}], "cause": ["It is.", "{size} bytes."]},
    {"kind": "special", "sign": [{"has": "boom 99"}], "beats": ["plain"]},
    {"kind": "quiet", "sign": [{"has": "freed nothing", "role": "silent", "alone": True}]},
    {"kind": "hinted", "sign": [{"has": "beware of bang", "role": "warning", "alone": True}]},
    {"kind": "paired", "sign": [{"has": "crack"}], "detail": [{"has": "whip", "needed": True, "alone": True}]},
    {"kind": "lonely", "sign": [{"has": "snap"}], "detail": [{"has": "whip", "absent": True, "alone": True}]},
    {"kind": "old", "sign": [{"has": "version"}], "when": ["lock.torch < 2.0"]},
    {
        "kind": "proved",
        "sign": [{"has": "clash"}],
        "proof": [
            {"family": "native", "kinds": ["two-copies"], "clean": "contradicts"},
            {
                "holds": "host.shm_bytes < 1000",
                "says": "only {host.shm_bytes}",
                "denies": "{host.shm_bytes} are enough",
            },
        ],
    },
)


@pytest.fixture(autouse=True)
def own_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    entries = tuple(symptom_of(ROW | row) for row in ROWS)
    monkeypatch.setattr(diagnosis, "symptoms", lambda: entries)
    needles = tuple(has for entry in entries for one in entry.patterns if one.alone for has in one.has)
    monkeypatch.setattr(diagnosis, "needles", lambda: needles)
    yield
    symptomtable.symptoms.cache_clear()


def diagnosed(*texts: str, facts: Names | None = None) -> Diagnosis:
    files = [LogFile(name=f"{n}.log", pieces=[text.encode()]) for n, text in enumerate(texts)]
    return judge(read_run(files), facts or {})


def named(*texts: str, facts: Names | None = None) -> list[tuple[str, str, str]]:
    causes = diagnosed(*texts, facts=facts).causes
    return [(one.symptom.kind, one.severity.value, f"{one.file}:{one.line}") for one in causes]


def test_a_sign_on_the_first_error_is_the_cause_with_what_it_captured() -> None:
    found = diagnosed("all well\nValueError: boom 12\n")
    assert [(one.symptom.kind, one.line, one.cause) for one in found.causes] == [("plain", 2, "It is. 12 bytes.")]
    assert found.layer is None


def test_a_sign_in_the_traceback_or_message_names_the_line_of_the_error() -> None:
    log = 'Traceback (most recent call last):\n  File "/a/boom 3.py", line 1, in f\n    x()\nKeyError: 7\n'
    assert named(log) == [("plain", "error", "0.log:4")]
    assert named("[rank3]: RuntimeError: it broke\n[rank3]: error was a boom 5 of its own\n") == [
        ("plain", "error", "0.log:1")
    ]


def test_a_healthy_log_has_no_cause_whatever_its_words() -> None:
    assert named("INFO boom 12 requests, error rate 0.1\nbeware of bang\n") == []


def test_the_more_specific_one_is_named() -> None:
    assert named("ValueError: boom 99\n") == [("special", "error", "0.log:1")]


def test_a_line_that_follows_from_another_failure_names_nothing() -> None:
    log = "[rank1]: KeyError: 'mine'\n[rank0]: torch.distributed.DistBackendError: NCCL watchdog timeout boom 7\n"
    found = diagnosed(log)
    assert (found.causes, found.first and found.first.line) == ((), 1)


def test_another_error_of_its_own_is_told_as_a_warning_behind_the_first() -> None:
    log = "[rank1]: ValueError: crack\n" + "[rank1]: step\n" * 40 + "[rank2]: ValueError: boom 1\n"
    whip = "whip\n"
    assert named(whip + log) == [("paired", "error", "0.log:2"), ("plain", "warning", "0.log:43")]


def test_an_unknown_first_error_is_not_given_to_a_later_sign() -> None:
    log = "[rank1]: ValueError: mine\n" + "[rank1]: step\n" * 40 + "[rank2]: ValueError: boom 1\n"
    found = diagnosed(log)
    assert found.first is not None and found.first.line == 1
    assert [(one.symptom.kind, one.line) for one in found.causes] == [("plain", 42)]


def test_an_error_on_the_next_line_of_nobody_known_is_another_one() -> None:
    assert named("ValueError: boom 1\nValueError: snap\n") == [
        ("plain", "error", "0.log:1"),
        ("lonely", "warning", "0.log:2"),
    ]
    assert named("ValueError: mine\nValueError: snap\n") == [("lonely", "error", "0.log:2")]
    assert named("RuntimeError: it failed:\nerror: snap\n") == [("lonely", "error", "0.log:1")]


def test_an_error_that_the_training_went_on_after_is_survived() -> None:
    log = "ValueError: crack\nstep\nstep\nstep\nstep\nValueError: boom 1\n"
    reading = read_run([LogFile(name="0.log", pieces=[log.encode()])])

    def first(steps: list[int]) -> int | None:
        told = judge(reading, {}, {0: steps}).first
        return told.line if told else None

    assert first([]) == 1
    assert first([2, 3]) == 1
    assert first([2, 3, 4]) == 6
    assert first([7, 8, 9]) == 1  # it went on after both: neither ended it, and the first is told


def test_a_silent_sign_counts_where_nothing_failed() -> None:
    assert named("INFO freed nothing\n") == [("quiet", "error", "0.log:1")]


def test_a_warning_counts_only_before_an_error() -> None:
    assert named("beware of bang\n") == []
    assert named("beware of bang\nwell\nValueError: x\n") == [("hinted", "warning", "0.log:1")]
    assert named("ValueError: x\nbeware of bang\n") == []


def test_a_detail_may_be_needed_or_must_be_absent() -> None:
    assert named("ValueError: crack\n") == []
    assert named("whip\nValueError: crack\n") == [("paired", "error", "0.log:2")]
    assert named("ValueError: snap\n") == [("lonely", "error", "0.log:1")]
    assert named("whip\nValueError: snap\n") == []


def test_a_condition_that_is_known_not_to_hold_takes_an_entry_out() -> None:
    assert named("ValueError: version\n") == [("old", "error", "0.log:1")]
    assert named("ValueError: version\n", facts={"lock.torch": "1.13.1"}) == [("old", "error", "0.log:1")]
    assert named("ValueError: version\n", facts={"lock.torch": "2.10.0+cu128"}) == []


def test_the_layer_of_an_unknown_error_is_said_by_its_words() -> None:
    assert diagnosed("ImportError: libx.so: undefined symbol: y\n").layer == "stack"
    assert diagnosed("RuntimeError: CUDA error: something new\n").layer == "machine"
    own = 'Traceback (most recent call last):\n  File "/home/u/train.py", line 1, in f\nKeyError: 7\n'
    assert diagnosed(own).layer == "job"
    assert diagnosed(own.replace("/home/u", "/e/lib/python3.11/site-packages/x")).layer is None


def founded(looks: Looks, facts: Names | None = None) -> list[tuple[str, str, list[str]]]:
    said = found(diagnosed("ValueError: clash\n", facts=facts).causes, looks)
    return [(one.state, one.cause.severity.value, [proof.says for proof in one.proofs]) for one in said]


def finding(kind: str) -> Finding:
    return Finding(check="native", kind=kind, severity=Severity.ERROR, subject="libx.so", message="two of them")


def test_nothing_looked_at_is_not_checked() -> None:
    state, severity, says = founded(Looks(findings={}, reasons={}))[0]
    assert (state, severity) == ("not-checked", "error")
    assert says == [
        "not looked at: name the env with `--env`",
        "`host.shm_bytes` is not known: name it with `--host`",
    ]


def test_a_finding_or_a_fact_confirms() -> None:
    looks = Looks(findings={"native": [finding("two-copies"), finding("else")]}, reasons={})
    assert founded(looks)[0][0] == "confirmed"
    assert founded(looks)[0][2][0] == "two-copies: libx.so: two of them"
    state, _, says = founded(Looks(findings={}, reasons={"native": "not built"}), {"host.shm_bytes": 64})[0]
    assert (state, says) == ("confirmed", ["not built", "only 64"])


def test_silence_of_a_decisive_check_contradicts_and_makes_a_warning() -> None:
    state, severity, says = founded(Looks(findings={"native": []}, reasons={}), {"host.shm_bytes": 2000})[0]
    assert (state, severity) == ("contradicted", "warning")
    assert says[1] == "2000 are enough"


def told(*texts: str) -> Told:
    said = diagnosed(*texts)
    causes = found(said.causes, Looks(findings={}, reasons={}))
    return Told(diagnosis=said, causes=causes, files=tuple(f"{n}.log" for n in range(len(texts))), env="a/b")


def test_the_text_names_line_cause_fix_and_check() -> None:
    said = text(told("ValueError: boom 12\nray.exceptions.RayTaskError: x\n"))
    assert said.splitlines()[0] == "error[plain]: t"
    assert "0.log:1: ValueError: boom 12" in said
    assert "envsmith verify a/b --only native" in said
    assert "0.log:2: consequence:" in said
    assert said.splitlines()[-1] == "0.log: plain; first effective error 0.log:1"


def test_an_unknown_error_is_told_without_a_guess() -> None:
    said = text(told("ValueError: mine\n"))
    assert said.startswith("no known symptom fits the first effective error, and nothing is guessed")
    assert text(told("fine\n")) == "0.log: no error"


def test_a_sheet_holds_40_lines_of_100_columns_whatever_the_log() -> None:
    long = "".join(f"[rank{n}]: ValueError: boom 1{n} {'/very/long/path' * 30}\n" for n in range(80))
    lines = brief(told(long, "ValueError: snap\n" * 50)).splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 100
    assert lines[0].startswith("envsmith diagnose: 2 logs: plain; first effective error 0.log:1")


def test_commands_of_checks_can_be_typed() -> None:
    assert diagnosis_text.command("check host", "a100/rl") == "envsmith check a100 --host local"
    assert diagnosis_text.command("smoke device", None) == "envsmith smoke ENV --to device"
    assert diagnosis_text.command("log", None) == "nothing but the log shows it"
