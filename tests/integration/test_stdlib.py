"""A real interpreter, copied, recorded and then tampered with: whatever would change what its envs run is found."""

from __future__ import annotations

import compileall
import importlib.util
import marshal
import os
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envsmith.bytecode import pairs_to_prove
from envsmith.checks.interpreter import check_interpreter_files, library_figure
from envsmith.errors import StepError
from envsmith.report import Finding, Severity
from envsmith.stdlib import PythonRecord, PythonSeen
from envsmith.tools.bytecode import prove
from envsmith.tools.stdlib import look, make_record
from envsmith.tools.tree import StatIndex

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
ENV = {"PATH": os.environ["PATH"]}
STDLIB = Path(sysconfig.get_path("stdlib"))
_LEFT = shutil.ignore_patterns(
    "__pycache__", "test", "tests", "idle_test", "site-packages", "dist-packages", "config-*"
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this interpreter that may be broken: its prefix is where it lies."""
    base = tmp_path_factory.mktemp("original")
    shutil.copytree(STDLIB, base / "lib" / f"python{VERSION}", ignore=_LEFT, symlinks=False)
    (base / "bin").mkdir()
    shutil.copy(os.path.realpath(sys._base_executable), base / "bin" / f"python{VERSION}")  # type: ignore[attr-defined]
    compileall.compile_dir(base / "lib" / f"python{VERSION}" / "json", quiet=2)
    return base


class Lab:
    """A base interpreter, an env on it, and the record of both as they were built."""

    def __init__(self, base: Path, directory: Path) -> None:
        self.base, self.directory = base, directory
        self.python = base / "bin" / f"python{VERSION}"
        self.library = base / "lib" / f"python{VERSION}"
        made = (self.python, "-I", "-B", "-m", "venv", "--without-pip", directory)
        subprocess.run(made, check=True, env=ENV, capture_output=True)
        self.record: PythonRecord | None = make_record(self.python, env=ENV, directory=directory)
        self.index = StatIndex()

    def write(self, path: str, content: str | bytes = "x = 1\n") -> Path:
        """Write a new file in the place of what is there: that one is shared with other tests."""
        place = self.base / path if not path.startswith("env/") else self.directory / path[4:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
        return place

    def look(self, deep: bool = False) -> PythonSeen:
        self.seen, self.index = look(self.directory, self.record, self.index, env=ENV, deep=deep)
        return self.seen

    def findings(self) -> list[Finding]:
        return list(check_interpreter_files(self.look(), self.record))

    def kinds(self) -> set[tuple[str, str]]:
        return {(finding.kind, finding.subject.rpartition("/")[2]) for finding in self.findings()}


@pytest.fixture
def lab(original: Path, tmp_path: Path) -> Lab:
    shutil.copytree(original, tmp_path / "base", copy_function=os.link, symlinks=True)
    return Lab(tmp_path / "base", tmp_path / "env")


# -- silent -----------------------------------------------------------------------------------------------------------


def test_a_fresh_env_is_silent_and_the_record_survives_its_file(lab: Lab) -> None:
    record = lab.record
    assert record is not None
    assert PythonRecord.from_json(record.to_json()) == record
    assert lab.findings() == []
    paths = {file.path for file in record.files}
    assert str(lab.library / "json" / "__init__.py") in paths
    assert any("/lib-dynload/" in path for path in paths)
    assert not [path for path in paths if "__pycache__" in path or "site-packages" in path or "/test/" in path]
    assert record.bytecode == ("timestamp",)
    assert f"{len(paths):,} files" in library_figure(lab.seen, record)


def test_this_interpreter_itself_is_recorded_byte_for_byte() -> None:
    from envsmith.tools.files import sha256_file

    python = Path(sys._base_executable)  # type: ignore[attr-defined]
    record = make_record(python, env=ENV)
    assert record.executable_sha256 == sha256_file(python)
    assert record.libpython is None or record.libpython_sha256 == sha256_file(Path(record.libpython))
    assert len(record.files) > 400


def test_tests_bytecode_data_and_site_packages_do_not_count(lab: Lab) -> None:
    lab.write(f"lib/python{VERSION}/test/test_x.py")
    lab.write(f"lib/python{VERSION}/site-packages/thing.py")
    lab.write(f"lib/python{VERSION}/dist-packages/thing.py")
    lab.write(f"lib/python{VERSION}/notes.txt")
    lab.write(f"lib/python{VERSION}/__pycache__/os.cpython-30.pyc", b"")
    assert lab.findings() == []


def test_the_second_look_reads_nothing_and_starts_nothing(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.look()
    assert lab.seen.observed and lab.seen.observed.hashed_files > 400
    # Rows of files so young are not believed; in ten minutes they would be.
    lab.index = StatIndex(taken_ns=lab.index.taken_ns + 1200 * 10**9, rows=lab.index.rows)
    before = lab.index
    monkeypatch.setattr("envsmith.tools.stdlib.run", None)
    assert lab.findings() == []
    assert (lab.seen.observed.hashed_files, lab.index) == (0, before)
    assert lab.look(deep=True).observed.hashed_files > 400  # type: ignore[union-attr]


def test_nothing_is_written_beside_the_interpreter_or_into_the_env(lab: Lab) -> None:
    before = sorted([*lab.base.rglob("*"), *lab.directory.rglob("*")])
    lab.look(deep=True)
    assert sorted([*lab.base.rglob("*"), *lab.directory.rglob("*")]) == before


# -- found ------------------------------------------------------------------------------------------------------------


def archive(lab: Lab) -> None:
    lab.write(f"lib/python{VERSION.replace('.', '')}.zip", b"PK")


def emptied(lab: Lab) -> None:
    (lab.library / "base64.py").unlink()


def relinked(lab: Lab) -> None:
    (lab.directory / "bin" / "python").unlink()
    (lab.directory / "bin" / "python").symlink_to(sys._base_executable)  # type: ignore[attr-defined]


def dangling(lab: Lab) -> None:
    lab.python.rename(lab.python.with_name("moved"))


def setting(key: str, value: str | None) -> Callable[[Lab], None]:
    def change(lab: Lab) -> None:
        path = lab.directory / "pyvenv.cfg"
        lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{key} ")]
        path.write_text("\n".join(lines + ([f"{key} = {value}"] if value is not None else [])) + "\n")

    return change


def unchecked(lab: Lab) -> None:
    name = f"json/__pycache__/scanner.{sys.implementation.cache_tag}.pyc"
    data = (lab.library / name).read_bytes()
    lab.write(f"lib/python{VERSION}/{name}", data[:4] + struct.pack("<I", 1) + data[8:])


PLANTED: dict[str, tuple[Callable[[Lab], object], set[tuple[str, str]]]] = {
    "edited": (lambda lab: lab.write(f"lib/python{VERSION}/base64.py"), {("stdlib-changed", "base64.py")}),
    "gone": (emptied, {("stdlib-missing", "base64.py")}),
    "added": (lambda lab: lab.write(f"lib/python{VERSION}/torch.py"), {("stdlib-extra", "torch.py")}),
    "package": (
        lambda lab: [lab.write(f"lib/python{VERSION}/torch/{name}.py") for name in ("__init__", "nn")],
        {("stdlib-extra", "__init__.py")},
    ),
    "without-source": (lambda lab: lab.write(f"lib/python{VERSION}/torch.pyc"), {("stdlib-extra", "torch.pyc")}),
    "shadow": (
        lambda lab: lab.write(f"lib/python{VERSION}/base64.so", b"\x7fELF"),
        {("stdlib-extra", "base64.so")},
    ),
    "start-up": (
        lambda lab: lab.write(f"lib/python{VERSION}/sitecustomize.py"),
        {("stdlib-extra", "sitecustomize.py")},
    ),
    "archive": (archive, {("stdlib-extra", f"python{VERSION.replace('.', '')}.zip")}),
    "dangling": (dangling, {("python-link-changed", f"python{VERSION}")}),
    "path-file": (
        lambda lab: lab.write(f"bin/python{VERSION}._pth", "/tmp\n"),
        {("path-file-added", f"python{VERSION}._pth")},
    ),
    "path-file-in-env": (
        lambda lab: lab.write("env/bin/python._pth", "/tmp\n"),
        {("path-file-added", "python._pth")},
    ),
    "second-config": (
        lambda lab: lab.write("env/bin/pyvenv.cfg", "home = /usr/bin\n"),
        {("pyvenv-changed", "pyvenv.cfg")},
    ),
    "home": (setting("home", "/usr/bin"), {("pyvenv-changed", "pyvenv.cfg")}),
    "system": (setting("include-system-site-packages", "true"), {("pyvenv-changed", "pyvenv.cfg")}),
    "system-by-default": (setting("include-system-site-packages", None), {("pyvenv-changed", "pyvenv.cfg")}),
    "version": (setting("version", "3.6.1"), {("pyvenv-changed", "pyvenv.cfg")}),
    "no-config": (lambda lab: (lab.directory / "pyvenv.cfg").unlink(), {("pyvenv-changed", "pyvenv.cfg")}),
    "unchecked": (unchecked, {("stdlib-bytecode-unchecked", f"scanner.{sys.implementation.cache_tag}.pyc")}),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(lab: Lab, name: str) -> None:
    plant, wanted = PLANTED[name]
    plant(lab)
    found = lab.findings()
    assert {(finding.kind, finding.subject.rpartition("/")[2]) for finding in found} == wanted
    assert all(finding.severity is Severity.ERROR and finding.check == "interpreter" for finding in found)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="older ones do not read it")
def test_a_path_file_really_takes_the_interpreter_over(lab: Lab) -> None:
    lab.write(f"bin/python{VERSION}._pth", f"{lab.base}/elsewhere\n{lab.library}\n")
    asked = (lab.directory / "bin" / "python", "-B", "-c", "import sys; print(sys.path[0])")
    done = subprocess.run(asked, capture_output=True, text=True, check=True, env=ENV)
    assert done.stdout.strip() == f"{lab.base}/elsewhere"


def test_a_changed_binary_is_named_with_the_version_that_it_says(lab: Lab) -> None:
    with_more = lab.python.read_bytes() + b"\0"
    lab.write(f"bin/python{VERSION}", with_more).chmod(0o755)
    (finding,) = lab.findings()
    assert finding.kind == "interpreter-changed"
    assert f"still says Python {VERSION}" in finding.message


def test_a_binary_that_does_not_run_is_said(lab: Lab) -> None:
    lab.write(f"bin/python{VERSION}", b"broken").chmod(0o755)
    assert {finding.kind for finding in lab.findings()} == {"interpreter-changed", "interpreter-broken"}


def test_a_link_to_another_interpreter_says_which(lab: Lab) -> None:
    relinked(lab)
    found = lab.findings()
    assert {finding.kind for finding in found} == {"python-link-changed"}
    assert f"leads to Python {VERSION}" in found[0].message
    assert "not judged" in library_figure(lab.seen, lab.record)


def test_an_upgrade_in_place_is_one_finding(lab: Lab) -> None:
    assert lab.record is not None
    lab.record = replace(lab.record, version="3.1.4", executable_sha256="0" * 64)
    for name in ("base64.py", "bisect.py"):
        lab.write(f"lib/python{VERSION}/{name}")
    found = [finding for finding in lab.findings() if finding.kind != "python-link-changed"]
    assert [finding.kind for finding in found] == ["interpreter-changed"]
    assert "2 files of its library differ" in found[0].message


def test_poisoned_bytecode_of_the_library_is_found_by_the_proof(lab: Lab) -> None:
    source = lab.library / "json" / "scanner.py"
    info = source.stat()
    header = importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, int(info.st_mtime), info.st_size)
    name = f"json/__pycache__/scanner.{sys.implementation.cache_tag}.pyc"
    lab.write(f"lib/python{VERSION}/{name}", header + marshal.dumps(compile("x = 1", "scanner.py", "exec")))
    seen = lab.look()
    assert seen.observed is not None
    pairs = pairs_to_prove(seen.observed, {}, python=VERSION)
    proof, _ = prove(Path("/"), pairs, seen.observed, python=lab.python, identity="", env=ENV, deep=True)
    found = list(check_interpreter_files(seen, lab.record, proof=proof))
    assert [(finding.kind, finding.subject) for finding in found] == [
        ("stdlib-bytecode-poisoned", str(lab.library / name)[1:])
    ]
    assert proof.pairs >= 4


# -- without a record -------------------------------------------------------------------------------------------------


def test_an_env_of_another_tool_is_silent_as_long_as_it_fits_together(lab: Lab) -> None:
    lab.record = None
    assert lab.findings() == []
    assert lab.seen.version == f"{VERSION}.{sys.version_info[2]}"
    assert "no record" in library_figure(lab.seen, None)


def test_copies_of_the_interpreter_in_an_env_are_silent_without_a_record(lab: Lab) -> None:
    copied = lab.directory.with_name("copied")
    made = (lab.python, "-I", "-B", "-m", "venv", "--without-pip", "--copies", copied)
    subprocess.run(made, check=True, env=ENV, capture_output=True)
    seen, _ = look(copied, None, env=ENV)
    assert list(check_interpreter_files(seen, None)) == []


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (dangling, "python-link-changed"),
        (setting("home", "/nonexistent"), "pyvenv-changed"),
        (setting("home", None), "pyvenv-changed"),
        (setting("home", str(Path(sys._base_executable).parent)), "pyvenv-changed"),  # type: ignore[attr-defined]
        (setting("version", "3.6.1"), "pyvenv-changed"),
        (
            lambda lab: (lab.directory / "lib" / f"python{VERSION}").rename(lab.directory / "lib" / "python3.6"),
            "python-link-changed",
        ),
        (lambda lab: lab.write(f"bin/python{VERSION}", b"broken").chmod(0o755), "interpreter-broken"),
    ],
)
def test_contradictions_are_found_without_a_record(lab: Lab, plant: Callable[[Lab], None], kind: str) -> None:
    lab.record = None
    plant(lab)
    assert {finding.kind for finding in lab.findings()} == {kind}


def test_the_receipts_digest_judges_the_binary_where_there_is_no_record(lab: Lab) -> None:
    from envsmith.tools.interpreter import interpreter_digest

    lab.record, before = None, interpreter_digest(lab.python)
    assert list(check_interpreter_files(lab.look(), None, python_sha256=before, identity=before)) == []
    lab.write(f"bin/python{VERSION}", lab.python.read_bytes() + b"\0").chmod(0o755)
    after = interpreter_digest(lab.python)
    (finding,) = check_interpreter_files(lab.look(), None, python_sha256=before, identity=after)
    assert finding.kind == "interpreter-changed"


@pytest.mark.parametrize("python", ["/nonexistent/python", "/bin/false"])
def test_what_is_no_interpreter_cannot_be_recorded(python: str) -> None:
    with pytest.raises(StepError) as caught:
        make_record(Path(python), env=ENV)
    assert caught.value.problems[0].code == "interpreter-broken"


def test_a_library_of_links_is_read_through_them(lab: Lab, tmp_path: Path) -> None:
    farm = tmp_path / "farm"
    lab.library.rename(farm)
    lab.library.mkdir()
    for item in farm.iterdir():
        (lab.library / item.name).symlink_to(item)
    (farm / "json" / "loop").symlink_to(farm / "json")
    lab.record = make_record(lab.python, env=ENV, directory=lab.directory)
    assert lab.findings() == []
    assert str(lab.library / "base64.py") in {file.path for file in lab.record.files}
    (farm / "base64.py").unlink()
    (farm / "base64.py").write_text("x = 1\n")
    assert lab.kinds() == {("stdlib-changed", "base64.py")}
