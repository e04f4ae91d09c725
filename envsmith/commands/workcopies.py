"""The job layer: which work copies that people edit stand before an env's own sources, kept beside the env."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envsmith.checks.sources import JobLayer
from envsmith.commands.envs import BuiltEnv, shown
from envsmith.errors import EnvsmithError, InputError, Problem
from envsmith.lock import Lock
from envsmith.tools.files import filesystem, write_atomic

RECORD = "work.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkCopy:
    """One writable copy of a source, and how its folders answer imports."""

    source: str
    directory: Path
    names: Mapping[str, tuple[str, ...]]
    """Import names of the source to the folders they come from, relative to the work copy; `.` is its root."""

    @property
    def import_folders(self) -> tuple[Path, ...]:
        """Folders for PYTHONPATH."""
        return tuple(self.directory / folder for folder in dict.fromkeys(sum(self.names.values(), ())))

    @property
    def present(self) -> bool:
        """False when it has gone away, or is no longer laid out as the source is."""
        return bool(self.names) and all(folder.is_dir() for folder in self.import_folders)

    def answers(self) -> dict[str, tuple[str, ...]]:
        """The import names that it has now, with the resolved folders they come from."""
        found = {name: tuple(self.directory / folder for folder in folders) for name, folders in self.names.items()}
        return {
            name: tuple(str(folder.resolve()) for folder in folders)
            for name, folders in found.items()
            if any((folder / name).is_dir() or (folder / f"{name}.py").is_file() for folder in folders)
        }


def read_record(built: BuiltEnv) -> dict[str, Path]:
    """The work copies of an env by source; none where nothing was recorded.

    Raises:
        InputError: `work-record-malformed`.
    """
    path = built.beside(RECORD)
    try:
        with filesystem(path):
            text = path.read_text(encoding="utf-8") if path.exists() else "{}"
        data = json.loads(text)
        if not isinstance(data, dict) or not all(isinstance(item, str) and item[:1] == "/" for item in data.values()):
            raise ValueError("it should hold one absolute folder a source")
    except ValueError as error:
        problem = Problem(
            code="work-record-malformed",
            message=f"the record of work copies cannot be read: {error}",
            where=shown(path),
            hint="remove the file; the work copies stay where they are",
        )
        raise InputError(problem) from error
    return {source: Path(directory) for source, directory in sorted(data.items())}


def write_record(built: BuiltEnv, directories: Mapping[str, Path]) -> None:
    """Keep which work copies stand before the env; no record when there are none."""
    path = built.beside(RECORD)
    if not directories:
        with filesystem(path):
            path.unlink(missing_ok=True)
        return
    data = {source: str(directory) for source, directory in directories.items()}
    write_atomic(path, json.dumps(data, indent=2, sort_keys=True) + "\n")


def import_names(editable: Mapping[str, Sequence[str]], source: str) -> dict[str, tuple[str, ...]]:
    """The import names of a source by a receipt's `editable` table, with folders relative to the source."""
    prefix = f"src/{source}"
    found = {
        name: tuple(
            folder[len(prefix) + 1 :] or "."
            for folder in folders
            if folder == prefix or folder.startswith(f"{prefix}/")
        )
        for name, folders in editable.items()
    }
    return {name: folders for name, folders in found.items() if folders}


def work_copies(built: BuiltEnv, editable: Mapping[str, Sequence[str]]) -> tuple[WorkCopy, ...]:
    """The recorded work copies of an env, whether they are still there or not."""
    return tuple(
        WorkCopy(source=source, directory=directory, names=import_names(editable, source))
        for source, directory in read_record(built).items()
    )


def work_dirs(copies: Iterable[WorkCopy]) -> tuple[str, ...]:
    """What comes first on PYTHONPATH; a copy that has gone away is left out."""
    return tuple(str(folder) for copy in copies if copy.present for folder in copy.import_folders)


def gone_sentence(copy: WorkCopy) -> str:
    """Say that a work copy is left out."""
    return f"the work copy of `{copy.source}` in `{shown(copy.directory)}` has gone: the env's own source is used"


def job_layers(copies: Iterable[WorkCopy], lock: Lock) -> list[JobLayer]:
    """Look at every work copy; git is asked what it holds, and nothing depends on the answer."""
    from envsmith.tools.git import changes_since, commit_of

    layers = []
    trees = {source.name: source.tree for source in lock.sources}
    for copy in copies:
        head: str | None = None
        changed: tuple[str, ...] | None = None
        if copy.present:
            try:
                head = commit_of(copy.directory, "HEAD")
                changed = changes_since(copy.directory, trees.get(copy.source, ""))
            except EnvsmithError:
                pass  # no work copy of git any more: its files are still what is imported
        layers.append(
            JobLayer(
                source=copy.source,
                directory=str(copy.directory),
                present=copy.present,
                head=head,
                changed=changed,
            )
        )
    return layers
