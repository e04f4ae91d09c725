"""Samples of devices beside a log: what `nvidia-smi` wrote of each GPU last before the first effective error.

Read are `nvidia-smi --query-gpu=timestamp,index,… --format=csv` with `-l`, with and without units, and the table that
plain `nvidia-smi` draws under its date (driver branches 470 to 580, read 2026-11-30).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from envsmith.logs.lines import cleaned, lines_of
from envsmith.logs.prefixes import time_of

KEPT = 2048
"""How many samples of a GPU are held; beyond it every second of the older half goes."""
WINDOW_S = 10
_GPUS = 1024
_HEADER = "timestamp"
_DATE = re.compile(r"^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d \d{4}\s*$")
_ROW = re.compile(r"^\|\s+(?P<gpu>\d{1,4})\s+\S.*\|")
_CELLS = re.compile(r"(?P<used>\d+)MiB\s*/\s*(?P<total>\d+)MiB\s*\|(?:\s+(?P<busy>\d+)%)?")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_COLUMNS = {
    "index": "gpu",
    "memory.used": "used",
    "memory.total": "total",
    "utilization.gpu": "busy",
    "temperature.gpu": "celsius",
    "ecc.errors.uncorrected.volatile.total": "uncorrected",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What was seen of one GPU at one time; what the sample does not say is None."""

    file: str
    line: int
    time_s: float
    """Seconds within a year, as lines of logs have it."""
    gpu: int
    used_mib: float | None = None
    total_mib: float | None = None
    busy_percent: float | None = None
    celsius: float | None = None
    uncorrected: float | None = None
    """Memory errors that could not be corrected since the driver was loaded."""


@dataclass(kw_only=True, slots=True)
class SampleReader:
    """Takes the blocks of one file and keeps what they say of GPUs; of a file that holds no samples, nothing."""

    file: str
    kept: dict[int, list[Sample]] = field(default_factory=dict)
    _columns: dict[int, str] | None = None
    _time: int = -1
    _date_s: float | None = None
    _gpu: int | None = None

    def tap(self, block: bytes, number: int) -> None:
        """Take a block of whole lines, with the number of its first line."""
        begin = number == 1 and block[:512].lstrip(b"\xef\xbb\xbf").startswith(_HEADER.encode())
        if not (begin or self._columns is not None or b"NVIDIA-SMI" in block):
            return
        for at, data in enumerate(lines_of(block), number):
            text = cleaned(data)
            if text.startswith(_HEADER):
                self._begin(text)
            elif self._columns is not None:
                self._row(text, at)
            else:
                self._table(text, at)

    def _begin(self, header: str) -> None:
        names = [name.split("[")[0].strip() for name in header.split(",")]
        self._time = names.index(_HEADER)
        self._columns = {n: _COLUMNS[name] for n, name in enumerate(names) if name in _COLUMNS}

    def _row(self, text: str, number: int) -> None:
        cells = text.split(",")
        when = time_of(cells[self._time]) if self._time < len(cells) else None
        if when is None or self._columns is None:
            return
        found = {name: _NUMBER.search(cells[n]) for n, name in self._columns.items() if n < len(cells)}
        values = {name: float(match[0]) for name, match in found.items() if match}
        self._keep(number, when, int(values.pop("gpu", 0)), values)

    def _table(self, text: str, number: int) -> None:
        if _DATE.match(text):
            self._date_s = time_of(text)
        elif self._date_s is None:
            return
        elif match := _CELLS.search(text):
            if self._gpu is not None:
                values = {name: float(value) for name, value in match.groupdict().items() if value}
                self._keep(number, self._date_s, self._gpu, values)
            self._gpu = None
        elif match := _ROW.match(text):
            self._gpu = int(match["gpu"])

    def _keep(self, number: int, time_s: float, gpu: int, values: Mapping[str, float]) -> None:
        if gpu not in self.kept and len(self.kept) >= _GPUS:
            return
        kept = self.kept.setdefault(gpu, [])
        kept.append(
            Sample(
                file=self.file,
                line=number,
                time_s=time_s,
                gpu=gpu,
                used_mib=values.get("used"),
                total_mib=values.get("total"),
                busy_percent=values.get("busy"),
                celsius=values.get("celsius"),
                uncorrected=values.get("uncorrected"),
            )
        )
        if len(kept) > KEPT:
            del kept[: KEPT // 2 : 2]


def fullest_before(readers: Iterable[SampleReader], time_s: float | None) -> tuple[Sample, ...]:
    """Of each GPU the sample with most memory in use from `WINDOW_S` before a time to 1 s after, else its last before.

    A process that fails gives its memory back before it has said why. Without a time there is nothing to say.
    """
    if time_s is None:
        return ()
    found: dict[tuple[str, int], Sample] = {}
    for reader in readers:
        for gpu, kept in reader.kept.items():
            before = [one for one in kept if one.time_s <= time_s + 1]
            near = [one for one in before if one.time_s >= time_s - WINDOW_S]
            if near:
                found[reader.file, gpu] = max(near, key=lambda one: (one.used_mib or 0, one.time_s))
            elif before:
                found[reader.file, gpu] = max(before, key=lambda one: one.time_s)
    return tuple(found.values())


def told(sample: Sample, time_s: float) -> str:
    """A sample as a sentence, with how long before the error it was taken."""
    parts = []
    if sample.used_mib is not None:
        of = f" of {sample.total_mib:,.0f}" if sample.total_mib is not None else ""
        parts.append(f"{sample.used_mib:,.0f}{of} MiB in use")
    if sample.busy_percent is not None:
        parts.append(f"{sample.busy_percent:.0f} % busy")
    if sample.celsius is not None:
        parts.append(f"{sample.celsius:.0f} C")
    if sample.uncorrected:
        parts.append(f"{sample.uncorrected:.0f} uncorrected memory errors")
    ago = time_s - sample.time_s
    when = f"{ago:.0f} s before" if ago >= 0.5 else "at that time"
    return f"GPU {sample.gpu}, {when}: {', '.join(parts) or 'nothing is said'}"
