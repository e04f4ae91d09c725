"""Rules about the machine: its compute capability, its driver and its glibc."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from envsmith.report import Finding, Severity
from envsmith.rules.situation import Situation, found, is_vendor_build
from envsmith.rules.tables import (
    Capability,
    Compat,
    capability,
    compat_libraries,
    driver_floors,
    quantisations,
    shared_memory,
    wheel_floors,
)


def number_format(s: Situation) -> Iterator[Finding]:
    """Bfloat16 needs compute capability 8.0; engines refuse to start with it below."""
    low = _below(s, (8, 0))
    own = s.model.shape.dtype if s.model else None
    if low and (s.job.dtype == "bfloat16" or (s.job.dtype == "auto" and own == "bfloat16")):
        said = "" if s.job.dtype == "bfloat16" else f"`auto` takes the model's format, {own}: "
        yield found(
            "bf16-unsupported",
            s.job_key("dtype"),
            f"{said}bfloat16 needs compute capability 8.0, the machine has {_shown(low)}",
            expected="8.0 or newer",
            actual=_shown(low),
            hint="take `float16`, or `float32` below 7.0, in the trainer and in the rollout engine",
        )
    elif low and s.job.dtype == "auto" and own is None:
        yield found(
            "bf16-unsupported",
            s.job_key("dtype"),
            f"`auto` takes the model's format, mostly bfloat16, which needs 8.0; the machine has {_shown(low)}",
            severity=Severity.WARNING,
            hint="name `float16`, or `float32` below 7.0",
        )


def flash_attention(s: Situation) -> Iterator[Finding]:
    """The kernels of flash-attention 2 are built for 8.0 and newer, those of 3 for 9.0."""
    floors = {"flash_attention_2": (8, 0), "flash_attention_3": (9, 0)}
    floor = floors.get(s.job.attention or "")
    low = _below(s, floor) if floor else None
    if floor and low:
        yield found(
            "flash-attention-unsupported",
            s.job_key("attention"),
            f"`{s.job.attention}` needs compute capability {_shown(floor)}, the machine has {_shown(low)}{_room(low)}",
            expected=f"{_shown(floor)} or newer",
            actual=_shown(low),
            hint="take `sdpa` or `eager`" + (", with `float32`" if low < (7, 0) else ""),
        )


def triton(s: Situation) -> Iterator[Finding]:
    """Triton needs 7.0: below it a block has 48 KiB of shared memory, whatever the batch size is."""
    low = _below(s, (7, 0))
    if low and s.job.liger:
        yield found(
            "triton-unsupported",
            s.job_key("liger"),
            "Liger's kernels are Triton, which needs compute capability 7.0; the machine has "
            f"{_shown(low)}{_room(low)}",
            hint="switch Liger off; smaller batches do not change what a kernel asks for",
        )
    if low and s.job.attention == "flex_attention":
        yield found(
            "triton-unsupported",
            s.job_key("attention"),
            "the kernels of `flex_attention` are Triton, which needs compute capability 7.0; the machine has "
            f"{_shown(low)}{_room(low)}",
            hint="take `sdpa` or `eager`, with `float32`; smaller batches do not change what a kernel asks for",
        )


def _room(low: Capability) -> str:
    """What a block has on old devices, and what kernels of this kind ask for, where both are known."""
    there, asked = shared_memory().get(low, (0, 0))
    return f", where a block has {there:,} bytes of shared memory and such kernels ask for {asked:,}" if there else ""


def quantisation(s: Situation) -> Iterator[Finding]:
    """Weights that are stored smaller need an engine's kernels, and in transformers often a package."""
    method = s.model.shape.quantisation if s.model else None
    way = quantisations().get(method or "")
    if s.model is None or way is None:
        return
    version = s.version("vllm")
    low = _below(s, way.capability) if way.capability and version and not is_vendor_build(version) else None
    if way.capability and low:
        yield found(
            "quantisation-unsupported",
            s.job_key("model"),
            f"the model's weights are stored as {method}, which vllm takes from compute capability "
            f"{_shown(way.capability)} on; the machine has {_shown(low)}",
            expected=f"{_shown(way.capability)} or newer",
            actual=_shown(low),
            hint="take a checkpoint of this model that is not quantised, or quantised otherwise",
        )
    if way.package and s.lock is not None and s.has("transformers") and not s.has(way.package):
        yield found(
            "quantisation-package-missing",
            s.job_key("model"),
            f"the model's weights are stored as {method}, and {way.package}, which reads them, is not in the env",
            expected=way.package,
            hint=f"add `{way.package}` to `requires` with an exact version, and lock again",
        )


