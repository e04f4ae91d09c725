"""Family `host`: can a machine run the envs of a stack, said before anything is downloaded.

Proves what the facts of a snapshot show: driver, libcuda, devices, C library, limits, folders. A fact that is missing
claims nothing. Tables are held against the facts, and a run on the machine overrules the tables. Misses what nobody
looked at: a network between machines, a device that breaks under load, a quota.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from envsmith.checks.host_base import check_base
from envsmith.checks.host_devices import check_devices
from envsmith.checks.host_driver import check_driver, check_runs, overruled
from envsmith.checks.host_job import check_job
from envsmith.checks.host_libcuda import check_libcuda
from envsmith.checks.host_limits import check_limits
from envsmith.checks.host_loader import check_loader
from envsmith.checks.host_subject import Fitting, found, listed
from envsmith.checks.host_tables import cuda_of
from envsmith.checks.host_wheels import check_wheels
from envsmith.report import Finding, Severity, ordered

CHECKS: tuple[Callable[[Fitting], Iterator[Finding]], ...] = (
    check_driver,
    check_runs,
    check_libcuda,
    check_devices,
    check_wheels,
    check_loader,
    check_limits,
    check_job,
    check_base,
)


def judge_host(fittings: Sequence[Fitting]) -> tuple[Finding, ...]:
    """Hold the envs of a stack against one machine; what is true for several envs in the same words is said once."""
    said = [overruled(fit, finding) for fit in fittings for check in CHECKS for finding in check(fit)]
    kinds = {(one.kind, one.subject) for one in said if one.severity is Severity.ERROR}
    # The class that the recipe names is a weaker word than a finding about the same driver.
    if any(kind == "driver-too-old" for kind, _ in kinds):
        said = [one for one in said if one.kind != "driver-outside-class"]
    return ordered(dict.fromkeys((*_once(said), *_missing(fittings))))


#: Limits of the machine, which envs meet with more or less weight.
_OF_THE_MACHINE = ("fd-limit", "devices-too-few", "runtime-toolchain-missing", "af-unix-path")


def _once(said: Sequence[Finding]) -> Iterator[Finding]:
    """Of one limit that several envs meet, the heaviest alone; of equal ones that which says most."""
    heaviest: dict[tuple[str, str], Finding] = {}
    for one in said:
        key = (one.kind, one.subject)
        if key not in heaviest or _weight(one) > _weight(heaviest[key]):
            heaviest[key] = one
    yield from (one for one in said if one.kind not in _OF_THE_MACHINE or heaviest[one.kind, one.subject] == one)


def _weight(finding: Finding) -> tuple[bool, bool, int]:
    severity = finding.severity
    return severity is Severity.ERROR, severity is Severity.WARNING, len(finding.message)


def _missing(fittings: Sequence[Fitting]) -> Iterator[Finding]:
    """One note on what a better snapshot would tell, for facts that some env is judged by."""
    names: dict[str, None] = {}
    for fit in fittings:
        names.update(dict.fromkeys(_unknown(fit)))
    if names:
        yield found(
            "facts-missing",
            "host",
            f"the snapshot does not say: {listed(names, 20)}; nothing is claimed about them",
            severity=Severity.NOTE,
            hint="capture a snapshot on the machine itself: `envsmith snapshot -o FILE`",
        )


def _unknown(fit: Fitting) -> Iterator[str]:
    facts = fit.facts
    wants_cuda = cuda_of(fit.situation) is not None and not fit.has_no_device
    if facts.arch is None:
        yield "arch"
    if fit.glibc is None:
        yield "glibc"
    if wants_cuda and facts.driver is None:
        yield "driver"
    if wants_cuda and facts.driver != "" and facts.libcuda is None:
        yield "libcuda"
    if wants_cuda and facts.driver != "" and facts.cuinit is None:
        yield "cuinit"
    if wants_cuda and not facts.capabilities:
        yield "compute-capability of the accelerators"
    if fit.situation.has("ray") and facts.open_files is None:
        yield "open-files"
    if fit.needs_torch and facts.shm_bytes is None and not fit.has_no_device:
        yield "shm-bytes"
    if fit.situation.has("triton") and facts.compiler is None:
        yield "compiler"
    if not facts.environ:
        yield "environ"
    if fit.situation.job.checkpoint_dir and facts.behind(fit.situation.job.checkpoint_dir) is None:
        yield "file-system of the checkpoints"
    if fit.situation.lock and fit.situation.lock.base and not fit.packages:
        yield "packages of the base"
