"""Making patches: the body from two trees, the header from words, and the entry of a series."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from envsmith.commands.envs import shown
from envsmith.errors import InputError, Problem
from envsmith.hunks import is_unique, read_hunks, without_index_lines
from envsmith.series import Layer, Patch, halves, parse_patch
from envsmith.tools.files import filesystem

DEFAULT_CONTEXT = 3
#: With more lines around a change a patch says more than it must.
MOST_CONTEXT = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Body:
    """The difference of two trees, ready to stand below a header."""

    data: bytes
    context: int
    ambiguous: tuple[str, ...]
    """Places that would fit more than once even so: `path, hunk N`."""


def make_body(work: Path, old: str, new: str, *, context: int = DEFAULT_CONTEXT) -> Body:
    """Make the body with the least context, from `context` lines on, whose hunks each fit one place alone."""
    from envsmith.tools.git import diff_between

    first: Body | None = None
    for lines in range(context, max(context, MOST_CONTEXT) + 1):
        data = without_index_lines(diff_between(work, old, new, lines))
        body = Body(data=data, context=lines, ambiguous=tuple(_ambiguous(work, old, data)))
        if not body.ambiguous:
            return body
        first = first or body
    assert first is not None
    return first


def _ambiguous(work: Path, tree: str, data: bytes) -> Iterator[str]:
    from envsmith.tools.git import content

    files: dict[str, list[str]] = {}
    for hunk in read_hunks(data):
        if hunk.path not in files:
            before = content(work, tree, hunk.path) or b""
            files[hunk.path] = before.decode("utf-8", "surrogateescape").split("\n")
        if not is_unique(hunk, files[hunk.path]):
            yield f"{hunk.path}, hunk {hunk.number}"


def make_header(fields: Mapping[str, str]) -> bytes:
    """Write a DEP-3 header; further lines of a value are indented.

    Raises:
        InputError: `patch-header` for a value that is not text.
    """
    lines = []
    for name, value in fields.items():
        first, *more = value.strip().splitlines()
        lines += [f"{name}: {first.strip()}", *(f" {line.strip()}" for line in more if line.strip())]
    try:
        return ("\n".join(lines) + "\n\n").encode()
    except UnicodeEncodeError as error:
        wrong = ", ".join(name for name, value in fields.items() if not _is_text(value))
        problem = Problem(code="patch-header", message=f"{wrong} is not UTF-8", hint="write it in UTF-8")
        raise InputError(problem) from error


def _is_text(value: str) -> bool:
    """Bytes of the command line that are not UTF-8 arrive as lone surrogates."""
    return not re.search("[\ud800-\udfff]", value)


def today(environ: Mapping[str, str]) -> str:
    """The date of a patch that is made now, or that of SOURCE_DATE_EPOCH."""
    epoch = environ.get("SOURCE_DATE_EPOCH", "")
    if re.fullmatch(r"[0-9]{1,11}", epoch):
        return datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc).date().isoformat()
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def redated(patch: Patch, date: str) -> bytes:
    """The header of a patch with another `Last-Update`, its other lines as they are."""
    header, _ = halves(patch.data)
    return re.sub(rb"(?m)^Last-Update:.*$", f"Last-Update: {date}".encode(), header, count=1)


def proven(work: Path, old: str, new: str, data: bytes, path: Path) -> Patch:
    """Parse a patch that was just made and prove that it makes one tree of the other.

    Raises:
        InputError: what `parse_patch` refuses, or `patch-did-not-apply`.
    """
    from envsmith.tools.git import tree_with

    patch = parse_patch(data, path.name, shown(path))
    if tree_with(work, old, data) != new:
        message = "what git writes as the difference does not make the edited tree again"
        hint = "a mode, a filter or a line end is part of the change; leave it out, or carry the file as an asset"
        raise InputError(Problem(code="patch-did-not-apply", message=message, where=shown(path), hint=hint))
    return patch


def new_series(layer: str | None, base: str, description: str, where: Path) -> str:
    """The head of a series file.

    Raises:
        InputError: `series-header` when the layer is not said.
    """
    layers = [one.value for one in Layer]
    if layer not in layers:
        said = f"`{layer}` is no layer" if layer else "the series is new, so its layer must be said"
        hint = f"give `--layer`, one of {', '.join(layers)}"
        raise InputError(Problem(code="series-header", message=said, where=shown(where), hint=hint))
    return f"# Layer: {layer}\n# Base: {base}\n# Description: {description}\n"


def exists(path: Path) -> bool:
    """Whether something is there."""
    with filesystem(path):
        return path.exists() or path.is_symlink()
