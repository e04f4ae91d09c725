"""What the accelerators of this machine are: NVIDIA's through its management library, its program where that fails."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envsmith.errors import EnvsmithError
from envsmith.tools.process import run, scrubbed

_FIELDS = "name,compute_cap,driver_version,memory.total"
#: Words of `nvidia-smi topo -m` for the levels of NVML. Source: nvml.h, nvmlGpuTopologyLevel_t (read 2026-11-30);
#: 0 is two devices of one board, which share a switch.
_LEVELS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
_NVLINK_SWITCH = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """One accelerator."""

    name: str
    compute_capability: str | None
    """`8.0`; None where the driver is too old to say."""
    driver: str
    """Version of the kernel driver."""
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceLink:
    """How two devices reach each other, `a` the lower number."""

    a: int
    b: int
    kind: str
    """In the words of `nvidia-smi topo -m`: `NV18`, `PIX`, `SYS`."""


def has_nvidia_device() -> bool:
    """Whether a driver has made device nodes; True where nobody can say, so that a failure is never excused."""
    return Path("/dev/nvidiactl").exists() or Path("/dev/nvidia0").exists() or sys.platform != "linux"


def nvidia_devices(environ: Mapping[str, str]) -> tuple[Device, ...]:
    """Every NVIDIA device, in the driver's order; none where there is none or nobody answers."""
    if not has_nvidia_device():
        return ()
    return devices_by_library() or _by_program(environ)


def nvidia_links() -> tuple[DeviceLink, ...]:
    """Every pair of NVIDIA devices, as the management library sees it; none where it cannot be asked."""
    pynvml = _started() if has_nvidia_device() else None
    if pynvml is None:
        return ()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        links = [_nvlinks(pynvml, handle) for handle in handles]
        pairs = [(a, b) for a in range(len(handles)) for b in range(a + 1, len(handles))]
        return tuple(
            DeviceLink(a=a, b=b, kind=kind)
            for a, b in pairs
            if (kind := _nvlink(pynvml, links[a], links[b], handles[b]) or _level(pynvml, handles[a], handles[b]))
        )
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _nvlinks(pynvml: Any, handle: Any) -> tuple[str, ...]:
    """The far end of every active NVLink of a device: its PCI address, or `switch`."""
    found = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if pynvml.nvmlDeviceGetNvLinkState(handle, link) != pynvml.NVML_FEATURE_ENABLED:
                continue
            if _leads_to_switch(pynvml, handle, link):
                found.append("switch")
            else:
                found.append(_text(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId).lower())
        except pynvml.NVMLError:
            continue  # it has no link of that number
    return tuple(found)


def _leads_to_switch(pynvml: Any, handle: Any, link: int) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == _NVLINK_SWITCH)
    except (pynvml.NVMLError, AttributeError):  # older drivers and bindings cannot say
        return False


def _nvlink(pynvml: Any, ours: tuple[str, ...], theirs: tuple[str, ...], other: Any) -> str | None:
    """`NV18` for as many links as join two devices, directly or through switches."""
    address = _text(pynvml.nvmlDeviceGetPciInfo(other).busId).lower()
    count = ours.count(address) or min(ours.count("switch"), theirs.count("switch"))
    return f"NV{count}" if count else None


def _level(pynvml: Any, one: Any, other: Any) -> str | None:
    return _LEVELS.get(int(pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other)))


def _started() -> Any:
    """The management library, ready to be asked; None where it cannot be."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no library, an old one, or one that does not fit the kernel's driver
        return None
    return pynvml


def devices_by_library() -> tuple[Device, ...]:
    """Every NVIDIA device as the management library says; none where it cannot be asked."""
    pynvml = _started() if has_nvidia_device() else None
    if pynvml is None:
        return ()
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        return tuple(
            Device(
                name=_text(pynvml.nvmlDeviceGetName(handle)),
                compute_capability="{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
                driver=driver,
                memory_bytes=_memory(pynvml, handle),
            )
            for handle in handles
        )
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _memory(pynvml: Any, handle: Any) -> int | None:
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except pynvml.NVMLError:  # a device that shares the machine's memory has none of its own
        return None


def _text(value: str | bytes) -> str:
    """Older bindings answer bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _by_program(environ: Mapping[str, str]) -> tuple[Device, ...]:
    try:
        done = run(
            ("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader"), env=scrubbed(environ), timeout_s=20
        )
    except EnvsmithError:
        return ()
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return tuple(
        Device(
            name=row[0],
            compute_capability=row[1] if re.fullmatch(r"[0-9]{1,3}\.[0-9]{1,3}", row[1]) else None,
            driver=row[2],
            memory_bytes=int(memory[1]) << 20 if (memory := re.fullmatch(r"([0-9]{1,12}) MiB", row[3])) else None,
        )
        for row in rows
        if done.returncode == 0 and len(row) == 4
    )


def memory_in_use(environ: Mapping[str, str]) -> tuple[int, ...] | None:
    """Bytes in use on each NVIDIA device as the driver says, whoever uses them; None where nobody can be asked.

    Where CUDA_VISIBLE_DEVICES numbers them, on those alone: what others do on the rest is their own.
    """
    if not has_nvidia_device():
        return None
    found = _memory_by_library() or _memory_by_program(environ)
    visible = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if found is None or not all(re.fullmatch(r"[0-9]{1,4}", one.strip()) for one in visible):
        return found
    chosen = [int(one) for one in visible]
    return tuple(found[n] for n in chosen) if all(n < len(found) for n in chosen) else found


def _memory_by_library() -> tuple[int, ...] | None:
    pynvml = _started()
    if pynvml is None:
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        return tuple(int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles) or None
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def _memory_by_program(environ: Mapping[str, str]) -> tuple[int, ...] | None:
    words = ("nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
    try:
        done = run(words, env=scrubbed(environ), timeout_s=20)
    except EnvsmithError:
        return None
    rows = [line.strip() for line in done.stdout.splitlines()]
    known = done.returncode == 0 and rows and all(re.fullmatch(r"[0-9]{1,12}", row) for row in rows)
    return tuple(int(row) << 20 for row in rows) if known else None
