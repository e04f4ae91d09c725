"""Sums and largest values of all ranks in other formats than float32, for the rung `collective`.

The numbers are whole and small enough for their format, so that every order of adding gives the same.
"""

from __future__ import annotations

from typing import Any

from .answering import Answer, Task

#: More than float32 and float64 hold to the last digit: an int64 that passes through either is seen.
LARGE = (1 << 56) + 1


def all_reduce_types(task: Task, answer: Answer, device: str, backend: str) -> None:
    """Int64 and bfloat16 sums, and the largest float32."""
    import torch
    from torch import distributed

    rank, world = task.rank, distributed.get_world_size()
    add, most = distributed.ReduceOp.SUM, distributed.ReduceOp.MAX
    ones = world // 2
    cases: list[tuple[str, Any, Any, list[int], list[int]]] = [
        ("int64 sum", torch.int64, add, [LARGE if rank == 0 else 0, rank + 1], [LARGE, world * (world + 1) // 2]),
        # Whole numbers up to 256 are exact in BF16.
        ("bfloat16 sum", torch.bfloat16, add, [int(rank < 256), int(rank % 2 == 1 and rank < 256)],
         [min(world, 256), min(ones, 128)]),
        ("float32 max", torch.float32, most, [rank, -rank], [world - 1, 0]),
    ]  # fmt: skip
    wrong = {}
    for name, kind, operation, mine, expected in cases:
        numbers = torch.tensor(mine, dtype=kind, device=device)
        try:
            distributed.all_reduce(numbers, op=operation)
        except RuntimeError as error:
            if backend != "gloo" or "scalar type" not in str(error):
                raise
            answer.say("reduction-unsupported", "note", f"this torch's gloo has no {name}", subject=name)
            continue
        if numbers.tolist() != expected:
            wrong[name] = f"{name}: {numbers.tolist()} and not {expected}"
    answer.check(
        "all-reduce-types",
        not wrong,
        f"rank {rank} has the right sums in int64 and bfloat16 and the right largest float32",
        otherwise=f"rank {rank} has a wrong reduction",
        subject=", ".join(wrong) or None,
        actual="; ".join(wrong.values()) or None,
        hint="set NCCL_DEBUG=INFO and read this rank's log; compare the libnccl of all ranks",
    )
