"""Whether a checkpoint is whole, judged by its names, its indexes and what was read of its shards' beginnings and ends.

Pure: whoever reads a folder hands in a `Checkpoint`. Names are those of Hugging Face, verl's FSDP, DeepSpeed, Megatron
and torch's distributed checkpoint. It misses the loss of the last rank of a set where nothing else says how many wrote.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, product
from math import prod
from posixpath import basename, dirname, join, normpath
from typing import Final

from envsmith.report import Finding, Severity

FAMILY: Final = "shards"
#: Endings of files that hold tensors; a set of others, such as parquet, is no matter of a checkpoint's.
_WEIGHTS: Final = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".gguf")
#: Files of these names may not be empty; others may be flags, so that an empty one is no more than suspicious. A rank
#: of torch's distributed checkpoint may have nothing to write.
_STATE: Final = re.compile(
    r"(?i).*(\.(safetensors|gguf)$|model|optim|sched|state|adapter|weight|consolidated|training_args|scaler|rank|layer"
    r"|common|^data\.pt$)"
)
#: What names tensors must; another program's `x.index.json` may be anything.
_TENSOR_INDEX: Final = re.compile(r".+\.(safetensors|bin|pt|pth|ckpt)\.index(\.[^/]+)?\.json")
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
#: Sets that count from 0, whose last one nothing else counts: accelerate, checkpointing.py; Llama's own weights;
#: DeepSpeed, runtime/engine.py and runtime/pipe/module.py (0.18.4, read 2026-11-30).
_COUNTED: Final = (
    re.compile(r"(?P<before>rng_state_)(?P<number>[0-9]+)(?P<behind>\.pth)"),
    re.compile(r"(?P<before>random_states_)(?P<number>[0-9]+)(?P<behind>\.pkl)"),
    re.compile(r"(?P<before>consolidated\.)(?P<number>[0-9]+)(?P<behind>\.(pth|pt))"),
    re.compile(r"(?P<before>layer_[0-9]+-model_)(?P<number>[0-9]+)(?P<behind>-model_states\.pt)"),
    re.compile(r"(?P<before>layer_[0-9]+_expert_)(?P<number>[0-9]+)(?P<behind>_mp_rank_[0-9]+_model_states\.pt)"),
    re.compile(r"(?P<before>expp_rank_)(?P<number>[0-9]+)(?P<behind>_mp_rank_[0-9]+_optim_states\.pt)"),
)
#: Megatron, checkpointing.py, `get_checkpoint_name`: a folder a tensor, pipeline and expert rank (read 2026-11-30).
_MEGATRON: Final = re.compile(r"mp_rank_[0-9]+(_[0-9]+){0,2}")
MEGATRON_FILE: Final = "model_optim_rng.pt"
LATEST, LATEST_ITERATION, METADATA = "latest", "latest_checkpointed_iteration.txt", ".metadata"
_NAMED: Final = 5
#: So many of a set are looked at one by one.
_LISTED: Final = 1000


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
        found += _counted_sets(folder, names)
    found += _megatron(folders)
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
    zero = _ZERO.fullmatch(basename(path))
    return _MODEL.fullmatch(basename(path)) is not None or (zero is not None and zero["kind"] == "model")


def _indexed(checkpoint: Checkpoint, folder: str, names: set[str], found: list[Finding]) -> Iterator[str]:
    """Names in the indexes of a folder; what is wrong with these goes to `found`."""
    for name in sorted(filter(is_index, names)):
        path = join(folder, name)
        if path not in checkpoint.texts:
            continue
        try:
            table = json.loads(checkpoint.texts[path])
            weights = table["weight_map"] if _TENSOR_INDEX.fullmatch(name) else table.get("weight_map", {"": ""})
            wanted = {str(value) for value in weights.values()} - {""}
            if not weights:
                raise ValueError(weights)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
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
    sets: dict[tuple[str, str, str], dict[int, str]] = defaultdict(dict)
    for match in filter(None, map(_NUMBERED.fullmatch, sorted(names))):
        if match["ending"].endswith(_WEIGHTS):
            sets[match["stem"], match["total"], match["ending"]][int(match["number"])] = match["number"]
    for (stem, total, ending), numbers in sets.items():
        width = min(map(len, numbers.values()))  # DeepSeek writes `model-00007-of-000163`
        count, lost = _lost(numbers, int(total), first=0 if 0 in numbers else 1)
        files = [f"{stem}-{n:0{width}d}-of-{total}{ending}" for n in lost]
        if not files:
            continue
        of_index = any(re.fullmatch(rf"{re.escape(stem)}-[0-9]+-of-[0-9]+{re.escape(ending)}", one) for one in indexed)
        if of_index and not {*files} & {*indexed}:
            message = f"shards of an older save lie beside those that the index names: `{stem}-…-of-{total}{ending}`"
            hint = "remove them, so that nobody takes them for the checkpoint"
            yield _finding("shard-leftover", join(folder, files[0]), message, hint, severity=Severity.WARNING)
        else:
            message = f"{count:,} of {int(total):,} shards are not there: {_listed(folder, files, count)}"
            yield _missing(join(folder, files[0]), message)


def _lost(there: Collection[int], count: int, *, first: int = 0) -> tuple[int, list[int]]:
    """How many of so many numbers are not there, and the first of them; a name may claim any count."""
    lost = count - sum(first <= number < first + count for number in there)
    missing = (number for number in range(first, first + count) if number not in there)
    return lost, list(islice(missing, min(lost, _LISTED)))


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
    there, count = {*map(int, parallel)}, 1 + max(map(int, parallel))
    parallel |= {f"{n:0{width}d}" for n in _lost(there, count)[1]}
    said = [checkpoint.worlds.get(join(folder, name), 0) for name in names if is_model_states(name)]
    # The random states of a trainer count all ranks, which are the data-parallel ones where no model is split.
    known = [*said, world if count == 1 else 0, *(1 + max(ranks) for ranks in sets.values())]
    formats = {(form, kind) for form, kind, _ in sets}
    for form, kind in sorted(formats):
        for mp in sorted(parallel):
            pattern = f"{form}zero_pp_rank_{{}}_mp_rank_{mp}_{kind}_states.pt"
            yield from _ranks(folder, pattern, sets.get((form, kind, mp), set()), max(known))
    if models or not any(kind == "model" for _, kind in formats):
        yield from _ranks(folder, f"mp_rank_{{:0{width}d}}_model_states.pt", {int(mp) for mp in models}, count)


def _distcp(checkpoint: Checkpoint, folder: str, names: set[str]) -> Iterator[Finding]:
    """`.metadata` is written last, and names the files: a rank with nothing to write leaves none."""
    there = sorted(name for name in names if _DISTCP.fullmatch(name))
    path = join(folder, METADATA)
    # Without coordination of ranks each writes `__RANK.metadata` instead (torch 2.10, read 2026-11-30).
    if there and METADATA not in names and not any(name.endswith(METADATA) for name in names):
        yield _missing(path, f"`{path}` is not there, without which {len(there)} files of ranks cannot be read")
    if there and checkpoint.sizes.get(path) == 0:
        yield _empty(path)
    wanted = checkpoint.named.get(path, frozenset())
    lost = sorted(wanted - names, key=_by_number)
    if lost:
        ranks = sorted({int(match["rank"]) for one in lost if (match := _DISTCP.fullmatch(one))})
        what = f"files of rank{'s' if len(ranks) > 1 else ''} {_counted(ranks)}"
        yield _missing(join(folder, lost[0]), f"{what} that `{path}` names are not there: {_listed(folder, lost)}")
    for name in sorted(wanted & names, key=_by_number):
        if checkpoint.sizes[join(folder, name)] == 0:
            yield _empty(join(folder, name))


def _counted_sets(folder: str, names: set[str]) -> Iterator[Finding]:
    sets: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    matches = (pattern.fullmatch(name) for pattern in _COUNTED for name in sorted(names))
    for match in filter(None, matches):
        sets[match["before"], match["behind"]][int(match["number"])] = match["number"]
    for (before, behind), numbers in sets.items():
        width = min(map(len, numbers.values()))
        yield from _ranks(folder, f"{before}{{:0{width}d}}{behind}", numbers, 1 + max(numbers))


def _megatron(folders: Mapping[str, set[str]]) -> Iterator[Finding]:
    """Every tensor rank of every pipeline rank has a folder, and in it the file of model and optimizer."""
    grids: dict[tuple[str, int], dict[tuple[int, ...], str]] = defaultdict(dict)
    for folder, names in sorted(folders.items()):
        if MEGATRON_FILE in names and _MEGATRON.fullmatch(basename(folder)):
            ranks = basename(folder).removeprefix("mp_rank_").split("_")
            grids[dirname(folder), len(ranks)][tuple(map(int, ranks))] = basename(folder)
    for (above, _), there in grids.items():
        widths = [min(map(len, part)) for part in zip(*(n.split("_")[2:] for n in there.values()), strict=True)]
        ends = [1 + max(part) for part in zip(*there, strict=True)]
        count = prod(ends) - len(there)
        wanted = (ranks for ranks in product(*map(range, map(_least, ends))) if ranks not in there)
        lost = ["_".join(f"{n:0{w}d}" for n, w in zip(ranks, widths, strict=True)) for ranks in islice(wanted, _LISTED)]
        if lost:
            files = [f"mp_rank_{one}/{MEGATRON_FILE}" for one in lost]
            message = f"{count:,} of {prod(ends):,} ranks are not there: {_listed(above, files, count)}"
            yield _missing(join(above, files[0]), message)


def _least(end: int) -> int:
    return min(end, _LISTED)


def _rng_count(folders: Mapping[str, set[str]], folder: str) -> int:
    """How many ranks the random states of a folder, or of the one above it, count."""
    names = folders.get(folder, set()) | (folders.get(dirname(folder), set()) if folder else set())
    return 1 + max((int(match["rank"]) for match in filter(None, map(_RNG.fullmatch, names))), default=-1)


def _ranks(folder: str, pattern: str, there: Collection[int], world: int) -> Iterator[Finding]:
    count, lost = _lost(there, world)
    if lost:
        files = [pattern.format(rank) for rank in lost]
        verb = "ranks {} of {} are" if count > 1 else "rank {} of {} is"
        message = f"{verb.format(_counted(lost, count), world)} not there: {_listed(folder, files, count)}"
        yield _missing(join(folder, files[0]), message)


def judge_insides(checkpoint: Checkpoint) -> Iterator[Finding]:
    """Say which files are not whole in themselves, whatever lies beside them."""
    for path, size in sorted(checkpoint.sizes.items()):
        if size == 0 and path.endswith(_WEIGHTS):
            is_state = _STATE.match(basename(path)) or _NUMBERED.fullmatch(basename(path))
            yield _empty(path) if is_state else replace(_empty(path), severity=Severity.WARNING)
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
        # `latest` of others than DeepSpeed may name a file.
        held = [
            one
            for one in places
            if one in checkpoint.sizes or any(name.startswith(f"{one}/") for name in checkpoint.sizes)
        ]
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


def _listed(folder: str, names: Iterable[str], count: int | None = None) -> str:
    """The first of the names; `count` where there are more than those."""
    said = [f"`{join(folder, name)}`" for name in names]
    count = len(said) if count is None else count
    more = f" and {count - _NAMED:,} more" if count > _NAMED else ""
    return ", ".join(said[:_NAMED]) + more


def _counted(ranks: list[int], count: int | None = None) -> str:
    count = len(ranks) if count is None else count
    more = f" and {count - 2 * _NAMED:,} more" if count > 2 * _NAMED else ""
    return ", ".join(map(str, ranks[: 2 * _NAMED])) + more


def _by_number(name: str) -> list[int]:
    return [int(part) for part in re.findall(r"[0-9]+", name)]
