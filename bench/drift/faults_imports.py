"""Faults of imports: another file answers a name than the one that the lock means."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from random import Random

from bench.drift.edits import append
from bench.drift.fault import FOLDER, Fault, Plant, one_of
from bench.drift.installers import uv_install, uv_uninstall
from bench.drift.target import Target, choose
from envsmith.manifest import Root
from tests.support.wheels import make_wheel

FAMILY = "imports"


def _fault(
    name: str, what: str, plant: Plant, kinds: frozenset[str], *names: str, level: tuple[str, ...] = ()
) -> Fault:
    return Fault(name=name, family=FAMILY, what=what, plant=plant, expect=kinds, names=names, level=level)


def _harmless(target: Target, *kinds: str) -> list[tuple[str, Root]]:
    """Names that neither the verifier itself nor a .pth file of the env needs: shadowing those stops everything."""
    ours = set(packages_distributions())
    hooks = " ".join(
        target.path(e.path).read_text(errors="replace")
        for e in target.manifest.entries
        if e.path.endswith(".pth") and e.path.startswith(target.site)
    )
    return [item for item in target.packages(*kinds) if item[0] not in ours and item[0] not in hooks]


def became_namespace(target: Target, pick: Random) -> Iterator[Fault]:
    """A vendor's build of a package was installed over it and taken out again: metadata is as before, code is not."""
    name, _root = choose(pick, _harmless(target, "package"))
    vendor = f"{name}-vendor".replace("_", "-").strip("-")

    def plant(folder: Path) -> None:
        wheel = make_wheel(folder, vendor, "1.0", {f"{name}/__init__.py": "vendor = True\n"})
        uv_install(target, wheel)
        uv_uninstall(target, vendor, folder)

    kinds = one_of("imports/became-namespace")
    what = f"uv installs {vendor}, which ships {name}/__init__.py, and uninstalls it"
    yield _fault("became-namespace", what, plant, kinds, name)


def namespace_portion_outside(target: Target, pick: Random) -> Iterator[Fault]:
    """A folder on the path adds modules to a namespace package of the env."""
    name, _ = choose(pick, _namespaces(target))
    hook = target.path(target.site) / "planted_portion.pth"

    def plant(folder: Path) -> None:
        (folder / "more" / name).mkdir(parents=True)
        (folder / "more" / name / "planted.py").write_text("")
        hook.write_text(f"{folder}/more\n")

    kinds = one_of("imports/namespace-portion-outside")
    what = f"a portion of {name} outside, through a .pth file"
    yield _fault("namespace-portion-outside", what, plant, kinds, name, f"{FOLDER}/more")


def namespace_hidden(target: Target, pick: Random) -> Iterator[Fault]:
    """An `__init__.py` turns a namespace package into a regular one and hides every other portion."""
    _name, root = choose(pick, _namespaces(target))
    place = f"{root.path}/__init__.py"

    def plant(folder: Path) -> None:
        target.path(place).write_text("")

    kinds = one_of("imports/unexpected-file", "files/unowned-module")
    yield _fault("namespace-hidden", f"add {place}", plant, kinds, place)


def _namespaces(target: Target) -> list[tuple[str, Root]]:
    return [
        (name, roots[0])
        for name, roots in sorted(target.roots.items())
        if roots and all(root.kind == "namespace" for root in roots) and roots[0].path.startswith(f"{target.site}/")
    ]


def shadowed_through_path(target: Target, pick: Random) -> Iterator[Fault]:
    """A folder before site-packages answers a name: code in a .pth puts it there."""
    name, root = choose(pick, _harmless(target, "package", "module"))
    hook = target.path(target.site) / "planted_path.pth"

    def plant(folder: Path) -> None:
        place = folder / "shadow" / name
        place.mkdir(parents=True)
        (place / "__init__.py").write_text("planted = True\n")
        hook.write_text(f"import sys; sys.path.insert(0, {str(folder / 'shadow')!r})\n")

    kinds = one_of("imports/unexpected-file")
    what = f"a package {name} in a folder that a .pth file puts first ({root.owner})"
    yield _fault("shadowed-through-path", what, plant, kinds, name, f"{FOLDER}/shadow")


