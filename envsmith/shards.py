"""Whether a checkpoint is whole, judged by its names, its indexes and what was read of its shards' beginnings and ends.

Pure: whoever reads a folder hands in a `Checkpoint`. Names are those of Hugging Face, FSDP as verl writes it, DeepSpeed
and torch's distributed checkpoint. It misses the loss of the last rank of a set where nothing else says how many wrote.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from posixpath import basename, dirname, join, normpath
from typing import Final

from envsmith.report import Finding, Severity

FAMILY: Final = "shards"
#: Files that may not be empty; a rank of torch's distributed checkpoint may have nothing to write.
_WEIGHTS: Final = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_INDEX: Final = re.compile(r".+\.index(\.[^/]+)?\.json")
_NUMBERED: Final = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5,})-of-(?P<total>[0-9]{5,})(?P<ending>(\.[^/.]+)+)")
#: verl, checkpoint/fsdp_checkpoint_manager.py (commit 1bf9d2d7, read 2026-11-30).
_FSDP: Final = re.compile(r"(?P<stem>.+)_world_size_(?P<world>[0-9]+)_rank_(?P<rank>[0-9]+)(?P<ending>\.[^/.]+)")
#: DeepSpeed, runtime/engine.py, `_get_ckpt_name`, `_get_rank_zero_ckpt_name` (0.18.4, read 2026-11-30).
_ZERO: Final = re.compile(
    r"(?P<format>bf16_|fp16_|)zero_pp_rank_(?P<rank>[0-9]+)_mp_rank_(?P<mp>[0-9]+)_(?P<kind>optim|model)_states\.pt"
)
_MODEL: Final = re.compile(r"mp_rank_(?P<mp>[0-9]+)_model_states\.pt")
_DISTCP: Final = re.compile(r"__(?P<rank>[0-9]+)_[0-9]+\.distcp")
#: transformers, Trainer._save_rng_state: one file a rank, or `rng_state.pth` for one process (read 2026-11-30).
_RNG: Final = re.compile(r"rng_state_(?P<rank>[0-9]+)\.pth")
LATEST, LATEST_ITERATION, METADATA = "latest", "latest_checkpointed_iteration.txt", ".metadata"
_NAMED: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A folder as its names and a few of its bytes show it; paths are relative to it, with `/`."""

    sizes: Mapping[str, int]
    folders: frozenset[str] = frozenset()
    texts: Mapping[str, str] = field(default_factory=dict)
    """Content of indexes and of the files that name the latest step."""
    faults: Mapping[str, str] = field(default_factory=dict)
    """What is wrong with a file, by path: words that go on from `is truncated: `."""
    named: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Names of files that a `.metadata` refers to, by its path."""
    worlds: Mapping[str, int] = field(default_factory=dict)
    """How many data-parallel ranks a model-states file of DeepSpeed says there were, by its path."""


def judge_checkpoint(checkpoint: Checkpoint) -> tuple[Finding, ...]:
    """Say what a checkpoint lacks; a folder that holds none of the known kinds lacks nothing."""
    folders: dict[str, set[str]] = defaultdict(set)
    for path in checkpoint.sizes:
        folders[dirname(path)].add(basename(path))
    found: list[Finding] = []
    for folder, names in sorted(folders.items()):
        indexed = set(_indexed(checkpoint, folder, names, found))
        found += _numbered(folder, names, indexed)
        found += _fsdp(folder, names)
        found += _deepspeed(checkpoint, folder, names, _rng_count(folders, folder))
        found += _distcp(checkpoint, folder, names)
        found += _rng(folder, names)
    found += judge_insides(checkpoint)
    found += _latest(checkpoint)
    return tuple({(one.kind, one.subject): one for one in reversed(found)}.values())[::-1]


def is_index(path: str) -> bool:
    """Whether a file is an index of shards, whose content `texts` should hold."""
    return _INDEX.fullmatch(basename(path)) is not None


def is_pointer(path: str) -> bool:
    """Whether a file names the latest step, so that `texts` should hold it."""
    return basename(path) in (LATEST, LATEST_ITERATION)


def is_model_states(path: str) -> bool:
    """Whether DeepSpeed writes its world size into this file."""
    return _MODEL.fullmatch(basename(path)) is not None


def _indexed(checkpoint: Checkpoint, folder: str, names: set[str], found: list[Finding]) -> Iterator[str]:
    """Names in the indexes of a folder; what is wrong with these goes to `found`."""
    for name in sorted(filter(is_index, names)):
        path = join(folder, name)
        if path not in checkpoint.texts:
            continue
        try:
            table = json.loads(checkpoint.texts[path])
            weights = table.get("weight_map", {})
            wanted = {str(value) for value in weights.values()}
        except (ValueError, AttributeError, RecursionError):
            message = f"the index `{path}` is no table of tensors, so nobody can tell which shards there should be"
            hint = "save the checkpoint again: an index is written last, and this one was broken off"
            found.append(_finding("index-unreadable", path, message, hint))
            continue
        yield from wanted
        lost = sorted(one for one in wanted if normpath(join(folder, one)) not in checkpoint.sizes)
        if lost:
            rows = f"{len(lost)} of {len(wanted)} files that `{path}` names"
            found.append(_missing(join(folder, lost[0]), f"{rows} are not there: {_listed(folder, lost)}"))


def _numbered(folder: str, names: set[str], indexed: Collection[str]) -> Iterator[Finding]:
    sets: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for match in filter(None, map(_NUMBERED.fullmatch, sorted(names))):
        sets[match["stem"], match["total"], match["ending"]].add(int(match["number"]))
    for (stem, total, ending), numbers in sets.items():
        first = 0 if 0 in numbers else 1
        wanted = range(first, first + int(total))
        lost = [n for n in wanted if n not in numbers] if len(wanted) < 1_000_000 else []
        files = [f"{stem}-{n:0{len(total)}d}-of-{total}{ending}" for n in lost]
        if not files:
            continue
        of_index = any(re.fullmatch(rf"{re.escape(stem)}-[0-9]+-of-[0-9]+{re.escape(ending)}", one) for one in indexed)
        if of_index and not {*files} & {*indexed}:
            message = f"shards of an older save lie beside those that the index names: `{stem}-…-of-{total}{ending}`"
            hint = "remove them, so that nobody takes them for the checkpoint"
            yield _finding("shard-leftover", join(folder, files[0]), message, hint, severity=Severity.WARNING)
        else:
            count = f"{len(files)} of {int(total)} shards"
            yield _missing(join(folder, files[0]), f"{count} are not there: {_listed(folder, files)}")


def _fsdp(folder: str, names: set[str]) -> Iterator[Finding]:
    sets: dict[tuple[str, int, str], set[int]] = defaultdict(set)
    for match in filter(None, map(_FSDP.fullmatch, sorted(names))):
        sets[match["stem"], int(match["world"]), match["ending"]].add(int(match["rank"]))
    for (stem, world, ending), ranks in sets.items():
        yield from _ranks(folder, f"{stem}_world_size_{world}_rank_{{}}{ending}", ranks, world)


def _deepspeed(checkpoint: Checkpoint, folder: str, names: set[str], world: int) -> Iterator[Finding]:
    """ZeRO's files of one folder; every set of one kind and model-parallel rank has the same data-parallel ranks."""
    sets: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for match in filter(None, map(_ZERO.fullmatch, sorted(names))):
        sets[match["format"], match["kind"], match["mp"]].add(int(match["rank"]))
    models = {match["mp"] for match in filter(None, map(_MODEL.fullmatch, names))}
    parallel = {mp for _, _, mp in sets} | models
    if not parallel:
        return
    width = max(map(len, parallel))
    parallel |= {f"{n:0{width}d}" for n in range(1 + max(map(int, parallel)))}
    said = [checkpoint.worlds.get(join(folder, f"mp_rank_{mp}_model_states.pt"), 0) for mp in models]
    # The random states of a trainer count all ranks, which are the data-parallel ones where no model is split.
    known = [*said, world if len(parallel) == 1 else 0, *(1 + max(ranks) for ranks in sets.values())]
    formats = {(form, kind) for form, kind, _ in sets}
    for form, kind in sorted(formats):
        for mp in sorted(parallel):
            pattern = f"{form}zero_pp_rank_{{}}_mp_rank_{mp}_{kind}_states.pt"
            yield from _ranks(folder, pattern, sets.get((form, kind, mp), set()), max(known))
    if models or not any(kind == "model" for _, kind in formats):
        yield from _ranks(folder, f"mp_rank_{{:0{width}d}}_model_states.pt", {int(mp) for mp in models}, len(parallel))


