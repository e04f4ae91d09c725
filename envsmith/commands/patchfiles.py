"""Series and patches from disk: read, parsed, and held against the source they are meant for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from envsmith.commands.envs import shown
from envsmith.errors import InputError, Problem
from envsmith.lock import LockedPatch, LockedSeries
from envsmith.patchlines import final_lines
from envsmith.series import Patch, check_base, parse_patch, parse_series


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchSet:
    """All series of one source or wheel, in order."""

    series: tuple[LockedSeries, ...]
    patches: tuple[Patch, ...]

    @property
    def named(self) -> tuple[tuple[str, bytes], ...]:
        """(name, content) of every patch, as git takes them."""
        return tuple((patch.name, patch.data) for patch in self.patches)


def patched_lines(sets: Mapping[str, PatchSet]) -> list[dict[str, object]]:
    """For every patch of every set, by source name or `wheel:<name>`: the lines of the finished tree that it wrote.

    The receipt keeps them, so that a rung of the smoke ladder can show that they were executed.
    """
    rows: list[dict[str, object]] = []
    for key, patch_set in sets.items():
        kind, _, name = key.rpartition(":")
        series = [one.path for one in patch_set.series for _ in one.patches]
        written = final_lines([patch.data for patch in patch_set.patches])
        for where, patch, files in zip(series, patch_set.patches, written, strict=True):
            rows.append(
                {
                    "series": where,
                    "patch": patch.name,
                    "target": name,
                    "kind": kind or "source",
                    "sha256": patch.sha256,
                    "files": [{"path": file.path, "lines": list(file.lines)} for file in files],
                }
            )
    return rows


def read_patches(folder: Path, series_paths: Iterable[str], base: str | None) -> PatchSet:
    """Read the series of one source.

    `base` is the commit, or `name==version` for an sdist or a wheel; None where no lock says yet which.

    Raises:
        InputError: `series-missing`, `patch-missing`, `series-wrong-base` and everything the parsers find; the
            problems of all files at once.
    """
    problems: list[Problem] = []
    found: list[LockedSeries] = []
    patches: list[Patch] = []
    for path in series_paths:
        try:
            series, read = _read_series(folder, path, base)
            found.append(series)
            patches += read
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    return PatchSet(series=tuple(found), patches=tuple(patches))


def _read_series(folder: Path, path: str, base: str | None) -> tuple[LockedSeries, list[Patch]]:
    where = folder / path
    hint = "series lie in `patches/` beside the recipe or beside its folder: bring that folder along with the recipe"
    text = read_file(where, "series-missing", "there is no such series", hint).decode("utf-8", errors="replace")
    series = parse_series(text, shown(where))
    if base is not None:
        check_base(series, base, shown(where))
    problems: list[Problem] = []
    patches: list[Patch] = []
    for entry in series.entries:
        file = where.parent / entry
        try:
            data = read_file(file, "patch-missing", f"the series `{path}` lists it, but it is not there")
            patches.append(parse_patch(data, entry, shown(file)))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(*problems)
    parent = path.rpartition("/")[0]
    locked = tuple(
        LockedPatch(path=f"{parent}/{patch.name}" if parent else patch.name, sha256=patch.sha256) for patch in patches
    )
    return LockedSeries(path=path, layer=series.layer.value, patches=locked), patches


def read_file(path: Path, code: str, message: str, hint: str | None = None) -> bytes:
    """Read one file that must be there.

    Raises:
        InputError: with that code.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        reason = "" if isinstance(error, FileNotFoundError) else f" ({error.strerror})"
        raise InputError(Problem(code=code, message=message + reason, where=shown(path), hint=hint)) from error
