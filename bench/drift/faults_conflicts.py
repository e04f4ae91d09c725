"""Faults of versions: what pip and uv do to an env behind our back, and what metadata can be made to say."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

from bench.drift.edits import rewrite, same_times
from bench.drift.fault import Fault, Plant, one_of
from bench.drift.installers import pip_install, uv_install, uv_uninstall, wheel_again
from bench.drift.target import Target, choose
from tests.support.wheels import make_wheel

FAMILY = "conflicts"


def _fault(name: str, what: str, plant: Plant, kinds: frozenset[str], *names: str) -> Fault:
    return Fault(name=name, family=FAMILY, what=what, plant=plant, expect=kinds, names=names)


def _parts(owner: str) -> tuple[str, str]:
    name, _, version = owner.partition("==")
    return name, version


def metadata_of_another_version(target: Target, pick: Random) -> Iterator[Fault]:
    """METADATA says another version."""
    owner = choose(pick, sorted(target.metadata))
    name, _version = _parts(owner)
    other = f"0.{pick.randrange(100)}"

    def plant(folder: Path) -> None:
        path = target.path(target.metadata[owner]) / "METADATA"
        with same_times(path):
            rewrite(path, lambda text: text.replace(b"\nVersion: ", f"\nVersion: {other}\nX-Was: ".encode(), 1))

    kinds = one_of("conflicts/version-differs")
    yield _fault("metadata-of-another-version", f"METADATA of {owner} says {other}", plant, kinds, name, other)


def upgraded_by_pip(target: Target, pick: Random) -> Iterator[Fault]:
    """pip installs a later version."""
    owner = choose(pick, target.pure())
    name, version = _parts(owner)
    later = f"{version.split('+')[0].split('.')[0]}.999"

    def plant(folder: Path) -> None:
        pip_install(target, wheel_again(target, owner, folder, version=later))

    kinds = one_of("conflicts/version-differs")
    yield _fault("upgraded-by-pip", f"pip installs {name} {later} over {version}", plant, kinds, name, later)


def downgraded_by_uv(target: Target, pick: Random) -> Iterator[Fault]:
    """uv installs an earlier version."""
    owner = choose(pick, target.pure())
    name, version = _parts(owner)

    def plant(folder: Path) -> None:
        uv_install(target, wheel_again(target, owner, folder, version="0.0.1"))

    kinds = one_of("conflicts/version-differs")
    yield _fault("downgraded-by-uv", f"uv installs {name} 0.0.1 over {version}", plant, kinds, name, "0.0.1")


def other_build_of_same_version(target: Target, pick: Random) -> Iterator[Fault]:
    """The same name and version, built from other code: no tool that reads metadata can see it."""
    owner = choose(pick, target.pure())
    _name, _version = _parts(owner)
    sources = [e for e in target.owned[owner] if e.path.endswith(".py") and e.size]
    entry = choose(pick, sources)
    changed = {entry.path[len(target.site) + 1 :]: target.path(entry.path).read_bytes() + b"# another build\n"}

    def plant(folder: Path) -> None:
        uv_install(target, wheel_again(target, owner, folder, more=changed), "--reinstall")

    kinds = one_of("files/file-changed")
    what = f"uv reinstalls {owner} from another build ({entry.path})"
    yield _fault("other-build-of-same-version", what, plant, kinds, entry.path)


def extra_by_uv(target: Target, pick: Random) -> Iterator[Fault]:
    """uv installs a distribution that the lock does not name."""
    name = f"planted{pick.randrange(10**6)}"

    def plant(folder: Path) -> None:
        uv_install(target, make_wheel(folder, name, "1.0"))

    yield _fault("extra-by-uv", f"uv installs {name}", plant, one_of("conflicts/distribution-extra"), name)


def extra_by_pip(target: Target, pick: Random) -> Iterator[Fault]:
    """pip does, with bytecode."""
    name = f"planted{pick.randrange(10**6)}"

    def plant(folder: Path) -> None:
        pip_install(target, make_wheel(folder, name, "1.0"))

    yield _fault("extra-by-pip", f"pip installs {name}", plant, one_of("conflicts/distribution-extra"), name)


def extra_old_style(target: Target, pick: Random) -> Iterator[Fault]:
    """An .egg-info of the old way counts as a distribution too."""
    name = f"planted{pick.randrange(10**6)}"

    def plant(folder: Path) -> None:
        place = target.path(target.site) / f"{name}.egg-info"
        place.mkdir()
        (place / "PKG-INFO").write_text(f"Metadata-Version: 1.0\nName: {name}\nVersion: 1.0\n")

    kinds = one_of("conflicts/distribution-extra", "files/unowned-distribution")
    yield _fault("extra-old-style", f"add {name}.egg-info", plant, kinds, name)


def removed_by_uv(target: Target, pick: Random) -> Iterator[Fault]:
    """uv uninstalls a distribution of the lock."""
    owner = choose(pick, target.pure(64 << 20))
    name, _ = _parts(owner)

    def plant(folder: Path) -> None:
        uv_uninstall(target, name, folder)

    kinds = one_of("conflicts/distribution-missing", "files/half-env")
    yield _fault("removed-by-uv", f"uv uninstalls {owner}", plant, kinds, name)


def metadata_twice(target: Target, pick: Random) -> Iterator[Fault]:
    """Two .dist-info of one distribution: which version a tool sees is chance."""
    owner = choose(pick, sorted(target.metadata))
    name, _version = _parts(owner)
    info = target.metadata[owner]
    spelled = info.rsplit("/", 1)[-1].split("-")[0]

    def plant(folder: Path) -> None:
        copy = target.path(target.site) / f"{spelled}-99.0.dist-info"
        shutil.copytree(target.path(info), copy)
        rewrite(copy / "METADATA", lambda text: text.replace(b"\nVersion: ", b"\nVersion: 99.0\nX-Was: ", 1))

    kinds = one_of("conflicts/distribution-twice")
    yield _fault("metadata-twice", f"a second .dist-info of {owner} as 99.0", plant, kinds, name, "99.0")


def requirement_added(target: Target, pick: Random) -> Iterator[Fault]:
    """Metadata declares a requirement that the env breaks."""
    owner, needed = choose(pick, sorted(target.metadata)), choose(pick, sorted(target.metadata))
    name, other = _parts(owner)[0], _parts(needed)[0]

    def plant(folder: Path) -> None:
        path = target.path(target.metadata[owner]) / "METADATA"
        line = f"\nRequires-Dist: {other}>=99999\nName: ".encode()
        rewrite(path, lambda text: text.replace(b"\nName: ", line, 1))

    kinds = one_of("conflicts/conflict-unaccepted")
    yield _fault("requirement-added", f"{owner} declares {other}>=99999", plant, kinds, name, other)


def requirement_removed(target: Target, pick: Random) -> Iterator[Fault]:
    """Metadata was edited so that a broken requirement is not declared any more: pip check turns green."""
    accepted = [conflict.package for conflict in target.lock.conflicts]
    owner = choose(pick, [owner for owner in target.metadata if _parts(owner)[0] in accepted])

    def plant(folder: Path) -> None:
        path = target.path(target.metadata[owner]) / "METADATA"
        with same_times(path):
            rewrite(path, lambda text: text.replace(b"\nRequires-Dist: ", b"\nX-Required: "))

    kinds = one_of("files/file-changed")
    what = f"METADATA of {owner} declares no requirement any more"
    yield _fault("requirement-removed", what, plant, kinds, f"{target.metadata[owner]}/METADATA")


GENERATORS = (
    metadata_of_another_version, upgraded_by_pip, downgraded_by_uv, other_build_of_same_version, extra_by_uv,
    extra_by_pip, extra_old_style, removed_by_uv, metadata_twice, requirement_added, requirement_removed,
)  # fmt: skip
