"""One delivery of a source into a folder: what stands there, the copies, and the record that says it is whole.

Nothing is written under the name of a file of the source but by one rename of a copy that was read again. The journal
is there from the first byte to the last rename, the record only afterwards.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from envsmith.delivery import JOURNAL, Content, Delivered, Standing, is_part, part_name, standing
from envsmith.errors import EnvsmithError, InputError, IntegrityError, Problem, SupplyError
from envsmith.tools.checkpointcopy import Copied, Copier, DeliveryJournal, Stopped, hash_file, open_source
from envsmith.tools.checkpointscan import Source, SourceFile, list_source
from envsmith.tools.deliveryrecords import Earlier, blocked, is_plain
from envsmith.tools.files import disk_full, filesystem, free_bytes, fsync_folder
from envsmith.tools.progress import Progress

#: Enough to keep a disk and two cores busy; more only makes more parts that a kill leaves behind.
THREADS = 4
_NAMED = 20
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a delivery did."""

    delivered: Delivered
    copied: tuple[Copied, ...] = ()
    undressed: tuple[str, ...] = field(default=())
    """Files whose mode or time the file system did not take."""
    dropped: tuple[str, ...] = ()
    """What earlier deliveries left and is not as they recorded it: the new record leaves it out."""

    @property
    def resumed_bytes(self) -> int:
        """Bytes that parts of an earlier run had."""
        return sum(one.resumed_bytes for one in self.copied)


