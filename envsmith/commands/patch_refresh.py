"""`envsmith patch refresh`: a series on another tree, hunk by hunk; written anew when all of it applies."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envsmith.commands.envs import shown, user_path
from envsmith.commands.patchfiles import read_file
from envsmith.commands.patchmaking import exists, make_body, proven, redated, today
from envsmith.commands.result import Result
from envsmith.errors import InputError, Problem
from envsmith.hunks import Hunk, Offset, nearest, offsets, read_hunks, rejected
from envsmith.series import COMMIT, Patch, halves, parse_patch, parse_series
from envsmith.tools.files import write_atomic


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """One hunk, or a whole file's change, that does not apply any more."""

    patch: str
    line: int
    """Line of the patch file."""
    hunk: int | None
    """Number of the hunk within its file; None when the file itself is the obstacle."""
    path: str
    target_line: int | None
    """Where the target comes nearest."""
    reason: str
    expected: str | None = None
    actual: str | None = None

    def problem(self, folder: Path) -> Problem:
        """Say it, with the line of the patch and that of the target."""
        what = f"hunk {self.hunk} of" if self.hunk else "the change to"
        place = f"`{self.path}`" + (f", line {self.target_line}" if self.target_line else "")
        return Problem(
            code="hunk-did-not-apply",
            message=f"{what} `{self.patch}` does not apply to {place}: {self.reason}",
            where=f"{shown(folder / self.patch)}:{self.line}",
            expected=self.expected,
            actual=self.actual,
            hint="make this change anew in a work copy of the new tree (`envsmith patch new`)",
        )

    def to_dict(self) -> dict[str, object]:
        """The JSON form."""
        return {
            "patch": self.patch, "line": self.line, "hunk": self.hunk, "path": self.path,
            "target_line": self.target_line, "reason": self.reason, "expected": self.expected, "actual": self.actual,
        }  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """One patch on the new tree."""

    patch: Patch
    before: str
    after: str
    failed: tuple[Failed, ...]
    offsets: tuple[Offset, ...]
    already: bool
    """The tree holds the change already."""


def run(series: str, *, onto: str, source: str, out: str | None, environ: Mapping[str, str]) -> Result:
    """Try every patch of a series on another tree; write the refreshed series when each applies.

    Raises:
        InputError: `series-missing`, `patch-missing`, `usage`, `patch-exists`, what parsers refuse.
        SupplyError: `commit-missing`, `source-unreachable`.
    """
    file = user_path(series)
    text = read_file(file, "series-missing", "there is no such series").decode("utf-8", errors="replace")
    parsed = parse_series(text, shown(file))
    patches = [
        parse_patch(
            read_file(file.parent / name, "patch-missing", "the series lists it"), name, shown(file.parent / name)
        )
        for name in parsed.entries
    ]
    folder = _folder(file, parsed.base, onto, out)
    with tempfile.TemporaryDirectory(prefix="envsmith-refresh-") as scratch:
        work = Path(scratch) / "work"
        export_tree_of(onto, source, Path(scratch), work)
        tried = [_try(work, patch) for patch in patches]
        data: dict[str, object] = {"series": shown(file), "onto": onto, "patches": [_row(one) for one in tried]}
        problems = tuple(problem for one in tried for problem in _problems(one, file.parent))
        if problems:
            text = "\n".join(_sentence(one) for one in tried)
            return Result(command="patch refresh", data=data, text=text, exit_code=1, errors=problems)
        made = {one.patch.name: _remade(work, one, folder, environ) for one in tried}
    head = re.sub(r"(?m)^#\s*Base:.*$", f"# Base: {onto}", text, count=1)
    _write(folder, {**made, file.name: head.encode()})
    data |= {"folder": shown(folder), "written": [*made, file.name]}
    lines = [*(_sentence(one) for one in tried), f"{shown(folder / file.name)}: written, base {onto}"]
    return Result(command="patch refresh", data=data, text="\n".join(lines))


def export_tree_of(onto: str, source: str, scratch: Path, work: Path) -> None:
    """Make a work copy of a commit of a repository, or of an unpacked sdist."""
    from envsmith.tools.git import export_commit, export_tree, mirror
    from envsmith.tools.sdist import unpack_sdist

    if COMMIT.fullmatch(onto):
        place: str | Path = source if "://" in source else user_path(source)
        mirror(place, onto, scratch / "mirror")
        export_commit(scratch / "mirror", onto, work)
    elif "==" in onto:
        archive = user_path(source)
        if not archive.is_file():
            hint = "for a release, `--source` names its sdist, a `.tar.gz` or `.zip`"
            raise InputError(Problem(code="usage", message="there is no such sdist", where=shown(archive), hint=hint))
        unpack_sdist(archive, scratch / "files")
        export_tree(scratch / "files", work)
    else:
        hint = "write all 40 digits of a commit, or `name==version` with `--source` naming its sdist"
        raise InputError(Problem(code="usage", message=f"`{onto}` is neither a full commit nor a release", hint=hint))


def _folder(file: Path, base: str, onto: str, out: str | None) -> Path:
    """The folder of the refreshed series: `<project>-<commit8 or version>` beside the old one."""
    project, _, old_tag = file.parent.name.rpartition("-")
    digits = len(old_tag) if base.startswith(old_tag) else 8
    tag = onto.partition("==")[2] or onto[:digits]
    folder = user_path(out) if out else file.parent.parent / f"{project}-{tag}"
    problems = []
    if folder.resolve() == file.parent.resolve():
        problems.append(folder)
    elif exists(folder / file.name):
        problems.append(folder / file.name)
    if problems:
        hint = "name another folder with `-o`; nothing that is there is written over"
        message = "the refreshed series would be written over what is there"
        raise InputError(Problem(code="patch-exists", message=message, where=shown(problems[0]), hint=hint))
    return folder


