"""What bundles cost, beside plain tools on the same wheels in the same run.

    python -m bench.bundle_costs a100 --env rl --work DIR [--registry 127.0.0.1:5000] [--source verl=PATH]

The peers: `tar` of the wheels, `sha256sum` of them, uv installing the same set from a folder, and skopeo. Ratios in one
run are the figures; seconds of one machine say little. The store must hold the stack's files already.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.verify_costs import Cost, measure

ENVSMITH = [sys.executable, "-m", "envsmith"]


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    options = _options(argv)
    work = Path(options.work).absolute()
    work.mkdir(parents=True, exist_ok=True)
    trials = _Trials(options, work)
    trials.prepare()
    print(f"{options.stack}/{options.env}: {trials.files} wheels, {trials.size / 1e9:.2f} GB; {platform.machine()}, "
          f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}\n")  # fmt: skip
    trials.making()
    trials.installing()
    if options.registry:
        trials.moving()
    return 0


class _Trials:
    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options = options
        self.work = work
        self.wheels = work / "wheels"
        self.files = 0
        self.size = 0
        self.titles: list[str] = []

    def prepare(self) -> None:
        """Make the bundle once, and a plain folder of the env's wheels out of it."""
        subprocess.run(self._bundle(self.work / "b"), check=True, stdout=subprocess.DEVNULL)
        said = subprocess.run(
            [*ENVSMITH, "inspect", str(self.work / "b"), "--json"], check=True, capture_output=True, text=True
        )
        rows = [row for row in json.loads(said.stdout)["data"]["files"] if "env" in row["roles"]]
        shutil.rmtree(self.wheels, ignore_errors=True)
        self.wheels.mkdir()
        for row in rows:
            name = row["title"].rpartition("/")[2]
            shutil.copyfile(self.work / "b" / "blobs" / "sha256" / row["sha256"], self.wheels / name)
        self.files, self.size = len(rows), sum(row["size"] for row in rows)
        self.tag = json.loads(said.stdout)["data"]["tag"]

    def making(self) -> None:
        """Writing and checking."""
        tar, parts = str(self.work / "b.tar"), str(self.work / "p.tar")
        _table(
            "making",
            [
                ("`tar` of the wheels", ["tar", "-cf", str(self.work / "w.tar"), "-C", str(self.work), "wheels"]),
                ("`envsmith bundle -o x.tar`", self._bundle(tar)),
                ("`envsmith bundle -o x.tar --max-size 1G`", [*self._bundle(parts), "--max-size", "1G"]),
                ("`envsmith bundle -o folder`", self._bundle(self.work / "c")),
            ],
            lambda: self._remove("w.tar", "b.tar", "c"),
        )
        listed = [str(path) for path in sorted(self.wheels.iterdir())]
        _table(
            "checking",
            [
                ("`sha256sum` of the wheels", ["sha256sum", *listed]),
                ("`envsmith inspect x.tar --check`", [*ENVSMITH, "inspect", tar, "--check"]),
            ],
        )
        for part in self.work.glob("p.tar.*"):
            part.unlink()
        self._remove("w.tar", "c")

    def installing(self) -> None:
        """From nothing: empty store, empty cache, no network."""
        python = self.options.python or sys.executable
        venv, cache = self.work / "venv", self.work / "cache"
        names = self.work / "names.txt"
        names.write_text("".join(f"{path}\n" for path in sorted(self.wheels.iterdir())))
        make = f"uv venv -q --python {python} {venv} && UV_CACHE_DIR={cache} uv pip install -q --offline --no-index"
        plain = f"{make} --no-deps --python {venv}/bin/python -r {names}"
        home = f"ENVSMITH_HOME={self.work / 'home'} ENVSMITH_NETGUARD=off"
        install = f"{home} {' '.join(ENVSMITH)} install -q {self.work / 'b.tar'} --root {self.work / 'root'}"
        _table(
            "installing",
            [("`uv pip install` from a folder", ["sh", "-c", plain]), ("`envsmith install`", ["sh", "-c", install])],
            lambda: self._remove("venv", "cache", "home", "root"),
        )
        self._remove("venv", "cache", "home", "root")

    def moving(self) -> None:
        """To and from a registry, which forgets nothing: every trial has a repository of its own."""
        place, plain = self.options.registry, "--plain-http"
        layout = f"oci:{self.work / 'b'}:{self.tag}"
        push = [*ENVSMITH, "push", str(self.work / "b"), f"oci://{place}/bench/ours:1", plain]
        pull = f"ENVSMITH_HOME={self.work / 'home'} {' '.join(ENVSMITH)} pull oci://{place}/bench/ours:1 -o"
        _table(
            "moving",
            [
                ("`skopeo copy` to the registry",
                 ["skopeo", "copy", "-q", "--dest-tls-verify=false", layout, f"docker://{place}/bench/skopeo:1"]),
                ("`envsmith push`", push),
                ("`envsmith push` again", push),
                ("`skopeo copy` from the registry",
                 ["skopeo", "copy", "-q", "--src-tls-verify=false", f"docker://{place}/bench/skopeo:1",
                  f"oci:{self.work / 's'}:1"]),
                ("`envsmith pull` into a folder", ["sh", "-c", f"{pull} {self.work / 'q'} {plain}"]),
            ],
            lambda: self._remove("home", "s", "q"),
        )  # fmt: skip
        self._remove("home", "s", "q")

    def _bundle(self, out: Path | str) -> list[str]:
        sources = [word for source in self.options.source for word in ("--source", source)]
        return [*ENVSMITH, "bundle", self.options.stack, "--env", self.options.env, "-q", "-o", str(out), *sources]

    def _remove(self, *names: str) -> None:
        for name in names:
            path = self.work / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _table(title: str, trials: Sequence[tuple[str, list[str]]], before: Callable[[], None] = lambda: None) -> None:
    print(f"| {title} | wall s | CPU s | of peer's wall | of peer's CPU | peak MB | exit |")
    print("|" + " --- |" * 7)
    peer: Cost | None = None
    for number, (name, argv) in enumerate(trials):
        if number == 0:
            before()
        cost = measure(argv)
        peer = peer or cost
        print(
            f"| {name} | {cost.wall_s:.1f} | {cost.cpu_s:.1f} | {cost.wall_s / peer.wall_s:.2f} "
            f"| {cost.cpu_s / peer.cpu_s:.2f} | {cost.peak_bytes / 1e6:.0f} | {cost.code} |",
            flush=True,
        )
    print()


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stack")
    parser.add_argument("--env", required=True)
    parser.add_argument("--work", required=True, help="a folder with room for four times the wheels")
    parser.add_argument("--registry", metavar="HOST:PORT", help="an OCI registry that speaks plain http")
    parser.add_argument("--source", action="append", default=[], metavar="N=PATH")
    parser.add_argument("--python", metavar="EXE", help="the interpreter for uv's venv")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
