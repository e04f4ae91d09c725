"""The rung `encode`: which tokens of a conversation are trained on, by the tokenizer and its chat template alone.

Supervised must be what the assistant says and the token that ends it; system, human and tool turns are masked.
Labels are made by rendering the conversation turn by turn; where the template marks its own spans (`generation` blocks)
and where LLaMA-Factory is in the env, their labels are judged in the same way.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from .answering import Answer, Task, identities_of, main
from .continuing import end_tokens, model_folder

#: Label of a token that is not trained on, as torch's cross entropy skips it by default.
MASKED = -100
CONVERSATION = (
    {"role": "system", "content": "count from one to nine"},
    {"role": "user", "content": "what is 3 + 6"},
    {"role": "assistant", "content": "three and six: add 3 6"},
    {"role": "tool", "content": "tool says 9"},
    {"role": "assistant", "content": "the answer is 9"},
)
#: Templates that refuse a role get the conversation without it.
REFUSABLE = ((), ("tool",), ("system",), ("system", "tool"))
_GENERATION = re.compile(r"\{%-?\s*generation\b")
_EMPTY_THOUGHT = re.compile(r"^\s*<think>\s*</think>\s*")
CUTOFF_TOKENS = 2048


class Template:
    """A tokenizer with its chat template and the recipe's arguments for it."""

    def __init__(self, task: Task) -> None:
        import transformers

        self.folder = model_folder(task)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder)
        self.more: dict[str, Any] = dict(task.options.get("chat-template-arguments", {}))
        self.ends = end_tokens(None, self.tokenizer)

    def render(self, messages: Sequence[Mapping[str, str]], prompt: bool = False) -> str:
        """Messages as text, with the generation prompt where it is asked for."""
        return str(
            self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=prompt, **self.more
            )
        )

    def tokens(self, text: str) -> list[int]:
        """Tokens of rendered text."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def text(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special ones included."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def run(task: Task, answer: Answer) -> None:
    """Make labels by rendering, judge them, and judge those of others who make labels in this env."""
    answer.device = "cpu"
    template = Template(task)
    names = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    files = identities_of(template.folder)
    answer.identities["model"] = {name: files[name] for name in names if name in files}
    if not template.tokenizer.chat_template:
        answer.say("no-chat-template", "failed", "the tokenizer has no chat template",
                   hint="add chat_template.jinja to the model's folder, or train with a framework's own")  # fmt: skip
        return
    messages = accepted(template, answer)
    if messages is None:
        return
    ours = rendered_labels(template, messages, answer)
    if ours is not None:
        tokens, labels = ours
        judge(template, messages, tokens, labels, "rendering", answer)
        count(template, messages, tokens, labels, answer)
    if _GENERATION.search(str(template.tokenizer.chat_template)):
        judge(template, messages, *marked_labels(template, messages), "the template's generation blocks", answer)
    if importlib.util.find_spec("llamafactory"):
        tokens, labels = llamafactory_labels(task, template, messages)
        judge(template, messages, tokens, labels, "LLaMA-Factory", answer)
        if ours is not None:
            compare(ours, (tokens, labels), task, answer)


def accepted(template: Template, answer: Answer) -> list[dict[str, str]] | None:
    """The conversation, without the roles that the template refuses."""
    refusal = ""
    for left_out in REFUSABLE:
        messages = [dict(message) for message in CONVERSATION if message["role"] not in left_out]
        if "tool" in left_out:  # without it the two answers would follow one another
            messages.insert(-1, {"role": "user", "content": "and what is 9"})
        try:
            template.render(messages)
        except Exception as error:  # a template may raise anything
            refusal = refusal or f"{type(error).__name__}: {error}"
            continue
        for role in left_out:
            answer.say("role-refused", "note", f"the template refuses the role `{role}`", subject=role, actual=refusal)
        return messages
    answer.say("template-refuses", "failed", "the template renders none of the conversations", actual=refusal)
    return None


def rendered_labels(
    template: Template, messages: Sequence[Mapping[str, str]], answer: Answer
) -> tuple[list[int], list[int]] | None:
    """Tokens and labels of the whole conversation; None where a prefix changes with what follows it."""
    whole = template.render(messages)
    tokens = template.tokens(whole)
    labels = [MASKED] * len(tokens)
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        asked, told = template.render(messages[:place], prompt=True), template.render(messages[: place + 1])
        before, after = template.tokens(asked), template.tokens(told)
        stable = told.startswith(asked) and whole.startswith(told)
        if not stable or after[: len(before)] != before or tokens[: len(after)] != after:
            answer.say(
                "template-not-prefix-stable",
                "failed",
                f"turn {place} is rendered otherwise once it is answered or followed",
                subject=f"turn {place}",
                expected=repr((told if told.startswith(asked) else asked)[-80:]),
                actual=repr((whole if told.startswith(asked) else told)[: len(told)][-80:]),
                hint="a model trained on such a rendering sees other prompts when it generates; "
                "give `chat-template-arguments` that keep history as it was",
            )
            return None
        labels[len(before) : len(after)] = tokens[len(before) : len(after)]
    answer.say("template-prefix-stable", "ok", "what is rendered stays as it is when turns follow")
    return tokens, labels


def marked_labels(template: Template, messages: Sequence[Mapping[str, str]]) -> tuple[list[int], list[int]]:
    """Labels as the template's own `generation` blocks mark them."""
    found = template.tokenizer.apply_chat_template(
        list(messages), tokenize=True, return_dict=True, return_assistant_tokens_mask=True, **template.more
    )
    tokens = list(found["input_ids"])
    pairs = zip(tokens, found["assistant_masks"], strict=True)
    return tokens, [token if marked else MASKED for token, marked in pairs]


