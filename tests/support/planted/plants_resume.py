"""Damages the checkpoint of a finished run in one way a case, and lets part c and the comparison see it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from . import checkpoint, resume, supervised
from .answering import Answer, Task, pick_device


def cut_short(folder: Path) -> None:
    path = folder / checkpoint.MODEL
    path.write_bytes(path.read_bytes()[:-1000])


def drop_optimizer(folder: Path) -> None:
    (folder / checkpoint.OPTIMIZER).unlink()


def tensors(name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Path], None]:
    """Rewrite one file of tensors and seal it anew, as a writer with that fault would."""

    def apply(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        save_file(change(load_file(folder / name)), folder / name)
        checkpoint.seal(folder)

    return apply


def state(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """The same for what is no tensor."""

    def apply(folder: Path) -> None:
        content = json.loads((folder / checkpoint.STATE).read_text())
        change(content)
        (folder / checkpoint.STATE).write_text(json.dumps(content))
        checkpoint.seal(folder)

    return apply


def state_of_seed(seed: int) -> Any:
    import torch

    return torch.Generator().manual_seed(seed).get_state()


CASES: dict[str, Callable[[Path], None]] = {
    "cut-short": cut_short,
    "no-optimizer": drop_optimizer,
    "empty-optimizer": tensors(checkpoint.OPTIMIZER, lambda _saved: {}),
    "zero-optimizer": tensors(checkpoint.OPTIMIZER, lambda saved: {name: one * 0 for name, one in saved.items()}),
    "other-weight": tensors(checkpoint.MODEL, lambda saved: {**saved, "lm_head.weight": saved["lm_head.weight"] * 2}),
    "other-random": tensors(checkpoint.RANDOM, lambda saved: {**saved, "cpu": state_of_seed(99)}),
    "shifted-data": state(lambda saved: saved["data"].update(offset=saved["data"]["offset"] + 1)),
    "reset-scheduler": state(lambda saved: saved["scheduler"].update(last_epoch=0, _step_count=1)),
    "reset-step": state(lambda saved: saved.update(step=0)),
    "forgetful": lambda _folder: None,
    "puts-back": lambda _folder: None,
}


def no_dropout_state(self: Any, *args: Any) -> None:
    """Load everything, then draw once: what a loader does that makes a data loader after the generators' states."""
    import torch

    LOAD(self, *args)
    torch.rand(1)


def keeping(training: Any, *args: Any, **kwargs: Any) -> None:
    """Prepare a run whose optimizer keeps its state and puts every weight back."""
    import torch

    INIT(training, *args, **kwargs)
    held = [weight.detach().clone() for weight in training.model.parameters()]

    def put_back(*_: Any) -> None:
        with torch.no_grad():
            for weight, value in zip(training.model.parameters(), held, strict=True):
                weight.copy_(value)

    training.optimizer.register_step_post_hook(put_back)


INIT = supervised.Training.__init__
LOAD = supervised.Training.load

if __name__ == "__main__":
    for argument in sys.argv[1:]:
        task, answer, name = Task.read(["", argument]), Answer(), Path(argument).stem
        CASES[name](task.folder / "checkpoint")
        with patch.object(supervised.Training, "load", no_dropout_state if name == "forgetful" else LOAD):
            if name == "puts-back":
                with patch.object(supervised.Training, "__init__", keeping):
                    code = max(resume.run_part(task, part) for part in "abc")
            else:
                code = resume.run_part(task, "c")
        pick_device(answer)
        resume.judge(task, answer, {"a": 0, "b": 0, "c": code})
        answer.write(task)
