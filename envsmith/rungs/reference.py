"""What the cases of the rung `device` must give: their formulas written out with numpy in float64.

No function of torch has a part in it, so an env whose torch computes something else, on every device alike, is seen.
Each function takes the weights of the output first, and returns the output and the gradient for every input.
"""

from __future__ import annotations

import math
from typing import Any

#: What torch adds to the variance unless told otherwise (torch.nn.functional.layer_norm, read 2026-11-30).
EPSILON = 1e-5


def array(tensor: Any) -> Any:
    """A tensor as float64, number by number: torch's own bridge needs a numpy of the version it was built for."""
    import numpy

    return numpy.array(tensor.detach().double().cpu().tolist(), dtype=numpy.float64)


def here() -> bool:
    """Whether numpy can be imported."""
    try:
        import numpy  # noqa: F401
    except ImportError:
        return False
    return True


def matmul(weights: Any, left: Any, right: Any) -> tuple[Any, list[Any]]:
    """A·B, with dA = G·Bᵀ and dB = Aᵀ·G."""
    return left @ right, [weights @ right.T, left.T @ weights]


def attention(weights: Any, query: Any, key: Any, value: Any) -> tuple[Any, list[Any]]:
    """softmax(Q·Kᵀ / sqrt(head size))·V."""
    scale = query.shape[-1] ** -0.5
    share = _softmax(query @ _turned(key) * scale)
    upstream = weights @ _turned(value)
    scores = share * (upstream - (upstream * share).sum(-1, keepdims=True)) * scale
    return share @ value, [scores @ key, _turned(scores) @ query, _turned(share) @ weights]


def layer_norm(weights: Any, x: Any, gain: Any, bias: Any) -> tuple[Any, list[Any]]:
    """(x - mean) / sqrt(variance + 1e-5)·gain + bias, row by row."""
    import numpy

    middle = x.mean(-1, keepdims=True)
    spread = numpy.sqrt(((x - middle) ** 2).mean(-1, keepdims=True) + EPSILON)
    unit = (x - middle) / spread
    inner = weights * gain
    change = (inner - inner.mean(-1, keepdims=True) - unit * (inner * unit).mean(-1, keepdims=True)) / spread
    return unit * gain + bias, [change, (weights * unit).sum(0), weights.sum(0)]


def gelu(weights: Any, x: Any) -> tuple[Any, list[Any]]:
    """x·Φ(x) with the normal distribution's Φ by the error function."""
    import numpy

    share = (1 + numpy.vectorize(math.erf)(x / math.sqrt(2))) / 2
    density = numpy.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return x * share, [weights * (share + x * density)]


def cross_entropy(weights: Any, logits: Any) -> tuple[Any, list[Any]]:
    """Mean over the rows of -log softmax at the row's own number."""
    import numpy

    share = _softmax(logits)
    rows = numpy.arange(len(logits))
    loss = -numpy.log(share[rows, rows]).mean()
    share[rows, rows] -= 1
    return loss, [weights * share / len(logits)]


def mlp_loss(weights: Any, x: Any, gain: Any, inner: Any, outer: Any) -> tuple[Any, list[Any]]:
    """Cross entropy of gelu(layer norm(x)·inner)·outer, by the functions above."""
    import numpy

    nothing = numpy.zeros(x.shape[-1])
    normal, _ = layer_norm(numpy.zeros_like(x), x, gain, nothing)
    middle = normal @ inner
    hidden, _ = gelu(numpy.zeros_like(middle), middle)
    loss, (logits,) = cross_entropy(weights, hidden @ outer)
    _, (before,) = gelu(logits @ outer.T, middle)
    _, (x_change, gain_change, _) = layer_norm(before @ inner.T, x, gain, nothing)
    return loss, [x_change, gain_change, normal.T @ before, hidden.T @ logits]


def relative_error(got: Any, wanted: Any) -> float:
    """|got - wanted| / |wanted| by Euclidean norm, NaN when anything in `got` is not finite."""
    import numpy

    if not numpy.isfinite(got).all():
        return float("nan")
    return float(numpy.sqrt(((got - wanted) ** 2).sum() / (wanted**2).sum()))


def _turned(x: Any) -> Any:
    return x.swapaxes(-1, -2)


def _softmax(scores: Any) -> Any:
    import numpy

    powers = numpy.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
