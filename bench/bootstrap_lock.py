"""Make `envsmith/data/bootstrap.toml`: the wheels that envsmith needs to run, for every Python and machine it runs on.

    python -m bench.bootstrap_lock [--exclude-newer 2026-11-01] [-o FILE]

uv resolves pyproject's dependencies for all of them at once. What it finds for other systems, implementations and
Pythons is dropped, and so is where it found it. A second run changes nothing but what the index has meanwhile.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from uv import find_uv_bin

from envsmith.target import Target, applies, choose_wheel
from envsmith.toml_reader import read_toml

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "envsmith" / "data" / "bootstrap.toml"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
#: From the oldest glibc that manylinux wheels are made for today to one newer than any.
GLIBCS = ("2.17", "2.28", "2.34", "2.39", "2.99")
TARGETS = tuple(
    Target(python=python, arch=arch, glibc=glibc)
    for python in PYTHONS
    for arch in ("x86_64", "aarch64")
    for glibc in GLIBCS
)
#: uv writes the floor that it was given into every marker.
FLOOR = f"python_full_version >= '{PYTHONS[0]}'"
HEAD = """\
# The wheels of envsmith's own dependencies, for CPython {oldest} to {newest} on glibc Linux, x86_64 and aarch64.
# Made by `python -m bench.bootstrap_lock` from pyproject.toml with uv {uv}. Do not edit: run it again.
"""


def main() -> int:
    """Write the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.bootstrap_lock", description=__doc__)
    parser.add_argument("--exclude-newer", metavar="DATE", help="leave out what was uploaded later")
    parser.add_argument("-o", "--output", type=Path, default=TABLE, metavar="FILE")
    options = parser.parse_args()
    text = render(resolve(dependencies(), options.exclude_newer))
    options.output.write_text(text)
    print(f"{options.output}: {text.count('[[wheel]]')} wheels, {len(text)} bytes", file=sys.stderr)
    return 0


def dependencies() -> tuple[str, ...]:
    """Return what pyproject says that envsmith needs at run time."""
    project = read_toml((ROOT / "pyproject.toml").read_text())["project"]
    return tuple(project["dependencies"])


def resolve(requirements: tuple[str, ...], exclude_newer: str | None) -> list[dict[str, Any]]:
    """Let uv resolve for every Python and machine, and return the packages of its lock."""
    with tempfile.TemporaryDirectory() as scratch:
        given, made = f"{scratch}/requirements.in", f"{scratch}/pylock.bootstrap.toml"
        Path(given).write_text("".join(f"{one}\n" for one in requirements))
        argv = [find_uv_bin(), "pip", "compile", "--quiet", "--no-config", "--universal", "--only-binary", ":all:"]
        argv += ["--python-version", PYTHONS[0], "--format", "pylock.toml", "-o", made, given]
        argv += ["--exclude-newer", exclude_newer] if exclude_newer else []
        subprocess.run(argv, check=True)
        return list(read_toml(Path(made).read_text())["packages"])


def render(packages: list[dict[str, Any]]) -> str:
    """Write the rows, sorted, with nothing about where a file is."""
    uv = next(package["version"] for package in packages if package["name"] == "uv")
    lines = [HEAD.format(oldest=PYTHONS[0], newest=PYTHONS[-1], uv=uv)]
    for package in sorted(packages, key=lambda one: (one["name"], one["version"])):
        marker = package.get("marker", "").removeprefix(FLOOR).removeprefix(" and ")
        targets = [target for target in TARGETS if applies(marker, target)]
        for name, wheel in sorted(useful(package, targets)):
            lines += ["[[wheel]]", f'name = "{package["name"]}"', f'version = "{package["version"]}"']
            lines += [f'marker = "{marker}"'] if marker else []
            lines += [f'filename = "{name}"', f"size = {wheel['size']}", f'sha256 = "{wheel["hashes"]["sha256"]}"', ""]
    return "\n".join(lines)


def useful(package: Mapping[str, Any], targets: list[Target]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the wheels that `envsmith.bootstrap` would pick for one of the targets."""
    wheels = {
        wheel.get("name") or Path(unquote(urlsplit(wheel["url"]).path)).name: wheel for wheel in package["wheels"]
    }
    for name in {picked for target in targets if (picked := choose_wheel(wheels, target))}:
        yield name, wheels[name]


if __name__ == "__main__":
    sys.exit(main())
