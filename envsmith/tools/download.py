"""Brings files into the store: in parallel, resumed where a run broke off, hashed while they stream.

A part grows under `partial/`, locked against other processes, and becomes a blob only when its sha256 is the lock's.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

import requests

from envsmith.errors import EnvsmithError, InputError, IntegrityError, Problem, SupplyError
from envsmith.tools.files import disk_full, free_bytes
from envsmith.tools.index import Item, Location, Search, Supply, candidates, digest_differs, index_urls
from envsmith.tools.part import Part
from envsmith.tools.patience import Temporary
from envsmith.tools.progress import Progress
from envsmith.tools.store import Store
from envsmith.tools.transport import SourceError, Transport, refused, without_secrets

_SHOWN = 20
_CHUNK = 1 << 17


def download_all(
    items: Iterable[Item],
    supply: Supply,
    store: Store,
    *,
    jobs: int = 8,
    progress: Progress | None = None,
    on_done: Callable[[Item], None] | None = None,
) -> None:
    """Bring every file into the store; those that are there stay as they are.

    `on_done` is called in a worker thread as soon as a file is in the store, for those that were there too. What
    fails does not stop the rest; all failures are raised together.

    Raises:
        IntegrityError: `wheel-digest-differs`, with whatever else failed.
        SupplyError: `file-not-found`, `index-unreachable`, `index-refused`, `offline-missing`, `disk-full`, …
    """
    wanted = sorted({item.sha256: item for item in items}.values(), key=lambda item: (-(item.size or 0), item.filename))
    missing = [item for item in wanted if not store.has(item.sha256, item.size)]
    if missing and supply.offline:
        _require_local(missing, supply, store)
    elif missing:
        supply = replace(supply, index_url="", extra_indexes=index_urls(supply))  # uv is asked once, not once a file
        _require_room(missing, supply, store)
    run = _Run(supply, store, progress or Progress(), on_done)
    run.progress.start(sum(item.size or 0 for item in wanted), len(wanted))
    failures = run.all(wanted, jobs)
    if failures:
        raise _together([failures[item] for item in wanted if item in failures])


class _Stopped(Exception):
    """Another worker found that going on is no use, or the user interrupted."""


class _Run:
    def __init__(
        self, supply: Supply, store: Store, progress: Progress, on_done: Callable[[Item], None] | None
    ) -> None:
        self.supply, self.store, self.progress, self.on_done = supply, store, progress, on_done
        self._stop = threading.Event()
        self._gate = threading.Lock()
        self._transport = Transport(
            timeout_s=supply.timeout_s, attempts=supply.attempts, backoff_s=supply.backoff_s, sleep=self._sleep
        )

    def all(self, wanted: Sequence[Item], jobs: int) -> dict[Item, EnvsmithError]:
        """Obtain every item; return what failed."""
        failures: dict[Item, EnvsmithError] = {}
        with self._transport, ThreadPoolExecutor(max_workers=max(1, jobs), thread_name_prefix="download") as pool:
            futures: dict[Future[None], Item] = {pool.submit(self._obtain, item): item for item in wanted}
            try:
                for future in as_completed(futures):
                    with contextlib.suppress(_Stopped):
                        self._take(future, futures[future], failures)
            except BaseException:
                self._stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return failures

    def _take(self, future: Future[None], item: Item, failures: dict[Item, EnvsmithError]) -> None:
        try:
            future.result()
        except EnvsmithError as error:
            failures[item] = error
            if any(problem.code in ("disk-full", "root-not-writable") for problem in error.problems):
                self._stop.set()  # every other file would meet the same

    def _obtain(self, item: Item) -> None:
        self._sleep(0)
        with self.store.lock(item.sha256, self._say, self._sleep):
            if self.store.has(item.sha256, item.size):
                self._advance(item.size or 0)
            else:
                self._get(item)
        if self.on_done:
            self.on_done(item)

    def _get(self, item: Item) -> None:
        """Try one place after another; a wrong file in one of them is only an error when no other has the right one."""
        search = Search(item=item)
        for location in candidates(self.supply, search, self._transport):
            try:
                if location.path:
                    self._copy(item, location.path)
                else:
                    self._download(item, location)
            except IntegrityError as error:
                search.different += error.problems
            except SourceError as error:
                search.failed += error.problems
            else:
                for problem in search.different:
                    self._say(f"passed over {problem.where}: another file named {item.filename}")
                return
        raise search.error()

    def _copy(self, item: Item, path: Path) -> None:
        try:
            self.store.add_file(path, item.sha256, name=item.filename)
        except IntegrityError as error:
            raise IntegrityError(digest_differs(item, str(path), error.problems[0].actual or "another")) from error
        self._advance(item.size or 0)

    def _download(self, item: Item, location: Location) -> None:
        """Stream one URL into its part until the part is whole; begin again at most once for a part that was wrong."""
        with Part(self.store.partial(item.sha256), self._advance) as part:
            part.resume(item.size)
            resumed = part.offset > 0
            self._fill(item, location, part)
            if part.sha256() != item.sha256 and resumed:
                self._say(f"the kept part of {item.filename} is not right: getting it again")
                part.restart()
                self._fill(item, location, part)
            if part.sha256() != item.sha256:
                actual = f"sha256 {part.sha256()}, {part.offset} bytes"
                part.discard()
                raise IntegrityError(digest_differs(item, location.shown(), actual))
            part.forget_tag()
            self.store.commit(part.path, item.sha256, name=item.filename)

    def _fill(self, item: Item, location: Location, part: Part) -> None:
        failures = 0
        while part.offset != item.size:
            before = part.offset
            try:
                self._stream(item, location, part)
                return
            except Temporary as failure:
                failures = 1 if part.offset > before else failures + 1  # a line that gives bytes is worth another try
                self._transport.pause(location.url or "", failure, failures)

    def _stream(self, item: Item, location: Location, part: Part) -> None:
        """Ask once and take what comes.

        Raises:
            Temporary: less came than the lock says, or the connection broke.
            IntegrityError: more came, or the server says that it has another size.
        """
        url = location.url or ""
        with self._transport.get(url, location.auth, part.headers(url)) as response:
            self._begin(item, location, part, response)
            while chunk := response.raw.read(_CHUNK, decode_content=False):
                self._sleep(0)
                if item.size is not None and part.offset + len(chunk) > item.size:
                    part.discard()
                    actual = f"more than {item.size} bytes"
                    raise IntegrityError(digest_differs(item, location.shown(), actual, _page_hint(response)))
                part.write(chunk)
        if item.size is not None and part.offset < item.size:
            raise Temporary(f"the body ended after {part.offset} of {item.size} bytes")

    def _begin(self, item: Item, location: Location, part: Part, response: requests.Response) -> None:
        """Bring the part to where the body starts, or refuse the answer."""
        url, status = location.url or "", response.status_code
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if status == 416 or (status == 206 and (span is None or int(span[1]) != part.offset)):
            part.restart()
            raise Temporary("the server did not continue where it was asked to")
        if status in (404, 410):
            message = f"`{item.filename}` of `{item.name}` is listed but not there: {status}"
            raise SourceError(Problem(code="file-not-found", message=message, where=without_secrets(url)))
        if status not in (200, 206):
            raise SourceError(refused(url, status))
        length = response.headers.get("Content-Length", "")
        total = span[2] if status == 206 and span else length
        encoded = response.headers.get("Content-Encoding", "identity") != "identity"
        if total.isdigit() and not encoded and item.size is not None and int(total) != item.size:
            part.discard()
            raise IntegrityError(digest_differs(item, location.shown(), f"{total} bytes", _page_hint(response)))
        if status == 200 and part.offset:
            part.restart()
        part.keep_tag(url, response.headers.get("ETag", ""))

    def _advance(self, count: int) -> None:
        with self._gate:
            self.progress.advance(count)

    def _say(self, text: str) -> None:
        with self._gate:
            self.progress.message(text)

    def _sleep(self, seconds: float) -> None:
        if self._stop.wait(seconds) if seconds else self._stop.is_set():
            raise _Stopped


def _page_hint(response: requests.Response) -> str | None:
    if "html" not in response.headers.get("Content-Type", ""):
        return None
    return "the server sent a web page: a login or a proxy seems to be in the way"


def _is_local(item: Item, supply: Supply) -> bool:
    """Say whether a folder has a file of this name; a wrong one too, so that it is reported as wrong, not missing."""
    search = Search(item=item)
    return any(True for _ in candidates(replace(supply, offline=True), search, None)) or bool(search.different)


def _require_local(missing: Sequence[Item], supply: Supply, store: Store) -> None:
    absent = [item for item in missing if not _is_local(item, supply)]
    if not absent:
        return
    files = "".join(f"\n    {item.filename} ({item.size} bytes)" for item in absent)
    count = f"{len(absent)} files are" if len(absent) > 1 else "1 file is"
    raise SupplyError(
        Problem(
            code="offline-missing",
            message=f"{count} neither in the store nor in a wheel folder, and the network is off:{files}",
            where=str(store.home),
            hint="get them once with the network on, or name a folder that has them with ENVSMITH_FIND_LINKS",
        )
    )


def _require_room(missing: Sequence[Item], supply: Supply, store: Store) -> None:
    """Fail before the first byte rather than after the last that fits."""
    needed = 0
    for item in missing:
        if not _is_local(item, supply):
            with contextlib.suppress(FileNotFoundError):
                needed -= store.partial(item.sha256).stat().st_size
            needed += item.size or 0
    if needed > free_bytes(store.home):
        raise SupplyError(disk_full(store.home, needed, "it would not hold what has to be downloaded"))


def _together(errors: Sequence[EnvsmithError]) -> EnvsmithError:
    """Make one error of many: each problem once, the first 20, then a count; a wrong file outranks a missing one."""
    problems = list(dict.fromkeys(problem for error in errors for problem in error.problems))
    if len(problems) > _SHOWN:
        rest = len(problems) - _SHOWN
        problems[_SHOWN:] = [Problem(code="more-failures", message=f"{rest} more problems of this kind are not shown")]
    for kind in (IntegrityError, InputError):
        if any(isinstance(error, kind) for error in errors):
            return kind(*problems)
    return SupplyError(*problems)
