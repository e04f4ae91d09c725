"""Everything that listens to the one pass over a run's logs besides the symptoms: numbers, start-up words, samples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from envsmith.diagnosis import Tap
from envsmith.logs.samples import Sample, SampleReader, fullest_before
from envsmith.logs.sampling import SeriesSampler, whole_bytes
from envsmith.logs.trainingfacts import TrainingFact, judge_series
from envsmith.recipe import Job
from envsmith.startup import Confirmation, Confirmer, judge_confirmations

_ALIVE = re.compile(r"(?:^|[/_.])(?:loss|pg_loss|grad_norm)$")


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundFact:
    """Something wrong with the numbers of a training, and in which log."""

    file: str
    fact: TrainingFact


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

    def progress(self) -> dict[int, list[int]]:
        """By the place of a file, the lines in order on which a training said how it goes."""
        return {
            place: sorted({line for one in sampler.series().values() if _ALIVE.search(one.name) for line in one.lines})
            for place, sampler in enumerate(self.series)
        }

    def training(self) -> tuple[FoundFact, ...]:
        """What is wrong with the numbers of a training; what all ranks log alike is told once."""
        told: dict[tuple[str, str], FoundFact] = {}
        for name, sampler in zip(self.files, self.series, strict=True):
            for fact in judge_series(sampler.series()):
                told.setdefault((fact.kind, fact.field), FoundFact(file=name, fact=fact))
        return tuple(told.values())

    def confirmations(self, job: Job | None) -> tuple[Confirmation, ...]:
        """What programs said at their start beside what a recipe's job states."""
        said = [one for confirmer in self.confirmers for one in confirmer.said()]
        return judge_confirmations(said, job) if job is not None else ()

    def devices(self, time_s: float | None) -> tuple[Sample, ...]:
        """What was seen of each device before some time."""
        return fullest_before(self.samples, time_s)
