"""Whether the kernel driver of a machine runs programs of the CUDA release that an env's torch is built for.

NVIDIA's rules: within one CUDA major every driver from the floor on will do; below it only the user-mode library of a
newer release helps, on data-centre devices and on the driver branches that NVIDIA lists for that library.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from envsmith.checks.host_libcuda import Mapped, mapped
from envsmith.checks.host_subject import Fitting, Numbers, capability_of, found, listed, numbers, release_of, same
from envsmith.checks.host_tables import cuda_major, cuda_of, floors, is_data_centre, libraries_for, library_of_branch
from envsmith.hostfacts import DeviceRun, HostFacts
from envsmith.report import Finding, Severity
from envsmith.rules.tables import capability, compat_libraries, torch_builds


class Answer(Enum):
    """What the tables say of a way to run programs."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Library:
    """A user-mode libcuda that is newer than the kernel's driver."""

    driver: Numbers | None
    """Its own version; None where only its CUDA release is known."""
    cuda: str | None
    """Its CUDA release, as `12.8`."""
    path: str | None = None
    """Folder; None for one that the recipe only says is there."""
    is_mapped: bool = False
    """Whether a fresh process of the env gets it."""

    @property
    def words(self) -> str:
        """How a message names it."""
        named = f"of CUDA {self.cuda}" if self.cuda else ".".join(map(str, self.driver or ()))
        return f"the compat library {named}" + (f" in `{self.path}`" if self.path else " that the recipe names")


def runs_natively(driver: Numbers, major: int) -> bool:
    """Whether a libcuda of a driver's version runs programs of a CUDA major by itself."""
    return numbers(floors()[major])[: len(driver)] <= driver  # of a branch alone every release counts


def bridges(library: Library, branch: int, *, data_centre: bool | None, major: int) -> tuple[Answer, str]:
    """Whether a newer library runs programs of a CUDA major on an older kernel driver; and why not."""
    if library.driver and not runs_natively(library.driver, major):
        return Answer.NO, f"{library.words} is too old for programs of CUDA {major}"
    if not library.driver and library.cuda and capability(library.cuda)[0] < major:
        return Answer.NO, f"{library.words} does not run programs of CUDA {major}"
    if data_centre is False:
        return Answer.NO, "forward compatibility exists for data-centre devices only"
    listing = compat_libraries().get(library.cuda) if library.cuda else None
    if listing is None:
        return Answer.UNKNOWN, f"no table says on which driver branches {library.words} runs"
    if branch not in listing.branches:
        branches = ", ".join(map(str, listing.branches))
        if listing.complete:
            return Answer.NO, f"{library.words} runs on driver branch {branches} and not on {branch}"
        return Answer.UNKNOWN, f"the table of {library.words} is not complete: {branches} are known"
    if data_centre is None:
        return Answer.UNKNOWN, "nobody knows whether forward compatibility exists for this device"
    return Answer.YES, ""


def check_driver(fit: Fitting) -> Iterator[Finding]:
    """Hold the driver against the CUDA release of the locked torch; a vendor's own build is not judged by tables."""
    cuda = cuda_of(fit.situation)
    if cuda is not None and fit.facts.driver is None:
        yield from _by_library(fit, cuda)
    if cuda is None or not fit.facts.driver:
        return
    major, torch = capability(cuda)[0], fit.situation.version("torch")
    if major < min(floors()) and fit.driver is not None and cuda_major(numbers(fit.driver)) is not None:
        return  # drivers run what older majors made
    if fit.driver is not None and major not in floors() and _is_of_older_major(fit, major):
        yield _beyond(fit, cuda)
        return
    if fit.driver is None or major not in floors():
        what = f"programs of CUDA {cuda}" if fit.driver else f"the driver `{fit.facts.driver}`"
        yield _unknown(fit, f"torch {torch} is built for CUDA {cuda}; no table here knows {what}")
        return
    kernel = numbers(fit.driver)
    if runs_natively(kernel, major):
        yield from _older_minor(fit, cuda)
        return
    yield from _below(fit, cuda, major, kernel)


