"""Every way in which libraries do not fit is found, what wheels ship by themselves is not."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from envsmith.checks.linking import shadowed_by
from envsmith.checks.native import check_native, owned_by
from envsmith.data import table
from envsmith.manifest import Content, Entry, Manifest
from envsmith.native import (
    FOREIGN,
    DeviceImage,
    Elf,
    HostLibraries,
    LibraryFolder,
    NativeFacts,
    NativeFile,
    OutsideFolder,
    VersionNeed,
    duplicates,
    family,
    in_family,
    newest,
    runs_on,
    search_folders,
    stale_rpaths,
    version_numbers,
)
from envsmith.report import Finding, Severity

ROOT = "/envs/a/0123"
SITE = "lib/python3.11/site-packages"
X86, ARM = 62, 183


def lib(path: str, *, sha256: str | None = None, size: int = 1, device: tuple[str, ...] = (), **elf: Any) -> NativeFile:
    """A library below site-packages; its digest is its path unless told otherwise."""
    full = path if path.startswith(("bin/", "lib/")) else f"{SITE}/{path}"
    images = tuple(DeviceImage(name.split("_")[0], name.split("_")[1], 2) for name in device)
    return NativeFile(
        path=full, size=size, sha256=sha256 or full, elf=Elf(**{"machine": X86, "bits": 64, **elf}), device=images
    )


def needs(*versions: str, library: str = "libc.so.6", weak: bool = False) -> tuple[VersionNeed, ...]:
    return tuple(VersionNeed(library, version, weak) for version in versions)


CUDART = lib("nvidia/cuda_runtime/lib/libcudart.so.12", soname="libcudart.so.12", needed=("libc.so.6",))
TORCH = lib(
    "torch/lib/libtorch_cuda.so",
    soname="libtorch_cuda.so",
    needed=("libcudart.so.12", "libstdc++.so.6", "libc.so.6"),
    rpath="$ORIGIN/../../nvidia/cuda_runtime/lib:$ORIGIN",
    needs=needs("GLIBC_2.28") + needs("GLIBCXX_3.4.22", library="libstdc++.so.6"),
    device=("sm_70", "sm_80", "sm_86", "sm_90", "sm_90a"),
)
VLLM = lib(
    "vllm/_C.abi3.so", needed=("libtorch_cuda.so", "libcudart.so.12", "libcuda.so.1"), device=("sm_80", "ptx_80")
)
FA3 = lib("vllm/_fa3.abi3.so", needed=("libtorch_cuda.so",), device=("sm_90a",))
MPI = lib("nvidia/nvshmem/lib/nvshmem_bootstrap_mpi.so.3", needed=("libmpi.so.40",))
STUB = lib("cutlass/stubs/libcute.so", soname="libcute.so", machine=ARM, needed=("libqnx.so.1",))
CLEAN = (CUDART, TORCH, VLLM, FA3, MPI, STUB)

HOST = HostLibraries(
    machine=X86,
    names={name: f"/lib64/{name}" for name in ("libc.so.6", "libstdc++.so.6", "libz.so.1")},
    default_folders=("/lib64",),
    glibc="2.31",
    libstdcxx="/lib64/libstdc++.so.6",
    libstdcxx_versions=frozenset({"GLIBCXX_3.4.22", "GLIBCXX_3.4.28", "CXXABI_1.3.12"}),
)
SINGLE = ("libcudart", "libnccl", "libarrow")


def facts(*files: NativeFile, **changes: Any) -> NativeFacts:
    return NativeFacts(**{"root": ROOT, "machine": X86, "files": files, **changes})


def manifest(*files: NativeFile) -> dict[str, tuple[str, str]]:
    """List files as shipped; the owner is the folder's name with a version."""
    return {f.path: (f.sha256 or "", f"{f.path[len(SITE) + 1 :].split('/')[0]}==1") for f in files}


def judge(
    subject: NativeFacts,
    *,
    listed: Collection[NativeFile] | None = None,
    host: HostLibraries = HOST,
    **options: Any,
) -> list[Finding]:
    rows = manifest(*(subject.files if listed is None else listed))
    settings = {"single_instance": SINGLE, "compute_capabilities": ("8.0",), "has_device": False, **options}
    return list(check_native(subject, host, env_manifest=settings.pop("env_manifest", rows), **settings))


