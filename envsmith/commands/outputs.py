"""Where a bundle is written: a folder, a tar file, or the parts of one; never over something else."""

from __future__ import annotations

import re
from collections.abc import Iterable
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
    r"oci-layout|blobs|install\.sh|MANIFEST\.md|SHA256SUMS|FILES\.tsv|pylock\.[a-z0-9-]+\.toml|\.envsmith-(?:lock|[a-z0-9_]{8})"
)
#: A part holds at least some headers; smaller ones are a mistake.
_SMALLEST_PART = 64 << 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What `-o` and `--max-size` name."""

    path: Path
    part_bytes: int | None

    def require(self, sha256: str, stack: str) -> None:
        """Refuse to write this bundle over what is not a bundle, or one of another stack.

        Raises:
            InputError: `bundle-output-unusable`.
        """
        _require_output(self.path, sha256, stack)


def output_of(out: str, max_size: str | None, inputs: Iterable[str] = ()) -> Output:
    """Read the two options; `inputs` are the bundles that are read meanwhile.

    Raises:
        InputError: `bundle-output-unusable`, `max-size-malformed`, `path-malformed`.
    """
    path = user_path(out)
    output = Output(path=path, part_bytes=_part_bytes(out, max_size, path))
    _require_place(path)  # before the long work; what needs the digest of the bundle is asked after it
    for word in inputs:
        if word != "-" and not word.startswith("oci://"):
            _require_apart(path, user_path(word))
    return output


def _require_apart(target: Path, source: Path) -> None:
    """Refuse to write over, into or around a bundle that is being read."""
    one, other = target.resolve(), source.resolve()
    files = {PART.sub("", one.name), one.name} & {PART.sub("", other.name), other.name}
    if one == other or one in other.parents or other in one.parents or (one.parent == other.parent and files):
        raise _unusable(target, f"it is, or lies in, the bundle `{shown(source)}` that is read", "name another place")


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


def _require_output(target: Path, sha256: str, stack: str) -> None:
    """Refuse to write over what is not a bundle, or one of another stack.

    Raises:
        InputError: `bundle-output-unusable`.
    """
    _require_place(target)
    with filesystem(target):
        if target.suffix == ".tar":
            for file in (target, target.with_name(f"{target.name}.part000")):
                if file.is_file() and file.stat().st_size:
                    _require_stack(file, stack)
        elif target.is_dir() and any(target.iterdir()):
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
    if target.exists() and not target.is_file():
        raise _unusable(target, "what is there is no plain file", "name another file")
    sums = target.with_name(f"{target.name}.SHA256SUMS")
    if sums.is_file() and not _is_our_sums(sums, target):
        raise _unusable(target, f"`{sums.name}` beside it is not of ours and would be replaced", "name another file")
    if target.is_file() and target.stat().st_size:
        _require_stack(target, None)


def _is_our_sums(sums: Path, target: Path) -> bool:
    """Whether a file is one of sums of parts of this very bundle."""
    line = re.compile(rf"[0-9a-f]{{64}}  {re.escape(target.name)}\.part\d{{3,6}}")
    try:
        lines = sums.read_text("ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    return bool(lines) and all(line.fullmatch(one) for one in lines)


def _require_stack(file: Path, stack: str | None) -> None:
    """A file may be replaced where it is a bundle of ours, and of this stack."""
    try:
        there = open_bundle(open_layout(file, shown(file))).manifest.stack
    except EnvsmithError as error:
        message = "there is a file of that name that is no bundle, or cannot be read"
        raise _unusable(file, message, "name another file, or remove that one") from error
    if stack is not None and there != stack:
        raise _unusable(file, f"there is a bundle of the stack `{there}` under that name", "name another file")


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
    if any(one.is_symlink() for one in folder.rglob("*")):
        return False
    names = {one.name for one in folder.iterdir()}
    if "index.json" in names or not all(_BEGUN.fullmatch(name) for name in names):
        return False
    return "oci-layout" in names or not any(one.is_file() for one in folder.rglob("[!.]*"))


def _not_empty(folder: Path, error: EnvsmithError) -> InputError:
    said = error.problems[0].message
    return _unusable(folder, f"the folder is not empty: {said}", "name a new or empty folder")


def _unusable(target: Path, message: str, hint: str) -> InputError:
    return InputError(Problem(code="bundle-output-unusable", message=message, where=shown(target), hint=hint))
