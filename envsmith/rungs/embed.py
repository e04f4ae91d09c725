"""The rung `embed`: a real service in another process, asked for embeddings after /health.

A listening port proves nothing: what counts is that vectors come, with the configured dimension, of finite numbers,
equal for equal texts and different for different ones, from the model that was asked for.
"""

from __future__ import annotations

import http.client
import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from .answering import Answer, Task, identities_of, main, pick_device
from .continuing import model_folder
from .service import Service, chosen_port, filled, own_command

TEXTS = ("one and one is two", "nine minus three is six", "one and one is two")
#: Cosine from which two vectors are the same: BF16 and other batches move it by less than 1e-5.
SAME = 0.9999


def run(task: Task, answer: Answer) -> None:
    """Start, wait, ask, compare, end."""
    port = chosen_port(task, answer)
    if port is None:
        return
    dimension = task.options.get("dimension")
    command, wanted = plan(task, answer, port)
    service = Service(task, answer, command, port)
    try:
        if service.wait_healthy():
            ask(service, task, answer, int(dimension) if dimension else wanted)
    finally:
        service.stop()


def plan(task: Task, answer: Answer, port: int) -> tuple[list[str], int | None]:
    """The command of the service, and the dimension that its model has as far as it is known."""
    own = task.options.get("command")
    if own:
        answer.device = "as the service chooses"
        words = {"port": str(port), "python": sys.executable, "model": str(task.options.get("model", ""))}
        return filled(own, words), None
    device = pick_device(answer)
    folder = model_folder(task)
    answer.identities["model"] = identities_of(folder)
    hidden = json.loads((folder / "config.json").read_text()).get("hidden_size")
    more = ["--name", task.options.get("model-name", "tiny")]
    if task.options.get("dimension"):
        more += ["--dimension", str(task.options["dimension"])]
    return own_command(sys.executable, folder, port, device, *more), hidden


def ask(service: Service, task: Task, answer: Answer, dimension: int | None) -> None:
    """Ask for three texts at once and for one alone, and judge the vectors."""
    name = task.options.get("model-name") or first_model(service)
    if name is None:
        return
    path = task.options.get("endpoint", "/v1/embeddings")
    together = service.post(path, {"model": name, "input": list(TEXTS)})
    alone = service.post(path, {"model": name, "input": TEXTS[0]})
    if together is None or alone is None:
        return
    try:
        rows = sorted(together["data"], key=lambda row: row.get("index", 0))
        vectors = [[float(number) for number in row["embedding"]] for row in [*rows, *alone["data"]]]
        named = together["model"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        answer.say("service-wrong-form", "failed", "the answer is not in the form of OpenAI's embeddings", subject=path,
                   expected="model, data[].embedding", actual=f"{type(error).__name__}: {error}")  # fmt: skip
        return
    answer.check("service-model", named == name, f"`{name}` answered", otherwise="another model answered",
                 expected=name, actual=named)  # fmt: skip
    judge(vectors, dimension, answer)


def first_model(service: Service) -> str | None:
    """The name of the first model that the service offers; None where it is said that no answer came."""
    path = "/v1/models"
    try:
        _, content = service.get(path)
        return str(content["data"][0]["id"])
    except (OSError, http.client.HTTPException) as error:
        service.say_broken(f"GET {path}", error)
        return None
    except (KeyError, IndexError, TypeError):
        return "tiny"


def judge(vectors: Sequence[Sequence[float]], dimension: int | None, answer: Answer) -> None:
    """State count, dimension, finiteness, equality and difference."""
    sizes = sorted({len(vector) for vector in vectors})
    answer.figures["embedding_dimension_numbers"] = sizes[0] if len(sizes) == 1 else sizes
    wanted = len(TEXTS) + 1
    if not answer.check("service-vectors", len(vectors) == wanted, "every text has a vector", expected=wanted,
                        actual=len(vectors)):  # fmt: skip
        return
    fits = len(sizes) == 1 and sizes[0] > 0 and dimension in (None, sizes[0])
    if not answer.check(
        "service-dimension" if fits else "service-wrong-dimension",
        fits,
        f"the vectors have {sizes[0]} numbers",
        otherwise="the vectors do not have the configured dimension",
        expected=dimension,
        actual=", ".join(map(str, sizes)),
        hint="change `dimension` where the service is used, or the model",
    ):
        return
    finite = all(math.isfinite(number) for vector in vectors for number in vector)
    if not answer.check("finite-vectors", finite, "all numbers are finite", otherwise="some numbers are not finite"):
        return
    compare(vectors, answer)


def compare(vectors: Sequence[Any], answer: Answer) -> None:
    """Equal texts have equal vectors, alone or with others; different ones have different vectors."""
    same = min(cosine(vectors[0], vectors[2]), cosine(vectors[0], vectors[3]))
    other = cosine(vectors[0], vectors[1])
    answer.figures |= {"equal_texts_cosine": same, "different_texts_cosine": other}
    answer.check(
        "equal-texts",
        same >= SAME,
        "equal texts have equal vectors",
        otherwise="equal texts have different vectors",
        expected=f"cosine {SAME} or more",
        actual=same,
    )
    answer.check(
        "different-texts",
        other < SAME,
        "different texts have different vectors",
        otherwise="different texts have equal vectors",
        expected=f"cosine below {SAME}",
        actual=other,
    )


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Cosine of two vectors; 0 where one has no length."""
    length = math.hypot(*one) * math.hypot(*other)
    return sum(a * b for a, b in zip(one, other, strict=True)) / length if length else 0.0


if __name__ == "__main__":
    main(run)
