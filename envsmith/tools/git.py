"""The one door to git: mirrors, work copies, patch series and tree ids.

Every call runs with an environment made here and with the repository named outright, so that neither the user's
settings nor a repository further up can change a result. What a work copy holds is judged from file contents, never
from git's index, whose stat cache misses an edit of equal size and time.
"""

from __future__ import annotations

import fnmatch
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from envsmith.errors import HostError, InputError, IntegrityError, Problem, StepError, SupplyError
from envsmith.series import COMMIT, halves
from envsmith.tools.gittree import Entry, files_below, on_disk, parse_listing, tree_id_of
from envsmith.tools.process import NO_ROOM, scrubbed, without_secrets

#: Variables that say how to reach a server; every other `GIT_*` could change what a command does.
_KEPT = ("GIT_SSH", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_SSL_CAPATH", "GIT_ASKPASS", "GIT_ALLOW_PROTOCOL")
_KEPT_TOO = ("SSH_AUTH_SOCK", "SSH_ASKPASS")
_WHO = "envsmith"
_MAIL = "envsmith@localhost"
_WHEN = "1980-01-01T00:00:00Z"
#: Settings that win over those of the repository at hand.
_SETTINGS = (
    "core.autocrlf=false",
    "core.fileMode=true",
    "core.symlinks=true",
    "core.quotePath=false",
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    "core.logAllRefUpdates=false",
    "commit.gpgSign=false",
    "advice.detachedHead=false",
    "apply.whitespace=nowarn",
    "protocol.ext.allow=never",
    "gc.auto=0",
    "maintenance.auto=false",
    "init.defaultBranch=main",
    "submodule.recurse=false",
)
#: Written to a work copy's own git folder: blobs and files hold the same bytes, whatever the tree's attributes say.
_ATTRIBUTES = "* -text -ident -filter -working-tree-encoding\n"
#: In a copy to edit: where it started, and the files that the last patch was made from.
BASE_REF = "refs/envsmith/base"
LAST_REF = "refs/envsmith/last"
_QUICK_S = 120.0
SLOW_S = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """What one call of git gave."""

    returncode: int
    out: bytes
    err: str

    @property
    def words(self) -> str:
        """What git gave as the reason."""
        lines = self.err.strip().splitlines()
        first = next((line for line in lines if line.startswith(("fatal: ", "error: "))), lines[-1] if lines else "")
        return without_secrets(first) or f"git ended with {self.returncode}"


def version() -> str:
    """Return the version of git.

    Raises:
        HostError: `git-missing`.
    """
    return call(None, "version").out.decode().split()[2]


def mirror(source: str | Path, commit: str, dest: Path) -> None:
    """Make sure that the bare repository `dest` holds one commit of `source`, fetching as little as the server allows.

    A commit that an earlier, finished fetch brought is not asked for again: the source may then be away.

    Raises:
        InputError: `commit-abbreviated`.
        SupplyError: `source-unreachable` or `commit-missing`.
    """
    check_commit(commit)
    if holds(dest, commit):
        return
    local = Path(source).exists()
    url = str(Path(source).resolve()) if local else str(source)
    if not (dest / "HEAD").is_file():
        succeeded(call(None, "init", "--quiet", "--bare", "--template=", str(dest)), "init")
    ref = ref_of(commit)
    exact = call(dest, "fetch", "--quiet", "--no-tags", "--depth=1", "--", url, f"{commit}:{ref}", timeout_s=SLOW_S)
    if exact.returncode == 0:
        return
    # Old servers serve only what a ref names; bundles have no depth.
    require_reachable(url)
    kinds = ("*",) if local else ("heads/*", "tags/*")
    refs = [f"+refs/{kind}:refs/source/{kind}" for kind in kinds]
    call(dest, "fetch", "--quiet", "--no-tags", "--update-shallow", "--", url, *refs, timeout_s=SLOW_S)
    if call(dest, "cat-file", "-e", f"{commit}^{{commit}}").returncode != 0:
        shown = without_secrets(url)
        message = f"`{shown}` does not have commit {commit}"
        hint = "a fork or a shallow clone may lack it; check the commit, or name another place with `--source`"
        raise SupplyError(Problem(code="commit-missing", message=message, where=shown, actual=exact.words, hint=hint))
    succeeded(call(dest, "update-ref", ref, commit), "update-ref")


def holds(repository: Path, commit: str) -> bool:
    """Say whether a finished fetch brought a commit: its ref is the last thing a fetch writes."""
    if not (repository / "HEAD").is_file():
        return False
    said = call(repository, "rev-parse", "--quiet", "--verify", f"{ref_of(commit)}^{{commit}}")
    return said.returncode == 0 and said.out.decode().strip() == commit


def export_commit(mirror_dir: Path, commit: str, dest: Path) -> None:
    """Make the new folder `dest` a work copy of one commit: own objects, detached, clean, no remote.

    Raises:
        InputError: `commit-abbreviated` or `work-exists`.
        SupplyError: `commit-missing` when the mirror does not hold the commit.
    """
    check_commit(commit)
    if not holds(mirror_dir, commit):
        message = f"the mirror does not have commit {commit}"
        raise SupplyError(Problem(code="commit-missing", message=message, where=str(mirror_dir)))
    _new_repository(dest)
    source = str(mirror_dir.resolve())
    fetched = call(dest, "fetch", "--quiet", "--no-tags", "--depth=1", "--", source, ref_of(commit), timeout_s=SLOW_S)
    succeeded(fetched, "fetch")
    succeeded(call(dest, "checkout", "--quiet", "--detach", commit, timeout_s=SLOW_S), "checkout")
    (dest / ".git" / "FETCH_HEAD").unlink(missing_ok=True)


def export_tree(files: Path, dest: Path) -> str:
    """Copy an unpacked sdist to the new folder `dest`, commit all of it there and return the commit.

    The commit id is a function of paths, contents and executable bits alone.

    Raises:
        InputError: `work-exists`.
    """
    _new_repository(dest)
    shutil.copytree(files, dest, symlinks=True, dirs_exist_ok=True)
    succeeded(call(dest, "add", "--all", "--force", "--", ".", timeout_s=SLOW_S), "add")
    commit = _commit(dest, only_line(dest, "write-tree"), "import the source distribution\n", ())
    succeeded(call(dest, "update-ref", "--no-deref", "HEAD", commit), "update-ref")
    succeeded(call(dest, "checkout", "--quiet", "--detach", commit), "checkout")
    call(dest, "update-ref", "-d", "refs/heads/main")
    return commit


def apply_series(work: Path, patches: Sequence[tuple[str, bytes]]) -> str:
    """Apply `(name, bytes)` patches in order, one commit each on branch `envsmith`, and return the resulting tree id.

    `git apply` may say yes and change nothing, so each step is proven: the tree id must move, and the id computed from
    the files must be the one in git's index.

    Raises:
        InputError: `patch-did-not-apply` or `patch-already-applied`.
    """
    head, tree = only_line(work, "rev-parse", "HEAD"), only_line(work, "write-tree")
    for name, data in patches:
        after = _apply(work, name, data, tree)
        head, tree = _commit(work, after, _message(name, data), ("-p", head)), after
    if changed := diff_tree(work, tree):
        message = f"git's index holds the series but `{changed[0]}` on disk does not"
        raise InputError(Problem(code="patch-did-not-apply", message=message, where=str(work), expected=tree))
    if patches:
        succeeded(call(work, "update-ref", f"refs/heads/{_WHO}", head), "update-ref")
        succeeded(call(work, "symbolic-ref", "HEAD", f"refs/heads/{_WHO}"), "symbolic-ref")
    return tree


def tree_steps(work: Path, patches: int) -> tuple[str, ...]:
    """Return the tree ids along a series that `apply_series` applied, the one before the first patch first."""
    span = f"--max-count={patches + 1}"
    listed = (
        succeeded(call(work, "rev-list", "--first-parent", "--reverse", span, "HEAD"), "rev-list").out.decode().split()
    )
    return tuple(only_line(work, "rev-parse", f"{commit}^{{tree}}") for commit in listed)


def tracked(work: Path) -> tuple[str, ...]:
    """Return the paths of HEAD, submodules left out: they are named by a tree and never checked out."""
    return tuple(entry.path for entry in _entries(work, "HEAD") if entry.mode != "160000")


def gitlinks(work: Path) -> dict[str, str]:
    """Return the submodules of HEAD, path to commit: a tree id counts them, although they are not checked out."""
    return {entry.path: entry.oid for entry in _entries(work, "HEAD") if entry.mode == "160000"}


def touched(patches: Sequence[tuple[str, bytes]]) -> tuple[str, ...]:
    """Return every path that the patches read or write, in git's own understanding, sorted.

    Raises:
        InputError: `patch-did-not-apply` when git cannot read one.
    """
    paths: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="envsmith-") as scratch:
        for name, data in patches:
            file = Path(scratch) / "patch"
            file.write_bytes(data)
            said = call(None, "apply", "--numstat", "-z", str(file), cwd=Path(scratch))
            if said.returncode != 0:
                raise _refused(name, data, said)
            listing = said.out.decode("utf-8", "surrogateescape").split("\0")[:-1]
            paths.update(record.split("\t", 2)[2] for record in listing)
            paths.update(_sources(data))
    return tuple(sorted(paths))


