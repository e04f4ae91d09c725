"""Family `native`: do the libraries of the environment fit one another, this host and its devices.

Proved from the headers of the files: nothing is loaded and no package code runs. What a process really maps is another
question, which `--contexts` asks.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from envsmith.checks.linking import FAMILY, Linkage, Shipped, check_linking
from envsmith.manifest import Manifest, import_base
from envsmith.native import (
    FOREIGN,
    LIBRARY_NAME,
    HostLibraries,
    NativeFacts,
    NativeFile,
    OutsideFolder,
    duplicates,
    family,
    in_family,
    judged_images,
    outside_folders,
    runs_on,
    same_bytes,
    searching_here,
)
from envsmith.report import REBUILD, Finding, Severity

HINT = f"build it again with {REBUILD}"
#: Where loaders look anyway: a search path that names one of them changes nothing.
LOADER_FOLDERS = frozenset({"/lib", "/usr/lib", "/lib64", "/usr/lib64"})
#: A package cannot do anything on a device without this one, whatever its other libraries were built for.
CORE_LIBRARIES = ("libtorch_cuda.so",)

#: Source: elf.h of glibc 2.36.
_MACHINES = {3: "x86", 20: "powerpc", 21: "ppc64", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv"}
_CAPABILITY = re.compile(r"(\d{1,2})\.(\d)\Z")

Owned = Mapping[str, tuple[str, str]]
"""sha256 and owner of every file, by path."""


def owned_by(manifest: Manifest, digests: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Return the manifest as this family takes it; where owners disagree, the content that is there counts."""
    found = {}
    for entry in manifest.entries:
        fitting = [c for c in entry.contents if c.sha256 == digests.get(entry.path)] or entry.contents
        found[entry.path] = (fitting[0].sha256, fitting[0].owner)
    return found