def _distcp(checkpoint: Checkpoint, folder: str, names: set[str]) -> Iterator[Finding]:
    """`.metadata` is written last, and names the files: a rank with nothing to write leaves none."""
    there = sorted(name for name in names if _DISTCP.fullmatch(name))
    path = join(folder, METADATA)
    # Without coordination of ranks each writes `__RANK.metadata` instead (torch 2.10, read 2026-11-30).
    if there and METADATA not in names and not any(name.endswith(METADATA) for name in names):
        yield _missing(path, f"`{path}` is not there, without which {len(there)} files of ranks cannot be read")
    wanted = checkpoint.named.get(path, frozenset())
    lost = sorted(wanted - names, key=_by_number)
    if lost:
        ranks = sorted({int(match["rank"]) for one in lost if (match := _DISTCP.fullmatch(one))})
        what = f"files of rank{'s' if len(ranks) > 1 else ''} {_counted(ranks)}"
        yield _missing(join(folder, lost[0]), f"{what} that `{path}` names are not there: {_listed(folder, lost)}")
    for name in sorted(wanted & names, key=_by_number):
        if checkpoint.sizes[join(folder, name)] == 0:
            yield _empty(join(folder, name))


def _rng(folder: str, names: set[str]) -> Iterator[Finding]:
    ranks = {int(match["rank"]) for match in filter(None, map(_RNG.fullmatch, names))}
    yield from _ranks(folder, "rng_state_{}.pth", ranks, 1 + max(ranks, default=-1))


