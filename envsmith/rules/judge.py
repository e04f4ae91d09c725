"""All rules, in the order of docs/rules.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from envsmith.report import Finding, ordered
from envsmith.rules import allocator, job, launching, locked, machine, sizing, sources
from envsmith.rules.situation import Situation

RULES: tuple[Callable[[Situation], Iterator[Finding]], ...] = (
    machine.number_format,
    machine.flash_attention,
    machine.triton,
    machine.engine,
    machine.quantisation,
    machine.kernels,
    machine.driver,
    machine.wheel_floor,
    locked.unpinned_torch,
    locked.pins,
    locked.known_bad,
    locked.flash_attn,
    job.model_type,
    job.attention,
    job.fused_kernels,
    job.packed_sequences,
    job.padding_helpers,
    job.cpu_adam,
    job.trl_sleep,
    job.liger,
    sizing.model_differs,
    sizing.kv_cache,
    sizing.positions,
    sizing.heads,
    sizing.memory,
    allocator.old_driver,
    allocator.sleep_mode,
    allocator.names,
    allocator.launchers,
    allocator.toggles,
    launching.socket_path,
    launching.uv_run,
    sources.stdlib,
    sources.at_hand,
)


def judge(situation: Situation) -> tuple[Finding, ...]:
    """Hold one env against every rule."""
    return ordered(finding for rule in RULES for finding in rule(situation))