def kinds(findings: list[Finding]) -> list[tuple[str, str]]:
    return sorted((finding.kind, finding.severity.value) for finding in findings)


@pytest.mark.parametrize("without", [{}, {"env_manifest": {}}])
def test_a_clean_env_has_no_finding_with_and_without_a_manifest(without: dict[str, Any]) -> None:
    assert judge(facts(*CLEAN), **without) == []


# --- what is missing ---


def test_a_library_that_nothing_answers_is_one_finding_for_all_who_need_it() -> None:
    files = [lib(f"cv2/part{n}.so", needed=("libGL.so.1",)) for n in range(5)]
    (finding,) = judge(facts(*CLEAN, *files))
    assert (finding.kind, finding.subject, finding.severity) == ("library-missing", "libGL.so.1", Severity.WARNING)
    assert "cv2==1" in finding.message
    assert "and 2 more" in (finding.actual or "")


def test_every_way_of_the_loader_answers() -> None:
    wants = "libwanted.so.1"
    user = lib("pkg/_x.so", needed=(wants,))
    assert kinds(judge(facts(user))) == [("library-missing", "warning")]
    here = LibraryFolder(path="/opt/l", exists=True, names=frozenset({wants}))
    base = facts(lib("nvidia/libwanted.so.1"), root="/opt/base")
    outside = (OutsideFolder(path="/opt/l", exists=False, names=frozenset({wants})),)
    assert judge(facts(user), host=replace(HOST, library_path=(here,))) == []
    assert judge(facts(user), host=replace(HOST, names={**HOST.names, wants: "/lib64/x"})) == []
    assert judge(facts(user), host=replace(HOST, beside_python=frozenset({wants}))) == []
    assert judge(facts(user), base=base) == []
    assert judge(facts(user, lib("other/renamed.so", soname=wants))) == []
    assert judge(facts(user, lib(f"other/{wants}"))) == []
    assert judge(facts(replace(user, elf=replace(user.elf, runpath="/opt/l")), outside=outside)) == []
    linked = {f"{SITE}/other/{wants}": f"{SITE}/other/libwanted.so.1.2"}
    assert judge(facts(user, lib("other/libwanted.so.1.2"), links=linked)) == []
    assert kinds(judge(facts(user, links={f"{SITE}/other/{wants}": None}))) == [("library-missing", "warning")]


def test_a_missing_library_is_an_error_unless_it_may_be_that_of_a_plug_in_nobody_loads() -> None:
    user = lib("pkg/_x.so", needed=("libwanted.so.1",))
    row = (user.sha256, "pkg==1")
    there = {user.path: row, f"{SITE}/pkg.libs/libwanted.so.1": ("0" * 64, "pkg==1")}
    assert kinds(judge(facts(user), env_manifest={user.path: row})) == [("library-missing", "warning")]
    assert kinds(judge(facts(user), env_manifest=there)) == [("library-missing", "error")]
    assert kinds(judge(facts(user), env_manifest={user.path: ("1" * 64, "pkg==1")})) == [("library-missing", "error")]
    assert kinds(judge(facts(user), env_manifest={})) == [("library-missing", "error")]


def test_the_driver_is_missed_only_where_there_is_a_device() -> None:
    (finding,) = judge(facts(*CLEAN), has_device=True)
    assert (finding.kind, finding.subject) == ("library-missing", "libcuda.so.1")
    assert "the driver gives it" in (finding.expected or "")


def test_a_library_of_an_optional_plug_in_is_missed_anywhere_else() -> None:
    assert kinds(judge(facts(lib("pkg/_x.so", needed=("libmpi.so.40",))))) == [("library-missing", "warning")]


def test_nothing_is_said_of_libraries_for_another_kind_of_host() -> None:
    assert judge(facts(lib("pkg/_x.so", needed=("libGL.so.1",))), host=replace(HOST, machine=ARM)) == []


def test_rows_of_the_table_of_optional_libraries_name_package_reason_and_source() -> None:
    rows = table("optional_libraries")
    assert all(set(row) == {"library", "files", "package", "why", "source", "read"} for row in rows["optional"])
    assert all(set(row) == {"library", "source", "read"} for row in rows["driver"])


# --- D26: a lost link ---