def _by_library(fit: Fitting, cuda: str) -> Iterator[Finding]:
    """Nobody recorded the driver: the library that a process maps bounds what runs, whatever is behind it.

    Torch refuses where `cuDriverGetVersion` answers an older major than its own: "found version 11040".
    """
    here, major = mapped(fit), capability(cuda)[0]
    if fit.mends_driver or (fit.changes_library_path and (here is None or here.path != fit.facts.libcuda)):
        return
    if any(row.kind == "compat" for row in fit.facts.driver_folder):
        return  # which may bridge the gap: that depends on the driver
    if fit.situation.host.cuda_compat and not has_looked(fit.facts):
        return
    version = numbers(here.version) if here and here.version else ()
    answer = numbers(fit.facts.cuda_driver_version or "")[:2]
    if version and major in floors():
        is_old = not runs_natively(version, major)
    else:
        is_old = len(answer) == 2 and 0 < answer[0] < major
    if not is_old:
        return
    family = cuda_major(version) if version else answer[0]
    of = f"CUDA {fit.facts.cuda_driver_version}" if answer else f"CUDA {family}" if family else "an older CUDA"
    what = f"the libcuda that a new process maps is {here.version}, of {of}" if version and here else f"it is of {of}"
    like = f"pin a torch that is built for CUDA {family}, or " if family and family < major else ""
    yield found(
        "driver-too-old",
        "host.libcuda" if version else "host.cuda-driver-version",
        f"torch {fit.situation.version('torch')} is built for CUDA {cuda}, and of the driver only its library is "
        f"known: {what}, which runs no programs of CUDA {major}",
        expected=f"driver >={floors()[major]}" if major in floors() else f"CUDA {major}",
        actual=here.version if version and here else fit.facts.cuda_driver_version,
        hint=f"{like}bring a compat library of CUDA {major} where driver and device allow one; "
        f"another build for CUDA {major} does not help",
    )


def _is_of_older_major(fit: Fitting, major: int) -> bool:
    """Whether a driver cannot run a CUDA major that no table has: it says itself which it is of, or is older than all.

    Minor versions are compatible within one major alone. A library of a newer driver on the machine leaves it open.
    """
    kernel, answer = numbers(fit.driver or ""), numbers(fit.facts.cuda_driver_version or "")
    if newer_libraries(fit, mapped(fit), kernel):
        return False
    own = bool(answer) and same(fit.facts.libcuda_version, fit.driver)
    known = [one for one in floors() if one < major]
    return (own and answer[0] < major) or (bool(known) and not runs_natively(kernel, max(known)))


def _beyond(fit: Fitting, cuda: str) -> Finding:
    family = cuda_major(numbers(fit.driver or ""))
    says = fit.facts.cuda_driver_version or f"{family}.x"
    return found(
        "driver-too-old",
        "host.driver",
        f"torch {fit.situation.version('torch')} is built for CUDA {cuda}, and driver {fit.driver} is of CUDA {says}: "
        "a driver runs programs of its own major and of older ones",
        expected=f"a driver of CUDA {capability(cuda)[0]}",
        actual=f"{fit.driver}, of CUDA {says}",
        hint=f"pin a torch that is built for CUDA {family}" if family else "take another machine",
    )


def _below(fit: Fitting, cuda: str, major: int, kernel: Numbers) -> Iterator[Finding]:
    """The driver is older than the family's floor: look for a library that bridges the gap."""
    data_centre = data_centre_of(fit.facts)
    here = mapped(fit)
    answers = [
        (library, *bridges(library, kernel[0], data_centre=data_centre, major=major))
        for library in newer_libraries(fit, here, kernel)
    ]
    # cuInit that succeeds is an answer about library, driver and device; the tables have nothing to add.
    proved = [one for one, _, _ in answers if one.is_mapped and fit.facts.cuinit == 0 and _serves(one, major)]
    good = proved or [library for library, answer, _ in answers if answer is Answer.YES]
    if good and not fit.mends_driver:
        if not any(library.is_mapped for library in good):
            yield from _not_on_path(fit, good[0])
        return
    unknown = [(library, why) for library, answer, why in answers if answer is Answer.UNKNOWN]
    torch = fit.situation.version("torch")
    if unknown and not fit.mends_driver:
        yield _unknown(
            fit,
            f"torch {torch} is built for CUDA {cuda}, which driver {fit.driver} runs only through a compat library: "
            + unknown[0][1],
        )
        return
    reasons = [why for _, answer, why in answers if answer is Answer.NO]
    if good or unknown:
        reasons = ['`driver-library = "host"` keeps the compat library away']
    yield found(
        "driver-too-old",
        "host.driver",
        f"torch {torch} is built for CUDA {cuda}, which needs driver {floors()[major]} or newer; the machine has "
        f"{fit.driver}, "
        + (
            listed(dict.fromkeys(reasons), 3) if reasons else "and no compat library that would bridge the gap is there"
        ),
        expected=f">={floors()[major]}",
        actual=fit.driver,
        hint=_way_out(fit, cuda, kernel, data_centre, is_kept_away=bool(good or unknown)),
    )