class Delivery:
    """One run; whoever makes it holds the lock of the destination, which is there."""

    def __init__(self, source: Source, destination: Path, *, replace: bool, progress: Progress) -> None:
        self._source, self._destination, self._replace = source, destination, replace
        self._progress = progress
        self._gate, self._stop = threading.Lock(), threading.Event()
        self._earlier = Earlier(source, destination)
        self._there: dict[str, Content] = {}
        self._in_the_way: dict[str, tuple[Standing, Content]] = {}

    def run(self, *, is_complete: bool) -> Outcome:
        """Copy what is not there yet, and state all of it in the record.

        Raises:
            InputError: `destination-differs`.
            IntegrityError: `delivered-file-changed`, `delivery-differs`, `delivery-source-differs`.
            SupplyError: `source-changed`, `disk-full` and what else `filesystem` raises.
        """
        old = self._earlier.files()
        self._progress.start(self._source.size + sum(one.size for one in old), len(self._source.files) + len(old))
        try:
            self._examine()
            self._read_old(old)
            missing = [file for file in self._source.files if file.path not in self._there]
            outcome = self._copy(missing, is_complete) if self._is_changed(missing, is_complete) else None
        finally:
            self._progress.done()
        return outcome or Outcome(delivered=self._delivered((), is_complete), dropped=self._earlier.dropped())

    def _is_changed(self, missing: list[SourceFile], is_complete: bool) -> bool:
        return bool(missing) or self._earlier.is_open or self._earlier.record != self._delivered((), is_complete)

    def _delivered(self, copied: Iterable[Copied], is_complete: bool) -> Delivered:
        files = {**self._earlier.carried.files, **self._there, **{one.path: one.content for one in copied}}
        links = {**self._earlier.carried.links, **self._source.links}
        return Delivered(files=files, links=links, is_complete=is_complete and self._earlier.carried.is_complete)

    def _read_old(self, old: list[SourceFile]) -> None:
        """Read again what earlier deliveries left; what is not as it was recorded is no longer in the record."""

        def look(file: SourceFile) -> Content | None:
            there = self._earlier.content(file, self._stop)
            self._advance(file.size)
            return there

        self._earlier.carry({file.path: there for file, there in self._each(old, look) if there is not None})

    # -- what stands there

    def _examine(self) -> None:
        """Hash what has the name of a file of the source; all that is in the way is raised at once."""
        problems = [*self._wrong_folders(), *self._wrong_links()]
        named = [file for file in self._source.files if os.path.lexists(self._destination / file.path)]
        standing_files = [file for file in named if is_plain(self._destination / file.path)]
        problems += [
            blocked(self._destination / file.path) for file in named if not is_plain(self._destination / file.path)
        ]
        changed: list[Problem] = []
        for file, (stand, there) in self._each(standing_files, self._look_at):
            if stand is Standing.DONE:
                self._there[file.path] = there
            elif self._replace or stand is Standing.OURS:
                self._in_the_way[file.path] = (stand, there)
            else:
                place = self._destination / file.path
                (changed if stand is Standing.DAMAGED else problems).append(_in_the_way(stand, place))
        if changed:
            raise IntegrityError(*_some(changed), *_some(problems))
        if problems:
            raise InputError(*_some(problems))

    def _look_at(self, file: SourceFile) -> tuple[Standing, Content]:
        place = self._destination / file.path
        there = hash_file(place, self._stop)
        if there.size != file.size:  # the source need not be read to see that
            wanted = Content(size=file.size, sha256="")
        else:
            with open_source(self._source.base / file.path, file):
                wanted = hash_file(self._source.base / file.path, self._stop)
        stand = standing(wanted, there, self._earlier.written(file.path))
        if stand is Standing.DONE:
            self._advance(file.size)
        return stand, there

    def _wrong_folders(self) -> Iterator[Problem]:
        for folder in self._source.folders:
            place = self._destination / folder
            if os.path.lexists(place) and (place.is_symlink() or not place.is_dir()):
                yield blocked(place)

    def _wrong_links(self) -> Iterator[Problem]:
        for path, target in self._source.links.items():
            place = self._destination / path
            if not os.path.lexists(place):
                continue
            if not place.is_symlink():
                yield blocked(place)
            elif str(place.readlink()) != target and not self._replace:
                yield _in_the_way(Standing.FOREIGN, place)

    # -- the copies

    def _copy(self, missing: list[SourceFile], is_complete: bool) -> Outcome:
        self._require_room(missing)
        with DeliveryJournal(self._destination / JOURNAL) as journal:
            for path, (stand, content) in self._in_the_way.items():
                if stand is Standing.FOREIGN:
                    journal.enter(path, content, is_found=True)
            self._earlier.set_aside()
            self._make_folders()
            copier = Copier(self._source.base, self._destination, journal, self._advance, self._stop)
            copied = tuple(row for _, row in self._each(missing, lambda file: self._copy_one(copier, file)))
            self._link()
        self._require_same_source()
        self._sweep()
        self._settle_folders()
        delivered = self._delivered(copied, is_complete)
        self._earlier.write(delivered)
        undressed = tuple(one.path for one in copied if not one.is_dressed)
        return Outcome(delivered=delivered, copied=copied, undressed=undressed, dropped=self._earlier.dropped())

    def _copy_one(self, copier: Copier, file: SourceFile) -> Copied:
        expected = self._source.record.files.get(file.path) if self._source.record else None
        return copier.copy(file, expected, replace=file.path in self._in_the_way)

    def _require_room(self, missing: list[SourceFile]) -> None:
        """Stop before the first byte where all of them cannot fit; what is replaced stays until its copy is whole."""
        needed = sum(file.size for file in missing)
        for file in missing:
            part = (self._destination / file.path).with_name(part_name(Path(file.path).name))
            with contextlib.suppress(OSError):
                needed -= min(file.size, part.lstat().st_size)
        if free_bytes(self._destination) < needed:
            raise SupplyError(disk_full(self._destination, needed))

    def _make_folders(self) -> None:
        for folder in sorted(self._source.folders):
            with filesystem(self._destination / folder):
                (self._destination / folder).mkdir(parents=True, exist_ok=True)

    def _link(self) -> None:
        for path, target in self._source.links.items():
            place = self._destination / path
            with filesystem(place):
                if place.is_symlink() and str(place.readlink()) == target:
                    continue
                part = place.with_name(part_name(place.name))
                part.unlink(missing_ok=True)
                part.symlink_to(target)
                part.replace(place)

    def _require_same_source(self) -> None:
        """See whether files came, went or changed after they were listed."""
        if self._source.is_file:
            return
        again = list_source(self._source.base)
        if (again.files, again.links, again.folders.keys()) == (
            self._source.files,
            self._source.links,
            self._source.folders.keys(),
        ):
            return
        differing = {file.path for file in {*again.files} ^ {*self._source.files}}
        differing |= {path for path, _ in {*again.links.items()} ^ {*self._source.links.items()}}
        names = ", ".join(
            f"`{path}`" for path in sorted(differing | (again.folders.keys() ^ self._source.folders.keys()))
        )
        message = f"the source changed while it was copied: {names[:500]}"
        hint = "deliver again when the checkpoint is written: what was copied is kept"
        raise SupplyError(Problem(code="source-changed", message=message, where=str(self._source.base), hint=hint))

    def _sweep(self) -> None:
        """Remove parts of files that the source does not have any more."""
        for folder in ("", *self._source.folders) if not self._source.is_file else ():
            place = self._destination / folder
            with filesystem(place):
                for part in [one for one in place.iterdir() if is_part(one.name)]:
                    part.unlink()

    def _settle_folders(self) -> None:
        """Give folders their modes and make the renames in them survive a power cut, the deepest first."""
        for folder, mode in sorted(self._source.folders.items(), reverse=True):
            place = self._destination / folder
            with filesystem(place):
                fsync_folder(place)
            with contextlib.suppress(OSError):
                place.chmod(mode)
        with filesystem(self._destination):
            fsync_folder(self._destination)

    # -- threads

    def _each(self, files: Iterable[SourceFile], act: Callable[[SourceFile], R]) -> list[tuple[SourceFile, R]]:
        """Call for every file in a few threads; the first failure ends the others, and all failures are raised."""
        failures: list[EnvsmithError] = []
        done: dict[str, tuple[SourceFile, R]] = {}
        with ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="deliver") as pool:
            try:
                futures = {pool.submit(self._guarded, act, file): file for file in files}
                for future in as_completed(futures):
                    file = futures[future]
                    try:
                        done[file.path] = (file, future.result())
                    except Stopped:
                        continue
                    except EnvsmithError as error:
                        failures.append(error)
                        self._stop.set()
            except BaseException:
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        if failures:
            raise _together(failures)
        return [done[path] for path in sorted(done)]

    def _guarded(self, act: Callable[[SourceFile], R], file: SourceFile) -> R:
        if self._stop.is_set():
            raise Stopped
        return act(file)

    def _advance(self, count: int) -> None:
        with self._gate:
            self._progress.advance(count)


def _together(failures: list[EnvsmithError]) -> EnvsmithError:
    """One error of all, of the class that weighs most."""
    worst = max(failures, key=lambda error: (isinstance(error, IntegrityError), error.exit_code))
    problems = {problem: None for error in (worst, *failures) for problem in error.problems}
    return type(worst)(*problems)


def _some(problems: list[Problem]) -> Iterator[Problem]:
    yield from problems[:_NAMED]
    if len(problems) > _NAMED:
        last = problems[-1]
        yield Problem(code=last.code, message=f"and {len(problems) - _NAMED:,} more", hint=last.hint)


def _in_the_way(stand: Standing, place: Path) -> Problem:
    if stand is Standing.DAMAGED:
        return Problem(
            code="delivered-file-changed",
            message=f"`{place}` is not what was delivered: it was changed or damaged since",
            hint="look into the disk and who writes there, then deliver it anew with `--replace`",
        )
    who = "an earlier delivery wrote it" if stand is Standing.OLDER else "no delivery wrote it"
    return Problem(
        code="destination-differs",
        message=f"`{place}` is in the way: it has another content than the source, and {who}",
        hint="deliver into another folder, or let it be replaced with `--replace`",
    )