def test_a_library_without_the_link_of_its_soname_is_found_and_the_host_named() -> None:
    stdcxx = lib("lib/libstdc++.so.6.0.34", soname="libstdc++.so.6", defines=("GLIBCXX_3.4.22", "GLIBCXX_3.4.30"))
    python = lib("torch/lib/libtorch_python.so", needs=needs("GLIBCXX_3.4.30", library="libstdc++.so.6"))
    python = replace(python, elf=replace(python.elf, needed=("libstdc++.so.6",)))
    (finding,) = judge(facts(stdcxx, python))
    assert (finding.kind, finding.subject) == ("soname-link-missing", "lib/libstdc++.so.6.0.34")
    assert "/lib64/libstdc++.so.6" in finding.message
    assert finding.expected == "lib/libstdc++.so.6"
    assert judge(facts(stdcxx, python, links={"lib/libstdc++.so.6": "lib/libstdc++.so.6.0.34"})) == []
    assert judge(facts(stdcxx)) == []  # nobody asks for it


# --- versions ---


def test_needs_beyond_the_glibc_are_one_finding_per_package() -> None:
    new = [lib(f"cryptography/_{n}.so", needs=needs("GLIBC_2.2.5", "GLIBC_2.34")) for n in range(2)]
    weak = lib("soft/_x.so", needs=needs("GLIBC_2.38", weak=True))
    private = lib("odd/_x.so", needs=needs("GLIBC_PRIVATE"))
    (finding,) = judge(facts(*CLEAN, *new, weak, private))
    assert (finding.kind, finding.subject, finding.expected) == ("glibc-too-old", "cryptography==1", "GLIBC_2.34")
    assert "2 files" in finding.message
    assert finding.actual == "glibc 2.31"
    assert judge(facts(*CLEAN, *new), glibc="2.34") == []
    assert [f.subject for f in judge(facts(*CLEAN), glibc="2.17")] == ["torch==1"]


def test_relative_relocations_need_the_glibc_that_knows_them() -> None:
    subject = facts(lib("pkg/_x.so", needs=needs("GLIBC_ABI_DT_RELR")))
    assert kinds(judge(subject, glibc="2.35")) == [("glibc-too-old", "error")]
    assert judge(subject, glibc="2.36") == []


@pytest.mark.parametrize("version", ["GLIBCXX_3.4.30", "CXXABI_1.3.13"])
def test_a_newer_libstdcxx_is_missed_unless_the_env_has_one(version: str) -> None:
    user = lib("pkg/_x.so", needed=("libstdc++.so.6",), needs=needs(version, library="libstdc++.so.6"))
    (finding,) = judge(facts(*CLEAN, user))
    assert (finding.kind, finding.subject, finding.expected) == ("libstdcxx-too-old", "pkg==1", version)
    assert finding.actual == "/lib64/libstdc++.so.6 defines GLIBCXX_3.4.28"
    own = lib("lib/libstdc++.so.6", soname="libstdc++.so.6", defines=(version,))
    assert judge(facts(*CLEAN, user, own)) == []


# --- copies ---


OTHER = lib("torchvision.libs/libcudart.e8e8b82a.so.12", soname="libcudart.so.12", sha256="other")


def test_shipped_copies_matter_only_in_a_single_instance_family_and_with_other_bytes() -> None:
    twin = replace(OTHER, sha256=CUDART.sha256)
    assert judge(facts(*CLEAN, twin)) == []
    assert duplicates(facts(*CLEAN, twin)) == {"libcudart.so.12": (CUDART, twin)}
    assert judge(facts(*CLEAN, OTHER), single_instance=()) == []
    (finding,) = judge(facts(*CLEAN, OTHER))
    assert (finding.kind, finding.severity, finding.subject) == ("soname-twice", Severity.ERROR, "libcudart.so.12")
    assert OTHER.path in (finding.actual or "")


def test_copies_in_an_env_without_manifest_are_notes() -> None:
    assert kinds(judge(facts(*CLEAN, OTHER), env_manifest={})) == [("soname-twice", "note")]


def test_other_copies_in_an_env_without_manifest_are_one_note() -> None:
    files = [lib(f"p{n}/lib{x}.so.1", soname=f"lib{x}.so.1") for n in range(2) for x in "abcde"]
    (finding,) = judge(facts(*files), env_manifest={})
    assert (finding.kind, finding.severity, finding.subject) == ("soname-twice", Severity.NOTE, "5 libraries")
    assert judge(facts(*files)) == []