def foreign_python_path(target: Target, pick: Random) -> Iterator[Fault]:
    """site-packages of an older Python is on the path."""
    minor = pick.choice([m for m in range(6, 15) if f"3.{m}" != target.version])
    hook = target.path(target.site) / "planted_old.pth"

    def plant(folder: Path) -> None:
        old = folder / f"lib/python3.{minor}/site-packages"
        old.mkdir(parents=True)
        hook.write_text(f"{old}\n")

    kinds = one_of("imports/foreign-python-path")
    what = f"a .pth file names site-packages of Python 3.{minor}"
    yield _fault("foreign-python-path", what, plant, kinds, f"{FOLDER}/lib/python3.{minor}/site-packages")


def package_overwritten(target: Target, pick: Random) -> Iterator[Fault]:
    """A vendor's distribution lies over a package of the lock, and both are installed."""
    name, root = choose(pick, _harmless(target, "package"))
    vendor = f"{name}-vendor".replace("_", "-").strip("-")

    def plant(folder: Path) -> None:
        uv_install(target, make_wheel(folder, vendor, "1.0", {f"{name}/__init__.py": "vendor = True\n"}))

    kinds = one_of("files/file-changed")
    what = f"uv installs {vendor} over {name} of {root.owner}"
    yield _fault("package-overwritten", what, plant, kinds, f"{root.path}/__init__.py")


def import_fails(target: Target, pick: Random) -> Iterator[Fault]:
    """One module of the recipe's list raises."""
    name, entry = choose(pick, _listed(target))

    def plant(folder: Path) -> None:
        append(target.path(entry), b"\nraise ImportError('planted')\n")

    kinds = one_of("imports/import-failed")
    level = ("--imports", "--only", "imports")
    yield _fault("import-fails", f"{entry} raises", plant, kinds, name, "planted", level=level)


def _listed(target: Target) -> list[tuple[str, str]]:
    """Imports of the recipe that stand for one source file."""
    found = []
    for name in target.receipt.verify["imports"]:
        path = name.replace(".", "/")
        for base in (target.site, *(f"src/{source.name}" for source in target.lock.sources)):
            for place in (f"{base}/{path}.py", f"{base}/{path}/__init__.py"):
                if place in target.entries:
                    found.append((name, place))
    return found


def attribute_gone(target: Target, pick: Random) -> Iterator[Fault]:
    """The package imports, and what it is there for is missing: the broken `ray` that had no `ray.remote`."""
    places = dict(_listed(target))
    attributes = [name for name in target.receipt.verify["attributes"] if name.rpartition(".")[0] in places]
    whole = choose(pick, attributes)
    module, _, attribute = whole.rpartition(".")

    def plant(folder: Path) -> None:
        code = f"\nglobals().pop({attribute!r}, None)\ndef __getattr__(name):\n    raise AttributeError(name)\n"
        append(target.path(places[module]), code.encode())

    kinds = one_of("imports/attribute-missing")
    level = ("--imports", "--only", "imports")
    yield _fault("attribute-gone", f"{places[module]} loses {attribute}", plant, kinds, whole, level=level)


def finder_from_outside(target: Target, pick: Random) -> Iterator[Fault]:
    """An import hook that can answer any name is installed at start."""
    hook = target.path(target.site) / "planted_finder.pth"
    number = pick.randrange(10**6)

    def plant(folder: Path) -> None:
        code = "import sys\nclass Finder:\n    @staticmethod\n    def find_spec(*words):\n        return None\n"
        (folder / f"planted_{number}.py").write_text(f"{code}sys.meta_path.insert(0, Finder)\n")
        hook.write_text(f"import sys; sys.path.append({str(folder)!r}); import planted_{number}\n")

    kinds = one_of("hooks/unowned-pth", "hooks/foreign-finder", "files/unowned-pth")
    yield _fault("finder-from-outside", "a .pth file installs an import hook", plant, kinds, hook.name)


GENERATORS = (
    became_namespace, namespace_portion_outside, namespace_hidden, shadowed_through_path, foreign_python_path,
    package_overwritten, import_fails, attribute_gone, finder_from_outside,
)  # fmt: skip
