"""The libcuda that a process of an env would map, and what it answered: is it the one that fits driver and device."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from packaging.version import Version

from envsmith.checks.host_subject import LIBRARY_PATH, Fitting, eased, found, numbers, same
from envsmith.checks.host_tables import cuda_major, is_data_centre, is_of_nvidia, library_of_branch
from envsmith.checks.maps import CUDA_RESULTS
from envsmith.hostfacts import DriverFolder
from envsmith.report import Finding, Severity
from envsmith.rules.situation import is_vendor_build
from envsmith.rules.tables import compat_libraries

_STUB, _NO_DEVICE, _MISMATCH, _UNSUPPORTED = 34, 100, 803, 804
#: From this release on Triton links `-l:libcuda.so.1` (wheels 3.2.0 to 3.7.1, read 2026-11-30: 3.5.1 says `-lcuda`).
LINKS_BY_NAME = Version("3.6")
#: Answers that name the fault, for a library that nobody recorded.
_SAYS_WHY = {
    _STUB: ("libcuda-stub", "it maps a stub, which is there to link against and can do nothing"),
    _MISMATCH: ("libcuda-wrong-compat", "it maps a libcuda that does not fit the kernel's driver"),
    _UNSUPPORTED: ("libcuda-compat-unsupported-hw", "it maps a compat libcuda on a device that allows none"),
}
MENDED = 'the launch table mends it: `driver-library = "host"` puts the driver\'s own libcuda first'


@dataclass(frozen=True, kw_only=True, slots=True)
class Mapped:
    """A libcuda as a process of the env gets it."""

    path: str
    version: str | None
    found_by: str | None
    """`LD_LIBRARY_PATH` or `loader` where that is known."""

    @property
    def folder(self) -> str:
        """Where it lies."""
        return str(PurePosixPath(self.path).parent)

    @property
    def is_stub(self) -> bool:
        """Whether it is there to link against and can do nothing."""
        return "stubs" in PurePosixPath(self.path).parts


def mapped(fit: Fitting) -> Mapped | None:
    """What a process of the env maps, before `driver-library`; None when there is none or nobody knows.

    The snapshot's own process saw the shell's LD_LIBRARY_PATH; where the launch table changes that, the folders of the
    snapshot say what is found then. Where they do not, the snapshot's word stands: that clearing the variable helps is
    not claimed, because the loader's configuration may name the same folder.
    """
    folders = {folder.path.rstrip("/"): folder for folder in fit.facts.driver_folder}
    seen = fit.facts.libcuda
    if seen is None or fit.changes_library_path:
        for element in fit.library_path:
            if element in folders:
                return _in(folders[element])
    if seen is None and not fit.changes_library_path:  # an element may be a link, and the rows name where it leads
        row = next((one for one in fit.facts.driver_folder if one.found_by == LIBRARY_PATH), None)
        if row:
            return _in(row)
    if seen == "" and not fit.changes_library_path:
        return None
    if seen and not (fit.changes_library_path and _came_by_variable(fit, seen)):
        return Mapped(path=seen, version=_seen_version(fit) or _of_folder(fit, seen), found_by=_way(fit, seen))
    by_loader = [folder for folder in fit.facts.driver_folder if folder.found_by == "loader" and folder.kind != "stubs"]
    if by_loader and (seen or len({folder.version for folder in by_loader}) == 1):
        return _in(by_loader[0])
    return Mapped(path=seen, version=_seen_version(fit) or _of_folder(fit, seen), found_by=None) if seen else None


def check_libcuda(fit: Fitting) -> Iterator[Finding]:
    """Judge the mapped libcuda; where the launch table puts the driver's own first, what it mends is a note.

    An env whose torch is built for the CPU or for another vendor's devices maps none.
    """
    if fit.needs_no_libcuda:
        return
    for finding in (*_stubs(fit), *_judge(fit)):
        yield eased(finding, MENDED) if fit.mends_driver and finding.severity is not Severity.NOTE else finding
    yield from _answer(fit)
    yield from _unversioned(fit)


def _judge(fit: Fitting) -> Iterator[Finding]:
    here, driver = mapped(fit), fit.driver
    answer = None if fit.changes_library_path and not _is_seen(fit, here) else fit.facts.cuinit
    is_nvidia = driver is not None or (fit.facts.driver is None and any(map(is_of_nvidia, fit.facts.accelerator)))
    if here is None and fit.facts.libcuda == "" and is_nvidia:
        yield found(
            "libcuda-missing",
            "host.libcuda",
            (f"driver {driver} is loaded" if driver else "there are devices")
            + ", and a new process finds no libcuda.so.1",
            hint=_first(fit),
        )
        return
    if here is None and fit.facts.libcuda is None and driver:
        yield from _either(fit, driver)
    if here is None or here.is_stub:
        return
    version = here.version
    if answer == _UNSUPPORTED or (driver and version and numbers(version) > numbers(driver)):
        yield from _newer(fit, here, answer)
    elif answer == _MISMATCH or (driver and version and numbers(version) < numbers(driver) and answer != 0):
        yield found(
            "libcuda-wrong-compat",
            here.path,
            f"a new process maps libcuda {version or 'of unknown version'} from `{here.folder}`, and the kernel's "
            f"driver is {driver or 'another'}: {'`cuInit` answered' if answer == _MISMATCH else 'expect'} error 803",
            expected=driver,
            actual=version or here.path,
            hint=_first(fit)
            + "; or take the compat folder out of the loader's configuration (/etc/ld.so.conf.d); then start a new "
            "process; clearing LD_LIBRARY_PATH alone is not enough",
        )


def _either(fit: Fitting, driver: str) -> Iterator[Finding]:
    """Nobody tried which library the loader gives, and one of those that it has is older than the driver."""
    for row in fit.facts.driver_folder:
        version = _numbered(row.version)
        if row.found_by == "loader" and row.kind != "stubs" and version and numbers(version) < numbers(driver):
            yield found(
                "libcuda-wrong-compat",
                row.path,
                f"the loader has libcuda {version} in `{row.path}`, and the kernel's driver is {driver}: a new process "
                "that maps it gets error 803; nobody tried which one it maps",
                severity=Severity.WARNING,
                expected=driver,
                actual=version,
                hint=_first(fit) + "; or take a snapshot on the machine, which tries it",
            )


def _newer(fit: Fitting, here: Mapped, answer: int | None) -> Iterator[Finding]:
    """A compat library is mapped: right on data-centre devices and listed branches, where it is needed."""
    if answer == 0:
        return
    said = [is_data_centre(device) for device in fit.facts.accelerator]
    names = ", ".join(dict.fromkeys(device.name for device in fit.facts.accelerator)) or "this device"
    families = cuda_major(numbers(fit.driver)) if fit.driver else None
    enough = f"; driver {fit.driver} runs programs of every CUDA {families} by itself" if families else ""
    hint = f"take `{here.folder}` out of LD_LIBRARY_PATH and of the loader's configuration{enough}"
    if answer == _UNSUPPORTED or False in said or (None in said and answer is None):
        sure = answer == _UNSUPPORTED or False in said
        yield found(
            "libcuda-compat-unsupported-hw",
            here.path,
            f"a new process maps the compat libcuda {here.version or here.path} on {names} with driver {fit.driver}; "
            + ("forward" if sure else "perhaps forward")
            + " compatibility does not exist for that device: "
            + ("`cuInit` answered error 804" if answer == _UNSUPPORTED else "expect error 804"),
            severity=Severity.ERROR if sure else Severity.WARNING,
            expected=fit.driver,
            actual=here.version,
            hint=hint,
        )
        return
    branch, library = numbers(fit.driver or "0")[0], library_of_branch(numbers(here.version or "0")[0])
    if answer == _MISMATCH or (library and library[1].complete and branch not in library[1].branches):
        listing = ", ".join(map(str, library[1].branches)) if library else "other branches"
        if branch == numbers(here.version or "0")[0] and answer != _MISMATCH:
            return  # of the driver's own branch and a little newer: nobody lists that
        yield found(
            "cuda-compat-unsupported",
            here.path,
            f"a new process maps the compat libcuda {here.version}, which runs on driver branch {listing}, and the "
            f"kernel's driver is {fit.driver}: {'`cuInit` answered' if answer == _MISMATCH else 'expect'} error 803",
            expected=f"branch {listing}",
            actual=fit.driver,
            hint=hint,
        )


def _stubs(fit: Fitting) -> Iterator[Finding]:
    """Stubs are there for the linker; in LD_LIBRARY_PATH or mapped they hide the driver."""
    marked = {folder.path.rstrip("/") for folder in fit.facts.driver_folder if folder.kind == "stubs"}
    elements = [one for one in fit.library_path if "stubs" in PurePosixPath(one).parts or one in marked]
    here = mapped(fit)
    hint = "take the folder out of LD_LIBRARY_PATH; only LIBRARY_PATH, for the linker, may name it, and no copy or link"
    for element in elements:
        yield found(
            "libcuda-stub",
            f"{LIBRARY_PATH}: {element}",
            "LD_LIBRARY_PATH leads to a stub of libcuda, which is there to link against and can do nothing: "
            "expect error 34",
            actual=fit.variable(LIBRARY_PATH),
            hint=hint,
        )
    if here and not any(here.folder == element for element in elements):
        is_stub = here.is_stub or here.folder in marked
        seen = not fit.changes_library_path or _is_seen(fit, here)
        if is_stub or (fit.facts.cuinit == _STUB and not elements and seen):
            yield found(
                "libcuda-stub",
                here.path,
                "a new process maps a stub of libcuda, which is there to link against and can do nothing: "
                + ("`cuInit` answered error 34" if fit.facts.cuinit == _STUB else "expect error 34"),
                hint=hint.replace("LD_LIBRARY_PATH;", "LD_LIBRARY_PATH and of the loader's configuration;"),
            )


def _answer(fit: Fitting) -> Iterator[Finding]:
    """Whatever else `cuInit` answered; a machine without a device may say so."""
    answer = fit.facts.cuinit
    told = (_STUB, _MISMATCH, _UNSUPPORTED) if mapped(fit) else ()  # with the library that is to blame
    if answer in (None, 0, *told) or (fit.has_no_device and answer in (_NO_DEVICE, 999)):
        return
    name, says = CUDA_RESULTS.get(answer or 0, ("another CUresult", "see the CUDA Driver API reference"))
    if answer in _SAYS_WHY and not fit.changes_library_path:
        kind, why = _SAYS_WHY[answer]
        yield found(
            kind,
            fit.facts.libcuda or "host.cuinit",
            f"`cuInit` answered error {answer} in a new process: {why}; nobody recorded which file it maps",
            expected="0 CUDA_SUCCESS",
            actual=f"{answer} {name}",
            hint=_first(fit) + "; then start a new process",
        )
        return
    if answer is not None and answer < 0:  # as the payload writes it
        name, says = "no answer", f"signal {-answer} ended the process in it"
    yield found(
        "libcuda-init-failed",
        fit.facts.libcuda or "host.cuinit",
        f"a new process loads the driver's library, but `cuInit` fails: {says}",
        expected="0 CUDA_SUCCESS",
        actual=f"{answer} {name}",
        hint="mend it before anything is built: no framework starts on a device that this call cannot open",
    )


def _unversioned(fit: Fitting) -> Iterator[Finding]:
    """Triton before 3.6 links `-lcuda` at run time, which finds a file without a version only.

    Newer ones link `-l:libcuda.so.1`; then it only meets those few that still say `-lcuda`.
    """
    here = mapped(fit)
    wants = fit.situation.has("triton") or (fit.situation.lock is None and fit.needs_torch)
    told = fit.variable("TRITON_LIBCUDA_PATH")
    if here is None or here.is_stub or not wants or told:
        return
    linker = {one.rstrip("/") for one in (fit.variable("LIBRARY_PATH") or "").split(":")}
    seen = [
        folder
        for folder in fit.facts.driver_folder
        if (folder.found_by != "search" and folder.kind != "stubs") or folder.path.rstrip("/") in linker
    ]
    own = next((folder for folder in fit.facts.driver_folder if folder.path.rstrip("/") == here.folder), None)
    if own is None or own.unversioned is not False or any(folder.unversioned for folder in seen):
        return
    triton = fit.situation.version("triton")
    torch = fit.situation.version("torch")
    by_vendor = any(one is not None and is_vendor_build(one) for one in (torch, triton))
    by_name = triton is not None and not by_vendor and Version(triton.base_version) >= LINKS_BY_NAME
    finding = found(
        "libcuda-unversioned-missing",
        f"{own.path}/libcuda.so",
        f"`{own.path}` has libcuda.so.1 and no libcuda.so: Triton {triton} does not need it, whatever else compiles at "
        "run time and links `-lcuda` does"
        if by_name
        else f"`{own.path}` has libcuda.so.1 and no libcuda.so: Triton of the public index before 3.6 would not link, "
        "what the vendor's does nobody knows"
        if by_vendor
        else f"`{own.path}` has libcuda.so.1 and no libcuda.so, and Triton links `-lcuda` when it compiles its "
        "launcher: expect `cannot find -lcuda`",
        severity=Severity.WARNING if by_name or by_vendor else Severity.ERROR,
        expected="libcuda.so beside libcuda.so.1",
        hint='say `driver-library = "host"` in the launch table, whose private folder has that name too; or let who '
        "makes the image link libcuda.so to libcuda.so.1 there; a folder of stubs in LD_LIBRARY_PATH is no way",
    )
    yield eased(finding, MENDED) if fit.mends_driver else finding


def _first(fit: Fitting) -> str:
    where = f"`{fit.driver_folder}`" if fit.driver_folder else "the folder of the driver's own libcuda"
    return f'say `driver-library = "host"` in the launch table, or put {where} first in LD_LIBRARY_PATH'


def _in(folder: DriverFolder) -> Mapped:
    name = "libcuda.so.1" if folder.kind != "stubs" else "libcuda.so"
    path = f"{folder.path.rstrip('/')}/{name}"
    return Mapped(path=path, version=_numbered(folder.version), found_by=folder.found_by)


def _seen_version(fit: Fitting) -> str | None:
    """Of the library that answered the snapshot: said, else by the file's name, `libcuda.so.575.57.08`."""
    tail = PurePosixPath(fit.facts.libcuda or "").name.partition(".so.")[2]
    return _numbered(fit.facts.libcuda_version) or _numbered(tail)


