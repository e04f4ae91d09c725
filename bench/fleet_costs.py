"""What reducing the answers of a big fleet costs: real answers of one node, given to many names.

    python -m bench.fleet_costs a100/rl --root DIR --nodes 1000 --nodes 10000 --repeat 3

The env is verified here once, as a node does it; answer and detail are then written under as many names, and every
hundredth node is given another driver, another file or rubbish. Each reduction must name exactly those, or there are
no figures.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from bench.verify_costs import Cost, measure
from envsmith.fleet import digest

#: One node in so many is wrong, in one of three ways in turn.
WRONG_EVERY = 100
FINDING = {
    "check": "files", "kind": "file-changed", "severity": "error", "subject": "lib/planted.py",
    "message": "a file was changed", "expected": "sha256:0", "actual": "sha256:1",
}  # fmt: skip


def first_answer(env: str, root: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Let this machine answer as a node; return its answer and its detail."""
    command = [sys.executable, "-m", "envsmith", "verify", env, "--root", root, "--collect", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text()), json.loads((folder / "details" / path.name).read_text())


def make(folder: Path, nodes: int, answer: Mapping[str, Any], detail: Mapping[str, Any]) -> set[str]:
    """Write the answers of `nodes` nodes; return the names of those that are wrong."""
    (folder / "details").mkdir(parents=True)
    wrong = set()
    for number in range(nodes):
        name = f"node-{number:05}"
        mine, behind = {**answer, "node": name}, dict(detail)
        text = json.dumps(mine)
        if number % WRONG_EVERY == WRONG_EVERY - 1:
            wrong.add(name)
            way = number // WRONG_EVERY % 3
            if way == 0:
                mine["facts"] = {**mine["facts"], "driver": f"535.{number}"}
                behind["facts"] = {**behind["facts"], "driver": f"535.{number}"}
            if way == 1:
                behind["families"] = {**behind["families"], "files": [FINDING]}
                mine |= {"families": {**mine["families"], "files": digest([number])}, "errors": 1}
            text = json.dumps(mine) if way < 2 else text[: len(text) // 2]
        (folder / f"{name}.json").write_text(text)
        (folder / "details" / f"{name}.json").write_text(json.dumps(behind))
    return wrong


def reduced(folder: Path, nodes: int, wrong: set[str]) -> Cost:
    """Reduce once, as a process of its own, and hold its answer against what was planted."""
    command = [sys.executable, "-m", "envsmith", "verify", "--collect", str(folder), "--nodes", str(nodes), "--json"]
    said = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["data"]["fleet"]
    named = {node for group in said["differ"] for node in group["nodes"]} | {one["node"] for one in said["silent"]}
    if named != wrong or len(said["agree"]) != nodes - len(wrong):
        raise SystemExit(f"not the planted nodes were named: {sorted(named ^ wrong)[:5]}")
    return measure(command)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("env")
    parser.add_argument("--root", default=".envsmith/envs")
    parser.add_argument("--nodes", type=int, action="append")
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.machine()}, {asked.env}")
    with tempfile.TemporaryDirectory(prefix="envsmith-fleet-bench-") as place:
        answer, detail = first_answer(asked.env, asked.root, Path(place) / "one")
        print(f"one answer {len(json.dumps(answer))} bytes, one detail {len(json.dumps(detail))} bytes")
        print("| nodes | wall s, median (runs) | CPU s | peak MB |\n| --- | --- | --- | --- |")
        for nodes in asked.nodes or [1000]:
            folder = Path(place) / str(nodes)
            wrong = make(folder, nodes, answer, detail)
            costs = [reduced(folder, nodes, wrong) for _ in range(asked.repeat)]
            walls = ", ".join(f"{cost.wall_s:.2f}" for cost in costs)
            middle = median(cost.wall_s for cost in costs)
            peak = max(cost.peak_bytes for cost in costs) / 1e6
            print(
                f"| {nodes} | {middle:.2f} ({walls}) | {median(c.cpu_s for c in costs):.2f} | {peak:.0f} |", flush=True
            )
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
