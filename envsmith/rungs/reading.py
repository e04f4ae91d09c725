"""Whether a model reads what it is given: its logits follow the last token and the earlier ones, and no later one.

Finite numbers and repeatable answers are also had from a model whose logits never change. Every change is held against
the difference between two runs of the same tokens, which is 0 but for kernels that add in an order of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .answering import Answer

#: Share by which the logits of earlier tokens may change with a later one, by the type of the logits.
UNSEEN = {"float32": 1e-4}
UNSEEN_ELSE = 2e-2


def check_reading(engine: Any, text: str, answer: Answer) -> None:
    """Change one token of a text after the other and compare the next token's scores."""
    row = engine.tokens(text)
    scores = engine.next_scores(row)
    noise = change(scores, engine.next_scores(row))
    other = engine.next_scores([*row[:-1], another(row, len(row) - 1)])
    spread = max(scores.values()) - min(scores.values())
    moved = change(scores, other)
    answer.figures |= {"logits_spread_nats": spread, "logits_change_of_last_token_nats": moved}
    answer.check(
        "logits-constant",
        spread > 0 and moved > noise,
        "the logits differ between tokens and follow the last token",
        otherwise="the logits are the same for every token" if spread <= 0 else "the logits do not follow the input",
        expected=f"a spread above 0, and a change above {noise:g}",
        actual=f"a spread of {spread:g} and a change of {moved:g}",
        hint="look for weights that were not loaded, and for a kernel that writes nothing: run the rung `device`",
    )
    check_context(engine, row, scores, noise, answer)
    check_future(engine, row, answer)


def check_context(engine: Any, row: list[int], scores: dict[int, float], noise: float, answer: Answer) -> None:
    """The next token must depend on tokens before the last: one near the start, in the middle, and near the end."""
    places = sorted({max(1, len(row) // 4), len(row) // 2, len(row) - 2} & set(range(len(row) - 1)))
    changes = {}
    for place in places:
        changes[place] = change(scores, engine.next_scores([*row[:place], another(row, place), *row[place + 1 :]]))
    if not changes:
        return
    ignored = [place for place, moved in changes.items() if not moved > noise]
    answer.figures["logits_change_of_earlier_tokens_nats"] = list(changes.values())
    answer.check(
        "context-ignored",
        not ignored,
        f"the next token depends on the tokens at {', '.join(map(str, places))} of {len(row)}",
        otherwise="the next token does not depend on earlier tokens",
        subject=", ".join(f"token {place}" for place in ignored) or None,
        expected=f"a change above {noise:g}",
        actual=", ".join(f"{changes[place]:g}" for place in ignored) or None,
        hint="look at the attention kernel and its mask: run the rung `device`",
    )


def check_future(engine: Any, row: list[int], answer: Answer) -> None:
    """The logits of all tokens but the last must not depend on the last; only transformers shows them."""
    share = engine.future_change(row, [*row[:-1], another(row, len(row) - 1)])
    if share is None:
        return
    limit = UNSEEN.get(engine.dtype, UNSEEN_ELSE)
    answer.figures["logits_change_of_later_token_share"] = share
    answer.check(
        "future-seen",
        share <= limit,
        "no token's logits depend on a later token",
        otherwise="logits depend on a later token",
        expected=f"a change of {limit:g} of their spread at most",
        actual=f"{share:.3g}",
        hint="look for an attention without its causal mask",
    )


def another(row: Sequence[int], place: int) -> int:
    """A token of the same row that is not the one at a place; so it is in the vocabulary."""
    return next((token for token in row if token != row[place]), row[place] + 1)


def change(one: dict[int, float], other: dict[int, float]) -> float:
    """Largest difference of the tokens that both have; rows without a common token are infinitely apart."""
    return max((abs(value - other[token]) for token, value in one.items() if token in other), default=float("inf"))