def _serves(library: Library, major: int) -> bool:
    return library.driver is None or runs_natively(library.driver, major)


def newer_libraries(fit: Fitting, here: Mapped | None, kernel: Numbers) -> list[Library]:
    """Libraries of newer drivers that the machine has, the mapped one first; else what the recipe says is there."""
    known: dict[str, Library] = {}
    if here and here.version and numbers(here.version) > kernel:
        known[here.folder] = _library(here.version, here.folder, is_mapped=True)
    for folder in fit.facts.driver_folder:
        path = folder.path.rstrip("/")
        if folder.version and numbers(folder.version) > kernel and folder.kind != "stubs":
            known.setdefault(path, _library(folder.version, path, is_mapped=False))
        elif folder.version is None and folder.kind == "compat":
            mapped_here = here is not None and here.folder == path
            known.setdefault(path, Library(driver=None, cuda=None, path=path, is_mapped=mapped_here))
    said = fit.situation.host.cuda_compat
    assets = (asset.path for asset in fit.situation.env.asset.values())
    if (
        said
        and not known
        and (not has_looked(fit.facts) or any("compat" in path or "libcuda" in path for path in assets))
    ):
        listing = compat_libraries().get(said)
        driver = (listing.driver,) if listing and listing.driver else None
        return [Library(driver=driver, cuda=said, is_mapped=True)]
    return list(known.values())


def has_looked(facts: HostFacts) -> bool:
    """Whether whoever took the snapshot looked for libraries, so that none means that there is none."""
    return bool(facts.driver_folder) or facts.libcuda is not None


def data_centre_of(facts: HostFacts) -> bool | None:
    """Whether all devices allow forward compatibility; None when that is not known of one of them."""
    said = [is_data_centre(device) for device in facts.accelerator]
    if False in said:
        return False
    return True if said and None not in said else None


def _library(version: str, path: str, *, is_mapped: bool) -> Library:
    branch = numbers(version)[0]
    listing = library_of_branch(branch)
    return Library(driver=numbers(version), cuda=listing[0] if listing else None, path=path, is_mapped=is_mapped)


def _not_on_path(fit: Fitting, library: Library) -> Iterator[Finding]:
    if library.path and library.path in fit.library_path:
        return
    yield found(
        "compat-not-on-path",
        "host.driver-folder",
        f"driver {fit.driver} runs this env through {library.words} alone, and no process finds it without being told",
        severity=Severity.WARNING,
        expected=f"LD_LIBRARY_PATH beginning with {library.path}",
        actual=fit.variable("LD_LIBRARY_PATH") or "not set",
        hint=f'add `prepend = {{ LD_LIBRARY_PATH = "{library.path}" }}` to the launch table',
    )


def _older_minor(fit: Fitting, cuda: str) -> Iterator[Finding]:
    """The driver is of the family and older than the toolkit: that runs, less what is compiled from newer PTX."""
    said = fit.facts.cuda_driver_version
    listing = library_of_branch(numbers(fit.driver or "")[0])
    has = said or (listing[0] if listing else None)
    parts = numbers(has)[:2] if has else ()
    if len(parts) == 2 and parts[0] == capability(cuda)[0] and parts < capability(cuda):
        yield found(
            "driver-of-older-minor",
            "host.driver",
            f"driver {fit.driver} is of CUDA {has}, torch of CUDA {cuda}: it runs, as both are of one major, but what "
            "a newer compiler makes at run time (PTX) may not",
            severity=Severity.NOTE,
            hint="nothing has to be done; if a kernel that is compiled at run time fails, look here first",
        )


