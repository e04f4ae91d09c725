"""`envsmith snapshot` as a process: what it prints, writes and refuses, on a machine that need not have a device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from envsmith.commands.snapshot import capture, cuinit_words, summary
from envsmith.errors import InputError, StepError
from envsmith.host import parse_snapshot
from tests.support.project import Said
from tests.support.venvs import Venv, make_venv


def snapshot(*words: str, env: Mapping[str, str] | None = None) -> Said:
    done = subprocess.run(
        [sys.executable, "-m", "envsmith", "snapshot", *words],
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        timeout=120,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    venv = make_venv(tmp_path / "venv")
    venv.install("alpha", "1.0+vendor1", {"alpha.py": "a = 1\n"}, requires=("beta>=2",))
    venv.install("beta", "2.0", {"beta.py": "b = 1\n"})
    (venv.site / "beta.py").write_text("b = 2\n")
    return venv


def test_without_a_file_stdout_is_the_snapshot_and_nothing_else() -> None:
    said = snapshot()
    assert said.code == 0, said.err
    told = parse_snapshot(said.out, "stdout")
    assert told.snapshot.origin == "captured"
    assert (told.snapshot.tool or "").startswith("envsmith ")
    assert told.host.kernel == os.uname().release
    assert (told.python, told.packages) == (None, ())


def test_with_a_file_it_is_written_and_summed_up(venv: Venv, tmp_path: Path) -> None:
    target = tmp_path / "snapshots" / "h.toml"
    said = snapshot("--python", str(venv.path / "bin/python"), "-o", str(target), env={"ENVSMITH_HOST_DRIVER": "535.1"})
    assert said.code == 0, said.err
    told = parse_snapshot(target.read_text(), "x")
    assert told.by_name().keys() == {"alpha", "beta"}
    assert [one.path for one in told.by_name()["beta"].altered] == ["beta.py"]
    lines = said.out.splitlines()
    assert lines[0] == f"wrote {target}"
    assert "driver:  535.1" in lines
    assert any(line.endswith(", 2 packages, 1 of them not as their RECORD says") for line in lines)
    assert "note:    set by hand: driver" in lines
    assert [one.name for one in target.parent.iterdir()] == ["h.toml"]


def test_without_files_the_versions_are_there_and_nothing_is_hashed(venv: Venv) -> None:
    venv.install("torch", "2.9.0+vendor.1", {"torch/__init__.py": ""})
    said = snapshot("--python", str(venv.path / "bin" / "python"), "--no-run", "--no-files")
    (package,) = (one for one in parse_snapshot(said.out, "x").packages if one.name == "torch")
    assert (package.version, package.files, package.altered) == ("2.9.0+vendor.1", None, ())
    assert "reading every package" not in said.err


def test_the_envelope_holds_the_snapshot(tmp_path: Path) -> None:
    said = snapshot("--json", env={"ENVSMITH_HOST_CUINIT": "803"})
    data = json.loads(said.out)["data"]
    assert (said.code, data["path"], data["snapshot"]["host"]["cuinit"]) == (0, None, 803)
    said = snapshot("--json", "-o", str(tmp_path / "s.toml"))
    data = json.loads(said.out)["data"]
    assert data["path"] == str(tmp_path / "s.toml")
    assert data["snapshot"]["host"]["arch"] == os.uname().machine


def test_a_vendors_program_is_asked(tmp_path: Path) -> None:
    query = tmp_path / "vendor-smi"
    query.write_text("#!/bin/sh\necho 'name, memory.total [MiB], driver_version'\necho 'X1, 98304 MiB, 1.5.3-5239a4'\n")
    query.chmod(0o755)
    said = snapshot("--query", str(query), "-o", str(tmp_path / "s.toml"))
    assert said.code == 0, said.err
    assert "driver:  1.5.3-5239a4" in said.out
    assert "devices: 1 × X1" in said.out


@pytest.mark.parametrize(
    ("words", "env", "code", "kinds"),
    [
        (("--python", "/nonexistent/python"), {}, 6, ["interpreter-broken"]),
        (("--python", "/bin/true"), {}, 6, ["interpreter-broken"]),
        ((), {"ENVSMITH_HOST_CPUS": "many", "ENVSMITH_HOST_NONE": "1"}, 2, ["snapshot-override-malformed"] * 2),
        (("-o", "."), {}, 2, ["snapshot-output-unusable"]),
        (("-o", ""), {}, 2, ["snapshot-output-unusable"]),
        (("-o", "pipe"), {}, 2, ["snapshot-output-unusable"]),
        (("-o", "link-to-pipe"), {}, 2, ["snapshot-output-unusable"]),
        ((), {"ENVSMITH_HOST_GLIBC": "rubbish"}, 2, ["snapshot-override-malformed"]),
        ((), {"ENVSMITH_HOST_DRIVER": "535.1\nx"}, 2, ["snapshot-override-malformed"]),
        (("-o", "file/s.toml"), {}, 4, ["file-in-the-way"]),
        (("--python", ""), {}, 6, ["interpreter-broken"]),
        (("--pyton", "x"), {}, 2, ["usage"]),
    ],
)
def test_what_is_wrong_is_one_clear_error(
    words: tuple[str, ...], env: dict[str, str], code: int, kinds: list[str]
) -> None:
    Path("file").write_text("in the way")
    os.mkfifo("pipe")
    Path("link-to-pipe").symlink_to("pipe")
    said = snapshot("--json", *words, env=env)
    assert (said.code, said.codes) == (code, kinds)
    assert "Traceback" not in said.out + said.err
    assert Path("link-to-pipe").is_symlink() and Path("pipe").is_fifo()


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.toml"
    link.symlink_to("real/s.toml")
    for _ in range(2):
        said = snapshot("--json", "-o", str(link))
        assert (said.code, json.loads(said.out)["data"]["path"]) == (0, str(link))
        assert link.is_symlink()
        assert parse_snapshot((tmp_path / "real" / "s.toml").read_text(), "x").snapshot.origin == "captured"


@pytest.mark.parametrize("words", ["", "--json"])
def test_without_stdout_and_without_a_file_nothing_is_looked_at(words: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec '{sys.executable}' -m envsmith snapshot {words} >&-"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (4, "")
    assert words or done.stderr.startswith("error[output-failed]: stdout is closed")


def test_commands_capture_in_the_same_way(venv: Venv) -> None:
    told = capture(str(venv.path / "bin/python"), environ=dict(os.environ), paths=(str(venv.path),))
    assert told.by_name()["alpha"].version == "1.0+vendor1"
    assert told.by_name()["alpha"].requires == ("beta>=2",)
    assert told.host.behind(str(venv.path / "lib")) is not None
    with pytest.raises(InputError):
        capture(environ={**os.environ, "ENVSMITH_HOST_CPUS": "x"})
    with pytest.raises(StepError):
        capture("/nonexistent/python", environ=dict(os.environ))


def test_answers_of_cuinit_are_put_into_words() -> None:
    assert cuinit_words(803) == "803, libcuda does not fit the kernel driver"
    assert cuinit_words(0) == "0, success"
    assert cuinit_words(-11) == "its process ended with SIGSEGV"
    assert cuinit_words(12345) == "12345"
    text = '[snapshot]\nschema = 1\norigin = "captured"\n[host]\nlibcuda = "/x/libcuda.so.1"\ncuinit = 803\n'
    lines = summary(parse_snapshot(text, "x"))
    assert "libcuda: /x/libcuda.so.1; cuInit: 803, libcuda does not fit the kernel driver" in lines
    assert "machine: not known" in lines
    assert "driver:  not known" in lines


def test_what_programs_said_cannot_steer_a_terminal() -> None:
    text = '[snapshot]\nschema = 1\norigin = "captured"\nnote = "a\\u001b[31m"\n[host]\ndriver = ""\nlibcuda = ""\n'
    lines = summary(parse_snapshot(text, "x"))
    assert "note:    a\\x1b[31m" in lines
    assert {"driver:  none", "libcuda: a fresh process finds none"} <= set(lines)
