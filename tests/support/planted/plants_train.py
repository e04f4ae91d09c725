"""Runs the rung `train-step` in one process with a fault in each case; a copy lies beside the payloads."""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from . import rollout, train_step
from .answering import Answer, Task
from .trainranks import Ranks


def not_a_number_in(name: str) -> Any:
    """Spoil one weight of the model's folder."""
    from safetensors.torch import load_file, save_file

    def spoil(task: Task) -> Any:
        path = Path(task.options["model"]) / "model.safetensors"
        state = load_file(path)
        state[name].view(-1)[7] = float("nan")
        save_file(state, path, metadata={"format": "pt"})
        return patch.dict(os.environ)

    return spoil


def actor_with(change: Any) -> Any:
    """Change the actor after it was loaded."""
    load = train_step.load_actor

    def changed(folder: Path, device: str) -> Any:
        actor = load(folder, device)
        change(actor)
        return actor

    return lambda _task: patch.object(train_step, "load_actor", changed)


def spoil_gradient(actor: Any) -> None:
    actor.model.norm.weight.register_hook(lambda grad: grad * float("inf"))


def detached(actor: Any) -> None:
    """Cut the graph behind the last layer: its weights have no part in the loss."""
    actor.lm_head.weight.register_hook(lambda grad: grad * 0)
    actor.model.register_forward_hook(lambda _m, _i, out: setattr(out, "last_hidden_state", out[0].detach()) or out)


def decaying(parameters: list[Any], _task: Task) -> Any:
    import torch

    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)


def other_optimizer(kind: str) -> Any:
    """An optimizer that is not what it is taken for."""

    def make(parameters: list[Any], _task: Task) -> Any:
        import torch

        if kind == "one-tensor":
            return torch.optim.AdamW(parameters[:1], lr=1e-3, weight_decay=0.0)
        if kind == "ascent":
            return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.0, maximize=True)
        optimizer = torch.optim.SGD(parameters, lr=1e-3)

        def noise(*_: Any) -> None:
            for parameter in parameters:
                parameter.grad = torch.randn_like(parameter).sign()

        optimizer.register_step_pre_hook(noise)
        return optimizer

    return lambda _task: patch.object(train_step, "make_optimizer", make)


def old_answers(self: Any, *args: Any) -> Any:
    """Answer with the weights of the start whatever was loaded, as a cache of the old weights would."""
    now = self.model
    self.first = self.__dict__.get("first") or copy.deepcopy(now)
    self.model = self.first
    try:
        return ANSWER(self, *args)
    finally:
        self.model = now


ANSWER = rollout.TransformersEngine.answer


def off_by_one(self: Any, state: Any) -> None:
    """Load the state but keep one tensor."""
    self.model.load_state_dict({**state, "lm_head.weight": self.model.lm_head.weight + 0.5})


CASES: dict[str, Any] = {
    "frozen": actor_with(lambda actor: actor.requires_grad_(False)),
    "nan-weight": not_a_number_in("model.layers.1.mlp.up_proj.weight"),
    "nan-gradient": actor_with(spoil_gradient),
    "no-gradient": actor_with(detached),
    "decay": lambda _task: patch.object(train_step, "make_optimizer", decaying),
    "one-tensor": other_optimizer("one-tensor"),
    "ascent": other_optimizer("ascent"),
    "noise": other_optimizer("noise"),
    "no-load": lambda _task: patch.object(rollout.TransformersEngine, "load", lambda _self, _state: None),
    "other-tensor": lambda _task: patch.object(rollout.TransformersEngine, "load", off_by_one),
    "old-answers": lambda _task: patch.object(rollout.TransformersEngine, "answer", old_answers),
    "own-gradients": lambda _task: patch.object(Ranks, "average_gradients", lambda _self, _parameters: None),
}


def run(path: str) -> None:
    task, answer = Task.read(["", path]), Answer()
    plant = CASES.get(Path(path).stem, lambda _task: patch.dict(os.environ))
    with plant(task):
        train_step.train_step(task, answer)
    answer.write(task)


if __name__ == "__main__":
    import transformers  # noqa: F401  # before the fork, so that one import serves both ranks

    ranked = json.loads(sys.argv[1])
    if os.fork() == 0:
        os.environ.update(ranked, RANK="1", LOCAL_RANK="1")
        run(sys.argv[2])
        os._exit(0)
    with patch.dict(os.environ, ranked, RANK="0", LOCAL_RANK="0"):
        run(sys.argv[2])
    if os.wait()[1]:
        sys.exit("the second rank failed")
    for argument in sys.argv[3:]:
        run(argument)