def test_copies_that_were_not_read_are_told_apart_by_size() -> None:
    unread = [replace(file, sha256=None, size=n) for n, file in enumerate((CUDART, OTHER))]
    assert kinds(judge(facts(*unread), env_manifest={})) == [("soname-twice", "note")]
    assert judge(facts(*(replace(file, size=7) for file in unread)), env_manifest={}) == []


@pytest.mark.parametrize(("single", "severity"), [(SINGLE, "error"), ((), "warning")])
def test_a_copy_that_no_package_brought_is_found_even_of_another_version(
    single: tuple[str, ...], severity: str
) -> None:
    for soname in ("libcudart.so.12", "libcudart.so.13"):
        extra = lib(f"extra/{soname}", soname=soname)
        findings = judge(facts(*CLEAN, extra), listed=CLEAN, single_instance=single)
        assert kinds(findings) == [("soname-twice", severity)]
        assert findings[0].expected == CUDART.path


# --- damage ---


@pytest.mark.parametrize("why", ["it is no ELF file", "cut short: a segment would end at byte 9 of 4"])
def test_a_damaged_library_is_found_unless_it_was_shipped_so(why: str) -> None:
    broken = lib("pkg/libx.so", damaged=why, machine=0, sha256="now")
    (finding,) = judge(facts(*CLEAN, broken), listed=[*CLEAN, replace(broken, sha256="then")])
    assert (finding.kind, finding.subject) == ("library-damaged", broken.path)
    assert why in finding.message
    assert kinds(judge(facts(*CLEAN, broken), env_manifest={})) == [("library-damaged", "error")]
    assert judge(facts(*CLEAN, broken)) == []


def test_a_damaged_library_is_not_missing_as_well() -> None:
    broken = lib("pkg/libx.so", damaged="it is empty", machine=0, sha256="now")
    user = lib("pkg/_x.so", needed=("libx.so",))
    assert kinds(judge(facts(broken, user), env_manifest={})) == [("library-damaged", "error")]


def test_a_library_for_another_machine_is_found_unless_it_was_shipped_so() -> None:
    swapped = lib("pkg/_x.so", machine=ARM, sha256="now")
    (finding,) = judge(facts(*CLEAN, swapped), listed=[*CLEAN, replace(swapped, sha256="then")])
    assert finding.kind == "library-damaged"
    assert "aarch64" in finding.message


def test_a_library_for_another_system_is_found_only_where_it_was_not_shipped() -> None:
    foreign = lib("pkg/libosx.so", damaged=FOREIGN, machine=0, sha256="now")
    assert judge(facts(*CLEAN, foreign)) == []
    assert judge(facts(*CLEAN, foreign), env_manifest={}) == []
    assert kinds(judge(facts(*CLEAN, foreign), listed=CLEAN)) == [("library-damaged", "error")]


def test_a_library_under_the_name_of_another_is_found() -> None:
    cupti = lib("nvidia/cuda_cupti/lib/libcupti.so.12", soname="libnvrtc.so.12", sha256="now")
    findings = judge(facts(*CLEAN, cupti), listed=[*CLEAN, replace(cupti, sha256="then")])
    assert ("wrong-library", "error") in kinds(findings)
    assert judge(facts(*CLEAN, cupti)) == []
    assert kinds(judge(facts(*CLEAN, cupti), env_manifest={})) == [("wrong-library", "note")]
    assert judge(facts(lib("libXaw7.so.7", soname="libXaw.so.7")), env_manifest={}) == []


# --- search paths ---


@pytest.mark.parametrize(
    ("folder", "warned"),
    [
        (OutsideFolder(path="/opt/mpi/lib", exists=True), True),
        (OutsideFolder(path="/opt/mpi/lib", exists=False, writable_by="everybody (by the mode of `/opt`)"), True),
        (OutsideFolder(path="/opt/mpi/lib", exists=False), False),
    ],
)
def test_a_search_path_that_leads_out_is_warned_of_when_something_can_be_there(
    folder: OutsideFolder, warned: bool
) -> None:
    user = lib("pkg/_x.so", runpath="/opt/mpi/lib:$ORIGIN")
    subject = facts(*CLEAN, user, outside=(folder,))
    assert kinds(judge(subject)) == ([("rpath-outside", "warning")] if warned else [])
    assert stale_rpaths(subject) == ({} if folder.exists else {"/opt/mpi/lib": (user.path,)})


