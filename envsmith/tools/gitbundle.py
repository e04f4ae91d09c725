"""Git bundles: one commit of a source with its whole history, in a file that plain git clones without a network.

The mirrors of `tools/git.py` are one commit deep, and no clone can be made from them; what is packed here comes from a
repository with the whole history. A bundle's bytes depend on the commit and on git (its version and its zlib) alone.
Nothing counts as a bundle before a clone of it was proven.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from envsmith.errors import IntegrityError, Problem, SupplyError
from envsmith.tools.files import CHUNK, filesystem, fsync_folder, temporary_beside
from envsmith.tools.git import (
    SLOW_S,
    Said,
    call,
    check_commit,
    holds,
    only_line,
    ref_of,
    require_reachable,
    succeeded,
    tree_named,
)
from envsmith.tools.process import NO_ROOM, without_secrets

#: What a bundle calls its commit. `HEAD` is there because git checks nothing out of a bundle without it (2.39.5).
BUNDLE_REF = "refs/heads/locked"
#: Source: gitformat-bundle(5) of git 2.39.5, read 2026-11-30; only version 3 can name a filter or another hash.
_SIGNATURE = b"# v2 git bundle"
_HEAD_LIMIT = 1 << 16
_REF_LINE = re.compile(r"([0-9a-f]{40}) (HEAD|refs/[!-~]+)")
#: How objects are packed, whatever the git at hand does by default; the memory limit keeps a history of huge files
#: from filling the machine.
_PACK_SETTINGS = (
    "core.bigFileThreshold=512m",
    "core.commitGraph=false",
    "core.multiPackIndex=false",
    "pack.windowMemory=256m",
)
#: Nothing is taken over as it lies in the repository: neither deltas nor compressed bytes.
_PACK_OPTIONS = (
    "--quiet",
    "--all",
    "--no-reuse-delta",
    "--no-reuse-object",
    "--no-use-bitmap-index",
    "--delta-base-offset",
    "--threads=1",
    "--window=10",
    "--depth=50",
    "--compression=6",
)
#: What git 2.39 says of a history that ends early, and of one with holes.
_ENDS_EARLY = ("shallow roots", "prerequisite commits", "Failed to traverse parents")
_HAS_HOLES = (
    "did not send all necessary objects",
    "missing blob object",
    "bad tree object",
    "promisor remote",
    "possible repository corruption",
)


def mirror_history(source: str | Path, commit: str, dest: Path) -> None:
    """Make sure that the bare repository `dest` holds one commit of `source` with its whole history.

    `source` is a URL, a repository or a bundle file. What an earlier, finished fetch brought is not asked for again.

    Raises:
        InputError: `commit-abbreviated`.
        SupplyError: `source-unreachable`, `commit-missing`, `source-shallow`, `source-objects-missing`.
    """
    check_commit(commit)
    if holds(dest, commit):
        return
    local = Path(source).exists()
    url = str(Path(source).resolve()) if local else str(source)
    if Path(url).is_dir():
        _require_objects(Path(url), commit)
    if not (dest / "HEAD").is_file():
        succeeded(call(None, "init", "--quiet", "--bare", "--template=", str(dest)), "init")
    exact = _fetch(dest, url, f"{commit}:{ref_of(commit)}")
    if holds(dest, commit):
        return
    _refuse_parts(url, commit, exact)
    # Old servers serve only what a ref names.
    require_reachable(url)
    kinds = ("*",) if local else ("heads/*", "tags/*")
    named = _fetch(dest, url, *(f"+refs/{kind}:refs/source/{kind}" for kind in kinds))
    if _reach(dest, commit).returncode == 0:
        succeeded(call(dest, "update-ref", ref_of(commit), commit), "update-ref")
    if not holds(dest, commit):
        _refuse_parts(url, commit, named)
        raise _commit_missing(url, commit, exact.words)


def write_bundle(repository: Path, commit: str, out: Path) -> None:
    """Write a commit of a repository with its whole history as the bundle `out`: complete or not at all.

    `git bundle create` takes over the deltas that it finds, so that its bytes change with every repack.

    Raises:
        InputError: `commit-abbreviated`.
        SupplyError: `commit-missing`, `source-shallow`, `source-objects-missing`, `disk-full`.
        StepError: `git-failed`.
    """
    check_commit(commit)
    with filesystem(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".envsmith-", dir=out.parent) as folder:
            alone = _commit_alone(repository, commit, Path(folder) / "git")
            pack = _packed(alone, Path(folder) / "all")
            with temporary_beside(out) as (descriptor, temporary):
                with open(descriptor, "wb", closefd=False) as stream, pack.open("rb") as content:
                    stream.write(
                        b"%b\n%b HEAD\n%b %b\n\n" % (_SIGNATURE, *map(str.encode, (commit, commit, BUNDLE_REF)))
                    )
                    shutil.copyfileobj(content, stream, CHUNK)
                os.fchmod(descriptor, 0o644)
                os.fsync(descriptor)
                temporary.replace(out)
        fsync_folder(out.parent)


def prove_bundle(bundle: Path, commit: str, tree: str, work: Path) -> None:
    """Clone a bundle into the folder `work`, and hold what came out against the lock.

    The clone has nothing but the bundle to take objects from, and git computes the id of each one anew. A bundle that
    carries more than the commit needs is not told from one that does not.

    Raises:
        IntegrityError: `source-bundle-broken`.
    """
    named = bundle_head(bundle)
    if named != {"HEAD": commit, BUNDLE_REF: commit}:
        shown = ", ".join(f"{ref} {oid}" for ref, oid in named.items())
        raise _broken(bundle, "names another commit than the locked one", expected=commit, actual=shown)
    clone = (work / "clone").absolute()
    place = str(bundle.absolute())
    made = call(None, "clone", "--quiet", "--no-checkout", "--template=", "--", place, str(clone), timeout_s=SLOW_S)
    _require(bundle, made, "cannot be cloned")
    checked = call(clone, "fsck", "--connectivity-only", "--no-dangling", "--no-progress", timeout_s=SLOW_S)
    _require(bundle, checked, "lacks a part of its history")
    if (head := only_line(clone, "rev-parse", "HEAD")) != commit:
        raise _broken(bundle, "gives a clone of another commit", expected=commit, actual=head)
    if (found := tree_named(clone, commit)) != tree:
        raise _broken(bundle, "holds another tree than the locked one", expected=tree, actual=found)


def bundle_head(bundle: Path) -> Mapping[str, str]:
    """Return the refs that a bundle names, ref to commit; only the head of the file is read, and git is not asked.

    Raises:
        IntegrityError: `source-bundle-broken` when it is no bundle of version 2 that stands on its own.
    """
    with filesystem(bundle):
        if bundle.exists() and not bundle.is_file():
            raise _broken(bundle, "is no regular file")
        with bundle.open("rb") as stream:
            head, end, _ = stream.read(_HEAD_LIMIT).partition(b"\n\n")
    signature, *lines = head.split(b"\n")
    if signature != _SIGNATURE or not end:
        raise _broken(bundle, "does not begin as a git bundle of version 2 does")
    refs: dict[str, str] = {}
    for line in lines:
        if line.startswith(b"-"):
            raise _broken(bundle, "needs commits that it does not carry")
        match = _REF_LINE.fullmatch(line.decode("ascii", "replace"))
        if match is None or match[2] in refs:
            raise _broken(bundle, "has a line in its head that names no ref, or names one again")
        refs[match[2]] = match[1]
    if not refs:
        raise _broken(bundle, "names no commit")
    return refs


def _fetch(dest: Path, url: str, *refs: str) -> Said:
    """Fetch without a depth; git writes no ref whose history did not come whole, and `dest` stays no shallow one."""
    said = call(dest, "fetch", "--quiet", "--no-tags", "--", url, *refs, timeout_s=SLOW_S)
    return succeeded(said, "fetch") if any(words in said.err for words in NO_ROOM) else said


def _require_objects(source: Path, commit: str) -> None:
    """Refuse a partial clone that lacks objects before it serves a fetch, for which it may download them.

    Source: git-upload-pack(1) of git 2.39.5, GIT_NO_LAZY_FETCH, read 2026-11-30: it refuses to download unless that is
    set to 0. That every git refuses is not relied on.
    """
    pattern = r"^(remote\..*\.(promisor|partialclonefilter)|extensions\.partialclone)$"
    if call(None, "config", "--get-regexp", pattern, cwd=source).returncode != 0:
        return
    listed = call(None, "rev-list", "--objects", "--missing=print", commit, "--", cwd=source, timeout_s=SLOW_S)
    missing = [line[1:].decode() for line in listed.out.splitlines() if line.startswith(b"?")]
    if listed.returncode != 0 or commit in missing:
        raise _commit_missing(str(source), commit, listed.words)
    if missing:
        raise _holes(str(source), commit, f"{len(missing)} objects are missing, the first is {missing[0]}")


def _commit_alone(repository: Path, commit: str, path: Path) -> Path:
    """Make a bare repository whose only ref names the commit, and which borrows its objects.

    Refs, settings, grafts and the shallow boundary of the repository stay behind: tags, for one, change the order in
    which git writes objects.
    """
    succeeded(call(None, "init", "--quiet", "--bare", "--template=", str(path)), "init")
    objects = only_line(repository, "rev-parse", "--git-path", "objects")
    (path / "objects" / "info").mkdir(exist_ok=True)
    (path / "objects" / "info" / "alternates").write_text(f"{objects}\n")
    if (named := call(path, "update-ref", BUNDLE_REF, commit)).returncode != 0:
        raise _commit_missing(str(repository), commit, named.words)
    reached = _reach(path, commit)
    if reached.returncode != 0:
        _refuse_parts(str(repository), commit, reached)
    succeeded(reached, "rev-list")
    return path


def _packed(repository: Path, base: Path) -> Path:
    """Pack everything that a repository reaches, and return the pack; git writes it itself, not through our memory."""
    settings = [part for setting in _PACK_SETTINGS for part in ("-c", setting)]
    said = call(repository, *settings, "pack-objects", *_PACK_OPTIONS, str(base), timeout_s=SLOW_S)
    return base.with_name(f"{base.name}-{succeeded(said, 'pack-objects').out.decode().strip()}.pack")


def _reach(repository: Path, commit: str) -> Said:
    """Walk everything that a commit reaches; git fails where something is not there."""
    return call(repository, "rev-list", "--objects", "--quiet", commit, "--", timeout_s=SLOW_S)


def _refuse_parts(url: str, commit: str, said: Said) -> None:
    if any(words in said.err for words in _ENDS_EARLY):
        shown = without_secrets(url)
        message = f"`{shown}` has commit {commit} without its whole history"
        full = "name a full copy with `--source NAME=PATH`"
        hint = f"make the bundle from a full clone, or {full}" if Path(url).is_file() else None
        hint = hint or f"run `git fetch --unshallow` there, or {full}"
        raise SupplyError(Problem(code="source-shallow", message=message, where=shown, hint=hint, actual=_reason(said)))
    if any(words in said.err for words in _HAS_HOLES):
        raise _holes(url, commit, _reason(said))


def _reason(said: Said) -> str:
    """The first line of what git said: a refused ref is a warning, after which git ends well."""
    return without_secrets(said.err.strip().splitlines()[0])


def _holes(url: str, commit: str, actual: str) -> SupplyError:
    shown = without_secrets(url)
    message = f"`{shown}` lacks objects of the history of commit {commit}"
    hint = "a partial clone (`--filter`) does; name a full copy with `--source NAME=PATH`"
    return SupplyError(Problem(code="source-objects-missing", message=message, where=shown, hint=hint, actual=actual))


def _commit_missing(url: str, commit: str, actual: str) -> SupplyError:
    shown = without_secrets(url)
    message = f"`{shown}` does not have commit {commit}"
    hint = "a fork or a shallow clone may lack it; check the commit, or name another place with `--source NAME=PATH`"
    return SupplyError(Problem(code="commit-missing", message=message, where=shown, actual=actual, hint=hint))


def _require(bundle: Path, said: Said, words: str) -> None:
    if said.returncode != 0:
        if any(room in said.err for room in NO_ROOM):
            succeeded(said, "clone")
        raise _broken(bundle, words, actual=said.words)


def _broken(bundle: Path, words: str, *, expected: str | None = None, actual: str | None = None) -> IntegrityError:
    hint = "get the file again from where it came; a bundle that envsmith made was cloned before it was kept"
    message = f"the git bundle `{bundle.name}` {words}"
    return IntegrityError(
        Problem(
            code="source-bundle-broken",
            message=message,
            where=str(bundle),
            hint=hint,
            expected=expected,
            actual=actual,
        )
    )
