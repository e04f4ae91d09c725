"""What a machine gives and nobody may change, as typed facts: the `[host]` table of a snapshot.

Every fact may be missing: that is a value, not an error. Numbers of limits are -1 where there is no limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from posixpath import normpath
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt

UNLIMITED = -1
"""A limit that is not there."""
LARGEST = 2**63 - 1
"""The largest whole number that TOML promises."""
Count = Annotated[StrictInt, Field(ge=0, le=LARGEST)]
Limit = Annotated[StrictInt, Field(ge=UNLIMITED, le=LARGEST)]


class FactTable(BaseModel):
    """A table of facts: frozen, unknown keys refused, kebab-case in the file."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, alias_generator=lambda name: name.replace("_", "-")
    )


class Accelerator(FactTable):
    """`[[host.accelerator]]`: one kind of device."""

    name: str
    count: Annotated[StrictInt, Field(ge=1, le=LARGEST)]
    memory_bytes: Count | None = None
    """Of one device."""
    compute_capability: Annotated[str, Field(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}$")] | None = None
    data_centre: StrictBool | None = None
    """Whether it belongs to the lines on which NVIDIA supports forward compatibility."""


class Link(FactTable):
    """`[[host.link]]`: how two devices of one host reach each other."""

    a: Count
    b: Count
    kind: str
    """In the words of `nvidia-smi topo -m`: `NV18`, `PIX`, `PXB`, `PHB`, `NODE`, `SYS`."""


class DriverFolder(FactTable):
    """`[[host.driver-folder]]`: a folder that holds a libcuda."""

    path: str
    kind: Literal["driver", "compat", "stubs", "other"]
    """`driver`: its libcuda has the kernel driver's version."""
    version: str | None = None
    """From the name of the file behind libcuda.so.1; None for a stub and for a plain file."""
    unversioned: StrictBool | None = None
    """Whether `libcuda.so` lies beside `libcuda.so.1`: what a compiler's `-lcuda` needs at run time."""
    found_by: Literal["LD_LIBRARY_PATH", "loader", "search"] = "search"
    """`loader`: the loader's cache or its default folders; `search`: no process finds it without being told."""


class LoaderLibrary(FactTable):
    """`[[host.library]]`: a library of the CUDA family that the loader would give to a process of this machine."""

    name: str
    """SONAME, `libnccl.so.2`."""
    path: str
    found_by: Literal["LD_LIBRARY_PATH", "loader"]


class FileSystem(FactTable):
    """`[[host.file-system]]`: what lies behind a path that matters, or a mount."""

    path: str
    type: str
    """As /proc/self/mounts has it: `ext4`, `fuse.hdfs`, `nfs4`."""
    kind: Literal["local", "memory", "network", "fuse"]
    size_bytes: Count | None = None
    free_bytes: Count | None = None
    """For this user."""
    write: str | None = None
    """`ok`, or the name of the error: `EROFS`; None where it was not tried."""
    truncate: str | None = None
    """Growing a file to 1 MiB with ftruncate, as safetensors 0.8 does (facts/symptoms.md D45)."""
    rename: str | None = None
    """Replacing a file by another."""
    lock: str | None = None
    """flock(2)."""


class DeviceRun(FactTable):
    """`[[host.run]]`: a matrix product in one number format that was really computed on a device."""

    dtype: str
    ok: StrictBool
    torch: str | None = None
    """`2.10.0+cu128`, as `torch.__version__` answers."""
    cuda: str | None = None
    """The CUDA release of that torch, `12.8`."""
    driver: str | None = None
    """Version of the kernel driver then."""
    libcuda: str | None = None
    """Path of the libcuda that the process mapped."""
    device: str | None = None
    error: str | None = None


class HostFacts(FactTable):
    """`[host]`: the machine. The kernel's driver, the mapped libcuda and what it answers are separate facts."""

    arch: str | None = None
    kernel: str | None = None
    os: str | None = None
    """`Ubuntu 24.04.1 LTS`."""
    glibc: str | None = None
    cpu: str | None = None
    cpus: Count | None = None
    """That this user may use."""
    cpu_limit: StrictFloat | None = None
    """Of the cgroup, in CPUs; -1 for none."""
    memory_bytes: Count | None = None
    memory_limit_bytes: Limit | None = None
    """Of the cgroup."""
    shm_bytes: Count | None = None
    """Size of /dev/shm."""
    shm_free_bytes: Count | None = None
    open_files: Limit | None = None
    """Soft limit of file descriptors."""
    open_files_max: Limit | None = None
    """Hard limit: how far the user may raise it."""
    processes: Limit | None = None
    processes_max: Limit | None = None
    locked_memory_bytes: Limit | None = None
    swappiness: Count | None = None
    compiler: str | None = None
    """Path of the C compiler that Triton and torch.compile would take; `` (empty) where there is none."""
    container: str | None = None
    """`docker`, `podman`, `kubernetes`, `apptainer`, …; empty where nothing says so."""
    scheduler: str | None = None
    """`slurm`, `kubernetes`; empty where nothing says so."""
    driver: str | None = None
    """Version of the kernel driver, as the vendor writes it; empty where there is none."""
    libcuda: str | None = None
    """Path of the libcuda that a fresh process maps; empty where it finds none."""
    libcuda_version: str | None = None
    """From that file's name."""
    cuinit: StrictInt | None = None
    """What `cuInit(0)` answered; 0 is success. A negative number is the signal that ended the process in it."""
    cuda_driver_version: str | None = None
    """What `cuDriverGetVersion` answered, `12.8`."""
    accelerator: tuple[Accelerator, ...] = ()
    link: tuple[Link, ...] = ()
    driver_folder: tuple[DriverFolder, ...] = ()
    library: tuple[LoaderLibrary, ...] = ()
    file_system: tuple[FileSystem, ...] = ()
    run: tuple[DeviceRun, ...] = ()
    environ: Mapping[str, str] = Field(default_factory=dict)
    """Variables that decide what is loaded, found or allowed; values that may be secret are left out."""

    @property
    def capabilities(self) -> tuple[tuple[int, int], ...]:
        """Compute capabilities of the devices, the lowest first, each once."""
        said = {one.compute_capability for one in self.accelerator if one.compute_capability}
        return tuple(sorted((int(major), int(minor)) for major, _, minor in (text.partition(".") for text in said)))

    @property
    def devices(self) -> int | None:
        """How many devices there are; None where nobody looked."""
        return sum(one.count for one in self.accelerator) if self.accelerator or self.driver is not None else None

    def behind(self, path: str) -> FileSystem | None:
        """The row of the path itself, else of the mount or folder closest above it."""
        there = PurePosixPath(normpath(path))
        above = [str(one) for one in (there, *there.parents)]
        rows = {normpath(row.path): row for row in self.file_system}
        return next((rows[one] for one in above if one in rows), None)
