"""Steps DeepSpeed's CPUAdam with the state of another Adam, whose parameter groups have no `bias_correction`.

A process of its own, because the first use compiles the operator and may fail in the compiler. It writes what
happened to the file that its argument names, and leaves judging to who started it.
Source: facts/symptoms.md D39 (LLaMA-Factory issue 10286), DeepSpeed 0.18.4, read 2026-11-30.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

STEPS_BEFORE = 2


def probe() -> dict[str, Any]:
    """Continue a run of torch's AdamW, once with itself and once with CPUAdam, and compare."""
    import copy

    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    torch.manual_seed(0)
    weights, gradients = torch.randn(64, 33), [torch.randn(64, 33) for _ in range(STEPS_BEFORE + 1)]
    theirs = torch.nn.Parameter(weights.clone())
    other = torch.optim.AdamW([theirs], lr=1e-2, weight_decay=0.1)
    for gradient in gradients[:STEPS_BEFORE]:
        theirs.grad = gradient.clone()
        other.step()
    ours = torch.nn.Parameter(theirs.detach().clone())
    began = time.monotonic()
    adam = DeepSpeedCPUAdam([ours], lr=1e-2, weight_decay=0.1)
    found: dict[str, Any] = {"built_s": round(time.monotonic() - began, 2), "error": None}
    state = copy.deepcopy(other.state_dict())
    found["saved_groups_have_key"] = any("bias_correction" in group for group in state["param_groups"])
    try:
        # DeepSpeed counts steps as a number, torch as a tensor.
        for one in state["state"].values():
            one["step"] = int(one["step"])
        adam.load_state_dict(state)
        for parameter, optimizer in ((theirs, other), (ours, adam)):
            parameter.grad = gradients[-1].clone()
            optimizer.step()
    except KeyError as error:
        found["error"] = f"KeyError: {error}"
    found["apart"] = float((theirs - ours).abs().max().detach())
    found["moved"] = float((theirs - weights).abs().max().detach())
    found["module"] = sys.modules[DeepSpeedCPUAdam.__module__].__file__
    return found


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(probe()), encoding="utf-8")
