"""`envsmith patch check`: every series and patch at once, and whether they apply where their trees are at hand."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from envsmith.commands.envs import shown, user_path
from envsmith.commands.patch_refresh import export_tree_of
from envsmith.commands.patchfiles import read_file
from envsmith.commands.result import Result
from envsmith.commands.supplies import named_sources
from envsmith.commands.workspace import shipped_content
from envsmith.errors import EnvsmithError, InputError, Problem
from envsmith.series import Patch, Series, halves, parse_patch, parse_series
from envsmith.tools.store import open_store

#: What a patch that stands on another series is refused with when it is tried alone.
_REFUSED = ("patch-did-not-apply", "patch-already-applied")
_NUMBER = re.compile(r"(\d+)-")


@dataclass(kw_only=True, slots=True)
class _Found:
    """What a check has read so far."""

    patches: dict[Path, Patch] = field(default_factory=dict)
    listed: set[Path] = field(default_factory=set)
    series: dict[Path, Series] = field(default_factory=dict)
    broken: set[Path] = field(default_factory=set)
    """Files with problems: nothing more is said of them."""
    problems: list[Problem] = field(default_factory=list)


def run(names: tuple[str, ...], *, sources: tuple[str, ...], environ: Mapping[str, str]) -> Result:
    """Check the named series, or all below `patches/`.

    Raises:
        InputError: with every problem of every file.
    """
    folder = Path.cwd() / "patches"
    folder = folder if folder.is_dir() else shipped_content() / "patches"
    files = [_file(name, folder) for name in names] or sorted(folder.rglob("*.series"))
    found = _Found()
    for file in files:
        _read(file, found)
    if not names:
        _orphans(folder, found)
    _duplicates(found)
    applied = _apply_all(found, named_sources(sources), environ)
    if found.problems:
        raise InputError(*found.problems)
    rows = [
        {"series": shown(file), "layer": series.layer.value, "base": series.base, "patches": list(series.entries),
         "applied": applied[file]}
        for file, series in found.series.items()
    ]  # fmt: skip
    proven = sum(applied.values())
    text = f"{len(rows)} series, {len(found.patches)} patches: no problems"
    text += f"; {proven} series applied to their trees" if proven else "; no tree at hand to apply them to"
    return Result(command="patch check", data={"series": rows, "patches": len(found.patches)}, text=text)


def _file(name: str, folder: Path) -> Path:
    """A series as a recipe names it, or by its path."""
    below = folder / name
    return below if below.is_file() else user_path(name)


def _read(file: Path, found: _Found) -> None:
    """Parse one series and the patches it lists; each patch is read once."""
    try:
        text = read_file(file, "series-missing", "there is no such series").decode("utf-8", errors="replace")
        series = parse_series(text, shown(file))
    except InputError as error:
        found.problems += error.problems
        found.broken.add(file)
        # What a broken series lists is no orphan.
        found.listed |= {file.parent / word for word in _words(file)}
        return
    found.series[file] = series
    found.problems += _order(series, file)
    for entry in series.entries:
        path = file.parent / entry
        found.listed.add(path)
        if path not in found.patches and path not in found.broken:
            _read_patch(path, f"`{file.name}` lists it, but it is not there", found)


def _read_patch(path: Path, missing: str, found: _Found) -> None:
    try:
        found.patches[path] = parse_patch(read_file(path, "patch-missing", missing), path.name, shown(path))
    except InputError as error:
        found.problems += error.problems
        found.broken.add(path)


def _words(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line.partition("#")[0].strip() for line in lines if line.partition("#")[0].strip()]


def _order(series: Series, file: Path) -> Iterator[Problem]:
    """Numbers in names must rise: whoever reads the folder reads the order."""
    numbered = [(match[1], entry) for entry in series.entries if (match := _NUMBER.match(entry))]
    for (number, before), (following, entry) in itertools.pairwise(numbered):
        if int(following) <= int(number):
            hint = "number the patches in the order of use"
            message = f"`{entry}` stands behind `{before}`, but its number is not greater"
            yield Problem(code="series-order", message=message, where=shown(file), hint=hint)


def _orphans(folder: Path, found: _Found) -> None:
    """Patches that no series lists are judged like the others, and named."""
    for path in sorted(folder.rglob("*.patch")):
        if path not in found.listed:
            hint = "list it in a series beside it, or remove it"
            message = "no series lists this patch"
            found.problems.append(Problem(code="patch-orphan", message=message, where=shown(path), hint=hint))
            _read_patch(path, "it is not there", found)


def _duplicates(found: _Found) -> None:
    """Two files of one folder with the same change are one too many."""
    by_body: dict[tuple[Path, bytes], list[Path]] = defaultdict(list)
    for path, patch in sorted(found.patches.items()):
        by_body[path.parent, halves(patch.data)[1]].append(path)
    for paths in by_body.values():
        for path in paths[1:]:
            message = f"it makes the same change as `{paths[0].name}`"
            hint = "keep one of them"
            found.problems.append(Problem(code="patch-duplicate", message=message, where=shown(path), hint=hint))


# --- applying ---


def _apply_all(found: _Found, sources: Mapping[str, str], environ: Mapping[str, str]) -> dict[Path, bool]:
    """Apply each sound series to its base where that is at hand; says which were."""
    done: dict[Path, bool] = {}
    used: set[str] = set()
    for file, series in found.series.items():
        project = file.parent.name.rpartition("-")[0]
        used |= {project} & sources.keys()
        place = sources.get(project) or _in_store(series.base, environ)
        sound = _sound(file, found)
        done[file] = bool(place and sound)
        if place and sound:
            found.problems += _apply_somehow(series.base, place, sound, file, found)
    for name in sorted(sources.keys() - used):
        message = f"no series lies in a folder `{name}-…`"
        hint = "the name before the `=` is that of the folder, without its commit or version"
        found.problems.append(Problem(code="unknown-source", message=message, where=f"--source {name}", hint=hint))
    return done


def _sound(file: Path, found: _Found) -> list[Patch]:
    """The patches of a series, none when one of them is wrong."""
    patches = [found.patches.get(file.parent / entry) for entry in found.series[file].entries]
    return [patch for patch in patches if patch is not None] if None not in patches else []


def _apply_somehow(base: str, place: str, patches: Sequence[Patch], file: Path, found: _Found) -> Sequence[Problem]:
    """Apply a series alone, else behind another one of its folder: a recipe may name several for one source."""
    problems = _apply(base, place, patches, file)
    if not problems or any(problem.code not in _REFUSED for problem in problems):
        return problems
    for other, series in found.series.items():
        before = _sound(other, found) if other.parent == file.parent and other != file and series.base == base else []
        apart = before and not {patch.name for patch in before} & {patch.name for patch in patches}
        if apart and not _apply(base, place, [*before, *patches], file):
            return ()
    return problems


def _in_store(base: str, environ: Mapping[str, str]) -> str | None:
    """The store's mirror that holds a commit."""
    from envsmith.tools.git import holds

    if "==" in base:
        return None
    try:
        mirrors = sorted((open_store(environ).home / "git").glob("*"))
    except (EnvsmithError, OSError):
        return None
    return next((str(mirror) for mirror in mirrors if holds(mirror, base.lower())), None)


def _apply(base: str, place: str, patches: Sequence[Patch], file: Path) -> Sequence[Problem]:
    from envsmith.tools.git import apply_series

    with tempfile.TemporaryDirectory(prefix="envsmith-check-") as scratch:
        work = Path(scratch) / "work"
        try:
            export_tree_of(base if "==" in base else base.lower(), place, Path(scratch), work)
            apply_series(work, [(patch.name, patch.data) for patch in patches])
        except EnvsmithError as error:
            return [_placed(problem, file) for problem in error.problems]
    return []


def _placed(problem: Problem, file: Path) -> Problem:
    """Give the patch that git complained about its folder."""
    name, colon, line = (problem.where or "").partition(":")
    known = name.endswith(".patch") and "/" not in name
    return replace(problem, where=f"{shown(file.parent / name)}{colon}{line}") if known else problem
