"""What `verify` looks at besides files, on a built env: the seal, explanations, the chain, running processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.project import SITE, Project
from tests.support.venvs import findings
from tests.support.wheels import make_wheel


def data(said, name: str = "figures"):  # type: ignore[no-untyped-def]
    return said.json["data"]["envs"][0][name]


def settle(p: Project) -> None:
    """Let the files of the env grow older than the coarsest clock tick, so that an index may vouch for them."""
    time.sleep(2.2)
    assert p.verify().code == 0


def beside(p: Project, suffix: str) -> Path:
    real = p.current.resolve()
    return real.with_name(f"{real.name}.{suffix}")


def test_a_quick_look_answers_from_the_seal_until_anything_differs(built: Project) -> None:
    settle(built)
    assert beside(built, "seal.json").exists()
    beside(built, "stat.json").write_text("no index")  # the seal needs none
    said = built.verify("--quick")
    assert (said.code, data(said, "hashed_bytes")) == (0, 0)
    assert data(said, "trusted_bytes") > 0
    before = (built.site / "alpha/extra.py").stat()
    (built.site / "alpha/extra.py").write_text("X = 2\n")
    os.utime(built.site / "alpha/extra.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert built.verify("--quick").kinds == {"files/file-changed"}
    (built.site / "alpha/extra.py").write_text("X = 1\n")
    assert built.verify("--quick").code == 0


def test_a_seal_that_somebody_wrote_for_other_records_is_not_believed(built: Project) -> None:
    settle(built)
    seal = json.loads(beside(built, "seal.json").read_text())
    (built.site / "alpha/extra.py").write_text("X = 2\n")
    assert built.verify().code == 1
    seal["records"] = ["0" * 64] * 4
    beside(built, "seal.json").write_text(json.dumps(seal))
    assert built.verify("--quick").kinds == {"files/file-changed"}
    for nonsense in ("", "[]", '{"envsmith": 1}', "\0"):
        beside(built, "seal.json").write_text(nonsense)
        assert built.verify("--quick").kinds == {"files/file-changed"}


def test_a_moved_env_is_not_sealed_by_its_old_place(built: Project) -> None:
    settle(built)
    (built.folder / "envs").rename(built.folder / "moved")
    said = built.run("verify", "demo/app", "--root", built.folder / "moved", "--quick")
    assert said.kinds == {"files/env-moved"}


def test_a_changed_file_is_explained_by_the_wheel_that_it_comes_from(built: Project) -> None:
    """Case: another build's file was copied over; the store knows the wheel it is from."""
    from envsmith.tools.store import open_store

    vendor = {"beta/__init__.py": "", "beta/core.py": "VERSION = 'vendor'\n"}
    wheel = make_wheel(built.folder / "other", "beta", "2.0+vendor", vendor)
    open_store(os.environ).add_file(wheel)
    (built.site / "beta/core.py").write_text(vendor["beta/core.py"])
    (built.site / "alpha/extra.py").write_text("X = 'nobody knows'\n")
    said = built.verify()
    found = {finding["subject"]: finding["actual"] for finding in findings(said, "files/file-changed")}
    assert "this is `beta/core.py` of beta 2.0+vendor" in found[f"{SITE}/beta/core.py"]
    assert "this is" not in found[f"{SITE}/alpha/extra.py"]
    assert "; written 20" in found[f"{SITE}/alpha/extra.py"]


def test_bytecode_interpreter_and_variables_are_judged_by_default(built: Project) -> None:
    import importlib.util
    import marshal
    import struct

    source = built.site / "beta/core.py"
    pyc = Path(importlib.util.cache_from_source(str(source)))
    pyc.parent.mkdir(exist_ok=True)
    state = source.stat()
    code = compile(source.read_text().replace("2.0", "6.6"), str(source), "exec")
    header = importlib.util.MAGIC_NUMBER + struct.pack("<III", 0, int(state.st_mtime), state.st_size)
    pyc.write_bytes(header + marshal.dumps(code))
    config = built.current.resolve() / "pyvenv.cfg"
    config.write_text(config.read_text().replace("site-packages = false", "site-packages = true"))
    said = built.verify(env={"LD_LIBRARY_PATH": "/usr/local/cuda/lib64/stubs:"})
    assert said.code == 1
    wanted = {
        "pyc/poisoned-bytecode", "interpreter/pyvenv-changed", "launch_env/libcuda-stub", "launch_env/empty-element",
    }  # fmt: skip
    assert wanted <= said.kinds
    (poisoned,) = findings(said, "pyc/poisoned-bytecode")
    assert poisoned["subject"] == str(pyc.relative_to(built.current.resolve()))


