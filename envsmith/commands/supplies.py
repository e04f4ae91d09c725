"""What a verb that fetches or builds has at hand: settings, store, uv, git sources and the interpreter."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from envsmith.commands.screen import Screen
from envsmith.errors import InputError, Problem, SupplyError
from envsmith.recipe import Source
from envsmith.tools.files import FileLock, FolderLock, filesystem, remove_tree, sweep
from envsmith.tools.index import Supply
from envsmith.tools.interpreter import Interpreter, find_interpreter
from envsmith.tools.settings import Settings, load_settings
from envsmith.tools.store import Store, open_store
from envsmith.tools.uv import Uv


@dataclass(frozen=True, kw_only=True, slots=True)
class Supplies:
    """The effects of one run, made once and handed on."""

    environ: Mapping[str, str]
    settings: Settings
    store: Store
    uv: Uv
    screen: Screen
    offline: bool
    sources: Mapping[str, str]
    """`--source NAME=PATH_OR_URL`."""

    def supply(self) -> Supply:
        """Where files are looked for."""
        index = self.settings.index
        return Supply(
            index_url=index[0] if index else None,
            extra_indexes=index[1:],
            find_links=self.settings.find_links,
            offline=self.offline,
        )

    @contextmanager
    def work(self, purpose: str) -> Iterator[Path]:
        """An empty folder in the store's own file system, gone afterwards; what killed runs left goes too."""
        folder = self.store.home / "tmp"
        with filesystem(folder):
            folder.mkdir(parents=True, exist_ok=True)
            work = Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=folder))
        with FolderLock(work):
            sweep(folder)
            try:
                yield work
            finally:
                remove_tree(work)

    def interpreter(self, version: str) -> Interpreter:
        """A real interpreter of that version.

        Raises:
            SupplyError: `no-interpreter` with everything that was seen.
        """
        return find_interpreter(version, self.environ)

    def source_place(self, name: str, url: str) -> tuple[str, bool]:
        """Where a git source is fetched from, and whether that is on this machine."""
        place = self.sources.get(name) or self.settings.mirrored(url)
        local = "://" not in place and not place.startswith("git@")
        return (str(Path(place).expanduser().absolute()) if local else place), local

    def git_mirror(self, name: str, url: str, commit: str) -> Path:
        """A bare repository in the store that holds the commit of a source.

        Raises:
            SupplyError: `offline-missing` when it would take the network, `source-unreachable`, `commit-missing`.
        """
        from envsmith.tools.git import mirror

        place, local = self.source_place(name, url)
        dest = mirror_folder(self.store, url)
        if self.offline and not local and not _has_commit(dest, commit):
            raise SupplyError(
                Problem(
                    code="offline-missing",
                    message=f"commit {commit[:12]} of the source `{name}` is not in the store, and the network is off",
                    where=f"env source {name}",
                    hint=f"name a copy of the repository: `--source {name}=PATH`",
                )
            )
        with filesystem(dest), FileLock(self.store.home / "locks" / f"git-{dest.name}.lock", self.screen.message):
            mirror(place, commit, dest)
        return dest


def mirror_folder(store: Store, url: str) -> Path:
    """Where a store mirrors a git source: one folder a URL, because a commit is the same wherever it came from."""
    return store.home / "git" / hashlib.sha256(url.encode()).hexdigest()[:16]


def _has_commit(dest: Path, commit: str) -> bool:
    from envsmith.tools.git import holds

    return dest.is_dir() and holds(dest, commit)


def open_supplies(
    environ: Mapping[str, str], *, stacks: Path | None, screen: Screen, offline: bool, sources: tuple[str, ...]
) -> Supplies:
    """Read the settings and open the store; nothing is written yet.

    Raises:
        InputError: `settings-invalid`, or `usage` for a `--source` that is not `NAME=PATH`.
    """
    settings = load_settings(environ, stacks)
    _require_folders(settings)
    store = open_store(environ)
    return Supplies(
        environ=environ,
        settings=settings,
        store=store,
        uv=Uv(cache=store.home / "uv", environ=environ),
        screen=screen,
        offline=offline,
        sources=named_sources(sources),
    )


def _require_folders(settings: Settings) -> None:
    """A wheel folder that is not there is a mistake, not an empty folder."""
    missing = [place for place in settings.find_links if "://" not in place and not Path(place).is_dir()]
    if missing:
        hint = "it is named by ENVSMITH_FIND_LINKS or `find-links` of an envsmith.toml"
        raise SupplyError(
            *(
                Problem(code="wheel-folder-missing", message="there is no such wheel folder", where=place, hint=hint)
                for place in missing
            )
        )


def require_git_sources(names: Iterable[str], sources: Mapping[str, Source], where: str) -> None:
    """Hold `--source` names against the recipe's git sources.

    Raises:
        InputError: `unknown-source`.
    """
    known = [name for name, source in sources.items() if source.git]
    unknown = [name for name in names if name not in known]
    if unknown:
        hint = f"its git sources: {', '.join(known)}" if known else "an sdist comes from an index or a wheel folder"
        raise InputError(
            *(
                Problem(code="unknown-source", message=f"`{name}` is no git source here", where=where, hint=hint)
                for name in unknown
            )
        )


def named_sources(sources: tuple[str, ...]) -> dict[str, str]:
    """Read `--source NAME=PATH` options.

    Raises:
        InputError: `usage`.
    """
    named = {}
    for text in sources:
        name, equals, place = text.partition("=")
        if not equals or not name or not place:
            raise InputError(
                Problem(
                    code="usage",
                    message=f"`--source {text}` is not NAME=PATH",
                    hint="for example --source verl=../verl",
                )
            )
        named[name] = place
    return named
