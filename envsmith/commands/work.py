"""`envsmith work`: a writable copy of a source that `run` puts before the env's own, and its record."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from envsmith.commands.envs import BuiltEnv, env_root, open_env, shown, user_path
from envsmith.commands.result import Result
from envsmith.commands.subject import Subject, open_subject
from envsmith.commands.workcopies import import_names, read_record, write_record
from envsmith.errors import InputError, IntegrityError, NegativeAnswer, Problem
from envsmith.lock import LockedSource
from envsmith.tools.files import filesystem, remove_tree

#: What a build backend leaves that would answer for an installed distribution a second time.
_METADATA = (".egg-info", ".dist-info")


def run(
    env: str, source: str, *, out: str | None, root: str | None, forget: bool, environ: Mapping[str, str]
) -> Result:
    """Make the work copy and record it; with `forget` remove the record alone.

    Raises:
        InputError: `usage`, `unknown-source`, `work-not-recorded`, `work-recorded`, `work-not-editable`, `work-place`,
            `work-exists`.
        NegativeAnswer: `env-incomplete`.
        IntegrityError: `tree-differs` when the env's own copy is not the locked one.
    """
    words = f"{env}{f' --root {shlex.quote(root)}' if root else ''} {source}"
    if (out is None) == (not forget):
        hint = f"`envsmith work {words} -o DIR` makes one, `--forget` takes it out of the env"
        raise InputError(Problem(code="usage", message="give either `-o DIR` or `--forget`", hint=hint))
    built = open_env(env, env_root(root, environ))
    if built.receipt is None:
        message = "the env has no receipt of envsmith: its build did not end, or another tool made it"
        hint = "build it with `envsmith build`"
        raise NegativeAnswer(Problem(code="env-incomplete", message=message, where=shown(built.directory), hint=hint))
    if out is None:
        return _forget(built, source)
    subject = open_subject(built)
    locked = _source(subject, source)
    directory = user_path(out)
    _check_place(built, directory)
    record = read_record(built)
    if source in record and record[source].is_dir():
        message = f"the env has a work copy of `{source}` already"
        hint = f"edit that one, or take it out with `envsmith work {words} --forget`"
        raise InputError(Problem(code="work-recorded", message=message, where=shown(record[source]), hint=hint))
    commit = _copy(subject, locked, directory)
    write_record(built, {**record, source: directory})
    data = {"env": built.name, "source": source, "directory": str(directory), "head": commit, "tree": locked.tree}
    text = (
        f"{built.name}: {shown(directory)} is a work copy of {source} at {commit[:12]}, branch `work`\n"
        f"`envsmith run` imports {source} from there now; `envsmith work {words} --forget` ends that"
    )
    return Result(command="work", data=data, text=text)


def _forget(built: BuiltEnv, source: str) -> Result:
    record = read_record(built)
    if source not in record:
        hint = f"recorded: {', '.join(record)}" if record else "the env has none; look at its name and `--root`"
        message = f"no work copy of `{source}` is recorded"
        raise InputError(Problem(code="work-not-recorded", message=message, where=built.name, hint=hint))
    directory = record.pop(source)
    write_record(built, record)
    data = {"env": built.name, "source": source, "directory": str(directory), "forgotten": True}
    return Result(
        command="work", data=data, text=f"{built.name}: {source} is its own again; {shown(directory)} was left alone"
    )


def _source(subject: Subject, name: str) -> LockedSource:
    found = next((source for source in subject.records[0].sources if source.name == name), None)
    if found is None:
        known = ", ".join(source.name for source in subject.records[0].sources)
        hint = f"its sources: {known}" if known else "it has no source at all"
        message = f"`{name}` is no source of this env"
        raise InputError(Problem(code="unknown-source", message=message, where=subject.name, hint=hint))
    if found.install != "editable" or not import_names(subject.verify["editable"], name):
        message = f"`{name}` is installed as a wheel, so a folder before it would not be the same thing"
        hint = 'let the recipe say `install = "editable"` for it and build, or change it by a patch'
        raise InputError(Problem(code="work-not-editable", message=message, where=subject.name, hint=hint))
    return found


def _check_place(built: BuiltEnv, directory: Path) -> None:
    """PYTHONPATH cannot hold a colon, and an env holds nothing but what was locked."""
    said = None
    if ":" in str(directory):
        said = "PYTHONPATH cannot name a folder with a colon in its path"
    elif directory.resolve().is_relative_to(built.directory.parent.resolve()):
        said = "it would lie among the env's own files"
    if said:
        raise InputError(
            Problem(code="work-place", message=said, where=shown(directory), hint="choose another folder for `-o`")
        )


def _copy(subject: Subject, source: LockedSource, directory: Path) -> str:
    """Copy the env's work copy through git, hold the result against the lock, add what the backend left."""
    from envsmith.tools import git

    own = subject.directory / "src" / source.name
    existed = directory.is_dir()
    with filesystem(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
    commit = git.copy_work(own, directory)
    tree = git.tree_id(directory)
    if tree != source.tree:
        for path in list(directory.iterdir()) if existed else [directory]:
            remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        message = f"the env's own copy of `{source.name}` is not the locked one"
        hint = "build the env again with `envsmith build --rebuild`"
        raise IntegrityError(
            Problem(
                code="tree-differs", message=message, where=shown(own), expected=source.tree, actual=tree, hint=hint
            )
        )
    git.note(directory, "base", source.commit or f"{source.project}=={source.version}")
    git.note(directory, "source", source.name)
    git.ignore(directory, _leftovers(subject, source, own, directory))
    return commit


def _leftovers(subject: Subject, source: LockedSource, own: Path, directory: Path) -> list[str]:
    """Bring what the build backend left beside the tracked files, such as extensions: imports may need it."""
    prefix = f"src/{source.name}/"
    brought = []
    for entry in subject.manifest.entries:
        path = entry.path.removeprefix(prefix)
        if path == entry.path or entry.part == "portable" or any(word in path for word in _METADATA):
            continue
        if not (own / path).is_file() or (directory / path).exists():
            continue
        with filesystem(directory / path):
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(own / path, directory / path, follow_symlinks=False)
        brought.append(path)
    return brought