def engine(s: Situation) -> Iterator[Finding]:
    """No official wheel of vLLM that was opened (0.8.5.post1, 0.11.0, 0.18.0) holds code below 7.0."""
    low, version = _below(s, (7, 0)), s.version("vllm")
    vendor = version is not None and is_vendor_build(version)
    if low and s.has("vllm") and not vendor:
        yield found(
            "vllm-without-kernels",
            s.key("requires"),
            f"no official wheel of vllm holds code for compute capability {_shown(low)}",
            expected="7.0 or newer",
            actual=_shown(low),
            hint="roll out with the trainer's own framework, without vllm",
        )


def kernels(s: Situation) -> Iterator[Finding]:
    """Torch must hold code of the same major and no higher minor for every device."""
    version, build = s.torch() or (None, None)
    if build is None or (s.facts is not None and s.facts.capabilities):  # the family `host` knows the very devices
        return
    for device in s.capabilities():
        if not any(arch[0] == device[0] and arch[1] <= device[1] for arch in build.arch):
            yield found(
                "no-kernel-image",
                "host.compute-capability",
                f"torch {version} holds no code for compute capability {_shown(device)}",
                expected=", ".join(_shown(arch) for arch in build.arch),
                actual=_shown(device),
                hint="pin a torch whose wheel lists it: 2.7.1 is the newest for 6.x, 2.8.0 the first for 12.0",
            )


def driver(s: Situation) -> Iterator[Finding]:
    """The kernel driver must be of torch's CUDA family, or a compatibility library must bridge the gap."""
    if s.facts is not None and s.facts.driver is not None:  # the family `host` knows the very driver
        return
    cuda, oldest = s.torch_cuda(), s.driver()
    floor = driver_floors().get(capability(cuda)[0]) if cuda else None
    if cuda is None or oldest is None or floor is None:
        return
    if s.host.cuda_compat is not None:
        yield from _compat(s, cuda, oldest, floor, s.host.cuda_compat)
    elif oldest < floor:
        yield found(
            "driver-too-old",
            "host.driver",
            f"torch {s.version('torch')} is built for CUDA {cuda}, which needs driver {floor}",
            expected=f">={floor}",
            actual=s.host.driver,
            hint=_way_out(cuda, oldest),
        )


def _way_out(cuda: str, oldest: Version) -> str:
    library = compat_libraries().get(cuda)
    if library and oldest.major in library.branches:
        return f'say `cuda-compat = "{cuda}"` when that library is on the machine, or pin a torch for an older CUDA'
    return "pin a torch that is built for an older CUDA; no compatibility library is known to bridge this gap"


def _compat(s: Situation, cuda: str, oldest: Version, floor: Version, compat: str) -> Iterator[Finding]:
    library = compat_libraries().get(compat)
    # Within one major a library runs programs of every minor.
    if capability(compat)[0] < capability(cuda)[0]:
        if oldest < floor:
            yield found(
                "driver-too-old",
                "host.cuda-compat",
                f"torch {s.version('torch')} is built for CUDA {cuda}, the compatibility library for {compat}",
                expected=cuda,
                actual=compat,
                hint=f"take the library of CUDA {cuda}, or pin a torch that is built for an older CUDA",
            )
    elif library and library.complete and not _bridges(library, oldest):
        branches = ", ".join(map(str, library.branches))
        hint = (
            "leave `cuda-compat` out: the driver's own library is enough" if oldest >= floor else _way_out(cuda, oldest)
        )
        yield found(
            "cuda-compat-unsupported",
            "host.cuda-compat",
            f"the compatibility library of CUDA {compat} does not run on driver branch {oldest.major} (error 803)",
            expected=f"branch {branches}",
            actual=s.host.driver,
            hint=hint,
        )


def _bridges(library: Compat, oldest: Version) -> bool:
    """Whether a library runs on a branch; one as new as the library's own has no need of it."""
    return oldest.major in library.branches or (library.driver is not None and oldest.major >= library.driver)


def wheel_floor(s: Situation) -> Iterator[Finding]:
    """Where its one wheel needs a newer glibc, a resolver silently takes the sdist and would compile for hours."""
    for floor in wheel_floors():
        version = s.version(floor.package)
        if version is None or floor.glibc is None or is_vendor_build(version) or floor.subject != s.host.arch:
            continue
        if version in floor.versions and capability(s.host.glibc) < capability(floor.glibc):
            yield found(
                "wheel-floor",
                "host.glibc",
                f"the only wheel of {floor.package} {version} needs glibc {floor.glibc}; else there is only the sdist",
                expected=floor.glibc,
                actual=s.host.glibc,
                hint=f'set `glibc = "{floor.glibc}"`, or use a container with a newer one',
            )


def _below(s: Situation, floor: Capability) -> Capability | None:
    """The lowest compute capability of the machine when it is below a floor."""
    lowest = next(iter(s.capabilities()), None)
    return lowest if lowest is not None and lowest < floor else None


def _shown(value: Capability) -> str:
    return f"{value[0]}.{value[1]}"
