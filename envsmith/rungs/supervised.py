"""A supervised training run that can be stopped and resumed to the bit: data, sampler, model, optimizer, scheduler."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import checkpoint
from .weights import digests

SAMPLES, LENGTH, BATCH = 10, 24, 4
LEARNING_RATE, WARMUP_STEPS, CLIP_NORM, DROPOUT = 1e-3, 2, 1.0, 0.1


def data_set(vocabulary: int) -> list[list[int]]:
    """Ten samples of fixed tokens; ten is no multiple of the batch, so a run crosses epochs inside a batch."""
    return [[3 + (31 * n + 17 * t + n * t % 13) % (vocabulary - 3) for t in range(LENGTH)] for n in range(SAMPLES)]


@dataclass
class Sampler:
    """Sample ids in an order shuffled anew each epoch; its position is all that a checkpoint needs."""

    size: int
    seed: int
    epoch: int = 0
    offset: int = 0

    def take(self, count: int) -> list[int]:
        """The next ids."""
        return [next(self._ids()) for _ in range(count)]

    def _ids(self) -> Iterator[int]:
        while True:
            order = list(range(self.size))
            random.Random(1_000_003 * self.seed + self.epoch).shuffle(order)
            chosen = order[self.offset]
            self.offset += 1
            if self.offset == self.size:
                self.epoch, self.offset = self.epoch + 1, 0
            yield chosen

    def position(self) -> dict[str, int]:
        """Where it stands."""
        return {"seed": self.seed, "epoch": self.epoch, "offset": self.offset}

    def resume(self, position: Mapping[str, int]) -> None:
        """Stand where another stood."""
        self.seed, self.epoch, self.offset = position["seed"], position["epoch"], position["offset"]


def rate(step: int, total: int) -> float:
    """Factor of the learning rate after `step` steps: linear warm-up, then a cosine to zero."""
    if step < WARMUP_STEPS:
        return (step + 1) / (WARMUP_STEPS + 1)
    return 0.5 * (1 + math.cos(math.pi * (step - WARMUP_STEPS) / max(total - WARMUP_STEPS + 1, 1)))


class Training:
    """One run in one process."""

    def __init__(self, model: Path, device: str, seed: int, total: int) -> None:
        """`total` is the number of steps that the scheduler is planned for, however many this process does."""
        import torch
        from transformers import AutoModelForCausalLM

        torch.manual_seed(seed)
        self.device, self.step = device, 0
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
        self.model = loaded.to(device).train()
        self.model.get_input_embeddings().register_forward_hook(_dropout)
        self.data = data_set(self.model.config.get_text_config().vocab_size)
        self.sampler = Sampler(len(self.data), seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: rate(step, total))
        self.losses: list[float] = []
        self.rates: list[float] = []
        self.ids: list[list[int]] = []

    def run(self, steps: int) -> None:
        """Do some steps; each is remembered with its loss, learning rate and sample ids."""
        import torch

        for _ in range(steps):
            ids = self.sampler.take(BATCH)
            batch = torch.tensor([self.data[one] for one in ids], device=self.device)
            self.rates.append(self.scheduler.get_last_lr()[0])
            loss = self.model(input_ids=batch, labels=batch, use_cache=False).loss
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
            self.optimizer.step()
            self.scheduler.step()
            self.step += 1
            self.losses.append(loss.item())
            self.ids.append(ids)

    def tensors(self) -> dict[str, dict[str, Any]]:
        """All tensors of the run's state by file and name."""
        import torch

        names, states = self._names(), self.optimizer.state_dict()["state"]
        optimizer = {f"{names[n]}.{key}": value for n, one in states.items() for key, value in one.items()}
        randoms = {"cpu": torch.get_rng_state()}
        if self.device != "cpu":
            randoms["cuda"] = torch.cuda.get_rng_state(self.device)
        weights = dict(self.model.named_parameters())
        return {checkpoint.MODEL: weights, checkpoint.OPTIMIZER: optimizer, checkpoint.RANDOM: randoms}

    def state(self) -> dict[str, Any]:
        """All else: what JSON can hold."""
        scheduler = self.scheduler.state_dict()
        groups = [{key: value for key, value in group.items() if key != "params"}
                  for group in self.optimizer.state_dict()["param_groups"]]  # fmt: skip
        return {"step": self.step, "scheduler": scheduler, "optimizer": groups, "data": self.sampler.position()}

    def snapshot(self) -> dict[str, Any]:
        """The state with a digest for each tensor, as it is compared."""
        return self.state() | {"digests": {name: digests(group) for name, group in self.tensors().items()}}

    def load(self, tensors: Mapping[str, Mapping[str, Any]], state: Mapping[str, Any]) -> None:
        """Continue where a checkpoint stopped.

        Raises:
            IncompleteError: the optimizer's file lacks a state, or the model's a weight.
        """
        import torch

        weights, names = dict(self.model.named_parameters()), self._names()
        saved = tensors[checkpoint.OPTIMIZER]
        lacking = [name for name in weights if name not in tensors[checkpoint.MODEL]]
        lacking += [
            f"{n}.{key}" for n in names for key in ("exp_avg", "exp_avg_sq", "step") if f"{n}.{key}" not in saved
        ]
        if lacking:
            more = f"{lacking[0]} and {len(lacking) - 1} more"
            raise checkpoint.IncompleteError([f"states that the run needs are in no file: {more}"])
        with torch.no_grad():
            for name, weight in weights.items():
                weight.copy_(tensors[checkpoint.MODEL][name])
        kept = self.optimizer.state_dict()
        groups = [{**now, **then} for now, then in zip(kept["param_groups"], state["optimizer"], strict=True)]
        states = {n: {key: saved[f"{name}.{key}"] for key in ("exp_avg", "exp_avg_sq", "step")}
                  for n, name in enumerate(names)}  # fmt: skip
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})
        self.scheduler.load_state_dict(dict(state["scheduler"]))
        self.sampler.resume(state["data"])
        self.step = state["step"]
        torch.set_rng_state(tensors[checkpoint.RANDOM]["cpu"])
        if self.device != "cpu":
            torch.cuda.set_rng_state(tensors[checkpoint.RANDOM]["cuda"], self.device)

    def _names(self) -> list[str]:
        return [name for name, _ in self.model.named_parameters()]


def _dropout(module: Any, _given: Any, output: Any) -> Any:
    """Dropout on the embeddings: it draws from the generator whose state a checkpoint must hold."""
    import torch

    return torch.nn.functional.dropout(output, DROPOUT, module.training)
