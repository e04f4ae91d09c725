"""envsmith.shards and envsmith.shardfiles: which checkpoints are whole, and what the others lack."""

from __future__ import annotations

import pickle
import time
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from posixpath import dirname

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envsmith.report import Finding, Severity
from envsmith.shardfiles import (
    TAIL_BYTES,
    fault_of_safetensors,
    fault_of_zip,
    files_of_metadata,
    header_length,
    is_zip,
    whole_number,
)
from envsmith.shards import Checkpoint, judge_checkpoint, judge_insides
from envsmith.tools.checkpointread import read_checkpoint
from envsmith.tools.checkpointscan import list_source
from tests.support.checkpoints import KINDS, Files, is_needed, safetensors, to_json, torch_file, write


def judged(folder: Path) -> tuple[Finding, ...]:
    return judge_checkpoint(read_checkpoint(list_source(folder)))


def said(folder: Path) -> set[tuple[str, str]]:
    return {(one.kind, one.subject) for one in judged(folder)}


def each_shard() -> Iterator[tuple[str, str]]:
    for kind, make in KINDS.items():
        yield from ((kind, path) for path in make() if is_needed(path))


#: Nothing else of these checkpoints counts the processes, so the loss of the last one's file is not seen.
UNSEEN = [
    ("hugging-face", "rng_state_3.pth"),
    *(("pipeline", f"layer_{layer:02d}-model_01-model_states.pt") for layer in (1, 3, 4)),
    ("pipeline", "layer_0_expert_3_mp_rank_00_model_states.pt"),
    ("pipeline", "expp_rank_1_mp_rank_00_optim_states.pt"),
    ("accelerate", "random_states_2.pkl"),
    ("accelerate", "consolidated.03.pth"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_checkpoint_lacks_nothing(tmp_path: Path, kind: str) -> None:
    assert judged(write(tmp_path / "c", KINDS[kind]())) == ()


@pytest.mark.parametrize(("kind", "path"), [row for row in each_shard() if row not in UNSEEN])
def test_every_single_shard_is_missed_by_name(tmp_path: Path, kind: str, path: str) -> None:
    folder = write(tmp_path / "c", KINDS[kind]())
    (folder / path).unlink()
    found = judged(folder)
    assert [(one.kind, one.severity, one.subject) for one in found] == [("shard-missing", Severity.ERROR, path)]
    assert f"`{path}`" in found[0].message


@pytest.mark.parametrize(
    ("kind", "path"), [row for row in each_shard() if not row[1].endswith((".distcp", "metadata", ".pkl"))]
)
def test_every_single_shard_that_is_cut_or_empty_is_seen(tmp_path: Path, kind: str, path: str) -> None:
    folder = write(tmp_path / "c", KINDS[kind]())
    content = (folder / path).read_bytes()
    (folder / path).write_bytes(content[:-1])
    assert said(folder) == {("shard-truncated", path)}
    (folder / path).write_bytes(b"")
    assert said(folder) == {("shard-empty", path)}


def test_a_missing_rank_is_named_with_its_number(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", KINDS["verl"]())
    for rank in (3, 7):
        (folder / f"global_step_10/actor/optim_world_size_8_rank_{rank}.pt").unlink()
    (found,) = judged(folder)
    assert "ranks 3, 7 of 8" in found.message
    assert all(f"optim_world_size_8_rank_{rank}.pt" in found.message for rank in (3, 7))


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_whatever_shards_are_lost_every_one_of_them_is_named_and_no_other(kind: str, data: st.DataObject) -> None:
    files = KINDS[kind]()
    lost = data.draw(st.sets(st.sampled_from(sorted(path for path in files if is_needed(path) and not counts(path)))))
    found = judge_checkpoint(in_memory({path: content for path, content in files.items() if path not in lost}))
    words = " ".join(one.message for one in found)
    listed = [path for path in lost if f"`{path}`" in words]
    assert len(listed) == len(lost) or " more" in words
    assert {one.kind for one in found} <= {"shard-missing"}
    assert all(one.subject in lost for one in found)
    assert bool(found) is bool(lost)


def counts(path: str) -> bool:
    """Whether it is the last of its set, from whose name the size of the set is known."""
    if any(path == unseen for _, unseen in UNSEEN) or "mp_rank_01_001/" in path:
        return True
    ends = ("00003-of-00003.bin", "rank_7.pt", ".metadata", "mp_rank_01_model_states.pt")
    return path.endswith(ends) or "zero_pp_rank_3" in path or "zero_pp_rank_1_mp_rank_01" in path


def in_memory(files: Files) -> Checkpoint:
    folders = {dirname(path) for path in files} | {"global_step10", "global_step_10", "iter_0000010"}
    names = files_of_metadata(files[".metadata"]) if ".metadata" in files else frozenset()
    return Checkpoint(
        sizes={path: len(content) for path, content in files.items()},
        folders=frozenset(folders),
        texts={path: files[path].decode() for path in files if path.endswith(("index.json", "latest", ".txt"))},
        named={".metadata": names},
    )


def test_the_last_rank_of_deepspeed_is_missed_because_the_model_states_count(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", KINDS["zero-2"]())
    last = "global_step10/bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt"
    (folder / last).unlink()
    assert said(folder) == {("shard-missing", last)}
    # Without that number the random states of the trainer count.
    (folder / "global_step10/mp_rank_00_model_states.pt").write_bytes(torch_file())
    assert said(folder) == set()
    write(folder, {f"rng_state_{n}.pth": torch_file() for n in range(4)})
    assert said(folder) == {("shard-missing", last)}


def test_a_pointer_to_a_step_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", KINDS["verl"]())
    (folder / "latest_checkpointed_iteration.txt").write_text("20\n")
    assert said(folder) == {("latest-missing", "latest_checkpointed_iteration.txt")}
    (folder / "iter_0000020").mkdir()
    assert said(folder) == {("latest-missing", "latest_checkpointed_iteration.txt")}
    (folder / "iter_0000020/common.pt").write_bytes(b"\x80\x02.")
    assert said(folder) == set()
    write(folder, {"global_step_10/latest": b"global_step9"})
    assert said(folder) == {("latest-missing", "global_step_10/latest")}
    (folder / "global_step_10/latest").write_bytes(b"")
    assert said(folder) == {("latest-missing", "global_step_10/latest")}


def test_an_index_that_is_none_is_an_error_and_shards_of_an_older_save_a_warning(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", KINDS["hugging-face"]())
    (folder / "model-00001-of-00004.safetensors").write_bytes(safetensors())
    (left,) = judged(folder)
    assert (left.kind, left.severity) == ("shard-leftover", Severity.WARNING)
    for content in (b"{", b"[]", b'{"weight_map": []}'):
        (folder / "model.safetensors.index.json").write_bytes(content)
        assert ("index-unreadable", "model.safetensors.index.json") in said(folder)
    (folder / "model.safetensors.index.json").write_bytes(to_json({"weight_map": {"a": "../../etc/x"}}))
    assert ("shard-missing", "../../etc/x") in said(folder)


def test_a_rank_with_nothing_to_write_is_no_loss_and_an_empty_file_that_is_named_is_one(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", KINDS["distributed"]())
    (folder / "__9_0.distcp").write_bytes(b"")
    assert said(folder) == set()
    (folder / "__1_0.distcp").write_bytes(b"")
    assert said(folder) == {("shard-empty", "__1_0.distcp")}
    (folder / ".metadata").rename(folder / "__0.metadata")
    assert said(folder) == set()  # written without coordination: one metadata a rank


def test_one_file_is_judged_by_its_content_alone() -> None:
    checkpoint = Checkpoint(sizes={"model-00001-of-00005.safetensors": 5}, faults={})
    assert tuple(judge_insides(checkpoint)) == ()
    assert judge_checkpoint(checkpoint)


@given(size=st.integers(0, 300), cut=st.integers(1, 500), more=st.binary(min_size=1, max_size=9))
def test_a_safetensors_file_of_any_other_length_is_seen(size: int, cut: int, more: bytes) -> None:
    whole = safetensors(size)
    assert fault_of(whole) is None
    assert fault_of(whole[: max(0, len(whole) - cut)]) is not None
    assert fault_of(whole + more) is not None


@given(content=st.binary(max_size=200))
def test_bytes_that_are_no_safetensors_are_judged_without_an_exception(content: bytes) -> None:
    fault_of(content)
    fault_of((len(content)).to_bytes(8, "little") + content)


def fault_of(content: bytes) -> str | None:
    length = header_length(content[:8]) or 0
    return fault_of_safetensors(content[:8], content[8 : 8 + length], len(content))


@given(size=st.integers(0, 300), data=st.data())
def test_a_torch_file_that_is_cut_anywhere_is_seen(size: int, data: st.DataObject) -> None:
    whole = torch_file(size=size)
    cut = data.draw(st.integers(4, len(whole) - 1))
    assert is_zip(whole)
    assert fault_of_zip(whole[-TAIL_BYTES:], len(whole)) is None
    assert fault_of_zip(whole[:cut][-TAIL_BYTES:], cut) is not None


@given(number=st.integers(0, 2**40), protocol=st.integers(0, 5))
def test_a_number_in_a_pickle_is_found_without_running_it(number: int, protocol: int) -> None:
    pickled = pickle.dumps({"ds_version": "0.18.4", "dp_world_size": number, "z": 1}, protocol)
    assert whole_number(pickled, "dp_world_size") == number
    assert whole_number(pickled, "mp_world_size") is None
    assert whole_number(pickled[: len(pickled) // 3], "dp_world_size") in (None, number)
    assert whole_number(b"cos\nsystem\n(S'false'\ntR.", "dp_world_size") is None


def test_the_last_rank_of_stage_3_is_missed_because_every_rank_counts(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", KINDS["zero-3"]())
    lost = {
        f"global_step10/{name}"
        for name in ("zero_pp_rank_3_mp_rank_00_model_states.pt", "bf16_zero_pp_rank_3_mp_rank_00_optim_states.pt")
    }
    for path in lost:
        (folder / path).unlink()
    assert said(folder) == {("shard-missing", path) for path in lost}


def test_a_metadata_without_bytes_or_end_is_seen_and_one_of_any_size_is_read(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", KINDS["distributed"]())
    whole = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(whole[:-1])
    assert said(folder) == {("shard-truncated", ".metadata")}
    (folder / ".metadata").write_bytes(b"")
    assert said(folder) == {("shard-empty", ".metadata")}
    (folder / ".metadata").write_bytes(b" " * ((65 << 20) - 40) + whole)
    assert said(folder) == set()
    (folder / "__3_1.distcp").unlink()
    assert said(folder) == {("shard-missing", "__3_1.distcp")}


@pytest.mark.parametrize("content", [{}, {"weight_map": {}}, {"metadata": {"total_size": 1}}])
def test_an_index_that_names_nothing_is_none(tmp_path: Path, content: object) -> None:
    for name in ("model.safetensors.index.json", "pytorch_model.bin.index.fp16.json"):
        folder = write(tmp_path / name, {name: to_json(content), "config.json": b"{}"})
        assert said(folder) == {("index-unreadable", name)}


def test_an_index_of_another_program_is_left_alone(tmp_path: Path) -> None:
    assert judged(write(tmp_path / "c", {"search.index.json": b"{}", "config.json": b"{}"})) == ()


def test_a_shard_behind_a_link_is_judged_as_every_other(tmp_path: Path) -> None:
    folder = write(tmp_path / "c", {"blobs/abc": safetensors()[:-1], "blobs/def": to_json({"weight_map": {}})})
    (folder / "snapshots").mkdir()
    (folder / "snapshots/model.safetensors").symlink_to("../blobs/abc")
    (folder / "snapshots/model.safetensors.index.json").symlink_to("../blobs/def")
    assert said(folder) == {
        ("shard-truncated", "snapshots/model.safetensors"),
        ("index-unreadable", "snapshots/model.safetensors.index.json"),
    }


def test_names_of_another_width_are_named_as_they_are(tmp_path: Path) -> None:
    names = [f"model-{n:05d}-of-000163.safetensors" for n in range(1, 164)]
    index = {"model.safetensors.index.json": to_json({"weight_map": {name: name for name in names}})}
    folder = write(tmp_path / "c", {**dict.fromkeys(names, safetensors()), **index})
    assert judged(folder) == ()
    (folder / names[6]).unlink()
    assert said(folder) == {("shard-missing", "model-00007-of-000163.safetensors")}
    (folder / "model.safetensors.index.json").unlink()
    assert said(folder) == {("shard-missing", "model-00007-of-000163.safetensors")}


def test_sets_of_other_files_pointers_to_files_and_flags_are_no_fault(tmp_path: Path) -> None:
    files = {
        **KINDS["unindexed"](),
        "eval-00001-of-00005.json": b"{}",
        "latest": b"step10.pt",
        "step10.pt": torch_file(),
    }
    folder = write(tmp_path / "c", files)
    assert judged(folder) == ()
    (folder / "flag.pt").write_bytes(b"")
    assert [(one.kind, one.severity) for one in judged(folder)] == [("shard-empty", Severity.WARNING)]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "optimizer.bin", "state.ckpt", "model.gguf"])
def test_a_file_of_zeros_is_none_of_its_kind(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "c", {name: bytes(4096)})
    assert said(folder) == {("shard-truncated", name)}
    (folder / name).write_bytes(b"")
    assert [(one.kind, one.severity) for one in judged(folder)] == [("shard-empty", Severity.ERROR)]


def test_files_of_other_makers_are_left_alone(tmp_path: Path) -> None:
    files = {"tokens.bin": bytes(4096), "model.gguf": b"GGUF" + bytes(9), ".metadata": b"of another program"}
    assert judged(write(tmp_path / "c", files)) == ()


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"a": ("F32", [1000], 0, 10)}, "10 bytes that needs 4,000"),
        ({"a": ("U8", [5], 0, 5), "b": ("U8", [4], 6, 10)}, "gap"),
        ({"a": ("U8", [6], 0, 6), "b": ("U8", [5], 5, 10)}, "gap"),
        ({"a": ("U8", [10], 0, 1e999)}, "no table"),
        ({"a": ("U8", [1e999], 0, 10)}, "no table"),
        ({"a": ("U8", [-10], 0, 10)}, "no table"),
        ({"a": (["U8"], [10], 0, 10)}, "no table"),
    ],
)
def test_a_header_that_does_not_fit_its_tensors_is_seen(tensors: dict[str, tuple[object, ...]], words: str) -> None:
    rows = {
        name: {"dtype": kind, "shape": shape, "data_offsets": [start, stop]}
        for name, (kind, shape, start, stop) in tensors.items()
    }
    header = to_json(rows).replace(b"Infinity", b"1e999")
    assert words in (fault_of(len(header).to_bytes(8, "little") + header + bytes(10)) or "")


@pytest.mark.parametrize(
    ("kind", "shape", "size"),
    [("F4", [3], 2), ("C64", [2], 16), ("F8_E4M3", [2, 2], 4), ("NEW", [9], 1), ("F32", [0, 7], 0)],
)
def test_types_of_any_width_are_known(kind: str, shape: list[int], size: int) -> None:
    header = to_json({"a": {"dtype": kind, "shape": shape, "data_offsets": [0, size]}})
    assert fault_of(len(header).to_bytes(8, "little") + header + bytes(size)) is None


@pytest.mark.parametrize(
    "name",
    [
        f"m-00001-of-{'9' * 200}.safetensors",
        "mp_rank_99999999_model_states.pt",
        f"zero_pp_rank_{'9' * 150}_mp_rank_00_optim_states.pt",
        f"zero_pp_rank_0_mp_rank_{'9' * 99}_optim_states.pt",
        f"model_world_size_{'9' * 150}_rank_0.pt",
        f"rng_state_{'9' * 200}.pth",
        f"mp_rank_{'9' * 90}_{'9' * 90}/model_optim_rng.pt",
    ],
)
def test_a_name_that_claims_any_number_is_judged_in_a_moment(tmp_path: Path, name: str) -> None:
    content = safetensors() if name.endswith(".safetensors") else torch_file()
    folder = write(tmp_path / "c", {name: content})
    started = time.monotonic()
    assert {kind for kind, _ in said(folder)} == {"shard-missing"}
    assert time.monotonic() - started < 5


def test_an_archive_whose_members_are_no_data_says_nothing_of_ranks(tmp_path: Path) -> None:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"dp_world_size": 4, "x": bytes(range(256))}))
    whole = buffer.getvalue()
    for at in range(30, len(whole) - 100, 7):
        folder = write(
            tmp_path / f"{at}", {"mp_rank_00_model_states.pt": whole[:at] + b"\xff\x07\x80" + whole[at + 3 :]}
        )
        judged(folder)


def test_tensors_without_elements_may_share_a_place() -> None:
    row = {"shape": [0], "data_offsets": [0, 0]}
    header = to_json({"a": {"dtype": "F32", **row}, "b": {"dtype": "NEW", **row}, "c": {"dtype": "U8", **row}})
    assert fault_of(len(header).to_bytes(8, "little") + header) is None
