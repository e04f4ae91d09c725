"""What the accelerators of this machine are: NVIDIA's through its management library, its program where that fails."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from envsmith.errors import EnvsmithError
from envsmith.tools.process import run, scrubbed

_FIELDS = "name,compute_cap,driver_version"


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One accelerator."""

    name: str
    compute_capability: str | None
    """`8.0`; None where the driver is too old to say."""
    driver: str
    """Version of the kernel driver."""


def has_nvidia_device() -> bool:
    """Whether a driver has made device nodes; True where nobody can say, so that a failure is never excused."""
    return Path("/dev/nvidiactl").exists() or Path("/dev/nvidia0").exists() or sys.platform != "linux"


def nvidia_devices(environ: Mapping[str, str]) -> tuple[Device, ...]:
    """Every NVIDIA device, in the driver's order; none where there is none or nobody answers."""
    if not has_nvidia_device():
        return ()
    return _by_library() or _by_program(environ)


def _by_library() -> tuple[Device, ...]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, an old one, or one that does not fit the kernel's driver
        return ()
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        return tuple(
            Device(
                name=_text(pynvml.nvmlDeviceGetName(handle)),
                compute_capability="{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
                driver=driver,
            )
            for handle in handles
        )
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    """Older bindings answer bytes."""
    return value.decode() if isinstance(value, bytes) else value


def _by_program(environ: Mapping[str, str]) -> tuple[Device, ...]:
    try:
        done = run(
            ("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader"), env=scrubbed(environ), timeout_s=20
        )
    except EnvsmithError:
        return ()
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return tuple(
        Device(name=row[0], compute_capability=row[1] if "." in row[1] else None, driver=row[2])
        for row in rows
        if done.returncode == 0 and len(row) == 3
    )
