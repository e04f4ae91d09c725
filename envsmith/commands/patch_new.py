"""`envsmith patch new`: from an edited work copy to a patch file with its header and its entry in a series."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envsmith.commands.envs import shown, user_path
from envsmith.commands.patchfiles import read_file
from envsmith.commands.patchmaking import DEFAULT_CONTEXT, exists, make_body, make_header, new_series, proven, today
from envsmith.commands.result import Result
from envsmith.errors import InputError, NegativeAnswer, Problem
from envsmith.series import check_base, parse_series
from envsmith.tools.files import write_atomic

_NAME = re.compile(r"\d{4}(-[a-z0-9.]+){2,}\.patch")


@dataclass(frozen=True, kw_only=True, slots=True)
class Words:
    """What the command line says about a patch."""

    description: str
    seen_as: str
    origin: str
    forwarded: str
    bug: str

    def fields(self, date: str) -> dict[str, str]:
        """The header fields, in the order of docs/patches.md.

        Raises:
            InputError: `patch-header` for every required one that is missing.
        """
        needed = {
            "Description": ("--description", "what it does; give it again for the symptom and the cause"),
            "Origin": ("--origin", "who wrote it, or where it was taken from"),
            "Seen-As": ("--seen-as", "the message that somebody with the fault would search for"),
        }
        given = {"Description": self.description, "Origin": self.origin, "Seen-As": self.seen_as}
        problems = [
            Problem(code="patch-header", message=f"field `{name}` is missing", hint=f"give `{option}`: {meaning}")
            for name, (option, meaning) in needed.items()
            if not given[name].strip()
        ]
        if problems:
            raise InputError(*problems)
        bug = {"Bug": self.bug} if self.bug else {}
        forwarded = self.forwarded.strip() or "no"
        return {
            "Description": self.description, "Origin": self.origin, **bug, "Forwarded": forwarded,
            "Last-Update": date, "Seen-As": self.seen_as,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _Target:
    """The series that a patch goes into."""

    path: Path
    text: str
    base: str
    is_new: bool


def run(
    directory: str,
    *,
    out: str,
    series: str,
    layer: str | None,
    base: str | None,
    since: str | None,
    context: int | None,
    words: Words,
    environ: Mapping[str, str],
) -> Result:
    """Write the patch, then its entry.

    Raises:
        InputError: `patch-header`, `patch-name`, `patch-exists`, `work-without-git`, `unknown-commit`, the codes of a
            series, and everything that a patch is refused for.
        NegativeAnswer: `patch-nothing-changed`.
    """
    from envsmith.tools import git

    fields = words.fields(today(environ))
    work, path = user_path(directory), user_path(out)
    start = _start(work, since)
    target = _target(path, series, layer, _bases(work, start, base), fields["Description"])
    old, new = _tree(work, start), git.tree_of_files(work, start)
    if old == new:
        message = f"nothing has changed since {start[:12]}"
        hint = "edit files of the work copy first; `--since COMMIT` names another start"
        raise NegativeAnswer(Problem(code="patch-nothing-changed", message=message, where=shown(work), hint=hint))
    body = make_body(work, old, new, context=DEFAULT_CONTEXT if context is None else context)
    patch = proven(work, old, new, make_header(fields) + body.data, path)
    write_atomic(path, patch.data)
    write_atomic(target.path, target.text + f"{path.name}\n")
    if git.commit_of(work, git.BASE_REF):
        git.remember(work, git.LAST_REF, new, start)
    data = {
        "patch": shown(path), "series": shown(target.path), "series_is_new": target.is_new, "base": target.base,
        "since": start, "files": list(patch.paths), "sha256": patch.sha256, "context": body.context,
        "ambiguous": list(body.ambiguous),
    }  # fmt: skip
    return Result(command="patch new", data=data, text=_text(data))


def _text(data: Mapping[str, object]) -> str:
    files, ambiguous = data["files"], data["ambiguous"]
    assert isinstance(files, list)
    assert isinstance(ambiguous, list)
    lines = [f"{data['patch']}: {', '.join(files)}", f"{data['series']}: lists it, base {data['base']}"]
    lines += [f"note: {place} would fit more than one place; git goes by its line number" for place in ambiguous]
    return "\n".join([*lines, "name the series in the recipe, then run `envsmith lock`"])


def _start(work: Path, since: str | None) -> str:
    """The commit that the change begins at: the named one, else that of the last patch, the copy's first, or HEAD."""
    from envsmith.tools.git import BASE_REF, LAST_REF, commit_of

    for name in [since] if since else [LAST_REF, BASE_REF, "HEAD"]:
        found = commit_of(work, name)
        if found:
            return found
    raise InputError(
        Problem(
            code="unknown-commit",
            message=f"the work copy has no commit `{since or 'HEAD'}`",
            where=shown(work),
            hint="name one of its commits with `--since`",
        )
    )


