"""Rules about versions: what is pinned, what was locked, and what is known to be bad."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from envsmith.report import Finding, Severity
from envsmith.rules.situation import Situation, found, is_vendor_build
from envsmith.rules.tables import bad_pins

#: `flash_attn-2.8.3+cu12torch2.7cxx11abiFALSE-cp311-…`, as the project names its wheels.
_FLASH = re.compile(r"flash_attn-[^-]*\+cu(\d+)torch(\d+\.\d+)cxx11abi(TRUE|FALSE)-cp(\d)(\d+)-", re.IGNORECASE)


def unpinned_torch(s: Situation) -> Iterator[Finding]:
    """The default build of a new torch may be for a CUDA that the driver cannot run, so torch is pinned exactly."""
    named = [text for text in s.env.requires if _requirement(text)[0] == "torch"]
    # A release of vllm names one torch.
    if _is_pinned(s, "torch") or (not named and _is_pinned(s, "vllm")):
        return
    pulled = s.lock is not None and any(wheel.name == "torch" for wheel in s.lock.wheels)
    if named or pulled:
        machine = s.host.driver or s.host.cuda_compat or s.host.compute_capability
        severity = Severity.ERROR if machine else Severity.WARNING
        yield found(
            "torch-unpinned",
            s.key("requires"),
            "torch has no exact version, and the newest may be built for a CUDA that the driver cannot run",
            actual=named[0] if named else "pulled in by another package",
            severity=severity,
            hint="pin torch, for example `torch==2.10.0` (CUDA 12.8), and see `driver` and `cuda-compat` of the host",
        )


def _is_pinned(s: Situation, package: str) -> bool:
    texts = (*s.env.requires, *s.env.override, *s.env.constrain)
    return any(
        name == package and any(one.operator in ("==", "===") for one in requirement.specifier)
        for name, requirement in map(_requirement, filter(s.holds, texts))
    )


def pins(s: Situation) -> Iterator[Finding]:
    """A lock must hold what the recipe asks for."""
    if s.lock is None:
        return
    overridden = {_requirement(text)[0] for text in s.env.override}
    for text in filter(s.holds, dict.fromkeys((*s.env.override, *s.env.requires, *s.env.constrain))):
        name, requirement = _requirement(text)
        version = s.version(name)
        asked = text in s.env.override or name not in overridden
        if version and asked and not requirement.specifier.contains(version, prereleases=True):
            yield found(
                "pin-not-locked",
                s.key("requires"),
                f"the recipe asks for `{text}`, the lock has {name} {version}",
                expected=str(requirement.specifier),
                actual=str(version),
                hint="lock again; a lock is not edited",
            )


def known_bad(s: Situation) -> Iterator[Finding]:
    """Versions that were seen to fail, from the table."""
    for pin in bad_pins():
        version = s.version(pin.package)
        if version is None or not pin.versions.contains(version, prereleases=True):
            continue
        if all(_is_there(s, name, wanted) for name, wanted in pin.beside.items()):
            severity = Severity.ERROR if pin.error else Severity.WARNING
            yield found(
                "known-bad-pin",
                f"{pin.package}=={version}",
                pin.why,
                severity=severity,
                expected=f"not {pin.versions}",
                hint=pin.hint,
            )


def _is_there(s: Situation, package: str, wanted: SpecifierSet) -> bool:
    version = s.version(package)
    return s.has(package) if not str(wanted) else version is not None and wanted.contains(version, prereleases=True)


def flash_attn(s: Situation) -> Iterator[Finding]:
    """A wheel of flash-attn fits one torch, one C++ ABI and one Python, and its file name says which."""
    wheels = s.lock.wheels if s.lock else ()
    filename = next((wheel.filename for wheel in wheels if wheel.name == "flash-attn"), "")
    match, version = _FLASH.match(filename), s.version("torch")
    if match is None or s.lock is None or version is None or is_vendor_build(version):
        return
    build = (s.torch() or (None, None))[1]
    cuda = s.torch_cuda()
    abi = build.cxx11_abi if build else None
    built = {"torch": match[2], "Python": f"{match[4]}.{match[5]}", "CUDA": match[1]}
    there = {"torch": f"{version.major}.{version.minor}", "Python": s.lock.target.python_minor}
    there["CUDA"] = cuda.split(".")[0] if cuda and len(match[1]) <= 2 else built["CUDA"]
    if abi is not None:
        built["C++11 ABI"], there["C++11 ABI"] = match[3].upper(), str(abi).upper()
    differing = [name for name in built if built[name] != there[name]]
    if differing:
        yield found(
            "flash-attn-abi",
            filename,
            f"the wheel of flash-attn was built for another {' and another '.join(differing)}",
            expected=", ".join(f"{name} {there[name]}" for name in differing),
            actual=", ".join(f"{name} {built[name]}" for name in differing),
            hint="take the wheel that was built for this torch, or drop flash-attn and use `sdpa`",
        )


def _requirement(text: str) -> tuple[str, Requirement]:
    requirement = Requirement(text)
    return str(canonicalize_name(requirement.name)), requirement
