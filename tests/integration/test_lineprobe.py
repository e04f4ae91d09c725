"""The probe sees patched lines in a module, in threads, forks, spawned children and subprocesses, and harms nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from envsmith.rungs import tracing
from envsmith.rungs.answering import Answer, Task

PATCHED = """\
import os

# a comment of the patch
LIMIT = 3


def asked(value):
    if value:
        return "yes"
    return "no"


def never():
    return 1
"""
MAIN = """\
import multiprocessing, os, subprocess, sys, threading
import planted.code as code

def child():
    code.asked(False)

if __name__ == "__main__":
    how = sys.argv[1]
    if how == "plain":
        code.asked(True)
    elif how == "thread":
        thread = threading.Thread(target=child); thread.start(); thread.join()
    elif how in ("fork", "spawn"):
        process = multiprocessing.get_context(how).Process(target=child); process.start(); process.join()
        assert process.exitcode == 0
    elif how == "both":
        child()
        pid = os.fork()
        if not pid:
            child(); os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    elif how == "subprocess":
        subprocess.run([sys.executable, "-c", "import planted.code as c; c.asked(True)"], check=True)
"""


def interpreters() -> list[str]:
    """This one, and others that are installed: 3.12 and later look in another way than 3.10 and 3.11."""
    found = [sys.executable]
    for version in ("3.11", "3.12", "3.13"):
        done = subprocess.run(
            [sys.executable, "-m", "uv", "python", "find", "--no-project", "--no-python-downloads", version],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            found.append(done.stdout.strip())
    return list(dict.fromkeys(found))


def planted(folder: Path, lines: list[int]) -> Task:
    source = folder / "source"
    (source / "planted").mkdir(parents=True)
    (source / "planted" / "__init__.py").touch()
    (source / "planted" / "code.py").write_text(PATCHED)
    (folder / "main.py").write_text(MAIN)
    patch = {
        "series": "s",
        "patch": "0001-x.patch",
        "target": "planted",
        "kind": "source",
        "sha256": "",
        "files": [{"path": "planted/code.py", "lines": lines}],
    }
    return Task(
        rung="x", folder=folder, shared=folder, env=folder, ranks=1, steps=1, seed=0, timeout_s=60, options={},
        launch={}, sources={"planted": str(source)}, patches=[patch],
    )  # fmt: skip


def run(task: Task, python: str, *words: str, more_path: str = "", flags: tuple[str, ...] = ()) -> tuple[Answer, str]:
    folder = task.folder / "trace"
    path = tracing.prepare(task, folder)["PYTHONPATH"]
    path = os.pathsep.join([path, *filter(None, [more_path]), task.sources["planted"]])
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "OPTIM_TORCH": "0"}
    done = subprocess.run(
        [python, *flags, str(task.folder / "main.py"), *words], env=environ, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    answer = Answer()
    tracing.report(task, answer, tracing.events(folder), {"planted/code.py": "nobody calls it"})
    return answer, done.stdout


ALL = list(range(1, 15))


@pytest.mark.parametrize("python", interpreters(), ids=lambda path: Path(path).name)
@pytest.mark.parametrize(
    ("how", "line"), [("plain", 9), ("thread", 10), ("fork", 10), ("spawn", 10), ("both", 10), ("subprocess", 9)]
)
def test_a_line_is_seen_wherever_it_runs(how: str, line: int, python: str, tmp_path: Path) -> None:
    answer, _ = run(planted(tmp_path, ALL), python, how)
    (said,) = answer.statements
    assert (said["what"], said["verdict"]) == ("patch-exercised", "ok")
    hit = said["actual"].partition(" by ")[0].partition(":")[2].split(",")
    assert str(line) in hit and "14" not in hit and "3" not in hit
    assert answer.figures["planted/0001-x.patch lines that can be"] == 8
    events = tracing.events(tmp_path / "trace")
    hits = {event["pid"] for event in events if event["event"] == "hit" and event["line"] == line}
    assert len(hits) == (2 if how == "both" else 1)


def test_lines_that_only_an_import_executes_prove_nothing_where_there_are_others(tmp_path: Path) -> None:
    answer, _ = run(planted(tmp_path, ALL), sys.executable, "nothing")
    (said,) = answer.statements
    assert (said["what"], said["verdict"]) == ("patch-not-exercised", "note")
    assert "nobody calls it" in said["message"]


def test_a_patch_of_import_lines_alone_is_shown_by_an_import(tmp_path: Path) -> None:
    answer, _ = run(planted(tmp_path, [3, 4]), sys.executable, "nothing")
    (said,) = answer.statements
    assert (said["what"], said["expected"]) == ("patch-exercised", "planted/code.py:4")


def test_a_process_that_reads_no_pythonpath_is_not_said_to_have_executed_anything(tmp_path: Path) -> None:
    task = planted(tmp_path, ALL)
    (tmp_path / "planted").symlink_to(Path(task.sources["planted"]) / "planted")
    answer, _ = run(task, sys.executable, "plain", flags=("-E",))
    assert [said["what"] for said in answer.statements] == ["patch-not-exercised"]


def test_the_next_sitecustomize_still_runs_and_is_the_module(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("print('I ran')\nMARK = 1\n")
    task = planted(tmp_path, ALL)
    (tmp_path / "main.py").write_text("import sitecustomize; print(sitecustomize.MARK)\n")
    answer, out = run(task, sys.executable, more_path=str(other))
    assert out.split("\n")[:2] == ["I ran", "1"]
    assert answer.statements


def test_each_process_tells_its_variables_at_start_and_end(tmp_path: Path) -> None:
    task = planted(tmp_path, ALL)
    (tmp_path / "main.py").write_text("import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'late'\n")
    run(task, sys.executable)
    start, end = tracing.events(tmp_path / "trace")
    assert (start["event"], start["variables"]) == ("start", {"OPTIM_TORCH": "0"})
    assert (end["event"], end["variables"]["PYTORCH_CUDA_ALLOC_CONF"]) == ("exit", "late")
    assert start["process"] == "main.py"


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    task = planted(tmp_path, ALL)
    (Path(task.sources["planted"]) / "planted" / "code.py").unlink()
    (tmp_path / "main.py").write_text("")
    answer, _ = run(task, sys.executable)
    assert "not there: planted/code.py" in answer.statements[0]["message"]


def test_a_line_cut_short_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(json.dumps({"event": "start"}) + '\n{"event": "hi')
    assert tracing.events(tmp_path) == [{"event": "start"}]
