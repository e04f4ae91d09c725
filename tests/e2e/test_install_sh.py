"""`sh install.sh`: with an empty environment and no envsmith, in every shell that is here, and what it refuses."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from envsmith import bundle as form
from envsmith.receipt import VARIABLE
from tests.support.bundlekit import Bundle, Kit, Tampered
from tests.support.project import PYTHON

pytest_plugins = ("tests.e2e.bundle_fixtures",)

#: Where system programs are: git for the sources, and what a POSIX shell script calls.
SYSTEM = "/usr/local/bin:/usr/bin:/bin"
SHELLS = {
    "dash": ("dash",),
    "bash": ("bash", "--posix"),
    "busybox": ("busybox", "sh"),
    "sh": ("sh",),
}


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str


def install_sh(
    bundle: Path, *words: str | Path, shell: Sequence[str] = ("sh",), env: Mapping[str, str] | None = None, cwd: Path
) -> Ended:
    """Run the script with nothing but the given variables."""
    done = subprocess.run(
        ["env", "-i", *(f"{name}={value}" for name, value in (env or {}).items()), *shell,
         bundle / "install.sh", *words],
        cwd=cwd, capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


def with_python(**more: str) -> dict[str, str]:
    """The variables of a machine that has the Python of these tests, and nothing else of us."""
    base = Path(sys.base_prefix) / "bin" / f"python{PYTHON}"
    return {"PATH": SYSTEM, "ENVSMITH_PYTHON": str(base), **more}


def shells() -> list[str]:
    return [name for name in ("dash", "bash", "busybox") if shutil.which(SHELLS[name][0])] or ["sh"]


# --- it works ---


def test_it_installs_from_nothing_and_a_second_run_is_quiet_and_changes_nothing(kit: Kit, tmp_path: Path) -> None:
    """No HOME, no PATH to us, the carried interpreter where there is one; code in the current folder does not run."""
    for name in ("click.py", "envsmith/__init__.py", "usercustomize.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('hijacked')\n")
    carried = bool(kit.whole.manifest.of(form.PYTHON))
    env = {} if carried else with_python()
    bundle, root = kit.whole, tmp_path / "envs"
    ended = install_sh(bundle.path, "--root", root, "--expect", bundle.digest, env=env, cwd=tmp_path)
    assert ended.code == 0, ended.out + ended.err
    receipt = json.loads((root / "demo-app" / "current" / "envsmith.json").read_text())
    built = json.loads((kit.built.envs / "demo-app" / "current" / "envsmith.json").read_text())
    assert {key: value for key, value in receipt.items() if key not in VARIABLE} == {
        key: value for key, value in built.items() if key not in VARIABLE
    }
    assert (root / ".store").is_dir()
    tools = root / ".tools" / bundle.entry.sha256[:12]
    assert sorted(one.name for one in (root / ".tools").iterdir()) == [tools.name]
    done = subprocess.run(
        ["env", "-i", tools / "bin" / "envsmith", "verify", "demo/app", "--root", root, "--json"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    before = {one: one.lstat().st_mtime_ns for one in tools.rglob("*")}
    again = install_sh(bundle.path, "--root", root, "--json", env=env, cwd=tmp_path)
    assert again.code == 0, again.err
    assert json.loads(again.out)["data"]["envs"][0]["state"] == "unchanged"
    assert "put envsmith into" not in again.err
    assert {one: one.lstat().st_mtime_ns for one in tools.rglob("*")} == before


@pytest.mark.parametrize("name", shells())
def test_hostile_paths_and_variables_of_other_tools_are_nothing_special_in_this_shell(
    kit: Kit, tmp_path: Path, name: str
) -> None:
    """A read-only folder with a hostile name, a root with another, asked for from a third."""
    poison = tmp_path / "poison"
    (poison / "click").mkdir(parents=True)
    (poison / "click" / "__init__.py").write_text("raise SystemExit(99)\n")
    (poison / "sitecustomize.py").write_text("raise SystemExit(98)\n")
    others = {
        "PYTHONPATH": str(poison), "PYTHONHOME": "/nonexistent", "VIRTUAL_ENV": "/nonexistent", "IFS": "x",
        "UV_INDEX": "http://127.0.0.1:9/", "UV_PYTHON": "2.7", "UV_CONFIG_FILE": "/nonexistent", "CDPATH": "/usr",
    }  # fmt: skip
    here = tmp_path / 'it\'s "here" $HOME `x` *'
    here.mkdir()
    bundle = here / "a b;c&d"
    shutil.copytree(kit.pair.path, bundle, copy_function=os.link)
    bundle.chmod(0o555)
    root = tmp_path / "my envs 'n' \"roots\""
    words = ("--root", root) if name != "bash" else (f"--root={root}",)
    try:
        ended = install_sh(
            bundle, *words, "--env", "a", shell=SHELLS[name], env=with_python(HOME=str(here), **others), cwd=here
        )
    finally:
        bundle.chmod(0o755)
    assert ended.code == 0, ended.out + ended.err
    assert (root / "pair-a" / "current" / "bin" / "python").exists()
    assert not (root / "pair-b").exists()
    assert {one.name for one in bundle.iterdir()} == {one.name for one in kit.pair.path.iterdir()}


def test_two_runs_at_once_after_one_that_was_killed_both_end_well(kit: Kit, tmp_path: Path) -> None:
    words = ["sh", str(kit.pair.path / "install.sh"), "--root", str(tmp_path / "envs"), "--env", "a"]

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            words, env=with_python(), cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE, text=True
        )

    killed = start()
    time.sleep(0.4)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    runs = [start(), start()]
    for run in runs:
        _, said = run.communicate(timeout=300)
        assert run.returncode == 0, said
    assert [one.name for one in (tmp_path / "envs" / ".tools").iterdir()] == [kit.pair.entry.sha256[:12]]
    assert (tmp_path / "envs" / "pair-a" / "current").is_symlink()


# --- it refuses ---


def refused(bundle: Path, tmp_path: Path, *words: str, env: Mapping[str, str] | None = None) -> Ended:
    ended = install_sh(
        bundle, "--root", "envs", "--env", "a", *words, env=with_python() if env is None else env, cwd=tmp_path
    )
    assert ended.code != 0, ended.out
    assert not list((tmp_path / "envs").glob("pair-*"))
    assert "hint: " in ended.err
    return ended


@pytest.fixture
def bundle(kit: Kit, tmp_path: Path) -> Tampered:
    return Tampered.of(kit.pair, tmp_path / "b")


def tool(bundle: Bundle, start: str) -> str:
    return bundle.wheel(start).sha256


def test_another_digest_than_the_expected_is_refused_before_anything_runs(kit: Kit, tmp_path: Path) -> None:
    for expect in ("sha256:" + "0" * 64, "0" * 64, kit.lean.digest, "x"):
        for words in (("--expect", expect), (f"--expect={expect}",)):
            ended = refused(kit.pair.path, tmp_path, *words)
            assert ended.code == 5
            assert "error[bundle-unexpected]" in ended.err
            assert kit.pair.entry.sha256 in ended.err
    assert not (tmp_path / "envs").exists()


def test_every_blob_that_it_uses_is_proven_first(kit: Kit, tmp_path: Path) -> None:
    lock = next(one for one in kit.pair.manifest.of(form.PYLOCK) if one.title.startswith("pylock.tools-"))
    used = {
        lock.sha256: lock.title,
        tool(kit.pair, "uv"): "wheels/uv-",
        tool(kit.pair, "click"): "wheels/click-",
        tool(kit.pair, "envsmith"): "wheels/envsmith-",
    }
    for number, (sha256, what) in enumerate(used.items()):
        one = Tampered.of(kit.pair, tmp_path / f"flip-{number}")
        one.flip(sha256)
        ended = refused(one.path, tmp_path)
        assert ended.code == 5, ended.err
        assert "error[bundle-blob-corrupt]" in ended.err
        assert sha256 in ended.err
        assert what in ended.err
        (one.blobs / sha256).unlink()
        ended = refused(one.path, tmp_path)
        assert (ended.code, "error[bundle-blob-missing]" in ended.err) == (5, True)
    one = Tampered.of(kit.pair, tmp_path / "manifest")
    one.flip(kit.pair.entry.sha256)
    assert refused(one.path, tmp_path).code == 5


def test_a_blob_that_only_envsmith_uses_is_found_by_envsmith(bundle: Tampered, tmp_path: Path) -> None:
    bundle.flip(bundle.wheel("gamma").sha256)
    ended = refused(bundle.path, tmp_path)
    assert ended.code == 5
    assert "wheels/gamma-" in ended.err


def test_lists_beside_the_blobs_are_believed_in_nothing(kit: Kit, tmp_path: Path) -> None:
    """FILES.tsv only says where to look; what it leads to has to stand in the manifest, under its digest."""
    evil = b"PK evil wheel"
    lock = next(one for one in kit.pair.manifest.of(form.PYLOCK) if one.title.startswith("pylock.tools-"))
    text = (kit.pair.path / "FILES.tsv").read_text()

    one = Tampered.of(kit.pair, tmp_path / "lock")
    data = (one.blobs / lock.sha256).read_bytes().replace(b"click", b"clack")
    one.write("FILES.tsv", text.replace(lock.sha256, one.add(data)).encode())
    ended = refused(one.path, tmp_path)
    assert (ended.code, "error[bundle-file-differs]" in ended.err) == (5, True), ended.err

    two = Tampered.of(kit.pair, tmp_path / "interpreter")
    row = f"{two.add(evil)}\t{len(evil)}\tpython/cpython-{PYTHON}.99-{os.uname().machine}.tar\n"
    two.write("FILES.tsv", (text + row).encode())
    ended = refused(two.path, tmp_path)
    assert (ended.code, "error[bundle-file-differs]" in ended.err) == (5, True), ended.err

    three = Tampered.of(kit.pair, tmp_path / "empty")
    three.write("FILES.tsv", b"")
    ended = refused(three.path, tmp_path)
    assert (ended.code, "error[bundle-without-tools]" in ended.err) == (4, True), ended.err

    four = Tampered.of(kit.pair, tmp_path / "odd")
    four.write("FILES.tsv", text.replace("\tpylock.tools", "\t../../pylock.tools").encode())
    assert refused(four.path, tmp_path).code in (4, 5)


def test_a_changed_index_is_no_bundle_or_another_one(kit: Kit, tmp_path: Path) -> None:
    for number, data in enumerate((b"", b"{}", b"\x00" * 50, (kit.lean.path / "index.json").read_bytes())):
        one = Tampered.of(kit.pair, tmp_path / str(number))
        one.write("index.json", data)
        ended = refused(one.path, tmp_path)
        assert ended.code == 5, ended.err
        assert "error[bundle-malformed]" in ended.err
    for name in ("index.json", "FILES.tsv"):
        one = Tampered.of(kit.pair, tmp_path / name)
        (one.path / name).unlink()
        assert refused(one.path, tmp_path).code == 5


def test_a_machine_without_the_right_python_is_told_what_to_do(kit: Kit, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in (
        "sh",
        "env",
        "sed",
        "tr",
        "grep",
        "head",
        "cut",
        "cat",
        "rm",
        "mkdir",
        "dirname",
        "uname",
        "sha256sum",
    ):
        (programs / name).symlink_to(shutil.which(name) or name)
    (programs / "python3").write_text("#!/bin/sh\necho 2.7\n")
    (programs / "python3").chmod(0o755)
    if any(Path(place, f"python{PYTHON}").exists() for place in ("/opt/conda/bin", "/opt/python/bin")):
        pytest.skip("this machine has the right Python where the script always looks")
    ended = refused(kit.pair.path, tmp_path, env={"PATH": str(programs)})
    assert (ended.code, "error[no-interpreter]" in ended.err) == (4, True), ended.err
    assert "ENVSMITH_PYTHON=" in ended.err


def test_a_root_with_a_colon_is_refused(kit: Kit, tmp_path: Path) -> None:
    ended = install_sh(kit.pair.path, "--root", "a:b", env=with_python(), cwd=tmp_path)
    assert (ended.code, "error[root-unusable]" in ended.err) == (2, True)
    assert not (tmp_path / "a:b").exists()


def test_the_script_is_posix(kit: Kit) -> None:
    script = kit.pair.path / "install.sh"
    for name in shells():
        done = subprocess.run([*SHELLS[name], "-n", script], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), shlex.join(SHELLS[name])
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", "-s", "sh", script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
