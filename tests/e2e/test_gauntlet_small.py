"""The generators of the drift gauntlet on a small real env: a choice of faults of each family, and benign changes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from bench.drift.controls import GENERATORS as BENIGN
from bench.drift.fault import Fault, one_of
from bench.drift.gauntlet import FAMILIES, make_controls, make_faults, run_gauntlet
from bench.drift.overlay import Cover, OverlayError, refusal, run_covered
from bench.drift.target import Target, open_target
from bench.drift.trial import Ground, Said, Verdict, judge
from tests.support.project import Project

#: What is wired and needs no deep look. The others run on the big env: `pytest --run-big tests/big`.
CHOSEN = ("files", "imports", "hooks", "launchers", "sources", "conflicts", "records")
FAULTS_EACH = 2
CONTROLS = 4
SEED = 20261130


@pytest.fixture
def target(built: Project, tmp_path: Path) -> Target:
    if reason := refusal(tmp_path):
        pytest.skip(reason)
    return open_target("demo/app", str(built.envs))


def said(verdicts: list[Verdict]) -> str:
    return "\n".join(f"{v.status}: {v.id}: {v.what}: exit {v.said.code}, {v.answer} {v.said.words}" for v in verdicts)


def some(faults: list[Fault]) -> list[Fault]:
    quick = [fault for fault in faults if "--deep" not in fault.level]
    return Random(SEED).sample(quick, min(FAULTS_EACH, len(quick)))


def test_faults_are_named_and_benign_changes_are_not(target: Target, tmp_path: Path) -> None:
    faults = [fault for family in CHOSEN for fault in some(list(make_faults(target, SEED, [family])))]
    benign = [control for control in make_controls(target, SEED, BENIGN) if not control.level]
    ground = Ground(target, tmp_path)
    verdicts, clean, _ = run_gauntlet(ground, faults, Random(SEED).sample(benign, CONTROLS))
    assert (clean.code, clean.findings) == (0, ())
    wrong = [verdict for verdict in verdicts if verdict.status != "found"]
    assert not wrong, said(wrong)
    assert {verdict.family for verdict in verdicts} == {*CHOSEN, "control"}
    assert ground.clean(()).findings == ()  # nothing of all that stayed


def test_the_same_seed_plants_the_same_faults_and_another_one_others(target: Target) -> None:
    one, again, two = ([f.what for f in make_faults(target, seed, FAMILIES)] for seed in (1, 1, 2))
    assert one == again
    assert one != two
    assert len({fault.id for fault in make_faults(target, 1, FAMILIES)}) == len(one)


def test_a_wrong_answer_is_no_right_one() -> None:
    fault = Fault(
        name="x",
        family="files",
        what="x",
        plant=lambda folder: None,
        expect=one_of("files/file-changed"),
        names=("a.py",),
    )
    wired = frozenset({"files"})

    def answer(**changed: str) -> str:
        finding = {"check": "files", "kind": "file-changed", "severity": "error", "subject": "lib/a.py", "message": "x"}
        return judge(fault, Said(code=1, findings=({**finding, **changed},)), Said(code=0), wired).status

    assert answer() == "found"
    assert answer(subject="another") == "misnamed"
    assert answer(kind="file-missing") == "misnamed"
    assert answer(severity="warning") == "misnamed"
    assert judge(fault, Said(code=0), Said(code=0), wired).status == "missed"
    assert judge(fault, Said(code=1), Said(code=0), frozenset({"hooks"})).status == "not wired"


def test_what_is_done_under_cover_does_not_stay(tmp_path: Path) -> None:
    if reason := refusal(tmp_path):
        pytest.skip(reason)
    place = tmp_path / "place"
    place.mkdir()
    (place / "a").write_text("1")
    before = (place / "a").stat()

    def job() -> tuple[str, int, int]:
        there = (place / "a").stat()
        (place / "a").write_text("2")
        (place / "b").write_text("")
        return (place / "a").read_text(), there.st_ino, there.st_ctime_ns

    assert run_covered([Cover(path=place)], tmp_path, job) == ("2", before.st_ino, before.st_ctime_ns)
    assert [path.name for path in place.iterdir()] == ["a"]
    assert (place / "a").read_text() == "1"
    with pytest.raises(OverlayError, match="ZeroDivisionError"):
        run_covered([Cover(path=place)], tmp_path, lambda: 1 // 0)