def _tree(work: Path, commit: str) -> str:
    from envsmith.tools.git import tree_named

    return tree_named(work, commit)


def _bases(work: Path, start: str, said: str | None) -> tuple[str | None, str]:
    """The base that is known, and the one that a new series gets: of any other repository, where the change begins."""
    from envsmith.tools.git import BASE_REF, commit_of, noted

    known = said or (noted(work, "base") if commit_of(work, BASE_REF) else None)
    return known, known or start


def _target(path: Path, series: str, layer: str | None, bases: tuple[str | None, str], description: str) -> _Target:
    """Read the series, or begin one, and hold it against the patch's name and place."""
    file = path.parent / series if "/" not in series else user_path(series)
    problems = []
    if not _NAME.fullmatch(path.name):
        message = f"`{path.name}` is not of the form `NNNN-verb-object.patch`"
        hint = "for example `0002-keep-rewards-on-one-scale.patch`"
        problems.append(Problem(code="patch-name", message=message, where=shown(path), hint=hint))
    if exists(path):
        hint = "an old patch is not overwritten; remove it, or take the next number"
        problems.append(Problem(code="patch-exists", message="there is such a patch", where=shown(path), hint=hint))
    if file.suffix != ".series" or file.name == path.name:
        hint = "for example `old-driver.series`"
        message = f"`{file.name}` does not end in `.series`"
        problems.append(Problem(code="series-name", message=message, where=shown(file), hint=hint))
    if file.resolve().parent != path.resolve().parent:
        message = "the series does not lie beside the patch"
        hint = f"name one in `{shown(path.parent)}`"
        problems.append(Problem(code="series-entry", message=message, where=shown(file), hint=hint))
    if problems:
        raise InputError(*problems)
    if not exists(file):
        text = new_series(layer, bases[1], description.strip().splitlines()[0], file)
        parse_series(text + path.name, shown(file))
        return _Target(path=file, text=text, base=bases[1], is_new=True)
    return _extended(file, path.name, layer, bases[0])


def _extended(file: Path, name: str, layer: str | None, base: str | None) -> _Target:
    text = read_file(file, "series-missing", "the series cannot be read").decode("utf-8", errors="replace")
    text += "" if text.endswith("\n") else "\n"
    known = parse_series(text, shown(file))
    parse_series(f"{text}{name}\n", shown(file))
    if base is not None:
        check_base(known, base, shown(file))
    if layer is not None and layer != known.layer.value:
        message = "the series is of another layer"
        hint = "a patch of another layer goes into another series"
        problem = Problem(
            code="series-header",
            message=message,
            where=shown(file),
            expected=known.layer.value,
            actual=layer,
            hint=hint,
        )
        raise InputError(problem)
    if known.entries and name < known.entries[-1]:
        message = f"`{name}` would stand behind `{known.entries[-1]}`"
        hint = "patches are numbered in the order in which they apply; take the next number"
        raise InputError(Problem(code="series-order", message=message, where=shown(file), hint=hint))
    return _Target(path=file, text=text, base=known.base, is_new=False)