def check_native(
    facts: NativeFacts,
    host: HostLibraries,
    *,
    env_manifest: Owned | None = None,
    single_instance: Collection[str] = (),
    glibc: str | None = None,
    compute_capabilities: Collection[str] = (),
    has_device: bool = True,
    base: NativeFacts | None = None,
) -> Iterator[Finding]:
    """Judge the native files of an env on a host.

    Proves that libraries are whole and what their names say, that every needed one and every symbol version is there,
    that families which must be loaded once have one build, and that packages have code for the devices.
    Misses what is opened by name at run time, symbols without versions, and kernels compiled at run time.

    `glibc` is judged instead of the host's own where given. `single_instance` are families such as `libnccl`.
    `base` is what lies below an overlay. Without `env_manifest` nobody knows what was shipped, so copies are notes.
    """
    known = _Known(manifest=env_manifest or {})
    yield from _damaged(facts, known)
    yield from _wrong(facts, known)
    yield from _twice(facts, known, single_instance)
    yield from _extra(facts, known, single_instance)
    yield from _outside(facts, host, known)
    yield from _kernels(facts, known, compute_capabilities)
    shipped = Shipped(names={path.rpartition("/")[2] for path in known.manifest}, unchanged=known.unchanged)
    yield from check_linking(
        Linkage(facts, host, base), owner=known.owner, glibc=glibc, has_device=has_device, shipped=shipped
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Known:
    """What the manifest says, if there is one."""

    manifest: Owned

    def unchanged(self, file: NativeFile) -> bool:
        """Say whether a file is proved to be as its package shipped it."""
        row = self.manifest.get(file.path)
        return row is not None and row[0] == file.sha256

    def listed(self, file: NativeFile) -> bool:
        return file.path in self.manifest

    def owner(self, path: str) -> str:
        """Name the package, or the folder that stands for it."""
        row = self.manifest.get(path)
        if row is not None:
            return row[1]
        base = import_base(path) or ""
        parts = path[len(base) :].split("/")
        return "/".join(parts[: 2 if parts[0] == "nvidia" else 1])


def _damaged(facts: NativeFacts, known: _Known) -> Iterator[Finding]:
    whole = {file.path for file in facts.libraries}
    for file in facts.files:
        if file.path in whole or known.unchanged(file):
            continue
        why, machine = file.elf.damaged, file.elf.machine
        if (why is None or why == FOREIGN) and not (known.manifest and LIBRARY_NAME.search(file.name)):
            continue  # some packages carry libraries for other machines along
        if why is None:
            why = f"it is for {_MACHINES.get(machine, f'machine {machine}')}"
        yield _finding(
            "library-damaged",
            Severity.ERROR,
            file.path,
            f"a library of {known.owner(file.path)} cannot be loaded: {why}",
            expected=f"a whole ELF file for {_MACHINES.get(facts.machine or 0, 'this machine')}",
            actual=f"{file.size:,} bytes; {why}",
            hint=HINT,
        )


def _wrong(facts: NativeFacts, known: _Known) -> Iterator[Finding]:
    """Find a library under the name of another; what a package itself ships so is left alone."""
    for file in facts.libraries:
        soname = file.elf.soname
        if not soname or not file.name.startswith("lib") or not LIBRARY_NAME.search(file.name):
            continue
        called, named = family(soname).lower(), family(file.name).lower()
        if called == named or known.unchanged(file):
            continue
        if known.manifest and file.sha256 is None:
            continue  # not read this time: the family `files` says so
        if not known.manifest and (called.startswith(named) or named.startswith(called)):
            continue  # libXaw7 calls itself libXaw, and nobody says that it did not before
        yield _finding(
            "wrong-library",
            Severity.ERROR if known.manifest else Severity.NOTE,
            file.path,
            "the file calls itself by the name of another library",
            expected=family(file.name),
            actual=f"SONAME {soname}",
            hint=HINT if known.manifest else "compare it with what its package ships",
        )


def _twice(facts: NativeFacts, known: _Known, single: Collection[str]) -> Iterator[Finding]:
    """Judge copies that the manifest lists, or, without one, all of them.

    Packages ship their own builds of libjpeg and the like and load them by their own path: nobody needs to hear that.
    """
    others = []
    for soname, copies in duplicates(facts).items():
        files = [file for file in copies if known.listed(file) or not known.manifest]
        if len(files) < 2 or same_bytes(files):
            continue
        alone = in_family(soname, single)
        if not alone:
            others.append(soname)
            continue
        yield _finding(
            "soname-twice",
            Severity.ERROR if known.manifest else Severity.NOTE,
            soname,
            f"{alone} must be loaded once, and the {len(files)} files named so are not one build",
            expected="one build",
            actual=", ".join(file.path for file in files[:4]) + (", …" if len(files) > 4 else ""),
            hint="lock versions that agree, or take the family out of `verify.single-instance` with a reason",
        )
    if others and not known.manifest:
        yield _finding(
            "soname-twice",
            Severity.NOTE,
            others[0] if len(others) == 1 else f"{len(others)} libraries",
            "several builds go by one name; a process gets whichever it loads first",
            expected="one build of each",
            actual=", ".join(others[:4]) + (", …" if len(others) > 4 else ""),
            hint="nothing to mend as long as each package loads its own",
        )


def _extra(facts: NativeFacts, known: _Known, single: Collection[str]) -> Iterator[Finding]:
    """Judge copies that no package brought; their version may be another, so the family counts as well."""
    if not known.manifest:
        return
    by_family: dict[str, list[NativeFile]] = defaultdict(list)
    by_soname: dict[str, list[NativeFile]] = defaultdict(list)
    for file in facts.libraries:
        if known.listed(file):
            by_family[family(file.name)].append(file)
            by_soname[file.elf.soname or file.name].append(file)
    for file in facts.libraries:
        soname = file.elf.soname or file.name
        if known.listed(file) or not soname.startswith("lib"):
            continue
        twins = by_soname.get(soname) or by_family.get(family(soname))
        if not twins:
            continue
        alone = in_family(soname, single)
        same = "the same bytes" if same_bytes([file, twins[0]]) else "other bytes"
        yield _finding(
            "soname-twice",
            Severity.ERROR if alone else Severity.WARNING,
            file.path,
            f"no package brought this second copy of {family(soname)}"
            + (", which must be loaded once" if alone else ""),
            expected=twins[0].path,
            actual=f"{soname}, {same}",
            hint=f"find out who put it there and remove it, or {HINT}",
        )


def _outside(facts: NativeFacts, host: HostLibraries, known: _Known) -> Iterator[Finding]:
    """Find search paths that lead out of the env to where something is, or where others could put something."""
    naming = outside_folders(facts.files, facts.root)
    harmless = LOADER_FOLDERS | set(host.default_folders)
    for folder in facts.outside:
        files = naming.get(folder.path, ())
        if files and folder.path not in harmless and (folder.exists or folder.writable_by):
            yield _leading_out(folder.path, files, _why(folder))
    # Wheels of NVIDIA ship empty elements; a file that a package brought and that was changed is reported by `files`.
    here = tuple(file.path for file in searching_here(facts) if known.manifest and not known.listed(file))
    if here:
        yield _leading_out("the current directory", here, "whoever starts a process elsewhere loads from there")


def _why(folder: OutsideFolder) -> str:
    if folder.writable_by:
        return f"{folder.writable_by} can put a library there"
    return f"it exists and holds {len(folder.names):,} libraries"


def _leading_out(folder: str, files: tuple[str, ...], why: str) -> Finding:
    return _finding(
        "rpath-outside",
        Severity.WARNING,
        files[0] if len(files) == 1 else f"{len(files)} files",
        f"a search path of {files[0]} leads out of the env, to {folder}: {why}",
        expected="search paths below $ORIGIN",
        actual=folder,
        hint="make sure that nothing of the same name lies there; a build with a relative RPATH needs no such care",
    )


def _kernels(facts: NativeFacts, known: _Known, capabilities: Collection[str]) -> Iterator[Finding]:
    """Hold device code against devices, by package: optional variants may be for others, all of them may not."""
    packages: dict[str, list[NativeFile]] = defaultdict(list)
    for file in facts.libraries:
        if judged_images(file):
            packages[known.owner(file.path)].append(file)
    for text in sorted(set(capabilities)):
        found = _CAPABILITY.match(text)
        if not found:
            continue
        capability = int(found[1]), int(found[2])
        for package, files in sorted(packages.items()):
            unfit = [f for f in files if not any(runs_on(image, capability) for image in judged_images(f))]
            core = [f for f in unfit if f.name in CORE_LIBRARIES]
            if core or len(unfit) == len(files):
                yield _no_kernel(package, (core or unfit)[0], text)


def _no_kernel(package: str, file: NativeFile, capability: str) -> Finding:
    built = sorted({(image.kind, image.arch) for image in judged_images(file)}, key=lambda item: (item[0], _arch(item)))
    return _finding(
        "no-kernel-image",
        Severity.ERROR,
        file.path,
        f"{package} has no code that a device of compute capability {capability} can run",
        expected=f"sm_{capability.replace('.', '')}, an older minor of it, or PTX for it or older",
        actual=", ".join(f"{kind}_{arch}" for kind, arch in built),
        hint="take a build for this device, or leave the package out; newer releases drop old devices",
    )


def _arch(item: tuple[str, str]) -> tuple[int, str]:
    digits = item[1].rstrip("af")
    return int(digits), item[1]


def _finding(
    kind: str, severity: Severity, subject: str, message: str, *, expected: str, actual: str, hint: str
) -> Finding:
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