def _unknown(fit: Fitting, message: str) -> Finding:
    return found(
        "driver-not-in-tables",
        "host.driver",
        message,
        severity=Severity.WARNING,
        actual=fit.facts.driver,
        hint="run a bfloat16 product with this torch on the machine and put it into the snapshot: a run is an answer",
    )


def _way_out(fit: Fitting, cuda: str, kernel: Numbers, data_centre: bool | None, *, is_kept_away: bool) -> str:
    major, family = capability(cuda)[0], cuda_major(kernel)
    if is_kept_away:
        return (
            "take `driver-library` out of the launch table: this driver runs the env through the compat library alone"
        )
    ways = []
    if family is not None:
        newest = max(
            (capability(one.cuda) for one in torch_builds().values() if capability(one.cuda)[0] == family), default=None
        )
        like = "cu118" if family == 11 else f"cu{newest[0]}{newest[1]}" if newest else f"cu{family}x"
        ways.append(f"pin a torch that is built for CUDA {family} (such as `+{like}`)")
    releases = libraries_for(cuda, kernel[0]) if data_centre is not False else ()
    if releases:
        who = "" if data_centre else ", if it is a data-centre device"
        ways.append(f"bring the compat library of CUDA {listed(reversed(releases))}, which runs on this branch{who}")
    ways = ways or ["take another machine: no torch that is known runs with this driver"]
    return f"{', or '.join(ways)}; another build for CUDA {major} does not help"


def check_runs(fit: Fitting) -> Iterator[Finding]:
    """A run on the machine that failed for this driver and CUDA release beats every table.

    Where `cuInit` itself failed, that is the cause, and the run only follows from it.
    """
    follows = fit.facts.cuinit not in (0, None)
    for run in fit.failures(cuda_of(fit.situation)):
        through = f" through `{run.libcuda}`" if run.libcuda else ""
        using = f"CUDA {release_of(run)}" if release_of(run) else f"torch {run.torch}"
        # A capture multiplies in bfloat16 whatever the job's format is; older devices need not be able to.
        sees_no_code = "kernel image" in (run.error or "")
        is_asked = sees_no_code or fit.situation.job.dtype not in (None, "auto") or not _is_without_bfloat16(fit, run)
        yield found(
            "device-run-failed",
            "host.run",
            f"a {run.dtype} product with {using} on driver {run.driver}{through} failed on the machine: "
            f"{run.error or 'nobody recorded the error'}"
            + ("; that follows from what `cuInit` answered" if follows else ""),
            severity=Severity.NOTE if follows else Severity.ERROR if is_asked else Severity.WARNING,
            actual=run.error,
            hint="what was tried on the machine counts: mend that error first, then take a new snapshot"
            if is_asked
            else "bfloat16 needs compute capability 8.0: name the job's format as `dtype`, such as `float16`, and put "
            "a product in it into the snapshot",
        )


def _is_without_bfloat16(fit: Fitting, run: DeviceRun) -> bool:
    """Whether the device of a run is known to be below 8.0."""
    able = [
        capability_of(device) for device in fit.facts.accelerator if run.device is None or run.device == device.name
    ]
    return bool(able) and all(one is not None and one < (8, 0) for one in able)


#: What tables object to and a run on the machine settles.
TABLES = ("driver-too-old", "driver-not-in-tables", "cuda-compat-unsupported", "libcuda-compat-unsupported-hw")


def overruled(fit: Fitting, finding: Finding) -> Finding:
    """The finding itself, or a note where a run on the machine says otherwise."""
    cuda = cuda_of(fit.situation)
    refuted = fit.facts.cuinit not in (0, None)
    run = fit.proof(cuda) if finding.kind in TABLES else None
    if finding.kind == "libcuda-wrong-compat" and not refuted:  # expected by number alone
        proof = fit.proof(cuda)
        run = proof if proof and proof.libcuda == finding.subject else None
    if run is None or (refuted and finding.kind in TABLES[2:]):
        return finding
    device, through = run.device or "the device", f" through `{run.libcuda}`" if run.libcuda else ""
    return found(
        "table-overruled",
        finding.subject,
        f"the tables say: {finding.message}. A {run.dtype} product with CUDA {cuda} ran on {device} behind driver "
        f"{run.driver}{through}, which overrules them",
        severity=Severity.NOTE,
        hint="keep the env on the library that the run used" + (f": `{run.libcuda}`" if run.libcuda else ""),
    )
