"""The rung `merge-serve`: shards written by ranks, merged by another process, compared bit by bit, served and asked.

Two ranks shard the tiny model with FSDP2 over gloo and write a checkpoint of torch.distributed.checkpoint; a process of
its own merges it into a folder that transformers reads. Every parameter must have the sha256 that it had before.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .answering import Answer, Task, identities_of, main, pick_device
from .continuing import TransformersEngine, model_folder
from .reading import check_reading
from .service import Service, chosen_port, own_command
from .surroundings import free_port, start_module, tail, wait_all
from .tiny import prompts

MODULE = "merge_serve"
#: Ranks where the recipe names none, or one.
RANKS = 2
TOKENS = 24
PROMPTS = 2


def run(task: Task, answer: Answer) -> None:
    """Write, merge, compare, serve, ask."""
    device = pick_device(answer)
    folder, shards, merged = model_folder(task), task.folder / "shards", task.folder / "merged"
    if not write_all(task, answer, shards) or not merge_apart(task, answer, shards):
        return
    answer.identities |= {"model": identities_of(folder), "shards": identities_of(shards)}
    answer.identities["merged"] = identities_of(merged)
    if compare(digests(folder), digests(merged), answer):
        serve(task, answer, folder, merged, device)


def write_all(task: Task, answer: Answer, shards: Path) -> bool:
    """Let every rank write its shard, in processes of their own."""
    ranks = max(task.ranks, RANKS)
    port = str(free_port())
    logs = [task.folder / f"shards.{rank}.log" for rank in range(ranks)]
    common = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        start_module(
            MODULE,
            [sys.argv[1], "--write"],
            log,
            **common,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            CUDA_VISIBLE_DEVICES="",
        )
        for rank, log in enumerate(logs)
    ]
    codes = wait_all(processes, task.timeout_s * 0.4)
    answer.figures["ranks_count"] = ranks
    for rank, code in enumerate(codes):
        if code:
            answer.say("rank-failed", "failed", f"rank {rank} ended with exit code {code} while it wrote its shard",
                       subject=f"rank {rank}", expected="exit code 0", actual=tail(logs[rank]))  # fmt: skip
    files = sorted(shards.glob("*.distcp"))
    answer.figures["shard_files_count"] = len(files)
    answer.figures["shard_sizes_bytes"] = [file.stat().st_size for file in files]
    return not any(codes)


def write(task: Task) -> None:
    """What one rank does: shard the model with all others and write its part."""
    import torch
    import transformers
    from torch import distributed
    from torch.distributed import checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder(task))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    with torch.no_grad():
        checkpoint.save(model.state_dict(), checkpoint_id=str(task.folder / "shards"))
    distributed.destroy_process_group()


def merge_apart(task: Task, answer: Answer, shards: Path) -> bool:
    """Merge in a process of its own, which has no ranks around it."""
    missing = missing_shards(shards)
    for name in missing:
        answer.say("shard-missing", "failed", f"the checkpoint's list names `{name}`, which is not there", subject=name,
                   expected=f"{name} in {shards.name}/", actual="absent",
                   hint="copy the shards of all ranks before merging")  # fmt: skip
    if missing:
        return False
    log = task.folder / "merge.log"
    (code,) = wait_all([start_module(MODULE, [sys.argv[1], "--merge"], log)], task.timeout_s * 0.4)
    return answer.check("merge", code == 0, "the shards were merged", otherwise=f"merging ended with exit code {code}",
                        expected="exit code 0", actual=None if code == 0 else tail(log))  # fmt: skip


def missing_shards(shards: Path) -> list[str]:
    """Files that the checkpoint's list names and that are not there; without a list it is the list."""
    from torch.distributed.checkpoint import FileSystemReader

    if not (shards / ".metadata").is_file():
        return [".metadata"]
    stored = FileSystemReader(shards).read_metadata().storage_data or {}
    names = {str(part.relative_path) for part in stored.values()}
    return sorted(name for name in names if not (shards / name).is_file())


def merge(shards: Path, model: Path, merged: Path) -> None:
    """Read all shards into one model of `model`'s configuration and save it with its tokenizer.

    Raises: FileNotFoundError naming every shard that is missing.
    """
    import torch
    import transformers
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    missing = missing_shards(shards)
    if missing:
        raise FileNotFoundError(f"shard-missing: {', '.join(missing)}")
    whole = merged.with_suffix(".pt")
    dcp_to_torch_save(str(shards), str(whole))
    # Nothing but tensors is unpickled.
    weights: dict[str, Any] = torch.load(whole, weights_only=True)
    whole.unlink()
    result = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(model))
    result.load_state_dict(weights, strict=True)
    result.save_pretrained(merged)
    transformers.AutoTokenizer.from_pretrained(model).save_pretrained(merged)


def digests(folder: Path) -> dict[str, str]:
    """Type, shape and sha256 of the bytes of every parameter in a model's folder."""
    import torch
    from safetensors import safe_open

    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  it is no mapping
                tensor = tensors.get_tensor(name).contiguous()
                digest = hashlib.sha256(tensor.reshape(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
                found[name] = f"{tensor.dtype} {list(tensor.shape)} {digest}"
    return found


def differing(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Parameters that are not the same in both, or are in one only."""
    return sorted(name for name in {**before, **after} if before.get(name) != after.get(name))


def compare(before: Mapping[str, str], after: Mapping[str, str], answer: Answer) -> bool:
    """State whether every parameter came back bit by bit."""
    changed = differing(before, after)
    answer.figures["parameters_count"] = len(before)
    return answer.check(
        "merged-parameters",
        bool(before) and not changed,
        f"all {len(before)} parameters have the sha256 that they had before",
        otherwise=f"{len(changed)} of {len(before)} parameters are not what they were",
        subject=", ".join(changed[:3]) or None,
        expected=before.get(changed[0], "absent") if changed else None,
        actual=after.get(changed[0], "absent") if changed else None,
        hint="compare the shards with those that the ranks wrote",
    )


def serve(task: Task, answer: Answer, folder: Path, merged: Path, device: str) -> None:
    """Serve the merged model and compare its greedy completions with those of the model before."""
    engine = TransformersEngine(folder, device, task.seed)
    texts = prompts(engine.tokenizer, PROMPTS)
    wanted = [engine.greedy([text], TOKENS)[0] for text in texts]
    check_reading(engine, texts[0], answer)
    engine.close()
    port = chosen_port(task, answer)
    if port is None:
        return
    service = Service(task, answer, own_command(sys.executable, merged, port, device, "--name", "merged"), port)
    try:
        if not service.wait_healthy():
            return
        for text, tokens in zip(texts, wanted, strict=True):
            asked = {"model": "merged", "prompt": text, "max_tokens": TOKENS, "temperature": 0}
            found = service.post("/v1/completions", asked)
            if found is None:
                return
            got = found["choices"][0]["token_ids"]
            answer.check("served-completion", got == tokens, "the merged model completes as the model before did",
                         otherwise="the merged model completes otherwise than the model before",
                         expected=tokens[:8], actual=got[:8])  # fmt: skip
    finally:
        service.stop()


def play(argv: list[str]) -> None:
    """The part that the command line asks for: a rank, the merging, or the rung itself."""
    if "--write" in argv:
        write(Task.read(argv))
    elif "--merge" in argv:
        task = Task.read(argv)
        merge(task.folder / "shards", model_folder(task), task.folder / "merged")
    else:
        os.environ.pop("RANK", None)
        main(run)


if __name__ == "__main__":
    play(sys.argv)
