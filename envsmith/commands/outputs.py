"""Where a bundle is written: a folder, a tar file, or the parts of one; never over something else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from envsmith.commands.bundles import open_bundle
from envsmith.commands.envs import shown, user_path
from envsmith.errors import EnvsmithError, InputError, Problem
from envsmith.tools.files import filesystem
from envsmith.tools.layout import PART, open_layout
from envsmith.tools.layout_writing import part_size

#: What stands in a folder before its `index.json` does.
_BEGUN = re.compile(
    r"oci-layout|blobs|install\.sh|MANIFEST\.md|SHA256SUMS|FILES\.tsv|pylock\.[a-z0-9-]+\.toml|\.envsmith-.*"
)
#: A part holds at least some headers; smaller ones are a mistake.
_SMALLEST_PART = 64 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What `-o` and `--max-size` name."""

    path: Path
    part_bytes: int | None

    def require(self, sha256: str) -> None:
        """Refuse to write this bundle over what is not a bundle, or is another one.

        Raises:
            InputError: `bundle-output-unusable`.
        """
        _require_output(self.path, sha256)


def output_of(out: str, max_size: str | None) -> Output:
    """Read the two options.

    Raises:
        InputError: `bundle-output-unusable`, `max-size-malformed`, `path-malformed`.
    """
    path = user_path(out)
    output = Output(path=path, part_bytes=_part_bytes(out, max_size, path))
    _require_place(path)  # before the long work; what needs the digest of the bundle is asked after it
    return output


def _part_bytes(out: str, max_size: str | None, target: Path) -> int | None:
    """Read `--max-size`.

    Raises:
        InputError: `max-size-malformed`, `bundle-output-unusable`.
    """
    if PART.search(target.name):
        message = "this is the name of a part"
        hint = "name the whole file, such as a100.tar; its parts get their numbers"
        raise InputError(Problem(code="bundle-output-unusable", message=message, where=out, hint=hint))
    if max_size is None:
        return None
    size = part_size(max_size)
    if size is None or size < _SMALLEST_PART:
        message = f"`{max_size}` is not a size of parts: a number with K, M or G, 64K at least"
        hint = "for a FAT file system write `--max-size 3900M`"
        raise InputError(Problem(code="max-size-malformed", message=message, where="--max-size", hint=hint))
    if target.suffix != ".tar":
        message = "only a tar file can be split"
        hint = f"write `-o {out}.tar`"
        raise InputError(Problem(code="bundle-output-unusable", message=message, where=out, hint=hint))
    return size


def _require_output(target: Path, sha256: str) -> None:
    """Refuse to write over what is not a bundle, or is another one.

    Raises:
        InputError: `bundle-output-unusable`.
    """
    _require_place(target)
    with filesystem(target):
        if target.suffix != ".tar" and target.is_dir() and any(target.iterdir()):
            _require_same(target, sha256)


def _require_place(target: Path) -> None:
    """Refuse what can be seen to be no bundle, whichever bundle shall be written.

    Raises:
        InputError: `bundle-output-unusable`.
    """
    with filesystem(target):
        if target.suffix == ".tar":
            _require_tar(target)
        elif target.exists() and not target.is_dir():
            raise _unusable(target, "there is a file of that name", "a bundle is a folder, or a file named `….tar`")
        elif target.is_dir() and any(target.iterdir()) and not _is_begun(target):
            try:
                open_layout(target, shown(target))
            except EnvsmithError as error:
                raise _not_empty(target, error) from error


def _require_tar(target: Path) -> None:
    if target.is_dir():
        raise _unusable(target, "there is a folder of that name", "name another file")
    if target.is_file() and target.stat().st_size:
        try:
            layout = open_layout(target, shown(target))
        except EnvsmithError:
            layout = None
        if layout is None or "oci-layout" not in layout.others:
            raise _unusable(target, "there is a file of that name that is no bundle", "name another file")


def _require_same(folder: Path, sha256: str) -> None:
    """A folder may hold this very bundle, whole or begun; anything else stays as it is."""
    if _is_begun(folder):
        return
    try:
        opened = open_bundle(open_layout(folder, shown(folder)))
    except EnvsmithError as error:
        raise _not_empty(folder, error) from error
    if opened.sha256 != sha256:
        raise _unusable(folder, "the folder holds another bundle", "name a new or empty folder, or remove that one")


def _is_begun(folder: Path) -> bool:
    """Whether a run of ours ended here before it wrote `index.json`, and nothing else came in."""
    names = {one.name for one in folder.iterdir()}
    if "index.json" in names or not all(_BEGUN.fullmatch(name) for name in names):
        return False
    return "oci-layout" in names or not any(one.is_file() for one in folder.rglob("[!.]*"))


def _not_empty(folder: Path, error: EnvsmithError) -> InputError:
    said = error.problems[0].message
    return _unusable(folder, f"the folder is not empty: {said}", "name a new or empty folder")


def _unusable(target: Path, message: str, hint: str) -> InputError:
    return InputError(Problem(code="bundle-output-unusable", message=message, where=shown(target), hint=hint))
