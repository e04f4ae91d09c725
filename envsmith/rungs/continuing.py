"""Load a causal language model and continue texts with it: one way for all rungs, so that answers can be compared."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .answering import Task
from .tiny import tiny_model


def model_folder(task: Task) -> Path:
    """The model that the recipe names for this rung, else the tiny one."""
    named = task.options.get("model")
    return Path(named) if named else tiny_model(task.shared, task.seed)


class TransformersEngine:
    """A model in this process."""

    name = "transformers"

    def __init__(self, folder: Path, device: str, seed: int) -> None:
        import transformers

        # The argument was renamed in transformers 4.56 (its release notes, read 2026-11-30).
        version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
        how = {"dtype" if version >= (4, 56) else "torch_dtype": "auto"}
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, padding_side="left")
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, **how).to(device).eval()
        self.ends = end_tokens(self.model.generation_config.eos_token_id, self.tokenizer)
        self.device = device
        self.seed = seed

    def greedy(self, texts: Sequence[str], count: int) -> list[list[int]]:
        """The likeliest continuation of each text, `count` tokens at most, the end token included."""
        return self._generate(texts, count, do_sample=False)

    def sampled(self, texts: Sequence[str], count: int) -> list[list[int]]:
        """A continuation of each text drawn at temperature 1 with the seed."""
        import torch

        torch.manual_seed(self.seed)
        return self._generate(texts, count, do_sample=True, temperature=1.0, top_k=0, top_p=1.0)

    def finite(self, texts: Sequence[str]) -> bool:
        """Whether every logit of every token of the texts is a finite number."""
        import torch

        batch = self._batch(texts)
        with torch.no_grad():
            logits = self.model(**batch).logits
        return bool(torch.isfinite(logits[batch["attention_mask"].bool()]).all())

    @property
    def dtype(self) -> str:
        """The type of the weights."""
        return str(self.model.dtype).removeprefix("torch.")

    def tokens(self, text: str) -> list[int]:
        """A text as tokens."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def next_scores(self, row: Sequence[int]) -> dict[int, float]:
        """The logit of every token that may come next."""
        return dict(enumerate(self._logits(row)[-1].tolist()))

    def future_change(self, row: Sequence[int], other: Sequence[int]) -> float | None:
        """How far the logits of all tokens but the last are apart in two rows, as a share of their spread."""
        one, two = self._logits(row)[:-1], self._logits(other)[:-1]
        spread = float((one - one.mean()).norm())
        return float((one - two).norm()) / spread if spread else 0.0

    def _logits(self, row: Sequence[int]) -> Any:
        import torch

        with torch.no_grad():
            return self.model(input_ids=torch.tensor([list(row)], device=self.device)).logits[0].float()

    def close(self) -> None:
        """Give the memory back."""
        import torch

        del self.model
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _batch(self, texts: Sequence[str]) -> Any:
        rows = self.tokenizer(list(texts), return_tensors="pt", padding=True, add_special_tokens=False)
        return {name: rows[name].to(self.device) for name in ("input_ids", "attention_mask")}

    def _generate(self, texts: Sequence[str], count: int, **how: Any) -> list[list[int]]:
        import torch

        batch = self._batch(texts)
        with torch.no_grad():
            rows = self.model.generate(**batch, max_new_tokens=count, pad_token_id=self.tokenizer.pad_token_id, **how)
        return [cut(row, self.ends) for row in rows[:, batch["input_ids"].shape[1] :].tolist()]


class VllmEngine:
    """A vLLM engine, whose core is a process of its own."""

    name = "vllm"

    def __init__(self, folder: Path, options: dict[str, Any], seed: int) -> None:
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        # A forked core could not use CUDA, which this process may have touched.
        os.environ.setdefault("VLLM_WORKER_MULTIPROCESSING_METHOD", "spawn")
        import vllm

        self.llm = vllm.LLM(
            model=str(folder),
            enforce_eager=True,
            gpu_memory_utilization=float(options.get("gpu-memory-utilization", 0.3)),
            max_model_len=int(options.get("max-model-len", 256)),
            dtype=options.get("dtype", "auto"),
            seed=seed,
            disable_log_stats=True,
        )
        self.tokenizer = self.llm.get_tokenizer()
        self.ends = end_tokens(None, self.tokenizer)
        self.seed = seed

    def greedy(self, texts: Sequence[str], count: int) -> list[list[int]]:
        """As TransformersEngine.greedy."""
        return self._generate(texts, count, temperature=0.0)

    def sampled(self, texts: Sequence[str], count: int) -> list[list[int]]:
        """As TransformersEngine.sampled."""
        return self._generate(texts, count, temperature=1.0, seed=self.seed)

    def finite(self, texts: Sequence[str]) -> bool:
        """Whether the log-probabilities of the five likeliest tokens are finite numbers."""
        import vllm

        how = vllm.SamplingParams(temperature=0.0, max_tokens=4, logprobs=5)
        rows = self.llm.generate(list(texts), how, use_tqdm=False)
        numbers = [one.logprob for row in rows for step in row.outputs[0].logprobs for one in step.values()]
        return bool(numbers) and all(number - number == 0 for number in numbers)

    def tokens(self, text: str) -> list[int]:
        """A text as tokens."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def next_scores(self, row: Sequence[int]) -> dict[int, float]:
        """Log-probabilities of the likeliest tokens that may come next."""
        import vllm

        how = vllm.SamplingParams(temperature=0.0, max_tokens=1, logprobs=5)
        (found,) = self.llm.generate([{"prompt_token_ids": list(row)}], how, use_tqdm=False)
        return {token: one.logprob for token, one in found.outputs[0].logprobs[0].items()}

    def future_change(self, _row: Sequence[int], _other: Sequence[int]) -> float | None:
        """None: vLLM computes the past once and keeps it."""
        return None

    def close(self) -> None:
        """End the core; left to the interpreter's end it may outlive its GPU context."""
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm
        gc.collect()

    def _generate(self, texts: Sequence[str], count: int, **how: Any) -> list[list[int]]:
        import vllm

        rows = self.llm.generate(list(texts), vllm.SamplingParams(max_tokens=count, **how), use_tqdm=False)
        return [cut(list(row.outputs[0].token_ids), self.ends) for row in rows]


Engine = TransformersEngine | VllmEngine


def end_tokens(configured: int | list[int] | None, tokenizer: Any) -> set[int]:
    """Tokens that end an answer."""
    found = set(configured if isinstance(configured, list) else [configured]) | {tokenizer.eos_token_id}
    return {token for token in found if token is not None}


def cut(row: list[int], ends: set[int]) -> list[int]:
    """A continuation up to its first end token."""
    for place, token in enumerate(row):
        if token in ends:
            return row[: place + 1]
    return row
