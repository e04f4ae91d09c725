"""The processes of one data-parallel step: joining, averaging gradients, asking all the same question."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ranks:
    """This process among those that torchrun's variables name; alone where there are none."""

    rank: int
    world: int
    backend: str | None
    """`nccl`, `gloo`, or None where no group was made."""
    device: str

    @classmethod
    def join(cls, device: str, timeout_s: float) -> Ranks:
        """Wait for the others: nccl where every rank has a GPU of its own, gloo otherwise."""
        if "MASTER_ADDR" not in os.environ or "RANK" not in os.environ:
            return cls(rank=0, world=1, backend=None, device=device)
        from datetime import timedelta

        import torch
        import torch.distributed as dist

        local = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
        own = device != "cpu" and torch.cuda.device_count() >= local
        backend = "nccl" if own else "gloo"
        more = {"device_id": torch.device(device)} if own else {}
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s), **more)
        return cls(rank=dist.get_rank(), world=dist.get_world_size(), backend=backend, device=device)

    def gather(self, value: Any) -> list[Any]:
        """What every rank gave, by rank."""
        if self.backend is None:
            return [value]
        import torch.distributed as dist

        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values

    def mean(self, value: float) -> float:
        """Mean over the ranks."""
        return float(sum(self.gather(value)) / self.world)

    def average_gradients(self, parameters: list[Any]) -> None:
        """Give every rank the mean of all ranks' gradients, in one all-reduce of float32."""
        if self.backend is None:
            return
        import torch
        import torch.distributed as dist

        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = torch.cat([grad.reshape(-1).float() for grad in grads])
        flat = flat if self.backend == "nccl" else flat.cpu()
        dist.all_reduce(flat)
        parts = flat.div_(self.world).to(self.device).split([grad.numel() for grad in grads])
        for parameter, grad, part in zip(parameters, grads, parts, strict=True):
            parameter.grad = part.reshape(grad.shape).to(grad.dtype)

    def close(self) -> None:
        """Leave the group, so that no rank is waited for after the end."""
        if self.backend is not None:
            import torch.distributed as dist

            dist.destroy_process_group()
