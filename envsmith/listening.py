"""Everything that listens to the one pass over a run's logs besides the symptoms: numbers, start-up words, samples."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from envsmith.diagnosis import Tap
from envsmith.logs.samples import Sample, SampleReader, fullest_before
from envsmith.logs.sampling import SeriesSampler, whole_bytes
from envsmith.logs.training import Series
from envsmith.logs.trainingfacts import TrainingFact, judge_series
from envsmith.recipe import Job
from envsmith.report import Severity
from envsmith.startup import Confirmation, Confirmer, judge_confirmations

_ALIVE = re.compile(r"(?:^|[/_.])(?:loss|pg_loss|grad_norm)$")


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundFact:
    """Something wrong with the numbers of a training, and in which log."""

    file: str
    fact: TrainingFact


def progress_of(numbers: Sequence[Mapping[str, Series]]) -> dict[int, list[int]]:
    """By the place of a file, the lines in order on which a training said how it goes."""
    return {
        place: sorted({line for one in series.values() if _ALIVE.search(one.name) for line in one.lines})
        for place, series in enumerate(numbers)
    }


def facts_of(files: Sequence[str], numbers: Sequence[Mapping[str, Series]], *, failed: bool) -> tuple[FoundFact, ...]:
    """What is wrong with the numbers of a training; what all ranks log alike is told once.

    Beside an error that ended the run it is no more than a warning.
    """
    told: dict[tuple[str, str], FoundFact] = {}
    for name, series in zip(files, numbers, strict=True):
        for fact in judge_series(series):
            weighed = replace(fact, severity=Severity.WARNING) if failed else fact
            told.setdefault((fact.kind, fact.field), FoundFact(file=name, fact=weighed))
    return tuple(told.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Ears:
    """Who listens to each of a run's logs, in their order."""

    files: tuple[str, ...]
    series: tuple[SeriesSampler, ...]
    confirmers: tuple[Confirmer, ...]
    samples: tuple[SampleReader, ...]

    @classmethod
    def for_files(cls, files: Sequence[str]) -> Ears:
        """Make them for logs of these names."""
        return cls(
            files=tuple(files),
            series=tuple(SeriesSampler(whole=whole_bytes(len(files))) for _ in files),
            confirmers=tuple(Confirmer(file=name) for name in files),
            samples=tuple(SampleReader(file=name) for name in files),
        )

    def taps(self, place: int) -> tuple[Tap, ...]:
        """Who is handed the blocks of the file of a place."""
        return self.series[place].tap, self.confirmers[place].tap, self.samples[place].tap

    def numbers(self) -> tuple[Mapping[str, Series], ...]:
        """The series of each log, once all is read."""
        return tuple(sampler.series() for sampler in self.series)

    def confirmations(self, job: Job | None) -> tuple[Confirmation, ...]:
        """What programs said at their start beside what a recipe's job states."""
        said = [one for confirmer in self.confirmers for one in confirmer.said()]
        return judge_confirmations(said, job) if job is not None else ()

    def devices(self, time_s: float | None) -> tuple[Sample, ...]:
        """What was seen of each device before some time."""
        return fullest_before(self.samples, time_s)