def _rng_count(folders: Mapping[str, set[str]], folder: str) -> int:
    """How many ranks the random states of a folder, or of the one above it, count."""
    names = folders.get(folder, set()) | (folders.get(dirname(folder), set()) if folder else set())
    return 1 + max((int(match["rank"]) for match in filter(None, map(_RNG.fullmatch, names))), default=-1)


def _ranks(folder: str, pattern: str, there: Collection[int], world: int) -> Iterator[Finding]:
    lost = [rank for rank in range(min(world, 1_000_000)) if rank not in there]
    if lost:
        files = [pattern.format(rank) for rank in lost]
        verb = "ranks {} of {} are" if len(lost) > 1 else "rank {} of {} is"
        message = f"{verb.format(_counted(lost), world)} not there: {_listed(folder, files)}"
        yield _missing(join(folder, files[0]), message)


def judge_insides(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Say which files are not whole in themselves, whatever lies beside them."""
    for path, size in sorted(checkpoint.sizes.items()):
        if size == 0 and path.endswith(_WEIGHTS):
            yield _empty(path)
        elif path in checkpoint.faults:
            hint = "save the checkpoint again, or deliver an older one"
            yield _finding("shard-truncated", path, f"`{path}` is truncated: {checkpoint.faults[path]}", hint)


def _latest(checkpoint: Checkpoint) -> Iterator[Finding]:
    for path in sorted(filter(is_pointer, checkpoint.texts)):
        said, folder = checkpoint.texts[path].strip(), dirname(path)
        if not said:
            wanted = ["(nothing)"]
        elif basename(path) == LATEST:
            wanted = [said]
        elif said.isdecimal():  # verl and Megatron name the folder of a step differently
            wanted = [f"global_step_{int(said)}", f"iter_{int(said):07d}"]
        else:
            wanted = [said]
        places = [normpath(join(folder, one)) for one in wanted]
        held = [one for one in places if any(name.startswith(f"{one}/") for name in checkpoint.sizes)]
        if not held:
            there = any(one in checkpoint.folders for one in places)
            message = f"`{path}` says that the latest step is `{said}`, and " + (
                f"the folder {_listed(folder, wanted)} is empty"
                if there
                else f"there is no folder {_listed(folder, wanted)}"
            )
            hint = "deliver the folder of that step too, or name the one that is there in the file"
            yield _finding("latest-missing", path, message, hint)


def _missing(path: str, message: str) -> Finding:
    hint = (
        "wait until every rank has saved, or look for the file where its rank ran; `--allow-incomplete` copies anyway"
    )
    return _finding("shard-missing", path, message, hint)


def _empty(path: str) -> Finding:
    return _finding("shard-empty", path, f"`{path}` has no byte", "save the checkpoint again, or deliver an older one")


def _finding(kind: str, subject: str, message: str, hint: str, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(check=FAMILY, kind=kind, severity=severity, subject=subject, message=message, hint=hint)


def _listed(folder: str, names: Iterable[str]) -> str:
    said = [f"`{join(folder, name)}`" for name in names]
    more = f" and {len(said) - _NAMED:,} more" if len(said) > _NAMED else ""
    return ", ".join(said[:_NAMED]) + more


def _counted(ranks: list[int]) -> str:
    more = f" and {len(ranks) - 2 * _NAMED:,} more" if len(ranks) > 2 * _NAMED else ""
    return ", ".join(map(str, ranks[: 2 * _NAMED])) + more


def _by_number(name: str) -> list[int]:
    return [int(part) for part in re.findall(r"[0-9]+", name)]
