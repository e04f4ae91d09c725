"""The devices of a machine: as many as the recipe wants, of its kind, and with code for them in the wheels."""

from __future__ import annotations

from collections.abc import Iterator

from envsmith.checks.host_subject import Fitting, capability_of, found, listed
from envsmith.checks.host_tables import cuda_of, cuda_too_new, cuda_too_old
from envsmith.checks.native import CORE_LIBRARIES
from envsmith.hostfacts import Accelerator
from envsmith.native import NativeFile, judged_images, runs_on
from envsmith.report import Finding, Severity
from envsmith.rules.situation import is_vendor_build
from envsmith.rules.tables import Capability, capability


def check_devices(fit: Fitting) -> Iterator[Finding]:
    """Hold number and kind of the devices against the recipe, and every device against the code in the wheels."""
    yield from _count(fit)
    for device in fit.facts.accelerator:
        able = capability_of(device)
        if able is not None:
            yield from _class(fit, device, able)
            yield from _code(fit, device, able)


def _count(fit: Fitting) -> Iterator[Finding]:
    wanted, there = fit.situation.host.devices, fit.devices
    needs = bool(wanted or fit.situation.host.compute_capability or fit.situation.host.driver)
    if there is None or (not needs and not cuda_of(fit.situation)):
        return
    if there == 0 and needs:
        yield found(
            "device-missing",
            "host.accelerator",
            "the recipe is for a machine with devices, and this one has none",
            expected=str(wanted or 1),
            actual="0",
            hint="take the snapshot where the job runs, such as inside an allocation of the scheduler",
        )
        return
    ranks = max((one.ranks or 1 for one in fit.situation.env.smoke), default=1)
    at_least = max(ranks, fit.situation.job.tensor_parallel or 1)
    if wanted and 0 < there < wanted:
        short = there < at_least
        yield found(
            "devices-too-few",
            "host.accelerator",
            f"the recipe is for {wanted} devices, this machine has {there}"
            + (f", and the env asks for {at_least} ranks" if short else ""),
            severity=Severity.ERROR if short else Severity.WARNING,
            expected=str(at_least if short else wanted),
            actual=str(there),
            hint="lower `ranks` of the rungs and `tensor-parallel` of the job, or take a machine with more devices",
        )


def _class(fit: Fitting, device: Accelerator, able: Capability) -> Iterator[Finding]:
    said = sorted(map(capability, fit.situation.host.compute_capability))
    if not said or able in said:
        return
    near = able[0] in {one[0] for one in said}
    yield found(
        "capability-outside-class",
        "host.compute-capability",
        f"the recipe is for compute capability {listed(map(_shown, said))}, {device.name} has {_shown(able)}",
        severity=Severity.WARNING if near else Severity.ERROR,
        expected=listed(map(_shown, said)),
        actual=f"{_shown(able)} ({device.name})",
        hint="take the stack that is made for this device, or add its capability to the recipe when that is meant",
    )


def _code(fit: Fitting, device: Accelerator, able: Capability) -> Iterator[Finding]:
    """Device code of every wheel that was read; torch's by the tables where its wheel was not."""
    cuda = cuda_of(fit.situation)
    if fit.proof(cuda, device.name):
        return
    lock, seen = fit.situation.lock, set()
    for wheel in lock.wheels if lock else ():
        files = [file for file in fit.native.get(wheel.filename, ()) if judged_images(file)]
        unfit = [file for file in files if not any(runs_on(image, able) for image in judged_images(file))]
        core = [file for file in unfit if file.name in CORE_LIBRARIES]
        if wheel.name == "torch" and not any(file.name in CORE_LIBRARIES for file in files):
            continue  # the rest of its libraries does not say where torch runs
        if files:
            seen.add(wheel.name)
        # A library of NVIDIA's that is for newer devices is not used on older ones; torch's own code decides.
        is_judged = wheel.filename not in fit.unread and not wheel.name.startswith("nvidia-")
        if core or (is_judged and unfit and len(unfit) == len(files)):
            yield _no_code(device, able, f"{wheel.name} {wheel.version}", _built(core or unfit))
    if "torch" not in seen:
        yield from _by_table(fit, device, able, cuda)


def _by_table(fit: Fitting, device: Accelerator, able: Capability, cuda: str | None) -> Iterator[Finding]:
    version, build = fit.situation.torch() or (None, None)
    if version is None or is_vendor_build(version):
        return
    if build is not None:
        if not any(arch[0] == able[0] and arch[1] <= able[1] for arch in build.arch):
            yield _no_code(device, able, f"torch {version}", ", ".join(map(_shown, build.arch)))
        return
    first, last = (cuda_too_old(able, cuda), cuda_too_new(able, cuda)) if cuda else (None, None)
    if first:
        yield _no_code(device, able, f"torch {version}", f"CUDA {cuda}; the first that makes such code is {first}")
    elif last:
        yield _no_code(device, able, f"torch {version}", f"CUDA {cuda}; from {last} on none makes such code")


def _no_code(device: Accelerator, able: Capability, who: str, has: str) -> Finding:
    first = cuda_too_old(able, "1.0")
    if first:
        way = f"pin a build for CUDA {first} or later whose wheel lists {_shown(able)} or an older minor of it"
    else:
        way = "pin a build whose wheel lists it: torch 2.7.1 is the newest of the public index for 6.x, 2.10.0 for 7.0"
    return found(
        "no-kernel-image",
        "host.compute-capability",
        f"{who} holds no code for {device.name} (compute capability {_shown(able)}), and no PTX that stands in",
        expected=f"sm_{able[0]}{able[1]}, or an older minor of it",
        actual=has,
        hint=f"{way}; that torch sees the device proves nothing",
    )


def _built(files: list[NativeFile]) -> str:
    images = sorted({(image.kind, image.arch) for image in judged_images(files[0])})
    return f"{files[0].name}: {listed((f'{kind}_{arch}' for kind, arch in images), 12)}"


def _shown(value: Capability) -> str:
    return f"{value[0]}.{value[1]}"