def copy_work(work: Path, dest: Path) -> str:
    """Make the new folder `dest` a copy of a work copy to edit: own objects, clean, on the branch `work`; return HEAD.

    The commit it starts at stays known as BASE_REF.

    Raises:
        InputError: `work-exists`.
    """
    commit = only_line(work, "rev-parse", "HEAD")
    _new_repository(dest)
    wanted = ["--", str(work.resolve()), "HEAD:refs/heads/work"]
    succeeded(call(dest, "fetch", "--quiet", "--no-tags", "--update-shallow", *wanted, timeout_s=SLOW_S), "fetch")
    succeeded(call(dest, "checkout", "--quiet", "work", timeout_s=SLOW_S), "checkout")
    succeeded(call(dest, "update-ref", BASE_REF, commit), "update-ref")
    (dest / ".git" / "FETCH_HEAD").unlink(missing_ok=True)
    return commit


def ignore(work: Path, paths: Sequence[str]) -> None:
    """Tell a work copy's own git folder to ignore these files; the tree's ignore rules stay as they are."""
    escaped = (re.sub(r"([\\*?\[\] ])", r"\\\1", path) for path in paths)
    (work / ".git" / "info" / "exclude").write_text("".join(f"/{path}\n" for path in escaped))


def note(work: Path, key: str, value: str) -> None:
    """Keep a fact about a work copy in its own settings."""
    succeeded(call(work, "config", "--local", f"{_WHO}.{key}", value), "config")