def test_a_search_path_to_where_the_loader_looks_anyway_is_harmless() -> None:
    user = lib("pkg/_x.so", rpath="/usr/lib64")
    assert judge(facts(user, outside=(OutsideFolder(path="/usr/lib64", exists=True),))) == []


def test_an_empty_element_is_warned_of_in_a_file_that_was_not_shipped_so() -> None:
    user = lib("pkg/_x.so", runpath="$ORIGIN:")
    assert judge(facts(*CLEAN, user)) == []
    assert kinds(judge(facts(*CLEAN, user), listed=CLEAN)) == [("rpath-outside", "warning")]


def test_search_paths_are_split_as_the_loader_does() -> None:
    assert search_folders("$ORIGIN/../lib:${ORIGIN}:/opt/x/", f"{SITE}/a", ROOT) == (
        f"{SITE}/lib",
        f"{SITE}/a",
        "/opt/x",
    )
    assert search_folders(f"{ROOT}/lib:{ROOT}", "bin", ROOT) == ("lib", "")
    assert search_folders("", "bin", ROOT) == ()
    assert search_folders("$ORIGIN:rel", "bin", ROOT) == ("bin", ".")
    assert search_folders("/x/$LIB", "bin", ROOT) == ("/x/lib64", "/x/lib")


# --- device code ---


def test_an_old_device_names_the_core_library_and_packages_without_any_code() -> None:
    only_new = lib("torchaudio/lib/libtorchaudio.so", device=("sm_70", "sm_75"))
    findings = judge(facts(*CLEAN, only_new), compute_capabilities=("6.1",))
    assert {finding.kind for finding in findings} == {"no-kernel-image"}
    assert [f.subject for f in findings] == [TORCH.path, only_new.path, VLLM.path]
    assert findings[0].actual == "sm_70, sm_80, sm_86, sm_90, sm_90a"


def test_a_core_library_is_named_even_when_a_sibling_would_run() -> None:
    linalg = lib("torch/lib/libtorch_cuda_linalg.so", device=("sm_60",))
    (finding,) = judge(facts(TORCH, CUDART, linalg), compute_capabilities=("6.1",))
    assert finding.subject == TORCH.path


def test_a_lone_image_of_the_default_target_says_nothing() -> None:
    stub = lib("nvidia/cufft/lib/libcufft.so.11")
    stub = replace(stub, device=(DeviceImage("sm", "52", 1),))
    assert judge(facts(*CLEAN, stub)) == []
    assert kinds(judge(facts(*CLEAN, replace(stub, device=(DeviceImage("sm", "52", 2),))))) == [
        ("no-kernel-image", "error")
    ]


@pytest.mark.parametrize(
    ("kind", "arch", "runs", "runs_not"),
    [
        ("sm", "80", ["8.0", "8.6", "8.9"], ["7.5", "9.0"]),
        ("sm", "86", ["8.6", "8.9"], ["8.0"]),
        ("sm", "90a", ["9.0"], ["10.0", "8.9"]),
        ("sm", "100f", ["10.0", "10.3"], ["12.0", "9.0"]),
        ("sm", "100a", ["10.0"], ["10.3"]),
        ("ptx", "80", ["8.0", "9.0", "12.0"], ["7.5"]),
        ("ptx", "90a", ["9.0"], ["10.0"]),
        ("kind8", "80", [], ["8.0"]),
    ],
)
def test_device_code_runs_where_the_guide_says(kind: str, arch: str, runs: list[str], runs_not: list[str]) -> None:
    def can(text: str) -> bool:
        major, minor = text.split(".")
        return runs_on(DeviceImage(kind, arch, 1), (int(major), int(minor)))

    assert all(map(can, runs))
    assert not any(map(can, runs_not))


def test_capabilities_that_are_none_are_passed_over() -> None:
    assert judge(facts(*CLEAN), compute_capabilities=("gfx90a", "", "8")) == []


# --- LD_LIBRARY_PATH ---


