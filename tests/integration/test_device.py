"""What the accelerators are, by a management library that answers as pynvml does; no device is needed."""

# ruff: noqa: N802  (the names are pynvml's)

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from envsmith.tools import device
from envsmith.tools.device import DeviceLink, devices_by_library, nvidia_devices, nvidia_links


class Pci:
    def __init__(self, address: bytes) -> None:
        self.busId = address


class Memory:
    total = 80 << 30


class Nvml(ModuleType):
    """As much of pynvml as we call. `links[n]` are the far ends of the NVLinks of device n."""

    NVML_NVLINK_MAX_LINKS = 18
    NVML_FEATURE_ENABLED = 1

    class NVMLError(Exception):
        pass

    def __init__(self, links: Sequence[Sequence[bytes]], levels: dict[tuple[int, int], int], fault: str = "") -> None:
        super().__init__("pynvml")
        self.links, self.levels, self.fault, self.open = links, levels, fault, 0

    def _may_fail(self, name: str) -> None:
        if self.fault == name:
            raise self.NVMLError(name)

    def nvmlInit(self) -> None:
        self._may_fail("init")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> bytes:
        return b"580.159.04"

    def nvmlDeviceGetCount(self) -> int:
        return len(self.links)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA A100-SXM4-80GB"

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return 8, 0

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Memory:
        self._may_fail("memory")
        return Memory()

    def nvmlDeviceGetPciInfo(self, handle: int) -> Pci:
        return Pci(b"00000000:0%d:00.0" % handle)

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= len(self.links[handle]):
            raise self.NVMLError("no such link")
        return 1

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:
        self._may_fail("type")
        return 2 if self.links[handle][link] == b"switch" else 0

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Pci:
        return Pci(self.links[handle][link])

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        self._may_fail("topology")
        return self.levels[one, other]


@pytest.fixture(autouse=True)
def has_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "has_nvidia_device", lambda: True)


def use(monkeypatch: pytest.MonkeyPatch, library: Nvml) -> Nvml:
    monkeypatch.setitem(sys.modules, "pynvml", library)
    return library


def test_memory_and_links_through_switches_and_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    library = use(monkeypatch, Nvml([[b"switch"] * 12, [b"switch"] * 12, []], {(0, 2): 50, (1, 2): 30}))
    devices = nvidia_devices({})
    assert [(one.name, one.compute_capability, one.driver, one.memory_bytes) for one in devices] == [
        ("NVIDIA A100-SXM4-80GB", "8.0", "580.159.04", 80 << 30)
    ] * 3
    assert nvidia_links() == (
        DeviceLink(a=0, b=1, kind="NV12"),
        DeviceLink(a=0, b=2, kind="SYS"),
        DeviceLink(a=1, b=2, kind="PHB"),
    )
    assert library.open == 0


@pytest.mark.parametrize("fault", ["", "type"])
def test_direct_links_are_counted_by_the_address_of_the_other(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    use(monkeypatch, Nvml([[b"00000000:01:00.0"] * 4, [b"00000000:00:00.0"] * 4, []], {(0, 2): 40, (1, 2): 10}, fault))
    assert [link.kind for link in nvidia_links()] == ["NV4", "NODE", "PIX"]


def test_what_the_library_cannot_say_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    library = use(monkeypatch, Nvml([[], []], {(0, 1): 20}, "memory"))
    assert [one.memory_bytes for one in nvidia_devices({})] == [None, None]
    assert [link.kind for link in nvidia_links()] == ["PXB"]
    library.fault = "topology"
    assert nvidia_links() == ()
    assert library.open == 0


def test_without_the_library_the_program_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use(monkeypatch, Nvml([], {}, "init"))
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'Tesla P40, [N/A], 470.57.02, 24451 MiB'\n")
    program.chmod(0o755)
    (one,) = nvidia_devices({"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert (one.name, one.compute_capability, one.driver, one.memory_bytes) == (
        "Tesla P40",
        None,
        "470.57.02",
        24451 << 20,
    )
    assert nvidia_links() == ()


@pytest.mark.parametrize(
    ("answer", "facts"),
    [
        ("X, ٨.٠, 1, ٣ MiB", (None, None)),
        ("X, 8.0, 1, 10", ("8.0", None)),
        ("X, 8.0, 1, 10 MiB", ("8.0", 10 << 20)),
        ("X, a.b, 1, [N/A]", (None, None)),
    ],
)
def test_only_numbers_in_ascii_are_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: str, facts: tuple[str | None, int | None]
) -> None:
    use(monkeypatch, Nvml([], {}, "init"))
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o755)
    (one,) = nvidia_devices({"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert (one.compute_capability, one.memory_bytes) == facts


def test_the_library_alone_is_asked_where_the_payload_asks_the_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'X, 8.0, 1, 10 MiB'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    library = use(monkeypatch, Nvml([[]], {}))
    assert len(devices_by_library()) == 1
    library.fault = "init"
    assert devices_by_library() == ()
    library.fault = ""
    monkeypatch.setattr(device, "has_nvidia_device", lambda: False)
    assert devices_by_library() == ()