def noted(work: Path, key: str) -> str | None:
    """Return what `note` kept."""
    said = call(work, "config", "--local", "--get", f"{_WHO}.{key}")
    return said.out.decode().strip() if said.returncode == 0 else None


def commit_of(work: Path, name: str) -> str | None:
    """Return the full id of the commit that a name stands for, or None."""
    said = call(work, "rev-parse", "--quiet", "--verify", "--end-of-options", f"{name}^{{commit}}")
    return said.out.decode().strip() if said.returncode == 0 else None


def remember(work: Path, ref: str, tree: str, parent: str) -> None:
    """Let a ref name a commit of this tree; branch, index and files stay as they are."""
    commit = _commit(work, tree, "the files that the last patch was made from\n", ("-p", parent))
    succeeded(call(work, "update-ref", ref, commit), "update-ref")


def tree_of_files(work: Path, start: str) -> str:
    """Write the files of a work copy, those ignored left out, as a tree and return its id; its own index is not used.

    Executable bits are those of the commit `start`: a patch cannot carry them.
    """
    with tempfile.TemporaryDirectory(prefix="envsmith-") as scratch:
        index = Path(scratch) / "index"
        succeeded(call(work, "read-tree", start, index=index), "read-tree")
        succeeded(
            call(work, "-c", "core.fileMode=false", "add", "--all", "--", ":/", index=index, timeout_s=SLOW_S), "add"
        )
        return succeeded(call(work, "write-tree", index=index), "write-tree").out.decode().strip()


def tree_with(work: Path, start: str, data: bytes) -> str | None:
    """Return the id of the tree that a patch makes of another one; None when it does not apply. No file changes."""
    with tempfile.TemporaryDirectory(prefix="envsmith-") as scratch:
        index, file = Path(scratch) / "index", Path(scratch) / "patch"
        file.write_bytes(data)
        succeeded(call(work, "read-tree", start, index=index), "read-tree")
        if call(work, "apply", "--cached", str(file), index=index).returncode != 0:
            return None
        return succeeded(call(work, "write-tree", index=index), "write-tree").out.decode().strip()


