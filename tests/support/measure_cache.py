"""Run by an interpreter with torch and transformers: tiny random models, and the bytes that their caches really hold.

Reads a list of `{"type", "keys", "tokens", "sequences"}` from stdin, and writes for each what was measured, with the
configuration as transformers writes it. Nothing is downloaded.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def measure(job: dict[str, Any]) -> dict[str, Any]:
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = CONFIG_MAPPING[job["type"]](**job["keys"])
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    ids = torch.randint(0, 90, (job["sequences"], job["tokens"]))
    with torch.no_grad():
        kept = model(input_ids=ids, use_cache=True).past_key_values
    held = 0
    for layer in kept.layers:
        for part in (getattr(layer, "keys", None), getattr(layer, "values", None)):
            held += part.numel() * part.element_size() if part is not None and part.dim() == 4 else 0
    return {
        "bytes": held,
        "parameters": sum(one.numel() for one in model.parameters()),
        "config": json.loads(config.to_json_string()),
        "whole": json.loads(config.to_json_string(use_diff=False)),
    }


def main() -> None:
    answers = []
    for job in json.load(sys.stdin):
        try:
            answers.append(measure(job))
        except Exception as error:  # the test says which model could not be made
            answers.append({"error": f"{type(error).__name__}: {error}"[:300]})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
