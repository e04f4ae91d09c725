"""Bytecode that Python wrote itself is silent; what it would believe without a right to it is found."""

from __future__ import annotations

import struct

import pytest

from envsmith.bytecode import Proof, Verdict
from envsmith.checks.pyc import SHOWN, check_pyc
from envsmith.observed import Observed, Seen
from envsmith.report import Finding, Severity

SITE = "lib/python3.11/site-packages"
CACHE = f"{SITE}/__pycache__"
MTIME = 1_700_000_000
LISTED = {f"{SITE}/six.py", f"{SITE}/ray/worker.py", "bin/ray"}


class Disk:
    """A tree of listed sources, and bytecode that is put beside them."""

    def __init__(self) -> None:
        self.files = {path: self._seen(path) for path in LISTED}
        self.bytecode: dict[str, bytes] = {}

    @staticmethod
    def _seen(path: str, kind: str = "file") -> Seen:
        return Seen(path, kind, 0o644, 4, MTIME * 10**9, MTIME * 10**9, 1, 1, 1, None)  # type: ignore[arg-type]

    def put(
        self, path: str, *, flags: int = 0, mtime: int = MTIME, size: int = 4, magic: int = 3495, kind: str = "file"
    ) -> str:
        self.files[path] = self._seen(path, kind)
        self.bytecode[path] = struct.pack("<4I", magic | 0x0A0D0000, flags, mtime, size)
        return path

    def findings(self, proof: Proof | None = None, python: str = "3.11.7") -> list[Finding]:
        observed = Observed(files=tuple(sorted(self.files.values())), bytecode=self.bytecode)
        return list(check_pyc(observed, LISTED, python=python, proof=proof))

    def only(self, proof: Proof | None = None) -> Finding:
        (finding,) = self.findings(proof)
        assert finding.check == "pyc"
        return finding


@pytest.fixture
def disk() -> Disk:
    return Disk()


def test_bytecode_that_python_wrote_beside_an_owned_source_is_silent(disk: Disk) -> None:
    disk.put(f"{CACHE}/six.cpython-311.pyc")
    disk.put(f"{SITE}/ray/__pycache__/worker.cpython-311.opt-1.pyc")
    disk.put(f"{CACHE}/six.cpython-311.opt-2.pyc", flags=3)
    assert disk.findings() == []


def test_what_pytest_rewrote_is_silent(disk: Disk) -> None:
    disk.put(f"{CACHE}/six.cpython-311-pytest-8.4.1.pyc", mtime=1)
    assert disk.findings() == []


def test_what_the_manifest_lists_is_judged_by_files(disk: Disk) -> None:
    LISTED.add(path := disk.put(f"{SITE}/old.pyc"))
    try:
        assert disk.findings() == []
    finally:
        LISTED.remove(path)


@pytest.mark.parametrize(
    "path",
    ["__pycache__/gone.cpython-311.pyc", "ray/worker.pyc", "hidden.pyc", "__pycache__/six.pyc", "six.cpython-311.pyc"],
)
def test_bytecode_without_an_owned_source_is_found(disk: Disk, path: str) -> None:
    disk.put(f"{SITE}/{path}")
    finding = disk.only()
    assert (finding.kind, finding.severity, finding.subject) == (
        "unowned-bytecode",
        Severity.ERROR,
        f"{SITE}/{path}",
    )


def test_bytecode_that_is_never_compared_with_its_source_is_found(disk: Disk) -> None:
    disk.put(f"{CACHE}/six.cpython-311.pyc", flags=1)
    assert disk.only().kind == "unowned-bytecode"


def test_a_link_in_the_place_of_bytecode_is_found(disk: Disk) -> None:
    path = disk.put(f"{CACHE}/six.cpython-311.pyc", kind="link")
    del disk.bytecode[path]
    assert (disk.only().kind, "link" in disk.only().message) == ("unowned-bytecode", True)


@pytest.mark.parametrize("more", [{"mtime": MTIME - 5}, {"size": 5}, {"magic": 3494}, {"flags": 8}])
def test_stale_bytecode_is_a_note_because_python_will_not_load_it(disk: Disk, more: dict[str, int]) -> None:
    disk.put(f"{CACHE}/six.cpython-311.pyc", **more)  # type: ignore[arg-type]
    assert (disk.only().kind, disk.only().severity) == ("stale-bytecode", Severity.NOTE)
    disk.bytecode[f"{CACHE}/six.cpython-311.pyc"] = b"\0" * 7
    assert disk.only().kind == "stale-bytecode"


def test_the_magic_number_of_an_unknown_python_is_not_judged(disk: Disk) -> None:
    disk.put(f"{CACHE}/six.cpython-399.pyc", magic=9999)
    assert disk.findings(python="3.99.1") == []


def test_bytecode_of_another_interpreter_is_one_note(disk: Disk) -> None:
    disk.put(f"{CACHE}/six.cpython-310.pyc", flags=1)
    disk.put(f"{SITE}/ray/__pycache__/worker.cpython-310.pyc")
    assert (disk.only().kind, disk.only().severity, disk.only().subject) == (
        "foreign-bytecode",
        Severity.NOTE,
        "2 files",
    )


def test_many_of_one_kind_are_counted(disk: Disk) -> None:
    for number in range(500):
        disk.put(f"{CACHE}/gone{number}.cpython-311.pyc")
        disk.put(f"{SITE}/ray/__pycache__/worker.cpython-310{number}.pyc")
    errors = [finding for finding in disk.findings() if finding.severity is Severity.ERROR]
    assert len(errors) == SHOWN + 1
    assert errors[-1].subject == "490 more files"


def test_what_pip_left_and_what_git_holds_is_judged_elsewhere(disk: Disk) -> None:
    disk.put(f"{SITE}/~ix/__pycache__/gone.cpython-311.pyc")
    disk.put("src/verl/.git/x.pyc")
    assert disk.findings() == []


@pytest.mark.parametrize(
    ("word", "kind", "severity"),
    [
        ("differs", "poisoned-bytecode", Severity.ERROR),
        ("unreadable", "poisoned-bytecode", Severity.ERROR),
        ("crash", "poisoned-bytecode", Severity.ERROR),
        ("lines", "misleading-bytecode", Severity.WARNING),
        ("no-compile", "unproved-bytecode", Severity.NOTE),
        ("unproved", "unreadable-bytecode", Severity.ERROR),
    ],
)
def test_every_verdict_has_its_finding(disk: Disk, word: str, kind: str, severity: Severity) -> None:
    one = Proof(verdicts=(Verdict("a.pyc", word, "why"),))
    finding = disk.only(one)
    assert (finding.kind, finding.severity, finding.subject) == (kind, severity, "a.pyc")
    assert "why" in finding.message
    many = disk.findings(Proof(verdicts=tuple(Verdict(f"{n}.pyc", word, "why") for n in range(900))))
    assert len(many) <= SHOWN + 1


def test_a_proof_of_what_is_right_or_not_loaded_is_silent(disk: Disk) -> None:
    assert disk.findings(Proof(pairs=5, left=("a", "b"), verdicts=(Verdict("c", "stale"),))) == []


def test_a_proof_that_broke_off_is_a_warning(disk: Disk) -> None:
    finding = disk.only(Proof(left=("a",), problem="it died"))
    assert (finding.kind, finding.severity) == ("bytecode-not-proved", Severity.WARNING)
