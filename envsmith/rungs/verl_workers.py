"""VERL's own workers on a CPU: Ray, a group of workers, an actor's update step, and a critic with its value head.

A process of its own, with `verl_platform.py` as VERL's platform. It writes a line for every stage that it reached, so
that the last one names what stopped it. Judging is left to who started it.
Source: VERL 1bf9d2d `verl/workers/engine_workers.py` and `tests/models/test_engine.py`, read 2026-11-30.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from .verl_parts import CALLS, RESOURCE

ROWS, PROMPT, ANSWER = 4, 8, 8


class Stages:
    """The stages reached so far, in a file that outlives a crash."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def reach(self, stage: str, **figures: Any) -> None:
        """Append one stage with what was measured there."""
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"stage": stage, **figures}, default=str) + "\n")


def run(model: str, stages: Stages) -> None:
    """Go through all stages; an exception ends the process, and its traceback is in the log."""
    import ray
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
    from verl.utils.device import get_device_name

    # As main_ppo.py does it: what is forwarded to the workers is the runtime environment that VERL makes.
    runtime = get_ppo_ray_runtime_env()
    stages.reach("platform", device=get_device_name(), forwarded=dict(runtime["env_vars"]))
    ray.init(num_cpus=4, resources={RESOURCE: 2}, include_dashboard=False, runtime_env=runtime)
    stages.reach("ray", address=ray.get_runtime_context().gcs_address)
    try:
        _actor(model, stages)
        _critic(model, stages)
        stages.reach("allocator", **ray.get(ray.remote(toggle).remote()))
    finally:
        ray.shutdown()
    stages.reach("end")


def toggle() -> dict[str, Any]:
    """Ask for expandable segments inside a Ray worker, as VERL's weight sync does."""
    from verl.utils.device import set_expandable_segments

    set_expandable_segments(True)
    calls = Path(os.environ[CALLS])
    found = calls.read_text(encoding="utf-8").split() if calls.exists() else []
    return {"calls": found, "veto": os.environ.get("VERL_DISABLE_EXPANDABLE_SEGMENTS"), "pid": os.getpid()}


def _group(model: str, kind: str) -> Any:
    """A worker group of one, in a placement group of VERL's own."""
    import ray
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine_workers import TrainingWorkerConfig

    # No attention is named here, so VERL takes what its patch says: the environment's, else sdpa.
    model_config = HFModelConfig(path=model, use_remove_padding=False, enable_gradient_checkpointing=False)
    engine = FSDPEngineConfig(
        forward_only=False, strategy="fsdp2", fsdp_size=1, use_dynamic_bsz=False, use_remove_padding=False,
        micro_batch_size_per_gpu=2, infer_micro_batch_size_per_gpu=2, use_torch_compile=False, dtype="float32",
        model_dtype="fp32",
    )  # fmt: skip
    config = TrainingWorkerConfig(
        model_type=kind, model_config=model_config, engine_config=engine,
        optimizer_config=FSDPOptimizerConfig(lr=1e-2), checkpoint_config=CheckpointConfig(),
    )  # fmt: skip
    pool = RayResourcePool(process_on_nodes=[1], max_colocate_count=1)
    return RayWorkerGroup(
        resource_pool=pool, ray_cls_with_init=RayClassWithInitArgs(cls=ray.remote(_worker()), config=config),
        device_name="cpu",
    ), model_config  # fmt: skip


def _worker() -> Any:
    """VERL's training worker, with a process group that a CPU can have.

    VERL asks for `cpu:gloo,cpu:gloo` here, which torch refuses; it leaves a group alone that is there already.
    """
    from verl.workers.engine_workers import TrainingWorker

    class CpuWorker(TrainingWorker):  # type: ignore[misc]
        def __init__(self, config: Any) -> None:
            import torch

            store = torch.distributed.HashStore()
            torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
            super().__init__(config=config)

    return CpuWorker


def _batch(vocabulary: int) -> Any:
    import torch
    from verl import DataProto
    from verl.utils.model import compute_position_id_with_mask

    torch.manual_seed(0)
    ids = torch.randint(3, vocabulary, (ROWS, PROMPT + ANSWER))
    mask = torch.ones_like(ids)
    values = {
        "input_ids": ids,
        "prompts": ids[:, :PROMPT],
        "attention_mask": mask,
        "position_ids": compute_position_id_with_mask(mask),
        "responses": ids[:, PROMPT:],
        "response_mask": mask[:, PROMPT:],
    }
    about = {"temperature": 1.0, "global_token_num": mask.sum(-1).tolist(), "compute_loss": False}
    return DataProto.from_single_dict(values, meta_info=about)


def _tensors(data: Any) -> Any:
    """The form without padding, which VERL makes with flash-attn's helper; here every sequence is full anyway."""
    import torch
    from verl.utils import tensordict_utils as tu

    found = data.to_tensordict()
    for name in ("input_ids", "position_ids"):
        count, length = found[name].shape
        offsets = torch.arange(0, count * length + 1, length)
        found[name] = torch.nested.nested_tensor_from_jagged(found[name].flatten(), offsets=offsets)
    found["loss_mask"] = found["response_mask"]
    tu.assign_non_tensor_data(found, "max_seq_len", PROMPT + ANSWER)
    tu.assign_non_tensor_data(found, "max_response_len", ANSWER)
    tu.assign_non_tensor(found, global_batch_size=found.shape[0])
    return found


def _actor(model: str, stages: Stages) -> None:
    """Rewards of a group of four, half of them right, become advantages; one step; the log-probabilities must move."""
    import torch
    from verl import DataProto
    from verl.utils import tensordict_utils as tu
    from verl.workers.config import ActorConfig
    from verl.workers.utils.losses import ppo_loss
    from verl.workers.utils.padding import no_padding_2_padding

    group, config = _group(model, "language_model")
    stages.reach("actor-group")
    group.reset()
    stages.reach("actor-model", attention=config.hf_config._attn_implementation)
    data = _batch(config.hf_config.vocab_size)

    def logprobs() -> Any:
        tensors = _tensors(data.select(deepcopy=True))
        output = group.infer_batch(tensors).get()
        return no_padding_2_padding(tu.get(output, "log_probs").cpu(), tensors)

    before = logprobs()
    stages.reach("actor-logprobs", mean=float(before.mean()))
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None].expand(ROWS, ANSWER).contiguous()
    more = {"old_log_probs": before, "advantages": advantages}
    update = data.select(deepcopy=True).union(DataProto.from_single_dict(more))
    update.meta_info["compute_loss"] = True
    group.set_loss_fn(
        partial(ppo_loss, config=ActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=2))
    )
    metrics = tu.get(group.train_batch(_tensors(update)).get(), "metrics")
    moved = float((logprobs() - before).abs().max())
    stages.reach("actor-step", loss=float(metrics["loss"]), grad_norm=float(metrics["grad_norm"]), logprobs_moved=moved)


def _critic(model: str, stages: Stages) -> None:
    """Build the value head through `load_valuehead_model`, where the attention was a literal, and use it once."""
    from verl.utils import tensordict_utils as tu

    group, config = _group(model, "value_model")
    group.reset()
    stages.reach("critic-model", attention=config.hf_config._attn_implementation)
    output = group.infer_batch(_tensors(_batch(config.hf_config.vocab_size))).get()
    stages.reach("critic-values", mean=float(tu.get(output, "values").values().float().mean()))


if __name__ == "__main__":
    run(sys.argv[1], Stages(Path(sys.argv[2])))
