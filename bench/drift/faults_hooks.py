"""Faults of start-up: code that runs before the first line of a program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

from bench.drift.edits import append, rewrite
from bench.drift.fault import FOLDER, Fault, Plant, one_of
from bench.drift.target import Target, choose

FAMILY = "hooks"


def _fault(name: str, what: str, plant: Plant, kinds: frozenset[str], *names: str) -> Fault:
    return Fault(name=name, family=FAMILY, what=what, plant=plant, expect=kinds, names=names)


def pth_with_code(target: Target, pick: Random) -> Iterator[Fault]:
    """A .pth file runs code in every process."""
    name = f"{pick.choice(['zz', 'aa', 'distutils', '_'])}_planted_{pick.randrange(10**6)}.pth"

    def plant(folder: Path) -> None:
        (target.path(target.site) / name).write_text("import os; os.environ.setdefault('PLANTED', '1')\n")

    yield _fault("pth-with-code", f"add {name} with code", plant, one_of("hooks/unowned-pth"), name)


def known_pth_changed(target: Target, pick: Random) -> Iterator[Fault]:
    """A .pth file that belongs to a package, or to an editable source, gets another line."""
    known = [e for e in target.manifest.entries if e.path.endswith(".pth") and e.path.startswith(f"{target.site}/")]
    entry = choose(pick, known)

    def plant(folder: Path) -> None:
        append(target.path(entry.path), f"\n{folder}\n".encode())

    yield _fault("known-pth-changed", f"add a line to {entry.path}", plant, one_of("hooks/changed-pth"), entry.path)


def customize_in_env(target: Target, pick: Random) -> Iterator[Fault]:
    """A sitecustomize in the env."""
    name = pick.choice(["sitecustomize", "usercustomize"])
    as_folder = pick.random() < 0.3
    place = f"{target.site}/{name}/__init__.py" if as_folder else f"{target.site}/{name}.py"

    def plant(folder: Path) -> None:
        target.path(place).parent.mkdir(exist_ok=True)
        target.path(place).write_text("import sys\nsys.path.append('/planted')\n")

    kinds = one_of("hooks/sitecustomize") if name == "sitecustomize" else one_of("files/unowned-module")
    yield _fault("customize-in-env", f"add {place}", plant, kinds, f"{target.site}/{name}")


def customize_in_base(target: Target, pick: Random) -> Iterator[Fault]:
    """A sitecustomize in the library of the interpreter below the env: no file of the env changes."""
    place = target.stdlib / "sitecustomize.py"

    def plant(folder: Path) -> None:
        old = place.read_bytes() if place.exists() else b""
        place.unlink(missing_ok=True)
        place.write_bytes(old + b"\nPLANTED = True\n")

    yield _fault("customize-in-base", f"add {place}", plant, one_of("hooks/sitecustomize"), str(place))


def user_site(target: Target, pick: Random) -> Iterator[Fault]:
    """`~/.local` takes part, because the env was opened to the system."""
    name = f"planted_{pick.randrange(10**6)}"

    def plant(folder: Path) -> Mapping[str, str]:
        place = folder / f".local/lib/python{target.version}/site-packages"
        (place / name).mkdir(parents=True)
        (place / name / "__init__.py").write_text("")
        old, new = b"include-system-site-packages = false", b"include-system-site-packages = true"
        rewrite(target.path("pyvenv.cfg"), lambda text: text.replace(old, new))
        return {"HOME": str(folder)}

    what = "a user site, and pyvenv.cfg opened to the system"
    yield _fault("user-site", what, plant, one_of("hooks/user-site", "hooks/user-site-leak"), f"{FOLDER}/.local")


def hook_behind_link(target: Target, pick: Random) -> Iterator[Fault]:
    """A .pth file of the env is a link to a file that somebody else can write."""
    name = f"planted_{pick.randrange(10**6)}.pth"

    def plant(folder: Path) -> None:
        (folder / "hook").write_text("import sys\n")
        (target.path(target.site) / name).symlink_to(folder / "hook")

    kinds = one_of("hooks/unowned-pth", "files/unowned-pth")
    yield _fault("hook-behind-link", f"{name} links outside", plant, kinds, name)


GENERATORS = (pth_with_code, known_pth_changed, customize_in_env, customize_in_base, user_site, hook_behind_link)