def _of_folder(fit: Fitting, path: str) -> str | None:
    """The branch of a compat library by its folder, `/usr/local/cuda-12.9/compat`, unless it is the kernel's."""
    release = re.search(r"/cuda-([0-9]+\.[0-9]+)/compat/", path)
    listing = compat_libraries().get(release[1]) if release else None
    if listing is None or listing.driver is None or fit.driver is None or numbers(fit.driver)[0] == listing.driver:
        return None
    return str(listing.driver)


def _numbered(version: str | None) -> str | None:
    return version if version and re.fullmatch(r"[0-9]+(\.[0-9]+)+", version) else None


def _way(fit: Fitting, path: str) -> str | None:
    folder = str(PurePosixPath(path).parent)
    return next((one.found_by for one in fit.facts.driver_folder if one.path.rstrip("/") == folder), None)


def _came_by_variable(fit: Fitting, path: str) -> bool:
    folder = str(PurePosixPath(path).parent)
    shell = fit.facts.environ.get(LIBRARY_PATH, "").split(":")
    return _way(fit, path) == LIBRARY_PATH or folder in (element.rstrip("/") for element in shell)


def _is_seen(fit: Fitting, here: Mapped | None) -> bool:
    """Whether it is the very library that answered the snapshot."""
    return here is not None and (here.path == fit.facts.libcuda or same(here.version, _seen_version(fit)))