def test_the_library_path_takes_over_what_has_no_rpath() -> None:
    nvjitlink = lib("nvidia/nvjitlink/lib/libnvJitLink.so.12", soname="libnvJitLink.so.12")
    cusparse = lib(
        "nvidia/cusparse/lib/libcusparse.so.12",
        soname="libcusparse.so.12",
        needed=("libnvJitLink.so.12",),
        runpath="$ORIGIN/../../nvjitlink/lib",
    )
    cudnn = lib("nvidia/cudnn/lib/libcudnn_ops.so.9", soname="libcudnn_ops.so.9")
    nccl = lib("nvidia/nccl/lib/libnccl.so.2", soname="libnccl.so.2")
    user = lib("torch/lib/libx.so", needed=("libnccl.so.2",), rpath="$ORIGIN/../../nvidia/nccl/lib")
    names = {"libnvJitLink.so.12", "libcudart.so.12", "libnccl.so.2", "libcudnn_ops.so.9", "libforeign.so"}
    folder = LibraryFolder(path="/usr/local/cuda-12.1/lib64", exists=True, names=frozenset(names))
    subject = facts(*CLEAN, nvjitlink, cusparse, cudnn, nccl, user)
    shadows = {shadow.name: shadow for shadow in shadowed_by([folder, replace(folder, path="/later")], subject)}
    assert {name: shadow.verdict for name, shadow in shadows.items()} == {
        "libnvJitLink.so.12": "taken",
        "libcudart.so.12": "first-loaded",
        "libnccl.so.2": "immune",
        "libcudnn_ops.so.9": "opened-by-name",
    }
    taken = shadows["libnvJitLink.so.12"]
    assert (taken.family, taken.path) == ("libnvJitLink", "/usr/local/cuda-12.1/lib64/libnvJitLink.so.12")
    assert (taken.takes, taken.immune, taken.ours) == ((cusparse.path,), (), (nvjitlink.path,))
    settled = replace(subject, preloaded=frozenset({"libnvJitLink"}))
    assert {s.name: s.verdict for s in shadowed_by([folder], settled)}["libnvJitLink.so.12"] == "first-loaded"


def test_folders_of_the_env_itself_shadow_nothing() -> None:
    folder = LibraryFolder(path=f"{ROOT}/lib", exists=True, names=frozenset({"libcudart.so.12"}))
    assert shadowed_by([folder], facts(*CLEAN)) == ()


# --- words ---


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("libcudart.e8e8b82a.so.12", "libcudart"),
        ("libcudart-d0da41ae.so.11.0", "libcudart"),
        ("nvidia/nccl/lib/libnccl.so.2", "libnccl"),
        ("libstdc++.so.6.0.34", "libstdc++"),
        ("libarrow.so.2400", "libarrow"),
        ("libnvJitLink.so.12", "libnvJitLink"),
        ("libcrypto-1.1.so", "libcrypto"),
        ("libtorch_cuda.so", "libtorch_cuda"),
    ],
)
def test_families_are_names_without_hashes_and_versions(name: str, expected: str) -> None:
    assert family(name) == expected


def test_parts_of_a_family_belong_to_it() -> None:
    assert in_family("libcudnn_ops.so.9", ("libcudnn",)) == "libcudnn"
    assert in_family("libcublasLt.so.12", ("libcublas",)) is None


def test_versions_are_ordered_as_numbers() -> None:
    assert newest(["GLIBC_2.9", "GLIBC_2.34", "GLIBC_PRIVATE"]) == "GLIBC_2.34"
    assert newest(["GLIBC_PRIVATE"]) is None
    assert version_numbers("GLIBCXX_3.4.30") == (3, 4, 30)
    assert version_numbers("CXXABI_²") is None


def test_where_owners_disagree_the_content_that_is_there_counts() -> None:
    contents = tuple(Content(owner=f"{n}==1", sha256=n, size=1, executable=False) for n in ("a", "b"))
    entry = Entry(path="x.so", size=1, sha256="a", owner="a==1", alternatives=contents)
    assert owned_by(Manifest(entries=(entry,)), {"x.so": "b"}) == {"x.so": ("b", "b==1")}
    assert owned_by(Manifest(entries=(entry,)), {"x.so": "c"}) == {"x.so": ("a", "a==1")}
