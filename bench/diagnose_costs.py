"""What `envsmith diagnose` costs on one big log of many ranks, beside `grep` over the same bytes in the same run.

    python -m bench.diagnose_costs --mega-bytes 1000 --repeat 3

The log is made: 64 ranks under torchrun and Ray write steps, metrics, progress bars, notices and harmless lines that
speak of errors; three fifths in, one rank cannot map memory, and all others then report that it is gone. The diagnosis
must name that line and cause, or the run counts as failed.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.verify_costs import Cost, measure

RANKS = 64
KIND = "allocator-env-overridden"
GREP = "grep -c -i -E 'error|exception|fail'"
#: Harmless lines that a careless reader takes for failures, one in so many.
NOISE = (
    "WARNING 11-30 08:{m:02}:{s:02} [utils.py:{n}] retrying request {n}: connection failed, attempt 1 of 5",
    "INFO 11-30 08:{m:02}:{s:02} [metrics.py:{n}] 0 errors, 0 failed, {n} requests",
    "FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated, an error in release {n}",
    "[W1130 08:{m:02}:{s:02}.{n:06} ProcessGroupNCCL.cpp:{n}] Warning: no error, only slow: {n} ms",
)
USUAL = (
    "INFO 11-30 08:{m:02}:{s:02} [worker.py:{n}] step {n}: 812.5 tokens/s, cache hit rate 0.{n}",
    "step:{n} - actor/pg_loss:0.0{n} - actor/grad_norm:0.{n} - critic/score/mean:0.4{n} - response_length/mean:7{n}.5",
    "{{'loss': 0.{n}, 'grad_norm': 1.{n}, 'learning_rate': 1e-06, 'epoch': 0.{n}}}",
    "NCCL INFO Channel {n:02}/32 : {r}[{n}] -> {r}[0] via P2P/CUMEM",
    "  {p}%|####      | {n}/1000 [00:{s:02}<01:10,  2.{n} it/s]",
    "DEBUG:filelock:Lock {n} released on cache file, resuming the data loader at sample {n}",
)


def lines(size_bytes: int, seed: int) -> Iterator[str]:
    """Write about so many bytes of a run."""
    choose = random.Random(seed)
    written, failed = 0, False
    while written < size_bytes:
        if not failed and written >= size_bytes * 3 // 5:
            failed = True
            yield from _failure()
        rank, n = choose.randrange(RANKS), choose.randrange(10, 1000)
        form = choose.choice(NOISE if choose.random() < 0.03 else USUAL)
        said = form.format(n=n, r=rank, m=n % 60, s=(n * 7) % 60, p=n % 100)
        head = f"[rank{rank}]: " if rank % 2 else f"(WorkerDict pid={4000 + rank}, ip=10.0.0.{rank // 8}) "
        written += len(head) + len(said) + 1
        yield head + said
    yield from (f"[rank{rank}]: {words}" for rank in range(RANKS) for words in _after(rank))


def _failure() -> Iterator[str]:
    head = "[rank37]: "
    yield head + "Traceback (most recent call last):"
    yield head + '  File "/data/app/train.py", line 88, in step'
    yield head + "    loss.backward()"
    yield head + "RuntimeError: CUDA driver error: invalid argument"
    yield head + "Exception raised from map at ../c10/cuda/CUDACachingAllocator.cpp:409 (most recent call first):"
    yield head + "frame #2: c10::cuda::CUDACachingAllocator::Native::ExpandableSegment::map(SegmentRange) + 0x5f2"


def _after(rank: int) -> Iterator[str]:
    if rank == 37:
        return
    head = f"[E1130 09:10:{rank:02}.1 ProcessGroupNCCL.cpp:616] [Rank {rank}] "
    yield head + "Watchdog caught collective operation timeout"
    yield "torch.distributed.DistBackendError: NCCL watchdog timeout"


def make(path: Path, size_bytes: int, seed: int) -> int:
    """Write the log; give the number of the line that is the cause."""
    number = cause = 0
    with path.open("w", encoding="utf-8") as stream:
        for number, line in enumerate(lines(size_bytes, seed), 1):
            if "CUDA driver error" in line:
                cause = number
            stream.write(line + "\n")
    print(f"{path.stat().st_size:,} bytes, {number:,} lines, the cause is on line {cause:,}", file=sys.stderr)
    return cause


def check(log: Path, cause: int) -> None:
    """Refuse figures of a run that did not find what is there."""
    import subprocess

    argv = (sys.executable, "-m", "envsmith", "diagnose", str(log), "--json")
    said = json.loads(subprocess.run(argv, capture_output=True, text=True, check=False).stdout)
    found = [(one["kind"], one["line"]) for one in said["data"]["findings"][:1]]
    if found != [(KIND, cause)]:
        raise SystemExit(f"the diagnosis is wrong: {found}, not {[(KIND, cause)]}")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mega-bytes", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "run.log"
        cause = make(log, options.mega_bytes * 1_000_000, options.seed)
        check(log, cause)
        rows = {
            # into a pipe: before /dev/null grep ends at the first match
            GREP: ("sh", "-c", f'{GREP} "$0" | cat', str(log)),
            "envsmith diagnose": (sys.executable, "-m", "envsmith", "-q", "diagnose", str(log)),
        }
        costs = {name: [measure(argv) for _ in range(options.repeat)] for name, argv in rows.items()}
    print(f"{platform.machine()}, Python {platform.python_version()}, {options.mega_bytes} MB")
    print("| command | wall s, median (runs) | CPU s | of grep | peak MB |\n| --- | --- | --- | --- | --- |")
    bare = _wall(costs[GREP])
    for name, runs in costs.items():
        each = ", ".join(f"{one.wall_s:.2f}" for one in runs)
        peak = max(one.peak_bytes for one in runs) / 1e6
        print(
            f"| `{name}` | {_wall(runs):.2f} ({each}) | {median(one.cpu_s for one in runs):.2f} |"
            f" {_wall(runs) / bare:.2f} | {peak:.0f} |"
        )


def _wall(runs: list[Cost]) -> float:
    return median(one.wall_s for one in runs)


if __name__ == "__main__":
    main()
