"""vLLM as the training rung's engine: a process of its own, so that neither group of ranks nor allocator is shared.

The actor speaks to it in lines of JSON over two pipes (vLLM writes its log to stdout); weights travel as a
safetensors file. vLLM keeps its model in that process (VLLM_ENABLE_V1_MULTIPROCESSING=0), where `apply_model` reaches
it and `load_weights` takes the actor's names, as VERL does it (read in vLLM 0.18.0, 2026-11-30).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .grpo import Sample, cut_at_end
from .weights import digest

#: vLLM's one weight for several of the checkpoint's: its name, and the names in their order along dimension 0.
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class VllmEngine:
    """The actor's side."""

    name = "vllm"
    dtype = "bfloat16"

    def __init__(self, model: Path, folder: Path, device: str, ends: frozenset[int], length: int) -> None:
        """`length` is the longest prompt and answer together, in tokens."""
        self.ends = ends
        folder.mkdir(parents=True, exist_ok=True)
        self.weights = folder / "weights.safetensors"
        mine, theirs = os.pipe(), os.pipe()
        command = [sys.executable, "-B", "-X", "faulthandler", "-m", __name__, str(mine[0]), str(theirs[1])]
        fds = (mine[0], theirs[1])
        self.process = subprocess.Popen(command, env=_environment(device), pass_fds=fds, stdin=subprocess.DEVNULL)
        for end in fds:
            os.close(end)
        self.asking = os.fdopen(mine[1], "w", encoding="utf-8")
        self.hearing = os.fdopen(theirs[0], encoding="utf-8")
        self._ask("start", model=str(model), length=length)

    def answer(self, prompts: Sequence[list[int]], count: int, cap: int, seed: int) -> list[Sample]:
        """Draw `count` answers of at most `cap` tokens for each prompt, at temperature 1; a prompt makes a group."""
        ends = sorted(self.ends)
        drawn = self._ask("answer", prompts=list(prompts), count=count, cap=cap, seed=seed, ends=ends)
        samples = []
        for place, tokens, logprobs in drawn:
            kept, ended = cut_at_end(tokens, self.ends)
            samples.append(Sample(place, list(prompts[place]), kept, logprobs[: len(kept)], ended))
        return samples

    def load(self, state: Mapping[str, Any]) -> None:
        """Hand the actor's weights over in the engine's type."""
        import torch
        from safetensors.torch import save_file

        kept = {name: value.detach().to("cpu", torch.bfloat16).contiguous().clone() for name, value in state.items()}
        save_file(kept, self.weights)
        self._ask("load", weights=str(self.weights))
        self.weights.unlink()

    def expected(self, state: Mapping[str, Any]) -> dict[str, str]:
        """What `digests` must say once it holds this state, with the weights joined as vLLM joins them."""
        import torch

        rows = {name: count for name, (_, count) in self._ask("digests").items()}
        kept = {name: value.detach().to("cpu", torch.bfloat16) for name, value in state.items()}
        return {
            name: digest(_padded(value, rows[name])) for name, value in joined(kept, torch.cat).items() if name in rows
        }

    def digests(self) -> dict[str, str]:
        """Digest of each of the engine's parameters, under vLLM's names."""
        return {name: value for name, (value, _) in self._ask("digests").items()}

    def close(self) -> None:
        """End the process; it has a minute to leave by itself."""
        self.asking.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def _ask(self, what: str, **words: Any) -> Any:
        self.asking.write(json.dumps({"what": what, **words}) + "\n")
        self.asking.flush()
        line = self.hearing.readline()
        if not line:
            raise RuntimeError(f"the vLLM engine ended while it was asked to `{what}`: exit code {self.process.wait()}")
        return json.loads(line)


def joined(state: Mapping[str, Any], cat: Any) -> dict[str, Any]:
    """The checkpoint's tensors under vLLM's names, q, k and v (and gate and up) as one."""
    parts: dict[str, list[Any]] = {}
    order = {part: (one, place) for one, many in FUSED.items() for place, part in enumerate(many)}
    for name, value in state.items():
        part = next((piece for piece in name.split(".") if piece in order), None)
        if part is None:
            parts[name] = [value]
        else:
            one, place = order[part]
            parts.setdefault(name.replace(part, one), [None] * len(FUSED[one]))[place] = value
    return {name: pieces[0] if len(pieces) == 1 else cat(pieces) for name, pieces in parts.items()}


def _padded(value: Any, rows: int) -> Any:
    """Add the rows of zeros with which vLLM fills a vocabulary up."""
    if value.shape[0] >= rows:
        return value
    import torch

    return torch.cat([value, value.new_zeros((rows - value.shape[0], *value.shape[1:]))])


def _environment(device: str) -> dict[str, str]:
    """The same, but no rank of ours, and with this rank's GPU alone."""
    environ = {name: value for name, value in os.environ.items() if name not in _TORCHRUN}
    index = int(device.partition(":")[2] or 0)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[index] if visible else str(index)
    return environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}


class Served:
    """The engine's side: one method for each question."""

    def start(self, model: str, length: int) -> None:
        """Load vLLM: eager and without prefix cache, which would answer with the old weights after a load."""
        from vllm import LLM

        self.llm = LLM(
            model=model,
            dtype="bfloat16",
            enforce_eager=True,
            enable_prefix_caching=False,
            max_model_len=length,
            gpu_memory_utilization=0.2,
            generation_config="vllm",
        )

    def answer(self, prompts: list[list[int]], count: int, cap: int, seed: int, ends: list[int]) -> list[Any]:
        """Place of the prompt, tokens and log-probabilities of every answer."""
        from vllm import SamplingParams

        asked = SamplingParams(
            n=count, temperature=1.0, max_tokens=cap, seed=seed, logprobs=0, stop_token_ids=ends, detokenize=False
        )
        outputs = self.llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], asked, use_tqdm=False)
        return [
            (place, list(one.token_ids), [step[t].logprob for t, step in zip(one.token_ids, one.logprobs, strict=True)])
            for place, output in enumerate(outputs)
            for one in output.outputs
        ]

    def load(self, weights: str) -> None:
        """Take the actor's weights over."""
        from safetensors.torch import load_file

        state = load_file(weights)
        self.llm.apply_model(lambda model: model.load_weights(list(state.items())) and None)

    def digests(self) -> dict[str, Any]:
        """Digest and number of rows of each parameter."""
        (found,) = self.llm.apply_model(
            lambda model: {name: (digest(value), value.shape[0]) for name, value in model.named_parameters()}
        )
        return dict(found)


def serve(reading: int, writing: int) -> None:
    """Answer until the actor closes its end."""
    served = Served()
    with os.fdopen(reading, encoding="utf-8") as questions, os.fdopen(writing, "w", encoding="utf-8") as answers:
        for line in questions:
            words = json.loads(line)
            answers.write(json.dumps(getattr(served, words.pop("what"))(**words)) + "\n")
            answers.flush()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
