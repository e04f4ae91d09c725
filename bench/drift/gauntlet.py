"""The command: plant, ask, judge, and print a table.

    python -m bench.drift a100/rl --seed 7 --peers --table table.md

Exit code 0 when every fault of a wired family was named and every control was silent, 1 when not, 2 when the untouched
env is not clean, 3 where overlays cannot be mounted.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

from bench.drift import (
    controls,
    faults_conflicts,
    faults_contexts,
    faults_files,
    faults_hooks,
    faults_imports,
    faults_interpreter,
    faults_launch_env,
    faults_launchers,
    faults_native,
    faults_pyc,
    faults_records,
    faults_sources,
    peers,
)
from bench.drift.fault import Control, ControlGenerator, Fault, Generator
from bench.drift.overlay import OverlayError, refusal
from bench.drift.table import render
from bench.drift.target import NoPlace, Target, open_target
from bench.drift.trial import Ground, Said, Verdict, judge, judge_control

FAMILIES: Mapping[str, tuple[Generator, ...]] = {
    "files": faults_files.GENERATORS,
    "imports": faults_imports.GENERATORS,
    "hooks": faults_hooks.GENERATORS,
    "launchers": faults_launchers.GENERATORS,
    "sources": faults_sources.GENERATORS,
    "conflicts": faults_conflicts.GENERATORS,
    "native": faults_native.GENERATORS,
    "pyc": faults_pyc.GENERATORS,
    "interpreter": faults_interpreter.GENERATORS,
    "launch_env": faults_launch_env.GENERATORS,
    "contexts": faults_contexts.GENERATORS,
    "records": faults_records.GENERATORS,
}


class UncleanError(RuntimeError):
    """Nothing can be learned from faults in an env that is not clean."""


def make_faults(target: Target, seed: int, families: Iterable[str]) -> Iterator[Fault]:
    """Every fault of the families that the env has a place for. The same seed plants the same ones."""
    for family in families:
        for generator in FAMILIES[family]:
            try:
                yield from generator(target, Random(f"{seed}:{family}:{generator.__name__}"))
            except NoPlace:
                continue


def make_controls(target: Target, seed: int, generators: Iterable[ControlGenerator]) -> Iterator[Control]:
    """Every benign change."""
    for generator in generators:
        try:
            yield from generator(target, Random(f"{seed}:control:{generator.__name__}"))
        except NoPlace:
            continue


def run_gauntlet(
    ground: Ground,
    faults: Iterable[Fault],
    benign: Iterable[Control],
    *,
    with_peers: bool = False,
    tell: Callable[[Verdict], None] = lambda verdict: None,
) -> tuple[list[Verdict], Said, Mapping[str, tuple[str, ...]]]:
    """Run every trial; return the verdicts, what the untouched env brings, and what other tools say of that.

    An interrupt ends it early and keeps what there is.
    """
    clean = ground.warm_up()
    if clean.code != 0 or not clean.families:
        raise UncleanError(f"the untouched env is not clean: exit {clean.code}, {clean.findings[:3]} {clean.words}")
    wired = frozenset(clean.families)
    pinned = peers.requirements(ground.target, ground.scratch)
    asker = functools.partial(_ask_peers, ground, pinned) if with_peers else None
    untouched = ground.run(lambda: _ask_peers(ground, pinned, ground.environ())) if with_peers else {}
    verdicts = []
    trials: list[Fault | Control] = [*faults, *benign]
    with suppress(KeyboardInterrupt):
        for trial in trials:
            verdict = _try(ground, trial, asker, wired)
            verdicts.append(verdict)
            tell(verdict)
    return verdicts, clean, untouched


def _try(
    ground: Ground,
    trial: Fault | Control,
    asker: Callable[[Mapping[str, str]], Mapping[str, tuple[str, ...]]] | None,
    wired: frozenset[str],
) -> Verdict:
    try:
        said = ground.attempt(trial, asker)
    except OverlayError as error:
        return Verdict(
            id=trial.id,
            family=trial.family if isinstance(trial, Fault) else "control",
            what=trial.what,
            status="plant failed",
            said=Said(code=-1, words=str(error)),
            answer=str(error).strip().splitlines()[-1],
        )
    before = ground.clean(trial.level)
    return judge(trial, said, before, wired) if isinstance(trial, Fault) else judge_control(trial, said, before)


def _ask_peers(ground: Ground, pinned: Path, environ: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    return peers.ask(ground.target, pinned, environ, ground.scratch)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    options = _options(argv)
    target = open_target(options.env, options.root)
    scratch = Path(tempfile.mkdtemp(prefix="gauntlet-", dir=options.scratch)).resolve()
    try:
        reason = refusal(scratch)
        if reason:
            print(f"error: {reason}", file=sys.stderr)
            return 3
        return _run(options, target, Ground(target, scratch))
    except UncleanError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(options: argparse.Namespace, target: Target, ground: Ground) -> int:
    seeds = range(options.seed, options.seed + options.rounds)
    faults: list[Fault] = []
    for seed in seeds:
        for fault in make_faults(target, seed, options.family or FAMILIES):
            faults.append(fault if options.rounds == 1 else replace(fault, name=f"{fault.name}.{seed}"))
    benign = [] if options.no_controls else list(make_controls(target, options.seed, controls.GENERATORS))
    if options.match:
        faults = [fault for fault in faults if options.match in fault.id]
        benign = [control for control in benign if options.match in control.id]
    begun = time.monotonic()
    verdicts, clean, untouched = run_gauntlet(
        ground, faults, benign, with_peers=options.peers, tell=lambda verdict: _tell(verdict, options.verbose)
    )
    text = render(target, options.seed, verdicts, clean, untouched, time.monotonic() - begun)
    if options.table:
        Path(options.table).write_text(text)
    print(text if not options.table else text.split("\n\n")[-1])
    if options.json:
        Path(options.json).write_text(json.dumps(_as_json(verdicts, clean, untouched), indent=1, default=str) + "\n")
    return 0 if all(verdict.status in ("found", "not wired") for verdict in verdicts) else 1


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.drift", description=__doc__.split("\n\n")[0])
    parser.add_argument("env", help="a built env, as for `envsmith verify`")
    parser.add_argument("--root")
    parser.add_argument("--seed", type=int, default=1, help="another seed plants other faults")
    parser.add_argument("--rounds", type=int, default=1, help="so many seeds, counted from --seed")
    parser.add_argument("--family", action="append", choices=sorted(FAMILIES))
    parser.add_argument("--match", help="only trials whose id holds this")
    parser.add_argument("--no-controls", action="store_true")
    parser.add_argument("--peers", action="store_true", help="ask uv and pip about every fault too")
    parser.add_argument("--json", help="write every answer to this file")
    parser.add_argument("--table", help="write the table to this file")
    parser.add_argument("--scratch", help="a folder for upper layers, on the file system of the env")
    parser.add_argument("--verbose", action="store_true", help="print what was said where it was not right")
    return parser.parse_args(argv)


def _tell(verdict: Verdict, verbose: bool) -> None:
    line = f"{verdict.status:<12} {verdict.id:<45} {verdict.said.seconds:5.1f} s  {verdict.answer}"
    print(line, file=sys.stderr, flush=True)
    if verbose and verdict.status != "found":
        print(f"    {verdict.what}\n    exit {verdict.said.code} {verdict.said.words[-1500:]}", file=sys.stderr)
        for finding in verdict.said.findings:
            print(f"    {json.dumps(finding)}", file=sys.stderr, flush=True)


def _as_json(verdicts: Iterable[Verdict], clean: Said, untouched: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    return {"clean": asdict(clean), "peers": dict(untouched), "verdicts": [asdict(verdict) for verdict in verdicts]}
