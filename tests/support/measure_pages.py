"""Run by an interpreter with vllm: the bytes of one page of cache, by vllm's own classes. No device, no network."""

from __future__ import annotations

import json
import sys
from typing import Any


def page_bytes(asked: dict[str, Any]) -> int:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec

    dtype = {1: torch.float8_e4m3fn, 2: torch.bfloat16, 4: torch.float32}[asked["element_bytes"]]
    size = {"block_size": asked["tokens"], "head_size": asked["head_dim"], "dtype": dtype}
    made = MLAAttentionSpec if asked["is_latent"] else FullAttentionSpec
    return int(made(num_kv_heads=asked["kv_heads"], **size).real_page_size_bytes)


if __name__ == "__main__":
    json.dump([page_bytes(one) for one in json.load(sys.stdin)], sys.stdout)