def test_a_changed_record_of_the_interpreter_stops_the_verification(built: Project) -> None:
    record = beside(built, "python.json")
    record.write_text(record.read_text().replace('"timestamp"', '"unchecked-hash"', 1) + " ")
    said = built.verify()
    assert (said.code, said.codes) == (5, ["python-record-differs"])


def test_the_chain_is_started_and_names_where_a_variable_is_lost(built: Project) -> None:
    said = built.verify("--contexts")
    assert said.code == 0, said.out
    assert [row["name"] for row in data(said, "contexts")] == ["launched", "spawn", "fork"]
    hook = built.site / "sitecustomize.py"
    hook.write_text(
        "import multiprocessing, os\n"
        "if multiprocessing.parent_process() or '--multiprocessing-fork' in __import__('sys').argv:\n"
        "    os.environ['DEMO_MODE'] = 'off'\n"
    )
    said = built.verify("--only", "contexts")
    (finding,) = findings(said, "contexts/context-variable")
    assert (said.code, finding["subject"]) == (1, "DEMO_MODE")
    assert (finding["expected"], finding["actual"]) == ("on", "off")
    assert "first changes in `spawn` (launched -> spawn)" in finding["message"]


def test_a_running_process_is_judged_with_its_children(built: Project) -> None:
    script = built.folder / "parent.py"
    script.write_text(
        "import os, subprocess, sys\n"
        "environ = {name: value for name, value in os.environ.items() if name != 'DEMO_MODE'}\n"
        "subprocess.run([sys.executable, '-c', 'input()'], env=environ)\n"
    )
    launch = [sys.executable, "-m", "envsmith", "run", "demo/app", "--root", built.envs]
    argv = [*launch, "--", "python", script]
    with subprocess.Popen(argv, cwd=built.folder, stdin=subprocess.PIPE) as process:
        try:
            wait_for_child(process.pid)
            said = built.run("verify", "demo/app", "--root", built.envs, "--pid", str(process.pid))
            alone = built.run("verify", "--pid", str(process.pid))
        finally:
            process.communicate(b"\n", timeout=30)
    found = {finding["subject"]: finding["message"] for finding in findings(said, "contexts/pid-variable")}
    assert said.code == 1
    assert found.keys() == {"DEMO_MODE"}
    assert " -> " in found["DEMO_MODE"]
    assert len(data(said, "contexts")) == 2
    assert {f["subject"] for f in findings(alone, "contexts/pid-variable")} == {"DEMO_MODE"}


def wait_for_child(pid: int) -> None:
    for _ in range(200):
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children and b"input()" in Path(f"/proc/{children[0]}/cmdline").read_bytes():
            return
        time.sleep(0.1)
    pytest.fail("the child did not start")


def test_a_pid_that_is_none_and_levels_beside_one_are_refused(built: Project) -> None:
    said = built.verify("--pid", "999999999")
    assert (said.code, said.codes) == (2, ["pid-missing"])
    for words in (("--deep",), ("--quick",), ("--lock", built.lock), ("--only", "files")):
        said = built.verify("--pid", str(os.getpid()), *words)
        assert (said.code, said.codes) == (2, ["usage"])
    with subprocess.Popen(["sleep", "30"]) as sleeping:
        said = built.verify("--pid", str(sleeping.pid))
        sleeping.kill()
    assert said.kinds == {"contexts/pid-not-judged"}


def test_a_sheet_and_a_page_say_what_the_text_says(built: Project) -> None:
    (built.site / "alpha/extra.py").write_text("X = 2\n")
    page = built.folder / "report.html"
    said = built.verify("--html", page)
    assert said.code == 1
    text = page.read_text()
    assert "extra.py" in text
    assert "Content-Security-Policy" in text
    sheet = built.run("verify", "demo/app", "--root", built.envs, "--brief", json=False)
    lines = sheet.out.splitlines()
    assert sheet.code == 1
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    assert any("alpha/extra.py" in line for line in lines)
    plain = built.run("verify", "demo/app", "--root", built.envs, json=False)
    assert "error[files/file-changed]: a file of alpha==1.0" in plain.out
    refused = built.verify("--html", built.folder / "no/such/folder/x.html")
    assert (refused.code, refused.codes) == (2, ["page-unwritable"])
    link = built.folder / "link.html"
    link.symlink_to("/dev/null")
    assert built.verify("--html", link).codes == ["page-unwritable"]