def diff_between(work: Path, old: str, new: str, context: int) -> bytes:
    """Return the difference of two trees as a patch, renames written out."""
    options = ("-p", "--no-renames", "--no-ext-diff", "--no-textconv", f"--unified={context}")
    return succeeded(call(work, "diff-tree", *options, old, new, timeout_s=SLOW_S), "diff-tree").out


def content(work: Path, tree: str, path: str) -> bytes | None:
    """Return a file of a tree, or None where it is not there."""
    said = call(work, "cat-file", "blob", f"{tree}:{path}")
    return said.out if said.returncode == 0 else None


def apply_what_applies(work: Path, data: bytes) -> str:
    """Apply every hunk that fits, take the files into the index, and return what git said of each hunk."""
    before = set(files_below(work))
    with tempfile.TemporaryDirectory(prefix="envsmith-") as scratch:
        file = Path(scratch) / "patch"
        file.write_bytes(data)
        said = call(work, "apply", "--reject", "--verbose", str(file))
    for path in set(files_below(work)) - before:
        if path.endswith(".rej"):
            (work / path).unlink()
    succeeded(call(work, "add", "--all", "--force", "--", ":/"), "add")
    return said.err


def reverse_applies(work: Path, data: bytes) -> bool:
    """Say whether the tree already holds what a patch does."""
    with tempfile.TemporaryDirectory(prefix="envsmith-") as scratch:
        file = Path(scratch) / "patch"
        file.write_bytes(data)
        return call(work, "apply", "--reverse", "--check", str(file)).returncode == 0


def index_tree(work: Path) -> str:
    """Return the tree id of a work copy's index."""
    return only_line(work, "write-tree")


def tree_named(work: Path, commit: str) -> str:
    """Return the tree id of a commit."""
    return only_line(work, "rev-parse", f"{commit}^{{tree}}")


def changes_since(work: Path, tree: str) -> tuple[str, ...]:
    """Return the paths of a work copy that differ from a tree; added ones count unless they are ignored or bytecode.

    Raises:
        StepError: `git-failed` when it is no work copy, or does not know the tree.
    """
    known = {entry.path for entry in _entries(work, tree)}
    listed = succeeded(call(work, "ls-files", "-z", "--cached", "--others", "--exclude-standard"), "ls-files").out
    there = (path for path in listed.decode("utf-8", "surrogateescape").split("\0") if path and path not in known)
    added = (p for p in there if "__pycache__" not in p.split("/") and (work / p).exists())
    return tuple(sorted({*diff_tree(work, tree), *added}))


def tree_id(work: Path) -> str:
    """Compute the tree id of a work copy's tracked files as they are on disk; nothing is written.

    Raises:
        StepError: `git-failed` when it is not a work copy.
    """
    found = on_disk(work, _entries(work, "HEAD"))
    return tree_id_of((entry for entry in found if entry is not None), only_line(work, "rev-parse", "HEAD"))


def diff_tree(work: Path, tree: str) -> tuple[str, ...]:
    """Return the paths whose content, kind or executable bit on disk differs from a tree; nothing is written.

    Raises:
        IntegrityError: `work-objects-damaged` when git's objects do not add up to the tree id.
        StepError: `git-failed` when the work copy does not know the tree.
    """
    entries = _entries(work, tree)
    full = only_line(work, "rev-parse", f"{tree}^{{tree}}")
    if tree_id_of(entries, full) != full:
        message = "the objects of the work copy do not add up to their tree id"
        raise IntegrityError(Problem(code="work-objects-damaged", message=message, where=str(work), expected=tree))
    return tuple(entry.path for entry, found in zip(entries, on_disk(work, entries), strict=True) if found != entry)


