"""Every way in which files can drift is found, what Python does by itself is not, and nothing floods the report."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest

from envsmith.checks.files import check_files
from envsmith.manifest import Entry, Manifest, file_entry, link_entry, merge
from envsmith.observed import Observed, Seen
from envsmith.report import Finding, Severity

SITE = "lib/python3.11/site-packages"
MTIME = 1_700_000_000


def _owned(files: Mapping[str, bytes], owner: str) -> list[Entry]:
    return [file_entry(f"{SITE}/{path}", content, owner, part="portable") for path, content in files.items()]


RAY = {
    "ray/__init__.py": b"remote = 1\n",
    "ray/remote_function.py": b"x = 1\n",
    "ray/worker.py": b"w = 1\n",
    "ray-2.dist-info/METADATA": b"ray\n",
}
SIX = {"six.py": b"six\n", "six-1.dist-info/METADATA": b"six\n"}
GOOD = merge(
    [
        *_owned(RAY, "ray==2"),
        *_owned(SIX, "six==1"),
        file_entry("bin/ray", b"#!", "ray==2", part="site", executable=True),
        link_entry("bin/python", "/opt/python3.11", "venv"),
    ]
)


class Disk:
    """A tree that starts as the manifest says and is then tampered with."""

    def __init__(self, manifest: Manifest, contents: Mapping[str, bytes] | None = None) -> None:
        known = {f"{SITE}/{path}": content for path, content in {**RAY, **SIX, **(contents or {})}.items()}
        self.seen: dict[str, Seen] = {}
        self.digests: dict[str, str] = {}
        self.bytecode: dict[str, bytes] = {}
        self.unread: set[str] = set()
        for entry in manifest.entries:
            if entry.target is not None:
                self.link(entry.path, entry.target)
            else:
                content = known.get(entry.path, b"#!")
                self.put(entry.path, content, 0o755 if entry.executable else 0o644)

    def put(self, path: str, content: bytes = b"new", mode: int = 0o644) -> None:
        self.seen[path] = Seen(path, "file", mode, len(content), MTIME * 10**9, MTIME * 10**9, 1, 1, 1, None)
        self.digests[path] = hashlib.sha256(content).hexdigest()

    def link(self, path: str, target: str) -> None:
        self.seen[path] = Seen(path, "link", 0o777, len(target), 0, 0, 1, 1, 1, target)
        self.digests.pop(path, None)

    def drop(self, *paths: str) -> None:
        for path in paths:
            del self.seen[path]
            self.digests.pop(path, None)

    def compiled(self, path: str, mtime: int = MTIME, size: int = 0, flags: int = 0) -> None:
        self.put(path, b"\0" * 32)
        self.bytecode[path] = struct.pack("<4I", 0x0D0D0A7E, flags, mtime, size)

    def look(self) -> Observed:
        for path in self.unread:
            self.digests.pop(path, None)
        return Observed(
            files=tuple(sorted(self.seen.values())),
            digests=self.digests,
            unread=tuple(sorted(self.unread)),
            bytecode=self.bytecode,
        )


def _findings(disk: Disk, manifest: Manifest = GOOD, **more: object) -> list[Finding]:
    return list(check_files(manifest, disk.look(), **more))  # type: ignore[arg-type]


def _kinds(findings: Iterable[Finding]) -> list[str]:
    return [finding.kind for finding in findings]


def _only(disk: Disk, manifest: Manifest = GOOD, **more: object) -> Finding:
    (finding,) = _findings(disk, manifest, **more)
    return finding


@pytest.fixture
def disk() -> Disk:
    return Disk(GOOD)


def test_what_the_manifest_says_is_silent(disk: Disk) -> None:
    assert _findings(disk, distributions=("ray==2", "six==1")) == []


def test_one_changed_file_names_package_and_both_hashes(disk: Disk) -> None:
    disk.put(f"{SITE}/six.py", b"SIX\n")
    finding = _only(disk)
    assert (finding.kind, finding.severity) == ("file-changed", Severity.ERROR)
    assert "six==1" in finding.message
    assert (finding.expected or "").startswith("sha256:") and finding.expected != finding.actual


def test_one_missing_file_is_named(disk: Disk) -> None:
    disk.drop(f"{SITE}/ray/worker.py")
    finding = _only(disk)
    assert (finding.kind, finding.subject) == ("file-missing", f"{SITE}/ray/worker.py")


def test_files_deleted_by_uninstalling_another_owner_are_one_finding_that_says_what_is_left(disk: Disk) -> None:
    disk.drop(f"{SITE}/ray/__init__.py", f"{SITE}/ray/remote_function.py")
    finding = _only(disk)
    assert (finding.kind, finding.subject) == ("record-missing-files", "ray==2")
    assert "2 files" in finding.message and "namespace package `ray`" in finding.message


def test_four_thousand_missing_or_changed_files_are_a_page_not_a_flood() -> None:
    files = {f"big/m{n:04}.py": b"x" for n in range(4000)} | {"big/__init__.py": b""}
    manifest = merge([*GOOD.entries, *_owned(files, "big==1")])
    gone, edited = Disk(manifest, files), Disk(manifest, files)
    gone.drop(*(f"{SITE}/{path}" for path in files if path != "big/__init__.py"))
    for path in files:
        edited.put(f"{SITE}/{path}", b"y")
    assert "4,000 files of big==1" in _only(gone, manifest).message
    found = _findings(edited, manifest)
    assert len(found) == 11 and found[-1].message.startswith("3,991 more files")


def test_four_thousand_added_files_are_a_page_not_a_flood(disk: Disk) -> None:
    for n in range(4000):
        disk.put(f"{SITE}/ray/extra{n}.py")
        disk.put(f"{SITE}/extra.libs/{n}.so.1")
    assert len(_findings(disk)) < 15


def test_an_empty_environment_is_half_and_says_so_once(disk: Disk) -> None:
    disk.drop(*list(disk.seen))
    finding = _only(disk)
    assert finding.kind == "half-env" and "2 of 2 distributions" in finding.message


def test_an_empty_manifest_proves_nothing(disk: Disk) -> None:
    empty = Manifest(entries=())
    assert "half-env" in _kinds(_findings(Disk(empty), empty))


def test_a_missing_receipt_is_a_half_environment(disk: Disk) -> None:
    assert _only(disk, receipt=False).kind == "half-env"


def test_a_distribution_that_is_gone_whole_is_named_once(disk: Disk) -> None:
    disk.drop(*(f"{SITE}/{path}" for path in SIX))
    finding = _only(disk)
    assert (finding.kind, finding.subject) == ("half-env", "six==1")


def test_a_distribution_of_the_lock_that_the_manifest_does_not_know_is_half(disk: Disk) -> None:
    finding = _only(disk, distributions=("ray==2", "six==1", "torch==2.10"))
    assert (finding.kind, finding.subject) == ("half-env", "torch==2.10")


@pytest.mark.parametrize(("path", "mode"), [("bin/ray", 0o644), (f"{SITE}/six.py", 0o755), (f"{SITE}/six.py", 0o4644)])
def test_a_changed_mode_is_found(disk: Disk, path: str, mode: int) -> None:
    disk.seen[path] = disk.seen[path]._replace(mode=mode)
    assert _only(disk).kind == "mode-changed"


@pytest.mark.parametrize("mode", [0o444, 0o600, 0o664])
def test_a_mode_that_another_umask_gives_is_silent(disk: Disk, mode: int) -> None:
    disk.seen[f"{SITE}/six.py"] = disk.seen[f"{SITE}/six.py"]._replace(mode=mode)
    assert _findings(disk) == []


def test_a_retargeted_link_is_found(disk: Disk) -> None:
    disk.link("bin/python", "/opt/python3.10")
    finding = _only(disk)
    assert (finding.kind, finding.expected, finding.actual) == ("link-changed", "/opt/python3.11", "/opt/python3.10")


def test_a_file_replaced_by_a_link_and_a_link_by_a_file_are_found(disk: Disk) -> None:
    disk.link(f"{SITE}/six.py", "/elsewhere/six.py")
    disk.put("bin/python", b"#!/bin/sh\n", 0o755)
    assert _kinds(_findings(disk)) == ["link-changed", "link-changed"]


def test_a_file_replaced_by_a_socket_is_found(disk: Disk) -> None:
    disk.seen[f"{SITE}/six.py"] = disk.seen[f"{SITE}/six.py"]._replace(kind="other")
    assert _only(disk).kind == "file-changed"


def test_a_file_that_cannot_be_read_is_not_a_pass(disk: Disk) -> None:
    path = f"{SITE}/six.py"
    del disk.digests[path]
    observed = replace(disk.look(), unreadable=(path,))
    assert _kinds(check_files(GOOD, observed)) == ["file-unreadable"]


def test_a_file_whose_content_is_not_known_is_not_a_pass(disk: Disk) -> None:
    del disk.digests[f"{SITE}/six.py"]
    assert _only(disk).kind == "file-changed"


def test_unread_suspects_are_one_warning_unless_their_size_proves_a_change(disk: Disk) -> None:
    disk.unread |= {f"{SITE}/six.py", f"{SITE}/ray/worker.py"}
    finding = _only(disk)
    assert (finding.kind, finding.severity, finding.subject) == ("stat-differs", Severity.WARNING, "2 files")
    disk.seen[f"{SITE}/six.py"] = disk.seen[f"{SITE}/six.py"]._replace(size=999)
    assert _kinds(_findings(disk)) == ["file-changed", "stat-differs"]


def test_an_added_pth_is_found_and_an_owned_one_is_silent(disk: Disk) -> None:
    files = {"_redirector.pth": b"import _redirector\n"}
    manifest = merge([*GOOD.entries, *_owned(files, "pynvml==13")])
    owned = Disk(manifest, files)
    assert _findings(owned, manifest) == []
    owned.put(f"{SITE}/zz_evil.pth")
    assert _only(owned, manifest).kind == "unowned-pth"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("six/__init__.py", "shadows `six` of six==1"),
        ("six.cpython-311-x86_64-linux-gnu.so", "shadows `six` of six==1"),
        ("ray/worker/__init__.py", "shadows `ray.worker` of ray==2"),
        ("sitecustomize.py", "run at every start"),
        ("ray/extra.py", "can be imported"),
        ("newpkg/__init__.py", "can be imported"),
    ],
)
def test_an_added_module_says_what_it_shadows(disk: Disk, path: str, said: str) -> None:
    disk.put(f"{SITE}/{path}")
    finding = _only(disk)
    assert finding.kind == "unowned-module" and said in finding.message


def test_an_added_package_is_one_finding_with_a_count(disk: Disk) -> None:
    for name in ("__init__", "a", "b"):
        disk.put(f"{SITE}/newpkg/{name}.py")
    finding = _only(disk)
    assert finding.subject == f"{SITE}/newpkg" and "3 files" in finding.message


def test_an_added_distribution_library_or_launcher_is_found(disk: Disk) -> None:
    disk.put(f"{SITE}/extra-1.dist-info/METADATA")
    disk.put(f"{SITE}/extra-1.dist-info/RECORD")
    disk.put(f"{SITE}/vendor_ext.libs/libarrow.so.2400")
    disk.put("bin/torchrun", mode=0o755)
    found = _findings(disk)
    assert _kinds(found) == ["unowned-file", "unowned-distribution", "unowned-file"]
    assert all(finding.severity is Severity.ERROR for finding in found)


def test_a_file_added_to_an_owned_dist_info_is_not_taken_for_a_distribution(disk: Disk) -> None:
    disk.put(f"{SITE}/six-1.dist-info/top_level.txt")
    assert _only(disk).kind == "unowned-file"


def test_what_pip_left_when_it_was_interrupted_is_one_finding(disk: Disk) -> None:
    for path in ("~grammar/__init__.py", "~grammar/x.so", "~grammar/__pycache__/x.cpython-311.pyc"):
        disk.put(f"{SITE}/{path}")
    finding = _only(disk)
    assert (finding.kind, finding.subject) == ("leftover", f"{SITE}/~grammar")


def test_the_receipt_is_left_to_others(disk: Disk) -> None:
    disk.put("envsmith.json")
    assert _findings(disk) == []


def test_work_copies_of_the_lock_are_left_to_others_and_no_other_folder(disk: Disk) -> None:
    disk.put("src/verl/verl/__init__.py")
    left = check_files(GOOD, disk.look(), elsewhere=("src/verl/",))
    assert not [finding for finding in left if finding.subject.startswith("src/")]
    assert [finding.kind for finding in _findings(disk)] == ["unowned-file"]


def test_bytecode_is_left_to_its_own_family(disk: Disk) -> None:
    disk.compiled(f"{SITE}/__pycache__/gone.cpython-311.pyc", size=3)
    assert _findings(disk) == []


def test_bytecode_of_a_wheel_that_python_replaced_is_silent_and_a_foreign_one_is_not() -> None:
    files = {"__pycache__/six.cpython-311.pyc": b"old" * 10}
    manifest = merge([*GOOD.entries, *_owned(files, "six==1")])
    disk = Disk(manifest, files)
    disk.compiled(f"{SITE}/__pycache__/six.cpython-311.pyc", size=len(SIX["six.py"]))
    assert _findings(disk, manifest) == []
    disk.compiled(f"{SITE}/__pycache__/six.cpython-311.pyc", size=1)
    assert _kinds(_findings(disk, manifest)) == ["file-changed"]


def _two_owners(one: Mapping[str, bytes], two: Mapping[str, bytes]) -> Manifest:
    return merge([*_owned(one, "opencv-python==4.11"), *_owned(two, "opencv-python-headless==4.10")])


def test_a_package_interleaved_from_two_distributions_is_an_error_and_says_who_won() -> None:
    one = {"cv2/__init__.py": b"full", "cv2/gapi/__init__.py": b"full", "cv2/typing/__init__.py": b""}
    two = {"cv2/__init__.py": b"headless", "cv2/gapi/__init__.py": b"headless"}
    manifest = _two_owners(one, two)
    disk = Disk(manifest, {**one, "cv2/__init__.py": b"headless"})
    finding = _only(disk, manifest)
    assert (finding.kind, finding.severity) == ("overlapping-files", Severity.ERROR)
    assert finding.actual == "on disk: 1 from opencv-python-headless==4.10, 1 from opencv-python==4.11"


def test_a_junk_top_level_module_of_two_distributions_is_a_warning_whoever_won() -> None:
    manifest = _two_owners({"example.py": b"1", "a.py": b""}, {"example.py": b"2", "b.py": b""})
    for content in (b"1", b"2"):
        finding = _only(Disk(manifest, {"example.py": content, "a.py": b"", "b.py": b""}), manifest)
        assert (finding.kind, finding.severity) == ("overlapping-files", Severity.WARNING)


def test_a_build_script_that_two_wheels_ship_by_accident_is_nobodys_loss() -> None:
    manifest = _two_owners({"build_backend.py": b"1", "a.py": b""}, {"build_backend.py": b"2", "b.py": b""})
    for content in (b"1", b"2"):
        assert _findings(Disk(manifest, {"build_backend.py": content, "a.py": b"", "b.py": b""}), manifest) == []


def test_a_third_content_at_a_shared_path_is_a_changed_file() -> None:
    manifest = _two_owners({"build_backend.py": b"1"}, {"build_backend.py": b"2"})
    found = _findings(Disk(manifest, {"build_backend.py": b"3"}), manifest)
    assert _kinds(found) == ["file-changed"]


def test_a_differing_namespace_stub_alone_is_a_warning_and_a_real_init_is_not() -> None:
    for content, severity in ((b"short", Severity.WARNING), (b"#" * 2000, Severity.ERROR)):
        one = {"ns/__init__.py": content, "ns/a.py": b""}
        two = {"ns/__init__.py": b"", "ns/b.py": b""}
        manifest = _two_owners(one, two)
        assert _only(Disk(manifest, {**two, **one}), manifest).severity is severity


def test_files_that_two_owners_share_with_equal_content_are_silent() -> None:
    files = {"nvidia/__init__.py": b""}
    manifest = _two_owners(files, files)
    assert _findings(Disk(manifest, files), manifest) == []


def test_two_runs_report_the_same_in_the_same_order(disk: Disk) -> None:
    for n in range(30):
        disk.put(f"{SITE}/x{n}.py")
        disk.put(f"junk/{n}")
    disk.put(f"{SITE}/six.py", b"!")
    disk.drop(f"{SITE}/ray/worker.py")
    assert _findings(disk) == _findings(disk)


def test_modes_that_let_nobody_read_or_everybody_write_are_named(disk: Disk) -> None:
    path = f"{SITE}/six.py"
    for mode, kind in ((0o000, "mode-changed"), (0o244, "mode-changed"), (0o666, "mode-open"), (0o646, "mode-open")):
        disk.put(path, SIX["six.py"], mode)
        assert _kinds(_findings(disk)) == [kind]
    disk.put(path, SIX["six.py"], 0o640)
    assert _findings(disk) == []
