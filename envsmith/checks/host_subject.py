"""What the family `host` judges: one env, what its wheels hold, and the facts of one machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from envsmith.host import BasePackage, BasePython
from envsmith.hostfacts import Accelerator, DeviceRun, HostFacts
from envsmith.native import NativeFile
from envsmith.report import Finding, Severity
from envsmith.rules.situation import Situation, nvidia_driver

FAMILY: Final = "host"
LIBRARY_PATH: Final = "LD_LIBRARY_PATH"
Numbers = tuple[int, ...]
#: Other names of architectures, as containers, Windows and macOS write them.
_ARCHITECTURES: Final = {"amd64": "x86_64", "x86-64": "x86_64", "x64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitting:
    """One env before it is built, beside the machine that is to run it."""

    situation: Situation
    facts: HostFacts
    python: BasePython | None = None
    """The base interpreter of the snapshot."""
    packages: Mapping[str, BasePackage] = field(default_factory=dict)
    """Packages of the base interpreter by canonical name."""
    native: Mapping[str, tuple[NativeFile, ...]] = field(default_factory=dict)
    """Libraries of locked wheels by the wheel's file name, as far as they could be read on this machine."""
    unread: frozenset[str] = frozenset()
    """File names of those wheels of which some library was not read, so that their device code is not all known."""
    unpacked: Mapping[str, int] = field(default_factory=dict)
    """Bytes of a wheel's files when unpacked, by the wheel's file name, where that is known."""
    stored: frozenset[str] = frozenset()
    """Sha256 of wheels that need no room in the machine's store any more, because they are there."""
    root: str | None = None
    """Folder that envs would be built under, where that is known better than by the variables of the snapshot."""
    home: str | None = None
    """Folder of the store, likewise."""

    @property
    def arch(self) -> str | None:
        """The architecture as `uname -m` names it, whatever whoever wrote the snapshot calls it."""
        said = (self.facts.arch or "").strip().lower()
        return _ARCHITECTURES.get(said, said) or None

    @property
    def glibc(self) -> str | None:
        """The release of glibc, as `2.31`, of whatever words it stands in; None for another C library."""
        said = self.facts.glibc or ""
        release = re.search(r"(?<![0-9.])2\.[0-9]+", said)
        return release[0] if release and "musl" not in said.lower() else None

    @property
    def driver(self) -> str | None:
        """The NVIDIA kernel driver; None where there is none, where it is unknown, and for other vendors."""
        return nvidia_driver(self.facts)

    @property
    def has_no_device(self) -> bool:
        """Whether it is known that there is none: no accelerator was seen, and no driver is loaded."""
        return not self.facts.accelerator and self.facts.driver == ""

    @property
    def devices(self) -> int | None:
        """How many there are; None where a driver is loaded and nobody counted."""
        return self.facts.devices if self.facts.accelerator or self.has_no_device else None

    @property
    def needs_torch(self) -> bool:
        """Whether the env has torch."""
        return self.situation.has("torch")

    @property
    def needs_no_libcuda(self) -> bool:
        """Whether torch is of a build that is known to use no libcuda: for the CPU, ROCm or XPU."""
        version = self.situation.version("torch")
        return version is not None and (version.local or "").startswith(("cpu", "rocm", "xpu"))

    @property
    def mends_driver(self) -> bool:
        """Whether the launch table puts the kernel driver's own libcuda first, and a folder on the machine has one."""
        return self.situation.env.launch.driver_library == "host" and self.driver_folder is not None

    @property
    def driver_folder(self) -> str | None:
        """A folder with the libcuda of the kernel's driver."""
        for folder in self.facts.driver_folder:
            if folder.kind == "driver" or (folder.version and same(folder.version, self.driver)):
                return folder.path
        if self.facts.libcuda and same(self.facts.libcuda_version, self.driver):
            return self.facts.libcuda.rpartition("/")[0]
        return None

    def variable(self, name: str) -> str | None:
        """A variable as a process of the env gets it; None when it is not set. Nothing is known without `environ`."""
        launch = self.situation.env.launch
        own = {**launch.set, **launch.short_dirs}.get(name)
        given = own if own is not None else None if name in launch.unset else self.facts.environ.get(name)
        first = launch.prepend.get(name)
        if first:  # as envsmith.launch does it, which drops empty elements
            return ":".join(part for part in (*first.split(":"), *(given or "").split(":")) if part)
        return given

    @property
    def library_path(self) -> tuple[str, ...]:
        """Elements of LD_LIBRARY_PATH in a process of the env, empty ones included, without slashes at their ends."""
        value = self.variable(LIBRARY_PATH)
        return tuple(element.rstrip("/") or element[:1] for element in re.split("[:;]", value)) if value else ()

    @property
    def changes_library_path(self) -> bool:
        """Whether the launch table replaces LD_LIBRARY_PATH, or puts folders before what the shell says."""
        launch = self.situation.env.launch
        return LIBRARY_PATH in {*launch.unset, *launch.set, *launch.prepend, *launch.short_dirs}

    def proof(self, cuda: str | None, device: str | None = None) -> DeviceRun | None:
        """A successful run in bfloat16 or the env's format for this driver and CUDA release; on one device if named.

        A run through a compat library proves nothing for an env that takes the driver's own library.
        """
        runs = [run for run in self._runs(cuda) if run.ok and _format(run) in ("bfloat16", self.number_format)]
        if self.mends_driver:
            compat = [folder.path.rstrip("/") for folder in self.facts.driver_folder if folder.kind == "compat"]
            runs = [run for run in runs if not run.libcuda or run.libcuda.rpartition("/")[0] not in compat]
        return next((run for run in runs if device is None or self._on(run, device)), None)

    def failures(self, cuda: str | None) -> tuple[DeviceRun, ...]:
        """Runs for this driver and CUDA release that failed, in the env's format, where none on the device passed.

        What failed through another library than the driver's own says nothing of an env that takes that one.
        """
        runs = [run for run in self._runs(cuda) if _format(run) == self.number_format]
        if self.mends_driver:
            runs = [run for run in runs if run.ok or self._is_own(run.libcuda)]
        passed = {run.device for run in runs if run.ok}
        return tuple(run for run in runs if not run.ok and run.device not in passed)

    @property
    def number_format(self) -> str:
        """The job's number format where it names one, else bfloat16."""
        dtype = self.situation.job.dtype
        return dtype if dtype and dtype != "auto" else "bfloat16"

    def _runs(self, cuda: str | None) -> list[DeviceRun]:
        """Runs with this CUDA release behind the driver that is there; of a vendor's build, with that very torch."""
        torch = str(self.situation.version("torch"))
        meant = [run for run in self.facts.run if (release_of(run) == cuda if cuda else run.torch == torch)]
        return [run for run in meant if run.driver and run.driver == self.facts.driver]

    def _is_own(self, libcuda: str | None) -> bool:
        """Whether a run's library is the driver's own; where nobody recorded it, the one that was mapped answers."""
        if libcuda is None:
            return self.facts.cuinit == 0
        place, _, name = libcuda.rpartition("/")
        return place == self.driver_folder or same(name.partition(".so.")[2] or None, self.driver)

    def _on(self, run: DeviceRun, device: str) -> bool:
        names = {one.name for one in self.facts.accelerator}
        return run.device == device or (run.device is None and names == {device})