def status(work: Path, excludes: Sequence[str] = ()) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return changed tracked files and untracked files against HEAD; nothing is written.

    Ignore rules of the tree or the user do not count: only paths that match one of `excludes` (shell patterns, on the
    whole path) are left out of the second list.
    """
    tracked = {e.path for e in _entries(work, "HEAD")}
    untracked = (path for path in files_below(work) if path not in tracked)
    kept = (path for path in untracked if not any(fnmatch.fnmatchcase(path, pattern) for pattern in excludes))
    return diff_tree(work, "HEAD"), tuple(sorted(kept))


def _environment(where: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT + _KEPT_TOO if name in os.environ}
    made = {
        "GIT_CEILING_DIRECTORIES": str(where.resolve().parent),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": str(Path(__file__).with_name("git.config")),
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "LC_ALL": "C",
    }
    who = {f"GIT_{role}_{part}": value for role in ("AUTHOR", "COMMITTER") for part, value in _identity()}
    return {**scrubbed(os.environ), **kept, **made, **who}


def _identity() -> tuple[tuple[str, str], ...]:
    return (("NAME", _WHO), ("EMAIL", _MAIL), ("DATE", _WHEN))


def call(
    repository: Path | None,
    *args: str,
    timeout_s: float | None = None,
    cwd: Path | None = None,
    index: Path | None = None,
) -> Said:
    """Run git on a repository (bare or a work copy) or on none; a non-zero exit code is a value.

    GitPython adds the whole environment of this process to a child's, so `env -i` starts it afresh.

    Raises:
        HostError: `git-missing`.
        StepError: `program-timeout`.
    """
    where = cwd or repository or Path(tempfile.gettempdir())
    limit_s = _QUICK_S if timeout_s is None else timeout_s
    program = shutil.which("git")
    if program is None:
        hint = "install git, or put it on PATH"
        raise HostError(Problem(code="git-missing", message="`git` is not on PATH", hint=hint))
    try:
        from git import Git  # looks for git while it is imported
        from git.exc import GitCommandNotFound
    except ImportError as error:
        raise HostError(Problem(code="git-missing", message=f"GitPython cannot be used: {error}")) from error
    named = _named(repository) if repository is not None else []
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    env = [f"{name}={value}" for name, value in _environment(where).items()]
    env += [f"GIT_INDEX_FILE={index}"] if index else []
    try:
        code, out, err = Git(where).execute(
            ["env", "-i", *env, program, *settings, *named, *args],
            with_extended_output=True,
            with_exceptions=False,
            stdout_as_string=False,
            strip_newline_in_stdout=False,
            kill_after_timeout=limit_s,
        )
    except GitCommandNotFound as error:
        raise HostError(Problem(code="git-missing", message="`env` is not on PATH")) from error
    if err.startswith("Timeout: the command"):
        raise StepError(Problem(code="program-timeout", message=f"`git {args[0]}` did not end within {limit_s:.0f} s"))
    return Said(returncode=code, out=out, err=err)


def _named(repository: Path) -> list[str]:
    """Name a repository outright: git then looks for none further up."""
    own = repository.absolute() / ".git"
    if own.is_dir():
        return [f"--git-dir={own}", f"--work-tree={own.parent}"]
    if (repository / "HEAD").is_file() and (repository / "objects").is_dir():
        return [f"--git-dir={repository.absolute()}"]
    message = f"`{repository}` has no git folder of its own"
    raise InputError(Problem(code="work-without-git", message=message, where=str(repository)))


def succeeded(said: Said, what: str) -> Said:
    """Return what git said when it ended well.

    Raises:
        StepError: `git-failed`.
        SupplyError: `disk-full`.
    """
    if said.returncode != 0:
        if any(words in said.err for words in NO_ROOM):
            raise SupplyError(Problem(code="disk-full", message=f"there is no room: `git {what}` said {said.words}"))
        raise StepError(Problem(code="git-failed", message=f"`git {what}` failed: {said.words}"))
    return said


def only_line(repository: Path, *args: str) -> str:
    """Return the one line that git answers with.

    Raises:
        StepError: `git-failed`.
    """
    return succeeded(call(repository, *args), args[0]).out.decode().strip()


def check_commit(commit: str) -> None:
    """Refuse what is no full commit id.

    Raises:
        InputError: `commit-abbreviated`.
    """
    if not COMMIT.fullmatch(commit):
        message = f"`{commit}` is not a full commit id"
        hint = "a short id or a branch can mean another tree tomorrow; write all 40 digits"
        raise InputError(Problem(code="commit-abbreviated", message=message, hint=hint))


def ref_of(commit: str) -> str:
    """Return the ref by which a mirror holds a commit."""
    return f"refs/envsmith/{commit}"


def require_reachable(url: str) -> None:
    """Refuse a source that does not answer.

    Raises:
        SupplyError: `source-unreachable`.
    """
    said = call(None, "ls-remote", "--quiet", "--", url)
    if said.returncode != 0:
        shown = without_secrets(url)
        message = f"`{shown}` cannot be read: {said.words}"
        hint = "check the network, or name another place with `--source` or a `[mirrors]` entry"
        raise SupplyError(Problem(code="source-unreachable", message=message, where=shown, hint=hint))


def _new_repository(dest: Path) -> None:
    if dest.exists() and (not dest.is_dir() or any(dest.iterdir())):
        raise InputError(Problem(code="work-exists", message=f"`{dest}` is already there", where=str(dest)))
    succeeded(call(None, "init", "--quiet", "--template=", str(dest.absolute())), "init")
    info = dest / ".git" / "info"
    info.mkdir(exist_ok=True)
    (info / "attributes").write_text(_ATTRIBUTES)


def _commit(work: Path, tree: str, message: str, parents: Sequence[str]) -> str:
    return only_line(work, "commit-tree", tree, *parents, "-m", message)


def _message(name: str, data: bytes) -> str:
    header = halves(data)[0].decode("utf-8", "replace")
    return f"{name.removesuffix('.patch')}\n\n{header.strip()}\n"


def _apply(work: Path, name: str, data: bytes, tree: str) -> str:
    with tempfile.TemporaryDirectory(prefix="envsmith-") as scratch:
        file = Path(scratch) / "patch"
        file.write_bytes(data)
        said = call(work, "apply", "--check", "--index", str(file))
        if said.returncode != 0:
            reverse = call(work, "apply", "--reverse", "--check", "--index", str(file))
            raise _refused(name, data, said, applied=reverse.returncode == 0)
        said = call(work, "apply", "--index", str(file))
        if said.returncode != 0:
            raise _refused(name, data, said)
    after = only_line(work, "write-tree")
    if after == tree:
        message = f"`{name}` left the tree unchanged, though git said that it applied"
        raise InputError(Problem(code="patch-did-not-apply", message=message, where=name, actual=tree))
    return after


def _sources(data: bytes) -> Iterator[str]:
    """Yield what a patch renames or copies from, which `--numstat` leaves out."""
    text = data.decode("utf-8", "surrogateescape")
    yield from (match[1] for match in re.finditer(r"^(?:rename|copy) from (.+)$", text, re.MULTILINE))


def _refused(name: str, data: bytes, said: Said, applied: bool = False) -> InputError:
    """Say in our words why git refused a patch, with the line of the hunk it named."""
    where = name
    if match := re.search(r"^error: patch failed: (.+):(\d+)$", said.err, re.MULTILINE):
        where = f"{name}:{_hunk_line(data, match[1], match[2])}"
    if applied:
        hint = "drop it from the series: the source or an earlier patch already holds the change"
        message = f"`{name}` is already applied"
        return InputError(Problem(code="patch-already-applied", message=message, where=where, hint=hint))
    reasons = "; ".join(line.removeprefix("error: ") for line in said.err.splitlines() if line.startswith("error: "))
    hint = "it was made for another tree or order of the series; `envsmith patch refresh` says which hunk fails where"
    message = f"`{name}` does not apply: {reasons or said.words}"
    return InputError(Problem(code="patch-did-not-apply", message=message, where=where, hint=hint))


def _hunk_line(data: bytes, path: str, start: str) -> int:
    """Find the line of a patch whose hunk begins at a line of a file; 1 when it is not found."""
    inside = False
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
        if line.startswith("diff --git "):
            inside = line.endswith(f" b/{path}") or line.startswith(f"diff --git a/{path} ")
        elif inside and re.match(rf"@@ -{start}\b", line):
            return number
    return 1


def _entries(work: Path, tree: str) -> tuple[Entry, ...]:
    return parse_listing(succeeded(call(work, "ls-tree", "-r", "-z", "--full-tree", tree), "ls-tree").out)
