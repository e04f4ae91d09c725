"""The interpreter under an env is held against its record, and whoever upgraded it reads one line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from envsmith.bytecode import Proof, Verdict
from envsmith.checks.interpreter import SHOWN, check_interpreter_files, library_figure
from envsmith.errors import IntegrityError
from envsmith.observed import Observed, Seen
from envsmith.report import Finding, Severity
from envsmith.stdlib import LibraryFile, PythonRecord, PythonSeen, parse_pyvenv

BASE = "/opt/python"
LIB = f"{BASE}/lib/python3.11"
EXE = f"{BASE}/bin/python3.11"
GOOD, OTHER = "1" * 64, "2" * 64
FILES = {f"{LIB}/os.py": GOOD, f"{LIB}/json/__init__.py": GOOD, f"{LIB}/lib-dynload/_ssl.cpython-311.so": GOOD}
RECORD = PythonRecord(
    version="3.11.7",
    executable=EXE,
    executable_sha256=GOOD,
    libpython=f"{BASE}/lib/libpython3.11.so.1.0",
    libpython_sha256=GOOD,
    path=(f"{BASE}/lib/python311.zip", LIB, f"{LIB}/lib-dynload"),
    names=("_ssl", "_tkinter", "json", "os", "tkinter"),
    bytecode=("timestamp",),
    pyvenv={"home": f"{BASE}/bin", "include-system-site-packages": "false", "version_info": "3.11.7"},
    files=tuple(LibraryFile(path, 4, digest) for path, digest in sorted(FILES.items())),
)


def library(files: dict[str, str], unreadable: tuple[str, ...] = ()) -> Observed:
    binaries = {EXE: GOOD, str(RECORD.libpython): GOOD}
    seen = (Seen(path[1:], "file", 0o644, 4, 1, 1, 1, 1, 1, None) for path in (*files, *binaries))
    digests = {path[1:]: digest for path, digest in {**files, **binaries}.items() if path[1:] not in unreadable}
    return Observed(files=tuple(sorted(seen)), digests=digests, unreadable=unreadable)


SEEN = PythonSeen(
    links={"bin/python": EXE, "bin/python3": EXE, "bin/python3.11": EXE},
    executable=EXE,
    executable_sha256=GOOD,
    libpython=RECORD.libpython,
    libpython_sha256=GOOD,
    pyvenv=RECORD.pyvenv,
    home_executable=EXE,
    libraries=("python3.11",),
    observed=library(FILES),
)


def findings(seen: PythonSeen, record: PythonRecord | None = RECORD, proof: Proof | None = None) -> list[Finding]:
    return list(check_interpreter_files(seen, record, proof=proof))


def with_files(files: dict[str, str], **more: object) -> PythonSeen:
    return replace(SEEN, observed=library({**FILES, **files}), **more)


def only(seen: PythonSeen, record: PythonRecord | None = RECORD) -> Finding:
    (finding,) = findings(seen, record)
    assert finding.check == "interpreter"
    return finding


def test_what_is_as_recorded_is_silent() -> None:
    assert findings(SEEN) == []
    assert "3 files" in library_figure(SEEN, RECORD)


def test_without_a_record_what_fits_together_is_silent() -> None:
    seen = replace(SEEN, version="3.11.7", observed=None)
    assert findings(seen, None) == []
    assert "not judged" in library_figure(seen, None)


def test_an_env_that_is_no_virtual_environment_is_silent_without_a_record() -> None:
    own = "/opt/conda/bin/python3.11"
    seen = PythonSeen(links={"bin/python": own, "bin/python3": own}, executable=own, copied=True, version="3.11.7",
                      libraries=("python3.1", "python3.11"))  # fmt: skip
    assert findings(seen, None) == []


def test_one_wrong_link_of_three_is_named() -> None:
    seen = replace(SEEN, links={**SEEN.links, "bin/python3": "/usr/bin/python3.10"})
    assert (only(seen).kind, only(seen).subject, only(seen).actual) == (
        "python-link-changed",
        "bin/python3",
        "/usr/bin/python3.10",
    )


def test_links_to_one_other_interpreter_are_one_finding_with_its_version() -> None:
    seen = replace(
        SEEN, links=dict.fromkeys(SEEN.links, "/usr/bin/python3.10"), executable="/usr/bin/python3.10",
        version="3.10.12", observed=None,
    )  # fmt: skip
    assert only(seen).message == "leads to Python 3.10.12"
    assert only(seen).expected == EXE


def test_a_base_interpreter_that_is_gone_is_said() -> None:
    seen = replace(SEEN, links=dict.fromkeys(SEEN.links), executable=None, executable_sha256=None, observed=None)
    assert (only(seen).kind, "is gone" in only(seen).message) == ("python-link-changed", True)


@pytest.mark.parametrize(
    ("key", "value", "expected", "actual"),
    [
        ("home", "/usr/bin", f"{BASE}/bin", "/usr/bin"),
        ("include-system-site-packages", "TRUE", "false", "TRUE"),
        ("include-system-site-packages", None, "false", "true"),
        ("version_info", "3.10.1", "3.11.7", "3.10.1"),
        ("home", None, f"{BASE}/bin", "no such key"),
    ],
)
def test_a_key_of_pyvenv_is_named_with_both_values(key: str, value: str | None, expected: str, actual: str) -> None:
    pyvenv = {name: old for name, old in RECORD.pyvenv.items() if name != key} | ({key: value} if value else {})
    finding = only(replace(SEEN, pyvenv=pyvenv))
    assert (finding.kind, finding.expected, finding.actual) == ("pyvenv-changed", expected, actual)
    assert f"`{key}`" in finding.message


def test_words_of_pyvenv_that_change_nothing_are_silent() -> None:
    pyvenv = {**RECORD.pyvenv, "prompt": "x", "include-system-site-packages": "False"}
    assert findings(replace(SEEN, pyvenv=pyvenv)) == []


def test_pyvenv_is_read_as_python_reads_it() -> None:
    text = "HOME = /a\nhome = /b\nInclude-System-Site-Packages = false\ninclude-system-site-packages=true\nnonsense\n"
    assert parse_pyvenv(text) == {"home": "/a", "include-system-site-packages": "true"}


@pytest.mark.parametrize(("field", "word"), [("executable_sha256", "executable"), ("libpython_sha256", "libpython")])
def test_a_changed_binary_is_named(field: str, word: str) -> None:
    seen = replace(SEEN, version="3.11.7", **{field: OTHER})  # type: ignore[arg-type]
    assert (only(seen).kind, word in only(seen).message) == ("interpreter-changed", True)
    assert "gone" in only(replace(SEEN, **{field: None})).message  # type: ignore[arg-type]


def test_an_upgraded_interpreter_is_one_finding_however_many_files_differ() -> None:
    files = {path: OTHER for path in FILES} | {f"{LIB}/new{n}.py": OTHER for n in range(700)}
    finding = only(with_files(files, executable_sha256=OTHER, version="3.11.9"))
    assert (finding.kind, finding.expected, finding.actual) == ("interpreter-changed", "3.11.7", "3.11.9")
    assert "703 files" in finding.message


def test_many_changed_files_are_counted() -> None:
    record = replace(RECORD, files=tuple(LibraryFile(f"{LIB}/m{n:03}.py", 4, GOOD) for n in range(100)))
    changed = replace(SEEN, observed=library({file.path: OTHER for file in record.files}))
    assert [finding.subject for finding in findings(changed, record)][-1] == "90 more files"
    gone = replace(SEEN, observed=library({}))
    assert len(findings(gone, record)) == SHOWN + 1


def test_a_file_that_cannot_be_read_is_no_clean_one() -> None:
    seen = replace(SEEN, observed=library(FILES, unreadable=(f"{LIB}/os.py"[1:],)))
    assert (only(seen).kind, only(seen).actual) == ("stdlib-changed", "cannot be read")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (f"{LIB}/torch.py", "can be imported"),
        (f"{LIB}/_ssl.py", "stands for `_ssl`"),
        (f"{LIB}/lib-dynload/os.so", "stands for `os`"),
        (f"{LIB}/usercustomize.py", "run at every start"),
        (f"{BASE}/lib/python311.zip", "archive"),
        (f"{LIB}/json/extra.py", "can be imported"),
        (f"{LIB}/odd-name.py", "can be imported"),
    ],
)
def test_what_was_added_is_said_with_what_it_does(path: str, words: str) -> None:
    finding = only(with_files({path: GOOD}))
    assert (finding.kind, finding.severity, finding.subject) == ("stdlib-extra", Severity.ERROR, path)
    assert words in finding.message


def test_a_part_of_the_library_that_the_system_adds_later_is_a_warning() -> None:
    added = {f"{LIB}/tkinter/__init__.py": GOOD, f"{LIB}/lib-dynload/_tkinter.cpython-311.so": GOOD}
    finding = only(with_files(added))
    assert (finding.kind, finding.severity, finding.subject) == ("stdlib-extra", Severity.WARNING, "_tkinter, tkinter")


def test_many_added_modules_are_counted() -> None:
    found = findings(with_files({f"{LIB}/m{n}.py": GOOD for n in range(300)}))
    assert (len(found), found[-1].subject) == (SHOWN + 1, "290 more modules")


def test_unchecked_bytecode_is_found_where_there_was_none_and_silent_where_it_is_the_custom() -> None:
    seen = replace(SEEN, unchecked=(f"{LIB}/__pycache__/os.cpython-311.pyc",))
    assert only(seen).kind == "stdlib-bytecode-unchecked"
    assert findings(seen, replace(RECORD, bytecode=("unchecked-hash",))) == []


def test_a_proof_of_the_library_speaks_in_this_family() -> None:
    found = findings(SEEN, proof=Proof(verdicts=(Verdict("a", "differs", "x"),), left=("b",), problem="it died"))
    assert {(finding.check, finding.kind) for finding in found} == {
        ("interpreter", "stdlib-bytecode-poisoned"),
        ("interpreter", "bytecode-not-proved"),
    }


def test_the_receipts_digest_is_enough_to_judge_the_binary() -> None:
    seen = replace(SEEN, version="3.11.7", observed=None)
    assert list(check_interpreter_files(seen, None, python_sha256=GOOD, identity=GOOD)) == []
    (finding,) = check_interpreter_files(seen, None, python_sha256=OTHER, identity=GOOD)
    assert finding.kind == "interpreter-changed"


def test_a_record_survives_its_file_and_its_digest_follows_its_content() -> None:
    assert PythonRecord.from_json(RECORD.to_json()) == RECORD
    assert replace(RECORD, files=()).digest() != RECORD.digest()
    assert (
        PythonRecord.from_json(replace(RECORD, files=(), libpython=None, libpython_sha256=None).to_json()).files == ()
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        RECORD.to_json().replace('"envsmith-python":1', '"envsmith-python":2'),
        RECORD.to_json().replace('"version":"3.11.7"', '"version":3'),
        RECORD.to_json().replace('"path":[', '"path":[1,'),
        RECORD.to_json().replace(',4,"', ',"4","'),
        RECORD.to_json().replace('"names":[', '"names":"x","y":['),
        RECORD.to_json().replace('"pyvenv":{', '"pyvenv":{"x":1,'),
        RECORD.to_json().replace('"libpython":["', '"libpython":[1,"'),
    ],
)
def test_a_malformed_record_is_refused(text: str) -> None:
    with pytest.raises(IntegrityError) as caught:
        PythonRecord.from_json(text)
    assert caught.value.problems[0].code == "python-record-malformed"
