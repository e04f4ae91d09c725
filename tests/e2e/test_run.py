"""`envsmith run` as a process: nothing of the caller's is lost or added but what the launch table says."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.project import Project, envsmith

#: What a process can know of how it was started.
LOOK = """\
import json, os, sys
old = os.umask(0); os.umask(old)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "group": os.getpgid(0), "session": os.getsid(0), "umask": old,
    "cwd": os.getcwd(), "ignored": int(status["SigIgn"], 16), "blocked": int(status["SigBlk"], 16),
    "argv": sys.argv[1:],
    "fds": sorted(n for n in map(int, os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd/%d" % n)),
    "tty": os.isatty(0), "stdin": "" if os.isatty(0) else sys.stdin.read(), "nice": os.nice(0),
}))
"""
SHELLS = [shell for shell in ("sh", "dash", "bash", "zsh", "busybox") if shutil.which(shell)]
OF_SHELLS = {"PWD", "OLDPWD", "SHLVL", "_", "LOGNAME"}


def started(built: Project, *words: str, env: Mapping[str, str] | None = None, **more: Any) -> subprocess.Popen[str]:
    dashes = [] if words[0].startswith("-") else ["--"]
    argv = [sys.executable, "-m", "envsmith", "run", "demo/app", "--root", str(built.envs), *dashes, *words]
    return subprocess.Popen(argv, cwd=built.folder, env=env, stdout=subprocess.PIPE, text=True, **more)


def said_by(child: subprocess.Popen[str]) -> str:
    with child:
        return child.communicate(timeout=60)[0]


def ended(child: subprocess.Popen[str], number: int | None = None) -> int:
    """Send a signal once the command says that it is ready; return how it ended."""
    with child:
        if number is not None:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            time.sleep(0.1)
            child.send_signal(number)
        return child.wait(timeout=60)


def test_the_command_takes_the_place_of_envsmith_and_keeps_what_it_inherits(built: Project, tmp_path: Path) -> None:
    script = tmp_path / "look.py"
    script.write_text(LOOK)
    read, write = os.pipe()
    child = started(
        built, "/usr/bin/env", "-i", sys.executable, "-S", str(script), "a b", "--root", "--", "",
        stdin=subprocess.PIPE, pass_fds=(write,), umask=0o027, start_new_session=True,
    )  # fmt: skip
    with child:
        out, _ = child.communicate("line\n" * 3, timeout=60)
    os.close(read)
    os.close(write)
    seen = json.loads(out)
    assert seen["pid"] == child.pid == seen["group"] == seen["session"]
    assert seen["parent"] == os.getpid()
    assert seen["argv"] == ["a b", "--root", "--", ""]
    assert (seen["umask"], seen["cwd"], seen["stdin"]) == (0o027, str(built.folder), "line\n" * 3)
    assert seen["fds"] == [0, 1, 2, write]
    assert seen["blocked"] == 0


def test_no_signal_is_ignored_that_the_caller_did_not_ignore(built: Project) -> None:
    """Python ignores SIGPIPE and SIGXFSZ; a command that inherits that never ends when its reader goes."""
    words = ("grep", "SigIgn", "/proc/self/status")
    assert int(said_by(started(built, *words)).split()[1], 16) == 0
    quiet = started(built, *words, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert int(said_by(quiet).split()[1], 16) == 1 << (signal.SIGINT - 1)
    with started(built, "yes") as endless:
        assert endless.stdout is not None
        endless.stdout.readline()
        endless.stdout.close()
        assert endless.wait(timeout=60) == -signal.SIGPIPE


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT])
def test_a_signal_is_the_commands_own(built: Project, number: signal.Signals) -> None:
    code = f"trap 'exit 9' {number.name[3:]}; echo ready; while :; do sleep 0.05; done"
    assert ended(started(built, "sh", "-c", code), number) == 9


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_command_that_a_signal_ended_looks_so(built: Project, number: signal.Signals) -> None:
    assert ended(started(built, "sh", "-c", "echo ready; exec sleep 60"), number) == -number


@pytest.mark.parametrize("code", [0, 1, 2, 7, 70, 130, 255])
def test_the_exit_code_is_the_commands_own(built: Project, code: int) -> None:
    assert ended(started(built, "sh", "-c", f"exit {code}")) == code


def test_a_terminal_stays_the_commands_terminal(built: Project) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(built.folder)
        words = ["run", "demo/app", "--root", str(built.envs), "--", "sh", "-c", "test -t 0 && test -t 1 && tty"]
        os.execv(sys.executable, [sys.executable, "-m", "envsmith", *words])
    said = b""
    while True:
        try:
            piece = os.read(terminal, 1024)
        except OSError:
            break
        if not piece:
            break
        said += piece
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert said.startswith(b"/dev/pts/")


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C"}, {"LC_CTYPE": "C"}])
def test_the_environment_is_the_table_laid_over_the_callers(built: Project, shell: str, locale: dict[str, str]) -> None:
    before = {
        "PATH": "/usr/bin:/bin", "HOME": str(built.folder), "ENVSMITH_SCRATCH": str(built.folder / "s"),
        "KEPT": "a\nb ", "PYTHONPATH": "/nowhere", "PYTHONHOME": "", **locale,
    }  # fmt: skip
    said = said_by(started(built, "env", "-0", env=before))
    ran = dict(pair.split("=", 1) for pair in said.split("\0") if pair)
    env_dir = str(built.current.resolve())
    kept = {name: value for name, value in before.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    assert ran == {
        **kept,
        "DEMO_MODE": "on", "DEMO_TMP": f"{built.folder}/s/d", "PYTHONNOUSERSITE": "1", "VIRTUAL_ENV": env_dir,
        "PATH": f"{env_dir}/bin:/usr/bin:/bin",
    }  # fmt: skip
    script = said_by(started(built, "--print", env=before))
    argv = [shutil.which(shell) or shell, *(["sh"] if shell == "busybox" else [])]
    done = subprocess.run(
        [*argv, "-c", f"{script}\n{shutil.which('env')} -0"], env=before, capture_output=True, text=True, check=True
    )
    lines = dict(pair.split("=", 1) for pair in done.stdout.split("\0") if pair)
    assert {name: value for name, value in lines.items() if name not in OF_SHELLS} == ran


def test_env_sh_finds_the_scratch_folder_of_who_reads_it(built: Project, tmp_path: Path) -> None:
    text = (built.current / "env.sh").read_text()
    assert f"/tmp/es{os.getuid()}" not in text
    for named, expected in ((f"{tmp_path}/x y", f"{tmp_path}/x y/d"), ("rel", f"{tmp_path}/rel/d")):
        script = (
            f'. "{built.current}/env.sh"; printf %s "$DEMO_TMP"; [ -d "$DEMO_TMP" ]; [ -z "${{_envsmith_scratch-}}" ]'
        )
        done = subprocess.run(
            ["sh", "-euc", script], env={"PATH": "/usr/bin:/bin", "ENVSMITH_SCRATCH": named}, cwd=tmp_path,
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == expected


def test_options_that_would_go_unheard_are_refused(built: Project) -> None:
    for words in (("--print", "--as", "slurm"), ("--bundle", "/b.tar"), ("--as", "modulefile", "--at", "/x"),
                  ("--as", "slurm", "--at", "/x"), ("--as", "slurm", "--bundle", "b.tar"),
                  ("--as", "k8s", "--bundle", "/b.tar"), ("--as", "pbs")):  # fmt: skip
        said = envsmith("run", "demo/app", "--root", built.envs, *words, "--json", cwd=built.folder)
        assert (said.code, said.codes) == (2, ["usage"]), words
