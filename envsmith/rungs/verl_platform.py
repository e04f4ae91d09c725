"""The CPU as a platform of VERL's, through VERL's own door for platforms that it does not know.

VERL loads it where VERL_USE_EXTERNAL_MODULES names it, and takes it for VERL_PLATFORM=envsmith-cpu. It is for showing
how far VERL's own workers go without a device, not for training. Only VERL imports it, so torch stands at its top.
Source: VERL 1bf9d2d `verl/plugin/platform/README.md` and `platform_base.py`, read 2026-11-30.
"""

# ruff: noqa: D102 - the base class of VERL's says what each method is for

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from .verl_parts import CALLS, RESOURCE


class _Device:
    """`torch.cpu` with the few names of `torch.cuda` that VERL asks for and a CPU answers with nothing."""

    def __getattr__(self, name: str) -> Any:
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        if name.startswith(("memory_", "max_memory_")):
            return lambda *_: 0
        if name == "mem_get_info":
            return lambda *_: (1, 1)
        if name in ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "manual_seed", "manual_seed_all"):
            return lambda *_: None
        raise AttributeError(name)

    def get_device_name(self, *_: object) -> str:
        return "CPU"

    def get_rng_state(self) -> Any:
        return torch.get_rng_state()

    def set_rng_state(self, state: Any) -> None:
        torch.set_rng_state(state)


class CpuPlatform(PlatformBase):  # type: ignore[misc]
    """The CPU, alone."""

    device_name = "cpu"
    vendor_name = "envsmith"
    device_module = _Device()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        return None

    def synchronize(self, device_index: int | None = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """Write the call down: on a device it would have changed the allocator."""
        with open(os.environ[CALLS], "a", encoding="utf-8") as stream:  # noqa: PTH123
            stream.write(f"{settings}\n")

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "ENVSMITH_VISIBLE"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def ray_resource_name(self) -> str:
        return RESOURCE

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None

    def get_collective_module(self) -> ModuleType | None:
        return None


PlatformRegistry.register(platform="envsmith-cpu")(CpuPlatform)
