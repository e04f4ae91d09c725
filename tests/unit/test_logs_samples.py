"""Samples of nvidia-smi beside a log, aligned by time."""

from __future__ import annotations

from envsmith.logs.prefixes import time_of
from envsmith.logs.samples import KEPT, SampleReader, fullest_before, told

CSV = """timestamp, index, name, utilization.gpu [%], memory.used [MiB], memory.total [MiB], temperature.gpu
2026/11/30 08:32:01.120, 0, NVIDIA A100-SXM4-80GB, 98 %, 70123 MiB, 81920 MiB, 61
2026/11/30 08:32:01.121, 1, NVIDIA A100-SXM4-80GB, 99 %, 81500 MiB, 81920 MiB, 64
2026/11/30 08:32:31.120, 0, NVIDIA A100-SXM4-80GB, 0 %, 3 MiB, 81920 MiB, 40
"""
TABLE = """Mon Nov 30 08:32:01 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.124.06             Driver Version: 570.124.06     CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   45C    P0            350W /  700W |   80011MiB /  81559MiB |     97%      Default |
"""


def read(text: str) -> SampleReader:
    reader = SampleReader(file="smi.csv")
    reader.tap(text.encode(), 1)
    return reader


def test_the_fullest_sample_before_the_error_counts() -> None:
    when = time_of("2026-11-30 08:32:10")
    assert when is not None
    found = fullest_before([read(CSV)], when)
    assert [(one.gpu, one.line, one.used_mib) for one in found] == [(0, 2, 70123), (1, 3, 81500)]
    assert told(found[1], when) == "GPU 1, 9 s before: 81,500 of 81,920 MiB in use, 99 % busy, 64 C"


def test_what_a_process_gave_back_when_it_died_hides_nothing() -> None:
    rows = [f"2026/11/30 08:32:{n:02}.0, 0, {n * 1000 if n < 8 else 0} MiB" for n in range(20)]
    reader = read("\n".join(["timestamp, index, memory.used [MiB]", *rows]))
    assert [one.used_mib for one in fullest_before([reader], time_of("2026-11-30 08:32:09"))] == [7000]
    assert [one.used_mib for one in fullest_before([reader], time_of("2026-11-30 08:40:00"))] == [0]


def test_the_drawn_table_is_read_too() -> None:
    found = fullest_before([read(TABLE)], time_of("2026-11-30 08:32:04"))
    assert [(one.gpu, one.used_mib, one.total_mib, one.busy_percent) for one in found] == [(0, 80011, 81559, 97)]


def test_without_a_time_and_before_the_first_sample_nothing_is_said() -> None:
    assert fullest_before([read(CSV)], None) == ()
    assert fullest_before([read(CSV)], time_of("2026-11-30 08:00:00")) == ()


def test_a_log_is_no_sample() -> None:
    reader = read("2026-11-30 08:32:01 INFO index 3 of 8\n" * 100)
    assert reader.kept == {}


def test_long_samplings_stay_small_and_keep_the_end() -> None:
    rows = [f"2026/11/30 {n // 3600:02}:{n // 60 % 60:02}:{n % 60:02}.0, 0, {n} MiB" for n in range(20_000)]
    reader = read("\n".join(["timestamp, index, memory.used [MiB]", *rows]))
    assert len(reader.kept[0]) <= KEPT
    assert reader.kept[0][-1].used_mib == 19_999
