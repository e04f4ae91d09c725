"""Finding and downloading, against a real server on 127.0.0.1 with every fault planted in turn."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from envsmith.errors import InputError, IntegrityError, SupplyError
from envsmith.tools.download import download_all
from envsmith.tools.index import Item, Supply, default_index_url, fetch_metadata, find_file
from envsmith.tools.progress import Progress
from envsmith.tools.store import Store
from envsmith.tools.transport import SourceError, refuse_downgrade, split_auth, without_secrets
from envsmith.tools.uv import uv_binary
from tests.support.index import SimpleIndex, metadata_of, wait_until, write_folder_index
from tests.support.wheels import make_wheel, sha256

ROOT = Path(__file__).parents[2]


class Heard(Progress):
    """What a progress display would have seen."""

    def __init__(self) -> None:
        self.total = self.items = self.done = 0
        self.said: list[str] = []

    def start(self, total_bytes: int, items: int) -> None:
        self.total, self.items = total_bytes, items

    def advance(self, count: int) -> None:
        self.done += count

    def message(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "wheels"
    noise = random.Random(0)
    make_wheel(path, "Big.One", "1.0", {"big_one/data.bin": noise.randbytes(600_000)}, requires=["small>=1"])
    make_wheel(path, "small", "1.0", {"small/__init__.py": noise.randbytes(2_000)})
    return path


@pytest.fixture
def big(folder: Path) -> Item:
    return item_of(folder / "Big_One-1.0-py3-none-any.whl", "Big.One")


@pytest.fixture
def small(folder: Path) -> Item:
    return item_of(folder / "small-1.0-py3-none-any.whl", "small")


@pytest.fixture
def index(folder: Path) -> Iterator[SimpleIndex]:
    with SimpleIndex(folder) as running:
        yield running


@pytest.fixture
def supply(index: SimpleIndex) -> Supply:
    return Supply(index_url=index.url, timeout_s=5, attempts=3, backoff_s=0.01)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def item_of(path: Path, name: str) -> Item:
    return Item(name=name, filename=path.name, size=path.stat().st_size, sha256=sha256(path))


def partials(store: Store) -> list[str]:
    return sorted(path.name for path in (store.home / "partial").iterdir())


def codes(error: pytest.ExceptionInfo[SupplyError] | pytest.ExceptionInfo[IntegrityError]) -> list[str]:
    return [problem.code for problem in error.value.problems]


def plant_part(store: Store, item: Item, content: bytes) -> None:
    store.partial(item.sha256).write_bytes(content)


# --- the plain way ---------------------------------------------------------------------------------------------------


def test_files_come_in_by_name_and_digest_and_progress_counts_every_byte(
    index: SimpleIndex, supply: Supply, store: Store, big: Item, small: Item
) -> None:
    heard, done = Heard(), []
    download_all([small, big, big], supply, store, progress=heard, on_done=done.append)
    for item in (big, small):
        assert store.verify(item.sha256).stat().st_size == item.size
        assert store.facts(item.sha256) == {"name": item.filename}
    assert {item.filename for item in done} == {big.filename, small.filename}
    assert (heard.items, heard.total, heard.done) == (2, big.size + small.size, big.size + small.size)  # type: ignore[operator]
    assert partials(store) == []
    assert not list((store.home / "locks").iterdir())


def test_what_is_in_the_store_is_not_asked_for_again_but_is_reported_done(
    index: SimpleIndex, supply: Supply, store: Store, small: Item
) -> None:
    download_all([small], supply, store)
    index.log.clear()
    done: list[Item] = []
    heard = Heard()
    download_all([small], supply, store, on_done=done.append, progress=heard)
    assert index.log == []
    assert done == [small]
    assert heard.done == small.size


@pytest.mark.parametrize("json", [True, False])
@pytest.mark.parametrize("hashes", [True, False])
def test_json_and_html_pages_with_and_without_hashes_all_do(
    index: SimpleIndex, supply: Supply, store: Store, big: Item, json: bool, hashes: bool
) -> None:
    index.faults.json, index.faults.hashes = json, hashes
    location = find_file(supply, big.name, big.filename, big.sha256, big.size)
    assert location.url == index.url.replace("/simple", f"/files/{big.filename}")
    download_all([big], supply, store)
    store.verify(big.sha256)


def test_a_wheel_folder_is_asked_before_the_index(folder: Path, supply: Supply, store: Store, big: Item) -> None:
    local = replace(supply, index_url="http://127.0.0.1:1/simple", find_links=(folder.as_uri(),))
    assert find_file(local, big.name, big.filename, big.sha256, big.size).path == folder / big.filename
    download_all([big], local, store)
    assert store.verify(big.sha256).stat().st_nlink == 1


def test_a_wrong_file_in_a_wheel_folder_is_passed_over_aloud_when_the_index_has_the_right_one(
    tmp_path: Path, supply: Supply, store: Store, big: Item
) -> None:
    wrong = tmp_path / "old wheels"
    wrong.mkdir()
    (wrong / big.filename).write_bytes(b"another build")
    heard = Heard()
    download_all([big], replace(supply, find_links=(str(wrong),)), store, progress=heard)
    store.verify(big.sha256)
    assert heard.said == [f"passed over {wrong / big.filename}: another file named {big.filename}"]


@pytest.mark.parametrize("hashes", [True, False])
def test_a_folder_tree_is_an_index(tmp_path: Path, folder: Path, store: Store, big: Item, hashes: bool) -> None:
    url = write_folder_index(folder, tmp_path / "tree", hashes=hashes)
    supply = Supply(index_url=url, offline=True)
    assert find_file(supply, big.name, big.filename, big.sha256, big.size).path is not None
    download_all([big], supply, store)
    store.verify(big.sha256)


def test_a_folder_tree_without_pages_is_an_index_too(tmp_path: Path, folder: Path, store: Store, big: Item) -> None:
    (tmp_path / "tree" / "big-one").mkdir(parents=True)
    shutil.copy(folder / big.filename, tmp_path / "tree" / "big-one")
    download_all([big], Supply(index_url=str(tmp_path / "tree"), offline=True), store)
    store.verify(big.sha256)


def test_find_links_can_name_a_page(index: SimpleIndex, supply: Supply, store: Store, big: Item) -> None:
    links = replace(supply, index_url="", find_links=(f"{index.url}/big-one/",))
    download_all([big], links, store)
    store.verify(big.sha256)


def test_the_second_index_is_asked_when_the_first_lacks_the_file(
    tmp_path: Path, supply: Supply, store: Store, index: SimpleIndex, big: Item
) -> None:
    (tmp_path / "empty").mkdir()
    with SimpleIndex(tmp_path / "empty") as empty:
        download_all([big], replace(supply, index_url=empty.url, extra_indexes=(index.url,)), store)
    store.verify(big.sha256)


def test_uvs_default_index_comes_out_of_uv_itself() -> None:
    url = default_index_url(uv_binary())
    assert url.startswith("https://")
    assert url.endswith("/simple")


# --- faults ----------------------------------------------------------------------------------------------------------


def test_a_body_that_ends_early_is_continued_where_it_ended(
    index: SimpleIndex, supply: Supply, store: Store, big: Item
) -> None:
    index.faults.truncate[big.filename] = [250_000, 100_000, 10_000_000]
    heard = Heard()
    download_all([big], supply, store, progress=heard)
    store.verify(big.sha256)
    assert [asked.range for asked in index.asked_for(big.filename)] == [None, "bytes=250000-", "bytes=350000-"]
    assert all(asked.if_range for asked in index.asked_for(big.filename)[1:])
    assert heard.done == heard.total


def test_a_server_without_ranges_is_read_from_the_start_again(
    index: SimpleIndex, supply: Supply, store: Store, big: Item
) -> None:
    index.faults.ranges = False
    index.faults.truncate[big.filename] = [250_000, 10_000_000]
    heard = Heard()
    download_all([big], supply, store, progress=heard)
    store.verify(big.sha256)
    assert [asked.status for asked in index.asked_for(big.filename)] == [200, 200]
    assert heard.done == heard.total


def test_a_body_that_never_gives_a_byte_ends_after_so_many_attempts(
    index: SimpleIndex, supply: Supply, store: Store, big: Item, small: Item
) -> None:
    index.faults.truncate[big.filename] = [0]
    with pytest.raises(SupplyError) as error:
        download_all([big, small], supply, store)
    assert codes(error) == ["index-unreachable"]
    assert big.filename in str(error.value)
    assert len(index.asked_for(big.filename)) == supply.attempts
    store.verify(small.sha256)


def test_a_part_of_an_earlier_run_is_hashed_and_continued(
    index: SimpleIndex, supply: Supply, store: Store, folder: Path, big: Item
) -> None:
    plant_part(store, big, (folder / big.filename).read_bytes()[:400_000])
    heard = Heard()
    download_all([big], supply, store, progress=heard)
    store.verify(big.sha256)
    assert [asked.range for asked in index.asked_for(big.filename)] == ["bytes=400000-"]
    assert heard.done == heard.total


def test_a_part_that_is_complete_needs_no_request_for_the_file(
    index: SimpleIndex, supply: Supply, store: Store, folder: Path, big: Item
) -> None:
    plant_part(store, big, (folder / big.filename).read_bytes())
    download_all([big], supply, store)
    store.verify(big.sha256)
    assert index.asked_for(big.filename) == []


@pytest.mark.parametrize("length", [400_000, 10_000_000])
def test_a_part_of_something_else_is_noticed_and_got_again(
    index: SimpleIndex, supply: Supply, store: Store, big: Item, length: int
) -> None:
    plant_part(store, big, bytes(length))
    heard = Heard()
    download_all([big], supply, store, progress=heard)
    store.verify(big.sha256)
    assert heard.done == heard.total
    assert index.asked_for(big.filename)[-1].range is None


def test_a_file_that_changed_on_the_server_between_two_runs_is_read_from_the_start(
    index: SimpleIndex, supply: Supply, store: Store, big: Item
) -> None:
    index.faults.wrong_bytes.add(big.filename)
    index.faults.truncate[big.filename] = [250_000, 0, 0, 0]
    with pytest.raises(SupplyError):
        download_all([big], supply, store)
    index.faults.wrong_bytes.clear()
    index.faults.truncate.clear()
    index.log.clear()
    download_all([big], supply, store)
    store.verify(big.sha256)
    (asked,) = index.asked_for(big.filename)
    assert (asked.range, asked.status) == ("bytes=250000-", 200)
    assert asked.if_range is not None
    assert partials(store) == []


def test_wrong_bytes_stop_with_both_digests_and_leave_no_part(
    index: SimpleIndex, supply: Supply, store: Store, big: Item, small: Item
) -> None:
    index.faults.wrong_bytes.add(big.filename)
    index.faults.hashes = False
    with pytest.raises(IntegrityError) as error:
        download_all([big, small], supply, store)
    (problem,) = error.value.problems
    assert problem.code == "wheel-digest-differs"
    assert problem.where == f"{index.url.replace('/simple', '/files')}/{big.filename}"
    assert big.sha256 in (problem.expected or "")
    assert "sha256" in (problem.actual or "")
    assert len(index.asked_for(big.filename)) == 1  # wrong bytes are not asked for again
    assert partials(store) == []
    assert not store.has(big.sha256)
    store.verify(small.sha256)


def test_an_index_that_lists_another_digest_is_not_downloaded_from(
    index: SimpleIndex, supply: Supply, store: Store, folder: Path, big: Item
) -> None:
    make_wheel(folder, "Big.One", "1.0", {"big_one/data.bin": "rebuilt"})
    with pytest.raises(IntegrityError) as error:
        download_all([big], supply, store)
    assert codes(error) == ["wheel-digest-differs"]
    assert index.asked_for(big.filename) == []


def test_more_bytes_than_the_lock_says_are_cut_off(index: SimpleIndex, supply: Supply, store: Store, big: Item) -> None:
    index.faults.extra_bytes[big.filename] = 50_000_000
    with pytest.raises(IntegrityError) as error:
        download_all([big], supply, store)
    assert f"more than {big.size} bytes" in str(error.value)
    assert partials(store) == []


def test_a_page_of_a_proxy_in_place_of_the_file_is_recognised(
    index: SimpleIndex, supply: Supply, store: Store, big: Item
) -> None:
    index.faults.redirect[big.filename] = f"{index.url}/small/"
    index.faults.json = False
    with pytest.raises(IntegrityError) as error:
        download_all([big], supply, store)
    assert "web page" in (error.value.problems[0].hint or "")
    assert not store.has(big.sha256)


def test_a_server_error_is_tried_again_and_then_reported(
    index: SimpleIndex, supply: Supply, store: Store, big: Item, small: Item
) -> None:
    index.faults.errors[big.filename] = [503, 500]
    index.faults.errors["small"] = [502]
    download_all([big, small], supply, store)
    assert [asked.status for asked in index.asked_for(big.filename)] == [503, 500, 200]
    other = Store(store.home / "other")
    index.faults.errors[big.filename] = [503] * 9
    with pytest.raises(SupplyError, match="answered 503") as error:
        download_all([big, small], supply, other)
    assert codes(error) == ["index-unreachable"]
    assert len(index.faults.errors[big.filename]) == 9 - supply.attempts


def test_a_missing_file_is_named_once_and_not_asked_for_again(
    index: SimpleIndex, supply: Supply, store: Store, big: Item
) -> None:
    index.faults.absent.add(big.filename)
    with pytest.raises(SupplyError) as error:
        download_all([big], supply, store)
    assert codes(error) == ["file-not-found"]
    assert big.filename in str(error.value)
    assert len(index.asked_for(big.filename)) == 1


def test_a_file_no_place_has_names_every_place_that_was_asked(
    index: SimpleIndex, supply: Supply, store: Store, tmp_path: Path, big: Item
) -> None:
    unknown = replace(big, name="unknown", filename="unknown-1-py3-none-any.whl", sha256="0" * 64)
    other = replace(big, filename="Big_One-9.9-py3-none-any.whl", sha256="1" * 64)
    with pytest.raises(SupplyError) as error:
        download_all([unknown, other], replace(supply, find_links=(str(tmp_path / "no folder"),)), store)
    assert codes(error) == ["file-not-found", "file-not-found"]
    text = str(error.value)
    assert f"{index.url}/unknown/ (404)" in text
    assert f"{index.url}/big-one/ (no such file)" in text
    assert f"{tmp_path / 'no folder'} (no such folder)" in text


def test_an_index_that_is_not_there_is_one_problem_for_all_files(store: Store, big: Item, small: Item) -> None:
    nowhere = Supply(index_url="http://user:secret@127.0.0.1:1/simple", attempts=2, backoff_s=0.01)
    with pytest.raises(SupplyError) as error:
        download_all([big, small], nowhere, store)
    assert codes(error) == ["index-unreachable"]
    assert "Connection refused" in str(error.value)
    assert "secret" not in str(error.value)


def test_a_silent_server_is_given_up_after_the_time_limit(
    index: SimpleIndex, supply: Supply, store: Store, big: Item
) -> None:
    index.faults.stall.add(big.filename)
    started = time.monotonic()
    with pytest.raises(SupplyError, match="in time"):
        download_all([big], replace(supply, timeout_s=0.3, attempts=2), store)
    assert time.monotonic() - started < 5


def test_all_failures_are_reported_together_but_only_so_many_in_full(
    index: SimpleIndex, supply: Supply, store: Store, small: Item
) -> None:
    items = [replace(small, filename=f"small-{n}-py3-none-any.whl", sha256=f"{n:064x}") for n in range(30)]
    with pytest.raises(SupplyError) as error:
        download_all([small, *items], supply, store)
    assert codes(error) == ["file-not-found"] * 20 + ["more-failures"]
    assert error.value.problems[-1].message.startswith("10 more")
    store.verify(small.sha256)


def test_a_wrong_file_makes_the_whole_failure_an_integrity_error(
    index: SimpleIndex, supply: Supply, store: Store, big: Item, small: Item
) -> None:
    index.faults.wrong_bytes.add(big.filename)
    index.faults.absent.add(small.filename)
    index.faults.hashes = False
    with pytest.raises(IntegrityError) as error:
        download_all([big, small], supply, store)
    assert sorted(codes(error)) == ["file-not-found", "wheel-digest-differs"]


def test_a_name_that_would_leave_its_folder_is_refused(supply: Supply, store: Store, big: Item) -> None:
    with pytest.raises(InputError, match="file-name-malformed"):
        download_all([replace(big, filename="../../x.whl")], supply, store)


def test_a_setting_that_is_no_url_is_the_users_to_mend(store: Store, big: Item) -> None:
    with pytest.raises(InputError, match="index-url-malformed"):
        download_all([big], Supply(index_url="http://"), store)


# --- offline, disk, other processes ----------------------------------------------------------------------------------


def test_offline_lists_every_missing_file_at_once_and_asks_nobody(
    index: SimpleIndex, supply: Supply, store: Store, big: Item, small: Item
) -> None:
    with pytest.raises(SupplyError) as error:
        download_all([big, small], replace(supply, offline=True), store)
    assert codes(error) == ["offline-missing"]
    assert big.filename in str(error.value)
    assert small.filename in str(error.value)
    assert index.log == []


def test_offline_takes_what_store_and_folders_have(folder: Path, store: Store, big: Item, small: Item) -> None:
    store.add_file(folder / big.filename)
    download_all([big, small], Supply(offline=True, find_links=(str(folder),)), store)
    store.verify(small.sha256)


def test_offline_with_a_wrong_file_in_a_folder_is_a_wrong_file_not_a_missing_one(
    tmp_path: Path, store: Store, big: Item
) -> None:
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / big.filename).write_bytes(b"another build")
    with pytest.raises(IntegrityError) as error:
        download_all([big], Supply(offline=True, find_links=(str(tmp_path / "w"),)), store)
    assert codes(error) == ["wheel-digest-differs"]


def test_a_disk_that_cannot_hold_it_is_named_before_the_first_byte(
    index: SimpleIndex, supply: Supply, store: Store, big: Item
) -> None:
    with pytest.raises(SupplyError) as error:
        download_all([replace(big, size=1 << 60)], supply, store)
    assert codes(error) == ["disk-full"]
    assert index.log == []


def test_a_disk_that_fills_up_on_the_way_stops_everything(
    supply: Supply, store: Store, folder: Path, big: Item, small: Item
) -> None:
    store.partial(big.sha256).symlink_to("/dev/full")  # the kernel's own ENOSPC on the first write
    with pytest.raises(SupplyError) as error:
        download_all([big, small], supply, store, jobs=1)
    assert codes(error) == ["disk-full"]
    assert not store.has(small.sha256)


def test_two_processes_get_one_file_once(
    index: SimpleIndex, supply: Supply, store: Store, big: Item, tmp_path: Path
) -> None:
    index.faults.bytes_per_s = 600_000
    first, second = (start_child(index, store, big) for _ in range(2))
    assert (first.wait(60), second.wait(60)) == (0, 0)
    store.verify(big.sha256)
    assert len(index.asked_for(big.filename)) == 1


def test_a_killed_download_goes_on_where_it_was_killed(
    index: SimpleIndex, supply: Supply, store: Store, big: Item
) -> None:
    index.faults.bytes_per_s = 300_000
    child = start_child(index, store, big)
    part = store.partial(big.sha256)
    wait_until(lambda: part.exists() and part.stat().st_size > 100_000)
    child.kill()
    child.wait()
    index.faults.bytes_per_s = None
    kept = part.stat().st_size
    download_all([big], supply, store)
    store.verify(big.sha256)
    asked = index.asked_for(big.filename)[-1]
    assert (asked.range, asked.status) == (f"bytes={kept}-", 206)
    assert asked.if_range is not None
    assert partials(store) == []


def test_an_interrupt_ends_the_workers_soon_and_keeps_the_part(
    index: SimpleIndex, supply: Supply, store: Store, big: Item
) -> None:
    index.faults.bytes_per_s = 100_000
    child = start_child(index, store, big)
    part = store.partial(big.sha256)
    wait_until(lambda: part.exists() and part.stat().st_size > 0)
    child.send_signal(2)
    assert child.wait(5) != 0
    assert 0 < part.stat().st_size < (big.size or 0)


def start_child(index: SimpleIndex, store: Store, item: Item) -> subprocess.Popen[bytes]:
    code = (
        "import sys; from pathlib import Path\n"
        "from envsmith.tools.download import download_all; from envsmith.tools.store import Store\n"
        "from envsmith.tools.index import Item, Supply\n"
        "home, url, name, filename, size, sha256 = sys.argv[1:]\n"
        "item = Item(name=name, filename=filename, size=int(size), sha256=sha256)\n"
        "download_all([item], Supply(index_url=url), Store(Path(home)))\n"
    )
    words = [str(store.home), index.url, item.name, item.filename, str(item.size), item.sha256]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", code, *words], env=environ, stderr=subprocess.DEVNULL)


def test_what_the_caller_does_with_a_finished_file_runs_while_others_download(
    index: SimpleIndex, supply: Supply, store: Store, big: Item, small: Item
) -> None:
    index.faults.stall.add(big.filename)
    finished = threading.Event()

    def done(item: Item) -> None:
        if item == small:
            finished.set()
            index.faults.stall.clear()

    limits = replace(supply, timeout_s=1.0)
    download_all([big, small], limits, store, on_done=done, jobs=2)
    assert finished.is_set()
    store.verify(big.sha256)


def test_a_failure_of_the_callers_own_is_not_swallowed(supply: Supply, store: Store, small: Item) -> None:
    def done(item: Item) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        download_all([small], supply, store, on_done=done)


# --- credentials and redirects ---------------------------------------------------------------------------------------


def test_credentials_in_the_url_open_page_and_file_and_are_never_shown(
    index: SimpleIndex, supply: Supply, store: Store, big: Item
) -> None:
    index.faults.auth = ("me", "p@ss:word")
    url = index.with_auth("me", "p%40ss%3Aword")
    mine = replace(supply, index_url=url)
    download_all([big], mine, store)
    store.verify(big.sha256)
    location = find_file(mine, big.name, big.filename, big.sha256, big.size)
    assert "p@ss" not in repr(mine) + repr(location) + location.shown()
    index.faults.auth = ("me", "changed")
    with pytest.raises(SupplyError) as error:
        download_all([replace(big, sha256="0" * 64)], mine, store)
    assert codes(error) == ["index-refused"]
    assert "ss%3Aword" not in str(error.value)
    assert "ss:word" not in str(error.value)


def test_credentials_in_netrc_do_too(
    index: SimpleIndex, supply: Supply, store: Store, big: Item, stranger: Path
) -> None:
    index.faults.auth = ("me", "word")
    with pytest.raises(SupplyError, match="netrc"):
        download_all([big], supply, store)
    netrc = stranger / "home" / ".netrc"
    netrc.write_text("machine 127.0.0.1 login me password word\n")
    netrc.chmod(0o600)
    download_all([big], supply, store)
    store.verify(big.sha256)


def test_credentials_do_not_follow_a_file_to_another_host(
    tmp_path: Path, folder: Path, supply: Supply, store: Store, big: Item, index: SimpleIndex
) -> None:
    with SimpleIndex(folder) as elsewhere:
        index.faults.auth = ("me", "word")
        index.faults.redirect[big.filename] = f"{elsewhere.url.replace('/simple', '/files')}/{big.filename}"
        download_all([big], replace(supply, index_url=index.with_auth("me", "word")), store)
        assert [asked.authorization for asked in elsewhere.asked_for(big.filename)] == [None]
        assert all(asked.authorization for asked in index.asked_for(big.filename))
    store.verify(big.sha256)


def test_a_redirect_is_followed_and_a_circle_is_not(
    index: SimpleIndex, supply: Supply, store: Store, big: Item, small: Item
) -> None:
    index.faults.redirect[big.filename] = f"/files/{small.filename}"
    with pytest.raises(IntegrityError):
        download_all([big], supply, store)
    index.faults.redirect[big.filename] = f"/files/{big.filename}"
    with pytest.raises(SupplyError) as error:
        download_all([big], supply, store)
    assert codes(error) == ["redirect-refused"]


def test_secrets_are_cut_out_of_urls() -> None:
    assert without_secrets("https://me:word@host:8443/simple/x?token=1#f") == "https://***@host:8443/simple/x?…"
    assert without_secrets("https://host/simple/") == "https://host/simple/"
    assert without_secrets("https://[broken") == "a malformed URL"
    assert split_auth("https://me:p%40ss@host/x") == ("https://host/x", ("me", "p@ss"))
    assert split_auth("https://host/x") == ("https://host/x", None)


def test_no_redirect_leaves_an_encrypted_connection() -> None:
    refuse_downgrade("https://a/x", "https://b/x")
    refuse_downgrade("http://a/x", "http://b/x")
    for target in ("http://a/x", "file:///etc/passwd", "ftp://a/x"):
        with pytest.raises(SourceError, match="redirect-refused"):
            refuse_downgrade("https://a/x", target)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate")
    paths = tmp_path / "cert.pem", tmp_path / "key.pem"
    argv = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    argv += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(paths[0]), "-keyout", str(paths[1])]
    subprocess.run(argv, check=True, capture_output=True)
    return paths


def test_tls_trusts_the_sites_certificate_only_and_refuses_to_be_led_out(
    folder: Path, store: Store, big: Item, small: Item, certificate: tuple[Path, Path],
    index: SimpleIndex, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    with SimpleIndex(folder, tls=certificate) as secure:
        supply = Supply(index_url=secure.url, attempts=2, backoff_s=0.01)
        with pytest.raises(SupplyError) as error:
            download_all([small], supply, store)
        assert codes(error) == ["certificate-not-trusted"]
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        download_all([small], supply, store)
        secure.faults.redirect[big.filename] = f"{index.url.replace('/simple', '/files')}/{big.filename}"
        with pytest.raises(SupplyError) as error:
            download_all([big], supply, store)
    assert codes(error) == ["redirect-refused"]
    assert index.asked_for(big.filename) == []


# --- metadata --------------------------------------------------------------------------------------------------------


def wanted_metadata(supply: Supply, item: Item, store: Store | None = None) -> bytes:
    return fetch_metadata(supply, item.name, item.filename, item.sha256, item.size, store=store)


@pytest.mark.parametrize("json", [True, False])
def test_metadata_comes_from_the_metadata_file_where_there_is_one(
    index: SimpleIndex, supply: Supply, folder: Path, big: Item, json: bool
) -> None:
    index.faults.json = json
    assert wanted_metadata(supply, big) == metadata_of(folder / big.filename)
    assert index.asked_for(big.filename) == []
    assert len(index.asked_for(f"{big.filename}.metadata")) == 1


def test_a_wrong_metadata_file_stops(index: SimpleIndex, supply: Supply, big: Item) -> None:
    index.faults.wrong_metadata.add(big.filename)
    with pytest.raises(IntegrityError) as error:
        wanted_metadata(supply, big)
    assert codes(error) == ["metadata-digest-differs"]


def test_a_listed_metadata_file_that_is_not_there_falls_back_to_ranges(
    index: SimpleIndex, supply: Supply, folder: Path, big: Item
) -> None:
    index.faults.absent.add(f"{big.filename}.metadata")
    assert wanted_metadata(supply, big) == metadata_of(folder / big.filename)
    assert index.asked_for(big.filename)[0].range == "bytes=-65536"


def test_without_metadata_files_only_the_end_of_the_wheel_is_read(
    index: SimpleIndex, supply: Supply, folder: Path, big: Item
) -> None:
    index.faults.metadata = False
    assert wanted_metadata(supply, big) == metadata_of(folder / big.filename)
    assert [(asked.range, asked.status) for asked in index.asked_for(big.filename)] == [("bytes=-65536", 206)]


def test_metadata_at_the_start_of_a_wheel_costs_a_second_range(
    index: SimpleIndex, supply: Supply, folder: Path
) -> None:
    index.faults.metadata = False
    path = folder / "first-1.0-py3-none-any.whl"
    import zipfile

    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("first-1.0.dist-info/METADATA", b"Name: first\n")
        archive.writestr("first/data.bin", random.Random(1).randbytes(300_000))
    assert wanted_metadata(supply, item_of(path, "first")) == b"Name: first\n"
    assert [asked.range for asked in index.asked_for(path.name)] == ["bytes=-65536", "bytes=0-32767"]


def test_without_ranges_the_whole_wheel_is_read(index: SimpleIndex, supply: Supply, folder: Path, big: Item) -> None:
    index.faults.metadata = index.faults.ranges = False
    assert wanted_metadata(supply, big) == metadata_of(folder / big.filename)


def test_metadata_of_a_wheel_in_store_or_folder_asks_nobody(
    index: SimpleIndex, supply: Supply, store: Store, folder: Path, big: Item, small: Item
) -> None:
    store.add_file(folder / big.filename)
    assert wanted_metadata(supply, big, store) == metadata_of(folder / big.filename)
    local = replace(supply, find_links=(str(folder),), offline=True)
    assert wanted_metadata(local, small) == metadata_of(folder / small.filename)
    assert index.log == []


@pytest.mark.parametrize("ranges", [True, False])
def test_what_is_no_wheel_is_called_so(index: SimpleIndex, supply: Supply, folder: Path, ranges: bool) -> None:
    index.faults.metadata, index.faults.ranges = False, ranges
    path = folder / "bad-1.0-py3-none-any.whl"
    path.write_bytes(b"not a zip file" * 10_000)
    with pytest.raises(IntegrityError) as error:
        wanted_metadata(supply, item_of(path, "bad"))
    assert codes(error) == ["wheel-malformed"]


# --- the real index --------------------------------------------------------------------------------------------------


@pytest.mark.network
def test_the_default_index_gives_metadata_and_file(store: Store) -> None:
    digest = "946d195a0d259cbba61165e88e65941f16e9b36ea6ddb97f00452bae8b1287d3"  # idna 3.10, as its index says
    item = Item(name="idna", filename="idna-3.10-py3-none-any.whl", size=70442, sha256=digest)
    assert b"Name: idna" in wanted_metadata(Supply(), item)
    download_all([item], Supply(), store)
    assert hashlib.sha256(store.blob_path(digest).read_bytes()).hexdigest() == digest