def _try(work: Path, patch: Patch) -> Tried:
    """Apply what applies; later patches are tried on the result, so that each says its own trouble."""
    from envsmith.tools.git import apply_what_applies, content, index_tree, reverse_applies

    before = index_tree(work)
    already = reverse_applies(work, patch.data)
    said = "" if already else apply_what_applies(work, patch.data)
    hunks = read_hunks(patch.data)
    failed: list[Failed] = []
    for path, number, reason in () if already else rejected(said, patch.data):
        found = content(work, before, path)
        lines = None if found is None else found.decode("utf-8", "surrogateescape").split("\n")
        chosen = [hunk for hunk in hunks if hunk.path == path and number in (None, hunk.number)]
        failed += _missed(patch, path, chosen, lines, reason)
    moved = () if already else offsets(said)
    return Tried(
        patch=patch, before=before, after=index_tree(work), failed=tuple(failed), offsets=moved, already=already
    )


def _missed(
    patch: Patch, path: str, hunks: Sequence[Hunk], lines: Sequence[str] | None, reason: str
) -> Iterator[Failed]:
    """Say where each hunk comes nearest; without a file, or with one that is in the way, the file is the reason."""
    wanted = [hunk for hunk in hunks if hunk.old]
    if lines is None or not wanted:
        line = hunks[0].line if hunks else 1
        said = "the file is not there any more" if lines is None else reason
        yield Failed(patch=patch.name, line=line, hunk=None, path=path, target_line=None, reason=said)
        return
    for hunk in wanted:
        miss = nearest(hunk, lines)
        said = "the file ends there" if miss.actual is None else "the line differs"
        if (miss.expected, miss.actual) == (hunk.old[0], None) and miss.line <= len(lines):
            said = reason  # every line is there; git has another objection
        yield Failed(
            patch=patch.name, line=hunk.line, hunk=hunk.number, path=path, target_line=miss.line, reason=said,
            expected=miss.expected, actual=miss.actual,
        )  # fmt: skip


def _problems(tried: Tried, folder: Path) -> Iterator[Problem]:
    where = shown(folder / tried.patch.name)
    if tried.already:
        hint = "leave it out of the new series"
        message = f"`{tried.patch.name}` is already applied: the new tree holds the change"
        yield Problem(code="patch-already-applied", message=message, where=where, hint=hint)
    elif tried.before == tried.after and not tried.failed:
        message = f"`{tried.patch.name}` left the tree unchanged, though git said that it applied"
        yield Problem(code="patch-did-not-apply", message=message, where=where)
    yield from (failed.problem(folder) for failed in tried.failed)


def _row(tried: Tried) -> dict[str, object]:
    moved = [{"path": o.path, "hunk": o.number, "line": o.line, "offset": o.lines} for o in tried.offsets]
    return {
        "patch": tried.patch.name,
        "applies": not (tried.failed or tried.already),
        "already_applied": tried.already,
        "failed": [failed.to_dict() for failed in tried.failed],
        "offsets": moved,
    }


def _sentence(tried: Tried) -> str:
    if tried.already:
        return f"{tried.patch.name}: already applied"
    if tried.failed:
        count = len(tried.failed)
        return f"{tried.patch.name}: {count} {'hunks do' if count > 1 else 'hunk does'} not apply"
    moved = ", ".join(f"{o.path} hunk {o.number} by {o.lines:+d} lines" for o in tried.offsets)
    return f"{tried.patch.name}: applies" + (f", moved: {moved}" if moved else "")


def _remade(work: Path, tried: Tried, folder: Path, environ: Mapping[str, str]) -> bytes:
    """The patch for the new tree; as it was when nothing in it has moved."""
    context = max((hunk.context for hunk in read_hunks(tried.patch.data)), default=3)
    body = make_body(work, tried.before, tried.after, context=max(context, 1))
    _, old_body = halves(tried.patch.data)
    # A body made here spells a rename out as a removal and an addition; one that fits as it is stays short.
    renames = re.search(rb"(?m)^rename from ", old_body) is not None
    if not tried.offsets and (renames or _bare(old_body) == _bare(body.data)):
        data = tried.patch.data
    else:
        data = redated(tried.patch, today(environ)) + body.data
    return proven(work, tried.before, tried.after, data, folder / tried.patch.name).data


def _bare(body: bytes) -> list[bytes]:
    """The lines that count: index lines and the words behind `@@` do not."""
    lines = (re.sub(rb"^(@@ [^@]+ @@).*", rb"\1", line) for line in body.split(b"\n"))
    return [line for line in lines if not line.startswith(b"index ")]


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the series last; a patch that is there already must be the same."""
    differing = [
        folder / name
        for name, data in files.items()
        if exists(folder / name) and read_file(folder / name, "patch-missing", "it cannot be read") != data
    ]
    if differing:
        message = "another patch of this name is there"
        hint = "name another folder with `-o`"
        one = Problem(code="patch-exists", message=message, where=shown(differing[0]), hint=hint)
        raise InputError(*(replace(one, where=shown(path)) for path in differing))
    for name, data in files.items():
        write_atomic(folder / name, data)
