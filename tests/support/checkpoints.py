"""Checkpoints of every kind in miniature, with the names and the formats that their writers use."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path

Files = Mapping[str, bytes]


def safetensors(size: int = 64, fill: bytes = b"\x07") -> bytes:
    """One tensor of so many bytes."""
    header = json.dumps({"__metadata__": {"format": "pt"}, "w": tensor(size)}).encode()
    return struct.pack("<Q", len(header)) + header + fill * size


def tensor(size: int) -> dict[str, object]:
    return {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}


def torch_file(value: object = 1, size: int = 64) -> bytes:
    """A zip archive as `torch.save` lays it out: stored, a pickle and one storage."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(value, protocol=2))
        archive.writestr("archive/data/0", b"\x05" * size)
    return buffer.getvalue()


def hugging_face() -> Files:
    """Weights in five shards with their index, and the states of four processes."""
    names = [f"model-{n:05d}-of-00005.safetensors" for n in range(1, 6)]
    index = {"metadata": {}, "weight_map": {f"layer.{n}": name for n, name in enumerate(names)}}
    states = {f"rng_state_{n}.pth": torch_file() for n in range(4)}
    others = {"config.json": b"{}", "optimizer.pt": torch_file(), "model.safetensors.index.json": to_json(index)}
    return {**{name: safetensors() for name in names}, **states, **others}


def unindexed() -> Files:
    return {f"pytorch_model-{n:05d}-of-00003.bin": torch_file() for n in range(1, 4)}


def verl() -> Files:
    """Eight ranks of an actor, below the folder of a step."""
    kinds = ("model", "optim", "extra_state")
    files = {
        f"global_step_10/actor/{kind}_world_size_8_rank_{rank}.pt": torch_file() for kind in kinds for rank in range(8)
    }
    return {**files, "global_step_10/data.pt": torch_file(), "latest_checkpointed_iteration.txt": b"10"}


def zero_2() -> Files:
    """DeepSpeed, stage 2: four ranks hold the optimizer, the first one the model."""
    folder = "global_step10"
    optim = {f"{folder}/bf16_zero_pp_rank_{n}_mp_rank_00_optim_states.pt": torch_file() for n in range(4)}
    state = torch_file({"module": {}, "dp_world_size": 4, "mp_world_size": 1})
    return {**optim, f"{folder}/mp_rank_00_model_states.pt": state, "latest": b"global_step10"}


def zero_3() -> Files:
    """DeepSpeed, stage 3: four ranks hold both."""
    folder = "global_step10"
    names = [f"zero_pp_rank_{n}_mp_rank_00_model_states.pt" for n in range(4)]
    names += [f"bf16_zero_pp_rank_{n}_mp_rank_00_optim_states.pt" for n in range(4)]
    state = torch_file({"module": {}, "dp_world_size": 4, "mp_world_size": 1})
    return {
        **{f"{folder}/{name}": state if "model" in name else torch_file() for name in names},
        "latest": b"global_step10",
    }


def model_parallel() -> Files:
    """DeepSpeed with two model-parallel ranks, each over two data-parallel ones."""
    optim = {f"zero_pp_rank_{dp}_mp_rank_{mp:02d}_optim_states.pt": torch_file() for dp in range(2) for mp in range(2)}
    return {**optim, **{f"mp_rank_{mp:02d}_model_states.pt": torch_file() for mp in range(2)}}


def distributed() -> Files:
    """torch.distributed.checkpoint: the metadata names the files of four ranks, two each."""
    names = [f"__{rank}_{n}.distcp" for rank in range(4) for n in range(2)]
    return {**dict.fromkeys(names, b"storage"), ".metadata": pickle.dumps({"storage_data": names})}


def megatron() -> Files:
    """Megatron's older layout: two tensor ranks of two pipeline ranks."""
    names = [f"iter_0000010/mp_rank_{tp:02d}_{pp:03d}/model_optim_rng.pt" for tp in range(2) for pp in range(2)]
    return {**dict.fromkeys(names, torch_file()), "latest_checkpointed_iteration.txt": b"10"}


def pipeline() -> Files:
    """DeepSpeed's pipeline of layers that are not all saved, and a mixture of experts."""
    layers = [f"layer_{layer:02d}-model_{mp:02d}-model_states.pt" for layer in (1, 3, 4) for mp in range(2)]
    experts = [f"layer_0_expert_{n}_mp_rank_00_model_states.pt" for n in range(4)]
    optim = [f"expp_rank_{n}_mp_rank_00_optim_states.pt" for n in range(2)]
    return dict.fromkeys([*layers, *experts, *optim], torch_file())


def accelerate() -> Files:
    """Random states of accelerate, and weights as Llama's own code has them."""
    states = {f"random_states_{n}.pkl": pickle.dumps(n) for n in range(3)}
    return {**states, **{f"consolidated.{n:02d}.pth": torch_file() for n in range(4)}}


KINDS: Mapping[str, Callable[[], Files]] = {
    "hugging-face": hugging_face,
    "unindexed": unindexed,
    "verl": verl,
    "zero-2": zero_2,
    "zero-3": zero_3,
    "model-parallel": model_parallel,
    "distributed": distributed,
    "megatron": megatron,
    "pipeline": pipeline,
    "accelerate": accelerate,
}


def is_needed(path: str) -> bool:
    """Whether a checkpoint without this file is not whole, and names alone can say so."""
    return not path.endswith(("config.json", "optimizer.pt", "data.pt", "index.json", "latest", ".txt"))


def to_json(value: object) -> bytes:
    return json.dumps(value).encode()


def write(folder: Path, files: Files) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder
