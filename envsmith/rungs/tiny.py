"""A model that a rung makes itself: random weights and a tokenizer trained on the spot, so nothing is downloaded.

It is a Qwen2 of 2 layers, hidden size 128, 4 heads of 32, 2 key-value heads: small, and of an architecture that
transformers, vLLM, VERL and LLaMA-Factory all know. Its tokenizer is byte-level BPE, so every text can be encoded.
"""

from __future__ import annotations

import fcntl
import json
import tempfile
from pathlib import Path
from typing import Any

from .answering import identities_of

#: The turns of a conversation in ChatML, with the generation prompt where it is asked for.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VOCABULARY = 512
#: Beside the model's folder: sha256 of each of its files as they were made.
MANIFEST = "model.sha256.json"
_TEXT = (
    "one and one is two", "two and three is five", "four and four is eight", "seven minus two is five",
    "nine minus three is six", "the answer is a number", "count from one to nine", "what is three and six",
    "system user assistant tool observation", "0 1 2 3 4 5 6 7 8 9 + - =", "yes no true false",
)  # fmt: skip


class ModelChangedError(Exception):
    """The tiny model that a rung finds is not the one that the first rung of the run made."""


def tiny_model(shared: Path, seed: int = 0) -> Path:
    """The folder of the model, made once for all rungs and ranks of a run; equal seeds give equal weights.

    Raises:
        ModelChangedError: the folder is not what was made.
    """
    folder = shared / "model"
    shared.mkdir(parents=True, exist_ok=True)
    with (shared / ".model.lock").open("w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)  # ranks that start together: one makes it, the others find it
        if not folder.exists():
            _make(folder, shared / MANIFEST, seed)
    _check(folder, shared / MANIFEST)
    return folder


def _make(folder: Path, manifest: Path, seed: int) -> None:
    """Save tokenizer and model under another name, write down their sha256, and rename."""
    staging = Path(tempfile.mkdtemp(prefix=".model-", dir=folder.parent))
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(staging)
    make_model(len(tokenizer), seed).save_pretrained(staging)
    written = manifest.with_suffix(".part")
    written.write_text(json.dumps(identities_of(staging), indent=1) + "\n", encoding="utf-8")
    written.replace(manifest)
    staging.rename(folder)


def _check(folder: Path, manifest: Path) -> None:
    """Compare every file with what was made, so that no rung proves something about another model."""
    made = json.loads(manifest.read_text(encoding="utf-8")) if manifest.is_file() else {}
    found = identities_of(folder)
    changed = sorted(name for name in {**made, **found} if made.get(name) != found.get(name))
    if changed:
        raise ModelChangedError(
            f"model-changed: the tiny model in `{folder}` is not the one that this run made: {', '.join(changed)}"
            if made
            else f"model-changed: `{manifest}` is missing, so nothing says what the model in `{folder}` was"
        )


def make_tokenizer() -> Any:
    """Train byte-level BPE on a dozen sentences and give it a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(_TEXT, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=END, pad_token=PAD, additional_special_tokens=[START], padding_side="left"
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_model(vocabulary: int, seed: int) -> Any:
    """Random float32 weights from one seed; the vocabulary is rounded up to a multiple of 64."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=-(-vocabulary // 64) * 64,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config).eval()


def prompts(tokenizer: Any, count: int) -> list[str]:
    """Questions as the chat template renders them."""
    questions = [f"what is {a} + {b}" for a in range(1, 9) for b in range(1, 9)]
    chosen = [questions[(7 * n) % len(questions)] for n in range(count)]
    return [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
        for text in chosen
    ]
