"""What `envsmith verify` costs on a real env, beside a bare pass of sha256 over the same files in the same run.

    python -m bench.verify_costs a100/rl --cold

Seconds and megabytes of one machine say little; the ratios in one run are the figures. `--cold` drops the page cache
first, which needs root and makes everything on the machine slow for a while.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

THREADS = 4
BUFFER_BYTES = 1 << 20
DROP = Path("/proc/sys/vm/drop_caches")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """One run as a process of its own."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    """Largest resident set of the process or of one that it started."""
    code: int


def measure(argv: Sequence[str]) -> Cost:
    """Run a program to its end."""
    begun = time.monotonic()
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return Cost(
        wall_s=time.monotonic() - begun,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_bytes=usage.ru_maxrss * 1024,
        code=child.returncode,
    )


def hash_everything(folder: Path) -> tuple[int, int]:
    """Read every regular file once with four threads; return files and bytes. Nothing is compared with anything."""
    found: dict[tuple[int, int], tuple[int, str]] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = f"{place}/{name}"
            info = os.lstat(path)
            if (info.st_mode & 0o170000) == 0o100000:
                found[info.st_dev, info.st_ino] = (info.st_size, path)
    ordered = [path for _, path in sorted(found.values(), reverse=True)]
    with ThreadPoolExecutor(THREADS) as pool:
        sizes = list(pool.map(_hash, ordered, chunksize=1))
    return len(ordered), sum(sizes)


def _hash(path: str) -> int:
    digest = hashlib.sha256()
    buffer = bytearray(BUFFER_BYTES)
    size = 0
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - forty thousand times, without a Path
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
            size += count
    digest.hexdigest()
    return size


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    options = _options(argv)
    if options.hash:
        files, size = hash_everything(Path(options.hash))
        print(files, size)
        return 0
    verify = [sys.executable, "-m", "envsmith", "verify", options.env, "--json", "-q"]
    verify += ["--root", options.root] if options.root else []
    folder = _folder(options.env, options.root)
    bare = [sys.executable, "-m", "bench.verify_costs", "--hash", str(folder), options.env]
    trials: list[tuple[str, list[str], int]] = [
        ("bare sha256, four threads", bare, options.repeat),
        ("verify --deep", [*verify, "--deep"], options.repeat),
        ("verify --deep --only files", [*verify, "--deep", "--only", "files"], options.repeat),
        ("verify", verify, max(3, options.repeat)),
        ("verify --quick", [*verify, "--quick"], max(3, options.repeat)),
        ("verify --only imports", [*verify, "--only", "imports"], max(3, options.repeat)),
        ("bare interpreter", [sys.executable, "-I", "-c", "pass"], 3),
    ]
    done = subprocess.run(bare, capture_output=True, text=True, check=True)
    files, size = map(int, done.stdout.split())
    print(f"{options.env}: {files:,} files, {size / 1e9:.2f} GB; {platform.machine()}, {os.cpu_count()} cores, "
          f"load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}\n")  # fmt: skip
    _table("warm", trials, lambda: None)
    if options.cold:
        _table("cold", trials[:4], drop_caches)
    return 0


def drop_caches() -> None:
    """Let the kernel forget what it read."""
    os.sync()
    DROP.write_text("3\n")


def _table(title: str, trials: Sequence[tuple[str, list[str], int]], before: Callable[[], None]) -> None:
    print(f"| {title} | wall s, median (runs) | CPU s | of bare wall | of bare CPU | peak MB | exit |")
    print("|" + " --- |" * 7)
    bare: Cost | None = None
    for name, argv, repeat in trials:
        costs = []
        for _ in range(repeat):
            before()
            costs.append(measure(argv))
        wall, cpu = median(cost.wall_s for cost in costs), median(cost.cpu_s for cost in costs)
        middle = Cost(wall_s=wall, cpu_s=cpu, peak_bytes=max(c.peak_bytes for c in costs), code=costs[-1].code)
        bare = bare or middle
        runs = ", ".join(f"{cost.wall_s:.2f}" for cost in costs)
        print(
            f"| {name} | {wall:.2f} ({runs}) | {cpu:.2f} | {wall / bare.wall_s:.2f} | {cpu / bare.cpu_s:.2f} "
            f"| {middle.peak_bytes / 1e6:.0f} | {middle.code} |",
            flush=True,
        )
    print()


def _folder(env: str, root: str | None) -> Path:
    """The env directory. Nothing of envsmith is imported here: a child's peak begins with the size of its parent."""
    if env.startswith(("/", ".", "~")):
        return Path(env).expanduser().resolve()
    folder = Path(root or os.environ.get("ENVSMITH_ROOT") or ".envsmith/envs")
    return (folder / env.replace("/", "-") / "current").resolve()


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.verify_costs", description=__doc__.split("\n\n")[0])
    parser.add_argument("env", help="a built env, as for `envsmith verify`")
    parser.add_argument("--root")
    parser.add_argument("--repeat", type=int, default=1, help="runs of what reads every byte")
    parser.add_argument("--cold", action="store_true", help="once more after dropping the page cache; needs root")
    parser.add_argument("--hash", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