def llamafactory_labels(
    task: Task, template: Template, messages: Sequence[Mapping[str, str]]
) -> tuple[list[int], list[int]]:
    """Labels as LLaMA-Factory's own code makes them for supervised training."""
    from importlib import import_module

    import transformers

    data = import_module("llamafactory.data.template")
    processor = import_module("llamafactory.data.processor")
    arguments = import_module("llamafactory.hparams").DataArguments(
        template=task.options.get("template", "chatml"), cutoff_len=CUTOFF_TOKENS
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(template.folder)  # it is changed by what follows
    chosen = data.get_template_and_fix_tokenizer(tokenizer, arguments)
    maker = processor.SupervisedDatasetProcessor(
        template=chosen, tokenizer=tokenizer, processor=None, data_args=arguments
    )
    system = next((message["content"] for message in messages if message["role"] == "system"), None)
    roles = {"tool": "observation"}
    turns = [
        {"role": roles.get(message["role"], message["role"]), "content": message["content"]}
        for message in messages
        if message["role"] != "system"
    ]
    tokens, labels = maker._encode_data_example(
        prompt=turns[:-1], response=turns[-1:], system=system, tools=None, images=[], videos=[], audios=[]
    )
    return list(tokens), list(labels)


def judge(
    template: Template,
    messages: Sequence[Mapping[str, str]],
    tokens: Sequence[int],
    labels: Sequence[int],
    whose: str,
    answer: Answer,
) -> None:
    """Each supervised span must be one answer of the assistant, word for word, with its end token and nothing else."""
    wanted = [message["content"] for message in messages if message["role"] == "assistant"]
    spans = [
        [tokens[place] for place in places]
        for supervised, group in groupby(range(len(tokens)), key=lambda place: labels[place] != MASKED)
        if (places := list(group)) and supervised
    ]
    texts = [_EMPTY_THOUGHT.sub("", template.text(span)) for span in spans]
    shifted = any(label not in (MASKED, token) for token, label in zip(tokens, labels, strict=True))
    right = len(texts) == len(wanted) and not shifted
    rests = [text.lstrip()[len(want) :] for text, want in zip(texts, wanted, strict=False)]
    right = right and all(text.lstrip().startswith(want) for text, want in zip(texts, wanted, strict=False))
    ending = [template.text([end]) for end in template.ends]
    right = right and all(rest.strip() in ("", *ending) for rest in rests)
    answer.check(
        "supervised-answers",
        right,
        f"supervised by {whose} are the assistant's words and nothing else",
        otherwise=f"supervised by {whose} is other text than the assistant's words",
        subject=whose,
        expected=wanted,
        actual=texts,
        hint="look at the template's turns: masks are cut where the generation prompt ends and where the answer ends",
    )
    without = [n for n, span in enumerate(spans) if not template.ends & set(span)]
    answer.check(
        "supervised-end",
        not without and bool(spans),
        f"supervised by {whose} is the end token of every answer",
        otherwise=f"supervised by {whose} are answers without their end token: the model would not learn to stop",
        subject=whose,
        expected=" or ".join(ending),
        actual=[texts[n] for n in without] or None,
    )


def count(
    template: Template,
    messages: Sequence[Mapping[str, str]],
    tokens: Sequence[int],
    labels: Sequence[int],
    answer: Answer,
) -> None:
    """Figures: tokens in all, supervised ones, and the share of each role."""
    answer.figures["conversation_tokens"] = len(tokens)
    answer.figures["supervised_tokens"] = sum(label != MASKED for label in labels)
    sizes: dict[str, int] = {}
    before = 0
    for place, message in enumerate(messages):
        try:
            size = len(template.tokens(template.render(messages[: place + 1])))
        except Exception:  # some templates refuse a beginning without a question: no shares then
            return
        sizes[message["role"]] = sizes.get(message["role"], 0) + size - before
        before = size
    for role, size in sizes.items():
        answer.figures[f"{role}_share_percent"] = round(100 * size / len(tokens), 1)


def compare(ours: tuple[list[int], list[int]], theirs: tuple[list[int], list[int]], task: Task, answer: Answer) -> None:
    """LLaMA-Factory's tokens and labels beside those of the tokenizer's template."""
    answer.figures["llamafactory_tokens"] = len(theirs[0])
    answer.figures["llamafactory_supervised_tokens"] = sum(label != MASKED for label in theirs[1])
    name = task.options.get("template", "chatml")
    if ours == theirs:
        answer.say("same-as-llamafactory", "ok", f"LLaMA-Factory's template `{name}` gives the same tokens and labels")
        return
    answer.say(
        "other-than-llamafactory",
        "warning",
        f"LLaMA-Factory's template `{name}` gives other tokens or labels than the tokenizer's own template",
        subject=name,
        expected=f"{len(ours[0])} tokens, {sum(label != MASKED for label in ours[1])} supervised",
        actual=f"{len(theirs[0])} tokens, {sum(label != MASKED for label in theirs[1])} supervised",
        hint="serve the model with the template that it is trained with",
    )


if __name__ == "__main__":
    main(run)
