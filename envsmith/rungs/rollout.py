"""The engine that answers prompts in the training rung: a second copy of the model, kept apart from the actor.

An engine has `name`, `dtype`, `answer`, `load`, `expected`, `digests` and `close`; `vllm_engine.py` holds the other.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from .grpo import Sample, cut_at_end
from .weights import digest, digests


class TransformersEngine:
    """A copy of the model in eval mode; float32 on the CPU, bfloat16 on a GPU as real engines keep their weights."""

    name = "transformers"

    def __init__(self, actor: Any, device: str) -> None:
        import torch

        self.dtype = "float32" if device == "cpu" else "bfloat16"
        self.device = device
        self.model = copy.deepcopy(actor).to(getattr(torch, self.dtype)).eval().requires_grad_(False)
        self.ends = ends_of(actor)

    def answer(self, prompts: Sequence[list[int]], count: int, cap: int, seed: int) -> list[Sample]:
        """Draw `count` answers of at most `cap` tokens for each prompt, at temperature 1; a prompt makes a group."""
        import torch

        generator = torch.Generator(device=self.device).manual_seed(seed)
        drawn: dict[int, list[Sample]] = {}
        for length in sorted({len(prompt) for prompt in prompts}):  # equal lengths together: nothing to pad
            places = [place for place, prompt in enumerate(prompts) if len(prompt) == length]
            rows = [prompts[place] for place in places for _ in range(count)]
            with torch.inference_mode():
                tokens, logprobs = self._draw(torch.tensor(rows, device=self.device), cap, generator)
            for row, (line, values) in enumerate(zip(tokens, logprobs, strict=True)):
                place = places[row // count]
                kept, ended = cut_at_end(line, self.ends)
                sample = Sample(place, list(prompts[place]), kept, values[: len(kept)], ended)
                drawn.setdefault(place, []).append(sample)
        return [sample for place in range(len(prompts)) for sample in drawn[place]]

    def _draw(self, ids: Any, cap: int, generator: Any) -> tuple[list[list[int]], list[list[float]]]:
        import torch

        cache, given = None, ids
        ends = torch.tensor(sorted(self.ends), device=self.device)
        ended = torch.zeros(len(ids), dtype=torch.bool, device=self.device)
        tokens, logprobs = [], []
        for _ in range(cap):
            out = self.model(input_ids=given, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            logp = torch.log_softmax(out.logits[:, -1].float(), dim=-1)
            # Weights that hold a NaN must reach the loss, where they are named: no draw can be made from NaN.
            usable = logp.isfinite().all(dim=-1, keepdim=True)
            given = torch.multinomial(torch.where(usable, logp.exp(), 1.0), 1, generator=generator)
            tokens.append(given)
            logprobs.append(logp.gather(-1, given))
            ended |= torch.isin(given[:, 0], ends)
            if bool(ended.all()):
                break
        return torch.cat(tokens, dim=1).tolist(), torch.cat(logprobs, dim=1).tolist()

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over the actor's weights, in the engine's own type."""
        self.model.load_state_dict(state)

    def expected(self, state: Mapping[str, Any]) -> dict[str, str]:
        """What `digests` must say once it holds this state."""
        import torch

        kind = getattr(torch, self.dtype)
        return {name: digest(state[name].to(kind)) for name, _ in self.model.named_parameters()}

    def digests(self) -> dict[str, str]:
        """Digest of each of the engine's parameters."""
        return digests(dict(self.model.named_parameters()))

    def close(self) -> None:
        """Nothing outlives this process."""


def ends_of(model: Any) -> frozenset[int]:
    """The tokens that end an answer, from the generation config or the model's own."""
    found: set[int] = set()
    for config in (getattr(model, "generation_config", None), model.config):
        value = getattr(config, "eos_token_id", None)
        found |= set(value if isinstance(value, (list, tuple)) else [] if value is None else [value])
    return frozenset(int(token) for token in found)
