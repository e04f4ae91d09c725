"""The rung `generate`: a real generation by vLLM where the env has it and a GPU serves it, else by transformers.

It shows that the model is loaded from files, that its numbers are finite, that they follow every token before and none
behind, that its greedy answers can be repeated, also by a second copy loaded anew, and that answers end by themselves.
It says nothing about the model's worth.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from typing import Any

from .answering import Answer, Task, identities_of, main, pick_device
from .continuing import Engine, TransformersEngine, VllmEngine, model_folder
from .reading import check_reading
from .tiny import prompts

GREEDY_COUNT = 4
GREEDY_TOKENS = 32
#: The tiny model draws its end token with about 1/512 a step: of this many steps some end an answer (all but e^-6).
SAMPLED_COUNT = 32
SAMPLED_TOKENS = 96


def run(task: Task, answer: Answer) -> None:
    """Generate with one engine, then with another one loaded anew."""
    device = pick_device(answer)
    folder = model_folder(task)
    answer.identities["model"] = identities_of(folder)
    engine = open_engine(task, device)
    answer.figures["engine_name"] = engine.name
    texts = prompts(engine.tokenizer, SAMPLED_COUNT)
    first, tokens = texts[:GREEDY_COUNT], list[list[int]]()
    finite = engine.finite(first)
    answer.check("finite-logits", finite, "all logits are finite numbers", otherwise="logits are not finite",
                 hint="look for NaN or inf in the weights and for a format that is too narrow")  # fmt: skip
    if finite:
        check_reading(engine, first[0], answer)
        tokens = greedy_twice(engine, first, answer)
        draw(engine, texts, answer)
        check_round_trip(engine.tokenizer, [*texts, *decoded(engine.tokenizer, tokens)], answer)
    engine.close()
    if not finite:
        return
    again = open_engine(task, device)
    compare_tokens(answer, "same-after-reload", tokens, again.greedy(first, GREEDY_TOKENS), "a freshly loaded model")
    again.close()


def open_engine(task: Task, device: str) -> Engine:
    """The engine that the recipe forces, else vLLM where it can work, else transformers."""
    fitting = "vllm" if device != "cpu" and importlib.util.find_spec("vllm") else "transformers"
    if task.options.get("engine", fitting) == "vllm":
        return VllmEngine(model_folder(task), task.options, task.seed)
    return TransformersEngine(model_folder(task), device, task.seed)


def greedy_twice(engine: Engine, texts: Sequence[str], answer: Answer) -> list[list[int]]:
    """The greedy continuations; asked twice, they must be the same."""
    tokens = engine.greedy(texts, GREEDY_TOKENS)
    compare_tokens(answer, "same-twice", tokens, engine.greedy(texts, GREEDY_TOKENS), "the second time")
    return tokens


def compare_tokens(answer: Answer, what: str, first: Any, second: Any, whose: str) -> None:
    """State whether two greedy runs gave the same tokens."""
    differing = sum(one != other for one, other in zip(first, second, strict=True))
    answer.check(
        what,
        differing == 0,
        f"greedy answers are the same from {whose}",
        otherwise=f"{differing} of {len(first)} greedy answers differ from {whose}",
        expected=first[0][:8],
        actual=second[0][:8],
        hint="greedy answers that change point to a broken kernel or to weights that are not read from the files",
    )


def draw(engine: Engine, texts: Sequence[str], answer: Answer) -> None:
    """Draw a batch with the seed; time it and count how its answers end."""
    engine.sampled(texts[:1], 2)  # the first call prepares kernels
    started = time.perf_counter()
    rows = engine.sampled(texts, SAMPLED_TOKENS)
    taken_s = time.perf_counter() - started
    lengths = [len(row) for row in rows]
    ended = sum(bool(row) and row[-1] in engine.ends for row in rows)
    answer.figures |= {
        "sampled_answers_count": len(rows),
        "ended_by_themselves_count": ended,
        "at_the_cap_count": len(rows) - ended,
        "answer_lengths_tokens": lengths,
        "throughput_tokens_per_s": round(sum(lengths) / taken_s, 1),
    }
    if ended:
        answer.say("answers-end", "ok", f"{ended} of {len(rows)} answers ended by themselves")
        return
    answer.say(
        "all-at-cap",
        "warning",
        "no answer ended by itself: all were cut at the cap",
        expected="at least one end token",
        actual=f"{len(rows)} answers of {SAMPLED_TOKENS} tokens",
        hint="compare the end token of the tokenizer with the one of generation_config.json",
    )


def decoded(tokenizer: Any, rows: Sequence[Sequence[int]]) -> list[str]:
    """The texts of continuations."""
    return [tokenizer.decode(row, skip_special_tokens=False, clean_up_tokenization_spaces=False) for row in rows]


def check_round_trip(tokenizer: Any, texts: Sequence[str], answer: Answer) -> None:
    """Texts must survive encoding and decoding, but for spaces at their ends."""
    rows = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    pairs = zip(texts, decoded(tokenizer, rows), strict=True)
    broken = [(text, back) for text, back in pairs if text.strip() != back.strip()]
    answer.check(
        "text-round-trip",
        not broken,
        f"{len(texts)} texts survive encoding and decoding",
        otherwise=f"{len(broken)} of {len(texts)} texts do not survive encoding and decoding",
        expected=repr(broken[0][0][:60]) if broken else None,
        actual=repr(broken[0][1][:60]) if broken else None,
        hint="the tokenizer's files do not fit one another",
    )


if __name__ == "__main__":
    main(run)