def _format(run: DeviceRun) -> str:
    name = run.dtype.lower().removeprefix("torch.")
    return {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32"}.get(name, name)


def release_of(run: DeviceRun) -> str | None:
    """The CUDA release of a run, as `12.8`: said, else by the local version of its torch."""
    if run.cuda:
        found = re.match(r"[0-9]+\.[0-9]+", run.cuda)
        return found[0] if found else None
    local = re.search(r"\+cu([0-9]+)([0-9])$", run.torch or "")
    return f"{local[1]}.{local[2]}" if local else None


def numbers(version: str) -> Numbers:
    """A version as numbers that compare: 580.95.05 is older than 580.159.04."""
    return tuple(int(part) for part in re.findall(r"[0-9]+", version))


def same(version: str | None, other: str | None) -> bool:
    """Whether two versions are known and equal, as numbers."""
    return version is not None and other is not None and numbers(version) == numbers(other)


def capability_of(device: Accelerator) -> tuple[int, int] | None:
    """Compute capability as numbers."""
    found = re.fullmatch(r"([0-9]+)\.([0-9]+)", device.compute_capability or "")
    return (int(found[1]), int(found[2])) if found else None


def listed(items: Iterable[object], shown: int = 5) -> str:
    """A few items as words, then a count."""
    said = list(map(str, items))
    more = f" and {len(said) - shown:,} more" if len(said) > shown else ""
    return ", ".join(said[:shown]) + more


def found(
    kind: str,
    subject: str,
    message: str,
    *,
    hint: str,
    severity: Severity = Severity.ERROR,
    expected: str | None = None,
    actual: str | None = None,
) -> Finding:
    """A finding of this family."""
    return Finding(
        check=FAMILY,
        kind=kind,
        severity=severity,
        subject=subject,
        message=message,
        expected=expected,
        actual=actual,
        hint=hint,
    )


def eased(finding: Finding, why: str) -> Finding:
    """The same as a note, with what makes it harmless."""
    hint = "nothing has to be done in this env; other programs of the machine meet it"
    return replace(finding, severity=Severity.NOTE, message=f"{finding.message}; {why}", hint=hint)
